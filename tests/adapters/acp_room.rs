//! An agent as a tool in a room: what an assistant reports of its calls.

use serde_json::json;
use toolbridge::{
    Assistant, CallError, Client, ErrorCode, Event, ToolError, ToolResult, ToolSource as _, Value,
    memory::MemoryRoom,
    prompt::{PromptAnswer, PromptRequest},
    recording::{RecorderOptions, Redact},
};

use crate::{
    acp_script::AgentScript,
    folder::Folder,
    secrets::{has, packets},
};

#[tokio::test]
async fn acp_c18_call_is_reported_once_its_input_is_known() {
    let script = AgentScript::new("acp-c18");
    let body = r#"
        call '"toolCallId":"1","title":"Look","kind":"read","status":"pending","name":"look"'
        change '"toolCallId":"1","rawInput":{"path":"/x"}'
        change '"toolCallId":"1","status":"completed","content":[{"type":"content","content":{"type":"text","text":"2 lines"}}]'
        update '{"sessionUpdate":"plan","entries":[{"content":"Look","priority":"high","status":"completed"}]}'
        say done; ended "$1""#;
    let agent = script.agent(body, "").await.unwrap();
    let room = MemoryRoom::new();
    let phone = Client::builder().join_over(room.client("phone")).await.unwrap();
    let assistant =
        Assistant::builder().tools(agent.clone()).join_over(room.assistant("assistant")).await.unwrap();
    assistant.ready("phone").await.unwrap();
    let mut events = phone.events();
    let result = assistant.call(&script.name(), json!({"prompt": "Look"})).await.unwrap();
    assert!(ToolResult::of(&result).for_model(1_000).text.contains("done"));
    let reported: Vec<_> = assistant.calls().into_iter().filter(|it| &*it.tool == "look").collect();
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert_eq!(reported[0].outcome, Some(Ok(())));
    // The input is in the request, so the call was not reported before it.
    let input = Value::encode(&json!({"path": "/x"})).unwrap();
    assert_eq!(reported[0].request_bytes, input.as_bytes().len());
    let view = async {
        loop {
            if let Event::View { view, .. } = events.recv().await.expect("it has left") {
                return (view.view.clone(), view.content.to_json());
            }
        }
    };
    let (view, content) = view.await;
    assert_eq!(
        (view.as_str(), &content["entries"][0]["content"]),
        (&*format!("{}/plan", script.name()), &json!("Look"))
    );
    agent.close().await;
}

#[tokio::test]
async fn acp_c18_call_without_a_call_message_ends_as_its_last_status_says() {
    let script = AgentScript::new("acp-c18-update");
    let done =
        r#""status":"completed","content":[{"type":"content","content":{"type":"text","text":"CODE-7"}}]"#;
    let body = format!(
        r#"
        change '"toolCallId":"1","title":"lookup","kind":"search",{done}'
        ask session/request_permission '{{"sessionId":"s1","toolCall":{{"toolCallId":"2","title":"wipe"}},"options":[{{"optionId":"y","name":"Yes","kind":"allow_once"}}]}}'
        change '"toolCallId":"2",{done}'
        change '"toolCallId":"3","title":"open","status":"in_progress"'
        ended "$1""#
    );
    let agent = script.agent(&body, "").await.unwrap();
    let room = MemoryRoom::new();
    let phone = Client::builder().join_over(room.client("phone")).await.unwrap();
    let person = |_: PromptRequest| async { Ok::<_, ToolError>(PromptAnswer::selected("y")) };
    let assistant = Assistant::builder().tools(agent.clone()).prompt(person);
    let assistant = assistant.join_over(room.assistant("assistant")).await.unwrap();
    assistant.ready("phone").await.unwrap();
    assistant.call(&script.name(), json!({"prompt": "Look"})).await.unwrap();
    let outcome = |tool: &str| {
        let found: Vec<_> = assistant.calls().into_iter().filter(|it| &*it.tool == tool).collect();
        assert_eq!(found.len(), 1, "{tool}: {found:?}");
        found[0].outcome.clone().unwrap()
    };
    assert_eq!((outcome("lookup"), outcome("wipe")), (Ok(()), Ok(())));
    assert!(outcome("open").is_err(), "it has no result");
    agent.close().await;
    phone.close().await;
}

#[tokio::test]
async fn acp_c1_same_id_again_is_one_call_of_the_room() {
    let script = AgentScript::new("acp-c1");
    let body = r#"
        call '"toolCallId":"1","title":"Look","kind":"read","status":"in_progress"'
        call '"toolCallId":"1","title":"Look","kind":"read","status":"in_progress"'
        change '"toolCallId":"1","status":"completed"'
        call '"toolCallId":"1","title":"Look","kind":"read","status":"in_progress"'
        ended "$1""#;
    let agent = script.agent(body, "").await.unwrap();
    let room = MemoryRoom::new();
    let assistant =
        Assistant::builder().tools(agent.clone()).join_over(room.assistant("assistant")).await.unwrap();
    assistant.call(&script.name(), json!({"prompt": "Look"})).await.unwrap();
    assert_eq!(assistant.calls().iter().filter(|it| &*it.tool == "Look").count(), 1);
    agent.close().await;
}

#[tokio::test]
async fn acp_c1_same_id_in_another_session_is_another_call() {
    let script = AgentScript::new("acp-c1-session");
    let body = r#"
        call '"toolCallId":"1","title":"Look","kind":"read","status":"in_progress"'
        change '"toolCallId":"1","status":"completed"'
        ended "$1""#;
    let agent = script.agent(body, "").await.unwrap();
    let room = MemoryRoom::new();
    let assistant =
        Assistant::builder().tools(agent.clone()).join_over(room.assistant("assistant")).await.unwrap();
    for count in 1..=2 {
        // The agent gets a new session with them.
        agent.offer_tools(&assistant).await.unwrap();
        assistant.call(&script.name(), json!({"prompt": "Look"})).await.unwrap();
        assert_eq!(assistant.calls().iter().filter(|it| &*it.tool == "Look").count(), count);
    }
    assert_eq!(script.kept("session").lines().count(), 3);
    agent.close().await;
}

#[tokio::test]
async fn acp_c13_open_calls_of_an_agent_that_dies_fail_and_those_of_a_cancelled_turn_are_cancelled() {
    let script = AgentScript::new("acp-c13-open");
    let body = r#"
        call '"toolCallId":"1","title":"Look","kind":"read","status":"in_progress"'
        case "$2" in *die*) exit 3 ;; esac
        IFS= read -r line; answer "$1" '{"stopReason":"cancelled"}'"#;
    for (text, code) in [("die", ErrorCode::EXECUTION_ERROR), ("wait", ErrorCode::CANCELLED)] {
        let agent = script.agent(body, "").await.unwrap();
        let room = MemoryRoom::new();
        let assistant =
            Assistant::builder().tools(agent.clone()).join_over(room.assistant("assistant")).await.unwrap();
        let mut events = assistant.events();
        let mut call = assistant.call(&script.name(), json!({ "prompt": text })).start();
        let step = loop {
            match events.recv().await.expect("it has left") {
                Event::Requested { tool, .. } if tool == "Look" && text == "wait" => call.cancel(),
                Event::Settled { tool, outcome, .. } if tool == "Look" => break outcome,
                _ => {}
            }
        };
        assert_eq!(step, Err(code.clone()), "{text}");
        match (&mut call).await.unwrap_err() {
            CallError::Tool(error) => assert_eq!(error.code(), code),
            other => assert!(matches!(other, CallError::Cancelled) && text == "wait", "{other:?}"),
        }
        assistant.close().await;
        agent.close().await;
    }
}

#[tokio::test]
async fn acp_c19_input_of_a_permission_request_is_in_the_result_as_the_agent_wrote_it() {
    let script = AgentScript::new("acp-c19-room");
    let body = r#"
        call '"toolCallId":"1","title":"Wipe","kind":"edit","status":"pending"'
        ask session/request_permission '{"sessionId":"s1","toolCall":{"toolCallId":"1","rawInput":{"b" : 123456789012345678901234567890,"a":[1.0e2,"\ud83d"]}},"options":[{"optionId":"y","name":"Yes \ud83d","kind":"allow_once"}]}'
        change '"toolCallId":"1","status":"completed"'
        ended "$1""#;
    let agent = script.agent(body, "").await.unwrap();
    let (room, folder) = (MemoryRoom::new(), Folder::new());
    let file = folder.file("room.mcap");
    let person = |_: PromptRequest| async { Ok::<_, ToolError>(PromptAnswer::selected("y")) };
    let phone = Client::builder().join_over(room.client("phone")).await.unwrap();
    let assistant = Assistant::builder()
        .tools(agent.clone())
        .prompt(person)
        .record(&file)
        .record_options(RecorderOptions::default().redact(Redact::nothing()))
        .join_over(room.assistant("assistant"))
        .await
        .unwrap();
    assistant.ready("phone").await.unwrap();
    assistant.call(&script.name(), json!({"prompt": "Wipe"})).await.unwrap();
    let reported: Vec<_> = assistant.calls().into_iter().filter(|it| &*it.tool == "Wipe").collect();
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert_eq!(reported[0].outcome, Some(Ok(())));
    assistant.close().await;
    phone.close().await;
    agent.close().await;
    // The merged call, as its native document has it.
    let native = r#"{"toolCallId":"1","title":"Wipe","kind":"edit","status":"completed","rawInput":{"b" : 123456789012345678901234567890,"a":[1.0e2,"\ud83d"]}}"#;
    assert!(packets(&file).iter().any(|packet| has(&packet.payload, native)), "it is in no frame");
}
