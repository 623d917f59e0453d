//! How a participant ends, and what still works under heavy load.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use tokio::{sync::Notify, time::Instant};
use toolbridge::{
    Assistant, CallError, Client, CloseReason, ErrorCode, Event, State, ToolContext, ToolError, ToolSource,
    Tools, Value,
    frame::{Kind, Meta},
    memory::MemoryRoom,
    session::Destination,
    transport::{Lane, Packet, Participant, Peer, SendError, Transport, TransportEvent},
};

async fn hang() -> Result<(), ToolError> {
    std::future::pending().await
}

/// A room without participants, in which packets from strangers never stop.
struct Flooded {
    packets: usize,
}

impl Transport for Flooded {
    fn local(&self) -> Participant {
        Participant::new("assistant", "PA_1").agent(true)
    }

    fn room(&self) -> String {
        "flooded".into()
    }

    fn present(&self) -> Vec<Participant> {
        Vec::new()
    }

    fn send(&self, _packet: Packet) -> impl Future<Output = Result<(), SendError>> + Send + 'static {
        std::future::ready(Ok(()))
    }

    async fn recv(&mut self) -> Option<TransportEvent> {
        if self.packets == 0 {
            return None;
        }
        self.packets -= 1;
        if self.packets == 5_000 {
            tokio::time::advance(Duration::from_secs(60)).await;
        }
        Some(TransportEvent::packet(Peer::new("stranger", "PA_2"), Lane::Reliable, vec![0xc0]))
    }
}

#[tokio::test(start_paused = true)]
async fn flood_of_frames_does_not_delay_timers() {
    let assistant = Assistant::builder().join_over(Flooded { packets: 10_000 }).await.unwrap();
    let call = assistant.call("t", ()).start();
    let error = call.await.unwrap_err();
    assert!(matches!(error, CallError::UnknownTool { .. }), "{error}");
}

/// A transport that accepts no packet.
struct Stalled;

impl Transport for Stalled {
    fn local(&self) -> Participant {
        Participant::new("assistant", "PA_1").agent(true)
    }

    fn room(&self) -> String {
        "stalled".into()
    }

    fn present(&self) -> Vec<Participant> {
        Vec::new()
    }

    fn send(&self, _packet: Packet) -> impl Future<Output = Result<(), SendError>> + Send + 'static {
        std::future::pending()
    }

    async fn recv(&mut self) -> Option<TransportEvent> {
        std::future::pending().await
    }

    async fn close(&mut self) {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn blocked_transport_uses_no_more_memory_than_its_queue() {
    let assistant = Assistant::builder().join_over(Stalled).await.unwrap();
    for _ in 0..20 {
        for _ in 0..1_000 {
            let send = assistant.send_frame(Destination::Room, Kind::new(33), Meta::new(), Value::empty());
            send.unwrap();
        }
        tokio::task::yield_now().await;
    }
    assert!(assistant.stats().named("send_failed") > 10_000, "{:?}", assistant.stats());
}

#[tokio::test(start_paused = true)]
async fn transport_that_never_closes_is_dropped_after_the_limit() {
    let assistant = Assistant::builder().join_over(Stalled).await.unwrap();
    assert_eq!(assistant.close().await, CloseReason::Closed);
}

#[tokio::test(start_paused = true)]
async fn unlimited_drain_is_accepted() {
    let room = MemoryRoom::new();
    let assistant =
        Assistant::builder().drain(Duration::MAX).join_over(room.assistant("assistant")).await.unwrap();
    assert_eq!(assistant.close().await, CloseReason::Closed);
}

#[tokio::test(start_paused = true)]
async fn unlimited_times_are_accepted() {
    let room = MemoryRoom::new();
    let endless = |config: &mut toolbridge::Config| {
        config.times.grace = Duration::MAX;
        config.times.memory = Duration::MAX;
        config.times.longest_call = Duration::MAX;
        config.times.announcement = Duration::MAX;
        config.times.silence = Duration::MAX;
    };
    let client = Client::builder().tool("hang", "", hang).configure(endless);
    let _client = client.join_over(room.client("phone")).await.unwrap();
    let assistant =
        Assistant::builder().configure(endless).join_over(room.assistant("assistant")).await.unwrap();
    let mut call = assistant.call("hang", ()).timeout(Duration::MAX).start();
    assert!(call.progress().await.is_some());
    room.leave("phone");
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    call.cancel();
    assert!(matches!(call.await, Err(CallError::Cancelled)));
}

#[test]
fn runtime_shutdown_ends_calls_and_events() {
    let room = MemoryRoom::new();
    let first = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (assistant, mut events, mut call) = first.block_on(async {
        let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
        let call = assistant.call("t", ()).start();
        let events = assistant.events();
        (assistant, events, call)
    });
    drop(first);
    let second = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    second.block_on(async {
        assert!(matches!(assistant.closed().await, CloseReason::ConnectionLost(_)));
        while call.progress().await.is_some() {}
        assert!(matches!(call.await, Err(CallError::Closed(_))));
        while events.recv().await.is_some() {}
        let sent = assistant.send_frame(Destination::Room, Kind::new(33), Meta::new(), Value::empty());
        assert!(sent.is_err());
    });
}

#[tokio::test(start_paused = true)]
async fn events_end_when_the_participant_has_left() {
    let room = MemoryRoom::new();
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
    let mut events = assistant.events();
    assistant.close().await;
    let mut last = None;
    while let Some(event) = events.recv().await {
        last = Some(event);
    }
    assert!(matches!(last, Some(Event::Closed(CloseReason::Closed))), "{last:?}");
    assert!(assistant.events().recv().await.is_none(), "no further event can arrive");
}

#[derive(Deserialize, JsonSchema)]
struct Number {
    n: u64,
}

#[tokio::test(start_paused = true)]
async fn call_with_arguments_that_break_the_schema_does_not_start() {
    async fn double(number: Number) -> Result<u64, ToolError> {
        Ok(2 * number.n)
    }
    let room = MemoryRoom::new();
    let _client = Client::builder().tool("double", "", double).join_over(room.client("phone")).await.unwrap();
    let assistant =
        Assistant::builder().tool("own", "", double).join_over(room.assistant("assistant")).await.unwrap();
    for tool in ["double", "own"] {
        let mut call = assistant.call(tool, json!({"n": "x"})).start();
        assert_eq!(call.progress().await, None, "{tool}");
        let error = call.await.unwrap_err();
        assert!(
            matches!(&error, CallError::Tool(it) if it.code() == ErrorCode::INVALID_PARAMETERS),
            "{error}"
        );
        let mut call = assistant.call(tool, json!({"n": 1})).start();
        assert!(call.progress().await.is_some(), "{tool}");
        call.await.unwrap();
    }
}

/// A tool that runs until it is stopped, and then needs a moment.
#[derive(Clone, Default)]
struct Tidied {
    begun: Arc<Notify>,
    tidied: Arc<AtomicUsize>,
}

async fn tidy(context: ToolContext, State(state): State<Tidied>) -> Result<(), ToolError> {
    state.begun.notify_one();
    context.cancelled().await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    state.tidied.fetch_add(1, Ordering::SeqCst);
    Err(ToolError::cancelled())
}

#[tokio::test(start_paused = true)]
async fn tool_cleans_up_when_its_participant_leaves() {
    let state = Tidied::default();
    let room = MemoryRoom::new();
    let tools = Tools::with_state(state.clone()).tool("tidy", "", tidy);
    let client =
        Client::builder().tools(tools).drain(Duration::ZERO).join_over(room.client("phone")).await.unwrap();
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
    let call = assistant.call("tidy", ()).start();
    state.begun.notified().await;
    let began = Instant::now();
    client.close().await;
    assert_eq!(state.tidied.load(Ordering::SeqCst), 1);
    assert!(began.elapsed() < Duration::from_secs(1));
    assert!(matches!(call.await, Err(CallError::Lost { .. })));
}

#[tokio::test(start_paused = true)]
async fn leaving_client_starts_no_new_calls() {
    async fn two() -> Result<(), ToolError> {
        tokio::time::sleep(Duration::from_secs(2)).await;
        Ok(())
    }
    let room = MemoryRoom::new();
    let client = Client::builder().tool("two", "", two).join_over(room.client("phone")).await.unwrap();
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
    let mut first = assistant.call("two", ()).start();
    first.progress().await.unwrap();
    let asking = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assistant.call("two", ()).await.unwrap_err()
    };
    let (reason, error) = tokio::join!(client.close(), asking);
    assert!(matches!(error, CallError::Busy { .. }), "{error:?}");
    first.await.unwrap();
    assert_eq!(reason, CloseReason::Closed);
}

/// One runs, and the other waits for its place.
#[tokio::test(start_paused = true)]
async fn call_that_waits_for_a_place_when_its_client_leaves_is_busy_and_never_ran() {
    let room = MemoryRoom::new();
    let client = Client::builder().tool("hang", "", hang).drain(Duration::ZERO);
    let client = client.configure(|config| config.caps.requests.running_jobs = 1);
    let client = client.join_over(room.client("phone")).await.unwrap();
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
    let mut first = assistant.call("hang", ()).start();
    first.progress().await.unwrap();
    let mut events = client.events();
    let second = assistant.call("hang", json!({"n": 2})).start();
    while !matches!(events.recv().await, Some(Event::Requested { .. })) {}
    client.close().await;
    let error = second.await.unwrap_err();
    assert!(matches!(error, CallError::Busy { .. }) && !error.may_have_run(), "{error:?}");
    let error = first.await.unwrap_err();
    assert!(matches!(error, CallError::Lost { .. }) && error.may_have_run(), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn limits_of_a_sink_are_reported_as_the_transport_reports_them() {
    let room = MemoryRoom::new();
    let _client = Client::builder()
        .tool("hang", "", hang)
        .tool("short", "", || async { Ok::<u8, ToolError>(1) })
        .join_over(room.client("phone"))
        .await
        .unwrap();
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
    assistant.call("short", ()).await.unwrap();
    let run = |tool: &str, limit| {
        let (tool, assistant) = (tool.parse().unwrap(), assistant.clone());
        async move { assistant.execute(&tool, Value::empty(), ToolContext::new("sink", limit)).await }
    };
    run("short", Duration::from_secs(3_600)).await.unwrap();
    let error = run("hang", Duration::ZERO).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::TIMEOUT);
}

#[tokio::test(start_paused = true)]
async fn reconnect_that_succeeds_at_once_leaves_the_session_connected() {
    use toolbridge::ConnectionState;
    let room = MemoryRoom::new();
    let mut phone = room.client("phone");
    room.pause("phone");
    room.resume("phone");
    let mut last = None;
    for _ in 0..3 {
        if let Some(TransportEvent::ConnectionState(state)) = phone.recv().await {
            last = Some(state);
        }
    }
    assert_eq!(last, Some(ConnectionState::Connected));
}

#[tokio::test(start_paused = true)]
async fn failure_of_a_started_tool_counts_as_may_have_run_whatever_its_code() {
    async fn wrong() -> Result<(), ToolError> {
        Err(ToolError::new(ErrorCode::INVALID_PARAMETERS, "an inner one"))
    }
    async fn nobody() -> Result<(), ToolError> {
        Err(ToolError::new(ErrorCode::UNKNOWN_TOOL, "an inner one"))
    }
    async fn busy() -> Result<(), ToolError> {
        Err(ToolError::new(ErrorCode::BUSY, "an inner one"))
    }
    let tools = || Tools::new().tool("wrong", "", wrong).tool("nobody", "", nobody).tool("busy", "", busy);
    let room = MemoryRoom::new();
    let _client = Client::builder().tools(tools()).join_over(room.client("phone")).await.unwrap();
    let own = tools().prefixed("own");
    let assistant = Assistant::builder().tools(own).join_over(room.assistant("assistant")).await.unwrap();
    for tool in ["wrong", "nobody", "busy", "own.wrong", "own.nobody", "own.busy"] {
        let error = assistant.call(tool, ()).await.unwrap_err();
        assert!(matches!(error, CallError::Tool(_)), "{tool}: {error:?}");
        assert!(error.may_have_run(), "{tool}: {error:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn two_closes_at_once_return_the_same_reason_and_end_a_call() {
    let room = MemoryRoom::new();
    let client = Client::builder().tool("hang", "", hang).drain(Duration::ZERO);
    let client = client.join_over(room.client("phone")).await.unwrap();
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
    let mut call = assistant.call("hang", ()).start();
    call.progress().await.unwrap();
    let (one, two, outcome) = tokio::join!(client.close(), client.close(), call);
    assert_eq!((one, two), (CloseReason::Closed, CloseReason::Closed));
    assert!(matches!(outcome, Err(CallError::Lost { .. } | CallError::Tool(_))), "{outcome:?}");
    assert_eq!(client.open_jobs(), 0);
}

#[tokio::test(start_paused = true)]
async fn dropped_assistant_ends_its_call_at_both_ends() {
    let room = MemoryRoom::new();
    let client = Client::builder().tool("hang", "", hang).join_over(room.client("phone")).await.unwrap();
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
    let mut call = assistant.call("hang", ()).start();
    call.progress().await.unwrap();
    assert_eq!(client.open_jobs(), 1);
    let mut events = client.events();
    drop(assistant);
    assert!(matches!(call.await, Err(CallError::Closed(CloseReason::Closed))));
    while client.open_jobs() > 0 {
        events.recv().await.unwrap();
    }
}
