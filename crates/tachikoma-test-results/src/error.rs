//! Why no test results could be read.

use std::io;
use std::path::PathBuf;

/// Why the output of a test run has no results.
#[derive(Debug, thiserror::Error)]
pub enum ResultsError {
    /// The input cannot be read.
    #[error("cannot be read")]
    Io(#[from] io::Error),
    /// The input is empty.
    #[error("it is empty; did the tests run?")]
    Empty,
    /// No known format of test results was recognized.
    #[error(
        "no test results are in it: JUnit XML, `go test -json`, Jest or Vitest JSON, TAP and the text of `cargo test`, \
         `cargo nextest` and pytest are known"
    )]
    Unknown,
    /// The input is not XML.
    #[error("it is not XML: line {line}, column {column}: {reason}")]
    NotXml {
        /// Line number, counted from 1.
        line: u64,
        /// Column in bytes, counted from 1.
        column: u64,
        /// Description of the error.
        reason: String,
    },
    /// The input is XML, but not JUnit.
    #[error(
        "it is not JUnit XML: line {line}: it begins with <{root}>, not with <testsuites> or <testsuite>"
    )]
    NotJunit {
        /// Line number, counted from 1.
        line: u64,
        /// Name of the root element.
        root: String,
    },
    /// The input is not JSON, or JSON of another kind.
    #[error("it is not JSON of Jest or Vitest: line {line}: {reason}")]
    NotJest {
        /// Line number, counted from 1.
        line: u64,
        /// Description of the error.
        reason: String,
    },
    /// One of these errors, with the name of the file.
    #[error("cannot read test results from {}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The error in the file.
        source: Box<Self>,
    },
}
