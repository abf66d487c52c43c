//! `--from URL`: copies of backups in an object store, listed and brought here; and one more sent there.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;
use tachikoma_core::LoopId;
use tachikoma_loop_runner::cloud::{self, Cloud, Copied, SendError};
use tachikoma_loop_runner::offline::Premises;
use tachikoma_loop_runner::store::{StoreError, backup, loops};

use crate::args::FromArgs;
use crate::commands::runtime;
use crate::failure::{Failure, chain};
use crate::out;
use crate::place::Place;
use crate::sanitise::sanitise;

/// A copy that was brought here, for as long as it is needed.
#[derive(Debug)]
pub struct Fetched {
    pub path: PathBuf,
}

impl Drop for Fetched {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Sends a backup that was taken.
pub fn send(cloud: &Cloud, path: &Path) -> Result<(), Failure> {
    let sent = runtime()?.block_on(cloud.send(path));
    let sent = sent.map_err(|error| {
        let what = match &error {
            SendError::Gone => "the backup is not there any more".to_owned(),
            SendError::Cloud(error) => chain(error),
        };
        failed(
            cloud,
            &format!("the backup is taken, and not copied: {what}"),
        )
    })?;
    if let Some(error) = sent.unpruned {
        let what = format!("warning: older copies stay: {}", chain(&error));
        out::note(&sanitise(&what));
    }
    let word = if sent.was_there { "was" } else { "is" };
    out::note(&sanitise(&format!("note: a copy {word} in {}", cloud.url)));
    Ok(())
}

/// Lists the copies in a store.
pub fn list(place: &Place, url: &str, json: bool) -> Result<ExitCode, Failure> {
    let copies = copies(&opened(place, url)?, None)?;
    if json {
        let object = |copied: &Copied| {
            json!({
                "name": copied.name(), "object": copied.object(), "bytes": copied.bytes, "loop_id": copied.loop_id(),
                "seq": copied.seq(), "taken_at": copied.taken_at(), "sha256_begins": copied.digest,
            })
        };
        let objects: Vec<_> = copies.iter().map(object).collect();
        out::line(&format!("{:#}", json!({"from": url, "backups": objects})));
        return Ok(ExitCode::SUCCESS);
    }
    for copied in &copies {
        let (name, seq, taken_at) = (copied.name(), copied.seq(), copied.taken_at());
        let bytes = copied.bytes;
        let text = format!("{name}: record {seq}, taken at {taken_at}, {bytes} bytes");
        out::line(&sanitise(&text));
    }
    if copies.is_empty() {
        out::line(&sanitise(&format!("no backup in {url}")));
    }
    Ok(ExitCode::SUCCESS)
}

fn opened(place: &Place, url: &str) -> Result<Cloud, Failure> {
    cloud::check(url).map_err(|error| Failure::usage(format!("--from: {error}")))?;
    Ok(Cloud {
        url: url.to_owned(),
        surroundings: place.surroundings(),
        max: 0,
    })
}

fn copies(cloud: &Cloud, of: Option<LoopId>) -> Result<Vec<Copied>, Failure> {
    let listed = runtime()?.block_on(cloud.list(of));
    listed.map_err(|error| failed(cloud, &chain(&error)))
}

fn failed(cloud: &Cloud, what: &str) -> Failure {
    let hint = match cloud.url.starts_with("file:") {
        true => "the directory must be there, and is not made: is its disk mounted?",
        false => {
            "credentials come from the environment (AWS_...) or `~/.aws/credentials`; see docs/backups.md"
        }
    };
    Failure::new(sanitise(what).into_owned()).hint(hint)
}

/// Brings a copy here that is good: the one of a name, or the newest of a loop.
pub fn fetch(
    place: &Place,
    premises: &Premises,
    from: &FromArgs,
    name: Option<&Path>,
) -> Result<Option<Fetched>, Failure> {
    let Some(url) = &from.from else {
        return Ok(None);
    };
    let cloud = opened(place, url)?;
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
                        .hint("`tachikoma state backups --from URL` lists what is there")
                })?),
                None => loops::current(&premises.working_dir, &premises.snapshot, &premises.vault)?,
            };
            let copies = copies(&cloud, wanted)?;
            only_one_loop(&copies)?;
            copies
        }
    };
    for copied in &candidates {
        let fetched = runtime()?.block_on(cloud.fetch(copied, &premises.backups.dir));
        let fetched = fetched.map(|path| Fetched { path });
        let why = match fetched {
            Ok(fetched) => match backup::read_through(&fetched.path, &premises.vault) {
                Ok(_) => return Ok(Some(named(fetched, &premises.backups.dir, copied))),
                // With the key it may be good.
                Err(error @ StoreError::Locked { .. }) => return Err(error.into()),
                Err(error) => chain(&error),
            },
            Err(error) => chain(&error),
        };
        out::note(&sanitise(&format!(
            "note: passed over {}: {why}",
            copied.name()
        )));
    }
    let what = format!("no good backup of that name or loop in {url}");
    Err(Failure::new(sanitise(&what).into_owned())
        .hint("`tachikoma state backups --from URL` lists what is there"))
}

/// Gives a copy the name that it has as a backup, by which records know it; one that is there keeps it.
fn named(fetched: Fetched, dir: &Path, copied: &Copied) -> Fetched {
    let path = dir.join(copied.name());
    match std::fs::hard_link(&fetched.path, &path) {
        // The other name goes with the old value.
        Ok(()) => Fetched { path },
        Err(_) => fetched,
    }
}

/// Of several loops nobody knows which is meant.
fn only_one_loop(copies: &[Copied]) -> Result<(), Failure> {
    let mut loops: Vec<LoopId> = copies.iter().map(Copied::loop_id).collect();
    loops.sort();
    loops.dedup();
    if loops.len() < 2 {
        return Ok(());
    }
    let names: Vec<String> = loops.iter().map(LoopId::to_string).collect();
    let what = format!(
        "there are copies of {} loops: {}",
        names.len(),
        names.join(", ")
    );
    Err(Failure::usage(what).hint("name one with `--loop`"))
}
