//! Checks strings eight bytes at a time: most are short and ASCII.

use super::DecodeError;

/// Returns whether a text is UTF-8: a few word-wide checks before the full check.
#[inline]
pub(super) fn check_text(text: &[u8], offset: usize) -> Result<(), DecodeError> {
    if is_ascii(text) { Ok(()) } else { check_utf8(text, offset) }
}

/// Returns whether a text that is not ASCII is UTF-8.
#[inline]
pub(super) fn check_utf8(text: &[u8], offset: usize) -> Result<(), DecodeError> {
    match std::str::from_utf8(text) {
        Ok(_) => Ok(()),
        Err(error) => Err(DecodeError::Utf8 { offset: offset + error.valid_up_to() }),
    }
}

/// The bits that are zero in every ASCII byte.
const HIGH: u64 = 0x8080_8080_8080_8080;

/// Returns whether a text is ASCII.
#[inline]
fn is_ascii(text: &[u8]) -> bool {
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

/// The longest short string, including its head.
pub(super) const SHORT: usize = 32;

/// Masks for the first eight bytes of a value, indexed by its length.
pub(super) static MASKS: [u64; SHORT + 1] = {
    let mut masks = [u64::MAX; SHORT + 1];
    let mut width = 0;
    while width < 8 {
        masks[width] = (1 << (8 * width)) - 1;
        width += 1;
    }
    masks
};

/// Returns whether the short string at the start of this window is ASCII. It has `width` bytes including its head,
/// and `word` holds its head and first bytes, with the head lowest.
#[inline(always)]
pub(super) fn is_short_ascii(window: &[u8; SHORT], word: u64, width: usize) -> bool {
    // The head itself has its topmost bit set.
    let mut all = word & !0xff;
    if width > 8 {
        all |= word_at(window, width - 8);
        if width > 16 {
            all |= word_at(window, 8) | word_at(window, width - 16);
        }
    }
    all & HIGH == 0
}

/// Returns the eight bytes at this position, with the first one lowest.
#[inline(always)]
pub(super) fn word_at(window: &[u8; SHORT], at: usize) -> u64 {
    window.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |chunk| u64::from_le_bytes(*chunk))
}
