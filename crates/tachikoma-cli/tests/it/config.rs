//! `config`, `completions` and the help of every command.

use std::fs;

use insta::assert_snapshot;
use tachikoma_testkit::Scratch;

use crate::support::{as_configured, shown, tachikoma};

#[test]
fn every_value_has_its_origin() {
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
    assert_eq!(dry.code(), Some(2), "a run would find no prompt either");
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
fn secrets_are_not_shown() {
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

/// A stop must not wait for a writer of the pipe.
#[test]
fn a_named_pipe_as_configuration_is_refused_at_once() {
    let scratch = Scratch::new();
    let pipe = scratch.path().join("tachikoma.toml");
    let made = std::process::Command::new("mkfifo").arg(pipe).status();
    assert!(made.unwrap().success());
    let ran = tachikoma(&scratch).run(["config", "check"]);
    assert_eq!(ran.code(), Some(2), "{}", ran.snapshot());
    assert!(ran.snapshot().contains("it is not a plain file"));
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
    the configuration is good
    --- stderr
    note: `agent.fallback` (tachikoma.toml:1) is known, but its feature is not built yet
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
fn a_named_configuration_file_must_exist() {
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
fn the_schema_is_json() {
    let scratch = Scratch::new();
    let schema = tachikoma(&scratch).run(["config", "schema"]).json();
    assert!(
        schema["properties"]["max_iterations"].is_object(),
        "{schema}"
    );
}

#[test]
fn shells_can_complete() {
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
fn the_version() {
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
fn help_of_the_program() {
    assert_snapshot!(help(&[]), @"
    Leave a coding agent working alone for hours, and find the work where it ought to be

    Usage: tachikoma [OPTIONS] <COMMAND>

    Commands:
      run          Run the loop here, or go on with it
      demo         Watch a scripted agent work, crash, be rebooted and finish, in a scratch directory
      status       Show what the loop is doing
      pause        Pause after the current iteration
      resume       Go on after a pause
      stop         End the loop
      skip         Give up the current iteration, or the current wait, and go on
      reboot       Replace the agent's session by a fresh one
      answer       Answer the question that the loop waits with: before or after an iteration, or before
                   a reboot
      attend       Turn attended mode on or off
      tell         Tell the agent something: while its next tool runs where it can hear it, else with
                   the next prompt
      reload       Read the configuration again: what changed holds from the next decision on
      events       Print what has happened
      logs         Print what the agent wrote
      context      Show how full the context of a session became, reading by reading
      history      Show what became of each iteration
      explain      Say why the loop went on, waited, rebooted or stopped: the decisions of an iteration,
                   and what they were made from
      replay       Decide the recorded loop again by other settings, and show where it would have gone
                   another way
      diff         Show what an iteration changed, as git shows it
      rollback     Bring the work tree back to what it was before an iteration
      checkpoint   Show the hand-off given to a new session
      note         Leave a note for the sessions to come: what was found out, decided, or is left to do
      done         Claim that the whole work is complete: judged when the iteration under way is over
      state        Look at the state that is kept, and change it
      trust        Allow the programs and permissions that the configuration here names
      config       Look at the configuration
      notify       Try the messages of `[[notify]]`
      agents       Look at what agents write
      opencode     Keep `opencode serve` running
      service      Have the system's own supervisor run something of ours
      completions  Print a completion script for a shell
      help         Print this message or the help of the given subcommand(s)

    Options:
      -v, --verbose...  Print diagnostics to standard error; repeat it for more
      -h, --help        Print help
      -V, --version     Print version
    ");
}

#[test]
fn help_of_run() {
    assert_snapshot!(help(&["run"]), @"
    Run the loop here, or go on with it

    Usage: tachikoma run [OPTIONS] [PROMPT] [-- <PROGRAM>...]

    Arguments:
      [PROMPT]      The file with the prompt, read again at every iteration
      [PROGRAM]...  A program to be run as the agent: it gets the prompt on its standard input, and exit
                    code 0 means success

    Options:
      -p, --prompt-text <TEXT>           The prompt itself
          --agent <NAME>                 The agent: claude (Claude Code), opencode, command (any
                                         program), demo
          --model <NAME>                 The model, by the agent's own name for it
          --attach <URL>                 Use the OpenCode server at this address, such as
                                         http://127.0.0.1:4096, and never restart it; `own` takes that
                                         back
      -n, --max-iterations <N>           How many iterations the loop may run over all its runs; 0 = no
                                         limit
          --max-cost <USD>               Stop when the agent's own figures say that the loop has cost
                                         this much; 0 = no limit
          --max-duration <DURATION>      Stop after this much work, such as 8h; waits for usage limits
                                         and for you do not count; 0s = no limit
          --context-threshold <PERCENT>  Replace the session by a fresh one when its context is this
                                         full, in percent, such as 85 or 72.5; 100 = never
          --context-tokens <N>           Replace the session at this many tokens of context; 0 = off
          --max-restarts <N>             How often the session may be replaced; 0 = never
          --fresh-session                Give every iteration a session of its own
          --delay <DURATION>             How long to wait after an iteration, such as 5s
          --json                         Print the journal's records, one JSON object per line
      -q, --quiet                        Print nothing but errors and the outcome
          --new                          Begin a new loop, even if the last one could go on; that one is
                                         archived
          --accept-loss                  Go on although records of the loop are lost; what is left of
                                         them is kept in quarantine
          --detach                       Leave the loop running in the background
          --dry-run                      Say what would be run, and do not
          --no-auto-commit               Do not commit after iterations
          --auto-commit                  Commit after iterations: takes back the --no-auto-commit of an
                                         earlier run
          --allow-dirty                  Start even if tracked files have changes that are not committed
          --attended                     Ask before the first iteration and after each
          --unattended                   Ask nothing between iterations: takes back the --attended of an
                                         earlier run
          --trust                        Trust the configuration and the loop that are here, for this
                                         run only
          --nested                       Start even from inside the agent of another loop
      -v, --verbose...                   Print diagnostics to standard error; repeat it for more
      -h, --help                         Print help

    Examples:
      tachikoma run prompt.md --agent claude     # Claude Code
      tachikoma run --context-threshold 72.5     # a fresh session from 72.5 % on
      tachikoma run --context-threshold 100      # never one
      tachikoma run --context-tokens 150000      # or from 150000 tokens on
      tachikoma run --max-restarts 3             # at most 4 sessions, then an error
      tachikoma run --fresh-session              # each iteration begins anew
      tachikoma run prompt.md -- my-agent        # any program
      tachikoma run                              # go on, with what was given before
    ");
}

#[test]
fn help_of_the_other_commands() {
    assert_snapshot!(help(&["demo"]), @"
    Watch a scripted agent work, crash, be rebooted and finish, in a scratch directory

    Usage: tachikoma demo [OPTIONS]

    Options:
          --json        Print the journal's records, one JSON object per line
          --dir <DIR>   Where to work; a temporary directory, removed afterwards, if not given
      -v, --verbose...  Print diagnostics to standard error; repeat it for more
      -h, --help        Print help
    ");
    assert_snapshot!(help(&["status"]), @"
    Show what the loop is doing

    Usage: tachikoma status [OPTIONS]

    Options:
          --json        Print one JSON object
      -v, --verbose...  Print diagnostics to standard error; repeat it for more
      -h, --help        Print help
    ");
    assert_snapshot!(help(&["pause"]), @"
    Pause after the current iteration

    Usage: tachikoma pause [OPTIONS]

    Options:
          --now         Interrupt the current iteration
      -v, --verbose...  Print diagnostics to standard error; repeat it for more
      -h, --help        Print help
    ");
    assert_snapshot!(help(&["resume"]), @"
    Go on after a pause

    Usage: tachikoma resume [OPTIONS]

    Options:
      -v, --verbose...  Print diagnostics to standard error; repeat it for more
      -h, --help        Print help
    ");
    assert_snapshot!(help(&["stop"]), @"
    End the loop

    Usage: tachikoma stop [OPTIONS]

    Options:
          --now         Do not wait for a tool call to end
      -v, --verbose...  Print diagnostics to standard error; repeat it for more
      -h, --help        Print help
    ");
    assert_snapshot!(help(&["skip"]), @"
    Give up the current iteration, or the current wait, and go on

    Usage: tachikoma skip [OPTIONS]

    Options:
      -v, --verbose...  Print diagnostics to standard error; repeat it for more
      -h, --help        Print help
    ");
    assert_snapshot!(help(&["reboot"]), @"
    Replace the agent's session by a fresh one

    Usage: tachikoma reboot [OPTIONS]

    Options:
      -v, --verbose...  Print diagnostics to standard error; repeat it for more
      -h, --help        Print help
    ");
    assert_snapshot!(help(&["events"]), @"
    Print what has happened

    Usage: tachikoma events [OPTIONS]

    Options:
      -f, --follow      Go on printing what happens
          --json        Print the journal's records, one JSON object per line
      -v, --verbose...  Print diagnostics to standard error; repeat it for more
      -h, --help        Print help
    ");
    assert_snapshot!(help(&["logs"]), @"
    Print what the agent wrote

    Usage: tachikoma logs [OPTIONS] [ITERATION]

    Arguments:
      [ITERATION]  The iteration; the latest that wrote something, if not given

    Options:
      -v, --verbose...  Print diagnostics to standard error; repeat it for more
      -h, --help        Print help
    ");
    assert_snapshot!(help(&["config"]), @"
    Look at the configuration

    Usage: tachikoma config [OPTIONS] <COMMAND>

    Commands:
      show    Print every setting with its value and where that comes from
      check   Check all files and variables
      schema  Print the JSON Schema of `tachikoma.toml`
      help    Print this message or the help of the given subcommand(s)

    Options:
      -v, --verbose...  Print diagnostics to standard error; repeat it for more
      -h, --help        Print help
    ");
    assert_snapshot!(help(&["agents", "decode"]), @"
    Say what the recorded output of one process comes to: outcome, context, cost

    Usage: tachikoma agents decode [OPTIONS] <AGENT> <FILE>

    Arguments:
      <AGENT>  The agent that wrote it: claude (Claude Code, with `--output-format stream-json`)
      <FILE>   The file with its standard output, plain or compressed (.zst); - for standard input

    Options:
          --exit <CODE>  The exit code of the process, or the negated number of the signal that killed
                         it
          --json         Print one JSON object
      -v, --verbose...   Print diagnostics to standard error; repeat it for more
      -h, --help         Print help
    ");
    assert_snapshot!(help(&["state"]), @"
    Look at the state that is kept, and change it

    Usage: tachikoma state [OPTIONS] <COMMAND>

    Commands:
      show     Show all that the loop knows, and whether it is saved
      verify   Check every journal, snapshot, transcript and backup, line by line
      set      Write down a value for later
      export   Print everything as one text: the state and all records, one JSON object per line
      backup   Take a backup of the loop now, live or not
      backups  List the backups, newest first, and check each
      restore  Bring a loop back from a backup; what is here is kept
      clear    Archive the loop, so that the next run begins a new one
      help     Print this message or the help of the given subcommand(s)

    Options:
      -v, --verbose...  Print diagnostics to standard error; repeat it for more
      -h, --help        Print help
    ");
    assert_snapshot!(help(&["state", "set"]), @"
    Write down a value for later

    Usage: tachikoma state set [OPTIONS] <KEY> <JSON>

    Arguments:
      <KEY>   Its name
      <JSON>  The value, as JSON; null removes it

    Options:
      -v, --verbose...  Print diagnostics to standard error; repeat it for more
      -h, --help        Print help
    ");
    assert_snapshot!(help(&["state", "clear"]), @"
    Archive the loop, so that the next run begins a new one

    Usage: tachikoma state clear [OPTIONS]

    Options:
          --purge       Delete all loops instead, with everything that is kept of them
      -y, --yes         Do not ask
      -v, --verbose...  Print diagnostics to standard error; repeat it for more
      -h, --help        Print help
    ");
    assert_snapshot!(help(&["completions"]), @"
    Print a completion script for a shell

    Usage: tachikoma completions [OPTIONS] <SHELL>

    Arguments:
      <SHELL>  The shell [possible values: bash, elvish, fish, powershell, zsh]

    Options:
      -v, --verbose...  Print diagnostics to standard error; repeat it for more
      -h, --help        Print help
    ");
}

#[test]
fn no_unit_is_printed_for_a_directory_whose_name_has_a_line_break() {
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
