//! Commands of the operator.

use std::time::Duration;

use super::Stepper;
use crate::supervise::{Purpose, ServerEffect, ServerEnd, ServerEvent, ServerPhase};
use crate::{StopSignal, Ticket};

impl Stepper<'_> {
    fn reply(&mut self, ticket: Option<Ticket>, answer: Result<&str, &str>) {
        if let Some(ticket) = ticket {
            let answer = answer.map(str::to_owned).map_err(str::to_owned);
            self.emit(ServerEffect::Reply { ticket, answer });
        }
    }

    /// Stops the server and the supervisor in any phase, even during a delay.
    pub(super) fn stop(&mut self, ticket: Option<Ticket>) {
        match &self.state.phase {
            ServerPhase::Starting { .. } => self.end(Purpose::Stop, StopSignal::Terminate),
            ServerPhase::Ready { .. } => self.end(Purpose::Stop, StopSignal::Interrupt),
            ServerPhase::Ending {
                signal, purpose, ..
            } => {
                // The server is already being ended. Only the purpose changes, so that no restart follows.
                let signal = *signal;
                if *purpose != Purpose::Stop {
                    self.end(Purpose::Stop, signal);
                }
            }
            ServerPhase::Gone
            | ServerPhase::Waiting { .. }
            | ServerPhase::Down { .. }
            | ServerPhase::GaveUp { .. } => self.close(),
            ServerPhase::Idle => {}
        }
        self.reply(ticket, Ok("it is being stopped"));
    }

    pub(super) fn restart(&mut self, ticket: Option<Ticket>) {
        let answer = match &self.state.phase {
            ServerPhase::Starting { .. } => self.replace(StopSignal::Terminate),
            ServerPhase::Ready { .. } => self.replace(StopSignal::Interrupt),
            ServerPhase::Ending { purpose, .. } => match purpose {
                Purpose::Stop => Err("the server and its supervisor are being stopped"),
                Purpose::Restart | Purpose::Memory { .. } => Ok("it is being replaced already"),
                Purpose::NotReady { .. } | Purpose::Hung { .. } => self.replace(StopSignal::Kill),
            },
            ServerPhase::Gone
            | ServerPhase::Waiting { .. }
            | ServerPhase::Down { .. }
            | ServerPhase::GaveUp { .. } => {
                self.record(ServerEvent::Cleared);
                let end = self.state.last_end.clone().unwrap_or(ServerEnd::Unknown);
                self.restarting(0, Duration::ZERO, end);
                Ok("it is being started")
            }
            ServerPhase::Idle => Err("its supervisor is ending"),
        };
        self.reply(ticket, answer);
    }

    fn replace(&mut self, signal: StopSignal) -> Result<&'static str, &'static str> {
        self.end(Purpose::Restart, signal);
        Ok("it is being replaced")
    }
}
