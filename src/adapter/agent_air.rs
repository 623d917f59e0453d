//! Supports agent-air: tool results with a display, and batches of calls.
//!
//! [`Document`] is a tool's result in agent-air's form, and becomes a [`ToolResult`](crate::ToolResult) and back.
//! [`Batch`] runs several calls at once. Each of their results comes as soon as it is there, and all of them come in
//! the order of the requests at the end.
//!
//! The names of fields are those of agent-air's page about results. The crate `agent-air-runtime` is not needed:
//! `examples/agent-air` joins it to a room.

mod batch;
mod convert;
mod display;
mod document;
mod outcome;
mod permission;

pub use batch::{Batch, BatchBuilder, BatchCall, BatchError, MAX_CALLS};
pub use display::{ContentType, DisplayConfig};
pub use document::{BatchDocument, CallDocument, Document, InvalidDocument};
pub use outcome::{BatchResult, CallResult, Status};
