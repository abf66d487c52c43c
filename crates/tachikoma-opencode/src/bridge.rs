//! The bridge is a process that the runner starts like an agent. It holds one conversation with an OpenCode server over HTTP. It
//! reads orders ([`Order`]) and prints events and reports ([`Own`]), one per line.
//!
//! The bridge exits when its input is closed, it gets a signal, or its server is lost, and prints why. The server may continue a
//! turn after that, so a bridge that resumes a conversation first aborts such a turn.

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

use super::client::{Client, ClientError, EventStream, Login, StreamEnd};
use filter::Filter;
use messages::{AnswerIndex, ServerClock};
use session_tree::SessionTree;
use tachikoma_core::error_chain as chain;
use turn::Turn;

/// Maximum size of an order in bytes. A prompt with its hand-off has about 100 KiB.
const ORDER_BYTES_MAX: usize = 16 << 20;

/// Maximum number of orders that wait while a request runs. The runner sends few at a time.
const ORDERS_MAX: usize = 16;

/// Time limit for aborting the running turn when the bridge exits. The server needs up to 1.2 s, or longer on a busy machine.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of times that a request for a hand-off is sent again after the server died. The loop limits the total time.
const RECOVERIES_MAX: u32 = 3;

/// Settings of a bridge.
#[derive(Clone, Debug)]
pub struct Options {
    /// How the bridge finds the address of its server.
    pub server: Server,
    /// Absolute path of the working directory of the conversation.
    pub directory: PathBuf,
    /// The model as `provider/model`; `None` for the server's default.
    pub model: Option<String>,
    /// Which actions of the agent are allowed without a permission request.
    pub permission: Permission,
    /// Commands that the agent may run with [`Permission::Safe`], each with any arguments.
    pub allow: Vec<String>,
    /// Id of the conversation to resume; `None` for a new one.
    pub resume: Option<String>,
    /// Whether the loop manages the context, so that the server must not compact the conversation.
    pub managed: bool,
    /// Login that the user configured; `None` for a server without a password, or with a generated one.
    pub login: Option<Login>,
}

/// How the bridge finds the address of its server.
#[derive(Clone, Debug)]
pub enum Server {
    /// The server has a fixed address and is not supervised.
    At(String),
    /// The server file in this directory of a supervisor names the address.
    Supervised(PathBuf),
}

/// Why a bridge ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The input of the bridge was closed.
    InputEnded,
    /// The bridge process got a signal that asks it to exit.
    Terminated,
    /// The server was lost. The next bridge may find it again.
    Lost(String),
    /// There is no server, and it will not appear.
    GaveUp(String),
}

impl End {
    /// Returns the last line that the bridge prints; `None` if there is none.
    #[must_use]
    pub fn message(&self) -> Option<String> {
        match self {
            Self::InputEnded | Self::Terminated => None,
            Self::Lost(why) => Some(format!("{SERVER_LOST}: {why}")),
            Self::GaveUp(why) => Some(format!("{GAVE_UP}: {why}")),
        }
    }

    /// Returns the exit code of the bridge.
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

impl From<ClientError> for End {
    fn from(error: ClientError) -> Self {
        match error.is_absence() {
            true => Self::Lost(chain(&error)),
            false => Self::GaveUp(chain(&error)),
        }
    }
}

/// Passes orders to the server and events to `output` until the input or the server ends.
pub async fn run(
    options: Options,
    input: impl AsyncRead + Unpin + Send + 'static,
    output: impl AsyncWrite + Unpin,
    terminated: impl Future<Output = ()>,
) -> End {
    let (orders, wanted) = mpsc::channel(ORDERS_MAX);
    let reader = tokio::spawn(read_orders(input, orders));
    let mut bridge = Bridge {
        options,
        output,
        orders: wanted,
        waiting: VecDeque::new(),
        recoveries: 0,
    };
    let end = bridge.serve(terminated).await;
    tracing::info!(code = end.code(), "bridge ended");
    reader.abort();
    end
}

struct Bridge<O> {
    options: Options,
    output: O,
    orders: mpsc::Receiver<Order>,
    /// Orders that arrived while there was no server.
    waiting: VecDeque<Order>,
    /// How often the request for a hand-off was repeated.
    recoveries: u32,
}

/// An open conversation.
struct Conversation {
    client: Client,
    events: EventStream,
    clock: ServerClock,
    answer_index: AnswerIndex,
    version: Option<String>,
    /// The server's id of the conversation; `None` until it is created.
    id: Option<String>,
    /// Whether the conversation is new or was resumed.
    origin: Origin,
    windows: ContextWindows,
    session_tree: SessionTree,
    filter: Filter,
    turn: Option<Turn>,
    /// Number of consecutive event streams that ended without an event.
    reconnected: u32,
}

/// Whether a conversation is new or was resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// The conversation is new, or its first prompt was sent already.
    Fresh,
    /// The conversation was resumed. The server may have an interrupted turn of it.
    Resumed,
    /// The conversation could not be resumed, because the server no longer knows it.
    Gone,
}

/// Maximum context sizes of the models, in tokens.
#[derive(Debug, Default)]
struct ContextWindows {
    /// Task that asks for the sizes while the first prompt is sent; `None` after it has ended.
    request: Option<JoinHandle<Vec<(String, u64)>>>,
    /// Context sizes by model that were not reported yet.
    unreported: Vec<(String, u64)>,
}

/// The next thing that the bridge has to handle.
enum Next {
    Order(Option<Order>),
    Event(Result<String, StreamEnd>),
    CheckTurn,
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
                    () = turn::check_due(conversation.turn.as_ref()) => Next::CheckTurn,
                },
            };
            let done = match next {
                Next::Order(Some(order)) => self.perform(&mut conversation, order).await,
                Next::Order(None) => Err(End::InputEnded),
                Next::Terminate => Err(End::Terminated),
                Next::Event(Ok(data)) => self.server_event(&mut conversation, &data).await,
                Next::Event(Err(end)) => self.stream_ended(&mut conversation, &end).await,
                Next::CheckTurn => self.check_turn(&mut conversation).await,
            };
            if let Err(end) = done {
                let Some(text) = self.prompt_to_repeat(&end, &conversation) else {
                    if matches!(end, End::InputEnded | End::Terminated) {
                        let _ = tokio::time::timeout(LEAVE_TIMEOUT, conversation.leave()).await;
                    }
                    return end;
                };
                let recovered = tokio::select! {
                    recovered = self.repeat_prompt(&conversation, text) => recovered,
                    () = &mut terminated => return End::Terminated,
                };
                conversation = match recovered {
                    Ok(conversation) => conversation,
                    Err(end) => return end,
                };
            }
        }
    }

    /// Returns the request for a hand-off if the server was lost during it. The loop repeats iterations, but not this request.
    fn prompt_to_repeat(&self, end: &End, conversation: &Conversation) -> Option<String> {
        let is_lost = matches!(end, End::Lost(_)) && self.recoveries < RECOVERIES_MAX;
        let turn = conversation.turn.as_ref().filter(|_| is_lost);
        turn.and_then(Turn::prompt_to_repeat)
    }

    /// Resumes the conversation in the next server, and sends the prompt again.
    async fn repeat_prompt(
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

    async fn perform(&mut self, conversation: &mut Conversation, order: Order) -> Result<(), End> {
        match order {
            Order::AreYouThere => self.report(&Own::Here {}).await,
            Order::Prompt { text, iteration } => self.prompt(conversation, &text, iteration).await,
            Order::Aside { text } => self.aside(conversation, &text).await,
            Order::Interrupt => self.interrupt(conversation).await,
            Order::WhatCost => self.report_cost(conversation).await,
        }
    }

    /// Prints a report of the bridge.
    async fn report(&mut self, own: &Own) -> Result<(), End> {
        let line = serde_json::to_string(own).unwrap_or_default();
        self.print(&line).await
    }

    /// Prints one line. If the runner no longer reads, it has closed the input as well.
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

fn str_of(value: &Value) -> &str {
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
            // Only the runner writes to this input, so lines that are not orders are ignored.
            read_orders.extend(serde_json::from_str::<Order>(&line.text));
        });
        for order in read_orders {
            if orders.send(order).await.is_err() {
                return;
            }
        }
    }
}
