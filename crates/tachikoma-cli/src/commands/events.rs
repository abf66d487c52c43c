//! `tachikoma events`: prints the past records of a loop, and follows new ones.

use std::path::Path;
use std::process::ExitCode;

use tachikoma_core::{Record, Seq};
use tachikoma_loop_runner::control::{Client, ControlRequest, Response};
use tachikoma_loop_runner::store::encryption::Encryption;

use super::control::{live_socket, unreachable_runner};
use super::records;
use crate::failure::Failure;
use crate::out;
use crate::report::json;
use crate::report::line::Lines;
use crate::runtime::runtime;
use crate::view::text::{Text, Tone};
use crate::workspace::{Current, Workspace};

/// Width of the time before each line, with its space.
const TIME_COLUMNS: usize = 25;

/// Prints the records of the current loop.
pub fn events(workspace: &Workspace, follow: bool, json: bool) -> Result<ExitCode, Failure> {
    let Current {
        dir,
        working_dir,
        encryption,
        ..
    } = workspace.current_loop()?;
    let mut printer = EventPrinter {
        encryption,
        json,
        seen: Seq(0),
        lines: Lines::new(out::columns().saturating_sub(TIME_COLUMNS)),
        said: Vec::new(),
    };
    printer.catch_up(&dir)?;
    if follow {
        runtime()?.block_on(printer.follow(&working_dir, &dir))?;
    }
    Ok(ExitCode::SUCCESS)
}

struct EventPrinter {
    encryption: Encryption,
    json: bool,
    seen: Seq,
    lines: Lines,
    /// Messages about damage that were already printed.
    said: Vec<String>,
}

impl EventPrinter {
    fn catch_up(&mut self, dir: &Path) -> Result<(), Failure> {
        let (after, encryption) = (self.seen, self.encryption.clone());
        let damaged = records::read_quietly(dir, &encryption, after, |record| self.print(&record))?;
        for words in damaged {
            // A message is printed once, although `--follow` reads the journal several times.
            if !self.said.contains(&words) {
                out::note(&words);
                self.said.push(words);
            }
        }
        Ok(())
    }

    /// Follows a running loop until it ends. If this process reads too slowly, it reads missed records from the journal.
    async fn follow(&mut self, working_dir: &Path, dir: &Path) -> Result<(), Failure> {
        while let Some(socket) = live_socket(working_dir) {
            let mut client = Client::connect(&socket)
                .await
                .map_err(|error| unreachable_runner(&error))?;
            let request = ControlRequest::Follow { after: self.seen };
            client
                .send(&request)
                .await
                .map_err(|error| unreachable_runner(&error))?;
            loop {
                match client
                    .next()
                    .await
                    .map_err(|error| unreachable_runner(&error))?
                {
                    Some(Response::Record { record }) if record.seq == self.seen.next() => {
                        self.print(&record);
                    }
                    // Records from before the connection are already in the journal.
                    Some(Response::Following | Response::Record { .. }) => self.catch_up(dir)?,
                    Some(Response::Refused { reason }) => return Err(Failure::new(reason)),
                    Some(Response::Behind) => break,
                    Some(Response::Status { .. } | Response::Answer { .. }) | None => {
                        return self.catch_up(dir);
                    }
                }
            }
        }
        self.catch_up(dir)
    }

    fn print(&mut self, record: &Record) {
        if record.seq <= self.seen {
            return;
        }
        let expected = self.seen.next();
        if record.seq > expected {
            out::note(&format!(
                "note: the records from {expected} to {} are lost; the journal continues at {}",
                record.seq.0 - 1,
                record.seq
            ));
        }
        self.seen = record.seq;
        if self.json {
            return out::line(&json(record));
        }
        for line in self.lines.of(record) {
            out::text(&Text::new(Tone::Detail, format!("{} ", record.time)).join(line));
        }
    }
}
