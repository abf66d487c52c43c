//! The diagnostic logs of runs, in `.ralph/log/`: one file for each run. Only the newest files are kept.

use std::fs::File;
use std::path::{Path, PathBuf};

use tachikoma_core::Timestamp;
use tachikoma_fs::{FsError, RALPH_DIR, check_dir, make_dir, private};

use crate::clock::Clock;

/// Maximum number of log files. They are enough to find the run before a problem.
const FILES_MAX: usize = 10;

/// Returns the directory of the logs.
#[must_use]
pub fn dir(working_dir: &Path) -> PathBuf {
    working_dir.join(RALPH_DIR).join("log")
}

/// Returns whether a file with this name is the log of a run.
#[must_use]
pub fn is_ours(name: &str) -> bool {
    let middle = name
        .strip_prefix("run-")
        .and_then(|rest| rest.strip_suffix(".log"));
    middle.is_some_and(|middle| {
        let known = |char: char| char.is_ascii_digit() || "TZ.-".contains(char);
        !middle.is_empty() && middle.chars().all(known)
    })
}

/// Creates the log file of this run, readable only for its owner, and deletes the oldest logs.
///
/// # Errors
/// The file cannot be created, or a part of its path is a symbolic link.
pub fn create(working_dir: &Path) -> Result<File, FsError> {
    let dir = dir(working_dir);
    check_dir(working_dir, &dir)?;
    make_dir(&dir)?;
    delete_oldest(&dir);
    let now = Clock::starting_after(Timestamp::from_millis(0)).now();
    let time = now.to_string().replace(':', "");
    let path = dir.join(format!("run-{time}-{}.log", std::process::id()));
    let file = private().append(true).create_new(true).open(&path);
    file.map_err(FsError::io("create", &path))
}

/// Deletes the oldest logs, so that there is space for one more. Files that cannot be deleted are kept until the next run tries again.
fn delete_oldest(dir: &Path) {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    // The names start with the time of the run, so sorting them sorts the runs.
    let mut names: Vec<String> = names.filter(|name| is_ours(name)).collect();
    names.sort_unstable();
    let surplus = (names.len() + 1).saturating_sub(FILES_MAX);
    for name in &names[..surplus] {
        let _ = std::fs::remove_file(dir.join(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_logs_are_kept() {
        let place = tempfile::tempdir().unwrap();
        let logs = dir(place.path());
        make_dir(&logs).unwrap();
        std::fs::write(logs.join("notes.txt"), "").unwrap();
        for number in 10..30 {
            std::fs::write(logs.join(format!("run-2020-01-{number}.log")), "").unwrap();
        }
        create(place.path()).unwrap();
        let names = std::fs::read_dir(&logs).unwrap();
        let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names.len(), FILES_MAX + 1);
        assert_eq!(names[0], "notes.txt");
        assert_eq!(names[1], "run-2020-01-21.log");
    }

    #[test]
    fn link_in_place_of_the_directory_is_refused() {
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir(place.path().join(RALPH_DIR)).unwrap();
        std::os::unix::fs::symlink(place.path(), dir(place.path())).unwrap();
        assert!(create(place.path()).is_err());
    }
}
