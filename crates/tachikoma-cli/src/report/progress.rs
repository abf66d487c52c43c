//! The progress line at the bottom of a terminal.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use tachikoma_core::{Context, LoopEvent, OperatorEvent, Record, Timestamp};

use super::span::span;
use crate::out::harmless;

/// Width that is used if the terminal does not report its width.
const COLUMNS: usize = 80;

/// Standard output, with a progress line at the bottom if it is a terminal.
#[derive(Debug)]
pub struct Screen {
    terminal: bool,
    broken: bool,
    drawn: bool,
    hidden: bool,
    doing: Option<Doing>,
    iteration: u32,
    session: u32,
    context: Option<f64>,
    /// The redline in percent; `None` if it is unknown.
    redline: Option<f64>,
    reboot_pending: bool,
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
    /// Creates the screen. `progress` says whether a progress line is wanted.
    pub fn new(progress: bool) -> Self {
        Self {
            terminal: progress && std::io::stdout().is_terminal(),
            broken: false,
            drawn: false,
            hidden: false,
            doing: None,
            iteration: 0,
            session: 0,
            context: None,
            redline: None,
            reboot_pending: false,
        }
    }

    /// Returns whether there is a progress line to redraw.
    pub fn is_live(&self) -> bool {
        self.terminal && !self.hidden && self.doing.is_some()
    }

    /// Updates the values of the progress line from a record.
    pub fn note(&mut self, record: &Record) {
        match &record.event {
            LoopEvent::IterationStarted {
                iteration, session, ..
            } => {
                self.iteration = *iteration;
                self.session = session.0;
                self.doing = Some(Doing::Working {
                    since: Instant::now(),
                });
            }
            LoopEvent::SessionStarted { .. } => {
                self.context = None;
                self.redline = None;
            }
            LoopEvent::ContextMeasured {
                context,
                redline_tokens,
                ..
            } => {
                self.context = Some(context.percent());
                let redline = redline_tokens.map(|tokens| Context { tokens, ..*context });
                self.redline = redline.map(|at| at.percent()).or(self.redline);
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
    pub fn print(&mut self, line: &str) {
        self.clear();
        self.write(&format!("{}\n", harmless(line)));
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
        let columns = rustix::termios::tcgetwinsize(std::io::stdout())
            .map(|size| usize::from(size.ws_col))
            .ok()
            .filter(|columns| *columns > 0)
            .unwrap_or(COLUMNS);
        // The line is one column shorter than the terminal, because some terminals wrap after the last column.
        let shown: String = text.chars().take(columns - 1).collect();
        self.write(&format!("\r\u{1b}[2K\u{1b}[2m{shown}\u{1b}[0m"));
        self.drawn = true;
    }

    fn progress(&self) -> Option<String> {
        let doing = match self.doing.as_ref()? {
            Doing::Working { since } => span(since.elapsed()),
            Doing::Waiting { what, from, lasts } => {
                format!(
                    "{what}, {} left",
                    span(lasts.saturating_sub(from.elapsed()))
                )
            }
            Doing::Checking { since } => format!("checking, {}", span(since.elapsed())),
            Doing::Committing { since } => format!("committing, {}", span(since.elapsed())),
            Doing::Paused => "paused".to_owned(),
        };
        let redline = self
            .redline
            .map(|redline| format!(" (redline {redline:.0}%)"));
        let redline = redline.unwrap_or_default();
        let context = self
            .context
            .map(|percent| format!(" | context {percent:.0}%{redline}"))
            .unwrap_or_default();
        let reboot = if self.reboot_pending {
            " | reboot pending"
        } else {
            ""
        };
        // Before the first iteration that this screen has seen, only the activity is shown.
        if self.iteration == 0 {
            return Some(doing);
        }
        Some(format!(
            "iteration {} | session {}{context}{reboot} | {doing}",
            self.iteration, self.session
        ))
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
    use tachikoma_core::{Generation, LoopId, RebootReason, Seq, SessionNo};

    #[test]
    fn progress_line_shows_the_context_the_redline_and_pending_requests() {
        let mut screen = Screen::new(true);
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
            shown.rsplit_once(" | ").map(|(shown, _)| shown.to_owned())
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
        let began = LoopEvent::IterationStarted {
            iteration: 7,
            attempt: 1,
            session: SessionNo(2),
            generation: Generation(1),
        };
        let reason = RebootReason::Manual;
        let shown = [
            note(began),
            note(measured(20_000, Some(170_000))),
            note(measured(171_000, None)),
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
        let shown: Vec<&str> = shown
            .iter()
            .map(|line| line.as_deref().unwrap_or_default())
            .collect();
        assert_eq!(
            shown,
            [
                "iteration 7 | session 2",
                "iteration 7 | session 2 | context 10% (redline 85%)",
                "iteration 7 | session 2 | context 86% (redline 85%)",
                "iteration 7 | session 2 | context 86% (redline 85%) | reboot pending",
                "iteration 7 | session 2 | context 86% (redline 85%)",
                "iteration 7 | session 2",
            ]
        );
    }
}
