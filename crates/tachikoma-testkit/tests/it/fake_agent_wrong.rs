//! Tests of the ways in which the fake agent can misbehave.

use rustix::process::{Pid, Signal, kill_process};
use tachikoma_testkit::fake_agent::{Behavior, Ignored, Misbehavior};
use tachikoma_testkit::{Scenario, Turn, await_until, processes_with, unique};

use crate::support::{SOON, Stage, await_file};

/// Number of requests and answers after which a signal has surely arrived.
const ROUND_TRIPS: usize = 20;

fn stage(turns: impl IntoIterator<Item = Turn>, always: Misbehavior) -> Stage {
    let mut scenario = Scenario::of(turns);
    scenario.agent.always = always;
    Stage::new(&scenario)
}

fn long_tool() -> Turn {
    Turn::bash("echo started > started; while [ -e started ]; do sleep 1; done")
}

#[test]
fn signal_ends_the_fake_agent_like_the_real_agent() {
    let stage = stage([long_tool(), long_tool()], Misbehavior::default());
    let mut talk = stage.start(&[]);
    talk.prompt("go");
    await_file(&stage, "started");
    talk.signal(Signal::INT);
    let ended = talk.end(SOON);
    let kinds = "system/init assistant user user result/error_during_execution";
    assert_eq!((ended.kinds().as_str(), ended.code), (kinds, Some(0)));

    std::fs::remove_file(stage.scratch.path().join("started")).expect("it is there");
    let mut talk = stage.start(&[]);
    talk.prompt("go");
    await_file(&stage, "started");
    talk.signal(Signal::TERM);
    let ended = talk.end(SOON);
    assert_eq!(
        (ended.kinds().as_str(), ended.code),
        ("system/init assistant", Some(143))
    );
}

#[test]
fn ignored_signals_do_not_end_the_agent() {
    let ignore = vec![Ignored::Interrupt, Ignored::Sigint, Ignored::Sigterm];
    let deaf = Misbehavior {
        ignore,
        ..Misbehavior::default()
    };
    let stage = stage([long_tool()], deaf);
    let mut talk = stage.start(&[]);
    talk.prompt("go");
    await_file(&stage, "started");
    talk.control("interrupt");
    talk.signal(Signal::INT);
    talk.signal(Signal::TERM);
    // Signals and lines arrive on different ways, so some requests are answered first.
    for answers in 1..=ROUND_TRIPS {
        talk.control("get_context_usage");
        talk.await_lines("control_response", answers, SOON);
    }
    assert!(talk.is_running());
    let lines = talk.lines().len();
    assert_eq!(lines, 2 + ROUND_TRIPS, "it did not answer the interrupt");
}

#[test]
fn agent_hangs_after_the_configured_line() {
    let after_two = Misbehavior {
        silent_after_line: Some(2),
        ..Misbehavior::default()
    };
    let after_result = Misbehavior {
        hang_after_result: true,
        ..Misbehavior::default()
    };
    for (wrong, lines) in [(after_two, 2), (after_result, 3)] {
        let stage = stage([Turn::text("hello")], wrong.clone());
        let mut talk = stage.start(&[]);
        talk.prompt("go");
        await_until("its lines", SOON, || talk.lines().len() == lines);
        // The agent still reads requests, but prints nothing else.
        talk.control("get_context_usage");
        talk.await_lines("control_response", 1, SOON);
        talk.close_input();
        assert!(talk.is_running(), "{wrong:?}");
        assert_eq!(talk.lines().len(), lines + 1, "{wrong:?}");
        talk.signal(Signal::TERM);
        assert_eq!(talk.end(SOON).code, Some(143), "{wrong:?}");
    }
}

#[test]
fn an_agent_that_hangs_from_the_start_prints_nothing() {
    let at_start = Misbehavior {
        hang_at_start: true,
        ..Misbehavior::default()
    };
    let stage = stage([Turn::text("hello")], at_start);
    let mut talk = stage.start(&[]);
    talk.control("get_context_usage");
    talk.prompt("go");
    // The interrupt is read after both signals.
    talk.control("interrupt");
    let ended = talk.end(SOON);
    assert_eq!((ended.code, ended.raw.len()), (Some(0), 0));
}

#[test]
fn agent_prints_the_configured_faulty_output() {
    let wrong = Misbehavior {
        garbage_before_line: Some(2),
        huge_line_bytes: Some(2_000_000),
        second_result: true,
        session_id: Some("an-old-one".into()),
        ..Misbehavior::default()
    };
    let ended = stage([Turn::text("hello")], wrong).run_once("go");
    let kinds = "system/init system/filler assistant result/success result/success";
    assert_eq!(ended.kinds(), kinds);
    let longest = ended
        .raw
        .split(|byte| *byte == b'\n')
        .map(<[u8]>::len)
        .max();
    assert!(longest > Some(2_000_000));
    let garbage = b"\xff\xfe\x00";
    assert!(ended.raw.windows(3).any(|three| three == garbage));
    assert_eq!(ended.lines[0]["session_id"], "an-old-one");
}

#[test]
fn agent_exits_at_the_configured_line_and_works_at_the_next_start() {
    let at_line = Misbehavior {
        exit_at_line: Some(2),
        exit_code: 7,
        ..Misbehavior::default()
    };
    let between = Misbehavior {
        die_after_results: Some(1),
        exit_code: 9,
        ..Misbehavior::default()
    };
    let mut scenario = Scenario::of([Turn::text("hello")]).for_ever();
    scenario.agent = Behavior {
        starts: vec![at_line, between],
        ..Behavior::default()
    };
    let stage = Stage::new(&scenario);
    let mut seen = Vec::new();
    for _ in 0..3 {
        let mut talk = stage.start(&[]);
        talk.prompt("go");
        let ended = talk.end(SOON);
        seen.push((ended.lines.len(), ended.code));
    }
    assert_eq!(seen, [(1, Some(7)), (3, Some(9)), (3, Some(0))]);
}

#[test]
fn agent_continues_to_work_after_it_closed_its_stdout() {
    let wrong = Misbehavior {
        close_stdout_at_line: Some(2),
        ..Misbehavior::default()
    };
    let stage = stage([Turn::bash("echo x > later"), Turn::text("done")], wrong);
    let ended = stage.run_once("go");
    assert_eq!(
        (ended.kinds().as_str(), ended.code),
        ("system/init", Some(0))
    );
    assert_eq!(stage.scratch.read("later"), "x\n");
}

#[test]
fn child_of_the_agent_outlives_the_agent() {
    let marker = unique();
    let wrong = Misbehavior {
        escaping_child: Some(marker.clone()),
        child_without_env: true,
        ..Misbehavior::default()
    };
    let ended = stage([Turn::text("hello")], wrong).run_once("go");
    assert_eq!(ended.code, Some(0));
    let mut found = Vec::new();
    await_until("the child alone", SOON, || {
        found = processes_with(&marker);
        found.len() == 1
    });
    let pid = found[0];
    let environment =
        std::fs::read(format!("/proc/{pid}/environ")).expect("the test owns this file");
    assert!(!String::from_utf8_lossy(&environment).contains("FAKE_AGENT"));
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    kill_process(pid.expect("process ids are positive"), Signal::KILL)
        .expect("the test started this process");
    await_until("its end", SOON, || processes_with(&marker).is_empty());
}

#[test]
fn agent_exits_with_an_error_on_a_line_that_is_not_json() {
    let stage = stage([Turn::text("hello")], Misbehavior::default());
    let mut talk = stage.start(&[]);
    talk.send_raw("\nthis is not JSON\n");
    let ended = talk.end(SOON);
    assert_eq!((ended.kinds().as_str(), ended.code), ("", Some(1)));
    assert!(
        ended.errors.contains("this is not JSON"),
        "{}",
        ended.errors
    );
}
