//! Diagnostics: sends the events that the libraries emit to standard error (`-v`) and to the log of a run (`TACHIKOMA_LOG`).

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use tachikoma_loop_runner::log_files;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{FilterExt as _, LevelFilter, Targets, filter_fn};
use tracing_subscriber::fmt::{MakeWriter, layer};
use tracing_subscriber::layer::SubscriberExt as _;

use crate::failure::Failure;
use crate::out;

/// Maximum size of the log of a run: some hundred thousand lines, which an editor can still open.
const FILE_BYTES_MAX: usize = 8 << 20;

/// Maximum size of the events that are stored before the log file is created.
const PENDING_BYTES_MAX: usize = 64 << 10;

/// Last line of a log that has reached its maximum size.
const FULL: &str = "the log has reached its maximum size and ends here\n";

/// Destination of the log of this process.
static SINK: Mutex<Sink> = Mutex::new(Sink::Closed);

/// The log of a run.
#[derive(Debug)]
enum Sink {
    /// The file is created when the loop is opened. Events are stored until then.
    Pending(Vec<u8>),
    Open {
        file: File,
        written: usize,
    },
    /// There is no log file, or it is full, or it cannot be written.
    Closed,
}

impl Sink {
    fn write(&mut self, text: &[u8]) {
        match self {
            Self::Pending(lines) => {
                if lines.len() + text.len() <= PENDING_BYTES_MAX {
                    lines.extend_from_slice(text);
                }
            }
            Self::Open { file, written } => {
                let is_full = *written + text.len() > FILE_BYTES_MAX - FULL.len();
                let line = if is_full { FULL.as_bytes() } else { text };
                *written += line.len();
                // Write errors only end the log. A run does not fail because of them.
                if file.write_all(line).is_err() || is_full {
                    *self = Self::Closed;
                }
            }
            Self::Closed => {}
        }
    }
}

/// Where the events of a process are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Output {
    Stderr,
    File,
}

impl Write for Output {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        match self {
            Self::Stderr => out::note(String::from_utf8_lossy(text).trim_end()),
            Self::File => SINK
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .write(text),
        }
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Output {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        *self
    }
}

/// Installs the receiver of events. `verbose` is the number of `-v` flags. A command that runs a loop also writes a log, after it calls
/// [`open_file`].
///
/// # Errors
/// `TACHIKOMA_LOG` is not a valid filter.
pub fn install(verbose: u8, filter: Option<&str>, runs_loop: bool) -> Result<(), Failure> {
    let stderr = match verbose {
        0 => LevelFilter::OFF,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let file: Targets = filter.unwrap_or("debug").parse().map_err(|error| {
        Failure::usage(format!("TACHIKOMA_LOG is not a filter: {error}"))
            .hint("use a level (`off`, `info`, `debug`, `trace`) or `tachikoma_git=trace,info`")
    })?;
    // Events of other libraries are left out, because they may contain headers and other secrets.
    let ours = || filter_fn(|event| event.target().starts_with("tachikoma"));
    let stderr = (verbose > 0).then(|| {
        layer()
            .with_ansi(false)
            .with_writer(Output::Stderr)
            .with_filter(stderr.and(ours()))
    });
    let file = runs_loop.then(|| {
        layer()
            .with_ansi(false)
            .with_writer(Output::File)
            .with_filter(file.and(ours()))
    });
    if file.is_some() && filter != Some("off") {
        *SINK.lock().unwrap_or_else(PoisonError::into_inner) = Sink::Pending(Vec::new());
    }
    if stderr.is_some() || file.is_some() {
        let receiver = tracing_subscriber::registry().with(stderr).with(file);
        // This is called once per process, so it does not fail.
        let _ = tracing::subscriber::set_global_default(receiver);
    }
    Ok(())
}

/// Creates the log of a run and writes the stored events to it. If that fails, the run continues without a log.
pub fn open_file(working_dir: &Path) {
    let mut sink = SINK.lock().unwrap_or_else(PoisonError::into_inner);
    let Sink::Pending(lines) = &mut *sink else {
        return;
    };
    let lines = std::mem::take(lines);
    *sink = match log_files::create(working_dir) {
        Ok(file) => Sink::Open { file, written: 0 },
        Err(error) => {
            let why = tachikoma_core::error_chain(&error);
            out::note(&format!("warning: this run has no log: {why}"));
            Sink::Closed
        }
    };
    sink.write(&lines);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_ends_with_a_last_line_when_it_is_full() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut sink = Sink::Open {
            file: file.reopen().unwrap(),
            written: 0,
        };
        let line = [[b'x'; 1023].as_slice(), b"\n"].concat();
        for _ in 0..9000 {
            sink.write(&line);
        }
        let text = std::fs::read_to_string(file.path()).unwrap();
        assert!(text.len() <= FILE_BYTES_MAX);
        assert!(text.ends_with(FULL));
        assert_eq!(text.matches(FULL).count(), 1);
    }
}
