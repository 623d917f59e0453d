//! Handles the requests of an editor: its sessions, and the turns in them.

use std::{
    collections::{HashMap, VecDeque},
    future::Future,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde_json::{Value as Json, json};
use tokio::{
    io::AsyncRead,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    connection::{Abilities, Connection},
    open_turn::{Turn, Turns},
    prompt::{TurnEnd, UserPrompt},
    turn::AgentTurn,
};
use crate::{
    Assistant, ToolError,
    adapter::jsonrpc::{
        error::{self, RpcError},
        id::Id,
        inbox::{Incoming, Request, as_json},
        reader::Reader,
    },
    result::ContentBlock,
};

/// The error of a request for a session that is not known.
const NOT_FOUND: i64 = -32_002;

/// The version of the protocol.
const VERSION: u64 = 1;

/// The most sessions that are remembered. Beyond it the oldest one without an open turn is forgotten.
const MAX_SESSIONS: usize = 64;

/// How long a turn may take to end after it is cancelled, and all of them after the editor has gone.
const CANCEL_GRACE: Duration = Duration::from_secs(5);

/// A session.
struct Session {
    folder: PathBuf,
    /// The last turn.
    turn: Option<Arc<Turn>>,
    /// The id of its request.
    prompt: Option<Id>,
}

impl Session {
    /// Returns whether a prompt is not answered yet. Its turn is over just before it is answered.
    fn is_busy(&self) -> bool {
        self.turn.as_ref().is_some_and(|turn| !turn.over.is_cancelled())
    }
}

/// Answers an editor.
pub(super) struct Service<F> {
    assistant: Assistant,
    run: Arc<F>,
    connection: Arc<Connection>,
    open: Arc<Turns>,
    title: Option<String>,
    sessions: HashMap<Arc<str>, Session>,
    /// The ids of the sessions, oldest first.
    order: VecDeque<Arc<str>>,
    turns: JoinSet<()>,
    is_open: bool,
}

impl<F, Fut> Service<F>
where
    F: Fn(UserPrompt, AgentTurn) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<TurnEnd, ToolError>> + Send + 'static,
{
    pub(super) fn new(
        assistant: Assistant,
        run: Arc<F>,
        connection: Arc<Connection>,
        open: Arc<Turns>,
        title: Option<String>,
    ) -> Self {
        Self {
            assistant,
            run,
            connection,
            open,
            title,
            sessions: HashMap::new(),
            order: VecDeque::new(),
            turns: JoinSet::new(),
            is_open: false,
        }
    }

    /// Answers until the editor sends nothing more.
    pub(super) async fn serve(&mut self, read: impl AsyncRead + Unpin) -> io::Result<()> {
        let peer = Arc::clone(&self.connection.peer);
        let mut reader = Reader::new(read, peer, "an ACP client".into(), Arc::default());
        while let Some(message) = reader.next().await? {
            while self.turns.try_join_next().is_some() {}
            match message {
                Incoming::Request(request) => self.request(request).await,
                Incoming::Notification { method, params } => {
                    self.notification(&method, &as_json(params.as_deref()));
                }
                Incoming::Unnamed(_) => {}
            }
        }
        Ok(())
    }

    /// Ends the turns that are open.
    pub(super) async fn end(mut self) {
        for session in self.sessions.values() {
            if let Some(turn) = &session.turn {
                turn.cancelled.cancel();
            }
        }
        let ended = async { while self.turns.join_next().await.is_some() {} };
        let _ = timeout(CANCEL_GRACE, ended).await; // then they are aborted
    }

    async fn request(&mut self, Request { id, method, params, .. }: Request) {
        let params = &as_json(params.as_deref());
        let answer = match &*method {
            "initialize" => self.initialize(params),
            "session/new" | "session/prompt" if !self.is_open => {
                Err(RpcError::new(error::INVALID_REQUEST, "the connection is not initialized"))
            }
            "session/new" => self.open(params),
            "session/prompt" => match self.prompt(&id, params) {
                Ok(()) => return, // answered when the turn is over
                Err(error) => Err(error),
            },
            _ => Err(RpcError::new(error::METHOD_NOT_FOUND, "the method is not offered")),
        };
        self.connection.peer.answer(&id, answer, None).await;
    }

    /// A notification has no answer, and an unknown one no effect.
    fn notification(&mut self, method: &str, params: &Json) {
        let session = match method {
            "session/cancel" => params["sessionId"].as_str().and_then(|id| self.sessions.get(id)),
            "$/cancel_request" => {
                let mut open = self.sessions.values().filter(|session| session.is_busy());
                open.find(|session| {
                    session.prompt.is_some() && session.prompt == Id::of(&params["requestId"])
                })
            }
            _ => None,
        };
        if let Some(turn) = session.and_then(|session| session.turn.as_ref()) {
            turn.cancelled.cancel();
        }
    }

    fn initialize(&mut self, params: &Json) -> Result<Json, RpcError> {
        if !params["protocolVersion"].is_u64() {
            return Err(invalid("`protocolVersion` is missing"));
        }
        let elicitation = &params["clientCapabilities"]["elicitation"];
        let can = |mode: &str| elicitation[mode].is_object();
        self.connection.set_abilities(Abilities { form: can("form"), url: can("url") });
        self.is_open = true;
        let title = self.title.as_deref().unwrap_or("toolbridge");
        // The version is the answer to every other one: the editor leaves if it does not speak it.
        Ok(json!({
            "protocolVersion": VERSION,
            "agentCapabilities": {
                "loadSession": false,
                "promptCapabilities": {"image": false, "audio": false, "embeddedContext": true},
            },
            "agentInfo": {"name": "toolbridge", "title": title, "version": env!("CARGO_PKG_VERSION")},
            "authMethods": [],
        }))
    }

    fn open(&mut self, params: &Json) -> Result<Json, RpcError> {
        let folder = params["cwd"].as_str().map(Path::new).filter(|it| it.is_absolute());
        let Some(folder) = folder else { return Err(invalid("`cwd` must be an absolute path")) };
        if params["mcpServers"].as_array().is_some_and(|servers| !servers.is_empty()) {
            tracing::warn!("the MCP servers of an ACP client are not used: the tools are those of the room");
        }
        if self.sessions.len() >= MAX_SESSIONS {
            let is_idle = |id: &Arc<str>| self.sessions.get(id).is_none_or(|it| !it.is_busy());
            let Some(at) = self.order.iter().position(is_idle) else {
                let text = format!("busy: {MAX_SESSIONS} sessions have open turns already");
                return Err(RpcError::new(error::INTERNAL, text));
            };
            if let Some(oldest) = self.order.remove(at) {
                self.sessions.remove(&oldest);
            }
        }
        let id: Arc<str> = format!("sess_{}", nanoid::nanoid!(21)).into();
        self.sessions
            .insert(Arc::clone(&id), Session { folder: folder.to_owned(), turn: None, prompt: None });
        self.order.push_back(Arc::clone(&id));
        Ok(json!({"sessionId": &*id}))
    }

    /// Begins a turn, which answers the request.
    fn prompt(&mut self, id: &Id, params: &Json) -> Result<(), RpcError> {
        let name: Arc<str> =
            params["sessionId"].as_str().ok_or_else(|| invalid("`sessionId` is missing"))?.into();
        let blocks = params["prompt"].as_array().ok_or_else(|| invalid("`prompt` must be a list"))?;
        let Some(session) = self.sessions.get_mut(&name) else {
            return Err(RpcError::new(NOT_FOUND, "unknown session"));
        };
        if session.is_busy() {
            return Err(RpcError::new(
                error::INVALID_REQUEST,
                "busy: a prompt of this session is not answered yet",
            ));
        }
        let turn = Arc::new(Turn {
            connection: Arc::clone(&self.connection),
            turns: Arc::clone(&self.open),
            session: name,
            folder: session.folder.clone(),
            cancelled: CancellationToken::new(),
            over: CancellationToken::new(),
        });
        session.turn = Some(Arc::clone(&turn));
        session.prompt = Some(id.clone());
        self.open.begin(&turn);
        let prompt = UserPrompt::new(blocks.iter().map(|it| ContentBlock::from_value(&it.into())).collect());
        let handle = AgentTurn { turn: Arc::clone(&turn), assistant: self.assistant.clone() };
        let (run, id) = (Arc::clone(&self.run), id.clone());
        self.turns.spawn(async move {
            let mut running = JoinSet::new();
            running.spawn(async move { run(prompt, handle).await }); // the author's function may panic
            let late = async {
                turn.cancelled.cancelled().await;
                sleep(CANCEL_GRACE).await;
            };
            let outcome = tokio::select! {
                biased;
                outcome = running.join_next() => outcome,
                () = late => None,
            };
            running.shutdown().await;
            turn.end().await;
            turn.connection.peer.answer(&id, answer(&turn, outcome), None).await;
        });
        Ok(())
    }
}

type Outcome = Option<Result<Result<TurnEnd, ToolError>, tokio::task::JoinError>>;

/// Returns the answer to a prompt.
fn answer(turn: &Turn, outcome: Outcome) -> Result<Json, RpcError> {
    if turn.cancelled.is_cancelled() {
        return Ok(json!({"stopReason": "cancelled"}));
    }
    match outcome {
        Some(Ok(Ok(end))) => Ok(json!({"stopReason": end.as_str()})),
        Some(Ok(Err(error))) => Err(RpcError::new(error::INTERNAL, error.for_clients().message())),
        _ => Err(RpcError::new(error::INTERNAL, "the agent failed")), // it panicked, and its text stays here
    }
}

fn invalid(text: &str) -> RpcError {
    RpcError::new(error::INVALID_PARAMS, text)
}
