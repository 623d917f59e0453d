//! Summarizes a recording: participants, frames, calls and latencies.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Write as _},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{
    Decoded, Direction, Entry, HIDDEN, Happened, Level, Moment, Recorded, RecordedCall, RoomEvent,
    check::Checker,
    entry::millis,
    format::{identity_of, sid_of},
    rpc::RpcRecord,
};
use crate::{escape::plain, protocol::frame::Kind, transport::Role};

/// How many participants are counted.
const MAX_PEERS: usize = 4_096;

/// How many joins of one participant are listed.
const MAX_SIDS: usize = 64;

/// How many joins of all participants are listed.
const MAX_SIDS_IN_ALL: usize = 16_384;

/// How many tools are listed; calls of further tools are counted under `(others)`.
const MAX_TOOLS: usize = 4_096;

/// How many outcomes of one tool are listed; further outcomes are counted under `(others)`.
const MAX_OUTCOMES: usize = 64;

/// The summary of a recording. Its JSON format is stable: fields are added, never renamed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Info {
    /// The version of the writer; empty if unknown.
    pub version: String,
    /// The room's name.
    pub room: String,
    /// The recorded participant.
    pub identity: String,
    /// The time of the first entry.
    #[serde(rename = "begunMs")]
    pub begun: Moment,
    /// The time from the first entry to the last.
    #[serde(rename = "durationMs", with = "millis")]
    pub duration: Duration,
    /// Whether the file holds metadata only: see [`About::metadata_only`](super::About::metadata_only).
    #[serde(default, rename = "metadataOnly", skip_serializing_if = "std::ops::Not::not")]
    pub metadata_only: bool,
    /// The number of entries.
    pub entries: u64,
    /// Whether the recording ended cleanly: its last event is `closed`.
    pub finished: bool,
    /// The participants.
    pub peers: Vec<PeerInfo>,
    /// Frames by type: `ToolUseRequest`, or `Unknown (3)`. Messages of LiveKit's RPC are `RpcRequest`, `RpcAck` and
    /// `RpcResponse`.
    pub frames: BTreeMap<String, u64>,
    /// Packets that should be frames but cannot be decoded.
    pub malformed: u64,
    /// Packets on topics of other applications.
    pub foreign: u64,
    /// The number of calls.
    pub calls: u64,
    /// Calls excluded from all figures because there are too many.
    pub dropped: u64,
    /// Calls by outcome: `ok`, `stopped`, `open`, or the code of the failure.
    pub outcomes: BTreeMap<String, u64>,
    /// The tools that were called.
    pub tools: Vec<ToolInfo>,
    /// Packets that the recorder dropped.
    pub unrecorded: u64,
    /// Packets of and to participants without rights that were left out, because a limit was reached.
    #[serde(default, rename = "leftOut", skip_serializing_if = "is_zero")]
    pub left_out: u64,
    /// Compressed frames that were not expanded: their senders had no rights, or they cannot be expanded.
    #[serde(default, rename = "notExpanded", skip_serializing_if = "is_zero")]
    pub not_expanded: u64,
    /// Packets that were not sent.
    pub unsent: u64,
    /// A description of the damage, if the file is damaged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
    /// The number of errors that `check` finds, by rule.
    pub problems: BTreeMap<String, u64>,
    /// The number of notes that `check` finds, by rule.
    pub notes: BTreeMap<String, u64>,
}

/// One participant of a recording.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PeerInfo {
    /// Its identity; empty for senders that the room did not identify.
    pub identity: String,
    /// The role in its token, if the room reported one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Whether LiveKit reports it as an agent.
    pub agent: bool,
    /// The sids of its joins; at most 64.
    pub sids: Vec<String>,
    /// Packets that the recorded participant sent to it. A packet to several receivers counts for each; a broadcast
    /// counts for none.
    pub sent: Traffic,
    /// Packets received from it. For the recorded participant itself: everything it sent, each packet once.
    pub heard: Traffic,
    /// Packets of and to it that the recorder left out, because it has no rights and a limit was reached.
    #[serde(default, rename = "leftOut", skip_serializing_if = "Traffic::is_nothing")]
    pub left_out: Traffic,
}

/// A packet and byte count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Traffic {
    /// Packets; a stream counts as one.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// The calls of one tool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolInfo {
    /// Its name; empty for calls whose request is not in the file.
    pub name: String,
    /// The number of calls.
    pub calls: u64,
    /// By outcome, as in [`Info::outcomes`].
    pub outcomes: BTreeMap<String, u64>,
    /// The time from request to result; none if no call was settled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
}

/// Percentiles of the time from request to result, in milliseconds, by the nearest-rank method: each is a measured
/// time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Latency {
    /// The 50th percentile.
    #[serde(rename = "p50Ms")]
    pub p50: f64,
    /// The 90th percentile.
    #[serde(rename = "p90Ms")]
    pub p90: f64,
    /// The 99th percentile.
    #[serde(rename = "p99Ms")]
    pub p99: f64,
    /// The maximum.
    #[serde(rename = "maxMs")]
    pub max: f64,
}

/// Summarizes a recording.
pub fn info(entries: impl IntoIterator<Item = Entry>) -> Info {
    let mut builder = InfoBuilder::default();
    for entry in entries {
        builder.push(&entry);
    }
    builder.finish()
}

/// Builds the summary of a recording entry by entry; [`info`] does it in one step.
#[derive(Debug, Default)]
pub struct InfoBuilder {
    info: Info,
    peers: BTreeMap<String, PeerInfo>,
    sids: usize,
    checker: Checker,
    first: Option<Moment>,
    last: Moment,
    index: usize,
}

impl InfoBuilder {
    /// Takes the next entry.
    pub fn push(&mut self, entry: &Entry) {
        self.first.get_or_insert(entry.at);
        self.last = self.last.max(entry.at);
        self.info.entries += 1;
        match &entry.what {
            Happened::Event(event) => {
                self.checker.handle_event(self.index, entry, event);
                self.handle_event(event);
            }
            Happened::Packet(packet) => {
                let decoded = Decoded::of(packet);
                self.checker.handle_packet(self.index, entry, packet, &decoded);
                self.packet(packet, &decoded);
            }
        }
        self.index += 1;
    }

    /// Returns the summary.
    pub fn finish(self) -> Info {
        let mut info = self.info;
        info.begun = self.first.unwrap_or_default();
        info.duration = self.last.since(info.begun);
        info.peers = self.peers.into_values().collect();
        info.left_out = info.peers.iter().fold(0, |sum, peer| peer.left_out.packets.saturating_add(sum));
        let (checked, calls) = self.checker.finish_with_calls();
        info.dropped = calls.dropped;
        info.calls = calls.calls.len() as u64;
        let mut tools = BTreeMap::<String, (ToolInfo, Vec<Duration>)>::new();
        for call in &calls.calls {
            let outcome = call.outcome.as_str().to_owned();
            let is_new = !tools.contains_key(&call.tool);
            let name = if is_new && tools.len() >= MAX_TOOLS { "(others)" } else { call.tool.as_str() };
            let (tool, times) = tools.entry(name.to_owned()).or_default();
            tool.calls += 1;
            count(&mut tool.outcomes, &outcome, MAX_OUTCOMES);
            count(&mut info.outcomes, &outcome, MAX_TOOLS);
            times.extend(took(call));
        }
        let tools = tools.into_iter().map(|(name, (tool, mut times))| {
            times.sort_unstable();
            ToolInfo { name, latency: Latency::of(&times), ..tool }
        });
        info.tools = tools.collect();
        for finding in checked.findings {
            let rules = if finding.level == Level::Error { &mut info.problems } else { &mut info.notes };
            count(rules, &finding.rule, MAX_TOOLS);
        }
        info
    }

    fn handle_event(&mut self, event: &RoomEvent) {
        self.info.finished = matches!(event, RoomEvent::Closed { .. });
        match event {
            RoomEvent::Here { identity, sid, room } => {
                if self.info.room.is_empty() {
                    self.info.room.clone_from(room);
                    self.info.identity = identity.to_string();
                }
                self.join(identity.as_str(), sid.as_str());
            }
            RoomEvent::Joined { identity, sid, agent, role, .. } => {
                if let Some(peer) = self.join(identity.as_str(), sid.as_str()) {
                    peer.agent = *agent;
                    peer.role.clone_from(role);
                }
            }
            RoomEvent::Unsent { .. } => self.info.unsent += 1,
            RoomEvent::Unrecorded { packets } => {
                self.info.unrecorded = self.info.unrecorded.saturating_add(*packets);
            }
            RoomEvent::LeftOut { identity, packets, bytes, .. } => {
                let (packets, bytes) = (*packets, *bytes);
                if let Some(peer) = self.peer(identity.as_ref().map_or("", |id| id.as_str())) {
                    peer.left_out = Traffic { packets, bytes }; // of the whole recording so far
                }
            }
            RoomEvent::AnswersRpc { .. }
            | RoomEvent::Left { .. }
            | RoomEvent::Link { .. }
            | RoomEvent::Closed { .. }
            | RoomEvent::Unasked { .. }
            | RoomEvent::Ended { .. }
            | RoomEvent::Other => {}
        }
    }

    fn packet(&mut self, packet: &Recorded, decoded: &Decoded) {
        match decoded {
            Decoded::Foreign => self.info.foreign += 1,
            Decoded::Malformed(_) => self.info.malformed += 1,
            Decoded::Compressed(_) => self.info.not_expanded += 1,
            Decoded::Frame(_, message) if packet.is_rpc() => {
                count(&mut self.info.frames, RpcRecord::name(message), MAX_TOOLS);
            }
            Decoded::Frame(frame, _) => count(&mut self.info.frames, &kind_word(frame.kind()), MAX_TOOLS),
        }
        let bytes = decoded.size(packet);
        if let Some(peer) = self.join(identity_of(packet.from.as_ref()), sid_of(packet.from.as_ref())) {
            peer.heard.add(bytes);
        }
        if packet.direction == Direction::Sent {
            for who in &packet.to {
                if let Some(peer) = self.peer(who.as_str()) {
                    peer.sent.add(bytes);
                }
            }
        }
    }

    fn join(&mut self, identity: &str, sid: &str) -> Option<&mut PeerInfo> {
        let has_room = self.sids < MAX_SIDS_IN_ALL;
        let peer = self.peer(identity)?;
        let is_new = has_room
            && !sid.is_empty()
            && peer.sids.len() < MAX_SIDS
            && !peer.sids.iter().any(|known| known == sid);
        if is_new {
            peer.sids.push(sid.to_owned());
        }
        self.sids += usize::from(is_new);
        self.peers.get_mut(identity)
    }

    fn peer(&mut self, identity: &str) -> Option<&mut PeerInfo> {
        if !self.peers.contains_key(identity) {
            if self.peers.len() >= MAX_PEERS {
                return None;
            }
            let new = PeerInfo { identity: identity.to_owned(), ..PeerInfo::default() };
            self.peers.insert(identity.to_owned(), new);
        }
        self.peers.get_mut(identity)
    }
}

impl Traffic {
    fn is_nothing(&self) -> bool {
        self.packets == 0
    }

    fn add(&mut self, bytes: usize) {
        self.packets += 1;
        self.bytes += bytes as u64;
    }
}

impl Latency {
    fn of(sorted: &[Duration]) -> Option<Self> {
        let at = |share: f64| {
            let rank = (sorted.len() as f64 * share).ceil() as usize;
            sorted.get(rank.saturating_sub(1)).map(|time| millis::of(*time))
        };
        Some(Self { p50: at(0.5)?, p90: at(0.9)?, p99: at(0.99)?, max: at(1.0)? })
    }
}

fn took(call: &RecordedCall) -> Option<Duration> {
    // An observer may receive the result before the request; the duration is then unknown.
    let (requested, settled) = (call.requested?, call.settled?);
    (settled >= requested).then(|| settled.since(requested))
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn kind_word(kind: Kind) -> String {
    if kind.is_known() { kind.name().to_owned() } else { kind.to_string() }
}

/// Increments a count. The map is bounded, since its keys come from the file.
fn count(map: &mut BTreeMap<String, u64>, word: &str, most: usize) {
    let word = if map.len() >= most && !map.contains_key(word) { "(others)" } else { word };
    match map.get_mut(word) {
        Some(count) => *count += 1,
        None => drop(map.insert(word.to_owned(), 1)),
    }
}

impl Info {
    /// What an observer's recording contains, if the recorded participant is an observer.
    fn observer_hears(&self) -> Option<&'static str> {
        let recorded = self.peers.iter().find(|peer| peer.identity == self.identity)?;
        match recorded.role.as_deref()? {
            HIDDEN => Some("a hidden observer: it receives only broadcasts"),
            role if role == Role::Observer.as_str() => {
                Some("an observer: it receives copies, but no Configurations or acknowledgements")
            }
            _ => None,
        }
    }
}

/// The width from which on the tables are printed in full.
const FULL_WIDTH: usize = 100;

/// With a width, as in `{info:60}`, lists and tables keep to it, down to 60 columns.
impl fmt::Display for Info {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = f.width().filter(|width| *width < FULL_WIDTH);
        let out = f;
        let begun = clock(self.begun);
        // The widths of the columns: of a name, a role and numbers.
        let [name, role, packets, bytes] = if width.is_some() { [16, 9, 7, 8] } else { [24, 10, 9, 12] };
        let [calls, time] = if width.is_some() { [6, 8] } else { [7, 10] };
        writeln!(out, "room       {}, recorded by {}", plain(&self.room), plain(&self.identity))?;
        if let Some(hears) = self.observer_hears() {
            writeln!(out, "           {hears}")?;
        }
        writeln!(out, "begun      {begun}, {:.3} s, {} entries", self.duration.as_secs_f64(), self.entries)?;
        if self.metadata_only {
            writeln!(out, "content    metadata only: no arguments, results or other texts")?;
        }
        if !self.finished {
            writeln!(out, "           the recording did not end cleanly")?;
        }
        if let Some(damage) = &self.damage {
            writeln!(out, "damaged    {}", plain(damage))?;
        }
        if self.unrecorded > 0 {
            writeln!(out, "missing    {} packets were not recorded", self.unrecorded)?;
        }
        for peer in self.peers.iter().filter(|peer| peer.left_out.packets > 0) {
            let Traffic { packets, bytes } = peer.left_out;
            let who = if peer.identity.is_empty() { "(unnamed)" } else { &peer.identity };
            writeln!(out, "left out   {packets} packets, {bytes} bytes: {} has no rights", plain(who))?;
        }
        if self.not_expanded > 0 {
            writeln!(out, "compressed {} packets were not expanded", self.not_expanded)?;
        }
        if self.unsent > 0 {
            writeln!(out, "unsent     {} packets were not sent", self.unsent)?;
        }
        if self.malformed > 0 {
            writeln!(out, "malformed  {} packets", self.malformed)?;
        }
        writeln!(out, "frames     {}", listed(&counts(&self.frames), 11, width))?;
        let outcomes = format!("{} ({})", self.calls, counts(&self.outcomes));
        writeln!(out, "calls      {}", listed(&outcomes, 11, width))?;
        if self.dropped > 0 {
            writeln!(out, "           {} more are not counted here", self.dropped)?;
        }
        writeln!(out, "problems   {}", listed(&counts(&self.problems), 11, width))?;
        writeln!(out, "notes      {}", listed(&counts(&self.notes), 11, width))?;
        writeln!(out)?;
        writeln!(
            out,
            "{:<name$} {:<role$} {:>packets$} {:>bytes$} {:>packets$} {:>bytes$}",
            "participant", "role", "sent to", "bytes", "heard", "bytes"
        )?;
        for peer in &self.peers {
            let identity = if peer.identity.is_empty() { "(unnamed)" } else { &peer.identity };
            let of_peer = peer.role.as_deref().unwrap_or(if peer.agent { "agent" } else { "-" });
            let (sent, heard) = (peer.sent, peer.heard);
            writeln!(
                out,
                "{:<name$} {:<role$} {:>packets$} {:>bytes$} {:>packets$} {:>bytes$}",
                plain(identity),
                plain(of_peer),
                sent.packets,
                sent.bytes,
                heard.packets,
                heard.bytes
            )?;
        }
        if self.tools.is_empty() {
            return Ok(());
        }
        writeln!(out)?;
        writeln!(
            out,
            "{:<name$} {:>calls$} {:>time$} {:>time$} {:>time$} {:>time$}",
            "tool", "calls", "p50 ms", "p90 ms", "p99 ms", "max ms"
        )?;
        for tool in &self.tools {
            let of_tool = if tool.name.is_empty() { "(unknown)" } else { &tool.name };
            write!(out, "{:<name$} {:>calls$}", plain(of_tool), tool.calls)?;
            for percentile in
                [|it: Latency| it.p50, |it: Latency| it.p90, |it: Latency| it.p99, |it: Latency| it.max]
            {
                let shown =
                    tool.latency.map_or_else(|| "-".to_owned(), |it| format!("{:.3}", percentile(it)));
                write!(out, " {shown:>time$}")?;
            }
            match width {
                Some(_) => writeln!(out, "\n    {}", listed(&counts(&tool.outcomes), 4, width))?,
                None => writeln!(out, "  {}", counts(&tool.outcomes))?,
            }
        }
        Ok(())
    }
}

/// Continues a list that is too wide on lines below, indented.
fn listed(list: &str, indent: usize, width: Option<usize>) -> String {
    let Some(width) = width else { return list.to_owned() };
    let (mut out, mut used) = (String::new(), indent);
    for (n, item) in list.split(", ").enumerate() {
        let length = item.chars().count();
        if n > 0 {
            out.push(',');
            // With the comma that may follow.
            if used + 2 + length + 1 > width {
                out.push('\n');
                out.push_str(&" ".repeat(indent));
                used = indent;
            } else {
                out.push(' ');
                used += 2;
            }
        }
        out.push_str(item);
        used += length;
    }
    out
}

fn counts(map: &BTreeMap<String, u64>) -> String {
    let all: BTreeSet<_> = map.iter().map(|(word, count)| (std::cmp::Reverse(*count), word)).collect();
    let mut out = String::new();
    for (std::cmp::Reverse(count), word) in all {
        let comma = if out.is_empty() { "" } else { ", " };
        let _ = write!(out, "{comma}{} {count}", plain(word)); // writing to a string cannot fail
    }
    if out.is_empty() { "none".to_owned() } else { out }
}

/// A moment as RFC 3339, in UTC.
pub(crate) fn clock(at: Moment) -> String {
    const DAY: u64 = 86_400;
    let (seconds, nanos) = (at.0 / 1_000_000_000, at.0 % 1_000_000_000);
    // Days since 1970-03-01 of the era of 400 years that began in 2000, by the civil calendar.
    let days = seconds / DAY + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let shifted = (5 * day + 2) / 153;
    let day = day - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (seconds % DAY / 3_600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:06}Z", nanos / 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_is_continued_on_lines_below() {
        let list = ["Acknowledgement 5, Configuration 4", "ToolUseRequest 3"].join(", ");
        assert_eq!(listed(&list, 4, None), list);
        assert_eq!(listed(&list, 4, Some(40)), "Acknowledgement 5, Configuration 4,\n    ToolUseRequest 3");
        assert!(listed(&list, 4, Some(30)).lines().all(|line| line.len() <= 30));
    }

    #[test]
    fn moment_is_formatted_as_rfc_3339() {
        assert_eq!(clock(Moment(0)), "1970-01-01T00:00:00.000000Z");
        assert_eq!(clock(Moment(951_782_400_000_000_000)), "2000-02-29T00:00:00.000000Z");
        assert_eq!(clock(Moment(1_735_689_599_123_456_789)), "2024-12-31T23:59:59.123456Z");
        assert_eq!(clock(Moment(u64::MAX)), "2554-07-21T23:34:33.709551Z");
    }

    #[test]
    fn latency_percentiles_are_measured_times() {
        let times: Vec<_> = (1..=100).map(Duration::from_millis).collect();
        let Latency { p50, p90, p99, max } = Latency::of(&times).unwrap();
        assert_eq!((p50, p90, p99, max), (50.0, 90.0, 99.0, 100.0));
        assert_eq!(Latency::of(&[]), None);
    }
}
