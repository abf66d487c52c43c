//! Reloading the settings while the loop runs. A thread of its own reads them: a file system that does not answer must not keep the loop
//! from ending.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tachikoma_core::{
    Answer, Launch, LoopEvent, LoopState, OperatorEvent, OperatorRequest, Record,
};
use tokio::sync::oneshot;

use super::context::Context;
use crate::handle::{LoopHandle, LoopRequest, ReloadedSettings, SettingsReader};
use crate::settings::{Live, Settings};

/// Callers that may wait for their turn. All of them want the same.
const WAITING_MAX: usize = 8;

/// Reloads of the settings.
#[derive(Debug, Default)]
pub(super) struct Reload {
    /// Reads the settings; `None` if the program that embeds the runner has not set one.
    pub reader: Option<SettingsReader>,
    is_reading: bool,
    waiting: VecDeque<oneshot::Sender<Answer>>,
    /// Settings that were read and take effect when the core has recorded the reload.
    pending: Option<Settings>,
}

impl Reload {
    /// Reads the settings, after any earlier requests. The settings must not be older than the request.
    pub fn request(
        &mut self,
        handle: &LoopHandle,
        current: LoopState,
        reply: oneshot::Sender<Answer>,
    ) {
        if !self.is_reading {
            return self.start_reading(handle, current, reply);
        }
        if self.waiting.len() < WAITING_MAX {
            return self.waiting.push_back(reply);
        }
        refuse(
            reply,
            current,
            "the configuration is being read; ask again".to_owned(),
        );
    }

    fn start_reading(
        &mut self,
        handle: &LoopHandle,
        current: LoopState,
        reply: oneshot::Sender<Answer>,
    ) {
        let Some(reader) = self.reader.clone() else {
            let why = "this runner cannot read its settings again";
            return refuse(reply, current, why.to_owned());
        };
        let handle = handle.clone();
        let read = move || {
            let read = catch_unwind(AssertUnwindSafe(|| reader.read()));
            let read = read.unwrap_or_else(|_| Err("reading it panicked".to_owned()));
            handle.send_reloaded(LoopRequest::Reloaded {
                read: Box::new(read),
                reply,
            });
        };
        // Not a thread of the runtime: the end of the runtime would wait for it.
        let started = std::thread::Builder::new()
            .name("settings".to_owned())
            .spawn(read);
        // Without a thread the reply channel is dropped, which the caller notices.
        self.is_reading = started.is_ok();
    }

    /// The settings were read. Starts the next reading, if a caller waits for it.
    pub fn finished(&mut self, handle: &LoopHandle, current: LoopState) {
        self.is_reading = false;
        if let Some(next) = self.waiting.pop_front() {
            self.start_reading(handle, current, next);
        }
    }

    /// Returns what the core has to decide about settings that were read.
    pub fn request_of(&mut self, context: Context<'_>, read: ReloadedSettings) -> OperatorRequest {
        let ReloadedSettings { settings, launch } = read;
        let live = Live::of(&context.config.settings, &settings);
        let launch = Launch {
            agent: context.state.launch.agent.clone(),
            prompt: context.state.launch.prompt.clone(),
            config_hash: live.hash(),
            settings: Some(live.recorded()),
            ..launch
        };
        let mut config = context.config.clone();
        config.settings = live.settings.clone();
        let limits = config.policy(context.agent).limits();
        self.pending = Some(live.settings);
        OperatorRequest::Reload {
            launch: Box::new(launch),
            later: live.later,
            limits,
        }
    }

    /// Returns the settings that take effect with these records.
    pub fn take_recorded(&mut self, records: &[Record]) -> Option<Settings> {
        let reloaded = |record: &Record| {
            matches!(
                record.event,
                LoopEvent::Operator(OperatorEvent::Reloaded { .. })
            )
        };
        // A record of another input may come first, for example of a jump of the clock.
        records.iter().any(reloaded).then(|| self.pending.take())?
    }

    /// Drops the reply channels of callers that wait.
    pub fn drop_callers(&mut self) {
        self.waiting.clear();
    }
}

/// Refuses a request.
pub(super) fn refuse(reply: oneshot::Sender<Answer>, current: LoopState, reason: String) {
    // The caller may have gone.
    let _ = reply.send(Answer::Refused { current, reason });
}
