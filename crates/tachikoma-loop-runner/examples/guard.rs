//! A guard program: the only thing that a program that embeds the runner needs besides its own `main`.

fn main() -> std::process::ExitCode {
    tachikoma_loop_runner::process::serve()
}
