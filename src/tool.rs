//! The words of tools: what is offered, what is asked, and how a call can end.

use std::{any::Any, borrow::Cow, error::Error, fmt, str::FromStr, sync::Arc, time::Duration};

use serde_json::Value;

use crate::{
    body::{Body, DecodeError, EncodeError},
    link::{CloseReason, Identity},
};

/// The timeout of a call that names none (`wire.md`, section 3.1).
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest tool name, in bytes.
pub const MAX_TOOL_NAME: usize = 64;

/// What travels: exactly one for every call.
pub type Outcome = Result<Body, ToolError>;

/// A tool's name: 1 to 64 of `A–Z a–z 0–9 _ . -`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ToolName(Arc<str>);

impl ToolName {
    /// The prefix of names that this protocol keeps for itself.
    pub const RESERVED: &str = "bridge.";

    /// The name itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether nobody may register it.
    pub fn is_reserved(&self) -> bool {
        self.0.starts_with(Self::RESERVED)
    }
}

impl FromStr for ToolName {
    type Err = BadToolName;

    fn from_str(text: &str) -> Result<Self, BadToolName> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
        if text.is_empty() || text.len() > MAX_TOOL_NAME || !text.bytes().all(allowed) {
            return Err(BadToolName(text.chars().take(MAX_TOOL_NAME).collect()));
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Display for ToolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ToolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl std::borrow::Borrow<str> for ToolName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// A text that cannot be a tool's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no tool name: 1 to {MAX_TOOL_NAME} of A-Z a-z 0-9 _ . -")]
pub struct BadToolName(String);

/// A call's id: a NanoID of ours, or whatever text a peer chose.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(Arc<str>);

impl CallId {
    /// The id itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for CallId {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<String> for CallId {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// Who is to execute a call (`wire.md`, section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Execution {
    /// The assistant.
    Server,
    /// The client that offers the tool.
    Client,
    /// The client if it has the tool, else the assistant; never both.
    Either,
}

impl Execution {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
            Self::Either => "either",
        }
    }

    /// The execution that the word names.
    pub fn from_text(text: &str) -> Option<Self> {
        [Self::Server, Self::Client, Self::Either].into_iter().find(|it| it.as_str() == text)
    }
}

impl fmt::Display for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A tool as it is offered: its name, what it says of itself, and how it wants to be called.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    name: ToolName,
    description: Arc<str>,
    schema: Option<Arc<Value>>,
    options: ToolOptions,
}

impl Tool {
    /// A tool without a schema: any map is a valid argument.
    pub fn new(name: ToolName, description: impl Into<String>) -> Self {
        Self { name, description: description.into().into(), schema: None, options: ToolOptions::default() }
    }

    /// With this JSON Schema for its arguments.
    #[must_use]
    pub fn schema(mut self, schema: Value) -> Self {
        self.schema = Some(Arc::new(schema));
        self
    }

    /// With these options.
    #[must_use]
    pub fn options(mut self, options: ToolOptions) -> Self {
        self.options = options;
        self
    }

    /// Under another name.
    #[must_use]
    pub fn renamed(mut self, name: ToolName) -> Self {
        self.name = name;
        self
    }

    /// Its name.
    pub fn name(&self) -> &ToolName {
        &self.name
    }

    /// What it says of itself, for a model or a person.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// The JSON Schema of its arguments, if it has one.
    pub fn input_schema(&self) -> Option<&Value> {
        self.schema.as_deref()
    }

    /// Its options.
    pub fn tool_options(&self) -> &ToolOptions {
        &self.options
    }
}

/// How a tool wants to be called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolOptions {
    /// It cannot be undone. Default: no.
    pub destructive: bool,
    /// Running it twice is as good as once. Default: no.
    pub idempotent: bool,
    /// Whether a person is asked before it runs. Default: never; always for a destructive one.
    pub consent: Option<Consent>,
    /// The longest one run may take, whatever the caller allows. Default: the caller's limit.
    pub timeout: Option<Duration>,
    /// How long a cancelled function that takes a context may go on, to tidy up. Default: 1 s.
    pub cancel_grace: Option<Duration>,
    /// How much of a server-executed call the room hears. Default: all of it.
    pub disclose: Disclose,
}

impl ToolOptions {
    /// The time for tidying up, where none is set.
    pub const DEFAULT_CANCEL_GRACE: Duration = Duration::from_secs(1);

    /// A tool that cannot be undone: it asks for consent, always.
    pub fn destructive() -> Self {
        Self { destructive: true, ..Self::default() }
    }

    /// Running it twice is as good as once.
    #[must_use]
    pub fn idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }

    /// Whether a person is asked before it runs.
    #[must_use]
    pub fn consent(mut self, consent: Consent) -> Self {
        self.consent = Some(consent);
        self
    }

    /// The longest one run may take.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// How long a cancelled function that takes a context may go on.
    #[must_use]
    pub fn cancel_grace(mut self, grace: Duration) -> Self {
        self.cancel_grace = Some(grace);
        self
    }

    /// How much of a server-executed call the room hears.
    #[must_use]
    pub fn disclose(mut self, level: Disclose) -> Self {
        self.disclose = level;
        self
    }

    /// The consent in force: what was set, else always for a destructive tool and never for others.
    pub fn effective_consent(&self) -> Consent {
        self.consent.unwrap_or(if self.destructive { Consent::Always } else { Consent::Never })
    }
}

/// Whether a person is asked before a tool runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Consent {
    /// No.
    #[default]
    Never,
    /// At its first call in a session.
    OncePerSession,
    /// At each call.
    Always,
}

/// How much of a server-executed call is broadcast to the room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Disclose {
    /// Arguments and result.
    #[default]
    Full,
    /// The tool's name and whether it succeeded.
    Name,
    /// Nothing.
    Nothing,
}

/// A tool and who offers it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Offer {
    /// The tool.
    pub tool: Tool,
    /// The participant that would execute it.
    pub owner: Identity,
}

impl Offer {
    /// A tool and who offers it.
    pub fn new(tool: Tool, owner: Identity) -> Self {
        Self { tool, owner }
    }
}

/// How far a running tool has come, in words for a person.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Progress {
    /// Where it stands.
    pub status: ProgressStatus,
    /// What it says, if anything.
    pub message: Option<String>,
    /// Anything structured.
    pub content: Option<Body>,
}

impl Progress {
    /// The owner has begun.
    pub fn started() -> Self {
        Self::default()
    }

    /// With structured content.
    #[must_use]
    pub fn content(mut self, content: Body) -> Self {
        self.content = Some(content);
        self
    }
}

impl From<String> for Progress {
    fn from(message: String) -> Self {
        Self { message: Some(message), ..Self::default() }
    }
}

impl From<&str> for Progress {
    fn from(message: &str) -> Self {
        message.to_owned().into()
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message.as_deref().unwrap_or(self.status.as_str()))
    }
}

/// Where a running tool stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ProgressStatus {
    /// Not begun.
    Pending,
    /// At work.
    #[default]
    InProgress,
    /// Done; the result follows.
    Completed,
    /// Failed; the result follows.
    Failed,
}

impl ProgressStatus {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Failed => "failed",
        }
    }

    /// The status that the word names.
    pub fn from_text(text: &str) -> Option<Self> {
        [Self::Pending, Self::InProgress, Self::Completed, Self::Failed]
            .into_iter()
            .find(|it| it.as_str() == text)
    }
}

/// Why a tool failed, in a word for programs. Codes that this page does not know pass unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ErrorCode(Cow<'static, str>);

impl ErrorCode {
    /// The owner has no tool of that name.
    pub const UNKNOWN_TOOL: Self = Self(Cow::Borrowed("unknown_tool"));
    /// It took longer than the call's limit.
    pub const TIMEOUT: Self = Self(Cow::Borrowed("timeout"));
    /// The tool itself failed.
    pub const EXECUTION_ERROR: Self = Self(Cow::Borrowed("execution_error"));
    /// The arguments do not fit the tool's schema.
    pub const INVALID_PARAMETERS: Self = Self(Cow::Borrowed("invalid_parameters"));
    /// It was stopped.
    pub const CANCELLED: Self = Self(Cow::Borrowed("cancelled"));
    /// The owner, or the person asked, said no.
    pub const PERMISSION_DENIED: Self = Self(Cow::Borrowed("permission_denied"));
    /// The result is larger than what can be carried.
    pub const RESULT_TOO_LARGE: Self = Self(Cow::Borrowed("result_too_large"));
    /// The owner has too much to do; nothing ran.
    pub const BUSY: Self = Self(Cow::Borrowed("busy"));
    /// The owner left and did not come back in time.
    pub const LOST: Self = Self(Cow::Borrowed("lost"));

    /// The code as it travels.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for ErrorCode {
    fn from(code: &str) -> Self {
        Self(Cow::Owned(code.to_owned()))
    }
}

impl From<String> for ErrorCode {
    fn from(code: String) -> Self {
        Self(Cow::Owned(code))
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A tool's failure, as it travels to the caller and its model.
///
/// Any error becomes one by `?`, with code `execution_error`: its text stays in this process (see
/// [`source`](ToolError::source)), and the caller reads a plain sentence. A `&str` or `String`
/// is a text of yours, and travels. A [`CallError`] keeps its code. For this reason the type is no
/// [`std::error::Error`] itself.
///
/// ```
/// use toolbridge::{ErrorCode, ToolError};
///
/// fn read() -> Result<String, ToolError> {
///     Ok(std::fs::read_to_string("/no/such/file")?)
/// }
/// let error = read().unwrap_err();
/// assert_eq!(error.code(), ErrorCode::EXECUTION_ERROR);
/// assert!(!error.to_string().contains("No such file"));
/// assert!(error.source().is_some());
/// ```
pub struct ToolError(Box<Failure>);

struct Failure {
    code: ErrorCode,
    message: String,
    partial: Option<Body>,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl ToolError {
    /// What a caller reads in place of a text that stays local.
    pub const LOCAL_MESSAGE: &str = "the tool failed";

    /// A failure with this code and text; both travel.
    pub fn new(code: impl Into<ErrorCode>, message: impl fmt::Display) -> Self {
        Self::build(code.into(), message.to_string(), None)
    }

    /// The answer of a tool that was stopped.
    pub fn cancelled() -> Self {
        Self::new(ErrorCode::CANCELLED, "the call was cancelled")
    }

    /// With the part of the result that was reached.
    #[must_use]
    pub fn with_partial(mut self, partial: Body) -> Self {
        self.0.partial = Some(partial);
        self
    }

    /// The code.
    pub fn code(&self) -> ErrorCode {
        self.0.code.clone()
    }

    /// The text for people, as it travels.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The part of the result that was reached, if any.
    pub fn partial(&self) -> Option<&Body> {
        self.0.partial.as_ref()
    }

    /// The error behind it, which stays in this process.
    pub fn source(&self) -> Option<&(dyn Error + Send + Sync + 'static)> {
        self.0.source.as_deref()
    }

    fn build(code: ErrorCode, message: String, source: Option<Box<dyn Error + Send + Sync>>) -> Self {
        Self(Box::new(Failure { code, message, partial: None, source }))
    }

    fn from_call(error: CallError) -> Self {
        let code = match &error {
            CallError::Tool(_) => match error {
                CallError::Tool(inner) => return inner,
                _ => ErrorCode::EXECUTION_ERROR,
            },
            CallError::UnknownTool { .. } => ErrorCode::UNKNOWN_TOOL,
            CallError::NotDelivered { .. } | CallError::Timeout { .. } => ErrorCode::TIMEOUT,
            CallError::Lost { .. } => ErrorCode::LOST,
            CallError::NotAllowed => ErrorCode::PERMISSION_DENIED,
            CallError::Cancelled | CallError::Detached => ErrorCode::CANCELLED,
            CallError::TooLarge { .. } => ErrorCode::RESULT_TOO_LARGE,
            CallError::TooManyOpen { .. } | CallError::Busy { .. } => ErrorCode::BUSY,
            CallError::Arguments(_) => ErrorCode::INVALID_PARAMETERS,
            _ => ErrorCode::EXECUTION_ERROR,
        };
        Self::build(code, error.to_string(), Some(Box::new(error)))
    }
}

impl<E> From<E> for ToolError
where
    E: Into<Box<dyn Error + Send + Sync>> + 'static,
{
    fn from(error: E) -> Self {
        let mut slot = Some(error);
        let any: &mut dyn Any = &mut slot;
        if let Some(text) = any.downcast_mut::<Option<String>>().and_then(Option::take) {
            return Self::build(ErrorCode::EXECUTION_ERROR, text, None);
        }
        if let Some(text) = any.downcast_mut::<Option<&'static str>>().and_then(Option::take) {
            return Self::build(ErrorCode::EXECUTION_ERROR, text.to_owned(), None);
        }
        if let Some(call) = any.downcast_mut::<Option<CallError>>().and_then(Option::take) {
            return Self::from_call(call);
        }
        if any.downcast_ref::<Option<DecodeError>>().is_some_and(Option::is_some) {
            let text = slot.map(|error| error.into().to_string()).unwrap_or_default();
            return Self::build(ErrorCode::INVALID_PARAMETERS, text, None);
        }
        Self::build(ErrorCode::EXECUTION_ERROR, Self::LOCAL_MESSAGE.to_owned(), slot.map(Into::into))
    }
}

impl fmt::Display for ToolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for ToolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("ToolError");
        out.field("code", &self.0.code.as_str()).field("message", &self.0.message);
        if let Some(partial) = &self.0.partial {
            out.field("partial", partial);
        }
        if let Some(source) = &self.0.source {
            out.field("source", source);
        }
        out.finish()
    }
}

/// Why a call has no result.
///
/// A failure is named by what it means, not by whose clock noticed it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The tool ran, or refused to, and said why.
    #[error("{0}")]
    Tool(ToolError),
    /// Nobody offers it. It did not run.
    #[error("nobody in the room offers a tool named {tool:?}")]
    UnknownTool {
        /// The name that was asked for.
        tool: Box<str>,
    },
    /// Several offer it and none was named. It did not run.
    #[error("{tool:?} is offered by several: {owners:?}; name one with `to`")]
    Ambiguous {
        /// The name that was asked for.
        tool: Box<str>,
        /// Who offers it.
        owners: Vec<Identity>,
    },
    /// The request never left this process: nothing ran, asking again is safe.
    #[error("the request never left this process; nothing ran")]
    NotDelivered {
        /// The call's limit.
        limit: Duration,
    },
    /// Our token does not allow us to send data: nothing ran.
    #[error("our token does not allow us to send data (`canPublishData`); nothing ran")]
    NotAllowed,
    /// No answer within the limit; it may have run.
    #[error("no answer within {} ms", limit.as_millis())]
    Timeout {
        /// The call's limit.
        limit: Duration,
    },
    /// The owner left and did not come back in time; it may have run.
    #[error("{owner} left before it answered")]
    Lost {
        /// Who should have answered.
        owner: Identity,
    },
    /// The call was cancelled; it may have run.
    #[error("the call was cancelled")]
    Cancelled,
    /// The turn ended, and the tool goes on; its result will be a late one.
    #[error("the turn ended before the tool did")]
    Detached,
    /// Request or result is larger than what can be carried.
    #[error("{size} bytes are more than the {limit} that can be carried")]
    TooLarge {
        /// Its size in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// This many calls to one client are open already. It did not run.
    #[error("{open} calls to this client are open already; wait for one to end")]
    TooManyOpen {
        /// How many are open.
        open: usize,
    },
    /// The owner has too much to do. It did not run.
    #[error("{owner} is busy; nothing ran")]
    Busy {
        /// Who refused.
        owner: Identity,
    },
    /// The limit is zero or longer than allowed. It did not run.
    #[error("a limit of {asked:?} is not between 1 ms and {maximum:?}")]
    Limit {
        /// The limit that was asked for.
        asked: Duration,
        /// The longest allowed.
        maximum: Duration,
    },
    /// The arguments could not be encoded. It did not run.
    #[error("the arguments cannot be encoded: {0}")]
    Arguments(EncodeError),
    /// We are not in the room any more.
    #[error("not in the room: {0}")]
    Closed(CloseReason),
}

impl CallError {
    /// Whether the tool may have run, wholly or in part. `false` is a proof; asking again is then safe.
    pub fn may_have_run(&self) -> bool {
        match self {
            Self::UnknownTool { .. }
            | Self::Ambiguous { .. }
            | Self::NotDelivered { .. }
            | Self::NotAllowed
            | Self::TooManyOpen { .. }
            | Self::Busy { .. }
            | Self::Limit { .. }
            | Self::Arguments(_) => false,
            Self::Tool(error) => {
                !matches!(error.code().as_str(), "invalid_parameters" | "permission_denied" | "busy")
            }
            _ => true,
        }
    }
}

/// Why tools could not be offered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The name is no tool name.
    #[error(transparent)]
    Name(#[from] BadToolName),
    /// The name is kept for the protocol.
    #[error("{name:?} begins with `bridge.`, which is kept for the protocol")]
    Reserved {
        /// The name.
        name: ToolName,
    },
    /// Two tools have the same name.
    #[error("two tools are named {name:?}; rename one, or give its source a prefix")]
    Duplicate {
        /// The name.
        name: ToolName,
    },
    /// The tool must ask a person, and nothing is there to ask.
    #[error("{name:?} needs a person's consent, and nobody can be asked")]
    NoConsent {
        /// The name.
        name: ToolName,
    },
    /// The schema does not describe a map of arguments.
    #[error("the arguments of {name:?} are not a map: its type must be a struct with named fields")]
    NotAMap {
        /// The name.
        name: ToolName,
    },
    /// The schema cannot be used.
    #[error("the schema of {name:?} cannot be used: {reason}")]
    Schema {
        /// The name.
        name: ToolName,
        /// What is wrong with it.
        reason: String,
    },
    /// A description or schema is larger than allowed.
    #[error("the {part} of {name:?} has {size} bytes, {limit} are allowed")]
    TooLarge {
        /// The name.
        name: ToolName,
        /// `description` or `schema`.
        part: &'static str,
        /// Its size in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// More tools than allowed.
    #[error("{count} tools are more than the {limit} that one participant may offer")]
    TooMany {
        /// How many there are.
        count: usize,
        /// How many are allowed.
        limit: usize,
    },
    /// All tools together do not fit a registration.
    #[error("the registration of all tools has {size} bytes, {limit} can be carried")]
    RegistrationTooLarge {
        /// Its size in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_ascii_and_short() {
        for good in ["a", "get_battery", "fs.read-file", &"x".repeat(64)] {
            assert_eq!(good.parse::<ToolName>().unwrap().as_str(), good);
        }
        for bad in ["", "a b", "а", "a/b", "a\n", &"x".repeat(65)] {
            assert!(bad.parse::<ToolName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn errors_are_small() {
        assert_eq!(size_of::<ToolError>(), 8);
        assert!(size_of::<CallError>() <= 64, "{}", size_of::<CallError>());
    }

    #[test]
    fn a_text_of_ones_own_travels_and_an_error_does_not() {
        let mine: ToolError = "nobody of that name".into();
        assert_eq!(mine.message(), "nobody of that name");
        let theirs: ToolError = std::io::Error::other("password is hunter2").into();
        assert_eq!(theirs.message(), ToolError::LOCAL_MESSAGE);
        assert!(theirs.source().unwrap().to_string().contains("hunter2"));
    }

    #[test]
    fn a_failed_call_inside_a_tool_keeps_its_code() {
        let inner = CallError::Tool(ToolError::new("too_dark", "the lamp is broken"));
        let outer: ToolError = inner.into();
        assert_eq!(outer.code().as_str(), "too_dark");
        let outer: ToolError = CallError::Lost { owner: "phone".into() }.into();
        assert_eq!(outer.code(), ErrorCode::LOST);
    }
}
