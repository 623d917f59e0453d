//! Whether the connection still lives: decided from what was heard and when, without a clock or a socket.

use std::time::{Duration, Instant};

use crate::link::{CloseReason, LinkState};

/// After this long without a datagram the link counts as down. A living server is heard from every
/// 2-3 s: both sides check the path as ICE asks them to.
pub(super) const SILENCE_DOWN: Duration = Duration::from_secs(5);
/// After this long it is lost: at the same moment the server and our own ICE give up the path.
pub(super) const SILENCE_LOST: Duration = Duration::from_secs(15);
/// When the server ends a connection, the channels close before the word that says why.
pub(super) const FAREWELL: Duration = Duration::from_millis(300);

/// The state of one connection.
#[derive(Debug)]
pub(super) struct Health {
    heard: Instant,
    link: LinkState,
    /// The peer connection ended, and the server's word is awaited until then.
    ending: Option<(Instant, CloseReason)>,
    closed: bool,
}

/// What follows for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The link went down or came back.
    Link(LinkState),
    /// It is over. Told once; nothing follows.
    Closed(CloseReason),
}

impl Health {
    /// A connection that was just made.
    pub(super) fn new(now: Instant) -> Self {
        Self { heard: now, link: LinkState::Up, ending: None, closed: false }
    }

    /// The server was last heard at this time.
    pub(super) fn handle_heard(&mut self, at: Instant) {
        self.heard = self.heard.max(at);
    }

    /// The peer connection ended. Its reason counts unless the server's comes at once.
    pub(super) fn handle_peer_lost(&mut self, now: Instant, why: &str) {
        let reason = CloseReason::ConnectionLost(why.into());
        self.ending.get_or_insert_with(|| (now + FAREWELL, reason));
    }

    /// The signalling ended: there is nothing more to wait for.
    pub(super) fn handle_signal_lost(&mut self, why: &str) -> Option<Verdict> {
        let reason = match self.ending.take() {
            Some((_, reason)) => reason,
            None => CloseReason::ConnectionLost(format!("the signalling connection ended ({why})").into()),
        };
        self.close(reason)
    }

    /// The server said why it ends the session.
    pub(super) fn handle_leave(&mut self, reason: CloseReason) -> Option<Verdict> {
        self.close(reason)
    }

    /// What the time alone has brought. To be asked until it has nothing more.
    pub(super) fn poll(&mut self, now: Instant) -> Option<Verdict> {
        if self.closed {
            return None;
        }
        if let Some((until, reason)) = &self.ending {
            let reason = (now >= *until).then(|| reason.clone())?;
            return self.close(reason);
        }
        let silence = now.saturating_duration_since(self.heard);
        if silence >= SILENCE_LOST {
            let why = format!("nothing was heard from the server for {SILENCE_LOST:?}");
            return self.close(CloseReason::ConnectionLost(why.into()));
        }
        let link = if silence >= SILENCE_DOWN { LinkState::Down } else { LinkState::Up };
        (link != self.link).then(|| {
            self.link = link;
            Verdict::Link(link)
        })
    }

    /// When to ask again at the latest.
    pub(super) fn poll_timeout(&self) -> Instant {
        match (&self.ending, self.link) {
            (Some((until, _)), _) => *until,
            (None, LinkState::Up) => self.heard + SILENCE_DOWN,
            (None, LinkState::Down) => self.heard + SILENCE_LOST,
        }
    }

    fn close(&mut self, reason: CloseReason) -> Option<Verdict> {
        (!std::mem::replace(&mut self.closed, true)).then_some(Verdict::Closed(reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn lost(verdict: Option<Verdict>) -> String {
        match verdict {
            Some(Verdict::Closed(CloseReason::ConnectionLost(why))) => why.to_string(),
            other => panic!("not lost: {other:?}"),
        }
    }

    #[test]
    fn a_short_silence_is_a_link_that_was_down_and_came_back() {
        let start = Instant::now();
        let mut health = Health::new(start);
        assert_eq!(health.poll_timeout(), start + SILENCE_DOWN);
        assert_eq!(health.poll(start + 4 * SECOND), None);
        assert_eq!(health.poll(start + SILENCE_DOWN), Some(Verdict::Link(LinkState::Down)));
        assert_eq!(health.poll(start + SILENCE_DOWN), None, "told once");
        assert_eq!(health.poll_timeout(), start + SILENCE_LOST);
        health.handle_heard(start + 9 * SECOND);
        assert_eq!(health.poll(start + 9 * SECOND), Some(Verdict::Link(LinkState::Up)));
        assert_eq!(health.poll(start + 9 * SECOND), None);
    }

    #[test]
    fn a_long_silence_is_a_loss_told_once() {
        let start = Instant::now();
        let mut health = Health::new(start);
        assert!(lost(health.poll(start + SILENCE_LOST)).contains("15s"));
        assert_eq!(health.poll(start + 2 * SILENCE_LOST), None);
        assert_eq!(health.handle_leave(CloseReason::Removed), None);
    }

    #[test]
    fn the_servers_reason_counts_if_it_comes_soon_after_the_channels_closed() {
        let start = Instant::now();
        let mut health = Health::new(start);
        health.handle_peer_lost(start, "a channel closed");
        assert_eq!(health.poll(start), None);
        let told = health.handle_leave(CloseReason::DuplicateIdentity);
        assert_eq!(told, Some(Verdict::Closed(CloseReason::DuplicateIdentity)));
    }

    #[test]
    fn without_the_servers_reason_the_first_loss_counts() {
        let start = Instant::now();
        let mut health = Health::new(start);
        health.handle_peer_lost(start, "a channel closed");
        health.handle_peer_lost(start + SECOND, "the connection closed");
        assert_eq!(health.poll_timeout(), start + FAREWELL);
        assert_eq!(lost(health.poll(start + FAREWELL)), "a channel closed");

        let mut health = Health::new(start);
        health.handle_peer_lost(start, "a channel closed");
        assert_eq!(lost(health.handle_signal_lost("ping timeout")), "a channel closed");
        assert!(lost(Health::new(start).handle_signal_lost("ping timeout")).contains("ping timeout"));
    }
}
