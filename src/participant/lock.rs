//! The session's lock. Functions of the author's run under it: what chooses, what admits. One that asks for it
//! again would wait for itself for ever; so it panics, which whoever called it catches.

use std::{
    cell::RefCell,
    ops::{Deref, DerefMut},
    sync::{MutexGuard, PoisonError},
    thread,
};

use super::{Inner, Shared};

thread_local! {
    /// Whose locks this thread holds, by their addresses: two participants in one process may know each other.
    static HELD: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// The session, locked.
pub(super) struct Locked<'a> {
    inner: MutexGuard<'a, Inner>,
    _held: Held,
}

impl Shared {
    /// A panic while the lock was held would be a bug in the session; its state is still the best there is.
    ///
    /// # Panics
    /// When a function that runs under this lock uses its own participant.
    #[track_caller]
    pub(super) fn lock(&self) -> Locked<'_> {
        assert!(
            !self.is_held_here(),
            "a function that a participant calls to choose, to admit, to allow a stop or to adopt a trace must \
             not use a handle of that participant: it would wait for itself"
        );
        Locked {
            inner: self.inner.lock().unwrap_or_else(PoisonError::into_inner),
            _held: Held::new(self.address()),
        }
    }

    /// For what is dropped: nothing, if it goes because [`lock`](Self::lock) has panicked. A second panic would
    /// end the process.
    pub(super) fn lock_to_drop(&self) -> Option<Locked<'_>> {
        (!thread::panicking() || !self.is_held_here()).then(|| self.lock())
    }

    fn is_held_here(&self) -> bool {
        // A thread that ends has no such list any more, and runs no function of anybody's.
        HELD.try_with(|held| held.borrow().contains(&self.address())).unwrap_or(false)
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

/// That this thread holds the lock at this address.
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
