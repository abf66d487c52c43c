//! SIGKILL and SIGSTOP to processes of a loop: no process of the agent may survive the runner.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

use super::scene::{PATIENCE, Scene, User::Victim, processes_of};
use super::{Failure, control, must_not};
use crate::product::{Live, await_that, text};

/// Shell script that starts children which try to escape: in another session, with other parents, and with an empty environment.
const RUNAWAYS: &str = "\
setsid sleep 600 </dev/null >/dev/null 2>&1 &
( (setsid sleep 600 </dev/null >/dev/null 2>&1 &) & )
setsid env -i sleep 600 </dev/null >/dev/null 2>&1 &
echo $$ > agent";

/// Number of sleeping processes: those of [`RUNAWAYS`] and their agent.
const SLEEPERS: usize = 4;

/// How often each attack is repeated.
const SAMPLES: usize = 3;

/// A running loop and its helper processes.
struct Held {
    runner: Live,
    /// The parent of the agent.
    guard: Pid,
    /// The parent of the guard.
    standby: Pid,
}

impl Held {
    /// Stops the runner, so that it cannot react to the death of other processes.
    fn stop_runner(&self) -> Result<(), String> {
        let runner = i32::try_from(self.runner.pid()).ok();
        let runner = runner.and_then(Pid::from_raw);
        signal(runner.ok_or("the runner has no process id")?, Signal::STOP)
    }
}

/// Kills several runners with `end`. After each kill, all processes must have ended, and the next loop must start.
fn try_each(scene: &Scene, end: fn(&Held) -> Result<(), String>) -> Result<(), Failure> {
    let dir = scene.work(Victim);
    for _ in 0..SAMPLES {
        let held = start(scene)?;
        end(&held)?;
        held.runner.kill()?;
        let gone = await_that("the end of all processes", PATIENCE, || {
            processes_of(Victim).is_empty()
        });
        must_not(gone.is_err(), "processes of the agent survived")?;
        let next = scene.iterate(Victim, &dir, "true");
        must_not(next.is_err(), "the next loop does not start")?;
        fs::remove_file(dir.join("up")).map_err(text)?;
    }
    Ok(())
}

fn start(scene: &Scene) -> Result<Held, Failure> {
    let dir = scene.work(Victim);
    let runner = scene.busy(Victim, &dir, RUNAWAYS)?;
    let sleepers = || {
        let all = processes_of(Victim).into_iter();
        all.filter(|pid| name_of(*pid) == "sleep").count()
    };
    await_that("the agent and its children", PATIENCE, || {
        sleepers() == SLEEPERS
    })?;
    let agent = fs::read_to_string(dir.join("agent")).map_err(text)?;
    let guard = parent_of(agent.trim())?;
    let standby = parent_of(&guard.to_string())?;
    let are_helpers = [guard, standby].iter().all(|pid| {
        Some(*pid) != Pid::from_raw(1) && pid.as_raw_pid().unsigned_abs() != runner.pid()
    });
    control(
        are_helpers,
        "the agent has no guard with a standby above it",
    )?;
    Ok(Held {
        runner,
        guard,
        standby,
    })
}

fn parent_of(pid: &str) -> Result<Pid, String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).map_err(text)?;
    let parent = stat
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
    let parent = parent.and_then(Pid::from_raw);
    parent.ok_or_else(|| format!("process {pid} has no parent"))
}

fn name_of(pid: Pid) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}

fn signal(pid: Pid, signal: Signal) -> Result<(), String> {
    kill_process(pid, signal).map_err(|error| error.to_string())
}

pub fn runner_and_guard(scene: &Scene) -> Result<(), Failure> {
    try_each(scene, |held| {
        held.stop_runner()?;
        signal(held.guard, Signal::KILL)
    })
}

pub fn standby_and_runner(scene: &Scene) -> Result<(), Failure> {
    try_each(scene, |held| {
        held.stop_runner()?;
        signal(held.standby, Signal::KILL)
    })
}

pub fn by_name(scene: &Scene) -> Result<(), Failure> {
    try_each(scene, |_| {
        let mut found = processes_of(Victim);
        found.retain(|pid| name_of(*pid) == "tachikoma");
        if found.is_empty() {
            return Err("no process is called tachikoma".to_owned());
        }
        // All of them are stopped first, so that none can react to the death of another.
        for step in [Signal::STOP, Signal::KILL] {
            for pid in &found {
                signal(*pid, step)?;
            }
        }
        Ok(())
    })
}

pub fn stopped_guard(scene: &Scene) -> Result<(), Failure> {
    try_each(scene, |held| signal(held.guard, Signal::STOP))
}
