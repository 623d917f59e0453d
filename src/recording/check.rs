//! A recording against the contract: every frame, and every call.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    hash::{BuildHasher as _, RandomState},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{
    Decoded, Direction, Entry, Happened, Moment, Recorded, RecordedOutcome, RoomEvent,
    calls_builder::{CallUpdate, Calls, CallsBuilder, beginning},
    decoded::call_of,
};
use crate::{
    protocol::frame::{Frame, Kind, Message},
    transport::{Identity, Lane, Peer, Sid},
    value::DecodeError,
};

/// How many findings are kept; what is beyond them is counted.
const MAX_FINDINGS: usize = 10_000;

/// How much of a finding's text is kept, in bytes.
const MAX_TEXT: usize = 1_024;

/// How much later than its limit a call's result may come: its owner counts from receipt, and the way is long.
const PATIENCE: Duration = Duration::from_secs(2);

/// Of how many participants, spellings and types it is remembered what was said of them.
const MAX_REMEMBERED: usize = 4_096;

/// How many open calls are watched at once.
const MAX_OPEN: usize = 100_000;

/// How many of a sender's last stanzas are remembered, to tell a repetition from a number that was used again.
const MAX_STANZAS: usize = 4_096;

/// How many stanzas of all senders together: 32 MB.
const MAX_STANZAS_IN_ALL: usize = 500_000;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Worth knowing; the contract allows it.
    Note,
    /// Against the contract.
    Error,
}

/// Something in a recording that is against the contract, or worth knowing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Finding {
    /// When: the time of the entry.
    #[serde(rename = "atMs")]
    pub at: Moment,
    /// The entry's place in the file, from 0.
    pub entry: usize,
    /// How bad it is.
    pub level: Level,
    /// Which rule, as a word that stays the same: `wrong-sender`.
    pub rule: String,
    /// Who did it; empty if nobody knows.
    pub who: Identity,
    /// What it is, in words. Parts of it come from the file.
    pub text: String,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Checked {
    /// What was found, in the order of the file; 10,000 at most.
    pub findings: Vec<Finding>,
    /// How many findings more there were.
    pub left_out: u64,
    /// How many findings of all are errors.
    pub errors: u64,
}

/// Judges every frame and every call of a recording.
///
/// | rule | level | what |
/// | --- | --- | --- |
/// | `malformed` | error | a frame that readers refuse (101); a note without a topic, where it may be no frame at all |
/// | `wrong-sender` | error | a result, progress, claim or refusal of somebody who does not own the call |
/// | `request-changed` | error | the id of a call, used for another tool or other parameters |
/// | `no-result` | error | a call without result in a file that ended in order, its owner being there |
/// | `two-results` | error | a second result that is not the first |
/// | `result-after-stop` | error, note | a stopped call ended otherwise than `cancelled`; a note where both may have crossed |
/// | `timeout-not-honoured` | error | no result 2 s after the limit, its owner being there all the time |
/// | `stanza-reused` | error, note | one number for two frames under one sid; a note of plain peers, some of which do so |
/// | `stanza-order` | error, note | a number below an earlier one, and no repetition; a note of what was heard, which may have been overtaken; nothing of senders that list `fast_lane` |
/// | `dead-sid` | error | a frame of a join that has ended |
/// | `unknown-type` | note | a frame of the conversation, not of tools |
/// | `dialect` | note | a spelling that is read, and not written |
///
/// What the recorder missed, what never left and what was cut off by somebody's leaving is held against nobody.
/// The last two rules name each sender and word once. An observer hears copies, which nobody repeats, and not from
/// those that do not know of it yet: in its recording what was not heard, and what came later than the news of its
/// sender's leaving, is a note at most, and who answered is judged by who offers the tool.
pub fn check(entries: impl IntoIterator<Item = Entry>) -> Checked {
    let mut checker = Checker::default();
    for entry in entries {
        checker.push(&entry);
    }
    checker.finish()
}

/// Checks a recording entry by entry; [`check`] does it in one step.
#[derive(Debug, Default)]
pub struct Checker {
    /// How many entries were taken by [`push`](Self::push).
    entries: usize,
    builder: CallsBuilder,
    found: Checked,
    /// Calls without a result.
    open: BTreeMap<u64, Open>,
    /// When they are overdue.
    due: BTreeSet<(Moment, u64)>,
    /// Who has to do with them: their callers, and their owners as far as they are known.
    parties: BTreeSet<(Option<Identity>, u64)>,
    /// Requests of the recorded participant, by channel and number.
    sent: HashMap<(u16, u32), u64>,
    senders: HashMap<Peer, Sender>,
    /// How many stanzas are remembered of them.
    stanzas: usize,
    hasher: RandomState,
    /// The join that each participant is in.
    present: HashMap<Identity, Sid>,
    ended_joins: HashSet<Peer>,
    reported: HashSet<(Identity, String)>,
    is_over: bool,
    /// The recorded participant sends Configurations.
    sends_configuration: bool,
}

/// A call that waits for its result.
#[derive(Debug)]
struct Open {
    asked: Moment,
    entry: usize,
    due: Moment,
    caller: Identity,
    owner: Option<Identity>,
    packets: Vec<(u16, u32)>,
}

/// What is known of a sender under one sid.
#[derive(Debug, Default)]
struct Sender {
    highest: u32,
    /// What the frames of the last stanzas were about: their type, and a hash of the call.
    last: BTreeMap<u32, (u16, u64)>,
    shows_instance: bool,
    /// Whether its Configuration lists `fast_lane`; none if there was none.
    fast_lane: Option<bool>,
}

impl Checker {
    /// Checks the next entry.
    pub fn push(&mut self, entry: &Entry) {
        let index = self.entries;
        self.entries += 1;
        match &entry.what {
            Happened::Packet(packet) => self.handle_packet(index, entry, packet, &Decoded::of(packet)),
            Happened::Event(event) => self.handle_event(index, entry, event),
        }
    }

    /// Judges the next entry, a packet that has been read.
    pub(super) fn handle_packet(
        &mut self,
        index: usize,
        entry: &Entry,
        packet: &Recorded,
        decoded: &Decoded,
    ) {
        self.overdue(entry.at);
        let place = Place { at: entry.at, entry: index, who: packet.from.identity().clone() };
        match decoded {
            Decoded::Foreign => return,
            Decoded::Malformed(error) => {
                let level = if packet.topic.is_empty() { Level::Note } else { Level::Error };
                let text = format!("it is malformed (error {}): {error}", DecodeError::CODE);
                self.find(&place, level, "malformed", text);
            }
            Decoded::Frame(frame, message) => {
                self.spellings(&place, frame);
                self.stanza(&place, packet, frame, message);
            }
        }
        if packet.direction == Direction::Heard && self.ended_joins.contains(&packet.from) {
            let text = format!("its join {} has ended", packet.from.sid());
            self.find(&place, self.absence_level(), "dead-sid", text);
        }
        if let Some((serial, told)) = self.builder.push_decoded(index, entry, Some(decoded)) {
            self.call(&place, packet, serial, told);
        } else if let Decoded::Frame(frame, Message::ControlStop(_)) = decoded
            && frame.meta_bool("bridge.bye")
        {
            self.stop_expecting_of(&place.who);
        }
    }

    /// Judges the next entry, an event.
    pub(super) fn handle_event(&mut self, index: usize, entry: &Entry, event: &RoomEvent) {
        self.overdue(entry.at);
        self.builder.push_decoded(index, entry, None);
        self.event(event);
    }

    /// Returns the findings.
    pub fn finish(self) -> Checked {
        self.finish_with_calls().0
    }

    /// Returns the findings and the calls.
    pub(super) fn finish_with_calls(mut self) -> (Checked, Calls) {
        // An observer may go while a call is open.
        let open = if self.is_over && !self.builder.observes() {
            std::mem::take(&mut self.open)
        } else {
            BTreeMap::new()
        };
        for (serial, open) in open {
            let Some(call) = self.builder.call(serial).filter(|_| !self.builder.is_stopped_by_caller(serial))
            else {
                continue;
            };
            let text = format!("call {} ({}) has no result", call.id, call.tool);
            let who = call.owner.clone().unwrap_or_else(|| Identity::from(""));
            let place = Place { at: open.asked, entry: open.entry, who };
            self.find(&place, Level::Error, "no-result", text);
        }
        self.found.findings.sort_by_key(|finding| finding.entry);
        (self.found, self.builder.finish())
    }

    fn event(&mut self, event: &RoomEvent) {
        match event {
            RoomEvent::Here { identity, sid, .. } => {
                // Whoever comes anew may be told again what it never heard.
                self.forget_senders();
                self.join(identity, sid);
            }
            RoomEvent::Joined { identity, sid, .. } => self.join(identity, sid),
            RoomEvent::Left { identity, sid } => {
                if self.present.get(identity) == Some(sid) {
                    self.present.remove(identity);
                }
                self.mark_ended(Peer::new(identity, sid));
                self.stop_expecting_of(identity);
            }
            RoomEvent::Link { .. } | RoomEvent::Unrecorded { .. } => {
                self.forget_senders();
                self.stop_expecting_all();
            }
            RoomEvent::Unsent { channel, sequence, .. } => {
                if let Some(serial) = self.sent.get(&(*channel, *sequence)).copied() {
                    self.close(serial);
                }
            }
            RoomEvent::Closed { .. } => self.is_over = true,
            RoomEvent::Unasked { .. } | RoomEvent::Other => {}
        }
    }

    fn join(&mut self, identity: &Identity, sid: &Sid) {
        self.ended_joins.remove(&Peer::new(identity, sid));
        if self.present.len() >= MAX_REMEMBERED && !self.present.contains_key(identity) {
            return;
        }
        if let Some(old) = self.present.insert(identity.clone(), sid.clone())
            && old != *sid
        {
            self.mark_ended(Peer::new(identity, old));
            self.stop_expecting_of(identity);
        }
    }

    fn mark_ended(&mut self, peer: Peer) {
        if let Some(sender) = self.senders.remove(&peer) {
            self.stanzas -= sender.last.len();
        }
        if self.ended_joins.len() < MAX_REMEMBERED && !peer.sid().is_empty() {
            self.ended_joins.insert(peer);
        }
    }

    /// Types and spellings.
    fn spellings(&mut self, place: &Place, frame: &Frame) {
        if !frame.kind().is_known() {
            let code = frame.kind().code();
            let text = format!("type {code} is none of this protocol's, and is passed over");
            self.find_once(place, "unknown-type", &code.to_string(), text);
        }
        for spelling in frame.foreign_spellings() {
            let text = format!("{} is written with {spelling:?}", frame.kind().name());
            self.find_once(place, "dialect", &spelling, text);
        }
    }

    fn stanza(&mut self, place: &Place, packet: &Recorded, frame: &Frame, message: &Message) {
        let Some(stanza) = frame.stanza_id().map(i32::unsigned_abs).filter(|it| *it != 0) else { return };
        if packet.from.identity().is_empty()
            || (self.senders.len() >= MAX_REMEMBERED && !self.senders.contains_key(&packet.from))
        {
            return;
        }
        let sender = self.senders.entry(packet.from.clone()).or_default();
        sender.shows_instance |= frame.meta_str("bridge.instance").is_some();
        if let Message::Configuration(it) = message {
            let lists = it.features.iter().flatten().any(|feature| feature == "fast_lane");
            sender.fast_lane = Some(lists);
            self.sends_configuration |= packet.direction == Direction::Sent;
        }
        // With a fast lane, frames wait for what may make them needless. An observer hears no Configurations.
        let in_order = sender.fast_lane.map_or(self.sends_configuration, |lists| !lists);
        let what = (frame.kind().code(), self.hasher.hash_one(call_of(message)));
        let known = sender.last.get(&stanza);
        let oldest = sender.last.keys().next().copied().unwrap_or_default();
        let highest = sender.highest;
        if known.is_some_and(|known| *known != what) {
            let level = if sender.shows_instance { Level::Error } else { Level::Note };
            let text = format!("stanza {stanza} stood for another frame before");
            return self.find(place, level, "stanza-reused", text);
        }
        let is_old =
            known.is_none() && stanza < highest && (sender.last.len() < MAX_STANZAS || stanza > oldest);
        sender.highest = highest.max(stanza);
        if known.is_none() {
            sender.last.insert(stanza, what);
            self.stanzas += 1;
            if sender.last.len() > MAX_STANZAS || self.stanzas > MAX_STANZAS_IN_ALL {
                sender.last.pop_first();
                self.stanzas -= 1;
            }
        }
        // These may overtake what was sent before them.
        let overtakes = matches!(frame.kind(), Kind::ACKNOWLEDGEMENT | Kind::CONTROL_STOP)
            || packet.lane == Lane::Lossy
            || packet.stream;
        if is_old && in_order && !overtakes {
            let level = if packet.direction == Direction::Sent { Level::Error } else { Level::Note };
            let text = format!("stanza {stanza} comes after {highest}, and is no repetition");
            self.find(place, level, "stanza-order", text);
        }
    }

    fn call(&mut self, place: &Place, packet: &Recorded, serial: u64, told: CallUpdate) {
        let Some(call) = self.builder.call(serial) else { return };
        if let Some(open) = self.open.get_mut(&serial)
            && open.owner != call.owner
        {
            let before = std::mem::replace(&mut open.owner, call.owner.clone());
            if before.as_ref() != Some(&open.caller) {
                self.parties.remove(&(before, serial));
            }
            self.parties.insert((call.owner.clone(), serial));
        }
        let (id, tool) = (call.id.clone(), call.tool.clone());
        match told {
            CallUpdate::Requested if self.open.len() < MAX_OPEN && self.builder.expects_answer(serial) => {
                let due = call.limit.unwrap_or_default() + PATIENCE;
                let due = u64::try_from(due.as_nanos()).unwrap_or(u64::MAX);
                let due = Moment(place.at.0.saturating_add(due));
                let caller = call.caller.clone();
                let owner = call.owner.clone();
                self.parties.insert((Some(caller.clone()), serial));
                self.parties.insert((owner.clone(), serial));
                let open =
                    Open { asked: place.at, entry: place.entry, due, caller, owner, packets: Vec::new() };
                self.open.insert(serial, open);
                self.due.insert((due, serial));
                self.note_packet(serial, packet);
            }
            CallUpdate::RequestRepeated => self.note_packet(serial, packet),
            CallUpdate::RequestChanged => {
                let text =
                    format!("call {id} ({tool}) was asked before with another tool or other parameters");
                self.find(place, Level::Error, "request-changed", text);
            }
            CallUpdate::Settled | CallUpdate::SettledUncertain | CallUpdate::SettledByOwner => {
                let impostor =
                    self.builder.wrong_owner(serial).filter(|_| told == CallUpdate::SettledByOwner).cloned();
                let cancelled = matches!(&call.outcome, RecordedOutcome::Failed { code, .. }
                    if matches!(code.as_str(), "cancelled" | "timeout" | "error 304"));
                let is_owner = call.caller != place.who;
                if self.builder.is_stopped_by_caller(serial) && !cancelled && is_owner {
                    let level = if packet.direction == Direction::Sent { Level::Error } else { Level::Note };
                    let text = format!("call {id} ({tool}) was stopped, and did not end as cancelled");
                    self.find(place, level, "result-after-stop", text);
                }
                if told == CallUpdate::SettledUncertain {
                    let text =
                        format!("call {id} ({tool}) was answered by one that does not offer it; others do");
                    self.find(place, Level::Note, "wrong-sender", text);
                }
                if let Some(who) = impostor {
                    let text = format!("call {id} ({tool}) was {}'s to answer, who offers it", place.who);
                    self.find(&Place { who, ..place.clone() }, Level::Error, "wrong-sender", text);
                }
                self.close(serial);
            }
            CallUpdate::ResultChanged => {
                let text = format!("call {id} ({tool}) had another result before");
                self.find(place, Level::Error, "two-results", text);
            }
            CallUpdate::WrongSender => {
                let owner = call.owner.as_ref().map_or("somebody else", Identity::as_str).to_owned();
                let text = format!("call {id} ({tool}) is {owner}'s to answer");
                self.find(place, Level::Error, "wrong-sender", text);
            }
            CallUpdate::Requested | CallUpdate::ResultRepeated | CallUpdate::Stopped | CallUpdate::Other => {}
        }
    }

    fn note_packet(&mut self, serial: u64, packet: &Recorded) {
        if packet.direction == Direction::Sent
            && let Some(open) = self.open.get_mut(&serial)
            && open.packets.len() < 16
        {
            let key = (packet.channel, packet.sequence);
            open.packets.push(key);
            self.sent.insert(key, serial);
        }
    }

    /// What should have had its result by now.
    fn overdue(&mut self, now: Moment) {
        while let Some(&(due, serial)) = self.due.first() {
            if due >= now {
                return;
            }
            let Some(open) = self.close(serial) else {
                self.due.pop_first();
                continue;
            };
            let Some(call) = self.builder.call(serial) else { continue };
            let limit = call.limit.unwrap_or_default().as_millis();
            let text = format!("call {} ({}) had no result {limit} ms and 2 s later", call.id, call.tool);
            let who = call.owner.clone().unwrap_or_else(|| Identity::from(""));
            let place = Place { at: open.asked, entry: open.entry, who };
            self.find(&place, self.absence_level(), "timeout-not-honoured", text);
        }
    }

    /// How bad it is that something was not heard, or late.
    fn absence_level(&self) -> Level {
        if self.builder.observes() { Level::Note } else { Level::Error }
    }

    /// Nothing is expected of this participant any more. Whom a call went to an observer cannot know before it is
    /// answered.
    fn stop_expecting_of(&mut self, who: &Identity) {
        self.stop_expecting_party(Some(who));
        if self.builder.observes() {
            self.stop_expecting_party(None);
        }
    }

    /// Nothing is expected any more of the calls of this participant, or of those whose owner is not known.
    fn stop_expecting_party(&mut self, who: Option<&Identity>) {
        let first = (who.cloned(), 0);
        while let Some((party, serial)) = self.parties.range(&first..).next()
            && *party == first.0
        {
            let serial = *serial;
            if self.close(serial).is_none() {
                self.parties.remove(&(first.0.clone(), serial));
            }
        }
    }

    /// Nothing is expected any more of any call.
    fn stop_expecting_all(&mut self) {
        self.open.clear();
        self.due.clear();
        self.parties.clear();
        self.sent.clear();
    }

    fn forget_senders(&mut self) {
        self.senders.clear();
        self.stanzas = 0;
    }

    fn close(&mut self, serial: u64) -> Option<Open> {
        let open = self.open.remove(&serial)?;
        self.due.remove(&(open.due, serial));
        self.parties.remove(&(Some(open.caller.clone()), serial));
        self.parties.remove(&(open.owner.clone(), serial));
        for packet in &open.packets {
            self.sent.remove(packet);
        }
        Some(open)
    }

    fn find_once(&mut self, place: &Place, rule: &'static str, word: &str, text: String) {
        let key = (place.who.clone(), format!("{rule} {}", word.chars().take(64).collect::<String>()));
        if self.reported.len() < MAX_REMEMBERED && self.reported.insert(key) {
            self.find(place, Level::Note, rule, text);
        }
    }

    fn find(&mut self, place: &Place, level: Level, rule: &'static str, mut text: String) {
        self.found.errors += u64::from(level == Level::Error);
        if self.found.findings.len() >= MAX_FINDINGS {
            self.found.left_out += 1;
            return;
        }
        let Place { at, entry, who } = place.clone();
        text.truncate(beginning(&text, MAX_TEXT).len());
        text.shrink_to_fit();
        self.found.findings.push(Finding { at, entry, level, rule: rule.to_owned(), who, text });
    }
}

/// Where something was found, and of whom.
#[derive(Clone, Debug)]
struct Place {
    at: Moment,
    entry: usize,
    who: Identity,
}
