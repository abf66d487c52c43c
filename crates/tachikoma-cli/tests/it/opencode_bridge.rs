//! Runs `opencode-bridge` as a process, with a fake OpenCode server. A resumed conversation reports only its own turn.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use serde_json::{Value, json};
use tachikoma_testkit::await_until;

use crate::live_support::{BIN, SOON};
use crate::opencode::{Bed, kill_server};
use crate::opencode_agent::{Books as _, Fake, HELD, fake};

/// How long the test waits for late events of a turn.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running `tachikoma opencode-bridge`, which the test started in place of a runner.
struct Bridge {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<Value>,
}

impl Drop for Bridge {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Bridge {
    fn start(bed: &Bed, url: &str, more: &[&str]) -> Self {
        Self::at(bed, &["--url", url], more)
    }

    fn at(bed: &Bed, server: &[&str], more: &[&str]) -> Self {
        let dir = bed.scratch.path();
        let mut child = Command::new(BIN)
            .arg("opencode-bridge")
            .args(server)
            .arg("--directory")
            .arg(&dir)
            .args(["--permission", "safe"])
            .args(more)
            .current_dir(&dir)
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let output = child.stdout.take().expect("a pipe");
        let (sender, lines) = channel();
        // The thread ends when the bridge closes its output.
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let line = serde_json::from_str(&line).unwrap_or_default();
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let input = child.stdin.take();
        Self {
            child,
            input,
            lines,
        }
    }

    fn order(&mut self, order: &Value) {
        let input = self.input.as_mut().expect("stdin of the bridge is open");
        writeln!(input, "{order}").expect("the bridge reads its stdin");
    }

    fn prompt(&mut self, iteration: u32) {
        self.order(&json!({"order": "prompt", "text": "do it", "iteration": iteration}));
    }

    /// Returns the output lines up to and including one of the given type.
    #[track_caller]
    fn until(&self, kind: &str) -> Vec<Value> {
        let mut said = Vec::new();
        loop {
            let Ok(line) = self.lines.recv_timeout(PATIENCE) else {
                panic!("timed out waiting for {kind}: {said:?}");
            };
            let found = line["type"] == kind;
            said.push(line);
            if found {
                return said;
            }
        }
    }

    #[track_caller]
    fn session(&self) -> String {
        let said = self.until("tachikoma.session");
        let session = said.last().expect("the bridge printed the line");
        session["properties"]["id"]
            .as_str()
            .expect("an id")
            .to_owned()
    }

    /// Returns the remaining output and the exit code.
    #[track_caller]
    fn ended(mut self) -> (Vec<Value>, Option<i32>) {
        let mut said = Vec::new();
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => said.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("it does not end: {said:?}"),
            }
        }
        let status = self.child.wait().expect("the test started this process");
        (said, status.code())
    }
}

fn texts(said: &[Value]) -> Vec<String> {
    let parts = said.iter().map(|line| &line["properties"]["part"]);
    let texts = parts.filter(|part| part["type"] == "text");
    texts
        .map(|part| part["text"].as_str().unwrap_or_default().to_owned())
        .collect()
}

fn kinds(said: &[Value]) -> Vec<&str> {
    said.iter()
        .map(|line| line["type"].as_str().unwrap_or_default())
        .collect()
}

/// Sends a request to a server without authentication.
fn post(url: &str, path: &str, body: &Value) -> Value {
    let host = url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(host).expect("it listens");
    let body = body.to_string();
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    let body = answer.split_once("\r\n\r\n").expect("a body").1;
    serde_json::from_str(body).unwrap_or_default()
}

fn held(bed: &Bed, times: usize) {
    let path = bed.scratch.path().join("started");
    await_until("a tool that runs", SOON, || {
        fs::read_to_string(&path)
            .unwrap_or_default()
            .lines()
            .count()
            >= times
    });
}

fn bed(script: &Value) -> (Bed, Fake, String) {
    let bed = Bed::new(script, "");
    let (server, url) = fake(&bed, None);
    (bed, server, url)
}

#[test]
fn a_conversation_without_messages_is_resumed() {
    let (bed, _server, url) = bed(&json!({}));
    let session = post(&url, "/session", &json!({}));
    let id = session["id"].as_str().expect("an id");
    let mut bridge = Bridge::start(&bed, &url, &["--resume", id]);
    bridge.prompt(1);
    assert_eq!(texts(&bridge.until("session.idle")), ["Done."]);
    assert_eq!(bed.turns("prompted").len(), 1);
}

#[test]
fn an_invalid_list_of_messages_counts_as_empty() {
    for answer in ["null", "{}", "[null]", "\"\""] {
        let (bed, _server, url) = bed(&json!({"always": {"messages": answer}}));
        let session = post(&url, "/session", &json!({}));
        let id = session["id"].as_str().expect("an id");
        let mut bridge = Bridge::start(&bed, &url, &["--resume", id]);
        bridge.prompt(1);
        bridge.until("tachikoma.prompted");
        bridge.order(&json!({"order": "interrupt"}));
        bridge.until("session.idle");
    }
}

#[test]
fn a_resumed_live_turn_is_read_to_its_end_with_one_prompt() {
    let (bed, _server, url) = bed(&json!({"turn": {"command": HELD}}));
    let mut first = Bridge::start(&bed, &url, &[]);
    first.prompt(1);
    let session = first.session();
    held(&bed, 1);
    first.child.kill().expect("the test started this process");
    drop(first);
    let mut second = Bridge::start(&bed, &url, &["--resume", &session]);
    second.prompt(1);
    let prompted = second.until("tachikoma.prompted");
    assert_eq!(prompted.last().unwrap()["properties"]["again"], true);
    held(&bed, 2);
    bed.scratch.write("go", "");
    let said = second.until("session.idle");
    assert_eq!(texts(&said), ["Done."], "{:?}", kinds(&said));
    assert!(!kinds(&said).contains(&"session.error"), "{said:?}");
    assert_eq!(
        (bed.turns("aborted").len(), bed.turns("ended").len()),
        (1, 1)
    );
    assert_eq!(bed.prompts(), 1);
}

#[test]
fn the_rest_of_an_interrupted_turn_does_not_end_the_next_one() {
    let (bed, _server, url) = bed(&json!({"turn": {"command": HELD}}));
    let mut bridge = Bridge::start(&bed, &url, &[]);
    bridge.prompt(1);
    held(&bed, 1);
    bridge.order(&json!({"order": "interrupt"}));
    let said = bridge.until("session.idle");
    assert!(kinds(&said).contains(&"session.error"), "{said:?}");
    bridge.prompt(2);
    bridge.until("tachikoma.prompted");
    held(&bed, 2);
    bed.scratch.write("go", "");
    assert_eq!(texts(&bridge.until("session.idle")), ["Done."]);
}

#[test]
fn a_turn_aborted_by_another_client_is_repeated() {
    let (bed, _server, url) = bed(&json!({"turn": {"command": HELD}}));
    let mut bridge = Bridge::start(&bed, &url, &[]);
    bridge.prompt(1);
    let session = bridge.session();
    held(&bed, 1);
    post(&url, "/global/dispose", &json!({}));
    let (said, code) = bridge.ended();
    assert_eq!(code, Some(3), "{said:?}");
    assert!(!kinds(&said).contains(&"session.idle"), "{said:?}");
    assert!(!kinds(&said).contains(&"session.error"), "{said:?}");
    bed.scratch.write("go", "");
    let mut next = Bridge::start(&bed, &url, &["--resume", &session]);
    next.prompt(1);
    assert_eq!(texts(&next.until("session.idle")), ["Done."]);
    assert_eq!(bed.prompts(), 1);
}

#[test]
fn a_bridge_that_ends_aborts_its_turn() {
    let (bed, _server, url) = bed(&json!({"turn": {"command": HELD}}));
    let mut bridge = Bridge::start(&bed, &url, &[]);
    let session = bridge.session();
    // Another client started this turn.
    let body = json!({"parts": [{"type": "text", "text": "x"}]});
    post(&url, &format!("/session/{session}/prompt_async"), &body);
    held(&bed, 1);
    bridge.input = None;
    assert_eq!(bridge.ended().1, Some(0));
    assert_eq!(bed.turns("aborted").len(), 1);
}

#[test]
fn the_text_of_a_compaction_is_not_agent_output() {
    let (bed, _server, url) = bed(&json!({"turn": {"tools": 2, "compacts": true}}));
    let mut bridge = Bridge::start(&bed, &url, &[]);
    bridge.prompt(1);
    let said = bridge.until("session.idle");
    assert_eq!(texts(&said), ["Done."]);
    assert!(kinds(&said).contains(&"session.compacted"), "{said:?}");
}

#[test]
fn a_sub_agent_with_a_missed_start_event_gets_its_answer() {
    let script = json!({"turn": {"child_asks": true}, "always": {"cuts_births": true}});
    let (bed, _server, url) = bed(&script);
    let mut bridge = Bridge::start(&bed, &url, &[]);
    bridge.prompt(1);
    assert_eq!(texts(&bridge.until("session.idle")), ["Done."]);
    assert_eq!(bed.turns("ended").len(), 1);
}

/// Script of a server with a clock that jumps forward at its second prompt, and that skips prompts with an id before the last answer.
fn stepped() -> Value {
    json!({"clock_step": [1, 3_600_000], "skips_older_prompts": true})
}

#[test]
fn prompts_after_a_clock_jump_are_answered_and_not_matched_with_an_earlier_answer() {
    let (bed, _server, url) = bed(&json!({"always": stepped()}));
    let mut bridge = Bridge::start(&bed, &url, &[]);
    for number in 1..=4 {
        bridge.prompt(number);
        assert_eq!(texts(&bridge.until("session.idle")), ["Done."], "{number}");
    }
    assert_eq!(bed.turns("skipped"), Vec::<String>::new());
    assert_eq!(bed.turns("ended").len(), 4);
}

/// The server accepted the prompt and died before it answered. The prompt's id is older than the answer before it.
#[test]
fn a_prompt_without_an_answer_is_not_matched_with_the_answer_before_it() {
    let (bed, _server, url) = bed(&json!({}));
    let mut first = Bridge::start(&bed, &url, &[]);
    let session = first.session();
    first.prompt(1);
    first.until("session.idle");
    first.input = None;
    assert_eq!(first.ended().1, Some(0));
    let id = "msg_000000000001aaaaaaaaaaaaaa";
    let mark = json!({"tachikoma": {"iteration": 2, "prompt": id}});
    let part = json!({"type": "text", "text": "do it", "metadata": mark});
    let body = json!({"messageID": id, "noReply": true, "parts": [part]});
    post(&url, &format!("/session/{session}/message"), &body);
    let mut second = Bridge::start(&bed, &url, &["--resume", &session]);
    second.prompt(2);
    let prompted = second.until("tachikoma.prompted");
    assert_eq!(prompted.last().unwrap()["properties"]["again"], true);
    assert_eq!(texts(&second.until("session.idle")), ["Done."]);
    assert_eq!(bed.turns("ended").len(), 2);
}

/// The supervised server has died, and another process listens at its port. The supervisor has not noticed it yet.
#[test]
fn a_password_is_not_sent_to_another_process_at_the_address_of_a_supervised_server() {
    let bed = Bed::new(&json!({}), "");
    let thief = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = thief.local_addr().expect("bound").port();
    let mut server = Command::new("cat")
        .stdin(Stdio::piped())
        .spawn()
        .expect("a process");
    let dir = ".ralph/opencode";
    let file = json!({
        "state": "ready", "url": format!("http://127.0.0.1:{port}"), "pid": server.id(), "generation": 1,
    });
    bed.scratch
        .write(format!("{dir}/server.json"), file.to_string());
    let login = json!({"user": "opencode", "password": "correct horse"});
    bed.scratch
        .write(format!("{dir}/login.json"), login.to_string());
    let lock = bed.scratch.write(format!("{dir}/lock"), "");
    let lock = fs::File::open(lock).expect("the server file exists");
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("the port is free");
    let dir = bed.scratch.path().join(dir);
    let bridge = Bridge::at(&bed, &["--supervised", dir.to_str().expect("text")], &[]);
    let said = bridge.until("tachikoma.waiting");
    let why = said.last().expect("the bridge printed the error")["properties"]["why"].to_string();
    assert!(
        why.contains("another process of yours has the port, so no password is sent"),
        "{why}"
    );
    thief.set_nonblocking(true).expect("a socket");
    assert!(
        thief.accept().is_err(),
        "nothing was sent to the other process"
    );
    drop(bridge);
    drop(server.stdin.take());
    server.wait().expect("the test started this process");
}

/// A hand-off request is not part of an iteration, so the loop does not repeat it, and the bridge has to.
#[test]
fn a_hand_off_request_is_repeated_in_the_same_conversation_after_the_server_dies() {
    let bed = Bed::new(&json!({"turn": {"command": HELD}}), "restart_delay_ms = 0");
    let up = bed.up();
    let first = bed.await_ready(1);
    let dir = bed.scratch.path().join(".ralph/opencode");
    let server = ["--supervised", dir.to_str().expect("text")];
    let mut bridge = Bridge::at(&bed, &server, &[]);
    let session = bridge.session();
    bridge.order(&json!({"order": "prompt", "text": "hand off", "iteration": null}));
    held(&bed, 1);
    kill_server(&first);
    assert_eq!(bridge.session(), session);
    bridge.until("tachikoma.prompted");
    bed.scratch.write("go", "");
    assert_eq!(texts(&bridge.until("session.idle")), ["Done."]);
    drop(bridge);
    assert_eq!(bed.tool().run(["opencode", "stop"]).code(), Some(0));
    up.wait(SOON);
}
