//! Why there are no results at all.

use std::io;
use std::path::PathBuf;

/// Why nothing can be said of a run of tests.
#[derive(Debug, thiserror::Error)]
pub enum ResultsError {
    /// The bytes could not be had.
    #[error("cannot be read")]
    Io(#[from] io::Error),
    /// There are none.
    #[error("it is empty; did the tests run?")]
    Empty,
    /// There is nothing in them that looks like results.
    #[error(
        "no test results are in it: JUnit XML, `go test -json`, Jest or Vitest JSON, TAP and the text of `cargo test`, \
         `cargo nextest` and pytest are known"
    )]
    Unknown,
    /// They are no XML.
    #[error("it is no XML: line {line}, column {column}: {reason}")]
    NotXml {
        /// Counted from 1.
        line: u64,
        /// In bytes, counted from 1.
        column: u64,
        /// What is wrong.
        reason: String,
    },
    /// They are XML of another kind.
    #[error(
        "it is no JUnit XML: line {line}: it begins with <{root}>, not with <testsuites> or <testsuite>"
    )]
    NotJunit {
        /// Counted from 1.
        line: u64,
        /// The first element.
        root: String,
    },
    /// They are no JSON, or JSON of another kind.
    #[error("it is no JSON of Jest or Vitest: line {line}: {reason}")]
    NotJest {
        /// Counted from 1.
        line: u64,
        /// What is wrong.
        reason: String,
    },
    /// Any of these, in a file.
    #[error("read test results from {}", path.display())]
    File {
        /// Its name.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<Self>,
    },
}
