//! No process that an agent started survives the agent, its guard or its runner.

use tachikoma_loop_runner::process::{Containment, Exit};

use crate::support::{
    CONTAINMENTS, Embedded, NOBODY, Rig, UNTIL_GO, children, guard_below, is_alive, kill,
    kill_if_there, run, runaways, running, unique, until,
};

#[test]
fn leftover_processes_of_an_agent_are_ended_and_named() {
    for containment in CONTAINMENTS {
        run(async {
            let sleep = unique();
            let mut rig = Rig::new(containment);
            rig.sh(&format!("{} {UNTIL_GO}", runaways(&sleep)));
            until("three runaways run", || running(&sleep).len() == 3);
            // The shell that starts the orphan would be reported too. It has ended when the guard has two children: the agent and the orphan.
            until("the orphan is the guard's", || {
                let below = children(guard_below(rig.guard.pid()));
                let below: Vec<i32> = below
                    .split_whitespace()
                    .map(|pid| pid.parse().unwrap())
                    .collect();
                let sleeping = running(&sleep);
                below.len() == 2 && below.iter().any(|pid| sleeping.contains(pid))
            });
            rig.go();
            rig.over().await;
            assert_eq!(rig.seen.exit, Some(Exit::Code(0)));
            assert_eq!(
                running(&sleep),
                NOBODY,
                "leftovers end before the exit is reported"
            );
            let named: Vec<_> = rig
                .seen
                .leftovers
                .iter()
                .map(|left| left.command.clone())
                .collect();
            assert_eq!(named, vec![sleep; 3], "all three leftovers are reported");
            assert!(rig.seen.leftovers.iter().all(|left| left.name == "sleep"));
            assert!(rig.seen.leftovers.iter().all(|left| !left.unkillable));
            rig.guard.finish().await;
        });
    }
}

#[test]
fn leftover_that_ignores_the_request_is_killed() {
    run(async {
        let sleep = unique();
        let mut rig = Rig::new(CONTAINMENTS[1]);
        rig.sh(&format!(
            "setsid sh -c 'trap \"\" TERM HUP INT; {sleep}; {sleep}' & {UNTIL_GO}"
        ));
        until("it runs", || running(&sleep).len() == 1);
        rig.go();
        rig.over().await;
        assert_eq!(
            running(&sleep),
            NOBODY,
            "a leftover that ignores signals is killed"
        );
        assert!(!rig.seen.leftovers.is_empty());
        rig.guard.finish().await;
    });
}

#[test]
fn agent_that_leaves_nothing_has_no_leftovers() {
    run(async {
        let mut rig = Rig::new(CONTAINMENTS[0]);
        rig.sh("sleep 0 & wait; true | true");
        rig.over().await;
        assert_eq!(rig.seen.exit, Some(Exit::Code(0)));
        assert_eq!(rig.seen.leftovers, []);
        rig.guard.finish().await;
    });
}

/// Starts a runner with an agent and three processes that try to escape. Returns the runner and the command that all four processes run.
fn with_runaways(containment: Containment, marker: &str) -> (Embedded, String) {
    let sleep = unique();
    let script = format!("{} exec {sleep}", runaways(&sleep));
    let mut runner = Embedded::start(containment, marker, &script);
    runner.line_with("line ready");
    until("the agent and three runaways run", || {
        running(&sleep).len() == 4
    });
    (runner, sleep)
}

#[test]
fn all_processes_of_the_agent_end_when_the_runner_is_killed() {
    for containment in CONTAINMENTS {
        let marker = format!("end_{}", std::process::id());
        let (mut runner, sleep) = with_runaways(containment, &marker);
        let guard = guard_below(runner.guard);
        kill("-KILL", runner.pid());
        runner.process.wait().unwrap();
        until("all of them are gone", || running(&sleep).is_empty());
        until("so are guard and standby", || {
            !is_alive(guard) && !is_alive(runner.guard)
        });
        assert_eq!(cgroups_of(&marker), 0, "the cgroup is removed too");
    }
}

#[test]
fn all_processes_of_the_agent_end_when_the_guard_is_killed() {
    let cases = ["guard", "standby", "guard below a stopped standby"];
    for (containment, whom) in CONTAINMENTS
        .iter()
        .flat_map(|it| cases.map(|case| (it, case)))
    {
        let marker = format!("guardless_{}", std::process::id());
        let (mut runner, sleep) = with_runaways(*containment, &marker);
        let killed = match whom {
            "standby" => runner.guard,
            _ => guard_below(runner.guard),
        };
        if whom == "guard below a stopped standby" {
            kill("-STOP", runner.guard);
        }
        kill("-KILL", killed);
        assert_eq!(runner.line_with("Lost"), "Lost { survivors: [] }");
        assert_eq!(
            running(&sleep),
            NOBODY,
            "all processes end before the loss of the guard is reported"
        );
        assert!(runner.process.wait().unwrap().success());
        assert_eq!(cgroups_of(&marker), 0, "the cgroup is removed too");
    }
}

#[test]
fn guard_ignores_signals_of_a_terminal() {
    let sleep = unique();
    let mut runner = Embedded::start(CONTAINMENTS[1], "terminal", &format!("echo ready; {sleep}"));
    runner.line_with("line ready");
    for signal in ["-INT", "-TERM", "-HUP", "-QUIT", "-TSTP", "-PIPE"] {
        kill(signal, runner.guard);
    }
    assert!(is_alive(runner.guard));
    kill("-KILL", runner.pid());
    runner.process.wait().unwrap();
    until("the guard did its work all the same", || {
        running(&sleep).is_empty()
    });
}

#[test]
fn new_guard_takes_over_from_a_lost_one() {
    for containment in CONTAINMENTS {
        run(async {
            let sleep = unique();
            let mut rig = Rig::new(containment);
            rig.sh(&format!("setsid {sleep} & echo ready; wait"));
            rig.until("it runs", |seen| seen.has_line("ready")).await;
            kill("-KILL", rig.guard.pid());
            rig.over().await;
            assert!(rig.seen.lost);
            assert_eq!(running(&sleep), NOBODY);
            let mut next = Rig::new(containment);
            next.sh("exit 7");
            next.over().await;
            assert_eq!(next.seen.exit, Some(Exit::Code(7)));
            next.guard.finish().await;
        });
    }
}

#[test]
fn finishing_ends_a_running_agent_and_the_guard() {
    for containment in CONTAINMENTS {
        run(async {
            let sleep = unique();
            let mut rig = Rig::new(containment);
            rig.sh(&format!("{} wait", runaways(&sleep)));
            until("three runaways run", || running(&sleep).len() == 3);
            let guard = rig.guard.pid();
            rig.guard.finish().await;
            assert_eq!(running(&sleep), NOBODY);
            assert!(!is_alive(guard));
            assert_eq!(cgroups_of(&rig.marker), 0);
        });
    }
}

#[test]
fn finish_works_after_the_guard_was_killed() {
    run(async {
        let sleep = unique();
        let mut rig = Rig::new(CONTAINMENTS[1]);
        rig.sh(&format!("setsid {sleep} & echo ready; wait"));
        rig.until("it runs", |seen| seen.has_line("ready")).await;
        kill("-KILL", rig.guard.pid());
        rig.guard.finish().await;
        assert_eq!(running(&sleep), NOBODY);
    });
}

/// Returns a guard that holds a file lock together with its standby, and another handle of the locked file.
fn with_lock() -> (Rig, std::fs::File) {
    let mut lock = tempfile::NamedTempFile::new().unwrap();
    let other = lock.reopen().unwrap();
    lock.as_file_mut().lock().unwrap();
    let lock = lock.into_file().into();
    (Rig::with_lock(CONTAINMENTS[1], Some(lock)), other)
}

#[test]
fn lock_is_held_until_the_guard_has_cleaned_up() {
    run(async {
        let (rig, other) = with_lock();
        assert!(other.try_lock().is_err(), "the guard holds the lock");
        rig.guard.finish().await;
        // The lock may be released a little later: a child process that another test forks has a copy of its descriptor until `exec`.
        until("free again with the guard's end", || {
            other.try_lock().is_ok()
        });
    });
}

#[test]
fn lock_is_held_until_the_standby_has_cleaned_up_after_a_killed_guard() {
    run(async {
        let (mut rig, other) = with_lock();
        let sleep = unique();
        rig.sh(&format!("setsid {sleep} & echo ready; wait"));
        rig.until("it runs", |seen| seen.has_line("ready")).await;
        until("its child runs", || running(&sleep).len() == 1);
        let guard = guard_below(rig.guard.pid());
        kill("-STOP", rig.guard.pid());
        kill("-KILL", guard);
        until("the guard is dead", || !is_alive(guard));
        assert_eq!(running(&sleep).len(), 1, "a stopped standby ends nothing");
        assert!(other.try_lock().is_err(), "the standby holds the lock");
        rig.over().await;
        assert_eq!(running(&sleep), NOBODY);
        until("free again with the end of the standby", || {
            other.try_lock().is_ok()
        });
    });
}

/// Signals to the runner, the guard and the standby, in this order. SIGSTOP keeps a process from reacting to the death of another one
/// before it is killed itself.
const KILLS: [&[(&str, &str)]; 13] = [
    &[("-STOP", "guard"), ("-KILL", "runner")],
    &[("-STOP", "standby"), ("-KILL", "runner")],
    &[
        ("-STOP", "guard"),
        ("-STOP", "standby"),
        ("-KILL", "runner"),
    ],
    &[("-STOP", "guard"), ("-KILL", "runner"), ("-KILL", "guard")],
    &[("-STOP", "runner"), ("-KILL", "guard"), ("-KILL", "runner")],
    &[("-KILL", "guard"), ("-KILL", "runner")],
    &[
        ("-STOP", "runner"),
        ("-KILL", "standby"),
        ("-KILL", "runner"),
    ],
    &[("-KILL", "standby"), ("-KILL", "runner")],
    &[("-KILL", "runner"), ("-KILL", "standby")],
    &[
        ("-STOP", "guard"),
        ("-KILL", "standby"),
        ("-KILL", "runner"),
    ],
    &[
        ("-STOP", "guard"),
        ("-KILL", "runner"),
        ("-KILL", "standby"),
    ],
    &[
        ("-STOP", "standby"),
        ("-KILL", "guard"),
        ("-KILL", "runner"),
    ],
    &[
        ("-STOP", "runner"),
        ("-STOP", "standby"),
        ("-KILL", "guard"),
        ("-KILL", "runner"),
    ],
];

#[test]
fn guard_or_standby_ends_all_processes() {
    for (containment, kills) in CONTAINMENTS
        .iter()
        .flat_map(|it| KILLS.map(|kills| (it, kills)))
    {
        let marker = format!("killed_{}", std::process::id());
        let (mut runner, sleep) = with_runaways(*containment, &marker);
        let (standby, guard) = (runner.guard, guard_below(runner.guard));
        for (signal, who) in kills {
            let pid = match *who {
                "runner" => runner.pid(),
                "standby" => standby,
                _ => guard,
            };
            kill_if_there(signal, pid);
        }
        runner.process.wait().unwrap();
        until(&format!("all are gone after {kills:?}"), || {
            running(&sleep).is_empty() && !is_alive(guard) && !is_alive(standby)
        });
    }
}

fn cgroups_of(marker: &str) -> usize {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let Some(mount) = mounts.lines().find(|line| line.contains(" - cgroup2 ")) else {
        return 0;
    };
    let point = mount.split(' ').nth(4).unwrap();
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let own = own
        .lines()
        .find_map(|line| line.strip_prefix("0::/"))
        .unwrap_or_default()
        .to_owned();
    let entries = std::fs::read_dir(std::path::Path::new(point).join(own)).unwrap();
    let wanted = format!("tachikoma-{marker}.");
    let names = entries.flatten().map(|entry| entry.file_name());
    names
        .filter(|name| name.to_string_lossy().starts_with(&wanted))
        .count()
}
