//! Attacks by programs that come from a clone: in its configuration, or in the state of a loop.

use std::path::Path;

use super::scene::{
    PATIENCE, STOPPED, Scene,
    User::{Attacker, Victim},
};
use super::{Failure, control, must_not};

/// A configuration with a program that creates a file when it runs.
const HOSTILE: &str = "\
[agent]
name = 'demo'
[[hook]]
on = 'loop_start'
command = 'touch hacked'
[[hook]]
on = 'loop_end'
command = 'touch hacked'
";

/// Reports the attack as not held if the attacker's program has run.
fn must_not_have_run(dir: &Path) -> Result<(), Failure> {
    let ran = dir.join("hacked").exists();
    must_not(ran, "a program of the attacker ran as the victim")
}

/// Control check: the attacker's program runs if the victim allows it.
fn runs_if_allowed(scene: &Scene, dir: &Path, words: &[&str]) -> Result<(), Failure> {
    let (_, said) = scene.run(Victim, dir, words)?;
    let ran = dir.join("hacked").exists();
    control(ran, &format!("the program runs if it is allowed: {said}"))
}

pub fn cloned_configuration(scene: &Scene) -> Result<(), Failure> {
    let dir = scene.work(Victim);
    scene.write(Victim, &dir.join("prompt.md"), "go\n")?;
    scene.write(Victim, &dir.join("tachikoma.toml"), HOSTILE)?;
    for words in [&["run"][..], &["run", "--detach"]] {
        scene.must_refuse(Victim, &dir, words)?;
    }
    for words in [&["run", "--dry-run"][..], &["config", "show"]] {
        scene.expect(Victim, &dir, words, 0)?;
    }
    must_not_have_run(&dir)?;
    runs_if_allowed(scene, &dir, &["run", "--trust"])
}

pub fn agent_trusts(scene: &Scene) -> Result<(), Failure> {
    let dir = scene.work(Victim);
    scene.write(Victim, &dir.join("hostile.toml"), HOSTILE)?;
    let binary = scene.binary();
    let binary = binary.display();
    let agent = format!(
        "cp hostile.toml tachikoma.toml; {binary} trust; env -i HOME=$HOME {binary} trust; \
         setsid env -i HOME=$HOME sh -c '{binary} trust; touch tried' & while [ ! -e tried ]; do sleep 0.05; done"
    );
    scene.iterate(Victim, &dir, &agent)?;
    control(dir.join("tried").exists(), "the agent has tried")?;
    let again = ["run", "--max-iterations", "2"];
    scene.must_refuse(Victim, &dir, &again)?;
    must_not_have_run(&dir)?;
    scene.expect(Victim, &dir, &["trust"], 0)?;
    runs_if_allowed(scene, &dir, &again)
}

pub fn edited_configuration(scene: &Scene) -> Result<(), Failure> {
    let dir = scene.work(Victim);
    let live = scene.busy(Victim, &dir, "true")?;
    scene.write(Victim, &dir.join("tachikoma.toml"), HOSTILE)?;
    let (reloaded, said) = scene.run(Victim, &dir, &["reload"])?;
    must_not(
        reloaded != Some(1),
        &format!("the settings are taken over: {said}"),
    )?;
    scene.expect(Victim, &dir, &["stop", "--now"], 0)?;
    let code = live.wait(PATIENCE)?;
    control(code == Some(STOPPED), "the loop has run to its end")?;
    must_not_have_run(&dir)?;
    runs_if_allowed(
        scene,
        &dir,
        &["run", "--new", "--trust", "--prompt-text", "go"],
    )
}

/// Runs a loop of the attacker, so that its state names a program.
fn hostile_loop(scene: &Scene) -> Result<(), String> {
    let made = scene.iterate(Attacker, &scene.work(Attacker), "touch hacked");
    made.map(drop)
}

/// Tries to resume a loop of the attacker, first without and then with the victim's consent.
fn must_refuse_to_go_on(scene: &Scene, dir: &Path) -> Result<(), Failure> {
    let go_on = ["run", "--max-iterations", "3"];
    for words in [&go_on[..], &["run", "--detach"]] {
        scene.must_refuse(Victim, dir, words)?;
    }
    must_not_have_run(dir)?;
    scene.expect(Victim, dir, &["trust"], 0)?;
    runs_if_allowed(scene, dir, &go_on)
}

pub fn planted_loop(scene: &Scene) -> Result<(), Failure> {
    hostile_loop(scene)?;
    let dir = scene.work(Victim);
    let planted = scene.work(Attacker).join(".ralph");
    scene.copy(Victim, &planted, &dir.join(".ralph"))?;
    must_refuse_to_go_on(scene, &dir)
}

pub fn planted_program(scene: &Scene) -> Result<(), Failure> {
    let (dir, theirs) = (scene.work(Victim), scene.work(Attacker));
    scene.iterate(Victim, &dir, "true")?;
    scene.copy(Attacker, &dir.join(".ralph"), &theirs.join(".ralph"))?;
    let take_over = [
        "run",
        "--trust",
        "--max-iterations",
        "2",
        "--",
        "touch",
        "hacked",
    ];
    scene.expect(Attacker, &theirs, &take_over, 3)?;
    std::fs::remove_dir_all(dir.join(".ralph")).map_err(|error| error.to_string())?;
    scene.copy(Victim, &theirs.join(".ralph"), &dir.join(".ralph"))?;
    must_refuse_to_go_on(scene, &dir)
}

pub fn second_loop(scene: &Scene) -> Result<(), Failure> {
    let dir = scene.work(Victim);
    scene.iterate(Victim, &dir, "true")?;
    hostile_loop(scene)?;
    let planted = std::fs::read_dir(scene.work(Attacker).join(".ralph/loops"));
    let planted = planted.map_err(|error| error.to_string())?.flatten().next();
    let planted = planted.ok_or("the attacker has no loop")?;
    let to = dir.join(".ralph/loops").join(planted.file_name());
    scene.copy(Victim, &planted.path(), &to)?;
    must_refuse_to_go_on(scene, &dir)
}

pub fn tracked_loop(scene: &Scene) -> Result<(), Failure> {
    hostile_loop(scene)?;
    let (home, theirs) = (scene.home(Victim), scene.work(Attacker));
    let bundle = scene.shared().join("repository.bundle");
    let commit = format!(
        "git init -q; git add --force .ralph; git -c user.name=a -c user.email=a@b commit -qm a; git bundle create -q {} HEAD",
        bundle.display()
    );
    scene.shell(Attacker, &theirs, &commit)?;
    let clone = format!(
        "git clone -q {} clone; git config --global user.name v; git config --global user.email v@w",
        bundle.display()
    );
    scene.shell(Victim, &home, &clone)?;
    let dir = home.join("clone");
    let go_on = ["run", "--max-iterations", "2"];
    scene.must_refuse(Victim, &dir, &go_on)?;
    scene.must_refuse(Victim, &dir, &["run", "--trust", "--max-iterations", "2"])?;
    must_not_have_run(&dir)?;
    scene.shell(
        Victim,
        &dir,
        "git rm -rq --cached .ralph; git commit -qm untracked",
    )?;
    scene.expect(Victim, &dir, &["trust"], 0)?;
    runs_if_allowed(scene, &dir, &go_on)
}
