//! Defines the differences between ACP and MCP.

/// The rules of a protocol.
#[derive(Debug)]
pub(in crate::adapter) struct Rules {
    /// The longest line that is read, in bytes. A longer one is skipped.
    pub(in crate::adapter) max_line: usize,
    /// The most bytes that are read without a message. After more of them the other side does not speak the protocol.
    pub(super) max_junk: Option<usize>,
    /// The notification that withdraws a request.
    pub(in crate::adapter) cancel: &'static str,
    /// Whether a message whose id cannot be read is answered, with the id `null`.
    pub(super) answers_null: bool,
    /// Whether an answer may name its request as a text, and one that names none that was ever made ends the first request.
    /// Where answers allow something, they may not.
    pub(super) reads_odd_ids: bool,
}

/// The rules of ACP. The notification is that of the Language Server Protocol.
#[cfg(any(test, all(feature = "acp", unix)))]
pub(in crate::adapter) const ACP: Rules = Rules {
    max_line: 8 << 20,
    max_junk: None,
    cancel: "$/cancel_request",
    answers_null: true,
    reads_odd_ids: false,
};

/// The rules of MCP. A line has a result, which has the limit of a call's result on the wire (16 MiB), and half as much for
/// what else stands in its message. Ids are never `null`.
#[cfg(all(feature = "mcp", unix))]
pub(in crate::adapter) const MCP: Rules = Rules {
    max_line: 24 << 20,
    max_junk: Some(1 << 20),
    cancel: "notifications/cancelled",
    answers_null: false,
    reads_odd_ids: true,
};

/// The rules of a host of MCP. A line is as long as a request over HTTP may be.
#[cfg(all(feature = "mcp", unix))]
pub(in crate::adapter) const MCP_HOST: Rules = Rules { max_line: 4 << 20, max_junk: None, ..MCP };
