//! Every file format that was ever released can still be read. The files in `tests/data/formats/` were written by the versions of the
//! program that used these formats. They are never changed. A new format adds its own files.
//!
//! `journal-N/` is the journal of a loop that was killed during an iteration, with an accepted loss and a compressed segment. `events.jsonl`
//! beside it has at least one event of each type, and `inputs.jsonl` one input of each form.
//! `snapshot-N/` is the snapshot of that loop, one record before the end of the journal.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use tachikoma_loop_runner::store::encryption::Encryption;

use serde_json::Value;
use tachikoma_core::{LoopEvent, Phase, RecordedInput, Seq, State, apply};
use tachikoma_loop_runner::store::journal::{self, FORMAT};
use tachikoma_loop_runner::store::recover::{self, Copies, Loss, Recovered, Source};
use tachikoma_loop_runner::store::snapshot::{self, VERSION};

fn data(name: &str) -> PathBuf {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/formats");
    data.join(name)
}

/// Copies the journal and the snapshot of a format to a temporary directory, where the test can change them.
fn unpack(journal: u32, version: u32) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let from = data(&format!("journal-{journal}"));
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
    }
    let snapshot = data(&format!("snapshot-{version}")).join("state.json");
    fs::copy(snapshot, dir.path().join("state.json")).unwrap();
    dir
}

fn read(dir: &Path) -> Recovered {
    let path = dir.join("state.json");
    let loop_id = snapshot::read(&path, &Encryption::plain())
        .unwrap()
        .unwrap()
        .loop_id;
    recover::read(
        dir,
        &Copies::only(&path, &Encryption::plain()),
        loop_id,
        Loss::Refuse,
    )
    .unwrap()
}

/// Returns the state after applying the journal records up to `up_to`.
fn fold(dir: &Path, up_to: Seq) -> State {
    let mut state = None;
    journal::read_records(dir, &Encryption::plain(), Seq(0), |record| {
        if let LoopEvent::SegmentOpened { state: full, .. } = &record.event {
            state.get_or_insert_with(|| (**full).clone());
        }
        if record.seq <= up_to {
            apply(state.as_mut().unwrap(), &record);
        }
    })
    .unwrap();
    state.unwrap()
}

/// Checks that both states agree in every field that the old program wrote to its snapshot. The states may have further fields:
/// newer versions read more from the same records.
fn agrees(old: &State, new: &State, written: &Value) {
    let (old, new) = (
        serde_json::to_value(old).unwrap(),
        serde_json::to_value(new).unwrap(),
    );
    contains("state", &old, &new, written);
}

/// Compares only the members of `old` and `new` that `written` also has.
fn contains(path: &str, old: &Value, new: &Value, written: &Value) {
    match written {
        Value::Object(members) => {
            for (name, value) in members {
                contains(&format!("{path}.{name}"), &old[name], &new[name], value);
            }
        }
        _ => assert_eq!(old, new, "{path}"),
    }
}

#[test]
fn every_format_has_its_files() {
    for format in 1..=FORMAT {
        let dir = data(&format!("journal-{format}"));
        for name in [
            "journal-0001.jsonl.zst",
            "journal-0002.jsonl",
            "events.jsonl",
        ] {
            let path = dir.join(name);
            assert!(
                path.is_file(),
                "keep files of format {format}: {}",
                path.display()
            );
        }
    }
    for version in 1..=VERSION {
        let path = data(&format!("snapshot-{version}/state.json"));
        assert!(
            path.is_file(),
            "keep one of version {version}: {}",
            path.display()
        );
    }
}

#[test]
fn every_format_is_read_with_its_original_meaning() {
    for format in 1..=FORMAT {
        let dir = unpack(format, format.min(VERSION));
        let saved = snapshot::read(&dir.path().join("state.json"), &Encryption::plain())
            .unwrap()
            .unwrap();
        let text = fs::read_to_string(dir.path().join("state.json")).unwrap();
        let written = serde_json::from_str::<Value>(&text).unwrap()["state"].take();
        assert!(written.is_object());
        // The old version computed the state in the snapshot. Applying its records with this version must give the same state.
        agrees(&saved.state, &fold(dir.path(), saved.seq), &written);

        let found = read(dir.path());
        assert_eq!((found.source, found.records), (Source::Snapshot, 1));
        let from_journal = journal::read_state(dir.path(), &Encryption::plain()).unwrap();
        agrees(&found.state, &from_journal, &written);
        let state = &found.state;
        assert_eq!(state.seq, saved.seq.next());
        assert_eq!((state.iteration, state.attempt), (14, 1));
        assert!(
            matches!(state.phase, Phase::Working { .. }),
            "{:?}",
            state.phase
        );
        let stats = state.stats;
        assert_eq!(
            (stats.iterations, stats.successful, stats.failed),
            (13, 6, 2)
        );
        assert_eq!((stats.skipped, stats.interrupted), (1, 2));
        assert_eq!((stats.handed_over, stats.reboots), (2, 2));
        assert_eq!(found.troubles, Vec::<String>::new());
        fs::remove_file(dir.path().join("state.json")).unwrap();
        // Without the snapshot, the journal alone gives the same state.
        agrees(state, &fold(dir.path(), state.seq), &written);
    }
}

/// Returns whether `new` has everything that is in `old`, except members with a default value.
fn is_within(old: &Value, new: &Value) -> bool {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => old.iter().all(|(key, value)| {
            new.get(key)
                .map_or_else(|| is_default(key, value), |new| is_within(value, new))
        }),
        (Value::Array(old), Value::Array(new)) => {
            old.len() == new.len() && old.iter().zip(new).all(|(old, new)| is_within(old, new))
        }
        (old, new) => old == new,
    }
}

/// Returns whether a JSON member has its default value, so that it could be left out.
fn is_default(key: &str, value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => number.as_u64() == Some(0),
        Value::String(text) => key == "purpose" && text == "iteration",
        Value::Bool(true) | Value::Array(_) | Value::Object(_) => false,
    }
}

#[test]
fn every_documented_event_is_read_and_written_without_loss() {
    let path = data(&format!("journal-{FORMAT}/events.jsonl"));
    let mut kept = BTreeSet::new();
    for line in fs::read_to_string(&path).unwrap().lines() {
        let old: Value = serde_json::from_str(line).unwrap();
        let event: LoopEvent = serde_json::from_str(line)
            .unwrap_or_else(|error| panic!("a new field needs a default: {error} in {line}"));
        let new = serde_json::to_value(&event).unwrap();
        assert!(is_within(&old, &new), "{old} became {new}");
        let again: LoopEvent = serde_json::from_value(new).unwrap();
        assert_eq!(
            again, event,
            "omitted members are read back as their default values"
        );
        kept.insert(old["type"].as_str().unwrap().to_owned());
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/journal-format.md");
    let page = fs::read_to_string(page).unwrap();
    let table = page.split("## Events").nth(1).unwrap();
    let rows = table.lines().filter_map(|row| row.strip_prefix("| `"));
    let names = rows
        .filter_map(|row| row.split('`').next())
        .filter(|name| *name != "type");
    let documented: BTreeSet<String> = names.map(str::to_owned).collect();
    assert!(documented.len() > 30, "{documented:?}");
    let missing: Vec<_> = documented.difference(&kept).collect();
    assert!(
        missing.is_empty(),
        "add one of each to {}: {missing:?}",
        path.display()
    );
}

/// Replaces text in a journal line and recomputes its checksum.
fn change(line: &str, changes: &[(&str, &str)]) -> String {
    let (body, _) = line.rsplit_once(",\"crc\":\"").unwrap();
    let body = changes.iter().fold(body.to_owned(), |body, (old, new)| {
        body.replacen(old, new, 1)
    });
    let crc = crc32c::crc32c(body.as_bytes());
    format!("{body},\"crc\":\"{crc:08x}\"}}\n")
}

#[test]
fn unknown_fields_of_later_versions_are_ignored() {
    let dir = unpack(FORMAT, VERSION);
    let before = read(dir.path()).state;
    let from_journal = journal::read_state(dir.path(), &Encryption::plain()).unwrap();
    let journal = dir.path().join("journal-0002.jsonl");
    let text = fs::read_to_string(&journal).unwrap();
    let fields = [
        ("\"event\":{", "\"event\":{\"tomorrow\":{\"a\":[1]},"),
        (
            "\"state\":{\"loop_id\"",
            "\"state\":{\"tomorrow\":1,\"loop_id\"",
        ),
        ("\"launch\":{", "\"launch\":{\"tomorrow\":null,"),
        ("\"report\":{", "\"report\":{\"tomorrow\":\"x\","),
        (",\"time\":", ",\"tomorrow\":true,\"time\":"),
    ];
    let added: String = text.lines().map(|line| change(line, &fields)).collect();
    assert!(added.matches("tomorrow").count() > 2 * text.lines().count());
    fs::write(&journal, added).unwrap();

    let path = dir.path().join("state.json");
    let text = fs::read_to_string(&path).unwrap();
    let at = text.find("\"checksum\": \"").unwrap() + "\"checksum\": \"".len();
    let blank = format!("{}00000000{}", &text[..at], &text[at + 8..]);
    let added = blank
        .replacen(
            "\"core\": {",
            "\"tomorrow\": 1,\n  \"core\": {\n    \"tomorrow\": 1,",
            1,
        )
        .replacen("\"state\": {", "\"state\": {\n    \"tomorrow\": 1,", 1);
    let crc = format!("{:08x}", crc32c::crc32c(added.as_bytes()));
    fs::write(&path, added.replacen("00000000", &crc, 1)).unwrap();

    assert_eq!(read(dir.path()).state, before);
    fs::remove_file(&path).unwrap();
    assert_eq!(
        journal::read_state(dir.path(), &Encryption::plain()).unwrap(),
        from_journal
    );
}

#[test]
fn recorded_inputs_are_read_and_written_unchanged() {
    let text = fs::read_to_string(data("journal-1").join("inputs.jsonl")).unwrap();
    for line in text.lines() {
        let input: RecordedInput = serde_json::from_str(line).expect(line);
        assert_eq!(serde_json::to_string(&input).unwrap(), line);
    }
}
