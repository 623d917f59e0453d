//! Reads a program of a `tools.toml`: its tool definition and its command.

use std::{ops::Range, time::Duration};

use serde_json::Value;
use toml::Spanned;

use super::{Program, ProgramsError, command::CommandTemplate};
use crate::{
    tool::{Consent, RegisterError, Tool, ToolName, ToolOptions},
    tools_file::{self, Asks, ProgramEntry, TomlSource},
};

/// The time that a cancelled program gets: 2 s between `SIGTERM` and `SIGKILL`, and some for the exit itself.
const CANCEL_GRACE: Duration = Duration::from_secs(3);

/// Interprets one entry.
pub(super) fn program(entry: Spanned<ProgramEntry>, place: &TomlSource) -> Result<Program, ProgramsError> {
    let entry = entry.into_inner();
    let name: ToolName = entry.name.get_ref().parse().map_err(RegisterError::Name)?;
    if name.is_reserved() {
        return Err(RegisterError::Reserved { name }.into());
    }
    let wrong = |span: Range<usize>, reason: String| ProgramsError::Tool {
        tool: name.to_string(),
        line: place.line(&span),
        reason,
    };

    let mut options = ToolOptions::default().cancel_grace(CANCEL_GRACE);
    options.destructive = entry.destructive;
    options.idempotent = entry.idempotent;
    options.consent = entry.consent.map(|asks| match asks {
        Asks::Never => Consent::Never,
        Asks::Once => Consent::OncePerSession,
        Asks::Always => Consent::Always,
    });
    if let Some(timeout) = entry.timeout {
        let limit = tools_file::timeout(timeout.get_ref()).map_err(|reason| wrong(timeout.span(), reason))?;
        options = options.timeout(limit);
    }

    let mut tool = Tool::new(name.clone(), entry.description).options(options);
    if let Some(schema) = entry.input_schema {
        let json = as_json(schema.get_ref()).map_err(|reason| wrong(schema.span(), reason))?;
        if json.get("type").and_then(Value::as_str) != Some("object") {
            let reason = "`input_schema` must say that `type` is \"object\"".to_owned();
            return Err(wrong(schema.span(), reason));
        }
        // Like every source's schema, it is compiled when the tools are offered.
        tool = tool.schema(json);
    }

    let span = entry.command.span();
    let folder = place
        .working_folder(entry.cwd.as_ref().map(|cwd| cwd.get_ref().as_path()))
        .map_err(|reason| wrong(entry.cwd.as_ref().map_or_else(|| span.clone(), Spanned::span), reason))?;
    let environment = entry.env.into_iter().map(|(variable, value)| {
        let value_of = tools_file::variable(&variable, value.get_ref());
        value_of.map(|value| (variable, value)).map_err(|reason| wrong(value.span(), reason))
    });
    let environment: Vec<_> = environment.collect::<Result<_, _>>()?;
    let command = CommandTemplate::new(entry.command.into_inner(), tool.input_schema(), &folder, environment)
        .map_err(|reason| wrong(span, reason))?;
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
    use crate::tools_file::ToolsFile;

    fn parse(text: &str, folder: &Path) -> Result<Vec<Program>, ProgramsError> {
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
        assert!(refused(&named("bridge.echo")).contains("reserved for the protocol"));
    }
}
