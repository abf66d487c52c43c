//! The prompt file. It is read at every iteration, so that the user can edit it while the loop runs.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use tachikoma_core::PromptSource;

/// A prompt has to fit into a context window, so that a larger file is a mistake, for example a log or a binary.
pub(crate) const PROMPT_MAX_BYTES: u64 = 8 << 20;

/// Why the prompt cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    /// The file cannot be read.
    #[error("read prompt {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// The file is empty.
    #[error("prompt {} is empty", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The text is empty.
    #[error("the prompt that was given as text is empty")]
    NoWords,
    /// The file is too large.
    #[error("prompt {} has more than {PROMPT_MAX_BYTES} bytes, which is too large for a prompt", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The file is not text.
    #[error("prompt {} is not UTF-8 text", path.display())]
    NotText {
        /// The file.
        path: PathBuf,
    },
}

/// Reads the prompt.
///
/// # Errors
/// The prompt is missing, unreadable, empty, too large or not text.
pub fn read(source: &PromptSource, working_dir: &Path) -> Result<String, PromptError> {
    match source {
        PromptSource::Text { text } if text.trim().is_empty() => Err(PromptError::NoWords),
        PromptSource::Text { text } => Ok(text.clone()),
        PromptSource::File { path } => read_file(working_dir.join(path)),
    }
}

/// Returns a hash of the prompt; `None` if it cannot be read. The first iteration fails with the reason then.
pub(crate) fn hash(source: &PromptSource, working_dir: &Path) -> Option<String> {
    let words = read(source, working_dir).ok()?;
    Some(format!("{:08x}", crc32c::crc32c(words.as_bytes())))
}

fn read_file(path: PathBuf) -> Result<String, PromptError> {
    let bytes = match read_bounded(&path, PROMPT_MAX_BYTES) {
        Ok(bytes) => bytes,
        Err(source) => return Err(PromptError::Read { path, source }),
    };
    if bytes.len() as u64 > PROMPT_MAX_BYTES {
        return Err(PromptError::TooLarge { path });
    }
    match String::from_utf8(bytes) {
        Ok(text) if text.trim().is_empty() => Err(PromptError::Empty { path }),
        Ok(text) => Ok(text),
        Err(_) => Err(PromptError::NotText { path }),
    }
}

/// Reads at most one byte more than the limit. Only plain files are read, because a pipe could block the reader forever.
pub(crate) fn read_bounded(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    read_head(open_file(path)?, bytes_max)
}

/// Opens a plain file for reading, and follows symbolic links. Other kinds of files are refused without waiting for a writer.
pub(crate) fn open_file(path: &Path) -> io::Result<File> {
    let no_wait = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = File::options()
        .read(true)
        .custom_flags(no_wait)
        .open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_dir() {
        return Err(rustix::io::Errno::ISDIR.into());
    }
    if !kind.is_file() {
        return Err(io::Error::other("it is not a plain file"));
    }
    Ok(file)
}

/// Reads at most one byte more than the limit.
pub(crate) fn read_head(file: File, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(bytes_max.saturating_add(1))
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusable_prompts_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let write =
            |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes).unwrap();
        write("good.md", b"do it\n");
        write("blank.md", b" \n\t\n");
        write("binary.md", b"\xff\xfe");
        let read = |name: &str| {
            read(
                &PromptSource::File {
                    path: name.to_owned(),
                },
                dir.path(),
            )
            .map_err(|error| {
                error
                    .to_string()
                    .replace(dir.path().to_str().unwrap(), "[DIR]")
            })
        };
        assert_eq!(read("good.md").as_deref(), Ok("do it\n"));
        assert_eq!(
            read("blank.md").unwrap_err(),
            "prompt [DIR]/blank.md is empty"
        );
        assert_eq!(
            read("binary.md").unwrap_err(),
            "prompt [DIR]/binary.md is not UTF-8 text"
        );
        rustix::fs::mknodat(
            rustix::fs::CWD,
            dir.path().join("pipe.md"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        assert_eq!(
            read("pipe.md").unwrap_err(),
            "read prompt [DIR]/pipe.md",
            "without waiting for a writer"
        );
        assert_eq!(read("gone.md").unwrap_err(), "read prompt [DIR]/gone.md");
        assert_eq!(read(".").unwrap_err(), "read prompt [DIR]/.", "a directory");
    }
}
