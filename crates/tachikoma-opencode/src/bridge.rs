//! The bridge: a process that the runner starts in an agent's place and that holds one conversation with a server. Lines on
//! one side ([`Order`], events and [`Own`]), HTTP on the other. It dies with the runner's patience, its input or its
//! server, and says which; what the server does meanwhile is the server's. That is why whoever takes a conversation up
//! again ends a turn that still goes on there.

mod filter;
mod find;
mod messages;
mod open;
mod prompt;
mod session_tree;
mod turn;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use tachikoma_agents::Permission;
use tachikoma_agents::line::LineSplitter;
use tachikoma_agents::opencode::{GAVE_UP, Order, Own, SERVER_LOST};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::client::{Client, EventStream, Login};
use filter::Filter;
use messages::{AnswerIndex, ServerClock};
use session_tree::SessionTree;
use tachikoma_core::error_chain as chain;
use turn::Turn;

/// A prompt with its hand-off has some 100 KiB; nobody types more than this.
const ORDER_BYTES_MAX: usize = 16 << 20;

/// Orders that wait while a request is under way. The runner says a few at a time.
const ORDERS_MAX: usize = 16;

/// Timeout of most requests. The first request of a directory loads its tools, which takes seconds and longer on a busy machine.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a bridge that is not needed any more sees to it that nothing goes on behind it. The server takes up to 1.2 s to
/// end a turn, on a busy machine more.
const LEAVE_PATIENCE: Duration = Duration::from_secs(5);

/// How often a hand-off is asked for again after its server died. The loop bounds the time.
const RECOVERIES_MAX: u32 = 3;

/// What a bridge is told.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which server.
    pub server: Server,
    /// The directory that the conversation works in, absolute.
    pub directory: PathBuf,
    /// The model, as `provider/model`.
    pub model: Option<String>,
    /// What the agent may do without asking.
    pub permission: Permission,
    /// Commands that it may run with [`Permission::Safe`], each with any arguments.
    pub allow: Vec<String>,
    /// The conversation to go on in.
    pub resume: Option<String>,
    /// Whether the context is managed from outside, so that a full one is reported instead of compacted.
    pub managed: bool,
    /// Who we are to the server.
    pub login: Option<Login>,
}

/// Which server.
#[derive(Clone, Debug)]
pub enum Server {
    /// One that someone else runs, at this address.
    At(String),
    /// One whose supervisor has this directory.
    Supervised(PathBuf),
}

/// Why a bridge ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Nothing more is wanted.
    InputEnded,
    /// It was told to end.
    Terminated,
    /// The server went away: another bridge may find it again.
    Lost(String),
    /// There is no server, and none will come by itself.
    GaveUp(String),
}

impl End {
    /// Returns the last words, where there is something to say.
    #[must_use]
    pub fn words(&self) -> Option<String> {
        match self {
            Self::InputEnded | Self::Terminated => None,
            Self::Lost(why) => Some(format!("{SERVER_LOST}: {why}")),
            Self::GaveUp(why) => Some(format!("{GAVE_UP}: {why}")),
        }
    }

    /// Returns the exit code.
    #[must_use]
    pub fn code(&self) -> u8 {
        match self {
            Self::InputEnded => 0,
            Self::Lost(_) => 3,
            Self::GaveUp(_) => 4,
            Self::Terminated => 143,
        }
    }
}

/// Speaks between a runner and a server until one of them has enough.
pub async fn run(
    options: Options,
    input: impl AsyncRead + Unpin + Send + 'static,
    output: impl AsyncWrite + Unpin,
    terminated: impl Future<Output = ()>,
) -> End {
    let (orders, wanted) = mpsc::channel(ORDERS_MAX);
    // Ends with the input, or with this process.
    let reader = tokio::spawn(read_orders(input, orders));
    let mut bridge = Bridge {
        options,
        output,
        orders: wanted,
        waiting: VecDeque::new(),
        recoveries: 0,
    };
    let end = bridge.serve(terminated).await;
    reader.abort();
    end
}

struct Bridge<O> {
    options: Options,
    output: O,
    orders: mpsc::Receiver<Order>,
    /// Orders that came while there was no server to carry them out.
    waiting: VecDeque<Order>,
    /// How often a hand-off was asked for again.
    recoveries: u32,
}

/// A conversation that is open.
struct Conversation {
    client: Client,
    events: EventStream,
    clock: ServerClock,
    answer_index: AnswerIndex,
    version: Option<String>,
    /// The server's id of it; none before there is one.
    id: Option<String>,
    /// Whether the one that was to be gone on with is not known any more.
    gone: bool,
    /// How much fits into each model's context: asked for while the first prompt is on its way.
    asked_windows: Option<JoinHandle<Vec<(String, u64)>>>,
    windows: Vec<(String, u64)>,
    session_tree: SessionTree,
    filter: Filter,
    turn: Option<Turn>,
    /// Whether a turn of an earlier bridge may be there that was cut.
    resumed: bool,
    /// Streams in a row that ended without an event.
    reconnected: u32,
}

/// What happens next.
enum Next {
    Order(Option<Order>),
    Event(Result<String, super::client::StreamEnd>),
    Look,
    Terminate,
}

impl<O: AsyncWrite + Unpin> Bridge<O> {
    async fn serve(&mut self, terminated: impl Future<Output = ()>) -> End {
        let mut terminated = std::pin::pin!(terminated);
        let opened = tokio::select! {
            opened = self.open() => opened,
            () = &mut terminated => return End::Terminated,
        };
        let mut conversation = match opened {
            Ok(conversation) => conversation,
            Err(end) => return end,
        };
        loop {
            let next = match self.waiting.pop_front() {
                Some(order) => Next::Order(Some(order)),
                None => tokio::select! {
                    () = &mut terminated => Next::Terminate,
                    order = self.orders.recv() => Next::Order(order),
                    event = conversation.events.next() => Next::Event(event),
                    () = turn::due(conversation.turn.as_ref()) => Next::Look,
                },
            };
            let done = match next {
                Next::Order(Some(order)) => self.carry_out(&mut conversation, order).await,
                Next::Order(None) => Err(End::InputEnded),
                Next::Terminate => Err(End::Terminated),
                Next::Event(Ok(data)) => self.heard(&mut conversation, &data).await,
                Next::Event(Err(end)) => self.stream_ended(&mut conversation, &end).await,
                Next::Look => self.look(&mut conversation).await,
            };
            if let Err(end) = done {
                let Some(text) = self.worth_asking_again(&end, &conversation) else {
                    if matches!(end, End::InputEnded | End::Terminated) {
                        let _ = tokio::time::timeout(LEAVE_PATIENCE, conversation.leave()).await;
                    }
                    return end;
                };
                let recovered = tokio::select! {
                    recovered = self.ask_again(&conversation, text) => recovered,
                    () = &mut terminated => return End::Terminated,
                };
                conversation = match recovered {
                    Ok(conversation) => conversation,
                    Err(end) => return end,
                };
            }
        }
    }

    /// Returns the text of a prompt that begins no iteration and lost its server: the request for a hand-off. An iteration is tried
    /// again by the loop, a hand-off is not.
    fn worth_asking_again(&self, end: &End, conversation: &Conversation) -> Option<String> {
        let is_lost = matches!(end, End::Lost(_)) && self.recoveries < RECOVERIES_MAX;
        let turn = conversation.turn.as_ref().filter(|_| is_lost);
        turn.and_then(Turn::to_repeat)
    }

    /// Takes the conversation up again in the next server, and gives the prompt once more.
    async fn ask_again(
        &mut self,
        before: &Conversation,
        text: String,
    ) -> Result<Conversation, End> {
        self.recoveries += 1;
        self.options.resume = before.id.clone();
        let mut conversation = self.open().await?;
        self.prompt(&mut conversation, &text, None).await?;
        Ok(conversation)
    }

    async fn carry_out(
        &mut self,
        conversation: &mut Conversation,
        order: Order,
    ) -> Result<(), End> {
        match order {
            Order::AreYouThere => self.say(&Own::Here {}).await,
            Order::Prompt { text, iteration } => self.prompt(conversation, &text, iteration).await,
            Order::Aside { text } => self.aside(conversation, &text).await,
            Order::Interrupt => self.interrupt(conversation).await,
            Order::WhatCost => self.cost(conversation).await,
        }
    }

    /// Says something of our own.
    async fn say(&mut self, own: &Own) -> Result<(), End> {
        let line = serde_json::to_string(own).unwrap_or_default();
        self.print(&line).await
    }

    /// Prints one line. A runner that does not read it any more has enough.
    async fn print(&mut self, line: &str) -> Result<(), End> {
        let mut bytes = Vec::with_capacity(line.len() + 1);
        bytes.extend_from_slice(line.as_bytes());
        bytes.push(b'\n');
        let printed = async {
            self.output.write_all(&bytes).await?;
            self.output.flush().await
        };
        printed.await.map_err(|_| End::InputEnded)
    }
}

/// Whoever goes away in the middle of a request is lost.
fn lost(error: &super::client::ClientError) -> End {
    if error.is_absence() {
        End::Lost(chain(error))
    } else {
        End::GaveUp(chain(error))
    }
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

async fn read_orders(mut input: impl AsyncRead + Unpin, orders: mpsc::Sender<Order>) {
    let mut lines = LineSplitter::new(ORDER_BYTES_MAX);
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = match input.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(read) => read,
        };
        let mut read_orders = Vec::new();
        lines.push(buffer.get(..read).unwrap_or_default(), &mut |line| {
            // Only the runner talks to us; what it does not say is nothing.
            read_orders.extend(serde_json::from_str::<Order>(&line.text));
        });
        for order in read_orders {
            if orders.send(order).await.is_err() {
                return;
            }
        }
    }
}
