//! Reads a program of a `tools.toml`: its tool definition and its command.

use std::time::Duration;

use serde_json::Value;
use toml::Spanned;

use super::{Program, ToolsFileError, command::CommandTemplate};
use crate::{
    process::Command,
    tool::{RegisterError, Tool, ToolName, ToolOptions},
    tools_file::{ProgramEntry, TomlSource},
};

/// The time that a cancelled program gets: 2 s between `SIGTERM` and `SIGKILL`, and some for the exit itself.
const CANCEL_GRACE: Duration = Duration::from_secs(3);

/// Interprets one entry.
pub(super) fn program(entry: Spanned<ProgramEntry>, place: &TomlSource) -> Result<Program, ToolsFileError> {
    let (span, entry) = (entry.span(), entry.into_inner());
    let name: ToolName = entry.name.parse().map_err(RegisterError::Name)?;
    if name.is_reserved() {
        return Err(RegisterError::Reserved { name }.into());
    }
    let at = place.entry("tool", name.as_str(), span);
    let mut options = ToolOptions::default().cancel_grace(CANCEL_GRACE);
    options.destructive = entry.destructive;
    options.idempotent = entry.idempotent;
    options.consent = entry.consent.map(Into::into);
    options.timeout = at.timeout(entry.timeout)?;

    let mut tool = Tool::new(name.clone(), entry.description).options(options);
    if let Some(schema) = entry.input_schema {
        let json = as_json(schema.get_ref()).map_err(|reason| at.error_at(schema.span(), reason))?;
        if json.get("type").and_then(Value::as_str) != Some("object") {
            let reason = "`input_schema` must say that `type` is \"object\"";
            return Err(at.error_at(schema.span(), reason));
        }
        // Like every source's schema, it is compiled when the tools are offered.
        tool = tool.schema(json);
    }

    let span = entry.command.span();
    let (command, arguments, inherits) = at.program(entry.command, entry.cwd.as_ref(), entry.env)?;
    let command = inherits.into_iter().fold(command, Command::inherit);
    let command = CommandTemplate::new(command, arguments, tool.input_schema())
        .map_err(|reason| at.error_at(span, reason))?;
    Ok(Program { tool, command })
}

fn as_json(schema: &toml::Value) -> Result<Value, String> {
    match schema {
        toml::Value::String(text) => {
            serde_json::from_str(text).map_err(|error| format!("`input_schema` is not JSON: {error}"))
        }
        table => {
            serde_json::to_value(table).map_err(|error| format!("`input_schema` is not a schema: {error}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{tool::Consent, tools_file::ToolsFile};

    fn parse(text: &str, folder: &Path) -> Result<Vec<Program>, ToolsFileError> {
        super::super::programs(ToolsFile::parse(text, folder)?)
    }

    fn refused(text: &str) -> String {
        parse(text, Path::new("/")).unwrap_err().to_string()
    }

    fn entry(more: &str) -> String {
        format!("[[tools]]\nname = \"a\"\ndescription = \"\"\ncommand = [\"/bin/cat\"]\n{more}\n")
    }

    #[test]
    fn all_keys_are_understood() {
        let text = entry(
            "timeout = \"500ms\"\nconsent = \"once\"\ndestructive = true\nidempotent = true\ncwd = \"tmp\"\n\
             env = { LANG = \"C\", HOME = true }\ninput_schema = { type = \"object\" }",
        );
        let programs = parse(&text, Path::new("/")).unwrap();
        let options = programs[0].tool.tool_options();
        assert_eq!(options.timeout, Some(Duration::from_millis(500)));
        assert_eq!(options.effective_consent(), Consent::OncePerSession);
        assert!(options.destructive && options.idempotent);
        let text = entry("input_schema = '{\"type\": \"object\", \"required\": [\"b\"]}'");
        let programs = parse(&text, Path::new("/")).unwrap();
        assert_eq!(programs[0].tool.input_schema().unwrap()["required"][0], "b");
        assert!(parse("", Path::new("/")).unwrap().is_empty());
    }

    #[test]
    fn unknown_key_is_named_with_its_line() {
        let text = refused(&entry("shell = true"));
        assert!(text.starts_with("line 5: unknown field `shell`"), "{text}");
        let text = refused("[tool]\n");
        assert!(text.starts_with("line 1: unknown field `tool`"), "{text}");
        let text = refused(&entry("consent = \"perhaps\""));
        assert!(text.starts_with("line 5: unknown variant `perhaps`"), "{text}");
        let text = refused("[[tools]]\nname = \"a\"\n");
        assert!(text.contains("missing field"), "{text}");
    }

    #[test]
    fn no_error_quotes_the_environment() {
        let text = refused(&entry("env = { TOKEN = \"hunter2\" }\nenv = 1"));
        assert!(!text.contains("hunter2"), "{text}");
        let error = parse(&entry("env = { TOKEN = \"hunter2\" } and"), Path::new("/")).unwrap_err();
        let text = format!("{error} {error:?} {}", std::error::Error::source(&error).unwrap());
        assert!(text.starts_with("line 5: ") && !text.contains("hunter2"), "{text}");
        let text = refused(&entry("env = { TOKEN = [\"hunter2\"] }"));
        assert!(text.starts_with("tool \"a\", line 5: ") && !text.contains("hunter2"), "{text}");
    }

    #[test]
    fn invalid_value_is_named() {
        for (more, expected) in [
            (
                "timeout = \"5\"",
                "tool \"a\", line 5: `timeout` must be a number with a unit (ms, s, m or h), as in \"500ms\"",
            ),
            (
                "timeout = \"0s\"",
                "tool \"a\", line 5: `timeout` must be a number with a unit (ms, s, m or h), as in \"500ms\"",
            ),
            ("cwd = \"no/such\"", "tool \"a\", line 5: /no/such is not a folder"),
            ("input_schema = '{'", "tool \"a\", line 5: `input_schema` is not JSON: "),
            ("input_schema = {}", "tool \"a\", line 5: `input_schema` must say that `type` is \"object\""),
        ] {
            let text = refused(&entry(more));
            assert!(text.starts_with(expected), "{more}: {text}");
        }
        let named = |name: &str| entry("").replace("\"a\"", &format!("\"{name}\""));
        assert!(refused(&named("a b")).contains("is not a tool name"));
        let empty = refused(&entry("").replace("\"/bin/cat\"", ""));
        assert_eq!(empty, "tool \"a\", line 4: `command` is empty");
        assert!(refused(&named("bridge.echo")).contains("reserved for the protocol"));
    }
}
