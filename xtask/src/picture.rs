//! `cargo xtask picture`: runs the demo and draws its output as an image for the README.

use std::fmt::Write as _;
use std::path::Path;

use crate::cargo;

/// Width and height of a character in pixels, for a 13 px monospace font.
const CELL: (usize, usize) = (8, 18);

/// Margin of the image in pixels.
const MARGIN: usize = 16;

/// Runs `tachikoma demo` and writes `docs/demo.svg`.
pub fn run(root: &Path) -> Result<(), String> {
    let demo = cargo(root)
        .args([
            "run",
            "--quiet",
            "--release",
            "--package",
            "tachikoma-cli",
            "--",
            "demo",
        ])
        .output()
        .map_err(|error| format!("the demonstration cannot be started: {error}"))?;
    if !demo.status.success() {
        return Err(format!("the demonstration ended with {}", demo.status));
    }
    let printed = String::from_utf8_lossy(&demo.stdout);
    let lines: Vec<&str> = std::iter::once("$ tachikoma demo")
        .chain(printed.lines())
        .collect();
    let path = root.join("docs/demo.svg");
    std::fs::write(&path, svg(&lines)).map_err(|error| format!("write {}: {error}", path.display()))
}

/// Returns an SVG image of a terminal that shows these lines.
fn svg(lines: &[&str]) -> String {
    let columns = lines
        .iter()
        .map(|line| line.chars().count())
        .max()
        .unwrap_or(0);
    let width = columns * CELL.0 + 2 * MARGIN;
    let height = lines.len() * CELL.1 + 2 * MARGIN;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"ui-monospace, Menlo, Consolas, monospace\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#1e1e1e\"/>\n"
    );
    for (row, line) in lines.iter().enumerate() {
        let y = MARGIN + row * CELL.1 + 13;
        let text = line
            .replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;");
        let fill = colour(line);
        let _ = writeln!(
            svg,
            "<text x=\"{MARGIN}\" y=\"{y}\" fill=\"{fill}\" xml:space=\"preserve\">{text}</text>"
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn colour(line: &str) -> &'static str {
    match line {
        _ if line.starts_with('$') => "#ffffff",
        _ if line.starts_with("  |") => "#9d9d9d",
        _ if line.contains('✓') => "#89d185",
        _ if line.contains('✗') => "#f48771",
        _ if line.contains('↻') || line.starts_with("──") => "#dcdcaa",
        _ => "#d4d4d4",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_is_drawn_and_escaped() {
        let drawn = svg(&["$ x", "a <b> & c"]);
        assert!(drawn.contains(">a &lt;b&gt; &amp; c</text>"), "{drawn}");
        assert_eq!(drawn.matches("<text ").count(), 2);
    }
}
