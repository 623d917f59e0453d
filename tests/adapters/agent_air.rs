//! agent-air's documents: rows G0 to G4, G6 and G11 of the checklist, and random documents. Batches are in `agent_air_batch`.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::FutureExt;
use serde_json::{Value as Json, json};
use toolbridge::{
    Assistant, CallError, Client, ErrorCode, Event, State, ToolError, ToolResult, Tools, Value,
    adapter::{
        DocumentError,
        agent_air::{Batch, ContentType, DisplayConfig, Document, InvalidDocument},
    },
    chat,
    memory::MemoryRoom,
    result::{Audience, ContentBlock, Diff, Display, DisplayContent, DisplayKind, ToolSystem},
};

use crate::random_documents::{self, Random};

/// What a screen may show.
const ALL: [DisplayKind; 4] =
    [DisplayKind::Text, DisplayKind::Markdown, DisplayKind::Json, DisplayKind::Code];

/// The documents that the tool of a client returns, one per call.
type Documents = Arc<Mutex<VecDeque<String>>>;

async fn next_document(State(documents): State<Documents>) -> Result<Value, ToolError> {
    let json = documents.lock().unwrap().pop_front().unwrap();
    Document::read(&json).map_err(ToolError::internal)?.to_outcome()
}

struct Room {
    documents: Documents,
    assistant: Assistant,
    _client: Client,
}

impl Room {
    async fn new() -> Self {
        let (room, documents) = (MemoryRoom::new(), Documents::default());
        let tools = Tools::with_state(Arc::clone(&documents)).tool("next_document", "", next_document);
        let client = Client::builder().tools(tools).join_over(room.client("phone")).await.unwrap();
        let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
        Self { documents, assistant, _client: client }
    }

    /// Sends a document through the room, as a tool's result.
    async fn pass(&self, json: &str) -> Result<Value, CallError> {
        self.documents.lock().unwrap().push_back(json.to_owned());
        self.assistant.call("next_document", ()).await
    }

    /// Sends a document of a tool that succeeded.
    async fn result(&self, document: &Document) -> ToolResult {
        ToolResult::of(&self.pass(&document.json()).await.unwrap())
    }
}

fn shown(result: &ToolResult) -> Display {
    result.for_display(&ALL).unwrap().into_owned()
}

/// The page's own example of an error.
fn denied_write() -> Document {
    let display = DisplayConfig::new("File Write Error", ContentType::Text).with_collapsed(false);
    let output = "Permission denied: Cannot write to /etc/shadow";
    Document::new(output).with_display(display).with_error(true)
}

#[tokio::test(start_paused = true)]
async fn agent_air_g0_error_example_of_the_page_survives_the_room_field_for_field() {
    let document = denied_write();
    let json = json!({
        "output": "Permission denied: Cannot write to /etc/shadow",
        "display": {"title": "File Write Error", "content_type": "text", "collapsed": false},
        "is_error": true,
    });
    assert_eq!(serde_json::from_str::<Json>(&document.json()).unwrap(), json);
    let Err(CallError::Tool(error)) = Room::new().await.pass(&json.to_string()).await else { panic!() };
    let result = ToolResult::of_error(&error);
    assert_eq!(result.native().unwrap().json(), json.to_string());
    let read = Document::of_result(&result, true);
    assert_eq!((&read, &*read.json()), (&document, &*json.to_string()));
}

#[tokio::test(start_paused = true)]
async fn agent_air_g1_output_reaches_the_model_unchanged_with_any_display() {
    let room = Room::new().await;
    let long = "é\n".repeat(40_000);
    let reordered = r#" { "b": [1, 2.0, -0, 1e3, 123456789012345678901234567890], "a": "\u00e9" } "#;
    let twice = r#"{"a": 1, "a": 2}"#;
    let other =
        DisplayConfig::new("t", ContentType::Code("c".into())).with_field("content", "something else");
    let displays = [None, Some(DisplayConfig::new("title", ContentType::Json)), Some(other)];
    for output in ["", "plain", "5", "null", "[]", "{", reordered, twice, "[1e999]", long.as_str()] {
        for display in &displays {
            let document = display.iter().cloned().fold(Document::new(output), Document::with_display);
            let result = room.result(&document).await;
            assert_eq!(result.for_model(usize::MAX).text, output);
            assert!(result.needs_model());
        }
    }
    let data = room.result(&Document::new(r#"{"a": [1]}"#)).await;
    assert_eq!(data.structured().unwrap().to_json(), json!({"a": [1]}));
    // The model's message has it, too.
    room.documents.lock().unwrap().push_back(Document::new("plain").json().to_string());
    let asked = json!({"id": "c1", "function": {"name": "next_document", "arguments": "{}"}});
    let answer = chat::answer(&room.assistant, &asked).await;
    let content: Json = serde_json::from_str(answer.message["content"].as_str().unwrap()).unwrap();
    assert_eq!(content["result"], "plain");
}

#[tokio::test(start_paused = true)]
async fn agent_air_g2_each_display_arrives_with_title_type_and_collapsed() {
    let room = Room::new().await;
    let text = "# a\n{}";
    let code = |language: Option<&str>| DisplayContent::Code {
        language: language.map(Into::into),
        text: text.into(),
    };
    for (content_type, content) in [
        (ContentType::Text, DisplayContent::Text(text.into())),
        (ContentType::Markdown, DisplayContent::Markdown(text.into())),
        (ContentType::Json, DisplayContent::Json(text.into())),
        (ContentType::Code("rust".into()), code(Some("rust"))),
        (ContentType::Code(String::new()), code(None)),
    ] {
        for is_collapsed in [false, true] {
            let display = DisplayConfig::new("a title", content_type.clone()).with_collapsed(is_collapsed);
            let result = room.result(&Document::new(text).with_display(display.clone())).await;
            let expected = Display::new(content.clone()).with_title("a title").with_collapsed(is_collapsed);
            assert_eq!(shown(&result), expected);
            assert_eq!(Document::of_result(&result, false).display(), Some(&display));
        }
    }
    let plain = room.result(&Document::new(text)).await;
    assert_eq!(shown(&plain), Display::new(DisplayContent::Text(text.into())));
}

/// A client that knows nothing of agent-air draws the result by its display.
fn drawn(result: &ToolResult) -> String {
    let display = shown(result);
    let body = match display.content() {
        DisplayContent::Code { language, text } => {
            format!("```{}\n{text}\n```", language.as_deref().unwrap_or(""))
        }
        DisplayContent::Markdown(text) => format!("<markdown>{text}</markdown>"),
        DisplayContent::Json(text) => {
            serde_json::to_string_pretty(&serde_json::from_str::<Json>(text).unwrap()).unwrap()
        }
        DisplayContent::Text(text) => text.to_string(),
        other => panic!("{other:?}"),
    };
    display.title().map(|title| format!("{title}\n{body}")).unwrap_or(body)
}

#[tokio::test(start_paused = true)]
async fn agent_air_g3_client_draws_by_the_display_alone_and_a_voice_client_says_the_title() {
    let room = Room::new().await;
    let table = "| a | b |\n| - | - |\n| 1 | 2 |";
    for (output, content_type, title, screen, voice) in [
        (
            "fn main() {}",
            ContentType::Code("rust".into()),
            "main.rs",
            "main.rs\n```rust\nfn main() {}\n```",
            Some("main.rs"),
        ),
        (
            table,
            ContentType::Markdown,
            "Two columns",
            &*format!("Two columns\n<markdown>{table}</markdown>"),
            Some("Two columns"),
        ),
        (r#"{"a":1}"#, ContentType::Json, "", "{\n  \"a\": 1\n}", None),
        ("21 °C", ContentType::Text, "", "21 °C", Some("21 °C")),
    ] {
        let document = Document::new(output).with_display(DisplayConfig::new(title, content_type));
        let result = room.result(&document).await;
        assert_eq!(drawn(&result), screen);
        assert_eq!(Document::of_result(&result, false).short_text(), voice);
        assert!(result.for_clients() == result, "a client gets all of it");
    }
}

#[tokio::test(start_paused = true)]
async fn agent_air_g4_failed_tool_still_gives_its_output_to_the_model_and_its_display_to_the_person() {
    let room = Room::new().await;
    let Err(CallError::Tool(error)) = room.pass(&denied_write().json()).await else { panic!() };
    assert_eq!((error.code(), error.message()), (ErrorCode::EXECUTION_ERROR, denied_write().output()));
    let result = ToolResult::of_error(&error);
    assert_eq!(result.for_model(1000).text, denied_write().output());
    let display = shown(&result);
    assert_eq!((display.title(), display.is_collapsed()), (Some("File Write Error"), false));
}

#[tokio::test(start_paused = true)]
async fn agent_air_g6_result_passes_batch_event_and_display() {
    let room = Room::new().await;
    let mut events = room.assistant.events();
    let display = DisplayConfig::new("Report", ContentType::Markdown).with_collapsed(true);
    room.documents
        .lock()
        .unwrap()
        .push_back(Document::new("# all is well").with_display(display).json().to_string());
    // 1. The tool returns its result.
    let mut batch = Batch::builder().call("c1", "next_document", ()).start(&room.assistant).unwrap();
    let single = batch.next().await.unwrap();
    // 2. The batch has it.
    let batch = batch.finish().await;
    assert_eq!(batch.results()[0].result(), single.result());
    // 3. There is an event.
    let settled = std::iter::from_fn(|| events.recv().now_or_never().flatten()).find_map(|event| {
        if let Event::Settled { tool, outcome, .. } = event { Some((tool, outcome)) } else { None }
    });
    assert_eq!(settled, Some(("next_document".to_owned(), Ok(()))));
    // 4. The user interface makes a widget of the display.
    let shown = shown(batch.results()[0].result());
    assert_eq!(shown.content(), &DisplayContent::Markdown("# all is well".into()));
    assert_eq!((shown.title(), shown.is_collapsed()), (Some("Report"), true));
}

#[tokio::test(start_paused = true)]
async fn agent_air_g11_fields_of_the_code_survive_in_the_native_document() {
    let room = Room::new().await;
    for (content_type, name) in
        [(ContentType::Yaml, "yaml"), (ContentType::Xml, "xml"), (ContentType::Auto, "auto")]
    {
        let display = DisplayConfig::new("50 of 200 lines", content_type.clone())
            .with_field("content", "{\"first\": 50}")
            .with_field("is_truncated", true)
            .with_field("full_length", 200);
        let document = Document::new("all lines")
            .with_display(display)
            .with_field("compact_summary", "[read_file: 200 lines]")
            .with_field("turn_id", json!({"owner": "a", "n": 18_446_744_073_709_551_615_u64}));
        let result = room.result(&document).await;
        let native = result.native().unwrap();
        assert_eq!((native.system(), native.json()), (&ToolSystem::AGENT_AIR, &*document.json()));
        let read = Document::of_result(&result, false);
        assert_eq!(read, document);
        assert_eq!(serde_json::from_str::<Json>(&read.json()).unwrap()["display"]["content_type"], name);
        // The person sees the part that the display has, and what was left out.
        let shown = shown(&result);
        assert_eq!(shown.raw().to_json(), json!({"is_truncated": true, "full_length": 200}));
        match (shown.content(), name) {
            (DisplayContent::Json(text), "auto") => assert_eq!(&**text, "{\"first\": 50}"),
            (DisplayContent::Code { language, .. }, _) => assert_eq!(language.as_deref(), Some(name)),
            other => panic!("{other:?}"),
        }
    }
}

/// X3.
#[test]
fn agent_air_x3_limits_are_checked_before_a_document_is_read() {
    let with = |more: &str| Document::read(&format!(r#"{{"output": "a", "display": {{"x": {more}}}}}"#));
    let nested = |levels: usize| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
    let deep = with(&nested(100_000)).unwrap_err();
    assert_eq!(deep.to_string(), "the document is nested 100002 levels deep; the limit is 120");
    let many = with(&format!("[{}1]", "1,".repeat(1_000_000))).unwrap_err();
    assert!(matches!(many, InvalidDocument::Document(DocumentError::TooManyValues { .. })), "{many:?}");
    // A value that is too deep for a frame stays in the native document, and the rest is shown.
    for (levels, is_shown) in [(32, true), (33, false), (118, false)] {
        let document = with(&nested(levels)).unwrap();
        let sent = Value::from_bytes(document.to_result().to_value().into_bytes()).unwrap();
        let result = ToolResult::of(&sent);
        assert_eq!(Document::of_result(&result, false).json(), document.json());
        assert_eq!((shown(&result).raw().get("x").is_some(), result.cut().len()), (is_shown, 0), "{levels}");
        let output = Document::new(nested(levels)).to_result();
        assert_eq!(
            (output.structured().is_some(), output.for_model(1000).text),
            (is_shown, nested(levels).into())
        );
    }
}

#[test]
fn result_of_another_system_becomes_a_document_by_its_views() {
    let person = |text: &str| ContentBlock::text(text).with_audience(Audience::Person);
    let display = |content| ToolResult::text("text").with_display(Display::new(content).with_title("t"));
    let diff = |patch: Option<&str>| {
        let diff = with!(Diff::default(), path = "/a".into(), patch = patch.map(Into::into));
        display(DisplayContent::Diff(diff)).with_display(Display::new(DisplayContent::Markdown("# b".into())))
    };
    let config = |title: &str, content_type, content: &str| {
        DisplayConfig::new(title, content_type).with_field("content", content)
    };
    let texts = with!(
        Diff::default(),
        path = "/a".into(),
        old_text = Some("b\n".into()),
        new_text = Some("c\n".into())
    );
    let (texts, patch) = (display(DisplayContent::Diff(texts)), "--- /a\n+++ /a\n@@ -1 +1 @@\n-b\n+c\n");
    let terminal = |output: Option<&str>| {
        display(DisplayContent::Terminal {
            id: "1".into(),
            output: output.map(Into::into),
            exit_code: Some(0),
        })
    };
    for (result, output, display) in [
        (ToolResult::text("plain"), "plain", None),
        (
            ToolResult::text("for all").with_block(person("exactly this")),
            "for all",
            Some(config("", ContentType::Text, "exactly this")),
        ),
        (ToolResult::default().with_structured(json!({"a": 1})), "{\"a\":1}", None),
        (
            display(DisplayContent::Json("text".into())),
            "text",
            Some(DisplayConfig::new("t", ContentType::Json)),
        ),
        (diff(Some("@@")), "text", Some(config("t", ContentType::Code("diff".into()), "@@"))),
        (diff(None), "text", Some(config("", ContentType::Markdown, "# b"))),
        (terminal(Some("ok\n")), "text", Some(config("t", ContentType::Text, "ok\n"))),
        (terminal(None), "text", None),
        (texts, "text", Some(config("t", ContentType::Code("diff".into()), patch))),
    ] {
        let document = Document::of_result(&result, false);
        assert_eq!((document.output(), document.display()), (output, display.as_ref()));
        assert_eq!(Document::read(&document.json()).unwrap(), document);
        assert!(Document::of_result(&result, true).is_error());
    }
    let long = Document::of_result(&ToolResult::text("a".repeat(100_000)), false);
    assert!(long.output().len() <= ToolResult::MAX_TEXT && long.output().ends_with("bytes are shown]"));
}

/// Writes a document with known and unknown fields.
fn random_document(seed: u64) -> String {
    let mut random = Random::new(seed);
    let content_type = |it: &mut Random| match it.below(7) {
        0 => it.value(3),
        _ => {
            let known =
                [r#""text""#, r#""Markdown""#, r#""json""#, r#""xml""#, r#""auto""#, r#"{"code": "c"}"#];
            let known = it.pick(&known);
            it.raw(known);
        }
    };
    let flag = |it: &mut Random| {
        let flag = it.pick(&["true", "false"]);
        it.raw(flag);
    };
    let display = |it: &mut Random| match it.below(4) {
        0 => it.raw("null"),
        _ => it.object(&[
            ("title", &Random::string),
            ("content_type", &content_type),
            ("content", &|it| it.value(2)),
            ("type", &|it| it.value(3)),
            ("collapsed", &flag),
            ("full_length", &|it| it.value(1)),
        ]),
    };
    let output = |it: &mut Random| match it.below(3) {
        0 => it.string(),
        more => {
            // A text that may be JSON.
            let mut inner = Random::new(seed.wrapping_add(more));
            inner.value(3);
            it.raw(&Json::from(inner.into_text()).to_string());
        }
    };
    random.object(&[
        ("turn_id", &|it| it.value(4)),
        ("output", &output),
        ("display", &display),
        ("is_error", &flag),
        ("at", &|it| it.value(2)),
    ]);
    random.into_text()
}

/// X9: native → room → native.
#[test]
fn agent_air_x9_random_documents_survive_the_room_byte_for_byte() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let room = Room::new().await;
        for seed in 0..random_documents::count() {
            // A client limits how many calls it takes in a second.
            tokio::time::sleep(Duration::from_secs(1)).await;
            passes_unchanged(&room, &random_document(seed)).await;
        }
    });
}

async fn passes_unchanged(room: &Room, json: &str) {
    let document = Document::read(json).unwrap();
    let (result, is_error) = match room.pass(json).await {
        Ok(value) => (ToolResult::of(&value), false),
        Err(CallError::Tool(error)) => (ToolResult::of_error(&error), true),
        Err(error) => panic!("{error}: {json}"),
    };
    assert_eq!(is_error, document.is_error(), "{json}");
    let read = Document::of_result(&result, is_error);
    assert_eq!(&*read.json(), json);
    assert_eq!(result.for_model(usize::MAX).text, document.output(), "{json}");
    assert_eq!(result.display().len(), usize::from(document.display().is_some()), "{json}");
    // A document that is written from its fields says the same.
    let written = read.with_error(is_error);
    assert_eq!(Document::read(&written.json()).unwrap(), document, "{json}");
}
