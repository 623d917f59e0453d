//! Polls a participant's driver and its transport's background work in one task.
//!
//! Each of the two wakes the other several times per call. As two tasks they would also wake threads: the runtime looks for an
//! idle thread whenever a second task becomes ready. Here such a wake-up only sets a flag, and the other future is polled next.
//!
//! Between the two, the other tasks of the runtime have one turn: what they send in answer to what the driver gave them, such as the
//! next call after a result, leaves in one datagram with the driver's own acknowledgement.

use std::{
    any::Any,
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::{Context, Poll, Wake, Waker},
};

/// How often both are polled before other tasks have a turn.
const ROUNDS: usize = 16;

/// A future that is polled only after it was woken.
type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs both to their ends: the driver, and the transport that sends what the driver queues. If one panics, the other still runs to
/// its end.
///
/// # Panics
/// With the panic of either, after both have ended.
pub(super) async fn run_both(driver: Work, transport: Work) {
    let task = Arc::new(Task::default());
    let mut branches = [Branch::new(driver, &task), Branch::new(transport, &task)];
    // Whether other tasks have had their turn since this one was last idle.
    let mut has_yielded = false;
    poll_fn(|cx| {
        task.begin(cx.waker());
        for _ in 0..ROUNDS {
            let mut polled = branches[0].poll_if_woken();
            if polled && branches[1].is_woken() && !has_yielded {
                has_yielded = true;
                break;
            }
            polled |= branches[1].poll_if_woken();
            // Without a budget, the runtime's resources wake a branch only after this task's turn.
            if !polled {
                break;
            }
        }
        task.end();
        if branches.iter().all(Branch::has_ended) {
            return Poll::Ready(());
        }
        if branches.iter().any(Branch::is_woken) {
            cx.waker().wake_by_ref();
        } else {
            has_yielded = false;
        }
        Poll::Pending
    })
    .await;
    if let Some(panic) = branches.into_iter().find_map(|branch| branch.panic) {
        resume_unwind(panic);
    }
}

/// The task that polls both.
#[derive(Default)]
struct Task {
    /// Whether it is polling. It then detects wake-ups itself.
    is_polling: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Task {
    fn begin(&self, waker: &Waker) {
        let mut kept = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        if !kept.as_ref().is_some_and(|kept| kept.will_wake(waker)) {
            *kept = Some(waker.clone());
        }
        drop(kept);
        self.is_polling.store(true, SeqCst);
    }

    fn end(&self) {
        self.is_polling.store(false, SeqCst);
    }

    fn wake(&self) {
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Wakes one branch.
struct Signal {
    is_woken: AtomicBool,
    task: Arc<Task>,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Either this sees that the task does not poll, or the task sees the flag after it has polled.
        if !self.is_woken.swap(true, SeqCst) && !self.task.is_polling.load(SeqCst) {
            self.task.wake();
        }
    }
}

struct Branch {
    work: Option<Work>,
    signal: Arc<Signal>,
    waker: Waker,
    panic: Option<Box<dyn Any + Send>>,
}

impl Branch {
    fn new(work: Work, task: &Arc<Task>) -> Self {
        let signal = Arc::new(Signal { is_woken: AtomicBool::new(true), task: Arc::clone(task) });
        Self { work: Some(work), waker: Waker::from(Arc::clone(&signal)), signal, panic: None }
    }

    /// Returns true if it was woken, and so polled.
    fn poll_if_woken(&mut self) -> bool {
        let Some(work) = &mut self.work else { return false };
        if !self.signal.is_woken.swap(false, SeqCst) {
            return false;
        }
        let mut cx = Context::from_waker(&self.waker);
        match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(&mut cx))) {
            Ok(Poll::Pending) => {}
            Ok(Poll::Ready(())) => self.work = None,
            Err(panic) => (self.work, self.panic) = (None, Some(panic)),
        }
        true
    }

    fn is_woken(&self) -> bool {
        self.work.is_some() && self.signal.is_woken.load(SeqCst)
    }

    fn has_ended(&self) -> bool {
        self.work.is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::{sync::mpsc, task::JoinSet};

    use super::*;

    #[tokio::test]
    async fn branches_that_wake_each_other_share_the_polls_of_one_task() {
        let (polls, (ping, mut pinged), (pong, mut ponged)) =
            (Arc::new(AtomicUsize::new(0)), mpsc::channel(1), mpsc::channel(1));
        let first = async move {
            for n in 0..ROUNDS / 2 {
                ping.send(n).await.unwrap();
                assert_eq!(ponged.recv().await, Some(n));
            }
        };
        let second = async move {
            while let Some(n) = pinged.recv().await {
                pong.send(n).await.unwrap();
            }
        };
        let mut both = Box::pin(run_both(Box::pin(first), Box::pin(second)));
        poll_fn(|cx| {
            polls.fetch_add(1, Ordering::Relaxed);
            both.as_mut().poll(cx)
        })
        .await;
        assert_eq!(polls.load(Ordering::Relaxed), 2, "one turn of other tasks between them");
    }

    /// The driver settles a call and queues an acknowledgement; the app's next call is queued before both are sent.
    #[tokio::test]
    async fn answer_of_another_task_is_sent_together_with_what_the_driver_queued() {
        let (settle, mut settled) = mpsc::channel(1);
        let (queue, mut queued) = mpsc::unbounded_channel();
        let (called, mut calls) = mpsc::channel(1);
        let (received, mut results) = mpsc::channel(1);
        let driver = {
            let queue = queue.clone();
            async move {
                for n in 0..3 {
                    let () = results.recv().await.unwrap();
                    settle.send(()).await.unwrap();
                    queue.send(format!("acknowledgement {n}")).unwrap();
                    let () = calls.recv().await.unwrap();
                    queue.send(format!("request {n}")).unwrap();
                }
            }
        };
        let transport = async move {
            let mut sent = Vec::new();
            for _ in 0..3 {
                tokio::task::yield_now().await;
                received.send(()).await.unwrap();
                let mut datagram = vec![queued.recv().await.unwrap()];
                while let Ok(packet) = queued.try_recv() {
                    datagram.push(packet);
                }
                sent.push(datagram.len());
                if datagram.len() == 1 {
                    break;
                }
            }
            assert_eq!(sent, [2, 2, 2]);
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { while settled.recv().await.is_some() && called.send(()).await.is_ok() {} });
        tasks.spawn(run_both(Box::pin(driver), Box::pin(transport)));
        tasks.join_all().await;
    }

    #[tokio::test]
    async fn busy_branches_let_other_tasks_run() {
        let (stop, mut stopped) = mpsc::channel(1);
        let busy = async move {
            while stopped.try_recv().is_err() {
                let mut yielded = false;
                poll_fn(|cx| {
                    cx.waker().wake_by_ref();
                    if std::mem::replace(&mut yielded, true) { Poll::Ready(()) } else { Poll::Pending }
                })
                .await;
            }
        };
        tokio::join!(run_both(Box::pin(busy), Box::pin(async {})), async { stop.send(()).await.unwrap() });
    }

    #[tokio::test]
    async fn wake_up_of_another_thread_is_seen() {
        for _ in 0..200 {
            let (sender, receiver) = tokio::sync::oneshot::channel();
            let thread = std::thread::spawn(move || sender.send(()).unwrap());
            run_both(Box::pin(async { receiver.await.unwrap() }), Box::pin(tokio::task::yield_now())).await;
            thread.join().unwrap();
        }
    }

    #[tokio::test]
    async fn branch_runs_to_its_end_after_the_other_panicked() {
        let (done, ended) = tokio::sync::oneshot::channel();
        let panics = Box::pin(async { panic!("on purpose") });
        let ends = Box::pin(async move {
            tokio::task::yield_now().await;
            done.send(()).unwrap();
        });
        #[expect(clippy::disallowed_methods, reason = "the test ends with it")]
        let both = tokio::spawn(run_both(panics, ends));
        assert!(both.await.unwrap_err().is_panic());
        ended.await.unwrap();
    }
}
