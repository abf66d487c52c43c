//! Tests with a directory as a store. Tests of the program use a server.

use std::io::{Seek as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::{CloudEnvironment, digest_of, open};

struct Place {
    dir: tempfile::TempDir,
    store: Store,
    runtime: tokio::runtime::Runtime,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("file://{}", dir.path().display());
        let runtime = tokio::runtime::Builder::new_current_thread();
        Self {
            store: open(&url, &CloudEnvironment::default()).unwrap(),
            runtime: { runtime }.enable_all().build().unwrap(),
            dir,
        }
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<Put, CloudError> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file.rewind().unwrap();
        let digest = digest_of(&mut file).unwrap();
        file.rewind().unwrap();
        let from = Path::new("here");
        let put = self.store.put(name, &mut file, from, &digest);
        self.runtime.block_on(put)
    }

    fn there(&self, name: &str) -> Option<Vec<u8>> {
        std::fs::read(self.dir.path().join(name)).ok()
    }
}

#[test]
fn small_and_large_files_are_stored_once_and_unchanged() {
    let place = Place::new();
    let large: Vec<u8> = (0..=250).cycle().take(PART_BYTES * 2 + 7).collect();
    for (name, bytes) in [
        ("empty", &b""[..]),
        ("small", b"some words"),
        ("whole", &large[..PART_BYTES]),
        ("large", &large),
    ] {
        assert_eq!(place.put(name, bytes).unwrap(), Put::Created, "{name}");
        assert!(place.there(name).unwrap() == bytes, "{name}");
        let there = std::fs::metadata(place.dir.path().join(name)).unwrap();
        assert_eq!(there.permissions().mode() & 0o777, 0o600, "{name}");
        assert_eq!(place.put(name, bytes).unwrap(), Put::WasThere, "{name}");
    }
    let mut listed = place.runtime.block_on(place.store.list()).unwrap();
    listed.sort_by_key(|object| object.bytes);
    let sizes: Vec<_> = listed.iter().map(|object| object.bytes).collect();
    assert_eq!(sizes, [0, 10, 5 << 20, (10 << 20) + 7]);

    let to = place.dir.path().join("back");
    let mut file = File::create(&to).unwrap();
    let got = place.store.get("large", &mut file, &to, u64::MAX);
    let digest = place.runtime.block_on(got).unwrap();
    let more = place.store.get("large", &mut file, &to, (10 << 20) + 6);
    let error = place.runtime.block_on(more).unwrap_err().to_string();
    assert!(error.ends_with("has more than 10485766 bytes"), "{error}");
    let mut file = File::create(&to).unwrap();
    let got = place.store.get("large", &mut file, &to, (10 << 20) + 7);
    assert_eq!(place.runtime.block_on(got).unwrap(), digest);
    assert_eq!(digest.bytes, large.len() as u64);
    assert!(std::fs::read(&to).unwrap() == large);
    place.runtime.block_on(place.store.delete("large")).unwrap();
    place.runtime.block_on(place.store.delete("large")).unwrap();
    assert_eq!(place.there("large"), None);
}

#[test]
fn another_object_with_the_same_name_stays_and_is_reported() {
    let place = Place::new();
    for size in [10, PART_BYTES + 1] {
        std::fs::write(place.dir.path().join("name"), "mine").unwrap();
        let error = place.put("name", &vec![1; size]).unwrap_err();
        assert!(
            matches!(error, CloudError::Other { there: 4, .. }),
            "{error}"
        );
        assert_eq!(place.there("name").unwrap(), b"mine");
    }
}

#[test]
fn a_file_that_changes_during_the_upload_is_not_stored() {
    let place = Place::new();
    for size in [10, PART_BYTES + 1] {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![1; size]).unwrap();
        file.rewind().unwrap();
        let mut digest = digest_of(&mut file).unwrap();
        digest.hex = digest.hex.replace('0', "1");
        file.rewind().unwrap();
        let put = place
            .store
            .put("name", &mut file, Path::new("here"), &digest);
        let error = place.runtime.block_on(put).unwrap_err();
        assert!(matches!(error, CloudError::Changed { .. }), "{error}");
        assert_eq!(place.there("name"), None);
        assert_eq!(std::fs::read_dir(place.dir.path()).unwrap().count(), 0);
    }
}

#[test]
fn a_missing_object_is_reported_as_missing() {
    let place = Place::new();
    let mut file = tempfile::tempfile().unwrap();
    let got = place.store.get("nothing", &mut file, Path::new("to"), 1);
    assert!(place.runtime.block_on(got).unwrap_err().is_missing());
}
