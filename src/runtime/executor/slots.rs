//! Gives slots to running calls. Other calls wait in arrival order.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::oneshot;

/// A number of slots to run and of places to wait.
#[derive(Clone, Debug)]
pub(super) struct Slots(Arc<Mutex<Places>>);

#[derive(Debug)]
struct Places {
    running: usize,
    waiting: VecDeque<oneshot::Sender<Slot>>,
    most_running: usize,
    most_waiting: usize,
}

/// A slot to run, now or later.
#[derive(Debug)]
pub(super) enum Admission {
    Now(Slot),
    Later(oneshot::Receiver<Slot>),
}

/// A slot to run. Dropping it passes it to the next waiting call.
#[derive(Debug)]
pub(super) struct Slot(Option<Slots>);

/// All slots and waiting places are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{running} calls are running and {waiting} are waiting; nothing ran")]
pub(super) struct Full {
    running: usize,
    waiting: usize,
}

impl Slots {
    pub(super) fn new(most_running: usize, most_waiting: usize) -> Self {
        let places = Places { running: 0, waiting: VecDeque::new(), most_running, most_waiting };
        Self(Arc::new(Mutex::new(places)))
    }

    pub(super) fn enter(&self) -> Result<Admission, Full> {
        let mut places = self.lock();
        if places.running < places.most_running {
            places.running += 1;
            return Ok(Admission::Now(Slot(Some(self.clone()))));
        }
        // Calls that gave up while waiting take no place.
        places.waiting.retain(|waiting| !waiting.is_closed());
        if places.waiting.len() >= places.most_waiting {
            return Err(Full { running: places.running, waiting: places.waiting.len() });
        }
        let (next, entry) = oneshot::channel();
        places.waiting.push_back(next);
        Ok(Admission::Later(entry))
    }

    /// Passes a slot on. In a loop, not by dropping it again, so that a long queue cannot exhaust the stack.
    fn leave(&self) {
        loop {
            let mut places = self.lock();
            let Some(next) = places.waiting.pop_front() else {
                places.running -= 1;
                return;
            };
            drop(places);
            match next.send(Slot(Some(self.clone()))) {
                Ok(()) => return,
                Err(mut unwanted) => unwanted.0 = None,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Admission {
    /// Resolves when the slot is free.
    pub(super) async fn wait(self) -> Slot {
        match self {
            Self::Now(slot) => slot,
            // The sender is dropped only when it hands the slot over, or with the whole queue.
            Self::Later(entry) => match entry.await {
                Ok(slot) => slot,
                Err(_) => std::future::pending().await,
            },
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(slots) = self.0.take() {
            slots.leave();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn slots_are_passed_on_in_order() {
        let slots = Slots::new(1, 2);
        let first = slots.enter().unwrap().wait().await;
        let (second, third) = (slots.enter().unwrap(), slots.enter().unwrap());
        assert_eq!(slots.enter().unwrap_err(), Full { running: 1, waiting: 2 });
        drop(first);
        let second = second.wait().await;
        let mut third = Box::pin(third.wait());
        assert!(futures_ready(third.as_mut()).await.is_none());
        drop(second);
        drop(third.await);
        assert_eq!(slots.lock().running, 0);
    }

    #[tokio::test]
    async fn waiter_that_gave_up_is_skipped() {
        let slots = Slots::new(1, 1_000);
        let first = slots.enter().unwrap().wait().await;
        let gone: Vec<_> = (0..999).map(|_| slots.enter().unwrap()).collect();
        let last = slots.enter().unwrap();
        drop(gone);
        drop(first);
        drop(last.wait().await);
        assert_eq!(slots.lock().running, 0);
        // A slot that was handed to a dropped receiver is free again.
        let (first, second) = (slots.enter().unwrap(), slots.enter().unwrap());
        drop(first);
        drop(second);
        assert_eq!(slots.lock().running, 0);
    }

    async fn futures_ready<F: Future>(mut future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        std::future::poll_fn(|cx| {
            std::task::Poll::Ready(match future.as_mut().poll(cx) {
                std::task::Poll::Ready(output) => Some(output),
                std::task::Poll::Pending => None,
            })
        })
        .await
    }
}
