//! Runs the fast lane: small frames are sent first on `_lossy` only, and again until they are acknowledged
//! (`wire.md`, section 5.8).
//!
//! [`To::transmit`] selects the lane of each frame to one peer. [`To::received`] processes each received frame, which shows
//! what has been delivered. The state belongs to one pair of sids and ends with it.

use std::time::Duration;

use bytes::Bytes;

use super::{
    Context, Counter, Delivery, Feature, Recipients, Sent, To,
    arrivals::{Answer, Arrivals},
    backlog::Backlog,
    deferred::{Deferred, Held},
    flight::{Due, Flight},
    loss::Loss,
    purpose::{Purpose, is_of_handshake},
    rtt::RoundTrip,
};
use crate::{
    clock::Instant,
    protocol::{
        frame::{Frame, Kind, Message, Meta},
        session::{
            codec::{self, Received},
            timers::Timer,
        },
    },
    tool::CallId,
    transport::{Identity, Lane, Packet, TOPIC},
};

/// The largest packet with LiveKit's envelope, in bytes. It fits one datagram: WebRTC stacks aim at 1,150 B, of which
/// SCTP and DTLS use 88. A packet in two datagrams is lost if either is.
const MAX_PACKET: usize = 1_062;

/// The largest size of LiveKit's envelope without names (keys, lengths and kinds), in bytes.
const ENVELOPE: usize = 64;

/// The frames in flight to one peer from which on none is sent twice: then the link is full, and packets wait rather than get lost.
const FULL: usize = 16;

/// The state of the fast lane under one pair of sids.
#[derive(Debug, Default)]
pub(super) struct FastLane {
    /// Whether the local Configuration has arrived under this pair: the peer stated it, or sent a frame that requires
    /// it.
    pub(super) configuration_delivered: bool,
    trip: RoundTrip,
    loss: Loss,
    pub(super) flight: Flight,
    /// Whether the link was full when the last frame was sent.
    was_full: bool,
    arrivals: Arrivals,
    deferred: Deferred,
    /// The lane of the last received frame.
    pub(super) last: Lane,
}

impl FastLane {
    /// Notes that the frame of this stanza has arrived, because of a frame received on this lane.
    /// Its answer was held for `held`.
    pub(super) fn arrived(&mut self, now: Instant, stanza: i32, by: Lane, held: Duration) {
        let answered = self.flight.arrived(now, stanza, by, held, &mut self.trip);
        self.loss.answered(now, answered);
    }

    /// Returns the time after which a frame is sent a second time, if packets are being lost, and not because the link is full.
    fn spacing(&self, now: Instant, is_full: bool) -> Option<Duration> {
        // Measured at 2 % loss on one link (benches/README.md): p99 is 53 ms with doubles and 116 ms without,
        // for 7.4 datagrams a call in place of 5.1. In a full link a double only makes the queue longer that
        // delays the frame.
        (self.loss.is_recent(now) && !is_full).then(|| self.trip.spacing())
    }

    fn is_full(&self, backlog: &Backlog) -> bool {
        self.flight.len() >= FULL || !backlog.has_room_after(0) || self.trip.is_rising()
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
    /// Returns whether frames to this peer may be sent on the lossy lane.
    pub(crate) fn lane_is_open(&self, cx: &Context, peers: &impl Recipients, to: &Identity) -> bool {
        // A packet on `_lossy` can overtake the Configuration on `_reliable`. A result that did so ended the
        // caller's work before its handshake: the caller left without a goodbye, and the client stayed bound to
        // it for the grace period.
        cx.config.has_fast_lane()
            && self.links.get(to).is_some_and(|link| link.lane.configuration_delivered)
            && peers.is_crossed(to)
            && peers.lists(to, Feature::FastLane)
    }

    /// Notes whether the peer has stated in a Configuration that the local one has arrived.
    pub(crate) fn note_configuration(&mut self, id: &Identity, has_arrived: bool) {
        self.links.entry(id.clone()).or_default().lane.configuration_delivered |= has_arrived;
    }

    /// Handles the reported backlog of the reliable lane. Held copies may be sent.
    pub(crate) fn handle_backlog(&mut self, cx: &mut Context, peers: &impl Recipients, bytes: usize) {
        for id in self.backlog.report(bytes) {
            if self.links.get(&id).is_some_and(|link| link.lane.flight.held() > 0) {
                self.to(cx, peers, &id).due();
            }
        }
    }

    /// Sets the timer of one peer's lane.
    pub(super) fn set_lane_timer(&self, cx: &mut Context, id: &Identity) {
        let Some(lane) = self.links.get(id).map(|link| &link.lane) else { return };
        match [lane.deferred.next(), lane.flight.next()].into_iter().flatten().min() {
            Some(at) => cx.set_timer(Timer::Lane(id.clone()), at.saturating_duration_since(cx.now)),
            None => cx.timers.cancel(&Timer::Lane(id.clone())),
        }
    }
}

impl<R: Recipients> To<'_, R> {
    /// Sends a frame and selects its lane. Without a purpose nobody else keeps the frame.
    pub(super) fn transmit(
        &mut self,
        stanza: i32,
        message: &Message,
        payload: Bytes,
        purpose: Option<Purpose>,
    ) -> Sent {
        let payload = self.delivery.as_sent(self.cx, self.peers, self.id, payload);
        let size = payload.len();
        let route = self.route_of(message, &payload);
        if let Message::ToolUseResult(result) = message {
            // Before the result is sent: if the result is not on the fast lane, where it replaces the
            // acknowledgement of its request, that acknowledgement must not arrive after it.
            self.settle_deferred(&result.id, &route);
        }
        let id = self.delivery.next_packet();
        // What strangers are answered is not kept: they could fill the memory.
        let purpose =
            purpose.unwrap_or_else(|| match self.peers.is_reachable(self.id) || is_of_handshake(message) {
                true => Purpose::of(message),
                false => Purpose::Never,
            });
        if !matches!(route, Route::Reliable) {
            self.transmit_as(id, Lane::Lossy, payload.clone());
        }
        match route {
            Route::Reliable | Route::Both => {
                let packet = self.packet_of(id, payload, stanza, message);
                self.delivery.emit_kept(self.cx, packet, stanza, purpose);
            }
            Route::Fast => {
                let now = self.cx.now;
                self.cx.count(Counter::FastFrames);
                if purpose.has_record() {
                    self.delivery.frames.note(self.id, stanza, id, true, purpose);
                } else if purpose != Purpose::Never {
                    let packet = self.packet_of(id, payload.clone(), stanza, message);
                    self.delivery.posted.note(now, &packet, stanza, purpose);
                }
                let Delivery { links, backlog, .. } = &mut *self.delivery;
                if let Some(link) = links.get_mut(self.id) {
                    let is_full = link.lane.is_full(backlog);
                    // Doubles are left out for at least two frames in a row: their receiver takes one frame for a loss.
                    let was_full = std::mem::replace(&mut link.lane.was_full, is_full);
                    let spacing = link.lane.spacing(now, is_full || was_full);
                    let FastLane { flight, trip, .. } = &mut link.lane;
                    flight.begin(now, trip, spacing, stanza, id, payload);
                }
                self.delivery.set_lane_timer(self.cx, self.id);
            }
            Route::Once => {} // its peer repeats the frame that this one answers
        }
        Sent { stanza, size }
    }

    /// Handles a received frame: the frames that it acknowledges, and the lane for its answer.
    pub(crate) fn received(self, incoming: &Received) {
        let (id, now) = (self.id, self.cx.now);
        let Delivery { links, frames, .. } = self.delivery;
        let lane = &mut links.entry(id.clone()).or_default().lane;
        lane.last = incoming.lane;
        match &incoming.message {
            // Only a request with `bridge.to` counts: its sender has computed that from the local
            // Configuration. A request without it looks like one of a plain caller and shows nothing.
            Message::ToolUseRequest(_) => lane.configuration_delivered |= incoming.addressed_to().is_some(),
            // A registration may follow the peer's Configuration before the local one has arrived. Plain peers send
            // stops too. What a Configuration states counts once it is known to be of the present instance.
            Message::Configuration(_) | Message::ToolsRegister(_) | Message::ControlStop(_) => {}
            _ => lane.configuration_delivered = true,
        }
        if !self.cx.config.has_fast_lane() || !self.peers.is_crossed(id) {
            return; // no state is kept for a participant outside the protocol
        }
        let stanza = incoming.stanza().filter(|stanza| *stanza != 0);
        let needs_answer = match &incoming.message {
            Message::Acknowledgement(it) => {
                if let Some(known) = it.acknowledged_stanza_id.filter(|stanza| *stanza != 0) {
                    let named = it.acknowledged_message_id.as_deref();
                    if frames.may_mean(id, known, named) {
                        lane.arrived(now, known, incoming.lane, incoming.held());
                    }
                }
                it.is_claim()
            }
            Message::ToolUseRequest(_) | Message::ToolUseResult(_) | Message::ControlStop(_) => true,
            _ => false,
        };
        if needs_answer && lane.arrivals.note(now, stanza, incoming.lane) && lane.trip.is_long() {
            lane.loss.note(now);
        }
    }

    /// Returns whether a frame needs no acknowledgement now: it was repeated before an acknowledgement could arrive,
    /// its result is sent again, or its result may follow at once.
    pub(super) fn answers(&mut self, stanza: i32, call: Option<&CallId>) -> bool {
        if !self.delivery.lane_is_open(self.cx, self.peers, self.id) {
            return false;
        }
        let now = self.cx.now;
        let Delivery { links, frames, .. } = &mut *self.delivery;
        let Some(link) = links.get_mut(self.id) else { return false };
        let FastLane { arrivals, flight, deferred, trip, loss, .. } = &mut link.lane;
        match arrivals.answer(now, stanza, trip.half()) {
            Answer::Now => false,
            Answer::Not => true,
            Answer::Again => {
                let is_result = |stanza: &u32| frames.is_result_of(self.id, *stanza, call);
                let Some(result) = flight.stanzas().find(is_result) else { return false };
                if let Some(due) = flight.repeat(now, result, trip.half()) {
                    self.transmit_due(due);
                }
                true
            }
            Answer::First => {
                // While packets are being lost, an owner sends each result twice that is not acknowledged soon, and
                // learns of losses by the time of the acknowledgement.
                let may_wait = !deferred.is_full() && (self.cx.is_client() || loss.is_quiet(now));
                let Some(call) = call.filter(|_| may_wait) else { return false };
                deferred.push(now, stanza, call.clone());
                self.delivery.set_lane_timer(self.cx, self.id);
                true
            }
        }
    }

    /// Lets a request carry the acknowledgements that wait, if it still fits the fast lane. Returns its frame. If it does not
    /// arrive, their results are sent again, and acknowledged again.
    pub(super) fn with_acknowledgements(
        &mut self,
        stanza: i32,
        meta: &Meta,
        message: &Message,
        payload: Bytes,
    ) -> Bytes {
        let may_carry = !self.cx.is_client() && matches!(message, Message::ToolUseRequest(_));
        if !may_carry || !matches!(self.route_of(message, &payload), Route::Fast) {
            return payload;
        }
        let now = self.cx.now;
        let Some(link) = self.delivery.links.get_mut(self.id) else { return payload };
        let waiting = link.lane.deferred.carried();
        let count = waiting.len();
        if count == 0 {
            return payload;
        }
        let meta = codec::carrying(meta, waiting.map(|it| (it.stanza, it.time(now))));
        match Frame::write(stanza, &self.cx.config.room, &meta, message) {
            Ok(carrying) if fits(self.cx, self.id, &carrying) => {
                self.cx.stats.add(Counter::CarriedAcks, count);
                link.lane.deferred.0.drain(..count);
                carrying
            }
            _ => payload,
        }
    }

    /// Sends before a goodbye what nothing sends after it: the results that may have been lost, and the acknowledgements
    /// that wait.
    pub(crate) fn flush(mut self) {
        for stanza in self.delivery.frames.results_to(self.id) {
            if let Some(due) = self.lane().and_then(|lane| lane.flight.last_copy(stanza)) {
                self.transmit_due(due);
            }
        }
        let waiting = self.lane().map(|lane| std::mem::take(&mut lane.deferred.0));
        for it in waiting.into_iter().flatten() {
            self.acknowledge_held(&it);
        }
    }

    /// Handles the timer of the lane.
    pub(crate) fn due(mut self) {
        let now = self.cx.now;
        while let Some(held) = self.lane().and_then(|lane| lane.deferred.take_due(now)) {
            self.acknowledge_held(&held);
        }
        let Delivery { links, backlog, .. } = &mut *self.delivery;
        let Some(lane) = links.get_mut(self.id).map(|link| &mut link.lane) else { return };
        let (spacing, mut added) = (lane.spacing(now, lane.is_full(backlog)), 0);
        let flight = &mut lane.flight;
        let before = flight.held();
        let due = flight.due(now, spacing, |bytes| {
            // The copies of this turn are output only afterwards, so `backlog` does not count them yet.
            let has_room = backlog.has_room_after(added);
            added += if has_room { bytes } else { 0 };
            has_room
        });
        let held = flight.held();
        if held > 0 {
            backlog.hold(self.id);
        }
        self.cx.stats.add(Counter::FastCopiesHeld, held.saturating_sub(before));
        for due in due {
            self.transmit_due(due);
        }
        self.delivery.set_lane_timer(self.cx, self.id);
    }

    fn route_of(&self, message: &Message, payload: &Bytes) -> Route {
        if !self.delivery.lane_is_open(self.cx, self.peers, self.id) || !fits(self.cx, self.id, payload) {
            return Route::Reliable;
        }
        let Some(lane) = self.delivery.links.get(self.id).map(|link| &link.lane) else {
            return Route::Reliable;
        };
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
                match lane.arrivals.lane_of(stanza) {
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
    fn settle_deferred(&mut self, call: &CallId, route: &Route) {
        let held = self.lane().and_then(|lane| lane.deferred.take_of(call));
        if let Some(held) = held.filter(|_| !matches!(route, Route::Fast)) {
            self.acknowledge_held(&held);
        }
    }

    fn lane(&mut self) -> Option<&mut FastLane> {
        self.delivery.links.get_mut(self.id).map(|link| &mut link.lane)
    }

    fn acknowledge_held(&mut self, it: &Held) {
        self.acknowledge_with(&codec::held(it.time(self.cx.now)), it.stanza, Some(&it.call));
    }

    fn transmit_due(&mut self, due: Due) {
        self.cx.count(due.counter);
        self.transmit_as(due.packet, due.lane, due.payload);
    }

    /// Sends a small packet of which a copy is sent on the other lane too. It may overtake large ones.
    fn transmit_as(&mut self, id: u64, lane: Lane, payload: Bytes) {
        let mut packet = Packet::new([self.id.clone()], payload);
        packet.id = id;
        packet.lane = lane;
        packet.overtakes = true;
        self.delivery.emit_packet(self.cx, packet);
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
