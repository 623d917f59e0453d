//! `toolbridge watch`: prints the protocol frames that an observer receives.

use std::future::pending;

use clap::Args;
use serde_json::{Value, json};

use crate::cli::{
    recording::recording_file::RecordingFile,
    room::{connect::RoomArguments, connection_state, record_option::RecordOption},
    terminal::{
        clock,
        failure::{Failure, hint},
        interrupt::interrupted,
        output, render, text,
    },
};
use toolbridge::{
    CloseReason, ConnectionState, Role,
    frame::{Frame, Limits, Message},
    transport::{
        Capabilities, Incoming, Lane, RpcMessage, STREAM_TOPIC, StreamAssembler, Transport, TransportEvent,
    },
};

#[derive(Debug, Args)]
pub(in crate::cli) struct Arguments {
    #[command(flatten)]
    room_arguments: RoomArguments,

    /// Print one JSON object per line: time, sender, lane, topic, and the frame as canonical JSON, without what is for
    /// the model alone
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    record: RecordOption,
}

pub(in crate::cli) async fn run(arguments: Arguments) -> Result<(), Failure> {
    arguments.record.check(arguments.room_arguments.is_encrypted())?;
    let target = arguments.room_arguments.target("watch", Role::Observer)?;
    let Some((path, options)) = arguments.record.target() else {
        return show(&mut target.join().await?, arguments.json, None).await;
    };
    // Without its file there is no reason to join.
    let mut recording_file = RecordingFile::begin(path, options, target.is_hidden())?;
    let mut room = recording_file.tap(target.join().await?);
    let shown = show(&mut room, arguments.json, Some(&mut recording_file)).await;
    drop(room);
    hint(&recording_file.finish().await?);
    shown
}

/// Prints events until a signal arrives, the participant leaves the room, or the recorder stops.
async fn show(
    room: &mut impl Transport,
    json: bool,
    mut recording_file: Option<&mut RecordingFile>,
) -> Result<(), Failure> {
    hint(&format!("watching {} as {}", room.room(), room.local().identity()));
    let mut streams = StreamAssembler::new(Limits::BYTES);
    loop {
        let event = tokio::select! {
            biased;
            () = interrupted() => {
                room.close().await;
                return Ok(());
            }
            () = stopped(recording_file.as_deref()) => {
                room.close().await;
                return Ok(()); // `finish` reports why
            }
            event = room.recv() => event,
        };
        let shown = match event {
            None => return Err(Failure::failed("the connection ended")),
            Some(TransportEvent::Closed(CloseReason::Closed)) => return Ok(()),
            Some(TransportEvent::Closed(reason)) => return Err(Failure::failed(reason)),
            Some(event) => assemble(&mut streams, event).and_then(|event| {
                if let Some(recording_file) = &mut recording_file {
                    recording_file.count(&event);
                }
                if json { as_json(&event) } else { as_text(&event) }
            }),
        };
        if let Some(line) = shown
            && let Err(error) = output::print(&line)
        {
            room.close().await;
            return Err(error.into());
        }
    }
}

/// Waits until the recorder stops. Without a recording the future never completes.
async fn stopped(recording_file: Option<&RecordingFile>) {
    match recording_file {
        Some(recording_file) => recording_file.stopped().await,
        None => pending().await,
    }
}

/// Replaces the parts of a byte stream with its frame once the stream ends.
pub(in crate::cli) fn assemble(
    streams: &mut StreamAssembler,
    event: TransportEvent,
) -> Option<TransportEvent> {
    match event {
        TransportEvent::Stream { from, part } => {
            let frame = streams.add(&from, &part)?;
            Some(TransportEvent::Packet(Incoming::new(from, Lane::Reliable, STREAM_TOPIC, frame)))
        }
        TransportEvent::Left(who) => {
            streams.forget(&who);
            Some(TransportEvent::Left(who))
        }
        other => Some(other),
    }
}

fn as_json(event: &TransportEvent) -> Option<String> {
    let at = clock::unix_millis();
    let value = match event {
        TransportEvent::Packet(packet) => {
            let mut value = json!({
                "atMs": at,
                "from": packet.from.as_ref().map_or("", |from| from.identity().as_str()),
                "sid": packet.from.as_ref().map_or("", |from| from.sid().as_str()),
                "lane": lane(packet.lane),
                "topic": packet.topic,
                "bytes": packet.payload.len(),
            });
            match decode(packet) {
                Ok((_, json)) => value["frame"] = json,
                Err(error) => value["refused"] = error.into(),
            }
            value
        }
        TransportEvent::Rpc { from, message } => {
            let (kind, id, method) = about_rpc(message);
            json!({
                "atMs": at,
                "from": from.as_ref().map_or("", |from| from.identity().as_str()),
                "sid": from.as_ref().map_or("", |from| from.sid().as_str()),
                "rpc": kind,
                "id": id,
                "method": method,
                "bytes": message.size(),
            })
        }
        TransportEvent::Joined(who) => {
            json!({"atMs": at, "joined": who.identity().as_str(), "sid": who.sid().as_str()})
        }
        TransportEvent::Left(who) => {
            json!({"atMs": at, "left": who.identity().as_str(), "sid": who.sid().as_str()})
        }
        TransportEvent::Unreadable { from, why } => {
            json!({
                "atMs": at,
                "from": from.as_ref().map_or("", |from| from.identity().as_str()),
                "sid": from.as_ref().map_or("", |from| from.sid().as_str()),
                "unreadable": why.to_string(),
            })
        }
        TransportEvent::ConnectionState(state) => {
            json!({"atMs": at, "up": *state == ConnectionState::Connected})
        }
        _ => return None,
    };
    Some(text::json(&value))
}

fn as_text(event: &TransportEvent) -> Option<String> {
    let at = clock::time_of_day();
    let mut below = Vec::new();
    let line = match event {
        TransportEvent::Packet(packet) => {
            let from = packet.from.as_ref().map_or("(unnamed)", |from| from.identity().as_str());
            let what = match decode(packet) {
                Ok((frame, mut json)) if has_summary(&frame, &mut below) => {
                    // The lines below show the result.
                    json["body"].as_object_mut().map(|body| body.shift_remove("result"));
                    format!("{:<16} {}", frame.kind().name(), json["body"])
                }
                Ok((frame, _)) if is_view(&frame, &mut below) => frame.kind().name().to_owned(),
                // Large frames are not printed as text.
                Ok((frame, _)) if packet.payload.len() > Capabilities::MAX_PACKET => {
                    format!("{:<16} (use --json to print it)", frame.kind().name())
                }
                Ok((frame, json)) => {
                    below.extend(render::about(&json));
                    format!("{:<16} {}", frame.kind().name(), json["body"])
                }
                Err(error) => format!("invalid frame: {error}"),
            };
            let lossy = if packet.lane == Lane::Lossy { "lossy " } else { "" };
            format!("{at} {from:<16} {:>6} B {lossy}{what}", packet.payload.len())
        }
        TransportEvent::Rpc { from, message } => {
            let from = from.as_ref().map_or("(unnamed)", |from| from.identity().as_str());
            let (kind, id, method) = about_rpc(message);
            format!("{at} {from:<16} {:>6} B {kind:<16} {id} {}", message.size(), method.unwrap_or_default())
        }
        TransportEvent::Unreadable { from, why } => {
            let from = from.as_ref().map_or("(unnamed)", |from| from.identity().as_str());
            format!("{at} {from:<16} unreadable: {why}")
        }
        TransportEvent::Joined(who) => format!("{at} {:<16} joined", who.identity()),
        TransportEvent::Left(who) => format!("{at} {:<16} left", who.identity()),
        TransportEvent::ConnectionState(state) => format!("{at} {}", connection_state::describe(*state)),
        _ => return None,
    };
    let line = text::plain(&line).into_owned();
    Some(below.into_iter().fold(line, |lines, line| lines + "\n    " + &line))
}

/// Returns what a message of LiveKit's RPC is, its id, and the method that it calls.
fn about_rpc(message: &RpcMessage) -> (&'static str, &str, Option<&str>) {
    match message {
        RpcMessage::Request(it) => ("RpcRequest", &it.id, Some(&it.method)),
        RpcMessage::Response(it) => ("RpcResponse", &it.id, None),
        RpcMessage::Ack { id } => ("RpcAck", id, None),
        _ => ("Rpc", "", None),
    }
}

/// Returns whether a frame is a result with parts, and a few lines about it.
fn has_summary(frame: &Frame, lines: &mut Vec<String>) -> bool {
    if let Ok(Message::ToolUseResult(result)) = frame.message()
        && let Some(value) = &result.result
    {
        *lines = render::summary(value, render::has_colors());
    }
    !lines.is_empty()
}

/// Returns whether a frame is the state of a view, and a few lines about it.
fn is_view(frame: &Frame, lines: &mut Vec<String>) -> bool {
    if let Ok(Message::ViewUpdate(view)) = frame.message() {
        *lines = render::view(&view, render::has_colors());
    }
    !lines.is_empty()
}

fn decode(packet: &Incoming) -> Result<(Frame, Value), String> {
    let frame = Frame::decode(packet.payload.clone()).map_err(|error| error.to_string())?;
    let json = frame.to_public_json().map_err(|error| error.to_string())?;
    Ok((frame, json))
}

fn lane(lane: Lane) -> &'static str {
    match lane {
        Lane::Reliable => "reliable",
        Lane::Lossy => "lossy",
    }
}
