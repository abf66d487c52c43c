//! A disk that becomes read-only or full while a loop runs, and a directory that is read-only when a loop is resumed. The message
//! is clear, nothing is lost, and the loop continues after the cause is fixed.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::dice::Dice;
use super::disk::{Disk, Fault, Mounted};
use super::power_cut::{CONFIG, furnish};
use super::victim::{PATIENCE, Victim};
use crate::product::{self, Live, await_that};

/// Maximum time that the loop runs before the disk fails.
const HEALTHY: Duration = Duration::from_millis(200);

/// Time after which a loop that does not wait has ended. A loop that still runs waits for the end of the fault.
const GIVES_UP: Duration = Duration::from_secs(3);

/// Error messages of the operating system for a read-only and a full disk.
const READ_ONLY: &str = "Read-only file system";
const FULL: &str = "No space left on device";

/// Shell script that mounts a directory read-only on itself in a mount namespace, and runs a command there.
const RUN_READ_ONLY: &str = "
    mount --bind \"$DIR\" \"$DIR\" && mount -o remount,bind,ro \"$DIR\" && cd \"$DIR\" || exit 99
    exec \"$@\"
";

/// Exit code of the script if the machine does not allow the mount.
const NOT_MOUNTED: i32 = 99;

/// Exit code of a loop that ended with an error and can be resumed.
const GAVE_UP: i32 = 1;

pub fn read_only(root: &Path, rounds: u32) -> Result<String, String> {
    let product = product::build(root)?;
    let did = turned(&product, rounds, Fault::ReadOnly, READ_ONLY)?;
    for round in 1..=rounds {
        refused(&product).map_err(|error| format!("mount {round}: {error}"))?;
    }
    Ok(format!(
        "{did}; {rounds} loops refused on a read-only mount, and taken up afterwards"
    ))
}

pub fn full(root: &Path, rounds: u32) -> Result<String, String> {
    let product = product::build(root)?;
    turned(&product, rounds, Fault::Full, FULL)
}

/// Checks what happens if the disk of a running loop fails.
fn turned(product: &Path, rounds: u32, fault: Fault, words: &str) -> Result<String, String> {
    let mut dice = Dice::shaken();
    let (mut gave_up, mut waited) = (0, 0);
    for round in 1..=rounds {
        let healthy = dice.moment(HEALTHY);
        match turn(product, healthy, fault, words)
            .map_err(|error| format!("disk {round}, {healthy:?}: {error}"))?
        {
            Reaction::GaveUp => gave_up += 1,
            Reaction::Waited => waited += 1,
        }
    }
    Ok(format!(
        "{rounds} disks turned: {gave_up} runners gave up and said why, {waited} waited; nothing lost, all went on"
    ))
}

enum Reaction {
    GaveUp,
    Waited,
}

fn turn(product: &Path, healthy: Duration, fault: Fault, words: &str) -> Result<Reaction, String> {
    let victim = Victim::new(product)?;
    let disk = Arc::new(Mutex::new(Disk::new()));
    furnish(&victim, &disk, CONFIG)?;
    let mounted = Mounted::at(victim.ground().path(), disk)?;
    let mut runner = victim.start()?;
    thread::sleep(healthy);
    mounted.disk().fault = Some(fault);
    let gives_up = await_that("an end", GIVES_UP, || runner.has_ended());
    let before = victim.ran()?.len();
    let reaction = match gives_up {
        Ok(()) => {
            let code = runner.wait(PATIENCE)?;
            let stderr = victim.stderr();
            if code != Some(GAVE_UP) || !stderr.contains(words) {
                return Err(format!("exit code {code:?}: {stderr}"));
            }
            victim.expect_nobody()?;
            victim.audit()?;
            mounted.disk().fault = None;
            Reaction::GaveUp
        }
        Err(_) => {
            mounted.disk().fault = None;
            await_that("the loop to go on by itself", PATIENCE, || {
                victim.ran().is_ok_and(|ran| ran.len() > before)
            })?;
            runner.kill()?;
            victim.expect_nobody()?;
            Reaction::Waited
        }
    };
    victim.go_on()?;
    mounted.unmount()?;
    Ok(reaction)
}

/// Checks that a loop in a directory that is mounted read-only cannot be resumed.
fn refused(product: &Path) -> Result<(), String> {
    let victim = Victim::new(product)?;
    let before = victim.go_on()?;
    let words = victim.words(before.state.iteration + 1);
    let mut command = victim.ground().quietly(
        Path::new("unshare"),
        &["--mount", "sh", "-c", RUN_READ_ONLY, "sh"],
    );
    command
        .arg(product)
        .args(words)
        .env("DIR", victim.ground().path());
    let code = Live::start(victim.recorded(&mut command)?)?.wait(PATIENCE)?;
    let stderr = victim.stderr();
    if code == Some(NOT_MOUNTED) || code.is_none() || stderr.starts_with("unshare") {
        return Err(format!(
            "this machine cannot show it: no read-only mount: {stderr}"
        ));
    }
    if code != Some(GAVE_UP) || !stderr.contains(READ_ONLY) {
        return Err(format!("exit code {code:?}: {stderr}"));
    }
    let after = victim.audit()?.ok_or("the loop is gone")?;
    if after.state != before.state {
        return Err("the loop is not as it was".into());
    }
    victim.go_on().map(|_| ())
}
