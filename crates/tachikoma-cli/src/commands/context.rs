//! `tachikoma context`: shows how the context of a session filled up. Only reads.

mod chart;
mod curve;

use std::process::ExitCode;

use tachikoma_core::{Seq, SessionNo};

use super::records;
use crate::failure::Failure;
use crate::out;
use crate::workspace::Workspace;

use curve::{Curve, Reading};

/// Prints the context usage of a session; by default of the latest session with a reading.
pub fn context(
    workspace: &Workspace,
    session: Option<u32>,
    json: bool,
) -> Result<ExitCode, Failure> {
    let current = workspace.current_loop()?;
    let mut curves = curve::Curves::new(session.map(SessionNo));
    records::read(&current.dir, &current.encryption, Seq(0), |record| {
        curves.take(&record);
    })?;
    let Some(curve) = curves.finish() else {
        let which = session.map_or("no session".to_owned(), |number| {
            format!("session {number}")
        });
        let what = match session {
            Some(_) => format!("{which} has no context reading"),
            None => format!("{which} of this loop has a context reading"),
        };
        return Err(Failure::new(what)
            .hint("a `command` agent reports none; `tachikoma history` shows the iterations"));
    };
    if json {
        let text = serde_json::to_string_pretty(&curve);
        out::line(&text.map_err(|error| Failure::new(error.to_string()))?);
        return Ok(ExitCode::SUCCESS);
    }
    for line in text(&curve) {
        out::line(&line);
    }
    Ok(ExitCode::SUCCESS)
}

fn text(curve: &Curve) -> Vec<String> {
    let mut lines = vec![headline(curve), String::new()];
    lines.extend(chart::chart(curve));
    lines.push(String::new());
    lines.push(format!(
        "{:<24} {:>9} {:>10} {:>7}  what happened",
        "time", "iteration", "tokens", "percent"
    ));
    lines.extend(curve.readings.iter().map(row));
    if curve.left_out > 0 {
        lines.push(format!(
            "{} readings in between are left out",
            curve.left_out
        ));
    }
    lines
}

fn headline(curve: &Curve) -> String {
    let redline = curve.redline_tokens.map(|at| format!(", redline at {at}"));
    let guess = if curve.readings.iter().any(|reading| reading.estimated) {
        ", estimated"
    } else {
        ""
    };
    format!(
        "session {}: {} readings{guess}, window {} tokens{}",
        curve.session,
        curve.readings.len() as u64 + curve.left_out,
        curve.window,
        redline.unwrap_or_default()
    )
}

fn row(reading: &Reading) -> String {
    let marks: Vec<&str> = reading.marks.iter().map(|mark| mark.word()).collect();
    let line = format!(
        "{:<24} {:>9} {:>10} {:>6.1}%  {}",
        reading.time.to_string(),
        reading.iteration,
        reading.tokens,
        reading.percent,
        marks.join(", ")
    );
    line.trim_end().to_owned()
}
