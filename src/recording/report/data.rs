//! Writes the page's data as JSON, within limits.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    time::Duration,
};

use serde::Serialize;
use serde_json::json;

use super::{
    super::{
        Direction, Entry, Happened, Moment, Recorded, RecordedCall, RecordedOutcome,
        decoded::{can_be_shown, frame_json},
        original::frame_size,
    },
    numbers::{Ending, Numbers, numbers},
    text::{MAX_TEXT, embedded, json, shown},
};
use crate::{
    protocol::frame::{Frame, Kind},
    transport::{Identity, Lane},
};
use room::RoomTimeline;

mod result;
mod room;

/// The maximum number of calls, in the given order.
const MAX_CALLS: usize = 100_000;
/// The maximum number of frames of one call.
const MAX_CALL_FRAMES: usize = 200;
/// The maximum number of tools in the table.
const MAX_TOOLS: usize = 1_000;
/// The maximum number of notes.
const MAX_NOTES: usize = 20;
/// The longest body, in bytes of JSON.
const MAX_BODY: usize = 16 << 10;
/// The longest `meta`, in bytes of JSON.
const MAX_META: usize = 2 << 10;
/// How many bytes are shown of a packet that is not a frame.
const MAX_RAW: usize = 256;

/// The size limit of the data: a browser parses it within a second or two.
const MAX_DATA: usize = 32 << 20;
/// The calls' share. What they leave, frames may use.
const CALLS_SHARE: usize = 14 << 20;
const FRAMES_SHARE: usize = 14 << 20;
/// The shares of room events, participants and tools. Their rows are short, and their number is limited.
const EVENTS_SHARE: usize = 2 << 20;
const PEOPLE_SHARE: usize = 1 << 20;
const TOOLS_SHARE: usize = 1 << 19;
/// The share of the states of views, which have limits of their own.
const VIEWS_SHARE: usize = 1 << 18;
/// The longest row of a frame without body and `meta`, in bytes. So much is reserved for each later frame.
const FRAME_HEAD: usize = 128;

/// Collects the data of the page.
pub(super) fn block(
    entries: impl IntoIterator<Item = Entry>,
    calls: &[RecordedCall],
    title: &str,
    notes: &[String],
) -> Data {
    let mut entries = entries.into_iter().peekable();
    let times = calls.iter().flat_map(moments);
    let base = times.chain(entries.peek().map(|entry| entry.at)).min().unwrap_or_default();
    let mut block = Block::new(base);
    let mut room = RoomTimeline::new(EVENTS_SHARE, VIEWS_SHARE);
    block.calls(calls, &mut room);
    for (place, entry) in entries.enumerate() {
        let at = block.at(entry.at);
        match entry.what {
            Happened::Packet(packet) => {
                room.packet(at, &packet);
                block.packet(place, at, &packet);
            }
            Happened::Event(event) => room.event(at, &event),
        }
    }
    block.finish(room, calls, title, notes)
}

/// Who runs a call, and how it was asked to if not by frames.
fn execution(call: &RecordedCall) -> Option<String> {
    let execution = call.execution?.as_str();
    Some(match call.rpc {
        Some(version) => format!("{execution}, by LiveKit's RPC (version {version})"),
        None => execution.to_owned(),
    })
}

fn moments(call: &RecordedCall) -> impl Iterator<Item = Moment> {
    [call.requested, call.delivered, call.started, call.stopped, call.settled].into_iter().flatten()
}

/// The data, in its parts.
pub(super) struct Data {
    values: [(&'static str, String); 3],
    rows: [(&'static str, String); 6],
}

impl Data {
    /// Writes it as one JSON object with one line per part, so that people can read the file.
    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let mut before = '{';
        for (name, value) in &self.values {
            writeln!(out, "{before}\"{name}\":{value}")?;
            before = ',';
        }
        for (name, rows) in &self.rows {
            writeln!(out, ",\"{name}\":[{rows}]")?;
        }
        out.write_all(b"}")
    }
}

/// Rows of JSON within a share of the data.
#[derive(Default)]
struct Rows {
    text: String,
    left: usize,
    omitted: usize,
}

impl Rows {
    fn within(share: usize) -> Self {
        Self { left: share, ..Self::default() }
    }

    /// Adds a row if it and its new texts fit and `keep` bytes stay free; otherwise counts it as omitted.
    fn push(&mut self, row: &impl Serialize, brings: usize, keep: usize) -> bool {
        let row = embedded(row);
        let cost = row.len() + 1 + brings;
        if cost + keep > self.left {
            self.omitted += 1;
            return false;
        }
        self.left -= cost;
        if !self.text.is_empty() {
            self.text.push(',');
        }
        self.text.push_str(&row);
        true
    }
}

/// Texts that rows refer to by index.
#[derive(Default)]
struct Texts {
    all: Vec<String>,
    places: BTreeMap<String, usize>,
    /// The size that texts added since the last [`take_cost`](Self::take_cost) add to the data.
    cost: usize,
}

impl Texts {
    fn place(&mut self, text: &str) -> usize {
        let text = shown(text, MAX_TEXT);
        if let Some(place) = self.places.get(&text) {
            return *place;
        }
        let place = self.all.len();
        self.cost += embedded(&text).len() + 1;
        self.places.insert(text.clone(), place);
        self.all.push(text);
        place
    }

    fn take_cost(&mut self) -> usize {
        std::mem::take(&mut self.cost)
    }

    /// Removes all texts after the first `kept`: the row that added them did not fit.
    fn forget_after(&mut self, kept: usize) {
        for text in self.all.drain(kept..) {
            self.places.remove(&text);
        }
    }
}

struct Block {
    base: Moment,
    /// In microseconds since `base`.
    span: (i64, i64),
    texts: Texts,
    calls: Rows,
    frames: Rows,
    /// The entries that are frames of shown calls, last to first.
    wanted: Vec<usize>,
    bodies_omitted: usize,
}

impl Block {
    fn new(base: Moment) -> Self {
        Self {
            base,
            span: (0, 0),
            texts: Texts::default(),
            calls: Rows::within(CALLS_SHARE),
            frames: Rows::within(FRAMES_SHARE),
            wanted: Vec::new(),
            bodies_omitted: 0,
        }
    }

    /// Microseconds since the first entry; negative if the clock was set back.
    fn at(&mut self, moment: Moment) -> i64 {
        let nanoseconds = i128::from(moment.0) - i128::from(self.base.0);
        // Never clamped: 2^64 nanoseconds are 2^54 microseconds.
        let at = i64::try_from(nanoseconds / 1000).unwrap_or_default();
        self.span = (self.span.0.min(at), self.span.1.max(at));
        at
    }

    fn calls(&mut self, calls: &[RecordedCall], room: &mut RoomTimeline) {
        for call in calls {
            room.call(call);
        }
        for call in calls.iter().take(MAX_CALLS) {
            let kept = self.texts.all.len();
            let (code, message) = match &call.outcome {
                RecordedOutcome::Failed { code, message } => (Some(code.as_str()), message.as_deref()),
                _ => (None, None),
            };
            // A call without an owner and a request has an event, but no frames.
            let frames =
                if call.owner.is_none() && call.parameters.is_none() { 0 } else { call.entries.len() };
            let entries = &call.entries[..frames.min(MAX_CALL_FRAMES)];
            let mut at = |moment: Option<Moment>| moment.map(|moment| self.at(moment));
            let times =
                [call.requested, call.delivered, call.started, call.stopped, call.settled].map(&mut at);
            let texts = &mut self.texts;
            let row = json!([
                shown(call.id.as_str(), MAX_TEXT),
                texts.place(&call.tool),
                execution(call),
                texts.place(call.caller.as_ref().map_or("", Identity::as_str)),
                call.owner.as_ref().map(|owner| texts.place(owner.as_str())),
                call.limit.map(milliseconds),
                call.parameters,
                call.result,
                times,
                Ending::of(&call.outcome) as usize,
                code.map(|code| texts.place(code)),
                message.map(|message| shown(message, 4 * MAX_TEXT)),
                entries,
                frames,
            ]);
            let brings = self.texts.take_cost();
            if self.calls.push(&row, brings, 0) {
                self.wanted.extend_from_slice(entries);
            } else {
                self.texts.forget_after(kept);
            }
        }
        self.calls.omitted += calls.len().saturating_sub(MAX_CALLS);
        self.frames.left += self.calls.left;
        self.wanted.sort_unstable_by(|one, other| other.cmp(one));
        self.wanted.dedup();
    }

    fn packet(&mut self, place: usize, at: i64, packet: &Recorded) {
        // The caller may have counted other entries; skip those that have passed.
        while self.wanted.last().is_some_and(|wanted| *wanted < place) {
            self.wanted.pop();
        }
        if self.wanted.last() != Some(&place) {
            return;
        }
        self.wanted.pop();
        let keep = self.wanted.len() * FRAME_HEAD;
        // A body takes about its size as JSON; one that cannot fit is skipped.
        let least = packet.payload.len().min(MAX_BODY) / 2;
        let with_body = self.frames.left > keep + FRAME_HEAD + least;
        let shown = Shown::of(packet, with_body);
        let kept = self.texts.all.len();
        let to: Vec<&str> = packet.to.iter().map(|to| to.as_str()).take(MAX_TEXT).collect();
        let to = if to.is_empty() { None } else { Some(self.texts.place(&to.join(", "))) };
        let from = self.texts.place(packet.sender().map_or("", Identity::as_str));
        let brings = self.texts.take_cost();
        let row = |shown: &Shown| {
            json!([
                place,
                at,
                packet.direction == Direction::Sent,
                shown.kind,
                shown.stanza,
                shown.size,
                from,
                to,
                packet.lane == Lane::Lossy,
                packet.stream,
                shown.body,
                shown.meta,
                shown.result,
                packet.compressed,
            ])
        };
        if with_body && self.frames.push(&row(&shown), brings, keep) {
            return;
        }
        self.frames.omitted -= usize::from(with_body);
        if self.frames.push(&row(&shown.head()), brings, 0) {
            self.bodies_omitted += 1;
        } else {
            self.texts.forget_after(kept);
        }
    }

    fn finish(self, room: RoomTimeline, calls: &[RecordedCall], title: &str, notes: &[String]) -> Data {
        let notes: Vec<String> = notes.iter().take(MAX_NOTES).map(|note| shown(note, 4 * MAX_TEXT)).collect();
        let (all, by_tool) = numbers(calls);
        let mut tools = Rows::within(TOOLS_SHARE);
        let mut by_calls: Vec<(&str, Numbers)> = by_tool.into_iter().collect();
        by_calls.sort_by_key(|(_, numbers)| std::cmp::Reverse(numbers.calls));
        for (tool, numbers) in by_calls.iter().take(MAX_TOOLS) {
            tools.push(&tool_row(&shown(tool, MAX_TEXT), numbers), 0, 0);
        }
        tools.omitted += by_calls.len().saturating_sub(MAX_TOOLS);
        let head = json!({
            "title": shown(title, 4 * MAX_TEXT),
            "version": env!("CARGO_PKG_VERSION"),
            "base": self.base.0 / 1_000_000,
            "span": self.span,
            "all": tool_row("", &all),
            "room": room.head(),
            "notes": notes,
            "limits": {"body": MAX_BODY, "frames": MAX_CALL_FRAMES, "data": MAX_DATA},
        });
        let (people, events, views) = room.rows(PEOPLE_SHARE);
        let omitted = json!({
            "calls": self.calls.omitted,
            "frames": self.frames.omitted,
            "bodies": self.bodies_omitted,
            "events": events.omitted,
            "participants": people.omitted,
            "tools": tools.omitted,
            "views": views.omitted,
        });
        Data {
            values: [
                ("head", embedded(&head)),
                ("omitted", embedded(&omitted)),
                ("texts", embedded(&self.texts.all)),
            ],
            rows: [
                ("tools", tools.text),
                ("participants", people.text),
                ("events", events.text),
                ("views", views.text),
                ("calls", self.calls.text),
                ("frames", self.frames.text),
            ],
        }
    }
}

fn tool_row(name: &str, numbers: &Numbers) -> serde_json::Value {
    let times = [50, 90, 99, 100].map(|it| numbers.percentile(it));
    json!([name, numbers.calls, numbers.by_ending, times])
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The displayed parts of a frame.
struct Shown {
    /// None if the bytes are not a frame.
    kind: Option<u16>,
    stanza: Option<i32>,
    /// The original size in bytes, before redaction.
    size: usize,
    /// JSON of at most [`MAX_BODY`] bytes, and its full length.
    body: Option<(String, usize)>,
    meta: Option<(String, usize)>,
    /// A result with parts, as a person sees it.
    result: Option<serde_json::Value>,
}

impl Shown {
    fn of(packet: &Recorded, with_body: bool) -> Self {
        match Frame::decode(packet.payload.clone()) {
            Err(error) => Self {
                kind: None,
                stanza: None,
                size: packet.payload.len(),
                body: with_body.then(|| malformed(&error.to_string(), &packet.payload)),
                meta: None,
                result: None,
            },
            Ok(frame) => Self {
                kind: Some(frame.kind().code()),
                stanza: frame.stanza_id(),
                size: frame_size(&frame).unwrap_or(packet.payload.len()),
                body: with_body.then(|| body(&frame)),
                meta: if with_body { meta(&frame) } else { None },
                result: if with_body { result::row(&frame) } else { None },
            },
        }
    }

    fn head(&self) -> Self {
        Self { kind: self.kind, stanza: self.stanza, size: self.size, body: None, meta: None, result: None }
    }
}

fn body(frame: &Frame) -> (String, usize) {
    match frame_json(frame) {
        Ok(mut shown) => json(&shown["body"].take(), MAX_BODY),
        Err(error) => malformed(&error, frame.body_bytes()),
    }
}

/// The frame's `meta`, if not empty, without the keys by which processes know each other: they say nothing to a person.
fn meta(frame: &Frame) -> Option<(String, usize)> {
    let meta = frame.meta_body();
    if !can_be_shown(meta.as_bytes()) {
        return None;
    }
    let mut meta = meta.to_json();
    let fields = meta.as_object_mut()?;
    if frame.kind() == Kind::CONFIGURATION {
        fields.shift_remove("bridge.instance");
        fields.shift_remove("bridge.proof");
    }
    (!fields.is_empty()).then(|| json(&meta, MAX_META))
}

fn malformed(error: &str, bytes: &[u8]) -> (String, usize) {
    let hexadecimal: String = bytes.iter().take(MAX_RAW).map(|byte| format!("{byte:02x}")).collect();
    let note = if bytes.len() > MAX_RAW { "firstBytes" } else { "bytes" };
    json(&json!({"malformed": error, note: hexadecimal}), MAX_BODY)
}
