//! A silent agent is sampled before it is killed. A busy one continues.

use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tachikoma_testkit::fake_agent::{Misbehavior, WhileSilent};
use tachikoma_testkit::{Scenario, Scratch, Turn};

use crate::claude_fault_support::{loop_of, misbehaving, with_scenario};
use crate::support::events;

/// Milliseconds that a silent but busy agent may run after its last output (`session.tool_timeout`).
const TOOL_TIMEOUT_MS: u64 = 6_000;

const SETTINGS: [(&str, &str); 3] = [
    ("SESSION__FIRST_OUTPUT_TIMEOUT", "1s"),
    ("SESSION__SILENCE_TIMEOUT", "1s"),
    ("SESSION__TOOL_TIMEOUT", "6s"),
];

/// Runs one iteration with a misbehaving agent. Returns the record of its failure.
fn one_iteration(wrong: Misbehavior) -> (Scratch, Value) {
    let at_start = wrong.hang_at_start;
    let scratch = with_scenario(&misbehaving(Scenario::of([Turn::text("one")]), [wrong]));
    // Other timeouts are long, so that only the tested one applies.
    let settings = &SETTINGS[usize::from(!at_start)..];
    let shown = loop_of(&scratch, "1", settings);
    let mut failed = events(&scratch, "iteration_failed");
    assert_eq!(failed.len(), 1, "{shown}");
    (scratch, failed.remove(0))
}

/// Describes an agent that becomes silent during an answer and then runs `doing`.
fn falls_silent(doing: Option<WhileSilent>) -> Misbehavior {
    Misbehavior {
        silent_after_line: Some(4),
        while_silent: doing,
        ..Misbehavior::default()
    }
}

/// A server on loopback that sends this many bytes every tenth of a second, until it is dropped.
struct Server {
    port: u16,
    _alive: std::sync::mpsc::Sender<()>,
}

impl Server {
    fn sending(bytes: usize) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (alive, dropped) = channel();
        // The thread ends with the test or when the agent closes its connection.
        thread::spawn(move || send(&listener, &dropped, &vec![b'.'; bytes]));
        Self {
            port,
            _alive: alive,
        }
    }
}

fn send(listener: &TcpListener, dropped: &Receiver<()>, piece: &[u8]) {
    let Ok((mut stream, _)) = listener.accept() else {
        return;
    };
    let tick = Duration::from_millis(100);
    while dropped.recv_timeout(tick) == Err(RecvTimeoutError::Timeout)
        && stream.write_all(piece).is_ok()
    {}
}

/// Minimum CPU time in milliseconds that a sample of two seconds shows for a computing agent.
const COMPUTES: (&str, u64) = ("cpu_ms", 200);
const RECEIVES: (&str, u64) = ("network_bytes", 1024);

#[track_caller]
fn expect_busy(scratch: &Scratch, failed: &Value, (what, least): (&str, u64)) {
    let seen = events(scratch, "busy_seen");
    assert!(!seen.is_empty(), "{failed}");
    for busy in &seen {
        assert!(busy["activity"][what].as_u64() >= Some(least), "{busy}");
    }
    let took = failed["duration_ms"].as_u64();
    assert!(
        took >= Some(TOOL_TIMEOUT_MS),
        "not before tool_timeout: {failed}"
    );
    // The journal has one record for each expired timeout.
    assert!(seen.len() <= 3, "{}", seen.len());
}

#[track_caller]
fn expect_idle(scratch: &Scratch) {
    assert_eq!(events(scratch, "busy_seen"), Vec::<Value>::new());
    assert_eq!(events(scratch, "look_requested").len(), 1);
}

#[track_caller]
fn expect_timeout(failed: &Value, timeout: &str) {
    let failure = &failed["failure"];
    assert_eq!(failure["kind"], "timed_out", "{failure}");
    assert_eq!(failure["timeout"], timeout, "{failure}");
}

#[test]
fn a_silent_agent_that_computes_runs_until_tool_timeout() {
    let (scratch, failed) = one_iteration(falls_silent(Some(WhileSilent::Compute)));
    expect_busy(&scratch, &failed, COMPUTES);
    expect_timeout(&failed, "silence");
    let seen = failed["failure"]["last_seen"].as_str().unwrap();
    assert!(
        seen.contains("; busy ") && seen.contains("ms of CPU time"),
        "{seen}"
    );
}

#[test]
fn an_agent_that_computes_before_its_first_output_runs_until_tool_timeout() {
    let (scratch, failed) = one_iteration(Misbehavior {
        hang_at_start: true,
        while_silent: Some(WhileSilent::Compute),
        ..Misbehavior::default()
    });
    expect_busy(&scratch, &failed, COMPUTES);
    expect_timeout(&failed, "first_output");
}

// Users of similar programs complained that agents were killed while they received a slow answer.
#[test]
fn an_agent_that_receives_a_slow_answer_runs_until_tool_timeout() {
    let server = Server::sending(126);
    let port = server.port;
    let (scratch, failed) = one_iteration(falls_silent(Some(WhileSilent::Receive { port })));
    expect_busy(&scratch, &failed, RECEIVES);
    expect_timeout(&failed, "silence");
}

#[test]
fn an_agent_that_receives_only_pings_is_killed() {
    let server = Server::sending(41);
    let port = server.port;
    let (scratch, failed) = one_iteration(falls_silent(Some(WhileSilent::Receive { port })));
    expect_idle(&scratch);
    expect_timeout(&failed, "silence");
}

#[test]
fn an_idle_silent_agent_is_killed() {
    let (scratch, failed) = one_iteration(falls_silent(None));
    expect_idle(&scratch);
    expect_timeout(&failed, "silence");
}
