//! Requests and signals of the agent that imitate those of the operator, or that block them. The agent runs Perl scripts, because
//! Perl can share a socket between processes and make raw system calls, and git needs Perl, too.

use std::fs;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::scene::{
    PATIENCE, STOPPED, Scene,
    User::{self, Victim},
};
use super::{Failure, control, must_not};
use crate::product::{Live, await_that, text};

/// The request that stops a loop.
const STOP: &str = r#"{"kind":"command","command":{"stop":"now"}}"#;

/// Perl script: connects in a child that exits, waits until another process may have its process id, then sends a request.
/// Arguments: `SOCKET REQUEST`.
const CONNECT_AND_END: &str = r#"
use Socket;
my ($path, $request) = @ARGV;
socket(my $runner, AF_UNIX, SOCK_STREAM, 0) or die $!;
my $child = fork;
if (!$child) { connect($runner, sockaddr_un($path)) or die $!; exit }
waitpid $child, 0;
open(my $ended, '>', 'ended.new'); print $ended $child; close $ended; rename 'ended.new', 'ended';
until (-e 'reused') { select undef, undef, undef, 0.01 }
syswrite $runner, "$request\n";
my $answer = join '', <$runner>;
open(my $file, '>', 'answer.new'); print $file $answer; close $file; rename 'answer.new', 'answer';
"#;

/// Perl script: opens as many connections as possible, and opens each one again that is closed. Argument: `SOCKET`.
const OCCUPY: &str = r#"
use Socket;
my $path = $ARGV[0];
fork; fork;
my $mine = $$;
my @held;
my $tried = 0;
while (1) {
    while (@held < 100) {
        socket(my $runner, AF_UNIX, SOCK_STREAM | 04000, 0) or last;
        connect($runner, sockaddr_un($path)) or last;
        push @held, $runner;
    }
    if (!$tried++) { open(my $file, '>', "held.$mine"); print $file scalar @held }
    select undef, undef, undef, 0.05;
    @held = grep { my $got = sysread $_, my $bytes, 4096; !defined $got || $got } @held;
}
"#;

/// Perl script: sends SIGTERM by `rt_sigqueueinfo` with a forged process id, and SIGINT by `F_SETSIG`. Arguments: `RUNNER FORGED-PID`.
const FORGE: &str = r#"
use POSIX;
my ($runner, $forged) = @ARGV;
my %number = ('x86_64' => 129, 'aarch64' => 138);
my $number = $number{(POSIX::uname)[4]} or die 'unknown machine';
my $info = pack 'iiix4iIx104', 15, 0, -1, $forged, $<;
syscall($number, $runner + 0, 15, $info) == 0 or die "rt_sigqueueinfo: $!";
pipe(my $here, my $there) or die $!;
fcntl($here, 8, $runner + 0) or die "F_SETOWN: $!";
fcntl($here, 10, 2) or die "F_SETSIG: $!";
fcntl($here, 4, 020000) or die "O_ASYNC: $!";
syswrite $there, 'x';
"#;

/// Writes a Perl script that a user can read, and returns its path.
fn script(scene: &Scene, user: User, content: &str) -> Result<String, String> {
    let path = scene.home(user).join("script.pl");
    scene.write(user, &path, content)?;
    Ok(path.display().to_string())
}

/// Returns a shell command for the agent: it runs the script in the background once the file `go` contains the arguments.
fn beside(script: &str) -> String {
    format!(
        "(until [ -e go ]; do sleep 0.01; done; xargs perl {script} < go 2> failed; touch tried) &"
    )
}

/// Writes the arguments of the agent's script to the file `go`.
fn go(scene: &Scene, words: &str) -> Result<(), String> {
    let dir = scene.work(Victim);
    scene.write(Victim, &dir.join("go.new"), words)?;
    fs::rename(dir.join("go.new"), dir.join("go")).map_err(text)
}

/// Returns the path of the control socket of the loop in a directory.
fn socket(dir: &Path) -> Result<String, String> {
    let lock = fs::read(dir.join(".ralph/lock")).map_err(text)?;
    let lock: Value = serde_json::from_slice(&lock).map_err(|error| error.to_string())?;
    let path = lock.get("socket").and_then(Value::as_str);
    path.map(str::to_owned)
        .ok_or_else(|| "the lock names no socket".to_owned())
}

fn await_file(path: &Path) -> Result<String, String> {
    await_that(&path.display().to_string(), PATIENCE, || path.exists())?;
    fs::read_to_string(path).map_err(text)
}

/// Makes the kernel use this process id next, and starts a process of the operator with it.
fn reuse(scene: &Scene, pid: &str) -> Result<Live, String> {
    let wanted: u32 = pid.parse().map_err(|_| "no process id".to_owned())?;
    let mut taken = None;
    await_that("a process with the id of the caller", PATIENCE, || {
        // Another process of the machine may get the id first, so this is repeated.
        let last = fs::write("/proc/sys/kernel/ns_last_pid", (wanted - 1).to_string());
        let mut sleep = scene.program(Victim, &scene.work(Victim), "sleep");
        let started = last.is_ok().then(|| Live::start(sleep.arg("600")).ok());
        taken = started.flatten().filter(|live| live.pid() == wanted);
        taken.is_some()
    })?;
    taken.ok_or_else(|| "the process id is not free".to_owned())
}

pub fn reused_process_id(scene: &Scene) -> Result<(), Failure> {
    let dir = scene.work(Victim);
    let script = script(scene, Victim, CONNECT_AND_END)?;
    let mut live = scene.busy(Victim, &dir, &beside(&script))?;
    let socket = socket(&dir)?;
    go(scene, &format!("{socket} '{STOP}'"))?;
    let taken = reuse(scene, &await_file(&dir.join("ended"))?)?;
    scene.write(Victim, &dir.join("reused"), "")?;
    let answer = await_file(&dir.join("answer"))?;
    must_not(
        live.has_ended() || !answer.contains("refused"),
        &format!("a request of the agent was obeyed: {answer}"),
    )?;
    drop(taken);
    // The operator sends the same request from a process that keeps running.
    let send = format!(
        "use Socket; socket(R, AF_UNIX, SOCK_STREAM, 0); connect(R, sockaddr_un('{socket}')) or die; \
         syswrite R, qq({STOP}\\n); exit(grep(/refused/, <R>) > 0)"
    );
    let mut perl = scene.program(Victim, &dir, "perl");
    let refused = Live::start(perl.args(["-e", &send]))?.wait(PATIENCE)?;
    control(refused == Some(0), "the operator's request is obeyed")?;
    let code = live.wait(PATIENCE)?;
    control(
        code == Some(STOPPED),
        "the operator's request ends the loop",
    )
}

pub fn idle_connections(scene: &Scene) -> Result<(), Failure> {
    let dir = scene.work(Victim);
    let script = script(scene, Victim, OCCUPY)?;
    let live = scene.busy(Victim, &dir, &beside(&script))?;
    go(scene, &socket(&dir)?)?;
    let held = || {
        let files = fs::read_dir(&dir).into_iter().flatten().flatten();
        let of_agent = files.filter(|file| file.file_name().to_string_lossy().starts_with("held."));
        let counts = of_agent.filter_map(|file| fs::read_to_string(file.path()).ok());
        counts
            .filter_map(|count| count.parse::<usize>().ok())
            .sum::<usize>()
    };
    // The agent opens more connections than the runner serves at a time.
    await_that("connections of the agent", PATIENCE, || held() >= 128)?;
    let stopped = scene.expect(Victim, &dir, &["stop", "--now"], 0);
    must_not(
        stopped.is_err() || live.wait(PATIENCE)? != Some(STOPPED),
        "the operator could not stop the loop",
    )
}

pub fn forged_signals(scene: &Scene) -> Result<(), Failure> {
    let dir = scene.work(Victim);
    let script = script(scene, Victim, FORGE)?;
    let mut live = scene.busy(Victim, &dir, &beside(&script))?;
    // This process is not a descendant of the runner, like the operator's shell.
    go(scene, &format!("{} {}", live.pid(), std::process::id()))?;
    await_file(&dir.join("tried"))?;
    let failed = await_file(&dir.join("failed"))?;
    control(failed.is_empty(), &failed)?;
    let refusals = || {
        let events = scene.expect(Victim, &dir, &["events", "--json"], 0);
        events.unwrap_or_default().matches("access_refused").count()
    };
    // Closing the pipe may send one more signal.
    await_that(
        "the end of the loop, or two refusals at least",
        PATIENCE,
        || live.has_ended() || refusals() >= 2,
    )?;
    must_not(live.has_ended(), "a signal of the agent ended the loop")?;
    let runner = i32::try_from(live.pid()).ok().and_then(Pid::from_raw);
    let runner = runner.ok_or("the runner has no process id")?;
    kill_process(runner, Signal::TERM).map_err(|error| error.to_string())?;
    let code = live.wait(PATIENCE)?;
    control(
        code.is_some(),
        "the same signal of the operator ends the loop",
    )
}
