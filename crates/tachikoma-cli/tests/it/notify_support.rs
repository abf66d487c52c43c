//! Receivers of notifications on loopback: an HTTP service with given answers, and a mail server. Both can have TLS.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use tachikoma_testkit::Scratch;

/// Writes the certificate of the CA that signed the test servers' certificate (`tests/data/tls`, valid for 100 years). Returns its
/// path for `SSL_CERT_FILE`.
pub fn trusted_ca(scratch: &Scratch) -> String {
    let path = scratch.write("ca.pem", include_bytes!("../data/tls/ca.pem"));
    path.display().to_string()
}

/// A connection with or without TLS.
trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

fn with_tls(stream: TcpStream) -> Box<dyn Stream> {
    let certificate = CertificateDer::from_pem_slice(include_bytes!("../data/tls/server.pem"));
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("../data/tls/server.key"));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions of TLS")
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.expect("a certificate")],
            key.expect("a key"),
        )
        .expect("a configuration");
    let connection = ServerConnection::new(Arc::new(config)).expect("a connection");
    Box::new(StreamOwned::new(connection, stream))
}

/// What a test service does with a request.
#[derive(Clone, Copy)]
pub enum Answer {
    Status(u16),
    /// Reads the request and never answers.
    Hang,
    /// Closes the connection without an answer.
    Cut,
    /// Redirects to the given port of this machine.
    Redirect(u16),
}

/// A request that the service received.
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

/// A service that gives its answers in order and then repeats the last one.
pub struct Service {
    pub port: u16,
    scheme: &'static str,
    came: Arc<Mutex<Vec<Came>>>,
}

impl Service {
    pub fn new(answers: &[Answer]) -> Self {
        Self::start("http", answers, |stream| Box::new(stream))
    }

    /// Starts a service with TLS. The CA of [`trusted_ca`] signed its certificate.
    pub fn with_tls(answers: &[Answer]) -> Self {
        Self::start("https", answers, with_tls)
    }

    fn start(
        scheme: &'static str,
        answers: &[Answer],
        accept: fn(TcpStream) -> Box<dyn Stream>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let came = Arc::new(Mutex::new(Vec::new()));
        let (seen, answers) = (Arc::clone(&came), answers.to_vec());
        thread::spawn(move || {
            let mut held = Vec::new();
            let mut number = 0;
            for stream in listener.incoming().flatten() {
                let mut stream = BufReader::new(accept(stream));
                let request = read(&mut stream);
                if request.path.is_empty() {
                    // A client that rejects the certificate sends no request.
                    continue;
                }
                seen.lock().expect("no panic").push(request);
                let answer = answers.get(number).or(answers.last());
                number += 1;
                match answer.expect("an answer") {
                    Answer::Status(status) => say(
                        stream.get_mut(),
                        &format!("HTTP/1.1 {status} so\r\nContent-Length: 0\r\n\r\n"),
                    ),
                    Answer::Redirect(port) => say(
                        stream.get_mut(),
                        &format!(
                            "HTTP/1.1 302 there\r\nLocation: http://127.0.0.1:{port}/\r\nContent-Length: 0\r\n\r\n"
                        ),
                    ),
                    Answer::Hang => held.push(stream),
                    Answer::Cut => drop(stream),
                }
            }
        });
        Self { port, scheme, came }
    }

    pub fn url(&self) -> String {
        format!("{}://127.0.0.1:{}/hunter2", self.scheme, self.port)
    }

    pub fn came(&self) -> Vec<Came> {
        self.came.lock().expect("no panic").clone()
    }
}

fn say(stream: &mut dyn Write, text: &str) {
    let _ = stream.write_all(text.as_bytes());
    let _ = stream.flush();
}

fn read(reader: &mut BufReader<Box<dyn Stream>>) -> Came {
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

/// Behavior of a mail server in a test.
#[derive(Clone, Copy, Default)]
pub struct MailRules {
    /// Whether the connection uses TLS from the first byte.
    pub implicit_tls: bool,
    /// Status code of the answer to STARTTLS; `None` if the server does not offer it.
    pub starttls: Option<u16>,
    /// Status code of the answer to a login; `None` if the server does not offer one.
    pub login: Option<u16>,
    /// Whether every answer is an endless line.
    pub endless: bool,
}

/// A mail server that records all lines. Lines received over TLS begin with `tls: `.
pub struct Mailbox {
    pub port: u16,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Mailbox {
    pub fn new(rules: MailRules) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&lines);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                take_mail(stream, rules, &seen);
            }
        });
        Self { port, lines }
    }

    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().expect("no panic").clone()
    }
}

fn take_mail(stream: TcpStream, rules: MailRules, seen: &Mutex<Vec<String>>) {
    let plain = stream.try_clone().expect("a socket");
    let mut has_tls = rules.implicit_tls;
    let mut stream: BufReader<Box<dyn Stream>> = BufReader::new(match has_tls {
        true => with_tls(stream),
        false => Box::new(stream),
    });
    if rules.endless {
        while stream.get_mut().write_all(&[b'x'; 4096]).is_ok() {}
        return;
    }
    say(stream.get_mut(), "220 here\r\n");
    let mut in_data = false;
    let mut line = String::new();
    loop {
        line.clear();
        if stream.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let text = line.trim_end();
        let mark = if has_tls { "tls: " } else { "" };
        seen.lock().expect("no panic").push(format!("{mark}{text}"));
        if in_data {
            if text == "." {
                in_data = false;
                say(stream.get_mut(), "250 taken\r\n");
            }
            continue;
        }
        let word = text.split([' ', ':']).next().unwrap_or_default();
        let answer = match word {
            "EHLO" => {
                let starttls = rules.starttls.filter(|_| !has_tls);
                let starttls = starttls.map_or("", |_| "250-STARTTLS\r\n");
                let login = rules.login.map_or("", |_| "250-AUTH PLAIN\r\n");
                format!("250-here\r\n{starttls}{login}250 HELP")
            }
            "STARTTLS" => {
                let status = rules.starttls.unwrap_or(502);
                say(stream.get_mut(), &format!("{status} TLS\r\n"));
                if status == 220 {
                    has_tls = true;
                    stream = BufReader::new(with_tls(plain.try_clone().expect("a socket")));
                }
                continue;
            }
            "AUTH" => format!("{} login", rules.login.unwrap_or(502)),
            "DATA" => {
                in_data = true;
                "354 go on".to_owned()
            }
            "QUIT" => "221 bye".to_owned(),
            _ => "250 yes".to_owned(),
        };
        say(stream.get_mut(), &format!("{answer}\r\n"));
        if word == "QUIT" {
            return;
        }
    }
}
