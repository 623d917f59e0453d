//! Defines the messages of LiveKit's RPC.

use std::fmt;

use bytes::Bytes;

/// The topic of the streams of text that carry requests of version 2.
pub const RPC_REQUEST_TOPIC: &str = "lk.rpc_request";

/// The topic of the streams of text that carry the results of requests.
pub const RPC_RESPONSE_TOPIC: &str = "lk.rpc_response";

/// A message of LiveKit's RPC that has a packet of its own: all messages of version 1, and of version 2 the
/// acknowledgement and the error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RpcMessage {
    /// Calls a method.
    Request(RpcRequest),
    /// Says that a request has arrived.
    Ack {
        /// The id of the request.
        id: String,
    },
    /// Answers a request.
    Response(RpcResponse),
}

impl RpcMessage {
    /// Returns the bytes of its texts.
    pub fn size(&self) -> usize {
        match self {
            Self::Request(it) => it.id.len() + it.method.len() + it.payload.len(),
            Self::Ack { id } => id.len(),
            Self::Response(RpcResponse { id, outcome: Ok(payload) }) => id.len() + payload.len(),
            Self::Response(RpcResponse { id, outcome: Err(error) }) => {
                id.len() + error.message.len() + error.data.len()
            }
        }
    }
}

/// A call of a method.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RpcRequest {
    /// Its id, chosen by the caller.
    pub id: String,
    /// The name of the method.
    pub method: String,
    /// The payload, unchecked. It should be UTF-8.
    pub payload: Bytes,
    /// How long the callee may take, in milliseconds; 0 if it is missing.
    pub timeout_ms: u32,
    /// The version; 0 if it is missing.
    pub version: u32,
}

impl RpcRequest {
    /// Creates a request of version 1.
    pub fn new(
        id: impl Into<String>,
        method: impl Into<String>,
        payload: impl Into<Bytes>,
        timeout_ms: u32,
    ) -> Self {
        Self { id: id.into(), method: method.into(), payload: payload.into(), timeout_ms, version: 1 }
    }
}

/// An answer.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RpcResponse {
    /// The id of the request.
    pub id: String,
    /// The payload, unchecked, or the error.
    pub outcome: Result<Bytes, RpcError>,
}

impl RpcResponse {
    /// Creates an answer.
    pub fn new(id: impl Into<String>, outcome: Result<Bytes, RpcError>) -> Self {
        Self { id: id.into(), outcome }
    }
}

/// An error of LiveKit's RPC.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RpcError {
    /// The code: 1400 to 1505 are LiveKit's.
    pub code: u32,
    /// A text for people, of at most 256 bytes.
    pub message: String,
    /// Data for programs, of at most 15,360 bytes.
    pub data: String,
}

impl RpcError {
    /// Creates an error.
    pub fn new(code: u32, message: impl Into<String>, data: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: data.into() }
    }
}

impl fmt::Debug for RpcRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RpcRequest")
            .field("id", &self.id)
            .field("method", &self.method)
            .field("bytes", &self.payload.len())
            .field("timeout_ms", &self.timeout_ms)
            .field("version", &self.version)
            .finish()
    }
}

impl fmt::Debug for RpcResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outcome = self.outcome.as_ref().map(Bytes::len);
        f.debug_struct("RpcResponse").field("id", &self.id).field("bytes", &outcome).finish()
    }
}

impl fmt::Debug for RpcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (message, data) = (self.message.len(), self.data.len());
        f.debug_struct("RpcError")
            .field("code", &self.code)
            .field("message_bytes", &message)
            .field("data_bytes", &data)
            .finish()
    }
}
