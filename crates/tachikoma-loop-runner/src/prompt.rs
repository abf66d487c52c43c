//! The prompt file. It is read at every iteration, so that the user can edit it while the loop runs.

use std::io;
use std::path::{Path, PathBuf};

use tachikoma_core::PromptSource;
pub(crate) use tachikoma_fs::user_file::read_bounded;
use tachikoma_store::prompts::PROMPT_MAX_BYTES;

/// Why the prompt cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    /// The file cannot be read.
    #[error("read prompt {}", path.display())]
    Read {
        /// Path of the prompt file.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// The file is empty.
    #[error("prompt {} is empty", path.display())]
    Empty {
        /// Path of the prompt file.
        path: PathBuf,
    },
    /// The prompt text is empty.
    #[error("the prompt that was given as text is empty")]
    NoWords,
    /// The file is too large.
    #[error("prompt {} has more than {PROMPT_MAX_BYTES} bytes, which is too large for a prompt", path.display())]
    TooLarge {
        /// Path of the prompt file.
        path: PathBuf,
    },
    /// The file is not valid UTF-8 text.
    #[error("prompt {} is not UTF-8 text", path.display())]
    NotText {
        /// Path of the prompt file.
        path: PathBuf,
    },
}

/// Reads the prompt from its file, or returns the prompt text.
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

/// Returns a hash of the prompt; `None` if it cannot be read. The first iteration then fails and reports the reason.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_unusable_prompt_file() {
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
            "a named pipe is refused without waiting for a writer"
        );
        assert_eq!(read("gone.md").unwrap_err(), "read prompt [DIR]/gone.md");
        assert_eq!(
            read(".").unwrap_err(),
            "read prompt [DIR]/.",
            "a directory is not a prompt file"
        );
    }
}
