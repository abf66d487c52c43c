//! Unusable files in `.ralph` are reported by name and never overwritten, and the message shows how to continue.

use std::fs::{self, OpenOptions};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use insta::assert_snapshot;
use tachikoma_testkit::Scratch;

use crate::support::{
    CLAIMS, await_events, files, journal, journals, kill, loops, run, shown, start_busy, status,
    tachikoma, unprivileged, with_history,
};

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("the test owns this file");
}

#[test]
fn a_state_directory_without_write_permission_is_refused() {
    let scratch = Scratch::new();
    let ralph = scratch.write(".ralph/other-tool", "").with_file_name("");
    let tool = unprivileged(&scratch);
    set_mode(&ralph, 0o500);
    let ran = tool.run(run(&[], "true"));
    set_mode(&ralph, 0o700);
    assert_snapshot!(shown(&ran), @"
    exit: 1
    --- stdout
    --- stderr
    error: open [DIR]/.ralph/lock: Permission denied (os error 13)
    hint: check its owner and mode: it must belong to you
    ");
}

#[test]
fn a_journal_without_write_permission_is_refused() {
    let scratch = Scratch::new();
    let tool = unprivileged(&scratch);
    let ran = tool.run(run(&["--max-iterations", "1"], "true"));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let before = journals(&scratch);

    set_mode(&journal(&scratch), 0o400);
    let ran = tool.run(["run"]);
    assert_snapshot!(shown(&ran), @"
    exit: 1
    --- stdout
    --- stderr
    error: open [DIR]/.ralph/loops/[LOOP]/journal-0001.jsonl: Permission denied (os error 13)
    hint: check its owner and mode: it must belong to you
    ");
    assert_eq!(journals(&scratch), before);
}

#[test]
fn unreadable_journals_are_reported_and_not_skipped() {
    let scratch = Scratch::new();
    let tool = unprivileged(&scratch);
    let ran = tool.run(run(&["--max-iterations", "1"], "true"));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let before = journals(&scratch);

    let dir = scratch.path().join(".ralph/loops");
    set_mode(&dir, 0o300);
    let ran = tool.run(["run"]);
    set_mode(&dir, 0o700);
    assert_snapshot!(shown(&ran), @"
    exit: 1
    --- stdout
    --- stderr
    error: list [DIR]/.ralph/loops: Permission denied (os error 13)
    hint: check its owner and mode: it must belong to you
    ");
    assert_eq!(
        journals(&scratch),
        before,
        "an unreadable loop is not replaced by a new one"
    );
}

#[test]
fn a_file_in_place_of_the_state_directory_is_refused() {
    let scratch = Scratch::new();
    scratch.write(".ralph", "mine\n");
    let ran = tachikoma(&scratch).run(run(&[], "true"));
    assert_snapshot!(shown(&ran), @"
    exit: 1
    --- stdout
    --- stderr
    error: list [DIR]/.ralph/loops: Not a directory (os error 20)
    hint: `.ralph` must be a directory that belongs to you: move the existing file away
    ");
    assert_eq!(scratch.read(".ralph"), "mine\n");
}

#[test]
fn a_symbolic_link_in_place_of_the_state_directory_is_refused() {
    let scratch = Scratch::new();
    let elsewhere = scratch.home().join("elsewhere");
    fs::create_dir(&elsewhere).expect("the test owns this file");
    symlink(&elsewhere, scratch.path().join(".ralph")).expect("the test owns this file");
    let ran = tachikoma(&scratch).run(run(&[], "true"));
    assert_snapshot!(shown(&ran), @"
    exit: 1
    --- stdout
    --- stderr
    error: use directory [DIR]/.ralph: it is a symbolic link, and those are not followed
    hint: `.ralph` must be a directory that belongs to you: move the existing file away
    ");
    let written = fs::read_dir(elsewhere)
        .expect("the test owns this file")
        .count();
    assert_eq!(written, 0, "no symbolic link is followed");
}

#[test]
fn a_symbolic_link_inside_the_state_directory_is_refused() {
    for name in ["loops", "sessions"] {
        let scratch = with_history();
        let (place, elsewhere) = (
            scratch.path().join(".ralph").join(name),
            scratch.home().join("elsewhere"),
        );
        if place.exists() {
            fs::rename(&place, &elsewhere).expect("the test owns this file");
        } else {
            fs::create_dir(&elsewhere).expect("the test owns this file");
        }
        symlink(&elsewhere, &place).expect("the test owns this file");
        let before = files(&elsewhere);
        let ran = tachikoma(&scratch).run(["run", "--max-iterations", "2", "--", "echo", "x"]);
        assert_eq!(ran.code(), Some(1), "{}", ran.snapshot());
        let why = format!(
            "error: use directory {}: it is a symbolic link, and those are not followed\n",
            place.display()
        );
        assert!(ran.stderr.contains(&why), "{}", ran.stderr);
        assert_eq!(files(&elsewhere), before, "no symbolic link is followed");
    }
}

#[test]
fn a_symbolic_link_that_the_agent_makes_fails_the_next_iteration() {
    let scratch = Scratch::new();
    let elsewhere = scratch.home().join("elsewhere");
    fs::create_dir(&elsewhere).expect("the test owns this file");
    scratch.write(
        "tachikoma.toml",
        "[stop_conditions]\nmax_consecutive_failures = 1\n",
    );
    let script = format!(
        "rm -rf .ralph/sessions; ln -s {} .ralph/sessions; echo x",
        elsewhere.display()
    );
    let ran = tachikoma(&scratch).run(run(&[], &script));
    assert_eq!(ran.code(), Some(1), "{}", ran.snapshot());
    let why = ".ralph/sessions: it is a symbolic link";
    assert!(ran.stdout.contains(why), "{}", ran.snapshot());
}

#[test]
fn state_directories_are_private_and_other_directories_keep_their_mode() {
    let scratch = with_history();
    let mut ours = vec![
        scratch.path().join(".ralph/loops"),
        scratch.path().join(".ralph/sessions"),
    ];
    ours.extend(loops(&scratch));
    fs::create_dir_all(&ours[1]).expect("the test owns this file");
    let theirs = [
        scratch.path().join(".ralph"),
        scratch.path().join(".ralph/other-tool"),
    ];
    fs::create_dir(&theirs[1]).expect("the test owns this file");
    for dir in ours.iter().chain(&theirs) {
        set_mode(dir, 0o755);
    }
    let ran = tachikoma(&scratch).run(["run", "--max-iterations", "2", "--", "echo", "x"]);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let mode = |dir: &PathBuf| {
        fs::metadata(dir)
            .expect("the test owns this file")
            .permissions()
            .mode()
            & 0o777
    };
    assert_eq!(ours.iter().map(mode).collect::<Vec<_>>(), [0o700; 3]);
    assert_eq!(theirs.iter().map(mode).collect::<Vec<_>>(), [0o755; 2]);
}

/// Overwrites the byte after the text `after` in the only journal with `to`.
fn flip(scratch: &Scratch, after: &str, to: u8) {
    let path = journal(scratch);
    let text = fs::read_to_string(&path).expect("the journal is ours");
    let at = text.find(after).expect("it is in there") + after.len();
    let mut file = OpenOptions::new()
        .write(true)
        .open(path)
        .expect("it is ours");
    file.seek(SeekFrom::Start(at as u64)).expect("it is a file");
    file.write_all(&[to]).expect("the test owns this file");
}

/// Checks that a run refuses a damaged journal and does not change it. `--new` starts another loop, and later runs continue that one.
#[track_caller]
fn check_unusable(after: &str, to: u8) -> String {
    let scratch = with_history();
    // The snapshot is removed, because with it the damaged part of the journal would not be needed.
    fs::remove_file(scratch.path().join(".ralph/state.json")).unwrap();
    flip(&scratch, after, to);
    let before = journals(&scratch);
    let refused = tachikoma(&scratch).run(["run"]);
    assert_eq!(journals(&scratch), before, "{}", refused.snapshot());
    assert_eq!(tachikoma(&scratch).run(["status"]).code(), Some(1));

    let words = run(&["--new", "--max-iterations", "1"], "true");
    let ran = tachikoma(&scratch).run(words);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(
        loops(&scratch).len(),
        2,
        "the old loop is still there beside the new one"
    );
    let new = status(&scratch)["loop_id"].clone();
    let ran = tachikoma(&scratch).run(["run", "--max-iterations", "2"]);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(
        status(&scratch)["loop_id"],
        new,
        "later runs continue the new loop"
    );
    for (path, bytes) in before {
        assert_eq!(
            fs::read(path).expect("the old journal still exists"),
            bytes,
            "the old journal is not changed"
        );
    }
    shown(&refused)
}

#[test]
fn a_damaged_journal_is_refused() {
    assert_snapshot!(check_unusable("\"type\":\"started\",\"launch\":{\"agent\":\"", b'C'), @"
    exit: 1
    --- stdout
    --- stderr
    error: refusing to resume: journal [DIR]/.ralph/loops/[LOOP]/journal-0001.jsonl is damaged at line 2: its checksum does not match
    hint: nothing was changed; `tachikoma run --accept-loss` continues from record 1 (iteration 0) and keeps what follows in `.ralph/quarantine/`, `--new` starts a new loop beside it
    ");
}

#[test]
fn a_journal_with_a_damaged_first_record_is_refused() {
    assert_snapshot!(check_unusable("\"segment\":", b'7'), @"
    exit: 1
    --- stdout
    --- stderr
    error: refusing to resume: journal [DIR]/.ralph/loops/[LOOP]/journal-0001.jsonl is damaged at line 1: its checksum does not match
    hint: nothing was changed; no state before that line can be used: restore the file, or `tachikoma run --new` starts a new loop beside it
    ");
}

#[test]
fn a_journal_with_a_first_record_that_is_not_json_is_refused() {
    assert_snapshot!(check_unusable("{\"seq", b'!'), @"
    exit: 1
    --- stdout
    --- stderr
    error: refusing to resume: journal [DIR]/.ralph/loops/[LOOP]/journal-0001.jsonl is damaged at line 1: its checksum does not match
    hint: nothing was changed; no state before that line can be used: restore the file, or `tachikoma run --new` starts a new loop beside it
    ");
}

#[test]
fn a_journal_of_a_newer_version_is_refused() {
    assert_snapshot!(check_unusable("\"format\":", b'2'), @"
    exit: 1
    --- stdout
    --- stderr
    error: refusing to resume: journal [DIR]/.ralph/loops/[LOOP]/journal-0001.jsonl has format 2; this version reads up to 1
    hint: nothing was changed; use the version that wrote it, or `tachikoma run --new` starts a new loop beside it
    ");
}

#[test]
fn an_incomplete_last_record_is_not_damage() {
    let scratch = with_history();
    let mut file = OpenOptions::new()
        .append(true)
        .open(journal(&scratch))
        .expect("it is ours");
    file.write_all(b"{\"seq\":99,\"ti")
        .expect("the test owns this file");
    let ran = tachikoma(&scratch).run(["run", "--max-iterations", "2"]);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(status(&scratch)["iteration"], 2);
}

#[test]
fn a_loop_without_a_first_record_does_not_hide_the_previous_loop() {
    let scratch = with_history();
    let before = status(&scratch)["loop_id"].clone();
    let empty = ".ralph/loops/loop_ffffffff-0000-4000-8000-000000000000/journal-0001.jsonl";
    scratch.write(empty, "");
    assert_eq!(status(&scratch)["loop_id"], before);
}

#[test]
fn records_lost_because_the_agent_emptied_the_journal_are_reported() {
    let scratch = Scratch::new();
    let destroy = "for j in .ralph/loops/*/journal-*; do : >$j; done";
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "1"], destroy));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let ran = tachikoma(&scratch).run(["events"]);
    assert_snapshot!(shown(&ran), @"
    exit: 0
    --- stdout
    [TIME]   ! repaired the journal: the file was changed; segment 2 continues from the full state; the file at its path was moved to .ralph/quarantine/journal-0001.jsonl.1
    [TIME]   ✓ done in [DURATION]
    [TIME] ! completed: the limit of 1 iteration is reached (1 iteration, 1 succeeded, [DURATION] of work)
    [TIME]   this run: [CLOCK]
    --- stderr
    note: the records from 1 to 5 are lost; the journal continues at 6
    ");
}

#[test]
fn a_second_runner_is_refused() {
    let scratch = Scratch::new();
    let live = start_busy(&scratch, &[]);
    let second = tachikoma(&scratch).run(["run"]);
    assert_snapshot!(shown(&second), @"
    exit: 1
    --- stdout
    --- stderr
    error: refusing to run: another runner works in [DIR]: pid [PID], since [TIME]
    hint: `tachikoma status` shows what it does, `tachikoma stop` ends it; after a stop, its last backup and upload may take another minute
    ");
    let pid = format!("pid {}", live.pid());
    assert!(second.stderr.contains(&pid), "{pid}: {}", second.stderr);
    assert_eq!(
        status(&scratch)["state"],
        "running",
        "the first runner is not affected"
    );
    drop(live);
}

#[test]
fn socket_and_lock_of_a_dead_runner_do_not_block_a_run() {
    let scratch = Scratch::new();
    kill(&scratch, start_busy(&scratch, &[]));
    let sockets = fs::read_dir(scratch.runtime_dir().join("tachikoma")).expect("it was made");
    assert_eq!(
        sockets.count(),
        1,
        "the socket of the dead runner still exists"
    );

    let ran = tachikoma(&scratch).run(["stop"]);
    assert_snapshot!(shown(&ran), @"
    exit: 1
    --- stdout
    --- stderr
    error: no loop runs in [DIR]
    hint: `tachikoma run` starts one, or continues the last one
    ");
    assert_snapshot!(shown(&tachikoma(&scratch).run(["status"])), @"
    exit: 0
    --- stdout
    loop       [LOOP]
    state      interrupted: its runner is gone; `tachikoma run` continues it
    iteration  1 (attempt 1)
    session    1 (0 iterations)
    context    not known
    stops      it ran [DURATION] of [DURATION]
    stops      1 of 100 iterations
    so far     0 iterations, [DURATION] of work
    --- stderr
    ");

    let ran = tachikoma(&scratch).run(run(&[], CLAIMS));
    await_events(&scratch, "completed", 1);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let sockets = fs::read_dir(scratch.runtime_dir().join("tachikoma")).expect("it was made");
    assert_eq!(
        sockets.count(),
        0,
        "a runner that exits normally removes its socket"
    );
}
