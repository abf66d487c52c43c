//! Where a value came from, and what is wrong with it.

use std::fmt;
use std::path::PathBuf;

/// Where a value came from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// The key is not set.
    #[default]
    Default,
    /// A file.
    File {
        /// The file, as it was named.
        path: PathBuf,
        /// The line, counted from 1; absent when it is about the file as a whole.
        line: Option<usize>,
    },
    /// An environment variable, by its name.
    Variable(String),
    /// The launch that was recorded when the loop was started.
    Recorded,
    /// A flag, as it is written on the command line.
    Flag(String),
}

impl Origin {
    /// Returns the line in the file.
    pub(super) fn line(&self) -> Option<usize> {
        match self {
            Self::File { line, .. } => *line,
            Self::Default | Self::Variable(_) | Self::Recorded | Self::Flag(_) => None,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File {
                path,
                line: Some(line),
            } => write!(f, "{}:{line}", path.display()),
            Self::File { path, line: None } => path.display().fmt(f),
            Self::Variable(name) => f.write_str(name),
            Self::Recorded => f.write_str("recorded launch"),
            Self::Flag(flag) => f.write_str(flag),
        }
    }
}

/// One thing that is wrong with the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where it is.
    pub origin: Origin,
    /// The key it is about; absent when the text itself cannot be read.
    pub key: Option<String>,
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A value in the message must not pass for a line of its own.
        let what = self.what.replace('\n', "\\n");
        write!(f, "{}: {what}", self.origin)?;
        match &self.hint {
            Some(hint) => write!(f, "\n  hint: {hint}"),
            None => Ok(()),
        }
    }
}

/// Everything that is wrong with the configuration; never empty.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct SettingsError {
    /// The problems, layer by layer, each file from its top.
    pub problems: Vec<Problem>,
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.problems.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}
