//! The tools of a room in MCP hosts that nobody here wrote: the official SDKs for Node and Python, and the inspector.

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use rustix::process::Signal;
use serde_json::{Value, json};
use toolbridge::{Client, ErrorCode, Event, Events, Progress, ToolContext, ToolError, Tools};

use crate::{
    ends::{client, double, event},
    mcp::missing,
    program::{Planned, Program, script},
    server::{Server, shared},
    trial_with,
};

pub(crate) fn trials() -> Vec<Trial> {
    type Test = fn() -> std::pin::Pin<Box<dyn Future<Output = anyhow::Result<()>>>>;
    let tests: [(&str, Test); 5] = [
        ("host_over_stdio_of_the_node_sdk_calls_the_tools_of_the_room", || Box::pin(over_stdio(NODE))),
        ("host_over_http_of_the_node_sdk_calls_the_tools_of_the_room", || Box::pin(over_http(NODE))),
        ("host_over_stdio_of_the_python_sdk_calls_the_tools_of_the_room", || Box::pin(over_stdio(PYTHON))),
        ("host_over_http_of_the_python_sdk_calls_the_tools_of_the_room", || Box::pin(over_http(PYTHON))),
        ("inspector_lists_and_calls_the_tools_of_the_room", || Box::pin(inspector())),
    ];
    tests.into_iter().map(|(name, test)| trial_with(&format!("mcp_hosts::{name}"), missing, test)).collect()
}

/// A host, and the protocol version that it speaks with us.
struct Host {
    script: &'static str,
    name: &'static str,
    protocol: &'static str,
}

const NODE: Host = Host { script: "mcp/host.mjs", name: "node", protocol: "2025-11-25" };
const PYTHON: Host = Host { script: "mcp/host.py", name: "python", protocol: "2026-07-28" };

/// A program of `scripts/parts run`, which finds the built `toolbridge` on its path.
pub(crate) fn peer(server: &Server, program: &str, arguments: &[&str]) -> Planned {
    Program::other(server, &script().to_string_lossy(), &["run", program]).args(arguments)
}

async fn hang_with_progress(context: ToolContext) -> Result<(), ToolError> {
    context.progress(Progress::of(1, 2));
    context.cancelled().await;
    Err(ToolError::cancelled())
}

async fn phone(server: &Server, room: &str) -> anyhow::Result<Client> {
    let tools = Tools::new().tool("double", "", double).tool("hang", "", hang_with_progress);
    client(server, room, "phone", Client::builder().tools(tools)).await
}

/// Checks what a host prints, while it calls the tools of the phone.
async fn check(
    server: &Server,
    room: &str,
    host: &mut Program,
    events: &mut Events,
    about: Host,
) -> anyhow::Result<()> {
    let connected = host.event("connected").await?;
    ensure!(connected["protocol"] == about.protocol, "{connected}");
    let tools = host.event("tools").await?;
    ensure!(tools["names"] == json!(["double", "hang"]), "{tools}");
    let double = host.event("double").await?;
    ensure!(double["result"]["structuredContent"] == json!({"value": 42}), "{double}");
    let wrong = host.event("wrong").await?;
    ensure!(wrong["result"]["isError"] == true, "{wrong}");
    ensure!(wrong["result"]["_meta"]["dev.toolbridge/errorCode"] == "invalid_parameters", "{wrong}");
    let unknown = host.event("unknown").await?;
    ensure!(unknown["error"] == -32602, "{unknown}");
    let progress = host.event("progress").await?;
    ensure!(progress["progress"][0]["total"].as_f64() == Some(2.0), "{progress}");
    let outcome = event(events, "the end of the stopped call", outcome_of_hang).await?;
    ensure!(outcome == Err(ErrorCode::CANCELLED), "{outcome:?}");
    host.event("waiting").await?;
    let ring = Tools::new().tool("ring", "", crate::ends::hang);
    let _desk = client(server, room, "desk", Client::builder().tools(ring)).await?;
    let changed = host.event("changed").await?;
    ensure!(changed["names"] == json!(["double", "hang", "ring"]), "{changed}");
    host.event("closed").await?;
    Ok(())
}

fn outcome_of_hang(event: Event) -> Option<Result<(), ErrorCode>> {
    match event {
        Event::Settled { tool, outcome, .. } if tool == "hang" => Some(outcome),
        _ => None,
    }
}

async fn over_stdio(host: Host) -> anyhow::Result<()> {
    let (server, room) = (shared()?, format!("mcp-host-stdio-{}", host.name));
    let phone = phone(&server, &room).await?;
    let mut events = phone.events();
    let mut program = peer(&server, host.script, &["stdio", "toolbridge", "mcp", "--room", &room]).start()?;
    check(&server, &room, &mut program, &mut events, host).await?;
    ensure!(program.finish().await?.code == Some(0));
    Ok(())
}

/// `toolbridge mcp --listen`, with its URL and token.
pub(crate) struct Listening {
    program: Program,
    pub(crate) url: String,
    pub(crate) token: String,
}

pub(crate) async fn listening(server: &Server, room: &str) -> anyhow::Result<Listening> {
    let arguments = ["mcp", "--room", room, "--listen", "127.0.0.1:0"];
    let mut program = Program::toolbridge(server, &arguments).start()?;
    let mut word = async |line: &str| -> anyhow::Result<String> {
        let line = program.line(line).await?;
        Ok(line.split_whitespace().last().context("no words")?.to_owned())
    };
    let (url, token) = (word("url: ").await?, word("token: ").await?);
    Ok(Listening { program, url, token })
}

pub(crate) async fn stop(listening: Listening) -> anyhow::Result<()> {
    listening.program.signal(Signal::INT)?;
    let ended = listening.program.finish().await?;
    ensure!(ended.code == Some(0), "{ended:?}");
    Ok(())
}

async fn over_http(host: Host) -> anyhow::Result<()> {
    let (server, room) = (shared()?, format!("mcp-host-http-{}", host.name));
    let phone = phone(&server, &room).await?;
    let mut events = phone.events();
    let sink = listening(&server, &room).await?;
    let mut program = peer(&server, host.script, &["http", &sink.url, &sink.token]).start()?;
    check(&server, &room, &mut program, &mut events, host).await?;
    ensure!(program.finish().await?.code == Some(0));
    stop(sink).await
}

async fn inspector() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "mcp-inspector");
    let _phone = phone(&server, room).await?;
    let sink = listening(&server, room).await?;
    let header = format!("Authorization: Bearer {}", sink.token);
    let http = [sink.url.as_str(), "--transport", "http", "--header", &header];
    let tools = inspect(&server, &http, &["--method", "tools/list"]).await?;
    ensure!(names(&tools) == ["double", "hang"], "{tools}");
    let call = ["--method", "tools/call", "--tool-name", "double", "--tool-arg", "n=21"];
    let doubled = inspect(&server, &http, &call).await?;
    ensure!(doubled["structuredContent"]["value"] == 42, "{doubled}");
    stop(sink).await?;
    let child = ["toolbridge", "mcp", "--room", room];
    let doubled = inspect(&server, &child, &call).await?;
    ensure!(doubled["structuredContent"]["value"] == 42, "{doubled}");
    Ok(())
}

/// Returns what the inspector prints for one request.
async fn inspect(server: &Server, target: &[&str], request: &[&str]) -> anyhow::Result<Value> {
    // The server is a child of the inspector, which passes on only the variables that it is given.
    let secrets = ["LIVEKIT_URL", "LIVEKIT_API_KEY", "LIVEKIT_API_SECRET"];
    let values = [server.url(), crate::server::KEY.to_owned(), crate::server::SECRET.to_owned()];
    let variables: Vec<String> =
        secrets.iter().zip(values).map(|(name, value)| format!("{name}={value}")).collect();
    let mut program = peer(server, "mcp-inspector", &["--cli"]).args(target);
    if !target[0].starts_with("http") {
        for variable in &variables {
            program = program.args(&["-e", variable]);
        }
    }
    let output = program.args(&["--quiet", "--format", "json"]).args(request).run().await?;
    let mut answer: Value = serde_json::from_str(&output.stdout).with_context(|| format!("{output:?}"))?;
    Ok(answer["result"].take())
}

fn names(tools: &Value) -> Vec<&str> {
    tools["tools"].as_array().into_iter().flatten().filter_map(|tool| tool["name"].as_str()).collect()
}
