//! The routes of the fake server.

use std::collections::BTreeMap;
use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde_json::json;

use super::{Server, misbehave};
use crate::model::http::{Raw, respond};

pub(super) const JSON: &str = "application/json";

impl Server {
    pub(super) fn answer(
        self: &Arc<Self>,
        request: &Raw,
        stream: &mut TcpStream,
    ) -> io::Result<()> {
        let number = self.answered.fetch_add(1, Ordering::Relaxed);
        if self.misbehavior.hang_after.is_some_and(|max| number >= max) {
            misbehave::for_ever();
        }
        if request.path == "/event" && self.is_known(request) && self.misbehavior.html.is_none() {
            return self.stream(stream);
        }
        let (status, kind, body) = self.route(request);
        if status == 0 {
            return Ok(());
        }
        respond(stream, status, kind, &BTreeMap::new(), body.as_bytes())?;
        self.after(request)
    }

    fn route(self: &Arc<Self>, request: &Raw) -> (u16, &'static str, String) {
        if !self.is_known(request) {
            return (401, "text/plain", String::new());
        }
        if let Some(page) = &self.misbehavior.html {
            return (200, "text/html", page.clone());
        }
        if let Some(answer) = self.converse(request) {
            return answer;
        }
        match (request.method.as_str(), request.path.as_str()) {
            ("GET", "/global/health") => {
                let usual = json!({"healthy": true, "version": "0.0.0-fake"}).to_string();
                let body = self.misbehavior.health.clone().unwrap_or(usual);
                (200, JSON, body)
            }
            ("GET", "/session/status") => {
                let busy = json!({"ses_1": {"type": "busy"}});
                let body = if self.is_busy() {
                    busy
                } else {
                    self.conversations.busy()
                };
                (200, JSON, body.to_string())
            }
            ("POST", "/global/dispose") => {
                self.conversations.stop_all();
                let child = self.grandchild.and_then(Pid::from_raw);
                if let Some(child) = child.filter(|_| self.misbehavior.disposes) {
                    let _ = kill_process(child, Signal::KILL);
                    let _ = waitpid(Some(child), WaitOptions::empty());
                }
                (200, JSON, "true".to_owned())
            }
            // The real server answers unknown paths with a web page, too.
            _ => (
                200,
                "text/html",
                "<!doctype html><title>OpenCode</title>".to_owned(),
            ),
        }
    }

    /// Performs the effect of a request after its answer was sent.
    fn after(&self, request: &Raw) -> io::Result<()> {
        if request.path == "/global/health"
            && let Some((times, code)) = self.misbehavior.exit_after_health
            && self.asked_for_health.fetch_add(1, Ordering::Relaxed) + 1 >= times
        {
            std::process::exit(i32::from(code));
        }
        Ok(())
    }

    fn is_busy(&self) -> bool {
        let busy = self
            .misbehavior
            .busy_while
            .as_ref()
            .zip(self.state.as_ref());
        busy.is_some_and(|(name, state)| state.join(name).exists())
    }

    fn is_known(&self, request: &Raw) -> bool {
        let Some(wanted) = &self.authorization else {
            return true;
        };
        let shown = request.headers.get("authorization");
        let shown = shown.and_then(|value| value.strip_prefix("Basic "));
        shown.and_then(decoded).as_ref() == Some(wanted)
    }
}

/// Decodes base64; `None` if a character is not valid or the result is not UTF-8. Padding is not checked.
fn decoded(text: &str) -> Option<String> {
    const DIGITS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bytes = Vec::new();
    let (mut bits, mut count) = (0_u32, 0);
    for letter in text.trim_end_matches('=').chars() {
        let digit = DIGITS.find(letter)?;
        bits = bits << 6 | u32::try_from(digit).ok()?;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(bits >> count & 0xff).ok()?);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::decoded;

    #[test]
    fn base64_is_decoded() {
        assert_eq!(decoded("b3BlbmNvZGU6cHc=").as_deref(), Some("opencode:pw"));
        assert_eq!(decoded("Zm9v").as_deref(), Some("foo"));
        assert_eq!(decoded("?"), None);
    }
}
