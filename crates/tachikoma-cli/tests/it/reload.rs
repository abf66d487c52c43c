//! The configuration is reloaded while the loop runs.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tachikoma_testkit::{Scratch, await_until};

use crate::attended_support::await_question;
use crate::live_support::{
    SOON, UNTIL_GO, UP, await_status, await_up, events, go, is_alive, obey, status, stop, tool,
    with_agent,
};

const CONFIG: &str = "iteration_delay = \"0s\"\n[agent]\nname = \"command\"\n[agents.command]\nprogram = [\"sh\", \"agent.sh\"]\n";

fn configured() -> Scratch {
    let scratch = with_agent(&format!("{UP} {UNTIL_GO}"));
    scratch.write("tachikoma.toml", CONFIG);
    scratch
}

/// Returns the reload events of the journal.
fn reloaded(events: &[Value]) -> Vec<&Value> {
    let events = events.iter().map(|record| &record["event"]);
    events.filter(|event| event["what"] == "reloaded").collect()
}

#[test]
fn a_reload_applies_some_settings_at_once_and_names_the_others() {
    let scratch = configured();
    let tool = tool(&scratch);
    let live = tool.spawn(["run"]);
    await_up(&scratch, 1);
    assert_eq!(obey(&tool, &["reload"]), "nothing changed\n");
    let changed = CONFIG.replace("agent.sh", "other.sh");
    scratch.write("tachikoma.toml", format!("max_iterations = 2\n{changed}"));
    assert_eq!(
        obey(&tool, &["reload"]),
        "changed now: max_iterations; changed for the next run: agents.command.program\n"
    );
    assert_eq!(
        obey(&tool, &["reload"]),
        "nothing changed; changed for the next run: agents.command.program\n"
    );
    let conditions = status(&tool)["stop_conditions"].clone();
    let limit = |it: &&Value| it["name"] == "max_iterations";
    let limit = conditions.as_array().unwrap().iter().find(limit);
    assert_eq!(limit.unwrap()["limit"], "2", "{conditions}");
    go(&scratch, 1);
    await_up(&scratch, 2);
    go(&scratch, 2);
    assert_eq!(live.wait(SOON).code(), Some(3), "max_iterations");
    let events = events(&tool);
    let found = reloaded(&events);
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!(
        found[0]["changes"],
        json!([{"key": "max_iterations", "from": null, "to": "2"}])
    );
    // If no setting changes at once, the event names only the settings for the next run.
    let said = obey(&tool, &["events"]);
    assert!(!said.contains("did not record"), "{said}");
    let later = "changed, and holds with the next run only: agents.command.program";
    assert_eq!(said.matches(later).count(), 2, "{said}");
    let again = tool.run(["replay"]);
    assert_eq!(again.code(), Some(0), "{}", again.snapshot());
    let same = "with the recorded settings every decision is the same";
    assert!(again.stdout.contains(same), "{}", again.stdout);
}

#[test]
fn settings_that_a_flag_overrides_are_named_on_reload() {
    let scratch = configured();
    let tool = tool(&scratch);
    let live = tool.spawn(["run", "--delay", "7s"]);
    await_up(&scratch, 1);
    let changed = CONFIG.replace("0s", "3s");
    scratch.write("tachikoma.toml", &changed);
    assert_eq!(
        obey(&tool, &["reload"]),
        "no effective setting changed; changed, but overridden by a flag of this run: iteration_delay\n"
    );
    scratch.write("tachikoma.toml", format!("max_iterations = 2\n{changed}"));
    assert_eq!(
        obey(&tool, &["reload"]),
        "changed now: max_iterations; changed, but overridden by a flag of this run: iteration_delay\n"
    );
    assert_eq!(stop(&tool, live), Some(5));
    // A reload without any change is not recorded.
    let events = events(&tool);
    assert_eq!(reloaded(&events).len(), 1);
    let said = obey(&tool, &["events"]);
    assert!(!said.contains("for the next run"), "{said}");
    let dry = tool.run(["run", "--dry-run"]);
    assert!(dry.snapshot().contains("3s"), "{}", dry.snapshot());
}

#[test]
fn an_invalid_configuration_changes_nothing_on_reload() {
    let scratch = configured();
    let tool = tool(&scratch);
    let live = tool.spawn(["run"]);
    await_up(&scratch, 1);
    scratch.write("tachikoma.toml", format!("max_iteration = 1\n{CONFIG}"));
    let refused = tool.run(["reload"]);
    assert_eq!(refused.code(), Some(1), "{}", refused.snapshot());
    assert!(
        refused.stderr.contains("unknown key `max_iteration`"),
        "{}",
        refused.stderr
    );
    go(&scratch, 1);
    await_up(&scratch, 2);
    assert_eq!(stop(&tool, live), Some(5));
    let events = events(&tool);
    let warned = |record: &Value| record["event"].to_string().contains("was not reloaded");
    assert!(events.iter().any(warned));
    assert!(reloaded(&events).is_empty());
}

#[test]
fn an_agent_that_edits_the_configuration_cannot_reload_it() {
    let scratch = with_agent(&format!(
        "printf 'max_iterations = 1\\n' >tachikoma.toml; tachikoma reload >said 2>&1; echo $? >>said; {UP} {UNTIL_GO}"
    ));
    let tool = tool(&scratch);
    let live = tool.spawn(["run", "--delay", "0s", "--", "sh", "agent.sh"]);
    await_up(&scratch, 1);
    let said = scratch.read("said");
    assert!(
        said.contains("only the operator may ask this") && said.ends_with("\n1\n"),
        "{said}"
    );
    go(&scratch, 1);
    await_up(&scratch, 2);
    assert_eq!(stop(&tool, live), Some(5));
}

#[test]
fn sighup_reloads_the_configuration_of_a_detached_loop() {
    let scratch = configured();
    let tool = tool(&scratch);
    obey(&tool, &["run", "--detach"]);
    await_up(&scratch, 1);
    let live = await_status(&tool, "it runs", |status| status["state"] == "running");
    let runner = u32::try_from(live["runner"]["pid"].as_u64().unwrap()).unwrap();
    scratch.write("tachikoma.toml", format!("attended_mode = true\n{CONFIG}"));
    let pid = Pid::from_raw(i32::try_from(runner).unwrap()).unwrap();
    kill_process(pid, Signal::HUP).unwrap();
    await_until("it is recorded", SOON, || {
        reloaded(&events(&tool)).len() == 1
    });
    go(&scratch, 1);
    await_question(&tool, 1);
    obey(&tool, &["answer", "stop"]);
    await_until("the runner is gone", SOON, || !is_alive(runner));
}
