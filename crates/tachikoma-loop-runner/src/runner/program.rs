//! Finds the agent's program in `PATH`.

use std::ffi::OsString;
use std::path::Path;

use tachikoma_agents::LaunchPlan;

use crate::process::is_executable;

/// Returns a `PATH` for the agent that also has the directory of `tachikoma`, after all directories of the user. Returns `None` if `tachikoma` is
/// found already, or if there is no `PATH`, so that the system's default is used.
pub(super) fn path_with_ourselves(
    path: Option<&OsString>,
    program: Option<&OsString>,
) -> Option<OsString> {
    let path = path.filter(|path| !path.is_empty())?;
    let program = Path::new(program?);
    let dir = program.parent().filter(|dir| dir.is_absolute())?;
    if program.file_name()? != "tachikoma"
        || std::env::split_paths(path).any(|known| known.as_path() == dir)
    {
        return None;
    }
    let all = std::env::split_paths(path).chain([dir.to_owned()]);
    // A directory with a colon in its name cannot be part of `PATH`.
    std::env::join_paths(all).ok()
}

/// Returns the `PATH` that is searched for the agent's program.
pub(super) fn search_path<'a>(
    plan: &'a LaunchPlan,
    inherited: Option<&'a OsString>,
) -> Option<&'a OsString> {
    let own = plan.env.iter().rev().find(|(name, _)| name == "PATH");
    own.map(|(_, path)| path).or(inherited)
}

/// Finds a program like a shell does.
///
/// # Errors
/// The program is not found or cannot be run.
pub(super) fn find_program(
    program: &Path,
    working_dir: &Path,
    search_path: Option<&OsString>,
) -> Result<(), String> {
    let shown = program.display();
    if program.as_os_str().as_encoded_bytes().contains(&b'/') {
        let path = working_dir.join(program);
        return match is_executable(&path) {
            Ok(true) => Ok(()),
            Ok(false) if path.is_dir() => Err(format!("program `{shown}` is a directory")),
            Ok(false) => Err(format!("program `{shown}` is not executable")),
            Err(error) => Err(format!("program `{shown}`: {error}")),
        };
    }
    let search_path = search_path.cloned().unwrap_or_default();
    let places: Vec<_> = std::env::split_paths(&search_path)
        .map(|dir| dir.join(program))
        .collect();
    if places
        .iter()
        .any(|place| is_executable(place).unwrap_or(false))
    {
        return Ok(());
    }
    let looked_in = search_path.to_string_lossy();
    match places.iter().find(|place| place.is_file()) {
        Some(place) => Err(format!(
            "program `{shown}` is not executable: {}",
            place.display()
        )),
        None => Err(format!(
            "program `{shown}` is not found; looked in PATH: {looked_in}"
        )),
    }
}
