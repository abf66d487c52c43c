//! The hand-offs of a loop: one file for each session that took over from another.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use tachikoma_core::SessionNo;
use tachikoma_fs::atomic_file::{self, Durability};

use super::encryption::Encryption;
use super::{StoreError, layout};

/// Name of the directory with hand-offs, in the directory of a loop.
pub const DIR: &str = "checkpoints";

/// Number of hand-offs to keep. It equals the number of reboots that are remembered, so that the hand-off of each can be shown.
pub const CHECKPOINTS_KEPT: usize = 100;

/// Maximum size of a hand-off file in bytes. The configured limit is far below, so a larger file is foreign.
pub const BYTES_MAX: u64 = 8 << 20;

const SUFFIX: &str = ".md";

/// Returns the directory of the hand-offs.
#[must_use]
pub fn dir(dir: &Path) -> PathBuf {
    dir.join(DIR)
}

/// Returns whether a file name is that of a hand-off.
pub fn is_ours(name: &str) -> bool {
    session_of(name).is_some() || atomic_file::is_temporary(name)
}

fn session_of(name: &str) -> Option<SessionNo> {
    let number = name.strip_suffix(SUFFIX)?;
    let session = SessionNo(number.parse().ok()?);
    (session.to_string() == number).then_some(session)
}

/// Returns the file of a session's hand-off.
pub fn path_of(checkpoints: &Path, session: SessionNo) -> PathBuf {
    checkpoints.join(format!("{session}{SUFFIX}"))
}

/// Lists the sessions that have a hand-off file, in order.
///
/// # Errors
/// The hand-offs cannot be listed.
pub fn list(dir: &Path) -> io::Result<Vec<SessionNo>> {
    let entries = layout::entries(&self::dir(dir))?;
    let sessions = entries
        .iter()
        .filter_map(|entry| session_of(entry.file_name().to_str()?));
    let mut found: Vec<SessionNo> = sessions.collect();
    found.sort();
    Ok(found)
}

/// Reads the hand-off that a session received; `None` if there is no file.
///
/// # Errors
/// The hand-off cannot be read, or is not text.
pub fn read(dir: &Path, session: SessionNo, encryption: &Encryption) -> io::Result<Option<String>> {
    let path = path_of(&self::dir(dir), session);
    let bytes = match encryption.read(&path, BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let text = String::from_utf8(bytes);
    text.map(Some)
        .map_err(|_| io::Error::other("it is not UTF-8 text"))
}

/// Writes the hand-off of a session, and removes the oldest ones over [`CHECKPOINTS_KEPT`].
///
/// # Errors
/// The hand-off cannot be written.
pub fn write(
    dir: &Path,
    session: SessionNo,
    text: &str,
    encryption: &Encryption,
) -> Result<(), StoreError> {
    let checkpoints = self::dir(dir);
    let path = path_of(&checkpoints, session);
    encryption.write(&path, text.as_bytes(), Durability::Synced)?;
    let kept = list(dir).unwrap_or_default();
    let excess = kept.len().saturating_sub(CHECKPOINTS_KEPT);
    for old in kept.into_iter().take(excess) {
        // An old file that cannot be removed is harmless.
        let _ = std::fs::remove_file(path_of(&checkpoints, old));
    }
    Ok(())
}

/// Removes the hand-offs of sessions after `last`. The records of these sessions are lost, and new sessions will use their numbers.
pub fn forget_after(dir: &Path, last: SessionNo) {
    let lost = list(dir).unwrap_or_default();
    for session in lost.into_iter().filter(|session| *session > last) {
        let _ = std::fs::remove_file(path_of(&self::dir(dir), session));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn each_session_has_its_own_hand_off_and_the_oldest_are_removed() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path();
        assert_eq!(list(dir).unwrap(), []);
        assert_eq!(read(dir, SessionNo(2), &Encryption::plain()).unwrap(), None);
        let last = u32::try_from(CHECKPOINTS_KEPT).unwrap() + 5;
        for number in 2..=last {
            write(
                dir,
                SessionNo(number),
                &format!("to {number}\n"),
                &Encryption::plain(),
            )
            .unwrap();
        }
        let kept = list(dir).unwrap();
        assert_eq!(kept.len(), CHECKPOINTS_KEPT);
        assert_eq!((kept[0], kept[99]), (SessionNo(6), SessionNo(last)));
        assert_eq!(
            read(dir, SessionNo(last), &Encryption::plain())
                .unwrap()
                .as_deref(),
            Some(&*format!("to {last}\n"))
        );
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&super::dir(dir)), 0o700);
        assert_eq!(mode(&path_of(&super::dir(dir), SessionNo(last))), 0o600);

        forget_after(dir, SessionNo(7));
        assert_eq!(list(dir).unwrap(), [SessionNo(6), SessionNo(7)]);
    }

    #[test]
    fn foreign_files_are_not_listed_as_hand_offs() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path();
        write(dir, SessionNo(3), "good", &Encryption::plain()).unwrap();
        let checkpoints = super::dir(dir);
        for name in ["03.md", "x.md", "3.md.bak", "notes.txt"] {
            std::fs::write(checkpoints.join(name), "theirs").unwrap();
            assert!(!is_ours(name), "{name}");
        }
        assert_eq!(list(dir).unwrap(), [SessionNo(3)]);
        std::fs::write(checkpoints.join("4.md"), b"\xff").unwrap();
        std::fs::write(dir.join("secret"), "secret").unwrap();
        std::os::unix::fs::symlink(dir.join("secret"), checkpoints.join("5.md")).unwrap();
        std::fs::create_dir(checkpoints.join("6.md")).unwrap();
        for number in [4, 5, 6] {
            read(dir, SessionNo(number), &Encryption::plain()).unwrap_err();
        }
    }
}
