//! Whether a join still lives: decided from what was heard and when, without a clock or a socket.

use std::{
    fmt,
    time::{Duration, Instant},
};

use crate::link::CloseReason;

/// After this long without a datagram the join is lost. A living server is heard from every 2-3 s: both
/// sides check the path as ICE asks them to. A hole this long costs less with a new join than without:
/// what the old connection lost it would send again only much later.
pub(super) const SILENCE: Duration = Duration::from_secs(5);
/// The same while something of ours waits to be acknowledged, which takes a round trip and a fifth of a
/// second: by then a new join is faster than whatever else may come.
pub(super) const SILENCE_WAITING: Duration = Duration::from_millis(2_500);
/// When the server ends a connection, the channels close before the word that says why. Joining anew
/// without having heard it would put out whoever has put us out.
pub(super) const FAREWELL: Duration = Duration::from_secs(1);

/// The state of one join.
#[derive(Debug)]
pub(super) struct Health {
    heard: Instant,
    /// Since when something of ours waits to be acknowledged.
    waiting: Option<Instant>,
    /// The peer connection ended, and the server's word is awaited until then.
    ending: Option<(Instant, Loss)>,
}

/// How a join ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Somebody wants us to be gone.
    Closed(CloseReason),
    /// The connection failed.
    Lost(Loss),
}

/// How a connection failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// The signalling ended. The peer connection may live on for a while.
    Signalling(String),
    /// The peer connection ended.
    PeerConnection(String),
    /// Nothing was heard for so long.
    Silence(Duration),
    /// The server asks for it, for this reason.
    Asked(&'static str),
    /// An attempt of ours that was given up has put us out.
    Ghost,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signalling(how) => write!(f, "the signalling connection ended ({how})"),
            Self::PeerConnection(how) => f.write_str(how),
            Self::Silence(limit) => write!(f, "nothing was heard from the server for {limit:?}"),
            Self::Asked(reason) => write!(f, "the server asks for a new join ({reason})"),
            Self::Ghost => f.write_str("an earlier attempt of ours reached the server late"),
        }
    }
}

impl Health {
    /// A connection that was just made.
    pub(super) fn new(now: Instant) -> Self {
        Self { heard: now, waiting: None, ending: None }
    }

    /// The server was last heard at this time.
    pub(super) fn handle_heard(&mut self, at: Instant) {
        self.heard = self.heard.max(at);
    }

    /// Whether something of ours waits to be acknowledged. What has ended to wait while nothing was heard was given up,
    /// as the lossy lane does after 100 ms: that is no answer, and the wait goes on.
    pub(super) fn handle_waiting(&mut self, now: Instant, waits: bool) {
        let was_answered = self.waiting.is_none_or(|since| self.heard > since);
        if waits || !was_answered {
            self.waiting = self.waiting.or(Some(now));
        } else {
            self.waiting = None;
        }
    }

    /// Nothing is read now, and so no acknowledgement either.
    pub(super) fn handle_full(&mut self) {
        self.waiting = None;
    }

    /// The peer connection ended. That counts unless the server says why at once.
    pub(super) fn handle_peer_lost(&mut self, now: Instant, why: &str) {
        self.ending.get_or_insert_with(|| (now + FAREWELL, Loss::PeerConnection(why.into())));
    }

    /// The signalling ended: there is nothing more to wait for. The first loss counts.
    pub(super) fn handle_signal_lost(&mut self, why: &str) -> End {
        End::Lost(self.ending.take().map_or_else(|| Loss::Signalling(why.into()), |(_, loss)| loss))
    }

    /// What the time alone has brought.
    pub(super) fn poll(&self, now: Instant) -> Option<End> {
        let (due, limit) = self.silence();
        match &self.ending {
            Some((until, loss)) => (now >= *until).then(|| End::Lost(loss.clone())),
            None => (now >= due).then_some(End::Lost(Loss::Silence(limit))),
        }
    }

    /// When to ask again.
    pub(super) fn poll_timeout(&self) -> Instant {
        self.ending.as_ref().map_or_else(|| self.silence().0, |(until, _)| *until)
    }

    /// When the silence is too long, and how long it is then.
    fn silence(&self) -> (Instant, Duration) {
        let idle = (self.heard + SILENCE, SILENCE);
        let waiting = self.waiting.map(|since| (self.heard.max(since) + SILENCE_WAITING, SILENCE_WAITING));
        waiting.map_or(idle, |waiting| waiting.min(idle))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_silence_of_5_s_is_a_loss_and_a_shorter_one_is_none() {
        let start = Instant::now();
        let mut health = Health::new(start);
        assert_eq!(health.poll(start + SILENCE - Duration::from_millis(1)), None);
        health.handle_heard(start + 4 * SECOND);
        assert_eq!(health.poll(start + 8 * SECOND), None);
        assert_eq!(health.poll_timeout(), start + 9 * SECOND);
        assert_eq!(health.poll(start + 9 * SECOND), Some(End::Lost(Loss::Silence(SILENCE))));
        assert!(Loss::Silence(SILENCE).to_string().contains("5s"));
    }

    #[test]
    fn while_something_waits_to_be_acknowledged_a_silence_is_a_loss_earlier() {
        let start = Instant::now();
        let mut health = Health::new(start);
        health.handle_waiting(start + SECOND, true);
        health.handle_waiting(start + 2 * SECOND, true);
        assert_eq!(health.poll_timeout(), start + SECOND + SILENCE_WAITING, "it waits since the first");
        health.handle_heard(start + 3 * SECOND);
        assert_eq!(health.poll_timeout(), start + 3 * SECOND + SILENCE_WAITING);
        let lost = End::Lost(Loss::Silence(SILENCE_WAITING));
        assert_eq!(health.poll(start + 3 * SECOND + SILENCE_WAITING), Some(lost));
        health.handle_waiting(start + 4 * SECOND, false);
        assert_eq!(health.poll_timeout(), start + 3 * SECOND + SILENCE, "nothing waits any more");
        health.handle_waiting(start + 7 * SECOND, true);
        assert_eq!(health.poll_timeout(), start + 3 * SECOND + SILENCE, "a late one makes it no longer");
    }

    /// The lossy lane gives up after 100 ms what nobody acknowledged.
    #[test]
    fn what_was_given_up_while_nothing_was_heard_waits_still() {
        let start = Instant::now();
        let mut health = Health::new(start);
        health.handle_waiting(start + SECOND, true);
        health.handle_waiting(start + 2 * SECOND, false);
        health.handle_waiting(start + 3 * SECOND, true);
        assert_eq!(health.poll_timeout(), start + SECOND + SILENCE_WAITING);
        health.handle_heard(start + 3 * SECOND);
        health.handle_waiting(start + 3 * SECOND, false);
        assert_eq!(health.poll_timeout(), start + 3 * SECOND + SILENCE);
    }

    #[test]
    fn the_servers_word_is_awaited_after_the_channels_closed() {
        let start = Instant::now();
        let mut health = Health::new(start);
        health.handle_peer_lost(start, "a channel closed");
        assert_eq!(health.poll(start), None);
        assert_eq!(health.poll_timeout(), start + FAREWELL);
        let loss = Loss::PeerConnection("a channel closed".into());
        assert_eq!(health.poll(start + FAREWELL), Some(End::Lost(loss)));
    }

    #[test]
    fn the_first_loss_counts() {
        let start = Instant::now();
        let mut health = Health::new(start);
        health.handle_peer_lost(start, "a channel closed");
        health.handle_peer_lost(start + SECOND, "the connection closed");
        let first = End::Lost(Loss::PeerConnection("a channel closed".into()));
        assert_eq!(health.poll(start + FAREWELL), Some(first.clone()));
        assert_eq!(health.handle_signal_lost("ping timeout"), first);

        let mut health = Health::new(start);
        let lost = health.handle_signal_lost("ping timeout");
        assert_eq!(lost, End::Lost(Loss::Signalling("ping timeout".into())));
        health.handle_heard(start);
    }
}
