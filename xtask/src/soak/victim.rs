//! A loop for tests with faults. Its agent records, in a file that faults do not affect, for which attempt it ran. Such an attempt
//! is acknowledged, so it must be in the journal.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tachikoma_core::{Record, Timestamp};
use tachikoma_loop_runner::store::lock;
use tachikoma_testkit::processes_with;
use tempfile::TempDir;

use super::audit::{Attempt, Books};
use crate::encryption;
use crate::product::{Ground, Live, await_that, text};

/// Time limit of all waits, which are much shorter even on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Script of an agent that records its attempt in one write and prints a line for the transcript.
const AGENT: &str = "echo \"$TACHIKOMA_ITERATION $TACHIKOMA_ATTEMPT\" >>OUTSIDE/ran; echo working";

/// The exit code of a loop that reached its limit.
const LIMIT_REACHED: i32 = 3;

/// Iteration limit that means no limit.
const NO_LIMIT: u32 = 0;

pub struct Victim {
    ground: Ground,
    /// Directory outside of the loop. Its path is in the command line of all processes of the loop.
    outside: TempDir,
    agent: String,
}

impl Victim {
    pub fn new(product: &Path) -> Result<Self, String> {
        let outside = tempfile::Builder::new().prefix("tkv").tempdir();
        let outside = outside.map_err(text)?;
        let agent = AGENT.replace("OUTSIDE", &outside.path().to_string_lossy());
        Ok(Self {
            ground: Ground::new(product, &std::env::temp_dir())?,
            outside,
            agent,
        })
    }

    /// Sets another agent. `OUTSIDE` in the script is replaced by the directory outside of the loop.
    pub fn with_agent(mut self, script: &str) -> Self {
        self.agent = script.replace("OUTSIDE", &self.outside());
        self
    }

    /// Settings of every other loop: compressed state that is saved very often.
    pub const PACKED: &str = "[state]\ncompress = true\nauto_save_interval = \"3ms\"\nbackup_interval = \"5ms\"\nmax_backups = 3\n";

    /// Writes settings for the loop.
    pub fn configured(self, settings: &str) -> Result<Self, String> {
        self.ground.configure(settings)?;
        encryption::lay_key(self.ground.path(), settings)?;
        Ok(self)
    }

    pub fn ground(&self) -> &Ground {
        &self.ground
    }

    /// Returns the path of a directory that the loop does not use.
    pub fn outside(&self) -> String {
        self.outside.path().to_string_lossy().into_owned()
    }

    /// Returns the arguments that run the loop, up to this many iterations.
    pub fn words(&self, limit: u32) -> Vec<String> {
        self.words_with(limit, "0s")
    }

    /// Returns the arguments that run the loop, with a delay after each iteration.
    pub fn words_with(&self, limit: u32, delay: &str) -> Vec<String> {
        let limit = limit.to_string();
        let run = [
            "run",
            "--json",
            "--delay",
            delay,
            "--max-iterations",
            &limit,
        ];
        let agent = ["--", "sh", "-c", &self.agent];
        run.into_iter().chain(agent).map(str::to_owned).collect()
    }

    /// Makes a command write to the files that [`Self::printed`] and [`Self::stderr`] read.
    pub fn recorded<'a>(&self, command: &'a mut Command) -> Result<&'a mut Command, String> {
        let create = |name: &str| File::create(self.outside.path().join(name)).map_err(text);
        Ok(command.stdout(create("printed")?).stderr(create("stderr")?))
    }

    /// Starts a runner without an iteration limit.
    pub fn start(&self) -> Result<Live, String> {
        self.start_up_to(NO_LIMIT)
    }

    pub fn start_up_to(&self, limit: u32) -> Result<Live, String> {
        let words = self.words(limit);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        Live::start(self.recorded(&mut self.ground.tachikoma(&words))?)
    }

    /// Returns the attempts for which an agent ran, in order.
    pub fn ran(&self) -> Result<Vec<Attempt>, String> {
        let text = self.read("ran");
        let pair = |line: &str| {
            let (iteration, attempt) = line.split_once(' ')?;
            Some((iteration.parse().ok()?, attempt.parse().ok()?))
        };
        text.lines()
            .map(|line| pair(line).ok_or_else(|| format!("the agent wrote {line:?}")))
            .collect()
    }

    pub fn printed(&self) -> String {
        self.read("printed")
    }

    pub fn stderr(&self) -> String {
        self.read("stderr")
    }

    /// Returns the times of the first and the last printed record.
    pub fn span(&self) -> Result<(Timestamp, Timestamp), String> {
        let printed = self.printed();
        let time = |line: Option<&str>| {
            let record: Record = serde_json::from_str(line?).ok()?;
            Some(record.time)
        };
        let (first, last) = (time(printed.lines().next()), time(printed.lines().last()));
        first
            .zip(last)
            .ok_or_else(|| "no record was printed".to_owned())
    }

    fn read(&self, name: &str) -> String {
        // If the runner has not started to write, the file is missing.
        fs::read_to_string(self.outside.path().join(name)).unwrap_or_default()
    }

    /// Waits until all processes of a dead runner have ended, and the lock is free.
    pub fn expect_nobody(&self) -> Result<(), String> {
        await_that("the end of all processes", PATIENCE, || {
            processes_with(&self.outside()).is_empty() && !lock::is_held(self.ground.path())
        })
    }

    /// Checks the records of a loop without a runner. All printed records must be in the journal, too.
    pub fn audit(&self) -> Result<Option<Books>, String> {
        let books = self.audit_after_power_cut()?;
        match &books {
            Some(books) => books.expect_printed(&self.printed())?,
            None if self.printed().contains('\n') => {
                return Err("records were printed, and there is no loop".into());
            }
            None => {}
        }
        Ok(books)
    }

    /// Checks the records without comparing them with the output: records without an effect may be lost in a power failure.
    pub fn audit_after_power_cut(&self) -> Result<Option<Books>, String> {
        let ran = self.ran()?;
        let Some(books) = Books::read(self.ground.path())? else {
            return match ran.is_empty() {
                true => Ok(None),
                false => Err(format!(
                    "agents ran {} times, and there is no loop",
                    ran.len()
                )),
            };
        };
        books.expect_ran(&ran)?;
        books.expect_status(&self.status()?)?;
        Ok(Some(books))
    }

    fn status(&self) -> Result<String, String> {
        let mut command = self.ground.tachikoma(&["status", "--json"]);
        let output = command.stdout(Stdio::piped()).output().map_err(text)?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(format!("`status` ended with {}", output.status)),
        }
    }

    /// Runs two more iterations without a fault, and checks the records.
    pub fn go_on(&self) -> Result<Books, String> {
        let before = Books::read(self.ground.path())?.map_or(0, |books| books.state.iteration);
        let limit = before + 2;
        let code = self.start_up_to(limit)?.wait(PATIENCE)?;
        if code != Some(LIMIT_REACHED) {
            let stderr = self.stderr();
            return Err(format!(
                "the loop does not go on: exit code {code:?}, {stderr}"
            ));
        }
        self.expect_nobody()?;
        let books = self.audit()?.ok_or("there is no loop after a run")?;
        let last = self.ran()?.last().map(|(iteration, _)| *iteration);
        if books.state.stats.iterations != limit || last != Some(limit) {
            return Err(format!(
                "iteration {limit} should be the last: {:?}, and the agent's last was {last:?}",
                books.state.stats
            ));
        }
        Ok(books)
    }

    /// Returns the path of a file of the loop's journal.
    pub fn journal(&self) -> Result<PathBuf, String> {
        let loops = self.ground.path().join(".ralph/loops");
        let dir = fs::read_dir(loops).map_err(text)?.next();
        let dir = dir.ok_or("there is no loop")?.map_err(text)?.path();
        Ok(dir.join("journal-0001.jsonl"))
    }
}

impl Drop for Victim {
    /// Kills processes that are left after a failure. The loop may still run, with or without its tracer.
    fn drop(&mut self) {
        for pid in processes_with(&self.outside()) {
            if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
                // The process may have ended by itself.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}
