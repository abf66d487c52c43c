//! What a person or a program sees of a running loop. The reporter has a thread of its own: a terminal that is stopped
//! or a pipe that nobody reads holds up the report, and never the loop.

pub mod changes;
pub mod check;
pub mod found;
pub mod line;
pub mod progress;
pub mod question;

use std::path::PathBuf;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use tachikoma_core::{Record, Seq};
use tachikoma_loop_runner::store::vault::Vault;
use tachikoma_loop_runner::{Notice, journal_reader};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::mpsc;

use crate::out;
use crate::sanitise::sanitise;
use line::Lines;
use progress::Screen;

/// How long the end of the program, or Ctrl-Z, waits for a report that is held up.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often the progress line is drawn anew.
const REDRAW: Duration = Duration::from_millis(500);

/// What is reported, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Lines for people.
    Lines,
    /// The journal's records.
    Json,
    /// Only how it ended.
    Quiet,
}

enum Order {
    Hide(SyncSender<()>),
    Show,
    Finish(SyncSender<()>),
}

/// A handle on the reporter.
#[derive(Clone, Debug)]
pub struct Reporter {
    orders: mpsc::UnboundedSender<Order>,
}

impl Reporter {
    /// Begins to report what happens. `dir` is the loop's own, where records that were missed can be read: those from the first after
    /// `seen` up to `written` are there already, and notices tell of all behind them.
    pub fn start(
        style: Style,
        notices: broadcast::Receiver<Notice>,
        (dir, vault): (PathBuf, Vault),
        (seen, written): (Seq, Seq),
        lines: Lines,
    ) -> Self {
        let (orders, inbox) = mpsc::unbounded_channel();
        if style == Style::Quiet {
            // Nothing to report: no thread, and nobody for the loop to wake with every record.
            return Self { orders };
        }
        let screen = Screen::new(style == Style::Lines);
        let desk = Desk {
            style,
            dir,
            vault,
            seen,
            screen,
            lines,
        };
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build();
            if let Ok(runtime) = runtime {
                runtime.block_on(desk.report(written, notices, inbox));
            }
        });
        Self { orders }
    }

    /// Takes the progress line away.
    pub fn hide_progress(&self) {
        let (done, is_done) = sync_channel(1);
        if self.orders.send(Order::Hide(done)).is_ok() {
            let _ = is_done.recv_timeout(PATIENCE);
        }
    }

    /// Draws the progress line again.
    pub fn show_progress(&self) {
        let _ = self.orders.send(Order::Show);
    }

    /// Reports what is left and ends; does not wait for a report that is held up.
    pub fn finish(self) {
        let (done, is_done) = sync_channel(1);
        if self.orders.send(Order::Finish(done)).is_ok() {
            let _ = is_done.recv_timeout(PATIENCE);
        }
    }
}

struct Desk {
    style: Style,
    dir: PathBuf,
    vault: Vault,
    seen: Seq,
    screen: Screen,
    lines: Lines,
}

impl Desk {
    async fn report(
        mut self,
        written: Seq,
        mut notices: broadcast::Receiver<Notice>,
        mut orders: mpsc::UnboundedReceiver<Order>,
    ) {
        // No further: what the agent said comes between the records of then.
        self.catch_up(written);
        let mut open = true;
        // Ends by an order, or with the last handle on the reporter.
        loop {
            tokio::select! {
                biased;
                notice = notices.recv(), if open => match notice {
                    Ok(notice) => self.notice(&notice),
                    Err(RecvError::Lagged(_)) => self.catch_up(Seq(u64::MAX)),
                    Err(RecvError::Closed) => open = false,
                },
                order = orders.recv() => match order {
                    Some(Order::Hide(done)) => {
                        self.screen.hide();
                        let _ = done.send(());
                    }
                    Some(Order::Show) => {
                        self.screen.show();
                    }
                    Some(Order::Finish(done)) => {
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

    /// Reports what has come and was not looked at yet.
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
                self.screen.print(&format!("  | {}", sanitise(line)));
            }
            Notice::OutputSkipped { lines } if self.style == Style::Lines => {
                self.screen.print(&format!(
                    "  | ... {lines} more lines; `tachikoma logs` has what is kept of them"
                ));
            }
            Notice::DiskFull { until } if self.style == Style::Lines => {
                self.screen.print(&format!(
                    "the disk is full: nothing can be written down; waits for room until {until}"
                ));
            }
            Notice::Output { .. } | Notice::OutputSkipped { .. } | Notice::DiskFull { .. } => {}
        }
    }

    /// Records that came faster than they could be shown are in the journal; they are shown up to one of them.
    fn catch_up(&mut self, up_to: Seq) {
        let mut missed = Vec::new();
        // What is damaged is no part of it; whoever looks at the loop is told.
        let _ = journal_reader::records(&self.dir, &self.vault, self.seen, |record| {
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
            Style::Json => out::tell(&json(record)),
            Style::Quiet => {}
        }
    }
}

/// Returns a record as the journal has it.
pub fn json(plain: &impl serde::Serialize) -> String {
    serde_json::to_string(plain).expect("plain data always serialises")
}
