//! The settings are read again, by a thread of its own: a file system that does not answer keeps nobody from ending the loop.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tachikoma_core::{Answer, Input, Launch, OperatorRequest};
use tokio::sync::oneshot;

use super::LoopRunner;
use super::operator::Reread;
use crate::handle::Request;
use crate::settings::Live;

/// Those who may wait for their turn. All of them want the same.
const WAITING_MAX: usize = 8;

/// Readings that were asked for.
#[derive(Debug, Default)]
pub(super) struct Rereads {
    under_way: bool,
    waiting: VecDeque<oneshot::Sender<Answer>>,
}

impl Rereads {
    /// Nobody waits any more.
    pub fn forget(&mut self) {
        self.waiting.clear();
    }
}

impl LoopRunner {
    /// Has the settings read again, behind whoever asked before: what is read must be as new as the question.
    pub(super) fn reread(&mut self, reply: oneshot::Sender<Answer>) {
        if !self.rereads.under_way {
            return self.begin_reread(reply);
        }
        if self.rereads.waiting.len() < WAITING_MAX {
            return self.rereads.waiting.push_back(reply);
        }
        self.refuse(
            reply,
            "the configuration is being read; ask again".to_owned(),
        );
    }

    fn begin_reread(&mut self, reply: oneshot::Sender<Answer>) {
        let Some(reader) = self.reader.clone() else {
            let why = "nobody knows where the settings of this loop come from";
            return self.refuse(reply, why.to_owned());
        };
        let handle = self.handle.clone();
        let read = move || {
            let read = catch_unwind(AssertUnwindSafe(|| reader.read()));
            let read = read.unwrap_or_else(|_| Err("reading it panicked".to_owned()));
            handle.tell_of_reread(Request::Reread {
                read: Box::new(read),
                reply,
            });
        };
        // Not one of the runtime's own threads: its end waits for those.
        let begun = std::thread::Builder::new()
            .name("settings".to_owned())
            .spawn(read);
        // Whoever asked hears that nobody answers.
        self.rereads.under_way = begun.is_ok();
    }

    pub(super) fn was_reread(
        &mut self,
        read: Result<Reread, String>,
        reply: oneshot::Sender<Answer>,
    ) -> Option<Input> {
        self.rereads.under_way = false;
        if let Some(next) = self.rereads.waiting.pop_front() {
            self.begin_reread(next);
        }
        // Whoever asked does not wait any more, or did in a run that is over.
        if reply.is_closed() {
            return None;
        }
        match read {
            Ok(read) => {
                let wish = self.wish_of(read);
                let ticket = self.ticket(reply);
                Some(Input::OperatorRequest { ticket, wish })
            }
            Err(why) => {
                let warning =
                    format!("the configuration was not read again, and holds as it was: {why}");
                self.refuse(reply, warning.clone());
                Some(Input::Warning { warning })
            }
        }
    }

    /// Works out what holds from now on of settings that were read again.
    fn wish_of(&mut self, read: Reread) -> OperatorRequest {
        let Reread { settings, launch } = read;
        let live = Live::of(&self.config.settings, &settings);
        let launch = Launch {
            agent: self.state.launch.agent.clone(),
            prompt: self.state.launch.prompt.clone(),
            config_hash: live.hash(),
            settings: Some(live.recorded()),
            ..launch
        };
        let mut config = self.config.clone();
        config.settings = live.settings.clone();
        let limits = config.policy(&self.agent).limits();
        self.reread = Some(live.settings);
        OperatorRequest::Reload {
            launch: Box::new(launch),
            later: live.later,
            limits,
        }
    }

    fn refuse(&self, reply: oneshot::Sender<Answer>, reason: String) {
        let current = self.state.public();
        // Whoever asked may have gone.
        let _ = reply.send(Answer::Refused { current, reason });
    }
}
