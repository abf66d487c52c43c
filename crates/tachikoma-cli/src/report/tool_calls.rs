//! Tool calls of the agent as lines for people: one line when a call ends.

use tachikoma_core::Timestamp;

use super::symbol::Symbol;
use crate::sanitize::sanitize;
use crate::view::number;
use crate::view::text::{Text, Tone};

/// Maximum number of calls that are remembered until they end. The oldest call is forgotten first.
const OPEN_MAX: usize = 64;

/// Maximum number of characters of a command, path or error.
const SUMMARY_CHARS_MAX: usize = 60;

/// Tool calls that have started and not ended.
#[derive(Debug, Default)]
pub struct ToolCalls {
    open: Vec<OpenCall>,
}

#[derive(Debug)]
struct OpenCall {
    id: String,
    /// Name and description of the call.
    text: String,
    since: Timestamp,
}

impl ToolCalls {
    /// Remembers a call that starts.
    pub fn started(&mut self, id: &str, name: &str, summary: &str, now: Timestamp) {
        if self.open.len() >= OPEN_MAX {
            self.open.remove(0);
        }
        self.open.push(OpenCall {
            id: id.to_owned(),
            text: call_text(name, summary),
            since: now,
        });
    }

    /// Returns the line for a call that ended; `None` if its start was not seen, or if it was denied.
    pub fn ended(&mut self, id: &str, error: Option<&str>, now: Timestamp) -> Option<Text> {
        let call = self.forget(id)?;
        let took = number::duration(now.since(call.since));
        Some(match error {
            None => Text::new(Tone::Agent, "  ● ")
                .and(call.text)
                .with(Tone::Detail, format!("  {took}  ok")),
            Some(error) => {
                let error = shortened(error);
                Symbol::Failed.line(format!("{}  {took}  failed: {error}", call.text))
            }
        })
    }

    /// Forgets a call. A denied call has a line of its own.
    pub fn denied(&mut self, id: &str) {
        self.forget(id);
    }

    /// Forgets all calls, because another turn begins.
    pub fn clear(&mut self) {
        self.open.clear();
    }

    fn forget(&mut self, id: &str) -> Option<OpenCall> {
        let place = self.open.iter().position(|call| call.id == id)?;
        Some(self.open.remove(place))
    }
}

/// Returns a tool call as text: `Bash   cargo test`.
pub fn call_text(name: &str, summary: &str) -> String {
    let text = format!("{:<6} {}", sanitize(name), shortened(summary));
    text.trim_end().to_owned()
}

/// Returns the first characters of a text, in one line.
fn shortened(text: &str) -> String {
    let text = sanitize(text.trim());
    match text.char_indices().nth(SUMMARY_CHARS_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn a_tool_call_has_one_line_when_it_ends() {
        let mut calls = ToolCalls::default();
        calls.started("1", "Bash", "cargo test", at(0));
        calls.started("2", "Read", "plan.md", at(500));
        calls.started("3", "WebFetch", "", at(600));
        calls.started("4", "Bash", "git push", at(700));
        calls.denied("4");
        let ended = [
            calls.ended("2", None, at(900)),
            calls.ended("1", Some("exit 101\nlast line"), at(12_400)),
            calls.ended("3", None, at(600)),
            calls.ended("3", None, at(700)),
            calls.ended("4", Some("denied"), at(800)),
        ];
        let lines: Vec<String> = ended
            .iter()
            .flatten()
            .map(|line| line.render(false))
            .collect();
        assert_eq!(
            lines,
            [
                "  ● Read   plan.md  0.4 s  ok",
                "  ✗ Bash   cargo test  12.4 s  failed: exit 101 last line",
                "  ● WebFetch  0.0 s  ok",
            ]
        );
    }

    #[test]
    fn the_number_of_open_calls_is_bounded() {
        let mut calls = ToolCalls::default();
        for id in 0..=OPEN_MAX {
            calls.started(&id.to_string(), "Bash", "", at(0));
        }
        assert_eq!(calls.open.len(), OPEN_MAX);
        assert_eq!(calls.ended("0", None, at(1)), None);
    }
}
