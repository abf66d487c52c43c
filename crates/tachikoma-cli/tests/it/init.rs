//! `tachikoma init`: the files that it writes for each kind of project, and its questions.

use std::os::unix::fs::symlink;

use tachikoma_testkit::{Ran, Scratch, Tool};

use crate::live_pty::Terminal;
use crate::support::files;
use crate::trust::untrusting;

/// A project: its name, its files, and the test command that is expected.
pub(crate) type Shape = (
    &'static str,
    &'static [(&'static str, &'static str)],
    Option<&'static str>,
);

pub(crate) const SHAPES: [Shape; 11] = [
    (
        "rust",
        &[("Cargo.toml", "[package]\nname = 'a'\n")],
        Some("cargo test"),
    ),
    (
        "rust workspace",
        &[("Cargo.toml", "[workspace]\nmembers = []\n")],
        Some("cargo test"),
    ),
    (
        "python pytest",
        &[("pyproject.toml", "[tool.pytest.ini_options]\n")],
        Some("pytest"),
    ),
    (
        "python unittest",
        &[("setup.py", "from setuptools import setup\n")],
        Some("python3 -m unittest"),
    ),
    (
        "node npm",
        &[("package.json", r#"{"scripts":{"test":"node --test"}}"#)],
        Some("npm test"),
    ),
    (
        "node pnpm",
        &[
            ("package.json", r#"{"scripts":{"test":"node --test"}}"#),
            ("pnpm-lock.yaml", ""),
        ],
        Some("pnpm test"),
    ),
    (
        "node without tests",
        &[(
            "package.json",
            r#"{"scripts":{"test":"echo \"Error: no test specified\" && exit 1"}}"#,
        )],
        None,
    ),
    ("go", &[("go.mod", "module a\n")], Some("go test ./...")),
    (
        "make",
        &[("Makefile", "TEST := 1\nall: test\ntest: all\n\ttrue\n")],
        Some("make test"),
    ),
    ("empty directory", &[], None),
    (
        "ralph files",
        &[
            ("PROMPT.md", "Read @fix_plan.md.\n"),
            ("@fix_plan.md", "- [ ] one\n"),
            ("prd.json", "{}"),
        ],
        None,
    ),
];

/// Writes the files of a shape into a new repository, with a program that acts as the test runner and an agent in `PATH`.
pub(crate) fn project(shape: &Shape) -> Scratch {
    let scratch = Scratch::with_git();
    for (name, text) in shape.1 {
        scratch.write(name, text);
    }
    std::fs::create_dir(scratch.home().join("bin")).unwrap();
    program(&scratch, "claude", "echo '2.1.325 (Claude Code)'");
    for name in ["cargo", "pytest", "python3", "npm", "pnpm", "go", "make"] {
        program(&scratch, name, "exit 0");
    }
    scratch
}

/// Installs a shell script as a program in the first directory of `PATH`.
pub(crate) fn program(scratch: &Scratch, name: &str, script: &str) {
    let source = scratch.write_script(format!(".git/bin-{name}"), format!("#!/bin/sh\n{script}\n"));
    let place = scratch.home().join("bin").join(name);
    let _ = std::fs::remove_file(&place);
    symlink(source, place).unwrap();
}

/// Returns the binary for a user who trusts nothing yet, with the programs of [`program`] in `PATH`. Other agents are not found.
pub(crate) fn tool(scratch: &Scratch) -> Tool<'_> {
    let path = format!("{}:/usr/bin:/bin", scratch.home().join("bin").display());
    untrusting(scratch)
        .env("PATH", path)
        .env("ANTHROPIC_API_KEY", "dummy")
}

#[track_caller]
pub(crate) fn init(scratch: &Scratch) -> Ran {
    let ran = tool(scratch).run(["init", "--yes"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    ran
}

#[test]
fn init_writes_a_valid_configuration_for_each_kind_of_project() {
    for shape in &SHAPES {
        let (name, _, test) = shape;
        let scratch = project(shape);
        let ran = init(&scratch);
        assert_eq!(ran.stderr, "", "{name}");
        let config = scratch.read("tachikoma.toml");
        let first = config.lines().next().unwrap();
        assert!(first.starts_with("#:schema https://"), "{first}");
        let command =
            test.map(|test| format!("\n[[gate]]\nname = \"tests\"\ncommand = \"{test}\"\n"));
        match command {
            Some(command) => assert!(config.contains(&command), "{name}: {config}"),
            None => assert!(!config.contains("\n[[gate]]"), "{name}: {config}"),
        }
        let checked = tool(&scratch).run(["config", "check"]);
        assert_eq!(
            (checked.code(), checked.stderr.as_str()),
            (Some(0), ""),
            "{name}"
        );
        let doctor = tool(&scratch).run(["doctor"]);
        assert_eq!(doctor.code(), Some(0), "{name}: {}", doctor.snapshot());
        assert!(doctor.stdout.contains("0 errors"), "{name}");
    }
}

#[test]
fn init_uses_and_keeps_existing_files() {
    let scratch = project(&SHAPES[10]);
    scratch.write("tachikoma.toml", "max_iterations = 7\n");
    let before = files(&scratch.path());
    let ran = init(&scratch);
    assert_eq!(files(&scratch.path()), before, "{}", ran.snapshot());
    for line in [
        "kept      tachikoma.toml",
        "kept      PROMPT.md",
        "kept      @fix_plan.md",
        "prd.json exists",
    ] {
        assert!(ran.stdout.contains(line), "{line}: {}", ran.stdout);
    }
    std::fs::remove_file(scratch.path().join("tachikoma.toml")).unwrap();
    init(&scratch);
    let config = scratch.read("tachikoma.toml");
    for line in [
        "prompt_path = \"PROMPT.md\"\n",
        "\nobjectives = \"@fix_plan.md\"",
    ] {
        assert!(config.contains(line), "{line}: {config}");
    }
    assert!(!scratch.path().join("prompt.md").exists());
}

#[test]
fn an_existing_configuration_is_not_trusted_by_init() {
    let scratch = project(&SHAPES[0]);
    scratch.write(
        "tachikoma.toml",
        "[[gate]]\nname = 'a'\ncommand = 'touch ran'\n",
    );
    init(&scratch);
    let doctor = tool(&scratch).run(["doctor"]);
    assert!(
        doctor.stdout.contains("is not trusted"),
        "{}",
        doctor.stdout
    );
    let refused = tool(&scratch).run(["run", "--", "true"]);
    assert_eq!(refused.code(), Some(2), "{}", refused.snapshot());
    assert!(!scratch.path().join("ran").exists());
}

#[test]
fn a_run_after_init_asks_nothing_and_completes() {
    let tick = "sed 's/\\[ \\]/[x]/' plan.md >new; cat new >plan.md; rm new; echo '<promise>COMPLETE</promise>'";
    for shape in [&SHAPES[0], &SHAPES[8], &SHAPES[9]] {
        let scratch = project(shape);
        init(&scratch);
        let ran = tool(&scratch).run(["run", "--delay", "0s", "-n", "3", "--", "sh", "-c", tick]);
        assert_eq!(ran.code(), Some(0), "{}: {}", shape.0, ran.snapshot());
    }
}

#[test]
fn init_without_an_agent_says_how_to_install_one() {
    let scratch = Scratch::new();
    let ran = untrusting(&scratch).env("PATH", "/nowhere").run(["init"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    for text in [
        "none installed",
        "npm install -g @anthropic-ai/claude-code",
        "next      tachikoma run",
    ] {
        assert!(ran.stdout.contains(text), "{text}: {}", ran.stdout);
    }
}

#[test]
fn init_asks_five_questions_on_a_terminal() {
    let scratch = project(&SHAPES[0]);
    let terminal = Terminal::start(&tool(&scratch), &["init"], 80);
    for (question, answer) in [
        ("agent (claude or opencode) [claude]: ", "codex\n"),
        ("it must be claude or opencode", "opencode\n"),
        (
            "test command (or none) [cargo test]: ",
            "cargo test && ./lint \"all\"\n",
        ),
        ("plan file [plan.md]: ", "tasks.md\n"),
        ("maximum number of iterations (0 = no limit) [50]: ", "\n"),
        ("maximum cost in US dollars (0 = no limit) [20]: ", "7.50\n"),
    ] {
        terminal.await_text(question);
        terminal.type_in(answer);
    }
    terminal.await_text("tachikoma run");
    let config = scratch.read("tachikoma.toml");
    for line in [
        "name = \"opencode\"\n",
        "max_iterations = 50 ",
        "max_cost_usd = 7.5 ",
        "objectives = \"tasks.md\"",
        "command = 'cargo test && ./lint \"all\"'\n",
        "allow = [\"cargo build\",",
    ] {
        assert!(config.contains(line), "{line}: {config}");
    }
    assert!(scratch.path().join("tasks.md").exists());
    let checked = tool(&scratch).run(["config", "check"]);
    assert_eq!(checked.code(), Some(0), "{}", checked.snapshot());
}
