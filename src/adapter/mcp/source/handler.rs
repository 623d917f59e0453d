//! Handles what a server sends besides answers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, atomic::Ordering};

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{json, value::RawValue};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{
    Shared,
    calls::Calls,
    elicitation::{ELICITATION, MAX_QUESTIONS},
    http::Incomings,
    log,
};
use crate::{
    adapter::{
        elicitation::answer,
        json,
        jsonrpc::{
            error::{INTERNAL, INVALID_REQUEST, METHOD_NOT_FOUND, RpcError},
            id::Id,
            inbox::{Incoming, Request},
            peer::Peer,
        },
    },
    value::prefix,
};

/// The largest parameters of a question to the person, in bytes: a form.
const MAX_QUESTION: usize = 256 << 10;

/// The largest parameters of a notification that are read, in bytes: those that have an effect are small.
const MAX_NOTIFICATION: usize = 64 << 10;

/// The longest method of a request that is not offered, in bytes.
const MAX_METHOD: usize = 128;

/// Answers what a server asks of its client, and takes its notifications.
pub(super) struct Handler {
    pub(super) server: Arc<str>,
    shared: Weak<Shared>,
    peer: Arc<Peer>,
    calls: Arc<Calls>,
    questions: Mutex<Questions>,
}

/// The questions to the person that are open.
#[derive(Default)]
struct Questions {
    tasks: JoinSet<()>,
    /// The id of each. Its token is cancelled by the server, or because the question is answered.
    open: Vec<(Id, CancellationToken)>,
}

impl Handler {
    pub(super) fn new(shared: &Arc<Shared>, peer: Arc<Peer>, calls: Arc<Calls>) -> Self {
        let (server, shared) = (Arc::clone(&shared.name), Arc::downgrade(shared));
        Self { server, shared, peer, calls, questions: Mutex::default() }
    }

    async fn request(&self, Request { id, method, params, .. }: Request) {
        let answer = match &*method {
            "ping" => Ok(json!({})),
            ELICITATION => match self.ask(&id, params) {
                Ok(()) => return, // answered when the person has answered
                Err(error) => Err(error),
            },
            method => {
                let method = prefix(method, MAX_METHOD);
                Err(RpcError::new(METHOD_NOT_FOUND, format!("{method} is not offered")))
            }
        };
        self.peer.answer(&id, answer, None).await;
    }

    /// Asks the person.
    fn ask(&self, id: &Id, params: Option<Box<RawValue>>) -> Result<(), RpcError> {
        let refused = |text: String| RpcError::new(INVALID_REQUEST, text);
        let size = params.as_ref().map_or(0, |params| params.get().len());
        if size > MAX_QUESTION {
            let text = format!("its parameters have {size} bytes; the limit is {MAX_QUESTION}");
            return Err(refused(format!("the message cannot be read: {text}")));
        }
        let params = params.map(|params| json::value(params.get())).transpose();
        let params = params.map_err(|error| refused(format!("the message cannot be read: {error}")))?;
        let Some(asked) = self.calls.asked() else {
            return Err(refused("no call is open on whose behalf a person could be asked".to_owned()));
        };
        let mut questions = self.questions();
        while questions.tasks.try_join_next().is_some() {}
        questions.open.retain(|(_, token)| !token.is_cancelled());
        if questions.open.len() >= MAX_QUESTIONS {
            return Err(refused("too many questions are open".to_owned()));
        }
        let token = CancellationToken::new();
        questions.open.push((id.clone(), token.clone()));
        let (server, peer, id) = (Arc::clone(&self.server), Arc::clone(&self.peer), id.clone());
        questions.tasks.spawn(async move {
            let _over = token.clone().drop_guard();
            let call = &asked.context;
            let cancelled = || Ok(json!({"action": "cancel"}));
            let answer = tokio::select! {
                answer = answer(&server, params.unwrap_or_default(), call) => match answer {
                    Err(_) if call.is_cancelled() => cancelled(),
                    answer => answer.map_err(|error| RpcError::new(INTERNAL, error.message())),
                },
                () = token.cancelled() => cancelled(),
                () = asked.over() => cancelled(),
            };
            peer.answer(&id, answer, None).await;
        });
        Ok(())
    }

    fn notification(&self, method: &str, params: Option<&RawValue>) {
        match method {
            "notifications/progress" => self.calls.progress(small(params)),
            "notifications/message" => {
                if let Some(params) = params {
                    log::forward(&self.server, params.get());
                }
            }
            "notifications/tools/list_changed" => {
                if let Some(shared) = self.shared.upgrade() {
                    shared.list_changed.notify_one();
                }
            }
            "notifications/subscriptions/acknowledged" => {
                self.calls.is_subscribed.store(true, Ordering::Relaxed);
            }
            "notifications/cancelled" => {
                let Some(id) = params.and_then(cancelled_id) else { return };
                if let Some((_, token)) = self.questions().open.iter().find(|(open, _)| *open == id) {
                    token.cancel();
                }
            }
            _ => {} // what is not known has no effect
        }
    }

    fn questions(&self) -> MutexGuard<'_, Questions> {
        self.questions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Incomings for Handler {
    async fn incoming(&self, message: Incoming) {
        match message {
            Incoming::Request(request) => self.request(request).await,
            Incoming::Notification { method, params } => self.notification(&method, params.as_deref()),
            Incoming::Unnamed(words) => self.calls.warn(&format!(
                "the MCP server {:?} reports an error that names no request: {words}",
                self.server
            )),
        }
    }
}

/// Returns the id of the request that a server has cancelled. Nothing else is built of the parameters, so they may be large:
/// a question must not stay open because its server gives a long reason.
fn cancelled_id(params: &RawValue) -> Option<Id> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Cancelled<'a> {
        #[serde(borrow)]
        request_id: &'a RawValue,
    }
    let cancelled: Cancelled<'_> = serde_json::from_str(params.get()).ok()?;
    Id::read(cancelled.request_id.get().as_bytes())
}

/// Reads the parameters of a notification, if they are small.
fn small<T: DeserializeOwned>(params: Option<&RawValue>) -> Option<T> {
    serde_json::from_str(params.filter(|params| params.get().len() <= MAX_NOTIFICATION)?.get()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cancellation_names_its_question_whatever_else_it_says() {
        let id = |params: String| cancelled_id(&RawValue::from_string(params).unwrap());
        assert_eq!(id(r#"{"requestId":"q"}"#.to_owned()), Id::read(br#""q""#));
        assert_eq!(id(r#"{"requestId":7.0}"#.to_owned()), Id::read(b"7"));
        let reason = "x".repeat(MAX_NOTIFICATION);
        assert_eq!(id(format!(r#"{{"reason":"{reason}","requestId":7}}"#)), Id::read(b"7"));
        for params in ["7", "{}", r#"{"requestId":null}"#, r#"{"requestId":["q"]}"#] {
            assert_eq!(id(params.to_owned()), None, "{params}");
        }
    }
}
