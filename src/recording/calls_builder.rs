//! From entries to calls: frames of one id, put together as they come.

mod answer;
mod index;
mod observer;
mod tracked_call;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque, hash_map};

use sha2::{Digest, Sha256};

pub(super) use self::tracked_call::beginning;
use self::tracked_call::{TrackedCall, content_of, limit_of, shortened};
use super::{
    Decoded, Direction, Entry, Happened, Moment, REDACTED, Recorded, RecordedCall, RecordedOutcome,
    RoomEvent, original::value_size,
};
use crate::{
    protocol::frame::{Frame, Message, ToolUseRequest},
    tool::{CallId, ErrorCode, Execution, ProgressStatus},
    transport::{Identity, Role},
};

/// The memory that the calls of a recording may take, in bytes: 110,000 ordinary ones. When they take more, the one that was
/// settled first goes, and is counted.
const MAX_KEPT: usize = 96 * 1024 * 1024;

/// The most places of frames that are kept, of all calls together: 16 MB. Later frames count, and are not listed.
const MAX_PLACES: usize = 2_000_000;

/// The longest id of a call, or name of a tool, in bytes; a call with a longer id is not folded. Ours have 21, and 64.
const MAX_WORD: usize = 256;

/// How much of a failure's text is kept, in bytes.
const MAX_TEXT: usize = 1_024;

/// Of how many participants it is remembered what they are and offer.
const MAX_PARTICIPANTS: usize = 1_024;

/// How many requests of one call are told apart by their stanza, and how many owners by name.
const MAX_AGAIN: usize = 16;

/// Among how many calls of one id, the latest ones, the one is looked for that a frame fits. A caller finds its own call
/// among any number.
const MAX_ALIKE: usize = 16;

/// How many tools of one participant are remembered; it may offer 128.
const MAX_OFFERED: usize = 256;

/// The memory that the names of offered tools may take, in bytes.
const MAX_OFFERS: usize = 8 * 1024 * 1024;

/// The calls of a recording, in the order in which they first appear.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Calls {
    /// The calls, as many as 96 MiB can hold: about 110,000, fewer if their names and messages are long.
    pub calls: Vec<RecordedCall>,
    /// How many more there were: those that were settled first are left out.
    pub dropped: u64,
}

/// The calls of a recording.
///
/// A call is a caller and an id. Only its owner's result settles it: whoever the request went to, or, where an
/// observer cannot know that, whoever answers first; but for the answer of one that does not offer the tool, where
/// another one offers it and answers, too. What an observer was sent as a copy counts as what it copies, and a copy of
/// a result may come before that of its request. An observer hears no acknowledgements.
///
/// ```
/// use toolbridge::recording::{Direction, Entry, Happened, Moment, Recorded, RecordedOutcome, calls};
/// use toolbridge::{Lane, Peer, protocol::frame::Frame};
///
/// let said = |at, direction, from: &str, json: &str| Entry {
///     at: Moment(at),
///     what: Happened::Packet(Recorded {
///         direction,
///         from: Peer::new(from, "PA_1"),
///         to: Vec::new(),
///         topic: "toolbridge".into(),
///         lane: Lane::Reliable,
///         stream: false,
///         channel: 0,
///         sequence: 0,
///         payload: Frame::from_json(json).unwrap().into_bytes(),
///     }),
/// };
/// let request = r#"{"type": 6, "body": {"id": "a", "toolName": "lamp", "execution": "client"}}"#;
/// let result = r#"{"type": 7, "body": {"id": "a", "success": true}}"#;
/// let calls = calls([
///     said(1_000, Direction::Heard, "assistant", request),
///     said(3_000, Direction::Sent, "phone", result),
/// ]);
/// assert_eq!(calls.calls[0].tool, "lamp");
/// assert_eq!(calls.calls[0].outcome, RecordedOutcome::Ok);
/// assert_eq!(calls.calls[0].settled, Some(Moment(3_000)));
/// ```
pub fn calls(entries: impl IntoIterator<Item = Entry>) -> Calls {
    let mut builder = CallsBuilder::default();
    for entry in entries {
        builder.push(&entry);
    }
    builder.finish()
}

/// What a frame was to its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallUpdate {
    /// Its first request.
    Requested,
    /// A repetition, or a copy, of its request; or the same call asked of somebody else.
    RequestRepeated,
    /// The same id with another tool or other parameters.
    RequestChanged,
    /// Its first result, or the error in its place.
    Settled,
    /// The same, of somebody who does not offer the tool, though others do: an observer cannot know who was asked.
    SettledUncertain,
    /// The same, of somebody who offers the tool, after one who does not had answered.
    SettledByOwner,
    /// The same result again.
    ResultRepeated,
    /// Another result than before.
    ResultChanged,
    /// Its caller stopped it.
    Stopped,
    /// A result, progress, claim or refusal of somebody who does not own it.
    WrongSender,
    /// Anything else.
    Other,
}

/// Builds the calls of a recording entry by entry; [`calls`] does it in one step.
#[derive(Debug)]
pub struct CallsBuilder {
    /// How many entries were taken by [`push`](Self::push).
    entries: usize,
    tracked: BTreeMap<u64, TrackedCall>,
    next: u64,
    keys: HashMap<(CallId, Identity), u64>,
    /// The latest calls of an id, the oldest first.
    ids: HashMap<CallId, VecDeque<u64>>,
    /// By a request's sender and stanza: plain peers acknowledge those alone.
    stanzas: HashMap<(Identity, i32), u64>,
    /// In the order in which they were settled.
    settled: VecDeque<u64>,
    here: Identity,
    observers: HashSet<Identity>,
    offers: HashMap<Identity, HashSet<String>>,
    /// How many participants offer each tool.
    offered: HashMap<String, usize>,
    /// The memory that the names in `offers` take.
    offers_kept: usize,
    dropped: u64,
    places: usize,
    /// The memory that calls take.
    kept: usize,
    most: usize,
}

impl Default for CallsBuilder {
    fn default() -> Self {
        Self {
            entries: 0,
            tracked: BTreeMap::new(),
            next: 0,
            keys: HashMap::new(),
            ids: HashMap::new(),
            stanzas: HashMap::new(),
            settled: VecDeque::new(),
            here: Identity::from(""),
            observers: HashSet::new(),
            offers: HashMap::new(),
            offered: HashMap::new(),
            offers_kept: 0,
            dropped: 0,
            places: 0,
            kept: 0,
            most: MAX_KEPT,
        }
    }
}

impl CallsBuilder {
    /// Takes the next entry, and returns the call that it belongs to, as it is known so far. The first entry counts as
    /// number 0 in [`RecordedCall::entries`].
    pub fn push(&mut self, entry: &Entry) -> Option<&RecordedCall> {
        let index = self.entries;
        self.entries += 1;
        let (serial, _) = self.push_decoded(index, entry, None)?;
        self.call(serial)
    }

    /// Takes the next entry, and returns the call's number and what the entry was to it. Pass the frame if it is decoded
    /// already.
    pub(crate) fn push_decoded(
        &mut self,
        index: usize,
        entry: &Entry,
        decoded: Option<&Decoded>,
    ) -> Option<(u64, CallUpdate)> {
        let packet = match &entry.what {
            Happened::Event(RoomEvent::Unasked { call, tool, code, message, took_ms }) => {
                let call = &CallId::from(call.as_str());
                let serial = self.unasked(entry.at, call, tool, (code, message), *took_ms)?;
                self.note(serial, index);
                return Some((serial, CallUpdate::Other));
            }
            Happened::Event(event) => {
                self.handle_event(event);
                return None;
            }
            Happened::Packet(packet) => packet,
        };
        let read;
        let decoded = match decoded {
            Some(decoded) => decoded,
            None => {
                read = Decoded::of(packet);
                &read
            }
        };
        let Decoded::Frame(frame, message) = decoded else { return None };
        let (serial, told) = match message {
            Message::ToolUseRequest(request) => self.request(entry.at, packet, frame, request)?,
            Message::ToolUseResult(result) => self.result(entry.at, packet, frame, result)?,
            Message::ToolProgress(progress) => {
                let serial = match self.find(packet, progress.id.as_str()) {
                    Some(serial) => serial,
                    None => self.insert_unrequested(&progress.id)?,
                };
                let began = progress.status != ProgressStatus::Pending;
                self.by_owner(serial, packet, |call| {
                    if began {
                        call.started.get_or_insert(entry.at);
                    }
                })?
            }
            Message::Acknowledgement(ack) => {
                let serial = match ack.acknowledged_message_id.as_deref() {
                    Some(id) => self.find(packet, id)?,
                    None => self.find_by_stanza(packet, ack.acknowledged_stanza_id?)?,
                };
                let claims = ack.notes.as_deref() == Some("claim");
                if self.tracked.get(&serial)?.call.caller == *packet.from.identity() {
                    (serial, CallUpdate::Other)
                } else if !claims && !self.surely_may_answer(serial, packet.from.identity()) {
                    // It says nothing of the answer, and so it harms nobody.
                    return None;
                } else {
                    self.by_owner(serial, packet, |call| {
                        call.delivered.get_or_insert(entry.at);
                    })?
                }
            }
            Message::ControlStop(stop) => {
                let serial = self.find(packet, stop.target_id.as_deref()?)?;
                self.stop(entry.at, serial, packet)?
            }
            Message::Error(error) => {
                let serial = self.find(packet, error.originating_id.as_deref()?)?;
                if self.tracked.get(&serial)?.call.caller == *packet.from.identity() {
                    (serial, CallUpdate::Other)
                } else {
                    let outcome = RecordedOutcome::Failed {
                        code: ErrorCode::from(format!("error {}", error.code)),
                        message: Some(shortened(&error.message)),
                    };
                    let answer = Sha256::digest(format!("error {}", error.code)).into();
                    self.settle(entry.at, serial, packet, outcome, None, answer)?
                }
            }
            _ => {
                if let Message::ToolsRegister(register) = message {
                    let names = register.tools.iter().map(|tool| tool.name.as_str());
                    self.offer(packet.from.identity(), names);
                }
                return None;
            }
        };
        self.note(serial, index);
        Some((serial, told))
    }

    /// Notes an entry of a call.
    fn note(&mut self, serial: u64, index: usize) {
        if let Some(tracked_call) = self.tracked.get_mut(&serial)
            && self.places < MAX_PLACES
        {
            tracked_call.call.entries.push(index);
            self.places += 1;
        }
        self.weigh(serial);
    }

    /// A call that nobody was asked to run.
    fn unasked(
        &mut self,
        at: Moment,
        id: &CallId,
        tool: &str,
        (code, message): (&str, &str),
        took_ms: u64,
    ) -> Option<u64> {
        let caller = self.here.clone();
        if self.keys.contains_key(&(id.clone(), caller.clone())) {
            return None;
        }
        let serial = self.insert(id, &caller)?;
        let call = &mut self.tracked.get_mut(&serial)?.call;
        call.tool = beginning(tool, MAX_WORD).to_owned();
        call.requested = Some(Moment(at.0.saturating_sub(took_ms.saturating_mul(1_000_000))));
        call.settled = Some(at);
        call.outcome = RecordedOutcome::Failed {
            code: ErrorCode::from(beginning(code, MAX_WORD).to_owned()),
            message: Some(shortened(message)),
        };
        self.settled.push_back(serial);
        Some(serial)
    }

    /// A call that is kept.
    pub(crate) fn call(&self, serial: u64) -> Option<&RecordedCall> {
        self.tracked.get(&serial).map(|tracked_call| &tracked_call.call)
    }

    /// Whether the call's caller stopped it.
    pub(super) fn is_stopped_by_caller(&self, serial: u64) -> bool {
        self.tracked.get(&serial).is_some_and(|tracked_call| tracked_call.stopped_by_caller)
    }

    /// Returns the calls.
    pub fn finish(self) -> Calls {
        let Self { tracked, dropped, .. } = self;
        Calls { calls: tracked.into_values().map(|tracked_call| tracked_call.call).collect(), dropped }
    }

    fn handle_event(&mut self, event: &RoomEvent) {
        match event {
            RoomEvent::Here { identity, .. } => self.here = identity.clone(),
            RoomEvent::Joined { identity, role, .. } => {
                if role.as_deref() != Some(Role::Observer.as_str()) && !event.is_observer(&self.here) {
                    // Whoever only listens said so itself when it began.
                    if *identity != self.here {
                        self.observers.remove(identity);
                    }
                } else if self.observers.len() < MAX_PARTICIPANTS {
                    self.observers.insert(identity.clone());
                }
            }
            _ => {}
        }
    }

    fn offer<'a>(&mut self, who: &Identity, names: impl Iterator<Item = &'a str>) {
        if self.offers.len() >= MAX_PARTICIPANTS && !self.offers.contains_key(who) {
            return;
        }
        for name in self.offers.remove(who).unwrap_or_default() {
            self.offers_kept -= name.len();
            if let hash_map::Entry::Occupied(mut count) = self.offered.entry(name) {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                }
            }
        }
        let mut kept = HashSet::new();
        for name in names.filter(|name| name.len() <= MAX_WORD).take(MAX_OFFERED) {
            if self.offers_kept < MAX_OFFERS && kept.insert(name.to_owned()) {
                self.offers_kept += name.len();
                *self.offered.entry(name.to_owned()).or_default() += 1;
            }
        }
        self.offers.insert(who.clone(), kept);
    }

    fn request(
        &mut self,
        at: Moment,
        packet: &Recorded,
        frame: &Frame,
        request: &ToolUseRequest,
    ) -> Option<(u64, CallUpdate)> {
        let caller = packet.from.identity();
        let execution = request.execution.as_ref().ok().copied();
        let owner = self.asked_of(packet, frame, execution);
        let content = content_of(request);
        let known = self.keys.get(&(request.id.clone(), caller.clone())).copied();
        let (serial, is_new) = match known {
            Some(serial) => (serial, false),
            None => match self.adopt(&request.id, caller) {
                Some(serial) => (serial, false),
                None => (self.insert(&request.id, caller)?, true),
            },
        };
        let stanza = frame.stanza_id();
        let tracked_call = self.tracked.get_mut(&serial)?;
        if let Some(stanza) = stanza
            && tracked_call.stanzas.len() < MAX_AGAIN
            && !tracked_call.stanzas.contains(&stanza)
        {
            tracked_call.stanzas.push(stanza);
            self.stanzas.insert((caller.clone(), stanza), serial);
        }
        let call = &mut tracked_call.call;
        call.requested.get_or_insert(at);
        let Some(asked) = tracked_call.asked else {
            call.tool = beginning(&request.tool_name, MAX_WORD).to_owned();
            call.execution = execution;
            call.limit = Some(limit_of(request));
            let parameters = request.parameters.as_bytes();
            let is_redacted = frame.meta_bool(REDACTED);
            call.parameters = Some(if is_redacted { value_size(parameters) } else { parameters.len() });
            if owner.is_some() {
                call.owner = owner;
            }
            tracked_call.asked = Some(content);
            if is_new {
                return Some((serial, CallUpdate::Requested));
            }
            self.recheck_owner(serial);
            return Some((serial, CallUpdate::RequestRepeated));
        };
        let runs_itself = execution == Some(Execution::Server);
        if runs_itself && call.execution != Some(Execution::Server) {
            tracked_call.take_over();
            return Some((serial, CallUpdate::RequestRepeated));
        }
        if asked != content {
            return Some((serial, CallUpdate::RequestChanged));
        }
        if let Some(owner) = owner
            && call.owner.as_ref() != Some(&owner)
        {
            let before = call.owner.replace(owner);
            tracked_call.before.extend(before.filter(|_| tracked_call.before.len() < MAX_AGAIN));
        }
        Some((serial, CallUpdate::RequestRepeated))
    }

    /// Whom a request went to, as far as the packet tells.
    fn asked_of(&self, packet: &Recorded, frame: &Frame, execution: Option<Execution>) -> Option<Identity> {
        if execution == Some(Execution::Server) {
            return Some(packet.from.identity().clone());
        }
        match packet.direction {
            Direction::Sent => packet.to.iter().find(|who| !self.observers.contains(*who)).cloned(),
            // Copies for observers do not say whose instance is meant.
            Direction::Heard
                if frame.meta_str("bridge.to").is_some() && !self.here.is_empty() && !self.observes() =>
            {
                Some(self.here.clone())
            }
            Direction::Heard => None,
        }
    }
}
