//! The prompt preamble: text before the user's prompt. It reports what the agent cannot see in the files, such as messages of the
//! operator, an attempt that was cut, a rollback, or a commit that failed.

use crate::State;

/// Maximum size in bytes of the error of a failed commit. The end of a git hook's output usually names the error.
const REFUSED_BYTES_MAX: usize = 2000;

/// Returns the text before the prompt; empty if there is nothing to report.
#[must_use]
pub fn prompt_preamble(state: &State) -> String {
    let mut text = String::new();
    let from_operator = state
        .operator
        .messages
        .iter()
        .filter(|words| words.in_prompt);
    for words in from_operator {
        text.push_str(&format!("The operator says:\n\n{}\n\n", words.text));
    }
    // After a rollback the files are not as the attempt left them, and the note about the rollback is reported instead.
    if state.after_cut && state.kept.work_tree_note.is_none() {
        text.push_str(&format!(
            "An earlier attempt at this iteration was cut short; this is attempt {}. Its changes are still in the files and may be \
             incomplete. Look at the files before you continue, and do not repeat finished work.\n\n",
            state.attempt
        ));
    }
    if let Some(what) = &state.kept.work_tree_note {
        text.push_str(what);
        text.push_str(" Look at the files before you continue: they are not as you left them.\n\n");
    }
    if let Some(why) = state
        .kept
        .refused
        .as_deref()
        .filter(|_| state.kept.uncommitted > 0)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::LoopId;

    #[test]
    fn preamble_reports_cut_attempts_rollbacks_and_failed_commits() {
        let mut state = State::new(LoopId::from_u128(1));
        assert_eq!(prompt_preamble(&state), "");
        state.kept.refused = Some(format!("{}: the linter says no", "ä".repeat(5000)));
        assert_eq!(
            prompt_preamble(&state),
            "",
            "there is nothing left to commit"
        );
        state.kept.uncommitted = 1;
        let text = prompt_preamble(&state);
        assert!(text.contains("\n...ä"), "{text}");
        assert!(text.ends_with("the linter says no\n\n"), "{text}");
        assert!(text.len() < 2500, "{}", text.len());
        state.after_cut = true;
        state.attempt = 2;
        assert!(prompt_preamble(&state).contains("cut short; this is attempt 2."));
        state.kept.work_tree_note = Some("The operator has brought back.".to_owned());
        assert!(prompt_preamble(&state).starts_with("The operator has brought back. Look"));
    }
}
