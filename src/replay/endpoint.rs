//! Runs one participant's session on virtual time and collects the frames it sends.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use bytes::Bytes;

use super::{
    rpc,
    script::{DecodedFrame, RecordedPacket},
    setup::{NextOwner, Rights, Shown},
};
#[cfg(feature = "deflate")]
use crate::protocol::deflate;
use crate::{
    clock::later,
    protocol::{
        frame::{Frame, Message, Meta, RegisteredTool},
        session::{CallKey, Output, Session},
    },
    recording::{Moment, RpcRecord},
    tool::{CallId, ErrorCode, JobKey},
    transport::{Identity, Lane, Packet, Participant, Peer, Role, StreamPart, StreamParts, TransportEvent},
};

/// Nothing in a session stays open longer, so any longer idle time takes one step.
const LONGEST_SILENCE: Duration = Duration::from_secs(15 * 60);

/// How many sent frames wait for their counterpart in the file; older ones count as missing there.
const MAX_SAID: usize = 1_024;

/// A replayed participant.
pub(super) struct Endpoint {
    pub(super) id: Identity,
    /// It is the recorded participant.
    pub(super) is_home: bool,
    pub(super) home: Identity,
    pub(super) role: Role,
    pub(super) session: Session,
    /// Virtual time. It never goes back.
    pub(super) clock: Instant,
    /// The current position in the file.
    pub(super) entry: usize,
    pub(super) at: Moment,
    /// It uses a fast lane.
    pub(super) is_fast: bool,
    /// It is in the room.
    pub(super) is_here: bool,
    /// Sent frames that have not yet occurred in the file.
    pub(super) said: VecDeque<Said>,
    /// Sent frames so old that they will not occur in the file.
    pub(super) unheard: Vec<Said>,
    said_stanzas: BTreeSet<u32>,
    /// The entries of streams of RPC whose headers it has received.
    begun: BTreeSet<usize>,
    /// The ids of streams of RPC without a payload: the file lacks what the answer says about it.
    pub(super) faulty: BTreeSet<String>,
    pub(super) next_owner: NextOwner,
    pub(super) jobs: BTreeMap<(Identity, CallId), JobKey>,
    pub(super) calls: BTreeMap<CallId, CallKey>,
    /// Its current tools, as they were written.
    pub(super) offered: Vec<RegisteredTool>,
    for_others: BTreeSet<String>,
    rights: Rights,
    /// The session's stanza of frames that the file numbers differently.
    pub(super) numbered: BTreeMap<u32, i32>,
    /// Calls that it was asked to stop.
    pub(super) stopped: BTreeSet<CallId>,
    /// When jobs ended on their own.
    pub(super) aborted: BTreeMap<CallId, Moment>,
    /// When a result arrived that its owner had ended at the limit or because of a stop.
    pub(super) ended_there: BTreeMap<CallId, Instant>,
    /// It received a goodbye.
    pub(super) heard_goodbye: bool,
    /// The session's packet for each packet of the file.
    pub(super) packets: BTreeMap<(u16, u32), u64>,
}

/// A frame that a session sent.
pub(super) struct Said {
    /// The position in the file at that time.
    pub(super) entry: usize,
    pub(super) at: Moment,
    /// The time on its clock.
    pub(super) clock: Instant,
    pub(super) packet: u64,
    pub(super) to: Vec<Identity>,
    /// The lanes on which it was sent so far.
    pub(super) lanes: Vec<Lane>,
    /// Whether it is a message of RPC that was sent as a stream.
    pub(super) is_stream: bool,
    pub(super) decoded: DecodedFrame,
}

impl Endpoint {
    /// Creates a session with the setup that the file implies. `run` distinguishes runs of its program.
    pub(super) fn new(
        who: &Participant,
        shown: &Shown,
        (home, room): (&Identity, &str),
        run: u64,
        (entry, at, now): (usize, Moment, Instant),
    ) -> Option<Self> {
        let role = shown.role?;
        let next_owner = NextOwner::default();
        let config = shown.config(room, &next_owner);
        let is_fast = config.lossy;
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&run.to_be_bytes());
        let mut session = match role {
            Role::Assistant => Session::assistant(now, who.clone(), config, seed),
            _ => Session::client(now, who.clone(), config, seed),
        };
        if let Err(error) = session.offer(now, shown.tools()) {
            tracing::debug!(%error, "the tools of a recording cannot be offered");
        }
        let mut end = Self {
            id: who.identity().clone(),
            is_home: who.identity() == home,
            home: home.clone(),
            role,
            session,
            clock: now,
            entry,
            at,
            is_fast,
            is_here: true,
            said: VecDeque::new(),
            unheard: Vec::new(),
            said_stanzas: BTreeSet::new(),
            begun: BTreeSet::new(),
            faulty: BTreeSet::new(),
            next_owner,
            jobs: BTreeMap::new(),
            calls: BTreeMap::new(),
            offered: shown.offered.clone().unwrap_or_default(),
            for_others: shown.for_others.clone(),
            rights: shown.rights(),
            numbered: BTreeMap::new(),
            stopped: BTreeSet::new(),
            aborted: BTreeMap::new(),
            ended_there: BTreeMap::new(),
            heard_goodbye: false,
            packets: BTreeMap::new(),
        };
        end.listen();
        Some(end)
    }

    /// Advances to this position in the file and handles what is due, in at most this many steps. Returns the number
    /// of steps.
    pub(super) fn run_to(&mut self, entry: usize, at: Moment, now: Instant, most: u64) -> u64 {
        (self.entry, self.at) = (entry, at);
        let quiet = later(self.clock, LONGEST_SILENCE);
        let mut taken = 0;
        while taken < most
            && let Some(due) = self.session.poll_timeout().filter(|due| *due <= now.min(quiet))
        {
            self.time_comes(due);
            taken += 1;
        }
        if now > quiet {
            self.time_comes(now);
        }
        self.clock = self.clock.max(now);
        taken
    }

    /// Handles the next deadline within this time early. Returns false if there is none.
    pub(super) fn hurry(&mut self, most: Instant) -> bool {
        let Some(due) = self.session.poll_timeout().filter(|due| *due <= most) else { return false };
        self.time_comes(due);
        true
    }

    fn time_comes(&mut self, due: Instant) {
        self.clock = self.clock.max(due);
        self.act(Session::handle_timeout);
    }

    /// Applies an input to the session and collects its outputs.
    pub(super) fn act<T>(&mut self, act: impl FnOnce(&mut Session, Instant) -> T) -> T {
        let result = act(&mut self.session, self.clock);
        self.listen();
        result
    }

    /// Announces a participant.
    pub(super) fn joined(&mut self, who: Participant) {
        let who = self.rights.give(who);
        self.act(|session, now| session.handle_event(now, TransportEvent::Joined(who)));
    }

    /// Rejoins under another sid.
    pub(super) fn rejoined(&mut self, local: Participant, present: impl IntoIterator<Item = Participant>) {
        let present = present.into_iter().map(|who| self.rights.give(who)).collect();
        self.act(|session, now| session.handle_rejoined(now, local, present));
    }

    /// Delivers the header of a stream of RPC, whose end is in the file.
    pub(super) fn hear_header(&mut self, recorded: &RecordedPacket, from: &Peer) {
        if let Some(header) = rpc::header(recorded)
            && self.begun.insert(recorded.entry)
        {
            let (from, part) = (from.clone(), StreamPart::Header(header));
            self.act(|session, now| session.handle_event(now, TransportEvent::Stream { from, part }));
        }
    }

    /// Delivers a message of RPC.
    fn hear_rpc(&mut self, recorded: &RecordedPacket, from: &Peer) {
        if let Some(message) = rpc::message(recorded) {
            let from = Some(from.clone());
            return self.act(|session, now| session.handle_event(now, TransportEvent::Rpc { from, message }));
        }
        self.hear_header(recorded, from);
        if let (Some(RpcRecord::Request { fault: Some(_), .. }), Some(decoded)) =
            (&recorded.rpc, &recorded.decoded)
        {
            self.faulty.insert(decoded.about.clone());
        }
        for part in rpc::rest(recorded) {
            let from = from.clone();
            self.act(|session, now| session.handle_event(now, TransportEvent::Stream { from, part }));
        }
    }

    /// Delivers a packet of the file.
    pub(super) fn hear(&mut self, recorded: &RecordedPacket, from: &Peer) {
        if recorded.rpc.is_some() {
            return self.hear_rpc(recorded, from);
        }
        if let Some(decoded) = &recorded.decoded
            && let Message::ControlStop(it) = &decoded.message
        {
            self.stopped.extend(it.target_id.as_deref().map(CallId::known));
            self.heard_goodbye |= decoded.is_goodbye();
        }
        if let Some(Message::ToolUseResult(it)) = recorded.decoded.as_ref().map(|decoded| &decoded.message)
            && it.error_code.as_ref().is_some_and(is_of_a_clock)
        {
            self.ended_there.entry(it.id.clone()).or_insert(self.clock);
        }
        let bytes = recorded.decoded.as_ref().and_then(|decoded| self.as_it_would_read(decoded));
        let bytes = bytes.unwrap_or_else(|| recorded.payload.clone());
        // The session that was recorded read a compressed frame, which it may have refused.
        #[cfg(feature = "deflate")]
        let bytes = if recorded.compressed { deflate::packed_frame(&bytes).into() } else { bytes };
        let (from, lane, stream) = (from.clone(), recorded.lane, recorded.stream);
        let mut packet = Packet::new([self.id.clone()], bytes);
        packet.stream = Some(format!("recorded-{}", recorded.entry).into());
        self.act(|session, now| match lane {
            _ if stream => StreamParts::of(&packet).for_each(|part| {
                session.handle_event(now, TransportEvent::Stream { from: from.clone(), part })
            }),
            Lane::Reliable => session
                .handle_event(now, TransportEvent::packet(from.clone(), Lane::Reliable, packet.payload)),
            Lane::Lossy => {
                session.handle_event(now, TransportEvent::packet(from.clone(), Lane::Lossy, packet.payload))
            }
        });
    }

    /// Rewrites a frame for this session: its own instance and stanzas replace the recorded ones.
    fn as_it_would_read(&self, decoded: &DecodedFrame) -> Option<Bytes> {
        let (frame, mut message) = (&decoded.frame, None);
        let mut meta = meta_of(frame);
        if frame.meta_str("bridge.to").is_some() && !self.for_others.contains(&decoded.about) {
            meta.set_text("bridge.to", &self.session.address());
            if let Some(carried) = frame.meta_get("bridge.acks") {
                let recorded: Vec<(i32, u64)> = carried.decode().ok()?;
                let now = |(stanza, held)| Some((*self.numbered.get(&i32::unsigned_abs(stanza))?, held));
                let stanzas: Vec<(i32, u64)> = recorded.into_iter().filter_map(now).collect();
                meta.set("bridge.acks", stanzas).ok()?;
            }
        } else if let Message::Acknowledgement(it) = &decoded.message {
            let stanza = it.acknowledged_stanza_id?.unsigned_abs();
            let stanza = *self.numbered.get(&stanza)?;
            let mut it = it.clone();
            it.acknowledged_stanza_id = Some(stanza);
            message = Some(Message::Acknowledgement(it));
        } else {
            return None;
        }
        let (stanza, room) = (frame.stanza_id()?, frame.conversation_id().unwrap_or_default());
        if let Some(message) = message {
            return Frame::write(stanza, room, &meta, &message).ok();
        }
        let mut out = Vec::new();
        Frame::relay(&mut out, stanza, room, &meta, frame.kind(), frame.body_bytes()).ok()?;
        Some(out.into())
    }

    /// Collects the session's outputs.
    fn listen(&mut self) {
        while let Some(output) = self.session.poll_output() {
            match output {
                Output::Transmit(packet) => self.says(packet),
                Output::Execute(job) => {
                    self.jobs.insert((job.caller, job.call), job.key);
                }
                Output::Select(selection) => {
                    self.session.select(self.clock, selection.key, selection.evaluate());
                }
                Output::Ask(question) => self.session.consent(self.clock, question.key, true),
                Output::Abort { key, .. } => {
                    let job = self.jobs.iter().find(|(_, job)| **job == key).map(|(job, _)| job.clone());
                    if let Some(job) = job {
                        self.jobs.remove(&job);
                        self.aborted.insert(job.1, self.at);
                    }
                }
                Output::Settled { .. } | Output::Event(_) => {}
            }
        }
    }

    fn says(&mut self, packet: Packet) {
        let rpc = RpcRecord::frame_of(&packet);
        let decoded = match &rpc {
            Some((frame, _)) => DecodedFrame::read_rpc(frame).map(|(decoded, _)| decoded),
            None => DecodedFrame::read(&packet.payload).filter(|it| !it.is_keepalive()),
        };
        let Some(decoded) = decoded else { return };
        // Of the other participants, the file contains only packets to the recorded one.
        if !self.is_home && !packet.to.is_empty() && !packet.to.contains(&self.home) {
            return;
        }
        if let Some(stanza) = decoded.stanza().filter(|stanza| !self.said_stanzas.insert(*stanza)) {
            let before = self.said.iter_mut().find(|said| said.decoded.stanza() == Some(stanza));
            if let Some(before) = before {
                before.lanes.push(packet.lane);
            }
            return;
        }
        if self.said.len() >= MAX_SAID {
            self.unheard.extend(self.said.pop_front());
        }
        self.said.push_back(Said {
            entry: self.entry,
            at: self.at,
            clock: self.clock,
            packet: packet.id,
            to: packet.to,
            lanes: vec![packet.lane],
            is_stream: rpc.is_some_and(|(_, is_stream)| is_stream),
            decoded,
        });
    }
}

/// The frame's whole `meta`.
pub(super) fn meta_of(frame: &Frame) -> Meta {
    let mut meta = Meta::new();
    if let Ok(keys) = frame.meta_body().decode::<BTreeMap<String, serde::de::IgnoredAny>>() {
        for key in keys.into_keys() {
            if let Some(value) = frame.meta_get(&key) {
                meta.set_body(key, value);
            }
        }
    }
    meta
}

/// Whether the limit or a stop ended the call: owner and caller both measure the same limit.
pub(super) fn is_of_a_clock(code: &ErrorCode) -> bool {
    [ErrorCode::TIMEOUT, ErrorCode::CANCELLED].contains(code)
}
