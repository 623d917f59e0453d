//! Runs one signaling connection: a task that owns its socket.
//!
//! It is a task of its own because it must outlive its owner: a join that is dropped has to leave the room, and the server
//! may accept it afterwards. It also keeps the connection alive while the participant reads nothing.

use std::{future::pending, sync::Arc, time::Duration};

use livekit_protocol::{JoinResponse, ReconnectResponse, signal_request, signal_response};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time,
};

use super::{
    open_link::{GOODBYE, KeepAlive, OpenLink},
    request::{Purpose, Request},
    server_event::ServerEvent,
    websocket::{self, DialFailure, FrameLimits, Unread},
};

/// The time limit of the server's first message once the socket is open. The server has accepted the participant by then.
pub(super) const RESPONSE_LIMIT: Duration = Duration::from_secs(5);
/// The most messages that wait to be sent. A resume sends about a dozen.
const MAX_WAITING: usize = 64;

/// A signaling connection that is open or being opened. Dropping it leaves the room.
pub(super) struct Link {
    requests: mpsc::Sender<signal_request::Message>,
    /// Bounded by `unread`.
    events: mpsc::UnboundedReceiver<ServerEvent>,
    unread: Arc<Unread>,
    end: Option<oneshot::Sender<End>>,
    task: Option<JoinHandle<()>>,
}

/// How a connection is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// With a leave request. A connection that is still being opened first waits for the server's answer.
    Leave,
    /// Without one, so that the server keeps the participant for a while.
    Close,
    /// Without a message: nothing that arrives later may complete a join.
    HangUp,
}

/// The server's first message.
pub(super) enum Accepted {
    Join(Box<JoinResponse>),
    /// A join at the old endpoint, because the server lacks the other one.
    OldJoin(Box<JoinResponse>),
    Resume(Box<ReconnectResponse>),
}

/// The server's answer to a request, when it arrives.
pub(super) type Response = oneshot::Receiver<Result<Accepted, DialFailure>>;

impl Link {
    /// Opens a connection.
    pub(super) fn open(request: Request) -> (Self, Response) {
        let (requests, waiting) = mpsc::channel(MAX_WAITING);
        let (emitter, events) = mpsc::unbounded_channel();
        let (end, ended) = oneshot::channel();
        let (answer, response) = oneshot::channel();
        let unread = Arc::new(Unread::default());
        let ended = Ending { handle: ended, end: None };
        // Boxed: opening a socket takes much more memory than the connection afterwards.
        let task = tokio::spawn(Box::pin(run(request, answer, waiting, emitter, unread.clone(), ended)));
        (Self { requests, events, unread, end: Some(end), task: Some(task) }, response)
    }

    /// Waits for the next event. Returns `None` after the last one.
    ///
    /// # Cancel safety
    /// Dropping the future loses no event.
    pub(super) async fn next(&mut self) -> Option<ServerEvent> {
        let event = self.events.recv().await?;
        self.unread.handle_read();
        Some(event)
    }

    /// Returns the next event if it has arrived.
    pub(super) fn try_next(&mut self) -> Option<ServerEvent> {
        let event = self.events.try_recv().ok()?;
        self.unread.handle_read();
        Some(event)
    }

    /// Returns the unread frames.
    #[cfg(test)]
    pub(super) fn unread(&self) -> Arc<Unread> {
        self.unread.clone()
    }

    /// Queues a message behind the earlier ones. On a lost connection it is dropped.
    pub(super) fn send(&self, message: signal_request::Message) {
        if let Err(mpsc::error::TrySendError::Full(_)) = self.requests.try_send(message) {
            tracing::debug!(limit = MAX_WAITING, "the signaling queue is full; a message was dropped");
        }
    }

    /// Ends the connection. Only the first call has an effect. Returns the task, which ends with it.
    pub(super) fn end(&mut self, how: End) -> Option<JoinHandle<()>> {
        if let Some(end) = self.end.take() {
            // The task may have ended by itself.
            let _ = end.send(how);
        }
        self.task.take()
    }
}

/// The owner's wish to end the connection. A dropped owner leaves.
struct Ending {
    handle: oneshot::Receiver<End>,
    end: Option<End>,
}

impl Ending {
    async fn wait(&mut self) -> End {
        match self.end {
            Some(end) => end,
            None => *self.end.insert((&mut self.handle).await.unwrap_or(End::Leave)),
        }
    }

    /// Waits for an end that does not need an open connection.
    async fn wait_without_connection(&mut self) {
        if self.wait().await == End::Leave {
            pending().await
        }
    }
}

async fn run(
    request: Request,
    answer: oneshot::Sender<Result<Accepted, DialFailure>>,
    mut waiting: mpsc::Receiver<signal_request::Message>,
    events: mpsc::UnboundedSender<ServerEvent>,
    unread: Arc<Unread>,
    mut ended: Ending,
) {
    let opened = tokio::select! {
        // A join that was dropped must not complete because its socket opened at the same moment.
        biased;
        () = ended.wait_without_connection() => return,
        opened = open(&request) => opened,
    };
    let (mut link, accepted) = match opened {
        Ok(opened) => opened,
        Err(failure) => {
            let _ = answer.send(Err(failure));
            return;
        }
    };
    // A caller that no longer waits for the answer has dropped the link, too, and the task leaves.
    let _ = answer.send(Ok(accepted));
    // The owner's wish counts before what the server sends: a hung-up connection must not deliver another
    // event.
    let how = tokio::select! {
        biased;
        how = ended.wait() => how,
        why = link.serve(&mut waiting, &events, &unread) => {
            let _ = events.send(ServerEvent::Lost(why));
            return;
        }
    };
    if how != End::HangUp {
        let _ = time::timeout(GOODBYE, link.close(how == End::Leave)).await;
    }
}

/// Opens a socket, and waits for the server's first message.
async fn open(request: &Request) -> Result<(OpenLink, Accepted), DialFailure> {
    let dial = async |url| {
        websocket::open(&url, &request.token, &request.roots, request.connect_limit, &request.sent).await
    };
    let mut is_old = false;
    let socket = match (dial(request.endpoint()).await, &request.purpose) {
        // Old servers have no `/rtc/v1`. They are asked at the old endpoint, because only a join response
        // tells their version.
        (Err(DialFailure::Status(404, _)), Purpose::Join(_)) => {
            is_old = true;
            dial(request.old_endpoint()).await?
        }
        (socket, _) => socket?,
    };
    let (resumes, keep_alive) = match request.purpose {
        Purpose::Join(_) => (false, KeepAlive::default()),
        Purpose::Resume(_, keep_alive) => (true, keep_alive),
    };
    let mut link = OpenLink::new(socket, FrameLimits::new(resumes), keep_alive);
    let first = time::timeout(RESPONSE_LIMIT, link.first()).await;
    let accepted = match first.unwrap_or(Err(DialFailure::Silent))? {
        signal_response::Message::Join(response) => {
            link.keep_alive = KeepAlive::of(&response);
            let response = Box::new(response);
            if is_old { Accepted::OldJoin(response) } else { Accepted::Join(response) }
        }
        signal_response::Message::Reconnect(response) => Accepted::Resume(Box::new(response)),
        signal_response::Message::Leave(leave) => return Err(DialFailure::Refused(leave)),
        _ => return Err(DialFailure::Unfit("the server's first message is no response")),
    };
    Ok((link, accepted))
}
