//! Backups on a real disk: a backup is either complete or absent, and foreign files are not changed.

mod forged;

use crate::encryption::Encryption;
use std::fs;

use tachikoma_core::{Input, Policy, State, step};

use super::*;
use crate::journal::Journal;
use crate::{checkpoints, layout};

static NOT_CANCELED: AtomicBool = AtomicBool::new(false);

/// A loop with some records, and its backup directory.
struct Place {
    dir: tempfile::TempDir,
    journal: Journal,
    state: State,
    packing: Packing,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let loop_id = LoopId::from_u128(1);
        let path = layout::loop_dir(dir.path(), loop_id);
        let now = Timestamp::from_millis(1_000);
        let (journal, state) = Journal::create(&path, loop_id, now, &Encryption::plain()).unwrap();
        let mut place = Self {
            dir,
            journal,
            state,
            packing: Packing::Plain,
        };
        checkpoints::write(
            &path,
            place.state.session.number,
            "go on there\n",
            &Encryption::plain(),
        )
        .unwrap();
        place.write("some words");
        place.write("more words");
        place
    }

    fn write(&mut self, words: &str) {
        let warning = words.to_owned();
        let now = self.state.time;
        let input = Input::Warning { warning };
        let decided = step(&Policy::default(), &mut self.state, now, input);
        self.journal.append_synced(&decided.records).unwrap();
    }

    fn moment(&self, millis: i64) -> Moment {
        let time = Timestamp::from_millis(millis);
        Moment {
            snapshot: Box::new(Snapshot::of(&self.state, self.dir.path(), time)),
            original: None,
            journal: Some(self.journal.part()),
            loop_dir: layout::loop_dir(self.dir.path(), self.state.loop_id),
            work: None,
            before_restore: false,
        }
    }

    fn backups(&self, max: u32) -> Backups {
        let dir = self.dir.path().join("backups");
        let packing = self.packing;
        Backups {
            encryption: Encryption::plain(),
            dir,
            max,
            packing,
        }
    }

    fn take(&self, max: u32, millis: i64) -> PathBuf {
        let taken = take(&self.backups(max), &self.moment(millis), &NOT_CANCELED).unwrap();
        assert_eq!(taken.troubles, [] as [String; 0]);
        taken.path
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.backups(0).dir).unwrap();
        let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
        let mut names: Vec<_> = entries.flatten().map(name).collect();
        names.sort();
        names
    }
}

#[test]
fn backup_has_the_exact_state_and_can_be_extracted_with_tar() {
    let mut place = Place::new();
    let path = place.take(10, 5_000);
    let kept = place.state.clone();
    place.write("behind it");
    let content = read_through(&path, &Encryption::plain()).unwrap();
    assert_eq!(content.state, kept);
    assert_eq!(content.manifest.seq, kept.seq);
    assert_eq!(place.names().len(), 1, "no other file is left");
    let listed = std::process::Command::new("tar")
        .arg("-tf")
        .arg(&path)
        .output();
    let listed = String::from_utf8(listed.unwrap().stdout).unwrap();
    let expected = [
        "manifest.json",
        "state.json",
        "journal-0001.jsonl",
        "checkpoints/0.md",
    ];
    assert_eq!(listed.lines().collect::<Vec<_>>(), expected);

    let out = place.dir.path().join("out");
    fs::create_dir(&out).unwrap();
    read_into(&path, &out, &Encryption::plain()).unwrap();
    let text = fs::read_to_string(out.join("checkpoints/0.md")).unwrap();
    assert_eq!(text, "go on there\n");
    assert!(!out.join("state.json").exists());
}

#[test]
fn compressed_backup_is_smaller_and_can_be_extracted_with_zstd_and_tar() {
    let mut place = Place::new();
    place.write(&"the same words ".repeat(2_000));
    let plain = place.take(10, 5_000);
    place.packing = Packing::Compressed;
    let packed = place.take(10, 6_000);
    assert!(packed.to_str().unwrap().ends_with(".tar.zst"));
    assert_eq!(
        read_through(&packed, &Encryption::plain()).unwrap().state,
        place.state
    );
    let size = |path: &Path| fs::metadata(path).unwrap().len();
    assert!(
        size(&packed) * 3 < size(&plain),
        "{} of {}",
        size(&packed),
        size(&plain)
    );
    let script = format!("zstd -dc {} | tar -t", packed.display());
    let listed = std::process::Command::new("sh")
        .args(["-c", &script])
        .output();
    let listed = String::from_utf8(listed.unwrap().stdout).unwrap();
    assert_eq!(listed.lines().count(), 4, "{listed}");
    // Compressed and uncompressed backups of a loop are listed together.
    place.take(1, 7_000);
    assert_eq!(place.names().len(), 1);
}

#[test]
fn changed_or_missing_byte_in_a_compressed_backup_is_detected() {
    let mut place = Place::new();
    place.packing = Packing::Compressed;
    let path = place.take(10, 5_000);
    let whole = fs::read(&path).unwrap();
    for at in (0..whole.len()).step_by(3) {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        fs::write(&path, flipped).unwrap();
        // A flipped bit may be one that has no meaning in a zstd frame.
        if let Ok(content) = read_through(&path, &Encryption::plain()) {
            assert_eq!(content.state, place.state, "flipped at {at}");
        }
        fs::write(&path, &whole[..at]).unwrap();
        read_through(&path, &Encryption::plain()).unwrap_err();
    }
}

#[test]
fn changed_or_missing_data_in_a_backup_is_detected() {
    let place = Place::new();
    let path = place.take(10, 5_000);
    let whole = fs::read(&path).unwrap();
    let mut harmless = 0;
    // Testing every byte takes too long. This sample covers every file and every bit position.
    for at in (0..whole.len()).step_by(7) {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        fs::write(&path, flipped).unwrap();
        match read_through(&path, &Encryption::plain()) {
            Ok(content) => {
                assert_eq!(content.state, place.state, "flipped at {at}");
                harmless += 1;
            }
            Err(
                StoreError::DamagedBackup { .. }
                | StoreError::NewerBackup { .. }
                | StoreError::NewerSnapshot { .. }
                | StoreError::Newer { .. },
            ) => {}
            Err(error) => panic!("flipped at {at}: {error:?}"),
        }
    }
    // Only changed padding of the tar archive may go undetected.
    assert!(harmless < 4 * 512 / 7, "{harmless} of {}", whole.len());
    for cut in (0..whole.len()).step_by(499) {
        fs::write(&path, &whole[..cut]).unwrap();
        let read = read_through(&path, &Encryption::plain());
        // A backup without the end marker of the tar file is complete, because the marker contains no data.
        let is_good = read.is_ok_and(|content| content.state == place.state);
        assert!(!is_good || cut >= whole.len() - 1_024, "cut at {cut}");
    }
}

/// The hand-off, unlike the snapshot and the records, is protected only by the checksum in the manifest.
#[test]
fn changed_hand_off_in_a_backup_is_damage() {
    let place = Place::new();
    let path = place.take(10, 5_000);
    let mut bytes = fs::read(&path).unwrap();
    let words = b"go on there";
    let found = |from: &[u8]| from.windows(words.len()).position(|text| text == words);
    let at = found(&bytes).unwrap();
    bytes[at] = b'G';
    fs::write(&path, bytes).unwrap();
    let error = read_through(&path, &Encryption::plain())
        .unwrap_err()
        .to_string();
    let said = "the checksum of checkpoints/0.md does not match";
    assert!(error.ends_with(said), "{error}");
}

#[test]
fn backups_get_unique_names_and_the_oldest_are_removed() {
    let mut place = Place::new();
    let first = place.take(2, 5_000);
    let same = place.take(2, 5_999);
    assert_ne!(first, same, "the same record in the same second");
    place.write("on");
    let third = place.take(2, 7_000);
    assert!(
        !first.exists() && same.exists() && third.exists(),
        "{:?}",
        place.names()
    );
    // The clock was set back, so the new backup looks like the oldest. It is not removed.
    let fourth = place.take(1, 1_000);
    assert!(fourth.exists() && !third.exists(), "{:?}", place.names());
    for millis in 20..40 {
        place.take(0, millis * 1_000);
    }
    assert_eq!(
        place.names().len(),
        21,
        "with a limit of 0, all backups are kept"
    );
}

#[test]
fn rotation_removes_only_backups_of_this_loop() {
    let mut place = Place::new();
    let path = place.take(1, 1_000);
    let dir = place.backups(1).dir;
    let name = path.file_name().unwrap().to_str().unwrap().to_owned();
    let of_another = name.replace("000000000001-", "000000000002-");
    let damaged = name.replace("T000001Z", "T000000Z");
    fs::copy(&path, dir.join(&of_another)).unwrap();
    fs::write(dir.join(&damaged), "not a backup any more").unwrap();
    fs::write(dir.join("notes.tar"), "mine").unwrap();
    // A process reserved this name and died.
    let empty = name.replace("T000001Z", "T000000Z-2");
    fs::write(dir.join(&empty), "").unwrap();
    age(&dir.join(&empty));
    // Another process may still be writing this recent file.
    let young = name.replace("T000001Z", "T000000Z-3");
    fs::write(dir.join(&young), "").unwrap();
    place.write("on");
    let newest = place.take(1, 9_000);
    let newest = newest.file_name().unwrap().to_str().unwrap().to_owned();
    let mut expected = vec![of_another, damaged, young, "notes.tar".to_owned(), newest];
    expected.sort();
    assert_eq!(place.names(), expected);
}

/// Sets the modification time of a file so far back that its writer counts as dead.
fn age(path: &Path) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    let written = file.metadata().unwrap().modified().unwrap();
    let then = written - std::time::Duration::from_secs(7_200);
    file.set_modified(then).unwrap();
}

/// Files with the name of a backup and other content must not push real backups out of the limit.
#[test]
fn empty_backup_files_are_not_listed() {
    let mut place = Place::new();
    let mut good = Vec::new();
    for second in 1..=3 {
        place.write("on");
        good.push(place.take(3, second * 1_000));
    }
    let dir = place.backups(3).dir;
    let name = good[2].file_name().unwrap().to_str().unwrap().to_owned();
    for number in 1..=2 {
        let newer = name.replace("T000003Z", &format!("T00100{number}Z"));
        fs::write(dir.join(newer), "").unwrap();
    }
    place.write("on");
    good.push(place.take(3, 4_000));
    let there: Vec<bool> = good.iter().map(|path| path.exists()).collect();
    assert_eq!(there, [false, true, true, true]);
}

/// After the clock was ahead for a while, new backups must not count as the oldest.
#[test]
fn rotation_orders_backups_by_record_number() {
    let mut place = Place::new();
    for second in 1..=3 {
        place.write("on");
        place.take(3, 1_000_000_000 + second * 1_000);
    }
    let mut later = Vec::new();
    for second in 1..=3 {
        place.write("on");
        later.push(place.take(3, second * 1_000));
    }
    assert!(
        later.iter().all(|path| path.exists()),
        "{:?}",
        place.names()
    );
    assert_eq!(place.names().len(), 3);
}

/// The same loop was also restored into another directory, which uses the same backup directory.
#[test]
fn rotation_keeps_backups_of_other_epochs() {
    let mut place = Place::new();
    let first = place.take(1, 1_000);
    place.write("on");
    let mut moment = place.moment(2_000);
    moment.snapshot.state.epoch = crate::journal::new_epoch();
    moment.journal = None;
    let other = take(&place.backups(1), &moment, &NOT_CANCELED)
        .unwrap()
        .path;
    assert!(first.exists() && other.exists());
    let second = place.take(1, 3_000);
    assert!(!first.exists() && other.exists() && second.exists());

    let epoch = moment.snapshot.state.epoch;
    let dir = place.backups(1).dir;
    let [theirs, ours] = [&place.state.epoch, &epoch].map(|epoch| files::temporary(&dir, epoch));
    for path in [&theirs, &ours] {
        fs::write(path, "half a backup").unwrap();
    }
    remove_remains(&dir, Some(&epoch));
    assert!(theirs.exists() && !ours.exists());
    age(&theirs);
    remove_remains(&dir, Some(&epoch));
    assert!(
        !theirs.exists(),
        "the process that wrote this file has died"
    );
    let loop_id = place.state.loop_id;
    remove_of(&dir, loop_id, Some(&epoch), &Encryption::plain()).unwrap();
    assert!(!other.exists() && second.exists());
}

#[test]
fn failed_backup_leaves_no_file_and_removes_none() {
    let place = Place::new();
    let kept = place.take(1, 1_000);
    let backups = place.backups(1);
    let error = take(&backups, &place.moment(2_000), &AtomicBool::new(true)).unwrap_err();
    assert!(matches!(error, StoreError::File(_)), "{error:?}");
    // The journal and the snapshot of this input have different states.
    let mut moment = place.moment(2_000);
    moment.journal.as_mut().unwrap().len -= 2;
    take(&backups, &moment, &NOT_CANCELED).unwrap_err();
    let mut moment = place.moment(2_000);
    moment.snapshot.seq = Seq(2);
    take(&backups, &moment, &NOT_CANCELED).unwrap_err();
    assert_eq!(place.names().len(), 1);
    assert!(kept.exists());
}

#[test]
fn newer_backup_format_is_reported_first() {
    let place = Place::new();
    let path = place.take(1, 1_000);
    let text = fs::read(&path).unwrap();
    let at = text
        .windows(10)
        .position(|found| found == b"{\"backup\":")
        .unwrap();
    let mut newer = text;
    newer[at + 10] = b'9';
    fs::write(&path, newer).unwrap();
    let error = read_through(&path, &Encryption::plain()).unwrap_err();
    assert!(
        matches!(error, StoreError::NewerBackup { found: 9, .. }),
        "{error:?}"
    );
}

/// The last record is complete but has no line end. The backup adds one, because more lines may follow.
#[test]
fn backup_adds_a_missing_line_end() {
    let place = Place::new();
    let mut moment = place.moment(2_000);
    let part = moment.journal.as_mut().unwrap();
    part.len -= 1;
    part.unended = true;
    let path = take(&place.backups(1), &moment, &NOT_CANCELED)
        .unwrap()
        .path;
    let out = place.dir.path().join("out");
    fs::create_dir(&out).unwrap();
    read_into(&path, &out, &Encryption::plain()).unwrap();
    let name = "journal-0001.jsonl";
    let there =
        fs::read(layout::loop_dir(place.dir.path(), place.state.loop_id).join(name)).unwrap();
    assert_eq!(fs::read(out.join(name)).unwrap(), there);
}
