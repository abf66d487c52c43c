//! Writes to stdout and stderr, which may be closed. All output of this program is written here, and characters that a
//! terminal would interpret are escaped.

use std::io::{ErrorKind, IsTerminal, Write as _};
use std::sync::OnceLock;

use clap::ColorChoice;

use crate::sanitize::harmless;
use crate::view::text::Text;

/// The value of `--color`; unset until the arguments are parsed.
static COLOR: OnceLock<ColorChoice> = OnceLock::new();

/// Sets when colors are printed.
pub fn choose_color(choice: ColorChoice) {
    let _ = COLOR.set(choice);
}

/// Returns whether escape codes may be written to a stream: it is a terminal that understands them, and the user did not disable colors.
/// `--color always` also colors output to a file.
pub fn has_color(stream: &impl IsTerminal) -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    match COLOR.get().copied().unwrap_or(ColorChoice::Auto) {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => stream.is_terminal() && !is_set("NO_COLOR") && !is_dumb(),
    }
}

/// Returns whether the terminal understands no escape codes.
pub fn is_dumb() -> bool {
    std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb")
}

/// Returns the number of columns of the terminal at stdout; 80 if it is not a terminal or does not report its width.
pub fn columns() -> usize {
    rustix::termios::tcgetwinsize(std::io::stdout())
        .map(|size| usize::from(size.ws_col))
        .ok()
        .filter(|columns| *columns > 0)
        .unwrap_or(80)
}

/// Prints a line. If the reader has closed the pipe (`| head`), the program exits successfully.
pub fn line(text: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(error) = writeln!(out, "{}", harmless(text)) {
        std::process::exit(i32::from(error.kind() != ErrorKind::BrokenPipe));
    }
}

/// Prints a line with tones. If the reader has closed the pipe (`| head`), the program exits successfully.
pub fn text(text: &Text) {
    let mut out = std::io::stdout().lock();
    let rendered = text.render(has_color(&out));
    if let Err(error) = writeln!(out, "{rendered}") {
        std::process::exit(i32::from(error.kind() != ErrorKind::BrokenPipe));
    }
}

/// Columns by which the later lines of wrapped text are indented.
const WRAP_INDENT: usize = 4;

/// Renders a line for stdout, with its newline. A terminal gets it wrapped at word boundaries.
pub fn rendered(text: &Text) -> String {
    let out = std::io::stdout();
    let color = has_color(&out);
    let lines = match out.is_terminal() {
        true => text.wrap(columns(), WRAP_INDENT),
        false => vec![text.clone()],
    };
    let lines = lines.iter();
    lines.map(|line| line.render(color) + "\n").collect()
}

/// Prints a line with tones about a running loop. If the reader has closed the pipe, the loop continues.
pub fn report_text(text: &Text) {
    let mut out = std::io::stdout().lock();
    let _ = out
        .write_all(rendered(text).as_bytes())
        .and_then(|()| out.flush());
}

/// Prints a line about a running loop. If the reader has closed the pipe, the loop continues.
pub fn report(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{}", harmless(text)).and_then(|()| out.flush());
}

/// Prints a line to standard error. Errors are ignored. The line is written at once, so that the progress line is not drawn into it.
pub fn note(text: &str) {
    let line = format!("{}\n", harmless(text));
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}
