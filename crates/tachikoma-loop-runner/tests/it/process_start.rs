//! How an agent starts: its streams, its environment, and start errors that name the cause.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStringExt as _;

use tachikoma_loop_runner::process::{
    Containment, Exit, Guard, GuardError, GuardOptions, MARKER, SpawnSubject, input,
};

use crate::support::{CONTAINMENTS, Rig, is_alive, run};

/// Flag in `/proc/<pid>/fdinfo` of descriptors that are closed on exec.
const CLOEXEC: i64 = 0o2_000_000;
const ENOENT: i32 = 2;
const E2BIG: i32 = 7;
const EACCES: i32 = 13;
const EBUSY: i32 = 16;

#[test]
fn start_errors_name_the_cause_and_the_guard_continues() {
    for containment in CONTAINMENTS {
        run(async {
            let mut rig = Rig::new(containment);
            let missing = rig.order("no-such-program-here", &[]);
            check(&mut rig, missing, SpawnSubject::Program, ENOENT).await;
            let plain = rig.place.path().join("plain");
            std::fs::write(&plain, "text").unwrap();
            let not_executable = rig.order(plain.to_str().unwrap(), &[]);
            check(&mut rig, not_executable, SpawnSubject::Program, EACCES).await;
            let mut gone = rig.order("true", &[]);
            gone.0.cwd = rig.place.path().join("gone").into();
            check(&mut rig, gone, SpawnSubject::WorkingDirectory, ENOENT).await;
            let long = "x".repeat(200_000);
            let too_long = rig.order("true", &[&long]);
            check(&mut rig, too_long, SpawnSubject::Program, E2BIG).await;
            rig.sh("exit 4");
            rig.over().await;
            assert_eq!(rig.seen.exit, Some(Exit::Code(4)));
            rig.guard.finish().await;
        });
    }
}

async fn check(
    rig: &mut Rig,
    order: (
        tachikoma_loop_runner::process::Spawn,
        tachikoma_loop_runner::session::pump::Pump,
    ),
    subject: SpawnSubject,
    errno: i32,
) {
    rig.spawn(order);
    rig.over().await;
    assert_eq!(rig.seen.refusal, Some((subject, errno)));
}

#[test]
fn two_agents_never_run_at_once() {
    run(async {
        let mut rig = Rig::new(CONTAINMENTS[1]);
        rig.sh("echo ready; while [ ! -e go ]; do sleep 0.01; done");
        rig.until("it runs", |seen| seen.has_line("ready")).await;
        let first = rig.generation;
        let (second, _pump) = rig.order("true", &[]);
        rig.guard.spawn(second).unwrap();
        rig.until("the second is refused", |seen| seen.refusal.is_some())
            .await;
        assert_eq!(rig.seen.refusal, Some((SpawnSubject::Guard, EBUSY)));
        rig.seen.refusal = None;
        rig.go();
        assert_eq!(rig.generation, first);
        rig.over().await;
        assert_eq!(rig.seen.exit, Some(Exit::Code(0)));
        rig.guard.finish().await;
    });
}

#[test]
fn guard_that_cannot_be_started_is_an_error() {
    for cgroup in [true, false] {
        run(async {
            let started = Guard::start(&GuardOptions {
                cgroup,
                ..GuardOptions::new(&["/no/such/guard".into()], "missing".to_owned())
            });
            match started {
                Err(GuardError::Start { source, .. }) => {
                    assert_eq!(source.raw_os_error(), Some(ENOENT));
                }
                other => panic!("{other:?}"),
            }
        });
    }
}

#[test]
fn stdin_is_the_prompt_and_then_end_of_file() {
    run(async {
        let mut rig = Rig::new(CONTAINMENTS[0]);
        rig.spawn(rig.order("cat", &[]));
        rig.over().await;
        assert_eq!(rig.seen.lines, [], "an empty prompt ends at once");
        let prompt = "line one\n".repeat(50_000);
        let mut order = rig.order("wc", &["-c"]);
        order.0.streams.as_mut().unwrap()[0] = input(prompt.as_bytes()).unwrap();
        rig.spawn(order);
        rig.over().await;
        assert_eq!(rig.seen.lines[0].0.trim(), prompt.len().to_string());
        let mut order = rig.order("sh", &["-c", "exit 6"]);
        order.0.streams.as_mut().unwrap()[0] = input(prompt.as_bytes()).unwrap();
        rig.spawn(order);
        rig.over().await;
        assert_eq!(
            rig.seen.exit,
            Some(Exit::Code(6)),
            "the runner does not wait for an agent that does not read"
        );
        rig.guard.finish().await;
    });
}

#[test]
fn agent_inherits_the_environment_with_changes_and_marker() {
    run(async {
        let mut rig = Rig::new(CONTAINMENTS[1]);
        let script = format!("echo \"$CHANGED|${{HOME-none}}|${MARKER}|$0|$1\"; echo $PATH; pwd");
        let mut order = rig.order("sh", &["-c", &script, "name"]);
        order.0.env = vec![("CHANGED".into(), "new\nline \"quoted\"".into())];
        order.0.env_remove = vec!["HOME".into()];
        let bytes = std::ffi::OsString::from_vec(b"not \xFF utf-8".to_vec());
        order.0.args.push(bytes);
        rig.spawn(order);
        rig.over().await;
        let lines: Vec<_> = rig
            .seen
            .lines
            .iter()
            .map(|(line, _)| line.as_str())
            .collect();
        let own_path = std::env::var("PATH").unwrap();
        let place = rig.place.path().canonicalize().unwrap();
        let second = format!(
            "line \"quoted\"|none|{}|name|not \u{FFFD} utf-8",
            rig.marker
        );
        assert_eq!(lines, ["new", &second, &own_path, place.to_str().unwrap()]);
        rig.guard.finish().await;
    });
}

#[test]
fn agent_leads_its_own_session_and_inherits_no_descriptor() {
    run(async {
        let mut rig = Rig::new(CONTAINMENTS[1]);
        rig.spawn(rig.order(
            "sh",
            &[
                "-c",
                "cut -d' ' -f 1,5,6 /proc/$$/stat; exec ls /proc/self/fd",
            ],
        ));
        rig.over().await;
        let lines: Vec<_> = rig
            .seen
            .lines
            .iter()
            .map(|(line, _)| line.as_str())
            .collect();
        let pid = rig.seen.pid.unwrap();
        assert_eq!(
            lines[0],
            format!("{pid} {pid} {pid}"),
            "the agent leads its process group and its session"
        );
        let mut expected = inherited();
        // Stdin, stdout, stderr, and the descriptor that `ls` uses to list the directory.
        expected.extend((0..=3).map(|fd| fd.to_string()));
        let found: BTreeSet<_> = lines[1..].iter().map(|&fd| fd.to_owned()).collect();
        assert_eq!(found, expected);
        rig.guard.finish().await;
    });
}

/// Returns the descriptors without close-on-exec. Every child process of the tests inherits them.
fn inherited() -> BTreeSet<String> {
    let names = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let names = names.map(|entry| entry.file_name().into_string().unwrap());
    names
        .filter(|fd| {
            let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}"));
            let info = info.unwrap_or_default();
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:\t"));
            flags.is_some_and(|flags| i64::from_str_radix(flags, 8).unwrap() & CLOEXEC == 0)
        })
        .collect()
}

#[test]
fn guard_reports_its_containment_and_the_reason() {
    run(async {
        let rig = Rig::new(Containment::Guard);
        assert_eq!(rig.guard.containment().to_string(), "guard");
        assert_eq!(rig.guard.without_cgroup(), Some("switched off"));
        rig.guard.finish().await;
        let rig = Rig::new(Containment::Cgroup);
        match rig.guard.containment() {
            Containment::Cgroup => assert_eq!(rig.guard.without_cgroup(), None),
            Containment::Guard | Containment::Group => {
                assert!(
                    rig.guard
                        .without_cgroup()
                        .is_some_and(|reason| !reason.is_empty())
                );
            }
        }
        assert!(is_alive(rig.guard.pid()), "the guard runs without an agent");
        rig.guard.finish().await;
    });
}
