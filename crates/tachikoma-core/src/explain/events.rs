//! Describes each event in one line.

use std::time::Duration;

use super::{Kind, ends_with};
use crate::number_format::{Nth, Percent, Span, count};
use crate::reasons;
use crate::{
    AnsweredBy, Answers, AutocommitResult, Check, CheckStage, LoopEvent, ObjectivesSeen,
    OperatorEvent, Record, Resumption, ScriptResult, ScriptVerdict, State, Stop, TestsReport,
    Timestamp, TurnEnd, short_commit,
};

/// Shown for a decision that an earlier version recorded without its reason.
const NOT_RECORDED: &str = "the reason was not recorded by that version";

/// One line about an event.
pub(super) struct Line {
    pub kind: Kind,
    pub words: String,
}

fn fact_line(words: impl Into<String>) -> Option<Line> {
    let words = words.into();
    let kind = Kind::Fact;
    Some(Line { kind, words })
}

fn decision(words: impl Into<String>) -> Option<Line> {
    let words = words.into();
    let kind = Kind::Decision;
    Some(Line { kind, words })
}

/// Returns the line of a decision without a recorded reason; `None` if the record has reasons.
fn without_reason(record: &Record, words: &str) -> Option<Line> {
    let is_missing = record.reasons.is_empty();
    is_missing
        .then(|| format!("{words}; {NOT_RECORDED}"))
        .and_then(decision)
}

/// Returns until when a decision applies, if its event says so.
pub(super) fn until(record: &Record) -> Option<Timestamp> {
    match &record.event {
        LoopEvent::EndingRequested { boundary_until, .. } => {
            Some(*boundary_until).filter(|until| *until > record.time)
        }
        LoopEvent::RebootRequested { not_before, .. } => *not_before,
        LoopEvent::HandOffRequested { until } => Some(*until),
        LoopEvent::WaitStarted { wait } => Some(wait.until),
        LoopEvent::CheckStarted { check } => check.until,
        LoopEvent::AutocommitStarted(autocommit) => autocommit.until,
        LoopEvent::Operator(OperatorEvent::Asked(question)) => question.until,
        _ => None,
    }
}

/// Describes the event of a record. `state` is the state after it.
#[expect(clippy::too_many_lines, reason = "one arm for each event")]
pub(super) fn describe(state: &State, record: &Record) -> Option<Line> {
    let span = |millis: &u64| Span(Duration::from_millis(*millis));
    match &record.event {
        LoopEvent::Started { resumption, .. } => match resumption {
            Resumption::New => None,
            Resumption::AfterCrash => fact_line("the runner died; another one took up the loop"),
            Resumption::AfterEnd { outcome } => {
                fact_line(format!("run again after its end ({outcome})"))
            }
        },
        LoopEvent::ConfigChanged { changes } => {
            let changed = changes.iter().map(|change| {
                let to = change.to.as_deref().unwrap_or("its default");
                format!("{} is {to}", change.key)
            });
            let changed: Vec<String> = changed.collect();
            fact_line(format!("settings changed: {}", changed.join(", ")))
        }
        LoopEvent::IterationStarted {
            iteration, attempt, ..
        } => {
            let how = match state.work().is_some_and(|work| work.reused) {
                true => "the running agent is prompted",
                false => "the agent is launched",
            };
            let session = state.session.number;
            fact_line(format!(
                "iteration {iteration}, attempt {attempt}, session {session}: {how}"
            ))
        }
        LoopEvent::AgentLaunched { pid } => {
            fact_line(format!("agent {} is up (pid {pid})", state.launch.agent))
        }
        LoopEvent::AgentExited { exit } => fact_line(format!(
            "the agent's process ended between two turns: {exit}"
        )),
        LoopEvent::WrapUpAdvised { .. } => without_reason(record, "the agent was asked to finish"),
        LoopEvent::TurnResulted(report) => fact_line(turn(report)),
        LoopEvent::QuotaReported(quota) => fact_line(format!(
            "{} of the subscription's window `{}` is used",
            Percent(quota.percent),
            quota.window
        )),
        LoopEvent::StopPatternMatched { pattern } => fact_line(format!(
            "its final words match the pattern `{pattern}` (stop_conditions.stop_on_patterns)"
        )),
        LoopEvent::Operator(event) => operator(event),
        LoopEvent::Claimed { reason } => {
            let why = reason.as_ref().map(|reason| format!(": {reason}"));
            let why = why.unwrap_or_default();
            fact_line(format!(
                "`tachikoma done` claims that the work is complete{why}"
            ))
        }
        LoopEvent::CheckStarted { check } => decision(check_started(state, check)),
        LoopEvent::ConditionsAnswered { answers } => fact_line(answered(answers)),
        LoopEvent::GatesRan { results, .. } if results.is_empty() => fact_line("no gate ran"),
        LoopEvent::GatesRan { results, .. } => fact_line(reasons::gates(results)),
        LoopEvent::TestsRan(report) => fact_line(tests(report)),
        LoopEvent::ProgressMeasured(measured) => match measured.score {
            0 => fact_line(format!(
                "no progress, the {} iteration in a row",
                Nth(state.stats.no_progress_count)
            )),
            score => fact_line(format!(
                "progress {score} of 100: {}",
                measured.evidence.description()
            )),
        },
        LoopEvent::CheckGivenUp { reason } => decision(format!("the check is given up: {reason}")),
        LoopEvent::ClaimRefused(refusal) => {
            let who = reasons::claims(&refusal.claims);
            let how = match refusal.confirmed {
                0 => "refused",
                _ => "more confirmations are needed",
            };
            decision(format!("{who}, and {how}: {}", refusal.reasons.join("; ")))
        }
        LoopEvent::EndingRequested { cause, .. } => {
            without_reason(record, &reasons::turn_ended(*cause))
        }
        LoopEvent::AgentSignaled { signal, .. } => {
            fact_line(format!("the agent gets the signal: {signal}"))
        }
        LoopEvent::IterationCompleted { report, .. } => {
            let claims = match report.claimed {
                true => "; it claims that the work is complete",
                false => "",
            };
            let took = span(&report.duration_ms);
            fact_line(format!("{} after {took}{claims}", report.outcome))
        }
        LoopEvent::IterationFailed {
            failure,
            duration_ms,
            streak,
            ..
        } => {
            let (took, nth) = (span(duration_ms), Nth(*streak));
            fact_line(format!(
                "failed after {took}, the {nth} in a row: {failure}"
            ))
        }
        LoopEvent::IterationLimited(limited) => fact_line(reasons::limited(limited)),
        LoopEvent::AttemptCut {
            attempt, reason, ..
        } => {
            let by = match reason {
                None => " by the death of the runner".to_owned(),
                Some(reason) => format!(" ({reason}), which is not a failure"),
            };
            fact_line(format!(
                "attempt {attempt} was cut{by}; the iteration is repeated"
            ))
        }
        LoopEvent::RebootRequested { reason, .. } => {
            without_reason(record, &format!("a reboot is due: {reason}"))
        }
        LoopEvent::RebootStarted { reason, from, .. } => {
            without_reason(record, &format!("session {from} is rebooted: {reason}"))
        }
        LoopEvent::HandOffRequested { .. } => {
            decision("the old session is asked for its hand-off (reboot.preserve_summary)")
        }
        LoopEvent::HandOffWritten {
            text,
            partial: false,
        } => fact_line(format!("it wrote a hand-off of {} bytes", text.len())),
        LoopEvent::HooksRan(end) => fact_line(end.to_string()),
        LoopEvent::RebootCompleted {
            to, duration_ms, ..
        } => fact_line(format!(
            "session {to} took over after {}",
            span(duration_ms)
        )),
        LoopEvent::RebootFailed { error, .. } => fact_line(format!(
            "the reboot failed, the old session continues: {error}"
        )),
        LoopEvent::RebootVerified { percent, futile } => match futile {
            Some(why) => fact_line(format!("the reboot was futile: {why}")),
            None => fact_line(format!("the reboot helped: the context is at {percent} %")),
        },
        LoopEvent::WaitStarted { wait } => {
            without_reason(record, &format!("waits ({})", wait.reason))
        }
        LoopEvent::PauseRequested => fact_line("the operator asks for a pause"),
        LoopEvent::PauseWithdrawn => fact_line("the operator withdraws the pause"),
        LoopEvent::Paused { .. } => decision("paused, as the operator asked"),
        LoopEvent::Resumed => fact_line("the operator resumes the loop"),
        LoopEvent::StopRequested { stop, .. } => decision(match stop {
            Stop::Operator => "the operator stops the loop".to_owned(),
            Stop::Signal { signal } => format!("signal {signal} stops the loop"),
            Stop::Budget { reason } => {
                format!("the loop ends without waiting for the turn or for hooks: {reason}")
            }
            Stop::Hook { reason } | Stop::Script { reason } | Stop::Unable { reason } => {
                format!("the loop has to end: {reason}")
            }
        }),
        LoopEvent::StopConditionTriggered { reason, .. } => {
            decision(format!("a stop condition is met: {reason}"))
        }
        LoopEvent::SessionStarted { session, .. } => fact_line(format!("session {session} began")),
        LoopEvent::Suspended { duration_ms } => fact_line(format!(
            "the machine was suspended for {}; timeouts are extended by it",
            span(duration_ms)
        )),
        LoopEvent::DiskWasFull { duration_ms } => {
            fact_line(format!("the disk was full for {}", span(duration_ms)))
        }
        LoopEvent::Warned { warning } => fact_line(format!("warning: {warning}")),
        LoopEvent::Incident(incident) => fact_line(incident.to_string()),
        LoopEvent::Repaired { what, how } => fact_line(format!("the {what} was repaired: {how}")),
        LoopEvent::SilenceChecked { timeout, .. } => decision(format!(
            "the agent is silent ({timeout}): its processes are sampled before it is ended"
        )),
        LoopEvent::AgentBusy { activity } => decision(format!(
            "its processes are busy ({activity}): the timeout starts again"
        )),
        LoopEvent::SnapshotTaken { commit, .. } => fact_line(format!(
            "the work tree before it is saved as {}",
            short_commit(commit)
        )),
        LoopEvent::AutocommitStarted(autocommit) => match autocommit.commit {
            Some(status) => decision(format!(
                "the changes of the loop are committed, as {status}"
            )),
            None => decision("the work tree is surveyed, and nothing is committed"),
        },
        LoopEvent::AutocommitCanceled { .. } => fact_line("the autocommit was canceled"),
        LoopEvent::AutocommitFinished { result, .. } => fact_line(committed(result)),
        LoopEvent::AutocommitGivenUp { reason, .. } => {
            fact_line(format!("the autocommit was given up: {reason}"))
        }
        LoopEvent::StreamEnded => fact_line("the agent closed its output, and still runs"),
        LoopEvent::LeftoversEnded { leftovers } => fact_line(format!(
            "{} processes that it left running were ended",
            leftovers.len()
        )),
        LoopEvent::Completed { outcome, .. }
        | LoopEvent::Stopped { outcome, .. }
        | LoopEvent::Error { outcome, .. } => decision(format!("the loop ended: {outcome}")),
        _ => None,
    }
}

fn turn(report: &TurnEnd) -> String {
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
    words
}

fn check_started(state: &State, check: &Check) -> String {
    match &check.stage {
        CheckStage::Asking => "objectives are read and stop scripts run".to_owned(),
        CheckStage::Gates { names, claimed } => {
            let why = reasons::gates_due(state, *claimed);
            format!("gates run ({}): {why}", names.join(", "))
        }
    }
}

/// Describes that the loop ends during a check. `state` is the state before the event.
pub(super) fn cut_check(state: &State, event: &LoopEvent) -> Option<String> {
    let (outcome, check) = (ends_with(event)?, state.check()?);
    let what = match &check.stage {
        CheckStage::Asking => "objectives were read and stop scripts ran".to_owned(),
        CheckStage::Gates { names, .. } => format!("gates ran ({})", names.join(", ")),
    };
    Some(format!(
        "{outcome} while {what}: the result was not waited for, and the next run repeats the check"
    ))
}

fn answered(answers: &Answers) -> String {
    let objectives = answers.objectives.as_ref().map(|seen| match seen {
        ObjectivesSeen::Read { objectives } => format!(
            "{} of {} objectives are ticked",
            objectives.ticked, objectives.total
        ),
        ObjectivesSeen::Unknown { reason } => format!("the objectives cannot be read: {reason}"),
    });
    let scripts = answers.scripts.iter().map(script);
    let parts: Vec<String> = objectives.into_iter().chain(scripts).collect();
    match parts.is_empty() {
        true => "there was nothing to check".to_owned(),
        false => parts.join("; "),
    }
}

fn script(script: &ScriptResult) -> String {
    let name = &script.name;
    let verdict = match &script.verdict {
        ScriptVerdict::GoOn => "lets the loop continue".to_owned(),
        ScriptVerdict::Claim => "says that the work is complete".to_owned(),
        ScriptVerdict::Stop => "ends the loop".to_owned(),
        ScriptVerdict::Unclear { problem } => format!("is not usable: {problem}"),
    };
    let words = script.words.as_ref().map(|words| format!(": {words}"));
    let words = words.unwrap_or_default();
    format!("the stop script `{name}` {verdict}{words}")
}

fn tests(report: &TestsReport) -> String {
    let mut words = format!(
        "tests: {} passed, {} failed, {} skipped",
        report.passed, report.failed, report.skipped
    );
    for (what, names) in [
        ("newly failing", &report.newly_failing),
        ("fixed", &report.fixed),
        ("flaky", &report.flaky),
    ] {
        if !names.is_empty() {
            words.push_str(&format!("; {what}: {}", names.join(", ")));
        }
    }
    words
}

fn committed(result: &AutocommitResult) -> String {
    let files = match result.changed {
        0 => "no file".to_owned(),
        changed => count(changed, "file"),
    };
    let mut words = match (&result.commit, &result.error) {
        (Some(commit), _) if result.changed == 0 => format!(
            "no file changed; earlier changes ({}) are committed as {}",
            count(commit.files, "file"),
            commit.short()
        ),
        (Some(commit), _) => format!("{files} changed, committed as {}", commit.short()),
        (None, Some(error)) => format!("{files} changed, and not committed: {error}"),
        (None, None) if result.head_moved => format!("{files} changed"),
        (None, None) => format!("{files} changed, nothing committed"),
    };
    if result.head_moved {
        words.push_str("; the agent made commits of its own");
    }
    words
}

fn operator(event: &OperatorEvent) -> Option<Line> {
    match event {
        OperatorEvent::Asked(question) => {
            decision(format!("asked the operator: {}", question.about))
        }
        OperatorEvent::Answered { id, choice, by, .. } => match by {
            AnsweredBy::Operator => {
                fact_line(format!("the operator answered question {id}: {choice}"))
            }
            AnsweredBy::Default => decision(format!(
                "question {id} was not answered in time, the default applies: {choice}"
            )),
        },
        OperatorEvent::Held { id, until: None } => {
            fact_line(format!("the operator writes the answer to question {id}"))
        }
        OperatorEvent::Held { id, until: Some(_) } => fact_line(format!(
            "the operator stopped writing; the timeout of question {id} starts again"
        )),
        OperatorEvent::RolledBack { iteration, error } => match error {
            None => fact_line(format!(
                "the work tree was rolled back to before iteration {iteration}"
            )),
            Some(error) => fact_line(format!("the work tree was not rolled back: {error}")),
        },
        OperatorEvent::Attended { on: true } => fact_line("attended mode is on"),
        OperatorEvent::Attended { on: false } => fact_line("attended mode is off"),
        OperatorEvent::MessageQueued { .. } => {
            fact_line("the operator has a message for the agent")
        }
        OperatorEvent::MessagesDelivered { .. } => {
            fact_line("the agent got the message of the operator")
        }
        OperatorEvent::Reloaded { changes, .. } => {
            let keys: Vec<&str> = changes.iter().map(|it| it.key.as_str()).collect();
            fact_line(format!(
                "the configuration was reloaded: {}",
                keys.join(", ")
            ))
        }
    }
}
