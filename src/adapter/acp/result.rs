//! The result of a call, as tool calls of the protocol have it.

pub(super) mod write;
