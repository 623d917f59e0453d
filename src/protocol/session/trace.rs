//! A call's place in a distributed trace, as sent in `meta` (`wire.md`, section 2).

use super::{Job, Request};
use crate::{tool::TraceContext, value::Value};

/// The W3C's names, which OpenTelemetry's propagators read and write.
const PARENT: &str = "traceparent";
const STATE: &str = "tracestate";

/// The names that other implementations of the protocol use.
const TRACE_ID: &str = "messaging.trace_id";
const SPAN_ID: &str = "messaging.span_id";

impl Request {
    /// Makes the call part of this trace. The owner reads it with [`Job::trace`].
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

impl Job {
    /// Returns the trace that the caller's request is part of, if it names one.
    ///
    /// A malformed trace is ignored.
    pub fn trace(&self) -> Option<TraceContext> {
        read(&self.meta)
    }
}

fn read(meta: &Value) -> Option<TraceContext> {
    let text = |key: &str| meta.get(key).and_then(|value| value.as_str().map(str::to_owned));
    match text(PARENT) {
        Some(parent) => {
            let context: TraceContext = parent.parse().ok()?;
            let state = text(STATE).and_then(|state| context.clone().with_state(&state).ok());
            Some(state.unwrap_or(context))
        }
        // A sender that writes ids without flags records its trace.
        None => Some(TraceContext::of_ids(&text(TRACE_ID)?, &text(SPAN_ID)?).ok()?.sampled(true)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;

    const PARENT_TEXT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

    fn of(meta: Json) -> Option<TraceContext> {
        read(&Value::from(meta))
    }

    #[test]
    fn invalid_state_is_left_out_and_invalid_parent_is_ignored() {
        let good: TraceContext = PARENT_TEXT.parse().unwrap();
        assert_eq!(of(json!({"traceparent": PARENT_TEXT, "tracestate": "A=b"})), Some(good.clone()));
        let with = of(json!({"traceparent": PARENT_TEXT, "tracestate": "a=b"})).unwrap();
        assert_eq!(with.state(), Some("a=b"));
        let ids = json!({"messaging.trace_id": good.trace_id(), "messaging.span_id": good.span_id()});
        assert_eq!(of(ids), Some(good.clone().sampled(true)));
        let odd = json!({"traceparent": "nonsense", "messaging.trace_id": good.trace_id(), "messaging.span_id": good.span_id()});
        for none in
            [odd, json!({}), json!({"traceparent": 7}), json!({"messaging.trace_id": good.trace_id()})]
        {
            assert_eq!(of(none.clone()), None, "{none}");
        }
    }
}
