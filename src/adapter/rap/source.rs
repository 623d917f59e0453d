//! The tools of a RAP server, as a source.

mod call;
mod callback;
mod counts;
mod file;
mod inbox;
mod manifest;
mod questions;
mod rate;
mod reports;
mod requests;
mod settings;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde::Deserialize;
use serde_json::json;
use tokio::{sync::mpsc, task::JoinSet, time::timeout};

pub use self::{counts::RapCounts, file::from_file, settings::RapToolset};
use self::{
    inbox::Inbox,
    manifest::{LeftOut, Listed, Manifest},
    requests::{Requests, Server},
};
use super::{listen::Listener, secret::random_text};
use crate::{
    Consent, ErrorCode, Outcome, Progress, Tool, ToolContext, ToolError, ToolName, ToolOptions, ToolSource,
    Value, programs::ProgramsError, tools_file::ToolsFileError,
};

/// The tool that ends a subscription. It is offered while one is active.
const CANCEL_SUBSCRIPTION: &str = "cancel_subscription";

/// The most cancellations that wait to be sent.
const MAX_CANCELS: usize = 1_024;

/// The most cancellations that are sent at once.
const CANCELS_AT_ONCE: usize = 16;

/// The longest time for telling the server that calls, and then the thread, have ended.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// A toolset at an address: the URL before `/.well-known/rap-toolset`.
///
/// The address must be `https`, or `http` of this machine or of a host that [`RapToolset::host`] allows. Redirects are not
/// followed.
pub fn toolset(url: impl Into<String>) -> RapToolset {
    let url = url.into();
    let rest = url.split_once("://").map_or(url.as_str(), |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host); // a password may stand before it
    let name = host.to_owned();
    RapToolset::new(name, url)
}

/// Starts several toolsets of one participant.
///
/// A tool that two of them have is offered by neither, as
/// [the specification](https://infinity.hydro.run/docs/rap/spec/basic/toolsets#loading-toolsets) asks:
/// [`RapTools::left_out`] names it. A [prefix](RapToolset::prefix) tells them apart.
///
/// # Errors
/// One of them cannot be used. The others are closed then.
///
/// # Cancel safety
/// Dropping the future ends all listeners.
pub async fn toolsets(all: impl IntoIterator<Item = RapToolset>) -> Result<Vec<RapTools>, RapError> {
    let mut started: Vec<RapTools> = Vec::new();
    for toolset in all {
        started.push(toolset.await?);
    }
    let (mut names, mut twice) = (BTreeSet::new(), BTreeSet::new());
    for name in started.iter().flat_map(|it| it.shared.state().tools.keys().cloned().collect::<Vec<_>>()) {
        if !names.insert(name.clone()) {
            twice.insert(name);
        }
    }
    for source in &started {
        source.leave_out(&twice);
    }
    Ok(started)
}

async fn start(settings: RapToolset) -> Result<RapTools, RapError> {
    let name: Arc<str> = settings.name.as_str().into();
    let unusable = |reason: String| RapError::Toolset { toolset: settings.name.clone(), reason };
    let bearer = settings.bearer()?;
    let address = settings.callback_address()?;
    let server = Server::new(&settings.url, &settings.hosts, bearer.as_deref());
    let server = server
        .map_err(|error| RapError::Address { toolset: settings.name.clone(), reason: error.to_string() })?;
    let text = server.manifest(settings.start_limit).await.map_err(|error| unusable(error.to_string()))?;
    let manifest = Manifest::read(&text)
        .map_err(|error| unusable(format!("its manifest is refused as a whole: {error}")))?;
    let requests = server
        .with_endpoint(&manifest.endpoint)
        .map_err(|error| unusable(format!("its manifest is refused as a whole: {error}")))?;
    let (tools, left_out) =
        manifest.tools(&name, &settings.policy, CANCEL_SUBSCRIPTION, |tool| settings.offers(tool));
    for (tool, reason) in &left_out {
        tracing::warn!(toolset = &*name, tool, reason, "a tool of a toolset is not offered");
    }

    let (cancels, to_cancel) = mpsc::channel(MAX_CANCELS);
    let io_failed = |error: io::Error| RapError::Io { toolset: settings.name.clone(), source: error };
    let group = random_text().map_err(io_failed)?;
    let inbox = Arc::new(Inbox::new(group, cancels).map_err(io_failed)?);
    let requests = Arc::new(requests);
    let checks = Arc::clone(&requests);
    let check = move |url: &str| checks.check(url).map(|_| ()).map_err(|error| error.to_string());
    let routes = callback::routes(Arc::clone(&inbox), Box::new(check));
    let listener = Listener::start(address, routes).await.map_err(io_failed)?;
    let callback = match &settings.callback_url {
        Some(url) => url.trim_end_matches('/').to_owned(),
        None => format!("http://{}", listener.address()),
    };
    tracing::info!(toolset = &*name, tools = tools.len(), host = requests.host(), "a toolset is read");
    let mut tasks = JoinSet::new();
    tasks.spawn(cancel_all(Arc::clone(&name), Arc::clone(&requests), inbox.group().to_owned(), to_cancel));
    let shared = Arc::new(Shared {
        name,
        state: Mutex::new(Toolset { tools, left_out }),
        requests,
        inbox,
        callback,
        user_id: settings.user_id.clone(),
        cancel_name: settings.policy.in_room(CANCEL_SUBSCRIPTION).parse().ok(),
    });
    Ok(RapTools { shared, listener: Mutex::new(Some(listener)), tasks: Mutex::new(tasks) })
}

/// Has the server cancel calls, each once.
async fn cancel_all(name: Arc<str>, requests: Arc<Requests>, group: String, mut ids: mpsc::Receiver<String>) {
    let mut sending = JoinSet::new();
    while let Some(id) = ids.recv().await {
        while sending.len() >= CANCELS_AT_ONCE {
            sending.join_next().await;
        }
        let (name, requests, group) = (Arc::clone(&name), Arc::clone(&requests), group.clone());
        sending.spawn(async move {
            if let Err(error) = requests.cancel(&group, &id).await {
                tracing::debug!(toolset = &*name, call = id, %error, "a cancellation was not delivered");
            }
        });
        while sending.try_join_next().is_some() {}
    }
    while sending.join_next().await.is_some() {}
}

/// The tools of a toolset. [`toolset`] and [`toolsets`] create it.
///
/// Its manifest is read once. Its tools are called over HTTP, and answer at an address of this process, which ends when the
/// source is closed or dropped. Closing it also tells the server that no further invocation follows.
///
/// Arguments are checked against the tool's schema within the bounds of [`DataSchema`](crate::DataSchema); beyond them
/// they are left to the tool.
pub struct RapTools {
    shared: Arc<Shared>,
    /// Ends with this value.
    listener: Mutex<Option<Listener>>,
    tasks: Mutex<JoinSet<()>>,
}

/// What calls share.
struct Shared {
    name: Arc<str>,
    state: Mutex<Toolset>,
    requests: Arc<Requests>,
    inbox: Arc<Inbox>,
    /// The callback URL without path.
    callback: String,
    user_id: Option<String>,
    /// The name of [`CANCEL_SUBSCRIPTION`] in the room.
    cancel_name: Option<ToolName>,
}

struct Toolset {
    tools: BTreeMap<ToolName, Arc<Listed>>,
    left_out: Vec<LeftOut>,
}

/// The arguments of [`CANCEL_SUBSCRIPTION`].
#[derive(Deserialize)]
struct CancelSubscription {
    tool_call_id: String,
}

impl RapTools {
    /// Returns the tools that are not offered, by the toolset's names for them, and why.
    pub fn left_out(&self) -> Vec<(String, String)> {
        self.shared.state().left_out.clone()
    }

    /// Returns how many messages of tools did what.
    pub fn counts(&self) -> RapCounts {
        self.shared.inbox.counts()
    }

    /// Leaves out tools that another toolset has, too.
    fn leave_out(&self, twice: &BTreeSet<ToolName>) {
        let mut state = self.shared.state();
        for name in twice {
            if let Some(listed) = state.tools.remove(name) {
                let reason = format!("another toolset offers {name}, too; set a prefix for one of them");
                tracing::warn!(toolset = &*self.shared.name, tool = listed.operation, reason, "not offered");
                state.left_out.push((listed.operation.clone(), reason));
            }
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, Toolset> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the tool that ends a subscription.
    fn cancel_tool(&self) -> Option<Tool> {
        let schema = json!({
            "type": "object",
            "properties": {"tool_call_id": {
                "type": "string",
                "description": "The id of the call that has started the subscription",
            }},
            "required": ["tool_call_id"],
            "additionalProperties": false,
        });
        let tool =
            Tool::new(self.cancel_name.clone()?, "Ends a subscription, so that no more of its events follow");
        let options = ToolOptions::default().consent(Consent::Never).idempotent();
        Some(tool.schema(schema).options(options).with_source(&*self.name))
    }

    fn cancel_subscription(&self, arguments: &Value, context: &ToolContext) -> Outcome {
        let CancelSubscription { tool_call_id: id } = arguments.decode()?;
        context.progress(Progress::started());
        if !self.inbox.cancel_subscription(&id) {
            let text = "Error: no subscription with this tool_call_id is active.";
            return Err(ToolError::new(ErrorCode::EXECUTION_ERROR, text));
        }
        Ok(Value::encode("The subscription was cancelled.")?)
    }
}

impl ToolSource for RapTools {
    fn list(&self) -> Vec<Tool> {
        let mut tools: Vec<Tool> = self.shared.state().tools.values().map(|it| it.tool.clone()).collect();
        if self.shared.inbox.has_subscriptions() {
            tools.extend(self.shared.cancel_tool());
        }
        tools
    }

    async fn execute(&self, tool: &ToolName, arguments: Value, context: ToolContext) -> Outcome {
        if self.shared.cancel_name.as_ref() == Some(tool) {
            return self.shared.cancel_subscription(&arguments, &context);
        }
        let listed = self.shared.state().tools.get(tool).cloned();
        let Some(listed) = listed else {
            let text = format!("the toolset {:?} does not offer {tool}", self.shared.name);
            return Err(ToolError::new(ErrorCode::UNKNOWN_TOOL, text));
        };
        call::call(&self.shared, &listed, &arguments, &context).await
    }

    async fn changed(&self) {
        self.shared.inbox.changed.notified().await;
    }

    fn uses_cancel_grace(&self, _tool: &ToolName) -> bool {
        false
    }

    fn validates_arguments(&self) -> bool {
        true
    }

    fn name(&self) -> Option<String> {
        Some(self.shared.name.to_string())
    }

    async fn close(&self) {
        drop(self.listener.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.shared.inbox.close();
        let mut tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        // First the cancellations of calls that have just ended.
        let notices = async {
            while tasks.join_next().await.is_some() {}
            self.shared.requests.close(self.shared.inbox.group()).await
        };
        if let Ok(Err(error)) = timeout(CLOSE_LIMIT, notices).await {
            tracing::debug!(toolset = &*self.shared.name, %error, "the end of the thread was not delivered");
        }
    }
}

impl fmt::Debug for RapTools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RapTools")
            .field("name", &self.shared.name)
            .field("tools", &self.shared.state().tools.len())
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

/// Why a toolset cannot be used. No error has a token, or more of a URL than its host.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RapError {
    /// A `tools.toml` cannot be read.
    #[error(transparent)]
    File(#[from] ProgramsError),
    /// An entry of a `tools.toml` is invalid.
    #[error("toolset {toolset:?}, line {line}: {reason}")]
    Entry {
        /// The toolset's name.
        toolset: String,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// The toolset's URL, or a host that is allowed, cannot be used.
    #[error("toolset {toolset:?}: {reason}")]
    Address {
        /// The toolset's name.
        toolset: String,
        /// Why not.
        reason: String,
    },
    /// The callback address cannot be used.
    #[error("the callback address of toolset {toolset:?} cannot be used: {reason}")]
    Callback {
        /// The toolset's name.
        toolset: String,
        /// Why not.
        reason: String,
    },
    /// The variable of the bearer token is not set.
    #[error("toolset {toolset:?}: the variable {variable} of its bearer token is not set")]
    Variable {
        /// The toolset's name.
        toolset: String,
        /// The variable.
        variable: String,
    },
    /// The manifest cannot be read, or is refused.
    #[error("toolset {toolset:?}: {reason}")]
    Toolset {
        /// The toolset's name.
        toolset: String,
        /// What went wrong.
        reason: String,
    },
    /// The callback address cannot be bound, or the system has no random numbers.
    #[error("toolset {toolset:?} cannot listen for callbacks: {source}")]
    Io {
        /// The toolset's name.
        toolset: String,
        /// The error of the operating system.
        source: io::Error,
    },
}

impl From<ToolsFileError> for RapError {
    fn from(error: ToolsFileError) -> Self {
        ProgramsError::from(error).into()
    }
}
