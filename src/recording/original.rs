//! Computes the original sizes of redacted values: each placeholder contains the size of its value.

use super::redactor::{MARK, PLACEHOLDER};
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
    // Whether the last two tokens start a map whose only key is `redacted`.
    let (mut is_map, mut is_stand_in) = (false, false);
    while let Ok(Some((token, is_key))) = walk.next() {
        let length = walk.at() - std::mem::replace(&mut at, walk.at());
        if let (Token::Str(text), false) = (token, is_key)
            && let Some(was) = size_said(text)
        {
            // The map and its key replace the value, too.
            let taken = length + if is_stand_in { STAND_IN } else { 0 };
            size = size.saturating_sub(taken).saturating_add(was);
        }
        is_stand_in = is_map && is_key && token == Token::Str(b"redacted");
        is_map = token == Token::Map(1);
    }
    size
}

/// The size of a map with the single key `redacted`, without its value.
const STAND_IN: usize = 1 + 1 + "redacted".len();

/// The original size of a frame that was replaced as a whole and can no longer be decoded.
pub(super) fn whole(bytes: &[u8]) -> Option<usize> {
    let mut walk = Walk::value(bytes, 0);
    let mut last = None;
    while let Ok(Some((token, is_key))) = walk.next() {
        if let Token::Str(text) = token
            && !is_key
            && text.starts_with(FRAME)
        {
            last = size_said(text);
        }
    }
    last
}

const FRAME: &[u8] = b"<redacted: frame, ";

/// The size in a placeholder such as `<redacted: string, 8 bytes>`.
fn size_said(text: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(text).ok()?.strip_prefix(PLACEHOLDER)?.strip_suffix(" bytes>")?;
    let (_, size) = text.rsplit_once(' ')?;
    // No frame is larger, so a larger number is not trusted.
    size.parse().ok().filter(|size| *size <= crate::value::Limits::BYTES)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::json;

    use super::*;
    use crate::recording::{Redact, redactor::Redactor};

    fn request(parameters: &serde_json::Value) -> Bytes {
        let body = json!({"id": "a", "toolName": "sign_in", "parameters": parameters, "execution": "client"});
        let json = json!({"stanzaId": -1, "conversationId": "r", "type": 6, "meta": {"a": 1}, "body": body});
        Frame::from_json(&json.to_string()).unwrap().into_bytes()
    }

    #[test]
    fn redacted_frame_has_the_size_of_the_original() {
        let secrets =
            json!({"user": "ada", "password": "hunter2", "list": [{"api_key": {"deep": [1, 2, 3]}}]});
        for rule in [Redact::default(), Redact::default().tool("sign_in")] {
            let original = request(&secrets);
            let redacted = Redactor::new(rule).payload(original.clone());
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
        let replaced = Redactor::new(Redact::everything()).payload(torn);
        assert_eq!(whole(&replaced), Some(40));
    }
}
