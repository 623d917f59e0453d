//! The backlog of the reliable lane: queued packets and unacknowledged bytes.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// Counted by whoever sends and by the task that writes; read by whoever asks.
#[derive(Clone, Debug, Default)]
pub(super) struct Backlog(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    queued: AtomicUsize,
    unacknowledged: AtomicUsize,
}

/// Counts a queued packet in the backlog until dropped.
#[derive(Debug)]
pub(super) struct Queued {
    backlog: Backlog,
    bytes: usize,
}

impl Backlog {
    /// Adds a queued packet of this size, in bytes.
    pub(super) fn queue(&self, bytes: usize) -> Queued {
        self.0.queued.fetch_add(bytes, Relaxed);
        Queued { backlog: self.clone(), bytes }
    }

    /// Sets the number of bytes written but not acknowledged.
    pub(super) fn set_unacknowledged(&self, bytes: usize) {
        self.0.unacknowledged.store(bytes, Relaxed);
    }

    /// Returns the backlog in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.0.queued.load(Relaxed).saturating_add(self.0.unacknowledged.load(Relaxed))
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.backlog.0.queued.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_queued_counts_until_it_is_written_or_given_up() {
        let backlog = Backlog::default();
        let (one, two) = (backlog.queue(100), backlog.queue(20));
        backlog.set_unacknowledged(3);
        assert_eq!(backlog.bytes(), 123);
        drop(one);
        drop(two);
        backlog.set_unacknowledged(0);
        assert_eq!(backlog.bytes(), 0);
    }
}
