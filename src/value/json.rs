//! Converts values to and from canonical JSON (`wire.md`, section 9).

use std::borrow::Cow;

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use serde::Deserialize;
use serde_json::{Map, Number, Value as Json, json};

use super::{
    DecodeError, Limits, Value,
    json_encode::append_encoded,
    json_string::{ShortText, has_escape},
    json_text::{TextSize, measured, repaired},
    token::{Token, short_text, text_at},
    write::Write,
};

/// Binary data: `{"$bin": "base64"}`.
const BIN: &str = "$bin";
/// An extension value: `{"$ext": [type, "base64"]}`.
const EXT: &str = "$ext";
/// A float that JSON lacks: `{"$float": "NaN"}`.
const FLOAT: &str = "$float";
/// A map that is not a JSON object: `{"$map": [[key, value], …]}`.
const MAP: &str = "$map";

/// Returns whether an object whose only key is this one has a special meaning.
pub(super) fn known_word(key: &str) -> bool {
    matches!(key, BIN | EXT | FLOAT | MAP)
}

/// Converts scanned bytes, which are one value.
pub(crate) fn to_json(bytes: &[u8]) -> Result<Json, DecodeError> {
    let mut at = 0;
    value(bytes, &mut at)
}

/// The nesting depth of brackets in a JSON text. The deepest value that the limits allow needs three brackets per
/// level, as `{"$map": [[key, value]]}`, and a frame two more.
const MAX_JSON_DEPTH: usize = 3 * Limits::MAX_DEPTH + 2;

/// The most values that a JSON text may have: a `$map` has up to three brackets and commas for each of its values.
const MAX_JSON_VALUES: usize = 3 * Limits::VALUES;

/// Returns a text without the byte order mark that some programs write before it.
pub(crate) fn without_mark(text: &str) -> &str {
    &text[text.len() - bytes_without_mark(text.as_bytes()).len()..]
}

/// Returns the bytes of a text without the byte order mark that some programs write before it.
pub(crate) fn bytes_without_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(text)
}

/// Parses a JSON text. Canonical JSON may be deeper than a plain parser would allow.
pub(crate) fn parse(text: &str) -> Result<Json, DecodeError> {
    let text = without_mark(text);
    let TextSize { depth, values } = measured(text);
    if depth > MAX_JSON_DEPTH {
        return Err(DecodeError::json(format!(
            "nesting depth {depth} exceeds the limit of {MAX_JSON_DEPTH}"
        )));
    }
    let limit = if text.contains(MAP) { MAX_JSON_VALUES } else { Limits::VALUES };
    if values > limit {
        return Err(DecodeError::json(format!("about {values} values exceed the limit of {limit}")));
    }
    read(text).or_else(|error| match repaired(text) {
        Cow::Borrowed(_) => Err(DecodeError::json(error.to_string())),
        Cow::Owned(text) => read(&text).map_err(|error| DecodeError::json(error.to_string())),
    })
}

/// Returns the value of a JSON text in which names like `$bin` have no special meaning, after these bytes: without a
/// tree, in a third of the time. Returns `None` for a text that only [`parse`] can judge: one that is broken or exceeds
/// a limit, or in which an object has the same key twice.
pub(crate) fn encoded(before: &[u8], text: &str) -> Option<Value> {
    let text = without_mark(text);
    let TextSize { depth, values } = measured(text);
    if depth > Limits::MAX_DEPTH || values > Limits::VALUES {
        return None;
    }
    let mut out = Vec::with_capacity(before.len() + text.len());
    out.extend_from_slice(before);
    append_encoded(&mut out, text).ok()?;
    Value::from_bytes(out).ok()
}

fn read(text: &str) -> serde_json::Result<Json> {
    let mut reader = serde_json::Deserializer::from_str(text);
    reader.disable_recursion_limit();
    Json::deserialize(&mut reader).and_then(|json| reader.end().map(|()| json))
}

/// Appends the canonical JSON text of the value that starts at `at`, and returns the position after it, or `None` if the
/// bytes are no value. No tree is built, unless a map in it needs a `$map`.
pub(crate) fn append_text(out: &mut Vec<u8>, bytes: &[u8], at: usize) -> Option<usize> {
    let start = out.len();
    append_plain(out, bytes, at).or_else(|| {
        // The whole value once more, not each container around that map.
        out.truncate(start);
        let mut end = at;
        append(out, &value(bytes, &mut end).ok()?)?;
        Some(end)
    })
}

/// Appends the text of a value, or only a part of it if one of its maps needs a `$map`: `None` then.
fn append_plain(out: &mut Vec<u8>, bytes: &[u8], at: usize) -> Option<usize> {
    if let Some(text) = short_text(bytes, at) {
        return append_string(out, bytes, text);
    }
    let (token, mut next) = Token::read(bytes, at).ok()?;
    match token {
        Token::Str(text) => append_quoted(out, text)?,
        Token::Unsigned(value) => append(out, &value)?,
        Token::Negative(value) => append(out, &value)?,
        Token::Bool(value) => append(out, &value)?,
        Token::F64(value) if value.is_finite() => append(out, &value)?,
        Token::Array(count) => {
            out.push(b'[');
            for n in 0..count {
                if n > 0 {
                    out.push(b',');
                }
                next = append_plain(out, bytes, next)?;
            }
            out.push(b']');
        }
        Token::Map(count) => {
            out.push(b'{');
            for n in 0..count {
                let key = text_at(bytes, next).filter(|(key, _)| count > 1 || !key.starts_with(b"$"))?;
                if n > 0 {
                    out.push(b',');
                }
                let after = append_string(out, bytes, key)?;
                out.push(b':');
                next = append_plain(out, bytes, after)?;
            }
            out.push(b'}');
        }
        _ => append(out, &value(bytes, &mut { at }).ok()?)?,
    }
    Some(next)
}

/// Appends a string of the value, of which the text and the position after it are given. Returns that position.
fn append_string(out: &mut Vec<u8>, bytes: &[u8], (text, end): (&[u8], usize)) -> Option<usize> {
    match ShortText::new(bytes.get(end - text.len()..)?, text.len()) {
        Some(short) if short.append_quoted(out) => {}
        _ => append_quoted(out, text)?,
    }
    Some(end)
}

/// Appends a string, whose bytes are copied if nothing is to be escaped.
fn append_quoted(out: &mut Vec<u8>, text: &[u8]) -> Option<()> {
    if has_escape(text) {
        return append(out, std::str::from_utf8(text).ok()?);
    }
    out.push(b'"');
    out.extend_from_slice(text);
    out.push(b'"');
    Some(())
}

fn append(out: &mut Vec<u8>, part: &(impl serde::Serialize + ?Sized)) -> Option<()> {
    serde_json::to_writer(out, part).ok()
}

/// Returns a string's own text; for any other value, its JSON text.
pub(crate) fn text_of(bytes: &[u8]) -> Result<String, DecodeError> {
    Ok(match to_json(bytes)? {
        Json::String(text) => text,
        other => other.to_string(),
    })
}

fn value(bytes: &[u8], at: &mut usize) -> Result<Json, DecodeError> {
    let (token, next) = Token::read(bytes, *at)?;
    let start = std::mem::replace(at, next);
    Ok(match token {
        Token::Nil => Json::Null,
        Token::Bool(value) => value.into(),
        Token::Unsigned(value) => value.into(),
        Token::Negative(value) => value.into(),
        Token::F32(value) => float(value.into()),
        Token::F64(value) => float(value),
        Token::Str(text) => {
            std::str::from_utf8(text).map_err(|_| DecodeError::Utf8 { offset: start })?.into()
        }
        Token::Bin(data) => json!({ BIN: BASE64.encode(data) }),
        Token::Ext(kind, data) => json!({ EXT: [kind, BASE64.encode(data)] }),
        Token::Array(count) => {
            // Each entry has a byte, so the count of bytes that are cut takes no more memory than theirs.
            let mut items = Vec::with_capacity((count as usize).min(bytes.len() - *at));
            for _ in 0..count {
                items.push(value(bytes, at)?);
            }
            items.into()
        }
        Token::Map(count) => map(bytes, at, count as usize)?,
    })
}

/// Reads the pairs of a map. They form an object, unless a key is no string, or the only one has a special meaning.
fn map(bytes: &[u8], at: &mut usize, count: usize) -> Result<Json, DecodeError> {
    let mut object = Map::with_capacity(count.min(bytes.len() - *at));
    for read in 0..count {
        let text = text_at(bytes, *at).and_then(|(text, end)| Some((std::str::from_utf8(text).ok()?, end)));
        let Some((key, end)) = text.filter(|(key, _)| count > 1 || !known_word(key)) else {
            let mut pairs: Vec<_> = object.into_iter().map(|(key, value)| (key.into(), value)).collect();
            for _ in read..count {
                pairs.push((value(bytes, at)?, value(bytes, at)?));
            }
            return Ok(self::object(pairs));
        };
        *at = end;
        object.insert(key.to_owned(), value(bytes, at)?);
    }
    Ok(object.into())
}

fn float(value: f64) -> Json {
    match Number::from_f64(value) {
        Some(number) => number.into(),
        None if value.is_nan() => json!({ FLOAT: "NaN" }),
        None if value > 0.0 => json!({ FLOAT: "Infinity" }),
        None => json!({ FLOAT: "-Infinity" }),
    }
}

/// Returns an object with these pairs, or a `$map` if they do not form an object.
pub(crate) fn object(pairs: Vec<(Json, Json)>) -> Json {
    let plain = pairs.iter().all(|(key, _)| key.is_string());
    let mistakable = matches!(pairs.as_slice(), [(Json::String(key), _)] if known_word(key));
    if !plain || mistakable {
        let pairs: Vec<Json> = pairs.into_iter().map(|(key, value)| json!([key, value])).collect();
        return json!({ MAP: pairs });
    }
    let mut object = Map::new();
    for (key, value) in pairs {
        if let Json::String(key) = key {
            object.insert(key, value);
        }
    }
    object.into()
}

/// Appends the JSON value. With `words`, the four `$` names have their meaning; without, this cannot fail.
pub(crate) fn write_json(out: &mut Vec<u8>, json: &Json, words: bool) -> Result<(), DecodeError> {
    match json {
        Json::Null => out.nil(),
        Json::Bool(value) => out.bool(*value),
        Json::Number(number) => write_number(out, number),
        Json::String(text) => out.str(text),
        Json::Array(items) => {
            out.array(items.len());
            for item in items {
                write_json(out, item, words)?;
            }
        }
        Json::Object(object) => match object.iter().next() {
            Some((word, value)) if words && object.len() == 1 && known_word(word) => {
                write_word(out, word, value)?
            }
            _ => {
                out.map(object.len());
                for (key, value) in object {
                    out.str(key);
                    write_json(out, value, words)?;
                }
            }
        },
    }
    Ok(())
}

fn write_number(out: &mut Vec<u8>, number: &Number) {
    if let Some(value) = number.as_u64() {
        out.unsigned(value);
    } else if let Some(value) = number.as_i64() {
        out.signed(value);
    } else {
        out.f64(number.as_f64().unwrap_or(f64::NAN));
    }
}

/// Appends the value that a `$` name and its content describe.
pub(super) fn write_word(out: &mut Vec<u8>, word: &str, value: &Json) -> Result<(), DecodeError> {
    match (word, value) {
        (BIN, Json::String(text)) => out.bin(&base64(text)?),
        (EXT, Json::Array(parts)) => match parts.as_slice() {
            [Json::Number(kind), Json::String(text)] => {
                let kind = kind.as_i64().and_then(|kind| i8::try_from(kind).ok());
                let kind = kind.ok_or_else(|| {
                    DecodeError::json("the type of an `$ext` must be an integer from -128 to 127")
                })?;
                out.ext(kind, &base64(text)?);
            }
            _ => return Err(DecodeError::json("an `$ext` is [type, \"base64\"]")),
        },
        (FLOAT, Json::String(text)) => out.f64(match text.as_str() {
            "NaN" => f64::NAN,
            "Infinity" => f64::INFINITY,
            "-Infinity" => f64::NEG_INFINITY,
            _ => return Err(DecodeError::json("a `$float` is \"NaN\", \"Infinity\" or \"-Infinity\"")),
        }),
        (MAP, Json::Array(pairs)) => {
            out.map(pairs.len());
            for pair in pairs {
                let Some([key, value]) = pair.as_array().map(Vec::as_slice) else {
                    return Err(DecodeError::json("a `$map` is [[key, value], …]"));
                };
                write_json(out, key, true)?;
                write_json(out, value, true)?;
            }
        }
        _ => return Err(DecodeError::json(format!("the value of `{word}` has the wrong kind"))),
    }
    Ok(())
}

fn base64(text: &str) -> Result<Vec<u8>, DecodeError> {
    BASE64.decode(text).map_err(|error| DecodeError::json(format!("invalid base64: {error}")))
}

#[cfg(test)]
mod tests {
    use proptest::{prelude::*, test_runner::RngSeed};

    use super::*;

    fn round_trip(text: &str) {
        let body = Value::from_json(text).unwrap();
        assert_eq!(body.to_json().to_string(), text);
        assert_eq!(Value::from_json(&body.to_json().to_string()).unwrap(), body);
    }

    #[test]
    fn one_byte_order_mark_at_the_start_is_skipped() {
        for (text, rest) in
            [("\u{feff}{}", "{}"), ("\u{feff}\u{feff}1", "\u{feff}1"), ("1\u{feff}", "1\u{feff}"), ("", "")]
        {
            assert_eq!(without_mark(text), rest);
            assert_eq!(bytes_without_mark(text.as_bytes()), rest.as_bytes());
        }
        assert_eq!(bytes_without_mark(b"\xef\xbb"), b"\xef\xbb", "half of a mark is none");
    }

    #[test]
    fn canonical_json_loses_nothing() {
        for text in [
            "null",
            "[1,1.0,-0.0,1e-7,18446744073709551615,-9223372036854775808]",
            r#"{"$bin":"AAEC/w=="}"#,
            r#"{"$ext":[-1,""]}"#,
            r#"[{"$float":"NaN"},{"$float":"Infinity"},{"$float":"-Infinity"}]"#,
            r#"{"$map":[[1,"a"],[1.5,"b"],[null,{"$bin":""}]]}"#,
            r#"{"$map":[["$bin","a map of one key"]]}"#,
            r#"{"$bin":"a map","of":"two keys"}"#,
        ] {
            round_trip(text);
        }
        // An empty `$map` is the empty map, which has a plainer form.
        assert_eq!(Value::from_json(r#"{"$map":[]}"#).unwrap().to_json(), json!({}));
    }

    #[test]
    fn misused_special_names_are_refused() {
        for text in [
            r#"{"$bin":5}"#,
            r#"{"$bin":"?"}"#,
            r#"{"$ext":[128,""]}"#,
            r#"{"$ext":[1]}"#,
            r#"{"$float":"nan"}"#,
            r#"{"$map":[[1]]}"#,
            r#"{"$map":[[1,2],[1,3]]}"#,
            r#"{"$map":[[{},2]]}"#,
            r#"{"$map":[[[1],2]]}"#,
            r#"{"$map":{}}"#,
            "{",
            "1 2",
        ] {
            assert!(Value::from_json(text).is_err(), "{text}");
        }
        assert!(parse(&"[".repeat(100_000)).unwrap_err().to_string().contains("nesting depth 100000"));
        assert!(parse(r#""[[[\"[[[""#).is_ok());
        let many = format!("[{}0]", "0,".repeat(Limits::VALUES));
        assert!(
            parse(&many)
                .unwrap_err()
                .to_string()
                .contains("about 1000002 values exceed the limit of 1000000")
        );
    }

    #[test]
    fn text_that_values_cannot_hold_is_replaced() {
        let read = |text: &str| Value::from_json(text).unwrap().to_json();
        assert_eq!(
            read(r#"{"a\ud83d": ["\ude00 x", -1e999]}"#),
            json!({"a\u{fffd}": ["\u{fffd} x", "-1e999"]})
        );
        assert!(Value::from_json(r#"["\ud83d", }"#).unwrap_err().to_string().contains("line 1 column 12"));
    }

    #[test]
    fn deepest_special_maps_round_trip() {
        let mut bytes = [0x81, 0x01].repeat(64);
        bytes.push(0x02);
        let body = Value::from_bytes(bytes).unwrap();
        assert_eq!(body.to_json_text(), body.to_json().to_string());
        assert_eq!(Value::from_json(&body.to_json().to_string()).unwrap(), body);
    }

    #[test]
    fn plain_json_is_read_unchanged() {
        let json = json!({"$bin": "AA=="});
        let body = Value::from(json.clone());
        assert_eq!(body.decode::<Json>().unwrap(), json);
        assert_eq!(body.to_json(), json!({"$map": [["$bin", "AA=="]]}));
    }

    fn text_of_tree(body: &Value) -> String {
        let mut out = Vec::new();
        assert_eq!(append_text(&mut out, body.as_bytes(), 0), Some(body.as_bytes().len()));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn text_of_special_values_equals_that_of_the_tree() {
        for text in [
            r#"[{"$bin":"AA=="},{"$map":[[1,"a"],[null,"b"]]},{"$ext":[5,""]},{"$float":"NaN"},-0.0]"#,
            r#"{"a":{"$map":[["$bin",1]]},"$bin":{"b":{"$other":1}}}"#,
        ] {
            assert_eq!(text_of_tree(&Value::from_json(text).unwrap()), text);
        }
    }

    /// Returns the value of a plain JSON text, by way of a tree.
    fn of_tree(text: &str) -> Option<Value> {
        Value::from_bytes(Value::from(parse(text).ok()?).into_bytes()).ok()
    }

    #[test]
    fn plain_text_is_encoded_without_a_tree() {
        let deep = "[".repeat(64) + &"]".repeat(64);
        let list = |count: usize| format!("[{}]", vec!["{\"a\": 1}"; count].join(","));
        let map = |count: usize| {
            let pairs: Vec<_> = (0..count).map(|n| format!("\"k{n}\": {}", list(n % 40))).collect();
            format!("{{{}}}", pairs.join(","))
        };
        for text in [
            r#"{"$bin": "AA==", "a": [1, -1, 1.5, -0, 1e3, 18446744073709551616, "\ud83d\ude00\n", null, true]}"#,
            r#"{"$map": [[1, 2]]}"#,
            " \u{feff}1 ",
            "\u{feff} 1 ",
            &deep,
            &list(15),
            &list(16),
            &list(65_535),
            &list(65_536),
            &map(15),
            &map(16),
            &map(70),
        ] {
            assert_eq!(encoded(&[], text), of_tree(text), "{text}");
        }
        let inside = encoded(b"\x81\xa5value", "[1, {}]").unwrap();
        assert_eq!(inside, Value::from(json!({"value": [1, {}]})));
    }

    #[test]
    fn text_that_only_a_tree_can_judge_is_not_encoded() {
        let deep = "[".repeat(65) + &"]".repeat(65);
        let many = format!("[{}0]", "0,".repeat(Limits::VALUES));
        for text in [
            "",
            "{",
            "1 2",
            "[1,]",
            "{'a': 1}",
            r#"{"a": 1, "a": 2}"#,
            r#"["\ud83d"]"#,
            "1e999",
            &deep,
            &many,
        ] {
            assert_eq!(encoded(&[], text), None);
        }
        // Its head makes it too deep.
        assert!(encoded(&[], &deep[1..129]).is_some() && encoded(b"\x91", &deep[1..129]).is_none());
        // Of equal keys the last one counts.
        assert_eq!(of_tree(r#"{"a": 1, "b": 2, "a": 3}"#).unwrap().to_json(), json!({"a": 3, "b": 2}));
    }

    fn any_json() -> impl Strategy<Value = Json> {
        let leaf = prop_oneof![
            Just(Json::Null),
            any::<bool>().prop_map(Json::from),
            any::<u64>().prop_map(Json::from),
            any::<i64>().prop_map(Json::from),
            any::<f64>().prop_map(Json::from),
            ".{0,40}".prop_map(Json::from),
        ];
        leaf.prop_recursive(5, 64, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..20).prop_map(Json::from),
                prop::collection::btree_map("[$a-c]{0,3}|\\$bin|\\$map|.{0,40}", inner, 0..40)
                    .prop_map(|map| Json::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1000, rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_json_value_survives(json in any_json()) {
            let body = Value::from(&json);
            prop_assert!(Value::from_bytes(body.as_bytes().to_vec()).is_ok());
            prop_assert_eq!(&body.decode::<Json>().unwrap(), &json);
            prop_assert_eq!(&Value::encode(&json).unwrap(), &body);
            prop_assert_eq!(&Value::encode(&body).unwrap(), &body);
            prop_assert_eq!(&body.decode::<Value>().unwrap(), &body);
            let text = serde_json::to_string(&body).unwrap();
            prop_assert_eq!(&serde_json::from_str::<Value>(&text).unwrap(), &body);
            prop_assert_eq!(&Value::from_json(&text).unwrap(), &body);
            prop_assert_eq!(text_of_tree(&body), text);
            let plain = serde_json::to_string_pretty(&json).unwrap();
            prop_assert_eq!(&encoded(&[], &plain).unwrap(), &body);
            prop_assert_eq!(&of_tree(&plain).unwrap(), &body);
        }

        #[test]
        fn whatever_is_encoded_without_a_tree_is_so_with_one(
            text in "([\\[\\]{},: ]|\"[ab$]?\"|-?[0-9]{1,3}|1e[0-9]{1,3}|null|true|\\\\ud83d|é|\u{feff}){0,12}",
        ) {
            let (encoded, of_tree) = (encoded(&[], &text), of_tree(&text));
            prop_assert!(encoded.is_none() || encoded == of_tree, "{text}: {encoded:?}, {of_tree:?}");
        }
    }
}
