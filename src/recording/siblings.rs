//! Finds values beside their names: `{"name": "Authorization", "value": …}`, `["Authorization", …]`.

use std::ops::Range;

use super::secret_names::folded;

/// The ends of keys whose value names another value of the map, and of keys whose value that is.
const NAMES: &[&str] = &[
    "name",
    "key",
    "header",
    "field",
    "param",
    "parameter",
    "property",
    "attribute",
    "variable",
    "label",
    "id",
];
const VALUES: &[&str] =
    &["value", "values", "val", "content", "contents", "data", "text", "default", "string"];

/// The longest such key, in bytes.
const MAX_KEY: usize = 64;

/// What a key says about the value that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// It names another value beside it.
    Name,
    /// It is the value that another one beside it names.
    Value,
}

/// Returns which part of a pair of a name and a value has this key.
pub(super) fn part_of_pair(key: &[u8]) -> Option<Part> {
    let key = std::str::from_utf8(key).ok().filter(|key| key.len() <= MAX_KEY)?;
    let key = folded(key);
    let ends = |words: &[&str]| words.iter().any(|word| key.ends_with(word));
    if ends(VALUES) || key == "v" {
        Some(Part::Value)
    } else if ends(NAMES) || matches!(&*key, "k" | "n" | "var") {
        Some(Part::Name)
    } else {
        None
    }
}

/// The values of a map that a name in the same map describes.
#[derive(Debug, Default)]
pub(super) struct Map {
    has_secret_name: bool,
    values: Vec<Range<usize>>,
}

impl Map {
    /// Adds a pair. `is_secret` says whether its value is the name of a secret.
    pub(super) fn add(&mut self, key: &[u8], value: Range<usize>, is_secret: bool) {
        match part_of_pair(key) {
            Some(Part::Name) => self.has_secret_name |= is_secret,
            Some(Part::Value) => self.values.push(value),
            None => {}
        }
    }

    /// Returns the values of a secret.
    pub(super) fn beside(self) -> impl Iterator<Item = Range<usize>> {
        let has_secret_name = self.has_secret_name;
        self.values.into_iter().filter(move |_| has_secret_name)
    }
}

/// The elements of an array that follow the name of a secret: in a list of names and values, and after an option of a command. Where the
/// pairs begin is not known, since other elements may stand before and after them.
#[derive(Debug, Default)]
pub(super) struct Array {
    /// Whether the last element was such a name.
    has_name: bool,
    found: Vec<Range<usize>>,
}

impl Array {
    /// Adds an element. `is_secret` says whether it is the name of a secret.
    pub(super) fn add(&mut self, value: Range<usize>, is_secret: bool) {
        if std::mem::replace(&mut self.has_name, is_secret) {
            self.found.push(value);
        }
    }

    /// Returns the values of secrets.
    pub(super) fn beside(self) -> impl Iterator<Item = Range<usize>> {
        self.found.into_iter()
    }
}
