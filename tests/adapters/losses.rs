//! A result of each tool system that leaves the room by each other one: what arrives, and where. The guide has the same as
//! tables.

mod systems;

use std::{
    collections::{BTreeSet, VecDeque},
    fs,
    path::Path,
    sync::{Arc, Mutex},
};

use serde_json::{Map, Value as Json, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use toolbridge::{
    Assistant, CallError, Client, Outcome, State, ToolError, ToolResult, Tools, Value,
    adapter::{
        acp::{self, AgentTurn, TurnEnd, UserPrompt},
        agent_air::Batch,
        mcp, rap,
    },
    memory::MemoryRoom,
};

use self::systems::{Mark, System, systems};
use crate::{
    mcp_server::Host,
    rap_server::{Runtime, invocation, send},
};

/// The places in which a part of a result may arrive.
const SINKS: [&str; 4] = ["MCP, watsonx Orchestrate", "RAP", "ACP", "agent-air"];

/// The outcomes that the tool of a client has, one per call.
type Outcomes = Arc<Mutex<VecDeque<Outcome>>>;

async fn next(State(outcomes): State<Outcomes>) -> Result<Value, ToolError> {
    outcomes.lock().unwrap().pop_front().expect("an outcome for each call")
}

/// A room with a client whose tool has these outcomes, and an assistant that a sink serves.
struct Room {
    outcomes: Outcomes,
    assistant: Assistant,
    _phone: Client,
}

impl Room {
    async fn new() -> Self {
        let (room, outcomes) = (MemoryRoom::new(), Outcomes::default());
        let tools = Tools::with_state(Arc::clone(&outcomes)).tool("next", "", next);
        let phone = Client::builder().tools(tools).join_over(room.client("phone")).await.unwrap();
        let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
        assistant.ready("phone").await.unwrap();
        Self { outcomes, assistant, _phone: phone }
    }

    fn prepare(&self, outcome: Outcome) {
        self.outcomes.lock().unwrap().push_back(outcome);
    }
}

pub(crate) type Sent = Vec<Outcome>;

/// Sends outcomes to a host of MCP, and returns what it gets.
pub(crate) async fn by_mcp(outcomes: Sent) -> Vec<Json> {
    let room = Room::new().await;
    let mut host = Host::initialized(mcp::serve(room.assistant.clone())).await;
    let mut got = Vec::new();
    for outcome in outcomes {
        room.prepare(outcome);
        got.push(host.call("next", json!({})).await);
    }
    got
}

/// Sends outcomes to a runtime of RAP.
pub(crate) async fn by_rap(outcomes: Sent) -> Vec<Json> {
    let room = Room::new().await;
    let toolset = rap::serve(room.assistant.clone()).allow_callback("127.0.0.1".parse().unwrap());
    let listener = toolset.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let (mut runtime, mut got) = (Runtime::new().await, Vec::new());
    for (n, outcome) in outcomes.into_iter().enumerate() {
        room.prepare(outcome);
        let body = invocation(&runtime, &format!("c{n}"), "next", json!({})).to_string();
        let url = format!("{}/invoke", listener.url());
        let answer = send(&url, "POST", &[("Content-Type", "application/json")], &body).await;
        assert_eq!(answer.status, 200);
        let mut message = runtime.next().await;
        let fields = message.as_object_mut().unwrap();
        for of_the_call in ["type", "group_id", "id"] {
            assert!(fields.remove(of_the_call).is_some());
        }
        got.push(message);
    }
    got
}

/// Calls the tool once.
async fn once(_: UserPrompt, turn: AgentTurn) -> Result<TurnEnd, ToolError> {
    let _ = turn.call("next", ()).await; // the editor gets its failure, too
    Ok(TurnEnd::EndTurn)
}

/// Sends outcomes to an editor of ACP.
pub(crate) async fn by_acp(outcomes: Sent) -> Vec<Json> {
    let room = Room::new().await;
    let (ours, theirs) = tokio::io::duplex(1 << 20);
    let (read, write) = tokio::io::split(theirs);
    let _agent = tokio::spawn(acp::agent(room.assistant.clone(), once).over(read, write));
    let (output, mut input) = tokio::io::split(ours);
    let mut lines = BufReader::new(output).lines();
    let mut ask = async |method: &str, params: Json| {
        let request = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        input.write_all(format!("{request}\n").as_bytes()).await.unwrap();
        let mut updates = Vec::new();
        loop {
            let mut message: Json = serde_json::from_str(&lines.next_line().await.unwrap().unwrap()).unwrap();
            if message["id"] == 1 {
                return (message["result"].take(), updates);
            }
            updates.push(message["params"]["update"].take());
        }
    };
    ask("initialize", json!({"protocolVersion": 1, "clientCapabilities": {}})).await;
    let (opened, _) = ask("session/new", json!({"cwd": "/home/ada", "mcpServers": []})).await;
    let mut got = Vec::new();
    for outcome in outcomes {
        room.prepare(outcome);
        let prompt = json!([{"type": "text", "text": "go"}]);
        let (_, updates) =
            ask("session/prompt", json!({"sessionId": opened["sessionId"], "prompt": prompt})).await;
        let is_end = |it: &Json| matches!(it["status"].as_str(), Some("completed" | "failed"));
        got.push(updates.into_iter().find(is_end).expect("the call has an end"));
    }
    got
}

/// Gives outcomes to a runtime of agent-air.
pub(crate) async fn by_agent_air(outcomes: Sent) -> Vec<Json> {
    let room = Room::new().await;
    let mut got = Vec::new();
    for outcome in outcomes {
        room.prepare(outcome);
        let batch =
            Batch::builder().call("c", "next", json!({})).start(&room.assistant).unwrap().finish().await;
        got.push(serde_json::from_str(&batch.results()[0].document().json()).unwrap());
    }
    got
}

/// Returns where a text or number of this form is, and whether it is all of that place.
fn places(json: &Json, path: &str, mark: &str, found: &mut BTreeSet<(bool, String)>) {
    let typed = |json: &Json, path: String| match json["type"].as_str() {
        Some(name) => format!("{path}[{name}]"),
        None => path,
    };
    match json {
        Json::Object(fields) => {
            // Data and metadata have any form.
            let is_data = ["structuredContent", "rawOutput", "_meta"].contains(&path);
            for (key, value) in fields {
                let below = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                let below = if is_data { path.to_owned() } else { typed(value, below) };
                places(value, &below, mark, found);
            }
        }
        Json::Array(items) => {
            for item in items {
                places(item, &typed(item, path.to_owned()), mark, found);
            }
        }
        Json::String(text) if text.contains(mark) => _ = found.insert((text == mark, path.to_owned())),
        Json::Number(_) | Json::Bool(_) => {
            let text = json.to_string();
            if text == mark {
                found.insert((true, path.to_owned()));
            }
        }
        _ => {}
    }
}

/// Returns the cell of a table: where a part has arrived.
fn cell(got: &Json, mark: &Mark) -> String {
    let quoted = |path: &str| format!("`{}`", path.replace("content[content].content", "content"));
    match mark {
        Mark::Failure => {
            let failed = [
                (got["isError"] == true, "`isError`"),
                (got["status"] == "failed", "`status`"),
                (got["is_error"] == true, "`is_error`"),
                (got["text"].as_str().is_some_and(|it| it.starts_with("Error: ")), "`Error: …`"),
            ];
            failed.iter().find(|(is_so, _)| *is_so).map_or("–", |(_, what)| what).to_owned()
        }
        Mark::Text(mark) => {
            let mut found = BTreeSet::new();
            places(got, "", mark, &mut found);
            // Where it is all of the text comes first.
            let cells = found.iter().rev().map(|(is_all, path)| match is_all {
                true => quoted(path),
                false => format!("in {}", quoted(path)),
            });
            let mut cells: Vec<_> = cells.collect();
            cells.dedup();
            if cells.is_empty() { "–".to_owned() } else { cells.join(", ") }
        }
    }
}

async fn table(System { name, read, parts }: System) -> String {
    let outcomes = || parts.iter().map(|part| read(&part.document.to_string())).collect::<Sent>();
    let got = [
        by_mcp(outcomes()).await,
        by_rap(outcomes()).await,
        by_acp(outcomes()).await,
        by_agent_air(outcomes()).await,
    ];
    let mut table = format!("| {name} | {} |\n|{}\n", SINKS.join(" | "), " --- |".repeat(SINKS.len() + 1));
    for (n, part) in parts.iter().enumerate() {
        let cells: Vec<_> = got.iter().map(|got| cell(&without_codes(&got[n]), &part.mark)).collect();
        table.push_str(&format!("| {} | {} |\n", part.name, cells.join(" | ")));
    }
    table
}

/// Removes what toolbridge adds to a failure.
fn without_codes(got: &Json) -> Json {
    let mut got = got.clone();
    if let Some(meta) = got.get_mut("_meta").and_then(Json::as_object_mut) {
        let kept: Map<_, _> =
            std::mem::take(meta).into_iter().filter(|(key, _)| !key.contains("toolbridge")).collect();
        *meta = kept;
    }
    got
}

/// `UPDATE_GUIDE=1` writes the tables.
#[tokio::test]
async fn tables_of_the_guide_say_what_arrives_of_each_system_in_each_other_one() {
    let mut tables = Vec::new();
    for system in systems() {
        tables.push(table(system).await);
    }
    let tables = tables.join("\n");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/guide/systems.md");
    let page = fs::read_to_string(&path).unwrap();
    let (begin, end) = ("<!-- tables -->\n", "<!-- end of tables -->\n");
    let (before, rest) = page.split_once(begin).unwrap();
    let (found, after) = rest.split_once(end).unwrap();
    if std::env::var_os("UPDATE_GUIDE").is_some() {
        fs::write(&path, format!("{before}{begin}\n{tables}\n{end}{after}")).unwrap();
        return;
    }
    for (found, expected) in found.trim().lines().zip(tables.trim().lines()) {
        assert_eq!(found, expected, "left: the guide, right: what arrives");
    }
    assert_eq!(found.trim(), tables.trim());
}

/// Each of these documents is the native one at the assistant, too.
#[tokio::test]
async fn common_x9_documents_of_each_system_survive_a_room_byte_for_byte() {
    for System { read, parts, .. } in systems() {
        // A client limits how many calls it takes in a second.
        let room = Room::new().await;
        for part in parts {
            let text = part.document.to_string();
            room.prepare(read(&text));
            let result = match room.assistant.call("next", json!({})).await {
                Ok(value) => ToolResult::of(&value),
                Err(CallError::Tool(error)) => ToolResult::of_error(&error),
                Err(error) => panic!("{error}: {text}"),
            };
            assert_eq!(result.native().unwrap().json(), text);
        }
    }
}
