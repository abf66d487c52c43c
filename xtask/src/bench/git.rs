//! The cost of tracking the work with git: compared to reading every file if nothing changed, and compared to git itself if files changed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use tachikoma_loop_runner::git::{
    self, CancelToken, ChangeOwner, Protected, Rules, TrackerOptions, WorkTracker,
};

use super::Bench;
use super::report::{Row, Unit};
use super::sample::Sample;
use crate::product::Ground;

const DIRECTORIES: usize = 250;
const FILES_EACH: usize = 20;

/// Number of files that an iteration changes.
const CHANGED: usize = 10;

const QUIET_ROUNDS: usize = 200;
const COMMIT_ROUNDS: usize = 25;

const QUIET_TIMES: f64 = 1.5;
const COMMIT_TIMES: f64 = 3.0;

pub fn measure(bench: &Bench) -> Result<Vec<Row>, String> {
    let kept = Ground::new(&bench.product, &bench.disk)?;
    let plain = Ground::new(&bench.product, &bench.disk)?;
    let files = fill(kept.path())?;
    let plain_files = fill(plain.path())?;
    let mut tracker = open(kept.path())?;
    let quiet = quiet(&mut tracker, &files)?;
    let commits = commits(&mut tracker, &files, plain.path(), &plain_files)?;
    Ok(vec![quiet, commits])
}

/// Creates a repository with an author.
pub fn init(dir: &Path) -> Result<(), String> {
    git(dir, &["init", "--quiet"])?;
    git(dir, &["config", "user.name", "Bench"])?;
    git(dir, &["config", "user.email", "bench@example.invalid"])?;
    git(dir, &["config", "commit.gpgsign", "false"])?;
    git(dir, &["config", "core.hooksPath", "/dev/null"])
}

/// Commits everything.
pub fn commit(dir: &Path) -> Result<(), String> {
    git(dir, &["add", "-A"])?;
    git(dir, &["commit", "--quiet", "-m", "before"])
}

/// Creates a repository with files and returns their paths.
fn fill(dir: &Path) -> Result<Vec<PathBuf>, String> {
    init(dir)?;
    let mut files = Vec::new();
    for number in 0..DIRECTORIES {
        let below = dir.join(format!("part-{}/module-{number}", number % 10));
        fs::create_dir_all(&below).map_err(said)?;
        for number in 0..FILES_EACH {
            let file = below.join(format!("file-{number}.rs"));
            fs::write(&file, format!("// {}\n", file.display())).map_err(said)?;
            files.push(file);
        }
    }
    fs::write(dir.join(".gitignore"), ".ralph/\n").map_err(said)?;
    commit(dir)?;
    Ok(files)
}

fn open(dir: &Path) -> Result<Box<WorkTracker>, String> {
    let loop_dir = dir.join(".ralph/loops/bench");
    fs::create_dir_all(&loop_dir).map_err(said)?;
    let options = TrackerOptions {
        hidden: Vec::new(),
        working_dir: dir.to_owned(),
        loop_dir,
        loop_id: tachikoma_core::LoopId::from_u128(1),
        search_path: std::env::var_os("PATH"),
        rules: Rules {
            protected: Protected::new(&[".env*", "*.pem", "*.key", "secrets/**"]).map_err(said)?,
            max_file_bytes: 50 << 20,
            ..Rules::default()
        },
    };
    let opened = git::open(options, ChangeOwner::Others, &CancelToken::new())?;
    let (tracker, _) = opened.ok_or("there is no repository")?;
    Ok(tracker)
}

/// Measures the survey after an iteration and the snapshot before the next one if no file changed.
fn quiet(tracker: &mut WorkTracker, files: &[PathBuf]) -> Result<Row, String> {
    let cancel = CancelToken::new();
    git::snapshot(tracker, 1, &cancel).map_err(said)?;
    let (mut ours, mut bare) = (Sample::default(), Sample::default());
    for round in 0..QUIET_ROUNDS {
        let mut look = || -> Result<(), String> {
            let started = Instant::now();
            for file in files {
                fs::symlink_metadata(file).map_err(said)?;
            }
            bare.add(millis(started));
            Ok(())
        };
        if round % 2 == 0 {
            look()?;
        }
        let started = Instant::now();
        let survey = tracker.survey(ChangeOwner::Loop, &cancel).map_err(said)?;
        git::snapshot(tracker, 2, &cancel).map_err(said)?;
        ours.add(millis(started));
        if !survey.changed.is_empty() {
            return Err("something changed in an idle repository".to_owned());
        }
        if round % 2 == 1 {
            look()?;
        }
    }
    let row = Row::goal(
        "git, nothing changed",
        ours.median() / bare.median(),
        Unit::Times,
        QUIET_TIMES,
    );
    Ok(row.detail(format!(
        "{:.2} ms for survey and snapshot of {} files to {:.2} ms for one lstat of each; least {:.2}x",
        ours.median(),
        files.len(),
        bare.median(),
        ours.min() / bare.min()
    )))
}

/// Measures the same with a commit of some files, compared to `git add` and `git commit` of as many.
fn commits(
    tracker: &mut WorkTracker,
    files: &[PathBuf],
    plain: &Path,
    plain_files: &[PathBuf],
) -> Result<Row, String> {
    let cancel = CancelToken::new();
    let (mut ours, mut bare) = (Sample::default(), Sample::default());
    for round in 0..COMMIT_ROUNDS {
        let mut with_git = || -> Result<(), String> {
            let chosen = edit(plain_files, round)?;
            let started = Instant::now();
            let mut add = vec!["add", "--"];
            add.extend(chosen.iter().filter_map(|file| file.to_str()));
            git(plain, &add)?;
            git(plain, &["commit", "--quiet", "-m", "of the bench"])?;
            bare.add(millis(started));
            Ok(())
        };
        if round % 2 == 0 {
            with_git()?;
        }
        edit(files, round)?;
        let started = Instant::now();
        tracker.survey(ChangeOwner::Loop, &cancel).map_err(said)?;
        let made = git::commit(tracker, "of the bench", None, &cancel);
        let made = made.map_err(said)?.map_or(0, |commit| commit.files);
        let iteration = u32::try_from(round).unwrap_or(u32::MAX) + 3;
        git::snapshot(tracker, iteration, &cancel).map_err(said)?;
        ours.add(millis(started));
        if made != CHANGED {
            return Err(format!("{made} files were committed, not {CHANGED}"));
        }
        if round % 2 == 1 {
            with_git()?;
        }
    }
    let row = Row::goal(
        format!("git, {CHANGED} files committed"),
        ours.median() / bare.median(),
        Unit::Times,
        COMMIT_TIMES,
    );
    Ok(row.detail(format!(
        "{:.1} ms for survey, commit and snapshot to {:.1} ms for git add and git commit; least {:.2}x",
        ours.median(),
        bare.median(),
        ours.min() / bare.min()
    )))
}

fn edit(files: &[PathBuf], round: usize) -> Result<Vec<&PathBuf>, String> {
    let chosen: Vec<&PathBuf> = files
        .iter()
        .skip(round)
        .step_by(files.len() / CHANGED)
        .collect();
    let chosen: Vec<&PathBuf> = chosen.into_iter().take(CHANGED).collect();
    for file in &chosen {
        fs::write(file, format!("// edited in round {round}\n")).map_err(said)?;
    }
    Ok(chosen)
}

pub fn git(dir: &Path, words: &[&str]) -> Result<(), String> {
    let mut command = Command::new("git");
    command.args(words).current_dir(dir);
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status();
    let status = status.map_err(|error| format!("start git: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("git {} ended with {status}", words.join(" ")))
    }
}

fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

fn said(error: impl std::error::Error) -> String {
    tachikoma_loop_runner::chain(&error)
}
