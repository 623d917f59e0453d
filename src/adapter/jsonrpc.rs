//! Speaks JSON-RPC 2.0 as other systems do: ACP and MCP.
//!
//! The crates of these protocols have queues without a limit, lose the members that they do not know, and refuse messages
//! that real programs write. So the messages, and the limits, are read here.
//!
//! A [`peer`] is the other side as a sender sees it. State: the open requests of this side, the messages to send, and why the
//! connection has ended. Its messages leave in their order, and then withdrawn requests, which a transport takes: lines, or
//! HTTP. The [`inbox`] reads what the other side sends: answers end their requests, requests and notifications are returned
//! with their parameters as text, and what cannot be read is answered or counted. Whatever sends waits for room.
//!
//! - [`message`]: the parts of a message, as text.
//! - [`head`] and [`id`]: the id of a message, also of one that cannot be read.
//! - [`error`] and [`failure`]: the errors of this side, and those of the other side.
//! - [`lines`]: lines of a byte stream, with a limit on their length.
//! - [`open`]: the requests of this side that have no answer yet.
//! - [`inbox`]: reads messages, whatever carries them.
//! - [`peer`] and [`reader`]: one side of a connection. Its messages are lines, or what another transport makes of them.
//! - [`rules`]: what the protocols differ in.

pub(super) mod error;
#[cfg(all(any(feature = "acp", feature = "mcp"), unix))]
pub(super) mod failure;
pub(crate) mod head;
pub(crate) mod id;
#[cfg(all(any(feature = "acp", feature = "mcp"), unix))]
pub(super) mod inbox;
pub(super) mod lines;
#[cfg(all(any(feature = "acp", feature = "mcp"), unix))]
#[cfg_attr(not(feature = "acp"), expect(dead_code, reason = "the answers of MCP's client are small"))]
pub(super) mod memory;
pub(super) mod message;
#[cfg(all(any(feature = "acp", feature = "mcp"), unix))]
pub(super) mod open;
#[cfg(all(any(feature = "acp", feature = "mcp"), unix))]
pub(super) mod peer;
#[cfg(all(any(feature = "acp", feature = "mcp"), unix))]
pub(super) mod reader;
#[cfg(all(any(feature = "acp", feature = "mcp"), unix))]
pub(super) mod rules;

use std::borrow::Cow;

use super::json::{DocumentError, checked};
use crate::value::without_mark;

/// Returns a message of another program as a text that every JSON reader takes. Nothing is built of it.
///
/// # Errors
/// Any [`DocumentError`] but `NotAnObject`.
pub(super) fn text(bytes: &[u8]) -> Result<Cow<'_, str>, DocumentError> {
    let text =
        std::str::from_utf8(bytes).map_err(|error| DocumentError::NotUtf8 { offset: error.valid_up_to() })?;
    let text = without_mark(text);
    head::check(text)?;
    checked(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_that_cannot_be_read_is_refused_with_its_reason() {
        let many = format!("[{}0]", "0,".repeat(DocumentError::MAX_VALUES));
        let deep = "[".repeat(DocumentError::MAX_DEPTH + 1);
        let long = format!("{{\"id\": \"{}\"}}", "x".repeat(255));
        for (bytes, says) in [
            (&b"{\"a\": \"\xff\"}"[..], "is not UTF-8, from byte 7 on"),
            (b"{\"a\": tru}", "is not JSON"),
            (deep.as_bytes(), "121 levels deep; the limit is 120"),
            (many.as_bytes(), "250002 values; the limit is 250000"),
            (long.as_bytes(), "the id of the message has 257 bytes; the limit is 256"),
        ] {
            let error = text(bytes).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        assert_eq!(text("\u{feff}{}".as_bytes()).unwrap(), "{}");
        assert_eq!(text(br#"{"a": ["\ud83d", 1e999]}"#).unwrap(), r#"{"a": ["\ufffd", "1e999"]}"#);
    }
}
