//! Runs a command without root rights, because tests of permissions would always pass as root.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// Id of the user and group `nobody`, which own nothing.
pub const NOBODY: u32 = 65534;

/// Makes `command` run as `nobody` if the tests run as root. Any other user is already unprivileged.
///
/// The user `nobody` must be able to read what the command needs: see [`crate::Scratch::hand_to_nobody`].
pub fn drop_to_nobody(command: &mut Command) -> &mut Command {
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scratch;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn unprivileged_command_cannot_read_a_file_without_permissions() {
        let scratch = Scratch::new();
        let secret = scratch.write("secret.txt", "hidden");
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o000))
            .expect("the test owns this file");
        scratch.hand_to_nobody();

        let mut command = Command::new("cat");
        command.arg(&secret).current_dir(scratch.path());
        let output = drop_to_nobody(&mut command).output().expect("cat starts");

        assert!(!output.status.success(), "root's rights were not dropped");
        assert!(output.stdout.is_empty());
    }

    #[test]
    fn unprivileged_command_can_read_and_write_its_own_files() {
        let scratch = Scratch::new();
        scratch.write("open.txt", "seen");
        scratch.hand_to_nobody();

        let mut command = Command::new("sh");
        command
            .args(["-c", "cat open.txt && echo new > written.txt"])
            .current_dir(scratch.path());
        let output = drop_to_nobody(&mut command).output().expect("sh starts");

        assert_eq!(String::from_utf8_lossy(&output.stdout), "seen");
        assert!(output.status.success(), "{output:?}");
    }
}
