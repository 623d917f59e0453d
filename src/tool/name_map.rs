//! Converts tool names between systems that allow different ones.

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest as _, Sha256};

use super::{MAX_TOOL_NAME, ToolName};

/// The length of the hash at the end of a name, in bytes. Two of 128 tools have the same hash once in half a million
/// rooms.
const HASH_BYTES: usize = 4;

/// The names that a system allows for tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NameRules {
    /// toolbridge: 1 to 64 of `A–Z a–z 0–9 _ . -`, and no reserved prefix.
    Tool,
    /// Model APIs: 1 to 64 of `A–Z a–z 0–9 _ -`, of which the first is a letter or `_`. A dot is written as `__`, and `_` is
    /// put before another first character.
    Model,
    /// Model APIs, keys of arguments: 1 to 64 of `A–Z a–z 0–9 _ . -`.
    Key,
}

/// Names of one system in the form that another system allows, and back.
///
/// A name that is allowed stays the same, whatever the others are. Characters that are not allowed are replaced with `_`.
/// A name that is too long, or that would be the same as another one, ends in a hash of the original name. So the result
/// depends only on the set of names, not on their order.
///
/// ```
/// use toolbridge::tools::{NameMap, NameRules};
///
/// let names = NameMap::new(NameRules::Tool, ["read file", "list"]);
/// assert_eq!(names.converted("read file"), Some("read_file"));
/// assert_eq!(names.original("read_file"), Some("read file"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameMap {
    converted: BTreeMap<String, String>,
    original: BTreeMap<String, String>,
}

impl NameMap {
    /// Converts these names. A repeated name counts once.
    pub fn new<N: Into<String>>(rules: NameRules, names: impl IntoIterator<Item = N>) -> Self {
        let names: BTreeSet<String> = names.into_iter().map(Into::into).collect();
        let mut converted: BTreeMap<String, String> =
            names.into_iter().map(|name| (name.clone(), rules.convert(&name))).collect();
        // A name that is allowed keeps its form: it must not depend on which others there are. Others that would be equal
        // to it, by accident or on purpose, get a hash, and another one if that is taken.
        for round in 0.. {
            let mut uses = BTreeMap::<String, u32>::new();
            for name in converted.values() {
                *uses.entry(name.clone()).or_default() += 1;
            }
            if uses.values().all(|uses| *uses == 1) {
                break;
            }
            for (original, name) in &mut converted {
                if original != name && uses.get(name).is_some_and(|uses| *uses > 1) {
                    *name = with_hash(&rules.convert(original), original, round);
                }
            }
        }
        let original = converted.iter().map(|(original, name)| (name.clone(), original.clone())).collect();
        Self { converted, original }
    }

    /// Returns the converted form of a name.
    pub fn converted(&self, original: &str) -> Option<&str> {
        self.converted.get(original).map(String::as_str)
    }

    /// Returns the name with this converted form.
    pub fn original(&self, converted: &str) -> Option<&str> {
        self.original.get(converted).map(String::as_str)
    }

    /// Returns all pairs of an original name and its converted form, in the order of the original names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.converted.iter().map(|(original, converted)| (original.as_str(), converted.as_str()))
    }
}

impl NameRules {
    fn convert(self, name: &str) -> String {
        let allowed = |it: char| {
            it.is_ascii_alphanumeric() || matches!(it, '_' | '-') || (it == '.' && self != Self::Model)
        };
        let mut dots = if self == Self::Model { name.replace('.', "__") } else { name.to_owned() };
        if self == Self::Model && dots.starts_with(|first: char| first.is_ascii_digit() || first == '-') {
            dots.insert(0, '_');
        }
        let written: String = dots.chars().map(|it| if allowed(it) { it } else { '_' }).collect();
        let is_reserved = self == Self::Tool && written.starts_with(ToolName::RESERVED);
        if written.is_empty() || written.len() > MAX_TOOL_NAME || is_reserved {
            return with_hash(&written.replacen('.', "_", usize::from(is_reserved)), name, 0);
        }
        written
    }
}

/// Returns a converted name with a hash of the original one, cut to the allowed length. The hash depends on the round.
fn with_hash(converted: &str, original: &str, round: u32) -> String {
    let mut hasher = Sha256::new_with_prefix(original);
    if round > 0 {
        hasher.update(round.to_be_bytes());
    }
    let hash: String = hasher.finalize().iter().take(HASH_BYTES).map(|byte| format!("{byte:02x}")).collect();
    let kept: String = converted.chars().take(MAX_TOOL_NAME - 1 - hash.len()).collect();
    format!("{kept}_{hash}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(names: &[&str]) -> NameMap {
        NameMap::new(NameRules::Tool, names.iter().copied())
    }

    #[test]
    fn allowed_name_stays_the_same() {
        let names = ["a", "fs.read", "A_b-c.9", &"x".repeat(64)];
        for (original, converted) in tool(&names).iter() {
            assert_eq!(original, converted);
        }
    }

    #[test]
    fn every_converted_name_is_allowed_and_maps_back() {
        let long = "n".repeat(128);
        let names = ["", "read file", "größe", "bridge.echo", "a/b", "\u{1f600}", long.as_str()];
        let map = tool(&names);
        assert_eq!(map.iter().count(), names.len());
        for name in names {
            let converted = map.converted(name).unwrap();
            let valid: ToolName = converted.parse().unwrap();
            assert!(!valid.is_reserved(), "{converted}");
            assert_eq!(map.original(converted), Some(name));
        }
        assert_eq!(map.converted("größe"), Some("gr__e"));
    }

    #[test]
    fn names_that_would_clash_all_end_in_a_hash_in_any_order() {
        let map = tool(&["read file", "read/file", "read", "read file"]);
        assert_eq!(map, tool(&["read/file", "read", "read file"]));
        let both = [map.converted("read file").unwrap(), map.converted("read/file").unwrap()];
        assert_ne!(both[0], both[1]);
        assert!(both.iter().all(|it| it.starts_with("read_file_") && it.len() == 18), "{both:?}");
        assert_eq!(map.converted("read"), Some("read"));
    }

    #[test]
    fn allowed_name_stays_the_same_beside_another_that_would_become_it() {
        let map = tool(&["read_file", "read file", "read/file"]);
        assert_eq!(map.converted("read_file"), Some("read_file"));
        let others = [map.converted("read file").unwrap(), map.converted("read/file").unwrap()];
        assert!(others[0] != others[1] && others.iter().all(|it| it.starts_with("read_file_")), "{others:?}");
    }

    #[test]
    fn name_that_imitates_the_hash_of_another_does_not_replace_it() {
        let clash = ["read file", "read/file"];
        let imitated = tool(&clash).converted("read file").unwrap().to_owned();
        let map = tool(&[clash[0], clash[1], &imitated]);
        assert_eq!(map.original(&imitated), Some(&*imitated));
        for name in [clash[0], clash[1], &imitated] {
            assert_eq!(map.original(map.converted(name).unwrap()), Some(name));
        }
    }

    #[test]
    fn model_name_begins_with_a_letter_or_an_underscore() {
        let long = "3".repeat(64);
        let map = NameMap::new(NameRules::Model, ["3d_print", "_3d_print", "-x", "ß", long.as_str()]);
        assert_eq!(map.converted("_3d_print"), Some("_3d_print"));
        assert!(map.converted("3d_print").is_some_and(|it| it.starts_with("_3d_print_")), "{map:?}");
        assert_eq!((map.converted("-x"), map.converted("ß")), (Some("_-x"), Some("_")));
        let longest = map.converted(&long).unwrap();
        assert!(longest.starts_with("_333") && longest.len() == 64, "{longest}");
        assert_eq!(map.original(longest), Some(&*long));
    }

    #[test]
    fn key_keeps_its_dots_and_digits() {
        let map = NameMap::new(NameRules::Key, ["2.x", "$filter", "größe", "filter[id]"]);
        let fitted: Vec<_> = map.iter().map(|(_, fitted)| fitted).collect();
        assert_eq!(fitted, ["_filter", "2.x", "filter_id_", "gr__e"]);
    }

    #[test]
    fn dot_is_written_as_two_underscores_for_a_model() {
        let map = NameMap::new(NameRules::Model, ["fs.read", "list"]);
        assert_eq!(map.converted("fs.read"), Some("fs__read"));
        let clash = NameMap::new(NameRules::Model, ["fs.read", "fs__read"]);
        assert_eq!(clash.original("fs__read"), Some("fs__read"));
        assert_eq!(clash.iter().count(), 2);
    }
}
