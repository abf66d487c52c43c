//! `tachikoma config`: shows every setting with its value and its origin.

use std::process::ExitCode;

use tachikoma_loop_runner::settings;

use crate::args::ConfigCommand;
use crate::failure::Failure;
use crate::out;
use crate::workspace::Workspace;

/// Runs the command.
pub fn config(workspace: &Workspace, command: &ConfigCommand) -> Result<ExitCode, Failure> {
    match command {
        ConfigCommand::Show => {
            let loaded = workspace.layers()?.load()?;
            for entry in loaded.entries() {
                let value = entry.value.unwrap_or_else(|| "(none)".to_owned());
                out::line(&format!("{} = {value}  # {}", entry.key, entry.origin));
            }
            warn_not_built(&loaded);
        }
        ConfigCommand::Check => {
            let loaded = workspace.layers()?.load()?;
            warn_not_built(&loaded);
            out::line("the configuration is valid");
        }
        ConfigCommand::Schema => {
            let schema = serde_json::to_string_pretty(&settings::schema());
            out::line(&schema.map_err(|error| Failure::new(error.to_string()))?);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints a warning about settings that are set but have no effect yet.
pub fn warn_not_built(loaded: &settings::Loaded) {
    for (key, origin) in loaded.not_built() {
        out::note(&format!(
            "note: `{key}` ({origin}) is accepted but has no effect yet"
        ));
    }
}
