//! Tests of the snapshot file: it is complete, it has a checksum, and its version is the first field.

use crate::encryption::Encryption;
use tachikoma_core::{Input, Launch, Policy, Runner, step};

use super::*;

fn state() -> State {
    let mut state = State::new(LoopId::from_u128(1));
    let now = Timestamp::from_millis(1_000);
    let runner = Runner {
        pid: 1,
        since: now,
        containment: "guard".to_owned(),
        follows_until: None,
        repository: None,
    };
    let launch = Launch::default();
    let _ = step(
        &Policy::default(),
        &mut state,
        now,
        Input::Start { launch, runner },
    );
    state
}

#[test]
fn snapshot_round_trips_and_leaves_no_temporary_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a/state.json");
    assert_eq!(read(&path, &Encryption::plain()).unwrap(), None);
    let snapshot = Snapshot::of(&state(), Path::new("/w"), Timestamp::from_millis(2_000));
    for durability in [Durability::Synced, Durability::Lazy] {
        snapshot
            .write(&path, Packing::Plain, durability, &Encryption::plain())
            .unwrap();
        let back = read(&path, &Encryption::plain()).unwrap().unwrap();
        assert_eq!(back.state, snapshot.state);
        assert_eq!(
            Snapshot {
                checksum: snapshot.checksum.clone(),
                ..back
            },
            snapshot
        );
    }
    assert_eq!(std::fs::read_dir(dir.path().join("a")).unwrap().count(), 1);
}

#[test]
fn concurrent_writers_leave_one_complete_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.json");
    let snapshot = Snapshot::of(&state(), Path::new("/w"), Timestamp::default());
    snapshot
        .write(
            &path,
            Packing::Plain,
            Durability::Lazy,
            &Encryption::plain(),
        )
        .unwrap();
    std::thread::scope(|scope| {
        for number in 0..4_u32 {
            let (snapshot, path) = (&snapshot, &path);
            scope.spawn(move || {
                let mut own = snapshot.clone();
                own.core.iteration = number;
                for _ in 0..100 {
                    own.write(path, Packing::Plain, Durability::Lazy, &Encryption::plain())
                        .unwrap();
                    assert!(
                        read(path, &Encryption::plain())
                            .unwrap()
                            .unwrap()
                            .core
                            .iteration
                            < 4
                    );
                }
            });
        }
    });
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn every_flipped_missing_or_added_byte_is_detected() {
    let text = Snapshot::of(&state(), Path::new("/w"), Timestamp::default())
        .encode()
        .into_bytes();
    assert!(decode(migrate::SNAPSHOT, Path::new("state.json"), &text).is_ok());
    for at in 0..text.len() {
        let mut flipped = text.clone();
        flipped[at] ^= 1 << (at % 8);
        assert!(
            decode(migrate::SNAPSHOT, Path::new("state.json"), &flipped).is_err(),
            "flipped at {at}"
        );
        let mut missing = text.clone();
        missing.remove(at);
        assert!(
            decode(migrate::SNAPSHOT, Path::new("state.json"), &missing).is_err(),
            "missing at {at}"
        );
        let mut added = text.clone();
        added.insert(at, b' ');
        assert!(
            decode(migrate::SNAPSHOT, Path::new("state.json"), &added).is_err(),
            "added at {at}"
        );
    }
}

#[test]
fn newer_snapshot_version_is_reported_first() {
    for text in [
        "{\n  \"version\": 2,\n  \"shape\": [\"unheard of\"]",
        "{\"version\":2,\"shape\":[\"unheard of\"]",
    ] {
        let decoded = decode(migrate::SNAPSHOT, Path::new("state.json"), text.as_bytes());
        assert!(
            matches!(decoded, Err(StoreError::NewerSnapshot { found: 2, .. })),
            "{text}"
        );
    }
}

#[test]
fn compressed_snapshot_replaces_a_plain_one_and_vice_versa() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.json");
    let snapshot = Snapshot::of(&state(), Path::new("/w"), Timestamp::default());
    let names = || {
        let entries = std::fs::read_dir(dir.path()).unwrap().flatten();
        let mut names: Vec<_> = entries
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    for (packing, name) in [
        (Packing::Plain, "state.json"),
        (Packing::Compressed, "state.json.zst"),
        (Packing::Plain, "state.json"),
    ] {
        snapshot
            .write(&path, packing, Durability::Lazy, &Encryption::plain())
            .unwrap();
        assert_eq!(names(), [name]);
        assert_eq!(place(&path, &Encryption::plain()), dir.path().join(name));
        let back = read(&path, &Encryption::plain()).unwrap().unwrap();
        assert_eq!(back.state, snapshot.state);
        assert!(is_ours(
            &place(&path, &Encryption::plain()),
            &Encryption::plain()
        ));
    }
    snapshot
        .write(
            &path,
            Packing::Compressed,
            Durability::Lazy,
            &Encryption::plain(),
        )
        .unwrap();
    let shown = std::process::Command::new("zstd")
        .arg("-dc")
        .arg(place(&path, &Encryption::plain()))
        .output();
    assert_eq!(shown.unwrap().stdout, snapshot.encode().into_bytes());

    // A file at the path of the uncompressed snapshot is not deleted as outdated if it is not a snapshot.
    std::fs::write(&path, "not ours").unwrap();
    snapshot
        .write(
            &path,
            Packing::Compressed,
            Durability::Lazy,
            &Encryption::plain(),
        )
        .unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "not ours");
    assert_eq!(
        read(&path, &Encryption::plain()).unwrap().unwrap().state,
        snapshot.state
    );
}

/// A process died after it wrote the snapshot in the new form and before it removed the file in the old form.
#[test]
fn newer_of_a_plain_and_a_compressed_snapshot_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.json");
    let (mut older, mut newer) = (state(), state());
    older.seq = Seq(3);
    newer.seq = Seq(4);
    let write = |state: &State, packing: Packing| {
        let snapshot = Snapshot::of(state, Path::new("/w"), Timestamp::default());
        let bytes = packing.pack(snapshot.encode().into_bytes());
        std::fs::write(packing.path(&path, &Encryption::plain()), bytes).unwrap();
    };
    for (ahead, behind) in [
        (Packing::Plain, Packing::Compressed),
        (Packing::Compressed, Packing::Plain),
    ] {
        write(&newer, ahead);
        write(&older, behind);
        assert_eq!(
            read(&path, &Encryption::plain()).unwrap().unwrap().seq,
            Seq(4)
        );
        std::fs::write(ahead.path(&path, &Encryption::plain()), "damaged").unwrap();
        assert_eq!(
            read(&path, &Encryption::plain()).unwrap().unwrap().seq,
            Seq(3)
        );
        let of_tomorrow = b"{\n  \"version\": 9,\n".to_vec();
        std::fs::write(
            ahead.path(&path, &Encryption::plain()),
            ahead.pack(of_tomorrow),
        )
        .unwrap();
        let error = read(&path, &Encryption::plain()).unwrap_err();
        assert!(
            matches!(error, StoreError::NewerSnapshot { .. }),
            "{error:?}"
        );
    }
}

#[test]
fn every_changed_byte_of_a_compressed_snapshot_is_detected() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.json");
    let snapshot = Snapshot::of(&state(), Path::new("/w"), Timestamp::default());
    snapshot
        .write(
            &path,
            Packing::Compressed,
            Durability::Lazy,
            &Encryption::plain(),
        )
        .unwrap();
    let packed = place(&path, &Encryption::plain());
    let whole = std::fs::read(&packed).unwrap();
    for at in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        std::fs::write(&packed, flipped).unwrap();
        if let Ok(Some(found)) = read(&path, &Encryption::plain()) {
            // The flipped bit is one that has no meaning in a zstd frame.
            assert_eq!(found.state, snapshot.state, "flipped at {at}");
        }
        std::fs::write(&packed, &whole[..at]).unwrap();
        read(&path, &Encryption::plain()).unwrap_err();
    }
}
