//! Bringing files into the form that the vault wants: sealed, or not any more. The new one is read back, compared and on disk
//! before the old one goes.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use tachikoma_fs::{atomic_file, private, safe_read, sync_dir};

use super::lines::OnDamage;
use super::{APART, BEGINNING_BYTES_MAX, Vault, begins_as_sealed};
use crate::{StoreError, is_damage};

/// What stands for the part of a file that does not open: no record of a journal, and for people in a text.
const REST: &[u8] = b"\n[tachikoma: what follows does not open]\n";

/// How much of a file has to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    All,
    WhatOpens,
}

/// Brings one file into its form, under the same name or a new one. Whether there was anything to do is returned.
///
/// # Errors
/// It cannot be done; the file is as it was.
pub fn convert(vault: &Vault, path: &Path, to: &Path) -> Result<bool, StoreError> {
    if vault.is_in_form(path) && path == to {
        return Ok(false);
    }
    replace(vault, path, to, Part::All)?;
    if path != to {
        std::fs::remove_file(path).map_err(StoreError::io("remove", path))?;
    }
    Ok(true)
}

/// Brings what opens of a damaged file into its form. It is damaged afterwards, too.
///
/// # Errors
/// It cannot be done; the file is as it was.
pub fn salvage(vault: &Vault, path: &Path) -> Result<(), StoreError> {
    replace(vault, path, path, Part::WhatOpens)
}

/// Returns whether two files hold the same, sealed or not.
///
/// # Errors
/// One of them cannot be read.
pub fn hold_the_same(vault: &Vault, one: &Path, other: &Path) -> Result<bool, StoreError> {
    let open = |path: &Path| {
        safe_read::open(path)
            .and_then(|file| content(vault, file, Part::All))
            .map_err(StoreError::io("compare", path))
    };
    let (mut left, mut right) = (open(one)?, open(other)?);
    is_same(&mut left, &mut right).map_err(StoreError::io("compare", one))
}

fn replace(vault: &Vault, path: &Path, to: &Path, part: Part) -> Result<(), StoreError> {
    let dir = to.parent().unwrap_or(Path::new("."));
    let temporary = atomic_file::temporary(dir);
    let written = write(vault, path, &temporary, part).and_then(|()| {
        std::fs::rename(&temporary, to).map_err(StoreError::io("replace", to))?;
        sync_dir(dir)?;
        Ok(())
    });
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

fn write(vault: &Vault, path: &Path, temporary: &Path, part: Part) -> Result<(), StoreError> {
    let source = safe_read::open(path).map_err(StoreError::io("read", path))?;
    let modified = source.metadata().and_then(|there| there.modified());
    let mut file = private()
        .read(true)
        .write(true)
        .create_new(true)
        .open(temporary)
        .map_err(StoreError::io("create", temporary))?;
    copy(vault, source, &mut file, part).map_err(StoreError::io("convert", path))?;
    // The age of a file may be all that is known of a damaged one.
    if let Ok(modified) = modified {
        let _ = file.set_modified(modified);
    }
    file.sync_all().map_err(StoreError::sync(temporary))?;
    file.rewind().map_err(StoreError::io("read", temporary))?;
    let same = safe_read::open(path)
        .and_then(|source| content(vault, source, part))
        .and_then(|mut source| {
            is_same(
                &mut source,
                &mut vault.unseal(file, OnDamage::Fail)?.content,
            )
        })
        .map_err(StoreError::io("compare", path))?;
    if !same {
        let source = io::Error::other("it does not hold what was put in");
        return Err(StoreError::io("convert", path)(source));
    }
    Ok(())
}

fn copy(vault: &Vault, source: File, target: &mut File, part: Part) -> io::Result<()> {
    let mut content = content(vault, source, part)?;
    let mut writer = vault.writer(target)?;
    io::copy(&mut content, &mut writer)?;
    writer.finish()?.flush()
}

/// Returns what a file holds, as it is to be written.
fn content(vault: &Vault, source: File, part: Part) -> io::Result<Box<dyn BufRead>> {
    let mut unsealed: Box<dyn BufRead> = match part {
        Part::All => vault.unseal(source, OnDamage::Fail)?.content,
        Part::WhatOpens => match vault.unseal(source, OnDamage::Pass) {
            Ok(unsealed) => Box::new(BufReader::new(WhatOpens(Some(unsealed.content)))),
            Err(error) if is_damage(&error) => Box::new(REST),
            Err(error) => return Err(error),
        },
    };
    if vault.seals() {
        return Ok(unsealed);
    }
    let mut begins = Vec::new();
    unsealed
        .by_ref()
        .take(BEGINNING_BYTES_MAX)
        .read_to_end(&mut begins)?;
    if begins_as_sealed(&begins) == Some(true) {
        begins.splice(..0, APART.iter().copied());
    }
    Ok(Box::new(Cursor::new(begins).chain(unsealed)))
}

/// What opens of a file, and a word instead of the rest.
struct WhatOpens(Option<Box<dyn BufRead>>);

impl Read for WhatOpens {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.0.as_mut().map(|content| content.read(buffer)) {
            Some(Err(error)) if is_damage(&error) => {
                self.0 = None;
                // A reader's buffer has room for it.
                let mut rest = REST;
                rest.read(buffer)
            }
            Some(read) => read,
            None => Ok(0),
        }
    }
}

fn is_same(one: &mut dyn BufRead, other: &mut dyn BufRead) -> io::Result<bool> {
    loop {
        let (left, right) = (one.fill_buf()?, other.fill_buf()?);
        let length = left.len().min(right.len());
        if left[..length] != right[..length] || left.is_empty() != right.is_empty() {
            return Ok(false);
        }
        if length == 0 {
            return Ok(true);
        }
        one.consume(length);
        other.consume(length);
    }
}

/// Returns all regular files below a directory, without following links.
pub fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut waiting = vec![dir.to_owned()];
    while let Some(dir) = waiting.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => waiting.push(entry.path()),
                Ok(kind) if kind.is_file() => found.push(entry.path()),
                Ok(_) | Err(_) => {}
            }
        }
    }
    found.sort();
    found
}
