//! What the recorded agent says, told to a loop that may be at another place.

use super::Shadow;
use crate::event::LoopEvent;
use crate::input::{Input, News, TurnEnd};
use crate::outcome::{IterationOutcome, Problem, Spent};
use crate::policy::budget::Budget;
use crate::record::Record;
use crate::replay::derive::{Scene, Taken};
use crate::step::step;
use crate::time::Timestamp;

impl Shadow {
    pub(super) fn news(&mut self, now: Timestamp, news: &News, taken: &Taken, ending: bool) {
        let written = taken.cut.then_some(taken.records.len());
        if self.deaf || self.early {
            return self.unheard(now, news);
        }
        // A turn that only the recorded loop gave to its agent, such as a hand-off, is not work outside of an iteration.
        let outside = |record: &Record| matches!(record.event, LoopEvent::WorkedOutside { .. });
        let in_a_turn = self.work().is_some() || self.is_rebooting();
        let of_a_turn = matches!(news, News::ToolStarted { .. } | News::Resulted(_));
        if of_a_turn && !in_a_turn && !taken.records.iter().any(outside) {
            return;
        }
        let scene = &taken.scene;
        let told_to_end = self.work().is_none_or(|work| work.ladder.is_some());
        let untold = scene.ending.is_some() && !told_to_end;
        let news = match news {
            News::Measured { context, answering } => {
                let would_be = self.readings.heard(*context);
                self.guessed |= would_be != *context;
                // The last reading of an answer is what it came to.
                self.more_in_answer = self.readings.more();
                if !answering {
                    self.answer_over();
                }
                let context = would_be;
                News::Measured {
                    context,
                    answering: *answering,
                }
            }
            News::Resulted(end) if untold && self.goes_on(now, scene, end) => return,
            News::Resulted(end) => {
                let end = self.end(end);
                News::Resulted(self.beyond(now, end, taken))
            }
            News::Exited { .. } | News::GuardLost
                if untold && self.goes_on(now, scene, &TurnEnd::default()) =>
            {
                return;
            }
            News::Exited { stop_pattern, .. } => {
                let mut news = news.clone();
                let kept = self.kept_pattern(stop_pattern.as_ref());
                if let News::Exited { stop_pattern, .. } = &mut news {
                    *stop_pattern = kept;
                }
                news
            }
            News::CallEnded { tokens } => News::CallEnded {
                tokens: tokens.saturating_add_signed(self.readings.more()),
            },
            News::Cost {
                conversation_microusd,
            } if self.readings.apart() => self.cost(scene, *conversation_microusd),
            News::Named { .. } if self.readings.apart() => return,
            News::Launched { .. }
            | News::NotLaunched { .. }
            | News::Output
            | News::Opened
            | News::Named { .. }
            | News::ToolStarted { .. }
            | News::ToolEnded { .. }
            | News::Denied { .. }
            | News::Touched { .. }
            | News::Cost { .. }
            | News::TakenUp(_)
            | News::Quota(_)
            | News::Looked { .. }
            | News::Said { .. }
            | News::GuardLost
            | News::StreamEnded => news.clone(),
        };
        let effects = self.agent(now, news, written);
        self.react(&effects, ending);
    }

    /// What is said in a turn that it has ended, or not yet begun.
    fn unheard(&mut self, now: Timestamp, news: &News) {
        match news {
            News::Measured { context, .. } => self.readings.unheard(*context),
            News::Resulted(end) => self.owes(end),
            // It is the user's, not the turn's.
            News::Quota(_) => {
                let effects = self.agent(now, news.clone(), None);
                self.react(&effects, false);
            }
            News::Launched { .. }
            | News::NotLaunched { .. }
            | News::Output
            | News::Opened
            | News::Named { .. }
            | News::ToolStarted { .. }
            | News::ToolEnded { .. }
            | News::Denied { .. }
            | News::Touched { .. }
            | News::CallEnded { .. }
            | News::Cost { .. }
            | News::TakenUp(_)
            | News::Exited { .. }
            | News::Looked { .. }
            | News::Said { .. }
            | News::StreamEnded
            | News::GuardLost => {}
        }
    }

    /// What another conversation would have cost: more by as much as the recorded one.
    fn cost(&mut self, scene: &Scene, told: u64) -> News {
        self.guessed = true;
        let more = told.saturating_sub(scene.conversation_microusd);
        let known = self.state.ledger.conversation_microusd;
        News::Cost {
            conversation_microusd: known.saturating_add(more),
        }
    }

    pub(super) fn owes(&mut self, end: &TurnEnd) {
        let heard = std::mem::take(&mut self.heard);
        let cost = end.cost_microusd.saturating_sub(heard.cost_microusd);
        let tokens = end.tokens.saturating_sub(heard.tokens);
        self.owed.cost_microusd = self.owed.cost_microusd.saturating_add(cost);
        self.owed.tokens = self.owed.tokens.saturating_add(tokens);
    }

    fn answer_over(&mut self) {
        let more = std::mem::take(&mut self.more_in_answer);
        self.more_tokens = self.more_tokens.saturating_add(more);
    }

    /// What a turn came to, as far as it would have come to the same.
    pub(super) fn end(&mut self, end: &TurnEnd) -> TurnEnd {
        let mut end = end.clone();
        self.answer_over();
        let more = std::mem::take(&mut self.more_tokens);
        if end.tokens > 0 {
            end.tokens = end.tokens.saturating_add_signed(more);
        }
        end.stop_pattern = self.kept_pattern(end.stop_pattern.as_ref());
        if let Some(Problem::Limited { until: Some(until) }) = &mut end.problem {
            *until = Timestamp::from_millis(until.as_millis().saturating_add(self.offset));
        }
        if end.spent == Some(Spent::Full) && self.readings.is_emptier() {
            end = self.well(&end);
        }
        end
    }

    /// The end of a turn that would have gone on to a good one.
    pub(super) fn well(&mut self, end: &TurnEnd) -> TurnEnd {
        self.guessed = true;
        TurnEnd {
            success: true,
            cost_microusd: end.cost_microusd,
            tokens: end.tokens,
            ..TurnEnd::default()
        }
    }

    /// A turn that an agent ended itself because a budget was used up has not failed where that one is not.
    fn beyond(&mut self, now: Timestamp, end: TurnEnd, taken: &Taken) -> TurnEnd {
        let interrupted = IterationOutcome::Interrupted;
        let cut = |record: &Record| matches!(&record.event, LoopEvent::IterationCompleted { report, .. } if report.outcome == interrupted);
        let by_budget = taken.scene.ending.is_none() && taken.records.iter().any(cut);
        let Some(agent) = self.state.agent.filter(|_| by_budget && !end.success) else {
            return end;
        };
        let input = Input::Agent {
            generation: agent.generation,
            news: News::Resulted(end.clone()),
        };
        let made = step(&self.policy, &mut self.state.clone(), now, input);
        let fails = |record: &Record| matches!(record.event, LoopEvent::IterationFailed { .. });
        if made.records.iter().any(fails) {
            return self.well(&end);
        }
        end
    }

    fn kept_pattern(&self, pattern: Option<&String>) -> Option<String> {
        let patterns = self.rules.stop_patterns.as_ref();
        let pattern =
            pattern.filter(|pattern| patterns.is_none_or(|known| known.contains(pattern)));
        pattern.cloned()
    }

    /// A budget that the recorded loop did not have may have been used up before it was told.
    pub(super) fn doubt(&mut self, condition: &str) {
        let recorded = &self.recorded_budgets;
        let agent = &self.policy.agent;
        let told = match Budget::ALL.into_iter().find(|b| b.key() == condition) {
            Some(Budget::Cost) => recorded.cost_microusd > 0 || !agent.tells_cost,
            Some(Budget::Tokens) => {
                recorded.cost_microusd > 0 || recorded.tokens > 0 || !agent.event_stream
            }
            Some(Budget::Duration | Budget::Quota) | None => true,
        };
        if !told {
            self.guessed = true;
            self.assumed.push(
                "what a turn spends was told at its end only, so it may have ended earlier"
                    .to_owned(),
            );
        }
    }
}
