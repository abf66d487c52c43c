//! The arrays of tables: `[[gate]]` and `[[hook]]`.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tachikoma_core::HookPoint;

use super::scalars::HumanDuration;

/// A command that must exit 0 before a claim of completion is accepted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Gate {
    /// Name of the gate in messages and in the prompt. Must be unique.
    pub name: String,
    /// Command line, run by the shell in the working directory. Exit code 0 means passed.
    pub command: String,
    /// Maximum duration. A gate that runs longer fails. 0 = no limit.
    #[serde(default = "gate_timeout")]
    pub timeout: HumanDuration,
    /// When the gate runs.
    #[serde(default)]
    pub when: GateMoment,
    /// Test report that the gate writes: a path or a pattern, such as `target/junit.xml` or `build/**/TEST-*.xml`. Absent = test
    /// results are read from its output.
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
    /// After every successful iteration, and when completion is claimed.
    Iteration,
}

/// A command that runs at a certain point of the loop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Hook {
    /// Point of the loop.
    #[schemars(schema_with = "hook_point_schema")]
    pub on: HookPoint,
    /// Command line, run by the shell.
    pub command: String,
    /// Maximum duration. A hook that runs longer is killed and fails. 0 = no limit.
    #[serde(default = "hook_timeout")]
    pub timeout: HumanDuration,
}

fn hook_timeout() -> HumanDuration {
    HumanDuration::from_secs(30)
}

/// Returns the JSON schema of a [`HookPoint`], because the core has no schemas.
pub(super) fn hook_point_schema(_: &mut SchemaGenerator) -> Schema {
    let names = HookPoint::ALL.map(|point| json!({ "type": "string", "const": point }));
    json_schema!({ "oneOf": names })
}
