//! Converts types of the core to plain types.

use std::sync::Arc;

use crate::{
    CallError as CoreCallError, CallId, CallRecord, CloseReason as CoreCloseReason,
    ConnectionState as CoreConnectionState, ErrorCode, Event as CoreEvent, Identity,
    LateResult as CoreLateResult, Progress as CoreProgress, Role as CoreRole, Stats, ToolResult, Value,
    escape::plain,
    session::{CallState, Job, Question, Readiness as CoreReadiness, Selection, SendFailure, Unaccepted},
    tool::{
        model::{self, by_owner, model_names},
        model_text,
        not_offered::not_bound,
    },
    tools::{
        Execution as CoreExecution, NotOffered, Offer, ProgressStatus as CoreStatus, RegisterError,
        StopReason as CoreStopReason,
    },
    transport::{
        Incoming, Lane as CoreLane, Packet, Participant as CoreParticipant, Peer as CorePeer, StreamPart,
        StreamParts, TransportEvent, Unreadable as CoreUnreadable,
    },
};

use super::{
    clock::{Clock, millis},
    form::{Id, Json, Write as _, Writer},
    input::{Input, SendFailureKind, Unreadable},
    output::{Candidate, Event, Output, StreamInfo},
    reply::{LateResult, LeftOut, ModelTool, OfferedTool, Record, Reply},
    shared::{
        Attribute, BargeIn, CallError, CallErrorKind, CloseKind, CloseReason, ConnectionState, Consent,
        Count, Execution, Lane, Participant, ParticipantKind, Peer, ProgressStatus, Readiness, StopReason,
        TokenRole, Tool, UnacceptedReason, Visibility,
    },
};

pub fn body(value: &Value) -> Json {
    Json { text: value.to_json_text() }
}

fn tree(value: &serde_json::Value) -> Json {
    Json { text: serde_json::to_string(value).unwrap_or_default() }
}

pub fn text(identity: &Identity) -> String {
    identity.as_str().to_owned()
}

fn texts(identities: &[Identity]) -> Vec<String> {
    identities.iter().map(text).collect()
}

fn entries<'a>(attributes: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<Attribute> {
    attributes.map(|(name, value)| Attribute { name: name.to_owned(), value: value.to_owned() }).collect()
}

fn outcome(outcome: &Result<(), ErrorCode>) -> String {
    outcome.as_ref().map_or_else(ErrorCode::as_str, |()| "ok").to_owned()
}

/// Splits a result into value and error, of which one is present. A value that is no map is in one, as on the wire.
pub fn settled(result: &Result<Value, CoreCallError>) -> (Option<Json>, Option<CallError>) {
    match result {
        Ok(value) if value.is_map() => (Some(body(value)), None),
        Ok(value) => (Some(Json { text: format!("{{\"value\":{}}}", value.to_json_text()) }), None),
        Err(error) => (None, Some(CallError::from(error))),
    }
}

impl From<&CorePeer> for Peer {
    fn from(peer: &CorePeer) -> Self {
        Self { identity: text(peer.identity()), sid: peer.sid().as_str().to_owned() }
    }
}

impl From<&CoreParticipant> for Participant {
    fn from(who: &CoreParticipant) -> Self {
        let kind = match (who.is_standard(), who.is_agent()) {
            (true, _) => ParticipantKind::Standard,
            (_, true) => ParticipantKind::Agent,
            _ => ParticipantKind::Other,
        };
        let Peer { identity, sid } = Peer::from(who.peer());
        Self {
            identity,
            sid,
            kind,
            attributes: entries(who.all_attributes()),
            role: who.token_role().map(TokenRole::from),
            can_update_metadata: who.may_update_metadata(),
            can_publish_data: who.may_publish_data(),
            admitted: who.is_admitted(),
            may_stop: who.may_stop(),
            client_protocol: who.protocol().into(),
            inflates: who.can_inflate(),
        }
    }
}

impl From<&crate::Tool> for Tool {
    fn from(tool: &crate::Tool) -> Self {
        let (options, hints) = (tool.tool_options(), tool.hints());
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Self {
            name: tool.name().as_str().to_owned(),
            description: tool.description().to_owned(),
            schema: tool.input_schema().map(tree),
            title: owned(tool.title()),
            short_title: owned(tool.short_title()),
            source: owned(tool.source()),
            output_schema: tool.output_schema().map(tree),
            meta: tool.meta().map(tree),
            destructive: hints.destructive,
            idempotent: hints.idempotent,
            read_only: hints.read_only,
            open_world: hints.open_world,
            consent: options.consent.map(|consent| match consent {
                crate::Consent::OncePerSession => Consent::OncePerSession,
                crate::Consent::Always => Consent::Always,
                _ => Consent::Never,
            }),
            timeout: options.timeout.map(millis),
            patience: options.patience.map(millis),
            cancel_grace: options.cancel_grace.map(millis),
            disclose: match options.disclose {
                crate::tools::Visibility::Name => Visibility::Name,
                crate::tools::Visibility::Nothing => Visibility::Nothing,
                _ => Visibility::Full,
            },
            prefer_client: options.prefer_client,
            barge_in: match options.barge_in {
                crate::BargeIn::Finish => BargeIn::Finish,
                crate::BargeIn::Report => BargeIn::Report,
                _ => BargeIn::Cancel,
            },
        }
    }
}

impl From<CoreRole> for TokenRole {
    fn from(role: CoreRole) -> Self {
        match role {
            CoreRole::Client => Self::Client,
            CoreRole::Assistant => Self::Assistant,
            CoreRole::Observer => Self::Observer,
        }
    }
}

impl CallError {
    /// Returns the error of a call that was not made.
    pub fn nothing_ran(kind: CallErrorKind, code: &str, message: String) -> Self {
        Self {
            kind,
            code: code.to_owned(),
            message,
            for_model: None,
            may_have_run: false,
            owner: None,
            owners: None,
            limit: None,
            size: None,
            max: None,
            partial: None,
            rpc_code: None,
        }
    }
}

impl CallError {
    /// Returns it as JSON.
    pub fn to_json(&self) -> serde_json::Value {
        let mut out = Writer::default();
        self.write(&mut out);
        serde_json::from_str(&out.finish()).unwrap_or_default()
    }
}

impl From<&CoreCallError> for CallError {
    fn from(error: &CoreCallError) -> Self {
        let code = error.code();
        let mut it = Self::nothing_ran(CallErrorKind::Other, code.as_str(), error.to_string());
        it.may_have_run = error.may_have_run();
        it.for_model = Some(model_text::of_call(error)).filter(|text| *text != it.message);
        it.kind = match error {
            CoreCallError::Tool(error) => {
                it.message = error.for_clients().to_string();
                it.for_model = Some(model_text::of_tool(error)).filter(|text| *text != it.message);
                it.partial = error.partial().map(body);
                it.rpc_code = error.rpc_code().map(u64::from);
                CallErrorKind::Tool
            }
            CoreCallError::UnknownTool { .. } => CallErrorKind::UnknownTool,
            CoreCallError::Ambiguous { owners, .. } => {
                it.owners = Some(texts(owners));
                CallErrorKind::Ambiguous
            }
            CoreCallError::NotBound { clients, .. } => {
                it.owners = Some(texts(clients));
                CallErrorKind::NotBound
            }
            CoreCallError::NotDelivered { limit } => {
                it.limit = Some(millis(*limit));
                CallErrorKind::NotDelivered
            }
            CoreCallError::NotAllowed => CallErrorKind::NotAllowed,
            CoreCallError::Timeout { limit } => {
                it.limit = Some(millis(*limit));
                CallErrorKind::Timeout
            }
            CoreCallError::Lost { owner, .. } => {
                it.owner = Some(text(owner));
                CallErrorKind::Lost
            }
            CoreCallError::Cancelled | CoreCallError::Unawaited => CallErrorKind::Cancelled,
            CoreCallError::Detached => CallErrorKind::Detached,
            CoreCallError::TurnOver => CallErrorKind::TurnOver,
            CoreCallError::TooManyEqual { .. } => CallErrorKind::TooManyEqual,
            CoreCallError::TooLarge { size, limit } => {
                (it.size, it.max) = (Some(*size as u64), Some(*limit as u64));
                CallErrorKind::TooLarge
            }
            CoreCallError::TooManyOpen { .. } => CallErrorKind::TooManyOpen,
            CoreCallError::Busy { owner, .. } => {
                it.owner = Some(text(owner));
                CallErrorKind::Busy
            }
            CoreCallError::Limit { maximum, .. } => {
                it.limit = Some(millis(*maximum));
                CallErrorKind::Limit
            }
            CoreCallError::Arguments(_) => CallErrorKind::Arguments,
            CoreCallError::Closed(_) | CoreCallError::NotInRoom(_) => CallErrorKind::Closed,
        };
        it
    }
}

impl From<&CoreCloseReason> for CloseReason {
    fn from(reason: &CoreCloseReason) -> Self {
        let (kind, text) = match reason {
            CoreCloseReason::Closed => (CloseKind::Closed, None),
            CoreCloseReason::DuplicateIdentity => (CloseKind::DuplicateIdentity, None),
            CoreCloseReason::Removed => (CloseKind::Removed, None),
            CoreCloseReason::RoomDeleted => (CloseKind::RoomDeleted, None),
            CoreCloseReason::RoomClosed => (CloseKind::RoomClosed, None),
            CoreCloseReason::ServerShutdown => (CloseKind::ServerShutdown, None),
            CoreCloseReason::ConnectionLost(text) => (CloseKind::ConnectionLost, Some(text)),
            CoreCloseReason::Server(text) => (CloseKind::Server, Some(text)),
            CoreCloseReason::TokenExpired => (CloseKind::TokenExpired, None),
            CoreCloseReason::Refused(text) => (CloseKind::Refused, Some(text)),
        };
        let text = text.map(|text: &Arc<str>| text.as_ref().to_owned());
        let message = match reason {
            // The core's own advice names a method of Rust.
            CoreCloseReason::TokenExpired => {
                "the connection was lost and the token has expired; join again with a new token".to_owned()
            }
            reason => reason.to_string(),
        };
        Self { kind, text, message: Some(message) }
    }
}

impl From<CoreConnectionState> for ConnectionState {
    fn from(state: CoreConnectionState) -> Self {
        match state {
            CoreConnectionState::Connected => Self::Connected,
            CoreConnectionState::Reconnecting => Self::Reconnecting,
        }
    }
}

impl From<CoreStatus> for ProgressStatus {
    fn from(status: CoreStatus) -> Self {
        match status {
            CoreStatus::Pending => Self::Pending,
            CoreStatus::Completed => Self::Completed,
            CoreStatus::Failed => Self::Failed,
            _ => Self::InProgress,
        }
    }
}

impl From<CoreExecution> for Execution {
    fn from(execution: CoreExecution) -> Self {
        match execution {
            CoreExecution::Client => Self::Client,
            CoreExecution::Server => Self::Server,
            CoreExecution::Either => Self::Either,
        }
    }
}

impl From<CoreStopReason> for StopReason {
    fn from(reason: CoreStopReason) -> Self {
        match reason {
            CoreStopReason::Caller => Self::Caller,
            CoreStopReason::BargeIn => Self::BargeIn,
            CoreStopReason::Deadline => Self::Deadline,
            CoreStopReason::CallerGone => Self::CallerGone,
            CoreStopReason::Leaving => Self::Leaving,
            CoreStopReason::Lost => Self::Lost,
        }
    }
}

impl From<CoreLane> for Lane {
    fn from(lane: CoreLane) -> Self {
        match lane {
            CoreLane::Reliable => Self::Reliable,
            CoreLane::Lossy => Self::Lossy,
        }
    }
}

impl Input {
    /// Returns the input that reports an event of one of toolbridge's own transports, or `None` if it has no plain form: a message
    /// of LiveKit's RPC.
    pub fn from_event(event: &TransportEvent) -> Option<Self> {
        Some(match event {
            TransportEvent::Joined(who) => Self::ParticipantJoined { participant: who.into() },
            TransportEvent::Left(peer) => Self::ParticipantLeft { peer: peer.into() },
            TransportEvent::Packet(Incoming { from, lane, topic, payload, .. }) => Self::Packet {
                from: from.as_ref().map(Into::into),
                lane: (*lane).into(),
                topic: topic.to_string(),
                bytes: payload.to_vec(),
            },
            TransportEvent::ConnectionState(state) => Self::Connection { state: (*state).into() },
            TransportEvent::Stream { from, part } => Self::from_stream(from.into(), part)?,
            TransportEvent::Unreadable { from, why } => Self::Unreadable {
                from: from.as_ref().map(Into::into),
                why: match why {
                    CoreUnreadable::Encrypted => Unreadable::Encrypted,
                    CoreUnreadable::NotEncrypted => Unreadable::NotEncrypted,
                    _ => Unreadable::Undecryptable,
                },
            },
            TransportEvent::Closed(reason) => {
                Self::Closed { reason: CloseReason { message: None, ..reason.into() } }
            }
            _ => return None,
        })
    }

    /// Returns the input that reports a packet that was not sent.
    pub fn from_failure(packet: u64, why: &SendFailure) -> Self {
        let kind = match why {
            SendFailure::TooLarge { .. } => SendFailureKind::TooLarge,
            SendFailure::NotAllowed => SendFailureKind::NotAllowed,
            SendFailure::Closed => SendFailureKind::Closed,
            SendFailure::Interrupted => SendFailureKind::Interrupted,
            SendFailure::QueueFull => SendFailureKind::QueueFull,
            _ => SendFailureKind::Other,
        };
        let (size, max) = match why {
            SendFailure::TooLarge { size, limit } => (*size as u64, *limit as u64),
            _ => (0, 0),
        };
        let text = if let SendFailure::Other(text) = why { text.clone() } else { String::new() };
        Self::SendFailed { packet, why: kind, size, max, text }
    }

    fn from_stream(from: Peer, part: &StreamPart) -> Option<Self> {
        Some(match part {
            StreamPart::Header(header) if header.inline.is_some() => return None,
            StreamPart::Header(header) => Self::StreamHeader {
                from,
                id: header.id.to_string(),
                topic: header.topic.to_string(),
                length: header.length,
                attributes: entries(header.attributes.iter().map(|(name, value)| (&**name, &**value))),
            },
            StreamPart::Chunk { id, index, bytes } => {
                Self::StreamChunk { from, id: id.to_string(), index: *index, bytes: bytes.to_vec() }
            }
            StreamPart::Trailer { id, reason } => {
                Self::StreamTrailer { from, id: id.to_string(), reason: reason.clone() }
            }
        })
    }
}

impl Output {
    /// Returns the output that sends this packet. The transport's packets have this size.
    pub fn transmit(packet: Packet, max_packet: usize) -> Self {
        let mut stream = None;
        if packet.is_streamed(max_packet)
            && let Some(StreamPart::Header(header)) = StreamParts::of(&packet).next()
        {
            stream = Some(StreamInfo {
                id: header.id.as_ref().to_owned(),
                topic: header.topic.into_owned(),
                length: packet.payload.len() as u64,
                attributes: entries(header.attributes.iter().map(|(name, value)| (&**name, &**value))),
            });
        }
        Self::Transmit {
            packet: packet.id,
            to: texts(&packet.to),
            broadcast: packet.is_broadcast(),
            topic: packet.topic.into_owned(),
            lane: packet.lane.into(),
            overtakes: packet.overtakes,
            stream,
            bytes: packet.payload.into(),
        }
    }

    pub fn execute(job: &Job, clock: Clock) -> Self {
        Self::Execute {
            key: job.key.number(),
            call: job.call.as_str().to_owned(),
            caller: text(&job.caller),
            tool: job.tool.as_str().to_owned(),
            arguments: body(&job.arguments),
            ends_at: clock.time(job.deadline),
            limit: millis(job.limit),
            meta: body(&job.meta),
        }
    }

    pub fn ask(question: &Question, clock: Clock) -> Self {
        Self::Ask {
            key: question.key.number(),
            call: question.call.as_str().to_owned(),
            caller: text(&question.caller),
            tool: Tool::from(&question.tool),
            arguments: body(&question.arguments),
            text: question_text(question),
            until: clock.time(question.until),
        }
    }

    /// Returns the output for the outcome of a call.
    pub fn result(id: Id, result: &Result<Value, CoreCallError>) -> Self {
        let (value, error) = settled(result);
        let read = result.as_ref().ok().map(ToolResult::of);
        // A plain value is what the model reads.
        let has_more =
            |value: &Value, read: &ToolResult| !read.is_plain_value() || value.get(RESULT).is_some();
        let read = read.filter(|read| result.as_ref().is_ok_and(|value| has_more(value, read)));
        Self::Result {
            id,
            value,
            for_model: read.as_ref().map(|read| read.for_model(ToolResult::MAX_TEXT).text.into_owned()),
            needs_model: read.as_ref().map(ToolResult::needs_model),
            spoken: read.as_ref().and_then(|read| read.spoken()).map(Into::into),
            error,
        }
    }

    /// Returns the output for the progress of a call of the local participant.
    pub fn progress(id: Id, call: &CallId, progress: CoreProgress) -> Self {
        Self::Progress {
            id,
            call: call.as_str().to_owned(),
            status: progress.status.into(),
            message: progress.message,
            content: progress.content.as_ref().map(body),
        }
    }

    pub fn select(selection: &Selection) -> Self {
        let candidates = selection.candidates.iter().map(|it| Candidate {
            identity: text(&it.identity),
            participant: it.participant.as_ref().map(Participant::from),
            tool: it.tool.as_ref().map(Tool::from),
        });
        Self::Select {
            key: selection.key.number(),
            tool: selection.tool.clone(),
            candidates: candidates.collect(),
        }
    }
}

/// What to do if a token lacks the grant.
const NOT_ALLOWED: &str = "the local token does not allow sending data; have `canPublishData` granted";

/// The longest arguments that a question shows, in bytes: a person allows only what is shown.
const SHOWN_ARGUMENTS: usize = 16 << 10;

fn question_text(question: &Question) -> Option<String> {
    let arguments = serde_json::to_string_pretty(&question.arguments.to_json()).ok()?;
    // Its line breaks are its own: those of texts are escapes.
    let lines: Vec<_> = arguments.split('\n').map(plain).collect();
    let arguments = Some(lines.join("\n")).filter(|shown| shown.len() <= SHOWN_ARGUMENTS)?;
    let (caller, tool) = (plain(question.caller.as_str()), &question.tool);
    let name = tool.title().unwrap_or_else(|| tool.name().as_str());
    Some(format!("{caller} wants to run \"{name}\": {}\n{arguments}", tool.description()))
}

/// The key of a result that is more than a plain value (`wire.md`, section 3.3).
const RESULT: &str = "bridge.result";

/// What an event is completed with.
pub trait Known {
    /// Returns the local participant's name of a call, if it made it.
    fn id_of(&self, call: &CallId) -> Option<Id>;

    /// Returns the tools that can be called now. Few events need them.
    fn offers(&self) -> Vec<Offer>;
}

/// Returns the names of the tools that a participant offers.
pub fn tool_names(offers: &[Offer], owner: &Identity) -> Vec<String> {
    let its = offers.iter().filter(|offer| offer.owner == *owner);
    its.map(|offer| offer.tool.name().as_str().to_owned()).collect()
}

impl Event {
    /// Returns the event; none if it is the progress of a local call, which is an output, or one that a session does not emit.
    pub fn from_core(event: CoreEvent, known: &impl Known) -> Option<Self> {
        let owned = |text: &str| text.to_owned();
        Some(match event {
            CoreEvent::Joined(who) => Self::Joined { participant: Participant::from(&who) },
            CoreEvent::Left(peer) => Self::Left { peer: Peer::from(&peer) },
            CoreEvent::ToolsChanged { owner } => {
                Self::ToolsChanged { tools: tool_names(&known.offers(), &owner), owner: text(&owner) }
            }
            CoreEvent::Bound(assistant) => Self::Bound { assistant: assistant.as_ref().map(text) },
            CoreEvent::AmbiguousAssistant { candidates } => {
                Self::AmbiguousAssistant { candidates: texts(&candidates) }
            }
            CoreEvent::Registered { by, tools, refused } => {
                Self::Registered { by: text(&by), tools: tools as u64, refused }
            }
            CoreEvent::Unaccepted { why } => {
                let (kind, by) = match &why {
                    Unaccepted::Refused { by, .. } => (UnacceptedReason::Refused, Some(text(by))),
                    Unaccepted::NotAssistant { from, .. } => {
                        (UnacceptedReason::NotAssistant, Some(text(from)))
                    }
                    _ => (UnacceptedReason::NoAssistant, None),
                };
                Self::Unaccepted { why: kind, by, message: why.to_string() }
            }
            CoreEvent::NotAdmitted { client, why } => {
                let name = text(&client);
                let message = not_offered(NotOffered::NotAdmitted { client, offers: false, why });
                Self::NotAdmitted { client: name, message }
            }
            CoreEvent::NotAllowed => Self::NotAllowed { message: NOT_ALLOWED.to_owned() },
            CoreEvent::ConnectionState(state) => Self::Connection { state: ConnectionState::from(state) },
            CoreEvent::Requested { call, tool, execution, owner, by } => Self::Requested {
                id: known.id_of(&call),
                call: owned(call.as_str()),
                tool,
                execution: execution.into(),
                owner: text(&owner),
                by: text(&by),
            },
            CoreEvent::Delivered { call, owner } => {
                Self::Delivered { id: known.id_of(&call), call: owned(call.as_str()), owner: text(&owner) }
            }
            CoreEvent::Progress { key: Some(_), .. } => return None,
            CoreEvent::Progress { key: None, call, progress } => Self::Progress {
                call: owned(call.as_str()),
                status: progress.status.into(),
                message: progress.message,
                content: progress.content.as_ref().map(body),
            },
            CoreEvent::Settled { call, tool, execution, owner, outcome: how, took, .. } => Self::Settled {
                call: owned(call.as_str()),
                tool,
                execution: execution.into(),
                owner: owner.as_ref().map(text),
                outcome: outcome(&how),
                took: millis(took),
            },
            CoreEvent::ToolFailed { call, tool, reason } => Self::ToolFailed {
                call: owned(call.as_str()),
                tool: owned(tool.as_str()),
                cause: owned(reason.as_str()),
            },
            CoreEvent::Frame { from, frame } => Self::Frame {
                from: Peer::from(&from),
                kind: frame.kind().code().into(),
                frame: tree(&frame.to_json().ok()?),
            },
            CoreEvent::PeerError { by, code, message, recoverable } => {
                Self::PeerError { by: text(&by), code, message, recoverable }
            }
            CoreEvent::Violation { by, what, times, why } => {
                let message = what.unreadable().map(|why| why.to_string()).or_else(|| why.map(Into::into));
                Self::Violation { by: by.as_ref().map(text), what: owned(what.as_str()), times, message }
            }
            CoreEvent::View { by, view } => {
                Self::View { by: text(&by), view: view.view, content: body(&view.content), text: view.text }
            }
            CoreEvent::LateResult { call, tool, owner, outcome: how } => Self::LateResult {
                id: known.id_of(&call),
                call: owned(call.as_str()),
                tool,
                owner: owner.as_ref().map(text),
                outcome: outcome(&how),
                value: None,
                error: None,
                took: None,
                parameters: None,
            },
            CoreEvent::ConsentVoid { tool, caller } => {
                Self::ConsentVoid { tool: owned(tool.as_str()), caller: text(&caller) }
            }
            CoreEvent::Closed(reason) => Self::Closed { reason: CloseReason::from(&reason) },
            _ => return None,
        })
    }
}

/// Returns the text of a reason that is not about one tool.
fn not_offered(why: NotOffered) -> String {
    CoreCallError::UnknownTool { tool: "".into(), why: Box::new(why) }.to_string()
}

impl LeftOut {
    pub fn from_core(why: &RegisterError) -> Self {
        let tool = match why {
            RegisterError::Reserved { name }
            | RegisterError::RpcMethod { name, .. }
            | RegisterError::Duplicate { name }
            | RegisterError::NoConsent { name }
            | RegisterError::NotAMap { name }
            | RegisterError::Schema { name, .. }
            | RegisterError::Patience { name, .. }
            | RegisterError::TooLarge { name, .. } => Some(name.as_str().to_owned()),
            _ => None,
        };
        Self { tool, why: why.to_string() }
    }
}

impl OfferedTool {
    /// Describes a tool that can be called. `assistant` is the local participant, if it is one.
    pub fn from_core(offer: &Offer, assistant: Option<&Identity>) -> Self {
        let execution = match Some(&offer.owner) == assistant {
            true if offer.tool.tool_options().prefer_client => CoreExecution::Either,
            true => CoreExecution::Server,
            false => CoreExecution::Client,
        };
        Self {
            owner: text(&offer.owner),
            execution: execution.into(),
            reach: offer.reach.map(|reach| reach.to_string()),
            tool: Tool::from(&offer.tool),
        }
    }
}

/// Returns the tools in the form that all model APIs accept.
pub fn model_tools(offers: &[Offer]) -> Reply {
    let listed = by_owner(offers.to_vec(), true);
    let names = model_names(&listed);
    let (mut tools, mut left_out) = (Vec::new(), Vec::new());
    for (name, offer) in &listed {
        let own = offer.tool.name();
        let is_of_one = offer.is_local || name != own;
        let has_it = |it: &&Offer| if is_of_one { it.owner == offer.owner } else { !it.is_local };
        let owners = offers.iter().filter(|it| it.tool.name() == own).filter(has_it);
        match model::ModelTool::new(&offer.tool) {
            Ok(fitted) => tools.push(ModelTool {
                name: names.converted(name.as_str()).unwrap_or_default().to_owned(),
                description: fitted.description().to_owned(),
                schema: tree(fitted.schema()),
                tool: own.to_string(),
                owners: owners.map(|it| text(&it.owner)).collect(),
            }),
            Err(why) => left_out.push(LeftOut { tool: Some(own.to_string()), why: why.to_string() }),
        }
    }
    Reply::ModelTools { tools, left_out }
}

impl Record {
    pub fn from_core(record: &CallRecord, clock: Clock) -> Self {
        let state = match record.state() {
            CallState::Requested => "requested",
            CallState::Delivered => "delivered",
            CallState::Started => "started",
            _ => "settled",
        };
        let time = |at| clock.time(at);
        Self {
            call: record.id.as_str().to_owned(),
            tool: record.tool.clone(),
            execution: record.execution.into(),
            caller: text(&record.caller),
            owner: record.owner.as_ref().map(text),
            turn: record.turn.map(|turn| turn.number()),
            request_bytes: record.request_bytes as u64,
            result_bytes: record.result_bytes.map(|bytes| bytes as u64),
            requested: time(record.requested),
            delivered: record.delivered.map(time),
            started: record.started.map(time),
            settled: record.settled.map(time),
            late: record.late.map(time),
            outcome: record.outcome.as_ref().map(outcome),
            state: state.to_owned(),
        }
    }
}

impl Event {
    /// Returns the event of a late result with all of it.
    pub fn late(late: &CoreLateResult, id: Option<Id>) -> Self {
        let LateResult { id, call, tool, owner, value, error, took, event } = LateResult::from_core(late, id);
        let outcome = error.as_ref().map_or_else(|| "ok".to_owned(), |error| error.code.clone());
        Self::LateResult { id, call, tool, owner, outcome, value, error, took: Some(took), parameters: event }
    }
}

impl LateResult {
    /// Describes a result of a call with this name.
    pub fn from_core(late: &CoreLateResult, id: Option<Id>) -> Self {
        let (value, error) = settled(&late.result);
        Self {
            id,
            call: late.id.as_str().to_owned(),
            tool: late.tool.to_string(),
            owner: late.owner.as_ref().map(text),
            value,
            error,
            took: millis(late.took),
            event: late.event.as_ref().map(body),
        }
    }
}

pub fn readiness(of: &Identity, readiness: CoreReadiness) -> Reply {
    let (readiness, tools, message) = match readiness {
        CoreReadiness::Ready(tools) => (Readiness::Ready, Some(tools.iter().map(Tool::from).collect()), None),
        CoreReadiness::Silent => (Readiness::Silent, None, None),
        CoreReadiness::NotYet(why) => (Readiness::NotYet, None, Some(not_offered(why))),
        CoreReadiness::NotBound => (Readiness::NotBound, None, Some(not_bound(of))),
        CoreReadiness::Never(why) => (Readiness::Never, None, Some(not_offered(why))),
    };
    Reply::Readiness { readiness, tools, message }
}

pub fn stats(stats: &Stats) -> Vec<Count> {
    let counted = stats.iter().filter(|(_, count)| *count > 0);
    counted.map(|(name, value)| Count { name: name.to_owned(), value }).collect()
}
