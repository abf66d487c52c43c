//! The screen of a loop at terminals of two sizes, with and without colors.

use insta::assert_snapshot;
use tachikoma_testkit::{Scratch, mask};

use crate::live_pty::{PROGRESS, Terminal};
use crate::live_support::{tool, with_agent};

const WORDS: [&str; 7] = ["run", "--delay", "0s", "--", "sh", "agent.sh", "x"];

/// Returns a directory with an agent that fails once and then claims completion.
fn stage() -> Scratch {
    let scratch = with_agent(
        "echo 'The parser reads nested comments now, and the tests of the parser pass again.'\n\
         [ -e failed ] || { touch failed; exit 7; }\n\
         echo '<promise>COMPLETE</promise>'",
    );
    scratch.write(
        "tachikoma.toml",
        "[[gate]]\nname = 'tests'\ncommand = 'true'\n",
    );
    scratch
}

/// Runs the loop in a terminal. Returns the screen at its end, from the first iteration on, and the screen itself.
fn screen(rows: u16, columns: u16, variable: (&str, &str)) -> (String, vt100::Parser) {
    let scratch = stage();
    let tool = tool(&scratch).env(variable.0, variable.1);
    let words = [&WORDS[..1], &["--trust"], &WORDS[1..]].concat();
    let (code, raw) = Terminal::of_size(&tool, &words, rows, columns).end_raw();
    assert_eq!(code, Some(0), "{raw}");
    assert!(raw.contains(PROGRESS), "a live line: {raw}");
    let size = |size: u16| std::num::NonZero::new(size).unwrap();
    let mut parser = vt100::Parser::new(size(rows), size(columns), 0);
    parser.process(raw.as_bytes());
    let shown = parser.screen().contents();
    let first = shown.find("━━ iteration 1").unwrap_or_default();
    (mask(&shown[first..]), parser)
}

/// Returns whether a cell of the screen has a color.
fn is_colored(parser: &vt100::Parser) -> bool {
    let screen = parser.screen();
    let (rows, columns) = screen.size();
    let (rows, columns) = (rows.get(), columns.get());
    let mut places = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
    places.any(|(row, column)| {
        let cell = screen.cell(row, column);
        cell.is_some_and(|cell| cell.fgcolor() != vt100::Color::Default || cell.dim())
    })
}

#[test]
fn lines_are_wrapped_at_80_columns() {
    let (shown, parser) = screen(24, 80, ("NO_COLOR", ""));
    assert!(is_colored(&parser));
    assert_snapshot!(shown, @"
    ━━ iteration 1 ━━ [CLOCK] ━━ session 1 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
      | The parser reads nested comments now, and the tests of the parser pass
        again.
      ✗ failed after [DURATION]: the agent ended with exit 7
      ↻ retry in [DURATION] (failure 1 of 10)
    ━━ iteration 2 ━━ [CLOCK] ━━ session 1 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
      | The parser reads nested comments now, and the tests of the parser pass
        again.
      | <promise>COMPLETE</promise>
      ✓ done in [DURATION], claims completion
      completion is claimed; gates: tests
      ✓ gate tests passed in [DURATION]
    ✓ completed: the work is complete (2 iterations, 1 succeeded, 1 failed, [DURATION] of
        work)
      this run: [CLOCK] to [CLOCK]
    ");
}

#[test]
fn rules_have_at_most_100_columns() {
    let (shown, parser) = screen(40, 120, ("NO_COLOR", "1"));
    assert!(!is_colored(&parser), "NO_COLOR disables colors");
    assert_snapshot!(shown, @"
    ━━ iteration 1 ━━ [CLOCK] ━━ session 1 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
      | The parser reads nested comments now, and the tests of the parser pass again.
      ✗ failed after [DURATION]: the agent ended with exit 7
      ↻ retry in [DURATION] (failure 1 of 10)
    ━━ iteration 2 ━━ [CLOCK] ━━ session 1 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
      | The parser reads nested comments now, and the tests of the parser pass again.
      | <promise>COMPLETE</promise>
      ✓ done in [DURATION], claims completion
      completion is claimed; gates: tests
      ✓ gate tests passed in [DURATION]
    ✓ completed: the work is complete (2 iterations, 1 succeeded, 1 failed, [DURATION] of work)
      this run: [CLOCK] to [CLOCK]
    ");
}

#[test]
fn a_dumb_terminal_gets_no_escape_codes() {
    let scratch = stage();
    let tool = tool(&scratch).env("TERM", "dumb");
    let words = [&WORDS[..1], &["--trust"], &WORDS[1..]].concat();
    let (code, raw) = Terminal::start(&tool, &words, 80).end_raw();
    assert_eq!(code, Some(0), "{raw}");
    assert!(raw.contains("━━ iteration 1 ━━"), "{raw}");
    assert!(!raw.contains(['\u{1b}', '\u{9b}']), "{raw:?}");
    assert!(!raw.contains(PROGRESS), "{raw:?}");
}
