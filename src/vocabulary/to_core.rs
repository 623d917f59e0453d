//! Converts plain types to those of the core.

use std::time::Duration;

use crate::{
    CallError, CallId, CloseReason as CoreCloseReason, Config as CoreConfig,
    ConnectionState as CoreConnectionState, EncodeError, ErrorCode, Identity, Progress, ToolError,
    ToolOptions, Value,
    session::{Request, SelectionPolicy, SendFailure},
    tool::model::ModelCall,
    tools::{Offer, ProgressStatus as CoreStatus, ToolHints},
    transport::{
        Incoming, Lane as CoreLane, Participant as CoreParticipant, ParticipantKind as CoreKind,
        Peer as CorePeer, StreamHeader, StreamPart, TransportEvent, Unreadable as CoreUnreadable,
    },
};

use super::{
    clock::duration,
    create::{Choose, Config},
    form::{Json, Malformed},
    input::{SendFailureKind, Unreadable},
    shared::{
        Attribute, BargeIn, CloseKind, CloseReason, ConnectionState, Consent, Lane, MetaEntry, Participant,
        ParticipantKind, Peer, ProgressStatus, Tool, ToolFailure, Visibility,
    },
};

type Result<T> = std::result::Result<T, Malformed>;

/// Reads a value of this field that the core parses.
fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(text: &str, field: &str) -> Result<T> {
    text.parse().map_err(|error| Malformed::new(error).of(field))
}

/// Reads a value of the application. One that no frame can hold, because it is too large or too deep, is no malformed input: it
/// decides the outcome of what it belongs to.
pub fn body(json: &Json) -> std::result::Result<Value, EncodeError> {
    Value::from_json(&json.text).map_err(EncodeError::from)
}

fn tree(json: &Json, field: &str) -> Result<serde_json::Value> {
    serde_json::from_str(&json.text).map_err(|error| Malformed::new(error).of(field))
}

fn attributes(attributes: Vec<Attribute>) -> impl Iterator<Item = (String, String)> {
    attributes.into_iter().map(|it| (it.name, it.value))
}

fn time(millis: Option<f64>, field: &str) -> Result<Option<Duration>> {
    millis.map(duration).transpose().map_err(|error| error.of(field))
}

fn size(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

pub fn call_id(id: &str) -> Result<CallId> {
    parsed(id, "call")
}

impl Peer {
    pub fn to_core(&self) -> CorePeer {
        CorePeer::new(&*self.identity, &*self.sid)
    }
}

impl Participant {
    pub fn into_core(self) -> CoreParticipant {
        let kind = match self.kind {
            ParticipantKind::Standard => CoreKind::Standard,
            ParticipantKind::Agent => CoreKind::Agent,
            ParticipantKind::Other => CoreKind::Other,
        };
        CoreParticipant::new(self.identity, self.sid)
            .kind(kind)
            .attributes(attributes(self.attributes))
            .can_update_metadata(self.can_update_metadata)
            .can_publish_data(self.can_publish_data)
            .admitted(self.admitted)
            .allowed_to_stop(self.may_stop)
            .client_protocol(u32::try_from(self.client_protocol).unwrap_or(u32::MAX))
            .inflates(self.inflates)
    }
}

impl Tool {
    pub fn into_core(self) -> Result<crate::Tool> {
        let options = ToolOptions {
            consent: self.consent.map(|consent| match consent {
                Consent::Never => crate::Consent::Never,
                Consent::OncePerSession => crate::Consent::OncePerSession,
                Consent::Always => crate::Consent::Always,
            }),
            timeout: time(self.timeout, "timeoutMs")?,
            patience: time(self.patience, "patienceMs")?,
            cancel_grace: time(self.cancel_grace, "cancelGraceMs")?,
            disclose: match self.disclose {
                Visibility::Full => crate::tools::Visibility::Full,
                Visibility::Name => crate::tools::Visibility::Name,
                Visibility::Nothing => crate::tools::Visibility::Nothing,
            },
            prefer_client: self.prefer_client,
            barge_in: match self.barge_in {
                BargeIn::Cancel => crate::BargeIn::Cancel,
                BargeIn::Finish => crate::BargeIn::Finish,
                BargeIn::Report => crate::BargeIn::Report,
            },
            ..ToolOptions::default()
        };
        let hints = ToolHints {
            destructive: self.destructive,
            idempotent: self.idempotent,
            read_only: self.read_only,
            open_world: self.open_world,
        };
        let mut tool = crate::Tool::new(parsed(&self.name, "name")?, self.description).options(options);
        if let Some(schema) = &self.schema {
            tool = tool.schema(tree(schema, "inputSchema")?);
        }
        if let Some(title) = self.title {
            tool = tool.with_title(title);
        }
        if let Some(title) = self.short_title {
            tool = tool.with_short_title(title);
        }
        if let Some(source) = self.source {
            tool = tool.with_source(source);
        }
        if let Some(schema) = &self.output_schema {
            tool = tool.with_output_schema(tree(schema, "outputSchema")?);
        }
        if let Some(meta) = &self.meta {
            tool = tool.with_meta(tree(meta, "meta")?);
        }
        Ok(tool.with_hints(hints))
    }
}

impl CloseReason {
    pub fn into_core(self) -> CoreCloseReason {
        let text = || self.text.unwrap_or_default().into();
        match self.kind {
            CloseKind::Closed => CoreCloseReason::Closed,
            CloseKind::DuplicateIdentity => CoreCloseReason::DuplicateIdentity,
            CloseKind::Removed => CoreCloseReason::Removed,
            CloseKind::RoomDeleted => CoreCloseReason::RoomDeleted,
            CloseKind::RoomClosed => CoreCloseReason::RoomClosed,
            CloseKind::ServerShutdown => CoreCloseReason::ServerShutdown,
            CloseKind::ConnectionLost => CoreCloseReason::ConnectionLost(text()),
            CloseKind::Server => CoreCloseReason::Server(text()),
            CloseKind::TokenExpired => CoreCloseReason::TokenExpired,
            CloseKind::Refused => CoreCloseReason::Refused(text()),
        }
    }
}

/// The open byte streams of one sender, unless the caps say. SDKs report the streams of a burst before they pass their chunks.
const STREAMS_PER_PEER: usize = 64;

impl Config {
    pub fn into_core(self) -> Result<CoreConfig> {
        let choose = match self.choose {
            Choose::Nobody => SelectionPolicy::Nobody,
            Choose::First => SelectionPolicy::First,
            Choose::Last => SelectionPolicy::Last,
            Choose::LastHeard => SelectionPolicy::LastHeard,
            // The function is never called: the shell selects.
            Choose::Ask => SelectionPolicy::by(|_, _| None),
        };
        let mut config = CoreConfig::default()
            .room(self.room.unwrap_or_default())
            .choose(choose)
            .prompts(self.prompts)
            .consent_available(self.consent_available)
            .lossy(self.lossy)
            .streams(self.streams)
            .compress(self.compress)
            .expand(self.compress)
            .overhead(size(self.overhead));
        config.caps.frames.streams_per_peer = STREAMS_PER_PEER;
        config.fast_lane = self.fast_lane;
        if let Some(assistant) = self.assistant {
            config = config.assistant(assistant);
        }
        for client in self.admit {
            config = config.admit(client);
        }
        if self.admit_only_roles {
            config = config.admit_only_roles();
        }
        for (at, pin) in self.pins.into_iter().enumerate() {
            let tool = parsed(&pin.tool, "tool").map_err(|error| error.of(&format!("pins[{at}]")))?;
            config = config.pin(tool, pin.owner);
        }
        if let Some(version) = self.version {
            config = config.version(version);
        }
        for time in self.times {
            set_time(&mut config, &time.name, time.value)
                .map_err(|error| error.of(&time.name).of("times"))?;
        }
        for cap in self.caps {
            set_cap(&mut config, &cap.name, cap.value).map_err(|error| error.of(&cap.name).of("caps"))?;
        }
        if let Some(bytes) = self.max_packet {
            config = config.max_packet(size(bytes));
        }
        Ok(config)
    }
}

/// Defines settings of a configuration: their names, and what sets one.
macro_rules! settings {
    ($(#[$doc:meta])* $names:ident, $set:ident($value:ty), $what:literal: $($name:literal = $($field:ident).+,)*) => {
        $(#[$doc])*
        pub const $names: &[&str] = &[$($name),*];

        fn $set(config: &mut CoreConfig, name: &str, value: $value) -> Result<()> {
            match name {
                $($name => config.$($field).+.set(value)?,)*
                _ => return Err(Malformed::new(concat!("is no ", $what, " of the configuration"))),
            }
            Ok(())
        }
    };
}

trait Setting<V> {
    fn set(&mut self, value: V) -> Result<()>;
}

impl Setting<f64> for Duration {
    fn set(&mut self, value: f64) -> Result<()> {
        *self = duration(value)?;
        Ok(())
    }
}

impl Setting<u64> for usize {
    fn set(&mut self, value: u64) -> Result<()> {
        *self = size(value);
        Ok(())
    }
}

impl Setting<u64> for u32 {
    fn set(&mut self, value: u64) -> Result<()> {
        *self = Self::try_from(value).unwrap_or(Self::MAX);
        Ok(())
    }
}

settings! {
    /// The names of the times of a configuration, which are in milliseconds.
    TIMES, set_time(f64), "time":
    "callMs" = times.call,
    "longestCallMs" = times.longest_call,
    "ownerWaitMs" = times.owner_wait,
    "graceMs" = times.grace,
    "heartbeatMs" = times.heartbeat,
    "memoryMs" = times.memory,
    "holdMs" = times.hold,
    "silenceMs" = times.silence,
    "rpcSilenceMs" = times.rpc_silence,
    "announcementMs" = times.announcement,
    "streamIdleMs" = times.stream_idle,
    "streamMs" = times.stream,
    "claimMs" = times.claim,
    "denialMs" = times.denial,
}

settings! {
    /// The names of the limits of a configuration: numbers of things, or of bytes.
    CAPS, set_cap(u64), "limit":
    "equalCalls" = caps.calls.equal_calls,
    "openPerPeer" = caps.calls.open_per_peer,
    "openCalls" = caps.calls.open_calls,
    "openBytes" = caps.calls.open_bytes,
    "lateResults" = caps.calls.late_results,
    "lateBytes" = caps.calls.late_bytes,
    "callLog" = caps.calls.call_log,
    "maxPacket" = caps.frames.max_packet,
    "maxIncoming" = caps.frames.max_incoming,
    "maxFrame" = caps.frames.max_frame,
    "maxFrameOfOthers" = caps.frames.max_frame_of_others,
    "streamsPerPeer" = caps.frames.streams_per_peer,
    "streamBytes" = caps.frames.stream_bytes,
    "heldFrames" = caps.frames.held_frames,
    "heldBytes" = caps.frames.held_bytes,
    "heldFramesOfAll" = caps.frames.held_frames_of_all,
    "retransmitFrames" = caps.frames.retransmit_frames,
    "retransmitBytes" = caps.frames.retransmit_bytes,
    "idBytes" = caps.frames.id_bytes,
    "callsPerSecond" = caps.requests.calls_per_second,
    "rpcBytesPerSecond" = caps.requests.rpc_bytes_per_second,
    "progressPerSecond" = caps.requests.progress_per_second,
    "tableEntries" = caps.requests.table_entries,
    "tableBytes" = caps.requests.table_bytes,
    "rememberedPeers" = caps.requests.remembered_peers,
    "runningJobs" = caps.requests.running_jobs,
    "waitingJobs" = caps.requests.waiting_jobs,
    "progressBytes" = caps.requests.progress_bytes,
    "messageBytes" = caps.requests.message_bytes,
    "openQuestions" = caps.requests.open_questions,
    "openPrompts" = caps.requests.open_prompts,
    "count" = caps.tools.count,
    "descriptionBytes" = caps.tools.description_bytes,
    "schemaBytes" = caps.tools.schema_bytes,
    "registrationBytes" = caps.tools.registration_bytes,
}

pub fn connection_state(state: ConnectionState) -> TransportEvent {
    TransportEvent::ConnectionState(match state {
        ConnectionState::Connected => CoreConnectionState::Connected,
        ConnectionState::Reconnecting => CoreConnectionState::Reconnecting,
    })
}

pub fn packet(from: Option<&Peer>, lane: Lane, topic: String, bytes: Vec<u8>) -> TransportEvent {
    let lane = match lane {
        Lane::Reliable => CoreLane::Reliable,
        Lane::Lossy => CoreLane::Lossy,
    };
    TransportEvent::Packet(Incoming::new(from.map(Peer::to_core), lane, topic, bytes))
}

pub fn unreadable(from: Option<&Peer>, why: Unreadable) -> TransportEvent {
    let why = match why {
        Unreadable::Encrypted => CoreUnreadable::Encrypted,
        Unreadable::NotEncrypted => CoreUnreadable::NotEncrypted,
        Unreadable::Undecryptable => CoreUnreadable::Undecryptable,
    };
    TransportEvent::Unreadable { from: from.map(Peer::to_core), why }
}

pub fn header(id: &str, topic: String, length: Option<u64>, header_attributes: Vec<Attribute>) -> StreamPart {
    let mut header = StreamHeader::new(id, topic, length);
    header.attributes.extend(attributes(header_attributes));
    StreamPart::Header(header)
}

pub fn chunk(id: &str, index: u64, bytes: Vec<u8>) -> StreamPart {
    StreamPart::Chunk { id: id.into(), index, bytes: bytes.into() }
}

pub fn trailer(id: &str, reason: String) -> StreamPart {
    StreamPart::Trailer { id: id.into(), reason }
}

pub fn send_failure(why: SendFailureKind, bytes: u64, max: u64, text: String) -> SendFailure {
    match why {
        SendFailureKind::TooLarge => SendFailure::TooLarge { size: size(bytes), limit: size(max) },
        SendFailureKind::NotAllowed => SendFailure::NotAllowed,
        SendFailureKind::Closed => SendFailure::Closed,
        SendFailureKind::Interrupted => SendFailure::Interrupted,
        SendFailureKind::QueueFull => SendFailure::QueueFull,
        SendFailureKind::Other => SendFailure::Other(text),
    }
}

pub fn progress(status: ProgressStatus, message: Option<String>, content: Option<&Json>) -> Progress {
    Progress {
        status: match status {
            ProgressStatus::Pending => CoreStatus::Pending,
            ProgressStatus::InProgress => CoreStatus::InProgress,
            ProgressStatus::Completed => CoreStatus::Completed,
            ProgressStatus::Failed => CoreStatus::Failed,
        },
        message,
        // The core leaves out content that is larger than progress may be, too.
        content: content.and_then(|content| body(content).ok()),
    }
}

pub fn outcome(value: Option<&Json>, error: Option<Result<ToolFailure>>) -> crate::Outcome {
    match (value, error) {
        (Some(value), None) => body(value).map_err(ToolError::from),
        (None, Some(Ok(error))) => Err(tool_error(error).unwrap_or_else(ToolError::from)),
        (None, Some(Err(malformed))) => Err(ToolError::internal(malformed.of("error"))),
        _ => Err(ToolError::internal(Malformed::new("is needed, or error, and not both").of("value"))),
    }
}

fn tool_error(failure: ToolFailure) -> std::result::Result<ToolError, EncodeError> {
    let mut error = ToolError::new(ErrorCode::from(failure.code), failure.message);
    if let Some(partial) = &failure.partial {
        error = error.with_partial(body(partial)?);
    }
    if let Some(cause) = failure.cause {
        error = error.with_source(cause);
    }
    Ok(error)
}

/// Returns the tool, the owner and the arguments that a model's call means.
///
/// # Errors
/// The tool is a prompt that the model invented.
pub fn of_model(
    offers: Vec<Offer>,
    name: &str,
    arguments: Value,
) -> std::result::Result<(String, Option<Identity>, Value), CallError> {
    ModelCall::read(offers, name, arguments).map(|it| (it.tool, it.to, it.arguments))
}

/// The plain form of a [`Request`].
#[derive(Debug)]
pub struct Call {
    /// The tool.
    pub tool: String,
    /// The arguments: an object.
    pub arguments: Json,
    /// Whether a model makes it.
    pub model: bool,
    /// The participant that must run the tool.
    pub to: Option<String>,
    /// The time limit, in milliseconds.
    pub timeout: Option<f64>,
    /// The longest wait for a participant that offers the tool, in milliseconds.
    pub owner_wait: Option<f64>,
    /// Metadata.
    pub meta: Vec<MetaEntry>,
}

impl Call {
    /// Returns the request, or the outcome of a call that is refused at once. `offers` are the tools that can be called.
    ///
    /// # Errors
    /// A time cannot be one.
    pub fn into_core(
        self,
        offers: impl FnOnce() -> Vec<Offer>,
    ) -> Result<std::result::Result<Request, CallError>> {
        let mut request = Request::new(&*self.tool, Value::empty());
        request.owner = self.to.map(Into::into);
        request.timeout = time(self.timeout, "timeoutMs")?;
        request.owner_wait = time(self.owner_wait, "ownerWaitMs")?;
        let with_values = || {
            request.arguments = body(&self.arguments)?;
            if self.model {
                let (tool, owner, arguments) = of_model(offers(), &self.tool, request.arguments)?;
                (request.tool, request.arguments) = (tool, arguments);
                request.owner = request.owner.or(owner);
            }
            for entry in &self.meta {
                request = request.meta(&entry.name, body(&entry.value)?);
            }
            Ok(request)
        };
        Ok(with_values())
    }
}
