//! Origins of values, and problems of the configuration.

use std::fmt;
use std::path::PathBuf;

/// Origin of a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// The key is not set and has its default.
    #[default]
    Default,
    /// A configuration file.
    File {
        /// Path of the file, as it was given.
        path: PathBuf,
        /// Line of the value, counted from 1; `None` if the problem concerns the whole file.
        line: Option<usize>,
    },
    /// An environment variable, by its name.
    Variable(String),
    /// The launch that was recorded at the start of the loop.
    Recorded,
    /// A flag, as it is written on the command line.
    Flag(String),
}

impl Origin {
    /// Returns the line in the file; `None` for other origins.
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

/// A problem of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Origin of the value with the problem.
    pub origin: Origin,
    /// The key that has the problem; `None` if the text is not valid TOML.
    pub key: Option<String>,
    /// Description of the problem.
    pub what: String,
    /// How to fix the problem; `None` if there is no hint.
    pub hint: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Newlines are escaped, so that a value cannot look like another message.
        let what = self.what.replace('\n', "\\n");
        write!(f, "{}: {what}", self.origin)?;
        match &self.hint {
            Some(hint) => write!(f, "\n  hint: {hint}"),
            None => Ok(()),
        }
    }
}

/// All problems of the configuration; never empty.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct SettingsError {
    /// The problems, in the order of layers and lines.
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
