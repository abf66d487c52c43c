//! `kill -9` of the runner, its guard, or both: no process of an agent survives, and the loop continues.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};
use tachikoma_testkit::{Live, Scratch, Tool, await_until, processes_with};

use crate::live_support::{
    BIN, RUN, SOON, UP, await_nobody, await_status, await_up, events, guard_of, is_alive, seconds,
    standby_of, status, stop, tool, tool_of_nobody, with_agent,
};

/// How often each case is repeated. The soak test repeats it more often.
const SAMPLES: u64 = 5;

/// Returns an agent with three grandchildren that try to escape: in another session, with other parents, and with an empty environment.
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

/// Kills several runners during the same iteration. Before each kill, `way` acts on the guard.
fn kill_runners(tool: &Tool<'_>, seconds: &str, way: fn(&mut Live, u32)) {
    for sample in 1..=SAMPLES {
        let mut live = start(tool, seconds);
        let (standby, guard) = (standby_of(live.pid()), guard_of(live.pid()));
        way(&mut live, guard);
        live.signal(Signal::KILL);
        await_nobody(seconds);
        await_until("the guard is gone too", SOON, || {
            !is_alive(guard) && !is_alive(standby)
        });
        drop(live);
        let status = status(tool);
        assert_eq!(status["iteration"], 1);
        assert_eq!(status["attempt"], sample, "the same iteration is repeated");
        assert!(status["runner"].is_null(), "{status}");
    }
}

#[test]
fn a_killed_runner_leaves_no_process() {
    let seconds = seconds();
    let scratch = busy(&seconds);
    kill_runners(&tool(&scratch), &seconds, |_, _| {});
}

#[test]
fn a_stopped_guard_and_a_killed_runner_leave_no_process() {
    let seconds = seconds();
    let scratch = busy(&seconds);
    kill_runners(&tool_of_nobody(&scratch), &seconds, |_, guard| {
        signal(guard, Signal::STOP);
    });
}

#[test]
fn runner_and_guard_that_are_killed_together_leave_no_process() {
    let seconds = seconds();
    let scratch = busy(&seconds);
    kill_runners(&tool_of_nobody(&scratch), &seconds, |live, guard| {
        // A stopped runner cannot react to the death of its guard.
        live.signal(Signal::STOP);
        kill(guard);
    });
}

#[test]
fn a_standby_that_is_killed_before_the_runner_leaves_no_process() {
    let seconds = seconds();
    let scratch = busy(&seconds);
    kill_runners(&tool_of_nobody(&scratch), &seconds, |live, _| {
        // A stopped runner cannot react to the death of the standby.
        live.signal(Signal::STOP);
        kill(standby_of(live.pid()));
    });
}

#[test]
fn helper_processes_do_not_have_the_name_of_the_program() {
    let seconds = seconds();
    let scratch = busy(&seconds);
    let tool = tool(&scratch);
    let live = start(&tool, &seconds);
    for pid in [standby_of(live.pid()), guard_of(live.pid())] {
        for file in ["comm", "cmdline"] {
            let name = fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
            assert!(!name.contains("tachikoma"), "{file}: {name:?}");
        }
    }
    assert_eq!(stop(&tool, live), Some(5));
}

// Known fault of other loops: processes of the agent survived a killed runner.
#[test]
fn a_killed_runner_without_cgroup_leaves_no_process() {
    let seconds = seconds();
    let scratch = busy(&seconds);
    let tool = tool_of_nobody(&scratch);
    let live = start(&tool, &seconds);
    let containment = status(&tool)["runner"]["containment"].clone();
    if rustix::process::geteuid().is_root() {
        assert_eq!(containment, "guard", "the user may not create a cgroup");
    }
    assert_eq!(stop(&tool, live), Some(5));
    let lone = busy(&seconds);
    kill_runners(&tool_of_nobody(&lone), &seconds, |_, _| {});
}

#[test]
fn a_killed_guard_fails_one_iteration_and_leaves_no_process() {
    fail_one_iteration(|runner| kill(guard_of(runner)));
}

#[test]
fn a_killed_standby_fails_one_iteration_and_leaves_no_process() {
    fail_one_iteration(|runner| kill(standby_of(runner)));
}

#[test]
fn a_guard_that_is_killed_below_a_stopped_standby_fails_one_iteration() {
    fail_one_iteration(|runner| {
        let guard = guard_of(runner);
        signal(standby_of(runner), Signal::STOP);
        kill(guard);
    });
}

#[test]
fn a_stopped_guard_does_not_keep_the_loop_from_stopping() {
    let seconds = seconds();
    let scratch = busy(&seconds);
    let tool = tool_of_nobody(&scratch);
    let live = start(&tool, &seconds);
    signal(guard_of(live.pid()), Signal::STOP);
    assert_eq!(stop(&tool, live), Some(5));
    await_nobody(&seconds);
}

fn fail_one_iteration(kill: fn(u32)) {
    let seconds = seconds();
    let scratch = busy(&seconds);
    let tool = tool_of_nobody(&scratch);
    let live = start(&tool, &seconds);
    let agents = processes_with(&seconds);
    kill(live.pid());
    let status = await_status(&tool, "the second iteration", |status| {
        status["iteration"] == 2
    });
    assert_eq!(status["stats"]["failed"], 1);
    assert!(
        agents.iter().all(|pid| !is_alive(*pid)),
        "all processes of the first iteration have ended"
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

/// Returns an agent that, in its second attempt, looks for surviving grandchildren of its first attempt.
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

/// Kills a runner, its guard and its standby. They are stopped first, so that none can react to the death of another.
fn kill_all_three(live: &mut Live) {
    let helpers = [guard_of(live.pid()), standby_of(live.pid())];
    for step in [Signal::STOP, Signal::KILL] {
        for pid in helpers {
            signal(pid, step);
        }
        live.signal(step);
    }
    await_until("the runner is gone", SOON, || !live.is_running());
}

#[test]
fn a_process_in_the_cgroup_of_a_dead_loop_cannot_trust_a_configuration() {
    let seconds = seconds();
    let wait = "while [ ! -e go ]; do sleep 0.01; done";
    let scratch = with_agent(&format!(
        "setsid env -i HOME=\"$HOME\" PATH=\"$PATH\" timeout 60 sh -c '{wait}; {BIN} trust >said 2>&1; touch tried' </dev/null >/dev/null 2>&1 &\n\
         {UP} exec sleep {seconds}"
    ));
    scratch.write(
        "tachikoma.toml",
        "[[hook]]\non = 'loop_end'\ncommand = 'true'\n",
    );
    let tool = tool(&scratch);
    let mut live = tool.spawn(RUN);
    await_up(&scratch, 1);
    await_until("the child of the agent", SOON, || {
        processes_with(wait).len() > 1
    });
    let in_cgroup = status(&tool)["runner"]["containment"] == "cgroup";
    kill_all_three(&mut live);
    scratch.write("go", "");
    let tried = scratch.path().join("tried");
    await_until("the child of the agent has tried", SOON, || tried.exists());
    let said = scratch.read("said");
    let refused = said.contains("only the operator decides what is trusted");
    // Without a cgroup, a process with a cleared environment cannot be distinguished from one of the operator.
    assert_eq!(refused, in_cgroup, "{said}");
}

fn leftovers_end_before_a_new_agent(scratch: &Scratch, tool: &Tool<'_>, seconds: &str) {
    let mut live = tool.spawn(RUN);
    await_until("agent and grandchildren", SOON, || {
        processes_with(seconds).len() == 3
    });
    kill_all_three(&mut live);
    // A process that is just executing a program has no command line for a moment.
    await_until("grandchildren survive the kill of all three", SOON, || {
        processes_with(seconds).len() >= 2
    });
    let left = processes_with(seconds);

    let live = tool.spawn(RUN);
    let looked = scratch.path().join("looked");
    await_until("the second attempt", SOON, || looked.exists());
    assert!(
        !scratch.path().join("survivors").exists(),
        "a new agent starts only after the processes of the old one have ended"
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

// Known fault of other loops: processes of an earlier run were still running when the next agent started.
#[test]
fn processes_that_survive_runner_guard_and_standby_are_killed_before_the_next_agent_starts() {
    let seconds = seconds();
    let scratch = suspicious(&seconds);
    leftovers_end_before_a_new_agent(&scratch, &tool(&scratch), &seconds);
}

#[test]
fn processes_that_survive_runner_guard_and_standby_are_found_by_their_marker() {
    let seconds = seconds();
    let scratch = suspicious(&seconds);
    leftovers_end_before_a_new_agent(&scratch, &tool_of_nobody(&scratch), &seconds);
}

// Known fault of other loops: after a kill, the next runner was refused because of the old lock.
#[test]
fn a_runner_that_waits_for_the_lock_starts_when_the_first_one_is_killed() {
    let seconds = seconds();
    let scratch = busy(&seconds);
    let tool = tool(&scratch);
    let mut first = start(&tool, &seconds);
    let second = tool.spawn(RUN);
    await_until("the second one waits", SOON, || has_runtime(second.pid()));
    first.signal(Signal::KILL);
    // The second runner waits five seconds for the lock.
    await_status(&tool, "the second attempt", |status| {
        status["attempt"] == 2 && status["runner"]["pid"] == second.pid()
    });
    assert_eq!(stop(&tool, second), Some(5));
    await_nobody(&seconds);
}

/// Returns whether a process has started its async runtime, which it does right before it takes the lock.
fn has_runtime(pid: u32) -> bool {
    let Ok(fds) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return false;
    };
    let mut targets = fds.flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
    targets.any(|target| target.to_string_lossy().contains("eventpoll"))
}
