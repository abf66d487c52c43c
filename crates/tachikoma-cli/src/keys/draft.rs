//! A prompt that the operator edits. A draft that was not used is kept, and the next edit starts with it.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tachikoma_core::PASSPHRASE_VARIABLE;
use tachikoma_core::PromptSource;
use tachikoma_loop_runner::prompt;

use super::foreground_program;

/// The file with the draft, in a directory of the user.
#[derive(Debug)]
pub struct Draft {
    path: PathBuf,
    /// Whether the file has a text that was not used yet.
    kept: bool,
}

impl Draft {
    pub fn new(path: PathBuf) -> Self {
        Self { path, kept: false }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens an editor with the prompt, or with an unused draft. The error says why there is no edited prompt.
    pub fn edit(&mut self, prompt: &PromptSource, working_dir: &Path) -> Result<(), String> {
        let before = prompt::read(prompt, working_dir).unwrap_or_default();
        let no = |error: std::io::Error| format!("no draft {}: {error}", self.path.display());
        if !self.kept {
            write_draft(&self.path, &before).map_err(no)?;
        }
        let editor = ["VISUAL", "EDITOR"].into_iter().find_map(std::env::var_os);
        let editor = editor.unwrap_or_else(|| "vi".into());
        let mut command = Command::new("sh");
        command.env_remove(PASSPHRASE_VARIABLE);
        command
            .args(["-c", "exec $0 \"$1\""])
            .arg(&editor)
            .arg(&self.path);
        command.current_dir(working_dir);
        let shown = editor.to_string_lossy();
        let status = foreground_program::run(&mut command, foreground_program::Control::Operator)
            .map_err(|error| format!("`{shown}`: {error}"))?;
        let after = std::fs::read_to_string(&self.path).map_err(no)?;
        let empty = after.trim().is_empty();
        // A killed editor may have saved its text in another file.
        let ended = status.signal().is_some();
        self.kept = !empty && (ended || after != before);
        if !status.success() {
            let failed = format!("`{shown}` failed: {status}; the prompt is unchanged");
            return Err(match self.kept {
                true => format!("{failed}; `e` opens the written text again"),
                false => failed,
            });
        }
        match (self.kept, empty) {
            (true, _) => Ok(()),
            (false, true) => Err("the edited prompt is empty: the prompt is unchanged".to_owned()),
            (false, false) => Err("no change: the prompt is unchanged".to_owned()),
        }
    }

    /// Notes that the draft was used.
    pub fn used(&mut self) {
        self.kept = false;
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.kept {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Writes a file that only the user can read. Never overwrites or follows files of other users. Only an earlier draft is replaced.
fn write_draft(path: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut options = std::fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn a_draft_is_private_and_follows_no_link() {
        let dir = tempfile::tempdir().unwrap();
        let (draft, theirs) = (dir.path().join("draft"), dir.path().join("theirs"));
        std::fs::write(&theirs, "theirs").unwrap();
        symlink(&theirs, &draft).unwrap();
        for text in ["first", "second"] {
            write_draft(&draft, text).unwrap();
            assert_eq!(std::fs::read_to_string(&draft).unwrap(), text);
        }
        let is = std::fs::symlink_metadata(&draft).unwrap();
        assert!(is.is_file());
        assert_eq!(is.permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_to_string(&theirs).unwrap(), "theirs");
    }
}
