//! Bundles of real repositories, beside makers that died.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use tachikoma_testkit::Scratch;

use super::*;

fn work_of(scratch: &Scratch) -> Work {
    Work {
        working_dir: scratch.path(),
        loop_id: LoopId::from_u128(7),
        search_path: std::env::var_os("PATH"),
        hidden: Vec::new(),
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
fn what_a_maker_left_that_died_is_in_nobodys_way() {
    let (scratch, dir) = repository();
    let left = [
        format!("{NAME}.lock"),
        format!("{NAME}.{}.lock", "0a".repeat(16)),
        format!("{NAME}.{}", "0b".repeat(16)),
    ];
    for name in &left {
        assert!(is_ours_in_loop(name), "{name}");
        fs::write(dir.path().join(name), "").unwrap();
    }
    let bundled = work_of(&scratch).bundle(dir.path(), &CallOff::new());
    let path = dir.path().join(NAME);
    assert_eq!(bundled, Bundled::At(path.clone()));
    let mode = path.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // Somebody may be at it.
    assert!(left.iter().all(|name| dir.path().join(name).exists()));
    let now = path.metadata().unwrap().modified().unwrap();
    let hour_ago = now - Duration::from_secs(3_600);
    for name in &left {
        let file = fs::File::options().write(true).open(dir.path().join(name));
        file.unwrap().set_modified(hour_ago).unwrap();
    }
    scratch.git(&["commit", "--quiet", "--allow-empty", "-m", "more"]);
    let bundled = work_of(&scratch).bundle(dir.path(), &CallOff::new());
    assert_eq!(bundled, Bundled::At(path));
    assert!(!left.iter().any(|name| dir.path().join(name).exists()));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
}

#[test]
fn only_names_of_ours_are_ours() {
    for name in [
        "git-work.bundle.mine",
        "git-work.bundle.lock.lock",
        "git-work.bundles",
    ] {
        assert!(!is_ours_in_loop(name), "{name}");
    }
}

#[test]
fn what_is_in_the_way_stays_and_all_else_is_made() {
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
    let Bundled::At(bundle) = work_of(&scratch).bundle(dir.path(), &CallOff::new()) else {
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
    let Ok(Unpacked::Made { in_the_way, .. }) = work_of(&there).unpack(&bundle) else {
        panic!("it is made");
    };
    let in_the_way = in_the_way.expect("some are in the way");
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
