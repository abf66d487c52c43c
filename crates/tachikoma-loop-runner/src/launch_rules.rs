//! Rebuilds the decision rules of a launch from its recorded settings, for `replay` and `explain`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tachikoma_agents::{Agent, CommandAgent, PromptVia};
use tachikoma_core::Launch;
use tachikoma_core::replay::Rules;
use toml::Value;

use crate::config::LoopConfig;
use crate::settings::{Layers, Loaded, Origin, Secret, SettingsError};

/// A setting given with `--set`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Key of the setting, with dots between its parts.
    pub key: String,
    /// Value of the setting, as TOML or as plain text.
    pub value: String,
}

/// Key of the only setting for which a missing value means "none".
const OBJECTIVES: &str = "stop_conditions.objectives";

impl Setting {
    fn unsets_objectives(&self) -> bool {
        self.key == OBJECTIVES && matches!(self.value.as_str(), "" | "\"\"" | "''")
    }
}

/// The rules of a launch.
#[derive(Clone, Debug)]
pub struct LaunchRules {
    /// The rules that follow from the settings.
    pub rules: Rules,
    /// Recorded settings that this version does not know. They were ignored.
    pub left_out: Vec<String>,
    /// Whether the settings of the launch were recorded. If not, these are the default rules.
    pub recorded: bool,
}

/// Returns the rules of a launch. The settings in `over` replace recorded ones. `repository` says whether the working directory was in a
/// git repository; `None` if that was not recorded.
///
/// # Errors
/// A setting in `over` is unknown or invalid.
pub fn rules(
    launch: &Launch,
    repository: Option<bool>,
    over: &[Setting],
) -> Result<LaunchRules, SettingsError> {
    let mut left_out = Vec::new();
    let mut settings = launch.settings.clone().unwrap_or_default();
    // Secrets are recorded as masks, and no rule depends on them.
    settings.retain(|key, text| *text != masked() && key != "notify");
    let agent = Value::from(launch.agent.as_str()).to_string();
    if launch.settings.is_none() && !launch.agent.is_empty() {
        settings.insert("agent.name".to_owned(), agent);
    }
    // Recorded settings of another version may be unknown here. They are removed, so that errors in other settings are still found.
    if let Err(error) = load(&settings, &[]) {
        for key in error.problems.into_iter().filter_map(|problem| problem.key) {
            let known = |name: &String| *name == key || key.starts_with(&format!("{name}."));
            let unread: Vec<String> = settings
                .keys()
                .filter(|name| known(name))
                .cloned()
                .collect();
            for name in unread {
                settings.remove(&name);
                left_out.push(name);
            }
        }
    }
    // An empty file name in `over` means "no objectives".
    let (unset, over): (Vec<Setting>, Vec<Setting>) =
        over.iter().cloned().partition(Setting::unsets_objectives);
    if !unset.is_empty() {
        settings.remove(OBJECTIVES);
    }
    let loaded = load(&settings, &over)?;
    Ok(LaunchRules {
        rules: rules_of(loaded, launch, repository.unwrap_or(true)),
        left_out,
        recorded: launch.settings.is_some(),
    })
}

fn load(settings: &BTreeMap<String, String>, over: &[Setting]) -> Result<Loaded, SettingsError> {
    let mut layers = Layers::new();
    for (key, text) in settings {
        // A recorded setting without a value means "none".
        if let Some(value) = value(text) {
            layers.set(key, value, Origin::Recorded);
        }
    }
    for setting in over {
        layers.set_text(
            &setting.key,
            &setting.value,
            Origin::Flag("--set".to_owned()),
        );
    }
    layers.load()
}

fn masked() -> String {
    Value::from(Secret::MASK).to_string()
}

fn value(text: &str) -> Option<Value> {
    let table: toml::Table = format!("value = {text}").parse().ok()?;
    table.get("value").cloned()
}

/// Returns the rules that a runner with these settings would use. No runner is started.
fn rules_of(loaded: Loaded, launch: &Launch, repository: bool) -> Rules {
    let stop_patterns = Some(loaded.settings.stop_conditions.stop_on_patterns.clone());
    let config = LoopConfig::new(loaded.settings, PathBuf::new(), launch.clone());
    // An agent that cannot be run on this machine is treated as an agent of the kind `command`.
    let agent = config.agent().unwrap_or(Agent::Command(CommandAgent {
        program: Vec::new(),
        prompt: PromptVia::Stdin,
        env: Vec::new(),
    }));
    Rules {
        policy: config.policy_in(&agent, repository),
        stop_patterns,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn launch(settings: &[(&str, &str)]) -> Launch {
        let settings = settings.iter();
        let settings = settings.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Launch {
            agent: "claude".to_owned(),
            settings: Some(settings.collect()),
            ..Launch::default()
        }
    }

    fn set(key: &str, value: &str) -> Setting {
        Setting {
            key: key.to_owned(),
            value: value.to_owned(),
        }
    }

    #[test]
    fn overriding_settings_win_over_recorded_ones() {
        let recorded = launch(&[
            ("agent.name", "\"claude\""),
            ("iteration_delay", "\"30s\""),
            ("max_iterations", "7"),
            ("agents.claude.env.KEY", "\"***\""),
            ("notify", "[{to = \"slack\", url = \"***\"}]"),
        ]);
        let found = rules(&recorded, Some(false), &[]).unwrap();
        assert_eq!(found.left_out, Vec::<String>::new());
        let policy = &found.rules.policy;
        assert_eq!(policy.iteration_delay, Duration::from_secs(30));
        assert_eq!(policy.max_iterations, 7);
        assert!(policy.agent.persistent, "{policy:?}");
        let repository =
            |policy: &tachikoma_core::Policy| policy.autocommit.map(|rules| rules.repository);
        assert_eq!(repository(policy), Some(false));
        let inside = rules(&recorded, Some(true), &[]).unwrap().rules.policy;
        assert_eq!(repository(&inside), Some(true));
        let over = [set("iteration_delay", "5s"), set("context_threshold", "60")];
        let policy = rules(&recorded, Some(false), &over).unwrap().rules.policy;
        assert_eq!(policy.iteration_delay, Duration::from_secs(5));
        assert!((policy.reboot.redline_percent - 60.0).abs() < 1e-9);
        assert_eq!(policy.max_iterations, 7);
    }

    #[test]
    fn unknown_recorded_settings_are_ignored_and_named() {
        let recorded = launch(&[("of.the.future", "true"), ("max_iterations", "7")]);
        let found = rules(&recorded, Some(false), &[]).unwrap();
        assert_eq!(found.left_out, ["of.the.future"]);
        assert_eq!(found.rules.policy.max_iterations, 7);
        let error = rules(&recorded, Some(false), &[set("max_iteration", "3")]).unwrap_err();
        assert!(error.to_string().contains("did you mean `max_iterations`"));
    }

    #[test]
    fn objectives_can_be_unset() {
        let mut recorded = Launch::default();
        let file = "\"plan.md\"".to_owned();
        recorded.settings = Some([(OBJECTIVES.to_owned(), file)].into());
        let asks = |over: &[Setting]| rules(&recorded, Some(false), over).unwrap().rules.policy;
        assert!(asks(&[]).completion.objectives);
        for none in ["", "\"\"", "''"] {
            assert!(!asks(&[set(OBJECTIVES, none)]).completion.objectives);
        }
    }

    #[test]
    fn agent_is_known_without_recorded_settings() {
        let recorded = Launch {
            agent: "claude".to_owned(),
            ..Launch::default()
        };
        let found = rules(&recorded, Some(false), &[]).unwrap();
        assert!(!found.recorded && found.rules.policy.agent.persistent);
    }
}
