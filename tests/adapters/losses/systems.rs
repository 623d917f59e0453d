//! What results of each tool system consist of.

use serde_json::{Value as Json, json};
use toolbridge::{
    Outcome, ToolError,
    adapter::{acp::ToolCall, agent_air::Document, mcp::CallToolResult, rap::RapResult},
};

/// An image of one pixel, a sound without samples, and bytes.
const PIXEL: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
const SOUND: &str = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA=";
const BYTES: &str = "c29tZSBieXRlcw==";

/// A part of a system's result: what it is called, a document that has it, and how it is recognized.
pub(super) struct Part {
    pub(super) name: &'static str,
    pub(super) document: Json,
    pub(super) mark: Mark,
}

pub(super) enum Mark {
    /// A text or number of the document.
    Text(&'static str),
    /// That the call has failed.
    Failure,
}

pub(super) struct System {
    pub(super) name: &'static str,
    pub(super) read: fn(&str) -> Outcome,
    pub(super) parts: Vec<Part>,
}

pub(super) fn systems() -> [System; 5] {
    [mcp(), orchestrate(), rap(), acp(), agent_air()]
}

fn part(name: &'static str, mark: &'static str, document: Json) -> Part {
    Part { name, document, mark: Mark::Text(mark) }
}

fn failure(name: &'static str, document: Json) -> Part {
    Part { name, document, mark: Mark::Failure }
}

fn mcp() -> System {
    let text = json!({"type": "text", "text": "said"});
    let blocks = |blocks: Json| json!({ "content": blocks });
    let with = |block: Json| blocks(json!([text, block]));
    let annotated =
        |annotations: Json| with(json!({"type": "text", "text": "marked", "annotations": annotations}));
    let resource = |resource: Json| with(json!({"type": "resource", "resource": resource}));
    System {
        name: "MCP",
        read: |text| CallToolResult::read(text).map_err(ToolError::internal)?.into_outcome(),
        parts: vec![
            part("text", "said", blocks(json!([text]))),
            part("text for the person alone", "marked", annotated(json!({"audience": ["user"]}))),
            part("text for the model alone", "marked", annotated(json!({"audience": ["assistant"]}))),
            part("`priority` of a block", "0.125", annotated(json!({"priority": 0.125}))),
            part("image", PIXEL, with(json!({"type": "image", "data": PIXEL, "mimeType": "image/png"}))),
            part("sound", SOUND, with(json!({"type": "audio", "data": SOUND, "mimeType": "audio/wav"}))),
            part(
                "link",
                "file:///a",
                with(json!({"type": "resource_link", "uri": "file:///a", "name": "a"})),
            ),
            part("resource with a text", "inside", resource(json!({"uri": "file:///a", "text": "inside"}))),
            part("resource with bytes", BYTES, resource(json!({"uri": "file:///a", "blob": BYTES}))),
            part("block of an unknown type", "rays", with(json!({"type": "hologram", "beam": "rays"}))),
            part(
                "`structuredContent`",
                "data",
                json!({"content": [text], "structuredContent": {"n": "data"}}),
            ),
            part("`_meta`", "aside", json!({"content": [text], "_meta": {"example.com/a": "aside"}})),
            failure("failure (`isError`)", json!({"content": [text], "isError": true})),
        ],
    }
}

fn orchestrate() -> System {
    let text = |text: &str, audience: &str| json!({"type": "text", "text": text, "annotations": {"audience": [audience]}});
    let widget = json!({
        "response_type": "forms", "title": "Your address", "json_schema": {"properties": {"street": {"title": "Street"}}},
    });
    let form =
        json!({"content": [text("Fill it in.", "user")], "_meta": {"com.ibm.orchestrate/widget": widget}});
    let context = json!({"content": ["said"], "context_updates": {"mood": "changed"}});
    System {
        name: "watsonx Orchestrate",
        read: mcp().read,
        parts: vec![
            part("text", "said", json!({"content": ["said"]})),
            part("text for the person alone", "marked", json!({"content": ["said", text("marked", "user")]})),
            part(
                "text for the model alone",
                "marked",
                json!({"content": ["said", text("marked", "assistant")]}),
            ),
            part("the title of a widget", "Your address", form.clone()),
            part("the fields of a widget", "Street", form),
            part("`context_updates`", "changed", context),
            failure("failure (`isError`)", json!({"content": ["said"], "isError": true})),
        ],
    }
}

fn rap() -> System {
    let result = |more: Json| {
        let mut document = json!({"type": "tool_result", "group_id": "g", "id": "c", "text": "said"});
        document.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        document
    };
    let image = json!({"data": PIXEL, "mediaType": "image/png"});
    let shown =
        |kind: &str, content: Json| result(json!({"display_as": [{"type": kind, "content": content}]}));
    let diff = |patch: &str| shown("diff", json!({"path": "a.rs", "patch": patch}));
    let created = diff("--- /dev/null\n+++ a.rs\n@@ -0,0 +1 @@\n+fn main() {}\n");
    let changed = diff("--- a.rs\n+++ a.rs\n@@ -7 +7 @@\n-fn main() {}\n+fn start() {}\n");
    let items = json!([{"type": "text", "text": "listed"}, {"type": "image", "data": PIXEL, "mediaType": "image/png"}]);
    System {
        name: "RAP",
        read: |text| RapResult::read(text).map_err(ToolError::internal)?.into_outcome(),
        parts: vec![
            part("`text`", "said", result(json!({}))),
            part("text in `content`", "listed", result(json!({"content": items}))),
            part("image in `content`", PIXEL, result(json!({"content": items}))),
            part("text in `display_as`", "shown", shown("text", json!("shown"))),
            part("image in `display_as`", PIXEL, shown("image", image)),
            part("diff of a whole file", "fn main() {}", created.clone()),
            part("the path of a diff", "a.rs", created),
            part("diff of a part of a file", "fn start() {}", changed),
            part("unknown segment", "rays", shown("hologram", json!({"beam": "rays"}))),
            part("unknown key", "aside", result(json!({"own": "aside"}))),
            failure("failure (`Error: …`)", result(json!({"text": "Error: it broke"}))),
        ],
    }
}

fn acp() -> System {
    let call = |more: Json| {
        let mut document = json!({"toolCallId": "1", "title": "Work", "status": "completed"});
        document.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        document
    };
    let block = |block: Json| json!({"type": "content", "content": block});
    let said = block(json!({"type": "text", "text": "said"}));
    let with = |item: Json| call(json!({"content": [said, item]}));
    let diff = |old: Json, new: &str| {
        with(json!({"type": "diff", "path": "/src/a.rs", "oldText": old, "newText": new}))
    };
    let resource = json!({"type": "resource", "resource": {"uri": "file:///a", "text": "inside"}});
    System {
        name: "ACP",
        read: |text| {
            let call = ToolCall::read(text).map_err(ToolError::internal)?;
            call.outcome().expect("its status is final")
        },
        parts: vec![
            part("text", "said", call(json!({"content": [said]}))),
            part(
                "image",
                PIXEL,
                with(block(json!({"type": "image", "data": PIXEL, "mimeType": "image/png"}))),
            ),
            part(
                "sound",
                SOUND,
                with(block(json!({"type": "audio", "data": SOUND, "mimeType": "audio/wav"}))),
            ),
            part(
                "link",
                "file:///a",
                with(block(json!({"type": "resource_link", "uri": "file:///a", "name": "a"}))),
            ),
            part("resource with a text", "inside", with(block(resource))),
            part("diff of an existing file", "start()", diff(json!("main()\nend\n"), "start()\nend\n")),
            part(
                "unchanged lines far from the change",
                "far",
                diff(json!("a\n1\n2\n3\n4\nfar\n"), "b\n1\n2\n3\n4\nfar\n"),
            ),
            part("diff of a new file", "start()", diff(json!(null), "start()\n")),
            part("the path of a diff", "/src/a.rs", diff(json!(null), "start()\n")),
            part("terminal", "term-1", with(json!({"type": "terminal", "terminalId": "term-1"}))),
            part("content of an unknown type", "rays", with(json!({"type": "hologram", "beam": "rays"}))),
            part("`rawOutput`", "data", call(json!({"content": [said], "rawOutput": {"n": "data"}}))),
            part("`title`, if there is no content", "Work", call(json!({}))),
            part("`title`, beside content", "Work", call(json!({"content": [said]}))),
            part("`kind`", "execute", call(json!({"content": [said], "kind": "execute"}))),
            part(
                "`locations`",
                "/src/b.rs",
                call(json!({"content": [said], "locations": [{"path": "/src/b.rs", "line": 5}]})),
            ),
            failure("failure (`status`)", call(json!({"content": [said], "status": "failed"}))),
        ],
    }
}

fn agent_air() -> System {
    let with = |display: Json| json!({"output": "said", "display": display, "is_error": false});
    let code = json!({"title": "a.rs", "content_type": {"code": "rust"}, "collapsed": true, "content": "fn main() {}"});
    System {
        name: "agent-air",
        read: |text| Document::read(text).map_err(ToolError::internal)?.to_outcome(),
        parts: vec![
            part("`output`", "said", json!({"output": "said", "is_error": false})),
            part(
                "`output` that is JSON",
                "[5,\"data\"]",
                json!({"output": "[5,\"data\"]", "is_error": false}),
            ),
            part(
                "the title of a display",
                "Summary",
                with(json!({"title": "Summary", "content_type": "text"})),
            ),
            part(
                "plain text in a display",
                "shown",
                with(json!({"content_type": "text", "content": "shown"})),
            ),
            part(
                "Markdown in a display",
                "# Shown",
                with(json!({"content_type": "markdown", "content": "# Shown"})),
            ),
            part("JSON in a display", "[7]", with(json!({"content_type": "json", "content": "[7]"}))),
            part("code in a display", "fn main() {}", with(code.clone())),
            part("the language of code", "rust", with(code.clone())),
            part("`collapsed`", "true", with(code)),
            part("unknown key", "aside", json!({"output": "said", "is_error": false, "turn_id": "aside"})),
            failure("failure (`is_error`)", json!({"output": "said", "is_error": true})),
        ],
    }
}
