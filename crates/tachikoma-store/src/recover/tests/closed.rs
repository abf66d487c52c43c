//! Journals with a closed segment: it is never changed, and a missing next segment is damage.

use crate::encryption::Encryption;
use std::sync::atomic::AtomicBool;

use super::*;

static NOT_CANCELED: AtomicBool = AtomicBool::new(false);

/// Creates a loop with a closed segment and a second one. Returns the states at the end of each.
fn two_segments() -> (Place, State, State) {
    let place = Place::new();
    let taken = place.read(Loss::Refuse).unwrap();
    let taken = taken.open(&place.dir(), place.dir.path()).unwrap();
    let (mut journal, mut state) = (taken.journal, taken.state);
    let first = state.clone();
    let now = state.time;
    journal.next_segment(&mut state, now).unwrap();
    for warning in ["one", "two", "three"] {
        let warning = warning.to_owned();
        let input = Input::Warning { warning };
        let records = step(&Policy::default(), &mut state, now, input).records;
        journal.append_synced(&records).unwrap();
    }
    journal.closed().compress(&NOT_CANCELED).unwrap();
    (place, first, state)
}

fn closed(place: &Place) -> PathBuf {
    place.dir().join("journal-0001.jsonl.zst")
}

fn second(place: &Place) -> PathBuf {
    place.dir().join("journal-0002.jsonl")
}

#[test]
fn closed_segment_without_a_next_segment_is_damage() {
    for has_snapshot in [true, false] {
        let (place, first, _) = two_segments();
        if !has_snapshot {
            std::fs::remove_file(place.snapshot()).unwrap();
        }
        let before = std::fs::read(closed(&place)).unwrap();
        std::fs::remove_file(second(&place)).unwrap();
        let lines = usize::try_from(first.seq.0).unwrap();
        let refused = place.read(Loss::Refuse);
        assert!(
            matches!(&refused, Err(StoreError::Damaged { line, .. }) if *line == lines + 1),
            "{refused:?}"
        );
        let state = place.open(Loss::Accept);
        assert_eq!(state.stats, first.stats);
        assert_eq!(std::fs::read(closed(&place)).unwrap(), before);
        assert!(second(&place).exists());
        assert_eq!(
            journal::read_state(&place.dir(), &Encryption::plain()).unwrap(),
            state
        );
    }
}

#[test]
fn recovery_uses_a_snapshot_that_is_newer_than_the_last_closed_segment() {
    let (place, first, last) = two_segments();
    let before = std::fs::read(closed(&place)).unwrap();
    std::fs::remove_file(second(&place)).unwrap();
    place.save(&first);
    place
        .read(Loss::Refuse)
        .expect_err("the snapshot is older than the missing segment");
    place.save(&last);
    let found = place.read(Loss::Refuse).unwrap();
    assert_eq!(found.state, last);
    assert_eq!(found.troubles.len(), 1, "{:?}", found.troubles);
    place.open(Loss::Refuse);
    assert_eq!(std::fs::read(closed(&place)).unwrap(), before);
    assert_eq!(
        journal::read_state(&place.dir(), &Encryption::plain())
            .unwrap()
            .seq
            .0,
        last.seq.0 + 2,
        "a new segment starts, and the warning is recorded"
    );
}

#[test]
fn compressed_segment_cannot_be_opened_for_writing() {
    let (place, ..) = two_segments();
    let before = std::fs::read(closed(&place)).unwrap();
    Journal::at(&place.dir(), closed(&place), 1, 0, &Encryption::plain()).unwrap_err();
    assert_eq!(std::fs::read(closed(&place)).unwrap(), before);
}

/// Damages the first record of the second segment, so that the first segment is needed.
fn damage_second(place: &Place) {
    let text = std::fs::read_to_string(second(place)).unwrap();
    std::fs::write(second(place), text.replacen("loop_", "lo0p_", 1)).unwrap();
}

#[test]
fn damage_in_a_closed_segment_is_refused_unless_loss_is_accepted() {
    let whole = std::fs::read(closed(&two_segments().0)).unwrap();
    for length in [0, 3, whole.len() / 2, whole.len() - 1] {
        for has_snapshot in [true, false] {
            let (place, _, last) = two_segments();
            if !has_snapshot {
                std::fs::remove_file(place.snapshot()).unwrap();
            }
            std::fs::write(closed(&place), &whole[..length]).unwrap();
            let found = place.read(Loss::Refuse).unwrap();
            assert_eq!(found.state, last, "the last segment has the full state");

            damage_second(&place);
            let refused = place.read(Loss::Refuse);
            assert!(
                matches!(&refused, Err(StoreError::Damaged { path, .. }) if *path == closed(&place)),
                "{length}: {refused:?}"
            );
            if !has_snapshot && matches!(place.read(Loss::Accept), Err(StoreError::Damaged { .. }))
            {
                // The damage is so early that no record before it can be decompressed.
                continue;
            }
            place.open(Loss::Accept);
            let kept = place.quarantined();
            let kept: Vec<&str> = kept.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(kept, ["journal-0001.jsonl.zst.1", "journal-0002.jsonl.1"]);
        }
    }
}

#[test]
fn recovery_keeps_the_beginning_of_a_damaged_closed_segment() {
    let (place, ..) = two_segments();
    std::fs::remove_file(place.snapshot()).unwrap();
    std::fs::remove_file(second(&place)).unwrap();
    // The damaged record is inside a valid zstd frame.
    let mut text = String::new();
    std::io::Read::read_to_string(
        &mut compressed::open(&closed(&place), &Encryption::plain())
            .unwrap()
            .content,
        &mut text,
    )
    .unwrap();
    let mut lines: Vec<String> = text.lines().map(|line| format!("{line}\n")).collect();
    lines[5] = lines[5].replace("loop_", "lo0p_");
    std::fs::remove_file(closed(&place)).unwrap();
    std::fs::write(place.journal(), lines.concat()).unwrap();
    compressed::replace(&place.journal(), &Encryption::plain(), &NOT_CANCELED).unwrap();

    place.read(Loss::Refuse).unwrap_err();
    let state = place.open(Loss::Accept);
    assert_eq!(
        state.seq,
        Seq(7),
        "five records, a new segment, and the lost records"
    );
    assert!(!closed(&place).exists());
    assert_eq!(
        std::fs::read_to_string(place.journal()).unwrap(),
        lines[..5].concat()
    );
    assert_eq!(
        journal::read_state(&place.dir(), &Encryption::plain()).unwrap(),
        state
    );
}
