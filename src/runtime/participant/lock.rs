//! Guards the session with a lock. No callback of the author runs while it is held, but a subscriber of the
//! application may receive log records then. If it used a handle of the participant, it would deadlock;
//! therefore that panics.

use std::{
    cell::RefCell,
    ops::{Deref, DerefMut},
    sync::{MutexGuard, PoisonError},
    thread,
};

use super::{Inner, Shared};

thread_local! {
    /// The locks that this thread holds, by address: two participants in one process may use each other.
    static HELD: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// The session, locked.
pub(super) struct Locked<'a> {
    inner: MutexGuard<'a, Inner>,
    _held: Held,
}

impl Shared {
    /// Ignores poisoning: a panic while the lock was held would be a bug in the session, and its state is still the
    /// best available.
    ///
    /// # Panics
    /// If this thread holds the lock already.
    #[track_caller]
    pub(super) fn lock(&self) -> Locked<'_> {
        assert!(
            !self.is_held_here(),
            "a subscriber of log records must not use a handle of the participant that logs: it would wait for itself"
        );
        Locked {
            inner: self.inner.lock().unwrap_or_else(PoisonError::into_inner),
            _held: Held::new(self.address()),
        }
    }

    /// For destructors: returns `None` if the thread is unwinding because [`lock`](Self::lock) has panicked. A second
    /// panic would abort the process.
    pub(super) fn lock_to_drop(&self) -> Option<Locked<'_>> {
        (!thread::panicking() || !self.is_held_here()).then(|| self.lock())
    }

    fn is_held_here(&self) -> bool {
        // A thread that is ending has no such list any more, and runs no callbacks.
        HELD.try_with(|held| held.borrow().contains(&self.address())).unwrap_or(false)
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

/// Records that this thread holds the lock at this address.
struct Held(usize);

impl Held {
    fn new(address: usize) -> Self {
        let _ = HELD.try_with(|held| held.borrow_mut().push(address));
        Self(address)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = HELD.try_with(|held| held.borrow_mut().retain(|address| *address != self.0));
    }
}

impl Deref for Locked<'_> {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.inner
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Inner {
        &mut self.inner
    }
}
