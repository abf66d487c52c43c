//! `tachikoma logs`: what the agent wrote, made harmless for the terminal.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tachikoma_agents::line::LineSplitter;

use crate::failure::Failure;
use crate::out;
use crate::place::Place;
use crate::sanitise::sanitise;

/// What is shown of a line; the file has all of it.
const LINE_BYTES_MAX: usize = 64 << 10;

/// Prints the transcripts of an iteration, all attempts at it.
pub fn logs(place: &Place, iteration: Option<u32>) -> Result<ExitCode, Failure> {
    let (loop_id, working_dir) = place.current_loop()?;
    let state_dir = place
        .layers_of(&working_dir)?
        .load()?
        .settings
        .session
        .state_dir;
    let dir = working_dir.join(state_dir).join(loop_id.to_string());
    let mut files = transcripts(&dir);
    let wanted = iteration.or_else(|| files.last().map(|(iteration, _)| *iteration));
    files.retain(|(iteration, _)| Some(*iteration) == wanted);
    if files.is_empty() {
        let which = iteration.map_or_else(
            || "the agent".to_owned(),
            |number| format!("the agent in iteration {number}"),
        );
        let what = format!("{which} has written nothing, or it is not kept any more");
        return Err(Failure::new(what).hint(format!("transcripts are in {}", dir.display())));
    }
    for (_, path) in &files {
        print(path).map_err(|error| Failure::new(format!("read {}: {error}", path.display())))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Lists the transcripts of a loop, oldest first.
fn transcripts(dir: &Path) -> Vec<(u32, PathBuf)> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut files: Vec<(u32, PathBuf)> = entries
        .filter_map(|entry| {
            let name = entry.file_name();
            let (iteration, _) = name.to_str()?.split_once('.')?;
            Some((iteration.parse().ok()?, entry.path()))
        })
        .collect();
    files.sort();
    files
}

fn print(path: &Path) -> std::io::Result<()> {
    let mut reader = BufReader::with_capacity(LINE_BYTES_MAX, File::open(path)?);
    let mut lines = LineSplitter::new(LINE_BYTES_MAX);
    let mut each = |line: tachikoma_agents::line::Line<'_>| {
        let cut = if line.omitted_bytes > 0 {
            format!(" ... ({} bytes more)", line.omitted_bytes)
        } else {
            String::new()
        };
        out::line(&format!("{}{cut}", sanitise(&line.text)));
    };
    loop {
        let bytes = reader.fill_buf()?;
        if bytes.is_empty() {
            break;
        }
        lines.push(bytes, &mut each);
        let read = bytes.len();
        reader.consume(read);
    }
    lines.finish(&mut each);
    Ok(())
}
