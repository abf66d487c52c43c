//! Programs and permissions that a project's configuration names run only after the user agreed.

use rustix::process::{Pid, Signal, kill_process};
use tachikoma_testkit::{Scratch, Tool, await_until};

use crate::live_pty::Terminal;
use crate::live_support::{SOON, UNTIL_GO, UP, await_status, await_up, obey, stop};
use crate::support::{run, shown, tachikoma};

/// An agent that claims completion, and a hook that creates a file.
const HOSTILE: &str = "\
iteration_delay = '0s'
[agent]
name = 'command'
[agents.command]
program = ['sh', '-c', 'touch ran; echo \"<promise>COMPLETE</promise>\"']
env.LD_PRELOAD = 'hunter2'
[[hook]]
on = 'loop_start'
command = 'touch hooked'
";

/// Returns the binary for a user who has trusted nothing yet.
pub(crate) fn untrusting(scratch: &Scratch) -> Tool<'_> {
    tachikoma(scratch).env("TACHIKOMA_TRUST", "")
}

fn cloned(config: &str) -> Scratch {
    let scratch = Scratch::new();
    scratch.write("prompt.md", "go\n");
    scratch.write("tachikoma.toml", config);
    scratch
}

fn has(scratch: &Scratch, name: &str) -> bool {
    scratch.path().join(name).exists()
}

/// Returns the names of all files that record trust.
fn recorded(scratch: &Scratch) -> Vec<String> {
    let all = crate::support::files(&scratch.home().join(".local/state/tachikoma/trust"));
    let names = all.keys().filter_map(|path| path.file_name()?.to_str());
    let names = names.filter(|name| *name != "path");
    names
        .map(|name| name.split('-').next().unwrap().to_owned())
        .collect()
}

#[test]
fn untrusted_configuration_is_refused_and_nothing_of_it_runs() {
    let scratch = cloned(HOSTILE);
    let tool = untrusting(&scratch);
    let refused = tool.run(["run"]);
    insta::assert_snapshot!(shown(&refused));
    assert_eq!(tool.run(["run", "--detach"]).code(), Some(2));
    // Commands that only read are allowed.
    for words in [
        &["status"][..],
        &["config", "show"],
        &["config", "check"],
        &["state", "backups"],
    ] {
        let ran = tool.run(words);
        assert_eq!(ran.code(), Some(0), "{words:?}: {}", ran.snapshot());
    }
    let dry = tool.run(["run", "--dry-run"]);
    assert_eq!(dry.code(), Some(0), "{}", dry.snapshot());
    assert!(
        dry.stderr.contains("warning: the configuration here"),
        "{}",
        dry.stderr
    );
    assert!(!has(&scratch, "ran") && !has(&scratch, "hooked") && !has(&scratch, ".ralph"));
    assert_eq!(recorded(&scratch), Vec::<String>::new());
}

#[test]
fn trusted_configuration_runs_until_a_program_or_permission_changes() {
    let scratch = cloned(HOSTILE);
    let tool = untrusting(&scratch);
    insta::assert_snapshot!(shown(&tool.run(["trust"])));
    let ran = tool.run(["run"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert!(has(&scratch, "ran") && has(&scratch, "hooked"));

    scratch.write("tachikoma.toml", format!("max_iterations = 7\n{HOSTILE}"));
    assert_eq!(tool.run(["run"]).code(), Some(0), "no program changed");
    for changed in ["touch hooked", "hunter2", "touch ran"] {
        scratch.write("tachikoma.toml", HOSTILE.replace(changed, "true"));
        assert_eq!(tool.run(["run"]).code(), Some(2), "{changed}");
    }
    let bypass = format!("{HOSTILE}[agents.claude]\npermission = 'bypass'\n");
    scratch.write("tachikoma.toml", &bypass);
    assert_eq!(
        tool.run(["run"]).code(),
        Some(2),
        "a changed permission needs trust"
    );
    scratch.write("tachikoma.toml", bypass.replace("bypass", "safe"));
    assert_eq!(
        tool.run(["run"]).code(),
        Some(0),
        "the strictest permission needs no trust"
    );
    let other = cloned(HOSTILE);
    let elsewhere = untrusting(&other).env("HOME", scratch.home());
    assert_eq!(
        elsewhere.run(["run"]).code(),
        Some(2),
        "another directory needs its own trust"
    );
    obey(&tool, &["trust", "--revoke"]);
    assert_eq!(tool.run(["run"]).code(), Some(2), "revoked");
}

#[test]
fn trust_flag_is_valid_for_one_run_and_for_the_content_at_its_start() {
    let scratch = cloned(&HOSTILE.replace("touch ran;", &format!("{UP} {UNTIL_GO}")));
    let tool = untrusting(&scratch);
    let live = tool.spawn(["run", "--trust"]);
    await_up(&scratch, 1);
    let text = scratch.read("tachikoma.toml");
    scratch.write("tachikoma.toml", format!("max_iterations = 7\n{text}"));
    assert_eq!(obey(&tool, &["reload"]), "changed now: max_iterations\n");
    scratch.write(
        "tachikoma.toml",
        text.replace("touch hooked", "touch hacked"),
    );
    let refused = tool.run(["reload"]);
    assert_eq!(refused.code(), Some(1), "{}", refused.snapshot());
    assert_eq!(stop(&tool, live), Some(5));
    scratch.write("tachikoma.toml", text);
    assert_eq!(
        tool.run(["run"]).code(),
        Some(2),
        "the flag was valid for one run"
    );
    assert!(!recorded(&scratch).contains(&"configuration".to_owned()));
}

#[test]
fn untrusted_changes_keep_the_old_settings_of_a_running_loop() {
    let hooked = HOSTILE.replace("loop_start", "loop_end");
    let scratch = cloned(&hooked.replace("touch ran;", &format!("{UP} {UNTIL_GO}")));
    let tool = untrusting(&scratch);
    obey(&tool, &["trust"]);
    obey(&tool, &["run", "--detach"]);
    await_up(&scratch, 1);
    let text = scratch.read("tachikoma.toml");
    scratch.write(
        "tachikoma.toml",
        text.replace("touch hooked", "touch hacked"),
    );
    let refused = tool.run(["reload"]);
    assert_eq!(refused.code(), Some(1), "{}", refused.snapshot());
    let stderr = &refused.stderr;
    for part in ["not trusted", "touch hacked", "`tachikoma trust` allows it"] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
    let said = || obey(&tool, &["events"]).matches("is not trusted").count();
    let before = said();
    assert!(before > 0);
    let status = await_status(&tool, "it runs", |status| status["state"] == "running");
    let runner = i32::try_from(status["runner"]["pid"].as_u64().unwrap()).unwrap();
    kill_process(Pid::from_raw(runner).unwrap(), Signal::HUP).unwrap();
    await_until("SIGHUP is refused, too", SOON, || said() > before);
    obey(&tool, &["stop", "--now"]);
    await_status(&tool, "it stopped", |status| status["state"] == "stopped");
    await_until("the hook of the end", SOON, || has(&scratch, "hooked"));
    assert!(!has(&scratch, "hacked"));
}

#[test]
fn files_variables_and_flags_of_the_user_need_no_trust() {
    let scratch = cloned("max_iterations = 1\n");
    let own = scratch.home().join(".config/tachikoma/tachikoma.toml");
    std::fs::create_dir_all(own.parent().unwrap()).unwrap();
    std::fs::write(
        own,
        "[[hook]]\non = 'loop_start'\ncommand = 'touch hooked'\n",
    )
    .unwrap();
    let gate = "[{ name = 'a', command = 'touch gated' }]";
    let tool = untrusting(&scratch).env("TACHIKOMA_GATE", gate);
    let ran = tool.run([
        "run",
        "--",
        "sh",
        "-c",
        "echo '<promise>COMPLETE</promise>'",
    ]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert!(has(&scratch, "hooked") && has(&scratch, "gated"));
}

#[test]
fn programs_of_a_loop_cannot_trust_a_configuration_for_the_user() {
    let scratch = Scratch::new();
    scratch.write("hostile.toml", HOSTILE);
    let bin = env!("CARGO_BIN_EXE_tachikoma");
    // The agent runs `trust` directly, with an empty environment, and as a daemon.
    let agent = format!(
        "cp hostile.toml tachikoma.toml
        {bin} trust; echo $? >> codes
        env -i HOME=$HOME {bin} trust; echo $? >> codes
        setsid sh -c 'env -i HOME=$HOME {bin} trust; echo $? >> codes; touch daemon' &
        while [ ! -e daemon ]; do sleep 0.01; done"
    );
    let tool = untrusting(&scratch);
    let ran = tool.run(run(&["--max-iterations", "1"], &agent));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(scratch.read("codes"), "1\n1\n1\n");
    let refused = tool.run(["run", "--max-iterations", "2"]);
    assert_eq!(refused.code(), Some(2), "{}", refused.snapshot());
    assert!(!has(&scratch, "hooked"));
}

#[test]
fn user_at_the_terminal_is_asked_once() {
    let scratch = cloned(HOSTILE);
    let tool = untrusting(&scratch);
    for (answer, code) in [(b'n', Some(2)), (b'y', Some(0))] {
        let mut terminal = Terminal::start(&tool, &["run"], 80);
        terminal.await_text("trust exactly this from now on? [y/N]");
        assert!(!has(&scratch, "hooked"), "before the answer");
        terminal.press(answer);
        terminal.press(b'\n');
        assert_eq!(terminal.wait(), code);
    }
    let ran = tool.run(["run"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
}

#[test]
fn other_commands_that_start_programs_of_the_configuration_are_refused() {
    let scratch = cloned(
        "[opencode]\nenabled = true\nserve_command = 'touch served'\n[[notify]]\nto = 'command'\ncommand = 'touch notified'\n",
    );
    let tool = untrusting(&scratch);
    for words in [&["opencode", "up"][..], &["notify", "test"]] {
        let refused = tool.run(words);
        assert_eq!(refused.code(), Some(2), "{}", refused.snapshot());
        assert!(
            refused.stderr.contains("is not trusted"),
            "{}",
            refused.stderr
        );
    }
    assert!(!has(&scratch, "served") && !has(&scratch, "notified"));
}
