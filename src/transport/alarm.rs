//! Keeps a timer whose deadline changes with almost every packet.
//!
//! Registering a deadline that is earlier than all others wakes the thread that waits for sockets, which costs a system call and
//! two context switches. So the timer stays registered for the earliest deadline that it was given, and looks at the current
//! deadline when it fires.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::{Context, Poll},
};

use tokio::time::{Instant, Sleep, sleep_until};

/// The timer.
#[derive(Debug, Default)]
pub(crate) struct Alarm {
    /// Fires at the current deadline or before it.
    registered: Option<Pin<Box<Sleep>>>,
}

impl Alarm {
    /// Waits until this time, or forever if there is none.
    ///
    /// # Cancel safety
    /// Safe: the next call gives the next deadline.
    pub(crate) async fn wait_until(&mut self, deadline: Option<Instant>) {
        poll_fn(|cx| self.poll(cx, deadline)).await;
    }

    fn poll(&mut self, cx: &mut Context<'_>, deadline: Option<Instant>) -> Poll<()> {
        let Some(deadline) = deadline else { return Poll::Pending };
        let registered = self.registered.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if deadline < registered.deadline() {
            registered.as_mut().reset(deadline);
        }
        loop {
            if registered.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if registered.deadline() >= deadline || Instant::now() >= deadline {
                return Poll::Ready(());
            }
            registered.as_mut().reset(deadline);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn alarm_fires_at_the_last_deadline_whether_earlier_or_later() {
        let (mut alarm, start) = (Alarm::default(), Instant::now());
        for (given, then) in [(50, 20), (20, 80), (10, 10)] {
            let begun = Instant::now();
            tokio::select! {
                biased;
                () = alarm.wait_until(Some(begun + given * MS)) => panic!("too early"),
                () = std::future::ready(()) => {}
            }
            alarm.wait_until(Some(begun + then * MS)).await;
            assert_eq!(begun.elapsed(), then * MS, "{:?}", start.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn deadline_that_has_passed_is_due_at_once() {
        let (mut alarm, start) = (Alarm::default(), Instant::now());
        for _ in 0..3 {
            alarm.wait_until(Some(start)).await;
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn alarm_without_a_deadline_never_fires() {
        let mut alarm = Alarm::default();
        alarm.wait_until(Some(Instant::now() + MS)).await;
        assert!(tokio::time::timeout(1_000 * MS, alarm.wait_until(None)).await.is_err());
    }
}
