//! The arrays of tables: `[[gate]]` and `[[hook]]`.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tachikoma_core::HookPoint;

use super::scalars::HumanDuration;

/// A command that must exit 0 before a claim of completion is believed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Gate {
    /// What the gate is called in messages, and to the agent. Each has a name of its own.
    pub name: String,
    /// The command line, run by the shell in the working directory. Exit 0 passes.
    pub command: String,
    /// A gate that runs longer has failed. 0 = no limit.
    #[serde(default = "gate_timeout")]
    pub timeout: HumanDuration,
    /// When the gate runs.
    #[serde(default)]
    pub when: GateMoment,
    /// Where the gate leaves its test results: a path or a pattern, `target/junit.xml` or `build/**/TEST-*.xml`. Absent = what it
    /// prints is read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<String>,
}

fn gate_timeout() -> HumanDuration {
    HumanDuration::from_secs(10 * 60)
}

/// When a gate runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum GateMoment {
    /// When completion is claimed.
    #[default]
    Completion,
    /// After every iteration that succeeded, and when completion is claimed.
    Iteration,
}

/// A command run at a moment of the loop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Hook {
    /// The moment.
    #[schemars(schema_with = "hook_point_schema")]
    pub on: HookPoint,
    /// The command line, run by the shell.
    pub command: String,
    /// A hook that runs longer is ended, and has failed. 0 = no limit.
    #[serde(default = "hook_timeout")]
    pub timeout: HumanDuration,
}

fn hook_timeout() -> HumanDuration {
    HumanDuration::from_secs(30)
}

/// The schema of a [`HookPoint`]: the core has no schemas.
pub(super) fn hook_point_schema(_: &mut SchemaGenerator) -> Schema {
    let names = HookPoint::ALL.map(|point| json!({ "type": "string", "const": point }));
    json_schema!({ "oneOf": names })
}
