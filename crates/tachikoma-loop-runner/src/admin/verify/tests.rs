//! Tests of `verify` with valid files and with each kind of damage.

use crate::store::encryption::Encryption;
use std::fs;
use std::io::Read as _;
use std::sync::atomic::AtomicBool;

use tachikoma_core::{Input, Policy, State, Timestamp, step};

use super::*;
use crate::git::worktree_tree::Bounds;
use crate::store::archive::archive;
use crate::store::backup::Backups;
use crate::store::journal::Journal;
use crate::store::recover::open_journal;
use crate::store::snapshot::Durability;
use crate::store::snapshot::Packing;

struct Place {
    dir: tempfile::TempDir,
    store_config: StoreConfig,
    state: State,
}

fn write(journal: &mut Journal, state: &mut State, words: &str) {
    let input = Input::Warning {
        warning: words.to_owned(),
    };
    let now = state.time;
    let decided = step(&Policy::default(), state, now, input);
    journal.append_synced(&decided.records).unwrap();
}

impl Place {
    /// Creates a loop with three segments (the first one compressed), a snapshot taken in the second segment, and a transcript.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let working_dir = dir.path().join("w");
        let store_config = StoreConfig {
            encryption: Encryption::plain(),
            snapshot: working_dir.join(".ralph/state.json"),
            backups: Backups {
                encryption: Encryption::plain(),
                dir: working_dir.join(".ralph/backups"),
                max: 10,
                packing: Packing::Plain,
            },
            packing: Packing::Plain,
            state_dir: working_dir.join(".ralph/sessions"),
            cloud: None,
            bounds: Bounds::default(),
            search_path: None,
            runtime_dir: dir.path().join("r"),
            temporary_dir: dir.path().join("t"),
            working_dir,
        };
        let loop_id = LoopId::from_u128(1);
        let path = layout::loop_dir(&store_config.working_dir, loop_id);
        let now = Timestamp::from_millis(1_000);
        let (mut journal, mut state) =
            Journal::create(&path, loop_id, now, &Encryption::plain()).unwrap();
        for segment in 1..=3 {
            write(&mut journal, &mut state, "some words");
            write(&mut journal, &mut state, "more words");
            if segment == 2 {
                Snapshot::of(&state, &store_config.working_dir, now)
                    .write(
                        &store_config.snapshot,
                        Packing::Plain,
                        Durability::Synced,
                        &Encryption::plain(),
                    )
                    .unwrap();
            }
            if segment < 3 {
                journal.next_segment(&mut state, now).unwrap();
            }
        }
        let canceled = AtomicBool::new(false);
        compressed::replace(
            &path.join("journal-0001.jsonl"),
            &Encryption::plain(),
            &canceled,
        )
        .unwrap();
        let transcripts = store_config.state_dir.join(loop_id.to_string());
        fs::create_dir_all(&transcripts).unwrap();
        fs::write(transcripts.join("000001.1.log"), "words of the agent\n").unwrap();
        compressed::replace(
            &transcripts.join("000001.1.log"),
            &Encryption::plain(),
            &canceled,
        )
        .unwrap();
        fs::write(transcripts.join("000002.1.log"), "plain\n").unwrap();
        Self {
            dir,
            store_config,
            state,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        layout::loop_dir(&self.store_config.working_dir, self.state.loop_id).join(name)
    }

    fn verify(&self) -> Vec<Checked> {
        let mut all = Vec::new();
        verify(&self.store_config, || false, |checked| all.push(checked)).unwrap();
        all
    }

    /// Returns one report line per object, with file names instead of paths.
    fn told(&self) -> String {
        let line = |checked: &Checked| {
            let name = checked.path.file_name().unwrap().to_string_lossy();
            format!("{:?} {name}: {}\n", checked.verdict, checked.what)
        };
        self.verify().iter().map(line).collect()
    }

    fn wrong(&self) -> Vec<(String, String)> {
        let wrong = self.verify().into_iter();
        wrong
            .filter(|one| one.verdict == Verdict::Wrong)
            .map(|one| {
                let name = one.path.file_name().unwrap().to_string_lossy();
                (name.into_owned(), one.what)
            })
            .collect()
    }
}

#[test]
fn verify_reports_valid_files_as_good_each_time() {
    let place = Place::new();
    let expected = "Good journal-0001.jsonl.zst: records 1 to 3\n\
                    Good journal-0002.jsonl: records 4 to 6\n\
                    Good journal-0003.jsonl: records 7 to 9\n\
                    Good state.json: it equals the state at record 6\n\
                    Good loop_00000000-0000-0000-0000-000000000001: 2 files\n";
    assert_eq!(place.told(), expected);
    assert_eq!(place.told(), expected);
}

/// Returns the uncompressed content of a file; `None` if it cannot be read.
fn plain(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut content = compressed::open(path, &Encryption::plain())
        .unwrap()
        .content;
    content.read_to_end(&mut bytes).ok().map(|_| bytes)
}

#[test]
fn verify_finds_flipped_bytes_in_every_kind_of_file() {
    let place = Place::new();
    let transcript = place
        .store_config
        .state_dir
        .join(place.state.loop_id.to_string())
        .join("000001.1.log.zst");
    for path in [
        place.path("journal-0001.jsonl.zst"),
        place.path("journal-0002.jsonl"),
        place.path("journal-0003.jsonl"),
        place.store_config.snapshot.clone(),
        transcript,
    ] {
        let good = fs::read(&path).unwrap();
        let content = plain(&path);
        // The last byte of the open segment is the newline of its last line. Without it, the line counts as unfinished and not as damaged.
        let torn = path.ends_with("journal-0003.jsonl");
        // Only some bytes are flipped here. The soak `flip` flips every byte. The first 24 bytes include the headers of compressed frames.
        let end = good.len() - usize::from(torn);
        for at in (0..end.min(24)).chain((24..end).step_by(23)) {
            let mut flipped = good.clone();
            flipped[at] ^= 1 << (at % 8);
            fs::write(&path, &flipped).unwrap();
            // Some bits in the header of a frame have no meaning. After such a flip the content can still be read.
            let harmless = compressed::is_compressed(&path) && plain(&path) == content;
            assert_eq!(
                place.wrong().is_empty(),
                harmless,
                "{} at {at}",
                path.display()
            );
        }
        fs::write(&path, good).unwrap();
        assert_eq!(place.wrong(), []);
    }
}

#[test]
fn a_snapshot_that_differs_from_its_records_is_damaged() {
    let place = Place::new();
    let found = snapshot::read(&place.store_config.snapshot, &Encryption::plain())
        .unwrap()
        .unwrap();
    let mut lie = found.clone();
    lie.state.iteration = 7;
    lie.write(
        &place.store_config.snapshot,
        Packing::Plain,
        Durability::Lazy,
        &Encryption::plain(),
    )
    .unwrap();
    let name = "state.json".to_owned();
    let what = "it differs from the state at record 6".to_owned();
    assert_eq!(place.wrong(), [(name.clone(), what)]);
    let mut ahead = found;
    ahead.seq.0 = 10;
    ahead
        .write(
            &place.store_config.snapshot,
            Packing::Plain,
            Durability::Lazy,
            &Encryption::plain(),
        )
        .unwrap();
    let what = "it is at record 10, and the journal ends at record 9".to_owned();
    assert_eq!(place.wrong(), [(name, what)]);
}

#[test]
fn segment_that_starts_with_another_state_is_damaged() {
    let place = Place::new();
    let (mut journal, mut state) = open_journal(&place.path(""), &Encryption::plain()).unwrap();
    state.iteration = 7;
    let now = state.time;
    journal.next_segment(&mut state, now).unwrap();
    let what = "damaged at line 1: its state differs from that of the records before it";
    assert_eq!(
        place.wrong(),
        [("journal-0004.jsonl".to_owned(), what.to_owned())]
    );
}

#[test]
fn missing_segments_are_damage_and_recorded_losses_are_not() {
    let place = Place::new();
    let first = fs::read(place.path("journal-0001.jsonl.zst")).unwrap();
    fs::remove_file(place.path("journal-0001.jsonl.zst")).unwrap();
    let missing = |name: &str, from: u32, to: u32| {
        let what = format!("damaged at line 1: records {from} to {to} are missing before it");
        (name.to_owned(), what)
    };
    assert_eq!(place.wrong(), [missing("journal-0002.jsonl", 1, 3)]);
    fs::write(place.path("journal-0001.jsonl.zst"), first).unwrap();
    fs::remove_file(place.path("journal-0002.jsonl")).unwrap();
    assert_eq!(place.wrong(), [missing("journal-0003.jsonl", 4, 6)]);

    let place = Place::new();
    let (mut journal, mut state) = open_journal(&place.path(""), &Encryption::plain()).unwrap();
    fs::write(place.path("journal-0003.jsonl"), "").unwrap();
    let wound = journal.damage().unwrap();
    let now = state.time;
    journal.repair(wound, &mut state, now).unwrap();
    assert_eq!(place.wrong(), []);
    let told = place.told();
    assert!(
        told.contains("records 10 to 10; records 7 to 9 are lost, as the segment says"),
        "{told}"
    );
    assert!(
        told.contains("Note journal-0003.jsonl.1: 0 bytes"),
        "{told}"
    );
}

#[test]
fn an_incomplete_last_line_is_damage_only_in_a_closed_segment() {
    let place = Place::new();
    let torn = |name: &str| {
        let path = place.path(name);
        let mut bytes = fs::read(&path).unwrap();
        bytes.truncate(bytes.len() - 5);
        fs::write(path, bytes).unwrap();
    };
    torn("journal-0003.jsonl");
    assert_eq!(place.wrong(), []);
    assert!(place.told().contains("its last line is incomplete"));
    torn("journal-0002.jsonl");
    assert_eq!(place.wrong()[0].0, "journal-0002.jsonl");
}

#[test]
fn verify_checks_archived_loops_and_their_snapshots() {
    let place = Place::new();
    let StoreConfig {
        working_dir,
        snapshot,
        ..
    } = &place.store_config;
    archive(
        working_dir,
        place.state.loop_id,
        snapshot,
        &Encryption::plain(),
    )
    .unwrap();
    assert!(!snapshot.exists());
    assert_eq!(
        crate::store::loops::current(working_dir, snapshot, &Encryption::plain()).unwrap(),
        None
    );
    let told = place.told();
    let kept = "Good archived.json: it equals the state at record 6";
    assert!(told.contains(kept), "{told}");
    let path = place.path(ARCHIVED);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("more", "mode").replace("seq", "sex")).unwrap();
    assert_eq!(place.wrong()[0].0, ARCHIVED);
    drop(place.dir);
}

/// While a runner is running, damage is checked again. Damage that stays is reported.
#[test]
fn temporary_damage_of_a_running_loop_is_not_reported() {
    let place = Place::new();
    let path = place.path("journal-0002.jsonl");
    let good = fs::read(&path).unwrap();
    fs::write(&path, &good[1..]).unwrap();
    let mut wrong = 0;
    let count = |wrong: &mut u32, checked: &Checked| {
        *wrong += u32::from(checked.verdict == Verdict::Wrong);
    };
    verify(&place.store_config, || true, |one| count(&mut wrong, &one)).unwrap();
    assert_eq!(wrong, 1);
    let mends = || {
        fs::write(&path, &good).unwrap();
        true
    };
    wrong = 0;
    verify(&place.store_config, mends, |one| count(&mut wrong, &one)).unwrap();
    assert_eq!(wrong, 0);
}
