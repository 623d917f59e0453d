//! What leaves: frames, their copies for observers, acknowledgements and refusals; and complaints.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::{
    Counter, Destination, Event, Output, Phase, SendFailure, SendFrameError, Session, Timer, codec,
    lane::OfFlight, peer::Feature,
};
use crate::{
    protocol::frame::{Acknowledgement, ErrorMessage, Kind, Message, Meta},
    tool::{CallError, CallId},
    transport::{Identity, Lane, Packet, Role},
    value::{EncodeError, Value},
};

/// How often the same misbehaviour of the same participant is told: once in 10 s, with its count.
pub const COMPLAINT_INTERVAL: Duration = Duration::from_secs(10);

/// Kinds of misbehaviour that are kept apart at once; more are only counted.
const MAX_COMPLAINTS: usize = 256;

/// How often one peer is told that a frame of its was malformed.
const CORRECTION_INTERVAL: Duration = Duration::from_secs(1);

/// A frame on its way: the numbers under which it left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) stanza: i32,
    pub(super) packet: u64,
    /// The bytes of its packet.
    pub(super) size: usize,
    /// It left on the fast lane: more than one packet carries its number.
    pub(super) fast: bool,
}

/// A frame that cannot leave.
#[derive(Debug)]
pub(super) enum Unfit {
    TooLarge { size: usize, limit: usize },
    Encode(EncodeError),
}

/// Misbehaviour that was not told yet, by participant and kind.
#[derive(Debug, Default)]
pub(super) struct Complaints(BTreeMap<(Identity, Counter), u64>);

impl Session {
    /// Sends a frame to one participant.
    pub(super) fn post(&mut self, to: &Identity, meta: &Meta, message: &Message) -> Result<Sent, Unfit> {
        let limit = self.limit_to(std::slice::from_ref(to), message);
        let (stanza, payload) = self.frame(meta, message, limit)?;
        let size = payload.len();
        let (packet, fast) = self.lane_send(to, stanza, message, payload);
        Ok(Sent { stanza, packet, size, fast })
    }

    /// Sends a frame again, under the stanza that it had.
    pub(super) fn post_again(
        &mut self,
        to: &Identity,
        stanza: i32,
        meta: &Meta,
        message: &Message,
    ) -> Result<Sent, Unfit> {
        let payload = codec::encode(stanza, &self.config.room, meta, message).map_err(Unfit::Encode)?;
        let size = payload.len();
        let (packet, fast) = self.lane_send(to, stanza, message, payload);
        Ok(Sent { stanza, packet, size, fast })
    }

    /// Sends a frame whose size is known to be small, or whose loss is no harm.
    pub(super) fn post_small(&mut self, to: &Identity, message: &Message) -> Option<Sent> {
        match self.post(to, &Meta::default(), message) {
            Ok(sent) => Some(sent),
            Err(error) => {
                tracing::warn!(%to, ?error, "a frame cannot be sent");
                None
            }
        }
    }

    /// Sends every observer a copy of a frame.
    pub(super) fn copy(&mut self, meta: &Meta, message: &Message) {
        if self.observers.is_empty() {
            return;
        }
        if let Err(error) = self.post_to(self.observers(), meta, message) {
            tracing::warn!(?error, "observers get no copy of a frame");
        }
    }

    /// Sends a frame to the whole room.
    pub(super) fn broadcast(&mut self, meta: &Meta, message: &Message) -> Result<Sent, Unfit> {
        let (stanza, payload) = self.frame(meta, message, self.config.caps.max_packet)?;
        let size = payload.len();
        let packet = self.transmit(Packet::broadcast(payload));
        Ok(Sent { stanza, packet, size, fast: false })
    }

    /// Acknowledges a frame, towards a peer that wants to know.
    pub(super) fn acknowledge(&mut self, to: &Identity, stanza: Option<i32>, call: Option<&CallId>) {
        let wants =
            self.peers.get(to).is_some_and(|remote| remote.lists(Feature::Ack) && remote.is_reachable());
        if wants {
            self.acknowledge_always(to, stanza, call);
        }
    }

    pub(super) fn acknowledge_always(&mut self, to: &Identity, stanza: Option<i32>, call: Option<&CallId>) {
        let Some(stanza) = stanza.filter(|stanza| *stanza != 0) else { return };
        if !self.lane_answers(to, stanza, call) {
            self.acknowledge_now(to, stanza, call);
        }
    }

    pub(super) fn acknowledge_now(&mut self, to: &Identity, stanza: i32, call: Option<&CallId>) {
        let acknowledgement = Acknowledgement {
            conversation_id: Some(self.config.room.clone()),
            acknowledged_stanza_id: Some(stanza),
            success: Some(true),
            acknowledged_message_id: call.map(|id| id.as_str().to_owned()),
            ..Acknowledgement::default()
        };
        self.post_small(to, &Message::Acknowledgement(acknowledgement));
    }

    /// Sends a `ping` on both lanes, or a `pong` on the lane on which it was asked for: unsequenced.
    pub(super) fn sign_of_life(&mut self, to: &Identity, word: &str) {
        let message = Message::Acknowledgement(Acknowledgement {
            conversation_id: Some(self.config.room.clone()),
            acknowledged_stanza_id: Some(0),
            notes: Some(word.to_owned()),
            ..Acknowledgement::default()
        });
        match codec::encode(0, &self.config.room, &Meta::default(), &message) {
            Ok(payload) => {
                let lossy = self.lane_is_open(to);
                let asked_on_lossy = word == "pong" && self.lane_came_by(to) == Lane::Lossy;
                let mut packet = self.packet_of(0, vec![to.clone()], payload, 0, &message);
                if !(lossy && asked_on_lossy) {
                    self.transmit(packet.clone());
                }
                if lossy && (word == "ping" || asked_on_lossy) {
                    packet.lane = Lane::Lossy;
                    self.transmit(packet);
                }
            }
            Err(error) => tracing::warn!(%error, "a sign of life cannot be encoded"),
        }
    }

    /// Tells a peer that a frame of its is refused (type 1).
    pub(super) fn refuse_frame(&mut self, to: &Identity, code: i32, message: &str, about: Option<String>) {
        let about = about.map(|mut id| {
            id.truncate(floor_char(&id, self.config.caps.id_bytes));
            id
        });
        self.say_error(to, code, message, about);
    }

    /// Sends a type 1 about a call or a stream.
    pub(super) fn say_error(&mut self, to: &Identity, code: i32, message: &str, about: Option<String>) {
        let error = ErrorMessage {
            id: self.ids.next(),
            conversation_id: self.config.room.clone(),
            code,
            message: message.to_owned(),
            severity: 2,
            recoverable: true,
            originating_id: about,
        };
        self.post_small(to, &Message::Error(error));
    }

    /// Whether a participant without rights may be told so now.
    pub(super) fn may_deny(&mut self, now: Instant, who: &Identity) -> bool {
        let interval = self.config.times.denial;
        let Some(remote) = self.peers.get_mut(who) else { return false };
        let may = remote.denied_at.is_none_or(|at| now.saturating_duration_since(at) >= interval);
        if may {
            remote.denied_at = Some(now);
        }
        may
    }

    /// Counts a malformed packet, and tells a peer of ours about it.
    pub(super) fn malformed(&mut self, now: Instant, from: &Identity, what: codec::Malformed) {
        self.complain(now, from, Counter::Malformed);
        self.correct(now, from, what);
    }

    /// Tells a peer of ours, once a second, that it sent what is malformed.
    pub(super) fn correct(&mut self, now: Instant, from: &Identity, what: codec::Malformed) {
        let is_ours =
            self.peers.get(from).is_some_and(|remote| remote.is_here() && self.is_counterpart(from, remote));
        let Some(remote) = self.peers.get_mut(from).filter(|_| is_ours && what.kind != Some(Kind::ERROR))
        else {
            return;
        };
        if remote.corrected_at.is_none_or(|at| now.saturating_duration_since(at) >= CORRECTION_INTERVAL) {
            remote.corrected_at = Some(now);
            self.refuse_frame(from, 101, "the frame is malformed", what.id);
        }
    }

    /// Counts misbehaviour, and tells of it unless it was told just now.
    pub(super) fn complain(&mut self, now: Instant, by: &Identity, what: Counter) {
        self.stats.add(what, 1);
        let known = self.complaints.0.len();
        match self.complaints.0.get_mut(&(by.clone(), what)) {
            Some(times) => *times += 1,
            None if known >= MAX_COMPLAINTS => {}
            None => {
                self.complaints.0.insert((by.clone(), what), 0);
                if !self.timers.is_set(&Timer::Complaints) {
                    self.timers.set(now, Timer::Complaints, COMPLAINT_INTERVAL);
                }
                self.event(Event::Misbehaved { by: by.clone(), what, times: 1 });
            }
        }
    }

    /// Tells what was counted since, and forgets who has stopped.
    pub(super) fn tell_complaints(&mut self, now: Instant) {
        for ((by, what), times) in std::mem::take(&mut self.complaints.0) {
            if times > 0 {
                self.complaints.0.insert((by.clone(), what), 0);
                self.event(Event::Misbehaved { by, what, times });
            }
        }
        if !self.complaints.0.is_empty() {
            self.timers.set(now, Timer::Complaints, COMPLAINT_INTERVAL);
        }
    }

    pub(super) fn send_frame(
        &mut self,
        to: Destination,
        kind: Kind,
        meta: &Meta,
        body: Value,
    ) -> Result<(), SendFrameError> {
        if let Phase::Closed(reason) = &self.phase {
            return Err(SendFrameError::Closed(reason.clone()));
        }
        let code = kind.code();
        if kind.is_known() {
            return Err(SendFrameError::Reserved { kind: code });
        }
        let message = Message::Other(code, body);
        let sent = match to {
            Destination::Peers(peers) if peers.is_empty() => return Err(SendFrameError::NoDestination),
            Destination::Peers(peers) => self.post_to(peers, meta, &message),
            Destination::Room => self.broadcast(meta, &message),
        };
        sent.map(|_| ()).map_err(|unfit| match unfit {
            Unfit::TooLarge { size, limit } => SendFrameError::TooLarge { size, limit },
            Unfit::Encode(error) => SendFrameError::Encode { reason: error.to_string() },
        })
    }

    /// A packet did not leave: what depended on it is told.
    pub(super) fn unsent(&mut self, now: Instant, packet: u64, why: SendFailure) {
        self.stats.add(Counter::Unsent, 1);
        // The transport may take it later. Without permission it will not, until others hear us again.
        let may_go_later =
            matches!(why, SendFailure::QueueFull | SendFailure::Closed | SendFailure::Other(_));
        if let Some(assistant) = self.asked_stop_unsent(packet).filter(|_| may_go_later) {
            self.try_again_soon(now, assistant);
        }
        let flight = self.lane_unsent(now, packet, &why);
        let (covered, proven) = (flight == OfFlight::Covered, flight == OfFlight::Proven);
        if why == SendFailure::Interrupted {
            if !covered {
                self.interrupted(packet, proven);
            }
            return;
        }
        let not_allowed = why == SendFailure::NotAllowed;
        if not_allowed {
            self.muted = true;
            self.event(Event::NotAllowed);
        }
        if covered {
            return;
        }
        let too_large = match why {
            SendFailure::TooLarge { size, limit } => Some((size, limit)),
            SendFailure::NotAllowed
            | SendFailure::Closed
            | SendFailure::QueueFull
            | SendFailure::Interrupted => None,
            SendFailure::Other(reason) => {
                tracing::warn!(packet, reason, "a packet was not handed to the room");
                None
            }
        };
        if let Some((key, limit)) = self.call_sent_in(packet, proven) {
            let error = match too_large {
                Some((size, limit)) => CallError::TooLarge { size, limit },
                None if not_allowed => CallError::NotAllowed,
                None => CallError::NotDelivered { limit },
            };
            return self.never_left(now, key, error);
        }
        if let Some(owner) = self.past.stop_never_left(packet) {
            if may_go_later {
                self.try_again_soon(now, owner);
            }
            return;
        }
        // One lookup for each caller, and a client has one caller at a time.
        let found =
            self.tables.iter().find_map(|(caller, table)| Some((caller.clone(), table.sent_in(packet)?)));
        let Some((caller, id)) = found else { return };
        match too_large {
            Some((size, limit)) => self.replace_answer(now, &caller, &id, size, limit),
            None => {
                // It goes when its caller is heard of again.
                let sent = self.tables.get_mut(&caller).and_then(|table| table.note_sent(&id, None));
                if let Some((stanza, _)) = sent {
                    self.replayed(now, &caller, stanza);
                }
                if may_go_later {
                    self.try_again_soon(now, caller);
                }
            }
        }
    }

    /// A packet did not leave, since the connection was lost: what it carried is kept, and goes later.
    fn interrupted(&mut self, packet: u64, proven: bool) {
        if self.request_never_left(packet, proven) || self.past.stop_never_left(packet).is_some() {
            return;
        }
        let of_table = |table: &mut super::Table| {
            let call = table.sent_in(packet)?;
            table.note_sent(&call, None)
        };
        self.tables.values_mut().find_map(of_table);
    }

    fn post_to(&mut self, to: Vec<Identity>, meta: &Meta, message: &Message) -> Result<Sent, Unfit> {
        let (stanza, payload) = self.frame(meta, message, self.limit_to(&to, message))?;
        let size = payload.len();
        let id = self.next_packet_id();
        let packet = self.packet_of(id, to, payload, stanza, message);
        Ok(Sent { stanza, packet: self.hand_out(packet), size, fast: false })
    }

    /// Encodes a frame under the next stanza. One that does not fit takes no stanza.
    fn frame(&mut self, meta: &Meta, message: &Message, limit: usize) -> Result<(i32, bytes::Bytes), Unfit> {
        let next = self.stanza.saturating_add(1).min(i32::MAX as u32);
        let stanza = if self.role == Role::Assistant { -(next as i32) } else { next as i32 };
        let encoded = codec::encode(stanza, &self.config.room, meta, message);
        let payload = encoded.map_err(|error| match error {
            EncodeError::TooLarge { size, limit: most } => Unfit::TooLarge { size, limit: limit.min(most) },
            other => Unfit::Encode(other),
        })?;
        let size = payload.len();
        if size > limit {
            return Err(Unfit::TooLarge { size, limit });
        }
        self.stanza = next;
        Ok((stanza, payload))
    }

    fn transmit(&mut self, mut packet: Packet) -> u64 {
        packet.id = self.next_packet_id();
        self.hand_out(packet)
    }

    pub(super) fn next_packet_id(&mut self) -> u64 {
        self.next_packet += 1;
        self.next_packet
    }

    /// A packet that has its id leaves.
    pub(super) fn hand_out(&mut self, packet: Packet) -> u64 {
        let id = packet.id;
        self.stats.add(Counter::FramesOut, 1);
        self.stats.add(Counter::BytesOut, packet.payload.len());
        if packet.lane == Lane::Reliable {
            self.reliable.add(packet.payload.len());
        }
        self.outputs.push_back(Output::Transmit(packet));
        id
    }
}

/// The largest length up to `limit` at which the text can be cut.
pub(super) fn floor_char(text: &str, limit: usize) -> usize {
    (0..=limit.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}
