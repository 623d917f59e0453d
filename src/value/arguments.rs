//! Reads the arguments of a call in the forms in which models and programs write them.
//!
//! A frame holds a map. Models write "none" as `null`, `[]` or an empty text, and most model APIs give a text of JSON, which some
//! models write as a text once more. All doors read them here, so that none is stricter than another.

use super::{DecodeError, EncodeError, Value, encoded, parse};

/// How often a text of JSON may be in a text.
const TEXTS: usize = 2;

/// Why it is not even known what was meant.
const NOT_A_MAP: EncodeError = EncodeError::NotAMap { field: "arguments" };

impl Value {
    /// Returns the map of a call's arguments: a map is itself; nil, an empty array and a blank text are the empty map; another text
    /// is read as JSON, and by these rules once more.
    ///
    /// In such a text names like `$bin` have no special meaning.
    ///
    /// ```
    /// use serde_json::json;
    /// use toolbridge::Value;
    ///
    /// for (written, arguments) in [
    ///     (json!({"on": true}), json!({"on": true})),
    ///     (json!("{\"on\": true}"), json!({"on": true})),
    ///     (json!([]), json!({})),
    ///     (json!(null), json!({})),
    /// ] {
    ///     assert_eq!(Value::from(written).into_arguments()?.to_json(), arguments);
    /// }
    /// assert!(Value::from(json!([1])).into_arguments().is_err());
    /// # Ok::<(), toolbridge::EncodeError>(())
    /// ```
    ///
    /// # Errors
    /// [`NotAMap`](EncodeError::NotAMap) for other values, and [`Invalid`](EncodeError::Invalid) or
    /// [`TooLarge`](EncodeError::TooLarge) for a text that is not JSON, or whose value breaks a limit.
    pub fn into_arguments(self) -> Result<Self, EncodeError> {
        let mut written = self;
        for _ in 0..=TEXTS {
            if written.is_map() {
                return Ok(written);
            }
            if written.is_nil() || written.is_empty() {
                return Ok(Self::empty());
            }
            let text = written.as_str().ok_or(NOT_A_MAP)?;
            written = match Self::from_plain_json(text) {
                _ if text.trim().is_empty() => Self::empty(),
                Err(DecodeError::Json { reason }) => {
                    return Err(DecodeError::json(format!("a text that is not JSON: {reason}")).into());
                }
                read => read?,
            };
        }
        Err(NOT_A_MAP)
    }

    /// Reads a JSON text in which names like `$bin` have no special meaning.
    ///
    /// # Errors
    /// If it is not JSON, or exceeds a limit.
    pub(crate) fn from_plain_json(text: &str) -> Result<Self, DecodeError> {
        match encoded(&[], text) {
            Some(value) => Ok(value),
            None => Self::from_bytes(Self::from(parse(text)?).into_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nothing_null_an_empty_list_and_texts_of_them_are_no_arguments() {
        for written in [
            json!(null),
            json!([]),
            json!({}),
            json!(""),
            json!(" \n"),
            json!("{}"),
            json!("[]"),
            json!("null"),
            json!("\"\""),
            json!("\"{}\""),
        ] {
            assert_eq!(Value::from(&written).into_arguments(), Ok(Value::empty()), "{written}");
        }
    }

    #[test]
    fn text_is_read_as_json_at_most_twice() {
        let map = json!({"on": true, "$bin": "AA=="});
        let mut written = map.clone();
        for _ in 0..2 {
            written = json!(written.to_string());
            assert_eq!(Value::from(&written).into_arguments(), Ok(Value::from(&map)));
        }
        let thrice = Value::from(json!(written.to_string()));
        assert_eq!(thrice.into_arguments(), Err(NOT_A_MAP));
    }

    #[test]
    fn other_values_are_refused_with_the_reason() {
        for written in
            [json!(5), json!(true), json!([1]), json!([{}]), json!("5"), json!("[1]"), json!("\"[1]\"")]
        {
            assert_eq!(Value::from(&written).into_arguments(), Err(NOT_A_MAP), "{written}");
        }
        for text in ["on", "{\"on\": }", "{} {}", "\"on\""] {
            let error = Value::from(json!(text)).into_arguments().unwrap_err();
            assert!(matches!(error, EncodeError::Invalid(DecodeError::Json { .. })), "{text}: {error}");
        }
        let deep = "{\"a\":".repeat(200) + "1" + &"}".repeat(200);
        assert!(matches!(Value::from(json!(deep)).into_arguments(), Err(EncodeError::Invalid(_))));
    }
}
