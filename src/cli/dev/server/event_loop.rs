//! The server's one task: it owns the rooms, the peer connections and the UDP socket, and turns the one's words into the
//! other's.

use std::{
    collections::HashMap,
    net::SocketAddr,
    time::{Duration, Instant},
};

use livekit_protocol::{
    JoinRequest, Pong, SessionDescription, signal_request::Message as Request, signal_response::Message,
};
use livekit_token::Claims;
use str0m::net::{Protocol, Transmit};
use tokio::{
    net::UdpSocket,
    sync::{mpsc, oneshot},
    time,
};
use tokio_util::sync::CancellationToken;

use super::{
    clock,
    grant::Key as AccessKey,
    ice_tcp::{IceTcp, TcpEvent},
    peer::{Peer, PeerEvent},
    room::{ConnectionId, JoinAttempt, Key, Output, Refusal, Rooms},
    signal::MAX_WAITING,
    twirp::{ServiceCall, ServiceResponse},
};

/// How many inputs wait for the server's task.
pub(super) const MAX_INPUTS: usize = 256;
/// The largest datagram that is read, in bytes.
const MAX_DATAGRAM: usize = 2048;
/// How many datagrams are read before somebody else has a turn.
const READ_BATCH: usize = 64;
/// How many inputs are taken before.
const INPUT_BATCH: usize = 64;
/// How many addresses are remembered with the connection that they belong to.
const MAX_ROUTES: usize = 1024;
/// How many bytes wait for all who read slowly; beyond it the slowest is put out.
const MAX_QUEUED: usize = 256 * 1024 * 1024;
/// Who has less than this waiting is not slow, in bytes.
const FEW_QUEUED: usize = 1024 * 1024;
/// How long it sleeps when nothing is due.
const IDLE: Duration = Duration::from_secs(60);

/// What connections ask of the server.
pub(super) enum ServerInput {
    /// Somebody wants to join. He gets what he is told, in order, until it ends.
    Join(Box<(Claims, JoinRequest)>, oneshot::Sender<Result<SignalSession, Refusal>>),
    /// A client said something.
    SignalRequest(ConnectionId, Box<Request>),
    /// A client's signalling ended.
    SignalClosed(ConnectionId),
    /// The room service is asked.
    ServiceCall(ServiceCall, oneshot::Sender<ServiceResponse>),
    /// A test looks at the rooms, or changes them.
    #[cfg(test)]
    Inspect(Box<dyn FnOnce(&mut Rooms) + Send>),
}

/// Somebody was let in.
pub(super) struct SignalSession {
    pub(super) connection: ConnectionId,
    pub(super) messages: mpsc::Receiver<Box<Message>>,
}

/// Where datagrams come and go.
pub(super) struct Sockets {
    pub(super) udp: UdpSocket,
    pub(super) tcp: IceTcp,
    /// Where we are reached, over UDP and over TCP.
    pub(super) addresses: [SocketAddr; 2],
}

/// The server.
pub(super) struct Server {
    key: AccessKey,
    rooms: Rooms,
    peers: HashMap<Key, Peer>,
    signals: HashMap<ConnectionId, mpsc::Sender<Box<Message>>>,
    sockets: Sockets,
    /// Which connection an address was last heard of.
    routes: HashMap<(Protocol, SocketAddr), Key>,
    inputs: mpsc::Receiver<ServerInput>,
    /// The last number that was given to a participant or a connection.
    last: u64,
}

impl Server {
    pub(super) fn new(key: AccessKey, sockets: Sockets, inputs: mpsc::Receiver<ServerInput>) -> Self {
        Self {
            key,
            rooms: Rooms::new(super::VERSION),
            peers: HashMap::new(),
            signals: HashMap::new(),
            sockets,
            routes: HashMap::new(),
            inputs,
            last: 0,
        }
    }

    /// Runs until it is stopped; then all are told.
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
                    // Who floods us with packets keeps nobody waiting at the door: they come in batches, too.
                    for _ in 1..INPUT_BATCH {
                        let Ok(input) = self.inputs.try_recv() else { break };
                        self.take(input);
                    }
                }
                ready = self.sockets.udp.readable(), if hears => {
                    // An error here is an answer to an earlier datagram; the stack counts on silence.
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
        // Whoever says goodbye has sent all that it wanted to: it goes on first.
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
                let (claims, request) = *who;
                let (key, connection) = (self.number(), self.number());
                let sids = [format!("PA_{}", nanoid::nanoid!(12)), format!("RM_{}", nanoid::nanoid!(12))];
                let (sender, messages) = mpsc::channel(MAX_WAITING);
                self.signals.insert(connection, sender);
                let unix_ms = clock::unix_ms();
                let attempt = JoinAttempt { key, connection, claims, request, sids, unix_ms };
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
            ServerInput::SignalRequest(connection, request) => match pong(&request) {
                Some(pong) => self.tell(connection, Box::new(pong)),
                None => self.rooms.handle_request(now, connection, *request),
            },
            ServerInput::SignalClosed(connection) => {
                self.signals.remove(&connection);
                self.rooms.handle_signal_closed(now, connection);
            }
            ServerInput::ServiceCall(call, reply) => {
                // Who asked and went away has no use for the answer.
                let _ = reply.send(call.perform(now, &mut self.rooms));
            }
            #[cfg(test)]
            ServerInput::Inspect(look) => look(&mut self.rooms),
        }
    }

    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Takes the datagrams that have come.
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

    /// Gives a datagram to the peer connection that it is for. One of a stranger is dropped.
    fn receive(&mut self, protocol: Protocol, from: SocketAddr, datagram: &[u8]) {
        let now = Instant::now();
        if let Some(peer) = self.routes.get(&(protocol, from)).and_then(|key| self.peers.get_mut(key))
            && peer.receive(now, protocol, from, true, datagram)
        {
            return;
        }
        let owner = self
            .peers
            .iter_mut()
            .find_map(|(key, peer)| peer.receive(now, protocol, from, false, datagram).then_some(*key));
        let Some(key) = owner else {
            return tracing::trace!(%from, "a datagram of nobody was dropped");
        };
        if self.routes.len() >= MAX_ROUTES {
            self.routes.clear();
        }
        self.routes.insert((protocol, from), key);
    }

    /// Lets rooms and peer connections talk until neither has anything to say.
    fn settle(&mut self) {
        loop {
            let mut events = Vec::new();
            for (key, peer) in &mut self.peers {
                events.extend(std::iter::from_fn(|| peer.poll_event()).map(|event| (*key, event)));
            }
            if events.is_empty() && !self.perform() {
                break;
            }
            for (key, event) in events {
                self.handle_event(key, event);
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

    fn handle_event(&mut self, key: Key, event: PeerEvent) {
        let now = Instant::now();
        match event {
            PeerEvent::Connected => self.rooms.handle_connected(key),
            PeerEvent::Open => self.rooms.handle_open(key),
            PeerEvent::Message(lane, message) => self.rooms.handle_message(key, lane, &message),
            PeerEvent::Lost => self.rooms.handle_path_lost(now, key),
            PeerEvent::Closed => self.rooms.handle_peer_closed(now, key),
            PeerEvent::Overflow => self.rooms.handle_overflow(now, key),
        }
    }

    /// Does what the rooms want done. Whether there was anything.
    fn perform(&mut self) -> bool {
        let mut any = false;
        while let Some(output) = self.rooms.poll_output() {
            any = true;
            match output {
                Output::Signal(connection, message) => self.tell(connection, message),
                Output::CloseSignal(connection) => {
                    self.signals.remove(&connection);
                }
                Output::RefreshToken(connection, claims) => {
                    if let Some(token) = self.key.renew(&claims, clock::unix_seconds()) {
                        self.tell(connection, Box::new(Message::RefreshToken(token)));
                    }
                }
                Output::Offer(key, offer) => self.answer(key, &offer),
                Output::Candidate(key, line) => {
                    if let Some(peer) = self.peers.get_mut(&key) {
                        peer.add_candidate(&line);
                    }
                }
                Output::Data(key, lane, packet) => {
                    if let Some(peer) = self.peers.get_mut(&key) {
                        peer.send(lane, packet);
                        if peer.queued() > FEW_QUEUED {
                            self.remove_slowest();
                        }
                    }
                }
                Output::Close(key) => {
                    if let Some(mut peer) = self.peers.remove(&key) {
                        peer.close();
                        while let Some(transmit) = peer.poll_transmit() {
                            self.sockets.send(transmit);
                        }
                    }
                    self.routes.retain(|_, owner| *owner != key);
                }
            }
        }
        any
    }

    /// Puts out whoever has the most waiting, if all have too much.
    fn remove_slowest(&mut self) {
        if self.peers.values().map(Peer::queued).sum::<usize>() <= MAX_QUEUED {
            return;
        }
        let slowest = self.peers.iter().max_by_key(|(_, peer)| peer.queued()).map(|(key, _)| *key);
        if let Some(key) = slowest {
            self.rooms.handle_overflow(Instant::now(), key);
        }
    }

    /// Tells a client something. Who takes nothing is cut off.
    fn tell(&mut self, connection: ConnectionId, message: Box<Message>) {
        let Some(sender) = self.signals.get(&connection) else { return };
        if let Err(error) = sender.try_send(message) {
            tracing::debug!(connection, %error, limit = MAX_WAITING, "a client that takes nothing was cut off");
            self.signals.remove(&connection);
            self.rooms.handle_signal_closed(Instant::now(), connection);
        }
    }

    fn answer(&mut self, key: Key, offer: &SessionDescription) {
        let now = Instant::now();
        let peer = self.peers.entry(key).or_insert_with(|| Peer::new(now, self.sockets.addresses));
        let answered = peer.answers;
        match peer.answer(now, offer) {
            Ok(_) if self.rooms.faults.max_answers.is_some_and(|limit| answered >= limit) => {}
            Ok((answer, candidates)) => self.rooms.handle_answer(key, answer, candidates),
            Err(error) => {
                tracing::debug!(%error, "an offer cannot be answered");
                self.rooms.handle_bad_offer(now, key);
            }
        }
    }
}

/// The answer to a client that asks whether we are there.
fn pong(request: &Request) -> Option<Message> {
    match request {
        Request::Ping(_) => Some(Message::Pong(clock::unix_ms())),
        Request::PingReq(ping) => {
            let pong = Pong { last_ping_timestamp: ping.timestamp, timestamp: clock::unix_ms() };
            Some(Message::PongResp(pong))
        }
        _ => None,
    }
}

impl Sockets {
    /// Sends a datagram. What no socket takes now is lost, as on any network.
    fn send(&self, transmit: Transmit) {
        if transmit.proto != Protocol::Udp {
            return self.tcp.send(transmit.destination, transmit.contents.into());
        }
        if let Err(error) = self.udp.try_send_to(&transmit.contents, transmit.destination) {
            tracing::trace!(remote = %transmit.destination, %error, "a datagram was not sent");
        }
    }
}
