//! Runs a whole loop from inside another program: `embed DIRECTORY`.
//!
//! The agent is a shell script that writes one line into a file in each iteration. The program prints the events of the loop, pauses and
//! resumes it, and stops it after the third iteration.
#![expect(clippy::print_stdout, reason = "this program prints its results")]

use std::error::Error;
use std::process::ExitCode;

use tachikoma_loop_runner::settings::HumanDuration;
use tachikoma_loop_runner::{LoopEvent, LoopHandle, LoopRunner, Notice, Settings, Urgency};
use tokio::sync::broadcast::{Receiver, error::RecvError};

/// Shell script that the agent runs in each iteration.
const AGENT: &str = "cat >/dev/null; echo \"iteration $TACHIKOMA_ITERATION\" | tee -a work.txt";

fn main() -> ExitCode {
    // The loop starts this program again as the guard of its agents.
    if let Some(code) = tachikoma_loop_runner::run_guard(std::env::args_os()) {
        return code;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    match runtime
        .map_err(Into::into)
        .and_then(|runtime| runtime.block_on(run()))
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args_os().nth(1).ok_or("usage: embed DIRECTORY")?;
    let settings = Settings {
        iteration_delay: HumanDuration::from_secs(0),
        ..Settings::default()
    };
    let mut runner = LoopRunner::builder(directory, "Write a line.")
        .settings(settings)
        .command(["sh", "-c", AGENT])
        .max_iterations(10)
        .open()
        .await?;
    let handle = runner.handle();
    let events = handle.subscribe();
    // The task that controls the loop runs concurrently with it.
    let operator = tokio::spawn(operate(handle.clone(), events));
    let outcome = runner.run().await?;
    runner.close().await;
    operator.await?;
    let stats = handle.stats();
    println!(
        "{outcome:?} after {} iterations, {} reboots",
        stats.iterations,
        handle.reboots().len()
    );
    Ok(())
}

/// Prints the events of the loop, pauses it after the first iteration, resumes it, and stops it after the third.
async fn operate(handle: LoopHandle, mut events: Receiver<Notice>) {
    while !handle.state().is_terminal() {
        let record = match events.recv().await {
            Ok(Notice::Recorded(record)) => record,
            Ok(Notice::Output { line, .. }) => {
                println!("agent: {line}");
                continue;
            }
            Ok(_) | Err(RecvError::Lagged(_)) => continue,
            Err(RecvError::Closed) => return,
        };
        let answer = match &record.event {
            LoopEvent::IterationCompleted { .. } => match handle.stats().iterations {
                1 => handle.pause(Urgency::Graceful).await,
                2 => continue,
                _ => handle.stop(Urgency::Graceful).await,
            },
            LoopEvent::Paused { .. } => handle.resume().await,
            _ => continue,
        };
        match answer {
            Ok(answer) => println!("{}: {answer:?}", handle.state()),
            Err(gone) => println!("{gone}"),
        }
    }
}
