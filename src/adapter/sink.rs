//! What all sinks share: the tools of a room under the names that another system allows, and an HTTP server, at which the tools of
//! a RAP source answer, too.

mod catalog;
pub(in crate::adapter) mod connections;
mod http;
mod room;

#[cfg(feature = "mcp-server")]
pub(super) use catalog::Entry;
pub(super) use catalog::{Catalog, Filter};
#[cfg(feature = "mcp-server")]
pub(super) use http::BoxError;
pub(super) use http::{READ, Reply, Whole, is_too_long, reachable, serve, text};
pub(super) use room::{MAX_CALLS, Room};
