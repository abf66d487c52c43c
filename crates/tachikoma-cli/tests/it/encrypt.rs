//! `state.encrypt`: no stored file is readable without the key.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tachikoma_testkit::{Live, Ran, Scratch, Tool, await_until};

use crate::git_support::sh;
use crate::support::{SOON, kill, loops, status_of_live, tachikoma};

/// Text that must not be readable in any file.
const CANARY: &str = "CaNaRy";

pub(crate) const KEY: &str =
    "AGE-SECRET-KEY-1GQ9778VQXMMJVE8SK7J6VT8UJ4HDQAJUVSFCWCM02D8GEWQ72PVQ2Y5J33";

/// An agent that prints the canary, writes it to files, names a test after it and leaves a note with it.
const AGENT: &str = "grep -rsq CaNa'R'y .ralph && touch ../found; echo CaNaRy words; echo x >>work; \
     \"$TACHIKOMA\" note 'remember CaNaRy' >&2; head -c 9000 /dev/zero | tr '\\0' y";

const GATE: &str = "[[gate]]\nname = 'tests'\nwhen = 'iteration'\n\
     command = '''printf 'TAP version 13\\n1..1\\nok 1 - CaNaRy\\n' '''\n";

/// Settings that reboot after each iteration, so that each has a hand-off.
const REBOOTS: &str =
    "[reboot]\nmin_reboot_interval = '0s'\n[reboot.triggers]\nafter_iterations = 1\n";

pub(crate) const ENCRYPTED: &str = "encrypt = true\nencrypt_identity_file = '../key.txt'\n";

/// Returns a directory with these `[state]` settings. The key file is outside of the directory.
pub(crate) fn with_state(state: &str) -> Scratch {
    let scratch = Scratch::new();
    configure(&scratch, state);
    scratch
}

pub(crate) fn configure(scratch: &Scratch, state: &str) {
    fs::write(outside(scratch, "key.txt"), format!("# a key\n{KEY}\n")).unwrap();
    let text = format!("[state]\n{state}\n{REBOOTS}{GATE}");
    scratch.write("tachikoma.toml", &text);
}

pub(crate) fn outside(scratch: &Scratch, name: &str) -> PathBuf {
    scratch.path().parent().unwrap().join(name)
}

pub(crate) fn tool(scratch: &Scratch) -> Tool<'_> {
    tachikoma(scratch).env("TACHIKOMA", env!("CARGO_BIN_EXE_tachikoma"))
}

pub(crate) fn words<'a>(iterations: &'a str, script: &'a str) -> Vec<&'a str> {
    let run = ["run", "--prompt-text", "do CaNaRy", "--delay", "0s"];
    let limit = ["--max-iterations", iterations, "--", "sh", "-c", script];
    run.into_iter().chain(limit).collect()
}

#[track_caller]
pub(crate) fn run_up_to(scratch: &Scratch, iterations: &str) -> Ran {
    let ran = tool(scratch).run(words(iterations, AGENT));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    ran
}

#[track_caller]
pub(crate) fn say(scratch: &Scratch, words: &[&str], code: i32) -> String {
    let ran = tool(scratch).run(words);
    assert_eq!(ran.code(), Some(code), "{words:?}: {}", ran.snapshot());
    format!("{}{}", ran.stdout, ran.stderr)
}

/// Returns all files below `.ralph` with their content.
pub(crate) fn kept(scratch: &Scratch) -> BTreeMap<PathBuf, Vec<u8>> {
    fn walk(dir: &Path, found: &mut BTreeMap<PathBuf, Vec<u8>>) {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                walk(&path, found);
            } else if let Ok(bytes) = fs::read(&path) {
                found.insert(path, bytes);
            }
        }
    }
    let mut found = BTreeMap::new();
    walk(&scratch.path().join(".ralph"), &mut found);
    found
}

fn holds_canary(bytes: &[u8]) -> bool {
    bytes
        .windows(CANARY.len())
        .any(|part| part == CANARY.as_bytes())
}

/// Returns the files in which the canary is readable, after decompression if they are compressed.
pub(crate) fn betrayers(scratch: &Scratch) -> Vec<PathBuf> {
    let kept = kept(scratch).into_iter();
    let betrays = |path: &Path, bytes: &[u8]| {
        let unpacked = path
            .extension()
            .is_some_and(|ending| ending == "zst")
            .then(|| {
                let mut text = Vec::new();
                let opened = tachikoma_loop_runner::store::compressed::open_named(
                    path,
                    &tachikoma_loop_runner::store::encryption::Encryption::plain(),
                );
                let _ = opened.map(|mut opened| opened.content.read_to_end(&mut text));
                text
            });
        holds_canary(bytes) || unpacked.is_some_and(|text| holds_canary(&text))
    };
    kept.filter(|(path, bytes)| betrays(path, bytes))
        .map(|(path, _)| path)
        .collect()
}

#[track_caller]
pub(crate) fn expect_nothing(scratch: &Scratch) {
    assert_eq!(betrayers(scratch), [] as [PathBuf; 0]);
    assert!(
        !outside(scratch, "found").exists(),
        "the agent found the canary in a stored file"
    );
}

/// Starts a loop with an agent that printed the canary and keeps running.
fn start(scratch: &Scratch) -> Live {
    let script = format!("{AGENT}; touch ../said; exec sleep 600");
    let live = tool(scratch).spawn(words("9", &script));
    await_until("the agent to speak", SOON, || {
        outside(scratch, "said").exists()
    });
    live
}

#[test]
fn the_canary_is_in_every_file_without_encryption() {
    let scratch = with_state("");
    run_up_to(&scratch, "3");
    say(&scratch, &["state", "set", "plan", "\"CaNaRy\""], 0);
    say(&scratch, &["state", "backup"], 0);
    let names: Vec<String> = betrayers(&scratch)
        .iter()
        .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
        .collect();
    for part in [
        "state.json",
        "journal-0001.jsonl",
        "000001.1.log",
        "000001.1-tests.log",
        "2.md",
        ".tar",
    ] {
        assert!(
            names.iter().any(|name| name.contains(part)),
            "{part}: {names:?}"
        );
    }
}

#[test]
fn no_stored_file_is_readable_without_the_key() {
    for compress in ["", "compress = true\n"] {
        let scratch = with_state(&format!("{ENCRYPTED}{compress}"));
        run_up_to(&scratch, "3");
        say(&scratch, &["state", "set", "plan", "\"CaNaRy\""], 0);
        say(&scratch, &["state", "backup"], 0);
        say(&scratch, &["note", "CaNaRy"], 1);
        expect_nothing(&scratch);
        // With the key, all commands can read the files.
        for words in [
            &["logs", "1"][..],
            &["events"],
            &["state", "show"],
            &["history"],
            &["state", "export"],
            &["checkpoint", "show"],
        ] {
            let told = tool(&scratch).run(words);
            assert_eq!(told.code(), Some(0), "{words:?}: {}", told.snapshot());
        }
        assert!(holds_canary(say(&scratch, &["logs", "1"], 0).as_bytes()));
        assert!(holds_canary(
            say(&scratch, &["state", "show", "--json"], 0).as_bytes()
        ));
        let told = say(&scratch, &["state", "verify"], 0);
        assert!(!told.contains("wrong"), "{told}");
        let told = say(&scratch, &["state", "backups"], 0);
        assert!(told.contains(".age: iteration 3"), "{told}");
    }
}

#[test]
fn a_killed_runner_leaves_no_plain_text_and_its_loop_continues() {
    let scratch = with_state(ENCRYPTED);
    let live = start(&scratch);
    expect_nothing(&scratch);
    kill(&scratch, live);
    expect_nothing(&scratch);
    let ran = run_up_to(&scratch, "2");
    assert!(ran.stderr.contains("interrupted"), "{}", ran.snapshot());
    expect_nothing(&scratch);
    assert_eq!(loops(&scratch).len(), 1);
}

#[test]
fn a_live_loop_answers_without_the_key() {
    let scratch = with_state(ENCRYPTED);
    let live = start(&scratch);
    fs::remove_file(outside(&scratch, "key.txt")).unwrap();
    let told = status_of_live(&scratch).stdout;
    assert!(told.contains("running"), "{told}");
    say(&scratch, &["note", "CaNaRy too"], 0);
    say(&scratch, &["stop", "--now"], 0);
    let ran = live.wait(SOON);
    assert_eq!(ran.code(), Some(5), "{}", ran.snapshot());
    expect_nothing(&scratch);
    say(&scratch, &["status"], 2);
}

#[test]
fn a_wrong_or_missing_key_is_refused_and_no_file_changes() {
    let scratch = with_state(ENCRYPTED);
    run_up_to(&scratch, "2");
    say(&scratch, &["state", "backup"], 0);
    let before = kept(&scratch);
    let wrong = |scratch: &Scratch| {
        fs::write(outside(scratch, "key.txt"), another_key()).unwrap();
    };
    let missing = |scratch: &Scratch| fs::remove_file(outside(scratch, "key.txt")).unwrap();
    let forgotten = |scratch: &Scratch| drop(scratch.write("tachikoma.toml", ""));
    let backup = before
        .keys()
        .find(|path| path.to_string_lossy().contains(".tar"))
        .unwrap();
    for spoil in [&wrong as &dyn Fn(&Scratch), &missing, &forgotten] {
        configure(&scratch, ENCRYPTED);
        spoil(&scratch);
        let run = words("3", AGENT);
        for words in [
            &run[..],
            &["run", "--new", "--prompt-text", "x", "--", "true"],
            &["status"],
            &["events"],
            &["history"],
            &["logs"],
            &["checkpoint", "show"],
            &["explain"],
            &["replay"],
            &["context"],
            &["state", "show"],
            &["state", "export"],
            &["state", "backup"],
            &["state", "backups"],
            &["state", "backups", "--json"],
            &["state", "restore", "--yes"],
            &["state", "restore", "--yes", backup.to_str().unwrap()],
            &["state", "set", "a", "1"],
            &["state", "clear"],
            &["state", "clear", "--purge", "--yes"],
        ] {
            let told = say(&scratch, words, 2);
            assert!(
                told.contains("it is encrypted") || told.contains("cannot be read"),
                "{words:?}: {told}"
            );
            assert_eq!(kept(&scratch), before, "{words:?}");
        }
        let told = say(&scratch, &["state", "verify"], 0);
        assert!(told.contains("all with a valid checksum"), "{told}");
        for kind in [
            "snapshot",
            "journal",
            "transcripts",
            "gates",
            "hand-offs",
            "backup",
        ] {
            assert!(told.contains(&format!("  {kind} ")), "{kind}: {told}");
        }
    }
    configure(&scratch, ENCRYPTED);
    run_up_to(&scratch, "3");
}

/// Returns a key that is not the key of the loop.
pub(crate) fn another_key() -> String {
    use age::secrecy::ExposeSecret as _;
    age::x25519::Identity::generate()
        .to_string()
        .expose_secret()
        .to_owned()
}

#[test]
fn encryption_can_be_turned_on_and_off() {
    let scratch = with_state("");
    run_up_to(&scratch, "2");
    say(&scratch, &["state", "backup"], 0);
    say(
        &scratch,
        &[
            "run",
            "--new",
            "--prompt-text",
            "CaNaRy",
            "--max-iterations",
            "1",
            "--delay",
            "0s",
            "--",
            "sh",
            "-c",
            "echo CaNaRy",
        ],
        3,
    );
    assert!(!betrayers(&scratch).is_empty());
    // These files exist in few loops, so the test creates them.
    let planted = [
        loops(&scratch)[0].join("prompts/0123abcd.md"),
        scratch.path().join(".ralph/quarantine/old"),
        scratch.path().join(".ralph/state.json.v1"),
    ];
    for path in &planted {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, CANARY).unwrap();
    }
    let shown = |scratch: &Scratch| say(scratch, &["state", "export"], 0).len();
    let before = shown(&scratch);

    configure(&scratch, ENCRYPTED);
    let _ = fs::remove_file(outside(&scratch, "found"));
    let ran = run_up_to(&scratch, "3");
    assert!(
        ran.stdout.contains("are encrypted now"),
        "{}",
        ran.snapshot()
    );
    expect_nothing(&scratch);
    assert!(
        shown(&scratch) > before,
        "the records from before the change are still readable"
    );
    let told = say(&scratch, &["state", "verify"], 0);
    assert!(!told.contains("wrong"), "{told}");
    let encrypted = kept(&scratch);
    let names: Vec<_> = encrypted
        .keys()
        .filter(|path| path.to_string_lossy().contains("/backups/"))
        .collect();
    assert!(
        !names.is_empty() && names.iter().all(|path| path.extension().unwrap() == "age"),
        "{names:?}"
    );

    configure(&scratch, "encrypt_identity_file = '../key.txt'\n");
    let ran = run_up_to(&scratch, "5");
    assert!(
        ran.stdout.contains("in clear text now"),
        "{}",
        ran.snapshot()
    );
    for path in &planted {
        assert_eq!(fs::read_to_string(path).unwrap(), CANARY);
    }
    fs::remove_file(outside(&scratch, "key.txt")).unwrap();
    configure_plain(&scratch);
    let told = say(&scratch, &["state", "verify"], 0);
    assert!(
        !told.contains("wrong") && !told.contains("encrypted"),
        "{told}"
    );
    assert!(holds_canary(say(&scratch, &["logs", "1"], 0).as_bytes()));
}

fn configure_plain(scratch: &Scratch) {
    scratch.write("tachikoma.toml", format!("{REBOOTS}{GATE}"));
}

#[test]
fn an_encrypted_backup_is_restored_here_and_elsewhere() {
    let scratch = with_state(ENCRYPTED);
    run_up_to(&scratch, "2");
    let told = say(&scratch, &["state", "backup"], 0);
    let backup = scratch.path().join(told.trim());
    run_up_to(&scratch, "3");
    say(
        &scratch,
        &["state", "restore", "--yes", backup.to_str().unwrap()],
        0,
    );
    expect_nothing(&scratch);
    run_up_to(&scratch, "4");
    expect_nothing(&scratch);

    let elsewhere = with_state(ENCRYPTED);
    say(
        &elsewhere,
        &["state", "restore", "--yes", backup.to_str().unwrap()],
        0,
    );
    expect_nothing(&elsewhere);
    let told = say(&elsewhere, &["status"], 0);
    assert!(told.contains("iteration  2"), "{told}");
    run_up_to(&elsewhere, "3");
    expect_nothing(&elsewhere);
}

#[test]
fn snapshot_and_backup_can_be_decrypted_with_the_key_alone() {
    let scratch = with_state(ENCRYPTED);
    run_up_to(&scratch, "1");
    let told = say(&scratch, &["state", "backup"], 0);
    let identity: age::x25519::Identity = KEY.parse().unwrap();
    let open = |path: &Path| age::decrypt(&identity, &fs::read(path).unwrap()).unwrap();
    let snapshot = open(&scratch.path().join(".ralph/state.json.age"));
    let snapshot: serde_json::Value = serde_json::from_slice(&snapshot).unwrap();
    assert_eq!(snapshot["core"]["iteration"], 1);
    let backup = open(&scratch.path().join(told.trim()));
    assert!(backup.starts_with(b"manifest.json") && holds_canary(&backup));
}

#[test]
fn a_passphrase_decrypts_and_no_child_of_the_runner_gets_it() {
    let scratch = with_state("encrypt = true\n");
    let with = |words: &str| tool(&scratch).env("TACHIKOMA_STATE_PASSPHRASE", words);
    let script = "env >../env; echo CaNaRy; echo x >>work";
    let none = tool(&scratch).run(words("1", script));
    assert_eq!(none.code(), Some(2), "{}", none.snapshot());
    assert!(
        none.stderr.contains("no key to encrypt with is configured"),
        "{}",
        none.snapshot()
    );
    assert!(
        !scratch.path().join(".ralph").exists(),
        "no file was changed"
    );
    let ran = with("open sesame").run(words("1", script));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let env = fs::read_to_string(outside(&scratch, "env")).unwrap();
    assert!(
        env.contains("TACHIKOMA_ITERATION") && !env.contains("PASSPHRASE"),
        "{env}"
    );
    expect_nothing(&scratch);
    let before = kept(&scratch);
    let wrong = with("open barley").run(words("2", script));
    assert_eq!(wrong.code(), Some(2), "{}", wrong.snapshot());
    assert!(
        wrong.stderr.contains("the passphrase does not unlock it"),
        "{}",
        wrong.snapshot()
    );
    assert_eq!(kept(&scratch), before);
    let path = scratch.write("../words", "open sesame\n");
    let file = tool(&scratch).env("TACHIKOMA_STATE__ENCRYPT_PASSPHRASE_FILE", "../words");
    let ran = file.run(words("2", script));
    assert_eq!(ran.code(), Some(2), "{}", ran.snapshot());
    let readable = "other users may access it (mode 644); run `chmod 600 ";
    assert!(ran.stderr.contains(readable), "{}", ran.snapshot());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let ran = file.run(words("2", script));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    fs::remove_file(&path).unwrap();
    sh(&scratch, "mkfifo -m 600 ../words");
    let ran = file.run(["status"]);
    assert!(
        ran.stderr.contains("it is not a regular file"),
        "{}",
        ran.snapshot()
    );
}

#[test]
fn a_passphrase_and_a_notification_secret_are_both_hidden_from_the_agent() {
    let notify = "[[notify]]\nto = 'webhook'\nurl_env = 'HOOK'\non = ['error']\n";
    let scratch = with_state(&format!("encrypt = true\n{notify}"));
    let ran = tool(&scratch)
        .env("TACHIKOMA_STATE_PASSPHRASE", "open sesame")
        .env("HOOK", "http://127.0.0.1:9/canary")
        .run(words("1", "env >../env; echo x >>work"));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let env = fs::read_to_string(outside(&scratch, "env")).unwrap();
    assert!(!env.contains("sesame") && !env.contains("canary"), "{env}");
}
