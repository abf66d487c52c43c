//! `kill -9` of the runner, its guard, or both: no process of an agent survives, and the loop goes on where it was.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};
use tachikoma_testkit::{Live, Scratch, Tool, await_until, processes_with};

use crate::live_support::{
    RUN, SOON, await_nobody, await_status, events, guard_of, is_alive, seconds, status, stop, tool,
    tool_of_nobody, with_agent,
};

/// How often each way is tried here; the soak test tries it longer.
const SAMPLES: u64 = 5;

/// An agent with three grandchildren that try to get away: in another session, orphaned twice over, and with an empty
/// environment.
fn busy(seconds: &str) -> Scratch {
    let quiet = "</dev/null >/dev/null 2>&1 &";
    with_agent(&format!(
        "setsid sleep {seconds} {quiet}\n\
         ( (setsid sleep {seconds} {quiet}) & )\n\
         setsid env -i sleep {seconds} {quiet}\n\
         exec sleep {seconds}"
    ))
}

fn start(tool: &Tool<'_>, seconds: &str) -> Live {
    let live = tool.spawn(RUN);
    await_until("agent and grandchildren", SOON, || {
        processes_with(seconds).len() == 4
    });
    live
}

/// Kills runner after runner in the middle of the same iteration.
fn kill_runners(tool: &Tool<'_>, seconds: &str) {
    for sample in 1..=SAMPLES {
        let mut live = start(tool, seconds);
        let guard = guard_of(live.pid());
        live.signal(Signal::KILL);
        await_nobody(seconds);
        await_until("the guard is gone too", SOON, || !is_alive(guard));
        drop(live);
        let status = status(tool);
        assert_eq!(status["iteration"], 1);
        assert_eq!(status["attempt"], sample, "the same iteration again");
        assert!(status["runner"].is_null(), "{status}");
    }
}

#[test]
fn a_killed_runner_leaves_no_process() {
    let seconds = seconds();
    let scratch = busy(&seconds);
    kill_runners(&tool(&scratch), &seconds);
}

// complaint_44
#[test]
fn a_killed_runner_without_cgroup_leaves_no_process() {
    let seconds = seconds();
    let scratch = busy(&seconds);
    let tool = tool_of_nobody(&scratch);
    let live = start(&tool, &seconds);
    let containment = status(&tool)["runner"]["containment"].clone();
    if rustix::process::geteuid().is_root() {
        assert_eq!(containment, "guard", "nobody may make a control group");
    }
    assert_eq!(stop(&tool, live), Some(5));
    let lone = busy(&seconds);
    kill_runners(&tool_of_nobody(&lone), &seconds);
}

#[test]
fn a_killed_guard_fails_one_iteration_and_leaves_no_process() {
    let seconds = seconds();
    let scratch = busy(&seconds);
    let tool = tool_of_nobody(&scratch);
    let live = start(&tool, &seconds);
    let agents = processes_with(&seconds);
    kill(guard_of(live.pid()));
    let status = await_status(&tool, "the second iteration", |status| {
        status["iteration"] == 2
    });
    assert_eq!(status["stats"]["failed"], 1);
    assert!(
        agents.iter().all(|pid| !is_alive(*pid)),
        "all of the first iteration are gone"
    );
    assert_eq!(stop(&tool, live), Some(5));
    await_nobody(&seconds);
}

/// Kills a process that a test started.
fn kill(pid: u32) {
    signal(pid, Signal::KILL);
}

fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).unwrap();
    kill_process(pid, signal).unwrap();
}

/// An agent that at its second attempt looks for the grandchildren of its first.
fn suspicious(seconds: &str) -> Scratch {
    let daemon = format!("setsid sh -c 'echo $$ >>pids; exec sleep {seconds}'");
    let quiet = "</dev/null >/dev/null 2>&1 &";
    with_agent(&format!(
        "if [ $TACHIKOMA_ATTEMPT = 2 ]; then\n\
           for pid in $(cat pids); do grep -q {seconds} /proc/$pid/cmdline 2>/dev/null && echo $pid >>survivors; done\n\
           touch looked; exec sleep {seconds}\n\
         fi\n\
         {daemon} {quiet}\n( ({daemon} {quiet}) & )\n\
         exec sleep {seconds}"
    ))
}

fn leftovers_end_before_a_new_agent(scratch: &Scratch, tool: &Tool<'_>, seconds: &str) {
    let mut live = tool.spawn(RUN);
    await_until("agent and grandchildren", SOON, || {
        processes_with(seconds).len() == 3
    });
    // Stopped, it cannot notice the death of its runner before its own.
    let guard = guard_of(live.pid());
    signal(guard, Signal::STOP);
    live.signal(Signal::KILL);
    await_until("the runner is gone", SOON, || !live.is_running());
    kill(guard);
    await_until("the guard is gone", SOON, || !is_alive(guard));
    let left = processes_with(seconds);
    assert!(left.len() >= 2, "grandchildren outlive both: {left:?}");

    let live = tool.spawn(RUN);
    let looked = scratch.path().join("looked");
    await_until("the second attempt", SOON, || looked.exists());
    assert!(
        !scratch.path().join("survivors").exists(),
        "a new agent starts only when the old one's children are gone"
    );
    assert!(left.iter().all(|pid| !is_alive(*pid)));
    assert!(
        live.stderr()
            .contains("processes that its runner left behind are ended"),
        "{}",
        live.stderr()
    );
    assert_eq!(stop(tool, live), Some(5));
    await_nobody(seconds);
    let cut = |record: &serde_json::Value| record["event"]["type"] == "attempt_cut";
    assert_eq!(events(tool).iter().filter(|record| cut(record)).count(), 1);
}

// complaint_47
#[test]
fn what_outlives_runner_and_guard_ends_before_the_next_agent_starts() {
    let seconds = seconds();
    let scratch = suspicious(&seconds);
    leftovers_end_before_a_new_agent(&scratch, &tool(&scratch), &seconds);
}

#[test]
fn what_outlives_runner_and_guard_is_known_by_its_marker() {
    let seconds = seconds();
    let scratch = suspicious(&seconds);
    leftovers_end_before_a_new_agent(&scratch, &tool_of_nobody(&scratch), &seconds);
}

// complaint_44
#[test]
fn a_runner_that_waits_for_the_lock_gets_in_when_the_first_is_killed() {
    let seconds = seconds();
    let scratch = busy(&seconds);
    let tool = tool(&scratch);
    let mut first = start(&tool, &seconds);
    let second = tool.spawn(RUN);
    await_until("the second one waits", SOON, || has_runtime(second.pid()));
    first.signal(Signal::KILL);
    // It waits for five seconds; had it not got in by then, it would be gone.
    await_status(&tool, "the second attempt", |status| {
        status["attempt"] == 2 && status["runner"]["pid"] == second.pid()
    });
    assert_eq!(stop(&tool, second), Some(5));
    await_nobody(&seconds);
}

/// Returns whether a process has come as far as its runtime, which is right before the lock.
fn has_runtime(pid: u32) -> bool {
    let Ok(fds) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return false;
    };
    let mut targets = fds.flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
    targets.any(|target| target.to_string_lossy().contains("eventpoll"))
}
