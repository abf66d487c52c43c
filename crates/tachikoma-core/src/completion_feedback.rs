//! Text before the next prompt: why the latest claim of completion was rejected, and which gates failed.

use std::fmt::Write as _;

use crate::State;
use crate::completion::end_of;

/// Maximum size of the whole text in bytes.
const ALL_BYTES_MAX: usize = 16 << 10;

/// Maximum size in bytes of headings and reasons, without the output of gates.
const REASONS_BYTES_MAX: usize = 4 << 10;

const END: &str = "\n---\n\n";

/// Returns why the latest claim was refused and which gates failed; empty if an earlier prompt has already reported it.
#[must_use]
pub fn completion_feedback(state: &State) -> String {
    let known = &state.completion;
    // Results after an earlier iteration may be outdated.
    let current = known.gates_at == known.feedback_iteration;
    let gates = known.gates.iter().filter(|gate| current && !gate.passed());
    let failed: Vec<_> = gates.collect();
    if !known.feedback_due || (failed.is_empty() && known.refused.is_empty()) {
        return String::new();
    }
    let mut text = "# Why the work is not accepted as complete\n\n".to_owned();
    if known.confirmed > 0 && !known.refused.is_empty() {
        text.push_str(
            "Completion was claimed, and there are no doubts about it. It has to be confirmed:\n\n",
        );
        for reason in &known.refused {
            let _ = writeln!(text, "- {reason}");
        }
    } else if known.refused.is_empty() {
        let _ = writeln!(
            text,
            "After iteration {} these gates failed. Fix the problems that they report.\n",
            known.gates_at
        );
    } else {
        text.push_str(
            "The claim that the whole work is complete was refused, for these reasons:\n\n",
        );
        for reason in &known.refused {
            let _ = writeln!(text, "- {reason}");
        }
    }
    let tests = state.progress.tests.as_ref();
    if let Some(tests) = tests.filter(|tests| tests.iteration == known.gates_at) {
        tests.write_failing(&mut text);
    }
    cut(&mut text, REASONS_BYTES_MAX);
    let each = (ALL_BYTES_MAX - REASONS_BYTES_MAX) / failed.len().max(1);
    for gate in failed {
        let error = gate.error.as_deref().unwrap_or_default();
        let mut part = format!("\n## Gate `{}`: {error}\n", gate.name);
        cut(&mut part, each / 2);
        if let Some(output) = &gate.output {
            const FENCES: usize = 32;
            let room = each.saturating_sub(part.len() + FENCES);
            let _ = write!(part, "\n~~~~\n{}\n~~~~\n", end_of(output, room));
        }
        text.push_str(&part);
    }
    cut(&mut text, ALL_BYTES_MAX - END.len());
    text.push_str(END);
    printable(&text)
}

/// Replaces control characters in the output of gates: an argument cannot contain NUL, and escape sequences do not help an agent.
fn printable(text: &str) -> String {
    let shown = |c: char| match c {
        '\n' | '\t' => c,
        c if c.is_control() => ' ',
        c => c,
    };
    text.chars().map(shown).collect()
}

fn cut(text: &mut String, max_bytes: usize) {
    text.truncate(text.floor_char_boundary(max_bytes));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::completion::GateResult;
    use crate::{LoopId, State};

    fn gate(name: &str, error: Option<&str>, output: &str) -> GateResult {
        GateResult {
            name: name.to_owned(),
            error: error.map(str::to_owned),
            output: Some(output.to_owned()),
            ..GateResult::default()
        }
    }

    #[test]
    fn completion_feedback_lists_reasons_and_failed_gates() {
        let mut state = State::new(LoopId::from_u128(1));
        let known = &mut state.completion;
        known.gates_at = 4;
        known.feedback_iteration = 4;
        known.gates = vec![
            gate("tests", Some("exit 1"), "1 passed\n2 failed: a, b\n"),
            gate("lint", None, "clean"),
        ];
        assert_eq!(completion_feedback(&state), "", "no feedback is due");
        state.completion.feedback_due = true;
        insta::assert_snapshot!(completion_feedback(&state), @"
        # Why the work is not accepted as complete

        After iteration 4 these gates failed. Fix the problems that they report.


        ## Gate `tests`: exit 1

        ~~~~
        1 passed
        2 failed: a, b
        ~~~~

        ---
        ");
        state.completion.refused = vec!["the gate `tests` failed: exit 1".to_owned()];
        insta::assert_snapshot!(completion_feedback(&state), @"
        # Why the work is not accepted as complete

        The claim that the whole work is complete was refused, for these reasons:

        - the gate `tests` failed: exit 1

        ## Gate `tests`: exit 1

        ~~~~
        1 passed
        2 failed: a, b
        ~~~~

        ---
        ");
    }

    #[test]
    fn completion_feedback_has_no_control_characters() {
        let mut state = State::new(LoopId::from_u128(1));
        state.completion.feedback_due = true;
        let output = "a\0b\u{1b}[31mred\r\n\tc";
        state.completion.gates = vec![gate("tests", Some("exit\u{7}1"), output)];
        let text = completion_feedback(&state);
        assert!(text.contains("a b [31mred \n\tc"), "{text:?}");
        assert!(text.contains("exit 1"), "{text:?}");
    }

    #[test]
    fn completion_feedback_is_bounded_and_shows_every_gate() {
        let mut state = State::new(LoopId::from_u128(1));
        let known = &mut state.completion;
        known.feedback_due = true;
        for name in ["a", "b", "c", "d"] {
            let output = format!("{}the end of {name}", "ü".repeat(20_000));
            known.gates.push(gate(name, Some("exit 1"), &output));
            known.refused.push("ü".repeat(9_000));
        }
        let text = completion_feedback(&state);
        assert!(text.len() <= ALL_BYTES_MAX, "{}", text.len());
        for name in ["a", "b", "c", "d"] {
            assert!(text.contains(&format!("the end of {name}\n~~~~")), "{name}");
        }
        assert!(text.ends_with(END));
    }
}
