//! The scripted agent of the demo: it completes one item of `plan.md` per turn, fills its context,
//! crashes once, and finishes when all items are complete.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use tachikoma_agents::DemoLine;

use crate::out;

/// Context window of the demo agent in tokens.
const WINDOW: u64 = 200_000;

/// Tokens that one item of the plan uses.
const ITEM_TOKENS: u64 = 41_000;

/// Argument that turns off the delays.
pub const FAST: &str = "--fast";

/// Delay between steps, so that a person can follow the demo.
const PACE: Duration = Duration::from_millis(350);

/// File that records the one crash, in the working directory of the agent.
const CRASHED: &str = ".demo-crashed";

/// Runs one turn of the demo agent.
pub fn run() -> ExitCode {
    let mut prompt = String::new();
    // An unreadable prompt is treated as empty, because the plan contains everything that is needed.
    let _ = std::io::stdin().read_to_string(&mut prompt);
    let plan = std::fs::read_to_string("plan.md").unwrap_or_default();
    let done = plan.matches("- [x]").count() as u64;
    let Some(item) = plan.lines().find_map(|line| line.strip_prefix("- [ ] ")) else {
        return finish(done);
    };
    if prompt.contains("Hand-off") {
        print_text("a hand-off: good, I know where we are");
    }
    let spent = spent(done);
    context(spent);
    print_text(&format!("next: {item}"));
    work(item, &plan, spent)
}

fn work(item: &str, plan: &str, spent: u64) -> ExitCode {
    print(&DemoLine::ToolStarted {
        id: "edit".to_owned(),
        name: "edit".to_owned(),
    });
    pause();
    if plan.matches("- [x]").count() == 1 && !Path::new(CRASHED).exists() {
        let _ = std::fs::write(CRASHED, "once is enough\n");
        out::note("thread 'main' panicked: the parser ate itself");
        return ExitCode::from(101);
    }
    let file = item.replace(' ', "-") + ".txt";
    let ticked = plan.replacen("- [ ] ", "- [x] ", 1);
    let written = std::fs::write(&file, format!("{item}: done\n"))
        .and_then(|()| std::fs::write("plan.md", ticked));
    if let Err(error) = written {
        out::note(&format!("{file}: {error}"));
        return ExitCode::from(1);
    }
    print(&DemoLine::ToolEnded {
        id: "edit".to_owned(),
    });
    context(spent + ITEM_TOKENS);
    print_text(&format!("done: {item} ({file})"));
    pause();
    print(&DemoLine::Result {
        success: true,
        text: format!("{item} is done"),
    });
    ExitCode::SUCCESS
}

fn finish(done: u64) -> ExitCode {
    context(spent(done));
    print_text("every item of the plan is ticked");
    pause();
    print(&DemoLine::Result {
        success: true,
        text: "<promise>COMPLETE</promise>".to_owned(),
    });
    ExitCode::SUCCESS
}

/// Returns the tokens of the context. A new session begins with an empty context and uses tokens for each item since its start.
fn spent(done: u64) -> u64 {
    9_000 + done.saturating_sub(session_start(done)) * ITEM_TOKENS
}

/// Returns how many items were complete when this session began, from a file per session.
fn session_start(done: u64) -> u64 {
    let session = std::env::var("TACHIKOMA_SESSION").unwrap_or_default();
    let memory = format!(".demo-session-{session}");
    let known = std::fs::read_to_string(&memory)
        .ok()
        .and_then(|text| text.trim().parse().ok());
    known.unwrap_or_else(|| {
        let _ = std::fs::write(memory, done.to_string());
        done
    })
}

fn print_text(text: &str) {
    print(&DemoLine::Text {
        text: text.to_owned(),
    });
}

fn context(tokens: u64) {
    print(&DemoLine::Context {
        tokens,
        window: WINDOW,
    });
}

fn print(line: &DemoLine) {
    if let Ok(text) = serde_json::to_string(line) {
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{text}").and_then(|()| out.flush());
    }
}

fn pause() {
    if std::env::args().all(|word| word != FAST) {
        std::thread::sleep(PACE);
    }
}
