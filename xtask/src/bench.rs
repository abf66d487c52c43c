//! `cargo xtask bench`: measures speed and memory of the release binary and compares them with goals. Compared values are measured
//! alternately in one run, so that a busy machine affects both.

mod cloud;
mod decode;
mod driven;
mod encrypted;
mod git;
mod interrupt;
mod iterations;
pub mod memory;
mod record;
mod replay;
pub mod report;
pub mod restart;
mod resume;
pub mod sample;
mod startup;
mod stop;
mod waits;

use std::path::{Path, PathBuf};

use crate::cargo;
use crate::check::succeeds;
use crate::product;
use report::Row;

/// The environment of a measurement.
pub struct Bench {
    /// Directory of the workspace.
    pub root: PathBuf,
    /// Path of the release binary.
    pub product: PathBuf,
    /// A directory for the data of the measurements, usually on a real disk.
    pub disk: PathBuf,
}

impl Bench {
    /// Builds the binary. The data is stored beside it, which is usually on a real disk. If that is inside a repository, where
    /// every loop would start git, the temporary directory is used, unless it is in memory.
    pub fn build(root: &Path) -> Result<Self, String> {
        let product = product::build(root)?;
        let beside = product.parent().unwrap_or(root).to_owned();
        let temporary = std::env::temp_dir();
        let in_repository = beside.ancestors().any(|above| above.join(".git").exists());
        let disk = match in_repository && !report::is_in_memory(&temporary) {
            true => temporary,
            false => beside,
        };
        let root = root.to_owned();
        Ok(Self {
            root,
            product,
            disk,
        })
    }
}

/// A measurement, which returns rows of the report.
type Measure = fn(&Bench) -> Result<Vec<Row>, String>;
const MEASURES: [(&str, Measure); 16] = [
    ("iteration", iterations::many),
    ("first", iterations::first),
    ("record", record::durable),
    ("encrypted", encrypted::measure),
    ("growth", record::growth),
    ("resume", resume::measure),
    ("memory", memory::measure),
    ("startup", startup::measure),
    ("stop", stop::measure),
    ("waits", waits::measure),
    ("interrupt", interrupt::measure),
    ("decode", decode::measure),
    ("replay", replay::measure),
    ("git", git::measure),
    ("restart", restart::measure),
    ("cloud", cloud::measure),
];

/// Runs the named measurements, or all. A missed goal is an error only with `--strict`.
pub fn run(root: &Path, words: &[&str]) -> Result<(), String> {
    let args = BenchArgs::parse(words)?;
    if cfg!(debug_assertions) {
        return run_optimised(root, words);
    }
    let bench = Bench::build(root)?;
    println!("disk: {}", report::place_text(&bench.disk));
    println!("memory: {}", report::place_text(Path::new(product::MEMORY)));
    let mut rows = Vec::new();
    for (name, measure) in MEASURES {
        if args.names.is_empty() || args.names.contains(&name) {
            eprintln!("measuring: {name}");
            rows.extend(measure(&bench).map_err(|error| format!("{name}: {error}"))?);
        }
    }
    print!("{}", report::table(&rows));
    if let Some(path) = args.json {
        std::fs::write(path, report::json(&rows))
            .map_err(|error| format!("write {path}: {error}"))?;
    }
    let short = rows.iter().filter(|row| row.falls_short()).count();
    if args.strict && short > 0 {
        return Err(format!("{short} figures fall short of their goals"));
    }
    Ok(())
}

/// Runs this program again, built like the product, because some code of the product is measured in this process.
fn run_optimised(root: &Path, words: &[&str]) -> Result<(), String> {
    let mut again = cargo(root);
    // Without default features, no dependency changes how the crates of the product are built.
    let package = ["--package", "xtask", "--no-default-features"];
    again.args(["run", "--quiet", "--release"]).args(package);
    succeeds(again.args(["--", "bench"]).args(words))
}

/// The parsed arguments.
#[derive(Debug, Default, PartialEq, Eq)]
struct BenchArgs<'a> {
    names: Vec<&'a str>,
    json: Option<&'a str>,
    strict: bool,
}

impl<'a> BenchArgs<'a> {
    fn parse(words: &[&'a str]) -> Result<Self, String> {
        let known = MEASURES.map(|(name, _)| name);
        let mut args = Self::default();
        let mut words = words.iter().copied();
        while let Some(word) = words.next() {
            match word {
                "--strict" => args.strict = true,
                "--json" => args.json = Some(words.next().ok_or("--json needs a file")?),
                name if known.contains(&name) => args.names.push(name),
                other => {
                    return Err(format!(
                        "nothing called {other} can be measured; there are {}",
                        known.join(", ")
                    ));
                }
            }
        }
        Ok(args)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_parsed_or_rejected() {
        assert_eq!(BenchArgs::parse(&[]), Ok(BenchArgs::default()));
        let args = BenchArgs::parse(&["stop", "--json", "out.json", "--strict"]);
        let expected = BenchArgs {
            names: vec!["stop"],
            json: Some("out.json"),
            strict: true,
        };
        assert_eq!(args, Ok(expected));
        assert_eq!(
            BenchArgs::parse(&["--json"]),
            Err("--json needs a file".to_owned())
        );
        assert_eq!(
            BenchArgs::parse(&["spot"]),
            Err("nothing called spot can be measured; there are iteration, first, record, encrypted, growth, resume, memory, startup, stop, waits, interrupt, decode, replay, git, restart, cloud".to_owned())
        );
    }
}
