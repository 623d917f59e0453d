//! What an agent asks of the person: permissions and forms.

#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use serde_json::{Value as Json, json};
use toolbridge::{
    Assistant, CancellationToken, Client, ToolContext, ToolError, ToolResult, ToolSource as _,
    adapter::SourceError,
    memory::MemoryRoom,
    prompt::{Prompt, PromptAnswer, PromptRequest},
};

use crate::{
    acp_client::{context, prompt},
    acp_script::AgentScript,
};

const OPTIONS: &str = r#"[{"optionId":"y","name":"Yes","kind":"allow_once"},{"optionId":"a","name":"Always","kind":"allow_always"},{"optionId":"n","name":"No","kind":"reject_once"},{"optionId":"o","name":"Odd","kind":"someday"}]"#;

/// The body of a prompt that asks for permission, and keeps the reply.
fn asks(options: &str) -> String {
    format!(
        r#"n=$((${{n:-0}}+1))
        call '"toolCallId":"'$n'","title":"Run the tests","kind":"execute","status":"pending","name":"shell"'
        ask session/request_permission '{{"sessionId":"s1","toolCall":{{"toolCallId":"'$n'","rawInput":{{"command":"true"}}}},"options":{options}}}'
        keep replies "$reply"; ended "$1""#
    )
}

/// Returns the outcome in the last reply.
fn outcome(script: &AgentScript) -> Json {
    let replies = script.kept("replies");
    let reply: Json = serde_json::from_str(replies.lines().last().unwrap()).unwrap();
    assert_eq!(reply["id"], "ask");
    reply["result"]["outcome"].clone()
}

fn answering(answer: PromptAnswer) -> (ToolContext, Arc<Mutex<Vec<Prompt>>>) {
    let asked: Arc<Mutex<Vec<Prompt>>> = Arc::default();
    let theirs = Arc::clone(&asked);
    let context = context().with_answers(move |prompt| {
        theirs.lock().unwrap().push(prompt);
        let answer = answer.clone();
        async move { Ok(answer) }
    });
    (context, asked)
}

fn selected(id: &str) -> Json {
    json!({"outcome": "selected", "optionId": id})
}

#[tokio::test]
async fn acp_c19_person_sees_the_options_and_the_merged_call_and_the_chosen_one_is_answered() {
    let script = AgentScript::new("acp-c8");
    let agent = script.agent(&asks(OPTIONS), "").await.unwrap();
    let (context, asked) = answering(PromptAnswer::selected("y"));
    prompt(&agent, "Test", context).await.unwrap();
    assert_eq!(outcome(&script), selected("y"));
    let asked = asked.lock().unwrap().clone();
    let [Prompt::Permission(ask)] = &asked[..] else { panic!("{asked:?}") };
    assert_eq!(ask.text.as_deref(), Some(&*format!("{} asks: Run the tests", script.name())));
    // The call has what its update and the request say of it.
    assert_eq!(
        (ask.tool_call.kind.as_deref(), ask.tool_call.name.as_deref()),
        (Some("execute"), Some("shell"))
    );
    assert_eq!(ask.tool_call.raw_input.as_ref().unwrap().to_json(), json!({"command": "true"}));
    let names: Vec<_> = ask.options.iter().map(|it| (it.name.as_str(), it.kind.as_str())).collect();
    assert_eq!(
        names,
        [("Yes", "allow_once"), ("Always", "allow_always"), ("No", "reject_once"), ("Odd", "someday")]
    );
    agent.close().await;
}

#[tokio::test]
async fn acp_c8_request_with_half_a_surrogate_pair_gets_the_answer_of_the_person() {
    let script = AgentScript::new("acp-half");
    let body = format!(
        r#"ask session/request_permission '{{"sessionId":"s1","toolCall":{{"toolCallId":"1","title":"x \ud83d","rawInput":1e400}},"options":{OPTIONS}}}'
        keep replies "$reply"; ended "$1""#
    );
    let agent = script.agent(&body, "").await.unwrap();
    let (context, asked) = answering(PromptAnswer::selected("y"));
    prompt(&agent, "Test", context).await.unwrap();
    assert_eq!(outcome(&script), selected("y"));
    let asked = asked.lock().unwrap().clone();
    let [Prompt::Permission(ask)] = &asked[..] else { panic!("{asked:?}") };
    assert!(ask.text.as_deref().unwrap().ends_with("asks: x \u{fffd}"), "{ask:?}");
    agent.close().await;
}

#[tokio::test]
async fn acp_c11_without_an_answer_the_request_is_rejected() {
    let script = AgentScript::new("acp-c11");
    let agent = script.agent(&asks(OPTIONS), "").await.unwrap();
    // Nobody can be asked.
    prompt(&agent, "Test", context()).await.unwrap();
    assert_eq!(outcome(&script), selected("n"));
    let nobody = context().with_answers(|_| async { Err(ToolError::from("nobody is there")) });
    prompt(&agent, "Test", nobody).await.unwrap();
    assert_eq!(outcome(&script), selected("n"));
    for answer in [PromptAnswer::cancelled(), PromptAnswer::declined(), PromptAnswer::selected("x")] {
        prompt(&agent, "Test", answering(answer).0).await.unwrap();
        assert_eq!(outcome(&script), selected("n"));
    }
    agent.close().await;
    let agent =
        script.agent(&asks(r#"[{"optionId":"y","name":"Yes","kind":"allow_once"}]"#), "").await.unwrap();
    prompt(&agent, "Test", context()).await.unwrap();
    assert_eq!(outcome(&script), json!({"outcome": "cancelled"}));
    agent.close().await;
}

#[tokio::test]
async fn acp_c8_option_that_was_not_offered_is_never_a_yes() {
    let script = AgentScript::new("acp-not-offered");
    let agent = script.agent(&asks(OPTIONS), "").await.unwrap();
    for id in ["Y", "yes", "", "allow_once"] {
        prompt(&agent, "Test", answering(PromptAnswer::selected(id)).0).await.unwrap();
        assert_eq!(outcome(&script), selected("n"), "{id}");
    }
    // A yes that names no option is asked again, and is no yes the second time.
    let (context, asked) = answering(PromptAnswer::selected("y").text("yeah, sure"));
    prompt(&agent, "Test", context).await.unwrap();
    assert_eq!(outcome(&script), selected("n"));
    assert_eq!(asked.lock().unwrap().len(), 2);
    let (context, asked) = answering(PromptAnswer::selected("y").text("Yes!"));
    prompt(&agent, "Test", context).await.unwrap();
    assert_eq!((outcome(&script), asked.lock().unwrap().len()), (selected("y"), 1));
    agent.close().await;
}

#[tokio::test]
async fn acp_c8_option_of_another_request_is_never_a_yes() {
    let script = AgentScript::new("acp-other-request");
    let body = format!("{SEVERAL}\nseveral 2; ended \"$1\"");
    let agent = script.agent(&body, "").await.unwrap();
    // The answer to one is the option of the other.
    let context = context().with_answers(move |prompt| {
        let Prompt::Permission(ask) = prompt else { panic!("{prompt:?}") };
        let other = if ask.options[0].option_id == "y1" { "y2" } else { "y1" };
        async move { Ok(PromptAnswer::selected(other)) }
    });
    prompt(&agent, "Look", context).await.unwrap();
    agent.close().await;
    let refused = [("ask1".to_owned(), selected("n1")), ("ask2".to_owned(), selected("n2"))];
    assert_eq!(outcomes(&script), BTreeMap::from(refused));
}

/// Sends this many requests at once, and then keeps the replies.
const SEVERAL: &str = r#"several() {
    for n in $(seq "$1"); do
      options='[{"optionId":"y'$n'","name":"Yes","kind":"allow_once"},{"optionId":"n'$n'","name":"No","kind":"reject_once"}]'
      printf '{"jsonrpc":"2.0","id":"ask%s","method":"session/request_permission","params":{"sessionId":"s1","toolCall":{"toolCallId":"%s","title":"Look"},"options":%s}}\n' $n $n "$options"
    done
    for n in $(seq "$1"); do IFS= read -r reply; keep replies "$reply"; done
}"#;

/// Returns the outcomes in the replies by the ids of their requests, in the order of these.
fn outcomes(script: &AgentScript) -> BTreeMap<String, Json> {
    let replies = script.kept("replies");
    let replies = replies.lines().map(|line| serde_json::from_str::<Json>(line).unwrap());
    replies.map(|it| (it["id"].as_str().unwrap().to_owned(), it["result"]["outcome"].clone())).collect()
}

#[tokio::test]
async fn acp_c8_requests_at_once_are_asked_one_after_the_other() {
    let script = AgentScript::new("acp-several");
    let body = format!("{SEVERAL}\nseveral 12; ended \"$1\"");
    let agent = script.agent(&body, "").await.unwrap();
    let room = MemoryRoom::new();
    let (open, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let most_open = Arc::clone(&most);
    let person = move |asked: PromptRequest| {
        most.fetch_max(open.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let Prompt::Permission(ask) = asked.prompt() else { panic!("{asked:?}") };
        let (open, option) = (Arc::clone(&open), ask.options[0].option_id.clone());
        async move {
            tokio::task::yield_now().await;
            open.fetch_sub(1, Ordering::SeqCst);
            Ok::<_, ToolError>(PromptAnswer::selected(option))
        }
    };
    let phone = Client::builder().prompt(person).join_over(room.client("phone")).await.unwrap();
    let assistant =
        Assistant::builder().tools(agent.clone()).join_over(room.assistant("assistant")).await.unwrap();
    assistant.ready("phone").await.unwrap();
    assistant.call(&script.name(), json!({"prompt": "Look"})).await.unwrap();
    let allowed = (1..=12).map(|n| (format!("ask{n}"), selected(&format!("y{n}")))).collect();
    assert_eq!((outcomes(&script), most_open.load(Ordering::SeqCst)), (allowed, 1));
    phone.close().await;
    agent.close().await;
}

#[tokio::test]
async fn acp_c9_always_is_kept_reported_and_taken_back() {
    let script = AgentScript::new("acp-c9");
    let agent = script.agent(&asks(OPTIONS), "").await.unwrap();
    prompt(&agent, "Test", answering(PromptAnswer::selected("a")).0).await.unwrap();
    assert_eq!(outcome(&script), selected("a"));
    let (context, asked) = answering(PromptAnswer::selected("n"));
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let theirs = Arc::clone(&seen);
    let watched = context.clone().with_progress(move |it| theirs.lock().unwrap().extend(it.message));
    let result = prompt(&agent, "Test", watched).await.unwrap();
    assert_eq!(outcome(&script), selected("a"));
    let data = ToolResult::of(&result).structured().unwrap().to_json();
    assert_eq!(
        data,
        json!({"stopReason": "end_turn", "permissions": ["shell: allowed, as answered before for always"]})
    );
    assert!(asked.lock().unwrap().is_empty());
    let seen = seen.lock().unwrap().join("\n");
    assert!(seen.contains("shell: allowed, as answered before for always"), "{seen}");
    assert_eq!(agent.forget_permissions(), 1);
    prompt(&agent, "Test", context).await.unwrap();
    assert_eq!((outcome(&script), asked.lock().unwrap().len()), (selected("n"), 1));
    agent.close().await;
}

#[tokio::test]
async fn acp_c9_calls_of_a_kind_are_allowed_or_rejected_by_setting() {
    let script = AgentScript::new("acp-kinds");
    // The prompt has the kind of the call, then those of the options.
    let body = r#"n=$((${n:-0}+1)); words=${2#*ASK }; words=${words%% END*}; kind=${words%% *}; options=
        for offered in ${words#* }; do options="$options,{\"optionId\":\"$offered\",\"name\":\"Do $offered\",\"kind\":\"$offered\"}"; done
        ask session/request_permission '{"sessionId":"s1","toolCall":{"toolCallId":"'$n'","title":"Work","kind":"'$kind'"},"options":['"${options#,}"']}'
        keep replies "$reply"; ended "$1""#;
    let agent = script.agent(body, "").allow_kind("read").allow_kind("delete").allow_kind("think");
    let agent = agent.reject_kind("delete").reject_kind("move").await.unwrap();
    let all = "reject_always allow_always reject_once allow_once";
    let allowed = Some("Work: allowed by the settings");
    let refused = Some("Work: refused by the settings");
    let kept = Some("Work: refused, as answered before for always");
    let none = json!({"outcome": "cancelled"});
    // The kind, what is offered, what the person answers, the outcome, and what is said of it.
    let cases = [
        ("read", all, "-", selected("allow_once"), allowed),
        ("read", "reject_once allow_always", "-", selected("allow_always"), allowed),
        ("read", "reject_once someday", "someday", selected("someday"), None),
        ("edit", all, "allow_once", selected("allow_once"), None),
        ("delete", all, "-", selected("reject_once"), refused),
        ("move", "reject_always allow_once", "-", selected("reject_always"), refused),
        ("move", "allow_always allow_once someday", "-", none, refused),
        // A setting that allows comes after what a person has answered, one that rejects before it.
        ("think", "reject_always", "reject_always", selected("reject_always"), None),
        ("think", all, "-", selected("reject_always"), kept),
    ];
    for (kind, offered, answer, expected, said) in cases {
        let (context, asked) = answering(PromptAnswer::selected(answer));
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let theirs = Arc::clone(&seen);
        let context = context.with_progress(move |it| theirs.lock().unwrap().extend(it.message));
        let result = prompt(&agent, &format!("ASK {kind} {offered} END"), context).await.unwrap();
        assert_eq!(outcome(&script), expected, "{kind}: {offered}");
        assert_eq!(asked.lock().unwrap().is_empty(), answer == "-", "{kind}: {offered}");
        let data = ToolResult::of(&result).structured().unwrap().to_json();
        assert_eq!(data["permissions"][0].as_str(), said, "{kind}: {offered}");
        assert_eq!(seen.lock().unwrap().iter().any(|it| Some(&**it) == said), said.is_some(), "{seen:?}");
    }
    agent.close().await;
    for agent in [script.agent("", "").allow_kind("sing"), script.agent("", "").reject_kind("Read")] {
        let error = agent.await.unwrap_err();
        assert!(matches!(&error, SourceError::Setting { .. }), "{error:?}");
        assert!(error.to_string().contains("is not a kind of calls; the kinds are read, edit"), "{error}");
    }
}

#[tokio::test]
async fn acp_c10_open_request_of_a_cancelled_turn_is_cancelled() {
    let script = AgentScript::new("acp-c10");
    // The cancel and the reply are two lines, in any order.
    let body = format!(
        r#"case "$2" in *next*) ended "$1"; return ;; esac
        printf '{{"jsonrpc":"2.0","id":"ask","method":"session/request_permission","params":{{"sessionId":"s1","toolCall":{{"toolCallId":"1","title":"Look"}},"options":%s}}}}\n' '{OPTIONS}'
        for n in 1 2; do IFS= read -r line; keep lines "$line"; done
        answer "$1" '{{"stopReason":"cancelled"}}'"#
    );
    let agent = script.agent(&body, "").await.unwrap();
    let token = CancellationToken::new();
    let cancel = token.clone();
    let context = context().with_cancellation(token).with_answers(move |_| {
        cancel.cancel(); // the person answers too late
        async { Ok(PromptAnswer::selected("y")) }
    });
    prompt(&agent, "Test", context).await.unwrap_err();
    // The next prompt waits for the end of the turn.
    prompt(&agent, "next", answering(PromptAnswer::selected("y")).0).await.unwrap();
    agent.close().await;
    let lines: Vec<Json> =
        script.kept("lines").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines.iter().filter(|it| it["method"] == "session/cancel").count(), 1, "{lines:?}");
    let reply = lines.iter().find(|it| it["id"] == "ask").unwrap();
    assert_eq!(reply["result"]["outcome"], json!({"outcome": "cancelled"}));
}

#[tokio::test]
async fn request_that_belongs_to_no_call_is_asked_with_its_words_and_one_of_another_session_refused() {
    let script = AgentScript::new("acp-no-call");
    let body = format!(
        r#"ask session/request_permission '{{"sessionId":"s1","toolCall":{{"toolCallId":"9","title":"Erase the disk"}},"options":{OPTIONS}}}'
        keep replies "$reply"
        ask session/request_permission '{{"sessionId":"s2","toolCall":{{"toolCallId":"9"}},"options":{OPTIONS}}}'
        keep foreign "$reply"; ended "$1""#
    );
    let agent = script.agent(&body, "").await.unwrap();
    let (context, asked) = answering(PromptAnswer::selected("n"));
    prompt(&agent, "Erase", context).await.unwrap();
    assert_eq!(outcome(&script), selected("n"));
    let asked = asked.lock().unwrap().clone();
    let [Prompt::Permission(ask)] = &asked[..] else { panic!("{asked:?}") };
    assert!(ask.text.as_deref().unwrap().ends_with("asks: Erase the disk"));
    let foreign: Json = serde_json::from_str(script.kept("foreign").trim()).unwrap();
    assert_eq!(foreign["error"]["code"], -32_602);
    agent.close().await;
}

#[tokio::test]
async fn acp_c22_form_is_filled_in_by_the_person() {
    let script = AgentScript::new("acp-c22");
    let body = r#"
        ask elicitation/create '{"sessionId":"s1","mode":"form","message":"Who are you?","requestedSchema":{"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","default":7}}}}'
        keep replies "$reply"; ended "$1""#;
    let agent = script.agent(body, "").await.unwrap();
    let (context, asked) = answering(PromptAnswer::submitted(&json!({"name": "Ada"})).unwrap());
    prompt(&agent, "Ask", context).await.unwrap();
    let reply: Json = serde_json::from_str(script.kept("replies").trim()).unwrap();
    assert_eq!(reply["result"], json!({"action": "accept", "content": {"age": 7, "name": "Ada"}}));
    let asked = asked.lock().unwrap().clone();
    let [Prompt::Form(form)] = &asked[..] else { panic!("{asked:?}") };
    assert_eq!(form.text.as_deref(), Some(&*format!("{} asks: Who are you?", script.name())));
    agent.close().await;
}

#[tokio::test]
async fn acp_c22_address_is_opened_by_the_person_or_declined() {
    let script = AgentScript::new("acp-c22-url");
    let body = r#"
        ask elicitation/create '{"sessionId":"s1","mode":"url","message":"Sign in","url":"https://login.example/x?secret=hunter2","elicitationId":"e"}'
        keep replies "$reply"; ended "$1""#;
    let agent = script.agent(body, "").await.unwrap();
    for (answer, action) in [(PromptAnswer::done(), "accept"), (PromptAnswer::declined(), "decline")] {
        prompt(&agent, "Ask", answering(answer).0).await.unwrap();
        let reply: Json = serde_json::from_str(script.kept("replies").lines().last().unwrap()).unwrap();
        assert_eq!(reply["result"], json!({"action": action}));
    }
    agent.close().await;
}

#[tokio::test]
async fn call_that_cannot_be_shown_whole_is_refused_without_a_question() {
    let script = AgentScript::new("acp-unshown");
    let input = json!({"command": format!("{}; curl evil", "x".repeat(17_000))});
    let body = format!(
        r#"call '"toolCallId":"1","title":"Run the tests","kind":"execute","status":"pending"'
        ask session/request_permission '{{"sessionId":"s1","toolCall":{{"toolCallId":"1","rawInput":{input}}},"options":{OPTIONS}}}'
        keep replies "$reply"; ended "$1""#
    );
    let agent = script.agent(&body, "").await.unwrap();
    let (context, asked) = answering(PromptAnswer::selected("y"));
    let result = prompt(&agent, "go", context).await.unwrap();
    assert!(asked.lock().unwrap().is_empty(), "nobody is asked");
    assert_eq!(outcome(&script), selected("n"));
    let decided = ToolResult::of(&result).structured().unwrap().to_json();
    let decided = decided["permissions"][0].as_str().unwrap();
    assert!(decided.starts_with("Run the tests: refused without a question: its input of 17"), "{decided}");
    agent.close().await;
}
