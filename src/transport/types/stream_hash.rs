//! Hashes the payload of a byte stream. SDKs join the chunks of streams with the same id, whoever sent them: the hash in the
//! header shows that all are of the header's sender (`wire.md`, section 5.6).

use std::fmt::Write;

use sha2::{Digest, Sha256};

use super::StreamHeader;

/// The attribute of a byte stream's header with the SHA-256 of its whole payload, in hexadecimal (`wire.md`, section 5.6).
pub const STREAM_SHA256: &str = "toolbridge.sha256";

/// The number of bytes of a hash.
const BYTES: usize = 32;

/// The hash of a payload that arrives in parts, and that of its header.
#[derive(Debug)]
pub(crate) struct PayloadHash {
    /// `None` if the attribute is no hash, which no payload has.
    announced: Option<[u8; BYTES]>,
    payload: Sha256,
}

impl PayloadHash {
    /// Returns what checks the payload of this stream, if its header has a hash.
    pub(crate) fn of(header: &StreamHeader) -> Option<Self> {
        let announced = header.attributes.get(STREAM_SHA256)?;
        Some(Self { announced: parse(announced), payload: Sha256::new() })
    }

    /// Adds the next bytes of the payload.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.payload.update(bytes);
    }

    /// Returns whether the payload is the announced one.
    pub(crate) fn matches(self) -> bool {
        self.announced.is_some_and(|announced| self.payload.finalize()[..] == announced)
    }
}

/// Returns the attribute's value for this payload.
pub(super) fn sha256(payload: &[u8]) -> String {
    Sha256::digest(payload).iter().fold(String::with_capacity(2 * BYTES), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn parse(text: &str) -> Option<[u8; BYTES]> {
    let digits: &[u8; 2 * BYTES] = text.as_bytes().try_into().ok()?;
    let mut hash = [0; BYTES];
    for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
        let [high, low] = [pair[0], pair[1]].map(|digit| char::from(digit).to_digit(16));
        *byte = (high? << 4 | low?) as u8;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::STREAM_TOPIC;

    /// The SHA-256 of `abc` in FIPS 180-4.
    const OF_ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn matches(announced: &str, parts: &[&[u8]]) -> bool {
        let mut header = StreamHeader::new("s", STREAM_TOPIC, 3);
        header.attributes.insert(STREAM_SHA256.into(), announced.into());
        let mut hash = PayloadHash::of(&header).unwrap();
        parts.iter().for_each(|part| hash.add(part));
        hash.matches()
    }

    #[test]
    fn payload_in_parts_matches_its_hash_and_no_other() {
        assert_eq!(sha256(b"abc"), OF_ABC);
        assert!(matches(OF_ABC, &[b"a", b"bc", b""]));
        assert!(matches(&OF_ABC.to_uppercase(), &[b"abc"]));
        assert!(!matches(OF_ABC, &[b"abd"]));
        assert!(!matches(OF_ABC, &[]));
        for no_hash in ["", "ba7816bf", &OF_ABC[1..], &format!("{OF_ABC}0"), &format!("{}g", &OF_ABC[1..])] {
            assert!(!matches(no_hash, &[b"abc"]), "{no_hash}");
        }
        assert!(!matches(&format!("ü{}", &OF_ABC[2..]), &[b"abc"]));
        assert!(PayloadHash::of(&StreamHeader::new("s", STREAM_TOPIC, 3)).is_none());
    }
}
