//! Carrying out the core's wishes.

use std::ffi::OsString;
use std::io;
use std::path::Path;

use tachikoma_agents::{self as agents, LaunchPlan, Message, Turn};
use tachikoma_core::{
    AgentEvent, Effect, Generation, Input, Rung, SessionNo, TurnEnd, prompt_preamble,
    standing_in_the_way,
};
use tachikoma_fs::{check_dir, make_dir};

use super::LoopRunner;
use crate::advice;
use crate::error::chain;
use crate::process::{Spawn, SpawnSubject, input, is_executable, lines, output};
use crate::session::process::LiveLaunch;
use crate::session::pump::Pump;
use crate::session::talk::{Talk, Unheard};
use crate::session::transcript::Transcript;
use crate::store::StoreError;

impl LoopRunner {
    /// Carries out one wish. What cannot be done is news like any other.
    pub(super) async fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Launch {
                generation,
                iteration,
                attempt,
                session,
                resume,
            } => {
                let turn = Ordered {
                    iteration,
                    attempt,
                    session,
                };
                let begin = Begin::Launch { resume };
                self.begin_turn(generation, turn, begin).await;
            }
            Effect::Prompt {
                generation,
                iteration,
                attempt,
                session,
            } => {
                let turn = Ordered {
                    iteration,
                    attempt,
                    session,
                };
                self.begin_turn(generation, turn, Begin::Prompt).await;
            }
            Effect::OpenSession {
                generation,
                session,
                resume,
            } => {
                // A session that is opened without a prompt serves the iteration that comes next.
                let turn = Ordered {
                    iteration: self.state.next_iteration(),
                    attempt: 1,
                    session,
                };
                self.launch(generation, turn, resume, false).await;
            }
            Effect::Advise {
                generation,
                percent,
            } => {
                let words = advice::wrap_up(percent);
                self.say(generation, &Message::Aside(&words));
            }
            Effect::SendMessage { generation, words } => {
                let words = advice::from_operator(&words);
                self.say(generation, &Message::Aside(&words));
            }
            Effect::RollBack { iteration, again } => self.roll_back(iteration, again),
            Effect::AskCost { generation } => self.ask_cost(generation),
            Effect::AttributeChanges => self.keeping.owe_a_look(),
            Effect::AskHandOff { generation } => {
                self.keeping.owe_a_look();
                if let Some(launch) = self.launch_of(generation) {
                    launch.listen();
                }
                let message = Message::Prompt {
                    text: advice::ASK_HAND_OFF,
                    iteration: None,
                };
                self.say(generation, &message);
            }
            Effect::Close { generation } => {
                if let Some(launch) = self.launch_of(generation) {
                    launch.end_input();
                }
            }
            Effect::SampleProcesses { generation } => self.look(generation),
            Effect::Signal { generation, rung } => self.signal(generation, rung),
            Effect::RunHooks { point, reason } => self.run_hooks(point, reason),
            Effect::Autocommit {
                number,
                commit,
                changes,
            } => self.keep(number, commit, changes),
            Effect::CancelAutocommit => self.call_off_keep(),
            Effect::CheckConditions { number } => self.ask(number),
            Effect::RunGates { number, names } => self.run_gates(number, &names),
            Effect::Reply { ticket, answer } => {
                if let Some(reply) = self.tickets.remove(&ticket) {
                    // Whoever asked may have gone.
                    let _ = reply.send(answer);
                }
            }
            // The run ends by the state itself; the guard may go ahead while the rest is put away, unless the agent can
            // be asked to go by itself.
            Effect::Finish => {
                let polite = self.launch.as_ref().is_some_and(LiveLaunch::listens);
                if let Some(guard) = self.guard.as_mut().filter(|_| !polite) {
                    guard.dismiss();
                }
            }
        }
    }

    /// Begins a turn.
    pub(super) async fn perform_turn(
        &mut self,
        generation: Generation,
        turn: Ordered,
        begin: Begin,
    ) {
        match begin {
            Begin::Launch { resume } => self.launch(generation, turn, resume, true).await,
            Begin::Prompt => self.prompt(generation, turn).await,
        }
    }

    fn launch_of(&mut self, generation: Generation) -> Option<&mut LiveLaunch> {
        let launch = self.launch.as_mut();
        launch.filter(|launch| launch.generation == generation)
    }

    /// Asks what the conversation has cost. A question that is not heard is asked again behind the next call.
    fn ask_cost(&mut self, generation: Generation) {
        let line = self.agent.line(&Message::WhatCost);
        let line = line.filter(|_| !self.cost_unsaid);
        if let (Some(line), Some(launch)) = (line, self.launch_of(generation)) {
            let _ = launch.say(line);
        }
    }

    /// Says something to an agent that listens. One that does not hear it will be noticed by its silence.
    fn say(&mut self, generation: Generation, message: &Message<'_>) {
        let Some(line) = self.agent.line(message) else {
            return;
        };
        if let Some(launch) = self.launch_of(generation)
            && launch.say(line) == Err(Unheard::Busy)
        {
            let warning = "the agent does not read what is said to it".to_owned();
            self.queue.push_back(Input::Warning { warning });
        }
    }

    /// An agent that can be interrupted by a word is: a signal would end its process, and its conversation with it.
    fn signal(&mut self, generation: Generation, rung: Rung) {
        if self.end_deferred(generation, rung) {
            return;
        }
        let word = self.agent.line(&Message::Interrupt);
        if rung == Rung::Interrupt
            && let (Some(word), Some(launch)) = (word, self.launch_of(generation))
            && launch.say(word).is_ok()
        {
            return;
        }
        if let Some(guard) = &mut self.guard {
            guard.signal(generation.0, rung);
        }
    }

    /// Gives the next prompt to the agent that is up.
    async fn prompt(&mut self, generation: Generation, turn: Ordered) {
        match self.words().await {
            Ok(words) => {
                let transcript = self.transcript(turn);
                if let Some(launch) = self.launch_of(generation) {
                    launch.begin_turn(transcript);
                }
                let message = Message::Prompt {
                    text: &words,
                    iteration: Some(turn.iteration),
                };
                self.say(generation, &message);
            }
            Err(reason) => self.queue.push_back(Input::Agent {
                generation,
                event: AgentEvent::TurnEnded(TurnEnd {
                    reason: Some(reason),
                    ..TurnEnd::default()
                }),
            }),
        }
    }

    /// Returns the prompt of the next turn: the words of the user, behind what stands in the way of completion and behind the
    /// hand-off, where they are due.
    async fn words(&mut self) -> Result<String, String> {
        let words = self.own_words()?;
        let unmeant = self.unmeant.take().map(|doubt| {
            format!("# What you said about completion\n\nYour last answer names the completion promise, and is not taken for a claim: {doubt}. If the whole work is complete, say so on a line of its own.\n\n---\n\n")
        });
        let before = unmeant.unwrap_or_default() + &prompt_preamble(&self.state);
        let before = before + &standing_in_the_way(&self.state);
        let words = before + &self.handoff().await + &words;
        self.asked.clone_from(&words);
        Ok(words)
    }

    fn transcript(&self, turn: Ordered) -> Transcript {
        let directory = self.config.transcripts_dir(self.state.loop_id);
        let bytes_max = self.config.settings.session.transcript_max_bytes;
        Transcript::new(directory, turn.iteration.into(), turn.attempt, bytes_max)
            .kept_in(&self.config.vault)
    }

    /// Starts the agent's process, with the prompt of the turn or without one.
    async fn launch(
        &mut self,
        generation: Generation,
        turn: Ordered,
        resume: Option<String>,
        with_prompt: bool,
    ) {
        // The reader of a launch that came to nothing.
        if let Some(before) = self.launch.take()
            && let Some(reason) = before.join().await
        {
            return self.queue.push_back(Input::Broken { reason });
        }
        let prompt = match with_prompt {
            true => self.words().await.map(Some),
            false => Ok(None),
        };
        let started = prompt.and_then(|prompt| {
            self.start_agent(generation, turn, resume.as_deref(), prompt.as_deref())
        });
        if let Err(reason) = started {
            self.queue.push_back(Input::Agent {
                generation,
                event: AgentEvent::NotLaunched { reason },
            });
        }
    }

    fn start_agent(
        &mut self,
        generation: Generation,
        turn: Ordered,
        resume: Option<&str>,
        prompt: Option<&str>,
    ) -> Result<(), String> {
        let plan = self.agent.plan(&Turn {
            prompt: prompt.unwrap_or_default(),
            resume,
            budget_usd: self.budget_left_usd(),
            iteration: prompt.map(|_| turn.iteration),
        });
        let path = with_ourselves(
            search_path(&plan, self.config.search_path.as_ref()),
            self.config.guard.first(),
        );
        if self.guard.is_none() {
            self.start_guard().map_err(|error| chain(&error))?;
        }
        self.prepare_transcripts().map_err(|error| chain(&error))?;
        fn pipe<P>(made: io::Result<P>) -> Result<P, String> {
            made.map_err(|error| format!("no pipe for the agent: {error}"))
        }
        let (stdin, talk) = match plan.input {
            agents::Input::Whole(text) => (pipe(input(text.as_bytes()))?, None),
            agents::Input::Lines(first) => {
                let (stdin, ear) = pipe(lines())?;
                (stdin, Some(Talk::begin(ear, first)))
            }
        };
        let (stdout_out, stdout) = pipe(output())?;
        let (stderr_out, stderr) = pipe(output())?;
        let mut env = plan.env;
        env.extend(path.map(|path| ("PATH".into(), path)));
        let one_turn = !self.policy.agent.persistent;
        env.extend(turn_variables(turn, one_turn, &self.config.working_dir));
        let mut env_remove = plan.env_remove;
        if !one_turn {
            // A loop around this one may have set them.
            env_remove.extend([ITERATION, ATTEMPT].map(OsString::from));
        }
        let spawn = Spawn {
            generation: generation.0,
            program: plan.program,
            args: plan.args,
            env,
            env_remove,
            cwd: self.config.working_dir.clone(),
            stdin,
            stdout,
            stderr,
        };
        let guard = self.guard.as_mut().ok_or("the guard is gone")?;
        guard
            .spawn(spawn)
            .map_err(|error| format!("the agent cannot be started: {error}"))?;
        let pump = Pump::new(
            stdout_out,
            stderr_out,
            self.transcript(turn),
            self.agent.line_max_bytes(),
        );
        let notices = self.ends.notices.clone();
        self.launch = Some(LiveLaunch::begin(
            generation,
            self.agent.decoder(),
            pump,
            talk,
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
        let plan = self.agent.plan(&Turn::default());
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

/// A turn that was ordered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ordered {
    pub iteration: u32,
    attempt: u32,
    session: SessionNo,
}

/// How a turn begins.
#[derive(Debug)]
pub(super) enum Begin {
    /// With a process of its own, in the conversation that is named or a fresh one.
    Launch { resume: Option<String> },
    /// In the process that is up.
    Prompt,
}

const ITERATION: &str = "TACHIKOMA_ITERATION";
const ATTEMPT: &str = "TACHIKOMA_ATTEMPT";

/// What an agent may want to know about its turn, and where its loop is. A process that lives for a whole session cannot be told
/// the numbers of its later turns, so it gets none.
fn turn_variables(turn: Ordered, one_turn: bool, working_dir: &Path) -> Vec<(OsString, OsString)> {
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

/// Returns the `PATH` in which an agent finds `tachikoma` too, behind everything that is the user's; none where it is
/// found already. Without a `PATH` the system has its own, and that is not replaced.
pub(super) fn with_ourselves(
    path: Option<&OsString>,
    program: Option<&OsString>,
) -> Option<OsString> {
    let path = path.filter(|path| !path.is_empty())?;
    let program = Path::new(program?);
    let dir = program.parent().filter(|dir| dir.is_absolute())?;
    if program.file_name()? != "tachikoma"
        || std::env::split_paths(path).any(|known| known.as_path() == dir)
    {
        return None;
    }
    let all = std::env::split_paths(path).chain([dir.to_owned()]);
    // A directory with a colon in its name cannot be said.
    std::env::join_paths(all).ok()
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
        return match is_executable(&path) {
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
        .any(|place| is_executable(place).unwrap_or(false))
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
