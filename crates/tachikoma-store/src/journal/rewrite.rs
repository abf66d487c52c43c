//! Rewrites closed segments, for a restore or a recovery.

use std::io::{self, Read as _};
use std::path::Path;

use tachikoma_core::LoopEvent;
use tachikoma_fs::atomic_file::Durability;
use tachikoma_fs::sync_dir;

use super::read::{first_record, read_line};
use crate::checked_line::encode;
use crate::compressed::{self, form_of};
use crate::encryption::Encryption;
use crate::{StoreError, migrate};

/// Replaces a compressed segment by its first `len` bytes, which are complete records, because the rest is damaged. The caller has
/// saved a copy. If `len` is 0, the segment is removed.
pub fn keep_beginning(path: &Path, len: u64, encryption: &Encryption) -> Result<(), StoreError> {
    let mut content = compressed::open_lines(path, encryption)
        .map_err(StoreError::io("open", path))?
        .content;
    let mut bytes = Vec::new();
    // The file is read line by line, because a larger read may reach the damaged part.
    while (bytes.len() as u64) < len {
        let read = read_line(&mut content, &mut bytes);
        if read.map_err(StoreError::io("read", path))? == 0 {
            let source = io::Error::from(io::ErrorKind::UnexpectedEof);
            return Err(StoreError::io("read", path)(source));
        }
    }
    if !bytes.is_empty() {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let plain = path.with_file_name(form_of(&name).0);
        // After this write, readers use the plain file.
        encryption.write(&plain, &bytes, Durability::Synced)?;
        if plain == path {
            return Ok(());
        }
    }
    std::fs::remove_file(path).map_err(StoreError::io("remove", path))?;
    path.parent().map_or(Ok(()), sync_dir)?;
    Ok(())
}

/// Adds the missing line end to the last record of a segment.
pub fn end_line(path: &Path, encryption: &Encryption) -> Result<(), StoreError> {
    let mut bytes = content(path, encryption)?;
    if bytes.last().is_some_and(|last| *last != b'\n') {
        bytes.push(b'\n');
        encryption.write(path, &bytes, Durability::Synced)?;
    }
    Ok(())
}

/// Marks in the first record of a segment that earlier records are lost. Returns whether the segment can be read.
pub fn mark_loss(path: &Path, encryption: &Encryption) -> Result<bool, StoreError> {
    let Some(mut first) = first_record(migrate::JOURNAL, path, encryption) else {
        return Ok(false);
    };
    let LoopEvent::SegmentOpened { after_loss, .. } = &mut first.event else {
        return Ok(false);
    };
    *after_loss = true;
    let bytes = content(path, encryption)?;
    let end = bytes.iter().position(|byte| *byte == b'\n');
    let rest = &bytes[end.map_or(bytes.len(), |end| end + 1)..];
    let mut text = Vec::new();
    encode(&first, &mut text);
    text.extend_from_slice(rest);
    encryption.write(path, &text, Durability::Synced)?;
    Ok(true)
}

fn content(path: &Path, encryption: &Encryption) -> Result<Vec<u8>, StoreError> {
    let mut bytes = Vec::new();
    compressed::open(path, encryption)
        .and_then(|mut opened| opened.content.read_to_end(&mut bytes))
        .map_err(StoreError::io("read", path))?;
    Ok(bytes)
}
