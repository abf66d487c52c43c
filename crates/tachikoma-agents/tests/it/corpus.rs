//! The recordings with their expected results.

use std::fs;
use std::path::PathBuf;

use tachikoma_agents::Decoder;
use tachikoma_agents::report::{Exit, Report, Summing};

/// One recording.
pub struct Case {
    pub name: String,
    pub decoder: Decoder,
    pub exit: i32,
    pub outcome: String,
    pub detail: Option<String>,
    pub context: u64,
    pub output: Vec<u8>,
}

/// Every recording of Claude Code.
pub fn claude() -> Vec<Case> {
    recordings("claude", &|| Decoder::Claude(Box::default()))
}

/// Every recording of OpenCode.
pub fn opencode() -> Vec<Case> {
    recordings("opencode", &|| Decoder::OpenCode(Box::default()))
}

fn recordings(agent: &str, decoder: &dyn Fn() -> Decoder) -> Vec<Case> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/corpus")
        .join(agent);
    let table = fs::read_to_string(dir.join("cases.tsv")).expect("the table of recordings exists");
    let cases: Vec<Case> = table
        .lines()
        .skip(1)
        .map(|row| {
            let cells: Vec<&str> = row.split('\t').collect();
            let [name, exit, outcome, detail, context, _] = cells[..] else {
                panic!("six cells: {row}");
            };
            let output = ["jsonl", "sse"]
                .iter()
                .find_map(|end| fs::read(dir.join(format!("{name}.{end}"))).ok());
            Case {
                name: name.to_owned(),
                decoder: decoder(),
                exit: exit.parse().expect("an exit code"),
                outcome: outcome.to_owned(),
                detail: Some(detail.to_owned()).filter(|detail| detail != "-"),
                context: context.parse().expect("a number"),
                output: output.unwrap_or_else(|| panic!("no recording of {name}")),
            }
        })
        .collect();
    let recordings = fs::read_dir(&dir).expect("the recordings are there");
    let recordings = recordings.filter(|entry| {
        let entry = entry.as_ref().expect("an entry");
        entry
            .path()
            .extension()
            .is_some_and(|end| end == "jsonl" || end == "sse")
    });
    assert_eq!(cases.len(), recordings.count(), "each recording has a row");
    cases
}

impl Case {
    pub fn lines(&self) -> impl Iterator<Item = &[u8]> {
        let lines = self.output.split(|byte| *byte == b'\n');
        lines.filter(|line| !line.is_empty())
    }

    pub fn report(&self) -> Report {
        let mut summing = Summing::of(self.decoder.clone());
        for line in self.lines() {
            summing.line(line, false);
        }
        summing.report(Some(Exit(self.exit)))
    }
}
