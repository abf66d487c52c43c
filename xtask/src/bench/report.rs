//! The results, as a table for users and as JSON for programs.

use std::path::Path;

use serde_json::json;

/// One measured value.
#[derive(Debug, Clone)]
pub struct Row {
    pub figure: String,
    pub measured: f64,
    pub unit: Unit,
    /// The goal: a maximum, or a minimum if more is better; `None` if there is no goal.
    pub goal: Option<f64>,
    /// Description of how the value was measured.
    pub detail: String,
}

/// The unit of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Ratio of times: lower is better.
    Times,
    Milliseconds,
    Kibibytes,
    Mebibytes,
    /// Ratio of speeds: higher is better.
    TimesFaster,
    MegabytesPerSecond,
}

impl Row {
    /// Returns a value with a goal.
    pub fn goal(figure: impl Into<String>, measured: f64, unit: Unit, goal: f64) -> Self {
        Self {
            goal: Some(goal),
            ..Self::info(figure, measured, unit)
        }
    }

    /// Returns a value without a goal.
    pub fn info(figure: impl Into<String>, measured: f64, unit: Unit) -> Self {
        Self {
            figure: figure.into(),
            measured,
            unit,
            goal: None,
            detail: String::new(),
        }
    }

    /// Sets the description of how the value was measured.
    pub fn detail(mut self, detail: String) -> Self {
        self.detail = detail;
        self
    }

    /// Returns whether the goal is missed. It is missed if the value could not be measured.
    pub fn falls_short(&self) -> bool {
        let missed = |goal| match self.unit.more_is_better() {
            true => self.measured < goal,
            false => self.measured > goal,
        };
        self.goal
            .is_some_and(|goal| self.measured.is_nan() || missed(goal))
    }

    fn verdict(&self) -> &'static str {
        match (self.goal, self.falls_short()) {
            (None, _) => "",
            (Some(_), false) => "ok",
            (Some(_), true) => "falls short",
        }
    }
}

impl Unit {
    fn text(self, value: f64) -> String {
        match self {
            Self::Times | Self::TimesFaster => format!("{value:.2}x"),
            Self::Milliseconds => format!("{value:.2} ms"),
            Self::Kibibytes => format!("{value:.2} KiB"),
            Self::Mebibytes => format!("{value:.1} MiB"),
            Self::MegabytesPerSecond => format!("{value:.0} MB/s"),
        }
    }

    fn more_is_better(self) -> bool {
        match self {
            Self::Times | Self::Milliseconds | Self::Kibibytes | Self::Mebibytes => false,
            Self::TimesFaster | Self::MegabytesPerSecond => true,
        }
    }

    fn bound(self) -> &'static str {
        if self.more_is_better() { ">=" } else { "<=" }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Times | Self::TimesFaster => "x",
            Self::Milliseconds => "ms",
            Self::Kibibytes => "KiB",
            Self::Mebibytes => "MiB",
            Self::MegabytesPerSecond => "MB/s",
        }
    }
}

/// Writes the figures as an aligned table.
pub fn table(rows: &[Row]) -> String {
    let head = ["figure", "measured", "goal", "", "how"].map(str::to_owned);
    let mut cells = vec![head];
    for row in rows {
        cells.push([
            row.figure.clone(),
            row.unit.text(row.measured),
            row.goal.map_or_else(String::new, |goal| {
                format!("{} {}", row.unit.bound(), row.unit.text(goal))
            }),
            row.verdict().to_owned(),
            row.detail.clone(),
        ]);
    }
    let widths: [usize; 5] = std::array::from_fn(|column| {
        let width = |line: &[String; 5]| line[column].chars().count();
        cells.iter().map(width).max().unwrap_or(0)
    });
    let mut text = String::new();
    for line in cells {
        let mut out = String::new();
        for (column, (cell, width)) in line.iter().zip(widths).enumerate() {
            // Numbers are right-aligned, text is left-aligned.
            out += &match column {
                1 | 2 => format!("{cell:>width$}  "),
                _ => format!("{cell:<width$}  "),
            };
        }
        text += out.trim_end();
        text.push('\n');
    }
    text
}

/// Writes the figures as JSON.
pub fn json(rows: &[Row]) -> String {
    let figures: Vec<_> = rows
        .iter()
        .map(|row| {
            json!({
                "figure": row.figure,
                "measured": row.measured,
                "unit": row.unit.name(),
                "goal": row.goal,
                "ok": row.goal.map(|_| !row.falls_short()),
                "how": row.detail,
            })
        })
        .collect();
    format!("{:#}\n", json!({ "figures": figures }))
}

/// Type number of the file system `tmpfs`, which is in memory.
const TMPFS: i64 = 0x0102_1994;

/// Returns whether a directory is in memory only.
pub fn is_in_memory(dir: &Path) -> bool {
    rustix::fs::statfs(dir).is_ok_and(|found| found.f_type == TMPFS)
}

/// Names the file system of a directory, which determines the cost of a sync.
pub fn place_text(dir: &Path) -> String {
    let kind = match rustix::fs::statfs(dir).map(|found| found.f_type) {
        Ok(0xef53) => "ext4".to_owned(),
        Ok(TMPFS) => "tmpfs".to_owned(),
        Ok(0x9123_683e) => "btrfs".to_owned(),
        Ok(0x5846_5342) => "xfs".to_owned(),
        Ok(0x794c_7630) => "overlayfs".to_owned(),
        Ok(other) => format!("file system {other:#x}"),
        Err(error) => error.to_string(),
    };
    format!("{kind} ({})", dir.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Row> {
        vec![
            Row::goal("iteration on disk", 1.5, Unit::Times, 2.0).detail("3 ms to 2 ms".into()),
            Row::goal("status", 20.25, Unit::Milliseconds, 15.0),
            Row::info("peak", 9.0, Unit::Mebibytes),
        ]
    }

    #[test]
    fn the_table_is_aligned_and_shows_missed_goals() {
        let expected = "\
figure             measured         goal               how
iteration on disk     1.50x     <= 2.00x  ok           3 ms to 2 ms
status             20.25 ms  <= 15.00 ms  falls short
peak                9.0 MiB
";
        assert_eq!(table(&rows()), expected);
    }

    #[test]
    fn json_has_every_figure() {
        let value: serde_json::Value = serde_json::from_str(&json(&rows())).unwrap();
        assert_eq!(value["figures"][0]["ok"], true);
        assert_eq!(value["figures"][1]["ok"], false);
        assert_eq!(value["figures"][1]["unit"], "ms");
        assert_eq!(value["figures"][2]["ok"], serde_json::Value::Null);
    }

    #[test]
    fn a_value_that_could_not_be_measured_misses_its_goal() {
        let row = |measured| Row::goal("x", measured, Unit::Times, 2.0);
        assert!(row(f64::NAN).falls_short());
        assert!(
            !row(2.0).falls_short(),
            "a value equal to the goal reaches it"
        );
        assert!(!Row::info("x", f64::NAN, Unit::Times).falls_short());
        let row = |measured| Row::goal("x", measured, Unit::MegabytesPerSecond, 300.0);
        assert!(row(f64::NAN).falls_short());
        assert!(row(299.0).falls_short(), "a lower speed misses the goal");
        assert!(!row(300.0).falls_short());
        assert!(table(&[row(1.0)]).contains(">= 300 MB/s"));
    }
}
