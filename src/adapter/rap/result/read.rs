//! Reads a `tool_result`.

use serde_json::{Map, Value as Json};

use super::{ERROR_PREFIX, RapResult, RapResultError};
use crate::{
    ToolResult,
    adapter::json::{object, value},
    result::{Audience, ContentBlock, Diff, Display, DisplayContent, Media, Native, ToolSystem},
    tool::public::is_hidden,
    value::pointer_step,
};

/// Keys that must not leave this machine inside a result: addresses that give access, and the user's id.
const SECRET_KEYS: [&str; 4] = ["auth_url", "callback_url", "response_url", "user_id"];

pub(super) fn read(json: &str, is_structured: bool) -> Result<RapResult, RapResultError> {
    let document = object(json)?;
    if document.get("type").and_then(Json::as_str) != Some("tool_result") {
        return Err(RapResultError::Type);
    }
    let mut result = content(&document).ok_or(RapResultError::Empty)?;
    let text = text_of(&result);
    if is_structured && let Ok(structured) = value(&text) {
        result = result.with_structured(structured);
    }
    let segments = document.get("display_as").and_then(Json::as_array).into_iter().flatten();
    result = segments.filter_map(display).fold(result, ToolResult::with_display);
    Ok(RapResult {
        result: with_document(result, json, &document),
        is_error: text.starts_with(ERROR_PREFIX),
        is_subscription: document.get("subscription") == Some(&Json::Bool(true)),
    })
}

/// Returns what an event of a subscription says.
pub(super) fn event(json: &str) -> Result<ToolResult, RapResultError> {
    let document = object(json)?;
    let result = content(&document).ok_or(RapResultError::Empty)?;
    Ok(with_document(result, json, &document))
}

/// Keeps the document, without what must not leave this machine.
fn with_document(result: ToolResult, json: &str, document: &Map<String, Json>) -> ToolResult {
    let result = result.with_native(Native::new(ToolSystem::RAP, json));
    let secrets = secrets(document);
    if secrets.is_empty() {
        return result;
    }
    result.without_native(&secrets.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Returns the texts of a result, as the tool wrote them.
pub(super) fn text_of(result: &ToolResult) -> String {
    result.content().iter().filter_map(ContentBlock::as_text).collect::<Vec<_>>().join("\n")
}

/// Returns the content that the model reads: the known items of `content`, otherwise `text`.
fn content(document: &Map<String, Json>) -> Option<ToolResult> {
    let items = document.get("content").and_then(Json::as_array).into_iter().flatten().enumerate();
    let blocks: Vec<_> = items
        .filter_map(|(n, item)| Some(block(item)?.with_native_pointer(format!("/content/{n}"))))
        .collect();
    if !blocks.is_empty() {
        return Some(blocks.into_iter().fold(ToolResult::default(), ToolResult::with_block));
    }
    let text = document.get("text").and_then(Json::as_str)?;
    Some(ToolResult::default().with_block(ContentBlock::text(text).with_native_pointer("/text")))
}

/// Returns an item of `content`, if it is a known one of a fitting form.
fn block(item: &Json) -> Option<ContentBlock> {
    let block = match item.get("type")?.as_str()? {
        "text" => ContentBlock::text(item.get("text")?.as_str()?),
        "image" => ContentBlock::image(image(item)?),
        _ => return None,
    };
    // RAP has no audience. An item that names the model alone all the same is not shown to anyone else.
    Some(if is_hidden(item) { block.with_audience(Audience::Model) } else { block })
}

/// Returns a segment of `display_as`, if it is a known one of a fitting form.
fn display(segment: &Json) -> Option<Display> {
    let content = segment.get("content")?;
    let text = |key: &str| content.get(key).and_then(Json::as_str);
    Some(Display::new(match segment.get("type")?.as_str()? {
        "text" => DisplayContent::Text(content.as_str()?.into()),
        "diff" => DisplayContent::Diff(Diff {
            path: text("path")?.into(),
            patch: Some(text("patch")?.into()),
            ..Diff::default()
        }),
        "image" => DisplayContent::Image(image(content)?),
        _ => return None,
    }))
}

fn image(fields: &Json) -> Option<Media> {
    Some(Media::new(fields.get("data")?.as_str()?, fields.get("mediaType")?.as_str()?))
}

/// Returns the places of the [`SECRET_KEYS`] of a document, as JSON pointers.
fn secrets(document: &Map<String, Json>) -> Vec<String> {
    fn search(map: &Map<String, Json>, place: &str, found: &mut Vec<String>) {
        for (key, value) in map {
            let place = format!("{place}/{}", pointer_step(key));
            match value {
                Json::Null => {}
                _ if SECRET_KEYS.contains(&key.as_str()) => found.push(place),
                value => search_value(value, &place, found),
            }
        }
    }

    fn search_value(value: &Json, place: &str, found: &mut Vec<String>) {
        match value {
            Json::Object(map) => search(map, place, found),
            Json::Array(items) => {
                for (n, item) in items.iter().enumerate() {
                    if item.is_object() || item.is_array() {
                        search_value(item, &format!("{place}/{n}"), found);
                    }
                }
            }
            _ => {}
        }
    }

    let mut found = Vec::new();
    search(document, "", &mut found);
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::result::{BlockKind, DisplayKind};

    fn result(more: &Json) -> Json {
        let mut document = json!({"type": "tool_result", "group_id": "g", "id": "c"});
        document.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        document
    }

    fn of(more: &Json) -> RapResult {
        RapResult::read(&result(more).to_string()).unwrap()
    }

    fn kinds(read: &RapResult) -> Vec<DisplayKind> {
        read.result.display().iter().map(Display::kind).collect()
    }

    #[test]
    fn rap_r1_document_of_another_type_is_not_a_result() {
        let read = |json: Json| RapResult::read(&json.to_string()).unwrap_err();
        assert_eq!(read(json!({"type": "oauth", "text": "a"})), RapResultError::Type);
        assert_eq!(read(json!({"text": "a"})), RapResultError::Type);
        for empty in
            [json!({}), json!({"text": 5}), json!({"content": []}), json!({"content": [{"type": "text"}]})]
        {
            assert_eq!(read(result(&empty)), RapResultError::Empty, "{empty}");
        }
    }

    #[test]
    fn rap_r4_text_reaches_the_model_whole_and_is_json_only_if_the_tool_says_so() {
        let text = "{\"instances\": [{\"id\": \"i-1\"}], \"count\": 1}";
        let document = result(&json!({"text": text})).to_string();
        let plain = RapResult::read(&document).unwrap();
        assert_eq!((plain.result.for_model(1_000).text.as_ref(), plain.result.structured()), (text, None));
        let structured = RapResult::read_structured(&document).unwrap().result;
        assert_eq!(structured.structured().unwrap().get("count").unwrap().to_json(), json!(1));
        assert_eq!(structured.for_model(1_000).text, text, "the model reads it once");
        for text in ["not JSON", "", "1,\"a\":2", "{", &"[".repeat(1_000_000)] {
            let document = result(&json!({"text": text})).to_string();
            let read = RapResult::read_structured(&document).unwrap().result;
            assert_eq!((read.content()[0].as_text(), read.structured()), (Some(text), None));
        }
    }

    #[test]
    fn rap_r5_first_known_segment_wins_and_the_model_reads_the_text() {
        let diff =
            json!({"type": "diff", "content": {"path": "src/main.rs", "patch": "@@ -1 +1 @@\n-a\n+b"}});
        let read = of(&json!({
            "text": "Replaced text in src/main.rs",
            "display_as": [{"type": "hologram", "content": "?"}, diff, {"type": "text", "content": "one insertion"}],
        }));
        assert_eq!(kinds(&read), [DisplayKind::Diff, DisplayKind::Text]);
        let shown = |kinds: &[DisplayKind]| read.result.for_display(kinds).unwrap().into_owned();
        assert_eq!(shown(&[DisplayKind::Diff, DisplayKind::Text]).kind(), DisplayKind::Diff);
        assert_eq!(*shown(&[DisplayKind::Text]).content(), DisplayContent::Text("one insertion".into()));
        assert_eq!(read.result.for_model(1_000).text, "Replaced text in src/main.rs");
        let unknown = of(&json!({"text": "raw", "display_as": [{"type": "hologram", "content": "?"}]}));
        let shown = unknown.result.for_display(&[DisplayKind::Text]).unwrap().into_owned();
        assert_eq!(*shown.content(), DisplayContent::Text("raw".into()));
    }

    #[test]
    fn rap_r6_diff_has_its_path_and_an_unknown_segment_stays_in_the_document() {
        let document = result(&json!({"text": "t", "display_as": [
            {"type": "diff", "content": {"path": "a.rs", "patch": "@@"}},
            {"type": "hologram", "content": {"rays": [1]}},
        ]}));
        let read = RapResult::read(&document.to_string()).unwrap();
        let DisplayContent::Diff(diff) = read.result.display()[0].content() else { panic!() };
        assert_eq!((&*diff.path, diff.patch.as_deref(), &diff.old_text), ("a.rs", Some("@@"), &None));
        assert_eq!(read.result.native().unwrap().json(), document.to_string());
    }

    #[test]
    fn rap_r10_error_prefix_makes_a_failure_whose_text_stays() {
        let text = "Error: API rate limit exceeded. Retry after 60 seconds.";
        let read = of(&json!({"text": text, "display_as": [{"type": "text", "content": "no"}]}));
        assert!(read.is_error);
        let error = read.clone().into_outcome().unwrap_err();
        assert_eq!((error.code().as_str(), error.message()), ("execution_error", text));
        let partial = ToolResult::of(error.partial().unwrap());
        assert_eq!(partial.for_model(1_000).text, text);
        assert_eq!((partial.display().len(), partial.native()), (1, read.result.native()));
        for fine in ["error: a", "Error:a", " Error: a", "No Error: a", "Error"] {
            assert!(!of(&json!({"text": fine})).is_error, "{fine}");
        }
        let items = json!({"text": "fine", "content": [{"type": "text", "text": "Error: it broke"}]});
        assert!(of(&items).is_error, "`content` is what the model reads");
    }

    #[test]
    fn rap_r14_content_supersedes_text_and_images_stay_among_their_texts() {
        let read = of(&json!({"text": "short", "content": [
            {"type": "text", "text": "before"},
            {"type": "image", "data": "iVBORw0KGgo=", "mediaType": "image/png"},
            {"type": "hologram", "text": "?"},
            {"type": "text", "text": "after"},
        ]}));
        let [before, image, after] = read.result.content() else { panic!() };
        assert_eq!((before.as_text(), after.as_text()), (Some("before"), Some("after")));
        let BlockKind::Image(image) = image.kind() else { panic!() };
        assert_eq!((image.mime_type(), image.size()), (Some("image/png"), 8));
        let model = read.result.for_model(1_000);
        assert!(model.text.contains("before") && model.text.contains("after"), "{}", model.text);
        assert!(!model.text.contains("short") && !model.text.contains("iVBOR"), "{}", model.text);
        let unknown = of(&json!({"text": "short", "content": [{"type": "hologram"}]}));
        assert_eq!(unknown.result.for_model(1_000).text, "short");
    }

    #[test]
    fn rap_r28_known_segment_of_another_form_counts_as_unknown() {
        let read = of(&json!({"text": "t", "display_as": [
            {"type": "text", "content": {"text": "a"}},
            {"type": "text"},
            {"type": "diff", "content": "a patch"},
            {"type": "diff", "content": {"path": "a"}},
            {"type": "image", "content": {"data": "AA==", "mimeType": "image/png"}},
            {"type": ["text"], "content": "a"},
            "text",
            null,
            {"type": "text", "content": "the one"},
        ]}));
        assert_eq!(kinds(&read), [DisplayKind::Text]);
        for odd in [json!("text"), json!({"0": {"type": "text", "content": "a"}}), json!(null)] {
            assert_eq!(kinds(&of(&json!({"text": "t", "display_as": odd}))), []);
        }
        let content =
            json!({"text": "t", "content": [{"type": "text", "text": 5}, {"type": "image", "data": "AA=="}]});
        assert_eq!(of(&content).result.for_model(10).text, "t");
    }

    #[test]
    fn rap_r29_address_that_gives_access_is_cut_out_of_the_document() {
        let document = json!({
            "type": "tool_result", "group_id": "g", "id": "c", "text": "t", "callback_url": "http://h/planted",
            "more": [{"auth_url": "https://h/planted", "a/b": {"user_id": "planted"}}], "response_url": null,
        });
        let read = RapResult::read(&document.to_string()).unwrap().result;
        let kept = json!({
            "type": "tool_result", "group_id": "g", "id": "c", "text": "t", "more": [{"a/b": {}}],
            "response_url": null,
        });
        assert_eq!(read.native().unwrap().json(), kept.to_string());
        let cut: Vec<_> = read.cut().iter().map(|cut| cut.pointer().to_owned()).collect();
        assert_eq!(cut, ["/callback_url", "/more/0/auth_url", "/more/0/a~1b/user_id"]);
        let number = result(&json!({"text": "t", "user_id": 5})).to_string();
        assert_eq!(
            RapResult::read(&number).unwrap().result.native(),
            None,
            "only texts and containers can be cut out"
        );
    }
}
