//! Checks encrypted files without their key: that they exist, that the checksums of their lines match, and that no line is missing.

use std::io::{self, BufRead as _, BufReader};
use std::path::Path;

use tachikoma_fs::safe_read;

use super::{Checked, Kind, Verdict};
use crate::loop_files::StoreConfig;
use crate::session::transcripts;
use crate::store::checked_line::{self, Remainder};
use crate::store::encryption::is_encrypted;
use crate::store::{backup, checkpoints, encryption, journal, layout, snapshot};

/// Checks all encrypted files without their key. `why` is the reason why there is no key.
pub(super) fn check_all(
    store_config: &StoreConfig,
    why: &io::Error,
    each: &mut impl FnMut(Checked),
) {
    for path in snapshot::all_places(&store_config.snapshot) {
        one(Kind::Snapshot, &path, why, each);
    }
    let loops = std::fs::read_dir(layout::loops_dir(&store_config.working_dir));
    for dir in loops.into_iter().flatten().flatten() {
        let dir = dir.path();
        let segments = journal::segments(&dir).unwrap_or_default();
        for (_, path) in segments {
            one(Kind::Journal, &path, why, each);
        }
        let name = dir.file_name().unwrap_or_default();
        texts(
            Kind::Transcripts,
            &store_config.state_dir.join(name),
            why,
            each,
        );
        texts(Kind::Gates, &layout::gates_dir(&dir), why, each);
        let hand_offs = checkpoints::list(&dir).unwrap_or_default();
        for session in hand_offs {
            let path = checkpoints::path_of(&checkpoints::dir(&dir), session);
            one(Kind::Checkpoints, &path, why, each);
        }
    }
    let backups = backup::list(&store_config.backups.dir, None).unwrap_or_default();
    for listed in backups {
        one(Kind::Backup, &listed.path, why, each);
    }
}

fn texts(kind: Kind, dir: &Path, why: &io::Error, each: &mut impl FnMut(Checked)) {
    let listed = transcripts::list(dir).unwrap_or_default();
    for file in listed {
        one(kind, &file.path, why, each);
    }
}

/// Checks one encrypted file without its key.
pub(super) fn one(kind: Kind, path: &Path, why: &io::Error, each: &mut impl FnMut(Checked)) {
    if !is_encrypted(path) {
        if path.exists() {
            let what = "not encrypted; checked only when the key is available";
            each(Checked::new(Verdict::Note, kind, path, what));
        }
        return;
    }
    if encryption::is_age(path) {
        let what = format!("{why}; its content was not checked");
        each(Checked::new(Verdict::Note, kind, path, what));
        return;
    }
    each(match lines(path) {
        Ok(said) => Checked::new(Verdict::Good, kind, path, format!("{said} ({why})")),
        Err(wrong) => Checked::new(Verdict::Wrong, kind, path, wrong),
    });
}

/// Checks the checksum of each line, and that the line numbers are consecutive.
fn lines(path: &Path) -> Result<String, String> {
    let file = safe_read::open(path).map_err(|error| error.to_string())?;
    let mut source = BufReader::new(file);
    let mut last: Option<u64> = None;
    let mut torn = "";
    let mut text = Vec::new();
    for line in 1.. {
        text.clear();
        let read = source.read_until(b'\n', &mut text);
        if read.map_err(|error| error.to_string())? == 0 {
            break;
        }
        let damaged = |what: &str| format!("damaged at line {line}: {what}");
        let whole = match text.strip_suffix(b"\n") {
            Some(text) => checked_line::is_whole(text),
            None => match checked_line::remainder(&text) {
                Remainder::Record => true,
                Remainder::Spoilt => return Err(damaged(checked_line::SPOILT)),
                Remainder::Torn => {
                    torn = "; its last line is incomplete";
                    break;
                }
            },
        };
        if !whole {
            return Err(damaged("its checksum does not match"));
        }
        if line == 1 {
            continue;
        }
        let seq = journal::seq_of(&text).ok_or_else(|| damaged("it has no number"))?;
        if let Some(last) = last.filter(|last| last + 1 != seq) {
            return Err(damaged(&format!("record {seq} follows record {last}")));
        }
        last = Some(seq);
    }
    let to = last.map_or("no lines".to_owned(), |last| {
        format!("lines up to number {last}")
    });
    Ok(format!(
        "encrypted: {to}, all with a valid checksum{torn}; the content was not checked without the key"
    ))
}
