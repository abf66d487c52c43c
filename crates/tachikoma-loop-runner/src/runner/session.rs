//! The agent's session: the guard, the agent's process, its prompts, and the translation of its events into inputs of the core.

mod launch;
mod patterns;
mod prompts;

use std::ffi::OsString;
use std::io;
use std::time::Duration;

use tachikoma_agents::{
    self as agents, ARE_YOU_THERE, AgentEvent, FailureClass, Message, Turn, TurnOutcome,
    TurnResult, is_conversation_id,
};
use tachikoma_core::{
    Activity, AgentInput, ConversationUse, Generation, HAND_OFF_BYTES_MAX, Input, QuotaWindow,
    Spent, StopSignal, TurnEnd, microusd,
};
use tokio::sync::broadcast;

use super::context::{Context, InputQueue, TurnOrder, TurnStart, warning_input};
use super::event::Event;
use super::maintenance::Maintenance;
use super::program::{path_with_ourselves, search_path};
use crate::advice::ASK_HAND_OFF;
use crate::clock::Clock;
use crate::notice::Notice;
use crate::process::{
    Guard, GuardError, GuardReport, Spawn, input, lines, names_of, output, sample_activity,
};
use crate::session::process::{LiveLaunch, ReaderCommand, ReaderEvent, StdinError};
use crate::session::pump::{Output, Pump};
use crate::settings::Settings;
use crate::shell::CancellableTask;
use crate::task::await_some;
use tachikoma_core::error_chain as chain;

use launch::{
    ATTEMPT, ITERATION, budget_left_microusd, close_transcript, prepare_transcripts, spawn_failure,
    transcript, turn_variables,
};
use patterns::Patterns;
use prompts::Prompts;

/// How long an agent may take to exit at the end of a run after its stdin was closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Tolerance between the cost that the agent reports and the recorded cost, in millionths of a dollar. Each turn is rounded.
const ROUNDING_MICROUSD: u64 = 10_000;

/// Name of the background task in error messages.
const SAMPLE: &str = "process sample";

/// Maximum length of the recorded first line of the agent's text about a failed turn.
const REASON_BYTES_MAX: usize = 512;

/// The session of the agent, and the process in which it runs.
#[derive(Debug)]
pub(super) struct Session {
    guard: Option<Guard>,
    launch: Option<LiveLaunch>,
    /// The running sample of the activity of a launch's processes. Dropping it cancels the sample.
    sample: Option<(Generation, CancellableTask<Option<Activity>>)>,
    prompts: Prompts,
    patterns: Patterns,
    /// The agent's version that was last reported; `None` before the first report.
    agent_version: Option<String>,
    /// Whether the agent is known to be unable to report the cost of a running turn.
    cost_unknown: bool,
    /// Channel for the agent's output to subscribers.
    notices: broadcast::Sender<Notice>,
}

impl Session {
    pub fn new(settings: &Settings, notices: broadcast::Sender<Notice>) -> Self {
        Self {
            guard: None,
            launch: None,
            sample: None,
            prompts: Prompts::default(),
            patterns: Patterns::new(settings),
            agent_version: None,
            cost_unknown: false,
            notices,
        }
    }

    /// Replaces the patterns after the settings were reloaded.
    pub fn set_patterns(&mut self, settings: &Settings) {
        self.patterns = Patterns::new(settings);
    }

    /// Starts the guard.
    ///
    /// # Errors
    /// The guard cannot be started.
    pub fn start_guard(&mut self, context: Context<'_>) -> Result<(), GuardError> {
        self.guard = Some(Guard::start(&context.guard_options())?);
        Ok(())
    }

    /// Returns the guard; `None` if it does not run.
    pub fn guard(&mut self) -> Option<&mut Guard> {
        self.guard.as_mut()
    }

    /// Waits for the next event of the guard, of a sample or of the agent. The agent comes last, because its output may never pause.
    /// Cancel-safe.
    pub async fn next_event(&mut self) -> Event {
        tokio::select! {
            biased;
            report = await_some(self.guard.as_mut().map(Guard::next)) => Event::Guard(report),
            result = await_some(self.sample.as_mut().map(|(_, task)| task.ended())) => Event::Sampled(result),
            event = await_some(self.launch.as_mut().map(LiveLaunch::next_event)) => Event::Agent(event),
        }
    }

    /// Returns the input that reports an event of the guard to the core.
    pub fn guard_event(
        &mut self,
        context: Context<'_>,
        event: GuardReport,
        queue: &mut InputQueue,
    ) -> Option<Input> {
        match event {
            GuardReport::Spawned { generation, pid } => {
                let pid = u32::try_from(pid).unwrap_or_default();
                Some(Input::Agent {
                    generation: Generation(generation),
                    event: AgentInput::Launched { pid },
                })
            }
            GuardReport::SpawnFailed {
                generation,
                subject,
                errno,
                message,
            } => {
                let generation = Generation(generation);
                let reason = spawn_failure(context, subject, errno, &message);
                self.abandon(generation);
                queue.push(Input::Agent {
                    generation,
                    event: AgentInput::NotLaunched { reason },
                });
                None
            }
            GuardReport::Exited {
                generation,
                exit,
                leftovers,
                leftovers_unnamed,
            } => {
                let launch = self.launch_of(Generation(generation))?;
                launch.exit = Some((exit, leftovers));
                launch.drain();
                (leftovers_unnamed > 0).then(|| {
                    warning_input(format!(
                        "{leftovers_unnamed} more processes were ended than are named"
                    ))
                })
            }
            GuardReport::Lost { survivors } => {
                let generation = context.state.generation;
                self.guard = None;
                self.abandon(generation);
                if !survivors.is_empty() {
                    queue.warn(format!(
                        "processes that cannot be killed are left: {}",
                        names_of(&survivors)
                    ));
                }
                Some(Input::Agent {
                    generation,
                    event: AgentInput::GuardLost,
                })
            }
        }
    }

    /// Returns the input that reports an event of the agent's reader to the core.
    pub async fn reader_event(
        &mut self,
        context: Context<'_>,
        event: ReaderEvent,
        clock: &mut Clock,
        maintenance: &mut Maintenance,
        queue: &mut InputQueue,
    ) -> Option<Input> {
        let generation = self.launch.as_ref()?.generation;
        let event = match event {
            ReaderEvent::Output => AgentInput::Output,
            ReaderEvent::StreamEnded => AgentInput::StreamEnded,
            ReaderEvent::Agent(event) => {
                self.agent_event(context, generation, event, clock, queue)?
            }
            ReaderEvent::TranscriptClosed(transcript) => {
                close_transcript(context, transcript, maintenance, queue);
                return None;
            }
            ReaderEvent::Drained(output) => {
                return self
                    .drained(context, generation, output, maintenance, queue)
                    .await;
            }
            ReaderEvent::ReaderPanicked(reason) => return Some(Input::Broken { reason }),
        };
        Some(Input::Agent { generation, event })
    }

    /// Returns what the core has to know about an event of the agent; `None` if it does not need the event.
    fn agent_event(
        &mut self,
        context: Context<'_>,
        generation: Generation,
        event: AgentEvent,
        clock: &mut Clock,
        queue: &mut InputQueue,
    ) -> Option<AgentInput> {
        Some(match event {
            AgentEvent::Cost(None) => {
                self.cost_is_unknown(context, queue);
                return None;
            }
            AgentEvent::Allowance(allowance) => {
                queue.extend(allowance.windows.into_iter().map(|window| Input::Agent {
                    generation,
                    event: AgentInput::Quota(QuotaWindow {
                        window: window.name,
                        percent: window.percent,
                        resets_at: window.resets_at,
                    }),
                }));
                return None;
            }
            AgentEvent::SessionKnown(session) => {
                self.check_version(context, session.version, queue);
                let agent_id = session.session_id;
                if !is_conversation_id(&agent_id) {
                    let shown: String = agent_id.chars().take(40).collect();
                    queue.warn(format!(
                        "the agent's name for its session is not a valid id: {shown:?}; the next iteration starts a new session"
                    ));
                    return None;
                }
                AgentInput::SessionNamed { agent_id }
            }
            AgentEvent::BackgroundTasks(count) => {
                self.launch.as_mut()?.background_tasks = count;
                return None;
            }
            AgentEvent::Resulted(result) => {
                let more = self.launch.as_ref()?.background_tasks > 0 || result.queued > 0;
                AgentInput::TurnEnded(self.turn_ended(context, *result, more, clock, queue))
            }
            AgentEvent::Measured(reading) => AgentInput::ContextMeasured {
                context: reading.context(),
                answering: reading.answering,
            },
            AgentEvent::ToolStarted { id, name, about } => AgentInput::ToolStarted {
                id,
                name,
                summary: about,
            },
            AgentEvent::ToolEnded { id, failed, tail } => AgentInput::ToolEnded {
                id,
                error: failed.then_some(tail),
            },
            AgentEvent::FileTouched(path) => AgentInput::FileTouched { path },
            AgentEvent::CallEnded(tokens) => AgentInput::CallEnded { tokens },
            AgentEvent::Cost(usd) => AgentInput::Cost {
                conversation_microusd: microusd(usd?),
            },
            AgentEvent::TakenUp { usd, tokens } => {
                AgentInput::ConversationResumed(ConversationUse {
                    microusd: microusd(usd),
                    tokens,
                })
            }
            AgentEvent::SessionReset { session_id } => AgentInput::SessionNamed {
                agent_id: session_id.filter(|id| is_conversation_id(id))?,
            },
            AgentEvent::ControlAnswered { request_id, .. } if request_id == ARE_YOU_THERE => {
                AgentInput::Opened
            }
            AgentEvent::PermissionDenied { tool, id } => AgentInput::ToolDenied { tool, id },
            AgentEvent::Said(text) => AgentInput::HandOffText {
                text: text
                    .get(..text.floor_char_boundary(HAND_OFF_BYTES_MAX))
                    .unwrap_or_default()
                    .to_owned(),
            },
            _ => return None,
        })
    }

    /// Queues one warning if the agent's version was not tested with this program.
    fn check_version(
        &mut self,
        context: Context<'_>,
        version: Option<String>,
        queue: &mut InputQueue,
    ) {
        let Some(version) = version else { return };
        if self.agent_version.as_ref() == Some(&version) {
            return;
        }
        if !context.agent.is_tested(&version) {
            let name = context.agent.name();
            queue.warn(format!(
                "{name} {version} has not been tested with this version of tachikoma; continuing"
            ));
        }
        self.agent_version = Some(version);
    }

    /// Notes that the agent cannot report the cost of a running turn. Queues one warning, and does not ask the agent again.
    fn cost_is_unknown(&mut self, context: Context<'_>, queue: &mut InputQueue) {
        if !std::mem::replace(&mut self.cost_unknown, true) {
            let name = context.agent.name();
            queue.warn(format!(
                "{name} does not report the cost of a running turn: max_cost_usd is checked between iterations only"
            ));
        }
    }

    fn turn_ended(
        &mut self,
        context: Context<'_>,
        result: TurnResult,
        more: bool,
        clock: &mut Clock,
        queue: &mut InputQueue,
    ) -> TurnEnd {
        let zones = context.config.zone_offset;
        let problem = context.agent.problem(&result, clock.now(), zones);
        let spent = match result.failure {
            Some(FailureClass::PromptTooLong) => Some(Spent::Full),
            Some(FailureClass::Lost) => Some(Spent::Lost),
            _ => None,
        };
        let text = result.text;
        let claimed = result.success && self.prompts.is_claim(context, &text, queue);
        let (mut cost_microusd, mut tokens) = (microusd(result.cost_usd), result.tokens);
        if let Some(launch) = &mut self.launch {
            launch.final_text = Some(text.clone());
            cost_microusd += launch.carried.0;
            tokens += launch.carried.1;
            // The agent enforces the budget itself, and includes fractions that are not recorded. If it reports that the budget is spent, the
            // rest of the budget is recorded as spent.
            if let Some(left) = budget_left_microusd(context)
                && result.outcome == TurnOutcome::MaxBudget
                && left.saturating_sub(cost_microusd) <= ROUNDING_MICROUSD
            {
                cost_microusd = cost_microusd.max(left);
            }
            launch.carried = if more {
                (cost_microusd, tokens)
            } else {
                (0, 0)
            };
            if !context.policy.agent.persistent && !more {
                launch.stdin = None;
            }
        }
        let asked = self.prompts.last();
        TurnEnd {
            success: result.success,
            reason: (!result.success).then(|| failure_reason(&text)),
            problem,
            claimed,
            pattern: patterns::matching(&self.patterns.reboot, &text, asked),
            // Stop patterns are not applied to a failed turn, because its text comes from the service and not from the agent.
            stop_pattern: match result.success {
                true => patterns::matching(&self.patterns.stop, &text, asked),
                false => None,
            },
            text,
            more,
            cost_microusd,
            tokens,
            spent,
        }
    }

    /// Handles the end of the process's output.
    async fn drained(
        &mut self,
        context: Context<'_>,
        generation: Generation,
        output: Output,
        maintenance: &mut Maintenance,
        queue: &mut InputQueue,
    ) -> Option<Input> {
        let mut launch = self.launch.take()?;
        let exit = launch.exit.take();
        // If there was a result, its text was already checked for patterns.
        let unjudged = launch.final_text.is_none();
        let final_text = launch.final_text.take().unwrap_or(output.final_text);
        if let Some(reason) = launch.join().await {
            return Some(Input::Broken { reason });
        }
        close_transcript(context, output.transcript, maintenance, queue);
        if output.not_understood > 0 {
            queue.warn(format!(
                "{} lines of the agent's output were not understood; they are in its transcript",
                output.not_understood
            ));
        }
        let (exit, leftovers) = exit?;
        let claimed = unjudged && self.prompts.is_claim(context, &final_text, queue);
        let asked = self.prompts.last();
        let stop_pattern = unjudged
            .then(|| patterns::matching(&self.patterns.stop, &final_text, asked))
            .flatten();
        queue.push(Input::Agent {
            generation,
            event: AgentInput::Exited {
                exit,
                claimed,
                stop_pattern,
                leftovers,
                problem: context.agent.problem_of_output(&output.last_words),
                last_words: Some(output.last_words).filter(|words| !words.is_empty()),
            },
        });
        None
    }

    fn launch_of(&mut self, generation: Generation) -> Option<&mut LiveLaunch> {
        let launch = self.launch.as_mut();
        launch.filter(|launch| launch.generation == generation)
    }

    /// Begins a turn, or starts a session without a turn. A failure is reported as an input of the core.
    pub async fn begin_turn(
        &mut self,
        context: Context<'_>,
        turn: TurnOrder,
        queue: &mut InputQueue,
    ) {
        let is_launch = !matches!(turn.start, TurnStart::Prompt);
        // The reader of an earlier launch may still exist if that launch failed before its process ran.
        if is_launch
            && let Some(before) = self.launch.take()
            && let Some(reason) = before.join().await
        {
            return queue.push(Input::Broken { reason });
        }
        let prompt = match turn.start {
            TurnStart::Session { .. } => Ok(String::new()),
            TurnStart::Launch { .. } | TurnStart::Prompt => self.prompts.next(context, queue).await,
        };
        let begun = match prompt {
            Ok(prompt) if is_launch => self.start_agent(context, &turn, &prompt),
            Ok(prompt) => {
                if let Some(launch) = self.launch_of(turn.generation) {
                    launch.begin_turn(transcript(context, &turn));
                }
                let message = Message::Prompt {
                    text: &prompt,
                    iteration: Some(turn.iteration),
                };
                self.say(context, turn.generation, &message, queue);
                Ok(())
            }
            Err(reason) => Err(reason),
        };
        if let Err(reason) = begun {
            queue.push(turn.not_begun(reason));
        }
    }

    /// Asks the agent for its hand-off.
    pub fn ask_hand_off(
        &mut self,
        context: Context<'_>,
        generation: Generation,
        queue: &mut InputQueue,
    ) {
        if let Some(launch) = self.launch_of(generation) {
            launch.command(ReaderCommand::ReportText);
        }
        let message = Message::Prompt {
            text: ASK_HAND_OFF,
            iteration: None,
        };
        self.say(context, generation, &message, queue);
    }

    /// Asks the agent for the cost of the conversation. If the question cannot be sent, it is asked again at the next occasion.
    pub fn ask_cost(&mut self, context: Context<'_>, generation: Generation) {
        let line = context.agent.line(&Message::WhatCost);
        let line = line.filter(|_| !self.cost_unknown);
        if let (Some(line), Some(launch)) = (line, self.launch_of(generation)) {
            let _ = launch.write_line(line);
        }
    }

    /// Closes the agent's stdin, which ends an agent that waits for the next prompt.
    pub fn close_stdin(&mut self, generation: Generation) {
        if let Some(launch) = self.launch_of(generation) {
            launch.stdin = None;
        }
    }

    /// Starts to measure the activity of the agent's processes. Cancels a measurement that is still running.
    pub fn sample_processes(&mut self, generation: Generation) {
        let root = self.guard.as_ref().map_or(0, Guard::pid);
        let sample = CancellableTask::start(SAMPLE, None, move |_| sample_activity(root));
        self.sample = Some((generation, sample));
    }

    /// Returns the core's input with the measured activity; `None` if no measurement is running.
    pub fn sampled(&mut self, result: Result<Option<Activity>, String>) -> Option<Input> {
        let (generation, _) = self.sample.take()?;
        Some(match result {
            Ok(activity) => Input::Agent {
                generation,
                event: AgentInput::ProcessesSampled { activity },
            },
            Err(reason) => Input::Broken { reason },
        })
    }

    /// Ends the agent, or interrupts its turn. If the agent supports it, the interrupt is a message, because a signal would end its process
    /// and its conversation.
    pub fn signal(&mut self, context: Context<'_>, generation: Generation, signal: StopSignal) {
        let line = context.agent.line(&Message::Interrupt);
        if signal == StopSignal::Interrupt
            && let (Some(line), Some(launch)) = (line, self.launch_of(generation))
            && launch.write_line(line).is_ok()
        {
            return;
        }
        if let Some(guard) = &mut self.guard {
            guard.signal(generation.0, signal);
        }
    }

    /// Lets the guard end at the end of the loop, unless the agent exits by itself when its stdin is closed.
    pub fn finish(&mut self) {
        let ends_by_itself = self
            .launch
            .as_ref()
            .is_some_and(|launch| launch.stdin.is_some());
        if let Some(guard) = self.guard.as_mut().filter(|_| !ends_by_itself) {
            guard.dismiss();
        }
    }

    /// Writes a message to an agent that reads lines. If the agent does not read it, a timeout ends the agent later.
    pub fn say(
        &mut self,
        context: Context<'_>,
        generation: Generation,
        message: &Message<'_>,
        queue: &mut InputQueue,
    ) {
        let Some(line) = context.agent.line(message) else {
            return;
        };
        if let Some(launch) = self.launch_of(generation)
            && launch.write_line(line) == Err(StdinError::Full)
        {
            queue.warn("the agent does not read its stdin");
        }
    }

    /// Starts the agent's process, in the conversation to resume or in a new one.
    fn start_agent(
        &mut self,
        context: Context<'_>,
        turn: &TurnOrder,
        prompt: &str,
    ) -> Result<(), String> {
        let Context { config, agent, .. } = context;
        let plan = agent.plan(&Turn {
            prompt,
            resume: match &turn.start {
                TurnStart::Launch { resume } | TurnStart::Session { resume } => resume.as_deref(),
                TurnStart::Prompt => None,
            },
            budget_usd: budget_left_microusd(context)
                .map(|left| Duration::from_micros(left).as_secs_f64()),
            iteration: matches!(turn.start, TurnStart::Launch { .. }).then_some(turn.iteration),
        });
        let path = path_with_ourselves(
            search_path(&plan, config.search_path.as_ref()),
            config.guard.first(),
        );
        if self.guard.is_none() {
            self.start_guard(context).map_err(|error| chain(&error))?;
        }
        prepare_transcripts(context).map_err(|error| chain(&error))?;
        fn pipe<P>(made: io::Result<P>) -> Result<P, String> {
            made.map_err(|error| format!("no pipe for the agent: {error}"))
        }
        let (stdin, stdin_writer) = match plan.input {
            agents::Input::Whole(text) => (pipe(input(text.as_bytes()))?, None),
            agents::Input::Lines(first) => {
                let (stdin, writer) = pipe(lines())?;
                (stdin, Some((writer, first)))
            }
        };
        let (stdout_out, stdout) = pipe(output())?;
        let (stderr_out, stderr) = pipe(output())?;
        let mut env = plan.env;
        env.extend(path.map(|path| ("PATH".into(), path)));
        let one_turn = !context.policy.agent.persistent;
        env.extend(turn_variables(turn, one_turn, &config.working_dir));
        let mut env_remove = plan.env_remove;
        if !one_turn {
            // These variables are removed, because an outer loop may have set them.
            env_remove.extend([ITERATION, ATTEMPT].map(OsString::from));
        }
        let spawn = Spawn {
            generation: turn.generation.0,
            program: plan.program,
            args: plan.args,
            env,
            env_remove,
            cwd: config.working_dir.clone().into(),
            streams: Some([stdin, stdout, stderr]),
        };
        let guard = self.guard.as_mut().ok_or("the guard is gone")?;
        guard
            .spawn(spawn)
            .map_err(|error| format!("the agent cannot be started: {error}"))?;
        let pump = Pump::new(
            stdout_out,
            stderr_out,
            transcript(context, turn),
            agent.line_max_bytes(),
        );
        self.launch = Some(LiveLaunch::start(
            turn.generation,
            agent.decoder(),
            pump,
            stdin_writer,
            self.notices.clone(),
        ));
        Ok(())
    }

    /// Abandons a launch of which no more events are needed. Its reader ends by itself, and is joined before the next launch.
    fn abandon(&mut self, generation: Generation) {
        if let Some(launch) = self.launch_of(generation) {
            launch.drain();
        }
    }

    /// Suspends the agent, as Ctrl-Z does.
    pub fn suspend(&mut self) {
        if let Some(guard) = &mut self.guard {
            guard.suspend();
        }
    }

    /// Continues a suspended agent.
    pub fn resume(&mut self) {
        if let Some(guard) = &mut self.guard {
            guard.resume();
        }
    }

    /// Ends the agent and the guard. An agent with an open stdin can exit by itself first and save its conversation.
    pub async fn shutdown(&mut self) {
        self.sample = None;
        if let (Some(guard), Some(launch)) = (&mut self.guard, &mut self.launch)
            && launch.stdin.is_some()
            && launch.exit.is_none()
        {
            launch.stdin = None;
            let exited = async {
                loop {
                    match guard.next().await {
                        GuardReport::Exited { .. } | GuardReport::Lost { .. } => return,
                        GuardReport::Spawned { .. } | GuardReport::SpawnFailed { .. } => {}
                    }
                }
            };
            // After the timeout the guard ends the agent.
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, exited).await;
        }
        if let Some(guard) = self.guard.take() {
            guard.finish().await;
        }
    }

    /// Joins the reader of the agent's output. Call it after [`Session::shutdown`].
    pub async fn join_reader(&mut self) {
        if let Some(launch) = self.launch.take() {
            // A panic of the reader has no effect, because the run is over.
            let _ = launch.join().await;
        }
    }
}

/// When the runner is dropped during a run, the guard ends the agent.
impl Drop for Session {
    fn drop(&mut self) {
        if let Some(guard) = self.guard.take() {
            guard.abandon();
        }
    }
}

#[cfg(test)]
impl Session {
    /// Replaces the current launch.
    pub fn set_launch(&mut self, launch: LiveLaunch) {
        self.launch = Some(launch);
    }
}

/// Returns the first line of the agent's text about a failed turn.
fn failure_reason(text: &str) -> String {
    let line = text.lines().find(|line| !line.trim().is_empty());
    let line = line.unwrap_or("it does not say why").trim();
    let end = line.floor_char_boundary(REASON_BYTES_MAX);
    line.get(..end).unwrap_or_default().to_owned()
}
