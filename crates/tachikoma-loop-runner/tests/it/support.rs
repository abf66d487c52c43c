//! A guard with one agent to drive, and ways to wait for a state instead of sleeping.

use std::ffi::OsString;
use std::fs;
use std::future::Future;
use std::io::{BufRead as _, BufReader, Lines};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tachikoma_agents::line::Line;
use tachikoma_loop_runner::process::{
    Containment, Exit, Guard, GuardOptions, GuardReport, Leftover, Spawn, SpawnSubject, input,
    output,
};
use tachikoma_loop_runner::session::pump::{Flow, Output, Pump, Stream};
use tachikoma_loop_runner::session::transcript::Transcript;
use tempfile::TempDir;

/// Timeout of every wait in these tests. It is long enough for a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Output lines that are longer than this many bytes are truncated.
pub(crate) const LINE_BYTES_MAX: usize = 1024 * 1024;

/// Both kinds of containment. A machine without cgroups uses the guard for both.
pub(crate) const CONTAINMENTS: [Containment; 2] = [Containment::Cgroup, Containment::Guard];

/// Runs async code on one thread, as the runner does, with a timeout.
pub(crate) fn run<T>(work: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().unwrap();
    let limited = async { tokio::time::timeout(2 * PATIENCE, work).await };
    runtime.block_on(limited).expect("the test ends in time")
}

/// Waits until a state is reached.
pub(crate) fn until(what: &str, reached: impl FnMut() -> bool) {
    tachikoma_testkit::await_until(what, PATIENCE, reached);
}

/// The result of [`running`] if no process runs the command.
pub(crate) const NOBODY: [i32; 0] = [];

/// Returns a long `sleep` command that no other test uses, so that its process can be recognized.
pub(crate) fn unique() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("sleep 98765.{}{number:04}", std::process::id())
}

/// Returns the living processes that run exactly this command.
pub(crate) fn running(command: &str) -> Vec<i32> {
    let wanted = format!("{command} ").replace(' ', "\0");
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line == wanted.as_bytes()
    })
    .collect()
}

/// Returns whether a process exists and is not a zombie.
pub(crate) fn is_alive(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        !stat
            .rsplit_once(')')
            .unwrap()
            .1
            .trim_start()
            .starts_with('Z')
    })
}

/// Returns how many descriptors a process has open.
pub(crate) fn open_files(pid: i32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Returns the children of a process with one thread, zombies included.
pub(crate) fn children(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap()
}

/// Returns the process id of the guard, which is the child of the standby. The runner only knows the standby's process id.
pub(crate) fn guard_below(standby: i32) -> i32 {
    let child = || children(standby).trim().parse().ok();
    until("the standby has started the guard", || child().is_some());
    child().unwrap()
}

/// Sends a signal to a process that this test started.
pub(crate) fn kill(signal: &str, pid: i32) {
    assert!(kill_if_there(signal, pid), "kill {signal} {pid}");
}

/// Sends a signal to a process that this test started. Returns false if the process does not exist.
pub(crate) fn kill_if_there(signal: &str, pid: i32) -> bool {
    let mut kill = Command::new("kill");
    kill.args([signal, &pid.to_string()]).stderr(Stdio::null());
    kill.status().unwrap().success()
}

/// Returns one of the crate's example programs, which `cargo test` builds beside the tests.
pub(crate) fn example(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let target = tests.parent().and_then(Path::parent).unwrap();
    let path = target.join("examples").join(name);
    assert!(
        path.exists(),
        "{} must have been built by `cargo test`",
        path.display()
    );
    path
}

/// Runs the body of a test in its own process, for tests that count memory or file descriptors of the whole process.
pub(crate) fn alone(test: &str, body: impl FnOnce()) {
    const SWITCH: &str = "TACHIKOMA_TEST_ALONE";
    if std::env::var_os(SWITCH).is_some() {
        return body();
    }
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(SWITCH, "1")
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success(), "{test} failed in its own process");
}

/// Shell code that starts three processes which try to escape: by `setsid`, by a double fork, and by an empty environment.
pub(crate) fn runaways(sleep: &str) -> String {
    let quiet = "</dev/null >/dev/null 2>&1 &";
    format!(
        "setsid {sleep} {quiet} ( (setsid {sleep} {quiet}) & ) ; setsid env -i {sleep} {quiet} echo ready;"
    )
}

/// Shell code for an agent that waits until the test calls [`Rig::go`].
pub(crate) const UNTIL_GO: &str = "while [ ! -e go ]; do sleep 0.01; done;";

/// Reports and output of the agent so far.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) pid: Option<i32>,
    pub(crate) lines: Vec<(String, u64)>,
    pub(crate) error_lines: Vec<String>,
    pub(crate) ended_streams: usize,
    pub(crate) exit: Option<Exit>,
    pub(crate) leftovers: Vec<Leftover>,
    pub(crate) refusal: Option<(SpawnSubject, i32)>,
    pub(crate) lost: bool,
}

impl Seen {
    pub(crate) fn has_line(&self, text: &str) -> bool {
        self.lines.iter().any(|(line, _)| line == text)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.exit.is_some() || self.refusal.is_some() || self.lost
    }
}

/// A guard that runs agents, one at a time.
pub(crate) struct Rig {
    pub(crate) guard: Guard,
    pub(crate) place: TempDir,
    pub(crate) generation: u64,
    pub(crate) seen: Seen,
    pub(crate) marker: String,
    pump: Option<Pump>,
    /// Whether output lines are stored. Tests with very much output only count them.
    pub(crate) remember: bool,
}

impl Rig {
    pub(crate) fn new(containment: Containment) -> Self {
        Self::with_lock(containment, None)
    }

    pub(crate) fn with_lock(containment: Containment, lock: Option<OwnedFd>) -> Self {
        let marker = format!("test_{}", unique().replace(['.', ' '], "_"));
        let guard = Guard::start(&GuardOptions {
            lock,
            cgroup: containment == Containment::Cgroup,
            ..GuardOptions::new(&[example("guard").into()], marker.clone())
        })
        .unwrap();
        Self {
            guard,
            place: tempfile::tempdir().unwrap(),
            generation: 0,
            seen: Seen::default(),
            marker,
            pump: None,
            remember: true,
        }
    }

    pub(crate) fn order(&self, program: &str, args: &[&str]) -> (Spawn, Pump) {
        let (stdout, for_stdout) = output().unwrap();
        let (stderr, for_stderr) = output().unwrap();
        let spawn = Spawn {
            generation: self.generation + 1,
            program: program.into(),
            args: args.iter().map(OsString::from).collect(),
            env: Vec::new(),
            env_remove: Vec::new(),
            cwd: self.place.path().into(),
            streams: Some([input(b"").unwrap(), for_stdout, for_stderr]),
        };
        let directory = self.place.path().join("transcripts");
        let transcript = Transcript::new(directory, self.generation + 1, 1, 1024 * 1024);
        let pump = Pump::new(stdout, stderr, transcript, LINE_BYTES_MAX);
        (spawn, pump)
    }

    pub(crate) fn spawn(&mut self, (spawn, pump): (Spawn, Pump)) {
        self.generation = spawn.generation;
        self.seen = Seen::default();
        self.pump = Some(pump);
        self.guard.spawn(spawn).unwrap();
    }

    pub(crate) fn sh(&mut self, script: &str) {
        self.spawn(self.order("sh", &["-c", script]));
    }

    /// Lets an agent continue that waits with [`UNTIL_GO`].
    pub(crate) fn go(&self) {
        fs::write(self.place.path().join("go"), "").unwrap();
    }

    /// Processes reports and output of the agent until a state is reached.
    pub(crate) async fn until(&mut self, what: &str, reached: impl Fn(&Seen) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !reached(&self.seen) {
            let step = tokio::time::timeout(deadline - Instant::now(), self.step()).await;
            assert!(step.is_ok(), "not reached: {what}; seen {:?}", self.seen);
        }
    }

    async fn step(&mut self) {
        let flowing = self.seen.ended_streams < 2;
        let Self {
            guard,
            pump,
            seen,
            remember,
            ..
        } = self;
        let pump = pump.as_mut().unwrap();
        let mut sink = |stream, line: Line<'_>| {
            if *remember {
                note(seen, stream, &line);
            }
        };
        let happened = tokio::select! {
            news = guard.next() => Happened::AgentInput(news),
            flow = pump.read(&mut sink), if flowing => Happened::Flow(flow),
        };
        match happened {
            Happened::AgentInput(news) => self.seen.hear(news, self.generation),
            Happened::Flow(Flow::Output) => (),
            Happened::Flow(Flow::StreamEnded(_) | Flow::Ended) => self.seen.ended_streams += 1,
        }
    }

    /// Waits until the agent has ended and returns the rest of its output.
    pub(crate) async fn over(&mut self) -> (bool, Output) {
        self.until("the agent ends", Seen::is_over).await;
        let mut pump = self.pump.take().unwrap();
        let seen = &mut self.seen;
        let remember = self.remember;
        let mut sink = |stream, line: Line<'_>| {
            if remember {
                note(seen, stream, &line);
            }
        };
        let drained = pump.drain(&mut sink).await;
        (drained, pump.finish())
    }
}

enum Happened {
    AgentInput(GuardReport),
    Flow(Flow),
}

fn note(seen: &mut Seen, stream: Stream, line: &Line<'_>) {
    match stream {
        Stream::Stdout => seen.lines.push((line.text.to_string(), line.omitted_bytes)),
        Stream::Stderr => seen.error_lines.push(line.text.to_string()),
    }
}

impl Seen {
    fn hear(&mut self, news: GuardReport, expected: u64) {
        match news {
            GuardReport::Spawned { generation, pid } => {
                assert_eq!(generation, expected);
                self.pid = Some(pid);
            }
            GuardReport::SpawnFailed { subject, errno, .. } => {
                self.refusal = Some((subject, errno));
            }
            GuardReport::Exited {
                generation,
                exit,
                leftovers,
                ..
            } => {
                assert_eq!(generation, expected);
                self.exit = Some(exit);
                self.leftovers = leftovers;
            }
            GuardReport::Lost { survivors } => {
                assert_eq!(survivors, [], "all processes of the agent could be killed");
                self.lost = true;
            }
        }
    }
}

/// A program that uses the process layer, in a separate process that tests can kill.
pub(crate) struct Embedded {
    pub(crate) process: Child,
    pub(crate) guard: i32,
    lines: Lines<BufReader<ChildStdout>>,
    pub(crate) place: TempDir,
}

impl Embedded {
    pub(crate) fn start(containment: Containment, marker: &str, script: &str) -> Self {
        let place = tempfile::tempdir().unwrap();
        let mut command = Command::new(example("guarded"));
        command
            .arg(example("guard"))
            .args([marker, &containment.to_string(), "all"])
            .arg(place.path())
            .args(["sh", "-c", script]);
        Self::of(command, place)
    }

    pub(crate) fn of(mut command: Command, place: TempDir) -> Self {
        let mut process = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut embedded = Self {
            process,
            guard: 0,
            lines,
            place,
        };
        let line = embedded.line_with("guard ");
        embedded.guard = line.split(' ').nth(1).unwrap().parse().unwrap();
        embedded
    }

    /// Reads output lines of the program until one contains `part`.
    pub(crate) fn line_with(&mut self, part: &str) -> String {
        let mut read = self.lines.by_ref().map(Result::unwrap);
        read.find(|line| line.contains(part))
            .unwrap_or_else(|| panic!("the program ended without printing a line with `{part}`"))
    }

    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.process.id()).unwrap()
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
