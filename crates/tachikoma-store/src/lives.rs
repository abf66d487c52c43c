//! Which lives a loop has led, as its journal tells. After a restoration, or a loss that was accepted, records get numbers that
//! others have had: what stands at a record is part of the loop only if it is of the life in which that record is.

use std::path::{Path, PathBuf};

use tachikoma_core::{Epoch, LoopEvent, Seq};

use super::vault::Vault;
use super::{journal, migrate};

/// The segments of a journal.
#[derive(Debug)]
pub struct Lives<'a> {
    segments: Vec<(u32, PathBuf)>,
    vault: &'a Vault,
}

/// How a segment begins.
struct Opened {
    life: Epoch,
    seq: Seq,
}

impl<'a> Lives<'a> {
    /// Looks at the journal in `dir`.
    pub fn of(dir: &Path, vault: &'a Vault) -> Self {
        // Without one nothing is known.
        let segments = journal::segments(dir).unwrap_or_default();
        Self { segments, vault }
    }

    fn opened(&self, path: &Path) -> Option<Opened> {
        let first = journal::first_record(migrate::JOURNAL, path, self.vault)?;
        let seq = first.seq;
        if let LoopEvent::SegmentOpened { life, .. } = first.event {
            return Some(Opened { life, seq });
        }
        None
    }

    /// Returns the life that the loop leads, as far as that can be read.
    pub fn current(&self) -> Option<Epoch> {
        let newest_first = self.segments.iter().rev();
        newest_first
            .filter_map(|(_, path)| self.opened(path))
            .map(|opened| opened.life)
            .next()
    }

    /// Returns how late in the loop a life is; none if the journal does not tell of it.
    pub fn rank(&self, life: &Epoch) -> Option<usize> {
        let is_it = |(_, path): &(u32, PathBuf)| {
            self.opened(path).is_some_and(|opened| opened.life == *life)
        };
        self.segments.iter().rposition(is_it)
    }

    /// Returns how late the life is that the loop leads, as far as that can be read.
    pub fn current_rank(&self) -> Option<usize> {
        self.segments
            .iter()
            .rposition(|(_, path)| self.opened(path).is_some())
    }

    /// Returns whether nothing speaks against what stands at a record of that life being part of the loop.
    pub fn may_have(&self, life: &Epoch, seq: Seq) -> bool {
        for (_, path) in self.segments.iter().rev() {
            match self.opened(path) {
                Some(opened) if opened.life == *life => return true,
                Some(opened) if opened.seq <= seq => return false,
                Some(_) => {}
                // It may be of that life.
                None => return true,
            }
        }
        true
    }

    /// Returns whether what stands at a record of that life is part of the loop. `segment` is the one that it has.
    pub fn has(&self, life: &Epoch, seq: Seq, segment: Option<u32>) -> bool {
        if life.is_unknown() {
            return segment.is_some_and(|segment| self.has_by_number(seq, segment));
        }
        for (number, path) in self.segments.iter().rev() {
            match self.opened(path) {
                Some(opened) if opened.life == *life => return true,
                Some(opened) if opened.seq <= seq => return false,
                Some(_) => {}
                // A loop has begun with the first one, and no restoration does. Any other may be of another life.
                None => return *number == 1 && segment == Some(1),
            }
        }
        false
    }

    /// Versions that gave lives no name never went on in a segment that a restoration had found.
    fn has_by_number(&self, seq: Seq, segment: u32) -> bool {
        let mut following = self.segments.iter();
        if !following.any(|(number, _)| *number == segment) {
            return false;
        }
        let next = following.next();
        next.is_none_or(|(_, path)| self.opened(path).is_some_and(|opened| opened.seq > seq))
    }
}
