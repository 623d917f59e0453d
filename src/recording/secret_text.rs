//! Finds values beside secret names in texts that are no JSON: URLs, forms, and lines with `=` or `:`.
//!
//! Such texts have no grammar. One pass looks at each character that may stand between a name and its value, and asks for the name
//! before it. Other forms, such as markup, code and texts inside texts, are not read: whoever gives a file away hides all values.

mod credentials;
mod name;
mod plain;
mod value;

use std::{cmp::Reverse, ops::Range};

use self::{name::Name, plain::Plain};
use super::{json_secrets::Secrets, placeholder};

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
    found: Vec<Range<usize>>,
}

impl<'a, R: Secrets> Search<'a, R> {
    fn new(text: &'a str, rule: &'a mut R) -> Self {
        Self { text, rule, done: 0, found: Vec::new() }
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
            b'=' => self.after_name(mark),
            b'%' if !is_encoded_separator(rest) => None,
            _ => self.after_name(mark).or_else(|| credentials::in_url(self.text, mark)),
        }
    }

    /// Returns the value after a secret name and this separator.
    fn after_name(&mut self, mark: usize) -> Option<Range<usize>> {
        let name = Name::before(self.text, mark, self.done)?;
        name.is_secret(self.rule).then(|| value_of(self.text, mark, &name))
    }
}

/// Returns whether a value may follow this byte, or an encoded separator begin here.
fn is_mark(byte: u8) -> bool {
    matches!(byte, b'=' | b':' | b'%')
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
