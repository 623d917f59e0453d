//! The tools of a real MCP server in a real room: `@modelcontextprotocol/server-everything`, over stdio and HTTP.

use std::{
    fs,
    net::TcpListener,
    path::PathBuf,
    process::{Command as StdCommand, Stdio},
    sync::OnceLock,
};

use anyhow::{Context, bail, ensure};
use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::{Child, Command},
};
use toolbridge::{
    Assistant, Client, ErrorCode, Event, Progress, ToolResult, ToolSource as _,
    adapter::mcp::{self, McpServer, McpTools},
    prompt::PromptAnswer,
    result::ToolSystem,
    tools::SourceHealth,
};

use crate::{
    ends::{assistant, client, event, offers},
    program::{Program, script},
    server::{self, Server, shared},
    soon, trial_with,
};

pub(crate) fn trials() -> Vec<Trial> {
    type Test = fn() -> std::pin::Pin<Box<dyn Future<Output = anyhow::Result<()>>>>;
    let tests: [(&str, Test); 6] = [
        ("tools_of_a_child_return_the_documents_of_direct_calls", || Box::pin(documents(Place::Child))),
        ("tools_at_an_address_return_the_documents_of_direct_calls", || Box::pin(documents(Place::Address))),
        ("server_that_is_killed_fails_its_call_and_comes_back", || Box::pin(killed())),
        ("stopped_call_is_stopped_in_the_server", || Box::pin(stopped())),
        ("command_line_offers_the_tools_of_two_servers", || Box::pin(command_line())),
        ("assistant_of_the_command_line_runs_the_tools_of_a_server", || Box::pin(assistant_command())),
    ];
    tests.into_iter().map(|(name, test)| trial_with(&format!("mcp::{name}"), missing, test)).collect()
}

pub(crate) fn missing() -> Option<&'static str> {
    if server::binary().is_none() {
        return Some("livekit-server");
    }
    script_of_everything().is_none().then_some("tests/peers/mcp (scripts/parts peers/mcp)")
}

/// Returns the script of the server, if it is installed.
fn script_of_everything() -> Option<&'static str> {
    static FOUND: OnceLock<Option<String>> = OnceLock::new();
    let find = || {
        let found =
            StdCommand::new(script()).args(["peers/mcp", "find"]).stderr(Stdio::null()).output().ok()?;
        let folder = PathBuf::from(String::from_utf8(found.stdout).ok()?.trim());
        let script = folder.join("node_modules/@modelcontextprotocol/server-everything/dist/index.js");
        script.is_file().then(|| script.to_string_lossy().into_owned())
    };
    FOUND.get_or_init(find).as_deref()
}

pub(crate) fn everything() -> anyhow::Result<&'static str> {
    script_of_everything().context("run `scripts/parts peers/mcp`")
}

fn child() -> anyhow::Result<McpServer> {
    Ok(mcp::stdio(["node", everything()?, "stdio"]).name("everything"))
}

#[derive(Clone, Copy, PartialEq)]
enum Place {
    Child,
    Address,
}

/// The calls whose answers are the same each time.
fn calls() -> Vec<(&'static str, Value)> {
    vec![
        ("echo", json!({"message": "größe \u{1f600}"})),
        ("get-annotated-message", json!({"messageType": "error", "includeImage": true})),
        ("get-annotated-message", json!({"messageType": "debug"})),
        ("get-env", json!({})),
        ("get-resource-links", json!({"count": 3})),
        ("get-resource-reference", json!({"resourceType": "Blob", "resourceId": 1})),
        ("get-structured-content", json!({"location": "Chicago"})),
        ("get-sum", json!({"a": 2, "b": 0.5})),
        ("get-tiny-image", json!({})),
        (
            "gzip-file-as-resource",
            json!({"name": "a.gz", "data": "data:text/plain,hello", "outputType": "resource"}),
        ),
        ("trigger-long-running-operation", json!({"duration": 0.1, "steps": 2})),
        ("echo", json!({"message": 7})),
    ]
}

/// Calls the server without toolbridge, and returns the text of each answer.
async fn direct() -> anyhow::Result<Vec<String>> {
    let mut server = Command::new("node")
        .args([everything()?, "stdio"])
        .env_clear()
        .envs(
            ["HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER"]
                .into_iter()
                .filter_map(|it| Some((it, std::env::var_os(it)?))),
        )
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let mut stdin = server.stdin.take().context("no stdin")?;
    let mut lines = BufReader::new(server.stdout.take().context("no stdout")?).lines();
    let start = json!({"jsonrpc": "2.0", "id": "start", "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"},
    }});
    let mut answers = Vec::new();
    let requests = calls().into_iter().enumerate().map(|(n, (name, arguments))| {
        json!({"jsonrpc": "2.0", "id": n, "method": "tools/call", "params": {"name": name, "arguments": arguments}})
    });
    for (n, request) in std::iter::once(start).chain(requests).enumerate() {
        stdin.write_all(format!("{request}\n").as_bytes()).await?;
        let answer = loop {
            let line = lines.next_line().await?.context("the server ended")?;
            if serde_json::from_str::<Value>(&line)?["id"] == request["id"] {
                break line;
            }
        };
        if n == 0 {
            stdin.write_all(b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n").await?;
        } else {
            let result = answer.strip_prefix("{\"result\":").context("another order of members")?;
            let end = result.rfind(",\"jsonrpc\"").context("another order of members")?;
            answers.push(result[..end].to_owned());
        }
    }
    Ok(answers)
}

/// The server at an address of this machine.
async fn at_an_address() -> anyhow::Result<(Child, McpServer)> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let mut server = Command::new("node")
        .args([everything()?, "streamableHttp"])
        .env("PORT", port.to_string())
        .current_dir("/")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines = BufReader::new(server.stderr.take().context("no stderr")?).lines();
    while let Some(line) = soon("the start of the server", lines.next_line()).await?? {
        if line.contains("listening") {
            let url = format!("http://localhost:{port}/mcp");
            tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
            return Ok((server, mcp::http(url).name("everything")));
        }
    }
    bail!("the server ended")
}

/// A client with the tools of a server, which answers questions, and an assistant.
async fn pair(server: &Server, room: &str, tools: McpTools) -> anyhow::Result<(Client, Assistant)> {
    let builder = Client::builder().tools(tools).consent(|_| async { true }).prompt(|question| async move {
        match question.prompt() {
            toolbridge::prompt::Prompt::Form(_) => {
                PromptAnswer::submitted(&json!({"name": "Ada", "check": true})).map_err(Into::into)
            }
            _ => Ok(PromptAnswer::done()),
        }
    });
    let client = client(server, room, "phone", builder).await?;
    let brain = assistant(server, room, "assistant", Assistant::builder().client("phone")).await?;
    offers(&brain, "phone").await?;
    Ok((client, brain))
}

async fn documents(place: Place) -> anyhow::Result<()> {
    let server = shared()?;
    let (_process, source) = match place {
        Place::Child => (None, child()?),
        Place::Address => at_an_address().await.map(|(process, source)| (Some(process), source))?,
    };
    let tools = source.await?;
    ensure!(tools.list().len() == 14, "{:?}", tools.list());
    let room = if place == Place::Child { "mcp-child" } else { "mcp-address" };
    let (client, brain) = pair(&server, room, tools).await?;
    for ((tool, arguments), expected) in calls().into_iter().zip(direct().await?) {
        let outcome = brain.call(tool, arguments).await;
        let result = match &outcome {
            Ok(value) => ToolResult::of(value),
            Err(toolbridge::CallError::Tool(error)) => ToolResult::of_error(error),
            Err(other) => bail!("{tool}: {other}"),
        };
        let native = result.native().context("no document")?;
        ensure!(*native.system() == ToolSystem::MCP);
        // At an address the server's environment is that of this test.
        if tool != "get-env" || place == Place::Child {
            let (document, expected) = (without_time(native.json()), without_time(&expected));
            ensure!(document == expected, "{tool}:\n{document}\n{expected}");
        }
        ensure!(outcome.is_err() == expected.contains("\"isError\":true"), "{tool}: {outcome:?}");
    }
    let mut call = brain.call("trigger-long-running-operation", json!({"duration": 0.2, "steps": 4})).start();
    let mut progress = Vec::<Progress>::new();
    while let Some(step) = call.progress().await {
        progress.extend(step.done().is_some().then_some(step));
    }
    ensure!(progress.iter().any(|it| it.total() == Some(4.0)), "{progress:?}");
    let asked = brain.call("trigger-elicitation-request", ()).await?;
    ensure!(ToolResult::of(&asked).for_model(10_000).text.contains("Ada"), "{asked:?}");
    let url = json!({"url": "https://example.com/sign-in"});
    let opened = ToolResult::of(&brain.call("trigger-url-elicitation", url).await?);
    ensure!(opened.for_model(10_000).text.contains("accept"), "{}", opened.for_model(10_000).text);
    for toggle in ["toggle-simulated-logging", "toggle-subscriber-updates"] {
        brain.call(toggle, ()).await?;
    }
    client.close().await;
    brain.close().await;
    Ok(())
}

/// Returns a document without the data of a resource, which contain the time of its creation.
fn without_time(document: &str) -> String {
    match document.split_once("\"blob\":\"") {
        Some((before, after)) => before.to_owned() + after.split_once('"').map_or("", |(_, after)| after),
        None => document.to_owned(),
    }
}

/// Returns the process that has this variable in its environment.
fn process_with(mark: &str) -> anyhow::Result<Pid> {
    for entry in fs::read_dir("/proc")?.flatten() {
        let id = entry.file_name().to_string_lossy().parse::<i32>().ok();
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        if let Some(pid) = id.and_then(Pid::from_raw)
            && environment.split(|byte| *byte == 0).any(|it| it == mark.as_bytes())
        {
            return Ok(pid);
        }
    }
    bail!("no process has {mark}")
}

async fn killed() -> anyhow::Result<()> {
    let server = shared()?;
    let mark = format!("toolbridge-killed-{:?}-{}", server::kind(), std::process::id());
    let tools = child()?.env("MARK", &mark).await?;
    let pid = process_with(&format!("MARK={mark}"))?;
    let (client, brain) = pair(&server, "mcp-killed", tools).await?;
    let mut events = client.events();
    let mut call = brain.call("trigger-long-running-operation", json!({"duration": 60, "steps": 60})).start();
    crate::ends::started(&mut call).await?;
    kill_process(pid, Signal::KILL)?;
    let error = soon("the failure", call).await?.err().context("it succeeded")?;
    ensure!(error.to_string().contains("signal: 9"), "{error}");
    ensure!(error.may_have_run() && error.code() == ErrorCode::EXECUTION_ERROR, "{error:?}");
    let is_up = |event: Event| {
        matches!(event, Event::Source(status) if status.health == SourceHealth::Up).then_some(())
    };
    event(&mut events, "the source is up", is_up).await?;
    offers(&brain, "phone").await?;
    let value = brain.call("get-sum", json!({"a": 1, "b": 1})).await?;
    ensure!(ToolResult::of(&value).for_model(100).text.contains('2'));
    client.close().await;
    Ok(())
}

async fn stopped() -> anyhow::Result<()> {
    let server = shared()?;
    let (client, brain) = pair(&server, "mcp-stopped", child()?.await?).await?;
    let mut call = brain.call("trigger-long-running-operation", json!({"duration": 60, "steps": 60})).start();
    crate::ends::started(&mut call).await?;
    call.cancel();
    let error = soon("the end", call).await?.err().context("it succeeded")?;
    ensure!(error.code() == ErrorCode::CANCELLED, "{error:?}");
    ensure!(brain.call("echo", json!({"message": "still here"})).await.is_ok());
    client.close().await;
    Ok(())
}

async fn command_line() -> anyhow::Result<()> {
    let server = shared()?;
    let room = "mcp-command-line";
    let command = format!("node {} stdio", everything()?);
    let (one, two) = (format!("one={command}"), format!("two={command}"));
    let arguments = [
        "client",
        "--room",
        room,
        "--identity",
        "desk",
        "--mcp",
        &one,
        "--mcp",
        &two,
        "--yes",
        "one.*",
        "--yes",
        "two.*",
    ];
    let mut desk = Program::toolbridge(&server, &arguments).start()?;
    desk.line("joined as desk").await?;
    let brain = assistant(&server, room, "assistant", Assistant::builder().client("desk")).await?;
    offers(&brain, "desk").await?;
    for tool in ["echo", "two.echo"] {
        let value = brain.call(tool, json!({"message": "hello"})).await?;
        ensure!(ToolResult::of(&value).for_model(100).text == "Echo: hello", "{value:?}");
    }
    let listed = Program::toolbridge(&server, &["tools", "--room", room]).start()?.finish().await?;
    ensure!(listed.stdout.contains("two.echo"), "{listed:?}");
    desk.signal(Signal::INT)?;
    ensure!(desk.finish().await?.code == Some(0));
    Ok(())
}

async fn assistant_command() -> anyhow::Result<()> {
    let server = shared()?;
    let command = format!("every=node {} stdio", everything()?);
    let arguments = ["assistant", "--room", "mcp-assistant", "--mcp", &command, "--yes", "every.*"];
    let mut brain = Program::toolbridge(&server, &arguments).start()?;
    brain.json(json!({"type": "hello"})).await?;
    brain.write(r#"{"type": "call", "id": 1, "tool": "get-sum", "arguments": {"a": 2, "b": 3}}"#).await?;
    let result = brain.json(json!({"type": "result", "id": 1})).await?;
    ensure!(result["value"]["text"].as_str().is_some_and(|it| it.contains('5')), "{result}");
    Ok(())
}
