//! The way back while the loop runs: the desk knows whose the changes are.

use super::{Books, Clerk};
use crate::error::chain;
use crate::git::present::Rules;
use crate::git::rollback::Rollback;
use crate::git::snapshots::{self, Moment};
use crate::git::{CallOff, Found, KeeperOptions, Repository, Whose};

impl Clerk {
    /// Brings the work tree back to what it was before an iteration, after it is kept as it is. Returns what the agent has to
    /// know of it.
    pub(super) fn roll_back(
        &self,
        books: &mut Books,
        options: &KeeperOptions,
        iteration: u32,
    ) -> Result<String, String> {
        let no = |error: &dyn std::error::Error| chain(error);
        let never = CallOff::new();
        books
            .keeper
            .settle_refs(&never)
            .map_err(|error| no(&error))?;
        // What others did since must not pass for the loop's.
        self.look(books, Whose::Others, &never)
            .map_err(|error| no(&error))?;
        let found = Repository::find(&options.working_dir, options.search_path.as_deref(), &never);
        let repository = match found {
            Found::Repository(repository) => repository,
            Found::NoRepository => return Err("it is in no repository".to_owned()),
            Found::Unusable { reason } => return Err(reason),
        };
        let git = repository.git.clone();
        let kept = snapshots::list(&git, options.loop_id).map_err(|error| no(&error))?;
        let snapshot = snapshots::resolve(&kept, Moment::Iteration(iteration))
            .ok_or_else(|| format!("no snapshot before iteration {iteration} is kept"))?;
        let rules = Rules {
            protected: options.protected.clone(),
            max_file_bytes: options.max_file_bytes,
            own: options.own.clone(),
        };
        let plan = Rollback::plan(*repository, &options.loop_dir, &rules, snapshot)
            .map_err(|error| no(&error))?;
        if plan.is_nothing() {
            return Err(format!(
                "the work tree is as it was before iteration {iteration} already"
            ));
        }
        let moment = snapshots::next_rollback(&kept);
        let name = plan
            .keep(options.loop_id, moment)
            .map_err(|error| no(&error))?;
        // Whatever becomes of it, it is the loop's doing.
        books.unseen = true;
        plan.perform()
            .map_err(|error| format!("{}; what it was is kept as {name}", no(&error)))?;
        self.look(books, Whose::Loop, &never)
            .map_err(|error| no(&error))?;
        Ok(format!(
            "The operator has brought the work tree back to what it was before iteration {iteration}. What it was is kept as {name}."
        ))
    }
}
