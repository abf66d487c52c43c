//! `tachikoma history`: lists the iterations and the reboots of a loop. Only reads.

mod reboots;

use std::process::ExitCode;
use std::time::Duration;

use serde::{Serialize, Serializer};
use tachikoma_core::{
    Autocommit, AutocommitPurpose, Committed, Context, GateResult, IterationOutcome, LoopEvent,
    Record, Seq, SessionNo, Timestamp, TurnEnd,
};
use tachikoma_loop_runner::store::lock;

use super::records;
use crate::failure::Failure;
use crate::out;
use crate::report::line::dollars;
use crate::report::span::span;
use crate::workspace::Workspace;

/// Prints the iterations of the loop, or its reboots.
pub fn history(workspace: &Workspace, of_reboots: bool, json: bool) -> Result<ExitCode, Failure> {
    let current = workspace.current_loop()?;
    if of_reboots {
        return reboots::print(workspace, &current, json);
    }
    let mut under_way = UnderWay::default();
    let mut printed = 0_u64;
    let mut show = |iteration: &Iteration| {
        if printed == 0 && !json {
            out::line(&heading());
        }
        printed += 1;
        print(iteration, json);
    };
    records::read(&current.dir, &current.encryption, Seq(0), |record| {
        if let Some(iteration) = under_way.take(&record) {
            show(&iteration);
        }
    })?;
    if let Some(last) = under_way.ended.take() {
        show(&last);
    }
    // The runner of the last attempt has ended, and no other runner has resumed the loop yet.
    if let Some(cut) = under_way.unfinished()
        && !lock::is_held(&current.working_dir)
    {
        show(&cut);
    }
    if printed == 0 && !json {
        out::line("no iteration has ended yet");
    }
    Ok(ExitCode::SUCCESS)
}

/// An iteration that has ended, or an interrupted attempt.
#[derive(Clone, Debug, Serialize)]
struct Iteration {
    #[serde(flatten)]
    begun: Begun,
    ended: Timestamp,
    /// How the iteration ended; `None` if the attempt was interrupted.
    #[serde(serialize_with = "outcome_or_cut")]
    outcome: Option<IterationOutcome>,
    reason: Option<String>,
    /// Duration of the last attempt in milliseconds; `None` if it was interrupted.
    duration_ms: Option<u64>,
    /// Context usage at the end of the iteration, in percent; `None` if it is unknown.
    context_percent: Option<f64>,
    context_tokens: Option<u64>,
    cost_usd: Option<f64>,
    /// Number of changed files; `None` if it is unknown.
    files_changed: Option<u32>,
    /// The last commit with changes of the iteration.
    commit: Option<Committed>,
    /// Whether all gates passed after the iteration; `None` if no gates ran.
    gates_passed: Option<bool>,
    /// Progress score of the iteration from 0 to 100; `None` if it is unknown.
    progress: Option<u32>,
}

/// The start of an iteration.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Begun {
    iteration: u32,
    attempts: u32,
    session: SessionNo,
    started: Timestamp,
}

impl Iteration {
    fn new(begun: Begun, ended: Timestamp, outcome: Option<IterationOutcome>) -> Self {
        Self {
            begun,
            ended,
            outcome,
            reason: None,
            duration_ms: None,
            context_percent: None,
            context_tokens: None,
            cost_usd: None,
            files_changed: None,
            commit: None,
            gates_passed: None,
            progress: None,
        }
    }
}

const CUT: &str = "cut";

#[expect(clippy::ref_option, reason = "serde requires a reference to the field")]
fn outcome_or_cut<S: Serializer>(
    outcome: &Option<IterationOutcome>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match outcome {
        Some(outcome) => outcome.serialize(serializer),
        None => serializer.serialize_str(CUT),
    }
}

fn heading() -> String {
    format!(
        "{:>4} {:>4} {:<20} {:<11} {:>7} {:>7} {:>7} {:>5} {}",
        "iter", "sess", "ended", "outcome", "took", "context", "cost", "files", "commit"
    )
}

fn print(iteration: &Iteration, json: bool) {
    if json {
        // This cannot fail, because an iteration is plain data.
        return out::line(&serde_json::to_string(iteration).unwrap_or_default());
    }
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let context = iteration
        .context_percent
        .map(|percent| format!("{percent}%"));
    let took = iteration.duration_ms.map(Duration::from_millis).map(span);
    let attempts = iteration.begun.attempts;
    let attempt = match iteration.outcome.is_none() || attempts > 1 {
        true => format!(" (attempt {attempts})"),
        false => String::new(),
    };
    out::line(&format!(
        "{:>4} {:>4} {:<20} {:<11} {:>7} {:>7} {:>7} {:>5} {}{attempt}",
        iteration.begun.iteration,
        iteration.begun.session.to_string(),
        to_the_second(iteration.ended),
        iteration
            .outcome
            .map_or(CUT.to_owned(), |outcome| outcome.to_string()),
        or_dash(took),
        or_dash(context),
        or_dash(iteration.cost_usd.map(dollars)),
        or_dash(iteration.files_changed.map(|files| files.to_string())),
        iteration.commit.as_ref().map_or("-", Committed::short),
    ));
}

/// Formats a time without milliseconds, so that a line fits into 80 columns.
fn to_the_second(time: Timestamp) -> String {
    let text = time.to_string();
    match text.split_once('.') {
        Some((seconds, _)) => format!("{seconds}Z"),
        None => text,
    }
}

/// Builds iterations from records. Contains the iteration that is not complete yet.
#[derive(Debug, Default)]
struct UnderWay {
    begun: Begun,
    context: Option<Context>,
    cost_microusd: u64,
    /// Whether the last attempt has ended or was interrupted.
    over: bool,
    /// The time of the last record, not including records of a runner that resumes the loop.
    last: Timestamp,
    /// The previous iteration, for which a commit may still be recorded.
    ended: Option<Iteration>,
}

impl UnderWay {
    /// Processes one record. Returns the iteration that it completes, with its commit.
    fn take(&mut self, record: &Record) -> Option<Iteration> {
        let over = self.add(record);
        let taken_up = matches!(
            record.event,
            LoopEvent::SegmentOpened { .. }
                | LoopEvent::Started { .. }
                | LoopEvent::ConfigChanged { .. }
        );
        if !taken_up {
            self.last = record.time;
        }
        over
    }

    fn add(&mut self, record: &Record) -> Option<Iteration> {
        match &record.event {
            LoopEvent::SegmentOpened { state, .. } => {
                self.context = state.session.context;
                None
            }
            LoopEvent::IterationStarted {
                iteration,
                attempt,
                session,
                ..
            } => {
                let again = *attempt > 1 && self.begun.iteration == *iteration;
                if !again {
                    self.cost_microusd = 0;
                }
                self.begun = Begun {
                    iteration: *iteration,
                    attempts: *attempt,
                    session: *session,
                    started: if again {
                        self.begun.started
                    } else {
                        record.time
                    },
                };
                self.over = false;
                self.ended.take()
            }
            LoopEvent::AttemptCut {
                iteration,
                attempt,
                reason,
                ..
            } => {
                let ended = match reason {
                    Some(_) => record.time,
                    // The end is the last record of the old runner: the new runner records the interruption long after the old one died.
                    None => self.last,
                };
                let begun = Begun {
                    iteration: *iteration,
                    attempts: *attempt,
                    ..self.begun
                };
                self.over = true;
                self.ended.replace(Iteration {
                    reason: reason.clone(),
                    ..Iteration::new(begun, ended, None)
                })
            }
            LoopEvent::IterationLimited(_) => {
                self.over = true;
                None
            }
            LoopEvent::SessionStarted { .. } => {
                self.context = None;
                None
            }
            LoopEvent::ContextMeasured { context, .. } => {
                self.context = Some(*context);
                None
            }
            LoopEvent::TurnResulted(TurnEnd { cost_microusd, .. }) => {
                self.cost_microusd = self.cost_microusd.saturating_add(*cost_microusd);
                None
            }
            LoopEvent::IterationCompleted { report, .. } => self.end(
                record.time,
                report.iteration,
                report.outcome,
                report.duration_ms,
            ),
            LoopEvent::IterationFailed {
                iteration,
                failure,
                duration_ms,
                ..
            } => {
                let failed = IterationOutcome::Failed;
                let before = self.end(record.time, *iteration, failed, *duration_ms);
                self.work(|ended| ended.reason = Some(failure.to_string()));
                before
            }
            LoopEvent::AutocommitStarted(Autocommit {
                purpose: AutocommitPurpose::Iteration,
                ..
            }) => {
                self.work(|ended| ended.files_changed = Some(0));
                None
            }
            LoopEvent::AutocommitGivenUp {
                purpose: AutocommitPurpose::Iteration,
                ..
            } => {
                self.work(|ended| ended.files_changed = None);
                None
            }
            LoopEvent::ProgressMeasured(measured) => {
                self.work(|ended| ended.progress = Some(measured.score));
                None
            }
            LoopEvent::GatesRan { results, .. } => {
                let passed = results.iter().all(GateResult::passed);
                self.work(|ended| ended.gates_passed = Some(passed));
                None
            }
            LoopEvent::AutocommitFinished {
                purpose, result, ..
            } => {
                self.work(|ended| {
                    if *purpose == AutocommitPurpose::Iteration {
                        ended.files_changed = Some(result.changed);
                    }
                    if result.commit.is_some() {
                        ended.commit.clone_from(&result.commit);
                    }
                });
                None
            }
            _ => None,
        }
    }

    /// Ends an iteration. Returns the previous iteration if the record that should have completed it is lost.
    fn end(
        &mut self,
        ended: Timestamp,
        iteration: u32,
        outcome: IterationOutcome,
        duration_ms: u64,
    ) -> Option<Iteration> {
        let cost = std::mem::take(&mut self.cost_microusd);
        if self.begun.iteration != iteration {
            let millis = i64::try_from(duration_ms).unwrap_or(0);
            self.begun = Begun {
                iteration,
                attempts: 1,
                session: self.begun.session,
                started: Timestamp::from_millis(ended.as_millis() - millis),
            };
        }
        self.over = true;
        let before = self.ended.replace(Iteration {
            duration_ms: Some(duration_ms),
            context_percent: self
                .context
                .map(|context| (context.percent() * 10.0).round() / 10.0),
            context_tokens: self.context.map(|context| context.tokens),
            cost_usd: (cost > 0).then(|| Duration::from_micros(cost).as_secs_f64()),
            ..Iteration::new(self.begun, ended, Some(outcome))
        });
        before.filter(|before| before.begun.iteration != iteration)
    }

    /// Returns the last attempt if its end is not recorded.
    fn unfinished(&self) -> Option<Iteration> {
        let begun = self.begun.iteration > 0 && !self.over;
        begun.then(|| Iteration::new(self.begun, self.last, None))
    }

    fn work(&mut self, change: impl FnOnce(&mut Iteration)) {
        if let Some(ended) = &mut self.ended {
            change(ended);
        }
    }
}
