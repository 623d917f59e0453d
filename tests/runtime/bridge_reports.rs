//! Reports of an assistant: by itself, by a tool, and after it has left.

#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::time::Duration;

use serde_json::json;
use tokio::sync::mpsc;
use toolbridge::{
    Assistant, Client, ErrorCode, Event, Events, JoinError, ToolContext, ToolError, ToolOptions, Value,
    memory::MemoryRoom,
    tools::{RegisterError, ReportError, Reporter},
};

async fn one() -> Result<i32, ToolError> {
    Ok(1)
}

/// Returns the next event that `pick` returns something for.
async fn until<T>(events: &mut Events, mut pick: impl FnMut(Event) -> Option<T>) -> T {
    loop {
        if let Some(found) = pick(events.recv().await.unwrap()) {
            return found;
        }
    }
}

fn settled(event: Event) -> Option<(String, Result<(), ErrorCode>)> {
    match event {
        Event::Settled { tool, outcome, .. } => Some((tool, outcome)),
        _ => None,
    }
}

#[tokio::test(start_paused = true)]
async fn tool_of_an_assistant_reports_what_another_system_does() {
    let room = MemoryRoom::new();
    let phone = Client::builder().tool("t", "for a test", one).join_over(room.client("phone")).await.unwrap();
    let mut seen = phone.events();
    let ask_agent = async |context: ToolContext| -> Result<String, ToolError> {
        let reporter = context.reporter().ok_or("no reporter")?.clone();
        let step =
            reporter.report("edit_file", json!({"path": "/a"})).meta("bridge.acp.kind", "edit").start();
        let step = step.map_err(ToolError::internal)?;
        step.progress("1 of 2");
        step.finish(Ok(Value::from(json!({"lines": 2}))));
        reporter
            .show_view("plan", json!({"done": 1}), Some("one step is done"))
            .map_err(ToolError::internal)?;
        drop(reporter.report("run_tests", ()).start());
        Ok("done".to_owned())
    };
    let a = Assistant::builder()
        .tool("ask_agent", "Ask", ask_agent)
        .join_over(room.assistant("a"))
        .await
        .unwrap();
    a.ready("phone").await.unwrap();
    let answer: String = a.call("ask_agent", ()).await.unwrap().decode().unwrap();
    assert_eq!(answer, "done");
    assert_eq!(until(&mut seen, settled).await, ("edit_file".to_owned(), Ok(())));
    let view = until(&mut seen, |event| match event {
        Event::View { view, by } => Some((by.to_string(), view.view, view.content.to_json(), view.text)),
        _ => None,
    });
    let shown = ("a".to_owned(), "plan".to_owned(), json!({"done": 1}), Some("one step is done".to_owned()));
    assert_eq!(view.await, shown);
    let failed = ("run_tests".to_owned(), Err(ErrorCode::EXECUTION_ERROR));
    assert_eq!(until(&mut seen, settled).await, failed, "it was dropped without an end");
}

#[tokio::test(start_paused = true)]
async fn client_has_no_reporter() {
    let room = MemoryRoom::new();
    let has_one =
        async |context: ToolContext| -> Result<bool, ToolError> { Ok(context.reporter().is_some()) };
    let phone = Client::builder().tool("t", "for a test", has_one).join_over(room.client("phone"));
    let _phone = phone.await.unwrap();
    let a = Assistant::builder().join_over(room.assistant("a")).await.unwrap();
    assert!(!a.call("t", ()).await.unwrap().decode::<bool>().unwrap());
}

#[tokio::test(start_paused = true)]
async fn reporter_outlives_its_call_and_not_its_participant() {
    let room = MemoryRoom::new();
    let (send, mut kept) = mpsc::unbounded_channel::<Reporter>();
    let keep = move |context: ToolContext| {
        let sent = send.send(context.reporter().unwrap().clone());
        async move { sent.map_err(ToolError::internal) }
    };
    let a = Assistant::builder().tool("keep", "Keep", keep).join_over(room.assistant("a")).await.unwrap();
    a.call("keep", ()).await.unwrap();
    let reporter = kept.recv().await.unwrap();
    let open = reporter.report("later", ()).start().unwrap();
    assert_eq!(a.open_calls(), 1);
    a.close().await; // it does not wait for the reported call
    assert!(matches!(reporter.report("later", ()).start(), Err(ReportError::Closed(_))));
    assert!(matches!(reporter.show_view("v", (), None), Err(ReportError::Closed(_))));
    open.finish(Ok(Value::empty()));
    drop(a);
    assert!(matches!(reporter.report("later", ()).start(), Err(ReportError::Closed(_))));
}

#[tokio::test(start_paused = true)]
async fn patience_beyond_the_longest_call_is_an_error_at_join() {
    const HOUR: Duration = Duration::from_secs(3_600);
    let room = MemoryRoom::new();
    let slow = || ToolOptions::default().patience(HOUR).on(one);
    let refused = Client::builder().tool("t", "for a test", slow()).join_over(room.client("phone")).await;
    let Err(JoinError::Register(RegisterError::Patience { patience, limit, .. })) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!((patience, limit), (HOUR, Duration::from_secs(600)));
    let raised = Client::builder().tool("t", "for a test", slow());
    let raised = raised.configure(|config| config.times.longest_call = HOUR);
    let _phone = raised.join_over(room.client("phone")).await.unwrap();
    let a = Assistant::builder().configure(|config| config.times.longest_call = HOUR);
    let a = a.join_over(room.assistant("a")).await.unwrap();
    let call = a.call("t", ()).timeout(HOUR);
    assert_eq!(call.await.unwrap().decode::<i32>().unwrap(), 1);
}
