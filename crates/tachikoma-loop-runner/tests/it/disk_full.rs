//! A full disk: the loop waits for a limited time, and its files stay valid.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tachikoma_core::{LoopEvent, Urgency};
use tachikoma_loop_runner::{LoopCommand, Notice, RunError, chain};

use crate::loop_support::{Place, open};
use crate::support::{PATIENCE, run};

/// Environment variable with the mount point of the small disk. Only set in the child process that can see the disk.
const SWITCH: &str = "TACHIKOMA_TEST_SMALL_DISK";

/// Runs the body of a test in a child process with a mounted disk of 256 KiB. Skips the test if such a disk cannot be mounted.
fn on_a_small_disk(test: &str, body: impl FnOnce(Place)) {
    if let Some(disk) = std::env::var_os(SWITCH) {
        return body(Place::below(Path::new(&disk)));
    }
    let place = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs -o size=256k,mode=700 tmpfs \"$2\" || exit 77; exec \"$0\" --exact \"$1\" --nocapture";
    let namespace = match rustix::process::geteuid().is_root() {
        true => "-m",
        false => "-rm",
    };
    let ran = Command::new("unshare")
        .args([namespace, "sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .arg(test)
        .arg(place.path())
        .env(SWITCH, place.path())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&ran.stderr);
    if errors.contains("unshare failed") || ran.status.code() == Some(77) {
        // Writes to stderr directly, because the test harness hides the captured output of passing tests.
        let _ = writeln!(std::io::stderr(), "SKIPPED: no small disk here: {errors}");
        return;
    }
    let output = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{output}\n{errors}");
    assert!(output.contains("1 passed"), "{output}");
}

#[test]
fn disk_that_stays_full_ends_the_loop_after_a_timeout() {
    on_a_small_disk(
        "disk_full::disk_that_stays_full_ends_the_loop_after_a_timeout",
        |place| {
            let bound = Duration::from_secs(2);
            let mut config = place.config("head -c 300000 /dev/zero >ballast 2>&-; exit 0");
            config.disk_full_timeout = bound;
            run(async {
                let mut runner = open(config.clone()).await;
                let error = runner.run().await.unwrap_err();
                let RunError::NoRoom { waited, .. } = &error else {
                    panic!("{error:?}")
                };
                assert!(*waited >= bound && *waited < bound + PATIENCE, "{waited:?}");
                let text = chain(&error);
                let within = format!("the disk stayed full for {} s,", waited.as_secs());
                assert!(
                    text.starts_with(&within)
                        && text.ends_with("No space left on device (os error 28)"),
                    "{text}"
                );
                let again = runner.run().await.unwrap_err();
                assert!(matches!(again, RunError::Unwritten), "{again}");
                runner.close().await;

                let written = place.history();
                std::fs::remove_file(place.working_dir().join("ballast")).unwrap();
                config.settings.agents.command.program = vec!["true".to_owned()];
                config.settings.max_iterations = written.len().try_into().unwrap();
                let mut runner = open(config).await;
                assert_eq!(runner.state().seq, written.last().unwrap().seq);
                runner.run().await.unwrap();
                runner.close().await;
            });
        },
    );
}

#[test]
fn commands_are_refused_on_a_full_disk_and_the_wait_is_recorded() {
    on_a_small_disk(
        "disk_full::commands_are_refused_on_a_full_disk_and_the_wait_is_recorded",
        |place| {
            let fill =
                "[ -e filled ] || { : >filled; head -c 300000 /dev/zero >ballast 2>&-; }; exit 0";
            run(async {
                let mut runner = open(place.config(fill)).await;
                let handle = runner.handle();
                let mut notices = handle.subscribe();
                let operator = async {
                    let mut seen = Vec::new();
                    let until = loop {
                        match notices.recv().await.unwrap() {
                            Notice::DiskFull { until } => break until,
                            Notice::Recorded(record) => seen.push(record),
                            Notice::Output { .. } | Notice::OutputSkipped { .. } => {}
                        }
                    };
                    assert_eq!(
                        place.history().last(),
                        seen.last().map(|record| &**record),
                        "records are published only after they are written"
                    );
                    let waiting = handle.status().waiting.unwrap();
                    assert_eq!(waiting.reason, "disk_full");
                    assert_eq!(waiting.until, Some(until));
                    let answer = handle
                        .command(LoopCommand::Pause(Urgency::Graceful))
                        .await
                        .unwrap();
                    assert!(
                        matches!(answer, tachikoma_core::Answer::Refused { .. }),
                        "{answer:?}"
                    );
                    std::fs::remove_file(place.working_dir().join("ballast")).unwrap();
                    loop {
                        if let Notice::Recorded(record) = notices.recv().await.unwrap()
                            && let LoopEvent::DiskWasFull { duration_ms } = record.event
                        {
                            assert!((900..60_000).contains(&duration_ms), "{duration_ms}");
                            break;
                        }
                    }
                    assert_eq!(handle.status().waiting, None);
                    handle
                        .command(LoopCommand::Stop(Urgency::Now))
                        .await
                        .unwrap();
                };
                let (outcome, ()) = tokio::join!(runner.run(), operator);
                outcome.unwrap();
                runner.close().await;
            });
            let seqs: Vec<u64> = place.history().iter().map(|record| record.seq.0).collect();
            let whole: Vec<u64> = (1..=seqs.len() as u64).collect();
            assert_eq!(
                seqs, whole,
                "the journal has no gap after the wait for disk space"
            );
        },
    );
}

#[test]
fn run_dropped_while_the_disk_is_full_writes_nothing_later() {
    on_a_small_disk(
        "disk_full::run_dropped_while_the_disk_is_full_writes_nothing_later",
        |place| {
            run(async {
                let script = "head -c 300000 /dev/zero >ballast 2>&-; exit 0";
                let mut config = place.config(script);
                config.disk_full_timeout = Duration::from_secs(5);
                let mut runner = open(config).await;
                let mut notices = runner.handle().subscribe();
                let waits = async {
                    while !matches!(notices.recv().await.unwrap(), Notice::DiskFull { .. }) {}
                };
                tokio::select! {
                    result = runner.run() => panic!("the run ended early: {result:?}"),
                    () = waits => {}
                }
                std::fs::remove_file(place.working_dir().join("ballast")).unwrap();
                let error = runner.run().await.unwrap_err();
                assert!(matches!(error, RunError::Unwritten), "{error}");
                runner.close().await;
                let written = place.history();
                let mut config = place.config("true");
                config.settings.max_iterations = 1;
                let runner = open(config).await;
                assert_eq!(runner.state().seq, written.last().unwrap().seq);
                runner.close().await;
            });
        },
    );
}
