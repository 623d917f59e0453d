//! Holds the settings of an agent, and their builder.

use std::{
    fmt,
    future::{Future, IntoFuture},
    path::{Path, PathBuf},
    pin::Pin,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use super::{AcpTool, connection, origin};
use crate::{
    Consent,
    adapter::{
        acp::document::KINDS,
        source::{SourceError, program::Program},
    },
};

/// The time in which an agent must open a session after its start, if none is set. `npx` may download it first.
const START_LIMIT: Duration = Duration::from_secs(60);

/// The longest time of a prompt, if none is set: the longest call of a room.
const PROMPT_LIMIT: Duration = Duration::from_secs(600);

/// The number of agents that were configured in this process.
static INSTANCES: AtomicU64 = AtomicU64::new(0);

#[derive(Clone)]
pub(super) struct Settings {
    /// Tells this agent apart from others, which may have its name.
    pub(super) instance: u64,
    pub(super) program: Program,
    /// The folder that the agent works in.
    pub(super) folder: PathBuf,
    pub(super) description: Option<String>,
    pub(super) consent: Consent,
    pub(super) limit: Duration,
    pub(super) start_limit: Duration,
    pub(super) files: Option<PathBuf>,
    pub(super) runs_commands: bool,
    pub(super) supervisor: Option<PathBuf>,
    /// The kinds of calls that need no question.
    pub(super) kinds: Kinds,
    /// The program whose verb `mcp --attach` serves the room's tools to an agent that knows no MCP over HTTP.
    pub(super) attach: Option<PathBuf>,
}

impl Settings {
    /// Checks what no new start would mend.
    pub(super) fn check(&self, name: &str) -> Result<(), SourceError> {
        self.program.command(&origin(name))?;
        let mut kinds = self.kinds.allowed.iter().chain(&self.kinds.rejected);
        kinds
            .try_for_each(|kind| check_kind(kind))
            .map_err(|reason| SourceError::setting(origin(name), reason))?;
        connection::folders(name, self).map(|_| ())
    }
}

/// The kinds of calls for which permission requests are answered by the settings.
#[derive(Clone, Debug, Default)]
pub(super) struct Kinds {
    pub(super) allowed: Vec<String>,
    pub(super) rejected: Vec<String>,
}

/// Checks that the protocol knows a kind.
pub(super) fn check_kind(kind: &str) -> Result<(), String> {
    match KINDS.contains(&kind) {
        true => Ok(()),
        false => Err(format!("{kind:?} is not a kind of calls; the kinds are {}", KINDS.join(", "))),
    }
}

/// An agent that is to become a tool. Awaiting it starts the agent, and returns the tool.
///
/// [`stdio`](super::stdio), [`line`](super::line()) and [`command`](super::command) create it.
#[must_use = "an agent starts when this is awaited"]
pub struct AcpCommand {
    name: String,
    settings: Settings,
}

impl AcpCommand {
    pub(super) fn new((name, program): (String, Program)) -> Self {
        let settings = Settings {
            instance: INSTANCES.fetch_add(1, Ordering::Relaxed),
            program,
            folder: PathBuf::from("/"),
            description: None,
            consent: Consent::OncePerSession,
            limit: PROMPT_LIMIT,
            start_limit: START_LIMIT,
            files: None,
            runs_commands: false,
            supervisor: None,
            kinds: Kinds::default(),
            attach: None,
        };
        Self { name, settings }
    }

    /// Sets the agent's name: that of its tool, and the one that its questions begin with. Default: a name made of the
    /// command.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets the description of the tool, for the model. Default: a sentence with the agent's name.
    pub fn description(self, description: impl Into<String>) -> Self {
        self.with(|settings| settings.description = Some(description.into()))
    }

    /// Sets the folder that the agent starts and works in (`cwd`). It must be absolute. Default: `/`.
    pub fn folder(self, folder: impl AsRef<Path>) -> Self {
        self.with(|settings| {
            settings.program.set(|command| command.folder(folder.as_ref()));
            settings.folder = folder.as_ref().to_owned();
        })
    }

    /// Sets an environment variable of the agent.
    pub fn env(self, variable: impl Into<String>, value: impl Into<String>) -> Self {
        self.with(|settings| settings.program.set(|command| command.env(variable.into(), value.into())))
    }

    /// Passes on an environment variable of this process. Variables of LiveKit (`LIVEKIT_*`) are refused when the agent
    /// starts.
    pub fn inherit(self, variable: impl Into<String>) -> Self {
        self.with(|settings| settings.program.inherit(variable.into()))
    }

    /// Starts the agent, and the commands that it may run, through a helper, which ends them when this process is
    /// killed: see [`Command::supervisor`](crate::process::Command::supervisor).
    pub fn supervisor(self, helper: impl AsRef<Path>) -> Self {
        self.with(|settings| {
            settings.program.set(|command| command.supervisor(helper.as_ref()));
            settings.supervisor = Some(helper.as_ref().to_owned());
        })
    }

    /// Sets when a person is asked before the agent gets a prompt. Default: once per session. What the agent does then
    /// it asks itself.
    pub fn consent(self, consent: Consent) -> Self {
        self.with(|settings| settings.consent = consent)
    }

    /// Sets the longest time of one prompt. Default: 10 min.
    pub fn timeout(self, limit: Duration) -> Self {
        self.with(|settings| settings.limit = limit)
    }

    /// Sets the time in which the agent must open a session after its start. Default: 60 s.
    pub fn start_limit(self, limit: Duration) -> Self {
        self.with(|settings| settings.start_limit = limit)
    }

    /// Lets the agent read and write files of this folder, and of no other, through its client. Links that lead out of
    /// the folder are refused. Default: no files.
    ///
    /// This does not confine what the agent's own process does.
    pub fn allow_files(self, folder: impl AsRef<Path>) -> Self {
        self.with(|settings| settings.files = Some(folder.as_ref().to_owned()))
    }

    /// Lets the agent run commands through its client. A person is asked before each, with the exact command and its
    /// folder, and no answer is kept. Default: no commands.
    pub fn allow_commands(self) -> Self {
        self.with(|settings| settings.runs_commands = true)
    }

    /// Answers permission requests for calls of this kind with a yes, without a question: one of `read`, `edit`, `delete`,
    /// `move`, `search`, `execute`, `think`, `fetch`, `switch_mode` and `other`. May be called for several. A kind that is not
    /// one of them is an error when the agent starts. Default: none.
    ///
    /// The kind is what the agent itself says of its call; nothing checks it. A call without a kind is `other`. What a person
    /// has refused for always stays refused, and so do the kinds of [`reject_kind`](Self::reject_kind). A request without an
    /// option that allows is asked. Commands of [`allow_commands`](Self::allow_commands) are always asked.
    pub fn allow_kind(self, kind: impl Into<String>) -> Self {
        self.with(|settings| settings.kinds.allowed.push(kind.into()))
    }

    /// Answers permission requests for calls of this kind with a no, without a question, whatever a person has answered
    /// before. The kinds are those of [`allow_kind`](Self::allow_kind). Default: none.
    pub fn reject_kind(self, kind: impl Into<String>) -> Self {
        self.with(|settings| settings.kinds.rejected.push(kind.into()))
    }

    /// Sets the `toolbridge` program that an agent without MCP over HTTP starts to reach the tools of
    /// [`AcpTool::offer_tools`], an absolute path. Default: none; such an agent gets no tools.
    pub fn attach_program(self, program: impl AsRef<Path>) -> Self {
        self.with(|settings| settings.attach = Some(program.as_ref().to_owned()))
    }

    pub(super) fn with(mut self, set: impl FnOnce(&mut Settings)) -> Self {
        set(&mut self.settings);
        self
    }

    /// Returns the tool without waiting for the agent. If its start fails, it is started again after 1, 2, 4 … 60 s, and
    /// [`AcpTool::last_failure`] says why.
    ///
    /// Starting the agent by `.await` waits for it instead, and returns the failure of its start.
    ///
    /// # Errors
    /// [`SourceError::Setting`]: no new start would help.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn begin(self) -> Result<AcpTool, SourceError> {
        AcpTool::begin(self.name, self.settings, None)
    }
}

/// Without arguments and environment.
impl fmt::Debug for AcpCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcpCommand").field("name", &self.name).finish_non_exhaustive()
    }
}

impl IntoFuture for AcpCommand {
    type Output = Result<AcpTool, SourceError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    /// Starts the agent.
    ///
    /// # Cancel safety
    /// Dropping the future ends the agent.
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(AcpTool::start(self.name, self.settings))
    }
}
