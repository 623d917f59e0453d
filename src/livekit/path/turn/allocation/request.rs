//! Tracks an open request: its retransmissions and its time limit.

use std::time::{Duration, Instant};

use super::{Method, Transaction};

/// The first retransmission interval ([RFC 8489](https://www.rfc-editor.org/rfc/rfc8489), 6.2.1); it doubles.
const FIRST_WAIT: Duration = Duration::from_millis(500);

/// The purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Allocate,
    Refresh,
    /// A permission for the peer with this index.
    Permit(usize),
    /// A channel for the peer with this index.
    Bind(usize),
}

impl Purpose {
    pub(super) fn method(self) -> Method {
        match self {
            Self::Allocate => Method::Allocate,
            Self::Refresh => Method::Refresh,
            Self::Permit(_) => Method::CreatePermission,
            Self::Bind(_) => Method::ChannelBind,
        }
    }
}

/// A request that waits for its response.
pub(super) struct Request {
    pub(super) id: Transaction,
    pub(super) purpose: Purpose,
    /// How often it was repeated because its nonce was stale.
    pub(super) stale: u8,
    pub(super) bytes: Vec<u8>,
    ends_at: Instant,
    again_at: Instant,
    wait: Duration,
}

/// The next step of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retry {
    Wait,
    Again,
    GiveUp,
}

impl Request {
    /// How long to wait for a response: a join has 15 s, and another relay may respond.
    pub(super) const LIMIT: Duration = Duration::from_secs(8);

    pub(super) fn new(now: Instant, id: Transaction, purpose: Purpose, stale: u8, bytes: Vec<u8>) -> Self {
        let (ends_at, again_at) = (now + Self::LIMIT, now + FIRST_WAIT);
        Self { id, purpose, stale, bytes, ends_at, again_at, wait: FIRST_WAIT }
    }

    /// Returns whether the request must be sent again now. TCP and TLS retransmit by themselves, so over them it is sent once.
    pub(super) fn poll(&mut self, now: Instant, reliable: bool) -> Retry {
        if now >= self.ends_at {
            return Retry::GiveUp;
        }
        if reliable {
            // So that `due` does not wake the task for a retransmission that is not made.
            self.again_at = self.ends_at;
        }
        if now < self.again_at {
            return Retry::Wait;
        }
        self.wait *= 2;
        self.again_at = now + self.wait;
        Retry::Again
    }

    /// Returns when something is due.
    pub(super) fn due(&self) -> Instant {
        self.again_at.min(self.ends_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_retransmitted_with_growing_waits_until_it_times_out() {
        let start = Instant::now();
        for (reliable, expected) in [(false, &[500, 1500, 3500, 7500][..]), (true, &[])] {
            let mut request = Request::new(start, [0; 12], Purpose::Refresh, 0, Vec::new());
            let (mut now, mut again) = (start, Vec::new());
            loop {
                now = request.due().max(now);
                match request.poll(now, reliable) {
                    Retry::Wait => {}
                    Retry::Again => again.push((now - start).as_millis()),
                    Retry::GiveUp => break,
                }
            }
            assert_eq!(again, expected.iter().map(|it| *it as u128).collect::<Vec<_>>());
            assert_eq!(now - start, Request::LIMIT);
        }
    }
}
