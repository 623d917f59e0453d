//! Checking arguments against a tool's own JSON Schema, before the tool runs.
//!
//! Only schemas of our own tools come here, never one from the wire. They are still held to bounds, since a
//! schema of a few hundred bytes can take minutes to compile or to evaluate.

mod bounds;

use std::sync::Arc;

use jsonschema::{PatternOptions, Validator, error::TypeKind, error::ValidationErrorKind};
use serde_json::Value as Json;

use crate::{
    tool::{ErrorCode, RegisterError, Tool, ToolError},
    value::Value,
};

/// The longest text that a message takes over from a schema or a path, in characters: it is read by a model.
const MAX_QUOTED: usize = 200;

/// What checks one tool's arguments. Compiled once for each definition of a tool.
#[derive(Clone, Debug)]
pub(crate) struct ArgumentCheck(Option<Arc<Validator>>);

impl ArgumentCheck {
    /// The check that the tool's schema asks for; a tool without one takes any map.
    ///
    /// # Errors
    /// `Schema` when the schema is invalid, refers to anything outside itself, needs a backtracking regular
    /// expression, or is larger than the bounds allow.
    pub(crate) fn compile(tool: &Tool) -> Result<Self, RegisterError> {
        let Some(schema) = tool.input_schema() else { return Ok(Self(None)) };
        let refuse = |reason: String| RegisterError::Schema { name: tool.name().clone(), reason };
        bounds::check(schema).map_err(|error| refuse(error.to_string()))?;
        let validator = jsonschema::options()
            .offline()
            .with_pattern_options(PatternOptions::regex())
            .build(schema)
            .map_err(|error| refuse(quoted(&error.to_string())))?;
        Ok(Self(Some(Arc::new(validator))))
    }

    /// Takes any map, whatever the schema says: it is not looked at.
    pub(crate) fn any_map() -> Self {
        Self(None)
    }

    /// The arguments as the tool gets them: no arguments at all are an empty map.
    ///
    /// # Errors
    /// `invalid_parameters`; the text names the place and the rule, and never the value.
    pub(crate) fn check(&self, arguments: Value) -> Result<Value, ToolError> {
        let json = arguments.to_json();
        let (arguments, json) = match json {
            Json::Null => (Value::empty(), Json::Object(Default::default())),
            json => (arguments, json),
        };
        if !json.is_object() {
            return Err(ToolError::new(ErrorCode::INVALID_PARAMETERS, "the parameters must be a map"));
        }
        match self.0.as_ref().map(|validator| validator.validate(&json)) {
            Some(Err(error)) => Err(refusal(&error)),
            _ => Ok(arguments),
        }
    }
}

fn refusal(error: &jsonschema::ValidationError<'_>) -> ToolError {
    let mut path = error.instance_path().to_string();
    if let ValidationErrorKind::Required { property } = error.kind() {
        let property = property.as_str().unwrap_or_default().replace('~', "~0").replace('/', "~1");
        path = format!("{path}/{property}");
    }
    let place = if path.is_empty() { "as a whole".to_owned() } else { format!("at {}", quoted(&path)) };
    let rule = rule(error.kind());
    ToolError::new(ErrorCode::INVALID_PARAMETERS, format!("the parameters do not fit {place}: {rule}"))
}

/// The rule that was broken, in the schema's words alone.
fn rule(kind: &ValidationErrorKind) -> String {
    use ValidationErrorKind as Kind;
    match kind {
        Kind::Required { .. } => "it is required".to_owned(),
        Kind::Type { kind: TypeKind::Single(one) } => format!("its type must be {one}"),
        Kind::Type { kind: TypeKind::Multiple(some) } => {
            let names: Vec<_> = some.iter().map(|it| it.as_str()).collect();
            format!("its type must be one of {}", names.join(", "))
        }
        Kind::AdditionalProperties { unexpected } | Kind::UnevaluatedProperties { unexpected } => {
            let names: Vec<_> = unexpected.iter().map(|name| format!("{name:?}")).collect();
            quoted(&format!("the schema has no property {}", names.join(", ")))
        }
        Kind::Enum { options } => quoted(&format!("it must be one of {options}")),
        Kind::Constant { expected_value } => quoted(&format!("it must be {expected_value}")),
        Kind::Minimum { limit } => format!("it must be at least {limit}"),
        Kind::Maximum { limit } => format!("it must be at most {limit}"),
        Kind::ExclusiveMinimum { limit } => format!("it must be more than {limit}"),
        Kind::ExclusiveMaximum { limit } => format!("it must be less than {limit}"),
        Kind::MinLength { limit } => format!("it must have at least {limit} characters"),
        Kind::MaxLength { limit } => format!("it must have at most {limit} characters"),
        Kind::MinItems { limit } => format!("it must have at least {limit} items"),
        Kind::MaxItems { limit } => format!("it must have at most {limit} items"),
        Kind::Pattern { pattern } => quoted(&format!("it must match the pattern {pattern:?}")),
        Kind::Format { format } => quoted(&format!("it must have the format {format:?}")),
        other => format!("it breaks the rule `{}`", other.keyword()),
    }
}

fn quoted(text: &str) -> String {
    let mut clean: String = text.chars().filter(|it| !it.is_control()).take(MAX_QUOTED).collect();
    if clean.len() < text.len() {
        clean.push('…');
    }
    clean
}

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
    fn a_refusal_names_path_and_rule_but_no_value() {
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
    fn sec_c5_a_schema_is_refused_rather_than_fetched_or_backtracked() {
        for schema in [
            json!({"$ref": "https://example.com/a.json"}),
            json!({"$ref": "file:///etc/passwd"}),
            json!({"properties": {"a": {"$ref": "other.json#/a"}}}),
            json!({"properties": {"a": {"pattern": "(a|aa)+(?!b)c"}}}),
            json!({"$schema": "https://example.com/own"}),
            json!({"type": "nothing"}),
        ] {
            let refused = compile(schema.clone());
            assert!(matches!(refused, Err(RegisterError::Schema { .. })), "{schema}: {refused:?}");
        }
    }
}
