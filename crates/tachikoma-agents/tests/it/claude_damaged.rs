//! The decoder accepts any line. The tests truncate, join, change and extend recorded lines.
//! `cargo xtask soak decoder` runs longer.

use std::time::{Duration, Instant};

use tachikoma_agents::claude::Decoder;
use tachikoma_agents::{AgentEvent, Decoder as AnyDecoder};

use crate::corpus::{Case, claude, opencode};

/// Number of lines after which a new decoder is used.
const LINES_PER_DECODER: usize = 400;

/// Maximum number of printed bytes of events for each byte of the line: strings are copied at most twice, and
/// printing can turn one byte into ten.
const PRINTED_PER_BYTE: usize = 24;

/// Bytes that an event prints without any text from the line.
const PRINTED_ALWAYS: usize = 4096;

/// Maximum size of a decoder's state when printed: 256 tool calls with paths of 4 KiB, ten printed bytes for each byte.
const KEPT_PRINTED_MAX: usize = 12 << 20;

/// Pseudorandom numbers (`SplitMix64`).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound.max(1) as u64).expect("below a usize")
    }
}

const STUFFING: [&[u8]; 16] = [
    b"\"",
    b"\\",
    b"\\u",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"null",
    b"-1",
    b"1e999",
    b"99999999999999999999",
    b"\xff\xfe",
    b"\"type\":\"result\",",
    b"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
];

fn damage(line: &mut Vec<u8>, other: &[u8], dice: &mut Dice) {
    let at = dice.below(line.len());
    let end = at + dice.below((line.len() - at).min(64));
    match dice.below(7) {
        0 => line.truncate(at),
        1 => drop(line.drain(at..end)),
        2 => {
            let again = line[at..end].to_vec();
            line.splice(at..at, again);
        }
        3 => {
            line.truncate(at);
            line.extend_from_slice(&other[dice.below(other.len())..]);
        }
        4 => {
            if let Some(byte) = line.get_mut(at) {
                *byte ^= 1 << dice.below(8);
            }
        }
        _ => {
            let stuffing = STUFFING[dice.below(STUFFING.len())];
            line.splice(at..end, stuffing.iter().copied());
        }
    }
}

/// Checks the invariants of the decoder that hold after any line, even a damaged one.
fn check(line: &[u8], before: u64, unknown_lines: u64, seen: &[AgentEvent]) {
    let not_understood = seen
        .iter()
        .filter(|event| matches!(event, AgentEvent::NotUnderstood(_)))
        .count();
    assert_eq!(
        unknown_lines,
        before + not_understood as u64,
        "each counted unknown line has an event"
    );
    for event in seen {
        match event {
            AgentEvent::Measured(reading) => {
                assert!(reading.context().percent().is_finite(), "{reading:?}");
                assert!(reading.tokens < 1 << 52, "{reading:?}");
            }
            AgentEvent::Resulted(result) => {
                assert!(result.cost_usd.is_finite() && result.cost_usd >= 0.0);
                assert!(result.session_cost_usd.is_finite());
            }
            AgentEvent::Allowance(allowance) => {
                assert!(allowance.utilization.is_none_or(f64::is_finite));
            }
            _ => {}
        }
    }
    let printed = format!("{seen:?}").len();
    assert!(
        printed <= PRINTED_PER_BYTE * line.len() + PRINTED_ALWAYS,
        "{printed} bytes from a line of {}",
        line.len()
    );
}

#[test]
fn damaged_lines_of_claude_cause_no_panic() {
    taken_whatever_happens(&claude());
}

#[test]
fn damaged_lines_of_opencode_cause_no_panic() {
    taken_whatever_happens(&opencode());
}

fn taken_whatever_happens(cases: &[Case]) {
    let seconds = std::env::var("TACHIKOMA_DAMAGE_SECONDS").ok();
    let seconds = seconds.map_or(2, |text| text.parse().expect("a number of seconds"));
    let seed = std::env::var("TACHIKOMA_DAMAGE_SEED").ok();
    let mut seed = seed.map_or(1, |text| text.parse().expect("a number"));
    let lines: Vec<&[u8]> = cases.iter().flat_map(Case::lines).collect();
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut understood = 0_u64;
    let mut taken = 0_u64;
    while Instant::now() < until {
        let mut dice = Dice(seed);
        let mut decoder: AnyDecoder = cases[0].decoder.clone();
        let mut current = Vec::new();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..LINES_PER_DECODER {
                current = lines[dice.below(lines.len())].to_vec();
                for _ in 0..=dice.below(4) {
                    let other = lines[dice.below(lines.len())];
                    if !current.is_empty() {
                        damage(&mut current, other, &mut dice);
                    }
                }
                let before = decoder.standing().unknown_lines;
                let seen = decoder.decode(&current);
                let unknown_lines = decoder.standing().unknown_lines;
                check(&current, before, unknown_lines, &seen);
                understood += u64::from(unknown_lines == before);
                taken += 1;
            }
            let kept = format!("{decoder:?}").len();
            assert!(kept <= KEPT_PRINTED_MAX, "{kept} bytes kept");
        }));
        assert!(
            outcome.is_ok(),
            "seed {seed}, line {:?}",
            String::from_utf8_lossy(&current)
        );
        seed += 1;
    }
    // If all lines were damaged beyond recognition, or none were damaged, the test would check little.
    assert!(
        understood > taken / 20 && understood < taken * 19 / 20,
        "{understood} of {taken}"
    );
}

#[test]
fn line_truncated_at_any_byte_is_accepted_and_is_not_a_result() {
    for case in claude().iter().filter(|case| case.name.starts_with("03-")) {
        for line in case.lines() {
            for end in 0..line.len() {
                let mut decoder = Decoder::default();
                let mut seen = Vec::new();
                decoder.decode(&line[..end], &mut seen);
                check(&line[..end], 0, decoder.standing().unknown_lines, &seen);
                let result = seen
                    .iter()
                    .any(|event| matches!(event, AgentEvent::Resulted(_)));
                assert!(
                    !result,
                    "a part of a result is not a result: {:?}",
                    &line[..end].escape_ascii()
                );
            }
        }
    }
}
