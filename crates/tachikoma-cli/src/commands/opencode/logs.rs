//! `opencode logs`: prints the output of the server and its supervisor, safe for the terminal.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use tachikoma_agents::line::{Line, LineSplitter};
use tachikoma_loop_runner::opencode::supervisor::log_files;

use crate::failure::Failure;
use crate::out;
use crate::sanitize::sanitize;
use crate::workspace::Workspace;

/// Maximum length in bytes of a line that is shown. The log has the whole line.
const LINE_BYTES_MAX: usize = 64 << 10;

/// Interval between checks for new output.
const TICK: Duration = Duration::from_millis(100);

/// Prints the log; with `follow`, also new lines, until it is interrupted.
pub fn logs(workspace: &Workspace, follow: bool) -> Result<ExitCode, Failure> {
    let dir = super::dir_here(workspace)?;
    let files = log_files(&dir);
    let Some((newest, older)) = files.split_last() else {
        return Err(super::no_supervisor(workspace));
    };
    let unread = |path: &Path, error: std::io::Error| {
        Failure::new(format!("read {}: {error}", path.display()))
    };
    let mut printer = LogPrinter::new();
    for path in older {
        printer.print(path).map_err(|error| unread(path, error))?;
    }
    let mut file = printer
        .print(newest)
        .map_err(|error| unread(newest, error))?;
    if follow {
        loop {
            std::thread::sleep(TICK);
            let more = printer.print_new(newest, file);
            file = more.map_err(|error| unread(newest, error))?;
        }
    }
    printer.finish();
    Ok(ExitCode::SUCCESS)
}

/// Prints complete lines.
struct LogPrinter {
    lines: LineSplitter,
}

impl LogPrinter {
    fn new() -> Self {
        Self {
            lines: LineSplitter::new(LINE_BYTES_MAX),
        }
    }

    fn print(&mut self, path: &Path) -> std::io::Result<File> {
        let mut file = File::open(path)?;
        self.print_rest(&mut file)?;
        Ok(file)
    }

    /// Prints new output, even after the log file was replaced.
    fn print_new(&mut self, path: &Path, mut file: File) -> std::io::Result<File> {
        let ours = file.metadata()?.ino();
        let turned = std::fs::metadata(path).is_ok_and(|there| there.ino() != ours);
        self.print_rest(&mut file)?;
        match turned {
            true => self.print(path),
            false => Ok(file),
        }
    }

    fn print_rest(&mut self, file: &mut File) -> std::io::Result<()> {
        let mut chunk = [0; 16 * 1024];
        loop {
            let read = file.read(&mut chunk)?;
            if read == 0 {
                return Ok(());
            }
            let bytes = chunk.get(..read).unwrap_or_default();
            self.lines.push(bytes, &mut show);
        }
    }

    /// Prints the last line even if it has no newline.
    fn finish(mut self) {
        self.lines.finish(&mut show);
    }
}

#[expect(clippy::needless_pass_by_value, reason = "a sink of lines gets them")]
fn show(line: Line<'_>) {
    out::line(&sanitize(&line.text));
}
