//! Parameters of a tool that are sent as HTTP headers, too, so that whatever stands between needs not read the body.
//!
//! Source: `x-mcp-header` of version 2026-07-28,
//! <https://modelcontextprotocol.io/specification/2026-07-28/basic/transports>.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Map, Value as Json};

use crate::adapter::jsonrpc::peer::Headers;

/// The key of a parameter's schema that names its header.
const KEY: &str = "x-mcp-header";

/// The headers for the parameters of a tool.
#[derive(Debug, Default)]
pub(super) struct ParameterHeaders(Vec<Parameter>);

#[derive(Debug)]
struct Parameter {
    /// The names of the properties that lead to it.
    path: Vec<String>,
    header: String,
}

impl ParameterHeaders {
    /// Reads the annotations of an input schema.
    ///
    /// # Errors
    /// What is wrong with one of them.
    pub(super) fn read(schema: &Json) -> Result<Self, String> {
        let mut found = Self::default();
        found.add(schema, &mut Vec::new(), true)?;
        Ok(found)
    }

    /// Adds the annotations of a schema and of the schemas in it. Only a property that is reached through properties alone
    /// (`is_reached`) may have one, because only its value has a place in the arguments.
    fn add(&mut self, schema: &Json, path: &mut Vec<String>, is_reached: bool) -> Result<(), String> {
        let parts = match schema {
            Json::Object(parts) => parts,
            Json::Array(items) => return items.iter().try_for_each(|item| self.add(item, path, false)),
            _ => return Ok(()),
        };
        if let Some(header) = parts.get(KEY) {
            if !is_reached || path.is_empty() {
                return Err(format!("`{KEY}` stands where no parameter is"));
            }
            self.add_header(header, parts, path)?;
        }
        for (key, value) in parts {
            match (&**key, value) {
                (KEY, _) => {}
                // Values and names, and no schemas.
                ("default" | "const" | "enum" | "examples" | "dependentRequired", _) => {}
                ("properties", Json::Object(properties)) => {
                    for (name, property) in properties {
                        path.push(name.clone());
                        self.add(property, path, is_reached)?;
                        path.pop();
                    }
                }
                (
                    "$defs" | "definitions" | "dependencies" | "dependentSchemas" | "patternProperties",
                    Json::Object(schemas),
                ) => schemas.values().try_for_each(|schema| self.add(schema, path, false))?,
                (_, value) => self.add(value, path, false)?,
            }
        }
        Ok(())
    }

    fn add_header(
        &mut self,
        header: &Json,
        schema: &Map<String, Json>,
        path: &[String],
    ) -> Result<(), String> {
        let wrong = |what: &str| Err(format!("`{KEY}` of `{}` {what}", path.join(".")));
        let Some(header) = header.as_str() else { return wrong("is not a text") };
        if header.is_empty() || !header.bytes().all(is_token) {
            return wrong("is not the name of a header");
        }
        if self.0.iter().any(|other| other.header.eq_ignore_ascii_case(header)) {
            return wrong("is that of another parameter, too");
        }
        if !matches!(schema.get("type").and_then(Json::as_str), Some("string" | "integer" | "boolean")) {
            return wrong("needs the type `string`, `integer` or `boolean`");
        }
        self.0.push(Parameter { path: path.to_vec(), header: header.to_owned() });
        Ok(())
    }

    /// Returns the headers of a call with these arguments. A value that is not there has none.
    pub(super) fn of(&self, arguments: &Map<String, Json>) -> Headers {
        let header = |Parameter { path, header }: &Parameter| {
            let (first, rest) = path.split_first()?;
            let value = rest.iter().try_fold(arguments.get(first)?, |value, name| value.get(name))?;
            let text = match value {
                Json::String(text) => text.clone(),
                Json::Bool(_) | Json::Number(_) => value.to_string(),
                _ => return None,
            };
            Some((format!("mcp-param-{header}"), encoded(&text)))
        };
        self.0.iter().filter_map(header).collect()
    }
}

/// Whether a byte may stand in the name of a header: <https://www.rfc-editor.org/rfc/rfc9110#section-5.6.2>.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Returns a text as the value of a header, in Base64 if a header cannot hold it as it is.
pub(in crate::adapter::mcp) fn encoded(text: &str) -> String {
    let is_plain = text.bytes().all(|byte| (0x20..0x7f).contains(&byte)) && text.trim() == text;
    let is_marked = text.starts_with("=?base64?") && text.ends_with("?=");
    if is_plain && !is_marked {
        text.to_owned()
    } else {
        format!("=?base64?{}?=", BASE64_STANDARD.encode(text))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(schema: &Json) -> Result<ParameterHeaders, String> {
        ParameterHeaders::read(schema)
    }

    #[test]
    fn parameters_become_headers_wherever_they_stand() {
        let schema = json!({"type": "object", "default": {"x-mcp-header": 7}, "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "place": {"type": "object", "properties": {"floor": {"type": "integer", "x-mcp-header": "Floor"}}},
            "dry": {"type": "boolean", "x-mcp-header": "Dry"},
            "x-mcp-header": {"type": "string"},
        }});
        let headers = read(&schema).unwrap();
        let arguments = json!({"region": "größe", "place": {"floor": 3}, "dry": null, "x-mcp-header": "a"});
        let expected = [("mcp-param-Region", "=?base64?Z3LDtsOfZQ==?="), ("mcp-param-Floor", "3")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(headers.of(arguments.as_object().unwrap()), expected);
    }

    #[test]
    fn wrong_annotation_is_refused() {
        let of =
            |header: Json, kind: &str| json!({"properties": {"a": {"type": kind, "x-mcp-header": header}}});
        for (schema, says) in [
            (json!({"x-mcp-header": "A"}), "stands where no parameter is"),
            (json!({"anyOf": [of(json!("A"), "string")]}), "stands where no parameter is"),
            (
                json!({"$defs": {"a": {"type": "string", "x-mcp-header": "A"}}}),
                "stands where no parameter is",
            ),
            (of(json!(7), "string"), "`x-mcp-header` of `a` is not a text"),
            (of(json!("a b"), "string"), "is not the name of a header"),
            (of(json!(""), "string"), "is not the name of a header"),
            (of(json!("A"), "number"), "needs the type"),
            (
                json!({"properties": {
                    "a": {"type": "string", "x-mcp-header": "A"}, "b": {"type": "string", "x-mcp-header": "a"},
                }}),
                "`x-mcp-header` of `b` is that of another parameter, too",
            ),
        ] {
            let error = read(&schema).unwrap_err();
            assert!(error.contains(says), "{schema}: {error}");
        }
    }

    #[test]
    fn value_that_a_header_cannot_hold_is_encoded() {
        for plain in ["us-west1", "a b c", "", "=?base64?"] {
            assert_eq!(encoded(plain), plain);
        }
        for text in [" padded", "line1\nline2", "a\r\nEvil: 1", "café", "=?base64?x?="] {
            let value = encoded(text);
            let inner = value.strip_prefix("=?base64?").and_then(|it| it.strip_suffix("?=")).unwrap();
            assert_eq!(BASE64_STANDARD.decode(inner).unwrap(), text.as_bytes());
        }
    }
}
