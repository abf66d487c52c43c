//! A message in the words of each service, and the program that takes it there. Secrets go to it on its standard input: the
//! arguments of a process can be read by everyone.

use std::ffi::OsString;
use std::fmt::Write as _;

use serde::Serialize;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::{Address, Message};
use crate::hooks::{HookEvent, variables};
use crate::settings::{NotifyTarget, Secret};
use crate::shell::Job;

/// What services take at most: Discord 2000 characters, Telegram 4096.
const TEXT_CHARS_MAX: usize = 1800;

/// For the whole of one request; the connection has half of it.
const SECONDS_MAX: u32 = 10;

/// What is to be run, and with what.
pub(super) struct Order {
    pub program: OsString,
    pub args: Vec<OsString>,
    pub env: Vec<(OsString, OsString)>,
    pub input: Vec<u8>,
}

/// What a webhook and a command are told.
#[derive(Serialize)]
struct Told<'a> {
    text: String,
    time: String,
    #[serde(flatten)]
    event: &'a HookEvent,
}

pub(super) fn goes_through_curl(target: NotifyTarget) -> bool {
    !matches!(target, NotifyTarget::Desktop | NotifyTarget::Command)
}

/// Returns how a message is sent.
pub(super) fn order(address: &Address, message: &Message) -> Result<Order, String> {
    let text = short(&message.text());
    let request = match address.settings.to {
        NotifyTarget::Desktop => return Ok(desktop(message, &text)),
        NotifyTarget::Command => return command(address, message),
        NotifyTarget::Webhook => webhook(address, message)?,
        NotifyTarget::Slack => json_to(url(address)?, &json!({ "text": unmarked(&text) })),
        NotifyTarget::Discord => {
            let quiet = json!({ "parse": [] });
            json_to(
                url(address)?,
                &json!({ "content": text, "allowed_mentions": quiet }),
            )
        }
        NotifyTarget::Telegram => telegram(address, &text)?,
        NotifyTarget::Ntfy => ntfy(address, message, &text)?,
        NotifyTarget::Email => mail(address, message, &text)?,
    };
    Ok(Order {
        program: "curl".into(),
        // Nothing of the user's own settings: they may say everything that is done.
        args: ["--disable", "--config", "-"].map(Into::into).to_vec(),
        env: Vec::new(),
        input: request.0.into_bytes(),
    })
}

/// Takes the marks out by which a text calls people or shows another address than it leads to. Some of it may be an agent's.
fn unmarked(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// A file of settings for curl.
struct Request(String);

impl Request {
    fn new(url: &Secret, protocols: &str) -> Self {
        let mut request = Self(String::new());
        request.switch("silent");
        request.set("url", url.expose());
        request.set("proto", protocols);
        request.set("max-time", &SECONDS_MAX.to_string());
        request.set("connect-timeout", &(SECONDS_MAX / 2).to_string());
        request.set("output", "/dev/null");
        request
    }

    fn http(url: &Secret, body: &str) -> Self {
        let mut request = Self::new(url, "=http,https");
        // Redirects are not followed: what was written for one host is not for another.
        request.set("write-out", "%{http_code}");
        request.set("data-raw", body);
        request
    }

    fn switch(&mut self, name: &str) {
        let _ = writeln!(self.0, "{name}");
    }

    fn set(&mut self, name: &str, value: &str) {
        let _ = write!(self.0, "{name} = \"");
        for char in value.chars() {
            match char {
                '"' => self.0.push_str("\\\""),
                '\\' => self.0.push_str("\\\\"),
                '\n' => self.0.push_str("\\n"),
                '\r' => self.0.push_str("\\r"),
                '\t' => self.0.push_str("\\t"),
                '\0' => {}
                char => self.0.push(char),
            }
        }
        self.0.push_str("\"\n");
    }

    fn header(&mut self, name: &str, value: &str) {
        self.set("header", &format!("{name}: {}", one_line(value)));
    }
}

fn url(address: &Address) -> Result<&Secret, String> {
    address.url.as_ref().ok_or("it has no address".to_owned())
}

fn json_to(url: &Secret, body: &serde_json::Value) -> Request {
    let mut request = Request::http(url, &body.to_string());
    request.header("Content-Type", "application/json");
    request
}

fn webhook(address: &Address, message: &Message) -> Result<Request, String> {
    let body = told(message)?;
    let mut request = Request::http(url(address)?, &body);
    request.header("Content-Type", "application/json");
    // The same for each attempt, so that a receiver knows what it has had.
    let seconds = message.time.as_millis() / 1000;
    request.header("X-Tachikoma-Timestamp", &seconds.to_string());
    if let Some(secret) = &address.secret {
        let signature = signature(secret.expose(), seconds, &body);
        request.header("X-Tachikoma-Signature", &format!("sha256={signature}"));
    }
    Ok(request)
}

/// Signs time and body together, so that an old message cannot be sent again as a new one.
pub(super) fn signature(secret: &str, seconds: i64, body: &str) -> String {
    let bytes = hmac_sha256(secret.as_bytes(), format!("{seconds}.{body}").as_bytes());
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// HMAC (RFC 2104) with SHA-256.
fn hmac_sha256(key: &[u8], text: &[u8]) -> [u8; 32] {
    const BLOCK: usize = 64;
    let mut block = [0; BLOCK];
    let hashed: [u8; 32] = Sha256::digest(key).into();
    let key = if key.len() > BLOCK { &hashed } else { key };
    for (place, byte) in block.iter_mut().zip(key) {
        *place = *byte;
    }
    let inner = Sha256::new().chain_update(block.map(|byte| byte ^ 0x36));
    let inner = inner.chain_update(text).finalize();
    let outer = Sha256::new().chain_update(block.map(|byte| byte ^ 0x5c));
    outer.chain_update(inner).finalize().into()
}

fn telegram(address: &Address, text: &str) -> Result<Request, String> {
    const SERVICE: &str = "https://api.telegram.org";
    let token = address.secret.as_ref().ok_or("it has no token")?;
    let chat = address.settings.chat.as_ref().ok_or("it has no chat")?;
    let service = address.url.as_ref().map_or(SERVICE, Secret::expose);
    let service = service.trim_end_matches('/');
    let url = Secret::from(format!("{service}/bot{}/sendMessage", token.expose()));
    Ok(json_to(&url, &json!({ "chat_id": chat, "text": text })))
}

fn ntfy(address: &Address, message: &Message, text: &str) -> Result<Request, String> {
    let mut request = Request::http(url(address)?, text);
    request.header("Content-Type", "text/plain; charset=utf-8");
    request.header("Title", "Tachikoma");
    let priority = if message.is_critical() {
        "high"
    } else {
        "default"
    };
    request.header("Priority", priority);
    if let Some(token) = &address.secret {
        request.header("Authorization", &format!("Bearer {}", token.expose()));
    }
    Ok(request)
}

fn mail(address: &Address, message: &Message, text: &str) -> Result<Request, String> {
    let settings = &address.settings;
    let from = settings.from.as_ref().ok_or("it has no sender")?;
    let mut request = Request::new(url(address)?, "=smtp,smtps");
    request.set("write-out", "%{http_code}");
    request.set("mail-from", &one_line(from));
    for recipient in &settings.recipients {
        request.set("mail-rcpt", &one_line(recipient));
    }
    if let (Some(user), Some(password)) = (&settings.user, &address.secret) {
        request.set("user", &format!("{user}:{}", password.expose()));
    }
    request.header("From", from);
    request.header("To", &settings.recipients.join(", "));
    request.header("Subject", &format!("[tachikoma] {}", ascii(text)));
    request.set(
        "form-string",
        &format!("={text}\r\n\r\n{}\r\n", told(message)?),
    );
    Ok(request)
}

fn desktop(message: &Message, text: &str) -> Order {
    let urgency = if message.is_critical() {
        "critical"
    } else {
        "normal"
    };
    let args = [
        "--app-name=Tachikoma",
        "--urgency",
        urgency,
        "--",
        "Tachikoma",
    ];
    let args = args.into_iter().map(OsString::from);
    Order {
        program: "notify-send".into(),
        args: args.chain([text.replace('\0', " ").into()]).collect(),
        env: Vec::new(),
        input: Vec::new(),
    }
}

fn command(address: &Address, message: &Message) -> Result<Order, String> {
    let command = address
        .settings
        .command
        .as_ref()
        .ok_or("it has no command")?;
    let (program, args) = Job::line(command);
    Ok(Order {
        program,
        args,
        env: variables(&message.event),
        input: told(message)?.into_bytes(),
    })
}

fn told(message: &Message) -> Result<String, String> {
    let told = Told {
        text: message.text(),
        time: message.time.to_string(),
        event: &message.event,
    };
    serde_json::to_string(&told).map_err(|error| error.to_string())
}

/// A line break in a header would be another header.
fn one_line(text: &str) -> String {
    text.replace(|char: char| char.is_control(), " ")
}

/// The subject of a mail has no other characters without an encoding of its own; its body has all of them.
fn ascii(text: &str) -> String {
    let text = one_line(text);
    text.chars()
        .take(150)
        .map(|char| if char.is_ascii() { char } else { '?' })
        .collect()
}

fn short(text: &str) -> String {
    match text.char_indices().nth(TEXT_CHARS_MAX) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}
