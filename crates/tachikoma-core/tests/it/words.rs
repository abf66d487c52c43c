//! Short names of phases, events and effects for snapshots and for the coverage of the simulation.

use tachikoma_core::{
    Answer, Autocommit, AutocommitPurpose, Cause, CheckStage, Denial, Effect, HookPoint,
    LimitedAttempt, LoopEvent, ObjectivesSeen, OperatorEvent, Outcome, Phase, RebootStage, Record,
    Resumption, StopSignal, Timestamp, TurnEnd, Wait, WaitReason, Work,
};

pub fn phase(phase: &Phase) -> &'static str {
    match phase {
        Phase::Idle => "idle",
        Phase::Waiting { wait } => match wait.reason {
            WaitReason::Delay => "delay",
            WaitReason::Backoff => "backoff",
            WaitReason::RebootWindow => "window",
            WaitReason::UsageLimit => "limit",
            WaitReason::Outage => "outage",
            WaitReason::Operator => "operator",
        },
        Phase::Working { work } => working(work),
        Phase::Autocommitting { autocommit } => match autocommit.purpose {
            AutocommitPurpose::End => "keeping the end",
            AutocommitPurpose::Iteration | AutocommitPurpose::Checkpoint => "keeping",
        },
        Phase::Checking { check } => match &check.stage {
            CheckStage::Asking => "asking",
            CheckStage::Gates { .. } => "gates",
        },
        Phase::Hooking { hooking } => match (&hooking.outcome, hooking.point) {
            (Some(_), _) => "hooks at the end",
            (None, HookPoint::LoopStart) => "hooks at the start",
            (None, _) => "hooks",
        },
        Phase::Rebooting { reboot } => match &reboot.stage {
            RebootStage::Begun => "reboot:begun",
            RebootStage::HandOff { .. } => "reboot:hand-off",
            RebootStage::Hooks {
                point: HookPoint::BeforeReboot,
                ..
            } => "reboot:before",
            RebootStage::Hooks { .. } => "reboot:after",
            RebootStage::Autocommitting { .. } => "reboot:keeping",
            RebootStage::Closing { .. } => "reboot:closing",
            RebootStage::Opening { .. } => "reboot:opening",
        },
        Phase::Paused { .. } => "paused",
        Phase::Ended { outcome } => ended(outcome),
    }
}

fn working(work: &Work) -> &'static str {
    match (
        work.escalation.map(|escalation| escalation.signal),
        work.ending,
    ) {
        (Some(StopSignal::Interrupt), _) => "interrupt",
        (Some(StopSignal::Terminate), _) => "terminate",
        (Some(StopSignal::Kill), _) => "kill",
        (None, Some(_)) if work.launched.is_none() => "ending-launch",
        (None, Some(_)) => "boundary",
        (None, None) if work.launched.is_none() => "launching",
        (None, None) if work.result.is_some() => "resulted",
        (None, None) if !work.tools.is_empty() => "tool",
        (None, None) if work.silence_check_until.is_some() => "looking",
        (None, None) => "working",
    }
}

pub fn ended(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Done => "ended:done",
        Outcome::LimitReached { .. } => "ended:limit",
        Outcome::Condition { .. } => "ended:condition",
        Outcome::Budget { .. } => "ended:budget",
        Outcome::Operator => "ended:operator",
        Outcome::Signal { .. } => "ended:signal",
        Outcome::Error { .. } => "ended:error",
    }
}

pub fn event(event: &LoopEvent) -> &'static str {
    match event {
        LoopEvent::SegmentOpened { .. } => "SegmentOpened",
        LoopEvent::Started { .. } => "Started",
        LoopEvent::ConfigChanged { .. } => "ConfigChanged",
        LoopEvent::Operator(event) => operator(event),
        LoopEvent::PauseRequested => "PauseRequested",
        LoopEvent::PauseWithdrawn => "PauseWithdrawn",
        LoopEvent::Paused { .. } => "Paused",
        LoopEvent::Resumed => "Resumed",
        LoopEvent::StopRequested { .. } => "StopRequested",
        LoopEvent::WaitStarted { .. } => "WaitStarted",
        LoopEvent::SessionStarted { .. } => "SessionStarted",
        LoopEvent::SessionEnded { .. } => "SessionEnded",
        LoopEvent::IterationStarted { .. } => "IterationStarted",
        LoopEvent::AgentLaunched { .. } => "AgentLaunched",
        LoopEvent::AgentExited { .. } => "AgentExited",
        LoopEvent::SessionNamed { .. } => "SessionNamed",
        LoopEvent::OutputSeen => "OutputSeen",
        LoopEvent::WrapUpAdvised { .. } => "WrapUpAdvised",
        LoopEvent::ToolDenied { .. } => "ToolDenied",
        LoopEvent::FileTouched { .. } => "FileTouched",
        LoopEvent::Noted { .. } => "Noted",
        LoopEvent::HandOffRequested { .. } => "HandOffRequested",
        LoopEvent::HandOffWritten { .. } => "HandOffWritten",
        LoopEvent::HooksStarted { .. } => "HooksStarted",
        LoopEvent::HooksRan { .. } => "HooksRan",
        LoopEvent::ClosingStarted { .. } => "ClosingStarted",
        LoopEvent::SessionOpening { .. } => "SessionOpening",
        LoopEvent::RebootVerified { .. } => "RebootVerified",
        LoopEvent::ContextMeasured { .. } => "ContextMeasured",
        LoopEvent::ToolStarted { .. } => "ToolStarted",
        LoopEvent::ToolEnded { .. } => "ToolEnded",
        LoopEvent::TurnResulted(_) => "TurnResulted",
        LoopEvent::CallEnded { .. } => "CallEnded",
        LoopEvent::CostReported { .. } => "CostReported",
        LoopEvent::WorkedOutside { .. } => "WorkedOutside",
        LoopEvent::ConversationResumed(_) => "ConversationResumed",
        LoopEvent::QuotaReported(_) => "QuotaReported",
        LoopEvent::StopPatternMatched { .. } => "StopPatternMatched",
        LoopEvent::EndingRequested { .. } => "EndingRequested",
        LoopEvent::AgentSignaled { .. } => "AgentSignaled",
        LoopEvent::Suspended { .. } => "Suspended",
        LoopEvent::CustomSet { .. } => "CustomSet",
        LoopEvent::LeftoversEnded { .. } => "LeftoversEnded",
        LoopEvent::IterationCompleted { .. } => "IterationCompleted",
        LoopEvent::IterationFailed { .. } => "IterationFailed",
        LoopEvent::IterationLimited(_) => "IterationLimited",
        LoopEvent::SilenceChecked { .. } => "SilenceChecked",
        LoopEvent::AgentBusy { .. } => "AgentBusy",
        LoopEvent::StreamEnded => "StreamEnded",
        LoopEvent::AttemptCut { .. } => "AttemptCut",
        LoopEvent::SnapshotTaken { .. } => "SnapshotTaken",
        LoopEvent::AutocommitStarted { .. } => "AutocommitStarted",
        LoopEvent::AutocommitCanceled { .. } => "AutocommitCanceled",
        LoopEvent::AutocommitFinished { .. } => "AutocommitFinished",
        LoopEvent::AutocommitGivenUp { .. } => "AutocommitGivenUp",
        LoopEvent::Claimed { .. } => "Claimed",
        LoopEvent::CheckStarted { .. } => "CheckStarted",
        LoopEvent::ConditionsAnswered { .. } => "ConditionsAnswered",
        LoopEvent::GatesRan { .. } => "GatesRan",
        LoopEvent::TestsRan(_) => "TestsRan",
        LoopEvent::ProgressMeasured(_) => "ProgressMeasured",
        LoopEvent::CheckGivenUp { .. } => "CheckGivenUp",
        LoopEvent::ClaimRefused(_) => "ClaimRefused",
        LoopEvent::StopConditionTriggered { .. } => "StopConditionTriggered",
        LoopEvent::RebootRequested { .. } => "RebootRequested",
        LoopEvent::RebootStarted { .. } => "RebootStarted",
        LoopEvent::RebootCompleted { .. } => "RebootCompleted",
        LoopEvent::RebootFailed { .. } => "RebootFailed",
        LoopEvent::Warned { .. } => "Warned",
        LoopEvent::DiskWasFull { .. } => "DiskWasFull",
        LoopEvent::Repaired { .. } => "Repaired",
        LoopEvent::Incident(_) => "Incident",
        LoopEvent::Completed { .. } => "Completed",
        LoopEvent::Stopped { .. } => "Stopped",
        LoopEvent::Error { .. } => "Error",
    }
}

fn operator(event: &OperatorEvent) -> &'static str {
    match event {
        OperatorEvent::Asked(_) => "Asked",
        OperatorEvent::Answered { .. } => "Answered",
        OperatorEvent::Held { .. } => "Held",
        OperatorEvent::RolledBack { .. } => "RolledBack",
        OperatorEvent::Attended { .. } => "Attended",
        OperatorEvent::MessageQueued { .. } => "Told",
        OperatorEvent::MessagesDelivered { .. } => "PassedOn",
        OperatorEvent::Reloaded { .. } => "Reloaded",
    }
}

/// Returns the name of an effect in one word.
pub fn effect(effect: &Effect) -> &'static str {
    match effect {
        Effect::Launch { .. } => "launch",
        Effect::Signal { signal, .. } => match signal {
            StopSignal::Interrupt => "int",
            StopSignal::Terminate => "term",
            StopSignal::Kill => "kill",
        },
        Effect::SampleProcesses { .. } => "look",
        Effect::Prompt { .. } => "prompt",
        Effect::Advise { .. } => "advise",
        Effect::SendMessage { .. } => "tell",
        Effect::RollBack { .. } => "roll back",
        Effect::AskCost { .. } => "cost?",
        Effect::AttributeChanges => "owe",
        Effect::AskHandOff { .. } => "hand-off",
        Effect::Close { .. } => "close",
        Effect::OpenSession { .. } => "open",
        Effect::RunHooks { .. } => "hooks",
        Effect::Autocommit { .. } => "keep",
        Effect::CancelAutocommit => "call off",
        Effect::CheckConditions { .. } => "ask",
        Effect::RunGates { .. } => "gates",
        Effect::Reply { answer, .. } => match answer {
            Answer::Accepted { .. } => "ok",
            Answer::Refused { .. } => "refused",
        },
        Effect::Finish => "finish",
    }
}

/// Formats an effect with its most important values.
pub fn effect_line(effect: &Effect) -> String {
    match effect {
        Effect::Launch { resume: None, .. } => "launch".to_owned(),
        Effect::Launch {
            resume: Some(agent_id),
            ..
        } => format!("launch in {agent_id}"),
        Effect::Signal { signal, .. } => format!("signal {signal}"),
        Effect::SampleProcesses { .. } => "look".to_owned(),
        Effect::Prompt { .. } => "prompt".to_owned(),
        Effect::Advise { percent, .. } => format!("advise {percent}%"),
        Effect::SendMessage { text, .. } => format!("tell {text}"),
        Effect::RollBack {
            iteration,
            again: false,
        } => format!("roll back to {iteration}"),
        Effect::RollBack {
            iteration,
            again: true,
        } => format!("roll back to {iteration} again"),
        Effect::AskCost { .. } => "ask for the cost".to_owned(),
        Effect::AttributeChanges => "owe a look".to_owned(),
        Effect::AskHandOff { .. } => "ask for the hand-off".to_owned(),
        Effect::Close { .. } => "close".to_owned(),
        Effect::OpenSession { session, .. } => format!("open {session}"),
        Effect::RunHooks { point, .. } => format!("run {point}"),
        Effect::Autocommit { commit: None, .. } => "survey".to_owned(),
        Effect::Autocommit {
            commit: Some(order),
            ..
        } => {
            let context = order.context.map(|context| context.percent());
            let context = context.map_or("unknown".to_owned(), |percent| format!("{percent}%"));
            format!(
                "commit iteration {}, {}, session {}, context {context}",
                order.iteration, order.status, order.session
            )
        }
        Effect::CancelAutocommit => "call off".to_owned(),
        Effect::CheckConditions { .. } => "ask".to_owned(),
        Effect::RunGates { names, .. } => format!("run {}", names.join(", ")),
        Effect::Reply { answer, .. } => match answer {
            Answer::Accepted { note } => format!("ok: {note}"),
            Answer::Refused { current, reason } => format!("refused in {current}: {reason}"),
        },
        Effect::Finish => "finish".to_owned(),
    }
}

/// Formats a record with its most important values.
pub fn fact(record: &Record) -> String {
    let name = event(&record.event);
    let until = |time: &Timestamp| format!("{}s", time.since(record.time).as_secs_f64());
    let wait = |wait: &Wait| format!("{} {}", wait.reason, until(&wait.until));
    let details = match &record.event {
        LoopEvent::SegmentOpened { segment, .. } => segment.to_string(),
        LoopEvent::Started { resumption, .. } => match resumption {
            Resumption::New => "new".to_owned(),
            Resumption::AfterCrash => "after crash".to_owned(),
            Resumption::AfterEnd { outcome } => format!("after {}", outcome.kind()),
        },
        LoopEvent::ConfigChanged { changes } => {
            let text = |value: &Option<String>| value.clone().unwrap_or("default".to_owned());
            let changes = changes.iter();
            let changes =
                changes.map(|it| format!("{} {} to {}", it.key, text(&it.from), text(&it.to)));
            changes.collect::<Vec<_>>().join("; ")
        }
        LoopEvent::Operator(event) => match event {
            OperatorEvent::Asked(question) => {
                let limit = question
                    .until
                    .as_ref()
                    .map_or("no limit".to_owned(), &until);
                let (id, about) = (question.id, &question.about);
                format!("{id}: {about}? {} within {limit}", question.offers())
            }
            OperatorEvent::Answered { id, choice, by, .. } => format!("{id} {choice} by {by:?}"),
            OperatorEvent::Held { id, until: None } => format!("{id} until it is written"),
            OperatorEvent::Held { id, until: Some(_) } => format!("{id} for its whole time"),
            OperatorEvent::RolledBack { iteration, error } => {
                format!("{iteration} {}", error.as_deref().unwrap_or("ok"))
            }
            OperatorEvent::Attended { on } => on.to_string(),
            OperatorEvent::MessageQueued { number, text } => format!("{number}: {text}"),
            OperatorEvent::MessagesDelivered { through } => through.to_string(),
            OperatorEvent::Reloaded { changes, .. } => changes.len().to_string(),
        },
        LoopEvent::PauseRequested
        | LoopEvent::PauseWithdrawn
        | LoopEvent::Resumed
        | LoopEvent::StreamEnded
        | LoopEvent::OutputSeen => return name.to_owned(),
        LoopEvent::Paused { then } => then.as_ref().map_or("-".to_owned(), wait),
        LoopEvent::StopRequested { stop, .. } => Outcome::from(stop.clone()).to_string(),
        LoopEvent::WaitStarted { wait: waiting } => wait(waiting),
        LoopEvent::SessionStarted { session, .. } | LoopEvent::SessionEnded { session, .. } => {
            session.to_string()
        }
        LoopEvent::IterationStarted {
            iteration, attempt, ..
        }
        | LoopEvent::AttemptCut {
            iteration, attempt, ..
        } => format!("{iteration} attempt {attempt}"),
        LoopEvent::AgentBusy { activity } => activity.to_string(),
        LoopEvent::AgentLaunched { pid } => pid.to_string(),
        LoopEvent::ContextMeasured { context, .. } => format!("{}%", context.percent()),
        LoopEvent::WrapUpAdvised { percent } => format!("{percent}%"),
        LoopEvent::AgentExited { exit } => exit.to_string(),
        LoopEvent::SessionNamed { agent_id } => agent_id.clone(),
        LoopEvent::ToolDenied(denial) => {
            let remedy = denial.remedy.as_deref().unwrap_or("nothing");
            let Denial {
                name,
                summary,
                times,
                ..
            } = denial;
            format!("{name} {summary}, time {times}, allowed by {remedy}")
        }
        LoopEvent::FileTouched { path } => path.clone(),
        LoopEvent::Noted { text, .. } | LoopEvent::HandOffWritten { text, .. } => text.clone(),
        LoopEvent::HandOffRequested { until: limit }
        | LoopEvent::AutocommitCanceled { until: limit, .. }
        | LoopEvent::SilenceChecked { until: limit, .. }
        | LoopEvent::ClosingStarted { until: limit, .. } => format!("within {}", until(limit)),
        LoopEvent::HooksStarted(start) => start.point.to_string(),
        LoopEvent::HooksRan(end) => match &end.given_up {
            Some(reason) => format!("{}, {reason}", end.point),
            None => format!("{}, {}", end.point, end.results.len()),
        },
        LoopEvent::SessionOpening { session, .. } => session.to_string(),
        LoopEvent::RebootVerified { percent, futile } => {
            futile.clone().unwrap_or(format!("{percent}%"))
        }
        LoopEvent::ToolStarted { id, .. } => id.clone(),
        LoopEvent::ToolEnded { id, error } => match error {
            Some(error) => format!("{id}: {error}"),
            None => id.clone(),
        },
        LoopEvent::TurnResulted(TurnEnd {
            spent: Some(spent), ..
        }) => format!("{spent:?}").to_lowercase(),
        LoopEvent::TurnResulted(TurnEnd { success, .. }) => success.to_string(),
        LoopEvent::EndingRequested {
            cause,
            boundary_until,
        } => {
            let cause = match cause {
                Cause::HandOver => "hand over",
                Cause::Skip => "skip",
                Cause::Interrupt => "interrupt",
                Cause::Timeout { .. } => "time-out",
            };
            format!("{cause} within {}", until(boundary_until))
        }
        LoopEvent::AgentSignaled {
            signal,
            until: next,
        } => format!("{signal} {}", until(next)),
        LoopEvent::CustomSet { key, .. } => key.clone(),
        LoopEvent::Suspended { duration_ms } | LoopEvent::DiskWasFull { duration_ms } => {
            format!("{duration_ms} ms")
        }
        LoopEvent::Incident(incident) => incident.to_string(),
        LoopEvent::Repaired { what, how } => format!("{what}: {how}"),
        LoopEvent::LeftoversEnded { leftovers } => leftovers.len().to_string(),
        LoopEvent::IterationCompleted { report, .. } => {
            let claim = if report.claimed { ", claimed" } else { "" };
            let full = if report.needs_reboot {
                ", needs reboot"
            } else {
                ""
            };
            format!("{} {}{claim}{full}", report.iteration, report.outcome)
        }
        LoopEvent::IterationFailed {
            iteration,
            failure,
            streak,
            ..
        } => format!("{iteration}: {failure}; streak {streak}"),
        LoopEvent::IterationLimited(LimitedAttempt {
            iteration,
            attempt,
            reason,
            streak,
            ..
        }) => format!("{iteration} attempt {attempt}: {reason}; streak {streak}"),
        LoopEvent::StopConditionTriggered { condition, .. } => condition.clone(),
        LoopEvent::StopPatternMatched { pattern } => pattern.clone(),
        LoopEvent::CallEnded { tokens } => format!("{tokens} tokens"),
        LoopEvent::CostReported {
            conversation_microusd,
        } => format!("{conversation_microusd}"),
        LoopEvent::WorkedOutside {
            tool,
            cost_microusd,
            tokens,
        } => format!("{tool} {cost_microusd} {tokens} tokens"),
        LoopEvent::ConversationResumed(told) => {
            format!("{} {} tokens", told.microusd, told.tokens)
        }
        LoopEvent::QuotaReported(quota) => format!("{} {}%", quota.window, quota.percent),
        LoopEvent::SnapshotTaken {
            iteration, commit, ..
        } => format!("{iteration}: {commit}"),
        LoopEvent::AutocommitStarted(Autocommit {
            purpose,
            until: limit,
            ..
        }) => {
            let limit = limit.as_ref().map_or("no limit".to_owned(), &until);
            format!("{purpose} within {limit}")
        }
        LoopEvent::AutocommitFinished { result, .. } => {
            let commit = result.commit.as_ref();
            let commit = commit.map_or(String::new(), |it| format!(", {} as {}", it.files, it.id));
            let error = result.error.as_deref().unwrap_or_default();
            let left = result.uncommitted;
            format!("{} changed{commit}, {left} left{error}", result.changed)
        }
        LoopEvent::AutocommitGivenUp { purpose, reason } => format!("{purpose}: {reason}"),
        LoopEvent::Claimed { reason } => reason.clone().unwrap_or_default(),
        LoopEvent::CheckStarted { check } => {
            let limit = check.until.as_ref().map_or("no limit".to_owned(), &until);
            match &check.stage {
                CheckStage::Asking => format!("asking within {limit}"),
                CheckStage::Gates { claimed, .. } => {
                    let claim = if *claimed { "claimed, " } else { "" };
                    format!("{claim}gates within {limit}")
                }
            }
        }
        LoopEvent::ConditionsAnswered { answers } => {
            let objectives = answers.objectives.as_ref().map(|seen| match seen {
                ObjectivesSeen::Read { objectives } => {
                    format!("{} of {}", objectives.ticked, objectives.total)
                }
                ObjectivesSeen::Unknown { reason } => reason.clone(),
            });
            let scripts = answers.scripts.iter();
            let scripts = scripts.map(|script| format!("{} {:?}", script.name, script.verdict));
            objectives
                .into_iter()
                .chain(scripts)
                .collect::<Vec<_>>()
                .join(", ")
        }
        LoopEvent::GatesRan { results, .. } => {
            let results = results.iter();
            let results = results.map(|gate| match &gate.error {
                None => format!("{} ok", gate.name),
                Some(error) => format!("{} {error}", gate.name),
            });
            results.collect::<Vec<_>>().join(", ")
        }
        LoopEvent::TestsRan(report) => {
            format!("{} passed, {} failed", report.passed, report.failed)
        }
        LoopEvent::ProgressMeasured(measured) => {
            format!("{}: {}", measured.iteration, measured.score)
        }
        LoopEvent::ClaimRefused(refusal) => {
            let claims: Vec<String> = refusal.claims.iter().map(ToString::to_string).collect();
            format!("{}: {}", claims.join(", "), refusal.reasons.join(" | "))
        }
        LoopEvent::CheckGivenUp { reason } => reason.clone(),
        LoopEvent::RebootRequested { reason, not_before } => match not_before {
            Some(moment) => format!("{reason}, not before {}", until(moment)),
            None => reason.to_string(),
        },
        LoopEvent::RebootStarted { reason, .. } => reason.to_string(),
        LoopEvent::RebootCompleted { from, to, .. } => format!("{from} to {to}"),
        LoopEvent::RebootFailed { error, .. } => error.clone(),
        LoopEvent::Warned { warning } => warning.clone(),
        LoopEvent::Completed { outcome, .. }
        | LoopEvent::Stopped { outcome, .. }
        | LoopEvent::Error { outcome, .. } => outcome.to_string(),
    };
    format!("{name}({details})")
}
