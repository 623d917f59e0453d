//! Checks a value against a JSON Schema.

use jsonschema::{PatternOptions, error::TypeKind, error::ValidationErrorKind};
use serde_json::Value as Json;

use crate::tool::{ErrorCode, ToolError};

/// The longest quotation of a schema or a path in a message, in characters: a model reads the message.
const MAX_QUOTED: usize = 200;

/// A compiled schema.
#[derive(Debug)]
pub(super) struct Validator(jsonschema::Validator);

impl Validator {
    /// Compiles a schema without fetching references. The error is a text for the author of the tool.
    pub(super) fn compile(schema: &Json) -> Result<Self, String> {
        jsonschema::options()
            .offline()
            .with_pattern_options(PatternOptions::regex())
            .build(schema)
            .map(Self)
            .map_err(|error| quoted(&error.to_string()))
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
        self.0.validate(data).err().map(|error| described(&error))
    }
}

fn described(error: &jsonschema::ValidationError<'_>) -> String {
    let mut path = error.instance_path().to_string();
    if let ValidationErrorKind::Required { property } = error.kind() {
        let property = property.as_str().unwrap_or_default().replace('~', "~0").replace('/', "~1");
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
