//! Forged backups are rejected. An agent can write files into the backup directory.

use std::io::{Read as _, Write as _};

use super::*;

/// A tar entry: its type, name and content.
type Part = (u8, String, Vec<u8>);

/// Splits a backup into its tar entries.
fn parts(path: &Path) -> Vec<Part> {
    let mut archive = tar::Archive::new(fs::File::open(path).unwrap());
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let name = String::from_utf8(entry.path_bytes().into_owned()).unwrap();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        (b'0', name, bytes)
    });
    entries.collect()
}

/// Builds a tar archive from any entries.
fn put_together(path: &Path, parts: &[Part]) {
    let mut file = fs::File::create(path).unwrap();
    for (kind, name, bytes) in parts {
        let mut header = tar::Header::new_ustar();
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.set_size(bytes.len() as u64);
        header.set_mode(0o600);
        header.set_entry_type(tar::EntryType::new(*kind));
        header.set_cksum();
        file.write_all(header.as_bytes()).unwrap();
        file.write_all(bytes).unwrap();
        let padding = bytes.len().next_multiple_of(512) - bytes.len();
        file.write_all(&vec![0; padding]).unwrap();
    }
    file.write_all(&[0; 1024]).unwrap();
}

/// Changes the manifest of a backup.
fn change_list(parts: &mut [Part], change: impl FnOnce(&mut Manifest)) {
    let mut manifest: Manifest = serde_json::from_slice(&parts[0].2).unwrap();
    change(&mut manifest);
    parts[0].2.clear();
    crate::checked_line::encode(&manifest, &mut parts[0].2);
}

#[track_caller]
fn refused(path: &Path, says: &str) {
    let error = read_through(path, &Encryption::plain())
        .unwrap_err()
        .to_string();
    assert!(error.contains(says), "{error}");
}

#[test]
fn invalid_entry_names_in_a_backup_are_rejected() {
    let place = Place::new();
    let path = place.take(10, 5_000);
    let out = place.dir.path().join("out/new");
    fs::create_dir_all(&out).unwrap();
    for name in [
        "../outside/file",
        "/tmp/tachikoma-outside",
        "checkpoints/../../outside/0.md",
    ] {
        let mut parts = parts(&path);
        let last = parts.len() - 1;
        parts[last].1 = name.to_owned();
        change_list(&mut parts, |manifest| {
            name.clone_into(&mut manifest.files[last - 1].name);
        });
        put_together(&path, &parts);
        let error = read_into(&path, &out, &Encryption::plain())
            .unwrap_err()
            .to_string();
        assert!(error.contains("does not belong in a backup"), "{error}");
        assert!(
            fs::read_dir(&out).unwrap().next().is_none(),
            "no file is created"
        );
        assert!(!place.dir.path().join("out/outside").exists());
        fs::remove_file(&path).unwrap();
        assert_eq!(place.take(10, 5_000), path);
    }
    let mut twice = parts(&path);
    let again = twice.last().unwrap().clone();
    twice.push(again);
    change_list(&mut twice, |manifest| {
        let last = manifest.files.last().unwrap().clone();
        manifest.files.push(last);
    });
    put_together(&path, &twice);
    refused(&path, "lists");
}

/// A tar reader would read a long name into memory without a limit.
#[test]
fn links_and_tar_extensions_in_a_backup_are_rejected() {
    let place = Place::new();
    let path = place.take(10, 5_000);
    let whole = parts(&path);
    for (kind, name, content) in [
        (b'L', "././@LongLink", &b"manifest.json\0"[..]),
        (b'x', "PaxHeaders/manifest.json", b"22 path=manifest.json\n"),
        (b'g', "pax_global_header", b"12 comment=x\n"),
        (b'1', "manifest.json", b""),
    ] {
        for at in [0, 1] {
            let mut parts = whole.clone();
            parts.insert(at, (kind, name.to_owned(), content.to_vec()));
            put_together(&path, &parts);
            let kind = char::from(kind);
            assert!(
                read_through(&path, &Encryption::plain()).is_err(),
                "{kind} at {at}"
            );
            let told = manifest_of(&path, &Encryption::plain());
            assert_eq!(told.is_ok(), at > 0, "{kind}");
        }
    }
}

#[test]
fn oversized_entries_in_a_backup_are_rejected() {
    let place = Place::new();
    let path = place.take(10, 5_000);
    let whole = parts(&path);
    let mut parts = whole.clone();
    change_list(&mut parts, |manifest| manifest.files[1].bytes = 1 << 40);
    put_together(&path, &parts);
    refused(&path, "journal-0001.jsonl exceeds the size limit");
    put_together(&path, &whole);
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(file.metadata().unwrap().len() + (1 << 16))
        .unwrap();
    read_through(&path, &Encryption::plain()).unwrap();
    file.set_len(1 << 40).unwrap();
    refused(&path, "there is data after the end of the archive");
}
