//! Tests of the command line and environment of Claude Code that a dry run shows.

use insta::assert_snapshot;
use tachikoma_testkit::Scratch;

use crate::support::{as_configured, shown, tachikoma};

#[test]
fn a_dry_run_shows_the_whole_launch_and_no_secret() {
    let scratch = Scratch::new();
    scratch.write("prompt.md", "go\n");
    scratch.write(
        "tachikoma.toml",
        "session.claude_command = \"true\"\n[agents.claude]\nmodel = \"claude-sonnet-4-5\"\nenv = { TOKEN = \"hush\" }\n",
    );
    let ran = as_configured(&scratch).run(["run", "--dry-run"]);
    assert!(!ran.snapshot().contains("hush"));
    assert_snapshot!(shown(&ran), @r#"
    exit: 0
    --- stdout
    would run agent claude (`true`)
    permission safe: it may change files in the work tree, the rest is denied
    in [DIR]
    prompt prompt.md
    command true -p --input-format stream-json --output-format stream-json --verbose --include-partial-messages --model claude-sonnet-4-5 --disallowedTools CronCreate ScheduleWakeup --permission-mode acceptEdits --allowedTools 'Bash(tachikoma note:*)' 'Bash(tachikoma done:*)' 'Bash(tachikoma status:*)'
    with CLAUDE_CODE_DISABLE_BACKGROUND_TASKS=1
    with DISABLE_AUTOUPDATER=1
    with DISABLE_AUTO_COMPACT=1
    with TOKEN=***
    without CLAUDECODE
    without CLAUDE_CODE_ENTRYPOINT
    without CLAUDE_CODE_SSE_PORT
    without CLAUDE_CODE_SESSION_ID
    without CLAUDE_CODE_RESUME_INTERRUPTED_TURN
    git is not used: no repository here
    session.claude_command = "true"  # tachikoma.toml:1
    agents.claude.env.TOKEN = "***"  # tachikoma.toml:4
    agents.claude.model = "claude-sonnet-4-5"  # tachikoma.toml:3
    --- stderr
    "#);
}

#[test]
fn a_redline_above_the_limit_of_the_agent_is_a_warning() {
    let scratch = Scratch::new();
    scratch.write("prompt.md", "go\n");
    scratch.write(
        "tachikoma.toml",
        "context_redline_percent = 92\nmax_iterations = 1\n\
         [session]\nclaude_command = \"false\"\n\
         [agents.claude]\nmodel = \"claude-sonnet-4-5\"\n",
    );
    let ran = tachikoma(&scratch).run(["run"]);
    assert_snapshot!(shown(&ran), @"
    exit: 3
    --- stdout
    tachikoma 0.1.0  agent claude (`false`)  in [DIR]
      permission  safe: it may change files in the work tree, the rest is denied
      limits      1 iteration, 12h of work
      completion  no gate is configured: <promise>COMPLETE</promise> on a line of its own or `tachikoma done` ends the loop
      git         no git repository here: nothing is committed, no iteration can be rolled back, and progress is detected from files only
      stop        Ctrl-C, or `tachikoma stop`; `tachikoma status` shows the state
      [LOOP] starts: agent claude, containment [HELD]
    ━━ iteration 1 ━━ [CLOCK] ━━ session 1 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
      ✗ failed after [DURATION]: the agent ended with exit 1 and without a final result
    ! completed: the limit of 1 iteration is reached (1 iteration, 1 failed, [DURATION] of work)
      this run: [CLOCK] to [CLOCK]
    --- stderr
    note: context_redline_percent = 92 cannot be reached: with 200000 tokens agent claude takes no prompt above 87.0 %, and sessions are replaced there
    hint: raise `--max-iterations` to continue, or use `--new` to start over
    ");
}
