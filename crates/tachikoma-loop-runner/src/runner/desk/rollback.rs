//! The way back while the loop runs: the desk knows whose the changes are.

use std::time::Duration;

use super::{Books, Clerk, Desk, LOOK_TIMEOUT, Order};
use crate::git::aside::Aside;
use crate::git::present::Rules;
use crate::git::rollback::{PerformError, Rollback};
use crate::git::snapshots::{self, Moment};
use crate::git::{CallOff, Found, KeeperOptions, Repository, Whose};
use tachikoma_core::error_chain as chain;

/// For all that comes before the first change: looks at a large work tree on a slow disk. With the change itself, and the look behind it,
/// this is less than the core waits.
const PLAN_TIMEOUT: Duration = Duration::from_secs(300);

/// Which work tree is wanted.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    /// As it was before this iteration.
    pub iteration: u32,
    /// An earlier runner died over it, and may have done all or half of it.
    pub again: bool,
}

/// Why the work tree was not brought back.
#[derive(Debug)]
pub(in crate::runner) enum NotBack {
    /// It is as it was.
    AsItWas(String),
    /// It is half of either.
    Half(String),
}

impl From<String> for NotBack {
    fn from(why: String) -> Self {
        Self::AsItWas(why)
    }
}

impl Desk {
    /// Asks for the work tree as it was before an iteration. Returns whether an answer will come.
    pub fn roll_back(&mut self, iteration: u32, again: bool) -> bool {
        self.rollback = CallOff::new();
        self.order(Order::RollBack {
            iteration,
            again,
            call_off: self.rollback.clone(),
        })
    }

    /// Has a rollback be given up. What it has changed is undone.
    pub fn call_off_rollback(&self) {
        self.rollback.call_off();
    }
}

impl Clerk {
    /// Brings the work tree back to what it was before an iteration, after it is kept as it is. Can be called off. Where it cannot be
    /// done, what somebody who died over it has begun is undone. Returns what the agent has to know of it.
    pub(super) fn roll_back(
        &self,
        books: &mut Books,
        options: &KeeperOptions,
        wanted: Wanted,
        call_off: &CallOff,
    ) -> Result<String, NotBack> {
        let begun = Aside::left_behind(&options.loop_dir, Moment::Iteration(wanted.iteration));
        let begun = match (begun, wanted.again) {
            (Some(stale), false) => {
                stale.remove();
                None
            }
            (begun, _) => begun,
        };
        let result = self.bring_back(books, options, wanted, call_off);
        let Some(begun) = begun else {
            return result;
        };
        let result = match result {
            Ok(note) => Ok(note),
            Err(NotBack::AsItWas(why) | NotBack::Half(why)) => {
                books.unseen = true;
                match begun.put_back() {
                    Ok(()) => Err(NotBack::AsItWas(format!(
                        "{why}; what was begun before the runner died is undone"
                    ))),
                    Err(error) => Err(NotBack::Half(format!(
                        "{why}; what was begun before the runner died could not be undone: {}",
                        chain(&error)
                    ))),
                }
            }
        };
        if !matches!(result, Err(NotBack::Half(_))) {
            begun.remove();
        }
        result
    }

    fn bring_back(
        &self,
        books: &mut Books,
        options: &KeeperOptions,
        wanted: Wanted,
        may_go_on: &CallOff,
    ) -> Result<String, NotBack> {
        let Wanted { iteration, again } = wanted;
        let no = |error: &dyn std::error::Error| chain(error);
        let call_off = may_go_on.within(PLAN_TIMEOUT);
        let unless_called_off = || match (call_off.is_called_off(), call_off.is_overdue()) {
            (false, _) => Ok(()),
            (true, false) => Err("it was called off, and nothing was changed".to_owned()),
            (true, true) => Err(format!(
                "git took more than {} s to work it out, and nothing was changed",
                PLAN_TIMEOUT.as_secs()
            )),
        };
        let or_called_off = |error: &dyn std::error::Error| match unless_called_off() {
            Ok(()) => no(error),
            Err(why) => why,
        };
        books
            .keeper
            .settle_refs(&call_off)
            .map_err(|error| or_called_off(&error))?;
        // What others did since must not pass for the loop's. After a death nobody can tell whose half a rollback is.
        let whose = if again { Whose::Loop } else { Whose::Others };
        self.look(books, whose, &call_off)
            .map_err(|error| or_called_off(&error))?;
        let found = Repository::find(
            &options.working_dir,
            options.search_path.as_deref(),
            &call_off,
        );
        unless_called_off()?;
        let repository = match found {
            Found::Repository(repository) => repository,
            Found::NoRepository => return Err("it is in no repository".to_owned().into()),
            Found::Unusable { reason } => return Err(reason.into()),
        };
        let git = repository.git.clone();
        let kept = snapshots::list(&git, options.loop_id, &call_off)
            .map_err(|error| or_called_off(&error))?;
        let snapshot = snapshots::resolve(&kept, Moment::Iteration(iteration))
            .ok_or_else(|| format!("no snapshot before iteration {iteration} is kept"))?;
        let rules = Rules {
            protected: options.protected.clone(),
            max_file_bytes: options.max_file_bytes,
            own: options.own.clone(),
        };
        let plan = Rollback::plan(*repository, &options.loop_dir, &rules, snapshot, &call_off)
            .map_err(|error| or_called_off(&error))?;
        let before = snapshots::last_rollback(&kept);
        match (plan.is_nothing(), again, before) {
            // All of it was done, but for saying so.
            (true, true, Some(before)) => {
                return Ok(done(iteration, &snapshots::name(options.loop_id, before)));
            }
            (true, _, _) => {
                let already =
                    format!("the work tree is as it was before iteration {iteration} already");
                return Err(already.into());
            }
            (false, _, _) => {}
        }
        let moment = snapshots::next_rollback(&kept);
        let name = plan
            .keep(options.loop_id, moment, &call_off)
            .map_err(|error| or_called_off(&error))?;
        unless_called_off()?;
        // Whatever becomes of it, it is the loop's doing.
        books.unseen = true;
        let performed = plan.perform(Moment::Iteration(iteration), may_go_on);
        performed.map_err(|error| match error {
            PerformError::NotBegun(_) => NotBack::AsItWas(no(&error)),
            PerformError::Undone(_) => NotBack::AsItWas(or_called_off(&error)),
            PerformError::Half { .. } => {
                NotBack::Half(format!("{}; what it was is kept as {name}", no(&error)))
            }
        })?;
        // The files are back whether or not they can be looked at; then the next look takes it in.
        let look = CallOff::new().within(LOOK_TIMEOUT);
        if let Err(error) = self.look(books, Whose::Loop, &look) {
            self.warn(vec![format!(
                "the work tree was not looked at after it was rolled back: {}",
                no(&error)
            )]);
        }
        Ok(match before.filter(|_| again) {
            // One of them may be half of it.
            Some(before) => done(
                iteration,
                &format!("{name} and {}", snapshots::name(options.loop_id, before)),
            ),
            None => done(iteration, &name),
        })
    }
}

/// What the agent has to know.
fn done(iteration: u32, name: &str) -> String {
    format!(
        "The operator has brought the work tree back to what it was before iteration {iteration}. What it was is kept as {name}."
    )
}
