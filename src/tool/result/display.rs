//! Defines what a result shows to people: forms of display, and a widget.

use std::{fmt, sync::Arc};

use super::{
    block::Media,
    fields::{Fields, Map},
    references::{Reader, Writer},
    sized,
};
use crate::value::{Value, write::Write};

/// One form in which a result can be shown (`wire.md`, section 3.3). `Debug` shows only sizes.
///
/// ```
/// use toolbridge::result::{Display, DisplayContent};
///
/// let code = DisplayContent::Code { language: Some("rust".into()), text: "fn main() {}".into() };
/// let display = Display::new(code).with_title("src/main.rs").with_collapsed(true);
/// assert_eq!(display.title(), Some("src/main.rs"));
/// ```
#[derive(Clone, PartialEq)]
pub struct Display {
    content: DisplayContent,
    title: Option<Arc<str>>,
    is_collapsed: bool,
    raw: Value,
}

/// What is shown. `Debug` shows only sizes.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub enum DisplayContent {
    /// A plain text.
    Text(Arc<str>),
    /// A text in Markdown.
    Markdown(Arc<str>),
    /// A JSON text.
    Json(Arc<str>),
    /// Source code.
    Code {
        /// Its language, if it is known.
        language: Option<Arc<str>>,
        /// The code.
        text: Arc<str>,
    },
    /// A change of a file: a unified diff, the two texts, or both.
    Diff(Diff),
    /// An image.
    Image(Media),
    /// A terminal.
    Terminal {
        /// Its id in the system that the result comes from.
        id: Arc<str>,
        /// What its command has written, if it is known.
        output: Option<Arc<str>>,
        /// The command's exit code, if it has ended.
        exit_code: Option<i32>,
    },
    /// Something else. [`Display::raw`] holds all of it.
    Other,
}

/// A change of a file. `Debug` shows only sizes.
#[derive(Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Diff {
    /// The file's path.
    pub path: Arc<str>,
    /// The change as a unified diff, if the source gave it.
    pub patch: Option<Arc<str>>,
    /// The text before the change. `None` for a new file, and if only the patch is known.
    pub old_text: Option<Arc<str>>,
    /// The text after the change, if the source gave it.
    pub new_text: Option<Arc<str>>,
}

/// The forms that a program may be able to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DisplayKind {
    /// [`DisplayContent::Text`].
    Text,
    /// [`DisplayContent::Markdown`].
    Markdown,
    /// [`DisplayContent::Json`].
    Json,
    /// [`DisplayContent::Code`].
    Code,
    /// [`DisplayContent::Diff`].
    Diff,
    /// [`DisplayContent::Image`].
    Image,
    /// [`DisplayContent::Terminal`].
    Terminal,
    /// [`DisplayContent::Other`].
    Other,
}

/// An interactive element, such as a form, in the form of the system that it comes from. `Debug` shows only sizes.
#[derive(Clone, PartialEq)]
pub struct Widget {
    title: Option<Arc<str>>,
    value: Value,
}

impl Display {
    /// Creates a display without a title that is not collapsed.
    pub fn new(content: DisplayContent) -> Self {
        Self { content, title: None, is_collapsed: false, raw: Value::empty() }
    }

    /// Sets the title.
    #[must_use]
    pub fn with_title(mut self, title: impl Into<Arc<str>>) -> Self {
        self.title = Some(title.into());
        self
    }

    /// Sets whether it is shown collapsed at first.
    #[must_use]
    pub fn with_collapsed(mut self, is_collapsed: bool) -> Self {
        self.is_collapsed = is_collapsed;
        self
    }

    /// Sets a map of fields that the display does not have itself, to be kept.
    #[must_use]
    pub fn with_raw(mut self, raw: Value) -> Self {
        self.raw = raw;
        self
    }

    /// Returns what is shown.
    pub fn content(&self) -> &DisplayContent {
        &self.content
    }

    /// Returns the form in which it is shown.
    pub fn kind(&self) -> DisplayKind {
        match self.content {
            DisplayContent::Text(_) => DisplayKind::Text,
            DisplayContent::Markdown(_) => DisplayKind::Markdown,
            DisplayContent::Json(_) => DisplayKind::Json,
            DisplayContent::Code { .. } => DisplayKind::Code,
            DisplayContent::Diff(_) => DisplayKind::Diff,
            DisplayContent::Image(_) => DisplayKind::Image,
            DisplayContent::Terminal { .. } => DisplayKind::Terminal,
            DisplayContent::Other => DisplayKind::Other,
        }
    }

    /// Returns the title, if any.
    pub fn title(&self) -> Option<&str> {
        self.title.as_deref()
    }

    /// Returns whether it is shown collapsed at first.
    pub fn is_collapsed(&self) -> bool {
        self.is_collapsed
    }

    /// Returns the fields that are not understood, as a map. Of a display that is not a map, returns the value itself.
    pub fn raw(&self) -> &Value {
        &self.raw
    }

    pub(super) fn read(display: &Value, texts: &Reader<'_>) -> Self {
        if !display.is_map() {
            return Self::new(DisplayContent::Other).with_raw(display.clone());
        }
        let mut fields = Fields::new(display, texts);
        let content = read_content(&mut fields);
        if content.is_some() {
            fields.known.push("type");
        } else {
            fields.known.clear();
        }
        let (title, is_collapsed) = (fields.text("title"), fields.read("collapsed", Value::as_bool));
        Self {
            content: content.unwrap_or(DisplayContent::Other),
            title,
            is_collapsed: is_collapsed.unwrap_or_default(),
            raw: fields.rest(),
        }
    }

    pub(super) fn write(&self, out: &mut Vec<u8>, texts: &Writer<'_>) {
        if !self.raw.is_map() {
            return out.extend_from_slice(self.raw.as_bytes());
        }
        let mut map = Map::default();
        let mut text = |key: &str, text: Option<&Arc<str>>| {
            if let Some(text) = text {
                texts.text(map.key(key), text);
            }
        };
        let name = |name: &str| Some(Arc::from(name));
        match &self.content {
            DisplayContent::Text(it) => {
                text("type", name("text").as_ref());
                text("text", Some(it));
            }
            DisplayContent::Markdown(it) => {
                text("type", name("markdown").as_ref());
                text("text", Some(it));
            }
            DisplayContent::Json(it) => {
                text("type", name("json").as_ref());
                text("text", Some(it));
            }
            DisplayContent::Code { language, text: it } => {
                text("type", name("code").as_ref());
                text("text", Some(it));
                text("language", language.as_ref());
            }
            DisplayContent::Diff(diff) => {
                text("type", name("diff").as_ref());
                text("path", Some(&diff.path));
                text("patch", diff.patch.as_ref());
                text("oldText", diff.old_text.as_ref());
                text("newText", diff.new_text.as_ref());
            }
            DisplayContent::Image(image) => image.write(&mut map, "image", texts),
            DisplayContent::Terminal { id, output, exit_code } => {
                text("type", name("terminal").as_ref());
                text("terminalId", Some(id));
                text("output", output.as_ref());
                if let Some(code) = exit_code {
                    map.key("exitCode").signed((*code).into());
                }
            }
            DisplayContent::Other => {}
        }
        if let Some(title) = &self.title {
            texts.text(map.key("title"), title);
        }
        if self.is_collapsed {
            map.key("collapsed").bool(true);
        }
        map.append_rest(&self.raw, texts);
        map.append_to(out);
    }
}

fn read_content(fields: &mut Fields<'_, '_>) -> Option<DisplayContent> {
    Some(match &*fields.text("type")? {
        "text" => DisplayContent::Text(fields.text("text")?),
        "markdown" => DisplayContent::Markdown(fields.text("text")?),
        "json" => DisplayContent::Json(fields.text("text")?),
        "code" => DisplayContent::Code { text: fields.text("text")?, language: fields.text("language") },
        "diff" => DisplayContent::Diff(Diff {
            path: fields.text("path")?,
            patch: fields.text("patch"),
            old_text: fields.text("oldText"),
            new_text: fields.text("newText"),
        }),
        "image" => DisplayContent::Image(Media::read(fields)?),
        "terminal" => DisplayContent::Terminal {
            id: fields.text("terminalId")?,
            output: fields.text("output"),
            exit_code: fields.read("exitCode", Value::as_integer),
        },
        _ => return None,
    })
}

impl Widget {
    /// Creates a widget from the form that its system gives it.
    pub fn new(value: impl Into<Value>) -> Self {
        Self { title: None, value: value.into() }
    }

    /// Sets the title, which is spoken where the widget cannot be shown.
    #[must_use]
    pub fn with_title(mut self, title: impl Into<Arc<str>>) -> Self {
        self.title = Some(title.into());
        self
    }

    /// Returns the title, if any.
    pub fn title(&self) -> Option<&str> {
        self.title.as_deref()
    }

    pub(super) fn with_value(self, value: Value) -> Self {
        Self { value, ..self }
    }

    /// Returns the widget in the form that its system gave it.
    pub fn value(&self) -> &Value {
        &self.value
    }

    pub(super) fn read(widget: &Value, texts: &Reader<'_>) -> Option<Self> {
        let title = widget.get("title").and_then(|title| texts.text(&title));
        Some(Self { title, value: texts.value(&widget.get("value")?) })
    }

    pub(super) fn write(&self, out: &mut Vec<u8>, texts: &Writer<'_>) {
        let mut map = Map::default();
        if let Some(title) = &self.title {
            texts.text(map.key("title"), title);
        }
        texts.value(map.key("value"), &self.value);
        map.append_to(out);
    }
}

impl fmt::Debug for Display {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Display")
            .field("content", &self.content)
            .field("title", &self.title.as_deref().map(sized))
            .field("is_collapsed", &self.is_collapsed)
            .field("raw", &self.raw)
            .finish()
    }
}

impl fmt::Debug for DisplayContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.debug_tuple("Text").field(&sized(text)).finish(),
            Self::Markdown(text) => f.debug_tuple("Markdown").field(&sized(text)).finish(),
            Self::Json(text) => f.debug_tuple("Json").field(&sized(text)).finish(),
            Self::Code { text, .. } => f.debug_tuple("Code").field(&sized(text)).finish(),
            Self::Diff(diff) => f.debug_tuple("Diff").field(diff).finish(),
            Self::Image(image) => f.debug_tuple("Image").field(image).finish(),
            Self::Terminal { output, exit_code, .. } => f
                .debug_struct("Terminal")
                .field("output", &output.as_deref().map(sized))
                .field("exit_code", exit_code)
                .finish_non_exhaustive(),
            Self::Other => f.write_str("Other"),
        }
    }
}

impl fmt::Debug for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Diff")
            .field("patch", &self.patch.as_deref().map(sized))
            .field("old_text", &self.old_text.as_deref().map(sized))
            .field("new_text", &self.new_text.as_deref().map(sized))
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Widget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = self.title.as_deref().map(sized);
        f.debug_struct("Widget").field("title", &title).field("value", &self.value).finish()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn display_of_each_type_keeps_all_its_fields() {
        for (json, kind) in [
            (json!({"type": "text", "text": "a", "title": "t", "collapsed": true}), DisplayKind::Text),
            (json!({"type": "markdown", "text": "# a", "more": [1]}), DisplayKind::Markdown),
            (json!({"type": "json", "text": "{}"}), DisplayKind::Json),
            (json!({"type": "code", "text": "a", "language": "rust"}), DisplayKind::Code),
            (json!({"type": "diff", "path": "/a", "newText": "b", "oldText": null}), DisplayKind::Diff),
            (json!({"type": "diff", "path": "/a", "patch": "@@"}), DisplayKind::Diff),
            (json!({"type": "image", "data": "AA==", "mimeType": "image/png"}), DisplayKind::Image),
            (json!({"type": "terminal", "terminalId": "t", "exitCode": -1}), DisplayKind::Terminal),
            (json!({"type": "terminal", "terminalId": "t", "exitCode": "?"}), DisplayKind::Terminal),
            (json!({"type": "hologram", "text": "a", "title": "t"}), DisplayKind::Other),
            (json!({"type": "text", "text": 5, "collapsed": "?"}), DisplayKind::Other),
            (json!({"type": "image", "data": 5, "mimeType": "image/png"}), DisplayKind::Other),
            (json!([5]), DisplayKind::Other),
        ] {
            let display = Display::read(&json.clone().into(), &Reader::new(None));
            assert_eq!(display.kind(), kind, "{json}");
            let mut out = Vec::new();
            display.write(&mut out, &Writer::new(None));
            // Equal objects may have their keys in another order.
            assert_eq!(Value::from_bytes(out).unwrap().to_json(), json);
        }
    }

    #[test]
    fn field_that_is_not_understood_is_never_written_twice() {
        let json = json!({"type": "text", "text": "a", "title": 5, "collapsed": "?", "more": 1});
        let display = Display::read(&json.into(), &Reader::new(None)).with_title("t").with_collapsed(true);
        let mut out = Vec::new();
        display.write(&mut out, &Writer::new(None));
        let expected = json!({"type": "text", "text": "a", "title": "t", "collapsed": true, "more": 1});
        assert_eq!(Value::from_bytes(out).unwrap().to_json(), expected);
    }

    #[test]
    fn debug_output_hides_what_is_shown() {
        let widget = Widget::new(json!({"secret": 1})).with_title("secret");
        let diff = Diff { path: "secret".into(), patch: Some("secret".into()), ..Diff::default() };
        let terminal =
            DisplayContent::Terminal { id: "secret".into(), output: Some("secret".into()), exit_code: None };
        let displays = [DisplayContent::Diff(diff), terminal, DisplayContent::Text("secret".into())];
        let shown = format!("{widget:?} {:?}", displays.map(|it| Display::new(it).with_title("secret")));
        assert!(shown.contains("6 B") && !shown.contains("secret"), "{shown}");
    }
}
