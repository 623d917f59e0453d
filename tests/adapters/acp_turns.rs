//! An agent's questions and its turn: what an answer may still do, and for what it holds.

#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use serde_json::{Value as Json, json};
use toolbridge::{
    ToolContext, ToolError, ToolResult, ToolSource as _,
    prompt::{Prompt, PromptAnswer},
};

use crate::{
    acp_client::{context, prompt},
    acp_script::AgentScript,
};

const OPTIONS: &str = r#"[{"optionId":"y","name":"Yes","kind":"allow_once"},{"optionId":"a","name":"Always","kind":"allow_always"},{"optionId":"n","name":"No","kind":"reject_once"}]"#;

/// Returns the results in the replies that the script has kept.
fn replies(script: &AgentScript) -> Vec<Json> {
    let replies = script.kept("replies");
    let replies = replies.lines().map(|line| serde_json::from_str::<Json>(line).unwrap());
    replies.map(|reply| reply["result"].clone()).collect()
}

/// A context whose person gives this answer, and the number of questions.
fn answering(id: &'static str) -> (ToolContext, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let context = context().with_answers(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        async move { Ok(PromptAnswer::selected(id)) }
    });
    (context, asked)
}

#[tokio::test]
async fn acp_c10_question_ends_with_its_turn_and_is_no_yes_in_the_next_one() {
    let script = AgentScript::new("acp-late-yes");
    // The agent ends its turn without the answer, and reads it in the next one.
    let body = format!(
        r#"case "$2" in
        *permission*) printf '{{"jsonrpc":"2.0","id":"q","method":"session/request_permission","params":{{"sessionId":"s1","toolCall":{{"toolCallId":"1","title":"Wipe","name":"wipe"}},"options":%s}}}}\n' '{OPTIONS}'
            ended "$1"; IFS= read -r reply; keep replies "$reply" ;;
        *form*) printf '{{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{{"sessionId":"s1","mode":"form","message":"?","requestedSchema":{{"type":"object","properties":{{}}}}}}}}\n'
            ended "$1"; IFS= read -r reply; keep replies "$reply" ;;
        *) ended "$1" ;;
        esac"#
    );
    let agent = script.agent(&body, "").await.unwrap();
    for question in ["permission", "form"] {
        // This person answers when it is too late, which is never.
        let context = context().with_answers(|_| std::future::pending::<Result<_, ToolError>>());
        prompt(&agent, question, context).await.unwrap();
        prompt(&agent, "next", answering("y").0).await.unwrap();
    }
    let cancelled = [json!({"outcome": {"outcome": "cancelled"}}), json!({"action": "cancel"})];
    assert_eq!(replies(&script), cancelled);
    agent.close().await;
}

#[tokio::test]
async fn acp_c9_always_holds_for_one_agent_and_the_kind_and_name_of_one_tool() {
    let script = AgentScript::new("acp-always");
    // The prompt ends with the call.
    let body = format!(
        r#"call=${{2#*CALL}}; call=${{call%%END*}}; call=$(printf '%s' "$call" | tr -d '\\')
        ask session/request_permission '{{"sessionId":"s1","toolCall":'"$call"',"options":{OPTIONS}}}'
        keep replies "$reply"; ended "$1""#
    );
    let agent = script.agent(&body, "").await.unwrap();
    let other = script.agent(&body, "").await.unwrap(); // with the same name
    let ask = async |agent, call: Json, answer| {
        let (context, asked) = answering(answer);
        prompt(agent, &format!("CALL{call}END"), context).await.unwrap();
        asked.load(Ordering::Relaxed)
    };
    let read = json!({"toolCallId": "1", "name": "edit_file", "kind": "read"});
    assert_eq!(ask(&agent, read.clone(), "a").await, 1);
    assert_eq!(ask(&agent, read.clone(), "n").await, 0, "it is remembered");
    assert_eq!(ask(&other, read, "n").await, 1, "another agent");
    assert_eq!(ask(&agent, json!({"toolCallId": "2", "name": "edit_file", "kind": "edit"}), "n").await, 1);
    assert_eq!(ask(&agent, json!({"toolCallId": "3", "title": "edit_file", "kind": "read"}), "n").await, 1);
    // Without a name nothing says that two calls are of one tool.
    for _ in 0..2 {
        assert_eq!(ask(&agent, json!({"toolCallId": "4"}), "a").await, 1);
    }
    let long = json!({"toolCallId": "5", "name": "x".repeat(300)});
    for _ in 0..2 {
        assert_eq!(ask(&agent, long.clone(), "a").await, 1);
    }
    agent.close().await;
    other.close().await;
}

#[tokio::test]
async fn acp_c13_answer_of_an_agent_that_ends_at_once_is_read() {
    let script = AgentScript::new("acp-last-words");
    let body = r#"n=0; while [ $n -lt 500 ]; do say "word $n. "; n=$((n+1)); done; ended "$1"; exit 0"#;
    let agent = script.agent(body, "").await.unwrap();
    let result = ToolResult::of(&prompt(&agent, "Talk", context()).await.unwrap());
    assert!(result.for_model(100_000).text.contains("word 499."), "{result:?}");
    agent.close().await;
}

#[tokio::test]
async fn text_that_is_cut_inside_of_a_character_is_said_with_a_replacement() {
    let script = AgentScript::new("acp-surrogate");
    let agent = script.agent(r#"say 'half \ud83d'; say ' and on'; ended "$1""#, "").await.unwrap();
    let result = ToolResult::of(&prompt(&agent, "Talk", context()).await.unwrap());
    assert!(result.for_model(1_000).text.contains("half \u{fffd} and on"), "{result:?}");
    agent.close().await;
}

#[tokio::test]
async fn acp_c22_text_about_an_address_begins_with_the_configured_name() {
    let script = AgentScript::new("acp-url-name");
    let body = r#"
        ask elicitation/create '{"sessionId":"s1","mode":"url","message":"toolbridge: sign in again","url":"https://login.example/x","elicitationId":"e"}'
        ended "$1""#;
    let agent = script.agent(body, "").await.unwrap();
    let name = script.name();
    let context = context().with_answers(move |prompt| {
        let Prompt::Authorize(ask) = &prompt else { panic!("{prompt:?}") };
        assert_eq!(ask.text.as_deref(), Some(&*format!("{name} asks: toolbridge: sign in again")));
        async { Ok(PromptAnswer::done()) }
    });
    prompt(&agent, "Ask", context).await.unwrap();
    agent.close().await;
}
