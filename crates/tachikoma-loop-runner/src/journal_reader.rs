//! Reads the journal of a loop as far as it can be read. Nothing is written, and no lock is taken.

use std::path::Path;

use tachikoma_core::replay::Gap;
use tachikoma_core::{LoopEvent, Record, Seq};

use crate::store::StoreError;
use crate::store::encryption::Encryption;
use crate::store::journal::{self, JournalEnd};

/// Maximum number of gaps that are reported.
const GAPS_MAX: usize = 10;

/// The damage of one segment.
#[derive(Debug)]
pub struct DamagedSegment {
    /// The first error in the segment.
    pub first: StoreError,
    /// Number of further errors in the segment.
    pub more: usize,
}

/// How much of a journal could be read.
#[derive(Debug, Default)]
pub struct JournalRead {
    /// Segments that could not be read completely.
    pub damaged: Vec<DamagedSegment>,
    /// Gaps: records that do not follow the one before them. They and the rest of their segments were skipped.
    pub gaps: Vec<Gap>,
    /// Whether the last line of the journal is incomplete, because its writer died or is still writing.
    pub torn: bool,
}

impl JournalRead {
    /// Returns whether the journal was read completely.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.damaged.is_empty() && self.gaps.is_empty()
    }

    fn damaged(&mut self, error: StoreError) {
        match self.damaged.last_mut() {
            Some(known) if path_of(&known.first) == path_of(&error) => known.more += 1,
            Some(_) | None => self.damaged.push(DamagedSegment {
                first: error,
                more: 0,
            }),
        }
    }
}

fn path_of(error: &StoreError) -> Option<&Path> {
    match error {
        StoreError::Damaged { path, .. } => Some(path),
        _ => None,
    }
}

/// Reads the journal of the loop in `dir` from its first record. After damage or a gap, skips to the next record with a full state.
///
/// # Errors
/// No part of the journal can be read.
pub fn read(
    dir: &Path,
    encryption: &Encryption,
    mut each: impl FnMut(Record) -> Result<(), Gap>,
) -> Result<JournalRead, StoreError> {
    let mut gaps = Vec::new();
    let mut lost = false;
    let result = walk(dir, encryption, Seq(0), |read| {
        let Ok(record) = read else {
            lost = true;
            return;
        };
        // After damage or a gap, records are skipped until one that contains the full state.
        lost &= !matches!(record.event, LoopEvent::SegmentOpened { .. });
        if lost {
            return;
        }
        if let Err(gap) = each(record) {
            lost = true;
            if gaps.len() < GAPS_MAX {
                gaps.push(gap);
            }
        }
    })?;
    Ok(JournalRead { gaps, ..result })
}

/// Reads every readable record of the loop in `dir` after `after`.
///
/// # Errors
/// No part of the journal can be read.
pub fn records(
    dir: &Path,
    encryption: &Encryption,
    after: Seq,
    mut each: impl FnMut(Record),
) -> Result<JournalRead, StoreError> {
    walk(dir, encryption, after, |read| {
        if let Ok(record) = read {
            each(record);
        }
    })
}

/// Reads all records of a journal and collects the damage.
fn walk(
    dir: &Path,
    encryption: &Encryption,
    after: Seq,
    mut each: impl FnMut(Result<Record, ()>),
) -> Result<JournalRead, StoreError> {
    let mut result = JournalRead::default();
    let mut any = after > Seq(0);
    let end = journal::read_around(dir, encryption, after, |read| {
        any |= read.is_ok();
        each(read.map_err(|error| result.damaged(error)));
    })?;
    if !any && !result.damaged.is_empty() {
        return Err(result.damaged.remove(0).first);
    }
    result.torn = end == JournalEnd::Torn;
    Ok(result)
}
