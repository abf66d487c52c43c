//! `tachikoma opencode`: the supervisor process with a fake OpenCode server, which is a process, too.

use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tachikoma_testkit::{Live, Scratch, Tool, await_until, mask, processes_with, unique};

use crate::live_support::{BIN, SOON};

/// A directory in which a fake OpenCode server is configured.
pub(crate) struct Bed {
    pub(crate) scratch: Scratch,
}

impl Bed {
    /// Creates the directory. `script` is the behavior of the fake server, `settings` are lines of `[opencode]`.
    pub(crate) fn new(script: &Value, settings: &str) -> Self {
        let scratch = Scratch::new();
        scratch.write("script.json", script.to_string());
        let fake = PathBuf::from(BIN)
            .with_file_name("examples")
            .join("fake-opencode");
        assert!(fake.exists(), "{} is built by `cargo test`", fake.display());
        scratch.write(
            "tachikoma.toml",
            format!(
                "[opencode]\nenabled = true\nserve_port = 0\nserve_command = '{}'\n{settings}\n",
                fake.display()
            ),
        );
        Self { scratch }
    }

    pub(crate) fn tool(&self) -> Tool<'_> {
        Tool::new(BIN, &self.scratch)
            .env(
                "FAKE_OPENCODE_SCRIPT",
                self.scratch.path().join("script.json"),
            )
            .env("FAKE_OPENCODE_STATE", self.scratch.home().join("fake"))
    }

    pub(crate) fn status(&self) -> Value {
        let ran = self.tool().run(["opencode", "status", "--json"]);
        assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
        ran.json()
    }

    /// Waits until the status meets a condition.
    #[track_caller]
    pub(crate) fn await_status(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        await_until(what, SOON, || {
            last = self.status();
            wanted(&last)
        });
        last
    }

    #[track_caller]
    pub(crate) fn await_ready(&self, generation: u64) -> Value {
        self.await_status("a server that is ready", |status| {
            status["state"] == "ready" && status["generation"].as_u64() >= Some(generation)
        })
    }

    pub(crate) fn up(&self) -> Live {
        self.tool().spawn(["opencode", "up"])
    }

    pub(crate) fn starts(&self) -> usize {
        let path = self.scratch.home().join("fake/starts.jsonl");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines().count()
    }
}

/// Kills the server process that a status names, which the test started.
pub(crate) fn kill_server(status: &Value) {
    let pid = status["pid"].as_i64().unwrap();
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
}

#[test]
fn up_keeps_the_server_running_until_it_is_stopped() {
    let bed = Bed::new(&json!({}), "restart_delay_ms = 10");
    let live = bed.up();
    let first = bed.await_ready(1);
    assert_eq!(first["supervisor"]["pid"], live.pid());
    kill_server(&first);
    let second = bed.await_ready(2);
    assert_eq!(
        (&second["crashes_total"], &second["attempts"]),
        (&json!(1), &json!(1))
    );
    let stopped = bed.tool().in_dir(".").run(["opencode", "stop"]);
    assert_eq!(
        (stopped.code(), stopped.stdout.as_str()),
        (Some(0), "OpenCode is stopped\n")
    );
    let ran = live.wait(SOON);
    insta::assert_snapshot!(masked(&ran.snapshot()), @r"
    exit: 0
    --- stdout
    starting OpenCode (start 1)
    OpenCode 0.0.0-fake is ready at http://127.0.0.1:[PORT]
    warning: OpenCode has ended: it crashed (signal 9), after [DURATION] of service
    restarting OpenCode in [DURATION] (attempt 1)
    starting OpenCode (start 2)
    OpenCode 0.0.0-fake is ready at http://127.0.0.1:[PORT]
    OpenCode has ended: it was stopped, after [DURATION] of service
    OpenCode is stopped
    --- stderr
    ");
    let status = bed.tool().run(["opencode", "status"]);
    insta::assert_snapshot!(masked(&status.snapshot()), @r"
    exit: 0
    --- stdout
    OpenCode is stopped: the supervisor was stopped
    1 crash, 1 restart; 1 unwanted restart since it was last healthy for a minute
    it is not supervised; `tachikoma opencode up` starts the supervisor
    --- stderr
    ");
}

fn masked(text: &str) -> String {
    let lines = mask(text)
        .lines()
        .map(|line| match line.split_once("127.0.0.1:") {
            Some((before, rest)) => {
                let rest = rest.trim_start_matches(char::is_numeric);
                format!("{before}127.0.0.1:[PORT]{rest}")
            }
            None => line.to_owned(),
        })
        .collect::<Vec<_>>();
    lines.join("\n")
}

#[test]
fn a_server_that_is_not_enabled_is_not_started() {
    let bed = Bed::new(&json!({}), "");
    let ran = bed
        .tool()
        .env("TACHIKOMA_OPENCODE__ENABLED", "false")
        .run(["opencode", "up"]);
    insta::assert_snapshot!(ran.snapshot(), @r"
    exit: 2
    --- stdout
    --- stderr
    error: `opencode.enabled` is false: the shared server is turned off
    hint: set `enabled = true` in `[opencode]`, or TACHIKOMA_OPENCODE__ENABLED=true
    ");
    assert_eq!(bed.starts(), 0);
    assert_eq!(bed.status(), json!({"state": null}));
    for words in [
        ["opencode", "stop"],
        ["opencode", "restart"],
        ["opencode", "logs"],
    ] {
        let ran = bed.tool().run(words);
        assert_eq!(ran.code(), Some(1));
        assert!(
            ran.stderr.contains("no OpenCode server is supervised in "),
            "{}",
            ran.stderr
        );
    }
}

#[test]
fn a_detached_supervisor_is_found_from_a_subdirectory() {
    let bed = Bed::new(&json!({}), "restart_delay_ms = 10");
    bed.scratch.write("deep/down/file", "");
    let ran = bed.tool().run(["opencode", "up", "--detach"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert!(
        ran.stdout.contains("`tachikoma opencode status` shows it"),
        "{}",
        ran.stdout
    );
    let status = bed.status();
    assert_eq!(
        status["state"], "ready",
        "the message is printed only after the detached supervisor is ready"
    );
    let second = bed.tool().run(["opencode", "up"]);
    assert_eq!(second.code(), Some(1));
    assert!(
        second.stderr.contains("another supervisor runs in "),
        "{}",
        second.stderr
    );
    let below = || bed.tool().in_dir("deep/down");
    let ran = below().run(["opencode", "restart"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert_eq!(bed.status()["generation"], 2);
    let logs = below().run(["opencode", "logs"]);
    assert_eq!(
        logs.stdout.matches("opencode server listening on ").count(),
        2,
        "{}",
        logs.stdout
    );
    assert!(
        logs.stdout
            .contains("[tachikoma] restarting OpenCode now\n"),
        "{}",
        logs.stdout
    );
    assert_eq!(below().run(["opencode", "stop"]).code(), Some(0));
    assert_eq!(bed.status()["state"], "stopped");
}

#[test]
fn logs_are_followed_over_restarts() {
    let bed = Bed::new(&json!({}), "");
    let live = bed.up();
    bed.await_ready(1);
    let follower = bed.tool().spawn(["opencode", "logs", "--follow"]);
    let said = |wanted: usize| {
        let said = follower.stdout().matches("listening on").count();
        said == wanted
    };
    await_until("the first server's words", SOON, || said(1));
    assert_eq!(bed.tool().run(["opencode", "restart"]).code(), Some(0));
    await_until("the second one's", SOON, || said(2));
    drop(follower);
    bed.tool().run(["opencode", "stop"]);
    live.wait(SOON);
}

/// After too many crashes the supervisor gives up. `status` shows it, and `restart` starts the server again.
#[test]
fn a_supervisor_that_gave_up_is_shown_by_status_and_reset_by_restart() {
    let crash = json!({"exit": 3});
    let script = json!({"starts": [crash, crash, {}]});
    let bed = Bed::new(&script, "restart_delay_ms = 0\nmax_restart_attempts = 1");
    let ran = bed.tool().run(["opencode", "up", "--detach"]);
    assert_eq!(ran.code(), Some(1), "{}", ran.snapshot());
    assert!(ran.stdout.starts_with("waits in the background, pid "));
    assert!(ran.stderr.starts_with("error: gave up on OpenCode: "));
    let status = bed.tool().run(["opencode", "status"]);
    assert!(
        status.stdout.starts_with(
            "gave up on OpenCode: it crashed (exit 3); `tachikoma opencode restart` tries again\n"
        ),
        "{}",
        status.stdout
    );
    let ran = bed.tool().run(["opencode", "restart"]);
    assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
    assert!(
        ran.stdout.starts_with("OpenCode 0.0.0-fake is ready at "),
        "{}",
        ran.stdout
    );
    assert_eq!(bed.tool().run(["opencode", "stop"]).code(), Some(0));
}

/// No process of a server survives its supervisor, even after `kill -9`, and the next supervisor continues its counters.
#[test]
fn a_killed_supervisor_leaves_no_process_and_the_next_one_has_its_state() {
    let marker = unique();
    let script = json!({"always": {"grandchild": marker}});
    let bed = Bed::new(&script, "restart_delay_ms = 10");
    let mut live = bed.up();
    kill_server(&bed.await_ready(1));
    let second = bed.await_ready(2);
    live.signal(Signal::KILL);
    live.wait(SOON);
    let server = second["pid"].to_string();
    await_until("the server is gone", SOON, || {
        !PathBuf::from(format!("/proc/{server}")).exists()
    });
    await_until("and its tools", SOON, || processes_with(&marker).is_empty());
    let status = bed.await_status("nobody keeps it", |status| status["state"] == "stopped");
    assert_eq!(
        status["why"],
        "the supervisor of the server is no longer running"
    );
    let live = bed.up();
    let third = bed.await_ready(3);
    assert_eq!(
        (&third["attempts"], &third["crashes_total"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(third["last_end"]["kind"], "lost_with_supervisor");
    bed.tool().run(["opencode", "stop"]);
    live.wait(SOON);
    assert!(processes_with(&marker).is_empty());
}

/// After a killed supervisor gave up on the server, the next one reports it.
#[test]
fn a_crashed_supervisor_that_gave_up_is_reported_by_the_next_one() {
    let script = json!({"always": {"exit": 3}});
    let bed = Bed::new(&script, "restart_delay_ms = 0\nmax_restart_attempts = 1");
    let mut live = bed.up();
    bed.await_status("it gives up", |status| status["state"] == "gave_up");
    live.signal(Signal::KILL);
    live.wait(SOON);
    let said = "before this supervisor: gave up on OpenCode: it crashed (exit 3)";
    let mut live = bed.tool().spawn(["opencode", "up", "--service"]);
    await_until("it is said", SOON, || live.stdout().starts_with(said));
    bed.await_status("it stays so", |status| {
        status["supervisor"]["pid"] == live.pid() && status["state"] == "gave_up"
    });
    assert_eq!(bed.starts(), 2, "no further start was tried");
    live.signal(Signal::KILL);
    live.wait(SOON);
    // An explicit `up` starts the server again.
    let live = bed.up();
    await_until("it is said", SOON, || live.stdout().starts_with(said));
    await_until("it is tried again", SOON, || bed.starts() > 2);
    assert_eq!(bed.tool().run(["opencode", "stop"]).code(), Some(0));
    live.wait(SOON);
}

/// SIGHUP reloads the configuration, and an invalid one changes nothing.
#[test]
fn sighup_reloads_the_configuration_of_the_supervisor() {
    let bed = Bed::new(&json!({}), "restart_delay_ms = 10");
    let mut live = bed.up();
    let first = bed.await_ready(1);
    let text = bed.scratch.read("tachikoma.toml");
    bed.scratch
        .write("tachikoma.toml", format!("{text}max_rss = 1\n"));
    live.signal(Signal::HUP);
    await_until("the mistake is said", SOON, || {
        live.stderr().contains("max_rss")
    });
    bed.scratch
        .write("tachikoma.toml", format!("{text}auto_restart = false\n"));
    live.signal(Signal::HUP);
    await_until("it was read", SOON, || {
        live.stdout().contains("the settings were read again")
    });
    kill_server(&first);
    bed.await_status("it stays down", |status| status["state"] == "stopped");
    live.signal(Signal::TERM);
    let ran = live.wait(SOON);
    assert_eq!(ran.code(), Some(143));
    assert_eq!(bed.starts(), 1);
}

#[test]
fn a_purge_deletes_the_server_state_unless_it_runs() {
    let bed = Bed::new(&json!({}), "");
    bed.scratch.write("prompt.md", "work\n");
    let live = bed.up();
    bed.await_ready(1);
    let ran = bed
        .tool()
        .run(["run", "--max-iterations", "1", "--", "true"]);
    assert_eq!(ran.code(), Some(3), "{}", ran.snapshot());
    let purge = || bed.tool().run(["state", "clear", "--purge", "--yes"]);
    let ran = purge();
    assert!(
        ran.snapshot().contains("`tachikoma opencode stop` ends it"),
        "{}",
        ran.snapshot()
    );
    assert_eq!(bed.status()["state"], "ready");
    bed.tool().run(["opencode", "stop"]);
    live.wait(SOON);
    bed.tool()
        .run(["run", "--max-iterations", "1", "--", "true"]);
    assert_eq!(purge().code(), Some(0));
    assert!(!bed.scratch.path().join(".ralph").exists());
}

/// A request to the supervisor from a tool of the server is refused.
#[test]
fn a_tool_of_the_server_cannot_stop_it() {
    let bed = Bed::new(&json!({}), "");
    let script = bed.scratch.write_script(
        "wrap.sh",
        "#!/bin/sh\n\"$TACHIKOMA\" opencode stop > stop.out 2>&1 &\nexec \"$FAKE\" \"$@\"\n",
    );
    let fake = PathBuf::from(BIN)
        .with_file_name("examples")
        .join("fake-opencode");
    let tool = bed.tool().env("TACHIKOMA", BIN).env("FAKE", fake).env(
        "TACHIKOMA_OPENCODE__SERVE_COMMAND",
        script.display().to_string(),
    );
    let live = tool.spawn(["opencode", "up"]);
    bed.await_ready(1);
    await_until("it was refused", SOON, || {
        let said = std::fs::read_to_string(bed.scratch.path().join("stop.out"));
        said.is_ok_and(|said| said.contains("only the operator may ask this"))
    });
    assert_eq!(bed.status()["generation"], 1);
    bed.tool().run(["opencode", "stop"]);
    live.wait(SOON);
}

#[test]
fn systemd_gets_ready_status_watchdog_and_stopping() {
    let bed = Bed::new(&json!({}), "");
    let path = bed.scratch.home().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    let tool = bed
        .tool()
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", "2000000");
    let mut live = tool.spawn(["opencode", "up"]);
    let mut said = Vec::new();
    let mut hear = |wanted: &str| {
        while !said.iter().any(|text: &String| text.starts_with(wanted)) {
            let mut buffer = [0; 4096];
            let length = socket.recv(&mut buffer).expect(wanted);
            said.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
        }
    };
    hear("READY=1");
    hear("STATUS=OpenCode 0.0.0-fake is ready at http://127.0.0.1:");
    hear("WATCHDOG=1");
    let server = bed.await_ready(1)["pid"].to_string();
    let environ = std::fs::read(format!("/proc/{server}/environ")).unwrap();
    let environ = String::from_utf8_lossy(&environ).into_owned();
    assert!(
        !environ.contains("NOTIFY_SOCKET"),
        "the server does not get this variable"
    );
    assert!(
        environ.contains("=gc.autoDetach\0"),
        "the server gets the setting of git"
    );
    live.signal(Signal::TERM);
    hear("STOPPING=1");
    assert_eq!(live.wait(SOON).code(), Some(143));
    let readies = said.iter().filter(|text| *text == "READY=1").count();
    assert_eq!(readies, 1, "{said:?}");
}

#[test]
fn units_are_printed_for_systemd_and_launchd() {
    let bed = Bed::new(&json!({}), "");
    let other = Bed::new(&json!({}), "");
    for (kind, before, after) in [
        ("systemd", "/tachikoma-opencode-", ".service\n"),
        ("launchd", "/dev.tachikoma.opencode.", ".plist\n"),
    ] {
        let printed = |bed: &Bed| {
            let tool = bed.tool().env("PATH", "/usr/bin:/bin");
            let config = bed.scratch.path().join("tachikoma.toml");
            let ran = tool
                .env("TACHIKOMA_CONFIG", config.to_str().unwrap())
                .run(["service", "print", kind]);
            assert_eq!(ran.code(), Some(0), "{}", ran.snapshot());
            let name = ran.stdout.split_once(before).unwrap().1;
            let name = name.split_once(after).unwrap().0.to_owned();
            (ran.snapshot().replace(&name, "[NAME]"), name)
        };
        let (text, name) = printed(&bed);
        insta::assert_snapshot!(kind, mask(&text).replace(BIN, "[BIN]"));
        // Each directory has its own server and its own unit.
        assert_ne!(printed(&other).1, name);
    }
}

/// A signal ends a long restart delay at once.
#[test]
fn an_interrupt_ends_a_wait_at_once() {
    let bed = Bed::new(&json!({}), "restart_delay_ms = 50000");
    let mut live = bed.up();
    kill_server(&bed.await_ready(1));
    bed.await_status("it waits", |status| status["state"] == "restarting");
    live.signal(Signal::INT);
    assert_eq!(live.wait(Duration::from_secs(20)).code(), Some(130));
}
