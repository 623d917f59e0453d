//! Holds the results of a batch.

use std::{fmt, sync::Arc};

use super::document::{BatchDocument, CallDocument, Document};
use crate::{CallError, ErrorCode, ToolResult, Value};

/// How a call ended, in the runtime's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// The tool has a result.
    Success,
    /// The call failed.
    Error,
    /// The call took too long or was cancelled.
    Timeout,
}

/// The result of one call of a batch. `Debug` shows no content of it.
#[derive(Clone)]
pub struct CallResult {
    index: usize,
    call_id: Arc<str>,
    tool: Arc<str>,
    result: ToolResult,
    error: Option<Arc<CallError>>,
}

impl CallResult {
    pub(super) fn new(
        index: usize,
        call_id: &Arc<str>,
        tool: &Arc<str>,
        outcome: Result<Value, CallError>,
    ) -> Self {
        let (result, error) = match outcome {
            Ok(value) => (ToolResult::of(&value), None),
            Err(error) => {
                let result = match &error {
                    CallError::Tool(error) => ToolResult::of_error(error),
                    other => ToolResult::text(other.to_string()),
                };
                (result, Some(Arc::new(error)))
            }
        };
        Self { index, call_id: Arc::clone(call_id), tool: Arc::clone(tool), result, error }
    }

    /// Returns its position in the batch, counted from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns the id that the caller gave the call. Several calls of a batch may have the same.
    pub fn call_id(&self) -> &str {
        &self.call_id
    }

    /// Returns the tool's name.
    pub fn tool(&self) -> &str {
        &self.tool
    }

    /// Returns the result. Of a failed call, that is its partial result, otherwise the error's text.
    pub fn result(&self) -> &ToolResult {
        &self.result
    }

    /// Returns why it failed, if it did.
    pub fn error(&self) -> Option<&CallError> {
        self.error.as_deref()
    }

    /// Returns how it ended, in the runtime's code, which has no status of its own for a cancelled call.
    pub fn status(&self) -> Status {
        match self.error() {
            None => Status::Success,
            Some(CallError::NotDelivered { .. }) => Status::Timeout,
            Some(error) if [ErrorCode::TIMEOUT, ErrorCode::CANCELLED].contains(&error.code()) => {
                Status::Timeout
            }
            Some(_) => Status::Error,
        }
    }

    /// Returns it in agent-air's form, for the model and the user interface.
    pub fn document(&self) -> Document {
        Document::of_result(&self.result, self.error.is_some())
    }
}

impl fmt::Debug for CallResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallResult")
            .field("index", &self.index)
            .field("call_id", &self.call_id)
            .field("tool", &self.tool)
            .field("status", &self.status())
            .field("result", &self.result)
            .finish_non_exhaustive()
    }
}

/// The results of all calls of a batch, in the order of the requests.
#[derive(Clone, Debug)]
pub struct BatchResult {
    id: Arc<str>,
    results: Vec<CallResult>,
}

impl BatchResult {
    pub(super) fn new(id: Arc<str>, results: Vec<CallResult>) -> Self {
        Self { id, results }
    }

    /// Returns the batch's id, which its requests carry as `bridge.batch.id`.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the results: one for each call, in the order of the requests.
    pub fn results(&self) -> &[CallResult] {
        &self.results
    }

    /// Returns it in agent-air's form.
    pub fn document(&self) -> BatchDocument {
        let call = |it: &CallResult| CallDocument::new(it.call_id(), it.document());
        BatchDocument::new(self.results.iter().map(call))
    }
}
