//! Tests the open calls of a toolset on virtual time.

use serde_json::json;

use super::{
    state::{MAX_CALLS, MAX_EARLY, MAX_EARLY_BYTES},
    *,
};
use crate::{Assistant, ToolContext, memory::MemoryRoom};

const LIMIT: Duration = Duration::from_secs(10);

struct World {
    inbox: Arc<Inbox>,
    cancels: mpsc::Receiver<String>,
}

impl World {
    fn new() -> Self {
        let (sender, cancels) = mpsc::channel(8);
        Self { inbox: Arc::new(Inbox::new("g".into(), sender).unwrap()), cancels }
    }

    fn open(&self, id: &str) -> OpenCall {
        self.open_in(&ToolContext::new("caller", LIMIT), id)
    }

    fn open_in(&self, context: &ToolContext, id: &str) -> OpenCall {
        let call = NewCall {
            id: id.into(),
            call_id: None,
            tool: "t".parse().unwrap(),
            is_structured: false,
            reports: Reports::of(context, &"set".into()),
            limit: LIMIT,
        };
        self.inbox.open(call).unwrap()
    }

    fn say(&self, token: &str, kind: &str, id: &str) -> Result<(), Refusal> {
        self.say_all(
            token,
            &json!({"type": kind, "group_id": "g", "id": id, "tool_call_id": id, "text": "t"}),
        )
    }

    fn say_all(&self, token: &str, message: &Json) -> Result<(), Refusal> {
        let (digest, _) = self.inbox.admit(token)?;
        self.inbox.deliver(&digest, &message.to_string(), |_| Ok(()))
    }
}

#[tokio::test(start_paused = true)]
async fn token_ends_with_the_time_of_its_call_and_a_grace_period_of_the_same_length() {
    let world = World::new();
    let mut call = world.open("c");
    let token = call.token.clone();
    assert_eq!(world.say(&token, "tool_result", "c"), Ok(()));
    assert!(call.result.try_recv().is_ok());
    drop(call);
    tokio::time::advance(LIMIT * 2 - Duration::from_millis(1)).await;
    assert_eq!(world.say(&token, "tool_result", "c"), Ok(()), "a duplicate");
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!(world.say(&token, "tool_result", "c"), Err(Refusal::Over));
    assert_eq!(world.say("another", "tool_result", "c"), Err(Refusal::Unknown));
}

#[tokio::test(start_paused = true)]
async fn result_that_comes_late_counts_once_and_that_of_a_cancelled_call_never() {
    let world = World::new();
    let (late, cancelled) = (world.open("late"), world.open("cancelled"));
    assert!(late.end(End::Late));
    assert!(cancelled.end(End::Over) && !cancelled.end(End::Over));
    assert_eq!(world.say(&late.token, "tool_result", "late"), Ok(()));
    assert_eq!(world.say(&late.token, "tool_result", "late"), Ok(()));
    assert_eq!(world.say(&cancelled.token, "tool_result", "cancelled"), Err(Refusal::Over));
    let counts = world.inbox.counts();
    assert_eq!((counts.late, counts.duplicates, counts.over, counts.accepted), (1, 1, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn result_before_a_cancellation_counts_and_is_not_cancelled() {
    let mut world = World::new();
    let mut call = world.open("c");
    assert_eq!(world.say(&call.token, "tool_result", "c"), Ok(()));
    assert!(!call.end(End::Over), "its tool need not be told");
    assert_eq!(world.say(&call.token, "tool_result", "c"), Ok(()), "a duplicate");
    assert!(call.result.try_recv().is_ok() && world.cancels.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn final_event_of_a_long_subscription_that_is_sent_again_has_no_effect() {
    let assistant = Assistant::builder().join_over(MemoryRoom::new().assistant("a")).await.unwrap();
    let world = World::new();
    let context = ToolContext::new("caller", LIMIT).with_reporter(assistant.reporter());
    let call = world.open_in(&context, "c");
    let result = json!({
        "type": "tool_result", "group_id": "g", "id": "c", "tool_call_id": "c", "text": "t", "subscription": true,
    });
    let event = json!({
        "type": "subscription_event", "group_id": "g", "tool_call_id": "c", "text": "rings", "final": true,
    });
    assert_eq!(world.say_all(&call.token, &result), Ok(()));
    tokio::time::advance(100 * LIMIT).await;
    assert!(world.inbox.has_subscriptions());
    assert_eq!(world.say_all(&call.token, &event), Ok(()));
    assert_eq!(world.say_all(&call.token, &event), Ok(()), "its answer may have been lost");
    tokio::time::advance(AFTER_SUBSCRIPTION).await;
    assert_eq!(world.say_all(&call.token, &event), Err(Refusal::Over));
    let counts = world.inbox.counts();
    assert_eq!((counts.accepted, counts.dropped, counts.over), (2, 1, 1));
    assert!(!world.inbox.has_subscriptions());
}

#[tokio::test(start_paused = true)]
async fn call_with_the_id_of_another_gets_an_id_of_its_own() {
    let mut world = World::new();
    let (first, second) = (world.open("c"), world.open("c"));
    assert_eq!((&*first.id, second.id.len()), ("c", 22));
    assert_eq!(world.say(&second.token, "tool_result", "c"), Err(Refusal::Unknown));
    assert_eq!(world.say(&second.token, "tool_result", &second.id), Ok(()));
    drop(first);
    assert_eq!(world.open("c").id, "c", "the id is free again");
    assert!(world.cancels.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn messages_of_a_call_and_unknown_tokens_are_limited_apart() {
    let world = World::new();
    let (flooding, other) = (world.open("flooding"), world.open("other"));
    let refused = |token: &str, times: usize| {
        (0..times).filter(|_| matches!(world.inbox.admit(token), Err(Refusal::TooMany))).count()
    };
    assert_eq!(refused(&flooding.token, 10_000), 9_600);
    assert_eq!(refused("unknown", 10_000), 9_600);
    assert_eq!(refused(&other.token, 100), 0);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(refused(&flooding.token, 1_000), 800);
    assert_eq!(world.inbox.counts().too_many, 9_600 * 2 + 800);
}

#[tokio::test(start_paused = true)]
async fn number_of_known_calls_and_of_questions_is_limited() {
    let world = World::new();
    let first = world.open("open");
    let mut settled = Vec::new();
    for n in 0..MAX_CALLS + 10 {
        tokio::time::advance(Duration::from_millis(1)).await;
        let call = world.open(&n.to_string());
        world.say(&call.token, "tool_result", &n.to_string()).unwrap();
        settled.push(call.token.clone());
    }
    assert_eq!(world.inbox.state().entries.len(), MAX_CALLS);
    assert_eq!(world.say(&settled[0], "tool_result", "0"), Err(Refusal::Over));
    assert!(world.inbox.admit(&first.token).is_ok(), "an open call is never forgotten");
    let (digest, _) = world.inbox.admit(&first.token).unwrap();
    let question = json!({"type": "oauth", "group_id": "g", "id": "open", "auth_url": "https://x.example"});
    let ask = || world.inbox.deliver(&digest, &question.to_string(), |_| Ok(()));
    let mut first = first;
    for _ in 0..MAX_QUESTIONS {
        assert_eq!(ask(), Ok(()));
        assert!(first.questions.try_recv().is_ok());
    }
    assert_eq!(ask(), Err(Refusal::TooMany), "also if none waits");
    assert_eq!(world.say(&first.token, "tool_result", "open"), Ok(()), "a result has a place of its own");
}

/// A context at an assistant, which it reports to.
async fn reporting() -> (Assistant, ToolContext) {
    let assistant = Assistant::builder().join_over(MemoryRoom::new().assistant("a")).await.unwrap();
    let context = ToolContext::new("caller", LIMIT).with_reporter(assistant.reporter());
    (assistant, context)
}

#[tokio::test(start_paused = true)]
async fn late_result_and_last_event_are_taken_later_if_the_room_takes_no_report_now() {
    let (assistant, context) = reporting().await;
    let world = World::new();
    let (late, watched) = (world.open_in(&context, "late"), world.open_in(&context, "watched"));
    assert!(late.end(End::Late));
    let started =
        json!({"type": "tool_result", "group_id": "g", "id": "watched", "text": "t", "subscription": true});
    assert_eq!(world.say_all(&watched.token, &started), Ok(()));
    let event = |text: &str, is_final: bool| json!({"type": "subscription_event", "group_id": "g", "tool_call_id": "watched", "text": text, "final": is_final});
    // Another adapter reports as much as a second allows.
    while let Ok(reported) = assistant.report("t", ()).start() {
        reported.finish(Ok(crate::Value::empty()));
    }
    assert_eq!(world.say(&late.token, "tool_result", "late"), Err(Refusal::NotNow));
    assert_eq!(world.say_all(&watched.token, &event("opened", false)), Ok(()));
    assert_eq!(world.say_all(&watched.token, &event("closed", true)), Err(Refusal::NotNow));
    assert!(world.inbox.has_subscriptions());
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(world.say(&late.token, "tool_result", "late"), Ok(()));
    assert_eq!(world.say_all(&watched.token, &event("closed", true)), Ok(()));
    assert!(!world.inbox.has_subscriptions());
    let counts = world.inbox.counts();
    assert_eq!((counts.late, counts.not_now, counts.dropped, counts.duplicates), (1, 2, 1, 0));
    assert_eq!(assistant.late_results().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn late_result_says_that_its_subscription_was_cancelled() {
    let (assistant, context) = reporting().await;
    let mut world = World::new();
    let call = world.open_in(&context, "c");
    assert!(call.end(End::Late));
    let started =
        json!({"type": "tool_result", "group_id": "g", "id": "c", "text": "Watching.", "subscription": true});
    assert_eq!(world.say_all(&call.token, &started), Ok(()));
    assert_eq!(world.cancels.try_recv().as_deref(), Ok("c"));
    let [late] = &assistant.late_results()[..] else { panic!("no result") };
    let text =
        crate::ToolResult::of(late.result.as_ref().as_ref().unwrap()).for_model(1_000).text.into_owned();
    assert!(text.starts_with("Watching.") && text.contains("was cancelled at once"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn last_event_before_the_result_ends_the_subscription_whatever_came_before_it() {
    let (assistant, context) = reporting().await;
    let world = World::new();
    // The sizes of the events' texts, and how many of the events are kept.
    let many = [vec![1; MAX_EARLY], vec![1]].concat();
    let cases = [(many, MAX_EARLY), (vec![200 << 10, 100 << 10], 1), (vec![1, 2 * MAX_EARLY_BYTES], 1)];
    for (n, (sizes, kept)) in cases.into_iter().enumerate() {
        let (id, sent) = (n.to_string(), sizes.len());
        let mut call = world.open_in(&context, &id);
        let before = world.inbox.counts();
        for (at, size) in sizes.into_iter().enumerate() {
            let event = json!({
                "type": "subscription_event", "group_id": "g", "tool_call_id": id, "text": "x".repeat(size),
                "final": at == sent - 1,
            });
            assert_eq!(world.say_all(&call.token, &event), Ok(()));
        }
        let started =
            json!({"type": "tool_result", "group_id": "g", "id": id, "text": "t", "subscription": true});
        assert_eq!(world.say_all(&call.token, &started), Ok(()));
        assert_eq!(call.result.try_recv().unwrap().unwrap().subscription, Subscribed::Ended, "case {n}");
        assert!(!world.inbox.has_subscriptions());
        let counts = world.inbox.counts();
        let (early, dropped) = (counts.early - before.early, counts.dropped - before.dropped);
        assert_eq!((early, dropped), (sent as u64, (sent - kept) as u64), "case {n}");
        assert_eq!(counts.accepted - before.accepted, kept as u64 + 1, "the result counts, too");
        let last = assistant.late_results().pop().unwrap();
        assert_eq!(last.event.unwrap().to_json()["final"], true);
        tokio::time::advance(Duration::from_secs(2)).await; // the room takes 50 reports a second
    }
}
