//! Reads a JSON text without building a tree, so that it can be referred to and cut without being reformatted.

use std::{borrow::Cow, ops::Range};

use serde::de::IgnoredAny;

use crate::value::{
    json_string::decoded,
    json_tokens::{JsonToken, JsonTokens},
};

/// The deepest nesting that is read. A deeper document is carried, but nothing refers to it or is cut out of it.
const MAX_DEPTH: usize = 256;

/// The longest JSON pointer that is used, in bytes. Pointers of nested long keys could be larger than the document.
pub(super) const MAX_POINTER: usize = 1024;

/// A value in a JSON text.
pub(super) enum Found<'a> {
    /// The start of an array or an object.
    Container,
    /// A string, decoded.
    Text(Cow<'a, str>),
    /// A string with half of a surrogate pair, which has no text.
    Broken,
}

/// Calls `on` for each container and each string value of at least `min_text` bytes, with its JSON pointer (RFC 6901).
/// Returns the text without the values for which `on` returns true; nothing inside such a value is visited.
///
/// Array elements after a removed one move up. Everything that remains is unchanged, byte for byte. Returns `None` if
/// the text is not JSON or is nested too deep, or if its outermost value is removed.
pub(super) fn without<'a>(
    text: &'a str,
    min_text: usize,
    on: impl FnMut(&str, Found<'a>) -> bool,
) -> Option<Cow<'a, str>> {
    let mut scan = Scan {
        text,
        min_text,
        on,
        pointer: String::new(),
        open: Vec::new(),
        quiet: None,
        removed: Vec::new(),
    };
    scan.run()?;
    if scan.removed.is_empty() {
        return Some(Cow::Borrowed(text));
    }
    let (mut kept, mut at) = (String::new(), 0);
    for range in scan.removed {
        kept.push_str(text.get(at..range.start)?);
        at = range.end;
    }
    kept.push_str(text.get(at..)?);
    Some(Cow::Owned(kept))
}

/// Calls `on` for each string of at least `min_text` bytes whose JSON pointer is not too long. Calls it for none if the
/// text is not JSON or is nested too deep.
pub(super) fn each_text<'a>(text: &'a str, min_text: usize, mut on: impl FnMut(String, Cow<'a, str>)) {
    let mut texts = Vec::new();
    let kept = without(text, min_text, |pointer, found| {
        if let Found::Text(text) = found
            && pointer.len() <= MAX_POINTER
        {
            texts.push((pointer.to_owned(), text));
        }
        false
    });
    if kept.is_some() {
        texts.into_iter().for_each(|(pointer, text)| on(pointer, text));
    }
}

/// An open container.
struct Open {
    is_object: bool,
    /// The index of the current element.
    index: usize,
    /// The length of the container's own pointer.
    pointer: usize,
    /// The start of the current member: its key, or the element itself.
    member: usize,
    /// The current member's key with its quotes.
    key: Range<usize>,
    /// The next string is a key.
    expects_key: bool,
    /// Whether an earlier member is kept.
    has_kept: bool,
    /// The position of the last comma.
    comma: usize,
    /// The removal that extends to the next comma.
    pending: Option<usize>,
}

struct Scan<'a, F> {
    text: &'a str,
    min_text: usize,
    on: F,
    pointer: String,
    open: Vec<Open>,
    /// The number of open containers at the one that is removed.
    quiet: Option<usize>,
    removed: Vec<Range<usize>>,
}

impl<'a, F: FnMut(&str, Found<'a>) -> bool> Scan<'a, F> {
    fn run(&mut self) -> Option<()> {
        // Afterwards only the structure has to be followed.
        serde_json::from_str::<IgnoredAny>(self.text).ok()?;
        for (token, place) in JsonTokens::new(self.text) {
            match token {
                JsonToken::Object | JsonToken::Array => {
                    self.enter(place.start, token == JsonToken::Object)?
                }
                JsonToken::End => self.leave(place.end)?,
                JsonToken::Comma => self.comma(place),
                JsonToken::Colon => {}
                JsonToken::Text => self.string(place)?,
                JsonToken::Word => {
                    self.begin(place.start);
                    self.end(false, place.end)?;
                }
            }
        }
        Some(())
    }

    /// Notes where an array's element starts.
    fn begin(&mut self, at: usize) {
        if let Some(open) = self.open.last_mut().filter(|open| !open.is_object) {
            open.member = at;
        }
    }

    /// Returns whether the value with the current pointer is to be removed.
    fn ask(&mut self, found: Found<'a>) -> bool {
        self.quiet.is_none() && (self.on)(&self.pointer, found)
    }

    /// Extends the pointer by the step to the current value.
    fn step(&mut self) {
        let Some(open) = self.open.last() else { return };
        self.pointer.truncate(open.pointer);
        self.pointer.push('/');
        if !open.is_object {
            self.pointer.push_str(&open.index.to_string());
            return;
        }
        let key = self.text.get(open.key.clone()).and_then(decoded).unwrap_or_default();
        for letter in key.chars() {
            match letter {
                '~' => self.pointer.push_str("~0"),
                '/' => self.pointer.push_str("~1"),
                other => self.pointer.push(other),
            }
        }
    }

    fn enter(&mut self, at: usize, is_object: bool) -> Option<()> {
        self.begin(at);
        self.step();
        if self.ask(Found::Container) {
            self.quiet = Some(self.open.len());
        }
        if self.open.len() == MAX_DEPTH {
            return None;
        }
        self.open.push(Open {
            is_object,
            index: 0,
            pointer: self.pointer.len(),
            member: at + 1,
            key: 0..0,
            expects_key: is_object,
            has_kept: false,
            comma: at + 1,
            pending: None,
        });
        Some(())
    }

    fn leave(&mut self, end: usize) -> Option<()> {
        self.open.pop();
        let removed = self.quiet == Some(self.open.len());
        if removed {
            self.quiet = None;
        }
        self.end(removed, end)
    }

    fn comma(&mut self, place: Range<usize>) {
        let Some(open) = self.open.last_mut() else { return };
        open.comma = place.start;
        open.index += 1;
        open.expects_key = open.is_object;
        let pending = open.pending.take();
        if let Some(range) = pending.and_then(|pending| self.removed.get_mut(pending)) {
            range.end = place.end;
        }
    }

    /// Reads a key, or a value that is a string.
    fn string(&mut self, place: Range<usize>) -> Option<()> {
        if let Some(open) = self.open.last_mut().filter(|open| open.expects_key) {
            open.member = place.start;
            open.key = place;
            open.expects_key = false;
            return Some(());
        }
        self.begin(place.start);
        let end = place.end;
        let mut removed = false;
        // An escaped text is never shorter than the text itself.
        if place.len() - 2 >= self.min_text && self.quiet.is_none() {
            let found = self.text.get(place).and_then(decoded).map_or(Found::Broken, Found::Text);
            let is_long = !matches!(&found, Found::Text(text) if text.len() < self.min_text);
            if is_long {
                self.step();
                removed = self.ask(found);
            }
        }
        self.end(removed, end)
    }

    /// Ends the current value, after which this position stands.
    fn end(&mut self, removed: bool, end: usize) -> Option<()> {
        let Some(open) = self.open.last_mut() else { return (!removed).then_some(()) };
        if !removed {
            open.has_kept = true;
            return Some(());
        }
        // Every removed member takes one comma with it: the one before it if an earlier member is kept.
        let start = if open.has_kept { open.comma } else { open.member };
        open.pending = (!open.has_kept).then_some(self.removed.len());
        self.removed.push(start..end);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::{prelude::*, test_runner::RngSeed};
    use serde_json::{Value as Json, json};

    use super::*;

    fn cut(text: &str, pointers: &[&str]) -> Option<String> {
        without(text, 0, |pointer, _| pointers.contains(&pointer)).map(Cow::into_owned)
    }

    #[test]
    fn removed_members_leave_the_rest_unchanged() {
        let text = r#"{ "a" : ["x", "y" ,"z"], "b":{"c":1e5,"d":"\u00e9"} , "~/":"s" }"#;
        for (pointers, expected) in [
            (&["/nowhere"][..], text),
            (&["/a/0"], r#"{ "a" : [ "y" ,"z"], "b":{"c":1e5,"d":"\u00e9"} , "~/":"s" }"#),
            (&["/a/1", "/a/2"], r#"{ "a" : ["x" ], "b":{"c":1e5,"d":"\u00e9"} , "~/":"s" }"#),
            (&["/a/0", "/a/1", "/a/2"], r#"{ "a" : [ ], "b":{"c":1e5,"d":"\u00e9"} , "~/":"s" }"#),
            (&["/a", "/a/1"], r#"{  "b":{"c":1e5,"d":"\u00e9"} , "~/":"s" }"#),
            (&["/b/d", "/~0~1"], r#"{ "a" : ["x", "y" ,"z"], "b":{"c":1e5}  }"#),
        ] {
            assert_eq!(cut(text, pointers).unwrap(), expected, "{pointers:?}");
            assert!(serde_json::from_str::<Json>(expected).is_ok());
        }
        assert_eq!(cut(text, &[""]), None);
        assert_eq!(cut("{\"a\": ", &[]), None);
        let deep = |depth| "[".repeat(depth) + "\"text\"" + &"]".repeat(depth);
        assert_eq!(cut(&deep(MAX_DEPTH), &[]), Some(deep(MAX_DEPTH)));
        assert_eq!((cut(&deep(MAX_DEPTH + 1), &[]), cut(&deep(100_000), &[])), (None, None));
        each_text(&format!("[\"text\",{}]", deep(MAX_DEPTH)), 0, |_, _| panic!("nested too deep"));
    }

    #[test]
    fn long_texts_are_found_by_pointer() {
        let text = json!({"a/b": ["short", "long text", "\n\"long\" text"], "c": 5}).to_string();
        let mut found = Vec::new();
        each_text(&text, 9, |pointer, text| found.push((pointer, text.into_owned())));
        let expected = [("/a~1b/1", "long text"), ("/a~1b/2", "\n\"long\" text")];
        assert_eq!(found, expected.map(|(pointer, text)| (pointer.to_owned(), text.to_owned())));
        each_text(r#"["\ud800 has no text"]"#, 0, |_, _| panic!("a lone surrogate"));
    }

    /// A small document, with every kind of value and keys that pointers escape.
    fn any_json() -> impl Strategy<Value = Json> {
        let leaf = prop_oneof![
            Just(Json::Null),
            any::<i64>().prop_map(Json::from),
            any::<f64>().prop_map(Json::from),
            ".{0,8}".prop_map(Json::from),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Json::from),
                prop::collection::btree_map("[a-c~/\"]{0,2}", inner, 0..5)
                    .prop_map(|map| Json::Object(map.into_iter().collect())),
            ]
        })
    }

    /// Removes the values for which `on` returns true from a tree.
    fn pruned(json: &Json, pointer: &str, on: &mut impl FnMut(&str) -> bool) -> Json {
        match json {
            Json::Array(items) => {
                let items = items.iter().enumerate().filter_map(|(n, item)| {
                    let pointer = format!("{pointer}/{n}");
                    let asked = item.is_string() || item.is_array() || item.is_object();
                    if asked && on(&pointer) { None } else { Some(pruned(item, &pointer, on)) }
                });
                items.collect()
            }
            Json::Object(map) => {
                let pairs = map.iter().filter_map(|(key, item)| {
                    let pointer = format!("{pointer}/{}", crate::value::pointer_step(key));
                    let asked = item.is_string() || item.is_array() || item.is_object();
                    let removed = asked && on(&pointer);
                    (!removed).then(|| (key.clone(), pruned(item, &pointer, on)))
                });
                Json::Object(pairs.collect())
            }
            other => other.clone(),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn cut_document_equals_the_pruned_tree(json in any_json(), pretty in any::<bool>(), every in 2_usize..6) {
            let text = if pretty { serde_json::to_string_pretty(&json) } else { serde_json::to_string(&json) };
            let text = text.unwrap();
            // The choice depends on the pointer alone.
            let removes = |pointer: &str| !pointer.is_empty() && pointer.bytes().map(usize::from).sum::<usize>() % every == 0;
            let cut = without(&text, 0, |pointer, _| {
                assert!(json.pointer(pointer).is_some(), "{pointer}");
                removes(pointer)
            });
            let cut: Json = serde_json::from_str(&cut.unwrap()).unwrap();
            prop_assert_eq!(cut, pruned(&json, "", &mut |pointer| removes(pointer)));
        }
    }
}
