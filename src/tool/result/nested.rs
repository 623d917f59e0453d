//! Finds blocks for the model alone inside the parts of a result other than its content: in structured data,
//! in `_meta` and other fields of blocks, in displays, in widgets, and anywhere in the native document.

use serde_json::Value as Json;

use super::{
    Audience, ContentBlock, Cut, ToolResult,
    document::MAX_POINTER,
    public::{ROLE, may_hide, take_hidden},
};
use crate::value::{Value, parse};

/// The most blocks that are removed from one part. More of them take the whole part along.
const MAX_BLOCKS: usize = 256;

/// What was found in the parts of a result.
#[derive(Default)]
pub(super) struct Nested {
    /// The blocks, for their texts.
    pub(super) blocks: Vec<ContentBlock>,
    /// What was removed from the parts other than the native document.
    pub(super) cut: Vec<Cut>,
    /// The places of the blocks in the native document; `None` if it may hide blocks that cannot be found.
    pub(super) places: Option<Vec<String>>,
}

impl Nested {
    /// Removes the blocks from the parts of a result other than its content and its native document, and finds those of
    /// the document.
    pub(super) fn remove(result: &mut ToolResult) -> Self {
        let mut found = Self { places: Some(Vec::new()), ..Self::default() };
        let is_open = |block: &ContentBlock| block.audience() != Audience::Model;
        for (n, block) in result.content.iter_mut().enumerate().filter(|(_, block)| is_open(block)) {
            if let Some(raw) = found.part(Cut::CONTENT, &format!("/{n}"), block.raw()) {
                *block = block.with_raw(raw.unwrap_or_default());
            }
        }
        if let Some(kept) = result.structured.as_ref().and_then(|it| found.part(Cut::STRUCTURED, "", it)) {
            result.structured = kept;
        }
        let mut n = 0;
        result.display.retain_mut(|display| {
            let kept = found.part(Cut::DISPLAY, &format!("/{n}"), display.raw());
            n += 1;
            match kept {
                None => true,
                Some(Some(raw)) => {
                    *display = display.clone().with_raw(raw);
                    true
                }
                Some(None) => false,
            }
        });
        if let Some(widget) = result.widget.take() {
            result.widget = match found.part(Cut::WIDGET, "/value", widget.value()) {
                None => Some(widget),
                Some(kept) => kept.map(|value| widget.with_value(value)),
            };
        }
        if let Some(native) = &result.native {
            found.places = found.native(native.json());
        }
        found
    }

    /// Returns a part without its blocks, `Some(None)` if nothing of it is left, and `None` if it has none.
    fn part(&mut self, part: &'static str, at: &str, value: &Value) -> Option<Option<Value>> {
        if !may_hide(value) {
            return None;
        }
        let mut json = value.to_json();
        let removed = take_hidden(&mut json);
        if removed.is_empty() {
            return None;
        }
        let is_whole = removed.len() > MAX_BLOCKS;
        let is_left = removed.iter().all(|(pointer, _)| !pointer.is_empty());
        for (pointer, block) in removed {
            if !is_whole {
                self.cut.push(Cut::new(part, format!("{at}{pointer}")));
            }
            self.add(&block);
        }
        if is_whole {
            self.cut.push(Cut::new(part, at));
            return Some(None);
        }
        Some(is_left.then(|| Value::from(&json)))
    }

    /// Returns the places of the blocks in a document.
    fn native(&mut self, text: &str) -> Option<Vec<String>> {
        // A name may be escaped.
        if !text.contains(ROLE) && !text.contains("\\u00") {
            return Some(Vec::new());
        }
        let removed = take_hidden(&mut parse(text).ok()?);
        for (_, block) in &removed {
            self.add(block);
        }
        let places: Vec<_> = removed.into_iter().map(|(pointer, _)| pointer).collect();
        places.iter().all(|it| it.len() <= MAX_POINTER).then_some(places)
    }

    fn add(&mut self, block: &Json) {
        self.blocks.push(ContentBlock::from_value(&block.into()));
        if block["type"] == "content" {
            self.blocks.push(ContentBlock::from_value(&(&block["content"]).into()));
        }
    }

    /// Returns whether there is nothing for the model alone.
    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.places.as_ref().is_some_and(Vec::is_empty)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        ToolError,
        result::{Native, ToolSystem},
    };

    const SECRET: &str = "planted-for-the-model";

    fn hidden() -> Json {
        json!({"type": "text", "text": SECRET, "annotations": {"audience": ["assistant"]}})
    }

    /// A part with a block for the model alone, its result, and the places that are cut.
    type Case = (&'static str, ToolResult, Vec<(&'static str, &'static str)>);

    fn results() -> Vec<Case> {
        let of = |json: Json| ToolResult::of(&Value::from(json));
        let marked = |key: &str, value: Json| {
            of(json!({"bridge.result": 1, "text": SECRET, "content": ["shown"], (key): value}))
        };
        let block = json!({"type": "text", "text": "shown", "_meta": {"more": [1, hidden()]}});
        let native = |json: String| ToolResult::text("shown").with_native(Native::new(ToolSystem::MCP, json));
        let inside = json!({"content": ["shown"], "_meta": {"a/b": hidden()}, "also": SECRET});
        let item = json!({"items": [{"type": "content", "content": hidden()}], "total": 1});
        vec![
            (
                "a plain value",
                of(json!({"rows": [1, hidden()], "total": 2})),
                vec![("structured", "/rows/1")],
            ),
            ("a plain block", of(hidden()), vec![("structured", "")]),
            ("data", marked("structured", item), vec![("structured", "/items/0")]),
            (
                "data that says it too",
                marked("structured", json!([hidden(), SECRET])),
                vec![("structured", "/0"), ("structured", "")],
            ),
            ("a field of a block", marked("content", json!([block])), vec![("content", "/0/_meta/more/1")]),
            (
                "a display",
                marked("display", json!([hidden(), {"type": "text", "text": "a", "more": hidden()}])),
                vec![("display", "/0"), ("display", "/1/more")],
            ),
            (
                "a widget",
                marked("widget", json!({"value": {"parts": [hidden()]}})),
                vec![("widget", "/value/parts/0")],
            ),
            ("a document", native(inside.to_string()), vec![("native", "/_meta/a~1b"), ("native", "/also")]),
            ("a whole document", native(hidden().to_string()), vec![("native", "")]),
            (
                "an escaped document",
                native(json!([hidden(), 5]).to_string().replace("assistant", "\\u0061ssistant")),
                vec![("native", "/0")],
            ),
            (
                "a document that is no JSON",
                native(format!("{} assistant {SECRET}", '{')),
                vec![("native", "")],
            ),
            ("many blocks", of(json!({"rows": vec![hidden(); MAX_BLOCKS + 1]})), vec![("structured", "")]),
        ]
    }

    #[test]
    fn blocks_inside_any_part_are_for_the_model_alone() {
        for (part, result, cuts) in results() {
            assert!(!result.hides_nothing(), "{part}");
            let public = result.for_clients();
            let written = public.to_value().to_json().to_string();
            assert!(!written.contains(SECRET), "{part}: {written}");
            let cut: Vec<_> = public.cut().iter().map(|cut| (cut.part(), cut.pointer())).collect();
            assert_eq!(cut, cuts, "{part}");
            assert!(public.hides_nothing() && public.for_clients() == public, "{part}");
            let error = ToolError::new("own", format!("failed: {SECRET}")).with_partial(result.to_value());
            assert!(!error.for_clients().message().contains(SECRET) || part.contains("no JSON"), "{part}");
        }
    }

    #[test]
    fn audience_of_a_block_counts_more_than_that_of_its_resource() {
        let resource = json!({"uri": "a:b", "text": "shown", "annotations": {"audience": ["assistant"]}});
        let block = json!({"type": "resource", "resource": resource, "annotations": {"audience": ["user", "assistant"]}});
        let result = ToolResult::of(&Value::from(json!({"rows": [block], "content": [block]})));
        assert!(result.hides_nothing());
        assert_eq!(result.for_clients(), result);
    }
}
