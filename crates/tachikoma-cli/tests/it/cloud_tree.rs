//! A remote backup contains the work tree, including uncommitted changes and their owner.

use tachikoma_testkit::{Scratch, await_until};

use crate::autocommit_support::{dirty, files_of, subjects};
use crate::backups::say;
use crate::cloud_support::{incidents, settings, up_to, with_identity};
use crate::support::{SOON, kill, lines, loops, tachikoma};

/// A directory for uploads, and a repository with a loop that uploads its backups there.
fn here(more: &str) -> (tempfile::TempDir, String, Scratch) {
    let copies = tempfile::tempdir().unwrap();
    let url = format!("file://{}", copies.path().display());
    let scratch = Scratch::with_git();
    scratch.write("prompt.md", "go\n");
    scratch.write(".gitignore", "*.log\n");
    scratch.write("tachikoma.toml", settings(&url, more));
    scratch.git(&["add", "-A"]);
    scratch.git(&["commit", "--quiet", "-m", "before"]);
    (copies, url, scratch)
}

/// Restores the newest upload into an empty directory. Returns the directory and the output.
fn there(url: &str) -> (Scratch, String) {
    let scratch = Scratch::new();
    with_identity(&scratch);
    let told = say(&scratch, &["state", "restore", "--from", url, "--yes"], 0);
    (scratch, told)
}

fn words<'a>(iterations: &'a str, agent: &'a str) -> Vec<&'a str> {
    [&up_to(iterations)[..], &["sh", "-c", agent]].concat()
}

/// Returns the journal record number of the newest complete upload. A file with its final name may still be incomplete.
fn newest(scratch: &Scratch) -> usize {
    let copied = incidents(scratch, "cloud_copied");
    let seqs = copied.iter().filter_map(|copied| {
        let name = copied["name"].as_str()?.strip_prefix("loop_")?;
        name.get(37..57)?.parse().ok()
    });
    seqs.max().unwrap_or(0)
}

const LINE: &str = "echo $TACHIKOMA_ITERATION >> work";

#[test]
fn an_upload_has_the_work_of_the_last_iteration() {
    let (_copies, url, here) = here("[git]\nauto_commit = false");
    say(&here, &words("3", LINE), 3);
    let (there, told) = there(&url);
    assert!(told.contains("is restored at iteration 3"), "{told}");
    assert!(told.contains("on main, with uncommitted changes"), "{told}");
    assert_eq!(there.read("work"), "1\n2\n3\n");
    say(&there, &words("4", LINE), 3);
    assert_eq!(there.read("work"), "1\n2\n3\n4\n");
    // The first machine restores the upload, too.
    let told = say(&here, &["state", "restore", "--from", &url, "--yes"], 0);
    assert!(
        told.contains("the work tree is unchanged; `tachikoma run` continues"),
        "{told}"
    );
    let name = loops(&here)[0].file_name().unwrap().to_owned();
    let tree = format!("refs/tachikoma/{}/copied", name.to_str().unwrap());
    assert!(told.contains(&format!("`git diff HEAD {tree}`")), "{told}");
    assert_eq!(
        here.git(&["show", &format!("{tree}:work")]),
        there.read("work")
    );
}

/// Lines of failed iterations are committed with the next successful one, and a killed iteration leaves an incomplete file. After
/// a restore on another machine, both still belong to the loop.
#[test]
fn a_killed_loop_commits_its_work_after_a_restore_elsewhere() {
    let (_copies, url, here) = here("backup_interval = \"50ms\"");
    let hold = tempfile::tempdir().unwrap();
    let held = hold.path().join("go");
    let agent = format!(
        "echo $TACHIKOMA_ITERATION >> work; case $TACHIKOMA_ITERATION in 2) exit 1;; 3) echo half >> new; \
         test -e {held} || exec sleep 600;; esac",
        held = held.display()
    );
    here.write("notes", "mine\n");
    let live = tachikoma(&here).spawn(words("4", &agent));
    await_until("the third iteration at work", SOON, || {
        std::fs::read_to_string(here.path().join("new")).is_ok_and(|new| new == "half\n")
    });
    // Backups that are taken after this change contain it.
    say(&here, &["state", "set", "plan", "1"], 0);
    let lines = lines(&here);
    let at = lines
        .iter()
        .position(|line| line.contains("\"custom_set\""))
        .unwrap();
    await_until("a copy of it", SOON, || newest(&here) > at);
    kill(&here, live);

    let (there, told) = there(&url);
    assert!(told.contains("with uncommitted changes"), "{told}");
    assert_eq!(there.read("work"), "1\n2\n3\n");
    assert_eq!(there.read("new"), "half\n");
    std::fs::write(&held, "").unwrap();
    say(&there, &words("4", &agent), 3);
    assert_eq!(there.read("work"), "1\n2\n3\n3\n4\n");
    assert_eq!(dirty(&there), "?? notes\n");
    assert_eq!(files_of(&there, "HEAD~1"), ["new", "work"]);
}

#[test]
fn files_of_the_user_are_restored_and_stay_uncommitted() {
    let (_copies, url, here) = here("");
    here.write("notes", "mine\n");
    here.write(".env", "SECRET=1\n");
    here.write("a.log", "ignored\n");
    let text = here.read("tachikoma.toml");
    here.write("tachikoma.toml", format!("{text}max_backups = 7\n"));
    say(&here, &words("2", LINE), 3);
    let there = Scratch::new();
    with_identity(&there);
    there.write("own", "of this place\n");
    let told = say(&there, &["state", "restore", "--from", &url, "--yes"], 0);
    assert!(told.contains("with uncommitted changes"), "{told}");
    for name in ["notes", "tachikoma.toml", "work"] {
        assert_eq!(there.read(name), here.read(name), "{name}");
    }
    for name in [".env", "a.log"] {
        assert!(!there.path().join(name).exists(), "{name}");
    }
    let users = " M tachikoma.toml\n?? notes\n?? own\n";
    assert_eq!(dirty(&there), users);
    say(&there, &words("3", LINE), 3);
    assert_eq!(there.read("work"), "1\n2\n3\n");
    assert_eq!(dirty(&there), users);
    assert_eq!(subjects(&there).len(), 4);
    // A purge deletes the refs of an upload.
    say(&there, &["state", "clear", "--purge", "--yes"], 0);
    assert_eq!(there.git(&["for-each-ref", "refs/tachikoma"]), "");
}

/// Without a merge, a run in an existing repository would ignore the restored commits.
#[test]
fn a_restore_on_the_same_machine_names_the_commits_to_merge() {
    let (_copies, url, here) = here("");
    say(&here, &words("1", LINE), 3);
    let (there, _) = there(&url);
    say(&there, &words("2", LINE), 3);
    let restore = ["state", "restore", "--from", &url, "--yes"];
    let told = say(&here, &restore, 0);
    assert!(!told.contains("goes on"), "{told}");
    assert!(!told.contains("git checkout"), "{told}");
    assert!(told.contains("are not in the current branch"), "{told}");
    merge(&here, &told, &["merge", "--ff-only"]);
    let told = say(&here, &restore, 0);
    assert!(told.contains("`tachikoma run` continues"), "{told}");
    say(&here, &words("3", LINE), 3);
    assert_eq!(here.read("work"), "1\n2\n3\n");
    assert_eq!(subjects(&here).len(), 4);

    // A merge keeps commits that were made after the restore.
    there.write("more", "more\n");
    there.git(&["add", "more"]);
    there.git(&["commit", "--quiet", "-m", "more"]);
    let told = say(&there, &restore, 0);
    merge(&there, &told, &["merge"]);
    say(&there, &words("4", LINE), 3);
    assert_eq!(there.read("work"), "1\n2\n3\n4\n");
    assert_eq!(there.read("more"), "more\n");
}

/// Runs the commands that the restore printed.
#[track_caller]
fn merge(scratch: &Scratch, told: &str, how: &[&str]) {
    let (_, rest) = told
        .split_once("first `git ")
        .expect("the output names the first command");
    let (command, rest) = rest.split_once('`').unwrap();
    assert!(rest.starts_with(", then `tachikoma run`"), "{told}");
    let words: Vec<&str> = command.split(' ').collect();
    assert_eq!(words[..words.len() - 1], *how, "{told}");
    scratch.git(&[&words[..], &["--no-edit"]].concat());
}
