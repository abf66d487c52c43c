//! Receivers of messages, on the loopback: a service that answers as it is told, and a server for mail.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// How a service answers.
#[derive(Clone, Copy)]
pub enum Answer {
    Status(u16),
    /// It takes the request and never answers.
    Hang,
    /// It hangs up.
    Cut,
    /// It sends the caller elsewhere.
    Redirect(u16),
}

/// A request as it came.
#[derive(Clone, Debug, Default)]
pub struct Came {
    pub path: String,
    pub headers: Vec<String>,
    pub body: String,
}

impl Came {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

/// A service that gives its answers in order, and the last one again and again.
pub struct Service {
    pub port: u16,
    came: Arc<Mutex<Vec<Came>>>,
}

impl Service {
    pub fn new(answers: &[Answer]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let came = Arc::new(Mutex::new(Vec::new()));
        let (seen, answers) = (Arc::clone(&came), answers.to_vec());
        thread::spawn(move || {
            let mut held = Vec::new();
            for (number, stream) in listener.incoming().flatten().enumerate() {
                let request = read(&stream);
                seen.lock().expect("nobody panics").push(request);
                let answer = answers.get(number).or(answers.last());
                match answer.expect("an answer") {
                    Answer::Status(status) => say(
                        &stream,
                        &format!("HTTP/1.1 {status} so\r\nContent-Length: 0\r\n\r\n"),
                    ),
                    Answer::Redirect(port) => say(
                        &stream,
                        &format!(
                            "HTTP/1.1 302 there\r\nLocation: http://127.0.0.1:{port}/\r\nContent-Length: 0\r\n\r\n"
                        ),
                    ),
                    Answer::Hang => held.push(stream),
                    Answer::Cut => drop(stream),
                }
            }
        });
        Self { port, came }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/hunter2", self.port)
    }

    pub fn came(&self) -> Vec<Came> {
        self.came.lock().expect("nobody panics").clone()
    }
}

fn say(mut stream: &TcpStream, text: &str) {
    let _ = stream.write_all(text.as_bytes());
}

fn read(stream: &TcpStream) -> Came {
    let mut reader = BufReader::new(stream);
    let mut came = Came::default();
    let mut line = String::new();
    let _ = reader.read_line(&mut line);
    came.path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut length = 0;
    loop {
        line.clear();
        if reader.read_line(&mut line).unwrap_or(0) == 0 || line.trim().is_empty() {
            break;
        }
        let header = line.trim().to_owned();
        if let Some(value) = header.to_lowercase().strip_prefix("content-length: ") {
            length = value.parse().unwrap_or(0);
        }
        came.headers.push(header);
    }
    let mut body = vec![0; length];
    let _ = reader.read_exact(&mut body);
    came.body = String::from_utf8_lossy(&body).into_owned();
    came
}

/// A server for mail, which takes everything.
pub struct Mailbox {
    pub port: u16,
    came: Arc<Mutex<Vec<String>>>,
}

impl Mailbox {
    pub fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let came = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&came);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                take_mail(&stream, &seen);
            }
        });
        Self { port, came }
    }

    pub fn came(&self) -> Vec<String> {
        self.came.lock().expect("nobody panics").clone()
    }
}

fn take_mail(stream: &TcpStream, seen: &Mutex<Vec<String>>) {
    say(stream, "220 here\r\n");
    let mut lines = BufReader::new(stream).lines();
    let mut mail = String::new();
    while let Some(Ok(line)) = lines.next() {
        mail.push_str(&line);
        mail.push('\n');
        let word = line
            .split([' ', ':'])
            .next()
            .unwrap_or_default()
            .to_uppercase();
        match word.as_str() {
            "DATA" => {
                say(stream, "354 go on\r\n");
                for line in lines.by_ref().map_while(Result::ok) {
                    if line == "." {
                        break;
                    }
                    mail.push_str(&line);
                    mail.push('\n');
                }
                seen.lock().expect("nobody panics").push(mail.clone());
                say(stream, "250 taken\r\n");
            }
            "QUIT" => {
                say(stream, "221 bye\r\n");
                return;
            }
            _ => say(stream, "250 yes\r\n"),
        }
    }
}
