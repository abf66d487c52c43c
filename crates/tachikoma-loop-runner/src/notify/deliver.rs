//! Delivers one message: repeats failed attempts as long as a retry can help.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;

use super::format::{self, Delivery};
use super::{Address, Attempt, Delivered, Message, http};
use crate::settings::NotifyTarget;
use crate::shell::{Ended, Failure, Limit, Shell, TaskCommand};

/// Maximum number of attempts. With the backoff they take about 15 seconds. A message that arrives an hour late is useless.
pub(super) const ATTEMPTS_MAX: u32 = 5;

/// Delay before the second attempt. It doubles with each further attempt.
const BACKOFF: Duration = Duration::from_secs(1);

/// Timeout of one HTTP request or one mail, from the connection to the answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

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
            Attempt::Retry(error) => error,
        };
        if attempts >= attempts_max {
            break Some(error);
        }
        let backoff = BACKOFF * 2_u32.pow(attempts.saturating_sub(1));
        match within(backoff, std::future::pending::<()>(), &mut orders).await {
            Waited::TimedOut | Waited::For(()) => {}
            Waited::Canceled => break Some(error),
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
    let waited = match format::delivery(address, message) {
        Err(error) => return Attempt::Failed(error),
        Ok(Delivery::Run(job)) => {
            let ended = shell.run(*job, orders).await;
            return program_outcome(&ended, address.settings.to);
        }
        Ok(Delivery::Post(request)) => {
            let sent = http::post(request, &address.proxies);
            within(REQUEST_TIMEOUT, sent, orders).await
        }
        Ok(Delivery::Mail(mail)) => within(REQUEST_TIMEOUT, mail.send(), orders).await,
    };
    match waited {
        Waited::For(attempt) => attempt,
        Waited::TimedOut => Attempt::Retry("no answer in time".to_owned()),
        Waited::Canceled => Attempt::Failed("canceled".to_owned()),
    }
}

/// How a wait for a delivery ended.
enum Waited<T> {
    For(T),
    TimedOut,
    Canceled,
}

/// Waits for work, which is dropped after the timeout or if the message is canceled. Time while the process is suspended is not counted.
async fn within<T>(
    time: Duration,
    work: impl Future<Output = T>,
    orders: &mut mpsc::Receiver<TaskCommand>,
) -> Waited<T> {
    let mut limit = Limit::new(time);
    tokio::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return Waited::For(done),
            () = limit.over() => return Waited::TimedOut,
            order = orders.recv() => match order {
                Some(TaskCommand::Suspend(done)) => {
                    limit.stop();
                    // The send fails if the sender of the command no longer waits, which does not matter.
                    let _ = done.send(());
                }
                Some(TaskCommand::Resume) => limit.resume(),
                Some(TaskCommand::Cancel) | None => return Waited::Canceled,
            },
        }
    }
}

/// Returns the result of a delivery by a program. It does not repeat the program's output, which can contain secrets.
fn program_outcome(ended: &Ended, to: NotifyTarget) -> Attempt {
    match &ended.failure {
        None => Attempt::Delivered,
        Some(Failure::TimedOut) => Attempt::Failed("the program did not end in time".to_owned()),
        Some(Failure::Canceled) => Attempt::Failed("canceled".to_owned()),
        Some(Failure::Failed(_)) => Attempt::Failed(match ended.exit {
            Some(exit) => format!("the program ended with {exit}"),
            None if to == NotifyTarget::Desktop => {
                "`notify-send` cannot be started; is it installed?".to_owned()
            }
            None => "the program cannot be started".to_owned(),
        }),
    }
}
