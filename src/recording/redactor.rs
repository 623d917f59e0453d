//! Redacts secrets in frames and leaves the rest byte for byte.

use std::{
    collections::{HashSet, VecDeque},
    ops::Range,
};

use bytes::Bytes;

use super::{
    Redact,
    json_secrets::{Secrets, is_like_json, redacted},
};
use crate::{
    protocol::frame::{Frame, Kind, Message},
    value::{
        token::{Token, skip},
        walk::Walk,
        write::Write,
    },
};

/// The key in `meta` that marks a redacted frame.
pub(crate) const MARK: &str = "bridge.redacted";

/// The start of a placeholder. A placeholder is not redacted again.
pub(super) const PLACEHOLDER: &str = "<redacted: ";

/// How many calls of hidden tools await their results: more than are ever open at once.
const CALLS: usize = 16_384;

/// The size of the cache of keys known to be harmless, and the longest key in it, in bytes.
const PLAIN_KEYS: usize = 1_024;
const PLAIN_KEY: usize = 64;

/// Applies a rule to a sequence of frames.
#[derive(Debug)]
pub(super) struct Redactor {
    rule: Redact,
    /// Calls of hidden tools or, if all tools are hidden, of the exceptions; oldest first.
    calls: VecDeque<String>,
    plain: HashSet<Box<[u8]>>,
    /// The stack of a walk, reused to avoid allocations.
    open: Vec<(u64, bool)>,
}

/// A range of the frame and its replacement.
type Change = (Range<usize>, Vec<u8>);

impl Redactor {
    pub(super) fn new(rule: Redact) -> Self {
        Self { rule, calls: VecDeque::new(), plain: HashSet::new(), open: Vec::new() }
    }

    /// Hides a tool, unless redaction is off.
    pub(super) fn hide(&mut self, tool: &str) {
        self.rule = std::mem::replace(&mut self.rule, Redact::nothing()).hiding(tool);
    }

    /// Returns the payload to write: the same bytes if nothing is secret.
    pub(super) fn payload(&mut self, payload: Bytes) -> Bytes {
        if self.rule.is_idle() || self.is_clean(&payload) {
            return payload;
        }
        let Ok(frame) = Frame::decode(payload.clone()) else {
            return self.unreadable(payload, None);
        };
        let hidden = match self.is_hidden(&frame) {
            Some(hidden) => hidden,
            None => return self.unreadable(payload, Some(frame.kind())),
        };
        let mut changes = Vec::new();
        // A validated value can be walked; otherwise the payload is replaced as a whole.
        let walked = self.secrets(&frame, hidden, &mut changes);
        if walked.is_none() {
            return whole(&payload, Some(frame.kind()));
        }
        if changes.is_empty() {
            return payload;
        }
        marked(&payload, &changes).map_or_else(|| whole(&payload, Some(frame.kind())), Bytes::from)
    }

    /// A quick check without decoding: true if no key is secret, no text names a hidden tool, and no call of a hidden
    /// tool is known. Most frames pass.
    fn is_clean(&mut self, bytes: &[u8]) -> bool {
        if self.rule.hides_all() || !self.calls.is_empty() {
            return false;
        }
        let mut walk = Walk::value_with(bytes, 0, std::mem::take(&mut self.open));
        let is_clean = self.passes_clean(&mut walk);
        let end = walk.at();
        self.open = walk.into_stack();
        is_clean && end == bytes.len()
    }

    fn passes_clean(&mut self, walk: &mut Walk<'_>) -> bool {
        loop {
            match walk.next() {
                Ok(None) => return true,
                Ok(Some((Token::Str(key), true))) if self.is_secret(key) => return false,
                Ok(Some((Token::Str(text) | Token::Bin(text), _))) if self.rule.names(text) => return false,
                Ok(Some((Token::Str(text), false))) if is_like_json(text) => return false,
                Ok(Some(_)) => {}
                Err(_) => return false,
            }
        }
    }

    /// Whether all data of the frame is redacted; none if its call is unknown.
    fn is_hidden(&mut self, frame: &Frame) -> Option<bool> {
        match frame.kind() {
            Kind::TOOL_USE_REQUEST => {
                let Ok(Message::ToolUseRequest(request)) = frame.message() else { return None };
                let hidden = self.rule.is_hidden(&request.tool_name);
                let listed = hidden != self.rule.hides_all();
                if listed && !self.calls.iter().any(|id| *id == request.id.as_str()) {
                    if self.calls.len() == CALLS {
                        self.calls.pop_front();
                    }
                    self.calls.push_back(request.id.as_str().to_owned());
                }
                Some(hidden)
            }
            Kind::TOOL_USE_RESULT | Kind::TOOL_PROGRESS
                if !self.calls.is_empty() || self.rule.hides_all() =>
            {
                let id = frame.peek_id()?;
                Some(self.calls.iter().any(|call| call == id) != self.rule.hides_all())
            }
            _ => Some(false),
        }
    }

    /// Keeps an undecodable payload, unless it contains the name of a secret.
    fn unreadable(&self, payload: Bytes, kind: Option<Kind>) -> Bytes {
        if self.rule.is_suspect(&payload) { whole(&payload, kind) } else { payload }
    }

    /// Finds the ranges to redact, in order.
    fn secrets(&mut self, frame: &Frame, hidden: bool, changes: &mut Vec<Change>) -> Option<()> {
        let bytes = frame.as_bytes();
        for (key, value) in pairs(bytes, 0)? {
            let body = text(bytes, key.start) == Some(b"body");
            if body && frame.kind() == Kind::TOOLS_REGISTER {
                continue; // definitions contain no values
            }
            if !body || !hidden {
                self.walk(bytes, key.start..value.end, changes)?;
                continue;
            }
            for (key, value) in pairs(bytes, value.start).unwrap_or_default() {
                match text(bytes, key.start) {
                    Some(b"parameters" | b"arguments" | b"result" | b"data" | b"content") => {
                        change(bytes, &value, true, changes);
                    }
                    Some(b"errorMessage" | b"error_message" | b"error" | b"message") => {
                        change(bytes, &value, false, changes);
                    }
                    _ => self.walk(bytes, key.start..value.end, changes)?,
                }
            }
        }
        Some(())
    }

    /// Searches a key and its value, at any depth.
    fn walk(&mut self, bytes: &[u8], pair: Range<usize>, changes: &mut Vec<Change>) -> Option<()> {
        let mut walk = Walk::pair(bytes, pair.start);
        let mut start = walk.at();
        while let Some((token, is_key)) = walk.next().ok()? {
            match token {
                Token::Str(key) if is_key && self.is_secret(key) => {
                    change(bytes, &walk.skip_value().ok()?, false, changes);
                }
                Token::Str(text) if !is_key && is_like_json(text) => {
                    let text = std::str::from_utf8(text).ok()?;
                    if let Some(redacted) = redacted(text, self) {
                        let mut out = Vec::new();
                        out.str(&redacted);
                        changes.push((start..walk.at(), out));
                    }
                }
                _ => {}
            }
            start = walk.at();
        }
        Some(())
    }
}

impl Secrets for Redactor {
    fn is_suspect(&self, text: &[u8]) -> bool {
        self.rule.is_suspect(text)
    }

    fn is_secret(&mut self, key: &[u8]) -> bool {
        if self.rule.is_harmless(key) || self.plain.contains(key) {
            return false;
        }
        let secret = self.rule.is_secret(key);
        if !secret && key.len() <= PLAIN_KEY && self.plain.len() < PLAIN_KEYS {
            self.plain.insert(key.into());
        }
        secret
    }
}

/// Replaces a value by its placeholder, unless it is absent or already redacted.
fn change(bytes: &[u8], value: &Range<usize>, in_map: bool, changes: &mut Vec<Change>) {
    let Ok((token, _)) = Token::read(bytes, value.start) else { return };
    let taken = |token: Token<'_>| token.as_text().is_some_and(|text| text.starts_with(PLACEHOLDER));
    let again = match token {
        Token::Map(1) => pairs(bytes, value.start)
            .and_then(|pairs| Token::read(bytes, pairs.first()?.1.start).ok())
            .is_some_and(|(token, _)| taken(token)),
        token => taken(token),
    };
    if token.is_absent() || again {
        return;
    }
    let mut out = Vec::new();
    if in_map {
        out.map(1);
        out.str("redacted");
    }
    let kind = token.kind();
    let kind = kind.trim_start_matches("an ").trim_start_matches("a ");
    out.str(&format!("{PLACEHOLDER}{kind}, {} bytes>", value.len()));
    changes.push((value.clone(), out));
}

/// Returns the frame with the changes, and with the mark in its `meta`.
fn marked(bytes: &[u8], changes: &[Change]) -> Option<Vec<u8>> {
    let fields = pairs(bytes, 0)?;
    let meta = fields.iter().find(|(key, _)| text(bytes, key.start) == Some(b"meta"));
    let mut out = Vec::with_capacity(bytes.len() + 64);
    out.map(fields.len() + usize::from(meta.is_none()));
    for (key, value) in &fields {
        out.extend_from_slice(&bytes[key.clone()]);
        match meta {
            Some((_, meta)) if meta == value => {
                let (token, _) = Token::read(bytes, value.start).ok()?;
                let inner = if token.is_absent() { Vec::new() } else { pairs(bytes, value.start)? };
                let known = inner.iter().any(|(key, _)| text(bytes, key.start) == Some(MARK.as_bytes()));
                out.map(inner.len() + usize::from(!known));
                for (key, value) in inner {
                    copy(&mut out, bytes, key.start..value.end, changes);
                }
                if !known {
                    out.str(MARK);
                    out.bool(true);
                }
            }
            _ => copy(&mut out, bytes, value.clone(), changes),
        }
    }
    if meta.is_none() {
        out.str("meta");
        out.map(1);
        out.str(MARK);
        out.bool(true);
    }
    Some(out)
}

/// Copies a range of the frame, and applies the changes in it.
fn copy(out: &mut Vec<u8>, bytes: &[u8], part: Range<usize>, changes: &[Change]) {
    let mut at = part.start;
    let first = changes.partition_point(|(place, _)| place.start < part.start);
    for (place, new) in &changes[first..] {
        if place.start >= part.end {
            break;
        }
        out.extend_from_slice(&bytes[at..place.start]);
        out.extend_from_slice(new);
        at = place.end;
    }
    out.extend_from_slice(&bytes[at..part.end]);
}

/// The replacement for a frame that is redacted as a whole.
fn whole(payload: &Bytes, kind: Option<Kind>) -> Bytes {
    let mut out = Vec::new();
    out.map(2 + usize::from(kind.is_some()));
    if let Some(kind) = kind {
        out.str("type");
        out.unsigned(kind.code().into());
    }
    out.str("meta");
    out.map(1);
    out.str(MARK);
    out.bool(true);
    out.str("redacted");
    out.str(&format!("{PLACEHOLDER}frame, {} bytes>", payload.len()));
    out.into()
}

/// The keys and values of the map at this offset.
fn pairs(bytes: &[u8], at: usize) -> Option<Vec<(Range<usize>, Range<usize>)>> {
    let (Token::Map(count), mut at) = Token::read(bytes, at).ok()? else { return None };
    let mut pairs = Vec::new();
    for _ in 0..count {
        let value = skip(bytes, at).ok()?;
        let end = skip(bytes, value).ok()?;
        pairs.push((at..value, value..end));
        at = end;
    }
    Some(pairs)
}

/// The string at this offset.
fn text(bytes: &[u8], at: usize) -> Option<&[u8]> {
    match Token::read(bytes, at).ok()? {
        (Token::Str(text), _) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn frame(json: &Value) -> Bytes {
        Frame::from_json(&json.to_string()).unwrap().into_bytes()
    }

    fn request(id: &str, tool: &str, parameters: &Value) -> Bytes {
        let body = json!({"id": id, "toolName": tool, "parameters": parameters, "execution": "client"});
        frame(&json!({"stanzaId": -1, "conversationId": "r", "type": 6, "meta": {"a": 1}, "body": body}))
    }

    fn result(id: &str, result: &Value) -> Bytes {
        let body = json!({"id": id, "success": true, "result": result});
        frame(&json!({"stanzaId": 1, "conversationId": "r", "type": 7, "meta": {}, "body": body}))
    }

    fn shown(bytes: &Bytes) -> Value {
        Frame::decode(bytes.clone()).unwrap().to_json().unwrap()
    }

    #[test]
    fn sec_p3_secret_values_are_redacted_at_any_depth_and_the_frame_is_marked() {
        let mut redactor = Redactor::new(Redact::default());
        let parameters = json!({
            "user": "ada", "password": "hunter2",
            "list": [{"api_key": {"deep": [1, 2, 3]}, "n": 7}, {"pin": 1234, "token": null}],
        });
        let redacted = redactor.payload(request("a", "sign_in", &parameters));
        let shown = shown(&redacted);
        assert_eq!(
            shown["body"]["parameters"],
            json!({
                "user": "ada", "password": "<redacted: string, 8 bytes>",
                "list": [
                    {"api_key": "<redacted: map, 10 bytes>", "n": 7},
                    {"pin": "<redacted: integer, 3 bytes>", "token": null},
                ],
            })
        );
        assert_eq!(shown["meta"], json!({"a": 1, "bridge.redacted": true}));
        assert!(!redacted.windows(7).any(|it| it == b"hunter2"));
        assert_eq!(redactor.payload(redacted.clone()), redacted, "redacting twice changes nothing");
    }

    #[test]
    fn common_x10_secret_in_a_native_document_is_redacted() {
        use crate::tool::{Native, ToolResult, ToolSystem};
        let text = json!({"password": "hunter2", "user": "ada"}).to_string();
        let document = json!({"content": [{"type": "text", "text": text}], "_meta": {"apiKey": "hunter2"}});
        let native = Native::new(ToolSystem::MCP, document.to_string());
        let result_value = ToolResult::text(text).with_native(native).to_value();
        let redacted = Redactor::new(Redact::default()).payload(result("a", &result_value.to_json()));
        assert!(!redacted.windows(7).any(|it| it == b"hunter2"));
        let shown = shown(&redacted);
        assert_eq!(shown["meta"]["bridge.redacted"], true);
        let native = shown["body"]["result"]["native"]["json"].as_str().unwrap();
        let native: Value = serde_json::from_str(native).unwrap();
        assert_eq!(native["_meta"]["apiKey"], "<redacted: 9 bytes>");
        assert!(native["content"][0]["text"].as_str().unwrap().contains("ada"));
    }

    #[test]
    fn payload_without_secrets_is_unchanged() {
        let mut redactor = Redactor::new(Redact::default());
        let odd = Bytes::from_static(b"\xde\0\x03\xa4type\xcd\0\x07\xd9\x04body\xdf\0\0\0\x02\xa2id\xa1a\xa7success\xc3\xa1x\xcb\0\0\0\0\0\0\0\0");
        let definitions = frame(&json!({
            "stanzaId": 2, "conversationId": "r", "type": 70, "meta": {},
            "body": {"tools": [{"name": "t", "description": "d", "inputSchema": {"properties": {"password": {}}}}]},
        }));
        for plain in [odd, definitions, request("a", "t", &json!({"n": 1})), Bytes::from_static(b"no frame")]
        {
            assert_eq!(redactor.payload(plain.clone()), plain);
        }
        let secret = request("a", "t", &json!({"password": "hunter2"}));
        assert_eq!(Redactor::new(Redact::nothing()).payload(secret.clone()), secret);
    }

    #[test]
    fn quick_check_misses_no_secret_of_the_full_check() {
        let frames = [
            request("a", "t", &json!({"user": "ada", "deep": [{"api_key": [1]}], "n": 7.5})),
            request("a", "read_diary", &json!({"day": "monday"})),
            result("a", &json!({"text": "kept", "PIN": 1})),
            result("b", &json!([[[{"session-token": null}]], "read_diary"])),
        ];
        for frame in frames {
            for at in 0..frame.len() {
                for bit in 0..8 {
                    let mut changed = frame.to_vec();
                    changed[at] ^= 1 << bit;
                    let changed = Bytes::from(changed);
                    if Frame::decode(changed.clone()).and_then(|frame| frame.message()).is_err() {
                        continue; // the quick check handles frames with readable keys
                    }
                    let mut once = Redactor::new(Redact::default().tool("read_diary"));
                    let mut closely = Redactor::new(Redact::default().tool("read_diary"));
                    closely.calls.push_back("another".to_owned());
                    assert_eq!(once.payload(changed.clone()), closely.payload(changed));
                }
            }
        }
    }

    #[test]
    fn hidden_tool_keeps_only_name_and_outcome() {
        let mut redactor = Redactor::new(Redact::default().tool("read_diary"));
        let asked = shown(&redactor.payload(request("a", "read_diary", &json!({"day": "monday"}))));
        assert_eq!(asked["body"]["parameters"], json!({"redacted": "<redacted: map, 12 bytes>"}));
        assert_eq!(asked["body"]["toolName"], "read_diary");
        let answered = shown(&redactor.payload(result("a", &json!({"text": "dear diary"}))));
        assert_eq!(answered["body"]["result"], json!({"redacted": "<redacted: map, 17 bytes>"}));
        assert_eq!(answered["body"]["success"], true);
        let progress = frame(&json!({
            "stanzaId": 3, "conversationId": "r", "type": 1000, "meta": {},
            "body": {"id": "a", "status": "in_progress", "message": "dear"},
        }));
        assert_eq!(shown(&redactor.payload(progress))["body"]["message"], "<redacted: string, 5 bytes>");
        let other = result("b", &json!({"text": "kept"}));
        assert_eq!(redactor.payload(other.clone()), other);
        let sign_in =
            redactor.payload(request("c", "bridge.authorize", &json!({"url": "https://x/?code=1"})));
        assert_eq!(shown(&sign_in)["body"]["parameters"], json!({"redacted": "<redacted: map, 23 bytes>"}));
    }

    #[test]
    fn undecodable_payload_naming_a_secret_is_redacted_whole() {
        let mut redactor = Redactor::new(Redact::default().tool("read_diary"));
        let secret = request("a", "t", &json!({"password": "hunter2"}));
        let torn = redactor.payload(secret.slice(..secret.len() - 3));
        let text = format!("<redacted: frame, {} bytes>", secret.len() - 3);
        assert!(torn.ends_with(text.as_bytes()));
        let diary = request("a", "read_diary", &json!({"day": "monday"}));
        assert!(!redactor.payload(diary.slice(..diary.len() - 1)).windows(6).any(|it| it == b"monday"));
        // A frame of a known type with an invalid body.
        let wrong = frame(&json!({"stanzaId": 1, "conversationId": "r", "type": 7, "meta": {}, "body": {}}));
        assert_eq!(redactor.payload(wrong.clone()), wrong);
        let no_meta = Bytes::from_static(b"\x82\xa4type\x63\xa4body\x81\xa6Cookie\xa1x");
        let shown = shown(&redactor.payload(no_meta));
        assert_eq!(
            (&shown["body"]["Cookie"], &shown["type"]),
            (&json!("<redacted: string, 2 bytes>"), &json!(99))
        );
        assert_eq!(shown["meta"], json!({"bridge.redacted": true}));
    }
}
