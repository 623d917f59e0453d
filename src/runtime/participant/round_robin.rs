//! Waits for several sources of which none can keep another from its turn.

use std::{future::poll_fn, pin::Pin, task::Poll};

/// Which source is looked at first.
#[derive(Debug, Default)]
pub(super) struct RoundRobin(usize);

impl RoundRobin {
    /// Returns the output of the first source that is ready, beginning after the one whose output was returned last. So
    /// a source that is ready has its turn after at most one output of each other.
    ///
    /// # Cancel safety
    /// As that of the sources: all but the one that is ready are dropped.
    pub(super) async fn next<T, const N: usize>(
        &mut self,
        mut sources: [Pin<&mut (dyn Future<Output = T> + Send)>; N],
    ) -> T {
        poll_fn(|cx| {
            for place in (self.0..N).chain(0..self.0) {
                if let Poll::Ready(output) = sources[place].as_mut().poll(cx) {
                    self.0 = (place + 1) % N;
                    return Poll::Ready(output);
                }
            }
            Poll::Pending
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::{pending, ready},
        pin::pin,
    };

    use super::*;

    #[tokio::test]
    async fn sources_that_are_always_ready_take_turns() {
        let (mut sources, mut seen) = (RoundRobin::default(), Vec::new());
        for _ in 0..6 {
            seen.push(sources.next([pin!(ready(0)), pin!(pending()), pin!(ready(2)), pin!(ready(3))]).await);
        }
        assert_eq!(seen, [0, 2, 3, 0, 2, 3]);
    }
}
