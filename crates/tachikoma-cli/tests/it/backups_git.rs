//! Backups and the work tree: what the loop writes is nobody's work, wherever it is told to put it.

use tachikoma_testkit::Scratch;

use crate::backups::{back_up, say};
use crate::git_support::{commit_all, repository};
use crate::support::{as_configured, files, run, status};

const KEPT: &str = "[state]\nbackup_dir = \"kept\"\nmax_backups = 0\nbackup_interval = \"1ms\"\n";

fn kept(scratch: &Scratch) -> usize {
    files(&scratch.path().join("kept")).len()
}

#[test]
fn backups_in_the_work_tree_are_neither_committed_nor_rolled_back() {
    let scratch = repository();
    scratch.write("tachikoma.toml", KEPT);
    scratch.write("kept/notes", "mine\n");
    commit_all(&scratch);
    let script = "echo $TACHIKOMA_ITERATION > work; echo $TACHIKOMA_ITERATION > kept/notes; tachikoma state backup";
    say(
        &scratch,
        &run(&["--quiet", "--max-iterations", "3"], script),
        3,
    );
    back_up(&scratch);
    let before = kept(&scratch);
    assert!(before > 4, "{before}");
    let names = scratch.git(&["log", "--all", "--name-only", "--format=", "--", "kept"]);
    assert!(
        names
            .lines()
            .all(|name| name.is_empty() || name == "kept/notes"),
        "{names}"
    );
    assert_eq!(scratch.git(&["log", "--format=%s"]).lines().count(), 5);
    say(&scratch, &["rollback", "2", "--yes"], 0);
    assert_eq!(scratch.read("kept/notes"), "1\n", "which is the user's");
    assert!(kept(&scratch) >= before, "{} of {before}", kept(&scratch));
}

#[test]
fn a_backup_in_the_work_tree_is_no_progress() {
    for scratch in [repository(), Scratch::new()] {
        scratch.write("tachikoma.toml", KEPT);
        let words = run(&["--allow-dirty"], "tachikoma state backup");
        let ran = as_configured(&scratch).run(words);
        assert_eq!(ran.code(), Some(4), "{}", ran.snapshot());
        assert_eq!(status(&scratch)["stats"]["no_progress_count"], 5);
        assert!(kept(&scratch) >= 5);
    }
}
