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
mod headers;
pub(super) mod http;
mod life;
mod lifecycle;
mod list;
mod live;
mod log;
mod settings;

use std::{
    fmt, io,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::{
    sync::{Notify, oneshot},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

pub use self::{file::from_file, settings::McpServer};
use self::{
    headers::ParameterHeaders,
    list::Toolset,
    live::Live,
    settings::{Endpoint, Settings},
};
use crate::{
    ErrorCode, Outcome, Tool, ToolContext, ToolError, ToolName, ToolSource, Value,
    adapter::mcp::{CallToolResult, check_output},
    process::{Command, CommandError, Exit, shown_lines},
    programs::ProgramsError,
    tools::{DataSchema, SourceHealth},
    tools_file::ToolsFileError,
};

/// A server that is a child process: its program and arguments. The program is found in `PATH`, as a shell finds it.
///
/// The child gets the variables `HOME`, `LOGNAME`, `PATH`, `SHELL`, `TERM` and `USER` of this process, as MCP's
/// official SDKs pass them, and those that [`McpServer::env`] and [`McpServer::inherit`] add.
pub fn stdio<W: Into<String>>(words: impl IntoIterator<Item = W>) -> McpServer {
    let words: Vec<String> = words.into_iter().map(Into::into).collect();
    let name = name_of(&words);
    let command = match words.split_first() {
        Some((program, arguments)) => {
            Command::find(program).map(|command| arguments.iter().fold(command, Command::arg))
        }
        None => Err(CommandError::Empty),
    };
    McpServer::new(name, command.map(|command| Endpoint::Command(command.inherit_user())))
}

/// A server that is a child process, from the line that a person would type into a shell: see [`Command::from_line`].
pub fn line(line: &str) -> McpServer {
    let name = name_of(&shlex::split(line).unwrap_or_default());
    let command = Command::from_line(line).map(|command| Endpoint::Command(command.inherit_user()));
    McpServer::new(name, command)
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
    McpServer::new(name, Ok(Endpoint::Url(url)))
}

/// A server that is a child process, from its command. Nothing is added to the command's environment.
pub fn command(command: Command) -> McpServer {
    let name = stem(&command.program().to_string_lossy()).to_owned();
    McpServer::new(name, Ok(Endpoint::Command(command)))
}

/// Returns a name for the server that a command starts: the package or script, if an interpreter or a package runner
/// starts it.
fn name_of(words: &[String]) -> String {
    let Some((program, arguments)) = words.split_first() else { return String::new() };
    let program = stem(program);
    let is_runner = matches!(program, "npx" | "bunx" | "uvx" | "node" | "deno" | "python" | "python3" | "sh");
    let started = arguments.iter().find(|it| !it.starts_with('-')).filter(|it| is_runner && is_path(it));
    started.map_or(program, |started| last_name(started)).to_owned()
}

/// Whether a word is a package or a path. Any other, such as code after `-c`, may hold a secret.
fn is_path(word: &str) -> bool {
    word.len() <= 256 && word.chars().all(|it| it.is_alphanumeric() || "@/._-".contains(it))
}

/// Returns the last part of a path that says something: `files` of `files/dist/index.js`. The version of a package is
/// cut.
fn last_name(path: &str) -> &str {
    let part = |part: &'_ str| {
        let name = part.rsplit_once('@').map_or(part, |(name, _)| name);
        !matches!(
            stem(name),
            "" | "index" | "main" | "server" | "dist" | "build" | "src" | "bin" | "lib" | ".."
        )
    };
    let found = path.split('/').rev().find(|it| part(it)).unwrap_or(path);
    stem(found.rsplit_once('@').map_or(found, |(name, _)| name))
}

fn stem(path: &str) -> &str {
    Path::new(path).file_stem().and_then(|it| it.to_str()).unwrap_or(path)
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
    state: Mutex<State>,
    changed: Notify,
    list_changed: Notify,
    closing: CancellationToken,
    closed: CancellationToken,
}

struct State {
    health: SourceHealth,
    offered: Toolset,
    live: Option<Live>,
    /// Why the last start failed.
    failure: Option<String>,
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
    async fn start(name: String, settings: Settings) -> Result<Self, McpError> {
        let (first, started) = oneshot::channel();
        let source = Self::begin(name, settings, Some(first));
        match started.await {
            Ok(started) => started.map(|()| source),
            Err(_) => Err(McpError::protocol(&source.shared.name, "its task has ended")),
        }
    }

    /// Creates the source, and starts its life. `first` learns of the first start, and a life that failed then ends.
    fn begin(name: String, settings: Settings, first: Option<oneshot::Sender<Result<(), McpError>>>) -> Self {
        let shared = Arc::new(Shared {
            name: name.into(),
            settings,
            state: Mutex::new(State {
                health: SourceHealth::Starting,
                offered: Toolset::default(),
                live: None,
                failure: None,
            }),
            changed: Notify::new(),
            list_changed: Notify::new(),
            closing: CancellationToken::new(),
            closed: CancellationToken::new(),
        });
        let mut life = JoinSet::new();
        life.spawn(life::run(Arc::clone(&shared), first));
        Self { shared, _life: life }
    }

    /// Returns why the last start of the server failed, for a person at this machine: it has what the server wrote to
    /// stderr, which may hold secrets. `None` if it did not fail.
    pub fn last_failure(&self) -> Option<String> {
        self.shared.state().failure.clone()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the state, and reports the change.
    fn set(&self, health: SourceHealth, offered: Toolset, live: Option<Live>) {
        let mut state = self.state();
        let failure = state.failure.take().filter(|_| live.is_none());
        *state = State { health, offered, live, failure };
        drop(state);
        self.changed.notify_one();
    }
}

impl ToolSource for McpTools {
    fn list(&self) -> Vec<Tool> {
        self.shared.state().offered.tools.values().map(|listed| listed.tool.clone()).collect()
    }

    async fn execute(&self, tool: &ToolName, arguments: Value, context: ToolContext) -> Outcome {
        let (listed, live) = {
            let state = self.shared.state();
            (state.offered.tools.get(tool).cloned(), state.live.clone())
        };
        let (Some(listed), Some(live)) = (listed, live) else {
            let health = self.health();
            let text = format!("the MCP server {:?} does not offer {tool}: it is {health}", self.shared.name);
            return Err(ToolError::new(ErrorCode::UNKNOWN_TOOL, text));
        };
        call::call(&self.shared, &live, &listed, &arguments, &context).await
    }

    fn notes(&self) -> Vec<String> {
        self.shared.state().offered.notes.clone()
    }

    async fn changed(&self) {
        self.shared.changed.notified().await;
    }

    fn validates_arguments(&self) -> bool {
        true
    }

    fn name(&self) -> Option<String> {
        Some(self.shared.name.to_string())
    }

    fn health(&self) -> SourceHealth {
        self.shared.state().health.clone()
    }

    async fn close(&self) {
        self.shared.closing.cancel();
        self.shared.closed.cancelled().await;
    }
}

impl fmt::Debug for McpTools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.state();
        f.debug_struct("McpTools")
            .field("name", &self.shared.name)
            .field("health", &state.health)
            .field("tools", &state.offered.tools.len())
            .finish_non_exhaustive()
    }
}

/// Why an MCP server cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum McpError {
    /// A `tools.toml` cannot be read.
    #[error(transparent)]
    File(#[from] ProgramsError),
    /// An entry of a `tools.toml` is invalid.
    #[error("MCP server {server:?}, line {line}: {reason}")]
    Entry {
        /// The server's name.
        server: String,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// There is no such program.
    #[error("MCP server {server:?}: {source}")]
    Command {
        /// The server's name.
        server: String,
        /// Why there is none.
        source: CommandError,
    },
    /// The URL cannot be used.
    #[error("MCP server {server:?}: {reason}")]
    Address {
        /// The server's name.
        server: String,
        /// Why not.
        reason: String,
    },
    /// An environment variable must not be passed to a server.
    #[error(
        "MCP server {server:?}: {variable} is not passed on, because it may give access to the room; set it with `env`"
    )]
    Variable {
        /// The server's name.
        server: String,
        /// The variable.
        variable: String,
    },
    /// The program cannot be started.
    #[error("MCP server {server:?} cannot be started: {source}")]
    NotStarted {
        /// The server's name.
        server: String,
        /// Why not.
        source: io::Error,
    },
    /// The program ended before it could be used.
    #[error("MCP server {server:?} ended ({}){}", .exit.status(), said(.exit.stderr()))]
    Ended {
        /// The server's name.
        server: String,
        /// How it ended, and the end of what it wrote to stderr.
        exit: Exit,
    },
    /// It does not behave as an MCP server.
    #[error("MCP server {server:?}: {reason}{}", said(.stderr))]
    Protocol {
        /// The server's name.
        server: String,
        /// What went wrong.
        reason: String,
        /// The end of what it wrote to stderr.
        stderr: Vec<u8>,
    },
}

impl From<ToolsFileError> for McpError {
    fn from(error: ToolsFileError) -> Self {
        ProgramsError::from(error).into()
    }
}

impl McpError {
    fn protocol(server: &str, reason: impl Into<String>) -> Self {
        Self::Protocol { server: server.to_owned(), reason: reason.into(), stderr: Vec::new() }
    }

    /// Describes it without what the server wrote to stderr, which may hold secrets.
    fn without_stderr(&self) -> String {
        match self {
            Self::Ended { exit, .. } => connection::how_it_ended(exit),
            Self::Protocol { reason, .. } => reason.clone(),
            other => other.to_string(),
        }
    }
}

/// The most lines of stderr in an error.
const MAX_LINES: usize = 8;

/// Returns the last lines that a server wrote to stderr, for a person at a terminal.
fn said(stderr: &[u8]) -> String {
    let lines = shown_lines(stderr);
    let last = &lines[lines.len().saturating_sub(MAX_LINES)..];
    if last.is_empty() { String::new() } else { format!("; it wrote: {}", last.join(" | ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_is_named_after_its_package() {
        for (line, name) in [
            ("npx -y @modelcontextprotocol/server-everything@2026.8.31 stdio", "server-everything"),
            ("uvx mcp-server-time", "mcp-server-time"),
            ("/opt/tools/lamp --fast", "lamp"),
            ("node files/build/index.js", "files"),
            ("node index.js", "index"),
            ("python3 -u lamp.py", "lamp"),
            ("npx @modelcontextprotocol/server-everything", "server-everything"),
            ("sh -c 'KEY=hunter2 exec lamp'", "sh"),
            ("python3 -c 'print(1)'", "python3"),
            ("", ""),
        ] {
            assert_eq!(name_of(&shlex::split(line).unwrap()), name);
        }
    }

    #[test]
    fn sec_p3_server_at_an_address_is_named_after_its_host_without_a_password() {
        for url in
            ["https://me:hunter2@example.com/mcp", "https://example.com?key=hunter2", "https://example.com"]
        {
            assert_eq!(format!("{:?}", http(url)), r#"McpServer { name: "example.com", .. }"#);
        }
    }
}
