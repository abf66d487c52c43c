//! Thresholds and counts for reboots, and the flags that set them.

use serde_json::Value;
use tachikoma_testkit::{Scenario, Scratch, Turn, Usage};

use crate::claude_support::{bash, claims, did, prompts, run_claude, says, scenario, stage};
use crate::support::{events, status, tachikoma};

/// A session that starts with 10 % context usage and grows by 38 % with each call.
fn filling() -> Scenario {
    let mut turn = bash("true", 20_000);
    turn.usage = Usage::cached(20_000).growing_by(75_500);
    // The delay lets the interrupt arrive before the next answer.
    turn.delay_ms = 100;
    scenario([turn]).for_ever()
}

fn sessions(scratch: &Scratch) -> usize {
    events(scratch, "session_started").len()
}

fn reboots(scratch: &Scratch) -> Value {
    status(scratch)["stats"]["reboots"].clone()
}

#[test]
fn a_limit_of_n_reboots_allows_n_plus_1_sessions() {
    let scratch = stage(&filling(), "");
    let ran = run_claude(&scratch, &["--max-restarts", "2"]);
    assert_eq!(ran.code(), Some(1), "{}", ran.snapshot());
    assert_eq!((sessions(&scratch), reboots(&scratch)), (3, 2.into()));
    let ids: std::collections::BTreeSet<_> =
        prompts(&scratch).into_iter().map(|(id, _)| id).collect();
    assert_eq!(ids.len(), 3, "each session has its own conversation");
    for words in [
        "rebooted: session 1 -> 2",
        "rebooted: session 2 -> 3",
        "max_restarts = 2",
    ] {
        assert!(ran.stdout.contains(words), "{words}: {}", ran.snapshot());
    }
    assert!(
        ran.stdout.contains("smaller"),
        "the advice: {}",
        ran.snapshot()
    );
}

#[test]
fn a_limit_of_zero_allows_no_reboot() {
    let turns = [did(), says("full", 190_000), claims(191_000)];
    let scratch = stage(&scenario(turns), "");
    let ran = run_claude(&scratch, &["--max-restarts", "0"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!((sessions(&scratch), reboots(&scratch)), (1, 0.into()));
    assert!(events(&scratch, "reboot_requested").is_empty());
}

#[test]
fn a_threshold_of_100_turns_the_redline_off() {
    let turns = [did(), says("full", 190_000), claims(191_000)];
    let scratch = stage(&scenario(turns), "");
    let ran = run_claude(&scratch, &["--context-threshold", "100"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!((sessions(&scratch), reboots(&scratch)), (1, 0.into()));
    assert!(events(&scratch, "reboot_requested").is_empty());
}

#[test]
fn the_redline_is_compared_with_decimals() {
    let below = stage(&scenario([did(), says("a", 80_980), claims(1_000)]), "");
    let ran = run_claude(&below, &["--context-threshold", "40.5"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(reboots(&below), 0, "at 40.495 %");

    let at = stage(&scenario([did(), says("a", 80_990), claims(1_000)]), "");
    let ran = run_claude(&at, &["--context-threshold", "40.5"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(reboots(&at), 1, "at 40.5 %");
    let requested = &events(&at, "reboot_requested")[0];
    assert_eq!(requested["reason"]["kind"], "redline", "{requested}");
}

#[test]
fn without_readings_tool_calls_trigger_a_reboot() {
    let silent = |turn: Turn| turn.using(Usage::default());
    let call = |n: u32| silent(Turn::bash(&format!("echo {n}")));
    let turns = [
        call(1),
        call(2),
        call(3),
        silent(Turn::text("a")),
        silent(claims(0)),
    ];
    let settings = "\n[context]\ntool_call_threshold = 3\n";
    let scratch = stage(&scenario(turns.clone()), settings);
    let ran = run_claude(&scratch, &["--max-iterations", "9"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(reboots(&scratch), 1, "{}", ran.snapshot());
    let requested = &events(&scratch, "reboot_requested")[0];
    assert_eq!(requested["reason"]["kind"], "tool_calls", "{requested}");

    let measured = turns.map(|turn| turn.using(Usage::cached(5_000)));
    let scratch = stage(&scenario(measured), settings);
    let ran = run_claude(&scratch, &["--max-iterations", "9"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(
        reboots(&scratch),
        0,
        "tool calls are not used if context readings exist"
    );
}

#[test]
fn fresh_sessions_do_not_count_as_reboots() {
    let turns = [did(), says("a", 20_000), says("b", 20_000), claims(20_000)];
    let scratch = stage(&scenario(turns), "");
    let ran = run_claude(&scratch, &["--fresh-session"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let asked = prompts(&scratch);
    let ids: std::collections::BTreeSet<_> = asked.iter().map(|(id, _)| id).collect();
    assert_eq!((asked.len(), ids.len()), (3, 3), "{asked:#?}");
    assert!(
        asked.iter().all(|(_, prompt)| prompt == "the task\n"),
        "{asked:#?}"
    );
    assert_eq!(reboots(&scratch), 0);
}

/// Returns the settings and origins that a dry run prints.
fn named(scratch: &Scratch, flags: &[&str]) -> Vec<String> {
    let ran = tachikoma(scratch).run(["run", "--dry-run"].iter().chain(flags));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let keys = [
        "context_redline_percent",
        "reboot.max_restarts",
        "session.fresh",
    ];
    let lines = ran
        .stdout
        .lines()
        .filter(|line| keys.iter().any(|key| line.starts_with(key)));
    lines.map(str::to_owned).collect()
}

#[test]
fn flags_override_the_file_and_apply_to_later_runs() {
    let turns = [says("a", 1_000), says("b", 1_000)];
    let scratch = stage(&scenario(turns), "");
    let text = scratch.read("tachikoma.toml");
    let text = format!("context_redline_percent = 60\n{text}")
        .replace("[reboot]\n", "[reboot]\nmax_restarts = 7\n");
    scratch.write("tachikoma.toml", text);
    scratch.git(&["commit", "--quiet", "-am", "settings"]);
    let from_file = named(&scratch, &[]);
    assert_eq!(from_file.len(), 2, "{from_file:#?}");
    assert!(
        from_file[0].starts_with("context_redline_percent = 60"),
        "{from_file:#?}"
    );
    assert!(
        from_file[1].starts_with("reboot.max_restarts = 7"),
        "{from_file:#?}"
    );

    let given = [
        "--context-threshold",
        "72.5",
        "--max-restarts",
        "3",
        "--fresh-session",
    ];
    let from_flags = named(&scratch, &given);
    assert_eq!(
        from_flags,
        [
            "context_redline_percent = 72.5  # --context-threshold",
            "session.fresh_each_iteration = true  # --fresh-session",
            "reboot.max_restarts = 3  # --max-restarts",
        ]
    );
    let run: Vec<&str> = given.into_iter().chain(["--max-iterations", "1"]).collect();
    assert_eq!(run_claude(&scratch, &run).code(), Some(3));
    let recorded = named(&scratch, &["--max-restarts", "4"]);
    assert!(
        recorded[0].starts_with("context_redline_percent = 72.5"),
        "{recorded:#?}"
    );
    assert_eq!(recorded[2], "reboot.max_restarts = 4  # --max-restarts");
    assert!(
        recorded[1].starts_with("session.fresh_each_iteration = true"),
        "{recorded:#?}"
    );
}

#[test]
fn an_invalid_percentage_is_refused_with_an_example() {
    let scratch = Scratch::new();
    for wrong in ["-1", "0", "0.5", "100.1", "NaN", "inf", "full", ""] {
        let ran = tachikoma(&scratch).run(["run", "--context-threshold", wrong]);
        assert_eq!(ran.code(), Some(2), "{wrong}: {}", ran.snapshot());
        let right = "it must be a percentage from 1 to 100, such as 85 or 72.5";
        assert!(ran.stderr.contains(right), "{wrong}: {}", ran.snapshot());
    }
}

#[test]
fn the_help_has_examples_that_fit_a_terminal() {
    let scratch = Scratch::new();
    let ran = tachikoma(&scratch).run(["run", "--help"]);
    let (_, examples) = ran
        .stdout
        .split_once("Examples:\n")
        .expect("the help has examples");
    for flag in [
        "--agent claude",
        "--context-threshold 72.5",
        "--max-restarts 3",
        "--fresh-session",
    ] {
        assert!(examples.contains(flag), "{flag}: {examples}");
    }
    for line in examples.lines().filter(|line| !line.is_empty()) {
        assert!(
            line.starts_with("  tachikoma run") && line.len() <= 80,
            "{line}"
        );
    }
}
