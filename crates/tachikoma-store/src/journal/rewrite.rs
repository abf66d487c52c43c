//! Changes to segments that are not written to: a restoration and a recovery replace them by other content.

use std::io::{self, Read as _};
use std::path::Path;

use tachikoma_core::LoopEvent;
use tachikoma_fs::atomic_file::{Durability, write_whole};
use tachikoma_fs::sync_dir;

use super::read::{first_record, read_line};
use crate::checked_line::encode;
use crate::compressed::{self, form_of};
use crate::vault::Vault;
use crate::{StoreError, migrate};

/// Puts the first `len` bytes of a compressed segment, whole records all of them, in its place: the rest is damaged. A copy
/// of it must be kept already. Of none nothing is left.
pub fn keep_beginning(path: &Path, len: u64, vault: &Vault) -> Result<(), StoreError> {
    let mut content = compressed::open_lines(path, vault)
        .map_err(StoreError::io("open", path))?
        .content;
    let mut bytes = Vec::new();
    // Line by line, as it was read before: a larger piece might reach into what cannot be unpacked.
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
        // From here on the plain one counts.
        write_sealed(&plain, &bytes, vault)?;
        if plain == path {
            return Ok(());
        }
    }
    std::fs::remove_file(path).map_err(StoreError::io("remove", path))?;
    path.parent().map_or(Ok(()), sync_dir)?;
    Ok(())
}

/// Ends the last line of a segment, whose record is whole, if its line end is missing.
pub fn end_line(path: &Path, vault: &Vault) -> Result<(), StoreError> {
    let mut bytes = content(path, vault)?;
    if bytes.last().is_some_and(|last| *last != b'\n') {
        bytes.push(b'\n');
        write_sealed(path, &bytes, vault)?;
    }
    Ok(())
}

/// Has the first record of a segment say that what came before it is lost. Returns whether it can be read.
pub fn mark_loss(path: &Path, vault: &Vault) -> Result<bool, StoreError> {
    let Some(mut first) = first_record(migrate::JOURNAL, path, vault) else {
        return Ok(false);
    };
    let LoopEvent::SegmentOpened { after_loss, .. } = &mut first.event else {
        return Ok(false);
    };
    *after_loss = true;
    let bytes = content(path, vault)?;
    let end = bytes.iter().position(|byte| *byte == b'\n');
    let rest = &bytes[end.map_or(bytes.len(), |end| end + 1)..];
    let mut text = Vec::new();
    encode(&first, &mut text);
    text.extend_from_slice(rest);
    write_sealed(path, &text, vault)?;
    Ok(true)
}

fn write_sealed(path: &Path, bytes: &[u8], vault: &Vault) -> Result<(), StoreError> {
    let bytes = vault.seal(bytes).map_err(StoreError::io("seal", path))?;
    write_whole(path, &bytes, Durability::Synced)?;
    Ok(())
}

fn content(path: &Path, vault: &Vault) -> Result<Vec<u8>, StoreError> {
    let mut bytes = Vec::new();
    compressed::open(path, vault)
        .and_then(|mut opened| opened.content.read_to_end(&mut bytes))
        .map_err(StoreError::io("read", path))?;
    Ok(bytes)
}
