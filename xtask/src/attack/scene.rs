//! Two local users, each with a home, and a directory that both can write to. All their processes and files are removed at the end.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::{Failure, must_not};
use crate::product::{Live, await_that, text};

/// Exit code of a command that is refused because the user has not allowed it.
const REFUSED: i32 = 2;

/// Exit code of a loop that reached its iteration limit.
pub const AT_ITS_LIMIT: i32 = 3;

/// Exit code of a loop that the operator stopped.
pub const STOPPED: i32 = 5;

/// Time limit of each wait in an attack.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A local user. The ids are not used by people or services, and need no entry in the password file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// The user who runs Tachikoma.
    Victim,
    /// The user who wants to run programs as the victim.
    Attacker,
}

impl User {
    pub fn id(self) -> u32 {
        match self {
            Self::Victim => 64_101,
            Self::Attacker => 64_102,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Victim => "victim",
            Self::Attacker => "attacker",
        }
    }
}

/// The directories for one attack.
#[derive(Debug)]
pub struct Scene {
    dir: TempDir,
}

impl Scene {
    /// Creates homes and a shared directory, with a copy of the binary that both users can start.
    pub fn new(binary: &Path) -> Result<Self, String> {
        for user in [User::Victim, User::Attacker] {
            if !processes_of(user).is_empty() {
                return Err(format!("processes run as user {} already", user.id()));
            }
        }
        let dir = tempfile::Builder::new().prefix("tka").tempdir_in("/tmp");
        let scene = Self {
            dir: dir.map_err(text)?,
        };
        open(scene.dir.path(), 0o755)?;
        fs::copy(binary, scene.binary()).map_err(text)?;
        open(&scene.binary(), 0o755)?;
        for user in [User::Victim, User::Attacker] {
            for dir in [scene.home(user), scene.work(user), scene.runtime(user)] {
                fs::create_dir_all(&dir).map_err(text)?;
                open(&dir, 0o700)?;
                chown(&dir, Some(user.id()), Some(user.id())).map_err(text)?;
            }
        }
        fs::create_dir(scene.shared()).map_err(text)?;
        open(&scene.shared(), 0o1777)?;
        Ok(scene)
    }

    pub fn binary(&self) -> PathBuf {
        self.dir.path().join("tachikoma")
    }

    /// Returns the private home of a user.
    pub fn home(&self, user: User) -> PathBuf {
        self.dir.path().join(user.name())
    }

    /// Returns the private working directory of a user.
    pub fn work(&self, user: User) -> PathBuf {
        self.home(user).join("work")
    }

    /// Returns the private directory of a user for sockets.
    pub fn runtime(&self, user: User) -> PathBuf {
        self.home(user).join("run")
    }

    /// Returns a directory that all users can write to, like `/tmp`.
    pub fn shared(&self) -> PathBuf {
        self.dir.path().join("shared")
    }

    /// Returns a command in a directory, as a user, with that user's environment and without a terminal.
    pub fn program(&self, user: User, dir: &Path, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .uid(user.id())
            .gid(user.id())
            .current_dir(dir)
            .env_clear()
            .env(
                "PATH",
                std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into()),
            )
            .env("HOME", self.home(user))
            .env("XDG_RUNTIME_DIR", self.runtime(user))
            .env("TACHIKOMA_ITERATION_DELAY", "0s")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    /// Returns a `tachikoma` command, as a user.
    pub fn tachikoma(&self, user: User, dir: &Path, words: &[&str]) -> Command {
        let mut command = self.program(user, dir, self.binary());
        command.args(words);
        command
    }

    /// Runs `tachikoma` to its end, and returns its exit code with its output.
    pub fn run(
        &self,
        user: User,
        dir: &Path,
        words: &[&str],
    ) -> Result<(Option<i32>, String), String> {
        self.finish(&mut self.tachikoma(user, dir, words))
    }

    /// Runs `tachikoma` to its end. It must exit with `code`; returns its output.
    pub fn expect(
        &self,
        user: User,
        dir: &Path,
        words: &[&str],
        code: i32,
    ) -> Result<String, String> {
        let (exit, said) = self.run(user, dir, words)?;
        let as_expected = (exit == Some(code)).then_some(());
        let what = || format!("`{}` exited with {exit:?}: {said}", words.join(" "));
        as_expected.ok_or_else(what)?;
        Ok(said)
    }

    /// Runs a new loop of one iteration with this shell command as the agent. The loop must reach its limit.
    pub fn iterate(&self, user: User, dir: &Path, agent: &str) -> Result<String, String> {
        let words = [
            "run",
            "--new",
            "--prompt-text",
            "go",
            "--max-iterations",
            "1",
        ];
        let agent = ["--", "sh", "-c", agent];
        self.expect(user, dir, &[&words[..], &agent].concat(), AT_ITS_LIMIT)
    }

    /// Fails the attack if `tachikoma` does not refuse these arguments as not allowed by the user.
    pub fn must_refuse(&self, user: User, dir: &Path, words: &[&str]) -> Result<(), Failure> {
        let (exit, said) = self.run(user, dir, words)?;
        let what = format!("`{}` exited with {exit:?}: {said}", words.join(" "));
        must_not(exit != Some(REFUSED), &what)
    }

    /// Starts a loop with an agent that runs until it is killed. The agent runs the shell command `agent` first.
    pub fn busy(&self, user: User, dir: &Path, agent: &str) -> Result<Live, String> {
        let agent = format!("{agent}\ntouch up; exec sleep 600");
        let words = [
            "run",
            "--new",
            "--prompt-text",
            "go",
            "--",
            "sh",
            "-c",
            &agent,
        ];
        self.start(user, dir, &words, &dir.join("up"))
    }

    /// Runs a shell command as a user. It must succeed.
    pub fn shell(&self, user: User, dir: &Path, line: &str) -> Result<(), String> {
        let mut shell = self.program(user, dir, "sh");
        let (code, said) = self.finish(shell.args(["-ec", line]))?;
        let done = (code == Some(0)).then_some(());
        done.ok_or_else(|| format!("`{line}` failed: {said}"))
    }

    /// Runs a command to its end. Its output goes to a file, because a process that it leaves running may keep a pipe open.
    fn finish(&self, command: &mut Command) -> Result<(Option<i32>, String), String> {
        let path = self.dir.path().join("said");
        let file = fs::File::create(&path).map_err(text)?;
        command.stdout(file.try_clone().map_err(text)?).stderr(file);
        let code = Live::start(command)?.wait(PATIENCE)?;
        let said = fs::read(path).map_err(text)?;
        Ok((code, String::from_utf8_lossy(&said).into_owned()))
    }

    /// Starts `tachikoma`, and waits until it has created a file.
    fn start(&self, user: User, dir: &Path, words: &[&str], until: &Path) -> Result<Live, String> {
        let live = Live::start(&mut self.tachikoma(user, dir, words))?;
        await_that(&format!("{}", until.display()), PATIENCE, || until.exists())?;
        Ok(live)
    }

    /// Writes a file as a user.
    pub fn write(&self, user: User, path: &Path, content: &str) -> Result<(), String> {
        fs::write(path, content).map_err(text)?;
        chown(path, Some(user.id()), Some(user.id())).map_err(text)
    }

    /// Copies a directory like a clone or an archive: all files of the copy belong to `user`.
    pub fn copy(&self, user: User, from: &Path, to: &Path) -> Result<(), String> {
        let ids = format!("{0}:{0}", user.id());
        let copied = Command::new("cp")
            .arg("-a")
            .args([from, to])
            .status()
            .map_err(text)?;
        let owned = Command::new("chown")
            .args(["-R", &ids])
            .arg(to)
            .status()
            .map_err(text)?;
        let done = copied.success() && owned.success();
        done.then_some(())
            .ok_or_else(|| format!("{} cannot be copied", from.display()))
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // Only this program uses these user ids, so all their processes can be killed.
        for user in [User::Victim, User::Attacker] {
            let gone = || {
                let left = processes_of(user);
                for pid in &left {
                    let _ = kill_process(*pid, Signal::KILL);
                }
                left.is_empty()
            };
            let _ = await_that("the end of all processes", PATIENCE, gone);
        }
    }
}

fn open(path: &Path, mode: u32) -> Result<(), String> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(text)
}

/// Returns the processes of a user, without zombies.
pub fn processes_of(user: User) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let of_user = entries.filter_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let is_dead = stat
            .rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with('Z'));
        (entry.metadata().ok()?.uid() == user.id() && !is_dead).then_some(pid)
    });
    of_user.filter_map(Pid::from_raw).collect()
}
