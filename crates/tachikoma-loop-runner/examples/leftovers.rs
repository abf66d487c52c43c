//! Ends the leftover processes of a dead runner of the loop `MARKER` and prints them: `leftovers MARKER`.
#![expect(clippy::print_stdout, reason = "this program prints its results")]

fn main() {
    let marker = std::env::args().nth(1).unwrap_or_default();
    for leftover in tachikoma_loop_runner::process::orphans::end_leftovers(&marker) {
        println!("{} {}", leftover.pid, leftover.command);
    }
}
