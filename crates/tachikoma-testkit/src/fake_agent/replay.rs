//! Replays the output of a real agent, prompt by prompt.

use std::fs;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::agent::{Agent, Break};

/// Maximum pause of a replay. Longer recorded pauses are shortened to it.
const PAUSE_MAX: Duration = Duration::from_secs(600);

/// Replays the transcript: up to a result for each prompt, and to its end for the last one. Answers to control requests are left
/// out, because the agent gives its own.
pub(super) fn play(agent: &mut Agent, file: &Path, real_speed: bool) -> Result<(), Break> {
    let bytes = fs::read(file).map_err(|error| format!("read {}: {error}", file.display()))?;
    let text = String::from_utf8_lossy(&bytes);
    let mut lines = text.lines().peekable();
    let mut last = None;
    while lines.peek().is_some() && agent.next_prompt()?.is_some() {
        for line in lines.by_ref() {
            let value: Value = serde_json::from_str(line).unwrap_or_default();
            if value["type"] == "control_response" {
                continue;
            }
            let at: Option<Timestamp> = value["timestamp"].as_str().and_then(|at| at.parse().ok());
            if let (Some(last), Some(at)) = (last, at)
                && real_speed
            {
                let passed = Duration::try_from(at.duration_since(last));
                agent.pause(passed.unwrap_or_default().min(PAUSE_MAX))?;
            }
            last = at.or(last);
            agent.print_text(line)?;
            if value["type"] == "result" {
                agent.last_failed = value["is_error"] == true;
                agent.results += 1;
                agent.result_is_out()?;
                if agent.args.json_in {
                    break;
                }
            }
        }
    }
    agent.end()
}
