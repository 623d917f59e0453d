//! Reads `--yes`: the tools that run without a question.

use std::collections::HashSet;

use toolbridge::{
    Tool, ToolName,
    tools::{NameMap, NameRules},
};

/// The tools of one source.
pub(in crate::cli) struct Listed {
    /// The name of the source, if it is an MCP server.
    pub(in crate::cli) server: Option<String>,
    /// Its tools, under its own names for them.
    pub(in crate::cli) tools: Vec<Tool>,
    /// It is not up, so that its tools are not known yet.
    pub(in crate::cli) is_missing: bool,
}

/// What one `--yes` allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) enum Grant {
    /// All tools of the server with this name, now and later.
    Server(String),
    /// All tools whose names start with this.
    Start(String),
    /// The tool with this name, as long as this source offers it: another one that takes the name needs its own.
    Tool { name: ToolName, source: Option<String> },
    /// The tool with this name of any of these servers, which are not up yet.
    Later { name: ToolName, servers: Vec<String> },
}

impl Grant {
    /// Reads a `--yes`. Returns `None` if no tool and no server has this name.
    pub(in crate::cli) fn read(pattern: &str, sources: &[Listed], offered: &[Tool]) -> Option<Self> {
        let is_server = |name: &str| sources.iter().any(|source| source.server.as_deref() == Some(name));
        if let Some(server) = pattern.strip_suffix(".*").filter(|name| is_server(name)) {
            return Some(Self::Server(server.to_owned()));
        }
        if let Some(start) = pattern.strip_suffix('*') {
            let is_used = offered.iter().any(|tool| tool.name().as_str().starts_with(start));
            let is_used = is_used || sources.iter().any(|source| source.is_missing);
            return is_used.then(|| Self::Start(start.to_owned()));
        }
        let Some(tool) = offered.iter().find(|tool| tool.name().as_str() == pattern) else {
            let servers = sources.iter().filter(|source| source.is_missing);
            let servers: Vec<String> = servers.filter_map(|source| source.server.clone()).collect();
            let name = pattern.parse().ok().filter(|_| !servers.is_empty())?;
            return Some(Self::Later { name, servers });
        };
        Some(Self::Tool { name: tool.name().clone(), source: tool.source().map(str::to_owned) })
    }

    pub(in crate::cli) fn allows(&self, tool: &Tool) -> bool {
        match self {
            Self::Server(server) => tool.source() == Some(server),
            Self::Start(start) => tool.name().as_str().starts_with(start),
            Self::Tool { name, source } => tool.name() == name && tool.source() == source.as_deref(),
            Self::Later { name, servers } => {
                tool.name() == name
                    && tool.source().is_some_and(|source| servers.iter().any(|it| it == source))
            }
        }
    }
}

/// Returns the tools under the names that the participant offers them by: one whose name an earlier source has gets the
/// name of its source before its own.
pub(in crate::cli) fn offered(sources: &[Listed]) -> Vec<Tool> {
    let (mut taken, mut all) = (HashSet::new(), Vec::new());
    for source in sources {
        for tool in &source.tools {
            let mut tool = tool.clone();
            if taken.contains(tool.name())
                && let Some(name) = source.server.as_ref().and_then(|server| qualified(server, tool.name()))
            {
                tool = tool.renamed(name);
            }
            if taken.insert(tool.name().clone()) {
                all.push(tool);
            }
        }
    }
    all
}

fn qualified(server: &str, tool: &ToolName) -> Option<ToolName> {
    let name = format!("{server}.{tool}");
    NameMap::new(NameRules::Tool, [name.as_str()]).converted(&name)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(name: &str) -> Tool {
        Tool::new(name.parse().unwrap(), "")
    }

    fn server(name: &str, tools: &[&str]) -> Listed {
        let tools = tools.iter().map(|it| tool(it).with_source(name)).collect();
        Listed { server: Some(name.to_owned()), tools, is_missing: false }
    }

    fn allowed<'a>(pattern: &str, sources: &'a [Listed], tools: &'a [Tool]) -> Vec<&'a str> {
        let grant = Grant::read(pattern, sources, &offered(sources)).unwrap();
        tools.iter().filter(|tool| grant.allows(tool)).map(|tool| tool.name().as_str()).collect()
    }

    #[test]
    fn sec_i10_yes_for_a_tool_or_server_is_for_no_other_source() {
        let programs =
            Listed { server: None, tools: vec![tool("lamp"), tool("files.list")], is_missing: false };
        let sources =
            [programs, server("files", &["lamp", "read"]), server("other", &["files.delete", "read"])];
        let tools = offered(&sources);
        let names: Vec<_> = tools.iter().map(|tool| tool.name().as_str()).collect();
        assert_eq!(names, ["lamp", "files.list", "files.lamp", "read", "files.delete", "other.read"],);
        assert_eq!(allowed("files.*", &sources, &tools), ["files.lamp", "read"]);
        assert_eq!(allowed("fi*", &sources, &tools), ["files.list", "files.lamp", "files.delete"]);
        for name in names {
            assert_eq!(allowed(name, &sources, &tools), [name]);
        }
        // Another server that takes the name later is asked about, and so is a tool with the name of a program.
        let later = [tool("read").with_source("other"), tool("lamp").with_source("files")];
        for name in ["read", "lamp", "files.*"] {
            assert!(allowed(name, &sources, &later[..1]).is_empty(), "{name}");
        }
        assert!(allowed("lamp", &sources, &later).is_empty());
        for unknown in ["files.read", "other.delete", "nothing*", "", "files"] {
            assert_eq!(Grant::read(unknown, &sources, &tools), None, "{unknown}");
        }
    }

    #[test]
    fn sec_i10_yes_for_a_tool_that_is_not_known_yet_is_for_the_missing_servers_only() {
        let missing = Listed { is_missing: true, ..server("files", &[]) };
        let sources = [server("other", &["read"]), missing];
        let later = [tool("write").with_source("files"), tool("write").with_source("other"), tool("write")];
        let grant = Grant::read("write", &sources, &offered(&sources)).unwrap();
        assert_eq!(later.each_ref().map(|tool| grant.allows(tool)), [true, false, false]);
        assert_eq!(Grant::read("no such name", &sources, &[]), None);
    }

    #[test]
    fn server_without_tools_can_be_allowed() {
        let sources = [server("files", &[])];
        assert_eq!(allowed("files.*", &sources, &[tool("read").with_source("files")]), ["read"]);
    }
}
