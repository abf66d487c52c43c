//! `tachikoma run --agent claude` until the work is complete: claims of the real agent and how they are checked.

use tachikoma_testkit::{Scenario, ScriptedModel, Turn, Usage};

use super::ground::Ground;
use super::looping::{LIMIT_REACHED, Looping, event_names, of_type, only, outcomes};

/// Exit code of a loop with completed work.
const DONE: i32 = 0;

const CLAIM: &str = "All is done.\n<promise>COMPLETE</promise>";

/// Number of false claims.
const FALSE_CLAIMS: usize = 10;

/// Ten false claims are rejected, and the eleventh, which is true, is accepted at once.
pub fn claims(ground: &Ground) -> String {
    let claim = || Turn::text(CLAIM).using(Usage::cached(9_000));
    let mut turns = vec![Turn::bash("true").using(Usage::cached(8_000))];
    turns.extend((0..FALSE_CLAIMS).map(|_| claim()));
    turns.extend([
        Turn::bash("touch proof").using(Usage::cached(9_100)),
        claim(),
    ]);
    let model = ScriptedModel::start(Scenario::of(turns));
    let settings = [
        ("STOP_CONDITIONS__MAX_TEST_FAILURE_STREAK", "0"),
        ("STOP_CONDITIONS__MAX_NO_PROGRESS_ITERATIONS", "0"),
        // Reboots are disabled, because a hand-off would be requested in between.
        ("REBOOT__ENABLED", "false"),
        (
            "GATE",
            r#"[{ name = "proof", command = "echo no proof; test -e proof" }]"#,
        ),
    ];
    let events = Looping::start(ground, &model, &settings, 20).end(DONE);
    let refused = of_type(&events, "claim_refused").len();
    assert_eq!(refused, FALSE_CLAIMS, "{}", event_names(&events));
    assert_eq!(outcomes(&events).len(), FALSE_CLAIMS + 1);
    let told_of = model.asked();
    let told_of = told_of.iter().filter(|asked| asked.prompts > 1);
    assert!(told_of.count() >= FALSE_CLAIMS, "it goes on being asked");
    format!("{refused} false claims refused, 1 believed")
}

/// In safe mode the agent can claim completion with a command.
pub fn done_in_safe_mode(ground: &Ground) -> String {
    let read = serde_json::json!({ "file_path": "prompt.md" });
    let model = ScriptedModel::start(Scenario::of([
        // The agent does some work first, because a claim without work is rejected.
        Turn::tool("Read", read).using(Usage::cached(7_000)),
        Turn::bash("tachikoma done --reason 'all tests pass'").using(Usage::cached(8_000)),
        Turn::text("that was it").using(Usage::cached(9_000)),
    ]));
    let settings = [("AGENTS__CLAUDE__PERMISSION", "safe")];
    let events = Looping::start(ground, &model, &settings, 3).end(DONE);
    let claimed = only(&events, "claimed");
    assert_eq!(
        claimed["reason"],
        "all tests pass",
        "{}",
        event_names(&events)
    );
    assert!(
        of_type(&events, "tool_denied").is_empty(),
        "{}",
        event_names(&events)
    );
    assert_eq!(outcomes(&events), ["succeeded"]);
    "one iteration".into()
}

/// A claim after a tool call that was denied, or blocked by a hook, is rejected. An allowed command is not denied.
pub fn denied_only(ground: &Ground) -> String {
    let claim = || Turn::text(CLAIM).using(Usage::cached(9_000));
    let tests = || Turn::bash("sh tests.sh").using(Usage::cached(8_000));
    let run = |ground: &Ground, settings: &[(&str, &str)], code| {
        ground.scratch.write("tests.sh", "echo passed\n");
        let model = ScriptedModel::start(Scenario::of([tests(), claim()]));
        let safe = [("AGENTS__CLAUDE__PERMISSION", "safe")];
        Looping::start(ground, &model, &[&safe, settings].concat(), 1).end(code)
    };
    let events = run(ground, &[], LIMIT_REACHED);
    let denied = only(&events, "tool_denied");
    assert_eq!(denied["summary"], "sh tests.sh", "{denied}");
    assert_eq!(denied["remedy"], r#"agents.claude.allow = ["sh tests.sh"]"#);
    assert_eq!(
        of_type(&events, "claim_refused").len(),
        1,
        "{}",
        event_names(&events)
    );

    let allowed = ground.another();
    let allow = [("AGENTS__CLAUDE__ALLOW", r#"["sh tests.sh"]"#)];
    let events = run(&allowed, &allow, DONE);
    assert!(
        of_type(&events, "tool_denied").is_empty(),
        "{}",
        event_names(&events)
    );

    let blocked = ground.another();
    hook(&blocked, "PreToolUse");
    let events = run(&blocked, &allow, LIMIT_REACHED);
    assert_eq!(
        of_type(&events, "claim_refused").len(),
        1,
        "{}",
        event_names(&events)
    );
    "not believed; believed with the command allowed; not believed with a hook that blocks it"
        .into()
}

/// A prompt that a hook rejects is a failed iteration: no request is sent to the model.
pub fn refused_prompt(ground: &Ground) -> String {
    let model = ScriptedModel::start(Scenario::of([Turn::text("never asked for")]));
    hook(ground, "UserPromptSubmit");
    let events = Looping::start(ground, &model, &[], 1).ended(LIMIT_REACHED);
    assert_eq!(outcomes(&events), ["failed"], "{}", event_names(&events));
    let failure = only(&events, "iteration_failed").to_string();
    assert!(failure.contains("sent no request"), "{failure}");
    assert!(model.asked().is_empty(), "nothing was sent");
    "failed, and says that a hook refuses the prompt".into()
}

/// Installs a hook of Claude Code that rejects every `event`.
fn hook(ground: &Ground, event: &str) {
    let hooks =
        serde_json::json!([{"hooks": [{"type": "command", "command": "echo no >&2; exit 2"}]}]);
    let settings = serde_json::json!({"hooks": {event: hooks}});
    ground
        .scratch
        .write(".claude/settings.json", settings.to_string());
}
