//! `tachikoma state export`: writes the state and all records of a loop as text, with constant memory.
//!
//! The export has one JSON object per line instead of one document: it can be written and read as a stream, `grep` and `jq` work on
//! it, and an incomplete export is recognized by its missing last line.

use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use serde_json::json;
use tachikoma_core::LoopId;
use tachikoma_loop_runner::offline::StoreConfig;
use tachikoma_loop_runner::store::layout;

use super::show;
use crate::commands::records;
use crate::failure::Failure;
use crate::out;
use crate::workspace::Workspace;

/// Format version of the first and the last line. The first record has the format version of the records.
const FORMAT: u32 = 1;

/// Exports the current loop.
pub fn export(
    workspace: &Workspace,
    output: Option<&Path>,
    force: bool,
) -> Result<ExitCode, Failure> {
    let current = workspace.current_loop()?;
    let loop_id = current.loop_id;
    let store_config = workspace.store_config_for_reading(&current.working_dir, &current.root);
    match output {
        None => to_stdout(&store_config, loop_id)?,
        Some(path) => {
            let records = to_file(&store_config, loop_id, path, force)?;
            out::line(&format!("wrote {records} records to {}", path.display()));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn to_stdout(store_config: &StoreConfig, loop_id: LoopId) -> Result<(), Failure> {
    let mut out = BufWriter::new(io::stdout().lock());
    match write(store_config, loop_id, &mut out) {
        Ok(_) => Ok(()),
        // A closed pipe (`| head`) is not an error.
        Err(Trouble::Write(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(trouble) => Err(trouble.into_failure("standard output")),
    }
}

/// Writes a file atomically.
fn to_file(
    store_config: &StoreConfig,
    loop_id: LoopId,
    path: &Path,
    force: bool,
) -> Result<u64, Failure> {
    let shown = path.display().to_string();
    let failed = |error: io::Error| Trouble::Write(error).into_failure(&shown);
    if !force && path.symlink_metadata().is_ok() {
        return Err(exists(path));
    }
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    let file = tempfile::NamedTempFile::new_in(dir.unwrap_or(Path::new("."))).map_err(failed)?;
    let mut out = BufWriter::new(file);
    let records =
        write(store_config, loop_id, &mut out).map_err(|trouble| trouble.into_failure(&shown))?;
    let file = out
        .into_inner()
        .map_err(|error| failed(error.into_error()))?;
    file.as_file().sync_all().map_err(failed)?;
    let kept = if force {
        file.persist(path)
    } else {
        file.persist_noclobber(path)
    };
    match kept {
        Ok(_) => Ok(records),
        Err(error) if error.error.kind() == ErrorKind::AlreadyExists => Err(exists(path)),
        Err(error) => Err(failed(error.error)),
    }
}

fn exists(path: &Path) -> Failure {
    Failure::new(format!("{} exists, and was left as it is", path.display()))
        .hint("choose another name, or use `--force` to replace it")
}

enum Trouble {
    Read(Failure),
    Write(io::Error),
}

impl Trouble {
    fn into_failure(self, target: &str) -> Failure {
        match self {
            Self::Read(failure) => failure,
            Self::Write(error) => Failure::new(format!("write {target}: {error}"))
                .hint("the export is incomplete; the loop is unchanged"),
        }
    }
}

/// Writes a first line with the state, the records up to that state, and a last line. Returns the number of records.
fn write(
    store_config: &StoreConfig,
    loop_id: LoopId,
    out: &mut impl Write,
) -> Result<u64, Trouble> {
    let snapshot = show::find(store_config, loop_id)
        .map_err(Trouble::Read)?
        .snapshot;
    let until = snapshot.seq;
    let first = json!({
        "export": FORMAT,
        "tachikoma": env!("CARGO_PKG_VERSION"),
        "loop_id": loop_id,
        "snapshot": snapshot,
    });
    writeln!(out, "{}", crate::sanitize::harmless(&first.to_string())).map_err(Trouble::Write)?;
    let mut records = 0_u64;
    let mut written = Ok(());
    let dir = layout::loop_dir(&store_config.working_dir, loop_id);
    let read = records::read(
        &dir,
        &store_config.encryption,
        tachikoma_core::Seq(0),
        |record| {
            // A running loop may append more records. The export ends at the state of the first line.
            if record.seq <= until && written.is_ok() {
                records += 1;
                written = serde_json::to_string(&record)
                    .map_err(io::Error::from)
                    .and_then(|line| writeln!(out, "{}", crate::sanitize::harmless(&line)));
            }
        },
    );
    written.map_err(Trouble::Write)?;
    read.map_err(|error| Trouble::Read(error.into()))?;
    let last = json!({"end": true, "records": records});
    writeln!(out, "{last}").map_err(Trouble::Write)?;
    out.flush().map_err(Trouble::Write)?;
    Ok(records)
}
