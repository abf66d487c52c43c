//! Tests of `config` and `completions`, and the help text of every command.

use std::fs;

use insta::assert_snapshot;
use tachikoma_testkit::Scratch;

use crate::support::{as_configured, shown, tachikoma};

#[test]
fn config_show_prints_the_origin_of_every_value() {
    let scratch = Scratch::new();
    let user = scratch.home().join(".config/tachikoma");
    fs::create_dir_all(&user).expect("the home is ours");
    let text = "max_iterations = 3\nprompt_path = \"user.md\"\niteration_delay = \"7s\"\n";
    fs::write(user.join("tachikoma.toml"), text).expect("the home is ours");
    scratch.write(
        "tachikoma.toml",
        "max_iterations = 4\nprompt_path = \"here.md\"\n",
    );
    let tool = as_configured(&scratch).env("TACHIKOMA_MAX_ITERATIONS", "5");

    let ran = tool.run(["config", "show"]);
    let all = shown(&ran);
    let shown: Vec<&str> = all
        .lines()
        .filter(|line| {
            [
                "max_iterations",
                "prompt_path",
                "iteration_delay",
                "working_dir",
            ]
            .iter()
            .any(|key| line.starts_with(key))
        })
        .collect();
    assert_snapshot!(shown.join("\n"), @r#"
    working_dir = "."  # default
    prompt_path = "here.md"  # tachikoma.toml:2
    max_iterations = 5  # TACHIKOMA_MAX_ITERATIONS
    iteration_delay = "7s"  # [HOME]/.config/tachikoma/tachikoma.toml:3
    "#);
    assert_eq!(ran.code(), Some(0), "{all}");

    let dry = tool.run(["run", "--dry-run", "--", "true"]);
    assert_eq!(dry.code(), Some(2), "`run` would not find a prompt either");
    scratch.write("here.md", "go\n");
    let dry = tool.run(["run", "--dry-run", "--max-iterations", "6", "--", "true"]);
    let flags: Vec<&str> = dry
        .stdout
        .lines()
        .filter(|line| line.contains(" = "))
        .collect();
    assert_snapshot!(flags.join("\n").replace(&*scratch.home().to_string_lossy(), "[HOME]"), @r#"
    prompt_path = "here.md"  # tachikoma.toml:2
    max_iterations = 6  # --max-iterations
    iteration_delay = "7s"  # [HOME]/.config/tachikoma/tachikoma.toml:3
    agent.name = "command"  # -- PROGRAM
    agents.command.program = ["true"]  # -- PROGRAM
    "#);
}

#[test]
fn config_show_masks_secrets() {
    let scratch = Scratch::new();
    let text = "[agents.command]\nprogram = [\"true\"]\nenv = { API_KEY = \"hush-hush\" }\n";
    scratch.write("tachikoma.toml", text);
    scratch.write("prompt.md", "go\n");
    for words in [
        &["config", "show"][..],
        &["run", "--agent", "command", "--dry-run"],
        &["run", "--agent", "command", "--max-iterations", "1"],
        &["events", "--json"],
        &["status", "--json"],
    ] {
        let text = shown(&tachikoma(&scratch).run(words));
        assert!(!text.contains("hush-hush"), "{words:?}: {text}");
    }
    let ran = tachikoma(&scratch).run(["config", "show"]);
    let line = ran.stdout.lines().find(|line| line.contains("API_KEY"));
    assert_snapshot!(line.unwrap_or_default(), @r#"agents.command.env.API_KEY = "***"  # tachikoma.toml:3"#);
    for (path, bytes) in crate::support::files(&scratch.path().join(".ralph")) {
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.contains("hush-hush"), "{}", path.display());
    }
}

/// `tachikoma stop` must not block when it opens the pipe.
#[test]
fn a_named_pipe_as_configuration_is_refused_at_once() {
    let scratch = Scratch::new();
    let pipe = scratch.path().join("tachikoma.toml");
    let made = std::process::Command::new("mkfifo").arg(pipe).status();
    assert!(made.unwrap().success());
    let ran = tachikoma(&scratch).run(["config", "check"]);
    assert_eq!(ran.code(), Some(2), "{}", ran.snapshot());
    assert!(ran.snapshot().contains("it is not a regular file"));
    let ran = tachikoma(&scratch).run(["stop"]);
    assert_eq!(ran.code(), Some(1), "{}", ran.snapshot());
}

#[test]
fn config_check_accepts_a_valid_file() {
    let scratch = Scratch::new();
    scratch.write("tachikoma.toml", "agent.fallback = [\"demo\"]\n");
    assert_snapshot!(shown(&tachikoma(&scratch).run(["config", "check"])), @"
    exit: 0
    --- stdout
    the configuration is valid
    --- stderr
    note: `agent.fallback` (tachikoma.toml:1) is accepted but has no effect yet
    ");
}

#[test]
fn config_check_rejects_an_invalid_file() {
    let scratch = Scratch::new();
    scratch.write("tachikoma.toml", "[sesion]\nstate_dir = \"x\"\n");
    assert_snapshot!(shown(&tachikoma(&scratch).run(["config", "check"])), @"
    exit: 2
    --- stdout
    --- stderr
    error: tachikoma.toml:1: unknown key `sesion`
      hint: did you mean `session`?
    ");
    assert_eq!(tachikoma(&scratch).run(["config", "show"]).code(), Some(2));
}

#[test]
fn a_configuration_file_that_the_user_names_must_exist() {
    let scratch = Scratch::new();
    let tool = tachikoma(&scratch).env("TACHIKOMA_CONFIG", "other.toml");
    assert_snapshot!(shown(&tool.run(["config", "check"])), @"
    exit: 2
    --- stdout
    --- stderr
    error: configuration file other.toml (TACHIKOMA_CONFIG) does not exist
    ");
    scratch.write("other.toml", "max_iterations = 9\n");
    let ran = tool.run(["config", "show"]);
    assert!(
        ran.stdout.contains("max_iterations = 9  # other.toml:1\n"),
        "{}",
        ran.stdout
    );
}

#[test]
fn config_schema_prints_json() {
    let scratch = Scratch::new();
    let schema = tachikoma(&scratch).run(["config", "schema"]).json();
    assert!(
        schema["properties"]["max_iterations"].is_object(),
        "{schema}"
    );
}

#[test]
fn completions_are_printed_for_every_shell() {
    let scratch = Scratch::new();
    for shell in ["bash", "zsh", "fish"] {
        let ran = tachikoma(&scratch).run(["completions", shell]);
        assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
        for word in ["max-iterations", "purge", "verify"] {
            assert!(ran.stdout.contains(word), "{shell}: {word}");
        }
    }
}

#[test]
fn version_flag_prints_the_version() {
    let scratch = Scratch::new();
    let ran = tachikoma(&scratch).run(["--version"]);
    assert_eq!(
        ran.stdout,
        format!("tachikoma {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[track_caller]
fn help(words: &[&str]) -> String {
    let scratch = Scratch::new();
    let tool = tachikoma(&scratch).env("COLUMNS", "100");
    let ran = tool.run(words.iter().chain(&["--help"]));
    assert_eq!(
        (ran.code(), ran.stderr.as_str()),
        (Some(0), ""),
        "{words:?}"
    );
    ran.stdout
}

#[test]
fn help_lists_all_commands() {
    assert_snapshot!(help(&[]), @"
    Run a coding agent in a loop, unattended, until the work is proven done

    Usage: tachikoma [OPTIONS] [COMMAND]

    Start:
      init         Write a configuration, a prompt and a plan for this project
      doctor       Check the agents, the configuration and this machine
      run          Start or continue the loop in this directory
      demo         Run a scripted agent that crashes, reboots and finishes

    Watch:
      status       Show the state of the loop
      logs         Print the agent's output
      events       Print the events of the loop

    Steer:
      pause        Pause after the current iteration
      resume       Continue a paused loop
      skip         Skip the current iteration or the current wait
      stop         Stop the loop
      reboot       Start a fresh agent session
      tell         Send a message to the agent
      answer       Answer the question that the loop is waiting on
      attend       Turn attended mode on or off
      reload       Apply changes of the configuration to the running loop

    Look back:
      history      List the iterations and their results
      context      Show the context usage of a session over time
      explain      Explain the decisions after an iteration, and their inputs
      replay       Replay recorded decisions with different settings
      diff         Show the changes of an iteration as a git diff
      rollback     Restore the work tree to its state before an iteration
      checkpoint   Show the hand-off given to a new session

    Maintain:
      config       Show and check the configuration
      state        Show, check, back up and restore the stored state
      trust        Trust the programs and permissions that tachikoma.toml names
      agents       Decode recorded agent output
      opencode     Run and supervise `opencode serve`
      notify       Test the notification targets
      service      Print a systemd or launchd unit
      completions  Print a shell completion script

    For agents:
      note         Add a note to the hand-off of all later sessions
      done         Claim that the work is complete

    Options:
      -v, --verbose...
              Print diagnostics to stderr; repeat for more detail

          --color <WHEN>
              When to print colors: auto, always or never

      -h, --help
              Print help (see a summary with '-h')

      -V, --version
              Print version
    ");
}

#[test]
fn help_of_run_lists_all_flags() {
    assert_snapshot!(help(&["run"]), @"
    Start or continue the loop in this directory

    Usage: tachikoma run [OPTIONS] [PROMPT] [-- <PROGRAM>...]

    Arguments:
      [PROMPT]      File with the prompt, read again before every iteration
      [PROGRAM]...  Program to run as the agent: reads the prompt from stdin; exit code 0 means success

    Options:
      -p, --prompt-text <TEXT>           Text of the prompt
          --agent <NAME>                 Agent: claude (Claude Code), opencode, command (any program) or
                                         demo
          --model <NAME>                 Model, as the agent names it
          --attach <URL>                 Use a running OpenCode server, such as http://127.0.0.1:4096,
                                         and never restart it; `own` reverts this
      -n, --max-iterations <N>           Maximum number of iterations over all runs of the loop; 0 = no
                                         limit
          --max-cost <USD>               Stop at this cost, as reported by the agent; 0 = no limit
          --max-duration <DURATION>      Stop after this time, such as 8h, without waits for usage
                                         limits and answers; 0s = no limit
          --context-threshold <PERCENT>  Start a fresh session at this context usage, such as 85 or
                                         72.5; 100 = never
          --context-tokens <N>           Start a fresh session at this many tokens of context; 0 = off
          --max-restarts <N>             Maximum number of reboots; 0 = never reboot
          --fresh-session                Start a fresh session for every iteration
          --delay <DURATION>             Wait this long after an iteration, such as 5s
          --json                         Print the journal's records, one JSON object per line
      -q, --quiet                        Print only errors and the outcome
          --new                          Start a new loop and archive the current one
          --accept-loss                  Continue although records are lost; damaged files are moved to
                                         quarantine
          --detach                       Run the loop in the background
          --dry-run                      Show what would be run, and exit
          --no-auto-commit               Do not commit after iterations
          --auto-commit                  Commit after iterations; reverts --no-auto-commit of an earlier
                                         run
          --allow-dirty                  Start even if tracked files have uncommitted changes
          --attended                     Ask before the first and after each iteration
          --unattended                   Do not ask between iterations; reverts --attended of an earlier
                                         run
          --trust                        Trust the configuration and the loop in this directory, for
                                         this run
          --nested                       Allow a start from inside the agent of another loop
      -v, --verbose...                   Print diagnostics to stderr; repeat for more detail
          --color <WHEN>                 When to print colors: auto, always or never
      -h, --help                         Print help

    Examples:
      tachikoma run prompt.md --agent claude     # Claude Code
      tachikoma run --context-threshold 72.5     # fresh session at 72.5 %
      tachikoma run --context-threshold 100      # never a fresh session
      tachikoma run --context-tokens 150000      # fresh session at 150000 tokens
      tachikoma run --max-restarts 3             # at most 4 sessions, then an error
      tachikoma run --fresh-session              # fresh session for each iteration
      tachikoma run prompt.md -- my-agent        # any program
      tachikoma run                              # continue with the same arguments
    ");
}

#[test]
fn help_of_every_other_command_is_printed() {
    assert_snapshot!(help(&["demo"]), @"
    Run a scripted agent that crashes, reboots and finishes

    Usage: tachikoma demo [OPTIONS]

    Options:
          --json          Print the journal's records, one JSON object per line
          --dir <DIR>     Directory to use [default: a new temporary one]
          --fast          Do not pause between the steps of the agent
      -v, --verbose...    Print diagnostics to stderr; repeat for more detail
          --color <WHEN>  When to print colors: auto, always or never
      -h, --help          Print help
    ");
    assert_snapshot!(help(&["status"]), @"
    Show the state of the loop

    Usage: tachikoma status [OPTIONS]

    Options:
          --json          Print one JSON object
      -v, --verbose...    Print diagnostics to stderr; repeat for more detail
          --color <WHEN>  When to print colors: auto, always or never
      -h, --help          Print help
    ");
    assert_snapshot!(help(&["pause"]), @"
    Pause after the current iteration

    Usage: tachikoma pause [OPTIONS]

    Options:
          --now           Interrupt the current iteration
      -v, --verbose...    Print diagnostics to stderr; repeat for more detail
          --color <WHEN>  When to print colors: auto, always or never
      -h, --help          Print help
    ");
    assert_snapshot!(help(&["resume"]), @"
    Continue a paused loop

    Usage: tachikoma resume [OPTIONS]

    Options:
      -v, --verbose...    Print diagnostics to stderr; repeat for more detail
          --color <WHEN>  When to print colors: auto, always or never
      -h, --help          Print help
    ");
    assert_snapshot!(help(&["stop"]), @"
    Stop the loop

    Usage: tachikoma stop [OPTIONS]

    Options:
          --now           Do not wait for the current tool call to end
      -v, --verbose...    Print diagnostics to stderr; repeat for more detail
          --color <WHEN>  When to print colors: auto, always or never
      -h, --help          Print help
    ");
    assert_snapshot!(help(&["skip"]), @"
    Skip the current iteration or the current wait

    Usage: tachikoma skip [OPTIONS]

    Options:
      -v, --verbose...    Print diagnostics to stderr; repeat for more detail
          --color <WHEN>  When to print colors: auto, always or never
      -h, --help          Print help
    ");
    assert_snapshot!(help(&["reboot"]), @"
    Start a fresh agent session

    Usage: tachikoma reboot [OPTIONS]

    Options:
      -v, --verbose...    Print diagnostics to stderr; repeat for more detail
          --color <WHEN>  When to print colors: auto, always or never
      -h, --help          Print help
    ");
    assert_snapshot!(help(&["events"]), @"
    Print the events of the loop

    Usage: tachikoma events [OPTIONS]

    Options:
      -f, --follow        Keep printing new events
          --json          Print the journal's records, one JSON object per line
      -v, --verbose...    Print diagnostics to stderr; repeat for more detail
          --color <WHEN>  When to print colors: auto, always or never
      -h, --help          Print help
    ");
    assert_snapshot!(help(&["logs"]), @"
    Print the agent's output

    Usage: tachikoma logs [OPTIONS] [ITERATION]

    Arguments:
      [ITERATION]  Iteration [default: the latest with output]

    Options:
      -v, --verbose...    Print diagnostics to stderr; repeat for more detail
          --color <WHEN>  When to print colors: auto, always or never
      -h, --help          Print help
    ");
    assert_snapshot!(help(&["config"]), @"
    Show and check the configuration

    Usage: tachikoma config [OPTIONS] <COMMAND>

    Commands:
      show    Print every setting with its value and origin
      check   Check all configuration files and variables
      schema  Print the JSON Schema of `tachikoma.toml`
      help    Print this message or the help of the given subcommand(s)

    Options:
      -v, --verbose...    Print diagnostics to stderr; repeat for more detail
          --color <WHEN>  When to print colors: auto, always or never
      -h, --help          Print help
    ");
    assert_snapshot!(help(&["agents", "decode"]), @"
    Print outcome, context usage and cost of a recorded agent process

    Usage: tachikoma agents decode [OPTIONS] <AGENT> <FILE>

    Arguments:
      <AGENT>  Agent that wrote the output: claude or opencode
      <FILE>   File with its stdout, plain or compressed (.zst), or - for stdin

    Options:
          --exit <CODE>   Exit code of the process, or -N if signal N killed it
          --json          Print one JSON object
      -v, --verbose...    Print diagnostics to stderr; repeat for more detail
          --color <WHEN>  When to print colors: auto, always or never
      -h, --help          Print help
    ");
    assert_snapshot!(help(&["state"]), @"
    Show, check, back up and restore the stored state

    Usage: tachikoma state [OPTIONS] <COMMAND>

    Commands:
      show     Show the whole state, and whether it is saved
      verify   Check all journals, snapshots, transcripts and backups
      set      Store a value for hooks and scripts
      export   Print the state and all records, one JSON object per line
      backup   Make a backup of the loop now, running or not
      backups  List and check the backups, newest first
      restore  Restore a loop from a backup; the current loop is archived
      clear    Archive the loop, so that the next run starts a new one
      help     Print this message or the help of the given subcommand(s)

    Options:
      -v, --verbose...    Print diagnostics to stderr; repeat for more detail
          --color <WHEN>  When to print colors: auto, always or never
      -h, --help          Print help
    ");
    assert_snapshot!(help(&["state", "set"]), @"
    Store a value for hooks and scripts

    Usage: tachikoma state set [OPTIONS] <KEY> <JSON>

    Arguments:
      <KEY>   Name of the value
      <JSON>  Value as JSON; null removes it

    Options:
      -v, --verbose...    Print diagnostics to stderr; repeat for more detail
          --color <WHEN>  When to print colors: auto, always or never
      -h, --help          Print help
    ");
    assert_snapshot!(help(&["state", "clear"]), @"
    Archive the loop, so that the next run starts a new one

    Usage: tachikoma state clear [OPTIONS]

    Options:
          --purge         Delete all loops and their files instead
      -y, --yes           Do not ask for confirmation
      -v, --verbose...    Print diagnostics to stderr; repeat for more detail
          --color <WHEN>  When to print colors: auto, always or never
      -h, --help          Print help
    ");
    assert_snapshot!(help(&["completions"]), @"
    Print a shell completion script

    Usage: tachikoma completions [OPTIONS] <SHELL>

    Arguments:
      <SHELL>  The shell [possible values: bash, elvish, fish, powershell, zsh]

    Options:
      -v, --verbose...    Print diagnostics to stderr; repeat for more detail
          --color <WHEN>  When to print colors: auto, always or never
      -h, --help          Print help
    ");
}

#[test]
fn service_print_rejects_a_directory_name_with_a_line_break() {
    let scratch = Scratch::new();
    let name = "a\nExecStartPre=touch injected\n";
    scratch.write(format!("{name}/prompt.md"), "go");
    for kind in ["systemd", "launchd"] {
        let ran = tachikoma(&scratch)
            .in_dir(name)
            .run(["service", "print", kind]);
        assert_eq!(ran.code(), Some(2), "{}", ran.snapshot());
        assert_eq!(ran.stdout, "");
        assert!(ran.stderr.contains("control character"), "{}", ran.stderr);
    }
}
