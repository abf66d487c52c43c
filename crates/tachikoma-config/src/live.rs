//! Reloads settings during a run: some apply at once, others with the next run.

use std::collections::BTreeMap;

use super::{ContextSettings, GitSettings, SessionSettings, Settings, keys, loaded};

/// Result of reloading the settings of a running loop.
#[derive(Clone, Debug, PartialEq)]
pub struct Live {
    /// The settings that are used from now on.
    pub settings: Settings,
    /// Changed keys that are used only from the next run on.
    pub later: Vec<String>,
}

impl Live {
    /// Merges `new` settings into the `old` ones of a running loop. Settings that are only read at the start of a run keep their old
    /// values: those of the agent, of file locations and of the git worker.
    #[must_use]
    pub fn of(old: &Settings, new: &Settings) -> Self {
        let old = old.clone();
        let settings = Settings {
            working_dir: old.working_dir,
            prompt_path: old.prompt_path,
            agent: old.agent,
            agents: old.agents,
            opencode: old.opencode,
            state: old.state,
            notify: old.notify,
            session: SessionSettings {
                claude_command: old.session.claude_command,
                state_dir: old.session.state_dir,
                fresh_each_iteration: old.session.fresh_each_iteration,
                process_each_iteration: old.session.process_each_iteration,
                ..new.session.clone()
            },
            context: ContextSettings {
                window_tokens: old.context.window_tokens,
                ..new.context.clone()
            },
            git: GitSettings {
                protected: old.git.protected,
                max_file_bytes: old.git.max_file_bytes,
                ..new.git.clone()
            },
            ..new.clone()
        };
        let holds: BTreeMap<_, _> = keys::leaves(&settings).into_iter().collect();
        let wanted = keys::leaves(new).into_iter();
        let later = wanted.filter(|(key, value)| holds.get(key) != Some(value));
        let mut later: Vec<String> = later.map(|(key, _)| key).collect();
        // Secrets are masked as `***` in the comparison above, so their values are compared here.
        let hidden = [
            ("notify", settings.notify != new.notify),
            ("agents", settings.agents != new.agents),
        ];
        for (table, differs) in hidden {
            if differs && !later.iter().any(|key| key.starts_with(table)) {
                later.push(table.to_owned());
            }
        }
        Self { later, settings }
    }

    /// Returns the settings that differ from the defaults, as a launch records them.
    pub fn recorded(&self) -> BTreeMap<String, String> {
        loaded::not_defaults(&self.settings)
    }

    /// Returns the hash of the settings, as a launch records it.
    pub fn hash(&self) -> String {
        format!("{:08x}", loaded::hash(&self.settings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AgentName, HumanDuration};

    #[test]
    fn reload_lists_changed_keys_that_take_effect_only_in_the_next_run() {
        let old = Settings::default();
        let mut new = old.clone();
        new.iteration_delay = HumanDuration::from_secs(1);
        new.git.auto_commit = false;
        new.git.protected.push("x".to_owned());
        new.agent.name = AgentName::Demo;
        new.state.compress = true;
        let live = Live::of(&old, &new);
        assert_eq!(
            live.later,
            ["state.compress", "git.protected", "agent.name"]
        );
        assert_eq!(live.settings.agent, old.agent);
        assert!(!live.settings.git.auto_commit);
        assert_eq!(live.settings.iteration_delay, new.iteration_delay);
        let url = |url: &str| -> Settings {
            let table = format!("[[notify]]\nto = 'slack'\nurl = '{url}'\n");
            toml::from_str(&table).unwrap()
        };
        let other = Live::of(&url("https://one.example"), &url("https://two.example"));
        assert_eq!(other.later, ["notify"]);
        let same = Live::of(&old, &old);
        assert_eq!(same.later, Vec::<String>::new());
        assert_eq!(same.settings, old);
    }
}
