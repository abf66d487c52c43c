//! Every recording of Claude Code is read correctly.

use std::fmt::Write as _;

use crate::corpus::claude;

#[test]
fn every_recording_has_the_expected_outcome_and_context() {
    let mut wrong = String::new();
    for case in claude() {
        let report = case.report();
        let read = (report.outcome, report.context_tokens, report.unknown_lines);
        let real = (case.outcome.as_str(), case.context, 0);
        if read != real {
            let _ = writeln!(wrong, "{}: read {read:?}, was {real:?}", case.name);
        }
        // `cases.tsv` has no expected detail for recordings of usage limits.
        if case.outcome != "usage_limit" && report.detail != case.detail {
            let _ = writeln!(
                wrong,
                "{}: {:?}, was {:?}",
                case.name, report.detail, case.detail
            );
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn reports_of_all_recordings_match_the_snapshot() {
    let mut text = String::new();
    for case in claude() {
        let report = serde_json::to_string(&case.report()).expect("a report is JSON");
        let _ = writeln!(text, "{}\n  {report}", case.name);
    }
    insta::assert_snapshot!("claude_reports", text);
}
