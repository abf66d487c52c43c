//! Loops with encrypted state: their settings, and a check that the `age` program decrypts their files.

use std::path::Path;
use std::process::{Command, Stdio};

use super::audit::SNAPSHOT;
use super::victim::{PATIENCE, Victim};
use crate::encryption::KEY_FILE;
use crate::product::{self, text};

/// The settings of a loop with encrypted state.
pub const SETTINGS: &str = "[state]\nencrypt = true\nencrypt_identity_file = \"key.txt\"\n";

/// Settings with encryption and compression that save the snapshot very often.
pub const PACKED: &str = "[state]\nencrypt = true\nencrypt_identity_file = \"key.txt\"\ncompress = true\nauto_save_interval = \"3ms\"\nbackup_interval = \"5ms\"\nmax_backups = 3\n";

/// Returns the settings of the loop with that number: default, compressed, or compressed and encrypted, in rotation.
pub fn in_turn(number: u32, plain: &str) -> &str {
    match number % 3 {
        0 => plain,
        1 => Victim::PACKED,
        _ => PACKED,
    }
}

/// Decrypts snapshots and backups with the program `age` and the key alone.
pub fn age_tool(root: &Path, rounds: u32) -> Result<String, String> {
    let found = Command::new("age").arg("--version").output();
    let version = found.map_err(|error| format!("`age` cannot be run: {error}"))?;
    let version = String::from_utf8_lossy(&version.stdout).trim().to_owned();
    let product = product::build(root)?;
    for round in 1..=rounds {
        let victim = Victim::new(&product)?.configured(SETTINGS)?;
        let code = victim.start_up_to(round)?.wait(PATIENCE)?;
        if code != Some(3) {
            return Err(format!("exit code {code:?}: {}", victim.stderr()));
        }
        let dir = victim.ground().path();
        let opened = open(dir, &dir.join(format!("{SNAPSHOT}.age")))?;
        let snapshot: serde_json::Value =
            serde_json::from_slice(&opened).map_err(|error| error.to_string())?;
        if snapshot["core"]["iteration"] != round {
            return Err(format!("the snapshot says {}", snapshot["core"]));
        }
        let output = victim
            .ground()
            .tachikoma(&["state", "backup"])
            .stdout(Stdio::piped())
            .output();
        let output = output.map_err(text)?;
        let path = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let opened = open(dir, &dir.join(&path))?;
        if !opened.starts_with(b"manifest.json\0") {
            return Err(format!("{path} does not contain an archive"));
        }
    }
    Ok(format!(
        "age {version} opened {rounds} snapshots and as many backups"
    ))
}

fn open(dir: &Path, path: &Path) -> Result<Vec<u8>, String> {
    let output = Command::new("age")
        .args(["-d", "-i", KEY_FILE])
        .arg(path)
        .current_dir(dir)
        .output();
    let output = output.map_err(text)?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => Err(format!(
            "age does not open {}: {}",
            path.display(),
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}
