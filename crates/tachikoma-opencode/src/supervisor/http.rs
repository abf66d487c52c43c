//! As much HTTP as a supervisor needs: one short question per connection, bounded in size; whoever asks bounds the time.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use tachikoma_process::{Listener, ListenerError, Owner, verify};

/// What is asked for is a few hundred bytes; a page of HTML is recognised by its beginning.
const ANSWER_BYTES_MAX: usize = 256 * 1024;

/// Whom to ask.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Target {
    /// Host and port.
    pub address: String,
    /// The value of the header that proves who asks.
    pub authorization: Option<String>,
    /// The server's process, once it is known: no other gets the authorization.
    pub server: Option<i32>,
}

/// What was answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub status: u16,
    pub content_type: String,
    pub body: Vec<u8>,
}

/// Without the password.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Target {
    /// Returns the header for a password.
    pub fn authorization(user: &str, password: &str) -> String {
        format!("Basic {}", base64(format!("{user}:{password}").as_bytes()))
    }

    /// Asks in a new connection, and reads the whole answer.
    pub async fn ask(&self, method: &str, path: &str) -> io::Result<Answer> {
        let before = self.address.parse().ok();
        let before = before.map(|address| self.verify(address)).transpose()?;
        let mut stream = TcpStream::connect(&self.address).await?;
        let after = self.verify(stream.peer_addr()?)?;
        // The same socket listened before and after, so it is the one that took the connection.
        if before.is_some_and(|before| before != after) {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let authorization = match &self.authorization {
            Some(value) => format!("authorization: {value}\r\n"),
            None => String::new(),
        };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\naccept: application/json\r\n{authorization}content-length: 0\r\n\
             connection: close\r\n\r\n",
            self.address
        );
        stream.write_all(request.as_bytes()).await?;
        let mut bytes = Vec::new();
        loop {
            if let Some(answer) = parse(&bytes, false)? {
                return Ok(answer);
            }
            if bytes.len() > ANSWER_BYTES_MAX {
                return Err(invalid("the answer is too long"));
            }
            let mut chunk = [0; 8 * 1024];
            let read = stream.read(&mut chunk).await?;
            if read == 0 {
                let cut = || io::Error::from(io::ErrorKind::UnexpectedEof);
                return parse(&bytes, true)?.ok_or_else(cut);
            }
            bytes.extend_from_slice(chunk.get(..read).unwrap_or_default());
        }
    }

    /// Checks that the server listens at an address, where it would be sent a password.
    fn verify(&self, address: SocketAddr) -> io::Result<Vec<Listener>> {
        let server = match (&self.authorization, self.server) {
            (None, _) => return Ok(Vec::new()),
            (Some(_), None) => return Err(io::Error::other("its process is not known yet")),
            (Some(_), Some(server)) => server,
        };
        verify(address, Owner::Server(server)).map_err(|error| {
            let kind = match error {
                ListenerError::None => io::ErrorKind::ConnectionRefused,
                ListenerError::Foreign(_) | ListenerError::Unknown(_) => {
                    io::ErrorKind::PermissionDenied
                }
            };
            io::Error::new(kind, error)
        })
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Returns the answer as soon as it is whole. `ended` says that nothing follows.
fn parse(bytes: &[u8], ended: bool) -> io::Result<Option<Answer>> {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Ok(None);
    };
    let head = String::from_utf8_lossy(bytes.get(..end).unwrap_or_default());
    let body = bytes.get(end + 4..).unwrap_or_default();
    let mut lines = head.split("\r\n");
    let first = lines.next().unwrap_or_default();
    let status = first
        .strip_prefix("HTTP/1.")
        .and_then(|rest| rest.split(' ').nth(1)?.parse().ok())
        .ok_or_else(|| invalid("it does not speak HTTP"))?;
    let mut answer = Answer {
        status,
        content_type: String::new(),
        body: Vec::new(),
    };
    let (mut length, mut chunked) = (None, false);
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        match name.trim().to_ascii_lowercase().as_str() {
            "content-type" => value.trim().clone_into(&mut answer.content_type),
            "content-length" => length = value.trim().parse::<usize>().ok(),
            "transfer-encoding" => chunked = value.to_ascii_lowercase().contains("chunked"),
            _ => {}
        }
    }
    let whole = match (chunked, length) {
        (true, _) => unchunked(body),
        (false, Some(length)) => body.get(..length).map(<[u8]>::to_vec),
        (false, None) => ended.then(|| body.to_vec()),
    };
    Ok(whole.map(|body| Answer { body, ..answer }))
}

/// Joins the pieces; none if the last one is not there yet.
fn unchunked(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|two| two == b"\r\n")?;
        let size = std::str::from_utf8(rest.get(..end)?).ok()?;
        let size = usize::from_str_radix(size.split(';').next()?.trim(), 16).ok()?;
        if size == 0 {
            return Some(body);
        }
        let from = end + 2;
        body.extend_from_slice(rest.get(from..from.checked_add(size)?)?);
        rest = rest.get(from + size + 2..)?;
    }
}

/// RFC 4648, with padding.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let byte = |at: usize| u32::from(three.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let digit = (bits >> (18 - 6 * place)) & 63;
            let shown = place <= three.len();
            let letter = DIGITS.get(digit as usize).filter(|_| shown);
            text.push(letter.map_or('=', |letter| char::from(*letter)));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        let cases = ["", "f", "fo", "foo", "foob", "fooba", "foobar"];
        let texts = cases.map(|text| base64(text.as_bytes()));
        assert_eq!(
            texts,
            [
                "", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"
            ]
        );
        let header = Target::authorization("opencode", "a:\u{fc}");
        assert_eq!(header, "Basic b3BlbmNvZGU6YTrDvA==");
    }

    #[test]
    fn an_answer_is_whole_when_it_is_and_not_before() {
        let length = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\ncontent-length: 4\r\n\r\nabcd";
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1;x=y\r\nd\r\n0\r\n\r\n";
        let closed = "HTTP/1.0 401 no\r\n\r\nabcd";
        for text in [length, chunked, closed] {
            let whole = parse(text.as_bytes(), true).unwrap().unwrap();
            assert_eq!(whole.body, b"abcd", "{text}");
            for cut in 0..text.len() - 4 {
                let early = parse(&text.as_bytes()[..cut], false).unwrap();
                assert_eq!(early, None, "{cut} of {text}");
            }
        }
        let html = parse(length.as_bytes(), false).unwrap().unwrap();
        assert_eq!(
            (html.status, html.content_type.as_str()),
            (200, "text/html")
        );
    }

    #[test]
    fn what_is_no_http_is_said_to_be_none() {
        let error = parse(b"SSH-2.0-OpenSSH\r\n\r\n", false).unwrap_err();
        assert_eq!(error.to_string(), "it does not speak HTTP");
        for junk in ["HTTP/1.1 x y\r\n\r\n", "\r\n\r\n", "HTTP/1.1\r\n\r\n"] {
            assert!(parse(junk.as_bytes(), true).is_err(), "{junk:?}");
        }
        let endless = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n";
        assert_eq!(parse(endless, true).unwrap(), None);
        let huge = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\nx";
        assert_eq!(parse(huge, true).unwrap(), None);
    }
}
