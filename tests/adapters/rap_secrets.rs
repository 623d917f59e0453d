//! Secrets of RAP: bearer and callback tokens, sign-in and answer addresses, and the user's id.

use std::{
    fs,
    sync::{Arc, Mutex},
};

use serde_json::{Value as Json, json};
use toolbridge::{
    Assistant, Client,
    memory::MemoryRoom,
    prompt::{Prompt, PromptAnswer, PromptRequest},
    recording::{RecorderOptions, Recording, Redact, calls, redact, report},
};

use crate::{
    folder::Folder,
    rap_toolset::{Toolset, request, tool},
    secrets::{assert_free, captured, has, packets},
};

const BEARER: &str = "planted-bearer";
const USER: &str = "planted-user";
const SIGN_IN: &str = "planted-sign-in";
const ANSWER: &str = "planted-answer";

#[tokio::test]
async fn rap_x5_planted_secret_is_in_no_frame_log_recording_or_report() {
    let (log, _captured) = captured("trace");

    let toolset = Toolset::with(json!([tool("t", json!({}))]), |_, n| if n == 3 { 400 } else { 200 }).await;
    let source = toolset.source().prefix("near").bearer_token(BEARER).user_id(USER).await.unwrap();
    let folder = Folder::new();
    let [raw, of_assistant, of_phone] =
        ["raw", "assistant", "phone"].map(|name| folder.file(&format!("{name}.mcap")));
    let room = MemoryRoom::new();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    let phone = Client::builder().record(&of_phone).prompt(move |request: PromptRequest| {
        let seen = Arc::clone(&seen);
        async move {
            Ok(match request.prompt() {
                Prompt::Authorize(question) => {
                    seen.lock().unwrap().push(question.url.clone());
                    PromptAnswer::done()
                }
                _ => PromptAnswer::choice(0),
            })
        }
    });
    let phone = phone.join_over(room.client("phone")).await.unwrap();
    let assistant = Assistant::builder()
        .tools(source)
        .consent(|_| async { true })
        .record(&raw)
        .record_options(RecorderOptions::default().redact(Redact::nothing()))
        .join_over(room.assistant("assistant"))
        .await
        .unwrap();
    assistant.ready("phone").await.unwrap();

    let call = |how: &str| assistant.call("near.t", json!({"how": how})).start();
    let mut secrets = [BEARER, USER, ANSWER].map(str::to_owned).to_vec();
    let mut shown = String::new();

    // A sign-in, a forged message, and a result that has what it should not have.
    let signing_in = call("sign-in");
    let invocation = toolset.invocation().await;
    assert!(invocation.head.contains(BEARER) && invocation.body["user_id"] == USER);
    secrets.push(invocation.callback().rsplit('/').next().unwrap().to_owned());
    let url = format!("https://login.example/?state={SIGN_IN}");
    assert_eq!(invocation.say("oauth", json!({"auth_url": url})).await, 200);
    while asked.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    let forged = json!({"type": "tool_result", "group_id": "g", "id": "i", "text": SIGN_IN}).to_string();
    assert_eq!(
        request("POST", &invocation.callback(), "content-type: application/json\r\n", &forged).await,
        404
    );
    let result: Json = json!({
        "text": "ada is signed in", "auth_url": url, "callback_url": invocation.callback(), "user_id": USER,
    });
    assert_eq!(invocation.say("tool_result", result).await, 200);
    shown += &format!("{:?}", signing_in.await.unwrap());

    // A choice, whose answer goes to a secret address.
    let choosing = call("choose");
    let invocation = toolset.invocation().await;
    secrets.push(invocation.callback().rsplit('/').next().unwrap().to_owned());
    let response_url = format!("{}/{ANSWER}", toolset.url);
    let choice = json!({"prompt": "Which?", "choices": ["a"], "default": 0, "response_url": response_url});
    assert_eq!(invocation.say("user_choice", choice).await, 200);
    toolset.next_of(&format!("/{ANSWER}")).await;
    assert_eq!(invocation.answer("ada has chosen").await, 200);
    shown += &format!("{:?}", choosing.await.unwrap());

    // A failure, and a tool that was stopped.
    let refused = call("refuse").await.unwrap_err();
    shown += &format!("{refused} {refused:?}");
    secrets.push(toolset.invocation().await.callback().rsplit('/').next().unwrap().to_owned());
    drop(call("stop"));
    shown += &format!("{:?} {:?} {:?}", assistant.sources(), assistant.calls(), assistant);
    assistant.close().await;
    phone.close().await;

    let all = [&secrets[..], &[SIGN_IN.to_owned()]].concat();
    assert_eq!(all.len(), 7);
    assert_free("what is shown", shown.as_bytes(), &all);
    let text = log.text();
    assert!(["builds", "rap"].iter().all(|it| text.contains(it)), "{text}");
    assert_free("the log", text.as_bytes(), &all);
    // On the wire: the address that the person is asked to open, and nothing else.
    let sent = packets(&raw);
    assert!(sent.iter().any(|it| has(&it.payload, SIGN_IN)));
    for packet in &sent {
        assert_free("a frame", &packet.payload, &secrets);
        let is_question = has(&packet.payload, "bridge.authorize") && packet.to == ["phone"];
        assert!(is_question || !has(&packet.payload, SIGN_IN), "{packet:?}");
    }
    redact(&raw, &of_assistant, Redact::default(), false).unwrap();
    for file in [&of_assistant, &of_phone] {
        assert!(packets(file).iter().any(|it| has(&it.payload, "ada")), "the rest is recorded");
        assert_free("a recording", &fs::read(file).unwrap(), &all);
        let entries = || Recording::open(file).unwrap().entries();
        assert_free("a report", report(entries(), &calls(entries()).calls, "planted").as_bytes(), &all);
    }
}
