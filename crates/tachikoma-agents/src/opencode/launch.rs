//! How OpenCode is started. `docs/opencode.md` explains each argument and variable.

use std::ffi::OsString;

use tachikoma_core::policy::AgentTraits;

use super::{own, permission};
use crate::{Input, LaunchPlan, Lifetime, Message, Permission, Turn};

/// OpenCode, configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenCodeAgent {
    /// How the runner reaches OpenCode.
    pub way: Way,
    /// Environment variables that the user configured.
    pub env: Vec<(OsString, OsString)>,
    /// The model, as `provider/model`.
    pub model: Option<String>,
    /// What the agent may do without asking.
    pub permission: Permission,
    /// Commands that the agent may run with [`Permission::Safe`], each with any arguments.
    pub allow: Vec<String>,
    /// Whether Tachikoma manages the context, so that the agent must not compact it.
    pub context_is_managed: bool,
    /// The context window if the server does not report it.
    pub window_tokens: Option<u64>,
}

/// The connection to OpenCode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// The runner uses a server through our own bridge.
    Server {
        /// The program of the bridge, with its first arguments; not empty.
        bridge: Vec<OsString>,
        /// Address of the server, or the directory of its supervisor.
        at: ServerAt,
        /// The working directory of the conversation.
        directory: OsString,
        /// How long one bridge process lives.
        lifetime: Lifetime,
    },
    /// The runner starts `opencode run` for each turn, without a server.
    Once {
        /// The program and the arguments before all others; not empty.
        program: Vec<OsString>,
        /// Arguments that the user configured.
        args: Vec<OsString>,
    },
}

/// The server to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAt {
    /// A server that the user runs.
    Url(String),
    /// A supervised server. A file in this directory has its address.
    Supervised(OsString),
}

impl OpenCodeAgent {
    pub(crate) fn traits(&self) -> AgentTraits {
        let (persistent, steerable) = match &self.way {
            Way::Server { lifetime, .. } => (*lifetime == Lifetime::Session, true),
            Way::Once { .. } => (false, false),
        };
        AgentTraits {
            event_stream: true,
            persistent,
            steerable,
            refuses_before: None,
            tells_cost: true,
        }
    }

    /// Returns the line to write to the agent's standard input; `None` for `opencode run`, which reads only its prompt.
    pub(crate) fn line(&self, message: &Message<'_>) -> Option<String> {
        match &self.way {
            Way::Server { .. } => Some(own::line(message)),
            Way::Once { .. } => None,
        }
    }

    pub(crate) fn plan(&self, turn: &Turn<'_>) -> LaunchPlan {
        let (words, own, input) = match &self.way {
            Way::Server {
                bridge,
                at,
                directory,
                ..
            } => {
                let mut lines = vec![own::line(&Message::AreYouThere)];
                if !turn.prompt.is_empty() {
                    lines.push(own::line(&turn.message()));
                }
                let own = self.bridge_arguments(at, directory, turn);
                (bridge, own, Input::Lines(lines))
            }
            Way::Once { program, args } => {
                let mut own = self.run_arguments(turn);
                own.extend(args.iter().cloned());
                (program, own, Input::Whole(turn.prompt.to_owned()))
            }
        };
        let mut words = words.iter().cloned();
        let program = words.next().unwrap_or_default();
        LaunchPlan {
            program,
            args: words.chain(own).collect(),
            env: self.variables(),
            env_remove: Vec::new(),
            input,
        }
    }

    fn bridge_arguments(
        &self,
        at: &ServerAt,
        directory: &OsString,
        turn: &Turn<'_>,
    ) -> Vec<OsString> {
        let mut args: Vec<OsString> = match at {
            ServerAt::Url(url) => vec!["--url".into(), url.into()],
            ServerAt::Supervised(dir) => vec!["--supervised".into(), dir.clone()],
        };
        args.extend(["--directory".into(), directory.clone()]);
        args.extend(["--permission".into(), self.permission.word().into()]);
        for command in &self.allow {
            args.extend(["--allow".into(), command.into()]);
        }
        if let Some(model) = &self.model {
            args.extend(["--model".into(), model.into()]);
        }
        if let Some(conversation) = turn.conversation() {
            args.extend(["--resume".into(), conversation.into()]);
        }
        if self.context_is_managed {
            args.push("--managed".into());
        }
        args
    }

    fn run_arguments(&self, turn: &Turn<'_>) -> Vec<OsString> {
        let mut args: Vec<OsString> = ["run", "--format", "json"].map(Into::into).into();
        if let Some(model) = &self.model {
            args.extend(["--model".into(), model.into()]);
        }
        if let Some(conversation) = turn.conversation() {
            args.extend(["--session".into(), conversation.into()]);
        }
        if self.permission == Permission::Bypass {
            args.push("--auto".into());
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
    pub fn own_variables(&self) -> Vec<(&'static str, String)> {
        match &self.way {
            // The bridge is not an agent. Its server got these variables when it was started.
            Way::Server { .. } => Vec::new(),
            Way::Once { .. } => {
                let mut own = server_variables(self.context_is_managed);
                let rules = permission::variable(self.permission, &self.allow);
                own.extend(rules.map(|rules| ("OPENCODE_PERMISSION", rules)));
                own
            }
        }
    }
}

/// Returns the variables for OpenCode, as a server or for a turn.
#[must_use]
pub fn server_variables(context_is_managed: bool) -> Vec<(&'static str, String)> {
    // An update during the run would change the agent.
    let mut own = vec![("OPENCODE_DISABLE_AUTOUPDATE", "1".to_owned())];
    if context_is_managed {
        own.push(("OPENCODE_DISABLE_AUTOCOMPACT", "1".to_owned()));
    }
    own
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(way: Way) -> OpenCodeAgent {
        OpenCodeAgent {
            way,
            env: vec![("A".into(), "b".into())],
            model: Some("fake/fake-1".to_owned()),
            permission: Permission::Safe,
            allow: vec!["cargo test".to_owned()],
            context_is_managed: true,
            window_tokens: None,
        }
    }

    fn served(at: ServerAt) -> OpenCodeAgent {
        agent(Way::Server {
            bridge: vec!["tachikoma".into(), "opencode-bridge".into()],
            at,
            directory: "/w".into(),
            lifetime: Lifetime::Session,
        })
    }

    fn shown(agent: &OpenCodeAgent, turn: &Turn<'_>) -> String {
        let plan = agent.plan(turn);
        let env: Vec<String> = plan
            .env
            .iter()
            .map(|(k, v)| format!("{}={}", k.to_string_lossy(), v.to_string_lossy()))
            .collect();
        let words: Vec<String> = std::iter::once(&plan.program)
            .chain(&plan.args)
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        let input = match plan.input {
            Input::Lines(lines) => lines.concat(),
            Input::Whole(text) => text,
        };
        format!(
            "{}\n{}\n{}",
            env.join(" "),
            words.join(" "),
            input.trim_end()
        )
    }

    #[test]
    fn launch_arguments_and_environment_follow_the_settings() {
        let first = Turn {
            prompt: "do it",
            iteration: Some(3),
            ..Turn::default()
        };
        let later = Turn {
            resume: Some("ses_1"),
            ..Turn::default()
        };
        let attached = served(ServerAt::Url("http://127.0.0.1:4096".to_owned()));
        insta::assert_snapshot!(shown(&attached, &first), @r#"
    A=b
    tachikoma opencode-bridge --url http://127.0.0.1:4096 --directory /w --permission safe --allow cargo test --model fake/fake-1 --managed
    {"order":"are_you_there"}
    {"order":"prompt","text":"do it","iteration":3}
    "#);
        let supervised = OpenCodeAgent {
            permission: Permission::Bypass,
            context_is_managed: false,
            model: None,
            ..served(ServerAt::Supervised("/w/.ralph/opencode".into()))
        };
        insta::assert_snapshot!(shown(&supervised, &later), @r#"
    A=b
    tachikoma opencode-bridge --supervised /w/.ralph/opencode --directory /w --permission bypass --allow cargo test --resume ses_1
    {"order":"are_you_there"}
    "#);
        let once = agent(Way::Once {
            program: vec!["opencode".into()],
            args: vec!["--thinking".into()],
        });
        let again = Turn {
            resume: Some("ses_1"),
            ..first
        };
        insta::assert_snapshot!(shown(&once, &again), @r#"
        OPENCODE_DISABLE_AUTOUPDATE=1 OPENCODE_DISABLE_AUTOCOMPACT=1 OPENCODE_PERMISSION={"*":"deny","read":"allow","glob":"allow","grep":"allow","list":"allow","lsp":"allow","skill":"allow","todowrite":"allow","todoread":"allow","edit":{"*":"allow",".git":"deny",".git/*":"deny","*/.git/*":"deny"},"bash":{"*":"deny","tachikoma note *":"allow","tachikoma done":"allow","tachikoma done *":"allow","tachikoma status*":"allow","cargo test":"allow","cargo test *":"allow","*>*":"deny","*<*":"deny","*$*":"deny","*`*":"deny"}} A=b
        opencode run --format json --model fake/fake-1 --session ses_1 --thinking
        do it
        "#);
        let traits = (attached.traits(), once.traits());
        assert!(traits.0.persistent && traits.0.steerable);
        assert!(!traits.1.persistent && !traits.1.steerable);
    }
}
