//! Counts the tools that run.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::sync::Notify;

/// How many tools run.
#[derive(Clone, Default)]
pub(crate) struct Runs {
    running: Arc<AtomicUsize>,
    changed: Arc<Notify>,
}

/// A tool that runs, until this is dropped.
pub(crate) struct Run(Runs);

impl Drop for Run {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
        self.0.changed.notify_one();
    }
}

impl Runs {
    pub(crate) fn begin(&self) -> Run {
        self.running.fetch_add(1, Ordering::SeqCst);
        self.changed.notify_one();
        Run(self.clone())
    }

    /// Waits until so many run.
    pub(crate) async fn until(&self, running: usize) {
        while self.running.load(Ordering::SeqCst) != running {
            self.changed.notified().await;
        }
    }
}
