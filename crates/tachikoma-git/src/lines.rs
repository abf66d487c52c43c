//! Counts the lines that an iteration added and removed.

use super::program::CancelToken;
use super::work_tracker::WorkTracker;

/// Maximum number of files in which lines are counted. Larger changes are measured by their number of files only.
const FILES_MAX: usize = 500;

/// Limit for the output of git in bytes. It is enough for the paths of `FILES_MAX` files.
const STDOUT_BYTES_MAX: usize = 4 << 20;

/// Counts the lines that were added to or removed from `files` files since the tree `before`; 0 if that cannot be determined.
/// Blocks.
#[must_use]
pub fn lines_since(tracker: &WorkTracker, before: &str, files: usize, cancel: &CancelToken) -> u32 {
    if before.is_empty() || files == 0 || files > FILES_MAX || before == tracker.work.tree {
        return 0;
    }
    let args = "diff-tree -r -z --numstat --no-renames --no-ext-diff --no-textconv --ignore-submodules=all";
    let command = tracker.loop_index.repository.git.command(args);
    // Lines of very large files are not counted.
    let command = command
        .arg(before)
        .arg(&tracker.work.tree)
        .config("core.bigFileThreshold=1m");
    let output = command.stdout_max(STDOUT_BYTES_MAX).stdout(cancel);
    output.map_or(0, |output| sum(&output))
}

/// Sums up lines of `added TAB removed TAB path NUL`. Binary files have `-` instead of numbers.
fn sum(output: &[u8]) -> u32 {
    let number = |part: Option<&[u8]>| {
        let text = part.and_then(|part| std::str::from_utf8(part).ok());
        text.and_then(|text| text.parse::<u32>().ok()).unwrap_or(0)
    };
    output.split(|byte| *byte == 0).fold(0, |all: u32, line| {
        let mut split_nul = line.splitn(3, |byte| *byte == b'\t');
        let (added, removed) = (number(split_nul.next()), number(split_nul.next()));
        all.saturating_add(added).saturating_add(removed)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unparsable_numstat_output_counts_as_zero() {
        assert_eq!(sum(b""), 0);
        assert_eq!(sum(b"3\t1\ta\tb\0-\t-\timage.png\x000\t5\tgone\0"), 9);
        assert_eq!(sum(b"4294967295\t9\tx\0"), u32::MAX);
        assert_eq!(sum(b"no such\tline\0"), 0);
    }
}
