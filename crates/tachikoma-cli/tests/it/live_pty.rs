//! A pseudo-terminal in which a test runs a program.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcgetpgrp, tcsetwinsize};
use tachikoma_testkit::{Tool, await_until};

use crate::live_support::{SOON, state_of};

/// How often the reader thread checks whether it has to stop.
const LOOK: Duration = Duration::from_millis(10);

/// Bytes that the terminal gets when Ctrl-C or Ctrl-Z is pressed.
pub(crate) const CTRL_C: u8 = 3;
pub(crate) const CTRL_Z: u8 = 26;

/// A terminal and the program that leads its session.
pub(crate) struct Terminal {
    master: Arc<File>,
    seen: Arc<Mutex<Vec<u8>>>,
    closing: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
    child: Child,
}

impl Terminal {
    /// Opens a terminal and starts a program in it. Width 0 means unknown.
    pub(crate) fn start(tool: &Tool<'_>, words: &[&str], columns: u16) -> Self {
        Self::of_size(tool, words, 24, columns)
    }

    /// Opens a terminal with this many rows and columns and starts a program in it.
    pub(crate) fn of_size(tool: &Tool<'_>, words: &[&str], rows: u16, columns: u16) -> Self {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&master, size).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let slave = File::from(rustix::fs::open(name, flags, Mode::empty()).unwrap());
        let child = in_session(tool, words)
            .stdin(slave.try_clone().unwrap())
            .stdout(slave.try_clone().unwrap())
            .stderr(slave)
            .spawn()
            .unwrap();
        let master = Arc::new(File::from(master));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let closing = Arc::new(AtomicBool::new(false));
        let reader = {
            let (master, seen, closing) = (master.clone(), seen.clone(), closing.clone());
            std::thread::spawn(move || read(&master, &seen, &closing))
        };
        Self {
            master,
            seen,
            closing,
            reader: Some(reader),
            child,
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn press(&self, key: u8) {
        (&*self.master).write_all(&[key]).unwrap();
    }

    /// Returns whether the terminal passes on single keys without echo.
    pub(crate) fn gives_keys(&self) -> bool {
        let modes = tcgetattr(&*self.master).unwrap().local_modes;
        !modes.intersects(LocalModes::ICANON | LocalModes::ECHO)
    }

    /// Returns whether this process leads the foreground process group, which gets Ctrl-C.
    pub(crate) fn has_in_front(&self, leader: u32) -> bool {
        tcgetpgrp(&*self.master)
            .is_ok_and(|group| group.as_raw_nonzero().get().cast_unsigned() == leader)
    }

    /// Waits for the end of the program. Returns whether the terminal still passes on single keys.
    #[track_caller]
    pub(crate) fn keeps_giving_keys(&self) -> bool {
        await_until("the program ends", SOON, || self.has_ended());
        self.gives_keys()
    }

    pub(crate) fn has_ended(&self) -> bool {
        state_of(self.pid()).is_none_or(|state| state == 'Z')
    }

    pub(crate) fn type_in(&self, text: &str) {
        (&*self.master).write_all(text.as_bytes()).unwrap();
    }

    /// Waits for a question and presses a key.
    #[track_caller]
    pub(crate) fn answer(&self, key: u8) {
        await_until("keys are read", SOON, || self.gives_keys());
        self.press(key);
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Returns all output so far.
    pub(crate) fn raw(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().unwrap()).into_owned()
    }

    /// Returns all output so far, without color codes.
    pub(crate) fn uncolored(&self) -> String {
        let raw = self.raw();
        let mut parts = raw.split("\u{1b}[");
        let mut shown = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let rest = part.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';');
            match rest.strip_prefix('m') {
                Some(text) => shown.push_str(text),
                None => shown.push_str(&format!("\u{1b}[{part}")),
            }
        }
        shown
    }

    /// Waits for a text in the output.
    #[track_caller]
    pub(crate) fn await_text(&self, text: &str) {
        await_until(&format!("{text:?} on the terminal"), SOON, || {
            self.uncolored().contains(text)
        });
    }

    /// Waits for the end of the program and returns its exit code.
    #[track_caller]
    pub(crate) fn wait(&mut self) -> Option<i32> {
        let mut status = None;
        await_until("the program ends", SOON, || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.and_then(|status| status.code())
    }

    /// Waits for the end of the program. Returns its exit code and the final screen.
    #[track_caller]
    pub(crate) fn end(self) -> (Option<i32>, Screen) {
        let (code, raw) = self.end_raw();
        (code, Screen::of(&raw))
    }

    /// Waits for the end of the program. Returns its exit code and its whole output.
    #[track_caller]
    pub(crate) fn end_raw(mut self) -> (Option<i32>, String) {
        let code = self.wait();
        // The output is complete when all programs that use the terminal have ended.
        let reader = self.reader.take().unwrap();
        await_until("the last words", SOON, || reader.is_finished());
        (code, self.raw())
    }

    /// Closes the terminal, like a closed window.
    pub(crate) fn hang_up(&mut self) {
        self.closing.store(true, Ordering::Relaxed);
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        // This drops the last handle of the controlling side, which closes the terminal.
        self.master = Arc::new(File::open("/dev/null").unwrap());
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.closing.store(true, Ordering::Relaxed);
    }
}

/// Returns a command that makes its stdin the terminal of a new session and then executes the program.
fn in_session(tool: &Tool<'_>, words: &[&str]) -> Command {
    let program = tool.command(words);
    let mut command = Command::new("setsid");
    command.arg("--ctty").arg(program.get_program());
    command.args(program.get_args());
    if let Some(dir) = program.get_current_dir() {
        command.current_dir(dir);
    }
    command.env("TERM", "xterm");
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.stdin(Stdio::null());
    command
}

/// Reads until the terminal is closed on either side.
fn read(mut master: &File, seen: &Mutex<Vec<u8>>, closing: &AtomicBool) {
    let timeout = Timespec::try_from(LOOK).unwrap();
    let mut buffer = [0; 4096];
    while !closing.load(Ordering::Relaxed) {
        let ready = poll(&mut [PollFd::new(&master, PollFlags::IN)], Some(&timeout));
        if !ready.is_ok_and(|ready| ready > 0) {
            continue;
        }
        match master.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(read) => seen.lock().unwrap().extend_from_slice(&buffer[..read]),
        }
    }
}

/// The content of a terminal screen after all control sequences were applied.
#[derive(Debug)]
pub(crate) struct Screen {
    /// Lines of the screen. The cursor is in the last line.
    pub(crate) lines: Vec<String>,
    /// Whether text that is printed next is dim.
    pub(crate) dimmed: bool,
}

impl Screen {
    /// Applies the control sequences of a progress line, and panics at any other one.
    #[track_caller]
    pub(crate) fn of(raw: &str) -> Self {
        let mut lines = Vec::new();
        let mut line: Vec<char> = Vec::new();
        let mut column = 0;
        let mut dimmed = false;
        let mut rest = raw.chars();
        while let Some(next) = rest.next() {
            match next {
                '\n' => {
                    lines.push(line.drain(..).collect());
                    column = 0;
                }
                '\r' => column = 0,
                '\u{1b}' => {
                    let known = [
                        ("[2K", None),
                        ("[1m", Some(dimmed)),
                        ("[2m", Some(true)),
                        ("[31m", Some(dimmed)),
                        ("[32m", Some(dimmed)),
                        ("[33m", Some(dimmed)),
                        ("[36m", Some(dimmed)),
                        ("[0m", Some(false)),
                    ];
                    let text = rest.as_str();
                    let found = known.iter().find(|(escape, _)| text.starts_with(escape));
                    let Some((escape, dims)) = found else {
                        panic!("a stray escape sequence: {:?}", &text[..text.len().min(20)]);
                    };
                    match dims {
                        Some(dims) => dimmed = *dims,
                        None => line.clear(),
                    }
                    rest = text[escape.len()..].chars();
                }
                control if control.is_control() && control != '\t' => {
                    panic!("a stray control character: {control:?}")
                }
                character => {
                    line.resize(line.len().max(column + 1), ' ');
                    line[column] = character;
                    column += 1;
                }
            }
        }
        lines.push(line.into_iter().collect());
        Self { lines, dimmed }
    }

    /// Checks that the progress line was removed.
    #[track_caller]
    pub(crate) fn assert_clean(&self) {
        assert!(!self.dimmed, "the terminal is left dimmed");
        assert_eq!(
            self.lines.last().map(String::as_str),
            Some(""),
            "the cursor is at the beginning of an empty line: {self:#?}"
        );
        let left = self.lines.iter().find(|line| line.contains(PROGRESS));
        assert_eq!(left, None, "a progress line is left");
    }

    pub(crate) fn shows(&self, line: &str) -> bool {
        self.lines.iter().any(|shown| shown.contains(line))
    }

    /// Returns the text after `words`, to the end of the line.
    pub(crate) fn behind(&self, words: &str) -> Option<&str> {
        let mut lines = self.lines.iter();
        let (_, behind) = lines.find_map(|line| line.split_once(words))?;
        Some(behind.trim_end())
    }
}

/// Text that only a progress line has.
pub(crate) const PROGRESS: &str = "iter ";
