//! Offers the tools of an MCP server.
//!
//! `life` starts a `connection`; `lifecycle` agrees on a version; `list` and `call` ask the server through `live`. Of the
//! transport they know the `Peer` alone. State: the open requests (`Peer`), and the calls that they belong to (`calls`), by
//! which progress, questions and warnings find their call. `handler` takes the messages of the server. A child is read and
//! written in lines. `http` is the other transport: it posts each message, hands what comes back to the `Inbox`, opens broken
//! streams again, and holds the session.

pub(super) mod address;
mod call;
mod calls;
mod connection;
mod definition;
mod elicitation;
mod file;
mod handler;
pub(super) mod headers;
pub(super) mod http;
mod life;
pub(super) mod lifecycle;
mod list;
pub(super) mod live;
mod log;
mod settings;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::{sync::Notify, task::JoinSet};

pub use self::{file::from_file, settings::McpServer};
use self::{
    headers::ParameterHeaders,
    list::Toolset,
    live::Live,
    settings::{Endpoint, Settings},
};
use crate::{
    ErrorCode, Outcome, Tool, ToolContext, ToolError, ToolName, ToolSource, Value,
    adapter::{
        mcp::{CallToolResult, check_output},
        source::{
            SourceError,
            life::{First, Status, keep_alive, started},
            program::Program,
        },
    },
    process::Command,
    tools::{DataSchema, SourceHealth},
};

/// What errors call a server.
const KIND: &str = "MCP server";

/// A server that is a child process: its program and arguments. The program is found in `PATH`, as a shell finds it.
///
/// The child gets the variables `HOME`, `LOGNAME`, `PATH`, `SHELL`, `TERM` and `USER` of this process, as MCP's
/// official SDKs pass them, and those that [`McpServer::env`] and [`McpServer::inherit`] add.
pub fn stdio<W: Into<String>>(words: impl IntoIterator<Item = W>) -> McpServer {
    McpServer::of_program(Program::of_words(words))
}

/// A server that is a child process, from the line that a person would type into a shell: see [`Command::from_line`].
pub fn line(line: &str) -> McpServer {
    McpServer::of_program(Program::of_line(line))
}

/// A server at an address: the URL of its MCP endpoint (streamable HTTP).
///
/// The address must be `https`, or `http` of this machine. Redirects are not followed.
pub fn http(url: impl Into<String>) -> McpServer {
    let url = url.into();
    let rest = url.split_once("://").map_or(url.as_str(), |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host); // a password may stand before it
    let name = host.to_owned();
    McpServer::new(name, Endpoint::Url(url))
}

/// A server that is a child process, from its command. Nothing is added to the command's environment.
pub fn command(command: Command) -> McpServer {
    McpServer::of_program(Program::of_command(command))
}

/// The tools of an MCP server. [`stdio`], [`line()`], [`command`] and [`http`](super::http) create it.
///
/// A server that ends is started again after 1, 2, 4 … 60 s. Its open calls fail at once. Its tools are not offered
/// until it is back, and their names stay reserved for it. Dropping the source kills the server;
/// [`close`](ToolSource::close) ends it in an orderly way.
///
/// The server's schemas are offered to callers, and never compiled: the server validates arguments.
pub struct McpTools {
    shared: Arc<Shared>,
    /// Ends with this value.
    _life: JoinSet<()>,
}

/// What the source and the task of its life share.
struct Shared {
    name: Arc<str>,
    settings: Settings,
    status: Status<Up>,
    list_changed: Notify,
}

/// A server that is up.
#[derive(Clone)]
struct Up {
    live: Live,
    tools: Arc<Toolset>,
}

/// A tool that the server lists.
#[derive(Debug)]
struct Listed {
    tool: Tool,
    /// The server's name for it.
    foreign: String,
    output: Output,
    /// The parameters that are sent as headers, too.
    headers: ParameterHeaders,
}

/// The schema that a server gives for the results of a tool.
#[derive(Debug)]
enum Output {
    None,
    Checked(DataSchema),
    /// It cannot be used, for this reason, which the first call reports.
    Unusable(String, AtomicBool),
}

impl Listed {
    /// Returns what is wrong with a result, or with the schema that the server gave for it.
    fn warning(&self, result: &CallToolResult) -> Option<String> {
        match &self.output {
            Output::None => None,
            Output::Checked(schema) => {
                let error = check_output(schema, result).err()?;
                Some(format!("the result violates the tool's output schema: {error}"))
            }
            Output::Unusable(_, is_reported) if is_reported.swap(true, Ordering::Relaxed) => None,
            Output::Unusable(reason, _) => Some(format!("the tool's output schema is not used: {reason}")),
        }
    }
}

impl McpTools {
    /// Waits until the first start has succeeded or failed.
    async fn start(name: String, settings: Settings) -> Result<Self, SourceError> {
        started(&origin(&name), |first| Self::begin(name.clone(), settings, first)).await
    }

    /// Creates the source, and begins its life. `first` learns of the first start, and a life that failed then ends.
    fn begin(name: String, settings: Settings, first: Option<First>) -> Result<Self, SourceError> {
        settings.endpoint.check(&origin(&name))?;
        let shared = Arc::new(Shared {
            name: name.into(),
            settings,
            status: Status::new(),
            list_changed: Notify::new(),
        });
        let life = keep_alive(Arc::clone(&shared), first);
        Ok(Self { shared, _life: life })
    }

    /// Returns why the server is not up, or why its last start failed, for a person at this machine: it has what the server wrote
    /// to stderr, which may hold secrets. `None` while it is up.
    pub fn last_failure(&self) -> Option<String> {
        self.shared.status.last_failure()
    }

    fn toolset(&self) -> Arc<Toolset> {
        self.shared.status.live().map(|up| up.tools).unwrap_or_default()
    }
}

/// Returns what errors name.
fn origin(server: &str) -> String {
    format!("{KIND} {server:?}")
}

impl Shared {
    fn fail(&self, reason: impl Into<String>) -> SourceError {
        SourceError::protocol(origin(&self.name), reason)
    }
}

impl ToolSource for McpTools {
    fn list(&self) -> Vec<Tool> {
        self.toolset().tools.values().map(|listed| listed.tool.clone()).collect()
    }

    async fn execute(&self, tool: &ToolName, arguments: Value, context: ToolContext) -> Outcome {
        let up = self.shared.status.live();
        let Some((listed, live)) = up.and_then(|up| Some((Arc::clone(up.tools.tools.get(tool)?), up.live)))
        else {
            let health = self.health();
            let text = format!("the MCP server {:?} does not offer {tool}: it is {health}", self.shared.name);
            return Err(ToolError::new(ErrorCode::UNKNOWN_TOOL, text));
        };
        call::call(&self.shared, &live, &listed, &arguments, &context).await
    }

    fn notes(&self) -> Vec<String> {
        self.toolset().notes.clone()
    }

    async fn changed(&self) {
        self.shared.status.changed().await;
    }

    fn validates_arguments(&self) -> bool {
        true
    }

    fn name(&self) -> Option<String> {
        Some(self.shared.name.to_string())
    }

    fn health(&self) -> SourceHealth {
        self.shared.status.health()
    }

    async fn close(&self) {
        self.shared.status.close().await;
    }
}

impl fmt::Debug for McpTools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpTools")
            .field("name", &self.shared.name)
            .field("health", &self.health())
            .field("tools", &self.toolset().tools.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sec_p3_server_at_an_address_is_named_after_its_host_without_a_password() {
        for url in
            ["https://me:hunter2@example.com/mcp", "https://example.com?key=hunter2", "https://example.com"]
        {
            assert_eq!(format!("{:?}", http(url)), r#"McpServer { name: "example.com", .. }"#);
        }
    }
}
