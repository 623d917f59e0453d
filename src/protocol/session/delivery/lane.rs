//! Runs the fast lane: small frames are sent first on `_lossy` only, and again until they are acknowledged
//! (`wire.md`, section 5.8).
//!
//! [`Delivery::transmit_to`] selects the lane of each frame to one peer. [`Delivery::lane_received`] processes each
//! received frame, which shows what has been delivered. The state belongs to one pair of sids and ends with it.

use std::{collections::VecDeque, time::Duration};

use bytes::Bytes;

use super::{
    Context, Counter, Delivery, Link, Recipients, Sent,
    flight::{Due, Flight, Unsent},
    lane_is_open,
    loss::Loss,
    rtt::RoundTrip,
};
use crate::{
    clock::{Instant, later},
    protocol::{
        frame::{Kind, Message, Meta},
        session::{
            SendFailure,
            codec::{self, MAX_CARRIED, Received},
            timers::Timer,
        },
    },
    sorted::{SortedMap, SortedSet},
    tool::CallId,
    transport::{Identity, Lane, Packet, TOPIC},
};

/// The largest packet with LiveKit's envelope, in bytes. It fits one datagram: WebRTC stacks aim at 1,150 B, of which
/// SCTP and DTLS use 88. A packet in two datagrams is lost if either is.
const MAX_PACKET: usize = 1_062;

/// The largest size of LiveKit's envelope without names (keys, lengths and kinds), in bytes.
const ENVELOPE: usize = 64;

/// The backlog on `_reliable` up to which a reliable copy is sent, in bytes. Both channels share one congestion window,
/// so every copy delays the packets behind it.
const RELIABLE_WAIT: usize = 600;

/// The frames in flight to one peer from which on none is sent twice: then the link is full, and packets wait rather than get lost.
const FULL: usize = 16;

/// The limit on received frames of one peer whose lane is remembered: those of several seconds of calls.
const MAX_RECEIVED: usize = 256;

/// The limit on acknowledgements to one peer that wait: as many as one caller may have open calls. They are searched
/// linearly.
const MAX_DEFERRED: usize = 64;

/// The longest wait for a result that replaces the acknowledgement of its request, and for a request that carries that of
/// a result.
pub(crate) const ANSWER_SOON: Duration = Duration::from_millis(5);

/// The state of the fast lane under one pair of sids.
#[derive(Debug, Default)]
pub(super) struct FastLane {
    /// Whether the local Configuration has arrived under this pair: the peer stated it, or sent a frame that requires
    /// it.
    configuration_delivered: bool,
    trip: RoundTrip,
    loss: Loss,
    flight: Flight,
    /// The received frames that need an answer, by the absolute value of their stanzas.
    received: SortedMap<u32, Arrival>,
    deferred: VecDeque<Deferred>,
    /// The lane of the last received frame.
    last: Lane,
}

/// A received frame that needs an answer.
#[derive(Debug)]
struct Arrival {
    /// The lane on which its last packet arrived.
    by: Lane,
    answered_at: Option<Instant>,
}

/// An acknowledgement that waits: an owner's for the result, which may replace it, an assistant's for a request, which may
/// carry it.
#[derive(Debug)]
struct Deferred {
    since: Instant,
    stanza: i32,
    call: CallId,
}

impl Deferred {
    fn until(&self) -> Instant {
        later(self.since, ANSWER_SOON)
    }

    fn held(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }
}

/// The state that the lanes to all peers share.
#[derive(Debug, Default)]
pub(super) struct Reliable {
    /// The bytes waiting on `_reliable` in the driver's last report; `None` before the first report.
    backlog: Option<usize>,
    /// The bytes that were added since the report.
    added: usize,
    /// The peers whose copies may be held back.
    holding: SortedSet<Identity>,
}

impl Reliable {
    /// Adds the bytes of a packet that is sent on `_reliable`.
    pub(super) fn add(&mut self, bytes: usize) {
        self.added = self.added.saturating_add(bytes);
    }

    /// Returns whether a copy may be sent on `_reliable` after this many bytes of other copies.
    fn has_room_after(&self, bytes: usize) -> bool {
        let waits = |backlog: usize| backlog.saturating_add(self.added).saturating_add(bytes);
        self.backlog.is_none_or(|backlog| waits(backlog) <= RELIABLE_WAIT)
    }
}

impl FastLane {
    /// Returns whether the local Configuration has arrived.
    pub(super) fn configuration_delivered(&self) -> bool {
        self.configuration_delivered
    }

    /// Returns the lane of the last received frame.
    pub(super) fn last(&self) -> Lane {
        self.last
    }

    /// Notes that the frame of this stanza has arrived, because of a frame received on this lane.
    /// Its answer was held for `held`.
    pub(super) fn arrived(&mut self, now: Instant, stanza: i32, by: Lane, held: Duration) {
        let answered = self.flight.arrived(now, stanza, by, held, &mut self.trip);
        self.loss.answered(now, answered);
    }

    /// Returns the time after which a frame is sent a second time, if packets are being lost, and not because the link is full.
    fn spacing(&self, now: Instant, reliable: &Reliable) -> Option<Duration> {
        // Measured at 2 % loss on one link (benches/README.md): p99 is 53 ms with doubles and 116 ms without,
        // for 7.4 datagrams a call in place of 5.1. In a full link a double only makes the queue longer that
        // delays the frame.
        let is_lossy = self.loss.is_recent(now) && !self.trip.is_rising();
        let is_full = self.flight.len() >= FULL || !reliable.has_room_after(0);
        (is_lossy && !is_full).then(|| self.trip.spacing())
    }

    /// Notes an outage or a suspension: the times of the frames in transit say nothing about the path.
    pub(super) fn interrupt(&mut self) {
        self.flight.interrupt();
    }

    /// Stops sending a frame.
    pub(super) fn forget(&mut self, stanza: i32) {
        self.flight.forget(stanza);
    }

    /// Handles an unsent packet and returns its effect on the frame.
    pub(super) fn unsent(&mut self, now: Instant, stanza: i32, packet: u64, why: &SendFailure) -> Unsent {
        self.flight.unsent(now, stanza, packet, why)
    }

    /// Takes an acknowledgement whose wait is over.
    fn next_deferred(&mut self, now: Instant) -> Option<Deferred> {
        self.deferred.front().filter(|it| it.until() <= now)?;
        self.deferred.pop_front()
    }

    /// Notes a received frame that needs an answer.
    fn receive(&mut self, stanza: Option<i32>, by: Lane) {
        let Some(stanza) = stanza.map(i32::unsigned_abs) else { return };
        if let Some(it) = self.received.get_mut(&stanza) {
            it.by = by;
            return;
        }
        if self.received.len() == MAX_RECEIVED {
            self.received.pop_first(); // stanzas rise, so the first is the oldest
        }
        self.received.insert(stanza, Arrival { by, answered_at: None });
    }
}

/// How a frame is sent.
enum Route {
    /// On `_reliable` only, as without a fast lane.
    Reliable,
    /// On `_lossy` first, and again until it is acknowledged.
    Fast,
    /// On `_lossy` once. If the packet is lost, the peer repeats its request.
    Once,
    /// On both lanes at once.
    Both,
}

impl Delivery {
    /// Sends a frame to one peer and selects its lane.
    pub(super) fn transmit_to(
        &mut self,
        cx: &mut Context,
        peers: &impl Recipients,
        to: &Identity,
        stanza: i32,
        message: &Message,
        payload: Bytes,
    ) -> Sent {
        let payload = self.as_sent(cx, peers, to, payload);
        let size = payload.len();
        let packet = self.next_packet();
        let route = self.route_of(cx, peers, to, message, &payload);
        if let Message::ToolUseResult(result) = message {
            // Before the result is sent: if the result is not on the fast lane, where it replaces the
            // acknowledgement of its request, that acknowledgement must not arrive after it.
            self.settle_deferred(cx, peers, to, &result.id, &route);
        }
        let is_fast = matches!(route, Route::Fast);
        if matches!(route, Route::Reliable | Route::Both) {
            if matches!(route, Route::Both) {
                self.transmit_as(cx, packet, to, Lane::Lossy, payload.clone());
            }
            let packet = self.packet_of(cx, peers, packet, vec![to.clone()], payload, stanza, message);
            self.emit_packet(cx, packet);
        } else {
            if is_fast {
                cx.count(Counter::FastFrames);
                if let Some(link) = self.links.get_mut(to) {
                    let spacing = link.lane.spacing(cx.now, &self.reliable);
                    let FastLane { flight, trip, .. } = &mut link.lane;
                    flight.begin(cx.now, trip, spacing, stanza, packet, payload.clone());
                }
            }
            self.transmit_as(cx, packet, to, Lane::Lossy, payload);
            if is_fast {
                self.set_lane_timer(cx, to);
            }
        }
        Sent { stanza, packet, size, is_fast }
    }

    /// Handles a received frame: the frames that it acknowledges, and the lane for its answer.
    pub(crate) fn lane_received(
        &mut self,
        cx: &mut Context,
        peers: &impl Recipients,
        id: &Identity,
        incoming: &Received,
    ) {
        let lane = &mut self.links.entry(id.clone()).or_default().lane;
        lane.last = incoming.lane;
        match &incoming.message {
            Message::Configuration(_) => {
                lane.configuration_delivered |= incoming.has_received_configuration()
            }
            // Only a request with `bridge.to` counts: its sender has computed that from the local
            // Configuration. A request without it looks like one of a plain caller and shows nothing.
            Message::ToolUseRequest(_) => lane.configuration_delivered |= incoming.addressed_to().is_some(),
            // A registration may follow the peer's Configuration before the local one has arrived. Plain peers send
            // stops too.
            Message::ToolsRegister(_) | Message::ControlStop(_) => {}
            _ => lane.configuration_delivered = true,
        }
        if !cx.config.has_fast_lane() || !peers.is_crossed(id) {
            return; // no state is kept for a participant outside the protocol
        }
        let stanza = incoming.stanza().filter(|stanza| *stanza != 0);
        match &incoming.message {
            Message::Acknowledgement(it) => {
                if let Some(known) = it.acknowledged_stanza_id.filter(|stanza| *stanza != 0) {
                    let named = it.acknowledged_message_id.as_deref();
                    if self.frames.may_mean(id, known, named) {
                        lane.arrived(cx.now, known, incoming.lane, incoming.held());
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

    /// Returns whether frames to this peer may be sent on the lossy lane.
    pub(crate) fn lane_is_open(&self, cx: &Context, peers: &impl Recipients, to: &Identity) -> bool {
        lane_is_open(cx, peers, &self.links, to)
    }

    /// Returns whether a frame needs no acknowledgement now: it was repeated before an acknowledgement could arrive,
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
        let FastLane { received, flight, deferred, trip, loss, .. } = &mut link.lane;
        let Some(it) = received.get_mut(&stanza.unsigned_abs()) else { return false };
        // A frame that arrived on `_reliable` is not repeated by a short timer, so its acknowledgement is not
        // deferred or left to a repetition.
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
                // While packets are being lost, an owner sends each result twice that is not acknowledged soon, and
                // learns of losses by the time of the acknowledgement.
                let may_wait = deferred.len() < MAX_DEFERRED && (cx.is_client() || loss.is_quiet(now));
                let Some(call) = call.filter(|_| may_wait) else { return false };
                deferred.push_back(Deferred { since: now, stanza, call: call.clone() });
                self.set_lane_timer(cx, to);
                true
            }
        }
    }

    /// Lets a request carry the acknowledgements that wait, if it still fits the fast lane. Returns its frame.
    #[expect(clippy::too_many_arguments, reason = "the parts of one frame, once")]
    pub(super) fn with_acknowledgements(
        &mut self,
        cx: &mut Context,
        peers: &impl Recipients,
        to: &Identity,
        stanza: i32,
        meta: &Meta,
        message: &Message,
        payload: Bytes,
    ) -> Bytes {
        if cx.is_client() || !matches!(message, Message::ToolUseRequest(_)) {
            return payload;
        }
        let Some(waiting) = self.links.get(to).map(|link| &link.lane.deferred).filter(|it| !it.is_empty())
        else {
            return payload;
        };
        if !matches!(self.route_of(cx, peers, to, message, &payload), Route::Fast) {
            return payload;
        }
        let now = cx.now;
        let count = waiting.len().min(MAX_CARRIED);
        let meta = codec::carrying(meta, waiting.iter().take(count).map(|it| (it.stanza, it.held(now))));
        match codec::encode(stanza, &cx.config.room, &meta, message) {
            Ok(carrying) if fits(cx, to, &carrying) => {
                cx.stats.add(Counter::CarriedAcks, count);
                if let Some(link) = self.links.get_mut(to) {
                    link.lane.deferred.drain(..count);
                }
                carrying
            }
            _ => payload,
        }
    }

    /// Handles an acknowledgement that a request carries.
    pub(crate) fn lane_carried(
        &mut self,
        cx: &Context,
        id: &Identity,
        stanza: i32,
        held: Duration,
        by: Lane,
    ) {
        if let Some(link) = self.links.get_mut(id) {
            link.lane.arrived(cx.now, stanza, by, held);
        }
    }

    /// Sends the acknowledgements that wait, before a goodbye.
    pub(crate) fn flush_acknowledgements(
        &mut self,
        cx: &mut Context,
        peers: &impl Recipients,
        to: &Identity,
    ) {
        let waiting = self.links.get_mut(to).map(|link| std::mem::take(&mut link.lane.deferred));
        for it in waiting.into_iter().flatten() {
            self.acknowledge_held(cx, peers, to, &it);
        }
    }

    /// Handles the timer of one peer's lane.
    pub(crate) fn lane_due(&mut self, cx: &mut Context, peers: &impl Recipients, id: &Identity) {
        let next = |links: &mut SortedMap<Identity, Link>| links.get_mut(id)?.lane.next_deferred(cx.now);
        let mut acknowledgements = Vec::new();
        while let Some(deferred) = next(&mut self.links) {
            acknowledgements.push(deferred);
        }
        for deferred in acknowledgements {
            self.acknowledge_held(cx, peers, id, &deferred);
        }
        let (reliable, mut added) = (&self.reliable, 0);
        let Some(lane) = self.links.get_mut(id).map(|link| &mut link.lane) else { return };
        let spacing = lane.spacing(cx.now, reliable);
        let flight = &mut lane.flight;
        let held = flight.held();
        let due = flight.due(cx.now, spacing, |bytes| {
            // The copies of this turn are output only afterwards, so `reliable` does not count them yet.
            let has_room = reliable.has_room_after(added);
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

    /// Handles the reported backlog of the reliable lane. Held copies may be sent.
    pub(crate) fn handle_backlog(&mut self, cx: &mut Context, peers: &impl Recipients, bytes: usize) {
        self.reliable.backlog = Some(bytes);
        self.reliable.added = 0;
        if !self.reliable.has_room_after(0) {
            return;
        }
        for id in std::mem::take(&mut self.reliable.holding) {
            if self.links.get(&id).is_some_and(|link| link.lane.flight.held() > 0) {
                self.lane_due(cx, peers, &id);
            }
        }
    }

    /// Sends results again that may have been lost. After the goodbye that follows, nothing is sent again.
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
            // An acknowledgement needs no place in the flight, since it is sent once. A claim does, and is
            // handled below.
            _ if is_full && message.kind() != Kind::ACKNOWLEDGEMENT => Route::Reliable,
            Message::ToolUseRequest(_) | Message::ToolUseResult(_) => Route::Fast,
            Message::ControlStop(it) if it.target_id.is_some() => Route::Fast,
            Message::Acknowledgement(it) if it.is_claim() && is_full => Route::Reliable,
            Message::Acknowledgement(it) if it.is_claim() => Route::Fast,
            Message::Acknowledgement(it) => {
                let stanza = it.acknowledged_stanza_id.map_or(0, i32::unsigned_abs);
                match lane.received.get(&stanza).map(|it| it.by) {
                    Some(Lane::Lossy) => Route::Once,
                    // On `_lossy` because it is faster. On `_reliable` because the peer does not repeat a
                    // frame of that lane: a lost acknowledgement would leave it unacknowledged until the next
                    // rejoin.
                    Some(Lane::Reliable) | None => Route::Both,
                }
            }
            // The result is sent on the fast lane and must not overtake the progress just before it.
            Message::ToolProgress(it) if it.message.is_some() || it.content.is_some() => Route::Both,
            _ => Route::Reliable,
        }
    }

    /// Handles the result of a request. An acknowledgement that waits for it is sent unless the result is on the fast
    /// lane.
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
            self.acknowledge_held(cx, peers, to, &deferred);
        }
    }

    fn acknowledge_held(&mut self, cx: &mut Context, peers: &impl Recipients, to: &Identity, it: &Deferred) {
        let meta = codec::held(it.held(cx.now));
        self.acknowledge_with(cx, peers, to, &meta, it.stanza, Some(&it.call));
    }

    fn transmit_due(&mut self, cx: &mut Context, to: &Identity, due: Due) {
        cx.count(due.counter);
        self.transmit_as(cx, due.packet, to, due.lane, due.payload);
    }

    /// Sends a small packet of which a copy is sent on the other lane too. It may overtake large ones.
    fn transmit_as(&mut self, cx: &mut Context, id: u64, to: &Identity, lane: Lane, payload: Bytes) {
        let mut packet = Packet::new([to.clone()], payload);
        packet.id = id;
        packet.lane = lane;
        packet.overtakes = true;
        self.emit_packet(cx, packet);
    }

    pub(super) fn set_lane_timer(&mut self, cx: &mut Context, id: &Identity) {
        let Some(lane) = self.links.get(id).map(|link| &link.lane) else { return };
        let deferred = lane.deferred.front().map(Deferred::until);
        match [deferred, lane.flight.next(cx.now)].into_iter().flatten().min() {
            Some(at) => cx.set_timer(Timer::Lane(id.clone()), at.saturating_duration_since(cx.now)),
            None => cx.timers.cancel(&Timer::Lane(id.clone())),
        }
    }
}

/// Returns whether a frame with LiveKit's envelope fits one datagram. The envelope has the names as the server writes
/// them.
fn fits(cx: &Context, to: &Identity, payload: &Bytes) -> bool {
    let local = cx.local.identity().as_str().len() + cx.local.participant.sid().as_str().len();
    // Names count twice: livekit-server writes the sender and the destinations both into the packet and into
    // the deprecated fields of its user payload.
    let envelope = ENVELOPE + TOPIC.len() + 2 * (local + to.as_str().len()) + cx.config.overhead;
    payload.len() + envelope <= MAX_PACKET
}
