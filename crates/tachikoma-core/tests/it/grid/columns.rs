//! The columns of the grid: every possible input.

use std::time::Duration;

use tachikoma_core::{
    Activity, AgentInput, AutocommitResult, Choice, Context, ConversationUse, EditedPrompt, Exit,
    Generation, HookKind, HookPoint, HookResult, Incident, Input, Launch, LoopCommand,
    OperatorRequest, Problem, QuotaWindow, Repair, ScriptVerdict, State, Ticket, TurnEnd, Urgency,
};

use crate::play::{Play, exited, gate, script};

const URGENCIES: [Urgency; 3] = [Urgency::Graceful, Urgency::Now, Urgency::Kill];

#[derive(Clone, PartialEq)]
pub enum Column {
    /// An input at the current time.
    At(Box<Input>),
    /// `Input::Wake` at the next deadline, or after an hour if there is no deadline.
    Late,
}

pub fn inputs(play: &Play) -> Vec<Column> {
    let state: &State = &play.state;
    let mut inputs = vec![play.start_input(), Input::Wake];
    let ticket = Ticket(1);
    let mut commands: Vec<LoopCommand> = URGENCIES.map(LoopCommand::Pause).into();
    commands.push(LoopCommand::Resume);
    commands.extend(URGENCIES.map(LoopCommand::Stop));
    commands.extend([LoopCommand::ForceReboot, LoopCommand::SkipIteration]);
    inputs.extend(
        commands
            .into_iter()
            .map(|command| Input::Command { ticket, command }),
    );
    inputs.extend(URGENCIES.map(|urgency| Input::Shutdown {
        signal: 15,
        urgency,
    }));
    let generation = state.generation;
    inputs.extend(
        event()
            .into_iter()
            .map(|event| Input::Agent { generation, event }),
    );
    inputs.push(Input::Agent {
        generation: Generation(99),
        event: exited(Exit::Code(0), true),
    });
    for point in [
        HookPoint::BeforeReboot,
        HookPoint::AfterReboot,
        HookPoint::IterationEnd,
        HookPoint::LoopStart,
        HookPoint::LoopEnd,
        HookPoint::Error,
    ] {
        for error in [None, Some("no".to_owned())] {
            let results = vec![HookResult {
                name: "hook.sh".to_owned(),
                duration_ms: 1,
                stop: error.is_some() && point.kind() != HookKind::Reboot,
                error,
                ..HookResult::default()
            }];
            inputs.push(Input::HooksRan { point, results });
        }
    }
    let number = state.tracked_work.number;
    let one = AutocommitResult {
        changed: 1,
        uncommitted: 1,
        ..AutocommitResult::default()
    };
    for result in [Ok(one), Err("no".to_owned())] {
        inputs.push(Input::AutocommitFinished { number, result });
    }
    inputs.push(Input::AutocommitFinished {
        number: 99,
        result: Ok(AutocommitResult::default()),
    });
    inputs.push(Input::SnapshotTaken {
        iteration: 1,
        commit: "5".to_owned(),
        uncommitted: 0,
    });
    let number = state.completion.number;
    for verdict in [
        ScriptVerdict::GoOn,
        ScriptVerdict::Claim,
        ScriptVerdict::Stop,
    ] {
        let answers = script(verdict);
        inputs.push(Input::ConditionsAnswered { number, answers });
    }
    for error in [None, Some("exit 1")] {
        let results = vec![gate("tests", error)];
        inputs.push(Input::GatesRan {
            number,
            results,
            tests: None,
        });
    }
    inputs.push(Input::GatesRan {
        number: 99,
        results: Vec::new(),
        tests: None,
    });
    let request = |request| Input::OperatorRequest { ticket, request };
    inputs.extend(Choice::ALL.map(|choice| {
        let prompt = (choice == Choice::Edit).then(|| EditedPrompt {
            hash: "1f".to_owned(),
            bytes: 7,
        });
        let id = None;
        request(OperatorRequest::Answer { id, choice, prompt })
    }));
    inputs.push(request(OperatorRequest::Answer {
        id: Some(99),
        choice: Choice::Continue,
        prompt: None,
    }));
    inputs.extend([true, false].map(|writing| request(OperatorRequest::Hold { id: 1, writing })));
    inputs.extend([true, false].map(|on| request(OperatorRequest::Attend { on })));
    inputs.push(request(OperatorRequest::Tell {
        text: "look".to_owned(),
    }));
    inputs.push(request(OperatorRequest::StopAfterHooks));
    inputs.push(request(OperatorRequest::Reload {
        launch: Box::new(Launch::default()),
        later: vec!["agent.name".to_owned()],
        limits: play.policy.limits(),
    }));
    for result in [Ok("back".to_owned()), Err("no".to_owned())] {
        let iteration = 1;
        inputs.push(Input::RolledBack { iteration, result });
    }
    inputs.push(Input::CompletionClaimed {
        ticket,
        reason: None,
    });
    inputs.push(Input::Decline { signal: 15 });
    inputs.push(Input::Broken {
        reason: "a task panicked".to_owned(),
    });
    inputs.push(Input::Suspended {
        duration: Duration::from_secs(3600),
    });
    inputs.push(Input::CustomSet {
        ticket,
        key: "k".to_owned(),
        value: serde_json::json!(1),
    });
    inputs.push(Input::Note {
        ticket,
        text: "n".to_owned(),
        tell: false,
        operator: false,
    });
    inputs.push(Input::Warning {
        warning: "disk".to_owned(),
    });
    inputs.push(Input::DiskWasFull {
        duration: Duration::from_secs(60),
    });
    inputs.push(Input::Incident(Incident::AccessRefused {
        request: "stop".to_owned(),
        pid: None,
        agent: true,
        gone: false,
    }));
    inputs.push(Input::Repaired {
        what: Repair::Journal,
        how: "restored".to_owned(),
    });
    let columns = inputs.into_iter().map(|input| Column::At(Box::new(input)));
    let mut columns: Vec<Column> = columns.collect();
    columns.insert(2, Column::Late);
    columns
}

fn event() -> Vec<AgentInput> {
    let measured = |tokens| AgentInput::ContextMeasured {
        context: Context {
            tokens,
            window: 100,
            estimated: false,
        },
        answering: false,
    };
    let looked = |cpu_ms| AgentInput::ProcessesSampled {
        activity: Some(Activity {
            over_ms: 1_000,
            cpu_ms,
            ..Activity::default()
        }),
    };
    let resulted = |success| {
        AgentInput::TurnEnded(TurnEnd {
            success,
            text: "words".to_owned(),
            ..TurnEnd::default()
        })
    };
    vec![
        AgentInput::Launched { pid: 78 },
        AgentInput::NotLaunched {
            reason: "gone".to_owned(),
        },
        AgentInput::Opened,
        AgentInput::SessionNamed {
            agent_id: "c".to_owned(),
        },
        AgentInput::Output,
        measured(10),
        measured(75),
        measured(90),
        measured(99),
        AgentInput::ToolStarted {
            id: "u".to_owned(),
            name: "Read".to_owned(),
            summary: "a.rs".to_owned(),
        },
        AgentInput::ToolEnded {
            id: "t".to_owned(),
            error: None,
        },
        AgentInput::ToolDenied {
            tool: "Bash".to_owned(),
            id: "t".to_owned(),
        },
        AgentInput::FileTouched {
            path: "a.rs".to_owned(),
        },
        AgentInput::CallEnded { tokens: 2_000 },
        AgentInput::Cost {
            conversation_microusd: 5,
        },
        AgentInput::ConversationResumed(ConversationUse {
            microusd: 700_000,
            tokens: 9_000,
        }),
        AgentInput::Quota(QuotaWindow {
            window: "five_hour".to_owned(),
            percent: 90.0,
            resets_at: None,
        }),
        resulted(true),
        resulted(false),
        AgentInput::TurnEnded(TurnEnd {
            problem: Some(Problem::Limited { until: None }),
            ..TurnEnd::default()
        }),
        looked(1_000),
        looked(0),
        AgentInput::ProcessesSampled { activity: None },
        AgentInput::StreamEnded,
        exited(Exit::Code(0), false),
        exited(Exit::Code(0), true),
        exited(Exit::Code(1), false),
        AgentInput::GuardLost,
    ]
}
