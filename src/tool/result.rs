//! Holds the result of a tool in a form that keeps its meaning: what the model reads, what a person sees and
//! hears, and the document of the system that it comes from.
//!
//! It is built from parts and offers views; `wire.md`, section 3.3, defines its form on the wire. Nothing here reads
//! the document of any system: adapters do.

mod block;
mod diff;
mod display;
mod document;
mod fields;
mod json_equality;
mod native;
mod nested;
#[cfg(all(feature = "acp", unix))]
pub(crate) mod patch;
pub(crate) mod public;
#[cfg(feature = "runtime")]
pub(crate) mod public_text;
mod references;
pub mod render;
mod view;

use std::{borrow::Cow, fmt, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use block::{Audience, BlockKind, ContentBlock, EmbeddedResource, Media};
pub use display::{Diff, Display, DisplayContent, DisplayKind, Widget};
pub use native::{Cut, Native, ToolSystem};
pub use view::ModelView;

use super::ToolError;
use crate::value::{Limits, Value, floor_char, scan::measure, token::Token, write::Write};
use fields::{Map, pairs};
use nested::Nested;
use references::{Reader, Writer};
use view::{joined, json_of};

/// The key that marks a result in this form.
const MARK: &str = "bridge.result";

/// The version of the form that is written.
const VERSION: u64 = 1;

/// The deepest nesting that is written, counting the result's own map. A frame around it adds two.
const MAX_DEPTH: usize = Limits::MAX_DEPTH - 2;

/// The result of a tool that keeps its meaning (`wire.md`, section 3.3). `Debug` shows only sizes.
///
/// A tool may return one, and the caller reads it from the value that the call returns:
///
/// ```
/// use toolbridge::{result::{Audience, ContentBlock}, ToolError, ToolResult};
///
/// async fn account_balance() -> Result<ToolResult, ToolError> {
///     let result = ToolResult::default().with_structured(serde_json::json!({"cents": 123_456}));
///     Ok(result.with_block(ContentBlock::text("Your balance is 1,234.56 €.").with_audience(Audience::Person)))
/// }
///
/// # let answer = futures_util::FutureExt::now_or_never(account_balance()).unwrap().unwrap();
/// let written = toolbridge::Value::encode(&answer)?;
/// let result = ToolResult::of(&written);
/// assert_eq!(result.spoken().as_deref(), Some("Your balance is 1,234.56 €."));
/// assert!(!result.needs_model());
/// # Ok::<(), toolbridge::EncodeError>(())
/// ```
#[derive(Clone, Default, PartialEq)]
pub struct ToolResult {
    content: Vec<ContentBlock>,
    structured: Option<Value>,
    display: Vec<Display>,
    widget: Option<Widget>,
    native: Option<Native>,
    cut: Vec<Cut>,
    /// The value of a plain result, which is written as it was read.
    plain: Option<Value>,
}

impl ToolResult {
    /// The longest text for the model on the wire, in bytes.
    pub const MAX_TEXT: usize = 32 * 1024;

    /// The most blocks of content that are read and written. Of the others only [`cut`](Self::cut) says that they exist.
    pub const MAX_BLOCKS: usize = 1024;

    /// The most forms of display that are read and written.
    pub const MAX_DISPLAYS: usize = 64;

    /// Creates a result that is one text for the model and the person.
    pub fn text(text: impl Into<Arc<str>>) -> Self {
        Self::default().with_block(ContentBlock::text(text))
    }

    /// Reads a result from the value of a call. Reading never fails: parts that are not understood are left out, or
    /// kept as [`BlockKind::Other`].
    ///
    /// A plain value, without the mark of section 3.3, is [structured](Self::structured) data for the model, and
    /// nothing else. The exception is a map whose `content` is a list of blocks, the form in which MCP and watsonx
    /// Orchestrate write a result: its JSON is also the [native](Self::native) document.
    pub fn of(value: &Value) -> Self {
        let mark = value.is_map().then(|| value.get(MARK)).flatten();
        if mark.and_then(|mark| mark.as_integer::<u64>()).is_some_and(|version| version >= VERSION) {
            return Self::of_marked(value);
        }
        match value.is_map().then(|| value.get("content")).flatten() {
            Some(content) if is_list_of_blocks(&content) => Self::of_dictionary(value, &content),
            _ => Self::of_plain(value),
        }
    }

    /// Reads a result from a failure: its partial result, otherwise its message.
    pub fn of_error(error: &ToolError) -> Self {
        match error.partial() {
            Some(partial) => Self::of(partial),
            None => Self::text(error.message()),
        }
    }

    fn of_plain(value: &Value) -> Self {
        // A value that is not a map is sent in a map of its own.
        let mut pairs = pairs(value);
        let structured = match (pairs.next(), pairs.next()) {
            (Some((key, inner)), None) if key.as_str() == Some("value") => inner,
            _ => value.clone(),
        };
        Self { structured: Some(structured), plain: Some(value.clone()), ..Self::default() }
    }

    fn of_marked(value: &Value) -> Self {
        let native = value.get("native").and_then(|native| Native::read(&native));
        let texts = Reader::new(native.as_ref().map(Native::json));
        let list = |key| value.get(key).and_then(|list| list.elements()).into_iter().flatten();
        let mut result = Self {
            structured: value.get("structured").map(|it| texts.value(&it)),
            display: list("display").take(Self::MAX_DISPLAYS).map(|it| Display::read(&it, &texts)).collect(),
            widget: value.get("widget").and_then(|it| Widget::read(&it, &texts)),
            cut: list("cut").take(Self::MAX_BLOCKS).filter_map(|it| Cut::read(&it)).collect(),
            ..Self::default()
        };
        match value.get("content").and_then(|content| content.elements()) {
            Some(blocks) => {
                for block in blocks.take(Self::MAX_BLOCKS + 1) {
                    result.push(ContentBlock::read(&block, &texts));
                }
            }
            // Written by hand, for example: the text is all that there is.
            None => {
                let text = value.get("text");
                let text = text.as_ref().and_then(Value::as_str).map(ContentBlock::text);
                result.content.extend(text.filter(|_| result.structured.is_none()));
            }
        }
        drop(texts);
        result.native = native;
        result
    }

    /// Reads the form in which a program passes a result on that it has from MCP.
    fn of_dictionary(value: &Value, content: &Value) -> Self {
        let texts = Reader::new(None);
        let mut result = Self { structured: value.get("structuredContent"), ..Self::default() };
        for (n, block) in content.elements().into_iter().flatten().take(Self::MAX_BLOCKS + 1).enumerate() {
            let place = format!("/content/{n}");
            result.push(ContentBlock::read(&block, &texts).with_native_pointer(place));
        }
        result.native = Some(Native::new(ToolSystem::MCP, json_of(value)));
        result
    }

    /// Adds a block of content.
    #[must_use]
    pub fn with_block(mut self, block: ContentBlock) -> Self {
        self.plain = None;
        self.push(block);
        self
    }

    /// Adds a text for the model and the person.
    #[must_use]
    pub fn with_text(self, text: impl Into<Arc<str>>) -> Self {
        self.with_block(ContentBlock::text(text))
    }

    /// Adds a text for the person alone. It is shown and spoken exactly.
    #[must_use]
    pub fn with_person_text(self, text: impl Into<Arc<str>>) -> Self {
        self.with_block(ContentBlock::text(text).with_audience(Audience::Person))
    }

    /// Adds a text for the model alone. It is never sent to a client, shown or spoken.
    #[must_use]
    pub fn with_model_text(self, text: impl Into<Arc<str>>) -> Self {
        self.with_block(ContentBlock::text(text).with_audience(Audience::Model))
    }

    /// Sets the data for programs. The model reads it as JSON, unless a text says the same.
    #[must_use]
    pub fn with_structured(mut self, structured: impl Into<Value>) -> Self {
        self.plain = None;
        self.structured = Some(structured.into());
        self
    }

    /// Adds a form in which the result can be shown. The best form comes first.
    #[must_use]
    pub fn with_display(mut self, display: Display) -> Self {
        self.plain = None;
        match self.display.len() {
            Self::MAX_DISPLAYS.. => self.cut_once(Cut::new(Cut::DISPLAY, format!("/{}", Self::MAX_DISPLAYS))),
            _ => self.display.push(display),
        }
        self
    }

    /// Sets the widget.
    #[must_use]
    pub fn with_widget(mut self, widget: Widget) -> Self {
        self.plain = None;
        self.widget = Some(widget);
        self
    }

    /// Sets the document of the system that the result comes from.
    #[must_use]
    pub fn with_native(mut self, native: Native) -> Self {
        self.plain = None;
        self.native = Some(native);
        self
    }

    /// Removes the values at these JSON pointers from the native document, and names them in [`cut`](Self::cut). If one
    /// of them does not exist, or the document is not JSON, the whole document is removed.
    #[must_use]
    pub fn without_native(mut self, pointers: &[&str]) -> Self {
        if let Some(native) = self.native.take() {
            let (kept, cut) = native.cut(pointers, &[]);
            self.native = kept;
            self.cut.extend(cut);
            self.content = self.content.into_iter().map(ContentBlock::without_place).collect();
        }
        self
    }

    /// Returns what the model reads: the texts of all blocks that are not for the person alone, and the structured data
    /// as JSON unless one of these texts says the same. The text has at most `limit` bytes.
    ///
    /// The text is data from another program: give it to a model inside a structure that it cannot end, as
    /// [`chat::answer`](crate::chat::answer) does.
    pub fn for_model(&self, limit: usize) -> ModelView<'_> {
        ModelView::of(self, limit)
    }

    /// Returns what to show to a person: the first display of one of these kinds. If there is none, returns the text
    /// for the person alone, otherwise the text for both, otherwise the first image if images can be shown.
    ///
    /// The widget, if there is one, is shown as well. The text may hold control characters and markup: neutralize
    /// them for the screen.
    pub fn for_display(&self, kinds: &[DisplayKind]) -> Option<Cow<'_, Display>> {
        if let Some(display) = self.display.iter().find(|display| kinds.contains(&display.kind())) {
            return Some(Cow::Borrowed(display));
        }
        let is_for = |audience| move |block: &&ContentBlock| block.audience() == audience;
        for audience in [Audience::Person, Audience::Both] {
            if let Some(text) = self.texts(audience) {
                return Some(Cow::Owned(Display::new(DisplayContent::Text(text.into()))));
            }
            let image = self.content.iter().filter(is_for(audience)).find_map(|block| match block.kind() {
                BlockKind::Image(image) if kinds.contains(&DisplayKind::Image) => Some(image.clone()),
                _ => None,
            });
            if let Some(image) = image {
                return Some(Cow::Owned(Display::new(DisplayContent::Image(image))));
            }
        }
        None
    }

    /// Returns what to say exactly: the texts for the person alone, otherwise the widget's title.
    ///
    /// `None` means that nothing is to be said exactly: the model speaks, if it [is needed](Self::needs_model). If both
    /// are due, the model speaks first.
    pub fn spoken(&self) -> Option<Cow<'_, str>> {
        self.person_text().or_else(|| self.widget.as_ref()?.title().map(Cow::Borrowed))
    }

    /// Returns the texts for the person alone, joined by line breaks. They belong in the model's context as a message of
    /// the assistant, because the person has read or heard them.
    pub fn person_text(&self) -> Option<Cow<'_, str>> {
        self.texts(Audience::Person)
    }

    /// Returns whether the model has to run on this result: not if all its content is for the person alone, and not if
    /// it is only a widget.
    pub fn needs_model(&self) -> bool {
        match self.content.as_slice() {
            [] => self.widget.is_none(),
            blocks => blocks.iter().any(|block| block.audience() != Audience::Person),
        }
    }

    /// Returns whether it was read from a plain value, and has no parts.
    pub(crate) fn is_plain(&self) -> bool {
        self.plain.is_some()
    }

    /// Returns whether the result is a plain value: structured data without content, display or widget.
    pub fn is_plain_value(&self) -> bool {
        self.content.is_empty() && self.display.is_empty() && self.widget.is_none()
    }

    /// Returns the blocks of content.
    pub fn content(&self) -> &[ContentBlock] {
        &self.content
    }

    /// Returns the data for programs. Nil is a value, other than `None`.
    pub fn structured(&self) -> Option<&Value> {
        self.structured.as_ref()
    }

    /// Returns the forms in which it can be shown, best first.
    pub fn display(&self) -> &[Display] {
        &self.display
    }

    /// Returns the widget, if any.
    pub fn widget(&self) -> Option<&Widget> {
        self.widget.as_ref()
    }

    /// Returns the document of the system that it comes from, if any.
    pub fn native(&self) -> Option<&Native> {
        self.native.as_ref()
    }

    /// Returns what was cut out of it.
    pub fn cut(&self) -> &[Cut] {
        &self.cut
    }

    /// Returns the part that clients may see: without the blocks for the model alone, wherever they are, and without
    /// what else says the same. [`cut`](Self::cut) names what is missing.
    ///
    /// The structured data is cut whole if it holds such a text, or such a text is its JSON. The native document loses
    /// the blocks at their [places](ContentBlock::native_pointer) and all strings that hold such a text. It is cut whole
    /// if a place is not known, if the structured data is cut whole, or if it is not JSON. A text is held by a string
    /// that equals it, or contains it and it has at least 16 bytes. Displays and the widget are for people, and stay,
    /// other than such blocks inside them.
    #[must_use]
    pub fn for_clients(&self) -> Self {
        let is_hidden = |block: &ContentBlock| block.audience() == Audience::Model;
        let hidden: Vec<&ContentBlock> = self.content.iter().filter(|block| is_hidden(block)).collect();
        let mut kept = self.clone();
        let nested = Nested::remove(&mut kept);
        if hidden.is_empty() && nested.is_empty() {
            return kept;
        }
        let mut cut = self.cut.clone();
        let numbered = self.content.iter().enumerate().filter(|(_, block)| is_hidden(block));
        cut.extend(numbered.map(|(n, _)| Cut::new(Cut::CONTENT, format!("/{n}"))));
        cut.extend(nested.cut);
        let texts = hidden.iter().copied().chain(&nested.blocks);
        let texts: Vec<&str> = texts.flat_map(|block| block.texts()).collect();
        // What was too much to compare is taken for the same.
        let tells = |structured: &&Value| {
            json_equality::any_says(texts.iter().copied(), structured) != Some(false)
                || has_text(structured, &texts)
        };
        let structured_is_cut = kept.structured.as_ref().filter(tells).is_some();
        if structured_is_cut {
            cut.push(Cut::new(Cut::STRUCTURED, ""));
        }
        let places = hidden.iter().map(|block| block.native_pointer());
        let places: Option<Vec<&str>> = nested
            .places
            .as_ref()
            .and_then(|inner| places.chain(inner.iter().map(|place| Some(place.as_str()))).collect());
        let native = self.native.as_ref().and_then(|native| {
            let (kept, cuts) = match places.filter(|_| !structured_is_cut) {
                Some(places) => native.cut(&places, &texts),
                None => (None, vec![Cut::new(Cut::NATIVE, "")]),
            };
            cut.extend(cuts);
            kept
        });
        let content = kept.content.into_iter().filter(|block| !is_hidden(block));
        Self {
            content: content.map(ContentBlock::without_place).collect(),
            structured: kept.structured.filter(|_| !structured_is_cut),
            native,
            cut,
            plain: None,
            ..kept
        }
    }

    /// Returns the result with its texts alone, at most this many bytes of them, or `None` if it has no text. What is
    /// left out is named by [`cut`](Self::cut).
    pub(crate) fn texts_within(&self, limit: usize) -> Option<Self> {
        let mut left = limit;
        let (mut texts, mut cut) = (Self::default(), self.cut.clone());
        for (n, block) in self.content.iter().enumerate() {
            let BlockKind::Text(text) = block.kind() else {
                cut.push(Cut::new(Cut::CONTENT, format!("/{n}")));
                continue;
            };
            let kept = floor_char(text, left);
            if kept < text.len() {
                cut.push(Cut::new(Cut::CONTENT, format!("/{n}")));
            }
            if kept > 0 {
                left -= kept;
                texts = texts.with_block(ContentBlock::text(&text[..kept]).with_audience(block.audience()));
            }
        }
        if texts.content.is_empty() {
            return None;
        }
        cut.extend(self.whole_parts());
        cut.extend(self.native.as_ref().map(|_| Cut::new(Cut::NATIVE, "")));
        texts.cut = cut;
        Some(texts)
    }

    /// Returns the value that is sent as the call's result.
    pub fn to_value(&self) -> Value {
        if let Some(plain) = &self.plain {
            return plain.clone();
        }
        let value = self.written();
        let limits = Limits { bytes: usize::MAX, depth: MAX_DEPTH, ..Limits::default() };
        if measure(value.as_bytes(), &limits).is_ok() {
            return value;
        }
        // A part is nested too deep for a frame, or has too many values: what is left are texts, or the text of the data.
        let not_texts = self.content.iter().enumerate().filter(|(_, block)| block.as_text().is_none());
        let not_texts = not_texts.map(|(n, _)| Cut::new(Cut::CONTENT, format!("/{n}")));
        let texts = self
            .content
            .iter()
            .filter_map(|block| Some(ContentBlock::text(block.as_text()?).with_audience(block.audience())));
        let mut rest = Self { content: texts.collect(), native: self.native.clone(), ..Self::default() };
        rest.cut = self.cut.iter().cloned().chain(self.whole_parts()).chain(not_texts).collect();
        rest.cut.truncate(Self::MAX_BLOCKS);
        if let Some(structured) = self.structured.as_ref().filter(|_| rest.content.is_empty()) {
            let text = json_of(structured);
            rest.content.push(ContentBlock::text(&text[..floor_char(&text, Self::MAX_TEXT)]));
        }
        rest.written()
    }

    /// Names the parts that a result has besides its content and its native document, as cut whole.
    fn whole_parts(&self) -> impl Iterator<Item = Cut> + use<> {
        let parts = [
            (Cut::STRUCTURED, self.structured.is_some()),
            (Cut::DISPLAY, !self.display.is_empty()),
            (Cut::WIDGET, self.widget.is_some()),
        ];
        parts.into_iter().filter(|(_, is_there)| *is_there).map(|(part, _)| Cut::new(part, ""))
    }

    fn written(&self) -> Value {
        let texts = Writer::new(self.native.as_ref().map(Native::json));
        let mut map = Map::default();
        map.key(MARK).unsigned(VERSION);
        let text = match self.spoken().filter(|_| !self.needs_model()) {
            Some(text) => joined(&[text], Self::MAX_TEXT).0,
            None => self.for_model(Self::MAX_TEXT).text,
        };
        map.key("text").str(&text);
        if !self.content.is_empty() || self.structured.is_none() {
            list(map.key("content"), &self.content, |out, block| block.write(out, &texts));
        }
        if let Some(structured) = &self.structured {
            texts.value(map.key("structured"), structured);
        }
        if !self.display.is_empty() {
            list(map.key("display"), &self.display, |out, display| display.write(out, &texts));
        }
        if let Some(widget) = &self.widget {
            widget.write(map.key("widget"), &texts);
        }
        if let Some(native) = &self.native {
            native.write(map.key("native"));
        }
        if !self.cut.is_empty() {
            list(map.key("cut"), &self.cut, |out, cut| cut.write(out));
        }
        map.value()
    }

    fn push(&mut self, block: ContentBlock) {
        match self.content.len() {
            Self::MAX_BLOCKS.. => self.cut_once(Cut::new(Cut::CONTENT, format!("/{}", Self::MAX_BLOCKS))),
            _ => self.content.push(block),
        }
    }

    fn cut_once(&mut self, cut: Cut) {
        if !self.cut.contains(&cut) {
            self.cut.push(cut);
        }
    }

    /// Returns the text blocks with this audience, joined by line breaks.
    fn texts(&self, audience: Audience) -> Option<Cow<'_, str>> {
        let blocks = self.content.iter().filter(|block| block.audience() == audience);
        let texts: Vec<Cow<'_, str>> =
            blocks.filter_map(|block| block.as_text().map(Cow::Borrowed)).collect();
        (!texts.is_empty()).then(|| joined(&texts, usize::MAX).0)
    }
}

fn list<T>(out: &mut Vec<u8>, items: &[T], mut write: impl FnMut(&mut Vec<u8>, &T)) {
    out.array(items.len());
    for item in items {
        write(out, item);
    }
}

/// Returns whether it is a list of texts and of maps with a `type`, at least one of which is such a map.
fn is_list_of_blocks(content: &Value) -> bool {
    let Some(items) = content.elements() else { return false };
    let mut has_type = false;
    for item in items {
        let is_typed = item.get("type").is_some_and(|name| name.as_str().is_some());
        if !is_typed && item.as_str().is_none() {
            return false;
        }
        has_type |= is_typed;
    }
    has_type
}

/// Returns whether a string inside the value, or a key, holds one of the texts. What is too large counts as if it did.
fn has_text(value: &Value, texts: &[&str]) -> bool {
    if texts.len().saturating_mul(value.as_bytes().len()) > native::MAX_SEARCH {
        return true;
    }
    let mut at = 0;
    while let Ok((token, next)) = Token::read(value.as_bytes(), at) {
        if token.as_text().is_some_and(|text| texts.iter().any(|it| native::holds(text, it))) {
            return true;
        }
        at = next;
    }
    false
}

/// Shows a text in `Debug` output by its size.
fn sized(text: &str) -> impl fmt::Debug + use<> {
    struct Bytes(usize);
    impl fmt::Debug for Bytes {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "{} B", self.0)
        }
    }
    Bytes(text.len())
}

impl From<ToolResult> for Value {
    fn from(result: ToolResult) -> Self {
        result.to_value()
    }
}

impl From<&ToolResult> for Value {
    fn from(result: &ToolResult) -> Self {
        result.to_value()
    }
}

impl Serialize for ToolResult {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_value().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ToolResult {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(|value| Self::of(&value))
    }
}

impl fmt::Debug for ToolResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolResult")
            .field("content", &self.content)
            .field("structured", &self.structured)
            .field("display", &self.display)
            .field("widget", &self.widget)
            .field("native", &self.native)
            .field("cut", &self.cut)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::{prelude::*, test_runner::RngSeed};
    use serde_json::{Value as Json, json};

    use super::*;

    fn read(json: Json) -> ToolResult {
        ToolResult::of(&json.into())
    }

    /// Sends a result as a frame would.
    fn sent(result: &ToolResult) -> (Json, ToolResult) {
        let value = Value::from_bytes(result.to_value().into_bytes()).unwrap();
        (value.to_json(), ToolResult::of(&value))
    }

    fn mcp(json: &Json, audiences: &[Audience]) -> ToolResult {
        let mut result = ToolResult::default().with_native(Native::new(ToolSystem::MCP, json.to_string()));
        for (n, block) in json["content"].as_array().unwrap().iter().enumerate() {
            let block = ContentBlock::from_value(&block.into()).with_native_pointer(format!("/content/{n}"));
            result = result.with_block(match audiences.get(n) {
                Some(audience) => block.with_audience(*audience),
                None => block,
            });
        }
        match json.get("structuredContent") {
            Some(structured) => result.with_structured(structured),
            None => result,
        }
    }

    #[test]
    fn plain_value_is_structured_data_for_the_model() {
        for (json, text) in [
            (json!({"level": 0.8, "content": ["a", 5]}), r#"{"level":0.8,"content":["a",5]}"#),
            (json!({"content": ["a", "b"]}), r#"{"content":["a","b"]}"#),
            (json!({"content": []}), r#"{"content":[]}"#),
            (json!({"value": "hello"}), "hello"),
            (json!({"value": 5}), "5"),
            (json!({"bridge.result": "1", "text": "a"}), r#"{"bridge.result":"1","text":"a"}"#),
            (json!({"bridge.result": 0}), r#"{"bridge.result":0}"#),
            (json!({}), "{}"),
            (json!("hello"), "hello"),
            (json!(null), "null"),
        ] {
            let result = read(json.clone());
            assert_eq!(result.for_model(100).text, text);
            assert!(result.needs_model() && result.spoken().is_none() && result.native().is_none());
            assert_eq!(result.for_display(&[DisplayKind::Text, DisplayKind::Image]), None);
            assert_eq!(result.to_value(), Value::from(json), "written as it was read");
            assert_eq!(result.for_clients(), result);
        }
        let changed = read(json!({"level": 0.8})).with_text("80 %");
        assert_eq!(sent(&changed).1.for_model(100).text, "80 %\n{\"level\":0.8}");
    }

    #[test]
    fn form_on_the_wire_has_each_payload_once() {
        let image = "A".repeat(2000);
        let document = json!({
            "content": [
                {"type": "image", "data": image, "mimeType": "image/png"},
                {"type": "text", "text": "short"},
            ],
            "structuredContent": {"copy": image},
            "_meta": {"x": 1e300},
        });
        let display = Display::new(DisplayContent::Image(Media::new(image.as_str(), "image/png")));
        let widget = Widget::new(json!({"at": "home", "note": image})).with_title("A form");
        let result = mcp(&document, &[]).with_display(display).with_widget(widget);
        let (wire, read) = sent(&result);
        assert_eq!(read, result);
        let reference = json!({"at": "/content/0/data"});
        let text = format!("[image: image/png, 1500 bytes]\nshort\n{}", json!({ "copy": image }));
        let expected = json!({
            "bridge.result": 1,
            "text": text,
            "content": [
                {"type": "image", "data": reference, "mimeType": "image/png", "bridge.at": "/content/0"},
                {"type": "text", "text": "short", "bridge.at": "/content/1"},
            ],
            "structured": {"copy": reference},
            "display": [{"type": "image", "data": reference, "mimeType": "image/png"}],
            "widget": {"title": "A form", "value": {"at": "home", "note": reference}},
            "native": {"system": "mcp", "json": document.to_string()},
        });
        assert_eq!(wire, expected);
    }

    #[test]
    fn image_stands_once_on_the_wire() {
        let bytes: Vec<u8> = (0..1 << 20).map(|n| (n * 7 % 251) as u8).collect();
        let image = Media::encode(&bytes, "image/png");
        let document = json!({"content": [{"type": "image", "data": image.data(), "mimeType": "image/png"}]});
        let result = mcp(&document, &[]);
        let (size, original) = (result.to_value().as_bytes().len(), document.to_string().len());
        assert!(size * 100 <= original * 102, "{size} bytes for a document of {original}");
        assert_eq!(sent(&result).1.for_model(100).images[0].decode(1 << 20).unwrap(), bytes);
    }

    #[test]
    fn text_is_cut_at_a_character_and_says_so() {
        let result = ToolResult::text("é".repeat(40_000)).with_text("the end");
        let view = result.for_model(ToolResult::MAX_TEXT);
        let notice = "\n[cut: 32730 of 80008 bytes are shown]";
        assert!(view.text.ends_with(notice), "{}", &view.text[view.text.len() - 50..]);
        assert_eq!((view.text.len(), view.cut), (32_730 + notice.len(), 80_008 - 32_730));
        assert!(view.text.len() <= ToolResult::MAX_TEXT);
        assert_eq!(sent(&result).0["text"], *view.text);
        assert_eq!(sent(&result).1, result);
        for limit in 0..100 {
            let view = result.for_model(limit);
            assert!(view.text.len() <= limit && view.cut <= 80_008, "{limit}");
        }
        let several = ToolResult::text("12345").with_text("6").with_text("7890");
        assert_eq!(several.for_model(12).text, "12345\n6\n7890");
        assert_eq!(several.for_model(11).cut, 12);
        assert_eq!(ToolResult::default().with_person_text("a").for_model(0).text, "");
    }

    #[test]
    fn model_reads_structured_data_unless_a_text_says_the_same() {
        let data = json!({"a": [1, 2], "b": "x"});
        let pretty = serde_json::to_string_pretty(&data).unwrap();
        let said = ToolResult::text(pretty.as_str()).with_structured(&data);
        assert_eq!(said.for_model(1000).text, pretty);
        let summary = ToolResult::text("two numbers").with_structured(&data);
        assert_eq!(summary.for_model(1000).text, "two numbers\n{\"a\":[1,2],\"b\":\"x\"}");
        // The model does not read what is for the person alone.
        let for_person = ToolResult::default().with_person_text(pretty.as_str()).with_structured(&data);
        assert_eq!(for_person.for_model(1000).text, data.to_string());
        assert!(!for_person.needs_model());
    }

    #[test]
    fn model_reads_a_list_once_that_texts_or_one_text_say() {
        let list = json!(["a", 1, {"b": [2]}]);
        for structured in [json!({ "result": list }), list.clone()] {
            let each = ["a", "1", "{\n  \"b\": [2]\n}"];
            let each = each.into_iter().fold(ToolResult::default(), ToolResult::with_text);
            let each = each.with_structured(&structured);
            assert_eq!(each.for_model(100).text, "a\n1\n{\n  \"b\": [2]\n}");
            let whole = ToolResult::text(list.to_string()).with_structured(&structured);
            assert_eq!(whole.for_model(100).text, list.to_string());
            let other = ["a", "2"].into_iter().fold(ToolResult::default(), ToolResult::with_text);
            assert!(other.with_structured(&structured).for_model(100).text.contains("[2]"));
        }
        let only = ToolResult::text("a").with_structured(json!({"result": ["a"]}));
        assert_eq!(only.for_model(100).text, "a");
        let none = ToolResult::default().with_structured(json!({"result": []}));
        assert_eq!(none.for_model(100).text, r#"{"result":[]}"#);
    }

    #[test]
    fn null_is_structured_data_and_absence_is_not() {
        let null = ToolResult::default().with_structured(Value::nil());
        assert_eq!(sent(&null).1.structured(), Some(&Value::nil()));
        assert_eq!(null.for_model(100).text, "null");
        assert_eq!(sent(&null.with_text("done")).1.for_model(100).text, "done");
        assert_eq!(sent(&ToolResult::text("done")).1.structured(), None);
    }

    /// W5 and W9.
    #[test]
    fn text_for_the_person_alone_is_exact_and_needs_no_model() {
        let exact = "  1,234.56 €\t*exactly*\r\n";
        let result = ToolResult::default().with_person_text(exact);
        let with_widget = result.clone().with_widget(Widget::new(json!({})).with_title("A form"));
        for result in [result.clone(), sent(&result).1, with_widget] {
            assert_eq!(result.spoken().as_deref(), Some(exact));
            assert_eq!(result.person_text().as_deref(), Some(exact));
            let shown = result.for_display(&[]).unwrap();
            assert_eq!(shown.content(), &DisplayContent::Text(exact.into()));
            assert!(!result.needs_model());
            assert_eq!(result.for_model(100).text, "");
            assert_eq!(result.for_clients(), result);
        }
        // A plain reader knows only `text`.
        assert_eq!(sent(&result).0["text"], exact);
        assert_eq!(sent(&result.with_structured(json!({"cents": 123_456}))).0["text"], exact);
    }

    /// W6.
    #[test]
    fn text_for_the_model_alone_reaches_no_person() {
        let result = ToolResult::default().with_model_text("the secret");
        let (_, result) = sent(&result);
        assert_eq!(result.for_model(100).text, "the secret");
        assert!(result.needs_model() && result.spoken().is_none());
        assert_eq!(result.for_display(&[DisplayKind::Text]), None);
        let (wire, for_clients) = sent(&result.for_clients());
        assert!(!wire.to_string().contains("secret"), "{wire}");
        assert_eq!(for_clients.cut(), [Cut::new(Cut::CONTENT, "/0")]);
    }

    /// W7 and W8.
    #[test]
    fn mixed_result_is_spoken_exactly_after_the_model() {
        let dry = ContentBlock::text("dry").with_audience(Audience::Both);
        let both = ToolResult::text("21 °C").with_block(dry);
        assert!(both.needs_model() && both.spoken().is_none());
        assert_eq!(both.for_model(100).text, "21 °C\ndry");
        let hybrid = ToolResult::default().with_model_text("say hello");
        let hybrid = hybrid.with_person_text("Order 66").with_person_text("is on its way");
        assert!(hybrid.needs_model());
        assert_eq!(hybrid.spoken().as_deref(), Some("Order 66\nis on its way"));
        assert_eq!(hybrid.for_model(100).text, "say hello");
    }

    #[test]
    fn widget_alone_needs_no_model_and_its_title_is_spoken() {
        let widget = Widget::new(json!({"fields": []})).with_title("Which card?");
        let (_, widget) = sent(&ToolResult::default().with_widget(widget));
        assert_eq!((widget.needs_model(), widget.spoken().as_deref()), (false, Some("Which card?")));
        assert!(widget.clone().with_text("choose one").needs_model());
        assert!(ToolResult::default().needs_model());
        assert_eq!(widget.widget().unwrap().value().to_json(), json!({"fields": []}));
    }

    #[test]
    fn first_display_of_a_known_kind_is_shown() {
        let diff = Diff { path: "/a".into(), ..Diff::default() };
        let result = ToolResult::text("long text")
            .with_display(Display::new(DisplayContent::Diff(diff)))
            .with_display(Display::new(DisplayContent::Markdown("# a".into())));
        let kind = |kinds: &[DisplayKind]| result.for_display(kinds).unwrap().kind();
        assert_eq!(kind(&[DisplayKind::Markdown, DisplayKind::Diff]), DisplayKind::Diff);
        assert_eq!(kind(&[DisplayKind::Markdown]), DisplayKind::Markdown);
        assert_eq!(kind(&[DisplayKind::Image]), DisplayKind::Text);
        let image = ContentBlock::image(Media::new("AA==", "image/png"));
        let image = ToolResult::default().with_block(image);
        assert_eq!(image.for_display(&[DisplayKind::Image]).unwrap().kind(), DisplayKind::Image);
        assert_eq!(image.for_display(&[DisplayKind::Text]), None);
    }

    #[test]
    fn model_reads_media_as_lines() {
        let result = mcp(
            &json!({"content": [
                {"type": "image", "data": "AAAA", "mimeType": "image/png"},
                {"type": "audio", "data": "?broken?"},
                {"type": "resource_link", "uri": "a:b", "name": "n"},
                {"type": "resource_link", "uri": "a:b"},
                {"type": "resource", "resource": {"uri": "a:b", "text": "in it"}},
                {"type": "resource", "resource": {"uri": "a:b", "blob": "AA=="}},
                {"type": "hologram", "text": "as text"},
                {"type": "hologram"},
                {"key": 5},
                5,
            ]}),
            &[],
        );
        let expected = [
            "[image: image/png, 3 bytes]",
            "[audio: unknown type, 6 bytes]",
            "[link: n, a:b]",
            "[link: a:b]",
            "in it",
            "[resource: a:b]",
            "as text",
            "[content of the unknown type \"hologram\"]",
            "{\"key\":5}",
            "5",
        ];
        let view = result.for_model(1000);
        assert_eq!(view.text.lines().collect::<Vec<_>>(), expected);
        assert_eq!(view.images.len(), 1);
    }

    #[test]
    fn hidden_blocks_are_cut_from_every_part() {
        let hidden = "the hidden text";
        let document = json!({
            "content": [{"type": "text", "text": "for all"}, {"type": "text", "text": hidden}],
            "structuredContent": {"a": 5},
            "_meta": {"copy": hidden, "kept": [1]},
        });
        let result = mcp(&document, &[Audience::Both, Audience::Model]);
        let clients = sent(&result.for_clients()).1;
        assert_eq!(
            clients.native().unwrap().json(),
            r#"{"content":[{"type":"text","text":"for all"}],"structuredContent":{"a":5},"_meta":{"kept":[1]}}"#
        );
        let cut = |part, pointer: &str| Cut::new(part, pointer);
        let cuts = [cut(Cut::CONTENT, "/1"), cut(Cut::NATIVE, "/content/1"), cut(Cut::NATIVE, "/_meta/copy")];
        assert_eq!(clients.cut(), cuts);
        assert_eq!(clients.structured().unwrap().to_json(), json!({"a": 5}));
        assert_eq!(clients.for_clients(), clients);

        // Structured data that says the same goes as well, and the document with it.
        for structured in [json!(hidden), json!([{"the hidden text": 1}]), json!({"a": [{"b": hidden}]})] {
            let clients = result.clone().with_structured(structured).for_clients();
            assert_eq!((clients.structured(), clients.native()), (None, None));
            assert_eq!(clients.cut()[1..], [cut(Cut::STRUCTURED, ""), cut(Cut::NATIVE, "")]);
        }
        let text = json!({"content": [{"type": "text", "text": "{ \"a\" : 5 }"}]});
        let as_json = mcp(&text, &[Audience::Model]).with_structured(json!({"a": 5}));
        assert_eq!(as_json.for_clients().structured(), None);
        // So does the document if a block's place in it is not known.
        let elsewhere = result.with_model_text("from elsewhere").for_clients();
        assert_eq!(elsewhere.native(), None);
    }

    #[test]
    fn keys_are_cut_from_the_native_document_by_pointer() {
        let document = json!({"content": [{"type": "text", "text": "a"}], "token": "secret"});
        let result = mcp(&document, &[]).without_native(&["/token"]);
        assert_eq!(result.native().unwrap().json(), r#"{"content":[{"type":"text","text":"a"}]}"#);
        assert_eq!(sent(&result).1.cut(), [Cut::new(Cut::NATIVE, "/token")]);
        assert_eq!(result.without_native(&["/nowhere"]).native(), None);
    }

    /// W1, W2 and W4.
    #[test]
    fn map_with_a_list_of_blocks_is_read_in_the_dictionary_form() {
        let second = json!({"type": "text", "text": "second", "annotations": {"audience": ["user"]}});
        let json = json!({
            "content": ["first", second],
            "structuredContent": null,
            "_meta": {"x": 1},
            "context_updates": {"y": 2},
        });
        let result = read(json.clone());
        assert_eq!(result.for_model(100).text, "first");
        assert_eq!(result.spoken().as_deref(), Some("second"));
        assert_eq!(result.structured(), Some(&Value::nil()));
        assert_eq!(result.native().unwrap().json(), json.to_string());
        assert_eq!(sent(&result).1, result);
    }

    #[test]
    fn bad_parts_are_left_out_and_the_rest_is_read() {
        let unknown = "[content of the unknown type \"text\"]";
        let text_at = json!([{"type": "text", "text": {"at": "/a"}}]);
        for (json, text) in [
            (json!({"content": {"type": "text"}, "text": "by hand"}), "by hand"),
            (json!({"text": "by hand"}), "by hand"),
            (json!({"text": {"at": "/a"}, "native": {"system": "mcp", "json": "{\"a\":\"x\"}"}}), ""),
            (json!({"text": 5, "structured": 5}), "5"),
            (json!({"content": null, "display": 5, "widget": [], "native": "mcp", "cut": [{}, 5]}), ""),
            (json!({"content": ["a"], "native": {"system": 5, "json": "{}"}}), "a"),
            (json!({"content": text_at, "native": {"system": "mcp", "json": "{"}}), unknown),
            (
                json!({"content": text_at, "native": {"system": "mcp", "json": "{\"a\":{\"at\":\"/a\"}}"}}),
                unknown,
            ),
            (json!({"content": [{"type": "image", "data": "?"}]}), "[image: unknown type, 0 bytes]"),
        ] {
            let mut json = json;
            json["bridge.result"] = 1.into();
            let result = read(json.clone());
            assert_eq!(result.for_model(100).text, text, "{json}");
            assert_eq!(sent(&result).1, result, "{json}");
            let shown = result.for_display(&[DisplayKind::Image]);
            let _ = (shown, result.spoken(), sent(&result.for_clients()));
        }
        // A newer version is read as far as it is understood.
        assert_eq!(read(json!({"bridge.result": 2, "text": "newer"})).for_model(100).text, "newer");
    }

    #[test]
    fn counts_are_bounded() {
        let blocks = vec![json!({"type": "text", "text": "a"}); ToolResult::MAX_BLOCKS + 5];
        for json in [json!({"content": blocks}), json!({"bridge.result": 1, "content": blocks})] {
            let result = read(json);
            assert_eq!(result.content().len(), ToolResult::MAX_BLOCKS);
            assert_eq!(result.cut(), [Cut::new(Cut::CONTENT, "/1024")]);
        }
        let display = || Display::new(DisplayContent::Text("a".into()));
        let displays = (0..100).fold(ToolResult::text("a"), |result, _| result.with_display(display()));
        assert_eq!((displays.display().len(), displays.cut()), (64, &[Cut::new(Cut::DISPLAY, "/64")][..]));
    }

    #[test]
    fn part_that_is_nested_too_deep_is_left_out() {
        let deep = (0..62).fold(json!(1), |inner, _| json!([inner]));
        let native = Native::new(ToolSystem::MCP, deep.to_string());
        let result = ToolResult::text("a").with_structured(&deep).with_native(native.clone());
        let value = result.to_value();
        assert!(measure(value.as_bytes(), &Limits { depth: MAX_DEPTH, ..Limits::default() }).is_ok());
        let read = ToolResult::of(&value);
        assert_eq!((read.structured(), read.native()), (None, Some(&native)));
        assert_eq!((&*read.for_model(100).text, read.cut()), ("a", &[Cut::new(Cut::STRUCTURED, "")][..]));
        let alone = ToolResult::of(&ToolResult::default().with_structured(&deep).to_value());
        assert_eq!(alone.for_model(1_000).text, deep.to_string(), "the data is said as a text");
        let fits = (0..61).fold(json!(1), |inner, _| json!([inner]));
        assert!(
            ToolResult::of(&ToolResult::text("a").with_structured(fits).to_value()).structured().is_some()
        );
    }

    #[test]
    fn failure_has_its_partial_result_or_its_message() {
        let error = ToolError::new("no_such_room", "there is no such room");
        assert_eq!(ToolResult::of_error(&error).for_model(100).text, "there is no such room");
        let partial = ToolResult::default().with_person_text("half of it");
        let error = error.with_partial(partial.to_value());
        assert_eq!(ToolResult::of_error(&error), partial);
    }

    #[test]
    fn debug_output_hides_the_result() {
        let result = mcp(&json!({"content": ["secret"], "structuredContent": {"a": "secret"}}), &[]);
        let shown = format!("{result:?} {:?}", result.for_model(100));
        assert!(shown.contains("6 B") && !shown.contains("secret"), "{shown}");
    }

    /// A JSON document, of which some texts are long and some objects look like references.
    fn any_document() -> impl Strategy<Value = Json> {
        let leaf = prop_oneof![
            Just(Json::Null),
            any::<bool>().prop_map(Json::from),
            any::<i64>().prop_map(Json::from),
            any::<f64>().prop_map(Json::from),
            ".{0,20}".prop_map(Json::from),
            (0..3_u8).prop_map(|n| format!("\"{n}é").repeat(400).into()),
            Just(Json::from("/content/0/text")),
        ];
        leaf.prop_recursive(4, 48, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Json::from),
                prop::collection::btree_map("at|text|data|type|[a-c~/]{0,2}", inner.clone(), 0..6)
                    .prop_map(|map| Json::Object(map.into_iter().collect())),
                inner.prop_map(|inner| json!({ "at": inner })),
            ]
        })
    }

    fn any_block() -> impl Strategy<Value = Json> {
        let audiences =
            vec![json!(null), json!(["user"]), json!(["assistant"]), json!(["user", "assistant"])];
        let kinds = vec!["text", "image", "audio", "resource_link", "resource", "hologram"];
        let parts = (prop::sample::select(kinds), prop::sample::select(audiences));
        (parts, any_document(), any_document()).prop_map(|((kind, audience), one, two)| {
            json!({
                "type": kind,
                "text": one,
                "data": one,
                "uri": two,
                "resource": {"uri": two, "text": one, "x": one},
                "annotations": {"audience": audience},
                "_meta": two,
            })
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1000, rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..ProptestConfig::default() })]

        /// X9.
        #[test]
        fn result_survives_the_wire_and_its_document_byte_for_byte(
            content in prop::collection::vec(any_block(), 0..5),
            structured in any_document(),
            meta in any_document(),
            pretty in any::<bool>(),
        ) {
            let document = json!({"content": content, "structuredContent": structured, "_meta": meta});
            let text = if pretty { serde_json::to_string_pretty(&document) } else { serde_json::to_string(&document) };
            let text = text.unwrap();
            let display = Display::read(&Value::from(&meta), &Reader::new(None));
            let result = mcp(&document, &[])
                .with_native(Native::new(ToolSystem::MCP, text.as_str()))
                .with_display(display)
                .with_widget(Widget::new(&meta));
            let (_, read) = sent(&result);
            prop_assert_eq!(read.native().unwrap().json(), &text);
            prop_assert_eq!(&read, &result);
            prop_assert_eq!(read.structured().unwrap(), &Value::from(&structured));
            prop_assert_eq!(&ToolResult::of(&Value::encode(&result).unwrap()), &result);
        }

        #[test]
        fn client_gets_no_text_for_the_model_alone(
            blocks in prop::collection::vec((any_block(), any::<bool>(), 0_usize..40), 1..5),
            meta in any_document(),
            place in 0_usize..4,
        ) {
            let hidden = |n: usize, length: usize| format!("hidden{n}-{}", "x".repeat(length));
            let content: Vec<Json> = blocks.iter().enumerate().map(|(n, (block, is_hidden, length))| {
                let annotations = json!({"audience": ["assistant"]});
                if *is_hidden { json!({"type": "text", "text": hidden(n, *length), "annotations": annotations}) } else { block.clone() }
            }).collect();
            let mut document = json!({"content": content, "structuredContent": {"a": 1}, "_meta": meta});
            // The first hidden text stands once more, alone or inside another text.
            if let Some((n, (_, _, length))) = blocks.iter().enumerate().find(|(_, (_, is_hidden, _))| *is_hidden) {
                let text = hidden(n, *length);
                match place {
                    0 => document["_meta"] = json!([[text]]),
                    1 => document["structuredContent"]["b"] = text.into(),
                    2 if *length > 16 => document["_meta"] = format!("It says {text}.").into(),
                    _ => {}
                }
            }
            let (wire, clients) = sent(&mcp(&document, &[]).for_clients());
            prop_assert!(!wire.to_string().contains("hidden"), "{}", wire);
            prop_assert!(clients.content().iter().all(|block| block.audience() != Audience::Model));
            if let Some(native) = clients.native() {
                prop_assert!(serde_json::from_str::<Json>(native.json()).is_ok());
            }
        }

        #[test]
        fn any_value_is_read_without_failure(json in any_document(), is_marked in any::<bool>()) {
            let mut json = json!({
                "content": [json, {"type": "text", "text": json}],
                "structured": json,
                "display": [json],
                "widget": json,
                "native": {"system": "mcp", "json": json.to_string()},
                "cut": json,
                "text": json,
            });
            if is_marked {
                json["bridge.result"] = 1.into();
            }
            let result = read(json);
            prop_assert_eq!(&sent(&result).1, &result);
            let _ = (result.for_model(50), result.spoken(), result.for_display(&[]), sent(&result.for_clients()));
        }
    }
}
