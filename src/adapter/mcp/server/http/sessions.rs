//! Keeps the sessions of hosts that open a connection with `initialize`, with a limit.
//!
//! A session lasts until its host deletes it: hosts that find their session gone report an error to the user rather than
//! open another one. Beyond the limit the session ends that has been idle for longest.

use std::{
    collections::{HashMap, HashSet},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use futures_core::Stream;
use rmcp::{
    model::{ClientJsonRpcMessage, JsonRpcMessage, RequestId, ServerJsonRpcMessage},
    transport::streamable_http_server::session::{
        ServerSseMessage, SessionId, SessionManager,
        local::{LocalSessionManager, LocalSessionManagerError},
    },
};

/// The most sessions that are open at once.
const MAX_SESSIONS: usize = 64;

/// The sessions in memory, at most [`MAX_SESSIONS`].
pub(super) struct Sessions {
    local: LocalSessionManager,
    uses: Uses,
}

impl Default for Sessions {
    fn default() -> Self {
        let mut local = LocalSessionManager::default();
        // It would count a session as idle during a call that reports nothing, and while a stream is open.
        local.session_config.keep_alive = None;
        Self { local, uses: Uses::default() }
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum SessionsError {
    #[error("{MAX_SESSIONS} sessions are open already, and each has an open stream")]
    TooMany,
    #[error("a request with this id is open already")]
    OpenId,
    #[error(transparent)]
    Local(#[from] LocalSessionManagerError),
}

impl Sessions {
    /// Ends the session that has been idle for longest if there are too many.
    async fn make_room(&self) -> Result<(), SessionsError> {
        while self.local.sessions.read().await.len() >= MAX_SESSIONS {
            let idle = self.uses.longest_idle().ok_or(SessionsError::TooMany)?;
            tracing::debug!(session = %idle, "an idle MCP session gives way to a new one");
            self.close_session(&idle).await?;
        }
        Ok(())
    }
}

impl SessionManager for Sessions {
    type Error = SessionsError;
    type Transport = <LocalSessionManager as SessionManager>::Transport;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), SessionsError> {
        self.make_room().await?;
        let (id, transport) = self.local.create_session().await?;
        self.uses.begin(&id);
        Ok((id, transport))
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, SessionsError> {
        Ok(self.local.initialize_session(id, message).await?)
    }

    /// Each request of a session asks this first.
    async fn has_session(&self, id: &SessionId) -> Result<bool, SessionsError> {
        self.uses.touch(id);
        Ok(self.local.has_session(id).await?)
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), SessionsError> {
        self.uses.end(id);
        Ok(self.local.close_session(id).await?)
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, SessionsError> {
        // The stream of an earlier one would not end.
        let open = self.uses.open_request(id, &message).ok_or(SessionsError::OpenId)?;
        Ok(open.over(self.local.create_stream(id, message).await?))
    }

    async fn accept_message(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<(), SessionsError> {
        Ok(self.local.accept_message(id, message).await?)
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, SessionsError> {
        let open = self.uses.open(id);
        Ok(open.over(self.local.create_standalone_stream(id).await?))
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, SessionsError> {
        let open = self.uses.open(id);
        Ok(open.over(self.local.resume(id, last_event_id).await?))
    }
}

/// When each session was last used.
#[derive(Clone, Default)]
struct Uses(Arc<Mutex<Known>>);

#[derive(Default)]
struct Known {
    /// Increases with each use.
    clock: u64,
    sessions: HashMap<SessionId, Use>,
}

#[derive(Default)]
struct Use {
    last: u64,
    /// Calls whose response is awaited, and streams for notifications.
    streams: usize,
    /// The requests whose response is awaited.
    requests: HashSet<RequestId>,
}

impl Uses {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, id: &SessionId) {
        self.known().sessions.insert(id.clone(), Use::default());
        self.touch(id);
    }

    fn touch(&self, id: &SessionId) {
        self.change(id, |_| {});
    }

    fn end(&self, id: &SessionId) {
        self.known().sessions.remove(id);
    }

    /// Counts a stream of the session until the returned value is dropped.
    fn open(&self, id: &SessionId) -> OpenStream {
        self.change(id, |it| it.streams += 1);
        OpenStream { uses: self.clone(), id: id.clone(), request: None }
    }

    /// The same for the stream of a request, unless another one with its id is open.
    fn open_request(&self, id: &SessionId, message: &ClientJsonRpcMessage) -> Option<OpenStream> {
        let JsonRpcMessage::Request(message) = message else { return Some(self.open(id)) };
        let mut is_new = true;
        self.change(id, |it| is_new = it.requests.insert(message.id.clone()));
        let mut open = Some(self.open(id)).filter(|_| is_new)?;
        open.request = Some(message.id.clone());
        Some(open)
    }

    /// Changes what is known of a session, which is in use now.
    fn change(&self, id: &SessionId, change: impl FnOnce(&mut Use)) {
        let known = &mut *self.known();
        known.clock += 1;
        if let Some(it) = known.sessions.get_mut(id) {
            it.last = known.clock;
            change(it);
        }
    }

    /// Returns the session without an open stream whose last use is longest ago.
    fn longest_idle(&self) -> Option<SessionId> {
        let known = self.known();
        let idle = known.sessions.iter().filter(|(_, it)| it.streams == 0);
        idle.min_by_key(|(_, it)| it.last).map(|(id, _)| id.clone())
    }
}

/// A stream that keeps its session from being idle.
struct OpenStream {
    uses: Uses,
    id: SessionId,
    /// The request whose response it awaits.
    request: Option<RequestId>,
}

impl OpenStream {
    fn over<S>(self, stream: S) -> Counted<S> {
        Counted { stream: Box::pin(stream), open: self }
    }

    /// Notes a message. After the response the host may use the id again.
    fn note(&mut self, message: &ServerSseMessage) {
        let id = match message.message.as_deref() {
            Some(JsonRpcMessage::Response(response)) => Some(&response.id),
            Some(JsonRpcMessage::Error(error)) => error.id.as_ref(),
            _ => None,
        };
        if id.is_some() && id == self.request.as_ref() {
            self.end_request();
        }
    }

    fn end_request(&mut self) {
        if let Some(request) = self.request.take() {
            self.uses.change(&self.id, |it| _ = it.requests.remove(&request));
        }
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.end_request();
        self.uses.change(&self.id, |it| it.streams = it.streams.saturating_sub(1));
    }
}

struct Counted<S> {
    stream: Pin<Box<S>>,
    open: OpenStream,
}

impl<S: Stream<Item = ServerSseMessage>> Stream for Counted<S> {
    type Item = ServerSseMessage;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<ServerSseMessage>> {
        let next = self.stream.as_mut().poll_next(context);
        if let Poll::Ready(Some(message)) = &next {
            self.open.note(message);
        }
        next
    }
}
