//! Tests of `tachikoma diff`, which shows the changes of an iteration.

use std::fs;

use tachikoma_testkit::Scratch;

use crate::git_support::{repository, run_iterations, sh, untouchable};
use crate::live_pty::Terminal;
use crate::support::{status, tachikoma, with_history};

#[track_caller]
fn names(scratch: &Scratch, words: &[&str]) -> Vec<String> {
    let words = [&["diff", "--name-only"], words].concat();
    let ran = tachikoma(scratch).run(words);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    ran.stdout.lines().map(Into::into).collect()
}

#[test]
fn diff_shows_the_changes_of_an_iteration() {
    let scratch = repository();
    fs::create_dir(scratch.path().join("sub")).unwrap();
    scratch.write("loose", "the user's\n");
    run_iterations(
        &scratch,
        &[
            "echo 1 > sub/new; echo 1 > noise.log",
            "echo 2 > tracked; rm gone; echo 2 >> sub/new",
            "true",
            "echo 4 > last",
        ],
    );
    let before = untouchable(&scratch);
    assert_eq!(names(&scratch, &["1"]), ["sub/new"]);
    assert_eq!(names(&scratch, &["2"]), ["gone", "sub/new", "tracked"]);
    assert_eq!(names(&scratch, &["3"]), [""; 0]);
    assert_eq!(names(&scratch, &[]), ["last"], "the last one");
    let ran = tachikoma(&scratch).in_dir("sub").run(["diff", "2"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert!(ran.stdout.contains("-as committed\n+2\n"), "{}", ran.stdout);
    assert!(!ran.stdout.contains('\u{1b}'), "no colour in a pipe");
    let ran = tachikoma(&scratch).run(["diff", "2", "--stat"]);
    assert!(ran.stdout.contains("3 files changed"), "{}", ran.stdout);

    // Without an iteration number, the diff includes changes made after the loop.
    scratch.write("later", "1");
    scratch.write(".env", "SECRET=1");
    assert_eq!(names(&scratch, &["4"]), ["last", "later"]);
    assert_eq!(untouchable(&scratch), before, "`diff` changes no file");
    let loops = fs::read_dir(crate::support::loops(&scratch).remove(0)).unwrap();
    let left: Vec<_> = loops
        .map(|entry| entry.unwrap().file_name())
        .filter(|name| name.to_string_lossy().contains(".tmp"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_missing_snapshot_is_replaced_by_the_one_before() {
    let scratch = repository();
    run_iterations(&scratch, &["echo 1 > a", "true", "echo 3 > b"]);
    let loop_id = status(&scratch)["loop_id"].as_str().unwrap().to_owned();
    sh(
        &scratch,
        &format!("git update-ref -d refs/tachikoma/{loop_id}/3"),
    );
    let ran = tachikoma(&scratch).run(["diff", "3", "--name-only"]);
    assert_eq!(ran.stdout, "b\n");
    assert!(
        ran.stderr.contains("using that of iteration 2"),
        "{}",
        ran.stderr
    );
}

/// Git compares the content of files that are as new as its index. A newer copy of the index would hide a change in the clock tick
/// in which the index was written.
#[test]
fn diff_shows_an_edit_in_the_same_clock_tick_as_the_index() {
    let scratch = repository();
    run_iterations(&scratch, &["true"]);
    scratch.git(&["config", "core.trustctime", "false"]);
    // The time is far enough in the past for file systems that store whole seconds.
    let at = std::time::SystemTime::now() - std::time::Duration::from_secs(10);
    let date = |name: &str| {
        let file = fs::File::options()
            .write(true)
            .open(scratch.path().join(name));
        file.unwrap().set_modified(at).unwrap();
    };
    scratch.write("tracked", "one\n");
    date("tracked");
    scratch.git(&["add", "tracked"]);
    date(".git/index");
    scratch.write("tracked", "two\n");
    date("tracked");
    let ran = tachikoma(&scratch).run(["diff"]);
    assert!(ran.stdout.contains("+two"), "{}", ran.snapshot());
}

#[test]
fn diff_uses_color_and_the_users_pager_on_a_terminal() {
    let scratch = repository();
    run_iterations(&scratch, &["echo 1 > tracked"]);
    let tool = tachikoma(&scratch)
        .env("TERM", "xterm")
        .env("GIT_PAGER", "sed 's/^/paged: /'");
    let mut terminal = Terminal::start(&tool, &["diff"], 80);
    terminal.await_text("paged: ");
    assert_eq!(terminal.wait(), Some(0));
    let seen = terminal.raw();
    assert!(
        seen.contains("paged: ") && seen.contains("\u{1b}["),
        "{seen:?}"
    );
}

#[test]
fn diff_shows_an_archived_loop_by_id() {
    let scratch = repository();
    run_iterations(&scratch, &["echo 1 > a", "echo 2 > b"]);
    let old = status(&scratch)["loop_id"].as_str().unwrap().to_owned();
    run_iterations(&scratch, &["echo 3 > c"]);
    assert_eq!(names(&scratch, &[]), ["c"]);
    assert_eq!(names(&scratch, &["1", "--loop", &old]), ["a"]);
    assert_eq!(names(&scratch, &["--loop", &old]), ["b", "c"]);
}

#[test]
fn diff_explains_why_it_cannot_show_the_changes() {
    let scratch = repository();
    let refused = |words: &[&str], code, says: &str| {
        let ran = tachikoma(&scratch).run([&["diff"], words].concat());
        assert_eq!(ran.code(), Some(code), "{}", ran.snapshot());
        assert!(ran.stderr.contains(says), "{says}: {}", ran.stderr);
    };
    refused(&[], 1, "no loop in");
    run_iterations(&scratch, &["echo 1 > a", "echo 2 > b"]);
    refused(&["3"], 2, "has not reached iteration 3");
    refused(&["0"], 2, "the number of an iteration, from 1");
    refused(&["one"], 2, "the number of an iteration, from 1");
    refused(&["--loop", "loop_1"], 2, "is not a loop id");
    let none = "loop_00000000-0000-0000-0000-000000000001";
    refused(
        &["--loop", none],
        1,
        "`.ralph/loops` lists the stored loops",
    );
    let loop_id = status(&scratch)["loop_id"].as_str().unwrap().to_owned();
    sh(
        &scratch,
        &format!("git update-ref -d refs/tachikoma/{loop_id}/1"),
    );
    refused(&["1"], 1, "hint: iteration 2 has one");

    let elsewhere = with_history();
    let ran = tachikoma(&elsewhere).run(["diff"]);
    assert_eq!(ran.code(), Some(1), "{}", ran.snapshot());
    assert!(
        ran.stderr
            .contains("only for loops that run in a git repository"),
        "{}",
        ran.stderr
    );
}
