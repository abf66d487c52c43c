//! Looking back on a loop: the rules that its launches were run by, and its journal as far as it can be read. Nothing is
//! written, and no lock is taken.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tachikoma_agents::{Agent, CommandAgent, PromptVia};
use tachikoma_core::replay::{Gap, Rules};
use tachikoma_core::{Launch, LoopEvent, Record, Seq};
use toml::Value;

use crate::config::{DISK_FULL_TIMEOUT, LoopConfig};
use crate::process::Adoption;
use crate::settings::{Layers, Loaded, Origin, Secret, SettingsError};
use crate::store::StoreError;
use crate::store::journal::{self, JournalEnd};
use crate::store::recover::Loss;
use crate::store::vault::Vault;

/// A setting, as it was written behind `--set`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The key, written with dots.
    pub key: String,
    /// The value, as TOML or as plain words.
    pub value: String,
}

/// The one setting without a value for "none".
const OBJECTIVES: &str = "stop_conditions.objectives";

impl Setting {
    fn unsets_objectives(&self) -> bool {
        self.key == OBJECTIVES && matches!(self.value.as_str(), "" | "\"\"" | "''")
    }
}

/// The rules of a launch.
#[derive(Clone, Debug)]
pub struct OfLaunch {
    /// The rules.
    pub rules: Rules,
    /// Recorded settings that this version does not understand, and left out.
    pub left_out: Vec<String>,
    /// Whether its settings were recorded; if not, these are the defaults.
    pub recorded: bool,
}

/// Returns the rules by which a launch was run, with other settings laid over those that were recorded. `repository` says whether
/// the working directory was in a git repository; `None` if that was not recorded.
///
/// # Errors
/// One of the other settings is not known, or does not fit.
pub fn rules(
    launch: &Launch,
    repository: Option<bool>,
    over: &[Setting],
) -> Result<OfLaunch, SettingsError> {
    let mut left_out = Vec::new();
    let mut settings = launch.settings.clone().unwrap_or_default();
    // Secrets are recorded as masks, and decide nothing.
    settings.retain(|key, text| *text != masked() && key != "notify");
    let agent = Value::from(launch.agent.as_str()).to_string();
    if launch.settings.is_none() && !launch.agent.is_empty() {
        settings.insert("agent.name".to_owned(), agent);
    }
    // Those of another version may not be known any more; they must not hide what is wrong with the others.
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
    // A file has no name that means none.
    let (unset, over): (Vec<Setting>, Vec<Setting>) =
        over.iter().cloned().partition(Setting::unsets_objectives);
    if !unset.is_empty() {
        settings.remove(OBJECTIVES);
    }
    let loaded = load(&settings, &over)?;
    Ok(OfLaunch {
        rules: rules_of(loaded, launch, repository.unwrap_or(true)),
        left_out,
        recorded: launch.settings.is_some(),
    })
}

fn load(settings: &BTreeMap<String, String>, over: &[Setting]) -> Result<Loaded, SettingsError> {
    let mut layers = Layers::new();
    for (key, text) in settings {
        // An absent value is none.
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

/// Asks a runner that is never run.
fn rules_of(loaded: Loaded, launch: &Launch, repository: bool) -> Rules {
    let nowhere = PathBuf::new;
    let stop_patterns = Some(loaded.settings.stop_conditions.stop_on_patterns.clone());
    let config = LoopConfig {
        settings: loaded.settings,
        working_dir: nowhere(),
        launch: launch.clone(),
        new_loop: false,
        new_loop_id: None,
        guard: Vec::new(),
        demo: Vec::new(),
        bridge: Vec::new(),
        opencode_login: None,
        runtime_dir: nowhere(),
        temporary_dir: nowhere(),
        search_path: None,
        zone_offset: |_| None,
        adoption: Adoption::All,
        loss: Loss::Refuse,
        cgroup: false,
        secrets: BTreeMap::new(),
        surroundings: crate::cloud::Surroundings::default(),
        vault: Vault::plain(),
        disk_full_timeout: DISK_FULL_TIMEOUT,
    };
    // One that could not be run now is taken for a program of any kind.
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

/// Places that are reported; a journal with more of them is not one.
const GAPS_MAX: usize = 10;

/// What of one segment could not be read.
#[derive(Debug)]
pub struct Damaged {
    /// What is wrong, at the first place.
    pub first: StoreError,
    /// How many more places there are.
    pub more: usize,
}

/// How far a journal could be read.
#[derive(Debug, Default)]
pub struct Reach {
    /// Segments that could not be read whole.
    pub damaged: Vec<Damaged>,
    /// Records that do not follow the one before them; they, and what follows them in their segment, were left out.
    pub gaps: Vec<Gap>,
    /// Whether its last line is cut: its writer died over it, or is at it.
    pub torn: bool,
}

impl Reach {
    /// Returns whether it was read to its end.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.damaged.is_empty() && self.gaps.is_empty()
    }

    fn damaged(&mut self, error: StoreError) {
        match self.damaged.last_mut() {
            Some(known) if path_of(&known.first) == path_of(&error) => known.more += 1,
            Some(_) | None => self.damaged.push(Damaged {
                first: error,
                more: 0,
            }),
        }
    }
}

fn path_of(error: &StoreError) -> Option<&Path> {
    match error {
        StoreError::Damaged { path, .. } => Some(path),
        _ => None,
    }
}

/// Reads the journal of the loop in `dir` from its first record, as far as it adds up.
///
/// # Errors
/// Nothing of it can be read.
pub fn read(
    dir: &Path,
    vault: &Vault,
    mut each: impl FnMut(Record) -> Result<(), Gap>,
) -> Result<Reach, StoreError> {
    let mut gaps = Vec::new();
    let mut lost = false;
    let reach = walk(dir, vault, Seq(0), |read| {
        let Ok(record) = read else {
            lost = true;
            return;
        };
        // Behind damage and gaps only the full state helps.
        lost &= !matches!(record.event, LoopEvent::SegmentOpened { .. });
        if lost {
            return;
        }
        if let Err(gap) = each(record) {
            lost = true;
            if gaps.len() < GAPS_MAX {
                gaps.push(gap);
            }
        }
    })?;
    Ok(Reach { gaps, ..reach })
}

/// Reads every record of the loop in `dir` behind `after` that can be read, whatever is wrong with others.
///
/// # Errors
/// Nothing of it can be read.
pub fn records(
    dir: &Path,
    vault: &Vault,
    after: Seq,
    mut each: impl FnMut(Record),
) -> Result<Reach, StoreError> {
    walk(dir, vault, after, |read| {
        if let Ok(record) = read {
            each(record);
        }
    })
}

/// Gets past what is damaged, and keeps what is to be said of it.
fn walk(
    dir: &Path,
    vault: &Vault,
    after: Seq,
    mut each: impl FnMut(Result<Record, ()>),
) -> Result<Reach, StoreError> {
    let mut reach = Reach::default();
    let mut any = after > Seq(0);
    let end = journal::read_around(dir, vault, after, |read| {
        any |= read.is_ok();
        each(read.map_err(|error| reach.damaged(error)));
    })?;
    if !any && !reach.damaged.is_empty() {
        return Err(reach.damaged.remove(0).first);
    }
    reach.torn = end == JournalEnd::Torn;
    Ok(reach)
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
    fn what_was_recorded_holds_and_what_is_laid_over_it_wins() {
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
    fn what_this_version_does_not_know_is_left_out_and_named() {
        let recorded = launch(&[("of.the.future", "true"), ("max_iterations", "7")]);
        let found = rules(&recorded, Some(false), &[]).unwrap();
        assert_eq!(found.left_out, ["of.the.future"]);
        assert_eq!(found.rules.policy.max_iterations, 7);
        let error = rules(&recorded, Some(false), &[set("max_iteration", "3")]).unwrap_err();
        assert!(error.to_string().contains("did you mean `max_iterations`"));
    }

    #[test]
    fn objectives_can_be_taken_away() {
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
    fn without_recorded_settings_the_agent_is_known_all_the_same() {
        let recorded = Launch {
            agent: "claude".to_owned(),
            ..Launch::default()
        };
        let found = rules(&recorded, Some(false), &[]).unwrap();
        assert!(!found.recorded && found.rules.policy.agent.persistent);
    }
}
