//! Runs an agent once: starts, initializes and ends it.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value as Json, json};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep_until, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{
    files::Folder,
    handler::Handler,
    offer::Offered,
    origin, permission,
    session::Session,
    settings::Settings,
    terminal::{Options, Terminals},
};
use crate::{
    adapter::{
        jsonrpc::{
            failure::Failure as RpcFailure,
            peer::{End, Peer, Unanswered},
            reader::Reader,
            rules::ACP,
        },
        source::{SourceError, error::how_it_ended},
    },
    process::Child,
    value::prefix,
};

/// The version of the protocol that is spoken.
const VERSION: u64 = 1;

/// How long an agent that has closed its output may take to end, so that its status can be reported.
const EXIT_GRACE: Duration = Duration::from_millis(500);

/// How long the output of an agent that has ended is read: it may have written its answer just before.
const DRAIN: Duration = Duration::from_secs(2);

/// The longest text of an agent in an error, in bytes.
const MAX_REASON: usize = 512;

/// The code of an error that demands a sign-in.
const AUTH_REQUIRED: i64 = -32_000;

/// The most requests that are open at once: a prompt, or one that opens a session.
const MAX_OPEN: usize = 8;

/// The most ways to sign in that an error names.
const MAX_WAYS: usize = 8;

/// The longest way to sign in, in bytes.
const MAX_WAY: usize = 128;

/// Why an agent opened no session.
pub(super) enum Failure {
    /// It has refused, or answered wrongly.
    Said(SourceError),
    /// Nothing more comes from it. Its exit status says more than this reason, if it ended.
    Gone(String),
}

impl Failure {
    /// Describes it without what the agent wrote to stderr, which may hold secrets.
    pub(super) fn without_stderr(&self) -> String {
        match self {
            Self::Said(error) => error.without_stderr(),
            Self::Gone(reason) => reason.clone(),
        }
    }
}

/// What prompts need of a connection.
#[derive(Clone)]
pub(super) struct Live {
    pub(super) peer: Arc<Peer>,
    pub(super) session: Arc<Session>,
    /// Ends the process group.
    pub(super) kill: CancellationToken,
    /// Why the agent has ended.
    pub(super) end: watch::Sender<Option<Arc<str>>>,
    /// The tools that the session was opened with.
    offered: Arc<Mutex<Option<u64>>>,
    folder: Arc<str>,
    has_http: bool,
    ways: Arc<[String]>,
}

pub(super) struct Connection {
    pub(super) live: Live,
    child: Child,
    /// Those that read and write.
    tasks: JoinSet<()>,
}

impl Connection {
    /// Starts the agent, agrees on a version, and opens a session.
    ///
    /// # Cancel safety
    /// Dropping the future kills the agent.
    pub(super) async fn start(
        name: &Arc<str>,
        settings: &Settings,
        offered: Option<&Offered>,
    ) -> Result<Self, SourceError> {
        let deadline = Instant::now() + settings.start_limit;
        let (folder, files) = folders(name, settings)?;
        let options = settings
            .runs_commands
            .then(|| Options { folder: settings.folder.clone(), supervisor: settings.supervisor.clone() });
        let not_started = |source| SourceError::NotStarted { origin: origin(name), source };
        let (child, stdin, stdout) = settings.program.command(&origin(name))?.spawn().map_err(not_started)?;
        let session = Arc::new(Session::new(Arc::clone(name), Terminals::new(options)));
        let agent = permission::Agent {
            name: Arc::clone(name),
            instance: settings.instance,
            kinds: settings.kinds.clone().into(),
        };
        let has_files = files.is_some();
        let handler = Handler::new(agent, Arc::clone(&session), files.map(Arc::new));
        let (peer, writer) = Peer::new(MAX_OPEN, &ACP);
        let reader = Reader::new(stdout, Arc::clone(&peer), Arc::clone(name), Arc::clone(&session.junk));
        let mut tasks = JoinSet::new();
        tasks.spawn(handler.serve(reader, Arc::clone(&peer)));
        let written = Arc::clone(&peer);
        tasks.spawn(async move {
            if let Err(error) = writer.write(stdin).await {
                written.end(End::Failed(error.to_string().into()));
            }
        });
        let live = Live {
            peer,
            session,
            kill: CancellationToken::new(),
            end: watch::Sender::new(None),
            offered: Arc::default(),
            folder: folder.into(),
            has_http: false,
            ways: [].into(),
        };
        let mut connection = Self { live, child, tasks };
        let opened = timeout_at(deadline, connection.open(name, has_files, settings, offered)).await;
        match opened {
            Ok(Ok(())) => Ok(connection),
            Ok(Err(Failure::Said(error))) => Err(connection.with_stderr(error)),
            Ok(Err(Failure::Gone(reason))) => Err(connection.explained(name, reason).await),
            Err(_) => {
                let reason =
                    format!("it did not open a session within {} s", settings.start_limit.as_secs_f64());
                Err(connection.explained(name, reason).await)
            }
        }
    }

    /// Initializes the connection, and opens the session.
    async fn open(
        &mut self,
        name: &str,
        has_files: bool,
        settings: &Settings,
        offered: Option<&Offered>,
    ) -> Result<(), Failure> {
        let answer = self.live.peer.request("initialize", json!({
            "protocolVersion": VERSION,
            "clientCapabilities": {
                "fs": {"readTextFile": has_files, "writeTextFile": has_files},
                "terminal": settings.runs_commands,
                "elicitation": {"form": {}, "url": {}},
            },
            "clientInfo": {"name": "toolbridge", "title": "toolbridge", "version": env!("CARGO_PKG_VERSION")},
        }));
        let answer = answer.await.map_err(|error| self.live.refused(name, "initialize", &error))?;
        let version = &answer["protocolVersion"];
        if version.as_u64() != Some(VERSION) {
            let reason = match version {
                Json::Null => "it names no version of the protocol in its answer to `initialize`".to_owned(),
                version => {
                    format!("it speaks version {} of the protocol, and not version {VERSION}", shown(version))
                }
            };
            return Err(Failure::Said(SourceError::protocol(origin(name), reason)));
        }
        self.live.has_http = answer["agentCapabilities"]["mcpCapabilities"]["http"] == true;
        let methods = answer["authMethods"].as_array().into_iter().flatten().take(MAX_WAYS);
        self.live.ways = methods.filter_map(way).collect();
        self.live.open_session(name, settings, offered).await
    }

    /// Tells prompts why the agent has ended.
    pub(super) fn tell_end(&self, reason: &str) {
        self.live.end.send_replace(Some(reason.into()));
    }

    /// Returns how the process ended, or why its start failed and what it wrote. The agent is killed.
    async fn explained(mut self, name: &str, reason: String) -> SourceError {
        if let Ok(Ok(exit)) = timeout(EXIT_GRACE, self.child.wait()).await {
            return SourceError::Ended { origin: origin(name), exit };
        }
        self.with_stderr(SourceError::protocol(origin(name), reason))
    }

    /// Adds what the agent wrote to its refusal. The agent is killed.
    fn with_stderr(self, error: SourceError) -> SourceError {
        match error {
            SourceError::Protocol { origin, reason, .. } => {
                SourceError::Protocol { origin, reason, stderr: self.child.stderr() }
            }
            error => error,
        }
    }

    /// Resolves when the agent has ended or closed its output, or when the connection to it has failed, with the error.
    /// Meanwhile shows the calls that were held.
    ///
    /// # Cancel safety
    /// Safe.
    pub(super) async fn ended(&mut self, name: &str) -> SourceError {
        let reason = self.end().await;
        SourceError::Protocol { origin: origin(name), reason, stderr: self.child.stderr() }
    }

    async fn end(&mut self) -> String {
        let session = Arc::clone(&self.live.session);
        let (peer, kill) = (Arc::clone(&self.live.peer), self.live.kill.clone());
        let exit = loop {
            let due = session.due();
            tokio::select! {
                exit = self.child.wait() => {
                    let _ = timeout(DRAIN, peer.ended()).await; // a child of it may hold the output open
                    break exit.ok();
                }
                // After a failure the output may still be open.
                _ = peer.ended() => break timeout(EXIT_GRACE, self.child.wait()).await.ok().and_then(Result::ok),
                () = kill.cancelled() => return "it did not end its turn within 5 s after it was told to".to_owned(),
                () = session.held.notified() => {}
                () = async { match due { Some(due) => sleep_until(due).await, None => std::future::pending().await } } => session.release(),
            }
        };
        match (peer.failure().as_deref().map(failed), exit) {
            // Perhaps because nobody reads its output any longer.
            (Some(failure), Some(exit)) => format!("{failure}, then {}", how_it_ended(&exit)),
            (Some(failure), None) => failure,
            (None, Some(exit)) => how_it_ended(&exit),
            (None, None) => "it closed its output".to_owned(),
        }
    }

    /// Ends the agent: closes its input, then sends it `SIGTERM`, then `SIGKILL`. Kills the commands that it runs.
    pub(super) async fn close(mut self) {
        if self.live.kill.is_cancelled() {
            drop(self.child); // kills the group at once
        } else {
            self.live.peer.close();
            let _ = self.child.close().await;
        }
        self.tasks.shutdown().await;
        self.live.session.terminals.close().await;
    }
}

impl Live {
    /// Returns the demand for a sign-in that an error of the agent is, whatever it answers.
    pub(super) fn demand(&self, name: &str, error: &RpcFailure) -> Option<SourceError> {
        (error.code == Some(AUTH_REQUIRED)).then(|| SourceError::SignInRequired {
            origin: origin(name),
            ways: self.ways.to_vec(),
            said: error.said(),
        })
    }

    fn refused(&self, name: &str, method: &str, error: &Unanswered) -> Failure {
        match error {
            Unanswered::Refused(error) => Failure::Said(self.demand(name, error).unwrap_or_else(|| {
                SourceError::protocol(origin(name), format!("it refused {method}: {}", words(error)))
            })),
            Unanswered::Ended | Unanswered::TooMany(_) => {
                let failure = self.peer.failure().as_deref().map(failed);
                let closed = || format!("it closed its output before it answered {method}");
                Failure::Gone(failure.unwrap_or_else(closed))
            }
        }
    }

    /// Opens a session, unless there is one with these tools.
    pub(super) async fn open_session(
        &self,
        name: &str,
        settings: &Settings,
        offered: Option<&Offered>,
    ) -> Result<(), Failure> {
        let key = offered.map(|offered| offered.key);
        let lock = || self.offered.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if !self.session.id().is_empty() && *lock() == key {
            return Ok(());
        }
        let servers: Vec<Json> = offered
            .and_then(|offered| offered.server(self.has_http, settings.attach.as_deref()))
            .into_iter()
            .collect();
        let params = json!({"cwd": &*self.folder, "mcpServers": servers});
        let answer = self.peer.request("session/new", params).await;
        let answer = answer.map_err(|error| self.refused(name, "session/new", &error))?;
        let id = answer["sessionId"].as_str().filter(|id| !id.is_empty());
        let id = id.ok_or_else(|| {
            Failure::Said(SourceError::protocol(origin(name), "it opened a session without an id"))
        })?;
        self.session.set_id(id.to_owned());
        *lock() = key;
        Ok(())
    }
}

/// Returns the folder of an agent, and that of its files.
///
/// # Errors
/// [`SourceError::Setting`].
pub(super) fn folders<'a>(
    name: &str,
    settings: &'a Settings,
) -> Result<(&'a str, Option<Folder>), SourceError> {
    let wrong = |reason: String| SourceError::setting(origin(name), reason);
    let folder = settings.folder.to_str().filter(|_| settings.folder.is_absolute());
    let folder = folder.ok_or_else(|| wrong("its folder is not an absolute path in UTF-8".to_owned()))?;
    let files = match &settings.files {
        Some(path) => Some(Folder::open(path).map_err(|error| {
            wrong(format!("the folder {} of its files cannot be used: {error}", path.display()))
        })?),
        None => None,
    };
    Ok((folder, files))
}

fn failed(reason: &str) -> String {
    format!("the connection to it failed: {}", prefix(reason, MAX_REASON))
}

/// Returns the words of an error of the agent, with its code.
pub(super) fn words(error: &RpcFailure) -> String {
    error.words("it gave no reason", "")
}

/// Describes a way to sign in. A variable of the environment reaches the agent only if a person passes it on.
fn way(method: &Json) -> Option<String> {
    let name = prefix(method["name"].as_str().or_else(|| method["id"].as_str())?, MAX_WAY);
    let variables = method["vars"].as_array().filter(|_| method["type"] == "env_var").into_iter().flatten();
    let variables: Vec<&str> = variables.filter_map(|it| it["name"].as_str()).collect();
    if variables.is_empty() {
        return Some(name.to_owned());
    }
    let variables = variables.join(" and ");
    Some(format!("{name} (pass {} on to the agent)", prefix(&variables, MAX_WAY)))
}

fn shown(version: &Json) -> String {
    prefix(&version.to_string(), 32).to_owned()
}
