//! A loop continues on another machine from its remote backup.

use std::path::Path;

use tachikoma_testkit::{Scratch, await_until};

use crate::cloud_support::{Server, incidents, repository, up_to, with_identity};
use crate::support::{SOON, await_events, files, kill, status};

/// Command of an agent that appends a line in each iteration. In the third iteration it waits until the file `hold` exists.
fn agent(hold: &Path) -> String {
    let hold = hold.display();
    format!(
        "test $TACHIKOMA_ITERATION != 3 || test -e {hold} || exec sleep 600; echo $TACHIKOMA_ITERATION >> work"
    )
}

fn words(agent: &str) -> Vec<&str> {
    [&up_to("4")[..], &["sh", "-c", agent]].concat()
}

/// Returns the subjects of the commits, the content of `work` and the names of the tracked files.
fn result(scratch: &Scratch) -> (String, String, String) {
    (
        scratch.git(&["log", "--format=%s"]),
        scratch.read("work"),
        scratch.git(&["ls-files"]),
    )
}

#[test]
fn a_killed_loop_continues_on_another_machine_with_the_same_result() {
    let server = Server::start();
    let more = "backup_interval = \"50ms\"\nmax_backups = 3";
    let hold = tempfile::tempdir().unwrap();
    let held = hold.path().join("go");
    let agent = agent(&held);

    // The first machine is killed in its third iteration, after the upload.
    let here = repository(&server, more);
    let live = server.tool(&here).spawn(words(&agent));
    await_events(&here, "iteration_started", 3);
    let started = || {
        let lines = crate::support::lines(&here);
        let at = lines.iter().position(|line| {
            line.contains("\"iteration_started\"") && line.contains("\"iteration\":3")
        });
        at.expect("the third iteration") as u64 + 1
    };
    let newest = |server: &Server| {
        let copies = server.copies();
        let numbers = copies.iter().filter_map(|name| {
            let (_, rest) = name.split_once("loop_")?;
            rest.get(37..57)?.parse::<u64>().ok()
        });
        numbers.max()
    };
    await_until("a copy of the third iteration", SOON, || {
        newest(&server) > Some(started())
    });
    kill(&here, live);

    // The second machine has only the address and the credentials.
    let there = Scratch::new();
    with_identity(&there);
    let url = server.url();
    let told = server.say(&there, &["state", "restore", "--from", &url, "--yes"], 0);
    assert!(told.contains("is restored at iteration 3"), "{told}");
    assert!(
        told.contains("the work tree is restored, on main"),
        "{told}"
    );
    assert_eq!(there.read("work"), "1\n2\n");
    assert_eq!(there.git(&["status", "--porcelain"]), "");
    std::fs::write(&held, "").unwrap();
    server.say(&there, &words(&agent), 3);
    assert_eq!(status(&there)["iteration"], 4);

    // A third directory runs the same loop without interruption.
    let still = repository(&server, more);
    server.say(&still, &words(&agent), 3);
    assert_eq!(result(&there), result(&still));
    for scratch in [&there, &still] {
        let stats = &status(scratch)["stats"];
        assert_eq!(
            (&stats["iterations"], &stats["successful"]),
            (&4.into(), &4.into()),
            "{stats}"
        );
    }
    server.say(&there, &["state", "verify"], 0);
    // The backup directory contains only backups.
    for path in files(&there.path().join(".ralph/backups")).keys() {
        assert_eq!(path.extension().unwrap(), "tar", "{}", path.display());
    }
    assert!(
        !files(&there.path().join(".ralph"))
            .keys()
            .any(|path| path.ends_with("git-work.bundle.lock"))
    );
}

#[test]
fn uncommitted_work_is_part_of_an_upload() {
    let server = Server::start();
    let here = repository(&server, "[git]\nauto_commit = false");
    here.write("draft", "not committed\n");
    here.write("prompt.md", "go on, differently\n");
    let words = [&up_to("1")[..], &["true"]].concat();
    server.say(&here, &words, 3);
    let there = Scratch::new();
    let url = server.url();
    let told = server.say(&there, &["state", "restore", "--from", &url, "--yes"], 0);
    assert!(told.contains("on main, with uncommitted changes"), "{told}");
    assert_eq!(there.read("draft"), "not committed\n");
    assert_eq!(there.read("prompt.md"), "go on, differently\n");
    let status = there.git(&["status", "--porcelain"]);
    assert_eq!(status, " M prompt.md\n?? draft\n");
    assert_eq!(
        there.git(&["log", "--format=%s"]),
        here.git(&["log", "--format=%s"])
    );
}

#[test]
fn an_encrypted_upload_needs_its_key() {
    let server = Server::start();
    let key = tempfile::NamedTempFile::new().unwrap();
    let text = "AGE-SECRET-KEY-1GQ9778VQXMMJVE8SK7J6VT8UJ4HDQAJUVSFCWCM02D8GEWQ72PVQ2Y5J33\n";
    std::fs::write(key.path(), text).unwrap();
    let settings = format!(
        "encrypt = true\nencrypt_identity_file = '{}'\n[git]\nauto_commit = false",
        key.path().display()
    );
    let here = repository(&server, &settings);
    here.write("draft", "not committed\n");
    server.say(&here, &[&up_to("1")[..], &["true"]].concat(), 3);
    let copies = server.copies();
    assert!(!copies.is_empty() && copies.iter().all(|name| name.contains(".tar.age.")));
    let there = Scratch::new();
    let url = server.url();
    let restore = ["state", "restore", "--from", &url, "--yes"];
    let refused = server.tool(&there).run(restore);
    assert_eq!(refused.code(), Some(2), "{}", refused.snapshot());
    assert!(
        !there.path().join(".git").exists(),
        "the restore changed no file"
    );
    assert!(!there.path().join(".ralph/backups").exists());
    assert!(
        refused.stderr.contains("s3://bucket/a/b/loop_"),
        "{}",
        refused.stderr
    );
    let with_key = server
        .tool(&there)
        .env("TACHIKOMA_STATE__ENCRYPT", "true")
        .env(
            "TACHIKOMA_STATE__ENCRYPT_IDENTITY_FILE",
            key.path().to_str().unwrap(),
        );
    let ran = with_key.run(restore);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(there.read("draft"), "not committed\n");
}

#[test]
fn a_restore_fills_an_empty_repository() {
    let server = Server::start();
    let here = repository(&server, "");
    let words = [&up_to("1")[..], &["true"]].concat();
    server.say(&here, &words, 3);
    let url = server.url();
    let restore = ["state", "restore", "--from", &url, "--yes"];
    let there = Scratch::new();
    there.git(&["init", "--quiet", "--initial-branch", "other"]);
    let told = server.say(&there, &restore, 0);
    assert!(told.contains("the work tree is restored, on "), "{told}");
    assert!(there.path().join("prompt.md").exists());
    assert_eq!(there.git(&["status", "--porcelain", "-uno"]).trim(), "");
}

#[test]
fn a_restore_into_a_repository_adds_commits_and_keeps_files() {
    let server = Server::start();
    let here = repository(&server, "[git]\nauto_commit = false");
    let there = Scratch::new();
    there.git(&["clone", "--quiet", here.path().to_str().unwrap(), "."]);
    let agent = "echo 1 >> work; git add -A; git commit -qm more";
    let words = [&up_to("1")[..], &["sh", "-c", agent]].concat();
    server.say(&here, &words, 3);
    let url = server.url();
    let told = server.say(&there, &["state", "restore", "--from", &url, "--yes"], 0);
    assert!(
        told.contains("its commits, on main in the backup, are not in the current branch"),
        "{told}"
    );
    assert!(!there.path().join("work").exists());
    let reference = there.git(&["for-each-ref", "--format=%(refname)", "refs/tachikoma"]);
    let head = reference
        .lines()
        .find(|name| name.ends_with("/restored-head"));
    there.git(&[
        "merge",
        "--quiet",
        "--ff-only",
        head.expect("the ref of the restored commits exists"),
    ]);
    assert_eq!(there.read("work"), "1\n");
}

#[test]
fn a_damaged_upload_is_skipped_and_one_of_two_loops_must_be_named() {
    let server = Server::start();
    let here = repository(&server, "");
    let words = [&up_to("1")[..], &["true"]].concat();
    server.say(&here, &words, 3);
    server.say(&here, &["state", "set", "plan", "7"], 0);
    server.say(&here, &["state", "backup"], 0);
    let copies = server.copies();
    assert_eq!(copies.len(), 2, "{copies:?}");
    let newest = server.s3.file(copies.last().unwrap());
    let mut bytes = std::fs::read(&newest).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    std::fs::write(&newest, bytes).unwrap();

    let there = Scratch::new();
    let url = server.url();
    let told = server.say(&there, &["state", "restore", "--from", &url, "--yes"], 0);
    assert!(told.contains("note: skipped loop_"), "{told}");
    assert!(told.contains("is not what its name says"), "{told}");
    assert!(told.contains("is restored at iteration 1"), "{told}");

    let other = repository(&server, "");
    server.say(&other, &words, 3);
    let third = Scratch::new();
    let told = server.say(&third, &["state", "restore", "--from", &url, "--yes"], 2);
    assert!(told.contains("there are backups of 2 loops"), "{told}");
    assert!(!third.path().join(".ralph/loops").exists());
    let loop_id = status(&other)["loop_id"].as_str().unwrap().to_owned();
    let named = [
        "state", "restore", "--from", &url, "--loop", &loop_id, "--yes",
    ];
    let told = server.say(&third, &named, 0);
    assert!(told.contains(&loop_id), "{told}");
    let name = copies[0].rsplit('/').next().unwrap();
    let name = name.split(".work").next().unwrap();
    let fourth = Scratch::new();
    server.say(
        &fourth,
        &["state", "restore", "--from", &url, "--yes", name],
        0,
    );
    assert_eq!(incidents(&fourth, "cloud_failed").len(), 0);
}

#[test]
fn an_upload_from_a_shallow_clone_has_no_work_tree() {
    let server = Server::start();
    let here = repository(&server, "");
    here.git(&["commit", "--quiet", "--allow-empty", "-m", "more"]);
    let shallow = Scratch::new();
    let from = format!("file://{}", here.path().display());
    shallow.git(&["clone", "--quiet", "--depth", "1", &from, "."]);
    with_identity(&shallow);
    let words = [&up_to("1")[..], &["true"]].concat();
    server.say(&shallow, &words, 3);
    let told = server.say(&shallow, &["state", "backup"], 0);
    assert!(told.contains("the repository is a shallow clone"), "{told}");
    assert_eq!(incidents(&shallow, "cloud_copied").len(), 1);
}
