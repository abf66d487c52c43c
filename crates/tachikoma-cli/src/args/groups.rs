//! The groups of commands in the main help.

use std::fmt::Write as _;

use clap::Command;

/// The groups, in the order of a user's first hours. Short help describes the commands of the first.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Start", &["init", "doctor", "run", "demo"]),
    ("Watch", &["status", "logs", "events"]),
    (
        "Steer",
        &[
            "pause", "resume", "skip", "stop", "reboot", "tell", "answer", "attend", "reload",
        ],
    ),
    (
        "Look back",
        &[
            "history",
            "context",
            "explain",
            "replay",
            "diff",
            "rollback",
            "checkpoint",
        ],
    ),
    (
        "Maintain",
        &[
            "config",
            "state",
            "trust",
            "agents",
            "opencode",
            "notify",
            "service",
            "completions",
        ],
    ),
    ("For agents", &["note", "done"]),
];

/// Number of groups that the short help describes command by command.
const DESCRIBED: usize = 1;

/// Returns the groups for `-h`, which has to fit on one screen.
pub fn short(command: &Command) -> String {
    let mut text = String::new();
    for (place, (title, names)) in GROUPS.iter().enumerate() {
        if place < DESCRIBED {
            describe(&mut text, command, title, names);
        } else {
            let _ = writeln!(text, "{title:<12}{}", names.join(", "));
        }
    }
    text.push_str(
        "\n`tachikoma --help` describes every command, `tachikoma COMMAND -h` one of them.\n",
    );
    text
}

/// Returns the groups for `--help`, with a description of every command.
pub fn long(command: &Command) -> String {
    let mut text = String::new();
    for (title, names) in GROUPS {
        describe(&mut text, command, title, names);
    }
    text
}

fn describe(text: &mut String, command: &Command, title: &str, names: &[&str]) {
    let _ = writeln!(text, "{title}:");
    for name in names {
        let about = command.find_subcommand(name).and_then(Command::get_about);
        let about = about.map(ToString::to_string).unwrap_or_default();
        let _ = writeln!(text, "  {name:<13}{about}");
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory as _;

    use super::*;
    use crate::args::Args;

    #[test]
    fn every_command_is_in_exactly_one_group() {
        let command = Args::command();
        let commands: BTreeSet<&str> = command.get_subcommands().map(Command::get_name).collect();
        let grouped: Vec<&str> = GROUPS
            .iter()
            .flat_map(|(_, names)| *names)
            .copied()
            .collect();
        assert_eq!(grouped.len(), commands.len());
        assert_eq!(grouped.into_iter().collect::<BTreeSet<_>>(), commands);
    }

    #[test]
    fn short_help_fits_on_a_screen_of_24_lines() {
        let mut command = Args::command();
        command = command.clone().before_help(short(&command));
        let lines = command.render_help().to_string().lines().count();
        assert!(lines <= 24, "{lines} lines");
    }
}
