//! Files that another process changed, truncated, copied or removed, or that belong to another loop.

use super::*;
use crate::archive::archive;
use crate::encryption::Encryption;
use crate::layout;
use crate::layout::ARCHIVED;

/// Checks that recovery returns an error, a warning, or the unchanged state.
#[track_caller]
fn check_noticed(place: &Place, what: &str) {
    if let Ok(found) = place.read(Loss::Refuse) {
        assert!(
            !found.troubles.is_empty() || found.state == place.state,
            "{what}: the damage was not detected"
        );
    }
}

#[test]
fn flipped_bits_are_detected_with_and_without_a_snapshot() {
    for has_snapshot in [true, false] {
        let place = Place::new();
        if !has_snapshot {
            std::fs::remove_file(place.snapshot()).unwrap();
        }
        let whole = std::fs::read(place.journal()).unwrap();
        // Only some bytes are flipped, more of them in the last line. The soak test `flip` flips every byte.
        let last_line = whole[..whole.len() - 1]
            .iter()
            .rposition(|byte| *byte == b'\n');
        let last_line = last_line.unwrap();
        let sample = (0..last_line).step_by(41);
        for at in sample.chain((last_line..whole.len()).step_by(5)) {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << (at % 8);
            std::fs::write(place.journal(), &damaged).unwrap();
            check_noticed(&place, &format!("byte {at}, snapshot: {has_snapshot}"));
        }
    }
}

#[test]
fn last_record_without_a_line_end_is_read() {
    let place = Place::new();
    let whole = std::fs::read(place.journal()).unwrap();
    std::fs::write(place.journal(), &whole[..whole.len() - 1]).unwrap();
    assert_eq!(
        journal::read_state(&place.dir(), &Encryption::plain()).unwrap(),
        place.state
    );
    assert_eq!(place.read(Loss::Refuse).unwrap().troubles, [""; 0]);
    assert_eq!(place.open(Loss::Refuse), place.state);
    assert_eq!(std::fs::read(place.journal()).unwrap(), whole);
}

#[test]
fn changed_last_line_end_is_damage() {
    let place = Place::new();
    let mut bytes = std::fs::read(place.journal()).unwrap();
    let last = bytes.len() - 1;
    for byte in [b' ', b'}', 0, 0xff] {
        bytes[last] = byte;
        std::fs::write(place.journal(), &bytes).unwrap();
        let found = place.read(Loss::Refuse);
        let lines = usize::try_from(place.state.seq.0).unwrap();
        assert!(
            matches!(&found, Err(StoreError::Damaged { line, .. }) if *line == lines),
            "{byte}: {found:?}"
        );
        journal::read_records(&place.dir(), &Encryption::plain(), Seq(0), drop).unwrap_err();
    }
    // The snapshot contains the damaged record, so nothing is lost.
    place.save(&place.state);
    let state = place.open(Loss::Refuse);
    assert_eq!(state.stats, place.state.stats);
    assert_eq!(place.quarantined().len(), 1);
}

#[test]
fn data_after_the_last_record_is_reported_and_quarantined() {
    let place = Place::new();
    let mut bytes = std::fs::read(place.journal()).unwrap();
    bytes.extend(b"{\"seq\":99");
    std::fs::write(place.journal(), &bytes).unwrap();
    let found = place.read(Loss::Refuse).unwrap();
    assert_eq!(found.state, place.state);
    assert_eq!(found.troubles.len(), 1, "{:?}", found.troubles);
    place.open(Loss::Refuse);
    let kept = ("journal-0001.jsonl.1".to_owned(), b"{\"seq\":99".to_vec());
    assert_eq!(place.quarantined(), [kept]);
}

#[test]
fn duplicate_line_in_the_journal_is_damage() {
    let place = Place::new();
    let text = std::fs::read_to_string(place.journal()).unwrap();
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    for has_snapshot in [true, false] {
        if !has_snapshot {
            std::fs::remove_file(place.snapshot()).unwrap();
        }
        for at in 1..lines.len() {
            let (before, behind) = lines.split_at(at);
            let twice = [before, &before[at - 1..], behind].concat().concat();
            std::fs::write(place.journal(), twice).unwrap();
            let found = place.read(Loss::Refuse);
            if has_snapshot && at < place.lines {
                let found = found.unwrap();
                assert_eq!(found.state, place.state);
                assert_eq!(found.troubles.len(), 1, "{:?}", found.troubles);
            } else {
                let error = found.expect_err("the journal is damaged");
                let follows = format!("line {}: record {at} follows record {at}", at + 1);
                assert!(error.to_string().ends_with(&follows), "{error}");
            }
        }
    }
}

#[test]
fn segment_that_repeats_record_numbers_is_damage() {
    let place = Place::new();
    std::fs::remove_file(place.snapshot()).unwrap();
    let text = std::fs::read_to_string(place.journal()).unwrap();
    // The first record of this segment does not have the full state, so the segment before it is needed.
    let third: String = text.split_inclusive('\n').skip(2).take(1).collect();
    std::fs::write(place.dir().join("journal-0002.jsonl"), third).unwrap();
    let found = place.read(Loss::Refuse);
    assert!(
        matches!(found, Err(StoreError::Damaged { .. })),
        "{found:?}"
    );
}

#[test]
fn record_of_another_loop_is_damage() {
    let place = Place::new();
    let other = Place::new();
    let read = read(
        &other.dir(),
        &Copies::only(&place.dir.path().join("none"), &Encryption::plain()),
        LoopId::from_u128(2),
        Loss::Refuse,
    );
    assert!(matches!(read, Err(StoreError::Damaged { .. })), "{read:?}");
}

#[test]
fn recovery_uses_the_snapshot_if_the_journal_is_empty_or_missing() {
    let hurts: [fn(&Place); 3] = [
        |place| std::fs::write(place.journal(), "").unwrap(),
        |place| std::fs::remove_file(place.journal()).unwrap(),
        |place| std::fs::remove_dir_all(place.dir()).unwrap(),
    ];
    for hurt in hurts {
        let place = Place::new();
        place.save(&place.state);
        hurt(&place);
        let found = place.read(Loss::Refuse).unwrap();
        assert_eq!(found.state, place.state);
        assert_eq!(found.troubles.len(), 1, "{:?}", found.troubles);
        assert_eq!(place.open(Loss::Refuse).stats, place.state.stats);
        std::fs::remove_file(place.snapshot()).unwrap();
        let alone = place.read(Loss::Refuse).unwrap().state;
        assert_eq!(
            alone.stats, place.state.stats,
            "the journal has the lost records again"
        );
    }
}

#[test]
fn unreadable_snapshot_does_not_prevent_recovery_from_the_journal() {
    let place = Place::new();
    std::fs::remove_file(place.snapshot()).unwrap();
    std::fs::create_dir(place.snapshot()).unwrap();
    let found = place.read(Loss::Refuse).unwrap();
    assert_eq!(found.state, place.state);
    assert_eq!(found.troubles.len(), 1, "{:?}", found.troubles);
    place.open(Loss::Refuse);
    assert!(!place.snapshot().exists());
    assert_eq!(place.quarantined()[0].0, "state.json.1");
}

#[test]
fn warning_says_that_the_journal_is_complete_only_if_it_is() {
    let place = Place::new();
    std::fs::write(place.snapshot(), "oops").unwrap();
    let whole = "the journal is undamaged up to record";
    let troubles = place.read(Loss::Refuse).unwrap().troubles;
    assert!(troubles[0].contains(whole), "{troubles:?}");
    place.damage(place.lines + 2);
    let troubles = place.read(Loss::Accept).unwrap().troubles;
    assert!(!troubles.concat().contains(whole), "{troubles:?}");
    assert_eq!(troubles.len(), 2);
}

#[test]
fn new_segment_after_tolerated_damage_has_the_full_state() {
    let place = Place::new();
    place.damage(3);
    let state = place.open(Loss::Refuse);
    std::fs::remove_file(place.snapshot()).unwrap();
    let found = place.read(Loss::Refuse).unwrap();
    assert_eq!(found.state, state, "the new segment has the full state");
}

#[test]
fn snapshot_of_another_loop_archives_that_loop() {
    let place = Place::new();
    let other = State::new(LoopId::from_u128(2));
    place.save(&other);
    let bytes = std::fs::read(place.snapshot()).unwrap();
    let its_dir = layout::loop_dir(place.dir.path(), other.loop_id);
    std::fs::create_dir_all(&its_dir).unwrap();
    assert_eq!(place.open(Loss::Refuse), place.state);
    assert!(!place.snapshot().exists());
    assert_eq!(std::fs::read(its_dir.join(ARCHIVED)).unwrap(), bytes);

    // The other loop is already archived with another snapshot.
    std::fs::write(its_dir.join(ARCHIVED), "").unwrap();
    std::fs::write(place.snapshot(), &bytes).unwrap();
    archive(
        place.dir.path(),
        place.state.loop_id,
        &place.snapshot(),
        &Encryption::plain(),
    )
    .unwrap();
    let kept = ("state.json.1".to_owned(), bytes);
    assert_eq!(place.quarantined(), [kept]);
}
