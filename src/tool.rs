//! Defines tools: their definitions, errors, outcomes, results, and questions to a person.
//!
//! What runs tools, and offers them, is in `runtime`.

use std::time::Duration;

use crate::value::Value;

mod barge_in;
mod definition;
mod error;
mod failure;
mod health;
mod job;
pub(crate) mod model;
#[cfg(any(feature = "vocabulary", feature = "mcp-server", feature = "rap"))]
pub(crate) mod model_text;
mod name;
mod name_map;
pub(crate) mod not_offered;
mod progress;
mod prompt;
mod report_error;
mod result;
mod stop_reason;
pub(crate) mod trace_context;

pub use barge_in::BargeIn;
pub use definition::{Consent, Execution, Offer, Reach, Tool, ToolHints, ToolOptions, Visibility};
pub use error::{CallError, LossCause, RegisterError};
pub use failure::{ErrorCode, ToolError};
pub use health::{SourceHealth, SourceStatus};
pub use job::{Job, JobKey};
pub use model::{ModelTool, UnfitTool};
pub use name::{CallId, InvalidCallId, InvalidToolName, MAX_TOOL_NAME, ToolName};
pub use name_map::{NameMap, NameRules};
pub use not_offered::{NotAdmitted, NotAssistant, NotOffered};
pub use progress::{Progress, ProgressStatus};
pub use prompt::{
    AuthorizePrompt, ChoicePrompt, Decision, FormPrompt, MAX_PROMPT_CHOICES, MAX_PROMPT_LABEL,
    MAX_PROMPT_SCHEMA, MAX_PROMPT_TEXT, MAX_PROMPT_URL, PermissionOption, PermissionPrompt, Prompt,
    PromptAnswer, PromptedCall,
};
pub use report_error::ReportError;
#[cfg(all(feature = "acp", unix))]
pub(crate) use result::patch;
pub(crate) use result::public;
#[cfg(feature = "runtime")]
pub(crate) use result::public_text::PublicText;
pub use result::render;
pub use result::{
    Audience, BlockKind, ContentBlock, Cut, Diff, Display, DisplayContent, DisplayKind, EmbeddedResource,
    Media, ModelView, Native, ToolResult, ToolSystem, Widget,
};
pub use stop_reason::StopReason;
pub use trace_context::{InvalidTraceContext, TraceContext};

/// The timeout of a call that does not set one (`wire.md`, section 3.1).
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// The result that is sent for a call. Every call has exactly one.
pub type Outcome = Result<Value, ToolError>;
