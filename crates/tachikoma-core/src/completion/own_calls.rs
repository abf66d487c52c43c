//! Recognizes tool calls that only run `tachikoma` commands. They do not count as work.

/// `tachikoma` commands that an agent may run.
const COMMANDS: [&str; 3] = ["done", "note", "status"];

/// Shell commands that may stand next to a `tachikoma` command and change nothing.
const AROUND: [&str; 4] = ["cd", "echo", "true", "printf"];

/// Returns whether a tool call only runs `tachikoma` commands.
pub(crate) fn only_talks_to_the_loop(summary: &str) -> bool {
    let parts = summary.split(['&', ';', '|', '\n']);
    let mut spoke = false;
    for part in parts {
        let mut words = part.split_whitespace();
        let Some(program) = words.next() else {
            continue;
        };
        let name = program.rsplit('/').next().unwrap_or(program);
        let asks = words.find(|word| !word.starts_with('-'));
        if name == "tachikoma" && asks.is_some_and(|word| COMMANDS.contains(&word)) {
            spoke = true;
        } else if !AROUND.contains(&name) || part.contains('>') {
            return false;
        }
    }
    spoke
}

#[cfg(test)]
mod tests {
    use super::only_talks_to_the_loop;

    #[test]
    fn calls_of_tachikoma_commands_do_not_count_as_work() {
        for talk in [
            "tachikoma done",
            "/usr/bin/tachikoma done --reason 'all is well'",
            "cd /repo && tachikoma done",
            "tachikoma -q status --json; tachikoma note 'x'",
            "tachikoma done || echo failed",
        ] {
            assert!(only_talks_to_the_loop(talk), "{talk}");
        }
        for work in [
            "",
            "make test",
            "make && tachikoma done",
            "tachikoma run",
            "echo tachikoma done",
            "echo x > file; tachikoma done",
            "cat tachikoma.toml",
        ] {
            assert!(!only_talks_to_the_loop(work), "{work}");
        }
    }
}
