//! Writes the room events and participants of the report.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{
    super::{
        super::{Direction, REDACTED, Recorded, RecordedCall, RoomEvent, decoded::can_be_shown},
        text::{MAX_TEXT, shown},
    },
    Rows, result,
};
use crate::{
    protocol::frame::{Frame, Message, ViewUpdate},
    tool::render,
    transport::{Identity, Sid},
};

/// The maximum number of participants listed.
const MAX_PEOPLE: usize = 1_000;
/// How many joins of one participant are counted.
const MAX_JOINS: usize = 100;
/// The maximum number of events.
const MAX_EVENTS: usize = 5_000;
/// The maximum number of states of views.
const MAX_VIEWS: usize = 1_000;

/// A participant, under all of its sids.
#[derive(Default)]
struct Person {
    role: Option<String>,
    agent: bool,
    recorder: bool,
    joins: BTreeSet<Sid>,
    frames: u64,
    bytes: u64,
    asked: u64,
    owned: u64,
}

pub(super) struct RoomTimeline {
    name: Option<String>,
    recorder: Option<Identity>,
    people: BTreeMap<Identity, Person>,
    people_omitted: BTreeSet<Identity>,
    events: Rows,
    event_count: usize,
    views: Rows,
    view_count: usize,
    /// The last state of each view that is shown, by the sender and the name.
    latest_views: BTreeMap<(Identity, String), Value>,
    packets: u64,
    bytes: u64,
    malformed: u64,
    redacted: u64,
    unsent: u64,
    unrecorded: u64,
    /// Packets that the recorder left out, by participant.
    left_out: BTreeMap<Option<Identity>, u64>,
}

impl RoomTimeline {
    pub(super) fn new(events_share: usize, views_share: usize) -> Self {
        Self {
            name: None,
            recorder: None,
            people: BTreeMap::new(),
            people_omitted: BTreeSet::new(),
            events: Rows::within(events_share),
            event_count: 0,
            views: Rows::within(views_share),
            view_count: 0,
            latest_views: BTreeMap::new(),
            packets: 0,
            bytes: 0,
            malformed: 0,
            redacted: 0,
            unsent: 0,
            unrecorded: 0,
            left_out: BTreeMap::new(),
        }
    }

    pub(super) fn call(&mut self, call: &RecordedCall) {
        if let Some(caller) = call.caller.as_ref().and_then(|caller| self.person(caller)) {
            caller.asked += 1;
        }
        if let Some(owner) = call.owner.as_ref().and_then(|owner| self.person(owner)) {
            owner.owned += 1;
        }
    }

    /// Adds a packet; `at` is in microseconds.
    pub(super) fn packet(&mut self, at: i64, packet: &Recorded) {
        let bytes = packet.payload.len() as u64;
        self.packets += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        let frame = Frame::decode(packet.payload.clone()).ok();
        let message = frame.as_ref().and_then(|frame| frame.message().ok());
        self.malformed += u64::from(message.is_none() && !packet.is_not_expanded());
        self.redacted += u64::from(frame.is_some_and(|frame| frame.meta_bool(REDACTED)));
        let recorder = self.recorder.as_ref().filter(|_| packet.direction == Direction::Sent);
        let from = packet.sender().or(recorder).cloned();
        if let Some(sender) = from.as_ref().and_then(|from| self.person(from)) {
            sender.frames += 1;
            sender.bytes = sender.bytes.saturating_add(bytes);
        }
        if let Some(Message::ViewUpdate(state)) = message.filter(|_| !packet.is_rpc()) {
            self.view(at, from.unwrap_or_else(|| Identity::from("")), state);
        }
    }

    /// Adds the state of a view. The same state again is a copy for another participant, and is not added.
    fn view(&mut self, at: i64, from: Identity, state: ViewUpdate) {
        if !can_be_shown(state.content.as_bytes()) {
            self.views.omitted += 1;
            return;
        }
        let section = render::view(&state.view, &state.content, state.text.as_deref(), result::VIEW);
        let section = result::section(&section);
        let key = (from, state.view);
        if self.latest_views.get(&key) == Some(&section) {
            return;
        }
        self.view_count += 1;
        if self.view_count > MAX_VIEWS {
            self.views.omitted += 1;
            return;
        }
        self.views.push(&json!([at, shown(key.0.as_str(), MAX_TEXT), section]), 0, 0);
        self.latest_views.insert(key, section);
    }

    /// Adds an event; `at` is in microseconds.
    pub(super) fn event(&mut self, at: i64, event: &RoomEvent) {
        let (kind, who, detail) = match event {
            RoomEvent::Here { identity, sid, room } => {
                self.name.get_or_insert_with(|| shown(room, MAX_TEXT));
                self.recorder.get_or_insert_with(|| identity.clone());
                if let Some(person) = self.person(identity) {
                    person.recorder = true;
                    person.join(sid);
                }
                ("here", Some(identity), shown(sid.as_str(), MAX_TEXT))
            }
            RoomEvent::Joined { identity, sid, agent, role, .. } => {
                let Some(person) = self.person(identity) else { return };
                person.agent |= agent;
                if let Some(role) = role {
                    person.role = Some(shown(role, MAX_TEXT));
                }
                // The same sid again: the participant's metadata changed.
                let kind = if person.join(sid) { "joined" } else { "changed" };
                (kind, Some(identity), shown(sid.as_str(), MAX_TEXT))
            }
            RoomEvent::Left { identity, sid } => ("left", Some(identity), shown(sid.as_str(), MAX_TEXT)),
            RoomEvent::Link { up } => (if *up { "up" } else { "down" }, None, String::new()),
            RoomEvent::Unsent { reason, .. } => {
                self.unsent += 1;
                ("unsent", None, shown(reason, MAX_TEXT))
            }
            RoomEvent::Unrecorded { packets } => {
                self.unrecorded = self.unrecorded.saturating_add(*packets);
                ("unrecorded", None, packets.to_string())
            }
            RoomEvent::LeftOut { identity, packets, .. } => {
                if self.left_out.len() < MAX_PEOPLE || self.left_out.contains_key(identity) {
                    self.left_out.insert(identity.clone(), *packets);
                }
                ("left_out", identity.as_ref(), packets.to_string())
            }
            RoomEvent::Closed { reason } => ("closed", None, shown(reason, MAX_TEXT)),
            RoomEvent::AnswersRpc { .. } => return, // a setting
            RoomEvent::Unasked { .. } | RoomEvent::Ended { .. } => return, // it is among the calls
            RoomEvent::Other => ("other", None, String::new()),
        };
        self.event_count += 1;
        if self.event_count > MAX_EVENTS {
            self.events.omitted += 1;
            return;
        }
        let who = who.map(|who| shown(who.as_str(), MAX_TEXT));
        self.events.push(&json!([at, kind, who, detail]), 0, 0);
    }

    /// The totals of the room.
    pub(super) fn head(&self) -> Value {
        json!({
            "name": self.name,
            "recorder": self.recorder.as_ref().map(|it| shown(it.as_str(), MAX_TEXT)),
            "packets": self.packets,
            "bytes": self.bytes,
            "malformed": self.malformed,
            "redacted": self.redacted,
            "unsent": self.unsent,
            "unrecorded": self.unrecorded,
            "leftOut": self.left_out.values().fold(0, |sum: u64, packets| sum.saturating_add(*packets)),
        })
    }

    /// The rows of participants, within this share, of events, and of views.
    pub(super) fn rows(self, people_share: usize) -> (Rows, Rows, Rows) {
        let mut rows = Rows::within(people_share);
        rows.omitted = self.people_omitted.len();
        for (identity, person) in &self.people {
            let row = json!([
                shown(identity.as_str(), MAX_TEXT),
                person.role,
                person.agent,
                person.recorder,
                person.joins.len(),
                person.frames,
                person.bytes,
                person.asked,
                person.owned,
            ]);
            rows.push(&row, 0, 0);
        }
        (rows, self.events, self.views)
    }

    fn person(&mut self, identity: &Identity) -> Option<&mut Person> {
        if !self.people.contains_key(identity) {
            if self.people.len() >= MAX_PEOPLE {
                // Counts as many again individually; no honest file has more.
                if self.people_omitted.len() < MAX_PEOPLE {
                    self.people_omitted.insert(identity.clone());
                }
                return None;
            }
            self.people.insert(identity.clone(), Person::default());
        }
        self.people.get_mut(identity)
    }
}

impl Person {
    /// Adds a join; returns whether it is new.
    fn join(&mut self, sid: &Sid) -> bool {
        self.joins.len() < MAX_JOINS && self.joins.insert(sid.clone())
    }
}
