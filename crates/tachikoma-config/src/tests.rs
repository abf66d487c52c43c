//! Tests of the configuration rules: TOML text and the messages that are expected for it.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;

use super::keys::{Key, LEAVES, NOT_BUILT, Place, is_built, place};
use super::layers::NOT_SETTINGS;
use super::*;

const CONTRACT: &str = include_str!("../tests/data/tachikoma.toml");
const PROBLEMS: &str = include_str!("../tests/data/settings-problems.txt");

fn of_text(toml: &str) -> Layers {
    let mut layers = Layers::new();
    layers.text(Path::new("tachikoma.toml"), toml);
    layers
}

fn of_variables(variables: &[(&str, &str)]) -> Layers {
    let mut layers = Layers::new();
    layers.variables(
        variables
            .iter()
            .map(|(name, value)| (name.into(), value.into())),
    );
    layers
}

fn loaded(toml: &str) -> Loaded {
    of_text(toml).load().unwrap()
}

fn check(layers: Layers, messages: &[&str]) {
    let error = layers.load().unwrap_err().to_string();
    assert_eq!(error, messages.join("\n"));
}

/// The documented configuration, with all commented keys enabled.
fn documented_configuration() -> String {
    let is_key = |line: &str| {
        line.starts_with("[[") || (line.starts_with(char::is_lowercase) && line.contains(" = "))
    };
    let lines = CONTRACT.lines().map(|line| match line.strip_prefix("# ") {
        Some(key) if is_key(key) => key,
        Some(_) | None => line,
    });
    lines.map(|line| format!("{line}\n")).collect()
}

#[test]
fn documented_configuration_equals_the_defaults() {
    assert_eq!(loaded(CONTRACT).settings, Settings::default());
    assert_eq!(loaded("").settings, Settings::default());
}

#[test]
fn config_show_lists_every_documented_key_in_order() {
    let loaded = loaded(&documented_configuration());
    let lines: Vec<usize> = loaded
        .entries()
        .filter_map(|entry| entry.origin.line())
        .collect();
    assert!(lines.is_sorted(), "{lines:?}");
    let unset: Vec<String> = loaded
        .entries()
        .filter(|entry| *entry.origin == Origin::Default)
        .map(|entry| entry.key)
        .filter(|key| !key.starts_with("agents."))
        .collect();
    assert_eq!(
        unset,
        [
            "state.encrypt_passphrase_file",
            "state.encrypt_recipients",
            "state.encrypt_identity_file",
            "opencode.attach"
        ]
    );
}

#[test]
fn settings_round_trip_through_json_and_toml() {
    let full = loaded(&documented_configuration()).settings;
    let json = serde_json::to_string(&full).unwrap();
    assert_eq!(serde_json::from_str::<Settings>(&json).unwrap(), full);
    assert_eq!(loaded(&toml::to_string(&full).unwrap()).settings, full);
}

/// Each block of the file is a configuration (TOML lines start with `> `, variables with `$ `) and the expected messages.
#[test]
fn problems_are_reported_with_their_position_and_a_hint() {
    for block in PROBLEMS.trim_end().split("\n\n") {
        let marked = |mark| {
            block
                .lines()
                .filter_map(move |line| line.strip_prefix(mark))
        };
        let toml: Vec<&str> = marked("> ").collect();
        let variables: Vec<(&str, &str)> = marked("$ ")
            .filter_map(|line| line.split_once('='))
            .collect();
        let said: Vec<&str> = block.lines().skip(toml.len() + variables.len()).collect();
        let mut layers = of_text(&toml.join("\n"));
        layers.variables(
            variables
                .iter()
                .map(|(name, value)| (name.into(), value.into())),
        );
        check(layers, &said);
    }
}

#[test]
fn problems_of_all_layers_are_reported_together() {
    let mut layers = of_text("max_iterations = 'many'");
    layers.variables([(
        "TACHIKOMA_PROMPT_PATH".into(),
        OsString::from_vec(vec![0xff]),
    )]);
    layers.set("iteration_delay", "soon".into(), Origin::Recorded);
    layers.set(
        "max_iterations",
        3.into(),
        Origin::Flag("--max-iterations".into()),
    );
    layers.set("agent.nam", "demo".into(), Origin::Flag("--agent".into()));
    check(
        layers,
        &[
            "tachikoma.toml:1: `max_iterations` must be a whole number, not a string",
            "TACHIKOMA_PROMPT_PATH: `prompt_path` must be UTF-8",
            "recorded launch: `iteration_delay` must be a duration such as \"5s\" or \"1h 30m\", not \"soon\"",
            "--agent: unknown key `agent.nam`",
            "  hint: did you mean `agent.name`?",
        ],
    );
}

#[test]
fn absent_file_is_accepted_and_unreadable_files_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tachikoma.toml");
    let shown = path.display();

    let mut layers = Layers::new();
    assert!(
        !layers.file(&path, FileOf::Project),
        "an absent file is accepted"
    );
    assert_eq!(layers.load().unwrap().settings, Settings::default());

    fs::write(&path, b"max_iterations = 3\nprompt_path = \"\xff\"\n").unwrap();
    let mut layers = Layers::new();
    assert!(layers.file(&path, FileOf::Project));
    check(layers, &[&format!("{shown}:2: is not UTF-8")]);

    fs::write(&path, vec![b'#'; 1024 * 1024 + 1]).unwrap();
    let mut layers = Layers::new();
    layers.file(&path, FileOf::Project);
    check(layers, &[&format!("{shown}: is larger than 1048576 bytes")]);

    let mut layers = Layers::new();
    layers.file(dir.path(), FileOf::Project);
    check(
        layers,
        &[&format!(
            "{}: cannot be read: Is a directory (os error 21)",
            dir.path().display()
        )],
    );
}

#[test]
fn later_layers_override_earlier_ones_and_origins_are_recorded() {
    let mut layers = Layers::new();
    layers.text(Path::new("user.toml"), "max_iterations = 1\niteration_delay = '1s'\nagents.demo.env.A = 'a'\nagents.demo.env.B = 'b'");
    layers.text(Path::new("tachikoma.toml"), "context_threshold = 80.5\nmax_iterations = 2\n[session]\nstate_dir = 's'\n[agents.demo.env]\nB = 'c'");
    layers.variables([
        ("TACHIKOMA_MAX_ITERATIONS".into(), "3".into()),
        ("TACHIKOMA_SESSION__STATE_DIR".into(), "v".into()),
    ]);
    layers.set("max_iterations", 4.into(), Origin::Recorded);
    layers.set(
        "context_threshold",
        90.into(),
        Origin::Flag("--context-threshold".into()),
    );
    let loaded = layers.load().unwrap();

    let set: Vec<String> = loaded
        .entries()
        .filter(|entry| *entry.origin != Origin::Default)
        .map(|entry| {
            format!(
                "{} = {} ({})",
                entry.key,
                entry.value.unwrap(),
                entry.origin
            )
        })
        .collect();
    assert_eq!(
        set,
        [
            "max_iterations = 4 (recorded launch)",
            "iteration_delay = \"1s\" (user.toml:2)",
            "context_redline_percent = 90 (--context-threshold)",
            "session.state_dir = \"v\" (TACHIKOMA_SESSION__STATE_DIR)",
            "agents.demo.env.A = \"***\" (user.toml:3)",
            "agents.demo.env.B = \"***\" (tachikoma.toml:6)",
        ]
    );
    assert_eq!(loaded.settings.agents.demo.env["B"].expose(), "c");
    assert_eq!(loaded.origin_of("prompt_path").to_string(), "default");
}

#[test]
fn variables_are_parsed_as_toml_or_used_as_text() {
    let settings = of_variables(&[
        ("TACHIKOMA_ITERATION_DELAY", "7s"),
        ("TACHIKOMA_ATTENDED_MODE", "true"),
        ("TACHIKOMA_CONTEXT_THRESHOLD", "72.5"),
        ("TACHIKOMA_AGENTS__CODEX__MODEL", "5"),
        ("TACHIKOMA_AGENTS__COMMAND__PROGRAM", r#"["sh", "a.sh"]"#),
        ("TACHIKOMA_AGENTS__COMMAND__ENV__Api_Key", "k"),
        ("TACHIKOMA_REBOOT__TRIGGERS__AFTER_ITERATIONS", "3"),
        (
            "TACHIKOMA_GATE",
            r#"[{ name = "tests", command = "true" }]"#,
        ),
    ])
    .load()
    .unwrap()
    .settings;
    let mut expected = Settings {
        iteration_delay: HumanDuration::from_secs(7),
        attended_mode: true,
        context_redline_percent: Percent::try_from(72.5).unwrap(),
        ..Settings::default()
    };
    expected.agents.codex.model = Some("5".into());
    expected.agents.command.program = ["sh", "a.sh"].map(Into::into).into();
    expected
        .agents
        .command
        .env
        .insert("Api_Key".into(), Secret::from("k".to_owned()));
    expected.reboot.triggers.after_iterations = Some(3);
    expected.gate = loaded("[[gate]]\nname = 'tests'\ncommand = 'true'")
        .settings
        .gate;
    assert_eq!(settings, expected);
}

#[test]
fn variables_that_are_not_settings_are_ignored() {
    let names = [
        "LOOP_ID",
        "INSIDE",
        "SESSION",
        "ITERATION",
        "ATTEMPT",
        "GATE_NAME",
        "LOG",
        "CONFIG",
        "TRUST",
        "DEMO",
        "DEMO_SCRIPT",
    ];
    let variables = names.map(|name| (format!("TACHIKOMA_{name}").into(), "5".into()));
    let mut layers = Layers::new();
    layers.variables(variables);
    layers.variables([("PATH".into(), OsString::from_vec(vec![0xff]))]);
    assert_eq!(layers.load().unwrap(), loaded(""));
}

#[test]
fn secrets_are_never_shown() {
    let toml =
        "agents.claude.env.KEY = 'hunter2'\n[[notify]]\nto = 'slack'\nurl = 'https://hunter2'";
    let loaded = loaded(toml);
    let settings = &loaded.settings;
    let shown = [
        format!("{loaded:?}"),
        serde_json::to_string(settings).unwrap(),
        toml::to_string(settings).unwrap(),
        format!("{:?}", loaded.entries().collect::<Vec<_>>()),
        settings.agents.claude.env["KEY"].to_string(),
    ];
    for text in shown {
        assert!(text.contains("***") && !text.contains("hunter2"), "{text}");
    }
}

#[test]
fn hash_depends_on_values_but_not_on_origins_or_secrets() {
    let hash = |toml| loaded(toml).hash();
    assert_eq!(hash(""), hash(CONTRACT));
    assert_eq!(
        hash("agents.demo.env.A = 'a'"),
        hash("agents.demo.env.A = 'b'")
    );
    assert_ne!(hash(""), hash("max_iterations = 1"));
    assert_ne!(hash("max_iterations = 1"), hash("max_iterations = 2"));
}

#[test]
fn durations_are_shown_as_they_are_written() {
    for text in ["0s", "5s", "1m 30s", "2h", "250ms"] {
        assert_eq!(text.parse::<HumanDuration>().unwrap().to_string(), text);
    }
    assert_eq!(HumanDuration::default().limit(), None);
}

#[test]
fn keys_without_effect_are_listed() {
    for entry in NOT_BUILT {
        assert_ne!(place(&Key::dotted(entry)), Place::Unknown, "{entry}");
    }
    let built: Vec<&str> = LEAVES
        .iter()
        .map(|(key, _)| key.as_str())
        .filter(|key| is_built(key))
        .collect();
    assert_eq!(
        built,
        [
            "working_dir",
            "prompt_path",
            "max_iterations",
            "iteration_delay",
            "context_redline_percent",
            "attended_mode",
            "question_timeout",
            "stop_conditions.max_test_failure_streak",
            "stop_conditions.max_no_progress_iterations",
            "stop_conditions.max_consecutive_failures",
            "stop_conditions.stop_on_patterns",
            "stop_conditions.custom_scripts",
            "stop_conditions.max_cost_usd",
            "stop_conditions.max_tokens",
            "stop_conditions.max_duration",
            "stop_conditions.max_outage",
            "stop_conditions.max_quota_percent",
            "stop_conditions.completion_promise",
            "stop_conditions.confirmations",
            "stop_conditions.objectives",
            "session.claude_command",
            "session.session_timeout",
            "session.persist_sessions",
            "session.state_dir",
            "session.fresh_each_iteration",
            "session.process_each_iteration",
            "session.first_output_timeout",
            "session.silence_timeout",
            "session.tool_timeout",
            "session.result_grace",
            "session.graceful_timeout",
            "session.transcript_max_bytes",
            "session.transcripts_kept",
            "context.warning_percent",
            "context.hard_limit_percent",
            "context.window_tokens",
            "context.tool_call_threshold",
            "reboot.enabled",
            "reboot.mode",
            "reboot.context_redline_tokens",
            "reboot.min_reboot_interval",
            "reboot.max_reboots_per_hour",
            "reboot.failure_cooldown",
            "reboot.max_consecutive_failures",
            "reboot.graceful_delay",
            "reboot.confirm_timeout",
            "reboot.enable_pre_hooks",
            "reboot.enable_post_hooks",
            "reboot.preserve_summary",
            "reboot.max_restarts",
            "reboot.handoff_max_bytes",
            "reboot.triggers.on_redline",
            "reboot.triggers.on_degradation",
            "reboot.triggers.after_iterations",
            "reboot.triggers.after_duration",
            "reboot.triggers.on_patterns",
            "state.enabled",
            "state.state_path",
            "state.backup_dir",
            "state.auto_save_interval",
            "state.backup_interval",
            "state.max_backups",
            "state.compress",
            "state.encrypt",
            "state.encrypt_passphrase_file",
            "state.encrypt_recipients",
            "state.encrypt_identity_file",
            "state.cloud_url",
            "git.auto_commit",
            "git.commit_on_failure",
            "git.commit_message",
            "git.protected",
            "git.max_file_bytes",
            "git.commit_timeout",
            "agent.name",
            "agents.claude.args",
            "agents.claude.env",
            "agents.claude.model",
            "agents.claude.permission",
            "agents.claude.allow",
            "agents.opencode.args",
            "agents.opencode.env",
            "agents.opencode.model",
            "agents.opencode.permission",
            "agents.opencode.allow",
            "agents.command.program",
            "agents.command.prompt",
            "agents.command.env",
            "opencode.enabled",
            "opencode.serve_port",
            "opencode.serve_hostname",
            "opencode.require_password",
            "opencode.auto_restart",
            "opencode.restart_delay_ms",
            "opencode.max_restart_attempts",
            "opencode.serve_command",
            "opencode.restart_on_normal_exit",
            "opencode.health_interval",
            "opencode.health_failures",
            "opencode.max_rss_bytes",
            "opencode.attach",
            "gate",
            "hook",
            "notify",
        ]
    );
    let toml = "max_iterations = 1\nagents.gemini.args = []\nagents.demo.args = []\n";
    let loaded = loaded(toml);
    let keys: Vec<_> = loaded.not_built().into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["agents.demo.args", "agents.gemini.args"]);
}

#[test]
fn allowed_commands_are_plain_and_only_for_agents_that_enforce_them() {
    let problems = |text: &str| {
        let mut layers = Layers::new();
        layers.text(Path::new("t.toml"), text);
        layers.load().err().map(|problems| problems.to_string())
    };
    assert_eq!(
        problems("agents.claude.allow = ['cargo test', 'npm run build:prod']"),
        None
    );
    for command in ["", " make", "make; curl x", "Bash(make)", "git *", "a\\nb"] {
        let found = problems(&format!("agents.claude.allow = [\"{command}\"]")).unwrap();
        assert!(
            found.contains("must be the first words of a single command"),
            "{found}"
        );
    }
    assert_eq!(problems("agents.opencode.allow = ['make']"), None);
    let found = problems("agents.gemini.allow = ['make']").unwrap();
    assert!(
        found.contains("`agents.gemini.allow` is not supported"),
        "{found}"
    );
}

#[test]
fn a_value_with_control_characters_does_not_print_lines_of_its_own() {
    for toml in [
        "agents.claude.permission = \"safe\\nerror: none\"",
        "stop_conditions.stop_on_patterns = [\"(\\nerror: none\"]",
        "prompt_path = \"prompt.md\\nerror: none\"",
        "agent.name = \"claude\\nerror: none\"",
        "agents.claude.model = \"opus\\nerror: none\"",
    ] {
        let error = of_text(toml).load().unwrap_err().to_string();
        assert!(!error.contains("\nerror"), "{toml}: {error}");
    }
}

#[test]
fn a_model_that_looks_like_a_flag_is_rejected() {
    check(
        of_text("agents.claude.model = \"--dangerously-skip-permissions\""),
        &[
            "tachikoma.toml:1: `agents.claude.model`: \"--dangerously-skip-permissions\" is not the name of a model\n  hint: write it as the agent names it, such as \"opus\"",
        ],
    );
}

#[test]
fn a_warning_of_100_percent_is_off_and_may_exceed_the_hard_limit() {
    let settings = loaded("context.warning_percent = 100").settings;
    assert_eq!(settings.context.warning_percent, Percent::whole(100));
}

#[test]
fn agent_names_match_the_configuration() {
    let names = [
        "claude", "opencode", "codex", "gemini", "acp", "command", "demo",
    ];
    let settings = loaded(&format!("agent.fallback = {names:?}")).settings;
    let fallback = settings.agent.fallback.iter();
    assert!(fallback.map(|name| name.as_str()).eq(names));
}

#[test]
fn schema_has_defaults_and_reference_describes_every_key() {
    let schema = schema();
    assert_eq!(schema["properties"]["iteration_delay"]["default"], "5s");
    assert_eq!(schema["properties"]["context_threshold"]["maximum"], 100);
    for name in NOT_SETTINGS {
        assert!(
            reference().contains(&format!("`{name}`")),
            "{name} is missing in the reference"
        );
    }
    assert!(
        !reference().contains("|  |"),
        "every key in the reference has a type and a description"
    );
}

#[test]
fn configuration_page_and_schema_are_up_to_date() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let schema = serde_json::to_string_pretty(&schema()).unwrap() + "\n";
    for (name, text) in [
        ("configuration.md", reference()),
        ("tachikoma.schema.json", schema),
    ] {
        let path = docs.join(name);
        if std::env::var_os("UPDATE_DOCS").is_some() {
            fs::write(&path, &text).unwrap();
        }
        let page = fs::read_to_string(&path).unwrap();
        assert_eq!(
            page, text,
            "rewrite it as the second line of configuration.md says"
        );
    }
}
