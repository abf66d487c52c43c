//! Whether the supervisor restarts an OpenCode server depends on how the server ended.

use std::time::Duration;

use tachikoma_core::supervise::ServerEvent;
use tachikoma_loop_runner::opencode::server_file::{Condition, ServerFile};
use tachikoma_loop_runner::opencode::supervisor::SupervisorError;
use tachikoma_testkit::fake_opencode::Misbehavior;
use tachikoma_testkit::{await_until, processes_with, unique};

use crate::opencode_support::{Bed, is_listening, ready, record, until};
use crate::support::{PATIENCE, is_alive, kill, run};

fn well() -> Misbehavior {
    Misbehavior::default()
}

#[test]
fn killed_server_is_restarted_after_the_delay() {
    let bed = Bed::new(Vec::new()).with(|opencode| opencode.restart_delay_ms = 300);
    run(async {
        let handle = bed.start().await;
        let first = ready(&handle, 1).await;
        assert!(is_listening(first.url.as_deref().unwrap()));
        let pid = first.pid.unwrap();
        kill("-9", pid);
        let second = ready(&handle, 2).await;
        assert_ne!(second.pid, first.pid);
        assert!(!is_alive(pid), "the killed server was reaped");
        let log = bed.stop(&handle).await;
        let times = |wanted: fn(&ServerEvent) -> bool| {
            let records = bed.records().into_iter();
            let times = records.filter(|record| wanted(&record.event));
            times.map(|record| record.time).collect::<Vec<_>>()
        };
        let stopped = times(|event| matches!(event, ServerEvent::Stopped { .. }));
        let started = times(|event| matches!(event, ServerEvent::Started { .. }));
        let waited = started[1].since(stopped[0]);
        assert!(waited >= Duration::from_millis(300), "{waited:?}");
        assert!(
            log.contains("OpenCode has ended: it crashed (signal 9)"),
            "{log}"
        );
        assert_eq!(bed.starts().len(), 2);
    });
}

#[test]
fn server_that_exits_is_restarted_and_logged() {
    let exits = Misbehavior {
        exit_after_health: Some((1, 0)),
        ..well()
    };
    let bed = Bed::new(vec![exits]);
    run(async {
        let handle = bed.start().await;
        ready(&handle, 2).await;
        let log = bed.stop(&handle).await;
        assert!(
            log.contains("[tachikoma] Restarting OpenCode after unexpected exit\n"),
            "{log}"
        );
    });
}

#[test]
fn server_stopped_by_a_signal_stays_down_and_is_logged() {
    for signal in ["-TERM", "-INT"] {
        let bed = Bed::new(Vec::new());
        run(async {
            let handle = bed.start().await;
            let first = ready(&handle, 1).await;
            kill(signal, first.pid.unwrap());
            let down = until(&handle, "it is down", |file| {
                file.state == Condition::Stopped
            })
            .await;
            assert_eq!(down.why.as_deref(), Some("the user stopped it"));
            handle.restart().await.unwrap();
            ready(&handle, 2).await;
            let log = bed.stop(&handle).await;
            assert!(
                log.contains("[tachikoma] OpenCode stopped by user, not restarting\n"),
                "{log}"
            );
            assert_eq!(
                bed.starts().len(),
                2,
                "the server was started again only by the restart command"
            );
        });
    }
}

#[test]
fn requested_stop_is_never_a_crash() {
    for code in [0, 1, 143] {
        let bed = Bed::always(Misbehavior {
            exit_on_sigterm: Some(code),
            ..well()
        });
        run(async {
            let handle = bed.start().await;
            ready(&handle, 1).await;
            handle.restart().await.unwrap();
            ready(&handle, 2).await;
            let log = bed.stop(&handle).await;
            assert!(!log.contains("crashed"), "{log}");
            assert_eq!(bed.starts().len(), 2);
        });
    }
}

#[test]
fn crashed_server_is_not_restarted_if_auto_restart_is_off() {
    let bed = Bed::new(Vec::new()).with(|opencode| opencode.auto_restart = false);
    run(async {
        let handle = bed.start().await;
        let first = ready(&handle, 1).await;
        kill("-9", first.pid.unwrap());
        until(&handle, "it is down", |file| {
            file.state == Condition::Stopped
        })
        .await;
        let log = bed.stop(&handle).await;
        assert!(
            log.contains("OpenCode has ended: it crashed (signal 9)"),
            "{log}"
        );
        assert!(
            log.contains("OpenCode is not restarted: `opencode.auto_restart` is false"),
            "{log}"
        );
        assert_eq!(bed.starts().len(), 1);
    });
}

#[test]
fn three_quick_kills_are_a_crash_loop_with_longer_delays() {
    let bed = Bed::new(Vec::new());
    run(async {
        let handle = bed.start().await;
        for generation in 1..=4 {
            let up = ready(&handle, generation).await;
            kill("-9", up.pid.unwrap());
        }
        ready(&handle, 5).await;
        let log = bed.stop(&handle).await;
        let warning = "[tachikoma] OpenCode crash loop detected, backing off\n";
        assert_eq!(log.matches(warning).count(), 2, "{log}");
        let delays = bed.delays();
        assert_eq!(delays[0], 20);
        assert!(delays.is_sorted_by(|one, next| one < next), "{delays:?}");
    });
}

#[test]
fn custom_server_command_gets_port_and_hostname_and_working_directory() {
    let bed = Bed::new(Vec::new());
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let bed = bed.with(|opencode| {
        let fake = opencode.serve_command.take().unwrap();
        opencode.serve_command = Some(format!("env 'A=b c' \"{fake}\" serve --print-logs"));
        opencode.serve_port = port;
    });
    run(async {
        let handle = bed.start().await;
        let up = ready(&handle, 1).await;
        assert_eq!(up.url, Some(format!("http://127.0.0.1:{port}")));
        let start = &bed.starts()[0];
        let words = ["serve", "--print-logs", "--port"].map(str::to_owned);
        let rest = [port.to_string(), "--hostname".into(), "127.0.0.1".into()];
        assert_eq!(
            start["args"],
            serde_json::json!([&words[..], &rest].concat())
        );
        assert_eq!(start["cwd"], bed.scratch.path().to_str().unwrap());
        let pid = up.pid.unwrap();
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split(' ').collect();
        assert_eq!(
            fields[4],
            pid.to_string(),
            "the server leads its own process session"
        );
        let stdin = std::fs::read_link(format!("/proc/{pid}/fd/0")).unwrap();
        assert_eq!(stdin.to_str(), Some("/dev/null"));
        bed.stop(&handle).await;
    });
}

#[test]
fn restart_command_restarts_a_supervisor_that_gave_up() {
    let crash = || Misbehavior {
        exit: Some(7),
        ..well()
    };
    let bed = Bed::new(vec![crash(), crash(), crash()]).with(|opencode| {
        opencode.max_restart_attempts = 2;
        opencode.restart_delay_ms = 0;
    });
    run(async {
        let handle = bed.start().await;
        let gave_up = until(&handle, "it gives up", |file| {
            file.state == Condition::GaveUp
        })
        .await;
        assert_eq!(gave_up.why.as_deref(), Some("it crashed (exit 7)"));
        assert_eq!(ServerFile::read(&bed.settings.dir).unwrap(), Some(gave_up));
        assert_eq!(bed.starts().len(), 3);
        assert_eq!(handle.restart().await.unwrap(), "it is being started");
        ready(&handle, 4).await;
        let log = bed.stop(&handle).await;
        assert!(
            log.contains("gave up on OpenCode after 2 restarts: it crashed (exit 7)"),
            "{log}"
        );
    });
}

/// When a server crashes or is stopped, processes that its tools started are killed.
#[test]
fn tools_of_a_server_are_killed_when_the_server_ends() {
    for cgroup in [true, false] {
        let marker = unique();
        let leaves = Misbehavior {
            grandchild: Some(marker.clone()),
            ..well()
        };
        let mut bed = Bed::new(vec![leaves.clone(), well(), leaves]);
        bed.settings.cgroup = cgroup;
        run(async {
            let handle = bed.start().await;
            let first = ready(&handle, 1).await;
            await_until("its tool runs", PATIENCE, || {
                !processes_with(&marker).is_empty()
            });
            kill("-9", first.pid.unwrap());
            let second = ready(&handle, 2).await;
            assert_eq!(
                processes_with(&marker),
                [0; 0],
                "the old tool ended before the next server started"
            );
            kill("-9", second.pid.unwrap());
            ready(&handle, 3).await;
            await_until("its tool runs", PATIENCE, || {
                !processes_with(&marker).is_empty()
            });
            let log = bed.stop(&handle).await;
            assert_eq!(processes_with(&marker), [0; 0]);
            assert!(log.contains("that it left running"), "{log}");
        });
    }
}

/// Before a requested stop, the supervisor asks the server to dispose of its sessions.
#[test]
fn requested_stop_disposes_sessions_first() {
    let marker = unique();
    let bed = Bed::always(Misbehavior {
        grandchild: Some(marker.clone()),
        disposes: true,
        ..well()
    });
    run(async {
        let handle = bed.start().await;
        ready(&handle, 1).await;
        let log = bed.stop(&handle).await;
        assert!(
            !log.contains("left running"),
            "the server ended its tool itself: {log}"
        );
        assert_eq!(processes_with(&marker), [0; 0]);
    });
}

#[test]
fn hanging_server_is_replaced() {
    let bed = Bed::new(vec![Misbehavior {
        hang_after: Some(1),
        ..well()
    }])
    .with(|opencode| {
        opencode.health_interval = "50ms".parse().unwrap();
        opencode.health_failures = 2;
    });
    run(async {
        let handle = bed.start().await;
        let first = ready(&handle, 1).await;
        ready(&handle, 2).await;
        assert!(!is_alive(first.pid.unwrap()));
        let log = bed.stop(&handle).await;
        assert!(
            log.contains(
                "it hung: 2 health checks in a row failed (GET /global/health: http://127.0.0.1:"
            ),
            "{log}"
        );
    });
}

/// A server stopped by SIGSTOP does not react to SIGTERM and is killed.
#[test]
fn stopped_server_process_is_replaced() {
    let bed = Bed::new(Vec::new()).with(|opencode| {
        opencode.health_interval = "50ms".parse().unwrap();
        opencode.health_failures = 1;
    });
    run(async {
        let handle = bed.start().await;
        let first = ready(&handle, 1).await;
        kill("-STOP", first.pid.unwrap());
        ready(&handle, 2).await;
        bed.stop(&handle).await;
    });
}

#[test]
fn too_large_server_is_replaced_when_no_session_is_busy() {
    let bed = Bed::new(vec![Misbehavior {
        leak_bytes: 96 << 20,
        busy_while: Some("busy".into()),
        ..well()
    }])
    .with(|opencode| {
        opencode.health_interval = "30ms".parse().unwrap();
        opencode.max_rss_bytes = 64 << 20;
    });
    std::fs::create_dir_all(bed.state()).unwrap();
    std::fs::write(bed.state().join("busy"), "").unwrap();
    run(async {
        let handle = bed.start().await;
        let mut records = handle.records();
        ready(&handle, 1).await;
        record(&mut records, |event| {
            matches!(event, ServerEvent::TooLarge { .. })
        })
        .await;
        // Long enough for several health checks.
        let early = tokio::time::timeout(Duration::from_millis(300), ready(&handle, 2)).await;
        assert!(
            early.is_err(),
            "the server is not replaced while a session is busy"
        );
        std::fs::remove_file(bed.state().join("busy")).unwrap();
        ready(&handle, 2).await;
        let log = bed.stop(&handle).await;
        assert!(!log.contains("crash"), "{log}");
    });
}

/// Memory of child processes counts as memory of the server.
#[test]
fn server_with_a_too_large_child_is_replaced() {
    let bed = Bed::new(Vec::new()).with(|opencode| {
        opencode.health_interval = "30ms".parse().unwrap();
        opencode.max_rss_bytes = 64 << 20;
    });
    let fake = bed.settings.opencode.serve_command.clone().unwrap();
    // `tail` keeps the endless line in memory. Only the first server starts this tool.
    let tool = "(head -c 96M /dev/zero; exec sleep 1000) | tail -n 1 >/dev/null &";
    let script =
        format!("#!/bin/sh\nif mkdir once 2>/dev/null; then {tool} fi\nexec {fake} \"$@\"\n");
    let script = bed.scratch.write_script("wrapper.sh", script);
    let bed = bed.with(|opencode| opencode.serve_command = Some(script.display().to_string()));
    run(async {
        let handle = bed.start().await;
        let mut records = handle.records();
        record(&mut records, |event| {
            matches!(event, ServerEvent::TooLarge { .. })
        })
        .await;
        ready(&handle, 2).await;
        bed.stop(&handle).await;
    });
}

/// Agents may delete the files of the supervisor with `rm -rf` or `git clean`.
#[test]
fn deleted_supervisor_files_are_created_again() {
    let bed = Bed::new(Vec::new()).with(|opencode| {
        opencode.health_interval = "30ms".parse().unwrap();
    });
    let dir = &bed.settings.dir;
    run(async {
        let handle = bed.start().await;
        let first = ready(&handle, 1).await;
        std::fs::remove_dir_all(bed.scratch.path().join(".ralph")).unwrap();
        let healed = async {
            while ServerFile::read(dir).unwrap() != Some(first.clone()) {
                tokio::task::yield_now().await;
            }
        };
        let healed = tokio::time::timeout(PATIENCE, healed).await;
        healed.expect("the server file is written again");
        assert!(matches!(
            bed.try_start().await.unwrap_err(),
            SupervisorError::Held { .. }
        ));
        kill("-9", first.pid.unwrap());
        ready(&handle, 2).await;
        let log = bed.stop(&handle).await;
        assert!(
            log.contains("files in the supervisor's directory were missing and have been restored"),
            "{log}"
        );
        assert!(log.contains("it crashed (signal 9)"), "{log}");
        let records = bed.records();
        assert!(
            matches!(
                records.first().unwrap().event,
                ServerEvent::JournalOpened { .. }
            ),
            "{records:?}"
        );
    });
}

/// The server ends with its killed guard. This is not recorded as a crash of the server.
#[test]
fn server_and_guard_restart_after_the_guard_is_killed() {
    let bed = Bed::new(Vec::new());
    run(async {
        let handle = bed.start().await;
        let first = ready(&handle, 1).await;
        let pid = first.pid.unwrap();
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let guard = stat.rsplit_once(')').unwrap().1.split(' ').nth(2).unwrap();
        kill("-9", guard.parse().unwrap());
        ready(&handle, 2).await;
        assert!(!is_alive(pid));
        let log = bed.stop(&handle).await;
        assert!(
            log.contains("its guard was killed, which ended the server"),
            "{log}"
        );
    });
}
