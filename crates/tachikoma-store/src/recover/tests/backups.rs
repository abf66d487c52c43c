//! Recovery from backups: damaged records that they contain, and backups of other epochs.

use crate::encryption::Encryption;
use std::sync::atomic::AtomicBool;

use super::*;
use crate::backup::{self, Backups};
use crate::snapshot::Packing;

fn backups(place: &Place) -> Backups {
    Backups {
        encryption: Encryption::plain(),
        dir: place.dir.path().join("backups"),
        max: 0,
        packing: Packing::Plain,
    }
}

/// Takes a backup of the loop in its current state.
fn back_up(place: &Place) -> PathBuf {
    let found = place.read(Loss::Refuse).unwrap();
    let now = Timestamp::from_millis(5_000);
    let moment = found.moment(&place.dir(), place.dir.path(), now);
    let taken = backup::take(&backups(place), &moment, &AtomicBool::new(false));
    taken.unwrap().path
}

/// Appends a record to the journal.
fn append_record(place: &mut Place, words: &str) {
    let found = place.read(Loss::Refuse).unwrap();
    let taken = found.open(&place.dir(), place.dir.path()).unwrap();
    let (mut journal, mut state) = (taken.journal, taken.state);
    let warning = words.to_owned();
    let now = state.time;
    let decided = step(
        &Policy::default(),
        &mut state,
        now,
        Input::Warning { warning },
    );
    journal.append_synced(&decided.records).unwrap();
    place.state = state;
}

#[test]
fn recovery_uses_a_backup_if_the_damaged_records_are_in_it() {
    let mut place = Place::new();
    std::fs::remove_file(place.snapshot()).unwrap();
    back_up(&place);
    append_record(&mut place, "after the backup");
    place.damage(4);
    let found = place.read(Loss::Refuse).unwrap();
    assert_eq!((&found.state, found.source), (&place.state, Source::Backup));
    let told = &found.troubles[0];
    assert!(told.starts_with("falling back to backup "), "{told}");
    assert!(told.contains("is damaged at line 4"), "{told}");
    place.open(Loss::Refuse);
    std::fs::remove_dir_all(backups(&place).dir).unwrap();
    place.read(Loss::Refuse).unwrap();
}

#[test]
fn recovery_skips_a_damaged_backup() {
    let mut place = Place::new();
    std::fs::remove_file(place.snapshot()).unwrap();
    let older = back_up(&place);
    append_record(&mut place, "between");
    let newer = back_up(&place);
    assert_ne!(older, newer);
    let mut bytes = std::fs::read(&newer).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    std::fs::write(&newer, bytes).unwrap();
    place.damage(4);
    let found = place.read(Loss::Refuse).unwrap();
    assert_eq!(found.state, place.state);
    let name = older.display().to_string();
    assert!(found.troubles[0].contains(&name), "{:?}", found.troubles);
}

#[test]
fn recovery_from_a_backup_refuses_to_lose_later_records() {
    let mut place = Place::new();
    std::fs::remove_file(place.snapshot()).unwrap();
    back_up(&place);
    let kept = place.state.clone();
    append_record(&mut place, "after the backup");
    append_record(&mut place, "more");
    let lines = std::fs::read_to_string(place.journal()).unwrap();
    place.damage(lines.lines().count() - 1);
    let error = place.read(Loss::Refuse).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error:?}");

    // Only the first records of the journal are left.
    let first: String = lines
        .lines()
        .take(4)
        .map(|line| format!("{line}\n"))
        .collect();
    std::fs::write(place.journal(), first).unwrap();
    place.damage(3);
    place.read(Loss::Refuse).unwrap_err();
    let found = place.read(Loss::Accept).unwrap();
    assert_eq!((&found.state, found.source), (&kept, Source::Backup));
    assert!(found.troubles.iter().any(|told| told.contains("are lost")));
    place.open(Loss::Accept);
}

/// After a restore, the same record numbers are used for other records.
#[test]
fn backup_of_another_epoch_is_not_used_for_recovery() {
    let mut place = Place::new();
    std::fs::remove_file(place.snapshot()).unwrap();
    let cut = std::fs::read(place.journal()).unwrap();
    let before = place.state.clone();
    append_record(&mut place, "an epoch that was given up");
    let of_another = back_up(&place);
    // A restore does not change the old segment and starts the next one.
    std::fs::write(place.journal(), cut).unwrap();
    let mut state = before;
    let now = state.time;
    let mut journal = Journal::begin_restored(
        &place.dir(),
        2,
        &mut state,
        now,
        false,
        &Encryption::plain(),
    )
    .unwrap();
    let decided = step(
        &Policy::default(),
        &mut state,
        now,
        Input::Warning {
            warning: "a".into(),
        },
    );
    journal.append_synced(&decided.records).unwrap();
    let decided = step(
        &Policy::default(),
        &mut state,
        now,
        Input::Warning {
            warning: "b".into(),
        },
    );
    journal.append_synced(&decided.records).unwrap();
    assert_eq!(place.read(Loss::Refuse).unwrap().state, state);
    let second = place.dir().join("journal-0002.jsonl");
    let text = std::fs::read_to_string(&second).unwrap();
    let line = text.lines().next().unwrap();
    std::fs::write(
        &second,
        text.replacen("segment_opened", "segment_0pened", 1),
    )
    .unwrap();
    assert!(of_another.exists() && !line.is_empty());
    // The backup has the number of the damaged record, but belongs to another epoch.
    place.read(Loss::Refuse).unwrap_err();
}

/// A backup that is taken while the journal is damaged contains no journal, and ends at the damage.
#[test]
fn backup_without_a_journal_repairs_a_damaged_journal() {
    let place = Place::new();
    place.save(&place.state);
    place.damage(4);
    let taken = back_up(&place);
    let told = backup::manifest_of(&taken, &Encryption::plain()).unwrap();
    assert_eq!(told.segment, None);
    std::fs::remove_file(place.snapshot()).unwrap();
    let found = place.read(Loss::Refuse).unwrap();
    assert_eq!((&found.state, found.source), (&place.state, Source::Backup));
}
