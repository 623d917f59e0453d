//! Iterates over all tokens of a value without building anything.

use super::{DecodeError, Limits, token::Token};

/// A position in a value. Only the depth, and what is needed to continue, is checked.
#[derive(Debug)]
pub(crate) struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
    /// How many values each open container still has, and whether keys and values alternate.
    open: Vec<(u64, bool)>,
}

impl<'a> Walk<'a> {
    /// Walks through the value that starts here.
    pub(crate) fn value(bytes: &'a [u8], at: usize) -> Self {
        Self::value_with(bytes, at, Vec::new())
    }

    /// The same, with a reused stack from an earlier walk.
    pub(crate) fn value_with(bytes: &'a [u8], at: usize, mut open: Vec<(u64, bool)>) -> Self {
        open.clear();
        open.push((1, false));
        Self { bytes, at, open }
    }

    /// Returns the next token, and whether it is a map's key; `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<(Token<'a>, bool)>, DecodeError> {
        let is_key = loop {
            match self.open.last_mut() {
                None => return Ok(None),
                Some((0, _)) => drop(self.open.pop()),
                Some((left, is_map)) => {
                    let is_key = *is_map && left.is_multiple_of(2);
                    *left -= 1;
                    break is_key;
                }
            }
        };
        let offset = self.at;
        let (token, next) = Token::read(self.bytes, offset)?;
        self.at = next;
        let inside = match token {
            Token::Array(count) => (count.into(), false),
            Token::Map(count) => (2 * u64::from(count), true),
            _ => return Ok(Some((token, is_key))),
        };
        if self.open.len() > Limits::MAX_DEPTH {
            let (depth, limit) = (self.open.len(), Limits::MAX_DEPTH);
            return Err(DecodeError::TooDeep { offset, depth, limit });
        }
        self.open.push(inside);
        Ok(Some((token, is_key)))
    }

    /// Returns the position after the last token.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Returns the stack for reuse.
    pub(crate) fn into_stack(self) -> Vec<(u64, bool)> {
        self.open
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::Value;

    #[test]
    fn every_token_is_returned_once_and_keys_are_marked() {
        let body = Value::from_json(r#"{"a": [1, {"b": "c"}], "d": {}, "e": [[]]}"#).unwrap();
        let mut walk = Walk::value(body.as_bytes(), 0);
        let (mut keys, mut others) = (Vec::new(), 0);
        while let Some((token, is_key)) = walk.next().unwrap() {
            match token.as_text().filter(|_| is_key) {
                Some(key) => keys.push(key.to_owned()),
                None => others += 1,
            }
        }
        assert_eq!((keys.concat().as_str(), others, walk.at()), ("abde", 8, body.as_bytes().len()));
    }

    #[test]
    fn too_deep_or_cut_is_an_error() {
        let deep = vec![0x91; 100];
        let mut walk = Walk::value(&deep, 0);
        let error = loop {
            match walk.next() {
                Ok(Some(_)) => {}
                Ok(None) => panic!("it ended"),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, DecodeError::TooDeep { limit: Limits::MAX_DEPTH, .. }), "{error}");
        assert!(Walk::value(b"\xa3ab", 0).next().is_err());
    }
}
