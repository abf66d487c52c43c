//! The cost of a synced record, compared to a plain append of the same bytes, and the journal size of an iteration.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Instant;

use tachikoma_fs::FsError;
use tachikoma_loop_runner::store::StoreError;

use super::Bench;
use super::driven::Driven;
use super::report::{Row, Unit};
use super::sample::Sample;
use crate::product::{Ground, text};

/// Number of iterations. Each makes two steps, and each step is measured.
const ITERATIONS: usize = 400;

const RECORD_TIMES: f64 = 1.3;

/// Number of iterations of the loop before its journal is measured.
const QUIET_ITERATIONS: u32 = 200;

const GROWTH_KIB: f64 = 1.0;

/// Measures append and sync of the journal, alternating with a plain file on the same disk.
pub fn durable(bench: &Bench) -> Result<Vec<Row>, String> {
    let ground = Ground::new(&bench.product, &bench.disk)?;
    quiet_run(&ground, 1)?;
    let mut driven = Driven::take_up(ground.path())?;
    let journal = driven.dir.join("journal-0001.jsonl");
    let journal = File::open(journal).map_err(text)?;
    let mut bare_file = append_to(&ground.path().join("bare")).map_err(text)?;
    let (mut ours, mut bare) = (Sample::default(), Sample::default());
    // The bytes that each of the two steps last wrote to the journal. The plain file gets the same bytes.
    let mut before = [Vec::new(), Vec::new()];
    for round in 0..ITERATIONS {
        let mut steps = before.iter_mut();
        driven.iterate(&mut |writer, step| {
            let Some(bytes) = steps.next() else {
                return Ok(());
            };
            // The order alternates, because the disk may still be busy with the first write.
            let bare_first = round % 2 == 1;
            if bare_first {
                append_bare(&mut bare_file, bytes, &mut bare)?;
            }
            let end = len(&journal)?;
            let started = Instant::now();
            writer.append_synced(&step.records)?;
            ours.add(started.elapsed().as_secs_f64() * 1e3);
            bytes.resize(len(&journal)? - end, 0);
            journal.read_exact_at(bytes, end as u64).map_err(failed)?;
            if !bare_first {
                append_bare(&mut bare_file, bytes, &mut bare)?;
            }
            Ok(())
        })?;
    }
    let row = Row::goal(
        "durable record",
        ours.median() / bare.median(),
        Unit::Times,
        RECORD_TIMES,
    );
    Ok(vec![row.detail(format!(
        "{:.3} ms to {:.3} ms of append and fdatasync; least {:.2}x",
        ours.median(),
        bare.median(),
        ours.min() / bare.min()
    ))])
}

/// Measures how many bytes an iteration of a quiet agent adds to the journal.
pub fn growth(bench: &Bench) -> Result<Vec<Row>, String> {
    let ground = Ground::new(&bench.product, &bench.disk)?;
    quiet_run(&ground, QUIET_ITERATIONS)?;
    let mut bytes = 0;
    for entry in fs::read_dir(ground.path().join(".ralph/loops")).map_err(text)? {
        for file in fs::read_dir(entry.map_err(text)?.path()).map_err(text)? {
            bytes += file.and_then(|file| file.metadata()).map_err(text)?.len();
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "for people to read")]
    let kib = bytes as f64 / 1024.0;
    let row = Row::goal(
        "journal, per iteration",
        kib / f64::from(QUIET_ITERATIONS),
        Unit::Kibibytes,
        GROWTH_KIB,
    );
    Ok(vec![row.detail(format!(
        "{kib:.1} KiB after {QUIET_ITERATIONS} iterations"
    ))])
}

/// Runs a loop to its limit with an agent that does nothing.
pub fn quiet_run(ground: &Ground, iterations: u32) -> Result<(), String> {
    let limit = iterations.to_string();
    let words = ["run", "--quiet", "--delay", "0s", "--max-iterations"];
    let mut command = ground.tachikoma(&words);
    let run = command.args([limit.as_str(), "--", "sh", "-c", "true"]);
    Sample::default().time(run, &[3])
}

fn append_bare(file: &mut File, bytes: &[u8], sample: &mut Sample) -> Result<(), StoreError> {
    let started = Instant::now();
    file.write_all(bytes).map_err(failed)?;
    file.sync_data().map_err(failed)?;
    sample.add(started.elapsed().as_secs_f64() * 1e3);
    Ok(())
}

fn append_to(path: &Path) -> std::io::Result<File> {
    File::options().create(true).append(true).open(path)
}

fn len(file: &File) -> Result<usize, StoreError> {
    let len = file.metadata().map_err(failed)?.len();
    Ok(usize::try_from(len).unwrap_or(usize::MAX))
}

/// Converts an error of the measurement's own files to an error of the journal.
fn failed(source: std::io::Error) -> StoreError {
    FsError::io("measure", Path::new("journal"))(source).into()
}
