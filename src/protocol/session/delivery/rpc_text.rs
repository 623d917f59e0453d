//! Tells apart the texts of LiveKit's RPC that arrive as streams (`wire.md`, section 10), and what a fault of each means.

use bytes::Bytes;

use super::streams::Part;
use crate::{
    protocol::rpc::RpcCall,
    tool::{ErrorCode, ToolError},
};

/// The text that a stream carries.
#[derive(Clone, Debug)]
pub(crate) enum RpcText {
    /// The payload of a request.
    Request(Box<RpcCall>),
    /// The payload of the answer to the request of this id.
    Answer(Box<str>),
}

/// Why a text cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// There is no space for it now.
    NoSpace,
    /// It is longer than it may be.
    TooLong,
    /// It breaks the rules of streams.
    Broken,
}

impl RpcText {
    /// Returns the end of a stream whose text cannot be read.
    pub(super) fn failed(self, fault: Fault, why: &str) -> Part {
        let (noun, code) = match (&self, fault) {
            (Self::Request(_), Fault::NoSpace) => ("request", ErrorCode::BUSY),
            (Self::Request(_), Fault::TooLong | Fault::Broken) => ("request", ErrorCode::INVALID_PARAMETERS),
            (Self::Answer(_), Fault::TooLong) => ("answer", ErrorCode::RESULT_TOO_LARGE),
            (Self::Answer(_), Fault::NoSpace | Fault::Broken) => ("answer", ErrorCode::EXECUTION_ERROR),
        };
        let error = ToolError::new(code, format!("the stream of the {noun} was dropped: {why}"));
        Part::Text(self, Err(error))
    }

    /// Returns the end of a stream whose text is whole, or cannot be expanded.
    pub(super) fn ended(self, payload: Result<Bytes, String>) -> Part {
        match payload {
            Ok(payload) => Part::Text(self, Ok(payload)),
            Err(why) => self.failed(Fault::Broken, &why),
        }
    }
}
