//! What the operator asks of the loop besides commands: answers to questions, words to the agent, attended mode.

use std::path::Path;

use tachikoma_core::{EditedPrompt, OperatorRequest, PromptSource};

use super::context::Context;
use crate::handle::ControlRequest;
use crate::prompt;
use crate::store::prompts;
use tachikoma_core::error_chain as chain;

/// Returns what the core has to decide about a request; `None` for a reload, which reads the settings first.
///
/// # Errors
/// The request is refused, with the reason.
pub(super) fn wish(
    context: Context<'_>,
    request: ControlRequest,
) -> Result<Option<OperatorRequest>, String> {
    Ok(Some(match request {
        ControlRequest::Answer {
            id,
            choice,
            prompt_file,
        } => {
            // Checked first, so that no prompt is stored for an answer that is refused.
            context
                .state
                .answerable(id, choice, prompt_file.is_some())?;
            let prompt = prompt_file.map(|path| store_prompt(context, &path));
            let prompt = prompt.transpose()?;
            OperatorRequest::Answer { id, choice, prompt }
        }
        ControlRequest::Hold { id, writing } => OperatorRequest::Hold { id, writing },
        ControlRequest::Attend { on } => OperatorRequest::Attend { on },
        ControlRequest::Tell { text } => OperatorRequest::Tell { text },
        ControlRequest::Reload => return Ok(None),
    }))
}

/// Stores a prompt before it is recorded: the journal names it by its file.
fn store_prompt(context: Context<'_>, path: &Path) -> Result<EditedPrompt, String> {
    let path = path.to_str().ok_or("the prompt's path is not UTF-8")?;
    let source = PromptSource::File {
        path: path.to_owned(),
    };
    let words = prompt::read(&source, &context.config.working_dir);
    let words = words.map_err(|error| chain(&error))?;
    prompts::keep(&context.loop_dir(), &words, &context.config.vault).map_err(|error| chain(&error))
}
