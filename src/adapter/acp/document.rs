//! Assembles a tool call of an agent from the updates that the agent sends.
//!
//! The rules: <https://agentclientprotocol.com/protocol/tool-calls>. The parts stay text, because the crate's types
//! change what they do not know, merge `null` with absent, and round large numbers.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{MapAccess, Visitor},
    ser::SerializeMap as _,
};
use serde_json::{Value as Json, value::RawValue};

use crate::{
    adapter::json::{DocumentError, measure, object, value},
    tool::public::strip,
};

/// The most fields of a call, those included that no version of the protocol has.
const MAX_FIELDS: usize = 64;

/// The kinds of calls that the protocol knows.
pub(super) const KINDS: [&str; 10] =
    ["read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"];

/// A tool call of an agent: the merged updates about it.
///
/// ```
/// use toolbridge::adapter::acp::{CallStatus, ToolCall};
///
/// let mut call = ToolCall::read(r#"{"toolCallId": "1", "title": "Read a file", "kind": "read"}"#)?;
/// assert_eq!(call.status(), CallStatus::Pending);
/// call.merge(&ToolCall::read(r#"{"toolCallId": "1", "status": "completed", "rawOutput": [1e400]}"#)?);
/// assert_eq!(
///     call.write(),
///     r#"{"toolCallId":"1","title":"Read a file","kind":"read","status":"completed","rawOutput":[1e400]}"#
/// );
/// # Ok::<(), toolbridge::adapter::DocumentError>(())
/// ```
#[derive(Clone, Default)]
pub struct ToolCall {
    /// The fields in the order in which they came. A name is there once.
    fields: Vec<(String, Box<RawValue>)>,
}

/// The status of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallStatus {
    /// It has not started: its input is not complete, or waits for approval.
    Pending,
    /// It runs.
    InProgress,
    /// It has succeeded.
    Completed,
    /// It has failed.
    Failed,
    /// A status of another version of the protocol.
    Other(String),
}

impl CallStatus {
    /// Returns whether nothing follows it.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Completed | Self::Failed)
    }

    fn read(text: &str) -> Self {
        match text {
            "pending" => Self::Pending,
            "in_progress" => Self::InProgress,
            "completed" => Self::Completed,
            "failed" => Self::Failed,
            other => Self::Other(other.to_owned()),
        }
    }

    /// Returns the status as the protocol writes it.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Pending => "pending",
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Other(other) => other,
        }
    }
}

impl ToolCall {
    /// Reads a call, or an update of one. `sessionUpdate` is left out, because it names the message and not the call.
    ///
    /// # Errors
    /// Any [`DocumentError`]; also if the call has more than 64 fields.
    pub fn read(json: &str) -> Result<Self, DocumentError> {
        measure(json)?;
        match serde_json::from_str::<Self>(json) {
            Ok(call) => Ok(call),
            Err(error) => {
                object(json)?; // says it if it is another value
                Err(DocumentError::NotJson { reason: error.to_string() })
            }
        }
    }

    /// Merges an update. A field that the update has replaces this one's, lists as a whole; `_meta` gets the update's
    /// entries. A `null` is kept where there was no value, and otherwise changes nothing.
    ///
    /// The call has at most 64 fields, and a status: what an update has beyond that is left out.
    ///
    /// After a final status nothing changes. Returns whether anything may have changed.
    pub fn merge(&mut self, update: &Self) -> bool {
        if self.status().is_final() {
            return false;
        }
        for (name, value) in &update.fields {
            let has_room = self.fields.len() < MAX_FIELDS;
            let existing = self.fields.iter_mut().find(|(existing, _)| existing == name);
            match existing {
                Some(_) if value.get() == "null" => {}
                Some((_, own)) if name == "_meta" => *own = merged(own, value),
                Some((_, own)) => own.clone_from(value),
                // Nothing else ends the call.
                None if has_room || name == "status" => self.fields.push((name.clone(), value.clone())),
                None => {}
            }
        }
        true
    }

    /// Returns the call's id in its session, if it has one.
    pub fn id(&self) -> Option<String> {
        self.text("toolCallId")
    }

    /// Returns what the call does, for people.
    pub fn title(&self) -> Option<String> {
        self.text("title").filter(|title| !title.is_empty())
    }

    /// Returns the name of the tool, if the agent gives one.
    pub fn name(&self) -> Option<String> {
        self.text("name").filter(|name| !name.is_empty())
    }

    /// Returns the kind: `read`, `edit`, `delete`, `move`, `search`, `execute`, `think`, `fetch`, `other`, or one of
    /// another version. Without one it is `other`.
    pub fn kind(&self) -> String {
        self.text("kind").unwrap_or_else(|| "other".to_owned())
    }

    /// Returns the status. Without one it is [`Pending`](CallStatus::Pending).
    pub fn status(&self) -> CallStatus {
        self.text("status").map_or(CallStatus::Pending, |status| CallStatus::read(&status))
    }

    /// Returns a field as JSON. Numbers beyond 64 bits are rounded; [`write`](Self::write) keeps them.
    pub fn field(&self, name: &str) -> Option<Json> {
        let raw = self.raw(name)?;
        value(raw).ok() // a number or half a surrogate pair that JSON values cannot hold is replaced
    }

    /// Returns whether the field is there, `null` included.
    pub fn has(&self, name: &str) -> bool {
        self.raw(name).is_some()
    }

    /// Returns whether the field is there, and not `null`.
    pub(in crate::adapter::acp) fn has_value(&self, name: &str) -> bool {
        self.raw(name).is_some_and(|raw| raw != "null")
    }

    /// Returns the document, in which each value is as the agent wrote it.
    pub fn write(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Returns the size of the document, in bytes, without the punctuation between fields.
    pub fn size(&self) -> usize {
        self.fields.iter().map(|(name, value)| name.len() + value.get().len()).sum()
    }

    /// Returns the size after an update is merged, or more if both have `_meta`.
    pub(super) fn size_with(&self, update: &Self) -> usize {
        if self.status().is_final() {
            return self.size();
        }
        update.fields.iter().fold(self.size(), |size, (name, value)| match self.raw(name) {
            Some(_) if value.get() == "null" => size,
            Some(_) if name == "_meta" => size + value.get().len(),
            Some(own) => size - own.len() + value.get().len(),
            None => size + name.len() + value.get().len(),
        })
    }

    fn raw(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(existing, _)| existing == name).map(|(_, value)| value.get())
    }

    fn text(&self, name: &str) -> Option<String> {
        match value(self.raw(name)?) {
            Ok(Json::String(text)) => Some(text),
            _ => None,
        }
    }

    fn set(&mut self, name: String, value: Box<RawValue>) {
        match self.fields.iter_mut().find(|(existing, _)| *existing == name) {
            Some((_, own)) => *own = value,
            None => self.fields.push((name, value)),
        }
    }
}

/// What anyone but the model may see of a call. What is shown of a call in progress, and what a person is asked about it, is
/// made of this.
#[derive(Clone, Copy)]
pub(super) struct PublicCall<'a>(&'a ToolCall);

impl<'a> From<&'a ToolCall> for PublicCall<'a> {
    fn from(call: &'a ToolCall) -> Self {
        Self(call)
    }
}

impl PublicCall<'_> {
    /// As [`ToolCall::id`].
    pub(super) fn id(self) -> Option<String> {
        self.0.id()
    }

    /// As [`ToolCall::title`].
    pub(super) fn title(self) -> Option<String> {
        self.0.title()
    }

    /// As [`ToolCall::name`].
    pub(super) fn name(self) -> Option<String> {
        self.0.name()
    }

    /// As [`ToolCall::kind`].
    pub(super) fn kind(self) -> String {
        self.0.kind()
    }

    /// As [`ToolCall::status`].
    pub(super) fn status(self) -> CallStatus {
        self.0.status()
    }

    /// As [`ToolCall::field`], without the blocks for the model alone.
    pub(super) fn field(self, name: &str) -> Option<Json> {
        let mut field = self.0.field(name)?;
        strip(&mut field);
        Some(field)
    }

    /// Returns the input as it is: a person decides about all of it.
    pub(super) fn input(self) -> Option<Json> {
        self.0.field("rawInput")
    }

    /// Returns how many blocks of the content are for the model alone.
    pub(super) fn hidden_blocks(self) -> usize {
        self.0.field("content").map_or(0, |mut content| strip(&mut content))
    }
}

/// Merges two objects; any other value is replaced.
fn merged(own: &RawValue, update: &RawValue) -> Box<RawValue> {
    let read = |value: &RawValue| serde_json::from_str::<ToolCall>(value.get());
    let (Ok(mut fields), Ok(more)) = (read(own), read(update)) else { return update.to_owned() };
    for (name, value) in more.fields {
        fields.set(name, value);
    }
    serde_json::value::to_raw_value(&fields).unwrap_or_else(|_| update.to_owned())
}

impl<'de> Deserialize<'de> for ToolCall {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = ToolCall;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ToolCall, A::Error> {
                let mut call = ToolCall::default();
                while let Some((name, value)) = map.next_entry::<String, Box<RawValue>>()? {
                    if name != "sessionUpdate" {
                        call.set(name, value);
                    }
                    if call.fields.len() > MAX_FIELDS {
                        return Err(serde::de::Error::custom(format_args!("more than {MAX_FIELDS} fields")));
                    }
                }
                Ok(call)
            }
        }

        deserializer.deserialize_map(Fields)
    }
}

impl Serialize for ToolCall {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.fields.len()))?;
        for (name, value) in &self.fields {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl PartialEq for ToolCall {
    fn eq(&self, other: &Self) -> bool {
        self.write() == other.write()
    }
}

/// Without the content, which may be private.
impl fmt::Debug for ToolCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolCall").field("status", &self.status()).field("bytes", &self.size()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> ToolCall {
        ToolCall::read(json).unwrap()
    }

    fn merged(parts: &[&str]) -> String {
        let mut call = read(parts[0]);
        for part in &parts[1..] {
            call.merge(&read(part));
        }
        call.write()
    }

    #[test]
    fn acp_c2_absent_kind_and_status_have_defaults_and_unknown_ones_are_kept() {
        let call = read(r#"{"toolCallId":"1"}"#);
        assert_eq!((call.kind().as_str(), call.status()), ("other", CallStatus::Pending));
        for kind in
            ["read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "sing"]
        {
            assert_eq!(read(&format!(r#"{{"kind":"{kind}"}}"#)).kind(), kind);
        }
        for status in ["pending", "in_progress", "completed", "failed", "sleeping"] {
            let call = read(&format!(r#"{{"status":"{status}"}}"#));
            assert_eq!(call.status().as_str(), status);
            assert_eq!(call.write(), format!(r#"{{"status":"{status}"}}"#));
        }
        assert!(!CallStatus::Other("sleeping".into()).is_final());
    }

    #[test]
    fn acp_c3_only_sent_fields_change_and_lists_are_replaced() {
        let start = r#"{"sessionUpdate":"tool_call","toolCallId":"1","title":"a","content":[1,2],"locations":[{"path":"/x"}]}"#;
        let parts = [
            start,
            r#"{"toolCallId":"1","content":[3],"odd":{"b":1}}"#,
            r#"{"toolCallId":"1","title":"b","locations":[],"odd":{"c":1},"_meta":{"x":1}}"#,
            r#"{"toolCallId":"1","title":null,"_meta":{"y":2}}"#,
        ];
        let all = r#"{"toolCallId":"1","title":"b","content":[3],"locations":[],"odd":{"c":1},"_meta":{"x":1,"y":2}}"#;
        assert_eq!(merged(&parts), all);
    }

    #[test]
    fn acp_c4_input_and_output_are_kept_exactly() {
        for value in [
            "{}",
            "[1.0,1e400]",
            "\"x\"",
            "7",
            "null",
            "{ \"a\" : 123456789012345678901234567890 }",
            "\"\\ud83d\"",
        ] {
            let call = read(&format!(r#"{{"rawInput":{value},"rawOutput":{value}}}"#));
            assert_eq!(call.write(), format!(r#"{{"rawInput":{value},"rawOutput":{value}}}"#));
            assert!(call.has("rawInput") && call.field("rawOutput").is_some(), "{value}");
        }
        assert!(!read("{}").has("rawOutput"));
        assert_eq!(merged(&["{}", r#"{"rawOutput":null}"#]), r#"{"rawOutput":null}"#);
        assert_eq!(merged(&[r#"{"rawOutput":1}"#, r#"{"rawOutput":null}"#]), r#"{"rawOutput":1}"#);
    }

    #[test]
    fn acp_c4_text_with_half_a_surrogate_pair_is_read_with_a_replacement() {
        let call = read(r#"{"title":"x \ud83d","toolCallId":"\ude00"}"#);
        assert_eq!((call.title().as_deref(), call.id().as_deref()), (Some("x \u{fffd}"), Some("\u{fffd}")));
        assert_eq!(call.write(), r#"{"title":"x \ud83d","toolCallId":"\ude00"}"#);
    }

    #[test]
    fn acp_c7_nothing_changes_after_a_final_status() {
        for status in ["completed", "failed"] {
            let mut call = read(&format!(r#"{{"toolCallId":"1","status":"{status}"}}"#));
            let before = call.write();
            assert!(!call.merge(&read(r#"{"status":"in_progress","title":"late","rawOutput":1}"#)));
            assert_eq!(call.write(), before);
        }
    }

    #[test]
    fn size_after_a_merge_is_known_before() {
        let start = r#"{"toolCallId":"1","title":"Look","content":["a long text"],"_meta":{"a":1}}"#;
        for (update, surplus) in [
            (r#"{"content":["b"]}"#, 0),
            (r#"{"content":null,"title":"Look at it","status":"in_progress"}"#, 0),
            (r#"{"status":"completed","rawOutput":null}"#, 0),
            (r#"{"_meta":{"b":2}}"#, 1),
        ] {
            let (mut call, update) = (read(start), read(update));
            let size = call.size_with(&update);
            call.merge(&update);
            assert_eq!(size, call.size() + surplus, "{update:?}");
        }
        let ended = read(r#"{"toolCallId":"1","status":"failed"}"#);
        assert_eq!(ended.size_with(&read(start)), ended.size(), "nothing changes after a final status");
    }

    #[test]
    fn document_that_is_not_an_object_or_too_large_is_refused() {
        assert_eq!(ToolCall::read("[]"), Err(DocumentError::NotAnObject));
        assert!(matches!(ToolCall::read("hunter2"), Err(DocumentError::NotJson { .. })));
        let many: Vec<String> = (0..=MAX_FIELDS).map(|n| format!("\"f{n}\":{n}")).collect();
        assert!(ToolCall::read(&format!("{{{}}}", many.join(","))).is_err());
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(200), "]".repeat(200));
        assert!(matches!(ToolCall::read(&deep), Err(DocumentError::TooDeep { .. })));
        // Fields that updates add stay within the limit.
        let mut call = ToolCall::default();
        for n in 0..1_000 {
            call.merge(&read(&format!("{{\"f{n}\":{n}}}")));
        }
        assert_eq!(call.fields.len(), MAX_FIELDS);
        call.merge(&read(r#"{"status":"completed","more":1}"#));
        assert_eq!((call.status(), call.fields.len()), (CallStatus::Completed, MAX_FIELDS + 1));
    }

    #[test]
    fn debug_output_has_no_content() {
        assert!(!format!("{:?}", read(r#"{"title":"hunter2"}"#)).contains("hunter2"));
    }
}
