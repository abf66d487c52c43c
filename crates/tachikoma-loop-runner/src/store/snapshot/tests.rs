//! The snapshot's file: whole, checked, and its version first.

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
fn what_was_written_is_read_back_and_nothing_else_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a/state.json");
    assert_eq!(read(&path).unwrap(), None);
    let snapshot = Snapshot::of(&state(), Path::new("/w"), Timestamp::from_millis(2_000));
    for durability in [Durability::Synced, Durability::Lazy] {
        snapshot.write(&path, durability).unwrap();
        let back = read(&path).unwrap().unwrap();
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
fn writers_at_the_same_time_do_not_meet_and_readers_see_one_of_them_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.json");
    let snapshot = Snapshot::of(&state(), Path::new("/w"), Timestamp::default());
    snapshot.write(&path, Durability::Lazy).unwrap();
    std::thread::scope(|scope| {
        for number in 0..4_u32 {
            let (snapshot, path) = (&snapshot, &path);
            scope.spawn(move || {
                let mut own = snapshot.clone();
                own.core.iteration = number;
                for _ in 0..100 {
                    own.write(path, Durability::Lazy).unwrap();
                    assert!(read(path).unwrap().unwrap().core.iteration < 4);
                }
            });
        }
    });
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn every_flipped_missing_or_added_byte_is_noticed() {
    let text = Snapshot::of(&state(), Path::new("/w"), Timestamp::default())
        .encode()
        .into_bytes();
    assert!(decode(migrate::SNAPSHOT, &text).is_ok());
    for at in 0..text.len() {
        let mut flipped = text.clone();
        flipped[at] ^= 1 << (at % 8);
        assert!(
            decode(migrate::SNAPSHOT, &flipped).is_err(),
            "flipped at {at}"
        );
        let mut missing = text.clone();
        missing.remove(at);
        assert!(
            decode(migrate::SNAPSHOT, &missing).is_err(),
            "missing at {at}"
        );
        let mut added = text.clone();
        added.insert(at, b' ');
        assert!(decode(migrate::SNAPSHOT, &added).is_err(), "added at {at}");
    }
}

#[test]
fn a_newer_version_is_told_before_anything_else_is_read() {
    let text = "{\n  \"version\": 2,\n  \"shape\": [\"unheard of\"]";
    assert!(matches!(
        decode(migrate::SNAPSHOT, text.as_bytes()),
        Err(Problem::Newer(2))
    ));
}
