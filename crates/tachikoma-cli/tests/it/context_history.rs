//! `context` and `history`, also during a run and after a crash.

use insta::assert_snapshot;
use tachikoma_testkit::{Scratch, await_until, mask};

use crate::claude_support::{bash, claims, claude, did, run_claude, says, scenario, stage};
use crate::support::{SOON, await_events, kill, run, shown, status, tachikoma};

fn printed(scratch: &Scratch, words: &[&str]) -> String {
    let ran = tachikoma(scratch).run(words);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    ran.stdout
}

/// Masks times with placeholders of the same length, so that columns stay aligned.
fn columns(text: &str) -> String {
    let lines = text.lines().map(|line| {
        assert!(line.chars().count() <= 80, "{line}");
        mask(line)
            .replace("[TIME]", "[TIME                  ]")
            .trim_end()
            .to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn context_draws_the_usage_curve_of_a_session() {
    let turns = [
        bash("true", 30_000),
        says("half", 100_000),
        bash("true", 145_000).until_told(),
        says("full", 171_000),
        bash("true", 15_000),
        claims(20_000),
    ];
    let scratch = stage(&scenario(turns), "");
    let ran = run_claude(&scratch, &["--max-iterations", "9"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_snapshot!(columns(&printed(&scratch, &["context", "--session", "1"])), @"
    session 1: 5 readings, window 200000 tokens, redline at 170000

     100% |
      90% |---##-----------------------------------------------------------------
      80% |  ###
      70% |  ###
      60% |  ###
      50% | ####
      40% | ####
      30% | ####
      20% |#####
      10% |#####
          +----------------------------------------------------------------------

    time                     iteration     tokens percent  what happened
    [TIME                  ]         1      30010   15.0%
    [TIME                  ]         1     100010   50.0%
    [TIME                  ]         2     145010   72.5%  warning, asked to finish
    [TIME                  ]         2     171010   85.5%  redline, reboot due
    [TIME                  ]         2     172010   86.0%  rebooted
    ");
    let latest = printed(&scratch, &["context"]);
    assert!(latest.starts_with("session 2: 2 readings, "), "{latest}");
    let json = tachikoma(&scratch)
        .run(["context", "--json", "--session", "1"])
        .json();
    assert_eq!(json["readings"].as_array().map(Vec::len), Some(5), "{json}");
    assert_eq!(json["readings"][3]["tokens"], 171_010, "{json}");
    assert_eq!(json["redline_tokens"], 170_000, "{json}");
    assert_snapshot!(shown(&tachikoma(&scratch).run(["context", "--session", "9"])), @"
    exit: 1
    --- stdout
    --- stderr
    error: session 9 has no context reading
    hint: a `command` agent reports none; `tachikoma history` shows the iterations
    ");
}

#[test]
fn context_and_history_work_after_a_crash() {
    let turns = [says("a", 30_000), bash("sleep 600", 60_000)];
    let scratch = stage(&scenario(turns), "");
    let live = claude(&scratch).spawn(["run"]);
    await_events(&scratch, "iteration_started", 2);
    await_until("the reading of the call", SOON, || {
        status(&scratch)["context"]["tokens"] == 60_010
    });
    kill(&scratch, live);
    let json = tachikoma(&scratch).run(["context", "--json"]).json();
    let tokens: Vec<_> = json["readings"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|r| r["tokens"].clone())
        .collect();
    assert_eq!(tokens, [30_010, 60_010], "{json}");
    let history = printed(&scratch, &["history", "--json"]);
    let rows: Vec<serde_json::Value> = history
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let outcomes: Vec<_> = rows.iter().map(|row| &row["outcome"]).collect();
    assert_eq!(outcomes, ["succeeded", "cut"], "{history}");
    assert!(status(&scratch)["outcome"].is_null());
}

#[test]
fn history_shows_outcome_context_and_cost_of_each_iteration() {
    let turns = [
        did(),
        says("a", 100_000),
        says("b", 171_000),
        claims(20_000),
    ];
    let scratch = stage(&scenario(turns), "");
    let ran = run_claude(&scratch, &["--max-iterations", "9"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_snapshot!(columns(&printed(&scratch, &["history"])), @"
    iter sess ended                outcome        took context    cost files commit
       1    1 [TIME                  ] succeeded     [DURATION]     50% $0.0305     0 -
       2    1 [TIME                  ] succeeded     [DURATION]   85.5% $0.0514     0 -
       3    2 [TIME                  ] succeeded     [DURATION]     10% $0.0061     0 -
    ");
    let lines = printed(&scratch, &["history", "--json"]);
    let rows: Vec<serde_json::Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(rows.len(), 3);
    assert_eq!(rows[1]["session"], 1);
    assert_eq!(rows[2]["session"], 2);
    assert_eq!(rows[2]["outcome"], "succeeded");
    let costs: f64 = rows
        .iter()
        .map(|row| row["cost_usd"].as_f64().unwrap())
        .sum();
    let total = status(&scratch)["stats"]["cost_microusd"].as_f64().unwrap() / 1e6;
    assert!(
        costs > 0.0 && costs <= total,
        "{costs} of {total}: the hand-off has a cost, too"
    );
    let text = printed(&scratch, &["status"]);
    assert!(text.contains(&format!(" of work, ${total:.4}\n")), "{text}");
}

#[test]
fn history_shows_reboots_with_their_results() {
    // The second and third sessions use as much context as the first one.
    let turns = [
        says("a", 171_000),
        says("b", 172_000),
        says("c", 172_000),
        says("d", 172_000),
    ];
    let scratch = stage(&scenario(turns), "");
    let ran = run_claude(&scratch, &["--max-iterations", "9"]);
    assert_eq!(ran.code(), Some(1), "{}", ran.snapshot());
    let text = printed(&scratch, &["history", "--reboots"]);
    let text = text
        .lines()
        .map(|line| mask(line) + "\n")
        .collect::<String>();
    assert_snapshot!(without_ids(&text), @"
    [TIME]  iteration 1: futile, context at 85%; took [DURATION]
        its first reading is 86.0 %, which is not below the redline of 85.0 %
        session 1 ([ID]) -> 2 ([ID])
    [TIME]  iteration 2: futile, context at 86%; took [DURATION]
        its first reading is 86.0 %, which is not below the redline of 85.0 %
        session 2 ([ID]) -> 3 ([ID])
    2 in all, 0 successful, 2 futile, 2 in the last hour, 0 failed in a row, the last at [TIME]
    ");
    let json = tachikoma(&scratch)
        .run(["history", "--reboots", "--json"])
        .json();
    assert_eq!(json["stats"]["total"], 2, "{json}");
    assert_eq!(json["stats"]["successful"], 0, "{json}");
    assert_eq!(json["stats"]["futile"], 2, "{json}");
    let entries = json["reboots"].as_array().expect("a list");
    for (entry, iteration) in entries.iter().zip([1, 2]) {
        assert_eq!(entry["iteration"], iteration, "{entry}");
        assert_eq!(entry["result"]["kind"], "futile", "{entry}");
        assert_ne!(entry["from_agent_id"], entry["to_agent_id"], "{entry}");
    }
    assert_eq!(entries[0]["to_agent_id"], entries[1]["from_agent_id"]);
}

/// Replaces the ids of conversations, which are random, with `([ID])`.
fn without_ids(text: &str) -> String {
    let id = |word: &str| word.len() >= 36 && word.matches('-').count() == 4;
    let line = |line: &str| -> String {
        let words = line
            .split(' ')
            .map(|word| if id(word) { "([ID])" } else { word });
        words.collect::<Vec<_>>().join(" ")
    };
    text.lines().map(|l| line(l) + "\n").collect()
}

#[test]
fn a_delayed_reboot_is_shown_as_pending() {
    let turns = [
        says("a", 171_000),
        says("b", 20_000),
        bash("sleep 600", 171_000),
    ];
    let scratch = stage(&scenario(turns), "");
    let text = scratch.read("tachikoma.toml");
    scratch.write(
        "tachikoma.toml",
        text.replace("min_reboot_interval = \"0s\"\n", ""),
    );
    let live = claude(&scratch).spawn(["run", "--allow-dirty"]);
    await_events(&scratch, "reboot_requested", 2);
    let pending = &tachikoma(&scratch)
        .run(["history", "--reboots", "--json"])
        .json()["pending"];
    assert_eq!(pending["iteration"], 3, "{pending}");
    assert!(pending["not_before"].is_string(), "{pending}");
    let text = printed(&scratch, &["history", "--reboots"]);
    assert!(
        text.contains("iteration 3: pending, context at 85%; not before "),
        "{text}"
    );
    let text = printed(&scratch, &["status"]);
    assert!(
        text.contains("reboot     pending: context at 85%, not before "),
        "{text}"
    );
    assert!(text.contains("; over the redline at 170000)"), "{text}");
    assert_eq!(tachikoma(&scratch).run(["stop", "--now"]).code(), Some(0));
    live.wait(SOON);
    let text = printed(&scratch, &["status"]);
    assert!(!text.contains("pending"), "the loop has ended: {text}");
    let text = printed(&scratch, &["history", "--reboots"]);
    assert!(!text.contains("pending"), "the loop has ended: {text}");
}

#[test]
fn without_context_readings_there_is_no_curve() {
    let scratch = Scratch::new();
    let empty = tachikoma(&scratch).run(["history"]);
    assert_eq!(empty.code(), Some(1), "{}", empty.snapshot());
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "1"], "exit 7"));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let row: serde_json::Value =
        serde_json::from_str(&printed(&scratch, &["history", "--json"])).unwrap();
    assert_eq!(
        (&row["outcome"], &row["context_percent"]),
        (&"failed".into(), &serde_json::Value::Null)
    );
    assert!(
        row["reason"]
            .as_str()
            .is_some_and(|why| why.contains("exit 7")),
        "{row}"
    );
    assert_snapshot!(shown(&tachikoma(&scratch).run(["context"])), @"
    exit: 1
    --- stdout
    --- stderr
    error: no session of this loop has a context reading
    hint: a `command` agent reports none; `tachikoma history` shows the iterations
    ");
    let reboots = printed(&scratch, &["history", "--reboots"]);
    assert_eq!(
        reboots,
        "0 in all, 0 successful, 0 in the last hour, 0 failed in a row\n"
    );
}

#[test]
fn run_prints_the_distance_to_the_redline() {
    let turns = [says("a", 100_000), says("b", 171_000), claims(20_000)];
    let scratch = stage(&scenario(turns), "");
    let ran = run_claude(&scratch, &["--max-iterations", "9"]);
    for line in [
        "context 50 % (100k of 200k tokens, redline at 170k)\n",
        "context 85 % (171k of 200k tokens, over the redline at 170k)\n",
        "context 10 % (20k of 200k tokens, redline at 170k)\n",
    ] {
        assert_eq!(
            ran.stdout.matches(line).count(),
            1,
            "{line}: {}",
            ran.snapshot()
        );
    }
    let again = printed(&scratch, &["events"]);
    assert!(
        again.contains("100k of 200k tokens, redline at 170k"),
        "{again}"
    );
}

#[test]
fn notes_are_accepted_from_the_agent_in_any_directory_and_from_the_operator() {
    let scratch = Scratch::new();
    let script = "cd / && tachikoma note from the agent > $TACHIKOMA_DIR/said 2>&1; exec sleep 600";
    let live = tachikoma(&scratch).spawn(run(&[], script));
    await_events(&scratch, "noted", 1);
    await_until("the answer", SOON, || {
        scratch.path().join("said").exists() && scratch.read("said") == "noted\n"
    });
    std::fs::create_dir(scratch.path().join("below")).unwrap();
    let below = tachikoma(&scratch)
        .in_dir("below")
        .run(["note", "from below"]);
    assert_eq!(below.stdout, "noted\n", "{}", below.snapshot());
    let now = printed(&scratch, &["checkpoint", "show", "--now"]);
    assert!(
        now.contains("- Iteration 1: from below\n- Iteration 1: from the agent\n"),
        "{now}"
    );
    for (words, why) in [
        (vec!["note", "  "], "error: the note is empty\n".to_owned()),
        (
            vec!["note", &"x".repeat(5000)],
            "error: the note has 5000 bytes; the limit is 4096\n".to_owned(),
        ),
    ] {
        let ran = tachikoma(&scratch).run(&words);
        assert_eq!(ran.code(), Some(2), "{}", ran.snapshot());
        assert!(ran.stderr.starts_with(&why), "{}", ran.snapshot());
    }
    let other = tachikoma(&scratch)
        .env("TACHIKOMA_DIR", scratch.path())
        .env(
            "TACHIKOMA_LOOP_ID",
            "loop_00000000-0000-4000-8000-000000000000",
        )
        .run(["note", "of a loop before"]);
    assert_eq!(other.code(), Some(1), "{}", other.snapshot());
    kill(&scratch, live);
    assert_snapshot!(shown(&tachikoma(&scratch).run(["note", "hello"])), @"
    exit: 1
    --- stdout
    --- stderr
    error: no loop runs in [DIR]
    hint: a note needs a running loop; `tachikoma run` starts one, or continues the last one
    ");
}

#[test]
fn the_agent_finds_tachikoma_last_in_its_path() {
    let dir = std::path::Path::new(env!("CARGO_BIN_EXE_tachikoma"))
        .parent()
        .unwrap();
    let dir = dir.to_str().unwrap();
    let path_of = |path: &str| {
        let scratch = Scratch::new();
        let script = "printf %s \"$PATH\" > path";
        let ran = tachikoma(&scratch)
            .env("PATH", path)
            .run(run(&["--max-iterations", "1"], script));
        assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
        scratch.read("path")
    };
    assert_eq!(path_of("/usr/bin:/bin"), format!("/usr/bin:/bin:{dir}"));
    let there = format!("{dir}:/usr/bin:/bin");
    assert_eq!(
        path_of(&there),
        there,
        "the agent's PATH contains the directory already"
    );
}
