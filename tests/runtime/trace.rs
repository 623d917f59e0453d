//! Spans of calls, their fields, and the trace context that is sent with a call.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex},
};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use toolbridge::{
    Assistant, CallError, Client, ToolContext, ToolError, ToolSource,
    frame::Kind,
    memory::MemoryRoom,
    session::Request,
    tools::{Propagate, TraceContext},
};
use tracing::{
    Event, Instrument, Span, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
    subscriber::DefaultGuard,
};
use tracing_subscriber::{
    Layer,
    layer::{Context, SubscriberExt},
    registry::{LookupSpan, SpanRef},
};

use crate::session_world::{MS, World, value};

/// The captured spans and events.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Recorded>>);

#[derive(Default)]
struct Recorded {
    spans: Vec<Recording>,
    /// Each event's message, and the span that it was in.
    events: Vec<(String, Option<usize>)>,
}

#[derive(Clone)]
struct Recording {
    name: &'static str,
    parent: Option<usize>,
    fields: BTreeMap<&'static str, String>,
    closed: bool,
}

/// The position of a span among the captured ones.
struct At(usize);

struct Fields<'a>(&'a mut BTreeMap<&'static str, String>);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

fn place<S: for<'a> LookupSpan<'a>>(span: Option<SpanRef<'_, S>>) -> Option<usize> {
    span.map(|span| span.extensions().get::<At>().unwrap().0)
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Recorder {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let span = context.span(id).unwrap();
        let mut fields = BTreeMap::new();
        attributes.record(&mut Fields(&mut fields));
        let mut recorded = self.0.lock().unwrap();
        let name = attributes.metadata().name();
        let parent = place(span.parent());
        span.extensions_mut().insert(At(recorded.spans.len()));
        recorded.spans.push(Recording { name, parent, fields, closed: false });
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let at = place(context.span(id)).unwrap();
        values.record(&mut Fields(&mut self.0.lock().unwrap().spans[at].fields));
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = BTreeMap::new();
        event.record(&mut Fields(&mut fields));
        let inside = place(context.event_span(event));
        self.0.lock().unwrap().events.push((fields.remove("message").unwrap_or_default(), inside));
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let at = place(context.span(&id)).unwrap();
        self.0.lock().unwrap().spans[at].closed = true;
    }
}

impl Recorder {
    /// Captures the events of this thread.
    fn begin() -> (Self, DefaultGuard) {
        let recorder = Self::default();
        let subscriber = tracing_subscriber::registry().with(recorder.clone());
        (recorder, tracing::subscriber::set_default(subscriber))
    }

    /// The spans of calls, in the order in which they started.
    fn calls(&self) -> Vec<(usize, Recording)> {
        let recorded = self.0.lock().unwrap();
        let all = recorded.spans.iter().cloned().enumerate();
        all.filter(|(_, span)| span.name == "execute_tool").collect()
    }

    /// The position of a span with this name.
    fn named(&self, name: &str) -> Option<usize> {
        self.0.lock().unwrap().spans.iter().position(|span| span.name == name)
    }

    fn inside(&self, message: &str) -> usize {
        let recorded = self.0.lock().unwrap();
        let event = recorded.events.iter().find(|(text, _)| text == message).unwrap();
        event.1.expect("the event is inside a span")
    }
}

/// A simple tracing system: it numbers the spans that send something, and keeps the parents that it was given.
#[derive(Clone, Default)]
struct Joined(Arc<Mutex<Vec<TraceContext>>>);

fn context_of(span: u64) -> TraceContext {
    TraceContext::new([7; 16], span.to_be_bytes()).unwrap().sampled(true)
}

impl Propagate for Joined {
    fn context(&self, span: &Span) -> Option<TraceContext> {
        Some(context_of(span.id()?.into_u64()))
    }

    fn adopt(&self, span: &Span, parent: &TraceContext) {
        assert!(span.id().is_some());
        self.0.lock().unwrap().push(parent.clone());
    }
}

#[derive(Deserialize, JsonSchema)]
struct Number {
    n: u64,
}

async fn double(cx: ToolContext, number: Number) -> Result<String, ToolError> {
    tracing::info!("doubling");
    if number.n == 0 {
        return Err(ToolError::new("too_small", "nothing to double"));
    }
    Ok(cx.trace().map(ToString::to_string).unwrap_or_default())
}

#[tokio::test(start_paused = true)]
async fn call_has_a_span_at_its_caller_and_one_at_its_tool() {
    let (recorder, _here) = Recorder::begin();
    let (room, joined) = (MemoryRoom::new(), Joined::default());
    let client = Client::builder().tool("double", "Twice", double).propagate(joined.clone());
    let _phone = client.join_over(room.client("phone")).await.unwrap();
    let assistant = Assistant::builder().propagate(joined.clone());
    let assistant = assistant.join_over(room.assistant("assistant")).await.unwrap();
    let conversation = tracing::info_span!("conversation");
    let result =
        async { assistant.call("double", json!({"n": 2})).await }.instrument(conversation.clone()).await;

    let [(_, caller), (owner_at, owner)] = recorder.calls().try_into().ok().unwrap();
    assert_eq!(caller.parent, recorder.named("conversation"), "the caller's own span is its parent");
    assert_eq!(owner.parent, None, "the owner's process does not know the caller's span");
    assert_eq!(recorder.inside("doubling"), owner_at, "the tool's log lines are inside the owner's span");
    let id = &caller.fields["gen_ai.tool.call.id"];
    for (span, kind) in [(&caller, "client"), (&owner, "server")] {
        for (field, value) in [
            ("gen_ai.operation.name", "execute_tool"),
            ("gen_ai.tool.name", "double"),
            ("gen_ai.tool.type", "function"),
            ("gen_ai.tool.call.id", id),
            ("messaging.message.id", id),
            ("messaging.system", "toolbridge"),
            ("messaging.message.body.size", "4"),
            ("otel.name", "execute_tool double"),
            ("otel.kind", kind),
        ] {
            assert_eq!(span.fields[field], *value, "{field}");
        }
        assert!(!span.fields.contains_key("error.type"));
    }
    assert_eq!(caller.fields["messaging.destination.name"], "phone");
    assert_eq!(owner.fields["toolbridge.caller"], "assistant");

    // The caller's span is sent, read by the tool, and the parent of the tool's span.
    let adopted = joined.0.lock().unwrap().clone();
    let [parent] = &adopted[..] else { panic!("{adopted:?}") };
    assert_eq!(result.unwrap().decode::<String>().unwrap(), parent.to_string());
    assert_eq!(parent.trace_id_bytes(), [7; 16]);
    // Both are closed: a span is exported when its last handle is dropped.
    tokio::task::yield_now().await;
    assert!(recorder.calls().iter().all(|(_, span)| span.closed));
}

#[tokio::test(start_paused = true)]
async fn failure_code_is_in_both_spans_and_local_tools_run_inside_their_call() {
    let (recorder, _here) = Recorder::begin();
    let room = MemoryRoom::new();
    let _phone = Client::builder().tool("double", "", double).join_over(room.client("phone")).await.unwrap();
    let assistant =
        Assistant::builder().tool("own", "", double).join_over(room.assistant("a")).await.unwrap();
    for tool in ["double", "own"] {
        let error = assistant.call(tool, json!({"n": 0})).await.unwrap_err();
        assert!(matches!(error, CallError::Tool(_)), "{error}");
    }
    let [(_, caller), (_, owner), (own_at, own), (_, run)] = recorder.calls().try_into().ok().unwrap();
    for span in [&caller, &owner, &own, &run] {
        assert_eq!(span.fields["error.type"], "too_small");
    }
    assert_eq!(run.parent, Some(own_at));
    assert_eq!(
        (&*own.fields["gen_ai.tool.type"], &*run.fields["gen_ai.tool.type"]),
        ("extension", "extension")
    );
    assert!(assistant.call("no_such_tool", ()).owner_wait(std::time::Duration::ZERO).await.is_err());
    assert_eq!(recorder.calls()[4].1.fields["error.type"], "unknown_tool");
}

#[tokio::test(start_paused = true)]
async fn trace_of_the_author_reaches_the_tool_through_every_hop() {
    let room = MemoryRoom::new();
    let _phone = Client::builder().tool("double", "", double).join_over(room.client("phone")).await.unwrap();
    let assistant =
        Assistant::builder().tool("own", "", double).join_over(room.assistant("a")).await.unwrap();
    let context = context_of(9).with_state("vendor=x").unwrap();
    for tool in ["double", "own"] {
        let call = assistant.call(tool, json!({"n": 1})).trace(context.clone());
        assert_eq!(call.await.unwrap().decode::<String>().unwrap(), context.to_string());
        let none = assistant.call(tool, json!({"n": 1})).await.unwrap();
        assert_eq!(none.decode::<String>().unwrap(), "", "without a trace none is created");
    }
    // An assistant that serves a sink as its source passes the sink's trace on.
    let cx = ToolContext::new("sink", std::time::Duration::from_secs(5)).with_trace(context.clone());
    let arguments = toolbridge::Value::from(json!({"n": 1}));
    let answer = assistant.execute(&"double".parse().unwrap(), arguments, cx).await.unwrap();
    assert_eq!(answer.decode::<String>().unwrap(), context.to_string());
}

#[test]
fn trace_context_is_sent_under_both_sets_of_names() {
    let mut world = World::pair(&["t"]);
    let context = context_of(9).with_state("vendor=x").unwrap();
    world.call("a", Request::new("t", value(1)).trace(&context)).unwrap();
    world.run(100 * MS);
    let (_, frame) = world.sent("a", Kind::TOOL_USE_REQUEST).pop().unwrap();
    assert_eq!(frame.meta_str("traceparent"), Some(context.to_string().as_str()));
    assert_eq!(frame.meta_str("tracestate"), Some("vendor=x"));
    assert_eq!(frame.meta_str("messaging.trace_id"), Some(context.trace_id().as_str()));
    assert_eq!(frame.meta_str("messaging.span_id"), Some("0000000000000009"));
    let job = &world.ends["phone"].jobs[0];
    assert_eq!(job.trace(), Some(context));
}
