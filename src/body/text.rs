//! Strings looked at eight bytes at a time: most are short and ASCII.

use super::DecodeError;

/// Whether a text is UTF-8: a handful of word-wide tests, before the real check.
#[inline]
pub(super) fn check_text(text: &[u8], offset: usize) -> Result<(), DecodeError> {
    if is_ascii(text) {
        return Ok(());
    }
    match std::str::from_utf8(text) {
        Ok(_) => Ok(()),
        Err(error) => Err(DecodeError::Utf8 { offset: offset + error.valid_up_to() }),
    }
}

/// The bits that no ASCII byte has.
pub(super) const HIGH: u64 = 0x8080_8080_8080_8080;

/// Whether a text is ASCII.
#[inline]
pub(super) fn is_ascii(text: &[u8]) -> bool {
    if let Some(last) = text.last_chunk::<8>() {
        let (words, _) = text.as_chunks::<8>();
        let all = words.iter().fold(u64::from_ne_bytes(*last), |all, word| all | u64::from_ne_bytes(*word));
        return all & HIGH == 0;
    }
    if let (Some(first), Some(last)) = (text.first_chunk::<4>(), text.last_chunk::<4>()) {
        let all = u32::from_ne_bytes(*first) | u32::from_ne_bytes(*last);
        return all & HIGH as u32 == 0;
    }
    text.iter().fold(0, |all, byte| all | byte) < 0x80
}

/// The first eight bytes of a text, or all of them, the first one lowest.
#[inline]
pub(super) fn word(bytes: &[u8], start: usize, length: usize) -> u64 {
    if length == 0 {
        return 0;
    }
    let mask = u64::MAX >> (64 - 8 * length.min(8));
    match bytes[start..].first_chunk::<8>() {
        Some(chunk) => u64::from_le_bytes(*chunk) & mask,
        None => {
            let mut chunk = [0; 8];
            let near_the_end = &bytes[start..];
            chunk[..near_the_end.len()].copy_from_slice(near_the_end);
            u64::from_le_bytes(chunk) & mask
        }
    }
}
