//! Writes a `tool_result`.

use std::borrow::Cow;

use serde_json::{Map, Value as Json, json};

use super::{ERROR_PREFIX, RapResult};
use crate::{
    ToolResult,
    adapter::json::object,
    result::{
        Audience, BlockKind, ContentBlock, Display, DisplayContent, DisplayKind, Media, Native, ToolSystem,
    },
    value::prefix,
};

/// The fields that belong to one call, and are never taken from another one's document. Events of a subscription cannot be
/// passed on, so none is announced either.
const OF_THE_CALL: [&str; 5] = ["type", "group_id", "id", "call_id", "subscription"];

/// What a person reads of a result that is for the model alone.
const FOR_THE_MODEL: &str = "(this result is for the model alone)";

/// A text of at most this many bytes on one line is shown as it is. A line for the person that is made here is not longer.
const SHORT: usize = 100;

impl RapResult {
    /// Creates the result of a call that failed. [`From`] creates that of a call that did not.
    pub fn failed(result: ToolResult) -> Self {
        Self { result, is_error: true, is_subscription: false }
    }

    /// Returns the document, without the ids of a call: whoever sends it adds `group_id`, `id` and `call_id`.
    ///
    /// The document of a result that was read here is returned as it was, unless the result was changed into a failure
    /// since. Any other result is written so:
    ///
    /// - `text` is what the model reads. Maps and lists are JSON. A failure begins with `Error: `. If the model reads
    ///   nothing, it is the text for the person.
    /// - `content` has the same with its images, if there are any.
    /// - `display_as` has the diffs and images that can be shown, and at its end the text for the person, otherwise one
    ///   short line. It is left out if the text is short and nothing else is to be shown. Other forms of display have no
    ///   segment in RAP: their title, or their first line, is that line.
    pub fn write(&self) -> String {
        match self.native().filter(|_| !self.is_error || self.is_marked()) {
            Some(native) => native.json().to_owned(),
            None => {
                let mut document = Map::from_iter([("type".to_owned(), json!("tool_result"))]);
                document.extend(self.fields());
                Json::Object(document).to_string()
            }
        }
    }

    /// Returns the fields that say what the result is: all but those of the call.
    pub(in crate::adapter::rap) fn fields(&self) -> Map<String, Json> {
        let read = self.native().and_then(|native| object(native.json()).ok());
        let is_result = |it: &Map<String, Json>| {
            let has = |key: &str, is_so: fn(&Json) -> bool| it.get(key).is_some_and(is_so);
            has("text", Json::is_string)
                || has("content", |it| it.as_array().is_some_and(|it| !it.is_empty()))
        };
        match read.filter(is_result).filter(|_| !self.is_error || self.is_marked()) {
            Some(mut fields) => {
                fields.retain(|key, _| !OF_THE_CALL.contains(&key.as_str()));
                fields
            }
            None => self.written(),
        }
    }

    fn native(&self) -> Option<&Native> {
        self.result.native().filter(|native| *native.system() == ToolSystem::RAP)
    }

    /// Returns whether the text says that the call has failed.
    fn is_marked(&self) -> bool {
        super::read::text_of(&self.result).starts_with(ERROR_PREFIX)
    }

    fn written(&self) -> Map<String, Json> {
        let text = text(&self.result);
        let marked = |text: String| {
            let is_unmarked = self.is_error && !text.starts_with(ERROR_PREFIX);
            if is_unmarked { format!("{ERROR_PREFIX}{text}") } else { text }
        };
        let text = marked(text);
        let segments = segments(&self.result, &text);
        let mut items = items(&self.result);
        if self.is_error && !items.is_empty() {
            let first = items.iter_mut().find(|it| it["type"] == "text");
            match first {
                Some(item) => {
                    item["text"] = marked(item["text"].as_str().unwrap_or_default().to_owned()).into()
                }
                None => items.insert(0, text_item(&text)),
            }
        }
        let mut fields = Map::from_iter([("text".to_owned(), text.into())]);
        for (key, list) in [("content", items), ("display_as", segments)] {
            if !list.is_empty() {
                fields.insert(key.to_owned(), list.into());
            }
        }
        fields
    }
}

impl From<ToolResult> for RapResult {
    fn from(result: ToolResult) -> Self {
        Self { result, is_error: false, is_subscription: false }
    }
}

/// Returns what the model reads, otherwise what the person reads.
fn text(result: &ToolResult) -> String {
    let text = result.for_model(usize::MAX).text;
    if text.is_empty() { result.spoken().unwrap_or_default().into_owned() } else { text.into_owned() }
}

/// Returns the content as the model reads it, if it has images.
fn items(result: &ToolResult) -> Vec<Json> {
    let blocks = || result.content().iter().filter(|block| block.audience() != Audience::Person);
    if !blocks().any(|block| matches!(block.kind(), BlockKind::Image(_))) {
        return Vec::new();
    }
    let mut items: Vec<Json> = blocks()
        .map(|block| match block.kind() {
            BlockKind::Image(media) => with_type("image", image(media)),
            _ => text_item(&text_of(std::iter::once(block))),
        })
        .collect();
    // After the blocks the model reads the structured data, unless a block says the same.
    let (all, of_blocks) = (result.for_model(usize::MAX).text, text_of(blocks()));
    let structured = all.strip_prefix(&of_blocks).unwrap_or_default().trim_start_matches('\n');
    items.extend((!structured.is_empty()).then(|| text_item(structured)));
    items
}

/// Returns what the model reads of these blocks.
fn text_of<'a>(blocks: impl Iterator<Item = &'a ContentBlock>) -> String {
    let only = blocks.cloned().fold(ToolResult::default(), ToolResult::with_block);
    only.for_model(usize::MAX).text.into_owned()
}

/// Returns the segments for people, best first, if the text is not enough.
fn segments(result: &ToolResult, text: &str) -> Vec<Json> {
    let rich = result.display().iter().filter_map(|display| match display.content() {
        DisplayContent::Diff(diff) => {
            Some(segment("diff", &json!({"path": diff.path, "patch": diff.to_patch()?})))
        }
        DisplayContent::Image(media) => Some(segment("image", &image(media))),
        _ => None,
    });
    let mut segments: Vec<Json> = rich.collect();
    // What a person is to read exactly is not shortened.
    let line = match result.person_text() {
        Some(exact) => exact.into_owned(),
        None if result.hides_nothing() => line(result, text),
        // Without a segment, the text for the model would be shown.
        None => match line(result, &self::text(&result.for_clients())) {
            line if line.is_empty() => FOR_THE_MODEL.to_owned(),
            line => line,
        },
    };
    if !segments.is_empty() || line != text {
        segments.push(segment("text", &line.into()));
    }
    segments
}

/// Returns one short line that stands for the result.
fn line(result: &ToolResult, text: &str) -> String {
    let title = result.display().iter().find_map(Display::title);
    let texts = [DisplayKind::Text, DisplayKind::Markdown];
    let shown = result.display().iter().find(|it| texts.contains(&it.kind()));
    let shown = shown.and_then(|display| match display.content() {
        DisplayContent::Text(text) | DisplayContent::Markdown(text) => Some(&**text),
        _ => None,
    });
    let path = result.display().iter().find_map(|display| match display.content() {
        DisplayContent::Diff(diff) => Some(&*diff.path),
        _ => None,
    });
    let candidates = [shown, title, result.widget().and_then(|it| it.title()), Some(text), path];
    candidates
        .into_iter()
        .flatten()
        .map(first_line)
        .find(|it| !it.is_empty())
        .unwrap_or_default()
        .into_owned()
}

/// Returns the first line that has letters, shortened.
fn first_line(text: &str) -> Cow<'_, str> {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let Some(line) = lines.next() else { return "".into() };
    if line.len() <= SHORT && lines.next().is_none() {
        return line.into();
    }
    let kept = prefix(line, SHORT - '…'.len_utf8());
    format!("{}…", kept.trim_end()).into()
}

fn image(media: &Media) -> Json {
    json!({"data": media.data(), "mediaType": media.mime_type().unwrap_or("application/octet-stream")})
}

fn with_type(name: &str, mut fields: Json) -> Json {
    fields["type"] = name.into();
    fields
}

fn text_item(text: &str) -> Json {
    json!({"type": "text", "text": text})
}

fn segment(name: &str, content: &Json) -> Json {
    json!({"type": name, "content": content})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ToolError, Value, result::Diff};

    fn fields(result: ToolResult) -> Json {
        RapResult::from(result).fields().into()
    }

    fn failure(result: ToolResult) -> Json {
        RapResult::failed(result).fields().into()
    }

    fn plain(json: Json) -> ToolResult {
        ToolResult::of(&Value::from(json))
    }

    #[test]
    fn rap_r27_maps_and_lists_are_json_in_the_text() {
        let data = json!({"instances": [{"id": "i-1", "state": "running"}], "count": 1});
        assert_eq!(fields(plain(data.clone()))["text"].as_str(), Some(data.to_string().as_str()));
        let list = plain(json!({"value": [1, 2, "drei"]}));
        assert_eq!(fields(list), json!({"text": "[1,2,\"drei\"]"}));
        assert_eq!(fields(plain(json!({"value": "21 °C"}))), json!({"text": "21 °C"}), "a text stays a text");
        let both = ToolResult::text("Two instances.").with_structured(data.clone());
        assert_eq!(fields(both)["text"], json!(format!("Two instances.\n{data}")));
    }

    #[test]
    fn rap_r7_short_text_has_no_display() {
        assert_eq!(fields(ToolResult::text("Deployed i-1")), json!({"text": "Deployed i-1"}));
        let same = Display::new(DisplayContent::Text("Deployed i-1".into()));
        let result = ToolResult::text("Deployed i-1").with_display(same);
        assert_eq!(fields(result), json!({"text": "Deployed i-1"}));
    }

    #[test]
    fn rap_r7_rich_segments_come_first_and_a_short_line_last() {
        let diff = Diff {
            path: "src/main.rs".into(),
            patch: Some("@@ -1 +1 @@\n-a\n+b\n".into()),
            ..Diff::default()
        };
        let short = Display::new(DisplayContent::Text("edit_file src/main.rs — 1 insertion".into()));
        let result = ToolResult::text("Replaced text")
            .with_display(short)
            .with_display(Display::new(DisplayContent::Diff(diff)))
            .with_display(Display::new(DisplayContent::Image(Media::encode(&[1, 2], "image/png"))));
        let display = json!([
            {"type": "diff", "content": {"path": "src/main.rs", "patch": "@@ -1 +1 @@\n-a\n+b\n"}},
            {"type": "image", "content": {"data": "AQI=", "mediaType": "image/png"}},
            {"type": "text", "content": "edit_file src/main.rs — 1 insertion"},
        ]);
        assert_eq!(fields(result), json!({"text": "Replaced text", "display_as": display}));
    }

    #[test]
    fn rap_r7_long_text_is_shown_as_one_short_line() {
        let last = |result: ToolResult| {
            let written = fields(result);
            let segments = written["display_as"].as_array().unwrap().clone();
            assert_eq!(segments.last().unwrap()["type"], "text");
            segments.last().unwrap()["content"].as_str().unwrap().to_owned()
        };
        assert_eq!(last(ToolResult::text("\n  fn main() {\n}\n")), "fn main() {…");
        let long = last(ToolResult::text("ö".repeat(1_000)));
        assert!(long.len() <= SHORT && long.ends_with('…'), "{long}");
        let code = DisplayContent::Code { language: None, text: "fn main() {}".into() };
        let code = Display::new(code).with_title("src/main.rs");
        assert_eq!(last(ToolResult::text("a\nb").with_display(code)), "src/main.rs");
    }

    #[test]
    fn rap_r7_text_for_the_person_is_shown_exactly() {
        let exact = "Your balance is 1,234.56 €.\nThank you.";
        let result = ToolResult::default().with_structured(json!({"cents": 123_456})).with_person_text(exact);
        let display = json!([{"type": "text", "content": exact}]);
        assert_eq!(fields(result), json!({"text": "{\"cents\":123456}", "display_as": display}));
        let only = fields(ToolResult::default().with_person_text(exact));
        assert_eq!(only, json!({"text": exact}), "the model knows what the person reads");
    }

    #[test]
    fn images_stand_among_their_texts_in_content() {
        let result = ToolResult::text("before")
            .with_block(ContentBlock::image(Media::encode(&[1, 2], "image/png")))
            .with_text("after")
            .with_structured(json!({"a": 1}));
        let content = json!([
            {"type": "text", "text": "before"},
            {"data": "AQI=", "mediaType": "image/png", "type": "image"},
            {"type": "text", "text": "after"},
            {"type": "text", "text": "{\"a\":1}"},
        ]);
        let written = fields(result);
        assert_eq!(written["content"], content);
        assert_eq!(written["text"], "before\n[image: image/png, 2 bytes]\nafter\n{\"a\":1}");
    }

    #[test]
    fn rap_r10_failure_begins_with_error_once() {
        let error = ToolError::new("too_dark", "the lamp is broken; ask for another one");
        let text = "Error: the lamp is broken; ask for another one";
        assert_eq!(failure(ToolResult::of_error(&error)), json!({"text": text}));
        assert_eq!(failure(ToolResult::text(text)), json!({"text": text}));
        let image = ToolResult::default().with_block(ContentBlock::image(Media::encode(&[1], "image/png")));
        assert_eq!(failure(image.clone())["content"][0], text_item("Error: [image: image/png, 1 bytes]"));
        assert!(failure(image.with_text("dark"))["content"].to_string().contains("Error: dark"));
    }

    #[test]
    fn document_of_rap_is_passed_on_without_the_fields_of_its_call() {
        let json = r#"{"type":"tool_result","group_id":"g","id":"c","call_id":"x","subscription":true,"text":"t","own":[null],"display_as":[{"type":"hologram","content":1}]}"#;
        let read = RapResult::read(json).unwrap();
        assert_eq!(read.write(), json);
        let passed = json!({"text": "t", "own": [null], "display_as": [{"type": "hologram", "content": 1}]});
        assert_eq!(Json::Object(read.fields()), passed);
        let failed = RapResult { is_error: true, ..read };
        assert_eq!(failed.fields()["text"], "Error: t");
        // A tool may write anything into its document.
        let odd = ToolResult::text("t").with_native(Native::new(ToolSystem::RAP, r#"{"text": 5}"#));
        assert_eq!(fields(odd), json!({"text": "t"}));
    }
}
