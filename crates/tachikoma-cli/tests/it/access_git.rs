//! Git hooks and filters run by the loop have no rights of the operator, because an agent may write them.

use std::fs;
use std::path::PathBuf;

use tachikoma_testkit::{Scratch, Tool, await_until, processes_with};

use crate::access::refused;
use crate::attended_support::await_question;
use crate::git_support::repository;
use crate::live_support::{BIN, await_nobody, obey, seconds};
use crate::support::{CLAIMS, SOON, events, run, tachikoma};

/// Creates a program outside of the work tree, as an agent could do.
fn planted(scratch: &Scratch, name: &str, script: &str) -> PathBuf {
    scratch.write_script(scratch.home().join(name), format!("#!/bin/sh\n{script}\n"))
}

/// The command line of an agent that makes git run a program at each commit.
fn hooks_git(program: &std::path::Path) -> String {
    format!(
        "cp {} .git/hooks/pre-commit; echo more >> work",
        program.display()
    )
}

/// A script that sends a command to the loop from inside of git and writes the answer to `said`.
fn asks(words: &str, said: &str) -> String {
    format!("{BIN} {words} >> \"$HOME/{said}\" 2>&1; echo \"{words}: $?\" >> \"$HOME/{said}\"")
}

#[test]
fn a_git_hook_cannot_command_the_loop_and_its_processes_end_with_the_run() {
    let scratch = repository();
    let long = seconds();
    // This process has a new session, another parent and no variables that identify it.
    let left = planted(
        &scratch,
        "left",
        &format!(
            "cd '{}'; export HOME='{}' XDG_RUNTIME_DIR='{}'\n\
             while ! {BIN} status --json | grep -q '\"after_iteration\"'; do sleep 0.02; done\n{}\n\
             touch \"$HOME/answered\"; exec sleep {long}",
            scratch.path().display(),
            scratch.home().display(),
            scratch.runtime_dir().display(),
            asks("answer continue", "later"),
        ),
    );
    let hook = planted(
        &scratch,
        "hook",
        &format!(
            "{}\n{}\n(env -i PATH=\"$PATH\" setsid {} >/dev/null 2>&1 </dev/null &)",
            asks("stop", "said"),
            asks("answer continue", "said"),
            left.display()
        ),
    );
    let tool = tachikoma(&scratch);
    let script = hooks_git(&hook);
    let live = tool.spawn(run(&["--attended"], &script));
    await_question(&tool, 1);
    obey(&tool, &["answer", "continue"]);
    let second = await_question(&tool, 2);
    assert_eq!(second["kind"], "after_iteration");
    await_until("the daemon has answered", SOON, || {
        scratch.home().join("answered").exists()
    });
    let later = fs::read_to_string(scratch.home().join("later")).unwrap();
    assert!(
        later.contains("only the operator may ask this") && later.ends_with("answer continue: 1\n"),
        "{later}"
    );
    let still = await_question(&tool, 2);
    assert_eq!(still["kind"], "after_iteration");
    await_until("it sleeps", SOON, || processes_with(&long).len() == 1);
    obey(&tool, &["answer", "stop"]);
    assert_eq!(live.wait(SOON).code(), Some(5));
    assert_eq!(
        processes_with(&long),
        [] as [u32; 0],
        "no process of the hook survives the run"
    );
    let said = fs::read_to_string(scratch.home().join("said")).unwrap();
    let answers: Vec<_> = said.lines().filter(|line| line.ends_with(": 1")).collect();
    assert_eq!(answers, ["stop: 1", "answer continue: 1"], "{said}");
    assert_eq!(refused(&scratch), ["stop", "answer", "answer"]);
    assert_eq!(
        events(&scratch, "iteration_started").len(),
        1,
        "the answer of the operator is accepted"
    );
}

#[test]
fn a_git_filter_cannot_command_the_loop() {
    let scratch = repository();
    let once = format!(
        "if mkdir \"$HOME/once\" 2>/dev/null; then {}; {}; fi; exec cat",
        asks("stop", "said"),
        asks("skip", "said")
    );
    let filter = planted(&scratch, "filter", &once);
    let script = format!(
        "git config filter.spy.clean {}; echo 'work filter=spy' > .gitattributes; {CLAIMS}",
        filter.display()
    );
    let ran = tachikoma(&scratch).run(run(&[], &script));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let said = fs::read_to_string(scratch.home().join("said")).expect("the filter ran");
    assert!(
        said.contains("stop: 1") && said.contains("skip: 1"),
        "{said}"
    );
    assert_eq!(refused(&scratch), ["stop", "skip"]);
}

#[test]
fn processes_of_a_git_hook_end_when_the_runner_is_killed() {
    let scratch = repository();
    let long = seconds();
    let left = format!("(setsid sleep {long} >/dev/null 2>&1 </dev/null &)");
    let hook = planted(&scratch, "hook", &left);
    let script = format!(
        "[ $TACHIKOMA_ITERATION = 2 ] && exec sleep 600; {}",
        hooks_git(&hook)
    );
    let live = tachikoma(&scratch).spawn(run(&[], &script));
    await_until("it sleeps", SOON, || processes_with(&long).len() == 1);
    crate::support::kill(&scratch, live);
    await_nobody(&long);
}

#[test]
fn processes_from_before_the_run_are_not_ended() {
    let scratch = repository();
    let long = seconds();
    let script =
        format!("sleep {long} & exec {BIN} run --prompt-text go --delay 0s -- sh -c \"$0\"");
    let ran = Tool::new("/bin/sh", &scratch).run(["-c", &script, CLAIMS]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let left = processes_with(&long);
    assert_eq!(left.len(), 1, "the operator started this process");
    let pid = i32::try_from(left[0])
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    rustix::process::kill_process(pid.unwrap(), rustix::process::Signal::KILL).unwrap();
}
