//! Whether a join still lives: decided from what was heard and when, without a clock or a socket.
//!
//! A hole in the media has three stages. First it may be that only the way has changed, as when a router between
//! forgets us: ICE begins anew, if the server can be told. Then the join is lost. In between it may end by itself:
//! then what was sent into it must be acknowledged soon, or a new join is faster than the old connection, which
//! sends again only after as long as the hole was.

use std::{
    fmt,
    time::{Duration, Instant},
};

use crate::transport::CloseReason;

/// How often both ends are checked on the way between them, as ICE asks for it, when nothing else is said. A server that
/// speaks ICE itself also checks by itself, every 2 s.
pub(super) const CHECK: Duration = Duration::from_secs(1);
/// After this long without a datagram the join is lost: two checks were, and what went again behind them. What the old
/// connection lost it sends again 1, 3 and 7 s after that, whenever the hole ends; a new join says it at once.
pub(super) const SILENCE: Duration = Duration::from_millis(2_800);
/// The same while something of ours waits to be acknowledged, which takes a round trip and a fifth of a
/// second: by then a new join is faster than whatever else may come.
pub(super) const SILENCE_WAITING: Duration = Duration::from_millis(2_500);
/// The same two while the signaling is lost, too: then it is less likely that only packets are.
const SILENCE_ALONE: Duration = Duration::from_millis(2_300);
/// Longer than a packet takes that is lost and sent again.
const SILENCE_ALONE_WAITING: Duration = Duration::from_millis(1_500);
/// A hole this long is one that ICE's own checks have fallen into: now it may begin anew.
const SUSPECT: Duration = Duration::from_millis(2_000);
/// The same while something of ours waits to be acknowledged. A packet that was lost is sent again after a second.
const SUSPECT_WAITING: Duration = Duration::from_millis(1_500);
/// How long after a restart of ICE the next one may follow: it takes that long to be of use, and in a longer silence the
/// join is lost.
pub(super) const RESTART_AGAIN: Duration = Duration::from_secs(3);
/// After a hole at least this long, what waits should be acknowledged within [`PROGRESS`] from its end. In a shorter
/// one the old connection has sent again at most once, and soon does so again.
const HOLE: Duration = Duration::from_secs(2);
/// How long it may take then.
const PROGRESS: Duration = Duration::from_secs(1);
/// The same without a hole: whoever hears the server and is not heard finds it out by what is never acknowledged. The
/// connection has sent it again twice by then.
const STUCK: Duration = Duration::from_secs(5);
/// When the server ends a connection, the channels close before the word that says why. Connecting anew
/// without having heard it would put out whoever has put us out.
pub(super) const FAREWELL: Duration = Duration::from_secs(1);
/// Who wakes up this much too late stood still, with the process or the whole machine: what was not heard meanwhile is
/// nobody's silence.
const LATE: Duration = Duration::from_millis(300);
/// Who stood still for longer is likely to have lost its place meanwhile.
const TOO_LATE: Duration = Duration::from_secs(10);

/// The state of one join.
#[derive(Debug)]
pub(super) struct Liveness {
    heard: Instant,
    /// When we were awake last, or want to be again.
    awake: Instant,
    /// Since when something of ours waits to be acknowledged.
    waiting: Option<Instant>,
    /// Since when nothing is acknowledged of what waits on the reliable channel.
    stuck: Option<Instant>,
    /// When a long hole ended while something waited that is not acknowledged yet.
    healed: Option<Instant>,
    /// Whether the signaling is lost, too.
    alone: bool,
    /// When ICE last began anew.
    restarted: Option<Instant>,
    /// The peer connection ended, and the server's word is awaited until then.
    ending: Option<(Instant, Loss)>,
}

/// What the time has brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    /// The way may have changed: ICE should begin anew. Said until [`Liveness::handle_restarted`].
    Suspect,
    /// It is over.
    End(End),
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
    /// The signaling ended. The peer connection may live on for a while.
    Signaling(String),
    /// The peer connection ended.
    PeerConnection(String),
    /// Nothing was heard for so long.
    Silence(Duration),
    /// The server is heard, and what waits is not acknowledged.
    Stalled,
    /// The server gives the join up, for this reason.
    Asked(&'static str),
    /// An attempt of ours that was given up has put us out.
    Ghost,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signaling(how) => write!(f, "the signaling connection ended ({how})"),
            Self::PeerConnection(how) => f.write_str(how),
            Self::Silence(limit) => write!(f, "nothing was heard from the server for {limit:?}"),
            Self::Stalled => f.write_str("the server is heard and acknowledges nothing"),
            Self::Asked(reason) => write!(f, "the server gave the join up ({reason})"),
            Self::Ghost => f.write_str("an earlier attempt of ours reached the server late"),
        }
    }
}

impl Liveness {
    /// A connection that was just made.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            heard: now,
            awake: now,
            waiting: None,
            stuck: None,
            healed: None,
            alone: false,
            restarted: None,
            ending: None,
        }
    }

    /// The server was last heard at this time.
    pub(super) fn handle_heard(&mut self, at: Instant) {
        if at <= self.heard {
            return;
        }
        if at - self.heard >= HOLE && self.waiting.is_some() {
            self.healed = Some(at);
        }
        self.heard = at;
    }

    /// We go to sleep, and want to be awake at `until`.
    pub(super) fn handle_asleep(&mut self, until: Instant) {
        self.awake = self.awake.max(until);
    }

    /// We are awake.
    pub(super) fn handle_awake(&mut self, now: Instant) {
        let late = now.saturating_duration_since(self.awake);
        self.awake = now;
        if !(LATE..TOO_LATE).contains(&late) {
            return;
        }
        tracing::debug!(?late, "we stood still");
        let end = self.ending.as_mut().map(|(until, _)| until);
        let since = [&mut self.waiting, &mut self.stuck, &mut self.healed, &mut self.restarted];
        for at in since.into_iter().flatten().chain([&mut self.heard]).chain(end) {
            *at += late;
        }
    }

    /// When the server was last heard.
    pub(super) fn heard(&self) -> Instant {
        self.heard
    }

    /// Whether anything waits on the reliable channel, and whether something of it was acknowledged just now.
    pub(super) fn handle_reliable(&mut self, now: Instant, waits: bool, progress: bool) {
        if progress {
            (self.healed, self.stuck) = (None, None);
        }
        self.stuck = self.stuck.or(Some(now)).filter(|_| waits);
    }

    /// ICE begins anew, or will as soon as the server can be told.
    pub(super) fn handle_restarted(&mut self, now: Instant) {
        self.restarted = Some(now);
    }

    /// Whether something of ours waits to be acknowledged. What has ended to wait while nothing was heard was given up,
    /// as the lossy lane does after 100 ms: that is no answer, and the wait goes on.
    pub(super) fn handle_waiting(&mut self, now: Instant, waits: bool) {
        let was_answered = self.waiting.is_none_or(|since| self.heard > since);
        if waits || !was_answered {
            self.waiting = self.waiting.or(Some(now));
        } else {
            self.waiting = None;
            self.healed = None;
        }
    }

    /// Nothing is read now, and so no acknowledgement either.
    pub(super) fn handle_full(&mut self) {
        (self.waiting, self.stuck, self.healed) = (None, None, None);
    }

    /// Whether there is a signaling connection. Without one a hole is more likely to be the end: a server that was
    /// killed ends it, and says nothing on the other.
    pub(super) fn handle_signaling(&mut self, up: bool) {
        self.alone = !up;
    }

    /// The peer connection ended. That counts unless the server says why at once.
    pub(super) fn handle_peer_lost(&mut self, now: Instant, why: &str) {
        self.ending.get_or_insert_with(|| (now + FAREWELL, Loss::PeerConnection(why.into())));
    }

    /// The signaling ended. With the peer connection gone as well there is nothing more to wait for.
    pub(super) fn handle_signal_lost(&mut self) -> Option<End> {
        self.ending.take().map(|(_, loss)| End::Lost(loss))
    }

    /// What the time alone has brought.
    pub(super) fn poll(&self, now: Instant) -> Option<Sign> {
        if let Some((until, loss)) = &self.ending {
            return (now >= *until).then(|| Sign::End(End::Lost(loss.clone())));
        }
        let (due, limit) = self.silence();
        if now >= due {
            return Some(Sign::End(End::Lost(Loss::Silence(limit))));
        }
        if self.stalled().is_some_and(|at| now >= at) {
            return Some(Sign::End(End::Lost(Loss::Stalled)));
        }
        (now >= self.suspicion()).then_some(Sign::Suspect)
    }

    /// When to ask again.
    pub(super) fn poll_timeout(&self) -> Instant {
        if let Some((until, _)) = &self.ending {
            return *until;
        }
        let due = self.silence().0.min(self.suspicion());
        self.stalled().map_or(due, |at| due.min(at))
    }

    /// When what waits should have been acknowledged.
    fn stalled(&self) -> Option<Instant> {
        let healed = self.healed.map(|at| at + PROGRESS);
        let stuck = self.stuck.map(|since| since + STUCK);
        healed.into_iter().chain(stuck).min()
    }

    /// When the way is suspected to have changed; not for a while after ICE began anew.
    fn suspicion(&self) -> Instant {
        let waiting = self.waiting.map(|since| self.heard.max(since) + SUSPECT_WAITING);
        let at = waiting.map_or(self.heard + SUSPECT, |waiting| waiting.min(self.heard + SUSPECT));
        match self.restarted {
            Some(restarted) if restarted > self.heard => at.max(restarted + RESTART_AGAIN),
            _ => at,
        }
    }

    /// When the silence is too long, and how long it is then.
    fn silence(&self) -> (Instant, Duration) {
        let (idle, waiting) =
            if self.alone { (SILENCE_ALONE, SILENCE_ALONE_WAITING) } else { (SILENCE, SILENCE_WAITING) };
        let idle = (self.heard + idle, idle);
        let waiting = self.waiting.map(|since| (self.heard.max(since) + waiting, waiting));
        waiting.map_or(idle, |waiting| waiting.min(idle))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MS: Duration = Duration::from_millis(1);

    fn lost(loss: Loss) -> Option<Sign> {
        Some(Sign::End(End::Lost(loss)))
    }

    #[test]
    fn who_stood_still_goes_on_where_it_was() {
        let (start, second) = (Instant::now(), SECOND);
        let mut liveness = Liveness::new(start);
        liveness.handle_waiting(start, true);
        liveness.handle_asleep(start + second);
        liveness.handle_awake(start + second + LATE - MS);
        assert_eq!(liveness.silence().0, start + SILENCE_WAITING, "nobody wakes up to the millisecond");
        liveness.handle_asleep(start + second);
        liveness.handle_awake(start + second);
        liveness.handle_awake(start + 6 * second);
        assert_eq!(liveness.silence().0, start + 5 * second + SILENCE_WAITING);
        assert_eq!(liveness.poll(start + 6 * second), None);
        liveness.handle_heard(start + 6 * second + 100 * MS);
        assert_eq!(liveness.stalled(), None, "it was no hole");
        liveness.handle_awake(start + 6 * second + 200 * MS);
        liveness.handle_asleep(start + 7 * second);
        liveness.handle_awake(start + 7 * second + TOO_LATE);
        assert_eq!(liveness.poll(start + 7 * second + TOO_LATE), lost(Loss::Silence(SILENCE_WAITING)));
    }

    #[test]
    fn a_silence_of_two_checks_is_a_loss_and_a_shorter_one_is_none() {
        let start = Instant::now();
        let mut liveness = Liveness::new(start);
        liveness.handle_restarted(start + SUSPECT);
        assert_eq!(liveness.poll(start + SILENCE - MS), None);
        let heard = start + 2_700 * MS;
        liveness.handle_heard(heard);
        liveness.handle_restarted(heard + SUSPECT);
        assert_eq!(liveness.poll(heard + SILENCE - MS), None);
        assert_eq!(liveness.poll_timeout(), heard + SILENCE);
        assert_eq!(liveness.poll(heard + SILENCE), lost(Loss::Silence(SILENCE)));
        assert!(SILENCE > 2 * CHECK && Loss::Silence(SILENCE).to_string().contains("2.8s"));
    }

    #[test]
    fn while_something_waits_to_be_acknowledged_a_silence_is_a_loss_earlier() {
        let start = Instant::now();
        let mut liveness = Liveness::new(start);
        let due = |liveness: &Liveness| liveness.silence().0;
        liveness.handle_waiting(start + 100 * MS, true);
        liveness.handle_waiting(start + SECOND, true);
        assert_eq!(due(&liveness), start + 100 * MS + SILENCE_WAITING, "it waits since the first");
        let heard = start + 2 * SECOND;
        liveness.handle_heard(heard);
        assert_eq!(due(&liveness), heard + SILENCE_WAITING);
        assert_eq!(liveness.poll(heard + SILENCE_WAITING), lost(Loss::Silence(SILENCE_WAITING)));
        liveness.handle_waiting(heard + SECOND, false);
        assert_eq!(due(&liveness), heard + SILENCE, "nothing waits any more");
        liveness.handle_waiting(heard + 2 * SECOND, true);
        assert_eq!(due(&liveness), heard + SILENCE, "a late one makes it no longer");
    }

    /// The lossy lane gives up after 100 ms what nobody acknowledged.
    #[test]
    fn what_was_given_up_while_nothing_was_heard_waits_still() {
        let start = Instant::now();
        let mut liveness = Liveness::new(start);
        let due = |liveness: &Liveness| liveness.silence().0;
        liveness.handle_waiting(start + 100 * MS, true);
        liveness.handle_waiting(start + SECOND, false);
        liveness.handle_waiting(start + 2 * SECOND, true);
        assert_eq!(due(&liveness), start + 100 * MS + SILENCE_WAITING);
        let heard = start + 2 * SECOND;
        liveness.handle_heard(heard);
        liveness.handle_waiting(heard, false);
        assert_eq!(due(&liveness), heard + SILENCE);
    }

    #[test]
    fn without_signaling_a_silence_is_a_loss_earlier() {
        let start = Instant::now();
        let mut liveness = Liveness::new(start);
        liveness.handle_signaling(false);
        assert_eq!(liveness.poll(start + SILENCE_ALONE), lost(Loss::Silence(SILENCE_ALONE)));
        liveness.handle_waiting(start, true);
        let lost = lost(Loss::Silence(SILENCE_ALONE_WAITING));
        assert_eq!(liveness.poll(start + SILENCE_ALONE_WAITING), lost);
        liveness.handle_heard(start + SILENCE_ALONE_WAITING);
        liveness.handle_waiting(start + SILENCE_ALONE_WAITING, false);
        liveness.handle_signaling(true);
        assert_eq!(liveness.poll(start + SILENCE_ALONE_WAITING + SUSPECT), Some(Sign::Suspect));
    }

    #[test]
    fn before_a_silence_is_a_loss_the_way_is_suspected() {
        let start = Instant::now();
        let mut liveness = Liveness::new(start);
        assert_eq!(liveness.poll_timeout(), start + SUSPECT);
        assert_eq!(
            (liveness.poll(start + SUSPECT - MS), liveness.poll(start + SUSPECT)),
            (None, Some(Sign::Suspect))
        );
        liveness.handle_waiting(start, true);
        assert_eq!(liveness.poll_timeout(), start + SUSPECT_WAITING);
        assert_eq!(liveness.poll(start + SUSPECT_WAITING), Some(Sign::Suspect));
        liveness.handle_restarted(start + SUSPECT_WAITING);
        assert_eq!(liveness.poll(start + SUSPECT_WAITING), None, "once, for a while");
        assert_eq!(liveness.poll_timeout(), start + SILENCE_WAITING);
        // It has helped: the next hole is one of its own.
        liveness.handle_heard(start + 2 * SECOND);
        liveness.handle_waiting(start + 2 * SECOND, false);
        assert_eq!(liveness.poll_timeout(), start + 2 * SECOND + SUSPECT);
    }

    #[test]
    fn after_a_long_hole_what_waits_is_acknowledged_soon_or_never() {
        let start = Instant::now();
        let after = |hole: Duration| {
            let mut liveness = Liveness::new(start);
            liveness.handle_waiting(start + 10 * MS, true);
            liveness.handle_restarted(start + SUSPECT_WAITING);
            liveness.handle_heard(start + hole);
            liveness
        };
        assert_eq!(after(HOLE - MS).healed, None, "so short a one is mended by the connection");
        let mut liveness = after(HOLE);
        assert_eq!(liveness.poll_timeout(), start + HOLE + PROGRESS);
        liveness.handle_heard(start + HOLE + PROGRESS - MS);
        assert_eq!(
            liveness.poll(start + HOLE + PROGRESS),
            lost(Loss::Stalled),
            "what is heard is no progress"
        );
        liveness.handle_reliable(start + HOLE + PROGRESS, true, true);
        assert_eq!(liveness.poll(start + HOLE + PROGRESS), None);
        let mut liveness = after(HOLE);
        liveness.handle_waiting(start + HOLE + 10 * MS, false);
        assert_eq!(liveness.healed, None, "nothing waits");
    }

    #[test]
    fn who_hears_and_is_not_heard_finds_out() {
        let start = Instant::now();
        let mut liveness = Liveness::new(start);
        for n in 0..5 {
            liveness.handle_heard(start + n * SECOND + MS);
            liveness.handle_waiting(start + n * SECOND + MS, true);
            liveness.handle_reliable(start + n * SECOND, true, false);
            assert_eq!(liveness.poll(start + n * SECOND + MS), None);
        }
        liveness.handle_heard(start + STUCK - MS);
        assert_eq!(liveness.poll_timeout(), start + STUCK);
        assert_eq!(liveness.poll(start + STUCK), lost(Loss::Stalled));
        liveness.handle_reliable(start + STUCK, true, true);
        assert_eq!(liveness.poll(start + STUCK), None, "some of it is there");
        liveness.handle_reliable(start + STUCK, false, false);
        assert_eq!(liveness.stuck, None);
    }

    #[test]
    fn the_servers_word_is_awaited_after_the_channels_closed() {
        let start = Instant::now();
        let mut liveness = Liveness::new(start);
        liveness.handle_peer_lost(start, "a channel closed");
        assert_eq!(liveness.poll(start), None);
        assert_eq!(liveness.poll_timeout(), start + FAREWELL);
        assert_eq!(liveness.poll(start + FAREWELL), lost(Loss::PeerConnection("a channel closed".into())));
    }

    #[test]
    fn the_first_loss_counts() {
        let start = Instant::now();
        let mut liveness = Liveness::new(start);
        liveness.handle_peer_lost(start, "a channel closed");
        liveness.handle_peer_lost(start + SECOND, "the connection closed");
        let first = End::Lost(Loss::PeerConnection("a channel closed".into()));
        assert_eq!(liveness.poll(start + FAREWELL), Some(Sign::End(first.clone())));
        assert_eq!(liveness.handle_signal_lost(), Some(first));
    }

    #[test]
    fn a_lost_signaling_alone_is_no_loss() {
        let start = Instant::now();
        assert_eq!(Liveness::new(start).handle_signal_lost(), None);
    }
}
