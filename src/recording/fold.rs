//! From entries to calls: frames of one id, put together as they come.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use sha2::{Digest, Sha256};

use super::{Direction, Entry, Happened, Moment, Recorded, RecordedCall, RecordedOutcome, RoomEvent, Spoken};
use crate::{
    link::{Identity, Role},
    tool::{CallId, ErrorCode, Execution, ProgressStatus},
    wire::{Frame, Message, ToolUseRequest, ToolUseResult},
};

mod observed;

/// The most calls that are kept. When there are more, the one that was settled first goes, and is counted.
const MAX_CALLS: usize = 1_000_000;

/// The most places of frames that are kept, of all calls together: 128 MB.
const MAX_PLACES: usize = 16_000_000;

/// The longest id of a call, or name of a tool, in bytes; a call with a longer id is not folded. Ours have 21, and 64.
const MAX_WORD: usize = 256;

/// How much of a failure's text is kept, in characters.
const MAX_TEXT: usize = 1_024;

/// Of how many participants it is remembered what they are and offer.
const MAX_PARTICIPANTS: usize = 1_024;

/// How many requests of one call are told apart by their stanza, and how many owners by name.
const MAX_AGAIN: usize = 16;

/// The calls of a recording, in the order in which they first appear.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Calls {
    /// The calls: at most a million.
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
/// use toolbridge::{Lane, Peer, wire::Frame};
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
    let mut fold = Fold::default();
    for (index, entry) in entries.into_iter().enumerate() {
        fold.push(index, &entry, None);
    }
    fold.finish()
}

/// What a frame was to its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// Its first request.
    Asked,
    /// A repetition, or a copy, of its request; or the same call asked of somebody else.
    AskedAgain,
    /// The same id with another tool or other parameters.
    AskedOther,
    /// Its first result, or the error in its place.
    Settled,
    /// The same, of somebody who does not offer the tool, though others do: an observer cannot know who was asked.
    SettledDoubtfully,
    /// The same, of somebody who offers the tool, after one who does not had answered.
    SettledAfterAll,
    /// The same result again.
    SettledAgain,
    /// Another result than before.
    SettledOther,
    /// Its caller stopped it.
    Stopped,
    /// A result, progress, claim or refusal of somebody who does not own it.
    WrongSender,
    /// Anything else.
    Other,
}

/// One call, and what it takes to judge its next frame.
#[derive(Debug)]
struct Slot {
    call: RecordedCall,
    /// Tool, execution and parameters of its first request.
    asked: Option<[u8; 32]>,
    /// The result that settled it.
    answer: Option<[u8; 32]>,
    /// Whom it was asked of before its owner.
    before: Vec<Identity>,
    /// The stanzas of its requests.
    stanzas: Vec<i32>,
    /// Its caller stopped it.
    withdrawn: bool,
    /// Somebody else was asked first, and its caller ran it itself.
    taken_over: bool,
    /// Its owner is the one who answered, though others offer the tool, and it does not.
    guessed: bool,
    /// Who answered, did not offer the tool, and was not the owner after all.
    misled_by: Option<Identity>,
}

/// The calls so far.
#[derive(Debug)]
pub(crate) struct Fold {
    slots: BTreeMap<u64, Slot>,
    next: u64,
    ids: HashMap<CallId, Vec<u64>>,
    /// By a request's sender and stanza: plain peers acknowledge those alone.
    stanzas: HashMap<(Identity, i32), u64>,
    /// In the order in which they were settled.
    settled: VecDeque<u64>,
    here: Identity,
    observers: HashSet<Identity>,
    offers: HashMap<Identity, HashSet<String>>,
    dropped: u64,
    places: usize,
    most: usize,
}

impl Default for Fold {
    fn default() -> Self {
        Self {
            slots: BTreeMap::new(),
            next: 0,
            ids: HashMap::new(),
            stanzas: HashMap::new(),
            settled: VecDeque::new(),
            here: Identity::from(""),
            observers: HashSet::new(),
            offers: HashMap::new(),
            dropped: 0,
            places: 0,
            most: MAX_CALLS,
        }
    }
}

impl Fold {
    /// Takes the next entry, and says which call it was about. Whoever has read its frame already gives it.
    pub(crate) fn push(
        &mut self,
        index: usize,
        entry: &Entry,
        spoken: Option<&Spoken>,
    ) -> Option<(u64, Told)> {
        let packet = match &entry.what {
            Happened::Event(event) => {
                self.handle_event(event);
                return None;
            }
            Happened::Packet(packet) => packet,
        };
        let read;
        let spoken = match spoken {
            Some(spoken) => spoken,
            None => {
                read = Spoken::of(packet);
                &read
            }
        };
        let Spoken::Frame(frame, message) = spoken else { return None };
        let (serial, told) = match message {
            Message::ToolUseRequest(request) => self.request(entry.at, packet, frame, request)?,
            Message::ToolUseResult(result) => self.result(entry.at, packet, result)?,
            Message::ToolProgress(progress) => {
                let serial = match self.find(packet, progress.id.as_str()) {
                    Some(serial) => serial,
                    None => self.foresee(&progress.id)?,
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
                if self.slots.get(&serial)?.call.caller == *packet.from.identity() {
                    (serial, Told::Other)
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
                if self.slots.get(&serial)?.call.caller == *packet.from.identity() {
                    (serial, Told::Other)
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
        if let Some(slot) = self.slots.get_mut(&serial)
            && self.places < MAX_PLACES
        {
            slot.call.entries.push(index);
            self.places += 1;
        }
        Some((serial, told))
    }

    /// A call that is kept.
    pub(crate) fn call(&self, serial: u64) -> Option<&RecordedCall> {
        self.slots.get(&serial).map(|slot| &slot.call)
    }

    /// Whether the call's caller stopped it.
    pub(super) fn is_withdrawn(&self, serial: u64) -> bool {
        self.slots.get(&serial).is_some_and(|slot| slot.withdrawn)
    }

    /// That was all.
    pub(crate) fn finish(self) -> Calls {
        Calls { calls: self.slots.into_values().map(|slot| slot.call).collect(), dropped: self.dropped }
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
        let names = names.filter(|name| name.len() <= MAX_WORD).map(str::to_owned).collect();
        self.offers.insert(who.clone(), names);
    }

    fn request(
        &mut self,
        at: Moment,
        packet: &Recorded,
        frame: &Frame,
        request: &ToolUseRequest,
    ) -> Option<(u64, Told)> {
        let caller = packet.from.identity();
        let execution = request.execution.as_ref().ok().copied();
        let owner = self.asked_of(packet, frame, execution);
        let content = content_of(request);
        let known = self.ids.get(&request.id).and_then(|serials| {
            let is_its = |serial: &&u64| self.slots.get(serial).is_some_and(|it| it.call.caller == *caller);
            serials.iter().find(is_its).copied()
        });
        let (serial, is_new) = match known {
            Some(serial) => (serial, false),
            None => match self.adopt(&request.id, caller) {
                Some(serial) => (serial, false),
                None => (self.insert(&request.id, caller)?, true),
            },
        };
        let stanza = frame.stanza_id();
        let slot = self.slots.get_mut(&serial)?;
        if let Some(stanza) = stanza
            && slot.stanzas.len() < MAX_AGAIN
            && !slot.stanzas.contains(&stanza)
        {
            slot.stanzas.push(stanza);
            self.stanzas.insert((caller.clone(), stanza), serial);
        }
        let call = &mut slot.call;
        call.requested.get_or_insert(at);
        let Some(asked) = slot.asked else {
            call.tool = request.tool_name.chars().take(MAX_WORD).collect();
            call.execution = execution;
            call.limit = Some(limit_of(request));
            call.parameters = Some(request.parameters.as_bytes().len());
            if owner.is_some() {
                call.owner = owner;
            }
            slot.asked = Some(content);
            if is_new {
                return Some((serial, Told::Asked));
            }
            self.doubt(serial);
            return Some((serial, Told::AskedAgain));
        };
        let runs_itself = execution == Some(Execution::Server);
        if runs_itself && call.execution != Some(Execution::Server) {
            slot.take_over();
            return Some((serial, Told::AskedAgain));
        }
        if asked != content {
            return Some((serial, Told::AskedOther));
        }
        if let Some(owner) = owner
            && call.owner.as_ref() != Some(&owner)
        {
            let before = call.owner.replace(owner);
            slot.before.extend(before.filter(|_| slot.before.len() < MAX_AGAIN));
        }
        Some((serial, Told::AskedAgain))
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

    fn result(&mut self, at: Moment, packet: &Recorded, result: &ToolUseResult) -> Option<(u64, Told)> {
        let outcome = match result.success {
            true => RecordedOutcome::Ok,
            false => RecordedOutcome::Failed {
                code: result.error_code.clone().map_or(ErrorCode::EXECUTION_ERROR, |code| {
                    ErrorCode::from(code.as_str().chars().take(MAX_WORD).collect::<String>())
                }),
                message: result.error_message.as_deref().map(shortened),
            },
        };
        let serial = match self.find(packet, result.id.as_str()) {
            Some(serial) => serial,
            None => {
                // Its request is not in the file: recording began later.
                let unknown = Identity::from("");
                let caller = match packet.direction {
                    Direction::Sent => packet.to.iter().find(|who| !self.observers.contains(*who)),
                    Direction::Heard if self.observes() => Some(&unknown),
                    Direction::Heard => Some(&self.here),
                };
                let caller = caller.unwrap_or_else(|| packet.from.identity()).clone();
                self.insert(&result.id, &caller)?
            }
        };
        let size = result.result.as_ref().map(|body| body.as_bytes().len());
        self.settle(at, serial, packet, outcome, size, answer_of(result))
    }

    fn settle(
        &mut self,
        at: Moment,
        serial: u64,
        packet: &Recorded,
        outcome: RecordedOutcome,
        size: Option<usize>,
        answer: [u8; 32],
    ) -> Option<(u64, Told)> {
        let from = packet.from.identity();
        if !self.may_answer(serial, from) {
            return Some((serial, Told::WrongSender));
        }
        let slot = self.slots.get_mut(&serial)?;
        if slot.before.contains(from) && slot.call.owner.as_ref() != Some(from) {
            // Whoever was asked before says it late; the call is somebody else's by now.
            return Some((serial, Told::Other));
        }
        let believed = self.believe(serial, from, Some(&outcome));
        let slot = self.slots.get_mut(&serial)?;
        if slot.call.settled.is_some() && *from == slot.call.caller && slot.was_declined() {
            slot.take_over();
        }
        match slot.answer {
            Some(first) if first == answer => return Some((serial, Told::SettledAgain)),
            Some(_) if slot.taken_over && *from != slot.call.caller => return Some((serial, Told::Other)),
            Some(_) => return Some((serial, Told::SettledOther)),
            None if slot.taken_over && *from != slot.call.caller => return Some((serial, Told::Other)),
            None => {}
        }
        slot.answer = Some(answer);
        slot.call.owner = Some(from.clone());
        slot.call.settled = Some(at);
        slot.call.outcome = outcome;
        slot.call.result = size;
        self.settled.push_back(serial);
        Some((serial, believed))
    }

    fn stop(&mut self, at: Moment, serial: u64, packet: &Recorded) -> Option<(u64, Told)> {
        let from = packet.from.identity();
        let slot = self.slots.get_mut(&serial)?;
        let call = &mut slot.call;
        if *from != call.caller {
            if call.owner.as_ref() == Some(from) {
                call.stopped.get_or_insert(at);
            }
            return Some((serial, Told::Other));
        }
        call.stopped.get_or_insert(at);
        slot.withdrawn = true;
        if call.outcome == RecordedOutcome::Open && !slot.taken_over {
            call.outcome = RecordedOutcome::Stopped;
        }
        Some((serial, Told::Stopped))
    }

    /// Something that only the owner may say.
    fn by_owner(
        &mut self,
        serial: u64,
        packet: &Recorded,
        note: impl FnOnce(&mut RecordedCall),
    ) -> Option<(u64, Told)> {
        let from = packet.from.identity();
        if !self.may_answer(serial, from) {
            return Some((serial, Told::WrongSender));
        }
        self.believe(serial, from, None);
        let slot = self.slots.get_mut(&serial)?;
        if slot.call.owner.is_none() {
            slot.call.owner = Some(from.clone());
        }
        note(&mut slot.call);
        Some((serial, Told::Other))
    }

    /// Whether this participant may answer the call, as far as is known.
    fn may_answer(&self, serial: u64, from: &Identity) -> bool {
        self.surely_may_answer(serial, from) || self.perhaps_may_answer(serial, from)
    }

    fn surely_may_answer(&self, serial: u64, from: &Identity) -> bool {
        let Some(slot) = self.slots.get(&serial) else { return false };
        let call = &slot.call;
        if from.is_empty() || self.observers.contains(from) {
            return false;
        }
        if slot.asked.is_none() {
            // Without its request nobody knows better.
            return call.owner.as_ref().is_none_or(|owner| owner == from);
        }
        if *from == call.caller {
            return slot.taken_over
                || matches!(call.execution, Some(Execution::Server | Execution::Either))
                || call.owner.as_ref() == Some(from);
        }
        match (&call.owner, call.execution) {
            (_, Some(Execution::Server)) => false,
            (Some(owner), _) => owner == from || slot.before.contains(from),
            (None, _) => self.offers(from, &call.tool) || !self.is_offered(&call.tool),
        }
    }

    /// The call that a frame of this id belongs to: of several callers with one id, the one that it fits.
    fn find(&self, packet: &Recorded, id: &str) -> Option<u64> {
        let serials = self.ids.get(&CallId::from(id))?;
        let from = packet.from.identity();
        let fits = |serial: &&u64| {
            self.slots.get(serial).is_some_and(|slot| {
                let caller = &slot.call.caller;
                let is_meant = packet.to.is_empty() || packet.to.contains(caller) || caller == from;
                is_meant && (caller == from || self.surely_may_answer(**serial, from))
            })
        };
        serials.iter().find(fits).or_else(|| serials.last()).copied()
    }

    fn find_by_stanza(&self, packet: &Recorded, stanza: i32) -> Option<u64> {
        let caller = match packet.direction {
            Direction::Sent => packet.to.first()?.clone(),
            Direction::Heard => self.here.clone(),
        };
        self.stanzas.get(&(caller, stanza)).copied()
    }

    fn insert(&mut self, id: &CallId, caller: &Identity) -> Option<u64> {
        if id.as_str().len() > MAX_WORD {
            self.dropped += 1;
            return None;
        }
        if self.slots.len() >= self.most {
            self.make_room();
        }
        let serial = self.next;
        self.next += 1;
        let slot = Slot {
            call: RecordedCall::new(id.clone(), caller.clone()),
            asked: None,
            answer: None,
            before: Vec::new(),
            stanzas: Vec::new(),
            withdrawn: false,
            taken_over: false,
            guessed: false,
            misled_by: None,
        };
        self.slots.insert(serial, slot);
        self.ids.entry(id.clone()).or_default().push(serial);
        Some(serial)
    }

    /// Drops the call that was settled first, or, if all are open, the oldest.
    fn make_room(&mut self) {
        let settled = std::iter::from_fn(|| self.settled.pop_front()).find(|it| self.slots.contains_key(it));
        let Some(serial) = settled.or_else(|| self.slots.keys().next().copied()) else { return };
        let Some(slot) = self.slots.remove(&serial) else { return };
        self.dropped += 1;
        self.places -= slot.call.entries.len();
        for stanza in slot.stanzas {
            let key = (slot.call.caller.clone(), stanza);
            if self.stanzas.get(&key) == Some(&serial) {
                self.stanzas.remove(&key);
            }
        }
        if let Some(serials) = self.ids.get_mut(&slot.call.id) {
            serials.retain(|it| *it != serial);
            if serials.is_empty() {
                self.ids.remove(&slot.call.id);
            }
        }
    }
}

impl Slot {
    /// Its caller runs it itself, since whoever was asked did not: what that one said does not count.
    fn take_over(&mut self) {
        self.taken_over = true;
        let caller = self.call.caller.clone();
        let before = self.call.owner.replace(caller);
        self.before.extend(before.filter(|_| self.before.len() < MAX_AGAIN));
        if self.call.outcome == RecordedOutcome::Stopped || self.was_declined() {
            self.answer = None;
            self.call.outcome = RecordedOutcome::Open;
            self.call.settled = None;
            self.call.result = None;
        }
    }

    /// Whoever was asked first said no in a way that lets its caller run it.
    fn was_declined(&self) -> bool {
        let RecordedOutcome::Failed { code, .. } = &self.call.outcome else { return false };
        matches!(code.as_str(), "unknown_tool" | "busy" | "cancelled" | "lost" | "error 301" | "error 304")
    }
}

/// The budget of a request, as its receiver reads it: 30 s if it names none, and nothing if it is negative.
fn limit_of(request: &ToolUseRequest) -> std::time::Duration {
    request.timeout_ms.map_or(crate::tool::DEFAULT_TIMEOUT, |millis| {
        std::time::Duration::from_millis(u64::try_from(millis).unwrap_or_default())
    })
}

/// What makes two requests of one id the same.
fn content_of(request: &ToolUseRequest) -> [u8; 32] {
    let execution = match &request.execution {
        Ok(execution) => execution.as_str(),
        Err(written) => written,
    };
    let digest = Sha256::new_with_prefix(request.tool_name.as_bytes());
    let digest = digest.chain_update([0]).chain_update(execution.as_bytes()).chain_update([0]);
    digest.chain_update(request.parameters.as_bytes()).finalize().into()
}

/// What makes two results of one call the same. Refusals for load are made anew each time: their text may differ.
fn answer_of(result: &ToolUseResult) -> [u8; 32] {
    let code = result.error_code.as_ref().map_or("", ErrorCode::as_str);
    let digest = Sha256::new_with_prefix([u8::from(result.success)]).chain_update(code.as_bytes());
    if matches!(code, "busy" | "permission_denied") {
        return digest.finalize().into();
    }
    let digest = digest.chain_update([0]).chain_update(result.error_message.as_deref().unwrap_or_default());
    let data = result.result.as_ref().map_or(&[][..], |body| body.as_bytes());
    digest.chain_update([0]).chain_update(data).finalize().into()
}

fn shortened(text: &str) -> String {
    text.chars().take(MAX_TEXT).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        link::{Lane, Peer},
        recording::Recorded,
    };

    fn packet(from: &str, json: &str) -> Entry {
        Entry {
            at: Moment(1),
            what: Happened::Packet(Recorded {
                direction: Direction::Heard,
                from: Peer::new(from, "PA"),
                to: Vec::new(),
                topic: "toolbridge".into(),
                lane: Lane::Reliable,
                stream: false,
                channel: 0,
                sequence: 0,
                payload: Frame::from_json(json).unwrap().into_bytes(),
            }),
        }
    }

    #[test]
    fn when_there_are_too_many_the_one_that_was_settled_first_goes() {
        let mut fold = Fold { most: 2, ..Fold::default() };
        let mut index = 0;
        let mut push = |fold: &mut Fold, from: &str, json: String| {
            fold.push(index, &packet(from, &json), None);
            index += 1;
        };
        let request = |id: &str| {
            format!(
                r#"{{"stanzaId":-1,"type":6,"body":{{"id":"{id}","toolName":"t","execution":"client"}}}}"#
            )
        };
        let result = |id: &str| format!(r#"{{"type":7,"body":{{"id":"{id}","success":true}}}}"#);
        push(&mut fold, "a", request("open"));
        push(&mut fold, "a", request("done"));
        push(&mut fold, "c", result("done"));
        push(&mut fold, "a", request("third"));
        push(&mut fold, "a", request("fourth"));
        let calls = fold.finish();
        let ids: Vec<_> = calls.calls.iter().map(|call| call.id.as_str()).collect();
        assert_eq!((ids, calls.dropped), (vec!["third", "fourth"], 2));
    }

    #[test]
    fn an_id_that_is_too_long_is_counted_and_not_kept() {
        let mut fold = Fold::default();
        let id = "x".repeat(MAX_WORD + 1);
        let json = format!(r#"{{"type":6,"body":{{"id":"{id}","toolName":"t","execution":"client"}}}}"#);
        assert_eq!(fold.push(0, &packet("a", &json), None), None);
        let calls = fold.finish();
        assert_eq!((calls.calls.len(), calls.dropped), (0, 1));
    }
}
