//! Secrets of MCP servers: the environment and the stderr of a child, the URL and the token of an address, and what results
//! and questions hold.

use std::{fs, sync::Arc};

use serde_json::json;
use tokio::sync::Mutex;
use toolbridge::{
    Assistant, CallError, Client, ToolResult,
    adapter::mcp,
    memory::MemoryRoom,
    prompt::{Prompt, PromptAnswer, PromptRequest},
    recording::{RecorderOptions, Recording, Redact, calls, redact, report},
};

use crate::{
    folder::Folder,
    mcp_http::{Server, status},
    mcp_script::Script,
    secrets::{assert_free, captured, has, packets},
};

const ENVIRONMENT: &str = "planted-environment";
const STDERR: &str = "planted-stderr";
const BEARER: &str = "planted-bearer";
const QUERY: &str = "planted-query";
const REDIRECT: &str = "planted-redirect";
/// The value of a secret key in a result.
const NATIVE: &str = "planted-native";
/// A part of the URL that a person is asked to open.
const ADDRESS: &str = "planted-address";

/// A child that writes its secrets to stderr, and crashes, asks or answers as a call says.
const CHILD: &str = r#"echo "planted-stderr $API_KEY" >&2
case "$2" in
  *crash*) exit 3 ;;
  *sign-in*) mine=$1; printf '{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"mode":"url","message":"Sign in","url":"https://example.com/?state=planted-address","elicitationId":"1"}}\n' ;;
  *'"id":"q"'*) text "$mine" 'signed in' ;;
  *refuse*) fail "$1" -32603 'broken' ;;
  *) printf %s "$API_KEY" > "$0.key"
     answer "$1" '{"content":[{"type":"text","text":"{\"user\":\"ada\",\"password\":\"planted-native\"}"}],"structuredContent":{"user":"ada","password":"planted-native"},"_meta":{"apiKey":["planted-native"]}}' ;;
esac"#;

#[tokio::test]
async fn common_x5_planted_secret_is_in_no_frame_log_recording_or_report() {
    let (log, _captured) = captured("trace");

    let redirect = format!("location: https://example.com/?token={REDIRECT}\r\n");
    let server = Server::start(move |request, calls| match calls {
        1 => request.answer(&json!({"content": [], "_meta": {"apiKey": NATIVE}})),
        2 => status("401 Unauthorized", ""),
        3 => status("302 Found", &redirect),
        _ => status("500 Internal Server Error", ""),
    });
    let server = server.await;
    let far =
        mcp::http(format!("{}&token={QUERY}", server.url)).bearer_token(BEARER).name("far").prefix("far");
    let script = Script::new("planted");
    let near = script.server(CHILD, "echo \"planted-stderr $API_KEY\" >&2").env("API_KEY", ENVIRONMENT);

    let folder = Folder::new();
    let [raw, of_assistant, of_phone] =
        ["raw", "assistant", "phone"].map(|name| folder.file(&format!("{name}.mcap")));
    let room = MemoryRoom::new();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    let phone = Client::builder().tools(far.await.unwrap()).consent(|_| async { true }).record(&of_phone);
    let phone = phone.prompt(move |request: PromptRequest| {
        let seen = Arc::clone(&seen);
        async move {
            let Prompt::Authorize(question) = request.prompt() else { panic!("{request:?}") };
            seen.lock().await.push(question.url.clone());
            Ok(PromptAnswer::done())
        }
    });
    let phone = phone.join_over(room.client("phone")).await.unwrap();
    let assistant = Assistant::builder()
        .tools(near.prefix("near").await.unwrap())
        .consent(|_| async { true })
        .record(&raw)
        .record_options(RecorderOptions::default().redact(Redact::nothing()))
        .join_over(room.assistant("assistant"))
        .await
        .unwrap();
    assistant.ready("phone").await.unwrap();

    let mut errors = String::new();
    for how in ["answer", "sign-in", "refuse", "crash"] {
        match assistant.call("near.t", json!({"how": how})).await {
            Ok(value) if how == "answer" => {
                let result = ToolResult::of(&value);
                assert!(result.native().unwrap().json().contains(NATIVE), "the assistant gets the document");
            }
            Ok(_) => assert_eq!(how, "sign-in"),
            Err(error) => errors += &format!("{error} {error:?}\n"),
        }
    }
    for n in 0..4 {
        match assistant.call("far.t", ()).await {
            Ok(_) => assert_eq!(n, 0),
            Err(CallError::Tool(error)) => errors += &format!("{error} {error:?}\n"),
            Err(other) => panic!("{other}"),
        }
    }
    let shown = format!("{:?} {:?} {:?}", phone.sources(), assistant.sources(), assistant.calls());
    assistant.close().await;
    phone.close().await;
    assert_eq!(fs::read_to_string(script.note("key")).unwrap(), ENVIRONMENT);
    assert!(asked.lock().await[0].ends_with(ADDRESS));
    assert_eq!(errors.lines().count(), 5, "{errors}");

    let of_servers = [ENVIRONMENT, STDERR, BEARER, QUERY, REDIRECT];
    let all = [&of_servers[..], &[NATIVE, ADDRESS]].concat();
    assert_free("an error", errors.as_bytes(), &all);
    assert_free("what is shown", shown.as_bytes(), &all);
    let text = log.text();
    assert!(["far", "near", "mcp", "is down"].iter().all(|it| text.contains(it)), "{text}");
    assert_free("the log", text.as_bytes(), &all);

    // On the wire: the document of a result, and the address that the person is asked to open.
    let sent = packets(&raw);
    assert!(sent.iter().any(|it| has(&it.payload, NATIVE)));
    assert!(sent.iter().any(|it| has(&it.payload, ADDRESS)));
    for packet in &sent {
        assert_free("a frame", &packet.payload, &of_servers);
        let is_question = has(&packet.payload, "bridge.authorize") && packet.to == ["phone"];
        assert!(is_question || !has(&packet.payload, ADDRESS), "{packet:?}");
    }
    redact(&raw, &of_assistant, Redact::default(), false).unwrap();
    for file in [&of_assistant, &of_phone] {
        assert!(packets(file).iter().any(|it| has(&it.payload, "ada")), "the rest is recorded");
        assert_free("a recording", &fs::read(file).unwrap(), &all);
        let entries = || Recording::open(file).unwrap().entries();
        assert!(entries().count() > 20);
        assert_free("a report", report(entries(), &calls(entries()).calls, "planted").as_bytes(), &all);
    }
}
