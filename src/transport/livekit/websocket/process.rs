//! The one WebSocket client of the process, which must be ours.
//!
//! `livekit-net` keeps whichever was registered first, and says nothing to the second. Without ours there would be no
//! limits on what the server sends, no certificates of the user's, no proxy, and no end of a join that was given up.

use std::sync::{Arc, OnceLock};

use livekit_net::WsClient;
use rustls::crypto::{CryptoProvider, ring};

use super::ScopedClient;

/// Somebody else's client was registered first.
#[derive(Debug)]
pub(in crate::transport::livekit) struct Foreign;

/// Registers ours, once.
///
/// # Errors
/// There is another one, which nobody can replace.
pub(in crate::transport::livekit) fn register() -> Result<(), Foreign> {
    static OURS: OnceLock<Arc<dyn WsClient>> = OnceLock::new();
    let ours = OURS.get_or_init(|| {
        if CryptoProvider::get_default().is_none() {
            // Lost races are fine: whoever was first has set one.
            let _ = ring::default_provider().install_default();
        }
        let ours: Arc<dyn WsClient> = Arc::new(ScopedClient);
        livekit_net::set_ws_client(ours.clone());
        // Another one of these is no harm: it is asked only why a join failed, which we know.
        livekit_net::set_http_client(Arc::new(ScopedClient));
        ours
    });
    match livekit_net::ws_client() {
        Some(registered) if Arc::ptr_eq(&registered, ours) => Ok(()),
        _ => Err(Foreign),
    }
}
