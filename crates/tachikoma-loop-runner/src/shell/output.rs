//! The output of a command: its end, as much as a record may contain, and all of it in a file where one is wanted.

use std::io;
use std::path::PathBuf;

use crate::output_tail::OutputTail;
use crate::session::transcript::Transcript;

/// Collects the output of a command.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    pub tail: OutputTail,
    /// The file with all of the output; `None` if there is none, or after an error.
    whole: Option<Transcript>,
    failed: Option<io::Error>,
}

impl CommandOutput {
    /// Keeps only the end.
    pub fn tail_only(bytes_max: usize) -> Self {
        Self {
            tail: OutputTail::new(bytes_max),
            whole: None,
            failed: None,
        }
    }

    /// Keeps the end, and all of it in a file.
    pub fn whole(bytes_max: usize, whole: Transcript) -> Self {
        Self {
            whole: Some(whole),
            ..Self::tail_only(bytes_max)
        }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.tail.push(bytes);
        if let Some(Err(error)) = self.whole.as_mut().map(|whole| whole.write(bytes)) {
            self.whole = None;
            self.failed = Some(error);
        }
    }

    /// Returns the end, and the file; `None` if there is none or the output is empty.
    pub fn close(self) -> (OutputTail, io::Result<Option<PathBuf>>) {
        let file = match (self.whole, self.failed) {
            (_, Some(error)) => Err(error),
            (Some(whole), None) => whole.close(),
            (None, None) => Ok(None),
        };
        (self.tail, file)
    }
}
