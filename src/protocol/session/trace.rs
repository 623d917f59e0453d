//! Writes a call's place in a distributed trace into `meta` (`wire.md`, section 2).

use super::Request;
use crate::tool::{
    TraceContext,
    trace_context::{PARENT, SPAN_ID, STATE, TRACE_ID},
};

impl Request {
    /// Makes the call part of this trace. The owner reads it with [`Job::trace`](crate::session::Job::trace).
    #[must_use]
    pub fn trace(mut self, context: &TraceContext) -> Self {
        self.meta.set_text(PARENT, &context.to_string());
        if let Some(state) = context.state() {
            self.meta.set_text(STATE, state);
        }
        self.meta.set_text(TRACE_ID, &context.trace_id());
        self.meta.set_text(SPAN_ID, &context.span_id());
        self
    }
}
