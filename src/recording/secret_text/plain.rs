//! Reduces a text to what its reader sees: without invisible characters and colors, and with full-width
//! punctuation as ASCII.

use std::{borrow::Cow, ops::Range};

use super::super::secret_names::is_invisible;
use crate::escape::is_dangerous;

/// A text in which names and separators are looked for, and where its parts stand in the original.
pub(super) struct Plain<'a> {
    pub(super) text: Cow<'a, str>,
    /// Offsets in the plain text from which on it lags behind the original by the number of bytes beside each.
    shifts: Vec<(usize, isize)>,
}

impl<'a> Plain<'a> {
    pub(super) fn of(original: &'a str) -> Self {
        if original.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\t' | b'\n' | b'\r')) {
            return Self { text: original.into(), shifts: Vec::new() };
        }
        let mut plain = Self { text: String::with_capacity(original.len()).into(), shifts: Vec::new() };
        let mut at = 0;
        while let Some(letter) = original[at..].chars().next() {
            let size = color(&original[at..]).unwrap_or_else(|| letter.len_utf8());
            plain.add(at, (size == letter.len_utf8()).then(|| shown(letter)).flatten());
            at += size;
        }
        plain.shift(original.len());
        plain
    }

    /// Adds the letter that stands for what begins at this offset of the original, if any.
    fn add(&mut self, at: usize, letter: Option<char>) {
        if let Some(letter) = letter {
            self.shift(at);
            self.text.to_mut().push(letter);
        }
    }

    /// Notes that the next letter begins at this offset of the original.
    fn shift(&mut self, at: usize) {
        let shift = at as isize - self.text.len() as isize;
        if self.shifts.last().map_or(0, |(_, last)| *last) != shift {
            self.shifts.push((self.text.len(), shift));
        }
    }

    /// Returns where a part of the plain text stands in the original.
    pub(super) fn original(&self, part: &Range<usize>) -> Range<usize> {
        let place = |at: usize| {
            let after = self.shifts.partition_point(|(from, _)| *from <= at);
            let shift = after.checked_sub(1).and_then(|last| self.shifts.get(last)).map_or(0, |it| it.1);
            at.saturating_add_signed(shift)
        };
        place(part.start)..place(part.end)
    }
}

/// Returns what a reader sees of a letter; none if it is invisible. Separators of records and lines are line breaks.
fn shown(letter: char) -> Option<char> {
    Some(match letter {
        '\t' | '\n' | '\r' | ' '..='~' => letter,
        '\0' | '\u{1}' | '\u{1c}'..='\u{1f}' | '\u{85}' | '\u{2028}' | '\u{2029}' => '\n',
        '\u{a0}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3000}' => ' ',
        '“' | '”' | '„' | '‟' | '«' | '»' | '「' | '」' | '『' | '』' => '"',
        '‘' | '’' | '‚' | '‛' => '\'',
        '﹕' | '︓' | '∶' | '꞉' => ':',
        '﹦' => '=',
        _ if is_dangerous(letter) || is_invisible(letter) => return None,
        _ => narrow(letter),
    })
}

/// Returns the ASCII form of a full-width letter.
fn narrow(letter: char) -> char {
    const WIDTH: u32 = '！' as u32 - '!' as u32;
    match letter {
        '！'..='～' => char::from_u32(letter as u32 - WIDTH).unwrap_or(letter),
        _ => letter,
    }
}

/// Returns the size of an escape sequence of a terminal, such as a color, that begins here.
fn color(text: &str) -> Option<usize> {
    let parameters = text.strip_prefix("\u{1b}[").or_else(|| text.strip_prefix('\u{9b}'))?;
    let end = parameters.find(|letter: char| !matches!(letter, ' '..='?'))?;
    let last = parameters[end..].chars().next().filter(|letter| matches!(letter, '@'..='~'))?;
    Some(text.len() - parameters.len() + end + last.len_utf8())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_of_the_plain_text_is_found_in_the_original() {
        for (original, plain) in [
            ("a=b", "a=b"),
            ("ä＝ｂ： ü", "ä=b: ü"),
            ("pass\u{200b}word\u{2066}", "password"),
            ("\u{1b}[1;31mpin\u{1b}[0m: 1", "pin: 1"),
            ("\u{1b}[", "["),
            ("a\0b\u{2028}c\u{3000}“d”\u{7}", "a\nb\nc \"d\""),
            ("\u{200b}", ""),
        ] {
            let found = Plain::of(original);
            assert_eq!(found.text, plain, "{original:?}");
            assert_eq!(found.original(&(plain.len()..plain.len())), original.len()..original.len());
            for (at, letter) in plain.char_indices() {
                let place = found.original(&(at..at + letter.len_utf8()));
                let part = Plain::of(&original[place]).text.into_owned();
                assert!(part.starts_with(letter), "{original:?} {part:?} {letter:?}");
            }
        }
    }
}
