//! Converts the result of a call: a `tool_result` message.

use crate::{Outcome, ToolError, ToolResult, adapter::json::DocumentError};

mod read;
mod write;

/// What the text of a failure begins with.
const ERROR_PREFIX: &str = "Error: ";

/// The result of a call in RAP: a `tool_result` message.
///
/// It is read from a JSON text, which stays the result's [native](ToolResult::native) document, byte for byte:
///
/// ```
/// use toolbridge::adapter::rap::RapResult;
///
/// let json = r#"{"type": "tool_result", "group_id": "g", "id": "c1", "text": "Deployed instance i-1 in 42 s.",
///     "display_as": [{"type": "text", "content": "Deployed i-1"}]}"#;
/// let read = RapResult::read(json)?;
/// assert_eq!(read.result.for_model(100).text, "Deployed instance i-1 in 42 s.");
/// assert!(!read.is_error && !read.is_subscription);
/// assert_eq!(read.result.native().unwrap().json(), json);
/// # Ok::<(), toolbridge::adapter::rap::RapResultError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct RapResult {
    /// What the document says.
    pub result: ToolResult,
    /// Whether the text begins with `Error: `, which is how tools report a failure. The text stays as it is.
    pub is_error: bool,
    /// Whether the call has started a subscription: further events belong to it.
    pub is_subscription: bool,
}

/// Why a document is not the result of a call. It has nothing of the document's content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RapResultError {
    /// The document cannot be read.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// The document is another message.
    #[error("`type` is not \"tool_result\"")]
    Type,
    /// The document has neither a `text` nor a known item of `content`.
    #[error("the result has neither `text` nor `content` that can be read")]
    Empty,
}

impl RapResult {
    /// Reads a document.
    ///
    /// `content` is read, if it has a known item; otherwise `text`. The forms of display in `display_as` keep their
    /// order. What is not understood is skipped, and stays in the document: unknown items and segments, and known ones
    /// whose content has another form.
    ///
    /// Callback addresses, sign-in addresses and user ids do not belong into a result. If a document has them all the
    /// same (`callback_url`, `response_url`, `auth_url`, `user_id`), they are removed from it, and
    /// [`ToolResult::cut`] names them.
    ///
    /// # Errors
    /// The document is not a `tool_result`, or says nothing.
    pub fn read(json: &str) -> Result<Self, RapResultError> {
        read::read(json, false)
    }

    /// Reads a document whose tool declares that its text is JSON. That JSON becomes
    /// [structured](ToolResult::structured) data. A text that is not JSON is a plain text.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_structured(json: &str) -> Result<Self, RapResultError> {
        read::read(json, true)
    }

    /// Reads an event of a subscription, as the result of the reported call that shows it.
    pub(super) fn of_event(json: &str) -> Result<ToolResult, RapResultError> {
        read::event(json)
    }

    /// Returns the outcome of the call. A failure is `execution_error` with the result as partial result. Its message is
    /// the text for the person, at most 2 KiB.
    ///
    /// # Errors
    /// The result is a failure.
    pub fn into_outcome(self) -> Outcome {
        if !self.is_error {
            return Ok(self.result.to_value());
        }
        Err(ToolError::reported(&self.result))
    }
}
