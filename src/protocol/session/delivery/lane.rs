//! The fast lane: small frames are sent on `_lossy` first and alone, and again until they are acknowledged
//! (`wire.md`, 5.8).
//!
//! Whatever is sent to one peer passes [`Delivery::transmit_to`], which selects the lane. Whatever arrives passes
//! [`Delivery::lane_heard`], which knows by that what has been delivered. The state belongs to one pair of sids and ends with it.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use bytes::Bytes;

use super::{
    Context, Counter, Delivery, Link, Recipients, Sent,
    flight::{Due, Flight, Unsent},
    lane_is_open,
    rtt::RoundTrip,
};
use crate::{
    protocol::{
        frame::{Kind, Message},
        session::{
            SendFailure,
            codec::Received,
            timers::{Timer, later},
        },
    },
    tool::CallId,
    transport::{Identity, Lane, Packet, TOPIC},
};

/// The largest packet, with LiveKit's envelope, in bytes: it fits one datagram of the 1,150 B that WebRTC stacks
/// aim at, less 88 for SCTP and DTLS. A packet in two datagrams is lost with either.
const MAX_PACKET: usize = 1_062;

/// LiveKit's envelope without names: keys, lengths and kinds, at most, in bytes.
const ENVELOPE: usize = 64;

/// A reliable copy is sent only while at most this many bytes wait on `_reliable`: both channels share one congestion
/// window, and every copy in it delays the packets behind it.
const RELIABLE_WAIT: usize = 600;

/// Frames of one peer whose lane and acknowledgement are remembered: those of several seconds of calls.
const MAX_RECEIVED: usize = 256;

/// Requests whose acknowledgement may wait for the answer at once: as many as one caller may have open. They are
/// searched one by one, which so few allow.
const MAX_DEFERRED: usize = 64;

/// A result that follows its request so soon takes the place of the request's acknowledgement.
pub(crate) const ANSWER_SOON: Duration = Duration::from_millis(5);

/// What happened on the fast lane under one pair of sids.
#[derive(Debug, Default)]
pub(super) struct FastLane {
    /// The local Configuration has arrived under this pair: the peer said so, or sent something that it would not send before.
    has_met: bool,
    trip: RoundTrip,
    flight: Flight,
    /// Frames that want an answer, by the absolute value of their stanzas.
    received: BTreeMap<u32, Arrival>,
    deferred: VecDeque<Deferred>,
    /// The lane of the last frame.
    last: Lane,
}

/// A frame that arrived and wants an answer.
#[derive(Debug)]
struct Arrival {
    /// The lane on which it arrived last.
    by: Lane,
    answered_at: Option<Instant>,
}

/// An acknowledgement that waits for the result to take its place.
#[derive(Debug)]
struct Deferred {
    until: Instant,
    stanza: i32,
    call: CallId,
}

/// What the lanes to all peers share.
#[derive(Debug, Default)]
pub(super) struct Reliable {
    /// Bytes that wait on `_reliable`, as the driver reported last; none if it never did.
    backlog: Option<usize>,
    /// Bytes that were added since.
    added: usize,
    /// The peers for whom copies may be held back.
    holding: BTreeSet<Identity>,
}

impl Reliable {
    /// A packet is sent there.
    pub(super) fn add(&mut self, bytes: usize) {
        self.added = self.added.saturating_add(bytes);
    }

    /// Whether a copy may be sent there, if so many bytes of others are.
    fn has_room_beside(&self, bytes: usize) -> bool {
        let waits = |backlog: usize| backlog.saturating_add(self.added).saturating_add(bytes);
        self.backlog.is_none_or(|backlog| waits(backlog) <= RELIABLE_WAIT)
    }
}

impl FastLane {
    /// Whether the local Configuration has arrived.
    pub(super) fn has_met(&self) -> bool {
        self.has_met
    }

    /// The lane of the last frame.
    pub(super) fn last(&self) -> Lane {
        self.last
    }

    /// The frame of this stanza has arrived, as a frame says that arrived by this lane.
    pub(super) fn arrived(&mut self, now: Instant, stanza: i32, by: Lane) {
        self.flight.arrived(now, stanza, by, &mut self.trip);
    }

    /// A frame is sent no more.
    pub(super) fn forget(&mut self, stanza: i32) {
        self.flight.forget(stanza);
    }

    /// A packet was not sent: what that proves of its frame.
    pub(super) fn unsent(&mut self, now: Instant, stanza: i32, packet: u64, why: &SendFailure) -> Unsent {
        self.flight.unsent(now, stanza, packet, why)
    }

    /// An acknowledgement that has waited for its result for long enough.
    fn next_deferred(&mut self, now: Instant) -> Option<Deferred> {
        self.deferred.front().filter(|it| it.until <= now)?;
        self.deferred.pop_front()
    }

    /// Takes note of a frame that wants an answer.
    fn receive(&mut self, stanza: Option<i32>, by: Lane) {
        let Some(stanza) = stanza.map(i32::unsigned_abs) else { return };
        if let Some(it) = self.received.get_mut(&stanza) {
            it.by = by;
            return;
        }
        if self.received.len() == MAX_RECEIVED {
            self.received.pop_first(); // stanzas rise, so it is the oldest
        }
        self.received.insert(stanza, Arrival { by, answered_at: None });
    }
}

/// How a frame is sent.
enum Route {
    /// On `_reliable` alone, as without a fast lane.
    Reliable,
    /// On `_lossy` first, and again until it is acknowledged.
    Fast,
    /// On `_lossy` once: the peer asks again if it is lost.
    Once,
    /// On both at once.
    Both,
}

impl Delivery {
    /// Sends a frame to one peer, on the lane that suits it.
    pub(super) fn transmit_to(
        &mut self,
        cx: &mut Context,
        peers: &impl Recipients,
        to: &Identity,
        stanza: i32,
        message: &Message,
        payload: Bytes,
    ) -> Sent {
        let size = payload.len();
        let packet = self.next_packet();
        let route = self.route_of(cx, peers, to, message, &payload);
        if let Message::ToolUseResult(result) = message {
            self.settle_deferred(cx, peers, to, &result.id, &route);
        }
        let is_fast = matches!(route, Route::Fast);
        if matches!(route, Route::Reliable | Route::Both) {
            if matches!(route, Route::Both) {
                self.transmit_as(cx, packet, to, Lane::Lossy, payload.clone());
            }
            let packet = self.packet_of(cx, peers, packet, vec![to.clone()], payload, stanza, message);
            self.hand_out(cx, packet);
        } else {
            if is_fast {
                cx.count(Counter::FastFrames);
                if let Some(link) = self.links.get_mut(to) {
                    let FastLane { flight, trip, .. } = &mut link.lane;
                    flight.begin(cx.now, trip, stanza, packet, payload.clone());
                }
            }
            self.transmit_as(cx, packet, to, Lane::Lossy, payload);
            if is_fast {
                self.set_lane_timer(cx, to);
            }
        }
        Sent { stanza, packet, size, is_fast }
    }

    /// Takes note of a frame that arrived: what it acknowledges, and on which lane it wants its answer.
    pub(crate) fn lane_heard(
        &mut self,
        cx: &mut Context,
        peers: &impl Recipients,
        id: &Identity,
        incoming: &Received,
    ) {
        let lane = &mut self.links.entry(id.clone()).or_default().lane;
        lane.last = incoming.lane;
        match &incoming.message {
            Message::Configuration(_) => lane.has_met |= incoming.has_heard_us(),
            Message::ToolUseRequest(_) => lane.has_met |= incoming.addressed_to().is_some(),
            // A registration may follow the peer's Configuration before the local one has arrived. Stops are for plain peers too.
            Message::ToolsRegister(_) | Message::ControlStop(_) => {}
            _ => lane.has_met = true,
        }
        if !cx.config.has_fast_lane() || !peers.is_crossed(id) {
            return; // a participant without a part in the protocol leaves no trace
        }
        let stanza = incoming.stanza().filter(|stanza| *stanza != 0);
        match &incoming.message {
            Message::Acknowledgement(it) => {
                if let Some(known) = it.acknowledged_stanza_id.filter(|stanza| *stanza != 0) {
                    let named = it.acknowledged_message_id.as_deref();
                    if self.frames.may_mean(id, known, named) {
                        lane.arrived(cx.now, known, incoming.lane);
                    }
                }
                if it.is_claim() {
                    lane.receive(stanza, incoming.lane);
                }
            }
            Message::ToolUseRequest(_) | Message::ToolUseResult(_) | Message::ControlStop(_) => {
                lane.receive(stanza, incoming.lane);
            }
            _ => {}
        }
    }

    /// Whether frames to this peer may be sent on the lossy lane.
    pub(crate) fn lane_is_open(&self, cx: &Context, peers: &impl Recipients, to: &Identity) -> bool {
        lane_is_open(cx, peers, &self.links, to)
    }

    /// Whether a frame needs no acknowledgement of its own now: it was repeated sooner than an acknowledgement could have arrived,
    /// its result is sent again, or its result may follow at once.
    pub(super) fn lane_answers(
        &mut self,
        cx: &mut Context,
        peers: &impl Recipients,
        to: &Identity,
        stanza: i32,
        call: Option<&CallId>,
    ) -> bool {
        if !self.lane_is_open(cx, peers, to) {
            return false;
        }
        let now = cx.now;
        let Self { links, frames, .. } = self;
        let Some(link) = links.get_mut(to) else { return false };
        let FastLane { received, flight, deferred, trip, .. } = &mut link.lane;
        let Some(it) = received.get_mut(&stanza.unsigned_abs()) else { return false };
        if it.by == Lane::Reliable {
            it.answered_at = Some(now);
            return false;
        }
        match it.answered_at {
            Some(at) if now.saturating_duration_since(at) < trip.half() => true,
            Some(_) => {
                it.answered_at = Some(now);
                let is_result = |stanza: &u32| frames.is_result_of(to, *stanza, call);
                let Some(result) = flight.stanzas().find(is_result) else { return false };
                if let Some(due) = flight.repeat(now, result, trip.half()) {
                    self.transmit_due(cx, to, due);
                }
                true
            }
            None => {
                it.answered_at = Some(now);
                let may_wait = cx.is_client() && deferred.len() < MAX_DEFERRED;
                let Some(call) = call.filter(|_| may_wait) else { return false };
                deferred.push_back(Deferred { until: later(now, ANSWER_SOON), stanza, call: call.clone() });
                self.set_lane_timer(cx, to);
                true
            }
        }
    }

    /// Handles the timer of one peer's lane.
    pub(crate) fn lane_due(&mut self, cx: &mut Context, peers: &impl Recipients, id: &Identity) {
        let next = |links: &mut BTreeMap<Identity, Link>| links.get_mut(id)?.lane.next_deferred(cx.now);
        let mut acknowledgements = Vec::new();
        while let Some(deferred) = next(&mut self.links) {
            acknowledgements.push(deferred);
        }
        for deferred in acknowledgements {
            self.acknowledge_now(cx, peers, id, deferred.stanza, Some(&deferred.call));
        }
        let Some(flight) = self.links.get_mut(id).map(|link| &mut link.lane.flight) else { return };
        let held = flight.held();
        let (reliable, mut added) = (&self.reliable, 0);
        let due = flight.due(cx.now, |bytes| {
            let has_room = reliable.has_room_beside(added);
            added += if has_room { bytes } else { 0 };
            has_room
        });
        let holds = flight.held();
        if holds > 0 {
            self.reliable.holding.insert(id.clone());
        }
        cx.stats.add(Counter::FastCopiesHeld, holds.saturating_sub(held));
        for due in due {
            self.transmit_due(cx, id, due);
        }
        self.set_lane_timer(cx, id);
    }

    /// The driver reports what waits on the reliable lane: copies that were held back may be sent.
    pub(crate) fn handle_backlog(&mut self, cx: &mut Context, peers: &impl Recipients, bytes: usize) {
        self.reliable.backlog = Some(bytes);
        self.reliable.added = 0;
        if !self.reliable.has_room_beside(0) {
            return;
        }
        for id in std::mem::take(&mut self.reliable.holding) {
            if self.links.get(&id).is_some_and(|link| link.lane.flight.held() > 0) {
                self.lane_due(cx, peers, &id);
            }
        }
    }

    /// Sends results that may have been lost on the reliable lane. Nothing is sent again after the goodbye that follows.
    pub(crate) fn flush_results(&mut self, cx: &mut Context, to: &Identity) {
        for stanza in self.frames.results_to(to) {
            let copy = self.links.get_mut(to).and_then(|link| link.lane.flight.last_copy(stanza));
            if let Some(due) = copy {
                self.transmit_due(cx, to, due);
            }
        }
    }

    fn route_of(
        &self,
        cx: &Context,
        peers: &impl Recipients,
        to: &Identity,
        message: &Message,
        payload: &Bytes,
    ) -> Route {
        if !self.lane_is_open(cx, peers, to) || !fits(cx, to, payload) {
            return Route::Reliable;
        }
        let Some(lane) = self.links.get(to).map(|link| &link.lane) else { return Route::Reliable };
        let is_full = lane.flight.is_full();
        match message {
            _ if is_full && message.kind() != Kind::ACKNOWLEDGEMENT => Route::Reliable,
            Message::ToolUseRequest(_) | Message::ToolUseResult(_) => Route::Fast,
            Message::ControlStop(it) if it.target_id.is_some() => Route::Fast,
            Message::Acknowledgement(it) if it.is_claim() && is_full => Route::Reliable,
            Message::Acknowledgement(it) if it.is_claim() => Route::Fast,
            Message::Acknowledgement(it) => {
                let stanza = it.acknowledged_stanza_id.map_or(0, i32::unsigned_abs);
                match lane.received.get(&stanza).map(|it| it.by) {
                    Some(Lane::Lossy) => Route::Once,
                    Some(Lane::Reliable) | None => Route::Both,
                }
            }
            // The result is sent on the fast lane and must not overtake what was reported just before it.
            Message::ToolProgress(it) if it.message.is_some() || it.content.is_some() => Route::Both,
            _ => Route::Reliable,
        }
    }

    /// The result of a request is sent: an acknowledgement that waits for it is needed only if the result is not on the fast lane.
    fn settle_deferred(
        &mut self,
        cx: &mut Context,
        peers: &impl Recipients,
        to: &Identity,
        call: &CallId,
        route: &Route,
    ) {
        let Some(lane) = self.links.get_mut(to).map(|link| &mut link.lane) else { return };
        let Some(at) = lane.deferred.iter().position(|it| it.call == *call) else { return };
        let Some(deferred) = lane.deferred.remove(at) else { return };
        if !matches!(route, Route::Fast) {
            self.acknowledge_now(cx, peers, to, deferred.stanza, Some(&deferred.call));
        }
    }

    fn transmit_due(&mut self, cx: &mut Context, to: &Identity, due: Due) {
        cx.count(match due.lane {
            Lane::Lossy => Counter::FastRetries,
            Lane::Reliable => Counter::FastCopies,
        });
        self.transmit_as(cx, due.packet, to, due.lane, due.payload);
    }

    /// Sends a small packet of which a copy is sent elsewhere too. It may overtake large ones.
    fn transmit_as(&mut self, cx: &mut Context, id: u64, to: &Identity, lane: Lane, payload: Bytes) {
        let mut packet = Packet::new([to.clone()], payload);
        packet.id = id;
        packet.lane = lane;
        packet.overtakes = true;
        self.hand_out(cx, packet);
    }

    pub(super) fn set_lane_timer(&mut self, cx: &mut Context, id: &Identity) {
        let Some(lane) = self.links.get(id).map(|link| &link.lane) else { return };
        let deferred = lane.deferred.front().map(|it| it.until);
        match [deferred, lane.flight.next(cx.now)].into_iter().flatten().min() {
            Some(at) => cx.set_timer(Timer::Lane(id.clone()), at.saturating_duration_since(cx.now)),
            None => cx.timers.cancel(&Timer::Lane(id.clone())),
        }
    }
}

/// Whether a frame and LiveKit's envelope fit one datagram, with the names as the server writes them.
fn fits(cx: &Context, to: &Identity, payload: &Bytes) -> bool {
    let local = cx.local.identity().as_str().len() + cx.local.participant.sid().as_str().len();
    payload.len() + ENVELOPE + TOPIC.len() + 2 * (local + to.as_str().len()) <= MAX_PACKET
}
