//! Clients that answer LiveKit's RPC under an unchanged assistant of livekit-agents: a worker of that framework, its job in a
//! process of its own, and a session whose tools are forwarded to the client.

use std::{
    process::{Command as StdCommand, Stdio},
    sync::OnceLock,
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use libtest_mimic::Trial;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use toolbridge::{Client, ToolError};

use crate::{
    ends::client,
    mcp_hosts::peer,
    program::{Program, missing_for, script, tools_file},
    server::shared,
    trial_with,
};

pub(crate) fn trials() -> Vec<Trial> {
    let test = || same_as_apps();
    vec![trial_with("agents::assistant_gets_from_clients_what_it_gets_from_apps", missing, test)]
}

/// Returns what is missing of the server, the framework and the official SDKs.
fn missing() -> Option<&'static str> {
    static FOUND: OnceLock<bool> = OnceLock::new();
    let find = || {
        let mut find = StdCommand::new(script());
        find.args(["peers/agents", "find"]).stdout(Stdio::null()).stderr(Stdio::null());
        find.status().is_ok_and(|status| status.success())
    };
    let agents = || (!FOUND.get_or_init(find)).then_some("tests/peers/agents (scripts/parts peers/agents)");
    missing_for(BROWSER).or_else(agents)
}

/// The app over LiveKit's SDK for browsers.
const BROWSER: &str = "rpc_browser.mjs methods";

/// How long the assistant waits for a call, as in the framework's documentation, in seconds.
const WAITS: f64 = 5.0;

/// The timeout that its SDK then sends, in seconds.
const ON_THE_WIRE: f64 = 1.0;

/// How long the tool `slow` takes, in seconds.
const SLOW: f64 = 3.0;

#[derive(Serialize, Deserialize, JsonSchema)]
struct Text {
    text: String,
}

#[derive(Deserialize, JsonSchema)]
struct Size {
    bytes: usize,
}

async fn echo(text: Text) -> Result<Text, ToolError> {
    Ok(text)
}

async fn slow(text: Text) -> Result<Text, ToolError> {
    tokio::time::sleep(Duration::from_secs_f64(SLOW)).await;
    Ok(text)
}

/// Returns an object of so many bytes.
async fn large(size: Size) -> Result<Text, ToolError> {
    Ok(Text { text: "x".repeat(size.bytes - r#"{"text":""}"#.len()) })
}

async fn fail() -> Result<(), ToolError> {
    Err(ToolError::new("lamp_broken", "the lamp is broken"))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// What the assistant has printed about one room.
struct Seen(Vec<Value>);

impl Seen {
    fn events(&self, event: &str) -> impl Iterator<Item = &Value> {
        self.0.iter().filter(move |it| it["event"] == event)
    }

    /// Returns what the model was told of the calls of a turn: the tool, whether it failed, and the text.
    fn outputs(&self, turn: usize) -> Vec<(&str, bool, &str)> {
        let outputs = self.events("output").filter(|it| it["turn"] == turn);
        outputs.map(|it| (text(&it["tool"]), it["is_error"] == true, text(&it["output"]))).collect()
    }

    /// Returns what the model was told of the only call of a turn: whether it failed, and the text.
    fn output(&self, turn: usize) -> anyhow::Result<(bool, &str)> {
        match self.outputs(turn)[..] {
            [(_, is_error, text)] => Ok((is_error, text)),
            ref other => bail!("turn {turn}: {other:?}"),
        }
    }

    /// Returns the result of the only call of a turn.
    fn json(&self, turn: usize) -> anyhow::Result<Value> {
        let (is_error, text) = self.output(turn)?;
        ensure!(!is_error, "turn {turn}: {text}");
        Ok(serde_json::from_str(text)?)
    }

    /// Returns the first call by RPC of this method.
    fn call(&self, method: &str) -> anyhow::Result<&Value> {
        self.events("rpc").find(|it| it["method"] == method).with_context(|| format!("no call of {method}"))
    }
}

/// Dispatches an assistant to these rooms, in which the apps are already, and lets its model ask for the calls of these turns.
async fn assistant<const N: usize>(rooms: [&str; N], turns: Value) -> anyhow::Result<[Seen; N]> {
    let server = shared()?;
    let mut program = peer(&server, "agents/forward.py", &[&turns.to_string()]).args(&rooms).start()?;
    for event in ["ready", "done"] {
        let mut left = rooms.len();
        let wanted = |line: &str| {
            let line: Value = serde_json::from_str(line).ok()?;
            left -= usize::from(line["event"] == event);
            (left == 0).then_some(())
        };
        program.find(event, wanted).await?;
    }
    let output = program.finish().await?;
    ensure!(output.code == Some(0), "{output:?}");
    let lines = output.stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let lines: Vec<_> = lines.collect();
    Ok(rooms.map(|room| Seen(lines.iter().filter(|it| it["room"] == room).cloned().collect())))
}

/// The turns, in this order.
const ECHO: usize = 0;
const FAIL: usize = 1;
const NOTHING: usize = 2;
const LATE: usize = 3;
const LARGE: [(usize, usize); 2] = [(4, 14_000), (5, 200_000)];
const SEVERAL: usize = 6;

fn turns() -> Value {
    let call = |tool: &str, arguments: Value| json!({"tool": tool, "arguments": arguments});
    let text = |text: &str| json!({"text": text});
    json!([
        [call("echo", text(GREETING))],
        [call("fail", json!({}))],
        [call("nothing", json!({}))],
        [call("slow", text("late"))],
        [call("large", json!({"bytes": LARGE[0].1}))],
        [call("large", json!({"bytes": LARGE[1].1}))],
        [call("echo", text("a")), call("fail", json!({})), call("echo", text("b"))],
    ])
}

const GREETING: &str = "Grüße, 你好 \"quoted\"";

/// The tools of a client of the command line.
const LINES: [(&str, &str); 4] = [
    ("echo", "cat"),
    ("slow", "sleep 3; cat"),
    ("large", r#"printf '{"text":"%s"}' "$(head -c $(($(tr -dc 0-9) - 11)) /dev/zero | tr '\0' x)""#),
    ("fail", "echo the lamp is broken >&2; exit 1"),
];

/// What the model reads when it calls a tool that the client does not have.
const UNKNOWN: &str = "1400 no tool named \"nothing\" is offered here";

async fn same_as_apps() -> anyhow::Result<()> {
    let server = shared()?;
    let rooms = ["agents-client", "agents-command-line", "agents-python", "agents-node", "agents-browser"];
    let tools = Client::builder()
        .tool("echo", "", echo)
        .tool("slow", "", slow)
        .tool("large", "", large)
        .tool("fail", "", fail);
    let phone = client(&server, rooms[0], "phone", tools.answer_rpc()).await?;
    let file = tools_file(rooms[1], &LINES)?;
    let arguments = ["client", "--room", rooms[1], "--identity", "phone", "--answer-rpc"];
    let mut command_line = Program::toolbridge(&server, &arguments).arg("--tools").arg(&file).start()?;
    command_line.line("joined as phone").await?;
    let app = async |room: &str, program: &str| {
        let token = server.key().participant(room, "web").sign()?;
        let mut app = Program::peer(&server, &token, program, &[])?.start()?;
        app.event("ready").await?;
        anyhow::Ok(app)
    };
    let _apps = tokio::try_join!(
        app(rooms[2], "rpc_methods.py"),
        app(rooms[3], "rpc_methods.mjs"),
        app(rooms[4], BROWSER)
    )?;
    let [ours, command_line, python, node, browser] = &assistant(rooms, turns()).await?;

    let apps = [("Python", python), ("Node", node), ("browser", browser)];
    let all = [("client", ours), ("command line", command_line)].into_iter().chain(apps);
    for (name, seen) in all {
        let outputs = |turn| (name, seen.outputs(turn));
        ensure!(seen.events("text").count() == SEVERAL + 1, "{name}");
        ensure!(seen.json(ECHO)? == json!({"text": GREETING}), "{:?}", outputs(ECHO));
        for (turn, size) in LARGE {
            let of = |seen: &Seen| seen.events("output").find(|it| it["turn"] == turn).cloned();
            let (theirs, ours) = (of(seen).context("no output")?, of(ours).context("no output")?);
            let is_same = theirs["length"] == size && theirs["digest"] == ours["digest"];
            ensure!(is_same && theirs["is_error"] == false, "{name}: {theirs}");
        }
        // Calls of one turn run at once, and have a result each.
        let mut several = seen.outputs(SEVERAL);
        several.sort_unstable();
        match several[..] {
            [("echo", false, one), ("echo", false, two), ("fail", true, _)] => {
                let texts = [one, two].map(|text| serde_json::from_str::<Value>(text).ok());
                ensure!(texts == ["a", "b"].map(|it| Some(json!({"text": it}))), "{name}: {several:?}");
            }
            _ => bail!("{name}: {several:?}"),
        }
        // Errors have the same code, and texts of their own.
        let (unknown, failed) = match name {
            "client" => (UNKNOWN, "1500 lamp_broken: the lamp is broken"),
            "command line" => (UNKNOWN, "1500 execution_error: the lamp is broken"),
            _ => ("1400 Method not supported at destination", "101 the lamp is broken"),
        };
        ensure!(seen.output(NOTHING)? == (true, unknown), "{:?}", outputs(NOTHING));
        ensure!(seen.output(FAIL)? == (true, failed), "{:?}", outputs(FAIL));
        // Python's SDK stops its method after the timeout on the wire. The others let it end.
        let took = seen.call("slow")?["ms"].as_f64().map(|ms| ms / 1e3).context("no time")?;
        if name == "Python" {
            ensure!(seen.output(LATE)? == (true, "1502 Response timeout"), "{:?}", outputs(LATE));
            ensure!((ON_THE_WIRE..SLOW).contains(&took), "{took}");
        } else {
            ensure!(seen.json(LATE)? == json!({"text": "late"}), "{:?}", outputs(LATE));
            ensure!((SLOW..WAITS).contains(&took), "{name}: {took}");
        }
    }
    // toolbridge writes JSON in its own way, without spaces. An app's text is passed as it is.
    let compact = serde_json::to_string(&json!({"text": GREETING}))?;
    ensure!(ours.output(ECHO)? == (false, &*compact), "{:?}", ours.output(ECHO));
    for (name, app) in apps {
        let (_, text) = app.output(ECHO)?;
        ensure!(text.starts_with(r#"{"text": "Gr\u00fc\u00dfe"#), "{name}: {text}");
    }
    let data: Value = serde_json::from_str(ours.call("fail")?["data"].as_str().unwrap_or_default())?;
    ensure!(data == json!({"code": "lamp_broken", "message": "the lamp is broken"}), "{data}");

    // The session's transcriptions are streams of another topic, whose parts count as those of unknown streams.
    let stats = phone.stats();
    ensure!(stats.named("jobs") == 8, "{stats:?}");
    for kind in
        ["malformed", "unauthorized", "not_permitted", "stream_broken", "stream_refused", "hold_expired"]
    {
        ensure!(stats.named(kind) == 0, "{kind}: {stats:?}");
    }
    ensure!(phone.assistant().is_some_and(|it| it.as_str().starts_with("agent-")), "{:?}", phone.assistant());
    Ok(())
}
