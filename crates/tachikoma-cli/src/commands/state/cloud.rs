//! `--from URL`: lists and downloads remote backups, and uploads a backup.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;
use tachikoma_core::LoopId;
use tachikoma_loop_runner::cloud::{self, Cloud, Copied, SendError};
use tachikoma_loop_runner::offline::StoreConfig;
use tachikoma_loop_runner::store::{StoreError, backup, loops};

use crate::args::FromArgs;
use crate::failure::{Failure, chain};
use crate::out;
use crate::runtime::runtime;
use crate::sanitize::sanitize;
use crate::workspace::Workspace;

/// A downloaded backup. The file is deleted when this value is dropped.
#[derive(Debug)]
pub struct Fetched {
    pub path: PathBuf,
    /// If this backup has no work tree: the name of the newest remote backup of the loop that has one.
    pub with_work: Option<String>,
    /// Directories that were created for the download. They are removed with the file, unless they contain other files.
    made: Vec<PathBuf>,
}

impl Fetched {
    fn at(path: PathBuf, made: &[PathBuf]) -> Self {
        Self {
            path,
            with_work: None,
            made: made.to_vec(),
        }
    }
}

impl Drop for Fetched {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        remove_empty(&self.made);
    }
}

/// Returns the missing directories of a path, innermost first.
fn missing(dir: &Path) -> Vec<PathBuf> {
    let above = dir.ancestors().take_while(|dir| !dir.exists());
    above.map(Path::to_owned).collect()
}

fn remove_empty(dirs: &[PathBuf]) {
    for dir in dirs {
        // The removal fails if the directory has other files, which is intended.
        let _ = std::fs::remove_dir(dir);
    }
}

/// Uploads a backup.
pub fn send(cloud: &Cloud, path: &Path, has_work: bool) -> Result<(), Failure> {
    let sent = runtime()?.block_on(cloud.send(path, has_work));
    let sent = sent.map_err(|error| {
        let what = match &error {
            SendError::Gone => "the backup no longer exists".to_owned(),
            SendError::Cloud(error) => chain(error),
        };
        failed(
            cloud,
            &format!("the backup was taken but not uploaded: {what}"),
        )
    })?;
    if let Err(error) = runtime()?.block_on(cloud.prune(&sent)) {
        let what = format!(
            "warning: older remote backups were not deleted: {}",
            chain(&error)
        );
        out::note(&sanitize(&what));
    }
    let done = if sent.was_there {
        "is already in"
    } else {
        "was uploaded to"
    };
    let what = if has_work {
        ""
    } else {
        "; it does not contain the work tree"
    };
    let note = format!("note: the backup {done} {}{what}", cloud.url);
    out::note(&sanitize(&note));
    Ok(())
}

/// Lists the remote backups of a store.
pub fn list(workspace: &Workspace, url: &str, json: bool) -> Result<ExitCode, Failure> {
    let copies = copies(&opened(workspace, url)?, None)?;
    if json {
        let object = |copied: &Copied| {
            json!({
                "name": copied.name(), "object": copied.object(), "bytes": copied.bytes, "loop_id": copied.loop_id(),
                "seq": copied.seq(), "taken_at": copied.taken_at(), "sha256_begins": copied.digest,
                "has_work": copied.has_work,
            })
        };
        let objects: Vec<_> = copies.iter().map(object).collect();
        out::line(&format!("{:#}", json!({"from": url, "backups": objects})));
        return Ok(ExitCode::SUCCESS);
    }
    for copied in &copies {
        let (name, seq, taken_at) = (copied.name(), copied.seq(), copied.taken_at());
        let bytes = copied.bytes;
        let work = if copied.has_work { "with" } else { "without" };
        let text =
            format!("{name}: record {seq}, taken at {taken_at}, {bytes} bytes, {work} a work tree");
        out::line(&sanitize(&text));
    }
    if copies.is_empty() {
        out::line(&sanitize(&format!("no backup in {url}")));
    }
    Ok(ExitCode::SUCCESS)
}

fn opened(workspace: &Workspace, url: &str) -> Result<Cloud, Failure> {
    cloud::check(url).map_err(|error| Failure::usage(format!("--from: {error}")))?;
    Ok(Cloud {
        url: url.to_owned(),
        cloud_environment: workspace.cloud_environment(),
        max: 0,
    })
}

fn copies(cloud: &Cloud, of: Option<LoopId>) -> Result<Vec<Copied>, Failure> {
    let listed = runtime()?.block_on(cloud.list(of));
    listed.map_err(|error| failed(cloud, &chain(&error)))
}

fn failed(cloud: &Cloud, what: &str) -> Failure {
    let hint = match cloud.is_directory() {
        true => "the directory must exist and be writable: is the disk mounted?",
        false => {
            "the server is the one of AWS_ENDPOINT_URL, or Amazon's, without TLS only with AWS_ALLOW_HTTP=true; the bucket has to be there; \
             credentials come from the environment (AWS_...) or `~/.aws/credentials`"
        }
    };
    Failure::new(sanitize(what).into_owned()).hint(hint)
}

/// Downloads a valid remote backup: the one with the given name, or the newest of a loop.
pub fn fetch(
    workspace: &Workspace,
    store_config: &StoreConfig,
    from: &FromArgs,
    name: Option<&Path>,
) -> Result<Option<Fetched>, Failure> {
    let Some(url) = &from.from else {
        return Ok(None);
    };
    let cloud = opened(workspace, url)?;
    let candidates = match name.map(Path::to_string_lossy) {
        Some(name) => {
            let mut copies = copies(&cloud, None)?;
            copies.retain(|copied| copied.name() == name || copied.object() == name);
            copies
        }
        None => {
            let wanted = match &from.of_loop {
                Some(name) => Some(name.parse().map_err(|error| {
                    Failure::usage(format!("--loop: {error}"))
                        .hint("`tachikoma state backups --from URL` lists the remote backups")
                })?),
                None => loops::current(
                    &store_config.working_dir,
                    &store_config.snapshot,
                    &store_config.encryption,
                )?,
            };
            let copies = copies(&cloud, wanted)?;
            only_one_loop(&copies)?;
            copies
        }
    };
    let dir = &store_config.backups.dir;
    let made = missing(dir);
    for copied in &candidates {
        let fetched = runtime()?.block_on(cloud.fetch(copied, dir));
        let why = match fetched.map(|path| Fetched::at(path, &made)) {
            Ok(fetched) => match backup::read_through(&fetched.path, &store_config.encryption) {
                Ok(_) => {
                    let mut fetched = named(fetched, dir, copied, &made);
                    if !copied.has_work {
                        fetched.with_work = newest_with_work(&cloud, copied)?;
                    }
                    return Ok(Some(fetched));
                }
                // The backup is not damaged, but its key is missing.
                Err(StoreError::Locked { action, why, .. }) => {
                    let path = Path::new(url).join(copied.object());
                    return Err(StoreError::Locked { action, path, why }.into());
                }
                Err(error) => with_remote_name(&chain(&error), &fetched.path, copied),
            },
            Err(error) => {
                remove_empty(&made);
                chain(&error)
            }
        };
        out::note(&sanitize(&format!(
            "note: skipped {}: {why}",
            copied.name()
        )));
    }
    let what = format!("no good backup of that name or loop in {url}");
    Err(Failure::new(sanitize(&what).into_owned())
        .hint("`tachikoma state backups --from URL` lists the remote backups"))
}

/// Renames a downloaded file to the name of its backup. If a file with that name exists, the download keeps its own name.
fn named(fetched: Fetched, dir: &Path, copied: &Copied, made: &[PathBuf]) -> Fetched {
    let path = dir.join(copied.name());
    match std::fs::hard_link(&fetched.path, &path) {
        // Dropping the old value deletes the temporary file.
        Ok(()) => Fetched::at(path, made),
        Err(_) => fetched,
    }
}

/// Returns a message about a remote backup, with the backup's name instead of the local file name.
fn with_remote_name(what: &str, path: &Path, copied: &Copied) -> String {
    what.replace(&path.display().to_string(), &copied.object())
}

/// Returns the name of the newest remote backup of the same loop that has a work tree.
fn newest_with_work(cloud: &Cloud, copied: &Copied) -> Result<Option<String>, Failure> {
    let copies = copies(cloud, Some(copied.loop_id()))?;
    let found = copies.iter().find(|copied| copied.has_work);
    Ok(found.map(Copied::name))
}

/// Fails if the store has backups of several loops, because the user has to choose one.
fn only_one_loop(copies: &[Copied]) -> Result<(), Failure> {
    let mut loops: Vec<LoopId> = copies.iter().map(Copied::loop_id).collect();
    loops.sort();
    loops.dedup();
    if loops.len() < 2 {
        return Ok(());
    }
    let names: Vec<String> = loops.iter().map(LoopId::to_string).collect();
    let what = format!(
        "there are backups of {} loops: {}",
        names.len(),
        names.join(", ")
    );
    Err(Failure::usage(what).hint("name one with `--loop`"))
}
