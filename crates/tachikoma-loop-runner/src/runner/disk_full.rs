//! A full disk: the runner waits for space, for a limited time. The core does not know of the wait, because its decision cannot be recorded.
//! Meanwhile nothing is published and no effect happens.

use std::time::Duration;

use tachikoma_core::{Answer, LoopCommand, LoopState, Outcome};

use super::error::Abort;
use crate::handle::LoopRequest;
use crate::request::ControlRequest;

/// How often the runner tries to write. There is no system call that waits for space.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Inputs that may wait. If there are more, the agent waits, so that memory does not grow.
pub(super) const WAITING_MAX: usize = 1024;

/// Answers a request. Only a stop is granted, because everything else would have to be recorded. Returns a request that needs no record.
///
/// # Errors
/// The operator stops the loop.
pub(super) fn filter_request(
    request: LoopRequest,
    current: LoopState,
) -> Result<Option<LoopRequest>, Abort> {
    let LoopRequest::Ask { request, reply, .. } = request else {
        return Ok(Some(request));
    };
    // The caller may have gone.
    if reply.is_closed() {
        return Ok(None);
    }
    if let ControlRequest::Command {
        command: LoopCommand::Stop(_),
    } = request
    {
        let note = "stopped; the disk is full, so the stop was not recorded".to_owned();
        let _ = reply.send(Answer::Accepted { note });
        return Err(Abort::Unrecorded(Outcome::Operator));
    }
    let _ = reply.send(Answer::Refused {
        current,
        reason: "the disk is full: nothing can be recorded, so only `stop` is possible; \
                 free some space, and the loop continues by itself"
            .to_owned(),
    });
    Ok(None)
}
