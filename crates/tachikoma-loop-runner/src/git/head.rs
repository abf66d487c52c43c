//! What the work tree stands on, read without a process where that can be done.
