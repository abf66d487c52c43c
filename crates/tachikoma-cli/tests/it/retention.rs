//! Retention: segments and transcripts are compressed, and only the last ten loops are kept.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use tachikoma_loop_runner::store::encryption::Encryption;

use tachikoma_core::Seq;
use tachikoma_loop_runner::store::journal::read_records;
use tachikoma_loop_runner::store::recover::open_journal;
use tachikoma_testkit::{Scratch, await_until};

use crate::support::{BUSY, CLAIMS, SOON, files, kill, loops, run, shown, status, tachikoma};

/// An agent that prints 100 KB and its iteration.
const TALKS: &str = "echo iteration $TACHIKOMA_ITERATION; yes 'words of the agent' | head -c 100000; echo; echo end";

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("it is there").flatten();
    let mut names: Vec<_> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn sessions(scratch: &Scratch) -> PathBuf {
    scratch.path().join(".ralph/sessions")
}

/// Runs a loop to its limit of one iteration or to its end.
#[track_caller]
fn one_loop(scratch: &Scratch, script: &str) -> String {
    let words = run(&["--new", "--quiet", "--max-iterations", "1"], script);
    let ran = tachikoma(scratch).run(words);
    assert!(matches!(ran.code(), Some(0 | 3)), "{}", ran.snapshot());
    let id = status(scratch)["loop_id"].clone();
    id.as_str().expect("there is a loop").to_owned()
}

#[test]
fn the_last_ten_loops_are_kept_and_foreign_files_are_not_deleted() {
    let scratch = Scratch::new();
    let outside = scratch.home().join("outside");
    fs::create_dir(&outside).expect("the test owns this file");
    fs::write(outside.join("journal-0001.jsonl"), "precious").expect("the test owns this file");
    let first = one_loop(&scratch, "echo one");
    let second = one_loop(&scratch, "echo two");
    let third = one_loop(&scratch, "echo three");
    let backup = tachikoma(&scratch).run(["state", "backup"]);
    assert_eq!(backup.code(), Some(0), "{}", backup.snapshot());
    let backup = scratch.path().join(backup.stdout.trim());
    assert!(backup.exists());
    // Foreign files are beside the files of Tachikoma, and in two of the loops that will be deleted.
    let foreign = [
        "state.md".to_owned(),
        "other-tool/journal-0001.jsonl".to_owned(),
        "loops/readme".to_owned(),
        "loops/loop_of_mine/journal-0001.jsonl".to_owned(),
        "sessions/notes/000001.1.log".to_owned(),
        format!("loops/{first}/notes.md"),
        format!("sessions/{second}/notes.md"),
    ];
    for name in &foreign {
        scratch.write(format!(".ralph/{name}").as_str(), "not ours");
    }
    let link = scratch
        .path()
        .join(".ralph/loops/loop_00000000-0000-4000-8000-000000000000");
    symlink(&outside, &link).expect("the test owns this file");
    let mut later = Vec::new();
    for number in 4..=13 {
        later.push(one_loop(&scratch, &format!("echo {number}")));
    }
    let loop_names = names(&scratch.path().join(".ralph/loops"));
    assert!(
        !loop_names.contains(&third),
        "the third of thirteen loops is deleted"
    );
    assert!(
        !sessions(&scratch).join(&third).exists(),
        "its transcripts are deleted"
    );
    assert!(!backup.exists(), "its backups are deleted");
    for kept in [&first, &second].into_iter().chain(&later) {
        let journal = format!(".ralph/loops/{kept}/journal-0001.jsonl");
        assert!(scratch.path().join(journal).exists(), "{kept}");
        assert!(sessions(&scratch).join(kept).join("000001.1.log").exists());
    }
    for name in &foreign {
        assert_eq!(
            scratch.read(format!(".ralph/{name}").as_str()),
            "not ours",
            "{name}"
        );
    }
    assert!(link.is_symlink());
    assert_eq!(files(&outside).len(), 1, "no link is followed");
    let ran = tachikoma(&scratch).run(["logs"]);
    assert_eq!(ran.stdout, "13\n", "{}", ran.snapshot());
}

#[test]
fn a_new_loop_prunes_old_loops_and_a_resumed_one_keeps_its_own() {
    let scratch = Scratch::new();
    let mut ids = Vec::new();
    for _ in 0..10 {
        ids.push(one_loop(&scratch, "true"));
    }
    let live = tachikoma(&scratch).spawn(run(&["--new"], BUSY));
    let oldest = scratch.path().join(".ralph/loops").join(&ids[0]);
    await_until("the oldest to go", SOON, || !oldest.exists());
    kill(&scratch, live);
    let left = names(&scratch.path().join(".ralph/loops"));
    assert_eq!(left.len(), 10, "ten loops, including the killed one");
    let before = status(&scratch)["loop_id"].clone();
    let ran = tachikoma(&scratch).run(run(&[], CLAIMS));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(status(&scratch)["loop_id"], before);
    assert_eq!(names(&scratch.path().join(".ralph/loops")), left);
}

#[test]
fn transcripts_are_compressed_and_logs_reads_them() {
    let scratch = Scratch::new();
    let words = run(&["--quiet", "--max-iterations", "2"], TALKS);
    let ran = tachikoma(&scratch).run(words);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let id = names(&sessions(&scratch)).remove(0);
    let dir = sessions(&scratch).join(id);
    assert_eq!(names(&dir), ["000001.1.log.zst", "000002.1.log.zst"]);
    let size = fs::metadata(dir.join("000001.1.log.zst"))
        .expect("it is there")
        .len();
    assert!(size < 10_000, "{size} bytes");
    for iteration in ["1", "2"] {
        let ran = tachikoma(&scratch).run(["logs", iteration]);
        assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
        assert!(ran.stdout.starts_with(&format!("iteration {iteration}\n")));
        assert!(ran.stdout.ends_with("\nend\n"));
        assert_eq!(
            ran.stdout.matches("words of the agent\n").count(),
            100_000 / 19
        );
    }
    let whole = fs::read(dir.join("000002.1.log.zst")).expect("it is there");
    fs::write(dir.join("000002.1.log.zst"), &whole[..whole.len() - 1])
        .expect("the test owns this file");
    let ran = tachikoma(&scratch).run(["logs"]);
    assert_eq!(ran.code(), Some(1), "{}", ran.snapshot());
    assert!(ran.stderr.contains("000002.1.log.zst: "), "{}", ran.stderr);
}

#[test]
fn a_transcript_of_a_killed_runner_is_readable_and_not_compressed() {
    let scratch = Scratch::new();
    let id = one_loop(&scratch, "true");
    let dir = format!(".ralph/sessions/{id}");
    let head = format!("{}\n", "head".repeat(2000));
    scratch.write(format!("{dir}/000001.1.log").as_str(), &head);
    scratch.write(format!("{dir}/000001.1.log.tail-a").as_str(), "newer\n");
    scratch.write(format!("{dir}/000001.1.log.tail-b").as_str(), "older\n");
    let older = fs::File::open(scratch.path().join(&dir).join("000001.1.log.tail-b"));
    let aged = older.and_then(|file| file.set_modified(std::time::SystemTime::UNIX_EPOCH));
    aged.expect("it is ours");
    let ran = tachikoma(&scratch).run(["run", "--quiet", "--max-iterations", "2"]);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let ran = tachikoma(&scratch).run(["logs", "1"]);
    assert_eq!(ran.stdout, format!("{head}older\nnewer\n"));
    assert_eq!(
        names(&scratch.path().join(&dir)).len(),
        3,
        "the transcript is unchanged"
    );
}

#[test]
fn closed_segments_are_compressed_and_can_be_resumed() {
    let scratch = Scratch::new();
    one_loop(&scratch, "true");
    let dir = loops(&scratch).remove(0);
    for _ in 0..2 {
        let (mut journal, mut state) =
            open_journal(&dir, &Encryption::plain()).expect("nobody else writes");
        let now = state.time;
        journal
            .next_segment(&mut state, now)
            .expect("there is room");
    }
    let ran = tachikoma(&scratch).run(["run", "--quiet", "--max-iterations", "2"]);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let expected = [
        "journal-0001.jsonl.zst",
        "journal-0002.jsonl.zst",
        "journal-0003.jsonl",
    ];
    assert_eq!(names(&dir), expected);

    let before = files(&dir);
    assert_eq!(status(&scratch)["iteration"], 2);
    let mut seqs = Vec::new();
    read_records(&dir, &Encryption::plain(), Seq(0), |record| {
        seqs.push(record.seq.0);
    })
    .expect("it is whole");
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>());
    let ran = tachikoma(&scratch).run(["events", "--json"]);
    assert_eq!(ran.stdout.lines().count(), seqs.len(), "{}", ran.snapshot());
    assert_eq!(
        files(&dir),
        before,
        "commands that only read change nothing"
    );
    let ran = tachikoma(&scratch).run(["run", "--quiet", "--max-iterations", "3"]);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(
        status(&scratch)["iteration"],
        3,
        "the segment keeps its number"
    );

    let path = dir.join(expected[0]);
    let mut damaged = fs::read(&path).expect("the test owns this file");
    let middle = damaged.len() / 2;
    damaged[middle] ^= 0x10;
    fs::write(&path, damaged).expect("the test owns this file");
    assert_eq!(
        status(&scratch)["iteration"],
        3,
        "a run can continue without reading closed segments"
    );
    let ran = tachikoma(&scratch).run(["events"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let text = shown(&ran);
    let named = "journal-0001.jsonl.zst is damaged at line ";
    assert!(text.contains(named), "{text}");
    assert!(text.contains("those records are missing here"), "{text}");
    assert!(text.contains("━━ iteration 3 ━━"), "{text}");
}
