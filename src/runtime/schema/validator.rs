//! Checks a value against a JSON Schema.

use jsonschema::{PatternOptions, error::TypeKind, error::ValidationErrorKind};
use serde_json::{Value as Json, json};

use crate::{
    tool::{ErrorCode, ToolError},
    value::pointer_step,
};

/// The longest quotation of a schema or a path in a message, in characters: a model reads the message.
const MAX_QUOTED: usize = 200;

/// A compiled schema.
#[derive(Debug)]
pub(super) struct Validator {
    compiled: jsonschema::Validator,
    unchecked: Vec<String>,
}

impl Validator {
    /// Compiles a schema without fetching references. The error is a text for the author of the tool.
    ///
    /// Patterns are compiled to a search in linear time. Those with look-around or back-references, those that are too large,
    /// and those in a spelling that the compiler does not read are not checked, and the rest of the schema is.
    pub(super) fn compile(schema: &Json) -> Result<Self, String> {
        let mut unchecked = Vec::new();
        let compiled = match build(schema) {
            Ok(compiled) => compiled,
            Err(error) => {
                let mut rest = schema.clone();
                leave_unchecked(&mut rest, &mut unchecked);
                if unchecked.is_empty() {
                    return Err(error);
                }
                build(&rest)?
            }
        };
        Ok(Self { compiled, unchecked })
    }

    /// Returns the patterns of the schema that are not checked.
    pub(super) fn unchecked(&self) -> &[String] {
        &self.unchecked
    }

    /// Checks the arguments of a call.
    ///
    /// # Errors
    /// `invalid_parameters`. The text contains the path and the violated rule, never the value.
    pub(super) fn check(&self, arguments: &Json) -> Result<(), ToolError> {
        match self.misfit(arguments) {
            Some(misfit) => Err(ToolError::new(
                ErrorCode::INVALID_PARAMETERS,
                format!("the parameters do not fit {misfit}"),
            )),
            None => Ok(()),
        }
    }

    /// Returns the path and the rule of the first violation, without the value.
    pub(super) fn misfit(&self, data: &Json) -> Option<String> {
        self.compiled.validate(data).err().map(|error| described(&error))
    }
}

fn build(schema: &Json) -> Result<jsonschema::Validator, String> {
    let options = jsonschema::options().offline().with_pattern_options(PatternOptions::regex());
    options.build(schema).map_err(|error| quoted(&error.to_string()))
}

/// Keywords whose values are data, not schemas.
const DATA: [&str; 4] = ["const", "default", "enum", "examples"];

/// Keywords whose values are maps of schemas, whose keys are no keywords.
const MAPS: [&str; 5] = ["$defs", "definitions", "dependentSchemas", "patternProperties", "properties"];

/// Removes the patterns that cannot be checked.
fn leave_unchecked(schema: &mut Json, unchecked: &mut Vec<String>) {
    let map = match schema {
        Json::Object(map) => map,
        Json::Array(list) => return list.iter_mut().for_each(|it| leave_unchecked(it, unchecked)),
        _ => return,
    };
    if let Some(pattern) = map.get("pattern").and_then(Json::as_str).filter(|it| !can_be_checked(it)) {
        unchecked.push(quoted(pattern));
        map.shift_remove("pattern");
    }
    if let Some(Json::Object(properties)) = map.get_mut("patternProperties") {
        let before = properties.len();
        properties.retain(|pattern, _| {
            let is_kept = can_be_checked(pattern);
            if !is_kept {
                unchecked.push(quoted(pattern));
            }
            is_kept
        });
        // They would refuse the properties that the pattern allows.
        if properties.len() < before {
            map.shift_remove("additionalProperties");
            map.shift_remove("unevaluatedProperties");
        }
    }
    for (keyword, value) in map.iter_mut().filter(|(keyword, _)| !DATA.contains(&keyword.as_str())) {
        match value {
            Json::Object(schemas) if MAPS.contains(&keyword.as_str()) => {
                schemas.values_mut().for_each(|it| leave_unchecked(it, unchecked));
            }
            value => leave_unchecked(value, unchecked),
        }
    }
}

/// Returns whether a pattern can be compiled.
fn can_be_checked(pattern: &str) -> bool {
    build(&json!({ "pattern": pattern })).is_ok()
}

fn described(error: &jsonschema::ValidationError<'_>) -> String {
    let mut path = error.instance_path().to_string();
    if let ValidationErrorKind::Required { property } = error.kind() {
        let property = pointer_step(property.as_str().unwrap_or_default());
        path = format!("{path}/{property}");
    }
    let place = if path.is_empty() { "as a whole".to_owned() } else { format!("at {}", quoted(&path)) };
    let rule = rule(error.kind());
    format!("{place}: {rule}")
}

/// Describes the violated rule, without the value.
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
