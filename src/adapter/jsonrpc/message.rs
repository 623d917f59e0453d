//! Splits a message into its parts, without reading what they contain.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

#[cfg(any(test, all(any(feature = "acp", feature = "mcp"), unix)))]
use super::id::Id;

/// The parts of a message, whatever it is.
#[derive(Deserialize)]
#[cfg_attr(
    not(all(any(feature = "acp", feature = "mcp"), unix)),
    expect(dead_code, reason = "MCP's server only tells which messages need no answer")
)]
pub(in crate::adapter) struct Parts<'a> {
    #[serde(default, borrow)]
    pub(in crate::adapter) jsonrpc: Option<Cow<'a, str>>,
    /// `None` also for `null`.
    #[serde(default, borrow)]
    pub(in crate::adapter) id: Option<&'a RawValue>,
    #[serde(default, borrow)]
    pub(in crate::adapter) method: Option<Cow<'a, str>>,
    /// `None` also for `null`.
    #[serde(default, borrow)]
    pub(in crate::adapter) params: Option<&'a RawValue>,
    #[serde(default, borrow, deserialize_with = "present")]
    pub(in crate::adapter) result: Option<&'a RawValue>,
    #[serde(default, borrow, deserialize_with = "present")]
    pub(in crate::adapter) error: Option<&'a RawValue>,
}

/// Reads a member whose value may be `null`.
fn present<'a, D: Deserializer<'a>>(value: D) -> Result<Option<&'a RawValue>, D::Error> {
    Deserialize::deserialize(value).map(Some)
}

/// What a message is.
#[cfg(any(test, all(any(feature = "acp", feature = "mcp"), unix)))]
pub(in crate::adapter) enum Message<'a> {
    Request {
        id: Id,
        method: Cow<'a, str>,
        params: Option<&'a RawValue>,
    },
    Notification {
        method: Cow<'a, str>,
        params: Option<&'a RawValue>,
    },
    /// `answer` is the result, or the error.
    Response {
        id: Option<Id>,
        answer: Result<&'a RawValue, &'a RawValue>,
    },
}

impl<'a> Parts<'a> {
    /// Returns what the message is: `None` if it is not a message of JSON-RPC 2.0.
    #[cfg(any(test, all(any(feature = "acp", feature = "mcp"), unix)))]
    pub(in crate::adapter) fn message(self) -> Option<Message<'a>> {
        if self.jsonrpc.as_deref() != Some("2.0") {
            return None;
        }
        let id = match self.id {
            Some(id) => Some(Id::read(id.get().as_bytes())?),
            None => None,
        };
        // Some programs write `"error": null` beside a result.
        let error = self.error.filter(|error| error.get() != "null" || self.result.is_none());
        match (self.method, self.result, error, id) {
            (Some(method), None, error, id) if error.is_none_or(|error| error.get() == "null") => {
                let params = self.params;
                Some(match id {
                    Some(id) => Message::Request { id, method, params },
                    None => Message::Notification { method, params },
                })
            }
            (None, Some(result), None, Some(id)) => {
                Some(Message::Response { id: Some(id), answer: Ok(result) })
            }
            (None, None, Some(error), id) => Some(Message::Response { id, answer: Err(error) }),
            _ => None,
        }
    }
}

/// Returns a text with other parts in place of these, which are parts of it.
#[cfg(any(feature = "mcp-server", all(feature = "mcp", unix)))]
pub(in crate::adapter) fn changed(text: &str, mut changes: Vec<(&str, String)>) -> String {
    let start = |part: &str| part.as_ptr() as usize - text.as_ptr() as usize;
    changes.sort_by_key(|(part, _)| std::cmp::Reverse(start(part)));
    let mut changed = text.to_owned();
    for (part, other) in changes {
        changed.replace_range(start(part)..start(part) + part.len(), &other);
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(text: &str) -> String {
        match serde_json::from_str::<Parts<'_>>(text).ok().and_then(Parts::message) {
            Some(Message::Request { id, method, params }) => {
                format!("request {} {method} {}", id.as_json(), params.map_or("-", RawValue::get))
            }
            Some(Message::Notification { method, .. }) => format!("notification {method}"),
            Some(Message::Response { id, answer }) => {
                let id = id.map_or_else(|| "-".to_owned(), |id| id.as_json().to_owned());
                match answer {
                    Ok(result) => format!("result {id} {}", result.get()),
                    Err(error) => format!("error {id} {}", error.get()),
                }
            }
            None => "none".to_owned(),
        }
    }

    #[test]
    fn messages_are_told_apart() {
        for (members, expected) in [
            (r#""id":1.5,"method":"a","params":{ "n" : 1.0e2 }"#, r#"request 1.5 a { "n" : 1.0e2 }"#),
            (r#""id":"x","method":"a","params":null,"error":null"#, r#"request "x" a -"#),
            (r#""method":"a""#, "notification a"),
            (r#""id":null,"method":"a""#, "notification a"),
            (r#""id":7,"result":null"#, "result 7 null"),
            (r#""id":7,"result":1,"error":null"#, "result 7 1"),
            (r#""id":7,"error":null"#, "error 7 null"),
            (r#""id":null,"error":"no""#, r#"error - "no""#),
            (r#""result":1"#, "none"),
            (r#""id":1,"result":1,"error":{}"#, "none"),
            (r#""id":1,"method":"a","result":1"#, "none"),
            (r#""id":1,"method":"a","error":{}"#, "none"),
            (r#""id":[1],"method":"a""#, "none"),
            (r#""id":1"#, "none"),
        ] {
            assert_eq!(kind(&format!(r#"{{"jsonrpc":"2.0",{members}}}"#)), expected, "{members}");
        }
        assert_eq!(kind(r#"{"jsonrpc":"1.0","id":1,"method":"a"}"#), "none");
    }
}
