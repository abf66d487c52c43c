//! Files that the loop itself writes into the work tree because of its settings. They are not work of the agent.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use tachikoma_fs::atomic_file;

use super::path::is_ours;
use tachikoma_store::{backup, layout, snapshot};

/// Absolute paths from the settings. Other files in these directories belong to the user.
#[derive(Clone, Debug, Default)]
pub struct RuntimeFiles {
    /// All possible paths of the state file (`state.json`): plain, compressed and encrypted.
    state_files: Vec<PathBuf>,
    /// Directory of transcripts, with one directory for each loop.
    transcripts: PathBuf,
    /// Directory of backups.
    backups: PathBuf,
}

impl RuntimeFiles {
    /// Returns the files that a loop with these settings writes.
    #[must_use]
    pub fn new(state_file: &Path, transcripts: &Path, backups: &Path) -> Self {
        Self {
            state_files: snapshot::all_places(state_file),
            transcripts: transcripts.to_owned(),
            backups: backups.to_owned(),
        }
    }

    /// Returns `self`, or an empty set if no path is below `top` outside of `.ralph`.
    pub fn below(self, top: &Path) -> Self {
        let places = [&self.transcripts, &self.backups];
        let is_one = |place: &PathBuf| {
            let below = place.strip_prefix(top);
            below.is_ok_and(|below| !is_ours(below.as_os_str().as_bytes()))
        };
        let is_some = self.state_files.iter().chain(places).any(is_one);
        if is_some { self } else { Self::default() }
    }

    /// Returns whether the loop itself writes a path.
    pub fn has(&self, top: &Path, path: &[u8]) -> bool {
        if self.state_files.is_empty() {
            return false;
        }
        let path = top.join(OsStr::from_bytes(path));
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let is_in = |dir: Option<&Path>| dir == path.parent();
        let of_a_loop = || {
            let below = path.strip_prefix(&self.transcripts).ok()?;
            layout::exact_id(below.iter().next()?.to_str()?)
        };
        self.state_files.contains(&path)
            || (atomic_file::is_temporary(name)
                && self.state_files.iter().any(|file| is_in(file.parent())))
            || (is_in(Some(&self.backups)) && backup::is_name(name))
            || of_a_loop().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtime_files_are_recognized_by_exact_names() {
        let top = Path::new("/top");
        let own = RuntimeFiles::new(
            Path::new("/top/state.json"),
            Path::new("/top/src"),
            Path::new("/top/kept"),
        );
        let own = own.below(top);
        let id = "loop_00000000-0000-0000-0000-000000000007";
        let unique = "0".repeat(32);
        for ours in [
            "state.json".to_owned(),
            "state.json.zst".to_owned(),
            format!(".state-{unique}.tmp"),
            format!("src/{id}"),
            format!("src/{id}/1.jsonl"),
            format!("kept/{id}-00000000000000000012-20251115T050444Z.tar"),
            format!("kept/.state-{unique}.tmp"),
        ] {
            assert!(own.has(top, ours.as_bytes()), "{ours}");
        }
        for theirs in [
            "src",
            "src/main.rs",
            "kept",
            "kept/notes.tar",
            "a/state.json",
        ] {
            assert!(!own.has(top, theirs.as_bytes()), "{theirs}");
        }
        let usual = |name: &str| top.join(".ralph").join(name);
        let usual = RuntimeFiles::new(&usual("state.json"), &usual("sessions"), &usual("backups"));
        assert!(usual.below(top).state_files.is_empty());
        let elsewhere = Path::new("/elsewhere");
        assert!(
            RuntimeFiles::new(elsewhere, elsewhere, elsewhere)
                .below(top)
                .state_files
                .is_empty()
        );
    }
}
