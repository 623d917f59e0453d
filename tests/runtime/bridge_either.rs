//! Tools that a client may run instead of the assistant, policies and prompts, through the public handles: in an
//! in-memory room on a paused clock.

use std::time::Duration;

use serde_json::json;
use tokio::{sync::mpsc, time::Instant};
use toolbridge::{
    Assistant, CallError, Client, ErrorCode, Event, ToolContext, ToolError, ToolName, ToolOptions,
    ToolSource,
    memory::MemoryRoom,
    prompt::{PermissionPrompt, Prompt, PromptAnswer, PromptRequest, PromptedCall},
    session::SelectionPolicy,
};

async fn here() -> Result<String, ToolError> {
    Ok("assistant".to_owned())
}

async fn there() -> Result<String, ToolError> {
    Ok("client".to_owned())
}

async fn assistant(room: &MemoryRoom) -> Assistant {
    let options = ToolOptions::default().prefer_client();
    let builder = Assistant::builder().tool("lookup", "", options.on(here)).choose(SelectionPolicy::First);
    builder.join_over(room.assistant("assistant")).await.unwrap()
}

/// Waits until this participant has registered a tool.
async fn offers(assistant: &Assistant, client: &str) {
    let mut events = assistant.events();
    while !assistant.tools().iter().any(|offer| offer.owner.as_str() == client) {
        events.recv().await.unwrap();
    }
}

async fn by(assistant: &Assistant) -> String {
    assistant.call("lookup", ()).await.unwrap().decode().unwrap()
}

#[tokio::test(start_paused = true)]
async fn protocol_a9_client_runs_the_tool_while_present_and_the_assistant_afterwards() {
    let room = MemoryRoom::new();
    let assistant = assistant(&room).await;
    assert_eq!(by(&assistant).await, "assistant");
    let phone = Client::builder().tool("lookup", "", there).join_over(room.client("phone")).await.unwrap();
    offers(&assistant, "phone").await;
    assert_eq!(by(&assistant).await, "client");
    let named: String = assistant.call("lookup", ()).to("assistant").await.unwrap().decode().unwrap();
    assert_eq!(named, "assistant");
    phone.close().await;
    assert_eq!(by(&assistant).await, "assistant");
}

#[tokio::test(start_paused = true)]
async fn protocol_a9_client_that_hangs_before_its_claim_costs_the_claim_window() {
    let room = MemoryRoom::new();
    let assistant = assistant(&room).await;
    let _phone = Client::builder().tool("lookup", "", there).join_over(room.client("phone")).await.unwrap();
    offers(&assistant, "phone").await;
    room.pause("phone");
    let began = Instant::now();
    assert_eq!(by(&assistant).await, "assistant");
    assert_eq!(began.elapsed(), Duration::from_secs(2));
    room.resume("phone");
    assert_eq!(by(&assistant).await, "client");
}

#[tokio::test(start_paused = true)]
async fn selection_function_of_the_author_selects_a_client() {
    let room = MemoryRoom::new();
    let choose = SelectionPolicy::by(|_, candidates| {
        candidates.iter().find(|it| it.identity.as_str() == "tv").map(|it| it.identity.clone())
    });
    let assistant = Assistant::builder().choose(choose).join_over(room.assistant("assistant")).await.unwrap();
    async fn tv() -> Result<&'static str, ToolError> {
        Ok("tv")
    }
    let _phone = Client::builder().tool("lookup", "", there).join_over(room.client("phone")).await.unwrap();
    let _tv = Client::builder().tool("lookup", "", tv).join_over(room.client("tv")).await.unwrap();
    offers(&assistant, "phone").await;
    offers(&assistant, "tv").await;
    assert_eq!(by(&assistant).await, "tv");
}

#[tokio::test(start_paused = true)]
async fn client_policy_binds_one_of_several_assistants() {
    let room = MemoryRoom::new();
    let client = Client::builder().choose(SelectionPolicy::Last).tool("lookup", "", there);
    let client = client.join_over(room.client("phone")).await.unwrap();
    let mut events = client.events();
    let mut assistants = Vec::new();
    for name in ["a", "b", "c"] {
        let assistant = Assistant::builder().client("phone").join_over(room.assistant(name)).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await; // on the paused clock: until nothing more happens
        assistants.push(assistant);
    }
    assert_eq!(client.assistant().unwrap(), "a");
    assistants.remove(0).close().await;
    loop {
        if let Event::Bound(Some(bound)) = events.recv().await.unwrap()
            && bound != "a"
        {
            break assert_eq!(bound, "c");
        }
    }
}

fn wipe() -> PermissionPrompt {
    PermissionPrompt::new(PromptedCall::new("wipe").title("Erase the album"))
        .text("Shall I erase it?")
        .option("yes", "Yes", "allow_once")
        .option("no", "No", "reject_once")
}

#[tokio::test(start_paused = true)]
async fn prompt_is_answered_by_the_person() {
    let room = MemoryRoom::new();
    let client = Client::builder().prompt(|ask: PromptRequest| async move {
        assert_eq!(ask.caller().as_str(), "assistant");
        assert!(ask.deadline() > Instant::now().into_std());
        assert!(ask.parameters().is_map());
        match ask.prompt() {
            Prompt::Permission(ask) => Ok(PromptAnswer::selected(&ask.options[0].option_id).text("go ahead")),
            Prompt::Choose(_) => Ok(PromptAnswer::choice(9)),
            Prompt::Form(_) => panic!("a person fainted"),
            _ => Err(ToolError::new(ErrorCode::UNKNOWN_TOOL, "there is no screen here")),
        }
    });
    let _client = client.join_over(room.client("phone")).await.unwrap();
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
    let answer: PromptAnswer = assistant.call("bridge.permission", wipe()).await.unwrap().decode().unwrap();
    assert!(wipe().chosen(&answer).is_some_and(|option| option.allows()));
    assert_eq!(answer.text.as_deref(), Some("go ahead"));
    // An error of the author fails his tool, and the caller learns no more than that.
    let code = |result: Result<_, CallError>| match result.map(|_: toolbridge::Value| ()) {
        Err(CallError::Tool(error)) => error.code().as_str().to_owned(),
        other => panic!("{other:?}"),
    };
    let choose = assistant.call("bridge.choose", json!({"text": "Which?", "choices": ["a"]})).await;
    assert_eq!(code(choose), "execution_error");
    assert_eq!(code(assistant.call("bridge.form", json!({"schema": {}})).await), "execution_error");
    let authorize = assistant.call("bridge.authorize", json!({"url": "https://x.example"})).await;
    assert_eq!(code(authorize), "unknown_tool");
    let bad = assistant.call("bridge.permission", json!({"toolCall": {}, "options": []})).await;
    assert_eq!(code(bad), "invalid_parameters");
}

#[tokio::test(start_paused = true)]
async fn prompt_without_a_handler_is_refused() {
    let room = MemoryRoom::new();
    let _client = Client::builder().tool("lookup", "", there).join_over(room.client("phone")).await.unwrap();
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
    offers(&assistant, "phone").await;
    let error = assistant.call("bridge.permission", wipe()).await.unwrap_err();
    assert!(matches!(error, CallError::UnknownTool { .. }), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn prompt_of_a_cancelled_call_is_withdrawn() {
    let (shown, mut events) = mpsc::unbounded_channel();
    struct Dialog(mpsc::UnboundedSender<&'static str>);
    impl Drop for Dialog {
        fn drop(&mut self) {
            let _ = self.0.send("put away");
        }
    }
    let room = MemoryRoom::new();
    let client = Client::builder().prompt(move |_| {
        let shown = shown.clone();
        async move {
            let _ = shown.send("shown");
            let _dialog = Dialog(shown);
            std::future::pending().await
        }
    });
    let _client = client.join_over(room.client("phone")).await.unwrap();
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
    let call = assistant.call("bridge.permission", wipe()).start();
    assert_eq!(events.recv().await, Some("shown"));
    drop(call);
    assert_eq!(events.recv().await, Some("put away"));
    // Nor longer than its budget.
    let began = Instant::now();
    let error =
        assistant.call("bridge.permission", wipe()).timeout(Duration::from_secs(60)).await.unwrap_err();
    assert!(matches!(error, CallError::Timeout { .. }), "{error:?}");
    assert_eq!(began.elapsed(), Duration::from_secs(60));
    assert_eq!(events.recv().await, Some("shown"));
    assert_eq!(events.recv().await, Some("put away"));
}

#[tokio::test(start_paused = true)]
async fn sec_c4_caller_behind_a_sink_cannot_prompt_a_person() {
    let room = MemoryRoom::new();
    let client = Client::builder().prompt(|_| async { Ok(PromptAnswer::done()) });
    let _client = client.join_over(room.client("phone")).await.unwrap();
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
    let url = json!({"url": "https://x.example"});
    assert!(assistant.call("bridge.authorize", url.clone()).await.is_ok());
    let tool: ToolName = "bridge.authorize".parse().unwrap();
    let context = ToolContext::new("sink", Duration::from_secs(9));
    let error = assistant.execute(&tool, url.into(), context).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::UNKNOWN_TOOL);
    assert!(ToolSource::list(&assistant).is_empty());
}
