//! HTTP of the adapters: servers with limits, guarded clients, event streams, secrets that are compared in constant time, and
//! addresses.

#[cfg(all(feature = "mcp", unix))]
pub(super) mod client;
#[cfg(all(feature = "rap", unix))]
pub(super) mod listen;
#[cfg(all(any(feature = "mcp", feature = "rap"), unix))]
pub(super) mod outgoing;
#[cfg(all(any(feature = "mcp", feature = "rap"), unix))]
pub(super) mod public_address;
#[cfg(any(feature = "mcp-server", all(feature = "rap", unix)))]
pub(super) mod secret;
#[cfg(any(feature = "mcp-server", all(feature = "rap", unix)))]
pub(super) mod server;
#[cfg(all(feature = "mcp", unix))]
pub(super) mod sse;
