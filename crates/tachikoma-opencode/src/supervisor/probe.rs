//! Questions to the server: is it well, is a session busy; and the one request, to let go of what runs in it.

use std::time::Duration;

use serde_json::Value;
use tachikoma_core::supervise::Answered;

use super::http::Target;

/// A request that comes between the first accepted connection and the server's own readiness is never answered: better
/// ask again soon than wait.
const START_TIMEOUT: Duration = Duration::from_millis(500);

/// A server at work may be slow.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(2);

/// How much of a wrong answer is shown.
const SHOWN_MAX: usize = 60;

/// What is said of a server that was asked without a password.
pub(super) const WANTS_PASSWORD: &str = "wants a password";

/// When a server is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// It is being started.
    Start,
    /// It was ready.
    Later,
}

/// Asks once for the server's health.
pub(super) async fn health(target: &Target, moment: Moment) -> Answered {
    let timeout = match moment {
        Moment::Start => START_TIMEOUT,
        Moment::Later => HEALTH_TIMEOUT,
    };
    let address = &target.address;
    let silent = |what| Answered::Silent { what };
    let asked = tokio::time::timeout(timeout, target.ask("GET", "/global/health")).await;
    match asked {
        Err(_) => silent(format!(
            "no answer from {address} within {} ms",
            timeout.as_millis()
        )),
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::InvalidData => Answered::Wrong {
            what: format!("what listens at {address} is no OpenCode server: {error}"),
        },
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::PermissionDenied => Answered::Wrong {
            what: format!("{address}: {error}"),
        },
        Ok(Err(error)) => silent(format!("no answer from {address}: {error}")),
        Ok(Ok(answer)) => judge(target, answer.status, &answer.content_type, &answer.body),
    }
}

/// The status proves nothing: unknown paths answer 200, with a page.
fn judge(target: &Target, status: u16, content_type: &str, body: &[u8]) -> Answered {
    let address = &target.address;
    let wrong = |what| Answered::Wrong { what };
    match status {
        200 => {}
        401 | 403 => {
            return wrong(match target.authorization {
                Some(_) => format!(
                    "the server at {address} refuses the password (OPENCODE_SERVER_PASSWORD, OPENCODE_SERVER_USERNAME)"
                ),
                None => {
                    format!(
                        "the server at {address} {WANTS_PASSWORD}: set OPENCODE_SERVER_PASSWORD"
                    )
                }
            });
        }
        500.. => {
            let what = format!("the server at {address} answers with status {status}");
            return Answered::Silent { what };
        }
        other => {
            return wrong(format!(
                "what listens at {address} answers with status {other} to GET /global/health: it is no OpenCode server, or of \
                 another version"
            ));
        }
    }
    let shown = String::from_utf8_lossy(body.get(..SHOWN_MAX.min(body.len())).unwrap_or_default());
    if content_type.starts_with("text/html") || shown.trim_start().starts_with('<') {
        return wrong(format!(
            "what listens at {address} answers with a web page where JSON was due: it is no OpenCode server, or of another \
             version"
        ));
    }
    match serde_json::from_slice::<Value>(body) {
        Ok(value) if value.get("healthy") == Some(&Value::Bool(true)) => Answered::Healthy {
            url: format!("http://{address}"),
            version: value.get("version").and_then(Value::as_str).map(Into::into),
        },
        Ok(value) if value.get("healthy") == Some(&Value::Bool(false)) => Answered::Silent {
            what: format!("the server at {address} says that it is not healthy"),
        },
        Ok(_) => wrong(format!(
            "what listens at {address} answers with other JSON than a server's health: {shown}"
        )),
        Err(_) => wrong(format!(
            "what listens at {address} answers with something that is no JSON: {shown}"
        )),
    }
}

/// Returns whether no session is busy. One that cannot be asked is not known to be idle.
pub(super) async fn is_idle(target: &Target) -> bool {
    let asked = tokio::time::timeout(HEALTH_TIMEOUT, target.ask("GET", "/session/status")).await;
    let Ok(Ok(answer)) = asked else {
        return false;
    };
    let sessions = serde_json::from_slice::<serde_json::Map<String, Value>>(&answer.body);
    answer.status == 200 && sessions.is_ok_and(|sessions| sessions.is_empty())
}

/// Has the server end what runs in it: killed with a tool under way, it would leave that behind.
pub(super) async fn release(target: &Target) {
    // Whatever it answers, it is signalled next.
    let _ = tokio::time::timeout(HEALTH_TIMEOUT, target.ask("POST", "/global/dispose")).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(status: u16, kind: &str, body: &str, password: bool) -> String {
        let target = Target {
            address: "127.0.0.1:4096".to_owned(),
            authorization: password.then(|| "Basic x".to_owned()),
            server: None,
        };
        match judge(&target, status, kind, body.as_bytes()) {
            Answered::Healthy { version, .. } => format!("healthy {version:?}"),
            Answered::Silent { what } => format!("silent: {what}"),
            Answered::Wrong { what } => format!("wrong: {what}"),
        }
    }

    #[test]
    fn each_wrong_answer_has_words_of_its_own() {
        let json = "application/json";
        let lines = [
            judged(200, json, r#"{"healthy":true,"version":"1.18.33"}"#, false),
            judged(200, json, r#"{"healthy":true}"#, false),
            judged(200, json, r#"{"healthy":false}"#, false),
            judged(200, json, r#"{"status":"ok"}"#, false),
            judged(200, json, "[]", false),
            judged(200, "text/html", "<!doctype html>", false),
            judged(200, "", "  <html>", false),
            judged(200, "text/plain", "OK", false),
            judged(401, json, "", false),
            judged(401, json, "", true),
            judged(404, json, "", false),
            judged(503, json, "", false),
        ];
        insta::assert_snapshot!(lines.join("\n"));
    }
}
