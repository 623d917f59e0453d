//! Errors for an agent.

use agent_client_protocol::{Error, ErrorCode};

pub(super) fn error(code: ErrorCode, message: impl Into<String>) -> Error {
    Error::new(code, message)
}
