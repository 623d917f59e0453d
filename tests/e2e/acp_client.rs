//! Agents as tools in a real room, over the official SDKs for Node and Python.

use anyhow::{Context, bail, ensure};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use toolbridge::{
    Assistant, Client, ErrorCode, Event, Events, ToolError, ToolResult, ToolSource as _, Tools,
    adapter::acp::{self, AcpCommand, AcpTool},
    process::Command,
    prompt::{Prompt, PromptAnswer, PromptRequest},
    recording::{Happened, RecordedCall, Recording, calls},
    tools::SourceHealth,
};

use crate::{
    acp_agent::missing,
    ends::{double, event, pair},
    program::{folder, script},
    server::shared,
    soon, trial_with,
};

pub(crate) const NODE: &str = "acp/agent.mjs";
const PYTHON: &str = "acp/agent.py";

/// The tool of the calls that the agents report.
const STEP: &str = "Edit_main.rs";

pub(crate) fn trials() -> Vec<Trial> {
    type Test = fn() -> std::pin::Pin<Box<dyn Future<Output = anyhow::Result<()>>>>;
    let tests: [(&str, Test); 8] = [
        ("acp_c21_work_of_an_agent_of_the_node_sdk_is_seen_in_the_room", || Box::pin(works(NODE))),
        ("acp_c21_work_of_an_agent_of_the_python_sdk_is_seen_in_the_room", || Box::pin(works(PYTHON))),
        ("acp_c12_turn_of_an_agent_of_the_node_sdk_is_cancelled", || Box::pin(cancelled(NODE))),
        ("acp_c12_turn_of_an_agent_of_the_python_sdk_is_cancelled", || Box::pin(cancelled(PYTHON))),
        ("acp_c13_agent_of_the_node_sdk_dies_and_comes_back", || Box::pin(dies(NODE))),
        ("acp_c13_agent_of_the_python_sdk_dies_and_comes_back", || Box::pin(dies(PYTHON))),
        ("agent_calls_the_tools_of_the_room_over_http", || Box::pin(offered("http"))),
        ("agent_calls_the_tools_of_the_room_by_an_attached_program", || Box::pin(offered("stdio"))),
    ];
    let trial = |(name, test): (&str, Test)| trial_with(&format!("acp_client::{name}"), missing, test);
    tests.into_iter().map(trial).collect()
}

/// An agent of `tests/peers` that is named `coder`.
fn agent(program: &str) -> anyhow::Result<AcpCommand> {
    let script = script();
    Ok(acp::stdio([script.to_str().context("not UTF-8")?, "run", program]).name("coder"))
}

/// A room with an agent, a person who allows once and fills in forms, and what the person is asked.
struct Room {
    phone: Client,
    brain: Assistant,
    agent: AcpTool,
    asked: mpsc::UnboundedReceiver<Prompt>,
}

impl Room {
    async fn join(name: &str, agent: AcpCommand, file: &str) -> anyhow::Result<Self> {
        let agent = agent.await?;
        let (to_test, asked) = mpsc::unbounded_channel();
        let person = move |request: PromptRequest| {
            let _ = to_test.send(request.prompt().clone());
            let answer = match request.prompt() {
                Prompt::Permission(ask) => {
                    let once = ask.options.iter().find(|it| it.kind == "allow_once");
                    Ok(once.map_or_else(PromptAnswer::declined, |it| PromptAnswer::selected(&*it.option_id)))
                }
                Prompt::Form(_) => {
                    PromptAnswer::submitted(&json!({"name": "Ada"})).map_err(ToolError::internal)
                }
                _ => Ok(PromptAnswer::done()),
            };
            async move { answer }
        };
        let tools = Tools::new().tool("double", "Doubles a number", double);
        let phone = Client::builder().tools(tools).prompt(person);
        let brain = Assistant::builder().tools(agent.clone()).consent(|_| async { true }).record(file);
        let (phone, brain) = pair(&*shared()?, name, phone, brain).await?;
        brain.ready("phone").await?;
        Ok(Self { phone, brain, agent, asked })
    }

    /// Sends a prompt, and returns what the agent said.
    async fn prompt(&self, steps: &str) -> anyhow::Result<String> {
        let call = self.brain.call("coder", json!({ "prompt": steps }));
        let result = soon("the agent", call.into_future()).await??;
        Ok(ToolResult::of(&result).content().iter().filter_map(|it| it.as_text()).collect())
    }

    async fn close(self) {
        self.phone.close().await;
        self.brain.close().await;
        self.agent.close().await;
    }
}

fn file(name: &str, program: &str) -> anyhow::Result<(String, String)> {
    let name = format!("{name}-{}", program.replace(['/', '.'], "-"));
    let file = folder(&name)?.join("room.mcap").to_str().context("not UTF-8")?.to_owned();
    Ok((name, file))
}

/// Returns the calls of a tool in a recording, with the bytes of their frames.
fn recorded(file: &str, tool: &str) -> anyhow::Result<Vec<(RecordedCall, Vec<u8>)>> {
    let entries: Vec<_> = Recording::open(file)?.entries().collect();
    let bytes = |call: &RecordedCall| {
        let frames = call.entries.iter().filter_map(|at| match &entries[*at].what {
            Happened::Packet(packet) => Some(packet.payload.to_vec()),
            _ => None,
        });
        frames.flatten().collect()
    };
    let found = calls(entries.clone()).calls.into_iter().filter(|it| it.tool == tool);
    Ok(found.map(|call| (call.clone(), bytes(&call))).collect())
}

async fn works(program: &str) -> anyhow::Result<()> {
    let (name, recording) = file("acp-works", program)?;
    let mut room = Room::join(&name, agent(program)?.allow_commands(), &recording).await?;
    let mut seen = room.phone.events();
    let said = room.prompt("say Hello.\ncall c1\nplan\npermit execute\nask").await?;
    ensure!(said == "Hello.permit: o-allow_onceask: accept Ada", "{said}");

    // What a client in the room sees of the agent's own call, and of its plan.
    let mut progress = Vec::new();
    let (mut step, mut plan) = (None, None);
    event(&mut seen, "the call and the plan", |event| {
        match event {
            Event::Requested { tool, call, owner, .. } if tool == STEP => step = Some((call, owner)),
            Event::Progress { call, progress: it, .. } if step.as_ref().is_some_and(|it| it.0 == call) => {
                progress.push(it);
            }
            Event::View { view, .. } => plan = Some(view),
            _ => {}
        }
        plan.is_some().then_some(())
    })
    .await?;
    let (_, owner) = step.context("no call was reported")?;
    ensure!(owner.as_str() == "assistant", "{owner}");
    let followed = progress.iter().filter_map(|it| it.content.as_ref()).map(|it| it.to_json());
    let place = json!([{"path": "/srv/app/main.rs", "line": 3}]);
    let is_followed = |it: &Value| it["kind"] == "edit" && it["locations"] == place;
    ensure!(followed.into_iter().any(|it| is_followed(&it)), "{progress:?}");
    let plan = plan.context("no plan")?;
    ensure!(plan.view == "coder/plan" && plan.text.as_deref() == Some("→ Look around"), "{plan:?}");
    ensure!(plan.content.to_json()["entries"][0]["content"] == "Look around", "{plan:?}");

    // What the person was asked.
    let Some(Prompt::Permission(question)) = room.asked.recv().await else { bail!("no permission") };
    ensure!(question.text.as_deref() == Some("coder asks: Run the tests"), "{question:?}");
    let options: Vec<_> = question.options.iter().map(|it| it.option_id.as_str()).collect();
    ensure!(options == ["o-allow_once", "o-allow_always", "o-reject_once"], "{options:?}");
    let Some(Prompt::Form(form)) = room.asked.recv().await else { bail!("no form") };
    ensure!(form.text.as_deref() == Some("coder asks: Who are you?"), "{form:?}");

    if program == NODE {
        ensure!(room.prompt("sign-in").await? == "sign-in: accept");
        let Some(Prompt::Authorize(address)) = room.asked.recv().await else { bail!("no address") };
        ensure!(address.service.as_deref() == Some("coder"), "{address:?}");
        ensure!(address.url == "https://example.com/sign-in", "{address:?}");
    }

    // A command, whose output is shown in a call after its release.
    let create = json!({"command": "sh", "args": ["-c", "echo 3 passed"]});
    let call = json!({
        "sessionUpdate": "tool_call", "toolCallId": "t", "title": "Test", "kind": "execute", "status": "in_progress",
        "content": [{"type": "terminal", "terminalId": "t1"}],
    });
    let end = json!({"sessionUpdate": "tool_call_update", "toolCallId": "t", "status": "completed"});
    let terminal = r#"{"terminalId": "t1"}"#;
    let steps = format!(
        "request terminal/create {create}\nupdate {call}\nrequest terminal/wait_for_exit {terminal}\n\
         request terminal/output {terminal}\nrequest terminal/release {terminal}\nupdate {end}\n\
         request fs/read_text_file {{\"path\": \"/etc/passwd\"}}"
    );
    let said: String = room.prompt(&steps).await?.split_whitespace().collect();
    ensure!(said.contains(r#""terminalId":"t1""#) && said.contains(r#""exitCode":0"#), "{said}");
    ensure!(said.contains(r#""output":"3passed\n""#) && said.ends_with(r#"{"error":-32601}"#), "{said}");
    let Some(Prompt::Permission(question)) = room.asked.recv().await else { bail!("no permission") };
    let sh = Command::find("sh")?;
    let wanted = format!("coder asks to run a command in /: {} -c 'echo 3 passed'", sh.program().display());
    ensure!(question.text.as_deref() == Some(&*wanted), "{question:?}");
    room.close().await;

    let has = |bytes: &[u8], text: &str| String::from_utf8_lossy(bytes).contains(text);
    for (tool, texts) in
        [(STEP, &["bridge.acp.kind", "oldText", "newText", "/srv/app/main.rs"][..]), ("Test", &["3 passed"])]
    {
        let found = recorded(&recording, tool)?;
        let [(_, bytes)] = &found[..] else { bail!("{tool} is {} calls", found.len()) };
        for text in texts {
            ensure!(has(bytes, text), "{text} is in no frame of {tool}");
        }
    }
    Ok(())
}

/// Waits for the end of the agent's own call.
async fn step(events: &mut Events) -> anyhow::Result<Result<(), ErrorCode>> {
    event(events, "the end of the step", |event| match event {
        Event::Settled { tool, outcome, .. } if tool == "Wait" => Some(outcome),
        _ => None,
    })
    .await
}

/// A call that the agent leaves open.
const OPEN: &str = r#"update {"sessionUpdate":"tool_call","toolCallId":"w","title":"Wait","kind":"read","status":"in_progress"}"#;

async fn cancelled(program: &str) -> anyhow::Result<()> {
    let (name, recording) = file("acp-cancelled", program)?;
    let room = Room::join(&name, agent(program)?, &recording).await?;
    let (mut seen, mut mine) = (room.phone.events(), room.brain.events());
    let mut call = room.brain.call("coder", json!({"prompt": format!("{OPEN}\nwait")})).start();
    let is_open = |event| matches!(event, Event::Requested { tool, .. } if tool == "Wait").then_some(());
    event(&mut mine, "the step", is_open).await?;
    call.cancel();
    let outcome = soon("the cancellation", &mut call).await?;
    ensure!(matches!(outcome, Err(toolbridge::CallError::Cancelled)), "{outcome:?}");
    ensure!(step(&mut seen).await? == Err(ErrorCode::CANCELLED));
    // The same process and session answer the next prompt.
    ensure!(room.prompt("say again").await? == "again");
    ensure!(room.agent.health() == SourceHealth::Up);
    room.close().await;
    ensure!(recorded(&recording, "Wait")?.len() == 1);
    Ok(())
}

async fn dies(program: &str) -> anyhow::Result<()> {
    let (name, recording) = file("acp-dies", program)?;
    let room = Room::join(&name, agent(program)?, &recording).await?;
    let (mut seen, mut mine) = (room.phone.events(), room.brain.events());
    let failed = room.brain.call("coder", json!({"prompt": format!("{OPEN}\nsay half\ncrash")}));
    let failed = soon("the failure", failed.into_future()).await?;
    let Err(toolbridge::CallError::Tool(error)) = failed else { bail!("{failed:?}") };
    ensure!(error.code() == ErrorCode::EXECUTION_ERROR, "{error:?}");
    ensure!(
        error.message().contains("the agent \"coder\" has ended: it ended (exit status: 3)"),
        "{error:?}"
    );
    ensure!(step(&mut seen).await? == Err(ErrorCode::EXECUTION_ERROR));
    let mut was_down = false;
    event(&mut mine, "the new start", |event| {
        let Event::Source(status) = event else { return None };
        was_down |= status.health != SourceHealth::Up;
        (was_down && status.health == SourceHealth::Up).then_some(())
    })
    .await?;
    ensure!(room.prompt("say back").await? == "back");
    room.close().await;
    Ok(())
}

/// The agent calls a tool of the phone, which it is offered as an MCP server in its session.
async fn offered(over: &str) -> anyhow::Result<()> {
    let (name, recording) = file("acp-offered", over)?;
    let agent = agent(NODE)?.attach_program(env!("CARGO_BIN_EXE_toolbridge"));
    let agent = if over == "http" { agent.env("ACP_HTTP", "1") } else { agent };
    let room = Room::join(&name, agent, &recording).await?;
    ensure!(room.prompt("servers").await? == "[]");
    room.agent.offer_tools(&room.brain).await?;
    let said: Value = serde_json::from_str(&room.prompt("room double {\"n\": 21}").await?)?;
    ensure!(said["over"] == over && said["tools"] == json!(["double"]), "{said}");
    ensure!(said["result"]["structuredContent"]["value"] == 42, "{said}");
    let wrong: Value = serde_json::from_str(&room.prompt("room double {\"n\": \"x\"}").await?)?;
    ensure!(wrong["result"]["isError"] == true, "{wrong}");
    let own: Value = serde_json::from_str(&room.prompt("room coder {\"prompt\": \"say x\"}").await?)?;
    ensure!(own["error"]["code"] == -32602, "its own tool is not offered: {own}");
    room.close().await;
    ensure!(recorded(&recording, "double")?.len() == 2);
    Ok(())
}
