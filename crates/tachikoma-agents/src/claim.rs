//! Finds the agent's claim that the whole work is complete, and distinguishes it from text about such a claim.

use std::fmt;

use tachikoma_core::markdown::Fences;

/// What a final text says about completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The text has no claim of completion.
    Absent,
    /// A line consists of the promise, perhaps with decoration, but does not count as a claim.
    NotMeant(Doubt),
    /// The text claims that the whole work is complete.
    Made,
}

/// Why a line that consists of the promise does not count as a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// The promise is in a code block.
    Code,
    /// The promise is in a quotation.
    Quote,
    /// The text before or after the promise denies it, or names a condition.
    Denied,
    /// The promise is quoted from the prompt.
    Prompt,
    /// The promise has decoration around it, such as bold type.
    Decorated,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Code => "it is in a code block",
            Self::Quote => "it is in a quotation",
            Self::Denied => "the words around it deny it or name a condition",
            Self::Prompt => "it is quoted from the prompt",
            Self::Decorated => "there is other text or markup on its line",
        })
    }
}

/// Words in a line ending with a colon that deny or postpone the text after it.
const DENYING: [&str; 16] = [
    "not", "never", "cannot", "until", "unless", "once", "when", "if", "after", "would", "should",
    "yet", "without", "before", "refuse", "example",
];

/// Words for the promise. Shortly after a word of refusal, they mean that the promise is not made.
const NAMING: [&str; 14] = [
    "promise", "claim", "claimed", "claiming", "signal", "marker", "print", "printing", "output",
    "emit", "say", "done", "finished", "complete",
];

/// A word for the promise counts within this many words after a refusal, as in "do not yet print the promise".
const SOON: usize = 3;

/// Characters that models put around a line to emphasize it.
const DECORATION: [char; 12] = ['`', '*', '_', '"', '\'', '>', '.', '!', ':', '-', '#', ' '];

/// Words of denial that need no colon after them.
const REFUSING: [&str; 4] = ["not", "never", "cannot", "refuse"];

/// Starts of a line that retract the promise above it.
const TAKING_BACK: [&str; 5] = ["not ", "(not ", "is not ", "was not ", "isn't "];

/// Reads the claim in a final text. A sentence that mentions the promise does not count. A line with only the promise counts, unless
/// it is code, a quotation, denied by the text around it, or quoted from `prompt`. A line with decoration around the promise is
/// ambiguous: it does not count, and is reported.
#[must_use]
pub fn claim(final_text: &str, promise: &str, prompt: &str) -> Claim {
    let promise = promise.trim();
    if promise.is_empty() {
        return Claim::Absent;
    }
    let lines: Vec<&str> = final_text.lines().collect();
    let mut blocks = Blocks::default();
    let mut found = Claim::Absent;
    for (place, line) in lines.iter().enumerate() {
        let block = blocks.take(line);
        if line.trim() != promise {
            let bare = promise.trim_matches(DECORATION);
            let nearly = !bare.is_empty() && line.trim().trim_matches(DECORATION) == bare;
            if nearly && found == Claim::Absent {
                found = Claim::NotMeant(block.unwrap_or(Doubt::Decorated));
            }
            continue;
        }
        match block.or_else(|| doubt(&lines, place, promise, prompt)) {
            None => return Claim::Made,
            Some(doubt) => found = Claim::NotMeant(doubt),
        }
    }
    found
}

/// Tracks Markdown blocks from line to line.
#[derive(Default)]
struct Blocks {
    fences: Fences,
    quoted: bool,
    after_blank: bool,
    begun: bool,
}

impl Blocks {
    /// Returns the kind of block of a line, if it is not the agent's own text.
    fn take(&mut self, line: &str) -> Option<Doubt> {
        let text = line.trim_start();
        let after_blank = self.after_blank || !self.begun;
        self.begun = true;
        self.after_blank = text.is_empty();
        if self.fences.take(line) {
            return Some(Doubt::Code);
        }
        // A line directly below a quotation belongs to the quotation.
        self.quoted = text.starts_with('>') || (self.quoted && !text.is_empty());
        if self.quoted {
            return Some(Doubt::Quote);
        }
        let indented = line.starts_with("    ") || line.starts_with('\t');
        (indented && after_blank).then_some(Doubt::Code)
    }
}

fn doubt(lines: &[&str], place: usize, promise: &str, prompt: &str) -> Option<Doubt> {
    let (above, below) = neighbours(lines, place);
    if above.ends_with(':') && words(above).any(|word| denies(&word)) {
        return Some(Doubt::Denied);
    }
    if [above, below].into_iter().any(takes_back) {
        return Some(Doubt::Denied);
    }
    let below_lower = below
        .trim_start_matches(|c: char| !c.is_alphanumeric() && c != '(')
        .to_lowercase();
    if TAKING_BACK
        .iter()
        .any(|words| below_lower.starts_with(words))
    {
        return Some(Doubt::Denied);
    }
    let asked: Vec<&str> = prompt.lines().collect();
    let mut places = (0..asked.len()).filter(|place| asked[*place].trim() == promise);
    let quoted = places.any(|asked_place| quotes(lines, place, &asked, asked_place));
    quoted.then_some(Doubt::Prompt)
}

/// Returns whether the lines around a promise are those of the prompt. A prompt may say literally how to end,
/// so the line above is not enough if the text ends as requested.
fn quotes(lines: &[&str], place: usize, asked: &[&str], asked_place: usize) -> bool {
    let (above, below) = neighbours(lines, place);
    let (asked_above, asked_below) = neighbours(asked, asked_place);
    match (above, below) {
        ("", "") => false,
        ("", below) => below == asked_below,
        (above, below) => {
            // A quotation of the prompt may begin with the name of its speaker.
            let same = !asked_above.is_empty() && above.ends_with(asked_above);
            let conditional = above.ends_with(':') || words(above).any(|word| denies(&word));
            let further = || {
                let up = |lines: &[&str], place: usize| {
                    let above = lines[..place]
                        .iter()
                        .rposition(|line| !line.trim().is_empty());
                    above.map_or(String::new(), |above| neighbours(lines, above).0.to_owned())
                };
                let (mine, asked) = (up(lines, place), up(asked, asked_place));
                // If both texts begin at this place, there is no line above to compare.
                mine.ends_with(&asked) && (mine.is_empty() || !asked.is_empty())
            };
            same && (!below.is_empty() || conditional || further())
        }
    }
}

/// Returns the nearest lines above and below that have text.
fn neighbours<'a>(lines: &[&'a str], place: usize) -> (&'a str, &'a str) {
    let says = |line: &&&str| !line.trim().is_empty();
    let above = lines[..place].iter().rev().find(says);
    let below = lines[place + 1..].iter().find(says);
    (
        above.map_or("", |line| line.trim()),
        below.map_or("", |line| line.trim()),
    )
}

fn words(line: &str) -> impl Iterator<Item = String> {
    line.split(|c: char| !c.is_alphanumeric() && c != '\'' && c != '’')
        .map(|word| word.to_lowercase().replace('’', "'"))
}

/// Returns whether a line says that the promise is not made: a word of refusal, and soon after it a word for the promise.
fn takes_back(line: &str) -> bool {
    let words: Vec<String> = words(line).filter(|word| !word.is_empty()).collect();
    let refuses = |word: &String| word.ends_with("n't") || REFUSING.contains(&word.as_str());
    let names = |word: &String| NAMING.contains(&word.as_str());
    let mut places = (0..words.len()).filter(|place| refuses(&words[*place]));
    places.any(|place| words[place + 1..].iter().take(SOON).any(names))
}

fn denies(word: &str) -> bool {
    word.ends_with("n't") || DENYING.contains(&word)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROMISE: &str = "<promise>COMPLETE</promise>";
    const PROMPT: &str = "Fix the bug.\n\nWhen all is done, end with\n<promise>COMPLETE</promise>\nand nothing else.\n";

    fn check(text: &str, expected: Claim) {
        assert_eq!(claim(text, PROMISE, PROMPT), expected, "{text:?}");
    }

    #[test]
    fn a_line_with_only_the_promise_is_a_claim() {
        for text in [
            "<promise>COMPLETE</promise>",
            "all tests pass\r\n  <promise>COMPLETE</promise>  \r\nbye",
            "All tests pass, so here it is:\n\n<promise>COMPLETE</promise>",
            "I did not find any more failing tests.\n<promise>COMPLETE</promise>",
            "```\ncargo test\n```\n<promise>COMPLETE</promise>",
            "> the task\n\n<promise>COMPLETE</promise>",
            "- it works\n  <promise>COMPLETE</promise>",
            "````\n```\n````\n<promise>COMPLETE</promise>",
            "```cargo test``` is green\n<promise>COMPLETE</promise>",
            "I could not find more to mend.\n<promise>COMPLETE</promise>",
            "All done; I did not touch the public API.\n<promise>COMPLETE</promise>",
            "The work is complete. Nothing was skipped, and no test is not run.\n<promise>COMPLETE</promise>",
            "<promise>COMPLETE</promise>\nDone. I have not pushed anything.",
        ] {
            check(text, Claim::Made);
        }
    }

    #[test]
    fn a_mention_of_the_promise_is_not_a_claim() {
        for text in [
            "",
            "I am NOT saying <promise>COMPLETE</promise> yet",
            "<promise>complete</promise>",
            "done: <promise>COMPLETE</promise>",
        ] {
            check(text, Claim::Absent);
        }
        for text in [
            "`<promise>COMPLETE</promise>`",
            "**<promise>COMPLETE</promise>**",
            "<promise>COMPLETE</promise>.",
            "\"<promise>COMPLETE</promise>\"",
        ] {
            check(text, Claim::NotMeant(Doubt::Decorated));
        }
        check(
            "> <promise>COMPLETE</promise>",
            Claim::NotMeant(Doubt::Quote),
        );
        check(
            "`<promise>COMPLETE</promise>`\n\n<promise>COMPLETE</promise>",
            Claim::Made,
        );
        assert_eq!(
            claim("\n\n", "", PROMPT),
            Claim::Absent,
            "an empty promise would match every blank line"
        );
    }

    #[test]
    fn code_and_quotations_are_not_claims() {
        for text in [
            "```\n<promise>COMPLETE</promise>\n```",
            "~~~text\n<promise>COMPLETE</promise>",
            "````\n```\n<promise>COMPLETE</promise>\n````",
            "The file says\n\n    <promise>COMPLETE</promise>\n",
            "\t<promise>COMPLETE</promise>",
        ] {
            check(text, Claim::NotMeant(Doubt::Code));
        }
        check(
            "> When done, print\n<promise>COMPLETE</promise>",
            Claim::NotMeant(Doubt::Quote),
        );
    }

    #[test]
    fn denied_and_conditional_promises_are_not_claims() {
        for text in [
            "I am not outputting this yet:\n<promise>COMPLETE</promise>",
            "I can’t say this:\n\n<promise>COMPLETE</promise>",
            "Once the tests pass I will print:\n<promise>COMPLETE</promise>",
            "<promise>COMPLETE</promise>\nis not true yet: two tests fail",
            "<promise>COMPLETE</promise>\n(not yet)",
            "I will not output the promise yet, tests fail.\n\n<promise>COMPLETE</promise>",
            "two tests fail\n<promise>COMPLETE</promise>\n^ NOT claimed",
            "I am not done, so I do not print\n<promise>COMPLETE</promise>",
            "I won't say\n<promise>COMPLETE</promise>",
            "<promise>COMPLETE</promise>\nOh wait, the tests fail. I am not done.",
        ] {
            check(text, Claim::NotMeant(Doubt::Denied));
        }
    }

    #[test]
    fn promise_is_a_claim_although_the_prompt_says_literally_how_to_end() {
        let prompt =
            "Finish with exactly these two lines:\nAll tests pass.\n<promise>COMPLETE</promise>\n";
        let said = |text: &str| claim(text, PROMISE, prompt);
        assert_eq!(
            said("All tests pass.\n<promise>COMPLETE</promise>"),
            Claim::Made
        );
        for quoted in [
            prompt,
            "user: Finish with exactly these two lines:\nuser: All tests pass.\n<promise>COMPLETE</promise>",
            "All tests pass.\n<promise>COMPLETE</promise>\nis what I shall print",
        ] {
            assert_eq!(said(quoted), Claim::NotMeant(Doubt::Prompt), "{quoted:?}");
        }
        let whole = "Work. At the end print\n<promise>COMPLETE</promise>\n";
        assert_eq!(claim(whole, PROMISE, whole), Claim::NotMeant(Doubt::Prompt));
    }

    #[test]
    fn quoted_prompt_is_not_a_claim_but_a_separate_promise_is() {
        check(PROMPT, Claim::NotMeant(Doubt::Prompt));
        check(
            "When all is done, end with\n<promise>COMPLETE</promise>",
            Claim::NotMeant(Doubt::Prompt),
        );
        check(
            "<promise>COMPLETE</promise>\nand nothing else.",
            Claim::NotMeant(Doubt::Prompt),
        );
        check(
            "When all is done, end with\n<promise>COMPLETE</promise>\n\nIt is done.\n<promise>COMPLETE</promise>",
            Claim::Made,
        );
    }
}
