//! Protected files: Tachikoma never reads them, and never adds them to snapshots or commits.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use globset::{Candidate, Glob, GlobBuilder, GlobSet, GlobSetBuilder};

/// Patterns of protected files.
///
/// A pattern without a slash matches a name in any directory. A pattern with a slash matches a path below any directory. A pattern that begins with a
/// slash matches a path from the top of the repository. Case is ignored. A pattern that matches a directory protects everything below it.
#[derive(Clone, Debug, Default)]
pub struct Protected {
    names: GlobSet,
    paths: GlobSet,
}

/// A pattern that is not a valid glob.
#[derive(Debug, thiserror::Error)]
#[error("pattern `{pattern}`: {why}")]
pub struct ProtectedError {
    /// The invalid pattern.
    pub pattern: String,
    why: String,
}

impl Protected {
    /// Parses patterns.
    ///
    /// # Errors
    /// A pattern is not a valid glob.
    pub fn new<P: AsRef<str>>(patterns: &[P]) -> Result<Self, ProtectedError> {
        let (names, paths) = Self::read(patterns)?;
        let build = |set: GlobSetBuilder| {
            set.build()
                .map_err(|error| invalid_pattern("", &error.to_string()))
        };
        Ok(Self {
            names: build(names)?,
            paths: build(paths)?,
        })
    }

    /// Validates patterns without building a matcher, which takes ten times as long.
    ///
    /// # Errors
    /// A pattern is not a valid glob.
    pub fn check<P: AsRef<str>>(patterns: &[P]) -> Result<(), ProtectedError> {
        Self::read(patterns).map(drop)
    }

    /// Splits patterns into those for names and those for paths.
    fn read<P: AsRef<str>>(
        patterns: &[P],
    ) -> Result<(GlobSetBuilder, GlobSetBuilder), ProtectedError> {
        let (mut names, mut paths) = (GlobSetBuilder::new(), GlobSetBuilder::new());
        for pattern in patterns.iter().map(AsRef::as_ref) {
            let plain = pattern.trim_end_matches('/');
            let from_top = plain.strip_prefix('/').unwrap_or(plain);
            if from_top.is_empty() {
                return Err(invalid_pattern(pattern, "it is empty"));
            }
            if plain.starts_with('/') {
                paths.add(glob(pattern, from_top)?);
            } else if plain.contains('/') {
                // The pattern matches below any directory, because the loop may run below the top of the repository.
                paths.add(glob(pattern, &format!("**/{plain}"))?);
            } else {
                names.add(glob(pattern, plain)?);
            }
        }
        Ok((names, paths))
    }

    /// Returns whether a path from the top of the repository is protected.
    #[must_use]
    pub fn has(&self, path: &[u8]) -> bool {
        let mut start = 0;
        loop {
            let end = path[start..]
                .iter()
                .position(|byte| *byte == b'/')
                .map_or(path.len(), |length| start + length);
            if self.has_part(path, start, end) {
                return true;
            }
            if end == path.len() {
                return false;
            }
            start = end + 1;
        }
    }

    fn has_part(&self, path: &[u8], start: usize, end: usize) -> bool {
        matches(&self.names, &path[start..end]) || matches(&self.paths, &path[..end])
    }
}

fn matches(set: &GlobSet, text: &[u8]) -> bool {
    !set.is_empty() && set.is_match_candidate(&Candidate::new(Path::new(OsStr::from_bytes(text))))
}

fn glob(pattern: &str, text: &str) -> Result<Glob, ProtectedError> {
    GlobBuilder::new(text)
        .literal_separator(true)
        .case_insensitive(true)
        .build()
        .map_err(|error| invalid_pattern(pattern, &error.kind().to_string()))
}

fn invalid_pattern(pattern: &str, why: &str) -> ProtectedError {
    ProtectedError {
        pattern: pattern.to_owned(),
        why: why.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_anywhere_unless_it_begins_with_a_slash() {
        let patterns = [".env*", "*.key", "secrets/**", "/top", "a/*.pem", "kept/"];
        let protected = Protected::new(&patterns).unwrap();
        let has: [&[u8]; 13] = [
            b"a/secrets/b",
            b"Secrets/b",
            b"x/.ENV",
            b"b/a/x.pem",
            b".env",
            b"a/b/.env.local",
            b".envs/inside",
            b"x/\xff.key",
            b"secrets/a/b",
            b"top",
            b"top/inside",
            b"a/x.pem",
            b"b/kept/inside",
        ];
        for path in has {
            assert!(protected.has(path), "{}", path.escape_ascii());
        }
        let has_not: [&[u8]; 7] = [
            b"env",
            b"key",
            b"secrets",
            b"a/secrets2/b",
            b"a/top",
            b"a/b/x.pem",
            b"x.keys",
        ];
        for path in has_not {
            assert!(!protected.has(path), "{}", path.escape_ascii());
        }
    }

    #[test]
    fn error_names_the_invalid_pattern() {
        let error = Protected::new(&["*.key", "a{b"]).unwrap_err();
        assert_eq!(error.pattern, "a{b");
        assert!(Protected::new(&["/"]).is_err());
        assert!(Protected::new(&[""]).is_err());
    }
}
