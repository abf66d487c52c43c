//! What the operator asks of the runner besides commands: answers, words to the agent, other settings.

use std::path::{Path, PathBuf};

use tachikoma_core::{Answer, Choice, EditedPrompt, Input, PromptSource, Wish};
use tokio::sync::oneshot;

use super::LoopRunner;
use crate::error::chain;
use crate::prompt;
use crate::store::{loops, prompts};

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Answer {
        id: Option<u32>,
        choice: Choice,
        prompt_file: Option<PathBuf>,
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
                let prompt = prompt_file.map(|path| self.keep_prompt(&path));
                prompt
                    .transpose()
                    .map(|prompt| Wish::Answer { id, choice, prompt })
            }
            Asked::Attend { on } => Ok(Wish::Attend { on }),
            Asked::Tell { text } => Ok(Wish::Tell { text }),
            Asked::Reload => self.read_settings_again(),
        };
        match wish {
            Ok(wish) => {
                let ticket = self.ticket(reply);
                Some(Input::Operator { ticket, wish })
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
        prompts::keep(&self.loop_dir(), &words).map_err(|error| chain(&error))
    }

    /// Returns the words of the user: those of the prompt, or those that hold for this iteration alone.
    pub(super) fn own_words(&self) -> Result<String, String> {
        match &self.state.operator.prompt {
            None => prompt::read(&self.state.launch.prompt, &self.config.working_dir)
                .map_err(|error| chain(&error)),
            Some(edited) => prompts::read(&self.loop_dir(), edited).map_err(|error| {
                format!("the prompt that the operator wrote for this iteration is lost: {error}")
            }),
        }
    }

    fn read_settings_again(&self) -> Result<Wish, String> {
        Err("the configuration of this loop cannot be read again".to_owned())
    }
}
