//! Gates, stop scripts and objectives that check a claim of completion.

use tachikoma_testkit::Scratch;

use crate::completion::{reasons, script};
use crate::gates::{gate, judging};
use crate::git_support::{commit_all, repository};
use crate::live_support::{await_nobody, seconds};
use crate::support::{
    CLAIMS, SOON, await_events, events, kill, run, start_busy, status, tachikoma,
};

/// An agent that claims completion and changes nothing.
const ONLY_CLAIMS: &str = "echo '<promise>COMPLETE</promise>'";

/// Returns a repository with a committed configuration.
fn configured(text: &str) -> Scratch {
    let scratch = repository();
    scratch.write("tachikoma.toml", text);
    commit_all(&scratch);
    scratch
}

#[test]
fn a_claim_in_the_first_iteration_is_accepted_if_gates_pass() {
    let scratch = configured(&gate("proof", "exit 0", ""));
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "2"], ONLY_CLAIMS));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let scratch = configured("");
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "1"], ONLY_CLAIMS));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let said = "nothing was done yet: no file was changed and no commit made";
    assert_eq!(reasons(&scratch), [said]);
}

#[test]
fn files_of_gates_and_scripts_are_committed_at_the_end() {
    let scratch = repository();
    let asks = "[stop_conditions]\ncustom_scripts = ['ask.sh']\n";
    let config = asks.to_owned() + &gate("proof", "echo 1 > by-a-gate", "");
    scratch.write("tachikoma.toml", config);
    script(&scratch, "ask.sh", "echo 1 > by-a-script");
    commit_all(&scratch);
    let does = format!("echo 1 > by-the-agent; {CLAIMS}");
    let ran = tachikoma(&scratch).run(run(&[], &does));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(scratch.git(&["status", "--porcelain"]), "");
    let files = scratch.git(&["ls-files", "by-*"]);
    assert_eq!(files, "by-a-gate\nby-a-script\nby-the-agent\n");
}

#[test]
fn a_stop_script_can_read_the_status_but_not_command() {
    let scratch = Scratch::new();
    scratch.write(
        "tachikoma.toml",
        "[stop_conditions]\ncustom_scripts = ['one.sh', 'two.sh']\n",
    );
    let program = env!("CARGO_BIN_EXE_tachikoma");
    for name in ["one", "two"] {
        let asks = format!("{program} stop 2> {name}.said; echo $? > {name}.code; exit 0");
        script(&scratch, &format!("{name}.sh"), &asks);
    }
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "1"], "exit 0"));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    for name in ["one", "two"] {
        let said = scratch.read(format!("{name}.said"));
        assert!(said.contains("only the operator may ask this"), "{said}");
    }
}

#[test]
fn objectives_completed_before_the_loop_are_not_a_claim() {
    let scratch = Scratch::new();
    scratch.write(
        "tachikoma.toml",
        "[stop_conditions]\nobjectives = 'plan.md'\n",
    );
    scratch.write("plan.md", "- [x] a\n");
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "2"], "exit 0"));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let seen = events(&scratch, "conditions_answered");
    assert_eq!(
        seen.len(),
        3,
        "before the first iteration and after each iteration"
    );
    let ticks = "printf -- '- [x] a\\n- [x] b\\n' > plan.md";
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "4"], ticks));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert!(
        ran.stdout.contains("the work is complete"),
        "{}",
        ran.snapshot()
    );
}

#[test]
fn control_characters_in_gate_output_do_not_prevent_the_next_launch() {
    let scratch = Scratch::new();
    let config = "[agents.command]\nprompt = 'argument'\n".to_owned()
        + &gate("proof", "printf 'a\\000b\\033[31mc'; exit 1", "");
    scratch.write("tachikoma.toml", config);
    let does = "printf %s \"$0\" > asked; echo '<promise>COMPLETE</promise>'";
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "2"], does));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    assert_eq!(status(&scratch)["stats"]["successful"], 2);
    let asked = scratch.read("asked");
    assert!(asked.contains("a b [31mc"), "{asked:?}");
}

#[test]
fn max_duration_ends_gates_and_the_next_run_checks_the_claim() {
    let scratch = Scratch::new();
    let seconds = seconds();
    let limit = "[stop_conditions]\nmax_duration = '5s'\n";
    let live = judging(&scratch, &seconds, limit);
    let ran = live.wait(SOON);
    assert_eq!(ran.code(), Some(4), "{}", ran.snapshot());
    await_nobody(&seconds);
    scratch.write("tachikoma.toml", gate("slow", "exit 0", ""));
    let ran = tachikoma(&scratch).run(run(&[], "touch worked"));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert!(!scratch.path().join("worked").exists());
}

#[test]
fn time_that_a_killed_runner_ran_is_counted() {
    let scratch = Scratch::new();
    scratch.write("tachikoma.toml", "[stop_conditions]\nmax_duration = '1h'\n");
    let live = start_busy(&scratch, &[]);
    let began = std::time::Instant::now();
    // No record shows the running time, so the test waits for one second.
    tachikoma_testkit::await_until("a second has passed", SOON, || {
        began.elapsed().as_millis() > 1_000
    });
    kill(&scratch, live);
    let again = start_busy(&scratch, &[]);
    await_events(&scratch, "iteration_started", 2);
    let started = events(&scratch, "started");
    assert_eq!(started.len(), 2);
    let until = started[1]["runner"]["follows_until"].as_str().unwrap();
    let since = started[0]["runner"]["since"].as_str().unwrap();
    assert!(until > since, "{until} {since}");
    kill(&scratch, again);
    let shown = status(&scratch);
    let conditions = shown["stop_conditions"].as_array().unwrap().iter();
    let ran: Vec<_> = conditions
        .filter(|condition| condition["name"] == "max_duration")
        .map(|condition| condition["value"].as_str().unwrap())
        .collect();
    assert_ne!(ran, ["0 s"]);
    assert_eq!(ran.len(), 1);
}

#[test]
fn a_gate_may_run_a_loop_of_its_own() {
    let scratch = Scratch::new();
    scratch.write("inner/prompt.md", "inner");
    let program = env!("CARGO_BIN_EXE_tachikoma");
    let runs = format!(
        "cd inner && {program} run prompt.md --max-iterations 1 -- sh -c \"cat > heard\"; test -e heard"
    );
    scratch.write("tachikoma.toml", gate("inner", &runs, ""));
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "1"], CLAIMS));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(scratch.read("inner/heard"), "inner");
}

#[test]
fn stop_scripts_that_cannot_run_are_reported_at_the_start() {
    let scratch = Scratch::new();
    scratch.write(
        "tachikoma.toml",
        "[stop_conditions]\ncustom_scripts = ['gone.sh', 'plain.sh', 'test -e stop']\n",
    );
    scratch.write("plain.sh", "exit 0\n");
    let live = start_busy(&scratch, &[]);
    await_events(&scratch, "warned", 3);
    let said: Vec<String> = events(&scratch, "warned")
        .iter()
        .map(|event| event["warning"].as_str().unwrap().to_owned())
        .collect();
    assert!(
        said[0].starts_with("the stop script `gone.sh` cannot be asked: "),
        "{said:?}"
    );
    assert_eq!(
        said[1],
        "the stop script `plain.sh` cannot be asked: it is not executable: run `chmod +x` on it"
    );
    assert!(
        said[2].ends_with("not a command line: put that into a script"),
        "{said:?}"
    );
    kill(&scratch, live);
}

#[test]
fn suspicious_objectives_are_reported_before_the_first_iteration() {
    for (plan, expected) in [
        ("no boxes\n", "the objectives have no check box, "),
        (
            "- [ ] a\n- [v] b\n",
            "these lines of the objectives look like check boxes but are not: `- [v] b`; ",
        ),
        (
            "- [x] a\n",
            "all objectives (1) were ticked before the first iteration, ",
        ),
    ] {
        let scratch = Scratch::new();
        let config = "[stop_conditions]\nobjectives = 'plan.md'\n";
        scratch.write("tachikoma.toml", config);
        scratch.write("plan.md", plan);
        let ran = tachikoma(&scratch).run(run(&["--max-iterations", "2"], "true"));
        assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
        let warned = events(&scratch, "warned");
        assert_eq!(warned.len(), 1, "once: {warned:?}");
        let words = warned[0]["warning"].as_str().unwrap();
        assert!(words.starts_with(expected), "{words}");
    }
}

#[test]
fn a_claim_of_a_script_after_a_failed_iteration_needs_a_gate() {
    let scratch = Scratch::new();
    let scripts = "[stop_conditions]\ncustom_scripts = ['yes.sh']\n";
    scratch.write("tachikoma.toml", scripts);
    script(&scratch, "yes.sh", "exit 10");
    let fails = "date > work; exit 1";
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "1"], fails));
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let refused = &events(&scratch, "claim_refused")[0]["reasons"][0];
    assert_eq!(refused, "iteration 1 failed, and no gate proves the work");
    scratch.write(
        "tachikoma.toml",
        scripts.to_owned() + &gate("proof", "true", ""),
    );
    let ran = tachikoma(&scratch).run(run(&["--new", "--max-iterations", "1"], fails));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
}

#[test]
fn flags_of_a_completed_loop_are_not_used_for_the_next_one() {
    let scratch = Scratch::new();
    let ran = tachikoma(&scratch).run(run(&["--max-iterations", "5"], CLAIMS));
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    let ran = tachikoma(&scratch).run(["run", "--agent", "command"]);
    assert_eq!(ran.code(), Some(2), "{}", ran.snapshot());
    let said = "note: the last loop is done; the new loop does not use its flags: ";
    assert!(ran.stderr.contains(said), "{}", ran.snapshot());
    assert!(
        ran.stderr.contains("agents.command.program = "),
        "{}",
        ran.snapshot()
    );
}
