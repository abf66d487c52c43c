//! What is said of each record.

use std::time::Duration;

use serde_json::json;

use super::conditions::readings;
use super::{Counted, Entry, Explain, Inputs, Kind, TOOLS_MAX};
use crate::autocommit::{AutocommitResult, short_commit};
use crate::context::Context;
use crate::event::LoopEvent;
use crate::launch::Resumption;
use crate::number_format::{Grouped, Nth, Span, count};
use crate::outcome::Stop;
use crate::phase::{Cause, Phase, Work};
use crate::policy::context::level;
use crate::reasons;
use crate::record::Record;
use crate::time::Timestamp;
use crate::turn_report::TurnReport;

impl Explain<'_> {
    /// A new iteration begins: that is what was decided after the one before it.
    pub(super) fn went_on(&mut self, record: &Record, iteration: u32) {
        if self.current.iteration > 0 {
            self.decide(
                record,
                format!("went on with iteration {iteration}"),
                None,
                Inputs::new(),
            );
        }
    }

    pub(super) fn fact(&mut self, record: &Record, words: impl Into<String>) {
        let entry = self.entry(record, Kind::Fact, words.into());
        self.push(entry);
    }

    pub(super) fn decide(
        &mut self,
        record: &Record,
        words: impl Into<String>,
        until: Option<Timestamp>,
        inputs: Inputs,
    ) {
        self.tell_untold();
        let entry = self.entry(record, Kind::Decision, words.into());
        self.push(Entry {
            until,
            inputs,
            ..entry
        });
    }

    /// Says what there is to say about a record that has just been added up.
    #[expect(clippy::too_many_lines, reason = "one arm for each event")]
    pub(super) fn tell(&mut self, record: &Record) {
        match &record.event {
            LoopEvent::Started { resumption, .. } => match resumption {
                Resumption::New => {}
                Resumption::AfterCrash => {
                    self.fact(record, "the runner died; another one took up the loop");
                }
                Resumption::AfterEnd { outcome } => {
                    self.fact(record, format!("run again after its end ({outcome})"));
                }
            },
            LoopEvent::ConfigChanged { changes } => {
                let changed = changes.iter().map(|change| {
                    let to = change.to.as_deref().unwrap_or("its default");
                    format!("{} is {to}", change.key)
                });
                let changed: Vec<String> = changed.collect();
                self.fact(
                    record,
                    format!("other settings hold: {}", changed.join(", ")),
                );
            }
            LoopEvent::IterationStarted {
                iteration, attempt, ..
            } => {
                self.current.attempts = *attempt;
                self.current.session = self.state.session.number.0;
                self.counted = Counted::default();
                let session = self.state.session.number;
                let up = work(&self.state.phase).is_some_and(|work| work.reused);
                let how = if up {
                    "the agent that is up is prompted"
                } else {
                    "the agent is launched"
                };
                let words =
                    format!("iteration {iteration}, attempt {attempt}, session {session}: {how}");
                self.fact(record, words);
            }
            LoopEvent::AgentLaunched { pid } => {
                let agent = self.state.launch.agent.clone();
                self.fact(record, format!("agent {agent} is up (pid {pid})"));
            }
            LoopEvent::AgentExited { exit } => {
                self.fact(
                    record,
                    format!("the agent's process ended between two turns: {exit}"),
                );
            }
            LoopEvent::ContextMeasured { context, .. } => self.reading(record, context),
            LoopEvent::WrapUpAdvised { .. } => {
                let warning = self.policy.reboot.warning_percent;
                let context = self.state.session.context;
                let fill = context.as_ref().map(reasons::fill).unwrap_or_default();
                let words = format!(
                    "told the agent to come to an end: {fill}, context.warning_percent = {warning}"
                );
                let mut inputs = context
                    .map(|context| readings(&context))
                    .unwrap_or_default();
                inputs.insert("context.warning_percent", json!(warning));
                self.decide(record, words, None, inputs);
            }
            LoopEvent::ToolStarted { name, .. } => {
                let tools = &mut self.counted.tools;
                if tools.contains_key(name) || tools.len() < TOOLS_MAX {
                    *tools.entry(name.clone()).or_default() += 1;
                } else {
                    self.counted.other_tools += 1;
                }
            }
            LoopEvent::ToolEnded { error, .. } => self.counted.failed += u32::from(error.is_some()),
            LoopEvent::ToolDenied { .. } => self.counted.denied += 1,
            LoopEvent::FileTouched { .. } => self.counted.files += 1,
            LoopEvent::TurnResulted(report) => self.turn(record, report),
            LoopEvent::CallEnded { tokens } => {
                self.counted.calls += 1;
                self.counted.tokens = self.counted.tokens.saturating_add(*tokens);
            }
            LoopEvent::QuotaTold(quota) => self.quota(record, quota),
            LoopEvent::StopPatternMatched { pattern } => {
                let words = format!(
                    "its final words match the pattern `{pattern}` (stop_conditions.stop_on_patterns)"
                );
                self.fact(record, words);
            }
            LoopEvent::Operator(event) => self.operator(record, event),
            LoopEvent::Claimed { reason } => self.claimed(record, reason.as_deref()),
            LoopEvent::CheckStarted { check } => self.check_started(record, check),
            LoopEvent::ConditionsAnswered { answers } => self.answered(record, answers),
            LoopEvent::GatesRan { results, .. } => self.gates_ran(record, results),
            LoopEvent::TestsRan(report) => self.tests_ran(record, report),
            LoopEvent::ProgressMeasured(measured) => self.measured(record, measured),
            LoopEvent::CheckGivenUp { reason } => {
                let words = format!("that is given up: {reason}");
                self.decide(record, words, None, Inputs::new());
            }
            LoopEvent::ClaimRefused(refusal) => self.refused(record, refusal),
            LoopEvent::EndingRequested {
                cause,
                boundary_until,
            } => {
                let words = self.ending(*cause, record.time);
                let waits = *boundary_until > record.time;
                let words = if waits {
                    format!(
                        "{words}; a tool call or an answer in flight may end first (session.graceful_timeout)"
                    )
                } else {
                    words
                };
                self.decide(
                    record,
                    words,
                    waits.then_some(*boundary_until),
                    Inputs::new(),
                );
            }
            LoopEvent::RungClimbed { rung, .. } => {
                self.fact(record, format!("the agent is signalled: {rung}"));
            }
            LoopEvent::IterationCompleted { report, .. } => {
                self.tools(record);
                let took = Span(Duration::from_millis(report.duration_ms));
                let claims = if report.claimed {
                    "; it claims that the work is complete"
                } else {
                    ""
                };
                self.fact(record, format!("{} after {took}{claims}", report.outcome));
                self.unsettled = true;
                self.over = Some(record.time);
            }
            LoopEvent::IterationFailed {
                failure,
                duration_ms,
                streak,
                ..
            } => {
                self.tools(record);
                let took = Span(Duration::from_millis(*duration_ms));
                let nth = Nth(*streak);
                self.fact(
                    record,
                    format!("failed after {took}, the {nth} in a row: {failure}"),
                );
                self.unsettled = true;
                self.over = Some(record.time);
            }
            LoopEvent::IterationLimited(limited) => {
                self.tools(record);
                self.over = Some(record.time);
                self.fact(record, reasons::limited(limited));
            }
            LoopEvent::AttemptCut {
                attempt, reason, ..
            } => {
                self.tools(record);
                let by = match reason {
                    None => " by the death of the runner".to_owned(),
                    Some(reason) => format!(" ({reason}), which is no failure"),
                };
                let words = format!("attempt {attempt} was cut{by}; the iteration is repeated");
                self.fact(record, words);
            }
            LoopEvent::RebootRequested { reason, not_before } => {
                self.wanted_reboot(record, reason, *not_before);
            }
            LoopEvent::RebootStarted { reason, from, .. } => {
                let why = reasons::reboot(&self.policy, &self.state, reason);
                let inputs = self.rate_inputs(record.time);
                self.decide(
                    record,
                    format!("session {from} is rebooted: {why}"),
                    None,
                    inputs,
                );
            }
            LoopEvent::HandOffRequested { until } => {
                let words = "the old session is asked for its hand-off (reboot.preserve_summary)";
                self.decide(record, words, Some(*until), Inputs::new());
            }
            LoopEvent::HandOffWritten {
                text,
                partial: false,
            } => {
                let words = format!("it wrote a hand-off of {} bytes", text.len());
                self.fact(record, words);
            }
            LoopEvent::HooksRan(end) => self.fact(record, end.to_string()),
            LoopEvent::RebootCompleted {
                to, duration_ms, ..
            } => {
                let took = Span(Duration::from_millis(*duration_ms));
                self.fact(record, format!("session {to} took over after {took}"));
            }
            LoopEvent::RebootFailed { error, .. } => {
                self.fact(
                    record,
                    format!("the reboot failed, the old session goes on: {error}"),
                );
            }
            LoopEvent::RebootVerified { percent, futile } => {
                let words = match futile {
                    Some(why) => format!("the reboot was for nothing: {why}"),
                    None => format!("the reboot was worth it: the context is at {percent} %"),
                };
                self.fact(record, words);
            }
            LoopEvent::WaitStarted { wait } => self.waits(record, wait),
            LoopEvent::PauseRequested => self.fact(record, "the operator asks for a pause"),
            LoopEvent::PauseWithdrawn => self.fact(record, "the operator withdraws the pause"),
            LoopEvent::Paused { .. } => {
                self.decide(record, "paused, as the operator asked", None, Inputs::new());
            }
            LoopEvent::Resumed => self.fact(record, "the operator lets it go on"),
            LoopEvent::StopRequested { stop, .. } => self.stop_wanted(record, stop),
            LoopEvent::StopConditionTriggered { condition, reason } => {
                self.condition_met(record, condition, reason);
            }
            LoopEvent::SessionStarted { session, .. } => {
                self.fact(record, format!("session {session} began"));
            }
            LoopEvent::Suspended { duration_ms } => {
                let span = Span(Duration::from_millis(*duration_ms));
                self.fact(
                    record,
                    format!("everything stood still for {span}; time-outs are later by as much"),
                );
            }
            LoopEvent::DiskWasFull { duration_ms } => {
                let span = Span(Duration::from_millis(*duration_ms));
                self.fact(record, format!("the disk was full for {span}"));
            }
            LoopEvent::Warned { warning } => self.fact(record, format!("warning: {warning}")),
            LoopEvent::Incident(incident) => self.fact(record, incident.to_string()),
            LoopEvent::Repaired { what, how } => {
                self.fact(record, format!("the {what} was repaired: {how}"));
            }
            LoopEvent::SilenceChecked { timeout, .. } => {
                let words = format!(
                    "nothing is heard of the agent ({timeout}): its processes are looked at before it is ended"
                );
                self.decide(record, words, None, Inputs::new());
            }
            LoopEvent::AgentBusy { activity } => {
                self.decide(
                    record,
                    format!("its processes are at work ({activity}): it has time again"),
                    None,
                    Inputs::new(),
                );
            }
            LoopEvent::SnapshotTaken { commit, .. } => {
                self.fact(
                    record,
                    format!(
                        "the work tree before it is kept as {}",
                        short_commit(commit)
                    ),
                );
            }
            LoopEvent::AutocommitStarted(autocommit) => {
                let words = match autocommit.commit {
                    Some(status) => format!("what the loop changed is committed, as {status}"),
                    None => "the work tree is looked at, and nothing is committed".to_owned(),
                };
                self.decide(record, words, autocommit.until, Inputs::new());
            }
            LoopEvent::AutocommitCanceled { .. } => self.fact(record, "that is to end at once"),
            LoopEvent::AutocommitFinished { kept, .. } => {
                self.fact(record, kept_words(kept));
            }
            LoopEvent::AutocommitGivenUp { reason, .. } => {
                self.fact(record, format!("keeping the work was given up: {reason}"));
            }
            LoopEvent::StreamEnded => self.fact(record, "the agent closed its output, and lives"),
            LoopEvent::LeftoversEnded { leftovers } => {
                self.fact(
                    record,
                    format!(
                        "{} processes that it left behind were ended",
                        leftovers.len()
                    ),
                );
            }
            LoopEvent::Completed { outcome, .. }
            | LoopEvent::Stopped { outcome, .. }
            | LoopEvent::Error { outcome, .. } => self.ended(record, outcome),
            LoopEvent::SegmentOpened { .. }
            | LoopEvent::SessionEnded { .. }
            | LoopEvent::SessionNamed { .. }
            | LoopEvent::OutputSeen
            | LoopEvent::CostTold { .. }
            | LoopEvent::WorkedOutside { .. }
            | LoopEvent::ConversationTakenUp(_)
            | LoopEvent::Noted { .. }
            | LoopEvent::HooksStarted { .. }
            | LoopEvent::ClosingStarted { .. }
            | LoopEvent::SessionOpening { .. }
            | LoopEvent::HandOffWritten { partial: true, .. }
            | LoopEvent::CustomSet { .. } => {}
        }
    }

    fn turn(&mut self, record: &Record, report: &TurnReport) {
        self.tell_untold();
        let mut words = match report.success {
            true => "the agent reported success".to_owned(),
            false => {
                let reason = report.reason.as_deref().unwrap_or("without a reason");
                format!("the agent reported failure: {reason}")
            }
        };
        if report.claimed {
            words.push_str(", and claims that the work is complete");
        }
        if report.cost_microusd > 0 {
            let cost = Duration::from_micros(report.cost_microusd).as_secs_f64();
            words.push_str(&format!("; it cost ${cost:.4}"));
        }
        self.fact(record, words);
    }

    /// A reading is told when it is the first, when it changes what may be done, and when it is the last before a decision.
    fn reading(&mut self, record: &Record, context: &Context) {
        let now = level(&self.policy, &self.state.session, context);
        let words = reasons::reading(&self.policy, &self.state.session, context);
        let entry = Entry {
            inputs: self.reading_inputs(context),
            ..self.entry(record, Kind::Fact, words)
        };
        let changed = self.counted.level.replace(now) != Some(now);
        self.counted.readings += 1;
        if changed {
            self.counted.untold = None;
            self.push(entry);
        } else {
            self.counted.untold = Some(entry);
        }
    }

    /// Sums up what was counted over the attempt.
    fn tools(&mut self, record: &Record) {
        self.tell_untold();
        let counted = std::mem::take(&mut self.counted);
        let calls: u32 = counted.tools.values().sum::<u32>() + counted.other_tools;
        if calls == 0 && counted.readings == 0 && counted.calls == 0 {
            return;
        }
        let mut by_name: Vec<String> = Vec::new();
        for (name, count) in &counted.tools {
            by_name.push(format!("{name} {count}"));
        }
        if counted.other_tools > 0 {
            by_name.push(format!("others {}", counted.other_tools));
        }
        let mut parts = vec![match by_name.is_empty() {
            true => "no tool calls".to_owned(),
            false => format!("{} ({})", count(calls, "tool call"), by_name.join(", ")),
        }];
        if counted.failed > 0 {
            parts.push(format!("{} failed", counted.failed));
        }
        if counted.denied > 0 {
            parts.push(format!("{} denied", counted.denied));
        }
        if counted.files > 0 {
            parts.push(format!("{} first changed", count(counted.files, "file")));
        }
        if counted.readings > 0 {
            parts.push(count(counted.readings, "reading"));
        }
        if counted.calls > 0 {
            let tokens = Grouped(counted.tokens);
            let calls = count(counted.calls, "call");
            parts.push(format!("{calls} of the model ({tokens} tokens)"));
        }
        self.fact(record, parts.join(", "));
    }

    fn ending(&self, cause: Cause, now: Timestamp) -> String {
        match cause {
            Cause::HandOver => match &self.state.session.context {
                Some(context) => {
                    let reading = reasons::reading(&self.policy, &self.state.session, context);
                    format!("the turn is ended for a reboot: {reading}")
                }
                None => "the turn is ended for a reboot".to_owned(),
            },
            Cause::Skip => "the turn is ended: the operator skips it".to_owned(),
            Cause::Interrupt => match &self.state.stop {
                Some(Stop::Budget { .. }) => "the turn is ended: a budget is used up".to_owned(),
                Some(_) | None => "the turn is ended: a stop, or a pause at once".to_owned(),
            },
            Cause::Timeout { timeout } => {
                let work = work(&self.state.phase);
                let active = work.map(|work| Span(now.since(work.active)));
                let heard = active.map(|span| format!("; last heard of {span} ago"));
                format!("the turn is ended: {timeout}{}", heard.unwrap_or_default())
            }
        }
    }
}

fn kept_words(kept: &AutocommitResult) -> String {
    let files = match kept.changed {
        0 => "no file".to_owned(),
        changed => count(changed, "file"),
    };
    let mut words = match (&kept.commit, &kept.error) {
        (Some(commit), _) if kept.changed == 0 => format!(
            "no file changed; what was left ({}) is committed as {}",
            count(commit.files, "file"),
            commit.short()
        ),
        (Some(commit), _) => format!("{files} changed, committed as {}", commit.short()),
        (None, Some(error)) => format!("{files} changed, and not committed: {error}"),
        (None, None) if kept.head_moved => format!("{files} changed"),
        (None, None) => format!("{files} changed, nothing committed"),
    };
    if kept.head_moved {
        words.push_str("; the agent made commits of its own");
    }
    words
}

fn work(phase: &Phase) -> Option<&Work> {
    match phase {
        Phase::Working { work } => Some(work),
        _ => None,
    }
}
