//! Requests of an agent to its own loop: allowed ones work, others are refused and recorded.

use serde_json::Value;
use tachikoma_testkit::{Scratch, await_until};

use crate::support::{BUSY, CLAIMS, SOON, await_events, events, run, tachikoma};

/// Returns the refused requests in the journal, in order.
pub(crate) fn refused(scratch: &Scratch) -> Vec<String> {
    let incidents = events(scratch, "incident");
    let refused = incidents.iter().filter(|it| it["kind"] == "access_refused");
    refused
        .map(|it| {
            assert_eq!(it["agent"], true);
            assert!(it["pid"].as_u64().is_some_and(|pid| pid > 1), "{it}");
            it["request"].as_str().expect("a word").to_owned()
        })
        .collect()
}

#[test]
fn requests_that_the_agent_may_not_make_are_refused_and_recorded() {
    let scratch = Scratch::new();
    let asks = "for word in stop pause skip reboot resume 'stop --now' 'state set key 1'; do tachikoma $word; echo $word: $? >> answers; done 2>> refused";
    let script = format!("{asks}; tachikoma status > seen && tachikoma note kept && {CLAIMS}");
    let ran = tachikoma(&scratch).run(run(&[], &script));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(
        scratch.read("answers"),
        "stop: 1\npause: 1\nskip: 1\nreboot: 1\nresume: 1\nstop --now: 1\nstate set key 1: 1\n"
    );
    assert!(
        scratch
            .read("refused")
            .contains("only the operator may ask this")
    );
    assert_eq!(
        refused(&scratch),
        [
            "stop",
            "pause",
            "skip",
            "reboot",
            "resume",
            "stop",
            "state set"
        ]
    );
    assert_eq!(events(&scratch, "noted").len(), 1);
    assert_eq!(events(&scratch, "custom_set").len(), 0);
    assert!(
        ran.stdout.contains(
            "the agent, or a program that the loop runs, asked for `stop` and was refused"
        ),
        "{}",
        ran.stdout
    );
}

#[test]
fn a_detached_child_of_the_agent_is_refused_too() {
    let scratch = Scratch::new();
    let script = format!(
        "setsid sh -c 'tachikoma stop 2> refused; echo $? > answer' & while [ ! -s answer ]; do sleep 0.01; done; {CLAIMS}"
    );
    let ran = tachikoma(&scratch).run(run(&[], &script));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(scratch.read("answer"), "1\n");
    assert_eq!(refused(&scratch), ["stop"]);
}

/// The environment of the descendant is empty, so only its ancestors identify it: a program with a name that is not UTF-8, many
/// processes, and processes that exit.
#[test]
fn a_descendant_of_the_agent_is_recognized_through_other_processes() {
    let scratch = Scratch::new();
    let bin = env!("CARGO_BIN_EXE_tachikoma");
    scratch.write(
        "ask",
        format!(
            "#!/bin/sh\ncd {} && {bin} stop 2>>refused; echo $? >>answers\n",
            scratch.path().display()
        ),
    );
    scratch.write(
        "deep",
        "#!/bin/sh\nif [ $1 -gt 1030 ]; then exec sh ask; fi; sh deep $(($1 + 1)); exit\n",
    );
    let script = format!(
        "odd=$(printf '\\377'); cp /bin/sh \"./$odd\"; env -i \"./$odd\" -c 'sh ask; exit'; env -i sh -c 'sh deep 1; exit'; \
         i=0; while [ $i -lt 20 ]; do env -i sh -c 'sh ask & exit'; i=$((i+1)); done; \
         while [ $(wc -l <answers) -lt 22 ]; do sleep 0.01; done; {CLAIMS}"
    );
    let ran = tachikoma(&scratch).run(run(&[], &script));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(scratch.read("answers"), "1\n".repeat(22));
    assert_eq!(refused(&scratch).len(), 22);
}

#[test]
fn repeated_requests_of_an_agent_do_not_fill_the_journal() {
    let scratch = Scratch::new();
    let script = format!(
        "i=0; while [ $i -lt 110 ]; do tachikoma skip 2>/dev/null; i=$((i+1)); done; {CLAIMS}"
    );
    let ran = tachikoma(&scratch).run(run(&["--quiet"], &script));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(refused(&scratch).len(), 100);
}

#[test]
fn an_agent_that_edits_the_configuration_does_not_change_the_running_loop() {
    let scratch = Scratch::new();
    scratch.write("tachikoma.toml", "max_iterations = 2\n");
    let edits = "printf 'max_iterations = 50\\n[[hook]]\\non = \"iteration_end\"\\ncommand = \"touch evil\"\\n' > tachikoma.toml";
    let ran = tachikoma(&scratch).run(run(&[], edits));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(events(&scratch, "iteration_started").len(), 2);
    assert!(!scratch.path().join("evil").exists());
    let asked: Vec<Value> = events(&scratch, "hooks_started");
    assert_eq!(asked, [] as [Value; 0]);
}

/// The operator of a nested loop is the process that started it, which may belong to the outer loop.
#[test]
fn a_nested_loop_obeys_the_process_that_started_it() {
    let scratch = Scratch::new();
    let inside = |of: &str| tachikoma(&scratch).env("TACHIKOMA_INSIDE", of);
    let live = inside("one").spawn(run(&[], BUSY));
    await_events(&scratch, "agent_launched", 1);
    let other = inside("another").run(["stop"]);
    assert_eq!(other.code(), Some(1), "{}", other.snapshot());
    await_until("it is recorded", SOON, || refused(&scratch) == ["stop"]);
    let same = inside("one").run(["stop"]);
    assert_eq!(same.code(), Some(0), "{}", same.snapshot());
    assert_eq!(live.wait(SOON).code(), Some(5));
}

/// A C program that opens many connections to a socket and sends nothing.
const CROWDS: &str = "#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
int main(int count, char **words) {
  struct sockaddr_un at = { .sun_family = AF_UNIX };
  if (count != 2) return 1;
  strncpy(at.sun_path, words[1], sizeof at.sun_path - 1);
  for (int i = 0; i < 900; i++)
    if (connect(socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&at, sizeof at)) return 2;
  if (write(1, \"crowded\", 7) != 7) return 3;
  return pause();
}
";

#[test]
fn connections_of_the_agent_do_not_block_a_stop_of_the_operator() {
    let scratch = Scratch::new();
    scratch.write("crowds.c", CROWDS);
    let built = std::process::Command::new("cc")
        .args(["-o", "crowds", "crowds.c"])
        .current_dir(scratch.path())
        .status();
    assert!(built.unwrap().success());
    let tool = tachikoma(&scratch);
    let crowd = "exec ./crowds \"$XDG_RUNTIME_DIR\"/tachikoma/*.sock > up";
    let live = tool.spawn(run(&[], crowd));
    await_until("all seats are asked for", SOON, || {
        std::fs::read(scratch.path().join("up")).is_ok_and(|up| up == b"crowded")
    });
    let stopped = tool.run(["stop", "--now"]);
    assert_eq!(stopped.code(), Some(0), "{}", stopped.snapshot());
    assert_eq!(live.wait(SOON).code(), Some(5));
}
