//! Decides whether a connection is still alive, from the times of received packets. It has no clock and no I/O.
//!
//! An outage of the media has two thresholds. At the first, only the path may have changed, for example because a NAT
//! dropped its mapping: ICE restarts if signaling works. At the second, the connection is lost. If the outage ends in
//! between, data sent during it must be acknowledged soon. Otherwise a rejoin is faster, because SCTP's backed-off timer
//! delays retransmission by roughly the length of the outage.

use std::{
    fmt,
    time::{Duration, Instant},
};

use crate::{clock::Spelled, transport::CloseReason};

/// The interval of ICE checks on an idle path. A server with a full ICE agent also sends its own checks, every 2 s.
pub(crate) const CHECK: Duration = Duration::from_secs(1);
/// The connection is lost after this long without a datagram: two checks and their retransmissions have failed. The old
/// connection would retransmit lost data 1, 3 and 7 s after it was sent; a rejoin sends it at once.
pub(crate) const SILENCE: Duration = Duration::from_millis(2_800);
/// The same limit while sent data is unacknowledged. An acknowledgement takes a round trip plus 0.2 s, so by then a rejoin
/// is the faster choice.
pub(crate) const SILENCE_WAITING: Duration = Duration::from_millis(2_500);
/// [`SILENCE`] while signaling is down, too, which makes a mere loss of packets less likely.
const SILENCE_ALONE: Duration = Duration::from_millis(2_300);
/// [`SILENCE_WAITING`] while signaling is down. Longer than one retransmission of a lost packet takes.
const SILENCE_ALONE_WAITING: Duration = Duration::from_millis(1_500);
/// After this long without a datagram ICE restarts: its own checks have failed.
const SUSPECT: Duration = Duration::from_millis(2_000);
/// The same limit while sent data is unacknowledged. A lost packet is retransmitted after 1 s.
const SUSPECT_WAITING: Duration = Duration::from_millis(1_500);
/// The minimum interval of ICE restarts. A restart needs that long to take effect, and in a longer outage the connection is
/// lost anyway.
pub(crate) const RESTART_AGAIN: Duration = Duration::from_secs(3);
/// After an outage at least this long, pending data must be acknowledged within [`PROGRESS`] after its end. In a shorter one
/// SCTP has retransmitted at most once, and soon does so again.
const HOLE: Duration = Duration::from_secs(2);
/// The time limit for acknowledgement progress after an outage.
const PROGRESS: Duration = Duration::from_secs(1);
/// The time limit for acknowledgement progress without an outage. It detects a path that works in one direction only. SCTP
/// has retransmitted twice by then.
const STUCK: Duration = Duration::from_secs(5);
/// How long to wait for the server's leave request after the channels closed, since they close first. Rejoining without
/// it could disconnect another participant with the same identity, and be disconnected by it in turn.
pub(crate) const FAREWELL: Duration = Duration::from_secs(1);
/// A timer firing this late means that the process or host was suspended. That interval does not count as packet loss.
const LATE: Duration = Duration::from_millis(300);
/// After a longer suspension the server has probably removed the participant, so the interval counts.
/// livekit-server counts ICE as disconnected after 10 s without packets, and as failed 5 s later.
const TOO_LATE: Duration = Duration::from_secs(10);

/// The liveness of one connection.
#[derive(Debug)]
pub(crate) struct Liveness {
    heard: Instant,
    /// The last time the task ran, or the time it asked to be woken.
    awake: Instant,
    /// Since when sent data is unacknowledged, on any lane.
    waiting: Option<Instant>,
    /// Since when there is no acknowledgement progress on the reliable channel.
    stuck: Option<Instant>,
    /// When a long outage ended during which data was pending that is still unacknowledged.
    healed: Option<Instant>,
    /// True while signaling is down.
    alone: bool,
    /// When ICE was last restarted.
    restarted: Option<Instant>,
    /// Set when the peer connection ended: the deadline of the server's leave request.
    ending: Option<(Instant, Loss)>,
}

/// The result of a liveness check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Sign {
    /// The path may have changed: ICE should restart. Returned until [`Liveness::handle_restarted`] is called.
    Suspect,
    /// The connection is over.
    End(End),
}

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The server ended it for good.
    Closed(CloseReason),
    /// The connection failed.
    Lost(Loss),
}

/// How a connection failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// Signaling ended. The peer connection may still work for a while.
    Signaling(String),
    /// The peer connection ended.
    PeerConnection(String),
    /// No packets were received for this long.
    Silence(Duration),
    /// Packets arrive, but sent data is not acknowledged.
    Stalled,
    /// The server asked to reconnect, for this reason.
    Asked(&'static str),
    /// An earlier, abandoned rejoin attempt of this participant reached the server late and replaced this connection.
    Ghost,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signaling(how) => write!(f, "the signaling connection ended ({how})"),
            Self::PeerConnection(how) => f.write_str(how),
            Self::Silence(limit) => write!(f, "no packets from the server for {}", Spelled(*limit)),
            Self::Stalled => f.write_str("the server sends packets but acknowledges none"),
            Self::Asked(reason) => write!(f, "the server asked to reconnect ({reason})"),
            Self::Ghost => f.write_str("an earlier rejoin attempt reached the server late"),
        }
    }
}

impl Liveness {
    /// Creates the state of a new connection.
    pub(crate) fn new(now: Instant) -> Self {
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

    /// Handles that a packet of the server was last received at this time.
    pub(crate) fn handle_heard(&mut self, at: Instant) {
        if at <= self.heard {
            return;
        }
        // Only if data was sent before the outage ended: it waits for SCTP's timer now, however well the path
        // works.
        if at - self.heard >= HOLE && self.waiting.is_some() {
            self.healed = Some(at);
        }
        self.heard = at;
    }

    /// Notes that the task sleeps until this time at most.
    pub(crate) fn handle_asleep(&mut self, until: Instant) {
        self.awake = self.awake.max(until);
    }

    /// Notes that the task runs, and excludes the time by which it is late.
    pub(crate) fn handle_awake(&mut self, now: Instant) {
        let late = now.saturating_duration_since(self.awake);
        self.awake = now;
        if !(LATE..TOO_LATE).contains(&late) {
            return;
        }
        tracing::debug!(?late, "the process was suspended");
        let end = self.ending.as_mut().map(|(until, _)| until);
        let since = [&mut self.waiting, &mut self.stuck, &mut self.healed, &mut self.restarted];
        for at in since.into_iter().flatten().chain([&mut self.heard]).chain(end) {
            *at += late;
        }
    }

    /// Returns when a packet of the server was last received.
    pub(crate) fn heard(&self) -> Instant {
        self.heard
    }

    /// Reports whether reliable data is unacknowledged, and whether some of it was just acknowledged.
    pub(crate) fn handle_reliable(&mut self, now: Instant, waits: bool, progress: bool) {
        if progress {
            (self.healed, self.stuck) = (None, None);
        }
        self.stuck = self.stuck.or(Some(now)).filter(|_| waits);
    }

    /// Notes that ICE restarts, or will as soon as signaling works.
    pub(crate) fn handle_restarted(&mut self, now: Instant) {
        self.restarted = Some(now);
    }

    /// Reports whether sent data is unacknowledged. Data that stops waiting while no packet arrives was abandoned, as the
    /// lossy lane does after 100 ms. That is not an acknowledgement, so the wait continues.
    pub(crate) fn handle_waiting(&mut self, now: Instant, waits: bool) {
        let was_answered = self.waiting.is_none_or(|since| self.heard > since);
        if waits || !was_answered {
            self.waiting = self.waiting.or(Some(now));
        } else {
            self.waiting = None;
            self.healed = None;
        }
    }

    /// Handles a full inbox: nothing is read, so acknowledgements cannot be seen.
    pub(crate) fn handle_full(&mut self) {
        (self.waiting, self.stuck, self.healed) = (None, None, None);
    }

    /// Reports whether signaling works. Without it an outage is more likely final: when a server is killed, its signaling
    /// connection closes, while the peer connection only falls silent.
    pub(crate) fn handle_signaling(&mut self, up: bool) {
        self.alone = !up;
    }

    /// Handles the end of the peer connection. It is the loss unless the server soon sends a reason.
    pub(crate) fn handle_peer_lost(&mut self, now: Instant, why: &str) {
        self.ending.get_or_insert_with(|| (now + FAREWELL, Loss::PeerConnection(why.into())));
    }

    /// Handles the end of signaling. If the peer connection has ended, too, the connection is lost now.
    pub(crate) fn handle_signal_lost(&mut self) -> Option<End> {
        self.ending.take().map(|(_, loss)| End::Lost(loss))
    }

    /// Returns a loss or a suspicion that follows from the time that has passed. No packet causes it.
    pub(crate) fn poll(&self, now: Instant) -> Option<Sign> {
        if let Some((until, loss)) = &self.ending {
            // First, because a peer connection that has ended is silent, too. The server's reason, for which
            // this waits, says more than that.
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

    /// Returns when to poll again.
    pub(crate) fn poll_timeout(&self) -> Instant {
        if let Some((until, _)) = &self.ending {
            return *until;
        }
        let due = self.silence().0.min(self.suspicion());
        self.stalled().map_or(due, |at| due.min(at))
    }

    /// Returns when the pending data should have been acknowledged.
    fn stalled(&self) -> Option<Instant> {
        let healed = self.healed.map(|at| at + PROGRESS);
        let stuck = self.stuck.map(|since| since + STUCK);
        healed.into_iter().chain(stuck).min()
    }

    /// Returns when the path is suspected to have changed; this is delayed for a while after an ICE restart.
    fn suspicion(&self) -> Instant {
        let waiting = self.waiting.map(|since| self.heard.max(since) + SUSPECT_WAITING);
        let at = waiting.map_or(self.heard + SUSPECT, |waiting| waiting.min(self.heard + SUSPECT));
        match self.restarted {
            // A packet since the restart shows that it has worked. The next outage is another one and may
            // restart ICE at once.
            Some(restarted) if restarted > self.heard => at.max(restarted + RESTART_AGAIN),
            _ => at,
        }
    }

    /// Returns when the silence exceeds its limit, and that limit.
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
    fn suspended_process_keeps_its_connection() {
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
    fn two_missed_checks_lose_the_connection() {
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
        assert!(SILENCE > 2 * CHECK && Loss::Silence(SILENCE).to_string().contains("2.8 s"));
    }

    #[test]
    fn unacknowledged_data_shortens_the_silence_limit() {
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

    /// Unacknowledged data on the lossy lane is dropped after 100 ms.
    #[test]
    fn data_abandoned_during_silence_still_counts_as_unacknowledged() {
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
    fn lost_signaling_shortens_the_silence_limit() {
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
    fn silence_restarts_ice_before_the_connection_is_lost() {
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
        // The restart helped: the next outage is a new one.
        liveness.handle_heard(start + 2 * SECOND);
        liveness.handle_waiting(start + 2 * SECOND, false);
        assert_eq!(liveness.poll_timeout(), start + 2 * SECOND + SUSPECT);
    }

    #[test]
    fn missing_progress_after_a_long_outage_loses_the_connection() {
        let start = Instant::now();
        let after = |hole: Duration| {
            let mut liveness = Liveness::new(start);
            liveness.handle_waiting(start + 10 * MS, true);
            liveness.handle_restarted(start + SUSPECT_WAITING);
            liveness.handle_heard(start + hole);
            liveness
        };
        assert_eq!(after(HOLE - MS).healed, None, "the connection survives such a short outage");
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
    fn one_way_path_loses_the_connection() {
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
    fn closed_channels_wait_for_the_servers_reason() {
        let start = Instant::now();
        let mut liveness = Liveness::new(start);
        liveness.handle_peer_lost(start, "a channel closed");
        assert_eq!(liveness.poll(start), None);
        assert_eq!(liveness.poll_timeout(), start + FAREWELL);
        assert_eq!(liveness.poll(start + FAREWELL), lost(Loss::PeerConnection("a channel closed".into())));
    }

    #[test]
    fn first_loss_is_reported() {
        let start = Instant::now();
        let mut liveness = Liveness::new(start);
        liveness.handle_peer_lost(start, "a channel closed");
        liveness.handle_peer_lost(start + SECOND, "the connection closed");
        let first = End::Lost(Loss::PeerConnection("a channel closed".into()));
        assert_eq!(liveness.poll(start + FAREWELL), Some(Sign::End(first.clone())));
        assert_eq!(liveness.handle_signal_lost(), Some(first));
    }

    #[test]
    fn lost_signaling_alone_keeps_the_connection() {
        let start = Instant::now();
        assert_eq!(Liveness::new(start).handle_signal_lost(), None);
    }
}
