//! Reads the records of a loop one by one. Damage is skipped and reported.

use std::path::Path;

use tachikoma_core::{Record, Seq};
use tachikoma_loop_runner::journal_reader::{self, DamagedSegment};
use tachikoma_loop_runner::store::StoreError;
use tachikoma_loop_runner::store::encryption::Encryption;

use crate::failure::chain;
use crate::out;
use crate::sanitize::sanitize;

/// Reads the records of the loop in `dir` after `after`, and prints messages about records that cannot be read.
pub fn read(
    dir: &Path,
    encryption: &Encryption,
    after: Seq,
    each: impl FnMut(Record),
) -> Result<(), StoreError> {
    for words in read_quietly(dir, encryption, after, each)? {
        out::note(&words);
    }
    Ok(())
}

/// Reads the records like [`read`], but returns the damage and prints nothing.
pub fn read_quietly(
    dir: &Path,
    encryption: &Encryption,
    after: Seq,
    each: impl FnMut(Record),
) -> Result<Vec<String>, StoreError> {
    let reach = journal_reader::records(dir, encryption, after, each)?;
    Ok(reach.damaged.iter().map(describe_damage).collect())
}

fn describe_damage(damaged: &DamagedSegment) -> String {
    let more = match damaged.more {
        0 => String::new(),
        1 => ", and one more like it there".to_owned(),
        more => format!(", and {more} more like it there"),
    };
    let what = chain(&damaged.first);
    sanitize(&format!(
        "note: {what}{more}; those records are missing here"
    ))
    .into_owned()
}
