//! The tools of the fake agent. `Bash` and `Write` have real effects, so that the work tree changes. All other tools answer as the
//! scenario says.

use std::fs;
use std::io::{self, Read as _, Seek as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::scenario::ToolCall;

/// Result of a tool call.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub text: String,
    pub is_error: bool,
}

impl Outcome {
    pub(super) fn good(text: impl Into<String>) -> Self {
        let text = text.into();
        Self {
            text,
            is_error: false,
        }
    }

    pub(super) fn bad(text: impl Into<String>) -> Self {
        let text = text.into();
        Self {
            text,
            is_error: true,
        }
    }
}

/// A running command of the tool `Bash`. It has its own process group, which is killed when this is dropped.
#[derive(Debug)]
pub(super) struct Running {
    child: Child,
    output: fs::File,
}

/// Starts a tool call. Tools without a duration return their result at once.
pub(super) fn start(tool: &ToolCall) -> Result<Running, Outcome> {
    if let Some(text) = &tool.result {
        let text = text.clone();
        let is_error = tool.is_error;
        return Err(Outcome { text, is_error });
    }
    let word = |name: &str| tool.input[name].as_str();
    match (tool.name.as_str(), word("command"), word("file_path")) {
        ("Bash", Some(command), _) => {
            Running::start(command).map_err(|error| Outcome::bad(format!("start it: {error}")))
        }
        ("Write", _, Some(path)) => Err(fs::write(path, word("content").unwrap_or_default())
            .map_or_else(
                |error| Outcome::bad(format!("write {path}: {error}")),
                |()| Outcome::good(format!("File created successfully at: {path}")),
            )),
        _ => Err(Outcome {
            text: "done".into(),
            is_error: tool.is_error,
        }),
    }
}

impl Running {
    fn start(command: &str) -> io::Result<Self> {
        let output = tempfile::tempfile()?;
        let child = Command::new("sh")
            .args(["-c", command])
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output.try_clone()?)
            .process_group(0)
            .spawn()?;
        Ok(Self { child, output })
    }

    /// Returns the result of the command; `None` while it is running.
    pub(super) fn outcome(&mut self) -> Option<Outcome> {
        let status = match self.child.try_wait() {
            Ok(status) => status?,
            Err(error) => return Some(Outcome::bad(format!("wait for it: {error}"))),
        };
        let mut bytes = Vec::new();
        let read = self
            .output
            .rewind()
            .and_then(|()| self.output.read_to_end(&mut bytes));
        if let Err(error) = read {
            return Some(Outcome::bad(format!("read its output: {error}")));
        }
        let text = String::from_utf8_lossy(&bytes).trim_end().to_owned();
        Some(match status.code() {
            Some(0) => Outcome::good(text),
            Some(code) => Outcome::bad(format!("Exit code {code}\n{text}")),
            None => Outcome::bad(format!("Exit code 137\n{text}")),
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let (Some(pid), Ok(None)) = (pid, self.child.try_wait()) {
            // The process is not reaped yet, so the group still exists.
            let _ = kill_process_group(pid, Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

/// Starts an orphan process that runs until it is killed.
pub(super) fn leave_child(marker: &str, without_env: bool) -> Result<(), String> {
    let mut command = Command::new("sh");
    if without_env {
        command.env_clear().env("PATH", "/usr/bin:/bin");
    }
    // `tail` follows the device forever and only reports the missing file. This is one process with the marker in its command line.
    let left = command
        .args(["-c", "setsid tail -q -f /dev/null \"$1\" 2>/dev/null &"])
        .args(["sh", marker])
        .stdin(Stdio::null())
        .status()
        .map_err(|error| format!("leave a child: {error}"))?;
    left.success()
        .then_some(())
        .ok_or_else(|| format!("leave a child: {left}"))
}
