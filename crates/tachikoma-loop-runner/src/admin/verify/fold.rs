//! Checks a journal line by line. The records are applied to a state, and segments and snapshots must have the same state.

use std::path::{Path, PathBuf};

use tachikoma_core::{LoopEvent, LoopId, Record, Seq, State, apply};

use super::{Checked, Kind, NO_RECORD, Verdict};
use crate::store::checked_line::Remainder;
use crate::store::encryption::Encryption;
use crate::store::snapshot::Snapshot;
use crate::store::{checked_line, compressed, journal, migrate};
use tachikoma_core::error_chain as chain;

/// Remark about a journal with an incomplete last line.
const TORN: &str =
    "its last line is incomplete: it was never used, and the next run moves it to the quarantine";

/// Remark about a journal with a last line without a newline.
const UNENDED: &str = "its last line has no newline, which the next run adds";

/// State of the journal check after the lines that were read so far.
pub(super) struct Fold<'a> {
    loop_id: LoopId,
    encryption: &'a Encryption,
    /// The state after all records so far; `None` after damage, until the next segment starts with its state.
    state: Option<State>,
    /// Number of the last record that was read.
    pub last: Option<Seq>,
    /// Whether any segment was read.
    begun: bool,
    snapshots: Vec<Compared>,
}

/// A snapshot to compare with the state that results from the journal.
struct Compared {
    path: PathBuf,
    snapshot: Snapshot,
    verdict: Option<Checked>,
}

/// The results of checking one segment.
#[derive(Default)]
struct Findings {
    first: Option<Seq>,
    last: Option<Seq>,
    /// Number of the first damaged line, and its damage; `None` if no line is damaged.
    wrong: Option<(usize, String)>,
    /// Number of damaged lines after the first one.
    more: usize,
    remarks: Vec<String>,
}

impl Findings {
    fn wrong(&mut self, line: usize, what: impl Into<String>) {
        if self.wrong.is_some() {
            self.more += 1;
        } else {
            self.wrong = Some((line, what.into()));
        }
    }
}

impl<'a> Fold<'a> {
    pub(super) fn new(loop_id: LoopId, encryption: &'a Encryption) -> Self {
        Self {
            loop_id,
            encryption,
            state: None,
            last: None,
            begun: false,
            snapshots: Vec::new(),
        }
    }

    /// Adds a snapshot. It is compared after its last record was read from the journal.
    pub(super) fn compare(&mut self, path: &Path, snapshot: Snapshot) {
        self.snapshots.push(Compared {
            path: path.to_owned(),
            snapshot,
            verdict: None,
        });
    }

    /// Reads the next segment.
    pub(super) fn segment(&mut self, number: u32, path: &Path, is_last: bool) -> Checked {
        let mut findings = Findings::default();
        if is_last && compressed::is_compressed(path) {
            findings.wrong(1, "the segment is closed, and the next segment is missing");
        }
        if let Err(what) = self.read(number, path, is_last, &mut findings) {
            return Checked::new(Verdict::Wrong, Kind::Journal, path, what);
        }
        if is_last && !self.begun && findings.first.is_none() && findings.wrong.is_none() {
            return Checked::new(Verdict::Wrong, Kind::Journal, path, NO_RECORD);
        }
        self.begun = true;
        let mut what = match (findings.first, findings.last) {
            (Some(first), Some(last)) => format!("records {first} to {last}"),
            (None | Some(_), None | Some(_)) => "no record".to_owned(),
        };
        for remark in findings.remarks {
            what += &format!("; {remark}");
        }
        let Some((line, wrong)) = findings.wrong else {
            return Checked::new(Verdict::Good, Kind::Journal, path, what);
        };
        let more = match findings.more {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        let what = format!("damaged at line {line}: {wrong}{more}");
        Checked::new(Verdict::Wrong, Kind::Journal, path, what)
    }

    /// Returns the results of comparing the snapshots.
    pub(super) fn finish(self) -> Vec<Checked> {
        let last = self.last;
        let verdict = |compared: Compared| {
            let seq = compared.snapshot.seq;
            compared.verdict.unwrap_or_else(|| {
                if last.is_none_or(|last| seq > last) {
                    let ends = last.unwrap_or_default();
                    let what =
                        format!("it is at record {seq}, and the journal ends at record {ends}");
                    return Checked::new(Verdict::Wrong, Kind::Snapshot, &compared.path, what);
                }
                let what = format!(
                    "it is at record {seq}; earlier records are damaged, so it cannot be compared"
                );
                Checked::new(Verdict::Note, Kind::Snapshot, &compared.path, what)
            })
        };
        self.snapshots.into_iter().map(verdict).collect()
    }

    fn read(
        &mut self,
        number: u32,
        path: &Path,
        is_last: bool,
        findings: &mut Findings,
    ) -> Result<(), String> {
        let opened = compressed::open_lines(path, self.encryption).map_err(|error| {
            self.state = None;
            self.begun = true;
            format!("it cannot be opened: {error}")
        })?;
        let closed = compressed::is_compressed(&opened.path);
        let (mut reader, first_line) = (opened.content, opened.first_line);
        let mut text = Vec::new();
        let mut format = journal::FORMAT;
        for line in first_line.. {
            text.clear();
            let read = journal::read_line(&mut reader, &mut text).unwrap_or_else(|error| {
                findings.wrong(line, format!("it cannot be read further ({error})"));
                self.state = None;
                0
            });
            if text.ends_with(b"\n") {
                text.pop();
            } else if !is_last || closed {
                if read > 0 || line == first_line {
                    findings.wrong(
                        line,
                        "the segment is closed, and its last record is incomplete",
                    );
                }
                return Ok(());
            } else {
                match checked_line::remainder(&text) {
                    Remainder::Record => findings.remarks.push(UNENDED.to_owned()),
                    Remainder::Spoilt => {
                        findings.wrong(line, checked_line::SPOILT);
                        self.state = None;
                        return Ok(());
                    }
                    Remainder::Torn => {
                        findings.remarks.extend((read > 0).then(|| TORN.to_owned()));
                        return Ok(());
                    }
                }
            }
            if line == first_line {
                if let Some(error) = journal::newer(migrate::JOURNAL, path, &text) {
                    self.state = None;
                    return Err(chain(&error));
                }
                // A record without a format version is damaged. The check below reports it.
                format = journal::format_of(&text).unwrap_or(format);
            }
            let decoded = journal::decode_as(migrate::JOURNAL, format, &text);
            let taken = decoded.and_then(|record| {
                findings.first.get_or_insert(record.seq);
                findings.last = Some(record.seq);
                self.take(number, line == first_line, &record, &mut findings.remarks)
            });
            if let Err(what) = taken {
                findings.wrong(line, what);
                self.state = None;
            }
        }
        Ok(())
    }

    fn take(
        &mut self,
        number: u32,
        is_first: bool,
        record: &Record,
        remarks: &mut Vec<String>,
    ) -> Result<(), String> {
        self.last = self.last.max(Some(record.seq));
        if record.loop_id != self.loop_id {
            return Err(format!("it belongs to another loop ({})", record.loop_id));
        }
        if let LoopEvent::SegmentOpened {
            segment,
            state: full,
            after_loss,
            ..
        } = &record.event
        {
            let fits = self.opens(number, *segment, full, *after_loss, remarks);
            // The following records are checked against the state in this one.
            self.state = Some((**full).clone());
            self.meet_snapshots();
            fits?;
        } else if is_first {
            return Err("the segment does not begin with the full state".to_owned());
        }
        let Some(state) = &mut self.state else {
            // After damage, the number of the next record is unknown and not checked.
            return Ok(());
        };
        if record.seq != state.seq.next() {
            return Err(format!(
                "record {} follows record {}",
                record.seq, state.seq
            ));
        }
        if record.time < state.time {
            return Err(format!("its time is before that of record {}", state.seq));
        }
        apply(state, record);
        self.meet_snapshots();
        Ok(())
    }

    /// Checks the first record of a segment against the state at the end of the previous segment.
    fn opens(
        &self,
        number: u32,
        segment: u32,
        full: &State,
        after_loss: bool,
        remarks: &mut Vec<String>,
    ) -> Result<(), String> {
        if segment != number {
            return Err(format!("it says that it is segment {segment}"));
        }
        let known = match &self.state {
            Some(known) => known.clone(),
            None if !self.begun => State::new(self.loop_id),
            // The damage before this segment was already reported.
            None => return Ok(()),
        };
        if *full == known {
            return Ok(());
        }
        if after_loss && full.seq >= known.seq {
            let (from, to) = (known.seq.next(), full.seq);
            if from <= to {
                remarks.push(format!(
                    "records {from} to {to} are lost, as the segment says"
                ));
            }
            return Ok(());
        }
        if full.seq > known.seq {
            return Err(format!(
                "records {} to {} are missing before it",
                known.seq.next(),
                full.seq
            ));
        }
        Err("its state differs from that of the records before it".to_owned())
    }

    fn meet_snapshots(&mut self) {
        let Some(state) = &self.state else {
            return;
        };
        for compared in &mut self.snapshots {
            if compared.verdict.is_some() || compared.snapshot.seq != state.seq {
                continue;
            }
            let seq = state.seq;
            let (verdict, what) = if compared.snapshot.state == *state {
                (
                    Verdict::Good,
                    format!("it equals the state at record {seq}"),
                )
            } else {
                (
                    Verdict::Wrong,
                    format!("it differs from the state at record {seq}"),
                )
            };
            compared.verdict = Some(Checked::new(verdict, Kind::Snapshot, &compared.path, what));
        }
    }
}
