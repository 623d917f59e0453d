//! Reads the servers of a `tools.toml`: its `[[mcp]]` sections.

use std::path::Path;

use toml::Spanned;

use super::{KIND, McpServer, http, settings::Endpoint};
use crate::{
    adapter::{
        filter::Filter,
        source::{policy::Policy, program::Program},
    },
    programs::ToolsFileError,
    tools_file::{McpEntry, TomlSource, ToolsFile},
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
pub fn from_file(path: impl AsRef<Path>) -> Result<Vec<McpServer>, ToolsFileError> {
    servers(ToolsFile::read(path.as_ref())?)
}

fn servers(file: ToolsFile) -> Result<Vec<McpServer>, ToolsFileError> {
    file.sections.mcp.into_iter().map(|entry| server(entry, &file.place)).collect()
}

fn server(entry: Spanned<McpEntry>, place: &TomlSource) -> Result<McpServer, ToolsFileError> {
    let (span, entry) = (entry.span(), entry.into_inner());
    let at = place.entry(KIND, &entry.name, span);
    let server = match (entry.command, entry.url) {
        (Some(command), None) => {
            if let Some(unused) = &entry.bearer_env {
                return Err(at.error_at(unused.span(), "`bearer_env` is for a server with a `url`"));
            }
            let program = Program::of_entry(&at, command, entry.cwd.as_ref(), entry.env)?;
            McpServer::new(entry.name, Endpoint::Program(program))
        }
        (None, Some(url)) => {
            if entry.cwd.is_some() || !entry.env.is_empty() {
                return Err(at.error_at(url.span(), "`cwd` and `env` are for a server with a `command`"));
            }
            http(url.into_inner()).name(entry.name)
        }
        _ => return Err(at.error("it must have either `command` or `url`")),
    };
    let policy = Policy {
        prefix: entry.prefix,
        filter: Filter::new(entry.allow, entry.deny),
        consent: entry.consent.map(Into::into),
        timeout: at.timeout(entry.timeout)?,
        trusts_hints: entry.trust_hints,
    };
    let server = server.with(|settings| settings.policy = policy);
    Ok(match entry.bearer_env {
        Some(variable) => server.bearer_env(variable.into_inner()),
        None => server,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<McpServer>, ToolsFileError> {
        servers(ToolsFile::parse(text, "/")?)
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
