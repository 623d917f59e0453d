//! Handles, driver, executor and session together, in an in-memory room on a paused clock.

use std::{
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
    Assistant, CallError, Client, CloseReason, ErrorCode, Event, JoinError, State, ToolContext, ToolError,
    ToolOptions, ToolSource, Tools, Value,
    frame::{Kind, Meta},
    memory::MemoryRoom,
    session::Destination,
    tools::RegisterError,
};

#[derive(Deserialize, JsonSchema)]
struct Number {
    n: u64,
}

async fn double(number: Number) -> Result<u64, ToolError> {
    Ok(2 * number.n)
}

async fn hang() -> Result<(), ToolError> {
    std::future::pending().await
}

/// Reports when a tool starts and stops.
#[derive(Clone, Default)]
struct Watched {
    running: Arc<AtomicUsize>,
    changed: Arc<Notify>,
}

struct Running(Watched);

impl Watched {
    fn enter(&self) -> Running {
        self.running.fetch_add(1, Ordering::SeqCst);
        self.changed.notify_one();
        Running(self.clone())
    }

    async fn until(&self, running: usize) {
        while self.running.load(Ordering::SeqCst) != running {
            self.changed.notified().await;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
        self.0.changed.notify_one();
    }
}

async fn watched(State(watched): State<Watched>) -> Result<(), ToolError> {
    let _running = watched.enter();
    std::future::pending().await
}

async fn pair(tools: Tools<Watched>) -> (MemoryRoom, Client, Assistant) {
    let room = MemoryRoom::new();
    let client = Client::builder().tools(tools).join_over(room.client("phone")).await.unwrap();
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
    (room, client, assistant)
}

#[tokio::test(start_paused = true)]
async fn protocol_a1_each_of_many_calls_in_flight_gets_its_own_result() {
    async fn slow_double(number: Number) -> Result<u64, ToolError> {
        // The first call ends last.
        tokio::time::sleep(Duration::from_millis(100 - number.n)).await;
        Ok(2 * number.n)
    }
    let (_room, _client, assistant) =
        pair(Tools::with_state(Watched::default()).tool("double", "", slow_double)).await;
    let calls: Vec<_> = (0..50).map(|n| (n, assistant.call("double", json!({"n": n})).start())).collect();
    for (n, call) in calls {
        assert_eq!(call.await.unwrap().decode::<u64>().unwrap(), 2 * n);
    }
}

#[tokio::test(start_paused = true)]
async fn dropping_a_call_stops_the_function() {
    let state = Watched::default();
    let (_room, _client, assistant) =
        pair(Tools::with_state(state.clone()).tool("watched", "", watched)).await;
    let call = assistant.call("watched", ()).start();
    state.until(1).await;
    drop(call);
    state.until(0).await;
}

#[tokio::test(start_paused = true)]
async fn detached_call_continues() {
    let state = Watched::default();
    let (_room, client, assistant) =
        pair(Tools::with_state(state.clone()).tool("watched", "", watched)).await;
    assistant.call("watched", ()).start().detach();
    state.until(1).await;
    assert_eq!(state.running.load(Ordering::SeqCst), 1);
    // The call ends with its caller, which waits for it as for any other.
    let began = Instant::now();
    assistant.close().await;
    assert_eq!(began.elapsed(), Duration::from_secs(5));
    state.until(0).await;
    client.close().await;
}

#[tokio::test(start_paused = true)]
async fn progress_begins_with_the_start_and_ends_with_the_call() {
    async fn steps(cx: ToolContext) -> Result<(), ToolError> {
        for n in 1..=3 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            cx.progress(format!("{n} of 3"));
        }
        Ok(())
    }
    let (_room, _client, assistant) =
        pair(Tools::with_state(Watched::default()).tool("steps", "", steps)).await;
    let mut call = assistant.call("steps", ()).start();
    let mut heard = Vec::new();
    while let Some(step) = call.progress().await {
        heard.push(step.message);
    }
    assert_eq!(heard[0], None);
    assert_eq!(heard.last().unwrap().as_deref(), Some("3 of 3"));
    call.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn closing_waits_for_open_calls_up_to_its_limit() {
    async fn five(_: ToolContext) -> Result<u8, ToolError> {
        tokio::time::sleep(Duration::from_secs(2)).await;
        Ok(5)
    }
    let room = MemoryRoom::new();
    let _client = Client::builder()
        .tool("five", "", five)
        .tool("hang", "", hang)
        .join_over(room.client("phone"))
        .await
        .unwrap();
    let assistant = Assistant::builder().join_over(room.assistant("one")).await.unwrap();
    let mut call = assistant.call("five", ()).start();
    call.progress().await.unwrap();
    let (closed, result) = tokio::join!(assistant.close(), call);
    assert_eq!(closed, CloseReason::Closed);
    assert_eq!(result.unwrap().decode::<u8>().unwrap(), 5);
    assert!(matches!(assistant.call("five", ()).await, Err(CallError::NotInRoom(CloseReason::Closed))));

    let assistant =
        Assistant::builder().drain(Duration::from_secs(3)).join_over(room.assistant("two")).await.unwrap();
    let mut call = assistant.call("hang", ()).start();
    call.progress().await.unwrap();
    let began = Instant::now();
    let (_, result) = tokio::join!(assistant.close(), call);
    assert_eq!(began.elapsed(), Duration::from_secs(3));
    assert!(matches!(result, Err(CallError::Closed(_))), "{result:?}");
}

#[tokio::test(start_paused = true)]
async fn dropping_the_last_handle_leaves_at_once() {
    let state = Watched::default();
    let (room, _client, assistant) =
        pair(Tools::with_state(state.clone()).tool("watched", "", watched)).await;
    let call = assistant.call("watched", ()).start();
    state.until(1).await;
    let began = Instant::now();
    drop(assistant);
    assert!(matches!(call.await, Err(CallError::Closed(_))));
    state.until(0).await; // the goodbye stopped it, not the grace period
    assert_eq!(began.elapsed(), Duration::ZERO);
    drop(room);
}

#[tokio::test(start_paused = true)]
async fn two_calls_in_a_row_from_two_assistants_work_at_once() {
    let room = MemoryRoom::new();
    let _client = Client::builder().tool("double", "", double).join_over(room.client("phone")).await.unwrap();
    let began = Instant::now();
    for name in ["first", "second"] {
        let assistant = Assistant::builder().join_over(room.assistant(name)).await.unwrap();
        assert_eq!(assistant.call("double", json!({"n": 4})).await.unwrap().decode::<u64>().unwrap(), 8);
        assistant.close().await;
    }
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn assistant_as_a_source_offers_every_callable_tool() {
    let room = MemoryRoom::new();
    let _client =
        Client::builder().tool("double", "Twice", double).join_over(room.client("phone")).await.unwrap();
    let assistant =
        Assistant::builder().tool("half", "", double).join_over(room.assistant("a")).await.unwrap();
    while assistant.list().len() < 2 {
        assistant.changed().await;
    }
    let context = ToolContext::new("sink", Duration::from_secs(5));
    let answer =
        assistant.execute(&"double".parse().unwrap(), Value::from(json!({"n": 3})), context).await.unwrap();
    assert_eq!(answer.decode::<u64>().unwrap(), 6);
}

#[tokio::test]
async fn bad_tools_are_an_error_at_join() {
    let room = MemoryRoom::new();
    let twice = Client::builder().tool("double", "", double).tools(Tools::new().tool("double", "", double));
    let error = twice.join_over(room.client("a")).await.unwrap_err();
    assert!(matches!(error, JoinError::Register(RegisterError::Duplicate { .. })), "{error}");
    let name = Client::builder().tool("not a name", "", double);
    let error = name.join_over(room.client("a")).await.unwrap_err();
    assert!(matches!(error, JoinError::Register(RegisterError::Name(_))), "{error}");
    let destructive = Client::builder().tool("wipe", "", ToolOptions::destructive().on(double));
    let error = destructive.join_over(room.client("a")).await.unwrap_err();
    assert!(matches!(error, JoinError::Register(RegisterError::NoConsent { .. })), "{error}");
}

#[tokio::test(start_paused = true)]
async fn arguments_that_are_not_a_map_are_refused_before_sending() {
    let (_room, _client, assistant) =
        pair(Tools::with_state(Watched::default()).tool("double", "", double)).await;
    let error = assistant.call("double", 7).await.unwrap_err();
    assert!(matches!(error, CallError::Arguments(_)), "{error}");
    let error = assistant.call("double", json!({"n": "x"})).await.unwrap_err();
    assert!(
        matches!(&error, CallError::Tool(it) if it.code() == ErrorCode::INVALID_PARAMETERS && it.message().contains("/n")),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn frames_of_other_types_pass_in_both_directions() {
    let (_room, client, assistant) =
        pair(Tools::with_state(Watched::default()).tool("double", "", double)).await;
    let mut events = client.events();
    // A call first: frames of the app need no handshake, but after a call both have met.
    assistant.call("double", json!({"n": 1})).await.unwrap();
    let to = Destination::Peers(vec!["phone".into()]);
    assistant.send_frame(to, Kind::new(9), Meta::default(), Value::from(json!({"text": "hello"}))).unwrap();
    loop {
        if let Event::Frame { from, frame } = events.recv().await.unwrap() {
            assert_eq!((from.identity().as_str(), frame.kind().code()), ("assistant", 9));
            assert_eq!(frame.body().to_json(), json!({"text": "hello"}));
            break;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn slow_reader_of_events_learns_how_many_it_missed() {
    let (_room, client, assistant) =
        pair(Tools::with_state(Watched::default()).tool("double", "", double)).await;
    let mut events = client.events();
    for n in 0..400 {
        assistant.call("double", json!({"n": n})).await.unwrap();
        // The owner's rate limit is 50 calls a second.
        tokio::time::advance(Duration::from_millis(25)).await;
    }
    assert!(matches!(events.recv().await, Some(Event::Missed(n)) if n > 0));
}

#[tokio::test(start_paused = true)]
async fn identity_that_joins_twice_closes_the_older_participant() {
    let room = MemoryRoom::new();
    let old = Client::builder().tool("double", "", double).join_over(room.client("phone")).await.unwrap();
    let _new = Client::builder().tool("double", "", double).join_over(room.client("phone")).await.unwrap();
    assert_eq!(old.closed().await, CloseReason::DuplicateIdentity);
}

#[tokio::test(start_paused = true)]
async fn tool_reads_the_metadata_of_its_request() {
    async fn locale(context: ToolContext) -> Result<Option<String>, ToolError> {
        Ok(context.meta("locale").and_then(|locale| locale.as_str().map(str::to_owned)))
    }
    let room = MemoryRoom::new();
    let client = Client::builder().tool("client_locale", "", locale);
    let _client = client.join_over(room.client("phone")).await.unwrap();
    let assistant = Assistant::builder().tool("own_locale", "", locale);
    let assistant = assistant.join_over(room.assistant("assistant")).await.unwrap();
    for tool in ["client_locale", "own_locale"] {
        let with: Option<String> =
            assistant.call(tool, ()).meta("locale", "de").await.unwrap().decode().unwrap();
        assert_eq!(with.as_deref(), Some("de"), "{tool}");
        let without: Option<String> = assistant.call(tool, ()).await.unwrap().decode().unwrap();
        assert_eq!(without, None, "{tool}");
    }
}
