//! A temporary directory for one test: work tree, runtime directory and home.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Once};

use rustix::fs::Mode;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal, umask};
use signal_hook::consts::signal::{
    SIGALRM, SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU, SIGUSR1, SIGUSR2,
};
use tempfile::TempDir;

use crate::NOBODY;

/// Signals that a shell, `nohup` or a service manager may have set to ignored.
const SIGNALS: [i32; 11] = [
    SIGALRM, SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU, SIGUSR1, SIGUSR2,
];

/// Number of attempts to kill all processes. A process may fork after it was listed.
const KILL_ROUNDS: usize = 20;

/// Maximum length of the path in bytes. Socket paths have at most 107 bytes, and a directory and a name are added.
const ROOT_BYTES_MAX: usize = 40;

/// A temporary directory with a work tree, a private runtime directory and an empty home.
#[derive(Debug)]
pub struct Scratch {
    /// Dropping this removes all files.
    _dir: TempDir,
    root: PathBuf,
    processes: AtomicU32,
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl Scratch {
    /// Creates a scratch directory in the temporary directory, or in `/tmp` if that path is too long for sockets.
    ///
    /// # Panics
    ///
    /// If the directory cannot be created.
    #[must_use]
    pub fn new() -> Self {
        reset_inherited_settings();
        let usual = std::env::temp_dir();
        let parent = if usual.as_os_str().len() + "/tkXXXXXX".len() <= ROOT_BYTES_MAX {
            usual
        } else {
            PathBuf::from("/tmp")
        };
        let dir = tempfile::Builder::new()
            .prefix("tk")
            .tempdir_in(&parent)
            .unwrap_or_else(|error| panic!("make a directory in {}: {error}", parent.display()));
        let root = fs::canonicalize(dir.path()).expect("the directory was just made");
        let processes = AtomicU32::new(0);
        let scratch = Self {
            _dir: dir,
            root,
            processes,
        };
        for part in [scratch.path(), scratch.runtime_dir(), scratch.home()] {
            fs::create_dir(&part).expect("the directory is ours and empty");
            fs::set_permissions(&part, fs::Permissions::from_mode(0o700))
                .expect("the test owns this file");
        }
        scratch
    }

    /// Creates a scratch directory with an empty git repository as its work tree.
    ///
    /// # Panics
    ///
    /// If git is missing or fails.
    #[must_use]
    pub fn with_git() -> Self {
        let scratch = Self::new();
        scratch.git(&["init", "--quiet", "--initial-branch=main"]);
        scratch.git(&["config", "user.name", "Scratch"]);
        scratch.git(&["config", "user.email", "scratch@example.invalid"]);
        scratch.git(&["config", "commit.gpgsign", "false"]);
        scratch
    }

    /// Returns the path of the work tree.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.root.join("w")
    }

    /// Returns the value for `XDG_RUNTIME_DIR`: a private directory with a short path, outside of the work tree.
    #[must_use]
    pub fn runtime_dir(&self) -> PathBuf {
        self.root.join("r")
    }

    /// Returns the value for `HOME`: a directory without settings of the user who runs the tests.
    #[must_use]
    pub fn home(&self) -> PathBuf {
        self.root.join("h")
    }

    /// Writes a file of the work tree, with its directories, and returns its path.
    ///
    /// # Panics
    ///
    /// If it cannot be written.
    #[track_caller]
    pub fn write(&self, name: impl AsRef<Path>, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        let parent = path.parent().expect("a file has a directory");
        fs::create_dir_all(parent).expect("make the file's directory");
        fs::write(&path, text).unwrap_or_else(|error| panic!("write {}: {error}", path.display()));
        path
    }

    /// Writes an executable file of the work tree and returns its path.
    ///
    /// # Panics
    ///
    /// If it cannot be written.
    #[track_caller]
    pub fn write_script(&self, name: impl AsRef<Path>, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.write(name, "");
        // `install` writes the file. If this process wrote it, a child of another test could have it open, and it could not be executed.
        let mut install = Command::new("install")
            .args(["-m", "755", "/dev/stdin"])
            .arg(&path)
            .stdin(Stdio::piped())
            .spawn()
            .expect("`install` is everywhere");
        let mut input = install.stdin.take().expect("it is piped");
        input.write_all(text.as_ref()).expect("it reads");
        drop(input);
        assert!(
            install
                .wait()
                .expect("the test started this process")
                .success()
        );
        path
    }

    /// Reads a file of the work tree as text.
    ///
    /// # Panics
    ///
    /// If it cannot be read.
    #[track_caller]
    #[must_use]
    pub fn read(&self, name: impl AsRef<Path>) -> String {
        let path = self.path().join(name);
        let bytes =
            fs::read(&path).unwrap_or_else(|error| panic!("read {}: {error}", path.display()));
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Runs git in the work tree, without the settings of user and machine, and returns
    /// its output.
    ///
    /// # Panics
    ///
    /// If git is missing or fails.
    #[track_caller]
    pub fn git(&self, args: &[&str]) -> String {
        let mut command = Command::new("git");
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"GIT_") {
                command.env_remove(name);
            }
        }
        let output = command
            .args(args)
            .current_dir(self.path())
            .env("HOME", self.home())
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env_remove("XDG_CONFIG_HOME")
            .stdin(Stdio::null())
            .output()
            .expect("git is installed");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "git {args:?}: {stderr}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Returns new paths for the output of one process: `(stdout, stderr)`.
    pub(crate) fn output_files(&self) -> (PathBuf, PathBuf) {
        let number = self.processes.fetch_add(1, Ordering::Relaxed);
        let file = |stream: &str| self.root.join(format!("{number}.{stream}"));
        (file("stdout"), file("stderr"))
    }

    /// Makes the user `nobody` the owner of all files, if the tests run as root. Needed for [`crate::drop_to_nobody`].
    ///
    /// # Panics
    ///
    /// If the owner cannot be changed.
    pub fn hand_to_nobody(&self) {
        if rustix::process::geteuid().is_root() {
            hand_over(&self.root);
        }
    }
}

impl Drop for Scratch {
    /// Kills leftover processes. A failing test may leave a detached loop or a server running; both use files of this directory.
    fn drop(&mut self) {
        if std::thread::panicking() {
            for _ in 0..KILL_ROUNDS {
                if kill_processes_in(&self.root) == 0 {
                    break;
                }
            }
        }
    }
}

/// Makes this test process and its children independent of the umask and the ignored signals of its caller.
///
/// `exec` keeps an ignored signal ignored, but resets one with a handler. So each signal gets a handler that does the
/// default action.
fn reset_inherited_settings() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        umask(Mode::from_raw_mode(0o022));
        for signal in SIGNALS {
            let always = Arc::new(AtomicBool::new(true));
            signal_hook::flag::register_conditional_default(signal, always)
                .expect("none of these signals is reserved");
        }
    });
}

/// Kills every process with `root` as its working directory or in its environment. Returns their number.
fn kill_processes_in(root: &Path) -> usize {
    let Ok(entries) = fs::read_dir("/proc") else {
        return 0;
    };
    let own = std::process::id();
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let kill = |pid: &u32| {
        let id = i32::try_from(*pid).ok().and_then(Pid::from_raw)?;
        let process = pidfd_open(id, PidfdFlags::empty()).ok()?;
        // The process is checked after its pidfd was opened, so that the signal cannot reach another process with the same id.
        let found = belongs_to(*pid, root).then(|| pidfd_send_signal(&process, Signal::KILL));
        found.and_then(Result::ok)
    };
    pids.filter(|&pid| pid != own)
        .filter_map(|pid| kill(&pid))
        .count()
}

fn belongs_to(pid: u32, root: &Path) -> bool {
    let works_in = fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|dir| dir.starts_with(root));
    let root = root.as_os_str().as_encoded_bytes();
    works_in
        || fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|variables| variables.windows(root.len()).any(|part| part == root))
}

/// Changes the owner of `path` and of everything below it. Links are not followed.
fn hand_over(path: &Path) {
    let kind = fs::symlink_metadata(path).expect("the scratch directory is ours");
    if kind.is_symlink() {
        return;
    }
    chown(path, Some(NOBODY), Some(NOBODY)).expect("root may change owners");
    if kind.is_dir() {
        for entry in fs::read_dir(path).expect("root may read it") {
            hand_over(&entry.expect("no other process writes here").path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_written_below_the_work_tree_and_removed_at_the_end() {
        let scratch = Scratch::new();
        let root = scratch.root.clone();
        let path = scratch.write("a/b.txt", "text");
        assert_eq!(path, scratch.path().join("a/b.txt"));
        assert_eq!(scratch.read("a/b.txt"), "text");
        drop(scratch);
        assert!(!root.exists(), "the scratch directory outlived its test");
    }

    #[test]
    fn a_failing_test_ends_the_processes_that_it_started() {
        let failed = std::thread::spawn(|| {
            let scratch = Scratch::new();
            let mut sleep = Command::new("sleep");
            let started = sleep.arg("600").current_dir(scratch.path()).spawn();
            std::panic::panic_any(started.expect("sleep starts"));
        });
        let mut child = *failed
            .join()
            .expect_err("it panics")
            .downcast::<std::process::Child>()
            .expect("the child is the panic's payload");
        let status = child.wait().expect("the test started this process");
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&status),
            Some(9)
        );
    }

    #[test]
    fn children_get_default_signals_and_umask() {
        let _scratch = Scratch::new();
        let shell = Command::new("sh")
            .args(["-c", "umask; sed -n 's/^SigIgn:.//p' /proc/self/status"])
            .output()
            .expect("sh starts");
        let words = String::from_utf8_lossy(&shell.stdout).into_owned();
        let (mask, ignored) = words.split_once('\n').expect("two lines");
        let ignored = u64::from_str_radix(ignored.trim(), 16).expect("a hexadecimal number");
        let still_ignored = SIGNALS.map(|signal| ignored >> (signal - 1) & 1);
        assert_eq!((mask, still_ignored), ("0022", [0; SIGNALS.len()]));
    }

    #[test]
    fn ignored_signals_and_umask_of_the_caller_are_not_inherited() {
        let test = std::env::current_exe().expect("it is running");
        let script = "umask 077; trap '' HUP INT QUIT TERM USR1; exec \"$0\" \"$@\"";
        let again = Command::new("sh")
            .args(["-c", script])
            .arg(test)
            .args([
                "--exact",
                "scratch::tests::children_get_default_signals_and_umask",
            ])
            .output()
            .expect("sh starts");
        let words = String::from_utf8_lossy(&again.stdout);
        assert!(
            again.status.success() && words.contains("1 passed"),
            "{words}"
        );
    }

    #[test]
    fn write_script_creates_an_executable_file() {
        let scratch = Scratch::new();
        let script = scratch.write_script("hello.sh", "#!/bin/sh\necho hello\n");
        let mode = fs::metadata(script)
            .expect("just written")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o755);
    }

    #[test]
    fn socket_paths_fit_into_the_runtime_directory() {
        let scratch = Scratch::new();
        let socket = scratch
            .runtime_dir()
            .join("tachikoma/loop_00000000-0000-0000-0000-000000000000.sock");
        assert!(socket.as_os_str().len() <= 107, "{}", socket.display());
        let mode = fs::metadata(scratch.runtime_dir())
            .expect("it exists")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o700, "the directory is private");
    }

    #[test]
    fn a_git_repository_takes_commits() {
        let scratch = Scratch::with_git();
        scratch.write("file.txt", "one");
        scratch.git(&["add", "file.txt"]);
        scratch.git(&["commit", "--quiet", "-m", "first"]);
        assert_eq!(
            scratch.git(&["log", "--format=%an: %s"]),
            "Scratch: first\n"
        );
    }
}
