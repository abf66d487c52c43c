//! `cargo xtask soak`: what a test shows once, shown many times over. Each soak says what it did, and fails loudly where
//! the machine lacks the means to show it.

mod kill;

use std::path::Path;
use std::time::Instant;

use crate::bench::{Bench, memory};
use crate::cargo;
use crate::check::succeeds;

/// Rounds where nobody says how many.
const ROUNDS: u32 = 50;

/// Loops that the simulation lives through for each round.
const LOOPS_PER_ROUND: u32 = 4_000;

/// A load takes as long as so many rounds of the others.
const ROUNDS_PER_LOAD: u32 = 10;

/// The soaks by name, in the order in which they are made. Each returns what it did.
type Soak = fn(&Path, u32) -> Result<String, String>;
const SOAKS: [(&str, Soak); 4] = [
    ("kill-cgroup", kill::with_cgroup),
    ("kill-guard", kill::without_cgroup),
    ("simulation", simulation),
    ("loads", loads),
];

/// Soaks what was named, or everything, and stops at the first failure.
pub fn run(root: &Path, words: &[&str]) -> Result<(), String> {
    let wish = Wish::parse(words)?;
    for (name, soak) in SOAKS {
        if wish.names.is_empty() || wish.names.contains(&name) {
            println!("==> {name}");
            let started = Instant::now();
            let did = soak(root, wish.rounds).map_err(|error| format!("{name}: {error}"))?;
            println!("    {did}, in {:.0} s", started.elapsed().as_secs_f64());
        }
    }
    Ok(())
}

/// The core's simulation with more seeds than a test has time for.
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

/// The flood and the line, again and again.
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

/// What was asked for.
#[derive(Debug, PartialEq, Eq)]
struct Wish<'a> {
    names: Vec<&'a str>,
    rounds: u32,
}

impl<'a> Wish<'a> {
    fn parse(words: &[&'a str]) -> Result<Self, String> {
        let known = SOAKS.map(|(name, _)| name);
        let mut wish = Self {
            names: Vec::new(),
            rounds: ROUNDS,
        };
        let mut words = words.iter().copied();
        while let Some(word) = words.next() {
            match word {
                "--rounds" => {
                    let rounds = words.next().and_then(|number| number.parse().ok());
                    wish.rounds = rounds
                        .filter(|rounds| *rounds > 0)
                        .ok_or("--rounds needs a number")?;
                }
                name if known.contains(&name) => wish.names.push(name),
                other => {
                    let known = known.join(", ");
                    return Err(format!("no soak is called {other}; there are {known}"));
                }
            }
        }
        Ok(wish)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_understood_or_refused() {
        let wish = Wish::parse(&["--rounds", "7", "kill-guard"]);
        let expected = Wish {
            names: vec!["kill-guard"],
            rounds: 7,
        };
        assert_eq!(wish, Ok(expected));
        assert_eq!(Wish::parse(&[]).map(|wish| wish.rounds), Ok(ROUNDS));
        for rounds in [&["--rounds"][..], &["--rounds", "0"], &["--rounds", "x"]] {
            let refused = Wish::parse(rounds);
            assert_eq!(refused, Err("--rounds needs a number".to_owned()));
        }
        assert_eq!(
            Wish::parse(&["kill"]),
            Err(
                "no soak is called kill; there are kill-cgroup, kill-guard, simulation, loads"
                    .to_owned()
            )
        );
    }
}
