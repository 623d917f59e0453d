//! Large frames through handles, driver and an in-memory room: they arrive complete, and urgent frames overtake them.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::watch;
use toolbridge::{
    Assistant, CallError, Client, ErrorCode, State, ToolError, Tools,
    memory::{MemoryRoom, MemoryTransport},
    transport::{Packet, STREAM_CHUNK, StreamPart, Transport, TransportEvent},
};

const MIB: usize = 1024 * 1024;

#[derive(Deserialize, JsonSchema)]
struct Text {
    text: String,
}

#[derive(Deserialize, JsonSchema)]
struct Size {
    size: usize,
}

async fn length(text: Text) -> Result<usize, ToolError> {
    Ok(text.text.len())
}

async fn novel(size: Size) -> Result<String, ToolError> {
    Ok("x".repeat(size.size))
}

/// How many calls of `held` run, and how many calls of `arrived` have arrived.
#[derive(Clone, Default)]
struct Seen {
    held: Arc<watch::Sender<usize>>,
    arrived: Arc<watch::Sender<usize>>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.held.send_modify(|count| *count -= 1);
    }
}

struct Held(Seen);

async fn held(State(seen): State<Seen>) -> Result<(), ToolError> {
    seen.held.send_modify(|count| *count += 1);
    let _held = Held(seen);
    std::future::pending().await
}

async fn arrived(State(seen): State<Seen>, text: Text) -> Result<usize, ToolError> {
    seen.arrived.send_modify(|count| *count += 1);
    Ok(text.text.len())
}

async fn pair(tools: Tools<Seen>) -> (MemoryRoom, Client, Assistant) {
    let room = MemoryRoom::new();
    let client = Client::builder().tools(tools).join_over(room.client("phone")).await.unwrap();
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
    (room, client, assistant)
}

/// The largest text whose result fits, found from the refusal of a slightly larger one.
async fn largest(assistant: &Assistant) -> usize {
    let size = 16 * MIB - 20; // a value below the limit, whose frame is above it
    let Err(CallError::Tool(error)) = assistant.call("novel", json!({"size": size})).await else {
        panic!("a frame above the maximum passed")
    };
    assert_eq!(error.code(), ErrorCode::RESULT_TOO_LARGE);
    let numbers = error.message().split(|it: char| !it.is_ascii_digit());
    let frame: usize = numbers.filter_map(|it| it.parse().ok()).max().unwrap();
    size - (frame - 16 * MIB)
}

#[tokio::test(start_paused = true)]
async fn protocol_a23_result_of_16_mib_arrives_whole_and_one_byte_more_is_too_large() {
    let tools = Tools::with_state(Seen::default()).tool("novel", "", novel).tool("length", "", length);
    let (_room, client, assistant) = pair(tools).await;
    let fits = largest(&assistant).await;
    let whole = assistant.call("novel", json!({"size": fits})).await.unwrap().decode::<String>().unwrap();
    assert_eq!(whole.len(), fits);
    let error = assistant.call("novel", json!({"size": fits + 1})).await.unwrap_err();
    assert!(
        matches!(&error, CallError::Tool(it) if it.message().contains(&(16 * MIB + 1).to_string())),
        "{error}"
    );
    let value = assistant.call("novel", json!({"size": 16 * MIB})).await.unwrap_err();
    assert!(matches!(&value, CallError::Tool(it) if it.code() == ErrorCode::RESULT_TOO_LARGE), "{value}");
    let sent = assistant.call("length", json!({"text": "x".repeat(15 * MIB)})).await.unwrap();
    assert_eq!(sent.decode::<usize>().unwrap(), 15 * MIB);
    let too_large = assistant.call("length", json!({"text": "x".repeat(16 * MIB)})).await.unwrap_err();
    assert!(matches!(too_large, CallError::TooLarge { limit, .. } if limit == 16 * MIB), "{too_large}");
    assert_eq!(client.stats().named("stream_broken") + assistant.stats().named("stream_broken"), 0);
}

#[tokio::test(start_paused = true)]
async fn cancel_overtakes_a_large_request() {
    let seen = Seen::default();
    let tools = Tools::with_state(seen.clone()).tool("held", "", held).tool("arrived", "", arrived);
    let (_room, _client, assistant) = pair(tools).await;
    let mut call = assistant.call("held", ()).start();
    call.progress().await.unwrap();
    let large = assistant.call("arrived", json!({"text": "x".repeat(15 * MIB)})).start();
    call.cancel();
    let mut held = seen.held.subscribe();
    held.wait_for(|count| *count == 0).await.unwrap();
    assert_eq!(*seen.arrived.borrow(), 0, "the cancel waited for the whole large frame");
    assert_eq!(large.await.unwrap().decode::<usize>().unwrap(), 15 * MIB);
}

#[tokio::test(start_paused = true)]
async fn cancelled_large_request_is_abandoned_and_never_runs() {
    let seen = Seen::default();
    let tools = Tools::with_state(seen.clone()).tool("held", "", held).tool("arrived", "", arrived);
    let (_room, client, assistant) = pair(tools).await;
    let mut first = assistant.call("held", ()).start();
    first.progress().await.unwrap();
    let mut large = assistant.call("arrived", json!({"text": "x".repeat(15 * MIB)})).start();
    // Its first parts are in flight when it is cancelled.
    while client.stats().named("bytes_in") == 0 {
        tokio::task::yield_now().await;
    }
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    large.cancel();
    assert!(matches!(large.await, Err(CallError::Cancelled)));
    // Later frames are not blocked by it, and arrive after all its parts.
    let after = assistant.call("arrived", json!({"text": "small"})).await.unwrap();
    assert_eq!((after.decode::<usize>().unwrap(), *seen.arrived.borrow()), (5, 1));
    assert_eq!(client.stats().named("stream_broken"), 0);
}

async fn part(connection: &mut MemoryTransport) -> StreamPart {
    loop {
        match connection.recv().await {
            Some(TransportEvent::Stream { part, .. }) => return part,
            Some(_) => {}
            None => panic!("the connection ended"),
        }
    }
}

#[tokio::test]
async fn dropped_send_abandons_its_stream() {
    let room = MemoryRoom::new();
    let (a, mut b) = (room.client("a"), room.client("b"));
    let mut sending = Box::pin(a.send(Packet::new(["b".into()], vec![7; 10 * STREAM_CHUNK])));
    tokio::select! {
        biased;
        part = part(&mut b) => assert!(matches!(part, StreamPart::Header(_)), "{part:?}"),
        _ = &mut sending => panic!("the whole frame was sent before its first part was read"),
    }
    drop(sending);
    let reason = loop {
        match part(&mut b).await {
            StreamPart::Trailer { reason, .. } => break reason,
            StreamPart::Chunk { .. } => {}
            other => panic!("{other:?}"),
        }
    };
    assert!(!reason.is_empty());
}

#[tokio::test(start_paused = true)]
async fn leaving_does_not_wait_for_a_large_frame() {
    let seen = Seen::default();
    let tools = Tools::with_state(seen.clone()).tool("held", "", held).tool("arrived", "", arrived);
    let (_room, _client, assistant) = pair(tools).await;
    let mut call = assistant.call("held", ()).start();
    call.progress().await.unwrap();
    let _large = assistant.call("arrived", json!({"text": "x".repeat(15 * MIB)})).start();
    drop(assistant);
    let mut held = seen.held.subscribe();
    held.wait_for(|count| *count == 0).await.unwrap();
    assert_eq!(*seen.arrived.borrow(), 0, "the goodbye overtook the large frame");
}
