//! Defines the content of a result: blocks in the form of the Model Context Protocol, each with its audience.

use std::{fmt, sync::Arc};

use base64::{
    Engine,
    alphabet::STANDARD as ALPHABET,
    engine::DecodePaddingMode,
    engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig},
};
use serde_json::{Value as Json, json};

use super::{
    fields::{Fields, Map, pairs, without},
    native::MIN_CONTAINED,
    references::{Reader, Writer},
    sized,
};
use crate::value::{
    Value,
    token::{Token, skip},
    write::Write,
};

/// The field that names the block's place in the native document.
const PLACE: &str = "bridge.at";

/// One piece of a result's content (`wire.md`, section 3.3), in the form of MCP's content blocks. `Debug` shows only
/// sizes.
///
/// Fields that [`kind`](Self::kind) does not hold, such as `annotations`, are kept in [`raw`](Self::raw).
///
/// ```
/// use toolbridge::result::{Audience, BlockKind, ContentBlock};
///
/// let block = ContentBlock::from_value(&serde_json::json!({
///     "type": "text", "text": "42 °C", "annotations": {"audience": ["user"], "priority": 0.9},
/// }).into());
/// assert!(matches!(block.kind(), BlockKind::Text(text) if &**text == "42 °C"));
/// assert_eq!(block.audience(), Audience::Person);
/// assert_eq!(block.raw().to_json()["annotations"]["priority"], 0.9);
/// ```
#[derive(Clone, PartialEq)]
pub struct ContentBlock {
    kind: BlockKind,
    audience: Audience,
    raw: Value,
    place: Option<Arc<str>>,
}

/// Whom a block is meant for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Audience {
    /// The model, which presents it to the person in its own words. This is the audience of a block that names none.
    #[default]
    Both,
    /// The person alone. It is shown and spoken exactly, without a run of the model.
    Person,
    /// The model alone. It is never sent to a client, shown or spoken.
    Model,
}

/// What a block is. `Debug` shows only sizes.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub enum BlockKind {
    /// A text.
    Text(Arc<str>),
    /// An image.
    Image(Media),
    /// A sound.
    Audio(Media),
    /// A reference to a resource. It is never fetched automatically.
    Link {
        /// Its address.
        uri: Arc<str>,
        /// Its name, if any.
        name: Option<Arc<str>>,
    },
    /// A resource with its content.
    Resource(EmbeddedResource),
    /// Something else, or one of the above in another form. [`ContentBlock::raw`] holds all of it.
    Other,
}

/// An image or a sound, in base64. `Debug` shows only sizes.
#[derive(Clone, PartialEq)]
pub struct Media {
    data: Arc<str>,
    mime_type: Option<Arc<str>>,
}

/// A resource with its content. `Debug` shows only sizes.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct EmbeddedResource {
    /// Its address.
    pub uri: Arc<str>,
    /// Its media type, if it has one.
    pub mime_type: Option<Arc<str>>,
    /// Its content, if it is a text.
    pub text: Option<Arc<str>>,
    /// Its content in base64, if it is not a text.
    pub blob: Option<Arc<str>>,
}

impl ContentBlock {
    /// Creates a text block for both.
    pub fn text(text: impl Into<Arc<str>>) -> Self {
        Self::new(BlockKind::Text(text.into()))
    }

    /// Creates an image block for both.
    pub fn image(image: Media) -> Self {
        Self::new(BlockKind::Image(image))
    }

    /// Creates an audio block for both.
    pub fn audio(audio: Media) -> Self {
        Self::new(BlockKind::Audio(audio))
    }

    /// Creates a link for both.
    pub fn link(uri: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self::new(BlockKind::Link { uri: uri.into(), name: Some(name.into()) })
    }

    /// Reads a block in MCP's form. A string becomes a text block. A block that is not understood is
    /// [`BlockKind::Other`]; reading never fails.
    pub fn from_value(block: &Value) -> Self {
        Self::read(block, &Reader::new(None))
    }

    fn new(kind: BlockKind) -> Self {
        Self { kind, audience: Audience::Both, raw: Value::empty(), place: None }
    }

    /// Sets the audience.
    #[must_use]
    pub fn with_audience(mut self, audience: Audience) -> Self {
        if self.audience != audience {
            self.audience = audience;
            self.raw = annotated(&self.raw, audience);
        }
        self
    }

    /// Sets the block's place in the native document, as a JSON pointer.
    ///
    /// If the block is for the model alone, the value there is cut from what clients get. Without a place the whole
    /// native document is.
    #[must_use]
    pub fn with_native_pointer(mut self, pointer: impl Into<Arc<str>>) -> Self {
        self.place = Some(pointer.into());
        self
    }

    /// Returns what it is.
    pub fn kind(&self) -> &BlockKind {
        &self.kind
    }

    /// Returns who gets the block: the person, the model or both. The annotation `audience` says so; it is `user`,
    /// `assistant` or a list of them.
    ///
    /// A block that names neither or both is for [both](Audience::Both); other values have no effect.
    pub fn audience(&self) -> Audience {
        self.audience
    }

    /// Returns the fields that [`kind`](Self::kind) does not hold, as a map. Of a block that is not a map, returns the
    /// value itself.
    pub fn raw(&self) -> &Value {
        &self.raw
    }

    /// Returns the block's place in the native document, if it is known.
    pub fn native_pointer(&self) -> Option<&str> {
        self.place.as_deref()
    }

    /// Returns its text, if it is a text block.
    pub fn as_text(&self) -> Option<&str> {
        match &self.kind {
            BlockKind::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the texts that carry what it says. Other fields, such as a title or the content of an unknown type, count
    /// if they are long enough not to be a common word.
    pub(super) fn texts(&self) -> Vec<&str> {
        let mut texts = match &self.kind {
            BlockKind::Text(text) => vec![&**text],
            BlockKind::Image(media) | BlockKind::Audio(media) => vec![media.data()],
            BlockKind::Link { uri, name } => {
                let name = name.as_deref().filter(|name| name.len() >= MIN_CONTAINED);
                name.into_iter().chain([&**uri]).collect()
            }
            BlockKind::Resource(resource) => {
                let content = resource.text.as_deref().into_iter().chain(resource.blob.as_deref());
                content.chain([&*resource.uri]).collect()
            }
            BlockKind::Other => Vec::new(),
        };
        texts.extend(long_texts(&self.raw).unwrap_or_default());
        texts
    }

    pub(super) fn with_raw(&self, raw: Value) -> Self {
        Self { raw, ..self.clone() }
    }

    pub(super) fn without_place(mut self) -> Self {
        self.place = None;
        self
    }

    pub(super) fn read(block: &Value, texts: &Reader<'_>) -> Self {
        if let Some(text) = block.as_str() {
            return Self::text(text);
        }
        if !block.is_map() {
            return Self { raw: block.clone(), ..Self::new(BlockKind::Other) };
        }
        let (kind, mut raw) = kind_of(block, texts);
        let place = raw.get(PLACE).and_then(|place| place.as_str().map(Arc::from));
        if raw.get(PLACE).is_some() {
            raw = without(&raw, &[PLACE]);
        }
        Self { kind, audience: audience_of(&raw), raw, place }
    }

    pub(super) fn write(&self, out: &mut Vec<u8>, texts: &Writer<'_>) {
        if !self.raw.is_map() {
            return out.extend_from_slice(self.raw.as_bytes());
        }
        let mut map = Map::default();
        match &self.kind {
            BlockKind::Text(text) => {
                map.key("type").str("text");
                texts.text(map.key("text"), text);
            }
            BlockKind::Image(media) => media.write(&mut map, "image", texts),
            BlockKind::Audio(media) => media.write(&mut map, "audio", texts),
            BlockKind::Link { uri, name } => {
                map.key("type").str("resource_link");
                texts.text(map.key("uri"), uri);
                if let Some(name) = name {
                    texts.text(map.key("name"), name);
                }
            }
            BlockKind::Resource(resource) => {
                map.key("type").str("resource");
                let rest = self.raw.get("resource").unwrap_or_default();
                resource.write(map.key("resource"), &rest, texts);
            }
            BlockKind::Other => {}
        }
        if let Some(place) = &self.place {
            map.key(PLACE).str(place);
        }
        map.append_rest(&self.raw, texts);
        map.append_to(out);
    }
}

/// Reads a block's kind, and returns it with the fields that it does not hold.
fn kind_of(block: &Value, texts: &Reader<'_>) -> (BlockKind, Value) {
    let mut fields = Fields::new(block, texts);
    let name = block.get("type");
    let kind = match name.as_ref().and_then(Value::as_str) {
        Some("text") => fields.text("text").map(BlockKind::Text),
        Some("image") => Media::read(&mut fields).map(BlockKind::Image),
        Some("audio") => Media::read(&mut fields).map(BlockKind::Audio),
        Some("resource_link") => {
            fields.text("uri").map(|uri| BlockKind::Link { uri, name: fields.text("name") })
        }
        Some("resource") => {
            let resource = block.get("resource").unwrap_or_default();
            let mut inner = Fields::new(&resource, texts);
            if let Some(read) = EmbeddedResource::read(&mut inner) {
                let mut raw = Map::default();
                let rest = inner.rest();
                if !rest.is_empty() {
                    raw.key("resource").extend_from_slice(rest.as_bytes());
                }
                for (key, value) in pairs(&texts.map(&without(block, &["type", "resource"]))) {
                    raw.pair(&key).extend_from_slice(value.as_bytes());
                }
                return (BlockKind::Resource(read), raw.value());
            }
            None
        }
        _ => None,
    };
    match kind {
        Some(kind) => {
            fields.known.push("type");
            (kind, fields.rest())
        }
        None => (BlockKind::Other, texts.map(block)),
    }
}

/// Returns the long texts in the fields of a block that say something.
fn long_texts(raw: &Value) -> Option<Vec<&str>> {
    let bytes = raw.as_bytes();
    let mut found = Vec::new();
    let mut add_between = |mut at: usize, end: usize| {
        while at < end {
            let (token, next) = Token::read(bytes, at).ok()?;
            found.extend(token.as_text().filter(|text| text.len() >= MIN_CONTAINED));
            at = next;
        }
        Some(())
    };
    match Token::read(bytes, 0).ok()? {
        (Token::Map(count), mut at) => {
            for _ in 0..count {
                let (key, start) = Token::read(bytes, at).ok()?;
                at = skip(bytes, start).ok()?;
                if !key.as_text().is_some_and(|key| ["type", "annotations", "_meta"].contains(&key)) {
                    add_between(start, at)?;
                }
            }
        }
        _ => add_between(0, bytes.len())?,
    }
    Some(found)
}

/// Returns the map with this audience in its annotations. Another value becomes a field of a map.
fn annotated(raw: &Value, audience: Audience) -> Value {
    let audience = match audience {
        Audience::Both => json!(["user", "assistant"]),
        Audience::Person => json!(["user"]),
        Audience::Model => json!(["assistant"]),
    };
    let mut map = Map::default();
    if !raw.is_map() {
        map.key("value").extend_from_slice(raw.as_bytes());
    }
    for (key, value) in pairs(&without(raw, &["annotations"])) {
        map.pair(&key).extend_from_slice(value.as_bytes());
    }
    let given = raw.get("annotations").unwrap_or_default();
    let mut annotations = Map::default();
    annotations.key("audience").extend_from_slice(Value::from(audience).as_bytes());
    for (key, value) in pairs(&without(&given, &["audience"])) {
        annotations.pair(&key).extend_from_slice(value.as_bytes());
    }
    annotations.append_to(map.key("annotations"));
    map.value()
}

/// Reads the audience from a block's annotations, or from those of the resource inside it. They may have any form.
fn audience_of(raw: &Value) -> Audience {
    let of = |it: &Value| it.get("annotations").and_then(|annotations| annotations.get("audience"));
    let audience = of(raw).or_else(|| of(&raw.get("resource")?));
    let Some(audience) = audience else { return Audience::Both };
    let names = |role: &str| match audience.elements() {
        Some(mut roles) => roles.any(|it| it.as_str() == Some(role)),
        None => audience.as_str() == Some(role),
    };
    Audience::of(names("user"), names("assistant"))
}

/// Reads the audience of a block that is JSON.
pub(super) fn audience_of_json(block: &Json) -> Audience {
    let audience = match &block["annotations"]["audience"] {
        Json::Null => &block["resource"]["annotations"]["audience"],
        given => given,
    };
    let names = |role: &str| match audience {
        Json::Array(roles) => roles.iter().any(|it| it == role),
        other => other == role,
    };
    Audience::of(names("user"), names("assistant"))
}

impl Audience {
    fn of(is_person: bool, is_model: bool) -> Self {
        match (is_person, is_model) {
            (true, false) => Self::Person,
            (false, true) => Self::Model,
            _ => Self::Both,
        }
    }
}

impl Media {
    /// Creates it from its base64 text, which is not checked, and its media type.
    pub fn new(data: impl Into<Arc<str>>, mime_type: impl Into<Arc<str>>) -> Self {
        Self { data: data.into(), mime_type: Some(mime_type.into()) }
    }

    /// Creates it from its bytes and its media type.
    pub fn encode(bytes: &[u8], mime_type: impl Into<Arc<str>>) -> Self {
        Self::new(BASE64.encode(bytes), mime_type)
    }

    /// Returns the base64 text, which may be broken.
    pub fn data(&self) -> &str {
        &self.data
    }

    /// Returns the media type, if it has one.
    pub fn mime_type(&self) -> Option<&str> {
        self.mime_type.as_deref()
    }

    /// Returns the size of its bytes, as far as the length of the base64 text tells.
    pub fn size(&self) -> usize {
        let data = self.data.trim_end_matches('=');
        data.len() / 4 * 3 + (data.len() % 4).saturating_sub(1)
    }

    /// Returns its bytes, or `None` if the base64 is broken or it has more bytes than the limit.
    pub fn decode(&self, limit: usize) -> Option<Vec<u8>> {
        if self.size() > limit {
            return None;
        }
        BASE64.decode(&*self.data).ok()
    }

    pub(super) fn read(fields: &mut Fields<'_, '_>) -> Option<Self> {
        Some(Self { data: fields.text("data")?, mime_type: fields.text("mimeType") })
    }

    pub(super) fn write(&self, map: &mut Map, name: &str, texts: &Writer<'_>) {
        map.key("type").str(name);
        texts.text(map.key("data"), &self.data);
        if let Some(mime_type) = &self.mime_type {
            texts.text(map.key("mimeType"), mime_type);
        }
    }
}

/// Base64 whose padding may be missing, as some writers leave it out.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &ALPHABET,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

impl EmbeddedResource {
    fn read(fields: &mut Fields<'_, '_>) -> Option<Self> {
        Some(Self {
            uri: fields.text("uri")?,
            mime_type: fields.text("mimeType"),
            text: fields.text("text"),
            blob: fields.text("blob"),
        })
    }

    fn write(&self, out: &mut Vec<u8>, rest: &Value, texts: &Writer<'_>) {
        let mut map = Map::default();
        texts.text(map.key("uri"), &self.uri);
        let fields = [("mimeType", &self.mime_type), ("text", &self.text), ("blob", &self.blob)];
        for (key, text) in fields {
            if let Some(text) = text {
                texts.text(map.key(key), text);
            }
        }
        for (key, value) in pairs(rest) {
            texts.value(map.pair(&key), &value);
        }
        map.append_to(out);
    }
}

impl fmt::Debug for ContentBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContentBlock")
            .field("kind", &self.kind)
            .field("audience", &self.audience)
            .field("raw", &self.raw)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for BlockKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.debug_tuple("Text").field(&sized(text)).finish(),
            Self::Image(image) => f.debug_tuple("Image").field(image).finish(),
            Self::Audio(audio) => f.debug_tuple("Audio").field(audio).finish(),
            Self::Link { uri, .. } => f.debug_tuple("Link").field(&sized(uri)).finish(),
            Self::Resource(resource) => f.debug_tuple("Resource").field(resource).finish(),
            Self::Other => f.write_str("Other"),
        }
    }
}

impl fmt::Debug for Media {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Media").field("mime_type", &self.mime_type).field("data", &sized(&self.data)).finish()
    }
}

impl fmt::Debug for EmbeddedResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedResource")
            .field("mime_type", &self.mime_type)
            .field("text", &self.text.as_deref().map(sized))
            .field("blob", &self.blob.as_deref().map(sized))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    fn block(json: Json) -> ContentBlock {
        ContentBlock::from_value(&json.into())
    }

    fn written(block: &ContentBlock) -> Json {
        let mut out = Vec::new();
        block.write(&mut out, &Writer::new(None));
        Value::from_bytes(out).unwrap().to_json()
    }

    #[test]
    fn block_of_each_type_keeps_all_its_fields() {
        for json in [
            json!({"type": "text", "text": "a", "annotations": {"audience": ["user"], "priority": 0.9}}),
            json!({"type": "image", "data": "AA==", "mimeType": "image/png", "_meta": {"x": null}}),
            json!({"type": "audio", "data": "AA==", "annotations": null}),
            json!({"type": "resource_link", "uri": "a:b", "name": "n", "size": 5, "title": "t"}),
            json!({"type": "resource", "resource": {"uri": "a:b", "mimeType": "m", "text": "t", "_meta": {}}}),
            json!({"type": "resource", "resource": {"uri": "a:b", "blob": "AA"}, "annotations": {"audience": "user"}}),
        ] {
            let block = block(json.clone());
            assert_ne!(*block.kind(), BlockKind::Other, "{json}");
            assert_eq!(written(&block), json);
        }
    }

    #[test]
    fn block_that_is_not_understood_is_kept_whole() {
        for json in [
            json!({"type": "text", "text": 5}),
            json!({"type": "text", "text": {"at": "/nowhere"}, "annotations": {"audience": ["user"]}}),
            json!({"type": "image", "data": null, "mimeType": "image/png"}),
            json!({"type": "resource", "resource": "a:b"}),
            json!({"type": "hologram", "text": "a"}),
            json!({"type": 5}),
            json!({}),
            json!(5),
            json!(null),
            json!([["nested"]]),
        ] {
            let block = block(json.clone());
            assert_eq!((block.kind(), &written(&block)), (&BlockKind::Other, &json));
        }
        // W1: a string is a text block.
        assert_eq!(written(&block(json!("a"))), json!({"type": "text", "text": "a"}));
    }

    #[test]
    fn audience_is_read_from_any_form_of_annotations() {
        let audience = |annotations: Json| {
            block(json!({"type": "text", "text": "a", "annotations": annotations})).audience()
        };
        for (annotations, expected) in [
            (json!({"audience": ["user"]}), Audience::Person),
            (json!({"audience": ["assistant"]}), Audience::Model),
            (json!({"audience": ["assistant", "user"]}), Audience::Both),
            (json!({"audience": "user"}), Audience::Person),
            (json!({"audience": ["user", "auditor", 5, null]}), Audience::Person),
            (json!({"audience": ["auditor"]}), Audience::Both),
            (json!({"audience": []}), Audience::Both),
            (json!({"audience": null}), Audience::Both),
            (json!({"audience": {"user": true}}), Audience::Both),
            (json!(null), Audience::Both),
            (json!("user"), Audience::Both),
        ] {
            assert_eq!(audience(annotations.clone()), expected, "{annotations}");
        }
    }

    #[test]
    fn changed_audience_is_written_and_other_annotations_stay() {
        let json =
            json!({"type": "text", "text": "a", "annotations": {"priority": 0.9, "audience": ["user"]}});
        let changed = block(json).with_audience(Audience::Model).with_native_pointer("/content/0");
        assert_eq!(
            written(&changed),
            json!({"type": "text", "text": "a", "annotations": {"audience": ["assistant"], "priority": 0.9}, "bridge.at": "/content/0"})
        );
        assert_eq!(block(written(&changed)).native_pointer(), Some("/content/0"));
        let number = block(json!(5)).with_audience(Audience::Model);
        assert_eq!(block(written(&number)), number);
        let both = block(json!({"type": "text", "text": "a", "annotations": null}));
        assert_eq!(written(&both.with_audience(Audience::Both))["annotations"], json!(null));
    }

    #[test]
    fn base64_is_measured_before_it_is_decoded() {
        for bytes in [&b""[..], b"a", b"ab", b"abc", b"abcd"] {
            let media = Media::encode(bytes, "image/png");
            assert_eq!((media.size(), media.decode(4).as_deref()), (bytes.len(), Some(bytes)));
        }
        assert_eq!(Media::new("YQ", "audio/wav").decode(1).unwrap(), b"a");
        assert_eq!(Media::encode(&[0; 5], "image/png").decode(4), None);
        assert_eq!(Media::new("?broken?", "image/png").decode(100), None);
    }

    #[test]
    fn debug_output_hides_the_content() {
        let blocks = [
            ContentBlock::text("secret"),
            ContentBlock::image(Media::new("secret", "image/png")),
            ContentBlock::link("secret:", "secret"),
            block(json!({"type": "resource", "resource": {"uri": "secret:", "text": "secret"}})),
            block(json!({"secret": "secret"})),
        ];
        let shown = format!("{blocks:?}");
        assert!(shown.contains("6 B") && !shown.contains("secret"), "{shown}");
    }
}
