//! Calls of tools that are no work: an agent that only talks to the loop has done nothing.

/// What an agent may ask of the loop from inside its own turn.
const COMMANDS: [&str; 3] = ["done", "note", "status"];

/// What is put around such a command, and does nothing by itself.
const AROUND: [&str; 4] = ["cd", "echo", "true", "printf"];

/// Returns whether what a tool was called with, in a few words, is nothing but words to the loop.
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
    fn words_to_the_loop_are_told_from_work() {
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
