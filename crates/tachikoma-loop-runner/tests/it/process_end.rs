//! No process of an agent survives it, its guard or its runner.

use tachikoma_loop_runner::process::Exit;

use crate::support::{
    CONTAINMENTS, Embedded, NOBODY, Rig, UNTIL_GO, children, is_alive, kill, run, runaways,
    running, unique, until,
};

#[test]
fn what_an_agent_leaves_behind_is_ended_and_named() {
    for containment in CONTAINMENTS {
        run(async {
            let sleep = unique();
            let mut rig = Rig::new(containment);
            rig.sh(&format!("{} {UNTIL_GO}", runaways(&sleep)));
            until("three runaways run", || running(&sleep).len() == 3);
            // The shell between would be named too: it is gone when the guard has the agent and the orphan alone.
            until("the orphan is the guard's", || {
                let below = children(rig.guard.pid());
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
            assert_eq!(running(&sleep), NOBODY, "ended before its end is told");
            let named: Vec<_> = rig
                .seen
                .leftovers
                .iter()
                .map(|left| left.command.clone())
                .collect();
            assert_eq!(named, vec![sleep; 3], "all three are named");
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
        assert_eq!(running(&sleep), NOBODY, "ended whatever it ignores");
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

#[test]
fn nothing_survives_the_runner() {
    for containment in CONTAINMENTS {
        let sleep = unique();
        let script = format!("{} exec {sleep}", runaways(&sleep));
        let mut runner =
            Embedded::start(containment, &format!("end_{}", std::process::id()), &script);
        runner.line_with("line ready");
        until("the agent and three runaways run", || {
            running(&sleep).len() == 4
        });
        kill("-KILL", runner.pid());
        runner.process.wait().unwrap();
        until("all of them are gone", || running(&sleep).is_empty());
        until("so is the guard", || !is_alive(runner.guard));
        assert_eq!(
            cgroups_of(&format!("end_{}", std::process::id())),
            0,
            "and its control group"
        );
    }
}

#[test]
fn nothing_survives_the_guard() {
    for containment in CONTAINMENTS {
        let sleep = unique();
        let script = format!("{} exec {sleep}", runaways(&sleep));
        let marker = format!("guardless_{}", std::process::id());
        let mut runner = Embedded::start(containment, &marker, &script);
        runner.line_with("line ready");
        until("the agent and three runaways run", || {
            running(&sleep).len() == 4
        });
        kill("-KILL", runner.guard);
        assert_eq!(runner.line_with("Lost"), "Lost { survivors: [] }");
        assert_eq!(running(&sleep), NOBODY, "ended before the loss is told");
        assert!(runner.process.wait().unwrap().success());
        assert_eq!(cgroups_of(&marker), 0, "its control group too");
    }
}

#[test]
fn guard_is_not_ended_by_what_a_terminal_sends() {
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
fn finishing_copes_with_a_guard_that_was_killed() {
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

// complaint_44
#[test]
fn lock_is_held_until_the_guard_has_cleaned_up() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("lock");
    let lock = std::fs::File::create(&path).unwrap();
    lock.lock().unwrap();
    let other = std::fs::File::open(&path).unwrap();
    run(async {
        let options = tachikoma_loop_runner::process::GuardOptions {
            hidden: Vec::new(),
            commands: false,
            program: crate::support::example("guard"),
            args: Vec::new(),
            marker: "lock".to_owned(),
            lock: Some(lock.into()),
            cgroup: false,
            adoption: tachikoma_loop_runner::process::Adoption::Marked,
        };
        let guard = tachikoma_loop_runner::process::Guard::start(options).unwrap();
        assert!(other.try_lock().is_err(), "the guard holds it for us");
        guard.finish().await;
    });
    // Awaited: a child that another test forks has a copy of the lock until its exec.
    until("free again with the guard's end", || {
        other.try_lock().is_ok()
    });
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
