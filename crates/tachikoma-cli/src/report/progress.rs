//! The progress line at the bottom of a terminal.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use tachikoma_core::{Context, LoopEvent, OperatorEvent, Record, Timestamp};

use super::tool_calls::call_text;
use crate::out;
use crate::view::number::{self, duration};
use crate::view::text::{Text, Tone};

/// Width of the context bar, without its ends.
const BAR_COLUMNS: usize = 12;

/// Standard output, with a progress line at the bottom if it is a terminal.
#[derive(Debug)]
pub struct Screen {
    /// Whether there is a progress line: standard output is a terminal that can move its cursor.
    live: bool,
    broken: bool,
    drawn: bool,
    hidden: bool,
    doing: Option<Doing>,
    iteration: u32,
    context: Option<Context>,
    /// The redline in tokens; `None` if it is unknown.
    redline_tokens: Option<u64>,
    reboot_pending: bool,
    tool: Option<RunningTool>,
    /// Cost of the loop in millionths of a dollar.
    spent_microusd: u64,
    /// When this report started.
    since: Instant,
}

/// The tool call that started last and has not ended.
#[derive(Debug)]
struct RunningTool {
    id: String,
    text: String,
    since: Instant,
}

#[derive(Debug)]
enum Doing {
    Working {
        since: Instant,
    },
    Waiting {
        what: &'static str,
        from: Instant,
        lasts: Duration,
    },
    Committing {
        since: Instant,
    },
    Checking {
        since: Instant,
    },
    Paused,
}

impl Screen {
    /// Creates the screen. `progress` says whether a progress line is wanted. `spent_microusd` is the cost of the loop so far.
    pub fn new(progress: bool, spent_microusd: u64) -> Self {
        Self {
            live: progress && std::io::stdout().is_terminal() && !out::is_dumb(),
            broken: false,
            drawn: false,
            hidden: false,
            doing: None,
            iteration: 0,
            context: None,
            redline_tokens: None,
            reboot_pending: false,
            tool: None,
            spent_microusd,
            since: Instant::now(),
        }
    }

    /// Returns whether there is a progress line to redraw.
    pub fn is_live(&self) -> bool {
        self.live && !self.hidden && self.doing.is_some()
    }

    /// Updates the values of the progress line from a record.
    pub fn note(&mut self, record: &Record) {
        match &record.event {
            LoopEvent::IterationStarted { iteration, .. } => {
                self.iteration = *iteration;
                self.tool = None;
                self.doing = Some(Doing::Working {
                    since: Instant::now(),
                });
            }
            LoopEvent::SessionStarted { .. } => {
                self.context = None;
                self.redline_tokens = None;
            }
            LoopEvent::ContextMeasured {
                context,
                redline_tokens,
                ..
            } => {
                self.context = Some(*context);
                self.redline_tokens = redline_tokens.or(self.redline_tokens);
            }
            LoopEvent::ToolStarted { id, name, summary } => {
                self.tool = Some(RunningTool {
                    id: id.clone(),
                    text: call_text(name, summary),
                    since: Instant::now(),
                });
            }
            LoopEvent::ToolEnded { id, .. } => {
                self.tool.take_if(|tool| tool.id == *id);
            }
            LoopEvent::TurnResulted(turn) => {
                self.spent_microusd = self.spent_microusd.saturating_add(turn.cost_microusd);
            }
            LoopEvent::RebootRequested { .. } => self.reboot_pending = true,
            LoopEvent::RebootStarted { .. } => self.reboot_pending = false,
            LoopEvent::WaitStarted { wait } => {
                self.doing = Some(waiting(record.time, wait.until, &wait.reason.to_string()));
            }
            LoopEvent::Paused { .. } => self.doing = Some(Doing::Paused),
            // No activity is shown while a question is displayed.
            LoopEvent::Operator(OperatorEvent::Asked(_)) => self.doing = None,
            LoopEvent::AutocommitStarted(keep) => {
                let since = Instant::now();
                if keep.commit.is_some() {
                    self.doing = Some(Doing::Committing { since });
                }
            }
            LoopEvent::CheckStarted { .. } => {
                let since = Instant::now();
                self.doing = Some(Doing::Checking { since });
            }
            LoopEvent::Completed { .. } | LoopEvent::Stopped { .. } | LoopEvent::Error { .. } => {
                self.doing = None;
            }
            _ => {}
        }
    }

    /// Prints a line above the progress line.
    pub fn print(&mut self, line: &Text) {
        self.clear();
        self.write(&out::rendered(line));
        self.draw();
    }

    /// Removes the progress line.
    pub fn clear(&mut self) {
        if self.drawn {
            self.drawn = false;
            self.write("\r\u{1b}[2K");
        }
    }

    /// Removes the progress line until [`Screen::show`]. Other output does not show it again.
    pub fn hide(&mut self) {
        self.hidden = true;
        self.clear();
    }

    /// Redraws the progress line after [`Screen::hide`].
    pub fn show(&mut self) {
        self.hidden = false;
        self.draw();
    }

    /// Draws the progress line.
    pub fn draw(&mut self) {
        let Some(text) = self
            .progress()
            .filter(|_| self.is_live() && is_in_foreground())
        else {
            return;
        };
        // The line is one column shorter than the terminal, because some terminals wrap after the last column.
        let shown = text.cut(out::columns() - 1);
        let color = out::has_color(&std::io::stdout());
        self.write(&format!("\r\u{1b}[2K{}", shown.render(color)));
        self.drawn = true;
    }

    fn progress(&self) -> Option<Text> {
        let doing = match (self.doing.as_ref()?, &self.tool) {
            (Doing::Working { .. }, Some(tool)) => {
                let words: Vec<&str> = tool.text.split_whitespace().collect();
                format!("{} {}", words.join(" "), duration(tool.since.elapsed()))
            }
            (Doing::Working { since }, None) => format!("working {}", duration(since.elapsed())),
            (Doing::Waiting { what, from, lasts }, _) => {
                let left = lasts.saturating_sub(from.elapsed());
                format!("{what}, {} left", duration(left))
            }
            (Doing::Checking { since }, _) => format!("checking {}", duration(since.elapsed())),
            (Doing::Committing { since }, _) => {
                format!("committing {}", duration(since.elapsed()))
            }
            (Doing::Paused, _) => "paused".to_owned(),
        };
        // Before the first iteration that this screen has seen, only the activity is shown.
        if self.iteration == 0 {
            return Some(Text::new(Tone::Detail, doing));
        }
        let mut parts = vec![format!("iter {}", self.iteration)];
        if self.reboot_pending {
            parts.push("reboot pending".to_owned());
        }
        parts.push(doing);
        if self.spent_microusd > 0 {
            parts.push(number::dollars(self.spent_microusd));
        }
        parts.push(duration(self.since.elapsed()));
        Some(self.context_text().with(Tone::Detail, parts.join("  ")))
    }

    /// Returns the fill of the context as a bar with a mark at the redline, in percent and in tokens; empty if it is unknown.
    fn context_text(&self) -> Text {
        let Some(context) = self.context else {
            return Text::default();
        };
        let redline = self.redline_tokens;
        let tone = match redline.is_some_and(|redline| context.tokens >= redline) {
            true => Tone::Failed,
            false => Tone::Agent,
        };
        let redline = redline.map(|tokens| Context { tokens, ..context }.percent());
        let used = number::tokens(context.tokens);
        let numbers = format!(" {} % {used}  ", context.percent_rounded_down());
        Text::new(tone, bar(context.percent(), redline)).with(Tone::Detail, numbers)
    }

    fn write(&mut self, text: &str) {
        if self.broken {
            return;
        }
        let mut out = std::io::stdout().lock();
        // If the output was closed, nothing more is drawn, but the loop continues.
        self.broken = out
            .write_all(text.as_bytes())
            .and_then(|()| out.flush())
            .is_err();
    }
}

/// Returns a bar with eight steps per column and a mark at the redline, both in percent.
fn bar(percent: f64, redline: Option<f64>) -> String {
    const STEPS: [char; 8] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];
    let eighths = |percent: f64| {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "the value is clamped to a percentage"
        )]
        let eighths = (percent.clamp(0.0, 100.0) / 100.0 * (BAR_COLUMNS * 8) as f64) as usize;
        eighths
    };
    let (filled, mark) = (eighths(percent), redline.map(|at| eighths(at) / 8));
    let cell = |column: usize| match filled.saturating_sub(column * 8) {
        0 if mark == Some(column) => '┊',
        part @ 0..8 => STEPS[part],
        8.. => '█',
    };
    let cells: String = (0..BAR_COLUMNS).map(cell).collect();
    format!("▕{cells}▏")
}

/// Returns whether this process may draw on the terminal. After Ctrl-Z and `bg` a shell has it. A terminal without a
/// foreground process can be drawn on.
fn is_in_foreground() -> bool {
    rustix::termios::tcgetpgrp(std::io::stdout())
        .map_or(true, |group| group == rustix::process::getpgrp())
}

fn waiting(now: Timestamp, until: Timestamp, reason: &str) -> Doing {
    let what = if reason == "backoff" {
        "waiting after a failure"
    } else {
        "waiting"
    };
    Doing::Waiting {
        what,
        from: Instant::now(),
        lasts: until.since(now),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tachikoma_core::{Generation, LoopId, RebootReason, Seq, SessionNo, TurnEnd};

    #[test]
    fn progress_line_shows_the_context_the_tool_the_cost_and_pending_requests() {
        let mut screen = Screen::new(true, 100_000);
        let mut note = |event: LoopEvent| {
            screen.note(&Record {
                seq: Seq(1),
                time: Timestamp::default(),
                loop_id: LoopId::from_u128(1),
                event,
                input: None,
                reasons: Vec::new(),
            });
            let shown = screen.progress().unwrap_or_default();
            shown.render(false)
        };
        let measured = |tokens, redline_tokens| LoopEvent::ContextMeasured {
            context: Context {
                tokens,
                window: 200_000,
                estimated: false,
            },
            answering: true,
            redline_tokens,
        };
        let reason = RebootReason::Manual;
        let shown = [
            note(LoopEvent::IterationStarted {
                iteration: 7,
                attempt: 1,
                session: SessionNo(2),
                generation: Generation(1),
            }),
            note(measured(92_000, Some(170_000))),
            note(LoopEvent::ToolStarted {
                id: "t".to_owned(),
                name: "Bash".to_owned(),
                summary: "cargo test".to_owned(),
            }),
            note(measured(171_000, None)),
            note(LoopEvent::ToolEnded {
                id: "t".to_owned(),
                error: None,
            }),
            note(LoopEvent::TurnResulted(TurnEnd {
                cost_microusd: 330_000,
                ..TurnEnd::default()
            })),
            note(LoopEvent::RebootRequested {
                reason: reason.clone(),
                not_before: None,
            }),
            note(LoopEvent::RebootStarted {
                reason,
                iteration: 7,
                from: SessionNo(2),
                then: None,
            }),
            note(LoopEvent::SessionStarted {
                session: SessionNo(3),
                agent_id: None,
            }),
        ];
        assert_eq!(
            shown,
            [
                "iter 7  working 0.0 s  $0.10  0.0 s",
                "▕█████▌    ┊ ▏ 46 % 92k  iter 7  working 0.0 s  $0.10  0.0 s",
                "▕█████▌    ┊ ▏ 46 % 92k  iter 7  Bash cargo test 0.0 s  $0.10  0.0 s",
                "▕██████████▎ ▏ 85 % 171k  iter 7  Bash cargo test 0.0 s  $0.10  0.0 s",
                "▕██████████▎ ▏ 85 % 171k  iter 7  working 0.0 s  $0.10  0.0 s",
                "▕██████████▎ ▏ 85 % 171k  iter 7  working 0.0 s  $0.43  0.0 s",
                "▕██████████▎ ▏ 85 % 171k  iter 7  reboot pending  working 0.0 s  $0.43  0.0 s",
                "▕██████████▎ ▏ 85 % 171k  iter 7  working 0.0 s  $0.43  0.0 s",
                "iter 7  working 0.0 s  $0.43  0.0 s",
            ]
        );
    }

    #[test]
    fn bar_is_as_wide_for_every_fill() {
        for percent in 0..=120 {
            let shown = bar(f64::from(percent), Some(85.0));
            assert_eq!(shown.chars().count(), BAR_COLUMNS + 2, "{percent}");
        }
        assert_eq!(bar(0.0, None), "▕            ▏");
        assert_eq!(bar(100.0, Some(85.0)), "▕████████████▏");
    }
}
