//! The hand-off: text about the previous session, before the prompt of a new session.

use std::collections::VecDeque;
use std::fmt::Write as _;

use crate::{FailedCall, ObjectivesSeen, State, short_commit};

/// Maximum size in bytes of the text that the session writes. Notes, files and failures also have to fit into the hand-off.
pub const HAND_OFF_BYTES_MAX: usize = 16 << 10;

/// Maximum number of files that a hand-off names. Others are counted.
const FILES_NAMED_MAX: usize = 20;

/// Maximum number of commits that a hand-off names: the latest ones.
const COMMITS_NAMED_MAX: usize = 20;

/// Number of texts of a session that replace a missing hand-off, and the maximum size of each.
const LAST_WORDS_MAX: usize = 5;
const LAST_WORDS_BYTES_MAX: usize = 2 << 10;

/// Number of tool calls that replace a missing hand-off, and the maximum size of each.
const LAST_CALLS_MAX: usize = 20;
const LAST_CALL_BYTES_MAX: usize = 200;

/// State of the work tree, for the hand-off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkTree {
    /// Files that changed since the loop began, tracked or not; `None` if that is unknown.
    pub changed: Option<Vec<String>>,
    /// The commit that is checked out; `None` if it is not known.
    pub head: Option<String>,
    /// Commits made since the loop began, latest first.
    pub commits: Vec<String>,
}

/// Last texts and tool calls of a session without a hand-off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LastSeen {
    words: VecDeque<String>,
    calls: VecDeque<String>,
}

impl LastSeen {
    /// Adds a text that the agent printed in the session. Only the latest texts are kept.
    pub fn said(&mut self, text: &str) {
        keep_latest(
            &mut self.words,
            text.trim(),
            LAST_WORDS_MAX,
            LAST_WORDS_BYTES_MAX,
        );
    }

    /// Adds a tool call of the session. Only the latest calls are kept.
    pub fn called(&mut self, name: &str, about: &str) {
        let call = format!("{name}: {about}");
        keep_latest(&mut self.calls, &call, LAST_CALLS_MAX, LAST_CALL_BYTES_MAX);
    }
}

fn keep_latest(list: &mut VecDeque<String>, text: &str, max: usize, bytes_max: usize) {
    if text.is_empty() {
        return;
    }
    if list.len() >= max {
        list.pop_front();
    }
    let mut text = text.to_owned();
    truncate(&mut text, bytes_max);
    list.push_back(text);
}

/// Returns whether the next prompt needs the hand-off: in a session that replaced another one, until one of its iterations succeeds.
#[must_use]
pub fn handoff_due(state: &State) -> bool {
    state.session.number.0 > 1 && !state.session.oriented
}

/// Returns the hand-off that a new session would get now, without text of the current session.
#[must_use]
pub fn checkpoint_now(state: &State, tree: &WorkTree, max_bytes: usize) -> String {
    let mut next = state.clone();
    next.checkpoint.take(&state.session, "");
    next.checkpoint.words = None;
    next.session.number = state.session.number.next();
    next.iteration = state.next_iteration();
    next.attempt = 1;
    checkpoint(&next, tree, &LastSeen::default(), max_bytes)
}

/// Returns the hand-off for a new session. The most important parts come first, because a text that is too long is cut at its end.
#[must_use]
pub fn checkpoint(state: &State, tree: &WorkTree, last: &LastSeen, max_bytes: usize) -> String {
    const END: &str = "\n---\n\n";
    let mut text = String::new();
    head(&mut text, state, tree);
    words(&mut text, state);
    last_seen(&mut text, last);
    objectives(&mut text, state);
    // Failures before the first iteration were not caused by a session.
    let tests = state.progress.tests.as_ref();
    if let Some(tests) = tests.filter(|tests| tests.iteration > 0) {
        tests.write_failing(&mut text);
    }
    notes(&mut text, state);
    failures(&mut text, &state.checkpoint.failed_calls);
    files(&mut text, state, tree);
    commits(&mut text, tree);
    truncate(&mut text, max_bytes.saturating_sub(END.len()));
    text.push_str(END);
    truncate(&mut text, max_bytes);
    text
}

fn head(text: &mut String, state: &State, tree: &WorkTree) {
    let stats = &state.stats;
    let _ = writeln!(
        text,
        "# Hand-off from the previous session\n\n\
         You continue the work of an earlier session. Its conversation is gone, but its changes to the files are there. \
         Look at the work tree first, and do not repeat finished work.\n\n\
         - Session {}, iteration {}, attempt {}.\n\
         - So far: {} iterations finished, {} succeeded, {} failed, {} handed over.",
        state.session.number,
        state.iteration,
        state.attempt,
        stats.iterations,
        stats.successful,
        stats.failed,
        stats.handed_over,
    );
    if !state.checkpoint.reason.is_empty() {
        let _ = writeln!(
            text,
            "- The previous session was replaced: {}.",
            state.checkpoint.reason
        );
    }
    if let Some(head) = &tree.head {
        let head = short_commit(head);
        let _ = match state.tracked_work.uncommitted {
            0 => writeln!(text, "- The work tree is at commit {head}."),
            left => writeln!(
                text,
                "- The work tree is at commit {head}, with {left} changed files that are not committed."
            ),
        };
    }
    if let Some(failure) = &state.last_failure {
        let _ = writeln!(text, "- The latest failure: {failure}.");
    }
}

fn words(text: &mut String, state: &State) {
    let Some(words) = &state.checkpoint.words else {
        return;
    };
    let session = state.checkpoint.words_of;
    let _ = match session.next() >= state.session.number {
        true => writeln!(text, "\n## In its own words\n\n{}", words.trim()),
        false => writeln!(
            text,
            "\n## In the words of session {session}, the last one that wrote a hand-off\n\n{}",
            words.trim()
        ),
    };
}

fn last_seen(text: &mut String, last: &LastSeen) {
    if !last.words.is_empty() {
        text.push_str("\n## Last output of the previous session, which wrote no hand-off\n\n");
        for words in &last.words {
            let _ = writeln!(text, "{words}\n");
        }
    }
    if !last.calls.is_empty() {
        text.push_str("\n## Last tool calls of the previous session, latest last\n\n");
        for call in &last.calls {
            let _ = writeln!(text, "- `{call}`");
        }
    }
}

/// Appends the open objectives.
fn objectives(text: &mut String, state: &State) {
    let Some(ObjectivesSeen::Read { objectives }) = &state.completion.objectives else {
        return;
    };
    let open = objectives.total - objectives.ticked;
    if open == 0 {
        return;
    }
    let _ = writeln!(
        text,
        "\n## Open objectives ({open} of {})\n",
        objectives.total
    );
    for words in &objectives.open {
        let _ = writeln!(text, "- {words}");
    }
    count_of_rest(
        text,
        (open as usize).saturating_sub(objectives.open.len()),
        "more",
    );
}

fn notes(text: &mut String, state: &State) {
    if state.notes.is_empty() {
        return;
    }
    text.push_str("\n## Notes, latest first\n\n");
    // Notes of the operator come first, because a long hand-off is cut at its end.
    let (operators, agents): (Vec<_>, Vec<_>) =
        state.notes.iter().rev().partition(|note| note.operator);
    for note in operators.into_iter().chain(agents) {
        let _ = writeln!(text, "- Iteration {}: {}", note.iteration, note.text.trim());
    }
}

fn failures(text: &mut String, failed: &[FailedCall]) {
    if failed.is_empty() {
        return;
    }
    text.push_str("\n## What was tried and failed, latest first\n\n");
    for FailedCall { call, times, error } in failed.iter().rev() {
        let how_often = match times {
            1 => "once".to_owned(),
            2 => "twice".to_owned(),
            times => format!("{times} times"),
        };
        let _ = writeln!(
            text,
            "- Tried `{call}` {how_often}; it failed with: {}",
            error.trim()
        );
    }
}

fn files(text: &mut String, state: &State, tree: &WorkTree) {
    let seen = &state.checkpoint;
    let (files, unnamed) = match &tree.changed {
        Some(changed) => (changed, 0),
        None => (&seen.files, seen.files_unnamed as usize),
    };
    if files.is_empty() {
        return;
    }
    text.push_str("\n## Files changed so far\n\n");
    for file in files.iter().take(FILES_NAMED_MAX) {
        let _ = writeln!(text, "- {file}");
    }
    let more = files.len().saturating_sub(FILES_NAMED_MAX) + unnamed;
    count_of_rest(text, more, "more");
}

fn commits(text: &mut String, tree: &WorkTree) {
    if tree.commits.is_empty() {
        return;
    }
    text.push_str("\n## Commits made so far, latest first\n\n");
    for commit in tree.commits.iter().take(COMMITS_NAMED_MAX) {
        let _ = writeln!(text, "- {commit}");
    }
    let more = tree.commits.len().saturating_sub(COMMITS_NAMED_MAX);
    count_of_rest(text, more, "before them");
}

/// Appends the number of items that a list leaves out.
fn count_of_rest(text: &mut String, count: usize, what: &str) {
    if count > 0 {
        let _ = writeln!(text, "- and {count} {what}");
    }
}

fn truncate(text: &mut String, max_bytes: usize) {
    text.truncate(text.floor_char_boundary(max_bytes));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Exit, Failure, LoopId, Note, Objectives, SessionNo, Timestamp};

    fn second_session() -> State {
        let mut state = State::new(LoopId::from_u128(1));
        state.session.number = SessionNo(2);
        state
    }

    #[test]
    fn later_session_gets_the_hand_off_until_an_iteration_succeeds() {
        let mut state = second_session();
        state.session.number = SessionNo(1);
        assert!(!handoff_due(&state));
        state.session.number = SessionNo(2);
        state.last_failure = Some(Failure::Exited {
            exit: Exit::Code(3),
        });
        assert!(handoff_due(&state));
        let text = checkpoint(&state, &WorkTree::default(), &LastSeen::default(), 50_000);
        assert!(
            text.contains("Session 2") && text.contains("exit 3"),
            "{text}"
        );
        state.session.iterations = 1;
        assert!(
            handoff_due(&state),
            "a failed iteration still needs the hand-off"
        );
        state.session.oriented = true;
        assert!(!handoff_due(&state));
    }

    #[test]
    fn checkpoint_now_includes_the_current_session() {
        let mut state = second_session();
        state.iteration = 4;
        state.attempt = 3;
        state.checkpoint.words = Some("of the first session".to_owned());
        state.checkpoint.reason = "context at 86%".to_owned();
        state.checkpoint.files = vec!["first.rs".to_owned()];
        state.session.files = vec!["second.rs".to_owned()];
        state.session.failed_calls = vec![FailedCall {
            call: "Bash: make".to_owned(),
            times: 1,
            error: "exit 2".to_owned(),
        }];
        let text = checkpoint_now(&state, &WorkTree::default(), 50_000);
        for part in [
            "Session 3, iteration 5, attempt 1.",
            "- first.rs\n- second.rs\n",
            "Bash: make",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        for part in ["first session", "86%"] {
            assert!(!text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn hand_off_lists_everything_within_its_size() {
        let mut state = second_session();
        state.iteration = 7;
        state.attempt = 1;
        state.checkpoint.words = Some("The parser is done; the printer is next.".to_owned());
        state.checkpoint.words_of = SessionNo(1);
        state.checkpoint.reason = "context at 86%".to_owned();
        state.tracked_work.uncommitted = 2;
        state.checkpoint.failed_calls = vec![FailedCall {
            call: "Bash: make test".to_owned(),
            times: 2,
            error: "exit 2".to_owned(),
        }];
        state.completion.objectives = Some(ObjectivesSeen::Read {
            objectives: Objectives::read(&format!("- [x] parse\n{}", "- [ ] print\n".repeat(22))),
        });
        for text in ["first", "second"] {
            state.notes.push(Note {
                time: Timestamp::default(),
                iteration: 5,
                text: text.to_owned(),
                operator: false,
            });
        }
        let tree = WorkTree {
            head: Some("1a2b3c4d5e6f".to_owned()),
            changed: Some((0..23).map(|n| format!("src/f{n}.rs")).collect()),
            commits: vec!["abc1234 parser".to_owned()],
        };
        let text = checkpoint(&state, &tree, &LastSeen::default(), 50_000);
        insta::assert_snapshot!(text, @"
        # Hand-off from the previous session

        You continue the work of an earlier session. Its conversation is gone, but its changes to the files are there. Look at the work tree first, and do not repeat finished work.

        - Session 2, iteration 7, attempt 1.
        - So far: 0 iterations finished, 0 succeeded, 0 failed, 0 handed over.
        - The previous session was replaced: context at 86%.
        - The work tree is at commit 1a2b3c4, with 2 changed files that are not committed.

        ## In its own words

        The parser is done; the printer is next.

        ## Open objectives (22 of 23)

        - print
        - print
        - print
        - print
        - print
        - print
        - print
        - print
        - print
        - print
        - print
        - print
        - print
        - print
        - print
        - print
        - print
        - print
        - print
        - print
        - and 2 more

        ## Notes, latest first

        - Iteration 5: second
        - Iteration 5: first

        ## What was tried and failed, latest first

        - Tried `Bash: make test` twice; it failed with: exit 2

        ## Files changed so far

        - src/f0.rs
        - src/f1.rs
        - src/f2.rs
        - src/f3.rs
        - src/f4.rs
        - src/f5.rs
        - src/f6.rs
        - src/f7.rs
        - src/f8.rs
        - src/f9.rs
        - src/f10.rs
        - src/f11.rs
        - src/f12.rs
        - src/f13.rs
        - src/f14.rs
        - src/f15.rs
        - src/f16.rs
        - src/f17.rs
        - src/f18.rs
        - src/f19.rs
        - and 3 more

        ## Commits made so far, latest first

        - abc1234 parser

        ---
        ");
        let whole = text.len();
        for max in [0, 5, 100, 700, whole - 1, whole, whole + 1] {
            let cut = checkpoint(&state, &tree, &LastSeen::default(), max);
            assert!(cut.len() <= max, "{max}");
            assert!(max < 100 || cut.ends_with("\n---\n\n"), "{max}: {cut}");
        }
        let unknown = WorkTree::default();
        state.checkpoint.files = vec!["seen.rs".to_owned()];
        state.checkpoint.files_unnamed = 2;
        let text = checkpoint(&state, &unknown, &LastSeen::default(), 50_000);
        assert!(text.contains("- seen.rs\n- and 2 more\n"), "{text}");
    }
}
