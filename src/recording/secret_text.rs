//! Finds values beside secret names in texts that are no JSON: URLs, forms, header lines, configuration files, commands, markup, and
//! JSON that stands in the middle of a text.
//!
//! Such texts have no grammar. One pass looks at each character that may stand between a name and its value, and asks for the name
//! before it. What follows then is the value, rather too much of it than too little.

mod credentials;
mod markup;
mod name;
mod plain;
mod value;

use std::{cmp::Reverse, ops::Range};

use self::{
    markup::Elements,
    name::{MAX_BACK, Name, blanks},
    plain::Plain,
};
use super::{
    json_secrets::Secrets,
    placeholder,
    siblings::{Part, part_of_pair},
};
use crate::value::{floor_char, prefix};

/// How far apart a name and its value are that stand beside each other: `name: password`, `value: …`. In bytes.
const MAX_APART: usize = 256;

/// Returns the text with the values beside secret names redacted, or `None` if there are none.
pub(super) fn redacted(text: &str, rule: &mut impl Secrets) -> Option<String> {
    let values = values(text, rule);
    if values.is_empty() {
        return None;
    }
    let (mut out, mut done) = (String::with_capacity(text.len()), 0);
    for value in values {
        let start = value.start.max(done);
        if start < value.end {
            out.push_str(&text[done..start]);
            out.push_str(&placeholder::of_part(value.end - start));
            done = value.end;
        }
    }
    out.push_str(&text[done..]);
    Some(out)
}

/// Returns whether [`redacted`] would redact anything.
pub(super) fn has_secret(text: &str, rule: &mut impl Secrets) -> bool {
    !values(text, rule).is_empty()
}

/// Returns the ranges of the values beside secret names, in order. An outer one comes before one inside it.
fn values(text: &str, rule: &mut impl Secrets) -> Vec<Range<usize>> {
    let plain = Plain::of(text);
    let mut found = Search::new(&plain.text, rule).run();
    found.iter_mut().for_each(|value| *value = plain.original(value));
    found.sort_by_key(|value| (value.start, Reverse(value.end)));
    found
}

/// A search through a text.
struct Search<'a, R> {
    text: &'a str,
    rule: &'a mut R,
    /// Where the last value ended: everything before is redacted.
    done: usize,
    /// The last tag that was opened.
    tag: Option<usize>,
    elements: Elements,
    /// The last part of a pair of two fields, one with a name and one with its value.
    half: Option<Half>,
    found: Vec<Range<usize>>,
}

/// One of two fields that belong together, such as `name: password` and `value: hunter2`.
struct Half {
    /// Where the name of the field is, and its separator.
    start: usize,
    mark: usize,
    part: Part,
    /// Whether it names a secret.
    is_secret: bool,
}

impl<'a, R: Secrets> Search<'a, R> {
    fn new(text: &'a str, rule: &'a mut R) -> Self {
        let elements = Elements::new();
        Self { text, rule, done: 0, tag: None, elements, half: None, found: Vec::new() }
    }

    fn run(mut self) -> Vec<Range<usize>> {
        let bytes = self.text.as_bytes();
        let mut at = 0;
        while let Some(next) = bytes.get(at..).and_then(|rest| rest.iter().position(|byte| is_mark(*byte))) {
            let mark = at + next;
            at = mark + 1;
            let Some(value) = self.value_at(mark) else { continue };
            at = value.end.max(at);
            self.done = value.end.max(self.done);
            self.take(value);
        }
        self.found
    }

    fn take(&mut self, value: Range<usize>) {
        let inside = &self.text[value.clone()];
        let is_nothing = matches!(inside, "" | "null" | "nil" | "None" | "undefined");
        let redacted = placeholder::size_at(&self.text[value.start..]).unwrap_or(0);
        if !is_nothing && inside.len() > redacted {
            self.found.push(value);
        }
    }

    /// Returns the value that belongs to this mark, if it is that of a secret.
    fn value_at(&mut self, mark: usize) -> Option<Range<usize>> {
        let (before, rest) = self.text.as_bytes().split_at(mark);
        match rest[0] {
            // `::` separates the parts of a path in many programming languages.
            b':' if rest.get(1) == Some(&b':') || before.ends_with(b":") => None,
            b':' => self.after_name(mark).or_else(|| credentials::in_url(self.text, mark)),
            b'=' => self.after_name(mark),
            b'%' if is_encoded_separator(rest) => {
                self.after_name(mark).or_else(|| credentials::in_url(self.text, mark))
            }
            b',' => {
                let name = Name::before(self.text, mark, self.done)?;
                let is_secret = name.is_secret_quoted(self.rule);
                is_secret.then(|| value::after_comma(self.text, mark + 1, &name)).flatten()
            }
            b'-' => self.after_flag(mark),
            b'<' => {
                self.tag = Some(mark);
                None
            }
            b'>' => self.after_tag(mark),
            _ => credentials::after_bearer(self.text, mark),
        }
    }

    /// Returns the value after a name and this separator.
    fn after_name(&mut self, mark: usize) -> Option<Range<usize>> {
        let name = Name::before(self.text, mark, self.done)?;
        if name.is_secret(self.rule) {
            return Some(value_of(self.text, mark, &name));
        }
        let part = part_of_pair(name.last_word().as_bytes())?;
        self.pair(Half { start: name.start(), mark, part, is_secret: false }, &name)
    }

    /// Returns the value of a pair if this field is its second one and it is that of a secret.
    fn pair(&mut self, mut half: Half, name: &Name<'_>) -> Option<Range<usize>> {
        let other = self.half.take().filter(|other| half.start.saturating_sub(other.mark) <= MAX_APART);
        if half.part == Part::Value {
            return match other {
                Some(other) if other.part == Part::Name => {
                    other.is_secret.then(|| value_of(self.text, half.mark, name))
                }
                _ => {
                    self.half = Some(half);
                    None
                }
            };
        }
        // A name is short: only what is near is read.
        let near = prefix(self.text, half.mark + MAX_BACK);
        let named = near[value_of(near, half.mark, name)].trim_matches(['"', '\\', '\'']);
        half.is_secret = self.rule.is_secret_name(named.as_bytes());
        match other {
            Some(other) if other.part == Part::Value && half.is_secret => {
                self.take_before(&other, half.start)
            }
            Some(other) if other.part == Part::Name => half.is_secret |= other.is_secret,
            _ => {}
        }
        if half.is_secret && self.is_form(half.start) {
            return markup::part_of_form(self.text, half.mark);
        }
        self.half = Some(half);
        None
    }

    /// Takes the value of a field that stands before its name.
    fn take_before(&mut self, half: &Half, end: usize) {
        let text = &self.text[..end];
        if let Some(name) = Name::before(text, half.mark, 0) {
            self.take(value_of(text, half.mark, &name));
        }
    }

    /// Returns whether the head of a part of a form stands before this offset.
    fn is_form(&self, at: usize) -> bool {
        let near = &self.text.as_bytes()[at.saturating_sub(MAX_APART)..at];
        near.windows(b"form-data".len()).any(|it| it.eq_ignore_ascii_case(b"form-data"))
    }

    /// Returns the value of a command's option that is another word: `--password hunter2`.
    fn after_flag(&mut self, mark: usize) -> Option<Range<usize>> {
        let (text, bytes) = (self.text, self.text.as_bytes());
        let quote = bytes[..mark].last().copied().filter(|byte| matches!(byte, b'"' | b'\''));
        if mark > 0 && quote.is_none() && !bytes[mark - 1].is_ascii_whitespace() {
            return None;
        }
        let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte >= 0x80 || b"-_.".contains(byte);
        let end = mark + bytes[mark..].iter().take(MAX_BACK).take_while(|byte| is_name(byte)).count();
        let closed = if quote.is_some() && bytes.get(end).copied() == quote { end + 1 } else { end };
        let start = closed + blanks(text.get(closed..)?);
        if start == closed || !self.rule.is_secret(&bytes[mark..end]) || text[start..].starts_with('-') {
            return None;
        }
        let word = || start..start + value::parameter(&text[start..], false);
        Some(value::quoted(text, start).unwrap_or_else(word))
    }

    /// Returns the text of an element whose tag ends here: `<password>hunter2</password>`, `<string name="password">hunter2</string>`.
    /// After the end tag of an element with a name, it is that of the next one: `<key>password</key><string>hunter2</string>`.
    fn after_tag(&mut self, mark: usize) -> Option<Range<usize>> {
        let open = self.tag.take()?;
        let tag = &self.text[open + 1..mark];
        if tag.starts_with('/') {
            let near = &self.text[floor_char(self.text, open.saturating_sub(MAX_BACK))..open];
            let name = near[near.rfind('>')? + 1..].trim();
            let is_secret = self.rule.is_secret_name(name.as_bytes());
            return if is_secret { self.elements.next_content(self.text, mark + 1) } else { None };
        }
        let name = markup::name_of(tag)?;
        let is_named = self.half.as_ref().is_some_and(|half| half.is_secret && half.mark > open);
        if !is_named && !self.rule.is_secret(name.as_bytes()) {
            return None;
        }
        self.elements.content(self.text, tag, mark + 1)
    }
}

/// Returns whether a value may follow this byte, or an encoded separator begin here.
fn is_mark(byte: u8) -> bool {
    matches!(byte, b'=' | b':' | b'%' | b',' | b'-' | b'<' | b'>' | b' ' | b'\t' | b'\r' | b'\n' | b'+')
}

/// Returns whether an encoded `=` or `:` begins here.
fn is_encoded_separator(rest: &[u8]) -> bool {
    matches!(rest, [b'%', b'3', b'D' | b'd' | b'A' | b'a', _, ..])
}

/// Returns the value after a name and this separator.
fn value_of(text: &str, mark: usize, name: &Name<'_>) -> Range<usize> {
    match text.as_bytes()[mark] {
        b':' => value::after_colon(text, mark + 1, name),
        b'=' => value::after_equals(text, mark + 1, name),
        _ => {
            let start = mark + "%3D".len();
            start..start + value::parameter(&text[start..], true)
        }
    }
}

#[cfg(test)]
mod tests;
