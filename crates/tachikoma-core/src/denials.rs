//! Tool calls that the agent was not permitted to make, and the configuration that permits them.

use serde::{Deserialize, Serialize};

use crate::is_zero;

/// Maximum number of different denied calls that are remembered. Others are only counted.
pub const DENIALS_MAX: usize = 32;

/// Programs that Claude Code runs with `permission = "safe"`. They need no entry in `allow`.
const ALWAYS_ALLOWED: [&str; 13] = [
    "cd", "ls", "cat", "echo", "printf", "mkdir", "rm", "pwd", "head", "tail", "grep", "true", "wc",
];

/// Programs that run any command that they are given. To allow one of them alone would allow everything.
const INTERPRETERS: [&str; 13] = [
    "bash", "sh", "dash", "zsh", "python", "python3", "node", "perl", "ruby", "deno", "php", "awk",
    "find",
];

/// Programs that run another command, which follows their own options. No short entry in `allow` matches them.
const WRAPPERS: [&str; 17] = [
    "env", "sudo", "xargs", "nice", "timeout", "time", "nohup", "eval", "exec", "command",
    "stdbuf", "setsid", "parallel", "ssh", "docker", "npx", "watch",
];

/// What the configuration already permits the agent to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Permitted {
    /// Commands that `agents.NAME.allow` permits.
    pub commands: Vec<String>,
    /// Arguments of the agent in `agents.NAME.args`.
    pub args: Vec<String>,
}

/// A tool call that was denied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denial {
    /// Name of the tool.
    pub name: String,
    /// The agent's own id of the latest call; empty if it is unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// The command or the path of the call, shortened; empty if it is unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub summary: String,
    /// How often this call was denied in the loop, this time included; 0 in journals of older versions.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub times: u32,
    /// How often calls beyond the first 32 different ones were denied, this time included; 0 if this call is one of those 32.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub others: u32,
    /// The configuration line that permits the call; `None` if there is none for this agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// Returns the configuration lines that permit these calls in addition to what is `permitted` already.
#[must_use]
pub fn remedies(agent: &str, denials: &[Denial], permitted: &Permitted) -> Vec<String> {
    if !["claude", "opencode"].contains(&agent) {
        return Vec::new();
    }
    let mut commands = permitted.commands.clone();
    let (mut directories, mut tools) = (Vec::new(), Vec::new());
    let mut only_bypass = false;
    // For a denied call of a sub-agent, the command or path is unknown, so no configuration line can be suggested.
    for denial in denials.iter().filter(|denial| !denial.summary.is_empty()) {
        match denial.name.as_str() {
            "Bash" | "bash" => match prefixes(agent, &denial.summary) {
                Some(prefixes) => prefixes.into_iter().for_each(|p| add(&mut commands, p)),
                None => only_bypass = true,
            },
            "Read" | "Edit" | "MultiEdit" | "Write" | "NotebookEdit" => {
                match denial.summary.rsplit_once('/') {
                    Some((directory, _)) if directory.starts_with('/') => {
                        add(&mut directories, directory.to_owned());
                    }
                    _ => only_bypass = true,
                }
            }
            name if agent == "claude" => add(&mut tools, name.to_owned()),
            _ => only_bypass = true,
        }
    }
    let mut args = permitted.args.clone();
    for (option, words) in [("--add-dir", directories), ("--allowedTools", tools)] {
        if !words.is_empty() {
            args.push(option.to_owned());
            args.extend(words);
        }
    }
    let mut lines = Vec::new();
    for (key, words, before) in [
        ("allow", &commands, &permitted.commands),
        ("args", &args, &permitted.args),
    ] {
        if words != before {
            let words: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
            lines.push(format!("agents.{agent}.{key} = [{}]", words.join(", ")));
        }
    }
    if only_bypass {
        lines.push(format!("agents.{agent}.permission = \"bypass\""));
    }
    lines
}

fn add(list: &mut Vec<String>, word: String) {
    if !list.contains(&word) {
        list.push(word);
    }
}

/// Returns the beginnings of a shell command's parts that have to be allowed: the program and, where there is one, its
/// subcommand. `None` if a part is not that simple, so that no entry in `allow` permits it.
fn prefixes(agent: &str, command: &str) -> Option<Vec<String>> {
    let is_plain = |word: &str| {
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "_-./+:@".contains(letter);
        !word.is_empty() && word.chars().all(plain)
    };
    let is_subcommand = |word: &str| {
        is_plain(word) && !word.starts_with('-') && !word.contains(['/', '.']) && word.len() <= 20
    };
    let mut found = Vec::new();
    let command = command.replace("2>&1", "");
    let parts: Vec<&str> = command.split(['&', ';', '|', '\n']).collect();
    // OpenCode is only permitted a command that is alone on its line.
    if agent == "opencode" && parts.len() > 1 {
        return None;
    }
    for part in parts {
        let mut words = part.split_whitespace();
        let Some(program) = words.next() else {
            continue;
        };
        if agent == "claude" && ALWAYS_ALLOWED.contains(&program) {
            continue;
        }
        let name = program.rsplit('/').next().unwrap_or(program);
        if !is_plain(program) || WRAPPERS.contains(&name) {
            return None;
        }
        let next = words.next();
        let subcommand = if INTERPRETERS.contains(&name) {
            Some(next.filter(|word| is_plain(word) && !word.starts_with(['-', '.']))?)
        } else {
            next.filter(|word| is_subcommand(word))
        };
        add(
            &mut found,
            subcommand.map_or_else(|| program.to_owned(), |word| format!("{program} {word}")),
        );
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedies_are_lines_of_the_configuration() {
        let cases = [
            ("claude", "Bash", "cargo test --all 2>&1 | tail -5"),
            ("claude", "Bash", "cd sub && npm test; make -j8"),
            ("claude", "Bash", "./build.sh all"),
            ("claude", "Bash", "python3 tools/gen.py --all"),
            ("claude", "Bash", "/bin/bash -c 'make'"),
            ("claude", "Bash", "timeout 60 cargo test"),
            ("claude", "Bash", "FOO=1 make"),
            ("claude", "Bash", "rm -f /etc/passwd"),
            ("claude", "Bash", ""),
            ("claude", "Write", "/var/lib/x/y.txt"),
            ("claude", "WebFetch", "https://example.org"),
            ("opencode", "bash", "cargo test"),
            ("opencode", "bash", "cargo test | tail -5"),
            ("opencode", "webfetch", "https://example.org"),
            ("command", "x", "y"),
        ];
        let permitted = Permitted {
            commands: vec!["make".to_owned()],
            args: vec!["--verbose".to_owned()],
        };
        let lines = cases.map(|(agent, name, summary)| {
            let denial = Denial {
                name: name.to_owned(),
                summary: summary.to_owned(),
                ..Denial::default()
            };
            let lines = remedies(agent, &[denial], &permitted);
            let lines = if lines.is_empty() {
                "-".to_owned()
            } else {
                lines.join("; ")
            };
            format!("{name} {summary}: {lines}")
        });
        insta::assert_snapshot!(lines.join("\n"), @r#"
        Bash cargo test --all 2>&1 | tail -5: agents.claude.allow = ["make", "cargo test"]
        Bash cd sub && npm test; make -j8: agents.claude.allow = ["make", "npm test"]
        Bash ./build.sh all: agents.claude.allow = ["make", "./build.sh all"]
        Bash python3 tools/gen.py --all: agents.claude.allow = ["make", "python3 tools/gen.py"]
        Bash /bin/bash -c 'make': agents.claude.permission = "bypass"
        Bash timeout 60 cargo test: agents.claude.permission = "bypass"
        Bash FOO=1 make: agents.claude.permission = "bypass"
        Bash rm -f /etc/passwd: -
        Bash : -
        Write /var/lib/x/y.txt: agents.claude.args = ["--verbose", "--add-dir", "/var/lib/x"]
        WebFetch https://example.org: agents.claude.args = ["--verbose", "--allowedTools", "WebFetch"]
        bash cargo test: agents.opencode.allow = ["make", "cargo test"]
        bash cargo test | tail -5: agents.opencode.permission = "bypass"
        webfetch https://example.org: agents.opencode.permission = "bypass"
        x y: -
        "#);
    }
}
