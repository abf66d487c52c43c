//! Something that is done beside the loop, in a task of its own, and can be stopped, gone on with and called off.

use std::future::Future;

use tokio::sync::{mpsc, oneshot};

use crate::task::Task;

/// An errand is told to stop, to go on and to end, and reads at once.
const ORDERS_MAX: usize = 8;

/// What an errand is told while it is under way.
#[derive(Debug)]
pub(crate) enum Order {
    /// The whole process is about to be stopped.
    Suspend(oneshot::Sender<()>),
    /// It goes on.
    Continue,
    /// Nobody waits for it any more.
    End,
}

/// How an errand ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ran<T> {
    /// With this.
    With(T),
    /// Not what it ran but its runner panicked.
    Broken(String),
}

/// An errand under way. Dropped, it is ended where it is.
#[derive(Debug)]
pub(crate) struct Errand<T> {
    orders: mpsc::Sender<Order>,
    results: oneshot::Receiver<T>,
    task: Task,
}

impl<T: Send + 'static> Errand<T> {
    /// Begins an errand, as soon as the one `before` has ended.
    pub fn begin<W>(
        name: &'static str,
        before: Option<Self>,
        work: impl FnOnce(mpsc::Receiver<Order>) -> W + Send + 'static,
    ) -> Self
    where
        W: Future<Output = T> + Send,
    {
        let (orders, ordered) = mpsc::channel(ORDERS_MAX);
        let (out, results) = oneshot::channel();
        let work = async move {
            if let Some(before) = before {
                before.end().await;
            }
            // Whoever waited may have gone.
            let _ = out.send(work(ordered).await);
        };
        Self {
            orders,
            results,
            task: Task::spawn(name, work),
        }
    }

    /// Returns how it went, once nothing of it is left. Cancel-safe.
    pub async fn ended(&mut self) -> Ran<T> {
        match (&mut self.results).await {
            Ok(results) => Ran::With(results),
            Err(_) => Ran::Broken(self.task.broken().await),
        }
    }

    /// Stops what runs, as Ctrl-Z does, and then tells `done`.
    pub fn suspend(&self, done: oneshot::Sender<()>) {
        self.order(Order::Suspend(done));
    }

    /// Lets what was stopped go on.
    pub fn resume(&self) {
        self.order(Order::Continue);
    }

    /// Nobody waits for it any more: what runs is asked to go, and killed if it does not. Never waits.
    pub fn call_off(&self) {
        self.order(Order::End);
    }

    /// Calls it off and waits until nothing of it is left.
    pub async fn end(mut self) {
        self.call_off();
        // Its results are for nobody, and so is a panic.
        let _ = self.task.ended().await;
    }

    fn order(&self, order: Order) {
        // One that is over needs no orders.
        let _ = self.orders.try_send(order);
    }
}

impl<T> Drop for Errand<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}
