//! What the agent, or anyone, deleted of the supervisor's own while it runs: lock, journal, server file.

use tachikoma_fs::make_dir;

use super::super::SupervisorError;
use super::{Supervisor, ignore};
use crate::login_file;
use crate::server_file::{self, ServerFile};
use tachikoma_store::StoreError;
use tachikoma_store::lock::LockError;

impl Supervisor {
    /// Makes the directory whole: without its lock nobody believes that there is a supervisor, and without its file nobody finds
    /// the server.
    pub(super) async fn repair(&mut self) -> Result<(), SupervisorError> {
        let dir = self.settings.dir.clone();
        let locked = self.lock.is_in_place_in(&dir);
        let file = dir.join(server_file::NAME);
        // Before the first one was written there is none to miss.
        let published = *self.published.borrow() != ServerFile::default();
        let kept = !self.login_is_kept || dir.join(login_file::NAME).exists();
        if locked && kept && (!published || file.exists()) {
            return Ok(());
        }
        // Without a working directory there is nothing to make it in; the next start says so.
        if !self.settings.working_dir.is_dir() {
            return Ok(());
        }
        make_dir(&dir).map_err(StoreError::from)?;
        ignore(&dir);
        if !locked {
            let taken = self.lock.retake_in(&dir).await;
            taken.map_err(|error| match error {
                LockError::Held { holder, .. } => SupervisorError::Held {
                    dir: dir.clone(),
                    holder,
                },
                LockError::Store(error) => SupervisorError::Store(error),
            })?;
            if let (Some(guard), Ok(lock)) = (&mut self.guard, self.lock.share()) {
                // A guard that is gone is told of by its own news.
                let _ = guard.hold(lock);
            }
            self.journal.renew(&mut self.state)?;
        }
        if let Some(login) = self.login.as_ref().filter(|_| self.login_is_kept) {
            login_file::write(&dir, login)?;
        }
        // Who reads it finds none; the next change writes it anew.
        let _ = self.published.borrow().write(&dir);
        self.note("the supervisor's files were gone, and were made anew");
        Ok(())
    }
}
