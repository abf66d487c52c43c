//! What others ask of the runner, as inputs of the core where it decides.

use tachikoma_core::{Answer, Input, LoopCommand, OperatorRequest, Ticket, Urgency};
use tokio::sync::oneshot;

use super::LoopRunner;
use crate::clock;
use crate::handle::Request;
use crate::process::Hooks;

impl LoopRunner {
    pub(super) fn request(&mut self, request: Request) -> Option<Input> {
        match request {
            // Whoever asked does not wait any more.
            Request::Command { reply, .. }
            | Request::Set { reply, .. }
            | Request::Note { reply, .. }
            | Request::Done { reply, .. }
            | Request::Operator { reply, .. }
                if reply.is_closed() =>
            {
                None
            }
            Request::Command {
                command,
                hooks,
                reply,
            } => self.commanded(command, hooks, reply),
            Request::Operator { asked, reply } => self.operator_asks(asked, reply),
            Request::Set { key, value, reply } => {
                let ticket = self.ticket(reply);
                Some(Input::CustomSet { ticket, key, value })
            }
            Request::Note {
                text,
                operator,
                reply,
            } => {
                let ticket = self.ticket(reply);
                Some(Input::Note {
                    ticket,
                    text,
                    tell: false,
                    operator,
                })
            }
            Request::Done { reason, reply } => {
                let ticket = self.ticket(reply);
                Some(Input::CompletionClaimed { ticket, reason })
            }
            Request::Reread { read, reply } => self.was_reread(*read, reply),
            Request::Incident(incident) => Some(Input::Incident(incident)),
            Request::Register { point, hook, reply } => {
                // Whoever asked may have gone: then the hook stays all the same.
                let _ = reply.send(self.register(point, hook));
                None
            }
            Request::Suspend { done } => {
                if let Some(guard) = &mut self.guard {
                    guard.suspend();
                }
                self.suspended = Some(clock::monotonic());
                if let Some(run) = self.beside.running() {
                    // The agent and what is waited for are stopped last, and that is what whoever asked waits for.
                    let (stopped, _) = oneshot::channel();
                    run.errand.suspend(stopped);
                }
                for errand in self.notices.running() {
                    let (stopped, _) = oneshot::channel();
                    errand.suspend(stopped);
                }
                match (&self.hooks, &self.check) {
                    (Some(hooks), _) => hooks.errand.suspend(done),
                    (None, Some(check)) => check.errand.suspend(done),
                    // Whoever asked may have gone.
                    (None, None) => drop(done.send(())),
                }
                None
            }
            Request::Continue => {
                if let Some(guard) = &mut self.guard {
                    guard.resume();
                }
                if let Some(hooks) = &self.hooks {
                    hooks.errand.resume();
                }
                if let Some(run) = self.beside.running() {
                    run.errand.resume();
                }
                for errand in self.notices.running() {
                    errand.resume();
                }
                if let Some(check) = &self.check {
                    check.errand.resume();
                }
                let stopped = self.suspended.take()?;
                let duration = clock::monotonic().saturating_duration_since(stopped);
                Some(Input::Suspended { duration })
            }
        }
    }

    /// A hook that the loop waits for is heard out when it stops the loop: the stop is recorded, and holds when the hook has run. Others
    /// have their time when the loop has ended.
    fn commanded(
        &mut self,
        command: LoopCommand,
        hooks: Option<Hooks>,
        reply: oneshot::Sender<Answer>,
    ) -> Option<Input> {
        let ticket = self.ticket(reply);
        Some(match (hooks, command) {
            (Some(Hooks::Framing), LoopCommand::Stop(Urgency::Graceful)) => {
                let wish = OperatorRequest::StopAfterHooks;
                Input::OperatorRequest { ticket, wish }
            }
            (Some(Hooks::Framing | Hooks::Beside) | None, command) => {
                Input::Command { ticket, command }
            }
        })
    }

    pub(super) fn ticket(&mut self, reply: oneshot::Sender<Answer>) -> Ticket {
        self.last_ticket = self.last_ticket.next();
        self.tickets.insert(self.last_ticket, reply);
        self.last_ticket
    }
}
