//! Holds the connection to one editor: sends updates to it, and knows what it can ask the person.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value as Json, json};

use super::super::result::write::Fields;
use crate::adapter::jsonrpc::{
    peer::{self, Peer, Writer},
    rules::ACP,
};

/// The most questions that wait for the person at the editor: as at a client.
const MAX_QUESTIONS: usize = 8;

/// What an editor can ask a person by elicitation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Abilities {
    pub(super) form: bool,
    pub(super) url: bool,
}

/// The editor, as what sends to it sees it.
pub(super) struct Connection {
    pub(super) peer: Arc<Peer>,
    abilities: Mutex<Abilities>,
}

impl Connection {
    /// Returns the connection, and the writer, which writes the messages of this side to the editor.
    pub(super) fn new() -> (Arc<Self>, Writer) {
        let (peer, writer) = Peer::new(MAX_QUESTIONS, &ACP);
        (Arc::new(Self { peer, abilities: Mutex::default() }), writer)
    }

    pub(super) fn set_abilities(&self, abilities: Abilities) {
        *self.abilities.lock().unwrap_or_else(PoisonError::into_inner) = abilities;
    }

    pub(super) fn abilities(&self) -> Abilities {
        *self.abilities.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns room for one update; `None` if the editor has gone.
    pub(super) async fn room(&self) -> Option<QueueSlot<'_>> {
        self.peer.room().await.map(QueueSlot)
    }
}

/// Room for one update.
pub(super) struct QueueSlot<'a>(peer::QueueSlot<'a>);

impl QueueSlot<'_> {
    /// Sends an update of a session.
    pub(super) fn update(self, session: &str, update: &Json) {
        self.0.notify("session/update", &json!({"sessionId": session, "update": update}));
    }
}

/// Returns an update of this kind with these fields.
pub(super) fn update(kind: &str, fields: Fields) -> Json {
    let mut update = Fields::from_iter([("sessionUpdate".to_owned(), json!(kind))]);
    update.extend(fields);
    update.into()
}
