//! Defines a tool's failure, as it is sent to the caller.

use std::{borrow::Cow, error::Error, fmt};

use super::CallError;
use crate::value::{DecodeError, EncodeError, Value};

/// A tool's failure, as it is sent to the caller and its model.
///
/// The type of an error decides what `?` sends of it:
///
/// | error | code | message |
/// | --- | --- | --- |
/// | `&str`, `String` | `execution_error` | the text |
/// | [`CallError`] | its own | its text |
/// | [`DecodeError`] | `invalid_parameters` | its text |
/// | [`EncodeError::TooLarge`] | `result_too_large` | both sizes |
/// | common errors of std, serde_json and tokio | `execution_error` | [`LOCAL_MESSAGE`](ToolError::LOCAL_MESSAGE) |
/// | `Box<dyn Error + Send + Sync>` | `execution_error` | [`LOCAL_MESSAGE`](ToolError::LOCAL_MESSAGE) |
///
/// The text of an error in the last two rows stays in this process: in [`source`](ToolError::source) and in
/// [`Event::ToolFailed`](crate::Event::ToolFailed). It is not logged.
/// Convert other errors with `.map_err(ToolError::internal)?`, or implement `From<YourError> for ToolError` and decide there
/// what is sent. A function that returns `Result<_, Box<dyn Error + Send + Sync>>` can use `?` on any error; a tool
/// that calls it needs one `?`.
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
///
/// /// An error of your own, with a text for the model.
/// struct NoSuchRoom(String);
///
/// impl From<NoSuchRoom> for ToolError {
///     fn from(NoSuchRoom(name): NoSuchRoom) -> Self {
///         Self::new("no_such_room", format!("there is no room {name:?}"))
///     }
/// }
/// ```
pub struct ToolError(Box<Failure>);

struct Failure {
    code: ErrorCode,
    message: String,
    partial: Option<Value>,
    /// The number of the error that a method of LiveKit's RPC raised.
    rpc_code: Option<u32>,
    /// Whether the tool had started, if that is known: it outweighs what the code proves.
    began: Option<bool>,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl ToolError {
    /// The message that the caller gets in place of a text that stays local.
    pub const LOCAL_MESSAGE: &str = "the tool failed";

    /// The message that the caller gets if the tool panicked.
    pub const PANIC_MESSAGE: &str = "the tool crashed";

    /// Creates a failure with this code and message; both are sent.
    pub fn new(code: impl Into<ErrorCode>, message: impl fmt::Display) -> Self {
        Self::build(code.into(), message.to_string(), None)
    }

    /// Creates a failure whose cause stays in this process.
    ///
    /// The caller gets `execution_error` and [`LOCAL_MESSAGE`](Self::LOCAL_MESSAGE). The error is kept as
    /// [`source`](Self::source), and logged when the tool returns it.
    ///
    /// ```
    /// use toolbridge::ToolError;
    ///
    /// fn first_line(file: Vec<u8>) -> Result<String, ToolError> {
    ///     let text = std::ffi::CString::new(file).map_err(ToolError::internal)?;
    ///     let text = text.into_string().map_err(ToolError::internal)?;
    ///     Ok(text.lines().next().ok_or("the file is empty")?.to_owned())
    /// }
    /// assert_eq!(first_line(vec![0]).unwrap_err().message(), ToolError::LOCAL_MESSAGE);
    /// assert_eq!(first_line(vec![]).unwrap_err().message(), "the file is empty");
    /// ```
    pub fn internal(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        let message = Self::LOCAL_MESSAGE.to_owned();
        Self::build(ErrorCode::EXECUTION_ERROR, message, Some(error.into()))
    }

    /// Creates the failure of a tool that was stopped.
    pub fn cancelled() -> Self {
        Self::new(ErrorCode::CANCELLED, "the call was cancelled")
    }

    /// Adds a partial result.
    #[must_use]
    pub fn with_partial(mut self, partial: Value) -> Self {
        self.0.partial = Some(partial);
        self
    }

    /// Sets the underlying error, which stays in this process.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Records the number of an error of RPC.
    pub(crate) fn of_rpc(mut self, code: u32) -> Self {
        self.0.rpc_code = Some(code);
        self
    }

    /// Records whether the tool had started.
    pub(crate) fn of_begun(mut self, began: bool) -> Self {
        self.0.began = Some(true).filter(|_| began);
        self
    }

    /// Records that the tool has not started, whatever the code says.
    pub(crate) fn of_unbegun(mut self) -> Self {
        self.0.began = Some(false);
        self
    }

    /// Copies from the other failure whether the tool had started, and the number of the error of RPC.
    pub(crate) fn recorded_as(mut self, other: &Self) -> Self {
        (self.0.began, self.0.rpc_code) = (other.0.began, other.0.rpc_code);
        self
    }

    /// Returns whether the tool may have run, wholly or in part.
    pub(crate) fn may_have_run(&self) -> bool {
        let proof = ["invalid_parameters", "permission_denied", "busy"];
        self.0.began.unwrap_or_else(|| !proof.contains(&self.0.code.as_str()))
    }

    /// Returns the code.
    pub fn code(&self) -> ErrorCode {
        self.0.code.clone()
    }

    /// Returns the message that is sent.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Returns the partial result, if any.
    pub fn partial(&self) -> Option<&Value> {
        self.0.partial.as_ref()
    }

    /// Returns the number of the error that a method of LiveKit's RPC raised, such as the `code` of an app's `RpcError`. Its data is
    /// the [partial result](Self::partial).
    pub fn rpc_code(&self) -> Option<u32> {
        self.0.rpc_code
    }

    /// Returns the underlying error, which stays in this process.
    pub fn source(&self) -> Option<&(dyn Error + Send + Sync + 'static)> {
        self.0.source.as_deref()
    }

    fn build(code: ErrorCode, message: String, source: Option<Box<dyn Error + Send + Sync>>) -> Self {
        Self(Box::new(Failure { code, message, partial: None, rpc_code: None, began: None, source }))
    }

    /// Returns the code of a call's failure when it is reported as a tool's failure.
    pub(crate) fn code_of(error: &CallError) -> ErrorCode {
        match error {
            CallError::NotDelivered { .. } => ErrorCode::TIMEOUT,
            CallError::NotAllowed | CallError::NotBound { .. } => ErrorCode::PERMISSION_DENIED,
            CallError::TooLarge { .. } => ErrorCode::RESULT_TOO_LARGE,
            CallError::Ambiguous { .. }
            | CallError::Limit { .. }
            | CallError::Closed(_)
            | CallError::NotInRoom(_) => ErrorCode::EXECUTION_ERROR,
            other => other.code(),
        }
    }
}

impl From<&str> for ToolError {
    fn from(message: &str) -> Self {
        message.to_owned().into()
    }
}

impl From<String> for ToolError {
    fn from(message: String) -> Self {
        Self::build(ErrorCode::EXECUTION_ERROR, message, None)
    }
}

/// Keeps the code and the text of a call that the tool made.
impl From<CallError> for ToolError {
    fn from(error: CallError) -> Self {
        let code = match error {
            CallError::Tool(inner) => return inner,
            ref other => Self::code_of(other),
        };
        Self::build(code, error.to_string(), Some(Box::new(error)))
    }
}

/// Becomes `invalid_parameters`, with the error's text.
impl From<DecodeError> for ToolError {
    fn from(error: DecodeError) -> Self {
        Self::new(ErrorCode::INVALID_PARAMETERS, error)
    }
}

/// Becomes `result_too_large` with both numbers, or an [internal](ToolError::internal) error.
impl From<EncodeError> for ToolError {
    fn from(error: EncodeError) -> Self {
        match error {
            EncodeError::TooLarge { size, limit } => {
                let text = format!("the result has {size} bytes; the limit is {limit}");
                Self::build(ErrorCode::RESULT_TOO_LARGE, text, None)
            }
            other => Self::internal(other),
        }
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

/// The code of a tool's failure, for programs. Unknown codes are passed through unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ErrorCode(Cow<'static, str>);

impl ErrorCode {
    /// The owner has no tool of that name.
    pub const UNKNOWN_TOOL: Self = Self(Cow::Borrowed("unknown_tool"));
    /// The call took longer than its limit.
    pub const TIMEOUT: Self = Self(Cow::Borrowed("timeout"));
    /// The tool itself failed.
    pub const EXECUTION_ERROR: Self = Self(Cow::Borrowed("execution_error"));
    /// The arguments do not match the tool's schema.
    pub const INVALID_PARAMETERS: Self = Self(Cow::Borrowed("invalid_parameters"));
    /// The call was stopped.
    pub const CANCELLED: Self = Self(Cow::Borrowed("cancelled"));
    /// The owner or a person refused the call.
    pub const PERMISSION_DENIED: Self = Self(Cow::Borrowed("permission_denied"));
    /// The result is larger than the limit.
    pub const RESULT_TOO_LARGE: Self = Self(Cow::Borrowed("result_too_large"));
    /// The owner is overloaded. Nothing ran.
    pub const BUSY: Self = Self(Cow::Borrowed("busy"));
    /// The owner left and did not return in time.
    pub const LOST: Self = Self(Cow::Borrowed("lost"));

    /// Returns whether a failure with this code would prove that nothing ran.
    pub(crate) fn proves_that_nothing_ran(&self) -> bool {
        [Self::UNKNOWN_TOOL, Self::INVALID_PARAMETERS, Self::PERMISSION_DENIED, Self::BUSY].contains(self)
    }

    /// Returns the code as it is sent.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool::LossCause;

    #[test]
    fn message_of_the_author_is_sent_and_a_source_error_is_not() {
        let mine: ToolError = "nobody of that name".into();
        assert_eq!(mine.message(), "nobody of that name");
        let theirs = ToolError::internal(std::io::Error::other("password is hunter2"));
        assert_eq!(theirs.message(), ToolError::LOCAL_MESSAGE);
        assert!(theirs.source().unwrap().to_string().contains("hunter2"));
    }

    #[test]
    fn failed_call_inside_a_tool_keeps_its_code() {
        let inner = CallError::Tool(ToolError::new("too_dark", "the lamp is broken"));
        let outer: ToolError = inner.into();
        assert_eq!(outer.code().as_str(), "too_dark");
        let outer: ToolError = CallError::Lost { owner: "phone".into(), why: LossCause::Left }.into();
        assert_eq!(outer.code(), ErrorCode::LOST);
    }
}
