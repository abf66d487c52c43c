//! One turn of the fake server: some tool calls, then a text.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Server;
use super::conversations::{TICK, now};

/// How long an aborted turn takes to end. In recordings of the real server it takes 120 to 740 ms.
const LINGERS: Duration = Duration::from_millis(200);

/// One step of a turn.
struct Step {
    message: String,
    parent: String,
    prompt: String,
    session: String,
}

impl Server {
    /// Works on a prompt until it is answered.
    pub(super) fn work(&self, session: &str, prompt: &str) {
        if self.misbehavior.skips_older_prompts && self.is_answered(session, prompt) {
            self.note("skipped", prompt);
            return self.conversations.release(session);
        }
        self.note("began", prompt);
        let busy = json!({"sessionID": session, "status": {"type": "busy"}});
        self.conversations.tell("session.status", &busy);
        let script = self.turn.clone();
        if script.child_asks {
            self.delegate(session);
        }
        for number in 0..script.tools {
            let step = self.step(session, prompt);
            let call = format!("call_{}_{number}", step.message);
            self.tool(&step, &call, "running", "");
            let said = self.run(session, script.command.as_deref());
            let Some(said) = said else {
                return self.aborted(&step, &call);
            };
            self.tool(&step, &call, "completed", &said);
            self.finish(&step, "tool-calls");
            if script.compacts {
                self.compact(session);
            }
        }
        let step = self.step(session, prompt);
        let part = json!({
            "type": "text", "text": script.text, "id": self.conversations.id("prt"),
            "messageID": step.message, "sessionID": session,
            "time": {"start": now(), "end": now()},
        });
        self.part(&step, &part);
        self.finish(&step, "stop");
        self.note("ended", prompt);
        self.conversations.release(session);
    }

    /// Returns whether an answer has an id after that of a prompt.
    fn is_answered(&self, session: &str, prompt: &str) -> bool {
        let said = self.conversations.messages(session);
        let mut answers = said.iter().filter(|m| m["info"]["role"] == "assistant");
        answers.any(|m| m["info"]["id"].as_str().is_some_and(|id| id > prompt))
    }

    /// Runs the command of a tool call and returns its output; `None` if the turn was aborted.
    fn run(&self, session: &str, command: Option<&str>) -> Option<String> {
        let mut tool = Command::new("sh");
        tool.args(["-c", command.unwrap_or(":")])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = tool.spawn().expect("a shell");
        loop {
            if self.conversations.is_stopping(session) {
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
            if child.try_wait().expect("a child").is_some() {
                break;
            }
            thread::park_timeout(TICK);
        }
        let output = child.wait_with_output().expect("a child");
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Lets a sub-agent request a permission, and waits for the answer.
    fn delegate(&self, session: &str) {
        let child = self.conversations.bear(session);
        if self.misbehavior.cuts_births {
            self.conversations.hang_up();
        } else {
            let info = json!({"id": child, "parentID": session});
            let born = json!({"sessionID": child, "info": info});
            self.conversations.tell("session.created", &born);
        }
        let question = self.conversations.ask(&child);
        let is_open = || {
            let asked = self.conversations.asked();
            let mut asked = asked.as_array().into_iter().flatten();
            asked.any(|asked| asked["id"] == *question)
        };
        while is_open() && !self.conversations.is_stopping(session) {
            thread::park_timeout(TICK);
        }
    }

    /// Replaces the messages by a summary, once per conversation, and continues.
    fn compact(&self, session: &str) {
        let known = self.conversations.messages(session);
        if known.iter().any(|m| m["info"]["summary"] == true) {
            return;
        }
        let user = |part: &Value| {
            let id = self.conversations.id("msg");
            let info =
                json!({"id": id, "role": "user", "sessionID": session, "time": {"created": now()}});
            let mut part = part.clone();
            part["id"] = self.conversations.id("prt").into();
            part["messageID"] = id.clone().into();
            part["sessionID"] = session.into();
            let message = json!({"info": info, "parts": [part]});
            self.conversations.put(session, message);
            let told = json!({"sessionID": session, "part": part});
            self.conversations.tell("message.part.updated", &told);
            id
        };
        let asked = user(&json!({"type": "compaction", "auto": true}));
        let step = self.step(session, &asked);
        self.put(&step, &json!({"summary": true}));
        let time = json!({"created": now(), "completed": now()});
        self.put(
            &step,
            &json!({"summary": true, "finish": "stop", "time": time}),
        );
        user(&json!({
            "type": "text", "text": "Continue if you have next steps, or stop and ask for clarification.",
            "synthetic": true, "metadata": {"compaction_continue": true},
            "time": {"start": now(), "end": now()},
        }));
        let compacted = json!({"sessionID": session});
        self.conversations.tell("session.compacted", &compacted);
    }

    /// Starts an answer to the last message.
    fn step(&self, session: &str, prompt: &str) -> Step {
        let said = self.conversations.messages(session);
        let last = said.iter().rfind(|m| m["info"]["role"] == "user");
        let parent = last.and_then(|m| m["info"]["id"].as_str());
        let step = Step {
            message: self.conversations.id("msg"),
            parent: parent.unwrap_or(prompt).to_owned(),
            prompt: prompt.to_owned(),
            session: session.to_owned(),
        };
        self.put(&step, &json!({}));
        step
    }

    fn put(&self, step: &Step, more: &Value) {
        let known = self.conversations.messages(&step.session);
        let known = known.iter().find(|m| m["info"]["id"] == *step.message);
        let parts = known.map_or(json!([]), |message| message["parts"].clone());
        let mut info = json!({
            "id": step.message, "role": "assistant", "parentID": step.parent, "sessionID": step.session,
            "providerID": "fake", "modelID": "fake-1", "time": {"created": now()},
        });
        for (name, value) in more.as_object().into_iter().flatten() {
            info[name] = value.clone();
        }
        let message = json!({"info": info, "parts": parts});
        self.conversations.put(&step.session, message);
    }

    fn part(&self, step: &Step, part: &Value) {
        let mut known = self.conversations.messages(&step.session);
        if let Some(message) = known.iter_mut().find(|m| m["info"]["id"] == *step.message) {
            let parts = message["parts"].as_array_mut().expect("a list");
            parts.retain(|known| known["id"] != part["id"]);
            parts.push(part.clone());
            self.conversations.put(&step.session, message.clone());
        }
        let part = json!({"sessionID": step.session, "part": part});
        self.conversations.tell("message.part.updated", &part);
    }

    fn tool(&self, step: &Step, call: &str, status: &str, output: &str) {
        let command = self.turn.command.clone().unwrap_or_default();
        let state = json!({"status": status, "input": {"command": command}, "output": output, "error": output});
        let part = json!({
            "type": "tool", "tool": "bash", "callID": call, "id": format!("prt_{call}"),
            "messageID": step.message, "sessionID": step.session, "state": state,
        });
        self.part(step, &part);
    }

    fn finish(&self, step: &Step, reason: &str) {
        let part = json!({
            "type": "step-finish", "id": self.conversations.id("prt"), "reason": reason, "cost": 0.001,
            "messageID": step.message, "sessionID": step.session, "tokens": {"total": self.turn.tokens},
        });
        self.part(step, &part);
        let time = json!({"created": now(), "completed": now()});
        self.put(step, &json!({"finish": reason, "time": time}));
    }

    /// Ends an aborted turn like the real server: sends an event at once, and another one when the tool has ended.
    fn aborted(&self, step: &Step, call: &str) {
        // This is recorded before the event, because a client may check the record at once.
        self.note("aborted", &step.prompt);
        let error = json!({"name": "MessageAbortedError", "data": {"message": "Aborted"}});
        let told = json!({"sessionID": step.session, "error": error});
        self.conversations.tell("session.error", &told);
        self.conversations.let_go(&step.session);
        let until = Instant::now() + LINGERS;
        while Instant::now() < until {
            thread::park_timeout(TICK);
        }
        self.tool(step, call, "error", "Tool execution aborted");
        let time = json!({"created": now(), "completed": now()});
        self.put(step, &json!({"error": error, "time": time}));
        self.conversations.is_over(&step.session);
    }

    /// Appends the result of a prompt to the file that tests read.
    pub(super) fn note(&self, what: &str, prompt: &str) {
        let Some(state) = &self.state else { return };
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(state.join("turns.jsonl"));
        let line = json!({"what": what, "prompt": prompt, "pid": std::process::id()});
        let mut file = file.expect("the state can be written");
        writeln!(file, "{line}").expect("the state can be written");
    }
}
