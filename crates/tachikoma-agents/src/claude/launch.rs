//! How Claude Code is started, and what is written to its stdin. `docs/agents/claude-code.md` explains each argument and variable.

use std::ffi::OsString;

use serde_json::json;
use tachikoma_core::policy::AgentTraits;

use super::window;
use crate::{ARE_YOU_THERE, Input, LaunchPlan, Message, Turn, WHAT_COST};

/// Claude Code, configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaudeAgent {
    /// The program and the arguments before all others; not empty.
    pub program: Vec<OsString>,
    /// Arguments that the user configured.
    pub args: Vec<OsString>,
    /// Environment variables that the user configured.
    pub env: Vec<(OsString, OsString)>,
    /// The model, as the agent names it.
    pub model: Option<String>,
    /// What the agent may do without asking.
    pub permission: Permission,
    /// Commands that the agent may run with [`Permission::Safe`], each with any arguments.
    pub allow: Vec<String>,
    /// Whether the agent runs as root. As root, the agent rejects some options.
    pub root: bool,
    /// How long one process of the agent lives.
    pub lifetime: Lifetime,
    /// Whether Tachikoma manages the context, so that the agent must not compact it.
    pub context_is_managed: bool,
    /// The context window if the agent does not report it.
    pub window_tokens: Option<u64>,
}

/// What an agent may do without asking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Permission {
    /// The agent may change files in the work tree. Everything else that asks is denied.
    #[default]
    Safe,
    /// The agent may do everything without asking.
    Bypass,
}

impl Permission {
    /// Returns the word for it in the configuration.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Safe => "safe",
            Self::Bypass => "bypass",
        }
    }
}

/// Lifetime of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lifetime {
    /// A process lives as long as its conversation.
    #[default]
    Session,
    /// A process lives for one turn.
    Turn,
}

/// Commands of Tachikoma that the agent may always call.
const OWN_COMMANDS: [&str; 3] = [
    "Bash(tachikoma note:*)",
    "Bash(tachikoma done:*)",
    "Bash(tachikoma status:*)",
];

/// Tools that start a turn later, outside of an iteration. Changes of such a turn would be taken for changes of the user.
const SCHEDULING_TOOLS: [&str; 2] = ["CronCreate", "ScheduleWakeup"];

/// Variables that make the agent think that it is the child of another session.
const INHERITED: [&str; 5] = [
    "CLAUDECODE",
    "CLAUDE_CODE_ENTRYPOINT",
    "CLAUDE_CODE_SSE_PORT",
    "CLAUDE_CODE_SESSION_ID",
    "CLAUDE_CODE_RESUME_INTERRUPTED_TURN",
];

impl ClaudeAgent {
    pub(crate) fn traits(&self) -> AgentTraits {
        AgentTraits {
            event_stream: true,
            persistent: self.lifetime == Lifetime::Session,
            steerable: true,
            tells_cost: true,
            refuses_before: self
                .context_is_managed
                .then_some(window::REFUSAL_RESERVE_TOKENS),
        }
    }

    pub(crate) fn plan(&self, turn: &Turn<'_>) -> LaunchPlan {
        let mut words = self.program.iter().cloned();
        let program = words.next().unwrap_or_default();
        let mut args: Vec<OsString> = words.collect();
        args.extend(self.arguments(turn));
        let mut lines = vec![line(&Message::AreYouThere)];
        if !turn.prompt.is_empty() {
            lines.push(line(&turn.message()));
        }
        LaunchPlan {
            program,
            args,
            env: self.variables(),
            env_remove: INHERITED.iter().map(Into::into).collect(),
            input: Input::Lines(lines),
        }
    }

    fn arguments(&self, turn: &Turn<'_>) -> Vec<OsString> {
        let mut args: Vec<OsString> = [
            "-p",
            "--input-format",
            "stream-json",
            "--output-format",
            "stream-json",
            "--verbose",
            "--include-partial-messages",
        ]
        .iter()
        .map(Into::into)
        .collect();
        if let Some(model) = &self.model {
            args.extend(["--model".into(), model.into()]);
        }
        if let Some(conversation) = turn.conversation() {
            args.extend(["--resume".into(), conversation.into()]);
        }
        if let Some(usd) = turn.budget_usd {
            args.extend(["--max-budget-usd".into(), format!("{usd:.6}").into()]);
        }
        args.extend(self.args.iter().cloned());
        args.push("--disallowedTools".into());
        args.extend(SCHEDULING_TOOLS.map(Into::into));
        // This option comes last, because its list of tools includes all arguments after it.
        match self.permission {
            Permission::Bypass => args.push("--dangerously-skip-permissions".into()),
            Permission::Safe => {
                args.extend(["--permission-mode", "acceptEdits", "--allowedTools"].map(Into::into));
                args.extend(OWN_COMMANDS.map(Into::into));
                let allowed = self.allow.iter();
                args.extend(allowed.map(|command| format!("Bash({command}:*)").into()));
            }
        }
        args
    }

    fn variables(&self) -> Vec<(OsString, OsString)> {
        let own = self.own_variables().into_iter();
        own.map(|(name, value)| (name.into(), value.into()))
            .chain(self.env.iter().cloned())
            .collect()
    }

    /// Returns the variables that the user cannot override.
    #[must_use]
    pub fn own_variables(&self) -> Vec<(&'static str, &'static str)> {
        let mut own = vec![
            // A result ends a turn only if no background task runs.
            ("CLAUDE_CODE_DISABLE_BACKGROUND_TASKS", "1"),
            // An update during the run would change the agent.
            ("DISABLE_AUTOUPDATER", "1"),
        ];
        if self.context_is_managed {
            own.push(("DISABLE_AUTO_COMPACT", "1"));
        }
        if self.root && self.permission == Permission::Bypass {
            own.push(("IS_SANDBOX", "1"));
        }
        own
    }
}

/// Returns a message to Claude Code as one line for its stdin: a JSON object. Other text would end the process.
#[must_use]
pub fn line(message: &Message<'_>) -> String {
    let value = match message {
        // During a turn the agent reads the message after the running tool call.
        Message::Prompt { text: prompt, .. } | Message::Aside(prompt) => json!({
            "type": "user",
            "message": { "role": "user", "content": prompt },
        }),
        Message::Interrupt => request("interrupt", &json!({ "subtype": "interrupt" })),
        // The agent answers without a request to the model. The answer contains the size of the context window.
        Message::AreYouThere => request(
            ARE_YOU_THERE,
            &json!({ "subtype": "get_context_usage", "detail": "summary" }),
        ),
        // The agent answers at once, even during a turn. Older versions answer with an error.
        Message::WhatCost => request(WHAT_COST, &json!({ "subtype": "get_session_cost" })),
    };
    let mut line = value.to_string();
    line.push('\n');
    line
}

fn request(id: &str, request: &serde_json::Value) -> serde_json::Value {
    json!({ "type": "control_request", "request_id": id, "request": request })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent() -> ClaudeAgent {
        ClaudeAgent {
            program: vec!["claude".into()],
            args: vec!["--add-dir".into(), "../lib".into()],
            env: vec![("A".into(), "b".into())],
            model: Some("claude-sonnet-4-5".to_owned()),
            permission: Permission::Safe,
            allow: vec!["cargo test".to_owned()],
            root: true,
            lifetime: Lifetime::Session,
            context_is_managed: true,
            window_tokens: None,
        }
    }

    fn shown(agent: &ClaudeAgent, turn: &Turn<'_>) -> String {
        let plan = agent.plan(turn);
        let words = |list: &[OsString]| -> Vec<String> {
            list.iter()
                .map(|w| w.to_string_lossy().into_owned())
                .collect()
        };
        let env: Vec<String> = plan
            .env
            .iter()
            .map(|(k, v)| format!("{}={}", k.to_string_lossy(), v.to_string_lossy()))
            .collect();
        let Input::Lines(lines) = plan.input else {
            panic!("the agent reads lines from stdin")
        };
        format!(
            "{}\n{} {}\n{}",
            env.join(" "),
            plan.program.to_string_lossy(),
            words(&plan.args).join(" "),
            lines.concat().trim_end()
        )
    }

    // The work of sub-agents has to be complete when the turn ends, so background tasks are switched off.
    #[test]
    fn launch_arguments_and_environment_follow_the_settings() {
        let turn = Turn {
            prompt: "do it",
            ..Turn::default()
        };
        insta::assert_snapshot!(shown(&agent(), &turn), @r#"
        CLAUDE_CODE_DISABLE_BACKGROUND_TASKS=1 DISABLE_AUTOUPDATER=1 DISABLE_AUTO_COMPACT=1 A=b
        claude -p --input-format stream-json --output-format stream-json --verbose --include-partial-messages --model claude-sonnet-4-5 --add-dir ../lib --disallowedTools CronCreate ScheduleWakeup --permission-mode acceptEdits --allowedTools Bash(tachikoma note:*) Bash(tachikoma done:*) Bash(tachikoma status:*) Bash(cargo test:*)
        {"request":{"detail":"summary","subtype":"get_context_usage"},"request_id":"are-you-there","type":"control_request"}
        {"message":{"content":"do it","role":"user"},"type":"user"}
        "#);
        let bypassing = ClaudeAgent {
            permission: Permission::Bypass,
            context_is_managed: false,
            ..agent()
        };
        let opened = Turn {
            prompt: "",
            resume: Some("c1"),
            budget_usd: Some(0.25),
            ..Turn::default()
        };
        insta::assert_snapshot!(shown(&bypassing, &opened), @r#"
        CLAUDE_CODE_DISABLE_BACKGROUND_TASKS=1 DISABLE_AUTOUPDATER=1 IS_SANDBOX=1 A=b
        claude -p --input-format stream-json --output-format stream-json --verbose --include-partial-messages --model claude-sonnet-4-5 --resume c1 --max-budget-usd 0.250000 --add-dir ../lib --disallowedTools CronCreate ScheduleWakeup --dangerously-skip-permissions
        {"request":{"detail":"summary","subtype":"get_context_usage"},"request_id":"are-you-there","type":"control_request"}
        "#);
    }

    #[test]
    fn a_hostile_session_id_does_not_become_an_argument() {
        for id in [
            "",
            "--dangerously-skip-permissions",
            "-c",
            "a b",
            "../x",
            "a\n",
            &"a".repeat(129),
        ] {
            let turn = Turn {
                resume: Some(id),
                ..Turn::default()
            };
            let args = agent().arguments(&turn);
            assert!(!args.contains(&"--resume".into()), "{args:?}");
        }
    }

    #[test]
    fn agent_refuses_prompts_only_if_compaction_is_off() {
        assert_eq!(agent().traits().refuses_before, Some(23_000));
        let compacting = ClaudeAgent {
            context_is_managed: false,
            ..agent()
        };
        assert_eq!(compacting.traits().refuses_before, None);
    }

    #[test]
    fn every_message_is_one_line() {
        let prompt = "two\nlines, \"quotes\", \u{2028} and \0";
        for message in [
            Message::Prompt {
                text: prompt,
                iteration: None,
            },
            Message::Aside(prompt),
            Message::Interrupt,
            Message::AreYouThere,
            Message::WhatCost,
        ] {
            let line = line(&message);
            assert_eq!(line.matches('\n').count(), 1, "{line}");
            let value: serde_json::Value = serde_json::from_str(&line).expect("it is JSON");
            if let Message::Prompt { .. } | Message::Aside(_) = message {
                assert_eq!(value["message"]["content"], prompt);
            }
        }
    }
}
