//! The report files of a gate: a path or a pattern that is searched after the gate has run.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use globset::{GlobBuilder, GlobMatcher};

/// Maximum number of files that are read as one report. A project with more test binaries can write one report for all.
const FILES_MAX: usize = 1000;

/// Maximum number of file names that a search visits. Directories of reports are small, so a larger one is a mistake.
const NAMES_MAX: usize = 100_000;

/// Maximum depth of directories in a search.
const DEPTH_MAX: usize = 32;

/// Tolerance for modification times: they may be this much earlier than the write, because some file systems round them to two seconds.
const STAMP_SLACK_NANOS: i64 = 2_100_000_000;

/// A path, or a pattern of paths: `*` and `?` within a name, `**` over directories, `[ab]`, `{a,b}`.
#[derive(Clone, Debug)]
pub struct ReportPattern {
    /// The path before the first wildcard, relative to the working directory.
    start: PathBuf,
    matcher: Option<GlobMatcher>,
}

impl ReportPattern {
    /// Parses a pattern. If it is invalid, returns an error message for the user.
    pub fn new(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Err("it is empty".to_owned());
        }
        let special = |part: &str| part.contains(['*', '?', '[', '{']);
        if !special(text) {
            let start = text.into();
            let matcher = None;
            return Ok(Self { start, matcher });
        }
        let glob = GlobBuilder::new(text.trim_start_matches("./"))
            .literal_separator(true)
            .build()
            .map_err(|error| error.kind().to_string())?;
        let start = text
            .split_inclusive('/')
            .take_while(|part| !special(part))
            .collect::<String>();
        Ok(Self {
            start: start.trim_start_matches("./").into(),
            matcher: Some(glob.compile_matcher()),
        })
    }

    /// Finds files below `dir` that match and are not older than `since` (Unix time in nanoseconds). Sorts them by name. Blocks.
    pub fn find(&self, dir: &Path, since: i64) -> Result<Vec<PathBuf>, String> {
        let mut found = ReportSearch {
            dir,
            since,
            matcher: self.matcher.as_ref(),
            names: 0,
            fresh: Vec::new(),
            old: 0,
        };
        let start = dir.join(&self.start);
        match &self.matcher {
            None => found.file(&start),
            Some(_) => found.walk(&start, 0)?,
        }
        if found.fresh.is_empty() {
            return Err(match found.old {
                0 => "there is none".to_owned(),
                _ => "it is from an earlier run".to_owned(),
            });
        }
        found.fresh.sort();
        Ok(found.fresh)
    }
}

/// A running search for report files.
struct ReportSearch<'a> {
    dir: &'a Path,
    since: i64,
    matcher: Option<&'a GlobMatcher>,
    names: usize,
    fresh: Vec<PathBuf>,
    old: usize,
}

impl ReportSearch<'_> {
    fn file(&mut self, path: &Path) {
        let Ok(there) = std::fs::symlink_metadata(path) else {
            return;
        };
        let stamp = there.modified().map_or(i64::MAX, nanos);
        if stamp.saturating_add(STAMP_SLACK_NANOS) < self.since {
            self.old += 1;
        } else {
            self.fresh.push(path.to_owned());
        }
    }

    /// Searches a directory. Symbolic links are not followed, because they may form a cycle.
    fn walk(&mut self, dir: &Path, depth: usize) -> Result<(), String> {
        let Ok(entries) = std::fs::read_dir(dir) else {
            return Ok(());
        };
        for entry in entries.flatten() {
            self.names += 1;
            if self.names > NAMES_MAX || self.fresh.len() >= FILES_MAX {
                return Err(format!(
                    "more than {FILES_MAX} files match, or more than {NAMES_MAX} would have to be looked at"
                ));
            }
            let path = entry.path();
            let below = path.strip_prefix(self.dir).unwrap_or(&path);
            let matches = self.matcher.is_some_and(|matcher| matcher.is_match(below));
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && depth < DEPTH_MAX => self.walk(&path, depth + 1)?,
                Ok(kind) if kind.is_file() && matches => self.file(&path),
                Ok(_) | Err(_) => {}
            }
        }
        Ok(())
    }
}

fn nanos(time: SystemTime) -> i64 {
    let since_epoch = time.duration_since(SystemTime::UNIX_EPOCH);
    i64::try_from(since_epoch.unwrap_or_default().as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn names(pattern: &str, dir: &Path, since: i64) -> Result<Vec<String>, String> {
        let found = ReportPattern::new(pattern).unwrap().find(dir, since)?;
        let below = found.iter().map(|path| path.strip_prefix(dir).unwrap());
        Ok(below.map(|path| path.display().to_string()).collect())
    }

    #[test]
    fn paths_and_patterns_find_matching_files() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path();
        for file in [
            "junit.xml",
            "out/a/TEST-1.xml",
            "out/b/TEST-2.xml",
            "out/b/other.txt",
        ] {
            let file = dir.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "x").unwrap();
        }
        std::os::unix::fs::symlink("..", dir.join("out/circle")).unwrap();
        let all = |pattern| names(pattern, dir, 0);
        assert_eq!(all("junit.xml").unwrap(), ["junit.xml"]);
        assert_eq!(all("./junit.xml").unwrap(), ["junit.xml"]);
        let both = ["out/a/TEST-1.xml", "out/b/TEST-2.xml"];
        assert_eq!(all("out/**/TEST-*.xml").unwrap(), both);
        assert_eq!(all("./out/*/*.xml").unwrap(), both);
        assert_eq!(all("out/{a,c}/*").unwrap(), ["out/a/TEST-1.xml"]);
        assert_eq!(all("out/*.xml").unwrap_err(), "there is none");
        assert_eq!(all("gone.xml").unwrap_err(), "there is none");
        let later = nanos(SystemTime::now()) + 3_600_000_000_000;
        assert_eq!(
            names("out/**", dir, later).unwrap_err(),
            "it is from an earlier run"
        );
        assert!(names("junit.xml", dir, nanos(SystemTime::now())).is_ok());
    }

    #[test]
    fn invalid_patterns_are_errors() {
        for bad in ["", "  ", "out/[", "out/{a"] {
            ReportPattern::new(bad).unwrap_err();
        }
    }
}
