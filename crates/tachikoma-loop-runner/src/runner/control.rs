//! The control socket of the loop, and the callers that wait for the core's answer.

use std::collections::HashMap;

use tachikoma_core::{Answer, Input, Ticket};
use tokio::sync::oneshot;

use super::context::InputQueue;
use crate::control::ControlServer;
use crate::task::await_some;
use tachikoma_core::error_chain as chain;

/// The control socket, and a reply channel for each request that the core has to answer.
#[derive(Debug)]
pub(super) struct Control {
    server: Option<ControlServer>,
    replies: HashMap<Ticket, oneshot::Sender<Answer>>,
    last_ticket: Ticket,
    /// Whether the warning that the socket cannot be created again was recorded.
    warned: bool,
}

impl Control {
    pub fn new(server: ControlServer) -> Self {
        Self {
            server: Some(server),
            replies: HashMap::new(),
            last_ticket: Ticket(0),
            warned: false,
        }
    }

    /// Returns a new ticket, which identifies a request in the answer of the core.
    pub fn next_ticket(&mut self) -> Ticket {
        self.last_ticket = self.last_ticket.next();
        self.last_ticket
    }

    /// Stores the reply channel of a request until the core answers it.
    pub fn await_answer(&mut self, ticket: Ticket, reply: oneshot::Sender<Answer>) {
        self.replies.insert(ticket, reply);
    }

    /// Sends the core's answer to the caller.
    pub fn reply(&mut self, ticket: Ticket, answer: Answer) {
        if let Some(reply) = self.replies.remove(&ticket) {
            // Sending fails if the caller no longer waits, which does not matter.
            let _ = reply.send(answer);
        }
    }

    /// Drops all reply channels, so that the callers learn that no answer will come.
    pub fn drop_callers(&mut self) {
        self.replies.clear();
    }

    /// Creates the control socket again if its file was deleted. Returns a description of the repair; `None` if none was needed.
    pub async fn repair_socket(&mut self, queue: &mut InputQueue) -> Option<String> {
        match self.server.as_mut()?.keep().await {
            Ok(false) => None,
            Ok(true) => {
                self.warned = false;
                Some("its file was missing and was created again".to_owned())
            }
            Err(error) => {
                if !std::mem::replace(&mut self.warned, true) {
                    queue.warn(format!("the control socket cannot be created again, and commands do not reach the runner: {}", chain(&error)));
                }
                None
            }
        }
    }

    /// Waits until the control server panics. Cancel-safe.
    pub async fn next_event(&mut self) -> Input {
        let reason = await_some(self.server.as_mut().map(ControlServer::broken)).await;
        Input::Broken { reason }
    }

    /// Closes the control socket after connected callers have read their answers.
    pub async fn shutdown(&mut self) {
        if let Some(server) = self.server.take() {
            server.close().await;
        }
    }
}
