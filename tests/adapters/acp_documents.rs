//! Calls of agents: what their updates say survives a room byte for byte, whatever is in them.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use toolbridge::{
    Assistant, CallError, Client, State, ToolError, ToolResult, Tools, Value,
    adapter::{DocumentError, acp::ToolCall},
    memory::MemoryRoom,
};

use crate::random_documents::{Random, count};

/// The updates of calls with each kind of content that the protocol has, and with odd ones. The last one is final.
const CALLS: [&[&str]; 11] = [
    &[r#"{"toolCallId":"1","title":"Read","status":"completed"}"#],
    &[
        r#"{"sessionUpdate":"tool_call","toolCallId":"1","title":"Reading","kind":"read","status":"pending","locations":[{"path":"/a","line":3}]}"#,
        r#"{"sessionUpdate":"tool_call_update","toolCallId":"1","status":"in_progress","rawInput":{"path":"/a"}}"#,
        r#"{"sessionUpdate":"tool_call_update","toolCallId":"1","status":"completed","content":[{"type":"content","content":{"type":"text","text":"one"}}]}"#,
    ],
    &[
        r#"{"toolCallId":"1","content":[{"type":"diff","path":"/a.rs","oldText":null,"newText":"a\n"},{"type":"diff","path":"/b","oldText":"a","newText":"b"}],"status":"completed"}"#,
    ],
    &[
        r#"{"toolCallId":"1","content":[{"type":"terminal","terminalId":"t1"},{"type":"hologram","beam":1.50}],"status":"failed"}"#,
    ],
    &[
        r#"{"toolCallId":"1","content":[{"type":"content","content":{"type":"image","data":"%%%","mimeType":"image/png"}},{"type":"content","content":{"type":"audio","data":"AA==","mimeType":"audio/wav"}}],"status":"completed"}"#,
    ],
    &[
        r#"{"toolCallId":"1","content":[{"type":"content","content":{"type":"resource_link","uri":"file:///a","name":"a"}},{"type":"content","content":{"type":"resource","resource":{"uri":"file:///a","text":"b"}}}],"status":"completed"}"#,
    ],
    &[r#"{"toolCallId":"1","status":"completed","rawOutput":null}"#],
    &[r#"{"toolCallId":"1","status":"completed","rawOutput":[1e400,-0,18446744073709551616,{"$bin":"AA"}]}"#],
    &[
        r#"{"toolCallId":"1","_meta":{"a":1,"b":[ 1 ]},"kind":null}"#,
        r#"{"toolCallId":"1","_meta":{"b":2,"c":null},"kind":"edit"}"#,
        r#"{"toolCallId":"1","status":"failed","kind":null,"title":"\ud800\u202e","own":{"at":"/a"}}"#,
    ],
    &[r#"{"status":"completed"}"#],
    &[r#"{"toolCallId":"1","status":"completed","content":{"type":"text"},"title":5,"locations":"none"}"#],
];

const NAMES: [&str; 9] =
    ["title", "kind", "content", "locations", "rawInput", "rawOutput", "name", "own", "at"];

/// The updates of one call, and the document that they are together.
struct Call {
    updates: Vec<String>,
    merged: String,
}

/// Returns a call whose updates have random fields. The rules are those of the protocol: a field that comes again replaces
/// the first one, at its place, and a null changes no value.
fn random_call(seed: u64) -> Call {
    let mut random = Random::new(seed);
    let count = 1 + random.below(3);
    let mut fields: Vec<(String, String)> = Vec::new();
    let mut updates = Vec::new();
    for n in 0..count {
        let mut update: Vec<(String, String)> = Vec::new();
        for name in NAMES {
            if random.below(3) > 0 {
                continue;
            }
            let value = value(&mut random, name);
            update.push((name.to_owned(), value));
        }
        if n + 1 == count {
            let status = random.pick(&["completed", "failed"]);
            update.push(("status".to_owned(), format!("\"{status}\"")));
        }
        for (name, value) in &update {
            match fields.iter_mut().find(|(known, _)| known == name) {
                Some(_) if value == "null" => {}
                Some((_, known)) => known.clone_from(value),
                None => fields.push((name.clone(), value.clone())),
            }
        }
        let place = random.below(update.len() as u64 + 1);
        update.insert(
            place.try_into().unwrap(),
            ("sessionUpdate".to_owned(), "\"tool_call_update\"".to_owned()),
        );
        let space = random.pick(&["", " ", "\n\t"]);
        updates.push(written(&update, space));
    }
    Call { updates, merged: written(&fields, "") }
}

/// Writes the fields, with space between them that is not part of the document.
fn written(fields: &[(String, String)], space: &str) -> String {
    let fields: Vec<_> = fields
        .iter()
        .map(|(name, value)| format!("{space}\"{name}\"{space}:{space}{value}{space}"))
        .collect();
    format!("{{{}}}", fields.join(","))
}

/// Returns a random value for a field, often one of the form that it has.
fn value(random: &mut Random, name: &str) -> String {
    let seed = random.below(u64::MAX);
    let mut random = Random::new(seed);
    if random.below(4) == 0 {
        random.value(3);
        return random.into_text();
    }
    match name {
        "title" | "kind" | "name" => random.string(),
        "locations" => {
            let length = random.below(3);
            random.array(length, &|it| {
                it.object(&[("path", &Random::string), ("line", &|it| it.value(0))]);
            });
        }
        "content" => {
            let length = random.below(4);
            random.array(length, &item);
        }
        _ => random.value(4),
    }
    random.into_text()
}

fn item(random: &mut Random) {
    let block = |it: &mut Random| {
        let kind =
            it.pick(&["\"text\"", "\"image\"", "\"audio\"", "\"resource_link\"", "\"resource\"", "\"x\""]);
        let kind = kind.to_owned();
        it.object(&[
            ("type", &|it| it.raw(&kind)),
            ("text", &Random::string),
            ("data", &Random::string),
            ("uri", &Random::string),
            ("resource", &|it| it.object(&[("uri", &Random::string), ("text", &Random::string)])),
            ("annotations", &|it| it.value(2)),
        ]);
    };
    match random.below(5) {
        0 => random.value(3),
        1 => random.object(&[
            ("type", &|it| it.raw("\"diff\"")),
            ("path", &Random::string),
            ("oldText", &|it| if it.below(2) == 0 { it.raw("null") } else { it.string() }),
            ("newText", &Random::string),
        ]),
        2 => random.object(&[("type", &|it| it.raw("\"terminal\"")), ("terminalId", &Random::string)]),
        _ => random.object(&[("type", &|it| it.raw("\"content\"")), ("content", &block)]),
    }
}

/// Merges updates, each of which is read from its text.
fn merged(updates: &[String]) -> ToolCall {
    let mut call = ToolCall::default();
    for update in updates {
        assert!(call.merge(&ToolCall::read(update).unwrap_or_else(|error| panic!("{error}: {update}"))));
    }
    call
}

/// The calls that the tool of a client makes, one per call.
type Calls = Arc<Mutex<VecDeque<ToolCall>>>;

async fn next_call(State(calls): State<Calls>) -> Result<Value, ToolError> {
    let call = calls.lock().unwrap().pop_front().unwrap();
    call.outcome().unwrap()
}

/// Sends calls through a room, as results of a tool, and reads them at the assistant.
fn survive_a_room(all: impl Iterator<Item = (Vec<String>, Option<String>)>) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let (room, calls) = (MemoryRoom::new(), Calls::default());
        let tools = Tools::with_state(Arc::clone(&calls)).tool("next_call", "", next_call);
        let _client = Client::builder().tools(tools).join_over(room.client("phone")).await.unwrap();
        let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
        for (updates, expected) in all {
            // A client limits how many calls it takes in a second.
            tokio::time::sleep(Duration::from_secs(1)).await;
            let call = merged(&updates);
            if let Some(expected) = expected {
                assert_eq!(call.write(), expected, "{updates:?}");
            }
            calls.lock().unwrap().push_back(call.clone());
            let (result, is_error) = match assistant.call("next_call", ()).await {
                Ok(value) => (ToolResult::of(&value), false),
                Err(CallError::Tool(error)) => (ToolResult::of_error(&error), true),
                Err(error) => panic!("{error}: {updates:?}"),
            };
            assert_eq!(is_error, call.status().as_str() == "failed", "{updates:?}");
            assert!(result == call.result(), "{updates:?}");
            let text = call.write();
            assert_eq!(result.native().unwrap().json(), text, "{updates:?}");
            // What was written says the same when it is read again.
            assert_eq!(ToolCall::read(&text).unwrap().write(), text);
        }
    });
}

#[test]
fn acp_x9_calls_of_each_kind_survive_a_room_byte_for_byte() {
    survive_a_room(CALLS.iter().map(|updates| {
        let updates: Vec<String> = updates.iter().map(|it| (*it).to_owned()).collect();
        // A single update is the document, as it came.
        let expected = (updates.len() == 1).then(|| updates[0].clone());
        (updates, expected)
    }));
}

/// `TOOLBRIDGE_RANDOM_DOCUMENTS` sets the number.
#[test]
fn acp_x9_random_documents_survive_a_room_byte_for_byte() {
    survive_a_room((0..count()).map(random_call).map(|Call { updates, merged }| (updates, Some(merged))));
}

#[test]
fn acp_x3_limits_are_checked_before_a_call_is_read() {
    let nested = |depth: usize| {
        let (open, close) = ("[".repeat(depth), "]".repeat(depth));
        format!("{{\"toolCallId\":\"1\",\"rawOutput\":{open}{close}}}")
    };
    let (depth, limit) = (DocumentError::MAX_DEPTH + 1, DocumentError::MAX_DEPTH);
    assert!(ToolCall::read(&nested(limit - 1)).is_ok());
    assert_eq!(ToolCall::read(&nested(limit)).unwrap_err(), DocumentError::TooDeep { depth, limit });
    let many = format!("{{\"content\":[{}0]}}", "0,".repeat(DocumentError::MAX_VALUES));
    assert!(ToolCall::read(&many).unwrap_err().to_string().contains("the limit is 250000"));
    let fields: Vec<_> = (0..65).map(|n| format!("\"f{n}\":0")).collect();
    assert!(ToolCall::read(&format!("{{{}}}", fields.join(","))).is_err());
    assert!(ToolCall::read("\"Read\"").is_err());
}
