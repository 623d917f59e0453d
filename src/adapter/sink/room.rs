//! Makes the calls of another system in a room.

use std::{
    collections::BTreeMap,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Waker},
    time::Duration,
};

use tokio::{
    sync::{OnceCell, OwnedSemaphorePermit, Semaphore},
    task::{JoinSet, unconstrained},
    time::{Instant, timeout_at},
};

use super::catalog::{Catalog, Listed, OwnedTool};
use crate::{
    Assistant, Call, Identity, Role, ToolSource as _, Value, adapter::filter::Filter, tools::ByOwner,
    transport::Participant,
};

/// The most calls that are open at once.
pub(in crate::adapter) const MAX_CALLS: usize = 64;

/// How long the first list of tools waits for the clients that are present. LiveKit announces participants up to 3 s late.
const SETTLE: Duration = Duration::from_secs(4);

/// The most names of tools that have gone which are remembered.
const MAX_KNOWN: usize = 1024;

/// The tools that can be called now.
struct Current {
    offers: ByOwner,
    catalog: Option<Arc<Catalog>>,
}

impl Current {
    /// Returns whether the tools have changed since this was asked last.
    fn has_changed(&self) -> bool {
        // Without it, the poll of a task that has used up its turn is pending, although the tools have changed.
        let changed = pin!(unconstrained(self.offers.changed()));
        changed.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }
}

pub(in crate::adapter) struct Room {
    assistant: Assistant,
    filter: Filter,
    calls: Arc<Semaphore>,
    settled: OnceCell<()>,
    current: Mutex<Current>,
    /// The tools that were listed, so that a call of one whose owner is reconnecting waits for it.
    known: Mutex<BTreeMap<String, OwnedTool>>,
}

impl Room {
    pub(in crate::adapter) fn new(assistant: Assistant, filter: Filter) -> Self {
        let current = Mutex::new(Current { offers: assistant.by_owner(), catalog: None });
        let calls = Arc::new(Semaphore::new(MAX_CALLS));
        Self { assistant, filter, calls, settled: OnceCell::new(), current, known: Mutex::default() }
    }

    pub(in crate::adapter) fn assistant(&self) -> &Assistant {
        &self.assistant
    }

    /// Returns the tools that can be called now. They are read again after each change only, because each call asks.
    pub(in crate::adapter) fn catalog(&self) -> Arc<Catalog> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let has_changed = current.has_changed();
        let Current { offers, catalog } = &mut *current;
        if has_changed {
            *catalog = None;
        }
        Arc::clone(catalog.get_or_insert_with(|| Catalog::new(offers.offers(), &self.filter).into()))
    }

    /// Returns the tools after the first wait, and remembers them.
    pub(in crate::adapter) async fn list(&self) -> Arc<Catalog> {
        self.settle().await;
        let catalog = self.catalog();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() + catalog.len() > MAX_KNOWN {
            known.clear();
        }
        known.extend(catalog.entries().map(|(name, entry)| (name.to_owned(), entry.clone())));
        catalog
    }

    /// Returns the tool of this name: one that is offered, otherwise one that was.
    pub(in crate::adapter) async fn find(&self, name: &str) -> Option<OwnedTool> {
        if let Some(entry) = self.catalog().get(name) {
            return Some(entry.clone());
        }
        let catalog = self.list().await;
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        catalog.get(name).cloned().or_else(known)
    }

    /// Starts a model's call of a tool at its owner.
    pub(in crate::adapter) fn call(&self, entry: &OwnedTool, arguments: Value) -> Call {
        let Listed { offer, fitted } = &**entry;
        let mut builder = self.assistant.call(offer.tool.name().as_str(), fitted.arguments(arguments));
        if !offer.is_local {
            builder = builder.to(offer.owner.clone());
        }
        builder.start()
    }

    /// Returns a permit for one more call, unless too many are open.
    pub(in crate::adapter) fn begin_call(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.calls).try_acquire_owned().ok()
    }

    /// Returns the error of a call of a tool that nobody offers.
    #[cfg(feature = "mcp-server")]
    pub(in crate::adapter) fn why_not_offered(&self, tool: &str) -> crate::CallError {
        self.assistant.why_not_offered(tool)
    }

    /// Waits once until the clients that are present have registered their tools, or the time is over. A room that seems to
    /// have no tool is waited for, too: LiveKit announces participants up to 3 s late, to the clients as well.
    async fn settle(&self) {
        let wait = || async {
            let end = Instant::now() + SETTLE;
            let mut events = self.assistant.events();
            loop {
                let mut waits = JoinSet::new();
                for client in self.clients() {
                    let left = end.saturating_duration_since(Instant::now());
                    waits.spawn(self.assistant.ready(client).within(left).into_future());
                }
                while waits.join_next().await.is_some() {}
                if self.catalog().len() > 0 || !matches!(timeout_at(end, events.recv()).await, Ok(Some(_))) {
                    return;
                }
            }
        };
        self.settled.get_or_init(wait).await;
    }

    fn clients(&self) -> impl Iterator<Item = Identity> {
        let may_offer = |who: &Participant| match who.token_role() {
            Some(role) => role == Role::Client,
            None => who.is_standard() && who.unknown_role().is_none(),
        };
        self.assistant.participants().into_iter().filter(may_offer).map(|who| who.identity().clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Client, ToolError, memory::MemoryRoom};

    #[tokio::test(start_paused = true)]
    async fn tools_are_read_again_after_a_change_only() {
        let room = MemoryRoom::new();
        let assistant = Assistant::builder().join_over(room.assistant("a")).await.unwrap();
        let shared = Room::new(assistant.clone(), Filter::default());
        assert_eq!(shared.catalog().len(), 0);
        let ring = || async { Ok::<_, ToolError>(()) };
        let phone =
            Client::builder().tool("ring", "Rings", ring).join_over(room.client("phone")).await.unwrap();
        assistant.ready("phone").await.unwrap();
        let catalog = shared.catalog();
        assert_eq!(catalog.len(), 1);
        assert!(Arc::ptr_eq(&catalog, &shared.catalog()));
        let offers = assistant.by_owner();
        phone.close().await;
        loop {
            offers.changed().await;
            if offers.offers().is_empty() {
                break;
            }
        }
        assert_eq!(shared.catalog().len(), 0);
    }
}
