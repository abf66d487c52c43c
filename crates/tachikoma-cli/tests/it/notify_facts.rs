//! Hooks and notifications get the same facts.

use std::fs;

use serde_json::Value;
use tachikoma_testkit::{Scratch, Tool};

use crate::hooks::hook;
use crate::live_support::tool;

const POINTS: [&str; 10] = [
    "loop_start",
    "loop_end",
    "session_start",
    "session_end",
    "iteration_start",
    "iteration_end",
    "before_reboot",
    "after_reboot",
    "error",
    "no_progress",
];

/// An agent that fails in the first iteration, succeeds in the second and completes the work in the third. A reboot follows the second.
const AGENT: &str = "case $TACHIKOMA_ITERATION in 1) exit 3;; 2) ;; *) echo done >work; echo '<promise>COMPLETE</promise>';; esac\n";

fn told(scratch: &Scratch, by: &str) -> Vec<(String, Value)> {
    let mut told: Vec<(String, Value)> = fs::read_dir(scratch.home().join(by))
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let text = fs::read_to_string(entry.path()).unwrap();
            (name, serde_json::from_str(&text).unwrap())
        })
        .collect();
    told.sort_by(|one, other| one.0.cmp(&other.0));
    told
}

fn configured(scratch: &Scratch) -> Tool<'_> {
    let says = |by: &str| {
        format!(
            "cat >{}/$TACHIKOMA_HOOK.$TACHIKOMA_ITERATION.$TACHIKOMA_SESSION.$TACHIKOMA_OUTCOME",
            scratch.home().join(by).display()
        )
    };
    let hooks = POINTS.map(|on| hook(on, &says("hooks"), ""));
    let messages = POINTS.map(|on| {
        format!(
            "[[notify]]\nto = 'command'\non = ['{on}']\nmax_per_hour = 0\ncommand = '{}'\n",
            says("messages")
        )
    });
    let reboot =
        "[reboot]\nmin_reboot_interval = \"0s\"\n[reboot.triggers]\nafter_iterations = 2\n";
    scratch.write(
        "tachikoma.toml",
        format!("{}{}{reboot}", hooks.concat(), messages.concat()),
    );
    for dir in ["hooks", "messages"] {
        // The directory is outside of the work tree, because a new file would count as progress.
        fs::create_dir(scratch.home().join(dir)).unwrap();
    }
    scratch.write("prompt.md", "work\n");
    scratch.write("agent.sh", AGENT);
    tool(scratch)
}

#[test]
fn a_hook_and_a_message_have_the_same_facts() {
    let scratch = Scratch::new();
    let ran = configured(&scratch).run(["run", "--delay", "0s", "--", "sh", "agent.sh"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let mut messages = told(&scratch, "messages");
    for (_, message) in &mut messages {
        let message = message.as_object_mut().unwrap();
        assert!(message.remove("text").is_some());
        assert!(message.remove("time").is_some());
    }
    let hooks = told(&scratch, "hooks");
    let names = |told: &[(String, Value)]| -> Vec<String> {
        told.iter().map(|(name, _)| name.clone()).collect()
    };
    assert_eq!(names(&messages), names(&hooks));
    for point in POINTS {
        assert!(
            names(&hooks).iter().any(|it| it.starts_with(point)),
            "{point}: {:?}",
            names(&hooks)
        );
    }
    assert_eq!(messages, hooks);
}
