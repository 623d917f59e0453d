//! Defines one struct per message type of `wire.md`, section 3, with the dialects already resolved.
//!
//! Later versions may add fields. Outside this crate a message is made with `new` or `default`, and its fields are then set.

use std::fmt;

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
    /// Type 1001.
    ViewUpdate(ViewUpdate),
    /// Any other type: its code, and its body unchanged.
    Other(u16, Value),
}

impl Message {
    /// Returns the type of its frame.
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
            Self::ViewUpdate(_) => Kind::VIEW_UPDATE,
            Self::Other(code, _) => Kind::new(*code),
        }
    }
}

/// Type 1: reports a malformed frame or a bad state of the conversation; never a tool's failure.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ErrorMessage {
    /// The error's own id.
    pub id: String,
    /// The room's name.
    pub conversation_id: String,
    /// The error code: `wire.md`, section 8.
    pub code: i32,
    /// A text for people.
    pub message: String,
    /// 0 to 3.
    pub severity: i32,
    /// Whether the session can continue.
    pub recoverable: bool,
    /// The id of the frame or call that caused the error.
    pub originating_id: Option<String>,
}

/// Type 6: requests that a tool runs.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ToolUseRequest {
    /// The call's id.
    pub id: CallId,
    /// The tool's name, unchecked.
    pub tool_name: String,
    /// The arguments. Arguments that are not a map decode too, and are refused with `invalid_parameters`.
    pub parameters: Value,
    /// Which participant executes the call. `Err` holds an unknown value (empty if missing), which is refused with
    /// 301.
    pub execution: Result<Execution, String>,
    /// The budget in milliseconds, unchecked.
    pub timeout_ms: Option<i32>,
    /// The room's name.
    pub conversation_id: Option<String>,
    /// The assistant's message that caused the call.
    pub message_id: Option<String>,
}

impl ToolUseRequest {
    /// Creates a request without its optional fields.
    pub fn new(
        id: CallId,
        tool_name: impl Into<String>,
        parameters: Value,
        execution: Result<Execution, String>,
    ) -> Self {
        Self {
            id,
            tool_name: tool_name.into(),
            parameters,
            execution,
            timeout_ms: None,
            conversation_id: None,
            message_id: None,
        }
    }
}

/// Type 7: a call's outcome.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ToolUseResult {
    /// The call's id.
    pub id: CallId,
    /// Whether it succeeded.
    pub success: bool,
    /// The data; on failure the partial result.
    pub result: Option<Value>,
    /// The error code, for programs.
    pub error_code: Option<ErrorCode>,
    /// The error message, for people.
    pub error_message: Option<String>,
    /// The room's name.
    pub conversation_id: Option<String>,
    /// The result's own id, in dialects that have one.
    pub result_id: Option<String>,
}

impl ToolUseResult {
    /// Creates a result without its optional fields.
    pub fn new(id: CallId, success: bool) -> Self {
        Self {
            id,
            success,
            result: None,
            error_code: None,
            error_message: None,
            conversation_id: None,
            result_id: None,
        }
    }
}

/// Type 8: acknowledges a frame.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Acknowledgement {
    /// The room's name.
    pub conversation_id: Option<String>,
    /// The stanza of the acknowledged frame.
    pub acknowledged_stanza_id: Option<i32>,
    /// Whether it was accepted.
    pub success: Option<bool>,
    /// The call that the frame belongs to.
    pub acknowledged_message_id: Option<String>,
    /// The last stanza of an older peer.
    pub last_seen_stanza_id: Option<i32>,
    /// `claim`, `ping`, `pong`, or a text for a log.
    pub notes: Option<String>,
}

/// Type 10: stops a call, or all calls.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ControlStop {
    /// The room's name.
    pub conversation_id: Option<String>,
    /// The call; all calls if absent.
    pub target_id: Option<String>,
    /// A text for people.
    pub reason: Option<String>,
    /// `generation`, `speech` or `all`, unchecked.
    pub stop_type: Option<String>,
}

/// Type 12: introduces a participant and its features.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Configuration {
    /// The room's name.
    pub conversation_id: Option<String>,
    /// The last stanza that was received; used with plain peers only.
    pub last_sequence_seen: Option<i32>,
    /// The program and its version.
    pub client_version: Option<String>,
    /// A language tag.
    pub preferred_language: Option<String>,
    /// The device.
    pub device: Option<String>,
    /// The extensions that the sender supports.
    pub features: Option<Vec<String>>,
}

/// Type 70: the tools that a client offers; the complete list, which replaces the previous one.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ToolsRegister {
    /// The tools.
    pub tools: Vec<RegisteredTool>,
}

/// One tool in a registration, unchecked.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct RegisteredTool {
    /// Its name, which may be invalid.
    pub name: String,
    /// Its description.
    pub description: String,
    /// The JSON Schema of its arguments.
    pub input_schema: Option<Value>,
    /// `destructive`, `idempotent` and others: a map.
    pub annotations: Option<Value>,
}

/// Type 71: answers a registration.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ToolsRegisterAck {
    /// Whether all tools were accepted.
    pub success: bool,
    /// How many tools were accepted.
    pub tool_count: i32,
    /// Why tools were refused.
    pub error: Option<String>,
}

/// Type 1000: the progress of a running tool.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ToolProgress {
    /// The call's id.
    pub id: CallId,
    /// The state of the tool.
    pub status: ProgressStatus,
    /// Structured content, if any.
    pub content: Option<Value>,
    /// A text, if any.
    pub message: Option<String>,
}

impl ToolProgress {
    /// Creates a progress message without its optional fields.
    pub fn new(id: CallId, status: ProgressStatus) -> Self {
        Self { id, status, content: None, message: None }
    }
}

/// Type 1001: the latest state of a view. `Debug` shows only the length of the text.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct ViewUpdate {
    /// The name of the view.
    pub view: String,
    /// Its content. Nil ends the view.
    pub content: Value,
    /// A text that says the same, for people without a screen.
    pub text: Option<String>,
}

impl ViewUpdate {
    /// The bytes of the name of a view.
    pub(crate) const MAX_NAME: usize = 128;

    /// The bytes of the content and the text of one view.
    pub(crate) const MAX_SIZE: usize = 64 * 1024;

    /// The most views with content that one assistant shows.
    pub(crate) const MAX_OPEN: usize = 16;

    /// Creates a state without a text.
    pub fn new(view: impl Into<String>, content: Value) -> Self {
        Self { view: view.into(), content, text: None }
    }

    /// Returns the bytes of the content and the text.
    pub(crate) fn size(&self) -> usize {
        self.content.as_bytes().len() + self.text.as_ref().map_or(0, String::len)
    }
}

impl fmt::Debug for ViewUpdate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ViewUpdate")
            .field("view", &self.view)
            .field("content", &self.content)
            .field("text", &self.text.as_ref().map(|text| format!("{} B", text.len())))
            .finish()
    }
}
