//! Text of the agent that reaches the terminal of the operator.

use super::scene::{Scene, User::Victim};
use super::{Failure, control, must_not};

/// Lets the agent write a note with control characters, and runs all commands that print something about the loop.
pub fn control_characters(scene: &Scene) -> Result<(), Failure> {
    let dir = scene.work(Victim);
    let hostile = "\u{1b}[2J\u{9b}2J";
    let agent = format!(
        "{} note '{hostile}' && echo '{hostile}'",
        scene.binary().display()
    );
    let mut all = vec![scene.iterate(Victim, &dir, &agent)?];
    for words in [&["events"][..], &["events", "--json"], &["state", "export"]] {
        all.push(scene.expect(Victim, &dir, words, 0)?);
    }
    // The error message about a missing program is included.
    all.push(scene.expect(
        Victim,
        &dir,
        &["run", "--new", "--dry-run", "--agent", hostile],
        2,
    )?);
    for said in all {
        control(said.contains("2J"), "the agent's text is not shown")?;
        let obeyed = |character: char| character.is_control() && !"\n\t".contains(character);
        must_not(said.contains(obeyed), "a control character was printed")?;
    }
    Ok(())
}
