//! The fast lane: small frames go out on `_lossy` first and alone, and again until they are acknowledged
//! (`wire.md`, 5.8).
//!
//! Whatever is sent to one peer goes through [`Session::lane_send`], which decides the lane; whatever
//! comes is shown to [`Session::lane_heard`], which knows by that what has arrived. All state is of one pair
//! of sids, and goes with it.

mod flight;
mod rtt;

pub(super) use self::flight::Unsent as OfFlight;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use bytes::Bytes;

use self::{
    flight::{Due, Flight},
    rtt::RoundTrip,
};
use super::{
    Counter, SendFailure, Session, Timer, claim::is_claim, codec::Incoming, peer::Feature, timers::later,
};
use crate::{
    protocol::frame::{Kind, Message},
    tool::CallId,
    transport::{Identity, Lane, Packet, TOPIC},
};

/// The largest packet, with LiveKit's envelope, in bytes: it fits one datagram of the 1,150 B that WebRTC stacks
/// aim at, less 88 for SCTP and DTLS. A packet in two datagrams is lost with either.
const MAX_PACKET: usize = 1_062;

/// LiveKit's envelope without names: keys, lengths and kinds, at most, in bytes.
const ENVELOPE: usize = 64;

/// A reliable copy goes only while no more than this waits on `_reliable`, in bytes: both channels share one
/// congestion window, and every copy in it delays what comes behind.
const RELIABLE_WAIT: usize = 600;

/// Frames of one peer whose lane and answer are remembered: those of several seconds of calls.
const MAX_CAME: usize = 256;

/// Requests whose acknowledgement may wait for the answer at once: as many as one caller may have open. They are
/// searched one by one, which so few allow.
const MAX_OWED: usize = 64;

/// An answer that comes so soon takes the place of its request's acknowledgement.
pub(super) const ANSWER_SOON: Duration = Duration::from_millis(5);

/// What happened on the fast lane under one pair of sids.
#[derive(Debug, Default)]
pub(super) struct FastLane {
    /// The peer has heard our Configuration under this pair: it said so, or said something that it would not before.
    met: bool,
    trip: RoundTrip,
    flight: Flight,
    /// By the absolute value of their stanzas.
    came: BTreeMap<u32, Came>,
    owed: VecDeque<Owed>,
    /// The lane of the frame that came last.
    last: Lane,
}

/// A frame that came and wants an answer.
#[derive(Debug)]
struct Came {
    /// How it came last.
    by: Lane,
    answered_at: Option<Instant>,
}

/// An acknowledgement that waits for the answer to take its place.
#[derive(Debug)]
struct Owed {
    until: Instant,
    stanza: i32,
    call: CallId,
}

/// What all lanes of one session share.
#[derive(Debug, Default)]
pub(super) struct Reliable {
    /// What waits on `_reliable`, in bytes, as the driver told it last; none if it never did.
    backlog: Option<usize>,
    /// What we added since.
    added: usize,
    /// The time of the input or command that is being taken.
    pub(super) now: Option<Instant>,
    /// The peers to whom copies may be held back.
    holding: BTreeSet<Identity>,
}

impl Reliable {
    /// A packet goes there.
    pub(super) fn add(&mut self, bytes: usize) {
        self.added = self.added.saturating_add(bytes);
    }

    /// Whether a copy may go there, beside so many bytes of others.
    fn has_room_beside(&self, bytes: usize) -> bool {
        let waits = |backlog: usize| backlog.saturating_add(self.added).saturating_add(bytes);
        self.backlog.is_none_or(|backlog| waits(backlog) <= RELIABLE_WAIT)
    }
}

impl FastLane {
    /// An acknowledgement that has waited for its answer long enough.
    fn owed_by(&mut self, now: Instant) -> Option<Owed> {
        self.owed.front().filter(|owed| owed.until <= now)?;
        self.owed.pop_front()
    }
}

/// How one frame leaves.
enum Way {
    /// On `_reliable` alone, as without a fast lane.
    Reliable,
    /// On `_lossy` first, and again until it is acknowledged.
    Fast(Option<CallId>),
    /// On `_lossy` once: the other asks again if it is lost.
    Once,
    /// On both at once.
    Both,
}

impl Session {
    /// Sends a frame to one peer, on the lane that it belongs on. Gives the id of its packets, and whether they are
    /// several: on `_lossy` first, and again.
    pub(super) fn lane_send(
        &mut self,
        to: &Identity,
        stanza: i32,
        message: &Message,
        payload: Bytes,
    ) -> (u64, bool) {
        let packet = self.next_packet_id();
        let way = self.way_of(to, message, &payload);
        if let Message::ToolUseResult(result) = message {
            self.answer_goes(to, &result.id, &way);
        }
        let now = self.reliable.now;
        let id = match (way, now) {
            (Way::Reliable, _) | (Way::Fast(_), None) => {
                self.transmit_reliable(packet, to, stanza, message, payload)
            }
            (Way::Once, _) => self.transmit_as(packet, to, Lane::Lossy, payload),
            (Way::Both, _) => {
                self.transmit_as(packet, to, Lane::Lossy, payload.clone());
                self.transmit_reliable(packet, to, stanza, message, payload)
            }
            (Way::Fast(call), Some(now)) => {
                self.stats.add(Counter::FastFrames, 1);
                if let Some(remote) = self.peers.get_mut(to) {
                    let FastLane { flight, trip, .. } = &mut remote.pair.lane;
                    flight.begin(now, trip, (stanza, message.kind(), call), packet, payload.clone());
                }
                self.transmit_as(packet, to, Lane::Lossy, payload);
                self.set_lane_timer(now, to);
                return (packet, true);
            }
        };
        (id, false)
    }

    /// Takes note of a frame that came: what it acknowledges, and on which lane it wants its answer.
    pub(super) fn lane_heard(&mut self, now: Instant, id: &Identity, incoming: &Incoming) {
        let has_fast_lane = self.has_fast_lane();
        let Some(remote) = self.peers.get_mut(id) else { return };
        let lane = &mut remote.pair.lane;
        lane.last = incoming.lane;
        match &incoming.message {
            Message::Configuration(_) => lane.met |= incoming.has_heard_us(),
            Message::ToolUseRequest(_) => lane.met |= incoming.addressed_to().is_some(),
            // It may follow its Configuration before ours came; stops are for plain peers too.
            Message::ToolsRegister(_) | Message::ControlStop(_) => {}
            _ => lane.met = true,
        }
        if !has_fast_lane || !remote.is_crossed() {
            return; // who has no part in anything leaves no trace
        }
        let stanza = incoming.stanza().filter(|stanza| *stanza != 0);
        match &incoming.message {
            Message::Acknowledgement(it) => {
                if let Some(known) = it.acknowledged_stanza_id.filter(|stanza| *stanza != 0) {
                    let known = (known, it.acknowledged_message_id.as_deref());
                    self.lane_acknowledged(now, id, known, incoming.lane);
                }
                if is_claim(it) {
                    self.came(id, stanza, incoming.lane);
                }
            }
            Message::ToolUseResult(result) => {
                let FastLane { flight, trip, .. } = &mut remote.pair.lane;
                flight.answered(now, &result.id, incoming.lane, trip);
                self.came(id, stanza, incoming.lane);
            }
            Message::Error(error) => {
                if let Some(call) = &error.originating_id {
                    remote.pair.lane.flight.forget_request(&call.as_str().into());
                }
            }
            Message::ToolUseRequest(_) | Message::ControlStop(_) => self.came(id, stanza, incoming.lane),
            _ => {}
        }
    }

    /// A peer has the frame of this stanza, and of this call if one is named: it goes no more.
    pub(super) fn lane_acknowledged(
        &mut self,
        now: Instant,
        peer: &Identity,
        known: (i32, Option<&str>),
        by: Lane,
    ) {
        if let Some(remote) = self.peers.get_mut(peer) {
            let FastLane { flight, trip, .. } = &mut remote.pair.lane;
            flight.acknowledged(now, known, by, trip);
        }
    }

    /// A call has ended: its request goes no more.
    pub(super) fn lane_forget_request(&mut self, owner: &Identity, call: &CallId) {
        if let Some(remote) = self.peers.get_mut(owner) {
            remote.pair.lane.flight.forget_request(call);
        }
    }

    /// Whether a frame needs no acknowledgement of its own now: it repeats itself sooner than our answer could
    /// have come, its answer goes again, or its answer may come at once.
    pub(super) fn lane_answers(&mut self, to: &Identity, stanza: i32, call: Option<&CallId>) -> bool {
        let Some(now) = self.reliable.now.filter(|_| self.lane_is_open(to)) else { return false };
        let waits = self.is_client();
        let Some(remote) = self.peers.get_mut(to) else { return false };
        let FastLane { came, flight, owed, trip, .. } = &mut remote.pair.lane;
        let Some(it) = came.get_mut(&stanza.unsigned_abs()) else {
            return false;
        };
        if it.by == Lane::Reliable {
            it.answered_at = Some(now);
            return false;
        }
        match it.answered_at {
            Some(at) if now.saturating_duration_since(at) < trip.half() => true,
            Some(_) => {
                it.answered_at = Some(now);
                let Some(call) = call.filter(|call| flight.has_result_of(call)) else { return false };
                if let Some(due) = flight.repeat_result(now, call, trip.half()) {
                    self.go(to, due);
                }
                true
            }
            None => {
                it.answered_at = Some(now);
                let Some(call) = call.filter(|_| waits && owed.len() < MAX_OWED) else { return false };
                owed.push_back(Owed { until: later(now, ANSWER_SOON), stanza, call: call.clone() });
                self.set_lane_timer(now, to);
                true
            }
        }
    }

    /// Whether frames to this peer may go on `_lossy`.
    pub(super) fn lane_is_open(&self, to: &Identity) -> bool {
        self.has_fast_lane()
            && self
                .peers
                .get(to)
                .is_some_and(|it| it.pair.lane.met && it.is_crossed() && it.lists(Feature::FastLane))
    }

    /// The lane of the frame that is being taken.
    pub(super) fn lane_came_by(&self, from: &Identity) -> Lane {
        self.peers.get(from).map_or(Lane::Reliable, |remote| remote.pair.lane.last)
    }

    /// Something on the way to this peer is due.
    pub(super) fn lane_due(&mut self, now: Instant, id: &Identity) {
        while let Some(owed) = self.peers.get_mut(id).and_then(|remote| remote.pair.lane.owed_by(now)) {
            self.acknowledge_now(id, owed.stanza, Some(&owed.call));
        }
        let Some(remote) = self.peers.get_mut(id) else { return };
        let flight = &mut remote.pair.lane.flight;
        let held = flight.held();
        let (reliable, mut added) = (&self.reliable, 0);
        let due = flight.due(now, |bytes| {
            let has_room = reliable.has_room_beside(added);
            added += if has_room { bytes } else { 0 };
            has_room
        });
        let holds = flight.held();
        if holds > 0 {
            self.reliable.holding.insert(id.clone());
        }
        self.stats.add(Counter::FastCopiesHeld, holds.saturating_sub(held));
        for due in due {
            self.go(id, due);
        }
        self.set_lane_timer(now, id);
    }

    /// The driver tells what waits on the reliable lane: copies that were held may go.
    pub(super) fn lane_backlog(&mut self, now: Instant, bytes: usize) {
        self.reliable.backlog = Some(bytes);
        self.reliable.added = 0;
        if !self.reliable.has_room_beside(0) {
            return;
        }
        for id in std::mem::take(&mut self.reliable.holding) {
            if self.peers.get(&id).is_some_and(|remote| remote.pair.lane.flight.held() > 0) {
                self.lane_due(now, &id);
            }
        }
    }

    /// What a packet that did not leave proves of its frame, if that is on its way on the fast lane.
    pub(super) fn lane_unsent(&mut self, now: Instant, packet: u64, why: &SendFailure) -> OfFlight {
        for (id, remote) in &mut self.peers {
            match remote.pair.lane.flight.unsent(now, packet, why) {
                OfFlight::Unknown => {}
                OfFlight::Proven => return OfFlight::Proven,
                OfFlight::Covered => {
                    let id = id.clone();
                    self.set_lane_timer(now, &id);
                    return OfFlight::Covered;
                }
            }
        }
        OfFlight::Unknown
    }

    /// Before a goodbye: answers that may have been lost go reliably, since nothing goes again afterwards.
    pub(super) fn lane_last_word(&mut self, to: &Identity) {
        let Some(remote) = self.peers.get_mut(to) else { return };
        for due in remote.pair.lane.flight.last_results() {
            self.go(to, due);
        }
    }

    fn has_fast_lane(&self) -> bool {
        self.config.has_fast_lane()
    }

    fn way_of(&self, to: &Identity, message: &Message, payload: &Bytes) -> Way {
        if !self.lane_is_open(to) || !self.fits(to, payload) {
            return Way::Reliable;
        }
        let Some(lane) = self.peers.get(to).map(|remote| &remote.pair.lane) else { return Way::Reliable };
        let full = lane.flight.is_full();
        match message {
            _ if full && message.kind() != Kind::ACKNOWLEDGEMENT => Way::Reliable,
            Message::ToolUseRequest(it) => Way::Fast(Some(it.id.clone())),
            Message::ToolUseResult(it) => Way::Fast(Some(it.id.clone())),
            Message::ControlStop(it) => match &it.target_id {
                Some(call) => Way::Fast(Some(call.as_str().into())),
                None => Way::Reliable,
            },
            Message::Acknowledgement(it) if is_claim(it) => {
                if full {
                    Way::Reliable
                } else {
                    Way::Fast(None)
                }
            }
            Message::Acknowledgement(it) => {
                let stanza = it.acknowledged_stanza_id.map_or(0, i32::unsigned_abs);
                match lane.came.get(&stanza).map(|came| came.by) {
                    Some(Lane::Lossy) => Way::Once,
                    Some(Lane::Reliable) | None => Way::Both,
                }
            }
            // The answer goes fast, and must not overtake what was reported just before it.
            Message::ToolProgress(it) if it.message.is_some() || it.content.is_some() => Way::Both,
            _ => Way::Reliable,
        }
    }

    /// Whether a frame and LiveKit's envelope are one datagram, with the names as the server writes them.
    fn fits(&self, to: &Identity, payload: &Bytes) -> bool {
        let ours = self.local.identity().as_str().len() + self.local.sid().as_str().len();
        payload.len() + ENVELOPE + TOPIC.len() + 2 * (ours + to.as_str().len()) <= MAX_PACKET
    }

    /// The answer of a request goes: an acknowledgement that waits for it is needed no more, if it goes fast.
    fn answer_goes(&mut self, to: &Identity, call: &CallId, way: &Way) {
        let Some(remote) = self.peers.get_mut(to) else { return };
        let lane = &mut remote.pair.lane;
        let Some(at) = lane.owed.iter().position(|owed| owed.call == *call) else { return };
        let Some(owed) = lane.owed.remove(at) else { return };
        if !matches!(way, Way::Fast(_)) {
            self.acknowledge_now(to, owed.stanza, Some(&owed.call));
        }
    }

    fn came(&mut self, id: &Identity, stanza: Option<i32>, by: Lane) {
        let (Some(stanza), Some(remote)) = (stanza, self.peers.get_mut(id)) else { return };
        let (came, stanza) = (&mut remote.pair.lane.came, stanza.unsigned_abs());
        if let Some(it) = came.get_mut(&stanza) {
            it.by = by;
            return;
        }
        if came.len() == MAX_CAME {
            came.pop_first(); // stanzas rise, so it is the oldest
        }
        came.insert(stanza, Came { by, answered_at: None });
    }

    fn go(&mut self, to: &Identity, due: Due) {
        let counter = match due.lane {
            Lane::Lossy => Counter::FastRetries,
            Lane::Reliable => Counter::FastCopies,
        };
        self.stats.add(counter, 1);
        self.transmit_as(due.packet, to, due.lane, due.payload);
    }

    /// A small packet, of which a copy goes elsewhere too: it may pass large ones.
    fn transmit_as(&mut self, id: u64, to: &Identity, lane: Lane, payload: Bytes) -> u64 {
        let mut packet = Packet::new([to.clone()], payload);
        packet.id = id;
        packet.lane = lane;
        packet.overtakes = true;
        self.hand_out(packet)
    }

    fn transmit_reliable(
        &mut self,
        id: u64,
        to: &Identity,
        stanza: i32,
        message: &Message,
        payload: Bytes,
    ) -> u64 {
        let packet = self.packet_of(id, vec![to.clone()], payload, stanza, message);
        self.hand_out(packet)
    }

    fn set_lane_timer(&mut self, now: Instant, id: &Identity) {
        let Some(lane) = self.peers.get(id).map(|remote| &remote.pair.lane) else { return };
        let owed = lane.owed.front().map(|owed| owed.until);
        match [owed, lane.flight.next(now)].into_iter().flatten().min() {
            Some(at) => {
                self.timers.set(now, Timer::Lane(id.clone()), at.saturating_duration_since(now));
            }
            None => self.timers.cancel(&Timer::Lane(id.clone())),
        }
    }
}
