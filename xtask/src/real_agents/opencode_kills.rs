//! Kills the real OpenCode server during tool calls while a loop uses it. Measures how soon the model gets a request again,
//! compared to the minimum: a plain server and a client that knows the conversation.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::json;
use tachikoma_testkit::{Kind, Request, Scenario, ScriptedModel, Turn, await_until};

use super::ground::{Ground, Programs};
use super::isolation;
use super::looping::{LIMIT_REACHED, event_names, names, of_type, outcomes};
use super::opencode::{kill_server, start};
use super::opencode_environment::surround;
use super::{Row, USUAL};

pub const CHECKS: &[Row] = &[Row("opencode-kills", sample, USUAL)];

/// Number of kills in the check that every change has to pass.
const SAMPLE: u32 = 2;

/// Number of measurements of the plain server.
const BARE_ROUNDS: usize = 3;

fn sample(ground: &Ground) -> String {
    kill(ground, SAMPLE)
}

/// Kills the server this many times, and returns a summary.
pub fn soak(programs: &Programs, kills: u32) -> String {
    let ground = Ground::new(programs, USUAL * 4);
    let saw = kill(&ground, kills);
    assert_eq!(isolation::clear_away(), Vec::<String>::new());
    saw
}

fn kill(ground: &Ground, kills: u32) -> String {
    // The answer to each prompt is a slow tool call that writes a mark, and then a text.
    let model = ScriptedModel::reacting(Scenario::default(), |request: &Request| {
        let messages = request.body["messages"].as_array();
        let last = messages.and_then(|all| all.last());
        let behind_a_tool = last.is_some_and(|last| last["role"] == "tool");
        (request.kind == Kind::Main && !behind_a_tool)
            .then(|| Turn::bash("echo x >> begun; sleep 2; echo x >> ended"))
    });
    let settings = [("OPENCODE__MAX_RESTART_ATTEMPTS", "0")];
    let iterations = kills + 1;
    let looping = start(ground, &model, &settings, iterations);
    let lines = |name: &str| {
        let text = std::fs::read_to_string(ground.scratch.path().join(name));
        text.unwrap_or_default().lines().count()
    };
    let asked = || model.asked_for(Kind::Main).len();
    let mut ours = Vec::new();
    for kill in 1..=kills {
        await_until("a tool", ground.patience, || {
            lines("begun") >= kill as usize
        });
        let before = asked();
        kill_server(ground);
        let died = Instant::now();
        await_until("the next request", ground.patience, || asked() > before);
        ours.push(died.elapsed());
    }
    let events = looping.ended(LIMIT_REACHED);
    let expected = vec!["succeeded"; iterations as usize];
    assert_eq!(outcomes(&events), expected, "{}", event_names(&events));
    let cut = of_type(&events, "attempt_cut").len();
    assert_eq!(cut, kills as usize, "{}", event_names(&events));
    let names = names(&events);
    assert_eq!(names.len(), 1, "one conversation");
    let last = model.asked_for(Kind::Main).pop().expect("a request");
    assert_eq!(last.prompts, iterations as usize, "each prompt once");
    assert_eq!(lines("ended"), 1, "no tool of a dead server went on");
    let bare = (0..BARE_ROUNDS).map(|_| bare(ground, &model, names[0]));
    let bare = median(bare.collect());
    let ours = median(ours);
    let more = (ours.as_secs_f64() - bare.as_secs_f64()) * 1e3;
    format!(
        "{kills} kills: the model was asked again after {ours:.1?}, of which {bare:.1?} are a bare server's and {more:.0} ms ours"
    )
}

/// Measures the minimum: the server starts, gets a prompt in the conversation, and sends a request to its model.
fn bare(ground: &Ground, model: &ScriptedModel, session: &str) -> Duration {
    let before = model.asked_for(Kind::Main).len();
    let mut command = ground.surrounded(&ground.programs().opencode, model);
    surround(&mut command, ground, model);
    command
        .args(["serve", "--port", "0", "--hostname", "127.0.0.1"])
        .env("OPENCODE_DISABLE_AUTOUPDATE", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let began = Instant::now();
    let mut server = command.spawn().expect("it starts");
    let said = BufReader::new(server.stdout.take().expect("it is a pipe"));
    let mut lines = said.lines().map_while(Result::ok);
    let address = lines.find_map(|line| {
        line.split_once("listening on http://")
            .map(|(_, at)| at.to_owned())
    });
    let address = address.expect("it says where it listens");
    let body = json!({"parts": [{"type": "text", "text": "once more"}]}).to_string();
    let mut stream = TcpStream::connect(address.trim()).expect("it listens");
    let length = body.len();
    write!(
        stream,
        "POST /session/{session}/prompt_async HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
    .expect("it listens");
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).expect("it answers");
    assert_eq!(&answer, b"HTTP/1.1 204", "it took the prompt");
    await_until("the bare one's request", ground.patience, || {
        model.asked_for(Kind::Main).len() > before
    });
    let took = began.elapsed();
    server.kill().expect("the test started this process");
    server.wait().expect("it ends");
    // The tool of the killed server is ended here.
    isolation::clear_away();
    took
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
