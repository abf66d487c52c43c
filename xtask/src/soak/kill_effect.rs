//! Kills the runner before and after each effect: when its record is written, and when its consequences are not recorded yet. The
//! loop has all kinds of events: iterations, a failure and its backoff, a delay, a skip, a pause, reboots and a stop.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tachikoma_core::LoopState;

use super::audit::Books;
use super::tracer::{self, Call, MISSED_OF, NEAR, trace_of};
use super::victim::{PATIENCE, Victim};
use crate::product::{self, Live, await_that, text};

/// System calls that perform effects.
const CALLS: &str = "sendmsg,sendto,write,rename";

/// Number of bytes of a write that `strace` shows, enough to recognize a record.
const SHOWN_BYTES: &str = "4096";

/// Script of an agent. While a file exists, the first iteration succeeds, the second fails, and the others work until they are killed.
const AGENT: &str = "echo \"$TACHIKOMA_ITERATION $TACHIKOMA_ATTEMPT\" >>OUTSIDE/ran; echo working
    [ -e OUTSIDE/life ] || exit 0
    case $TACHIKOMA_ITERATION in 1) ;; 2) exit 1 ;; *) exec sleep 1000 ;; esac";

/// Commands of the operator, and when they are sent.
const LIFE: [(When, &[&str]); 7] = [
    (When::Printed("\"backoff\""), &["skip"]),
    (When::Ran(3), &["skip"]),
    (When::Ran(4), &["pause", "--now"]),
    (When::Printed("\"paused\""), &["reboot"]),
    (When::Printed("\"reboot_completed\""), &["resume"]),
    (When::Ran(5), &["reboot"]),
    (When::Ran(6), &["stop"]),
];

/// The exit code of a loop that the operator stopped.
const STOPPED: i32 = 5;

/// The output of `strace` when the runner is stopped after the call.
const IS_STOPPED: &str = "--- stopped by SIGSTOP ---";

/// How long the consequences of an effect may continue before the runner is killed.
const COURSE: Duration = Duration::from_millis(30);

/// Time limit of a run, which takes a second or two.
const RUN: Duration = Duration::from_secs(30);

/// How often a call that was not hit is tried again, because runs differ.
const TRIES_MAX: u32 = 3;

const LOOK_EVERY: Duration = Duration::from_millis(2);

#[derive(Clone, Copy)]
enum When {
    Printed(&'static str),
    /// An agent has run for this iteration.
    Ran(u32),
}

impl When {
    fn holds(self, victim: &Victim) -> bool {
        match self {
            Self::Printed(word) => victim.printed().contains(word),
            Self::Ran(wanted) => victim
                .ran()
                .is_ok_and(|ran| ran.iter().any(|(iteration, _)| *iteration == wanted)),
        }
    }
}

/// The kind of an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Launch,
    Signal,
    /// A new session. It has no system call, so the runner is killed before or after its records.
    Renew,
    Reply,
    Finish,
    /// A snapshot. It is not an effect, but it is written after a record and visible to other processes.
    Snapshot,
}

const KINDS: [Kind; 6] = [
    Kind::Launch,
    Kind::Signal,
    Kind::Renew,
    Kind::Reply,
    Kind::Finish,
    Kind::Snapshot,
];

impl Kind {
    fn of(name: &str, rest: &str) -> Option<Self> {
        let has = |word: &str| rest.contains(&word.replace('"', "\\\""));
        match name {
            "sendmsg" if has("\"order\":\"spawn\"") => Some(Self::Launch),
            "sendmsg" if has("\"order\":\"signal\"") => Some(Self::Signal),
            "sendmsg" if has("\"order\":\"bye\"") => Some(Self::Finish),
            "sendto" if has("\"kind\":\"answer\"") => Some(Self::Reply),
            "write" if rest.contains("/journal-") && has("\"type\":\"reboot_") => Some(Self::Renew),
            "rename" if rest.contains("/state.json") => Some(Self::Snapshot),
            _ => None,
        }
    }
}

/// Whether the runner is killed before or after the effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Before,
    After,
}

impl Side {
    /// Returns the fault in the syntax of `strace`. A stop that is sent at the start of a call takes effect at its end.
    fn fault(self) -> &'static str {
        match self {
            Self::Before => "signal=SIGKILL",
            Self::After => "signal=SIGSTOP",
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Before => "before",
            Self::After => "after",
        })
    }
}

/// Kills the runner before and after effects: at most `rounds` effects of each kind.
pub fn run(root: &Path, rounds: u32) -> Result<String, String> {
    tracer::require()?;
    let product = product::build(root)?;
    let mut taken: BTreeMap<Kind, u32> = BTreeMap::new();
    let mut hit = BTreeSet::new();
    let (mut kills, mut missed) = (0, 0);
    for (call, kind) in undisturbed(&product)? {
        let taken = taken.entry(kind).or_default();
        *taken += 1;
        if *taken > rounds {
            continue;
        }
        for side in [Side::Before, Side::After] {
            let place = |error| format!("{side} {kind:?}, {call}: {error}");
            let mut is_hit = false;
            for _ in 0..TRIES_MAX {
                is_hit = kill_at(&product, &call, kind, side).map_err(place)?;
                if is_hit {
                    break;
                }
            }
            if is_hit {
                kills += 1;
                hit.insert((kind, side));
            } else {
                missed += 1;
            }
        }
    }
    for kind in KINDS {
        for side in [Side::Before, Side::After] {
            if !hit.contains(&(kind, side)) {
                return Err(format!("no runner was killed {side} {kind:?}"));
            }
        }
    }
    if missed * MISSED_OF > kills {
        return Err(format!(
            "{missed} effects were missed and {kills} hit: the runs differ too much"
        ));
    }
    let kinds = KINDS.len();
    Ok(format!(
        "{kills} runners killed, before and after effects of {kinds} kinds ({missed} could not be hit); nothing was lost \
         or done twice, and all loops went on"
    ))
}

/// Returns the effects of a run without kills.
fn undisturbed(product: &Path) -> Result<Vec<(Call, Kind)>, String> {
    let victim = victim(product)?;
    let words = ["-e", &format!("trace={CALLS}"), "-s", SHOWN_BYTES];
    let (code, _) = live(&victim, &words)?;
    if code != Some(STOPPED) {
        return Err(format!(
            "this machine cannot show it: under strace the loop ended with {code:?}: {}",
            victim.stderr()
        ));
    }
    victim.expect_nobody()?;
    victim.audit()?;
    Ok(tracer::calls_in(&trace_of(&victim)?, CALLS, Kind::of))
}

fn victim(product: &Path) -> Result<Victim, String> {
    let victim = Victim::new(product)?.with_agent(AGENT);
    fs::write(life(&victim), "").map_err(text)?;
    Ok(victim)
}

fn life(victim: &Victim) -> String {
    format!("{}/life", victim.outside())
}

/// Runs the loop under `strace` to the end or to the fault. Returns the exit code of the runner, and how many commands of the
/// operator succeeded.
fn live(victim: &Victim, words: &[&str]) -> Result<(Option<i32>, usize), String> {
    let mut runner = tracer::start(victim, words, &victim.words_with(0, "20ms"))?;
    let started = Instant::now();
    let mut steps = LIFE.iter();
    let mut step = steps.next();
    let mut commands: Vec<Live> = Vec::new();
    while !runner.has_ended() {
        if started.elapsed() > RUN {
            return Err(format!("the life takes too long: {}", victim.printed()));
        }
        if trace_of(victim).is_ok_and(|trace| trace.contains(IS_STOPPED)) {
            thread::sleep(COURSE);
            kill_child_of(runner.pid())?;
            break;
        }
        if let Some((_, words)) = step.filter(|(when, _)| when.holds(victim)) {
            commands.push(Live::start(&mut victim.ground().tachikoma(words))?);
            step = steps.next();
        }
        thread::sleep(LOOK_EVERY);
    }
    let code = runner.wait(PATIENCE)?;
    let mut succeeded = 0;
    for command in commands {
        succeeded += usize::from(command.wait(PATIENCE)? == Some(0));
    }
    Ok((code, succeeded))
}

/// Kills the process that a tracer runs.
fn kill_child_of(tracer: u32) -> Result<(), String> {
    let children = fs::read_to_string(format!("/proc/{tracer}/task/{tracer}/children"));
    let children = children.map_err(text)?;
    let pid = children.split_whitespace().next();
    let pid = pid
        .and_then(|pid| pid.parse().ok())
        .and_then(Pid::from_raw)
        .ok_or("the tracer has no child")?;
    kill_process(pid, Signal::KILL).map_err(|error| error.to_string())
}

/// Kills a runner at an effect. Runs differ a little, so another call of the same name may be hit; then a call near it is tried.
/// Returns whether an effect of this kind was hit.
fn kill_at(product: &Path, call: &Call, kind: Kind, side: Side) -> Result<bool, String> {
    for offset in NEAR {
        let call = call.near(offset);
        let victim = victim(product)?;
        let trace = format!("trace={}", call.name);
        let inject = format!("inject={}:{}:when={}", call.name, side.fault(), call.nth);
        let words = ["-e", &trace, "-e", &inject, "-s", SHOWN_BYTES];
        let (code, succeeded) = live(&victim, &words)?;
        let effects = tracer::calls_in(&trace_of(&victim)?, &call.name, Kind::of);
        let hit = effects.last() == Some(&(call, kind)) && code.is_none();
        victim.expect_nobody()?;
        let books = victim.audit()?.ok_or("there is no loop")?;
        if !hit {
            continue;
        }
        if kind == Kind::Reply {
            let answered = effects.len() - usize::from(side == Side::Before);
            if succeeded != answered {
                return Err(format!(
                    "{answered} commands were answered, and {succeeded} succeeded"
                ));
            }
        }
        fs::remove_file(life(&victim)).map_err(text)?;
        return go_on(&victim, &books).map(|()| true);
    }
    Ok(false)
}

/// Checks that the loop continues. A paused loop stays paused until the operator resumes it.
fn go_on(victim: &Victim, books: &Books) -> Result<(), String> {
    let paused = books.state.public() == LoopState::Paused || books.state.pause_requested;
    thread::scope(|scope| {
        if paused {
            scope.spawn(|| {
                let mut resume = victim.ground().tachikoma(&["resume"]);
                await_that("the loop to be resumed", PATIENCE, || {
                    resume.status().is_ok_and(|status| status.success())
                })
            });
        }
        victim.go_on().map(drop)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effects_are_recognized_by_their_calls() {
        let socket = "14<UNIX:[1]>, {msg_iov=[{iov_base=\"{\\\"order\\\":\\\"";
        let kind = |name, rest: &str| Kind::of(name, rest);
        assert_eq!(
            kind("sendmsg", &format!("{socket}spawn\\\"")),
            Some(Kind::Launch)
        );
        assert_eq!(
            kind("sendmsg", &format!("{socket}signal\\\"")),
            Some(Kind::Signal)
        );
        assert_eq!(
            kind("sendmsg", &format!("{socket}bye\\\"")),
            Some(Kind::Finish)
        );
        assert_eq!(kind("sendmsg", &format!("{socket}hello\\\"")), None);
        let answer = "13<UNIX:[2]>, \"{\\\"kind\\\":\\\"answer\\\"";
        assert_eq!(kind("sendto", answer), Some(Kind::Reply));
        let record =
            "11</d/journal-0001.jsonl>, \"{\\\"event\\\":{\\\"type\\\":\\\"reboot_started\\\"";
        assert_eq!(kind("write", record), Some(Kind::Renew));
        assert_eq!(
            kind(
                "rename",
                "\"/d/.ralph/.s.tmp\", \"/d/.ralph/state.json\") = 0"
            ),
            Some(Kind::Snapshot)
        );
        assert_eq!(kind("rename", "\"/d/a\", \"/d/b\") = 0"), None);
    }
}
