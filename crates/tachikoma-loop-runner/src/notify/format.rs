//! Converts a message for its target: to a program with its input, an HTTP request, or a mail.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::time::Duration;

use hmac::{Hmac, Mac as _};
use serde::Serialize;
use serde_json::json;
use sha2::Sha256;

use super::http::HttpRequest;
use super::mail::{Content, Login, Mail};
use super::{Address, Message};
use crate::clock;
use crate::hooks::{HookEvent, variables};
use crate::settings::{NotifyTarget, Secret};
use crate::shell::{CommandOutput, Job, Limit};

/// Maximum length of a text. Services reject longer ones: Discord accepts 2000 characters, Telegram 4096.
const TEXT_CHARS_MAX: usize = 1800;

/// Timeout of a program that delivers a message.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(15);

/// Maximum size of a program's output. The output is not used, because it can contain secrets.
const OUTPUT_BYTES_MAX: usize = 1024;

/// How a message reaches its target.
#[derive(Debug)]
pub(super) enum Delivery {
    /// Run a program.
    Run(Box<Job>),
    /// Send an HTTP request.
    Post(HttpRequest),
    /// Send a mail.
    Mail(Mail),
}

/// JSON payload of a notification by webhook, command or mail.
#[derive(Serialize)]
struct Payload<'a> {
    text: String,
    time: String,
    #[serde(flatten)]
    event: &'a HookEvent,
}

/// Returns how a message is delivered to a target.
pub(super) fn delivery(address: &Address, message: &Message) -> Result<Delivery, String> {
    let text = short(&message.text());
    let request = match address.settings.to {
        NotifyTarget::Desktop => return Ok(Delivery::Run(Box::new(desktop(message, &text)))),
        NotifyTarget::Command => return Ok(Delivery::Run(Box::new(command(address, message)?))),
        NotifyTarget::Email => return Ok(Delivery::Mail(mail(address, message, &text)?)),
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
    };
    Ok(Delivery::Post(request))
}

/// Escapes the markup of Slack. The text may come from an agent, and must not mention people or hide the address of a link.
fn unmarked(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

fn url(address: &Address) -> Result<&Secret, String> {
    address.url.as_ref().ok_or("`url` is not set".to_owned())
}

fn json_to(url: &Secret, body: &serde_json::Value) -> HttpRequest {
    HttpRequest {
        url: url.clone(),
        headers: vec![json_content()],
        body: body.to_string(),
    }
}

fn json_content() -> (&'static str, Secret) {
    ("content-type", "application/json".to_owned().into())
}

fn webhook(address: &Address, message: &Message) -> Result<HttpRequest, String> {
    let body = payload(message)?;
    // The time is the same for each attempt, so that a receiver can recognize a repeated message.
    let seconds = message.time.as_millis() / 1000;
    let mut headers = vec![
        json_content(),
        ("x-tachikoma-timestamp", seconds.to_string().into()),
    ];
    if let Some(secret) = &address.secret {
        let signature = signature(secret.expose(), seconds, &body)?;
        let value = format!("sha256={signature}");
        headers.push(("x-tachikoma-signature", value.into()));
    }
    Ok(HttpRequest {
        url: url(address)?.clone(),
        headers,
        body,
    })
}

/// Signs time and body together, so that an attacker cannot send an old message again with a new time.
pub(super) fn signature(secret: &str, seconds: i64, body: &str) -> Result<String, String> {
    let mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes());
    let mut mac = mac.map_err(|_| "the key of the signature has an invalid length")?;
    mac.update(format!("{seconds}.{body}").as_bytes());
    let bytes = mac.finalize().into_bytes();
    Ok(bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

fn telegram(address: &Address, text: &str) -> Result<HttpRequest, String> {
    const SERVICE: &str = "https://api.telegram.org";
    let token = address.secret.as_ref().ok_or("the token is not set")?;
    let chat = address.settings.chat.as_ref().ok_or("`chat` is not set")?;
    let service = address.url.as_ref().map_or(SERVICE, Secret::expose);
    let service = service.trim_end_matches('/');
    let url = Secret::from(format!("{service}/bot{}/sendMessage", token.expose()));
    Ok(json_to(&url, &json!({ "chat_id": chat, "text": text })))
}

fn ntfy(address: &Address, message: &Message, text: &str) -> Result<HttpRequest, String> {
    let priority = match message.is_critical() {
        true => "high",
        false => "default",
    };
    let fixed = [
        ("content-type", "text/plain; charset=utf-8"),
        ("title", "Tachikoma"),
        ("priority", priority),
    ];
    let mut headers: Vec<_> = fixed
        .map(|(name, value)| (name, Secret::from(value.to_owned())))
        .into();
    if let Some(token) = &address.secret {
        let value = format!("Bearer {}", token.expose());
        headers.push(("authorization", value.into()));
    }
    Ok(HttpRequest {
        url: url(address)?.clone(),
        headers,
        body: text.to_owned(),
    })
}

fn mail(address: &Address, message: &Message, text: &str) -> Result<Mail, String> {
    let settings = &address.settings;
    let login = match (&settings.user, &address.secret) {
        (Some(user), Some(password)) => Some(Login {
            user: user.clone(),
            password: password.clone(),
        }),
        _ => None,
    };
    let content = Content {
        from: settings.from.as_ref().ok_or("it has no sender")?,
        recipients: &settings.recipients,
        subject: &format!("[tachikoma] {text}"),
        body: format!("{text}\r\n\r\n{}\r\n", payload(message)?),
        time: clock::system_time_of(message.time),
    };
    Mail::new(url(address)?, login, content)
}

fn desktop(message: &Message, text: &str) -> Job {
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
    let args = args.chain([text.replace('\0', " ").into()]).collect();
    job("notify-send".into(), args, message)
}

fn command(address: &Address, message: &Message) -> Result<Job, String> {
    let command = address
        .settings
        .command
        .as_ref()
        .ok_or("it has no command")?;
    let (program, args) = Job::line(command);
    Ok(Job {
        env: variables(&message.event),
        input: payload(message)?.into_bytes(),
        ..job(program, args, message)
    })
}

fn job(program: OsString, args: Vec<OsString>, message: &Message) -> Job {
    Job {
        program,
        args,
        env: Vec::new(),
        working_dir: message.event.working_dir.clone(),
        input: Vec::new(),
        limit: Limit::new(PROGRAM_TIMEOUT),
        output: CommandOutput::tail_only(OUTPUT_BYTES_MAX),
    }
}

fn payload(message: &Message) -> Result<String, String> {
    let payload = Payload {
        text: message.text(),
        time: message.time.to_string(),
        event: &message.event,
    };
    serde_json::to_string(&payload).map_err(|error| error.to_string())
}

fn short(text: &str) -> String {
    match text.char_indices().nth(TEXT_CHARS_MAX) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}
