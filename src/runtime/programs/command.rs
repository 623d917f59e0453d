//! Builds the command of a program: a fixed executable with fixed arguments, and the parameters that may
//! become arguments.

use std::path::Path;

use serde_json::Value;

use crate::{
    process::Command,
    tool::{ErrorCode, ToolError},
};

/// A program, its arguments, and its environment.
#[derive(Debug)]
pub(super) struct CommandTemplate {
    /// The program without its arguments.
    command: Command,
    arguments: Vec<Argument>,
}

#[derive(Debug)]
enum Argument {
    Fixed(String),
    /// The text of the parameter with that name.
    Parameter(String),
}

impl CommandTemplate {
    /// Creates a command from a program and its arguments.
    pub(super) fn new(
        command: Command,
        parts: impl IntoIterator<Item = String>,
        schema: Option<&Value>,
    ) -> Result<Self, String> {
        let mut arguments = Vec::new();
        let mut after_dashes = false;
        for part in parts {
            arguments.push(argument(part, after_dashes, schema)?);
            after_dashes |= matches!(arguments.last(), Some(Argument::Fixed(text)) if text == "--");
        }
        Ok(Self { command, arguments })
    }

    /// Builds the command for one call. No shell reads any part of it.
    ///
    /// # Errors
    /// `invalid_parameters` if a parameter in the command is not a string, a number or a bool.
    pub(super) fn fill(&self, parameters: &Value, supervisor: Option<&Path>) -> Result<Command, ToolError> {
        let mut command = self.command.clone();
        for argument in &self.arguments {
            command = match argument {
                Argument::Fixed(text) => command.arg(text),
                Argument::Parameter(name) => command.arg(text_of(name, parameters.get(name))?),
            };
        }
        Ok(match supervisor {
            Some(helper) => command.supervisor(helper),
            None => command,
        })
    }
}

fn argument(part: String, after_dashes: bool, schema: Option<&Value>) -> Result<Argument, String> {
    if part.contains('\0') {
        return Err("`command` must not contain NUL".to_owned());
    }
    let properties = schema.and_then(|schema| schema.get("properties"));
    let is_property = |name: &str| properties.map(|properties| properties.get(name).is_some());
    for name in placeholders(&part) {
        let whole = name.len() + 2 == part.len();
        match is_property(name) {
            Some(false) if whole && after_dashes => {
                return Err(format!("{{{name}}} is not a property in `input_schema`"));
            }
            _ if whole && after_dashes => return Ok(Argument::Parameter(name.to_owned())),
            // Braces that do not name a parameter belong to the program: `awk "{print}"`.
            Some(false) => {}
            None if !whole => {}
            _ => {
                return Err(format!("{{{name}}} must be a separate element, after an element \"--\""));
            }
        }
    }
    Ok(Argument::Fixed(part))
}

/// Returns each text in braces that could be the name of a parameter.
fn placeholders(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices('{').filter_map(|(at, _)| {
        let name = text[at + 1..].split_once('}')?.0;
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
        (!name.is_empty() && name.bytes().all(is_name)).then_some(name)
    })
}

/// Returns a parameter as one argument, unchanged: neither a shell nor, after `--`, an option parser interprets it.
fn text_of(name: &str, parameter: Option<&Value>) -> Result<String, ToolError> {
    let refuse = |rule: &str| {
        let text = format!("the parameters do not fit at /{name}: {rule}");
        Err(ToolError::new(ErrorCode::INVALID_PARAMETERS, text))
    };
    match parameter {
        Some(Value::String(text)) if text.contains('\0') => refuse("it must not contain NUL"),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Number(number)) => Ok(number.to_string()),
        Some(Value::Bool(truth)) => Ok(truth.to_string()),
        Some(_) => refuse("it must be a string, a number or a bool"),
        None => refuse("it is required"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn command(parts: &[&str]) -> Result<CommandTemplate, String> {
        let schema = json!({"properties": {"city": {}}});
        let command = Command::new(parts[0]).map_err(|error| error.to_string())?;
        CommandTemplate::new(command, parts[1..].iter().map(ToString::to_string), Some(&schema))
    }

    fn arguments(parameter: &Value) -> Result<Vec<String>, ToolError> {
        let command = command(&["/bin/cat", "-x", "--", "{city}"]).unwrap();
        let filled = command.fill(&json!({"city": parameter}), None)?.to_std();
        Ok(filled.get_args().map(|it| it.to_str().unwrap().to_owned()).collect())
    }

    #[test]
    fn sec_x1_parameter_is_one_argument_after_dashes() {
        for text in ["; rm -rf /", "$(x)", "`x`", "--flag", "a b", "", "*", "{city}", "'\"", "\n"] {
            assert_eq!(arguments(&json!(text)).unwrap(), ["-x", "--", text]);
        }
        assert_eq!(arguments(&json!(1.5)).unwrap()[2], "1.5");
        assert_eq!(arguments(&json!(true)).unwrap()[2], "true");
        for bad in [json!("a\0b"), json!(null), json!([]), json!({"a": 1})] {
            assert_eq!(arguments(&bad).unwrap_err().code(), ErrorCode::INVALID_PARAMETERS);
        }
    }

    #[test]
    fn sec_x1_invalid_command_is_refused() {
        for (parts, expected) in [
            (vec!["cat"], "the path cat is not absolute"),
            (vec!["./cat"], "the path ./cat is not absolute"),
            (vec!["/bin/a.bat"], "/bin/a.bat is a batch script; name an executable"),
            (vec!["/bin/a.CMD"], "/bin/a.CMD is a batch script; name an executable"),
            (vec!["/bin/no-such-program"], "there is no program /bin/no-such-program"),
            (vec!["/bin/cat", "{city}"], "{city} must be a separate element, after an element \"--\""),
            (vec!["/bin/cat", "--", "a{city}"], "{city} must be a separate element, after an element \"--\""),
            (vec!["/bin/cat", "--", "{town}"], "{town} is not a property in `input_schema`"),
            (vec!["/bin/cat", "a\0"], "`command` must not contain NUL"),
        ] {
            assert_eq!(command(&parts).unwrap_err(), expected);
        }
        let cat = Command::new("/bin/cat").unwrap();
        assert!(CommandTemplate::new(cat, ["{x}".to_owned()], None).is_err());
        assert!(
            command(&["/bin/cat", "{print}", "${HOME}", "{ .a }", "{}", "{", "--", "{city}", "{city}"])
                .is_ok()
        );
    }

    #[test]
    fn sec_x2_environment_contains_only_allowed_variables() {
        let command = Command::new("/bin/cat").unwrap().env("LANG", "C");
        let command = command.inherit("CARGO_MANIFEST_DIR").inherit("NO_SUCH_VARIABLE");
        let command = CommandTemplate::new(command, [], None).unwrap();
        let filled = command.fill(&json!({}), None).unwrap().to_std();
        let names: Vec<_> = filled.get_envs().map(|(name, _)| name.to_str().unwrap()).collect();
        assert_eq!(names, ["CARGO_MANIFEST_DIR", "LANG", "PATH"]);
    }
}
