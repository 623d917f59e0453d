//! What every part that opens connections shares: limits of listeners, the hosts of this machine, redirects, and TLS.

#[cfg(any(feature = "dev-server", feature = "mcp-server", all(feature = "rap", unix)))]
pub(crate) mod connections;
#[cfg(feature = "livekit")]
pub(crate) mod host;
#[cfg(any(feature = "livekit", feature = "mcp", feature = "rap"))]
pub(crate) mod redirect;
#[cfg(any(feature = "livekit", feature = "mcp", feature = "rap"))]
pub(crate) mod tls_error;
#[cfg(any(feature = "livekit", feature = "mcp", feature = "rap"))]
pub(crate) mod tls_roots;
