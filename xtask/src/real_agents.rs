//! `cargo xtask real-agents`: runs real agents in pinned versions with a scripted model, in a network namespace with only
//! loopback. They need no account and no key, and send no request to another machine.
//!
//! A check is written like a test, with assertions. Each topic has a file, and each check a row in [`CHECKS`]. Work that needs the
//! network or a compiler is done in [`run`], outside of the namespace, and its result is passed as an argument.

mod answers;
mod budget;
mod completion;
mod deaths;
mod errors;
mod failures;
mod fill;
mod full;
mod ground;
mod install;
mod isolation;
mod limits;
mod looping;
mod opencode;
mod opencode_environment;
mod opencode_kills;
mod orders;
mod runner;
mod server;
mod sessions;
mod setup;
mod stalls;
mod steering;
mod turns;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ground::{Ground, Programs};

use crate::product;

/// Usual time limit of a check. Most take a second or two; a busy machine is slower.
const USUAL: Duration = Duration::from_secs(60);

/// A check. It panics if it fails, and returns a summary.
type Check = fn(&Ground) -> String;

/// A check with its name and the time limit of its waits.
struct Row(&'static str, Check, Duration);

/// All groups of checks. Checks of failures of the model service are listed in their own files.
const GROUPS: [&[Row]; 7] = [
    CHECKS,
    errors::CHECKS,
    limits::CHECKS,
    stalls::CHECKS,
    server::CHECKS,
    opencode::CHECKS,
    opencode_kills::CHECKS,
];

/// General checks, in the order of execution.
const CHECKS: &[Row] = &[
    Row("simple-text", answers::simple_text, USUAL),
    Row("tools", answers::tools, USUAL),
    Row("partial-messages", answers::partial_messages, USUAL),
    Row("context-growth", answers::context_growth, USUAL),
    Row("subagent", answers::subagent, USUAL),
    Row("two-prompts", steering::two_prompts, USUAL),
    Row("context-question", steering::context_question, USUAL),
    Row("interrupt-mid-tool", steering::interrupt_mid_tool, USUAL),
    Row("message-mid-tool", steering::message_mid_tool, USUAL),
    Row("sigterm-mid-tool", steering::sigterm_mid_tool, USUAL),
    Row("compaction", steering::compaction, USUAL),
    Row("resume", sessions::resume, USUAL),
    Row("resume-after-kill", sessions::resume_after_kill, USUAL),
    Row("unknown-session", sessions::unknown_session, USUAL),
    Row("usage-limit", failures::usage_limit, USUAL),
    Row("not-authorised", failures::not_authorised, USUAL),
    Row("overloaded-once", failures::overloaded_once, USUAL),
    Row("cut-stream", failures::cut_stream, USUAL),
    Row("silent-model", failures::silent_model, USUAL),
    Row("runner-command", runner::as_command, USUAL),
    Row("runner-killed", runner::killed_mid_tool, USUAL),
    Row("one-conversation", turns::one_conversation, USUAL),
    Row("fresh-each", turns::fresh_each_iteration, USUAL),
    Row("process-each", turns::process_each_iteration, USUAL),
    Row("no-background", turns::nothing_in_the_background, USUAL),
    Row("outside-is-denied", turns::outside_is_denied, USUAL),
    Row("safe-permission", turns::safe_permission, USUAL),
    Row("advice", full::advice, USUAL),
    Row("told", full::told_words, USUAL),
    Row("redline", full::redline, USUAL),
    Row("hard-limit-mid-tool", full::hard_limit_mid_tool, USUAL),
    Row("hand-off-runner-dies", full::runner_dies, USUAL),
    Row("redline-immediate", full::immediate, USUAL),
    Row("reboot-by-hand", full::by_hand, USUAL),
    Row("too-long", full::too_long, USUAL),
    Row("fill-again", fill::again_and_again, USUAL),
    Row("budget", budget::kept, USUAL),
    Row("claims", completion::claims, USUAL),
    Row("done", completion::done_in_safe_mode, USUAL),
    Row("denied-only", completion::denied_only, USUAL),
    Row("refused-prompt", completion::refused_prompt, USUAL),
    Row("stop", orders::stop, USUAL),
    Row("stop-now", orders::stop_now, USUAL),
    Row("pause", orders::pause, USUAL),
    Row("pause-now", orders::pause_now, USUAL),
    Row("skip", orders::skip, USUAL),
    Row("not-logged-in", setup::not_logged_in, USUAL),
    Row("wrong-model", setup::wrong_model, USUAL),
    Row("unknown-flag", setup::unknown_flag, USUAL),
    Row("broken-settings", setup::broken_settings, USUAL),
    Row("no-settings", setup::no_settings, USUAL),
    Row("runner-dies", deaths::runner, USUAL),
    Row("runner-dies-unkept", deaths::runner_unkept, USUAL),
    Row("agent-dies", deaths::agent, USUAL),
];

/// Argument with which this program starts itself in the namespace.
const INSIDE: &str = "--inside";

/// Argument after `--inside`: runs one long check instead of the usual ones.
const FILL: &str = "--fill";
const KILL: &str = "--kill";

/// Installs the agents, then runs the named checks, or all, in a network namespace.
pub fn run(root: &Path, words: &[&str]) -> Result<(), String> {
    if let [INSIDE, claude, opencode, tachikoma, names @ ..] = words {
        isolation::expect_only_loopback()?;
        let programs = Programs {
            claude: PathBuf::from(claude),
            opencode: PathBuf::from(opencode),
            tachikoma: PathBuf::from(tachikoma),
        };
        return match names {
            [FILL, reboots] => many_times(&programs, reboots, fill::soak),
            [KILL, kills] => many_times(&programs, kills, opencode_kills::soak),
            names => make(&programs, names),
        };
    }
    known(words)?;
    enter(root, words)
}

/// Fills a context window this many times, in a network namespace. For the soak.
pub fn fill(root: &Path, reboots: u32) -> Result<String, String> {
    enter(root, &[FILL, &reboots.to_string()])?;
    Ok(format!("{reboots} reboots of the real agent lost no work"))
}

/// Kills the real server this many times while a loop uses it, in a network namespace. For the soak.
pub fn kill_opencode(root: &Path, kills: u32) -> Result<String, String> {
    enter(root, &[KILL, &kills.to_string()])?;
    Ok(format!(
        "{kills} kills of the real server lost and doubled nothing"
    ))
}

fn enter(root: &Path, words: &[&str]) -> Result<(), String> {
    let programs = [
        install::claude()?,
        install::opencode()?,
        product::build(root)?,
    ];
    let programs = programs.map(|program| program.to_string_lossy().into_owned());
    let [claude, opencode, tachikoma] = &programs;
    let ours = [
        &["real-agents", INSIDE, claude, opencode, tachikoma][..],
        words,
    ]
    .concat();
    isolation::run_inside(&ours)
}

fn many_times(
    programs: &Programs,
    times: &str,
    soak: fn(&Programs, u32) -> String,
) -> Result<(), String> {
    let times: u32 = times.parse().map_err(|_| "so many times are no number")?;
    let saw = soak(programs, times);
    println!("    {saw}");
    Ok(())
}

fn checks() -> impl Iterator<Item = &'static Row> {
    GROUPS.into_iter().flatten()
}

/// Rejects unknown names of checks.
fn known(names: &[&str]) -> Result<(), String> {
    let unknown = |name: &&&str| !checks().any(|row| row.0 == **name);
    match names.iter().find(unknown) {
        None => Ok(()),
        Some(name) => {
            let known: Vec<_> = checks().map(|Row(name, ..)| *name).collect();
            let known = known.join(", ");
            Err(format!("no check is called {name}; there are {known}"))
        }
    }
}

/// Runs the checks one after the other, even after a failure, and prints each result.
fn make(programs: &Programs, names: &[&str]) -> Result<(), String> {
    let started = Instant::now();
    let mut failed = Vec::new();
    let wanted = |row: &&Row| names.is_empty() || names.contains(&row.0);
    let rows: Vec<&Row> = checks().filter(wanted).collect();
    for Row(name, check, patience) in &rows {
        let began = Instant::now();
        let ended = one(*check, programs, *patience);
        let took = began.elapsed().as_secs_f64();
        match ended {
            Ok(saw) => println!("ok    {name:<20} {took:>5.1} s  {saw}"),
            Err(why) => {
                println!("FAIL  {name:<20} {took:>5.1} s  {why}");
                failed.push(*name);
            }
        }
    }
    let took = started.elapsed().as_secs_f64();
    let count = rows.len();
    if failed.is_empty() {
        println!("{count} checks of the real agent passed in {took:.0} s");
        return Ok(());
    }
    let names = failed.join(", ");
    Err(format!(
        "{} of {count} checks failed: {names}",
        failed.len()
    ))
}

/// Runs one check, and verifies that it left no process running.
fn one(check: Check, programs: &Programs, patience: Duration) -> Result<String, String> {
    let ground = Ground::new(programs, patience);
    let ended = catch_unwind(AssertUnwindSafe(|| check(&ground)));
    let left = isolation::clear_away();
    match (ended, left) {
        (Ok(saw), left) if left.is_empty() => Ok(saw),
        (Ok(_), left) => Err(format!("left processes behind: {}", left.join("; "))),
        (Err(panic), _) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(text.unwrap_or("it panicked").to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_names_of_checks_are_rejected() {
        assert_eq!(known(&["tools", "resume"]), Ok(()));
        let refused = known(&["tools", "tool"]).expect_err("nothing is called so");
        assert!(
            refused.starts_with("no check is called tool; there are simple-text, "),
            "{refused}"
        );
    }

    #[test]
    fn names_of_checks_are_unique() {
        let mut names: Vec<_> = checks().map(|Row(name, ..)| *name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), checks().count());
    }
}
