//! Old loops are deleted, and files of other programs are kept.

use crate::store::encryption::Encryption;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use super::*;
use crate::store::journal::Journal;
use crate::store::layout;
use crate::store::snapshot::Packing;
use tachikoma_core::SessionNo;

fn backups_in(dir: PathBuf) -> Backups {
    Backups {
        dir,
        max: 0,
        packing: Packing::Plain,
        encryption: Encryption::plain(),
    }
}

static NOT_CANCELED: AtomicBool = AtomicBool::new(false);
const REMAINS: &str = "journal-0001.jsonl.zst.018f2f6e-0000-7000-8000-000000000000.tmp";

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    /// Creates loops 1 to `count`, each with a transcript. Each loop started later than the one before.
    fn new(count: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let place = Self { dir };
        for number in 1..=count {
            let now = Timestamp::from_millis(i64::from(number) * 1000);
            // The loop ids sort in the opposite order of the start times.
            Journal::create(
                &place.journal(number),
                id(number),
                now,
                &Encryption::plain(),
            )
            .unwrap();
            fs::create_dir_all(place.transcripts(number)).unwrap();
            fs::write(place.transcripts(number).join("000001.1.log"), "x").unwrap();
        }
        place
    }

    fn journal(&self, number: u32) -> PathBuf {
        layout::loop_dir(self.dir.path(), id(number))
    }

    fn transcripts(&self, number: u32) -> PathBuf {
        self.sessions().join(id(number).to_string())
    }

    fn sessions(&self) -> PathBuf {
        self.dir.path().join(".ralph/sessions")
    }

    fn backups(&self) -> PathBuf {
        self.dir.path().join("backups")
    }

    fn prune(&self, current: u32) {
        let dir = self.dir.path();
        prune(
            dir,
            &self.sessions(),
            &backups_in(self.backups()),
            id(current),
            &NOT_CANCELED,
        )
        .unwrap();
    }

    /// Returns the loops of which any file exists.
    fn left(&self, of: u32) -> Vec<u32> {
        (1..=of)
            .filter(|number| self.journal(*number).exists() || self.transcripts(*number).exists())
            .collect()
    }

    /// Returns the loops of which all files exist.
    fn whole(&self, of: u32) -> Vec<u32> {
        (1..=of)
            .filter(|number| {
                self.journal(*number).join("journal-0001.jsonl").exists()
                    && self.transcripts(*number).join("000001.1.log").exists()
            })
            .collect()
    }
}

fn id(number: u32) -> LoopId {
    LoopId::from_u128(u128::from(1000 - number))
}

#[test]
fn prune_keeps_the_last_ten_loops_and_the_current_loop() {
    let place = Place::new(13);
    place.prune(13);
    assert_eq!(place.left(13), (4..=13).collect::<Vec<_>>());
    assert_eq!(place.whole(13), place.left(13));

    let place = Place::new(13);
    place.prune(2);
    let mut expected = vec![2];
    expected.extend(4..=13);
    assert_eq!(
        place.whole(13),
        expected,
        "the current loop is kept although it is old"
    );

    let place = Place::new(10);
    place.prune(10);
    assert_eq!(place.whole(10).len(), LOOPS_KEPT);
}

#[test]
fn prune_deletes_compressed_and_partial_files_of_old_loops() {
    let place = Place::new(11);
    for name in ["journal-0002.jsonl.zst", "journal-0003.jsonl", REMAINS] {
        fs::write(place.journal(1).join(name), "x").unwrap();
    }
    for name in [
        "000002.1.log.zst",
        "000003.1.2.log",
        "000003.1.2.log.tail-a",
    ] {
        fs::write(place.transcripts(1).join(name), "x").unwrap();
    }
    place.prune(11);
    assert_eq!(place.left(11), (2..=11).collect::<Vec<_>>());
}

#[test]
fn loop_with_foreign_files_is_not_deleted() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("precious"), "x").unwrap();
    let strangers: [fn(&Path, &Path); 4] = [
        |dir, _| fs::write(dir.join("notes.md"), "x").unwrap(),
        |dir, _| fs::create_dir(dir.join("journal-0002.jsonl")).unwrap(),
        |dir, outside| symlink(outside.join("precious"), dir.join("journal-0002.jsonl")).unwrap(),
        |dir, outside| symlink(outside, dir.join("000002.1.log")).unwrap(),
    ];
    for stranger in strangers {
        for in_journal in [true, false] {
            let place = Place::new(12);
            let dir = if in_journal {
                place.journal(1)
            } else {
                place.transcripts(1)
            };
            stranger(&dir, outside.path());
            place.prune(12);
            let mut expected = vec![1];
            expected.extend(3..=12);
            assert_eq!(
                place.whole(12),
                expected,
                "loop 2 is deleted, and loop 1 with the foreign file is kept"
            );
            assert!(outside.path().join("precious").exists());
        }
    }
}

#[test]
fn foreign_directories_are_not_counted_as_loops() {
    let place = Place::new(11);
    let ralph = place.dir.path().join(".ralph");
    let outside = Place::new(1);
    let dirs = [
        "loops/notes",
        "loops/loop_1",
        // An id in upper case, which Tachikoma never writes.
        "loops/loop_AAAAAAAA-0000-4000-8000-000000000000",
        "sessions/other",
        "other",
    ];
    for dir in dirs {
        fs::create_dir_all(ralph.join(dir)).unwrap();
        fs::write(ralph.join(dir).join("journal-0001.jsonl"), "x").unwrap();
    }
    fs::write(ralph.join("loops").join(id(500).to_string()), "a file").unwrap();
    symlink(
        outside.journal(1),
        ralph.join("loops").join(id(600).to_string()),
    )
    .unwrap();
    place.prune(11);
    assert_eq!(place.left(11), (2..=11).collect::<Vec<_>>());
    for dir in dirs {
        assert!(ralph.join(dir).join("journal-0001.jsonl").exists(), "{dir}");
    }
    assert!(ralph.join("loops").join(id(500).to_string()).exists());
    assert!(ralph.join("loops").join(id(600).to_string()).is_symlink());
    assert_eq!(outside.whole(1), [1], "no link is followed");
}

#[test]
fn symbolic_links_in_place_of_our_directories_are_not_followed() {
    let elsewhere = Place::new(12);
    let all: Vec<u32> = (1..=12).collect();
    for link in [".ralph", ".ralph/loops"] {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join(link).parent().unwrap()).unwrap();
        symlink(elsewhere.dir.path().join(link), dir.path().join(link)).unwrap();
        prune(
            dir.path(),
            &elsewhere.sessions(),
            &backups_in(PathBuf::new()),
            id(12),
            &NOT_CANCELED,
        )
        .expect_err(link);
        assert_eq!(elsewhere.whole(12), all);
    }
    let place = Place::new(12);
    fs::rename(place.sessions(), place.dir.path().join("moved")).unwrap();
    symlink(place.dir.path().join("moved"), place.sessions()).unwrap();
    place.prune(12);
    assert_eq!(
        place.whole(12),
        all,
        "a loop is deleted completely or not at all"
    );
}

#[test]
fn partly_deleted_loop_is_deleted_first() {
    let place = Place::new(11);
    // Loop 5 is partly deleted, as if a crash had interrupted its deletion before the last step.
    fs::remove_file(place.journal(5).join("journal-0001.jsonl")).unwrap();
    fs::remove_dir_all(place.transcripts(5)).unwrap();
    place.prune(11);
    let expected: Vec<u32> = (1..=11).filter(|number| *number != 5).collect();
    assert_eq!(place.left(11), expected);
}

#[test]
fn canceled_prune_deletes_nothing() {
    let place = Place::new(12);
    let canceled = AtomicBool::new(true);
    let (sessions, backups) = (place.sessions(), place.backups());
    prune(
        place.dir.path(),
        &sessions,
        &backups_in(backups.clone()),
        id(12),
        &canceled,
    )
    .unwrap();
    assert_eq!(place.whole(12).len(), 12);
}

#[test]
fn loop_with_foreign_files_among_its_hand_offs_is_not_deleted() {
    let place = Place::new(13);
    for number in [1, 2, 3] {
        checkpoints::write(
            &place.journal(number),
            SessionNo(2),
            "x",
            &Encryption::plain(),
        )
        .unwrap();
    }
    let theirs = checkpoints::dir(&place.journal(2)).join("notes.txt");
    fs::write(&theirs, "x").unwrap();
    // The directory of the hand-offs is replaced by a symbolic link.
    let linked = checkpoints::dir(&place.journal(3));
    fs::rename(&linked, place.dir.path().join("elsewhere")).unwrap();
    symlink(place.dir.path().join("elsewhere"), &linked).unwrap();
    place.prune(13);
    assert_eq!(place.left(3), [2, 3]);
    assert_eq!(place.whole(3), [2, 3]);
    assert!(theirs.exists());
    assert!(place.dir.path().join("elsewhere/2.md").exists());
}
