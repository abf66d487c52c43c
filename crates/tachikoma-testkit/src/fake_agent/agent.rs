//! A process of the fake agent: reads prompts, plays turns, prints results, and misbehaves as configured.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use signal_hook::consts::SIGINT;

use super::args::Args;
use super::inbox::{Inbox, News};
use super::sessions::{Session, State, new_uuid};
use super::{AgentEnvironment, Ignored, Misbehavior, events, silence, tools};
use crate::scenario::Scenario;

const MODEL: &str = "claude-sonnet-4-5";

/// Exit code of a process that is ended by SIGTERM.
const TERMINATED: u8 = 143;

/// Why a turn or the process ends.
#[derive(Debug)]
pub(super) enum Break {
    /// The agent got the interrupt message of the protocol: the turn ends.
    Interrupted,
    /// The agent got SIGINT: the turn ends, then the process.
    Signalled,
    /// The process ends with this exit code.
    Exit(u8),
    /// The process ends with this error message.
    Failed(String),
}

impl From<String> for Break {
    fn from(error: String) -> Self {
        Self::Failed(error)
    }
}

/// State of the fake agent in its own process.
#[derive(Debug)]
pub(super) struct Agent {
    pub(super) args: Args,
    pub(super) scenario: Scenario,
    pub(super) session: Session,
    pub(super) state: State,
    pub(super) model: String,
    /// Number of turns that this process has played, if no state is stored.
    pub(super) played: usize,
    pub(super) results: u64,
    pub(super) last_failed: bool,
    /// The cost of this process in millionths of a dollar.
    pub(super) spent_microusd: u64,
    wrong: Misbehavior,
    inbox: Inbox,
    prompts: VecDeque<String>,
    input_open: bool,
    lines: u64,
    printing: bool,
    resumed_unknown: bool,
}

impl Agent {
    pub(super) fn start(
        args: Args,
        scenario: Scenario,
        environment: &AgentEnvironment,
    ) -> Result<Self, String> {
        let state = State::open(environment.state.as_deref())?;
        let start = state.count("starts")?.unwrap_or(0);
        let behavior = &scenario.agent;
        let wrong = behavior.starts.get(start).unwrap_or(&behavior.always);
        let wrong = wrong.clone();
        let mut resumed_unknown = false;
        let mut session = Session::default();
        if let Some(id) = &args.resume {
            match state.session(id) {
                Some(known) => session = known,
                None => resumed_unknown = environment.replay.is_none(),
            }
            session.id.clone_from(id);
        } else if let Some(id) = &args.session_id {
            if state.session(id).is_some() {
                return Err(format!("Error: Session ID {id} is already in use."));
            }
            session.id.clone_from(id);
        }
        if session.id.is_empty() || args.fork {
            session.id = new_uuid();
        }
        if let Some(id) = &wrong.session_id {
            session.id.clone_from(id);
        }
        let inbox = Inbox::open(args.json_in)?;
        if let Some(marker) = &wrong.escaping_child {
            tools::leave_child(marker, wrong.child_without_env)?;
        }
        Ok(Self {
            model: args.model.clone().unwrap_or_else(|| MODEL.into()),
            input_open: args.json_in,
            args,
            scenario,
            session,
            state,
            played: 0,
            results: 0,
            last_failed: false,
            spent_microusd: 0,
            wrong,
            inbox,
            prompts: VecDeque::new(),
            lines: 0,
            printing: true,
            resumed_unknown,
        })
    }

    /// Prints the configured last message to stderr, if there is one.
    #[expect(clippy::print_stderr, reason = "it is asked to")]
    pub(super) fn complain(&self) {
        if let Some(words) = &self.wrong.last_words {
            eprintln!("{words}");
        }
    }

    /// Returns whether the budget of the process is spent.
    pub(super) fn is_out_of_budget(&self) -> bool {
        let budget = self.args.budget_microusd.filter(|_| !self.wrong.overspends);
        budget.is_some_and(|budget| self.spent_microusd >= budget)
    }

    /// Returns the version that the agent reports.
    pub(super) fn version(&self) -> &str {
        self.wrong.version.as_deref().unwrap_or(events::VERSION)
    }

    /// Answers prompts until there are no more.
    pub(super) fn live(&mut self) -> Result<(), Break> {
        if self.wrong.hang_at_start {
            self.printing = false;
            return self.hang();
        }
        if self.resumed_unknown {
            let id = self.session.id.clone();
            self.print(events::unknown_session(&id))?;
            return Err(Break::Exit(1));
        }
        while let Some(prompt) = self.next_prompt()? {
            match self.answer(prompt) {
                Err(Break::Interrupted) => {}
                answered => answered?,
            }
        }
        self.end()
    }

    /// Ends the process normally.
    pub(super) fn end(&mut self) -> Result<(), Break> {
        if self.wrong.hang_after_result {
            return self.hang();
        }
        Ok(())
    }

    /// Returns the next prompt; `None` if there are no more.
    pub(super) fn next_prompt(&mut self) -> Result<Option<String>, Break> {
        if !self.args.json_in {
            // There is only one prompt: the argument, or all of stdin.
            if self.results > 0 {
                return Ok(None);
            }
            if let Some(prompt) = &self.args.prompt {
                return Ok(Some(prompt.clone()));
            }
            let mut prompt = String::new();
            let read = io::stdin().read_to_string(&mut prompt);
            read.map_err(|error| format!("read standard input: {error}"))?;
            if prompt.trim().is_empty() {
                let why = "Error: Input must be provided either through stdin or as a prompt";
                return Err(Break::Failed(why.into()));
            }
            return Ok(Some(prompt));
        }
        loop {
            if let Some(prompt) = self.prompts.pop_front() {
                return Ok(Some(prompt));
            }
            if !self.input_open {
                return Ok(None);
            }
            let news = self.inbox.next(None);
            match self.hear(news) {
                // No turn is running, so an interrupt has no effect.
                Err(Break::Interrupted) => {}
                heard => heard?,
            }
        }
    }

    /// Returns whether a prompt waits to be read.
    pub(super) fn is_told(&self) -> bool {
        !self.prompts.is_empty()
    }

    /// Returns the prompts that arrived during a turn.
    pub(super) fn waiting_prompts(&mut self) -> Vec<String> {
        self.prompts.drain(..).collect()
    }

    /// Handles input for the given time.
    pub(super) fn pause(&mut self, time: Duration) -> Result<(), Break> {
        let deadline = Instant::now() + time;
        while let Some(news) = self.inbox.next(Some(deadline)) {
            self.hear(Some(news))?;
        }
        Ok(())
    }

    /// Hangs: handles input and does nothing else.
    pub(super) fn hang(&mut self) -> Result<(), Break> {
        if let Some(doing) = self.wrong.while_silent {
            silence::begin(doing).map_err(Break::Failed)?;
        }
        loop {
            let news = self.inbox.next(None);
            self.hear(news)?;
        }
    }

    fn hear(&mut self, news: Option<News>) -> Result<(), Break> {
        let ignored = |what| self.wrong.ignore.contains(&what);
        match news {
            None => Ok(()),
            Some(News::Eof) => {
                self.input_open = false;
                Ok(())
            }
            Some(News::Signal(SIGINT)) if ignored(Ignored::Sigint) => Ok(()),
            Some(News::Signal(SIGINT)) => Err(Break::Signalled),
            Some(News::Signal(_)) if ignored(Ignored::Sigterm) => Ok(()),
            Some(News::Signal(_)) => Err(Break::Exit(TERMINATED)),
            Some(News::Line(line)) if line.trim().is_empty() => Ok(()),
            Some(News::Line(line)) => self.hear_line(&line),
        }
    }

    fn hear_line(&mut self, line: &str) -> Result<(), Break> {
        let Ok(line) = serde_json::from_str::<Value>(line) else {
            let why = format!("Error parsing streaming input line: {line}");
            return Err(Break::Failed(why));
        };
        match line["type"].as_str() {
            Some("user") => {
                self.prompts.push_back(text_of(&line["message"]["content"]));
                Ok(())
            }
            Some("control_request") => self.control(&line),
            _ => Ok(()),
        }
    }

    fn control(&mut self, request: &Value) -> Result<(), Break> {
        let id = &request["request_id"];
        let word = request["request"]["subtype"].as_str().unwrap_or_default();
        if word == "interrupt" {
            stamp(word)?;
        }
        let answer = match word {
            "interrupt" if self.wrong.ignore.contains(&Ignored::Interrupt) => return Ok(()),
            "interrupt" => json!({"still_queued": []}),
            "get_context_usage" => {
                events::context_usage(&self.session.context, self.scenario.agent.window)
            }
            "get_session_cost" if !self.wrong.tells_no_cost => {
                events::session_cost(self.session.cost_usd)
            }
            "initialize" => json!({"commands": [], "output_style": "default", "models": []}),
            "set_model" => {
                let model = request["request"]["model"].as_str().unwrap_or(MODEL);
                self.model = model.to_owned();
                json!({"model": model})
            }
            "set_permission_mode" => json!({"mode": request["request"]["mode"]}),
            _ => {
                let error = format!("Unsupported control request subtype: {word}");
                let response = json!({"subtype": "error", "request_id": id, "error": error});
                let line = json!({"type": "control_response", "response": response});
                return self.print_as_is(&line);
            }
        };
        let response = json!({"subtype": "success", "request_id": id, "response": answer});
        self.print_as_is(&json!({"type": "control_response", "response": response}))?;
        if word == "interrupt" {
            return Err(Break::Interrupted);
        }
        Ok(())
    }

    /// Prints a line of the session.
    pub(super) fn print(&mut self, line: Value) -> Result<(), Break> {
        let line = events::signed(line, &self.session.id);
        self.print_as_is(&line)
    }

    /// Prints a result, twice if that is configured.
    pub(super) fn print_result(&mut self, line: Value) -> Result<(), Break> {
        self.last_failed = line["is_error"] == true;
        self.results += 1;
        if self.wrong.second_result {
            self.print(line.clone())?;
        }
        self.print(line)?;
        self.result_is_out()
    }

    /// Exits after a result if that is configured.
    pub(super) fn result_is_out(&self) -> Result<(), Break> {
        match self.wrong.die_after_results {
            Some(results) if self.results >= results => Err(Break::Exit(self.wrong.exit_code)),
            _ => Ok(()),
        }
    }

    pub(super) fn print_as_is(&mut self, line: &Value) -> Result<(), Break> {
        self.print_text(&line.to_string())
    }

    /// Prints a line, or misbehaves instead.
    pub(super) fn print_text(&mut self, line: &str) -> Result<(), Break> {
        self.lines += 1;
        let now = Some(self.lines);
        if self.wrong.exit_at_line == now {
            return Err(Break::Exit(self.wrong.exit_code));
        }
        if self.wrong.close_stdout_at_line == now {
            close_stdout()?;
            self.printing = false;
        }
        if self.wrong.garbage_before_line == now {
            self.write(b"warning: this is not JSON {\n\xff\xfe\x00 nor is this text\n")?;
        }
        if let Some(bytes) = self.wrong.huge_line_bytes
            && self.lines == 2
        {
            let filler = json!({"type": "system", "subtype": "filler", "text": "x".repeat(bytes)});
            self.write(format!("{filler}\n").as_bytes())?;
        }
        self.write(format!("{line}\n").as_bytes())?;
        if self.wrong.silent_after_line == now {
            return self.hang();
        }
        Ok(())
    }

    fn write(&self, bytes: &[u8]) -> Result<(), Break> {
        if !self.printing {
            return Ok(());
        }
        let mut stdout = io::stdout().lock();
        match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
            Ok(()) => Ok(()),
            // The real agent continues when its output is closed.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            Err(error) => Err(Break::Failed(format!("print: {error}"))),
        }
    }
}

/// Records the time of an event in the stamps file, if one is configured.
pub(super) fn stamp(what: &str) -> Result<(), String> {
    let Some(file) = std::env::var_os(super::STAMPS_VAR) else {
        return Ok(());
    };
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let nanos = since.unwrap_or_default().as_nanos();
    let file = File::options().create(true).append(true).open(file);
    file.and_then(|mut file| writeln!(file, "{what} {nanos}"))
        .map_err(|error| format!("write the stamps: {error}"))
}

/// Closes stdout. Later lines are dropped.
fn close_stdout() -> Result<(), String> {
    let nowhere = Path::new("/dev/null");
    let failed = |error: io::Error| format!("close standard output: {error}");
    let nowhere = File::options().write(true).open(nowhere).map_err(failed)?;
    rustix::stdio::dup2_stdout(&nowhere).map_err(|error| failed(error.into()))
}

/// Returns the text of a prompt, which is a string or a list of blocks.
fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        blocks => {
            let texts = blocks.as_array().into_iter().flatten();
            let texts: Vec<&str> = texts.filter_map(|block| block["text"].as_str()).collect();
            texts.join("\n")
        }
    }
}
