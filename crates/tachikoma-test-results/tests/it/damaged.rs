//! Any input is read without a panic and within the limits: truncated and changed recordings, and inputs that
//! are far too large.

use std::io::{self, Read};

use tachikoma_core::Verdict;
use tachikoma_test_results::{
    self as results, Format, LINE_BYTES_MAX, NAME_BYTES_MAX, PROBLEMS_MAX, Results, ResultsError,
    TESTS_MAX,
};

use crate::recordings::{RUNNERS, recordings};

/// Number of changed versions of each recording.
const CHANGES: u64 = 20;

/// Maximum number of positions at which a recording is cut. A short one is cut at every byte.
const CUTS_MAX: usize = 100;

fn check(read: &Result<Results, ResultsError>) {
    let Ok(results) = read else { return };
    assert!(results.tests.len() <= TESTS_MAX);
    assert!(results.problems.len() <= PROBLEMS_MAX);
    let mut named = 0;
    for test in &results.tests {
        assert!(test.name.len() <= NAME_BYTES_MAX, "{}", test.name);
        assert!(!test.name.contains(char::is_control), "{:?}", test.name);
        named += 1;
    }
    assert!(results.counts.total() >= named);
}

/// Pseudorandom numbers (`SplitMix64`).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn below(state: &mut u64, bound: usize) -> usize {
    usize::try_from(next(state) % bound.max(1) as u64).unwrap()
}

#[test]
fn truncated_recordings_are_read_and_reported_as_incomplete() {
    for runner in RUNNERS {
        for (name, bytes) in recordings(runner) {
            let whole = results::read(&bytes[..], None);
            let Ok(whole) = whole else { continue };
            let failing = |results: &Results| {
                let failed = |verdict: Verdict| verdict.is_failure();
                results
                    .tests
                    .iter()
                    .filter(|test| failed(test.verdict))
                    .count()
            };
            let step = bytes.len().div_ceil(CUTS_MAX);
            for end in (0..bytes.len()).step_by(step) {
                let cut = results::read(&bytes[..end], Some(whole.format));
                check(&cut);
                let Ok(cut) = cut else { continue };
                let lost = cut.tests.len() < whole.tests.len() || failing(&cut) < failing(&whole);
                // In these formats a cut between two binaries, packages or files is not noticed, because their number is not announced.
                let between = matches!(runner, "libtest" | "go") || name.starts_with("prove-");
                let silent = lost && cut.is_complete() && !between;
                assert!(!silent, "{name} cut at {end}: {cut:?}");
            }
        }
    }
}

#[test]
fn changed_recordings_are_read_without_a_panic() {
    const STUFFING: [&[u8]; 14] = [
        b"\"",
        b"\\",
        b"<",
        b">",
        b"</testsuite>",
        b"{",
        b"}",
        b"[",
        b"\n",
        b"\r\n",
        b"\xff\xfe",
        b"\x1b[31m",
        b"\0",
        b"18446744073709551616",
    ];
    for runner in RUNNERS {
        for (name, bytes) in recordings(runner) {
            let format = results::read(&bytes[..], None)
                .ok()
                .map(|results| results.format);
            let mut state = bytes.len() as u64;
            for _ in 0..CHANGES {
                let mut changed = bytes.clone();
                for _ in 0..=below(&mut state, 4) {
                    let at = below(&mut state, changed.len());
                    let end = at + below(&mut state, (changed.len() - at).min(40));
                    match below(&mut state, 4) {
                        0 => changed[at] ^= 1 << below(&mut state, 8),
                        1 => drop(changed.drain(at..end)),
                        2 => {
                            let again = changed[at..end].to_vec();
                            changed.splice(end..end, again);
                        }
                        _ => {
                            let stuffing = STUFFING[below(&mut state, STUFFING.len())];
                            changed.splice(at..end, stuffing.iter().copied());
                        }
                    }
                    if changed.is_empty() {
                        break;
                    }
                }
                let read = std::panic::catch_unwind(|| {
                    check(&results::read(&changed[..], None));
                    check(&results::read(&changed[..], format));
                });
                assert!(
                    read.is_ok(),
                    "{name}: {:?}",
                    String::from_utf8_lossy(&changed)
                );
            }
        }
    }
}

#[test]
fn every_format_reads_output_of_other_formats_without_a_panic() {
    let all = [
        Format::Junit,
        Format::Libtest,
        Format::Nextest,
        Format::Pytest,
        Format::Go,
        Format::Jest,
        Format::Tap,
    ];
    for runner in RUNNERS {
        for (_, bytes) in recordings(runner) {
            for format in all {
                check(&results::read(&bytes[..], Some(format)));
            }
        }
    }
}

/// A reader that generates its bytes while it is read.
struct Made<F> {
    part: F,
    number: u64,
    ready: Vec<u8>,
    at: usize,
}

fn made(part: impl FnMut(u64) -> Option<Vec<u8>>) -> impl Read {
    Made {
        part,
        number: 0,
        ready: Vec::new(),
        at: 0,
    }
}

impl<F: FnMut(u64) -> Option<Vec<u8>>> Read for Made<F> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.at == self.ready.len() {
            let Some(part) = (self.part)(self.number) else {
                return Ok(0);
            };
            (self.ready, self.at, self.number) = (part, 0, self.number + 1);
        }
        let count = (&self.ready[self.at..]).read(into)?;
        self.at += count;
        Ok(count)
    }
}

/// Returns the peak memory of this process in bytes.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .unwrap();
    let kilobytes: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kilobytes << 10
}

/// Maximum memory that the tests below may add: several times the stored names, because tests run in parallel.
const MEMORY_MAX: u64 = 700 << 20;

/// A format, the number of tests, the text before and after them, and the text of one test.
type List = (
    Format,
    u64,
    &'static str,
    &'static str,
    fn(u64, &str) -> String,
);

/// Inputs with more tests than are stored by name, one per format.
const LISTS: [List; 5] = [
    (
        Format::Libtest,
        1_000_000,
        "running 1000000 tests\n",
        "test result: ok. 1000000 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n",
        |number, long| format!("test {long}{number} ... ok\n"),
    ),
    (Format::Tap, 160_000, "1..160000\n", "", |number, long| {
        format!("ok {number} - {long}{number}\n")
    }),
    (
        Format::Junit,
        160_000,
        "<testsuite>",
        "</testsuite>",
        |number, long| format!("<testcase name=\"{long}{number}\"/>\n"),
    ),
    (
        Format::Jest,
        160_000,
        r#"{"testResults":[{"assertionResults":[{"status":"todo"}"#,
        r#"],"name":"a"}]}"#,
        |number, long| format!(",{{\"title\":\"{long}{number}\",\"status\":\"passed\"}}"),
    ),
    (
        Format::Go,
        160_000,
        "",
        "{\"Action\":\"pass\",\"Package\":\"p\"}\n",
        |number, long| {
            let test = format!("\"Package\":\"p\",\"Test\":\"{long}{number}\"}}\n");
            format!("{{\"Action\":\"run\",{test}{{\"Action\":\"pass\",{test}")
        },
    ),
];

#[test]
fn a_million_tests_are_counted_within_the_memory_limit() {
    let before = peak_bytes();
    let long = "x".repeat(8);
    for (format, count, begin, end, of) in LISTS {
        let input = made(|number: u64| match number {
            0 => Some(begin.as_bytes().to_vec()),
            number if number <= count => Some(of(number, &long).into_bytes()),
            number if number == count + 1 => Some(end.as_bytes().to_vec()),
            _ => None,
        });
        let results = results::read(input, None).unwrap();
        assert_eq!(results.format, format);
        assert_eq!(results.counts.passed, count, "{format}");
        assert!(
            results.tests.len() < 160_000,
            "{format}: the names are bounded"
        );
        assert!(
            !results.is_complete(),
            "{format}: missing tests must be reported"
        );
        check(&Ok(results));
    }
    let more = peak_bytes().saturating_sub(before);
    assert!(more < MEMORY_MAX, "{more} bytes");
}

#[test]
fn a_very_long_line_uses_little_memory_and_hides_no_test() {
    let before = peak_bytes();
    // A line of `size` megabytes without a newline.
    let of = |size: u64, head: &'static str, byte: u8, tail: &'static str| {
        made(move |number| match number {
            0 => Some(head.as_bytes().to_vec()),
            number if number <= size => Some(vec![byte; 1 << 20]),
            number if number == size + 1 => Some(tail.as_bytes().to_vec()),
            _ => None,
        })
    };
    let flood = |head, byte, tail| of(20, head, byte, tail);
    let one = |format: Format, input: &mut dyn Read| {
        let results = results::read(input, Some(format)).unwrap();
        assert_eq!(results.counts.total(), 2, "{format}: {results:?}");
        check(&Ok(results));
    };
    one(
        Format::Tap,
        &mut of(100, "1..2\nok 1 - ", b'x', "\nok 2 - b\n"),
    );
    one(
        Format::Libtest,
        &mut flood(
            "running 2 tests\ntest a ... ok\n",
            b'x',
            "\ntest b ... ok\ntest result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n",
        ),
    );
    one(
        Format::Go,
        &mut flood(
            "{\"Action\":\"run\",\"Package\":\"p\",\"Test\":\"a\"}\n{\"Action\":\"pass\",\"Package\":\"p\",\"Test\":\"a\"}\n\
             {\"Action\":\"run\",\"Package\":\"p\",\"Test\":\"b\"}\n{\"Action\":\"output\",\"Package\":\"p\",\"Output\":\"",
            b'x',
            "\"}\n{\"Action\":\"fail\",\"Package\":\"p\",\"Test\":\"b\"}\n{\"Action\":\"fail\",\"Package\":\"p\"}\n",
        ),
    );
    one(
        Format::Junit,
        &mut flood(
            "<testsuite><testcase name='a'/><testcase name='b'><system-out>",
            b'x',
            "</system-out></testcase></testsuite>",
        ),
    );
    one(
        Format::Junit,
        &mut flood(
            "<testsuite><testcase name='a'/><testcase name='b'><failure message='",
            b'>',
            "'/></testcase></testsuite>",
        ),
    );
    one(
        Format::Junit,
        &mut flood(
            "<testsuite><testcase name='a'/><testcase name='b'><![CDATA[",
            b'<',
            "]]></testcase></testsuite>",
        ),
    );
    one(
        Format::Jest,
        &mut flood(
            r#"{"testResults":[{"name":"a","assertionResults":[{"title":"a","status":"passed"},{"status":"failed","title":""#,
            b'\\',
            r#""}]}]}"#,
        ),
    );
    let more = peak_bytes().saturating_sub(before);
    assert!(more < MEMORY_MAX, "{more} bytes");
}

#[test]
fn other_very_large_inputs_are_rejected_or_reported() {
    let deep = made(|number| (number < 2).then(|| b"<testsuite>".repeat(100_000)));
    let results = results::read(deep, None).unwrap();
    let text = results.problems[0].to_string();
    assert!(
        text.ends_with("more than 64 elements are inside of each other"),
        "{text}"
    );

    let wide = made(|number| {
        Some(match number {
            0 => b"<testsuite><testcase name='a'/><testcase ".to_vec(),
            1..100 => (0..1000)
                .map(|column| format!("a{number}x{column}='' "))
                .collect::<String>()
                .into_bytes(),
            _ => return None,
        })
    });
    let results = results::read(wide, None).unwrap();
    assert!(
        results.problems[0]
            .text
            .ends_with("the output is incomplete: it ends inside of <testsuite>"),
        "{:?}",
        results.problems
    );

    let nested = made(|number| {
        (number < 10).then(|| match number {
            0 => b"{\"testResults\":[".to_vec(),
            _ => vec![b'['; 1 << 16],
        })
    });
    let error = results::read(nested, None).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("invalid type: sequence, expected a string"),
        "{error}"
    );

    let long = made(|number| match number {
        0 => Some(b"<testsuite><testcase name='a'/><system-out>".to_vec()),
        1..70 => Some(vec![b'x'; 1 << 20]),
        _ => None,
    });
    let results = results::read(long, None).unwrap();
    assert_eq!(results.counts.passed, 1);
    let texts = results.problems.iter().map(|problem| problem.text.as_str());
    assert_eq!(
        texts.collect::<Vec<_>>(),
        [
            "the output is incomplete: it ends inside of <system-out>",
            "only the first 67108864 bytes were read",
        ]
    );

    let groups = made(|number| {
        let indent = " ".repeat(usize::try_from(number % 100).unwrap());
        (number < 300)
            .then(|| format!("{indent}ok 1 - {}\n", "x".repeat(LINE_BYTES_MAX)).into_bytes())
    });
    check(&results::read(groups, Some(Format::Tap)));
}
