//! Spans of calls, and their place in a distributed trace.
//!
//! There is one span for each call at its caller and one where its tool runs, both named `execute_tool` as
//! OpenTelemetry's GenAI conventions have it (1.41, in development), with its messaging conventions for
//! what travels. They hold names, ids and sizes. A crate like `tracing-opentelemetry` exports them.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use tracing::{Span, field};

use crate::{
    protocol::session::{CallRecord, Job},
    tool::{CallError, Execution, ToolError, TraceContext},
    value::Value,
};

/// What `messaging.system` says.
const SYSTEM: &str = "toolbridge";

/// Joins the spans of calls to the traces of other processes.
///
/// A W3C trace context travels with each call. Where it comes from and what it is given to is a
/// tracing system's matter; with `tracing-opentelemetry` it is about this:
///
/// ```
/// use toolbridge::{Propagate, TraceContext};
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
    /// The context that goes with a call of ours, whose span this is; its parent is the caller's own span.
    fn context(&self, span: &Span) -> Option<TraceContext>;

    /// Makes the caller's context the parent of this span, in which a tool of ours is about to run.
    ///
    /// It runs while the session is locked: it must be quick, and must not use a handle of the participant that
    /// it is for, which panics. If it panics, the span stays a root.
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
        // A stranger's code, in the midst of ours: it may cost the trace, and nothing else.
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

/// The span of a call at its caller, from the call to its outcome. A child of the span in which it is made.
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

/// What is known of a call once it was asked for.
pub(super) fn asked(span: &Span, call: &str, room: &str) {
    span.record("gen_ai.tool.call.id", call);
    span.record("messaging.message.id", call);
    span.record("gen_ai.conversation.id", room);
}

/// What is known of a call when it has ended.
pub(super) fn ended(span: &Span, record: Option<&CallRecord>) {
    let Some(record) = record.filter(|_| !span.is_disabled()) else { return };
    span.record("gen_ai.tool.type", kind_of(record.execution));
    if let Some(owner) = &record.owner {
        span.record("messaging.destination.name", owner.as_str());
    }
}

/// How a call failed.
pub(super) fn failed(span: &Span, error: &CallError) {
    if !span.is_disabled() {
        span.record("error.type", ToolError::code_of(error).as_str());
    }
}

/// The span in which a tool of ours runs: everything that it logs is inside. A root, unless its call is our own.
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

/// The conventions' word: a function is run by the model's client, an extension beside the model.
fn kind_of(execution: Execution) -> &'static str {
    match execution {
        Execution::Server => "extension",
        Execution::Client | Execution::Either => "function",
    }
}
