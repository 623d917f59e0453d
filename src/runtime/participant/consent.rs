//! Asks a person, through the author's function, before a tool runs.

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use crate::{
    protocol::session::Question,
    tool::{CallId, Tool},
    transport::Identity,
    value::Value,
};

/// The call that a person is asked to allow.
///
/// It describes exactly the call that will run. The tool's description and the arguments may have been written by
/// someone else: show them as text.
#[derive(Clone)]
pub struct ConsentRequest(Question);

impl ConsentRequest {
    pub(super) fn new(question: Question) -> Self {
        Self(question)
    }

    /// Returns the caller.
    pub fn caller(&self) -> &Identity {
        &self.0.caller
    }

    /// Returns the tool, as it is offered now.
    pub fn tool(&self) -> &Tool {
        &self.0.tool
    }

    /// Returns the arguments.
    pub fn arguments(&self) -> &Value {
        &self.0.arguments
    }

    /// Returns the call's id.
    pub fn call_id(&self) -> &CallId {
        &self.0.call
    }

    /// Returns when a missing answer counts as a refusal: 500 ms before the call's budget ends. The question is
    /// dropped then.
    pub fn deadline(&self) -> std::time::Instant {
        self.0.until
    }

    /// Returns the time left until then.
    pub fn time_left(&self) -> Duration {
        self.0.until.saturating_duration_since(super::now())
    }
}

impl fmt::Debug for ConsentRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsentRequest")
            .field("caller", &self.0.caller)
            .field("tool", self.0.tool.name())
            .field("call", &self.0.call)
            .field("arguments", &self.0.arguments)
            .finish_non_exhaustive()
    }
}

type AnswerFuture = Pin<Box<dyn Future<Output = bool> + Send>>;

/// The author's handler.
#[derive(Clone)]
pub(super) struct AskPerson(Arc<dyn Fn(ConsentRequest) -> AnswerFuture + Send + Sync>);

impl AskPerson {
    pub(super) fn new<F, Fut>(ask: F) -> Self
    where
        F: Fn(ConsentRequest) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = bool> + Send + 'static,
    {
        Self(Arc::new(move |request| Box::pin(ask(request))))
    }

    /// Asks the question when it is first polled, because the handler itself may panic too.
    pub(super) async fn ask(self, request: ConsentRequest) -> bool {
        (self.0)(request).await
    }
}

impl fmt::Debug for AskPerson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AskPerson")
    }
}
