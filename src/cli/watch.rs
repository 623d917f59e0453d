//! `toolbridge watch`: frames as they pass, seen by an observer.

use std::{
    future::pending,
    io::{self, Write as _},
};

use clap::Args;
use serde_json::{Value, json};

pub(super) use self::flows::Flows;
use super::{
    Failure, clock, connect::Seat, hint, interrupt::interrupted, link, record_to::RecordTo, tape::Tape, text,
};
use toolbridge::{
    Capabilities, CloseReason, Lane, LinkState, Role,
    protocol::frame::Frame,
    transport::{Incoming, STREAM_TOPIC, Transport, TransportEvent},
};

mod flows;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    seat: Seat,

    /// One JSON object a line: time, sender, lane, topic, and the frame as canonical JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    record: RecordTo,
}

pub(super) async fn run(arguments: Arguments) -> Result<(), Failure> {
    arguments.record.check()?;
    let way = arguments.seat.way("watch", Role::Observer)?;
    let mut room = way.join().await?;
    let Some(path) = arguments.record.path() else { return show(&mut room, arguments.json, None).await };
    let mut tape = match Tape::begin(path, arguments.record.force(), way.is_hidden()) {
        Ok(tape) => tape,
        Err(failure) => {
            room.close().await;
            return Err(failure);
        }
    };
    let shown = show(&mut tape.tap(room), arguments.json, Some(&mut tape)).await;
    hint(&tape.end().await?);
    shown
}

/// Shows what passes until we are asked to stop, the room is left, or the recording has stopped early.
async fn show(room: &mut impl Transport, json: bool, mut tape: Option<&mut Tape>) -> Result<(), Failure> {
    hint(&format!("watching {} as {}", room.room(), room.local().identity()));
    let mut flows = Flows::default();
    loop {
        let event = tokio::select! {
            biased;
            () = interrupted() => {
                room.close().await;
                return Ok(());
            }
            () = stopped(tape.as_deref()) => {
                room.close().await;
                return Ok(()); // its end says why
            }
            event = room.recv() => event,
        };
        let shown = match event {
            None => return Err(Failure::failed("the connection ended")),
            Some(TransportEvent::Closed(CloseReason::Closed)) => return Ok(()),
            Some(TransportEvent::Closed(reason)) => return Err(Failure::failed(reason)),
            Some(event) => whole(&mut flows, event).and_then(|event| {
                if let Some(tape) = &mut tape {
                    tape.hear(&event);
                }
                if json { as_json(&event) } else { as_text(&event) }
            }),
        };
        if let Some(line) = shown
            && let Err(error) = writeln!(io::stdout(), "{line}")
        {
            room.close().await;
            return Err(error.into());
        }
    }
}

/// Waits until a recording has stopped early. What is not recorded never does.
async fn stopped(tape: Option<&Tape>) {
    match tape {
        Some(tape) => tape.stopped().await,
        None => pending().await,
    }
}

/// What there is to be shown: of a byte stream nothing before its end, and then the frame.
pub(super) fn whole(flows: &mut Flows, event: TransportEvent) -> Option<TransportEvent> {
    match event {
        TransportEvent::Stream { from, part } => {
            let frame = flows.take(&from, part)?;
            Some(TransportEvent::Packet(Incoming::new(from, Lane::Reliable, STREAM_TOPIC, frame)))
        }
        TransportEvent::Left(who) => {
            flows.forget(&who);
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
                "from": packet.from.identity().as_str(),
                "sid": packet.from.sid().as_str(),
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
        TransportEvent::Joined(who) => {
            json!({"atMs": at, "joined": who.identity().as_str(), "sid": who.sid().as_str()})
        }
        TransportEvent::Left(who) => {
            json!({"atMs": at, "left": who.identity().as_str(), "sid": who.sid().as_str()})
        }
        TransportEvent::Link(state) => json!({"atMs": at, "up": *state == LinkState::Up}),
        _ => return None,
    };
    Some(text::json(&value))
}

fn as_text(event: &TransportEvent) -> Option<String> {
    let at = clock::time_of_day();
    let line = match event {
        TransportEvent::Packet(packet) => {
            let from =
                if packet.from.identity().is_empty() { "(unnamed)" } else { packet.from.identity().as_str() };
            let what = match decode(packet) {
                // Nobody reads megabytes in a terminal.
                Ok((frame, _)) if packet.payload.len() > Capabilities::MAX_PACKET => {
                    format!("{:<16} (--json shows it)", frame.kind().name())
                }
                Ok((frame, json)) => format!("{:<16} {}", frame.kind().name(), json["body"]),
                Err(error) => format!("refused: {error}"),
            };
            let lossy = if packet.lane == Lane::Lossy { "lossy " } else { "" };
            format!("{at} {from:<16} {:>6} B {lossy}{what}", packet.payload.len())
        }
        TransportEvent::Joined(who) => format!("{at} {:<16} joined", who.identity()),
        TransportEvent::Left(who) => format!("{at} {:<16} left", who.identity()),
        TransportEvent::Link(state) => format!("{at} {}", link::says(*state)),
        _ => return None,
    };
    Some(text::plain(&line).into_owned())
}

fn decode(packet: &Incoming) -> Result<(Frame, Value), String> {
    let frame = Frame::decode(packet.payload.clone()).map_err(|error| error.to_string())?;
    let json = frame.to_json().map_err(|error| error.to_string())?;
    Ok((frame, json))
}

fn lane(lane: Lane) -> &'static str {
    match lane {
        Lane::Reliable => "reliable",
        Lane::Lossy => "lossy",
    }
}
