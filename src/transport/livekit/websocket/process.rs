//! Registers this crate's WebSocket client as the one of the process.
//!
//! `livekit-net` keeps the client that is registered first, and reports nothing to the second. Another client would
//! not limit the size of messages, not use the user's certificates or the proxy, and not end an aborted join.

use std::sync::{Arc, OnceLock};

use livekit_net::WsClient;
use rustls::crypto::{CryptoProvider, ring};

use super::ScopedClient;

/// Another client was registered first.
#[derive(Debug)]
pub(in crate::transport::livekit) struct Foreign;

/// Registers the client, once.
///
/// # Errors
/// Another client is registered, which cannot be replaced.
pub(in crate::transport::livekit) fn register() -> Result<(), Foreign> {
    static CLIENT: OnceLock<Arc<dyn WsClient>> = OnceLock::new();
    let client = CLIENT.get_or_init(|| {
        if CryptoProvider::get_default().is_none() {
            // A lost race is fine: the winner has installed a provider.
            let _ = ring::default_provider().install_default();
        }
        let client: Arc<dyn WsClient> = Arc::new(ScopedClient);
        livekit_net::set_ws_client(client.clone());
        // Another HTTP client is harmless: it is asked only why a join failed, which is already known.
        livekit_net::set_http_client(Arc::new(ScopedClient));
        client
    });
    match livekit_net::ws_client() {
        Some(registered) if Arc::ptr_eq(&registered, client) => Ok(()),
        _ => Err(Foreign),
    }
}
