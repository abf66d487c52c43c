//! `tachikoma run --agent opencode` with a fake server in its own process: one conversation, also if the server dies.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tachikoma_testkit::{Ran, await_until, processes_with, unique};

use crate::live_support::SOON;
use crate::opencode::Bed;

/// Time limit of a loop, including the start of its servers.
pub(crate) const LOOP: Duration = Duration::from_secs(60);

/// Shell command of a tool call that waits until the file `go` exists or the test is over.
pub(crate) const HELD: &str =
    "echo x >> started; while [ -e started ] && ! [ -e go ]; do sleep 0.02; done";

pub(crate) const RUN: [&str; 7] = [
    "run",
    "--agent",
    "opencode",
    "--delay",
    "0s",
    "--prompt-text",
    "do the next thing",
];

/// Access to the records of a loop and to the state of its servers.
pub(crate) trait Books {
    fn start(&self, iterations: &str) -> tachikoma_testkit::Live;
    fn events(&self) -> Vec<Value>;
    fn of_type(&self, kind: &str) -> Vec<Value>;
    fn state_file(&self, name: &str) -> String;
    fn turns(&self, what: &str) -> Vec<String>;
    fn server(&self) -> Value;
    fn kill_server(&self);
    fn prompts(&self) -> usize;
    fn await_file(&self, name: &str);
}

impl Books for Bed {
    fn start(&self, iterations: &str) -> tachikoma_testkit::Live {
        self.tool()
            .spawn([&RUN[..], &["--max-iterations", iterations]].concat())
    }

    fn events(&self) -> Vec<Value> {
        let ran = self.tool().run(["events", "--json"]);
        let lines = ran.stdout.lines().map(str::to_owned).collect::<Vec<_>>();
        let records = lines
            .iter()
            .map(|line| serde_json::from_str(line).expect("a record"));
        records
            .map(|record: Value| record["event"].clone())
            .collect()
    }

    fn of_type(&self, kind: &str) -> Vec<Value> {
        let events = self.events().into_iter();
        events.filter(|event| event["type"] == kind).collect()
    }

    fn state_file(&self, name: &str) -> String {
        fs::read_to_string(self.scratch.home().join("fake").join(name)).unwrap_or_default()
    }

    /// Returns the ids of the prompts with a given record (`what`) in the log of the fake server.
    fn turns(&self, what: &str) -> Vec<String> {
        let text = self.state_file("turns.jsonl");
        let turns = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        turns
            .filter(|turn| turn["what"] == what)
            .map(|turn| turn["prompt"].as_str().expect("an id").to_owned())
            .collect()
    }

    fn server(&self) -> Value {
        let path = self
            .scratch
            .path()
            .join(".ralph/opencode-agent/server.json");
        serde_json::from_slice(&fs::read(path).unwrap_or_default()).unwrap_or_default()
    }

    fn kill_server(&self) {
        let pid = self.server()["pid"]
            .as_i64()
            .and_then(|pid| i32::try_from(pid).ok());
        let pid = pid.and_then(Pid::from_raw).expect("a server");
        kill_process(pid, Signal::KILL).expect("the test started this process");
    }

    /// Returns the number of prompts of the loop in all conversations.
    fn prompts(&self) -> usize {
        let kept: Value =
            serde_json::from_str(&self.state_file("conversations.json")).expect("JSON");
        let conversations = kept["conversations"].as_object().expect("conversations");
        let messages = conversations
            .values()
            .flat_map(|c| c.as_array().expect("a list"));
        let marked = |m: &&Value| !m["parts"][0]["metadata"]["tachikoma"].is_null();
        messages
            .filter(|message| message["info"]["role"] == "user")
            .filter(marked)
            .count()
    }

    fn await_file(&self, name: &str) {
        let path = self.scratch.path().join(name);
        await_until(name, SOON, || path.exists());
    }
}

#[track_caller]
pub(crate) fn expect(ran: &Ran, code: i32) {
    assert_eq!(ran.code(), Some(code), "{}", ran.snapshot());
}

pub(crate) fn outcomes(bed: &Bed) -> Vec<String> {
    let outcome = |event: &Value| match event["type"].as_str() {
        Some("iteration_completed") => event["report"]["outcome"].as_str().map(str::to_owned),
        Some("iteration_failed") => Some(event["failure"].to_string()),
        _ => None,
    };
    bed.events().iter().filter_map(outcome).collect()
}

#[test]
fn iterations_share_one_conversation_in_the_loops_own_server() {
    let mark = unique();
    let turn = json!({"tools": 2, "command": format!(": {mark}"), "tokens": 21_000});
    let bed = Bed::new(&json!({"turn": turn}), "");
    let ran = bed.start("3").wait(LOOP);
    expect(&ran, 3);
    assert_eq!(outcomes(&bed), ["succeeded"; 3]);
    assert_eq!(bed.starts(), 1);
    assert_eq!((bed.prompts(), bed.turns("ended").len()), (3, 3));
    assert_eq!(bed.of_type("session_named").len(), 1);
    let readings = bed.of_type("context_measured");
    assert_eq!(
        readings[0]["context"]["window"], 100_000,
        "the process id of the server"
    );
    assert_eq!(readings[0]["context"]["tokens"], 21_000);
    assert_eq!(
        bed.server()["state"],
        "stopped",
        "the server ends with the loop"
    );
    assert_eq!(processes_with(&mark), Vec::<u32>::new());
    let warned = bed.of_type("warned");
    let warned: Vec<_> = warned.iter().map(Value::to_string).collect();
    let of_version = warned.iter().filter(|text| text.contains("0.0.0-fake"));
    assert_eq!(
        of_version.count(),
        1,
        "the warning about an untested version: {warned:?}"
    );
}

/// Agents may run `rm -rf` and `git clean`, which delete the state files.
#[test]
fn a_tool_that_deletes_all_state_ends_neither_loop_nor_server() {
    let turn = json!({"command": "rm -rf .ralph"});
    let bed = Bed::new(&json!({"turn": turn}), "health_interval = '50ms'");
    let ran = bed.start("3").wait(LOOP);
    expect(&ran, 3);
    assert_eq!(bed.starts(), 1);
    assert_eq!((bed.prompts(), bed.turns("ended").len()), (3, 3));
    assert_eq!(bed.server()["state"], "stopped");
}

#[test]
fn a_turn_interrupted_by_a_dying_server_continues_with_one_prompt() {
    let turn = json!({"command": HELD});
    let bed = Bed::new(&json!({"turn": turn}), "restart_delay_ms = 0");
    let live = bed.start("2");
    bed.await_file("started");
    bed.kill_server();
    bed.scratch.write("go", "");
    let ran = live.wait(LOOP);
    expect(&ran, 3);
    assert_eq!(outcomes(&bed), ["succeeded"; 2]);
    let cut = bed.of_type("attempt_cut");
    let reason = cut[0]["reason"].as_str().expect("a reason");
    assert!(
        reason.starts_with("the OpenCode server was lost: "),
        "{reason}"
    );
    assert_eq!((cut.len(), bed.starts()), (1, 2));
    assert_eq!(
        bed.of_type("session_named").len(),
        1,
        "the same conversation continues"
    );
    assert_eq!(
        bed.of_type("wait_started").len(),
        0,
        "the loop does not wait"
    );
    assert_eq!((bed.prompts(), bed.turns("ended").len()), (2, 2));
    let prompted = bed.turns("prompted");
    assert_eq!(prompted[0], prompted[1], "the prompt has its original id");
}

#[test]
fn a_conversation_that_the_server_lost_is_replaced_by_a_new_one_with_the_hand_off() {
    let script = json!({"turn": {"command": HELD}, "starts": [{}, {"forgets": true}]});
    let bed = Bed::new(&script, "restart_delay_ms = 0");
    let live = bed.start("1");
    bed.await_file("started");
    bed.kill_server();
    bed.scratch.write("go", "");
    let ran = live.wait(LOOP);
    expect(&ran, 3);
    assert_eq!(outcomes(&bed), ["succeeded"]);
    assert_eq!(
        bed.of_type("attempt_cut").len(),
        2,
        "the turn was lost, and then the conversation was unknown"
    );
    assert_eq!(bed.of_type("session_named").len(), 2);
    assert_eq!(bed.of_type("session_started").len(), 2);
    let kept = bed.state_file("conversations.json");
    assert!(
        kept.contains("Hand-off from the previous session"),
        "{kept}"
    );
}

#[test]
fn an_unconfirmed_prompt_is_checked_and_not_sent_twice() {
    let bed = Bed::new(&json!({"always": {"swallows_answers": 1}}), "");
    let ran = bed.start("2").wait(LOOP);
    expect(&ran, 3);
    assert_eq!(outcomes(&bed), ["succeeded"; 2]);
    assert_eq!((bed.turns("prompted").len(), bed.prompts()), (2, 2));
}

#[test]
fn a_prompt_that_did_not_arrive_is_sent_again() {
    let bed = Bed::new(&json!({"always": {"loses_prompts": 2}}), "");
    let ran = bed.start("1").wait(LOOP);
    expect(&ran, 3);
    assert_eq!(outcomes(&bed), ["succeeded"]);
    assert_eq!((bed.turns("prompted").len(), bed.prompts()), (1, 1));
}

#[test]
fn an_interrupted_event_stream_is_resumed_without_loss() {
    let bed = Bed::new(&json!({"always": {"cuts_streams_after": 4}}), "");
    let ran = bed.start("3").wait(LOOP);
    expect(&ran, 3);
    assert_eq!(outcomes(&bed), ["succeeded"; 3]);
    assert_eq!((bed.starts(), bed.of_type("attempt_cut").len()), (1, 0));
    assert_eq!(bed.turns("prompted").len(), 3);
}

#[test]
fn garbage_in_the_event_stream_is_skipped() {
    let bed = Bed::new(&json!({"always": {"garbage": "<html>{\"type\":"}}), "");
    let ran = bed.start("2").wait(LOOP);
    expect(&ran, 3);
    assert_eq!(outcomes(&bed), ["succeeded"; 2]);
    let said = ran.snapshot();
    assert!(
        said.contains("| <html>{\"type\":"),
        "the garbage is shown: {said}"
    );
}

#[test]
fn the_loop_ends_with_a_hint_if_the_supervisor_gives_up() {
    let settings = "restart_delay_ms = 1\nmax_restart_attempts = 2";
    let bed = Bed::new(&json!({"always": {"exit": 1}}), settings);
    let ran = bed.start("2").wait(LOOP);
    expect(&ran, 1);
    let said = ran.snapshot();
    assert!(said.contains("there is no OpenCode server: "), "{said}");
    assert!(
        said.contains("start it again, and `tachikoma run` continues"),
        "{said}"
    );
    assert_eq!(
        bed.of_type("iteration_failed").len(),
        1,
        "no other hint is printed"
    );
}

#[test]
fn a_missing_server_program_is_reported_before_the_first_iteration() {
    let bed = Bed::new(&json!({}), "");
    let path = bed.scratch.path().join("tachikoma.toml");
    fs::write(path, "[opencode]\nserve_command = 'opencode-nonesuch'\n").expect("ours");
    let ran = bed.start("1").wait(LOOP);
    expect(&ran, 2);
    let said = ran.snapshot();
    assert!(
        said.contains("program `opencode-nonesuch` is not found"),
        "{said}"
    );
    assert!(!bed.scratch.path().join(".ralph").exists());
}

#[test]
fn a_stop_ends_the_turn_in_the_server() {
    let bed = Bed::new(&json!({"turn": {"command": HELD}}), "");
    let live = bed.start("2");
    bed.await_file("started");
    let stopped = bed.tool().run(["stop", "--now"]);
    expect(&stopped, 0);
    let ran = live.wait(LOOP);
    expect(&ran, 5);
    assert_eq!(outcomes(&bed), ["interrupted"]);
    assert_eq!(bed.turns("aborted").len(), 1);
}

#[test]
fn a_tool_in_the_server_may_only_leave_notes() {
    let command = "tachikoma note mind the beans; tachikoma stop --now 2> refused; echo x > asked";
    let bed = Bed::new(&json!({"turn": {"command": command}}), "");
    let ran = bed.start("1").wait(LOOP);
    expect(&ran, 3);
    assert_eq!(outcomes(&bed), ["succeeded"]);
    assert_eq!(bed.of_type("noted").len(), 1);
    assert!(bed.scratch.path().join("asked").exists());
    let refused = bed.scratch.read("refused");
    assert!(refused.starts_with("error: "), "{refused}");
}

#[test]
fn a_running_shared_server_is_used_and_outlives_the_loop() {
    let bed = Bed::new(&json!({}), "");
    let mut up = bed.up();
    bed.await_ready(1);
    let ran = bed.start("1").wait(LOOP);
    expect(&ran, 3);
    assert!(
        ran.snapshot()
            .contains("in the server of `tachikoma opencode up`")
    );
    assert_eq!((bed.starts(), outcomes(&bed).len()), (1, 1));
    assert!(!bed.scratch.path().join(".ralph/opencode-agent").exists());
    assert!(up.is_running());
    expect(&bed.tool().run(["opencode", "stop"]), 0);
    expect(&up.wait(LOOP), 0);
}

/// Runs a loop attached to a server with the password `wanted`. The loop uses `password`.
fn attached(script: &Value, password: Option<&str>, wanted: Option<&str>) -> (Bed, Ran) {
    let bed = Bed::new(script, "");
    let (server, url) = fake(&bed, wanted);
    let run = [&RUN[..], &["--max-iterations", "1", "--attach", &url]].concat();
    let mut tool = bed.tool();
    if let Some(password) = password {
        tool = tool.env("OPENCODE_SERVER_PASSWORD", password);
    }
    let ran = tool.spawn(run).wait(LOOP);
    drop(server);
    (bed, ran)
}

/// A fake server that the test starts without a supervisor.
pub(crate) struct Fake(std::process::Child);

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn fake(bed: &Bed, password: Option<&str>) -> (Fake, String) {
    use std::io::BufRead as _;
    let program = PathBuf::from(crate::live_support::BIN)
        .with_file_name("examples")
        .join("fake-opencode");
    let mut command = std::process::Command::new(program);
    command
        .args(["serve", "--port", "0", "--hostname", "127.0.0.1"])
        .current_dir(bed.scratch.path())
        .env(
            "FAKE_OPENCODE_SCRIPT",
            bed.scratch.path().join("script.json"),
        )
        .env("FAKE_OPENCODE_STATE", bed.scratch.home().join("fake"))
        .stdout(std::process::Stdio::piped());
    if let Some(password) = password {
        command.env("OPENCODE_SERVER_PASSWORD", password);
    }
    let mut child = command.spawn().expect("it starts");
    let mut line = String::new();
    let stdout = child.stdout.take().expect("a pipe");
    std::io::BufReader::new(stdout)
        .read_line(&mut line)
        .expect("a line");
    let url = line
        .trim()
        .rsplit(' ')
        .next()
        .expect("an address")
        .to_owned();
    (Fake(child), url)
}

#[test]
fn an_attached_server_is_used_with_its_password_and_not_stopped() {
    let (bed, ran) = attached(&json!({}), Some("hunter2"), Some("hunter2"));
    expect(&ran, 3);
    assert_eq!(outcomes(&bed), ["succeeded"]);
    assert_eq!(bed.starts(), 1);
    let everything = [ran.snapshot(), format!("{:?}", bed.events())].concat();
    assert!(!everything.contains("hunter2"), "{everything}");
}

#[test]
fn an_address_without_an_opencode_server_is_reported_at_once() {
    let page = json!({"always": {"html": "<!doctype html><title>x</title>"}});
    let other = json!({"always": {"health": "{\"status\":\"up\"}"}});
    for (script, password, wanted, words) in [
        (
            json!({}),
            Some("wrong"),
            Some("hunter2"),
            "wants another password: set OPENCODE_SERVER_PASSWORD",
        ),
        (
            json!({}),
            None,
            Some("hunter2"),
            "wants a password: set OPENCODE_SERVER_PASSWORD",
        ),
        (
            page,
            None,
            None,
            "answered with a web page: this is not an OpenCode server",
        ),
        (
            other,
            None,
            None,
            "answered with JSON ({\"status\":\"up\"})",
        ),
    ] {
        let (bed, ran) = attached(&script, password, wanted);
        expect(&ran, 1);
        let said = ran.snapshot();
        assert!(said.contains(words), "{words}\n{said}");
        assert!(!said.contains("hunter2"), "{said}");
        assert_eq!(bed.of_type("iteration_failed").len(), 1);
    }
}

#[test]
fn an_unreachable_address_is_reported_at_once_and_can_be_replaced() {
    let bed = Bed::new(&json!({}), "");
    // This is the address of a server that has ended.
    let (server, url) = fake(&bed, None);
    drop(server);
    let mut run = bed
        .tool()
        .spawn([&RUN[..], &["--max-iterations", "1", "--attach", &url]].concat());
    await_until("it is said", LOOP, || {
        let said = run.stderr() + &run.stdout();
        said.contains(&format!("no server listens at {url} yet")) && said.contains("`--attach own`")
    });
    run.signal(Signal::INT);
    assert_eq!(run.wait(LOOP).code(), Some(130));
    let own = [&RUN[..], &["--max-iterations", "1", "--attach", "own"]].concat();
    expect(&bed.tool().spawn(own).wait(LOOP), 3);
    assert!(bed.scratch.path().join(".ralph/opencode-agent").exists());
}

#[test]
fn invalid_server_addresses_are_refused_before_the_loop_starts() {
    for (url, words) in [
        (
            "http://192.0.2.1:4096",
            "is not on this machine: set OPENCODE_SERVER_PASSWORD",
        ),
        ("https://127.0.0.1:4096", "does not begin with http://"),
        ("4096", "is not the address of a server"),
    ] {
        let bed = Bed::new(&json!({}), "");
        let ran = bed.tool().run([&RUN[..], &["--attach", url]].concat());
        let said = ran.snapshot();
        assert!(said.contains(words), "{said}");
        assert!(matches!(ran.code(), Some(1 | 2)), "{said}");
    }
}
