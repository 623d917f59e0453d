//! Holds the settings of a server, and their builder.

use std::{
    fmt,
    future::{Future, IntoFuture},
    path::Path,
    pin::Pin,
    time::Duration,
};

use super::{McpTools, address::Address};
use crate::{
    Consent,
    adapter::source::{
        SourceError,
        policy::{Bearer, Policy},
        program::Program,
    },
};

/// The time in which a server must start and list its tools, if none is set. `npx` may download it first.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Where a server is.
#[derive(Clone)]
pub(super) enum Endpoint {
    Program(Program),
    Url(String),
}

impl Endpoint {
    /// Checks what no new start would mend.
    pub(super) fn check(&self, origin: &str) -> Result<(), SourceError> {
        match self {
            Self::Program(program) => program.command(origin).map(|_| ()),
            Self::Url(url) => Address::read(url)
                .map(|_| ())
                .map_err(|error| SourceError::setting(origin, error.to_string())),
        }
    }
}

#[derive(Clone)]
pub(super) struct Settings {
    pub(super) endpoint: Endpoint,
    pub(super) policy: Policy,
    pub(super) start_limit: Duration,
    pub(super) bearer: Option<Bearer>,
}

/// An MCP server whose tools are to be offered. Awaiting it starts the server, and returns its tools.
///
/// [`stdio`](super::stdio), [`command`](super::command) and [`http`](super::http) create it.
#[must_use = "a server starts when this is awaited"]
pub struct McpServer {
    name: String,
    settings: Settings,
}

impl McpServer {
    pub(super) fn new(name: String, endpoint: Endpoint) -> Self {
        let settings =
            Settings { endpoint, policy: Policy::default(), start_limit: START_LIMIT, bearer: None };
        Self { name, settings }
    }

    pub(super) fn of_program((name, program): (String, Program)) -> Self {
        Self::new(name, Endpoint::Program(program))
    }

    /// Sets the server's name, for people. A tool whose name another source offers already becomes `NAME.tool`.
    /// Default: a name made of the command or the host.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets an environment variable of a server that is a child process.
    pub fn env(self, variable: impl Into<String>, value: impl Into<String>) -> Self {
        self.with_program(|it| it.set(|command| command.env(variable.into(), value.into())))
    }

    /// Passes on an environment variable of this process. Variables of LiveKit (`LIVEKIT_*`) are refused when the
    /// server starts.
    pub fn inherit(self, variable: impl Into<String>) -> Self {
        self.with_program(|it| it.inherit(variable.into()))
    }

    /// Sets the bearer token of a server at an address. Default: none.
    pub fn bearer_token(self, token: impl Into<String>) -> Self {
        self.with(|settings| settings.bearer = Some(Bearer::Token(token.into())))
    }

    /// Sets the environment variable that holds the bearer token of a server at an address. It is read when the server
    /// is connected.
    pub fn bearer_env(self, variable: impl Into<String>) -> Self {
        self.with(|settings| settings.bearer = Some(Bearer::Variable(variable.into())))
    }

    /// Sets the folder that a child process starts in. Default: `/`.
    pub fn folder(self, folder: impl AsRef<Path>) -> Self {
        self.with_program(|it| it.set(|command| command.folder(folder.as_ref())))
    }

    /// Starts a child process through a helper, which ends it when this process is killed: see
    /// [`Command::supervisor`](crate::process::Command::supervisor).
    pub fn supervisor(self, helper: impl AsRef<Path>) -> Self {
        self.with_program(|it| it.set(|command| command.supervisor(helper)))
    }

    /// Puts this prefix and a dot before the name of each tool.
    pub fn prefix(self, prefix: impl Into<String>) -> Self {
        self.with(|settings| settings.policy.prefix = Some(prefix.into()))
    }

    /// Offers only these tools, by the server's names for them. A name that ends in `*` stands for all that start so.
    pub fn allow<N: Into<String>>(self, names: impl IntoIterator<Item = N>) -> Self {
        self.with(|settings| settings.policy.filter.allow(names.into_iter().map(Into::into)))
    }

    /// Does not offer these tools, even if [`allow`](Self::allow) names them.
    pub fn deny<N: Into<String>>(self, names: impl IntoIterator<Item = N>) -> Self {
        self.with(|settings| settings.policy.filter.deny(names.into_iter().map(Into::into)))
    }

    /// Sets when a person is asked before a tool of this server runs. Default: always before one that the server calls
    /// destructive, else once per session.
    pub fn consent(self, consent: Consent) -> Self {
        self.with(|settings| settings.policy.consent = Some(consent))
    }

    /// Believes the server's `readOnlyHint`: such tools run without a question, unless
    /// [`consent`](Self::consent) is set.
    pub fn trust_hints(self) -> Self {
        self.with(|settings| settings.policy.trusts_hints = true)
    }

    /// Sets the longest time of one call. Default: the caller's limit.
    pub fn timeout(self, limit: Duration) -> Self {
        self.with(|settings| settings.policy.timeout = Some(limit))
    }

    /// Sets the time in which the server must start and list all its tools. Default: 60 s.
    pub fn start_limit(self, limit: Duration) -> Self {
        self.with(|settings| settings.start_limit = limit)
    }

    pub(super) fn with(mut self, set: impl FnOnce(&mut Settings)) -> Self {
        set(&mut self.settings);
        self
    }

    fn with_program(self, set: impl FnOnce(&mut Program)) -> Self {
        self.with(|settings| {
            if let Endpoint::Program(program) = &mut settings.endpoint {
                set(program);
            }
        })
    }

    /// Returns the source without waiting for the server. If its start fails, it is started again after 1, 2, 4 … 60 s.
    /// Its tools are offered as soon as it is up, and [`McpTools::last_failure`] says why it is not.
    ///
    /// Starting the server by `.await` waits for it instead, and returns the failure of its start.
    ///
    /// # Errors
    /// [`SourceError::Setting`]: no new start would help.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn begin(self) -> Result<McpTools, SourceError> {
        McpTools::begin(self.name, self.settings, None)
    }
}

/// Without arguments, environment and credentials.
impl fmt::Debug for McpServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpServer").field("name", &self.name).finish_non_exhaustive()
    }
}

impl IntoFuture for McpServer {
    type Output = Result<McpTools, SourceError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    /// Starts the server.
    ///
    /// # Cancel safety
    /// Dropping the future ends the server.
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(McpTools::start(self.name, self.settings))
    }
}
