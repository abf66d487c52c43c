//! The async runtime of this program: one thread.

use crate::failure::Failure;

/// Runs a future until it completes. A name lookup that hangs in a background thread does not delay the exit of the program.
pub fn block_on<F: Future>(future: F) -> Result<F::Output, Failure> {
    let runtime = runtime()?;
    let output = runtime.block_on(future);
    runtime.shutdown_background();
    Ok(output)
}

/// Returns a runtime with one thread, which is enough for every command.
pub fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(format!("no runtime: {error}")))
}
