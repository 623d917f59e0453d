//! What is for the model alone: a secret is planted in a block of every kind of every system, and looked for in everything
//! that anybody else gets. The model gets it.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{Arc, Mutex},
};

use serde_json::{Value as Json, json};
use toolbridge::{
    Assistant, CallError, Client, Outcome, State, ToolError, ToolResult, ToolSource as _, Tools, Value,
    adapter::{acp::ToolCall, mcp::CallToolResult, rap::RapResult},
    chat,
    frame::Frame,
    memory::MemoryRoom,
    prompt::{Prompt, PromptAnswer, PromptRequest},
    recording::{RecorderOptions, Recording, Redact, call_json, calls, entry_json, entry_text, report},
    result::{Audience, ContentBlock},
};

use crate::{
    acp_script::AgentScript,
    folder::Folder,
    for_the_model::{SECRET, audiences, blocks, hostile, with_audience},
    losses::{by_acp, by_agent_air, by_mcp, by_rap},
    secrets::{assert_free, captured, has, packets},
};

/// The outcomes of the tools of every system, failed and not, and whose they are.
fn outcomes() -> Vec<(&'static str, Vec<(String, Outcome)>)> {
    let seen = json!({"type": "text", "text": "seen by all"});
    let (mut mcp, mut orchestrate, mut acp) = (Vec::new(), Vec::new(), Vec::new());
    for ((kind, block), audience) in blocks().iter().zip(audiences().iter().cycle()) {
        let hidden = with_audience(block, audience);
        for is_error in [false, true] {
            let name = format!("{kind}, {audience}, {is_error}");
            let mut document = json!({"content": [hidden, seen], "isError": is_error});
            mcp.push((name.clone(), CallToolResult::read(&document.to_string()).unwrap().into_outcome()));
            document["structuredContent"] = json!({"copy": block, "note": "seen by programs"});
            document["_meta"] = json!({"com.ibm.orchestrate/trace": block});
            orchestrate
                .push((name.clone(), CallToolResult::read(&document.to_string()).unwrap().into_outcome()));
            let status = if is_error { "failed" } else { "completed" };
            let items = [
                json!([{"type": "content", "content": hidden}, {"type": "content", "content": seen}]),
                json!([{"type": "content", "content": block, "annotations": {"audience": audience}}]),
            ];
            for content in items {
                let call =
                    json!({"toolCallId": "1", "title": "Read it", "status": status, "content": content});
                acp.push((name.clone(), ToolCall::read(&call.to_string()).unwrap().outcome().unwrap()));
            }
        }
    }
    let mut rap = Vec::new();
    for audience in audiences() {
        let text = with_audience(&json!({"type": "text", "text": format!("Error: {SECRET}")}), &audience);
        let image =
            with_audience(&json!({"type": "image", "data": SECRET, "mediaType": "image/png"}), &audience);
        for content in [json!([text, seen]), json!([seen, image]), json!([text])] {
            let document = json!({"type": "tool_result", "group_id": "g", "id": "c", "content": content});
            rap.push((format!("{content}"), RapResult::read(&document.to_string()).unwrap().into_outcome()));
        }
    }
    // agent-air has no audience. The failure is one of another program, whose message says what is for the model.
    let hidden = ToolResult::default().with_model_text(format!("{SECRET}\nand more"));
    let error = ToolError::new("own", format!("reading it failed: {SECRET}")).with_partial(hidden.to_value());
    let own = vec![("a value".to_owned(), Ok(hidden.to_value())), ("an error".to_owned(), Err(error))];
    vec![("MCP", mcp), ("watsonx Orchestrate", orchestrate), ("ACP", acp), ("RAP", rap), ("a function", own)]
}

fn copy(outcome: &Outcome) -> Outcome {
    match outcome {
        Ok(value) => Ok(value.clone()),
        Err(error) => {
            let copy = ToolError::new(error.code(), error.message());
            Err(copy.with_partial(error.partial().unwrap().clone()))
        }
    }
}

fn has_secret(json: &Json) -> bool {
    has(json.to_string().as_bytes(), SECRET)
}

type Outcomes = Arc<Mutex<VecDeque<Outcome>>>;

async fn next(State(outcomes): State<Outcomes>) -> Result<Value, ToolError> {
    outcomes.lock().unwrap().pop_front().expect("an outcome for each call")
}

/// Everything that is made of a recording for people and programs.
fn made_of(file: &std::path::Path) -> String {
    let recording = || Recording::open(file).unwrap();
    let calls = calls(recording().entries());
    let mut made = report(recording().entries(), &calls.calls, "planted");
    for (n, entry) in recording().entries().enumerate() {
        made += &format!("{}\n{}\n", entry_json(n, &entry), entry_text(&entry, None));
    }
    calls.calls.iter().for_each(|call| made += &format!("{}\n", call_json(call)));
    made
}

#[tokio::test]
async fn client_and_recording_get_no_block_for_the_model_alone_of_any_system() {
    let (log, _captured) = captured("trace");
    for (system, outcomes) in outcomes() {
        let folder = Folder::new();
        let [at_phone, at_assistant] = ["phone", "assistant"].map(|name| folder.file(name));
        let all = || RecorderOptions::default().redact(Redact::nothing());
        let (room, planned) = (MemoryRoom::new(), Outcomes::default());
        let phone = Client::builder().record(&at_phone).record_options(all());
        let phone = phone.join_over(room.client("phone")).await.unwrap();
        let tools = Tools::with_state(Arc::clone(&planned)).tool("next", "", next);
        let assistant = Assistant::builder().tools(tools).record(&at_assistant).record_options(all());
        let assistant = assistant.join_over(room.assistant("assistant")).await.unwrap();
        assistant.ready("phone").await.unwrap();
        for (name, outcome) in &outcomes {
            planned.lock().unwrap().push_back(copy(outcome));
            let entry = json!({"id": "1", "function": {"name": "next", "arguments": "{}"}});
            let answer = chat::answer(&assistant, &entry).await;
            assert!(
                has_secret(&Value::from(&answer.result).to_json()),
                "{system}: {name}: the model gets it"
            );
            let is_read =
                name.starts_with("text") || name.starts_with("link") || name.starts_with("resource");
            assert!(!is_read || has_secret(&answer.message), "{system}: {name}: the model reads it");
            let said = format!("{:?} {:?} {:?}", answer.spoken, answer.context, answer.result);
            assert_free(&format!("{system}: {name}: what is said"), said.as_bytes(), &[SECRET]);
            if let Err(error) = outcome {
                let message = if system == "a function" { "" } else { error.message() };
                assert_free(&format!("{system}: {name}: a message"), message.as_bytes(), &[SECRET]);
                let shown = format!("{} {:?}", error.for_clients(), error.for_clients());
                assert_free(&format!("{system}: {name}: an error"), shown.as_bytes(), &[SECRET]);
            }
        }
        assistant.close().await;
        phone.close().await;
        let got = packets(&at_phone);
        assert!(got.len() >= 2 * outcomes.len());
        for packet in got {
            assert_free(&format!("{system}: a frame at a client"), &packet.payload, &[SECRET]);
        }
        for file in [&at_phone, &at_assistant] {
            assert_free(
                &format!("{system}: what is made of a recording"),
                made_of(file).as_bytes(),
                &[SECRET],
            );
        }
    }
    assert_free("the log", log.text().as_bytes(), &[SECRET]);
}

#[tokio::test]
async fn recording_of_a_client_that_runs_the_tool_shows_no_block_for_the_model_alone() {
    for (system, outcomes) in outcomes() {
        let folder = Folder::new();
        let file = folder.file("assistant");
        let (room, planned) = (MemoryRoom::new(), Outcomes::default());
        let tools = Tools::with_state(Arc::clone(&planned)).tool("next", "", next);
        let _phone = Client::builder().tools(tools).join_over(room.client("phone")).await.unwrap();
        let assistant = Assistant::builder().record(&file);
        let assistant = assistant.record_options(RecorderOptions::default().redact(Redact::nothing()));
        let assistant = assistant.join_over(room.assistant("assistant")).await.unwrap();
        assistant.ready("phone").await.unwrap();
        for (name, outcome) in &outcomes {
            planned.lock().unwrap().push_back(copy(outcome));
            let got = match assistant.call("next", ()).await {
                Ok(value) => value,
                Err(CallError::Tool(error)) => error.partial().unwrap().clone(),
                Err(other) => panic!("{other}"),
            };
            assert!(has_secret(&got.to_json()), "{system}: {name}: the model gets it");
        }
        assistant.close().await;
        // The file holds what was sent, because a replay gives it to the model again.
        // A busy machine acknowledges late, and then a result is sent twice.
        let mut whole = BTreeSet::new();
        for packet in packets(&file) {
            let frame = Frame::decode(packet.payload.clone()).unwrap();
            let json = frame.to_json().unwrap();
            if has_secret(&json) {
                whole.insert(json["body"]["id"].to_string());
            }
            assert!(!has_secret(&frame.to_public_json().unwrap()), "{system}: {json}");
        }
        assert_eq!(whole.len(), outcomes.len(), "{system}");
        assert_free(&format!("{system}: what is made of a recording"), made_of(&file).as_bytes(), &[SECRET]);
    }
}

#[tokio::test]
async fn sinks_of_other_systems_show_no_block_for_the_model_alone() {
    for (system, outcomes) in outcomes() {
        let copies = || outcomes.iter().map(|(_, outcome)| copy(outcome)).collect::<Vec<_>>();
        for update in by_acp(copies()).await {
            assert_free(&format!("{system}: an editor's update"), update.to_string().as_bytes(), &[SECRET]);
        }
        // Hosts and runtimes run models. What they show of it is apart, or says whom it is for.
        for (message, (name, _)) in by_rap(copies()).await.iter().zip(&outcomes) {
            let is_for_people = message["display_as"].as_array().is_some_and(|it| !it.is_empty());
            let is_own = system == "RAP";
            assert!(is_own || is_for_people || !has_secret(message), "{system}: {name}: {message}");
            assert!(!has_secret(&message["display_as"]), "{system}: {name}: {message}");
        }
        for (document, (name, _)) in by_agent_air(copies()).await.iter().zip(&outcomes) {
            assert!(!has_secret(document) || document["display"].is_object(), "{system}: {name}: {document}");
            assert!(!has_secret(&document["display"]), "{system}: {name}: {document}");
        }
        for (document, (name, _)) in by_mcp(copies()).await.iter().zip(&outcomes) {
            for block in document["content"].as_array().unwrap().iter().filter(|it| has_secret(it)) {
                let audience = ContentBlock::from_value(&block.into()).audience();
                let is_text_of_a_document = document["content"].as_array().unwrap().len() == 1;
                assert!(audience == Audience::Model || is_text_of_a_document, "{system}: {name}: {document}");
            }
        }
    }
}

#[tokio::test]
async fn agent_shows_nothing_that_is_for_the_model_alone_while_it_works() {
    let (log, _captured) = captured("trace");
    let folder = Folder::new();
    let file = folder.file("phone");
    let script = AgentScript::new("model-only");
    let agent = script.agent(&hostile(), "").await.unwrap();
    let room = MemoryRoom::new();
    let asked: Arc<Mutex<Vec<Prompt>>> = Arc::default();
    let theirs = Arc::clone(&asked);
    let ask = move |request: PromptRequest| {
        theirs.lock().unwrap().push(request.prompt().clone());
        assert!(!has_secret(&request.parameters().to_json()), "{request:?}");
        async { Ok(PromptAnswer::selected("y")) }
    };
    let phone = Client::builder().prompt(ask).record(&file);
    let phone = phone.record_options(RecorderOptions::default().redact(Redact::nothing()));
    let phone = phone.join_over(room.client("phone")).await.unwrap();
    let assistant = Assistant::builder().tools(agent.clone()).prompt(|_| async { Err("nobody".into()) });
    let assistant = assistant.join_over(room.assistant("assistant")).await.unwrap();
    assistant.ready("phone").await.unwrap();
    let mut call = assistant.call(&script.name(), json!({"prompt": "go"})).start();
    let mut shown = String::new();
    while let Some(step) = call.progress().await {
        let content = step.content.as_ref().map(Value::to_json);
        shown += &format!("{step:?} {:?} {content:?}\n", step.message);
    }
    let result = ToolResult::of(&call.await.unwrap());
    assert!(
        result.for_model(ToolResult::MAX_TEXT).text.contains(SECRET),
        "the model reads what the agent says"
    );
    shown += &format!("{:?}", result.for_clients().for_model(ToolResult::MAX_TEXT).text);
    assert!(shown.contains("seen by all"), "{shown}");
    assert_free("progress", shown.as_bytes(), &[SECRET]);
    assert_free("the call log", format!("{:?}", assistant.calls()).as_bytes(), &[SECRET]);
    assistant.close().await;
    phone.close().await;
    let got = packets(&file);
    assert!(got.iter().any(|it| has(&it.payload, "execution_error")), "the room sees the agent work");
    for packet in got {
        assert_free("a frame at a client", &packet.payload, &[SECRET]);
    }
    assert_free("the log", log.text().as_bytes(), &[SECRET]);
    agent.close().await;
}

#[tokio::test]
async fn question_of_an_agent_shows_no_block_for_the_model_alone() {
    let script = AgentScript::new("model-only-question");
    let agent = script.agent(&hostile(), "").await.unwrap();
    let room = MemoryRoom::new();
    let asked: Arc<Mutex<Vec<Prompt>>> = Arc::default();
    let theirs = Arc::clone(&asked);
    let ask = move |request: PromptRequest| {
        theirs.lock().unwrap().push(request.prompt().clone());
        async { Ok(PromptAnswer::selected("y")) }
    };
    let assistant = Assistant::builder().tools(agent.clone()).prompt(ask);
    let assistant = assistant.join_over(room.assistant("assistant")).await.unwrap();
    assistant.call(&script.name(), json!({"prompt": "go"})).await.unwrap();
    let asked = std::mem::take(&mut *asked.lock().unwrap());
    assert_eq!(asked.len(), blocks().len());
    for prompt in asked {
        let Prompt::Permission(ask) = &prompt else { panic!("{prompt:?}") };
        assert!(ask.text.as_ref().unwrap().contains("is for its model alone"), "{:?}", ask.text);
        let content = ask.tool_call.content.as_ref().unwrap().to_json();
        assert_eq!(content, json!([]), "the field itself, and not only its JSON");
        assert!(!has_secret(&prompt.parameters().unwrap().to_json()));
    }
    agent.close().await;
}
