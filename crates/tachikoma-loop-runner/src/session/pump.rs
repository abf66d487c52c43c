//! Reads the output of an agent, writes it to the transcript, and passes it line by line to a function.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tachikoma_agents::line::{Line, LineSplitter};
use tokio::net::unix::pipe::Receiver;

use super::transcript::Transcript;

use crate::output_tail::OutputTail;

pub use crate::notice::Stream;

/// How long to read after the agent has exited. Grandchildren can keep the pipes open longer.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Size of one read. It is the size of a pipe, so that one read empties the pipe.
const READ_BYTES: usize = 64 * 1024;

/// Maximum length of the agent's answer, which is the end of its output. The transcript has all of a longer answer.
const FINAL_TEXT_BYTES_MAX: usize = 64 * 1024;

/// Number of bytes after which other tasks run, so that very much output does not delay a stop command.
const BYTES_PER_TURN: usize = 256 * 1024;

/// Function that gets the lines of both streams when they are read.
pub type LineSink<'a> = dyn FnMut(Stream, Line<'_>) + Send + 'a;

/// The result of one [`Pump::read`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// Output was read.
    Output,
    /// One stream ended. The agent may still run.
    StreamEnded(Stream),
    /// Both streams have ended.
    Ended,
}

/// The output of an agent that has exited.
#[derive(Debug)]
pub struct Output {
    /// The end of the agent's standard output.
    pub final_text: String,
    /// Number of bytes that the agent wrote to both streams.
    pub bytes: u64,
    /// The transcript of the agent's last turn.
    pub transcript: ClosedTranscript,
    /// The agent's last line on standard error.
    pub last_words: String,
    /// Number of lines that the decoder did not understand.
    pub not_understood: u64,
}

/// A transcript that is closed.
#[derive(Debug)]
pub struct ClosedTranscript {
    /// Path of the transcript; `None` if the agent wrote nothing.
    pub path: Option<PathBuf>,
    /// Why the transcript is incomplete; `None` if it is complete.
    pub error: Option<io::Error>,
}

/// Reads both output streams of one agent.
#[derive(Debug)]
pub struct Pump {
    stdout: Source,
    stderr: Source,
    transcript: Transcript,
    transcript_error: Option<io::Error>,
    buffer: Vec<u8>,
    final_text: OutputTail,
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
    /// Returns a pump that reads from an agent's pipes. Lines are truncated to `line_bytes_max` bytes.
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
            final_text: OutputTail::new(FINAL_TEXT_BYTES_MAX),
            bytes: 0,
            bytes_this_turn: 0,
        }
    }

    /// Returns how many bytes the agent has written so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Waits for output and reads a part of it. `sink` gets the lines. It must not block, because the agent would have to wait.
    ///
    /// Cancel-safe: no output is lost that was already read.
    pub async fn read(&mut self, sink: &mut LineSink<'_>) -> Flow {
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
                Some(flow) => return flow,
                None => self.bytes_this_turn = 0,
            }
        }
    }

    /// Reads the rest of the output after the agent's exit, until both streams end or the timeout. Returns false if another process still holds a
    /// stream open. Later output is not read.
    pub async fn drain(&mut self, sink: &mut LineSink<'_>) -> bool {
        let to_the_end = async { while self.read(sink).await != Flow::Ended {} };
        let drained = tokio::time::timeout(DRAIN_TIMEOUT, to_the_end).await;
        for source in [&mut self.stdout, &mut self.stderr] {
            source.close(sink);
        }
        drained.is_ok()
    }

    /// Switches to the transcript of another turn, and closes the previous transcript.
    #[must_use]
    pub fn switch(&mut self, transcript: Transcript) -> ClosedTranscript {
        let before = std::mem::replace(&mut self.transcript, transcript);
        self.final_text.clear();
        closed(before, self.transcript_error.take())
    }

    /// Closes the transcript and returns the rest of the output.
    #[must_use]
    pub fn finish(mut self) -> Output {
        Output {
            final_text: self.final_text.end().0,
            bytes: self.bytes,
            transcript: closed(self.transcript, self.transcript_error),
            last_words: String::new(),
            not_understood: 0,
        }
    }

    /// Reads a part of the output. Returns `None` if there is no output now.
    fn take(&mut self, stream: Stream, sink: &mut LineSink<'_>) -> Option<Flow> {
        let source = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        let read = match source.pipe.as_ref()?.try_read(&mut self.buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            // Other errors of a pipe are permanent, so they end the stream.
            Ok(0) | Err(_) => {
                source.close(sink);
                return Some(match (&self.stdout.pipe, &self.stderr.pipe) {
                    (None, None) => Flow::Ended,
                    (Some(_), _) | (_, Some(_)) => Flow::StreamEnded(stream),
                });
            }
            Ok(read) => read,
        };
        let bytes = self.buffer.get(..read).unwrap_or_default();
        self.bytes += read as u64;
        self.bytes_this_turn += read;
        // A full disk must not end the agent: the first error is stored, and later output is not written to the transcript.
        if self.transcript_error.is_none() {
            self.transcript_error = self.transcript.write(bytes).err();
        }
        if stream == Stream::Stdout {
            self.final_text.push(bytes);
        }
        source.lines.push(bytes, &mut |line| sink(stream, line));
        Some(Flow::Output)
    }
}

impl Source {
    /// Ends a stream. Passes on the last line even if it has no newline.
    fn close(&mut self, sink: &mut LineSink<'_>) {
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

async fn ready(pipe: &Receiver, stream: Stream) -> Stream {
    // The only possible error is a shutdown of the runtime, which the read reports.
    let _ = pipe.readable().await;
    stream
}
