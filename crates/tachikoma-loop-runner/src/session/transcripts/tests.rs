//! Tests of transcripts in a directory with files of other programs.

use super::*;
use crate::store::encryption::Encryption;

static NOT_CALLED_OFF: AtomicBool = AtomicBool::new(false);

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn with(files: &[&str]) -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    for name in files {
        fs::write(place.path().join(name), "x").unwrap();
    }
    place
}

const REMAINS: &str = "000002.1.log.zst.018f2f6e-0000-7000-8000-000000000000.tmp";

#[test]
fn pruning_deletes_only_old_transcripts() {
    let all = [
        "000001.1.log",
        "000001.2.log.zst",
        "000002.1.log",
        "000002.2.log.tail-a",
        REMAINS,
        "000009.1.log",
        "1000000.1.log.zst",
    ];
    let others = [
        "notes.log",
        "000001.log",
        "000001.1.txt",
        "000001.x.log",
        "000001.1.log.gz",
        "000001.1.log.tail-a.zst",
        "1.1.log",
    ];
    let place = with(&[&all[..], &others[..]].concat());
    prune(place.path(), 0).unwrap();
    let count = names(place.path()).len();
    assert_eq!(count, all.len() + others.len(), "0 keeps all");
    prune(place.path(), 2).unwrap();
    let mut expected: Vec<&str> = others.to_vec();
    expected.extend(["000009.1.log", "1000000.1.log.zst"]);
    expected.sort_unstable();
    assert_eq!(names(place.path()), expected);
    prune(&place.path().join("missing"), 2).unwrap();
}

#[test]
fn transcripts_are_listed_once_in_the_order_of_writing() {
    let place = with(&[
        "000001.10.log",
        "000001.2.log.zst",
        "000001.1.log",
        "000001.1.log.zst",
        "000001.1.2.log",
        "000002.1.log",
        "000002.1.log.tail-a",
        "000002.1.log.tail-b",
        REMAINS,
        "notes",
    ]);
    let older = fs::File::open(place.path().join("000002.1.log.tail-b")).unwrap();
    older.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    let listed = list(place.path()).unwrap();
    let shown: Vec<_> = listed
        .iter()
        .map(|file| file.path.file_name().unwrap().to_str().unwrap())
        .collect();
    assert_eq!(
        shown,
        [
            "000001.1.log",
            "000001.1.2.log",
            "000001.2.log.zst",
            "000001.10.log",
            "000002.1.log",
            "000002.1.log.tail-b",
            "000002.1.log.tail-a",
        ]
    );
    assert_eq!(list(&place.path().join("missing")).unwrap(), []);
}

#[test]
fn closed_transcripts_are_compressed_unless_they_are_small() {
    let place = with(&["000002.1.log.tail-a", REMAINS, "000009.1.log.zst", "notes"]);
    let large = "what the agent wrote\n".repeat(1000);
    for name in ["000001.1.log", "000002.1.log", "notes.log"] {
        fs::write(place.path().join(name), &large).unwrap();
    }
    let length = usize::try_from(COMPRESSED_BYTES_MIN).unwrap();
    fs::write(place.path().join("000003.1.log"), &large[..length - 1]).unwrap();
    fs::write(place.path().join("000004.1.log"), &large[..length]).unwrap();
    compress_closed(place.path(), &Encryption::plain(), &NOT_CALLED_OFF).unwrap();
    assert_eq!(
        names(place.path()),
        [
            "000001.1.log.zst",
            "000002.1.log",
            "000002.1.log.tail-a",
            "000003.1.log",
            "000004.1.log.zst",
            "000009.1.log.zst",
            "notes",
            "notes.log",
        ]
    );
    let mut found = String::new();
    let path = place.path().join("000001.1.log");
    let mut opened = compressed::open(&path, &Encryption::plain()).unwrap();
    io::Read::read_to_string(&mut opened.content, &mut found).unwrap();
    assert_eq!(
        found, large,
        "a reader that listed the plain file can still read it"
    );
}
