//! Invalid prompts, programs, settings and flags: a clear error, and nothing is started.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use insta::assert_snapshot;
use tachikoma_testkit::{Ran, Scratch, Tool};

use crate::support::{files, run, shown, tachikoma, unprivileged, with_history};

/// Runs a command that must fail, and checks that no file has changed.
#[track_caller]
fn refused(scratch: &Scratch, tool: &Tool<'_>, words: &[&str]) -> String {
    let before = files(&scratch.path());
    let ran = tool.run(words);
    assert_unchanged(scratch, &before, &ran);
    shown(&ran)
}

#[track_caller]
fn assert_unchanged(
    scratch: &Scratch,
    before: &std::collections::BTreeMap<std::path::PathBuf, Vec<u8>>,
    ran: &Ran,
) {
    assert_ne!(ran.code(), Some(0), "{}", ran.snapshot());
    assert!(
        *before == files(&scratch.path()),
        "a refused run must not change anything: {}",
        ran.snapshot()
    );
}

#[track_caller]
fn check(words: &[&str]) -> String {
    let scratch = with_history();
    scratch.write("empty.md", " \n");
    scratch.write("binary.md", b"\xff\xfe\0");
    scratch.write("notes.txt", "not a program\n");
    let tool = tachikoma(&scratch).env("PATH", "/nowhere:/usr/bin:/bin");
    refused(&scratch, &tool, words)
}

#[test]
fn a_missing_prompt_is_refused() {
    assert_snapshot!(check(&["run", "gone.md"]), @"
    exit: 2
    --- stdout
    --- stderr
    error: read prompt [DIR]/gone.md: No such file or directory (os error 2)
    hint: write one, name another file (`tachikoma run FILE`), or use `--prompt-text`
    ");
}

#[test]
fn an_empty_prompt_is_refused() {
    assert_snapshot!(check(&["run", "empty.md"]), @"
    exit: 2
    --- stdout
    --- stderr
    error: prompt [DIR]/empty.md is empty
    hint: write one, name another file (`tachikoma run FILE`), or use `--prompt-text`
    ");
}

#[test]
fn a_prompt_that_is_not_utf8_is_refused() {
    assert_snapshot!(check(&["run", "binary.md"]), @"
    exit: 2
    --- stdout
    --- stderr
    error: prompt [DIR]/binary.md is not UTF-8 text
    hint: write one, name another file (`tachikoma run FILE`), or use `--prompt-text`
    ");
}

#[test]
fn a_directory_as_prompt_is_refused() {
    assert_snapshot!(check(&["run", ".ralph"]), @"
    exit: 2
    --- stdout
    --- stderr
    error: read prompt [DIR]/.ralph: Is a directory (os error 21)
    hint: write one, name another file (`tachikoma run FILE`), or use `--prompt-text`
    ");
}

#[test]
fn an_empty_prompt_text_is_refused() {
    assert_snapshot!(check(&["run", "--prompt-text", ""]), @"
    exit: 2
    --- stdout
    --- stderr
    error: the prompt that was given as text is empty
    hint: write one, name another file (`tachikoma run FILE`), or use `--prompt-text`
    ");
}

#[test]
fn an_unreadable_prompt_is_refused() {
    let scratch = Scratch::new();
    let prompt = scratch.write("prompt.md", "go\n");
    fs::set_permissions(prompt, fs::Permissions::from_mode(0o000))
        .expect("the test owns this file");
    let ran = unprivileged(&scratch).run(["run", "--", "true"]);
    assert_snapshot!(shown(&ran), @"
    exit: 2
    --- stdout
    --- stderr
    error: read prompt [DIR]/prompt.md: Permission denied (os error 13)
    hint: write one, name another file (`tachikoma run FILE`), or use `--prompt-text`
    ");
    assert!(!scratch.path().join(".ralph").exists());
}

#[test]
fn a_missing_working_directory_is_refused() {
    let scratch = with_history();
    scratch.write("tachikoma.toml", "working_dir = \"gone\"\n");
    let text = refused(&scratch, &tachikoma(&scratch), &["run", "--", "true"]);
    assert_snapshot!(text, @"
    exit: 2
    --- stdout
    --- stderr
    error: working directory [DIR]/gone: No such file or directory (os error 2)
    hint: create it, or change `working_dir`; `tachikoma config show` shows where it is set
    ");
}

#[test]
fn a_working_directory_deleted_during_the_run_fails_iterations() {
    let scratch = Scratch::new();
    let text = "working_dir = \"work\"\n[stop_conditions]\nmax_consecutive_failures = 1\n";
    scratch.write("tachikoma.toml", text);
    scratch.write("work/file", "");
    let ran = tachikoma(&scratch).run(run(&[], "rm -rf ../work"));
    assert_snapshot!(shown(&ran), @"
    exit: 1
    --- stdout
    tachikoma 0.1.0  agent command (`sh -c rm -rf ../work`)  in [DIR]/work
      permission  your own rights: nothing it does is denied
      limits      100 iterations, 12h of work
      completion  no gate is configured: <promise>COMPLETE</promise> on a line of its own or `tachikoma done` ends the loop
      git         no git repository here: nothing is committed, no iteration can be rolled back, and progress is detected from files only
      stop        Ctrl-C, or `tachikoma stop`; `tachikoma status` shows the state
      [LOOP] starts: agent command, containment [HELD]
    ━━ iteration 1 ━━ [CLOCK] ━━ session 1 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
      ✓ done in [DURATION]
      ! the work tree was not surveyed: read directory [DIR]/work: No such file or directory (os error 2)
    ━━ iteration 2 ━━ [CLOCK] ━━ session 1 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
      ✗ failed after [DURATION]: working directory [DIR]/work: No such file or directory (os error 2)
      ! the work tree was not surveyed: read directory [DIR]/work: No such file or directory (os error 2)
    ✗ error: an iteration failed (max_consecutive_failures = 1); the last one: working directory [DIR]/work: No such file or directory (os error 2) (2 iterations, 1 succeeded, 1 failed, [DURATION] of work)
      this run: [CLOCK] to [CLOCK]
    --- stderr
    hint: `tachikoma logs` has what the agent wrote; fix the cause, then `tachikoma run` continues
    ");
}

#[test]
fn a_deleted_current_directory_is_refused() {
    let scratch = Scratch::new();
    let script = "mkdir d && cd d && rmdir ../d && exec \"$0\" run --prompt-text go -- true";
    let shell = Tool::new("/bin/sh", &scratch);
    let ran = shell.run(["-c", script, env!("CARGO_BIN_EXE_tachikoma")]);
    assert_snapshot!(shown(&ran), @"
    exit: 2
    --- stdout
    --- stderr
    error: the current directory cannot be used: No such file or directory (os error 2)
    hint: it may have been deleted or moved; `cd` to one that exists
    ");
}

#[test]
fn a_missing_program_is_refused_and_path_is_shown() {
    assert_snapshot!(check(&["run", "--", "no-such-agent"]), @"
    exit: 2
    --- stdout
    --- stderr
    error: program `no-such-agent` is not found; looked in PATH: /nowhere:/usr/bin:/bin
    hint: name another program after `--`, or set `agents.command.program`
    ");
}

#[test]
fn a_program_that_is_not_executable_is_refused() {
    assert_snapshot!(check(&["run", "--", "./notes.txt"]), @"
    exit: 2
    --- stdout
    --- stderr
    error: program `./notes.txt` is not executable
    hint: name another program after `--`, or set `agents.command.program`
    ");
}

#[test]
fn a_directory_as_program_is_refused() {
    assert_snapshot!(check(&["run", "--", "./"]), @"
    exit: 2
    --- stdout
    --- stderr
    error: program `./` is a directory
    hint: name another program after `--`, or set `agents.command.program`
    ");
}

#[test]
fn a_program_found_in_path_that_is_not_executable_is_refused() {
    let scratch = with_history();
    let notes = scratch.write("bin/agent", "not a program\n");
    let bin = notes.parent().expect("it has one").to_owned();
    let tool = tachikoma(&scratch).env("PATH", bin);
    assert_snapshot!(refused(&scratch, &tool, &["run", "--", "agent"]), @"
    exit: 2
    --- stdout
    --- stderr
    error: program `agent` is not executable: [DIR]/bin/agent
    hint: name another program after `--`, or set `agents.command.program`
    ");
}

#[test]
fn missing_interpreter_of_an_agent_script_is_named() {
    let scratch = Scratch::new();
    scratch.write(
        "tachikoma.toml",
        "[stop_conditions]\nmax_consecutive_failures = 1\n",
    );
    scratch.write_script("agent", "#!/nowhere/interpreter\n");
    let words = ["run", "--quiet", "--prompt-text", "go", "--", "./agent"];
    assert_snapshot!(shown(&tachikoma(&scratch).run(words)), @"
    exit: 1
    --- stdout
    error: an iteration failed (max_consecutive_failures = 1); the last one: program `./agent` is there, but the interpreter that it names is not: No such file or directory (os error 2) (1 iteration, 1 failed, [DURATION] of work)
    --- stderr
    hint: `tachikoma logs` has what the agent wrote; fix the cause, then `tachikoma run` continues
    ");
}

#[test]
fn a_misspelled_agent_name_is_refused_with_a_suggestion() {
    assert_snapshot!(check(&["run", "--agent", "cluade"]), @"
    exit: 2
    --- stdout
    --- stderr
    error: --agent: `agent.name` must be `claude`, `opencode`, `command` or `demo`, not `cluade`
      hint: did you mean `claude`?
    ");
}

#[test]
fn an_agent_that_is_not_supported_yet_is_refused() {
    assert_snapshot!(check(&["run", "--agent", "codex"]), @"
    exit: 2
    --- stdout
    --- stderr
    error: agent `codex` is not supported yet
    hint: `--agent command` with `-- PROGRAM ARGS...` runs any program; `tachikoma demo` needs none
    ");
}

#[test]
fn the_command_agent_without_a_program_is_refused() {
    let scratch = Scratch::new();
    scratch.write("prompt.md", "go\n");
    let words = ["run", "--agent", "command"];
    assert_snapshot!(refused(&scratch, &tachikoma(&scratch), &words), @"
    exit: 2
    --- stdout
    --- stderr
    error: agent `command` has no program
    hint: `--agent command` with `-- PROGRAM ARGS...` runs any program; `tachikoma demo` needs none
    ");
}

#[test]
fn a_program_is_refused_if_another_agent_is_named() {
    assert_snapshot!(check(&["run", "--agent", "demo", "--", "prog"]), @"
    exit: 2
    --- stdout
    --- stderr
    error: `-- PROGRAM` is for `--agent command`, and another agent was named
    hint: leave out `--agent` or the program
    ");
}

#[test]
fn all_invalid_settings_are_named_with_file_and_line() {
    let scratch = with_history();
    let text = "max_iteration = 3\n\
                prompt_path = 7\n\
                [session]\n\
                session_timeout = \"-5s\"\n\
                [[gate]]\n\
                name = \"tests\"\n\
                comand = \"true\"\n";
    scratch.write("tachikoma.toml", text);
    let text = refused(&scratch, &tachikoma(&scratch), &["run", "--", "true"]);
    assert_snapshot!(text, @r#"
    exit: 2
    --- stdout
    --- stderr
    error: tachikoma.toml:1: unknown key `max_iteration`
      hint: did you mean `max_iterations`?
    tachikoma.toml:2: `prompt_path` must be a string, not a whole number
    tachikoma.toml:4: `session.session_timeout` must be a duration such as "5s" or "1h 30m", not "-5s"
    tachikoma.toml:5: `gate` lacks `command`
      hint: every `[[gate]]` needs one
    tachikoma.toml:7: unknown key `gate.comand`
      hint: did you mean `gate.command`?
    "#);
}

#[test]
fn a_configuration_that_is_not_toml_is_refused() {
    let scratch = with_history();
    scratch.write(
        "tachikoma.toml",
        "max_iterations = 3\nprompt_path = prompt.md\n",
    );
    let text = refused(&scratch, &tachikoma(&scratch), &["run", "--", "true"]);
    assert_snapshot!(text, @"
    exit: 2
    --- stdout
    --- stderr
    error: tachikoma.toml:2: string values must be quoted, expected literal string
    ");
}

#[test]
fn an_unreadable_configuration_is_refused() {
    let scratch = Scratch::new();
    let file = scratch.write("tachikoma.toml", "max_iterations = 3\n");
    fs::set_permissions(file, fs::Permissions::from_mode(0o000)).expect("the test owns this file");
    let ran = unprivileged(&scratch).run(run(&[], "true"));
    assert_snapshot!(shown(&ran), @"
    exit: 2
    --- stdout
    --- stderr
    error: tachikoma.toml: cannot be read: Permission denied (os error 13)
    ");
}

#[test]
fn a_misspelled_variable_is_refused() {
    let scratch = with_history();
    let tool = tachikoma(&scratch).env("TACHIKOMA_MAX_ITERATION", "3");
    assert_snapshot!(refused(&scratch, &tool, &["run", "--", "true"]), @"
    exit: 2
    --- stdout
    --- stderr
    error: TACHIKOMA_MAX_ITERATION: unknown variable `TACHIKOMA_MAX_ITERATION`
      hint: did you mean `TACHIKOMA_MAX_ITERATIONS`?
    ");
}

#[test]
fn a_negative_delay_is_refused() {
    assert_snapshot!(check(&["run", "--delay", "-5s"]), @r#"
    exit: 2
    --- stdout
    --- stderr
    error: --delay: `iteration_delay` must be a duration such as "5s" or "1h 30m", not "-5s"
    "#);
}

#[test]
fn a_delay_without_a_unit_is_refused() {
    assert_snapshot!(check(&["run", "--delay", "5"]), @r#"
    exit: 2
    --- stdout
    --- stderr
    error: --delay: `iteration_delay` must be a duration such as "5s" or "1h 30m", not "5"
    "#);
}

#[test]
fn a_negative_limit_is_refused() {
    assert_snapshot!(check(&["run", "--max-iterations", "-1"]), @"
    exit: 2
    --- stdout
    --- stderr
    error: invalid value '-1' for '--max-iterations <N>': it must be a whole number from 0 to 4294967295

    For more information, try '--help'.
    ");
}

#[test]
fn a_limit_that_is_not_a_number_is_refused() {
    assert_snapshot!(check(&["run", "--max-iterations=x"]), @"
    exit: 2
    --- stdout
    --- stderr
    error: invalid value 'x' for '--max-iterations <N>': it must be a whole number from 0 to 4294967295

    For more information, try '--help'.
    ");
}

#[test]
fn an_unknown_command_is_refused() {
    assert_snapshot!(check(&["rum"]), @"
    exit: 2
    --- stdout
    --- stderr
    error: unrecognized subcommand 'rum'

      tip: some similar subcommands exist: 'run', 'resume'

    Usage: tachikoma [OPTIONS] [COMMAND]

    For more information, try '--help'.
    ");
}

#[test]
fn two_prompts_are_refused() {
    assert_snapshot!(check(&["run", "prompt.md", "--prompt-text", "go"]), @"
    exit: 2
    --- stdout
    --- stderr
    error: the argument '[PROMPT]' cannot be used with '--prompt-text <TEXT>'

    Usage: tachikoma run <PROMPT> [-- <PROGRAM>...]

    For more information, try '--help'.
    ");
}

#[test]
fn text_in_place_of_the_prompt_file_gets_a_hint_with_the_flag() {
    let scratch = Scratch::new();
    let ran = tachikoma(&scratch).run(["run", "fix the tests", "--", "true"]);
    assert_snapshot!(ran.snapshot(), @"
    exit: 2
    --- stdout
    --- stderr
    error: no file is named `fix the tests`
    hint: to use these words as the prompt: `tachikoma run -p 'fix the tests'`
    ");
}

#[test]
fn no_command_shows_the_first_commands_or_the_loop() {
    let scratch = Scratch::new();
    let tool = tachikoma(&scratch);
    assert_snapshot!(tool.run([""; 0]).snapshot(), @r#"
    exit: 0
    --- stdout
    no loop in [DIR]; `tachikoma run` starts one

      tachikoma demo                                    # watch a scripted agent, without a key or a network
      tachikoma init                                    # write a configuration, a prompt and a plan
      tachikoma run -p "fix the tests" --agent claude   # run Claude Code in a loop
      tachikoma run prompt.md -- my-agent               # run any program in a loop
      tachikoma -h                                      # list the commands
    --- stderr
    "#);
    scratch.write("prompt.md", "work\n");
    tool.run(["run", "-n", "1", "--quiet", "--", "true"]);
    let (bare, status) = (tool.run([""; 0]), tool.run(["status"]));
    assert_eq!(bare.code(), Some(0), "{}", bare.snapshot());
    assert!(bare.stdout.contains("1 iteration"), "{}", bare.stdout);
    assert_eq!(bare.stdout.lines().count(), status.stdout.lines().count());
}
