//! Reads the objectives of a file and runs stop scripts after an iteration, all at the same time.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tachikoma_core::{Answers, Exit, Objectives, ObjectivesSeen, ScriptResult, ScriptVerdict};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::{SCRIPT_TIMEOUT, Scene};
use crate::clock;
use crate::prompt;
use crate::shell::{CommandOutput, Ended, Failure, Job, Limit, Shell, TaskCommand};
use crate::task::words_of;

/// Maximum size of the file with the objectives. People write this file, so a larger one is a mistake.
const OBJECTIVES_BYTES_MAX: u64 = 1 << 20;

/// Timeout for reading the objectives. Even a slow disk reads a megabyte faster.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of threads that read objectives at the same time, for all loops of a process. Reading may hang on a broken disk.
const READERS_MAX: usize = 4;

/// Maximum size of the output of a script that is kept. Only its last line is recorded.
const OUTPUT_BYTES_MAX: usize = 1 << 10;

/// Size of the queue of task commands (suspend, resume, cancel) to one stop script.
const ORDERS_MAX: usize = 8;

/// The objectives to read and the scripts to run.
#[derive(Debug)]
pub(crate) struct Questions {
    /// Path of the file with the objectives; `None` if none is configured.
    pub objectives: Option<PathBuf>,
    /// Paths of the scripts. Each has its own shell, so that scripts do not wait for each other.
    pub scripts: Vec<(PathBuf, Shell)>,
    pub scene: Scene,
}

impl Questions {
    pub async fn ask(self, orders: mpsc::Receiver<TaskCommand>) -> Answers {
        let objectives = match self.objectives {
            Some(path) => Some(read(path).await),
            None => None,
        };
        let scripts = ask_all(self.scripts, &self.scene, orders).await;
        Answers {
            objectives,
            scripts,
        }
    }
}

/// Reads the objectives on a separate thread. If the disk hangs, neither the loop nor its end waits for that thread.
async fn read(path: PathBuf) -> ObjectivesSeen {
    static READING: AtomicUsize = AtomicUsize::new(0);
    let shown = path.display().to_string();
    let unknown = |why: &str| ObjectivesSeen::Unknown {
        reason: format!("read {shown}: {why}"),
    };
    if READING.fetch_add(1, Ordering::Relaxed) >= READERS_MAX {
        READING.fetch_sub(1, Ordering::Relaxed);
        return unknown("earlier reads of it have not ended");
    }
    let (tell, commands) = oneshot::channel();
    let work = move || {
        // The send fails if the receiver was dropped, which does not matter.
        let _ = tell.send(read_now(&path));
        READING.fetch_sub(1, Ordering::Relaxed);
    };
    let thread = std::thread::Builder::new().name("objectives".to_owned());
    if let Err(error) = thread.spawn(work) {
        READING.fetch_sub(1, Ordering::Relaxed);
        return unknown(&error.to_string());
    }
    match tokio::time::timeout(READ_TIMEOUT, commands).await {
        Ok(Ok(seen)) => seen,
        Ok(Err(_)) => unknown("its reader ended without an answer"),
        Err(_) => unknown("it did not end in time"),
    }
}

fn read_now(path: &Path) -> ObjectivesSeen {
    let shown = path.display();
    match prompt::read_bounded(path, OBJECTIVES_BYTES_MAX) {
        Ok(bytes) if bytes.len() as u64 > OBJECTIVES_BYTES_MAX => ObjectivesSeen::Unknown {
            reason: format!("{shown} has more than {OBJECTIVES_BYTES_MAX} bytes"),
        },
        Ok(bytes) => ObjectivesSeen::Read {
            objectives: Objectives::read(&String::from_utf8_lossy(&bytes)),
        },
        Err(error) => ObjectivesSeen::Unknown {
            reason: format!("read {shown}: {error}"),
        },
    }
}

/// Runs all scripts at the same time, and passes commands such as "suspend" on to them.
async fn ask_all(
    scripts: Vec<(PathBuf, Shell)>,
    scene: &Scene,
    mut orders: mpsc::Receiver<TaskCommand>,
) -> Vec<ScriptResult> {
    let paths: Vec<&Path> = scripts.iter().map(|(path, _)| path.as_path()).collect();
    let names = names(&paths, &scene.working_dir);
    let mut asked = JoinSet::new();
    let mut commands = Vec::new();
    for (place, ((path, shell), name)) in scripts.into_iter().zip(names.clone()).enumerate() {
        let (tell, ordered) = mpsc::channel(ORDERS_MAX);
        commands.push(tell);
        let scene = scene.clone();
        asked.spawn(async move { (place, ask_one(name, path, shell, &scene, ordered).await) });
    }
    let mut results: Vec<Option<ScriptResult>> = vec![None; names.len()];
    let mut panic = None;
    loop {
        tokio::select! {
            biased;
            order = orders.recv(), if !commands.is_empty() => match order {
                Some(TaskCommand::Suspend(done)) => suspend(&commands, done).await,
                Some(TaskCommand::Resume) => commands.iter().for_each(|tell| drop(tell.try_send(TaskCommand::Resume))),
                // Dropping the senders cancels all scripts.
                Some(TaskCommand::Cancel) | None => commands.clear(),
            },
            ended = asked.join_next() => match ended {
                None => break,
                Some(Ok((place, result))) => {
                    if let Some(slot) = results.get_mut(place) {
                        *slot = Some(result);
                    }
                }
                Some(Err(error)) => {
                    panic = Some(match error.try_into_panic() {
                        Ok(payload) => words_of(payload.as_ref()).to_owned(),
                        Err(error) => error.to_string(),
                    });
                }
            },
        }
    }
    let unanswered = |name: String| ScriptResult {
        name,
        duration_ms: 0,
        verdict: ScriptVerdict::Unclear {
            problem: panic
                .clone()
                .unwrap_or_else(|| "it did not answer".to_owned()),
        },
        words: None,
    };
    let results = results.into_iter().zip(names);
    results
        .map(|(result, name)| result.unwrap_or_else(|| unanswered(name)))
        .collect()
}

async fn suspend(commands: &[mpsc::Sender<TaskCommand>], done: oneshot::Sender<()>) {
    let mut stopped = Vec::new();
    for tell in commands {
        let (each, is_done) = oneshot::channel();
        // Sending fails if a script has ended, which then need not be suspended.
        if tell.try_send(TaskCommand::Suspend(each)).is_ok() {
            stopped.push(is_done);
        }
    }
    for is_done in stopped {
        let _ = is_done.await;
    }
    // The send fails if the caller was dropped, which does not matter.
    let _ = done.send(());
}

async fn ask_one(
    name: String,
    path: PathBuf,
    mut shell: Shell,
    scene: &Scene,
    mut orders: mpsc::Receiver<TaskCommand>,
) -> ScriptResult {
    let began = clock::monotonic();
    let job = Job {
        program: path.into(),
        args: Vec::new(),
        env: scene.variables(),
        working_dir: scene.working_dir.clone(),
        input: serde_json::to_vec(&scene.context).unwrap_or_default(),
        limit: Limit::new(SCRIPT_TIMEOUT),
        output: CommandOutput::tail_only(OUTPUT_BYTES_MAX),
    };
    let ended = shell.run(job, &mut orders).await;
    shell.close().await;
    ScriptResult {
        name,
        duration_ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
        words: ended.last_words.clone(),
        verdict: verdict(ended),
    }
}

fn verdict(ended: Ended) -> ScriptVerdict {
    match (ended.exit, ended.failure) {
        (Some(Exit::Code(0)), None) => ScriptVerdict::GoOn,
        (Some(Exit::Code(10)), Some(Failure::Failed(_))) => ScriptVerdict::Claim,
        (Some(Exit::Code(11)), Some(Failure::Failed(_))) => ScriptVerdict::Stop,
        (_, failure) => ScriptVerdict::Unclear {
            problem: failure.map_or_else(
                || "it ended without an answer".to_owned(),
                |failure| failure.describe(SCRIPT_TIMEOUT),
            ),
        },
    }
}

/// Returns the names of scripts in records: their file names, or their paths from the working directory where two have the same name.
fn names(paths: &[&Path], working_dir: &Path) -> Vec<String> {
    let short = |path: &&Path| path.file_name().unwrap_or(path.as_os_str()).to_owned();
    let name = |path: &&Path| {
        let name = short(path);
        let alone = paths.iter().filter(|other| short(other) == name).count() == 1;
        let below = path.strip_prefix(working_dir).unwrap_or(path);
        let name = if alone { name } else { below.into() };
        name.to_string_lossy().into_owned()
    };
    paths.iter().map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_with_the_same_name_are_named_by_their_paths() {
        let paths = [
            "/w/a/stop.sh",
            "/w/b/stop.sh",
            "/w/b/other.sh",
            "/else/stop.sh",
        ];
        let named = names(&paths.map(Path::new), Path::new("/w"));
        assert_eq!(
            named,
            ["a/stop.sh", "b/stop.sh", "other.sh", "/else/stop.sh"]
        );
    }
}
