//! Draws a curve of the context usage with characters, for a terminal of 80 columns.

use super::curve::Curve;

/// Width of the chart in columns. With its scale it is narrower than 80 columns.
const COLUMNS: usize = 70;

/// Height of the chart in rows. Each row is ten percent.
const ROWS: usize = 10;

/// Draws a curve: readings from left to right, usage from 0 to 100 % from bottom to top.
pub fn chart(curve: &Curve) -> Vec<String> {
    let fills = columns(curve);
    let redline = curve.redline_tokens.filter(|_| curve.window > 0);
    let redline = redline.map(|tokens| row_of(percent_of(tokens, curve.window)));
    let mut lines = Vec::new();
    for row in (0..ROWS).rev() {
        let blank = if redline == Some(row) { '-' } else { ' ' };
        let bars: String = fills
            .iter()
            .map(|fill| if row_of(*fill) >= row { '#' } else { blank })
            .collect();
        let rest = COLUMNS - fills.len();
        let line = format!(
            "{:>4}% |{bars}{}",
            (row + 1) * 10,
            blank.to_string().repeat(rest)
        );
        lines.push(line.trim_end().to_owned());
    }
    lines.push(format!("      +{}", "-".repeat(COLUMNS)));
    lines
}

/// Returns the context usage for each column in percent: the highest of the column's readings.
fn columns(curve: &Curve) -> Vec<f64> {
    let readings = &curve.readings;
    let count = readings.len().min(COLUMNS);
    let mut fills = vec![0.0_f64; count];
    for (index, reading) in readings.iter().enumerate() {
        let column = index * count / readings.len();
        if let Some(fill) = fills.get_mut(column) {
            *fill = fill.max(reading.percent);
        }
    }
    fills
}

/// Returns the row for a usage in percent. An empty context is in the lowest row.
fn row_of(percent: f64) -> usize {
    let mut rows = (0..ROWS).rev();
    rows.find(|row| percent > (*row as f64) * 10.0).unwrap_or(0)
}

fn percent_of(tokens: u64, window: u64) -> f64 {
    tachikoma_core::Context {
        tokens,
        window,
        estimated: false,
    }
    .percent()
}
