//! Defines how a result is shown.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value as Json};

/// The fields that a display holds itself.
const KNOWN: [&str; 3] = ["title", "content_type", "collapsed"];

/// How a result is shown: the page's `DisplayConfig`. `Debug` shows only sizes.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DisplayConfig {
    /// The title; empty if there is none.
    #[serde(default)]
    pub title: String,
    /// How the content is rendered. Default: as plain text.
    #[serde(default)]
    pub content_type: ContentType,
    /// Whether it is shown collapsed at first. Default: no.
    #[serde(default)]
    pub collapsed: bool,
    #[serde(flatten)]
    more: Map<String, Json>,
}

impl DisplayConfig {
    /// Creates a display that is not collapsed.
    pub fn new(title: impl Into<String>, content_type: ContentType) -> Self {
        Self { title: title.into(), content_type, ..Self::default() }
    }

    /// Sets whether it is shown collapsed at first.
    #[must_use]
    pub fn with_collapsed(mut self, is_collapsed: bool) -> Self {
        self.collapsed = is_collapsed;
        self
    }

    /// Adds a field that the page does not have. The runtime's code has `content`, `is_truncated` and `full_length` (in
    /// lines). The names of the three fields above have no effect.
    #[must_use]
    pub fn with_field(mut self, name: impl Into<String>, value: impl Into<Json>) -> Self {
        let name = name.into();
        if !KNOWN.contains(&name.as_str()) {
            self.more.insert(name, value.into());
        }
        self
    }

    /// Returns a field that the page does not have.
    pub fn field(&self, name: &str) -> Option<&Json> {
        self.more.get(name)
    }

    /// Returns what is shown in place of the output, if the display has a text of its own: the runtime's `content`.
    pub fn content(&self) -> Option<&str> {
        self.field("content")?.as_str()
    }

    pub(super) fn fields(&self) -> &Map<String, Json> {
        &self.more
    }
}

impl fmt::Debug for DisplayConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DisplayConfig")
            .field("title_bytes", &self.title.len())
            .field("content_type", &self.content_type)
            .field("collapsed", &self.collapsed)
            .field("more", &self.more.len())
            .finish()
    }
}

/// How a result's content is rendered: the page's `ContentType`, and the additional ones of the runtime's code.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum ContentType {
    /// Plain text; `text` in JSON.
    #[default]
    Text,
    /// Markdown; `markdown`.
    Markdown,
    /// A JSON text; `json`.
    Json,
    /// Source code in this language; `{"code": "rust"}`.
    Code(String),
    /// YAML; `yaml`. In the runtime's code only.
    Yaml,
    /// XML; `xml`. In the runtime's code only.
    Xml,
    /// The reader decides; `auto`. In the runtime's code only.
    Auto,
    /// Something else, which is kept and shown as plain text.
    Other(Json),
}

impl ContentType {
    /// Reads it from its JSON, or from the name that Rust's types have.
    fn read(json: Json) -> Self {
        let name = json.as_str().map(|name| name.to_ascii_lowercase());
        match name.as_deref() {
            Some("text" | "plain_text" | "plaintext") => return Self::Text,
            Some("markdown") => return Self::Markdown,
            Some("json") => return Self::Json,
            Some("yaml") => return Self::Yaml,
            Some("xml") => return Self::Xml,
            Some("auto") => return Self::Auto,
            _ => {}
        }
        let mut fields = json.as_object().into_iter().flatten();
        match (fields.next(), fields.next()) {
            (Some((key, Json::String(language))), None) if key.eq_ignore_ascii_case("code") => {
                Self::Code(language.clone())
            }
            _ => Self::Other(json),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Markdown => "markdown",
            Self::Json => "json",
            Self::Code(_) => "code",
            Self::Yaml => "yaml",
            Self::Xml => "xml",
            Self::Auto => "auto",
            Self::Other(_) => "other",
        }
    }
}

impl Serialize for ContentType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Code(language) => serializer.collect_map([(self.name(), language)]),
            Self::Other(json) => json.serialize(serializer),
            named => serializer.serialize_str(named.name()),
        }
    }
}

impl<'de> Deserialize<'de> for ContentType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Json::deserialize(deserializer).map(Self::read)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn content_type_is_read_in_both_spellings_and_written_in_one() {
        for (read, content_type, written) in [
            (json!("text"), ContentType::Text, json!("text")),
            (json!("PlainText"), ContentType::Text, json!("text")),
            (json!("Markdown"), ContentType::Markdown, json!("markdown")),
            (json!("json"), ContentType::Json, json!("json")),
            (json!({"Code": "rust"}), ContentType::Code("rust".into()), json!({"code": "rust"})),
            (json!("Yaml"), ContentType::Yaml, json!("yaml")),
            (json!("xml"), ContentType::Xml, json!("xml")),
            (json!("Auto"), ContentType::Auto, json!("auto")),
        ] {
            let parsed: ContentType = serde_json::from_value(read).unwrap();
            assert_eq!((&parsed, serde_json::to_value(&parsed).unwrap()), (&content_type, written));
        }
    }

    #[test]
    fn unknown_content_type_is_kept() {
        for unknown in
            [json!("hologram"), json!({"code": 5}), json!({"code": "a", "b": 1}), json!([1.5, null])]
        {
            let parsed: ContentType = serde_json::from_value(unknown.clone()).unwrap();
            assert_eq!(parsed, ContentType::Other(unknown.clone()));
            assert_eq!(serde_json::to_value(&parsed).unwrap(), unknown);
        }
    }
}
