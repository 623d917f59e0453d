//! How packets leave a process and arrive at another: reliable or lossy, and large ones as byte streams.

use std::{collections::VecDeque, mem};

use toolbridge::{
    Identity,
    frame::Frame,
    session::{Counter, SendFailure},
    transport::{Form, Lane, Packet, Peer, STREAM_CHUNK, StreamPart, StreamParts, TransportEvent},
};

use crate::{
    checks::actor_of,
    joins::{RETRANSMIT_WINDOW, max_packet},
    random::Random,
    reach::Reach,
    room::{Load, Scheduled},
    rules::Rule,
    schedule::{Actor, Offline},
    session::Session,
    trace,
    world::{Program, World},
};

/// Bytes of a stream chunk: smaller than LiveKit's, as the packets of a run are.
const CHUNK: usize = 500;

/// Simulated backlog of the reliable lane, in bytes.
const BACKLOG: usize = 5_000;

/// Packets that wait to be sent: large ones, which leave as streams, and those that must not overtake them.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    waiting: VecDeque<Packet>,
    stream: Option<Stream>,
    /// How many parts have been sent: each has its own random numbers.
    parts: u64,
}

/// A large packet that is being sent as a stream.
#[derive(Debug)]
struct Stream {
    packet: Packet,
    begun: bool,
    parts: VecDeque<StreamPart>,
}

/// The first byte of a compressed frame.
const COMPRESSED: u8 = 0xc1;

/// Returns the frame in a packet, which may be compressed.
pub(crate) fn frame_of(packet: &[u8]) -> Option<Frame> {
    #[cfg(feature = "deflate")]
    if let Some((&[COMPRESSED, ..], stream)) = packet.split_first_chunk::<5>() {
        let mut frame = Vec::new();
        std::io::Read::read_to_end(&mut flate2::read::DeflateDecoder::new(stream), &mut frame).ok()?;
        return Frame::decode(frame).ok();
    }
    Frame::decode(packet.to_vec()).ok()
}

impl World<'_> {
    /// Sends a packet of a session, after checking that its receivers can take it.
    pub(crate) fn transmit(&mut self, process: usize, packet: Packet) {
        let is_data = matches!(packet.form, Form::Data);
        if !is_data && !self.is_request(process, &packet) {
            return;
        }
        if !packet.is_addressed() || is_data && frame_of(&packet.payload).is_none() {
            return self.ledger.broken(Rule::Receivers, format!("a packet without receivers: {packet:?}"));
        }
        if packet.payload.first() == Some(&COMPRESSED) {
            self.ledger.reached.note(Reach::FrameCompressed);
        }
        let (actor, cast) = (self.processes[process].actor, &self.schedule.cast);
        let large = packet.lane == Lane::Reliable && packet.stream.is_some();
        if (large && !cast.has_streams(actor)) || (packet.lane == Lane::Lossy && !cast.has_lossy_lane(actor))
        {
            return self
                .ledger
                .broken(Rule::Receivers, format!("the transport of {actor} cannot send {packet:?}"));
        }
        let max_packet = max_packet(cast.has_streams(actor));
        if is_data
            && packet.lane == Lane::Reliable
            && packet.stream.is_none()
            && packet.payload.len() > max_packet
        {
            return self
                .ledger
                .broken(Rule::Caps, format!("{actor} sends a packet that is too large: {packet:?}"));
        }
        if is_data && !packet.to.iter().all(|to| self.can_take(actor_of(to.as_str()), packet.lane, large)) {
            return self.ledger.broken(Rule::Receivers, format!("not every receiver can take {packet:?}"));
        }
        let it = &mut self.processes[process];
        let interrupted = it.cut && self.schedule.network.offline == Offline::Interrupted;
        let Some(join) = it.join.filter(|join| self.room.joins[*join].open && !interrupted) else {
            return self.fail_send(process, &packet);
        };
        if let Some((until, percent)) = it.refuses.filter(|_| !self.recovered)
            && self.room.now < until
            && Random::of(self.room.seed, &[21, process as u64, self.room.now / 10_000]).percent(percent)
        {
            self.ledger.reached.note(Reach::PacketRefused);
            let now = self.now();
            if let Program::Bridge(session) = &mut self.processes[process].program {
                session.handle_send_failed(now, packet.id, SendFailure::QueueFull);
            }
            return;
        }
        let outbox = &mut it.outbox;
        let waits = packet.lane == Lane::Reliable && !packet.overtakes && outbox.stream.is_some();
        if !large && !waits {
            return self.send_whole(process, join, packet);
        }
        outbox.waiting.push_back(packet);
        if outbox.stream.is_none() {
            self.next_part(process, join);
        }
    }

    /// Returns whether this actor can receive such a packet.
    fn can_take(&self, actor: Actor, lane: Lane, large: bool) -> bool {
        let cast = &self.schedule.cast;
        let takes_streams = actor == Actor::Observer || (self.has_session(actor) && cast.has_streams(actor));
        actor != Actor::App
            && (!large || takes_streams)
            && (lane == Lane::Reliable || (self.has_session(actor) && cast.has_lossy_lane(actor)))
    }

    /// The stranger sends parts under the id of a stream that has just started.
    fn forge_parts(&mut self, to: &[Identity], dice: &mut Random) {
        let stranger = self.current.get(&Actor::Stranger).and_then(|process| self.processes[*process].join);
        let Some(stranger) = stranger.filter(|_| !self.recovered) else { return };
        let peer = self.room.joins[stranger].participant.peer().clone();
        let joins: Vec<_> = to.iter().filter_map(|to| self.room.listed_as(to.as_str())).collect();
        for to in joins {
            for _ in 0..2 {
                let (peer, load) = (peer.clone(), Load::Part(self.forged_part(dice)));
                self.forged_arrives(dice.between(1, 90), peer, to, load);
            }
        }
    }

    /// Sends the next part of a stream; after the last part, the packets that waited behind it.
    pub(crate) fn next_part(&mut self, process: usize, join: usize) {
        loop {
            let it = &mut self.processes[process];
            if it.join != Some(join) || !it.alive {
                return;
            }
            let Program::Bridge(session) = &it.program else { return };
            let Some(stream) = &mut it.outbox.stream else {
                let Some(packet) = it.outbox.waiting.pop_front() else { return };
                if packet.stream.is_none() {
                    self.send_whole(process, join, packet);
                } else if session.is_wanted(packet.id) {
                    let parts = parts_of(&packet);
                    it.outbox.stream = Some(Stream { packet, begun: false, parts });
                }
                continue;
            };
            if !session.is_wanted(stream.packet.id) {
                self.abandon_stream(process, join);
                continue;
            }
            let Some(part) = stream.parts.pop_front() else {
                it.outbox.stream = None;
                continue;
            };
            let to = stream.packet.to.clone();
            let frame = (!mem::replace(&mut stream.begun, true)).then(|| stream.packet.payload.clone());
            let text = (frame.is_some() && !matches!(stream.packet.form, Form::Data)).then(|| part.clone());
            let ends = stream.parts.is_empty();
            it.outbox.parts += 1;
            let mut dice = Random::of(self.room.seed, &[9, join as u64, it.outbox.parts]);
            if let Some(frame) = frame.and_then(|bytes| frame_of(&bytes)) {
                trace!(self, "{} starts a stream of {} to {to:?}", it.actor, trace::show(&frame));
                self.ledger.sent(process, &frame, Some(&to));
                self.last_stream = part.id().clone();
                self.forge_parts(&to, &mut Random::of(self.room.seed, &[11, join as u64, dice.next()]));
            }
            if let Some(StreamPart::Header(header)) = text {
                trace!(self, "{} starts {header:?}", self.processes[process].actor);
                self.ledger.stream_leaves(&header);
            }
            self.room.send(join, Some(to), Load::Part(part));
            let wait = if ends { 0 } else { dice.pick(&[0, 3, 15, 40, 120]) };
            return self.room.after(wait, Scheduled::Part { process, join });
        }
    }

    /// Returns the waiting packets to the session after a rejoin: none of them may leave under the new sid.
    pub(crate) fn return_waiting(&mut self, process: usize) {
        let it = &mut self.processes[process];
        let Outbox { waiting, stream, .. } = mem::take(&mut it.outbox);
        // A request that has left is not sent again.
        let stream =
            stream.filter(|it| !it.parts.is_empty() || !it.begun || matches!(it.packet.form, Form::Data));
        for packet in stream.map(|stream| stream.packet).into_iter().chain(waiting) {
            self.drive(process, |session, now| {
                session.handle_send_failed(now, packet.id, SendFailure::Interrupted)
            });
        }
    }

    /// Abandons large packets before a process leaves: they would delay its goodbye.
    pub(crate) fn abandon_large(&mut self, process: usize, join: usize) {
        self.abandon_stream(process, join);
        let Outbox { waiting, .. } = mem::take(&mut self.processes[process].outbox);
        for packet in waiting.into_iter().filter(|packet| packet.stream.is_none()) {
            self.send_whole(process, join, packet);
        }
    }

    /// Abandons the current stream; its receivers get a trailer that says so.
    fn abandon_stream(&mut self, process: usize, join: usize) {
        let Some(Stream { packet, begun, .. }) = self.processes[process].outbox.stream.take() else { return };
        let mut parts = StreamParts::of(&packet);
        if begun {
            parts.next();
        }
        if let Some(trailer) = parts.abandon() {
            self.room.send(join, Some(packet.to), Load::Part(trailer));
        }
    }

    /// Reports the backlog of a new second to every session.
    pub(crate) fn report_backlogs(&mut self) {
        for process in 0..self.processes.len() {
            self.flush(process);
        }
        if !self.recovered {
            self.room.after(1_000, Scheduled::BacklogChanges);
        }
    }

    /// Reports the backlog of the reliable lane to a session, if this run simulates one.
    pub(crate) fn report_backlog(&mut self, process: usize) -> bool {
        let now = self.now();
        let backlog = {
            let second = self.room.now / 1_000_000;
            let mut dice = Random::of(self.room.seed, &[10, process as u64, second]);
            !self.recovered && dice.percent(30)
        };
        let it = &mut self.processes[process];
        let Program::Bridge(session) = &mut it.program else { return false };
        if !self.schedule.network.backlog {
            return false;
        }
        let stream = it.outbox.stream.iter().map(|stream| &stream.packet);
        let waits: usize = stream.chain(&it.outbox.waiting).map(|packet| packet.payload.len()).sum();
        session.handle_backlog(now, waits + if backlog { BACKLOG } else { 0 });
        true
    }

    /// Passes a packet or a part of a stream to its process.
    pub(crate) fn arrives(&mut self, process: usize, join: usize, peer: &Peer, load: Load) {
        if !self.processes[process].alive {
            return;
        }
        if let Program::App(_) = self.processes[process].program {
            return self.app_receives(process, peer, load);
        }
        let whole = match &load {
            Load::Packet(_, bytes) => Some(bytes.to_vec()),
            Load::Rpc(_) => None,
            Load::Part(part) => self.reassemble(join, peer, part),
        };
        if let Some(frame) = whole.and_then(|bytes| frame_of(&bytes)) {
            let lane = match &load {
                Load::Packet(Lane::Reliable, _) => "",
                Load::Packet(Lane::Lossy, _) => "lossy, ",
                Load::Part(_) | Load::Rpc(_) => "stream, ",
            };
            let actor = self.processes[process].actor;
            trace!(self, "{actor} receives {lane}{} from {}", trace::show(&frame), trace::peer(peer));
            self.ledger.received(process, peer, &frame);
            if let Some(instance) = frame.meta_str("bridge.instance") {
                self.last_instance = instance.to_owned();
            }
            if let Program::Listener | Program::Plain(_) = self.processes[process].program {
                return self.received_without_session(process, peer, &frame);
            }
        }
        let retransmitted = self.drive(process, |session, now| {
            let before = session.stats().count(Counter::Retransmitted);
            match load {
                Load::Packet(Lane::Reliable, bytes) => {
                    session.handle_event(now, TransportEvent::packet(peer.clone(), Lane::Reliable, bytes))
                }
                Load::Packet(Lane::Lossy, bytes) => {
                    session.handle_event(now, TransportEvent::packet(peer.clone(), Lane::Lossy, bytes))
                }
                Load::Rpc(message) => {
                    let from = Some(peer.clone()).filter(|it| !it.identity().as_str().is_empty());
                    session.handle_event(now, TransportEvent::Rpc { from, message })
                }
                Load::Part(part) => {
                    session.handle_event(now, TransportEvent::Stream { from: peer.clone(), part })
                }
            }
            session.stats().count(Counter::Retransmitted) - before
        });
        self.check_retransmission(process, retransmitted.unwrap_or(0));
        self.check_goodbye(process, peer);
    }

    /// Checks how many frames one input makes a session retransmit.
    fn check_retransmission(&mut self, process: usize, frames: u64) {
        if frames >= RETRANSMIT_WINDOW {
            self.ledger.reached.note(Reach::RetransmitWindowFull);
        }
        if frames > RETRANSMIT_WINDOW {
            let text =
                format!("{} retransmits {frames} frames after one input", self.processes[process].actor);
            self.ledger.broken(Rule::Caps, text);
        }
    }

    /// Checks that no call of a peer runs after its goodbye. Sessions ignore the goodbye of a peer that has left.
    fn check_goodbye(&mut self, process: usize, peer: &Peer) {
        let Program::Bridge(session) = &self.processes[process].program else { return };
        if !session.participants().iter().any(|participant| participant.peer() == peer) {
            return;
        }
        let mut jobs = self.processes[process].jobs.values();
        if let Some((id, ..)) = jobs.find(|(id, ..)| self.ledger.is_over(process, peer, id)) {
            let text = format!("{id:?} still runs after the goodbye of {}", trace::peer(peer));
            self.ledger.broken(Rule::Goodbye, text);
        }
    }

    /// Adds a part to its stream; returns the whole frame if this is the last part.
    fn reassemble(&mut self, join: usize, peer: &Peer, part: &StreamPart) -> Option<Vec<u8>> {
        let streams = &mut self.room.joins[join].streams;
        let key = (peer.clone(), part.id().clone());
        match part {
            StreamPart::Header(_) => {
                streams.insert(key, Vec::new());
                if streams.len() > 1 {
                    self.ledger.reached.note(Reach::ConcurrentStreams);
                }
                None
            }
            StreamPart::Chunk { bytes, .. } => {
                streams.get_mut(&key)?.extend_from_slice(bytes);
                None
            }
            StreamPart::Trailer { reason, .. } => streams.remove(&key).filter(|_| reason.is_empty()),
        }
    }

    /// Sends a packet that is not a stream.
    fn send_whole(&mut self, process: usize, join: usize, packet: Packet) {
        if let Form::Rpc(message) = packet.form {
            trace!(self, "{} sends {message:?}", self.processes[process].actor);
            self.ledger.request_leaves(&message);
            return self.room.send(join, Some(packet.to), Load::Rpc(message));
        }
        let Some(frame) = frame_of(&packet.payload) else { return };
        let to = (!packet.is_broadcast()).then_some(packet.to);
        let lane = if packet.lane == Lane::Lossy { "lossy, " } else { "" };
        trace!(self, "{} sends {lane}{} to {to:?}", self.processes[process].actor, trace::show(&frame));
        self.ledger.sent(process, &frame, to.as_deref());
        self.room.send(join, to, Load::Packet(packet.lane, packet.payload));
    }

    /// Handles a packet while there is no connection: it is lost, or the send fails.
    fn fail_send(&mut self, process: usize, packet: &Packet) {
        let why = match self.schedule.network.offline {
            Offline::Closed => SendFailure::Closed,
            Offline::Interrupted => SendFailure::Interrupted,
            Offline::Lost => {
                if let Some(frame) = frame_of(&packet.payload) {
                    let to = (!packet.is_broadcast()).then_some(&*packet.to);
                    self.ledger.sent(process, &frame, to);
                }
                return;
            }
        };
        let now = self.now();
        if let Program::Bridge(session) = &mut self.processes[process].program {
            Session::handle_send_failed(session, now, packet.id, why);
        }
    }
}

/// Splits a large packet into parts with smaller chunks than LiveKit's.
fn parts_of(packet: &Packet) -> VecDeque<StreamPart> {
    const { assert!(CHUNK < STREAM_CHUNK) }
    let smaller = |part| match part {
        StreamPart::Chunk { id, bytes, .. } => (0..bytes.len().div_ceil(CHUNK))
            .map(|at| {
                let bytes = bytes.slice(at * CHUNK..bytes.len().min((at + 1) * CHUNK));
                StreamPart::Chunk { id: id.clone(), index: at as u64, bytes }
            })
            .collect(),
        other => vec![other],
    };
    StreamParts::of(packet).flat_map(smaller).collect()
}
