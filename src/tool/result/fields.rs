//! Reads the fields of a map, without building a tree.

use std::{ops::Range, sync::Arc};

use super::references::{Reader, Writer};
use crate::value::{
    Value,
    token::{Token, skip},
    write::Write,
};

/// Returns the pairs of a map in their order. They share the map's bytes.
pub(super) fn pairs(map: &Value) -> impl Iterator<Item = (Value, Value)> + use<> {
    let count = match Token::read(map.as_bytes(), 0) {
        Ok((Token::Map(count), _)) => count,
        _ => 0,
    };
    let mut parts = Parts::new(map);
    (0..count).map_while(move |_| Some((parts.next()?, parts.next()?)))
}

/// The values inside a container, keys included.
struct Parts {
    whole: Value,
    at: usize,
}

impl Parts {
    fn new(container: &Value) -> Self {
        let at = Token::read(container.as_bytes(), 0).map_or(0, |(_, at)| at);
        Self { whole: container.clone(), at }
    }

    fn next(&mut self) -> Option<Value> {
        let start = self.at;
        self.at = skip(self.whole.as_bytes(), start).ok()?;
        Some(Value::trusted(self.whole.clone().into_bytes().slice(start..self.at)))
    }
}

/// A map under construction.
#[derive(Default)]
pub(super) struct Map {
    count: usize,
    bytes: Vec<u8>,
}

impl Map {
    /// Starts a field and returns the buffer that its one value is appended to.
    pub(super) fn key(&mut self, key: &str) -> &mut Vec<u8> {
        self.count += 1;
        self.bytes.str(key);
        &mut self.bytes
    }

    /// Appends a pair whose key may be anything.
    pub(super) fn pair(&mut self, key: &Value) -> &mut Vec<u8> {
        self.count += 1;
        self.bytes.extend_from_slice(key.as_bytes());
        &mut self.bytes
    }

    /// Appends the pairs of another map whose keys are not there yet.
    pub(super) fn append_rest(&mut self, rest: &Value, texts: &Writer<'_>) {
        let known = self.keys();
        for (key, value) in pairs(rest) {
            if !known.iter().any(|known| self.text_at(known.clone()) == key.as_str()) {
                texts.value(self.pair(&key), &value);
            }
        }
    }

    /// Returns where the keys are.
    fn keys(&self) -> Vec<Range<usize>> {
        let (mut keys, mut at) = (Vec::with_capacity(self.count), 0);
        while let Ok(value) = skip(&self.bytes, at) {
            keys.push(at..value);
            let Ok(next) = skip(&self.bytes, value) else { break };
            at = next;
        }
        keys
    }

    fn text_at(&self, range: Range<usize>) -> Option<&str> {
        Token::read(self.bytes.get(range)?, 0).ok()?.0.as_text()
    }

    /// Appends the map to a buffer.
    pub(super) fn append_to(&self, out: &mut Vec<u8>) {
        out.map(self.count);
        out.extend_from_slice(&self.bytes);
    }

    /// Returns the map as a value.
    pub(super) fn value(&self) -> Value {
        let mut out = Vec::with_capacity(self.bytes.len() + 5);
        self.append_to(&mut out);
        Value::trusted(out.into())
    }
}

/// Returns the map without these fields.
pub(super) fn without(map: &Value, keys: &[&str]) -> Value {
    let mut rest = Map::default();
    for (key, value) in pairs(map) {
        if !key.as_str().is_some_and(|key| keys.contains(&key)) {
            rest.pair(&key).extend_from_slice(value.as_bytes());
        }
    }
    rest.value()
}

/// The fields of a map, of which those that are read are remembered.
pub(super) struct Fields<'a, 'native> {
    map: &'a Value,
    texts: &'a Reader<'native>,
    pub(super) known: Vec<&'static str>,
}

impl<'a, 'native> Fields<'a, 'native> {
    pub(super) fn new(map: &'a Value, texts: &'a Reader<'native>) -> Self {
        Self { map, texts, known: Vec::new() }
    }

    /// Reads a text, which may be a reference.
    pub(super) fn text(&mut self, key: &'static str) -> Option<Arc<str>> {
        let text = self.texts.text(&self.map.get(key)?)?;
        self.known.push(key);
        Some(text)
    }

    /// Reads a field that is no text.
    pub(super) fn read<T>(&mut self, key: &'static str, read: impl Fn(&Value) -> Option<T>) -> Option<T> {
        let value = read(&self.map.get(key)?)?;
        self.known.push(key);
        Some(value)
    }

    /// Returns the map without the fields that were read.
    pub(super) fn rest(&self) -> Value {
        self.texts.map(&without(self.map, &self.known))
    }
}
