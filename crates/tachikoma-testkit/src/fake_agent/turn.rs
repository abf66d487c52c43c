//! Handles one prompt, from its `init` line to its result.

use std::time::Duration;

use serde_json::{Value, json};

use super::agent::{self, Agent, Break};
use super::events::{self, ApiFailure, Sums};
use super::sessions::{cost, microusd, new_uuid, sum};
use super::tools::{self, Outcome};
use crate::model::message;
use crate::scenario::{Fault, ToolCall, Turn, Usage};

/// Interval at which a running tool is checked.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Number of retries of the real agent, unless `CLAUDE_CODE_MAX_RETRIES` is set.
const RETRIES_MAX: u64 = 10;

/// State of the current prompt.
#[derive(Debug, Default)]
struct Progress {
    /// The last text of the user, which is compared with the rules of the scenario.
    user_text: String,
    usage: Usage,
    num_turns: u64,
    retries: u64,
    /// Id of the running tool call; `None` if there is none.
    tool: Option<String>,
}

impl Agent {
    /// Answers a prompt.
    pub(super) fn answer(&mut self, prompt: String) -> Result<(), Break> {
        let cwd = std::env::current_dir().unwrap_or_default();
        self.session.prompts += 1;
        self.state.save(&self.session)?;
        self.state.note_prompt(&self.session.id, &prompt)?;
        let init = events::init(&self.model, &cwd.to_string_lossy(), self.version());
        self.print(init)?;
        let mut progress = Progress {
            user_text: prompt,
            ..Progress::default()
        };
        match self.play(&mut progress) {
            Err(broken @ (Break::Interrupted | Break::Signalled)) => {
                self.broken_off(&progress)?;
                Err(broken)
            }
            played => played,
        }
    }

    /// Plays turns of the scenario until one has no tool calls.
    fn play(&mut self, progress: &mut Progress) -> Result<(), Break> {
        loop {
            let mut turn = self.next_turn(&progress.user_text)?;
            turn.usage = turn.usage.settled(self.session.tool_results);
            self.pause(Duration::from_millis(turn.delay_ms))?;
            if let Some(fault) = turn.fault.clone() {
                if self.survives(&fault, &turn, progress)? {
                    continue;
                }
                return Ok(());
            }
            progress.num_turns += 1;
            let message_id = format!("msg_{}", new_uuid().replace('-', ""));
            self.say(&turn, &message_id)?;
            self.session.add(turn.usage);
            self.spent_microusd += microusd(cost(turn.usage));
            progress.usage = sum(progress.usage, turn.usage);
            self.state.save(&self.session)?;
            if self.is_out_of_budget() {
                return self.out_of_budget(progress);
            }
            if turn.tools.is_empty() {
                return self.succeed(&turn, progress);
            }
            for (index, tool) in turn.tools.iter().enumerate() {
                let id = message::tool_id(&message_id, index);
                progress.tool = Some(id.clone());
                let outcome = if tool.denied {
                    self.print(events::denied(&id, &tool.name))?;
                    Outcome::bad("This command requires approval")
                } else {
                    self.run_tool(tool)?
                };
                progress.tool = None;
                self.session.tool_results += 1;
                self.print(events::tool_result(&id, &outcome))?;
                agent::stamp("tool_result")?;
            }
            self.state.save(&self.session)?;
            // Messages that arrive during a tool call belong to this turn, as in the real agent.
            let said = self.waiting_prompts();
            progress.user_text = said.join("\n");
        }
    }

    fn next_turn(&mut self, user_text: &str) -> Result<Turn, Break> {
        if let Some(turn) = self.scenario.rule_for(user_text) {
            return Ok(turn);
        }
        let position = match self.state.count("turns")? {
            Some(position) => position,
            None => self.played,
        };
        self.played += 1;
        Ok(self.scenario.turn_at(position))
    }

    /// Prints the blocks of a turn, and their stream events before them if partial messages are enabled.
    fn say(&mut self, turn: &Turn, message_id: &str) -> Result<(), Break> {
        let pause = Duration::from_millis(turn.chunk_delay_ms);
        let mut blocks = message::blocks(turn, message_id).into_iter();
        for event in message::events(turn, message_id, &self.model.clone()) {
            if self.args.partial && event.name != "ping" {
                self.print(events::stream_event(&event.data, message_id))?;
            }
            match event.name {
                // An answer without delays is printed as a whole: an interrupt does not end it in the middle, so its usage is always reported.
                "content_block_delta" if !pause.is_zero() => self.pause(pause)?,
                "content_block_stop" => {
                    if let Some(block) = blocks.next() {
                        let model = self.model.clone();
                        let line = events::assistant(&block, message_id, &model, &turn.usage);
                        self.print(line)?;
                    }
                }
                _ => {}
            }
        }
        // The usage limits are printed after each response with rate-limit headers.
        if let Some(info) = events::rate_limit_info(turn) {
            self.print(json!({"type": "rate_limit_event", "rate_limit_info": info}))?;
        }
        Ok(())
    }

    fn run_tool(&mut self, tool: &ToolCall) -> Result<Outcome, Break> {
        self.pause(Duration::from_millis(tool.takes_ms))?;
        let outcome = match tools::start(tool) {
            Err(outcome) => outcome,
            Ok(mut running) => loop {
                if let Some(outcome) = running.outcome() {
                    break outcome;
                }
                self.pause(LOOK_EVERY)?;
            },
        };
        while tool.until_told && !self.is_told() {
            self.pause(LOOK_EVERY)?;
        }
        Ok(outcome)
    }

    fn sums<'a>(&'a self, progress: &'a Progress) -> Sums<'a> {
        Sums {
            session: &self.session,
            model: &self.model,
            window: self.scenario.agent.window,
            usage: &progress.usage,
            num_turns: progress.num_turns,
            result_index: self.results,
        }
    }

    fn succeed(&mut self, turn: &Turn, progress: &Progress) -> Result<(), Break> {
        let mut line = self.sums(progress).result("success", false, "completed");
        line["result"] = json!(turn.text.clone().unwrap_or_default());
        line["stop_reason"] = turn.stop_reason().into();
        self.print_result(line)
    }

    /// Ends a turn because the budget is spent. Its tool calls are not run.
    fn out_of_budget(&mut self, progress: &Progress) -> Result<(), Break> {
        let subtype = "error_max_budget_usd";
        let mut line = self
            .sums(progress)
            .result(subtype, true, "budget_exhausted");
        line["errors"] = json!(["Reached maximum budget"]);
        self.print_result(line)
    }

    /// Returns whether the agent retries after an API failure. If not, prints the result.
    fn survives(
        &mut self,
        fault: &Fault,
        turn: &Turn,
        progress: &mut Progress,
    ) -> Result<bool, Break> {
        let (status, error, message) = match fault {
            Fault::Pings { every_ms, .. } => loop {
                self.print(events::stream_event(&json!({"type": "ping"}), ""))?;
                self.pause(Duration::from_millis(*every_ms))?;
            },
            Fault::NoAnswer | Fault::Silence { .. } => {
                self.hang()?;
                return Ok(true);
            }
            Fault::Status {
                status,
                error,
                message,
            } => (Some(*status), error.clone(), message.clone()),
            Fault::Cut { .. }
            | Fault::ErrorEvent { .. }
            | Fault::Reset
            | Fault::Closed
            | Fault::EmptyStream
            | Fault::Html => (None, "connection_error".into(), String::new()),
        };
        let limit = events::rate_limit_info(turn).filter(|info| info["status"] == "rejected");
        let passes = limit.is_none() && matches!(status, None | Some(401 | 429 | 500..));
        let most = std::env::var("CLAUDE_CODE_MAX_RETRIES").ok();
        let most = most.and_then(|most| most.parse().ok());
        let most = most.unwrap_or(RETRIES_MAX);
        if passes && progress.retries < most {
            progress.retries += 1;
            let seconds = turn.headers.get("retry-after");
            let seconds: u64 = seconds.and_then(|text| text.parse().ok()).unwrap_or(0);
            self.print(events::api_retry(
                progress.retries,
                most,
                seconds * 1000,
                status,
            ))?;
            self.pause(Duration::from_secs(seconds))?;
            return Ok(true);
        }
        if let Some(info) = &limit {
            self.print(json!({"type": "rate_limit_event", "rate_limit_info": info}))?;
        }
        let failure = ApiFailure {
            status,
            error,
            message,
            limit,
        };
        self.print(failure.assistant())?;
        progress.num_turns += 1;
        let mut line = self.sums(progress).result("success", true, "api_error");
        line["result"] = failure.text().into();
        line["stop_reason"] = "stop_sequence".into();
        failure.mark(&mut line);
        self.print_result(line)?;
        Ok(false)
    }

    /// Prints the result of an interrupted turn.
    fn broken_off(&mut self, progress: &Progress) -> Result<(), Break> {
        if let Some(id) = &progress.tool {
            self.print(events::tool_rejected(id))?;
            self.session.tool_results += 1;
            self.state.save(&self.session)?;
        }
        let in_tool = progress.tool.is_some();
        self.print(events::interrupted(in_tool))?;
        let reason = if in_tool {
            "aborted_tools"
        } else {
            "aborted_streaming"
        };
        let sums = self.sums(progress);
        let mut line: Value = sums.result("error_during_execution", true, reason);
        line["errors"] = json!(["interrupted"]);
        self.print_result(line)
    }
}
