//! A model's turn and its interruption, with handles, driver and tools, on a paused clock.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{task::JoinSet, time::Instant};
use toolbridge::{
    Assistant, BargeIn, CallError, Client, Event, State, ToolError, ToolOptions, Tools, chat,
    memory::MemoryRoom,
    session::{CallState, StopError},
};

use crate::runs::Runs;

/// How many tools run, and how many have ended by themselves.
#[derive(Clone, Default)]
struct Seen {
    runs: Runs,
    ended: Arc<AtomicUsize>,
}

/// Takes 20 s.
async fn copy(State(seen): State<Seen>) -> Result<u32, ToolError> {
    let _run = seen.runs.begin();
    tokio::time::sleep(Duration::from_secs(20)).await;
    seen.ended.fetch_add(1, Ordering::SeqCst);
    Ok(3)
}

fn tools(seen: &Seen) -> Tools<Seen> {
    [BargeIn::Cancel, BargeIn::Finish, BargeIn::Report]
        .into_iter()
        .fold(Tools::with_state(seen.clone()), |tools, rule| {
            tools.tool(rule.as_str(), "Copies", ToolOptions::default().barge_in(rule).on(copy))
        })
}

fn asks(name: &str) -> Value {
    json!({"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}})
}

async fn collect(calls: &mut JoinSet<chat::Answer>, messages: &mut Vec<Value>) {
    while let Some(Ok(answer)) = calls.join_next().await {
        messages.push(answer.message);
    }
}

#[tokio::test(start_paused = true)]
async fn protocol_a21_interrupted_answer_leaves_no_call_open_and_late_results_wait_for_the_next_turn() {
    let (room, seen) = (MemoryRoom::new(), Seen::default());
    let _phone = Client::builder().tools(tools(&seen)).join_over(room.client("phone")).await.unwrap();
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
    let turn = assistant.turn();
    let (mut calls, mut messages) = (JoinSet::new(), Vec::new());
    for name in ["cancel", "finish", "report"] {
        calls.spawn(chat::answer(&turn, &asks(name)));
    }
    let began = Instant::now();
    tokio::select! {
        () = collect(&mut calls, &mut messages) => panic!("the calls take 20 s"),
        () = async {
            seen.runs.until(3).await;
            // The start message may be held for a moment, because a result would replace it.
            tokio::time::sleep(Duration::from_millis(10)).await;
        } => turn.barge_in(),
    }
    collect(&mut calls, &mut messages).await;
    assert!(began.elapsed() < Duration::from_secs(1), "the barge-in settles every call at once");
    let codes: std::collections::BTreeMap<_, _> = messages
        .iter()
        .map(|message| {
            let answer: Value = serde_json::from_str(message["content"].as_str().unwrap()).unwrap();
            (message["tool_call_id"].as_str().unwrap(), answer["error"]["code"].as_str().unwrap().to_owned())
        })
        .collect();
    assert_eq!(
        (&*codes["cancel"], &*codes["finish"], &*codes["report"]),
        ("cancelled", "cancelled", "detached")
    );
    assert!(matches!(turn.call("cancel", ()).await, Err(CallError::TurnOver)));
    seen.runs.until(2).await; // the one with `cancel` was stopped
    assert!(assistant.late_results().is_empty());

    let mut events = assistant.events();
    while !matches!(events.recv().await, Some(Event::LateResult { .. })) {}
    seen.runs.until(0).await;
    assert_eq!(seen.ended.load(Ordering::SeqCst), 2);
    let notes: Vec<_> = assistant.late_results().iter().map(chat::note).collect();
    assert_eq!(notes.len(), 1);
    let said = notes[0]["content"].as_str().unwrap();
    assert_eq!(notes[0]["role"], "user");
    assert!(said.ends_with(r#"{"tool":"report","from":"phone","result":3}"#), "{said}");
    assert!(assistant.late_results().is_empty(), "late results are returned once");
    assert_eq!(assistant.open_calls(), 0);
    let records = assistant.calls();
    assert_eq!(records.len(), 3);
    for record in records {
        assert_eq!((record.state(), record.turn), (CallState::Settled, Some(turn.key())));
        assert_eq!(record.late.is_some(), record.tool != "cancel");
        assert!(record.delivered.is_some() && record.started.is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_turn_interrupts_nothing() {
    let (room, seen) = (MemoryRoom::new(), Seen::default());
    let phone = Client::builder().tools(tools(&seen)).join_over(room.client("phone")).await.unwrap();
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
    let unsent = assistant.turn().call("cancel", ()); // it holds its turn
    let call = unsent.start();
    assert_eq!(call.await.unwrap().decode::<u32>().unwrap(), 3);
    let mut last = phone.calls();
    let record = last.pop().unwrap();
    assert_eq!((record.outcome, record.caller.as_str(), record.turn), (Some(Ok(())), "assistant", None));
}

#[tokio::test(start_paused = true)]
async fn repeated_equal_calls_end_with_an_error() {
    async fn now() -> Result<u32, ToolError> {
        Ok(1)
    }
    let room = MemoryRoom::new();
    let _phone = Client::builder().tool("now", "", now).join_over(room.client("phone")).await.unwrap();
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
    let turn = assistant.turn();
    let mut last = json!(null);
    for _ in 0..6 {
        last = chat::answer(&turn, &asks("now")).await.message;
    }
    let answer: Value = serde_json::from_str(last["content"].as_str().unwrap()).unwrap();
    assert_eq!(answer["error"]["code"], "too_many_equal", "{answer}");
    assert_eq!(answer.get("from"), None, "the call was sent to no client");
}

#[tokio::test(start_paused = true)]
async fn client_stops_calls_that_it_may_stop() {
    let (room, seen) = (MemoryRoom::new(), Seen::default());
    let phone = Client::builder().tools(tools(&seen)).join_over(room.client("phone")).await.unwrap();
    assert!(matches!(phone.stop_all(), Err(StopError::NoAssistant)));
    let assistant = Assistant::builder().allow_stop(|_| true);
    let assistant = assistant.join_over(room.assistant("assistant")).await.unwrap();
    let calls = ["cancel", "cancel", "report"].map(|tool| assistant.call(tool, ()).start());
    seen.runs.until(3).await;
    let [first, second, third] = calls;
    phone.stop(second.id().unwrap()).unwrap();
    assert!(matches!(second.await, Err(CallError::Cancelled)));
    phone.stop_all().unwrap();
    assert!(matches!(first.await, Err(CallError::Cancelled)));
    assert_eq!(third.await.unwrap().decode::<u32>().unwrap(), 3);
    phone.close().await;
    assert!(matches!(phone.stop_all(), Err(StopError::Closed(_))));
}
