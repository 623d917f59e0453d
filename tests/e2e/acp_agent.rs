//! `toolbridge acp-agent` under clients that nobody here wrote: the official SDKs for Node and Python, and the example client of
//! the protocol's Rust crate. Also `toolbridge mcp --attach` beside it.

use std::{
    fs,
    process::{Command as StdCommand, Stdio},
    sync::OnceLock,
};

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use toolbridge::{Client, ErrorCode, Event, Progress, ToolContext, ToolError, Tools};

use crate::{
    ends::{client, double, event},
    mcp::everything,
    mcp_hosts::{listening, peer, stop},
    program::{Program, folder, script, tools_file},
    server::{self, Server, shared},
    trial_with,
};

pub(crate) fn trials() -> Vec<Trial> {
    type Test = fn() -> std::pin::Pin<Box<dyn Future<Output = anyhow::Result<()>>>>;
    let tests: [(&str, Missing, Test); 11] = [
        ("acp_c1_client_of_the_node_sdk_sees_the_calls_of_the_room", missing, || {
            Box::pin(calls("acp/client.mjs"))
        }),
        ("acp_c1_client_of_the_python_sdk_sees_the_calls_of_the_room", missing, || {
            Box::pin(calls("acp/client.py"))
        }),
        ("acp_c12_client_of_the_node_sdk_cancels_a_turn", missing, || Box::pin(cancel("acp/client.mjs"))),
        ("acp_c12_client_of_the_python_sdk_cancels_a_turn", missing, || Box::pin(cancel("acp/client.py"))),
        ("client_of_the_node_sdk_is_asked_before_a_program_runs", missing, || {
            Box::pin(permission("acp/client.mjs"))
        }),
        ("client_of_the_python_sdk_is_asked_before_a_program_runs", missing, || {
            Box::pin(permission("acp/client.py"))
        }),
        ("acp_c22_client_of_the_node_sdk_fills_in_a_form", missing_host, || Box::pin(form("acp/client.mjs"))),
        ("acp_c22_client_of_the_python_sdk_fills_in_a_form", missing_host, || {
            Box::pin(form("acp/client.py"))
        }),
        (
            "stdout_of_the_agent_holds_the_protocol_alone",
            || server::binary().is_none().then_some("livekit-server"),
            || Box::pin(protocol_alone()),
        ),
        ("acp_c1_example_client_of_the_rust_crate_sees_a_call", missing_example, || Box::pin(example())),
        ("mcp_attach_carries_a_host_to_a_running_server", missing_host, || Box::pin(attach())),
    ];
    let trial = |(name, missing, test): (&str, Missing, Test)| {
        trial_with(&format!("acp_agent::{name}"), missing, test)
    };
    tests.into_iter().map(trial).collect()
}

type Missing = fn() -> Option<&'static str>;

/// Returns what is missing of the server and the official SDKs.
pub(crate) fn missing() -> Option<&'static str> {
    static FOUND: OnceLock<bool> = OnceLock::new();
    if server::binary().is_none() {
        return Some("livekit-server");
    }
    let find = || {
        let mut find = StdCommand::new(script());
        find.args(["peers/acp", "find"]).stdout(Stdio::null()).stderr(Stdio::null());
        find.status().is_ok_and(|status| status.success())
    };
    (!FOUND.get_or_init(find)).then_some("tests/peers/acp (scripts/parts peers/acp)")
}

fn missing_host() -> Option<&'static str> {
    crate::mcp::missing().or_else(missing)
}

/// Returns the example client, if it is built.
fn example_client() -> Option<&'static str> {
    static FOUND: OnceLock<Option<String>> = OnceLock::new();
    let find = || {
        let found =
            StdCommand::new(script()).args(["acp-client", "find"]).stderr(Stdio::null()).output().ok()?;
        let path = String::from_utf8(found.stdout).ok()?.trim().to_owned();
        found.status.success().then_some(path)
    };
    FOUND.get_or_init(find).as_deref()
}

fn missing_example() -> Option<&'static str> {
    if server::binary().is_none() {
        return Some("livekit-server");
    }
    example_client()
        .is_none()
        .then_some("the example client of agent-client-protocol (scripts/parts acp-client)")
}

async fn counting(context: ToolContext) -> Result<String, ToolError> {
    context.progress(Progress::of(1, 2).message("half done"));
    Ok("counted".to_owned())
}

async fn hang(context: ToolContext) -> Result<(), ToolError> {
    context.cancelled().await;
    Err(ToolError::cancelled())
}

async fn phone(server: &Server, room: &str) -> anyhow::Result<Client> {
    let tools = Tools::new().tool("double", "Doubles a number", double).tool("counting", "", counting);
    client(server, room, "phone", Client::builder().tools(tools.tool("hang", "", hang))).await
}

fn drive(server: &Server, program: &str, script: &Value, room: &str) -> anyhow::Result<Program> {
    drive_with(server, program, script, room, &["--client", "phone"])
}

/// Drives the agent with these options.
fn drive_with(
    server: &Server,
    program: &str,
    script: &Value,
    room: &str,
    options: &[&str],
) -> anyhow::Result<Program> {
    let script = script.to_string();
    let agent = ["toolbridge", "acp-agent", "--room", room];
    peer(server, program, &[&[script.as_str()], &agent[..], options].concat()).start()
}

/// Waits for the update of a call with this status.
async fn status(program: &mut Program, status: &str) -> anyhow::Result<Value> {
    program
        .find(status, |line| {
            let mut message: Value = serde_json::from_str(line).ok()?;
            (message["update"]["status"] == status).then(|| message["update"].take())
        })
        .await
}

async fn said(program: &mut Program, text: &str) -> anyhow::Result<()> {
    let is_it = |line: &str| {
        let message: Value = serde_json::from_str(line).ok()?;
        message["update"]["content"]["text"].as_str()?.contains(text).then_some(())
    };
    program.find(text, is_it).await
}

async fn calls(program: &str) -> anyhow::Result<()> {
    let (server, room) = (shared()?, format!("acp-agent-{}", program.replace(['/', '.'], "-")));
    let _phone = phone(&server, &room).await?;
    let prompts =
        ["double {\"n\": 21}", "counting {}", "double {\"n\": \"x\"}", "nowhere {}", "what can you do?"];
    let requests = json!([["session/load", {"sessionId": "s", "cwd": "/", "mcpServers": []}]]);
    let mut client = drive(&server, program, &json!({"prompts": prompts, "requests": requests}), &room)?;
    let agent = client.event("initialized").await?;
    ensure!(
        agent["result"]["protocolVersion"] == 1 && agent["result"]["agentInfo"]["name"] == "toolbridge",
        "{agent}"
    );
    ensure!(client.event("answered").await?["error"]["code"] == -32601);
    let begun = status(&mut client, "pending").await?;
    ensure!(begun["sessionUpdate"] == "tool_call" && begun["title"] == "double", "{begun}");
    ensure!(begun["rawInput"] == json!({"n": 21}), "{begun}");
    let done = status(&mut client, "completed").await?;
    ensure!(done["toolCallId"] == begun["toolCallId"] && done["rawOutput"] == 42, "{done}");
    said(&mut client, "42").await?;
    ensure!(client.event("stopped").await?["result"]["stopReason"] == "end_turn");
    status(&mut client, "in_progress").await?;
    status(&mut client, "completed").await?;
    for code in ["invalid_parameters", "unknown_tool"] {
        let failed = status(&mut client, "failed").await?;
        ensure!(failed["_meta"]["dev.toolbridge/errorCode"] == code, "{failed}");
    }
    said(&mut client, "`double` (phone): Doubles a number").await?;
    ensure!(client.event("stopped").await?["result"]["stopReason"] == "end_turn");
    ensure!(client.event("ended").await?["code"] == 0);
    ensure!(client.finish().await?.code == Some(0));
    Ok(())
}

async fn cancel(program: &str) -> anyhow::Result<()> {
    let (server, room) = (shared()?, format!("acp-cancel-{}", program.replace(['/', '.'], "-")));
    let phone = phone(&server, &room).await?;
    let mut events = phone.events();
    let script = json!({"prompts": ["hang {}", "double {\"n\": 1}"], "cancelOn": "in_progress"});
    // A call that takes long reports that it has started; a quick one has ended before.
    let mut client = drive(&server, program, &script, &room)?;
    client.event("cancelling").await?;
    let outcome = |event| match event {
        Event::Settled { tool, outcome, .. } if tool == "hang" => Some(outcome),
        _ => None,
    };
    ensure!(event(&mut events, "the end of the call", outcome).await? == Err(ErrorCode::CANCELLED));
    let failed = status(&mut client, "failed").await?;
    ensure!(failed["_meta"]["dev.toolbridge/errorCode"] == "cancelled", "{failed}");
    let stopped = client.event("stopped").await?;
    ensure!(stopped["result"]["stopReason"] == "cancelled", "{stopped}");
    client.event("ended").await?;
    ensure!(client.finish().await?.code == Some(0));
    Ok(())
}

/// A program of the agent's own machine that demands consent runs only if the person at the editor allows it.
async fn permission(program: &str) -> anyhow::Result<()> {
    let (server, room) = (shared()?, format!("acp-permission-{}", program.replace(['/', '.'], "-")));
    let marker = folder(&room)?.join("ran");
    let file = tools_file(&format!("{room}-tools"), &[("touch", &format!("touch {}", marker.display()))])?;
    let text = fs::read_to_string(&file)?.replace("command = ", "consent = \"always\"\ncommand = ");
    fs::write(&file, text)?;
    let options = ["--tools", file.to_str().context("not UTF-8")?];
    for (answer, is_allowed) in [("cancelled", false), ("reject_once", false), ("allow_once", true)] {
        let script = json!({"prompts": ["what can you do?", "touch {}"], "permission": answer});
        let mut client = drive_with(&server, program, &script, &room, &options)?;
        said(&mut client, "`touch`").await?;
        let begun = status(&mut client, "pending").await?;
        let asked = client.event("permission").await?;
        ensure!(asked["toolCall"]["toolCallId"] == begun["toolCallId"], "{asked} about {begun}");
        ensure!(asked["toolCall"]["title"] == "Run touch?", "{asked}");
        let kinds: Vec<_> = asked["options"].as_array().into_iter().flatten().map(|it| &it["kind"]).collect();
        ensure!(kinds == ["allow_once", "reject_once"], "{asked}");
        if is_allowed {
            status(&mut client, "completed").await?;
        } else {
            let failed = status(&mut client, "failed").await?;
            ensure!(failed["_meta"]["dev.toolbridge/errorCode"] == "permission_denied", "{failed}");
        }
        ensure!(marker.exists() == is_allowed, "{answer}");
        ensure!(client.event("stopped").await?["result"]["stopReason"] == "end_turn");
        ensure!(client.event("ended").await?["code"] == 0);
        ensure!(client.finish().await?.code == Some(0));
    }
    // What is allowed beforehand is not asked.
    fs::remove_file(&marker)?;
    let script = json!({"prompts": ["touch {}"]});
    let options = [&options[..], &["--yes", "touch"]].concat();
    let mut client = drive_with(&server, program, &script, &room, &options)?;
    status(&mut client, "completed").await?;
    ensure!(marker.exists());
    client.event("ended").await?;
    let output = client.finish().await?;
    ensure!(!output.stdout.contains("\"permission\""), "{output:?}");
    Ok(())
}

/// An MCP server of the agent's own machine asks with a form, and gets what the person at the editor has filled in.
async fn form(program: &str) -> anyhow::Result<()> {
    let (server, room) = (shared()?, format!("acp-form-{}", program.replace(['/', '.'], "-")));
    let every = format!("every=node {} stdio", everything()?);
    let options = ["--mcp", every.as_str(), "--yes", "every.*"];
    let asks = ["trigger-elicitation-request {}"];
    let filled = json!({"action": "accept", "content": {"name": "Ada", "check": true}});
    for (answer, wanted) in [(filled, "Ada"), (json!({"action": "decline"}), "declined")] {
        let script = json!({"prompts": asks, "elicitation": answer});
        let mut client = drive_with(&server, program, &script, &room, &options)?;
        let asked = client.event("elicitation").await?;
        ensure!(asked["message"].as_str().is_some_and(|it| it.starts_with("every asks: ")), "{asked}");
        let done = status(&mut client, "completed").await?;
        ensure!(done["content"].to_string().contains(wanted), "{done}");
        said(&mut client, wanted).await?;
        ensure!(client.event("stopped").await?["result"]["stopReason"] == "end_turn");
        ensure!(client.event("ended").await?["code"] == 0);
        ensure!(client.finish().await?.code == Some(0));
    }
    Ok(())
}

/// Each line of standard output is a message, also with the fullest log.
async fn protocol_alone() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "acp-protocol-alone");
    let agent = Program::toolbridge(&server, &["acp-agent", "--room", room]).env("RUST_LOG", "trace");
    let mut agent = agent.start()?;
    for (id, method, params) in [
        (1, "initialize", json!({"protocolVersion": 1, "clientCapabilities": {}})),
        (2, "session/new", json!({"cwd": "/", "mcpServers": []})),
    ] {
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        agent.write(&request.to_string()).await?;
    }
    agent.write("no message").await?;
    let opened = agent.json(json!({"id": 2})).await?;
    let prompt = json!({"sessionId": opened["result"]["sessionId"], "prompt": [{"type": "text", "text": "nowhere {}"}]});
    let request = json!({"jsonrpc": "2.0", "id": 3, "method": "session/prompt", "params": prompt});
    agent.write(&request.to_string()).await?;
    agent.json(json!({"id": 3})).await?;
    let output = agent.finish().await?;
    ensure!(output.code == Some(0) && output.stderr.contains("TRACE"), "{output:?}");
    for line in output.stdout.lines() {
        let message: Value = serde_json::from_str(line).with_context(|| format!("{line:?}"))?;
        ensure!(message["jsonrpc"] == "2.0", "{line}");
    }
    Ok(())
}

async fn example() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "acp-example");
    let _phone = phone(&server, room).await?;
    let program = example_client().context("run `scripts/parts acp-client`")?;
    let command = format!("toolbridge acp-agent --room {room} --client phone");
    let output =
        Program::other(&server, program, &["--command", &command, "double {\"n\": 21}"]).run().await?;
    ensure!(output.code == Some(0), "{output:?}");
    for part in ["ToolCall(ToolCall {", "status: Some(Completed)", "raw_output: Some(Number(42))"] {
        ensure!(output.stdout.contains(part), "{part}: {output:?}");
    }
    ensure!(output.stderr.contains("EndTurn"), "{output:?}");
    Ok(())
}

/// A host starts the bridge in place of a second assistant.
async fn attach() -> anyhow::Result<()> {
    let (server, room) = (shared()?, "mcp-attach");
    let _phone = phone(&server, room).await?;
    let sink = listening(&server, room).await?;
    let mut arguments = vec!["--cli"];
    let variable = format!("TOOLBRIDGE_MCP_TOKEN={}", sink.token);
    arguments.extend(["toolbridge", "mcp", "--attach", &sink.url, "-e", &variable]);
    arguments.extend(["--quiet", "--format", "json", "--method", "tools/call", "--tool-name", "double"]);
    let output = peer(&server, "mcp-inspector", &arguments).args(&["--tool-arg", "n=21"]).run().await?;
    let answer: Value = serde_json::from_str(&output.stdout).with_context(|| format!("{output:?}"))?;
    ensure!(answer["result"]["structuredContent"]["value"] == 42, "{answer}");
    let refused = Program::toolbridge(&server, &["mcp", "--attach", &sink.url]);
    let mut refused = refused.start()?;
    refused.write(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#).await?;
    let output = refused.finish().await?;
    let answer: Value = serde_json::from_str(&output.stdout).with_context(|| format!("{output:?}"))?;
    let message = answer["error"]["message"].as_str().unwrap_or_default();
    ensure!(
        answer["id"] == 1 && message.contains("401") && message.contains("TOOLBRIDGE_MCP_TOKEN"),
        "{answer}"
    );
    stop(sink).await
}
