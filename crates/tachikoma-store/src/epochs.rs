//! The epochs of a loop, read from its journal. After a restore or an accepted loss, record numbers are used again with a new
//! epoch. A record belongs to the loop only if its epoch matches.

use std::path::{Path, PathBuf};

use tachikoma_core::{Epoch, LoopEvent, Seq};

use super::encryption::Encryption;
use super::{journal, migrate};

/// The first records of the segments of a journal.
#[derive(Debug)]
pub struct Epochs<'a> {
    segments: Vec<(u32, PathBuf)>,
    encryption: &'a Encryption,
}

impl<'a> Epochs<'a> {
    /// Reads the segments in `dir`.
    pub fn of(dir: &Path, encryption: &'a Encryption) -> Self {
        // If the segments cannot be listed, no epoch is known.
        let segments = journal::segments(dir).unwrap_or_default();
        Self {
            segments,
            encryption,
        }
    }

    /// Returns the epoch and the number of the first record of a segment; `None` if it cannot be read.
    fn opened(&self, path: &Path) -> Option<(Epoch, Seq)> {
        let first = journal::first_record(migrate::JOURNAL, path, self.encryption)?;
        match first.event {
            LoopEvent::SegmentOpened { epoch, .. } => Some((epoch, first.seq)),
            _ => None,
        }
    }

    /// Returns the current epoch; `None` if it cannot be read.
    pub fn current(&self) -> Option<Epoch> {
        let mut newest_first = self.segments.iter().rev();
        let (epoch, _) = newest_first.find_map(|(_, path)| self.opened(path))?;
        Some(epoch)
    }

    /// Returns the position of an epoch in the journal; `None` if the journal does not have it.
    pub fn rank(&self, epoch: &Epoch) -> Option<usize> {
        let is_it = |(_, path): &(u32, PathBuf)| {
            self.opened(path)
                .is_some_and(|(opened, _)| opened == *epoch)
        };
        self.segments.iter().rposition(is_it)
    }

    /// Returns the position of the current epoch in the journal; `None` if it cannot be read.
    pub fn current_rank(&self) -> Option<usize> {
        self.segments
            .iter()
            .rposition(|(_, path)| self.opened(path).is_some())
    }

    /// Returns whether a record of an epoch may be part of the loop. True if that is unknown.
    pub fn may_have(&self, epoch: &Epoch, seq: Seq) -> bool {
        for (_, path) in self.segments.iter().rev() {
            match self.opened(path) {
                Some((opened, _)) if opened == *epoch => return true,
                Some((_, first)) if first <= seq => return false,
                Some(_) => {}
                // An unreadable segment may belong to that epoch.
                None => return true,
            }
        }
        true
    }

    /// Returns whether a record of an epoch is certainly part of the loop. `segment` is the segment that contains it.
    pub fn has(&self, epoch: &Epoch, seq: Seq, segment: Option<u32>) -> bool {
        if epoch.is_unknown() {
            return segment.is_some_and(|segment| self.has_by_number(seq, segment));
        }
        for (number, path) in self.segments.iter().rev() {
            match self.opened(path) {
                Some((opened, _)) if opened == *epoch => return true,
                Some((_, first)) if first <= seq => return false,
                Some(_) => {}
                // The first segment always belongs to the loop. Any other unreadable segment may belong to another epoch.
                None => return *number == 1 && segment == Some(1),
            }
        }
        false
    }

    /// Checks a record of a version without epochs. Such versions never continued a segment after a restore.
    fn has_by_number(&self, seq: Seq, segment: u32) -> bool {
        let mut following = self.segments.iter();
        if !following.any(|(number, _)| *number == segment) {
            return false;
        }
        let next = following.next();
        next.is_none_or(|(_, path)| self.opened(path).is_some_and(|(_, first)| first > seq))
    }
}
