//! Chores of the project, as `cargo xtask <chore>`: checks, benchmarks, soaks, attacks and real agents. No product code.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a chore talks to the person who started it"
)]

mod attack;
mod bench;
mod check;
mod encryption;
mod licences;
mod npm;
mod picture;
mod product;
mod real_agents;
mod real_runners;
mod size;
mod soak;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const USAGE: &str = "\
usage: cargo xtask <chore>

  check      everything that must hold before a change is merged
  tidy       only the rules about the sources themselves
  size       lines of product code, without comments, blank lines and tests
  licences   licences, bans and sources of the dependencies (needs cargo-deny)
  bench      [--json FILE] [--strict] [NAME...]: speed and memory, beside their goals
  attack     [--binary FILE] [NAME...]: known security holes, tried with two local users (needs root)
  soak       [--rounds N] [--sample] [NAME...]: what a test shows once, many times over
  real-agents [NAME...]: the real agent, pinned, against a scripted model (needs npm and namespaces)
  real-runners [NAME...]: the real runners of tests, and what is read of them (needs npm, python3, nextest, perl)
  picture    the README's picture, from a run of the demonstration
";

/// A subcommand of xtask with its arguments.
type Chore = fn(&Path, &[&str]) -> Result<(), String>;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (chore, rest): (Chore, &[&str]) = match &words[..] {
        ["check"] => (|root, _| check::run(root), &[]),
        ["tidy"] => (|root, _| tidy::run(root), &[]),
        ["size"] => (|root, _| size::run(root), &[]),
        ["licences"] => (|root, _| licences::run(root), &[]),
        ["bench", rest @ ..] => (bench::run, rest),
        // This program is started again as the minimal supervisor of a benchmark.
        ["bench-loop", rest @ ..] => (|_, words| bench::restart::bare_loop(words), rest),
        ["attack", rest @ ..] => (attack::run, rest),
        // This program is started again as the server of an attack.
        ["fake-opencode", ..] => return tachikoma_testkit::fake_opencode::main(),
        ["soak", rest @ ..] => (soak::run, rest),
        ["real-agents", rest @ ..] => (real_agents::run, rest),
        ["real-runners", rest @ ..] => (real_runners::run, rest),
        ["picture"] => (|root, _| picture::run(root), &[]),
        [] | ["help" | "--help" | "-h"] => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("error: no such chore: {}\n\n{USAGE}", words.join(" "));
            return ExitCode::from(2);
        }
    };
    match root().and_then(|root| chore(&root, rest)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the workspace: the parent directory of the package that cargo runs.
///
/// The path is read at run time, because work trees with a shared target directory also share this binary, and each must check itself.
fn root() -> Result<PathBuf, String> {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    package
        .and_then(|package| package.parent().map(Path::to_path_buf))
        .ok_or_else(|| "started without cargo; call `cargo xtask`".into())
}

/// Returns a command with the cargo that started this program, in the workspace.
fn cargo(root: &Path) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.current_dir(root);
    command
}
