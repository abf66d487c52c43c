//! Queue with all inputs of the fake agent: lines, end of input, signals.

use std::io::{self, BufRead as _, Read as _};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Instant;

use signal_hook::consts::{SIGINT, SIGTERM};

/// One input of the fake agent: a line of stdin, the end of stdin, or a signal.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    Line(String),
    Eof,
    Signal(i32),
}

/// Queue of inputs.
#[derive(Debug)]
pub(super) struct Inbox(Receiver<News>);

impl Inbox {
    /// Starts to listen to signals, and to stdin if `lines` is true.
    pub(super) fn open(lines: bool) -> Result<Self, String> {
        let (sender, receiver) = channel();
        for signal in [SIGINT, SIGTERM] {
            let failed = |error| format!("listen to signal {signal}: {error}");
            let (mut reader, writer) = UnixStream::pair().map_err(failed)?;
            signal_hook::low_level::pipe::register(signal, writer).map_err(failed)?;
            let sender = sender.clone();
            // The thread ends with the process.
            thread::spawn(move || {
                while reader.read_exact(&mut [0]).is_ok() {
                    if sender.send(News::Signal(signal)).is_err() {
                        return;
                    }
                }
            });
        }
        if lines {
            thread::spawn(move || read_lines(&sender));
        }
        Ok(Self(receiver))
    }

    /// Returns the next input; `None` at the deadline. Without a deadline, waits forever.
    pub(super) fn next(&self, deadline: Option<Instant>) -> Option<News> {
        let news = match deadline {
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                self.0.recv_timeout(left)
            }
            None => self.0.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match news {
            Ok(news) => Some(news),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                unreachable!("the threads that listen to signals hold the other end")
            }
        }
    }
}

fn read_lines(sender: &Sender<News>) {
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        if sender.send(News::Line(line)).is_err() {
            return;
        }
    }
    // Sending fails only if the process is ending.
    let _ = sender.send(News::Eof);
}
