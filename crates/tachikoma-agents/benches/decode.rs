//! Benchmark: reads recorded lines of Claude Code with our decoder and, for comparison, with a full JSON parser.
//! `cargo xtask bench decode` runs it. It prints one line of JSON for each round.
#![expect(clippy::print_stdout, reason = "whoever started it reads it")]

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use tachikoma_agents::claude::Decoder;

/// Number of rounds. In each round both parsers read all lines.
const ROUNDS: usize = 15;

/// How often each parser reads all lines in a round: long enough to be measured, short enough that disturbances hit both parsers.
const REPEATS: u32 = 20;

fn main() {
    let corpus = corpus();
    let lines: Vec<&[u8]> = corpus.split(|byte| *byte == b'\n').collect();
    let is_delta = |line: &&[u8]| line.windows(19).any(|part| part == b"content_block_delta");
    let deltas: Vec<&[u8]> = lines.iter().copied().filter(is_delta).collect();
    for _ in 0..ROUNDS {
        let decoder = time(|| decode(&lines));
        let value = time(|| read_all(&lines));
        let streaming = time(|| decode(&deltas));
        println!(
            r#"{{"decoder_mbs":{:.1},"value_mbs":{:.1},"deltas_mbs":{:.1}}}"#,
            speed(&lines, decoder),
            speed(&lines, value),
            speed(&deltas, streaming),
        );
    }
}

fn corpus() -> Vec<u8> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/claude");
    let entries = std::fs::read_dir(dir).expect("the recordings are there");
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|end| end == "jsonl"))
        .collect();
    paths.sort();
    let read = |path| std::fs::read(path).expect("a recording");
    paths.into_iter().flat_map(read).collect()
}

fn time(work: impl Fn()) -> Duration {
    let started = Instant::now();
    for _ in 0..REPEATS {
        work();
    }
    started.elapsed()
}

fn decode(lines: &[&[u8]]) {
    let mut decoder = Decoder::default();
    let mut seen = Vec::new();
    for line in lines {
        decoder.decode(line, &mut seen);
        black_box(&seen);
        seen.clear();
    }
    black_box(decoder.standing().readings);
}

fn read_all(lines: &[&[u8]]) {
    for line in lines.iter().filter(|line| !line.is_empty()) {
        let value: Value = serde_json::from_slice(line).expect("a recording is JSON");
        black_box(value);
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "sizes of a few megabytes are exact in an f64"
)]
fn speed(lines: &[&[u8]], took: Duration) -> f64 {
    let bytes: usize = lines.iter().map(|line| line.len() + 1).sum();
    bytes as f64 * f64::from(REPEATS) / 1e6 / took.as_secs_f64()
}
