//! What every part that opens connections shares: limits of listeners, the hosts of this machine, redirects, TLS, and the words
//! of others.

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
#[cfg(any(feature = "livekit", all(any(feature = "acp", feature = "mcp", feature = "rap"), unix)))]
pub(crate) mod words;
