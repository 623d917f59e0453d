//! Records spans of calls, and their position in a distributed trace.
//!
//! There is one span for each call at its caller and one where its tool runs, both named `execute_tool` according to
//! OpenTelemetry's GenAI conventions (1.41, in development), with its messaging conventions for the transport. They
//! contain names, ids and sizes. A crate such as `tracing-opentelemetry` exports them.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use tracing::{Span, field};

use crate::{
    protocol::session::CallRecord,
    tool::{CallError, Execution, Job, ToolError, TraceContext},
    value::Value,
};

/// The value of `messaging.system`.
const SYSTEM: &str = "toolbridge";

/// Connects the spans of calls to the traces of other processes.
///
/// A W3C trace context is sent with each call. A tracing system provides and consumes it; with
/// `tracing-opentelemetry` the implementation is roughly this:
///
/// ```
/// use toolbridge::tools::{Propagate, TraceContext};
/// use tracing::Span;
///
/// struct OpenTelemetry;
///
/// impl Propagate for OpenTelemetry {
///     fn context(&self, span: &Span) -> Option<TraceContext> {
///         // let of_span = span.context().span().span_context().clone();
///         // let context = TraceContext::new(of_span.trace_id().to_bytes(), of_span.span_id().to_bytes()).ok()?;
///         // Some(context.sampled(of_span.is_sampled()))
///         # None
///     }
///
///     fn adopt(&self, span: &Span, parent: &TraceContext) {
///         // span.set_parent(Context::new().with_remote_span_context(SpanContext::new(…)));
///     }
/// }
/// ```
pub trait Propagate: Send + Sync + 'static {
    /// Returns the context to send with a call that has this span; its parent is the caller's own span.
    fn context(&self, span: &Span) -> Option<TraceContext>;

    /// Makes the caller's context the parent of this span, in which a tool of this participant is about to run.
    ///
    /// It must be quick, since packets wait for it. If it panics, the span stays a root.
    fn adopt(&self, span: &Span, parent: &TraceContext);
}

/// The author's propagation, if there is one.
#[derive(Clone, Default)]
pub(super) struct Propagation(Option<Arc<dyn Propagate>>);

impl Propagation {
    pub(super) fn new(propagate: impl Propagate) -> Self {
        Self(Some(Arc::new(propagate)))
    }

    pub(super) fn is_set(&self) -> bool {
        self.0.is_some()
    }

    pub(super) fn context(&self, span: &Span) -> Option<TraceContext> {
        self.0.as_ref().and_then(|propagate| propagate.context(span))
    }

    pub(super) fn adopt(&self, span: &Span, parent: Option<&TraceContext>) {
        let (Some(propagate), Some(parent)) = (&self.0, parent) else { return };
        // A panic in the author's code may lose the trace, but nothing else.
        if catch_unwind(AssertUnwindSafe(|| propagate.adopt(span, parent))).is_err() {
            tracing::error!("the function that adopts a trace panicked; the span stays a root");
        }
    }
}

impl fmt::Debug for Propagation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Propagation").field(&self.is_set()).finish()
    }
}

/// Creates the span of a call at its caller, from the call to its outcome, as a child of the current span.
pub(super) fn call_span(tool: &str, arguments: Option<&Value>) -> Span {
    tracing::info_span!(
        "execute_tool",
        otel.name = %format_args!("execute_tool {tool}"),
        otel.kind = "client",
        gen_ai.operation.name = "execute_tool",
        gen_ai.tool.name = tool,
        gen_ai.tool.call.id = field::Empty,
        gen_ai.tool.type = field::Empty,
        gen_ai.conversation.id = field::Empty,
        messaging.system = SYSTEM,
        messaging.operation.name = "call",
        messaging.operation.type = "send",
        messaging.destination.name = field::Empty,
        messaging.message.id = field::Empty,
        messaging.message.body.size = arguments.map(|body| body.as_bytes().len()),
        error.type = field::Empty,
    )
}

/// Records the fields that are known once the request was created.
pub(super) fn asked(span: &Span, call: &str, room: &str) {
    span.record("gen_ai.tool.call.id", call);
    span.record("messaging.message.id", call);
    span.record("gen_ai.conversation.id", room);
}

/// Records the fields that are known when the call has ended.
pub(super) fn ended(span: &Span, record: Option<&CallRecord>) {
    let Some(record) = record.filter(|_| !span.is_disabled()) else { return };
    span.record("gen_ai.tool.type", kind_of(record.execution));
    if let Some(owner) = &record.owner {
        span.record("messaging.destination.name", owner.as_str());
    }
}

/// Records how a call failed.
pub(super) fn failed(span: &Span, error: &CallError) {
    if !span.is_disabled() {
        span.record("error.type", ToolError::code_of(error).as_str());
    }
}

/// Creates the span in which a tool of this participant runs, with everything that it logs. It is a root unless the
/// call is its own.
pub(super) fn tool_span(job: &Job, room: &str, call: Option<&Span>) -> Span {
    let execution = if call.is_some() { Execution::Server } else { Execution::Client };
    tracing::info_span!(
        parent: call.and_then(Span::id),
        "execute_tool",
        otel.name = %format_args!("execute_tool {}", job.tool),
        otel.kind = "server",
        gen_ai.operation.name = "execute_tool",
        gen_ai.tool.name = job.tool.as_str(),
        gen_ai.tool.call.id = job.call.as_str(),
        gen_ai.tool.type = kind_of(execution),
        gen_ai.conversation.id = room,
        messaging.system = SYSTEM,
        messaging.operation.name = "execute",
        messaging.operation.type = "process",
        messaging.message.id = job.call.as_str(),
        messaging.message.body.size = job.arguments.as_bytes().len(),
        toolbridge.caller = job.caller.as_str(),
        error.type = field::Empty,
    )
}

/// Returns the conventions' tool type: a function runs at the model's client, an extension next to the model.
fn kind_of(execution: Execution) -> &'static str {
    match execution {
        Execution::Server => "extension",
        Execution::Client | Execution::Either => "function",
    }
}
