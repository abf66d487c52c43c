//! Work trees in remote backups: how they are uploaded, retained, restored and reported.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use rustix::process::{Pid, Signal, kill_process};
use tachikoma_testkit::{Scratch, await_until};

use crate::autocommit_support::path_with_git;
use crate::cloud_support::{Server, repository, sha256, with_identity};
use crate::live_support::tool_of_nobody;
use crate::support::{SOON, files, kill};

/// Arguments of a run up to an iteration. Each iteration appends a line.
fn words(iterations: &str) -> Vec<&str> {
    let mut words = crate::cloud_support::up_to(iterations).to_vec();
    words.extend(["sh", "-c", "echo $TACHIKOMA_ITERATION >> work"]);
    words
}

fn restore<'a>(url: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut words = vec!["state", "restore", "--from", url, "--yes"];
    words.extend(more);
    words
}

#[test]
fn a_short_run_uploads_its_work_tree() {
    let server = Server::start();
    let here = repository(&server, "max_backups = 0");
    server.say(&here, &words("1"), 3);
    for _ in 0..4 {
        // The loop reaches its limit and ends while the first backup is compressed.
        server.say(&here, &words("1"), 3);
    }
    let copies = server.copies();
    assert!(copies.len() > 1, "{copies:?}");
    for copy in copies {
        assert!(copy.contains(".tar.work.sha256-"), "{copy}");
    }
    let locks = files(&here.path().join(".ralph/loops"));
    let lock = locks
        .keys()
        .find(|path| path.to_string_lossy().contains("bundle."));
    assert_eq!(lock, None);
}

#[test]
fn a_restored_loop_can_be_uploaded_and_restored_again() {
    let server = Server::start();
    let here = repository(&server, "");
    server.say(&here, &words("1"), 3);
    let url = server.url();
    let mut places = Vec::new();
    for iterations in ["2", "3"] {
        let there = Scratch::new();
        with_identity(&there);
        let told = server.say(&there, &restore(&url, &[]), 0);
        assert!(
            told.contains("the work tree is restored, on main"),
            "{told}"
        );
        server.say(&there, &words(iterations), 3);
        places.push(there);
    }
    assert_eq!(places[1].read("work"), "1\n2\n3\n");
    // The upload can be restored into a clone, too.
    let clone = Scratch::new();
    let from = here.path();
    clone.git(&["clone", "--quiet", from.to_str().unwrap(), "."]);
    let told = server.say(&clone, &restore(&url, &[]), 0);
    assert!(told.contains("first `git merge --ff-only "), "{told}");
}

#[test]
fn the_last_upload_with_a_work_tree_is_never_deleted() {
    let server = Server::start();
    let here = repository(&server, "max_backups = 2");
    for iterations in ["1", "2"] {
        server.say(&here, &words(iterations), 3);
    }
    // This setting makes it impossible to create bundles.
    here.git(&["config", "extensions.partialClone", "nobody"]);
    for value in ["1", "2", "3"] {
        server.say(&here, &["state", "set", "plan", value], 0);
        let told = server.say(&here, &["state", "backup"], 0);
        assert!(
            told.contains("the backup does not contain the work tree"),
            "{told}"
        );
        assert!(
            told.contains("b; it does not contain the work tree"),
            "{told}"
        );
    }
    let copies = server.copies();
    let with_work: Vec<_> = copies
        .iter()
        .filter(|name| name.contains(".work."))
        .collect();
    assert_eq!((copies.len(), with_work.len()), (3, 1), "{copies:?}");
    let url = server.url();
    let listed = server.say(&here, &["state", "backups", "--from", &url], 0);
    assert_eq!(
        listed.matches("bytes, with a work tree").count(),
        1,
        "{listed}"
    );

    let there = Scratch::new();
    let told = server.say(&there, &restore(&url, &[]), 0);
    assert!(
        told.contains("warning: this backup has no work tree"),
        "{told}"
    );
    assert!(told.contains("without a work tree"), "{told}");
    assert!(!told.contains("the work tree is unchanged"), "{told}");
    let name = with_work[0].rsplit('/').next().unwrap();
    let name = name.split(".work.").next().unwrap();
    assert!(told.contains(&format!("or restore {name}")), "{told}");
    let told = server.say(&there, &restore(&url, &[name]), 0);
    assert!(told.contains("the work tree is restored"), "{told}");
    assert_eq!(
        there.read("work"),
        "1\n2\n",
        "the newest upload that contains the work tree"
    );
}

#[test]
fn a_new_upload_stays_despite_clocks_of_other_machines() {
    let server = Server::start();
    let here = repository(&server, "max_backups = 1");
    server.say(&here, &words("1"), 3);
    let before = server.copies();
    let [copy] = &*before else {
        panic!("{before:?}");
    };
    // This upload is from a machine with a clock that is ahead, after a restore of an older backup.
    let (name, end) = copy.split_once(".tar").unwrap();
    let (name, _) = name.rsplit_once('-').unwrap();
    let (name, _) = name.rsplit_once('-').unwrap();
    let ahead = format!("{name}-00000000000000009999-20991231T235959Z.tar{end}");
    fs::rename(server.s3.file(copy), server.s3.file(&ahead)).unwrap();
    server.say(&here, &["state", "set", "plan", "1"], 0);
    let told = server.say(&here, &["state", "backup"], 0);
    let taken = std::path::Path::new(told.lines().next().unwrap()).file_name();
    let taken = taken.unwrap().to_str().unwrap();
    let copies = server.copies();
    assert!(
        copies.len() == 1 && copies[0].contains(taken),
        "{taken}: {copies:?}"
    );
}

#[test]
fn existing_files_stay_and_are_named_in_a_restore() {
    let server = Server::start();
    let here = repository(&server, "");
    here.write("more.md", "more\n");
    here.git(&["add", "-A"]);
    here.git(&["commit", "--quiet", "-m", "more"]);
    server.say(&here, &words("1"), 3);
    let there = Scratch::new();
    with_identity(&there);
    there.write("tachikoma.toml", "[state]\nmax_backups = 3\n");
    there.write("prompt.md", here.read("prompt.md"));
    let url = server.url();
    let told = server.say(&there, &restore(&url, &[]), 0);
    assert!(
        told.contains("warning: these files were kept and differ from the backup: tachikoma.toml;"),
        "{told}"
    );
    assert!(
        told.contains("the work tree is restored, on main"),
        "{told}"
    );
    assert_eq!(there.read("tachikoma.toml"), "[state]\nmax_backups = 3\n");
    assert_eq!(there.read("more.md"), "more\n");
    let left = files(&there.path().join(".ralph/loops"));
    let bundle = left.keys().find(|path| path.ends_with("git-work.bundle"));
    assert_eq!(bundle, None, "the temporary file is no longer needed");
    server.say(&there, &words("2"), 3);
}

#[test]
fn a_work_tree_that_cannot_be_restored_is_an_error_and_commits_are_kept() {
    let server = Server::start();
    let here = repository(&server, "");
    server.say(&here, &words("1"), 3);
    let there = Scratch::new();
    let url = server.url();
    let without_git = server.tool(&there).env("PATH", "/nowhere");
    let ran = without_git.run(restore(&url, &[]));
    assert_eq!(ran.code(), Some(1), "{}", ran.snapshot());
    assert!(
        ran.stdout.contains("is restored at iteration 1"),
        "{}",
        ran.stdout
    );
    assert!(!ran.stdout.contains("goes on"), "{}", ran.stdout);
    assert!(
        ran.stderr.contains("error: the work tree was not restored"),
        "{}",
        ran.stderr
    );
    let bundles = files(&there.path().join(".ralph/loops"));
    let bundle = bundles
        .keys()
        .find(|path| path.ends_with("git-work.bundle"));
    let bundle = bundle
        .expect("the bundle is not deleted")
        .display()
        .to_string();
    let cloned = there.home().join("clone");
    there.git(&["clone", "--quiet", &bundle, cloned.to_str().unwrap()]);
    assert!(cloned.join("prompt.md").exists());
    // A purge deletes the bundle and the restored refs.
    server.say(&there, &["state", "clear", "--purge", "--yes"], 0);
    assert!(!there.path().join(".ralph/loops").exists());
}

#[test]
fn problems_of_the_upload_target_are_reported_at_the_start() {
    let server = Server::start();
    let here = repository(&server, "");
    let missing = here.home().join("missing");
    let url = format!("file://{}", missing.display());
    let text = crate::cloud_support::settings(&url, "");
    here.write("tachikoma.toml", text);
    let live = server.tool(&here).spawn(crate::support::run(
        &["--allow-dirty"],
        crate::support::BUSY,
    ));
    // The warning is printed before the first backup.
    await_until("the warning", SOON, || {
        format!("{}{}", live.stdout(), live.stderr()).contains("missing is not a directory")
    });
    kill(&here, live);

    // Unencrypted uploads from before encryption was turned on are named. Encrypted ones are not.
    let key = here.home().join("key");
    fs::write(
        &key,
        "AGE-SECRET-KEY-1GQ9778VQXMMJVE8SK7J6VT8UJ4HDQAJUVSFCWCM02D8GEWQ72PVQ2Y5J33\n",
    )
    .unwrap();
    let here = repository(&server, "");
    server.say(&here, &words("1"), 3);
    let more = format!(
        "encrypt = true\nencrypt_identity_file = \"{}\"",
        key.display()
    );
    here.write(
        "tachikoma.toml",
        crate::cloud_support::settings(&server.url(), &more),
    );
    let mut loud = words("2");
    loud.retain(|word| *word != "--quiet");
    let told = server.say(&here, &loud, 3);
    assert!(
        told.contains("copies of this loop in s3://bucket/a/b that are not encrypted: 1;"),
        "{told}"
    );
}

#[test]
fn a_refused_restoration_leaves_nothing_and_names_the_copy() {
    let server = Server::start();
    let here = repository(&server, "");
    server.say(&here, &words("1"), 3);
    let url = server.url();
    for copy in server.copies() {
        let path = server.s3.file(&copy);
        let mut bytes = fs::read(&path).unwrap();
        let at = bytes.len() / 2;
        bytes[at] ^= 1;
        fs::write(&path, bytes).unwrap();
    }
    let there = Scratch::new();
    let told = server.say(&there, &restore(&url, &[]), 1);
    assert!(told.contains("is not what its name says"), "{told}");
    assert!(!told.contains(".state-"), "{told}");
    assert!(!there.path().join(".ralph").exists(), "{told}");
    // The checksum of these uploads is correct, but their content is invalid.
    for copy in server.copies() {
        let path = server.s3.file(&copy);
        let (name, _) = copy.split_once(".sha256-").unwrap();
        let named = format!("{name}.sha256-{}", sha256(&path));
        fs::rename(path, server.s3.file(&named)).unwrap();
    }
    let told = server.say(&there, &restore(&url, &[]), 1);
    for copy in server.copies() {
        let (_, name) = copy.rsplit_once('/').unwrap();
        assert!(told.contains(name), "{told}");
    }
    assert!(!told.contains("is not what its name says"), "{told}");
    assert!(!told.contains(".state-"), "{told}");
    assert!(!there.path().join(".ralph").exists(), "{told}");
}

/// An unreadable directory, like `lost+found`, may be in the upload directory.
#[test]
fn an_unreadable_directory_beside_the_uploads_is_ignored() {
    let scratch = Scratch::new();
    let copies = scratch.home().join("copies");
    let closed = copies.join("lost+found");
    fs::create_dir_all(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
    let tool = tool_of_nobody(&scratch);
    let url = format!("file://{}", copies.display());
    let listed = tool.run(["state", "backups", "--from", &url]);
    assert_eq!(listed.code(), Some(0), "{}", listed.snapshot());
    assert!(
        listed.stdout.starts_with("no backup in "),
        "{}",
        listed.snapshot()
    );
}

#[test]
fn a_killed_restore_blocks_a_run_and_can_be_repeated() {
    let server = Server::start();
    let here = repository(&server, "");
    server.say(&here, &words("1"), 3);
    let url = server.url();
    let there = Scratch::new();
    with_identity(&there);
    let (hangs, go) = (there.home().join("hangs"), there.home().join("go"));
    let script = format!(
        "case \"$*\" in *'update-ref refs/heads/'*) : >{}; while [ ! -e {} ]; do sleep 0.02; done; exit 1;; esac",
        hangs.display(),
        go.display()
    );
    let slow = server
        .tool(&there)
        .env("PATH", path_with_git(&there, &script));
    let restoring = slow.spawn(restore(&url, &[]));
    await_until("git hangs", SOON, || hangs.exists());
    let pid = Pid::from_raw(i32::try_from(restoring.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    restoring.wait(SOON);
    fs::write(&go, "").unwrap();
    let told = server.say(&there, &words("2"), 2);
    assert!(told.contains("the work tree is incomplete"), "{told}");
    let told = server.say(&there, &restore(&url, &[]), 0);
    assert!(
        told.contains("the work tree is restored, on main"),
        "{told}"
    );
    server.say(&there, &words("2"), 3);
    assert_eq!(there.read("work"), "1\n2\n");
}
