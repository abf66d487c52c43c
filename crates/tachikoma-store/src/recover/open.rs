//! Opens a recovered journal for appending. Unreadable parts are moved to the quarantine first, so that they are not overwritten.

use std::path::{Path, PathBuf};

use tachikoma_core::{Input, Policy, Record, State, Timestamp, step};
use tachikoma_fs::quarantine::{keep_copy, keep_tail, quarantine};
use tachikoma_fs::{atomic_file, make_dir};

use super::{End, InTheWay, Recovered};
use crate::backup::Moment;
use crate::journal::{Journal, new_epoch, rewrite};
use crate::snapshot::{self, Snapshot};
use crate::{StoreError, archived_snapshot, compressed, encryption};

/// A recovered journal that is open for new records.
#[derive(Debug)]
pub struct Taken {
    /// The open journal.
    pub journal: Journal,
    /// The state after the last record of the journal.
    pub state: State,
    /// Warnings that were recorded and synced.
    pub warned: Vec<Record>,
}

impl Recovered {
    /// Returns the input for a backup. A journal that is damaged or older than the state is left out.
    pub fn moment(&self, dir: &Path, working_dir: &Path, now: Timestamp) -> Moment {
        let is_good = !self.newer_than_journal && !self.tolerated && self.cut.is_empty();
        let original = |(path, _): &(PathBuf, u32)| snapshot::bytes(path, &self.encryption).ok();
        Moment {
            snapshot: Box::new(Snapshot::of(&self.state, working_dir, now)),
            original: self.older.as_ref().and_then(original),
            journal: self
                .end
                .as_ref()
                .filter(|_| is_good)
                .map(|end| end.part.clone()),
            loop_dir: dir.to_owned(),
            work: None,
            before_restore: false,
        }
    }

    /// Returns whether [`Recovered::open`] converts files to newer format versions.
    pub fn is_older(&self) -> bool {
        self.older.is_some() || self.end.as_ref().is_some_and(|end| end.older)
    }

    /// Opens the journal at its end and records the warnings. The lock of the working directory must be held.
    ///
    /// # Errors
    /// The journal cannot be opened or written.
    pub fn open(mut self, dir: &Path, working_dir: &Path) -> Result<Taken, StoreError> {
        self.quarantine_files(working_dir)?;
        let mut journal = self.open_at_end(dir, working_dir)?;
        let Self {
            mut state,
            troubles,
            ..
        } = self;
        let mut warned = Vec::new();
        for warning in troubles {
            let now = state.time;
            let input = Input::Warning { warning };
            warned.extend(step(&Policy::default(), &mut state, now, input).records);
        }
        if !warned.is_empty() {
            journal.append_synced(&warned)?;
        }
        Ok(Taken {
            journal,
            state,
            warned,
        })
    }

    /// Moves foreign files, and segments with lost records, to the quarantine.
    fn quarantine_files(&self, working_dir: &Path) -> Result<(), StoreError> {
        if let Some((path, version)) = &self.older {
            // The old file is kept, because the next snapshot is written in the newest format version.
            atomic_file::keep_beside(path, &format!(".v{version}"))?;
        }
        if let Some(first) = self.cut.first() {
            // The beginning of the first segment is valid and is not moved.
            keep_copy(working_dir, first)?;
        }
        for path in self.cut.iter().skip(1) {
            quarantine(working_dir, path)?;
        }
        match &self.in_the_way {
            None => Ok(()),
            Some(InTheWay::Unreadable(path)) => {
                quarantine(working_dir, path)?;
                Ok(())
            }
            Some(InTheWay::OfAnother(path, loop_id)) => {
                archived_snapshot::set_aside(working_dir, path, *loop_id, &self.encryption)
            }
        }
    }

    fn open_at_end(&mut self, dir: &Path, working_dir: &Path) -> Result<Journal, StoreError> {
        let keys = &self.encryption;
        let state = &mut self.state;
        let now = state.time;
        let begin_anew = |state: &mut State, segment| {
            let begun = Journal::anew(dir, working_dir, segment, state, (now, new_epoch()), keys);
            begun.map(|(journal, _)| journal)
        };
        let Some(End {
            part: end, older, ..
        }) = self.end.take()
        else {
            make_dir(dir)?;
            return begin_anew(state, 1);
        };
        if compressed::is_compressed(&end.path) || encryption::is_age(&end.path) {
            // No record is appended to a damaged segment. The next segment is started, or the same number again if the segment has
            // no records.
            let mut number = end.segment + 1;
            if self.cut.first() == Some(&end.path) {
                rewrite::keep_beginning(&end.path, end.len, keys)?;
                number -= u32::from(end.len == 0);
            }
            return begin_anew(state, number);
        }
        let there = std::fs::metadata(&end.path).map_err(StoreError::io("examine", &end.path))?;
        if there.len() > end.len && self.cut.is_empty() {
            keep_tail(working_dir, &end.path, end.len)?;
        }
        let mut journal = Journal::at(dir, end.path, end.segment, end.len, keys)?;
        if end.unended {
            journal.end_line()?;
        }
        if end.len == 0 {
            let epoch = match self.newer_than_journal {
                true => new_epoch(),
                false => state.epoch.clone(),
            };
            journal.open_segment(state, now, self.newer_than_journal, epoch)?;
        } else if self.newer_than_journal {
            journal.begin_anew(working_dir, state, now, new_epoch())?;
        } else if !self.cut.is_empty() {
            journal.next_segment_of(new_epoch(), state, now)?;
        } else if older || self.tolerated || !journal.is_in_form() {
            journal.next_segment(state, now)?;
        }
        Ok(journal)
    }
}
