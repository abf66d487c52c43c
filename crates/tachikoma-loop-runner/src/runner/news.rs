//! What the guard and the launch under way have to say, as inputs of the core.

use std::time::Duration;

use tachikoma_agents::{Claim, FailureClass, TurnOutcome, TurnResult, is_conversation_id};
use tachikoma_core::{AgentEvent, Generation, Input, Leftover, Spent, TurnEnd, microusd};

use super::LoopRunner;
use super::patterns;
use super::upkeep::Task;
use crate::process::GuardNews;
use crate::session::process::LaunchNews;
use crate::session::pump::{Output, Written};

impl LoopRunner {
    pub(super) fn guard_news(&mut self, news: GuardNews) -> Option<Input> {
        match news {
            GuardNews::Spawned { generation, pid } => {
                let pid = u32::try_from(pid).unwrap_or_default();
                Some(Input::Agent {
                    generation: Generation(generation),
                    event: AgentEvent::Launched { pid },
                })
            }
            GuardNews::SpawnFailed {
                generation,
                subject,
                errno,
                message,
            } => {
                let reason = self.not_launched(subject, errno, &message);
                self.give_up_launch(Generation(generation));
                self.queue.push_back(Input::Agent {
                    generation: Generation(generation),
                    event: AgentEvent::NotLaunched { reason },
                });
                None
            }
            GuardNews::Exited {
                generation,
                exit,
                leftovers,
                leftovers_unnamed,
            } => {
                let launch = self
                    .launch
                    .as_mut()
                    .filter(|launch| launch.generation.0 == generation)?;
                launch.exit = Some((exit, leftovers));
                launch.drain();
                (leftovers_unnamed > 0).then(|| Input::Warning {
                    warning: format!("{leftovers_unnamed} more processes were left behind and ended than are named"),
                })
            }
            GuardNews::Lost { survivors } => {
                self.guard = None;
                self.give_up_launch(self.state.generation);
                if !survivors.is_empty() {
                    let names: Vec<String> = survivors
                        .iter()
                        .map(|left| format!("{} (pid {})", left.name, left.pid))
                        .collect();
                    let warning = format!(
                        "processes that cannot be killed are left: {}",
                        names.join(", ")
                    );
                    self.queue.push_back(Input::Warning { warning });
                }
                Some(Input::Agent {
                    generation: self.state.generation,
                    event: AgentEvent::GuardLost,
                })
            }
        }
    }

    pub(super) async fn launch_news(&mut self, news: LaunchNews) -> Option<Input> {
        let generation = self.launch.as_ref()?.generation;
        match news {
            LaunchNews::Agent(news) => Some(Input::Agent {
                generation,
                event: news,
            }),
            LaunchNews::Known(session) => {
                self.check_version(session.version);
                let agent_id = session.session_id;
                if !is_conversation_id(&agent_id) {
                    let shown: String = agent_id.chars().take(40).collect();
                    let warning = format!(
                        "the agent's name for its session is not a valid id: {shown:?}; the next iteration starts a new session"
                    );
                    return Some(Input::Warning { warning });
                }
                let news = AgentEvent::SessionNamed { agent_id };
                Some(Input::Agent {
                    generation,
                    event: news,
                })
            }
            LaunchNews::Resulted { result, more } => {
                let news = AgentEvent::TurnEnded(self.turn_ended(*result, more));
                Some(Input::Agent {
                    generation,
                    event: news,
                })
            }
            LaunchNews::Quota(windows) => {
                let news = windows.into_iter().map(AgentEvent::Quota);
                let inputs = news.map(|news| Input::Agent {
                    generation,
                    event: news,
                });
                self.queue.extend(inputs);
                None
            }
            LaunchNews::CostUnsaid => {
                self.cost_unsaid();
                None
            }
            LaunchNews::TurnWritten(written) => {
                self.put_transcript_away(written);
                None
            }
            LaunchNews::Drained(output) => self.drained(generation, output).await,
            LaunchNews::Broken(reason) => Some(Input::Broken { reason }),
        }
    }

    /// Warns of a version that nobody has tried, once.
    fn check_version(&mut self, version: Option<String>) {
        let Some(version) = version else { return };
        if self.agent_version.as_ref() == Some(&version) {
            return;
        }
        if !self.agent.is_tried(&version) {
            let name = self.agent.name();
            let warning = format!(
                "{name} {version} has not been tried with this version of tachikoma; going on"
            );
            self.queue.push_back(Input::Warning { warning });
        }
        self.agent_version = Some(version);
    }

    /// The agent cannot say what a turn costs while it runs: said once, and not asked again.
    fn cost_unsaid(&mut self) {
        if !std::mem::replace(&mut self.cost_unsaid, true) {
            let name = self.agent.name();
            let warning = format!(
                "{name} cannot say what a turn costs while it runs: max_cost_usd is looked at between iterations only"
            );
            self.queue.push_back(Input::Warning { warning });
        }
    }

    /// Returns what the turn under way may cost, where there is a budget.
    fn budget_left_microusd(&self) -> Option<u64> {
        let budget = self.policy.budgets.cost_microusd;
        let state = &self.state;
        let turn = state.ledger.turn.cost_microusd;
        let others = state.stats.cost_microusd.saturating_sub(turn);
        (budget > 0).then(|| budget.saturating_sub(others))
    }

    /// Returns what a process that is launched now may cost, in dollars.
    pub(super) fn budget_left_usd(&self) -> Option<f64> {
        let left = Duration::from_micros(self.budget_left_microusd()?);
        Some(left.as_secs_f64())
    }

    fn turn_ended(&mut self, result: TurnResult, more: bool) -> TurnEnd {
        let now = self.clock.now();
        let problem = self.agent.problem(&result, now, self.config.zone_offset);
        let spent = match result.failure {
            Some(FailureClass::PromptTooLong) => Some(Spent::Full),
            Some(FailureClass::Lost) => Some(Spent::Lost),
            Some(
                FailureClass::UsageLimit
                | FailureClass::Overloaded
                | FailureClass::Unreachable
                | FailureClass::Authentication
                | FailureClass::Billing
                | FailureClass::Model
                | FailureClass::Refused
                | FailureClass::Interrupted
                | FailureClass::OwnLimit
                | FailureClass::Other,
            )
            | None => None,
        };
        let text = result.text;
        let claimed = result.success && self.claims(&text);
        let persistent = self.policy.agent.persistent;
        let (mut cost_microusd, mut tokens) = (microusd(result.cost_usd), result.tokens);
        let left = self.budget_left_microusd();
        if let Some(launch) = &mut self.launch {
            launch.final_text = Some(text.clone());
            cost_microusd += launch.carried.0;
            tokens += launch.carried.1;
            // The agent minds the budget itself, to fractions of what is recorded: when it says that it is gone, it is.
            let gone = result.outcome == TurnOutcome::MaxBudget;
            if let Some(left) = left.filter(|_| gone)
                && left.saturating_sub(cost_microusd) <= ROUNDING_MICROUSD
            {
                cost_microusd = cost_microusd.max(left);
            }
            launch.carried = if more {
                (cost_microusd, tokens)
            } else {
                (0, 0)
            };
            if !persistent && !more {
                launch.end_input();
            }
        }
        TurnEnd {
            success: result.success,
            reason: (!result.success).then(|| reason(&text)),
            problem,
            claimed,
            pattern: patterns::matching(&self.patterns, &text, &self.asked),
            // The text of a turn that failed is the service's, not the agent's.
            stop_pattern: match result.success {
                true => patterns::matching(&self.stop_patterns, &text, &self.asked),
                false => None,
            },
            text,
            more,
            cost_microusd,
            tokens,
            spent,
        }
    }

    /// Whether a final text claims completion. Words that only look like it are said, so that nobody waits for nothing.
    fn claims(&mut self, text: &str) -> bool {
        let promise = &self.config.settings.stop_conditions.completion_promise;
        match tachikoma_agents::claim(text, promise, &self.asked) {
            Claim::Made => true,
            Claim::Absent => false,
            Claim::NotMeant(doubt) => {
                let warning = format!(
                    "iteration {} names the completion promise, but does not claim it: {doubt}",
                    self.state.iteration
                );
                self.queue.push_back(Input::Warning { warning });
                self.unmeant = Some(doubt.to_string());
                false
            }
        }
    }

    fn put_transcript_away(&mut self, written: Written) {
        if let Some(path) = written.path {
            self.upkeep.leave(Task::CompressTranscript {
                path,
                vault: self.config.vault.clone(),
            });
        }
        if let Some(error) = written.error {
            let warning = format!(
                "the transcript of iteration {} is incomplete: {error}",
                self.state.iteration
            );
            self.queue.push_back(Input::Warning { warning });
        }
    }

    async fn drained(&mut self, generation: Generation, output: Output) -> Option<Input> {
        let mut launch = self.launch.take()?;
        let exit = launch.exit.take();
        // What a result carried was looked at with it.
        let unheard = launch.final_text.is_none();
        let final_text = launch.final_text.take().unwrap_or(output.final_text);
        if let Some(reason) = launch.join().await {
            return Some(Input::Broken { reason });
        }
        self.put_transcript_away(output.written);
        if output.not_understood > 0 {
            let warning = format!(
                "{} lines of the agent's output were not understood; they are in its transcript",
                output.not_understood
            );
            self.queue.push_back(Input::Warning { warning });
        }
        let (exit, leftovers) = exit?;
        let claimed = unheard && self.claims(&final_text);
        let stop_pattern = unheard
            .then(|| patterns::matching(&self.stop_patterns, &final_text, &self.asked))
            .flatten();
        self.queue.push_back(Input::Agent {
            generation,
            event: AgentEvent::Exited {
                exit,
                claimed,
                stop_pattern,
                leftovers,
                problem: self.agent.problem_of_words(&output.last_words),
                last_words: Some(output.last_words).filter(|words| !words.is_empty()),
            },
        });
        None
    }
}

/// So much may what the agent counts, and what was recorded of it, differ: a fraction of a cent for each of some turns.
const ROUNDING_MICROUSD: u64 = 10_000;

/// What is told of a turn that failed: the agent's first line about it.
const REASON_BYTES_MAX: usize = 512;

fn reason(text: &str) -> String {
    let line = text.lines().find(|line| !line.trim().is_empty());
    let line = line.unwrap_or("it does not say why").trim();
    let end = line.floor_char_boundary(REASON_BYTES_MAX);
    line.get(..end).unwrap_or_default().to_owned()
}

/// Names what an earlier runner left behind, if it left anything.
pub(super) fn left_behind(leftovers: &[Leftover]) -> Option<String> {
    let name = |left: &Leftover| format!("{} (pid {})", left.name, left.pid);
    let names: Vec<String> = leftovers.iter().map(name).collect();
    (!names.is_empty()).then(|| {
        format!(
            "ended what an earlier runner had left behind: {}",
            names.join(", ")
        )
    })
}
