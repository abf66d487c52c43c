//! The text before the user's prompt.

use std::fmt::Write as _;

use crate::State;
use crate::completion::end_of;

/// Maximum size in bytes of the error of a failed commit. The end of a git hook's output usually names the error.
const REFUSED_BYTES_MAX: usize = 2000;

/// Maximum size in bytes of the completion feedback.
const FEEDBACK_BYTES_MAX: usize = 16 << 10;

/// Maximum size in bytes of its headings and reasons, without the output of gates.
const REASONS_BYTES_MAX: usize = 4 << 10;

/// Separates a part from the next one.
const END: &str = "\n---\n\n";

/// Returns the text that is put before the user's prompt; empty if there is nothing to report. Its parts, in this order:
///
/// 1. why the completion promise in the last answer was not accepted as a claim (`rejected_claim`),
/// 2. what the agent cannot see in the files: messages of the operator, an attempt that was cut, a rollback, a commit that failed,
/// 3. why the latest claim of completion was refused, and which gates failed,
/// 4. the hand-off of the previous session ([`checkpoint`](crate::checkpoint)); empty if the session has the context.
#[must_use]
pub fn text_before_prompt(state: &State, rejected_claim: Option<&str>, handoff: &str) -> String {
    let rejected = rejected_claim.map(|doubt| {
        format!("# What you said about completion\n\nYour last answer names the completion promise, and is not taken for a claim: {doubt}. If the whole work is complete, say so on a line of its own.\n\n---\n\n")
    });
    let rejected = rejected.unwrap_or_default();
    rejected + &unseen_events(state) + &completion_feedback(state) + handoff
}

/// Returns what happened that the agent cannot see in the files.
fn unseen_events(state: &State) -> String {
    let mut text = String::new();
    let from_operator = state
        .operator
        .messages
        .iter()
        .filter(|message| message.in_prompt);
    for message in from_operator {
        text.push_str(&format!("The operator says:\n\n{}\n\n", message.text));
    }
    // After a rollback the files are not as the attempt left them, and the note about the rollback is reported instead.
    if state.after_cut && state.tracked_work.work_tree_note.is_none() {
        text.push_str(&format!(
            "An earlier attempt at this iteration was cut short; this is attempt {}. Its changes are still in the files and may be \
             incomplete. Look at the files before you continue, and do not repeat finished work.\n\n",
            state.attempt
        ));
    }
    if let Some(what) = &state.tracked_work.work_tree_note {
        text.push_str(what);
        text.push_str(" Look at the files before you continue: they are not as you left them.\n\n");
    }
    if let Some(why) = state
        .tracked_work
        .refused
        .as_deref()
        .filter(|_| state.tracked_work.uncommitted > 0)
    {
        let start = why.ceil_char_boundary(why.len().saturating_sub(REFUSED_BYTES_MAX));
        let (cut, why) = (start > 0, why.get(start..).unwrap_or_default());
        let dots = if cut { "..." } else { "" };
        text.push_str(&format!(
            "The changes are not committed yet, because the commit after the last iteration failed. Fix the cause if you can: the commit is \
             tried again after this iteration. The error:\n\n{dots}{why}\n\n"
        ));
    }
    text
}

/// Returns why the latest claim was refused and which gates failed; empty if an earlier prompt has already reported it.
fn completion_feedback(state: &State) -> String {
    let known = &state.completion;
    // Results after an earlier iteration may be outdated.
    let current = known.gates_at == known.feedback_iteration;
    let gates = known.gates.iter().filter(|gate| current && !gate.passed());
    let failed: Vec<_> = gates.collect();
    if !known.feedback_due || (failed.is_empty() && known.refused.is_empty()) {
        return String::new();
    }
    let mut text = "# Why the work is not accepted as complete\n\n".to_owned();
    text.push_str(&match (known.refused.is_empty(), known.confirmed) {
        (true, _) => format!(
            "After iteration {} these gates failed. Fix the problems that they report.\n\n",
            known.gates_at
        ),
        (false, 0) => {
            "The claim that the whole work is complete was refused, for these reasons:\n\n"
                .to_owned()
        }
        (false, _) => {
            "Completion was claimed, and there are no doubts about it. It has to be confirmed:\n\n"
                .to_owned()
        }
    });
    for reason in &known.refused {
        let _ = writeln!(text, "- {reason}");
    }
    let tests = state.progress.tests.as_ref();
    if let Some(tests) = tests.filter(|tests| tests.iteration == known.gates_at) {
        tests.write_failing(&mut text);
    }
    cut(&mut text, REASONS_BYTES_MAX);
    let each = (FEEDBACK_BYTES_MAX - REASONS_BYTES_MAX) / failed.len().max(1);
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
    cut(&mut text, FEEDBACK_BYTES_MAX - END.len());
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
    use crate::LoopId;
    use crate::completion::GateResult;

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
        assert!(text.len() <= FEEDBACK_BYTES_MAX, "{}", text.len());
        for name in ["a", "b", "c", "d"] {
            assert!(text.contains(&format!("the end of {name}\n~~~~")), "{name}");
        }
        assert!(text.ends_with(END));
    }

    #[test]
    fn preamble_reports_cut_attempts_rollbacks_and_failed_commits() {
        let mut state = State::new(LoopId::from_u128(1));
        assert_eq!(unseen_events(&state), "");
        state.tracked_work.refused = Some(format!("{}: the linter says no", "ä".repeat(5000)));
        assert_eq!(unseen_events(&state), "", "there is nothing left to commit");
        state.tracked_work.uncommitted = 1;
        let text = unseen_events(&state);
        assert!(text.contains("\n...ä"), "{text}");
        assert!(text.ends_with("the linter says no\n\n"), "{text}");
        assert!(text.len() < 2500, "{}", text.len());
        state.after_cut = true;
        state.attempt = 2;
        assert!(unseen_events(&state).contains("cut short; this is attempt 2."));
        state.tracked_work.work_tree_note = Some("The operator has brought back.".to_owned());
        assert!(unseen_events(&state).starts_with("The operator has brought back. Look"));
    }
}
