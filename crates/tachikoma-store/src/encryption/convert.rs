//! Converts files to the configured form: encrypted or plain. The new file is read back, compared and synced before the old one
//! is removed.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use tachikoma_fs::{atomic_file, private, safe_read, sync_dir};

use super::lines::OnDamage;
use super::{APART, BEGINNING_BYTES_MAX, Encryption, looks_encrypted};
use crate::{StoreError, is_damage};

/// Text that replaces a part that cannot be decrypted. It is not a valid record, and users can read it in a transcript.
const REST: &[u8] = b"\n[tachikoma: the rest cannot be decrypted]\n";

/// How much of a file must be decryptable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    All,
    Readable,
}

/// Converts one file from `path` to `to`. Returns whether anything was changed.
///
/// # Errors
/// The conversion failed. The file is unchanged.
pub fn convert(encryption: &Encryption, path: &Path, to: &Path) -> Result<bool, StoreError> {
    if encryption.is_in_form(path) && path == to {
        return Ok(false);
    }
    replace(encryption, path, to, Part::All)?;
    if path != to {
        std::fs::remove_file(path).map_err(StoreError::io("remove", path))?;
    }
    Ok(true)
}

/// Converts the decryptable parts of a damaged file. The result is damaged, too.
///
/// # Errors
/// The conversion failed. The file is unchanged.
pub fn salvage(encryption: &Encryption, path: &Path) -> Result<(), StoreError> {
    replace(encryption, path, path, Part::Readable)
}

/// Returns whether two files have the same content after decryption.
///
/// # Errors
/// One of the files cannot be read.
pub fn have_same_content(
    encryption: &Encryption,
    one: &Path,
    other: &Path,
) -> Result<bool, StoreError> {
    let open = |path: &Path| {
        safe_read::open(path)
            .and_then(|file| content(encryption, file, Part::All))
            .map_err(StoreError::io("compare", path))
    };
    let (mut left, mut right) = (open(one)?, open(other)?);
    is_same(&mut left, &mut right, &mut || Ok(())).map_err(StoreError::io("compare", one))
}

fn replace(encryption: &Encryption, path: &Path, to: &Path, part: Part) -> Result<(), StoreError> {
    let dir = to.parent().unwrap_or(Path::new("."));
    let temporary = atomic_file::temporary(dir);
    let written = write(encryption, path, &temporary, part).and_then(|()| {
        std::fs::rename(&temporary, to).map_err(StoreError::io("replace", to))?;
        sync_dir(dir)?;
        Ok(())
    });
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

fn write(
    encryption: &Encryption,
    path: &Path,
    temporary: &Path,
    part: Part,
) -> Result<(), StoreError> {
    let source = safe_read::open(path).map_err(StoreError::io("read", path))?;
    let modified = source.metadata().and_then(|there| there.modified());
    let mut file = private()
        .read(true)
        .write(true)
        .create_new(true)
        .open(temporary)
        .map_err(StoreError::io("create", temporary))?;
    copy(encryption, source, &mut file, part).map_err(StoreError::io("convert", path))?;
    // The modification time is copied. For a damaged file it may be the only known time.
    if let Ok(modified) = modified {
        let _ = file.set_modified(modified);
    }
    file.sync_all().map_err(StoreError::sync(temporary))?;
    file.rewind().map_err(StoreError::io("read", temporary))?;
    let same = safe_read::open(path)
        .and_then(|source| content(encryption, source, part))
        .and_then(|mut source| {
            let mut written = encryption.decrypt(file, OnDamage::Fail)?.content;
            is_same(&mut source, &mut written, &mut || Ok(()))
        })
        .map_err(StoreError::io("compare", path))?;
    if !same {
        let source = io::Error::other("the converted file differs from the original");
        return Err(StoreError::io("convert", path)(source));
    }
    Ok(())
}

fn copy(encryption: &Encryption, source: File, target: &mut File, part: Part) -> io::Result<()> {
    let mut content = content(encryption, source, part)?;
    let mut writer = encryption.writer(target)?;
    io::copy(&mut content, &mut writer)?;
    writer.finish()?.flush()
}

/// Returns a reader of the file's content, encrypted as configured.
fn content(encryption: &Encryption, source: File, part: Part) -> io::Result<Box<dyn BufRead>> {
    let mut decrypted: Box<dyn BufRead> = match part {
        Part::All => encryption.decrypt(source, OnDamage::Fail)?.content,
        Part::Readable => match encryption.decrypt(source, OnDamage::Pass) {
            Ok(decrypted) => Box::new(BufReader::new(ReadableParts(Some(decrypted.content)))),
            Err(error) if is_damage(&error) => Box::new(REST),
            Err(error) => return Err(error),
        },
    };
    if encryption.encrypts() {
        return Ok(decrypted);
    }
    let mut begins = Vec::new();
    decrypted
        .by_ref()
        .take(BEGINNING_BYTES_MAX)
        .read_to_end(&mut begins)?;
    if looks_encrypted(&begins) == Some(true) {
        begins.splice(..0, APART.iter().copied());
    }
    Ok(Box::new(Cursor::new(begins).chain(decrypted)))
}

/// Reader of the decryptable parts of a file, with a placeholder for the rest.
struct ReadableParts(Option<Box<dyn BufRead>>);

impl Read for ReadableParts {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.0.as_mut().map(|content| content.read(buffer)) {
            Some(Err(error)) if is_damage(&error) => {
                self.0 = None;
                // The buffer of the reader is larger than the placeholder.
                let mut rest = REST;
                rest.read(buffer)
            }
            Some(read) => read,
            None => Ok(0),
        }
    }
}

/// Compares two contents. `proceed` is called before each block and can end the comparison with an error.
pub fn is_same(
    one: &mut dyn BufRead,
    other: &mut dyn BufRead,
    proceed: &mut dyn FnMut() -> io::Result<()>,
) -> io::Result<bool> {
    loop {
        proceed()?;
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

/// Lists all regular files below a directory, without following links.
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
