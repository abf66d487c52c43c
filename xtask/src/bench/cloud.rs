//! Memory of the runner during the upload of a large backup.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::Bench;
use super::git;
use super::memory::Memory;
use super::report::{Row, Unit};
use crate::cargo;
use crate::check::succeeds;
use crate::product::{Ground, Live, await_that, text};

/// Time limit of waits. Git packs 64 MiB and sends them through a pipe, which takes seconds, or minutes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// Size of the work in bytes. The data does not compress, so the backup is as large.
const BACKUP_BYTES: usize = 64 << 20;

const EXTRA_MIB: f64 = 16.0;

pub fn measure(bench: &Bench) -> Result<Vec<Row>, String> {
    let words = [
        "build",
        "--quiet",
        "--release",
        "--package",
        "tachikoma-testkit",
    ];
    let features = ["--features", "s3", "--bin", "s3-server"];
    succeeds(cargo(&bench.root).args(words).args(features))?;
    let ground = Ground::new(&bench.product, &bench.disk)?;
    let dir = ground.path();
    let store = tempfile::tempdir_in(&bench.disk).map_err(text)?;
    let mut server = Command::new(bench.product.with_file_name("s3-server"));
    server.arg(store.path()).stdin(Stdio::piped());
    let mut server = Live::start(server.stdout(Stdio::piped()))?;
    let env = variables(server.stdout().ok_or("no words of the server")?);

    fs::write(dir.join("noise"), noise()).map_err(text)?;
    // The URL has no prefix, because the server uses it in file names, and those of parts would be too long.
    let settings = "[state]\ncloud_url = \"s3://bucket\"\nbackup_interval = \"3s\"\n";
    ground.configure(settings)?;
    git::init(dir)?;
    git::commit(dir)?;
    let words = [
        "run",
        "--allow-dirty",
        "--",
        "sh",
        "-c",
        ": > rests; exec sleep 1000",
    ];
    let mut command = ground.tachikoma(&words);
    command.envs(env);
    let mut runner = Live::start(&mut command)?;
    let mut rests = || ground.has("rests") || runner.has_ended();
    await_that("the loop to rest", PATIENCE, &mut rests)?;
    let before = Memory::of(runner.pid())?;
    let sent = || size_of(store.path()) >= BACKUP_BYTES as u64;
    await_that("the copy", PATIENCE, sent)?;
    let after = Memory::of(runner.pid())?;
    ground.stop(runner)?;
    server.kill()?;
    let row = Row::goal(
        "64 MiB backup, extra memory".to_owned(),
        after.peak - before.now,
        Unit::Mebibytes,
        EXTRA_MIB,
    );
    Ok(vec![row.detail(format!(
        "{:.1} MiB before, peak {:.1} MiB",
        before.now, after.peak
    ))])
}

/// Reads the variables that the server prints, up to an empty line.
fn variables(words: impl std::io::Read) -> Vec<(String, String)> {
    let lines = BufReader::new(words).lines().map_while(Result::ok);
    let lines = lines.take_while(|line| !line.is_empty());
    let pair = |line: String| {
        let (name, value) = line.split_once('=')?;
        Some((name.to_owned(), value.to_owned()))
    };
    lines.filter_map(pair).collect()
}

/// Returns the size of the largest object below a directory. Unfinished objects have other names.
fn size_of(dir: &std::path::Path) -> u64 {
    let entries = fs::read_dir(dir.join("bucket"))
        .into_iter()
        .flatten()
        .flatten();
    let sizes = entries.filter_map(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        let size = entry.metadata().ok()?.len();
        name.starts_with("loop_").then_some(size)
    });
    sizes.max().unwrap_or(0)
}

fn noise() -> Vec<u8> {
    let mut seed = 1_u64;
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 56).to_le_bytes()[0]
    };
    (0..BACKUP_BYTES).map(|_| next()).collect()
}
