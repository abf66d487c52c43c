//! A guard program: all that a program embedding the runner needs besides its own main.

fn main() -> std::process::ExitCode {
    tachikoma_loop_runner::process::serve()
}
