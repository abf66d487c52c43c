//! Output of agents: pipes never block the agent, memory is bounded, and all lines arrive.

use tachikoma_loop_runner::process::Exit;

use crate::support::{
    CONTAINMENTS, LINE_BYTES_MAX, NOBODY, Rig, UNTIL_GO, alone, run, running, unique,
};

/// Maximum memory of the runner, including all buffers.
const MEMORY_KIB_MAX: u64 = 32 * 1024;

fn lines_of(script: &str) -> (Vec<(String, u64)>, bool) {
    run(async {
        let mut rig = Rig::new(CONTAINMENTS[1]);
        rig.sh(script);
        let (drained, _) = rig.over().await;
        assert_eq!(rig.seen.exit, Some(Exit::Code(0)));
        rig.guard.finish().await;
        (rig.seen.lines, drained)
    })
}

#[test]
fn invalid_utf8_arrives_as_lines() {
    let (lines, drained) = lines_of(r"printf 'a\r\n\nnul \000 here\nbad \377\376\nhalf'");
    let texts: Vec<_> = lines.iter().map(|(text, _)| text.as_str()).collect();
    let nul = "nul \u{FFFD} here";
    assert_eq!(texts, ["a", "", nul, "bad \u{FFFD}\u{FFFD}", "half"]);
    assert!(drained, "both streams have ended");
}

#[test]
fn stdout_and_stderr_are_in_the_transcript() {
    run(async {
        let mut rig = Rig::new(CONTAINMENTS[1]);
        rig.sh("echo out; echo err >&2");
        let (_, output) = rig.over().await;
        assert_eq!(rig.seen.lines, [("out".to_owned(), 0)]);
        assert_eq!(rig.seen.error_lines, ["err"]);
        assert_eq!(
            output.final_text, "out\n",
            "stderr is not part of the final text"
        );
        assert_eq!(output.bytes, 8);
        let written = std::fs::read_to_string(output.transcript.path.unwrap()).unwrap();
        assert!(written.contains("out\n") && written.contains("err\n"));
        rig.guard.finish().await;
    });
}

#[test]
fn output_of_a_grandchild_after_the_exit_is_read() {
    run(async {
        let mut rig = Rig::new(CONTAINMENTS[1]);
        rig.sh(&format!(
            "(trap 'echo late; exit' TERM; echo ready; while :; do sleep 0.01; done) & {UNTIL_GO} echo early"
        ));
        rig.until("the grandchild is ready", |seen| seen.has_line("ready"))
            .await;
        rig.go();
        let (drained, _) = rig.over().await;
        let texts: Vec<_> = rig
            .seen
            .lines
            .iter()
            .map(|(text, _)| text.as_str())
            .collect();
        assert_eq!(
            texts,
            ["ready", "early", "late"],
            "the grandchild wrote the last line after SIGTERM"
        );
        assert!(drained, "both streams have ended");
        rig.guard.finish().await;
    });
}

#[test]
fn closed_output_is_not_the_end_of_the_agent() {
    run(async {
        let mut rig = Rig::new(CONTAINMENTS[1]);
        rig.sh("exec >&- 2>&-; while [ ! -e go ]; do sleep 0.01; done; exit 9");
        rig.until("both streams end", |seen| seen.ended_streams == 2)
            .await;
        assert_eq!(rig.seen.exit, None, "the agent still runs");
        rig.go();
        rig.over().await;
        assert_eq!(rig.seen.exit, Some(Exit::Code(9)));
        rig.guard.finish().await;
    });
}

#[test]
fn flood_of_output_uses_little_memory_and_does_not_block_other_tasks() {
    alone(
        "process_output::flood_of_output_uses_little_memory_and_does_not_block_other_tasks",
        || {
            run(async {
                let mut rig = Rig::new(CONTAINMENTS[1]);
                rig.remember = false;
                let turns = std::rc::Rc::new(std::cell::Cell::new(0_u64));
                let counted = turns.clone();
                let local = tokio::task::LocalSet::new();
                local.spawn_local(async move {
                    loop {
                        counted.set(counted.get() + 1);
                        tokio::task::yield_now().await;
                    }
                });
                let output = local
                    .run_until(async {
                        rig.sh("yes 'a line of a flood' | head -c 200000000");
                        rig.over().await.1
                    })
                    .await;
                assert_eq!(rig.seen.exit, Some(Exit::Code(0)));
                assert_eq!(output.bytes, 200_000_000);
                assert!(output.final_text.len() <= 64 * 1024);
                let transcript = std::fs::metadata(output.transcript.path.unwrap())
                    .unwrap()
                    .len();
                assert!(
                    transcript <= 1024 * 1024 + 100,
                    "transcript of {transcript} bytes"
                );
                assert!(turns.get() > 200, "others had {} turns", turns.get());
                rig.guard.finish().await;
            });
            assert!(
                peak_memory_kib() < MEMORY_KIB_MAX,
                "{} KiB",
                peak_memory_kib()
            );
        },
    );
}

#[test]
fn very_long_line_uses_little_memory() {
    alone("process_output::very_long_line_uses_little_memory", || {
        run(async {
            let mut rig = Rig::new(CONTAINMENTS[1]);
            rig.sh("head -c 100000000 /dev/zero | tr '\\0' x; echo; echo after");
            rig.over().await;
            let lines: Vec<_> = rig
                .seen
                .lines
                .iter()
                .map(|(text, omitted)| (text.len(), *omitted))
                .collect();
            let omitted = 100_000_000 - LINE_BYTES_MAX as u64;
            assert_eq!(lines, [(LINE_BYTES_MAX, omitted), (5, 0)]);
            rig.guard.finish().await;
        });
        assert!(
            peak_memory_kib() < MEMORY_KIB_MAX,
            "{} KiB",
            peak_memory_kib()
        );
    });
}

#[test]
fn transcript_that_cannot_be_written_does_not_end_the_agent() {
    run(async {
        let mut rig = Rig::new(CONTAINMENTS[1]);
        std::fs::write(rig.place.path().join("transcripts"), "in the way").unwrap();
        rig.sh("echo one; echo two; exit 8");
        let (_, output) = rig.over().await;
        assert_eq!(rig.seen.exit, Some(Exit::Code(8)));
        assert_eq!(
            rig.seen.lines.len(),
            2,
            "the lines arrive without a transcript"
        );
        assert!(
            output.transcript.error.is_some(),
            "the failure to write the transcript is reported"
        );
        assert_eq!(output.transcript.path, None);
        rig.guard.finish().await;
    });
}

#[test]
fn flooding_agent_can_be_killed() {
    run(async {
        let word = unique().replace("sleep", "yes");
        let mut rig = Rig::new(CONTAINMENTS[0]);
        rig.remember = false;
        rig.sh(&format!("{word} & {word} >&2"));
        rig.until("it runs", |seen| seen.pid.is_some()).await;
        rig.guard.signal(
            rig.generation,
            tachikoma_loop_runner::process::StopSignal::Kill,
        );
        rig.over().await;
        assert_eq!(running(&word), NOBODY);
        rig.guard.finish().await;
    });
}

fn peak_memory_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    peak.unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap()
}
