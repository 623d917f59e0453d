//! Reports changes of the listed tools to one host.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rmcp::{Peer, RoleServer, model::Tool, service::SubscriptionSink};

use super::shared::Shared;
use crate::ToolSource as _;

/// The shortest time between two reports to a host. A client may register its tools again as often as it likes; the host
/// is not told each time.
const INTERVAL: Duration = Duration::from_secs(1);

/// The list that a host has seen last; `None` before it asks for one.
#[derive(Clone, Default)]
pub(super) struct Listed(Arc<Mutex<Option<Vec<Tool>>>>);

impl Listed {
    pub(super) fn set(&self, tools: &[Tool]) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(tools.to_vec());
    }

    /// Returns whether the host has seen another list. It is then regarded as reported.
    fn is_outdated(&self, tools: &[Tool]) -> bool {
        let mut listed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *listed {
            Some(seen) if seen != tools => {
                *seen = tools.to_vec();
                true
            }
            _ => false,
        }
    }
}

/// A host that gets reports.
pub(super) enum Host {
    /// Of a connection that began with `initialize`.
    Connection(Peer<RoleServer>),
    /// Of a subscription, from protocol version 2026-07-28 on.
    Subscription(SubscriptionSink),
}

impl Host {
    /// Reports a change, and returns whether the host is still there.
    async fn report(&self) -> bool {
        match self {
            Self::Connection(peer) => peer.notify_tool_list_changed().await.is_ok(),
            Self::Subscription(sink) => sink.notify_tool_list_changed().await.is_ok(),
        }
    }
}

/// Reports each change of the list, until the connection has ended.
pub(super) async fn report_changes(shared: &Shared, listed: &Listed, host: &Host) {
    let offers = shared.assistant().by_owner();
    loop {
        offers.changed().await;
        if !listed.is_outdated(&shared.catalog().tools()) {
            continue;
        }
        if !host.report().await {
            return;
        }
        tokio::time::sleep(INTERVAL).await;
    }
}
