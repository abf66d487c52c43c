//! News about the agent, in whatever phase it comes.

use super::Turn;
use super::reading::TOO_LONG;
use crate::event::LoopEvent;
use crate::exit::{Exit, Leftover};
use crate::input::{News, TurnEnd};
use crate::outcome::{Failure, Problem, Spent};
use crate::phase::{Phase, Work};
use crate::policy::timeout;

/// Tool calls in flight that are kept in mind; an agent that never ends its calls must not fill the memory.
const TOOLS_MAX: usize = 256;
use crate::turn_report::TurnReport;

impl Turn<'_> {
    pub(super) fn news(&mut self, news: News) {
        match &self.state.phase {
            Phase::Working { work } => {
                let work = (**work).clone();
                self.news_at_work(&work, news);
            }
            Phase::Rebooting { reboot } => {
                let reboot = reboot.clone();
                self.news_in_reboot(reboot, news);
            }
            Phase::Idle
            | Phase::Waiting { .. }
            | Phase::Keeping { .. }
            | Phase::Checking { .. }
            | Phase::Hooking { .. }
            | Phase::Paused { .. }
            | Phase::Ended { .. } => {
                self.news_between_turns(news);
            }
        }
    }

    fn news_at_work(&mut self, work: &Work, news: News) {
        match news {
            News::Launched { pid } => {
                if work.launched.is_none() {
                    self.record(LoopEvent::AgentLaunched { pid });
                    self.interrupt_at_boundary();
                }
            }
            News::NotLaunched { reason } => {
                let failure = Failure::NotLaunched { reason };
                self.process_ended(work, Exit::Unknown, false, Some(failure));
            }
            // Only a reboot opens a session without a prompt.
            News::Opened => {}
            News::Named { agent_id } => self.named(agent_id),
            News::Output => self.output(work),
            News::Measured { context, answering } => self.measured(context, answering),
            News::ToolStarted { id, name, summary } => {
                if work.tools.len() < TOOLS_MAX {
                    self.record(LoopEvent::ToolStarted { id, name, summary });
                    if self.state.stop.is_none() {
                        self.advise();
                        self.pass_on();
                    }
                }
            }
            News::ToolEnded { id, error } => {
                if work.tools.contains_key(&id) {
                    self.record(LoopEvent::ToolEnded { id, error });
                    self.interrupt_at_boundary();
                }
            }
            News::Denied { tool } => self.record(LoopEvent::ToolDenied { name: tool }),
            News::Touched { path } => {
                if !self.state.session.knows_file(&path) {
                    self.record(LoopEvent::FileTouched { path });
                }
            }
            News::CallEnded { tokens } => self.call_ended(tokens),
            News::Cost {
                conversation_microusd,
            } => self.cost_told(conversation_microusd),
            News::Quota(quota) => self.quota_told(quota),
            News::Looked { activity } => self.looked(work, activity),
            News::Resulted(end) => self.resulted(work, end),
            News::Exited {
                exit,
                claimed,
                stop_pattern,
                leftovers,
                last_words,
                problem,
            } => {
                if work.reused && !work.spoke && work.result.is_none() && work.ending.is_none() {
                    // It was gone before it heard the prompt.
                    self.agent_exited(exit, leftovers);
                    return self.launch_again();
                }
                self.leftovers(leftovers);
                self.pattern_matched(stop_pattern);
                let failure = self.failure(work, exit, last_words, problem);
                self.process_ended(work, exit, claimed, failure);
            }
            News::StreamEnded => {
                if self.policy.agent.event_stream && work.stream_ended.is_none() {
                    self.record(LoopEvent::StreamEnded);
                }
            }
            News::GuardLost => {
                let succeeded = work.result.as_ref().is_some_and(|result| result.success);
                let failure = (!succeeded).then_some(Failure::GuardLost);
                self.process_ended(work, Exit::Unknown, false, failure);
            }
        }
    }

    /// An agent between two turns can only tell its name, or end.
    fn news_between_turns(&mut self, news: News) {
        match news {
            News::Named { agent_id } => self.named(agent_id),
            News::Quota(quota) => self.quota_told(quota),
            News::Exited {
                exit, leftovers, ..
            } => self.agent_exited(exit, leftovers),
            News::NotLaunched { .. } | News::GuardLost => {
                self.agent_exited(Exit::Unknown, Vec::new());
            }
            News::Launched { .. }
            | News::Opened
            | News::Output
            | News::Measured { .. }
            | News::ToolStarted { .. }
            | News::ToolEnded { .. }
            | News::Denied { .. }
            | News::Touched { .. }
            | News::Looked { .. }
            | News::StreamEnded
            | News::CallEnded { .. }
            | News::Cost { .. }
            | News::Resulted(_) => {}
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

    fn output(&mut self, work: &Work) {
        // Only the time-outs of an event stream care, and they care in steps; on the ladder none of them runs.
        let due = work.ladder.is_none()
            && (!work.spoke || self.now.since(work.active) >= timeout::output_step(self.policy));
        if self.policy.agent.event_stream && due {
            self.record(LoopEvent::OutputSeen);
        }
    }

    fn resulted(&mut self, work: &Work, end: TurnEnd) {
        if end.more {
            return self.output(work);
        }
        if work.result.is_some() {
            return;
        }
        self.record(LoopEvent::TurnResulted(TurnReport {
            success: end.success,
            reason: end.reason,
            problem: end.problem,
            claimed: end.claimed,
            pattern: end.pattern,
            cost_microusd: end.cost_microusd,
            tokens: end.tokens,
            spent: end.spent,
        }));
        self.pattern_matched(end.stop_pattern);
        if end.spent == Some(Spent::Full) && self.state.session.unproven {
            let futile = "the agent takes not even its first prompt, which is too long";
            self.verified(100, Some(futile.to_owned()), TOO_LONG);
        }
        if self.policy.agent.persistent {
            self.turn_ended();
        }
    }

    /// Returns what went wrong with a turn whose process ended, if something did.
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
}
