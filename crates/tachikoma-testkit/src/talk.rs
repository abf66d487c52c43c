//! A conversation with a process that reads and prints JSON lines, as agents do.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::awaiting::comes_true;
use crate::{Scratch, unique};

/// A running process with its input. Its output goes to a file. When dropped, the process is killed and reaped, but not its children.
#[derive(Debug)]
pub struct Talk {
    child: Child,
    stdin: Option<ChildStdin>,
    output: PathBuf,
    errors: PathBuf,
}

/// The result of a process.
#[derive(Debug, Clone)]
pub struct Ended {
    /// Exit code of the process; `None` after a signal.
    pub code: Option<i32>,
    /// The output lines that are JSON.
    pub lines: Vec<Value>,
    /// All output of the process.
    pub raw: Vec<u8>,
    /// Stderr of the process.
    pub errors: String,
}

impl Talk {
    /// Starts a command with its output in the runtime directory.
    ///
    /// # Panics
    ///
    /// If it does not start.
    #[track_caller]
    pub fn start(command: &mut Command, scratch: &Scratch) -> Self {
        let name = unique();
        // The output is outside of the work tree, which belongs to the agent.
        let output = scratch.runtime_dir().join(format!("{name}.out"));
        let errors = scratch.runtime_dir().join(format!("{name}.err"));
        let file = |path| File::create(path).expect("the directory is ours");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(file(&output))
            .stderr(file(&errors))
            .spawn()
            .unwrap_or_else(|error| panic!("start {}: {error}", command.get_program().display()));
        Self {
            stdin: child.stdin.take(),
            child,
            output,
            errors,
        }
    }

    /// Returns the process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns whether the process is running.
    ///
    /// # Panics
    ///
    /// If it cannot be waited for.
    pub fn is_running(&mut self) -> bool {
        self.child
            .try_wait()
            .expect("the test started this process")
            .is_none()
    }

    /// Sends a signal to the process.
    ///
    /// # Panics
    ///
    /// If the process has ended.
    #[track_caller]
    pub fn signal(&mut self, signal: Signal) {
        assert!(self.is_running(), "it has ended: {}", self.stderr());
        // The process is not reaped yet, so its id is still valid.
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("process ids are positive"), signal)
            .expect("the test started this process");
    }

    /// Writes text to the stdin of the process.
    ///
    /// # Panics
    ///
    /// If the standard input of the process is closed.
    #[track_caller]
    pub fn send_raw(&mut self, text: &str) {
        let stdin = self.stdin.as_mut().expect("its input is open");
        stdin.write_all(text.as_bytes()).expect("it reads");
    }

    /// Sends a JSON line.
    ///
    /// # Panics
    ///
    /// If the standard input of the process is closed.
    #[track_caller]
    pub fn send(&mut self, line: &Value) {
        self.send_raw(&format!("{line}\n"));
    }

    /// Sends a prompt.
    ///
    /// # Panics
    ///
    /// If the standard input of the process is closed.
    #[track_caller]
    pub fn prompt(&mut self, text: &str) {
        let message = json!({"role": "user", "content": text});
        self.send(&json!({"type": "user", "message": message}));
    }

    /// Sends a control request, with its subtype as its id.
    ///
    /// # Panics
    ///
    /// If the standard input of the process is closed.
    #[track_caller]
    pub fn control(&mut self, subtype: &str) {
        let request = json!({"subtype": subtype});
        let line = json!({"type": "control_request", "request_id": subtype, "request": request});
        self.send(&line);
    }

    /// Closes the input of the process.
    pub fn close_input(&mut self) {
        self.stdin = None;
    }

    /// Returns the complete lines so far that are JSON.
    #[must_use]
    pub fn lines(&self) -> Vec<Value> {
        lines_of(&self.raw())
    }

    /// Waits for this many lines of a type.
    ///
    /// # Panics
    ///
    /// If they do not come in time.
    #[track_caller]
    pub fn await_lines(&self, kind: &str, count: usize, deadline: Duration) {
        let of_kind = |line: &&Value| line["type"] == kind;
        let came = comes_true(deadline, || {
            self.lines().iter().filter(of_kind).count() >= count
        });
        assert!(
            came,
            "timed out after {deadline:?} waiting for {count} lines of type {kind}; stdout: {}; stderr: {}",
            kinds_of(&self.lines()),
            self.stderr()
        );
    }

    /// Closes the input and waits for the end of the process.
    ///
    /// # Panics
    ///
    /// If it does not end in time.
    #[track_caller]
    #[must_use]
    pub fn end(mut self, deadline: Duration) -> Ended {
        self.close_input();
        let ended = comes_true(deadline, || !self.is_running());
        let raw = self.raw();
        let lines = lines_of(&raw);
        assert!(
            ended,
            "still running after {deadline:?}; it printed {} and complained: {}",
            kinds_of(&lines),
            self.stderr()
        );
        let status = self.child.wait().expect("it has ended");
        Ended {
            code: status.code(),
            lines,
            raw,
            errors: self.stderr(),
        }
    }

    fn raw(&self) -> Vec<u8> {
        fs::read(&self.output).expect("its output is there")
    }

    fn stderr(&self) -> String {
        fs::read_to_string(&self.errors).expect("its errors are there")
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        // Both calls fail only if the process was reaped before.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines_of(raw: &[u8]) -> Vec<Value> {
    let whole = raw.split_inclusive(|byte| *byte == b'\n');
    whole
        .filter(|line| line.ends_with(b"\n"))
        .filter_map(|line| serde_json::from_slice(line).ok())
        .collect()
}

/// Returns the types of lines, with subtypes, in order.
fn kinds_of(lines: &[Value]) -> String {
    let kind = |line: &Value| match (line["type"].as_str(), line["subtype"].as_str()) {
        (Some("stream_event"), _) => line["event"]["type"].as_str().unwrap_or("?").to_owned(),
        (Some(kind), Some(subtype)) => format!("{kind}/{subtype}"),
        (kind, _) => kind.unwrap_or("?").to_owned(),
    };
    lines.iter().map(kind).collect::<Vec<_>>().join(" ")
}

impl Ended {
    /// Returns the types of the output lines, with subtypes, in order.
    #[must_use]
    pub fn kinds(&self) -> String {
        kinds_of(&self.lines)
    }

    /// Returns the output lines of one type.
    #[must_use]
    pub fn of_type(&self, kind: &str) -> Vec<&Value> {
        let lines = self.lines.iter();
        lines.filter(|line| line["type"] == kind).collect()
    }

    /// Returns the output lines of type `result`.
    #[must_use]
    pub fn results(&self) -> Vec<&Value> {
        self.of_type("result")
    }
}
