//! `cargo xtask check`: runs all checks, the quick ones first, up to the first failure.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::{cargo, tidy};

/// Environment variable with the number of tests that the test harness runs in parallel.
const TEST_THREADS: &str = "RUST_TEST_THREADS";

/// Runs every step, prints its duration, and stops at the first failure.
pub fn run(root: &Path) -> Result<(), String> {
    let started = Instant::now();
    step("fmt", || cargo_step(root, &["fmt", "--all", "--check"]))?;
    step("tidy", || tidy::run(root))?;
    step("clippy", || {
        let lint = ["clippy", "--workspace", "--all-targets", "--"];
        cargo_step(root, &[&lint[..], &["-D", "warnings"]].concat())
    })?;
    step("test", || run_tests(root))?;
    step("doc", || {
        let mut doc = cargo(root);
        doc.args(["doc", "--no-deps", "--workspace"]);
        succeeds(doc.env("RUSTDOCFLAGS", "-D warnings"))
    })?;
    println!("check passed in {}", seconds(started.elapsed()));
    Ok(())
}

/// Runs all tests with nextest if it is installed, because there each test is a process that inherits no open files of other
/// tests. Otherwise uses `cargo test`.
fn run_tests(root: &Path) -> Result<(), String> {
    let nextest = cargo(root).args(["nextest", "--version"]).output();
    if nextest.is_ok_and(|output| output.status.success()) {
        let profile = std::env::var("CI").map_or("default", |_| "ci");
        cargo_step(
            root,
            &["nextest", "run", "--workspace", "--profile", profile],
        )?;
        return cargo_step(root, &["test", "--workspace", "--doc"]);
    }
    let mut test = cargo(root);
    test.args(["test", "--workspace"]);
    if std::env::var_os(TEST_THREADS).is_none() {
        test.env(TEST_THREADS, test_threads());
    }
    succeeds(&mut test)
}

/// Returns the number of tests to run in parallel: more than the number of cores, because most tests wait for child processes.
fn test_threads() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores * 4).to_string()
}

fn step(name: &str, action: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    println!("==> {name}");
    let started = Instant::now();
    let result = action();
    let took = seconds(started.elapsed());
    match result {
        Ok(()) => {
            println!("    {name} passed in {took}");
            Ok(())
        }
        Err(error) => Err(format!("{name} failed after {took}: {error}")),
    }
}

fn cargo_step(root: &Path, args: &[&str]) -> Result<(), String> {
    succeeds(cargo(root).args(args))
}

/// Runs a command that prints its own errors.
pub fn succeeds(command: &mut Command) -> Result<(), String> {
    let words: Vec<_> = command
        .get_args()
        .map(|arg| arg.to_string_lossy())
        .collect();
    let line = format!("cargo {}", words.join(" "));
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{line}` ended with {status}")),
        Err(error) => Err(format!("start `{line}`: {error}")),
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_its_step_and_its_cause() {
        let error = step("clippy", || Err("it is wrong".into())).unwrap_err();
        assert!(error.starts_with("clippy failed after "), "{error}");
        assert!(error.ends_with(": it is wrong"), "{error}");
    }

    #[test]
    fn a_failing_command_is_named() {
        let error = succeeds(Command::new("false").arg("fmt")).unwrap_err();
        assert_eq!(error, "`cargo fmt` ended with exit status: 1");
    }
}
