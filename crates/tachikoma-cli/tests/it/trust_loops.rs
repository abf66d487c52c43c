//! Only loops that the user started or adopted are resumed.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;
use tachikoma_testkit::{NOBODY, Scratch, await_until};

use crate::live_support::obey;
use crate::support::{
    BUSY, SOON, await_events, journals, kill, loops, run, shown, tachikoma, unprivileged,
};
use crate::trust::untrusting;

/// Creates a loop with another program, which has reached its limit.
fn planted(scratch: &Scratch, program: &str) {
    let ran = untrusting(scratch).run(run(&["--max-iterations", "1"], program));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status();
    assert!(copied.unwrap().success());
}

fn has(scratch: &Scratch, name: &str) -> bool {
    scratch.path().join(name).exists()
}

#[test]
fn killed_loop_is_resumed_without_a_question() {
    let scratch = Scratch::new();
    let live = untrusting(&scratch).spawn(run(&[], "touch up; exec sleep 600"));
    await_until("the agent", SOON, || has(&scratch, "up"));
    kill(&scratch, live);
    fs::remove_file(scratch.path().join("up")).unwrap();
    let again = untrusting(&scratch).spawn(["run"]);
    await_until("the agent", SOON, || has(&scratch, "up"));
    drop(again);
}

#[test]
fn a_copied_loop_is_refused_until_the_user_adopts_it() {
    let theirs = Scratch::new();
    planted(&theirs, "touch ran");
    let scratch = Scratch::new();
    copy(&theirs.path().join(".ralph"), &scratch.path());
    let tool = untrusting(&scratch);
    let before = journals(&scratch);
    let refused = tool.run(["run", "--max-iterations", "2"]);
    insta::assert_snapshot!(shown(&refused));
    assert!(!has(&scratch, "ran"));
    assert_eq!(journals(&scratch), before);
    let status = tool.run(["status"]);
    assert_eq!(
        status.code(),
        Some(0),
        "commands that only read are not refused"
    );

    let once = tool.run(["run", "--trust", "--max-iterations", "2"]);
    assert_eq!(once.code(), Some(3), "{}", once.snapshot());
    assert!(has(&scratch, "ran"));
    assert_eq!(
        tool.run(["run", "--max-iterations", "3"]).code(),
        Some(2),
        "--trust was valid for one run"
    );
    insta::assert_snapshot!("adopted", shown(&tool.run(["trust"])));
    let ran = tool.run(["run", "--max-iterations", "3"]);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
}

#[test]
fn changed_program_in_the_state_of_a_known_loop_is_refused() {
    let scratch = Scratch::new();
    planted(&scratch, "touch mine");
    let other = Scratch::new();
    copy(&scratch.path().join(".ralph"), &other.path());
    // A loop with the same id and another program in its journal.
    let words = run(&["--trust", "--max-iterations", "2"], "touch theirs");
    assert_eq!(untrusting(&other).run(words).code(), Some(3));
    fs::remove_dir_all(scratch.path().join(".ralph")).unwrap();
    copy(&other.path().join(".ralph"), &scratch.path());
    let tool = untrusting(&scratch);
    let refused = tool.run(["run", "--max-iterations", "3"]);
    assert_eq!(refused.code(), Some(2), "{}", refused.snapshot());
    assert!(
        refused.stderr.contains("touch theirs"),
        "{}",
        refused.stderr
    );
    assert!(!has(&scratch, "theirs"));
}

#[test]
fn second_loop_that_appears_is_refused_and_named() {
    let scratch = Scratch::new();
    planted(&scratch, "touch mine");
    let own = loops(&scratch).remove(0);
    let theirs = Scratch::new();
    planted(&theirs, "touch theirs");
    let second = loops(&theirs).remove(0);
    copy(&second, own.parent().unwrap());
    let tool = untrusting(&scratch);
    let refused = tool.run(["run", "--max-iterations", "2"]);
    assert_eq!(refused.code(), Some(2), "{}", refused.snapshot());
    let name = second.file_name().unwrap().to_str().unwrap();
    assert!(
        refused
            .stderr
            .contains(&format!("delete `.ralph/loops/{name}`")),
        "{}",
        refused.stderr
    );
    fs::remove_dir_all(own.parent().unwrap().join(name)).unwrap();
    let ran = tool.run(["run", "--max-iterations", "2"]);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert!(!has(&scratch, "theirs"));
}

#[test]
fn state_that_git_tracks_is_refused() {
    let scratch = Scratch::with_git();
    planted(&scratch, "touch ran");
    scratch.git(&["add", "--force", ".ralph"]);
    scratch.git(&["commit", "-q", "-m", "planted"]);
    fs::remove_file(scratch.path().join("ran")).unwrap();
    let tool = untrusting(&scratch);
    for words in [
        &["run", "--max-iterations", "2"][..],
        &["run", "--trust", "--new", "--", "true"],
    ] {
        let refused = tool.run(words);
        assert_eq!(refused.code(), Some(2), "{}", refused.snapshot());
        let stderr = &refused.stderr;
        assert!(stderr.contains("git tracks `.ralph/"), "{stderr}");
        assert!(stderr.contains("git rm -r --cached .ralph"), "{stderr}");
    }
    assert!(!has(&scratch, "ran"));
    scratch.git(&["rm", "-r", "-q", "--cached", ".ralph"]);
    let ran = tool.run(["run", "--max-iterations", "2"]);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
}

#[test]
fn restored_loop_is_trusted() {
    let theirs = Scratch::new();
    planted(&theirs, "touch ran");
    let made = obey(&untrusting(&theirs), &["state", "backup"]);
    let backup = theirs.path().join(made.trim_end());
    let scratch = Scratch::new();
    let tool = untrusting(&scratch);
    let restored = tool.run(["state", "restore", backup.to_str().unwrap(), "--yes"]);
    assert_eq!(restored.code(), Some(0), "{}", restored.snapshot());
    assert!(
        restored.stderr.contains("touch ran"),
        "the message names the program that a run starts: {}",
        restored.stderr
    );
    let ran = tool.run(["run", "--max-iterations", "2"]);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
}

#[test]
fn loop_that_an_agent_starts_is_not_trusted() {
    let scratch = Scratch::new();
    scratch.write("below/prompt.md", "go\n");
    let bin = env!("CARGO_BIN_EXE_tachikoma");
    let nested = format!(
        "cd below && {bin} run --quiet --nested --max-iterations 1 -- touch ran; echo $? > code"
    );
    let ran = untrusting(&scratch).run(run(&["--max-iterations", "1"], &nested));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(scratch.read("below/code"), "3\n");
    fs::remove_file(scratch.path().join("below/ran")).unwrap();
    let refused = untrusting(&scratch)
        .in_dir("below")
        .run(["run", "--max-iterations", "2"]);
    assert_eq!(refused.code(), Some(2), "{}", refused.snapshot());
    assert!(!has(&scratch, "below/ran"));
}

#[test]
fn files_of_another_user_are_refused() {
    if !geteuid().is_root() {
        // Only root can change the owner of files, so other users skip this test.
        return;
    }
    let give = |path: &Path| {
        std::os::unix::fs::lchown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    };
    for name in [".ralph", ".ralph/loops", ".ralph/lock", ".ralph/state.json"] {
        let scratch = Scratch::new();
        planted(&scratch, "true");
        scratch.write("below/prompt.md", "go\n");
        give(&scratch.path().join(name));
        for words in [
            &["status"][..],
            &["stop"],
            &["history"],
            &["state", "clear", "--yes"],
        ] {
            let refused = tachikoma(&scratch).in_dir("below").run(words);
            assert_eq!(refused.code(), Some(1), "{name}: {}", refused.snapshot());
            let why = format!("belongs to user {NOBODY}, not to you");
            assert!(refused.stderr.contains(&why), "{name}: {}", refused.stderr);
        }
        let refused = tachikoma(&scratch).run(["run", "--trust", "--max-iterations", "2"]);
        assert_eq!(refused.code(), Some(1), "{name}: {}", refused.snapshot());
    }
    let scratch = Scratch::new();
    give(&scratch.write("tachikoma.toml", "max_iterations = 1\n"));
    let refused = untrusting(&scratch).run(run(&[], "true"));
    assert_eq!(refused.code(), Some(2), "{}", refused.snapshot());
    assert!(refused.stderr.contains("not to you"), "{}", refused.stderr);
}

#[test]
fn command_to_a_runner_of_another_user_is_not_sent() {
    if !geteuid().is_root() {
        return;
    }
    let theirs = Scratch::new();
    let tool = unprivileged(&theirs);
    let mut live = tool.spawn(run(&[], BUSY));
    await_events(&theirs, "agent_launched", 1);
    // We own the locked lock file, but it names a socket of another user.
    let scratch = Scratch::new();
    planted(&scratch, "true");
    let path = scratch.write(".ralph/lock", theirs.read(".ralph/lock"));
    let held = File::open(path).unwrap();
    flock(&held, FlockOperation::LockExclusive).unwrap();
    let refused = tachikoma(&scratch).run(["stop", "--now"]);
    assert_eq!(refused.code(), Some(1), "{}", refused.snapshot());
    let stderr = &refused.stderr;
    assert!(stderr.contains("belongs to another user"), "{stderr}");
    assert!(live.is_running(), "the other runner got no request");
    assert_eq!(tool.run(["stop", "--now"]).code(), Some(0));
    assert_eq!(live.wait(SOON).code(), Some(5));
}
