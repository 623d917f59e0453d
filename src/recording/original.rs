//! Computes the original sizes of redacted values: each placeholder contains the size of its value.

use super::{placeholder, redactor::MARK};
use crate::{
    protocol::frame::Frame,
    value::{token::Token, walk::Walk},
};

/// The bytes that the mark adds to `meta`: its key and `true`.
const MARK_BYTES: usize = MARK.len() + 2;

/// The original size of a frame in bytes, if it is redacted.
pub(super) fn frame_size(frame: &Frame) -> Option<usize> {
    let bytes = frame.as_bytes();
    frame.meta_bool(MARK).then(|| match whole(bytes) {
        Some(size) => size,
        None => value_size(bytes).saturating_sub(MARK_BYTES),
    })
}

/// The original size of a value, in bytes.
pub(super) fn value_size(bytes: &[u8]) -> usize {
    let mut walk = Walk::value(bytes, 0);
    let (mut size, mut at) = (bytes.len(), 0);
    // Whether the last token is the key `redacted`, and whether that is the first key of a map with one.
    let (mut is_stand_in, mut is_map) = (None, false);
    while let Ok(Some((token, is_key))) = walk.next() {
        let length = walk.at() - std::mem::replace(&mut at, walk.at());
        if let (Token::Str(text), false) = (token, is_key) {
            if let Some(stands_for) = placeholder::read(text) {
                // The key replaces the value, too, and for a value that was no map, so does the map.
                let is_removed = stands_for.kind == placeholder::FIELDS;
                let taken = match (is_stand_in, is_removed) {
                    (Some(_), true) => KEY,
                    (Some(true), false) => KEY + 1,
                    _ => 0,
                };
                size = size.saturating_sub(length + taken).saturating_add(stands_for.size);
            } else {
                size = size.saturating_add_signed(-placeholder::growth(text));
            }
        }
        is_stand_in = (is_key && token == Token::Str(b"redacted")).then_some(is_map);
        is_map = token == Token::Map(1);
    }
    size
}

/// The size of the key `redacted`.
const KEY: usize = 1 + "redacted".len();

/// The original size of a frame that was replaced as a whole and can no longer be decoded.
pub(super) fn whole(bytes: &[u8]) -> Option<usize> {
    size_of(bytes, placeholder::FRAME)
}

/// The size of a compressed frame that was replaced as a whole.
pub(super) fn compressed(bytes: &[u8]) -> Option<usize> {
    size_of(bytes, placeholder::COMPRESSED_FRAME)
}

/// The size in the last placeholder of this kind.
fn size_of(bytes: &[u8], kind: &str) -> Option<usize> {
    let mut walk = Walk::value(bytes, 0);
    let mut last = None;
    while let Ok(Some((token, is_key))) = walk.next() {
        if let (Token::Str(text), false) = (token, is_key)
            && let Some(stands_for) = placeholder::read(text)
            && stands_for.kind == kind
        {
            last = Some(stands_for.size);
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::json;

    use super::*;
    use crate::recording::{Redact, hidden_calls::Route, redactor::Redactor};

    fn request(parameters: &serde_json::Value) -> Bytes {
        let body = json!({"id": "a", "toolName": "sign_in", "parameters": parameters, "execution": "client"});
        let json = json!({"stanzaId": -1, "conversationId": "r", "type": 6, "meta": {"a": 1}, "body": body});
        Frame::from_json(&json.to_string()).unwrap().into_bytes()
    }

    #[test]
    fn redacted_frame_has_the_size_of_the_original() {
        let secrets = json!({"user": "ada", "password": "hunter2", "list": [{"api_key": {"deep": [1, 2, 3]}}], "url": "?pin=1"});
        for rule in [Redact::default(), Redact::default().tool("sign_in"), Redact::everything()] {
            let original = request(&secrets);
            let redacted = Redactor::new(rule).payload(original.clone(), Route::default());
            assert_ne!(redacted, original);
            let size = |payload: &Bytes, original: bool| {
                let frame = Frame::decode(payload.clone()).unwrap();
                let crate::protocol::frame::Message::ToolUseRequest(request) = frame.message().unwrap()
                else {
                    panic!()
                };
                let bytes = request.parameters.as_bytes();
                if original {
                    (Some(payload.len()), bytes.len())
                } else {
                    (frame_size(&frame), value_size(bytes))
                }
            };
            assert_eq!(size(&redacted, false), size(&original, true));
        }
        let torn = request(&secrets).slice(..40);
        let replaced = Redactor::new(Redact::everything()).payload(torn, Route::default());
        assert_eq!(whole(&replaced), Some(40));
    }
}
