//! Any program as an agent: it gets the prompt, and its exit code says whether the turn succeeded.

use std::ffi::OsString;

use crate::{Input, LaunchPlan, Turn};

/// An agent that is any program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandAgent {
    /// The program and its arguments; not empty.
    pub program: Vec<OsString>,
    /// How the program gets the prompt.
    pub prompt: PromptVia,
    /// Environment variables in addition to those of the runner.
    pub env: Vec<(OsString, OsString)>,
}

/// How a program gets its prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptVia {
    /// The prompt is written to standard input.
    Stdin,
    /// The prompt is the last argument. Standard input is empty.
    Argument,
}

impl CommandAgent {
    pub(crate) fn plan(&self, turn: &Turn<'_>) -> LaunchPlan {
        let mut words = self.program.iter().cloned();
        let program = words.next().unwrap_or_default();
        let mut args: Vec<OsString> = words.collect();
        let stdin = match self.prompt {
            PromptVia::Stdin => turn.prompt.to_owned(),
            PromptVia::Argument => {
                args.push(turn.prompt.into());
                String::new()
            }
        };
        LaunchPlan {
            program,
            args,
            env: self.env.clone(),
            env_remove: Vec::new(),
            input: Input::Whole(stdin),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prompt_goes_to_stdin_or_the_last_argument() {
        let agent = |prompt| CommandAgent {
            program: vec!["sh".into(), "-x".into()],
            prompt,
            env: vec![("A".into(), "b".into())],
        };
        let turn = Turn {
            prompt: "do it",
            ..Turn::default()
        };
        let plan = |args: &[&str], stdin: &str| LaunchPlan {
            program: "sh".into(),
            args: args.iter().map(Into::into).collect(),
            env: vec![("A".into(), "b".into())],
            env_remove: Vec::new(),
            input: Input::Whole(stdin.to_owned()),
        };
        assert_eq!(agent(PromptVia::Stdin).plan(&turn), plan(&["-x"], "do it"));
        assert_eq!(
            agent(PromptVia::Argument).plan(&turn),
            plan(&["-x", "do it"], "")
        );
    }
}
