//! A full disk: the runner waits for space, for a limited time. The core does not know of the wait, because its last decision cannot be
//! recorded. Meanwhile nothing is published and no effect happens.

use std::time::Duration;

use tachikoma_core::{Answer, LoopCommand, LoopState, Outcome};

use super::error::Abort;
use crate::handle::LoopRequest;
use crate::request::ControlRequest;

/// Interval between attempts to write. There is no system call that waits for space.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of queued inputs. If there are more, the agent has to wait, so that memory does not grow.
pub(super) const WAITING_MAX: usize = 1024;

/// Refuses a request while the disk is full. Only a stop is accepted, because all other requests must be recorded. Returns requests that need
/// no record.
///
/// # Errors
/// The operator stops the loop, which ends the run.
pub(super) fn filter_request(
    request: LoopRequest,
    current: LoopState,
) -> Result<Option<LoopRequest>, Abort> {
    let LoopRequest::Ask { request, reply, .. } = request else {
        return Ok(Some(request));
    };
    // Sending fails if the caller no longer waits, which does not matter.
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
