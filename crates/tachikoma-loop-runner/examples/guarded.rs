//! Uses the process layer only: runs one agent under a guard and prints its events.
//!
//! `guarded GUARD MARKER cgroup|guard all|marked DIRECTORY PROGRAM [ARGS...]`
#![expect(clippy::print_stdout, reason = "this program prints its results")]

use std::error::Error;
use std::ffi::OsString;

use tachikoma_agents::line::Line;
use tachikoma_loop_runner::process::{
    Adoption, Guard, GuardOptions, GuardReport, Spawn, input, output,
};
use tachikoma_loop_runner::session::pump::{Flow, Pump};
use tachikoma_loop_runner::session::transcript::Transcript;

/// Output lines that are longer than this many bytes are truncated.
const LINE_BYTES_MAX: usize = 1024 * 1024;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let [
        guard,
        marker,
        cgroup,
        adoption,
        directory,
        program,
        args @ ..,
    ] = words.as_slice()
    else {
        return Err(
            "guarded GUARD MARKER cgroup|guard all|marked DIRECTORY PROGRAM [ARGS...]".into(),
        );
    };
    let options = GuardOptions {
        cgroup: cgroup == "cgroup",
        adoption: if adoption == "all" {
            Adoption::All
        } else {
            Adoption::Marked
        },
        ..GuardOptions::new(
            std::slice::from_ref(guard),
            marker.to_string_lossy().into_owned(),
        )
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(run(options, directory, program, args))
}

async fn run(
    options: GuardOptions,
    directory: &OsString,
    program: &OsString,
    args: &[OsString],
) -> Result<(), Box<dyn Error>> {
    let mut guard = Guard::start(&options)?;
    println!("guard {} {}", guard.pid(), guard.containment());
    let (stdout, for_stdout) = output()?;
    let (stderr, for_stderr) = output()?;
    guard.spawn(Spawn {
        generation: 1,
        program: program.clone(),
        args: args.to_vec(),
        env: Vec::new(),
        env_remove: Vec::new(),
        cwd: directory.into(),
        streams: Some([input(b"")?, for_stdout, for_stderr]),
    })?;
    let transcript = Transcript::new(directory.into(), 1, 1, 0);
    let mut pump = Pump::new(stdout, stderr, transcript, LINE_BYTES_MAX);
    let mut flowing = true;
    let mut print = |_, line: Line<'_>| println!("line {}", line.text);
    loop {
        tokio::select! {
            news = guard.next() => {
                println!("{news:?}");
                match news {
                    GuardReport::Spawned { .. } => (),
                    GuardReport::Lost { .. } => return Ok(()),
                    GuardReport::SpawnFailed { .. } | GuardReport::Exited { .. } => break,
                }
            }
            flow = pump.read(&mut print), if flowing => {
                flowing = flow != Flow::Ended;
            }
        }
    }
    pump.drain(&mut print).await;
    guard.finish().await;
    println!("finished");
    Ok(())
}
