//! The features of the runner. Each owns its state, its tasks and its threads.

use tachikoma_agents::Message;
use tachikoma_core::{Effect, Input};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::autocommit::Autocommit;
use super::backup_schedule::BackupSchedule;
use super::checks::Checks;
use super::context::{Context, InputQueue, TurnOrder, TurnStart, warning_input};
use super::control::Control;
use super::event::Event;
use super::hook_runner::HookRunner;
use super::maintenance::Maintenance;
use super::opencode_server::OwnServer;
use super::operator;
use super::reload::{Reload, refuse};
use super::session::Session;
use super::snapshots::Snapshots;
use crate::advice;
use crate::handle::{Channels, LoopRequest};
use crate::notify::Notifier;
use crate::request::ControlRequest;
use crate::task::until;

/// All features of a runner. The actor starts their work and never waits for it. `next_event` waits for the results, and `shutdown`
/// ends the work.
#[derive(Debug)]
pub(super) struct Features {
    pub session: Session,
    pub autocommit: Autocommit,
    pub hooks: HookRunner,
    pub checks: Checks,
    pub notifier: Notifier,
    pub maintenance: Maintenance,
    pub backups: BackupSchedule,
    pub snapshots: Snapshots,
    pub control: Control,
    pub server: OwnServer,
    pub reload: Reload,
}

/// Deadlines that limit the wait for the next event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waits {
    /// The next deadline of the core.
    pub deadline: Option<Instant>,
    /// When the files of the loop have to be checked, saved or backed up.
    pub files_due: Option<Instant>,
    /// When the next write is tried on a full disk; `None` while there is space. Meanwhile no turn begins, and replies of git are not read.
    pub retry: Option<Instant>,
    /// Whether the queue has space for events of hooks, checks, notifications and the agent.
    pub accepts: bool,
}

impl Features {
    /// Waits for the next event. Priority: shutdown, operator, timers, agent. The agent is last because its output may never pause.
    /// Cancel-safe.
    pub async fn next_event(&mut self, channels: &mut Channels, waits: Waits) -> Event {
        let normal = waits.retry.is_none();
        let snapshot_due = self.autocommit.snapshot_due().filter(|_| normal);
        tokio::select! {
            biased;
            Some((signal, urgency)) = channels.shutdowns.recv() => Event::Shutdown { signal, urgency },
            input = self.control.next_event() => Event::Input(input),
            input = self.backups.next_event() => Event::Input(input),
            event = self.maintenance.next_event() => Event::Maintenance(event),
            Some(request) = channels.requests.recv() => Event::Request(request),
            () = until(waits.retry) => Event::RetryDue,
            () = until(waits.deadline) => Event::Deadline,
            () = until(waits.files_due) => Event::FilesDue,
            reply = self.autocommit.next_event(), if normal => Event::Git(reply),
            () = until(snapshot_due) => Event::SnapshotTimedOut,
            ended = self.hooks.next_event(), if waits.accepts => Event::Hooks(ended),
            ended = self.notifier.next_event(), if waits.accepts => Event::Delivery(ended),
            result = self.checks.next_event(), if waits.accepts => Event::Check(result),
            event = self.session.next_event(), if waits.accepts => event,
        }
    }

    /// Performs one effect: starts the work, and never waits for it. A failure is reported as an input.
    pub async fn perform(&mut self, context: Context<'_>, effect: Effect, queue: &mut InputQueue) {
        match effect {
            Effect::Launch {
                generation,
                iteration,
                attempt,
                session,
                resume,
            } => {
                let turn = TurnOrder {
                    generation,
                    iteration,
                    attempt,
                    session,
                    start: TurnStart::Launch { resume },
                };
                self.begin_turn(context, turn, queue).await;
            }
            Effect::Prompt {
                generation,
                iteration,
                attempt,
                session,
            } => {
                let turn = TurnOrder {
                    generation,
                    iteration,
                    attempt,
                    session,
                    start: TurnStart::Prompt,
                };
                self.begin_turn(context, turn, queue).await;
            }
            Effect::OpenSession {
                generation,
                session,
                resume,
            } => {
                let turn = TurnOrder {
                    generation,
                    iteration: context.state.next_iteration(),
                    attempt: 1,
                    session,
                    start: TurnStart::Session { resume },
                };
                self.session.begin_turn(context, turn, queue).await;
            }
            Effect::Advise {
                generation,
                percent,
            } => {
                let message = Message::Aside(&advice::wrap_up(percent));
                self.session.say(context, generation, &message, queue);
            }
            Effect::SendMessage { generation, text } => {
                let message = Message::Aside(&advice::from_operator(&text));
                self.session.say(context, generation, &message, queue);
            }
            Effect::RollBack { iteration, again } => {
                self.autocommit.roll_back(iteration, again, queue);
            }
            Effect::AskCost { generation } => self.session.ask_cost(context, generation),
            Effect::AttributeChanges => self.autocommit.owe_survey(),
            Effect::AskHandOff { generation } => {
                self.autocommit.owe_survey();
                self.session.ask_hand_off(context, generation, queue);
            }
            Effect::Close { generation } => self.session.close_stdin(generation),
            Effect::SampleProcesses { generation } => self.session.sample_processes(generation),
            Effect::Signal { generation, signal } => {
                if !self.autocommit.end_deferred(generation, signal, queue) {
                    self.session.signal(context, generation, signal);
                }
            }
            Effect::RunHooks { point, reason } => {
                self.hooks.run(context, point, reason, queue);
            }
            Effect::Autocommit {
                number,
                commit,
                changes,
            } => {
                let autocommit = &mut self.autocommit;
                autocommit.commit(context, number, commit, changes, queue);
            }
            Effect::CancelAutocommit => self.autocommit.cancel_commit(),
            Effect::CheckConditions { number } => {
                self.checks.ask(context, number, &self.autocommit, queue);
            }
            Effect::RunGates { number, names } => {
                let autocommit = &self.autocommit;
                self.checks.run_gates(context, number, &names, autocommit);
            }
            Effect::Reply { ticket, answer } => self.control.reply(ticket, answer),
            // Nothing ends the run here: the run ends because of the state of the loop.
            Effect::Finish => self.session.finish(),
        }
    }

    /// Begins a turn, after the git snapshot before it.
    async fn begin_turn(&mut self, context: Context<'_>, turn: TurnOrder, queue: &mut InputQueue) {
        if let Some(turn) = self.autocommit.defer(context, turn) {
            self.session.begin_turn(context, turn, queue).await;
        }
    }

    /// Begins the turn that waited for its git snapshot.
    pub async fn begin_deferred_turn(&mut self, context: Context<'_>, queue: &mut InputQueue) {
        if let Some(turn) = self.autocommit.take_deferred() {
            self.session.begin_turn(context, turn, queue).await;
        }
    }

    /// Notes that the survey at the start of the run has finished, and starts gates that waited for it.
    pub fn opened(&mut self, context: Context<'_>) {
        self.autocommit.opened();
        self.checks
            .run_gates_after_opening(context, &self.autocommit);
    }

    /// Handles a request to the loop. Returns the input for the core; `None` if the core does not have to decide.
    pub fn request(&mut self, context: Context<'_>, request: LoopRequest) -> Option<Input> {
        match request {
            // The request is dropped, because its caller no longer waits.
            LoopRequest::Ask { reply, .. } if reply.is_closed() => None,
            LoopRequest::Ask {
                request: ControlRequest::Reload,
                reply,
                ..
            } => {
                let current = context.state.public();
                self.reload.request(context.handle, current, reply);
                None
            }
            LoopRequest::Ask {
                request,
                caller,
                reply,
            } => {
                let ticket = self.control.next_ticket();
                match operator::input(context, request, caller, ticket) {
                    Ok(input) => {
                        self.control.await_answer(ticket, reply);
                        Some(input)
                    }
                    Err(reason) => {
                        refuse(reply, context.state.public(), reason);
                        None
                    }
                }
            }
            LoopRequest::Reloaded { read, reply } => {
                let current = context.state.public();
                self.reload.finished(context.handle, current);
                // The caller no longer waits, or its run has ended.
                if reply.is_closed() {
                    return None;
                }
                Some(match *read {
                    Ok(read) => {
                        let request = self.reload.request_of(context, read);
                        let ticket = self.control.next_ticket();
                        self.control.await_answer(ticket, reply);
                        Input::OperatorRequest { ticket, request }
                    }
                    Err(why) => {
                        let warning = format!(
                            "the configuration was not reloaded, and the old one stays in effect: {why}"
                        );
                        refuse(reply, current, warning.clone());
                        warning_input(warning)
                    }
                })
            }
            LoopRequest::Incident(incident) => Some(Input::Incident(incident)),
            // The actor handles the other requests.
            _ => None,
        }
    }

    /// Suspends all processes of the loop, as Ctrl-Z does, and then sends `done`.
    pub fn suspend(&mut self, done: oneshot::Sender<()>) {
        self.session.suspend();
        self.notifier.suspend();
        if let Some(done) = self.hooks.suspend(done) {
            self.checks.suspend(done);
        }
    }

    /// Continues all processes of the loop.
    pub fn resume(&mut self) {
        self.session.resume();
        self.hooks.resume();
        self.notifier.resume();
        self.checks.resume();
    }

    /// Ends all tasks and processes of the run. `keep` says whether the loop is stored after the run.
    pub async fn shutdown(&mut self, keep: bool) {
        self.hooks.cancel();
        self.checks.cancel();
        self.session.shutdown().await;
        self.server.shutdown().await;
        self.autocommit.shutdown(keep).await;
        self.session.join_reader().await;
        self.hooks.shutdown().await;
        drop(self.notifier.shutdown().await);
        self.checks.shutdown().await;
        self.control.drop_callers();
        self.reload.drop_callers();
    }
}
