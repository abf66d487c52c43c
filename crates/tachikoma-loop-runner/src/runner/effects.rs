//! Carrying out the core's wishes.

use std::ffi::OsString;
use std::io;
use std::path::Path;

use tachikoma_agents::{LaunchPlan, Turn};
use tachikoma_core::{Effect, Generation, Input, News, SessionNo, handoff};

use super::LoopRunner;
use crate::error::chain;
use crate::process::{Spawn, SpawnSubject, input, output};
use crate::prompt;
use crate::session::process::LiveLaunch;
use crate::session::pump::Pump;
use crate::session::transcript::Transcript;
use crate::store::{StoreError, check_dir, make_dir};

impl LoopRunner {
    /// Carries out one wish. What cannot be done is news like any other.
    pub(super) async fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Launch {
                generation,
                iteration,
                attempt,
                session,
            } => {
                // The reader of a launch that came to nothing.
                if let Some(before) = self.launch.take()
                    && let Some(reason) = before.join().await
                {
                    return self.queue.push_back(Input::Broken { reason });
                }
                if let Err(reason) = self.launch(generation, iteration, attempt, session) {
                    self.queue.push_back(Input::Agent {
                        generation,
                        news: News::NotLaunched { reason },
                    });
                }
            }
            Effect::Signal { generation, rung } => {
                if let Some(guard) = &mut self.guard {
                    guard.signal(generation.0, rung);
                }
            }
            // A session of a process that lives for one turn is a number: there is nothing to open.
            Effect::Renew { session } => self.queue.push_back(Input::Renewed {
                session,
                result: Ok(None),
            }),
            Effect::Reply { ticket, answer } => {
                if let Some(reply) = self.tickets.remove(&ticket) {
                    // Whoever asked may have gone.
                    let _ = reply.send(answer);
                }
            }
            // The run ends by the state itself; the guard may go ahead while the rest is put away.
            Effect::Finish => {
                if let Some(guard) = &mut self.guard {
                    guard.dismiss();
                }
            }
        }
    }

    fn launch(
        &mut self,
        generation: Generation,
        iteration: u32,
        attempt: u32,
        session: SessionNo,
    ) -> Result<(), String> {
        let words = prompt::read(&self.state.launch.prompt, &self.config.working_dir)
            .map_err(|error| chain(&error))?;
        let max_bytes =
            usize::try_from(self.config.settings.reboot.handoff_max_bytes).unwrap_or(usize::MAX);
        let prompt = handoff(&self.state, max_bytes).unwrap_or_default() + &words;
        let plan = self.agent.plan(&Turn { prompt: &prompt });
        if self.guard.is_none() {
            self.start_guard().map_err(|error| chain(&error))?;
        }
        self.prepare_transcripts().map_err(|error| chain(&error))?;
        let pipes =
            |what: io::Result<_>| what.map_err(|error| format!("no pipe for the agent: {error}"));
        let stdin = input(plan.stdin.as_bytes())
            .map_err(|error| format!("no input for the agent: {error}"))?;
        let (stdout_out, stdout) = pipes(output())?;
        let (stderr_out, stderr) = pipes(output())?;
        let mut env = plan.env;
        env.extend(turn_variables(iteration, attempt, session));
        let spawn = Spawn {
            generation: generation.0,
            program: plan.program,
            args: plan.args,
            env,
            env_remove: Vec::new(),
            cwd: self.config.working_dir.clone(),
            stdin,
            stdout,
            stderr,
        };
        let guard = self.guard.as_mut().ok_or("the guard is gone")?;
        guard
            .spawn(spawn)
            .map_err(|error| format!("the agent cannot be started: {error}"))?;
        let directory = self.config.transcripts_dir(self.state.loop_id);
        let bytes_max = self.config.settings.session.transcript_max_bytes;
        let transcript = Transcript::new(directory, iteration.into(), attempt, bytes_max);
        let pump = Pump::new(
            stdout_out,
            stderr_out,
            transcript,
            self.agent.line_max_bytes(),
        );
        let notices = self.ends.notices.clone();
        self.launch = Some(LiveLaunch::begin(
            generation,
            self.agent.decoder(),
            pump,
            notices,
        ));
        Ok(())
    }

    /// Nothing more is expected of a launch; its reader ends by itself, and is joined before the next one.
    pub(super) fn give_up_launch(&mut self, generation: Generation) {
        if let Some(launch) = self
            .launch
            .as_mut()
            .filter(|launch| launch.generation == generation)
        {
            launch.drain();
        }
    }

    pub(super) fn not_launched(&self, subject: SpawnSubject, errno: i32, message: &str) -> String {
        let plan = self.agent.plan(&Turn { prompt: "" });
        match subject {
            SpawnSubject::WorkingDirectory => {
                format!(
                    "working directory {}: {message}",
                    self.config.working_dir.display()
                )
            }
            SpawnSubject::Program => {
                let there = find_program(
                    Path::new(&plan.program),
                    &self.config.working_dir,
                    search_path(&plan, self.config.search_path.as_ref()),
                );
                let program = plan.program.to_string_lossy().into_owned();
                if there.is_ok() && errno == rustix::io::Errno::NOENT.raw_os_error() {
                    return format!(
                        "program `{program}` is there, but the interpreter that it names is not: {message}"
                    );
                }
                let searched = search_path(&plan, self.config.search_path.as_ref())
                    .filter(|_| !program.contains('/'));
                let looked_in =
                    searched.map(|path| format!(" (looked in PATH: {})", path.to_string_lossy()));
                format!(
                    "program `{program}`: {message}{}",
                    looked_in.unwrap_or_default()
                )
            }
            SpawnSubject::Guard => format!("the agent cannot be started: {message}"),
        }
    }

    /// Makes the directory in which loops have their transcripts, but never the working directory, should it be gone.
    ///
    /// # Errors
    /// What is there leads elsewhere.
    fn prepare_transcripts(&self) -> Result<(), StoreError> {
        let state_dir = self.config.sessions_dir(self.state.loop_id);
        check_dir(&self.config.working_dir, &state_dir)?;
        if self.config.working_dir.is_dir() && !state_dir.is_dir() {
            // The first transcript that cannot be written tells.
            let _ = make_dir(&state_dir);
        }
        Ok(())
    }
}

/// What an agent may want to know about its turn.
fn turn_variables(iteration: u32, attempt: u32, session: SessionNo) -> [(OsString, OsString); 3] {
    let pair = |name: &str, value: String| (OsString::from(name), OsString::from(value));
    [
        pair("TACHIKOMA_ITERATION", iteration.to_string()),
        pair("TACHIKOMA_ATTEMPT", attempt.to_string()),
        pair("TACHIKOMA_SESSION", session.to_string()),
    ]
}

/// Returns where the program of a plan is looked for: in the `PATH` that the agent gets.
pub(super) fn search_path<'a>(
    plan: &'a LaunchPlan,
    inherited: Option<&'a OsString>,
) -> Option<&'a OsString> {
    let own = plan.env.iter().rev().find(|(name, _)| name == "PATH");
    own.map(|(_, path)| path).or(inherited)
}

/// Looks a program up as a shell would. Returns why it cannot be run, if it cannot.
pub(super) fn find_program(
    program: &Path,
    working_dir: &Path,
    search_path: Option<&OsString>,
) -> Result<(), String> {
    let shown = program.display();
    if program.as_os_str().as_encoded_bytes().contains(&b'/') {
        let path = working_dir.join(program);
        return match executable(&path) {
            Ok(true) => Ok(()),
            Ok(false) if path.is_dir() => Err(format!("program `{shown}` is a directory")),
            Ok(false) => Err(format!("program `{shown}` is not executable")),
            Err(error) => Err(format!("program `{shown}`: {error}")),
        };
    }
    let search_path = search_path.cloned().unwrap_or_default();
    let places: Vec<_> = std::env::split_paths(&search_path)
        .map(|dir| dir.join(program))
        .collect();
    if places
        .iter()
        .any(|place| executable(place).unwrap_or(false))
    {
        return Ok(());
    }
    let looked_in = search_path.to_string_lossy();
    match places.iter().find(|place| place.is_file()) {
        Some(place) => Err(format!(
            "program `{shown}` is not executable: {}",
            place.display()
        )),
        None => Err(format!(
            "program `{shown}` is not found; looked in PATH: {looked_in}"
        )),
    }
}

fn executable(path: &Path) -> io::Result<bool> {
    let metadata = std::fs::metadata(path)?;
    let runnable = rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok();
    Ok(metadata.is_file() && runnable)
}
