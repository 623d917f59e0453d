//! Reduces a result to what anyone but the model may see (`wire.md`, section 3.3): a client, a person, a log
//! or a recording.
//!
//! Each text that is made of a result, other than what the model reads, is made of a [`PublicText`](super::public_text::PublicText): the message of a
//! failure, progress, what is shown and what is spoken. Documents of other systems and frames, which are JSON here, lose
//! the blocks for the model alone by [`strip`]. No other module decides by [`Audience::Model`].

use serde_json::Value as Json;

use super::{
    Audience, ContentBlock, ToolResult,
    block::audience_of_json,
    native::{MAX_SEARCH, MIN_CONTAINED},
    nested::Nested,
};
use crate::{
    tool::ToolError,
    value::{Value, pointer_step},
};

/// The message of a failure whose own message says what is for the model alone.
const HIDDEN_MESSAGE: &str = "the tool failed, and its reason is for the model alone";

/// The role of the model in an audience.
pub(super) const ROLE: &str = "assistant";

impl ToolError {
    /// Returns the part that clients may see, as [`ToolResult::for_clients`] does of the partial result. A message that
    /// says what a block for the model alone says is replaced. The [source](Self::source) stays behind.
    #[must_use]
    pub fn for_clients(&self) -> Self {
        let message = public_message(self.message(), self.partial());
        let error = Self::new(self.code(), message).recorded_as(self);
        match self.partial() {
            Some(partial) => error.with_partial(public_value(partial)),
            None => error,
        }
    }
}

/// Returns the message of a failure, unless it says what a block for the model alone of its partial result says.
pub(crate) fn public_message<'a>(message: &'a str, partial: Option<&Value>) -> &'a str {
    let tells = |partial| ToolResult::of(partial).tells_hidden(message);
    if partial.is_some_and(tells) { HIDDEN_MESSAGE } else { message }
}

/// Returns the value of a call without what is for the model alone.
pub(crate) fn public_value(value: &Value) -> Value {
    let result = ToolResult::of(value);
    if result.hides_nothing() { value.clone() } else { result.for_clients().to_value() }
}

impl ToolResult {
    /// Returns whether all of it may be seen by anyone.
    pub(crate) fn hides_nothing(&self) -> bool {
        let is_open = |block: &ContentBlock| block.audience() != Audience::Model;
        self.content().iter().all(is_open) && Nested::remove(&mut self.clone()).is_empty()
    }

    /// Returns whether a text says what a block for the model alone says: the same, a line of it, or a part of it.
    fn tells_hidden(&self, text: &str) -> bool {
        let text = text.trim();
        let nested = Nested::remove(&mut self.clone());
        let hidden = self.content().iter().filter(|block| block.audience() == Audience::Model);
        let mut hidden = hidden
            .chain(&nested.blocks)
            .flat_map(|block| block.texts())
            .map(str::trim)
            .filter(|it| !it.is_empty());
        let is_long = |it: &str| it.len() >= MIN_CONTAINED;
        hidden.any(|it| {
            text == it
                || it.len().saturating_mul(text.len()) > MAX_SEARCH
                || is_long(text) && it.contains(text)
                || it.lines().map(str::trim).any(|line| is_long(line) && text.contains(line))
        })
    }
}

/// Removes the blocks for the model alone from a JSON value, wherever they are, and returns how many there were. A value
/// that is one becomes null. An item of ACP's content goes with its block.
pub(crate) fn strip(json: &mut Json) -> usize {
    take_hidden(json).len()
}

/// Removes the blocks for the model alone from a JSON value, and returns them with their JSON pointers before the
/// removal.
pub(super) fn take_hidden(json: &mut Json) -> Vec<(String, Json)> {
    let mut taken = Taken::default();
    match is_hidden(json) {
        true => taken.found.push((String::new(), json.take())),
        false => taken.walk(json),
    }
    taken.found
}

#[derive(Default)]
struct Taken {
    pointer: String,
    found: Vec<(String, Json)>,
}

impl Taken {
    fn walk(&mut self, json: &mut Json) {
        match json {
            Json::Array(items) => {
                let mut at = 0;
                items.retain_mut(|item| {
                    at += 1;
                    self.keeps(&(at - 1).to_string(), item, false)
                });
            }
            Json::Object(fields) => {
                // The audience of a block counts more than that of the resource inside it.
                let has_audience = fields.get("annotations").is_some_and(|it| !it["audience"].is_null());
                fields.retain(|key, value| {
                    let is_judged = has_audience && key == "resource";
                    self.keeps(&pointer_step(key), value, is_judged)
                });
            }
            _ => {}
        }
    }

    /// Whether a value stays, after it has lost what is hidden in it. `is_judged` is a value whose own audience does not
    /// count.
    fn keeps(&mut self, step: &str, value: &mut Json, is_judged: bool) -> bool {
        let before = self.pointer.len();
        self.pointer.push('/');
        self.pointer.push_str(step);
        let keeps = is_judged || !is_hidden(value);
        if keeps {
            self.walk(value);
        } else {
            self.found.push((self.pointer.clone(), value.take()));
        }
        self.pointer.truncate(before);
        keeps
    }
}

/// Returns the value without the blocks for the model alone: nil, if it is one.
pub(crate) fn stripped(value: &Value) -> Value {
    if !may_hide(value) {
        return value.clone();
    }
    let mut json = value.to_json();
    if strip(&mut json) == 0 { value.clone() } else { json.into() }
}

/// Returns whether a value can hold blocks for the model alone. Most values are small and have no audience, and this is
/// asked for each progress update.
pub(super) fn may_hide(value: &Value) -> bool {
    value.as_bytes().windows(ROLE.len()).any(|it| it == ROLE.as_bytes())
}

/// Returns whether a value is a block for the model alone, or an item of ACP's content with such a block.
pub(crate) fn is_hidden(json: &Json) -> bool {
    let is_item = json["type"] == "content";
    audience_of_json(json) == Audience::Model
        || is_item && audience_of_json(&json["content"]) == Audience::Model
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tool::ErrorCode;

    const SECRET: &str = "planted-for-the-model";

    #[test]
    fn audience_of_a_resource_is_that_of_its_block() {
        let resource =
            |audience: &str| json!({"uri": "a:b", "text": SECRET, "annotations": {"audience": [audience]}});
        for (audience, hides) in [("assistant", true), ("user", false)] {
            let block = json!({"type": "resource", "resource": resource(audience)});
            assert_eq!(is_hidden(&block), hides, "{block}");
            assert_eq!(ContentBlock::from_value(&Value::from(&block)).audience() == Audience::Model, hides);
        }
        let outer = json!({
            "type": "resource", "resource": resource("assistant"), "annotations": {"audience": ["user", "assistant"]},
        });
        assert!(!is_hidden(&outer), "the block's own audience counts");
    }

    #[test]
    fn message_that_says_a_hidden_text_is_replaced() {
        let long = format!("{SECRET}\n{}", "more of it ".repeat(300));
        for (hidden, message) in [
            (SECRET, SECRET),
            ("short", " short "),
            (SECRET, "reading failed: planted-for-the-model!"),
            (&long, "reading failed: planted-for-the-model"),
            (&long, &long[..1_000]),
        ] {
            let partial = ToolResult::default().with_model_text(hidden).with_text("public");
            let error = ToolError::new("own", message).with_partial(partial.to_value());
            let public = error.for_clients();
            assert_eq!(
                (public.code(), public.message()),
                (ErrorCode::from("own"), HIDDEN_MESSAGE),
                "{message}"
            );
            let partial = ToolResult::of(public.partial().unwrap());
            assert_eq!(partial.for_model(100).text, "public");
        }
        let partial = ToolResult::default().with_model_text("a").to_value();
        let error = ToolError::new("own", "a file is missing").with_partial(partial);
        assert_eq!(error.for_clients().message(), "a file is missing");
        assert_eq!(ToolError::from(SECRET).for_clients().message(), SECRET);
    }

    #[test]
    fn blocks_for_the_model_alone_are_stripped_wherever_they_are() {
        for audience in [json!(["assistant"]), json!("assistant"), json!(["assistant", "auditor"])] {
            let block = json!({"type": "hologram", "beam": SECRET, "annotations": {"audience": audience}});
            let item = json!({"type": "content", "content": block});
            let outer = json!({"type": "content", "content": {"type": "text", "text": SECRET}, "annotations": {"audience": audience}});
            let mut json = json!({"a": [1, block, [item, outer, {"b": block, "c": 2}]], "d": item});
            assert_eq!(strip(&mut json), 5);
            assert_eq!(json, json!({"a": [1, [{"c": 2}]]}));
        }
        let mut whole = json!({"note": SECRET, "annotations": {"audience": ["assistant"]}});
        assert!(stripped(&Value::from(&whole)).is_nil());
        assert_eq!((strip(&mut whole), whole), (1, Json::Null));
        let both = json!([{"type": "text", "annotations": {"audience": ["user", "assistant"]}}, {"type": "text"}, "x"]);
        let mut kept = both.clone();
        assert_eq!((strip(&mut kept), kept), (0, both));
    }

    #[test]
    fn value_without_hidden_blocks_stays_as_it_is() {
        let value = Value::from(json!({"bridge.result": 1, "text": "a", "content": ["a"], "own": 1}));
        assert_eq!(public_value(&value), value);
        let hidden =
            ToolResult::text("a").with_block(ContentBlock::text(SECRET).with_audience(Audience::Model));
        assert!(!public_value(&hidden.to_value()).to_json().to_string().contains(SECRET));
    }
}
