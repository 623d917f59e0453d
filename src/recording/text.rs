//! Formats an entry as a line of text or as canonical JSON.

use std::{fmt::Write as _, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map, Value, json};

use super::{
    Decoded, Direction, Entry, Happened, LeftOutLimit, Moment, Recorded, RecordedCall, RecordedOutcome,
    RoomEvent,
    decoded::{call_of, frame_json, name_of},
    entry::millis,
    format::{identity_of, sid_of},
    info::clock,
};
use crate::{
    escape::plain,
    protocol::frame::Message,
    transport::{Identity, Lane},
};

/// What is said of a compressed packet that is recorded as it was received.
const NOT_EXPANDED: &str = "a compressed frame that was not expanded";

/// The longest tool name, id or other text in a line, in characters.
const MAX_WORD: usize = 64;

/// Formats an entry as one line: time, peer, size and content. Control characters are escaped.
///
/// Times are seconds since `begun` or, without it, RFC 3339 in UTC. The line omits arguments and results;
/// [`entry_json`] includes them.
///
/// ```
/// use toolbridge::recording::{Entry, Happened, Moment, RoomEvent, entry_text};
///
/// let left = RoomEvent::Left { identity: "pho\u{1b}[31mne".into(), sid: "PA_1".into() };
/// let entry = Entry::new(Moment(1_250_000_000), Happened::Event(left));
/// assert_eq!(entry_text(&entry, Some(Moment(1_000_000_000))), r"  0.250000   pho\u{1b}[31mne  left");
/// ```
pub fn entry_text(entry: &Entry, begun: Option<Moment>) -> String {
    let mut line = match begun.map(|begun| entry.at.since(begun)) {
        Some(at) => format!("{:>3}.{:06} ", at.as_secs(), at.subsec_micros()),
        None => format!("{} ", clock(entry.at)),
    };
    match &entry.what {
        Happened::Packet(packet) => packet_text(&mut line, packet),
        Happened::Event(event) => event_text(&mut line, event),
    }
    plain(line.trim_end()).into_owned()
}

/// Converts an entry to JSON: `entry` (its position), `atMs` (milliseconds since 1970) and its content.
///
/// An event has the fields it has in the file. A packet has `direction`, `from`, `sid`, `to`, `topic`, `lane`,
/// `stream`, `channel`, `sequence` and `bytes`; then `frame` as canonical JSON (`wire.md`, section 9) or, if it
/// cannot be decoded, `refused` with the reason and `raw` with its bytes as base64.
pub fn entry_json(index: usize, entry: &Entry) -> Value {
    let mut json = Map::new();
    json.insert("entry".into(), index.into());
    json.insert("atMs".into(), millis::of(Duration::from_nanos(entry.at.0)).into());
    match &entry.what {
        Happened::Packet(packet) => packet_json(&mut json, packet),
        Happened::Event(event) => {
            if let Ok(Value::Object(fields)) = serde_json::to_value(event) {
                json.extend(fields);
            }
        }
    }
    json.into()
}

/// Converts a call to JSON with every field of [`RecordedCall`] under its name. Times are `requestedMs` and so on, in
/// milliseconds since 1970; the limit is `limitMs`; `outcome` is `ok`, `open`, `stopped` or the code of the failure;
/// and `message` is the failure's text.
pub fn call_json(call: &RecordedCall) -> Value {
    let message = match &call.outcome {
        RecordedOutcome::Failed { message, .. } => message.as_deref(),
        _ => None,
    };
    json!({
        "id": call.id.as_str(),
        "tool": call.tool,
        "execution": call.execution.map(|it| it.as_str()),
        "caller": call.caller.as_ref().map_or("", Identity::as_str),
        "owner": call.owner.as_ref().map(|it| it.as_str()),
        "rpc": call.rpc,
        "limitMs": call.limit.map(millis::of),
        "parameters": call.parameters,
        "result": call.result,
        "requestedMs": call.requested,
        "deliveredMs": call.delivered,
        "startedMs": call.started,
        "stoppedMs": call.stopped,
        "settledMs": call.settled,
        "outcome": call.outcome.as_str(),
        "message": message,
        "entries": call.entries,
    })
}

fn packet_json(json: &mut Map<String, Value>, packet: &Recorded) {
    let decoded = Decoded::of(packet);
    let to: Vec<_> = packet.to.iter().map(|who| who.as_str()).collect();
    let fields = json!({
        "direction": packet.direction,
        "from": identity_of(packet.from.as_ref()),
        "sid": sid_of(packet.from.as_ref()),
        "to": to,
        "topic": packet.topic,
        "lane": lane(packet.lane),
        "stream": packet.stream,
        "compressed": packet.compressed,
        "channel": packet.channel,
        "sequence": packet.sequence,
        "bytes": decoded.size(packet),
    });
    if let Value::Object(fields) = fields {
        json.extend(fields);
    }
    let frame = match decoded {
        Decoded::Frame(frame, _) => frame_json(&frame),
        Decoded::Malformed(error) => Err(error.to_string()),
        Decoded::Compressed(_) => Err(NOT_EXPANDED.to_owned()),
        Decoded::Foreign => Err("the topic belongs to another application".to_owned()),
    };
    match frame {
        Ok(frame) => {
            json.insert("frame".into(), frame);
        }
        Err(refused) => {
            json.insert("refused".into(), refused.into());
            json.insert("raw".into(), STANDARD.encode(&packet.payload).into());
        }
    }
}

fn packet_text(line: &mut String, packet: &Recorded) {
    let (arrow, peer) = match packet.direction {
        Direction::Sent => ("→", receivers(packet)),
        Direction::Heard => {
            let unnamed = || "(unnamed)".to_owned();
            ("←", packet.sender().map_or_else(unnamed, |sender| word(sender.as_str())))
        }
    };
    // Writing to a string cannot fail.
    let decoded = Decoded::of(packet);
    let _ = write!(line, "{arrow} {peer:<16} {:>6} B ", decoded.size(packet));
    if packet.lane == Lane::Lossy {
        line.push_str("lossy ");
    }
    if packet.stream {
        line.push_str("stream ");
    }
    if packet.compressed {
        line.push_str("compressed ");
    }
    match decoded {
        Decoded::Foreign => {
            let _ = write!(line, "on topic {}", word(&packet.topic));
        }
        Decoded::Malformed(error) => {
            let _ = write!(line, "malformed: {}", word_of(&error.to_string(), 200));
        }
        Decoded::Compressed(_) => line.push_str(NOT_EXPANDED),
        Decoded::Frame(frame, message) => {
            let _ = write!(line, "{:<16}", name_of(packet, &frame, &message));
            if let Some(id) = call_of(&message) {
                let _ = write!(line, " {}", word(id));
            }
            line.push_str(&says(&message));
        }
    }
}

/// Describes a message without its call id, arguments and results.
fn says(message: &Message) -> String {
    match message {
        Message::ToolUseRequest(request) => {
            let execution = match &request.execution {
                Ok(execution) => execution.as_str().to_owned(),
                Err(written) => format!("execution {:?}", word(written)),
            };
            let limit = request.timeout_ms.map(|limit| format!(" {limit} ms")).unwrap_or_default();
            format!(" {} {execution}{limit}", word(&request.tool_name))
        }
        Message::ToolUseResult(result) if result.success => " ok".to_owned(),
        Message::ToolUseResult(result) => {
            let code = result.error_code.as_ref().map_or("failed", |code| code.as_str());
            format!(" {}", word(code))
        }
        Message::Acknowledgement(ack) => {
            let stanza = ack.acknowledged_stanza_id.map(|it| format!(" of {it}")).unwrap_or_default();
            let refused = if ack.success == Some(false) { " refused" } else { "" };
            let notes = ack.notes.as_deref().map(|it| format!(" {}", word(it))).unwrap_or_default();
            format!("{stanza}{refused}{notes}")
        }
        Message::ControlStop(stop) => {
            let all = if stop.target_id.is_none() { " everything" } else { "" };
            let kind = stop.stop_type.as_deref().map(|it| format!(" {}", word(it))).unwrap_or_default();
            let reason = stop.reason.as_deref().map(|it| format!(" ({})", word(it))).unwrap_or_default();
            format!("{all}{kind}{reason}")
        }
        Message::Configuration(it) => {
            let version = it.client_version.as_deref().map(|it| format!(" {}", word(it)));
            version.unwrap_or_default()
        }
        Message::ToolsRegister(register) => match register.tools.len() {
            1 => " 1 tool".to_owned(),
            count => format!(" {count} tools"),
        },
        Message::ToolsRegisterAck(ack) => {
            format!(" {} {} taken", if ack.success { "ok" } else { "refused" }, ack.tool_count)
        }
        Message::ToolProgress(progress) => format!(" {}", progress.status.as_str()),
        Message::ViewUpdate(view) if view.content.is_nil() => format!(" {} ended", word(&view.view)),
        Message::ViewUpdate(view) => format!(" {} {} B", word(&view.view), view.content.as_bytes().len()),
        Message::Error(error) => format!(" error {}", error.code),
        Message::Other(code, _) => format!(" ({code})"),
        Message::Heartbeat => String::new(),
    }
}

fn event_text(line: &mut String, event: &RoomEvent) {
    let (who, what) = match event {
        RoomEvent::Here { identity, room, .. } => (word(identity.as_str()), format!("is in {}", word(room))),
        RoomEvent::Joined { identity, agent, role, .. } => {
            let role = role.as_deref().map(|role| format!(" as {}", word(role))).unwrap_or_default();
            let agent = if *agent { " (agent)" } else { "" };
            (word(identity.as_str()), format!("joined{role}{agent}"))
        }
        RoomEvent::AnswersRpc { .. } => (String::new(), "calls by RPC are answered".to_owned()),
        RoomEvent::Left { identity, .. } => (word(identity.as_str()), "left".to_owned()),
        RoomEvent::Link { up: true } => (String::new(), "connected".to_owned()),
        RoomEvent::Link { up: false } => (String::new(), "connection lost".to_owned()),
        RoomEvent::Unsent { channel, sequence, reason } => {
            (String::new(), format!("packet {sequence} of channel {channel} was not sent: {}", word(reason)))
        }
        RoomEvent::Unrecorded { packets } => (String::new(), format!("{packets} packets were not recorded")),
        RoomEvent::LeftOut { identity, packets, bytes, limit, most } => {
            let limit = match limit {
                LeftOutLimit::Sender => format!("one without rights may add {most} B"),
                LeftOutLimit::File => format!("all without rights may add {most} B"),
                LeftOutLimit::Joins => format!("{most} joins without rights are recorded"),
            };
            let who = identity.as_ref().map_or_else(|| "(unnamed)".to_owned(), |id| word(id.as_str()));
            (who, format!("{packets} packets of {bytes} B left out so far: {limit}"))
        }
        RoomEvent::Closed { reason } => (String::new(), format!("ended: {}", word(reason))),
        RoomEvent::Unasked { call, tool, code, .. } => {
            (String::new(), format!("nobody was asked: {} {} {}", word(call), word(tool), word(code)))
        }
        RoomEvent::Ended { call, code } => {
            (String::new(), format!("ended for its caller: {} {}", word(call), word(code)))
        }
        RoomEvent::Other => (String::new(), "an event of a later version".to_owned()),
    };
    let gap = if who.is_empty() { "" } else { "  " };
    let _ = write!(line, "  {who}{gap}{what}");
}

fn receivers(packet: &Recorded) -> String {
    match packet.to.as_slice() {
        [] => "everybody".to_owned(),
        [one] => word(one.as_str()),
        [one, others @ ..] => format!("{} +{}", word(one.as_str()), others.len()),
    }
}

pub(crate) fn lane(lane: Lane) -> &'static str {
    match lane {
        Lane::Reliable => "reliable",
        Lane::Lossy => "lossy",
    }
}

fn word(text: &str) -> String {
    word_of(text, MAX_WORD)
}

/// Escapes untrusted text and limits its length.
fn word_of(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", plain(&text[..end])),
        None => plain(text).into_owned(),
    }
}
