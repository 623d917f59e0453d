//! Values beside their names: `{"name": "Authorization", "value": …}`, `["Authorization", …]`.

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

/// The values of a map that a name in the same map describes.
#[derive(Debug, Default)]
pub(super) struct Map {
    has_secret_name: bool,
    values: Vec<Range<usize>>,
}

impl Map {
    /// Adds a pair. `is_secret` says whether its value is the name of a secret.
    pub(super) fn add(&mut self, key: &[u8], value: Range<usize>, is_secret: bool) {
        let Ok(key) = std::str::from_utf8(key) else { return };
        if key.len() > MAX_KEY {
            return;
        }
        let key = folded(key);
        let ends = |words: &[&str]| words.iter().any(|word| key.ends_with(word));
        self.has_secret_name |= is_secret && (ends(NAMES) || matches!(&*key, "k" | "n" | "var"));
        if ends(VALUES) || key == "v" {
            self.values.push(value);
        }
    }

    /// Returns the values of a secret.
    pub(super) fn beside(self) -> impl Iterator<Item = Range<usize>> {
        let has_secret_name = self.has_secret_name;
        self.values.into_iter().filter(move |_| has_secret_name)
    }
}

/// The elements of an array that follow the name of a secret: in a list of names and values, and after an option of a command.
#[derive(Debug, Default)]
pub(super) struct Array {
    length: usize,
    /// Whether the last element was such a name, and whether it was an option.
    last: Option<bool>,
    /// The elements that follow, and whether they count in any list.
    found: Vec<(Range<usize>, bool)>,
}

impl Array {
    /// Adds an element. `is_secret` says whether it is the name of a secret, `is_option` whether it begins with `-`.
    pub(super) fn add(&mut self, value: Range<usize>, is_secret: bool, is_option: bool) {
        if let Some(is_option) = self.last.take() {
            self.found.push((value, is_option));
        }
        let is_name = self.length.is_multiple_of(2) || is_option;
        self.last = (is_secret && is_name).then_some(is_option);
        self.length += 1;
    }

    /// Returns the values of secrets.
    pub(super) fn beside(self) -> impl Iterator<Item = Range<usize>> {
        let is_pairs = self.length.is_multiple_of(2);
        self.found.into_iter().filter(move |(_, is_option)| *is_option || is_pairs).map(|(value, _)| value)
    }
}
