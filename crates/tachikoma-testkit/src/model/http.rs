//! A minimal HTTP server for the scripted model: one request per connection, with size limits.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

/// Maximum size of the headers in bytes. Real requests have a few KiB.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Maximum size of a body in bytes. A full window of a million tokens is about 4 MiB of text, plus JSON.
const BODY_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Timeout for a request. A local client sends its request at once.
const PATIENCE: Duration = Duration::from_secs(30);

/// A received HTTP request.
#[derive(Debug)]
pub(crate) struct Raw {
    pub method: String,
    /// Path of the request, without the query.
    pub path: String,
    /// Query of the request.
    pub query: String,
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

/// Reads one request. `None` if the client sent nothing.
pub(crate) fn read(stream: &mut TcpStream) -> io::Result<Option<Raw>> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end;
        }
        if bytes.len() > HEAD_BYTES_MAX {
            return Err(invalid("the headers do not end"));
        }
        if fill(stream, &mut bytes)? == 0 {
            return if bytes.is_empty() {
                Ok(None)
            } else {
                Err(io::ErrorKind::UnexpectedEof.into())
            };
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut lines = head.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let method = words.next().unwrap_or_default().to_owned();
    let target = words.next().unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let (path, query) = (path.to_owned(), query.to_owned());
    let headers: BTreeMap<String, String> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.trim().to_ascii_lowercase(), value.trim().to_owned()))
        .collect();

    let length = match headers.get("content-length") {
        Some(length) => length.parse().map_err(|_| invalid("content-length"))?,
        None if headers.contains_key("transfer-encoding") => {
            return Err(invalid("a body without its length"));
        }
        None => 0,
    };
    if length > BODY_BYTES_MAX {
        return Err(invalid("the body is too large"));
    }
    let mut body = bytes.split_off(end + 4);
    while body.len() < length {
        if fill(stream, &mut body)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(Some(Raw {
        method,
        path,
        query,
        headers,
        body,
    }))
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn fill(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> io::Result<usize> {
    let mut buffer = [0; 64 * 1024];
    let count = stream.read(&mut buffer)?;
    bytes.extend_from_slice(&buffer[..count]);
    Ok(count)
}

/// Sends a whole response.
pub(crate) fn respond(
    stream: &mut TcpStream,
    status: u16,
    content_type: &str,
    headers: &BTreeMap<String, String>,
    body: &[u8],
) -> io::Result<()> {
    let mut head = head(status, content_type, headers);
    head.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)
}

/// Sends the headers of an event stream.
pub(crate) fn start_stream(
    stream: &mut TcpStream,
    headers: &BTreeMap<String, String>,
) -> io::Result<()> {
    let mut head = head(200, "text/event-stream", headers);
    head.push_str("transfer-encoding: chunked\r\n\r\n");
    stream.write_all(head.as_bytes())
}

/// Sends a chunk of a stream. An empty chunk ends it.
pub(crate) fn send_piece(stream: &mut TcpStream, piece: &str) -> io::Result<()> {
    let framed = format!("{:x}\r\n{piece}\r\n", piece.len());
    stream.write_all(framed.as_bytes())
}

fn head(status: u16, content_type: &str, headers: &BTreeMap<String, String>) -> String {
    let mut head = format!(
        "HTTP/1.1 {status} {}\r\ncontent-type: {content_type}\r\nconnection: close\r\n",
        if status < 400 { "OK" } else { "Error" }
    );
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head
}
