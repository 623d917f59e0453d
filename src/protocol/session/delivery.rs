//! Sends frames and assembles large ones that arrive: stanza numbers, lanes, sizes, streams and retransmission.

mod arrivals;
mod backlog;
mod compressed;
mod deferred;
mod flight;
mod frames;
mod lane;
mod large;
mod loss;
mod posted;
mod purpose;
mod retransmission;
mod rpc;
mod rpc_text;
mod rtt;
mod streams;

use std::time::Duration;

use bytes::Bytes;

use self::{
    backlog::Backlog, frames::Frames, lane::FastLane, large::Large, posted::Posted,
    retransmission::Retransmission, streams::Streams,
};
pub(super) use self::{
    deferred::ANSWER_SOON,
    frames::NotSent,
    large::{MAX_REFUSALS, STREAM_REFUSED, wait_after_refusals},
    purpose::Purpose,
    retransmission::Retransmit,
    rpc::text_packet,
    rpc_text::RpcText,
    streams::Part,
};
use super::{
    Counter, Destination, Output, SendFrameError,
    context::Context,
    recipients::{Feature, Recipients},
    timers::Timer,
};
use crate::{
    protocol::frame::{Acknowledgement, ErrorMessage, Frame, Kind, Message, Meta},
    sorted::SortedMap,
    tool::CallId,
    transport::{Form, Identity, Lane, Packet, Role, Sid},
    value::{EncodeError, Value, prefix},
};

/// The stanza after which no input is handled. The frames that one input causes still have numbers (`wire.md`, section
/// 2).
pub(super) const LAST_STANZA: u32 = i32::MAX as u32 - 100_000;

/// A frame that was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) stanza: i32,
    /// The size of its packet, in bytes.
    pub(super) size: usize,
}

/// A frame that cannot be sent.
#[derive(Debug)]
pub(super) enum Unfit {
    TooLarge { size: usize, limit: usize },
    Encode(EncodeError),
}

/// All frames in transit.
#[derive(Debug, Default)]
pub(super) struct Delivery {
    /// The last used stanza, as an absolute value.
    stanza: u32,
    last_packet: u64,
    links: SortedMap<Identity, Link>,
    /// What its sender keeps until it is acknowledged.
    frames: Frames,
    /// What nobody else keeps.
    posted: Posted,
    backlog: Backlog,
    /// Frames that arrive in parts.
    streams: Streams,
    /// Frames that are sent in parts.
    large: Large,
}

/// The frames in transit to one peer, under one pair of sids.
#[derive(Debug, Default)]
struct Link {
    lane: FastLane,
    retransmission: Retransmission,
}

/// The delivery to one peer.
#[derive(Debug)]
pub(super) struct To<'a, R> {
    delivery: &'a mut Delivery,
    cx: &'a mut Context,
    peers: &'a R,
    id: &'a Identity,
}

impl Delivery {
    /// Returns whether all stanza numbers are used.
    pub(super) fn is_exhausted(&self) -> bool {
        self.stanza >= LAST_STANZA
    }

    /// Returns the last used stanza, as an absolute value.
    pub(super) fn last_stanza(&self) -> u32 {
        self.stanza
    }

    /// Uses all stanza numbers.
    #[cfg(test)]
    pub(super) fn exhaust(&mut self) {
        self.stanza = LAST_STANZA;
    }

    /// Returns the number of frames that are recorded as unacknowledged.
    #[cfg(test)]
    pub(super) fn records(&self) -> usize {
        self.frames.len()
    }

    /// Returns whether a packet must still be sent.
    pub(super) fn wants(&self, packet: u64) -> bool {
        self.large.wants(packet)
    }

    /// Returns the delivery to one peer.
    pub(super) fn to<'a, R: Recipients>(
        &'a mut self,
        cx: &'a mut Context,
        peers: &'a R,
        id: &'a Identity,
    ) -> To<'a, R> {
        To { delivery: self, cx, peers, id }
    }

    /// Sends each observer a copy of a frame.
    pub(super) fn copy(&mut self, cx: &mut Context, peers: &impl Recipients, meta: &Meta, message: &Message) {
        let observers = peers.observers();
        if observers.is_empty() {
            return;
        }
        if let Err(error) = self.post_to(cx, peers, observers, meta, message) {
            tracing::warn!(?error, "a copy of a frame for observers cannot be sent");
        }
    }

    /// Sends a frame to the whole room.
    pub(super) fn broadcast(
        &mut self,
        cx: &mut Context,
        meta: &Meta,
        message: &Message,
    ) -> Result<(), Unfit> {
        let (stanza, payload) = self.frame(cx, meta, message, cx.config.caps.frames.max_packet)?;
        let mut packet = Packet::broadcast(payload);
        packet.id = self.next_packet();
        self.emit_kept(cx, packet, stanza, Purpose::of(message));
        Ok(())
    }

    /// Sends an application's frame.
    pub(super) fn send_frame(
        &mut self,
        cx: &mut Context,
        peers: &impl Recipients,
        to: Destination,
        kind: Kind,
        meta: &Meta,
        body: Value,
    ) -> Result<(), SendFrameError> {
        let code = kind.code();
        if kind.is_known() {
            // The session acts on its own types: a request or stop that an app wrote itself would belong to
            // no call, no table and no deadline.
            return Err(SendFrameError::Reserved { kind: code });
        }
        let message = Message::Other(code, body);
        let sent = match to {
            Destination::Peers(to) if to.is_empty() => return Err(SendFrameError::NoDestination),
            Destination::Peers(to) => self.post_to(cx, peers, to, meta, &message),
            Destination::Room => self.broadcast(cx, meta, &message),
        };
        sent.map_err(|unfit| match unfit {
            Unfit::TooLarge { size, limit } => SendFrameError::TooLarge { size, limit },
            Unfit::Encode(error) => SendFrameError::Encode(error),
        })
    }

    /// Resets the state of a pair of sids that has ended or begins again. `withdraws` states whether packets that still wait are
    /// dropped. The streams from this join go on: its handshake begins again, and its sender does not learn of that.
    pub(super) fn reset_pair(&mut self, id: &Identity, withdraws: bool, join: Option<&Sid>) {
        self.links.remove(id);
        self.end_streams(id, withdraws, join);
    }

    /// Forgets the frames in transit to this peer, but not its streams.
    pub(super) fn forget_pair(&mut self, id: &Identity) {
        self.links.remove(id);
        self.posted.forget(id);
    }

    /// Forgets the packets to the whole room that were sent under another sid of the local participant.
    pub(super) fn forget_posted_to_room(&mut self) {
        self.posted.forget_room();
    }

    /// Forgets the frames in transit on the fast lane.
    pub(super) fn reset_lane(&mut self, id: &Identity) {
        if let Some(link) = self.links.get_mut(id) {
            link.lane = FastLane::default();
        }
    }

    /// Ends the streams from and to a peer, except those from this join.
    pub(super) fn end_streams(&mut self, id: &Identity, withdraws: bool, join: Option<&Sid>) {
        self.streams.forget(id, join);
        if withdraws {
            self.large.withdraw_all_to(id);
            self.posted.forget(id);
        }
    }

    /// Forgets everything, because no peer can be reached any more.
    pub(super) fn clear(&mut self) {
        // `large` stays: the driver may still send packets that it has queued, and asks `wants` before each.
        // An empty `large` would revive those that were withdrawn.
        self.links.clear();
        self.frames = Frames::default();
        self.posted = Posted::default();
        self.streams = Streams::default();
    }

    /// Sends a frame to several participants.
    pub(super) fn post_to(
        &mut self,
        cx: &mut Context,
        peers: &impl Recipients,
        to: Vec<Identity>,
        meta: &Meta,
        message: &Message,
    ) -> Result<(), Unfit> {
        // One frame goes to all of them, so its limit is that of the peer that takes least.
        let limit = limit_to(cx, peers, &to, message);
        let (stanza, payload) = self.frame(cx, meta, message, limit)?;
        let id = self.next_packet();
        let packet = self.packet_of(cx, peers, id, to, payload, stanza, message);
        self.emit_kept(cx, packet, stanza, Purpose::of(message));
        Ok(())
    }

    /// Encodes a frame under the next stanza. A frame that exceeds the limit uses no stanza.
    fn frame(
        &mut self,
        cx: &Context,
        meta: &Meta,
        message: &Message,
        limit: usize,
    ) -> Result<(i32, Bytes), Unfit> {
        let (next, stanza) = self.next_stanza(cx);
        let encoded = Frame::write(stanza, &cx.config.room, meta, message);
        let payload = encoded.map_err(|error| match error {
            EncodeError::TooLarge { size, limit: most } => Unfit::TooLarge { size, limit: limit.min(most) },
            other => Unfit::Encode(other),
        })?;
        let size = payload.len();
        if size > limit {
            return Err(Unfit::TooLarge { size, limit });
        }
        // Only now, so that a frame that is not sent leaves no gap in the numbers.
        self.stanza = next;
        Ok((stanza, payload))
    }

    /// Returns the next stanza, as an absolute value and on the wire.
    fn next_stanza(&self, cx: &Context) -> (u32, i32) {
        // The assistant counts down from −1 and the client up from 1. Receivers compare absolute values, and
        // the sign gives its sender no right.
        let next = self.stanza.saturating_add(1).min(i32::MAX as u32);
        (next, if cx.local.role == Role::Assistant { -(next as i32) } else { next as i32 })
    }

    /// Uses the next stanza for something that is not a frame.
    fn use_stanza(&mut self, cx: &Context) -> i32 {
        let (next, stanza) = self.next_stanza(cx);
        self.stanza = next;
        stanza
    }

    fn transmit(&mut self, cx: &mut Context, mut packet: Packet) {
        packet.id = self.next_packet();
        self.emit_packet(cx, packet);
    }

    fn next_packet(&mut self) -> u64 {
        self.last_packet += 1;
        self.last_packet
    }

    /// Sends the packets again that were not sent and that nobody else keeps: those to this participant first, or all.
    pub(super) fn send_waiting(&mut self, cx: &mut Context, to: Option<&Identity>) {
        for letter in self.posted.take_waiting(to) {
            let mut packet = letter.packet;
            packet.id = self.next_packet();
            // Under another id, since parts of the stream may have arrived.
            if let Some((subject, _)) = packet.stream.as_deref().and_then(|stream| stream.rsplit_once('.'))
                && packet.form == Form::Data
            {
                packet.stream = Some(format!("{subject}.{}", packet.id).into());
                self.large.note(packet.id, &packet.to, letter.stanza);
            }
            // Frames that have overtaken a Configuration were dropped or read in the plain form.
            if let (Purpose::Latest((kind, _)), [to]) = (&letter.purpose, packet.to.as_slice())
                && *kind == Kind::CONFIGURATION.code()
            {
                cx.set_timer(Timer::Replay(to.clone()), Duration::ZERO);
            }
            self.emit_kept(cx, packet, letter.stanza, letter.purpose);
        }
    }

    /// Outputs a packet that has its id, and keeps its frame until it is acknowledged, or the packet in case that it is not
    /// sent.
    fn emit_kept(&mut self, cx: &mut Context, packet: Packet, stanza: i32, purpose: Purpose) {
        match packet.to.as_slice() {
            [to] if purpose.has_record() => self.frames.note(to, stanza, packet.id, false, purpose),
            _ => self.posted.note(cx.now, &packet, stanza, purpose),
        }
        self.emit_packet(cx, packet);
    }

    /// Outputs a packet that has its id.
    fn emit_packet(&mut self, cx: &mut Context, packet: Packet) {
        cx.count(Counter::FramesOut);
        cx.stats.add(Counter::BytesOut, packet.size());
        if packet.lane == Lane::Reliable {
            self.backlog.add(packet.size());
        }
        cx.output(Output::Transmit(packet));
    }

    /// Builds the packet of a frame. A large packet has the id of its stream. A small one may overtake large ones.
    #[expect(clippy::too_many_arguments, reason = "the parts of one packet")]
    fn packet_of(
        &mut self,
        cx: &Context,
        peers: &impl Recipients,
        id: u64,
        to: Vec<Identity>,
        payload: Bytes,
        stanza: i32,
        message: &Message,
    ) -> Packet {
        let mut packet = Packet::new(to, payload);
        packet.id = id;
        packet.overtakes = may_overtake(peers, &packet.to, message);
        if packet.payload.len() > cx.config.caps.frames.max_packet {
            // The packet's number makes the id unique. A frame that is sent again after a refusal has the
            // same call and stanza, and its receiver must not take it for the stream that it has dropped. A
            // refusal (504) names the stream, and `stream_refused` reads the packet from the end of the id.
            packet.stream = Some(format!("{}.{stanza}.{id}", large::subject(message)).into());
            self.large.note(id, &packet.to, stanza);
        }
        packet
    }
}

impl<R: Recipients> To<'_, R> {
    /// Sends a frame. Without a purpose nobody else keeps it.
    pub(super) fn post(
        &mut self,
        meta: &Meta,
        message: &Message,
        purpose: Option<Purpose>,
    ) -> Result<Sent, Unfit> {
        let limit = limit_to(self.cx, self.peers, std::slice::from_ref(self.id), message);
        let (stanza, payload) = self.delivery.frame(self.cx, meta, message, limit)?;
        let payload = self.with_acknowledgements(stanza, meta, message, payload);
        Ok(self.transmit(stanza, message, payload, purpose))
    }

    /// Sends a frame again, under its stanza. One without a stanza is sent for the first time.
    pub(super) fn post_again(
        &mut self,
        stanza: impl Into<Option<i32>>,
        meta: &Meta,
        message: &Message,
        purpose: Option<Purpose>,
    ) -> Result<Sent, Unfit> {
        let Some(stanza) = stanza.into() else { return self.post(meta, message, purpose) };
        let payload = Frame::write(stanza, &self.cx.config.room, meta, message).map_err(Unfit::Encode)?;
        Ok(self.transmit(stanza, message, payload, purpose))
    }

    /// Sends a frame that is known to be small, or whose loss does no harm.
    pub(super) fn post_small(&mut self, message: &Message, purpose: Option<Purpose>) -> Option<Sent> {
        self.post_small_with(&Meta::default(), message, purpose)
    }

    fn post_small_with(&mut self, meta: &Meta, message: &Message, purpose: Option<Purpose>) -> Option<Sent> {
        let to = self.id;
        let sent = self.post(meta, message, purpose);
        sent.inspect_err(|error| tracing::warn!(%to, ?error, "a frame cannot be sent")).ok()
    }

    /// Acknowledges a frame to a peer that lists acknowledgements.
    pub(super) fn acknowledge(&mut self, stanza: Option<i32>, call: Option<&CallId>) {
        if self.peers.lists(self.id, Feature::Ack) && self.peers.is_reachable(self.id) {
            self.acknowledge_always(stanza, call);
        }
    }

    /// Acknowledges a frame, unless the lane's own rules make that unnecessary.
    pub(super) fn acknowledge_always(&mut self, stanza: Option<i32>, call: Option<&CallId>) {
        let Some(stanza) = stanza.filter(|stanza| *stanza != 0) else { return };
        if !self.answers(stanza, call) {
            self.acknowledge_with(&Meta::default(), stanza, call);
        }
    }

    /// Pings the peer on both lanes.
    pub(super) fn ping(self) {
        self.cx.count(Counter::Pings);
        let Some(mut packet) = keepalive(self.cx, self.id, "ping") else { return };
        // A ping on one lane would test that lane and not the peer. After an outage `_reliable` waits for
        // SCTP's timer, which doubles from 1 s, while `_lossy` answers as soon as the path is back.
        self.delivery.transmit(self.cx, packet.clone());
        if self.delivery.lane_is_open(self.cx, self.peers, self.id) {
            packet.lane = Lane::Lossy;
            self.delivery.transmit(self.cx, packet);
        }
    }

    /// Answers a ping on the lane on which it arrived.
    pub(super) fn pong(self) {
        let Some(mut packet) = keepalive(self.cx, self.id, "pong") else { return };
        if self.delivery.lane_is_open(self.cx, self.peers, self.id) {
            packet.lane = self.delivery.links.get(self.id).map_or(Lane::Reliable, |link| link.lane.last);
        }
        self.delivery.transmit(self.cx, packet);
    }

    /// Reports an error about a frame, a call or a stream to the peer (type 1).
    pub(super) fn report_error(mut self, code: i32, message: &str, about: Option<String>) {
        let error = ErrorMessage {
            id: self.cx.ids.next(),
            conversation_id: self.cx.config.room.clone(),
            code,
            message: message.to_owned(),
            severity: 2,
            recoverable: true,
            originating_id: about.map(|id| prefix(&id, self.cx.config.caps.frames.id_bytes).to_owned()),
        };
        self.post_small(&Message::Error(error), None);
    }

    fn acknowledge_with(&mut self, meta: &Meta, stanza: i32, call: Option<&CallId>) {
        let acknowledgement = Acknowledgement {
            conversation_id: Some(self.cx.config.room.clone()),
            acknowledged_stanza_id: Some(stanza),
            success: Some(true),
            acknowledged_message_id: call.map(|id| id.as_str().to_owned()),
            ..Acknowledgement::default()
        };
        self.post_small_with(meta, &Message::Acknowledgement(acknowledgement), None);
    }

    fn packet_of(&mut self, id: u64, payload: Bytes, stanza: i32, message: &Message) -> Packet {
        self.delivery.packet_of(self.cx, self.peers, id, vec![self.id.clone()], payload, stanza, message)
    }
}

/// Builds the packet of a ping or pong, which has no stanza.
fn keepalive(cx: &Context, to: &Identity, notes: &str) -> Option<Packet> {
    let message = Message::Acknowledgement(Acknowledgement {
        conversation_id: Some(cx.config.room.clone()),
        acknowledged_stanza_id: Some(0),
        notes: Some(notes.to_owned()),
        ..Acknowledgement::default()
    });
    let payload = Frame::write(0, &cx.config.room, &Meta::default(), &message);
    let payload =
        payload.inspect_err(|error| tracing::warn!(%error, "a keepalive cannot be encoded")).ok()?;
    let mut packet = Packet::new([to.clone()], payload);
    packet.overtakes = true;
    Some(packet)
}

/// Returns the size of the largest frame that may be sent to these participants, in bytes.
fn limit_to(cx: &Context, peers: &impl Recipients, to: &[Identity], message: &Message) -> usize {
    let caps = &cx.config.caps;
    if !cx.config.streams || !to.iter().all(|id| peers.takes_large_frames(id)) {
        return caps.frames.max_packet;
    }
    // The assistant waits for a client's answers, and accepts large ones. The client's other frames have the lower
    // limit for unexpected frames.
    let is_awaited = !cx.is_client() || matches!(message, Message::ToolUseResult(_));
    caps.frames.largest_of(is_awaited).max(caps.frames.max_packet)
}

/// Returns whether a frame may overtake large ones. Acknowledgements may, and so may stops, which the receiver
/// remembers if they arrive before their request. A goodbye must not overtake the frames before it.
fn may_overtake(peers: &impl Recipients, to: &[Identity], message: &Message) -> bool {
    let remembers = |id: &Identity| peers.lists(id, Feature::Cancel);
    match message {
        Message::Acknowledgement(_) => true,
        Message::ControlStop(stop) => stop.stop_type.is_none() && to.iter().all(remembers),
        _ => false,
    }
}
