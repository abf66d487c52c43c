//! Changed or missing keys combined with damaged files, or with files that were encrypted for a lost key.

use std::fs;
use std::path::{Path, PathBuf};

use tachikoma_testkit::Scratch;

use crate::encrypt::{
    ENCRYPTED, KEY, another_key, configure, kept, outside, run_up_to, say, tool, with_state, words,
};
use crate::encrypt_keys::{keys, public};
use crate::support::loops;

const GOES_ON: &str = "`tachikoma run` continues it";

/// Flips a byte in the middle of a line or of the file. Returns the new content.
fn flip(path: &Path, line: Option<usize>) -> Vec<u8> {
    let mut bytes = fs::read(path).unwrap();
    let at = match line {
        None => bytes.len() - 20,
        Some(line) => {
            let lines: Vec<usize> = bytes
                .split_inclusive(|byte| *byte == b'\n')
                .map(<[u8]>::len)
                .collect();
            lines[..line - 1].iter().sum::<usize>() + lines[line - 1] / 2
        }
    };
    bytes[at] ^= 1;
    fs::write(path, &bytes).unwrap();
    bytes
}

fn is_kept(scratch: &Scratch, bytes: &[u8]) -> bool {
    let mut kept = kept(scratch).into_iter();
    kept.any(|(path, there)| path.to_string_lossy().contains("/quarantine/") && there == bytes)
}

/// Changes the key of a loop: one run has both keys, then the old key is removed.
struct Rotating {
    held: String,
}

impl Rotating {
    fn turn(&mut self, scratch: &Scratch, iterations: &str) -> String {
        let new = another_key();
        keys(scratch, &[&new, &self.held], &new);
        let ran = run_up_to(scratch, iterations);
        keys(scratch, &[&new], &new);
        self.held = new;
        ran.stdout
    }
}

fn in_loop(dir: &Path, part: &str) -> PathBuf {
    let entries = fs::read_dir(dir).unwrap().flatten();
    let mut found = entries.map(|entry| entry.path());
    found
        .find(|path| path.to_string_lossy().contains(part))
        .unwrap_or_else(|| panic!("no {part} in {}", dir.display()))
}

/// A loop with a damaged segment continues after its key is changed.
#[test]
fn a_damaged_journal_survives_a_change_of_keys() {
    let scratch = with_state(ENCRYPTED);
    run_up_to(&scratch, "2");
    let dir = loops(&scratch)[0].clone();
    let mut keys = Rotating {
        held: KEY.to_owned(),
    };
    let hurt = flip(&dir.join("journal-0001.jsonl"), Some(5));
    let said = keys.turn(&scratch, "3");
    assert!(
        said.contains("damaged files could be decrypted in part"),
        "{said}"
    );
    assert!(is_kept(&scratch, &hurt), "{:?}", kept(&scratch).keys());
    let told = say(&scratch, &["state", "verify"], 1);
    assert!(
        told.contains("wrong journal") && told.contains(GOES_ON),
        "{told}"
    );
    // The undamaged records are still readable.
    let told = say(&scratch, &["events"], 0);
    assert!(told.contains("starts: agent command"), "{told}");
    // A closed segment is encrypted as a single age file.
    keys.turn(&scratch, "4");
    let closed = in_loop(&dir, "journal-0002.jsonl");
    let hurt = flip(&closed, None);
    keys.turn(&scratch, "5");
    assert!(is_kept(&scratch, &hurt), "{:?}", kept(&scratch).keys());
    let ran = run_up_to(&scratch, "6");
    assert!(!ran.stdout.contains("open whole"), "{}", ran.snapshot());
    say(&scratch, &["status"], 0);
    say(&scratch, &["state", "clear", "--purge", "--yes"], 0);
}

#[test]
fn a_damaged_journal_survives_when_encryption_is_turned_off() {
    let scratch = with_state(ENCRYPTED);
    run_up_to(&scratch, "2");
    let dir = loops(&scratch)[0].clone();
    let hurt = flip(&dir.join("journal-0001.jsonl"), Some(5));
    configure(&scratch, "encrypt_identity_file = '../key.txt'\n");
    run_up_to(&scratch, "3");
    assert!(is_kept(&scratch, &hurt), "{:?}", kept(&scratch).keys());
    scratch.write("tachikoma.toml", "");
    fs::remove_file(outside(&scratch, "key.txt")).unwrap();
    let told = say(&scratch, &["state", "verify"], 1);
    assert!(told.contains(GOES_ON), "{told}");
    run_up_to(&scratch, "4");
}

/// Damage in an archived loop, its transcripts and hand-offs does not affect the running loop.
#[test]
fn damage_in_an_archived_loop_does_not_block_a_change_of_keys() {
    let scratch = with_state(ENCRYPTED);
    run_up_to(&scratch, "2");
    let dir = loops(&scratch)[0].clone();
    say(&scratch, &["state", "clear"], 0);
    run_up_to(&scratch, "1");
    let id = dir.file_name().unwrap();
    let sessions = scratch.path().join(".ralph/sessions").join(id);
    let hurt = [
        (dir.join("journal-0001.jsonl"), Some(5)),
        (dir.join("archived.json"), None),
        (in_loop(&dir.join("checkpoints"), ".md"), None),
        (in_loop(&dir.join("gates"), ".log"), Some(2)),
        (in_loop(&sessions, "000001.1.log"), None),
    ]
    .map(|(path, line)| flip(&path, line));
    let status = || say(&scratch, &["status", "--json"], 0);
    let current = |status: String| {
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        status["loop_id"].clone()
    };
    let before = current(status());
    let mut keys = Rotating {
        held: KEY.to_owned(),
    };
    let said = keys.turn(&scratch, "2");
    assert!(
        said.contains("5 damaged files could be decrypted in part"),
        "{said}"
    );
    for bytes in hurt {
        assert!(is_kept(&scratch, &bytes), "{:?}", kept(&scratch).keys());
    }
    let told = say(&scratch, &["state", "verify"], 1);
    assert!(told.contains(GOES_ON), "{told}");
    let ran = run_up_to(&scratch, "3");
    assert!(!ran.stdout.contains("encrypted to"), "{}", ran.snapshot());
    assert_eq!(current(status()), before);
}

/// The files of an archived loop are encrypted for a lost key.
#[test]
fn an_archived_loop_without_its_key_does_not_block_other_loops() {
    let scratch = with_state(ENCRYPTED);
    run_up_to(&scratch, "2");
    let dir = loops(&scratch)[0].clone();
    say(&scratch, &["state", "clear"], 0);
    let lost: Vec<_> = ["journal-0001.jsonl", "archived.json"]
        .map(|name| (dir.join(name), fs::read(dir.join(name)).unwrap()))
        .into();
    // If no file can be decrypted at all, the configured key is reported as wrong.
    let new = another_key();
    keys(&scratch, &[&new], &new);
    say(&scratch, &words("1", "true"), 2);
    keys(&scratch, &[&new, KEY], &new);
    run_up_to(&scratch, "1");
    keys(&scratch, &[&new], &new);
    let put_back = || {
        for (path, bytes) in &lost {
            fs::write(path, bytes).unwrap();
        }
    };
    put_back();
    let told = say(&scratch, &["state", "verify"], 0);
    assert!(told.contains("that key is not configured"), "{told}");
    let ran = run_up_to(&scratch, "2");
    assert!(
        ran.stdout.contains("2 files of loops here are encrypted"),
        "{}",
        ran.snapshot()
    );
    say(&scratch, &["state", "backup"], 0);
    say(&scratch, &["state", "restore", "--yes"], 0);
    // A loop without encryption is not blocked by the archived loop either.
    scratch.write(
        "tachikoma.toml",
        "[state]\nencrypt_identity_file = '../key.txt'\n",
    );
    run_up_to(&scratch, "3");
    put_back();
    scratch.write("tachikoma.toml", "");
    run_up_to(&scratch, "4");
    say(&scratch, &["state", "clear", "--purge", "--yes"], 0);
    assert!(!scratch.path().join(".ralph").exists());
}

/// A loop that cannot be decrypted is not damaged, so a restore must not move it away.
#[test]
fn a_restore_is_refused_if_the_current_loop_cannot_be_decrypted() {
    let plain = with_state("");
    run_up_to(&plain, "1");
    let told = say(&plain, &["state", "backup"], 0);
    let backup = plain.path().join(told.trim());
    let scratch = with_state(ENCRYPTED);
    run_up_to(&scratch, "2");
    fs::remove_file(scratch.path().join(".ralph/state.json.age")).unwrap();
    fs::write(outside(&scratch, "key.txt"), another_key()).unwrap();
    let before = kept(&scratch);
    let restore = ["state", "restore", "--yes", backup.to_str().unwrap()];
    let told = say(&scratch, &restore, 2);
    assert!(told.contains("that key is not configured"), "{told}");
    assert_eq!(kept(&scratch), before);
    configure(&scratch, ENCRYPTED);
    say(&scratch, &restore, 0);
}

fn backups(scratch: &Scratch) -> Vec<PathBuf> {
    let names = fs::read_dir(scratch.path().join(".ralph/backups")).unwrap();
    let mut names: Vec<_> = names.flatten().map(|entry| entry.path()).collect();
    names.sort();
    names
}

fn encrypted_to(key: &str, bytes: &[u8]) -> Vec<u8> {
    let recipient: age::x25519::Recipient = public(key).parse().unwrap();
    age::encrypt(&recipient, bytes).unwrap()
}

#[test]
fn a_readable_backup_is_preferred_to_an_older_one_without_its_key() {
    let scratch = with_state(&format!("{ENCRYPTED}max_backups = 0\n"));
    run_up_to(&scratch, "1");
    say(&scratch, &["state", "backup"], 0);
    let old = backups(&scratch);
    run_up_to(&scratch, "2");
    say(&scratch, &["state", "backup"], 0);
    for path in &old {
        fs::write(path, encrypted_to(&another_key(), b"x")).unwrap();
    }
    let told = say(&scratch, &["state", "restore", "--yes"], 0);
    assert!(told.contains("restored at iteration 2"), "{told}");
    // If the newest backup cannot be decrypted, the restore is refused, because the user may want that one.
    run_up_to(&scratch, "3");
    let told = say(&scratch, &["state", "backup"], 0);
    let newest = scratch.path().join(told.trim());
    fs::write(&newest, encrypted_to(&another_key(), b"x")).unwrap();
    let before = kept(&scratch);
    let told = say(&scratch, &["state", "restore", "--yes"], 2);
    assert!(
        told.contains(&*newest.file_name().unwrap().to_string_lossy())
            && told.contains("`tachikoma state restore FILE`"),
        "{told}"
    );
    assert_eq!(kept(&scratch), before);
}

/// The runner was killed while it turned encryption off, and the key is lost.
#[test]
fn a_readable_backup_is_kept_beside_one_with_its_name_that_cannot_be_decrypted() {
    let scratch = with_state("");
    run_up_to(&scratch, "1");
    say(&scratch, &["state", "backup"], 0);
    let plain = backups(&scratch).remove(0);
    let bytes = fs::read(&plain).unwrap();
    let encrypted = PathBuf::from(format!("{}.age", plain.display()));
    let locked = encrypted_to(&another_key(), &bytes);
    fs::write(&encrypted, &locked).unwrap();
    configure(&scratch, ENCRYPTED);
    run_up_to(&scratch, "2");
    assert_eq!(fs::read(&plain).unwrap(), bytes);
    assert_eq!(fs::read(&encrypted).unwrap(), locked);
    fs::write(&encrypted, encrypted_to(KEY, &bytes)).unwrap();
    run_up_to(&scratch, "3");
    assert!(!plain.exists(), "both backups have the same content");
    let told = say(
        &scratch,
        &["state", "restore", "--yes", encrypted.to_str().unwrap()],
        0,
    );
    assert!(told.contains("restored at iteration 1"), "{told}");
}

/// The file name is authenticated together with the encrypted content.
#[test]
fn a_transcript_that_was_swapped_with_another_is_rejected() {
    let scratch = with_state(ENCRYPTED);
    let script = "echo said in $TACHIKOMA_ITERATION; echo x >>work";
    let ran = tool(&scratch).run(words("2", script));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let dir = loops(&scratch)[0].clone();
    let sessions = scratch
        .path()
        .join(".ralph/sessions")
        .join(dir.file_name().unwrap());
    fs::copy(sessions.join("000001.1.log"), sessions.join("000002.1.log")).unwrap();
    let told = say(&scratch, &["logs", "1"], 0);
    assert!(told.contains("said in 1"), "{told}");
    let told = say(&scratch, &["logs", "2"], 1);
    assert!(
        told.contains("and renamed later") && !told.contains("said in"),
        "{told}"
    );
    let told = say(&scratch, &["state", "verify"], 1);
    assert!(told.contains("and renamed later"), "{told}");
}
