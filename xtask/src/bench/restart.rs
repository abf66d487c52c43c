//! Measures how long a supervised child is missing: from SIGKILL to the first write of the next child, without a delay. Compared
//! to a minimal loop of spawn and wait, the same with one fdatasync, and other supervisors if they are available.

mod others;

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::Bench;
use super::report::{Row, Unit};
use super::sample::Sample;
use crate::product::text;

const ROUNDS: usize = 50;

/// Goal: maximum ratio to a minimal loop with one fdatasync.
const GOAL_TIMES: f64 = 1.5;

/// How long a child lives before it is killed. Other supervisors wait before they restart a child that lived for less than a second.
const LIFE: Duration = Duration::from_millis(1100);

/// Time limit for a restart. A supervisor that takes longer counts as failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// About the number of bytes that are recorded for one restart.
const RECORD_BYTES: usize = 700;

/// Script of the child: it writes one line with its process id and sleeps, without starting another process.
const CHILD: &str = "#!/bin/sh\necho $$ > ticks\nexec sleep 1000\n";

/// One of the compared supervisors.
struct Contender {
    name: &'static str,
    /// Directory of the supervisor, which is removed when dropped.
    dir: TempDir,
    supervisor: Child,
    ticks: File,
    /// The running child.
    child: Pid,
    sample: Sample,
}

pub fn measure(bench: &Bench) -> Result<Vec<Row>, String> {
    let mut contenders = vec![
        Contender::ours(bench)?,
        Contender::bare(bench, "bare loop", false)?,
        Contender::bare(bench, "bare loop, fdatasync", true)?,
    ];
    for (name, start) in others::found(&bench.disk) {
        match Contender::start(bench, name, start) {
            Ok(contender) => contenders.push(contender),
            // Other supervisors are optional.
            Err(error) => eprintln!("left out: {name}: {error}"),
        }
    }
    for _ in 0..ROUNDS {
        std::thread::sleep(LIFE);
        for contender in &mut contenders {
            contender.round()?;
        }
    }
    let median = |name: &str| {
        let found = contenders.iter().find(|one| one.name == name);
        found.map_or(f64::NAN, |found| found.sample.median())
    };
    let (ours, synced) = (median(OURS), median("bare loop, fdatasync"));
    let mut rows = vec![
        Row::goal(
            "restart, beside a bare loop",
            ours / synced,
            Unit::Times,
            GOAL_TIMES,
        )
        .detail(format!(
            "{ours:.2} ms to {synced:.2} ms of a loop with one fdatasync"
        )),
    ];
    for contender in &contenders {
        let row = match contender.name {
            OURS => match median("runit") {
                runit if runit.is_nan() => Row::info(OURS, ours, Unit::Milliseconds),
                runit => Row::goal(OURS, ours, Unit::Milliseconds, runit),
            },
            name => Row::info(
                format!("restart, {name}"),
                contender.sample.median(),
                Unit::Milliseconds,
            ),
        };
        rows.push(row.detail(format!(
            "least {:.2} ms, most {:.2} ms",
            contender.sample.min(),
            contender.sample.max()
        )));
    }
    Ok(rows)
}

const OURS: &str = "restart, ours (goal: runit)";

impl Contender {
    fn ours(bench: &Bench) -> Result<Self, String> {
        let product = bench.product.clone();
        Self::start(bench, OURS, |dir| {
            let child = dir.join("run");
            fs::write(
                dir.join("tachikoma.toml"),
                format!(
                    "[opencode]\nenabled = true\nserve_port = 0\nserve_command = '{}'\nrestart_delay_ms = 0\n\
                     max_restart_attempts = 0\nhealth_interval = '0s'\n",
                    child.display()
                ),
            )?;
            let mut command = Command::new(&product);
            command
                .args(["opencode", "up"])
                .env("XDG_RUNTIME_DIR", dir)
                .env("HOME", dir)
                .env("TACHIKOMA_TRUST", "1");
            Ok(command)
        })
    }

    /// Starts this program in the role of a minimal supervisor, which restarts the child repeatedly.
    fn bare(bench: &Bench, name: &'static str, synced: bool) -> Result<Self, String> {
        Self::start(bench, name, move |dir| {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["bench-loop", if synced { "synced" } else { "bare" }]);
            command.arg(dir.join("run"));
            Ok(command)
        })
    }

    fn start(
        bench: &Bench,
        name: &'static str,
        prepare: impl FnOnce(&Path) -> std::io::Result<Command>,
    ) -> Result<Self, String> {
        let dir = tempfile::Builder::new()
            .prefix("tk")
            .tempdir_in(&bench.disk)
            .map_err(text)?;
        let child = dir.path().join("run");
        fs::write(&child, CHILD).map_err(text)?;
        fs::set_permissions(&child, fs::Permissions::from_mode(0o755)).map_err(text)?;
        let made = Command::new("mkfifo")
            .arg(dir.path().join("ticks"))
            .status();
        made.map_err(text)?;
        // The pipe is opened for reading and writing, so that it has no end of file between two children.
        let ticks = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(NONBLOCK)
            .open(dir.path().join("ticks"))
            .map_err(text)?;
        let supervisor = prepare(dir.path())
            .map_err(text)?
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(text)?;
        let mut contender = Self {
            name,
            dir,
            supervisor,
            ticks,
            child: rustix::process::getpid(),
            sample: Sample::default(),
        };
        contender.child = contender.next()?;
        Ok(contender)
    }

    /// Waits for the first write of the next child and returns its process id.
    fn next(&mut self) -> Result<Pid, String> {
        let timeout = Timespec::try_from(PATIENCE).map_err(|error| error.to_string())?;
        let ready = poll(
            &mut [PollFd::new(&self.ticks, PollFlags::IN)],
            Some(&timeout),
        );
        if ready != Ok(1) {
            return Err(format!(
                "{} starts no child in {}",
                self.name,
                self.dir.path().display()
            ));
        }
        let mut line = [0; 64];
        let read = self.ticks.read(&mut line).map_err(text)?;
        let pid = String::from_utf8_lossy(line.get(..read).unwrap_or_default());
        let pid = pid.trim().parse().ok().and_then(Pid::from_raw);
        pid.ok_or_else(|| format!("{}: the child's line is not a process id", self.name))
    }

    fn round(&mut self) -> Result<(), String> {
        let began = Instant::now();
        kill_process(self.child, Signal::KILL).map_err(|error| error.to_string())?;
        self.child = self.next()?;
        self.sample.add(began.elapsed().as_secs_f64() * 1e3);
        Ok(())
    }
}

/// `O_NONBLOCK`, so that opening a pipe does not wait for its other end.
const NONBLOCK: i32 = 0o4000;

impl Drop for Contender {
    fn drop(&mut self) {
        // SIGTERM lets the supervisor end its child. The child is killed in any case.
        if let Some(pid) = i32::try_from(self.supervisor.id())
            .ok()
            .and_then(Pid::from_raw)
        {
            let _ = kill_process(pid, Signal::TERM);
        }
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(5)
            && matches!(self.supervisor.try_wait(), Ok(None))
        {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.supervisor.kill();
        let _ = self.supervisor.wait();
        let _ = kill_process(self.child, Signal::KILL);
    }
}

/// Runs the minimal supervisor until it is killed.
pub fn bare_loop(words: &[&str]) -> Result<(), String> {
    let [how, program] = words else {
        return Err("bench-loop is started by bench".into());
    };
    let program: OsString = PathBuf::from(program).into();
    let mut journal = File::create("journal").map_err(text)?;
    let record = vec![b'x'; RECORD_BYTES];
    loop {
        let mut child = Command::new(&program).spawn().map_err(text)?;
        child.wait().map_err(text)?;
        if *how == "synced" {
            journal.write_all(&record).map_err(text)?;
            journal.sync_data().map_err(text)?;
        }
    }
}
