//! Trust: whether the user agreed to the programs and permissions that a project's configuration names, and to the loop
//! in a directory. Both may come from a clone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use tachikoma_core::{LoopId, Override};
use tachikoma_loop_runner::process::is_below_a_guard;
use tachikoma_loop_runner::settings::{Loaded, is_guarded};
use tachikoma_loop_runner::store::trust::{Added, Agreement, Agreements};

use crate::confirm::{agree, can_ask};
use crate::failure::{Failure, chain};
use crate::out;
use crate::sanitize::sanitize;
use crate::workspace::Workspace;

/// Maximum number of characters of a setting that are shown. Its origin is always shown.
const SHOWN_CHARS_MAX: usize = 2000;

/// How to handle something that the user has not agreed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Untrusted {
    /// Ask, if there is a terminal; otherwise refuse.
    Ask,
    /// Refuse.
    Refuse,
    /// Warn and continue, because no program is started.
    Warn,
    /// Continue, because `--trust` was given. This agreement is not recorded.
    Accept,
}

/// The agreements of the user.
#[derive(Clone, Debug)]
pub struct Trust {
    /// The user's state directory; `None` if neither HOME nor `XDG_STATE_HOME` is set.
    state_dir: Option<PathBuf>,
    untrusted: Untrusted,
    /// Whether `TACHIKOMA_TRUST` turns the checks off.
    is_off: bool,
    /// Agreements that are only valid in this process.
    for_now: Arc<Mutex<Vec<Agreement>>>,
}

impl Trust {
    /// Reads the user's agreements for a workspace.
    pub fn new(workspace: &Workspace, untrusted: Untrusted) -> Self {
        Self {
            state_dir: workspace.state_dir(),
            untrusted,
            is_off: workspace.is_trust_off(),
            for_now: Arc::default(),
        }
    }

    /// Returns the checks for settings that are reloaded during a run: the user is not asked, and `--trust` only covers what it covered
    /// at the start.
    pub fn for_reload(&self) -> Self {
        Self {
            untrusted: Untrusted::Refuse,
            ..self.clone()
        }
    }

    /// Checks that the user agreed to the programs and permissions in the project's configuration file.
    pub fn check_configuration(&self, working_dir: &Path, loaded: &Loaded) -> Result<(), Failure> {
        if loaded.guarded.is_empty() || self.is_off {
            return Ok(());
        }
        let agreement = Agreement::Configuration(loaded.guarded.digest());
        if self.is_agreed(working_dir, &agreement) {
            return Ok(());
        }
        let what =
            "the configuration here names programs or loosens permissions, and is not trusted";
        let refused = || {
            Failure::usage(listed(what, &tachikoma_loop_runner::settings::guarded_lines(&loaded.guarded))).hint(
                "read it; then `tachikoma trust` allows exactly this content, and `tachikoma run --trust` allows it for one run",
            )
        };
        self.settle(
            working_dir,
            &[agreement],
            refused,
            "trust exactly this from now on?",
        )
    }

    /// Before a loop continues, checks that the user started it here or trusts it, with the programs and permissions of its launch.
    pub fn check_loop(
        &self,
        working_dir: &Path,
        loop_id: LoopId,
        overrides: &BTreeMap<String, Override>,
    ) -> Result<(), Failure> {
        if self.is_off {
            return Ok(());
        }
        let agreements = agreements_of(loop_id, overrides);
        if agreements
            .iter()
            .all(|agreement| self.is_agreed(working_dir, agreement))
        {
            return Ok(());
        }
        let what = format!(
            "{loop_id} was not started by you in {}",
            working_dir.display()
        );
        let refused = || {
            Failure::usage(listed(&what, &guarded_lines(overrides))).hint(format!(
                "it may have come with a clone, a copy or an older version; `tachikoma trust` adopts it, `tachikoma run --new` begins \
                 another one; if you do not know it, delete `.ralph/loops/{loop_id}`"
            ))
        };
        self.settle(
            working_dir,
            &agreements,
            refused,
            "continue it, now and later?",
        )
    }

    /// Records that the user trusts the loop that this run starts or continues. Below a guard, nothing is written to disk.
    /// A thread syncs the file, so that the loop does not wait for it.
    pub fn register(
        &self,
        working_dir: &Path,
        loop_id: LoopId,
        overrides: &BTreeMap<String, Override>,
        is_new: bool,
    ) -> Result<Option<JoinHandle<()>>, Failure> {
        let mut new = agreements_of(loop_id, overrides);
        // Agreements that `--trust` gives are not recorded.
        let is_known = is_new || self.is_recorded(working_dir, &Agreement::Loop(loop_id));
        new.retain(|agreement| is_known && !self.is_agreed(working_dir, agreement));
        if new.is_empty() {
            return Ok(None);
        }
        self.agree_for_this_run(&new);
        if is_below_a_guard() {
            return Ok(None);
        }
        match self.add(working_dir, &new) {
            Ok(added) => {
                let sync = move || {
                    if let Err(error) = added.sync() {
                        out::note(&format!("warning: {}", chain(&error)));
                    }
                };
                Ok(Some(std::thread::spawn(sync)))
            }
            Err(_) if self.is_off => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Records the user's agreement durably. Refused in a process that a guard started: an agent must not agree for the user.
    pub fn record(&self, working_dir: &Path, agreements: &[Agreement]) -> Result<(), Failure> {
        refuse_below_a_guard()?;
        Ok(self.add(working_dir, agreements)?.sync()?)
    }

    /// Deletes the user's agreements for this directory. Returns whether there were any.
    pub fn forget(&self, working_dir: &Path) -> Result<bool, Failure> {
        refuse_below_a_guard()?;
        Ok(self.kept(working_dir)?.forget()?)
    }

    /// Returns whether the user agreed, or `--trust` was given for this process.
    pub fn is_agreed(&self, working_dir: &Path, agreement: &Agreement) -> bool {
        self.now().contains(agreement) || self.is_recorded(working_dir, agreement)
    }

    fn is_recorded(&self, working_dir: &Path, agreement: &Agreement) -> bool {
        self.kept(working_dir)
            .is_ok_and(|recorded| recorded.have(agreement))
    }

    fn now(&self) -> std::sync::MutexGuard<'_, Vec<Agreement>> {
        self.for_now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn agree_for_this_run(&self, agreements: &[Agreement]) {
        self.now().extend_from_slice(agreements);
    }

    fn settle(
        &self,
        working_dir: &Path,
        agreements: &[Agreement],
        refused: impl Fn() -> Failure,
        question: &str,
    ) -> Result<(), Failure> {
        match self.untrusted {
            Untrusted::Accept => self.agree_for_this_run(agreements),
            Untrusted::Warn => {
                out::note(&format!("warning: {}", refused().what));
            }
            Untrusted::Ask if can_ask() && !is_below_a_guard() => {
                out::note(&refused().what);
                agree(question).map_err(|_| refused())?;
                self.record(working_dir, agreements)?;
            }
            Untrusted::Ask => return Err(refused()),
            Untrusted::Refuse => {
                // The hint of a failed reload is not printed, so the message itself names the next step.
                let mut refused = refused();
                refused.what.push_str("\n`tachikoma trust` allows it");
                return Err(refused);
            }
        }
        Ok(())
    }

    fn kept(&self, working_dir: &Path) -> Result<Agreements, Failure> {
        let state_dir = self.state_dir.as_deref().ok_or_else(|| {
            Failure::usage(
                "trust cannot be recorded: neither XDG_STATE_HOME nor HOME is an absolute path",
            )
            .hint("set one of them; or TACHIKOMA_TRUST=1 switches the checks off")
        })?;
        Ok(Agreements::of(state_dir, working_dir))
    }

    fn add(&self, working_dir: &Path, agreements: &[Agreement]) -> Result<Added, Failure> {
        let kept = self.kept(working_dir)?;
        kept.add(agreements).map_err(|error| {
            Failure::new(format!("the trust decision cannot be saved: {}", chain(&error))).hint(
                "set XDG_STATE_HOME to a writable directory that you own, or TACHIKOMA_TRUST=1 to turn the checks off",
            )
        })
    }
}

/// Fails if the command was started by an agent, a hook or a gate.
fn refuse_below_a_guard() -> Result<(), Failure> {
    if !is_below_a_guard() {
        return Ok(());
    }
    Err(Failure::new(
        "only the operator decides what is trusted, and this process was started by a loop",
    )
    .hint("call it in a shell of your own"))
}

/// Returns the agreements that a user gives by starting a loop.
pub fn agreements_of(loop_id: LoopId, overrides: &BTreeMap<String, Override>) -> Vec<Agreement> {
    let guarded = overrides.iter().filter(|(key, _)| is_guarded(key));
    let guarded = guarded.map(|(key, given)| Agreement::to_override(loop_id, key, &given.value));
    std::iter::once(Agreement::Loop(loop_id))
        .chain(guarded)
        .collect()
}

/// Returns the settings of a launch that name programs or loosen permissions, as one line each.
pub fn guarded_lines(overrides: &BTreeMap<String, Override>) -> Vec<String> {
    let guarded = overrides.iter().filter(|(key, _)| is_guarded(key));
    guarded
        .map(|(key, given)| format!("{key} = {}  # recorded launch", given.value))
        .collect()
}

/// Returns a heading with indented lines, safe for a terminal.
pub fn listed(what: &str, lines: &[String]) -> String {
    let mut text = what.to_owned();
    for line in lines {
        let shown = sanitize(line);
        let mut shown: String = shown.chars().take(SHOWN_CHARS_MAX).collect();
        let rest = line.chars().count().saturating_sub(SHOWN_CHARS_MAX);
        if rest > 0 {
            shown.push_str(&format!(" ... and {rest} more characters"));
        }
        text.push_str(&format!("\n  {shown}"));
    }
    text
}
