//! What OpenCode may do without asking. Unasked it may do everything but leave the work tree, so the safe way is to make it
//! ask; the bridge answers.

use serde_json::{Value, json};

use crate::Permission;

/// What the agent is told about a call that it may not make. With words the turn goes on; without it would end.
pub const DENIED: &str = "Denied: this loop runs with permission = \"safe\", nobody is there to ask, and asking again does \
    not help. Files in the work tree can be read and changed; find a way without this call, or say what is missing.";

/// What reads, and what writes into the work tree. A path outside is a permission of its own, `external_directory`.
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

/// The loop's own commands, as the patterns of `bash`.
pub(super) const OWN_COMMANDS: [&str; 4] = [
    "tachikoma note *",
    "tachikoma done",
    "tachikoma done *",
    "tachikoma status*",
];

/// Returns the rules of a conversation, in the server's form; the last one that matches holds.
#[must_use]
pub fn rules(permission: Permission) -> Value {
    let rule = |permission: &str, pattern: &str, action: &str| json!({"permission": permission, "pattern": pattern, "action": action});
    let mut rules = Vec::new();
    if permission == Permission::Safe {
        rules.push(rule("*", "*", "ask"));
        rules.extend(ALLOWED.map(|name| rule(name, "*", "allow")));
        rules.extend(OWN_COMMANDS.map(|command| rule("bash", command, "allow")));
        // A sub-agent has a conversation of its own, to which these rules do not pass.
        rules.push(rule("task", "*", "deny"));
    }
    // Nobody is there to answer.
    rules.push(rule("question", "*", "deny"));
    Value::Array(rules)
}

/// Returns the same for `opencode run`, which reads it from a variable and answers questions by itself.
pub(super) fn variable(permission: Permission) -> Option<String> {
    if permission == Permission::Bypass {
        return None;
    }
    // The order of members is that of the rules, and the map of the library sorts them; so this is written by hand.
    let members = |names: &[&str], action: &str| -> String {
        let members = names.iter().map(|name| format!("\"{name}\":\"{action}\""));
        members.collect::<Vec<_>>().join(",")
    };
    Some(format!(
        "{{\"*\":\"deny\",{},\"bash\":{{\"*\":\"deny\",{}}}}}",
        members(&ALLOWED, "allow"),
        members(&OWN_COMMANDS, "allow")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn safe_makes_it_ask_for_everything_but_files_and_our_own_commands() {
        let shown = |permission| {
            let rules = rules(permission);
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
    bash tachikoma note *: allow
    bash tachikoma done: allow
    bash tachikoma done *: allow
    bash tachikoma status*: allow
    task *: deny
    question *: deny
    ");
        insta::assert_snapshot!(shown(Permission::Bypass), @"question *: deny");
    }

    #[test]
    fn the_variable_is_json_whose_first_rule_is_the_widest() {
        let text = variable(Permission::Safe).expect("rules");
        assert!(text.starts_with(r#"{"*":"deny","#), "{text}");
        let value: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(value["edit"], "allow");
        assert_eq!(value["bash"]["tachikoma note *"], "allow");
        assert_eq!(variable(Permission::Bypass), None);
    }
}
