//! Converts between documents and results.

use std::borrow::Cow;

use serde_json::Value as Json;

use super::{
    display::{ContentType, DisplayConfig},
    document::Document,
};
use crate::{
    Outcome, ToolError, ToolResult, Value,
    adapter::json::value,
    result::{ContentBlock, Display, DisplayContent, Native, ToolSystem},
    tool::PublicText,
};

/// The longest output that is also offered as structured data, in bytes: the data is a second copy of it on the wire.
const MAX_STRUCTURED: usize = 256 * 1024;

/// The deepest nesting of a value that becomes a part of a result. A deeper one stays in the native document alone.
const MAX_LEVELS: usize = 32;

/// What is shown in place of an output that is for the model alone.
const FOR_THE_MODEL: &str = "(this result is for the model alone)";

/// The fields of a display in toolbridge's form, which an unknown field must not repeat.
const DISPLAY_FIELDS: [&str; 3] = ["type", "text", "language"];

impl Document {
    /// Returns it as a result: the output for the model and the person, the display, and the document itself.
    ///
    /// An output of at most 256 KiB that is a JSON map or list is also the result's structured data. Whether the tool
    /// failed is not part of a result: [`to_outcome`](Self::to_outcome) keeps it.
    pub fn to_result(&self) -> ToolResult {
        let block = ContentBlock::text(self.output()).with_native_pointer("/output");
        let mut result = ToolResult::default().with_block(block);
        if let Some(display) = self.display() {
            result = result.with_display(shown(display, self.output()));
        }
        let result = result.with_native(Native::new(ToolSystem::AGENT_AIR, self.json()));
        let Some(structured) = structured(self.output()) else { return result };
        // The model reads the output alone, so the data must say the same. That of a repeated key, for example, does not.
        let with = result.clone().with_structured(structured);
        if with.for_model(usize::MAX).text == self.output() { with } else { result }
    }

    /// Returns it as the outcome of a tool, for a [`ToolSource`](crate::ToolSource).
    ///
    /// # Errors
    /// The beginning of a failed tool's output, at most 2 KiB, is the message of the error. Its code is `execution_error`, and
    /// its partial result is the whole result.
    pub fn to_outcome(&self) -> Outcome {
        let result = self.to_result();
        match self.is_error() {
            false => Ok(result.to_value()),
            true => Err(ToolError::of_result(&result, PublicText::words, ToolError::LOCAL_MESSAGE)),
        }
    }

    /// Writes a result, of whichever system, as a document.
    ///
    /// A result that has a document of agent-air is that document, byte for byte; if only the caller knows that the tool
    /// failed, `is_error` is set in it. Otherwise the output is what the model reads, at most
    /// [`ToolResult::MAX_TEXT`] bytes, and the display is what a person sees. A display whose text is not the output has
    /// it in its field `content`.
    pub fn of_result(result: &ToolResult, is_error: bool) -> Self {
        let native = result.native().filter(|native| *native.system() == ToolSystem::AGENT_AIR);
        if let Some(document) = native.and_then(|native| Self::read(native.json()).ok()) {
            return if is_error && !document.is_error() { document.with_error(true) } else { document };
        }
        let document = Self::new(result.for_model(ToolResult::MAX_TEXT).text).with_error(is_error);
        match display_of(result, document.output()) {
            Some(display) => document.with_display(display),
            None => document,
        }
    }
}

impl From<&Document> for ToolResult {
    fn from(document: &Document) -> Self {
        document.to_result()
    }
}

/// Returns the data in an output that is a map or a list.
fn structured(output: &str) -> Option<Value> {
    let is_container = output.trim_start().starts_with(['{', '[']);
    if !is_container || output.len() > MAX_STRUCTURED {
        return None;
    }
    let json = value(output).ok()?;
    (levels(&json) <= MAX_LEVELS).then(|| json.into())
}

/// Returns how deep a value is nested. It was parsed, so that it has at most some hundred levels.
fn levels(json: &Json) -> usize {
    match json {
        Json::Array(items) => 1 + items.iter().map(levels).max().unwrap_or_default(),
        Json::Object(fields) => 1 + fields.values().map(levels).max().unwrap_or_default(),
        _ => 0,
    }
}

fn shown(display: &DisplayConfig, output: &str) -> Display {
    let text = display.content().unwrap_or(output).into();
    let code = |language: &str, text| DisplayContent::Code { language: Some(language.into()), text };
    let content = match &display.content_type {
        ContentType::Markdown => DisplayContent::Markdown(text),
        ContentType::Json => DisplayContent::Json(text),
        ContentType::Code(language) if language.is_empty() => DisplayContent::Code { language: None, text },
        ContentType::Code(language) => code(language, text),
        ContentType::Yaml => code("yaml", text),
        ContentType::Xml => code("xml", text),
        ContentType::Auto if structured(&text).is_some() => DisplayContent::Json(text),
        ContentType::Text | ContentType::Auto | ContentType::Other(_) => DisplayContent::Text(text),
    };
    let mut shown = Display::new(content).with_collapsed(display.collapsed);
    if !display.title.is_empty() {
        shown = shown.with_title(display.title.as_str());
    }
    let more = display.fields().iter().filter(|(name, value)| {
        let is_shown = *name == "content" && value.is_string();
        !is_shown && !DISPLAY_FIELDS.contains(&name.as_str()) && levels(value) <= MAX_LEVELS
    });
    shown.with_raw(Json::Object(more.map(|(name, value)| (name.clone(), value.clone())).collect()).into())
}

/// Returns how a result of another system is shown; `None` if that is its output as plain text.
fn display_of(result: &ToolResult, output: &str) -> Option<DisplayConfig> {
    // The first form that a document can hold, otherwise the text for people.
    let known = result.display().iter().find(|it| form_of(it.content()).is_some()).map(Cow::Borrowed);
    let Some(shown) = known.or_else(|| result.for_display(&[])) else {
        // Without a display, the output would be shown.
        let hidden = || DisplayConfig::default().with_field("content", FOR_THE_MODEL);
        return (!result.hides_nothing()).then(hidden);
    };
    let (content_type, text) = form_of(shown.content())?;
    let title = shown.title().unwrap_or_default();
    if content_type == ContentType::Text && text == output && title.is_empty() && !shown.is_collapsed() {
        return None;
    }
    let display = DisplayConfig::new(title, content_type).with_collapsed(shown.is_collapsed());
    Some(if text == output { display } else { display.with_field("content", &*text) })
}

/// Returns the content type and the text of a display, if a document can hold it.
fn form_of(content: &DisplayContent) -> Option<(ContentType, Cow<'_, str>)> {
    Some(match content {
        DisplayContent::Text(text) => (ContentType::Text, (&**text).into()),
        DisplayContent::Markdown(text) => (ContentType::Markdown, (&**text).into()),
        DisplayContent::Json(text) => (ContentType::Json, (&**text).into()),
        DisplayContent::Code { language, text } => {
            (ContentType::Code(language.as_deref().unwrap_or_default().to_owned()), (&**text).into())
        }
        DisplayContent::Diff(diff) => (ContentType::Code("diff".to_owned()), diff.to_patch()?),
        DisplayContent::Terminal { output, .. } => (ContentType::Text, output.as_deref()?.into()),
        _ => return None,
    })
}
