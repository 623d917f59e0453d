//! Writes what the model reads of a result.

use std::{borrow::Cow, fmt};

use super::{Audience, BlockKind, ContentBlock, Media, ToolResult, json_equality::any_says, sized};
use crate::value::{Value, append_text, prefix, token::Token};

/// What the model reads of a result. `Debug` shows only sizes.
#[derive(Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct ModelView<'a> {
    /// The text. Media stand in it as lines such as `[image: image/png, 12345 bytes]`. If it was cut, its last line
    /// says so.
    pub text: Cow<'a, str>,
    /// The images, for a model that reads them.
    pub images: Vec<&'a Media>,
    /// How many bytes of the text were cut, or 0.
    pub cut: usize,
}

impl fmt::Debug for ModelView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelView")
            .field("text", &sized(&self.text))
            .field("images", &self.images)
            .field("cut", &self.cut)
            .finish()
    }
}

impl<'a> ModelView<'a> {
    pub(super) fn of(result: &'a ToolResult, limit: usize) -> Self {
        let blocks = || result.content().iter().filter(|block| block.audience() != Audience::Person);
        let mut texts: Vec<Cow<'a, str>> = blocks().map(text_of).collect();
        let structured = result.structured().filter(|value| {
            // Nothing is said by a null that stands next to a text.
            let is_said = value.is_nil() && !texts.is_empty();
            let texts: Vec<&str> = blocks().filter_map(ContentBlock::as_text).collect();
            let says = |value: &Value| {
                any_says(texts.iter().copied(), value) == Some(true) || each_says(&texts, value)
            };
            !is_said && !says(value) && !wrapped(value).is_some_and(|inner| says(&inner))
        });
        texts.extend(structured.map(json_of));
        let images = blocks().filter_map(|block| match block.kind() {
            BlockKind::Image(image) => Some(image),
            _ => None,
        });
        let (text, cut) = joined(&texts, limit);
        Self { text, images: images.collect(), cut }
    }
}

/// The keys under which frameworks put a result that is not a map, because the structured data of MCP is one.
const WRAPPERS: [&str; 2] = ["result", "value"];

/// Returns whether a value is a list, and the texts are its elements, one each: frameworks write a list so.
fn each_says(texts: &[&str], value: &Value) -> bool {
    let count = match Token::read(value.as_bytes(), 0) {
        Ok((Token::Array(count), _)) => usize::try_from(count).unwrap_or(usize::MAX),
        _ => 0,
    };
    if count == 0 || count != texts.len() {
        return false;
    }
    let elements = value.elements().into_iter().flatten();
    elements.zip(texts).all(|(element, text)| any_says([*text].into_iter(), &element) == Some(true))
}

/// Returns the value in a map that only wraps it.
fn wrapped(value: &Value) -> Option<Value> {
    match Token::read(value.as_bytes(), 0) {
        Ok((Token::Map(1), _)) => WRAPPERS.iter().find_map(|key| value.get(key)),
        _ => None,
    }
}

/// Joins texts with line breaks. If they exceed the limit in bytes, the end is cut, and a last line says so; returns how
/// many bytes were cut.
pub(super) fn joined<'a>(texts: &[Cow<'a, str>], limit: usize) -> (Cow<'a, str>, usize) {
    let total = texts.iter().map(|text| text.len() + 1).sum::<usize>().saturating_sub(1);
    if total <= limit {
        return match texts {
            [] => ("".into(), 0),
            [only] => (only.clone(), 0),
            several => (several.join("\n").into(), 0),
        };
    }
    // The number in the notice is never longer than the total.
    let space = limit.saturating_sub(notice(total, total).len());
    let mut kept = String::new();
    for text in texts {
        if !kept.is_empty() {
            kept.push('\n');
        }
        let left = space.saturating_sub(kept.len());
        kept.push_str(prefix(text, left));
        if text.len() > left {
            break;
        }
    }
    let kept_bytes = kept.len().min(space);
    kept.truncate(kept_bytes);
    let notice = notice(kept_bytes, total);
    if notice.len() <= limit {
        kept.push_str(&notice);
    }
    (kept.into(), total - kept_bytes)
}

fn notice(kept: usize, total: usize) -> String {
    format!("\n[cut: {kept} of {total} bytes are shown]")
}

/// Returns what a model without eyes and ears reads of a block.
fn text_of(block: &ContentBlock) -> Cow<'_, str> {
    let media = |name: &str, media: &Media| {
        format!("[{name}: {}, {} bytes]", media.mime_type().unwrap_or("unknown type"), media.size()).into()
    };
    match block.kind() {
        BlockKind::Text(text) => (&**text).into(),
        BlockKind::Image(image) => media("image", image),
        BlockKind::Audio(audio) => media("audio", audio),
        BlockKind::Link { uri, name: Some(name) } => format!("[link: {name}, {uri}]").into(),
        BlockKind::Link { uri, name: None } => format!("[link: {uri}]").into(),
        BlockKind::Resource(resource) => match &resource.text {
            Some(text) => (&**text).into(),
            None => format!("[resource: {}]", resource.uri).into(),
        },
        BlockKind::Other => match (text_field(block.raw(), "text"), text_field(block.raw(), "type")) {
            (Some(text), _) => text.into(),
            (None, Some(name)) => format!("[content of the unknown type {name:?}]").into(),
            (None, None) => json_of(block.raw()),
        },
    }
}

fn text_field(map: &Value, key: &str) -> Option<String> {
    Some(map.get(key)?.as_str()?.to_owned())
}

/// Returns a string's own text; for any other value, its JSON text.
pub(super) fn json_of(value: &Value) -> Cow<'_, str> {
    if let Some(text) = value.as_str() {
        return text.into();
    }
    let mut out = Vec::with_capacity(value.as_bytes().len() * 5 / 4);
    let _ = append_text(&mut out, value.as_bytes(), 0);
    String::from_utf8(out).unwrap_or_default().into()
}
