//! Quotes the words in which another program describes a failure, in a bounded error without characters that
//! a terminal obeys.

use serde_json::Value as Json;

use crate::{net::words::one_line, tool::public};

/// The longest description of a failure, in bytes.
const MAX_WORDS: usize = 1_024;

/// The members in which programs write the reason of a failure, the most precise ones first.
const REASONS: [&str; 10] = [
    "details",
    "detail",
    "message",
    "msg",
    "reason",
    "cause",
    "error_description",
    "description",
    "error",
    "title",
];

/// How many errors inside one another are looked through for their reason.
const MAX_LEVELS: usize = 4;

/// Returns a text on one line.
pub(super) fn line(text: &str) -> String {
    one_line(text, MAX_WORDS)
}

/// Returns what a JSON-RPC error says: its message, and its data. `None` if it says nothing.
#[cfg(any(test, feature = "acp", feature = "mcp"))]
pub(super) fn of_rpc(message: &str, data: Option<&Json>) -> Option<String> {
    let message = line(message);
    let data = data.and_then(details).filter(|data| !message.contains(&**data));
    match (message.is_empty(), data) {
        (true, None) => None,
        (true, Some(data)) => Some(data),
        (false, None) => Some(message),
        (false, Some(data)) => Some(line(&format!("{}: {data}", message.trim_end_matches([':', '.'])))),
    }
}

/// Returns what a value says that stands for an error: a text, an error of JSON-RPC, or anything else. `None` if it says
/// nothing.
#[cfg(any(test, feature = "acp", feature = "mcp"))]
pub(super) fn reason_of(error: &Json) -> Option<String> {
    match error["message"].as_str().filter(|message| !line(message).is_empty()) {
        Some(message) => of_rpc(message, error.get("data")),
        None => {
            let own = reason(&public(error), MAX_LEVELS);
            own.or_else(|| error.get("data").and_then(details)).or_else(|| details(error))
        }
    }
}

/// Returns a value of another program on one line: a text, or the JSON. It has nothing that is for the model alone.
#[cfg(any(test, all(feature = "mcp", unix)))]
pub(super) fn of_value(value: &Json) -> String {
    match public(value) {
        Json::String(text) => line(&text),
        other => line(&other.to_string()),
    }
}

/// Returns the reason in the data of an error: a text, the first member that has a reason, or the JSON.
fn details(data: &Json) -> Option<String> {
    let mut data = public(data);
    let reason = reason(&data, MAX_LEVELS);
    if let Json::Object(fields) = &mut data {
        fields.retain(|key, _| key != "code");
    }
    reason.or_else(|| Some(line(&data.to_string())).filter(|_| says_anything(&data)))
}

/// Returns the text that has the reason. An empty one is passed over.
fn reason(value: &Json, levels: usize) -> Option<String> {
    match value {
        Json::String(text) => Some(line(text)).filter(|text| !text.is_empty()),
        Json::Object(fields) if levels > 0 => {
            REASONS.iter().find_map(|key| reason(fields.get(*key)?, levels - 1))
        }
        _ => None,
    }
}

/// Returns whether a value has more than empty texts and containers.
fn says_anything(value: &Json) -> bool {
    match value {
        Json::Null => false,
        Json::String(text) => !text.trim().is_empty(),
        Json::Array(items) => items.iter().any(says_anything),
        Json::Object(fields) => fields.values().any(says_anything),
        Json::Bool(_) | Json::Number(_) => true,
    }
}

/// Returns a value without the blocks for the model alone.
fn public(value: &Json) -> Json {
    if public::is_hidden(value) {
        return Json::Null;
    }
    let mut public = value.clone();
    public::strip(&mut public);
    public
}

#[cfg(all(feature = "mcp", unix))]
pub(super) use http::of_body;
#[cfg(all(any(feature = "mcp", feature = "rap"), unix))]
pub(super) use http::{of_challenge, of_response};

#[cfg(all(any(feature = "mcp", feature = "rap"), unix))]
mod http {
    use std::time::Duration;

    use reqwest::{Response, header::CONTENT_TYPE};
    use tokio::time::timeout;

    use super::{details, line};
    use crate::adapter::json;

    /// The most bytes of a body that are read for its reason.
    const MAX_BODY: usize = 16 << 10;

    /// How long the body of a refusal is read.
    const LIMIT: Duration = Duration::from_secs(2);

    /// Returns what the body of a refusal says. The URL's path and query, and the secrets, are not repeated: a server
    /// may write what it was sent. A page for a browser says nothing.
    pub(in crate::adapter) async fn of_response(mut response: Response, secrets: &[&str]) -> Option<String> {
        let header = response.headers().get(CONTENT_TYPE).and_then(|it| it.to_str().ok());
        if header.is_some_and(|it| it.contains("html")) {
            return None;
        }
        let url = response.url().clone();
        let mut body = Vec::new();
        let read = async {
            while let Ok(Some(chunk)) = response.chunk().await {
                body.extend_from_slice(&chunk[..chunk.len().min(MAX_BODY - body.len())]);
                if body.len() == MAX_BODY {
                    break;
                }
            }
        };
        let _ = timeout(LIMIT, read).await; // what came until then may be all
        let parts = [Some(url.path()), url.query()].into_iter().flatten();
        of_body(&body, &parts.chain(secrets.iter().copied()).collect::<Vec<_>>())
    }

    /// Returns what a demand for a token says is wrong with it: the header `WWW-Authenticate`
    /// ([RFC 6750](https://www.rfc-editor.org/rfc/rfc6750#section-3)).
    pub(in crate::adapter) fn of_challenge(header: &str, token: Option<&str>) -> Option<String> {
        let value = |key: &str| {
            let (_, value) = header.split_once(key)?;
            let quoted = value.strip_prefix('"').and_then(|value| value.split_once('"'));
            Some(
                quoted.map_or_else(|| value.split([',', ' ']).next().unwrap_or_default(), |(value, _)| value),
            )
        };
        let said = value("error_description=").or_else(|| value("error="))?;
        of_body(said.as_bytes(), &token.into_iter().collect::<Vec<_>>())
    }

    /// Returns what a body says, without the secrets.
    pub(in crate::adapter) fn of_body(body: &[u8], secrets: &[&str]) -> Option<String> {
        let text = String::from_utf8_lossy(body);
        let text = text.trim();
        let said = match json::value(text) {
            Ok(json) => details(&json)?,
            Err(_) if text.starts_with(['<', '{', '[']) => return None,
            Err(_) => line(text),
        };
        // A short one, such as the path `/`, is no secret.
        let said = secrets.iter().filter(|it| it.len() > 3).fold(said, |said, it| said.replace(it, "…"));
        (!said.is_empty()).then_some(said)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn data_for_the_model_alone_is_left_out() {
        let hidden = json!({"type": "text", "text": "planted", "annotations": {"audience": ["assistant"]}});
        let data = json!({"content": [hidden, {"type": "text", "text": "seen"}]});
        let said = of_rpc("broken", Some(&data)).unwrap();
        assert!(said.contains("seen") && !said.contains("planted"), "{said}");
    }

    #[test]
    fn data_of_an_error_follows_its_message() {
        for (data, says) in [
            (json!("model overloaded"), "Internal error: model overloaded"),
            (json!({"details": "model overloaded"}), "Internal error: model overloaded"),
            (json!({"error": {"code": 7, "message": "quota"}}), "Internal error: quota"),
            (json!({"retry": 30}), "Internal error: {\"retry\":30}"),
            (json!("Internal error"), "Internal error"),
            (json!(null), "Internal error"),
            (json!({}), "Internal error"),
        ] {
            assert_eq!(of_rpc("Internal error.", Some(&data)).unwrap().trim_end_matches('.'), says, "{data}");
        }
        assert_eq!(of_rpc("", Some(&json!("why"))).as_deref(), Some("why"));
        assert_eq!(of_rpc(" ", None), None);
        assert_eq!(reason_of(&json!("ENOENT")).as_deref(), Some("ENOENT"));
        assert_eq!(reason_of(&json!({"message": "a", "data": "b"})).as_deref(), Some("a: b"));
        assert_eq!((reason_of(&json!(null)), reason_of(&json!({"code": -7, "message": ""}))), (None, None));
    }

    #[test]
    fn first_member_that_says_anything_is_the_reason() {
        for (error, says) in [
            (json!({"message": "", "cause": "no quota"}), "no quota"),
            (json!({"message": " ", "data": {"a": 1}}), r#"{"a":1}"#),
            (json!({"details": {}, "error": {"message": "", "reason": "no quota"}}), "no quota"),
            (json!(["no", "quota"]), r#"["no","quota"]"#),
            (json!({"code": 7, "errors": ["no quota"]}), r#"{"errors":["no quota"]}"#),
        ] {
            assert_eq!(reason_of(&error).as_deref(), Some(says), "{error}");
        }
    }

    #[test]
    fn value_for_the_model_alone_is_left_out() {
        let hidden = json!({"type": "text", "text": "planted", "annotations": {"audience": ["assistant"]}});
        assert_eq!(of_value(&hidden), "null");
        assert_eq!(of_value(&json!({"a": hidden, "b": "\u{1b}[2J"})), r#"{"b":"\u001b[2J"}"#);
    }

    #[test]
    fn words_are_one_line_without_control_characters_and_bounded() {
        assert_eq!(line("a\r\n\tb\u{1b}[31m\u{202e}c"), "a b [31mc");
        let long = of_rpc(&"é".repeat(2_000), Some(&json!("x".repeat(5_000)))).unwrap();
        assert!(long.len() <= MAX_WORDS && long.ends_with('…'), "{}", long.len());
    }

    #[cfg(all(any(feature = "mcp", feature = "rap"), unix))]
    #[test]
    fn body_of_a_refusal_is_repeated_without_its_url_and_without_a_page() {
        let said = |body: &str| of_body(body.as_bytes(), &["/secret/mcp", "hunter2"]);
        assert_eq!(said("no room name\n").as_deref(), Some("no room name"));
        assert_eq!(said(r#"{"detail": "Not Found"}"#).as_deref(), Some("Not Found"));
        assert_eq!(said(r#"{"error": {"message": "bad hunter2"}}"#).as_deref(), Some("bad …"));
        assert_eq!(said("Cannot POST /secret/mcp").as_deref(), Some("Cannot POST …"));
        for nothing in ["", "<!DOCTYPE html><p>x", "{\"detail\": ", "{}"] {
            assert_eq!(said(nothing), None, "{nothing}");
        }
    }
}
