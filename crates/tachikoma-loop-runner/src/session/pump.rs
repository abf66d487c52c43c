//! Reads the output of an agent, writes it to the transcript, and passes it line by line to a function.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tachikoma_agents::line::{Line, LineSplitter};
use tokio::net::unix::pipe::Receiver;

use super::transcript::Transcript;

use crate::output_tail::OutputTail;

pub use crate::notice::Stream;

/// Grandchildren can keep the pipes open after the agent has exited, so that reading stops after this time.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// The size of a pipe, so that one read empties it.
const READ_BYTES: usize = 64 * 1024;

/// The end of the output is the agent's answer. Only this much of a longer answer is judged; the transcript has all of it.
const FINAL_TEXT_BYTES_MAX: usize = 64 * 1024;

/// After this much output other tasks run, so that a flood of output does not delay a stop command.
const BYTES_PER_TURN: usize = 256 * 1024;

/// Gets the lines of both streams as they come.
pub type LineSink<'a> = dyn FnMut(Stream, Line<'_>) + Send + 'a;

/// The result of one [`Pump::read`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// Output was read.
    Output,
    /// One stream ended. The agent may still run.
    StreamEnded(Stream),
    /// Both streams have ended: there is nothing more to read.
    Ended,
}

/// The output of an agent that has exited.
#[derive(Debug)]
pub struct Output {
    /// The end of its standard output.
    pub final_text: String,
    /// How many bytes it wrote to both streams.
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
    /// The file; `None` if the agent wrote nothing.
    pub path: Option<PathBuf>,
    /// Why it is incomplete; `None` if it is complete.
    pub error: Option<io::Error>,
}

/// Both output streams of one agent.
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

    /// Waits for output and reads one piece of it. `sink` gets the lines and must not block, because the agent waits for it.
    ///
    /// Cancel-safe: everything that was read was passed on.
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
                Taken::Nothing => self.bytes_this_turn = 0,
                Taken::Some => return Flow::Output,
                Taken::End => return self.ended(stream, sink),
            }
        }
    }

    /// Reads the rest after the agent's exit, until both streams end or the time is over. Returns false if another process still holds a
    /// stream open. Its later output is not read.
    pub async fn drain(&mut self, sink: &mut LineSink<'_>) -> bool {
        let to_the_end = async { while self.read(sink).await != Flow::Ended {} };
        let drained = tokio::time::timeout(DRAIN_TIMEOUT, to_the_end).await;
        for source in [&mut self.stdout, &mut self.stderr] {
            source.close(sink);
        }
        drained.is_ok()
    }

    /// Switches to the transcript of another turn, and closes the one before.
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

    fn take(&mut self, stream: Stream, sink: &mut LineSink<'_>) -> Taken {
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
            // No other error of a pipe is temporary.
            Err(_) => return Taken::End,
        };
        let bytes = self.buffer.get(..read).unwrap_or_default();
        self.bytes += read as u64;
        self.bytes_this_turn += read;
        // A full disk must not end the agent: the first error is kept, and later output is not written.
        if self.transcript_error.is_none() {
            self.transcript_error = self.transcript.write(bytes).err();
        }
        if stream == Stream::Stdout {
            self.final_text.push(bytes);
        }
        source.lines.push(bytes, &mut |line| sink(stream, line));
        Taken::Some
    }

    fn ended(&mut self, stream: Stream, sink: &mut LineSink<'_>) -> Flow {
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
    /// A line at the end without a newline is a line too.
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

enum Taken {
    Some,
    Nothing,
    End,
}

async fn ready(pipe: &Receiver, stream: Stream) -> Stream {
    // The only error is that the runtime shuts down, which the read reports.
    let _ = pipe.readable().await;
    stream
}
