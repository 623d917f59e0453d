//! The signaling connection: LiveKit's signaling client, reduced to the messages that a data-only participant needs.

use std::{collections::VecDeque, io, pin::pin, sync::Arc, time::Duration};

use livekit_protocol::{
    DisconnectReason, JoinResponse, LeaveRequest, SessionDescription, SignalTarget, SyncState,
    TrickleRequest, leave_request, signal_request,
};
use livekit_signaling::{
    CLIENT_PROTOCOL_DEFAULT, JOIN_RESPONSE_TIMEOUT, SignalClient, SignalError, SignalEvent, SignalEvents,
    SignalOptions,
};
use rustls::pki_types::CertificateDer;
use tokio::{runtime::Handle, time};

use super::{
    address::ServerUrl,
    error::{ConnectError, JoinPhase},
    peer_connection::Described,
    refusal::TokenRefusal,
    websocket::{self, Dial, DialFailure},
};

mod attempt;
mod outgoing;
mod server_event;

pub(super) use attempt::NotResumed;
pub(super) use server_event::{ServerEvent, demands_relays};

use attempt::{Attempt, Step, restart, step};
use outgoing::OutgoingMessages;
use server_event::{end, server_event};

/// The protocol version announced to the server. From version 18 data channels would be negotiated out of band.
const PROTOCOL: u32 = 17;
/// The time limit of leaving, for the case that the socket is dead.
const GOODBYE: Duration = Duration::from_secs(1);

/// A signaling connection. Dropping it leaves the room.
pub(super) struct Signal {
    client: Option<Arc<SignalClient>>,
    outgoing: OutgoingMessages,
    events: SignalEvents,
    /// Events received on the old connection before a new one was opened.
    early: VecDeque<ServerEvent>,
    /// The current connection.
    dial: Arc<Dial>,
    attempt: Option<Attempt>,
}

impl Signal {
    /// Opens the connection and sends the join request with the SDP offer.
    pub(super) async fn join(
        url: &ServerUrl,
        token: &str,
        dial: Dial,
        offer: String,
        limit: Duration,
    ) -> Result<(Self, JoinResponse), ConnectError> {
        let dial = Arc::new(dial);
        // In a separate task: if its future is dropped, the library leaks an open socket, and the room keeps a
        // participant without a client. `Signal` leaves when it is dropped.
        let connecting = tokio::spawn(websocket::scope(dial.clone(), {
            let (url, token) = (url.as_str().to_owned(), token.to_owned());
            let offer = description("offer", offer, 1);
            let dial = dial.clone();
            async move {
                let (client, response, events) =
                    SignalClient::connect(&url, &token, options(limit), Some(offer)).await?;
                let client = Arc::new(client);
                let outgoing = OutgoingMessages::new(client.clone());
                let (client, early) = (Some(client), VecDeque::new());
                Ok((Self { client, outgoing, events, early, dial, attempt: None }, response))
            }
        }));
        let joined = match time::timeout(limit, connecting).await {
            Err(_) => {
                dial.hang_up();
                return Err(ConnectError::Timeout { limit, phase: JoinPhase::Signaling });
            }
            Ok(Err(panic)) => return Err(ConnectError::transport(panic)),
            Ok(Ok(joined)) => joined,
        };
        // On a timeout the library leaks its socket; a late response on it would complete the join.
        let (signal, response) = joined.map_err(|error| {
            dial.hang_up();
            join_error(error, dial.take_failure(), url, limit)
        })?;
        if !signal.client.as_ref().is_some_and(|client| client.is_single_pc_mode_active()) {
            return Err(ConnectError::ServerTooOld { version: version(&response) });
        }
        if response.ping_interval <= 0 || response.ping_timeout <= 0 || response.participant.is_none() {
            return Err(ConnectError::transport("the server's join response is incomplete"));
        }
        Ok((signal, response))
    }

    /// Returns the unread frames of the current connection.
    #[cfg(test)]
    pub(super) fn unread(&self) -> Arc<websocket::Unread> {
        self.dial.unread()
    }

    /// Waits for the next event of the server.
    ///
    /// # Cancel safety
    /// Dropping the future loses no event.
    pub(super) async fn next(&mut self) -> ServerEvent {
        loop {
            if let Some(event) = self.early.pop_front() {
                return event;
            }
            // Messages on a new connection are read after its first response.
            let asking = matches!(self.attempt, Some(Attempt::Asking(_)));
            tokio::select! {
                biased;
                event = self.events.recv(), if !asking => match event {
                    Some(SignalEvent::Message(message)) => {
                        self.dial.unread().handle_read();
                        if let Some(event) = server_event(*message) {
                            return event;
                        }
                    }
                    Some(SignalEvent::Close(_)) if self.attempt.is_some() => {}
                    Some(SignalEvent::Close(why)) => return ServerEvent::Lost(why.into_owned()),
                    None => return ServerEvent::Lost("the signaling ended".into()),
                },
                step = step(&mut self.attempt) => match step {
                    Step::Closed => self.ask(),
                    Step::Answered(answer) => {
                        self.attempt = None;
                        return match *answer {
                            Ok(answer) => ServerEvent::Resumed(Box::new(answer)),
                            Err(why) => ServerEvent::NotResumed(why),
                        };
                    }
                },
            }
        }
    }

    /// Reopens signaling under the same sid. [`next`](Self::next) reports the outcome.
    pub(super) fn resume(&mut self, roots: Vec<CertificateDer<'static>>, limit: Duration) {
        let Some(client) = self.client.clone().filter(|_| self.attempt.is_none()) else { return };
        let done = tokio::spawn(close(client, self.dial.clone()));
        self.attempt = Some(Attempt::Closing { done, dial: Dial::new(roots).resuming(), limit });
    }

    /// The old connection has ended: keeps its last messages and opens the new one.
    fn ask(&mut self) {
        while let Ok(event) = self.events.try_recv() {
            if let SignalEvent::Message(message) = event {
                self.early.extend(server_event(*message));
            }
        }
        let (Some(client), Some(Attempt::Closing { dial, limit, .. })) =
            (self.client.clone(), self.attempt.take())
        else {
            return;
        };
        // SendFailure messages belonged to the old connection.
        self.outgoing = OutgoingMessages::new(client.clone());
        let dial = Arc::new(dial);
        self.dial = dial.clone();
        self.attempt = Some(Attempt::Asking(tokio::spawn(restart(client, dial, limit))));
    }

    /// Sends the state that the server needs for a resume.
    pub(super) fn synchronize(&self, state: SyncState) {
        self.say(signal_request::Message::SyncState(state));
    }

    /// Sends a new SDP offer. The answer has the same number.
    pub(super) fn offer(&self, said: &Described) {
        self.say(signal_request::Message::Offer(description("offer", said.offer.clone(), said.number)));
    }

    /// Queues a message behind the earlier ones. On a lost connection it is dropped; the caller sends it again after the
    /// resume.
    pub(super) fn say(&self, message: signal_request::Message) {
        self.outgoing.say(message);
    }

    /// Sends a local ICE candidate to the server.
    pub(super) fn tell_candidate(&self, line: &str) {
        // The SDP has one media section.
        let init = serde_json::json!({"candidate": line, "sdpMLineIndex": 0});
        self.say(signal_request::Message::Trickle(TrickleRequest {
            candidate_init: init.to_string(),
            target: SignalTarget::Publisher.into(),
            ..Default::default()
        }));
    }

    /// Closes without leaving, so that the server keeps the participant for a while.
    pub(super) fn abandon(mut self) {
        self.give_up();
        if let (Some(client), Ok(runtime)) = (self.client.take(), Handle::try_current()) {
            runtime.spawn(close(client, self.dial.clone()));
        }
    }

    /// Sends a leave request and closes, within 1 s.
    pub(super) async fn leave(mut self) {
        let Some(client) = self.client.take() else { return };
        let goodbye = async {
            // If a connection is being opened, the leave request has to wait for it.
            while self.attempt.is_some() {
                if let ServerEvent::NotResumed(_) = self.next().await {
                    break;
                }
            }
            goodbye(client).await;
        };
        // The connection may have changed during the wait.
        if time::timeout(GOODBYE, goodbye).await.is_err() {
            self.dial.hang_up();
        }
        self.give_up();
    }

    /// Ends an attempt and closes its socket, so that it cannot join later.
    fn give_up(&mut self) {
        if let Some(Attempt::Asking(_)) = self.attempt.take() {
            self.dial.hang_up();
        }
    }
}

/// Returns true if the HTTP status means a temporary failure of the server or a gateway.
pub(super) fn is_passing(status: u16) -> bool {
    status >= 500 || [408, 425, 429].contains(&status)
}

fn description(kind: &str, sdp: String, id: u32) -> SessionDescription {
    SessionDescription { r#type: kind.into(), sdp, id, ..Default::default() }
}

impl Drop for Signal {
    fn drop(&mut self) {
        self.give_up();
        if let (Some(client), Ok(runtime)) = (self.client.take(), Handle::try_current()) {
            let dial = self.dial.clone();
            runtime.spawn(async move { in_time(&dial, goodbye(client)).await });
        }
    }
}

/// Closes a connection, if necessary without a leave request. If this were interrupted, the library would open no other.
async fn close(client: Arc<SignalClient>, dial: Arc<Dial>) {
    let mut closing = pin!(client.close());
    if !in_time(&dial, closing.as_mut()).await {
        closing.await;
    }
}

/// Flushes a connection's last messages, or drops them after a time limit. Returns true if they were flushed.
async fn in_time(dial: &Dial, last_words: impl Future<Output = ()>) -> bool {
    let said = time::timeout(GOODBYE, last_words).await.is_ok();
    if !said {
        dial.hang_up();
    }
    said
}

async fn goodbye(client: Arc<SignalClient>) {
    let leave = LeaveRequest {
        action: leave_request::Action::Disconnect.into(),
        reason: DisconnectReason::ClientInitiated.into(),
        ..Default::default()
    };
    client.send(signal_request::Message::Leave(leave)).await;
    client.close().await;
}

fn options(limit: Duration) -> SignalOptions {
    let mut options = SignalOptions::default();
    // A longer join timeout also extends the connection timeout.
    options.connect_timeout = options.connect_timeout.max(limit / 3);
    options.auto_subscribe = false;
    options.single_peer_connection = true;
    options.region_failover = false;
    options.protocol_version = PROTOCOL;
    options.client_protocol = CLIENT_PROTOCOL_DEFAULT;
    options.client_capabilities = Vec::new();
    options.sdk_options.sdk_version = Some(env!("CARGO_PKG_VERSION").into());
    options.sdk_options.other_sdks =
        Some(concat!(env!("CARGO_PKG_NAME"), ":", env!("CARGO_PKG_VERSION")).into());
    options
}

fn version(response: &JoinResponse) -> String {
    let version = response.server_info.as_ref().map_or(&response.server_version, |info| &info.version);
    if version.is_empty() { "unknown".into() } else { version.clone() }
}

fn join_error(
    error: SignalError,
    dialled: Option<DialFailure>,
    url: &ServerUrl,
    limit: Duration,
) -> ConnectError {
    let server = url.to_string();
    match (error, dialled) {
        (SignalError::TokenFormat, _) => ConnectError::MalformedToken,
        (SignalError::UrlParse(text), _) => ConnectError::Url { source: text.into() },
        (SignalError::LeaveRequest { reason, action }, _) => {
            let (reason, action) = (reason.into(), action.into());
            end(&LeaveRequest { reason, action, ..Default::default() }).into()
        }
        (_, Some(DialFailure::Status(status, reason))) => refused(server, status, reason),
        (_, Some(DialFailure::Unauthorized(reason))) => {
            ConnectError::Unauthorized { server, status: 401, reason }
        }
        (_, Some(DialFailure::NotTls)) => ConnectError::NotEncrypted { server },
        (_, Some(DialFailure::Refused(leave))) => end(&leave).into(),
        (_, Some(DialFailure::Unfit(reason))) => ConnectError::transport(reason),
        (_, Some(DialFailure::Tls(source))) => ConnectError::Tls { server, source },
        (_, Some(DialFailure::Proxy(source))) => ConnectError::Proxy { server, source },
        (_, Some(DialFailure::Unreachable(source))) => ConnectError::Unreachable { server, source },
        // The body is omitted because the server repeats the token in it.
        (
            SignalError::Handshake { status }
            | SignalError::Client(status, _)
            | SignalError::Server(status, _),
            None,
        ) => refused(server, status.as_u16(), String::new()),
        (SignalError::Connection(text), None) => {
            ConnectError::Unreachable { server, source: io::Error::other(text) }
        }
        // The library's own timeout, independent of the limit.
        (SignalError::Timeout(_), None) => {
            ConnectError::Timeout { limit: limit.min(JOIN_RESPONSE_TIMEOUT), phase: JoinPhase::Signaling }
        }
        (SignalError::Closed | SignalError::SendError, None) => {
            let source = io::Error::other("the connection was closed during the join");
            ConnectError::Unreachable { server, source }
        }
        (error, None) => ConnectError::transport(error),
    }
}

fn refused(server: String, status: u16, reason: String) -> ConnectError {
    match status {
        401 => ConnectError::Unauthorized { server, status, reason: TokenRefusal::Unknown },
        403 => ConnectError::Forbidden { server, status },
        _ => ConnectError::Refused { server, status, reason },
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{SinkExt, StreamExt};
    use livekit_protocol::{
        ParticipantInfo, ServerInfo, SignalRequest, SignalResponse, signal_response::Message,
    };
    use prost::Message as _;
    use tokio::net::TcpListener;
    use tokio_tungstenite::{
        accept_hdr_async,
        tungstenite::{
            Message as Frame,
            handshake::server::{ErrorResponse, Request, Response},
        },
    };

    use super::*;

    #[test]
    fn connection_timeout_is_5_s_or_more_with_a_longer_join_timeout() {
        let limit = |join| options(Duration::from_secs(join)).connect_timeout.as_secs();
        assert_eq!((limit(1), limit(15), limit(60)), (5, 5, 20));
    }

    /// Starts a server that answers each path with an HTTP status, or with a WebSocket and this first frame.
    async fn server(answer: impl Fn(&str) -> Result<JoinResponse, u16> + Send + Sync + 'static) -> ServerUrl {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let mut join = None;
                #[expect(clippy::result_large_err, reason = "the type is the library's")]
                let check = |request: &Request, response: Response| match answer(request.uri().path()) {
                    Ok(frame) => {
                        join = Some(frame);
                        Ok(response)
                    }
                    Err(status) => {
                        let mut refusal = ErrorResponse::new(None);
                        *refusal.status_mut() = status.try_into().unwrap();
                        Err(refusal)
                    }
                };
                let Ok(mut socket) = accept_hdr_async(stream, check).await else { continue };
                let frame = SignalResponse { message: join.map(Message::Join) }.encode_to_vec();
                socket.send(frame.into()).await.unwrap();
                while socket.next().await.is_some() {}
            }
        });
        ServerUrl::parse(&url).unwrap()
    }

    async fn join(url: &ServerUrl) -> ConnectError {
        let joined =
            Signal::join(url, "token", Dial::default(), String::new(), Duration::from_secs(20)).await;
        joined.err().unwrap()
    }

    fn response() -> JoinResponse {
        let info = ServerInfo { version: "1.9.8".into(), ..Default::default() };
        JoinResponse {
            participant: Some(ParticipantInfo {
                sid: "PA_1".into(),
                identity: "phone".into(),
                ..Default::default()
            }),
            server_info: Some(info),
            ping_interval: 5,
            ping_timeout: 15,
            ..Default::default()
        }
    }

    #[tokio::test]
    async fn server_without_single_peer_connection_is_too_old() {
        let url = server(|path| if path.ends_with("/v1") { Err(404) } else { Ok(response()) }).await;
        match join(&url).await {
            ConnectError::ServerTooOld { version } => assert_eq!(version, "1.9.8"),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn messages_sent_at_once_arrive_in_order() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = ServerUrl::parse(&format!("ws://{}", listener.local_addr().unwrap())).unwrap();
        let connecting = Signal::join(&url, "token", Dial::default(), String::new(), Duration::from_secs(20));
        let (joined, mut socket) = tokio::join!(connecting, async {
            let (stream, _) = listener.accept().await.unwrap();
            let mut socket = tokio_tungstenite::accept_async(stream).await.unwrap();
            let frame = SignalResponse { message: Some(Message::Join(response())) }.encode_to_vec();
            socket.send(frame.into()).await.unwrap();
            socket
        });
        let (signal, _) = joined.unwrap();
        let lines: Vec<_> = (0..50).map(|n| format!("candidate:{n}")).collect();
        lines.iter().for_each(|line| signal.tell_candidate(line));
        let mut received = Vec::new();
        while received.len() < lines.len() {
            let request = SignalRequest::decode(socket.next().await.unwrap().unwrap().into_data()).unwrap();
            if let Some(signal_request::Message::Trickle(it)) = request.message {
                received.extend(server_event::candidate(&it.candidate_init));
            }
        }
        assert_eq!(received, lines);
    }

    #[tokio::test]
    async fn dropped_join_leaves_the_room() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = ServerUrl::parse(&format!("ws://{}", listener.local_addr().unwrap())).unwrap();
        let connecting = Signal::join(&url, "token", Dial::default(), String::new(), Duration::from_secs(20));
        let mut socket = tokio::select! {
            _ = connecting => panic!("nobody has answered yet"),
            socket = async {
                let (stream, _) = listener.accept().await.unwrap();
                tokio_tungstenite::accept_async(stream).await.unwrap()
            } => socket,
        };
        // The future is dropped before the server accepts the join.
        let frame = SignalResponse { message: Some(Message::Join(response())) }.encode_to_vec();
        socket.send(frame.into()).await.unwrap();
        let mut left = false;
        while let Some(Ok(frame)) = socket.next().await {
            let request = SignalRequest::decode(frame.into_data()).unwrap();
            left |= matches!(request.message, Some(signal_request::Message::Leave(_)));
        }
        assert!(left);
    }

    #[tokio::test]
    async fn timed_out_join_closes_its_socket() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = ServerUrl::parse(&format!("ws://{}", listener.local_addr().unwrap())).unwrap();
        // The server accepts the connection and stays silent until the join times out.
        let limit = Duration::from_millis(500);
        let connecting = Signal::join(&url, "token", Dial::default(), String::new(), limit);
        let (joined, socket) = tokio::join!(connecting, async {
            let (stream, _) = listener.accept().await.unwrap();
            tokio_tungstenite::accept_async(stream).await
        });
        assert!(matches!(joined.err().unwrap(), ConnectError::Timeout { .. }));
        // On a slow machine the join may time out before the WebSocket upgrade; the socket is closed then, too.
        if let Ok(mut socket) = socket {
            assert!(!matches!(socket.next().await, Some(Ok(_))), "not even a goodbye");
        }
    }

    /// The library times out before the join does, and leaks the socket. A late response must not create a participant
    /// without a client.
    #[tokio::test]
    async fn join_timed_out_in_the_library_closes_its_socket() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = ServerUrl::parse(&format!("ws://{}", listener.local_addr().unwrap())).unwrap();
        let connecting = Signal::join(&url, "token", Dial::default(), String::new(), Duration::from_secs(20));
        let (joined, ()) = tokio::join!(connecting, async {
            let (stream, _) = listener.accept().await.unwrap();
            let mut socket = tokio_tungstenite::accept_async(stream).await.unwrap();
            socket.send(Frame::Ping(Default::default())).await.unwrap();
            assert!(matches!(socket.next().await, Some(Ok(Frame::Pong(_)))), "it is open at the other end");
            time::pause();
            let ended = time::timeout(Duration::from_secs(3_600), socket.next()).await;
            assert!(!matches!(ended.expect("the socket was left behind"), Some(Ok(_))), "not even a goodbye");
            time::resume();
        });
        match joined.err().unwrap() {
            ConnectError::Timeout { limit, .. } => assert_eq!(limit, JOIN_RESPONSE_TIMEOUT),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn incomplete_join_response_is_an_error() {
        for broken in [
            JoinResponse { ping_interval: -1, ..response() },
            JoinResponse { ping_timeout: 0, ..response() },
            JoinResponse { participant: None, ..response() },
        ] {
            let url = server(move |_| Ok(broken.clone())).await;
            assert!(matches!(join(&url).await, ConnectError::Transport(_)));
        }
    }

    #[tokio::test]
    async fn refusal_keeps_its_http_status() {
        let refused = |status| async move { join(&server(move |_| Err(status)).await).await };
        assert!(matches!(refused(401).await, ConnectError::Unauthorized { status: 401, .. }));
        assert!(matches!(refused(403).await, ConnectError::Forbidden { status: 403, .. }));
        assert!(matches!(refused(404).await, ConnectError::Refused { status: 404, .. }));
        assert!(matches!(refused(503).await, ConnectError::Refused { status: 503, .. }));
    }

    #[test]
    fn refusal_does_not_repeat_the_response_body() {
        let url = ServerUrl::parse("ws://127.0.0.1:7880").unwrap();
        let error = SignalError::Client(401.try_into().unwrap(), "invalid token: eyJhb".into());
        let error = join_error(error, None, &url, Duration::from_secs(1));
        assert!(matches!(error, ConnectError::Unauthorized { status: 401, .. }));
        assert!(!format!("{error} {error:?}").contains("eyJ"), "{error:?}");
    }
}
