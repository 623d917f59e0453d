//! Decodes a recording's entries as far as possible.

use bytes::Bytes;

use super::{DryError, MAX_BYTES, MAX_ENTRIES};
use crate::{
    protocol::frame::{Frame, Kind, Message},
    recording::{Direction, Entry, Happened, Moment, REDACTED, RPC_TOPIC, Recorded, RoomEvent, RpcRecord},
    transport::{Identity, Lane, Peer, STREAM_TOPIC, Sid, TOPIC},
};

/// One entry.
pub(super) struct Step {
    pub(super) at: Moment,
    pub(super) what: What,
}

pub(super) enum What {
    Packet(Box<RecordedPacket>),
    Event(RoomEvent),
    /// A packet on another application's topic.
    OtherTopic,
    /// A packet whose sender was not disclosed.
    Unnamed,
}

/// A packet.
pub(super) struct RecordedPacket {
    /// Its position in the file.
    pub(super) entry: usize,
    pub(super) at: Moment,
    pub(super) direction: Direction,
    /// Always there if the packet was heard.
    pub(super) from: Option<Peer>,
    pub(super) to: Vec<Identity>,
    pub(super) lane: Lane,
    pub(super) stream: bool,
    /// Whether the frame was compressed.
    pub(super) compressed: bool,
    /// Whether it is anything but a compressed frame that the recorder did not expand.
    pub(super) is_expanded: bool,
    /// The message, if it is one of RPC.
    pub(super) rpc: Option<RpcRecord>,
    /// Its channel in the file, and its sequence number there.
    pub(super) place: (u16, u32),
    pub(super) payload: Bytes,
    /// The frame, if it is one.
    pub(super) decoded: Option<DecodedFrame>,
}

/// A frame with its message.
#[derive(Clone)]
pub(super) struct DecodedFrame {
    pub(super) frame: Frame,
    pub(super) message: Message,
    /// Its subject: a call id or a stanza.
    pub(super) about: String,
    /// Whether it stands for a message of RPC.
    pub(super) is_rpc: bool,
}

impl DecodedFrame {
    pub(super) fn read(payload: &Bytes) -> Option<Self> {
        let frame = Frame::decode(payload.clone()).ok()?;
        let message = frame.message().ok()?;
        let about = about(&message);
        Some(Self { frame, message, about, is_rpc: false })
    }

    /// Reads a record of RPC.
    pub(super) fn read_rpc(payload: &Bytes) -> Option<(Self, RpcRecord)> {
        let mut decoded = Self { is_rpc: true, ..Self::read(payload)? };
        let rpc = RpcRecord::of(&decoded.frame, &decoded.message)?;
        if let RpcRecord::Ack { id } = &rpc {
            decoded.about.clone_from(id);
        }
        Some((decoded, rpc))
    }

    pub(super) fn kind(&self) -> Kind {
        self.frame.kind()
    }

    /// Its stanza as an absolute value; none if it is unsequenced.
    pub(super) fn stanza(&self) -> Option<u32> {
        self.frame.stanza_id().map(i32::unsigned_abs).filter(|stanza| *stanza != 0)
    }

    pub(super) fn is_redacted(&self) -> bool {
        self.frame.meta_bool(REDACTED)
    }

    pub(super) fn is_goodbye(&self) -> bool {
        self.kind() == Kind::CONTROL_STOP && self.frame.meta_bool("bridge.bye")
    }

    pub(super) fn is_keepalive(&self) -> bool {
        match &self.message {
            Message::Heartbeat => true,
            Message::Acknowledgement(it) => matches!(it.notes.as_deref(), Some("ping" | "pong")),
            _ => false,
        }
    }

    /// The kind of frame that answers it, for frames whose receiver may send something first: registrations, claims
    /// and stops.
    pub(super) fn answer(&self) -> Option<(Kind, String)> {
        let acknowledged = || Some((Kind::ACKNOWLEDGEMENT, format!("{} ", self.frame.stanza_id()?)));
        match &self.message {
            Message::ToolsRegister(_) => Some((Kind::TOOLS_REGISTER_ACK, String::new())),
            Message::Acknowledgement(it) if it.notes.as_deref() == Some("claim") => acknowledged(),
            Message::ControlStop(it) if it.target_id.is_some() && !self.is_goodbye() => acknowledged(),
            _ => None,
        }
    }

    /// The instance in it, which only a toolbridge Configuration has.
    pub(super) fn instance(&self) -> Option<&str> {
        self.frame.meta_str("bridge.instance").filter(|_| self.kind() == Kind::CONFIGURATION)
    }
}

/// The subject of a message, which distinguishes messages of one type.
fn about(message: &Message) -> String {
    match message {
        Message::Error(it) => it.originating_id.clone().unwrap_or_default(),
        Message::ToolUseRequest(it) => it.id.to_string(),
        Message::ToolUseResult(it) => it.id.to_string(),
        Message::ToolProgress(it) => it.id.to_string(),
        Message::Acknowledgement(it) => {
            let stanza = it.acknowledged_stanza_id.unwrap_or(0);
            format!("{stanza} {}", it.notes.as_deref().unwrap_or_default())
        }
        Message::ControlStop(it) => it.target_id.clone().or_else(|| it.stop_type.clone()).unwrap_or_default(),
        _ => String::new(),
    }
}

/// The memory of a registered tool without its texts, in bytes.
const REGISTERED: usize = 300;

/// Decodes the entries.
pub(super) fn read(entries: impl IntoIterator<Item = Entry>) -> Result<Vec<Step>, DryError> {
    let (mut steps, mut bytes) = (Vec::new(), 0_usize);
    for (entry, it) in entries.into_iter().enumerate() {
        let at = it.at;
        if let Happened::Packet(packet) = &it.what {
            bytes = bytes.saturating_add(packet.payload.len());
        }
        if entry >= MAX_ENTRIES || bytes > MAX_BYTES {
            return Err(DryError::TooLarge { entries: MAX_ENTRIES, bytes: MAX_BYTES });
        }
        let what = what(entry, it);
        if let What::Packet(packet) = &what
            && let Some(Message::ToolsRegister(it)) = packet.decoded.as_ref().map(|decoded| &decoded.message)
        {
            bytes = bytes.saturating_add(REGISTERED * it.tools.len());
        }
        steps.push(Step { at, what });
    }
    Ok(steps)
}

fn what(entry: usize, it: Entry) -> What {
    let at = it.at;
    match it.what {
        Happened::Event(event) => What::Event(event),
        Happened::Packet(it) if it.topic == RPC_TOPIC => rpc(entry, at, it),
        Happened::Packet(it) if it.direction == Direction::Heard && it.from.is_none() => What::Unnamed,
        Happened::Packet(it) if !["", TOPIC, STREAM_TOPIC].contains(&it.topic.as_str()) => What::OtherTopic,
        Happened::Packet(it) => {
            let decoded = DecodedFrame::read(&it.payload);
            What::Packet(Box::new(RecordedPacket {
                entry,
                at,
                is_expanded: decoded.is_some() || !it.is_not_expanded(),
                decoded,
                direction: it.direction,
                from: it.from,
                to: it.to,
                lane: it.lane,
                stream: it.stream,
                compressed: it.compressed,
                rpc: None,
                place: (it.channel, it.sequence),
                payload: it.payload,
            }))
        }
    }
}

/// Reads a message of RPC.
fn rpc(entry: usize, at: Moment, it: Recorded) -> What {
    let (decoded, rpc) = DecodedFrame::read_rpc(&it.payload).unzip();
    let from = match (&it.from, &rpc) {
        // The server itself calls under the id of its call.
        (None, Some(RpcRecord::Request { request, .. })) => {
            Some(Peer::new(request.id.as_str(), Sid::from("")))
        }
        (from, _) => from.clone(),
    };
    if from.is_none() && it.direction == Direction::Heard {
        return What::Unnamed;
    }
    What::Packet(Box::new(RecordedPacket {
        entry,
        at,
        decoded,
        rpc,
        direction: it.direction,
        from,
        to: it.to,
        lane: it.lane,
        stream: it.stream,
        compressed: false,
        is_expanded: true,
        place: (it.channel, it.sequence),
        payload: it.payload,
    }))
}
