//! Offers an agent as a tool.

mod calls;
mod choice;
mod connection;
mod error;
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
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde_json::json;
use tokio::{
    sync::{Notify, Semaphore, oneshot},
    task::JoinSet,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use self::{connection::Live, offer::Offered, settings::Settings, shown::TurnContext, turn::Prompt};
pub use self::{error::AcpError, file::from_file, permission::forget_permissions, settings::AcpCommand};
use crate::{
    ErrorCode, Outcome, Progress, Tool, ToolContext, ToolError, ToolName, ToolOptions, ToolSource, Value,
    process::{Command, CommandError},
    tools::{NameMap, NameRules, SourceHealth},
};

/// The longest prompt, in bytes.
const MAX_PROMPT: usize = 256 << 10;

/// An agent from its program and arguments. The program is found in `PATH`, as a shell finds it.
///
/// The agent gets the variables `HOME`, `LOGNAME`, `PATH`, `SHELL`, `TERM` and `USER` of this process, and those that
/// [`AcpCommand::env`] and [`AcpCommand::inherit`] add.
pub fn stdio<W: Into<String>>(words: impl IntoIterator<Item = W>) -> AcpCommand {
    let words: Vec<String> = words.into_iter().map(Into::into).collect();
    let name = name_of(&words);
    let command = match words.split_first() {
        Some((program, arguments)) => {
            Command::find(program).map(|command| arguments.iter().fold(command, Command::arg))
        }
        None => Err(CommandError::Empty),
    };
    AcpCommand::new(name, command.map(Command::inherit_user))
}

/// An agent from the line that a person would type into a shell: see [`Command::from_line`].
pub fn line(line: &str) -> AcpCommand {
    let name = name_of(&shlex::split(line).unwrap_or_default());
    AcpCommand::new(name, Command::from_line(line).map(Command::inherit_user))
}

/// An agent from its command. Nothing is added to the command's environment.
pub fn command(command: Command) -> AcpCommand {
    let name = stem(&command.program().to_string_lossy()).to_owned();
    AcpCommand::new(name, Ok(command))
}

/// Returns a name for the agent that a command starts: the package or script, if an interpreter or a package runner
/// starts it.
fn name_of(words: &[String]) -> String {
    let Some((program, arguments)) = words.split_first() else { return String::new() };
    let program = stem(program);
    let is_runner = matches!(program, "npx" | "bunx" | "uvx" | "node" | "deno" | "python" | "python3");
    let is_path = |word: &&String| {
        !word.starts_with('-')
            && word.len() <= 256
            && word.chars().all(|it| it.is_alphanumeric() || "@/._-".contains(it))
    };
    let started = arguments.iter().find(is_path).filter(|_| is_runner);
    let started = started.map_or(program, |path| {
        let last = path.rsplit('/').next().unwrap_or(path);
        last.split_once('@').map_or(last, |(name, _)| if name.is_empty() { last } else { name })
    });
    stem(started).to_owned()
}

fn stem(path: &str) -> &str {
    Path::new(path).file_stem().and_then(|it| it.to_str()).unwrap_or(path)
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
    state: Mutex<State>,
    changed: Notify,
    /// One prompt at a time.
    turn: Arc<Semaphore>,
    turns: Mutex<JoinSet<()>>,
    closing: CancellationToken,
    closed: CancellationToken,
}

struct State {
    health: SourceHealth,
    live: Option<Live>,
    offered: Option<Offered>,
    /// A prompt was cancelled, and the agent has not ended its turn.
    is_cancelling: bool,
    /// Why the last start failed.
    failure: Option<String>,
    #[cfg(feature = "mcp-server")]
    listener: Option<crate::adapter::mcp::McpListener>,
}

impl AcpTool {
    /// Waits until the first start has succeeded or failed.
    async fn start(name: String, settings: Settings) -> Result<Self, AcpError> {
        let (first, started) = oneshot::channel();
        let source = Self::begin(name, settings, Some(first))?;
        match started.await {
            Ok(started) => started.map(|()| source),
            Err(_) => Err(AcpError::protocol(&source.shared.name, "its task has ended")),
        }
    }

    /// Creates the source, and starts its life. `first` learns of the first start, and a life that failed then ends.
    fn begin(
        name: String,
        settings: Settings,
        first: Option<oneshot::Sender<Result<(), AcpError>>>,
    ) -> Result<Self, AcpError> {
        let wrong = |reason: &str| AcpError::Setting { agent: name.clone(), reason: reason.to_owned() };
        let names = NameMap::new(NameRules::Tool, [&*name]);
        let tool: ToolName = names
            .converted(&name)
            .and_then(|name| name.parse().ok())
            .ok_or_else(|| wrong("its name cannot become the name of a tool"))?;
        let tool = tool_of(tool, &name, &settings);
        let shared = Arc::new(Shared {
            name: name.into(),
            tool,
            settings,
            state: Mutex::new(State {
                health: SourceHealth::Starting,
                live: None,
                offered: None,
                is_cancelling: false,
                failure: None,
                #[cfg(feature = "mcp-server")]
                listener: None,
            }),
            changed: Notify::new(),
            turn: Arc::new(Semaphore::new(1)),
            turns: Mutex::default(),
            closing: CancellationToken::new(),
            closed: CancellationToken::new(),
        });
        let mut life = JoinSet::new();
        life.spawn(life::run(Arc::clone(&shared), first));
        Ok(Self { shared, _life: Arc::new(life) })
    }

    /// Returns why the last start of the agent failed, for a person at this machine: it has what the agent wrote to
    /// stderr, which may hold secrets. `None` if it did not fail.
    pub fn last_failure(&self) -> Option<String> {
        self.shared.state().failure.clone()
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

    fn set(&self, health: SourceHealth, live: Option<Live>) {
        let mut state = self.state();
        state.failure = state.failure.take().filter(|_| live.is_none());
        (state.health, state.live) = (health, live);
        drop(state);
        self.changed.notify_one();
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
        let (live, offered) = {
            let mut state = shared.state();
            state.is_cancelling = false;
            (state.live.clone(), state.offered.clone())
        };
        let Some(live) = live else {
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
        self.shared.changed.notified().await;
    }

    fn name(&self) -> Option<String> {
        Some(self.shared.name.to_string())
    }

    fn health(&self) -> SourceHealth {
        self.shared.state().health.clone()
    }

    async fn close(&self) {
        self.shared.closing.cancel();
        #[cfg(feature = "mcp-server")]
        {
            let listener = self.shared.state().listener.take();
            if let Some(listener) = listener {
                listener.close().await;
            }
        }
        self.shared.closed.cancelled().await;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_is_named_after_its_package() {
        for (line, name) in [
            ("npx -y @zed-industries/codex-acp@0.16.0", "codex-acp"),
            ("gemini --experimental-acp", "gemini"),
            ("/opt/agents/coder", "coder"),
            ("python3 -u tests/agent.py", "agent"),
            ("sh -c 'KEY=hunter2 exec coder'", "sh"),
            ("", ""),
        ] {
            assert_eq!(name_of(&shlex::split(line).unwrap()), name, "{line}");
        }
    }
}
