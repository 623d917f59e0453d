//! Secrets of an agent: its environment and its stderr, addresses that a person opens, the bearer token of the tools that
//! it is offered, and what its calls hold.

use std::{
    fs,
    sync::{Arc, Mutex},
};

use serde_json::{Value as Json, json};
use toolbridge::{
    Assistant, Client, ToolSource as _,
    memory::MemoryRoom,
    prompt::{Prompt, PromptAnswer, PromptRequest},
    recording::{RecorderOptions, Recording, Redact, calls, redact, report},
};

use crate::{
    acp_script::AgentScript,
    folder::Folder,
    secrets::{assert_free, captured, has, packets},
};

const ENVIRONMENT: &str = "planted-environment";
const STDERR: &str = "planted-stderr";
/// A part of the address that a person is asked to open.
const ADDRESS: &str = "planted-address";
/// The value of a secret key in a call's input and output.
const NATIVE: &str = "planted-native";

/// Writes its secrets to stderr, asks for a sign-in, reports a call, and dies if a prompt says so.
const AGENT: &str = r#"
    n=$((${n:-0}+1))
    echo "planted-stderr $API_KEY" >&2
    ask elicitation/create '{"sessionId":"s1","mode":"url","message":"Sign in","url":"https://login.example/?state=planted-address","elicitationId":"e"}'
    call '"toolCallId":"'$n'","title":"Look","kind":"read","status":"in_progress","rawInput":{"user":"ada","password":"planted-native"}'
    change '"toolCallId":"'$n'","status":"completed","rawOutput":{"user":"ada","password":"planted-native"}'
    say "ada is signed in"
    case "$2" in *refuse*) fail "$1" -32603 'broken'; return ;; *crash*) exit 3 ;; esac
    ended "$1""#;

#[tokio::test]
async fn acp_x5_planted_secret_is_in_no_frame_log_recording_or_report() {
    // The command line does not print more of this crate, either.
    let (log, _captured) = captured("trace");

    let script = AgentScript::new("acp-planted");
    let agent = script.agent(AGENT, "echo \"planted-stderr $API_KEY\" >&2");
    let agent = agent.env("API_KEY", ENVIRONMENT).attach_program("/bin/toolbridge");
    let mut shown = format!("{agent:?}");
    let agent = agent.await.unwrap();
    let folder = Folder::new();
    let [raw, of_assistant, of_phone] =
        ["raw", "assistant", "phone"].map(|name| folder.file(&format!("{name}.mcap")));
    let room = MemoryRoom::new();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    let phone = Client::builder().record(&of_phone).prompt(move |request: PromptRequest| {
        let seen = Arc::clone(&seen);
        async move {
            let Prompt::Authorize(question) = request.prompt() else { panic!("{request:?}") };
            seen.lock().unwrap().push(question.url.clone());
            Ok(PromptAnswer::done())
        }
    });
    let phone = phone.join_over(room.client("phone")).await.unwrap();
    let assistant = Assistant::builder()
        .tools(agent.clone())
        .record(&raw)
        .record_options(RecorderOptions::default().redact(Redact::nothing()))
        .join_over(room.assistant("assistant"))
        .await
        .unwrap();
    assistant.ready("phone").await.unwrap();
    agent.offer_tools(&assistant).await.unwrap();

    for how in ["answer", "refuse", "crash"] {
        match assistant.call(&script.name(), json!({ "prompt": how })).await {
            Ok(_) => assert_eq!(how, "answer"),
            Err(error) => shown += &format!("{error} {error:?}\n"),
        }
    }
    shown += &format!("{:?} {:?} {agent:?}", assistant.sources(), assistant.calls());
    assistant.close().await;
    phone.close().await;
    agent.close().await;
    let session: Json = serde_json::from_str(script.kept("session").lines().last().unwrap()).unwrap();
    let bearer = session["params"]["mcpServers"][0]["env"][0]["value"].as_str().unwrap().to_owned();
    assert!(bearer.len() >= 20 && asked.lock().unwrap()[0].ends_with(ADDRESS), "{session}");

    let of_agent = [ENVIRONMENT, STDERR, &bearer].map(str::to_owned);
    let all = [&of_agent[..], &[NATIVE, ADDRESS].map(str::to_owned)].concat();
    assert_free("what is shown", shown.as_bytes(), &all);
    let text = log.text();
    assert!(["acp", "an agent is up", "an agent is down"].iter().all(|it| text.contains(it)), "{text}");
    assert_free("the log", text.as_bytes(), &all);
    // On the wire: the documents of calls, and the address that the person is asked to open.
    let sent = packets(&raw);
    assert!([NATIVE, ADDRESS].iter().all(|it| sent.iter().any(|packet| has(&packet.payload, it))));
    for packet in &sent {
        assert_free("a frame", &packet.payload, &of_agent);
        let is_question = has(&packet.payload, "bridge.authorize") && packet.to == ["phone"];
        assert!(is_question || !has(&packet.payload, ADDRESS), "{packet:?}");
    }
    redact(&raw, &of_assistant, Redact::default(), false).unwrap();
    for file in [&of_assistant, &of_phone] {
        assert!(packets(file).iter().any(|it| has(&it.payload, "ada")), "the rest is recorded");
        assert_free("a recording", &fs::read(file).unwrap(), &all);
        let entries = || Recording::open(file).unwrap().entries();
        assert_free("a report", report(entries(), &calls(entries()).calls, "planted").as_bytes(), &all);
    }
}
