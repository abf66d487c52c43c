//! Helpers for starting the agent: its transcript, its environment variables, and the error message if it cannot be started.

use std::ffi::OsString;
use std::path::Path;

use tachikoma_agents::Turn;
use tachikoma_fs::{check_dir, make_dir};

use crate::process::SpawnSubject;
use crate::runner::context::{Context, InputQueue, TurnOrder};
use crate::runner::maintenance::Maintenance;
use crate::runner::program::{find_program, search_path};
use crate::session::pump::ClosedTranscript;
use crate::session::transcript::Transcript;
use crate::store::StoreError;

pub(super) const ITERATION: &str = "TACHIKOMA_ITERATION";
pub(super) const ATTEMPT: &str = "TACHIKOMA_ATTEMPT";

/// Returns the transcript of a turn.
pub(super) fn transcript(context: Context<'_>, turn: &TurnOrder) -> Transcript {
    let directory = context.config.transcripts_dir(context.state.loop_id);
    let bytes_max = context.config.settings.session.transcript_max_bytes;
    Transcript::new(directory, turn.iteration.into(), turn.attempt, bytes_max)
        .kept_in(&context.config.encryption)
}

/// Creates the directory of transcripts, but never the working directory.
///
/// # Errors
/// A part of the path is a symbolic link.
pub(super) fn prepare_transcripts(context: Context<'_>) -> Result<(), StoreError> {
    let working_dir = &context.config.working_dir;
    let state_dir = context.config.sessions_dir(context.state.loop_id);
    check_dir(working_dir, &state_dir)?;
    if working_dir.is_dir() && !state_dir.is_dir() {
        // The error is ignored: the first transcript that cannot be written causes a warning.
        let _ = make_dir(&state_dir);
    }
    Ok(())
}

/// Returns why the agent's process could not be started.
pub(super) fn spawn_failure(
    context: Context<'_>,
    subject: SpawnSubject,
    errno: i32,
    message: &str,
) -> String {
    let config = context.config;
    match subject {
        SpawnSubject::WorkingDirectory => {
            format!(
                "working directory {}: {message}",
                config.working_dir.display()
            )
        }
        SpawnSubject::Program => {
            let plan = context.agent.plan(&Turn::default());
            let searched = search_path(&plan, config.search_path.as_ref());
            let found = find_program(Path::new(&plan.program), &config.working_dir, searched);
            let program = plan.program.to_string_lossy();
            if found.is_ok() && errno == rustix::io::Errno::NOENT.raw_os_error() {
                return format!(
                    "program `{program}` is there, but the interpreter that it names is not: {message}"
                );
            }
            let searched = searched.filter(|_| !program.contains('/'));
            let searched =
                searched.map(|path| format!(" (looked in PATH: {})", path.to_string_lossy()));
            format!(
                "program `{program}`: {message}{}",
                searched.unwrap_or_default()
            )
        }
        SpawnSubject::Guard => format!("the agent cannot be started: {message}"),
    }
}

/// Returns the environment variables that describe the turn and the loop. A process that runs for a whole session gets no turn numbers,
/// because they would be wrong for its later turns.
pub(super) fn turn_variables(
    turn: &TurnOrder,
    one_turn: bool,
    working_dir: &Path,
) -> Vec<(OsString, OsString)> {
    let pair = |name: &str, value: String| (OsString::from(name), OsString::from(value));
    let mut variables = vec![
        pair("TACHIKOMA_SESSION", turn.session.to_string()),
        ("TACHIKOMA_DIR".into(), working_dir.into()),
    ];
    if one_turn {
        variables.push(pair(ITERATION, turn.iteration.to_string()));
        variables.push(pair(ATTEMPT, turn.attempt.to_string()));
    }
    variables
}

/// Returns how much the current turn may cost in millionths of a dollar; `None` without a budget.
pub(super) fn budget_left_microusd(context: Context<'_>) -> Option<u64> {
    let budget = context.policy.budgets.cost_microusd;
    let state = context.state;
    let turn = state.accounting.turn.cost_microusd;
    let others = state.stats.cost_microusd.saturating_sub(turn);
    (budget > 0).then(|| budget.saturating_sub(others))
}

/// Compresses a transcript, and warns if it is incomplete.
pub(super) fn close_transcript(
    context: Context<'_>,
    transcript: ClosedTranscript,
    maintenance: &mut Maintenance,
    queue: &mut InputQueue,
) {
    if let Some(path) = transcript.path {
        maintenance.compress_transcript(path, &context.config.encryption);
    }
    if let Some(error) = transcript.error {
        queue.warn(format!(
            "the transcript of iteration {} is incomplete: {error}",
            context.state.iteration
        ));
    }
}
