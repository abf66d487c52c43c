//! `agents decode`: recorded output of agents, from files, from compressed files and from standard input.

use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use tachikoma_loop_runner::store::encryption::Encryption;

use insta::assert_snapshot;
use tachikoma_loop_runner::store::compressed;
use tachikoma_testkit::Scratch;

use crate::support::tachikoma;

fn corpus() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tachikoma-agents/tests/corpus/claude")
}

fn decode(scratch: &Scratch, name: &str, exit: &str) -> serde_json::Value {
    let file = corpus().join(format!("{name}.jsonl"));
    let file = file.to_str().unwrap();
    let ran =
        tachikoma(scratch).run(["agents", "decode", "claude", file, "--exit", exit, "--json"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    ran.json()
}

#[test]
fn every_recording_is_decoded() {
    let scratch = Scratch::new();
    let table = fs::read_to_string(corpus().join("cases.tsv")).unwrap();
    for row in table.lines().skip(1) {
        let cells: Vec<&str> = row.split('\t').collect();
        let report = decode(&scratch, cells[0], cells[1]);
        assert_eq!(report["outcome"], cells[2], "{row}");
        let tokens: u64 = cells[4].parse().unwrap();
        assert_eq!(report["context_tokens"], tokens, "{row}");
        assert_eq!(report["unknown_lines"], 0, "{row}");
    }
}

#[test]
fn a_usage_limit_is_shown_with_its_reset() {
    let report = decode(&Scratch::new(), "82-usage-limit-rejected", "1");
    assert_eq!(report["limit_resets_at"], "2026-11-15T04:10:33.000Z");
    assert_eq!(report["window"], 1_000_000);
    assert_eq!(report["cost_usd"], 0.001_356);
    assert_eq!(report["readings"], 1);
}

#[test]
fn agents_decode_prints_a_text_summary_without_json() {
    let scratch = Scratch::new();
    let words = |name: &str, exit: &str| {
        let file = corpus().join(format!("{name}.jsonl"));
        let file = file.to_str().unwrap();
        let ran = tachikoma(&scratch).run(["agents", "decode", "claude", file, "--exit", exit]);
        format!("exit {:?}\n{}", ran.code(), ran.stdout)
    };
    assert_snapshot!(words("03-tools-write-read-edit-bash", "0"), @"
    exit Some(0)
    outcome    ok
    context    9774 of 1000000 tokens, 1.0%, 5 readings
    cost       $0.0608
    session    7e55f9e7-54bc-4e6a-a6f7-64fc7754ec64
    agent      2.1.325, claude-opus-5-5, bypassPermissions
    seen       1 turn, 4 tool calls, 1 of them failed, 2 file writes
    lines      12, 0 not understood
    text       Done: file has TWO.
    ");
    assert_snapshot!(words("82-usage-limit-rejected", "1"), @"
    exit Some(0)
    outcome    usage_limit (usage_limit_reached)
    limit      lifted at 2026-11-15T04:10:33.000Z
    context    9104 of 1000000 tokens, 0.9%, 1 reading
    cost       $0.0014
    session    e691c940-acba-4c74-bcf3-10bd2842f284
    agent      2.1.325, claude-sonnet-5-5, bypassPermissions
    seen       1 turn, 1 tool call
    lines      7, 0 not understood
    text       You've hit your 5-hour limit · resets 4:10am (UTC)
    ");
    assert_snapshot!(words("52-sigkill-mid-tool", "-9"), @"
    exit Some(0)
    outcome    no_result (killed, a turn was not finished)
    context    9004 of 1000000 tokens, 0.9%, 1 reading
    cost       $0.0000
    session    f3aa479c-6580-4cac-a9d6-db5ec8bfe293
    agent      2.1.325, claude-opus-5-5, bypassPermissions
    seen       1 tool call
    lines      3, 0 not understood
    ");
    assert_snapshot!(words("60b-resume", "0"), @"
    exit Some(0)
    outcome    ok
    context    9071 of 1000000 tokens, 0.9%, 1 reading
    cost       $0.0023, the whole session $0.0475
    session    69223c13-156f-4720-a913-4cd418a35068
    agent      2.1.325, claude-opus-5-5, bypassPermissions
    seen       1 turn
    lines      3, 0 not understood
    text       You said BLUE.
    ");
    assert_snapshot!(words("64a-sigkill-before-init", "-9"), @"
    exit Some(0)
    outcome    no_result (killed)
    context    0 tokens of an unknown window, 0 readings
    cost       $0.0000
    lines      0, 0 not understood
    ");
}

#[test]
fn standard_input_and_compressed_files_give_the_same_result() {
    let scratch = Scratch::new();
    let plain = corpus().join("09-context-growth-no-compact.jsonl");
    let expected = decode(&scratch, "09-context-growth-no-compact", "1");
    let words = ["agents", "decode", "claude", "-", "--exit", "1", "--json"];
    let mut command = tachikoma(&scratch).command(words);
    let output = command.stdin(File::open(&plain).unwrap()).output().unwrap();
    let read: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(read, expected);

    let copy = scratch.write("copy.jsonl", fs::read(&plain).unwrap());
    compressed::replace(&copy, &Encryption::plain(), &AtomicBool::new(false)).unwrap();
    for name in ["copy.jsonl", "copy.jsonl.zst"] {
        let words = ["agents", "decode", "claude", name, "--exit=1", "--json"];
        let ran = tachikoma(&scratch).run(words);
        assert_eq!(ran.json(), expected, "{name}");
    }
}

#[test]
fn unreadable_input_is_an_error() {
    let scratch = Scratch::new();
    scratch.write("binary", b"\x7fELF\0\0\0\x01\n\0\0".as_slice());
    scratch.write("broken.zst", "this is not zstd");
    fs::create_dir(scratch.path().join("dir")).unwrap();
    let refused = |name: &str| {
        let ran = tachikoma(&scratch).run(["agents", "decode", "claude", name, "--json"]);
        ran.snapshot()
    };
    assert_snapshot!(refused("gone.jsonl"), @"
    exit: 1
    --- stdout
    --- stderr
    error: read gone.jsonl: No such file or directory (os error 2)
    hint: name a file with the agent's stdout, or - to read stdin
    ");
    assert_snapshot!(refused("dir"), @"
    exit: 1
    --- stdout
    --- stderr
    error: read dir: Is a directory (os error 21)
    hint: name a file in it
    ");
    assert_snapshot!(refused("binary"), @"
    exit: 1
    --- stdout
    --- stderr
    error: binary is not text
    hint: it must hold what `claude --output-format stream-json` printed; a compressed file ends in .zst
    ");
    assert_snapshot!(refused("broken.zst"), @"
    exit: 1
    --- stdout
    --- stderr
    error: read broken.zst: BadMagicNumber(1936287860)
    hint: it is damaged, or not compressed with zstd
    ");
    let ran = tachikoma(&scratch).run(["agents", "decode", "gpt", "x"]);
    assert_eq!(ran.code(), Some(2), "{}", ran.snapshot());
}

#[test]
fn lines_that_agents_decode_does_not_know_are_counted() {
    let scratch = Scratch::new();
    let good = r#"{"type":"result","subtype":"success","is_error":false,"result":"fine","usage":{"output_tokens":3},"total_cost_usd":0.5}"#;
    let long = format!(r#"{{"type":"user","x":"{}"}}"#, "x".repeat(9 << 20));
    let text = format!("hello\n\n{{\"type\":\"telepathy\"}}\n{long}\n{good}\n{{\"type\":\"assist");
    scratch.write("mixed.jsonl", text);
    let ran = tachikoma(&scratch).run(["agents", "decode", "claude", "mixed.jsonl", "--json"]);
    let report = ran.json();
    assert_eq!(report["unknown_lines"], 4);
    assert_eq!(report["cut_lines"], 1);
    assert_eq!(report["lines"], 5);
    assert_eq!(report["outcome"], "ok");
    assert_eq!(report["cost_usd"], 0.5);
}
