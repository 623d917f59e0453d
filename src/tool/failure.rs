//! A tool's failure, as it travels.

use std::{any::Any, borrow::Cow, error::Error, fmt};

use super::CallError;
use crate::value::{DecodeError, EncodeError, Value};

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
    partial: Option<Value>,
    /// The tool had begun: its code, whatever it is, is no proof that nothing ran.
    began: bool,
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
    pub fn with_partial(mut self, partial: Value) -> Self {
        self.0.partial = Some(partial);
        self
    }

    /// With the error behind it, which stays in this process.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Of a tool that had begun, if so.
    pub(crate) fn of_begun(mut self, began: bool) -> Self {
        self.0.began = began;
        self
    }

    pub(crate) fn had_begun(&self) -> bool {
        self.0.began
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
    pub fn partial(&self) -> Option<&Value> {
        self.0.partial.as_ref()
    }

    /// The error behind it, which stays in this process.
    pub fn source(&self) -> Option<&(dyn Error + Send + Sync + 'static)> {
        self.0.source.as_deref()
    }

    fn build(code: ErrorCode, message: String, source: Option<Box<dyn Error + Send + Sync>>) -> Self {
        Self(Box::new(Failure { code, message, partial: None, began: false, source }))
    }

    /// The code that a call's failure has where it is told as a tool's.
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
            let text = format!("the result has {size} bytes, {limit} can be carried");
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

    /// Whether a failure's code would be a proof that nothing ran.
    pub(crate) fn proves_that_nothing_ran(&self) -> bool {
        [Self::UNKNOWN_TOOL, Self::INVALID_PARAMETERS, Self::PERMISSION_DENIED, Self::BUSY].contains(self)
    }

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

#[cfg(test)]
mod tests {
    use super::*;

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
