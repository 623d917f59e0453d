//! Runs the server's task. It owns the rooms, the peer connections and the sockets, and passes events between
//! them.

use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
    time::{Duration, Instant},
};

use livekit_protocol::{
    JobAssignment, JoinRequest, Pong, RequestResponse, ServerMessage, SessionDescription, SignalTarget,
    request_response, server_message::Message as ToWorker, signal_request::Message as Request,
    signal_response::Message, worker_message::Message as FromWorker,
};
use livekit_token::Claims;
use prost::Message as _;
use str0m::net::{Protocol, Transmit};
use tokio::{
    net::UdpSocket,
    sync::{mpsc, oneshot},
    time,
};
use tokio_tungstenite::tungstenite::{
    Message as Frame,
    protocol::{CloseFrame, frame::coding::CloseCode},
};
use tokio_util::sync::CancellationToken;

use super::{
    agents::{AgentOutput, WorkerKey},
    clock, grant,
    ice_tcp::{IceTcp, TcpEvent},
    limits::Refusal,
    peer::{Peer, PeerEvent},
    room::{ConnectionId, JoinAttempt, Key, Output, PeerId, Rooms},
    twirp::{ServiceCall, ServiceResponse},
};
use crate::livekit::AccessKey;

/// The maximum number of queued inputs.
pub(super) const MAX_INPUTS: usize = 256;
/// The maximum number of messages queued for a client or a worker; beyond it, that one is disconnected.
const MAX_WAITING: usize = 256;
/// The maximum size of a received datagram, in bytes.
const MAX_DATAGRAM: usize = 2048;
/// The number of datagrams that are read per iteration of the loop.
const READ_BATCH: usize = 64;
/// The number of inputs that are handled per iteration of the loop.
const INPUT_BATCH: usize = 64;
/// The maximum number of remembered addresses of peer connections.
const MAX_ROUTES: usize = 1024;
/// The maximum number of bytes queued for all participants; beyond it, the slowest is removed.
const MAX_QUEUED: usize = 256 * 1024 * 1024;
/// A participant with fewer queued bytes does not count as slow.
const FEW_QUEUED: usize = 1024 * 1024;
/// The length of the text that makes the ids of agents' jobs unique.
const RUN_ID: usize = 8;
/// The maximum number of warnings of refused requests.
const MAX_WARNINGS: usize = 64;
/// The sleep time when no timer is set.
const IDLE: Duration = Duration::from_secs(60);

/// An input from a connection.
pub(super) enum ServerInput {
    /// A participant wants to join or resume. The reply carries its signaling messages.
    Join(Box<Joining>, oneshot::Sender<Result<SignalSession, Refusal>>),
    /// A client sent a signaling request.
    SignalRequest(ConnectionId, Box<Request>),
    /// A client's signaling connection ended.
    SignalClosed(ConnectionId),
    /// An agent worker connected. The reply carries its frames.
    Worker(oneshot::Sender<Result<WorkerSession, Refusal>>),
    /// A worker sent a message, or one that is invalid for this reason.
    WorkerMessage(WorkerKey, Result<Box<FromWorker>, &'static str>),
    /// A worker's connection ended.
    WorkerClosed(WorkerKey),
    /// A request to a service of the API.
    ServiceCall(ServiceCall, oneshot::Sender<ServiceResponse>),
    /// The developer should know of a refused request.
    Warn(String),
    /// A test inspects or changes the rooms.
    #[cfg(test)]
    Inspect(Box<dyn FnOnce(&mut Rooms) + Send>),
}

/// What a client asks for when it joins or resumes.
pub(super) struct Joining {
    pub(super) claims: Claims,
    pub(super) request: JoinRequest,
    /// Whether one peer connection carries both directions.
    pub(super) single_peer_connection: bool,
}

/// An accepted signaling connection, with the messages to send on it.
pub(super) struct SignalSession {
    pub(super) connection: ConnectionId,
    pub(super) messages: mpsc::Receiver<Box<Message>>,
}

/// An accepted connection of an agent worker, with the frames to send on it.
pub(super) struct WorkerSession {
    pub(super) key: WorkerKey,
    pub(super) frames: mpsc::Receiver<Frame>,
}

/// The sockets for packets.
pub(super) struct Sockets {
    pub(super) udp: UdpSocket,
    pub(super) tcp: IceTcp,
    /// The server's addresses over UDP and TCP.
    pub(super) addresses: [SocketAddr; 2],
}

/// What a warning for the developer is passed to.
pub(super) type Warn = Box<dyn Fn(&str) + Send>;

/// The state of the server's task.
pub(super) struct Server {
    key: AccessKey,
    rooms: Rooms,
    peers: HashMap<PeerId, Peer>,
    signals: HashMap<ConnectionId, mpsc::Sender<Box<Message>>>,
    workers: HashMap<WorkerKey, mpsc::Sender<Frame>>,
    sockets: Sockets,
    /// The peer connection for which each address last sent a datagram.
    routes: HashMap<(Protocol, SocketAddr), PeerId>,
    inputs: mpsc::Receiver<ServerInput>,
    warn: Warn,
    /// The warnings of refused requests so far; each is given once.
    warned: HashSet<String>,
    /// The last id assigned to a participant or connection.
    last: u64,
}

impl Server {
    pub(super) fn new(
        key: AccessKey,
        sockets: Sockets,
        inputs: mpsc::Receiver<ServerInput>,
        warn: Warn,
    ) -> Self {
        Self {
            key,
            rooms: Rooms::new(super::VERSION, nanoid::nanoid!(RUN_ID)),
            peers: HashMap::new(),
            signals: HashMap::new(),
            workers: HashMap::new(),
            sockets,
            routes: HashMap::new(),
            inputs,
            warn,
            warned: HashSet::new(),
            last: 0,
        }
    }

    /// Runs until stopped, and then disconnects all participants.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut buffer = [0; MAX_DATAGRAM];
        loop {
            let due = self.poll_timeout().unwrap_or_else(|| Instant::now() + IDLE);
            let hears = !self.rooms.faults.frozen;
            tokio::select! {
                () = stop.cancelled() => break,
                input = self.inputs.recv() => {
                    let Some(input) = input else { break };
                    self.take(input);
                    // Inputs are handled in batches as well, so that a flood of packets does not delay them.
                    for _ in 1..INPUT_BATCH {
                        let Ok(input) = self.inputs.try_recv() else { break };
                        self.take(input);
                    }
                }
                ready = self.sockets.udp.readable(), if hears => {
                    // An error belongs to an earlier datagram; the stack detects the loss by timeout.
                    if ready.is_ok() {
                        self.read(&mut buffer);
                    }
                }
                event = self.sockets.tcp.next(), if hears => self.handle_tcp(event),
                () = time::sleep_until(due.into()) => {}
            }
            self.handle_timeout();
            self.settle();
        }
        self.rooms.close(Instant::now());
        self.settle();
    }

    fn take(&mut self, input: ServerInput) {
        // Forward packets that were sent before a leave request first.
        self.handle_timeout();
        self.settle();
        self.handle_input(input);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.peers.values().map(Peer::poll_timeout).chain(self.rooms.poll_timeout()).min()
    }

    fn handle_timeout(&mut self) {
        let now = Instant::now();
        for peer in self.peers.values_mut().filter(|peer| peer.poll_timeout() <= now) {
            peer.handle_timeout(now);
        }
        if self.rooms.poll_timeout().is_some_and(|due| due <= now) {
            self.rooms.handle_timeout(now);
        }
    }

    fn handle_input(&mut self, input: ServerInput) {
        let now = Instant::now();
        match input {
            ServerInput::Join(who, reply) => {
                let Joining { claims, request, single_peer_connection } = *who;
                let (key, connection) = (self.number(), self.number());
                let sids = [format!("PA_{}", nanoid::nanoid!(12)), room_sid()];
                let (sender, messages) = mpsc::channel(MAX_WAITING);
                self.signals.insert(connection, sender);
                let unix_ms = clock::unix_ms();
                let attempt =
                    JoinAttempt { key, connection, claims, request, single_peer_connection, sids, unix_ms };
                let entry =
                    self.rooms.handle_join(now, attempt).map(|()| SignalSession { connection, messages });
                if entry.is_err() {
                    self.signals.remove(&connection);
                }
                if reply.send(entry).is_err() {
                    self.rooms.handle_signal_closed(now, connection);
                }
            }
            ServerInput::SignalRequest(..) if self.rooms.faults.ignore_requests => {}
            ServerInput::SignalRequest(connection, request) => match reply(&request) {
                Some(reply) => self.tell(connection, Box::new(reply)),
                None => self.rooms.handle_request(now, connection, *request),
            },
            ServerInput::SignalClosed(connection) => {
                self.signals.remove(&connection);
                self.rooms.handle_signal_closed(now, connection);
            }
            ServerInput::Worker(reply) => {
                let key = self.number();
                let (sender, frames) = mpsc::channel(MAX_WAITING);
                let session = self.rooms.agents.handle_worker(now, key);
                if session.is_ok() {
                    self.workers.insert(key, sender);
                }
                if reply.send(session.map(|()| WorkerSession { key, frames })).is_err() {
                    self.close_worker(key);
                }
            }
            ServerInput::WorkerMessage(key, message) => {
                self.rooms.agents.handle_message((now, clock::unix_ms()), key, message);
            }
            ServerInput::WorkerClosed(key) => self.close_worker(key),
            ServerInput::ServiceCall(call, reply) => {
                // The requester may be gone.
                let _ = reply.send(call.perform(now, &mut self.rooms, (room_sid(), clock::unix_ms())));
            }
            ServerInput::Warn(text) => {
                if self.warned.len() < MAX_WARNINGS && self.warned.insert(text.clone()) {
                    (self.warn)(&text);
                }
            }
            #[cfg(test)]
            ServerInput::Inspect(look) => look(&mut self.rooms),
        }
    }

    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Reads the received datagrams.
    fn read(&mut self, buffer: &mut [u8]) {
        for _ in 0..READ_BATCH {
            match self.sockets.udp.try_recv_from(buffer) {
                Ok((size, from)) => self.receive(Protocol::Udp, from, &buffer[..size]),
                Err(_) => return,
            }
        }
    }

    fn handle_tcp(&mut self, event: TcpEvent) {
        match event {
            TcpEvent::Datagram(from, datagram) => self.receive(Protocol::Tcp, from, &datagram),
            TcpEvent::Closed(from) => {
                self.routes.remove(&(Protocol::Tcp, from));
            }
        }
    }

    /// Passes a datagram to its peer connection. Datagrams of unknown origin are dropped.
    fn receive(&mut self, protocol: Protocol, from: SocketAddr, datagram: &[u8]) {
        let now = Instant::now();
        if let Some(peer) = self.routes.get(&(protocol, from)).and_then(|id| self.peers.get_mut(id))
            && peer.receive(now, protocol, from, true, datagram)
        {
            return;
        }
        let owner = self
            .peers
            .iter_mut()
            .find_map(|(id, peer)| peer.receive(now, protocol, from, false, datagram).then_some(*id));
        let Some(id) = owner else {
            return tracing::trace!(%from, "a datagram of unknown origin was dropped");
        };
        if self.routes.len() >= MAX_ROUTES {
            self.routes.clear();
        }
        self.routes.insert((protocol, from), id);
    }

    /// Exchanges events and outputs between rooms and peer connections until none are left.
    fn settle(&mut self) {
        loop {
            let mut events = Vec::new();
            for (id, peer) in &mut self.peers {
                events.extend(std::iter::from_fn(|| peer.poll_event()).map(|event| (*id, event)));
            }
            if events.is_empty() && !self.perform() {
                break;
            }
            for (id, event) in events {
                self.handle_event(id, event);
                self.perform();
            }
        }
        let frozen = self.rooms.faults.frozen;
        for peer in self.peers.values_mut() {
            while let Some(transmit) = peer.poll_transmit() {
                if !frozen {
                    self.sockets.send(transmit);
                }
            }
        }
    }

    fn handle_event(&mut self, id: PeerId, event: PeerEvent) {
        let now = Instant::now();
        match event {
            PeerEvent::Connected => self.rooms.handle_connected(id),
            PeerEvent::Open => self.rooms.handle_open(id),
            PeerEvent::Message(lane, message) => self.rooms.handle_message(id.0, lane, &message),
            PeerEvent::Lost => self.rooms.handle_path_lost(now, id),
            PeerEvent::Closed => self.rooms.handle_peer_closed(now, id),
            PeerEvent::Overflow => self.rooms.handle_overflow(now, id.0),
        }
    }

    /// Performs the outputs of the rooms. Returns whether there were any.
    fn perform(&mut self) -> bool {
        let mut any = false;
        while let Some(output) = self.rooms.poll_output() {
            any = true;
            match output {
                Output::Signal(connection, message) => self.tell(connection, message),
                Output::Warn(text) => (self.warn)(&text),
                Output::CloseSignal(connection) => {
                    self.signals.remove(&connection);
                }
                Output::RefreshToken(connection, claims) => {
                    if let Some(token) = grant::renew(&self.key, &claims, clock::unix_seconds()) {
                        self.tell(connection, Box::new(Message::RefreshToken(token)));
                    }
                }
                Output::Offer(key, offer) => self.answer(key, &offer),
                Output::Negotiate(key) => self.offer(key),
                Output::Answer(key, answer) => self.accept(key, &answer),
                Output::Candidate(id, line) => {
                    if let Some(peer) = self.peers.get_mut(&id) {
                        peer.add_candidate(&line);
                    }
                }
                Output::Data(id, lane, packet) => {
                    if let Some(peer) = self.peers.get_mut(&id) {
                        peer.send(lane, packet);
                        if peer.queued() > FEW_QUEUED {
                            self.remove_slowest();
                        }
                    }
                }
                Output::Close(key) => {
                    for target in [SignalTarget::Publisher, SignalTarget::Subscriber] {
                        let Some(mut peer) = self.peers.remove(&(key, target)) else { continue };
                        peer.close();
                        while let Some(transmit) = peer.poll_transmit() {
                            self.sockets.send(transmit);
                        }
                    }
                    self.routes.retain(|_, (owner, _)| *owner != key);
                }
            }
        }
        while let Some(output) = self.rooms.agents.poll_output() {
            any = true;
            match output {
                AgentOutput::Send(key, message) => self.tell_worker(key, *message),
                AgentOutput::Assign(key, assignment) => {
                    if let Some(token) = grant::job(&self.key, &assignment) {
                        let assignment = JobAssignment { job: Some(assignment.job), token, url: None };
                        self.tell_worker(key, ToWorker::Assignment(assignment));
                    }
                }
                AgentOutput::Close(key, why) => {
                    let close = CloseFrame { code: CloseCode::Policy, reason: why.into() };
                    if let Some(sender) = self.workers.remove(&key) {
                        // If it does not read, it learns no reason.
                        let _ = sender.try_send(Frame::Close(Some(close)));
                    }
                }
            }
        }
        any
    }

    /// Sends a message to a worker. One whose queue is full is disconnected.
    fn tell_worker(&mut self, key: WorkerKey, message: ToWorker) {
        let Some(sender) = self.workers.get(&key) else { return };
        let frame = ServerMessage { message: Some(message) }.encode_to_vec();
        if let Err(error) = sender.try_send(Frame::Binary(frame.into())) {
            tracing::warn!(%error, limit = MAX_WAITING, "an agent worker that does not read was disconnected");
            self.close_worker(key);
        }
    }

    fn close_worker(&mut self, key: WorkerKey) {
        self.workers.remove(&key);
        self.rooms.agents.handle_worker_closed(Instant::now(), key);
    }

    /// Removes the participant with the most queued bytes if the total exceeds the limit.
    fn remove_slowest(&mut self) {
        if self.peers.values().map(Peer::queued).sum::<usize>() <= MAX_QUEUED {
            return;
        }
        let slowest = self.peers.iter().max_by_key(|(_, peer)| peer.queued()).map(|(id, _)| *id);
        if let Some((key, _)) = slowest {
            self.rooms.handle_overflow(Instant::now(), key);
        }
    }

    /// Sends a signaling message. A client whose queue is full is disconnected.
    fn tell(&mut self, connection: ConnectionId, message: Box<Message>) {
        let Some(sender) = self.signals.get(&connection) else { return };
        if let Err(error) = sender.try_send(message) {
            tracing::debug!(connection, %error, limit = MAX_WAITING, "a client that does not read was disconnected");
            self.signals.remove(&connection);
            self.rooms.handle_signal_closed(Instant::now(), connection);
        }
    }

    fn peer(&mut self, now: Instant, id: PeerId) -> &mut Peer {
        self.peers.entry(id).or_insert_with(|| Peer::new(now, self.sockets.addresses))
    }

    fn answer(&mut self, key: Key, offer: &SessionDescription) {
        let (now, id) = (Instant::now(), (key, SignalTarget::Publisher));
        let peer = self.peer(now, id);
        let answered = peer.answers;
        match peer.answer(now, offer) {
            Ok(_) if self.rooms.faults.max_answers.is_some_and(|limit| answered >= limit) => {}
            Ok((answer, candidates)) => self.rooms.handle_description(id, answer, candidates),
            Err(error) => {
                tracing::debug!(%error, "an offer cannot be answered");
                self.rooms.handle_bad_description(now, key);
            }
        }
    }

    fn offer(&mut self, key: Key) {
        let (now, id) = (Instant::now(), (key, SignalTarget::Subscriber));
        if let Some((offer, candidates)) = self.peer(now, id).offer(now) {
            self.rooms.handle_description(id, offer, candidates);
        }
    }

    /// Accepts the answer to the server's offer. Without an offer it is ignored.
    fn accept(&mut self, key: Key, answer: &SessionDescription) {
        let now = Instant::now();
        let Some(peer) = self.peers.get_mut(&(key, SignalTarget::Subscriber)) else { return };
        if let Err(error) = peer.accept(now, answer) {
            tracing::debug!(%error, "an answer was refused");
            self.rooms.handle_bad_description(now, key);
        }
    }
}

/// Returns the reply to a request that concerns no room: a ping, or one to publish audio or video.
fn reply(request: &Request) -> Option<Message> {
    match request {
        Request::Ping(_) => Some(Message::Pong(clock::unix_ms())),
        Request::PingReq(ping) => {
            let pong = Pong { last_ping_timestamp: ping.timestamp, timestamp: clock::unix_ms() };
            Some(Message::PongResp(pong))
        }
        Request::AddTrack(track) => {
            tracing::warn!("a participant cannot publish audio or video: `toolbridge dev` carries data only");
            Some(Message::RequestResponse(RequestResponse {
                reason: request_response::Reason::NotAllowed.into(),
                message: "`toolbridge dev` carries data only; use livekit-server for audio and video"
                    .to_owned(),
                request: Some(request_response::Request::AddTrack(track.clone())),
                ..Default::default()
            }))
        }
        _ => None,
    }
}

impl Sockets {
    /// Sends a datagram. It is lost if the socket's buffer is full, as on any network.
    fn send(&self, transmit: Transmit) {
        if transmit.proto != Protocol::Udp {
            return self.tcp.send(transmit.destination, transmit.contents.into());
        }
        if let Err(error) = self.udp.try_send_to(&transmit.contents, transmit.destination) {
            tracing::trace!(remote = %transmit.destination, %error, "a datagram was not sent");
        }
    }
}

/// Returns the sid of a new room.
fn room_sid() -> String {
    format!("RM_{}", nanoid::nanoid!(12))
}

#[cfg(test)]
mod tests {
    use livekit_protocol::AddTrackRequest;

    use super::*;

    #[test]
    fn track_is_refused_with_its_request() {
        let track = AddTrackRequest { cid: "mic".into(), ..Default::default() };
        let Some(Message::RequestResponse(refusal)) = reply(&Request::AddTrack(track.clone())) else {
            panic!()
        };
        assert_eq!(refusal.reason(), request_response::Reason::NotAllowed);
        assert!(refusal.message.contains("data only"));
        assert_eq!(refusal.request, Some(request_response::Request::AddTrack(track)));
    }
}
