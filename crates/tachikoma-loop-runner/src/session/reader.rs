//! The task that reads one launch: lines become what is shown and what is news.

use std::time::Duration;

use tachikoma_agents::{
    ARE_YOU_THERE, Decoder, Observation, Window, is_conversation_id, line::Line,
};
use tachikoma_core::{AgentEvent, ConversationUse, QuotaWindow, microusd};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};

use super::process::LaunchNews;
use super::pump::{Flow, Pump, Stream};
use super::screen::{BEAT, Screen};
use super::transcript::Transcript;
use crate::clock;

/// What is kept of the last words on standard error: a sentence that says why there was no result.
const LAST_WORDS_BYTES_MAX: usize = 512;

/// As much of a hand-off as the core keeps.
const HAND_OFF_BYTES_MAX: usize = 16 << 10;

/// An agent that ends closes its output too, a moment before that is known. One that is still there after this lives on.
const EXIT_FOLLOWS: Duration = Duration::from_secs(1);

/// What the reader is told.
pub(super) enum Order {
    /// A turn begins: what the agent writes from here on goes into this transcript.
    Begin(Transcript),
    /// The agent is asked for its hand-off: what it says until the next turn is news.
    Listen,
    /// The process is gone: read what is left, and no longer than it takes.
    Drain,
}

pub(super) struct Reader {
    pub decoder: Decoder,
    pub out: mpsc::Sender<LaunchNews>,
    pub ears: Ears,
}

/// What is heard and not yet told.
pub(super) struct Ears {
    pub screen: Screen,
    pub seen: Vec<Observation>,
    /// The last line on standard error.
    pub last_words: String,
    /// Tasks that go on in the background.
    pub background: usize,
    /// Lines that were not understood.
    pub not_understood: u64,
    /// Whether what the agent says is news.
    listens: bool,
    /// What the latest piece of output was.
    piece: Piece,
}

/// What one piece of output was, as far as `silence_timeout` cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    /// Part of a line.
    Unfinished,
    /// Pings and nothing else.
    Pings,
    /// Something that the agent wrote.
    Output,
}

/// A ping is shorter than this, so a longer part of a line belongs to something else.
const PING_BYTES_MAX: u64 = 1024;

impl Reader {
    pub async fn read(mut self, mut pump: Pump, mut orders: mpsc::Receiver<Order>) {
        let mut beat = tokio::time::interval(BEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut mentioned = false;
        let mut ended = false;
        // When an agent that closed its output should have ended.
        let mut deaf_at = None;
        let mut told = false;
        loop {
            let Self { decoder, ears, .. } = &mut self;
            ears.piece = Piece::Unfinished;
            let bytes_before = pump.bytes();
            let throttled = mentioned || ears.screen.is_throttled();
            let mut sink = |stream, line: Line<'_>| ears.take(decoder, stream, &line);
            // Ends when the process is gone, or when the launch is given up and the other end is dropped.
            let brought = tokio::select! {
                biased;
                order = orders.recv() => match order {
                    Some(Order::Begin(transcript)) => Brought::Turn(transcript),
                    Some(Order::Listen) => Brought::Listen,
                    Some(Order::Drain) | None => break,
                },
                _ = beat.tick(), if throttled => Brought::Beat,
                () = until(deaf_at), if !told => Brought::Deaf,
                flow = pump.read(&mut sink), if !ended => Brought::Flow(flow),
            };
            match brought {
                Brought::Listen => self.ears.listens = true,
                Brought::Turn(transcript) => {
                    self.ears.listens = false;
                    let closed = pump.switch(transcript);
                    self.send(LaunchNews::TurnWritten(closed)).await;
                }
                Brought::Deaf => {
                    told = true;
                    self.send(LaunchNews::Agent(AgentEvent::StreamEnded)).await;
                }
                Brought::Beat => {
                    mentioned = false;
                    self.ears.screen.refill();
                }
                Brought::Flow(flow) => {
                    ended = flow == Flow::Ended;
                    if deaf_at.is_none() && (ended || flow == Flow::StreamEnded(Stream::Stdout)) {
                        deaf_at = Some(Instant::from_std(clock::monotonic() + EXIT_FOLLOWS));
                    }
                    // A stream that ends says nothing: the agent has closed it, and may be as silent as before.
                    let spoke = match self.ears.piece {
                        Piece::Output => true,
                        Piece::Pings => false,
                        Piece::Unfinished => pump.bytes() - bytes_before > PING_BYTES_MAX,
                    };
                    if !mentioned && flow == Flow::Output && spoke {
                        mentioned = true;
                        self.send(LaunchNews::Agent(AgentEvent::Output)).await;
                    }
                    self.report().await;
                }
            }
        }
        let Self { decoder, ears, .. } = &mut self;
        pump.drain(&mut |stream, line: Line<'_>| ears.take(decoder, stream, &line))
            .await;
        self.report().await;
        self.ears.screen.refill();
        let mut output = pump.finish();
        output.last_words = std::mem::take(&mut self.ears.last_words);
        output.not_understood = self.ears.not_understood;
        self.send(LaunchNews::Drained(output)).await;
    }

    async fn report(&mut self) {
        for observation in std::mem::take(&mut self.ears.seen) {
            if let Some(news) = self.ears.news(observation) {
                self.send(news).await;
            }
        }
    }

    async fn send(&self, news: LaunchNews) {
        // When the runner has given the launch up, what is left to do is to empty the pipes.
        let _ = self.out.send(news).await;
    }
}

async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

enum Brought {
    Turn(Transcript),
    Listen,
    Deaf,
    Beat,
    Flow(Flow),
}

impl Ears {
    pub fn new(screen: Screen) -> Self {
        Self {
            screen,
            seen: Vec::new(),
            last_words: String::new(),
            background: 0,
            not_understood: 0,
            listens: false,
            piece: Piece::Unfinished,
        }
    }

    /// Takes one line of output: shown to whoever watches, and read for what the agent does.
    fn take(&mut self, decoder: &mut Decoder, stream: Stream, line: &Line<'_>) {
        if stream == Stream::Stderr {
            self.piece = Piece::Output;
            if !line.text.trim().is_empty() {
                let end = line.text.floor_char_boundary(LAST_WORDS_BYTES_MAX);
                line.text
                    .get(..end)
                    .unwrap_or_default()
                    .clone_into(&mut self.last_words);
            }
            return self.screen.show(stream, &line.text);
        }
        let observations = decoder.observe(&line.text);
        if self.piece != Piece::Output {
            self.piece = match observations[..] {
                [Observation::Ping] => Piece::Pings,
                _ => Piece::Output,
            };
        }
        for observation in observations {
            if let Some(shown) = shown(&observation) {
                for line in shown.lines() {
                    self.screen.show(stream, line);
                }
            }
            if matches!(observation, Observation::NotUnderstood(_)) {
                self.not_understood += 1;
            }
            if self.listens || !matches!(observation, Observation::Said(_)) {
                self.seen.push(observation);
            }
        }
    }

    /// Returns what an observation means to the loop.
    fn news(&mut self, observation: Observation) -> Option<LaunchNews> {
        let news = match observation {
            Observation::Measured(reading) => AgentEvent::ContextMeasured {
                context: reading.context(),
                answering: reading.answering,
            },
            Observation::ToolStarted { id, name, about } => AgentEvent::ToolStarted {
                id,
                name,
                summary: about,
            },
            Observation::ToolEnded { id, failed, tail } => AgentEvent::ToolEnded {
                id,
                error: failed.then_some(tail),
            },
            Observation::FileTouched(path) => AgentEvent::FileTouched { path },
            Observation::CallEnded(tokens) => AgentEvent::CallEnded { tokens },
            Observation::Cost(Some(usd)) => AgentEvent::Cost {
                conversation_microusd: microusd(usd),
            },
            Observation::TakenUp { usd, tokens } => {
                AgentEvent::ConversationResumed(ConversationUse {
                    microusd: microusd(usd),
                    tokens,
                })
            }
            Observation::Cost(None) => return Some(LaunchNews::CostUnsaid),
            Observation::Allowance(allowance) => {
                let windows = allowance.windows.into_iter().map(quota);
                return Some(LaunchNews::Quota(windows.collect()));
            }
            Observation::SessionKnown(session) => return Some(LaunchNews::Known(session)),
            Observation::SessionReset { session_id } => AgentEvent::SessionNamed {
                agent_id: session_id.filter(|id| is_conversation_id(id))?,
            },
            Observation::ControlAnswered { request_id, .. } if request_id == ARE_YOU_THERE => {
                AgentEvent::Opened
            }
            Observation::PermissionDenied { tool, id } => AgentEvent::ToolDenied { tool, id },
            Observation::BackgroundTasks(count) => {
                self.background = count;
                return None;
            }
            Observation::Resulted(result) => {
                let more = self.background > 0 || result.queued > 0;
                return Some(LaunchNews::Resulted { result, more });
            }
            Observation::Said(text) => AgentEvent::HandOffText {
                text: text
                    .get(..text.floor_char_boundary(HAND_OFF_BYTES_MAX))
                    .unwrap_or_default()
                    .to_owned(),
            },
            Observation::WindowKnown { .. }
            | Observation::Compacted { .. }
            | Observation::PlanChanged(_)
            | Observation::Retrying(_)
            | Observation::AwaitingServer(_)
            | Observation::ModelFellBack { .. }
            | Observation::RequestFailed { .. }
            | Observation::ControlAnswered { .. }
            | Observation::ControlAsked { .. }
            | Observation::Ping
            | Observation::NotUnderstood(_) => return None,
        };
        Some(LaunchNews::Agent(news))
    }
}

fn quota(window: Window) -> QuotaWindow {
    QuotaWindow {
        window: window.name,
        percent: window.percent,
        resets_at: window.resets_at,
    }
}

/// Returns what whoever watches wants to read of it.
fn shown(observation: &Observation) -> Option<String> {
    Some(match observation {
        Observation::Said(text) | Observation::NotUnderstood(text) => text.clone(),
        Observation::Retrying(retry) => format!(
            "[the model's service: {}, attempt {} of {}, next in {:.1} s]",
            retry.error,
            retry.attempt,
            retry.attempts_max,
            Duration::from_millis(retry.delay_ms).as_secs_f64()
        ),
        Observation::AwaitingServer(why) => format!("[waiting for the OpenCode server: {why}]"),
        Observation::RequestFailed { text, .. } if !text.is_empty() => format!("[{text}]"),
        Observation::ModelFellBack { from, to } => format!("[{to} answers instead of {from}]"),
        Observation::Compacted { tokens_before, .. } => {
            format!("[the agent compacted its context of {tokens_before} tokens]")
        }
        Observation::RequestFailed { .. }
        | Observation::Measured(_)
        | Observation::ToolStarted { .. }
        | Observation::ToolEnded { .. }
        | Observation::Resulted(_)
        | Observation::SessionKnown(_)
        | Observation::SessionReset { .. }
        | Observation::WindowKnown { .. }
        | Observation::FileTouched(_)
        | Observation::PlanChanged(_)
        | Observation::Allowance(_)
        | Observation::CallEnded(_)
        | Observation::Cost(_)
        | Observation::TakenUp { .. }
        | Observation::PermissionDenied { .. }
        | Observation::BackgroundTasks(_)
        | Observation::Ping
        | Observation::ControlAnswered { .. }
        | Observation::ControlAsked { .. } => return None,
    })
}
