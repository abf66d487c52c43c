//! `tachikoma rollback` restores the work tree and changes nothing else.

use std::fs;
use std::os::unix::fs::symlink;

use tachikoma_testkit::{Ran, Scratch};

use crate::git_support::{commit_all, repository, run_iterations, sh, untouchable, work_tree};
use crate::live_pty::Terminal;
use crate::support::{loops, start_busy, status, tachikoma};

fn rollback(scratch: &Scratch, to: &str) -> Ran {
    tachikoma(scratch).run(["rollback", to, "--yes"])
}

#[track_caller]
fn done(scratch: &Scratch, to: &str) -> Ran {
    let ran = rollback(scratch, to);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    ran
}

/// Checks that a rollback is refused for this reason and changes nothing.
#[track_caller]
fn refused(scratch: &Scratch, to: &str, code: i32, says: &str) {
    let before = (work_tree(scratch), untouchable(scratch), refs(scratch));
    let ran = rollback(scratch, to);
    assert_eq!(ran.code(), Some(code), "{}", ran.snapshot());
    assert!(ran.stderr.contains(says), "{says}: {}", ran.stderr);
    let after = (work_tree(scratch), untouchable(scratch), refs(scratch));
    assert_eq!(after, before);
}

fn refs(scratch: &Scratch) -> String {
    scratch.git(&["for-each-ref", "refs/tachikoma"])
}

/// Shell script that creates every kind of file in a work tree and then makes every kind of change.
const BUILD: &str = "
    mkdir -p dir deep/er
    echo 1 > 'odd \"name\"
with a line'
    printf 1 > -dash; echo 1 > ':(top)magic'; echo 1 > '*'
    echo 1 > dir/file; echo 1 > deep/er/file
    echo 1 > becomes-dir; mkdir becomes-file; echo 1 > becomes-file/x
    ln -s tracked link; echo 1 > script; chmod +x script
    echo 1 > becomes-link";
const CHANGE: &str = "
    echo 2 > tracked; rm gone
    rm -r dir deep; echo 2 > dir
    rm 'odd \"name\"
with a line' ./-dash ':(top)magic'; echo 22 > '*'
    rm becomes-dir; mkdir becomes-dir; echo 2 > becomes-dir/x
    rm -r becomes-file; echo 2 > becomes-file
    ln -sfn elsewhere link; chmod -x script
    rm becomes-link; ln -s tracked becomes-link
    mkdir -p new/dir; echo 2 > new/dir/file; echo 2 > new-at-the-top";

#[test]
fn a_rollback_can_be_undone() {
    let scratch = repository();
    scratch.write(".env", "the user's\n");
    scratch.write("noise.log", "ignored\n");
    scratch.write("staged", "1\n");
    sh(
        &scratch,
        "echo stashed > tracked; git stash -q; git add staged; echo 2 >> staged",
    );
    run_iterations(&scratch, &[BUILD, "true", CHANGE]);
    let changed = work_tree(&scratch);
    scratch.write(".env", "the user's, changed\n");
    scratch.write("noise.log", "ignored, changed\n");
    let untouched = untouchable(&scratch);

    let ran = done(&scratch, "2");
    assert_eq!(untouchable(&scratch), untouched);
    assert_eq!(scratch.read(".env"), "the user's, changed\n");
    assert_eq!(scratch.read("noise.log"), "ignored, changed\n");
    assert_eq!(scratch.read("tracked"), "as committed\n");
    assert_eq!(scratch.read("staged"), "1\n2\n");
    assert!(
        !scratch.path().join("new").exists() && !scratch.path().join("new-at-the-top").exists()
    );
    // The work tree has exactly the files of the first iteration.
    let built = work_tree(&scratch);
    for name in [
        "odd",
        "-dash",
        ":(top)magic",
        "/*\"",
        "dir/file",
        "er/file",
        "becomes-dir\"",
        "becomes-file/x",
    ] {
        assert!(
            built.iter().any(|line| line.contains(name)),
            "{name}: {built:#?}"
        );
    }
    assert!(
        built
            .iter()
            .any(|line| line.contains("/link\" 120777 tracked")),
        "{built:#?}"
    );
    assert!(
        built.iter().any(|line| line.contains("/script\" 100755")),
        "{built:#?}"
    );
    assert!(
        built
            .iter()
            .any(|line| line.contains("/becomes-link\" 100644 1")),
        "{built:#?}"
    );
    let loop_id = status(&scratch)["loop_id"].as_str().unwrap().to_owned();
    let name = format!("refs/tachikoma/{loop_id}/before-rollback-1");
    assert!(
        ran.stdout.contains(&format!("is saved as {name}\n")),
        "{}",
        ran.stdout
    );
    assert!(
        ran.stdout
            .contains("`tachikoma rollback before-rollback-1` restores it")
    );

    done(&scratch, "before-rollback-1");
    scratch.write(".env", "the user's\n");
    scratch.write("noise.log", "ignored\n");
    assert_eq!(work_tree(&scratch), changed);
    assert_eq!(untouchable(&scratch), untouched);
    // The work tree is rolled back and restored once more.
    done(&scratch, "1");
    assert!(!scratch.path().join("dir").exists());
    assert_eq!(refs(&scratch).matches("before-rollback").count(), 3);
    scratch.git(&["fsck", "--strict"]);
}

/// Restored files are committed with the next iteration. Changes of the user are not.
#[test]
fn a_loop_with_commits_continues_after_a_rollback() {
    let scratch = repository();
    scratch.write("mine", "1\n");
    commit_all(&scratch);
    let go = |limit: &str| {
        let agent = "echo $TACHIKOMA_ITERATION > tracked; echo $TACHIKOMA_ITERATION > new-$TACHIKOMA_ITERATION";
        let flags = ["--quiet", "--allow-dirty", "--max-iterations", limit];
        let ran = tachikoma(&scratch).run(crate::support::run(&flags, agent));
        assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    };
    go("3");
    assert_eq!(scratch.git(&["status", "--short"]), "");
    scratch.write("mine", "the user's\n");
    done(&scratch, "2");
    assert_eq!(scratch.read("tracked"), "1\n");
    assert_eq!(
        scratch.read("mine"),
        "1\n",
        "the content is that of the snapshot"
    );
    scratch.write("mine", "the user's again\n");
    go("4");
    assert_eq!(scratch.git(&["status", "--short"]), " M mine\n");
    assert_eq!(scratch.git(&["ls-files", "new-*"]), "new-1\nnew-4\n");
    assert_eq!(scratch.git(&["show", "HEAD:tracked"]), "4\n");
    assert_eq!(scratch.git(&["show", "HEAD:mine"]), "1\n");
}

/// The agent of the next iteration has to know that work was removed.
#[test]
fn a_rollback_is_recorded_and_in_the_next_prompt() {
    let scratch = repository();
    run_iterations(&scratch, &["echo 1 > a", "true"]);
    done(&scratch, "1");
    let ran = tachikoma(&scratch).run(["checkpoint", "show", "--now"]);
    let says = "The operator rolled the work tree back to its state before iteration 1. The earlier content is saved as refs/tachikoma/";
    assert!(ran.stdout.contains(says), "{}", ran.stdout);
    let ran = tachikoma(&scratch).run(["events"]);
    assert!(ran.stdout.contains(says), "{}", ran.stdout);
    let ran = tachikoma(&scratch).run(["state", "verify"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
}

#[test]
fn rollback_works_from_a_subdirectory_and_for_a_loop_in_one() {
    let scratch = repository();
    scratch.write("sub/kept", "1\n");
    commit_all(&scratch);
    run_iterations(
        &scratch,
        &["echo 1 > sub/kept; echo 1 > top; echo 1 > sub/new"],
    );
    let ran = tachikoma(&scratch)
        .in_dir("sub")
        .run(["rollback", "1", "--yes"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(scratch.git(&["status", "--short"]), "");
}

#[test]
fn unchanged_files_are_not_written() {
    let scratch = repository();
    run_iterations(&scratch, &["true", "touch tracked"]);
    let ran = done(&scratch, "1");
    assert!(
        ran.stdout
            .contains("already equals its state before iteration 1"),
        "{}",
        ran.stdout
    );
    assert!(!refs(&scratch).contains("before-rollback"));
}

#[test]
fn rollback_is_refused_while_a_loop_runs() {
    let scratch = repository();
    let live = start_busy(&scratch, &["--no-auto-commit"]);
    let loop_id = status(&scratch)["loop_id"].as_str().unwrap().to_owned();
    sh(
        &scratch,
        &format!("git update-ref refs/tachikoma/{loop_id}/1 HEAD"),
    );
    scratch.write("tracked", "work in hand\n");
    refused(&scratch, "1", 1, "tachikoma stop");
    crate::support::kill(&scratch, live);
    done(&scratch, "1");
    assert_eq!(scratch.read("tracked"), "as committed\n");
}

#[test]
fn a_rollback_asks_at_a_terminal_and_fails_without_one() {
    let scratch = repository();
    run_iterations(&scratch, &["echo 1 > tracked"]);
    let before = work_tree(&scratch);
    let ran = tachikoma(&scratch).run(["rollback", "1"]);
    assert_eq!(ran.code(), Some(2), "{}", ran.snapshot());
    assert!(ran.stderr.contains("use `--yes`"), "{}", ran.stderr);
    assert_eq!(work_tree(&scratch), before);
    let question = "roll the work tree back to its state before iteration 1? [y/N]";
    for (keys, code) in [("\n", 1), ("yep\n", 1), ("\u{4}", 1), ("y\n", 0)] {
        assert_eq!(work_tree(&scratch), before);
        let mut terminal = Terminal::start(&tachikoma(&scratch), &["rollback", "1"], 80);
        terminal.await_text(question);
        assert!(
            terminal.raw().contains("1 file changed"),
            "what would change is shown"
        );
        keys.bytes().for_each(|key| terminal.press(key));
        assert_eq!(terminal.wait(), Some(code), "{keys:?}");
    }
    assert_eq!(scratch.read("tracked"), "as committed\n");
}

#[test]
fn rollback_does_not_overwrite_ignored_files_and_nested_repositories() {
    // The snapshot has a file at `a`. Now `a` is an ignored file.
    let scratch = repository();
    let iterations = [
        "echo 1 > a; mkdir d; echo 1 > d/x; echo 1 > e",
        "rm -r a d e; echo '/a' >> .gitignore; echo mine > a; echo 1 > other",
    ];
    run_iterations(&scratch, &iterations);
    refused(
        &scratch,
        "2",
        1,
        "the rollback would overwrite these files, which are in no commit or snapshot: a",
    );
    // The snapshot has a directory at `d`. Now `d` is an ignored file.
    sh(&scratch, "rm a; echo '/d' >> .gitignore; echo mine > d");
    refused(
        &scratch,
        "2",
        1,
        "the rollback would overwrite these files, which are in no commit or snapshot: d",
    );
    // The snapshot has a file at `e`. Now `e` is a directory with an ignored file.
    sh(
        &scratch,
        "rm d; mkdir e; echo kept > e/kept; echo mine > e/mine.log",
    );
    refused(
        &scratch,
        "2",
        1,
        "the rollback would overwrite these files, which are in no commit or snapshot: e/mine.log",
    );
    // The snapshot has a file at `e`. Now `e` is a nested repository.
    sh(
        &scratch,
        "rm -r e; git init -q e; git -C e config user.name a; git -C e config user.email b",
    );
    refused(
        &scratch,
        "2",
        1,
        "the rollback would overwrite these files, which are in no commit or snapshot: e/.git/",
    );
    sh(&scratch, "rm -r e; mkdir e; echo kept > e/kept");
    done(&scratch, "2");
    assert_eq!(scratch.read("e"), "1\n");
}

/// An ignored file may have existed at that time, but it is not in the snapshot.
#[test]
fn files_that_were_ignored_at_the_snapshot_are_not_changed() {
    let scratch = repository();
    scratch.write(".gitignore", "local.conf\n/data/\n*.log\n");
    scratch.write("sub/.gitignore", "here\n");
    commit_all(&scratch);
    scratch.write("local.conf", "the user's\n");
    scratch.write("data/db", "the user's\n");
    scratch.write("sub/here", "the user's\n");
    run_iterations(
        &scratch,
        &["echo '*.log' > .gitignore; rm sub/.gitignore; echo 1 > new"],
    );
    let ran = done(&scratch, "1");
    for file in ["local.conf", "data/db", "sub/here"] {
        assert_eq!(scratch.read(file), "the user's\n");
    }
    assert!(!scratch.path().join("new").exists());
    let says = "left as they are: data/db, local.conf, sub/here";
    assert!(ran.stderr.contains(says), "{}", ran.stderr);
    assert_eq!(scratch.git(&["status", "--short"]), "");
}

#[test]
fn rollback_leaves_protected_and_huge_files() {
    let scratch = repository();
    scratch.write(
        "tachikoma.toml",
        "git.max_file_bytes = 1000\ngit.protected = ['.env*', 'keep/**']\n",
    );
    scratch.write(".env", "1\n");
    scratch.write("keep/a", "1\n");
    sh(&scratch, "git add -f .env keep");
    commit_all(&scratch);
    run_iterations(&scratch, &["true", "echo 1 > new"]);
    // These files are committed after the snapshot, so the index has the new versions and the snapshot the old ones.
    let huge = "x".repeat(2000);
    scratch.write("huge", &huge);
    scratch.write(".env", "2\n");
    scratch.write("keep/a", "2\n");
    commit_all(&scratch);
    scratch.write("untracked-huge", &huge);
    let check = || {
        assert_eq!(scratch.read(".env"), "2\n");
        assert_eq!(scratch.read("keep/a"), "2\n");
        assert_eq!(scratch.read("huge"), huge);
        assert_eq!(scratch.read("untracked-huge"), huge);
        assert!(!scratch.path().join("new").exists());
    };
    done(&scratch, "1");
    check();
    // The result is the same if the loop's index is missing and only the user's index has these files.
    fs::remove_file(loops(&scratch)[0].join("git-index")).unwrap();
    scratch.write("new", "1");
    let ran = done(&scratch, "1");
    assert!(
        ran.stderr
            .contains("note: left as they are: .env, huge, keep/a"),
        "{}",
        ran.stderr
    );
    check();
}

/// A file that was small in its snapshot is restored, even if it is large now.
#[test]
fn a_file_that_has_grown_is_stored_and_restored() {
    let scratch = repository();
    scratch.write("tachikoma.toml", "git.max_file_bytes = 1000\n");
    commit_all(&scratch);
    run_iterations(&scratch, &["echo small > grows", "true"]);
    let large = "x".repeat(2000);
    scratch.write("grows", &large);
    done(&scratch, "2");
    assert_eq!(scratch.read("grows"), "small\n");
    done(&scratch, "before-rollback-1");
    assert_eq!(scratch.read("grows"), large);
}

#[test]
fn rollback_leaves_submodules() {
    let scratch = repository();
    sh(
        &scratch,
        "git init -q ../other; cd ../other; git config user.name a; git config user.email b
         git commit -q --allow-empty -m 1",
    );
    sh(
        &scratch,
        "git -c protocol.file.allow=always submodule --quiet add ../other sub 2>/dev/null || \
         git -c protocol.file.allow=always submodule --quiet add \"$PWD/../other\" sub; git commit -qam sub",
    );
    run_iterations(&scratch, &["true", "echo 1 > tracked"]);
    sh(
        &scratch,
        "cd sub; git config user.name a; git config user.email b; git commit -q --allow-empty -m 2; echo 1 > dirty",
    );
    let head = scratch.git(&["-C", "sub", "rev-parse", "HEAD"]);
    let ran = done(&scratch, "1");
    assert!(
        ran.stderr.contains("left as they are: sub"),
        "{}",
        ran.stderr
    );
    assert_eq!(scratch.git(&["-C", "sub", "rev-parse", "HEAD"]), head);
    assert_eq!(scratch.read("sub/dirty"), "1\n");
    assert_eq!(scratch.read("tracked"), "as committed\n");
}

#[test]
fn rollback_works_before_the_first_commit_and_with_a_detached_head() {
    let scratch = Scratch::with_git();
    run_iterations(&scratch, &["echo 1 > a", "echo 2 > a; echo 2 > b"]);
    done(&scratch, "2");
    assert_eq!(scratch.read("a"), "1\n");
    assert!(!scratch.path().join("b").exists());
    sh(
        &scratch,
        "git add -A; git commit -qm 1; git checkout -q --detach",
    );
    done(&scratch, "before-rollback-1");
    assert_eq!(scratch.read("b"), "2\n");
}

#[test]
fn rollback_works_in_a_linked_work_tree_with_a_sparse_checkout() {
    let scratch = repository();
    sh(
        &scratch,
        "mkdir far near; echo 1 > far/a; echo 1 > near/a; git add -A; git commit -qm dirs
         mkdir ../main; mv .git tracked gone .gitignore far near ../main; cd ../main; git reset -q --hard
         rmdir ../w; git worktree add -q ../w; cd ../w; git sparse-checkout set --cone near",
    );
    assert!(!scratch.path().join("far").exists());
    let script = "echo 2 > near/a; echo 2 > near/b";
    run_iterations(&scratch, &[script]);
    done(&scratch, "1");
    assert_eq!(scratch.read("near/a"), "1\n");
    assert!(!scratch.path().join("near/b").exists() && !scratch.path().join("far").exists());
    assert_eq!(scratch.git(&["status", "--short"]), "");
}

/// A sparse checkout can contain files that its patterns exclude.
#[test]
fn rollback_leaves_files_outside_a_sparse_checkout() {
    let scratch = repository();
    scratch.write("far/a", "1\n");
    scratch.write("near/a", "1\n");
    commit_all(&scratch);
    scratch.git(&["sparse-checkout", "set", "--cone", "near"]);
    scratch.write("far/mine", "the user's\n");
    run_iterations(&scratch, &["echo 2 > near/a", "echo 2 > far/new"]);
    done(&scratch, "1");
    assert_eq!(scratch.read("near/a"), "1\n");
    assert_eq!(scratch.read("far/mine"), "the user's\n");
    assert!(!scratch.path().join("far/new").exists() && !scratch.path().join("far/a").exists());
    done(&scratch, "before-rollback-1");
    assert_eq!(scratch.read("far/mine"), "the user's\n");
    assert_eq!(scratch.read("far/new"), "2\n");
}

#[test]
fn rollback_does_not_follow_a_link_out_of_the_work_tree() {
    let scratch = repository();
    run_iterations(&scratch, &["mkdir d; echo 1 > d/a", "true"]);
    sh(&scratch, "rm -r d; mkdir ../outside");
    symlink("../outside", scratch.path().join("d")).unwrap();
    done(&scratch, "2");
    assert!(!scratch.path().join("../outside/a").exists());
    assert_eq!(scratch.read("d/a"), "1\n");
    sh(&scratch, "rm -r d; echo /d >> .git/info/exclude");
    symlink("../outside", scratch.path().join("d")).unwrap();
    refused(
        &scratch,
        "2",
        1,
        "the rollback would overwrite these files, which are in no commit or snapshot: d",
    );
}

#[test]
fn rollback_finds_an_archived_loop_by_id() {
    let scratch = repository();
    run_iterations(&scratch, &["echo 1 > a", "true"]);
    let old = status(&scratch)["loop_id"].as_str().unwrap().to_owned();
    run_iterations(&scratch, &["echo 2 > a"]);
    let ran = tachikoma(&scratch).run(["rollback", "2", "--yes", "--loop", &old]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(scratch.read("a"), "1\n");
    assert!(ran.stdout.contains(&format!(
        "`tachikoma rollback before-rollback-1 --loop {old}`"
    )));
    refused(&scratch, "7", 2, "has not reached iteration 7");
    refused(
        &scratch,
        "before-rollback-1",
        1,
        "no snapshot before-rollback-1 of",
    );
    refused(&scratch, "before", 2, "the number of an iteration, from 1");
}
