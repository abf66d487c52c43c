//! What the operator asks of the runner besides commands: answers, words to the agent, other settings.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tachikoma_core::{
    Answer, Choice, EditedPrompt, HookPoint, Input, Launch, LoopEvent, OperatorEvent,
    OperatorRequest, PromptSource, Record,
};
use tokio::sync::oneshot;

use super::keep::set_keep_rules;
use super::{LoopRunner, patterns};
use crate::error::chain;
use crate::prompt;
use crate::settings::Settings;
use crate::store::{loops, prompts};

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Answer {
        id: Option<u32>,
        choice: Choice,
        prompt_file: Option<PathBuf>,
    },
    Hold {
        id: u32,
        writing: bool,
    },
    Attend {
        on: bool,
    },
    Tell {
        text: String,
    },
    Reload,
}

impl LoopRunner {
    /// Says how the settings are read again. Without, `reload` is refused.
    pub fn reads_settings_with(&mut self, reader: Reader) {
        self.reader = Some(reader);
    }

    pub(super) fn operator_asks(
        &mut self,
        asked: Asked,
        reply: oneshot::Sender<Answer>,
    ) -> Option<Input> {
        let wish = match asked {
            Asked::Answer {
                id,
                choice,
                prompt_file,
            } => {
                // Nothing is kept for an answer that is none.
                let judged = self.state.answerable(id, choice, prompt_file.is_some());
                judged.map(drop).and_then(|()| {
                    let prompt = prompt_file.map(|path| self.keep_prompt(&path));
                    let prompt = prompt.transpose()?;
                    Ok(OperatorRequest::Answer { id, choice, prompt })
                })
            }
            Asked::Hold { id, writing } => Ok(OperatorRequest::Hold { id, writing }),
            Asked::Attend { on } => Ok(OperatorRequest::Attend { on }),
            Asked::Tell { text } => Ok(OperatorRequest::Tell { text }),
            Asked::Reload => {
                self.reread(reply);
                return None;
            }
        };
        match wish {
            Ok(wish) => {
                let ticket = self.ticket(reply);
                Some(Input::OperatorRequest { ticket, wish })
            }
            Err(reason) => {
                let current = self.state.public();
                // Whoever asked may have gone.
                let _ = reply.send(Answer::Refused { current, reason });
                None
            }
        }
    }

    fn loop_dir(&self) -> PathBuf {
        let root = self.config.store_root(self.state.loop_id);
        loops::dir(&root, self.state.loop_id)
    }

    /// Keeps a prompt before it is recorded: what the journal names must be there.
    fn keep_prompt(&self, path: &Path) -> Result<EditedPrompt, String> {
        let path = path.to_str().ok_or("the prompt's path is not UTF-8")?;
        let source = PromptSource::File {
            path: path.to_owned(),
        };
        let words = prompt::read(&source, &self.config.working_dir);
        let words = words.map_err(|error| chain(&error))?;
        prompts::keep(&self.loop_dir(), &words, &self.config.vault).map_err(|error| chain(&error))
    }

    /// Returns the words of the user: those of the prompt, or those that hold for this iteration alone.
    pub(super) fn own_words(&self) -> Result<String, String> {
        match &self.state.operator.prompt {
            None => prompt::read(&self.state.launch.prompt, &self.config.working_dir)
                .map_err(|error| chain(&error)),
            Some(edited) => {
                prompts::read(&self.loop_dir(), edited, &self.config.vault).map_err(|error| {
                    format!(
                        "the prompt that the operator wrote for this iteration is lost: {error}"
                    )
                })
            }
        }
    }

    /// Has hold what was read again, once it is recorded.
    pub(super) fn apply_reread(&mut self, records: &[Record]) {
        let reloaded = |record: &Record| {
            matches!(
                record.event,
                LoopEvent::Operator(OperatorEvent::Reloaded { .. })
            )
        };
        // A record of another input may come first: the clock may have jumped.
        if !records.iter().any(reloaded) {
            return;
        }
        let Some(settings) = self.reread.take() else {
            return;
        };
        self.config.settings = settings;
        self.config.launch = self.state.launch.clone();
        // Its next process is told whose the context is.
        if let Ok(agent) = self.config.agent() {
            self.agent = agent;
        }
        let keep = self
            .policy
            .autocommit
            .map(|keep| self.config.keep_rules(keep.repository));
        self.policy = self.config.policy(&self.agent);
        set_keep_rules(&mut self.policy, keep);
        self.policy.hooks = self.registry.limits(&self.config.settings);
        let limit = |point| self.registry.limit(point, &self.config.settings);
        self.policy.reboot.hooks_before = limit(HookPoint::BeforeReboot);
        self.policy.reboot.hooks_after = limit(HookPoint::AfterReboot);
        self.patterns = patterns::compiled(&self.config.settings.reboot.triggers.on_patterns);
        self.stop_patterns =
            patterns::compiled(&self.config.settings.stop_conditions.stop_on_patterns);
    }
}

/// Settings that were read again, and the launch that they come to.
#[derive(Clone, Debug)]
pub struct Reread {
    /// The settings.
    pub settings: Settings,
    /// What a run that begins now would be told to do.
    pub launch: Launch,
}

/// Reads the settings of the loop again. The library knows neither files nor variables.
#[derive(Clone)]
pub struct Reader(Arc<dyn Fn() -> Result<Reread, String> + Send + Sync>);

impl Reader {
    /// Makes one.
    pub fn new(read: impl Fn() -> Result<Reread, String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    pub(super) fn read(&self) -> Result<Reread, String> {
        (self.0)()
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reader")
    }
}
