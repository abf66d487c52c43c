//! A loop with misbehaving hooks and notifications.

use tachikoma_testkit::{Scratch, await_until, processes_with};

use crate::hooks::hook;
use crate::live_support::{await_nobody, seconds};
use crate::notify_support::{Answer, Service};
use crate::support::{CLAIMS, SOON, events, lines, run, status, tachikoma};

#[test]
fn a_loop_with_misbehaving_hooks_and_notifications_ends_correctly() {
    let scratch = Scratch::new();
    let long = seconds();
    let hangs = format!("trap '' TERM; sleep {long}");
    let forks = format!(
        "i=0; while [ $i -lt 50 ]; do setsid sleep {long} & i=$((i+1)); done; exec >&- 2>&-; exit 0"
    );
    let garbage = "head -c 300000 /dev/urandom; echo; echo '{\"custom\": {\"\": 1, \"ok\": 2}}'";
    let closed = "exec 0<&- 1>&- 2>&-; exit 3";
    let quick = "timeout = '200ms'";
    let hung = Service::new(&[Answer::Hang]);
    let cut = Service::new(&[Answer::Cut]);
    let tables = [
        hook("loop_start", &hangs, quick),
        hook("loop_start", garbage, ""),
        hook("session_start", closed, ""),
        hook("iteration_start", &forks, ""),
        hook("iteration_end", "kill -9 $$", ""),
        hook("iteration_end", "cat /dev/zero | head -c 5000000; exit 1", ""),
        // This hook exits with 125 after the loop has already ended.
        hook("iteration_end", "trap 'exit 125' TERM; sleep 1 & wait", quick),
        hook("error", &hangs, quick),
        hook("no_progress", &forks, ""),
        hook("loop_end", &hangs, quick),
        hook("loop_end", "exit 125", ""),
        format!("[[notify]]\nto = 'webhook'\nurl = '{}'\non = ['iteration_end', 'loop_end']\n", hung.url()),
        format!("[[notify]]\nto = 'slack'\nurl = '{}'\non = ['iteration_end', 'loop_end']\n", cut.url()),
        format!("[[notify]]\nto = 'command'\ncommand = \"{hangs}\"\non = ['iteration_start']\n"),
        "[[notify]]\nto = 'command'\ncommand = 'exec 0<&-; exit 9'\non = ['iteration_start', 'error']\n".to_owned(),
    ];
    scratch.write("tachikoma.toml", tables.concat());
    let script = format!("[ $TACHIKOMA_ITERATION = 1 ] && exit 3; {CLAIMS}");
    let ran = tachikoma(&scratch).run(run(&[], &script));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(status(&scratch)["outcome"]["kind"], "done");
    await_nobody(&long);
    // The journal has no gap, and every blocking hook that started has a recorded end.
    let numbers = lines(&scratch).into_iter().map(|line| {
        let record: serde_json::Value = serde_json::from_str(&line).expect("a record");
        record["seq"].as_u64().expect("a number")
    });
    let numbers: Vec<u64> = numbers.collect();
    let first = numbers[0];
    assert!(
        numbers
            .iter()
            .zip(first..)
            .all(|(number, expected)| *number == expected)
    );
    let started = events(&scratch, "hooks_started").len();
    let ended = events(&scratch, "hooks_ran");
    let framing = ended
        .iter()
        .filter(|it| it["point"] != "error" && it["point"] != "no_progress");
    assert_eq!(framing.count(), started);
    assert_eq!(events(&scratch, "custom_set").len(), 1);
    let verified = tachikoma(&scratch).run(["state", "verify"]);
    assert_eq!(verified.code(), Some(0), "{}", verified.snapshot());
    let failed = events(&scratch, "incident");
    assert!(
        failed.iter().any(|it| it["target"] == "slack (notify 2)"),
        "{failed:?}"
    );
}

#[test]
fn a_stop_is_obeyed_while_everything_hangs() {
    let scratch = Scratch::new();
    let long = seconds();
    let hangs = format!("trap '' TERM; sleep {long}");
    let forever = "timeout = '0s'";
    let service = Service::new(&[Answer::Hang]);
    let tables = [
        hook("iteration_start", &hangs, forever),
        hook("loop_end", &hangs, forever),
        format!(
            "[[notify]]\nto = 'webhook'\nurl = '{}'\non = ['loop_start', 'loop_end']\n",
            service.url()
        ),
    ];
    scratch.write("tachikoma.toml", tables.concat());
    let mut live = tachikoma(&scratch).spawn(run(&[], CLAIMS));
    await_until("the hook to hang", SOON, || {
        !processes_with(&long).is_empty()
    });
    live.signal(rustix::process::Signal::TERM);
    await_until("the hooks at the end", SOON, || {
        events(&scratch, "hooks_started").len() == 2
    });
    live.signal(rustix::process::Signal::TERM);
    let ran = live.wait(SOON);
    assert_eq!(ran.code(), Some(143), "{}", ran.snapshot());
    await_nobody(&long);
}
