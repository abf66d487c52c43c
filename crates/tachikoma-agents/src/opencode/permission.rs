//! What OpenCode may do without asking. By default it may do everything inside of the work tree, so in safe mode it has to
//! ask, and the bridge answers.

use serde_json::{Value, json};

use crate::Permission;

/// The answer of the bridge to a denied call. With a text the turn continues. Without a text it would end.
pub const DENIED: &str = "Denied: this loop runs with permission = \"safe\", there is no user to ask, and asking again does \
    not help. Files in the work tree can be read and changed; find a way without this call, or say what is missing.";

/// Tools that read, and tools that write into the work tree. A path outside of it needs `external_directory`.
const ALLOWED: [&str; 9] = [
    "read",
    "edit",
    "glob",
    "grep",
    "list",
    "lsp",
    "skill",
    "todowrite",
    "todoread",
];

/// Files that name programs which git runs, outside of the agent's permissions, as patterns of `edit`.
const FILES_OF_GIT: [&str; 3] = [".git", ".git/*", "*/.git/*"];

/// The commands of Tachikoma, as patterns of `bash`.
pub(super) const OWN_COMMANDS: [&str; 4] = [
    "tachikoma note *",
    "tachikoma done",
    "tachikoma done *",
    "tachikoma status*",
];

/// Patterns of commands with redirections or expansions, which could do more than the allowed command.
const MORE: [&str; 4] = ["*>*", "*<*", "*$*", "*`*"];

/// Subcommands of `tachikoma` that an agent may always call.
const OWN_WORDS: [&str; 3] = ["note", "done", "status"];

/// Returns whether a command line is one command of Tachikoma, or one that `allow` permits, and nothing else, in any shell.
#[must_use]
pub fn is_permitted_command(line: &str, allow: &[String]) -> bool {
    // Agents redirect stderr to stdout in most commands. This redirection writes no file, so it is allowed.
    let line = line.trim();
    let line = line.strip_suffix("2>&1").unwrap_or(line);
    let Some(words) = words(line) else {
        return false;
    };
    let is_allowed = |command: &String| {
        let mut words = words.iter();
        command
            .split_whitespace()
            .all(|part| words.next().is_some_and(|word| word == part))
    };
    let is_own = words.first().is_some_and(|word| word == "tachikoma")
        && words
            .get(1)
            .is_some_and(|word| OWN_WORDS.contains(&word.as_str()));
    is_own || allow.iter().any(is_allowed)
}

/// Splits a command into words; `None` if a shell would do more than run it with these arguments.
fn words(line: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut letters = line.trim().chars();
    while let Some(letter) = letters.next() {
        let open = word.get_or_insert_default();
        match letter {
            '\'' => loop {
                match letters.next()? {
                    '\'' => break,
                    letter => open.push(letter),
                }
            },
            '"' => loop {
                match letters.next()? {
                    '"' => break,
                    '$' | '`' => return None,
                    '\\' => open.push(letters.next().filter(|c| matches!(c, '"' | '\\'))?),
                    letter => open.push(letter),
                }
            },
            ' ' | '\t' => words.extend(word.take().filter(|word| !word.is_empty())),
            ';' | '&' | '|' | '<' | '>' | '(' | ')' | '$' | '`' | '\\' => return None,
            letter if letter.is_control() => return None,
            letter => open.push(letter),
        }
    }
    words.extend(word);
    Some(words)
}

/// Returns the rules of a conversation in the server's format; the last matching rule wins.
#[must_use]
pub fn rules(permission: Permission, allow: &[String]) -> Value {
    let rule = |permission: &str, pattern: &str, action: &str| json!({"permission": permission, "pattern": pattern, "action": action});
    let mut rules = Vec::new();
    if permission == Permission::Safe {
        rules.push(rule("*", "*", "ask"));
        rules.extend(ALLOWED.map(|name| rule(name, "*", "allow")));
        rules.extend(FILES_OF_GIT.map(|path| rule("edit", path, "ask")));
        rules.extend(OWN_COMMANDS.map(|command| rule("bash", command, "allow")));
        rules.extend(patterns(allow).map(|command| rule("bash", &command, "allow")));
        rules.extend(MORE.map(|command| rule("bash", command, "ask")));
        // A sub-agent has its own conversation, to which these rules do not apply.
        rules.push(rule("task", "*", "deny"));
    }
    // No user is there to answer a question of the agent.
    rules.push(rule("question", "*", "deny"));
    Value::Array(rules)
}

/// Returns the patterns of allowed commands, without and with arguments.
fn patterns(allow: &[String]) -> impl Iterator<Item = String> {
    allow
        .iter()
        .flat_map(|command| [command.clone(), format!("{command} *")])
}

/// Returns the rules for `opencode run`, which reads them from a variable and answers permission requests itself.
pub(super) fn variable(permission: Permission, allow: &[String]) -> Option<String> {
    if permission == Permission::Bypass {
        return None;
    }
    // The order of members matters, and the library's map sorts them, so the JSON is written by hand.
    let members = |names: &[&str], action: &str| -> String {
        let members = names
            .iter()
            .map(|name| format!("{}:\"{action}\"", json!(name)));
        members.collect::<Vec<_>>().join(",")
    };
    let others: Vec<&str> = (ALLOWED.into_iter())
        .filter(|name| *name != "edit")
        .collect();
    let allowed: Vec<String> = patterns(allow).collect();
    let commands: Vec<&str> = OWN_COMMANDS
        .into_iter()
        .chain(allowed.iter().map(String::as_str))
        .collect();
    Some(format!(
        "{{\"*\":\"deny\",{},\"edit\":{{\"*\":\"allow\",{}}},\"bash\":{{\"*\":\"deny\",{},{}}}}}",
        members(&others, "allow"),
        members(&FILES_OF_GIT, "deny"),
        members(&commands, "allow"),
        members(&MORE, "deny")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn safe_mode_asks_for_everything_but_files_and_our_own_commands() {
        let shown = |permission| {
            let rules = rules(permission, &["cargo test".to_owned()]);
            let rules = rules.as_array().expect("a list").iter();
            let word = |rule: &Value, name: &str| rule[name].as_str().expect("a word").to_owned();
            rules
                .map(|rule| {
                    let (name, pattern) = (word(rule, "permission"), word(rule, "pattern"));
                    format!("{name} {pattern}: {}", word(rule, "action"))
                })
                .collect::<Vec<_>>()
                .join("\n")
        };
        insta::assert_snapshot!(shown(Permission::Safe), @"
    * *: ask
    read *: allow
    edit *: allow
    glob *: allow
    grep *: allow
    list *: allow
    lsp *: allow
    skill *: allow
    todowrite *: allow
    todoread *: allow
    edit .git: ask
    edit .git/*: ask
    edit */.git/*: ask
    bash tachikoma note *: allow
    bash tachikoma done: allow
    bash tachikoma done *: allow
    bash tachikoma status*: allow
    bash cargo test: allow
    bash cargo test *: allow
    bash *>*: ask
    bash *<*: ask
    bash *$*: ask
    bash *`*: ask
    task *: deny
    question *: deny
    ");
        insta::assert_snapshot!(shown(Permission::Bypass), @"question *: deny");
    }

    #[test]
    fn permission_variable_is_json_with_the_widest_rule_first() {
        let text = variable(Permission::Safe, &["make".to_owned()]).expect("rules");
        assert!(text.starts_with(r#"{"*":"deny","#), "{text}");
        let value: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(value["edit"]["*"], "allow");
        assert_eq!(value["edit"][".git/*"], "deny");
        assert_eq!(value["bash"]["tachikoma note *"], "allow");
        assert_eq!(value["bash"]["make *"], "allow");
        let (allowed, denied) = (text.find("tachikoma status*"), text.find("*>*"));
        assert!(
            allowed < denied,
            "the last matching rule applies, so deny rules come last: {text}"
        );
        assert_eq!(value["bash"]["*>*"], "deny");
        assert_eq!(variable(Permission::Bypass, &[]), None);
    }

    #[test]
    fn only_our_own_and_allowed_commands_are_permitted() {
        let allow = ["cargo test".to_owned()];
        for own in [
            "tachikoma note mind the beans",
            " tachikoma  note 'a -> b; $5 `x`' ",
            "tachikoma note \"a -> \\\"b\\\" & c\"",
            "tachikoma note 'two\nlines'",
            "tachikoma done",
            "tachikoma status --json",
            "cargo test",
            "cargo test --all -- 'a b' 2>&1",
        ] {
            assert!(is_permitted_command(own, &allow), "{own}");
        }
        for other in [
            "",
            "tachikoma",
            "tachikoma stop",
            "'' tachikoma note x; rm -r .",
            "tachikoma note hi > /elsewhere",
            "tachikoma note hi >> x",
            "tachikoma note < /etc/passwd",
            "tachikoma note x | tee y",
            "tachikoma note x & rm y",
            "tachikoma note x\nrm y",
            "tachikoma note $(cat y)",
            "tachikoma note \"$(cat y)\"",
            "tachikoma note \"`cat y`\"",
            "tachikoma note \"$HOME\"",
            "tachikoma note \\\nx",
            "tachikoma note 'open",
            "tachikoma note \"open",
            "X=1 tachikoma note x",
            "./tachikoma note x",
            "sh -c 'tachikoma note x'",
            "cargo",
            "cargo tests",
            "cargo build",
            "cargo test > Cargo.toml",
            "cargo test && rm -r .",
        ] {
            assert!(!is_permitted_command(other, &allow), "{other}");
        }
    }
}
