//! The state that all connections of one server share.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{OnceCell, OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
    time::{Instant, timeout_at},
};

use super::catalog::{Catalog, Entry, Filter};
use crate::{Assistant, Identity, Participant, ReadyError, Role};

/// The most calls that are open at once.
pub(super) const MAX_CALLS: usize = 64;

/// How long the first list of tools waits for the clients that are present. LiveKit announces participants up to 3 s late.
const SETTLE: Duration = Duration::from_secs(4);

/// The most names of tools that have gone which are remembered.
const MAX_KNOWN: usize = 1024;

pub(super) struct Shared {
    assistant: Assistant,
    filter: Filter,
    calls: Arc<Semaphore>,
    settled: OnceCell<()>,
    /// The tools that were listed, so that a call of one whose owner is reconnecting waits for it.
    known: Mutex<BTreeMap<String, Entry>>,
}

impl Shared {
    pub(super) fn new(assistant: Assistant, filter: Filter) -> Self {
        let calls = Arc::new(Semaphore::new(MAX_CALLS));
        Self { assistant, filter, calls, settled: OnceCell::new(), known: Mutex::default() }
    }

    pub(super) fn assistant(&self) -> &Assistant {
        &self.assistant
    }

    /// Returns the tools that can be called now.
    pub(super) fn catalog(&self) -> Catalog {
        Catalog::new(self.assistant.by_owner().offers(), &self.filter)
    }

    /// Returns the tools after the first wait, and remembers them.
    pub(super) async fn list(&self) -> Catalog {
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
    pub(super) async fn find(&self, name: &str) -> Option<Entry> {
        if let Some(entry) = self.catalog().get(name) {
            return Some(entry.clone());
        }
        let catalog = self.list().await;
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        catalog.get(name).cloned().or_else(known)
    }

    /// Returns a permit for one more call, unless too many are open.
    pub(super) fn begin_call(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.calls).try_acquire_owned().ok()
    }

    /// Returns the clients in the room that are bound to another assistant, or to none.
    pub(super) async fn not_bound(&self) -> Vec<Identity> {
        let mut clients = Vec::new();
        for client in self.clients() {
            let ready = self.assistant.ready(client).within(Duration::ZERO).await;
            if let Err(ReadyError::NotBound { client }) = ready {
                clients.push(client);
            }
        }
        clients
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
            None => who.is_standard(),
        };
        self.assistant.participants().into_iter().filter(may_offer).map(|who| who.identity().clone())
    }
}
