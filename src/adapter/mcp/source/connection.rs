//! One connection to a server: started, asked for its tools, and ended.

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rmcp::{
    RoleClient,
    model::{
        ClientRequest, ListToolsRequest, PaginatedRequestParams, ProtocolVersion, ServerResult,
        SubscriptionFilter,
    },
    service::{
        ClientInitializeError, ClientLifecycleMode, ClientServiceExt as _, Peer, PeerRequestOptions,
        RunningService, ServiceError,
    },
    transport::streamable_http_client::{StreamableHttpClientTransport, StreamableHttpClientTransportConfig},
};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{
    Listed, McpError, Output, Shared,
    address::Address,
    definition::Definition,
    elicitation::Handler,
    http::HttpClient,
    requests::{Answer, HEADER_KEY, Handover, Requests, words_of},
    settings::Place,
    stdio::StdioTransport,
};
use crate::{
    ToolName,
    adapter::{
        json,
        source::{Pauses, policy::Bearer},
        words,
    },
    process::{Child, Exit},
    runtime::source::{left_out_note, renamed_note},
    tools::{DataSchema, NameMap, NameRules},
};

/// The most pages of a tool list.
const MAX_PAGES: usize = 64;

/// The most tools of a server.
const MAX_TOOLS: usize = 1_024;

/// The longest time for one page of the list.
const LIST_LIMIT: Duration = Duration::from_secs(30);

/// How long a server that has closed its output may take to end, so that its status can be reported.
const EXIT_GRACE: Duration = Duration::from_millis(500);

/// How long how a server has ended is awaited.
const END_GRACE: Duration = Duration::from_secs(2);

/// The most calls that are being sent at once.
const MAX_POSTS: usize = 64;

/// How long the end of `rmcp`'s task is awaited.
const SERVICE_GRACE: Duration = Duration::from_millis(500);

/// The largest definition of a tool, in bytes.
const MAX_DEFINITION: usize = 256 << 10;

/// The largest list of tools, in bytes.
const MAX_LIST: usize = 16 << 20;

/// The most versions that an error names.
const MAX_NAMED: usize = 8;

/// The protocol versions, the preferred one first.
const VERSIONS: [ProtocolVersion; 3] =
    [ProtocolVersion::V_2026_07_28, ProtocolVersion::V_2025_11_25, ProtocolVersion::V_2025_06_18];

/// The tools of a server, by their names in the room.
#[derive(Default)]
pub(super) struct Toolset {
    pub(super) tools: BTreeMap<ToolName, Arc<Listed>>,
    /// What a person should know about tools that are left out, or have another name.
    pub(super) notes: Vec<String>,
}

/// What calls need of a connection.
#[derive(Clone)]
pub(super) struct Live {
    pub(super) peer: Peer<RoleClient>,
    pub(super) requests: Arc<Requests>,
}

impl Live {
    /// Whether the protocol is of version 2026-07-28 or later: its results name their types, and changes of the list are
    /// announced to those that ask for it.
    pub(super) fn has_result_types(&self) -> bool {
        self.peer.peer_info().is_some_and(|info| info.protocol_version >= ProtocolVersion::V_2026_07_28)
    }
}

pub(super) struct Connection {
    pub(super) live: Live,
    service: RunningService<RoleClient, Handler>,
    child: Option<Child>,
    tasks: JoinSet<()>,
}

impl Connection {
    /// Starts the server, and agrees on a version of the protocol before the deadline.
    ///
    /// # Cancel safety
    /// Dropping the future kills the server.
    pub(super) async fn start(shared: &Arc<Shared>, deadline: Instant) -> Result<Self, McpError> {
        match &shared.settings.place {
            Place::Command(command) => Self::start_child(shared, command, deadline).await,
            Place::Url(url) => Self::connect(shared, url, deadline).await,
        }
    }

    async fn connect(shared: &Arc<Shared>, url: &str, deadline: Instant) -> Result<Self, McpError> {
        let fail = |error: &dyn Error| McpError::protocol(&shared.name, error.to_string());
        let address = Address::read(url).map_err(|error| McpError::Address {
            server: shared.name.to_string(),
            reason: error.to_string(),
        })?;
        let requests = Arc::new(Requests::default());
        let bearer = shared.settings.bearer.as_ref().map(Bearer::token).transpose().map_err(|variable| {
            let reason = format!("the variable {variable} of its bearer token is not set");
            McpError::protocol(&shared.name, reason)
        })?;
        let client =
            HttpClient::new(Arc::clone(&shared.name), &address, bearer.as_deref(), Arc::clone(&requests));
        let client = client.map_err(|error| fail(&error))?;
        let mut config = StreamableHttpClientTransportConfig::with_uri(address.url());
        // A new session is a new start, so that no call is sent twice.
        config.reinit_on_expired_session = false;
        config.max_concurrent_requests = MAX_POSTS;
        let transport = StreamableHttpClientTransport::with_client(client, config);
        let serving = Handler::new(shared, &requests).serve_with_lifecycle(transport, lifecycle());
        let failed = Arc::clone(&requests);
        match timeout_at(deadline, serving).await {
            Ok(Ok(service)) => {
                let live = Live { peer: service.peer().clone(), requests };
                Ok(Self { live, service, child: None, tasks: JoinSet::new() })
            }
            Ok(Err(error)) => {
                let reason = failed.failure().unwrap_or_else(|| plain(&error));
                Err(McpError::protocol(&shared.name, reason))
            }
            Err(_) if failed.is_within_event.load(Ordering::Relaxed) => {
                let reason = "its event stream stopped within an event, which a blank line must end";
                Err(McpError::protocol(&shared.name, format!("{}: {reason}", no_answer(shared))))
            }
            Err(_) => Err(McpError::protocol(&shared.name, no_answer(shared))),
        }
    }

    async fn start_child(
        shared: &Arc<Shared>,
        command: &crate::process::Command,
        deadline: Instant,
    ) -> Result<Self, McpError> {
        let server = &shared.name;
        let not_started = |source| McpError::NotStarted { server: server.to_string(), source };
        let (mut child, stdin, stdout) = command.spawn().map_err(not_started)?;
        let requests = Arc::new(Requests::default());
        let (transport, writing) =
            StdioTransport::new(Arc::clone(server), stdout, stdin, Arc::clone(&requests));
        let mut tasks = JoinSet::new();
        tasks.spawn(writing);
        let handler = Handler::new(shared, &requests);
        let known = Arc::clone(&requests);
        let serving = timeout_at(deadline, handler.serve_with_lifecycle(transport, lifecycle())).await;
        let failure = match serving {
            Ok(Ok(service)) => {
                let live = Live { peer: service.peer().clone(), requests };
                return Ok(Self { live, service, child: Some(child), tasks });
            }
            Ok(Err(error)) => known.failure().unwrap_or_else(|| plain(&error)),
            Err(_) => no_answer(shared),
        };
        // A server whose input is closed now ends because of that.
        if known.has_ended()
            && let Ok(Ok(exit)) = timeout(EXIT_GRACE, child.wait()).await
        {
            return Err(McpError::Ended { server: server.to_string(), exit });
        }
        let stderr = child.stderr();
        Err(McpError::Protocol { server: server.to_string(), reason: failure, stderr })
    }

    /// Asks for changes of the tool list, in versions of the protocol that announce them only then.
    pub(super) async fn subscribe(&mut self, shared: &Arc<Shared>) {
        if !self.live.has_result_types() {
            return;
        }
        let (peer, shared) = (self.live.peer.clone(), Arc::clone(shared));
        self.tasks.spawn(async move {
            let mut pauses = Pauses::new();
            loop {
                let filter = SubscriptionFilter::builder().tools_list_changed().build();
                let start = Instant::now();
                match peer.listen(filter).await {
                    Ok(mut changes) => {
                        while let Ok(Some(_)) = changes.next().await {
                            shared.list_changed.notify_one();
                        }
                    }
                    // A server without such changes refuses.
                    Err(ServiceError::McpError(_)) => return,
                    Err(_) => {}
                }
                sleep(pauses.after(start.elapsed())).await;
                shared.list_changed.notify_one(); // changes may have been missed
            }
        });
    }

    /// Resolves when the server has ended or is no longer reachable, with the reason. Its calls have ended then.
    ///
    /// # Cancel safety
    /// Safe.
    pub(super) async fn ended(&mut self) -> String {
        match self.exit().await {
            Some(exit) => how_it_ended(&exit),
            None => self.end_without_exit().to_owned(),
        }
    }

    /// Resolves when the server has ended before it could be used, with the error.
    ///
    /// # Cancel safety
    /// Safe.
    pub(super) async fn failed(&mut self, server: &str) -> McpError {
        if let Some(exit) = self.exit().await {
            return McpError::Ended { server: server.to_owned(), exit };
        }
        let reason = self.live.requests.failure().unwrap_or_else(|| self.end_without_exit().to_owned());
        let stderr = self.child.as_ref().map(Child::stderr).unwrap_or_default();
        McpError::Protocol { server: server.to_owned(), reason, stderr }
    }

    fn end_without_exit(&self) -> &'static str {
        if self.child.is_some() { "it closed its output" } else { "the connection ended" }
    }

    /// Resolves when the server has ended or is no longer reachable, with its status if there is one.
    ///
    /// # Cancel safety
    /// Safe.
    async fn exit(&mut self) -> Option<Exit> {
        let Some(child) = &mut self.child else {
            self.live.requests.disconnected().await;
            return None;
        };
        tokio::select! {
            exit = child.wait() => {
                // What it wrote before it ended is still read.
                let _ = timeout(EXIT_GRACE, self.live.requests.disconnected()).await;
                exit.ok()
            }
            () = self.live.requests.disconnected() => timeout(EXIT_GRACE, child.wait()).await.ok().and_then(Result::ok),
        }
    }

    /// Ends the server.
    pub(super) async fn close(mut self) {
        let _ = self.service.close_with_timeout(SERVICE_GRACE).await;
        self.live.requests.end("the server was closed");
        if let Some(child) = self.child.take() {
            let _ = child.close().await;
        }
        self.tasks.shutdown().await;
    }
}

/// Returns the tools of the server, which lists all of them before the deadline.
pub(super) async fn list(shared: &Shared, live: &Live, deadline: Instant) -> Result<Toolset, McpError> {
    match timeout_at(deadline, pages(shared, live)).await {
        Ok(definitions) => Ok(toolset(shared, &definitions?)),
        Err(_) => {
            let limit = shared.settings.start_limit.as_secs();
            Err(McpError::protocol(&shared.name, format!("it did not list all its tools within {limit} s")))
        }
    }
}

async fn pages(shared: &Shared, live: &Live) -> Result<Vec<Box<RawValue>>, McpError> {
    let mut definitions = Vec::new();
    let (mut cursor, mut size) = (None, 0);
    for number in 1..=MAX_PAGES {
        let page = page(shared, live, cursor.take()).await?;
        size += page.tools.iter().map(|text| text.get().len()).sum::<usize>();
        if size > MAX_LIST {
            let reason = format!("its tool list has more than {MAX_LIST} bytes");
            return Err(McpError::protocol(&shared.name, reason));
        }
        definitions.extend(page.tools);
        match page.next_cursor.filter(|next| !next.is_empty()) {
            Some(next) if definitions.len() < MAX_TOOLS && number < MAX_PAGES => cursor = Some(next),
            next => {
                if next.is_some() || definitions.len() > MAX_TOOLS {
                    let (server, tools) = (&*shared.name, definitions.len().min(MAX_TOOLS));
                    tracing::warn!(
                        server,
                        tools,
                        pages = number,
                        "an MCP server lists more tools than are read"
                    );
                }
                break;
            }
        }
    }
    definitions.truncate(MAX_TOOLS);
    Ok(definitions)
}

async fn page(shared: &Shared, live: &Live, cursor: Option<String>) -> Result<Page, McpError> {
    let mut request = ListToolsRequest::with_param(PaginatedRequestParams::default().with_cursor(cursor));
    let (handover, answered) = Handover::new(None);
    request.extensions.insert(handover);
    let request = ClientRequest::ListToolsRequest(request);
    let fail = |reason: String| McpError::protocol(&shared.name, reason);
    let sent = live.peer.send_cancellable_request(request, PeerRequestOptions::no_options()).await;
    let Ok(handle) = sent else { return Err(ended(shared).await) };
    let answer = timeout(LIST_LIMIT, answered).await;
    live.requests.forget(&handle.id);
    match answer {
        Ok(Ok(Answer::Result(text))) => {
            let unreadable = |error: &dyn Error| fail(format!("its tool list cannot be read: {error}"));
            let text = json::checked(&text).map_err(|error| unreadable(&error))?;
            let mut page: Page = serde_json::from_str(&text).map_err(|error| unreadable(&error))?;
            if text.contains(HEADER_KEY) {
                page.refuse_wrong_headers(timeout(LIST_LIMIT, handle.await_response()).await.ok());
            }
            Ok(page)
        }
        Ok(Ok(Answer::Error(error))) => Err(fail(format!("it lists no tools: {}", words_of(&error)))),
        Ok(Ok(Answer::Unreadable(reason))) => Err(fail(format!("its tool list cannot be read: {reason}"))),
        Ok(Ok(Answer::TooLarge(size))) => Err(fail(format!("its tool list has {size} bytes"))),
        Ok(Ok(Answer::Ended(reason))) => Err(fail(format!("it lists no tools: {reason}"))),
        Ok(_) => Err(ended(shared).await),
        Err(_) => Err(fail(format!("it did not list its tools within {} s", LIST_LIMIT.as_secs()))),
    }
}

/// Returns the error of a server that has ended. Whoever watches the server has had the time to say how, then.
async fn ended(shared: &Shared) -> McpError {
    sleep(END_GRACE).await;
    McpError::protocol(&shared.name, "it ended")
}

/// Describes why no connection was made. `rmcp`'s own texts name its types.
fn plain(error: &ClientInitializeError) -> String {
    match error {
        ClientInitializeError::ConnectionClosed(_) => {
            "it closed the connection before it answered".to_owned()
        }
        ClientInitializeError::TransportError { .. } => "no message could be sent to it".to_owned(),
        ClientInitializeError::JsonRpcError(error) => {
            let said = words::of_rpc(&error.message, error.data.as_ref());
            let said = said.unwrap_or_else(|| "it gave no reason".to_owned());
            format!("it refuses the connection: {said} ({})", error.code.0)
        }
        ClientInitializeError::NoCompatibleProtocolVersion { server_supported, .. } => {
            let versions: Vec<_> =
                server_supported.iter().take(MAX_NAMED).map(|it| words::line(it.as_str())).collect();
            match versions.is_empty() {
                true => "it names no version of the protocol that it speaks".to_owned(),
                false => format!(
                    "it speaks no version of the protocol that toolbridge speaks, but {}",
                    versions.join(", ")
                ),
            }
        }
        // Ids that were not asked do not reach `rmcp`, so this is the answer to the question for versions, which `rmcp` gives
        // up after 10 s: it came between that and the next request.
        ClientInitializeError::ConflictInitResponseId(..)
        | ClientInitializeError::UncorrelatedErrorResponse { .. } => {
            "it took 10 s for its first answer, which is too slow".to_owned()
        }
        ClientInitializeError::LegacyFallbackFailed { fallback, .. } => plain(fallback),
        _ => "its answer to `initialize` is not one".to_owned(),
    }
}

fn lifecycle() -> ClientLifecycleMode {
    ClientLifecycleMode::Auto {
        preferred_versions: VERSIONS.to_vec(),
        legacy_version: Some(ProtocolVersion::LATEST_WITH_INITIALIZE),
    }
}

fn no_answer(shared: &Shared) -> String {
    format!("it did not answer within {} s", shared.settings.start_limit.as_secs())
}

pub(super) fn how_it_ended(exit: &Exit) -> String {
    format!("it ended ({})", exit.status())
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Page {
    tools: Vec<Box<RawValue>>,
    next_cursor: Option<String>,
}

impl Page {
    /// Leaves out the tools whose annotations for HTTP headers `rmcp` has refused: those that it has not kept.
    fn refuse_wrong_headers(&mut self, kept: Option<Result<ServerResult, ServiceError>>) {
        let Some(Ok(ServerResult::ListToolsResult(kept))) = kept else { return };
        let kept: BTreeSet<&str> = kept.tools.iter().map(|tool| &*tool.name).collect();
        self.tools.retain(|text| {
            let is_annotated = text.get().contains(HEADER_KEY);
            let name = Definition::read(text).map(|it| it.name).unwrap_or_default();
            !is_annotated || kept.contains(&*name)
        });
    }
}

/// Returns the tools that can be offered. Those that cannot are logged.
fn toolset(shared: &Shared, definitions: &[Box<RawValue>]) -> Toolset {
    let settings = &shared.settings;
    let mut notes = Vec::new();
    let mut leave_out = |tool: &str, reason: &str| {
        tracing::warn!(server = &*shared.name, tool, reason, "a tool of an MCP server is not offered");
        let tool = if tool.is_empty() { "a tool" } else { tool };
        notes.push(left_out_note(tool, reason));
    };
    let mut read = BTreeMap::new();
    for text in definitions {
        if text.get().len() > MAX_DEFINITION {
            leave_out(
                "",
                &format!("its definition has {} bytes; the limit is {MAX_DEFINITION}", text.get().len()),
            );
            continue;
        }
        match Definition::read(text) {
            Ok(definition) if !settings.policy.offers(&definition.name) => {}
            Ok(definition) => match definition.refusal() {
                None => _ = read.entry(definition.name.clone()).or_insert(definition),
                Some(reason) => leave_out(&definition.name, reason),
            },
            Err(reason) => leave_out("", &reason),
        }
    }
    let in_room = |name: &str| settings.policy.in_room(name);
    let names = NameMap::new(NameRules::Tool, read.keys().map(|name| in_room(name)));
    let tools = read.into_iter().filter_map(|(foreign, definition)| {
        let name: ToolName = names.converted(&in_room(&foreign))?.parse().ok()?;
        if name.as_str() != in_room(&foreign) {
            notes.push(renamed_note(&foreign, &name));
        }
        let tool = definition.tool(name.clone(), &shared.name, &settings.policy);
        let output = match definition.output_schema.as_ref().map(DataSchema::compile) {
            None => Output::None,
            Some(Ok(schema)) => Output::Checked(schema),
            Some(Err(error)) => Output::Unusable(error.to_string(), AtomicBool::new(false)),
        };
        Some((name, Arc::new(Listed { tool, foreign, output })))
    });
    let tools = tools.collect();
    Toolset { tools, notes }
}
