//! Uploads to a real S3 server that dies, is full, is slow or refuses requests.

use std::time::Duration;

use tachikoma_testkit::s3::{KEY, Misbehavior};
use tachikoma_testkit::{Scratch, await_until};

use crate::cloud_support::{Server, incidents, repository, settings, sha256, up_to};
use crate::support::{SOON, await_events, files, kill, loops, run};

/// Time limit for an upload with retries. The retries wait for half a minute in total.
const PATIENT: Duration = Duration::from_secs(90);

/// Returns a loop that ended after one iteration. Uploads are enabled after its end.
fn with_history(server: &Server, more: &str) -> Scratch {
    let scratch = crate::support::with_history();
    scratch.write("tachikoma.toml", settings(&server.url(), more));
    scratch
}

/// Arguments of a run that continues the loop up to the given iteration.
fn go_on(iterations: &str) -> Vec<&str> {
    let words = up_to(iterations);
    words[..words.len() - 1].to_vec()
}

#[test]
fn backups_are_uploaded_and_old_uploads_deleted() {
    let server = Server::start();
    let scratch = with_history(&server, "max_backups = 2");
    for name in [
        "notes.tar",
        "loop_00000000-0000-0000-0000-000000000001-00000000000000000001-20200101T000000Z.tar",
    ] {
        let path = server.s3.file(&format!("a/b/{name}"));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "mine").unwrap();
    }
    for iterations in ["2", "3"] {
        server.say(&scratch, &go_on(iterations), 3);
    }
    // Each run uploads a backup at its end, and one at its start unless the backup of the end replaces it in the queue.
    let recorded = incidents(&scratch, "cloud_copied");
    assert!((2..=4).contains(&recorded.len()), "{recorded:?}");
    assert_eq!(incidents(&scratch, "cloud_failed").len(), 0);
    let copies = server.copies();
    assert_eq!(copies.len(), 2 + 2, "{copies:?}");
    // The newest upload has the size that its record states.
    let newest = recorded.last().unwrap();
    let object = copies
        .iter()
        .find(|copy| copy.contains(newest["name"].as_str().unwrap()));
    let object = object.expect("the newest is there");
    let status = server.say(&scratch, &["status", "--json"], 0);
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let last = &status["copies"]["last"];
    assert_eq!(
        (&last["name"], &last["bytes"]),
        (&newest["name"], &newest["bytes"])
    );
    assert_eq!(status["copies"]["failed"], serde_json::Value::Null);
    let digest = sha256(&server.s3.file(object));
    assert!(object.ends_with(&format!(".sha256-{digest}")), "{object}");
    let url = server.url();
    let told = server.say(&scratch, &["state", "backups", "--from", &url], 0);
    assert_eq!(told.lines().count(), 2, "{told}");
    assert!(told.contains(": record "), "{told}");
}

#[test]
fn an_upload_does_not_cause_another_backup() {
    let server = Server::start();
    let scratch = Scratch::new();
    let more = "backup_interval = \"50ms\"\nmax_backups = 0";
    scratch.write("tachikoma.toml", settings(&server.url(), more));
    let live = server.tool(&scratch).spawn(run(&[], crate::support::BUSY));
    await_events(&scratch, "agent_launched", 1);
    // A newer backup replaces a pending one, so some are not uploaded, but the newest one always is.
    let settled = || {
        let backups = files(&scratch.path().join(".ralph/backups"));
        let newest = backups.keys().next_back()?.file_name()?.to_str()?;
        let journal = loops(&scratch)[0].join("journal-0001.jsonl");
        let journal = std::fs::read_to_string(journal).ok()?;
        let mut lines = journal.lines();
        let launched = lines.position(|line| line.contains("\"agent_launched\""))?;
        let last = lines.next_back()?;
        // The record of the upload is newer than the last backup, so another backup is due.
        let record: usize = newest.get(42..62)?.parse().ok()?;
        if record <= launched {
            return None;
        }
        let is_copied = last.contains("\"cloud_copied\"") && last.contains(newest);
        is_copied.then_some(backups.len())
    };
    await_until("the newest to be copied", SOON, || settled().is_some());
    let before = settled();
    // After many intervals without events there is no further upload.
    let sent = || {
        // The periodic check of the object store is not an upload.
        let asked = server.s3.asked().into_iter();
        asked.filter(|asked| asked.starts_with("PUT")).count()
    };
    let sent_before = sent();
    for _ in 0..5 {
        server.say(&scratch, &["status"], 0);
    }
    assert_eq!(settled(), before);
    assert_eq!(sent(), sent_before);
    kill(&scratch, live);
}

#[test]
fn a_manual_backup_is_uploaded_and_a_full_server_is_reported() {
    let server = Server::start();
    let scratch = with_history(&server, "");
    let told = server.say(&scratch, &["state", "backup"], 0);
    assert!(
        told.contains("note: the backup was uploaded to s3://bucket/a/b"),
        "{told}"
    );
    assert_eq!(server.copies().len(), 1);
    server
        .s3
        .behave(Misbehavior::Refuses(507, "InsufficientStorage"));
    let told = server.say(&scratch, &["state", "backup"], 1);
    assert!(
        told.contains(
            "the backup was taken but not uploaded: s3://bucket/a/b: InsufficientStorage"
        ),
        "{told}"
    );
    assert_eq!(files(&scratch.path().join(".ralph/backups")).len(), 2);
    assert_eq!(server.copies().len(), 1);
}

#[test]
fn an_upload_to_a_full_server_is_retried() {
    let server = Server::start();
    let scratch = with_history(&server, "");
    server
        .s3
        .behave(Misbehavior::Refuses(507, "InsufficientStorage"));
    let live = server
        .tool(&scratch)
        .spawn(run(&["--max-iterations", "9"], "exec sleep 600"));
    await_until("the server to be asked", SOON, || {
        server
            .s3
            .asked()
            .iter()
            .any(|asked| asked.starts_with("PUT"))
    });
    // The loop works during the retries.
    await_events(&scratch, "agent_launched", 2);
    server.s3.behave(Misbehavior::None);
    await_until("the copy", PATIENT, || server.copies().len() == 1);
    await_until("its record", SOON, || {
        incidents(&scratch, "cloud_copied").len() == 1
    });
    assert_eq!(incidents(&scratch, "cloud_failed").len(), 0);
    kill(&scratch, live);
}

#[test]
fn wrong_credentials_are_reported_once_and_delay_nothing() {
    let server = Server::start();
    let scratch = with_history(&server, "");
    let wrong = server
        .tool(&scratch)
        .env("AWS_SECRET_ACCESS_KEY", "hunter2hunter2");
    let ran = wrong.run(go_on("2"));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let failed = incidents(&scratch, "cloud_failed");
    // The backup at the end fails, and so does the one at the start unless the backup of the end replaced it in the queue.
    assert!((1..=2).contains(&failed.len()), "{failed:?}");
    assert_eq!(failed[0]["attempts"], 1, "{failed:?}");
    let error = failed[0]["error"].as_str().unwrap();
    assert!(error.contains("SignatureDoesNotMatch"), "{error}");
    let said = server.say(&scratch, &["status"], 0);
    let so = format!(
        "copies     none yet; failed since, {} in a row",
        failed.len()
    );
    assert!(said.contains(&so), "{said}");
    for (path, bytes) in files(&scratch.path().join(".ralph")) {
        let text = String::from_utf8_lossy(&bytes);
        for secret in ["hunter2", KEY.1] {
            assert!(!text.contains(secret), "{}", path.display());
        }
    }
    assert!(!ran.snapshot().contains("hunter2"), "{}", ran.snapshot());
    assert_eq!(server.copies(), [] as [String; 0]);
}

#[test]
fn a_wrong_clock_is_reported() {
    let server = Server::start();
    let scratch = with_history(&server, "");
    server
        .s3
        .behave(Misbehavior::Refuses(403, "RequestTimeTooSkewed"));
    server.say(&scratch, &go_on("2"), 3);
    let failed = incidents(&scratch, "cloud_failed");
    assert_eq!(failed[0]["attempts"], 1, "{failed:?}");
    let error = failed[0]["error"].as_str().unwrap();
    assert!(error.contains("RequestTimeTooSkewed"), "{error}");
}

#[test]
fn a_slow_server_delays_the_loop_only_at_the_last_upload() {
    let server = Server::start();
    let scratch = with_history(&server, "");
    server.s3.behave(Misbehavior::Slow(Duration::from_secs(3)));
    server.say(&scratch, &go_on("6"), 3);
    let journal = crate::support::lines(&scratch);
    let at = |mark: &str| journal.iter().position(|line| line.contains(mark));
    let ended = journal
        .iter()
        .rposition(|line| line.contains("\"limit_reached\""));
    let copied = at("\"cloud_copied\"").expect("a copy");
    assert!(Some(copied) > ended, "{journal:#?}");
    assert!(ended.is_some(), "{journal:#?}");
    // The backup at the end is uploaded last, whether or not it replaced a pending one.
    let last = incidents(&scratch, "cloud_copied").pop().unwrap();
    let newest = files(&scratch.path().join(".ralph/backups"))
        .into_keys()
        .max();
    let newest = newest.unwrap().file_name().unwrap().to_owned();
    assert_eq!(last["name"].as_str(), newest.to_str());
}

#[test]
fn an_upload_succeeds_without_the_right_to_list() {
    let server = Server::start();
    let scratch = with_history(&server, "");
    server.s3.behave(Misbehavior::ListsNothing);
    server.say(&scratch, &go_on("2"), 3);
    let newest = files(&scratch.path().join(".ralph/backups"))
        .into_keys()
        .max();
    let newest = newest.unwrap().file_name().unwrap().to_owned();
    let last = incidents(&scratch, "cloud_copied").pop();
    assert_eq!(last.unwrap()["name"].as_str(), newest.to_str());
    assert_eq!(incidents(&scratch, "cloud_failed").len(), 0);
}

#[test]
fn an_upload_to_a_server_that_dies_meanwhile_is_repeated_and_stored_once() {
    let mut server = Server::start();
    let scratch = repository(&server, "");
    // The server stores parts under long file names, which limits the prefix.
    scratch.write("tachikoma.toml", settings("s3://bucket", ""));
    // These random bytes do not compress and need more than three parts of an upload.
    let noise: Vec<u8> = (0..16_u32 << 20)
        .scan(1_u64, |seed, _| {
            *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            Some((*seed >> 56) as u8)
        })
        .collect();
    scratch.write("noise", noise);
    scratch.git(&["add", "-A"]);
    scratch.git(&["commit", "--quiet", "-m", "noise"]);
    server.s3.behave(Misbehavior::DiesAtPart(2));
    let words = run(&["--allow-dirty", "--max-iterations", "1"], "true");
    let live = server.tool(&scratch).spawn(words);
    // The server dies during the upload of the last backup.
    await_until("the server to die", SOON, || server.s3.is_dead());
    server.s3.revive();
    let ran = live.wait(PATIENT);
    assert_eq!(
        incidents(&scratch, "cloud_copied").len(),
        1,
        "{}",
        ran.snapshot()
    );
    let copies = server.copies();
    assert_eq!(copies.len(), 1, "{copies:?}");
    let file = server.s3.file(&copies[0]);
    assert!(file.metadata().unwrap().len() > 16 << 20);
    assert!(copies[0].ends_with(&format!(".sha256-{}", sha256(&file))));
}

#[test]
fn an_address_with_a_password_is_refused_and_not_repeated() {
    let scratch = Scratch::new();
    scratch.write("tachikoma.toml", settings("s3://me:hunter2@bucket/x", ""));
    let ran = crate::support::tachikoma(&scratch).run(run(&[], "true"));
    assert_eq!(ran.code(), Some(2), "{}", ran.snapshot());
    assert!(
        ran.stderr
            .contains("must not contain a user name or a password"),
        "{}",
        ran.stderr
    );
    assert!(!ran.snapshot().contains("hunter2"), "{}", ran.snapshot());
    let from = ["state", "backups", "--from", "s3://me:hunter2@bucket/x"];
    let ran = crate::support::tachikoma(&scratch).run(from);
    assert_eq!(ran.code(), Some(2), "{}", ran.snapshot());
    assert!(!ran.snapshot().contains("hunter2"), "{}", ran.snapshot());
}

#[test]
fn a_missing_upload_directory_is_a_warning() {
    let scratch = crate::support::with_history();
    let place = scratch.home().join("copies");
    let url = format!("file://{}", place.display());
    scratch.write("tachikoma.toml", settings(&url, ""));
    let say = |words: &[&str]| crate::support::tachikoma(&scratch).run(words);
    say(&go_on("2"));
    let failed = incidents(&scratch, "cloud_failed");
    assert!(
        failed[0]["error"]
            .as_str()
            .unwrap()
            .ends_with("is not a directory"),
        "{failed:?}"
    );
    assert!(!place.exists());
    std::fs::create_dir(&place).unwrap();
    say(&go_on("3"));
    // The backup of the start is copied too, unless the backup of the end replaced it in the queue.
    let copies = files(&place).len();
    assert!(matches!(copies, 1 | 2), "{copies}");
    let backups = files(&scratch.path().join(".ralph/backups"));
    let newest = backups.keys().next_back().unwrap().file_name().unwrap();
    let newest = newest.to_str().unwrap();
    let is_it = |path: &std::path::PathBuf| path.to_string_lossy().contains(newest);
    assert!(files(&place).keys().any(is_it), "{newest}");
    let listed = say(&["state", "backups", "--from", &url, "--json"]).json();
    assert_eq!(
        listed["backups"].as_array().unwrap().len(),
        copies,
        "{listed}"
    );
}
