//! Other supervisors, if they are available: in `PATH`, or as Debian packages that are unpacked in the target directory.
//! None is required.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Returns the command that starts a supervisor for the child `run` in a directory.
type Start = Box<dyn FnOnce(&Path) -> std::io::Result<Command>>;

/// Returns the available supervisors.
pub(super) fn found(disk: &Path) -> Vec<(&'static str, Start)> {
    let mut found: Vec<(&'static str, Start)> = Vec::new();
    if let Some(runsv) = program("runsv", "runit", disk) {
        found.push(("runit", Box::new(move |dir| service(&runsv, dir))));
    }
    if let Some(supervise) = program("supervise", "daemontools", disk) {
        found.push(("daemontools", Box::new(move |dir| service(&supervise, dir))));
    }
    if let Some(supervisord) = in_path("supervisord") {
        found.push((
            "supervisord",
            Box::new(move |dir| with_supervisord(&supervisord, dir)),
        ));
    }
    if let Some(pm2) = in_path("pm2") {
        found.push(("pm2", Box::new(move |dir| with_pm2(&pm2, dir))));
    }
    found
}

fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut places = std::env::split_paths(&path).map(|dir| dir.join(name));
    places.find(|path| path.is_file())
}

/// Finds a program, or unpacks its Debian package if it is not installed.
fn program(name: &str, package: &str, disk: &Path) -> Option<PathBuf> {
    if let Some(installed) = in_path(name) {
        return Some(installed);
    }
    let home = disk.join("supervisors").join(package);
    let unpacked = home.join("usr/bin").join(name);
    if !unpacked.is_file() {
        fs::create_dir_all(&home).ok()?;
        quietly(
            Command::new("apt-get")
                .args(["download", package])
                .current_dir(&home),
        )?;
        let packages = fs::read_dir(&home).ok()?.flatten();
        let mut packages = packages.map(|entry| entry.path());
        let file = packages.find(|path| path.extension().is_some_and(|kind| kind == "deb"))?;
        quietly(Command::new("dpkg").arg("-x").arg(file).arg(&home))?;
    }
    unpacked.is_file().then_some(unpacked)
}

fn quietly(command: &mut Command) -> Option<()> {
    let status = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.ok()?.success().then_some(())
}

/// Prepares a service directory for runit or daemontools. Its script `run` starts the child `run` in `dir`, which has the child's pipe.
fn service(program: &Path, dir: &Path) -> std::io::Result<Command> {
    let service = dir.join("service");
    fs::create_dir(&service)?;
    let run = service.join("run");
    let text = format!("#!/bin/sh\ncd '{}'\nexec ./run\n", dir.display());
    fs::write(&run, text)?;
    fs::set_permissions(&run, fs::Permissions::from_mode(0o755))?;
    let mut command = Command::new(program);
    command.arg(service);
    Ok(command)
}

fn with_supervisord(program: &Path, dir: &Path) -> std::io::Result<Command> {
    let dir = dir.display();
    let text = format!(
        "[supervisord]\nnodaemon=true\nlogfile={dir}/log\npidfile={dir}/pid\n\
         [program:child]\ncommand={dir}/run\ndirectory={dir}\nautorestart=true\nstartsecs=0\n"
    );
    let path = PathBuf::from(format!("{dir}/supervisord.conf"));
    fs::write(&path, text)?;
    let mut command = Command::new(program);
    command.arg("-n").arg("-c").arg(path);
    Ok(command)
}

fn with_pm2(program: &Path, dir: &Path) -> std::io::Result<Command> {
    let mut command = Command::new(program);
    command
        .args(["start", "--no-daemon", "--interpreter", "none"])
        .arg(dir.join("run"))
        .env("PM2_HOME", dir.join("pm2"))
        .env("HOME", dir);
    Ok(command)
}
