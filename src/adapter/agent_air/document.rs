//! Reads and writes results of agent-air as JSON.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use super::display::{ContentType, DisplayConfig};
use crate::adapter::{DocumentError, json::object};

/// The fields that a document holds itself.
const KNOWN: [&str; 4] = ["call_id", "output", "display", "is_error"];

/// The longest text of a result that is spoken as it is, in bytes: a person hears about 15 of them in a second.
const MAX_SPOKEN: usize = 200;

/// The result of one tool: the page's `ToolResult`, as JSON in snake case. `Debug` shows only sizes.
///
/// The types of the page have no JSON form of their own. This is it:
///
/// ```
/// use toolbridge::{ToolResult, adapter::agent_air::{ContentType, Document}};
///
/// let json = r#"{"output": "fn main() {}", "display": {"title": "main.rs", "content_type": {"code": "rust"},
///     "collapsed": true}, "is_error": false, "turn_id": "a1"}"#;
/// let document = Document::read(json)?;
/// assert_eq!(document.display().unwrap().content_type, ContentType::Code("rust".into()));
/// assert_eq!(document.field("turn_id").unwrap(), "a1");
///
/// let result: ToolResult = document.to_result();
/// assert_eq!(result.for_model(1000).text, "fn main() {}");
/// assert_eq!(result.native().unwrap().json(), json);
/// # Ok::<(), toolbridge::adapter::agent_air::InvalidDocument>(())
/// ```
#[derive(Clone)]
pub struct Document {
    fields: Fields,
    /// The text that it was read from, until something changes.
    source: Option<Arc<str>>,
}

#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
struct Fields {
    output: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    display: Option<DisplayConfig>,
    #[serde(default)]
    is_error: bool,
    #[serde(flatten)]
    more: Map<String, Json>,
}

impl Fields {
    fn of(json: Json) -> Result<Self, InvalidDocument> {
        serde_json::from_value(json).map_err(|_| InvalidDocument::Form)
    }
}

/// Why a text is not a document of agent-air. The texts of these errors contain nothing of the document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidDocument {
    /// The text exceeds a limit, or is not a JSON object.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// A field is missing or of the wrong type.
    #[error(
        "the document is not a result of agent-air: it needs a text `output`; `is_error` is a boolean, `display` a map"
    )]
    Form,
    /// A batch has no list `results`, or one of them has no text `call_id`.
    #[error(
        "the document is not a batch of agent-air: it needs a list `results`, each with a text `call_id`"
    )]
    Batch,
}

impl Document {
    /// Creates the result of a tool that succeeded, without a display.
    pub fn new(output: impl Into<String>) -> Self {
        Self { fields: Fields { output: output.into(), ..Fields::default() }, source: None }
    }

    /// Reads a result. Unknown fields and unknown content types are kept.
    ///
    /// # Errors
    /// The text exceeds a limit, is not a JSON object, or `output`, `display` or `is_error` is missing or of the wrong type.
    pub fn read(json: &str) -> Result<Self, InvalidDocument> {
        Ok(Self { fields: Fields::of(Json::Object(object(json)?))?, source: Some(json.into()) })
    }

    /// Sets how it is shown.
    #[must_use]
    pub fn with_display(mut self, display: DisplayConfig) -> Self {
        self.fields.display = Some(display);
        self.changed()
    }

    /// Sets whether the tool failed.
    #[must_use]
    pub fn with_error(mut self, is_error: bool) -> Self {
        self.fields.is_error = is_error;
        self.changed()
    }

    /// Adds a field that the page does not have, such as the runtime's `compact_summary` and `turn_id`. The names of the
    /// page's fields, and `call_id`, have no effect.
    #[must_use]
    pub fn with_field(mut self, name: impl Into<String>, value: impl Into<Json>) -> Self {
        let name = name.into();
        if !KNOWN.contains(&name.as_str()) {
            self.fields.more.insert(name, value.into());
        }
        self.changed()
    }

    fn changed(mut self) -> Self {
        self.source = None;
        self
    }

    /// Returns the text for the model.
    pub fn output(&self) -> &str {
        &self.fields.output
    }

    /// Returns how it is shown. Without a display the output is shown as plain text.
    pub fn display(&self) -> Option<&DisplayConfig> {
        self.fields.display.as_ref()
    }

    /// Returns whether the tool failed.
    pub fn is_error(&self) -> bool {
        self.fields.is_error
    }

    /// Returns a field that the page does not have.
    pub fn field(&self, name: &str) -> Option<&Json> {
        self.fields.more.get(name)
    }

    /// Returns the JSON text: the one that it was read from, byte for byte, unless something was changed.
    pub fn json(&self) -> Arc<str> {
        match &self.source {
            Some(source) => Arc::clone(source),
            None => serde_json::to_string(&self.fields).unwrap_or_default().into(),
        }
    }

    /// Returns what a client without a screen says of it: the display's title, otherwise a plain text of one line and at
    /// most 200 bytes. `None` for code, tables and long texts without a title.
    pub fn short_text(&self) -> Option<&str> {
        let is_plain = match self.display() {
            Some(display) if !display.title.trim().is_empty() => return Some(&display.title),
            Some(display) => display.content_type == ContentType::Text,
            None => true,
        };
        let text = self.output();
        let is_short = !text.is_empty() && text.len() <= MAX_SPOKEN && !text.contains(['\n', '\r']);
        (is_plain && is_short).then_some(text)
    }
}

/// Compares the fields, not the texts that they were read from.
impl PartialEq for Document {
    fn eq(&self, other: &Self) -> bool {
        self.fields == other.fields
    }
}

impl fmt::Debug for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Document")
            .field("output_bytes", &self.output().len())
            .field("display", &self.display())
            .field("is_error", &self.is_error())
            .field("more", &self.fields.more.len())
            .finish()
    }
}

/// The results of several calls in the order of the requests: the page's `ToolBatchResult`.
///
/// As JSON: `{"results": [{"call_id": …, "output": …, …}]}`. A result may also stand under `result`, as in the page's
/// `ToolCallResult`.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct BatchDocument {
    /// The results.
    pub results: Vec<CallDocument>,
    more: Map<String, Json>,
}

/// The result of one call of a batch: the page's `ToolCallResult`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct CallDocument {
    /// The call's id, as its caller gave it.
    pub call_id: String,
    /// The result.
    pub result: Document,
}

impl CallDocument {
    /// Creates it from its parts.
    pub fn new(call_id: impl Into<String>, result: Document) -> Self {
        Self { call_id: call_id.into(), result }
    }
}

#[derive(Serialize, Deserialize)]
struct BatchFields {
    results: Vec<CallFields>,
    #[serde(flatten)]
    more: Map<String, Json>,
}

#[derive(Serialize, Deserialize)]
struct CallFields {
    call_id: String,
    #[serde(flatten)]
    result: Map<String, Json>,
}

impl BatchDocument {
    /// Creates it from its results.
    pub fn new(results: impl IntoIterator<Item = CallDocument>) -> Self {
        Self { results: results.into_iter().collect(), more: Map::new() }
    }

    /// Reads a batch. Unknown fields are kept.
    ///
    /// # Errors
    /// As [`Document::read`], for the whole text.
    pub fn read(json: &str) -> Result<Self, InvalidDocument> {
        let fields = Json::Object(object(json)?);
        let fields: BatchFields = serde_json::from_value(fields).map_err(|_| InvalidDocument::Batch)?;
        let results = fields.results.into_iter().map(CallFields::read).collect::<Result<_, _>>()?;
        Ok(Self { results, more: fields.more })
    }

    /// Returns a field that the page does not have, such as the runtime's `batch_id`.
    pub fn field(&self, name: &str) -> Option<&Json> {
        self.more.get(name)
    }

    /// Returns the JSON text.
    pub fn json(&self) -> String {
        let results = self.results.iter().map(CallFields::of).collect();
        let fields = BatchFields { results, more: self.more.clone() };
        serde_json::to_string(&fields).unwrap_or_default()
    }
}

impl CallFields {
    fn read(mut self) -> Result<CallDocument, InvalidDocument> {
        let is_nested = !self.result.contains_key("output");
        let result = match self.result.remove("result").filter(|_| is_nested) {
            Some(nested) => nested,
            None => Json::Object(self.result),
        };
        let fields = Fields::of(result)?;
        Ok(CallDocument::new(self.call_id, Document { fields, source: None }))
    }

    fn of(call: &CallDocument) -> Self {
        let mut result = match serde_json::to_value(&call.result.fields) {
            Ok(Json::Object(result)) => result,
            _ => Map::new(),
        };
        // A reader that takes the last of two equal keys would find another call.
        result.remove("call_id");
        Self { call_id: call.call_id.clone(), result }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn wrong_or_missing_field_is_an_error_without_its_value() {
        for json in [
            json!({}),
            json!({"output": 5}),
            json!({"output": null}),
            json!({"output": "a", "is_error": "secret"}),
            json!({"output": "a", "display": ["secret"]}),
            json!({"output": "a", "display": {"title": 5}}),
            json!({"output": "a", "display": {"collapsed": "secret"}}),
        ] {
            assert_eq!(Document::read(&json.to_string()), Err(InvalidDocument::Form), "{json}");
        }
        let list = Document::read("[\"secret\"]");
        assert_eq!(list, Err(InvalidDocument::Document(DocumentError::NotAnObject)));
        assert_eq!(Document::read(r#"{"output": "a", "display": null}"#).unwrap().display(), None);
    }

    #[test]
    fn changed_document_is_written_again_with_its_unknown_fields() {
        let json = r#"{ "output": "a", "turn_id": [1, 2.50] }"#;
        let document = Document::read(json).unwrap();
        assert_eq!(&*document.json(), json);
        let document = document.with_error(true).with_field("is_error", false).with_field("x", 1);
        assert_eq!(&*document.json(), r#"{"output":"a","is_error":true,"turn_id":[1,2.5],"x":1}"#);
    }

    #[test]
    fn short_text_is_the_title_or_a_short_plain_text() {
        let code = |title: &str| DisplayConfig::new(title, ContentType::Code("rust".into()));
        let said = |output: &str, display: Option<DisplayConfig>| {
            let document = Document::new(output);
            let document = display.into_iter().fold(document, Document::with_display);
            document.short_text().map(str::to_owned)
        };
        assert_eq!(said("fn main() {}", Some(code("main.rs"))).as_deref(), Some("main.rs"));
        assert_eq!(said("fn main() {}", Some(code(" "))), None);
        assert_eq!(said("21 °C", None).as_deref(), Some("21 °C"));
        assert_eq!(said(&"a".repeat(MAX_SPOKEN + 1), None), None);
        assert_eq!(said("a\nb", None), None);
        assert_eq!(said("", None), None);
    }

    #[test]
    fn batch_is_read_in_both_forms_and_written_in_one() {
        let document = Document::new("a").with_field("turn_id", "t");
        let batch = BatchDocument::new([
            CallDocument::new("c1", document),
            CallDocument::new("c2", Document::new("b")),
        ]);
        let json = json!({"results": [
            {"call_id": "c1", "output": "a", "is_error": false, "turn_id": "t"},
            {"call_id": "c2", "output": "b", "is_error": false},
        ]});
        assert_eq!(serde_json::from_str::<Json>(&batch.json()).unwrap(), json);
        assert_eq!(BatchDocument::read(&json.to_string()).unwrap(), batch);
        let nested = json!({"results": [
            {"call_id": "c1", "result": {"output": "a", "turn_id": "t"}},
            {"call_id": "c2", "result": {"output": "b"}},
        ], "batch_id": 7});
        let nested = BatchDocument::read(&nested.to_string()).unwrap();
        assert_eq!((&nested.results, nested.field("batch_id")), (&batch.results, Some(&json!(7))));
        for (broken, error) in [
            (json!({}), InvalidDocument::Batch),
            (json!({"results": [{"output": "a"}]}), InvalidDocument::Batch),
            (json!({"results": [{"call_id": "a", "result": 5}]}), InvalidDocument::Form),
        ] {
            assert_eq!(BatchDocument::read(&broken.to_string()), Err(error), "{broken}");
        }
    }

    #[test]
    fn call_id_of_a_result_in_a_batch_is_that_of_its_call() {
        let result = Document::read(r#"{"call_id": "x", "output": "a"}"#).unwrap();
        let batch = BatchDocument::new([CallDocument::new("c1", result)]);
        assert_eq!(batch.json(), r#"{"results":[{"call_id":"c1","output":"a","is_error":false}]}"#);
        assert_eq!(BatchDocument::read(&batch.json()).unwrap().results[0].call_id, "c1");
    }

    #[test]
    fn debug_output_hides_the_result() {
        let display = DisplayConfig::new("secret", ContentType::Json).with_field("content", "secret");
        let document = Document::new("secret").with_display(display).with_field("x", "secret");
        assert!(!format!("{document:?}").contains("secret"));
    }
}
