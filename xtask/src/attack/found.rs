//! Files of another user, in directories that others can write to.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::scene::{
    Scene,
    User::{Attacker, Victim},
};
use super::{Failure, control, must_not};
use crate::product::text;

const USED: &str = "a file of the attacker was used";

/// Part of the message to the victim about a file of another user.
const REFUSED: &str = "not to you";

pub fn ralph_above(scene: &Scene) -> Result<(), Failure> {
    let shared = scene.shared();
    let live = scene.busy(Attacker, &shared, "true")?;
    let dir = shared.join("of-victim");
    scene.shell(Victim, &shared, "mkdir of-victim")?;
    for words in [
        &["status"][..],
        &["stop"],
        &["note", "secret"],
        &["history"],
    ] {
        let (code, said) = scene.run(Victim, &dir, words)?;
        must_not(code == Some(0) || !said.contains(REFUSED), USED)?;
    }
    // Control: the attacker's own commands find the loop in the parent directory.
    scene.shell(Attacker, &shared, "mkdir of-attacker")?;
    scene.expect(Attacker, &shared.join("of-attacker"), &["status"], 0)?;
    drop(live);
    Ok(())
}

pub fn configuration(scene: &Scene) -> Result<(), Failure> {
    let shared = scene.shared();
    let hook = "[[hook]]\non = 'loop_start'\ncommand = 'touch hacked'\n";
    scene.write(Attacker, &shared.join("tachikoma.toml"), hook)?;
    let words = ["--prompt-text", "go", "--max-iterations", "1", "--", "true"];
    let trusting = [&["run", "--trust"], &words[..]].concat();
    for words in [&[&["run"], &words[..]].concat(), &trusting, &vec!["trust"]] {
        scene.must_refuse(Victim, &shared, words)?;
    }
    let hacked = shared.join("hacked");
    must_not(hacked.exists(), USED)?;
    scene.expect(Attacker, &shared, &trusting, 3)?;
    control(hacked.exists(), "its owner can have it run")
}

pub fn lock(scene: &Scene) -> Result<(), Failure> {
    let (dir, theirs) = (scene.work(Victim), scene.work(Attacker));
    // `.ralph` is shared with other tools, and its parents can be traversed by other users.
    scene.shell(Victim, &dir, "mkdir -m 777 .ralph; chmod 711 .. .")?;
    let live = scene.busy(Attacker, &theirs, "true")?;
    let lock = dir.join(".ralph/lock");
    let plant = format!(
        "cp .ralph/lock {lock}; chmod 644 {lock}; flock {lock} sleep 600 2>/dev/null & while flock -n {lock} true; do sleep 0.05; done",
        lock = lock.display()
    );
    scene.shell(Attacker, &theirs, &plant)?;
    for words in [&["status"][..], &["stop"], &["note", "secret"]] {
        let (code, said) = scene.run(Victim, &dir, words)?;
        let connected = said.contains("does not answer") || said.contains("no runner listens");
        let used = connected || said.contains("loop_") || (code == Some(0) && words != ["status"]);
        must_not(used, USED)?;
    }
    let left = fs::metadata(&lock).map_err(text)?;
    must_not(left.len() == 0, "the lock of another user was written to")?;
    // Control: the runner that the lock names answers its owner.
    let status = scene.expect(Attacker, &theirs, &["status"], 0)?;
    control(status.contains("loop_"), "the attacker's runner answers")?;
    drop(live);
    Ok(())
}

pub fn runtime_directory(scene: &Scene) -> Result<(), Failure> {
    let (dir, runtime) = (scene.work(Victim), scene.runtime(Victim));
    let allow =
        |path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(text);
    scene.iterate(Victim, &dir, "true")?;
    let own = runtime.join("tachikoma");
    for (mode, own_mode) in [(0o777, 0o700), (0o700, 0o777)] {
        allow(&runtime, mode)?;
        allow(&own, own_mode)?;
        let (code, said) = scene.run(Victim, &dir, &["run", "--max-iterations", "2"])?;
        let refused = code == Some(1) && said.contains("other users can write to it");
        must_not(!refused, &format!("it was used: {said}"))?;
    }
    allow(&runtime, 0o700)?;
    allow(&own, 0o700)?;
    scene.expect(Victim, &dir, &["run", "--max-iterations", "2"], 3)?;
    Ok(())
}
