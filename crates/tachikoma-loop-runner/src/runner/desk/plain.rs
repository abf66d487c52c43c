//! Files without a repository: they are only looked at.

use std::path::Path;

use tachikoma_core::AutocommitResult;

use super::{Clerk, Taken, Told, Untaken, count, first_names};
use crate::error::chain;
use crate::git::{CallOff, Plain, PlainError};

impl Clerk {
    pub(super) fn plain_after(
        &self,
        plain: &mut Plain,
        call_off: &CallOff,
    ) -> Result<AutocommitResult, String> {
        let looked = plain.look(call_off);
        if let Err(error @ PlainError::TooMany { .. }) = &looked {
            self.tell(Told::Blind(chain(error)));
        }
        let changed = looked.map_err(|error| chain(&error))?;
        Ok(AutocommitResult {
            changed: count(changed.len()),
            files: first_names(&changed, |path| path.as_path().to_owned(), Path::new("")),
            ..AutocommitResult::default()
        })
    }
}

/// Takes the files for known as they are: what others changed between two iterations is no work of the loop's.
pub(super) fn before(plain: &mut Plain, call_off: &CallOff) -> Result<Taken, Untaken> {
    match plain.look(call_off) {
        Ok(_) => Ok(Taken {
            commit: None,
            uncommitted: 0,
        }),
        // What is wrong is said behind the iteration, where it matters.
        Err(PlainError::CalledOff { .. } | PlainError::Io { .. } | PlainError::TooMany { .. }) => {
            Err(Untaken::CalledOff)
        }
    }
}
