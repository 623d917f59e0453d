//! Builds calls from entries: assembles frames with the same call id as they arrive.

mod answer;
mod index;
mod observer;
mod rpc;
mod tracked_call;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque, hash_map};

use sha2::{Digest, Sha256};

use self::tracked_call::{TrackedCall, content_of, limit_of, shortened};
use super::{
    Decoded, Direction, Entry, Happened, Moment, REDACTED, Recorded, RecordedCall, RecordedOutcome,
    RoomEvent, original::value_size,
};
use crate::{
    protocol::frame::{Frame, Message, ToolUseRequest},
    tool::{CallId, ErrorCode, Execution, ProgressStatus},
    transport::{Identity, Role},
    value::prefix,
};

/// The memory that the calls of a recording may take, in bytes: 110,000 ordinary calls. Above it, the call that was
/// settled first is dropped and counted.
const MAX_KEPT: usize = 96 * 1024 * 1024;

/// How many frame positions of all calls are kept: 16 MB. Later frames are processed but not listed.
const MAX_PLACES: usize = 2_000_000;

/// The longest call id or tool name, in bytes; calls with longer ids are dropped. toolbridge's own have at most 21
/// and 64.
const MAX_WORD: usize = 256;

/// The longest failure text that is kept, in bytes.
const MAX_TEXT: usize = 1_024;

/// How many participants' roles and tools are remembered.
const MAX_PARTICIPANTS: usize = 1_024;

/// How many requests of one call are distinguished by stanza, and how many former owners by name.
const MAX_AGAIN: usize = 16;

/// How many of the latest calls with one id are searched for the call that a frame belongs to. A caller's own call is
/// found by key, among any number.
const MAX_ALIKE: usize = 16;

/// How many tools of one participant are remembered; it may register 128.
const MAX_OFFERED: usize = 256;

/// The memory that registered tool names may take, in bytes.
const MAX_OFFERS: usize = 8 * 1024 * 1024;

/// The calls of a recording, in order of first appearance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Calls {
    /// The calls that fit in 96 MiB: about 110,000, fewer with long names and messages.
    pub calls: Vec<RecordedCall>,
    /// How many calls were dropped, those settled first.
    pub dropped: u64,
}

/// Returns the calls of a recording.
///
/// A call is identified by its caller and id. Only its owner's result settles it. The owner is the participant that
/// received the request. An observer cannot know that, so there the first participant to answer is the owner, unless
/// it does not offer the tool and another one that does also answers. A copy that an observer received counts as the
/// frame it copies, and the copy of a result may precede the copy of its request. An observer receives no
/// acknowledgements.
///
/// The outcome is the one that the caller read. A caller that stops a call no longer waits for its answer, so the stop
/// decides, with its reason: `deadline` is a timeout, `lost` a loss, another reason a cancellation. In the caller's own
/// file what came first decides, and [`RoomEvent::Ended`] what no packet shows.
///
/// ```
/// use toolbridge::recording::{Direction, Entry, Happened, Moment, Recorded, RecordedOutcome, calls};
/// use toolbridge::{transport::Peer, frame::Frame};
///
/// let said = |at, direction, from: &str, json: &str| {
///     let frame = Frame::from_json(json).unwrap();
///     let packet = Recorded::new(direction, Peer::new(from, "PA_1"), frame.into_bytes());
///     Entry::new(Moment(at), Happened::Packet(packet))
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

/// What a frame changed in its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallUpdate {
    /// The first request.
    Requested,
    /// A retransmission or copy of the request, or the same call sent to another participant.
    RequestRepeated,
    /// The same id with another tool or other parameters.
    RequestChanged,
    /// The first result, or the error in its place.
    Settled,
    /// The first result, from a participant that does not offer the tool although others do. An observer cannot know
    /// who was asked.
    SettledUncertain,
    /// The first result from a participant that offers the tool, after one that does not had answered.
    SettledByOwner,
    /// The same result again.
    ResultRepeated,
    /// A result that differs from the first.
    ResultChanged,
    /// The caller stopped the call.
    Stopped,
    /// The owner of a call by RPC has acknowledged it, and so must answer it.
    Acknowledged,
    /// A call by RPC was requested again, and its owner ran it again.
    RanAgain,
    /// An answer by RPC to a request that is not in the file so far.
    NotAsked,
    /// A result, progress, claim or refusal from a participant that does not own the call.
    WrongSender,
    /// Any other frame.
    Other,
}

/// Builds the calls of a recording entry by entry; [`calls`] does it in one step.
#[derive(Debug)]
pub struct CallsBuilder {
    /// How many entries [`push`](Self::push) has taken.
    entries: usize,
    tracked: BTreeMap<u64, TrackedCall>,
    next: u64,
    keys: HashMap<(CallId, Option<Identity>), u64>,
    /// The latest calls with each id, oldest first.
    ids: HashMap<CallId, VecDeque<u64>>,
    /// By the request's sender and stanza: some participants acknowledge only those.
    stanzas: HashMap<(Option<Identity>, i32), u64>,
    /// In the order in which they were settled.
    settled: VecDeque<u64>,
    here: Option<Identity>,
    observers: HashSet<Identity>,
    offers: HashMap<Identity, HashSet<String>>,
    /// How many participants offer each tool.
    offered: HashMap<String, usize>,
    /// The memory that the names in `offers` take.
    offers_kept: usize,
    dropped: u64,
    places: usize,
    /// The memory that the calls take.
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
            here: None,
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
    /// Takes the next entry and returns the call it belongs to, as known so far. The first entry is number 0 in
    /// [`RecordedCall::entries`].
    pub fn push(&mut self, entry: &Entry) -> Option<&RecordedCall> {
        let index = self.entries;
        self.entries += 1;
        let (serial, _) = self.push_decoded(index, entry, None)?;
        self.call(serial)
    }

    /// Takes the next entry and returns the call's serial number and what the entry changed. Pass the frame if it is
    /// already decoded.
    pub(crate) fn push_decoded(
        &mut self,
        index: usize,
        entry: &Entry,
        decoded: Option<&Decoded>,
    ) -> Option<(u64, CallUpdate)> {
        let packet = match &entry.what {
            Happened::Event(RoomEvent::Unasked { call, tool, code, message, took_ms }) => {
                let call = &call.parse().ok()?;
                let serial = self.unasked(entry.at, call, tool, (code, message), *took_ms)?;
                self.note(serial, index);
                return Some((serial, CallUpdate::Other));
            }
            Happened::Event(RoomEvent::Ended { call, code }) => {
                let serial = self.ended(entry.at, &call.parse().ok()?, code)?;
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
            _ if packet.is_rpc() => self.rpc(entry.at, packet, frame, message)?,
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
                if self.tracked.get(&serial)?.call.caller.as_ref() == packet.sender() {
                    (serial, CallUpdate::Other)
                } else if !claims && !self.surely_may_answer(serial, packet.sender()) {
                    // It does not affect the result, so it is ignored.
                    return None;
                } else {
                    self.by_owner(serial, packet, |call| {
                        call.delivered.get_or_insert(entry.at);
                    })?
                }
            }
            Message::ControlStop(stop) => {
                let serial = self.find(packet, stop.target_id.as_deref()?)?;
                self.stop(entry.at, serial, packet, stop)?
            }
            Message::Error(error) => {
                let serial = self.find(packet, error.originating_id.as_deref()?)?;
                if self.tracked.get(&serial)?.call.caller.as_ref() == packet.sender() {
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
                    if let Some(sender) = packet.sender() {
                        self.offer(sender, names);
                    }
                }
                return None;
            }
        };
        self.note(serial, index);
        Some((serial, told))
    }

    /// Adds an entry to a call, and derives the call's outcome again.
    fn note(&mut self, serial: u64, index: usize) {
        if let Some(tracked_call) = self.tracked.get_mut(&serial) {
            tracked_call.resolve(self.here.is_some() && tracked_call.call.caller == self.here);
            if self.places < MAX_PLACES {
                tracked_call.call.entries.push(index);
                self.places += 1;
            }
        }
        self.weigh(serial);
    }

    /// Adds a call that no participant was asked to run.
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
        let serial = self.insert(id, caller.as_ref())?;
        let tracked_call = self.tracked.get_mut(&serial)?;
        tracked_call.call.tool = prefix(tool, MAX_WORD).to_owned();
        tracked_call.call.requested = Some(Moment(at.0.saturating_sub(took_ms.saturating_mul(1_000_000))));
        tracked_call.answered = Some(at);
        tracked_call.answer_outcome = RecordedOutcome::Failed {
            code: ErrorCode::from(prefix(code, MAX_WORD).to_owned()),
            message: Some(shortened(message)),
        };
        self.settled.push_back(serial);
        Some(serial)
    }

    /// Ends a call of the recorded participant as its caller read it.
    fn ended(&mut self, at: Moment, id: &CallId, code: &str) -> Option<u64> {
        let serial = *self.keys.get(&(id.clone(), self.here.clone()))?;
        let tracked_call = self.tracked.get_mut(&serial)?;
        if tracked_call.ended_by_caller.is_none() {
            tracked_call.ended_by_caller = Some((at, ErrorCode::from(prefix(code, MAX_WORD).to_owned())));
            if tracked_call.answered.is_none() {
                self.settled.push_back(serial);
            }
        }
        Some(serial)
    }

    /// Returns a call that is kept.
    pub(crate) fn call(&self, serial: u64) -> Option<&RecordedCall> {
        self.tracked.get(&serial).map(|tracked_call| &tracked_call.call)
    }

    /// Whether the caller stopped the call.
    pub(super) fn is_stopped_by_caller(&self, serial: u64) -> bool {
        self.tracked.get(&serial).is_some_and(|tracked_call| tracked_call.stopped_by_caller)
    }

    /// What the owner of a call answered, whether or not its caller waited for that.
    pub(super) fn answer_of(&self, serial: u64) -> Option<&RecordedOutcome> {
        self.tracked.get(&serial).map(|tracked_call| &tracked_call.answer_outcome)
    }

    /// Returns the calls.
    pub fn finish(self) -> Calls {
        let Self { tracked, dropped, .. } = self;
        Calls { calls: tracked.into_values().map(|tracked_call| tracked_call.call).collect(), dropped }
    }

    fn handle_event(&mut self, event: &RoomEvent) {
        match event {
            RoomEvent::Here { identity, .. } => self.here = Some(identity.clone()),
            RoomEvent::Joined { identity, role, .. } => {
                if role.as_deref() != Some(Role::Observer.as_str())
                    && !self.here.as_ref().is_some_and(|here| event.is_observer(here))
                {
                    // The recorded participant stays the observer that its recorder declared.
                    if Some(identity) != self.here.as_ref() {
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
        let caller = packet.sender();
        let execution = request.execution.as_ref().ok().copied();
        let owner = self.asked_of(packet, frame, execution);
        let content = content_of(request);
        let known = self.keys.get(&(request.id.clone(), caller.cloned())).copied();
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
            self.stanzas.insert((caller.cloned(), stanza), serial);
        }
        let call = &mut tracked_call.call;
        call.requested.get_or_insert(at);
        let Some(asked) = tracked_call.asked else {
            call.tool = prefix(&request.tool_name, MAX_WORD).to_owned();
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

    /// The participant a request was sent to, if the packet identifies it.
    fn asked_of(&self, packet: &Recorded, frame: &Frame, execution: Option<Execution>) -> Option<Identity> {
        if execution == Some(Execution::Server) {
            return packet.sender().cloned();
        }
        match packet.direction {
            Direction::Sent => packet.to.iter().find(|who| !self.observers.contains(*who)).cloned(),
            // A copy for an observer does not identify the intended instance.
            Direction::Heard
                if (frame.meta_str("bridge.to").is_some() || packet.is_rpc()) && !self.observes() =>
            {
                self.here.clone()
            }
            Direction::Heard => None,
        }
    }
}
