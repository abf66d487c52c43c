//! Programs that are no `git`, and hang, flood or fail.
