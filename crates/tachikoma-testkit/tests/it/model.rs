//! Tests of the scripted model over a socket.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};
use tachikoma_testkit::{
    Fault, Kind, Listening, Scenario, Scratch, ScriptedModel, Turn, Usage, await_until,
};

use crate::support::SOON;

/// A client that has sent a request.
struct Client(TcpStream);

impl Client {
    fn send(model: &ScriptedModel, path: &str, body: &Value) -> Self {
        let body = body.to_string();
        let mut stream = TcpStream::connect(model.address()).expect("it listens");
        stream.set_read_timeout(Some(SOON)).expect("a good socket");
        let length = body.len();
        let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("it reads");
        stream.write_all(body.as_bytes()).expect("it reads");
        Self(stream)
    }

    /// Reads the whole response, to the end of the connection.
    fn response(mut self) -> io::Result<String> {
        let mut bytes = Vec::new();
        self.0.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Reads the response up to a text, for a connection that stays open.
    fn beginning(&mut self, until: &str) -> String {
        let mut text = String::new();
        while !text.contains(until) {
            let mut byte = [0; 1];
            self.0.read_exact(&mut byte).expect("there is more");
            text.push(char::from(byte[0]));
        }
        text
    }
}

fn conversation(words: &str, tool_results: usize) -> Value {
    let mut messages = vec![json!({"role": "user", "content": words})];
    for _ in 0..tool_results {
        messages.push(json!({"role": "assistant", "content": []}));
        let result = json!({"type": "tool_result", "tool_use_id": "t", "content": "ok"});
        messages.push(json!({"role": "user", "content": [result]}));
    }
    json!({"model": "m", "stream": true, "tools": [{"name": "Bash"}], "messages": messages})
}

fn ask(model: &ScriptedModel, body: &Value) -> io::Result<String> {
    Client::send(model, "/v1/messages?beta=true", body).response()
}

/// Returns the data of the stream's events, by name.
fn events(response: &str) -> Vec<(String, Value)> {
    let mut events = Vec::new();
    let mut name = String::new();
    for line in response.lines() {
        if let Some(found) = line.strip_prefix("event: ") {
            name = found.to_owned();
        } else if let Some(data) = line.strip_prefix("data: ") {
            let data = serde_json::from_str(data).expect("an event has data");
            events.push((name.clone(), data));
        }
    }
    events
}

fn names(response: &str) -> Vec<String> {
    events(response).into_iter().map(|(name, _)| name).collect()
}

#[test]
fn a_turn_is_streamed_like_the_api() {
    let turn = Turn::text("hello there").thinking("hm").in_pieces(6, 0);
    let model = ScriptedModel::start(Scenario::of([turn]));
    let response = ask(&model, &conversation("hi", 0)).expect("a whole response");
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
    assert!(
        response.ends_with("\r\n0\r\n\r\n"),
        "the stream has its end"
    );
    let expected = "message_start ping content_block_start content_block_delta content_block_delta \
                    content_block_stop content_block_start content_block_delta content_block_delta \
                    content_block_stop message_delta message_stop";
    assert_eq!(names(&response).join(" "), expected);
}

#[test]
fn response_without_streaming_is_one_message() {
    let turn = Turn::bash("ls").saying("looking");
    let model = ScriptedModel::start(Scenario::of([turn]));
    let mut body = conversation("hi", 0);
    body["stream"] = false.into();
    let response = ask(&model, &body).expect("a whole response");
    let (_, body) = response.split_once("\r\n\r\n").expect("a body");
    let message: Value = serde_json::from_str(body).expect("JSON");
    assert_eq!(message["content"][1]["input"]["command"], "ls");
    assert_eq!(message["stop_reason"], "tool_use");
    assert_eq!(message["usage"]["cache_read_input_tokens"], 9_000);
}

#[test]
fn scenario_turns_answer_only_requests_of_the_main_conversation() {
    let scenario = Scenario::of([Turn::text("first"), Turn::text("second")]);
    let model = ScriptedModel::start(scenario);
    let mut errand = conversation("a title", 0);
    errand["tools"] = json!([]);
    let compaction = conversation("Your task is to create a detailed summary of all this", 0);
    let said = |body: &Value| ask(&model, body).expect("a whole response");
    assert!(said(&conversation("go", 0)).contains("first"));
    assert!(said(&errand).contains("An errand"));
    assert!(said(&compaction).contains("<summary>"));
    assert!(said(&conversation("go", 1)).contains("second"));
    let kinds: Vec<Kind> = model.asked().iter().map(|asked| asked.kind).collect();
    let expected = [Kind::Main, Kind::Helper, Kind::Compaction, Kind::Main];
    assert_eq!(kinds, expected);
}

#[test]
fn a_subagent_is_recognized_by_its_prompt_and_has_its_own_turns() {
    let agent = Turn::tool("Agent", json!({"prompt": "count the beans"}));
    let scenario =
        Scenario::of([agent, Turn::text("main again")]).with_subagent([Turn::text("seven beans")]);
    let model = ScriptedModel::start(scenario);
    let said = |words: &str, results| {
        ask(&model, &conversation(words, results)).expect("a whole response")
    };
    assert!(said("go", 0).contains("tool_use"));
    assert!(said("count the beans", 0).contains("seven beans"));
    assert!(said("go", 1).contains("main again"));
    assert_eq!(model.asked_for(Kind::Subagent).len(), 1);
}

#[test]
fn the_log_has_the_tokens_of_the_answers() {
    let scratch = Scratch::new();
    let log = scratch.path().join("log.jsonl");
    let usage = Usage::cached(20_000).growing_by(1_500);
    let scenario = Scenario::of([Turn::text("on it").using(usage)]).for_ever();
    let listening = Listening {
        log: Some(log),
        ..Listening::default()
    };
    let model = ScriptedModel::listening(scenario, &listening).expect("a port");
    for results in [0, 2, 100] {
        let response = ask(&model, &conversation("go", results)).expect("a whole response");
        let events = events(&response);
        let tokens = |usage: &Value| usage["cache_read_input_tokens"].as_u64();
        let sent = tokens(&events[0].1["message"]["usage"]);
        assert_eq!(sent, Some(20_000 + 1_500 * results as u64));
        let asked = model.asked().pop().expect("it was logged");
        assert_eq!(asked.usage.map(|usage| usage.cache_read), sent);
        assert_eq!(
            (asked.tool_results, asked.last_user.as_str()),
            (results as u64, if results == 0 { "go" } else { "" })
        );
    }
    let lines = scratch.read("log.jsonl");
    let written: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(written.len(), 3);
    assert_eq!(written[2]["usage"]["cache_read"], 170_000);
}

#[test]
fn a_turn_can_be_computed_from_the_request() {
    let scenario = Scenario::of([Turn::text("scripted")]);
    let model = ScriptedModel::reacting(scenario, |request| {
        let tokens = 1_000 * request.messages as u64;
        let answer = Turn::text(format!("echo: {}", request.last_user));
        request
            .last_user
            .contains("echo")
            .then(|| answer.using(Usage::cached(tokens)))
    });
    let said = |words: &str| ask(&model, &conversation(words, 0)).expect("a whole response");
    assert!(said("please echo").contains("echo: please echo"));
    assert!(said("go").contains("scripted"));
    let reported: Vec<u64> = model
        .asked()
        .iter()
        .filter_map(|asked| asked.usage.map(|usage| usage.cache_read))
        .collect();
    assert_eq!(reported, [1_000, 9_000]);
}

#[test]
fn a_rule_answers_its_words_and_uses_no_turn() {
    let scenario = Scenario::of([Turn::text("first")]).when("wrap up", Turn::text("wrapped"));
    let model = ScriptedModel::start(scenario);
    let said = |words: &str| ask(&model, &conversation(words, 0)).expect("a whole response");
    assert!(said("now wrap up").contains("wrapped"));
    assert!(said("go").contains("first"));
}

#[test]
fn failed_turn_is_sent_with_its_status_body_and_headers() {
    let turn = Turn::status(429, "rate_limit_error", "slow down").header("retry-after", "3600");
    let model = ScriptedModel::start(Scenario::of([turn]));
    let response = ask(&model, &conversation("go", 0)).expect("a whole response");
    assert!(response.starts_with("HTTP/1.1 429 "), "{response}");
    assert!(response.contains("retry-after: 3600\r\n"), "{response}");
    assert!(
        response.contains(r#""type":"rate_limit_error""#),
        "{response}"
    );
    let asked = model.asked();
    assert_eq!(
        (asked[0].answer.as_str(), asked[0].usage),
        ("status 429", None)
    );
}

#[test]
fn streams_fail_as_requested() {
    let scenario = Scenario::of([
        Turn::fault(Fault::Cut { after: 3 }),
        Turn::fault(Fault::EmptyStream),
        Turn::fault(Fault::Html),
        Turn::fault(Fault::ErrorEvent {
            after: 2,
            error: "overloaded_error".into(),
        }),
        Turn::fault(Fault::Reset),
    ]);
    let model = ScriptedModel::start(scenario);
    let next = || ask(&model, &conversation("go", 0));
    let cut = next().expect("what came before the cut");
    assert_eq!(
        names(&cut).join(" "),
        "message_start ping content_block_start"
    );
    assert!(!cut.ends_with("\r\n0\r\n\r\n"), "a cut stream has no end");
    let empty = next().expect("a whole response");
    assert!(empty.ends_with("\r\n\r\n0\r\n\r\n"), "{empty}");
    assert!(next().expect("a page").contains("text/html"));
    let error = next().expect("a whole response");
    assert_eq!(names(&error).join(" "), "message_start ping error");
    let reset = next().expect_err("the connection is reset");
    assert_eq!(reset.kind(), io::ErrorKind::ConnectionReset);
    let logged: Vec<bool> = model
        .asked()
        .iter()
        .map(|asked| asked.usage.is_some())
        .collect();
    assert_eq!(logged, [true, false, false, true, false]);
}

#[test]
fn hanging_connections_end_with_the_model() {
    let scenario = Scenario::of([
        Turn::fault(Fault::NoAnswer),
        Turn::fault(Fault::Silence { after: 1 }),
        Turn::fault(Fault::Pings {
            after: 1,
            every_ms: 5,
        }),
        Turn {
            delay_ms: 3_600_000,
            ..Turn::text("much later")
        },
    ]);
    let model = ScriptedModel::start(scenario);
    let mut clients = Vec::new();
    for number in 1..=4 {
        // The requests are sent one after the other, so that each gets its own turn.
        clients.push(Client::send(&model, "/v1/messages", &conversation("go", 0)));
        await_until("the request", SOON, || model.asked().len() == number);
    }
    clients[1].beginning("message_start\ndata");
    clients[2].beginning("event: ping\ndata: {\"type\":\"ping\"}\n\n");
    // A connection without a request must not block the shutdown either.
    let idle = TcpStream::connect(model.address()).expect("it listens");
    drop(model);
    let ends: Vec<bool> = clients
        .into_iter()
        .map(|client| {
            client
                .response()
                .is_ok_and(|text| text.ends_with("\r\n0\r\n\r\n"))
        })
        .collect();
    assert_eq!(ends, [false; 4], "no connection got a complete answer");
    drop(idle);
}

#[test]
fn model_answers_token_counts_and_rejects_unknown_paths() {
    let model = ScriptedModel::start(Scenario::default());
    let count = Client::send(&model, "/v1/messages/count_tokens", &conversation("go", 0));
    assert!(count.response().expect("a count").contains("input_tokens"));
    let mut head = TcpStream::connect(model.address()).expect("it listens");
    head.write_all(b"HEAD / HTTP/1.1\r\n\r\n")
        .expect("it reads");
    let mut answer = String::new();
    head.read_to_string(&mut answer).expect("a whole response");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let other = Client::send(&model, "/v1/files", &json!({})).response();
    assert!(other.expect("a refusal").starts_with("HTTP/1.1 404 "));
    let kinds: Vec<Kind> = model.asked().iter().map(|asked| asked.kind).collect();
    assert_eq!(kinds, [Kind::CountTokens]);
}

#[test]
fn too_large_requests_are_rejected_before_they_are_read() {
    let model = ScriptedModel::start(Scenario::default());
    let mut stream = TcpStream::connect(model.address()).expect("it listens");
    let head = b"POST /v1/messages HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n";
    stream.write_all(head).expect("it reads");
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .expect("a whole response");
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(answer.contains("the body is too large"), "{answer}");
}

#[test]
fn connections_beyond_the_limit_are_rejected() {
    let model = ScriptedModel::start(Scenario::of([Turn::fault(Fault::NoAnswer)]).for_ever());
    let waiting: Vec<Client> = (0..64)
        .map(|_| Client::send(&model, "/v1/messages", &conversation("go", 0)))
        .collect();
    await_until("all of them", SOON, || model.asked().len() == 64);
    let mut one_more = TcpStream::connect(model.address()).expect("it listens");
    one_more
        .set_read_timeout(Some(Duration::from_secs(10)))
        .expect("a good socket");
    let mut answer = String::new();
    one_more
        .read_to_string(&mut answer)
        .expect("a whole response");
    assert!(answer.contains("too many connections"), "{answer}");
    drop(model);
    drop(waiting);
}

#[test]
#[should_panic(expected = "a thread of the scripted model panicked")]
fn a_reaction_that_panics_fails_the_test() {
    let model = ScriptedModel::reacting(Scenario::default(), |_| panic!("an assertion"));
    let answered = ask(&model, &conversation("go", 0)).expect("the connection is closed");
    assert_eq!(answered, "");
    drop(model);
}
