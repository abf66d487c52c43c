//! The options with which the runner starts a guard, and errors of the start.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use crate::{Adoption, INSIDE};
use tachikoma_core::{PASSPHRASE_VARIABLE, TRUST_VARIABLE};

/// Settings of a guard.
#[derive(Debug)]
pub struct GuardOptions {
    /// Path of the program that calls [`crate::serve`]. `PATH` is not searched.
    pub program: PathBuf,
    /// Arguments that make the program a guard.
    pub args: Vec<OsString>,
    /// Id of the loop. Every agent has it in its environment as [`crate::MARKER`].
    pub marker: String,
    /// A duplicate of the locked descriptor of the working directory. The guard holds it until all processes have ended, so that no other
    /// runner starts before. The runner must close its own descriptor and not unlock it, because that would unlock the duplicate, too.
    pub lock: Option<OwnedFd>,
    /// Whether to use a cgroup, if one is available.
    pub cgroup: bool,
    /// Which of its children the runner ends if the guard is killed.
    pub adoption: Adoption,
    /// Environment variables that are removed for the guard and its descendants.
    pub hidden: Vec<OsString>,
    /// Whether the descendants of the guard may control the loop. Only hooks may.
    pub commands: bool,
}

impl GuardOptions {
    /// Returns the options of a guard that is started with this command, for the loop with the id `marker`: with a cgroup, and without a lock.
    #[must_use]
    pub fn new(command: &[OsString], marker: String) -> Self {
        let mut words = command.iter().cloned();
        Self {
            program: words.next().unwrap_or_default().into(),
            args: words.collect(),
            marker,
            lock: None,
            cgroup: true,
            adoption: Adoption::Marked,
            hidden: Vec::new(),
            commands: false,
        }
    }

    /// Returns the environment of the guard: that of this process without the hidden variables, and the marker of processes that may not control
    /// the loop.
    pub(super) fn environment(&self) -> Vec<(OsString, OsString)> {
        let kept = |name: &OsString| {
            let ours = [INSIDE, PASSPHRASE_VARIABLE, TRUST_VARIABLE];
            !ours.iter().any(|ours| name == ours) && !self.hidden.contains(name)
        };
        let own = std::env::vars_os().filter(|(name, _)| kept(name));
        let inside = (!self.commands).then(|| (INSIDE.into(), self.marker.clone().into()));
        own.chain(inside).collect()
    }
}

/// Why a guard cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// The program of the guard cannot be started.
    #[error("start guard {}", program.display())]
    Start {
        /// Path of the program.
        program: PathBuf,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
    /// The socket to the guard cannot be created.
    #[error("prepare the guard's socket")]
    Socket(#[source] io::Error),
}
