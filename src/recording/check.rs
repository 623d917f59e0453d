//! Checks a recording for protocol violations.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    hash::{BuildHasher as _, RandomState},
    time::Duration,
};

use serde::{Deserialize, Serialize};

mod views;

use self::views::{Broken, ShownViews};
use super::{
    Decoded, Direction, Entry, Happened, Moment, Recorded, RecordedOutcome, RoomEvent,
    calls_builder::{CallUpdate, Calls, CallsBuilder},
    decoded::call_of,
};
use crate::{
    protocol::frame::{Frame, Kind, Message, ViewUpdate},
    transport::{Identity, Lane, Peer, Sid},
    value::{DecodeError, floor_char},
};

/// How many findings are kept. Further findings are only counted.
const MAX_FINDINGS: usize = 10_000;

/// The longest text of a finding, in bytes.
const MAX_TEXT: usize = 1_024;

/// How much later than its limit a result may arrive: the owner's limit starts when it receives the request, and
/// delivery takes time.
const PATIENCE: Duration = Duration::from_secs(2);

/// How much later than its limit the answer of a call by RPC may arrive: SDKs wait 7 s longer than the limit that they send.
const RPC_PATIENCE: Duration = Duration::from_secs(9);

/// A result this soon after a stop may have been sent before the owner read the stop.
const MAY_CROSS: Duration = Duration::from_millis(150);

/// How many participants, spellings and types are remembered, so that each is reported once.
const MAX_REMEMBERED: usize = 4_096;

/// How many open calls are tracked at once.
const MAX_OPEN: usize = 100_000;

/// How many recent stanzas of a sender are remembered, to distinguish a retransmission from a reused number.
const MAX_STANZAS: usize = 4_096;

/// How many stanzas of all senders are remembered: 32 MB.
const MAX_STANZAS_IN_ALL: usize = 500_000;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Level {
    /// Informational; the protocol allows it.
    Note,
    /// A protocol violation.
    Error,
}

/// A protocol violation in a recording, or an informational note.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Finding {
    /// The time of the entry.
    #[serde(rename = "atMs")]
    pub at: Moment,
    /// The entry's place in the file, from 0.
    pub entry: usize,
    /// The severity.
    pub level: Level,
    /// The rule's stable name, such as `wrong-sender`.
    pub rule: String,
    /// The participant responsible, if it is known. In JSON, an unknown one is an empty text.
    #[serde(with = "identity_or_empty")]
    pub who: Option<Identity>,
    /// A description. Parts of it come from the file.
    pub text: String,
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Checked {
    /// The findings in file order; at most 10,000.
    pub findings: Vec<Finding>,
    /// How many further findings there were.
    pub left_out: u64,
    /// How many of all findings are errors.
    pub errors: u64,
}

/// Checks every frame and call of a recording for protocol violations.
///
/// | rule | level | what |
/// | --- | --- | --- |
/// | `malformed` | error | a frame that a reader rejects (101); a note if the packet has no topic, since it may not be a frame |
/// | `wrong-sender` | error | a result, progress, claim or refusal from a participant that does not own the call |
/// | `request-changed` | error | a call id reused for another tool or other parameters |
/// | `no-result` | error | a call without a result in a file that ended cleanly, although its owner was present |
/// | `two-results` | error | a second result that differs from the first |
/// | `no-request` | error | an answer by LiveKit's RPC without a request |
/// | `ran-twice` | error | a call by LiveKit's RPC that was requested again and ran again |
/// | `result-after-stop` | error, note | a stopped call that did not end as `cancelled`; a note if stop and result may have crossed |
/// | `timeout-not-honoured` | error, note | no result 2 s after the limit, although the owner was present all the time; for calls by RPC 9 s, and a note if an SDK is the owner |
/// | `stanza-reused` | error, note | one number used for two frames under one sid; a note for participants without toolbridge's handshake, some of which do so |
/// | `stanza-order` | error, note | a number lower than an earlier one that is not a retransmission; a note for received frames, which may be reordered in transit; not checked for senders that list `fast_lane` |
/// | `dead-sid` | error | a frame from a sid that has left |
/// | `view-sender` | error | a view of a participant whose role says that it is no assistant |
/// | `view-limit` | error, note | a view whose name or size exceeds its limit, or one view too many of a participant; the last a note in an observer's recording |
/// | `not-expanded` | note | a compressed frame whose sender had no rights, or that cannot be expanded |
/// | `unknown-type` | note | a frame of LiveKit's conversation protocol, not of tools |
/// | `dialect` | note | a spelling that toolbridge reads but does not write |
///
/// Frames that the recorder dropped, that were never sent, or that a disconnect interrupted are not reported. The
/// last three rules name each sender and value once. An observer receives copies, which are never retransmitted, and
/// only from senders that already know of it. In its recording, missing frames and frames after their sender left are
/// notes at most, and the owner of a call is inferred from who offers the tool.
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
    /// How many entries [`push`](Self::push) has taken.
    entries: usize,
    builder: CallsBuilder,
    found: Checked,
    /// Calls without a result.
    open: BTreeMap<u64, Open>,
    /// The deadlines of the open calls.
    due: BTreeSet<(Moment, u64)>,
    /// The callers of the open calls, and their owners if known.
    parties: BTreeSet<(Option<Identity>, u64)>,
    /// Requests of the recorded participant, by channel and sequence number.
    sent: HashMap<(u16, u32), u64>,
    senders: HashMap<Peer, Sender>,
    /// How many stanzas are remembered for all senders.
    stanzas: usize,
    hasher: RandomState,
    /// The current sid of each participant.
    present: HashMap<Identity, Sid>,
    ended_joins: HashSet<Peer>,
    views: ShownViews,
    /// Calls by RPC that were answered, and whose requests are not in the file so far.
    not_asked: BTreeMap<u64, Position>,
    /// Packets are missing in the file.
    has_gaps: bool,
    reported: HashSet<(Option<Identity>, String)>,
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
    caller: Option<Identity>,
    owner: Option<Identity>,
    packets: Vec<(u16, u32)>,
}

/// The state of a sender under one sid.
#[derive(Debug, Default)]
struct Sender {
    highest: u32,
    /// The frame type and a hash of the call id for each recent stanza.
    last: BTreeMap<u32, (u16, u64)>,
    shows_instance: bool,
    /// Whether its Configuration lists `fast_lane`; none without a Configuration.
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

    /// Checks the next entry, a decoded packet.
    pub(super) fn handle_packet(
        &mut self,
        index: usize,
        entry: &Entry,
        packet: &Recorded,
        decoded: &Decoded,
    ) {
        self.overdue(entry.at);
        let place = Position { at: entry.at, entry: index, who: packet.sender().cloned() };
        match decoded {
            Decoded::Foreign => return,
            Decoded::Compressed(size) => {
                let text = format!("a compressed frame of {size} bytes, which the recorder did not expand");
                self.find_once(&place, "not-expanded", "", text);
            }
            Decoded::Malformed(error) => {
                let level = if packet.topic.is_empty() { Level::Note } else { Level::Error };
                let text = format!("malformed frame (error {}): {error}", DecodeError::CODE);
                self.find(&place, level, "malformed", text);
            }
            Decoded::Frame(frame, message) => {
                self.spellings(&place, frame);
                self.stanza(&place, packet, frame, message);
                if let Message::ViewUpdate(view) = message {
                    self.view(&place, view);
                }
            }
        }
        if packet.direction == Direction::Heard
            && let Some(from) = packet.from.as_ref().filter(|from| self.ended_joins.contains(*from))
        {
            let text = format!("sent under sid {}, which has left", from.sid());
            self.find(&place, self.absence_level(), "dead-sid", text);
        }
        if let Some((serial, told)) = self.builder.push_decoded(index, entry, Some(decoded)) {
            self.call(&place, packet, serial, told);
        } else if let Decoded::Frame(frame, Message::ControlStop(_)) = decoded
            && frame.meta_bool("bridge.bye")
        {
            self.stop_expecting_of(place.who.as_ref());
        }
    }

    /// Checks the next entry, an event.
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
        // An observer may leave while a call is open.
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
            let who = call.owner.clone();
            let place = Position { at: open.asked, entry: open.entry, who };
            self.find(&place, Level::Error, "no-result", text);
        }
        for (serial, place) in std::mem::take(&mut self.not_asked) {
            let Some(call) = self.builder.call(serial) else { continue };
            let text = format!("call {} was answered by RPC, and the file has no request", call.id);
            self.find(&place, Level::Error, "no-request", text);
        }
        self.found.findings.sort_by_key(|finding| finding.entry);
        (self.found, self.builder.finish())
    }

    fn event(&mut self, event: &RoomEvent) {
        match event {
            RoomEvent::Here { identity, sid, .. } => {
                // After a rejoin, senders may repeat what the recorded participant missed.
                self.forget_senders();
                self.join(identity, sid);
            }
            RoomEvent::Joined { identity, sid, role, .. } => {
                self.views.joined(identity, role.as_deref());
                self.join(identity, sid);
            }
            RoomEvent::Left { identity, sid } => {
                if self.present.get(identity) == Some(sid) {
                    self.present.remove(identity);
                }
                self.mark_ended(Peer::new(identity, sid));
                self.stop_expecting_of(Some(identity));
            }
            RoomEvent::Link { .. } | RoomEvent::Unrecorded { .. } => {
                if matches!(event, RoomEvent::Unrecorded { .. }) {
                    self.has_gaps = true;
                    self.not_asked.clear();
                }
                self.forget_senders();
                self.stop_expecting_all();
            }
            // Only what concerns this participant may be missing: it must not excuse others.
            RoomEvent::LeftOut { identity, .. } => self.stop_expecting_of(identity.as_ref()),
            RoomEvent::Unsent { channel, sequence, .. } => {
                if let Some(serial) = self.sent.get(&(*channel, *sequence)).copied() {
                    self.close(serial);
                }
            }
            RoomEvent::Closed { .. } => self.is_over = true,
            RoomEvent::AnswersRpc { .. }
            | RoomEvent::Unasked { .. }
            | RoomEvent::Ended { .. }
            | RoomEvent::Other => {}
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
            self.stop_expecting_of(Some(identity));
        }
    }

    fn mark_ended(&mut self, peer: Peer) {
        self.views.left(peer.identity());
        if let Some(sender) = self.senders.remove(&peer) {
            self.stanzas -= sender.last.len();
        }
        if self.ended_joins.len() < MAX_REMEMBERED && !peer.sid().is_empty() {
            self.ended_joins.insert(peer);
        }
    }

    /// Checks the frame's type and spellings.
    fn spellings(&mut self, place: &Position, frame: &Frame) {
        if !frame.kind().is_known() {
            let code = frame.kind().code();
            let text = format!("type {code} is not part of this protocol and is ignored");
            self.find_once(place, "unknown-type", &code.to_string(), text);
        }
        for spelling in frame.foreign_spellings() {
            let text = format!("{} is written with {spelling:?}", frame.kind().name());
            self.find_once(place, "dialect", &spelling, text);
        }
    }

    fn stanza(&mut self, place: &Position, packet: &Recorded, frame: &Frame, message: &Message) {
        let Some(stanza) = frame.stanza_id().map(i32::unsigned_abs).filter(|it| *it != 0) else { return };
        let Some(from) = &packet.from else { return };
        if self.senders.len() >= MAX_REMEMBERED && !self.senders.contains_key(from) {
            return;
        }
        let sender = self.senders.entry(from.clone()).or_default();
        sender.shows_instance |= frame.meta_str("bridge.instance").is_some();
        if let Message::Configuration(it) = message {
            let lists = it.features.iter().flatten().any(|feature| feature == "fast_lane");
            sender.fast_lane = Some(lists);
            self.sends_configuration |= packet.direction == Direction::Sent;
        }
        // Senders with a fast lane may hold frames back. An observer receives no Configurations.
        let in_order = sender.fast_lane.map_or(self.sends_configuration, |lists| !lists);
        let what = (frame.kind().code(), self.hasher.hash_one(call_of(message)));
        let known = sender.last.get(&stanza);
        let oldest = sender.last.keys().next().copied().unwrap_or_default();
        let highest = sender.highest;
        if known.is_some_and(|known| *known != what) {
            let level = if sender.shows_instance { Level::Error } else { Level::Note };
            let text = format!("stanza {stanza} was used for another frame before");
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
        // These may overtake frames that were sent earlier.
        let overtakes = matches!(frame.kind(), Kind::ACKNOWLEDGEMENT | Kind::CONTROL_STOP)
            || packet.lane == Lane::Lossy
            || packet.stream;
        if is_old && in_order && !overtakes {
            let level = if packet.direction == Direction::Sent { Level::Error } else { Level::Note };
            let text = format!("stanza {stanza} follows {highest} and is not a retransmission");
            self.find(place, level, "stanza-order", text);
        }
    }

    fn view(&mut self, place: &Position, view: &ViewUpdate) {
        let Some(who) = &place.who else { return };
        match self.views.judge(who, view) {
            Some(Broken::Sender) => {
                let text = format!("view {:?} is shown by a participant that is no assistant", view.view);
                self.find(place, Level::Error, "view-sender", text);
            }
            Some(Broken::Limit(text)) => self.find(place, self.absence_level(), "view-limit", text),
            None => {}
        }
    }

    fn call(&mut self, place: &Position, packet: &Recorded, serial: u64, told: CallUpdate) {
        let Some(call) = self.builder.call(serial) else { return };
        if let Some(open) = self.open.get_mut(&serial)
            && open.owner != call.owner
        {
            let before = std::mem::replace(&mut open.owner, call.owner.clone());
            if before != open.caller {
                self.parties.remove(&(before, serial));
            }
            self.parties.insert((call.owner.clone(), serial));
        }
        let (id, tool) = (call.id.clone(), call.tool.clone());
        match told {
            CallUpdate::Requested => {
                self.not_asked.remove(&serial);
                // Who may not call by RPC gets no acknowledgement, and often no answer.
                if call.rpc.is_none() || call.delivered.is_some() {
                    self.expect(place, packet, serial);
                }
            }
            CallUpdate::Acknowledged => self.expect(place, packet, serial),
            CallUpdate::NotAsked => {
                if self.not_asked.len() < MAX_REMEMBERED && !self.has_gaps {
                    self.not_asked.insert(serial, place.clone());
                }
            }
            CallUpdate::RanAgain => {
                let text = format!("call {id} ({tool}) was requested again and has run again");
                self.find(place, Level::Error, "ran-twice", text);
            }
            CallUpdate::RequestRepeated => {
                self.not_asked.remove(&serial);
                self.note_packet(serial, packet);
            }
            CallUpdate::RequestChanged => {
                let text =
                    format!("call {id} ({tool}) was requested before with another tool or other parameters");
                self.find(place, Level::Error, "request-changed", text);
            }
            CallUpdate::Settled | CallUpdate::SettledUncertain | CallUpdate::SettledByOwner => {
                let impostor =
                    self.builder.wrong_owner(serial).filter(|_| told == CallUpdate::SettledByOwner).cloned();
                let answer = self.builder.answer_of(serial);
                let cancelled = matches!(answer, Some(RecordedOutcome::Failed { code, .. })
                    if matches!(code.as_str(), "cancelled" | "timeout" | "error 304"));
                let is_owner = call.caller != place.who;
                if self.builder.is_stopped_by_caller(serial) && !cancelled && is_owner {
                    let waited = call.stopped.map_or(MAY_CROSS, |stopped| place.at.since(stopped));
                    let was_heard = packet.direction == Direction::Sent && waited >= MAY_CROSS;
                    let level = if was_heard { Level::Error } else { Level::Note };
                    let text = format!("call {id} ({tool}) was stopped but did not end as cancelled");
                    self.find(place, level, "result-after-stop", text);
                }
                if told == CallUpdate::SettledUncertain {
                    let text = format!(
                        "call {id} ({tool}) was answered by a participant that does not offer the tool, although others do"
                    );
                    self.find(place, Level::Note, "wrong-sender", text);
                }
                if let (Some(who), Some(owner)) = (impostor, &place.who) {
                    let text = format!("call {id} ({tool}) belongs to {owner}, which offers the tool");
                    self.find(
                        &Position { who: Some(who), ..place.clone() },
                        Level::Error,
                        "wrong-sender",
                        text,
                    );
                }
                self.close(serial);
            }
            CallUpdate::ResultChanged => {
                let text = format!("call {id} ({tool}) already had a different result");
                self.find(place, Level::Error, "two-results", text);
            }
            CallUpdate::WrongSender => {
                let owner = call.owner.as_ref().map_or("another participant", Identity::as_str).to_owned();
                let text = format!("call {id} ({tool}) belongs to {owner}");
                self.find(place, Level::Error, "wrong-sender", text);
            }
            CallUpdate::ResultRepeated | CallUpdate::Stopped | CallUpdate::Other => {}
        }
    }

    /// Expects the result of a call from now on.
    fn expect(&mut self, place: &Position, packet: &Recorded, serial: u64) {
        let Some(call) = self.builder.call(serial) else { return };
        if self.open.len() >= MAX_OPEN
            || self.open.contains_key(&serial)
            || !self.builder.expects_answer(serial)
        {
            return;
        }
        let more = if call.rpc.is_some() { RPC_PATIENCE } else { PATIENCE };
        let due = call.limit.unwrap_or_default() + more;
        let due = u64::try_from(due.as_nanos()).unwrap_or(u64::MAX);
        let due = Moment(place.at.0.saturating_add(due));
        let (caller, owner) = (call.caller.clone(), call.owner.clone());
        self.parties.insert((caller.clone(), serial));
        self.parties.insert((owner.clone(), serial));
        let open = Open { asked: place.at, entry: place.entry, due, caller, owner, packets: Vec::new() };
        self.open.insert(serial, open);
        self.due.insert((due, serial));
        self.note_packet(serial, packet);
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

    /// Reports calls whose deadline has passed.
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
            let more = if call.rpc.is_some() { RPC_PATIENCE } else { PATIENCE }.as_secs();
            let text =
                format!("call {} ({}) had no result within {limit} ms and {more} s", call.id, call.tool);
            let who = call.owner.clone();
            // SDKs leave the limit of a call by RPC to the method.
            let is_sdks = call.rpc.is_some() && !self.builder.is_recorded(who.as_ref());
            let level = if is_sdks { Level::Note } else { self.absence_level() };
            let place = Position { at: open.asked, entry: open.entry, who };
            self.find(&place, level, "timeout-not-honoured", text);
        }
    }

    /// The severity of a missing or late frame.
    fn absence_level(&self) -> Level {
        if self.builder.observes() { Level::Note } else { Level::Error }
    }

    /// Stops expecting results that involve this participant. Before a call is answered, an observer does not know
    /// its owner.
    fn stop_expecting_of(&mut self, who: Option<&Identity>) {
        self.stop_expecting_party(who);
        if self.builder.observes() {
            self.stop_expecting_party(None);
        }
    }

    /// Stops expecting results of this participant's calls, or of calls whose owner is unknown.
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

    /// Stops expecting the result of any call.
    fn stop_expecting_all(&mut self) {
        self.open.clear();
        self.due.clear();
        self.parties.clear();
        self.sent.clear();
    }

    fn forget_senders(&mut self) {
        self.senders.clear();
        self.views.forget();
        self.stanzas = 0;
    }

    fn close(&mut self, serial: u64) -> Option<Open> {
        let open = self.open.remove(&serial)?;
        self.due.remove(&(open.due, serial));
        self.parties.remove(&(open.caller.clone(), serial));
        self.parties.remove(&(open.owner.clone(), serial));
        for packet in &open.packets {
            self.sent.remove(packet);
        }
        Some(open)
    }

    fn find_once(&mut self, place: &Position, rule: &'static str, word: &str, text: String) {
        let key = (place.who.clone(), format!("{rule} {}", word.chars().take(64).collect::<String>()));
        if self.reported.len() < MAX_REMEMBERED && self.reported.insert(key) {
            self.find(place, Level::Note, rule, text);
        }
    }

    fn find(&mut self, place: &Position, level: Level, rule: &'static str, mut text: String) {
        self.found.errors += u64::from(level == Level::Error);
        if self.found.findings.len() >= MAX_FINDINGS {
            self.found.left_out += 1;
            return;
        }
        let Position { at, entry, who } = place.clone();
        text.truncate(floor_char(&text, MAX_TEXT));
        text.shrink_to_fit();
        self.found.findings.push(Finding { at, entry, level, rule: rule.to_owned(), who, text });
    }
}

/// An identity in JSON; an unknown one is an empty text.
mod identity_or_empty {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::transport::Identity;

    pub(super) fn serialize<S: Serializer>(who: &Option<Identity>, out: S) -> Result<S::Ok, S::Error> {
        who.as_ref().map_or("", Identity::as_str).serialize(out)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Identity>, D::Error> {
        let who = Identity::deserialize(from)?;
        Ok((!who.as_str().is_empty()).then_some(who))
    }
}

/// The entry and the participant of a finding.
#[derive(Clone, Debug)]
struct Position {
    at: Moment,
    entry: usize,
    who: Option<Identity>,
}
