//! The connection to one editor: sends messages to it, and matches its answers to the questions.
//!
//! The protocol's crate is not used here, because its queues have no limit: an editor that stops reading would make them
//! grow. Here whatever sends waits until there is room, and while an answer waits, nothing is read.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use serde_json::{Value as Json, json};
use tokio::sync::{mpsc, oneshot};

use super::super::result::write::Fields;

/// The most messages that wait to be written.
const QUEUED: usize = 16;

/// The most questions that wait for the person at the editor: as at a client.
const MAX_QUESTIONS: usize = 8;

/// A JSON-RPC error.
#[derive(Debug)]
pub(super) struct RpcError {
    pub(super) code: i64,
    pub(super) message: String,
}

impl RpcError {
    pub(super) const PARSE: i64 = -32_700;
    pub(super) const INVALID_REQUEST: i64 = -32_600;
    pub(super) const METHOD_NOT_FOUND: i64 = -32_601;
    pub(super) const INVALID_PARAMS: i64 = -32_602;
    pub(super) const INTERNAL: i64 = -32_603;
    pub(super) const NOT_FOUND: i64 = -32_002;

    pub(super) fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// Why a question has no answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unanswered {
    /// As many as may wait do already.
    TooMany(usize),
    /// The editor has answered with this error.
    Refused(String),
    /// The editor has gone.
    Gone,
}

/// What an editor can ask a person by elicitation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Abilities {
    pub(super) form: bool,
    pub(super) url: bool,
}

/// The editor, as what sends to it sees it.
pub(super) struct Connection {
    out: mpsc::Sender<String>,
    next: AtomicU64,
    questions: Mutex<HashMap<u64, oneshot::Sender<Result<Json, String>>>>,
    abilities: Mutex<Abilities>,
}

impl Connection {
    /// Returns the connection, and the lines to write.
    pub(super) fn new() -> (Arc<Self>, mpsc::Receiver<String>) {
        let (out, lines) = mpsc::channel(QUEUED);
        let connection =
            Self { out, next: AtomicU64::new(1), questions: Mutex::default(), abilities: Mutex::default() };
        (Arc::new(connection), lines)
    }

    pub(super) fn set_abilities(&self, abilities: Abilities) {
        *self.abilities.lock().unwrap_or_else(PoisonError::into_inner) = abilities;
    }

    pub(super) fn abilities(&self) -> Abilities {
        *self.abilities.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns room for one message; `None` if the editor has gone.
    pub(super) async fn room(&self) -> Option<Room<'_>> {
        self.out.reserve().await.ok().map(Room)
    }

    /// Answers a request.
    pub(super) async fn answer(&self, id: &Json, answer: Result<Json, RpcError>) {
        let mut message = json!({"jsonrpc": "2.0", "id": id});
        match answer {
            Ok(result) => message["result"] = result,
            Err(error) => message["error"] = json!({"code": error.code, "message": error.message}),
        }
        let _ = self.out.send(message.to_string()).await; // an editor that has gone is noticed elsewhere
    }

    /// Asks the editor, and waits for its answer.
    ///
    /// # Cancel safety
    /// Dropping the future withdraws the question: the editor is told, and its answer has no effect.
    pub(super) async fn ask(&self, method: &str, params: Json) -> Result<Json, Unanswered> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (reply, answer) = oneshot::channel();
        {
            let mut questions = self.questions();
            if questions.len() >= MAX_QUESTIONS {
                return Err(Unanswered::TooMany(MAX_QUESTIONS));
            }
            questions.insert(id, reply);
        }
        let mut question = Question { connection: self, id, is_sent: false };
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.out.send(message.to_string()).await.map_err(|_| Unanswered::Gone)?;
        question.is_sent = true;
        answer.await.map_err(|_| Unanswered::Gone)?.map_err(Unanswered::Refused)
    }

    /// Notes the answer to a question. One that nobody waits for has no effect.
    pub(super) fn answered(&self, id: &Json, answer: Result<Json, String>) {
        let waiting = id.as_u64().and_then(|id| self.questions().remove(&id));
        match waiting {
            Some(waiting) => _ = waiting.send(answer),
            None => tracing::debug!("an ACP client answers a question that is not open"),
        }
    }

    /// Notes an error that names no question. It ends the one that is open; of several, none can be told.
    pub(super) fn answered_without_id(&self, words: String) {
        let only = {
            let mut questions = self.questions();
            let only = questions.keys().next().copied().filter(|_| questions.len() == 1);
            only.and_then(|id| questions.remove(&id))
        };
        match only {
            Some(waiting) => _ = waiting.send(Err(words)),
            None => tracing::warn!(words, "an ACP client reports an error that names no question"),
        }
    }

    /// Ends all questions: the editor says nothing more.
    pub(super) fn close(&self) {
        self.questions().clear();
    }

    fn questions(&self) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<Result<Json, String>>>> {
        self.questions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Room for one message.
pub(super) struct Room<'a>(mpsc::Permit<'a, String>);

impl Room<'_> {
    /// Sends an update of a session.
    pub(super) fn update(self, session: &str, update: &Json) {
        let params = json!({"sessionId": session, "update": update});
        self.0.send(json!({"jsonrpc": "2.0", "method": "session/update", "params": params}).to_string());
    }
}

/// A question that is open.
struct Question<'a> {
    connection: &'a Connection,
    id: u64,
    is_sent: bool,
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        let is_open = self.connection.questions().remove(&self.id).is_some();
        if is_open && self.is_sent {
            let params = json!({"requestId": self.id});
            let message = json!({"jsonrpc": "2.0", "method": "$/cancel_request", "params": params});
            let _ = self.connection.out.try_send(message.to_string()); // only the dialog would stay open
        }
    }
}

/// Returns an update of this kind with these fields.
pub(super) fn update(kind: &str, fields: Fields) -> Json {
    let mut update = Fields::from_iter([("sessionUpdate".to_owned(), json!(kind))]);
    update.extend(fields);
    update.into()
}
