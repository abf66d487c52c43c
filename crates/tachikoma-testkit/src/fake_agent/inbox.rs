//! All input of the fake agent in one queue: lines, end of file, signals.

use std::io::{self, BufRead as _, Read as _};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Instant;

use signal_hook::consts::{SIGINT, SIGTERM};

/// An input.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    Line(String),
    Eof,
    Signal(i32),
}

/// The queue.
#[derive(Debug)]
pub(super) struct Inbox(Receiver<News>);

impl Inbox {
    /// Listens to signals, and to standard input if `lines` are wanted.
    pub(super) fn open(lines: bool) -> Result<Self, String> {
        let (sender, receiver) = channel();
        for signal in [SIGINT, SIGTERM] {
            let failed = |error| format!("listen to signal {signal}: {error}");
            let (mut reader, writer) = UnixStream::pair().map_err(failed)?;
            signal_hook::low_level::pipe::register(signal, writer).map_err(failed)?;
            let sender = sender.clone();
            // Ends with the process.
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

    /// Returns the next input; `None` at the deadline. Without a deadline it waits.
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
    // The receiver is gone only when the process ends.
    let _ = sender.send(News::Eof);
}
