//! Limits the messages per second.

use tokio::time::Instant;

/// Messages that are allowed: a number each second, and a number at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    per_second: u32,
    at_once: u32,
    left: f64,
    since: Option<Instant>,
}

impl Rate {
    pub(super) const fn new(per_second: u32, at_once: u32) -> Self {
        Self { per_second, at_once, left: 0.0, since: None }
    }

    /// Counts a message, and returns whether it is allowed.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        let most = f64::from(self.at_once);
        self.left = match self.since {
            None => most,
            Some(since) => {
                let gained = (now - since).as_secs_f64() * f64::from(self.per_second);
                (self.left + gained).min(most)
            }
        };
        self.since = Some(now);
        let is_allowed = self.left >= 1.0;
        if is_allowed {
            self.left -= 1.0;
        }
        is_allowed
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn burst_is_followed_by_the_average() {
        let mut rate = Rate::new(10, 5);
        let mut allowed = |times: usize| (0..times).filter(|_| rate.take(Instant::now())).count();
        assert_eq!(allowed(100), 5);
        tokio::time::advance(Duration::from_millis(200)).await;
        assert_eq!(allowed(100), 2);
        tokio::time::advance(Duration::from_secs(3_600)).await;
        assert_eq!(allowed(100), 5);
    }
}
