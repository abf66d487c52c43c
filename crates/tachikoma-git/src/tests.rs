//! Tests of the work tracker in real repositories. A wrapper around the real git records each command.

mod attribution;
mod commits;
mod hooks;
mod kinds;
mod names;
mod resumed;
mod rollbacks;
mod shapes;
mod snapshots;
mod surveys;

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use tachikoma_core::LoopId;
use tachikoma_testkit::Scratch;

use super::{
    CancelToken, ChangeOwner, Commit, CommitError, Protected, RepoPath, Rules, RuntimeFiles,
    Survey, TrackerOptions, WorkTracker,
};

/// Time limit of waits, longer than any git command takes.
const LIMIT: Duration = Duration::from_secs(60);

/// A repository with a loop, and the recorded git commands.
struct Place {
    scratch: Scratch,
    options: TrackerOptions,
}

impl Place {
    /// Creates a repository without commits.
    fn empty() -> Self {
        let scratch = Scratch::with_git();
        Self::around(scratch)
    }

    /// Creates a repository with one commit of a few files.
    fn new() -> Self {
        let place = Self::empty();
        place.scratch.write("a.txt", "a");
        place.scratch.write("dir/b.txt", "b");
        place.scratch.write("dir/c.txt", "c");
        place.scratch.write(".gitignore", "*.log\n/build/\n");
        place.commit_all("before");
        place
    }

    fn around(scratch: Scratch) -> Self {
        let bin = scratch.home().join("bin");
        fs::create_dir(&bin).unwrap();
        let git = std::env::split_paths(&std::env::var_os("PATH").unwrap())
            .map(|dir| dir.join("git"))
            .find(|git| git.is_file())
            .expect("git is installed");
        let home = scratch.home();
        let text = format!(
            "#!/bin/sh\necho \"$*\" >>'{home}/asked'\nexport HOME='{home}' GIT_CONFIG_NOSYSTEM=1\nunset XDG_CONFIG_HOME\nexec '{}' \"$@\"\n",
            git.display(),
            home = home.display(),
        );
        scratch.write_script(bin.join("git"), text);
        let options = TrackerOptions {
            hidden: Vec::new(),
            working_dir: scratch.path(),
            loop_dir: scratch.path().join(".ralph/loops/one"),
            loop_id: LoopId::from_u128(1),
            search_path: Some(bin.into_os_string()),
            rules: Rules {
                protected: Protected::new(&[".env*", "*.pem", "*.key", "secrets/**"]).unwrap(),
                max_file_bytes: 1000,
                runtime_files: RuntimeFiles::default(),
            },
        };
        let place = Self { scratch, options };
        place.make_loop_dir();
        place
    }

    fn make_loop_dir(&self) {
        fs::create_dir_all(&self.options.loop_dir).unwrap();
        fs::write(self.options.working_dir.join(".ralph/.gitignore"), "*\n").unwrap();
    }

    fn commit_all(&self, subject: &str) {
        self.scratch.git(&["add", "-A"]);
        self.scratch.git(&["commit", "--quiet", "-m", subject]);
    }

    fn open(&self, owner: ChangeOwner) -> (Box<WorkTracker>, Survey) {
        match super::open(self.options.clone(), owner, &CancelToken::new()) {
            Ok(Some(opened)) => opened,
            other => panic!("{other:?}"),
        }
    }

    fn tracker(&self) -> Box<WorkTracker> {
        self.open(ChangeOwner::Others).0
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.path(name)).unwrap();
    }

    /// Returns the git commands since the last call.
    fn asked(&self) -> Vec<String> {
        let log = self.scratch.home().join("asked");
        let text = fs::read_to_string(&log).unwrap_or_default();
        let _ = fs::remove_file(log);
        text.lines().map(str::to_owned).collect()
    }

    fn git_dir(&self) -> PathBuf {
        self.path(".git")
    }

    fn index(&self) -> Vec<u8> {
        fs::read(self.git_dir().join("index")).unwrap()
    }

    /// Returns the entries of the user's index.
    fn staged(&self) -> String {
        self.scratch.git(&["ls-files", "-s", "-v"])
    }

    fn status(&self) -> String {
        let args = ["--no-optional-locks", "status", "--porcelain", "-uall"];
        self.scratch.git(&args)
    }

    /// Lists the files of the last commit.
    fn last_commit(&self) -> Vec<String> {
        let text = self.scratch.git(&[
            "-c",
            "core.quotePath=false",
            "show",
            "--name-status",
            "--no-renames",
            "--format=",
            "HEAD",
        ]);
        text.lines().map(|line| line.replace('\t', " ")).collect()
    }

    fn head(&self) -> String {
        let head = self.scratch.git(&["rev-parse", "HEAD"]);
        head.trim_end().to_owned()
    }

    /// Returns the content of a file in a snapshot.
    fn at(&self, commit: &str, file: &str) -> String {
        self.scratch.git(&["show", &format!("{commit}:{file}")])
    }

    fn files_of(&self, commit: &str) -> Vec<String> {
        let text = self.scratch.git(&["ls-tree", "-r", "--name-only", commit]);
        text.lines().map(str::to_owned).collect()
    }

    fn hook(&self, name: &str, text: &str) {
        let path = self.git_dir().join("hooks").join(name);
        self.scratch
            .write_script(path, format!("#!/bin/sh\n{text}\n"));
    }
}

/// Surveys the work tree, and returns the changed paths.
#[track_caller]
fn changed(tracker: &mut WorkTracker, owner: ChangeOwner) -> Vec<String> {
    names(&tracker.survey(owner, &CancelToken::new()).unwrap())
}

fn names(survey: &Survey) -> Vec<String> {
    survey.changed.iter().map(ToString::to_string).collect()
}

fn commit(tracker: &mut WorkTracker, message: &str) -> Result<Option<Commit>, CommitError> {
    super::commit(tracker, message, Some(LIMIT), &CancelToken::new())
}

#[track_caller]
fn commits(tracker: &mut WorkTracker) -> usize {
    let made = commit(tracker, "of the loop").unwrap();
    made.map_or(0, |commit| commit.files)
}

#[track_caller]
fn snapshot(tracker: &mut WorkTracker, iteration: u32) -> String {
    super::snapshot(tracker, iteration, &CancelToken::new())
        .unwrap()
        .commit
}

fn path_variable(place: &Place) -> OsString {
    place.options.search_path.clone().unwrap()
}

fn repo_path(name: &str) -> RepoPath {
    RepoPath::new(name.as_bytes())
}
