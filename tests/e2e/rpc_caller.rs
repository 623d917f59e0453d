//! Assistants that call apps by LiveKit's RPC: apps that use the official SDKs alone.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use rustix::process::Signal;
use serde_json::{Value, json};
use toolbridge::{
    Assistant, AssistantBuilder, CallError, Client, ConnectionState, Event, Tool, ToolResult,
    livekit::{ConnectOptions, E2eeKey, E2eeKeys},
    tools::Reach,
    transport::{
        Compression, Packet, RPC_RESPONSE_TOPIC, RpcError, RpcMessage, RpcResponse, TextStream,
        Transport as _,
    },
};

use crate::{
    ends::{client, double},
    program::{Program, missing_for},
    relay::Relay,
    server::shared,
    soon, trial_with,
};

/// The identity of the app.
const WEB: &str = "web";

/// The salt of a room that has its own.
const SALT: &str = "a salt of the app";

/// The key of encrypted rooms.
const E2EE_KEY: &str = "correct horse";

const METHODS: [&str; 8] = ["echo", "slow", "text", "large", "fail", "crash", "hang", "nothing"];

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (sdk, program) in SDKS.into_iter().chain(OLDER) {
        let mut add = |name: &str, test: fn(&'static str) -> Test| {
            let missing = move || missing_for(program);
            trials.push(trial_with(&format!("rpc_caller::{name}_{sdk}"), missing, move || test(program)));
        };
        add("app_is_called_in_all_sizes", |it| Box::pin(all_sizes(it)));
        add("failures_of_an_app_have_their_outcomes", |it| Box::pin(failures(it)));
        if OLDER.contains(&(sdk, program)) {
            continue;
        }
        add("app_in_an_encrypted_room_is_called_in_all_sizes", |it| Box::pin(encrypted(it)));
        add("app_with_another_key_is_lost", |it| Box::pin(another_key(it)));
        add("killed_or_frozen_app_is_lost_within_8_s", |it| Box::pin(killed(it)));
        add("app_that_joins_late_is_called", |it| Box::pin(late(it)));
        add("nobody_answers_for_the_app", |it| Box::pin(forged(it)));
    }
    for (name, test) in [
        ("app_is_called_from_the_command_line", (|| Box::pin(command_line()) as Test) as fn() -> Test),
        ("call_goes_on_when_the_assistant_joins_again", || Box::pin(rejoined())),
        ("key_of_the_room_changes_and_is_ratcheted", || Box::pin(rotated())),
    ] {
        let missing = || missing_for("rpc_methods.py");
        trials.push(trial_with(&format!("rpc_caller::{name}_python"), missing, test));
    }
    trials
}

/// The SDKs and their programs that register methods.
const SDKS: [(&str, &str); 3] =
    [("python", "rpc_methods.py"), ("node", "rpc_methods.mjs"), ("chromium", "rpc_browser.mjs methods")];

/// The same over older SDKs, which use two peer connections.
const OLDER: [(&str, &str); 2] =
    [("python_1_0", "older/rpc_methods.py"), ("node_0_13", "rpc_methods.mjs --sdk @livekit/rtc-node-0.13")];

/// The most bytes of a payload in version 1 of LiveKit's RPC, which older SDKs have.
const RPC_1_BYTES: usize = 15_360;

type Test = std::pin::Pin<Box<dyn Future<Output = anyhow::Result<()>>>>;

/// An app in this room, when it is there.
async fn app(room: &str, program: &str, key: Option<&str>) -> anyhow::Result<Program> {
    let server = shared()?;
    let token = server.key().participant(room, WEB).sign()?;
    let mut planned = Program::peer(&server, &token, program, &[])?;
    if let Some(key) = key {
        planned = planned.env("E2EE_KEY", key);
    }
    let mut app = planned.start()?;
    app.event("ready").await?;
    Ok(app)
}

fn ours() -> AssistantBuilder {
    let lamp = Tool::new("lamp_on".parse().expect("a name"), "of the app").with_rpc_method("lamp/on: all");
    METHODS.iter().fold(Assistant::builder().rpc_tool(WEB, lamp), |builder, name| {
        builder.rpc_tool(WEB, Tool::new(name.parse().expect("a name"), "of the app"))
    })
}

async fn join(room: &str, builder: AssistantBuilder) -> anyhow::Result<Assistant> {
    let server = shared()?;
    let token = server.key().assistant(room, "agent").sign()?;
    Ok(soon("a join", builder.join(&server.url(), &token)).await??)
}

/// An assistant that is ready to call the app.
async fn ready(room: &str, builder: AssistantBuilder) -> anyhow::Result<Assistant> {
    let assistant = join(room, builder).await?;
    let tools = assistant.ready(WEB).await?;
    ensure!(tools.len() == METHODS.len() + 1, "{tools:?}");
    Ok(assistant)
}

async fn all_sizes(program: &str) -> anyhow::Result<()> {
    let room = format!("rpc-app-sizes-{program}");
    let _app = app(&room, program, None).await?;
    let assistant = ready(&room, ours()).await?;
    let is_older = OLDER.iter().any(|(_, older)| *older == program);
    let reach = if is_older { Reach::Rpc1 } else { Reach::Rpc2 };
    ensure!(assistant.tools().iter().all(|offer| offer.reach == Some(reach)), "{:?}", assistant.tools());
    for size in [2, 200, 14_000, 16_000, 1 << 20] {
        if is_older && size > RPC_1_BYTES {
            for (tool, arguments, code) in [
                ("echo", json!({"text": "x".repeat(size)}), "too_large"),
                ("large", json!({"bytes": size}), "result_too_large"),
            ] {
                let refused = assistant.call(tool, arguments).await.err().context("it is too large")?;
                ensure!(refused.code().as_str() == code, "{tool}: {refused:?}");
            }
            continue;
        }
        let value = json!({"text": "ü€x".repeat(size / 6), "n": size});
        let answer = assistant.call("echo", &value).await?;
        ensure!(answer.to_json() == value, "{size}");
        let answer = assistant.call("large", json!({"bytes": size.max(20)})).await?;
        let length = answer.to_json()["text"].as_str().map_or(0, str::len);
        ensure!(length + r#"{"text":""}"#.len() == size.max(20), "{size}: {length}");
    }
    let value = assistant.call("text", ()).await?;
    ensure!(value.to_json() == json!({"value": "at home"}), "{value:?}");
    ensure!(ToolResult::of(&value).for_model(100).text == "at home");
    for kind in ["malformed", "unauthorized", "not_permitted", "stream_broken", "hold_expired"] {
        ensure!(assistant.stats().named(kind) == 0, "{:?}", assistant.stats());
    }
    Ok(())
}

async fn failures(program: &str) -> anyhow::Result<()> {
    let room = format!("rpc-app-failures-{program}");
    let mut app = app(&room, program, None).await?;
    let assistant = ready(&room, ours()).await?;
    match assistant.call("fail", ()).await {
        Err(CallError::Tool(error)) => {
            ensure!(error.message() == "the lamp is broken", "{error}");
            ensure!(error.partial().map(|it| it.to_json()) == Some(json!({"left": 2})), "{error:?}");
            ensure!(error.rpc_code() == Some(101), "{error:?}");
        }
        other => anyhow::bail!("{other:?}"),
    }
    let crashed = assistant.call("crash", ()).await.err().context("it ended well")?;
    ensure!(crashed.code().as_str() == "execution_error" && crashed.may_have_run(), "{crashed:?}");
    let unknown = assistant.call("nothing", ()).await.err().context("it ended well")?;
    ensure!(matches!(&unknown, CallError::UnknownTool { .. }) && !unknown.may_have_run(), "{unknown:?}");
    let late = assistant.call("slow", ()).timeout(Duration::from_secs(1)).await.err();
    app.find("the first run", |line| line.contains("slow").then_some(())).await?;
    ensure!(matches!(late, Some(CallError::Timeout { .. })), "{late:?}");
    let mut cancelled = assistant.call("slow", ()).start();
    app.find("the second run", |line| line.contains("slow").then_some(())).await?;
    cancelled.cancel();
    let cancelled = cancelled.await.err();
    ensure!(matches!(cancelled, Some(CallError::Cancelled)), "{cancelled:?}");
    // Both run on, and their answers are late.
    soon("the late answers", async {
        while assistant.stats().named("late") < 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await?;
    for tool in ["echo", "lamp_on"] {
        let echoed = assistant.call(tool, json!({"n": 1})).await?;
        ensure!(echoed.to_json() == json!({"n": 1}), "{tool}");
    }
    Ok(())
}

async fn killed(program: &str) -> anyhow::Result<()> {
    // The pages of other tests are in the shared browser.
    let own_browser = format!("{program} --own-browser");
    let program = if program.starts_with("rpc_browser") { &own_browser } else { program };
    for signal in [Signal::KILL, Signal::STOP] {
        let room = format!("rpc-app-killed-{program}-{signal:?}");
        let mut app = app(&room, program, None).await?;
        let assistant = ready(&room, ours()).await?;
        let call = assistant.call("hang", ()).timeout(Duration::from_secs(60)).start();
        app.event("ran").await?;
        app.signal_all(signal)?;
        let began = Instant::now();
        let outcome = call.await;
        let took = began.elapsed();
        println!("{program}, {signal:?}: {took:?}");
        ensure!(matches!(outcome, Err(CallError::Lost { .. })), "{outcome:?}");
        ensure!(took < Duration::from_secs(8), "{took:?}");
        app.signal_all(Signal::CONT)?;
    }
    Ok(())
}

async fn late(program: &str) -> anyhow::Result<()> {
    let room = format!("rpc-app-late-{program}");
    let assistant = join(&room, ours()).await?;
    let call = assistant.call("echo", json!({"n": 7})).owner_wait(Duration::from_secs(25)).start();
    let _app = app(&room, program, None).await?;
    // Methods are registered after the join: an app that is called before answers that it has none.
    match call.await {
        Ok(value) => ensure!(value.to_json() == json!({"n": 7}), "{value:?}"),
        Err(error) => ensure!(matches!(error, CallError::UnknownTool { .. }), "{error:?}"),
    }
    let value = assistant.call("echo", json!({"n": 8})).await?;
    ensure!(value.to_json() == json!({"n": 8}), "{value:?}");
    Ok(())
}

/// Another participant, an agent, knows the id and sends everything that could end the call.
async fn forged(program: &str) -> anyhow::Result<()> {
    let (server, room) = (shared()?, format!("rpc-app-forged-{program}"));
    let mut app = app(&room, program, None).await?;
    let assistant = ready(&room, ours()).await?;
    let token = server.key().assistant(&room, "mallory").sign()?;
    let mallory = ConnectOptions::new().announce_rpc(true).join(&server.url(), &token).await?;
    soon("mallory", async {
        while !assistant.participants().iter().any(|who| *who.identity() == "mallory") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await?;
    let call = assistant.call("slow", json!({"n": 1})).start();
    app.event("ran").await?;
    let id = call.id().context("no id")?.as_str().to_owned();
    let response =
        |outcome| Packet::rpc("agent".into(), RpcMessage::Response(RpcResponse::new(&*id, outcome)));
    let forged = r#"{"by": "mallory"}"#;
    let text = |inline: bool| {
        let mut stream = TextStream::new(forged.len());
        stream.attributes.insert("lk.rpc_request_id".to_owned(), id.clone());
        (stream.inline, stream.compression) = (inline, Compression::None);
        let mut packet = Packet::text("agent".into(), RPC_RESPONSE_TOPIC, forged, stream);
        packet.stream = Some(format!("s-{inline}").into());
        packet
    };
    for packet in [
        Packet::rpc("agent".into(), RpcMessage::Ack { id: id.clone() }),
        response(Ok(forged.into())),
        response(Err(RpcError::new(1400, "no", ""))),
        response(Err(RpcError::new(1500, "no", ""))),
        text(true),
        text(false),
    ] {
        mallory.send(packet).await?;
    }
    let value = call.await?;
    ensure!(value.to_json() == json!({"n": 1}), "{value:?}");
    // The chunk and the trailer belong to no stream.
    let stats = assistant.stats();
    ensure!(stats.named("not_permitted") == 6 && stats.named("stream_unknown") == 2, "{stats:?}");
    Ok(())
}

async fn command_line() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "rpc-app-command-line");
    let _app = app(room, "rpc_methods.py", None).await?;
    let call = async |arguments: &[&str]| {
        let there = ["--room", room, "--to", WEB, "--via", "rpc", "--wait", "20s", "--json"];
        let output = Program::toolbridge(&server, &[&["call"], arguments, &there].concat()).run().await?;
        let line: Value = serde_json::from_str(&output.stdout).with_context(|| format!("{output:?}"))?;
        anyhow::Ok((output.code, line))
    };
    for method in ["echo", "lamp/on: all"] {
        let (code, line) = call(&[method, r#"{"n": 1}"#]).await?;
        ensure!(code == Some(0) && line["value"] == json!({"n": 1}), "{line}");
    }
    let (code, line) = call(&["fail"]).await?;
    let error = json!({
        "kind": "tool", "code": "execution_error", "message": "the lamp is broken", "mayHaveRun": true,
        "partial": {"left": 2}, "rpcCode": 101,
    });
    ensure!(code == Some(1) && line["error"] == error, "{line}");
    let (code, line) = call(&["dance"]).await?;
    ensure!(
        code == Some(4) && line["error"]["code"] == "unknown_tool" && line["error"]["mayHaveRun"] == false,
        "{line}"
    );
    let _phone = client(&server, room, "phone", Client::builder().tool("double", "", double)).await?;
    let listed = Program::toolbridge(&server, &["tools", "--room", room]).run().await?;
    let is_app = |line: &str| line.starts_with(WEB) && line.contains("rpc 2") && line.contains("--via rpc");
    ensure!(listed.stdout.lines().any(is_app), "{listed:?}");
    let is_phone =
        |line: &str| ["phone", "double", "toolbridge"].into_iter().eq(line.split_whitespace().take(3));
    ensure!(listed.stdout.lines().any(is_phone), "{listed:?}");
    Ok(())
}

async fn encrypted(program: &str) -> anyhow::Result<()> {
    let room = format!("rpc-app-encrypted-{program}");
    let _app = app(&room, program, Some(E2EE_KEY)).await?;
    let options = ConnectOptions::new().e2ee_key(E2eeKey::new(E2EE_KEY));
    let assistant = ready(&room, ours().connect_options(options)).await?;
    for size in [200, 14_000, 16_000, 1 << 20] {
        let value = json!({"text": "x".repeat(size)});
        ensure!(assistant.call("echo", &value).await?.to_json() == value, "{size}");
    }
    let unknown = assistant.call("nothing", ()).await.err();
    ensure!(matches!(unknown, Some(CallError::UnknownTool { .. })), "{unknown:?}");
    for kind in ["undecryptable", "not_encrypted", "malformed", "stream_broken"] {
        ensure!(assistant.stats().named(kind) == 0, "{:?}", assistant.stats());
    }
    Ok(())
}

/// The app's SDK changes the shared key while all are in the room: to another place of the ring, and by its ratchet.
async fn rotated() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "rpc-app-rotated");
    let token = server.key().participant(room, WEB).sign()?;
    let app = Program::peer(&server, &token, "rpc_methods.py", &[])?;
    let mut app = app.env("E2EE_KEY", E2EE_KEY).env("E2EE_SALT", SALT).start()?;
    app.event("ready").await?;
    let key = |secret: &str| E2eeKey::new(secret).salt(SALT);
    let keys = E2eeKeys::new(key(E2EE_KEY).index(0)?);
    let rotate = Tool::new("rotate".parse()?, "Changes the key");
    let options = ConnectOptions::new().e2ee_keys(&keys);
    let assistant = join(room, ours().rpc_tool(WEB, rotate).connect_options(options)).await?;
    assistant.ready(WEB).await?;
    let echo = async || {
        let echoed = assistant.call("echo", json!({"n": 1})).await?;
        ensure!(echoed.to_json() == json!({"n": 1}), "{echoed:?}");
        anyhow::Ok(())
    };
    echo().await?;
    assistant.call("rotate", json!({"key": "the second", "index": 1})).await?;
    app.event("rotated").await?;
    keys.set(key("the second").index(1)?);
    echo().await?;
    assistant.call("rotate", json!({"index": 1})).await?;
    app.event("rotated").await?;
    keys.ratchet();
    echo().await?;
    Ok(())
}

/// An app that cannot read its requests says nothing.
async fn another_key(program: &str) -> anyhow::Result<()> {
    let room = format!("rpc-app-another-key-{program}");
    let _app = app(&room, program, Some("another")).await?;
    let options = ConnectOptions::new().e2ee_key(E2eeKey::new(E2EE_KEY));
    let assistant = ready(&room, ours().connect_options(options)).await?;
    let began = Instant::now();
    let outcome = assistant.call("echo", json!({"n": 1})).await;
    ensure!(matches!(outcome, Err(CallError::Lost { .. })), "{outcome:?}");
    // The first call waits for up to 3.5 s for the announcement, then for the answers to pings.
    ensure!(began.elapsed() < Duration::from_secs(12), "{:?}", began.elapsed());
    Ok(())
}

/// The server removes the assistant, which joins again under another sid while the app runs its call.
async fn rejoined() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "rpc-app-rejoined");
    let mut app = app(room, "rpc_methods.py", None).await?;
    let relay = Relay::start(&server).await?;
    let token = server.key().assistant(room, "agent").sign()?;
    let assistant = soon("a join", ours().join(&relay.url(), &token)).await??;
    assistant.ready(WEB).await?;
    let mut events = assistant.events();
    let call = assistant.call("slow", json!({"n": 3})).start();
    app.event("ran").await?;
    relay.evict();
    let is_back = |event: &Event| matches!(event, Event::ConnectionState(ConnectionState::Connected));
    soon("the rejoin", async { while events.recv().await.is_some_and(|event| !is_back(&event)) {} }).await?;
    let value = call.await?;
    ensure!(value.to_json() == json!({"n": 3}), "{value:?}");
    // The room announces the assistant again before the next call is sent.
    let value = assistant.call("echo", json!({"n": 4})).await?;
    ensure!(value.to_json() == json!({"n": 4}), "{value:?}");
    Ok(())
}
