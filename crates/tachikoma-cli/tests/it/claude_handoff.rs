//! The hand-off to a new session: it is built once, stored, reused unchanged and shown.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use insta::assert_snapshot;
use tachikoma_testkit::{Rule, Scenario, Scratch, Turn, await_until};

use crate::claude_support::{
    WORDS, bash, claims, claude, did, place, prompts, run_claude, says, scenario, stage, wrap_agent,
};
use crate::support::{SOON, await_events, events, kill, loops, shown, status, tachikoma};

/// A scenario: the first session works, leaves a note, fails and reaches the redline. The next one finishes.
fn two_sessions() -> Scratch {
    let work = "echo 1 >> prompt.md; echo 1 > new.rs; mkdir sub; echo 1 > 'sub/a b.rs'; echo 1 > x.log; \
                tachikoma note 'the lexer has no tests'; git commit --quiet --all -m 'the lexer'";
    let turns = [
        bash(work, 40_000),
        bash("echo no rule for tests; exit 2", 120_000),
        says("on it", 171_000),
        claims(21_000),
    ];
    let scratch = stage(&scenario(turns), "");
    scratch.write(".gitignore", "*.log\n");
    scratch.git(&["add", "-A"]);
    scratch.git(&["commit", "--quiet", "-m", "ignored"]);
    let ran = run_claude(&scratch, &["--max-iterations", "9"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    scratch
}

fn checkpoint_file(scratch: &Scratch, session: u32) -> std::path::PathBuf {
    loops(scratch)[0].join(format!("checkpoints/{session}.md"))
}

#[test]
fn the_full_cycle_hands_the_work_over() {
    let scratch = two_sessions();
    let asked = prompts(&scratch);
    let [first, hand_off, second] = &asked[..] else {
        panic!("{asked:#?}");
    };
    assert_eq!(first.1, "the task\n");
    assert!(hand_off.1.contains("Write its hand-off"), "{}", hand_off.1);
    assert_eq!(
        first.0, hand_off.0,
        "the old session is asked for its hand-off"
    );
    assert_ne!(first.0, second.0, "a new session starts");

    let kept = fs::read_to_string(checkpoint_file(&scratch, 2)).unwrap();
    assert_eq!(
        second.1,
        kept.clone() + "the task\n1\n",
        "the stored hand-off, followed by the current prompt"
    );
    let commits = scratch.git(&["log", "-2", "--format=%h"]);
    let masked = commits.lines().zip(["[COMMIT]", "[THE AGENT'S]"]);
    let masked = masked.fold(kept.clone(), |text, (commit, mask)| {
        text.replace(commit, mask)
    });
    assert_snapshot!(masked, @"
    # Hand-off from the previous session

    You continue the work of an earlier session. Its conversation is gone, but its changes to the files are there. Look at the work tree first, and do not repeat finished work.

    - Session 2, iteration 2, attempt 1.
    - So far: 1 iterations finished, 1 succeeded, 0 failed, 0 handed over.
    - The previous session was replaced: context at 85%.
    - The work tree is at commit [COMMIT].

    ## In its own words

    The parser is done, the printer is next.

    ## Notes, latest first

    - Iteration 1: the lexer has no tests

    ## What was tried and failed, latest first

    - Tried `Bash: echo no rule for tests; exit 2` once; it failed with: Exit code 2
    no rule for tests

    ## Files changed so far

    - new.rs
    - prompt.md
    - sub/a b.rs

    ## Commits made so far, latest first

    - [COMMIT] tachikoma: iteration 1 succeeded
    - [THE AGENT'S] the lexer

    ---
    ");
    let shown = tachikoma(&scratch).run(["checkpoint", "show"]);
    assert_eq!(shown.stdout.trim_end(), kept.trim_end());
    let stats = &status(&scratch)["stats"];
    assert_eq!(
        (&stats["reboots"], &stats["handed_over"]),
        (&1.into(), &0.into())
    );
}

#[test]
fn a_repeated_attempt_gets_the_same_prompt() {
    let turns = [
        did(),
        says("on it", 171_000),
        bash("sleep 600", 20_000),
        claims(21_000),
    ];
    let scratch = stage(&scenario(turns), "");
    let live = claude(&scratch).spawn(["run"]);
    await_events(&scratch, "tool_started", 2);
    scratch.write("later.rs", "1");
    let noted = tachikoma(&scratch).run(["note", "too", "late"]);
    assert_eq!(noted.stdout, "noted\n", "{}", noted.snapshot());
    kill(&scratch, live);
    let ran = run_claude(&scratch, &[]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let started = events(&scratch, "iteration_started");
    let last = started.last().expect("an iteration started");
    assert_eq!(
        (&last["iteration"], &last["attempt"]),
        (&2.into(), &2.into())
    );
    let asked = prompts(&scratch);
    let given: Vec<&String> = asked
        .iter()
        .map(|(_, prompt)| prompt)
        .filter(|prompt| prompt.contains("# Hand-off"))
        .collect();
    assert_eq!(given.len(), 2, "{asked:#?}");
    let repeated = given[1]
        .strip_suffix(given[0].as_str())
        .expect("the second prompt ends with the first one");
    assert!(
        repeated
            .starts_with("An earlier attempt at this iteration was cut short; this is attempt 2."),
        "{repeated}"
    );
    assert!(given[0].contains(WORDS), "{}", given[0]);
    assert!(!given[0].contains("later.rs"), "{}", given[0]);
}

#[test]
fn an_old_session_reopened_for_its_hand_off_has_its_own_number() {
    let mut script = Scenario::of([says("on it", 171_000)]);
    script.rules.push(Rule {
        when: "Write its hand-off".to_owned(),
        turn: bash("touch .git/asked; sleep 600", 172_000),
    });
    let scratch = stage(&script, "");
    let own = "#!/bin/sh\necho $TACHIKOMA_SESSION >> .git/sessions\nexec AGENT \"$@\"\n";
    wrap_agent(&scratch, own);
    let live = claude(&scratch).spawn(["run"]);
    let asked = scratch.path().join(".git/asked");
    await_until("the hand-off is asked for", SOON, || asked.exists());
    kill(&scratch, live);
    fs::remove_file(&asked).unwrap();
    let live = claude(&scratch).spawn(["run"]);
    await_until("it is asked for again", SOON, || asked.exists());
    assert_eq!(scratch.read(".git/sessions"), "1\n1\n");
    let stopped = tachikoma(&scratch).run(["stop", "--now"]);
    assert_eq!(stopped.code(), Some(0), "{}", stopped.snapshot());
    assert_eq!(live.wait(SOON).code(), Some(5));
}

#[test]
fn without_a_repository_the_files_that_the_agent_touched_are_named() {
    let write = Turn::tool(
        "Write",
        serde_json::json!({"file_path": "made.rs", "content": "1"}),
    );
    let turns = [write, says("on it", 171_000), claims(21_000)];
    let scratch = Scratch::new();
    place(&scratch, &scenario(turns), "");
    let ran = run_claude(&scratch, &["--max-iterations", "9"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let kept = fs::read_to_string(checkpoint_file(&scratch, 2)).unwrap();
    assert!(kept.contains("made.rs"), "{kept}");
    assert!(!kept.contains("Commits"), "{kept}");
    let started = events(&scratch, "started");
    assert_eq!(started[0]["launch"].get("start_commit"), None);
}

#[test]
fn the_start_commit_does_not_change() {
    let scratch = stage(&scenario([says("a", 1_000), says("b", 1_000)]), "");
    let begun = scratch.git(&["rev-parse", "HEAD"]);
    assert_eq!(
        run_claude(&scratch, &["--max-iterations", "1"]).code(),
        Some(3)
    );
    scratch.git(&["commit", "--quiet", "--allow-empty", "-m", "meanwhile"]);
    assert_eq!(
        run_claude(&scratch, &["--max-iterations", "2"]).code(),
        Some(3)
    );
    let started = events(&scratch, "started");
    assert_eq!(started.len(), 2);
    for start in started {
        assert_eq!(start["launch"]["start_commit"], begun.trim());
    }
    let now = tachikoma(&scratch).run(["checkpoint", "show", "--now"]);
    assert!(now.stdout.contains(" meanwhile\n"), "{}", now.snapshot());
}

#[test]
fn checkpoint_show_prints_past_and_current_hand_offs() {
    let scratch = two_sessions();
    assert_snapshot!(shown(&tachikoma(&scratch).run(["checkpoint", "show", "7"])), @"
    exit: 1
    --- stdout
    --- stderr
    error: there is no hand-off for session 7
    hint: these sessions have one: 2
    ");
    let now = tachikoma(&scratch).run(["checkpoint", "show", "--now"]);
    assert_eq!(now.code(), Some(0), "{}", now.snapshot());
    assert!(
        now.stdout.contains("- Session 3, iteration 3"),
        "{}",
        now.snapshot()
    );
    assert!(
        !now.stdout.contains(WORDS),
        "the words of a session before: {}",
        now.snapshot()
    );

    let fresh = stage(&scenario([did(), claims(1_000)]), "");
    assert_eq!(run_claude(&fresh, &[]).code(), Some(0));
    assert_snapshot!(shown(&tachikoma(&fresh).run(["checkpoint", "show"])), @"
    exit: 1
    --- stdout
    --- stderr
    error: this loop has had no reboot yet, so there is no hand-off
    hint: `tachikoma checkpoint show --now` prints the hand-off that a new session would get now
    ");
}

#[test]
fn hand_offs_are_part_of_the_state() {
    let scratch = two_sessions();
    let file = checkpoint_file(&scratch, 2);
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&file), 0o600);
    assert_eq!(mode(file.parent().unwrap()), 0o700);
    let verified = tachikoma(&scratch).run(["state", "verify"]);
    let good = verified.stdout.contains("good  hand-offs   ");
    assert!(
        good && verified.code() == Some(0),
        "{}",
        verified.snapshot()
    );
    fs::write(&file, b"\xff").unwrap();
    let verified = tachikoma(&scratch).run(["state", "verify"]);
    let wrong = verified.stdout.contains("wrong hand-offs   ");
    assert!(
        wrong && verified.code() == Some(1),
        "{}",
        verified.snapshot()
    );
    let purged = tachikoma(&scratch).run(["state", "clear", "--purge", "--yes"]);
    assert_eq!(purged.code(), Some(0), "{}", purged.snapshot());
    assert!(!scratch.path().join(".ralph").exists());
}

#[test]
fn an_unsaved_loop_writes_hand_offs() {
    let turns = [did(), says("on it", 171_000), claims(21_000)];
    let scratch = stage(&scenario(turns), "\n[state]\nenabled = false\n");
    let ran = run_claude(&scratch, &["--max-iterations", "9"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let asked = prompts(&scratch);
    assert!(asked[2].1.contains(WORDS), "{asked:#?}");
    assert!(loops(&scratch).is_empty());
}

#[test]
fn a_hand_off_that_cannot_be_saved_is_still_used() {
    let turns = [
        says("on it", 171_000),
        says("what?", 20_000),
        claims(21_000),
    ];
    let scratch = stage(&scenario(turns), "");
    let live = claude(&scratch).spawn(["run", "--delay", "1h"]);
    await_events(&scratch, "wait_started", 1);
    // A file at the path of the hand-off directory prevents writing hand-offs.
    fs::write(loops(&scratch)[0].join("checkpoints"), "mine").unwrap();
    assert_eq!(tachikoma(&scratch).run(["skip"]).code(), Some(0));
    await_events(&scratch, "warned", 1);
    assert_eq!(tachikoma(&scratch).run(["stop"]).code(), Some(0));
    let ran = live.wait(SOON);
    assert!(
        ran.stdout
            .contains("warning: the hand-off for session 2 was given to the agent but not saved: "),
        "{}",
        ran.snapshot()
    );
    assert!(prompts(&scratch)[2].1.contains(WORDS));
}

#[test]
fn without_a_hand_off_the_last_output_and_tool_calls_are_used() {
    let turns = [
        bash("echo parsing > parser.rs", 40_000),
        says("The parser is half done.", 171_000),
        claims(21_000),
    ];
    let scratch = stage(&scenario(turns), "");
    let ran = claude(&scratch)
        .env("TACHIKOMA_REBOOT__PRESERVE_SUMMARY", "false")
        .run(["run", "--agent", "claude", "--max-iterations", "9"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let kept = fs::read_to_string(checkpoint_file(&scratch, 2)).unwrap();
    for part in [
        "## Last output of the previous session, which wrote no hand-off\n\nThe parser is half done.\n",
        "## Last tool calls of the previous session, latest last\n\n- `Bash: echo parsing > parser.rs`\n",
    ] {
        assert!(kept.contains(part), "{kept}");
    }
}
