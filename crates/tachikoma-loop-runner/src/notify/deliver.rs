//! One message on its way: tried again while that may help, and given up when it does not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tachikoma_core::Exit;
use tokio::sync::mpsc;

use super::format::{self, Order as What};
use super::{Address, Delivered, Message};
use crate::settings::NotifyTarget;
use crate::shell::{Ended, Failure, Job, Limit, Said, Shell, TaskCommand};

/// A message of an hour ago is no news: a service that is down for half a minute is worth waiting for, and not more.
pub(super) const ATTEMPTS_MAX: u32 = 5;

/// Before the second attempt; doubled with each.
const BACKOFF: Duration = Duration::from_secs(1);

/// For one attempt. The program itself gives up a little earlier, and says why.
const TIMEOUT: Duration = Duration::from_secs(15);

/// What is heard of the program: the status of the answer, or nothing that matters.
const HEARD_BYTES_MAX: usize = 1024;

/// How an attempt went.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    Delivered,
    /// It may go better later.
    Again(String),
    /// It never will.
    Failed(String),
}

pub(super) async fn deliver(
    address: Address,
    message: Message,
    mut shell: Shell,
    mut orders: mpsc::Receiver<TaskCommand>,
    tried: Arc<AtomicU32>,
    attempts_max: u32,
) -> Delivered {
    let mut attempts: u32 = 0;
    let error = loop {
        attempts += 1;
        tried.store(attempts, Ordering::Relaxed);
        let error = match attempt(&address, &message, &mut shell, &mut orders).await {
            Attempt::Delivered => break None,
            Attempt::Failed(error) => break Some(error),
            Attempt::Again(error) => error,
        };
        let backoff = BACKOFF * 2_u32.pow(attempts.saturating_sub(1));
        if attempts >= attempts_max || !rest(backoff, &mut orders).await {
            break Some(error);
        }
    };
    shell.close().await;
    Delivered { attempts, error }
}

async fn attempt(
    address: &Address,
    message: &Message,
    shell: &mut Shell,
    orders: &mut mpsc::Receiver<TaskCommand>,
) -> Attempt {
    let What {
        program,
        args,
        env,
        input,
    } = match format::order(address, message) {
        Ok(what) => what,
        Err(error) => return Attempt::Failed(error),
    };
    let job = Job {
        program,
        args,
        env,
        working_dir: message.event.working_dir.clone(),
        input,
        limit: Limit::new(TIMEOUT),
        said: Said::tail_only(HEARD_BYTES_MAX),
    };
    let ended = shell.run(job, orders).await;
    match address.settings.to.goes_through_curl() {
        true => of_curl(ended),
        false => of_program(&ended, address.settings.to),
    }
}

/// Waits; returns whether it is still wanted.
async fn rest(backoff: Duration, orders: &mut mpsc::Receiver<TaskCommand>) -> bool {
    let mut limit = Limit::new(backoff);
    loop {
        tokio::select! {
            () = limit.over() => return true,
            order = orders.recv() => match order {
                Some(TaskCommand::Suspend(done)) => {
                    limit.stop();
                    // Whoever asked may have gone.
                    let _ = done.send(());
                }
                Some(TaskCommand::Resume) => limit.resume(),
                Some(TaskCommand::Cancel) | None => return false,
            },
        }
    }
}

fn of_program(ended: &Ended, to: NotifyTarget) -> Attempt {
    match &ended.failure {
        None => Attempt::Delivered,
        Some(Failure::TimedOut) => Attempt::Failed("it did not end in time".to_owned()),
        Some(Failure::CalledOff) => Attempt::Failed("it was called off".to_owned()),
        // What it said may be what it was not to say.
        Some(Failure::Failed(_)) => Attempt::Failed(match ended.exit {
            Some(exit) => format!("the program ended with {exit}"),
            None if to == NotifyTarget::Desktop => {
                "`notify-send` cannot be started; is it installed?".to_owned()
            }
            None => "the program cannot be started".to_owned(),
        }),
    }
}

/// What curl said on its way out is not repeated: addresses are secrets.
fn of_curl(ended: Ended) -> Attempt {
    let code = match (ended.failure, ended.exit) {
        (Some(Failure::TimedOut), _) => {
            return Attempt::Again("there was no answer in time".to_owned());
        }
        (Some(Failure::CalledOff), _) => return Attempt::Failed("it was called off".to_owned()),
        (Some(Failure::Failed(_)), Some(Exit::Code(code))) => code,
        (Some(Failure::Failed(_)), _) => {
            return Attempt::Failed("`curl` cannot be started; is it installed?".to_owned());
        }
        (None, _) => 0,
    };
    let said = ended.last_words.unwrap_or_default();
    let status: u32 = said.trim().parse().unwrap_or(0);
    match (code, status) {
        (0, 200..300) => Attempt::Delivered,
        (0, 300..400) => Attempt::Failed(format!(
            "it answered with a redirect ({status}), which is not followed"
        )),
        (0, 408 | 429 | 500..) => Attempt::Again(format!("it answered with {status}")),
        (0, 1..) => Attempt::Failed(format!("it answered with {status}")),
        (0, 0) | (52 | 55 | 56, _) => Attempt::Again("the connection was cut".to_owned()),
        (1 | 3, _) => Attempt::Failed("its address is none that can be sent to".to_owned()),
        (5 | 6, _) => Attempt::Again("its host is not known".to_owned()),
        (7, _) => Attempt::Again("nobody listens there".to_owned()),
        (28, _) => Attempt::Again("there was no answer in time".to_owned()),
        (35 | 51 | 58 | 60, _) => Attempt::Failed("its certificate is not accepted".to_owned()),
        (67, _) => Attempt::Failed("the user or the password is refused".to_owned()),
        (127, _) => Attempt::Failed("`curl` cannot be started; is it installed?".to_owned()),
        (code, _) => Attempt::Again(format!("curl ended with exit {code}")),
    }
}
