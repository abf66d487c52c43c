//! The output of a command: the end of it, for the record, and optionally all of it in a file.

use std::io;
use std::path::PathBuf;

use crate::output_tail::OutputTail;
use crate::session::transcript::Transcript;

/// Collects the output of a command.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    pub tail: OutputTail,
    /// The file with the whole output; `None` if no file is wanted, or after a write error.
    whole: Option<Transcript>,
    failed: Option<io::Error>,
}

impl CommandOutput {
    /// Collects only the end of the output.
    pub fn tail_only(bytes_max: usize) -> Self {
        Self {
            tail: OutputTail::new(bytes_max),
            whole: None,
            failed: None,
        }
    }

    /// Collects the end of the output, and writes all of it to a file.
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

    /// Returns the end of the output and the path of the file; `None` if there is no file or the output is empty.
    pub fn close(self) -> (OutputTail, io::Result<Option<PathBuf>>) {
        let file = match (self.whole, self.failed) {
            (_, Some(error)) => Err(error),
            (Some(whole), None) => whole.close(),
            (None, None) => Ok(None),
        };
        (self.tail, file)
    }
}
