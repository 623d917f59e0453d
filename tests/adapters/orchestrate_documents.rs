//! Documents of MCP and of watsonx Orchestrate: read, carried, written. Tests named `wxo_*` are rows of the systems'
//! checklist.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value as Json, json};
use toolbridge::{
    Assistant, CallError, Client, ErrorCode, State, ToolError, ToolResult, Tools, Value,
    adapter::{DocumentError, mcp::CallToolResult},
    memory::MemoryRoom,
    result::{Audience, BlockKind, ContentBlock, DisplayContent, DisplayKind, Native, ToolSystem},
};

use crate::random_documents::{Random, count};

fn read(document: &Json) -> ToolResult {
    CallToolResult::read(&document.to_string()).unwrap().result
}

/// Sends a result as a frame would.
fn sent(result: &ToolResult) -> ToolResult {
    ToolResult::of(&Value::from_bytes(result.to_value().into_bytes()).unwrap())
}

fn text(text: &str, audience: impl Into<Json>) -> Json {
    json!({"type": "text", "text": text, "annotations": {"audience": audience.into()}})
}

fn texts(result: &ToolResult) -> Vec<&str> {
    result.content().iter().filter_map(ContentBlock::as_text).collect()
}

fn native(result: &ToolResult) -> &str {
    result.native().unwrap().json()
}

#[test]
fn wxo_w1_strings_and_typed_blocks_keep_their_order_and_fields() {
    let blocks = json!([
        "first",
        {"type": "text", "text": "second", "_meta": {"a": 1}},
        {"type": "image", "data": "AAAA", "mimeType": "image/png"},
        {"type": "audio", "data": "!broken base64!", "mimeType": "audio/wav"},
        {"type": "resource_link", "uri": "file:///a", "name": "a", "title": "A", "size": 5},
        {"type": "resource", "resource": {"uri": "file:///b", "text": "content", "more": 1}},
        {"text": "untyped"},
        "last",
    ]);
    let document = json!({ "content": blocks });
    let result = read(&document);
    assert_eq!(texts(&result), ["first", "second", "last"]);
    let kinds: Vec<&BlockKind> = result.content().iter().map(ContentBlock::kind).collect();
    assert!(matches!(
        kinds[..],
        [
            BlockKind::Text(_),
            BlockKind::Text(_),
            BlockKind::Image(_),
            BlockKind::Audio(_),
            BlockKind::Link { .. },
            BlockKind::Resource(_),
            BlockKind::Other,
            BlockKind::Text(_),
        ]
    ));
    assert_eq!(result.content()[4].raw().to_json(), json!({"title": "A", "size": 5}));
    assert_eq!(
        result.for_model(1000).text,
        "first\nsecond\n[image: image/png, 3 bytes]\n[audio: audio/wav, 11 bytes]\n[link: a, file:///a]\ncontent\nuntyped\nlast"
    );
    let places: Vec<_> = result.content().iter().map(|block| block.native_pointer().unwrap()).collect();
    assert_eq!((places[0], places[7]), ("/content/0", "/content/7"));
    assert_eq!(sent(&result), result);
    assert_eq!(native(&sent(&result)), document.to_string());
}

#[test]
fn wxo_w2_structured_content_of_any_form_is_for_programs_and_the_model() {
    for structured in
        [json!({"a": [1, 2.5]}), json!([1, "two"]), json!("text"), json!(5), json!(false), Json::Null]
    {
        let result = read(&json!({"content": [], "structuredContent": structured}));
        assert_eq!(sent(&result).structured().unwrap().to_json(), structured);
        let shown = result.for_display(&[DisplayKind::Text, DisplayKind::Json]);
        assert_eq!((result.spoken(), shown), (None, None), "{structured}");
    }
    let result =
        read(&json!({"content": [text("5 €", json!(["user"]))], "structuredContent": {"cents": 500}}));
    assert_eq!((result.spoken().as_deref(), &*result.for_model(100).text), (Some("5 €"), r#"{"cents":500}"#));
    assert_eq!(read(&json!({"content": []})).structured(), None, "absent is not null");
}

#[test]
fn wxo_w3_widget_arrives_from_meta_and_other_keys_of_meta_are_kept() {
    let form = json!({"response_type": "forms", "json_schema": {"title": "Your budget", "properties": {}}});
    let in_meta = json!({"content": ["a"], "_meta": {"com.ibm.orchestrate/widget": form, "other": {"b": 1}}});
    // IBM's class writes the form as it was built next to the one in `_meta`.
    let both =
        json!({"content": ["a"], "widget": {"title": "As built", "inputs": []}, "_meta": in_meta["_meta"]});
    for document in [in_meta, both] {
        let result = sent(&read(&document));
        assert_eq!(result.widget().unwrap().value().to_json(), form);
        assert_eq!(result.widget().unwrap().title(), Some("Your budget"));
        assert_eq!(result.native().unwrap().system(), &ToolSystem::WXO);
        assert_eq!(native(&result), document.to_string());
    }
    let built = read(&json!({"content": [], "widget": {"title": "As built", "inputs": []}}));
    assert_eq!(built.widget().unwrap().title(), Some("As built"));
    for none in
        [json!({}), json!({"com.ibm.orchestrate/widget": null}), json!({"x": 1}), json!(5), Json::Null]
    {
        assert_eq!(read(&json!({"content": ["a"], "_meta": none})).widget(), None);
    }
    let written = CallToolResult::from(ToolResult::text("a")).write();
    assert!(!written.contains("_meta"), "an empty `_meta` is left out: {written}");
}

#[test]
fn wxo_w4_unknown_keys_survive_and_content_may_be_missing() {
    let document = json!({
        "content": [text("a", json!(["user"]))],
        "context_updates": {"customer": 7}, "widget": {"inputs": []}, "unknown": [1.0],
        "_meta": {"own": true},
    });
    let result = sent(&read(&document));
    assert_eq!(result.native().unwrap().system(), &ToolSystem::WXO);
    assert_eq!(CallToolResult::from(result).write(), document.to_string());
    // IBM's samples send only `_meta`.
    let form = json!({"json_schema": {"title": "Rate this"}});
    let result = read(&json!({"_meta": {"com.ibm.orchestrate/widget": form}}));
    assert!(result.content().is_empty() && !result.needs_model());
    assert_eq!(result.spoken().as_deref(), Some("Rate this"));
    assert_eq!(texts(&read(&json!({"content": "a string"}))), ["a string"]);
    assert_eq!(read(&json!({"content": {"data": 5}})).for_model(100).text, r#"{"data":5}"#);
    assert_eq!(read(&json!({})).content(), []);
}

#[test]
fn wxo_w6_text_for_the_model_alone_reaches_no_client() {
    let hidden = "Offer the customer a credit card.";
    let document = json!({
        "content": [text(hidden, json!(["assistant"])), text("Your balance is 5 €.", json!(["user"]))],
        "structuredContent": {"cents": 500},
        "_meta": {"kept": 1, "copy": hidden},
    });
    let result = read(&document);
    assert_eq!(result.for_model(1000).text, format!("{hidden}\n{{\"cents\":500}}"));
    assert_eq!(result.spoken().as_deref(), Some("Your balance is 5 €."));
    let shown = result.for_display(&[DisplayKind::Text]).unwrap();
    assert!(matches!(shown.content(), DisplayContent::Text(text) if &**text == "Your balance is 5 €."));
    // Clients keep the rest of the document, since each block names its place in it.
    let for_clients = sent(&sent(&result).for_clients());
    assert!(!for_clients.to_value().to_json().to_string().contains("credit card"));
    let rest = json!({"content": [document["content"][1]], "structuredContent": {"cents": 500}, "_meta": {"kept": 1}});
    assert_eq!(native(&for_clients), rest.to_string());
    let cuts: Vec<_> = for_clients.cut().iter().map(|cut| (cut.part(), cut.pointer())).collect();
    assert_eq!(cuts, [("content", "/0"), ("native", "/content/0"), ("native", "/_meta/copy")]);
    // The message of a failure goes to clients, too.
    let failed = CallToolResult::failed(result).into_outcome().unwrap_err();
    assert_eq!(failed.message(), "Your balance is 5 €.");
}

#[test]
fn wxo_w7_text_for_both_is_read_by_the_model_and_not_spoken() {
    for block in [json!("5 €"), text("5 €", json!(["user", "assistant"])), text("5 €", json!([]))] {
        let result = sent(&read(&json!({"content": [block]})));
        assert_eq!((result.for_model(100).text.as_ref(), result.spoken()), ("5 €", None));
        assert!(result.needs_model() && result.person_text().is_none());
    }
}

#[test]
fn wxo_w8_model_speaks_before_the_text_for_the_person() {
    let content =
        json!([text("Exactly this.", json!(["user"])), text("Explain the fee.", json!(["assistant"]))]);
    let result = sent(&read(&json!({ "content": content })));
    assert!(result.needs_model());
    assert_eq!(result.for_model(100).text, "Explain the fee.");
    assert_eq!(result.spoken().as_deref(), Some("Exactly this."));
}

#[test]
fn wxo_w13_unknown_widget_is_kept_and_the_text_stands_for_it() {
    for widget in [
        json!({"response_type": "user_defined", "user_defined": {"x": 1}}),
        json!({"type": "carousel"}),
        json!([1]),
    ] {
        let document = json!({"content": ["Three offers."], "_meta": {"com.ibm.orchestrate/widget": widget}});
        let result = sent(&read(&document));
        assert_eq!(result.widget().unwrap().value().to_json(), widget);
        assert_eq!((result.for_model(100).text.as_ref(), result.spoken()), ("Three offers.", None));
        assert_eq!(native(&result), document.to_string());
    }
}

#[test]
fn wxo_w14_error_of_the_tool_is_a_failure_that_the_model_reads() {
    let content = json!([
        text("No such account.", json!(["user", "assistant"])),
        text("Ask for another.", json!(["assistant"]))
    ]);
    let document = json!({"content": content, "isError": true});
    let read = CallToolResult::read(&document.to_string()).unwrap();
    assert!(read.is_error);
    let error = read.clone().into_outcome().unwrap_err();
    assert_eq!((error.code(), error.message()), (ErrorCode::EXECUTION_ERROR, "No such account."));
    let partial = ToolResult::of_error(&error);
    assert_eq!(partial.for_model(100).text, "No such account.\nAsk for another.");
    assert_eq!(CallToolResult::failed(partial).write(), document.to_string());
    let silent = CallToolResult::failed(ToolResult::default()).into_outcome().unwrap_err();
    assert_eq!(silent.message(), "the tool reports an error without a text");
    let long = CallToolResult::failed(ToolResult::text("é".repeat(5000))).into_outcome().unwrap_err();
    assert_eq!(long.message().len(), 2048);
    for not_an_error in [json!(false), json!("true"), Json::Null] {
        let document = json!({"content": ["a"], "isError": not_an_error}).to_string();
        let read = CallToolResult::read(&document).unwrap();
        assert!(!read.is_error && read.into_outcome().is_ok());
        let result = CallToolResult::read(&document).unwrap().result;
        let failed: Json = serde_json::from_str(&CallToolResult::failed(result).write()).unwrap();
        assert_eq!(failed, json!({"content": [{"type": "text", "text": "a"}], "isError": true}));
    }
}

#[test]
fn wxo_w15_annotations_survive_in_any_form() {
    let of = |annotations: Json| {
        read(&json!({"content": [{"type": "text", "text": "a", "annotations": annotations}]}))
    };
    let annotations = json!({"audience": ["user"], "priority": 0.9, "lastModified": "2026-01-12T15:00:58Z"});
    let result = sent(&of(annotations.clone()));
    assert_eq!(result.content()[0].raw().to_json()["annotations"], annotations);
    assert_eq!(result.content()[0].audience(), Audience::Person);
    for annotations in [
        Json::Null,
        json!(5),
        json!({"audience": null}),
        json!({"audience": ["robot"]}),
        json!({"audience": 1}),
    ] {
        let result = sent(&of(annotations.clone()));
        assert_eq!(
            (texts(&result), result.content()[0].audience()),
            (vec!["a"], Audience::Both),
            "{annotations}"
        );
    }
    let odd = of(json!({"audience": ["robot", "assistant"]}));
    assert_eq!(odd.content()[0].audience(), Audience::Model);
}

#[test]
fn wxo_w19_one_role_counts_as_a_list_of_one() {
    for (role, audience) in
        [("user", Audience::Person), ("assistant", Audience::Model), ("robot", Audience::Both)]
    {
        let result = sent(&read(&json!({"content": [text("a", json!(role))]})));
        assert_eq!(result.content()[0].audience(), audience);
    }
}

#[test]
fn result_of_another_system_is_written_in_the_form_of_mcp() {
    let written =
        |result: ToolResult| -> Json { serde_json::from_str(&CallToolResult::from(result).write()).unwrap() };
    let rap = Native::new(ToolSystem::RAP, r#"{"rap": 1}"#);
    let result = ToolResult::text("for both").with_person_text("for you").with_model_text("for the model");
    let result = result.with_structured(json!([1, {"$bin": 2}])).with_native(rap);
    let expected = json!({
        "content": [
            {"type": "text", "text": "for both"},
            text("for you", json!(["user"])),
            text("for the model", json!(["assistant"])),
        ],
        "structuredContent": {"value": [1, {"$bin": 2}]},
    });
    assert_eq!(written(result), expected);
    // Each kind of block, with the fields that nothing here understands.
    let blocks = json!([
        {"type": "image", "data": "AAAA", "mimeType": "image/png", "_meta": {"a": 1}},
        {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"},
        {"type": "resource_link", "uri": "file:///a", "name": "a", "size": 5},
        {"type": "resource", "resource": {"uri": "file:///b", "text": "content", "more": 1}, "annotations": null},
        {"type": "unknown", "x": [1]},
    ]);
    let all = blocks.as_array().unwrap().iter();
    let result =
        all.fold(ToolResult::default(), |it, block| it.with_block(ContentBlock::from_value(&block.into())));
    assert_eq!(written(result)["content"], blocks);
    let odd = ToolResult::default()
        .with_block(ContentBlock::from_value(&json!({"no": "type"}).into()))
        .with_block(ContentBlock::from_value(&json!(5).into()));
    assert_eq!(texts(&read(&written(odd))), [r#"{"no":"type"}"#, "5"]);
    // A plain map is data; hosts that read no data get its text.
    let plain = written(ToolResult::of(&json!({"level": 0.5}).into()));
    let expected = json!({"content": [{"type": "text", "text": "{\"level\":0.5}"}], "structuredContent": {"level": 0.5}});
    assert_eq!(plain, expected);
    assert_eq!(written(ToolResult::default()), json!({"content": []}));
}

#[test]
fn widget_is_written_only_in_the_form_of_its_system() {
    let widget = json!({"json_schema": {"title": "Rate this"}});
    let result =
        ToolResult::default().with_widget(toolbridge::result::Widget::new(&widget).with_title("Rate this"));
    let again = CallToolResult::read(&CallToolResult::from(result.clone()).write()).unwrap().result;
    assert_eq!((again.widget(), texts(&again)), (result.widget(), vec!["Rate this"]));
    let of_rap = result.with_native(Native::new(ToolSystem::RAP, "{}"));
    assert!(!CallToolResult::from(of_rap).write().contains("_meta"));
}

#[test]
fn document_that_is_no_json_is_refused_and_one_that_is_no_object_is_a_text() {
    for text in ["", "nonsense"] {
        let error = CallToolResult::read(text).unwrap_err();
        assert!(matches!(error, DocumentError::NotJson { .. }), "{text:?}: {error}");
    }
    for (text, says) in [("[1,{}]", "[1,{}]"), ("5", "5"), ("\"done\"", "done")] {
        assert_eq!(CallToolResult::read(text).unwrap().result.for_model(100).text, says);
    }
}

const HIDDEN: &str = "this is for the model alone";

/// Writes a document of MCP, or of watsonx Orchestrate: with its keys.
fn document(random: &mut Random, is_orchestrate: bool) {
    let block = |it: &mut Random| match it.below(8) {
        0 => it.value(3),
        1 => it.string(),
        2 => it.object(&[
            ("type", &|it| it.raw("\"image\"")),
            ("data", &Random::string),
            ("mimeType", &Random::string),
        ]),
        3 => it.object(&[
            ("type", &|it| it.raw("\"resource\"")),
            ("resource", &|it| {
                it.object(&[("uri", &Random::string), ("text", &Random::string), ("x", &|it| it.value(1))])
            }),
        ]),
        4 => it.object(&[
            ("type", &|it| it.raw("\"text\"")),
            ("text", &|it| it.raw(&format!("\"{HIDDEN}\""))),
            ("annotations", &|it| it.raw(r#"{"audience": ["assistant"]}"#)),
        ]),
        _ => it.object(&[
            ("type", &|it| it.raw("\"text\"")),
            ("text", &Random::string),
            ("annotations", &|it| {
                let audience = it.pick(&[
                    r#"{"audience": ["user"]}"#,
                    r#"{"audience": "user", "priority": 0.9}"#,
                    "null",
                    "{}",
                ]);
                it.raw(audience);
            }),
            ("bridge.at", &|it| it.value(1)),
        ]),
    };
    let meta = |it: &mut Random| match it.below(3) {
        0 if is_orchestrate => {
            it.object(&[("com.ibm.orchestrate/widget", &|it| it.value(3)), ("x", &|it| it.value(2))])
        }
        _ => it.value(2),
    };
    let structured = |it: &mut Random| match it.below(8) {
        0 => it.raw(&format!("{{\"copy\": \"it says: {HIDDEN}\"}}")),
        _ => it.value(4),
    };
    let length = random.below(5);
    match random.below(8) {
        0 => random.object(&[("_meta", &meta)]),
        1 => random.object(&[("content", &|it| it.value(3)), ("isError", &|it| it.value(0))]),
        2 => random
            .object(&[("content", &|it| it.array(length, &block)), ("content", &|it| it.array(2, &block))]),
        3 if is_orchestrate => {
            random.object(&[("widget", &|it| it.value(3)), ("content", &|it| it.array(length, &block))])
        }
        _ => random.object(&[
            ("content", &|it| it.array(length, &block)),
            ("structuredContent", &structured),
            ("_meta", &meta),
            (if is_orchestrate { "context_updates" } else { "other" }, &|it| it.value(2)),
        ]),
    }
}

/// Returns a random document of MCP (`false`) or watsonx Orchestrate (`true`).
fn random_text(seed: u64, is_orchestrate: bool) -> String {
    let mut random = Random::new(seed);
    document(&mut random, is_orchestrate);
    random.into_text()
}

/// `TOOLBRIDGE_RANDOM_DOCUMENTS` sets the number.
#[test]
fn common_x9_random_documents_cross_the_wire_unchanged() {
    for (seed, is_orchestrate) in (0..count()).flat_map(|seed| [(seed, false), (seed, true)]) {
        let text = random_text(seed, is_orchestrate);
        let read = CallToolResult::read(&text).unwrap_or_else(|error| panic!("seed {seed}: {error}: {text}"));
        let again = sent(&read.result);
        assert_eq!(native(&again), text, "seed {seed}");
        assert!(again == read.result, "seed {seed}: {text}");
        assert_eq!(with!(read, result = again.clone()).write(), text, "seed {seed}");
        let for_clients = again.for_clients().to_value();
        let has_hidden = for_clients.as_bytes().windows(HIDDEN.len()).any(|it| it == HIDDEN.as_bytes());
        assert!(
            !has_hidden || !again.content().iter().any(|it| it.audience() == Audience::Model),
            "seed {seed}: {text}"
        );
    }
}

/// The documents that the tool of a client returns, one per call.
type Documents = Arc<Mutex<VecDeque<String>>>;

async fn next_document(State(documents): State<Documents>) -> Result<Value, ToolError> {
    let text = documents.lock().unwrap().pop_front().unwrap();
    CallToolResult::read(&text).map_err(ToolError::internal)?.into_outcome()
}

/// Sends random documents through a room, as results of a tool, and writes them again at the assistant.
fn random_documents_survive_a_room(is_orchestrate: bool) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let (room, documents) = (MemoryRoom::new(), Documents::default());
        let tools = Tools::with_state(Arc::clone(&documents)).tool("next_document", "", next_document);
        let _client = Client::builder().tools(tools).join_over(room.client("phone")).await.unwrap();
        let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
        for seed in 0..count() {
            // A client limits how many calls it takes in a second.
            tokio::time::sleep(Duration::from_secs(1)).await;
            let text = random_text(seed, is_orchestrate);
            documents.lock().unwrap().push_back(text.clone());
            let (result, is_error) = match assistant.call("next_document", ()).await {
                Ok(value) => (ToolResult::of(&value), false),
                Err(CallError::Tool(error)) => (ToolResult::of_error(&error), true),
                Err(error) => panic!("seed {seed}: {error}: {text}"),
            };
            let read = CallToolResult::read(&text).unwrap();
            assert_eq!(is_error, read.is_error, "seed {seed}: {text}");
            assert!(result == read.result, "seed {seed}: {text}");
            assert_eq!(with!(read, result = result).write(), text, "seed {seed}");
        }
    });
}

#[test]
fn common_x9_random_documents_of_mcp_survive_a_room_byte_for_byte() {
    random_documents_survive_a_room(false);
}

#[test]
fn common_x9_random_documents_of_orchestrate_survive_a_room_byte_for_byte() {
    random_documents_survive_a_room(true);
}
