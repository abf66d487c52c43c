//! Changed, missing and wrong keys.

use std::fs;

use tachikoma_loop_runner::store::compressed;
use tachikoma_loop_runner::store::encryption::{Encryption, KeySource, is_encrypted};
use tachikoma_loop_runner::store::is_locked;
use tachikoma_testkit::Scratch;

use crate::encrypt::{
    ENCRYPTED, KEY, another_key, betrayers, configure, expect_nothing, kept, outside, run_up_to,
    say, tool, with_state, words,
};
use crate::support::loops;

pub(crate) fn public(key: &str) -> String {
    let identity: age::x25519::Identity = key.parse().unwrap();
    identity.to_public().to_string()
}

/// Writes the given keys to the identity file and sets one recipient.
pub(crate) fn keys(scratch: &Scratch, held: &[&str], recipient: &str) {
    fs::write(outside(scratch, "key.txt"), held.join("\n")).unwrap();
    let text = format!(
        "[state]\n{ENCRYPTED}encrypt_recipients = ['{}']\n",
        public(recipient)
    );
    scratch.write("tachikoma.toml", text);
}

#[test]
fn a_changed_key_reencrypts_all_files_and_the_old_key_is_not_needed() {
    let scratch = with_state(ENCRYPTED);
    run_up_to(&scratch, "2");
    say(&scratch, &["state", "backup"], 0);
    let new = another_key();
    keys(&scratch, &[&new, KEY], &new);
    let ran = run_up_to(&scratch, "3");
    assert!(
        ran.stdout.contains("to the keys of today"),
        "{}",
        ran.snapshot()
    );
    keys(&scratch, &[&new], &new);
    let told = say(&scratch, &["state", "verify"], 0);
    assert!(!told.contains("not here"), "{told}");
    let told = say(&scratch, &["state", "backups"], 0);
    assert!(told.contains("good"), "{told}");
    let ran = run_up_to(&scratch, "4");
    assert!(!ran.stdout.contains("rewritten"), "{}", ran.snapshot());
    // The old key decrypts nothing.
    keys(&scratch, &[KEY], KEY);
    let told = say(&scratch, &["status"], 2);
    assert!(told.contains(&public(&new)), "{told}");
    let encryption = Encryption::new(KeySource {
        identity_file: Some(outside(&scratch, "key.txt")),
        ..KeySource::default()
    });
    let mut encrypted = 0;
    for path in kept(&scratch).into_keys().filter(|path| is_encrypted(path)) {
        let opened = compressed::open_named(&path, &encryption);
        let error = opened.err();
        assert!(error.is_some_and(|e| is_locked(&e)), "{}", path.display());
        encrypted += 1;
    }
    assert!(encrypted > 5, "{:?}", kept(&scratch).keys());
    expect_nothing(&scratch);
}

#[test]
fn files_for_another_key_are_left_unchanged_and_counted() {
    let scratch = with_state(ENCRYPTED);
    run_up_to(&scratch, "2");
    let theirs: age::x25519::Identity = another_key().parse().unwrap();
    let encrypted = age::encrypt(&theirs.to_public(), b"CaNaRy").unwrap();
    let kept = kept(&scratch);
    let is_transcript = |name: &str| name.contains("/sessions/") && name.contains("/000001.1.log");
    let mut paths = kept.keys();
    let transcript = paths.find(|path| is_transcript(&path.to_string_lossy()));
    let transcript = transcript.unwrap();
    fs::write(transcript, &encrypted).unwrap();
    let new = another_key();
    keys(&scratch, &[&new, KEY], &new);
    let ran = run_up_to(&scratch, "3");
    let stay = "1 files of loops here are encrypted to keys that are not here, and stay so";
    assert!(ran.stdout.contains(stay), "{}", ran.snapshot());
    assert_eq!(fs::read(transcript).unwrap(), encrypted);
}

#[test]
fn a_segment_with_a_missing_key_is_not_reported_as_damaged() {
    let scratch = with_state(ENCRYPTED);
    run_up_to(&scratch, "2");
    let old = loops(&scratch)[0].join("journal-0001.jsonl");
    let encrypted = fs::read(&old).unwrap();
    let new = another_key();
    keys(&scratch, &[&new, KEY], &new);
    run_up_to(&scratch, "3");
    // Restores the old file, as if an earlier version that does not re-encrypt files had left it.
    fs::write(&old, encrypted).unwrap();
    keys(&scratch, &[&new], &new);
    let before = kept(&scratch);
    let lossy = [
        &words("4", "true")[..1],
        &["--accept-loss"],
        &words("4", "true")[1..],
    ]
    .concat();
    for words in [&words("4", "true")[..], &lossy, &["events"], &["history"]] {
        let told = say(&scratch, words, 2);
        assert!(
            told.contains("it is encrypted for age1")
                && !told.contains("damaged")
                && !told.contains("accept-loss"),
            "{words:?}: {told}"
        );
        assert_eq!(kept(&scratch), before, "{words:?}");
    }
    let told = say(&scratch, &["state", "verify"], 0);
    assert!(
        told.contains("that key is not configured") && !told.contains("wrong"),
        "{told}"
    );
}

#[test]
fn a_damaged_line_has_the_same_number_with_the_key_and_without() {
    let scratch = with_state(ENCRYPTED);
    run_up_to(&scratch, "2");
    let path = loops(&scratch)[0].join("journal-0001.jsonl");
    let mut lines: Vec<String> = fs::read_to_string(&path)
        .unwrap()
        .split_inclusive('\n')
        .map(str::to_owned)
        .collect();
    lines[6] = lines[6].replace("\"box\":\"", "\"box\":\"A");
    fs::write(&path, lines.concat()).unwrap();
    for spoil in [false, true] {
        if spoil {
            fs::remove_file(outside(&scratch, "key.txt")).unwrap();
        }
        let told = say(&scratch, &["state", "verify"], 1);
        assert!(told.contains("damaged at line 7"), "{told}");
    }
}

#[test]
fn damage_to_encrypted_lines_is_found_without_the_key() {
    let scratch = with_state(ENCRYPTED);
    run_up_to(&scratch, "2");
    fs::remove_file(outside(&scratch, "key.txt")).unwrap();
    let path = loops(&scratch)[0].join("journal-0001.jsonl");
    let good = fs::read(&path).unwrap();
    let lines: Vec<&[u8]> = good.split_inclusive(|byte| *byte == b'\n').collect();
    let last = lines.len() - 1;
    let mut flipped = good.clone();
    flipped[good.len() / 2] ^= 1;
    let dropped = [&lines[..4], &lines[5..]].concat().concat();
    let swapped = [&lines[..4], &[lines[5], lines[4]], &lines[6..]].concat();
    let spoilt = [&good[..good.len() - 1], b" more"].concat();
    for (bytes, what) in [
        (flipped, "damaged at line"),
        (dropped, "damaged at line 5: record 5 follows record 3"),
        (
            swapped.concat(),
            "damaged at line 5: record 5 follows record 3",
        ),
        (spoilt, "there is data after the record"),
    ] {
        fs::write(&path, bytes).unwrap();
        let told = say(&scratch, &["state", "verify"], 1);
        assert!(
            told.contains("wrong journal") && told.contains(what),
            "{what}: {told}"
        );
    }
    let clear = scratch.path().join(".ralph/sessions");
    let clear = clear.join(loops(&scratch)[0].file_name().unwrap());
    fs::write(clear.join("000009.1.log"), "x").unwrap();
    // An incomplete last line, left by a killed writer, is not damage.
    let torn = good.len() - lines[last].len() / 2;
    for (bytes, what) in [
        (&good[..torn], "its last line is incomplete"),
        (&good, "all with a valid checksum"),
    ] {
        fs::write(&path, bytes).unwrap();
        let told = say(&scratch, &["state", "verify"], 0);
        assert!(told.contains(what) && !told.contains("wrong"), "{told}");
        assert!(told.contains("000009.1.log: not encrypted"), "{told}");
    }
}

#[test]
fn a_change_from_passphrase_to_key_reencrypts_all_files() {
    let scratch = with_state("encrypt = true\n");
    let with = |scratch| tool(scratch).env("TACHIKOMA_STATE_PASSPHRASE", "open sesame");
    let script = "echo x >>work";
    let ran = with(&scratch).run(words("1", script));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    configure(&scratch, ENCRYPTED);
    let ran = with(&scratch).run(words("2", script));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    run_up_to(&scratch, "3");
    let told = say(&scratch, &["state", "verify"], 0);
    assert!(!told.contains("not here"), "{told}");
}

#[test]
fn files_of_an_encrypted_backup_are_restored_encrypted() {
    let scratch = with_state(ENCRYPTED);
    run_up_to(&scratch, "2");
    let told = say(&scratch, &["state", "backup"], 0);
    let backup = scratch.path().join(told.trim());
    let backup = backup.to_str().unwrap();
    let elsewhere = Scratch::new();
    let key = outside(&scratch, "key.txt");
    let told = tool(&elsewhere)
        .env("TACHIKOMA_STATE__ENCRYPT_IDENTITY_FILE", &key)
        .run(["state", "restore", "--yes", backup]);
    assert_eq!(told.code(), Some(0), "{}", told.snapshot());
    assert_eq!(betrayers(&elsewhere), [] as [std::path::PathBuf; 0]);
    say(&elsewhere, &["status"], 2);
    // An unencrypted loop is restored into a directory with a passphrase.
    let plain = with_state("");
    run_up_to(&plain, "1");
    let told = say(&plain, &["state", "backup"], 0);
    let backup = plain.path().join(told.trim());
    let told = say(
        &scratch,
        &["state", "restore", "--yes", backup.to_str().unwrap()],
        0,
    );
    assert!(told.contains("is not encrypted although"), "{told}");
    expect_nothing(&scratch);
}

#[test]
fn a_passphrase_restores_a_loop_on_another_machine_and_after_a_purge() {
    let scratch = with_state("encrypt = true\nbackup_dir = '../copies'\n");
    let with = |scratch| tool(scratch).env("TACHIKOMA_STATE_PASSPHRASE", "open sesame");
    let ran = with(&scratch).run(words("2", "echo x >>work"));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let taken = with(&scratch).run(["state", "backup"]);
    let copy = outside(&scratch, "copy.tar.age");
    fs::copy(scratch.path().join(taken.stdout.trim()), &copy).unwrap();
    let copy = copy.to_str().unwrap();
    let purged = with(&scratch).run(["state", "clear", "--purge", "--yes"]);
    assert_eq!(purged.code(), Some(0), "{}", purged.snapshot());
    for there in [&scratch, &Scratch::new()] {
        let told = with(there).run(["state", "restore", "--yes", copy]);
        assert_eq!(told.code(), Some(0), "{}", told.snapshot());
        assert_eq!(betrayers(there), [] as [std::path::PathBuf; 0]);
        let told = with(there).run(["status"]);
        assert!(told.stdout.contains("iteration  2"), "{}", told.snapshot());
    }
}

#[test]
fn invalid_settings_are_reported_instead_of_a_missing_key() {
    let scratch = with_state(ENCRYPTED);
    run_up_to(&scratch, "1");
    scratch.write(
        "tachikoma.toml",
        format!("nonsense = 1\n[state]\n{ENCRYPTED}"),
    );
    let told = say(&scratch, &["status"], 2);
    assert!(
        told.contains("`nonsense`") && !told.contains("no key"),
        "{told}"
    );
    configure(&scratch, ENCRYPTED);
    fs::remove_file(outside(&scratch, "key.txt")).unwrap();
    let told = say(&scratch, &["state", "verify"], 0);
    assert!(told.contains("the identity cannot be read from"), "{told}");
    let told = say(&scratch, &["status"], 2);
    assert!(!told.contains("delete"), "{told}");
    let again = ["run", "--new", "--prompt-text", "x", "--", "true"];
    for words in [&["state", "clear", "--yes"][..], &again] {
        let told = say(&scratch, words, 2);
        assert!(told.contains("if a key is lost"), "{told}");
    }
}

#[test]
fn a_key_in_the_repository_is_refused_and_generated_keys_are_git_ignored() {
    let scratch = with_state("encrypt = true\nencrypt_identity_file = 'sub/key.txt'\n");
    scratch.write("sub/key.txt", KEY);
    scratch.git(&["init", "-q"]);
    scratch.git(&["config", "user.name", "n"]);
    scratch.git(&["config", "user.email", "n@example.org"]);
    let ran = tool(&scratch).run(words("1", "true"));
    assert_eq!(ran.code(), Some(2), "{}", ran.snapshot());
    assert!(
        ran.stderr.contains("is in the repository of the loop"),
        "{}",
        ran.snapshot()
    );
    assert!(
        !scratch.path().join(".ralph").exists(),
        "no file was changed"
    );
    fs::remove_dir_all(scratch.path().join("sub")).unwrap();
    configure(&scratch, "encrypt = true\ncompress = true\n");
    let with = |scratch| tool(scratch).env("TACHIKOMA_STATE_PASSPHRASE", "open sesame");
    fs::create_dir(scratch.path().join(".ralph")).unwrap();
    // An earlier version wrote the `.gitignore` file like this.
    scratch.write(
        ".ralph/.gitignore",
        "/lock\n/state.json\n/state.json.zst.v*\n",
    );
    let ran = with(&scratch).run(words("1", "true"));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert!(scratch.path().join(".ralph/identity.age").exists());
    assert_eq!(scratch.git(&["status", "--porcelain", "--", ".ralph"]), "");
}

#[test]
fn an_incomplete_file_of_a_killed_conversion_is_removed() {
    let scratch = with_state(ENCRYPTED);
    run_up_to(&scratch, "2");
    let loop_dir = loops(&scratch)[0].clone();
    let id = loop_dir.file_name().unwrap().to_owned();
    let sessions = scratch.path().join(".ralph/sessions").join(id);
    let half = format!(".state-{}.tmp", "0".repeat(32));
    let dirs = [
        loop_dir.join("checkpoints"),
        loop_dir.join("gates"),
        sessions,
    ];
    let lay = || {
        for dir in &dirs {
            fs::write(dir.join(&half), "CaNaRy").unwrap();
        }
    };
    lay();
    let _ = fs::remove_file(outside(&scratch, "found"));
    let ran = tool(&scratch).run(words("3", "true"));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    expect_nothing(&scratch);
    lay();
    say(&scratch, &["state", "clear", "--purge", "--yes"], 0);
    assert!(
        !scratch.path().join(".ralph").exists(),
        "{:?}",
        kept(&scratch).keys()
    );
}

/// Agent output that looks encrypted is shown as text, and is encrypted when encryption is turned on.
#[test]
fn text_that_looks_encrypted_is_treated_as_text() {
    for beginning in ["age-encryption.org/v1", "{\"sealed\":1}"] {
        let scratch = with_state("");
        let script = format!("echo '{beginning}'; echo CaNaRy words; echo x >>work");
        let ran = tool(&scratch).run(words("1", &script));
        assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
        let told = say(&scratch, &["logs"], 0);
        assert!(told.contains("CaNaRy words"), "{told}");
        say(&scratch, &["state", "verify"], 0);
        configure(&scratch, ENCRYPTED);
        run_up_to(&scratch, "2");
        expect_nothing(&scratch);
    }
}

/// When encryption is turned off, the text is decrypted, and the key is no longer needed.
#[test]
fn text_that_looks_encrypted_survives_turning_encryption_off() {
    for beginning in ["age-encryption.org/v1", "{\"sealed\":1}"] {
        let scratch = with_state(ENCRYPTED);
        let script = format!("echo '{beginning}'; echo CaNaRy words; echo x >>work");
        let ran = tool(&scratch).run(words("1", &script));
        assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
        configure(&scratch, "encrypt_identity_file = '../key.txt'\n");
        run_up_to(&scratch, "2");
        scratch.write("tachikoma.toml", "");
        fs::remove_file(outside(&scratch, "key.txt")).unwrap();
        let told = say(&scratch, &["logs", "1"], 0);
        assert!(
            told.contains(beginning) && told.contains("CaNaRy words"),
            "{told}"
        );
        run_up_to(&scratch, "3");
    }
}
