//! `tachikoma replay`: gives the recorded inputs of a loop to the core again, with other settings. Only reads, and runs nothing.

use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use tachikoma_core::Launch;
use tachikoma_core::replay::{LaunchRules, Replay, Replayed, Rules, Totals};
use tachikoma_loop_runner::journal_reader::{self, JournalRead};
use tachikoma_loop_runner::launch_rules::{self, Setting};
use tachikoma_loop_runner::settings::SettingsError;

use crate::args::ReplayArgs;
use crate::failure::{Failure, chain};
use crate::out;
use crate::report::json as json_line;
use crate::report::line::dollars;
use crate::report::span::span;
use crate::sanitize::sanitize;
use crate::workspace::Workspace;

/// Maximum number of notes that are printed. A loop may have had thousands of launches.
const NOTES_MAX: usize = 20;

/// Reads the rules of the launches of a loop, and collects notes about them.
#[derive(Debug, Default)]
pub struct Launches {
    notes: Vec<String>,
    last: Option<(Launch, Option<bool>)>,
}

impl Launches {
    /// Returns the rules with which a launch was run.
    pub fn recorded(&mut self, launch: &Launch, repository: Option<bool>) -> Rules {
        self.last = Some((launch.clone(), repository));
        match launch_rules::rules(launch, repository, &[]) {
            Ok(found) => {
                if !found.recorded {
                    self.note("an early version recorded no settings: the defaults are assumed");
                }
                for key in found.left_out {
                    self.note(&format!(
                        "this version does not understand the recorded `{key}`"
                    ));
                }
                found.rules
            }
            Err(error) => {
                self.note(&format!("recorded settings cannot be read: {error}"));
                Rules::default()
            }
        }
    }

    /// Returns the rules with which a launch is replayed.
    fn replayed(
        &mut self,
        launch: &Launch,
        repository: Option<bool>,
        over: &[Setting],
        recorded: &Rules,
    ) -> Rules {
        match launch_rules::rules(launch, repository, over) {
            Ok(found) => found.rules,
            Err(error) => {
                self.note(&format!(
                    "the settings of `--set` do not fit those of a launch, which is replayed with its own: {error}"
                ));
                recorded.clone()
            }
        }
    }

    fn note(&mut self, note: &str) {
        if self.notes.len() < NOTES_MAX && !self.notes.iter().any(|known| known == note) {
            self.notes.push(note.to_owned());
        }
    }

    /// Prints the collected notes.
    pub fn print(&self) {
        for note in &self.notes {
            out::note(&format!("note: {}", sanitize(note)));
        }
    }
}

/// Returns messages about the parts of a journal that could not be read.
pub fn unread_parts(reach: &JournalRead, live: bool) -> Vec<String> {
    let damaged = reach.damaged.iter();
    let mut words: Vec<String> = damaged
        .map(|damaged| {
            format!(
                "{}; the rest of that file is left out",
                chain(&damaged.first)
            )
        })
        .collect();
    let gaps = reach.gaps.iter();
    words.extend(gaps.map(|gap| format!("{gap}; the rest of that file is left out")));
    // An incomplete last line is normal while a runner writes.
    if reach.torn && !live {
        words.push(
            "the last line of the journal is incomplete: its runner died while writing it, and the record was never used"
                .to_owned(),
        );
    }
    words
}

/// Output of `replay --json`.
#[derive(Debug, Serialize)]
struct Printed<'a> {
    loop_id: String,
    set: Vec<String>,
    #[serde(flatten)]
    replayed: &'a Replayed,
    notes: Vec<String>,
}

/// Replays the recorded decisions of the loop with different settings.
pub fn replay(workspace: &Workspace, args: &ReplayArgs) -> Result<ExitCode, Failure> {
    let over = settings(&args.set)?;
    // Errors in the settings are reported before the journal is read.
    launch_rules::rules(&Launch::default(), None, &over)?;
    let current = workspace.named_loop(args.loop_id.as_deref())?;
    let applied = over.iter().filter(|it| decides_nothing(&it.key).is_none());
    let applied: Vec<Setting> = applied.cloned().collect();
    let mut launches = Launches::default();
    let (reach, replayed) = {
        let rules = |launch: &Launch, repository| {
            let recorded = launches.recorded(launch, repository);
            let replayed = launches.replayed(launch, repository, &applied, &recorded);
            LaunchRules { recorded, replayed }
        };
        let mut replay = Replay::new(current.loop_id, rules);
        let reach = journal_reader::read(&current.dir, &current.encryption, |record| {
            replay.take(record)
        })?;
        (reach, replay.finish())
    };
    notes(&mut launches, &over, &reach, &replayed)?;
    if args.json {
        let printed = Printed {
            loop_id: current.loop_id.to_string(),
            set: args.set.clone(),
            replayed: &replayed,
            notes: launches.notes.clone(),
        };
        out::line(&json_line(&printed));
        return Ok(ExitCode::SUCCESS);
    }
    launches.print();
    for line in text(&replayed, &args.set) {
        out::line(&line);
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns whether a value is neither TOML nor plain text.
fn is_broken(value: &str) -> bool {
    value.starts_with(['[', '{', '"', '\''])
        && format!("value = {value}").parse::<toml::Table>().is_err()
}

fn settings(words: &[String]) -> Result<Vec<Setting>, Failure> {
    let setting = |word: &String| {
        match word.split_once('=') {
        Some((_, value)) if is_broken(value.trim()) => {
            Err(Failure::usage(format!("--set {word}: the value is not valid TOML"))
                .hint("close its quotes and brackets; your shell may have removed some"))
        }
        Some((key, value)) if !key.trim().is_empty() => Ok(Setting {
            key: key.trim().to_owned(),
            value: value.trim().to_owned(),
        }),
        Some(_) | None => Err(Failure::usage(format!("--set {word}: it must be KEY=VALUE"))
            .hint("such as `--set context_redline_percent=60`; `tachikoma config show` lists the keys")),
    }
    };
    words.iter().map(setting).collect()
}

fn notes(
    launches: &mut Launches,
    over: &[Setting],
    reach: &JournalRead,
    replayed: &Replayed,
) -> Result<(), SettingsError> {
    if let Some((launch, repository)) = launches.last.clone() {
        let recorded = launch_rules::rules(&launch, repository, &[])?.rules;
        for setting in over {
            let alone = launch_rules::rules(&launch, repository, std::slice::from_ref(setting));
            if alone.is_ok_and(|alone| alone.rules == recorded) {
                launches.note(&format!(
                    "`{}` changes nothing here: it has this value already, or it concerns facts that the journal does not have",
                    setting.key
                ));
            } else if let Some(why) = decides_nothing(&setting.key) {
                launches.note(&format!("`{}` has no effect here: {why}", setting.key));
            }
        }
        let patterns = |rules: Rules| rules.stop_patterns.unwrap_or_default();
        let known = patterns(recorded);
        let added = patterns(launch_rules::rules(&launch, repository, over)?.rules);
        for pattern in added.iter().filter(|pattern| !known.contains(pattern)) {
            launches.note(&format!(
                "the pattern `{pattern}` cannot be checked: the agent's output is not in the journal"
            ));
        }
    }
    if replayed.lost > 0 {
        launches.note(&format!(
            "{} records are lost; the replay continues from the state after them",
            replayed.lost
        ));
    }
    if replayed.without_inputs > 0 {
        launches.note(&format!(
            "{} records were written by an earlier version that did not record inputs: they are not replayed",
            replayed.without_inputs
        ));
    }
    if let Some(first) = replayed.first_unexplained {
        launches.note(&format!(
            "{} records cannot be reproduced with the recorded settings, the first is {first}: another version wrote them, or \
             this is a bug; the result below is less reliable",
            replayed.unexplained
        ));
    }
    for words in unread_parts(reach, false) {
        launches.note(&words);
    }
    Ok(())
}

/// Explains why a setting has no effect on the replay; `None` if it has one.
fn decides_nothing(key: &str) -> Option<&'static str> {
    match key {
        "stop_conditions.completion_promise" => {
            Some("the agent's output is not in the journal, so the recorded claims are used")
        }
        "agent.name" => Some("another agent would act differently, and its actions are not known"),
        key if key.starts_with("git.") => {
            Some("commits are not repeated, so the recorded results are used")
        }
        _ => None,
    }
}

fn text(replayed: &Replayed, set: &[String]) -> Vec<String> {
    let mut lines = Vec::new();
    let with = match set.is_empty() {
        true => "the recorded settings".to_owned(),
        false => set.join(", "),
    };
    let Some(difference) = replayed.differences.first() else {
        lines.push(format!("with {with} every decision is the same"));
        lines.push(String::new());
        lines.extend(table(replayed));
        return lines;
    };
    lines.push(format!("with {with}:"));
    lines.push(String::new());
    lines.push(match difference.iteration {
        0 => "before the first iteration".to_owned(),
        iteration => format!("iteration {iteration}"),
    });
    for (name, words) in [
        ("recorded", &difference.recorded),
        ("replayed", &difference.replayed),
        ("because", &difference.by),
    ] {
        lines.push(format!("  {:<9} {}", format!("{name}:"), sanitize(words)));
    }
    lines.push(String::new());
    lines.push(format!(
        "The replay stops at record {}: from here on the recorded inputs no longer apply.",
        difference.seq
    ));
    lines.push(String::new());
    lines.extend(table(replayed));
    lines
}

fn table(replayed: &Replayed) -> Vec<String> {
    let waited = |sum: &Totals| span(Duration::from_millis(sum.waited_ms));
    let cells = |sum: &Totals| {
        [
            sum.iterations.to_string(),
            sum.reboots.to_string(),
            dollars(sum.cost_usd),
            sum.tokens.to_string(),
            waited(sum),
        ]
    };
    let names = ["iterations", "reboots", "cost", "tokens", "waited"];
    let stopped = if replayed.differences.is_empty() {
        ""
    } else {
        "  (replayed: up to the difference)"
    };
    let mut lines = vec![format!(
        "{:<12} {:>14} {:>14}{stopped}",
        "", "recorded", "replayed"
    )];
    let (recorded, again) = (cells(&replayed.recorded), cells(&replayed.replayed));
    let rows = names.iter().zip(recorded.iter().zip(&again));
    let rows = rows.map(|(name, (one, other))| format!("{name:<12} {one:>14} {other:>14}"));
    lines.extend(rows);
    let open = match (replayed.goes_on, replayed.differences.is_empty()) {
        (true, _) => "continues where the recorded loop ended",
        (false, true) => "has not ended",
        (false, false) => "not known",
    };
    for (name, sum, open) in [
        ("recorded", &replayed.recorded, "has not ended"),
        ("replayed", &replayed.replayed, open),
    ] {
        let outcome = sum.outcome.as_deref().unwrap_or(open);
        lines.push(format!("{:<12} {}", format!("{name}:"), sanitize(outcome)));
    }
    lines
}
