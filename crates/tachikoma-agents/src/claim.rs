//! The agent's claim that the whole work is complete.

/// Returns whether `final_text` claims completion: the promise stands on a line of its own. A sentence that merely
/// mentions the promise, to deny it for example, is no claim.
#[must_use]
pub fn claims(final_text: &str, promise: &str) -> bool {
    !promise.is_empty() && final_text.lines().any(|line| line.trim() == promise)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_line_of_its_own_counts() {
        let promise = "<promise>COMPLETE</promise>";
        for (text, expected) in [
            ("<promise>COMPLETE</promise>", true),
            (
                "all tests pass\r\n  <promise>COMPLETE</promise>  \r\nbye",
                true,
            ),
            ("I am NOT saying <promise>COMPLETE</promise> yet", false),
            ("`<promise>COMPLETE</promise>`", false),
            ("<promise>complete</promise>", false),
            ("", false),
        ] {
            assert_eq!(claims(text, promise), expected, "{text:?}");
        }
        assert!(
            !claims("\n\n", ""),
            "an empty promise would be kept by every blank line"
        );
    }
}
