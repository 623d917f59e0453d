//! A process in which another WebSocket client was registered before the first join.
//!
//! The test runs in its own process, because the registration is permanent.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use async_trait::async_trait;
use livekit_net::{Header, TransportError, WsClient, WsConnectResult};
use toolbridge::livekit::{ConnectError, LiveKitTransport};

/// Another client, which records whether it was used.
struct Foreign(Arc<AtomicBool>);

#[async_trait]
impl WsClient for Foreign {
    async fn connect(&self, _: String, _: Vec<Header>, _: u64) -> Result<WsConnectResult, TransportError> {
        self.0.store(true, Ordering::SeqCst);
        Err(TransportError::Other("not meant for this".into()))
    }
}

#[tokio::test]
async fn foreign_client_is_reported_and_never_used() {
    let used = Arc::new(AtomicBool::new(false));
    livekit_net::set_ws_client(Arc::new(Foreign(used.clone())));
    for _ in 0..2 {
        let error = LiveKitTransport::join("ws://127.0.0.1:1", "a.b.c").await.unwrap_err();
        assert!(matches!(error, ConnectError::ForeignClient), "{error:?}");
        assert!(error.to_string().contains("set_ws_client"), "the error does not name the function: {error}");
    }
    assert!(!used.load(Ordering::SeqCst));
}
