//! The signals that end an agent (SIGINT, SIGTERM, SIGKILL), and that each of them reaches the agent.

use tachikoma_loop_runner::process::{Exit, StopSignal};

use crate::support::{
    CONTAINMENTS, Embedded, NOBODY, Rig, example, guard_below, kill, run, runaways, running,
    unique, until,
};

const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

#[test]
fn each_stop_stage_sends_its_signal() {
    run(async {
        let mut rig = Rig::new(CONTAINMENTS[1]);
        for (rung, signal) in [
            (StopSignal::Interrupt, SIGINT),
            (StopSignal::Terminate, SIGTERM),
            (StopSignal::Kill, SIGKILL),
        ] {
            let sleep = unique();
            rig.sh(&format!("echo ready; exec {sleep}"));
            rig.until("it runs", |seen| seen.has_line("ready")).await;
            rig.guard.signal(rig.generation, rung);
            rig.over().await;
            assert_eq!(rig.seen.exit, Some(Exit::Signal(signal)), "{rung:?}");
        }
        rig.guard.finish().await;
    });
}

#[test]
fn agent_that_ignores_sigint_and_sigterm_is_killed_with_its_children() {
    for containment in CONTAINMENTS {
        run(async {
            let sleep = unique();
            let mut rig = Rig::new(containment);
            rig.sh(&format!(
                "trap 'echo heard' INT TERM; {} (trap '' INT TERM; while :; do {sleep}; done) & while :; do wait; done",
                runaways(&sleep)
            ));
            rig.until("it runs", |seen| seen.has_line("ready")).await;
            let heard = |count| {
                move |seen: &crate::support::Seen| {
                    seen.lines
                        .iter()
                        .filter(|(line, _)| line == "heard")
                        .count()
                        == count
                }
            };
            rig.guard.signal(rig.generation, StopSignal::Interrupt);
            rig.until("it hears the interrupt", heard(1)).await;
            rig.guard.signal(rig.generation, StopSignal::Terminate);
            rig.until("it hears the request", heard(2)).await;
            assert_eq!(
                rig.seen.exit, None,
                "the agent still runs after both signals"
            );
            rig.guard.signal(rig.generation, StopSignal::Kill);
            rig.over().await;
            assert_eq!(rig.seen.exit, Some(Exit::Signal(SIGKILL)));
            assert_eq!(running(&sleep), NOBODY, "every descendant is killed too");
            assert_eq!(
                rig.seen.leftovers,
                [],
                "killed descendants are not reported as leftovers"
            );
            rig.guard.finish().await;
        });
    }
}

#[test]
fn stopped_guard_and_standby_still_signal_the_agent() {
    for rung in [
        StopSignal::Interrupt,
        StopSignal::Terminate,
        StopSignal::Kill,
    ] {
        run(async {
            let sleep = unique();
            let mut rig = Rig::new(CONTAINMENTS[1]);
            rig.sh(&format!("echo ready; exec {sleep}"));
            rig.until("it runs", |seen| seen.has_line("ready")).await;
            let guard = guard_below(rig.guard.pid());
            kill("-STOP", rig.guard.pid());
            kill("-STOP", guard);
            rig.guard.signal(rig.generation, rung);
            rig.over().await;
            assert!(
                matches!(rig.seen.exit, Some(Exit::Signal(_))),
                "{rung:?}: {:?}",
                rig.seen
            );
            rig.guard.finish().await;
        });
    }
}

#[test]
fn signal_for_an_earlier_agent_does_not_reach_the_next() {
    run(async {
        let mut rig = Rig::new(CONTAINMENTS[1]);
        rig.sh("true");
        rig.over().await;
        let earlier = rig.generation;
        rig.sh("echo ready; read x; exit 5");
        rig.guard.signal(earlier, StopSignal::Kill);
        rig.over().await;
        assert_eq!(rig.seen.exit, Some(Exit::Code(5)));
        rig.guard.finish().await;
    });
}

#[test]
fn stopped_agent_can_be_terminated_and_killed() {
    run(async {
        let mut rig = Rig::new(CONTAINMENTS[1]);
        for (rung, signal) in [
            (StopSignal::Terminate, SIGTERM),
            (StopSignal::Kill, SIGKILL),
        ] {
            rig.sh("echo ready; kill -STOP $$; sleep 1000");
            rig.until("it runs", |seen| {
                seen.has_line("ready") && seen.pid.is_some()
            })
            .await;
            let pid = rig.seen.pid.unwrap();
            until("it is stopped", || state(pid) == Some('T'));
            rig.guard.signal(rig.generation, rung);
            rig.over().await;
            assert_eq!(rig.seen.exit, Some(Exit::Signal(signal)), "{rung:?}");
        }
        rig.guard.finish().await;
    });
}

#[test]
fn suspended_agent_continues_on_request() {
    run(async {
        let mut rig = Rig::new(CONTAINMENTS[1]);
        rig.sh("mkfifo gate; echo ready; read x < gate; exit 3");
        rig.until("it runs", |seen| {
            seen.has_line("ready") && seen.pid.is_some()
        })
        .await;
        let pid = rig.seen.pid.unwrap();
        rig.guard.suspend();
        until("it is stopped", || state(pid) == Some('T'));
        let gate = rig.place.path().join("gate");
        let mut gate = std::fs::File::options()
            .read(true)
            .write(true)
            .open(gate)
            .unwrap();
        std::io::Write::write_all(&mut gate, b"go\n").unwrap();
        assert_eq!(
            state(pid),
            Some('T'),
            "the agent stays suspended until the request to continue"
        );
        rig.guard.resume();
        rig.over().await;
        assert_eq!(rig.seen.exit, Some(Exit::Code(3)));
        rig.guard.finish().await;
    });
}

#[test]
fn agent_does_not_inherit_ignored_signals() {
    let sleep = unique();
    let place = tempfile::tempdir().unwrap();
    let mut command = std::process::Command::new("sh");
    command
        .args([
            "-c",
            "trap '' INT TERM HUP QUIT CHLD USR1; exec \"$0\" \"$@\"",
        ])
        .arg(example("guarded"))
        .arg(example("guard"))
        .args(["deaf", "guard", "all"])
        .arg(place.path())
        .args(["sh", "-c", &format!("echo ready; exec {sleep}")]);
    let mut runner = Embedded::of(command, place);
    runner.line_with("line ready");
    until("it runs", || running(&sleep).len() == 1);
    let agent = running(&sleep)[0];
    let status = std::fs::read_to_string(format!("/proc/{agent}/status")).unwrap();
    for field in ["SigIgn:\t", "SigBlk:\t"] {
        let mask = status.lines().find_map(|line| line.strip_prefix(field));
        assert_eq!(mask, Some("0000000000000000"), "{field}");
    }
    kill("-INT", agent);
    let exited = runner.line_with("Exited");
    assert!(exited.contains("Signal(2)"), "{exited}");
    assert!(runner.process.wait().unwrap().success());
    assert!(runner.place.path().exists());
}

fn state(pid: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}
