//! When the loop is backed up: when it is taken up again, when a session is about to be replaced, and once in an interval.
//! The backup itself is taken beside the loop.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use tachikoma_core::{Incident, Input, LoopEvent, LoopId, Record, Seq};
use tokio::time::Instant;

use super::upkeep::Elsewhere;
use super::{LoopRunner, RunError};
use crate::clock::{self, Clock};
use crate::config::LoopConfig;
use crate::error::chain;
use crate::git::Whose;
use crate::store::backup::{self, Moment};
use crate::store::loops;
use crate::store::recover::Recovered;
use crate::store::snapshot::Snapshot;

/// What is known of the backups of this run.
#[derive(Debug)]
pub(super) struct Backing {
    /// What the last one stands at.
    last: Option<Seq>,
    /// When that was, or the run began.
    since: Instant,
    /// Whether it was said that there was no room for one: once until there is.
    said: bool,
    /// Whose the changes of the work tree are that nobody has looked at.
    whose: Arc<Mutex<Whose>>,
}

impl Backing {
    pub(super) fn new() -> Self {
        Self {
            last: None,
            since: now(),
            said: false,
            whose: Arc::new(Mutex::new(Whose::Others)),
        }
    }

    /// Takes note of records: that the last backup was copied is no reason for another one.
    pub(super) fn note(&mut self, records: &[Record]) {
        for record in records {
            let is_of_copy = matches!(
                record.event,
                LoopEvent::Incident(Incident::CloudCopied { .. } | Incident::CloudFailed { .. })
            );
            if is_of_copy && self.last.map(Seq::next) == Some(record.seq) {
                self.last = Some(record.seq);
            }
        }
    }
}

/// Returns whether records are those of a session that is about to be replaced.
pub(super) fn is_wanted(records: &[Record]) -> bool {
    let is_reboot = |record: &Record| matches!(record.event, LoopEvent::RebootStarted { .. });
    records.iter().any(is_reboot)
}

impl LoopRunner {
    /// Returns when the next backup is due by the clock.
    pub(super) fn backup_due(&self) -> Option<Instant> {
        let state = &self.config.settings.state;
        let interval = state.backup_interval.get();
        (state.enabled && !interval.is_zero()).then(|| self.backing.since + interval)
    }

    /// Backs the loop up if that is due.
    ///
    /// # Errors
    /// The journal cannot be synced.
    pub(super) fn backup_by_the_clock(&mut self) -> Result<(), RunError> {
        match self.backup_due() {
            Some(due) if due <= now() => self.back_up(),
            Some(_) | None => Ok(()),
        }
    }

    /// Takes note of whose the changes are from here on that nobody has looked at: a copy has them.
    pub(super) fn note_whose(&self) {
        let whose = self.whose();
        *self
            .backing
            .whose
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = whose;
    }

    /// Leaves a backup of the loop as it stands to be taken, unless it was taken already.
    ///
    /// # Errors
    /// The journal cannot be synced: a backup must not have what the journal may lose.
    pub(super) fn back_up(&mut self) -> Result<(), RunError> {
        self.backing.since = now();
        let config = &self.config;
        if !config.settings.state.enabled || self.backing.last == Some(self.state.seq) {
            return Ok(());
        }
        if let Err(error) = self.journal.sync() {
            self.unwritten = true;
            return Err(RunError::Journal(error));
        }
        // Another runner may have the directory, and whoever heals finds out.
        if !config.working_dir.is_dir() || !self.lock.is_in_place(&config.working_dir) {
            return Ok(());
        }
        let snapshot = Snapshot::of(&self.state, &config.working_dir, self.clock.now());
        let moment = Moment {
            snapshot: Box::new(snapshot),
            original: None,
            journal: Some(self.journal.part()),
            loop_dir: loops::dir(&config.working_dir, self.state.loop_id),
            work: None,
            before_restore: false,
        };
        let backups = config.backups();
        self.note_whose();
        let elsewhere = config.cloud().map(|cloud| Elsewhere {
            whose: Arc::clone(&self.backing.whose),
            work: config.work_of(self.state.loop_id),
            cloud,
        });
        if self.upkeep.back_up(backups, moment, elsewhere) {
            self.backing.last = Some(self.state.seq);
            self.backing.said = false;
        } else if !std::mem::replace(&mut self.backing.said, true) {
            let warning =
                "no backup was taken: those before it are still under way; the next one is tried in time"
                    .to_owned();
            self.queue.push_back(Input::Warning { warning });
        }
        Ok(())
    }
}

/// Backs a loop up before it is led to the formats of today. Returns why that was not possible.
pub(super) fn backup_first(config: &LoopConfig, dir: &Path, found: &Recovered) -> Option<String> {
    let now = Clock::starting_after(found.state.time).now();
    let moment = found.moment(dir, &config.working_dir, now);
    let taken = backup::take(&config.backups(), &moment, &AtomicBool::new(false));
    match taken {
        Ok(taken) => taken_with(&taken.troubles),
        Err(error) => Some(failed_backup(&chain(&error))),
    }
}

/// What is said of a backup that was taken, if anything is.
pub(super) fn taken_with(troubles: &[String]) -> Option<String> {
    let troubles = troubles.join("; ");
    (!troubles.is_empty())
        .then(|| format!("a backup was taken, and older ones are left: {troubles}"))
}

/// What is said of a backup that was not taken.
pub(super) fn failed_backup(why: &str) -> String {
    format!("no backup was taken: {why}")
}

/// Warns of beginning again where the loop is lost, and a backup of it is not.
pub(super) fn beginning_again(config: &LoopConfig, current: Option<LoopId>) -> Option<String> {
    if current.is_some() || config.new_loop {
        return None;
    }
    let backups = config.backups();
    let lost = backup::of_lost_loop(&backups.dir, &config.working_dir, &config.vault)?;
    let words = lost.words(&config.working_dir);
    Some(format!(
        "this is a new loop, but there was another one here: {words}"
    ))
}

fn now() -> Instant {
    Instant::from_std(clock::monotonic())
}
