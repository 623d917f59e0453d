//! The life of a tool source: its health while the participant is in the room, and its end.

#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};
use toolbridge::{
    Assistant, CallError, Client, Event, Outcome, Tool, ToolContext, ToolError, ToolName, ToolOptions,
    ToolSource, Tools, Value,
    memory::MemoryRoom,
    prompt::{ChoicePrompt, PromptAnswer, PromptRequest},
    session::SelectionPolicy,
    tools::{SOURCE_CLOSE, SourceHealth},
};

/// A source whose process can be stopped.
#[derive(Default)]
struct Process {
    health: Mutex<SourceHealth>,
    changed: Notify,
    closed: AtomicUsize,
    hangs: bool,
}

impl ToolSource for Process {
    fn list(&self) -> Vec<Tool> {
        vec![Tool::new("t".parse().unwrap(), "")]
    }

    async fn execute(&self, _: &ToolName, arguments: Value, _: ToolContext) -> Outcome {
        Ok(arguments)
    }

    async fn changed(&self) {
        self.changed.notified().await;
    }

    fn name(&self) -> Option<String> {
        Some("server".to_owned())
    }

    fn health(&self) -> SourceHealth {
        self.health.lock().unwrap().clone()
    }

    async fn close(&self) {
        self.closed.fetch_add(1, Ordering::SeqCst);
        if self.hangs {
            std::future::pending().await
        }
    }
}

#[tokio::test(start_paused = true)]
async fn health_of_a_named_source_is_reported() {
    let (room, source) = (MemoryRoom::new(), Arc::new(Process::default()));
    let unnamed = Tools::new().tool("u", "", async || Ok::<_, ToolError>(1));
    let client = Client::builder().tools(Arc::clone(&source)).tools(unnamed);
    let client = client.join_over(room.client("phone")).await.unwrap();
    let mut events = client.events();
    let up = client.sources();
    assert_eq!((up.len(), &*up[0].name, up[0].health.clone()), (1, "server", SourceHealth::Up));
    let down =
        SourceHealth::Down { reason: "it exited with status 1".into(), since: Instant::now().into_std() };
    *source.health.lock().unwrap() = down.clone();
    source.changed.notify_one();
    loop {
        if let Event::Source(status) = events.recv().await.unwrap() {
            break assert_eq!(status.health, down);
        }
    }
    assert_eq!(client.sources()[0].health.to_string(), "down: it exited with status 1");
}

#[tokio::test(start_paused = true)]
async fn sources_are_closed_once_after_the_participant_has_left() {
    let room = MemoryRoom::new();
    let source = Arc::new(Process::default());
    let slow = Arc::new(Process { hangs: true, ..Process::default() });
    let client = Client::builder().tools(Arc::clone(&source)).tools(Arc::clone(&slow).prefixed("slow"));
    let client = client.join_over(room.client("phone")).await.unwrap();
    assert_eq!(source.closed.load(Ordering::SeqCst), 0);
    let began = Instant::now();
    client.close().await;
    assert_eq!(began.elapsed(), SOURCE_CLOSE, "a source that hangs is given up");
    assert_eq!(source.closed.load(Ordering::SeqCst), 1);
    assert_eq!(slow.closed.load(Ordering::SeqCst), 1);
}

/// Waits until the source lists these names.
async fn lists(source: &impl ToolSource, names: &[&str]) {
    loop {
        let listed: Vec<_> = source.list().iter().map(|tool| tool.name().to_string()).collect();
        if listed == names {
            return;
        }
        source.changed().await;
    }
}

async fn call(source: &impl ToolSource, tool: &str) -> Outcome {
    let context = ToolContext::new("sink", Duration::from_secs(5));
    source.execute(&tool.parse().unwrap(), Value::empty(), context).await
}

#[tokio::test(start_paused = true)]
async fn tools_of_several_clients_are_named_by_their_owners() {
    let room = MemoryRoom::new();
    let assistant =
        Assistant::builder().client("tv").client("the phone").join_over(room.assistant("a")).await.unwrap();
    let source = assistant.by_owner();
    let client = |name: &'static str, tools: &[&str]| {
        let tools = tools.iter().fold(Tools::new(), |all, tool| {
            all.tool(tool, "", move || async move { Ok::<_, ToolError>(name) })
        });
        Client::builder().assistant("a").tools(tools).join_over(room.client(name))
    };
    let phone = client("the phone", &["volume", "dial"]).await.unwrap();
    lists(&source, &["dial", "volume"]).await;
    let _tv = client("tv", &["volume"]).await.unwrap();
    lists(&source, &["dial", "the_phone.volume", "tv.volume"]).await;
    for (tool, by) in [("tv.volume", "tv"), ("the_phone.volume", "the phone"), ("dial", "the phone")] {
        assert_eq!(call(&source, tool).await.unwrap().to_json()["value"], by);
    }
    // The name that it had before.
    let ambiguous = call(&source, "volume").await.unwrap_err();
    assert!(ambiguous.message().contains("tv") && ambiguous.message().contains("the phone"), "{ambiguous}");
    phone.close().await;
    lists(&source, &["volume"]).await;
    assert_eq!(call(&source, "volume").await.unwrap().to_json()["value"], "tv");
}

#[tokio::test(start_paused = true)]
async fn tool_that_the_assistant_offers_too_has_one_name() {
    let room = MemoryRoom::new();
    let options = ToolOptions::default().prefer_client();
    let assistant =
        Assistant::builder().tool("look", "", options.on(async || Ok::<_, ToolError>("assistant")));
    let assistant = assistant.client("phone").join_over(room.assistant("a")).await.unwrap();
    let phone = Client::builder().assistant("a").tool("look", "", async || Ok::<_, ToolError>("phone"));
    let _phone = phone.join_over(room.client("phone")).await.unwrap();
    while assistant.tools().len() < 2 {
        assistant.changed().await;
    }
    let source = assistant.by_owner();
    lists(&source, &["look"]).await;
    assert_eq!(call(&source, "look").await.unwrap().to_json()["value"], "phone");
}

/// A tool that asks its person for a size.
async fn order(context: ToolContext) -> Result<String, ToolError> {
    let ask = ChoicePrompt::new("Which size?", ["small", "large"]);
    let answer = context.ask(ask.clone()).await?;
    let size = answer.selected.ok_or("no size was chosen")?;
    Ok(format!("size {size}"))
}

async fn large(_: PromptRequest) -> Result<PromptAnswer, ToolError> {
    Ok(PromptAnswer::choice(1))
}

fn text(outcome: Result<Value, CallError>) -> String {
    outcome.unwrap().decode().unwrap()
}

#[tokio::test(start_paused = true)]
async fn tool_of_a_client_asks_the_person_there() {
    let room = MemoryRoom::new();
    let assistant =
        Assistant::builder().client("phone").client("tv").join_over(room.assistant("a")).await.unwrap();
    let phone = Client::builder().assistant("a").tool("order", "", order).prompt(large);
    let _phone = phone.join_over(room.client("phone")).await.unwrap();
    assert_eq!(text(assistant.call("order", ()).to("phone").await), "size 1");
    let tv = Client::builder().assistant("a").tool("order", "", order);
    let _tv = tv.join_over(room.client("tv")).await.unwrap();
    let nobody = assistant.call("order", ()).to("tv").await.unwrap_err();
    assert!(nobody.to_string().contains("nobody can be asked"), "{nobody}");
}

#[tokio::test(start_paused = true)]
async fn tool_of_an_assistant_asks_the_person_at_a_client() {
    let room = MemoryRoom::new();
    let assistant = Assistant::builder().client("phone").client("tv").tool("order", "", order);
    let assistant = assistant.join_over(room.assistant("a")).await.unwrap();
    let nobody = assistant.call("order", ()).await.unwrap_err();
    assert!(nobody.to_string().contains("bridge.choose"), "{nobody}");
    let client = |name| Client::builder().assistant("a").prompt(large).join_over(room.client(name));
    let _phone = client("phone").await.unwrap();
    assert_eq!(text(assistant.call("order", ()).await), "size 1");
    let _tv = client("tv").await.unwrap();
    assistant.ready("tv").await.unwrap();
    let several = assistant.call("order", ()).await.unwrap_err().to_string();
    assert!(several.contains("phone") && several.contains("tv"), "{several}");
}

#[tokio::test(start_paused = true)]
async fn policy_selects_who_is_asked() {
    let room = MemoryRoom::new();
    let policy = SelectionPolicy::by(|tool, them| {
        assert_eq!(tool, Some("bridge.choose"));
        them.iter().find(|it| it.identity.as_str() == "tv").map(|it| it.identity.clone())
    });
    let assistant = Assistant::builder().client("phone").client("tv").choose(policy).tool("order", "", order);
    let assistant = assistant.join_over(room.assistant("a")).await.unwrap();
    let client = |name, choice| {
        let answer = move |_: PromptRequest| async move { Ok::<_, ToolError>(PromptAnswer::choice(choice)) };
        Client::builder().assistant("a").prompt(answer).join_over(room.client(name))
    };
    let (_phone, _tv) = (client("phone", 0).await.unwrap(), client("tv", 1).await.unwrap());
    assistant.ready("phone").await.unwrap();
    assistant.ready("tv").await.unwrap();
    assert_eq!(text(assistant.call("order", ()).await), "size 1");
}

#[tokio::test(start_paused = true)]
async fn stopped_call_dismisses_its_question() {
    let (room, dismissed) = (MemoryRoom::new(), Arc::new(AtomicUsize::new(0)));
    struct Shown(Arc<AtomicUsize>);
    impl Drop for Shown {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let seen = Arc::clone(&dismissed);
    let phone = Client::builder().assistant("a").tool("order", "", order).prompt(move |_| {
        let shown = Shown(Arc::clone(&seen));
        async move {
            let _shown = shown;
            std::future::pending().await
        }
    });
    let _phone = phone.join_over(room.client("phone")).await.unwrap();
    let assistant = Assistant::builder().client("phone").join_over(room.assistant("a")).await.unwrap();
    let late = assistant.call("order", ()).timeout(Duration::from_secs(2)).await.unwrap_err();
    assert!(matches!(late, CallError::Timeout { .. }), "{late}");
    tokio::time::sleep(Duration::from_secs(2)).await; // on the paused clock
    assert_eq!(dismissed.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn directly_called_source_is_given_answers() {
    let tools = Tools::new().tool("order", "", order);
    let name: ToolName = "order".parse().unwrap();
    let run = |context: ToolContext| tools.execute(&name, Value::empty(), context);
    let context = || ToolContext::new("test", Duration::from_secs(5));
    let asked = context().with_answers(|prompt| async move {
        assert_eq!(prompt.text(), Some("Which size?"));
        Ok(PromptAnswer::choice(0))
    });
    assert_eq!(run(asked).await.unwrap().decode::<String>().unwrap(), "size 0");
    let wrong = context().with_answers(|_| async { Ok(PromptAnswer::choice(7)) });
    assert!(run(wrong).await.unwrap_err().message().contains("does not fit"));
    assert!(run(context()).await.unwrap_err().message().contains("nobody can be asked"));
}
