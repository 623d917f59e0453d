//! Replaces instances before they are written: anyone who knows an instance can impersonate its owner. Each is
//! replaced by a number of the same length; equal instances get equal numbers.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::value::{Limits, scan::scan, token::Token, walk::Walk};

/// The key whose value is an instance (`wire.md`, section 6).
const KEY: &[u8] = b"bridge.instance";

/// The offset in the key of a byte that is rare elsewhere.
const DOT: usize = 6;

/// How many instances are remembered. Each later one gets a new number every time.
const REMEMBERED: usize = 65_536;

/// Replaces instances in payloads by numbers.
#[derive(Debug, Default)]
pub(super) struct Anonymizer {
    /// By hash, so that no instance stays in memory.
    numbers: HashMap<[u8; 32], u64>,
    last: u64,
}

impl Anonymizer {
    /// Returns the payload without instances, or the same bytes if it has none. The payload need not be a frame.
    pub(super) fn payload(&mut self, payload: &Bytes) -> Bytes {
        let mut anonymized: Option<Vec<u8>> = None;
        let mut keys = None;
        let mut at = 0;
        while let Some(next) = payload.get(at..).and_then(|rest| rest.iter().position(|byte| *byte == b'.')) {
            let dot = at + next;
            at = dot + 1;
            let Some(start) = dot.checked_sub(DOT).filter(|start| payload[*start..].starts_with(KEY)) else {
                continue;
            };
            let end = start + KEY.len();
            if !is_whole(&payload[..start]) {
                continue;
            }
            // In a valid payload only keys count.
            if keys.get_or_insert_with(|| keys_of(payload)).as_ref().is_some_and(|keys| !keys.contains(&end))
            {
                continue;
            }
            let Some((head, length)) = text(&payload[end..]) else { continue };
            let value = end + head..(end + head).saturating_add(length).min(payload.len());
            let number = self.number(&payload[value.clone()]);
            let anonymized = anonymized.get_or_insert_with(|| payload.to_vec());
            write(number, &mut anonymized[value.clone()]);
            at = value.end;
        }
        anonymized.map_or_else(|| payload.clone(), Bytes::from)
    }

    fn number(&mut self, instance: &[u8]) -> u64 {
        let hash = Sha256::digest(instance).into();
        if let Some(number) = self.numbers.get(&hash) {
            return *number;
        }
        self.last += 1;
        if self.numbers.len() < REMEMBERED {
            self.numbers.insert(hash, self.last);
        }
        self.last
    }
}

/// Whether these bytes end with the header of a string of the key's length.
fn is_whole(before: &[u8]) -> bool {
    let heads: [&[u8]; 4] = [&[0xaf], &[0xd9, 15], &[0xda, 0, 15], &[0xdb, 0, 0, 0, 15]];
    heads.iter().any(|head| before.ends_with(head))
}

/// The end offset of each occurrence of the key, if the payload is a valid value.
fn keys_of(payload: &[u8]) -> Option<HashSet<usize>> {
    scan(payload, &Limits::default(), |_| {}).ok()?;
    let mut keys = HashSet::new();
    let mut walk = Walk::value(payload, 0);
    while let Some((token, is_key)) = walk.next().ok()? {
        if is_key && token == Token::Str(KEY) {
            keys.insert(walk.at());
        }
    }
    Some(keys)
}

/// The header length and the content length of the string or binary value at the start of these bytes.
fn text(bytes: &[u8]) -> Option<(usize, usize)> {
    let long = |width: usize| {
        let length = bytes.get(1..=width)?.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        Some((1 + width, length))
    };
    match bytes.first()? {
        head @ 0xa0..=0xbf => Some((1, usize::from(head & 0x1f))),
        0xc4 | 0xd9 => long(1),
        0xc5 | 0xda => long(2),
        0xc6 | 0xdb => long(4),
        _ => None,
    }
}

fn write(mut number: u64, digits: &mut [u8]) {
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        protocol::frame::{Configuration, Frame, Message, Meta},
        value::Value,
    };

    fn frame(instance: &str) -> Bytes {
        let meta = Meta::new().with_text("bridge.instance", instance).with_bool("bridge.heard", true);
        let message = Message::Configuration(Configuration::default());
        Frame::write(1, "room", &meta, &message).unwrap()
    }

    fn instance(payload: &Bytes) -> String {
        Frame::decode(payload.clone()).unwrap().meta_str("bridge.instance").unwrap().to_owned()
    }

    #[test]
    fn sec_p3_instance_is_replaced_by_a_stable_number_of_its_length() {
        let mut anonymizer = Anonymizer::default();
        let (one, two) = (frame(&"a".repeat(32)), frame(&"b".repeat(32)));
        let [first, second, again] = [&one, &two, &one].map(|it| anonymizer.payload(it));
        assert_eq!(instance(&first), format!("{:032}", 1));
        assert_eq!(instance(&second), format!("{:032}", 2));
        assert_eq!(first, again);
        // All other bytes are unchanged.
        let mut rest = one.to_vec();
        let at = rest.windows(32).position(|it| it == "a".repeat(32).as_bytes()).unwrap();
        rest[at..at + 32].copy_from_slice(format!("{:032}", 1).as_bytes());
        assert_eq!(first, rest);
    }

    #[test]
    fn payload_without_instance_is_unchanged_and_truncated_payload_is_anonymized() {
        let mut anonymizer = Anonymizer::default();
        let plain = Value::from_json(r#"{"x.bridge.instance": "kept", "say": "bridge.instance", "n": 1}"#);
        let plain = Bytes::copy_from_slice(plain.unwrap().as_bytes());
        assert_eq!(anonymizer.payload(&plain), plain);
        let whole = frame(&"c".repeat(200));
        for cut in 0..whole.len() {
            let anonymized = anonymizer.payload(&whole.slice(..cut));
            assert_eq!(anonymized.len(), cut);
            assert!(!anonymized.windows(20).any(|it| it == [b'c'; 20]));
        }
    }
}
