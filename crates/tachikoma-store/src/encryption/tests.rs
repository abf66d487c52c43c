//! Encryption with the right key, a wrong key and no key, and of damaged or renamed files.

use std::io::{Cursor, Read as _};
use std::path::Path;

use tachikoma_core::Timestamp;

use super::keys::KeySource;
use super::lines::{LineEncryptor, OnDamage};
use super::*;

const KEY: &str = "AGE-SECRET-KEY-1GQ9778VQXMMJVE8SK7J6VT8UJ4HDQAJUVSFCWCM02D8GEWQ72PVQ2Y5J33";

/// Returns an `Encryption` that encrypts new files. Uses a new key if none is given.
pub fn recipient_set(dir: &Path, key: Option<&str>) -> Encryption {
    let generated = age::x25519::Identity::generate();
    let text = age::secrecy::ExposeSecret::expose_secret(&generated.to_string()).to_owned();
    let file = dir.join("key.txt");
    std::fs::write(&file, key.map_or(text, str::to_owned)).unwrap();
    Encryption::new(KeySource {
        encrypt: true,
        identity_file: Some(file),
        ..KeySource::default()
    })
}

/// Returns the content of an encrypted file with three lines.
fn three(encryption: &Encryption) -> Vec<u8> {
    let begun = LineEncryptor::begin(encryption, "a".to_owned(), Timestamp::default());
    let (line_encryptor, mut bytes) = begun.unwrap().unwrap();
    for (seq, piece) in [(1, "one\n"), (2, "two\n"), (3, "three\n")] {
        line_encryptor.encrypt(seq, piece.as_bytes(), &mut bytes);
    }
    bytes
}

fn read(encryption: &Encryption, bytes: Vec<u8>, on_damage: OnDamage) -> io::Result<String> {
    let mut text = Vec::new();
    let mut content = encryption.decrypt(Cursor::new(bytes), on_damage)?.content;
    content.read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn age_file_can_be_decrypted_with_its_key_alone() {
    let dir = tempfile::tempdir().unwrap();
    let encryption = recipient_set(dir.path(), Some(KEY));
    let encrypted = encryption.encrypt(b"secret").unwrap().into_owned();
    assert!(!encrypted.windows(6).any(|six| six == b"secret"));
    let read_by = |encryption: &Encryption| read(encryption, encrypted.clone(), OnDamage::Fail);
    assert_eq!(read_by(&encryption).unwrap(), "secret");
    let identity: age::x25519::Identity = KEY.parse().unwrap();
    assert_eq!(age::decrypt(&identity, &encrypted).unwrap(), b"secret");
    let other = tempfile::tempdir().unwrap();
    for encryption in [Encryption::plain(), recipient_set(other.path(), None)] {
        assert!(is_locked(&read_by(&encryption).unwrap_err()));
    }
}

#[test]
fn every_flipped_bit_and_truncation_of_an_age_file_is_detected() {
    let dir = tempfile::tempdir().unwrap();
    let encryption = recipient_set(dir.path(), None);
    let encrypted = encryption.encrypt(b"secret").unwrap().into_owned();
    let begins = AGE.len();
    for at in begins..encrypted.len() {
        let mut hurt = encrypted.clone();
        hurt[at] ^= 1;
        let error = read(&encryption, hurt, OnDamage::Fail).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "byte {at}: {error}");
        let cut = encrypted[..at].to_vec();
        let error = read(&encryption, cut, OnDamage::Fail).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "cut at {at}: {error}");
    }
}

#[test]
fn encrypted_lines_are_read_in_order_and_an_incomplete_line_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let encryption = recipient_set(dir.path(), None);
    let bytes = three(&encryption);
    let all = read(&encryption, bytes.clone(), OnDamage::Fail).unwrap();
    assert_eq!(all, "one\ntwo\nthree\n");
    let torn = bytes[..bytes.len() - 20].to_vec();
    assert_eq!(
        read(&encryption, torn, OnDamage::Fail).unwrap(),
        "one\ntwo\n"
    );
    let unended = bytes[..bytes.len() - 1].to_vec();
    let text = read(&encryption, unended, OnDamage::Pass).unwrap();
    assert_eq!(text, "one\ntwo\nthree", "only the last line end is missing");
}

#[test]
fn changed_moved_and_foreign_lines_cannot_be_decrypted() {
    let dir = tempfile::tempdir().unwrap();
    let encryption = recipient_set(dir.path(), None);
    let ours = three(&encryption);
    let theirs = three(&encryption);
    let split = |bytes: &[u8]| -> Vec<Vec<u8>> {
        let lines = bytes.split_inclusive(|byte| *byte == b'\n');
        lines.map(<[u8]>::to_vec).collect()
    };
    let (ours, theirs) = (split(&ours), split(&theirs));
    let renumbered = {
        let text = String::from_utf8(ours[1].clone()).unwrap();
        let (body, _) = text.rsplit_once(",\"crc\"").unwrap();
        let body = body.replace("\"seq\":1", "\"seq\":2");
        let crc = crc32c::crc32c(body.as_bytes());
        format!("{body},\"crc\":\"{crc:08x}\"}}\n").into_bytes()
    };
    for (what, second) in [
        ("of another file", &theirs[2]),
        ("of another place", &renumbered),
    ] {
        let bytes = [&*ours[0], &*ours[1], second, &*ours[3]].concat();
        let error = read(&encryption, bytes.clone(), OnDamage::Fail).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{what}");
        let passed = read(&encryption, bytes, OnDamage::Pass).unwrap();
        let lines: Vec<&str> = passed.lines().collect();
        assert_eq!((lines[0], lines[2]), ("one", "three"), "{what}");
        assert!(!journal_accepts(lines[1]), "{what}: {}", lines[1]);
    }
    for (what, places) in [
        ("swapped", [0, 2, 1]),
        ("dropped", [0, 1, 3]),
        ("repeated", [0, 1, 1]),
    ] {
        let bytes = places.map(|place| &*ours[place]).concat();
        let error = read(&encryption, bytes, OnDamage::Fail).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{what}");
    }
    let whole = ours.concat();
    for at in 0..whole.len() {
        let mut hurt = whole.clone();
        hurt[at] ^= 1;
        if hurt[..BEGINNING_LEN] != whole[..BEGINNING_LEN] {
            continue;
        }
        let passed = read(&encryption, hurt, OnDamage::Pass).unwrap_or_default();
        assert_ne!(passed, "one\ntwo\nthree\n", "byte {at}");
    }
}

const BEGINNING_LEN: usize = lines::BEGINNING.len();

fn journal_accepts(line: &str) -> bool {
    crate::checked_line::is_whole(line.as_bytes())
}

#[test]
fn resuming_a_file_uses_its_key() {
    let dir = tempfile::tempdir().unwrap();
    let encryption = recipient_set(dir.path(), None);
    let mut bytes = three(&encryption);
    let line_encryptor = LineEncryptor::resume(&encryption, Cursor::new(bytes.clone()))
        .unwrap()
        .unwrap();
    line_encryptor.encrypt(4, b"four\n", &mut bytes);
    let all = read(&encryption, bytes.clone(), OnDamage::Fail).unwrap();
    assert_eq!(all, "one\ntwo\nthree\nfour\n");
    let other = tempfile::tempdir().unwrap();
    let wrong = recipient_set(other.path(), None);
    assert!(is_locked(
        &LineEncryptor::resume(&wrong, Cursor::new(bytes)).unwrap_err()
    ));
    let plain = Cursor::new(b"{\"seq\":1}\n".to_vec());
    assert!(LineEncryptor::resume(&encryption, plain).unwrap().is_none());
}

#[test]
fn files_are_encrypted_only_if_the_loop_can_decrypt_them() {
    let dir = tempfile::tempdir().unwrap();
    let recipient = age::x25519::Identity::generate().to_public().to_string();
    let encryption = |identity: Option<&str>, recipients: &[&str]| {
        let identity_file = identity.map(|text| {
            let path = dir.path().join("identity");
            std::fs::write(&path, text).unwrap();
            path
        });
        Encryption::new(KeySource {
            encrypt: true,
            recipients: recipients.iter().map(|&key| key.to_owned()).collect(),
            identity_file,
            ..KeySource::default()
        })
    };
    let says = |encryption: Encryption| {
        encryption
            .check(&[])
            .map_err(|error| tachikoma_core::error_chain(&error))
    };
    let said = says(encryption(None, &[])).unwrap_err();
    assert!(
        said.contains("no key to encrypt with is configured"),
        "{said}"
    );
    let said = says(encryption(Some(KEY), &[&recipient])).unwrap_err();
    assert!(said.contains("could not decrypt its own files"), "{said}");
    let said = says(encryption(Some("nonsense"), &[])).unwrap_err();
    assert!(said.contains("is not an `AGE-SECRET-KEY-1...`"), "{said}");
    assert!(
        !said.contains("nonsense"),
        "no part of a key is shown: {said}"
    );
    let own = KEY
        .parse::<age::x25519::Identity>()
        .unwrap()
        .to_public()
        .to_string();
    says(encryption(Some(KEY), &[&recipient, &own])).unwrap();
}

#[test]
fn passphrase_unlocks_the_generated_identity_and_a_lost_one_is_restored() {
    let dir = tempfile::tempdir().unwrap();
    let source = |words: &str| KeySource {
        encrypt: true,
        passphrase: Some(Passphrase::Words(words.to_owned().into())),
        generated: dir.path().join("a/identity.age"),
        ..KeySource::default()
    };
    let encryption = Encryption::new(source("open sesame"));
    encryption.check(&[]).unwrap();
    assert!(
        !source("").generated.exists(),
        "a check creates no identity"
    );
    encryption.prepare().unwrap();
    let encrypted = encryption.encrypt(b"secret").unwrap().into_owned();
    let file = dir.path().join("encrypted");
    std::fs::write(&file, &encrypted).unwrap();
    std::fs::remove_file(source("").generated).unwrap();
    encryption.put_back_identity().unwrap();
    assert!(source("").generated.exists());
    let again = Encryption::new(source("open sesame"));
    assert_eq!(read(&again, encrypted, OnDamage::Fail).unwrap(), "secret");
    for words in ["open barley", ""] {
        let wrong = Encryption::new(source(words));
        let error = wrong.check(std::slice::from_ref(&file)).unwrap_err();
        assert!(matches!(error, StoreError::Locked { .. }), "{error}");
    }
}

#[test]
fn file_encrypted_for_another_key_is_not_reported_as_damaged() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (ours, theirs) = (
        recipient_set(dir.path(), Some(KEY)),
        recipient_set(other.path(), None),
    );
    read(
        &ours,
        ours.encrypt(b"x").unwrap().into_owned(),
        OnDamage::Fail,
    )
    .unwrap();
    for encrypted in [
        theirs.encrypt(b"secret").unwrap().into_owned(),
        three(&theirs),
    ] {
        for on_damage in [OnDamage::Fail, OnDamage::Pass] {
            let error = read(&ours, encrypted.clone(), on_damage).unwrap_err();
            assert!(is_locked(&error), "{error}");
            assert!(
                error.to_string().contains("is encrypted for age1"),
                "{error}"
            );
        }
    }
}

#[test]
fn file_is_stored_as_configured_if_it_has_exactly_the_configured_recipients() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("encrypted");
    let ours = recipient_set(dir.path(), Some(KEY));
    let more = Encryption::new(KeySource {
        encrypt: true,
        identity_file: Some(dir.path().join("key.txt")),
        recipients: [
            KEY.parse::<age::x25519::Identity>().unwrap(),
            age::x25519::Identity::generate(),
        ]
        .map(|identity| identity.to_public().to_string())
        .to_vec(),
        ..KeySource::default()
    });
    for bytes in [ours.encrypt(b"secret").unwrap().into_owned(), three(&ours)] {
        std::fs::write(&file, bytes).unwrap();
        assert!(ours.is_in_form(&file) && !more.is_in_form(&file));
        assert!(!Encryption::plain().is_in_form(&file));
    }
}

#[test]
fn passphrase_decrypts_files_of_another_machine() {
    let dir = tempfile::tempdir().unwrap();
    let encryption = |place: &str, words: &str| {
        Encryption::new(KeySource {
            encrypt: true,
            passphrase: Some(Passphrase::Words(words.to_owned().into())),
            generated: dir.path().join(place).join("identity.age"),
            ..KeySource::default()
        })
    };
    let there = encryption("a/.ralph", "open sesame");
    there.prepare().unwrap();
    let file = dir.path().join("encrypted");
    std::fs::write(&file, there.encrypt(b"secret").unwrap()).unwrap();
    let here = encryption("b/.ralph", "open sesame");
    here.check(std::slice::from_ref(&file)).unwrap();
    here.prepare().unwrap();
    let identity = |place: &str| std::fs::read(dir.path().join(place)).unwrap();
    assert_eq!(
        identity("a/.ralph/identity.age"),
        identity("b/.ralph/identity.age")
    );
    assert!(here.is_in_form(&file));
    // A damaged identity file is restored from the header of any encrypted file.
    std::fs::write(dir.path().join("b/.ralph/identity.age"), "rot").unwrap();
    let again = encryption("b/.ralph", "open sesame");
    again.check(std::slice::from_ref(&file)).unwrap();
    again.prepare().unwrap();
    assert_eq!(
        identity("a/.ralph/identity.age"),
        identity("b/.ralph/identity.age")
    );
    // An identity with another passphrase is not replaced by the identity in an older file.
    encryption("d/.ralph", "open barley").prepare().unwrap();
    let before = identity("d/.ralph/identity.age");
    let old = encryption("d/.ralph", "open sesame");
    let refused = old.check(std::slice::from_ref(&file)).unwrap_err();
    assert!(
        refused.to_string().contains("does not unlock it (if"),
        "{refused}"
    );
    assert!(old.prepare().is_err());
    assert_eq!(identity("d/.ralph/identity.age"), before);
    let wrong = encryption("c/.ralph", "open barley").check(std::slice::from_ref(&file));
    let wrong = wrong.unwrap_err().to_string();
    assert!(
        wrong.contains("the passphrase does not unlock it"),
        "{wrong}"
    );
}

/// A file from another machine must not be able to use unlimited time and memory for key derivation.
#[test]
fn work_factor_of_a_key_inside_a_file_is_limited() {
    let dir = tempfile::tempdir().unwrap();
    let encryption = |place: &str| {
        Encryption::new(KeySource {
            encrypt: true,
            passphrase: Some(Passphrase::Words("open sesame".to_owned().into())),
            generated: dir.path().join(place).join(IDENTITY),
            ..KeySource::default()
        })
    };
    let ours = encryption("a/.ralph");
    ours.prepare().unwrap();
    let encrypted = ours.encrypt(b"x").unwrap().into_owned();
    let public_header = read_public_header(encrypted.as_slice()).unwrap();
    let locked = String::from_utf8_lossy(&public_header.locked).into_owned();
    let asks = locked.lines().find(|line| line.starts_with("-> scrypt"));
    let asks = asks.unwrap().strip_suffix(" 17").unwrap();
    let at = public_header
        .locked
        .windows(asks.len())
        .position(|part| part == asks.as_bytes());
    let digits = at.unwrap() + asks.len() + 1;
    let costly = PublicHeader {
        to: public_header.to,
        locked: [
            &public_header.locked[..digits],
            b"20",
            &public_header.locked[digits + 2..],
        ]
        .concat(),
    };
    let recipient = age::x25519::Identity::generate().to_public();
    let recipients = [&costly as &dyn age::Recipient, &recipient];
    let encryptor = Encryptor::with_recipients(recipients.into_iter()).unwrap();
    let mut writer = encryptor.wrap_output(Vec::new()).unwrap();
    writer.write_all(b"x").unwrap();
    let error = read(
        &encryption("b/.ralph"),
        writer.finish().unwrap(),
        OnDamage::Fail,
    )
    .unwrap_err();
    assert!(is_locked(&error), "{error}");
    assert!(error.to_string().contains("takes too much work"), "{error}");
}

#[test]
fn passphrase_can_be_combined_with_recipients() {
    let dir = tempfile::tempdir().unwrap();
    let friend = age::x25519::Identity::generate();
    let words = |words: &str| Some(Passphrase::Words(words.to_owned().into()));
    let source = || KeySource {
        encrypt: true,
        recipients: vec![friend.to_public().to_string()],
        passphrase: words("open sesame"),
        generated: dir.path().join(".ralph/identity.age"),
        ..KeySource::default()
    };
    let encryption = Encryption::new(source());
    encryption.prepare().unwrap();
    let encrypted = encryption.encrypt(b"secret").unwrap().into_owned();
    assert_eq!(age::decrypt(&friend, &encrypted).unwrap(), b"secret");
    let without_friend = KeySource {
        recipients: Vec::new(),
        ..source()
    };
    let again = Encryption::new(without_friend);
    assert_eq!(read(&again, encrypted, OnDamage::Fail).unwrap(), "secret");

    // The configuration names the generated identity in `state.encrypt_identity_file`, too.
    let named = |passphrase| {
        let encryption = Encryption::new(KeySource {
            encrypt: true,
            identity_file: Some(source().generated),
            passphrase,
            ..KeySource::default()
        });
        let checked = encryption.check(&[]);
        checked.map_err(|error| tachikoma_core::error_chain(&error))
    };
    let said = named(None).unwrap_err();
    assert!(
        said.contains(
            "identity.age: it is locked with a passphrase: set `state.encrypt_passphrase_file` or"
        ),
        "{said}"
    );
    let said = named(words("open barley")).unwrap_err();
    assert!(said.contains("the passphrase does not unlock it"), "{said}");
    named(words("open sesame")).unwrap();
}

#[test]
fn passphrase_file_must_have_one_line_and_is_never_shown() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("words");
    let check = |text: &[u8]| {
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .unwrap();
        let encryption = Encryption::new(KeySource {
            encrypt: true,
            passphrase: Some(Passphrase::File(file.clone())),
            generated: dir.path().join("identity.age"),
            ..KeySource::default()
        });
        let checked = encryption.check(&[]);
        checked.map_err(|error| tachikoma_core::error_chain(&error))
    };
    for text in ["open sesame", "open sesame\n", "open sesame\r\n"] {
        check(text.as_bytes()).unwrap();
    }
    for (text, why) in [
        (&b"open\nsesame\n"[..], "words: it has more than one line"),
        (b"sesame\xff\n", "words: it is not UTF-8 text"),
        (b"\n", "the passphrase is empty"),
    ] {
        let said = check(text).unwrap_err();
        assert!(said.contains(why) && !said.contains("sesame"), "{said}");
    }
}
