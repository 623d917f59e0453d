//! Makes the document of another program a result that the protocol allows, because strict hosts refuse the whole
//! result otherwise.
//!
//! Keys that the protocol does not know, and blocks of unknown types, stay as they are.

use serde_json::{Map, Value as Json, json};

use crate::adapter::json::value;

pub(super) type Document = Map<String, Json>;

/// The texts that a block of a known type must have.
const REQUIRED: [(&str, &[&str]); 5] = [
    ("text", &["/text"]),
    ("image", &["/data", "/mimeType"]),
    ("audio", &["/data", "/mimeType"]),
    ("resource_link", &["/uri", "/name"]),
    ("resource", &["/resource/uri"]),
];

/// Corrects what no version of the protocol allows. `content` must be a list already.
pub(super) fn fit(document: &mut Document) {
    if let Some(Json::Array(blocks)) = document.get_mut("content") {
        for block in blocks {
            *block = fitted(block.take());
        }
    }
    remove_unless(document, "isError", Json::is_boolean);
    remove_unless(document, "_meta", Json::is_object);
}

/// Corrects `structuredContent` for versions before 2026-07-28, in which it is an object. Models read the content, so
/// other data is written there too.
pub(super) fn fit_structured(document: &mut Document) {
    if document.get("structuredContent").is_none_or(Json::is_object) {
        return;
    }
    let Some(data) = document.shift_remove("structuredContent").filter(|data| !data.is_null()) else {
        return;
    };
    if let Some(Json::Array(blocks)) = document.get_mut("content") {
        let says_it =
            |block: &Json| block["text"].as_str().is_some_and(|text| value(text).is_ok_and(|it| it == data));
        if !blocks.iter().any(says_it) {
            blocks.push(text(&data));
        }
    }
    document.insert("structuredContent".to_owned(), json!({ "value": data }));
}

/// Returns a text block: of a string its text, of anything else its JSON.
fn text(json: &Json) -> Json {
    let text = json.as_str().map_or_else(|| json.to_string(), str::to_owned);
    json!({"type": "text", "text": text})
}

fn fitted(block: Json) -> Json {
    let Some(name) = block["type"].as_str() else { return text(&block) };
    let Some((_, required)) = REQUIRED.iter().find(|(known, _)| *known == name) else { return block };
    if !required.iter().all(|pointer| block.pointer(pointer).is_some_and(Json::is_string)) {
        return text(&block);
    }
    let Json::Object(mut block) = block else { return block };
    block.retain(|_, value| !value.is_null());
    remove_unless(&mut block, "_meta", Json::is_object);
    remove_unless(&mut block, "annotations", Json::is_object);
    if let Some(Json::Object(resource)) = block.get_mut("resource") {
        resource.retain(|_, value| !value.is_null());
    }
    if let Some(Json::Object(annotations)) = block.get_mut("annotations") {
        fit_annotations(annotations);
    }
    block.into()
}

/// One role in place of a list becomes a list, as everywhere else.
fn fit_annotations(annotations: &mut Map<String, Json>) {
    annotations.retain(|_, value| !value.is_null());
    if let Some(audience) = annotations.get_mut("audience").filter(|it| it.is_string()) {
        *audience = json!([audience.take()]);
    }
    if let Some(Json::Array(roles)) = annotations.get_mut("audience") {
        roles.retain(|role| matches!(role.as_str(), Some("user" | "assistant")));
    }
    remove_unless(annotations, "audience", |it| it.as_array().is_some_and(|roles| !roles.is_empty()));
    remove_unless(annotations, "priority", Json::is_number);
}

fn remove_unless(map: &mut Map<String, Json>, key: &str, is_allowed: impl Fn(&Json) -> bool) {
    if map.get(key).is_some_and(|value| !is_allowed(value)) {
        map.shift_remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fitted_content(content: Json) -> Json {
        let mut document = Document::from_iter([("content".to_owned(), content)]);
        fit(&mut document);
        document["content"].take()
    }

    #[test]
    fn block_without_its_type_or_a_required_text_becomes_a_text() {
        let link = json!({"type": "resource_link", "uri": "file:///a"});
        let content = json!(["a", 7, null, {"text": "b"}, {"type": "text"}, link, {"type": "resource", "resource": "x"}]);
        let texts = ["a", "7", "null", r#"{"text":"b"}"#, r#"{"type":"text"}"#];
        let mut expected: Vec<_> = texts.iter().map(|text| json!({"type": "text", "text": text})).collect();
        expected.push(text(&link));
        expected.push(text(&json!({"type": "resource", "resource": "x"})));
        assert_eq!(fitted_content(content), Json::from(expected));
    }

    #[test]
    fn nulls_and_roles_of_known_blocks_are_corrected_and_others_stay() {
        let annotations = json!({"audience": "user", "priority": null, "own": 1});
        let content = json!([
            {"type": "text", "text": "a", "annotations": annotations, "own": [null]},
            {"type": "text", "text": "b", "annotations": {"audience": ["robot"]}},
            {"type": "text", "text": "c", "annotations": "none"},
            {"type": "resource", "resource": {"uri": "a:b", "text": "d", "mimeType": null}},
            {"type": "hologram", "depth": null},
        ]);
        let expected = json!([
            {"type": "text", "text": "a", "annotations": {"audience": ["user"], "own": 1}, "own": [null]},
            {"type": "text", "text": "b", "annotations": {}},
            {"type": "text", "text": "c"},
            {"type": "resource", "resource": {"uri": "a:b", "text": "d"}},
            {"type": "hologram", "depth": null},
        ]);
        assert_eq!(fitted_content(content), expected);
    }

    #[test]
    fn structured_data_that_older_hosts_refuse_is_in_a_map_and_in_the_content() {
        let fit = |content: Json, data: Json| {
            let mut document = json!({"content": content, "structuredContent": data});
            fit_structured(document.as_object_mut().unwrap());
            document
        };
        let (said, summary) =
            (json!({"type": "text", "text": "[1, 2]"}), json!({"type": "text", "text": "two"}));
        let structured = json!({"value": [1, 2]});
        assert_eq!(
            fit(json!([said]), json!([1, 2])),
            json!({"content": [said], "structuredContent": structured})
        );
        assert_eq!(
            fit(json!([summary]), json!([1, 2])),
            json!({"content": [summary, {"type": "text", "text": "[1,2]"}], "structuredContent": structured})
        );
        assert_eq!(fit(json!([]), json!(null)), json!({"content": []}));
        let object = json!({"content": [], "structuredContent": {"a": 1}});
        assert_eq!(fit(json!([]), json!({"a": 1})), object);
    }
}
