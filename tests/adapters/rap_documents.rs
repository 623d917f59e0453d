//! Results of RAP: their documents survive a room byte for byte, whatever is in them.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use toolbridge::{
    Assistant, CallError, Client, State, ToolError, ToolResult, Tools, Value,
    adapter::{
        DocumentError,
        rap::{RapResult, RapResultError},
    },
    memory::MemoryRoom,
};

use crate::random_documents::{Random, count};

/// Documents with each kind of content and display that the protocol has, and with odd ones.
const DOCUMENTS: [&str; 12] = [
    r#"{"type":"tool_result","group_id":"g","id":"c","text":"done"}"#,
    r#"{"type":"tool_result","group_id":"g","id":"c","call_id":null,"text":"Deployed instance i-1 in 42 s.","display_as":[{"type":"text","content":"Deployed i-1"}]}"#,
    r#"{"id":"c","text":"Replaced text","display_as":[{"type":"diff","content":{"path":"src/main.rs","patch":"--- a\n+++ b\n@@ -1 +1 @@\n-a\n+b\n"}},{"type":"text","content":"one insertion"}],"type":"tool_result","group_id":"g"}"#,
    r#"{"type":"tool_result","group_id":"g","id":"c","text":"Error: rate limit. Retry after 60 s."}"#,
    r#"{"type":"tool_result","group_id":"g","id":"c","text":"Error: broken","display_as":[{"type":"text","content":"It broke"}]}"#,
    r#"{"type":"tool_result","group_id":"g","id":"c","content":[{"type":"text","text":"A logo."},{"type":"image","data":"iVBORw0KGgo=","mediaType":"image/png"}],"text":"short"}"#,
    r#"{"type":"tool_result","group_id":"g","id":"c","text":"Subscribed.","subscription":true}"#,
    r#"{"type":"tool_result","group_id":"g","id":"c","text":"{\"count\": 1, \"ratio\": 0.9}"}"#,
    r#"{"type":"tool_result","group_id":"g","id":"c","text":"t","display_as":[{"type":"hologram","content":{"rays":[1.50]}},{"type":"image","content":{"data":"%%%","mediaType":"image/png"}}]}"#,
    r#"{ "type" : "tool_result" , "group_id":"g", "id":"c", "text":"\u001b[31m\u202e", "priority": 1e2, "more": {"a/b": null} }"#,
    r#"{"type":"tool_result","group_id":"g","id":"c","text":"\ud800 half","n":1e999}"#,
    r#"{"type":"tool_result","group_id":"g","id":"c","text":"","content":[]}"#,
];

/// Returns a random document that is a result.
fn random_text(seed: u64) -> String {
    let mut random = Random::new(seed);
    let item = |it: &mut Random| match it.below(6) {
        0 => it.value(3),
        1 | 2 => it.object(&[
            ("type", &|it| it.raw("\"image\"")),
            ("data", &Random::string),
            ("mediaType", &Random::string),
        ]),
        _ => it.object(&[
            ("type", &|it| it.raw("\"text\"")),
            ("text", &Random::string),
            ("x", &|it| it.value(1)),
        ]),
    };
    let segment = |it: &mut Random| match it.below(6) {
        0 => it.value(3),
        1 => it.object(&[("type", &|it| it.raw("\"text\"")), ("content", &|it| it.value(2))]),
        2 => it.object(&[
            ("type", &|it| it.raw("\"diff\"")),
            ("content", &|it| it.object(&[("path", &Random::string), ("patch", &Random::string)])),
        ]),
        3 => it.object(&[
            ("content", &|it| it.object(&[("data", &Random::string), ("mediaType", &Random::string)])),
            ("type", &|it| it.raw("\"image\"")),
        ]),
        4 => it.object(&[("type", &Random::string), ("content", &|it| it.value(2))]),
        _ => it.object(&[("type", &|it| it.raw("\"text\"")), ("content", &Random::string)]),
    };
    let text = |it: &mut Random| match it.below(4) {
        0 => it.raw("\"Error: it broke\""),
        1 => it.raw("\"{\\\"a\\\": [1, 2.50]}\""),
        _ => it.string(),
    };
    let (items, segments) = (random.below(4), random.below(4));
    let kind: (&str, &dyn Fn(&mut Random)) = ("type", &|it| it.raw("\"tool_result\""));
    match random.below(4) {
        0 => random.object(&[kind, ("text", &text), ("subscription", &|it| it.value(0))]),
        1 => random.object(&[
            ("display_as", &|it| it.value(3)),
            ("text", &text),
            kind,
            ("content", &|it| it.value(3)),
        ]),
        2 => random.object(&[
            kind,
            ("text", &text),
            ("content", &|it| it.array(items, &item)),
            ("display_as", &|it| it.array(segments, &segment)),
        ]),
        _ => random.object(&[
            ("id", &Random::string),
            ("text", &text),
            ("display_as", &|it| it.array(segments, &segment)),
            kind,
            ("more", &|it| it.value(3)),
        ]),
    }
    random.into_text()
}

#[test]
fn failure_with_data_alone_says_the_data() {
    let mut failed = RapResult::default();
    failed.is_error = true;
    failed.result = failed.result.with_structured(serde_json::json!({"reason": "no quota"}));
    assert_eq!(failed.into_outcome().unwrap_err().message(), r#"{"reason":"no quota"}"#);
}

/// The documents that the tool of a client returns, one per call.
type Documents = Arc<Mutex<VecDeque<String>>>;

async fn next_document(State(documents): State<Documents>) -> Result<Value, ToolError> {
    let text = documents.lock().unwrap().pop_front().unwrap();
    RapResult::read_structured(&text).map_err(ToolError::internal)?.into_outcome()
}

/// Sends documents through a room, as results of a tool, and reads them at the assistant.
fn survive_a_room(texts: impl Iterator<Item = String>) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let (room, documents) = (MemoryRoom::new(), Documents::default());
        let tools = Tools::with_state(Arc::clone(&documents)).tool("next_document", "", next_document);
        let _client = Client::builder().tools(tools).join_over(room.client("phone")).await.unwrap();
        let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
        for text in texts {
            // A client limits how many calls it takes in a second.
            tokio::time::sleep(Duration::from_secs(1)).await;
            documents.lock().unwrap().push_back(text.clone());
            let (result, is_error) = match assistant.call("next_document", ()).await {
                Ok(value) => (ToolResult::of(&value), false),
                Err(CallError::Tool(error)) => (ToolResult::of_error(&error), true),
                Err(error) => panic!("{error}: {text}"),
            };
            let read = RapResult::read_structured(&text).unwrap();
            assert_eq!(is_error, read.is_error, "{text}");
            assert!(result == read.result, "{text}");
            assert_eq!(result.native().unwrap().json(), text);
        }
    });
}

#[test]
fn rap_x9_documents_of_each_kind_survive_a_room_byte_for_byte() {
    survive_a_room(DOCUMENTS.iter().map(|it| (*it).to_owned()));
}

/// `TOOLBRIDGE_RANDOM_DOCUMENTS` sets the number.
#[test]
fn rap_x9_random_documents_survive_a_room_byte_for_byte() {
    survive_a_room((0..count()).map(random_text));
}

#[test]
fn rap_x3_limits_are_checked_before_a_document_is_read() {
    let nested = |depth: usize| {
        let (open, close) = ("[".repeat(depth), "]".repeat(depth));
        format!("{{\"type\":\"tool_result\",\"text\":\"t\",\"more\":{open}{close}}}")
    };
    let (depth, limit) = (DocumentError::MAX_DEPTH + 1, DocumentError::MAX_DEPTH);
    assert!(RapResult::read(&nested(limit - 1)).is_ok());
    let error = RapResult::read(&nested(limit)).unwrap_err();
    assert_eq!(error, RapResultError::Document(DocumentError::TooDeep { depth, limit }));
    let many =
        format!("{{\"type\":\"tool_result\",\"display_as\":[{}0]}}", "0,".repeat(DocumentError::MAX_VALUES));
    assert!(RapResult::read(&many).unwrap_err().to_string().contains("the limit is 250000"));
}
