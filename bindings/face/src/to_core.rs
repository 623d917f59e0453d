//! Converts plain types to those of the core.

use toolbridge::{
    CallError, CallId, CloseReason as CoreCloseReason, Config as CoreConfig,
    ConnectionState as CoreConnectionState, EncodeError, ErrorCode, Progress, ToolError, ToolOptions, Value,
    session::{Request, SelectionPolicy, SendFailure, TurnKey},
    tools::{ProgressStatus as CoreStatus, ToolHints},
    transport::{
        Incoming, Lane as CoreLane, Participant as CoreParticipant, ParticipantKind as CoreKind,
        Peer as CorePeer, StreamHeader, StreamPart, TransportEvent, Unreadable as CoreUnreadable,
    },
};

use crate::{
    clock::duration,
    create::{Choose, Config},
    form::{Json, Malformed},
    input::{SendFailureKind, Unreadable},
    shared::{
        Attribute, BargeIn, CloseKind, CloseReason, ConnectionState, Consent, Lane, MetaEntry, NumberSetting,
        Participant, ParticipantKind, Peer, ProgressStatus, TimeSetting, Tool, ToolFailure, Visibility,
    },
};

type Result<T> = std::result::Result<T, Malformed>;

/// Reads a value of this field that the core parses.
fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(text: &str, field: &str) -> Result<T> {
    text.parse().map_err(|error| Malformed::new(error).of(field))
}

/// Reads a value of the application. One that no frame can hold, because it is too large or too deep, is no malformed input: it
/// decides the outcome of what it belongs to.
pub(crate) fn body(json: &Json) -> std::result::Result<Value, EncodeError> {
    Value::from_json(&json.text).map_err(EncodeError::from)
}

fn tree(json: &Json, field: &str) -> Result<serde_json::Value> {
    serde_json::from_str(&json.text).map_err(|error| Malformed::new(error).of(field))
}

fn attributes(attributes: Vec<Attribute>) -> impl Iterator<Item = (String, String)> {
    attributes.into_iter().map(|it| (it.name, it.value))
}

fn size(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

pub(crate) fn call_id(id: &str) -> Result<CallId> {
    parsed(id, "call")
}

impl Peer {
    pub(crate) fn to_core(&self) -> CorePeer {
        CorePeer::new(&*self.identity, &*self.sid)
    }
}

impl Participant {
    pub(crate) fn into_core(self) -> CoreParticipant {
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
    pub(crate) fn into_core(self) -> Result<toolbridge::Tool> {
        let mut options = ToolOptions::default();
        options.consent = self.consent.map(|consent| match consent {
            Consent::Never => toolbridge::Consent::Never,
            Consent::OncePerSession => toolbridge::Consent::OncePerSession,
            Consent::Always => toolbridge::Consent::Always,
        });
        options.timeout = self.timeout.map(duration).transpose()?;
        options.patience = self.patience.map(duration).transpose()?;
        options.cancel_grace = self.cancel_grace.map(duration).transpose()?;
        options.disclose = match self.disclose {
            Visibility::Full => toolbridge::tools::Visibility::Full,
            Visibility::Name => toolbridge::tools::Visibility::Name,
            Visibility::Nothing => toolbridge::tools::Visibility::Nothing,
        };
        options.prefer_client = self.prefer_client;
        options.barge_in = match self.barge_in {
            BargeIn::Cancel => toolbridge::BargeIn::Cancel,
            BargeIn::Finish => toolbridge::BargeIn::Finish,
            BargeIn::Report => toolbridge::BargeIn::Report,
        };
        let mut hints = ToolHints::default();
        hints.destructive = self.destructive;
        hints.idempotent = self.idempotent;
        hints.read_only = self.read_only;
        hints.open_world = self.open_world;
        let mut tool = toolbridge::Tool::new(parsed(&self.name, "name")?, self.description).options(options);
        if let Some(schema) = &self.schema {
            tool = tool.schema(tree(schema, "schema")?);
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
            tool = tool.with_output_schema(tree(schema, "output_schema")?);
        }
        if let Some(meta) = &self.meta {
            tool = tool.with_meta(tree(meta, "meta")?);
        }
        Ok(tool.with_hints(hints))
    }
}

impl CloseReason {
    pub(crate) fn into_core(self) -> CoreCloseReason {
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

impl Config {
    pub(crate) fn into_core(self) -> Result<CoreConfig> {
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
            set_time(&mut config, &time).map_err(|error| error.of(&time.name).of("times"))?;
        }
        for cap in self.caps {
            set_cap(&mut config, &cap).map_err(|error| error.of(&cap.name).of("caps"))?;
        }
        if let Some(bytes) = self.max_packet {
            config = config.max_packet(size(bytes));
        }
        Ok(config)
    }
}

fn set_time(config: &mut CoreConfig, setting: &TimeSetting) -> Result<()> {
    let times = &mut config.times;
    let slot = match &*setting.name {
        "call" => &mut times.call,
        "longest_call" => &mut times.longest_call,
        "owner_wait" => &mut times.owner_wait,
        "grace" => &mut times.grace,
        "heartbeat" => &mut times.heartbeat,
        "memory" => &mut times.memory,
        "hold" => &mut times.hold,
        "silence" => &mut times.silence,
        "rpc_silence" => &mut times.rpc_silence,
        "announcement" => &mut times.announcement,
        "stream_idle" => &mut times.stream_idle,
        "stream" => &mut times.stream,
        "claim" => &mut times.claim,
        "denial" => &mut times.denial,
        _ => return Err(Malformed::new("is no time of the configuration")),
    };
    *slot = duration(setting.value)?;
    Ok(())
}

fn set_cap(config: &mut CoreConfig, setting: &NumberSetting) -> Result<()> {
    let caps = &mut config.caps;
    let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let slot = match &*setting.name {
        "equal_calls" => {
            caps.calls.equal_calls = small(setting.value);
            return Ok(());
        }
        "calls_per_second" => {
            caps.requests.calls_per_second = small(setting.value);
            return Ok(());
        }
        "progress_per_second" => {
            caps.requests.progress_per_second = small(setting.value);
            return Ok(());
        }
        "max_packet" => &mut caps.frames.max_packet,
        "max_incoming" => &mut caps.frames.max_incoming,
        "max_frame" => &mut caps.frames.max_frame,
        "max_frame_of_others" => &mut caps.frames.max_frame_of_others,
        "streams_per_peer" => &mut caps.frames.streams_per_peer,
        "stream_bytes" => &mut caps.frames.stream_bytes,
        "held_frames" => &mut caps.frames.held_frames,
        "held_bytes" => &mut caps.frames.held_bytes,
        "held_frames_of_all" => &mut caps.frames.held_frames_of_all,
        "retransmit_frames" => &mut caps.frames.retransmit_frames,
        "retransmit_bytes" => &mut caps.frames.retransmit_bytes,
        "id_bytes" => &mut caps.frames.id_bytes,
        "open_per_peer" => &mut caps.calls.open_per_peer,
        "open_calls" => &mut caps.calls.open_calls,
        "open_bytes" => &mut caps.calls.open_bytes,
        "late_results" => &mut caps.calls.late_results,
        "late_bytes" => &mut caps.calls.late_bytes,
        "call_log" => &mut caps.calls.call_log,
        "table_entries" => &mut caps.requests.table_entries,
        "table_bytes" => &mut caps.requests.table_bytes,
        "remembered_peers" => &mut caps.requests.remembered_peers,
        "running_jobs" => &mut caps.requests.running_jobs,
        "waiting_jobs" => &mut caps.requests.waiting_jobs,
        "progress_bytes" => &mut caps.requests.progress_bytes,
        "message_bytes" => &mut caps.requests.message_bytes,
        "open_questions" => &mut caps.requests.open_questions,
        "open_prompts" => &mut caps.requests.open_prompts,
        "count" => &mut caps.tools.count,
        "description_bytes" => &mut caps.tools.description_bytes,
        "schema_bytes" => &mut caps.tools.schema_bytes,
        "registration_bytes" => &mut caps.tools.registration_bytes,
        _ => return Err(Malformed::new("is no limit of the configuration")),
    };
    *slot = size(setting.value);
    Ok(())
}

pub(crate) fn connection_state(state: ConnectionState) -> TransportEvent {
    TransportEvent::ConnectionState(match state {
        ConnectionState::Connected => CoreConnectionState::Connected,
        ConnectionState::Reconnecting => CoreConnectionState::Reconnecting,
    })
}

pub(crate) fn packet(from: Option<&Peer>, lane: Lane, topic: String, bytes: Vec<u8>) -> TransportEvent {
    let lane = match lane {
        Lane::Reliable => CoreLane::Reliable,
        Lane::Lossy => CoreLane::Lossy,
    };
    TransportEvent::Packet(Incoming::new(from.map(Peer::to_core), lane, topic, bytes))
}

pub(crate) fn unreadable(from: Option<&Peer>, why: Unreadable) -> TransportEvent {
    let why = match why {
        Unreadable::Encrypted => CoreUnreadable::Encrypted,
        Unreadable::NotEncrypted => CoreUnreadable::NotEncrypted,
        Unreadable::Undecryptable => CoreUnreadable::Undecryptable,
    };
    TransportEvent::Unreadable { from: from.map(Peer::to_core), why }
}

pub(crate) fn header(
    id: &str,
    topic: String,
    length: Option<u64>,
    header_attributes: Vec<Attribute>,
) -> StreamPart {
    let mut header = StreamHeader::new(id, topic, length);
    header.attributes.extend(attributes(header_attributes));
    StreamPart::Header(header)
}

pub(crate) fn chunk(id: &str, index: u64, bytes: Vec<u8>) -> StreamPart {
    StreamPart::Chunk { id: id.into(), index, bytes: bytes.into() }
}

pub(crate) fn trailer(id: &str, reason: String) -> StreamPart {
    StreamPart::Trailer { id: id.into(), reason }
}

pub(crate) fn send_failure(why: SendFailureKind, bytes: u64, max: u64, text: String) -> SendFailure {
    match why {
        SendFailureKind::TooLarge => SendFailure::TooLarge { size: size(bytes), limit: size(max) },
        SendFailureKind::NotAllowed => SendFailure::NotAllowed,
        SendFailureKind::Closed => SendFailure::Closed,
        SendFailureKind::Interrupted => SendFailure::Interrupted,
        SendFailureKind::QueueFull => SendFailure::QueueFull,
        SendFailureKind::Other => SendFailure::Other(text),
    }
}

pub(crate) fn progress(status: ProgressStatus, message: Option<String>, content: Option<&Json>) -> Progress {
    let mut progress = Progress::default();
    progress.status = match status {
        ProgressStatus::Pending => CoreStatus::Pending,
        ProgressStatus::InProgress => CoreStatus::InProgress,
        ProgressStatus::Completed => CoreStatus::Completed,
        ProgressStatus::Failed => CoreStatus::Failed,
    };
    progress.message = message;
    // The core leaves out content that is larger than progress may be, too.
    progress.content = content.and_then(|content| body(content).ok());
    progress
}

pub(crate) fn outcome(value: Option<&Json>, error: Option<Result<ToolFailure>>) -> toolbridge::Outcome {
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

/// The plain form of a [`Request`].
pub(crate) struct Call {
    pub(crate) tool: String,
    pub(crate) arguments: Json,
    pub(crate) owner: Option<String>,
    pub(crate) timeout: Option<f64>,
    pub(crate) owner_wait: Option<f64>,
    pub(crate) meta: Vec<MetaEntry>,
    pub(crate) turn: Option<u64>,
}

impl Call {
    /// Returns the request, or the outcome of a call that no frame can hold.
    pub(crate) fn into_core(self) -> Result<std::result::Result<Request, CallError>> {
        let mut request = Request::new(self.tool, Value::empty());
        request.owner = self.owner.map(Into::into);
        request.timeout = self.timeout.map(duration).transpose()?;
        request.owner_wait = self.owner_wait.map(duration).transpose()?;
        request.turn = self.turn.map(TurnKey::from_number);
        let with_values = || {
            request.arguments = body(&self.arguments)?;
            for entry in &self.meta {
                request = request.meta(&entry.name, body(&entry.value)?);
            }
            Ok(request)
        };
        Ok(with_values().map_err(|error: EncodeError| CallError::from(error)))
    }
}
