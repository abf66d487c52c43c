//! Kills the server of an agent with SIGKILL at random times while a loop runs. No iteration is lost or repeated, no prompt is in
//! the conversation twice, and no tool of a dead server continues.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tachikoma_testkit::processes_with;

use super::audit::Books;
use super::dice::Dice;
use crate::cargo;
use crate::check::succeeds;
use crate::product::{self, Ground, Live, await_that, text};

/// Maximum time until a server is killed: long enough for its start and some turns.
const LIFE: Duration = Duration::from_millis(400);

/// Time limit of all waits, which are much shorter even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Number of tool calls for each prompt. Each takes a moment.
const TOOLS: u32 = 2;

pub fn run(root: &Path, rounds: u32) -> Result<String, String> {
    let product = product::build(root)?;
    let mut build = cargo(root);
    build.args(["build", "--quiet", "--release"]).args([
        "--package",
        "tachikoma-testkit",
        "--bin",
        "fake-opencode",
    ]);
    succeeds(&mut build)?;
    let soak = Soak::new(&product)?;
    let mut dice = Dice::shaken();
    let mut runner = soak.start()?;
    let mut generation = 0;
    for kill in 1..=rounds {
        let failed = |error: String| format!("kill {kill}: {error}");
        generation = soak
            .kill_after(generation, dice.moment(LIFE))
            .map_err(failed)?;
        if runner.has_ended() {
            return Err(failed(format!("the loop ended: {}", soak.stderr())));
        }
    }
    // One more turn runs, so that the turn of the last kill is resumed.
    let ended = soak.ended()?.len();
    await_that("one more turn", PATIENCE, || {
        soak.ended().is_ok_and(|now| now.len() > ended)
    })?;
    soak.ground.stop(runner)?;
    soak.audit(rounds)
}

struct Soak {
    ground: Ground,
    fake: String,
    /// Text in the command line of every tool.
    mark: String,
}

impl Soak {
    fn new(product: &Path) -> Result<Self, String> {
        let ground = Ground::new(product, &std::env::temp_dir())?;
        let fake = product.with_file_name("fake-opencode");
        let fake = fake.to_string_lossy().into_owned();
        let mark = tachikoma_testkit::unique();
        let turn =
            json!({"tools": TOOLS, "command": format!(": {mark}; sleep 0.02"), "tokens": 5000});
        let script = json!({"turn": turn}).to_string();
        fs::write(ground.path().join("script.json"), script).map_err(text)?;
        Ok(Self { ground, fake, mark })
    }

    fn start(&self) -> Result<Live, String> {
        let words = [
            "run",
            "--agent",
            "opencode",
            "--delay",
            "0s",
            "--max-iterations",
            "0",
        ];
        let stderr = fs::File::create(self.ground.path().join("stderr")).map_err(text)?;
        let mut command = self.ground.tachikoma(&words);
        command
            .env("TACHIKOMA_OPENCODE__SERVE_COMMAND", &self.fake)
            .env("TACHIKOMA_OPENCODE__RESTART_DELAY_MS", "0")
            .env("TACHIKOMA_OPENCODE__MAX_RESTART_ATTEMPTS", "0")
            .env(
                "FAKE_OPENCODE_SCRIPT",
                self.ground.path().join("script.json"),
            )
            .env("FAKE_OPENCODE_STATE", self.ground.path().join("fake"))
            .stderr(Stdio::from(stderr));
        Live::start(&mut command)
    }

    fn stderr(&self) -> String {
        fs::read_to_string(self.ground.path().join("stderr")).unwrap_or_default()
    }

    fn server(&self) -> Option<(u64, Pid)> {
        let path = self.ground.path().join(".ralph/opencode-agent/server.json");
        let file: Value = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        let pid = i32::try_from(file["pid"].as_i64()?).ok()?;
        Some((file["generation"].as_u64()?, Pid::from_raw(pid)?))
    }

    /// Kills the next running server after the time `life`. Returns its number.
    fn kill_after(&self, last: u64, life: Duration) -> Result<u64, String> {
        let mut next = None;
        await_that("the next server", PATIENCE, || {
            next = self.server().filter(|(generation, _)| *generation > last);
            next.is_some()
        })
        .map_err(|error| format!("{error}; {}", self.stderr()))?;
        thread::sleep(life);
        let (generation, pid) = next.ok_or("no server")?;
        // Only this test ends servers, so the process is still the same one.
        let _ = kill_process(pid, Signal::KILL);
        Ok(generation)
    }

    fn turns(&self, what: &str) -> Result<Vec<String>, String> {
        let lines =
            fs::read_to_string(self.ground.path().join("fake/turns.jsonl")).unwrap_or_default();
        let lines = lines
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let turns = lines.filter(|turn| turn["what"] == what);
        Ok(turns.map(|turn| turn["prompt"].to_string()).collect())
    }

    fn ended(&self) -> Result<Vec<String>, String> {
        self.turns("ended")
    }

    fn audit(&self, rounds: u32) -> Result<String, String> {
        await_that("the end of every tool", PATIENCE, || {
            processes_with(&self.mark).is_empty()
        })?;
        let books = Books::read(self.ground.path())?.ok_or("no loop")?;
        let stats = books.state.stats;
        if stats.failed > 0 {
            return Err(format!("{} iterations failed", stats.failed));
        }
        let ended = self.ended()?;
        let mut times: BTreeMap<&String, u32> = BTreeMap::new();
        for prompt in &ended {
            *times.entry(prompt).or_default() += 1;
        }
        if let Some((prompt, times)) = times.iter().find(|(_, times)| **times > 1) {
            return Err(format!("{prompt} was done {times} times"));
        }
        let kept = fs::read(self.ground.path().join("fake/conversations.json")).map_err(text)?;
        let kept: Value = serde_json::from_slice(&kept).map_err(|error| error.to_string())?;
        let conversations = kept["conversations"]
            .as_object()
            .ok_or("no conversations")?;
        if conversations.len() != 1 {
            return Err(format!("{} conversations", conversations.len()));
        }
        let messages = conversations
            .values()
            .flat_map(|c| c.as_array().into_iter().flatten());
        let iterations: Vec<u64> = messages
            .filter(|message| message["info"]["role"] == "user")
            .filter_map(|message| {
                message["parts"][0]["metadata"]["tachikoma"]["iteration"].as_u64()
            })
            .collect();
        let different: BTreeSet<&u64> = iterations.iter().collect();
        if different.len() != iterations.len() {
            return Err("an iteration's prompt is in the conversation twice".into());
        }
        // The stop interrupted the last iteration.
        let succeeded = u64::from(stats.successful);
        if !(succeeded..=succeeded + 1).contains(&(iterations.len() as u64)) {
            return Err(format!(
                "{} prompts for {succeeded} iterations",
                iterations.len()
            ));
        }
        let cut = books.attempts() - u64::from(stats.iterations);
        Ok(format!(
            "{rounds} servers killed, {succeeded} iterations each done once in one conversation, {cut} attempts cut and repeated"
        ))
    }
}
