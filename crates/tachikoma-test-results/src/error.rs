//! Why there are no results at all.

use std::io;
use std::path::PathBuf;

/// Why a run of tests has no results.
#[derive(Debug, thiserror::Error)]
pub enum ResultsError {
    /// The bytes cannot be read.
    #[error("cannot be read")]
    Io(#[from] io::Error),
    /// There are no bytes.
    #[error("it is empty; did the tests run?")]
    Empty,
    /// No known format of test results was recognized.
    #[error(
        "no test results are in it: JUnit XML, `go test -json`, Jest or Vitest JSON, TAP and the text of `cargo test`, \
         `cargo nextest` and pytest are known"
    )]
    Unknown,
    /// It is not XML.
    #[error("it is not XML: line {line}, column {column}: {reason}")]
    NotXml {
        /// Counted from 1.
        line: u64,
        /// In bytes, counted from 1.
        column: u64,
        /// What is wrong.
        reason: String,
    },
    /// It is XML of another kind.
    #[error(
        "it is not JUnit XML: line {line}: it begins with <{root}>, not with <testsuites> or <testsuite>"
    )]
    NotJunit {
        /// Counted from 1.
        line: u64,
        /// The root element.
        root: String,
    },
    /// It is not JSON, or JSON of another kind.
    #[error("it is not JSON of Jest or Vitest: line {line}: {reason}")]
    NotJest {
        /// Counted from 1.
        line: u64,
        /// What is wrong.
        reason: String,
    },
    /// One of these errors, in a file.
    #[error("read test results from {}", path.display())]
    File {
        /// The name of the file.
        path: PathBuf,
        /// The error.
        source: Box<Self>,
    },
}
