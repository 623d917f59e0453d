//! Holds the work of a participant's task, which can be taken out of the task and polled elsewhere.

use std::{
    future::{Future, poll_fn},
    mem,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::Poll,
};

use tokio::task::AbortHandle;

/// The work of a participant's task.
pub(crate) type TaskWork = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The work, and the task that polls it until it is taken.
#[derive(Default)]
pub(crate) struct Work {
    /// `None` once the work has ended or was taken.
    slot: Arc<Mutex<Option<TaskWork>>>,
    task: Option<AbortHandle>,
}

impl Work {
    /// Starts a task that polls the work. The work decides when it ends: dropping this does not end it.
    pub(crate) fn spawn(&mut self, work: TaskWork) {
        *lock(&self.slot) = Some(work);
        let slot = Arc::clone(&self.slot);
        let task = tokio::spawn(poll_fn(move |cx| {
            let mut slot = lock(&slot);
            let ended = slot.as_mut().is_none_or(|work| work.as_mut().poll(cx).is_ready());
            let work = if ended { mem::take(&mut *slot) } else { None };
            drop(slot);
            // Without the lock, because the queues of the work wake other tasks when they end.
            drop(work);
            if ended { Poll::Ready(()) } else { Poll::Pending }
        }));
        self.task = Some(task.abort_handle());
    }

    /// Takes the work out of its task, which ends.
    pub(crate) fn take(&mut self) -> Option<TaskWork> {
        let work = lock(&self.slot).take();
        if let Some(task) = self.task.take() {
            task.abort();
        }
        work
    }
}

/// Locks the slot. A panic of the work poisons the lock and ends the task; what is left must not be polled
/// again.
fn lock(slot: &Mutex<Option<TaskWork>>) -> std::sync::MutexGuard<'_, Option<TaskWork>> {
    slot.lock().unwrap_or_else(|poisoned: PoisonError<_>| {
        let mut slot = poisoned.into_inner();
        *slot = None;
        slot
    })
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    /// Work that returns every number that it is sent.
    fn echo() -> (TaskWork, mpsc::Sender<u8>, mpsc::Receiver<u8>) {
        let (input, mut inputs) = mpsc::channel(1);
        let (output, outputs) = mpsc::channel(1);
        let work = async move {
            while let Some(number) = inputs.recv().await {
                let _ = output.send(number).await;
            }
        };
        (Box::pin(work), input, outputs)
    }

    #[tokio::test]
    async fn taken_work_continues_where_it_was() {
        let (work, input, mut outputs) = echo();
        let mut slot = Work::default();
        slot.spawn(work);
        input.send(1).await.unwrap();
        assert_eq!(outputs.recv().await, Some(1));
        let taken = slot.take().unwrap();
        assert!(slot.take().is_none());
        input.send(2).await.unwrap();
        tokio::task::yield_now().await;
        assert!(outputs.try_recv().is_err(), "nobody polls it");
        tokio::join!(taken, async {
            assert_eq!(outputs.recv().await, Some(2));
            drop(input);
        });
    }

    #[tokio::test]
    async fn work_that_panicked_is_not_polled_again() {
        let mut slot = Work::default();
        slot.spawn(Box::pin(async { panic!("on purpose") }));
        while slot.task.as_ref().is_some_and(|task| !task.is_finished()) {
            tokio::task::yield_now().await;
        }
        assert!(slot.take().is_none());
    }

    #[tokio::test]
    async fn work_runs_to_its_end_after_its_handle_was_dropped() {
        let (work, input, mut outputs) = echo();
        let mut slot = Work::default();
        slot.spawn(work);
        drop(slot);
        input.send(3).await.unwrap();
        assert_eq!(outputs.recv().await, Some(3));
    }
}
