//! A directory of a test's own: work tree, runtime directory and home, gone at the end.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;

use crate::NOBODY;

/// Socket paths end at 107 bytes. This leaves room for a directory and a name below it.
const ROOT_BYTES_MAX: usize = 40;

/// A temporary directory with a work tree, a private runtime directory and an empty home.
#[derive(Debug)]
pub struct Scratch {
    /// Kept for its drop, which removes everything.
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
    /// Creates an empty one below the temporary directory, or below `/tmp` where that one's
    /// path is too long for sockets.
    ///
    /// # Panics
    ///
    /// When the directory cannot be made: no test can go on without it.
    #[must_use]
    pub fn new() -> Self {
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
            fs::set_permissions(&part, fs::Permissions::from_mode(0o700)).expect("it is ours");
        }
        scratch
    }

    /// Creates one whose work tree is a git repository without commits.
    ///
    /// # Panics
    ///
    /// When git is missing or fails.
    #[must_use]
    pub fn with_git() -> Self {
        let scratch = Self::new();
        scratch.git(&["init", "--quiet", "--initial-branch=main"]);
        scratch.git(&["config", "user.name", "Scratch"]);
        scratch.git(&["config", "user.email", "scratch@example.invalid"]);
        scratch.git(&["config", "commit.gpgsign", "false"]);
        scratch
    }

    /// The work tree.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.root.join("w")
    }

    /// What `XDG_RUNTIME_DIR` should say: private, short, outside the work tree.
    #[must_use]
    pub fn runtime_dir(&self) -> PathBuf {
        self.root.join("r")
    }

    /// What `HOME` should say: no settings of the person who runs the tests.
    #[must_use]
    pub fn home(&self) -> PathBuf {
        self.root.join("h")
    }

    /// Writes a file of the work tree, with the directories it needs, and returns its path.
    ///
    /// # Panics
    ///
    /// When it cannot be written.
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
    /// When it cannot be written.
    #[track_caller]
    pub fn write_script(&self, name: impl AsRef<Path>, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.write(name, "");
        // By somebody else: what we have open for writing, a child of another test has too, and then it cannot be executed.
        let mut install = Command::new("install")
            .args(["-m", "755", "/dev/stdin"])
            .arg(&path)
            .stdin(Stdio::piped())
            .spawn()
            .expect("`install` is everywhere");
        let mut input = install.stdin.take().expect("it is piped");
        input.write_all(text.as_ref()).expect("it reads");
        drop(input);
        assert!(install.wait().expect("it is ours").success());
        path
    }

    /// Reads a file of the work tree as text.
    ///
    /// # Panics
    ///
    /// When it cannot be read.
    #[track_caller]
    #[must_use]
    pub fn read(&self, name: impl AsRef<Path>) -> String {
        let path = self.path().join(name);
        let bytes =
            fs::read(&path).unwrap_or_else(|error| panic!("read {}: {error}", path.display()));
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Runs git in the work tree, untouched by the settings of person and machine, and returns
    /// what it printed.
    ///
    /// # Panics
    ///
    /// When git is missing or fails.
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

    /// New names for the output of one process: `(stdout, stderr)`.
    pub(crate) fn output_files(&self) -> (PathBuf, PathBuf) {
        let number = self.processes.fetch_add(1, Ordering::Relaxed);
        let file = |stream: &str| self.root.join(format!("{number}.{stream}"));
        (file("stdout"), file("stderr"))
    }

    /// Gives everything in it to nobody, when the tests run as root: for what runs through
    /// [`crate::drop_to_nobody`].
    ///
    /// # Panics
    ///
    /// When the owner cannot be changed.
    pub fn hand_to_nobody(&self) {
        if rustix::process::geteuid().is_root() {
            hand_over(&self.root);
        }
    }
}

/// Changes the owner of `path` and of all below it; links are not followed.
fn hand_over(path: &Path) {
    let kind = fs::symlink_metadata(path).expect("the scratch directory is ours");
    if kind.is_symlink() {
        return;
    }
    chown(path, Some(NOBODY), Some(NOBODY)).expect("root may change owners");
    if kind.is_dir() {
        for entry in fs::read_dir(path).expect("root may read it") {
            hand_over(&entry.expect("nobody else writes here").path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_written_below_the_work_tree_and_gone_at_the_end() {
        let scratch = Scratch::new();
        let root = scratch.root.clone();
        let path = scratch.write("a/b.txt", "text");
        assert_eq!(path, scratch.path().join("a/b.txt"));
        assert_eq!(scratch.read("a/b.txt"), "text");
        drop(scratch);
        assert!(!root.exists(), "the scratch directory outlived its test");
    }

    #[test]
    fn a_script_can_be_run() {
        let scratch = Scratch::new();
        let script = scratch.write_script("hello.sh", "#!/bin/sh\necho hello\n");
        let mode = fs::metadata(script)
            .expect("just written")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o755);
    }

    #[test]
    fn sockets_fit_into_the_runtime_directory() {
        let scratch = Scratch::new();
        let socket = scratch
            .runtime_dir()
            .join("tachikoma/loop_00000000-0000-0000-0000-000000000000.sock");
        assert!(socket.as_os_str().len() <= 107, "{}", socket.display());
        let mode = fs::metadata(scratch.runtime_dir())
            .expect("it exists")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o700, "others must not look in");
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
