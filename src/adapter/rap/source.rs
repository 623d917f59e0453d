//! Offers the tools of a RAP server, as a source.

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
mod retry_manifest;
mod settings;
mod views;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    time::Duration,
};

use serde::Deserialize;
use serde_json::json;
use tokio::{
    sync::{Notify, mpsc},
    task::JoinSet,
    time::timeout,
};

use self::{
    callback::Callbacks,
    inbox::Inbox,
    manifest::{LeftOut, Listed, Manifest},
    requests::{Requests, Server},
    settings::is_exposed,
};
pub use self::{counts::RapCounts, file::from_file, settings::RapToolset};
use super::address::host_in;
use crate::{
    Consent, ErrorCode, Outcome, Progress, Tool, ToolContext, ToolError, ToolName, ToolOptions, ToolSource,
    Value,
    adapter::{
        source::{SourceError, down, policy::Bearer},
        web::{listen::Listener, secret::random_text},
    },
    runtime::source::{left_out_note, renamed_note},
    tools::{NameMap, NameRules, SourceHealth},
};

/// What errors call a toolset.
const KIND: &str = "toolset";

/// The tool that ends a subscription. It is offered while one is active.
const CANCEL_SUBSCRIPTION: &str = "cancel_subscription";

/// The most cancellations that wait to be sent: those of 5 minutes if the server answers none of them. Further ones are not
/// sent, and counted.
const MAX_CANCELS: usize = 1_024;

/// The most cancellations that are sent at once.
const CANCELS_AT_ONCE: usize = 16;

/// The longest time for telling the server that calls have ended, and then as long again for the thread.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// A toolset at an address: the URL before `/.well-known/rap-toolset`.
///
/// The address must be `https`, or `http` of this machine or of a host that [`RapToolset::host`] allows. Redirects are not
/// followed.
pub fn toolset(url: impl Into<String>) -> RapToolset {
    let url = url.into();
    RapToolset::new(host_in(&url).to_owned(), url)
}

/// Starts several toolsets of one participant.
///
/// A tool that two of them have is offered by neither, as
/// [the specification](https://infinity.hydro.run/docs/rap/spec/basic/toolsets#loading-toolsets) asks:
/// [`RapTools::left_out`] names it. A [prefix](RapToolset::prefix) tells them apart.
///
/// # Errors
/// One of them cannot be used, or two have one name. The others are closed then.
///
/// # Cancel safety
/// Dropping the future ends all listeners.
pub async fn toolsets(all: impl IntoIterator<Item = RapToolset>) -> Result<Vec<RapTools>, SourceError> {
    let mut started: Vec<RapTools> = Vec::new();
    for toolset in all {
        // Names of tools and of views are made of it.
        if started.iter().any(|it| *it.shared.name == *toolset.name) {
            let reason = "another toolset has this name; give one of them a name of its own";
            return Err(SourceError::setting(toolset.origin(), reason));
        }
        started.push(toolset.await?);
    }
    let all: Arc<[Weak<Shared>]> = started.iter().map(|it| Arc::downgrade(&it.shared)).collect();
    for source in &started {
        let _ = source.shared.others.set(Arc::clone(&all)); // set once
    }
    leave_out_twice(&all);
    Ok(started)
}

/// Leaves out the tools that two of these toolsets have, by the names in their manifests.
fn leave_out_twice(all: &[Weak<Shared>]) {
    let all: Vec<Arc<Shared>> = all.iter().filter_map(Weak::upgrade).collect();
    let (mut names, mut twice) = (BTreeSet::new(), BTreeSet::new());
    for name in all.iter().flat_map(|it| it.state().names.clone()) {
        if !names.insert(name.clone()) {
            twice.insert(name);
        }
    }
    for toolset in all {
        toolset.leave_out(&twice);
    }
}

async fn start(settings: RapToolset) -> Result<RapTools, SourceError> {
    let name: Arc<str> = settings.name.as_str().into();
    let origin = settings.origin();
    let wrong = |reason: String| SourceError::setting(&*origin, reason);
    let bearer = settings.bearer.as_ref().map(Bearer::token).transpose().map_err(wrong)?;
    let address = settings.callback_address()?;
    let server = Server::new(&settings.url, &settings.hosts, bearer.as_deref());
    let server = server.map_err(|error| wrong(error.to_string()))?;
    settings.check_callback(&server).await?;
    let manifest = match server.manifest(settings.start_limit).await {
        Ok(text) => Ok(text),
        Err(error) if error.may_pass() => Err(error),
        Err(error) => return Err(SourceError::protocol(origin, error.to_string())),
    };

    let (cancels, to_cancel) = mpsc::channel(MAX_CANCELS);
    let io_failed = |error: io::Error| {
        let source = io::Error::new(error.kind(), format!("it cannot listen for callbacks: {error}"));
        SourceError::NotStarted { origin: origin.clone(), source }
    };
    let group = random_text().map_err(io_failed)?;
    let inbox = Arc::new(Inbox::new(group, cancels).map_err(io_failed)?);
    let requests = Arc::<OnceLock<Requests>>::default();
    let checks = Arc::clone(&requests);
    let check = move |url: &str| match checks.get() {
        Some(requests) => requests.check(url).map(|_| ()).map_err(|error| error.to_string()),
        None => Err("the toolset is not read yet".to_owned()),
    };
    let callbacks = Arc::new(Callbacks::new(Arc::clone(&inbox), Box::new(check)));
    let answer = move |request| Arc::clone(&callbacks).answer(request);
    let listener = Listener::start(address, answer).await.map_err(io_failed)?;
    let callback = match &settings.callback_url {
        Some(url) => url.trim_end_matches('/').to_owned(),
        None => format!("http://{}", listener.address()),
    };
    if is_exposed(&callback) {
        let advice =
            "set a `callback_url` with HTTPS, since others on the network can read the secrets of its calls";
        tracing::warn!(toolset = &*name, advice, "callbacks come over plain HTTP");
    }
    let mut tasks = JoinSet::new();
    tasks.spawn(cancel_all(Arc::clone(&name), Arc::clone(&requests), Arc::clone(&inbox), to_cancel));
    let limit = settings.start_limit;
    let shared = Arc::new(Shared {
        name,
        state: Mutex::new(Toolset::default()),
        requests,
        inbox,
        callback,
        user_id: settings.user_id.clone(),
        cancel_name: cancel_name(&settings),
        settings,
        others: OnceLock::new(),
        changed: Notify::new(),
    });
    let mut reading = JoinSet::new();
    match manifest {
        Ok(text) => {
            shared.adopt(&server, &text).map_err(|reason| SourceError::protocol(origin, reason))?;
        }
        Err(error) => {
            shared.set_health(down(&error.to_string()));
            reading.spawn(retry_manifest::read(Arc::clone(&shared), server, limit, error));
        }
    }
    Ok(RapTools {
        shared,
        listener: Mutex::new(Some(listener)),
        tasks: Mutex::new(tasks),
        reading: Mutex::new(reading),
    })
}

/// Returns the name of the tool that ends subscriptions. It begins with that of the toolset, because each toolset with a
/// subscription has such a tool.
fn cancel_name(settings: &RapToolset) -> Option<ToolName> {
    let first = settings.policy.prefix.as_deref().unwrap_or(&settings.name);
    let name = format!("{}.{CANCEL_SUBSCRIPTION}", first.replace('.', "_"));
    NameMap::new(NameRules::Tool, [&*name]).converted(&name)?.parse().ok()
}

/// Has the server cancel calls, each once.
async fn cancel_all(
    name: Arc<str>,
    requests: Arc<OnceLock<Requests>>,
    inbox: Arc<Inbox>,
    mut ids: mpsc::Receiver<String>,
) {
    let mut sending = JoinSet::new();
    while let Some(id) = ids.recv().await {
        while sending.len() >= CANCELS_AT_ONCE {
            sending.join_next().await;
        }
        let (name, requests, inbox) = (Arc::clone(&name), Arc::clone(&requests), Arc::clone(&inbox));
        sending.spawn(async move {
            // A call was made, so the endpoint is known.
            let Some(requests) = requests.get() else { return };
            if let Err(error) = requests.cancel(inbox.group(), &id).await {
                inbox.count_not_cancelled();
                tracing::debug!(toolset = &*name, call = id, %error, "a cancellation was not delivered");
            }
        });
        while sending.try_join_next().is_some() {}
    }
    while sending.join_next().await.is_some() {}
}

/// The tools of a toolset. [`toolset`] and [`toolsets`] create it.
///
/// Its manifest is read once. If the server is not reached, or fails (HTTP 500 and above), it is read again after 1, 2, 4 …
/// 60 s; until then the source is [down](SourceHealth::Down), and offers nothing. Its tools are called over HTTP, and answer at an address of this process, which ends when the
/// source is closed or dropped. Closing it also tells the server that no further invocation follows.
///
/// Arguments are checked against the tool's schema within the bounds of [`DataSchema`](crate::tools::DataSchema); beyond them
/// they are left to the tool.
pub struct RapTools {
    shared: Arc<Shared>,
    /// Ends with this value.
    listener: Mutex<Option<Listener>>,
    tasks: Mutex<JoinSet<()>>,
    /// Reads a manifest that was not there at start.
    reading: Mutex<JoinSet<()>>,
}

/// What calls share.
struct Shared {
    name: Arc<str>,
    state: Mutex<Toolset>,
    /// Set once the manifest is read.
    requests: Arc<OnceLock<Requests>>,
    inbox: Arc<Inbox>,
    settings: RapToolset,
    /// The toolsets that were started with this one, itself included.
    others: OnceLock<Arc<[Weak<Self>]>>,
    /// Notified when the tools or the health change.
    changed: Notify,
    /// The callback URL without path.
    callback: String,
    user_id: Option<String>,
    /// The name of [`CANCEL_SUBSCRIPTION`] in the room.
    cancel_name: Option<ToolName>,
}

#[derive(Default)]
struct Toolset {
    health: SourceHealth,
    tools: BTreeMap<ToolName, Arc<Listed>>,
    /// The tools of the manifest, those included that another toolset has, too.
    names: Vec<ToolName>,
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
}

impl Shared {
    /// Offers the tools of a manifest.
    fn adopt(&self, server: &Server, text: &str) -> Result<(), String> {
        let refused = |error: &dyn fmt::Display| format!("its manifest is refused as a whole: {error}");
        let manifest = Manifest::read(text).map_err(|error| refused(&error))?;
        let requests = server.clone().with_endpoint(&manifest.endpoint).map_err(|error| refused(&error))?;
        let settings = &self.settings;
        let (tools, left_out) = manifest.tools(&self.name, &settings.policy, self.cancel_name.as_ref());
        for (tool, reason) in &left_out {
            tracing::warn!(toolset = &*self.name, tool, reason, "a tool of a toolset is not offered");
        }
        tracing::info!(
            toolset = &*self.name,
            tools = tools.len(),
            host = requests.host(),
            "a toolset is read"
        );
        let _ = self.requests.set(requests); // a manifest is read once
        let names = tools.keys().cloned().collect();
        *self.state() = Toolset { health: SourceHealth::Up, tools, names, left_out };
        if let Some(others) = self.others.get() {
            leave_out_twice(others);
        }
        self.changed.notify_one();
        Ok(())
    }

    fn set_health(&self, health: SourceHealth) {
        self.state().health = health;
        self.changed.notify_one();
    }

    /// Leaves out tools that another toolset has, too.
    fn leave_out(&self, twice: &BTreeSet<ToolName>) {
        let mut state = self.state();
        for name in twice {
            if let Some(listed) = state.tools.remove(name) {
                let reason = format!("another toolset offers {name}, too; set a prefix for one of them");
                tracing::warn!(toolset = &*self.name, tool = listed.operation, reason, "not offered");
                state.left_out.push((listed.operation.clone(), reason));
                self.changed.notify_one();
            }
        }
    }

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

    fn notes(&self) -> Vec<String> {
        let state = self.shared.state();
        let left_out = state.left_out.iter();
        let left_out = left_out.map(|(tool, reason)| left_out_note(tool, reason));
        let in_room = |tool: &str| self.shared.settings.policy.in_room(tool);
        let renamed = state.tools.iter().filter(|(name, listed)| name.as_str() != in_room(&listed.operation));
        let renamed = renamed.map(|(name, listed)| renamed_note(&listed.operation, name));
        left_out.chain(renamed).collect()
    }

    async fn execute(&self, tool: &ToolName, arguments: Value, context: ToolContext) -> Outcome {
        if self.shared.cancel_name.as_ref() == Some(tool) {
            return self.shared.cancel_subscription(&arguments, &context);
        }
        let listed = self.shared.state().tools.get(tool).cloned();
        let Some(listed) = listed else {
            let health = self.health();
            let text = format!("the toolset {:?} does not offer {tool}: it is {health}", self.shared.name);
            return Err(ToolError::new(ErrorCode::UNKNOWN_TOOL, text));
        };
        let Some(requests) = self.shared.requests.get() else {
            return Err(ToolError::new(ErrorCode::UNKNOWN_TOOL, "the toolset is not read yet"));
        };
        call::call(&self.shared, requests, &listed, &arguments, &context).await
    }

    async fn changed(&self) {
        tokio::select! {
            () = self.shared.inbox.changed.notified() => {}
            () = self.shared.changed.notified() => {}
        }
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

    fn health(&self) -> SourceHealth {
        self.shared.state().health.clone()
    }

    async fn close(&self) {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner).abort_all();
        drop(self.listener.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.shared.inbox.close();
        let mut tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        // First the cancellations of calls that have just ended. A server that is slow with them still gets the rest.
        let _ = timeout(CLOSE_LIMIT, async { while tasks.join_next().await.is_some() {} }).await;
        let Some(requests) = self.shared.requests.get() else { return };
        if let Ok(Err(error)) = timeout(CLOSE_LIMIT, requests.close(self.shared.inbox.group())).await {
            tracing::debug!(toolset = &*self.shared.name, %error, "the end of the thread was not delivered");
        }
    }
}

impl fmt::Debug for RapTools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RapTools")
            .field("name", &self.shared.name)
            .field("health", &self.shared.state().health)
            .field("tools", &self.shared.state().tools.len())
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn cancellation_that_does_not_reach_the_server_is_counted() {
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let server = Server::new(&format!("http://{closed}"), &[], None).unwrap();
        let requests = server.with_endpoint(&format!("http://{closed}/invoke")).unwrap();
        let (cancels, to_cancel) = mpsc::channel(2);
        let inbox = Arc::new(Inbox::new("g".into(), cancels).unwrap());
        for id in ["a", "b", "c"] {
            inbox.cancel(id);
        }
        assert_eq!(inbox.counts().not_cancelled, 1, "two wait");
        inbox.close();
        let requests = Arc::new(OnceLock::from(requests));
        cancel_all("set".into(), requests, Arc::clone(&inbox), to_cancel).await;
        assert_eq!(inbox.counts().not_cancelled, 3);
    }
}
