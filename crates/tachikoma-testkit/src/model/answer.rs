//! Sends the answer of one scripted turn to the client, or fails in the way that the turn configures.

use std::collections::BTreeMap;
use std::io;
use std::net::TcpStream;
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use serde_json::json;

use super::http;
use super::message::StreamEvent;
use super::request::{Dialect, Request};
use super::stop::Stop;
use super::{completions, message};
use crate::scenario::{Fault, Turn, Usage};

/// Returns what the log contains about a turn: a word for the answer, and the tokens that the client gets.
pub(super) fn account(turn: &Turn) -> (String, Option<Usage>) {
    let started = |after: usize| (after > 0).then_some(turn.usage);
    match &turn.fault {
        None => ("message".into(), Some(turn.usage)),
        Some(Fault::Status { status, .. }) => (format!("status {status}"), None),
        Some(Fault::NoAnswer) => ("no_answer".into(), None),
        Some(Fault::Silence { after }) => ("silence".into(), started(*after)),
        Some(Fault::Pings { after, .. }) => ("pings".into(), started(*after)),
        Some(Fault::Cut { after }) => ("cut".into(), started(*after)),
        Some(Fault::ErrorEvent { after, .. }) => ("error_event".into(), started(*after)),
        Some(Fault::Reset) => ("reset".into(), None),
        Some(Fault::Closed) => ("closed".into(), None),
        Some(Fault::EmptyStream) => ("empty_stream".into(), None),
        Some(Fault::Html) => ("html".into(), None),
    }
}

/// What follows after the sent part of an incomplete stream.
enum Rest<'a> {
    Silence,
    Pings(Duration),
    Cut,
    Error(&'a str),
}

/// Sends the answer. An error means that the client has closed the connection.
pub(super) fn answer(
    stream: &mut TcpStream,
    request: &Request,
    turn: &Turn,
    number: u64,
    stop: &Stop,
) -> io::Result<()> {
    if stop.pause(Duration::from_millis(turn.delay_ms)) {
        return Ok(());
    }
    let mut headers = turn.headers.clone();
    headers.insert("request-id".into(), format!("req_{number}"));
    let id = format!("msg_{number:020}");
    let partial = |after: usize, rest| (after, Some(rest));
    let (after, rest) = match &turn.fault {
        None if !request.stream => {
            let body = match request.dialect {
                Dialect::Messages => message::message(turn, &id, &request.model),
                Dialect::Completions => completions::message(turn, &id, &request.model),
            };
            let body = body.to_string();
            return http::respond(stream, 200, "application/json", &headers, body.as_bytes());
        }
        None => (usize::MAX, None),
        Some(Fault::Status {
            status,
            error,
            message,
        }) => return refuse(stream, *status, error, message, &headers),
        Some(Fault::NoAnswer) => {
            stop.wait();
            return Ok(());
        }
        Some(Fault::Reset) => {
            // Closing the socket without lingering resets the connection.
            set_socket_linger(&*stream, Some(Duration::ZERO))?;
            return Ok(());
        }
        Some(Fault::Closed) => return Ok(()),
        Some(Fault::EmptyStream) => {
            http::start_stream(stream, &headers)?;
            return http::send_piece(stream, "");
        }
        Some(Fault::Html) => {
            let page = b"<!doctype html><title>Sign in</title><p>The network wants you to sign in.";
            return http::respond(stream, 200, "text/html", &headers, page);
        }
        Some(Fault::Silence { after }) => partial(*after, Rest::Silence),
        Some(Fault::Cut { after }) => partial(*after, Rest::Cut),
        Some(Fault::ErrorEvent { after, error }) => partial(*after, Rest::Error(error)),
        Some(Fault::Pings { after, every_ms }) => {
            // Without a minimum pause this would use a whole CPU core.
            let every = Duration::from_millis((*every_ms).max(1));
            partial(*after, Rest::Pings(every))
        }
    };

    http::start_stream(stream, &headers)?;
    let pause = Duration::from_millis(turn.chunk_delay_ms);
    let events = match request.dialect {
        Dialect::Messages => message::events(turn, &id, &request.model),
        Dialect::Completions => completions::events(turn, &id, &request.model),
    };
    let send = |stream: &mut TcpStream, event: &StreamEvent| send(stream, request.dialect, event);
    for event in events.into_iter().take(after) {
        send(stream, &event)?;
        if event.name == "content_block_delta" && stop.pause(pause) {
            return Ok(());
        }
    }
    match rest {
        None => {
            if request.dialect == Dialect::Completions {
                http::send_piece(stream, "data: [DONE]\n\n")?;
            }
            http::send_piece(stream, "")
        }
        Some(Rest::Cut) => Ok(()),
        Some(Rest::Silence) => {
            stop.wait();
            Ok(())
        }
        Some(Rest::Pings(every)) => {
            while !stop.pause(every) {
                let data = json!({"type": "ping"});
                send(stream, &StreamEvent { name: "ping", data })?;
            }
            Ok(())
        }
        Some(Rest::Error(error)) => {
            let data = json!({"type": "error", "error": {"type": error, "message": "scripted"}});
            send(
                stream,
                &StreamEvent {
                    name: "error",
                    data,
                },
            )?;
            http::send_piece(stream, "")
        }
    }
}

fn send(stream: &mut TcpStream, dialect: Dialect, event: &StreamEvent) -> io::Result<()> {
    let StreamEvent { name, data } = event;
    let piece = match (dialect, *name) {
        (Dialect::Messages, name) => format!("event: {name}\ndata: {data}\n\n"),
        (Dialect::Completions, "ping") => ": ping\n\n".to_owned(),
        (Dialect::Completions, _) => format!("data: {data}\n\n"),
    };
    http::send_piece(stream, &piece)
}

/// Returns an error in the format of the API.
pub(super) fn refuse(
    stream: &mut TcpStream,
    status: u16,
    error: &str,
    message: &str,
    headers: &BTreeMap<String, String>,
) -> io::Result<()> {
    let body = json!({"type": "error", "error": {"type": error, "message": message}}).to_string();
    http::respond(stream, status, "application/json", headers, body.as_bytes())
}
