//! An agent as a tool in a room: what an assistant reports of its calls, and `--acp` of the command line.

use serde_json::json;
use toolbridge::{Assistant, Client, Event, ToolResult, ToolSource as _, Value, memory::MemoryRoom};

use crate::{
    acp_script::AgentScript,
    cli::{complaint, feed, run},
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
    assert_eq!((view.as_str(), &content["entries"][0]["content"]), ("plan", &json!("Look")));
    agent.close().await;
}

#[test]
fn wrong_agent_is_named_before_anything_is_joined() {
    let there = ["client", "--url", "ws://127.0.0.1:1", "--token", "x.y.z", "--acp"];
    for (wrong, why) in [
        ("name=", "a command or a URL is missing"),
        ("no-such-program-here", "there is no program no-such-program-here"),
        ("'unbalanced", "a quote that is not closed"),
    ] {
        let refused = complaint(&run(&[&there[..], &[wrong]].concat()), 2);
        assert!(refused.contains(why), "{refused}");
    }
}

#[test]
fn agent_needs_consent_or_a_yes() {
    let script = AgentScript::new("acp-cli");
    drop(script.agent("", ""));
    let agent = format!("coder={}", script.command());
    let there = ["client", "--url", "ws://127.0.0.1:1", "--token", "x.y.z", "--acp", &agent];
    let refused = complaint(&feed(&there, b""), 2);
    assert!(refused.contains("--yes coder"), "{refused}");
    let allowed = feed(&[&there[..], &["--yes", "coder"]].concat(), b"");
    assert!(!String::from_utf8_lossy(&allowed.stderr).contains("needs consent"), "{allowed:?}");
}
