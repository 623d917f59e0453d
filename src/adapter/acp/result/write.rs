//! Writes the outcome of a call as the fields of a `tool_call_update`.
//!
//! What an editor shows is for a person: blocks for the model alone are left out. A file's path is absolute, and lines count
//! from 1 (<https://agentclientprotocol.com/protocol/v1/tool-calls>).

use std::path::Path;

use serde_json::{Map, Value as Json, json};

use super::super::text::fenced;
use crate::{
    CallError, ErrorCode, ToolResult, Value,
    adapter::json::object,
    result::{
        Audience, BlockKind, ContentBlock, Diff, Display, DisplayContent, DisplayKind, Media, ToolSystem,
    },
    tool::patch,
};

/// The code of a failure, in `_meta`.
pub(in crate::adapter::acp) const ERROR_CODE: &str = "dev.toolbridge/errorCode";

/// Whether the tool of a failed call may have run, in `_meta`.
pub(in crate::adapter::acp) const MAY_HAVE_RUN: &str = "dev.toolbridge/mayHaveRun";

/// Why parts of an update are missing, in `_meta`.
const OMITTED: &str = "dev.toolbridge/omitted";

/// The largest content, and the largest `rawOutput`, of an update, in bytes of JSON: what editors show without a pause.
const MAX_PART: usize = 1 << 20;

/// The fields of an update.
pub(in crate::adapter::acp) type Fields = Map<String, Json>;

/// Returns the fields that say that a call was completed with this value. Relative paths are paths in `folder`.
pub(in crate::adapter::acp) fn completed(value: &Value, folder: &Path) -> Fields {
    let result = ToolResult::of(value).for_clients();
    let mut fields = Fields::from_iter([("status".to_owned(), json!("completed"))]);
    let native = result.native().filter(|it| *it.system() == ToolSystem::ACP);
    if let Some(native) = native.and_then(|it| object(it.json()).ok()) {
        add(&mut fields, "content", of_native(&native, &result, folder));
        let raw = native.get("rawOutput").filter(|it| !it.is_null());
        add(&mut fields, "rawOutput", raw.cloned());
        add(&mut fields, "locations", native.get("locations").map(|it| locations(it, folder)));
    } else {
        add(&mut fields, "content", Some(content(&result, folder)));
        add(&mut fields, "rawOutput", result.structured().map(plain));
    }
    fields
}

/// Returns the fields that say that a call has failed.
pub(in crate::adapter::acp) fn failed(error: &CallError, folder: &Path) -> Fields {
    let failure = match error {
        CallError::Tool(failure) => Some(failure.for_clients()),
        _ => None,
    };
    let message = failure.as_ref().map_or_else(|| error.to_string(), ToString::to_string);
    let mut items = Vec::new();
    if let Some(failure) = failure.filter(|it| it.partial().is_some())
        && let Json::Array(partial) = content(&ToolResult::of_error(&failure), folder)
    {
        items = partial;
    }
    if !items.iter().any(|it| says(it, &message)) {
        items.insert(0, text_item(&message));
    }
    failed_with(items.into(), &error.code(), error.may_have_run())
}

fn failed_with(content: Json, code: &ErrorCode, may_have_run: bool) -> Fields {
    let mut fields = Fields::from_iter([("status".to_owned(), json!("failed"))]);
    add(&mut fields, "content", Some(content));
    let meta = fields.entry("_meta").or_insert_with(|| json!({}));
    meta[ERROR_CODE] = json!(code.as_str());
    meta[MAY_HAVE_RUN] = json!(may_have_run);
    fields
}

/// Returns the content of a progress report, if it has any.
pub(in crate::adapter::acp) fn message(text: &str) -> Json {
    json!([text_item(text)])
}

/// Returns a location, unless its path cannot be one. Line 0 does not exist.
pub(in crate::adapter::acp) fn location(path: &str, line: Option<u64>, folder: &Path) -> Option<Json> {
    let mut location = json!({"path": absolute(path, folder)?});
    if let Some(line) = line.filter(|line| (1..=u64::from(u32::MAX)).contains(line)) {
        location["line"] = json!(line);
    }
    Some(location)
}

/// Reads a list of locations, and writes those that are valid.
pub(in crate::adapter::acp) fn locations(list: &Json, folder: &Path) -> Json {
    let read = |it: &Json| location(it["path"].as_str()?, it["line"].as_u64(), folder);
    list.as_array().into_iter().flatten().filter_map(read).collect()
}

/// Adds a part. One that is too large is replaced by what says so.
fn add(fields: &mut Fields, key: &str, part: Option<Json>) {
    let Some(part) = part else { return };
    let size = part.to_string().len();
    if size <= MAX_PART {
        fields.insert(key.to_owned(), part);
        return;
    }
    let text = format!("{key} has {size} bytes; the limit is {MAX_PART}");
    if key == "content" {
        fields.insert(key.to_owned(), message(&text));
    }
    let meta = fields.entry("_meta").or_insert_with(|| json!({}));
    meta[OMITTED] = json!(text);
}

/// Returns the content of a document of ACP. The terminals of another program become texts.
fn of_native(document: &Fields, result: &ToolResult, folder: &Path) -> Option<Json> {
    let items = document.get("content")?.as_array()?;
    let write = |item: &Json| match item["type"].as_str() {
        Some("terminal") => {
            let id = item["terminalId"].as_str().unwrap_or_default();
            let is_it = |it: &&Display| matches!(it.content(), DisplayContent::Terminal { id: its, .. } if **its == *id);
            let known = result.display().iter().find(is_it);
            known.and_then(|it| display(it, folder)).unwrap_or_else(|| text_item(&format!("terminal {id}")))
        }
        Some("diff") => diff_item(
            item["path"].as_str().unwrap_or_default(),
            item["oldText"].as_str(),
            item["newText"].as_str(),
            folder,
        )
        .unwrap_or_else(|| text_item(&item.to_string())),
        Some("content") => match block(&ContentBlock::from_value(&(&item["content"]).into())) {
            Some(block) => json!({"type": "content", "content": block}),
            None => text_item(&item["content"].to_string()),
        },
        _ => text_item(&item.to_string()),
    };
    Some(items.iter().map(write).collect())
}

/// Returns the content of a result: its diffs and terminals, otherwise the best of its displays, otherwise its blocks. Blocks
/// that are for the person alone are always shown.
fn content(result: &ToolResult, folder: &Path) -> Json {
    let special = |it: &&Display| matches!(it.kind(), DisplayKind::Diff | DisplayKind::Terminal);
    let mut items: Vec<Json> =
        result.display().iter().filter(special).filter_map(|it| display(it, folder)).collect();
    if items.is_empty() {
        items.extend(result.display().iter().find_map(|it| display(it, folder)));
    }
    let is_shown = !items.is_empty();
    let blocks = result.content().iter().filter(|it| !is_shown || it.audience() == Audience::Person);
    items.extend(blocks.map(|it| match block(it) {
        Some(block) => json!({"type": "content", "content": block}),
        None => text_item(&plain(it.raw()).to_string()),
    }));
    if items.is_empty() {
        let text = result.for_model(MAX_PART / 2).text;
        items.extend((!text.is_empty()).then(|| text_item(&text)));
    }
    items.into()
}

/// Returns a display as content: `None` for one that cannot be shown.
fn display(display: &Display, folder: &Path) -> Option<Json> {
    let titled = |text: String| match display.title() {
        Some(title) => text_item(&format!("{title}\n\n{text}")),
        None => text_item(&text),
    };
    match display.content() {
        DisplayContent::Text(text) | DisplayContent::Markdown(text) => Some(titled(text.to_string())),
        DisplayContent::Json(text) => Some(titled(fenced("json", text))),
        DisplayContent::Code { language, text } => {
            Some(titled(fenced(language.as_deref().unwrap_or_default(), text)))
        }
        DisplayContent::Diff(diff) => Some(diff_of(diff, folder)),
        DisplayContent::Image(media) => Some(json!({"type": "content", "content": image("image", media)})),
        DisplayContent::Terminal { id, output, exit_code } => {
            let mut text = match output {
                Some(output) => fenced("", output),
                None => format!("terminal {id}"),
            };
            if let Some(code) = exit_code {
                text.push_str(&format!("\nexit code {code}"));
            }
            Some(titled(text))
        }
        _ => None,
    }
}

/// A diff needs the whole texts. A patch that does not have them becomes a text.
fn diff_of(diff: &Diff, folder: &Path) -> Json {
    let whole = diff.patch.as_deref().filter(|_| diff.new_text.is_none()).and_then(patch::texts);
    let written = match &whole {
        Some(texts) => diff_item(&diff.path, texts.old.as_deref(), Some(&texts.new), folder),
        None => diff_item(&diff.path, diff.old_text.as_deref(), diff.new_text.as_deref(), folder),
    };
    written.unwrap_or_else(|| match (&diff.patch, &diff.new_text) {
        (Some(patch), _) => text_item(&format!("{}\n\n{}", diff.path, fenced("diff", patch))),
        (None, Some(text)) => text_item(&fenced("", text)),
        (None, None) => text_item(&diff.path),
    })
}

fn diff_item(path: &str, old: Option<&str>, new: Option<&str>, folder: &Path) -> Option<Json> {
    Some(json!({"type": "diff", "path": absolute(path, folder)?, "oldText": old, "newText": new?}))
}

/// Returns a block in the protocol's form; `None` if it has none.
fn block(block: &ContentBlock) -> Option<Json> {
    let mut written = match block.kind() {
        BlockKind::Text(text) => json!({"type": "text", "text": text}),
        BlockKind::Image(media) => image("image", media),
        BlockKind::Audio(media) => image("audio", media),
        BlockKind::Link { uri, name } => {
            json!({"type": "resource_link", "uri": uri, "name": name.as_ref().unwrap_or(uri)})
        }
        BlockKind::Resource(resource) => {
            let mut inner = json!({"uri": resource.uri});
            match (&resource.text, &resource.blob) {
                (Some(text), _) => inner["text"] = json!(text),
                (None, Some(blob)) => inner["blob"] = json!(blob),
                (None, None) => return None,
            }
            if let Some(mime_type) = &resource.mime_type {
                inner["mimeType"] = json!(mime_type);
            }
            json!({"type": "resource", "resource": inner})
        }
        _ => return None,
    };
    if block.audience() == Audience::Person {
        written["annotations"] = json!({"audience": ["user"]});
    }
    Some(written)
}

fn image(name: &str, media: &Media) -> Json {
    json!({"type": name, "data": media.data(), "mimeType": media.mime_type().unwrap_or("application/octet-stream")})
}

fn text_item(text: &str) -> Json {
    json!({"type": "content", "content": {"type": "text", "text": text}})
}

fn says(item: &Json, text: &str) -> bool {
    item["content"]["text"].as_str().is_some_and(|it| it.contains(text))
}

/// Returns an absolute path: `None` for a text that cannot be a path.
fn absolute(path: &str, folder: &Path) -> Option<String> {
    if path.is_empty() || path.contains('\0') {
        return None;
    }
    let joined = folder.join(path); // an absolute path stays as it is
    joined.is_absolute().then(|| joined.to_string_lossy().into_owned())
}

/// Returns a value as plain JSON, if it has only what JSON has; otherwise as canonical JSON.
fn plain(value: &Value) -> Json {
    value.decode().unwrap_or_else(|_| value.to_json())
}

#[cfg(test)]
mod tests {
    use agent_client_protocol_schema::v1::{ToolCallContent, ToolCallStatus, ToolCallUpdateFields};

    use super::*;
    use crate::{ToolError, result::Native};

    fn folder() -> &'static Path {
        Path::new("/home/ada")
    }

    /// Writes a result, and checks it with the types of the protocol: nothing is lost in them.
    fn written(result: &ToolResult) -> Json {
        let fields = Json::Object(completed(&Value::encode(result).unwrap(), folder()));
        checked(&fields);
        fields
    }

    fn checked(fields: &Json) -> ToolCallUpdateFields {
        let typed: ToolCallUpdateFields = serde_json::from_value(fields.clone()).unwrap();
        let count = fields["content"].as_array().map_or(0, Vec::len);
        assert_eq!(typed.content.as_ref().map_or(0, Vec::len), count, "{fields}");
        let places = fields["locations"].as_array().map_or(0, Vec::len);
        assert_eq!(typed.locations.as_ref().map_or(0, Vec::len), places, "{fields}");
        typed
    }

    #[test]
    fn acp_c5_blocks_of_all_types_keep_their_order() {
        let odd = ContentBlock::from_value(&json!({"type": "hologram", "depth": 1}).into());
        let resource = json!({"type": "resource", "resource": {"uri": "a:b", "text": "c"}});
        let result = ToolResult::text("one")
            .with_block(ContentBlock::image(Media::new("AA==", "image/png")))
            .with_block(ContentBlock::audio(Media::new("AA==", "audio/wav")))
            .with_block(ContentBlock::link("https://example.com/a", "a"))
            .with_block(ContentBlock::from_value(&(&resource).into()))
            .with_block(odd)
            .with_model_text("for the model alone");
        let written = written(&result);
        let content = written["content"].as_array().unwrap();
        let types: Vec<_> = content.iter().map(|it| it["content"]["type"].as_str().unwrap()).collect();
        assert_eq!(types, ["text", "image", "audio", "resource_link", "resource", "text"]);
        assert_eq!(content[4]["content"], resource);
        assert!(!written.to_string().contains("for the model alone"), "{written}");
    }

    #[test]
    fn acp_c5_diff_has_both_texts_and_a_new_file_none_before() {
        let diff = |old: Option<&str>, new: Option<&str>, patch: Option<&str>| {
            let [old_text, new_text, patch] = [old, new, patch].map(|text| text.map(Into::into));
            let diff = Diff { path: "src/main.rs".into(), old_text, new_text, patch };
            written(&ToolResult::text("x").with_display(Display::new(DisplayContent::Diff(diff))))["content"]
                .take()
        };
        let path = "/home/ada/src/main.rs";
        assert_eq!(
            diff(Some("a"), Some("b"), None),
            json!([{"type": "diff", "path": path, "oldText": "a", "newText": "b"}])
        );
        assert_eq!(diff(None, Some("b"), None)[0]["oldText"], json!(null));
        let patch = diff(None, None, Some("@@ -1 +1 @@\n-a\n+b\n"));
        let text = patch[0]["content"]["text"].as_str().unwrap();
        assert!(text.contains("```diff\n@@ -1 +1 @@\n-a\n+b\n```"), "{text}");
        // A patch that has the whole file is the texts, also beside an old text.
        let created = "--- /dev/null\n+++ src/main.rs\n@@ -0,0 +1 @@\n+b\n";
        for old in [None, Some("")] {
            let written = diff(old, None, Some(created));
            assert_eq!(written, json!([{"type": "diff", "path": path, "oldText": null, "newText": "b\n"}]));
        }
    }

    #[test]
    fn acp_c16_terminal_is_a_text_with_its_output_and_status() {
        let terminal = DisplayContent::Terminal {
            id: "t1".into(),
            output: Some("made ``` it\n".into()),
            exit_code: Some(2),
        };
        let written = written(&ToolResult::default().with_display(Display::new(terminal)));
        let text = written["content"][0]["content"]["text"].as_str().unwrap();
        assert_eq!(text, "````\nmade ``` it\n````\nexit code 2");
    }

    #[test]
    fn acp_c4_structured_data_is_the_raw_output_also_null() {
        assert_eq!(written(&ToolResult::text("t"))["rawOutput"], json!(null));
        for data in [json!({"a": [1, 2.5]}), json!([1]), json!(7), json!(null)] {
            let written = written(&ToolResult::text("t").with_structured(&data));
            assert_eq!(written["rawOutput"], data);
            assert!(written.get("rawOutput").is_some());
        }
        let plain = Json::Object(completed(&json!({"level": 0.8}).into(), folder()));
        assert_eq!(plain["content"][0]["content"]["text"], r#"{"level":0.8}"#);
        assert_eq!(plain["rawOutput"], json!({"level": 0.8}));
    }

    #[test]
    fn acp_c6_paths_are_absolute_and_lines_count_from_1() {
        let list = json!([
            {"path": "/a", "line": 3}, {"path": "b", "line": 0}, {"path": ""}, {"line": 1}, {"path": "c", "line": -1},
        ]);
        let expected = json!([{"path": "/a", "line": 3}, {"path": "/home/ada/b"}, {"path": "/home/ada/c"}]);
        assert_eq!(locations(&list, folder()), expected);
        assert_eq!(location("x", None, Path::new("relative")), None);
    }

    #[test]
    fn document_of_another_agent_keeps_its_content() {
        let document = json!({
            "toolCallId": "1", "title": "t", "status": "completed", "rawOutput": {"n": 1},
            "locations": [{"path": "/a", "line": 2}],
            "content": [
                {"type": "diff", "path": "/a", "oldText": null, "newText": "n"},
                {"type": "terminal", "terminalId": "theirs"},
                {"type": "content", "content": {"type": "text", "text": "t"}},
                {"type": "hologram"},
            ],
        });
        let native = Native::new(ToolSystem::ACP, document.to_string());
        let written = written(&ToolResult::text("t").with_native(native));
        assert_eq!(written["locations"], document["locations"]);
        assert_eq!(written["rawOutput"], document["rawOutput"]);
        let content = written["content"].as_array().unwrap();
        assert_eq!(content[0], document["content"][0]);
        assert_eq!(content[1], text_item("terminal theirs"));
        assert_eq!(content[2], document["content"][2]);
        assert_eq!(content[3], text_item(r#"{"type":"hologram"}"#));
    }

    #[test]
    fn acp_c7_failure_has_its_message_partial_result_and_code() {
        let partial = Value::encode(&ToolResult::text("half")).unwrap();
        let error = ToolError::new(ErrorCode::from("out_of_range"), "the watch is out of range")
            .with_partial(partial);
        let fields = Json::Object(failed(&CallError::Tool(error), folder()));
        let typed = checked(&fields);
        assert_eq!(typed.status, Some(ToolCallStatus::Failed));
        assert!(matches!(typed.content.unwrap()[0], ToolCallContent::Content(_)));
        assert_eq!(fields["content"], json!([text_item("the watch is out of range"), text_item("half")]));
        assert_eq!(fields["_meta"], json!({(ERROR_CODE): "out_of_range", (MAY_HAVE_RUN): true}));
        let cancelled = Json::Object(failed(&CallError::Cancelled, folder()));
        assert_eq!(cancelled["_meta"][ERROR_CODE], "cancelled");
    }

    #[test]
    fn part_over_the_limit_is_left_out_with_both_numbers() {
        let written =
            written(&ToolResult::text("x".repeat(MAX_PART)).with_structured(json!("y".repeat(MAX_PART))));
        assert!(written.to_string().len() < 2_000, "{written}");
        let omitted = written["_meta"][OMITTED].as_str().unwrap();
        assert!(omitted.contains("1048576") && omitted.contains("1048578"), "{omitted}");
        assert!(written["content"][0]["content"]["text"].as_str().unwrap().contains("1048576"));
    }
}
