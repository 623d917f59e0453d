//! Canonical JSON (`wire.md`, section 9), both ways.

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use serde_json::{Map, Number, Value, json};

use super::{DecodeError, token::Token, write::Write};

/// Binary data: `{"$bin": "base64"}`.
const BIN: &str = "$bin";
/// An extension value: `{"$ext": [type, "base64"]}`.
const EXT: &str = "$ext";
/// A float that JSON lacks: `{"$float": "NaN"}`.
const FLOAT: &str = "$float";
/// A map that is no JSON object: `{"$map": [[key, value], …]}`.
const MAP: &str = "$map";

/// Whether an object whose only key is this one means something else than itself.
pub(super) fn known_word(key: &str) -> bool {
    matches!(key, BIN | EXT | FLOAT | MAP)
}

/// The one value that these scanned bytes are.
pub(crate) fn to_json(bytes: &[u8]) -> Result<Value, DecodeError> {
    let mut at = 0;
    value(bytes, &mut at)
}

/// A string's own text; of anything else, its JSON text.
pub(crate) fn text_of(bytes: &[u8]) -> Result<String, DecodeError> {
    Ok(match to_json(bytes)? {
        Value::String(text) => text,
        other => other.to_string(),
    })
}

fn value(bytes: &[u8], at: &mut usize) -> Result<Value, DecodeError> {
    let (token, next) = Token::read(bytes, *at)?;
    let start = std::mem::replace(at, next);
    Ok(match token {
        Token::Nil => Value::Null,
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
            let mut items = Vec::new();
            for _ in 0..count {
                items.push(value(bytes, at)?);
            }
            items.into()
        }
        Token::Map(count) => {
            let mut pairs = Vec::new();
            for _ in 0..count {
                pairs.push((value(bytes, at)?, value(bytes, at)?));
            }
            object(pairs)
        }
    })
}

fn float(value: f64) -> Value {
    match Number::from_f64(value) {
        Some(number) => number.into(),
        None if value.is_nan() => json!({ FLOAT: "NaN" }),
        None if value > 0.0 => json!({ FLOAT: "Infinity" }),
        None => json!({ FLOAT: "-Infinity" }),
    }
}

/// An object of these pairs, or the `$map` that stands for what is none.
pub(crate) fn object(pairs: Vec<(Value, Value)>) -> Value {
    let plain = pairs.iter().all(|(key, _)| key.is_string());
    let mistakable = matches!(pairs.as_slice(), [(Value::String(key), _)] if known_word(key));
    if !plain || mistakable {
        let pairs: Vec<Value> = pairs.into_iter().map(|(key, value)| json!([key, value])).collect();
        return json!({ MAP: pairs });
    }
    let mut object = Map::new();
    for (key, value) in pairs {
        if let Value::String(key) = key {
            object.insert(key, value);
        }
    }
    object.into()
}

/// Appends what the JSON says. With `words`, the four `$` words are understood; without, it cannot fail.
pub(crate) fn write_json(out: &mut Vec<u8>, json: &Value, words: bool) -> Result<(), DecodeError> {
    match json {
        Value::Null => out.nil(),
        Value::Bool(value) => out.bool(*value),
        Value::Number(number) => write_number(out, number),
        Value::String(text) => out.str(text),
        Value::Array(items) => {
            out.array(items.len());
            for item in items {
                write_json(out, item, words)?;
            }
        }
        Value::Object(object) => match object.iter().next() {
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

/// Appends what one of the `$` words and its value mean.
pub(super) fn write_word(out: &mut Vec<u8>, word: &str, value: &Value) -> Result<(), DecodeError> {
    match (word, value) {
        (BIN, Value::String(text)) => out.bin(&base64(text)?),
        (EXT, Value::Array(parts)) => match parts.as_slice() {
            [Value::Number(kind), Value::String(text)] => {
                let kind = kind.as_i64().and_then(|kind| i8::try_from(kind).ok());
                let kind = kind
                    .ok_or_else(|| DecodeError::json("the type of an `$ext` is an integer, -128 to 127"))?;
                out.ext(kind, &base64(text)?);
            }
            _ => return Err(DecodeError::json("an `$ext` is [type, \"base64\"]")),
        },
        (FLOAT, Value::String(text)) => out.f64(match text.as_str() {
            "NaN" => f64::NAN,
            "Infinity" => f64::INFINITY,
            "-Infinity" => f64::NEG_INFINITY,
            _ => return Err(DecodeError::json("a `$float` is \"NaN\", \"Infinity\" or \"-Infinity\"")),
        }),
        (MAP, Value::Array(pairs)) => {
            out.map(pairs.len());
            for pair in pairs {
                let Some([key, value]) = pair.as_array().map(Vec::as_slice) else {
                    return Err(DecodeError::json("a `$map` is [[key, value], …]"));
                };
                write_json(out, key, true)?;
                write_json(out, value, true)?;
            }
        }
        _ => return Err(DecodeError::json(format!("`{word}` stands before a value of the wrong kind"))),
    }
    Ok(())
}

fn base64(text: &str) -> Result<Vec<u8>, DecodeError> {
    BASE64.decode(text).map_err(|error| DecodeError::json(format!("no base64: {error}")))
}
