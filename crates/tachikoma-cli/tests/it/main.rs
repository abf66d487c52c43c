//! Tests of the binary: real files, real child processes.

mod config;
mod errors_control;
mod errors_input;
mod errors_store;
mod outcomes;
mod outcomes_status;
mod resume;
mod support;
mod turns;
