//! `cargo xtask soak`: repeats many times what a test checks once. Each soak prints a summary, and fails if the machine lacks a
//! required program or permission.

mod audit;
mod clock;
mod dice;
#[cfg(feature = "disks")]
mod disk;
pub mod encrypted;
mod flip;
mod kill;
mod kill_boundary;
mod kill_effect;
mod kill_random;
mod kill_restore;
mod kill_server;
#[cfg(feature = "disks")]
mod power_cut;
#[cfg(feature = "disks")]
mod refusing_disk;
mod suspend;
mod tracer;
mod two_runners;
mod victim;

use std::path::Path;
use std::time::Instant;

use crate::bench::{Bench, memory};
use crate::cargo;
use crate::check::succeeds;
use crate::real_agents;

/// Number of simulated loops for each round.
const LOOPS_PER_ROUND: u32 = 20_000;

/// Number of rounds that take as long as one load measurement.
const ROUNDS_PER_LOAD: u32 = 10;

/// A soak. It runs this many rounds and returns a summary.
type Soak = fn(&Path, u32) -> Result<String, String>;

/// A soak with its name and number of rounds.
struct Row {
    name: &'static str,
    soak: Soak,
    /// Default number of rounds.
    rounds: u32,
    /// Number of rounds in the sample that every change has to pass; `None` if the soak takes too long or needs rights that not
    /// every machine has.
    sample: Option<u32>,
}

/// All soaks, in the order of execution.
const SOAKS: &[Row] = &[
    row("kill-cgroup", kill::with_cgroup, 50, None),
    row("kill-guard", kill::without_cgroup, 50, None),
    row("simulation", simulation, 50, None),
    row("loads", loads, 50, None),
    row("kill-random", kill_random::run, 10_000, Some(200)),
    row("kill-boundary", kill_boundary::run, 200, Some(20)),
    row("kill-restore", kill_restore::run, 200, Some(10)),
    row("kill-effect", kill_effect::run, 100, Some(2)),
    #[cfg(feature = "disks")]
    row("power-cut", power_cut::run, 30, Some(30)),
    #[cfg(feature = "disks")]
    row("read-only", refusing_disk::read_only, 30, Some(5)),
    #[cfg(feature = "disks")]
    row("full-disk", refusing_disk::full, 30, Some(5)),
    row("clock", clock::run, 10, Some(1)),
    row("suspend", suspend::run, 10, Some(1)),
    row("flip", flip::run, 10_000, Some(500)),
    row("age-tool", encrypted::age_tool, 10, Some(1)),
    row("two-runners", two_runners::run, 100, Some(10)),
    row("decoder", decoder, 60, Some(5)),
    row("kill-server", kill_server::run, 100, Some(10)),
    row("kill-opencode", real_agents::kill_opencode, 10, None),
    row("claude-fill", real_agents::fill, 50, None),
];

const fn row(name: &'static str, soak: Soak, rounds: u32, sample: Option<u32>) -> Row {
    Row {
        name,
        soak,
        rounds,
        sample,
    }
}

/// Runs the named soaks, or all, and stops at the first failure.
pub fn run(root: &Path, words: &[&str]) -> Result<(), String> {
    let args = SoakArgs::parse(words)?;
    for row in SOAKS {
        let Some(rounds) = args.rounds_of(row) else {
            continue;
        };
        let name = row.name;
        println!("==> {name}");
        let started = Instant::now();
        let did = (row.soak)(root, rounds).map_err(|error| format!("{name}: {error}"))?;
        println!("    {did}, in {:.0} s", started.elapsed().as_secs_f64());
    }
    Ok(())
}

/// Runs the simulation of the core with more seeds than its test.
fn simulation(root: &Path, rounds: u32) -> Result<String, String> {
    let loops = rounds.saturating_mul(LOOPS_PER_ROUND).to_string();
    let mut test = cargo(root);
    test.args([
        "test",
        "--quiet",
        "--release",
        "--package",
        "tachikoma-core",
    ])
    .args(["--test", "it", "sim::"])
    .env("TACHIKOMA_SIM_LOOPS", &loops);
    succeeds(&mut test)?;
    Ok(format!("{loops} loops equal their replay"))
}

/// Parses damaged output of agents, for this many seconds.
fn decoder(root: &Path, rounds: u32) -> Result<String, String> {
    let mut test = cargo(root);
    test.args(["test", "--quiet", "--release"])
        .args(["--package", "tachikoma-agents", "--test", "it"])
        .arg("claude_damaged::")
        .env("TACHIKOMA_DAMAGE_SECONDS", rounds.to_string());
    succeeds(&mut test)?;
    Ok(format!("damaged lines for {rounds} s were all taken"))
}

/// Repeats the memory measurements with a flood of output and an endless line.
fn loads(root: &Path, rounds: u32) -> Result<String, String> {
    let bench = Bench::build(root)?;
    let times = rounds.div_ceil(ROUNDS_PER_LOAD);
    let mut most: f64 = 0.0;
    for _ in 0..times {
        for row in memory::loads(&bench)? {
            if row.falls_short() {
                return Err(format!("{}: {:.1} MiB", row.figure, row.measured));
            }
            if row.goal.is_some() {
                most = most.max(row.measured);
            }
        }
    }
    Ok(format!(
        "{times} floods and lines, the runner at {most:.1} MiB at most after them"
    ))
}

/// The parsed arguments.
#[derive(Debug, PartialEq, Eq)]
struct SoakArgs<'a> {
    names: Vec<&'a str>,
    rounds: Option<u32>,
    sample: bool,
}

impl<'a> SoakArgs<'a> {
    fn parse(words: &[&'a str]) -> Result<Self, String> {
        let mut args = Self {
            names: Vec::new(),
            rounds: None,
            sample: false,
        };
        let mut words = words.iter().copied();
        while let Some(word) = words.next() {
            match word {
                "--rounds" => {
                    let rounds = words.next().and_then(|number| number.parse().ok());
                    let rounds = rounds.filter(|rounds| *rounds > 0);
                    args.rounds = Some(rounds.ok_or("--rounds needs a number")?);
                }
                "--sample" => args.sample = true,
                name if SOAKS.iter().any(|row| row.name == name) => args.names.push(name),
                other => {
                    let known: Vec<_> = SOAKS.iter().map(|row| row.name).collect();
                    let known = known.join(", ");
                    return Err(format!("unknown soak {other}; known: {known}"));
                }
            }
        }
        Ok(args)
    }

    /// Returns the number of rounds of a soak; `None` if it is not requested.
    fn rounds_of(&self, row: &Row) -> Option<u32> {
        let named = self.names.is_empty() || self.names.contains(&row.name);
        let usual = if self.sample {
            row.sample
        } else {
            Some(row.rounds)
        };
        usual
            .filter(|_| named)
            .map(|usual| self.rounds.unwrap_or(usual))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_parsed_or_rejected() {
        let args = SoakArgs::parse(&["--rounds", "7", "kill-guard"]);
        let expected = SoakArgs {
            names: vec!["kill-guard"],
            rounds: Some(7),
            sample: false,
        };
        assert_eq!(args, Ok(expected));
        for rounds in [&["--rounds"][..], &["--rounds", "0"], &["--rounds", "x"]] {
            let refused = SoakArgs::parse(rounds);
            assert_eq!(refused, Err("--rounds needs a number".to_owned()));
        }
        let refused = SoakArgs::parse(&["kill"]).expect_err("nothing is called so");
        assert!(
            refused.starts_with("unknown soak kill; known: kill-cgroup, kill-guard, "),
            "{refused}"
        );
    }

    #[test]
    fn number_of_rounds_depends_on_the_name_of_the_soak_test_and_on_sample() {
        let wanted = |words: &[&str], name: &str| {
            let row = SOAKS.iter().find(|row| row.name == name);
            SoakArgs::parse(words)
                .expect("the words are right")
                .rounds_of(row.expect("it is one of them"))
        };
        assert_eq!(wanted(&[], "flip"), Some(10_000));
        assert_eq!(wanted(&["--sample"], "flip"), Some(500));
        assert_eq!(wanted(&["--sample", "--rounds", "3"], "flip"), Some(3));
        assert_eq!(wanted(&["--sample"], "loads"), None, "it takes too long");
        assert_eq!(wanted(&["flip"], "loads"), None, "not named");
    }
}
