//! A tool's failure, as it is sent to the caller.

use std::{any::Any, borrow::Cow, error::Error, fmt};

use super::CallError;
use crate::value::{DecodeError, EncodeError, Value};

/// A tool's failure, as it is sent to the caller and its model.
///
/// `?` converts any error into one with code `execution_error`: the error's text stays in this process (see
/// [`source`](ToolError::source)), and the caller gets a generic message. A `&str` or `String` is sent as it is. A
/// [`CallError`] keeps its code. This conversion is the reason why the type does not implement [`std::error::Error`]
/// itself.
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
    partial: Option<Value>,
    /// Whether the tool had started, so that the code does not prove that nothing ran.
    began: bool,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl ToolError {
    /// The message that the caller gets in place of a text that stays local.
    pub const LOCAL_MESSAGE: &str = "the tool failed";

    /// Creates a failure with this code and message; both are sent.
    pub fn new(code: impl Into<ErrorCode>, message: impl fmt::Display) -> Self {
        Self::build(code.into(), message.to_string(), None)
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

    /// Records whether the tool had started.
    pub(crate) fn of_begun(mut self, began: bool) -> Self {
        self.0.began = began;
        self
    }

    pub(crate) fn had_begun(&self) -> bool {
        self.0.began
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

    /// Returns the underlying error, which stays in this process.
    pub fn source(&self) -> Option<&(dyn Error + Send + Sync + 'static)> {
        self.0.source.as_deref()
    }

    fn build(code: ErrorCode, message: String, source: Option<Box<dyn Error + Send + Sync>>) -> Self {
        Self(Box::new(Failure { code, message, partial: None, began: false, source }))
    }

    /// Returns the code of a call's failure when it is reported as a tool's failure.
    pub(crate) fn code_of(error: &CallError) -> ErrorCode {
        match error {
            CallError::NotDelivered { .. } => ErrorCode::TIMEOUT,
            CallError::NotAllowed | CallError::NotBound { .. } => ErrorCode::PERMISSION_DENIED,
            CallError::TooLarge { .. } => ErrorCode::RESULT_TOO_LARGE,
            CallError::Ambiguous { .. } | CallError::Limit { .. } | CallError::Closed(_) => {
                ErrorCode::EXECUTION_ERROR
            }
            other => other.code(),
        }
    }

    fn from_call(error: CallError) -> Self {
        let code = match error {
            CallError::Tool(inner) => return inner,
            ref other => Self::code_of(other),
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
        if let Some(Some(EncodeError::TooLarge { size, limit })) = any.downcast_ref::<Option<EncodeError>>() {
            let text = format!("the result has {size} bytes; the limit is {limit}");
            return Self::build(ErrorCode::RESULT_TOO_LARGE, text, None);
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

    #[test]
    fn message_of_the_author_is_sent_and_a_source_error_is_not() {
        let mine: ToolError = "nobody of that name".into();
        assert_eq!(mine.message(), "nobody of that name");
        let theirs: ToolError = std::io::Error::other("password is hunter2").into();
        assert_eq!(theirs.message(), ToolError::LOCAL_MESSAGE);
        assert!(theirs.source().unwrap().to_string().contains("hunter2"));
    }

    #[test]
    fn failed_call_inside_a_tool_keeps_its_code() {
        let inner = CallError::Tool(ToolError::new("too_dark", "the lamp is broken"));
        let outer: ToolError = inner.into();
        assert_eq!(outer.code().as_str(), "too_dark");
        let outer: ToolError = CallError::Lost { owner: "phone".into() }.into();
        assert_eq!(outer.code(), ErrorCode::LOST);
    }
}
