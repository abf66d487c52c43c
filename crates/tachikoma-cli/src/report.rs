//! Reports the progress of a running loop to a person or a program. The reporter has its own thread: a stopped terminal
//! or a full pipe blocks the report, but never the loop.

pub mod changes;
pub mod check;
pub mod found;
pub mod line;
pub mod progress;
pub mod question;
pub mod span;
pub mod symbol;
pub mod tool_calls;

use std::path::PathBuf;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use tachikoma_core::{Record, Seq};
use tachikoma_loop_runner::store::encryption::Encryption;
use tachikoma_loop_runner::{Notice, journal_reader};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::mpsc;

use crate::out;
use crate::sanitize::sanitize;
use crate::view::text::{Text, Tone};
use crate::zone::local;
use line::Lines;
use progress::Screen;
use symbol::Symbol;

/// How long the end of the program, or Ctrl-Z, waits for a report that is blocked.
const PATIENCE: Duration = Duration::from_secs(2);

/// Interval at which the progress line is redrawn.
const REDRAW: Duration = Duration::from_millis(500);

/// The form of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Lines for people.
    Lines,
    /// The records of the journal.
    Json,
    /// Only the outcome.
    Quiet,
}

enum ReportCommand {
    Hide(SyncSender<()>),
    Show,
    Finish(SyncSender<()>),
}

/// A handle on the reporter thread.
#[derive(Clone, Debug)]
pub struct Reporter {
    orders: mpsc::UnboundedSender<ReportCommand>,
}

impl Reporter {
    /// Starts the reporter. `dir` is the directory of the loop. Missed records are read from there: records after
    /// `seen` up to `written` exist already, and `notices` has all later ones. `spent_microusd` is the cost of the loop so far.
    pub fn start(
        style: Style,
        notices: broadcast::Receiver<Notice>,
        (dir, encryption): (PathBuf, Encryption),
        (seen, written): (Seq, Seq),
        (lines, spent_microusd): (Lines, u64),
    ) -> Self {
        let (orders, inbox) = mpsc::unbounded_channel();
        if style == Style::Quiet {
            // In quiet mode no thread is started, so that the loop does not wake it for every record.
            return Self { orders };
        }
        let screen = Screen::new(style == Style::Lines, spent_microusd);
        let writer = ReportWriter {
            style,
            dir,
            encryption,
            seen,
            screen,
            lines,
        };
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build();
            if let Ok(runtime) = runtime {
                runtime.block_on(writer.report(written, notices, inbox));
            }
        });
        Self { orders }
    }

    /// Removes the progress line.
    pub fn hide_progress(&self) {
        let (done, is_done) = sync_channel(1);
        if self.orders.send(ReportCommand::Hide(done)).is_ok() {
            let _ = is_done.recv_timeout(PATIENCE);
        }
    }

    /// Redraws the progress line.
    pub fn show_progress(&self) {
        let _ = self.orders.send(ReportCommand::Show);
    }

    /// Prints the remaining notices and ends the reporter. Does not wait long for a blocked report.
    pub fn finish(self) {
        let (done, is_done) = sync_channel(1);
        if self.orders.send(ReportCommand::Finish(done)).is_ok() {
            let _ = is_done.recv_timeout(PATIENCE);
        }
    }
}

struct ReportWriter {
    style: Style,
    dir: PathBuf,
    encryption: Encryption,
    seen: Seq,
    screen: Screen,
    lines: Lines,
}

impl ReportWriter {
    async fn report(
        mut self,
        written: Seq,
        mut notices: broadcast::Receiver<Notice>,
        mut orders: mpsc::UnboundedReceiver<ReportCommand>,
    ) {
        // Only existing records are read here, because agent output is shown between later ones.
        self.catch_up(written);
        let mut open = true;
        // The thread ends on request, or when the last handle is dropped.
        loop {
            tokio::select! {
                biased;
                notice = notices.recv(), if open => match notice {
                    Ok(notice) => self.notice(&notice),
                    Err(RecvError::Lagged(_)) => self.catch_up(Seq(u64::MAX)),
                    Err(RecvError::Closed) => open = false,
                },
                order = orders.recv() => match order {
                    Some(ReportCommand::Hide(done)) => {
                        self.screen.hide();
                        let _ = done.send(());
                    }
                    Some(ReportCommand::Show) => {
                        self.screen.show();
                    }
                    Some(ReportCommand::Finish(done)) => {
                        self.drain(&mut notices);
                        self.screen.clear();
                        let _ = done.send(());
                        return;
                    }
                    None => return,
                },
                () = tokio::time::sleep(REDRAW), if self.screen.is_live() => self.screen.draw(),
            }
        }
    }

    /// Prints notices that were received and not shown yet.
    fn drain(&mut self, notices: &mut broadcast::Receiver<Notice>) {
        loop {
            match notices.try_recv() {
                Ok(notice) => self.notice(&notice),
                Err(TryRecvError::Lagged(_)) => self.catch_up(Seq(u64::MAX)),
                Err(TryRecvError::Empty | TryRecvError::Closed) => return,
            }
        }
    }

    fn notice(&mut self, notice: &Notice) {
        match notice {
            Notice::Recorded(record) => self.record(record),
            Notice::Output { line, .. } if self.style == Style::Lines => {
                self.screen.print(&agent_line(&sanitize(line)));
            }
            Notice::OutputSkipped { lines } if self.style == Style::Lines => {
                let more = format!("... {lines} more lines; `tachikoma logs` shows them");
                self.screen.print(&agent_line(&more));
            }
            Notice::DiskFull { until } if self.style == Style::Lines => {
                let until = local(*until);
                let text = format!("disk full: waiting for free space until {until}");
                self.screen.print(&Symbol::Wait.line(text));
            }
            Notice::Output { .. } | Notice::OutputSkipped { .. } | Notice::DiskFull { .. } => {}
        }
    }

    /// Reads missed records up to `up_to` from the journal.
    fn catch_up(&mut self, up_to: Seq) {
        let mut missed = Vec::new();
        // Damaged records are skipped; other commands report them.
        let _ = journal_reader::records(&self.dir, &self.encryption, self.seen, |record| {
            missed.extend(Some(record).filter(|record| record.seq <= up_to));
        });
        for record in &missed {
            self.record(record);
        }
    }

    fn record(&mut self, record: &Record) {
        if record.seq <= self.seen {
            return;
        }
        self.seen = record.seq;
        match self.style {
            Style::Lines => {
                self.screen.note(record);
                for line in self.lines.of(record) {
                    self.screen.print(&line);
                }
            }
            Style::Json => out::report(&json(record)),
            Style::Quiet => {}
        }
    }
}

/// Returns a line of the agent. Its prefix shows that the agent wrote it, so that it cannot be taken for a line of the loop.
fn agent_line(text: &str) -> Text {
    Text::new(Tone::Agent, "  | ").and(text)
}

/// Returns a record as a line of the journal.
pub fn json(plain: &impl serde::Serialize) -> String {
    serde_json::to_string(plain).expect("records can be serialized")
}
