//! Defines the ids of requests.

use serde_json::{Number, Value as Json, value::RawValue};

/// The longest id, in bytes: programs use numbers and UUIDs.
pub(crate) const MAX_ID: usize = 256;

/// The id of a request: a text or a number. It stays as it was written, because programs compare the id of an answer with
/// what they have sent.
#[derive(Clone, Debug)]
pub(crate) struct Id {
    raw: Box<RawValue>,
    value: Json,
}

impl Id {
    /// Reads the id that a value is, if it is one.
    pub(crate) fn read(text: &[u8]) -> Option<Self> {
        let text = text.trim_ascii();
        let text = if text.len() <= MAX_ID { std::str::from_utf8(text).ok()? } else { return None };
        let value: Json = serde_json::from_str(text).ok()?;
        if !value.is_string() && !value.is_number() {
            return None;
        }
        Some(Self { raw: RawValue::from_string(text.to_owned()).ok()?, value })
    }

    /// Reads the id in parameters.
    #[cfg(all(any(feature = "acp", feature = "mcp"), unix))]
    pub(crate) fn of(value: &Json) -> Option<Self> {
        Self::read(value.to_string().as_bytes())
    }

    /// Returns the JSON text of the id.
    pub(crate) fn as_json(&self) -> &str {
        self.raw.get()
    }

    pub(super) fn raw(&self) -> &RawValue {
        &self.raw
    }

    /// Returns the whole number that it is: of `2`, and also of `2.0`, which some programs write.
    pub(crate) fn number(&self) -> Option<i64> {
        match &self.value {
            Json::Number(number) => whole(number),
            _ => None,
        }
    }

    /// Returns the number that it is for programs that read the text of a number as that number, too.
    #[cfg(all(any(feature = "acp", feature = "mcp"), unix))]
    pub(crate) fn whole(&self) -> Option<u64> {
        let number = self.number().or_else(|| self.value.as_str()?.trim().parse().ok())?;
        u64::try_from(number).ok()
    }

    /// Returns the text that it is.
    #[cfg(feature = "mcp-server")]
    pub(in crate::adapter) fn text(&self) -> Option<&str> {
        self.value.as_str()
    }

    #[cfg(all(any(feature = "acp", feature = "mcp"), unix))]
    pub(super) fn is_number(&self) -> bool {
        self.value.is_number()
    }
}

/// Numbers are equal by their value.
impl PartialEq for Id {
    fn eq(&self, other: &Self) -> bool {
        self.as_json() == other.as_json()
            || self.value == other.value
            || self.number().is_some() && self.number() == other.number()
    }
}

/// Returns the whole number that a number is, if both can be told apart from all others.
fn whole(number: &Number) -> Option<i64> {
    let of_float = || {
        let float = number.as_f64().filter(|it| it.fract() == 0.0 && it.abs() < (1_i64 << 53) as f64)?;
        Some(float as i64)
    };
    number.as_i64().or_else(of_float)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> Id {
        Id::read(text.as_bytes()).unwrap()
    }

    #[test]
    fn id_keeps_its_text_and_is_equal_by_its_value() {
        for (text, number) in [
            ("7", Some(7)),
            ("2.0", Some(2)),
            ("-3e2", Some(-300)),
            ("1.5", None),
            ("1180591620717411303424", None),
            ("\"7\"", None),
        ] {
            assert_eq!((id(text).as_json(), id(text).number()), (text, number));
        }
        assert!(id("2.0") == id("2") && id("\"a\"") == id(r#""\u0061""#));
        for (one, other) in [("7", "\"7\""), ("1.5", "1"), ("9007199254740993", "9007199254740992.0")] {
            assert!(id(one) != id(other), "{one} {other}");
        }
        for none in ["null", "true", "[1]", "{}", "1e999", "x", ""] {
            assert!(Id::read(none.as_bytes()).is_none(), "{none}");
        }
    }
}
