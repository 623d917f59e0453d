//! Reads and writes the document of a call's result: a `CallToolResult`.

use serde_json::{Map, Value as Json, json};

use crate::{
    Outcome, ToolError, ToolResult, Value,
    adapter::{
        json::{DocumentError, object, value},
        orchestrate,
    },
    result::{BlockKind, ContentBlock, Media, Native, ToolSystem},
    tools::{DataSchema, SchemaError},
};

/// The result of a call in MCP: its content, and whether the tool reports it as an error.
///
/// It is read from a JSON text, which stays the result's [native](ToolResult::native) document, byte for byte:
///
/// ```
/// use toolbridge::adapter::mcp::CallToolResult;
///
/// let json = r#"{"content": [{"type": "text", "text": "21 °C"}], "structuredContent": {"celsius": 21}}"#;
/// let read = CallToolResult::read(json)?;
/// assert_eq!(read.result.for_model(100).text, "21 °C\n{\"celsius\":21}");
/// assert!(!read.is_error);
/// assert_eq!(read.write(), json);
/// # Ok::<(), toolbridge::adapter::DocumentError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct CallToolResult {
    /// What the document says.
    pub result: ToolResult,
    /// Whether the tool reports an error (`isError`). The model reads the result of such a call too.
    pub is_error: bool,
    /// Whether the document is a plain value, which was read as a text.
    pub(in crate::adapter::mcp) is_bare: bool,
}

impl CallToolResult {
    /// Creates the result of a call that failed. [`From`] creates that of a call that did not.
    pub fn failed(result: ToolResult) -> Self {
        Self { result, is_error: true, is_bare: false }
    }

    /// Reads a document.
    ///
    /// What is not understood is kept, and is not an error: unknown blocks and fields, missing content, broken base64. A
    /// string in `content` is a text block, and so is a `content` that is a string. `structuredContent` that is null is
    /// [structured](ToolResult::structured) data; if the key is missing, there is none.
    ///
    /// A document that has only keys of its own, or is no object, is the plain result of a handler: its JSON becomes a
    /// text. One that is no object is not kept as the native document.
    ///
    /// The widget is `_meta["com.ibm.orchestrate/widget"]`, otherwise the key `widget` if it is an object. The document
    /// is that of [`ToolSystem::WXO`] if it has one of these, another key of `_meta` that starts with
    /// `com.ibm.orchestrate/`, or the key `context_updates`. Otherwise it is that of [`ToolSystem::MCP`].
    ///
    /// The text's size is not limited here.
    ///
    /// # Errors
    /// Any [`DocumentError`] but `NotAnObject`. No other document is refused.
    pub fn read(json: &str) -> Result<Self, DocumentError> {
        let document = match value(json)? {
            Json::Object(document) => document,
            plain => return Ok(Self { result: plain_text(&plain), is_error: false, is_bare: true }),
        };
        let is_bare = is_bare(&document);
        let mut result = match is_bare {
            true => ToolResult::text(said_by(&document)),
            false => content(document.get("content")),
        };
        if let Some(structured) = document.get("structuredContent") {
            result = result.with_structured(structured);
        }
        if let Some(widget) = orchestrate::widget_of(&document) {
            result = result.with_widget(widget);
        }
        let system = if orchestrate::is_document(&document) { ToolSystem::WXO } else { ToolSystem::MCP };
        Ok(Self {
            result: result.with_native(Native::new(system, json)),
            is_error: document.get("isError") == Some(&Json::Bool(true)),
            is_bare,
        })
    }

    /// Returns the outcome of the call. An error is `execution_error` with the result as partial result.
    ///
    /// Its message is the text for the person, at most 2 KiB. The text for the model alone is in the partial result only,
    /// because clients get the message.
    ///
    /// # Errors
    /// The document reports an error.
    pub fn into_outcome(self) -> Outcome {
        if !self.is_error {
            return Ok(self.result.to_value());
        }
        Err(ToolError::reported(&self.result))
    }

    /// Returns the document.
    ///
    /// The document of a result that was read here is returned as it was, unless the result was changed into an error
    /// since. Whoever adds to such a result removes its document first, by
    /// [`without_native`](ToolResult::without_native).
    ///
    /// Any other result is written with its content, its structured data and its widget. A value that is not a map is
    /// written as `{"value": …}`, because older hosts accept only an object. A result without content gets a text block
    /// of what the model reads.
    pub fn write(&self) -> String {
        match self.result.native() {
            Some(native) if is_form_of(native) && (!self.is_error || is_marked(native.json())) => {
                native.json().to_owned()
            }
            _ => self.written().to_string(),
        }
    }

    fn written(&self) -> Json {
        let result = &self.result;
        let mut blocks: Vec<Json> = result.content().iter().map(block).collect();
        if blocks.is_empty() {
            let text = result.for_model(usize::MAX).text;
            let text = if text.is_empty() { result.spoken().unwrap_or_default() } else { text };
            blocks.extend((!text.is_empty()).then(|| json!({"type": "text", "text": text})));
        }
        let mut document = Map::from_iter([("content".to_owned(), blocks.into())]);
        if let Some(structured) = result.structured() {
            let json = plain(structured);
            let json = if json.is_object() { json } else { json!({ "value": json }) };
            document.insert("structuredContent".into(), json);
        }
        // The widget of another system has another form.
        let widget = result.widget().filter(|_| result.native().is_none_or(is_form_of));
        if let Some(widget) = widget {
            document.insert("_meta".into(), json!({ (orchestrate::WIDGET): plain(widget.value()) }));
        }
        if self.is_error {
            document.insert("isError".into(), true.into());
        }
        document.into()
    }
}

impl From<ToolResult> for CallToolResult {
    fn from(result: ToolResult) -> Self {
        Self { result, is_error: false, is_bare: false }
    }
}

/// Checks the structured data of a result against the tool's `outputSchema`. A mismatch is a fault of the server: the
/// result is delivered anyway, and the mismatch is reported. A result that is an error needs no data.
///
/// # Errors
/// [`SchemaError::Data`], with the path and the violated rule.
pub fn check_output(schema: &DataSchema, result: &CallToolResult) -> Result<(), SchemaError> {
    match result.result.structured() {
        Some(structured) => schema.check(&plain(structured)),
        None if result.is_error => Ok(()),
        None => Err(SchemaError::Data("as a whole: `structuredContent` is required".into())),
    }
}

/// Returns whether a document has keys of its own, and none that says anything in MCP.
fn is_bare(document: &Map<String, Json>) -> bool {
    let says =
        ["content", "structuredContent"].iter().any(|key| document.get(*key).is_some_and(|it| !it.is_null()));
    !says && !orchestrate::is_document(document) && document.keys().any(|key| !is_frame(key))
}

/// Returns whether a key says how a result is to be read, and nothing of what it says.
fn is_frame(key: &str) -> bool {
    ["_meta", "isError", "resultType", "content", "structuredContent"].contains(&key)
}

/// Returns a plain result that is no object, as a text.
fn plain_text(plain: &Json) -> ToolResult {
    ToolResult::text(plain.as_str().map_or_else(|| plain.to_string(), str::to_owned))
}

/// Returns the JSON of a plain result.
fn said_by(document: &Map<String, Json>) -> String {
    let own = document.iter().filter(|(key, _)| !is_frame(key));
    Json::Object(own.map(|(key, value)| (key.clone(), value.clone())).collect()).to_string()
}

/// Returns whether a document has the form of MCP, which is also that of watsonx Orchestrate.
fn is_form_of(native: &Native) -> bool {
    [ToolSystem::MCP, ToolSystem::WXO].contains(native.system())
}

/// Returns whether a document says that it is an error.
fn is_marked(json: &str) -> bool {
    object(json).is_ok_and(|document| document.get("isError") == Some(&Json::Bool(true)))
}

fn content(content: Option<&Json>) -> ToolResult {
    match content {
        None | Some(Json::Null) => ToolResult::default(),
        Some(Json::Array(blocks)) => {
            let blocks = blocks.iter().enumerate().map(|(n, block)| read(block, format!("/content/{n}")));
            blocks.fold(ToolResult::default(), ToolResult::with_block)
        }
        Some(other) => ToolResult::default().with_block(read(other, "/content".into())),
    }
}

fn read(block: &Json, place: String) -> ContentBlock {
    let read = ContentBlock::from_value(&block.into());
    // Other values are carried without fields.
    if block.is_object() || block.is_string() { read.with_native_pointer(place) } else { read }
}

/// Returns a block in MCP's form. One without a type becomes a text.
fn block(block: &ContentBlock) -> Json {
    let mut fields = match block.kind() {
        BlockKind::Text(text) => json!({"type": "text", "text": text}),
        BlockKind::Image(image) => media("image", image),
        BlockKind::Audio(audio) => media("audio", audio),
        BlockKind::Link { uri, name } => {
            let name = name.as_ref().unwrap_or(uri);
            json!({"type": "resource_link", "uri": uri, "name": name})
        }
        BlockKind::Resource(resource) => {
            let texts = [
                ("uri", Some(&resource.uri)),
                ("mimeType", resource.mime_type.as_ref()),
                ("text", resource.text.as_ref()),
                ("blob", resource.blob.as_ref()),
            ];
            let texts = texts.into_iter().filter_map(|(key, text)| Some((key.to_owned(), json!(text?))));
            json!({"type": "resource", "resource": Map::from_iter(texts)})
        }
        _ => json!({}),
    };
    let rest = plain(block.raw());
    let is_typed = fields.get("type").is_some() || rest["type"].is_string();
    let Json::Object(rest) = rest else { return text_of(&rest) };
    if !is_typed {
        return text_of(&rest.into());
    }
    for (key, value) in rest {
        match (&mut fields[&key], value) {
            (Json::Object(known), Json::Object(more)) => known.extend(more),
            (field, value) => *field = value,
        }
    }
    fields
}

fn media(name: &str, media: &Media) -> Json {
    json!({"type": name, "data": media.data(), "mimeType": media.mime_type().unwrap_or("application/octet-stream")})
}

fn text_of(json: &Json) -> Json {
    json!({"type": "text", "text": json.to_string()})
}

/// Returns a value as plain JSON, if it has only what JSON has; otherwise as canonical JSON.
fn plain(value: &Value) -> Json {
    value.decode().unwrap_or_else(|_| value.to_json())
}
