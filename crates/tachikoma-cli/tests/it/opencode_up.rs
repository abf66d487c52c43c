//! `tachikoma opencode up`: access to the server, and the state that an earlier supervisor left.

use std::io::{Read as _, Write as _};

use rustix::process::Signal;
use serde_json::json;
use tachikoma_testkit::await_until;

use crate::live_support::SOON;
use crate::opencode::{Bed, kill_server};

#[test]
fn a_damaged_server_journal_is_reported_and_numbers_of_servers_continue() {
    let bed = Bed::new(&json!({}), "restart_delay_ms = 10");
    let mut live = bed.up();
    kill_server(&bed.await_ready(1));
    bed.await_ready(2);
    live.signal(Signal::KILL);
    live.wait(SOON);
    let journal = bed.scratch.path().join(".ralph/opencode/journal.jsonl");
    let mut bytes = std::fs::read(&journal).unwrap();
    bytes[40] ^= 1;
    std::fs::write(&journal, bytes).unwrap();
    let live = bed.up();
    bed.await_ready(3);
    let events = bed.tool().run(["opencode", "events"]);
    assert!(
        events.stdout.contains(" starting OpenCode (start 3)\n"),
        "{}",
        events.snapshot()
    );
    assert!(
        live.stderr()
            .starts_with("warning: the supervisor's journal was damaged (line 1: "),
        "{}",
        live.stderr()
    );
    assert_eq!(bed.tool().run(["opencode", "stop"]).code(), Some(0));
    live.wait(SOON);
}

/// If the second `up` waited, it would take over when the first one is stopped.
#[test]
fn a_second_up_is_refused_while_the_first_one_lives() {
    let bed = Bed::new(&json!({}), "");
    let first = bed.up();
    bed.await_ready(1);
    let second = bed.up();
    await_until("it asks for the lock", SOON, || !second.stderr().is_empty());
    assert_eq!(bed.tool().run(["opencode", "stop"]).code(), Some(0));
    first.wait(SOON);
    assert_eq!(second.wait(SOON).code(), Some(1));
    assert_eq!(bed.starts(), 1);
}

fn get_health(url: &str) -> String {
    let host = url.trim_start_matches("http://");
    let mut stream = std::net::TcpStream::connect(host).expect("it listens");
    let request =
        format!("GET /global/health HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer.lines().next().unwrap_or_default().to_owned()
}

/// The README shows this command without a configuration file.
#[test]
fn up_needs_no_configuration_and_the_server_requires_a_password() {
    let bed = Bed::new(&json!({}), "");
    let text = bed.scratch.read("tachikoma.toml");
    let text = text.replace("enabled = true\n", "");
    bed.scratch.write("tachikoma.toml", &text);
    let live = bed.up();
    let ready = bed.await_ready(1);
    let url = ready["url"].as_str().unwrap();
    assert!(get_health(url).contains("401"), "{}", get_health(url));
    assert_eq!(bed.tool().run(["opencode", "stop"]).code(), Some(0));
    assert_eq!(live.wait(SOON).stderr, "");
    let open = format!("{text}require_password = false\n");
    bed.scratch.write("tachikoma.toml", open);
    let live = bed.up();
    let ready = bed.await_ready(2);
    let url = ready["url"].as_str().unwrap();
    assert!(get_health(url).contains("200"), "{}", get_health(url));
    assert!(
        live.stderr()
            .starts_with("warning: the OpenCode server has no password, so every user of this machine can run commands"),
        "{}",
        live.stderr()
    );
    assert_eq!(bed.tool().run(["opencode", "stop"]).code(), Some(0));
    live.wait(SOON);
}

#[test]
fn a_reload_that_disables_the_server_is_refused() {
    let bed = Bed::new(&json!({}), "");
    let live = bed.up();
    bed.await_ready(1);
    let text = bed.scratch.read("tachikoma.toml");
    bed.scratch.write(
        "tachikoma.toml",
        text.replace("enabled = true", "enabled = false"),
    );
    let reload = bed.tool().run(["opencode", "reload"]);
    assert_eq!(reload.code(), Some(1), "{}", reload.snapshot());
    assert!(
        reload.stderr.contains("`opencode.enabled` is false"),
        "{}",
        reload.stderr
    );
    assert_eq!(bed.tool().run(["opencode", "stop"]).code(), Some(0));
    live.wait(SOON);
}
