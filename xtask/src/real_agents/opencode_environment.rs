//! The environment in which OpenCode uses the scripted model.

use std::process::Command;

use serde_json::json;
use tachikoma_testkit::ScriptedModel;

use super::ground::Ground;

/// Name of the scripted model in OpenCode, and its context window in tokens.
pub const MODEL: &str = "fake/fake-1";
pub const WINDOW: u64 = 100_000;

/// Sets the agent's environment: the scripted model is the only one, and no request leaves the machine.
pub fn surround(command: &mut Command, ground: &Ground, model: &ScriptedModel) {
    let models =
        json!({"fake-1": {"name": "fake-1", "limit": {"context": WINDOW, "output": 8192}}});
    let options = json!({"baseURL": format!("{}/v1", model.url()), "apiKey": "dummy"});
    let provider = json!({
        "npm": "@ai-sdk/openai-compatible", "name": "fake", "options": options, "models": models,
    });
    let config = json!({
        "provider": {"fake": provider}, "enabled_providers": ["fake"], "model": MODEL, "small_model": MODEL,
    });
    let program = &ground.programs().opencode;
    command
        .env("OPENCODE_CONFIG_CONTENT", config.to_string())
        .env("OPENCODE_DISABLE_MODELS_FETCH", "1")
        .env("OPENCODE_DISABLE_LSP_DOWNLOAD", "1")
        .env("OPENCODE_DISABLE_DEFAULT_PLUGINS", "1")
        .env("OPENCODE_DISABLE_SHARE", "1")
        .env("TACHIKOMA_OPENCODE__SERVE_COMMAND", program)
        .env("TACHIKOMA_OPENCODE__RESTART_DELAY_MS", "0")
        .env("TACHIKOMA_AGENTS__OPENCODE__MODEL", MODEL)
        .env("TACHIKOMA_AGENTS__OPENCODE__PERMISSION", "bypass");
}
