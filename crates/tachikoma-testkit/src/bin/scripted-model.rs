//! Starts the scripted model from a shell: prints its address and answers requests until it is killed.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the caller reads the address from stdout"
)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;

use tachikoma_testkit::{Listening, Scenario, ScriptedModel};

const USAGE: &str = "\
usage: scripted-model SCENARIO.json [--port N] [--log FILE]

Prints its address, then answers the Messages API there until it is killed.
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (scenario, listening) = match wish(&words) {
        Ok(Some(wish)) => wish,
        Ok(None) => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("error: {error}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let model = match ScriptedModel::listening(scenario, &listening) {
        Ok(model) => model,
        Err(error) => {
            eprintln!("error: listen on port {}: {error}", listening.port);
            return ExitCode::FAILURE;
        }
    };
    println!("{}", model.url());
    loop {
        thread::park();
    }
}

/// Parses the arguments. `None` if help is requested.
fn wish(words: &[String]) -> Result<Option<(Scenario, Listening)>, String> {
    let mut scenario = None;
    let mut listening = Listening::default();
    let mut words = words.iter().map(String::as_str);
    while let Some(word) = words.next() {
        match word {
            "-h" | "--help" => return Ok(None),
            "--port" => {
                let port = words.next().and_then(|port| port.parse().ok());
                listening.port = port.ok_or("--port needs a number")?;
            }
            "--log" => {
                let file = words.next().ok_or("--log needs a file")?;
                listening.log = Some(PathBuf::from(file));
            }
            file if scenario.is_none() && !file.starts_with('-') => {
                scenario = Some(Scenario::read(Path::new(file))?);
            }
            other => return Err(format!("unexpected: {other}")),
        }
    }
    let scenario = scenario.ok_or("no scenario was given")?;
    Ok(Some((scenario, listening)))
}
