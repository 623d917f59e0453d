//! Offers an agent as a tool.

mod calls;
mod choice;
mod connection;
mod file;
mod files;
mod handler;
mod life;
mod offer;
mod permission;
mod session;
mod settings;
mod shown;
mod terminal;
mod turn;

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde_json::json;
use tokio::{
    sync::{Semaphore, oneshot},
    task::JoinSet,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use self::{connection::Live, offer::Offered, settings::Settings, shown::TurnContext, turn::Prompt};
pub use self::{file::from_file, permission::forget_permissions, settings::AcpCommand};
use crate::{
    ErrorCode, Outcome, Progress, Tool, ToolContext, ToolError, ToolName, ToolOptions, ToolSource, Value,
    adapter::source::{
        SourceError,
        life::{First, Status, keep_alive, started},
        program::Program,
    },
    process::Command,
    tools::{NameMap, NameRules, SourceHealth},
};

/// What errors call an agent.
const KIND: &str = "agent";

/// The longest prompt, in bytes.
const MAX_PROMPT: usize = 256 << 10;

/// An agent from its program and arguments. The program is found in `PATH`, as a shell finds it.
///
/// The agent gets the variables `HOME`, `LOGNAME`, `PATH`, `SHELL`, `TERM` and `USER` of this process, and those that
/// [`AcpCommand::env`] and [`AcpCommand::inherit`] add.
pub fn stdio<W: Into<String>>(words: impl IntoIterator<Item = W>) -> AcpCommand {
    AcpCommand::new(Program::of_words(words))
}

/// An agent from the line that a person would type into a shell: see [`Command::from_line`].
pub fn line(line: &str) -> AcpCommand {
    AcpCommand::new(Program::of_line(line))
}

/// An agent from its command. Nothing is added to the command's environment.
pub fn command(command: Command) -> AcpCommand {
    AcpCommand::new(Program::of_command(command))
}

/// The tool of an agent: it takes a `prompt`, and returns what the agent said and why it stopped. [`stdio`], [`line()`]
/// and [`command`] create it.
///
/// An agent has one session, and runs one prompt at a time: further ones are `busy`. A prompt that is cancelled, or
/// whose time is over, is cancelled at the agent; an agent that goes on for 5 s is killed. An agent that ends is started
/// again after 1, 2, 4 … 60 s; it then has a new session.
///
/// The result's structured data has the `stopReason`, and in `permissions` what was decided without a question: because a
/// person had answered for always, or by [`AcpCommand::allow_kind`] and [`AcpCommand::reject_kind`].
///
/// At an assistant, the calls of the agent's tools are [reported](crate::tools::Reporter) to the room. At a client they are
/// progress of the one call.
///
/// A clone is a handle of the same agent. The agent ends with the last one, or when the source is closed.
#[derive(Clone)]
pub struct AcpTool {
    shared: Arc<Shared>,
    /// Ends with the last handle.
    _life: Arc<JoinSet<()>>,
}

struct Shared {
    name: Arc<str>,
    tool: Tool,
    settings: Settings,
    status: Status<Live>,
    state: Mutex<State>,
    /// One prompt at a time.
    turn: Arc<Semaphore>,
    turns: Mutex<JoinSet<()>>,
}

#[derive(Default)]
struct State {
    offered: Option<Offered>,
    /// A prompt was cancelled, and the agent has not ended its turn.
    is_cancelling: bool,
    #[cfg(feature = "mcp-server")]
    listener: Option<crate::adapter::mcp::McpListener>,
}

impl AcpTool {
    /// Waits until the first start has succeeded or failed.
    async fn start(name: String, settings: Settings) -> Result<Self, SourceError> {
        started(&origin(&name), |first| Self::begin(name.clone(), settings, first)).await
    }

    /// Creates the source, and begins its life. `first` learns of the first start, and a life that failed then ends.
    fn begin(name: String, settings: Settings, first: Option<First>) -> Result<Self, SourceError> {
        settings.check(&name)?;
        let names = NameMap::new(NameRules::Tool, [&*name]);
        let tool: ToolName = names.converted(&name).and_then(|name| name.parse().ok()).ok_or_else(|| {
            SourceError::setting(origin(&name), "its name cannot become the name of a tool")
        })?;
        let tool = tool_of(tool, &name, &settings);
        let shared = Arc::new(Shared {
            name: name.into(),
            tool,
            settings,
            status: Status::new(),
            state: Mutex::default(),
            turn: Arc::new(Semaphore::new(1)),
            turns: Mutex::default(),
        });
        let life = keep_alive(Arc::clone(&shared), first);
        Ok(Self { shared, _life: Arc::new(life) })
    }

    /// Returns why the agent is not up, or why its last start failed, for a person at this machine: it has what the agent wrote
    /// to stderr, which may hold secrets. `None` while it is up.
    pub fn last_failure(&self) -> Option<String> {
        self.shared.status.last_failure()
    }

    /// Offers the tools of the room to the agent, from its next prompt on: as an MCP server at the loopback address, with
    /// a bearer token. The agent then gets a new session. The agent's own tool is not offered to it.
    ///
    /// # Errors
    /// No port can be opened.
    ///
    /// # Cancel safety
    /// Safe: dropping the future offers nothing.
    #[cfg(feature = "mcp-server")]
    pub async fn offer_tools(&self, assistant: &crate::Assistant) -> std::io::Result<()> {
        let server = crate::adapter::mcp::serve(assistant.clone()).deny(self.shared.tool.name().as_str());
        let listener = server.listen((std::net::Ipv4Addr::LOCALHOST, 0).into()).await?;
        let mut state = self.shared.state();
        let key = state.offered.as_ref().map_or(0, |before| before.key + 1);
        state.offered = Some(Offered { key, url: listener.url(), token: listener.token().to_owned() });
        state.listener = Some(listener);
        Ok(())
    }

    /// Forgets the permissions that persons gave this agent, or refused it, for always, and returns how many there were. Its
    /// next request is asked again. [`forget_permissions`] forgets those of all agents.
    pub fn forget_permissions(&self) -> usize {
        permission::forget(self.shared.settings.instance)
    }

    /// Returns the name of the agent.
    pub fn name(&self) -> &str {
        &self.shared.name
    }
}

/// Returns what errors name.
fn origin(agent: &str) -> String {
    format!("{KIND} {agent:?}")
}

fn tool_of(name: ToolName, agent: &str, settings: &Settings) -> Tool {
    let description = settings.description.clone().unwrap_or_else(|| {
        format!("Gives the agent {agent} a task in its own words, and returns what the agent says when it has ended.")
    });
    let schema = json!({
        "type": "object",
        "properties": {"prompt": {"type": "string", "description": "The task, with all that the agent must know.", "minLength": 1}},
        "required": ["prompt"],
        "additionalProperties": false,
    });
    let options = ToolOptions::default().open_world().consent(settings.consent);
    let options = options.timeout(settings.limit).patience(settings.limit);
    Tool::new(name, description).schema(schema).options(options).with_source(agent)
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the turn. A cancelled one gets the time that it has to end.
    async fn turn(&self) -> Result<tokio::sync::OwnedSemaphorePermit, ToolError> {
        let busy = || {
            let text = format!(
                "the agent {:?} works on another prompt; wait for its result, or cancel it",
                self.name
            );
            ToolError::new(ErrorCode::BUSY, text)
        };
        if let Ok(permit) = Arc::clone(&self.turn).try_acquire_owned() {
            return Ok(permit);
        }
        if !self.state().is_cancelling {
            return Err(busy());
        }
        let waiting = timeout(turn::CANCEL_GRACE, Arc::clone(&self.turn).acquire_owned());
        waiting.await.ok().and_then(Result::ok).ok_or_else(busy)
    }
}

/// Cancels the turn when its caller no longer waits.
struct Cancel<'a> {
    shared: &'a Shared,
    token: CancellationToken,
    is_over: bool,
}

impl Drop for Cancel<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.shared.state().is_cancelling = true;
            self.token.cancel();
        }
    }
}

impl ToolSource for AcpTool {
    fn list(&self) -> Vec<Tool> {
        vec![self.shared.tool.clone()]
    }

    async fn execute(&self, _: &ToolName, arguments: Value, context: ToolContext) -> Outcome {
        let shared = &*self.shared;
        let refuse = |code, text: String| Err(ToolError::new(code, text));
        let text = arguments.get("prompt").and_then(|it| it.as_str().map(str::to_owned));
        let Some(text) = text.filter(|text| !text.trim().is_empty()) else {
            return refuse(
                ErrorCode::INVALID_PARAMETERS,
                "`prompt` must be a text that is not empty".to_owned(),
            );
        };
        if text.len() > MAX_PROMPT {
            let text = format!("`prompt` has {} bytes; the limit is {MAX_PROMPT}", text.len());
            return refuse(ErrorCode::INVALID_PARAMETERS, text);
        }
        let permit = shared.turn().await?;
        let offered = {
            let mut state = shared.state();
            state.is_cancelling = false;
            state.offered.clone()
        };
        let Some(live) = shared.status.live() else {
            let health = self.health();
            return refuse(
                ErrorCode::EXECUTION_ERROR,
                format!("the agent {:?} cannot be used: it is {health}", shared.name),
            );
        };
        let opened = timeout(
            shared.settings.start_limit,
            live.open_session(&shared.name, &shared.settings, offered.as_ref()),
        );
        let opened = tokio::select! {
            biased;
            () = context.cancelled() => return Err(ToolError::cancelled()),
            opened = opened => opened,
        };
        match opened {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return refuse(ErrorCode::EXECUTION_ERROR, error.without_stderr()),
            Err(_) => {
                return refuse(
                    ErrorCode::EXECUTION_ERROR,
                    "the agent did not open a session in time".to_owned(),
                );
            }
        }
        context.progress(Progress::started());
        live.session.begin(TurnContext::new(context.clone()));
        let (outcome, ended) = oneshot::channel();
        let token = CancellationToken::new();
        let prompt =
            Prompt { agent: Arc::clone(&shared.name), live, text, cancel: token.clone(), outcome, permit };
        {
            let mut turns = shared.turns.lock().unwrap_or_else(PoisonError::into_inner);
            while turns.try_join_next().is_some() {}
            turns.spawn(prompt.run());
        }
        let mut cancel = Cancel { shared, token, is_over: false };
        tokio::select! {
            biased;
            outcome = ended => {
                cancel.is_over = true;
                outcome.unwrap_or_else(|_| refuse(ErrorCode::EXECUTION_ERROR, "the agent has ended".to_owned()))
            }
            () = context.cancelled() => Err(ToolError::cancelled()), // `cancel` cancels the turn
        }
    }

    async fn changed(&self) {
        self.shared.status.changed().await;
    }

    fn name(&self) -> Option<String> {
        Some(self.shared.name.to_string())
    }

    fn health(&self) -> SourceHealth {
        self.shared.status.health()
    }

    async fn close(&self) {
        self.shared.status.closing.cancel();
        #[cfg(feature = "mcp-server")]
        {
            let listener = self.shared.state().listener.take();
            if let Some(listener) = listener {
                listener.close().await;
            }
        }
        self.shared.status.close().await;
    }
}

impl fmt::Debug for AcpTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let health = self.health();
        f.debug_struct("AcpTool")
            .field("name", &self.shared.name)
            .field("health", &health)
            .finish_non_exhaustive()
    }
}
