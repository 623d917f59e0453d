//! One struct per message type of `wire.md`, section 3, with the dialects already resolved.

use super::Kind;
use crate::{
    tool::{CallId, ErrorCode, Execution, ProgressStatus},
    value::Value,
};

/// The body of a frame, by its type.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Message {
    /// Type 1.
    Error(ErrorMessage),
    /// Type 6.
    ToolUseRequest(ToolUseRequest),
    /// Type 7.
    ToolUseResult(ToolUseResult),
    /// Type 8.
    Acknowledgement(Acknowledgement),
    /// Type 10.
    ControlStop(ControlStop),
    /// Type 12.
    Configuration(Configuration),
    /// Type 70.
    ToolsRegister(ToolsRegister),
    /// Type 71.
    ToolsRegisterAck(ToolsRegisterAck),
    /// Type 72.
    Heartbeat,
    /// Type 1000.
    ToolProgress(ToolProgress),
    /// Any other type: its code, and its body as it is.
    Other(u16, Value),
}

impl Message {
    /// The type of its frame.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Error(_) => Kind::ERROR,
            Self::ToolUseRequest(_) => Kind::TOOL_USE_REQUEST,
            Self::ToolUseResult(_) => Kind::TOOL_USE_RESULT,
            Self::Acknowledgement(_) => Kind::ACKNOWLEDGEMENT,
            Self::ControlStop(_) => Kind::CONTROL_STOP,
            Self::Configuration(_) => Kind::CONFIGURATION,
            Self::ToolsRegister(_) => Kind::TOOLS_REGISTER,
            Self::ToolsRegisterAck(_) => Kind::TOOLS_REGISTER_ACK,
            Self::Heartbeat => Kind::HEARTBEAT,
            Self::ToolProgress(_) => Kind::TOOL_PROGRESS,
            Self::Other(code, _) => Kind::new(*code),
        }
    }
}

/// Type 1: a malformed frame or a bad state of the conversation; never a tool's failure.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ErrorMessage {
    /// Its own id.
    pub id: String,
    /// The room's name.
    pub conversation_id: String,
    /// What kind of error: `wire.md`, section 8.
    pub code: i32,
    /// For people.
    pub message: String,
    /// 0 to 3.
    pub severity: i32,
    /// Whether the session can go on.
    pub recoverable: bool,
    /// The id of the frame or call that caused it.
    pub originating_id: Option<String>,
}

/// Type 6: please run this tool.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolUseRequest {
    /// The call.
    pub id: CallId,
    /// The tool, as written: it may be no valid name.
    pub tool_name: String,
    /// The arguments. A non-map decodes, and is answered `invalid_parameters`.
    pub parameters: Value,
    /// Who is to execute it. `Err` holds what was written instead (empty if missing): refused with 301.
    pub execution: Result<Execution, String>,
    /// The budget in milliseconds, as written.
    pub timeout_ms: Option<i32>,
    /// The room's name.
    pub conversation_id: Option<String>,
    /// The assistant's message that caused the call.
    pub message_id: Option<String>,
}

/// Type 7: a call's outcome.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolUseResult {
    /// The call.
    pub id: CallId,
    /// Whether it succeeded.
    pub success: bool,
    /// The data; on failure whatever was reached.
    pub result: Option<Value>,
    /// Why it failed, for programs.
    pub error_code: Option<ErrorCode>,
    /// Why it failed, for people.
    pub error_message: Option<String>,
    /// The room's name.
    pub conversation_id: Option<String>,
    /// The result's own id, where a dialect gives it one.
    pub result_id: Option<String>,
}

/// Type 8: a frame was received.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Acknowledgement {
    /// The room's name.
    pub conversation_id: Option<String>,
    /// The stanza of the frame that is acknowledged.
    pub acknowledged_stanza_id: Option<i32>,
    /// Whether it was taken.
    pub success: Option<bool>,
    /// The call that it belongs to.
    pub acknowledged_message_id: Option<String>,
    /// An older peer's last stanza.
    pub last_seen_stanza_id: Option<i32>,
    /// `claim`, `ping`, `pong`, or words for a log.
    pub notes: Option<String>,
}

/// Type 10: stop a call, or everything.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ControlStop {
    /// The room's name.
    pub conversation_id: Option<String>,
    /// The call; everything if none.
    pub target_id: Option<String>,
    /// For people.
    pub reason: Option<String>,
    /// `generation`, `speech` or `all`, as written.
    pub stop_type: Option<String>,
}

/// Type 12: who I am and what I can.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Configuration {
    /// The room's name.
    pub conversation_id: Option<String>,
    /// The last stanza that was seen; used with plain peers only.
    pub last_sequence_seen: Option<i32>,
    /// Which program this is.
    pub client_version: Option<String>,
    /// A language tag.
    pub preferred_language: Option<String>,
    /// The device.
    pub device: Option<String>,
    /// The extensions that it knows.
    pub features: Option<Vec<String>>,
}

/// Type 70: the tools that a client offers; the whole list, replacing the last.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolsRegister {
    /// The tools.
    pub tools: Vec<RegisteredTool>,
}

/// One tool in a registration, as written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RegisteredTool {
    /// Its name, which may be no valid one.
    pub name: String,
    /// What it says of itself.
    pub description: String,
    /// The JSON Schema of its arguments.
    pub input_schema: Option<Value>,
    /// `destructive`, `idempotent` and the like: a map.
    pub annotations: Option<Value>,
}

/// Type 71: the answer to a registration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolsRegisterAck {
    /// Whether the tools are taken.
    pub success: bool,
    /// How many.
    pub tool_count: i32,
    /// What is wrong.
    pub error: Option<String>,
}

/// Type 1000: how far a running tool has come.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolProgress {
    /// The call.
    pub id: CallId,
    /// Where it stands.
    pub status: ProgressStatus,
    /// Anything structured.
    pub content: Option<Value>,
    /// In words.
    pub message: Option<String>,
}
