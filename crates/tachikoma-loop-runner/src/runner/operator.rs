//! Turns requests of callers into inputs of the core.

use std::path::Path;

use tachikoma_core::{
    EditedPrompt, Input, LoopCommand, OperatorRequest, PromptSource, Ticket, Urgency,
};

use super::context::Context;
use crate::process::{CallerRole, Hooks};
use crate::prompt;
use crate::request::ControlRequest;
use crate::store::prompts;
use tachikoma_core::error_chain as chain;

/// Returns the input for a request that the core answers under `ticket`.
///
/// # Errors
/// The request is refused, with the reason.
pub(super) fn input(
    context: Context<'_>,
    request: ControlRequest,
    caller: CallerRole,
    ticket: Ticket,
) -> Result<Input, String> {
    let request = match request {
        // A stop by a blocking hook: the loop waits for the hook, so the stop is recorded and takes effect after the hook.
        ControlRequest::Command {
            command: LoopCommand::Stop(Urgency::Graceful),
        } if caller == CallerRole::Hook(Hooks::Blocking) => OperatorRequest::StopAfterHooks,
        ControlRequest::Command { command } => return Ok(Input::Command { ticket, command }),
        ControlRequest::Set { key, value } => {
            return Ok(Input::CustomSet { ticket, key, value });
        }
        ControlRequest::Note { text } => {
            return Ok(Input::Note {
                ticket,
                text,
                tell: false,
                operator: caller.may_control(),
            });
        }
        ControlRequest::Done { reason } => {
            return Ok(Input::CompletionClaimed { ticket, reason });
        }
        ControlRequest::Answer {
            id,
            choice,
            prompt_file,
        } => {
            // The answer is checked first, so that no prompt is stored for a refused answer.
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
        ControlRequest::Status | ControlRequest::Follow { .. } | ControlRequest::Reload => {
            return Err("the core does not answer this".to_owned());
        }
    };
    Ok(Input::OperatorRequest { ticket, request })
}

/// Stores an edited prompt in a file. The journal only records the name of the file.
fn store_prompt(context: Context<'_>, path: &Path) -> Result<EditedPrompt, String> {
    let path = path.to_str().ok_or("the prompt's path is not UTF-8")?;
    let source = PromptSource::File {
        path: path.to_owned(),
    };
    let text = prompt::read(&source, &context.config.working_dir);
    let text = text.map_err(|error| chain(&error))?;
    prompts::write(&context.loop_dir(), &text, &context.config.encryption)
        .map_err(|error| chain(&error))
}
