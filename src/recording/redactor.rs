//! Redacts secrets in frames and leaves the rest byte for byte.

use std::{cmp::Reverse, collections::HashSet, ops::Range};

use bytes::Bytes;

use super::{
    About, Redact, RoomEvent,
    allow_list::{self, is_placeholder},
    event_texts,
    format::NAME_LIMIT,
    hidden_calls::{HiddenCalls, Route},
    json_secrets::{Secrets, is_like_json, redacted},
    placeholder,
    referenced_calls::{Reference, references},
    secret_text,
    siblings::{Array, Map},
};
use crate::{
    protocol::frame::{Frame, Kind, Message, ToolUseRequest},
    transport::{Identity, Sid},
    value::{
        token::{Token, skip},
        walk::Walk,
        write::Write,
    },
};

/// The key in `meta` that marks a redacted frame.
pub(crate) const MARK: &str = "bridge.redacted";

/// The prefix of the reserved tools, whose calls may be about another tool.
const RESERVED: &str = "bridge.";

/// The size of the cache of keys known to be harmless, and the longest key in it, in bytes.
const PLAIN_KEYS: usize = 1_024;
const PLAIN_KEY: usize = 64;

/// Applies a rule to a sequence of frames.
#[derive(Debug)]
pub(super) struct Redactor {
    rule: Redact,
    calls: HiddenCalls,
    plain: HashSet<Box<[u8]>>,
    /// The stack of a walk, reused to avoid allocations.
    open: Vec<(u64, bool)>,
}

/// A range of the frame and its replacement.
type Change = (Range<usize>, Vec<u8>);

impl Redactor {
    pub(super) fn new(rule: Redact) -> Self {
        Self { rule, calls: HiddenCalls::default(), plain: HashSet::new(), open: Vec::new() }
    }

    /// Hides a tool, unless redaction is off.
    pub(super) fn hide(&mut self, tool: &str) {
        self.rule = std::mem::replace(&mut self.rule, Redact::nothing()).hiding(tool);
    }

    /// Notes that packets are missing. One of them may have been the request of a hidden tool.
    pub(super) fn miss(&mut self) {
        if self.rule.hides_named() {
            self.calls.miss();
        }
    }

    /// Returns whether the messages of other programs in a file stay. Nothing in them is known, and nothing is searched.
    pub(super) fn keeps_foreign(&self) -> bool {
        self.rule.keeps_foreign_messages()
    }

    /// Returns whether a file has metadata only if everything in it was written by this redactor.
    pub(super) fn leaves_metadata_only(&self) -> bool {
        self.rule.hides_everything()
    }

    /// Returns what a file says of itself, of which another program may have written each text: names without secrets, and
    /// what toolbridge writes.
    pub(super) fn about(&mut self, mut about: About) -> About {
        if self.rule.is_idle() {
            return about;
        }
        for (text, is_known) in [
            (&mut about.version, is_version as fn(&str) -> bool),
            (&mut about.protocol, |text| {
                text.len() <= MAX_NUMBER && text.bytes().all(|it| it.is_ascii_digit())
            }),
        ] {
            if !is_known(text) && placeholder::read(text.as_bytes()).is_none() {
                *text = placeholder::of("a string", text.len());
            }
        }
        let mut name = |text: &str| match self.text(text) {
            _ if text.len() > NAME_LIMIT => Some(placeholder::of("a string", text.len())),
            redacted => redacted,
        };
        about.room = name(&about.room).unwrap_or(about.room);
        about.identity = about.identity.map(|id| name(id.as_str()).map_or(id, Identity::from));
        about.sid = about.sid.map(|sid| name(sid.as_str()).map_or(sid, Sid::from));
        about.metadata_only |= self.leaves_metadata_only();
        about
    }

    /// Returns the payload to write: the same bytes if nothing is secret.
    pub(super) fn payload(&mut self, payload: Bytes, route: Route<'_>) -> Bytes {
        if self.rule.is_idle() || self.is_clean(&payload) {
            return payload;
        }
        let Ok(frame) = Frame::decode(payload.clone()) else {
            return self.unreadable(payload, None);
        };
        let hidden = match self.is_hidden(&frame, route) {
            Some(hidden) => hidden,
            None => return self.unreadable(payload, Some(frame.kind())),
        };
        // A validated value can be walked; otherwise the payload is replaced as a whole.
        let redacted = if hidden { self.reduced(&frame) } else { self.without_secrets(&frame) };
        match redacted {
            Some(None) => payload,
            Some(Some(redacted)) => redacted.into(),
            None => whole(&payload, Some(frame.kind())),
        }
    }

    /// Returns the event to write: the same if nothing in it is secret.
    pub(super) fn event(&mut self, event: RoomEvent) -> RoomEvent {
        if matches!(event, RoomEvent::Unrecorded { .. }) {
            self.miss();
        }
        if self.hides_event(&event) {
            return event_texts::reduced(event);
        }
        event_texts::edited(event, |text| self.text(text))
    }

    /// Returns the event in a file to write; none for one that is not known, if everything is hidden.
    ///
    /// A hidden event keeps the fields that this version knows. In another one, secrets are looked for in every field.
    pub(super) fn event_json(&mut self, json: Bytes) -> Option<Bytes> {
        if self.rule.is_idle() {
            return Some(json);
        }
        match serde_json::from_slice::<RoomEvent>(&json) {
            Ok(RoomEvent::Other) | Err(_) if self.rule.hides_all() => return None,
            Ok(event) => {
                let event = self.event(event);
                if self.hides_event(&event) {
                    return serde_json::to_vec(&event).ok().map(Bytes::from);
                }
            }
            Err(_) => {}
        }
        Some(self.text(&String::from_utf8_lossy(&json)).map_or(json, Bytes::from))
    }

    /// Whether the texts of an event are hidden.
    fn hides_event(&self, event: &RoomEvent) -> bool {
        match event {
            RoomEvent::Unasked { tool, .. } => self.rule.is_hidden(tool),
            RoomEvent::Ended { call, .. } => self.hides_call(call, Route::default()),
            _ => self.rule.hides_all(),
        }
    }

    fn text(&mut self, text: &str) -> Option<String> {
        if self.rule.is_idle() { None } else { redacted(text, self) }
    }

    /// A quick check without decoding: true if nothing in the frame can be secret, and no call of a hidden tool is known. Most
    /// frames pass.
    fn is_clean(&mut self, bytes: &[u8]) -> bool {
        if self.rule.hides_all() || !self.calls.is_idle() {
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
                Ok(Some((Token::Str(text) | Token::Bin(text), _))) => {
                    if self.rule.names(text) || self.may_hold_secret(text) {
                        return false;
                    }
                }
                Ok(Some(_)) => {}
                Err(_) => return false,
            }
        }
    }

    /// Whether a key or a text may be redacted in some frames.
    fn may_hold_secret(&mut self, text: &[u8]) -> bool {
        if is_like_json(text) {
            return true;
        }
        let Ok(text) = std::str::from_utf8(text) else { return false };
        self.is_secret_name(text.as_bytes()) || secret_text::has_secret(text, self)
    }

    /// Whether everything but the allowed fields of the frame is redacted; none if its message cannot be read.
    fn is_hidden(&mut self, frame: &Frame, route: Route<'_>) -> Option<bool> {
        let message = match frame.message() {
            Ok(message) => message,
            // Whether it is about a hidden call is unknown.
            Err(_) if self.is_tracking() || self.rule.hides_all() => return None,
            Err(_) => return if frame.kind() == Kind::TOOL_USE_REQUEST { None } else { Some(false) },
        };
        let all = self.rule.hides_all();
        Some(match message {
            Message::ToolUseRequest(request) => {
                let hidden = self.hides_request(&request, route);
                // Calls of other tools matter only if they must be told apart from those.
                let is_default = hidden == all;
                if !is_default || self.is_tracking() || self.rule.keeps_any() {
                    self.calls.begin(route, request.id.as_str(), hidden);
                }
                hidden
            }
            Message::ToolUseResult(result) => {
                let hidden = self.hides_call(result.id.as_str(), route)
                    || result.result_id.is_some_and(|id| self.calls.is_hidden(route, &id) == Some(true));
                self.calls.end(route, result.id.as_str());
                hidden
            }
            Message::ToolProgress(progress) => self.hides_call(progress.id.as_str(), route),
            Message::Error(error) => error.originating_id.map_or(all, |id| self.hides_origin(&id, route)),
            Message::Acknowledgement(it) => {
                it.acknowledged_message_id.map_or(all, |id| self.hides_call(&id, route))
            }
            Message::ControlStop(stop) => stop.target_id.map_or(all, |id| self.hides_call(&id, route)),
            _ => all,
        })
    }

    /// Whether any call is known, or may be missing.
    fn is_tracking(&self) -> bool {
        !self.calls.is_idle()
    }

    fn hides_request(&self, request: &ToolUseRequest, route: Route<'_>) -> bool {
        if self.rule.is_hidden(&request.tool_name) {
            return true;
        }
        if !request.tool_name.starts_with(RESERVED) {
            return false;
        }
        let Some(references) = references(&request.parameters) else { return true };
        references.iter().any(|it| self.hides_reference(it, route))
    }

    /// Whether what a question or an event is about is hidden. A call whose id is unknown is judged by its tool.
    fn hides_reference(&self, it: &Reference, route: Route<'_>) -> bool {
        let known = it.id.as_ref().and_then(|id| self.calls.is_hidden(route, id));
        match &it.tool {
            Some(tool) => self.rule.is_hidden(tool) || known == Some(true),
            None => known.unwrap_or_else(|| self.hides_unknown()),
        }
    }

    fn hides_call(&self, id: &str, route: Route<'_>) -> bool {
        self.calls.is_hidden(route, id).unwrap_or_else(|| self.hides_unknown())
    }

    /// Whether a call that is not known is hidden.
    fn hides_unknown(&self) -> bool {
        self.rule.hides_all() || self.calls.is_incomplete()
    }

    /// Whether an error is about a hidden call: it names the call, or a byte stream whose id begins with that of the call.
    fn hides_origin(&self, id: &str, route: Route<'_>) -> bool {
        let mut parts = id.rsplitn(3, '.');
        let call = parts.nth(2).filter(|call| self.calls.is_hidden(route, call).is_some());
        self.hides_call(call.unwrap_or(id), route)
    }

    /// Keeps an undecodable payload, unless it contains the name of a secret, or may be about a hidden call. In a compressed
    /// frame that cannot be expanded, names cannot be found.
    fn unreadable(&self, payload: Bytes, kind: Option<Kind>) -> Bytes {
        let is_compressed = payload.first() == Some(&COMPRESSED);
        let is_suspect = is_compressed || self.is_tracking() || self.rule.is_suspect(&payload);
        if is_suspect { whole(&payload, kind) } else { payload }
    }

    /// The frame with the allowed fields alone. The outer result is none if that is impossible, the inner if it has no others.
    fn reduced(&self, frame: &Frame) -> Option<Option<Vec<u8>>> {
        let is_kept = |tool: &str| !self.rule.is_hidden(tool);
        let (reduced, has_changed) = allow_list::reduced(frame.as_bytes(), frame.kind(), &is_kept)?;
        if !has_changed {
            return Some(None);
        }
        let marked = marked(&reduced, &[])?;
        // Readers must still understand it.
        let frame = Frame::decode(Bytes::from(marked.clone())).ok()?;
        frame.message().ok()?;
        Some(Some(marked))
    }

    /// The frame without its secrets. The outer result is none if that is impossible, the inner if it has none.
    fn without_secrets(&mut self, frame: &Frame) -> Option<Option<Vec<u8>>> {
        let mut changes = Vec::new();
        self.secrets(frame, &mut changes)?;
        if changes.is_empty() {
            return Some(None);
        }
        changes.sort_by_key(|(range, _)| (range.start, Reverse(range.end)));
        let mut end = 0;
        // A value in which something is redacted may be redacted as a whole.
        changes.retain(|(range, _)| {
            let is_outer = range.start >= end;
            end = end.max(range.end);
            is_outer
        });
        marked(frame.as_bytes(), &changes).map(Some)
    }

    /// Finds the ranges to redact.
    fn secrets(&mut self, frame: &Frame, changes: &mut Vec<Change>) -> Option<()> {
        let bytes = frame.as_bytes();
        for (key, value) in pairs(bytes, 0)? {
            let body = text(bytes, key.start) == Some(b"body");
            if body && frame.kind() == Kind::TOOLS_REGISTER {
                continue; // definitions contain no values
            }
            let is_map = matches!(Token::read(bytes, value.start).ok()?.0, Token::Map(_));
            if is_map && (body || text(bytes, key.start) == Some(b"meta")) {
                // The fields of a frame are no names of each other.
                for (key, _) in pairs(bytes, value.start)? {
                    self.pair(bytes, key, changes)?;
                }
            } else {
                self.pair(bytes, key, changes)?;
            }
        }
        Some(())
    }

    /// Searches the value of this key, at any depth. Returns its end, and whether the key itself holds a secret.
    fn pair(&mut self, bytes: &[u8], key: Range<usize>, changes: &mut Vec<Change>) -> Option<(usize, bool)> {
        let name = text(bytes, key.start);
        let is_secret = name.is_some_and(|name| self.is_secret(name));
        let end = if is_secret {
            let end = skip(bytes, key.end).ok()?;
            change(bytes, &(key.end..end), changes);
            end
        } else {
            self.value(bytes, key.end, changes)?
        };
        // A name in it is not enough: the value stands in the key, too.
        let name = name.and_then(|name| std::str::from_utf8(name).ok());
        Some((end, name.is_some_and(|name| redacted(name, self).is_some())))
    }

    /// Searches the value that starts here, and returns its end. The scan has limited the depth.
    fn value(&mut self, bytes: &[u8], at: usize, changes: &mut Vec<Change>) -> Option<usize> {
        let (token, inside) = Token::read(bytes, at).ok()?;
        match token {
            Token::Map(count) => {
                let (mut map, mut start, mut has_secret_key) = (Map::default(), inside, false);
                for _ in 0..count {
                    let middle = skip(bytes, start).ok()?;
                    let (end, is_secret_key) = self.pair(bytes, start..middle, changes)?;
                    has_secret_key |= is_secret_key;
                    if let Some(key) = text(bytes, start) {
                        let name = text(bytes, middle);
                        let is_secret = name.is_some_and(|name| self.is_secret_name(name));
                        map.add(key, middle..end, is_secret);
                    }
                    start = end;
                }
                if has_secret_key {
                    change(bytes, &(at..start), changes); // two keys could become equal
                } else {
                    map.beside().for_each(|value| change(bytes, &value, changes));
                }
                Some(start)
            }
            Token::Array(count) => {
                let (mut array, mut start) = (Array::default(), inside);
                for _ in 0..count {
                    let end = self.value(bytes, start, changes)?;
                    let name = text(bytes, start);
                    let is_secret = name.is_some_and(|name| self.is_secret_name(name));
                    array.add(start..end, is_secret);
                    start = end;
                }
                array.beside().for_each(|value| change(bytes, &value, changes));
                Some(start)
            }
            Token::Str(text) => {
                if let Some(redacted) = redacted(std::str::from_utf8(text).ok()?, self) {
                    let mut out = Vec::new();
                    out.str(&redacted);
                    changes.push((at..inside, out));
                }
                Some(inside)
            }
            Token::Bin(data) => {
                if let Ok(text) = std::str::from_utf8(data)
                    && redacted(text, self).is_some()
                {
                    change(bytes, &(at..inside), changes);
                }
                Some(inside)
            }
            _ => Some(inside),
        }
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
fn change(bytes: &[u8], value: &Range<usize>, changes: &mut Vec<Change>) {
    let Ok((token, _)) = Token::read(bytes, value.start) else { return };
    if token.is_absent() || is_placeholder(bytes, value.start, &token) {
        return;
    }
    let mut out = Vec::new();
    out.str(&placeholder::of(token.kind(), value.len()));
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

/// The most digits of a number in the version of a program or a protocol.
const MAX_NUMBER: usize = 4;

/// Whether a text is empty, or three numbers, as toolbridge writes its version.
fn is_version(text: &str) -> bool {
    let is_number =
        |text: &str| (1..=MAX_NUMBER).contains(&text.len()) && text.bytes().all(|it| it.is_ascii_digit());
    text.is_empty() || (text.split('.').count() == 3 && text.split('.').all(is_number))
}

/// The first byte of a compressed frame, and the length of its mark and of its length before compression, in bytes (`wire.md`,
/// section 5.11).
const COMPRESSED: u8 = 0xc1;
const COMPRESSED_HEAD: usize = 5;

/// Whether a packet is a compressed frame.
pub(super) fn is_compressed(payload: &[u8]) -> bool {
    payload.len() > COMPRESSED_HEAD && payload[0] == COMPRESSED
}

/// The replacement for a frame that is redacted as a whole.
pub(super) fn whole(payload: &Bytes, kind: Option<Kind>) -> Bytes {
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
    let stands_for = if is_compressed(payload) { placeholder::COMPRESSED_FRAME } else { placeholder::FRAME };
    out.str(&placeholder::of(stands_for, payload.len()));
    out.into()
}

/// The keys and values of the map at this offset.
pub(super) fn pairs(bytes: &[u8], at: usize) -> Option<Vec<(Range<usize>, Range<usize>)>> {
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
pub(super) fn text(bytes: &[u8], at: usize) -> Option<&[u8]> {
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

    fn pay(redactor: &mut Redactor, payload: Bytes) -> Bytes {
        redactor.payload(payload, Route::default())
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
        let redacted = pay(&mut redactor, request("a", "sign_in", &parameters));
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
        assert_eq!(pay(&mut redactor, redacted.clone()), redacted, "redacting twice changes nothing");
    }

    #[test]
    fn compressed_frame_that_cannot_be_expanded_is_replaced() {
        let packet = Bytes::from_static(&[COMPRESSED, 0, 0, 16, 0, 1, 2, 3]);
        let replaced = pay(&mut Redactor::new(Redact::default()), packet.clone());
        assert_eq!(replaced, whole(&packet, None));
        assert_eq!(pay(&mut Redactor::new(Redact::nothing()), packet.clone()), packet);
    }

    #[test]
    fn common_x10_secret_in_a_native_document_is_redacted() {
        use crate::tool::{Native, ToolResult, ToolSystem};
        let text = json!({"password": "hunter2", "user": "ada"}).to_string();
        let document = json!({"content": [{"type": "text", "text": text}], "_meta": {"apiKey": "hunter2"}});
        let native = Native::new(ToolSystem::MCP, document.to_string());
        let result_value = ToolResult::text(text).with_native(native).to_value();
        let redacted = pay(&mut Redactor::new(Redact::default()), result("a", &result_value.to_json()));
        assert!(!redacted.windows(7).any(|it| it == b"hunter2"));
        let shown = shown(&redacted);
        assert_eq!(shown["meta"]["bridge.redacted"], true);
        let native = shown["body"]["result"]["native"]["json"].as_str().unwrap();
        let native: Value = serde_json::from_str(native).unwrap();
        assert_eq!(native["_meta"]["apiKey"], "<redacted: 9 bytes>");
        assert!(native["content"][0]["text"].as_str().unwrap().contains("ada"));
    }

    #[test]
    fn sec_p3_secret_is_found_in_every_place_of_an_argument() {
        let inner = json!({"password": "hunter2"}).to_string();
        for parameters in [
            json!({"headers": [{"name": "Authorization", "value": "hunter2"}]}),
            json!({"headers": [["authorization", "hunter2"]]}),
            json!({"url": "https://x/?token=hunter2"}),
            json!({"text": Value::from(inner.as_str()).to_string()}),
            json!({"text": format!("data: {inner}")}),
            json!({"text": format!("\u{feff}{inner}")}),
            json!({inner.as_str(): 1}),
            json!({"a": [{inner.as_str(): 1}]}),
            json!({"text": json!({inner.as_str(): 1}).to_string()}),
            json!({"text": "Authorization: Bearer hunter2"}),
            json!({"text": "password=hunter2&user=a"}),
            json!({"text": "[1] password: hunter2"}),
        ] {
            let redacted = pay(&mut Redactor::new(Redact::default()), request("a", "t", &parameters));
            assert!(!redacted.windows(7).any(|it| it == b"hunter2"), "{parameters}");
            assert_eq!(shown(&redacted)["body"]["toolName"], "t", "{parameters}");
        }
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
            assert_eq!(pay(&mut redactor, plain.clone()), plain);
        }
        let secret = request("a", "t", &json!({"password": "hunter2"}));
        assert_eq!(pay(&mut Redactor::new(Redact::nothing()), secret.clone()), secret);
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
                    closely.calls.begin(Route::default(), "another", true);
                    assert_eq!(pay(&mut once, changed.clone()), pay(&mut closely, changed));
                }
            }
        }
    }

    #[test]
    fn hidden_tool_keeps_only_name_and_outcome() {
        let mut redactor = Redactor::new(Redact::default().tool("read_diary"));
        let asked = shown(&pay(&mut redactor, request("a", "read_diary", &json!({"day": "monday"}))));
        assert_eq!(asked["body"]["parameters"], json!({"redacted": "<redacted: map, 12 bytes>"}));
        assert_eq!(asked["body"]["toolName"], "read_diary");
        let answered = shown(&pay(&mut redactor, result("a", &json!({"text": "dear diary"}))));
        assert_eq!(answered["body"]["result"], json!({"redacted": "<redacted: map, 17 bytes>"}));
        assert_eq!(answered["body"]["success"], true);
        let progress = frame(&json!({
            "stanzaId": 3, "conversationId": "r", "type": 1000, "meta": {},
            "body": {"id": "a", "status": "in_progress", "message": "dear"},
        }));
        assert_eq!(shown(&pay(&mut redactor, progress))["body"]["message"], "<redacted: string, 5 bytes>");
        let other = result("b", &json!({"text": "kept"}));
        assert_eq!(pay(&mut redactor, other.clone()), other);
        let sign_in =
            pay(&mut redactor, request("c", "bridge.authorize", &json!({"url": "https://x/?code=1"})));
        assert_eq!(shown(&sign_in)["body"]["parameters"], json!({"redacted": "<redacted: map, 23 bytes>"}));
    }

    #[test]
    fn undecodable_payload_naming_a_secret_is_redacted_whole() {
        let mut redactor = Redactor::new(Redact::default().tool("read_diary"));
        let secret = request("a", "t", &json!({"password": "hunter2"}));
        let torn = pay(&mut redactor, secret.slice(..secret.len() - 3));
        let text = format!("<redacted: frame, {} bytes>", secret.len() - 3);
        assert!(torn.ends_with(text.as_bytes()));
        let diary = request("a", "read_diary", &json!({"day": "monday"}));
        assert!(!pay(&mut redactor, diary.slice(..diary.len() - 1)).windows(6).any(|it| it == b"monday"));
        // A frame of a known type with an invalid body.
        let wrong = frame(&json!({"stanzaId": 1, "conversationId": "r", "type": 7, "meta": {}, "body": {}}));
        assert_eq!(pay(&mut redactor, wrong.clone()), wrong);
        let no_meta = Bytes::from_static(b"\x82\xa4type\x63\xa4body\x81\xa6Cookie\xa1x");
        let shown = shown(&pay(&mut redactor, no_meta));
        assert_eq!(
            (&shown["body"]["Cookie"], &shown["type"]),
            (&json!("<redacted: string, 2 bytes>"), &json!(99))
        );
        assert_eq!(shown["meta"], json!({"bridge.redacted": true}));
    }
}
