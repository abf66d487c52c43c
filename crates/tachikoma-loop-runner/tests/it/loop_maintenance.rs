//! Background maintenance: full journal segments are closed and compressed while the loop runs.

use std::fs;
use std::path::Path;
use tachikoma_loop_runner::store::encryption::Encryption;

use tachikoma_core::{Outcome, PromptSource, Seq};
use tachikoma_loop_runner::store::{journal, layout};
use tachikoma_loop_runner::{LoopConfig, LoopRunner};
use tachikoma_testkit::await_until;

use crate::loop_support::{Place, UNTIL_GO, Watch, open};
use crate::support::{PATIENCE, run};

/// Returns a config with a large prompt. Each run records the prompt, so three runs fill a journal segment.
fn config(place: &Place, text: &str, limit: u32) -> LoopConfig {
    let mut config = place.config(UNTIL_GO);
    config.settings.max_iterations = limit;
    config.launch.prompt = PromptSource::Text {
        text: text.to_owned(),
    };
    config
}

async fn run_to_limit(runner: &mut LoopRunner) {
    let outcome = runner.run().await.unwrap();
    assert!(
        matches!(outcome, Outcome::LimitReached { .. }),
        "{outcome:?}"
    );
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn full_segment_is_compressed_while_the_loop_runs() {
    let place = Place::new();
    let text = "a prompt of seven megabytes ".repeat(250_000);
    run(async {
        for iteration in 1..=2 {
            place.go(iteration);
            let mut runner = open(config(&place, &text, iteration)).await;
            run_to_limit(&mut runner).await;
            runner.close().await;
        }
        let mut runner = open(config(&place, &text, 3)).await;
        let dir = layout::loop_dir(&place.working_dir(), runner.state().loop_id);
        assert_eq!(names(&dir), ["journal-0001.jsonl"]);
        let mut watch = Watch::on(&runner);
        let operator = async {
            watch.launched(3).await;
            // This wait blocks the thread of the loop, so the segment must be compressed by another thread.
            await_until("the first segment to be compressed", PATIENCE, || {
                names(&dir) == ["journal-0001.jsonl.zst", "journal-0002.jsonl"]
            });
            place.go(3);
        };
        tokio::join!(run_to_limit(&mut runner), operator);
        runner.close().await;
        let size = fs::metadata(dir.join("journal-0001.jsonl.zst"))
            .unwrap()
            .len();
        assert!(size < 4 << 20, "{size} bytes");
        let mut seqs = Vec::new();
        journal::read_records(&dir, &Encryption::plain(), Seq(0), |record| {
            seqs.push(record.seq.0);
        })
        .unwrap();
        assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>());
    });
}
