//! Programs that a repository names, started by commands that only read.

use super::scene::{Scene, User::Victim};
use super::{Failure, control, must_not};

/// Lets the agent change a nested repository, and runs `diff` on the change.
pub fn nested_diff(scene: &Scene) -> Result<(), Failure> {
    let dir = scene.work(Victim);
    let commit = "set -e; commit() { git -C nested add file; git -C nested -c user.name=n -c user.email=n@n commit -qm next; git add nested; }";
    let make = format!(
        "{commit}; git init -q; git init -q nested; echo 1 > nested/file; commit; git -c user.name=n -c user.email=n@n commit -qm first"
    );
    scene.shell(Victim, &dir, &make)?;
    // The change stays uncommitted, so that git itself can show it below.
    scene.write(
        Victim,
        &dir.join("tachikoma.toml"),
        "[git]\nauto_commit = false\n",
    )?;
    scene.iterate(
        Victim,
        &dir,
        &format!("{commit}; echo 2 > nested/file; commit"),
    )?;
    let hacked = dir.join("hacked");
    let plant = format!(
        "git config diff.submodule diff; git -C nested config diff.external 'touch {}; true'",
        hacked.display()
    );
    scene.shell(Victim, &dir, &plant)?;
    scene.expect(Victim, &dir, &["diff", "1"], 0)?;
    must_not(hacked.exists(), "a program that the repository names ran")?;
    scene.shell(Victim, &dir, "git diff HEAD > /dev/null")?;
    control(hacked.exists(), "git itself runs the program")
}
