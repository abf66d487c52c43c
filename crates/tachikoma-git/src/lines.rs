//! How large a change is: lines added and removed.

use super::program::CancelToken;
use super::work_tracker::WorkTracker;

/// Changes of more files are counted by their files: beyond it nobody wrote all these lines.
const FILES_MAX: usize = 500;

/// As long as names of as many files may be.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// Counts the lines that were added to so many files, or removed from them, since the work tree was `before`; 0 where that
/// cannot be said. Blocks.
#[must_use]
pub fn lines_since(tracker: &WorkTracker, before: &str, files: usize, cancel: &CancelToken) -> u32 {
    if before.is_empty() || files == 0 || files > FILES_MAX || before == tracker.work.tree {
        return 0;
    }
    let words = [
        "diff-tree",
        "-r",
        "-z",
        "--numstat",
        "--no-renames",
        "--no-ext-diff",
        "--no-textconv",
        "--ignore-submodules=all",
        before,
        &tracker.work.tree,
    ];
    // A file that is larger is no text that somebody wrote.
    let order = tracker.loop_index.repository.git.order(&words);
    let order = order.config("core.bigFileThreshold=1m");
    let answer = order.answer_max(ANSWER_BYTES_MAX).ask(cancel);
    answer.map_or(0, |answer| sum(&answer))
}

/// Sums up `added TAB removed TAB path NUL`, with `-` where that is not known.
fn sum(answer: &[u8]) -> u32 {
    let number = |part: Option<&[u8]>| {
        let text = part.and_then(|part| std::str::from_utf8(part).ok());
        text.and_then(|text| text.parse::<u32>().ok()).unwrap_or(0)
    };
    answer.split(|byte| *byte == 0).fold(0, |all: u32, line| {
        let mut parts = line.splitn(3, |byte| *byte == b'\t');
        let (added, removed) = (number(parts.next()), number(parts.next()));
        all.saturating_add(added).saturating_add(removed)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_counts_for_nothing() {
        assert_eq!(sum(b""), 0);
        assert_eq!(sum(b"3\t1\ta\tb\0-\t-\timage.png\x000\t5\tgone\0"), 9);
        assert_eq!(sum(b"4294967295\t9\tx\0"), u32::MAX);
        assert_eq!(sum(b"no such\tline\0"), 0);
    }
}
