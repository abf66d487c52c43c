//! Bundles of real repositories, and temporary files of processes that died.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use tachikoma_testkit::Scratch;

use super::*;
use tachikoma_config::Settings;

fn work_of(scratch: &Scratch) -> BundleSource {
    BundleSource {
        working_dir: scratch.path(),
        loop_id: LoopId::from_u128(7),
        search_path: std::env::var_os("PATH"),
        hidden: Vec::new(),
        bounds: Bounds::of(&Settings::default(), &scratch.path()),
    }
}

fn bundle(scratch: &Scratch, dir: &Path) -> Bundled {
    work_of(scratch).bundle(dir, &|| ChangeOwner::Others, &CancelToken::new())
}

fn whole(path: &Path) -> Bundled {
    Bundled::At {
        path: path.to_owned(),
        without_tree: None,
    }
}

fn repository() -> (Scratch, tempfile::TempDir) {
    let scratch = Scratch::with_git();
    scratch.write("a", "a");
    scratch.git(&["add", "-A"]);
    scratch.git(&["commit", "--quiet", "-m", "before"]);
    (scratch, tempfile::tempdir().unwrap())
}

#[test]
fn unfinished_bundles_of_dead_processes_are_removed() {
    let (scratch, dir) = repository();
    let left = [
        format!("{NAME}.{}.lock", "0a".repeat(16)),
        format!("{NAME}.{}", "0b".repeat(16)),
    ];
    for name in &left {
        assert!(crate::is_ours_in_loop(name), "{name}");
        fs::write(dir.path().join(name), "").unwrap();
    }
    let bundled = bundle(&scratch, dir.path());
    let path = dir.path().join(NAME);
    assert_eq!(bundled, whole(&path));
    let mode = path.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // Recent files are kept, because another process may be writing them.
    assert!(left.iter().all(|name| dir.path().join(name).exists()));
    let now = path.metadata().unwrap().modified().unwrap();
    let hour_ago = now - Duration::from_secs(3_600);
    for name in &left {
        let file = File::options().write(true).open(dir.path().join(name));
        file.unwrap().set_modified(hour_ago).unwrap();
    }
    scratch.git(&["commit", "--quiet", "--allow-empty", "-m", "more"]);
    let bundled = bundle(&scratch, dir.path());
    assert_eq!(bundled, whole(&path));
    assert!(!left.iter().any(|name| dir.path().join(name).exists()));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
}

#[test]
fn foreign_file_names_are_not_bundles() {
    for name in [
        "git-work.bundle.mine",
        "git-work.bundle.lock",
        "git-work.bundles",
    ] {
        assert!(!crate::is_ours_in_loop(name), "{name}");
    }
}

#[test]
fn restore_keeps_existing_files_and_creates_the_others() {
    let (scratch, dir) = repository();
    scratch.write(".gitignore", "*.env\n");
    for name in [
        "same",
        "other",
        "ignored.env",
        "file/inside",
        "link/inside",
        "deep/er/free",
    ] {
        scratch.write(name, "of the backup");
    }
    scratch.git(&["add", "-A", "-f"]);
    scratch.git(&["commit", "--quiet", "-m", "all"]);
    let Bundled::At { path, .. } = bundle(&scratch, dir.path()) else {
        panic!("no bundle");
    };
    let there = Scratch::new();
    there.write("same", "of the backup");
    for name in ["other", "ignored.env", "file"] {
        there.write(name, "mine");
    }
    let elsewhere = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), there.path().join("link")).unwrap();
    fs::create_dir(there.path().join("deep")).unwrap();
    let Ok(Unpacked::Made { in_the_way, .. }) = unpack(&work_of(&there), &path, dir.path(), 0)
    else {
        panic!("a repository is created");
    };
    let in_the_way = in_the_way.expect("existing files differ from the backup");
    let mut paths = in_the_way.paths;
    paths.sort();
    assert_eq!(
        paths,
        ["file/inside", "ignored.env", "link/inside", "other"]
    );
    for name in ["other", "ignored.env", "file"] {
        assert_eq!(there.read(name), "mine", "{name}");
    }
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    assert_eq!(there.read("deep/er/free"), "of the backup");
    assert_eq!(there.read("a"), "a");
    there.git(&["checkout", "--quiet", &in_the_way.commit, "--", "other"]);
    assert_eq!(there.read("other"), "of the backup");
}

fn id_of(path: &Path) -> u64 {
    std::os::unix::fs::MetadataExt::ino(&path.metadata().unwrap())
}

#[test]
fn bundle_has_the_work_tree_and_is_packed_once() {
    let (scratch, dir) = repository();
    let path = dir.path().join(NAME);
    let tree = copied_ref(LoopId::from_u128(7));
    assert_eq!(bundle(&scratch, dir.path()), whole(&path));
    assert_eq!(
        scratch.git(&["rev-parse", &tree]),
        scratch.git(&["rev-parse", "HEAD"])
    );
    scratch.write("a", "changed");
    scratch.write("new", "new");
    scratch.write(".env", "secret");
    scratch.git(&["add", "new"]);
    let staged = scratch.git(&["ls-files", "-s"]);
    assert_eq!(bundle(&scratch, dir.path()), whole(&path));
    let (commit, made) = (scratch.git(&["rev-parse", &tree]), id_of(&path));
    assert_eq!(scratch.git(&["ls-tree", "--name-only", &tree]), "a\nnew\n");
    assert_eq!(bundle(&scratch, dir.path()), whole(&path));
    assert_eq!(scratch.git(&["rev-parse", &tree]), commit);
    assert_eq!(id_of(&path), made, "the existing bundle is used again");
    assert_eq!(scratch.git(&["ls-files", "-s"]), staged);

    let there = Scratch::new();
    let unpacked = unpack(&work_of(&there), &path, dir.path(), 0);
    let Ok(Unpacked::Made { from_snapshot, .. }) = unpacked else {
        panic!("{unpacked:?}");
    };
    assert!(from_snapshot);
    assert_eq!(
        (there.read("a"), there.read("new")),
        ("changed".into(), "new".into())
    );
    assert_eq!(there.git(&["status", "--porcelain"]), " M a\n?? new\n");
}

#[test]
fn bundle_without_the_work_tree_reports_why() {
    let (scratch, dir) = repository();
    scratch.write("a", "changed");
    let path = dir.path().join(NAME);
    assert_eq!(bundle(&scratch, dir.path()), whole(&path));
    let mut settings = Settings::default();
    settings.git.protected = vec!["[".to_owned()];
    let work = BundleSource {
        bounds: Bounds::of(&settings, &scratch.path()),
        ..work_of(&scratch)
    };
    let bundled = work.bundle(dir.path(), &|| ChangeOwner::Others, &CancelToken::new());
    let lacks = bundled.lacks().expect("the reason is reported");
    assert!(
        lacks.starts_with("uncommitted changes: pattern `[`"),
        "{lacks}"
    );
    let heads = scratch.git(&["bundle", "list-heads", path.to_str().unwrap()]);
    assert!(!heads.contains("/copied"), "{heads}");
    let there = Scratch::new();
    assert!(unpack(&work_of(&there), &path, dir.path(), 0).is_ok());
    assert_eq!(there.read("a"), "a");
}

/// The agent makes a commit after the survey and before the bundle. Restoring the surveyed work tree would undo that commit.
#[test]
fn restore_uses_head_if_the_work_tree_in_the_bundle_is_older() {
    let (scratch, dir) = repository();
    scratch.write("a", "changed");
    let path = dir.path().join(NAME);
    assert_eq!(bundle(&scratch, dir.path()), whole(&path));
    scratch.write("a", "committed");
    scratch.git(&["commit", "--quiet", "-a", "-m", "more"]);
    let late = dir.path().join("late");
    let glob = format!("--glob={}", snapshots::below(LoopId::from_u128(7)));
    let args = [
        "bundle",
        "create",
        "-q",
        late.to_str().unwrap(),
        "HEAD",
        &glob,
    ];
    scratch.git(&args);
    let there = Scratch::new();
    assert!(unpack(&work_of(&there), &late, dir.path(), 0).is_ok());
    assert_eq!(there.read("a"), "committed");
    assert_eq!(there.git(&["status", "--porcelain"]), "");
}

#[test]
fn unreadable_bundle_creates_no_repository() {
    let there = Scratch::new();
    let bundle = there.home().join("bundle");
    fs::write(&bundle, "rot").unwrap();
    unpack(&work_of(&there), &bundle, &there.home(), 0).unwrap_err();
    assert_eq!(fs::read_dir(there.path()).unwrap().count(), 0);
}

#[test]
fn damaged_bundle_is_packed_again() {
    let (scratch, dir) = repository();
    let path = dir.path().join(NAME);
    assert_eq!(bundle(&scratch, dir.path()), whole(&path));
    for spoilt in [&b""[..], b"rot"] {
        fs::write(&path, spoilt).unwrap();
        assert_eq!(bundle(&scratch, dir.path()), whole(&path));
        scratch.git(&["bundle", "verify", "-q", path.to_str().unwrap()]);
    }
}

/// Git leaves out references that change while it packs, without an error.
#[test]
fn bundle_is_packed_again_if_references_change_meanwhile() {
    let (scratch, dir) = repository();
    scratch.write("a", "changed");
    let bin = scratch.home().join("bin");
    fs::create_dir(&bin).unwrap();
    let real = scratch.git(&["--exec-path"]);
    let real = format!("{}/git", real.trim());
    let once = scratch.home().join("once");
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *'bundle create'*) [ -e {once} ] || {{ : >{once}; {real} commit -qam moved; }};; esac\nexec {real} \"$@\"\n",
        once = once.display(),
    );
    scratch.write_script(bin.join("git"), &script);
    let work = BundleSource {
        search_path: Some(bin.into_os_string()),
        ..work_of(&scratch)
    };
    let path = dir.path().join(NAME);
    let bundled = work.bundle(dir.path(), &|| ChangeOwner::Others, &CancelToken::new());
    assert_eq!(bundled, whole(&path));
    assert!(once.exists());
    let heads = scratch.git(&["bundle", "list-heads", path.to_str().unwrap()]);
    let tree = copied_ref(LoopId::from_u128(7));
    let head = scratch.git(&["rev-parse", "HEAD"]);
    for name in ["HEAD", tree.as_str()] {
        let line = format!("{} {name}", head.trim());
        assert!(heads.lines().any(|there| there == line), "{line}: {heads}");
    }
}

#[test]
fn interrupted_restore_of_a_work_tree_can_be_repeated() {
    let (scratch, dir) = repository();
    scratch.write("a", "changed");
    let path = dir.path().join(NAME);
    assert_eq!(bundle(&scratch, dir.path()), whole(&path));
    let there = Scratch::new();
    there.git(&["init", "-q"]);
    let work = work_of(&there);
    let git = Git::new(&there.path(), None);
    let mark = there.path().join(".git").join(MARK);
    fs::write(&mark, "").unwrap();
    assert!(unpack::fetch(&work, &git, &path, 0).is_ok());
    let made = unpack(&work, &path, dir.path(), 0);
    assert!(matches!(made, Ok(Unpacked::Made { .. })), "{made:?}");
    assert_eq!(there.read("a"), "changed");
    assert!(!mark.exists());
    // After the first restore, the directory has an ordinary repository, so a second restore only fetches.
    let again = unpack(&work, &path, dir.path(), 0);
    assert!(matches!(again, Ok(Unpacked::Fetched { .. })), "{again:?}");
    // A repository in a parent directory is not used for the restore.
    let inside = BundleSource {
        working_dir: there.path().join("inside"),
        ..work
    };
    fs::create_dir(&inside.working_dir).unwrap();
    let refused = unpack(&inside, &path, dir.path(), 0).unwrap_err();
    assert!(
        refused.contains("the directory is inside another repository"),
        "{refused}"
    );
}

#[test]
fn replaced_snapshot_references_are_renamed() {
    let (scratch, dir) = repository();
    let below = snapshots::below(LoopId::from_u128(7));
    let at = |name: &str| format!("{below}/{name}");
    for name in ["2", "3"] {
        scratch.git(&["update-ref", &at(name), "HEAD"]);
    }
    let path = dir.path().join(NAME);
    assert_eq!(bundle(&scratch, dir.path()), whole(&path));
    let (there, _dir) = repository();
    there.git(&["commit", "--quiet", "--amend", "-m", "other"]);
    let own = there.git(&["rev-parse", "HEAD"]);
    for name in ["1", "2", "before-rollback-1"] {
        there.git(&["update-ref", &at(name), "HEAD"]);
    }
    unpack(&work_of(&there), &path, dir.path(), 2).unwrap();
    let theirs = scratch.git(&["rev-parse", "HEAD"]);
    for (name, commit) in [
        ("1", &own),
        ("2", &theirs),
        ("before-rollback-1", &own),
        ("before-restore-1/2", &own),
        // The second restore gives the replaced references another name.
        ("before-restore-2/3", &theirs),
    ] {
        assert_eq!(there.git(&["rev-parse", &at(name)]), *commit, "{name}");
    }
    let all = there.git(&["for-each-ref", "--format=%(refname)", &below]);
    assert!(!all.contains(&format!("{below}/3\n")), "{all}");
}
