//! Kills the runner with SIGKILL while its agent and the agent's children are busy. Checks that no process is left and that the
//! journal continues.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tachikoma_testkit::{drop_to_nobody, processes_with};

use crate::bench::sample::Sample;
use crate::product::{self, Ground, Live, await_that, text};

/// Time limit of all waits, which are much shorter even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Every other runner is killed during its start, each time this much later.
const LATER_BY: Duration = Duration::from_micros(500);

/// Script of an agent with children that are hard to find: in another session, without environment, or orphaned. MARK is in all
/// their command lines. It also starts short-lived children all the time.
const AGENT: &str = "
    env -i /bin/sh -c '/bin/sleep MARK; :' &
    setsid sh -c 'sleep MARK; :' &
    (setsid env -i /bin/sleep MARK &)
    (sleep MARK &)
    while :; do /bin/true MARK; done
";

/// Number of processes: the runner, the agent, two shells, and four sleeping processes.
const BUSY: usize = 8;

/// Kills runners that use a cgroup, which needs root rights.
pub fn with_cgroup(root: &Path, rounds: u32) -> Result<String, String> {
    let product = product::build(root)?;
    let ground = Ground::new(&product, &std::env::temp_dir())?;
    Soak {
        ground,
        containment: "cgroup",
        user: |command| command,
    }
    .rounds(rounds)
}

/// Kills runners without a cgroup, as a user who may not create one.
pub fn without_cgroup(root: &Path, rounds: u32) -> Result<String, String> {
    if !rustix::process::geteuid().is_root() {
        return Err("only root can become `nobody`, a user that cannot create a cgroup".into());
    }
    let product = product::build(root)?;
    let mut ground = Ground::new(&product, &std::env::temp_dir())?;
    ground.hand_to_nobody()?;
    Soak {
        ground,
        containment: "guard",
        user: drop_to_nobody,
    }
    .rounds(rounds)
}

/// A loop with a runner that is killed repeatedly.
struct Soak {
    ground: Ground,
    /// Containment of the processes that the journal must report.
    containment: &'static str,
    user: fn(&mut Command) -> &mut Command,
}

impl Soak {
    fn rounds(&self, rounds: u32) -> Result<String, String> {
        let mut times = Sample::default();
        let mut ended = 0;
        for round in 1..=rounds {
            let (found, took) = self
                .round(round)
                .map_err(|error| format!("round {round}: {error}"))?;
            ended += found;
            times.add(took.as_secs_f64() * 1e3);
        }
        Ok(format!(
            "{rounds} runners killed, {ended} processes of their agents gone after {:.1} ms (median, at most {:.1} ms), \
             {rounds} iterations without a gap",
            times.median(),
            times.max()
        ))
    }

    /// Kills one runner. Returns the number of its processes, and the time until all had ended.
    fn round(&self, round: u32) -> Result<(usize, Duration), String> {
        // The sleep duration is unique, so that its process can be identified, and longer than a day.
        let mark = format!("98765.{}{round:05}", std::process::id());
        let script = AGENT.replace("MARK", &mark);
        let limit = round.to_string();
        let run = ["run", "--quiet", "--max-iterations", &limit, "--"];
        let mut command = self.ground.tachikoma(&run);
        let runner = Live::start((self.user)(command.args(["sh", "-c", &script])))?;
        if round % 2 == 1 {
            await_that("the busy agent", PATIENCE, || {
                processes_with(&mark).len() >= BUSY
            })?;
            self.expect_containment()?;
        } else {
            thread::sleep(LATER_BY * round);
        }
        let guard = children_of(runner.pid());
        let busy = processes_with(&mark).len().saturating_sub(1);
        runner.kill()?;
        let killed = Instant::now();
        await_that("the end of all processes", PATIENCE, || {
            processes_with(&mark).is_empty() && !guard.iter().any(|pid| is_guard(*pid))
        })?;
        let took = killed.elapsed();
        self.go_on(round)?;
        Ok((busy, took))
    }

    fn expect_containment(&self) -> Result<(), String> {
        let status = self.ask(&["status", "--json"])?;
        let status: Value = serde_json::from_str(&status).map_err(|error| error.to_string())?;
        match status["runner"]["containment"].as_str() {
            Some(found) if found == self.containment => Ok(()),
            found => Err(format!(
                "this machine cannot show it: containment is {found:?}, and `{}` is needed",
                self.containment
            )),
        }
    }

    /// Checks that the next runner repeats the interrupted iteration and that the journal has no gap.
    fn go_on(&self, round: u32) -> Result<(), String> {
        let limit = round.to_string();
        let run = ["run", "--quiet", "--delay", "0s", "--max-iterations"];
        let mut command = self.ground.tachikoma(&run);
        command.args([&limit, "--", "sh", "-c", "true"]);
        let code = Live::start((self.user)(&mut command))?.wait(PATIENCE)?;
        if code != Some(3) {
            return Err(format!("the loop does not go on: exit code {code:?}"));
        }
        let last = last_iteration(&self.ask(&["events", "--json"])?)?;
        match last == u64::from(round) {
            true => Ok(()),
            false => Err(format!("the last iteration is {last}")),
        }
    }

    fn ask(&self, words: &[&str]) -> Result<String, String> {
        let mut command = self.ground.tachikoma(words);
        let asked = (self.user)(command.stdout(std::process::Stdio::piped()));
        let output = asked.output().map_err(text)?;
        if !output.status.success() {
            return Err(format!("{words:?} ended with {}", output.status));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

fn children_of(pid: u32) -> Vec<u32> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let list = list.unwrap_or_default();
    list.split_whitespace()
        .filter_map(|child| child.parse().ok())
        .collect()
}

/// Returns whether a process is a guard. Its process id may have been reused.
fn is_guard(pid: u32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.ends_with(b"\0guard\0"))
}

/// Returns the last iteration. Checks that no record is missing, and that iterations are consecutive or repeated.
fn last_iteration(records: &str) -> Result<u64, String> {
    let (mut seq, mut iteration, mut attempt) = (0, 0, 0);
    for line in records.lines() {
        let record: Value =
            serde_json::from_str(line).map_err(|error| format!("a bad record: {error}"))?;
        if record["seq"] != seq + 1 {
            return Err(format!("record {} follows record {seq}", record["seq"]));
        }
        seq += 1;
        let event = &record["event"];
        if event["type"] != "iteration_started" {
            continue;
        }
        let found = (&event["iteration"], &event["attempt"]);
        let again = *found.0 == iteration && *found.1 == attempt + 1;
        let next = *found.0 == iteration + 1 && *found.1 == 1;
        if !again && !next {
            return Err(format!(
                "attempt {} of iteration {} follows attempt {attempt} of iteration {iteration}",
                found.1, found.0
            ));
        }
        (iteration, attempt) = match next {
            true => (iteration + 1, 1),
            false => (iteration, attempt + 1),
        };
    }
    Ok(iteration)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(starts: &[(u64, u64)]) -> String {
        let mut text = String::from("{\"seq\":1,\"event\":{\"type\":\"started\"}}\n");
        for (index, (iteration, attempt)) in starts.iter().enumerate() {
            text += &format!(
                "{{\"seq\":{},\"event\":{{\"type\":\"iteration_started\",\"iteration\":{iteration},\"attempt\":{attempt}}}}}\n",
                index + 2
            );
        }
        text
    }

    #[test]
    fn iterations_follow_each_other_or_are_repeated() {
        assert_eq!(last_iteration(&records(&[(1, 1), (1, 2), (2, 1)])), Ok(2));
        assert_eq!(last_iteration(""), Ok(0));
        assert_eq!(
            last_iteration(&records(&[(1, 1), (3, 1)])),
            Err("attempt 1 of iteration 3 follows attempt 1 of iteration 1".to_owned())
        );
        assert_eq!(
            last_iteration(&records(&[(1, 1), (1, 1)])),
            Err("attempt 1 of iteration 1 follows attempt 1 of iteration 1".to_owned())
        );
    }

    #[test]
    fn last_iteration_reports_a_missing_record() {
        let gap = records(&[(1, 1), (2, 1)]).replace("\"seq\":3", "\"seq\":4");
        assert_eq!(
            last_iteration(&gap),
            Err("record 4 follows record 2".to_owned())
        );
    }
}
