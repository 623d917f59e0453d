//! One participant's session on virtual time, and what it says.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use bytes::Bytes;

use super::{
    script::{Line, Spoken},
    setup::{NextOwner, Shown},
};
use crate::{
    protocol::{
        frame::{Frame, Message, Meta, RegisteredTool},
        session::{CallKey, JobKey, Output, Session, later},
    },
    recording::Moment,
    tool::{CallId, ErrorCode},
    transport::{Identity, Lane, Packet, Participant, Peer, Role, StreamParts},
};

/// Nothing is open for longer in a session; beyond it a silence of any length is one step.
const LONGEST_SILENCE: Duration = Duration::from_secs(15 * 60);

/// So many frames that the file does not have yet wait for it; the oldest then count as missing in it.
const MAX_SAID: usize = 1_024;

/// A replayed participant.
pub(super) struct End {
    pub(super) id: Identity,
    /// It is the recorded one.
    pub(super) is_home: bool,
    pub(super) home: Identity,
    pub(super) role: Role,
    pub(super) session: Session,
    /// Virtual time. It never goes back.
    pub(super) clock: Instant,
    /// Where the file is.
    pub(super) entry: usize,
    pub(super) at: Moment,
    /// It has a fast lane.
    pub(super) is_fast: bool,
    /// It is in the room.
    pub(super) is_here: bool,
    /// What it said and the file does not have yet.
    pub(super) said: VecDeque<Said>,
    /// What it said so long ago that the file will not have it any more.
    pub(super) unheard: Vec<Said>,
    said_stanzas: BTreeSet<u32>,
    pub(super) next_owner: NextOwner,
    pub(super) jobs: BTreeMap<(Identity, CallId), JobKey>,
    pub(super) calls: BTreeMap<CallId, CallKey>,
    /// What it offers just now, as it was written.
    pub(super) offered: Vec<RegisteredTool>,
    for_others: BTreeSet<String>,
    /// Frames of the file, as the session numbered them where it numbered them otherwise.
    pub(super) numbered: BTreeMap<u32, i32>,
    /// Calls that it was told to stop.
    pub(super) stopped: BTreeSet<CallId>,
    /// When jobs ended by themselves.
    pub(super) aborted: BTreeMap<CallId, Moment>,
    /// When a result of a call came that its owner had ended at its limit, or stopped.
    pub(super) ended_there: BTreeMap<CallId, Instant>,
    /// It was told goodbye.
    pub(super) heard_goodbye: bool,
    /// The session's packet of a packet of the file.
    pub(super) packets: BTreeMap<(u16, u32), u64>,
}

/// A frame that a session said.
pub(super) struct Said {
    /// Where the file was.
    pub(super) entry: usize,
    pub(super) at: Moment,
    /// When, on its clock.
    pub(super) clock: Instant,
    pub(super) packet: u64,
    pub(super) to: Vec<Identity>,
    /// Every lane that it went on so far.
    pub(super) lanes: Vec<Lane>,
    pub(super) spoken: Spoken,
}

impl End {
    /// A session as the file shows it. `run` tells one run of its program from another.
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
            Role::Assistant => Session::assistant(who.clone(), config, seed),
            _ => Session::client(who.clone(), config, seed),
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
            next_owner,
            jobs: BTreeMap::new(),
            calls: BTreeMap::new(),
            offered: shown.offered.clone().unwrap_or_default(),
            for_others: shown.for_others.clone(),
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

    /// The file has come so far: whatever was due by then is done, in so many steps at most. Returns how many it took.
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

    /// The next thing that is due within this time happens now already; false if there is none.
    pub(super) fn hurry(&mut self, most: Instant) -> bool {
        let Some(due) = self.session.poll_timeout().filter(|due| *due <= most) else { return false };
        self.time_comes(due);
        true
    }

    fn time_comes(&mut self, due: Instant) {
        self.clock = self.clock.max(due);
        self.act(Session::handle_timeout);
    }

    /// Gives the session something to do, and listens to what it says.
    pub(super) fn act<T>(&mut self, act: impl FnOnce(&mut Session, Instant) -> T) -> T {
        let result = act(&mut self.session, self.clock);
        self.listen();
        result
    }

    /// A packet of the file reaches it.
    pub(super) fn hear(&mut self, line: &Line, from: &Peer) {
        if let Some(spoken) = &line.spoken
            && let Message::ControlStop(it) = &spoken.message
        {
            self.stopped.extend(it.target_id.as_deref().map(CallId::from));
            self.heard_goodbye |= spoken.is_goodbye();
        }
        if let Some(Message::ToolUseResult(it)) = line.spoken.as_ref().map(|spoken| &spoken.message)
            && it.error_code.as_ref().is_some_and(is_of_a_clock)
        {
            self.ended_there.entry(it.id.clone()).or_insert(self.clock);
        }
        let bytes = line.spoken.as_ref().and_then(|spoken| self.as_it_would_read(spoken, from));
        let bytes = bytes.unwrap_or_else(|| line.payload.clone());
        let (from, lane, stream) = (from.clone(), line.lane, line.stream);
        let mut packet = Packet::new([self.id.clone()], bytes);
        packet.stream = Some(format!("recorded-{}", line.entry).into());
        self.act(|session, now| match lane {
            _ if stream => StreamParts::of(&packet).for_each(|part| session.handle_stream(now, &from, part)),
            Lane::Reliable => session.handle_packet(now, &from, &packet.payload),
            Lane::Lossy => session.handle_lossy_packet(now, &from, &packet.payload),
        });
    }

    /// A frame with what this session calls otherwise than the recorded one: its own instance, its own stanzas.
    fn as_it_would_read(&self, spoken: &Spoken, from: &Peer) -> Option<Bytes> {
        let (frame, mut message) = (&spoken.frame, None);
        let mut meta = meta_of(frame);
        if frame.meta_str("bridge.to").is_some() && !self.for_others.contains(&spoken.about) {
            meta.set_text("bridge.to", &self.session.address_shown_to(from.identity()));
        } else if let Message::Acknowledgement(it) = &spoken.message {
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

    /// Takes what the session gives out.
    fn listen(&mut self) {
        loop {
            while let Some(question) = self.session.poll_question() {
                self.session.consent(self.clock, question.key, true);
            }
            let Some(output) = self.session.poll_output() else { return };
            match output {
                Output::Transmit(packet) => self.says(packet),
                Output::Execute(job) => {
                    self.jobs.insert((job.caller, job.call), job.key);
                }
                Output::Abort(key) => {
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
        let Some(spoken) = Spoken::read(&packet.payload).filter(|it| !it.is_sign_of_life()) else { return };
        // Of the others, the file has what was said to the recorded one.
        if !self.is_home && !packet.to.is_empty() && !packet.to.contains(&self.home) {
            return;
        }
        if let Some(stanza) = spoken.stanza().filter(|stanza| !self.said_stanzas.insert(*stanza)) {
            let before = self.said.iter_mut().find(|said| said.spoken.stanza() == Some(stanza));
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
            spoken,
        });
    }
}

/// All of a frame's `meta`.
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

/// Whether a clock ended the call, or a stop: both ends count one budget.
pub(super) fn is_of_a_clock(code: &ErrorCode) -> bool {
    [ErrorCode::TIMEOUT, ErrorCode::CANCELLED].contains(code)
}
