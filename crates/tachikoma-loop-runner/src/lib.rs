//! Runs a coding agent in a supervised loop. This library never prints, never reads the environment and never exits:
//! what it needs is handed in, what it finds is handed back.

#[cfg(windows)]
compile_error!(
    "Tachikoma does not run on Windows: it needs Unix signals and process groups. Use it inside WSL."
);

pub mod process;
pub mod session;
pub mod settings;
