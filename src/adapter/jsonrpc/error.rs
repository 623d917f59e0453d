//! Defines the errors that this side answers with.

use serde::Serialize;
use serde_json::value::RawValue;

#[cfg(feature = "mcp-server")]
use super::{head::Head, id::Id};
#[cfg(feature = "mcp-server")]
use crate::adapter::json::DocumentError;

/// The message is not JSON.
pub(in crate::adapter) const PARSE: i64 = -32_700;

/// The message is not a request, notification or response, or exceeds a limit.
pub(in crate::adapter) const INVALID_REQUEST: i64 = -32_600;

/// The method is not offered.
#[cfg(all(any(feature = "acp", feature = "mcp"), unix))]
pub(in crate::adapter) const METHOD_NOT_FOUND: i64 = -32_601;

/// The parameters are invalid. MCP's servers say so of an unknown tool, too.
#[cfg(all(any(feature = "acp", feature = "mcp"), unix))]
pub(in crate::adapter) const INVALID_PARAMS: i64 = -32_602;

/// The request could not be handled.
pub(in crate::adapter) const INTERNAL: i64 = -32_603;

/// What is wrong with a JSON text that is no message.
pub(in crate::adapter) const SHAPE: &str = "not a JSON-RPC 2.0 request, notification or response";

/// What is wrong with a batch.
#[cfg(all(any(feature = "acp", feature = "mcp"), unix))]
pub(in crate::adapter) const BATCH: &str = "batches are not supported";

/// Returns the code for a message that cannot be read, for this reason.
#[cfg(feature = "mcp-server")]
pub(in crate::adapter) fn code_of(error: &DocumentError) -> i64 {
    match error {
        DocumentError::NotUtf8 { .. } | DocumentError::NotJson { .. } => PARSE,
        _ => INVALID_REQUEST,
    }
}

/// Returns the error for a message that cannot be read. Only a request gets its id back: the id of an answer may be that of
/// another request.
#[cfg(feature = "mcp-server")]
pub(in crate::adapter) fn unreadable(head: Head<'_>, code: i64, text: &str) -> String {
    refusal(head.id().filter(|_| head.has_method()).as_ref(), code, text)
}

/// Returns an error. If the id is unknown it is left out: MCP does not allow null, as JSON-RPC does.
#[cfg(feature = "mcp-server")]
pub(in crate::adapter) fn refusal(id: Option<&Id>, code: i64, text: &str) -> String {
    #[derive(Serialize)]
    struct Refusal<'a> {
        jsonrpc: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<&'a RawValue>,
        error: RpcError,
    }
    let (id, error) = (id.map(Id::raw), RpcError { code, message: text.to_owned(), data: None });
    serde_json::to_string(&Refusal { jsonrpc: "2.0", id, error }).unwrap_or_default() // it can be written
}

/// An error that this side answers with.
#[derive(Debug, Serialize)]
pub(in crate::adapter) struct RpcError {
    pub(in crate::adapter) code: i64,
    pub(in crate::adapter) message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::adapter) data: Option<Box<RawValue>>,
}

#[cfg(all(any(feature = "acp", feature = "mcp"), unix))]
impl RpcError {
    pub(in crate::adapter) fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }
}
