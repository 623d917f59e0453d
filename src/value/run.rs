//! Scans consecutive simple values within one container: the fast path of the scan.

use super::{
    DecodeError,
    keys::{Keys, Open, duplicate},
    scan::Span,
    text::{MASKS, SHORT, check_text, check_utf8, is_short_ascii, word_at},
    token::{is_short_text, width as width_of},
};

/// Skips the scalars and shorter strings that come next in a container, including keys. Nearly all values are of
/// these kinds and need only a check of their first bytes.
///
/// It stops before any other value, and detects only invalid texts and duplicate keys itself.
#[inline(always)]
pub(super) fn run<const ALL: bool>(
    bytes: &[u8],
    at: usize,
    open: &mut Open,
    keys: &mut Keys,
) -> Result<usize, DecodeError> {
    let is_map = ALL && open.is_map;
    let mut left = open.left;
    let mut rest = bytes.get(at..).unwrap_or_default();
    let mut padded = [0; SHORT];
    while left > 0 {
        let window = match rest.first_chunk() {
            Some(window) => window,
            None => pad(&mut padded, rest),
        };
        let head = window[0];
        let start = bytes.len() - rest.len();
        let is_key = is_map && left.is_multiple_of(2);
        let width;
        if is_short_text(head) {
            width = 1 + usize::from(head & 0x1f);
            if width > rest.len() {
                break;
            }
            if ALL {
                let word = word_at(window, 0) & MASKS[width];
                let span = Span { start: start as u32, end: (start + width) as u32 };
                if !is_key || !keys.repeats(open, left, word, span, bytes) {
                    if !is_short_ascii(window, word, width) {
                        check_utf8(&window[1..width], start + 1)?;
                    }
                    if is_key && let Some(first) = keys.insert(open, left, word, span, bytes) {
                        return Err(duplicate(first, span));
                    }
                }
            }
        } else {
            width = match head {
                0x00..=0x7f | 0xe0..=0xff => 1,
                STR8 => 2 + usize::from(window[1]),
                _ => width_of(head),
            };
            if width == 0 || width > rest.len() {
                break;
            }
            if ALL && head == STR8 {
                check_text(&rest[2..width], start + 2)?;
            }
            let span = Span { start: start as u32, end: (start + width) as u32 };
            if is_key && let Some(first) = keys.add(open, left, span, bytes) {
                return Err(duplicate(first, span));
            }
        }
        rest = &rest[width..];
        left -= 1;
    }
    open.left = left;
    Ok(bytes.len() - rest.len())
}

/// Returns the last few bytes, padded with zeros.
#[inline(never)]
fn pad<'a>(window: &'a mut [u8; SHORT], rest: &[u8]) -> &'a [u8; SHORT] {
    *window = [0; SHORT];
    window.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
    window
}

/// The head of a string of up to 255 bytes; its length follows.
const STR8: u8 = 0xd9;
