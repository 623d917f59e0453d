//! The tools of a room as a RAP toolset, called by a runtime over the published crate `rap-client`.

use std::{collections::VecDeque, path::PathBuf, process::Command, sync::OnceLock};

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use rustix::process::Signal;
use serde_json::{Value, json};
use toolbridge::{
    Client, ToolError, ToolResult, Tools,
    result::{ContentBlock, Media},
};

use crate::{
    ends::{Running, client, double},
    program::{Program, script},
    server::{self, Server, shared},
    trial_with,
};

pub(crate) fn trials() -> Vec<Trial> {
    type Test = fn() -> std::pin::Pin<Box<dyn Future<Output = anyhow::Result<()>>>>;
    let tests: [(&str, Test); 4] = [
        ("public_url_has_the_secret_path", || Box::pin(behind_a_proxy())),
        ("result_is_posted_five_times_to_a_callback_that_fails", || Box::pin(failing_callback())),
        ("runtime_of_the_published_crate_calls_the_tools_of_a_room", || Box::pin(over_the_verb())),
        (
            "runtime_of_the_published_crate_calls_tools_beside_an_assistant",
            || Box::pin(beside_an_assistant()),
        ),
    ];
    tests.into_iter().map(|(name, test)| trial_with(&format!("rap_runtime::{name}"), missing, test)).collect()
}

fn missing() -> Option<&'static str> {
    if server::kind() == server::Kind::LiveKit && server::binary().is_none() {
        return Some("livekit-server");
    }
    runtime().is_none().then_some("tests/peers/rap (scripts/parts rap-peers)")
}

/// Returns the built program.
fn runtime() -> Option<PathBuf> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    let find = || {
        let found = Command::new(script()).args(["rap-peers", "find"]).output().ok()?;
        let folder = String::from_utf8(found.stdout).ok().filter(|_| found.status.success())?;
        Some(PathBuf::from(folder.trim()).join("runtime"))
    };
    FOUND.get_or_init(find).clone()
}

async fn shoot() -> Result<ToolResult, ToolError> {
    let image = Media::encode(&vec![7; 1 << 20], "image/png");
    Ok(ToolResult::text("a picture").with_block(ContentBlock::image(image)))
}

async fn fail() -> Result<(), ToolError> {
    Err(ToolError::new("no_paper", "the printer has no paper; refill it"))
}

async fn phone(server: &Server, room: &str) -> anyhow::Result<(Client, Running)> {
    let running = Running::default();
    let tools = Tools::new().tool("double", "", double).tool("shoot", "", shoot).tool("fail", "", fail);
    let builder = Client::builder().tools(tools).tools(running.tools());
    Ok((client(server, room, "phone", builder).await?, running))
}

/// A runtime, and the callbacks that came before they were looked for.
struct Runtime {
    program: Program,
    early: VecDeque<Value>,
}

impl Runtime {
    async fn start(server: &Server, url: &str) -> anyhow::Result<Self> {
        let program = runtime().context("no runtime")?;
        let mut program = Program::other(server, &program.to_string_lossy(), &[url]).start()?;
        let toolset = program.event("toolset").await?;
        ensure!(toolset["tools"] == json!(["double", "fail", "held", "shoot"]), "{toolset}");
        ensure!(toolset["name"] == "toolbridge" && toolset["migrates"] == false, "{toolset}");
        Ok(Self { program, early: VecDeque::new() })
    }

    /// Calls a tool in the thread `g`, and checks that the call is accepted.
    async fn call(&mut self, id: &str, operation: &str, more: Value) -> anyhow::Result<()> {
        let mut call = json!({"operation": operation, "arguments": {}, "id": id, "group_id": "g"});
        for (key, value) in more.as_object().into_iter().flatten() {
            call[key] = value.clone();
        }
        let answered = self.send(&json!({ "call": call }), "answered").await?;
        ensure!(answered["status"] == 200 && answered["id"] == id, "{answered}");
        Ok(())
    }

    /// Sends a command, and returns the event that ends it. Callbacks may come before.
    async fn send(&mut self, command: &Value, event: &str) -> anyhow::Result<Value> {
        self.program.write(&command.to_string()).await?;
        loop {
            let next = self.next().await?;
            if next["event"] == event {
                return Ok(next);
            }
            self.early.push_back(next);
        }
    }

    async fn next(&mut self) -> anyhow::Result<Value> {
        self.program.find("an event", |line| serde_json::from_str(line).ok()).await
    }

    /// Waits for the next callback.
    async fn callback(&mut self) -> anyhow::Result<Value> {
        let mut event = match self.early.pop_front() {
            Some(event) => event,
            None => self.next().await?,
        };
        let mut message = event["message"].take();
        ensure!(message["type"] == "tool_result" && message["group_id"] == "g", "{event} {message}");
        Ok(json!([message["id"].take(), message["text"].take(), message["content"].take()]))
    }
}

async fn over_the_verb() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "rap-runtime");
    let (_phone, running) = phone(&server, room).await?;
    let arguments = ["rap", "--room", room, "--allow-callback", "127.0.0.1"];
    let mut toolset = Program::toolbridge(&server, &arguments).start()?;
    let line = toolset.line("url: ").await?;
    let url = line.strip_prefix("url: ").context("no URL")?;
    let mut runtime = Runtime::start(&server, url).await?;

    // Nobody answers callbacks yet, so the first results wait. The second call is sent twice.
    runtime.call("slow", "held", json!({})).await?;
    running.until(1).await?;
    runtime.call("1", "double", json!({"arguments": {"n": 21}, "call_id": "fc_1"})).await?;
    runtime.call("1", "double", json!({"arguments": {"n": 21}, "call_id": "fc_1"})).await?;
    runtime.program.write(r#"{"listen": null}"#).await?;
    let doubled = runtime.callback().await?;
    ensure!(doubled == json!(["1", "42", null]), "{doubled}");

    // A dead callback, and one on a private network, are nobody else's problem.
    runtime
        .call("dead", "double", json!({"arguments": {"n": 1}, "callback_url": "http://127.0.0.1:9/"}))
        .await?;
    let private =
        json!({"operation": "double", "id": "p", "group_id": "g", "callback_url": "http://10.0.0.7/"});
    let refused = runtime.send(&json!({ "call": private }), "answered").await?;
    ensure!(refused["status"] == 400, "{refused}");

    runtime.call("2", "fail", json!({})).await?;
    let failed = runtime.callback().await?;
    ensure!(failed == json!(["2", "Error: the printer has no paper; refill it", null]), "{failed}");
    runtime.call("3", "nothing", json!({})).await?;
    let unknown = runtime.callback().await?;
    ensure!(unknown[1].as_str().is_some_and(|text| text.starts_with("Error: no app offers")), "{unknown}");
    runtime.call("4", "shoot", json!({})).await?;
    let image = runtime.callback().await?[2][1].take();
    ensure!(image["type"] == "image" && image["mediaType"] == "image/png", "no image");
    ensure!(image["data"] == (1_usize << 20).div_ceil(3) * 4, "{image}");

    // The first call is still running, and later ones have overtaken it.
    runtime.send(&json!({"cancel": ["g", "unknown"]}), "noticed").await?;
    runtime.send(&json!({"cancel": ["g", "slow"]}), "noticed").await?;
    let cancelled = runtime.callback().await?;
    ensure!(cancelled[0] == "slow", "{cancelled}");
    running.until(0).await?;
    runtime.call("5", "held", json!({})).await?;
    running.until(1).await?;
    runtime.send(&json!({"close": "g"}), "noticed").await?;
    ensure!(runtime.callback().await?[0] == "5");
    running.until(0).await?;

    let ended = runtime.program.finish().await?;
    ensure!(ended.code == Some(0) && ended.stdout.matches("\"callback\"").count() == 6, "{ended:?}");
    toolset.signal(Signal::INT)?;
    let ended = toolset.finish().await?;
    ensure!(ended.code == Some(0), "{ended:?}");
    ensure!(!ended.stderr.contains(url.rsplit('/').next().unwrap_or_default()), "{ended:?}");
    Ok(())
}

async fn failing_callback() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "rap-failing");
    let (_phone, _running) = phone(&server, room).await?;
    let arguments = ["rap", "--room", room, "--allow-callback", "127.0.0.1"];
    let mut toolset = Program::toolbridge(&server, &arguments).start()?;
    let line = toolset.line("url: ").await?;
    let mut runtime = Runtime::start(&server, line.strip_prefix("url: ").context("no URL")?).await?;
    let refusing = runtime.send(&json!({"refuse": 4}), "refusing").await?["url"].take();
    runtime.call("1", "double", json!({"arguments": {"n": 21}, "callback_url": refusing})).await?;
    for status in [503, 503, 503, 503, 200] {
        let posted = match runtime.early.pop_front() {
            Some(event) => event,
            None => runtime.next().await?,
        };
        let expected = json!({"event": "posted", "status": status, "is_message": true});
        ensure!(posted == expected, "{posted}");
    }
    ensure!(runtime.program.finish().await?.code == Some(0));
    Ok(())
}

async fn behind_a_proxy() -> anyhow::Result<()> {
    let server = shared()?;
    let public = ["--public", "https://tools.example.com/home/"];
    let arguments = [&["rap", "--room", "rap-public", "--listen", "127.0.0.1:0"], &public[..]].concat();
    let mut toolset = Program::toolbridge(&server, &arguments).start()?;
    let line = toolset.line("url: ").await?;
    ensure!(line.starts_with("url: https://tools.example.com/home/rap/"), "{line}");
    toolset.signal(Signal::INT)?;
    ensure!(toolset.finish().await?.code == Some(0));
    Ok(())
}

async fn beside_an_assistant() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "rap-beside");
    let (_phone, _running) = phone(&server, room).await?;
    let arguments = [
        "assistant",
        "--room",
        room,
        "--rap-listen",
        "127.0.0.1:0",
        "--allow-callback",
        "127.0.0.1",
        "--deny",
        "x",
    ];
    let mut assistant = Program::toolbridge(&server, &arguments).start()?;
    let url = assistant.event("rap").await?["url"].as_str().context("no URL")?.to_owned();
    let mut runtime = Runtime::start(&server, &url).await?;
    let channel = runtime.send(&json!({"channel": null}), "channel").await?["url"].take();
    runtime.call("1", "double", json!({"arguments": {"n": 21}, "callback_url": channel})).await?;
    ensure!(runtime.callback().await? == json!(["1", "42", null]));
    // The controlling program is told about it.
    let settled = assistant.event("settled").await?;
    ensure!(settled["tool"] == "double" && settled["outcome"] == "ok", "{settled}");
    ensure!(assistant.finish().await?.code == Some(0));
    Ok(())
}
