//! Bringing files into the form that the vault wants: sealed, or not any more. The new one is read back, compared and on disk
//! before the old one goes.

use std::fs::File;
use std::io::{self, BufRead as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use super::Vault;
use super::lines::OnDamage;
use crate::store::{StoreError, private, regular, sync_dir, whole};

/// Brings one file into its form, under the same name or a new one. Whether there was anything to do is returned.
///
/// # Errors
/// It cannot be done; the file is as it was.
pub(crate) fn convert(vault: &Vault, path: &Path, to: &Path) -> Result<bool, StoreError> {
    if vault.is_in_form(path) && path == to {
        return Ok(false);
    }
    let dir = to.parent().unwrap_or(Path::new("."));
    let temporary = whole::temporary(dir);
    let written = write(vault, path, &temporary).and_then(|()| {
        std::fs::rename(&temporary, to).map_err(StoreError::io("replace", to))?;
        sync_dir(dir)
    });
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written?;
    if path != to {
        std::fs::remove_file(path).map_err(StoreError::io("remove", path))?;
    }
    Ok(true)
}

fn write(vault: &Vault, path: &Path, temporary: &Path) -> Result<(), StoreError> {
    let source = regular::open(path).map_err(StoreError::io("read", path))?;
    let modified = source.metadata().and_then(|there| there.modified());
    let mut file = private()
        .read(true)
        .write(true)
        .create_new(true)
        .open(temporary)
        .map_err(StoreError::io("create", temporary))?;
    copy(vault, source, &mut file).map_err(StoreError::io("convert", path))?;
    // The age of a file may be all that is known of a damaged one.
    if let Ok(modified) = modified {
        let _ = file.set_modified(modified);
    }
    file.sync_all().map_err(StoreError::sync(temporary))?;
    file.rewind().map_err(StoreError::io("read", temporary))?;
    let same = regular::open(path)
        .and_then(|source| is_same(vault, source, file))
        .map_err(StoreError::io("compare", path))?;
    if !same {
        let source = io::Error::other("it does not hold what was put in");
        return Err(StoreError::io("convert", path)(source));
    }
    Ok(())
}

fn copy(vault: &Vault, source: File, target: &mut File) -> io::Result<()> {
    let mut content = vault.unseal(source, OnDamage::Fail)?.content;
    let mut writer = vault.writer(target)?;
    io::copy(&mut content, &mut writer)?;
    writer.finish()?.flush()
}

fn is_same(vault: &Vault, one: File, other: File) -> io::Result<bool> {
    let mut one = vault.unseal(one, OnDamage::Fail)?.content;
    let mut other = vault.unseal(other, OnDamage::Fail)?.content;
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
pub(crate) fn files_below(dir: &Path) -> Vec<PathBuf> {
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
