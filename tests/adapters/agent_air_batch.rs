//! Batches of calls: rows G5 and G7 to G10 of agent-air's checklist.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value as Json, json};
use tokio::{sync::Notify, time::Instant};
use toolbridge::{
    Assistant, Client, State, ToolContext, ToolError, Tools, Value,
    adapter::agent_air::{Batch, BatchBuilder, BatchCall, BatchError, BatchResult, MAX_CALLS, Status},
    memory::MemoryRoom,
    prompt::{PermissionPrompt, Prompt, PromptAnswer, PromptRequest},
};

use crate::runs::Runs;

/// What the tools of a client have seen.
#[derive(Clone, Default)]
struct Seen {
    metas: Arc<Mutex<Vec<[Option<String>; 3]>>>,
    runs: Runs,
}

#[derive(Deserialize, JsonSchema)]
struct Wait {
    ms: u64,
}

async fn wait(context: ToolContext, State(seen): State<Seen>, wait: Wait) -> Result<u64, ToolError> {
    let meta = |key: &str| context.meta(key).and_then(|value| value.as_str().map(str::to_owned));
    seen.metas.lock().unwrap().push(["id", "index", "size"].map(|key| meta(&format!("bridge.batch.{key}"))));
    tokio::time::sleep(Duration::from_millis(wait.ms)).await;
    Ok(wait.ms)
}

async fn hang(State(seen): State<Seen>) -> Result<(), ToolError> {
    let _run = seen.runs.begin();
    std::future::pending().await
}

async fn fail() -> Result<(), ToolError> {
    Err(ToolError::new("too_dark", "there is no light"))
}

async fn crash() -> Result<(), ToolError> {
    panic!("a tool crashed")
}

struct Pair {
    seen: Seen,
    assistant: Assistant,
    _client: Client,
}

impl Pair {
    async fn new() -> Self {
        Self::with_person(|_| Err("there is no person".into())).await
    }

    /// A client whose person answers permissions.
    async fn with_person(
        answer: impl Fn(PermissionPrompt) -> Result<PromptAnswer, ToolError> + Send + Sync + 'static,
    ) -> Self {
        let (room, seen) = (MemoryRoom::new(), Seen::default());
        let tools = Tools::with_state(seen.clone()).tool("wait", "", wait).tool("hang", "", hang);
        let tools = tools.tool("fail", "", fail).tool("crash", "", crash);
        let client = Client::builder().tools(tools).prompt(move |ask: PromptRequest| {
            let answer = match ask.prompt() {
                Prompt::Permission(ask) => answer(ask.clone()),
                other => panic!("{other:?}"),
            };
            std::future::ready(answer)
        });
        let client = client.join_over(room.client("phone")).await.unwrap();
        let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
        Self { seen, assistant, _client: client }
    }

    /// A client whose person never answers.
    async fn with_slow_person(asked: Arc<Notify>) -> Self {
        let (room, seen) = (MemoryRoom::new(), Seen::default());
        let tools = Tools::with_state(seen.clone()).tool("wait", "", wait);
        let client = Client::builder().tools(tools).prompt(move |_: PromptRequest| {
            asked.notify_one();
            std::future::pending()
        });
        let client = client.join_over(room.client("phone")).await.unwrap();
        let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
        Self { seen, assistant, _client: client }
    }

    fn start(&self, batch: BatchBuilder) -> Batch {
        batch.start(&self.assistant).unwrap()
    }
}

/// Calls that end after these times.
fn waits(times: &[u64]) -> BatchBuilder {
    let calls = times.iter().enumerate();
    calls.fold(Batch::builder(), |batch, (n, ms)| batch.call(format!("c{n}"), "wait", json!({"ms": ms})))
}

fn ids(batch: &BatchResult) -> Vec<&str> {
    batch.results().iter().map(|it| it.call_id()).collect()
}

fn codes(batch: &BatchResult) -> Vec<Option<String>> {
    batch.results().iter().map(|it| it.error().map(|error| error.code().as_str().to_owned())).collect()
}

#[tokio::test(start_paused = true)]
async fn agent_air_g5_results_come_early_and_the_batch_in_the_order_of_the_requests() {
    let pair = Pair::new().await;
    let began = Instant::now();
    let mut batch = pair.start(waits(&[300, 100, 200]));
    let (mut early, mut outputs) = (Vec::new(), Vec::new());
    while let Some(result) = batch.next().await {
        early.push((result.index(), result.call_id().to_owned()));
        outputs.push((began.elapsed().as_millis() / 100, result.document().output().to_owned()));
    }
    assert_eq!(early, [(1, "c1".to_owned()), (2, "c2".to_owned()), (0, "c0".to_owned())]);
    // They ran at once, and none waited for another.
    assert_eq!(outputs, [(1, "100".to_owned()), (2, "200".to_owned()), (3, "300".to_owned())]);
    let id = batch.id().to_owned();
    let batch = batch.finish().await;
    assert_eq!((batch.id(), ids(&batch)), (&*id, vec!["c0", "c1", "c2"]));
    let document: Json = serde_json::from_str(&batch.document().json()).unwrap();
    assert_eq!(document["results"][2], json!({"call_id": "c2", "output": "200", "is_error": false}));
    // The requests name their batch.
    let mut metas = pair.seen.metas.lock().unwrap().clone();
    metas.sort();
    let expected: Vec<_> = (0..3).map(|n| [id.clone(), n.to_string(), "3".to_owned()].map(Some)).collect();
    assert_eq!(metas, expected);
}

#[tokio::test(start_paused = true)]
async fn agent_air_g7_others_complete_when_one_fails() {
    let pair = Pair::new().await;
    let batch = Batch::builder().call("a", "fail", ()).call("b", "wait", json!({"ms": 5})).call(
        "c",
        "wait",
        json!({"ms": "?"}),
    );
    let batch = pair.start(batch).finish().await;
    assert_eq!(ids(&batch), ["a", "b", "c"]);
    assert_eq!(codes(&batch), [Some("too_dark".into()), None, Some("invalid_parameters".into())]);
    let statuses: Vec<_> = batch.results().iter().map(|it| it.status()).collect();
    assert_eq!(statuses, [Status::Error, Status::Success, Status::Error]);
    let failed = batch.results()[0].document();
    assert_eq!((failed.output(), failed.is_error()), ("there is no light", true));
}

#[tokio::test(start_paused = true)]
async fn agent_air_g8_cancelled_batch_ends_its_unfinished_calls_and_keeps_the_others() {
    let pair = Pair::new().await;
    let batch =
        Batch::builder().call("a", "hang", ()).call("b", "wait", json!({"ms": 5})).call("c", "hang", ());
    let mut batch = pair.start(batch);
    assert_eq!(batch.next().await.unwrap().call_id(), "b");
    pair.seen.runs.until(2).await;
    batch.cancel();
    let batch = batch.finish().await;
    let cancelled = Some("cancelled".to_owned());
    assert_eq!(codes(&batch), [cancelled.clone(), None, cancelled]);
    let statuses: Vec<_> = batch.results().iter().map(|it| it.status()).collect();
    assert_eq!(statuses, [Status::Timeout, Status::Success, Status::Timeout]);
    // Their tools stop, as they do when a batch is dropped.
    pair.seen.runs.until(0).await;
    let mut batch = pair.start(Batch::builder().call("a", "hang", ()).call("b", "hang", ()));
    let polled =
        tokio::select! { result = batch.next() => Some(result), () = pair.seen.runs.until(2) => None };
    assert!(polled.is_none());
    drop(batch);
    pair.seen.runs.until(0).await;
}

#[tokio::test(start_paused = true)]
async fn agent_air_g8_call_that_takes_too_long_is_a_timeout() {
    let pair = Pair::new().await;
    let call = BatchCall::new("a", "hang", ()).to("phone").timeout(Duration::from_millis(50));
    let batch = pair.start(Batch::builder().with_call(call)).finish().await;
    assert_eq!((codes(&batch), batch.results()[0].status()), (vec![Some("timeout".into())], Status::Timeout));
}

#[tokio::test(start_paused = true)]
async fn agent_air_g8_barge_in_ends_the_batch_of_its_turn() {
    let pair = Pair::new().await;
    let turn = pair.assistant.turn();
    let batch = Batch::builder().call("a", "hang", ()).call("b", "hang", ());
    let batch = batch.start(&turn).unwrap();
    pair.seen.runs.until(2).await;
    turn.barge_in();
    let batch = batch.finish().await;
    assert_eq!(codes(&batch), vec![Some("cancelled".to_owned()); 2]);
}

#[tokio::test(start_paused = true)]
async fn agent_air_g8_barge_in_ends_a_batch_that_waits_for_a_permission() {
    let asked = Arc::new(Notify::new());
    let pair = Pair::with_slow_person(Arc::clone(&asked)).await;
    for ask_person in [true, false] {
        let turn = pair.assistant.turn();
        let batch = waits(&[1, 1]);
        let mut batch = match ask_person {
            true => batch.ask_person(None),
            false => batch.ask_function({
                let asked = Arc::clone(&asked);
                move |_| async move {
                    asked.notify_one();
                    std::future::pending().await
                }
            }),
        }
        .start(&turn)
        .unwrap();
        tokio::select! {
            result = batch.next() => panic!("{result:?}"),
            () = asked.notified() => {}
        }
        let begun = Instant::now();
        turn.barge_in();
        let batch = batch.finish().await;
        assert_eq!(codes(&batch), vec![Some("cancelled".to_owned()); 2], "{ask_person}");
        assert!(batch.results().iter().all(|result| result.status() == Status::Timeout));
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        // A turn that is over asks nobody.
        let late = waits(&[1]).ask_function(|_| async { panic!("it was asked") });
        assert_eq!(codes(&late.start(&turn).unwrap().finish().await), [Some("cancelled".to_owned())]);
    }
    assert_eq!(pair.seen.metas.lock().unwrap().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn agent_air_g9_whatever_is_wrong_with_a_call_its_batch_ends() {
    let pair = Pair::new().await;
    let batch = Batch::builder()
        .call("same", "crash", ())
        .call("same", "wait", json!({"ms": 1}))
        .call("same", "no_such_tool", ())
        .call("same", "not a name!", ())
        .call("same", "bridge.permission", json!({}))
        .call("same", "wait", [5])
        .with_call(BatchCall::new("same", "wait", json!({"ms": 2})).to("nobody"))
        .with_call(BatchCall::new("same", "wait", json!({"ms": 3})).timeout(Duration::ZERO));
    let mut batch = pair.start(batch);
    let mut early = 0;
    while batch.next().await.is_some() {
        early += 1;
    }
    assert!(batch.next().await.is_none(), "the end stays the end");
    let batch = batch.finish().await;
    assert_eq!((early, ids(&batch)), (8, vec!["same"; 8]));
    let expected = [
        Some("execution_error"),
        None,
        Some("unknown_tool"),
        Some("unknown_tool"),
        Some("unknown_tool"),
        Some("invalid_parameters"),
        Some("unknown_tool"),
        Some("invalid_parameters"),
    ];
    assert_eq!(codes(&batch), expected.map(|code| code.map(str::to_owned)));
    assert_eq!(batch.results()[1].document().output(), "1");
    let crashed = batch.results()[0].document();
    assert!(!crashed.output().contains("a tool crashed"), "{}", crashed.output());

    let empty = pair.start(Batch::builder().ask_person(None)).finish().await;
    assert_eq!(empty.document().json(), r#"{"results":[]}"#);
    // The room is gone, too.
    let batch = pair.start(waits(&[10_000]));
    pair.assistant.close().await;
    assert_eq!(batch.finish().await.results().len(), 1);
    let closed = waits(&[1]).start(&pair.assistant).unwrap().finish().await;
    assert_eq!(codes(&closed), [Some("closed".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn agent_air_g9_batch_that_cannot_start_is_refused_before_anything_is_sent() {
    let pair = Pair::new().await;
    let many = waits(&vec![1; MAX_CALLS + 1]).start(&pair.assistant).unwrap_err();
    assert_eq!(many, BatchError::TooMany { count: MAX_CALLS + 1, limit: MAX_CALLS });
    assert_eq!(pair.start(waits(&vec![1; MAX_CALLS])).finish().await.results().len(), MAX_CALLS);
    for id in ["", "a\nb", &"x".repeat(129)] {
        let batch = waits(&[1]).call(id, "wait", json!({"ms": 1})).start(&pair.assistant);
        assert_eq!(batch.unwrap_err(), BatchError::CallId { index: 1 });
    }
    assert_eq!(pair.seen.metas.lock().unwrap().len(), MAX_CALLS);
}

#[tokio::test(start_paused = true)]
async fn agent_air_g10_person_allows_or_denies_all_calls_with_one_answer() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let answers = Arc::clone(&asked);
    let pair = Pair::with_person(move |ask| {
        let mut asked = answers.lock().unwrap();
        asked.push(ask);
        match asked.len() {
            1 => Ok(PromptAnswer::selected("allow")),
            2 => Ok(PromptAnswer::selected("reject").text("not in the library")),
            3 => Ok(PromptAnswer::cancelled()),
            _ => Err("the person left".into()),
        }
    })
    .await;
    let batch = || waits(&[3, 1]).ask_person(Some("phone".into()));
    let allowed = pair.start(batch()).finish().await;
    assert_eq!((codes(&allowed), pair.seen.metas.lock().unwrap().len()), (vec![None, None], 2));
    for text in [
        "permission denied by the person, who said: not in the library; nothing ran",
        "permission denied by the person; nothing ran",
        "nobody could be asked for permission: the person left; nothing ran",
    ] {
        let denied = pair.start(batch()).finish().await;
        assert_eq!(codes(&denied), vec![Some("permission_denied".to_owned()); 2]);
        for result in denied.results() {
            // The model reads it.
            assert_eq!(result.result().for_model(1000).text, text);
            assert!(result.document().is_error() && !result.error().unwrap().may_have_run());
        }
    }
    assert_eq!(pair.seen.metas.lock().unwrap().len(), 2, "a denied batch runs nothing");
    let asked = asked.lock().unwrap();
    let calls: Vec<_> = std::iter::once(&asked[0].tool_call).chain(&asked[0].others).collect();
    assert_eq!(asked.len(), 4);
    assert_eq!(
        (calls.len(), calls[1].tool_call_id.as_deref(), calls[1].name.as_deref()),
        (2, Some("c1"), Some("wait"))
    );
    assert_eq!(calls[1].raw_input, Some(Value::from(json!({"ms": 1}))));
}

#[tokio::test(start_paused = true)]
async fn agent_air_g10_person_is_asked_only_about_calls_that_can_be_made() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let answers = Arc::clone(&asked);
    let pair = Pair::with_person(move |ask| {
        answers.lock().unwrap().push(ask);
        Ok(PromptAnswer::selected("allow"))
    })
    .await;
    let long = "x".repeat(1_025);
    let batch = Batch::builder()
        .call("a", "", ())
        .call("b", "wait", json!({"ms": 1}))
        .call("c", &*long, ())
        .call("d", "bridge.permission", ())
        .call("e", "wait", [5])
        .call("f", "wait", (0..63).fold(json!({}), |inner, _| json!({ "a": inner })));
    let batch = pair.start(batch.ask_person(None)).finish().await;
    let (unknown, invalid) = (Some("unknown_tool"), Some("invalid_parameters"));
    let expected = [unknown, None, unknown, unknown, invalid, invalid];
    assert_eq!(codes(&batch), expected.map(|code| code.map(str::to_owned)));
    let ask = asked.lock().unwrap().remove(0);
    assert_eq!((ask.text.as_deref(), ask.others.len()), (Some("May this call be made?"), 0));
    assert_eq!(ask.tool_call.tool_call_id.as_deref(), Some("b"));

    // If none can be made, nobody is asked.
    let batch = pair.start(Batch::builder().call("a", "", ()).ask_person(None)).finish().await;
    assert_eq!(codes(&batch), [Some("unknown_tool".to_owned())]);
    assert!(asked.lock().unwrap().is_empty());

    // A question that is too large for a message is not replaced by an empty one.
    let large = json!({"ms": 1, "text": "x".repeat(8 << 20)});
    let batch =
        Batch::builder().call("a", "wait", &large).call("b", "wait", &large).call("c", "wait", &large);
    let batch = pair.start(batch.ask_person(None)).finish().await;
    assert_eq!(codes(&batch), vec![Some("permission_denied".to_owned()); 3]);
    let text = &batch.results()[0].result().for_model(1000).text;
    assert!(text.starts_with("nobody could be asked for permission: ") && text.contains("bytes"), "{text}");
    assert!(asked.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn agent_air_g10_function_allows_or_denies_all_calls() {
    let pair = Pair::new().await;
    let allowed = pair.start(waits(&[1, 2]).ask_function(|ask| async move {
        assert_eq!(ask.text.as_deref(), Some("May these 2 calls be made?"));
        Ok(())
    }));
    assert_eq!(codes(&allowed.finish().await), [None, None]);

    let denied = |batch: BatchResult| {
        assert_eq!(codes(&batch), [Some("permission_denied".to_owned())]);
        batch.results()[0].document().output().to_owned()
    };
    let text = |text: &'static str| waits(&[1]).ask_function(move |_| async move { Err(text.to_owned()) });
    assert_eq!(denied(pair.start(text("it is night")).finish().await), "it is night; nothing ran");
    let panics = waits(&[1]).ask_function(|_| async { panic!("a function of the author's") });
    let failed = "the decision about permission failed; nothing ran";
    assert_eq!(denied(pair.start(panics).finish().await), failed);
    let panics =
        waits(&[1]).ask_function(|_| -> std::future::Ready<_> { panic!("before it returns a future") });
    assert_eq!(denied(pair.start(panics).finish().await), failed);
    let waits_for_ever = waits(&[1]).ask_function(|_| std::future::pending());
    let limited = waits_for_ever.permission_limit(Duration::from_secs(1));
    let text = "nobody decided about permission within 1000 ms; nothing ran";
    assert_eq!(denied(pair.start(limited).finish().await), text);

    // A batch can be cancelled while somebody decides.
    let mut batch = pair.start(waits(&[1, 1]).ask_function(|_| std::future::pending()));
    batch.cancel();
    assert_eq!(codes(&batch.finish().await), vec![Some("cancelled".to_owned()); 2]);
}
