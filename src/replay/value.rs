//! Compares values for live replays: numbers by value, and keys in any order.

use serde_json::{Map, Number, Value as Json};
use sha2::{Digest, Sha256};

use crate::value::Value;

/// The bounds of 64-bit integers, both exact as floats: one past the largest, and the smallest.
const PAST_U64: f64 = 18_446_744_073_709_551_616.0;
const MIN_I64: f64 = -9_223_372_036_854_775_808.0;

/// How canonical JSON represents a map that is not a JSON object.
const MAP: &str = "$map";

/// Canonical JSON with sorted keys and whole floats as integers, so that equal values give equal texts.
pub(super) fn canonical(body: &Value) -> Json {
    sorted(body.to_json())
}

/// The digest that equal calls of a tool share. Missing parameters are an empty map.
pub(super) fn key(tool: &str, parameters: &Value) -> [u8; 32] {
    let parameters = if parameters.is_nil() { Json::Object(Map::new()) } else { canonical(parameters) };
    let digest = Sha256::new_with_prefix(tool.as_bytes()).chain_update([0]);
    digest.chain_update(parameters.to_string().as_bytes()).finalize().into()
}

fn sorted(value: Json) -> Json {
    match value {
        Json::Number(number) => Json::Number(whole(number)),
        Json::Array(items) => items.into_iter().map(sorted).collect(),
        Json::Object(map) => {
            let is_map = map.len() == 1 && map.contains_key(MAP);
            let mut pairs: Vec<_> = map.into_iter().map(|(key, value)| (key, sorted(value))).collect();
            pairs.sort_by(|(one, _), (other, _)| one.cmp(other));
            if is_map && let Some((_, Json::Array(entries))) = pairs.first_mut() {
                entries.sort_by_cached_key(Json::to_string);
            }
            Json::Object(pairs.into_iter().collect())
        }
        other => other,
    }
}

/// Returns a whole float as the equal integer.
fn whole(number: Number) -> Number {
    match number.as_f64().filter(|it| number.is_f64() && it.fract() == 0.0) {
        Some(float) if (0.0..PAST_U64).contains(&float) => (float as u64).into(),
        Some(float) if (MIN_I64..0.0).contains(&float) => (float as i64).into(),
        _ => number,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: &'static [u8]) -> Value {
        Value::from_bytes(bytes).unwrap()
    }

    #[test]
    fn key_order_and_number_width_do_not_matter() {
        let one = Value::from_json(r#"{"a": {"x": 1, "y": [1.0, -2.0]}, "b": 0.5}"#).unwrap();
        let other = Value::from_json(r#"{"b": 0.5, "a": {"y": [1, -2], "x": 1.0}}"#).unwrap();
        assert_eq!(key("t", &one), key("t", &other));
        assert_ne!(key("t", &one), key("u", &one));
        // 1 as a fixed integer, in 16 bits, as 32-bit and as 64-bit float; 0 and -0.0.
        let ones = [
            &b"\x81\xa1n\x01"[..],
            b"\x81\xa1n\xcd\0\x01",
            b"\x81\xa1n\xca\x3f\x80\0\0",
            b"\x81\xa1n\xcb\x3f\xf0\0\0\0\0\0\0",
        ];
        assert!(ones.iter().all(|it| key("t", &of(it)) == key("t", &of(ones[0]))));
        let (zero, minus) = (of(b"\x81\xa1n\0"), of(b"\x81\xa1n\xcb\x80\0\0\0\0\0\0\0"));
        assert_eq!(key("t", &zero), key("t", &minus));
        // 2^63, and the largest float below 2^64.
        let (int, float) = (of(b"\x81\xa1n\xcf\x80\0\0\0\0\0\0\0"), of(b"\x81\xa1n\xcb\x43\xe0\0\0\0\0\0\0"));
        assert_eq!(key("t", &int), key("t", &float));
        assert_eq!(key("t", &Value::nil()), key("t", &Value::empty()));
    }

    #[test]
    fn different_values_stay_different() {
        let values = [
            r#"{"n": 1}"#,
            r#"{"n": 1.5}"#,
            r#"{"n": "1"}"#,
            r#"{"n": true}"#,
            r#"{"n": null}"#,
            r#"{"n": [1]}"#,
            r#"{"n": {"$bin": "MQ=="}}"#,
            r#"{"n": {"$ext": [1, "MQ=="]}}"#,
            r#"{"n": 18446744073709551615}"#,
            r#"{"n": 1e300}"#,
            r#"{"n": [2, 1]}"#,
            r#"{"n": [1, 2]}"#,
            "{}",
        ];
        let keys: std::collections::BTreeSet<_> =
            values.iter().map(|it| key("t", &Value::from_json(it).unwrap())).collect();
        assert_eq!(keys.len(), values.len());
    }

    #[test]
    fn maps_of_any_keys_are_sorted_too() {
        let (one, other) = (of(b"\x81\xa1m\x82\x01\xa1a\x02\xa1b"), of(b"\x81\xa1m\x82\x02\xa1b\x01\xa1a"));
        assert_eq!(key("t", &one), key("t", &other));
    }
}
