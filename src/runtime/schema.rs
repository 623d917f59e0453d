//! Checks arguments against the tool's JSON Schema before the tool runs.
//!
//! Only schemas of local tools are compiled, never schemas from the wire. They are limited too, because a schema of a
//! few hundred bytes can take minutes to compile or to evaluate.

mod bounds;
#[cfg(feature = "schema-validation")]
mod validator;

#[cfg(feature = "schema-validation")]
use std::sync::Arc;

use serde_json::Value as Json;

#[cfg(feature = "schema-validation")]
use validator::Validator;

use crate::{
    tool::{ErrorCode, RegisterError, Tool, ToolError},
    value::Value,
};

/// Checks the arguments of one tool. It is compiled once for each definition of the tool.
///
/// Without the feature `schema-validation` it accepts any map.
#[derive(Clone, Debug, Default)]
pub(crate) struct ArgumentCheck {
    #[cfg(feature = "schema-validation")]
    validator: Option<Arc<Validator>>,
}

impl ArgumentCheck {
    /// Compiles the tool's schema. A tool without a schema accepts any map.
    ///
    /// # Errors
    /// `Schema` when the schema is invalid, refers to anything outside itself, or is larger than the bounds allow.
    pub(crate) fn compile(tool: &Tool) -> Result<Self, RegisterError> {
        let Some(schema) = tool.input_schema() else { return Ok(Self::default()) };
        let refuse = |reason: String| RegisterError::Schema { name: tool.name().clone(), reason };
        bounds::check(schema).map_err(|error| refuse(error.to_string()))?;
        Ok(Self {
            #[cfg(feature = "schema-validation")]
            validator: Some(Arc::new(Validator::compile(schema).map_err(refuse)?)),
        })
    }

    /// Returns the patterns of the schema that are not checked, because they cannot be compiled to a search in linear time.
    pub(crate) fn unchecked(&self) -> &[String] {
        #[cfg(feature = "schema-validation")]
        if let Some(validator) = &self.validator {
            return validator.unchecked();
        }
        &[]
    }

    /// Accepts any map without reading the schema.
    pub(crate) fn any_map() -> Self {
        Self::default()
    }

    /// Checks the arguments and returns them as the tool gets them: absent arguments become an empty map.
    ///
    /// # Errors
    /// `invalid_parameters`. The text contains the path and the violated rule, never the value.
    pub(crate) fn check(&self, arguments: Value) -> Result<Value, ToolError> {
        let json = arguments.to_json();
        let (arguments, json) = match json {
            Json::Null => (Value::empty(), Json::Object(Default::default())),
            json => (arguments, json),
        };
        if !json.is_object() {
            return Err(ToolError::new(ErrorCode::INVALID_PARAMETERS, "the parameters must be a map"));
        }
        #[cfg(feature = "schema-validation")]
        if let Some(validator) = &self.validator {
            validator.check(&json)?;
        }
        Ok(arguments)
    }
}

/// Why data cannot be accepted: the schema cannot be used, or the data does not fit it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SchemaError {
    /// The schema is invalid, refers to anything outside itself, or is larger than the bounds allow.
    #[error("the schema cannot be used: {0}")]
    Schema(String),
    /// The data does not fit. The text has the path and the violated rule, never the value.
    #[error("the data does not fit {0}")]
    Data(String),
}

/// A compiled JSON Schema, for data of a person or of another program, such as the structured result of a tool.
///
/// It has the limits of a tool's schema, so that neither compiling nor checking takes long. Without the feature
/// `schema-validation` the limits are checked, and any data is accepted.
#[derive(Clone, Debug)]
pub struct DataSchema {
    #[cfg(feature = "schema-validation")]
    validator: Arc<Validator>,
}

impl DataSchema {
    /// Compiles a schema.
    ///
    /// # Errors
    /// [`SchemaError::Schema`].
    pub fn compile(schema: &Json) -> Result<Self, SchemaError> {
        bounds::check(schema).map_err(|error| SchemaError::Schema(error.to_string()))?;
        Ok(Self {
            #[cfg(feature = "schema-validation")]
            validator: Arc::new(Validator::compile(schema).map_err(SchemaError::Schema)?),
        })
    }

    /// Checks data.
    ///
    /// # Errors
    /// [`SchemaError::Data`].
    pub fn check(&self, data: &Json) -> Result<(), SchemaError> {
        #[cfg(feature = "schema-validation")]
        if let Some(misfit) = self.validator.misfit(data) {
            return Err(SchemaError::Data(misfit));
        }
        #[cfg(not(feature = "schema-validation"))]
        let _ = data;
        Ok(())
    }
}

#[cfg(feature = "schema-validation")]
#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tool(schema: Json) -> Tool {
        Tool::new("t".parse().unwrap(), "").schema(schema)
    }

    fn compile(schema: Json) -> Result<ArgumentCheck, RegisterError> {
        ArgumentCheck::compile(&tool(schema))
    }

    fn refused(schema: Json, arguments: &Json) -> String {
        let check = compile(schema).unwrap();
        let error = check.check(Value::encode(arguments).unwrap()).unwrap_err();
        assert_eq!(error.code(), ErrorCode::INVALID_PARAMETERS);
        error.to_string()
    }

    #[test]
    fn refusal_names_path_and_rule_but_no_value() {
        let schema = json!({"type": "object", "required": ["who"], "properties": {
            "who": {"type": "object", "required": ["na/me"], "properties": {"age": {"type": "integer", "maximum": 9}}},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
        }});
        for (arguments, expected) in [
            (json!({}), "the parameters do not fit at /who: it is required"),
            (json!({"who": {}}), "the parameters do not fit at /who/na~1me: it is required"),
            (
                json!({"who": {"na/me": 1, "age": "hunter2"}}),
                "the parameters do not fit at /who/age: its type must be integer",
            ),
            (
                json!({"who": {"na/me": 1, "age": 10}}),
                "the parameters do not fit at /who/age: it must be at most 9",
            ),
            (
                json!({"who": {"na/me": 1}, "tags": ["a", "hunter2"]}),
                "the parameters do not fit at /tags/1: it must be one of [\"a\",\"b\"]",
            ),
            (json!(["hunter2"]), "the parameters must be a map"),
        ] {
            assert_eq!(refused(schema.clone(), &arguments), expected);
        }
    }

    #[test]
    fn no_rule_echoes_the_value() {
        let secret = "hunter2hunter2";
        for rule in [
            json!({"type": ["integer", "null"]}),
            json!({"const": 1}),
            json!({"pattern": "^a"}),
            json!({"maxLength": 3}),
            json!({"not": {}}),
            json!({"anyOf": [{"type": "integer"}, {"type": "null"}]}),
            json!({"oneOf": [{"type": "string"}, {"minLength": 1}]}),
            json!(false),
        ] {
            let schema = json!({"type": "object", "properties": {"x": rule}});
            let text = refused(schema, &json!({"x": secret}));
            assert!(text.contains("at /x: ") && !text.contains(secret), "{text}");
        }
        for rule in [
            json!({"prefixItems": [{}], "items": false}),
            json!({"unevaluatedItems": false}),
            json!({"uniqueItems": true}),
            json!({"contains": {"type": "null"}}),
        ] {
            let schema = json!({"type": "object", "properties": {"x": rule}});
            let text = refused(schema, &json!({"x": [secret, secret]}));
            assert!(text.contains("at /x") && !text.contains(secret), "{text}");
        }
    }

    #[test]
    fn no_arguments_are_an_empty_map() {
        let check = compile(json!({"type": "object"})).unwrap();
        assert_eq!(check.check(Value::encode(&()).unwrap()).unwrap(), Value::empty());
        let any = ArgumentCheck::compile(&Tool::new("t".parse().unwrap(), "")).unwrap();
        assert!(any.check(Value::encode(&json!({"a": 1})).unwrap()).is_ok());
        assert!(any.check(Value::encode(&1).unwrap()).is_err());
    }

    #[test]
    fn sec_c5_pattern_that_needs_backtracking_alone_is_not_checked() {
        const EMAIL: &str = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$";
        let properties = json!({
            "mail": {"type": "string", "pattern": EMAIL, "maxLength": 30},
            "twice": {"type": "string", "pattern": r"^(a|b)\1$"},
            "braces": {"type": "string", "pattern": "^{[a-z]+}$"},
            "plain": {"type": "string", "pattern": "^[a-z]{2}$"},
            "pattern": {"enum": [{"pattern": "(?!x)"}]},
        });
        let check = compile(json!({"type": "object", "properties": properties})).unwrap();
        assert_eq!(check.unchecked(), [EMAIL, r"^(a|b)\1$", "^{[a-z]+}$"]);
        let check = |arguments: Json| check.check(Value::encode(&arguments).unwrap());
        assert!(
            check(json!({"mail": "me@example.org", "twice": "ab", "braces": "x", "plain": "ab"})).is_ok()
        );
        // All other rules are.
        for wrong in [
            json!({"mail": 7}),
            json!({"mail": "x".repeat(31)}),
            json!({"plain": "abc"}),
            json!({"pattern": {"pattern": "x"}}),
        ] {
            assert!(check(wrong.clone()).is_err(), "{wrong}");
        }
        assert!(check(json!({"pattern": {"pattern": "(?!x)"}})).is_ok(), "data is not a schema");
        let properties = json!({"^(?!x)": {"type": "integer"}, "^y": {"type": "integer"}});
        let schema =
            json!({"type": "object", "patternProperties": properties, "additionalProperties": false});
        let check = compile(schema).unwrap();
        assert_eq!(check.unchecked(), ["^(?!x)"]);
        assert!(check.check(Value::encode(&json!({"a": "b"})).unwrap()).is_ok());
        assert!(check.check(Value::encode(&json!({"y": "b"})).unwrap()).is_err());
    }

    #[test]
    fn pattern_that_cannot_be_compiled_alone_is_not_checked() {
        for pattern in [r"(?<y>a)\k<y>", "[^]", "[]", r"[\d-x]{", "(x{1000}){1000}", "(", "^{a}$", r"\d{,3}{"]
        {
            let properties = json!({"a": {"pattern": pattern, "maxLength": 2}, "b": {"pattern": "^b$"}});
            let check = compile(json!({"type": "object", "properties": properties})).unwrap();
            assert_eq!(check.unchecked(), [pattern]);
            let fits = |json: Json| check.check(Value::encode(&json).unwrap()).is_ok();
            assert!(
                fits(json!({"a": "xy", "b": "b"})) && !fits(json!({"a": "xyz"})) && !fits(json!({"b": "c"}))
            );
        }
    }

    #[test]
    fn sec_c5_schema_that_needs_fetching_is_refused() {
        for schema in [
            json!({"$ref": "https://example.com/a.json"}),
            json!({"$ref": "file:///etc/passwd"}),
            json!({"properties": {"a": {"$ref": "other.json#/a"}}}),
            json!({"$schema": "https://example.com/own"}),
            json!({"type": "nothing"}),
        ] {
            let refused = compile(schema.clone());
            assert!(matches!(refused, Err(RegisterError::Schema { .. })), "{schema}: {refused:?}");
        }
    }
}
