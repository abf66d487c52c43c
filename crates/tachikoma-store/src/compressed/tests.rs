//! Compression of closed files: an interrupted compression loses nothing, and damage is detected.

use crate::encryption::Encryption;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::*;

static NOT_CANCELED: AtomicBool = AtomicBool::new(false);

fn text(lines: u32) -> Vec<u8> {
    (0..lines)
        .flat_map(|line| {
            format!(
                "{{\"seq\":{line},\"crc\":\"{:08x}\"}}\n",
                line.wrapping_mul(2_654_435)
            )
            .into_bytes()
        })
        .collect()
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    open(path, &Encryption::plain())?
        .content
        .read_to_end(&mut content)?;
    Ok(content)
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn compressed_file_opens_by_its_plain_and_compressed_name() {
    for lines in [0, 1, 100, 100_000] {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a.log");
        fs::write(&path, text(lines)).unwrap();
        let age = fs::metadata(&path).unwrap().modified().unwrap();
        replace(&path, &Encryption::plain(), &NOT_CANCELED).unwrap();
        assert_eq!(names(place.path()), ["a.log.zst"]);
        let compressed = place.path().join("a.log.zst");
        for name in [&path, &compressed] {
            assert!(read(name).unwrap() == text(lines), "{lines} lines");
        }
        assert_eq!(open(&path, &Encryption::plain()).unwrap().path, compressed);
        let metadata = fs::metadata(&compressed).unwrap();
        assert_eq!(metadata.modified().unwrap(), age);
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    }
}

#[test]
fn plain_file_takes_precedence_over_its_compressed_copy() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("a.log");
    fs::write(&path, "right").unwrap();
    fs::write(place.path().join("a.log.zst"), "half of so").unwrap();
    assert_eq!(read(&path).unwrap(), b"right");
    replace(&path, &Encryption::plain(), &NOT_CANCELED).unwrap();
    assert_eq!(names(place.path()), ["a.log.zst"]);
    assert_eq!(read(&path).unwrap(), b"right");
}

#[test]
fn every_flipped_missing_or_added_byte_is_damage() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("a.log");
    fs::write(&path, text(200)).unwrap();
    replace(&path, &Encryption::plain(), &NOT_CANCELED).unwrap();
    let compressed = place.path().join("a.log.zst");
    let whole = fs::read(&compressed).unwrap();
    let check = |bytes: &[u8], what: &str| {
        fs::write(&compressed, bytes).unwrap();
        match read(&compressed) {
            Ok(content) => assert!(content == text(200), "{what}: the damage was not detected"),
            Err(error) => assert!(is_damage(&error), "{what}: {error}"),
        }
    };
    for at in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        check(&flipped, &format!("byte {at}"));
        fs::write(&compressed, &whole[..at]).unwrap();
        let error = read(&compressed).expect_err("the file is truncated");
        assert!(is_damage(&error), "cut at {at}: {error}");
    }
    fs::write(&compressed, [&whole[..], b"x"].concat()).unwrap();
    assert!(is_damage(
        &read(&compressed).expect_err("one byte too many")
    ));
}

#[test]
fn canceled_or_failed_compression_changes_nothing() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("a.log");
    fs::write(&path, text(10)).unwrap();
    let error = replace(&path, &Encryption::plain(), &AtomicBool::new(true)).unwrap_err();
    assert_eq!(error.to_string(), "canceled");
    assert_eq!(names(place.path()), ["a.log"]);
    fs::create_dir(place.path().join("a.log.zst")).unwrap();
    replace(&path, &Encryption::plain(), &NOT_CANCELED)
        .expect_err("the name is taken by a directory");
    assert_eq!(names(place.path()), ["a.log", "a.log.zst"]);
    assert_eq!(read(&path).unwrap(), text(10));
}

#[test]
fn compression_rejects_links_and_other_file_types() {
    let place = tempfile::tempdir().unwrap();
    let target = place.path().join("target");
    fs::create_dir(&target).unwrap();
    fs::write(target.join("a.log"), text(10)).unwrap();
    symlink(&target, place.path().join("dir")).unwrap();
    symlink(target.join("a.log"), place.path().join("link.log")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, place.path().join("pipe.log"), Mode::RUSR).unwrap();
    for name in ["dir/a.log", "link.log", "pipe.log", "missing.log", "target"] {
        replace(
            &place.path().join(name),
            &Encryption::plain(),
            &NOT_CANCELED,
        )
        .expect_err(name);
    }
    assert_eq!(
        names(place.path()),
        ["dir", "link.log", "pipe.log", "target"]
    );
    assert_eq!(names(&target), ["a.log"]);
}

#[test]
fn file_name_shows_the_form_of_a_file() {
    let unique = "018f2f6e-0000-7000-8000-000000000000";
    let half = format!("a.log.zst.{unique}.tmp");
    let other = format!("a.log.{unique}.tmp");
    assert_eq!(form_of("a.log"), ("a.log", Form::Plain));
    assert_eq!(form_of("a.log.zst"), ("a.log", Form::Compressed));
    assert_eq!(form_of(&half), ("a.log", Form::UnderWay));
    assert_eq!(form_of(&other), (other.as_str(), Form::Plain));
    assert_eq!(form_of("a.log.zst.1.tmp").1, Form::Plain);
}
