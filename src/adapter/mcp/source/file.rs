//! The servers of a `tools.toml`: its `[[mcp]]` sections.

use std::{ops::Range, path::Path};

use toml::Spanned;

use super::{McpError, McpServer, http, settings::Endpoint};
use crate::{
    Consent,
    process::{Command, check_program},
    programs::ProgramsError,
    tools_file::{self, Asks, McpEntry, TomlSource, ToolsFile},
};

/// Returns the servers of a `tools.toml` file, in its order.
///
/// Its rules are those of [`ProgramTools::from_file`](crate::programs::ProgramTools::from_file): another user must not
/// be able to change the file or a program that it names, and a program is an absolute path.
///
/// ```toml
/// [[mcp]]
/// name = "files"
/// command = ["/usr/local/bin/mcp-files", "/srv/photos"]
/// env = { LANG = "C", HOME = true }   # HOME is inherited; without `env` as for `stdio`
/// cwd = "/srv"                        # default: the folder of the file
/// prefix = "files"                    # its tools are `files.read`, `files.list`, …
/// allow = ["read_*", "list"]          # default: all
/// deny = ["read_secret"]
/// consent = "once"                    # never, once, always; default: always for a destructive tool, else once
/// timeout = "2m"                      # default: the caller's
/// trust_hints = true                  # its read-only tools run without a question
///
/// [[mcp]]
/// name = "search"
/// url = "https://mcp.example.com/mcp"
/// bearer_env = "SEARCH_TOKEN"         # the variable that holds the bearer token
/// ```
///
/// # Errors
/// The file cannot be read, or an entry is invalid.
pub fn from_file(path: impl AsRef<Path>) -> Result<Vec<McpServer>, McpError> {
    let file = ToolsFile::read(path.as_ref()).map_err(ProgramsError::from)?;
    servers(file, |program| check_program(program).map_err(|error| ProgramsError::from(error).into()))
}

fn servers(
    file: ToolsFile,
    check: impl Fn(&Path) -> Result<(), McpError>,
) -> Result<Vec<McpServer>, McpError> {
    let place = file.place;
    file.sections.mcp.into_iter().map(|entry| server(entry, &place, &check)).collect()
}

fn server(
    entry: Spanned<McpEntry>,
    place: &TomlSource,
    check: impl Fn(&Path) -> Result<(), McpError>,
) -> Result<McpServer, McpError> {
    let entry_span = entry.span();
    let entry = entry.into_inner();
    let name = entry.name.get_ref().clone();
    let wrong = |span: Range<usize>, reason: String| McpError::Entry {
        server: name.clone(),
        line: place.line(&span),
        reason,
    };

    let mut server = match (entry.command, entry.url) {
        (Some(command), None) => {
            let span = command.span();
            if let Some(unused) = &entry.bearer_env {
                return Err(wrong(unused.span(), "`bearer_env` is for a server with a `url`".to_owned()));
            }
            let folder = place.working_folder(entry.cwd.as_ref().map(|it| it.get_ref().as_path()));
            let folder = folder.map_err(|reason| wrong(span.clone(), reason))?;
            let mut words = command.into_inner().into_iter();
            let program = words.next().unwrap_or_default();
            let command = Command::new(program).map_err(|error| wrong(span, error.to_string()))?;
            check(command.program())?;
            let command = words.fold(command.folder(folder), Command::arg);
            let command = if entry.env.is_empty() { command.inherit_user() } else { command };
            McpServer::new(name.clone(), Ok(Endpoint::Command(command)))
        }
        (None, Some(url)) => {
            if entry.cwd.is_some() || !entry.env.is_empty() {
                return Err(wrong(
                    url.span(),
                    "`cwd` and `env` are for a server with a `command`".to_owned(),
                ));
            }
            http(url.into_inner()).name(name.clone())
        }
        _ => return Err(wrong(entry_span, "it must have either `command` or `url`".to_owned())),
    };
    for (variable, value) in entry.env {
        let span = value.span();
        let read = tools_file::variable(&variable, value.get_ref()).map_err(|reason| wrong(span, reason))?;
        server = match read {
            Some(value) => server.env(variable, value),
            None => server.inherit(variable),
        };
    }
    if let Some(variable) = entry.bearer_env {
        server = server.bearer_env(variable.into_inner());
    }
    if let Some(prefix) = entry.prefix {
        server = server.prefix(prefix);
    }
    if let Some(allow) = entry.allow {
        server = server.allow(allow);
    }
    if let Some(asks) = entry.consent {
        server = server.consent(match asks {
            Asks::Never => Consent::Never,
            Asks::Once => Consent::OncePerSession,
            Asks::Always => Consent::Always,
        });
    }
    if let Some(timeout) = entry.timeout {
        let limit = tools_file::timeout(timeout.get_ref()).map_err(|reason| wrong(timeout.span(), reason))?;
        server = server.timeout(limit);
    }
    if entry.trust_hints {
        server = server.trust_hints();
    }
    Ok(server.deny(entry.deny))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<McpServer>, McpError> {
        servers(ToolsFile::parse(text, "/")?, |_| Ok(()))
    }

    #[test]
    fn all_keys_are_understood() {
        let servers = read(
            "[[mcp]]\nname = \"files\"\ncommand = [\"/bin/cat\", \"-u\"]\nenv = { LANG = \"C\", HOME = true }\n\
             cwd = \"tmp\"\nprefix = \"f\"\nallow = [\"a\"]\ndeny = [\"b\"]\nconsent = \"always\"\ntimeout = \"2m\"\n\
             trust_hints = true\n[[mcp]]\nname = \"s\"\nurl = \"https://mcp.example.com\"\nbearer_env = \"T\"\n",
        );
        assert_eq!(servers.unwrap().len(), 2);
    }

    #[test]
    fn wrong_entries_are_named_with_their_line() {
        let entry = |more: &str| format!("[[mcp]]\nname = \"s\"\n{more}\n");
        for (more, reason) in [
            ("", "line 1: it must have either `command` or `url`"),
            ("command = [\"/bin/cat\"]\nurl = \"https://x\"", "line 1: it must have either"),
            ("command = [\"cat\"]", "line 3: "),
            ("command = []", "line 3: "),
            ("command = [\"/bin/cat\"]\nbearer_env = \"T\"", "line 4: `bearer_env` is for"),
            ("url = \"https://x\"\ncwd = \"/\"", "line 3: `cwd` and `env` are for"),
            ("command = [\"/bin/cat\"]\ntimeout = \"2\"", "line 4: `timeout` must be"),
            ("command = [\"/bin/cat\"]\nenv = { A = 1 }", "line 4: `env.A` must be"),
        ] {
            let error = read(&entry(more)).unwrap_err().to_string();
            assert!(error.starts_with(&format!("MCP server \"s\", {reason}")), "{more}: {error}");
        }
        let error = read("[[mcp]]\nname = \"s\"\ncommands = []\n").unwrap_err().to_string();
        assert!(error.starts_with("line 3: unknown field `commands`"), "{error}");
    }
}
