//! Clients that answer LiveKit's RPC, called by the official SDKs.

use std::time::Duration;

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use toolbridge::{
    Client, ToolError,
    livekit::{ConnectOptions, E2eeKey},
    transport::{Packet, RpcMessage, RpcRequest, Transport as _, TransportEvent},
};

use crate::{
    ends::{client, double, hang},
    program::{Program, missing_for, tools_file},
    server::shared,
    soon, trial_with,
};

/// The time limit of a program with all its calls.
const CALLS_TAKE: Duration = Duration::from_secs(120);

/// The key of encrypted rooms.
const E2EE_KEY: &str = "correct horse";

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (sdk, program) in SDKS.into_iter().chain(OLDER) {
        let mut add = |name: &str, test: fn(&'static str) -> Test| {
            let missing = move || missing_for(program);
            trials.push(trial_with(&format!("rpc::{name}_{sdk}"), missing, move || test(program)));
        };
        add("client_is_called_in_all_sizes_from", |it| Box::pin(all_sizes(it)));
        add("failures_of_a_client_reach", |it| Box::pin(failures(it)));
        if OLDER.contains(&(sdk, program)) {
            continue;
        }
        add("client_serves_only_its_assistant_and_not", |it| Box::pin(strangers(it)));
        add("recorded_client_is_called_from", |it| Box::pin(recorded(it)));
        add("client_without_rpc_is_not_called_from", |it| Box::pin(without_rpc(it)));
        add("encrypted_client_is_called_in_all_sizes_from", |it| Box::pin(encrypted(it)));
        add("client_with_another_key_is_not_called_from", |it| Box::pin(another_key(it)));
    }
    trials.extend(trials![rpc: repeated_request_runs_once, call_of_the_server_api_is_refused]);
    let python = || missing_for("rpc_calls.py");
    trials.push(trial_with("rpc::client_of_the_command_line_is_called_from_python", python, || {
        Box::pin(command_line()) as Test
    }));
    trials
}

/// The SDKs and their programs that call.
const SDKS: [(&str, &str); 3] =
    [("python", "rpc_calls.py"), ("node", "rpc_calls.mjs"), ("chromium", "rpc_browser.mjs calls")];

/// The same over older SDKs, which use two peer connections.
const OLDER: [(&str, &str); 2] =
    [("python_1_0", "older/rpc_calls.py"), ("node_0_13", "rpc_calls.mjs --sdk @livekit/rtc-node-0.13")];

/// The most bytes of a payload in version 1 of LiveKit's RPC, which older SDKs have.
const RPC_1_BYTES: u64 = 15_360;

type Test = std::pin::Pin<Box<dyn Future<Output = anyhow::Result<()>>>>;

#[derive(Serialize, Deserialize, JsonSchema)]
struct Text {
    text: String,
}

async fn echo(text: Text) -> Result<Text, ToolError> {
    Ok(text)
}

async fn fail() -> Result<(), ToolError> {
    Err(ToolError::new("out_of_range", "the watch is out of range"))
}

async fn slow() -> Result<u32, ToolError> {
    tokio::time::sleep(Duration::from_secs(3)).await;
    Ok(3)
}

pub(crate) fn ours() -> toolbridge::ClientBuilder {
    Client::builder()
        .tool("double", "", double)
        .tool("echo", "", echo)
        .tool("fail", "", fail)
        .tool("slow", "", slow)
        .tool("hang", "", hang)
}

/// Lets an SDK participant of this kind make the calls. Returns what it printed about each.
pub(crate) async fn calls(
    room: &str,
    program: &str,
    is_agent: bool,
    key: Option<&str>,
    calls: Value,
) -> anyhow::Result<Vec<Value>> {
    let server = shared()?;
    let token = match is_agent {
        true => server.key().assistant(room, "agent").sign()?,
        false => server.key().client(room, "stranger").sign()?,
    };
    let count = calls.as_array().map_or(0, Vec::len);
    let mut planned = Program::peer(&server, &token, program, &["phone", &calls.to_string()])?;
    if let Some(key) = key {
        planned = planned.env("E2EE_KEY", key);
    }
    let output = planned.start()?.finish_within(CALLS_TAKE).await?;
    ensure!(output.code == Some(0), "{output:?}");
    let lines = output.stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let results: Vec<_> = lines.filter(|line| line["event"] == "result").collect();
    ensure!(results.len() == count, "{output:?}");
    Ok(results)
}

async fn all_sizes(program: &str) -> anyhow::Result<()> {
    let (server, room) = (shared()?, format!("rpc-sizes-{program}"));
    let phone = client(&server, &room, "phone", ours().answer_rpc()).await?;
    let echo = |bytes: usize| json!({"method": "echo", "bytes": bytes});
    let asked = json!([
        {"method": "double", "payload": r#"{"n": 21}"#},
        {"method": "hang", "payload": "{", "timeout": 10},
        echo(200),
        echo(14_000),
        echo(16_000),
        echo(1 << 20),
        {"method": "double", "payload": r#"{"n": 4}"#},
        // LiveKit's core sends max(T − 7 s, 1 s) as the timeout.
        {"method": "slow", "payload": "", "timeout": 5},
    ]);
    let results = calls(&room, program, true, None, asked).await?;
    println!("{program}: {results:?}");
    ensure!(results[0]["payload"] == "42");
    ensure!(
        results[1]["code"] == 1500
            && results[1]["message"].as_str().unwrap_or_default().starts_with("invalid_parameters")
    );
    let text = results[2]["payload"].as_str().unwrap_or_default();
    ensure!((180..220).contains(&text.len()), "{text}");
    let is_older = OLDER.iter().any(|(_, older)| *older == program);
    for (at, size) in [(3, 14_000), (4, 16_000), (5, 1 << 20)] {
        if is_older && size > RPC_1_BYTES {
            ensure!(results[at]["code"] == 1402, "the SDK refuses it itself: {}", results[at]);
        } else {
            ensure!(results[at]["same"] == true && results[at]["length"].as_u64() > Some(size - 100));
        }
    }
    ensure!(results[6]["payload"] == "8" && results[7]["payload"] == "3");
    ensure!(phone.assistant().is_some_and(|it| it == "agent") || phone.assistant().is_none());
    ensure!(phone.stats().named("jobs") == if is_older { 5 } else { 7 }, "{:?}", phone.stats());
    for kind in ["malformed", "unauthorized", "not_permitted", "stream_broken", "hold_expired"] {
        ensure!(phone.stats().named(kind) == 0, "{:?}", phone.stats());
    }
    Ok(())
}

async fn failures(program: &str) -> anyhow::Result<()> {
    let (server, room) = (shared()?, format!("rpc-failures-{program}"));
    let _phone = client(&server, &room, "phone", ours().answer_rpc()).await?;
    let asked = json!([
        {"method": "fail", "payload": ""},
        {"method": "fly", "payload": ""},
        {"method": "double", "payload": r#"{"n": "x"}"#},
        {"method": "echo", "payload": "[1]"},
        {"method": "hang", "payload": "", "timeout": 8},
    ]);
    let results = calls(&room, program, true, None, asked).await?;
    println!("{program}: {results:?}");
    let code = |at: usize| results[at]["code"].as_u64();
    ensure!(code(0) == Some(1500) && results[0]["message"] == "out_of_range: the watch is out of range");
    let data: Value = serde_json::from_str(results[0]["data"].as_str().unwrap_or_default())?;
    ensure!(data == json!({"code": "out_of_range", "message": "the watch is out of range"}));
    ensure!(code(1) == Some(1400) && code(2) == Some(1500) && code(3) == Some(1500));
    // The client stops the tool 7 s after the timeout on the wire, 1 s; the caller has waited for 8 s.
    ensure!(code(4) == Some(1502), "{:?}", results[4]);
    Ok(())
}

async fn strangers(program: &str) -> anyhow::Result<()> {
    let (server, room) = (shared()?, format!("rpc-strangers-{program}"));
    let phone = client(&server, &room, "phone", ours().answer_rpc()).await?;
    let asked = json!([{"method": "double", "payload": r#"{"n": 21}"#}]);
    let results = calls(&room, program, false, None, asked.clone()).await?;
    let data: Value = serde_json::from_str(results[0]["data"].as_str().unwrap_or_default())?;
    ensure!(results[0]["code"] == 1500 && data["code"] == "permission_denied", "{results:?}");
    ensure!(phone.stats().named("jobs") == 0 && phone.stats().named("unauthorized") == 1);
    phone.close().await;
    let named = ours().rpc_caller("stranger");
    let phone = client(&server, &format!("{room}-named"), "phone", named).await?;
    let results = calls(&format!("{room}-named"), program, false, None, asked).await?;
    ensure!(results[0]["payload"] == "42" && phone.assistant().is_none(), "{results:?}");
    Ok(())
}

async fn without_rpc(program: &str) -> anyhow::Result<()> {
    let (server, room) = (shared()?, format!("rpc-without-{program}"));
    let phone = client(&server, &room, "phone", ours()).await?;
    let asked = json!([{"method": "double", "payload": r#"{"n": 21}"#, "timeout": 8}]);
    let results = calls(&room, program, true, None, asked).await?;
    ensure!(results[0]["code"] == 1501, "{results:?}");
    ensure!(phone.stats().named("jobs") == 0);
    Ok(())
}

async fn command_line() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "rpc-command-line");
    let file = tools_file(room, &[("where_is", r#"echo "{\"room\": \"kitchen\"}""#)])?;
    let arguments =
        ["client", "--room", room, "--identity", "phone", "--answer-rpc", "--rpc-caller", "stranger"];
    let mut phone = Program::toolbridge(&server, &arguments).arg("--tools").arg(&file).start()?;
    phone.line("joined as phone").await?;
    let asked = json!([{"method": "where_is", "payload": ""}]);
    let results = calls(room, "rpc_calls.py", false, None, asked).await?;
    ensure!(results[0]["payload"] == r#"{"room":"kitchen"}"#, "{results:?}");
    Ok(())
}

/// SDKs do not repeat an id, but a participant can.
async fn repeated_request_runs_once() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "rpc-repeated");
    let phone = client(&server, room, "phone", ours().answer_rpc()).await?;
    let token = server.key().assistant(room, "agent").sign()?;
    let options = ConnectOptions::new().announce_rpc(true);
    let mut agent = options.join(&server.url(), &token).await?;
    let request = |payload: &str| {
        let request = RpcRequest::new("r1", "double", payload.to_owned(), 5_000);
        Packet::rpc("phone".into(), RpcMessage::Request(request))
    };
    let mut answers = Vec::new();
    for payload in [r#"{"n": 21}"#, r#"{"n": 21}"#, r#"{"n": 4}"#] {
        agent.send(request(payload)).await?;
        let answer = loop {
            match soon("an answer", agent.recv()).await?.context("the connection ended")? {
                TransportEvent::Rpc { message: RpcMessage::Response(it), from } => {
                    ensure!(from.is_some_and(|it| *it.identity() == "phone"));
                    break it;
                }
                TransportEvent::Rpc { message, .. } => {
                    ensure!(message == RpcMessage::Ack { id: "r1".into() })
                }
                _ => {}
            }
        };
        answers.push(answer.outcome.map_err(|error| error.code));
    }
    ensure!(answers == [Ok("42".into()), Ok("42".into()), Err(1500)], "{answers:?}");
    ensure!(phone.stats().named("jobs") == 1, "{:?}", phone.stats());
    Ok(())
}

async fn call_of_the_server_api_is_refused() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "rpc-server-api");
    let phone = client(&server, room, "phone", ours().answer_rpc()).await?;
    let body = json!({
        "room": room,
        "destinationIdentity": "phone",
        "method": "double",
        "payload": r#"{"n": 21}"#,
        "responseTimeoutMs": 2_000,
    });
    // An error that arrives before the server has noted its own request is a timeout there.
    let answer = server.room_service_answer("PerformRpc", room, body).await?;
    ensure!(!answer.starts_with("HTTP/1.1 200") && !answer.contains("42"), "{answer}");
    let stats = phone.stats();
    ensure!(stats.named("jobs") == 0 && stats.named("unauthorized") == 1, "{answer}: {stats:?}");
    ensure!(phone.assistant().is_none(), "{answer}");
    Ok(())
}

async fn login(text: Text) -> Result<Value, ToolError> {
    Ok(json!({"user": text.text, "sessionToken": "hunter2-token"}))
}

/// Runs a verb with a recording.
async fn verb(arguments: &[&str]) -> anyhow::Result<(String, Option<i32>)> {
    let program = tokio::process::Command::new(env!("CARGO_BIN_EXE_toolbridge")).args(arguments).output();
    let output = soon("a verb", program).await??;
    let text = [output.stdout, output.stderr].concat();
    Ok((String::from_utf8_lossy(&text).into_owned(), output.status.code()))
}

async fn recorded(program: &str) -> anyhow::Result<()> {
    let (server, room) = (shared()?, format!("rpc-recorded-{program}"));
    let folder = crate::program::folder(&room)?;
    let (file, copy) = (folder.join("phone.mcap"), folder.join("copy.mcap"));
    let ours = ours().tool("login", "", login).answer_rpc().record(&file);
    let phone = client(&server, &room, "phone", ours).await?;
    let asked = json!([
        {"method": "double", "payload": r#"{"n": 21}"#},
        {"method": "login", "payload": r#"{"text": "ada", "password": "hunter2-password"}"#},
        {"method": "echo", "bytes": 14_000},
        {"method": "echo", "bytes": 200_000},
        {"method": "fail", "payload": ""},
        {"method": "fly", "payload": ""},
        {"method": "echo", "payload": "{"},
        {"method": "hang", "payload": "", "timeout": 2},
        {"method": "double", "payload": r#"{"n": 4}"#},
    ]);
    let results = calls(&room, program, true, None, asked).await?;
    ensure!(results[8]["payload"] == "8", "{results:?}");
    phone.close().await;
    let path = file.to_str().context("the path is text")?;
    let (info, code) = verb(&["info", path, "--json"]).await?;
    let info: Value = serde_json::from_str(&info)?;
    ensure!(code == Some(0) && info["finished"] == true && info["malformed"] == 0, "{info}");
    ensure!(info["frames"]["RpcRequest"] == 9 && info["frames"]["RpcAck"] == 9, "{info}");
    let (found, code) = verb(&["check", path]).await?;
    ensure!(code == Some(0), "{found}");
    let (found, code) = verb(&["calls", path, "--json"]).await?;
    let found: Vec<Value> = serde_json::from_str(&found)?;
    let outcomes: Vec<_> = found.iter().map(|it| it["outcome"].as_str().unwrap_or_default()).collect();
    let last = outcomes.get(7).copied().unwrap_or_default();
    ensure!(["open", "timeout", "cancelled"].contains(&last), "{outcomes:?}");
    let expected = ["ok", "ok", "ok", "ok", "out_of_range", "unknown_tool", "invalid_parameters", last, "ok"];
    ensure!(code == Some(0) && outcomes == expected, "{outcomes:?}");
    ensure!(found.iter().all(|it| it["rpc"] == 2 && it["caller"] == "agent" && it["owner"] == "phone"));
    let (text, code) = verb(&["cat", path]).await?;
    ensure!(code == Some(0) && text.contains("RpcResponse") && !text.contains("malformed"), "{text}");
    let (report, code) = verb(&["replay", path]).await?;
    ensure!(code == Some(0), "{report}");
    let redacted = copy.to_str().context("the path is text")?;
    let (said, code) = verb(&["redact", path, redacted]).await?;
    ensure!(code == Some(0), "{said}");
    let (report, code) = verb(&["replay", redacted]).await?;
    ensure!(code == Some(0), "{report}");
    for (path, secrets) in [(path, &["hunter2"][..]), (redacted, &["hunter2", "\"ada\"", "17 18 19"][..])] {
        let (json, code) = verb(&["cat", path, "--format", "ndjson"]).await?;
        ensure!(code == Some(0) && json.contains("login"), "{json}");
        ensure!(!secrets.iter().any(|secret| json.contains(secret)), "{path} has a secret");
        let (findings, _, code) = crate::judges::doctor(std::path::Path::new(path)).await?;
        ensure!(code == Some(0) && findings.iter().all(|(level, _)| level != "error"), "{findings:?}");
    }
    Ok(())
}

async fn encrypted(program: &str) -> anyhow::Result<()> {
    let (server, room) = (shared()?, format!("rpc-encrypted-{program}"));
    let options = ConnectOptions::new().e2ee_key(E2eeKey::new(E2EE_KEY));
    let phone = client(&server, &room, "phone", ours().answer_rpc().connect_options(options)).await?;
    let echo = |bytes: usize| json!({"method": "echo", "bytes": bytes});
    let asked = json!([
        {"method": "double", "payload": r#"{"n": 21}"#},
        echo(200),
        echo(14_000),
        echo(16_000),
        echo(1 << 20),
        {"method": "fly", "payload": ""},
    ]);
    let results = calls(&room, program, true, Some(E2EE_KEY), asked).await?;
    println!("{program}: {results:?}");
    ensure!(results[0]["payload"] == "42" && results[5]["code"] == 1400, "{results:?}");
    ensure!(results[1]["payload"].as_str().is_some_and(|text| (180..220).contains(&text.len())));
    ensure!(results[2..5].iter().all(|result| result["same"] == true), "{results:?}");
    for kind in ["undecryptable", "not_encrypted", "malformed", "stream_broken"] {
        ensure!(phone.stats().named(kind) == 0, "{:?}", phone.stats());
    }
    Ok(())
}

async fn another_key(program: &str) -> anyhow::Result<()> {
    let (server, room) = (shared()?, format!("rpc-another-key-{program}"));
    let options = ConnectOptions::new().e2ee_key(E2eeKey::new(E2EE_KEY));
    let phone = client(&server, &room, "phone", ours().answer_rpc().connect_options(options)).await?;
    let asked = json!([{"method": "double", "payload": r#"{"n": 21}"#, "timeout": 8}]);
    let results = calls(&room, program, true, Some("another"), asked).await?;
    ensure!(results[0]["code"] == 1501, "{results:?}");
    let stats = phone.stats();
    ensure!(stats.named("jobs") == 0 && stats.named("undecryptable") > 0, "{stats:?}");
    Ok(())
}
