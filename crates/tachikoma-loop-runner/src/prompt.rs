//! The prompt: read anew at every iteration, so that editing it steers a running loop.

use std::io;
use std::path::{Path, PathBuf};

use tachikoma_core::PromptSource;

/// A prompt is words for a context window; a file beyond this is a mistake (a log, a binary).
const PROMPT_MAX_BYTES: u64 = 8 << 20;

/// Why there is no prompt.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    /// The file cannot be read.
    #[error("read prompt {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// There is nothing in it.
    #[error("prompt {} is empty", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// There are no words.
    #[error("the prompt that was given as text is empty")]
    NoWords,
    /// There is too much in it.
    #[error("prompt {} has {bytes} bytes; more than {PROMPT_MAX_BYTES} cannot be meant", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// It is not text.
    #[error("prompt {} is not UTF-8 text", path.display())]
    NotText {
        /// The file.
        path: PathBuf,
    },
}

/// Reads the prompt.
///
/// # Errors
/// It is missing, unreadable, empty, too large or not text.
pub fn read(source: &PromptSource, working_dir: &Path) -> Result<String, PromptError> {
    match source {
        PromptSource::Text { text } if text.trim().is_empty() => Err(PromptError::NoWords),
        PromptSource::Text { text } => Ok(text.clone()),
        PromptSource::File { path } => read_file(working_dir.join(path)),
    }
}

fn read_file(path: PathBuf) -> Result<String, PromptError> {
    let metadata = match std::fs::metadata(&path) {
        Ok(metadata) => metadata,
        Err(source) => return Err(PromptError::Read { path, source }),
    };
    if metadata.len() > PROMPT_MAX_BYTES {
        return Err(PromptError::TooLarge {
            path,
            bytes: metadata.len(),
        });
    }
    match std::fs::read(&path).map(String::from_utf8) {
        Ok(Ok(text)) if text.trim().is_empty() => Err(PromptError::Empty { path }),
        Ok(Ok(text)) => Ok(text),
        Ok(Err(_)) => Err(PromptError::NotText { path }),
        Err(source) => Err(PromptError::Read { path, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_a_prompt_is_named() {
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
        assert_eq!(read("gone.md").unwrap_err(), "read prompt [DIR]/gone.md");
        assert_eq!(read(".").unwrap_err(), "read prompt [DIR]/.", "a directory");
    }
}
