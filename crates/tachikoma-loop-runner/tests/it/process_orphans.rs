//! Ending processes of an earlier runner that was killed together with its guard and standby, and finding descendants of a process.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use tachikoma_loop_runner::process::orphans::end_leftovers;
use tachikoma_loop_runner::process::{MARKER, is_descendant};

use crate::support::{CONTAINMENTS, Embedded, guard_below, kill, running, unique, until};

#[test]
fn leftovers_of_a_dead_runner_are_ended() {
    for containment in CONTAINMENTS {
        let sleep = unique();
        let marker = format!("orphan_{}", sleep.replace(['.', ' '], "_"));
        // The agent is started by a runner in its own process, so that this test process does not become an ancestor of the leftovers.
        let script = format!("setsid {sleep} & echo ready; exec {sleep}");
        let mut runner = Embedded::start(containment, &marker, &script);
        runner.line_with("line ready");
        until("both run", || running(&sleep).len() == 2);
        // Guard, standby and runner are suspended first, so that none reacts to the death of another. The agent dies with its guard.
        let all = [guard_below(runner.guard), runner.guard, runner.pid()];
        for signal in ["-STOP", "-KILL"] {
            for pid in all {
                kill(signal, pid);
            }
        }
        runner.process.wait().unwrap();
        until("only the child of the agent is left", || {
            running(&sleep).len() == 1
        });
        let ended = in_another_process(&marker);
        until("they are gone", || running(&sleep).is_empty());
        assert!(ended.contains(&sleep), "{ended}");
    }
}

/// Ends leftovers from a new process: this test process may be a subreaper because of other tests, and does not end its own descendants.
fn in_another_process(marker: &str) -> String {
    let output = Command::new(crate::support::example("leftovers"))
        .arg(marker)
        .output()
        .unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn own_ancestors_and_other_loops_are_not_killed() {
    let sleep = unique();
    let mut other = Command::new("sh")
        .args(["-c", &format!("exec {sleep}")])
        .env(MARKER, "another_loop")
        .spawn()
        .unwrap();
    until("it runs", || running(&sleep).len() == 1);
    // The process that searches, and its parent, have the marker too, as in a loop that runs inside another loop.
    let looked = Command::new("sh")
        .args(["-c", "\"$0\" nested; true"])
        .arg(crate::support::example("leftovers"))
        .env(MARKER, "nested")
        .stdout(Stdio::piped())
        .process_group(0)
        .output()
        .unwrap();
    assert!(
        looked.status.success(),
        "the process did not kill itself or its parent"
    );
    assert_eq!(looked.stdout, b"");
    assert_eq!(end_leftovers("no_such_loop"), []);
    assert_eq!(end_leftovers(""), [], "an empty marker matches no process");
    assert_eq!(
        running(&sleep).len(),
        1,
        "the process of another loop is not killed"
    );
    other.kill().unwrap();
    other.wait().unwrap();
}

#[test]
fn descendants_are_found_in_every_generation() {
    let own = i32::try_from(std::process::id()).unwrap();
    let sleep = unique();
    let mut child = Command::new("sh")
        .args(["-c", &format!("sh -c '{sleep}; :'; :")])
        .spawn()
        .unwrap();
    let pid = i32::try_from(child.id()).unwrap();
    until("the grandchild runs", || running(&sleep).len() == 1);
    let grandchild = running(&sleep)[0];
    assert!(is_descendant(grandchild, pid));
    assert!(is_descendant(grandchild, own));
    assert!(
        is_descendant(own, own),
        "a process counts as its own descendant"
    );
    assert!(!is_descendant(own, pid));
    assert!(!is_descendant(0, own));
    kill("-KILL", grandchild);
    child.wait().unwrap();
    assert!(
        !is_descendant(pid, own),
        "a process that has ended has no ancestors"
    );
}
