//! The conformance suite of MCP: against the server that offers a room's tools, and against the client that takes a
//! server's tools into a room. What is not offered is listed, with a reason, in `tests/peers/mcp/conformance.yml`.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process,
    time::Duration,
};

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use tokio::sync::{Mutex, watch};
use toolbridge::{
    Assistant, Client, ErrorCode, Outcome, Progress, Tool, ToolContext, ToolError, ToolName, ToolSource,
    Tools,
    adapter::mcp,
    livekit::AccessKey,
    prompt::{Prompt, PromptAnswer},
};

use crate::{
    ends::{client, offers},
    mcp::missing,
    mcp_hosts::{listening, peer, stop},
    program::{Planned, folder},
    server::{self, Server, shared},
    trial_with,
};

pub(crate) fn trials() -> Vec<Trial> {
    type Test = fn() -> std::pin::Pin<Box<dyn Future<Output = anyhow::Result<()>>>>;
    let tests: [(&str, Test); 4] = [
        ("server_passes_all_of_2025_11_25_but_the_listed_checks", || Box::pin(of_server("2025-11-25"))),
        ("server_passes_all_of_2026_07_28_but_the_listed_checks", || Box::pin(of_server("2026-07-28"))),
        ("client_passes_all_of_2025_11_25_but_the_listed_checks", || Box::pin(of_client("2025-11-25"))),
        ("client_passes_all_of_2026_07_28_but_the_listed_checks", || Box::pin(of_client("2026-07-28"))),
    ];
    tests
        .into_iter()
        .map(|(name, test)| trial_with(&format!("mcp_conformance::{name}"), missing, test))
        .collect()
}

/// A tool with this document of MCP as its result.
fn returns(tools: Tools, name: &str, document: Value) -> Tools {
    tools.tool(name, "A fixed result", move || {
        let document = document.clone();
        async move { Ok::<_, ToolError>(document) }
    })
}

/// The tools that the conformance suite calls.
fn asked_for() -> Tools {
    let text = json!({"type": "text", "text": "This is a simple text response for testing."});
    let image = json!({"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"});
    let audio = json!({"type": "audio", "data": "UklGRg==", "mimeType": "audio/wav"});
    let resource = |uri: &str, mime: &str, text: &str| json!({"type": "resource", "resource": {"uri": uri, "mimeType": mime, "text": text}});
    let embedded =
        resource("test://embedded-resource", "text/plain", "This is an embedded resource content.");
    let mixed = json!([
        {"type": "text", "text": "Multiple content types test:"},
        image,
        resource("test://mixed-content-resource", "application/json", "{}"),
    ]);
    let mut tools = Tools::new();
    for (name, content) in [
        ("test_simple_text", json!([text])),
        ("test_logging_tool", json!([text])),
        ("test_image_content", json!([image])),
        ("test_audio_content", json!([audio])),
        ("test_embedded_resource", json!([embedded])),
        ("test_multiple_content_types", mixed),
    ] {
        tools = returns(tools, name, json!({"content": content}));
    }
    tools
        .tool("test_error_handling", "Fails", async || {
            Err::<(), _>(ToolError::new(
                ErrorCode::EXECUTION_ERROR,
                "This tool intentionally returns an error for testing",
            ))
        })
        .tool("test_tool_with_progress", "Reports progress", with_progress)
}

/// Reports three steps. Two reports in a row may become one, so each waits for the interval of reports.
async fn with_progress(context: ToolContext) -> Result<&'static str, ToolError> {
    for done in [0, 50, 100] {
        context.progress(Progress::of(done, 100));
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    Ok("done")
}

/// Tools with schemas of their own, and one that changes the list.
struct Changing {
    has_more: watch::Sender<bool>,
    seen: Mutex<watch::Receiver<bool>>,
}

impl Changing {
    fn new() -> Self {
        let (has_more, seen) = watch::channel(false);
        Self { has_more, seen: Mutex::new(seen) }
    }
}

impl ToolSource for Changing {
    fn list(&self) -> Vec<Tool> {
        let named = |name: &str| name.parse::<ToolName>().unwrap();
        let of = |name: &str, schema: Value| Tool::new(named(name), "A schema of its own").schema(schema);
        let address = json!({"$anchor": "addressDef", "type": "object", "properties": {
            "street": {"type": "string"}, "city": {"type": "string"},
        }});
        let with_keywords = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "$defs": {"address": address},
            "properties": {
                "name": {"type": "string"}, "address": {"$ref": "#/$defs/address"},
                "contactMethod": {"type": "string", "enum": ["phone", "email"]},
                "phone": {"type": "string"}, "email": {"type": "string"},
            },
            "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
            "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
            "then": {"required": ["phone"]},
            "else": {"required": ["email"]},
            "additionalProperties": false,
        });
        let with_header = json!({"type": "object", "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
        }});
        let mut tools = vec![
            of("json_schema_2020_12_tool", with_keywords),
            of("test_header", with_header),
            Tool::new(named("test_trigger_tool_change"), "Changes the list of tools"),
        ];
        tools.extend(self.has_more.borrow().then(|| Tool::new(named("test_more"), "Comes and goes")));
        tools
    }

    async fn execute(&self, tool: &ToolName, _: toolbridge::Value, _: ToolContext) -> Outcome {
        if tool.as_str() == "test_trigger_tool_change" {
            self.has_more.send_modify(|it| *it = !*it);
        }
        Ok(json!("done").into())
    }

    /// The schemas are shown, and not compiled, as those of a source of MCP tools.
    fn validates_arguments(&self) -> bool {
        true
    }

    async fn changed(&self) {
        let mut seen = self.seen.lock().await;
        if seen.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

/// A run of the suite, with what it may fail.
fn suite(server: &Server, role: &str, revision: &str) -> anyhow::Result<(Planned, PathBuf)> {
    let baseline = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/mcp/conformance.yml");
    let results = folder(&format!("conformance-{role}-{revision}"))?;
    // All scenarios run at once, beside other tests.
    let suite = peer(server, "mcp-conformance", &[role, "--requirements", revision, "--timeout", "120000"])
        .arg("--expected-failures")
        .arg(baseline)
        .arg("--output-dir")
        .arg(&results);
    Ok((suite, results))
}

async fn passes((suite, results): (Planned, PathBuf), what: &str) -> anyhow::Result<()> {
    let output = suite.start()?.finish_within(Duration::from_secs(240)).await?;
    for line in output.stdout.lines().filter(|line| line.starts_with("Total: ")) {
        println!("conformance of the {what}: {line}");
    }
    let summary = output.stdout.split("SUMMARY ===").last().unwrap_or_default();
    ensure!(output.code == Some(0), "{summary}\n{}", complaints(&results));
    Ok(())
}

/// Returns what the clients under test have written to standard error, but for those that lack authorization.
fn complaints(results: &Path) -> String {
    let scenarios = fs::read_dir(results).into_iter().flatten().flatten().map(|it| it.path());
    let written = scenarios.filter_map(|it| Some((fs::read_to_string(it.join("stderr.txt")).ok()?, it)));
    written.map(|(text, scenario)| format!("{}: {text}\n", scenario.display())).collect()
}

async fn of_server(revision: &str) -> anyhow::Result<()> {
    let (server, room) = (shared()?, format!("mcp-conformance-{revision}"));
    let tools = Client::builder().tools(asked_for()).tools(Changing::new());
    let _phone = client(&server, &room, "phone", tools).await?;
    let sink = listening(&server, &room).await?;
    // The suite cannot send the bearer token.
    let mut bearer = peer(&server, "mcp/bearer.mjs", &[&sink.url, &sink.token]).start()?;
    let port = bearer.line("port ").await?;
    let url = format!("http://localhost:{}/mcp", port.trim_start_matches("port "));
    let (suite, results) = suite(&server, "server", revision)?;
    passes((suite.args(&["--url", &url]), results), &format!("server to {revision}")).await?;
    stop(sink).await
}

async fn of_client(revision: &str) -> anyhow::Result<()> {
    let server = shared()?;
    let this = env::current_exe()?;
    let (suite, results) = suite(&server, "client", revision)?;
    passes((suite.arg("--command").arg(this), results), &format!("client to {revision}")).await
}

/// The client under test, if the conformance suite has started this program: a participant that takes the tools of the
/// server at the address of the last argument into a room, where an assistant calls them.
pub(crate) fn client_under_test() -> Option<process::ExitCode> {
    let scenario = env::var("MCP_CONFORMANCE_SCENARIO").ok()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    Some(match runtime.block_on(take_part(&scenario)) {
        Ok(()) => process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            process::ExitCode::FAILURE
        }
    })
}

async fn take_part(scenario: &str) -> anyhow::Result<()> {
    let url = env::args().next_back().context("no address")?;
    let livekit = env::var("LIVEKIT_URL")?;
    let key = AccessKey::new(server::KEY, server::SECRET);
    let room = format!("conformance-{}", process::id());
    let tools = mcp::http(url).name("suite").await?;
    let names: Vec<_> = tools.list().into_iter().map(|tool| tool.name().to_string()).collect();
    // Without data of the person, a form is sent with its defaults.
    let builder = Client::builder().tools(tools).consent(|_| async { true }).prompt(|question| async move {
        match question.prompt() {
            Prompt::Form(_) => PromptAnswer::submitted(&json!({})).map_err(Into::into),
            _ => Ok(PromptAnswer::done()),
        }
    });
    let phone = builder.join(&livekit, &key.client(&room, "phone").sign()?).await?;
    let brain =
        Assistant::builder().client("phone").join(&livekit, &key.assistant(&room, "brain").sign()?).await?;
    if !names.is_empty() {
        offers(&brain, "phone").await?;
    }
    for (tool, arguments) in calls(scenario, &brain) {
        let outcome = brain.call(&tool, arguments).await;
        println!("{tool}: {outcome:?}");
    }
    brain.close().await;
    phone.close().await;
    Ok(())
}

/// The calls that a scenario names, or one of each tool.
fn calls(scenario: &str, brain: &Assistant) -> Vec<(String, Value)> {
    let context: Value = env::var("MCP_CONFORMANCE_CONTEXT")
        .ok()
        .and_then(|it| serde_json::from_str(&it).ok())
        .unwrap_or_default();
    if let Some(calls) = context["toolCalls"].as_array() {
        return calls
            .iter()
            .map(|it| (it["name"].as_str().unwrap_or_default().to_owned(), it["arguments"].clone()))
            .collect();
    }
    let offers = brain.tools();
    let schema_of = |name: &str| {
        let tool = offers.iter().find(|offer| offer.tool.name().as_str() == name);
        tool.and_then(|it| it.tool.input_schema()).cloned().unwrap_or_default()
    };
    let calls = offers.iter().map(|offer| {
        let name = offer.tool.name().to_string();
        let arguments = match scenario {
            // The suite compares the schema that it gets back with the one that it has sent.
            "json-schema-2020-12-preservation" if name != "json_schema_2020_12_tool" => {
                json!({"schema": schema_of("json_schema_2020_12_tool")})
            }
            _ => example(&schema_of(&name)),
        };
        (name, arguments)
    });
    calls.collect()
}

/// Arguments that fit a simple schema.
fn example(schema: &Value) -> Value {
    let properties = schema["properties"].as_object().into_iter().flatten();
    let values = properties.map(|(name, schema)| {
        let value = match schema["type"].as_str() {
            Some("string") => json!("text"),
            Some("number" | "integer") => json!(1),
            Some("boolean") => json!(true),
            Some("array") => json!([]),
            Some("null") => Value::Null,
            _ => json!({}),
        };
        (name.clone(), value)
    });
    Value::Object(values.collect())
}
