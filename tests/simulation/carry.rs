//! How packets leave a process and reach another: on two lanes, and in parts where they are large.

use std::{collections::VecDeque, mem};

use toolbridge::{
    Counter, Identity, Lane, Packet, Peer, STREAM_CHUNK, SendFailure, Session, StreamPart, StreamParts,
    TransportEvent, frame::Frame,
};

use crate::{
    joins::{REPLAY, max_packet},
    judge::part,
    random::Random,
    reach::Reach,
    room::{Happens, Load},
    rules::Rule,
    schedule::{Away, Who},
    trace,
    world::{Program, World},
};

/// The bytes of one chunk: as much smaller than LiveKit's as the packets of a run are.
const CHUNK: usize = 500;

/// What waits on the reliable lane when much does, in bytes.
const CROWD: usize = 5_000;

/// What waits for the connection: only what is large is sent in parts, and what must not pass it waits behind.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    waiting: VecDeque<Packet>,
    stream: Option<Stream>,
    /// How many parts have left: each has dice of its own.
    parts: u64,
}

/// A large packet that is being sent.
#[derive(Debug)]
struct Stream {
    packet: Packet,
    begun: bool,
    parts: VecDeque<StreamPart>,
}

impl World<'_> {
    /// A session hands a packet over.
    pub(crate) fn transmit(&mut self, process: usize, packet: Packet) {
        if !packet.is_addressed() || Frame::decode(packet.payload.clone()).is_err() {
            return self.ledger.broken(Rule::ForWhom, format!("a packet for nobody: {packet:?}"));
        }
        let (who, cast) = (self.processes[process].who, &self.schedule.cast);
        let large = packet.lane == Lane::Reliable && packet.stream.is_some();
        if (large && !cast.has_streams(who)) || (packet.lane == Lane::Lossy && !cast.has_fast_lane(who)) {
            return self.ledger.broken(Rule::ForWhom, format!("{who} has no way for {packet:?}"));
        }
        let max_packet = max_packet(cast.has_streams(who));
        if packet.lane == Lane::Reliable && packet.stream.is_none() && packet.payload.len() > max_packet {
            return self
                .ledger
                .broken(Rule::Caps, format!("{who} sends a packet that is too large: {packet:?}"));
        }
        if !packet.to.iter().all(|to| self.can_take(part(to.as_str()), packet.lane, large)) {
            return self.ledger.broken(Rule::ForWhom, format!("not everybody can take {packet:?}"));
        }
        let it = &mut self.processes[process];
        let given_back = it.cut && self.schedule.weather.away == Away::GivenBack;
        let Some(join) = it.join.filter(|join| self.room.joins[*join].open && !given_back) else {
            return self.does_not_leave(process, &packet);
        };
        let outbox = &mut it.outbox;
        let waits = packet.lane == Lane::Reliable && !packet.overtakes && outbox.stream.is_some();
        if !large && !waits {
            return self.leaves_whole(process, join, packet);
        }
        outbox.waiting.push_back(packet);
        if outbox.stream.is_none() {
            self.next_part(process, join);
        }
    }

    /// Whether this one knows the lossy lane, or streams.
    fn can_take(&self, who: Who, lane: Lane, large: bool) -> bool {
        let cast = &self.schedule.cast;
        let takes_streams = who == Who::O || (self.is_bridge(who) && cast.has_streams(who));
        (!large || takes_streams)
            && (lane == Lane::Reliable || (self.is_bridge(who) && cast.has_fast_lane(who)))
    }

    /// The stranger meddles with a stream that somebody has just begun.
    fn meddles(&mut self, to: &[Identity], dice: &mut Random) {
        let stranger = self.parts.get(&Who::X).and_then(|process| self.processes[*process].join);
        let Some(stranger) = stranger.filter(|_| self.forgeries_count && !self.healed) else { return };
        let peer = self.room.joins[stranger].participant.peer().clone();
        let joins: Vec<_> = to.iter().filter_map(|to| self.room.listed_as(to.as_str())).collect();
        for to in joins {
            for _ in 0..2 {
                let (peer, load) = (peer.clone(), Load::Part(self.forged_part(dice)));
                self.room.after(dice.between(1, 90), Happens::Arrives { peer, to, load });
            }
        }
    }

    /// The next part of a stream leaves; after the last one, what waited behind it.
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
                    self.leaves_whole(process, join, packet);
                } else if session.is_wanted(packet.id) {
                    let parts = parts_of(&packet);
                    it.outbox.stream = Some(Stream { packet, begun: false, parts });
                }
                continue;
            };
            if !session.is_wanted(stream.packet.id) {
                self.abandons(process, join);
                continue;
            }
            let Some(part) = stream.parts.pop_front() else {
                it.outbox.stream = None;
                continue;
            };
            let to = stream.packet.to.clone();
            let frame = (!mem::replace(&mut stream.begun, true)).then(|| stream.packet.payload.clone());
            let ends = stream.parts.is_empty();
            it.outbox.parts += 1;
            let mut dice = Random::of(self.room.seed, &[9, join as u64, it.outbox.parts]);
            if let Some(frame) = frame.and_then(|bytes| Frame::decode(bytes).ok()) {
                trace!(self, "{} begins a stream of {} to {to:?}", it.who, trace::show(&frame));
                self.ledger.sent(process, &frame, Some(&to));
                self.last_stream = part.id().clone();
                self.meddles(&to, &mut Random::of(self.room.seed, &[11, join as u64, dice.next()]));
            }
            self.room.send(join, Some(to), Load::Part(part));
            let wait = if ends { 0 } else { dice.pick(&[0, 3, 15, 40, 120]) };
            return self.room.after(wait, Happens::Part { process, join });
        }
    }

    /// The connection is lost, and another one there: nothing that waited may leave under the new sid.
    pub(crate) fn give_back(&mut self, process: usize) {
        let it = &mut self.processes[process];
        let Outbox { waiting, stream, .. } = mem::take(&mut it.outbox);
        for packet in stream.map(|stream| stream.packet).into_iter().chain(waiting) {
            self.drive(process, |session, now| {
                session.handle_send_failed(now, packet.id, SendFailure::Interrupted)
            });
        }
    }

    /// A process is about to leave: what is large would keep its goodbye.
    pub(crate) fn leave_large_behind(&mut self, process: usize, join: usize) {
        self.abandons(process, join);
        let Outbox { waiting, .. } = mem::take(&mut self.processes[process].outbox);
        for packet in waiting.into_iter().filter(|packet| packet.stream.is_none()) {
            self.leaves_whole(process, join, packet);
        }
    }

    /// Nobody wants any more what is being sent: whoever heard its beginning is told so.
    fn abandons(&mut self, process: usize, join: usize) {
        let Some(Stream { packet, begun, .. }) = self.processes[process].outbox.stream.take() else { return };
        let mut parts = StreamParts::of(&packet);
        if begun {
            parts.next();
        }
        if let Some(trailer) = parts.abandon() {
            self.room.send(join, Some(packet.to), Load::Part(trailer));
        }
    }

    /// A second has begun, in which other things wait: everybody is told now, whether anything else happens or not.
    pub(crate) fn tells_everybody(&mut self) {
        for process in 0..self.processes.len() {
            self.flush(process);
        }
        if !self.healed {
            self.room.after(1_000, Happens::Second);
        }
    }

    /// Tells a session what waits on the reliable lane, if it is told so in this run.
    pub(crate) fn tells_backlog(&mut self, process: usize) -> bool {
        let now = self.now();
        let crowded = {
            let second = self.room.now / 1_000_000;
            let mut dice = Random::of(self.room.seed, &[10, process as u64, second]);
            !self.healed && dice.percent(30)
        };
        let it = &mut self.processes[process];
        let Program::Bridge(session) = &mut it.program else { return false };
        if !self.schedule.weather.crowded {
            return false;
        }
        let stream = it.outbox.stream.iter().map(|stream| &stream.packet);
        let waits: usize = stream.chain(&it.outbox.waiting).map(|packet| packet.payload.len()).sum();
        session.handle_backlog(now, waits + if crowded { CROWD } else { 0 });
        true
    }

    /// Something reached a process.
    pub(crate) fn arrives(&mut self, process: usize, join: usize, peer: &Peer, load: Load) {
        if !self.processes[process].alive {
            return;
        }
        let whole = match &load {
            Load::Packet(_, bytes) => Some(bytes.to_vec()),
            Load::Part(part) => self.put_together(join, peer, part),
        };
        if let Some(frame) = whole.and_then(|bytes| Frame::decode(bytes).ok()) {
            let way = match &load {
                Load::Packet(Lane::Reliable, _) => "",
                Load::Packet(Lane::Lossy, _) => "fast, ",
                Load::Part(_) => "whole, ",
            };
            let who = self.processes[process].who;
            trace!(self, "{who} hears {way}{} of {}", trace::show(&frame), trace::peer(peer));
            self.ledger.received(process, peer, &frame);
            if let Some(instance) = frame.meta_str("bridge.instance") {
                self.last_instance = instance.to_owned();
            }
            if let Program::Watcher | Program::Plain(_) = self.processes[process].program {
                return self.heard_by_others(process, peer, &frame);
            }
        }
        let replayed = self.drive(process, |session, now| {
            let before = session.stats().count(Counter::Retransmitted);
            match load {
                Load::Packet(Lane::Reliable, bytes) => {
                    session.handle_event(now, TransportEvent::packet(peer.clone(), Lane::Reliable, bytes))
                }
                Load::Packet(Lane::Lossy, bytes) => {
                    session.handle_event(now, TransportEvent::packet(peer.clone(), Lane::Lossy, bytes))
                }
                Load::Part(part) => {
                    session.handle_event(now, TransportEvent::Stream { from: peer.clone(), part })
                }
            }
            session.stats().count(Counter::Retransmitted) - before
        });
        self.judge_replay(process, replayed.unwrap_or(0));
        self.judge_goodbye(process, peer);
    }

    /// One input may make so many frames go again. What waited for it has acknowledged what it could before that.
    fn judge_replay(&mut self, process: usize, frames: u64) {
        if frames >= REPLAY {
            self.ledger.reached.note(Reach::ReplayWindowFull);
        }
        if frames > REPLAY {
            let text = format!("one input makes {} replay {frames} frames", self.processes[process].who);
            self.ledger.broken(Rule::Caps, text);
        }
    }

    /// One that the room said has left is not heard any more, not even its goodbye; of another one nothing runs
    /// after it.
    fn judge_goodbye(&mut self, process: usize, peer: &Peer) {
        let Program::Bridge(session) = &self.processes[process].program else { return };
        if !session.participants().iter().any(|who| who.peer() == peer) {
            return;
        }
        let mut jobs = self.processes[process].jobs.values();
        if let Some((id, ..)) = jobs.find(|(id, ..)| self.ledger.is_over(process, peer, id)) {
            let text = format!("{id:?} runs on after the goodbye of {}", trace::peer(peer));
            self.ledger.broken(Rule::Goodbye, text);
        }
    }

    /// The frame that a stream was, if it ends with this part.
    fn put_together(&mut self, join: usize, peer: &Peer, part: &StreamPart) -> Option<Vec<u8>> {
        let streams = &mut self.room.joins[join].streams;
        let key = (peer.clone(), part.id().clone());
        match part {
            StreamPart::Header(_) => {
                streams.insert(key, Vec::new());
                if streams.len() > 1 {
                    self.ledger.reached.note(Reach::StreamsAtOnce);
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

    /// A packet goes as one.
    fn leaves_whole(&mut self, process: usize, join: usize, packet: Packet) {
        let Ok(frame) = Frame::decode(packet.payload.clone()) else { return };
        let to = (!packet.is_broadcast()).then_some(packet.to);
        let way = if packet.lane == Lane::Lossy { "fast, " } else { "" };
        trace!(self, "{} says {way}{} to {to:?}", self.processes[process].who, trace::show(&frame));
        self.ledger.sent(process, &frame, to.as_deref());
        self.room.send(join, to, Load::Packet(packet.lane, packet.payload));
    }

    /// There is no connection: the packet is taken and lost, or given back.
    fn does_not_leave(&mut self, process: usize, packet: &Packet) {
        let why = match self.schedule.weather.away {
            Away::Closed => SendFailure::Closed,
            Away::GivenBack => SendFailure::Interrupted,
            Away::Swallowed => {
                if let Ok(frame) = Frame::decode(packet.payload.clone()) {
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

/// The parts of a large packet, in smaller chunks than LiveKit's.
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
