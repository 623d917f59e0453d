//! Reads a manifest later that could not be read at the start, because the server was not reached or has
//! failed: asks until the server returns it.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;

use super::{
    Shared,
    requests::{RequestError, Server},
};
use crate::{
    adapter::source::{Pauses, down},
    tools::SourceHealth,
};

/// Reads the manifest until it is there, or until it has a fault that another attempt does not mend.
///
/// # Cancel safety
/// Dropping the future ends the attempts.
pub(super) async fn read(shared: Arc<Shared>, server: Server, limit: Duration, first: RequestError) {
    let (mut error, mut pauses) = (first, Pauses::new());
    while error.may_pass() {
        let pause = pauses.after(Duration::ZERO);
        tracing::warn!(toolset = &*shared.name, reason = %error, again_in = ?pause, "a toolset is down");
        shared.set_health(down(&error.to_string()));
        sleep(pause).await;
        shared.set_health(SourceHealth::Starting);
        error = match server.manifest(limit).await {
            Ok(text) => {
                if let Err(reason) = shared.adopt(&server, &text) {
                    refused(&shared, &reason);
                }
                return;
            }
            Err(error) => error,
        };
    }
    refused(&shared, &error.to_string());
}

fn refused(shared: &Shared, reason: &str) {
    tracing::warn!(toolset = &*shared.name, reason, "a toolset is not used");
    shared.set_health(down(reason));
}
