//! Attacks on the OpenCode server, which every user of the machine can reach.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::scene::{
    PATIENCE, Scene,
    User::{Attacker, Victim},
};
use super::{Failure, control, must_not};
use crate::product::{Live, await_that, text};

/// How long to wait for a request on an accepted connection. A request would follow at once.
const LISTEN: Duration = Duration::from_millis(200);

/// Directory of the supervisor's files.
const KEPT: &str = ".ralph/opencode";

/// Starts `opencode up` as the victim, with this server. The settings are environment variables, so no configuration has to be trusted.
fn up(scene: &Scene, server: &str, port: u16, password: Option<&str>) -> Result<Live, String> {
    let mut command: Command = scene.tachikoma(Victim, &scene.work(Victim), &["opencode", "up"]);
    command
        .env("TACHIKOMA_OPENCODE__ENABLED", "true")
        .envs(password.map(|password| ("OPENCODE_SERVER_PASSWORD", password)))
        .env("TACHIKOMA_OPENCODE__SERVE_COMMAND", server)
        .env("TACHIKOMA_OPENCODE__SERVE_PORT", port.to_string());
    Live::start(&mut command)
}

fn server_file(dir: &Path) -> Value {
    let bytes = fs::read(dir.join(KEPT).join("server.json")).unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
}

pub fn without_password(scene: &Scene) -> Result<(), Failure> {
    let dir = scene.work(Victim);
    // The server is this program in the role of a fake server. It requires the given password, like the real one.
    let program = scene.shared().join("server");
    fs::copy(std::env::current_exe().map_err(text)?, &program).map_err(text)?;
    let live = up(
        scene,
        &format!("{} fake-opencode", program.display()),
        0,
        None,
    )?;
    await_that("a server that is ready", PATIENCE, || {
        server_file(&dir)["state"] == "ready"
    })?;
    let url = server_file(&dir)["url"].to_string();
    let address = url.trim_matches('"').trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).map_err(text)?;
    let request =
        "POST /session HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}";
    stream.write_all(request.as_bytes()).map_err(text)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(text)?;
    // Directories that others can traverse must not reveal the password.
    scene.shell(Victim, &dir, "chmod 711 .. . .ralph .ralph/opencode")?;
    let login = dir.join(KEPT).join("login.json");
    let is_kept = login.exists();
    let read = scene.shell(
        Attacker,
        &scene.shared(),
        &format!("cat {}", login.display()),
    );
    drop(live);
    let created = !answer.starts_with("HTTP/1.1 401");
    must_not(
        created || read.is_ok(),
        "a session was created, or the password read",
    )?;
    control(is_kept, "the password is where clients find it")
}

pub fn port(scene: &Scene) -> Result<(), Failure> {
    let dir = scene.work(Victim);
    let free = TcpListener::bind("127.0.0.1:0").map_err(text)?;
    let address = free.local_addr().map_err(text)?;
    drop(free);
    // This server does not listen yet. `serve` and its arguments are passed to the script.
    let live = up(
        scene,
        "sh -c 'exec sleep 600'",
        address.port(),
        Some("correct horse"),
    )?;
    await_that("its process", PATIENCE, || {
        server_file(&dir)["pid"].is_number()
    })?;
    // This process belongs to another user, like the attacker's.
    let thief = TcpListener::bind(address).map_err(text)?;
    thief.set_nonblocking(true).map_err(text)?;
    let mut heard = String::new();
    let noticed = || {
        let log = fs::read(dir.join(KEPT).join("server.log")).unwrap_or_default();
        String::from_utf8_lossy(&log).contains("so no password is sent")
    };
    await_that("a request, or a refusal to send one", PATIENCE, || {
        if let Ok((mut stream, _)) = thief.accept() {
            let _ = stream.set_nonblocking(false);
            let _ = stream.set_read_timeout(Some(LISTEN));
            let mut bytes = [0; 4096];
            let read = stream.read(&mut bytes).unwrap_or_default();
            let said = bytes.get(..read).unwrap_or_default();
            heard.push_str(&String::from_utf8_lossy(said));
        }
        noticed() || heard.contains("authorization")
    })?;
    drop(live);
    must_not(heard.contains("authorization"), "the password was sent")
}
