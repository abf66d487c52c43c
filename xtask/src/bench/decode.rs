//! Measures how fast the output of Claude Code is parsed, compared to a JSON library that parses each line completely.

use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use super::Bench;
use super::report::{Row, Unit};
use super::sample::Sample;
use crate::cargo;

/// Goal. An agent writes a few megabytes in an hour, and must never wait for the parser.
const MEGABYTES_PER_SECOND: f64 = 300.0;

const TIMES_FASTER: f64 = 5.0;

pub fn measure(_: &Bench) -> Result<Vec<Row>, String> {
    // A separate program measures: the benchmark `decode` of the crate `tachikoma-agents`.
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = cargo(package)
        .args(["bench", "--quiet", "--package", "tachikoma-agents"])
        .args(["--bench", "decode"])
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("start cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("the measurement ended with {}", output.status));
    }
    rows(&String::from_utf8_lossy(&output.stdout))
}

/// Parses the output of that program, which has one line for each round.
fn rows(text: &str) -> Result<Vec<Row>, String> {
    let (mut decoder, mut library, mut deltas, mut times) = (
        Sample::default(),
        Sample::default(),
        Sample::default(),
        Sample::default(),
    );
    for line in text.lines().filter(|line| line.starts_with('{')) {
        let round: Value =
            serde_json::from_str(line).map_err(|error| format!("{line}: {error}"))?;
        let figure = |name: &str| round[name].as_f64().ok_or(format!("{line}: no {name}"));
        let (ours, theirs) = (figure("decoder_mbs")?, figure("value_mbs")?);
        decoder.add(ours);
        library.add(theirs);
        times.add(ours / theirs);
        deltas.add(figure("deltas_mbs")?);
    }
    let speed = Row::goal(
        "Claude Code's output read",
        decoder.median(),
        Unit::MegabytesPerSecond,
        MEGABYTES_PER_SECOND,
    );
    let ratio = Row::goal(
        "as fast as serde_json's Value",
        times.median(),
        Unit::TimesFaster,
        TIMES_FASTER,
    );
    let pieces = Row::info(
        "of that, pieces of messages",
        deltas.median(),
        Unit::MegabytesPerSecond,
    );
    Ok(vec![
        speed.detail(format!("all recordings; most {:.0} MB/s", decoder.max())),
        ratio.detail(format!(
            "in turns; Value {:.0} MB/s, ratio {:.1} to {:.1}",
            library.median(),
            times.min(),
            times.max()
        )),
        pieces,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_medians_of_speeds_and_of_ratios_within_each_round() {
        let round = |ours: u32, theirs: u32| {
            format!(r#"{{"decoder_mbs":{ours},"value_mbs":{theirs},"deltas_mbs":9}}"#)
        };
        let text = [round(1000, 100), round(200, 50), round(600, 100)].join("\n");
        let rows = rows(&text).unwrap();
        let figures: Vec<_> = rows
            .iter()
            .map(|row| (row.measured, row.falls_short()))
            .collect();
        assert_eq!(figures, [(600.0, false), (6.0, false), (9.0, false)]);
        assert!(rows_of_nothing().iter().any(Row::falls_short));
    }

    fn rows_of_nothing() -> Vec<Row> {
        rows("").unwrap()
    }
}
