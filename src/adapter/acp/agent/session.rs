//! The requests of an editor: its sessions, and the turns in them.

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
    connection::{Abilities, Connection, RpcError},
    open_turn::{Turn, Turns},
    prompt::{TurnEnd, UserPrompt},
    turn::AgentTurn,
};
use crate::{
    Assistant, ContentBlock, ToolError,
    adapter::{
        acp::lines::MAX_LINE,
        json::{head::Head, message},
        lines::{Line, Lines},
        words,
    },
};

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
    prompt: Json,
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
    /// The lines that are no messages, or too long.
    ignored: u64,
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
            ignored: 0,
        }
    }

    /// Answers until the editor sends nothing more.
    pub(super) async fn serve(&mut self, read: impl AsyncRead + Unpin) -> io::Result<()> {
        let mut lines = Lines::new(read, MAX_LINE);
        loop {
            tokio::select! {
                line = lines.next() => match line? {
                    Some(Line::Text(text)) => self.line(&text).await,
                    Some(Line::TooLong { size, start, end }) => {
                        let reason = format!("it has {size} bytes; the limit is {MAX_LINE}");
                        self.unreadable(Head::of_ends(&start, &end), &reason).await;
                    }
                    None => return Ok(()),
                },
                Some(_) = self.turns.join_next() => {}
            }
        }
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

    fn ignore(&mut self) {
        self.ignored += 1;
        if self.ignored.is_power_of_two() {
            tracing::warn!(
                lines = self.ignored,
                "an ACP client writes lines that are not messages; they are ignored"
            );
        }
    }

    async fn line(&mut self, text: &[u8]) {
        if text.trim_ascii().is_empty() {
            return;
        }
        let read = message(text).map_err(|error| error.to_string());
        let read =
            read.and_then(|text| serde_json::from_str::<Json>(&text).map_err(|error| error.to_string()));
        let message = match read {
            Ok(message) => message,
            Err(reason) => return self.unreadable(Head::of(text), &reason).await,
        };
        let id = message.get("id").filter(|id| id.is_string() || id.is_number());
        let is_answer = message.get("result").or_else(|| message.get("error")).is_some();
        match (&message, message["method"].as_str(), id) {
            (Json::Array(parts), ..) => self.batch(parts).await,
            (_, Some(method), Some(id)) if message["jsonrpc"] == "2.0" => {
                self.request(id, method, &message["params"]).await;
            }
            (_, Some(method), None) if message["jsonrpc"] == "2.0" && message.get("id").is_none() => {
                self.notification(method, &message["params"]);
            }
            (_, None, Some(id)) if is_answer => self.connection.answered(id, answer_of(&message)),
            // The editor could not read what it answers.
            (_, None, None) if message.get("error").is_some() => {
                self.connection.answered_without_id(words::of_error(&message["error"]));
            }
            (_, _, Some(id)) => {
                let error = RpcError::new(RpcError::INVALID_REQUEST, "not a request of JSON-RPC 2.0");
                self.connection.answer(id, Err(error)).await;
            }
            _ => self.ignore(),
        }
    }

    /// Refuses a batch, which the protocol does not have. The questions that it answers end.
    async fn batch(&mut self, parts: &[Json]) {
        let reason = "batches are not supported";
        for answer in parts.iter().filter(|part| part.get("method").is_none()) {
            self.connection.answered(&answer["id"], Err(reason.to_owned()));
        }
        let error = RpcError::new(RpcError::INVALID_REQUEST, reason);
        self.connection.answer(&Json::Null, Err(error)).await;
    }

    /// Answers a message that cannot be read, if it is a request with an id: its sender waits.
    async fn unreadable(&mut self, head: Head<'_>, reason: &str) {
        self.ignore();
        match (head.id(), head.has_method()) {
            (None, _) if head.member("id").is_none() => {} // a notification, or no message
            (None, false) => {}
            (id, true) => {
                let text = format!("the message cannot be read: {reason}");
                let error = RpcError::new(RpcError::PARSE, text);
                self.connection.answer(&id.unwrap_or_default(), Err(error)).await;
            }
            (Some(id), false) => {
                self.connection.answered(&id, Err(format!("its answer cannot be read: {reason}")));
            }
        }
    }

    async fn request(&mut self, id: &Json, method: &str, params: &Json) {
        let answer = match method {
            "initialize" => self.initialize(params),
            "session/new" | "session/prompt" if !self.is_open => {
                Err(RpcError::new(RpcError::INVALID_REQUEST, "the connection is not initialized"))
            }
            "session/new" => self.open(params),
            "session/prompt" => match self.prompt(id, params) {
                Ok(()) => return, // answered when the turn is over
                Err(error) => Err(error),
            },
            _ => Err(RpcError::new(RpcError::METHOD_NOT_FOUND, "the method is not offered")),
        };
        self.connection.answer(id, answer).await;
    }

    /// A notification has no answer, and an unknown one no effect.
    fn notification(&mut self, method: &str, params: &Json) {
        let session = match method {
            "session/cancel" => params["sessionId"].as_str().and_then(|id| self.sessions.get(id)),
            "$/cancel_request" => {
                let mut open = self.sessions.values().filter(|session| session.is_busy());
                open.find(|session| session.prompt == params["requestId"])
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
                return Err(RpcError::new(RpcError::INTERNAL, text));
            };
            if let Some(oldest) = self.order.remove(at) {
                self.sessions.remove(&oldest);
            }
        }
        let id: Arc<str> = format!("sess_{}", nanoid::nanoid!(21)).into();
        self.sessions
            .insert(Arc::clone(&id), Session { folder: folder.to_owned(), turn: None, prompt: Json::Null });
        self.order.push_back(Arc::clone(&id));
        Ok(json!({"sessionId": &*id}))
    }

    /// Begins a turn, which answers the request.
    fn prompt(&mut self, id: &Json, params: &Json) -> Result<(), RpcError> {
        let name: Arc<str> =
            params["sessionId"].as_str().ok_or_else(|| invalid("`sessionId` is missing"))?.into();
        let blocks = params["prompt"].as_array().ok_or_else(|| invalid("`prompt` must be a list"))?;
        let Some(session) = self.sessions.get_mut(&name) else {
            return Err(RpcError::new(RpcError::NOT_FOUND, "unknown session"));
        };
        if session.is_busy() {
            return Err(RpcError::new(
                RpcError::INVALID_REQUEST,
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
        session.prompt = id.clone();
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
            turn.connection.answer(&id, answer(&turn, outcome)).await;
        });
        Ok(())
    }
}

/// Returns what an editor answers to a question. Of an error these are its own words.
fn answer_of(message: &Json) -> Result<Json, String> {
    match message.get("result") {
        Some(result) => Ok(result.clone()),
        None => Err(words::of_error(&message["error"])),
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
        Some(Ok(Err(error))) => Err(RpcError::new(RpcError::INTERNAL, error.for_clients().message())),
        _ => Err(RpcError::new(RpcError::INTERNAL, "the agent failed")), // it panicked, and its text stays here
    }
}

fn invalid(text: &str) -> RpcError {
    RpcError::new(RpcError::INVALID_PARAMS, text)
}
