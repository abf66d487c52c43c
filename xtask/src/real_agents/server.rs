//! `tachikoma opencode up` with the real `opencode serve`: each way in which the server ends, and how the supervisor reacts.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tachikoma_testkit::await_until;

use super::ground::Ground;
use super::{Row, USUAL};

pub const CHECKS: &[Row] = &[
    Row("server-crash", crash, USUAL),
    Row("server-exit", unexpected_exit, USUAL),
    Row("server-stopped", user_stop, USUAL),
    Row("server-never", no_restarts, USUAL),
    Row("server-kills", kills, USUAL),
    Row("server-command", another_command, USUAL),
];

/// A supervisor of the real server, which is killed when dropped.
struct Up<'a> {
    ground: &'a Ground,
    child: Child,
}

impl<'a> Up<'a> {
    /// Starts a supervisor with these lines of `[opencode]`.
    fn start(ground: &'a Ground, settings: &str) -> Self {
        let program = ground.programs().opencode.display();
        let command = match settings.contains("serve_command") {
            true => String::new(),
            false => format!("serve_command = '{program}'\n"),
        };
        let text = format!("[opencode]\nenabled = true\nserve_port = 0\n{command}{settings}\n");
        ground.scratch.write("tachikoma.toml", text);
        let said = fs::File::create(ground.scratch.home().join("up")).expect("a file");
        let mut command = tachikoma(ground);
        command.args(["opencode", "up"]).stdout(said);
        let child = command.spawn().expect("it starts");
        Self { ground, child }
    }

    /// Returns the output of the supervisor.
    fn said(&self) -> String {
        fs::read_to_string(self.ground.scratch.home().join("up")).unwrap_or_default()
    }

    fn status(&self) -> Value {
        let mut command = tachikoma(self.ground);
        let output = command.args(["opencode", "status", "--json"]).output();
        let output = output.expect("it runs").stdout;
        serde_json::from_slice(&output).expect("JSON")
    }

    /// Waits until the server with this start number has the given state.
    #[track_caller]
    fn until(&self, state: &str, generation: u64) -> Value {
        let mut last = Value::Null;
        await_until(state, self.ground.patience, || {
            last = self.status();
            last["state"] == state && last["generation"] == generation
        });
        last
    }

    /// Stops the supervisor and returns its output.
    fn stop(mut self) -> String {
        let mut command = tachikoma(self.ground);
        let status = command
            .args(["opencode", "stop"])
            .stdout(Stdio::null())
            .status();
        assert!(status.expect("it runs").success());
        let ended = self.child.wait().expect("it ends");
        assert_eq!(ended.code(), Some(0));
        self.said()
    }
}

impl Drop for Up<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a tachikoma command with its own home, in which the server downloads nothing.
fn tachikoma(ground: &Ground) -> Command {
    let home = ground.scratch.home();
    let mut command = Command::new(&ground.programs().tachikoma);
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    command
        .current_dir(ground.scratch.path())
        .env_clear()
        .env("PATH", path)
        .env("LANG", "C.UTF-8")
        .env("HOME", &home)
        .env("TACHIKOMA_TRUST", "1")
        .env("XDG_RUNTIME_DIR", ground.scratch.runtime_dir())
        .env("TMPDIR", ground.scratch.runtime_dir())
        .env("OPENCODE_DISABLE_AUTOUPDATE", "1")
        .env("OPENCODE_DISABLE_MODELS_FETCH", "1")
        .env("OPENCODE_DISABLE_LSP_DOWNLOAD", "1")
        .env("OPENCODE_DISABLE_DEFAULT_PLUGINS", "1")
        .env("OPENCODE_DISABLE_SHARE", "1")
        .stdin(Stdio::null());
    command
}

fn kill(status: &Value, signal: Signal) {
    let pid = status["pid"]
        .as_i64()
        .and_then(|pid| i32::try_from(pid).ok());
    let pid = pid.and_then(Pid::from_raw).expect("a process");
    kill_process(pid, signal).expect("the test started this process");
}

pub fn crash(ground: &Ground) -> String {
    let up = Up::start(ground, "restart_delay_ms = 700");
    let began = Instant::now();
    let first = up.until("ready", 1);
    let start = began.elapsed();
    assert_eq!(first["version"], "1.18.33");
    kill(&first, Signal::ABORT);
    let killed = Instant::now();
    let second = up.until("ready", 2);
    let back = killed.elapsed();
    assert!(back >= Duration::from_millis(700), "{back:?}");
    assert_ne!(first["pid"], second["pid"]);
    let said = up.stop();
    assert!(
        said.contains("OpenCode has ended: it crashed (signal 6)"),
        "{said}"
    );
    assert!(
        said.contains("restarting OpenCode in 700 ms (attempt 1)"),
        "{said}"
    );
    format!("first ready after {start:.1?}, back after {back:.1?} with a delay of 0.7 s")
}

/// A server that exits with 0 is restarted. The real server never does that itself, so a wrapper exits with 0.
pub fn unexpected_exit(ground: &Ground) -> String {
    let program = ground.programs().opencode.display();
    let script = format!(
        "#!/bin/sh\n'{program}' \"$@\" &\nuntil [ -e leave ]; do sleep 0.05; done\nrm leave\nexit 0\n"
    );
    let script = ground.scratch.write_script("wrapper.sh", script);
    let settings = format!(
        "restart_delay_ms = 10\nserve_command = '{}'",
        script.display()
    );
    let up = Up::start(ground, &settings);
    up.until("ready", 1);
    ground.scratch.write("leave", "");
    up.until("ready", 2);
    let said = up.stop();
    assert!(
        said.contains("\nRestarting OpenCode after unexpected exit\n"),
        "{said}"
    );
    assert!(
        said.contains("it left running"),
        "the server of the wrapper was ended: {said}"
    );
    "restarted, and the server of the wrapper was ended first".into()
}

pub fn user_stop(ground: &Ground) -> String {
    let up = Up::start(ground, "restart_delay_ms = 10");
    for (generation, signal) in [(1, Signal::TERM), (2, Signal::INT)] {
        kill(&up.until("ready", generation), signal);
        up.until("stopped", generation);
        let mut command = tachikoma(ground);
        let status = command
            .args(["opencode", "restart"])
            .stdout(Stdio::null())
            .status();
        assert!(status.expect("it runs").success());
    }
    up.until("ready", 3);
    let said = up.stop();
    let line = "\nOpenCode stopped by user, not restarting\n";
    assert_eq!(said.matches(line).count(), 2, "{said}");
    "SIGTERM and SIGINT left it down until it was wanted".into()
}

pub fn no_restarts(ground: &Ground) -> String {
    let up = Up::start(ground, "auto_restart = false");
    kill(&up.until("ready", 1), Signal::KILL);
    up.until("stopped", 1);
    let said = up.stop();
    assert!(
        said.contains("OpenCode is not restarted: `opencode.auto_restart` is false"),
        "{said}"
    );
    "a crash was only logged".into()
}

/// After `kill -9`, the server is restarted after the delay, and the delay grows after three quick kills.
pub fn kills(ground: &Ground) -> String {
    let up = Up::start(ground, "restart_delay_ms = 100");
    let mut back = Vec::new();
    for generation in 1..=3 {
        kill(&up.until("ready", generation), Signal::KILL);
        let killed = Instant::now();
        up.until("ready", generation + 1);
        back.push(killed.elapsed());
    }
    let said = up.stop();
    assert!(
        said.contains("\nwarning: OpenCode crash loop detected, backing off\n"),
        "{said}"
    );
    assert!(
        said.contains("restarting OpenCode in 100 ms (attempt 1)"),
        "{said}"
    );
    let delays = said.matches("restarting OpenCode in ").count();
    assert_eq!(delays, 3, "{said}");
    format!("back after {back:.1?}")
}

/// A reload changes the command line of the real server.
pub fn another_command(ground: &Ground) -> String {
    let program = ground.programs().opencode.display();
    let settings = format!("serve_command = \"env 'A=b c' '{program}' serve --print-logs\"");
    let up = Up::start(ground, &settings);
    let status = up.until("ready", 1);
    let pid = status["pid"].as_u64().expect("a process");
    let line = fs::read(format!("/proc/{pid}/cmdline")).expect("it runs");
    let line = String::from_utf8_lossy(&line).replace('\0', " ");
    assert!(
        line.ends_with("serve --print-logs --port 0 --hostname 127.0.0.1 "),
        "{line}"
    );
    up.stop();
    "port and hostname were added".into()
}
