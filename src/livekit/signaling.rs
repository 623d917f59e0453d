//! Runs the signaling connection: the messages that a data-only participant needs, over a WebSocket of this
//! crate.
//!
//! LiveKit's own crate for it keeps its client in a variable of the process and its messages in unbounded queues, and leaks
//! a socket if a join is dropped. The messages themselves are those of `livekit-protocol`.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use livekit_protocol::{
    JoinResponse, SessionDescription, SignalTarget, SyncState, TrickleRequest, signal_request,
};
use rustls::pki_types::CertificateDer;
use tokio::time;

use crate::{
    livekit::{
        error::{ConnectError, JoinPhase},
        path::peer_connection::Described,
    },
    net::words::one_line,
};

pub(crate) mod address;
mod attempt;
pub(crate) mod dial;
pub(crate) mod first;
mod host_lookup;
pub(crate) mod http;
mod link;
mod open_link;
pub(crate) mod proxy;
pub(crate) mod refusal;
mod request;
mod server_event;
pub(crate) mod tls;
pub(crate) mod websocket;

pub(crate) use attempt::NotResumed;
pub(crate) use request::{Sent, SignalOptions};
pub(crate) use server_event::{ServerEvent, demands_relays};

use address::ServerUrl;
use attempt::{Attempt, Step, step};
use link::{Accepted, End, Link, RESPONSE_LIMIT};
use open_link::{GOODBYE, KeepAlive};
use proxy::ProxyError;
use request::{Purpose, Request, connect_limit};
use server_event::end;
use websocket::DialFailure;

/// A signaling connection. Dropping it leaves the room.
pub(crate) struct Signal {
    options: Arc<SignalOptions>,
    /// The newest token.
    token: String,
    sid: String,
    keep_alive: KeepAlive,
    link: Link,
    /// True if the current connection has reported its end.
    is_lost: bool,
    /// Events received on the old connection before a new one was opened.
    early: VecDeque<ServerEvent>,
    attempt: Option<Attempt>,
}

impl Signal {
    /// Opens the connection and sends the join request with the SDP offer.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the room, even if the server accepts the join afterwards.
    pub(crate) async fn join(
        options: Arc<SignalOptions>,
        token: &str,
        offer: String,
        limit: Duration,
        sent: Sent,
    ) -> Result<(Self, JoinResponse), ConnectError> {
        let (mut link, response) = Link::open(Request {
            options: Arc::clone(&options),
            token: token.to_owned(),
            purpose: Purpose::Join(description("offer", offer, 1)),
            connect_limit: connect_limit(limit),
            sent,
        });
        let answer = match time::timeout(limit, response).await {
            Ok(Ok(answer)) => answer.map_err(|failure| join_error(failure, &options.url, limit))?,
            Ok(Err(_)) => return Err(ConnectError::transport("the signaling task ended")),
            Err(_) => {
                // A late response must not complete the join.
                link.end(End::HangUp);
                return Err(ConnectError::Timeout { limit, phase: JoinPhase::Signaling });
            }
        };
        let response = match answer {
            Accepted::Join(response) => *response,
            Accepted::OldJoin(response) => {
                return Err(ConnectError::ServerTooOld { version: version(&response) });
            }
            Accepted::Resume(_) => return Err(ConnectError::transport("the server's response is no join")),
        };
        let signal = Self {
            options,
            token: token.to_owned(),
            sid: response.participant.as_ref().map(|it| it.sid.clone()).unwrap_or_default(),
            keep_alive: KeepAlive::of(&response),
            link,
            is_lost: false,
            early: VecDeque::new(),
            attempt: None,
        };
        Ok((signal, response))
    }

    /// Returns the root certificates that are trusted beside the system's.
    pub(crate) fn roots(&self) -> &[CertificateDer<'static>] {
        &self.options.roots
    }

    /// Returns the unread frames of the current connection.
    #[cfg(test)]
    pub(crate) fn unread(&self) -> Arc<websocket::Unread> {
        self.link.unread()
    }

    /// Waits for the next event of the server.
    ///
    /// # Cancel safety
    /// Dropping the future loses no event.
    pub(crate) async fn next(&mut self) -> ServerEvent {
        loop {
            if let Some(event) = self.early.pop_front() {
                return event;
            }
            // Messages on a new connection are read after its first response.
            let is_opening = matches!(self.attempt, Some(Attempt::Opening { .. }));
            tokio::select! {
                biased;
                // First, so that what the old connection delivered is reported before the outcome of the
                // attempt.
                event = self.link.next(), if !self.is_lost && !is_opening => {
                    if let Some(event) = self.handle(event) {
                        return event;
                    }
                }
                step = step(&mut self.attempt) => {
                    let answer = match step {
                        Step::Closed => {
                            self.reopen();
                            continue;
                        }
                        Step::Answered(answer) => answer,
                        Step::TimedOut(why) => {
                            // A late response must not resume the participant.
                            self.link.end(End::HangUp);
                            Err(why)
                        }
                    };
                    self.attempt = None;
                    return match answer {
                        Ok(answer) => ServerEvent::Resumed(answer),
                        Err(why) => {
                            self.is_lost = true;
                            ServerEvent::NotResumed(why)
                        }
                    };
                }
            }
        }
    }

    /// Handles an event of the current connection, or its end. Returns the event to report.
    fn handle(&mut self, event: Option<ServerEvent>) -> Option<ServerEvent> {
        match event {
            Some(ServerEvent::Token(token)) => {
                // The server refreshes tokens every few minutes. The one of the join may have expired when
                // signaling is resumed.
                self.token.clone_from(&token);
                Some(ServerEvent::Token(token))
            }
            None | Some(ServerEvent::Lost(_)) => {
                self.is_lost = true;
                // An attempt ends the old connection itself.
                if self.attempt.is_some() {
                    return None;
                }
                Some(event.unwrap_or_else(|| ServerEvent::Lost("the signaling ended".into())))
            }
            event => event,
        }
    }

    /// Reopens signaling under the same sid. [`next`](Self::next) reports the outcome.
    pub(crate) fn resume(&mut self, limit: Duration) {
        if self.attempt.is_some() {
            return;
        }
        match self.link.end(End::Close) {
            Some(closed) => self.attempt = Some(Attempt::Closing { closed, limit }),
            // The last attempt failed and has left no connection.
            None => self.open(limit),
        }
    }

    /// Keeps the last messages of the old connection, which has ended, and opens the new one.
    fn reopen(&mut self) {
        let Some(Attempt::Closing { limit, .. }) = self.attempt.take() else { return };
        while let Some(event) = self.link.try_next() {
            if !matches!(event, ServerEvent::Lost(_)) {
                let event = self.handle(Some(event));
                self.early.extend(event);
            }
        }
        self.open(limit);
    }

    fn open(&mut self, limit: Duration) {
        let (link, response) = Link::open(Request {
            options: Arc::clone(&self.options),
            token: self.token.clone(),
            purpose: Purpose::Resume(self.sid.clone(), self.keep_alive),
            connect_limit: connect_limit(limit),
            sent: Sent::default(),
        });
        (self.link, self.is_lost) = (link, false);
        self.attempt = Some(Attempt::Opening { response, limit, until: time::Instant::now() + limit });
    }

    /// Sends the state that the server needs for a resume.
    pub(crate) fn synchronize(&self, state: SyncState) {
        self.send(signal_request::Message::SyncState(state));
    }

    /// Sends a new SDP offer. The answer has the same number.
    pub(crate) fn offer(&self, said: &Described) {
        self.send(signal_request::Message::Offer(description("offer", said.offer.clone(), said.number)));
    }

    /// Queues a message behind the earlier ones. On a lost connection, or one that is being opened, it is dropped; the
    /// caller sends it again after the resume.
    pub(crate) fn send(&self, message: signal_request::Message) {
        // On the new connection it would be sent before the state with which a resume begins.
        if self.attempt.is_none() {
            self.link.send(message);
        }
    }

    /// Sends a local ICE candidate to the server.
    pub(crate) fn send_candidate(&self, line: &str) {
        // The SDP has one media section.
        let init = serde_json::json!({"candidate": line, "sdpMLineIndex": 0});
        self.send(signal_request::Message::Trickle(TrickleRequest {
            candidate_init: init.to_string(),
            target: SignalTarget::Publisher.into(),
            ..Default::default()
        }));
    }

    /// Closes without leaving, so that the server keeps the participant for a while.
    pub(crate) fn close_without_leave(mut self) {
        self.cancel_resume();
        self.link.end(End::Close);
    }

    /// Sends a leave request and closes, within 1 s. If signaling is lost and may be resumed, a connection is opened for that:
    /// otherwise the server would keep the participant for 20 to 30 s.
    pub(crate) async fn leave(self, may_resume: bool) {
        self.leave_within(GOODBYE, may_resume).await;
    }

    async fn leave_within(mut self, limit: Duration, may_resume: bool) {
        if self.is_lost && may_resume {
            self.resume(limit);
        }
        let leaving = async {
            // If a connection is being opened, the leave request has to wait for it.
            while self.attempt.is_some() {
                if let ServerEvent::NotResumed(_) = self.next().await {
                    break;
                }
            }
            if let Some(task) = self.link.end(End::Leave) {
                let _ = task.await;
            }
        };
        let _ = time::timeout(limit, leaving).await;
        self.cancel_resume();
    }

    /// Ends an attempt and closes its socket, so that it cannot resume later.
    fn cancel_resume(&mut self) {
        if let Some(Attempt::Opening { .. }) = self.attempt.take() {
            self.link.end(End::HangUp);
        }
    }
}

/// Returns true if the HTTP status means a temporary failure of the server or a gateway.
fn is_passing(status: u16) -> bool {
    status >= 500 || [408, 425, 429].contains(&status)
}

fn description(kind: &str, sdp: String, id: u32) -> SessionDescription {
    SessionDescription { r#type: kind.into(), sdp, id, ..Default::default() }
}

impl Drop for Signal {
    fn drop(&mut self) {
        // An open connection leaves when it is dropped.
        self.cancel_resume();
    }
}

/// The longest version of a server that is shown, in bytes.
const MAX_VERSION: usize = 64;

fn version(response: &JoinResponse) -> String {
    let version = response.server_info.as_ref().map_or(&response.server_version, |info| &info.version);
    if version.is_empty() { "unknown".into() } else { one_line(version, MAX_VERSION) }
}

fn join_error(failure: DialFailure, url: &ServerUrl, limit: Duration) -> ConnectError {
    let server = url.to_string();
    match failure {
        DialFailure::Status(403, _) => ConnectError::Forbidden { server, status: 403 },
        DialFailure::Status(status, reason) => ConnectError::Refused { server, status, reason },
        DialFailure::Unauthorized(reason) => ConnectError::Unauthorized { server, status: 401, reason },
        DialFailure::NotTls => ConnectError::NotEncrypted { server },
        DialFailure::Refused(leave) => end(&leave).into(),
        DialFailure::Unfit(reason) => ConnectError::transport(reason),
        DialFailure::Tls(source) => ConnectError::Tls { server, source },
        DialFailure::Proxy(ProxyError { proxy, source }) => ConnectError::Proxy { server, proxy, source },
        DialFailure::Unreachable(source) => ConnectError::Unreachable { server, source },
        DialFailure::Silent => {
            ConnectError::Timeout { limit: limit.min(RESPONSE_LIMIT), phase: JoinPhase::Signaling }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, task::Poll};

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

    fn sent(message: Message) -> Frame {
        Frame::Binary(SignalResponse { message: Some(message) }.encode_to_vec().into())
    }

    async fn joining(
        url: &ServerUrl,
        token: &str,
        limit: Duration,
    ) -> Result<(Signal, JoinResponse), ConnectError> {
        Signal::join(Arc::new(url.into()), token, String::new(), limit, Sent::default()).await
    }

    async fn join(url: &ServerUrl) -> ConnectError {
        let joined = joining(url, "token", Duration::from_secs(20)).await;
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
        let connecting = joining(&url, "token", Duration::from_secs(20));
        let (joined, mut socket) = tokio::join!(connecting, async {
            let (stream, _) = listener.accept().await.unwrap();
            let mut socket = tokio_tungstenite::accept_async(stream).await.unwrap();
            socket.send(sent(Message::Join(response()))).await.unwrap();
            socket
        });
        let (signal, _) = joined.unwrap();
        let lines: Vec<_> = (0..50).map(|n| format!("candidate:{n}")).collect();
        lines.iter().for_each(|line| signal.send_candidate(line));
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
        let connecting = joining(&url, "token", Duration::from_secs(20));
        let mut socket = tokio::select! {
            _ = connecting => panic!("nobody has answered yet"),
            socket = async {
                let (stream, _) = listener.accept().await.unwrap();
                tokio_tungstenite::accept_async(stream).await.unwrap()
            } => socket,
        };
        // The future is dropped before the server accepts the join.
        socket.send(sent(Message::Join(response()))).await.unwrap();
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
        let connecting = joining(&url, "token", limit);
        let (joined, socket) = tokio::join!(connecting, async {
            let (stream, _) = listener.accept().await.unwrap();
            tokio_tungstenite::accept_async(stream).await
        });
        assert!(matches!(joined.err().unwrap(), ConnectError::Timeout { .. }));
        // On a slow machine the join may time out before the WebSocket upgrade; the socket is closed then, too.
        if let Ok(mut socket) = socket {
            // The client has closed the socket, so nobody answers a late response.
            let _ = socket.send(sent(Message::Join(response()))).await;
            assert!(!matches!(socket.next().await, Some(Ok(_))), "not even a goodbye");
        }
    }

    /// The server opens the socket and says nothing. A late response must not create a participant without a client.
    #[tokio::test]
    async fn join_without_a_response_closes_its_socket() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = ServerUrl::parse(&format!("ws://{}", listener.local_addr().unwrap())).unwrap();
        let connecting = joining(&url, "token", Duration::from_secs(20));
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
            ConnectError::Timeout { limit, .. } => assert_eq!(limit, RESPONSE_LIMIT),
            other => panic!("{other:?}"),
        }
    }

    /// Accepts a connection, and returns it with the token and the URL of its request.
    async fn accept(
        listener: &TcpListener,
    ) -> (tokio_tungstenite::WebSocketStream<tokio::net::TcpStream>, String) {
        let (stream, _) = listener.accept().await.unwrap();
        let mut asked = String::new();
        #[expect(clippy::result_large_err, reason = "the type is the library's")]
        let socket = accept_hdr_async(stream, |request: &Request, response: Response| {
            let token = request.headers()["authorization"].to_str().unwrap();
            asked = format!("{token} {}", request.uri());
            Ok(response)
        });
        (socket.await.unwrap(), asked)
    }

    #[tokio::test]
    async fn resume_after_a_failed_one_uses_the_newest_token_and_the_sid() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = ServerUrl::parse(&format!("ws://{}", listener.local_addr().unwrap())).unwrap();
        let connecting = joining(&url, "a.b.c", Duration::from_secs(20));
        let (joined, (mut first, asked)) = tokio::join!(connecting, async {
            let (mut socket, asked) = accept(&listener).await;
            socket.send(sent(Message::Join(response()))).await.unwrap();
            socket.send(sent(Message::RefreshToken("d.e.f".into()))).await.unwrap();
            (socket, asked)
        });
        assert!(asked.starts_with("Bearer a.b.c /rtc/v1?join_request="), "{asked}");
        let (mut signal, _) = joined.unwrap();
        assert!(matches!(signal.next().await, ServerEvent::Token(token) if token == "d.e.f"));
        // The server takes the connection and says nothing, until the attempt ends.
        signal.resume(Duration::from_millis(100));
        let (event, mut silent) = tokio::join!(signal.next(), async {
            let (silent, asked) = accept(&listener).await;
            assert!(asked.starts_with("Bearer d.e.f "), "{asked}");
            assert!(
                matches!(first.next().await, Some(Ok(Frame::Close(_)))),
                "the old one was closed without leaving"
            );
            silent
        });
        // The client has closed the socket, so nobody answers a late response.
        let _ = silent.send(sent(Message::Reconnect(Default::default()))).await;
        assert!(!matches!(silent.next().await, Some(Ok(_))), "not even a goodbye");
        assert!(matches!(event, ServerEvent::NotResumed(NotResumed::Again(why)) if why.contains("100 ms")));
        // `Signal` drops a candidate that it gets during an attempt, and sends one that it gets afterwards.
        signal.resume(Duration::from_secs(20));
        signal.send_candidate("candidate:early");
        let (event, mut second) = tokio::join!(signal.next(), async {
            let (mut socket, _) = accept(&listener).await;
            let answer = livekit_protocol::ReconnectResponse { last_message_seq: 7, ..Default::default() };
            socket.send(sent(Message::Reconnect(answer))).await.unwrap();
            socket
        });
        assert!(matches!(event, ServerEvent::Resumed(answer) if answer.last_message_seq == 7));
        signal.send_candidate("candidate:later");
        let request = SignalRequest::decode(second.next().await.unwrap().unwrap().into_data()).unwrap();
        let Some(signal_request::Message::Trickle(trickle)) = request.message else { panic!("{request:?}") };
        assert!(trickle.candidate_init.contains("candidate:later"), "{}", trickle.candidate_init);
        let ((), left) = tokio::join!(signal.leave(false), async {
            let request = SignalRequest::decode(second.next().await.unwrap().unwrap().into_data()).unwrap();
            matches!(request.message, Some(signal_request::Message::Leave(_)))
        });
        assert!(left);
    }

    #[tokio::test]
    async fn leaving_without_signaling_opens_a_connection_for_that() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = ServerUrl::parse(&format!("ws://{}", listener.local_addr().unwrap())).unwrap();
        for may_resume in [true, false] {
            let connecting = joining(&url, "a.b.c", Duration::from_secs(20));
            let (joined, ()) = tokio::join!(connecting, async {
                let (mut socket, _) = accept(&listener).await;
                socket.send(sent(Message::Join(response()))).await.unwrap();
            });
            let (mut signal, _) = joined.unwrap();
            assert!(matches!(signal.next().await, ServerEvent::Lost(_)));
            if !may_resume {
                signal.leave_within(Duration::from_millis(100), may_resume).await;
                let asked = poll_fn(|cx| Poll::Ready(listener.poll_accept(cx).is_ready())).await;
                assert!(!asked, "it may be another participant that is resumed");
                continue;
            }
            let serving = async {
                let (mut socket, _) = accept(&listener).await;
                socket.send(sent(Message::Reconnect(Default::default()))).await.unwrap();
                let frame = socket.next().await.unwrap().unwrap().into_data();
                matches!(
                    SignalRequest::decode(frame).unwrap().message,
                    Some(signal_request::Message::Leave(_))
                )
            };
            let limit = Duration::from_secs(20);
            let leaving = signal.leave_within(limit, may_resume);
            assert!(tokio::join!(time::timeout(limit, serving), leaving).0.unwrap());
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
}
