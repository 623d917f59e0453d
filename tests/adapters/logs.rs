//! What logs and `Debug` output may contain: ids, names, sizes, times. Never arguments or results.

use std::{io, time::Duration};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use toolbridge::{
    Assistant, BargeIn, CallError, Client, ConsentRequest, ErrorCode, Event, JoinError, Progress, Role,
    ToolContext, ToolError, ToolOptions, Tools, Value,
    frame::{Frame, Kind, Meta},
    livekit::{AccessKey, Bearer},
    memory::MemoryRoom,
    session::{Destination, Request, Unaccepted},
    tools::Execution,
    transport::Participant,
};

use crate::captured::{Log, logged_at};

/// The prefix of every planted secret.
const PLANTED: &str = "planted-";

#[derive(Deserialize, JsonSchema)]
struct Secret {
    secret: String,
}

async fn echo(cx: ToolContext, given: Secret) -> Result<String, ToolError> {
    cx.progress(Progress::from("planted-progress").content(Value::from(json!({"x": "planted-content"}))));
    Ok(format!("{} planted-result", given.secret))
}

async fn fail(given: Secret) -> Result<(), ToolError> {
    Err(ToolError::new("planted", format!("planted-message {}", given.secret))
        .with_partial(Value::from(json!({"x": "planted-partial"}))))
}

async fn source(given: Secret) -> Result<(), ToolError> {
    Err(io::Error::other(format!("planted-source {}", given.secret)))?
}

async fn panics(given: Secret) -> Result<(), ToolError> {
    panic!("planted-panic {}", given.secret)
}

async fn novel(given: Secret) -> Result<String, ToolError> {
    Ok(given.secret.repeat(1_100_000))
}

async fn hang(_: Secret) -> Result<(), ToolError> {
    std::future::pending().await
}

async fn late(given: Secret) -> Result<String, ToolError> {
    tokio::time::sleep(Duration::from_secs(1)).await;
    Ok(given.secret)
}

fn tools() -> Tools {
    Tools::new()
        .tool("echo", "", echo)
        .tool("fail", "", fail)
        .tool("source", "", source)
        .tool("panics", "", panics)
        .tool("novel", "", novel)
        .tool("hang", "", hang)
}

#[tokio::test(start_paused = true)]
async fn sec_p3_logs_of_whole_calls_contain_no_payload() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_span_events(tracing_subscriber::fmt::format::FmtSpan::FULL)
        .with_ansi(false)
        .with_writer(log.clone())
        .finish();
    let _here = tracing::subscriber::set_default(subscriber);
    let secret = || json!({"secret": "planted-argument"});

    let room = MemoryRoom::new();
    let client = Client::builder()
        .tools(tools())
        .tool("ask", "", ToolOptions::destructive().on(echo))
        .tool("late", "", ToolOptions::default().barge_in(BargeIn::Report).on(late))
        .consent(|ask: ConsentRequest| async move {
            let refused = ask.arguments().get("refuse").is_some();
            assert!(refused, "planted-question {}", ask.arguments().to_json());
            false
        })
        .join_over(room.client("phone"))
        .await
        .unwrap();
    let own = Tools::new().tool("own", "", echo).tool("own_panic", "", panics).tool("own_source", "", source);
    let assistant = Assistant::builder().tools(own).join_over(room.assistant("assistant")).await.unwrap();
    for tool in ["echo", "own"] {
        let call = assistant.call(tool, secret()).meta("note", "planted-meta");
        assert!(call.await.unwrap().decode::<String>().unwrap().contains("planted-result"));
    }
    let mut events = client.events();
    for tool in ["fail", "source", "panics", "novel", "own_panic", "own_source"] {
        assert!(matches!(assistant.call(tool, secret()).await, Err(CallError::Tool(_))), "{tool}");
    }
    // The owner's application gets the reason as an event, not in a log.
    for wanted in ["planted-source planted-argument", "logs.rs:"] {
        loop {
            if let Event::ToolFailed { reason, .. } = events.recv().await.unwrap() {
                assert!(reason.as_str().contains(wanted) && reason.as_str().contains("planted-argument"));
                break;
            }
        }
    }
    for arguments in [secret(), json!({"secret": "planted-argument", "refuse": true})] {
        let refused = assistant.call("ask", arguments).await;
        assert!(matches!(refused, Err(CallError::Tool(it)) if it.code() == ErrorCode::PERMISSION_DENIED));
    }
    let turn = assistant.turn();
    let mut interrupted = turn.call("late", secret()).start();
    interrupted.progress().await.unwrap();
    turn.barge_in();
    assert!(matches!(interrupted.await, Err(CallError::Detached)));
    let mut events = assistant.events();
    while !matches!(events.recv().await.unwrap(), Event::LateResult { .. }) {}
    let shown = format!("{:?} {:?}", assistant.late_results(), assistant.calls());
    assert!(!shown.contains(PLANTED), "{shown}");
    let wrong = assistant.call("echo", json!({"secret": {"planted-key": "planted-value"}})).await;
    assert!(matches!(wrong, Err(CallError::Tool(_))));
    let late = assistant.call("hang", secret()).timeout(Duration::from_secs(1)).await;
    assert!(matches!(late, Err(CallError::Timeout { .. })));
    drop(assistant.call("hang", secret()).start());
    // One frame that is sent in parts, and one that is not sent.
    assert!(assistant.call("echo", json!({"secret": "planted-large".repeat(2_000)})).await.is_ok());
    let large = assistant.call("echo", json!({"secret": "planted-large".repeat(1_400_000)})).await;
    assert!(matches!(large, Err(CallError::TooLarge { .. })));
    let to = Destination::Peers(vec!["phone".into()]);
    let body = Value::from(json!({"x": "planted-frame"}));
    assistant.send_frame(to, Kind::new(9), Meta::default(), body).unwrap();
    let mut open = assistant.call("hang", secret()).start();
    open.progress().await.unwrap();
    room.leave("phone");
    assert!(matches!(open.await, Err(CallError::Lost { .. })));
    assistant.close().await;
    client.closed().await;

    let text = log.text();
    let leak = text.lines().find(|line| line.contains(PLANTED));
    assert!(leak.is_none(), "{leak:?}");
    for what in ["done", "failed", "panicked", "left the room", "tests/adapters/logs.rs", "gen_ai.tool.name"]
    {
        assert!(text.contains(what), "the log says nothing of {what:?}:\n{text}");
    }
}

#[tokio::test]
async fn sec_p3_tokens_and_url_queries_stay_out_of_logs_and_errors() {
    let log = Log::default();
    let subscriber =
        tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(log.clone()).finish();
    let _here = tracing::subscriber::set_default(subscriber);
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let key = AccessKey::new("key", "planted-secret of at least 32 characters");
    let token = key.client("r", "i").sign().unwrap();
    let url = format!("ws://planted-user:planted-password@127.0.0.1:{port}/?access_token=planted-query");
    for url in [url, format!("ws://127.0.0.1:{port}")] {
        let error = Client::builder().join(&url, &token).await.unwrap_err();
        let shown = format!("{error} {error:?} {key:?}");
        assert!(!shown.contains(PLANTED) && !shown.contains(&token[..20]), "{shown}");
    }
    let text = log.text();
    assert!(!text.contains(PLANTED) && !text.contains(&token[..20]), "{text}");
}

#[tokio::test(start_paused = true)]
async fn sec_p3_debug_output_shows_the_size_of_a_payload_only() {
    let body = || Value::from(json!({"secret": "planted-argument"}));
    let room = MemoryRoom::new();
    let client = Client::builder().tools(tools()).join_over(room.client("phone")).await.unwrap();
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
    let mut events = client.events();
    assistant.call("echo", body()).await.unwrap();
    let to = Destination::Peers(vec!["phone".into()]);
    assistant.send_frame(to, Kind::new(9), Meta::default(), body()).unwrap();
    let mut shown = String::new();
    let mut show = |what: &dyn std::fmt::Debug| shown += &format!("{what:?}\n");
    loop {
        let event = events.recv().await.unwrap();
        show(&event);
        if matches!(event, Event::Frame { .. }) {
            break;
        }
    }
    let call = assistant.call("hang", body()).meta("note", "planted-meta");
    show(&call);
    let mut call = call.start();
    show(&call);
    call.progress().await.unwrap();
    show(&client);
    show(&assistant);
    show(&body());
    show(&Request::new("echo", body()).meta("note", body()));
    show(&Progress::from("half").content(body()));
    let frame = json!({"type": 6, "stanzaId": -1, "conversationId": "r", "meta": {"note": "planted-meta"},
        "body": {"id": "c", "toolName": "echo", "parameters": {"secret": "planted-argument"},
        "execution": Execution::Client.as_str()}});
    let frame = Frame::from_json(&frame.to_string()).unwrap();
    show(&frame);
    show(&frame.message().unwrap());
    show(&toolbridge::transport::Packet::broadcast("planted-packet"));
    show(&toolbridge::transport::TransportEvent::packet(
        toolbridge::transport::Peer::new("a", "b"),
        toolbridge::transport::Lane::Reliable,
        "planted-packet",
    ));
    let leak = shown.lines().find(|line| line.contains(PLANTED));
    assert!(leak.is_none(), "{leak:?}");
}

/// Captures the warnings of this thread from now on.
fn logged() -> (Log, tracing::subscriber::DefaultGuard) {
    logged_at(tracing::Level::WARN)
}

#[tokio::test]
async fn join_with_a_token_of_another_role_is_refused_before_anything_is_dialed() {
    let key = AccessKey::new("key", "a secret of some length that is long enough");
    let url = "ws://127.0.0.1:9";
    let wrong = key.assistant("r", "phone").sign().unwrap();
    let refused = Client::builder().join(url, &wrong).await.unwrap_err();
    assert!(
        matches!(
            refused,
            JoinError::WrongToken { bearer: Bearer::Role(Role::Assistant), wanted: Role::Client }
        ),
        "{refused:?}"
    );
    assert!(refused.to_string().contains("toolbridge.role=client"), "{refused}");
    let agent = key.participant("r", "phone").agent().sign().unwrap();
    let refused = Client::builder().join(url, &agent).await.unwrap_err();
    assert!(matches!(refused, JoinError::WrongToken { bearer: Bearer::Agent, .. }), "{refused:?}");
    for wrong in [key.client("r", "a"), key.observer("r", "a")] {
        let refused = Assistant::builder().join(url, &wrong.sign().unwrap()).await.unwrap_err();
        assert!(matches!(refused, JoinError::WrongToken { wanted: Role::Assistant, .. }), "{refused:?}");
    }
}

#[tokio::test]
async fn join_with_a_token_without_a_role_logs_the_consequences() {
    let (log, _guard) = logged();
    let key = AccessKey::new("key", "a secret of some length that is long enough");
    let token = key.participant("r", "phone").sign().unwrap();
    // The port is closed; the token is checked first.
    assert!(matches!(Client::builder().join("ws://127.0.0.1:9", &token).await, Err(JoinError::Connect(_))));
    assert!(log.text().contains("only assistants configured with the client phone"), "{}", log.text());
    assert!(matches!(
        Assistant::builder().join("ws://127.0.0.1:9", &token).await,
        Err(JoinError::Connect(_))
    ));
    assert!(log.text().contains("only clients configured with the assistant phone"), "{}", log.text());
    assert!(!log.text().contains(&token));
}

#[tokio::test(start_paused = true)]
async fn refused_registration_is_logged_on_both_sides() {
    let (log, _guard) = logged();
    let room = MemoryRoom::new();
    let _a = Assistant::builder().admit_only_roles().join_over(room.assistant("a")).await.unwrap();
    let connection = room.join(|sid| Participant::new("phone", sid).can_update_metadata(false));
    let client = Client::builder().tool("source", "fails", source).join_over(connection).await.unwrap();
    let mut events = client.events();
    while !matches!(events.recv().await.unwrap(), Event::Unaccepted { why: Unaccepted::Refused { .. } }) {}
    let text = log.text();
    assert!(text.contains("its tools are not accepted") && text.contains("its token has no role"), "{text}");
    assert!(text.contains("no assistant accepts the offered tools: a answered: not admitted"), "{text}");
}

/// Includes the logs of the libraries that serve the connection.
#[tokio::test]
async fn sec_p3_bearer_token_of_the_mcp_server_stays_out_of_logs_and_debug_output() {
    use crate::mcp_server_http::{Served, initialize};

    let log = Log::default();
    let subscriber =
        tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(log.clone()).finish();
    let _here = tracing::subscriber::set_default(subscriber);
    let served = Served::new().await;
    assert_eq!(initialize(&served).await.status, 200);
    assert!(served.ask("tools/call", json!({"name": "get_battery"})).await["result"].is_object());
    let shown = format!("{:?} {}", served.listener, log.text());
    assert!(shown.contains("rmcp") && shown.contains("get_battery"), "the request was logged: {shown}");
    assert!(!shown.contains(served.listener.token()), "{shown}");
}
