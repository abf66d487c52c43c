//! `tachikoma state set`, with and without a live runner.

use std::fs;

use insta::assert_snapshot;
use serde_json::{Value, json};
use tachikoma_core::policy::custom::{KEY_BYTES_MAX, KEYS_MAX, VALUE_BYTES_MAX};
use tachikoma_testkit::{Ran, Scratch};

use crate::support::{
    await_events, events, files, kill, lines, run, shown, start_busy, status, tachikoma,
    with_history,
};

fn set(scratch: &Scratch, key: &str, value: &str) -> Ran {
    tachikoma(scratch).run(["state", "set", key, value])
}

#[track_caller]
fn done(ran: &Ran, said: &str) {
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(ran.stdout, format!("{said}\n"));
}

#[track_caller]
fn custom(scratch: &Scratch) -> Value {
    let verified = tachikoma(scratch).run(["state", "verify"]);
    assert_eq!(verified.code(), Some(0), "{}", verified.snapshot());
    let shown = tachikoma(scratch).run(["state", "show", "--json"]);
    shown.json()["custom"].clone()
}

#[test]
fn state_set_without_a_runner_is_journaled() {
    let scratch = with_history();
    let before = status(&scratch);
    done(
        &set(&scratch, "a", "{\"b\": [1, \"two\", null]}"),
        "a is set",
    );
    done(&set(&scratch, "n", "-1.5e-7"), "n is set");
    done(&set(&scratch, "n", "null"), "n is removed");
    done(&set(&scratch, "n", "null"), "n was not set");
    assert_eq!(events(&scratch, "custom_set").len(), 3);
    assert_eq!(custom(&scratch), json!({"a": {"b": [1, "two", null]}}));
    let on_disk = scratch.read(".ralph/state.json");
    let on_disk: Value = serde_json::from_str(&on_disk).unwrap();
    assert_eq!(on_disk["custom"], json!({"a": {"b": [1, "two", null]}}));
    // No other part of the state has changed.
    let mut after = status(&scratch);
    after["last_activity"] = before["last_activity"].clone();
    assert_eq!(after, before);
}

/// Numbers are exactly the same after being written and read repeatedly.
#[test]
fn numbers_survive_state_set_and_new_runs() {
    let scratch = with_history();
    let numbers = "[0.1, 1e308, 5e-324, 9007199254740993, 18446744073709551615, 123456789.12345678, 1e21, 3.7e-44, 2.2250738585072014e-308, 0.30000000000000004, 31.245270191439438, 121.48791951161945]";
    done(&set(&scratch, "numbers", numbers), "numbers is set");
    let expected = custom(&scratch);
    for limit in ["2", "3"] {
        let ran =
            tachikoma(&scratch).run(["run", "--quiet", "--max-iterations", limit, "--delay", "0s"]);
        assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
        done(&set(&scratch, "other", limit), "other is set");
    }
    assert_eq!(custom(&scratch)["numbers"], expected["numbers"]);
    // Imprecise JSON parsers change these numbers.
    for (place, number) in [
        (9, "0.30000000000000004"),
        (10, "31.245270191439438"),
        (11, "121.48791951161945"),
    ] {
        assert_eq!(expected["numbers"][place].to_string(), number);
    }
}

#[test]
fn a_live_runner_records_state_set() {
    let scratch = Scratch::new();
    let live = start_busy(&scratch, &[]);
    done(&set(&scratch, "a", "[true]"), "a is set");
    assert_eq!(events(&scratch, "custom_set").len(), 1);
    let shown = tachikoma(&scratch).run(["state", "show", "--json"]).json();
    assert_eq!(shown["custom"], json!({"a": [true]}));
    kill(&scratch, live);
    assert_eq!(
        custom(&scratch),
        json!({"a": [true]}),
        "the value survives a crash"
    );
}

#[test]
fn the_agent_may_not_run_state_set() {
    let scratch = Scratch::new();
    let binary = env!("CARGO_BIN_EXE_tachikoma");
    let script = format!("{binary} state set a 1 2> refused; echo $? >> refused");
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "1"], &script));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_snapshot!(scratch.read("refused"), @"
    error: only the operator may ask this; from inside the agent only `status`, `note` and `done` may be asked
    1
    ");
    assert_eq!(custom(&scratch), json!({}));
}

#[test]
fn an_invalid_or_too_large_value_is_refused() {
    let scratch = with_history();
    let before = files(&scratch.path().join(".ralph"));
    let ran = set(&scratch, "a", "some words");
    assert_snapshot!(shown(&ran), @r#"
    exit: 2
    --- stdout
    --- stderr
    error: the value of `a` is not JSON: expected value at line 1 column 1
    hint: a string needs double quotes: '"some text"'
    "#);
    let long = "k".repeat(KEY_BYTES_MAX + 1);
    let large = format!("\"{}\"", "v".repeat(VALUE_BYTES_MAX));
    let deep = format!("{}{}", "[".repeat(33), "]".repeat(33));
    for (key, value, said) in [
        ("a", "NaN", "is not JSON"),
        ("a", "1e999", "number out of range"),
        ("a", "", "is not JSON"),
        ("", "1", "must not be empty"),
        ("a\u{7}", "1", "control characters"),
        (
            &long,
            "1",
            "a key of the custom data may have at most 128 bytes",
        ),
        ("a", &large, "a value may have 16384 bytes"),
        ("a", &deep, "a value may have 32 levels"),
    ] {
        let ran = set(&scratch, key, value);
        assert_eq!(ran.code(), Some(2), "{}", ran.snapshot());
        assert!(ran.stderr.contains(said), "{}", ran.snapshot());
    }
    assert_eq!(files(&scratch.path().join(".ralph")), before);
}

#[test]
fn the_number_of_custom_keys_is_limited() {
    let scratch = Scratch::new();
    let live = start_busy(&scratch, &[]);
    for number in 0..KEYS_MAX {
        let key = format!("k{number}");
        done(&set(&scratch, &key, "1"), &format!("{key} is set"));
    }
    let ran = set(&scratch, "more", "1");
    assert_eq!(ran.code(), Some(1), "{}", ran.snapshot());
    assert!(
        ran.stderr.contains("there are 64 keys already"),
        "{}",
        ran.stderr
    );
    kill(&scratch, live);
    assert_eq!(set(&scratch, "more", "1").code(), Some(1));
    done(&set(&scratch, "k0", "null"), "k0 is removed");
    done(&set(&scratch, "more", "1"), "more is set");
}

/// `state set` is not a run, so the next run still reports the crash.
#[test]
fn state_set_after_a_crash_is_seen_by_the_next_run() {
    let scratch = Scratch::new();
    let live = start_busy(&scratch, &[]);
    kill(&scratch, live);
    let lock = scratch.read(".ralph/lock");
    // A killed runner leaves an incomplete last line like this one.
    let path = crate::support::journal(&scratch);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("{text}{{\"seq\":99")).unwrap();
    done(&set(&scratch, "a", "1"), "a is set");
    assert_eq!(scratch.read(".ralph/lock"), lock);
    assert!(lines(&scratch).last().unwrap().contains("custom_set"));
    let words = run(&["--max-iterations", "1", "--quiet"], "true");
    let ran = tachikoma(&scratch).run(words);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    await_events(&scratch, "attempt_cut", 1);
    assert_eq!(custom(&scratch), json!({"a": 1}));
}
