//! Reloads the settings while the loop runs. A separate thread reads them, so that a file system that hangs does not keep the loop
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

/// Maximum number of callers that wait for a reload. All of them want the same settings.
const WAITING_MAX: usize = 8;

/// Reloads of the settings.
#[derive(Debug, Default)]
pub(super) struct Reload {
    /// Function that reads the settings; `None` if the embedding program has not set one.
    pub reader: Option<SettingsReader>,
    is_reading: bool,
    waiting: VecDeque<oneshot::Sender<Answer>>,
    /// Settings that were read. They take effect after the core has recorded the reload.
    pending: Option<Settings>,
}

impl Reload {
    /// Reads the settings after earlier requests are done, so that the settings are not older than the request.
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
        // This is not a thread of the runtime, because the shutdown of the runtime would wait for it.
        let started = std::thread::Builder::new()
            .name("settings".to_owned())
            .spawn(read);
        // If the thread cannot be started, the reply channel is dropped, and the caller gets an error.
        self.is_reading = started.is_ok();
    }

    /// Notes that the settings were read. Starts the next reading if a caller waits for it.
    pub fn finished(&mut self, handle: &LoopHandle, current: LoopState) {
        self.is_reading = false;
        if let Some(next) = self.waiting.pop_front() {
            self.start_reading(handle, current, next);
        }
    }

    /// Returns the request to the core to apply settings that were read.
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

    /// Returns the settings that take effect, if these records contain their reload.
    pub fn take_recorded(&mut self, records: &[Record]) -> Option<Settings> {
        let reloaded = |record: &Record| {
            matches!(
                record.event,
                LoopEvent::Operator(OperatorEvent::Reloaded { .. })
            )
        };
        // The reload need not be the first record. For example, a clock jump may be recorded before it.
        records.iter().any(reloaded).then(|| self.pending.take())?
    }

    /// Drops the reply channels of waiting callers.
    pub fn drop_callers(&mut self) {
        self.waiting.clear();
    }
}

/// Refuses a request.
pub(super) fn refuse(reply: oneshot::Sender<Answer>, current: LoopState, reason: String) {
    // Sending fails if the caller no longer waits, which does not matter.
    let _ = reply.send(Answer::Refused { current, reason });
}
