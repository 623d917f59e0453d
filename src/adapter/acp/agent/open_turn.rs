//! Keeps the open turns of an editor, and their calls that have not ended.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use serde_json::{Value as Json, json};
use tokio_util::sync::CancellationToken;

use super::{
    super::result::write::{self, Fields},
    connection::{Connection, QueueSlot, update},
};
use crate::CallError;

/// The open turns, and their open calls.
#[derive(Default)]
pub(super) struct Turns(Mutex<Table>);

#[derive(Default)]
struct Table {
    turns: Vec<Weak<Turn>>,
    /// By the ids of the calls.
    calls: HashMap<String, Weak<Turn>>,
}

impl Turns {
    pub(super) fn begin(&self, turn: &Arc<Turn>) {
        self.lock().turns.push(Arc::downgrade(turn));
    }

    /// Returns the turn that has made a call, and whether it has; otherwise the only open turn.
    pub(super) fn of_call(&self, call: &str) -> Option<(Arc<Turn>, bool)> {
        let table = self.lock();
        if let Some(turn) = table.calls.get(call) {
            return Some((turn.upgrade()?, true));
        }
        match table.turns.as_slice() {
            [turn] => Some((turn.upgrade()?, false)),
            _ => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct Turn {
    pub(super) connection: Arc<Connection>,
    pub(super) turns: Arc<Turns>,
    pub(super) session: Arc<str>,
    /// Relative paths are paths in it.
    pub(super) folder: PathBuf,
    /// Cancelled by the person, or because the editor has gone.
    pub(super) cancelled: CancellationToken,
    /// Cancelled when the turn is over.
    pub(super) over: CancellationToken,
}

impl Turn {
    pub(super) async fn send(&self, update: Json) {
        if let Some(room) = self.connection.room().await
            && !self.over.is_cancelled()
        {
            room.update(&self.session, &update);
        }
    }

    /// Starts a call, and reports it. `start` returns the call and its id.
    pub(super) fn begin_call<T>(
        self: &Arc<Self>,
        room: QueueSlot<'_>,
        mut fields: Fields,
        start: impl FnOnce() -> (T, String),
    ) -> (T, String) {
        // A question about the call waits for this lock, so the editor knows the call before the question.
        let mut table = self.turns.lock();
        let (call, id) = start();
        fields.insert("toolCallId".to_owned(), json!(id));
        room.update(&self.session, &update("tool_call", fields));
        table.calls.insert(id.clone(), Arc::downgrade(self));
        (call, id)
    }

    /// Sends a change of a call, unless the editor has learned its end.
    pub(super) async fn change_call(&self, id: &str, fields: Fields, is_last: bool) {
        let Some(room) = self.connection.room().await else { return };
        let mut table = self.turns.lock();
        let is_open = if is_last { table.calls.remove(id).is_some() } else { table.calls.contains_key(id) };
        if is_open {
            room.update(&self.session, &changed(id, fields));
        }
    }

    /// Ends the turn. The editor learns the end of each call that is still open: their futures are gone.
    pub(super) async fn end(self: &Arc<Self>) {
        self.over.cancel();
        let (own, mut open) = (Arc::downgrade(self), Vec::new());
        {
            let mut table = self.turns.lock();
            table.turns.retain(|turn| !turn.ptr_eq(&own));
            table.calls.retain(|id, turn| {
                let is_own = turn.ptr_eq(&own);
                if is_own {
                    open.push(id.clone());
                }
                !is_own
            });
        }
        for id in open {
            if let Some(room) = self.connection.room().await {
                let fields = write::failed(&CallError::Cancelled, &self.folder);
                room.update(&self.session, &changed(&id, fields));
            }
        }
    }
}

fn changed(id: &str, mut fields: Fields) -> Json {
    fields.insert("toolCallId".to_owned(), json!(id));
    update("tool_call_update", fields)
}
