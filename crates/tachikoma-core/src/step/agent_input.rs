//! Handles the events of the agent in each phase, and decides how a turn ended: success, failure, limit, or early end.

use super::Stepper;
use super::reading::TOO_LONG;
use super::settle::CUT_ATTEMPTS_MAX;
use crate::denials::remedies;
use crate::policy::budget::{self, Spending};
use crate::policy::timeout;
use crate::{
    AgentInput, Cause, DENIALS_MAX, Denial, Effect, Exit, Failure, IterationOutcome, Leftover,
    LoopEvent, Phase, Problem, Spent, Timestamp, TurnEnd, Work,
};

/// Maximum number of running tool calls that are remembered.
const TOOLS_MAX: usize = 256;

impl Stepper<'_> {
    pub(super) fn agent_event(&mut self, event: AgentInput) {
        match &self.state.phase {
            Phase::Working { work } => {
                let work = (**work).clone();
                self.agent_input_at_work(&work, event);
            }
            Phase::Rebooting { reboot } => {
                let reboot = reboot.clone();
                self.agent_input_in_reboot(reboot, event);
            }
            Phase::Idle
            | Phase::Waiting { .. }
            | Phase::Autocommitting { .. }
            | Phase::Checking { .. }
            | Phase::Hooking { .. }
            | Phase::Paused { .. }
            | Phase::Ended { .. } => {
                self.agent_input_between_turns(event);
            }
        }
    }

    fn agent_input_at_work(&mut self, work: &Work, event: AgentInput) {
        match event {
            AgentInput::Launched { pid } => {
                if work.launched.is_none() {
                    self.record(LoopEvent::AgentLaunched { pid });
                    self.interrupt_at_boundary();
                }
            }
            AgentInput::NotLaunched { reason } => {
                let failure = Failure::NotLaunched { reason };
                self.judge(work, Some(Exit::Unknown), false, Some(failure));
            }
            // Only a reboot opens a session without a prompt or reads a hand-off.
            AgentInput::Opened | AgentInput::HandOffText { .. } => {}
            AgentInput::SessionNamed { agent_id } => self.session_named(agent_id),
            AgentInput::Output => self.output_seen(work),
            AgentInput::ContextMeasured { context, answering } => {
                self.context_measured(context, answering);
            }
            AgentInput::ToolStarted { id, name, summary } => {
                if work.tools.len() < TOOLS_MAX {
                    self.record(LoopEvent::ToolStarted { id, name, summary });
                    if self.state.stop.is_none() {
                        self.ask_to_finish();
                        self.deliver_messages();
                    }
                }
            }
            AgentInput::ToolEnded { id, error } => {
                if work.tools.contains_key(&id) {
                    self.record(LoopEvent::ToolEnded { id, error });
                    self.interrupt_at_boundary();
                }
            }
            AgentInput::ToolDenied { tool, id } => {
                self.tool_denied(work, tool, id);
                self.interrupt_at_boundary();
            }
            AgentInput::FileTouched { path } => {
                if !self.state.session.knows_file(&path) {
                    self.record(LoopEvent::FileTouched { path });
                }
            }
            AgentInput::CallEnded { tokens } => self.call_ended(tokens),
            AgentInput::Cost {
                conversation_microusd,
            } => self.cost_reported(conversation_microusd),
            AgentInput::ConversationResumed(told) => self.conversation_resumed(told),
            AgentInput::Quota(quota) => self.quota_reported(quota),
            AgentInput::ProcessesSampled { activity } => self.processes_sampled(work, activity),
            AgentInput::TurnEnded(end) => self.turn_resulted(work, end),
            AgentInput::Exited {
                exit,
                claimed,
                stop_pattern,
                leftovers,
                last_words,
                problem,
            } => {
                if work.reused && !work.spoke && work.result.is_none() && work.ending.is_none() {
                    // The process ended before it read the prompt.
                    self.agent_exited(exit, leftovers);
                    return self.launch_again();
                }
                self.leftovers(leftovers);
                self.pattern_matched(stop_pattern);
                let failure = self.failure(work, exit, last_words, problem);
                self.judge(work, Some(exit), claimed, failure);
            }
            AgentInput::StreamEnded => {
                if self.policy.agent.event_stream && work.stream_ended.is_none() {
                    self.record(LoopEvent::StreamEnded);
                }
            }
            AgentInput::GuardLost => {
                let succeeded = work.result.as_ref().is_some_and(|result| result.success);
                let failure = (!succeeded).then_some(Failure::GuardLost);
                self.judge(work, Some(Exit::Unknown), false, failure);
            }
        }
    }

    /// Records a denied call with the number of denials and the configuration that would permit it.
    fn tool_denied(&mut self, work: &Work, name: String, id: String) {
        let tool = work.tools.get(&id);
        let summary = tool.map_or_else(String::new, |tool| tool.summary.clone());
        let mut known = self.state.denials.iter();
        let known = known.find(|denial| denial.name == name && denial.summary == summary);
        let is_other = known.is_none() && self.state.denials.len() >= DENIALS_MAX;
        let mut denial = Denial {
            others: match is_other {
                true => self.state.other_denials.saturating_add(1),
                false => 0,
            },
            times: known.map_or(0, |denial| denial.times).saturating_add(1),
            name,
            id,
            summary,
            remedy: None,
        };
        let denials = std::slice::from_ref(&denial);
        let lines = remedies(&self.state.launch.agent, denials, &self.policy.permitted);
        denial.remedy = lines.into_iter().next();
        self.record(LoopEvent::ToolDenied(denial));
    }

    /// Handles events between two turns. An agent may start to work there without a prompt.
    fn agent_input_between_turns(&mut self, event: AgentInput) {
        match event {
            AgentInput::SessionNamed { agent_id } => self.session_named(agent_id),
            AgentInput::Quota(quota) => self.quota_reported(quota),
            AgentInput::Exited {
                exit, leftovers, ..
            } => self.exited_between_turns(exit, leftovers),
            AgentInput::ToolStarted { name, summary, .. } => {
                self.tool_called_without_prompt(name, &summary);
            }
            AgentInput::TurnEnded(end) => self.turn_ended_without_prompt(&end),
            AgentInput::NotLaunched { .. } | AgentInput::GuardLost => {
                self.exited_between_turns(Exit::Unknown, Vec::new());
            }
            AgentInput::Launched { .. }
            | AgentInput::Opened
            | AgentInput::Output
            | AgentInput::HandOffText { .. }
            | AgentInput::ContextMeasured { .. }
            | AgentInput::ToolEnded { .. }
            | AgentInput::ToolDenied { .. }
            | AgentInput::FileTouched { .. }
            | AgentInput::ProcessesSampled { .. }
            | AgentInput::StreamEnded
            | AgentInput::CallEnded { .. }
            | AgentInput::Cost { .. }
            | AgentInput::ConversationResumed(_) => {}
        }
    }

    /// The agent calls a tool without a prompt. Only the first call is recorded.
    fn tool_called_without_prompt(&mut self, mut tool: String, summary: &str) {
        if self.state.tracked_work.outside {
            return;
        }
        if !summary.is_empty() {
            tool.push_str(": ");
            tool.push_str(summary);
        }
        self.record(LoopEvent::WorkedOutside {
            tool,
            cost_microusd: 0,
            tokens: 0,
        });
        self.emit(Effect::AttributeChanges);
    }

    /// A turn without a prompt ended, or a turn whose hand-off was canceled.
    pub(super) fn turn_ended_without_prompt(&mut self, end: &TurnEnd) {
        // If another result follows, it includes the totals of this one.
        if !end.more && (end.cost_microusd > 0 || end.tokens > 0) {
            self.record(LoopEvent::WorkedOutside {
                tool: String::new(),
                cost_microusd: end.cost_microusd,
                tokens: end.tokens,
            });
            self.check_budgets();
        }
    }

    pub(super) fn agent_exited(&mut self, exit: Exit, leftovers: Vec<Leftover>) {
        self.leftovers(leftovers);
        self.record(LoopEvent::AgentExited { exit });
    }

    fn leftovers(&mut self, leftovers: Vec<Leftover>) {
        if !leftovers.is_empty() {
            self.record(LoopEvent::LeftoversEnded { leftovers });
        }
    }

    fn output_seen(&mut self, work: &Work) {
        // Output only matters for the silence timeouts, which need one record per interval. After the first signal no timeout runs.
        let due = work.escalation.is_none()
            && (!work.spoke || self.now.since(work.active) >= timeout::output_step(self.policy));
        if self.policy.agent.event_stream && due {
            self.record(LoopEvent::OutputSeen);
        }
    }

    fn turn_resulted(&mut self, work: &Work, end: TurnEnd) {
        if end.more {
            return self.output_seen(work);
        }
        if work.result.is_some() {
            return;
        }
        self.record(LoopEvent::TurnResulted(end.as_recorded()));
        self.pattern_matched(end.stop_pattern);
        if end.spent == Some(Spent::Full) && self.state.session.unproven {
            let futile = "the agent rejected its first prompt, which is too long";
            self.reboot_verified(100, Some(futile.to_owned()), TOO_LONG);
        }
        // The process waits for the next prompt.
        if self.policy.agent.persistent
            && let Some(work) = self.state.work().cloned()
        {
            let failure = (!end.success).then_some(Failure::Reported {
                exit: None,
                reason: end.reason,
                problem: end.problem,
            });
            self.judge(&work, None, end.claimed, failure);
        }
    }

    /// Returns why a turn failed, after its process has ended.
    fn failure(
        &self,
        work: &Work,
        exit: Exit,
        last_words: Option<String>,
        problem: Option<Problem>,
    ) -> Option<Failure> {
        match &work.result {
            Some(result) if result.success => None,
            Some(result) => Some(Failure::Reported {
                exit: Some(exit),
                reason: result.reason.clone(),
                problem: result.problem.clone(),
            }),
            None if self.policy.agent.event_stream => Some(Failure::NoResult {
                exit,
                last_words,
                problem,
            }),
            None if exit.is_success() => None,
            None => Some(Failure::Exited { exit }),
        }
    }

    /// Decides how the iteration ended. If the loop itself ended the turn, the loop's reason decides.
    /// `exit` is `None` if the agent's process still runs.
    fn judge(&mut self, work: &Work, exit: Option<Exit>, claimed: bool, failure: Option<Failure>) {
        let claimed = claimed || work.result.as_ref().is_some_and(|result| result.claimed);
        let by_itself = work
            .result
            .as_ref()
            .is_some_and(|result| result.success || !result.after_interrupt);
        let ours = work
            .ending
            .filter(|_| work.escalation.is_some() && !by_itself);
        // The agent's context is full. A new session continues the iteration.
        let refused = self.state.session.spent == Some(Spent::Full);
        if refused && ours.is_none() && self.policy.reboot.manages_context() {
            return self.iteration_completed(work, IterationOutcome::HandedOver, exit, false);
        }
        // The agent itself ended its turn because the budget is used up.
        let reported = matches!(failure, Some(Failure::Reported { problem: None, .. }));
        let spending = Spending::of(self.state, self.now);
        let budget_spent = budget::verdict(&self.policy.budgets, &spending).is_some();
        if ours.is_none() && reported && budget_spent {
            return self.iteration_completed(work, IterationOutcome::Interrupted, exit, false);
        }
        let outcome = match ours.map(|ending| ending.cause) {
            None => IterationOutcome::Succeeded,
            Some(Cause::HandOver) => IterationOutcome::HandedOver,
            Some(Cause::Skip) => IterationOutcome::Skipped,
            Some(Cause::Interrupt) => IterationOutcome::Interrupted,
            Some(Cause::Timeout { timeout }) => {
                let last_seen = last_seen(work, self.now);
                let failure = Failure::TimedOut { timeout, last_seen };
                return self.iteration_failed(work, failure, exit.is_none());
            }
        };
        match failure {
            Some(failure) if ours.is_none() => match failure.problem() {
                // The server or the conversation was lost, and not too often.
                Some(Problem::Cut) if self.state.cuts < CUT_ATTEMPTS_MAX - 1 => {
                    self.iteration_cut(&failure, exit.is_none());
                }
                Some(problem @ (Problem::Limited { .. } | Problem::Unreachable)) => {
                    let reason = failure.words().unwrap_or_default();
                    self.iteration_limited(reason, problem, exit.is_none());
                }
                Some(_) | None => self.iteration_failed(work, failure, exit.is_none()),
            },
            Some(_) | None => self.iteration_completed(work, outcome, exit, claimed),
        }
    }
}

/// Describes the last activity of the agent; `None` if there was none.
fn last_seen(work: &Work, now: Timestamp) -> Option<String> {
    let busy = work.busy.map(|busy| {
        let ago = now.since(busy.time).as_secs();
        format!("busy {ago} s ago: {}", busy.activity)
    });
    let parts: Vec<String> = last_heard(work, now).into_iter().chain(busy).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

fn last_heard(work: &Work, now: Timestamp) -> Option<String> {
    let ago = |time: Timestamp| now.since(time).as_secs();
    let oldest = work.tools.values().min_by_key(|tool| tool.since);
    Some(match oldest {
        Some(tool) if tool.summary.is_empty() => {
            format!("tool {} for {} s", tool.name, ago(tool.since))
        }
        Some(tool) => format!(
            "tool {}: {} for {} s",
            tool.name,
            tool.summary,
            ago(tool.since)
        ),
        None if work.answering => format!("an answer, {} s ago", ago(work.active)),
        None if work.spoke => format!("output, {} s ago", ago(work.active)),
        None => return None,
    })
}
