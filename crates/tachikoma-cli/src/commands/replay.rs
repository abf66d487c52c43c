//! `tachikoma replay`: replays recorded decisions with different settings. Only reads, and runs nothing.

use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use tachikoma_core::Launch;
use tachikoma_core::replay::{ByPlace, Replay, Replayed, Rules, Sum};
use tachikoma_loop_runner::journal_reader::{self, JournalRead};
use tachikoma_loop_runner::launch_rules::{self, Setting};
use tachikoma_loop_runner::settings::SettingsError;

use crate::args::ReplayArgs;
use crate::failure::{Failure, chain};
use crate::out;
use crate::report::json as json_line;
use crate::report::line::dollars;
use crate::report::span::span;
use crate::sanitise::sanitise;
use crate::workspace::Workspace;

/// Limit of notes about the launches of one loop; a loop can have thousands.
const NOTES_MAX: usize = 20;

/// The policies of the launches of a loop, and notes about them.
#[derive(Debug, Default)]
pub struct Launches {
    notes: Vec<String>,
    last: Option<Launch>,
}

impl Launches {
    /// Returns the policy of a launch.
    pub fn recorded(&mut self, launch: &Launch) -> ByPlace {
        self.last = Some(launch.clone());
        match launch_rules::rules(launch, &[]) {
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
                ByPlace::default()
            }
        }
    }

    /// Returns the policy with which a launch is replayed.
    fn replayed(&mut self, launch: &Launch, over: &[Setting], recorded: &ByPlace) -> ByPlace {
        match launch_rules::rules(launch, over) {
            Ok(found) => found.rules,
            Err(error) => {
                self.note(&format!(
                    "with what a launch was given these settings do not fit; its own are taken: {error}"
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

    /// Prints the notes.
    pub fn say(&self) {
        for note in &self.notes {
            out::note(&format!("note: {}", sanitise(note)));
        }
    }
}

/// Reports what could not be read of a journal.
pub fn reach_words(reach: &JournalRead, live: bool) -> Vec<String> {
    let damaged = reach.damaged.iter();
    let mut words: Vec<String> = damaged
        .map(|damaged| {
            format!(
                "{}; what follows it there is not part of this",
                chain(&damaged.first)
            )
        })
        .collect();
    let gaps = reach.gaps.iter();
    words.extend(gaps.map(|gap| format!("{gap}; what follows it there is not part of this")));
    // While a runner is alive this is normal.
    if reach.torn && !live {
        words.push(
            "the journal is cut in the middle of its last line: whoever wrote it died over it, and that record never counted"
                .to_owned(),
        );
    }
    words
}

/// The object that `--json` prints.
#[derive(Debug, Serialize)]
struct Printed<'a> {
    loop_id: String,
    set: Vec<String>,
    #[serde(flatten)]
    replayed: &'a Replayed,
    notes: Vec<String>,
}

/// Replays the loop.
pub fn replay(workspace: &Workspace, args: &ReplayArgs) -> Result<ExitCode, Failure> {
    let over = settings(&args.set)?;
    // Errors of the settings are reported before anything is read.
    launch_rules::rules(&Launch::default(), &over)?;
    let current = workspace.named_loop(args.loop_id.as_deref())?;
    let mut launches = Launches::default();
    let (reach, replayed) = {
        let rules = |launch: &Launch| {
            let recorded = launches.recorded(launch);
            let replayed = launches.replayed(launch, &over, &recorded);
            Rules { recorded, replayed }
        };
        let mut replay = Replay::new(current.loop_id, rules);
        let reach =
            journal_reader::read(&current.dir, &current.vault, |record| replay.take(record))?;
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
    launches.say();
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
            Err(Failure::usage(format!("--set {word}: the value begins like TOML and is none"))
                .hint("close its quotes and brackets; your shell may have taken some away"))
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
    if let Some(launch) = launches.last.clone() {
        let recorded = launch_rules::rules(&launch, &[])?.rules;
        for setting in over {
            let alone = launch_rules::rules(&launch, std::slice::from_ref(setting));
            if alone.is_ok_and(|alone| alone.rules == recorded) {
                launches.note(&format!(
                    "`{}` changes nothing here: it holds already, or what it is about is not in the journal",
                    setting.key
                ));
            } else if let Some(why) = decides_nothing(&setting.key) {
                launches.note(&format!("`{}` decides nothing here: {why}", setting.key));
            }
        }
        let patterns = |rules: ByPlace| rules.stop_patterns.unwrap_or_default();
        let known = patterns(recorded);
        let added = patterns(launch_rules::rules(&launch, over)?.rules);
        for pattern in added.iter().filter(|pattern| !known.contains(pattern)) {
            launches.note(&format!(
                "whether the pattern `{pattern}` would have matched is not known: the agent's words are not in the journal"
            ));
        }
    }
    if replayed.lost > 0 {
        launches.note(&format!(
            "{} records are lost; the replay goes on from the state behind them",
            replayed.lost
        ));
    }
    if let Some(first) = replayed.first_unexplained {
        launches.note(&format!(
            "{} records do not follow from the recorded settings, the first is {first}: another version wrote them, or \
             this is a bug; what is said below holds less",
            replayed.unexplained
        ));
    }
    for words in reach_words(reach, false) {
        launches.note(&words);
    }
    Ok(())
}

/// Explains why a setting has no influence on the replay.
fn decides_nothing(key: &str) -> Option<&'static str> {
    match key {
        "stop_conditions.completion_promise" => Some(
            "the agent's words are not in the journal, and its claims are those that were recorded",
        ),
        key if key.starts_with("git.") => {
            Some("commits are not made again, and count as they were recorded")
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
    if replayed.differences.is_empty() {
        lines.push(format!("with {with} every decision is the same"));
    } else {
        lines.push(format!("with {with}:"));
    }
    for difference in &replayed.differences {
        let which = match (difference.iteration, difference.to) {
            (0, 0) => "before the first iteration".to_owned(),
            (from, to) if from == to => format!("iteration {from}"),
            (from, to) => format!("iterations {from} to {to}"),
        };
        let estimated = if difference.estimated {
            " (estimated)"
        } else {
            ""
        };
        lines.push(String::new());
        lines.push(format!("{which}{estimated}"));
        for (name, words) in [
            ("recorded", &difference.recorded),
            ("replayed", &difference.replayed),
            ("because", &difference.by),
        ] {
            lines.push(format!("  {:<9} {}", format!("{name}:"), sanitise(words)));
        }
    }
    if replayed.left_out > 0 {
        lines.push(String::new());
        lines.push(format!(
            "{} differences more are left out",
            replayed.left_out
        ));
    }
    lines.push(String::new());
    lines.extend(table(replayed));
    lines
}

fn table(replayed: &Replayed) -> Vec<String> {
    let waited = |sum: &Sum| span(Duration::from_millis(sum.waited_ms));
    let cells = |sum: &Sum| {
        [
            sum.iterations.to_string(),
            sum.reboots.to_string(),
            dollars(sum.cost_usd),
            sum.tokens.to_string(),
            waited(sum),
        ]
    };
    let names = ["iterations", "reboots", "cost", "tokens", "waited"];
    let estimated = if replayed.estimated {
        "  (replayed: estimated)"
    } else {
        ""
    };
    let mut lines = vec![format!(
        "{:<12} {:>14} {:>14}{estimated}",
        "", "recorded", "replayed"
    )];
    let (recorded, again) = (cells(&replayed.recorded), cells(&replayed.replayed));
    let rows = names.iter().zip(recorded.iter().zip(&again));
    let rows = rows.map(|(name, (one, other))| format!("{name:<12} {one:>14} {other:>14}"));
    lines.extend(rows);
    let open = if replayed.goes_on {
        "would have gone on where the record ends"
    } else {
        "has not ended"
    };
    for (name, sum, open) in [
        ("recorded", &replayed.recorded, "has not ended"),
        ("replayed", &replayed.replayed, open),
    ] {
        let outcome = sum.outcome.as_deref().unwrap_or(open);
        lines.push(format!("{:<12} {}", format!("{name}:"), sanitise(outcome)));
    }
    lines
}
