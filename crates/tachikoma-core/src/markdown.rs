//! Fenced blocks of code in Markdown, line by line.

/// Minimum length of a fence.
const FENCE_MIN: usize = 3;

/// Tracks code blocks from line to line.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fences {
    /// The fence that opened the block: its character and how many of them.
    open: Option<(char, usize)>,
}

impl Fences {
    /// Reads the next line. Returns whether it belongs to a code block. The fences belong to their block.
    pub fn take(&mut self, line: &str) -> bool {
        let text = line.trim_start();
        let mark = text.chars().next().unwrap_or_default();
        let length = text.chars().take_while(|c| *c == mark).count();
        let behind = text.trim_start_matches(mark);
        match self.open {
            Some((open, least)) => {
                if mark == open && length >= least && behind.trim().is_empty() {
                    self.open = None;
                }
                true
            }
            None => {
                // Backticks that close on the same line are inline code.
                let opens = match mark {
                    '`' => length >= FENCE_MIN && !behind.contains('`'),
                    '~' => length >= FENCE_MIN,
                    _ => false,
                };
                self.open = opens.then_some((mark, length));
                opens
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_block_ends_at_its_fence_and_inline_code_is_not_a_block() {
        for (text, expected) in [
            ("a\n```\nb\n```\nc", "01110"),
            ("```rust\nb\n``` \nc", "1110"),
            ("```\nb\n```rust\nc", "1111"),
            ("````\n```\n````\nc", "1110"),
            ("~~~ a`b\n```\n~~~\nc", "1110"),
            ("```cargo test``` must pass\nc", "00"),
            ("``two``\nc\n", "00"),
            ("\n\nc", "000"),
        ] {
            let mut fences = Fences::default();
            let is_code: String = text
                .lines()
                .map(|line| if fences.take(line) { '1' } else { '0' })
                .collect();
            assert_eq!(is_code, expected, "{text:?}");
        }
    }
}
