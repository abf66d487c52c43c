//! A full disk: a wait with a reason and an end. The core knows nothing of it, since what it decided cannot be written
//! down; nothing is published or done meanwhile, and no new step is taken.

use std::time::Duration;

use tachikoma_core::{Answer, Input, LoopCommand, Outcome, Timestamp, WaitSummary};

use super::backing::failed_backup;
use super::{Arrived, Cut, LoopRunner, RunError, beside, ended, guard_news, launch_news, until};
use crate::handle::{Notice, Request};
use crate::store::StoreError;

/// How often it is tried whether there is room: there is no call that waits for it.
const RETRY: Duration = Duration::from_secs(1);

/// AgentEvent that may wait for room; beyond that the agent waits, so that memory does not grow.
const HELD_MAX: usize = 1024;

impl LoopRunner {
    /// Does what needs room on the disk; while there is none, tries again, up to a bound.
    ///
    /// Ends early when the process or the loop is told to end. The agent goes on.
    pub(super) async fn with_room<T>(
        &mut self,
        attempt: impl Fn(&mut Self) -> Result<T, StoreError>,
    ) -> Result<T, Cut> {
        let mut full_since: Option<Timestamp> = None;
        loop {
            let source = match attempt(self) {
                Ok(done) => {
                    if let Some(since) = full_since {
                        self.unwritten = false;
                        let duration = self.clock.now().since(since);
                        self.queue.push_front(Input::DiskWasFull { duration });
                    }
                    return Ok(done);
                }
                Err(error) if error.is_full_disk() => error,
                Err(error) => return Err(RunError::Journal(error).into()),
            };
            let now = self.clock.now();
            let since = full_since.unwrap_or(now);
            let end = since.after(self.config.disk_full_timeout);
            if now >= end {
                let waited = now.since(since);
                return Err(RunError::NoRoom { waited, source }.into());
            }
            if full_since.replace(since).is_none() {
                self.tell_of_wait(end);
                // Should the future of the run be dropped here, the state stays ahead of the journal.
                self.unwritten = true;
            }
            self.wait_for_room(now.after(RETRY).min(end)).await?;
        }
    }

    /// What is published stays as it was, but for the wait.
    fn tell_of_wait(&self, end: Timestamp) {
        self.ends.status.send_modify(|status| {
            status.waiting = Some(WaitSummary {
                reason: "disk_full".to_owned(),
                until: Some(end),
            });
        });
        // Nobody may be listening.
        let _ = self.ends.notices.send(Notice::NoRoom { until: end });
    }

    /// Waits for a moment. Events of the agent are queued in order.
    async fn wait_for_room(&mut self, moment: Timestamp) -> Result<(), Cut> {
        let moment = Some(self.clock.instant_of(moment));
        loop {
            let has_place = self.queue.len() < HELD_MAX;
            let Self {
                ends,
                guard,
                launch,
                control,
                upkeep,
                hooks,
                beside: besides,
                notices,
                check,
                ..
            } = self;
            let arrived = tokio::select! {
                biased;
                Some((signal, _)) = ends.shutdowns.recv() => return Err(Cut::Left(Outcome::Signal { signal })),
                Some(request) = ends.requests.recv() => Arrived::Request(request),
                arrived = beside(control.as_mut(), upkeep) => arrived,
                () = until(moment) => return Ok(()),
                news = guard_news(guard.as_mut()), if has_place => Arrived::Guard(news),
                ran = ended(hooks.as_mut().map(|hooks| &mut hooks.errand)), if has_place => Arrived::Hooks(ran),
                ran = besides.ended(), if has_place => Arrived::Beside(ran),
                (index, ran) = notices.next(), if has_place => Arrived::Notice(index, ran),
                ran = ended(check.as_mut().map(|check| &mut check.errand)), if has_place => Arrived::Check(ran),
                news = launch_news(launch.as_mut()), if has_place => Arrived::Launch(news),
            };
            let input = match arrived {
                Arrived::Input(input) => Some(input),
                // The next backup finds it out again.
                Arrived::Damaged { why, .. } => {
                    let warning = failed_backup(&why);
                    Some(Input::Warning { warning })
                }
                // What cannot be journalled cannot be saved either; the desk keeps what it has to say, and no turn begins.
                Arrived::SaveDue | Arrived::Desk(_) | Arrived::SnapshotLate => None,
                Arrived::Request(request) => self.request_without_room(request)?,
                Arrived::Guard(news) => self.guard_news(news),
                Arrived::Hooks(ran) => self.hooks_ended(ran),
                Arrived::Beside(ran) => self.beside_ended(ran),
                Arrived::Notice(index, ran) => self.notice_ended(index, ran),
                Arrived::Check(ran) => self.check_ended(ran),
                Arrived::Launch(news) => self.launch_news(news).await,
            };
            self.queue.extend(input);
        }
    }

    /// Only a stop can be granted: all else would have to be written down first.
    fn request_without_room(&mut self, request: Request) -> Result<Option<Input>, Cut> {
        let (command, reply) = match request {
            Request::Command { command, reply, .. } => (Some(command), reply),
            Request::Set { reply, .. }
            | Request::Note { reply, .. }
            | Request::Done { reply, .. }
            | Request::Operator { reply, .. } => (None, reply),
            Request::Incident(_)
            | Request::Reread { .. }
            | Request::Register { .. }
            | Request::Suspend { .. }
            | Request::Continue => {
                return Ok(self.request(request));
            }
        };
        // Whoever asked may have gone.
        if reply.is_closed() {
            return Ok(None);
        }
        match command {
            Some(LoopCommand::Stop(_)) => {
                let note = "stopped; the disk is full, so that this is not written down".to_owned();
                let _ = reply.send(Answer::Accepted { note });
                Err(Cut::Left(Outcome::Operator))
            }
            Some(
                LoopCommand::Pause(_)
                | LoopCommand::Resume
                | LoopCommand::ForceReboot
                | LoopCommand::SkipIteration,
            )
            | None => {
                let _ = reply.send(Answer::Refused {
                    current: self.ends.status.borrow().state,
                    reason: "the disk is full: nothing can be written down, and so nothing but `stop` can be done; \
                             make room, and the loop goes on by itself"
                        .to_owned(),
                });
                Ok(None)
            }
        }
    }
}
