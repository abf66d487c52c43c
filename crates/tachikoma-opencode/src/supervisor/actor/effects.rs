//! What the core wishes, done.

use tachikoma_core::Generation;
use tachikoma_core::supervise::{Answered, ServerEffect, ServerInput, ServerPhase};
use tokio::sync::oneshot;

use super::super::http::Target;
use super::super::launch::{self, Refusal};
use super::super::probe::{self, Moment};
use super::super::{SupervisorError, SupervisorEvent, output};
use super::Supervisor;
use tachikoma_process::{Guard, GuardOptions, memory_below};
use tachikoma_store::StoreError;

impl Supervisor {
    pub(super) fn carry_out(&mut self, effect: ServerEffect) -> Result<(), SupervisorError> {
        match effect {
            ServerEffect::Start { generation } => self.start_server(generation)?,
            ServerEffect::Probe { generation } => self.probe(generation),
            ServerEffect::Measure { generation } => self.measure(generation),
            ServerEffect::AskIdle { .. } if self.settings.told_when_idle => {}
            ServerEffect::AskIdle { generation } => {
                self.ask(generation, |target, generation| async move {
                    let idle = probe::is_idle(&target).await;
                    idle.then_some(ServerInput::Boundary { generation })
                });
            }
            ServerEffect::Release { generation } => {
                self.ask(generation, |target, generation| async move {
                    probe::release(&target).await;
                    Some(ServerInput::Released { generation })
                });
            }
            ServerEffect::Signal { generation, rung } => {
                if let Some(guard) = &mut self.guard {
                    guard.signal(generation.0, rung);
                }
            }
            ServerEffect::Reply { ticket, answer } => {
                if let Some(reply) = self.replies.remove(&ticket.0) {
                    // Whoever asked may have gone.
                    let _ = reply.send(answer);
                }
            }
            ServerEffect::Finish => self.finished = true,
        }
        Ok(())
    }

    fn start_server(&mut self, generation: Generation) -> Result<(), SupervisorError> {
        self.forget_server();
        let launch = match launch::prepare(&self.settings, self.login.as_ref(), generation) {
            Ok(launch) => launch,
            Err(Refusal::Known(why)) => {
                let input = ServerInput::NotStarted { generation, why };
                self.at_once.push_back(input);
                return Ok(());
            }
            Err(Refusal::PortTaken { address }) => {
                // Another process has the port, and must not get our password.
                let target = Target {
                    address,
                    authorization: None,
                    server: None,
                };
                let news = self.news.0.clone();
                self.tasks.spawn(async move {
                    let _ = news
                        .send(launch::port_taken(generation, target).await)
                        .await;
                });
                return Ok(());
            }
        };
        let guard = match &mut self.guard {
            Some(guard) => guard,
            None => {
                let guard = Guard::start(self.guard_options()?)?;
                self.guard.insert(guard)
            }
        };
        if let Err(error) = guard.spawn(launch.spawn) {
            let why = format!("order it from the guard: {error}");
            let input = ServerInput::NotStarted { generation, why };
            self.at_once.push_back(input);
            return Ok(());
        }
        self.target = launch.address.map(|address| self.target_at(address));
        let (reader, gone) = oneshot::channel();
        self.reader = Some(reader);
        let (news, log) = (self.news.0.clone(), self.log.clone());
        self.tasks
            .spawn(output::read(generation, launch.streams, news, log, gone));
        Ok(())
    }

    /// Measures all that the guard holds: the server, and what its tools have started.
    fn measure(&mut self, generation: Generation) {
        let Some(guard) = self.guard.as_ref().map(Guard::pid) else {
            return;
        };
        let news = self.news.0.clone();
        self.tasks.spawn(async move {
            if let Some(rss_bytes) = memory_below(guard).await {
                let input = ServerInput::Measured {
                    generation,
                    rss_bytes,
                };
                let _ = news.send(SupervisorEvent::Input(input)).await;
            }
        });
    }

    fn guard_options(&self) -> Result<GuardOptions, SupervisorError> {
        let mut words = self.settings.guard.iter().cloned();
        let lock = self.lock.share();
        let lock = lock.map_err(StoreError::io("share", &self.settings.dir.join("lock")))?;
        Ok(GuardOptions {
            program: words.next().unwrap_or_default().into(),
            args: words.collect(),
            marker: self.settings.id.to_string(),
            lock: Some(lock),
            cgroup: self.settings.cgroup,
            adoption: self.settings.adoption,
            hidden: self.settings.hidden.clone(),
            commands: false,
        })
    }

    fn probe(&mut self, generation: Generation) {
        let moment = match self.state.phase {
            ServerPhase::Ready { .. } => Moment::Later,
            ServerPhase::Idle
            | ServerPhase::Starting { .. }
            | ServerPhase::Ending { .. }
            | ServerPhase::Gone
            | ServerPhase::Waiting { .. }
            | ServerPhase::Down { .. }
            | ServerPhase::GaveUp { .. } => Moment::Start,
        };
        if let Some(before) = self.probing.take() {
            before.abort();
        }
        let Some(target) = self.target() else {
            let what = "it has not said where it listens".to_owned();
            let answered = Answered::Silent { what };
            self.at_once.push_back(ServerInput::Answered {
                generation,
                answered,
            });
            return;
        };
        let news = self.news.0.clone();
        self.probing = Some(self.tasks.spawn(async move {
            let answered = probe::health(&target, moment).await;
            let input = ServerInput::Answered {
                generation,
                answered,
            };
            let _ = news.send(SupervisorEvent::Input(input)).await;
        }));
    }

    /// Returns where the current server is asked, with its process.
    fn target(&self) -> Option<Target> {
        let target = self.target.clone()?;
        let server = self.state.phase.pid();
        Some(Target { server, ..target })
    }

    /// Asks the server something, and hands on what is to be told to the core.
    fn ask<F>(&mut self, generation: Generation, question: impl FnOnce(Target, Generation) -> F)
    where
        F: Future<Output = Option<ServerInput>> + Send + 'static,
    {
        let Some(target) = self.target() else {
            return;
        };
        let news = self.news.0.clone();
        let question = question(target, generation);
        self.tasks.spawn(async move {
            if let Some(input) = question.await {
                let _ = news.send(SupervisorEvent::Input(input)).await;
            }
        });
    }
}
