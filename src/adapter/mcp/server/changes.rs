//! Reports changes of the listed tools to one host.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rmcp::{Peer, RoleServer, model::Tool, service::SubscriptionSink};
use tokio::sync::Notify;

use super::definition::definitions;
use crate::{ToolSource as _, adapter::sink::Room, tools::ByOwner};

/// The shortest time between two reports to a host. A client may register its tools again as often as it likes; a
/// report follows only after this time.
const INTERVAL: Duration = Duration::from_secs(1);

/// The list that a host has seen last; `None` before it asks for one.
#[derive(Clone, Default)]
pub(super) struct Listed(Arc<Seen>);

#[derive(Default)]
struct Seen {
    tools: Mutex<Option<Vec<Tool>>>,
    /// The tools may have changed after the list was made and before it was noted here.
    noted: Notify,
}

impl Listed {
    pub(super) fn set(&self, tools: &[Tool]) {
        *self.0.tools.lock().unwrap_or_else(PoisonError::into_inner) = Some(tools.to_vec());
        self.0.noted.notify_one();
    }

    /// Returns whether the host has seen another list. It is then regarded as reported.
    fn is_outdated(&self, tools: &[Tool]) -> bool {
        let mut listed = self.0.tools.lock().unwrap_or_else(PoisonError::into_inner);
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
pub(super) async fn report_changes(shared: &Room, listed: &Listed, host: &Host) {
    let offers = shared.assistant().by_owner();
    loop {
        next_change(shared, listed, &offers).await;
        if !host.report().await {
            return;
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Waits until the list that the host has seen is outdated.
async fn next_change(shared: &Room, listed: &Listed, offers: &ByOwner) {
    loop {
        tokio::select! {
            () = offers.changed() => {}
            () = listed.0.noted.notified() => {}
        }
        if listed.is_outdated(&definitions(&shared.catalog())) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Assistant, Client, ToolError, adapter::filter::Filter, memory::MemoryRoom};

    #[tokio::test(start_paused = true)]
    async fn change_before_a_list_is_noted_is_reported() {
        let room = MemoryRoom::new();
        let assistant = Assistant::builder().join_over(room.assistant("a")).await.unwrap();
        let (shared, listed) = (Room::new(assistant.clone(), Filter::default()), Listed::default());
        let offers = assistant.by_owner();
        let list = definitions(&shared.catalog());
        let ring = || async { Ok::<_, ToolError>(()) };
        let phone =
            Client::builder().tool("ring", "Rings", ring).join_over(room.client("phone")).await.unwrap();
        assistant.ready("phone").await.unwrap();
        let early = tokio::time::timeout(INTERVAL, next_change(&shared, &listed, &offers)).await;
        assert!(early.is_err(), "the host has not seen a list");
        listed.set(&list);
        tokio::time::timeout(INTERVAL, next_change(&shared, &listed, &offers)).await.unwrap();
        drop(phone);
    }
}
