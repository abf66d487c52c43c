//! `tachikoma agents`: summarizes the recorded output of an agent. Only reads.

use std::fmt::Write as _;
use std::io::{self, BufRead, ErrorKind};
use std::path::Path;
use std::process::ExitCode;

use tachikoma_agents::line::{Line, LineSplitter};
use tachikoma_agents::report::{Exit, Report, Summing};
use tachikoma_agents::{Decoder, claude, opencode};
use tachikoma_core::Context;
use tachikoma_loop_runner::store::encryption::Encryption;
use tachikoma_loop_runner::store::{compressed, is_damage};

use crate::args::{AgentsCommand, DecodeArgs, DecodedAgent};
use crate::failure::Failure;
use crate::out;
use crate::sanitize::sanitize;

/// Maximum length in bytes of the final text in the output for people. JSON output has more.
const TEXT_BYTES_SHOWN: usize = 200;

/// Runs the command.
pub fn agents(command: &AgentsCommand) -> Result<ExitCode, Failure> {
    match command {
        AgentsCommand::Decode(args) => decode(args),
    }
}

fn decode(args: &DecodeArgs) -> Result<ExitCode, Failure> {
    let (decoder, line_bytes_max, printed_by) = match args.agent {
        DecodedAgent::Claude => (
            Decoder::Claude(Box::default()),
            claude::LINE_BYTES_MAX,
            "`claude --output-format stream-json`",
        ),
        DecodedAgent::Opencode => (
            Decoder::OpenCode(Box::default()),
            opencode::LINE_BYTES_MAX,
            "`opencode run --format json`, or its server's event stream,",
        ),
    };
    let (summing, binary) = read(&args.file, Summing::of(decoder), line_bytes_max)
        .map_err(|error| unreadable(&args.file, &error))?;
    if binary && summing.makes_no_sense() {
        let what = format!("{} is not text", args.file.display());
        return Err(Failure::new(what).hint(format!(
            "it must hold what {printed_by} printed; a compressed file ends in .zst"
        )));
    }
    let report = summing.report(args.exit.map(Exit));
    let text = if args.json {
        serde_json::to_string_pretty(&report).map_err(|error| Failure::new(error.to_string()))?
    } else {
        text(&report)
    };
    out::line(text.trim_end());
    Ok(ExitCode::SUCCESS)
}

/// Reads all lines of a recording. Returns whether it contains invalid UTF-8.
fn read(path: &Path, mut summing: Summing, line_bytes_max: usize) -> io::Result<(Summing, bool)> {
    let mut content: Box<dyn BufRead> = if path == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        compressed::open_named(path, &Encryption::plain())?.content
    };
    let mut lines = LineSplitter::new(line_bytes_max);
    let mut binary = false;
    let mut each = |line: Line<'_>| summing.line(line.text.as_bytes(), line.omitted_bytes > 0);
    loop {
        let bytes = match content.fill_buf() {
            Ok([]) => break,
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        binary |= bytes.contains(&0);
        lines.push(bytes, &mut each);
        let read = bytes.len();
        content.consume(read);
    }
    lines.finish(&mut each);
    Ok((summing, binary))
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    let hint = match error.kind() {
        ErrorKind::NotFound => "name a file with the agent's stdout, or - to read stdin",
        ErrorKind::IsADirectory => "name a file in it",
        ErrorKind::PermissionDenied => "check its owner and mode",
        _ if is_damage(error) => "it is damaged, or not compressed with zstd",
        _ => "check the disk",
    };
    Failure::new(format!("read {}: {error}", path.display())).hint(hint)
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<11}{}", sanitize(value));
    };
    line("outcome", &outcome(report));
    if let Some(moment) = report.limit_resets_at {
        line("limit", &format!("lifted at {moment}"));
    }
    line("context", &context(report));
    line("cost", &cost(report));
    if let Some(session) = &report.session_id {
        line("session", session);
    }
    let agent = [&report.version, &report.model, &report.permission_mode];
    let agent: Vec<&str> = agent.into_iter().flatten().map(String::as_str).collect();
    if !agent.is_empty() {
        line("agent", &agent.join(", "));
    }
    let counts = &report.counts;
    let counted = [
        (counts.turns, "turn", "turns"),
        (counts.tool_calls, "tool call", "tool calls"),
        (counts.tool_failures, "of them failed", "of them failed"),
        (counts.file_writes, "file write", "file writes"),
        (counts.permission_denials, "denial", "denials"),
        (counts.retries, "retry", "retries"),
        (counts.compactions, "compaction", "compactions"),
        (counts.background_tasks as u64, "task left", "tasks left"),
    ];
    let counted: Vec<String> = counted
        .into_iter()
        .filter(|(count, ..)| *count > 0)
        .map(|(count, one, many)| of(count, one, many))
        .collect();
    if !counted.is_empty() {
        line("seen", &counted.join(", "));
    }
    let mut lines = format!("{}, {} not understood", counts.lines, report.unknown_lines);
    if counts.cut_lines > 0 {
        let _ = write!(
            lines,
            ", {} cut because they were too long",
            counts.cut_lines
        );
    }
    line("lines", &lines);
    let words = report.text.as_deref().unwrap_or_default();
    if let Some(first) = words.lines().find(|words| !words.trim().is_empty()) {
        line(
            "text",
            &first[..first.floor_char_boundary(TEXT_BYTES_SHOWN)],
        );
    }
    text
}

fn outcome(report: &Report) -> String {
    let mut more: Vec<&str> = report.detail.as_deref().into_iter().collect();
    let known = [Some(report.outcome), report.detail.as_deref()];
    more.extend(
        report
            .failure
            .filter(|failure| !known.contains(&Some(*failure))),
    );
    more.extend(report.unfinished.then_some("a turn was not finished"));
    match &more[..] {
        [] => report.outcome.to_owned(),
        more => format!("{} ({})", report.outcome, more.join(", ")),
    }
}

fn context(report: &Report) -> String {
    let tokens = report.context_tokens;
    let mut text = match report.window {
        Some(window) => {
            let context = Context {
                tokens,
                window,
                estimated: report.context_estimated,
            };
            format!("{tokens} of {window} tokens, {:.1}%", context.percent())
        }
        None => format!("{tokens} tokens of an unknown window"),
    };
    let guess = if report.context_estimated {
        ", estimated"
    } else {
        ""
    };
    let readings = of(report.readings, "reading", "readings");
    let _ = write!(text, "{guess}, {readings}");
    text
}

fn of(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn cost(report: &Report) -> String {
    let (run, session) = (report.cost_usd, report.session_cost_usd);
    if session > run {
        format!("${run:.4}, the whole session ${session:.4}")
    } else {
        format!("${run:.4}")
    }
}
