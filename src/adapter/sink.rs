//! Holds what all sinks share: the tools of a room under the names that another system allows.

mod catalog;
mod room;

#[cfg(feature = "mcp-server")]
pub(super) use catalog::OwnedTool;
pub(super) use catalog::{Catalog, Listed};
pub(super) use room::{MAX_CALLS, Room};
