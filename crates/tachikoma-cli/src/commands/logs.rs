//! `tachikoma logs`: prints the agent's output, safe for the terminal.

use std::path::Path;
use std::process::ExitCode;

use tachikoma_agents::line::LineSplitter;
use tachikoma_loop_runner::session::transcripts;
use tachikoma_loop_runner::settings::SessionSettings;
use tachikoma_loop_runner::store::compressed;
use tachikoma_loop_runner::store::encryption::Encryption;

use crate::failure::Failure;
use crate::out;
use crate::sanitize::sanitize;
use crate::workspace::Workspace;

/// Maximum length in bytes of a line that is shown. The transcript has the whole line.
const LINE_BYTES_MAX: usize = 64 << 10;

/// Prints the transcripts of all attempts at an iteration; `None` means the latest iteration with a transcript.
pub fn logs(workspace: &Workspace, iteration: Option<u32>) -> Result<ExitCode, Failure> {
    let current = workspace.current_loop()?;
    let mut config = workspace
        .layers_of(&current.working_dir)?
        .load()?
        .settings
        .session;
    if !current.is_kept {
        config = SessionSettings::default();
    }
    let dir = current.root.join(config.state_dir);
    let dir = dir.join(current.loop_id.to_string());
    // A directory that cannot be read has no files to show. The hint names the directory.
    let mut files = transcripts::list(&dir).unwrap_or_default();
    let wanted = iteration.map(u64::from);
    let wanted = wanted.or_else(|| files.last().map(|file| file.iteration));
    files.retain(|file| Some(file.iteration) == wanted);
    if files.is_empty() {
        let which = iteration.map_or_else(
            || "the agent".to_owned(),
            |number| format!("the agent in iteration {number}"),
        );
        let what = format!("{which} has no output, or its transcript was deleted");
        return Err(Failure::new(what).hint(format!("transcripts are in {}", dir.display())));
    }
    for file in &files {
        let unreadable = |error| Failure::unreadable(&file.path, &error);
        print(&file.path, &current.encryption).map_err(unreadable)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print(path: &Path, encryption: &Encryption) -> std::io::Result<()> {
    let mut reader = compressed::open(path, encryption)?.content;
    let mut lines = LineSplitter::new(LINE_BYTES_MAX);
    let mut each = |line: tachikoma_agents::line::Line<'_>| {
        let cut = if line.omitted_bytes > 0 {
            format!(" ... ({} bytes more)", line.omitted_bytes)
        } else {
            String::new()
        };
        out::line(&format!("{}{cut}", sanitize(&line.text)));
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
