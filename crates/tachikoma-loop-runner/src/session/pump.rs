//! Reads an agent's output as fast as it comes: into the transcript, and as lines to whoever listens.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tachikoma_agents::line::{Line, LineSplitter};
use tokio::net::unix::pipe::Receiver;

use super::transcript::Transcript;

pub use crate::notice::Stream;

/// Grandchildren can keep our pipes open after the agent is gone; do not wait for them forever.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// As much as a pipe holds: one read empties it.
const READ_BYTES: usize = 64 * 1024;

/// What an agent says last is its answer; longer answers are in the transcript, and only their end is judged.
const FINAL_TEXT_BYTES_MAX: usize = 64 * 1024;

/// After this much without a pause others get their turn: a flood must not keep a stop command waiting.
const BYTES_PER_TURN: usize = 256 * 1024;

/// Takes the lines of both streams as they come.
pub type Sink<'a> = dyn FnMut(Stream, Line<'_>) + Send + 'a;

/// What one [`Pump::read`] brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// The agent wrote something.
    Output,
    /// One stream ended; the agent may live on.
    StreamEnded(Stream),
    /// Both streams have ended: there is nothing more to read.
    Ended,
}

/// How reading to the end went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drained {
    /// Both streams ended.
    Complete,
    /// Somebody still holds a stream open; what comes later is not read.
    TimedOut,
}

/// What is left of an agent's output when it is gone.
#[derive(Debug)]
pub struct Output {
    /// The end of its standard output.
    pub final_text: String,
    /// How much it wrote, to both streams.
    pub bytes: u64,
    /// The transcript of its last turn.
    pub transcript: ClosedTranscript,
    /// Its last line on standard error.
    pub last_words: String,
    /// How many lines were not understood.
    pub not_understood: u64,
}

/// A transcript that is closed.
#[derive(Debug)]
pub struct ClosedTranscript {
    /// Where it is, if the agent said anything.
    pub path: Option<PathBuf>,
    /// Why it is not complete, if it is not.
    pub error: Option<io::Error>,
}

/// Both outputs of one agent.
#[derive(Debug)]
pub struct Pump {
    stdout: Source,
    stderr: Source,
    transcript: Transcript,
    transcript_error: Option<io::Error>,
    buffer: Vec<u8>,
    final_bytes: Vec<u8>,
    bytes: u64,
    bytes_this_turn: usize,
}

#[derive(Debug)]
struct Source {
    stream: Stream,
    pipe: Option<Receiver>,
    lines: LineSplitter,
}

impl Pump {
    /// Returns a pump for the reading ends of an agent's pipes. Of each line at most `line_bytes_max` bytes are kept.
    #[must_use]
    pub fn new(
        stdout: Receiver,
        stderr: Receiver,
        transcript: Transcript,
        line_bytes_max: usize,
    ) -> Self {
        let source = |stream, pipe| Source {
            stream,
            pipe: Some(pipe),
            lines: LineSplitter::new(line_bytes_max),
        };
        Self {
            stdout: source(Stream::Stdout, stdout),
            stderr: source(Stream::Stderr, stderr),
            transcript,
            transcript_error: None,
            buffer: vec![0; READ_BYTES],
            final_bytes: Vec::new(),
            bytes: 0,
            bytes_this_turn: 0,
        }
    }

    /// Returns how much the agent wrote so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Waits for output and takes one piece of it. Lines go to `sink`, which must not block: the agent waits for it.
    ///
    /// Cancel-safe: what was taken was also handed on.
    pub async fn read(&mut self, sink: &mut Sink<'_>) -> Flow {
        if self.bytes_this_turn >= BYTES_PER_TURN {
            self.bytes_this_turn = 0;
            tokio::task::yield_now().await;
        }
        loop {
            let stream = match (&self.stdout.pipe, &self.stderr.pipe) {
                (None, None) => return Flow::Ended,
                (Some(stdout), None) => ready(stdout, Stream::Stdout).await,
                (None, Some(stderr)) => ready(stderr, Stream::Stderr).await,
                (Some(stdout), Some(stderr)) => tokio::select! {
                    stream = ready(stdout, Stream::Stdout) => stream,
                    stream = ready(stderr, Stream::Stderr) => stream,
                },
            };
            match self.take(stream, sink) {
                Taken::Nothing => self.bytes_this_turn = 0,
                Taken::Some => return Flow::Output,
                Taken::End => return self.ended(stream, sink),
            }
        }
    }

    /// Reads what is left after the agent's exit, until both streams end or somebody holds them open for too long.
    pub async fn drain(&mut self, sink: &mut Sink<'_>) -> Drained {
        let to_the_end = async { while self.read(sink).await != Flow::Ended {} };
        let drained = tokio::time::timeout(DRAIN_TIMEOUT, to_the_end).await;
        for source in [&mut self.stdout, &mut self.stderr] {
            source.close(sink);
        }
        match drained {
            Ok(()) => Drained::Complete,
            Err(_) => Drained::TimedOut,
        }
    }

    /// Goes on with the transcript of another turn, and closes the one before.
    #[must_use]
    pub fn switch(&mut self, transcript: Transcript) -> ClosedTranscript {
        let before = std::mem::replace(&mut self.transcript, transcript);
        self.final_bytes.clear();
        closed(before, self.transcript_error.take())
    }

    /// Closes the transcript and returns what is left of the output.
    #[must_use]
    pub fn finish(self) -> Output {
        Output {
            final_text: end_of_text(&self.final_bytes),
            bytes: self.bytes,
            transcript: closed(self.transcript, self.transcript_error),
            last_words: String::new(),
            not_understood: 0,
        }
    }

    fn take(&mut self, stream: Stream, sink: &mut Sink<'_>) -> Taken {
        let source = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        let Some(pipe) = &source.pipe else {
            return Taken::End;
        };
        let read = match pipe.try_read(&mut self.buffer) {
            Ok(0) => return Taken::End,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Taken::Nothing,
            // A pipe has no other errors that pass.
            Err(_) => return Taken::End,
        };
        let bytes = self.buffer.get(..read).unwrap_or_default();
        self.bytes += read as u64;
        self.bytes_this_turn += read;
        // A full disk must not end the agent: the first error is kept, and the rest of the output only passes by.
        if self.transcript_error.is_none() {
            self.transcript_error = self.transcript.write(bytes).err();
        }
        if stream == Stream::Stdout {
            keep_end(&mut self.final_bytes, bytes);
        }
        source.lines.push(bytes, &mut |line| sink(stream, line));
        Taken::Some
    }

    fn ended(&mut self, stream: Stream, sink: &mut Sink<'_>) -> Flow {
        match stream {
            Stream::Stdout => self.stdout.close(sink),
            Stream::Stderr => self.stderr.close(sink),
        }
        match (&self.stdout.pipe, &self.stderr.pipe) {
            (None, None) => Flow::Ended,
            (Some(_), _) | (_, Some(_)) => Flow::StreamEnded(stream),
        }
    }
}

impl Source {
    /// Half a line at the end is a line.
    fn close(&mut self, sink: &mut Sink<'_>) {
        let stream = self.stream;
        self.pipe = None;
        self.lines.finish(&mut |line| sink(stream, line));
    }
}

fn closed(transcript: Transcript, error: Option<io::Error>) -> ClosedTranscript {
    let (path, closing_error) = match transcript.close() {
        Ok(path) => (path, None),
        Err(error) => (None, Some(error)),
    };
    ClosedTranscript {
        path,
        error: error.or(closing_error),
    }
}

enum Taken {
    Some,
    Nothing,
    End,
}

async fn ready(pipe: &Receiver, stream: Stream) -> Stream {
    // The only error is a runtime that shuts down; reading then finds out.
    let _ = pipe.readable().await;
    stream
}

/// Keeps the last bytes, in at most twice their room so that few of them are ever moved.
fn keep_end(kept: &mut Vec<u8>, bytes: &[u8]) {
    if kept.len() + bytes.len() > 2 * FINAL_TEXT_BYTES_MAX {
        let excess = kept
            .len()
            .saturating_sub(FINAL_TEXT_BYTES_MAX.saturating_sub(bytes.len()));
        kept.drain(..excess);
    }
    kept.extend_from_slice(bytes);
}

/// The last bytes as text; a character that was cut at the beginning is left out.
fn end_of_text(kept: &[u8]) -> String {
    let start = kept.len().saturating_sub(FINAL_TEXT_BYTES_MAX);
    let end = kept.get(start..).unwrap_or_default();
    let is_inside = |byte: &&u8| **byte & 0b1100_0000 == 0b1000_0000;
    // A character has at most three such bytes; more are no text, and shown as such.
    let broken = match start {
        0 => 0,
        _ => end.iter().take(3).take_while(is_inside).count(),
    };
    String::from_utf8_lossy(end.get(broken..).unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_output_is_kept_and_starts_with_a_whole_character() {
        let mut kept = Vec::new();
        let text = "€".repeat(100_000);
        for chunk in text.as_bytes().chunks(1000) {
            keep_end(&mut kept, chunk);
            assert!(kept.len() <= 2 * FINAL_TEXT_BYTES_MAX);
        }
        let end = end_of_text(&kept);
        assert!(end.len() > FINAL_TEXT_BYTES_MAX - 3);
        assert!(end.chars().all(|c| c == '€'));
        assert_eq!(end_of_text(b"short"), "short");
    }
}
