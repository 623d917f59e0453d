//! Reads the parts of a JSON-RPC message that become HTTP headers.

use std::{borrow::Cow, fmt};

use serde::Deserialize;
use serde_json::Value as Json;

use crate::adapter::{
    json::{self, DocumentError},
    jsonrpc::{
        self,
        error::{INVALID_REQUEST, SHAPE, code_of, refusal, unreadable},
        head::Head,
        id::Id,
        message::Parts,
    },
};

/// The key of the protocol version in the metadata of a request, from version 2026-07-28 on.
const VERSION: &str = "io.modelcontextprotocol/protocolVersion";

/// A message of the host.
pub(super) struct HostMessage {
    pub(super) text: Vec<u8>,
    pub(super) kind: Kind,
    pub(super) id: Option<Id>,
    /// The protocol version that the request itself names.
    pub(super) version: Option<String>,
    /// What the request names: a tool, a prompt, a resource or a task.
    pub(super) name: Option<String>,
}

pub(super) enum Kind {
    /// `id` is the JSON of its id.
    Request {
        id: String,
        method: String,
    },
    /// `cancels` is the JSON of the id that it cancels.
    Notification {
        method: String,
        cancels: Option<String>,
    },
    Response,
}

impl HostMessage {
    /// Reads a message, or returns the error to send.
    pub(super) fn read(text: Vec<u8>) -> Result<Self, String> {
        let refused = |error: &DocumentError| Self::unreadable(Head::of(&text), code_of(error), error);
        let readable = jsonrpc::text(&text).map_err(|error| refused(&error))?;
        let json: Json = serde_json::from_str(&readable)
            .map_err(|error| refused(&DocumentError::NotJson { reason: error.to_string() }))?;
        let repaired = match readable {
            Cow::Borrowed(_) => None,
            Cow::Owned(readable) => Some(readable.into_bytes()),
        };
        let id = json["id"].clone();
        let kind = match (json["method"].as_str(), &id) {
            (Some(method), Json::String(_) | Json::Number(_)) => {
                Kind::Request { id: id.to_string(), method: method.to_owned() }
            }
            (Some(method), Json::Null) if json.get("id").is_none() => {
                let cancels = json.pointer("/params/requestId").map(Json::to_string);
                Kind::Notification { method: method.to_owned(), cancels }
            }
            (None, _) if json.get("result").is_some() || json.get("error").is_some() => Kind::Response,
            _ => {
                return Err(refusal(Id::of(&id).as_ref(), INVALID_REQUEST, SHAPE));
            }
        };
        let params = &json["params"];
        let version = params["_meta"][VERSION].as_str().map(str::to_owned);
        let name = ["name", "uri", "taskId"].iter().find_map(|key| params[*key].as_str()).map(str::to_owned);
        Ok(Self { kind, id: Head::of(&text).id(), text: repaired.unwrap_or(text), version, name })
    }

    /// Returns the error for a message that cannot be read.
    pub(super) fn unreadable(head: Head<'_>, code: i64, reason: impl fmt::Display) -> String {
        unreadable(head, code, &format!("the message cannot be read: {reason}"))
    }

    pub(super) fn method(&self) -> Option<&str> {
        match &self.kind {
            Kind::Request { method, .. } | Kind::Notification { method, .. } => Some(method),
            Kind::Response => None,
        }
    }
}

/// Returns whether a message of the server is the answer to this request, or an error that names no request.
pub(super) fn answers(text: &str, id: Option<&Id>) -> bool {
    let Ok(answer) = serde_json::from_str::<Parts<'_>>(text) else { return false };
    let named = answer.id.and_then(|it| Id::read(it.get().as_bytes()));
    answer.method.is_none()
        && (named.is_some() && named.as_ref() == id || answer.id.is_none() && answer.error.is_some())
}

/// Returns the answer to this request with its id: the host cannot tell what an error without one answers.
pub(super) fn addressed(text: String, id: Option<&Id>) -> String {
    if names(&text, id) {
        return text;
    }
    let Ok(mut fields) = json::object(&text) else { return text };
    let id = id.and_then(|id| serde_json::from_str(id.as_json()).ok());
    fields.insert("id".to_owned(), id.unwrap_or_default());
    Json::Object(fields).to_string()
}

/// Returns whether a message names this request.
pub(super) fn names(text: &str, id: Option<&Id>) -> bool {
    let named = serde_json::from_str::<Parts<'_>>(text).ok().and_then(|parts| parts.id);
    named.is_some_and(|named| Id::read(named.get().as_bytes()).as_ref() == id)
}

/// Returns the protocol version that the server has chosen in its answer to `initialize`.
pub(super) fn chosen_version(text: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Answer {
        result: Chosen,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Chosen {
        protocol_version: String,
    }
    let answer: Answer = serde_json::from_str(text).ok()?;
    Some(answer.result.protocol_version)
}

/// Returns a message as one line. Outside of strings, a newline in JSON is a space.
pub(super) fn line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::adapter::jsonrpc::error::PARSE;

    fn read(text: &str) -> Result<HostMessage, String> {
        HostMessage::read(text.as_bytes().to_vec())
    }

    #[test]
    fn messages_are_told_apart() {
        let call = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"ring"}}"#;
        let call = read(call).unwrap();
        assert!(matches!(&call.kind, Kind::Request { id, method } if id == "7" && method == "tools/call"));
        assert_eq!((call.name.as_deref(), call.version), (Some("ring"), None));
        let cancel = read(r#"{"method":"notifications/cancelled","params":{"requestId":"a"}}"#).unwrap();
        assert!(matches!(cancel.kind, Kind::Notification { cancels: Some(id), .. } if id == r#""a""#));
        assert!(matches!(read(r#"{"id":1,"result":{}}"#).unwrap().kind, Kind::Response));
        for (text, code) in [
            ("{", PARSE),
            ("[]", INVALID_REQUEST),
            ("7", INVALID_REQUEST),
            (r#"{"id":null,"method":"ping"}"#, INVALID_REQUEST),
        ] {
            let error = read(text).err().unwrap();
            assert!(error.contains(&code.to_string()), "{error}");
        }
    }

    #[test]
    fn request_of_the_newest_version_names_it() {
        let text =
            format!(r#"{{"id":1,"method":"tools/list","params":{{"_meta":{{"{VERSION}":"2026-07-28"}}}}}}"#);
        assert_eq!(read(&text).unwrap().version.as_deref(), Some("2026-07-28"));
    }

    #[test]
    fn answer_is_recognized_by_its_id() {
        assert!(answers(r#"{"id":7,"result":{}}"#, Id::of(&json!(7)).as_ref()));
        assert!(answers(r#"{"error":{"code":1}}"#, Id::of(&json!(7)).as_ref()));
        let addressed =
            addressed(r#"{"id":null,"error":{"code":1}}"#.to_owned(), Id::of(&json!(1.5)).as_ref());
        assert!(addressed.contains(r#""id":1.5"#), "{addressed}");
        for other in [r#"{"id":8,"result":{}}"#, r#"{"id":7,"method":"ping"}"#, r#"{"method":"x"}"#, "no"] {
            assert!(!answers(other, Id::of(&json!(7)).as_ref()), "{other}");
        }
    }

    #[test]
    fn message_over_several_lines_becomes_one() {
        assert_eq!(line("{\n  \"a\": \"b\\n\"\r\n}"), "{   \"a\": \"b\\n\"  }");
    }
}
