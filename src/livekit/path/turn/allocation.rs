//! Allocates, refreshes and uses a relayed address, as its client ([RFC
//! 8656](https://www.rfc-editor.org/rfc/rfc8656)). It has no socket, clock or random source: inputs are bytes
//! and the time, outputs are bytes and the next deadline.

use std::{
    collections::VecDeque,
    fmt,
    net::SocketAddr,
    time::{Duration, Instant},
};

use super::{
    credentials::Credentials,
    error::RelayError,
    frame::{self, CHANNELS},
    stun::{Class, Key, Message, Method, Transaction, Writer, attribute},
};

mod answers;
mod ids;
mod request;

pub(super) use ids::Ids;
use request::{Purpose, Request, Retry};

/// The most addresses of the LiveKit server that one relay is used for.
pub(super) const MAX_PEERS: usize = 64;
/// A permission lasts 5 min (section 9), a channel 10 min: both are refreshed before the first of them expires.
const RENEW_PEER: Duration = Duration::from_secs(4 * 60);
/// The shortest time between two refreshes, whatever the relay requests.
const MIN_RENEWAL: Duration = Duration::from_secs(1);

/// An event of an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The allocation succeeded, with an address of each family that the relay has.
    Opened(Vec<SocketAddr>),
    /// The relay refuses to reach this address.
    Denied(SocketAddr, RelayError),
    /// The allocation has ended, or failed.
    Failed(RelayError),
}

/// An allocation, or the attempt to create one.
pub(super) struct Allocation {
    /// Whether the connection to the relay is reliable (a stream).
    reliable: bool,
    credentials: Credentials,
    ids: Ids,
    session: Option<Session>,
    only_v6: bool,
    stage: Stage,
    relayed: Vec<SocketAddr>,
    requests: Vec<Request>,
    peers: Vec<Peer>,
    out: VecDeque<Vec<u8>>,
    events: VecDeque<Event>,
    /// How many useless messages arrived.
    ignored: u64,
}

/// The relay's parameters from its first refusal.
struct Session {
    realm: String,
    nonce: String,
    key: Key,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Asking,
    Open { renew_at: Option<Instant>, ends_at: Instant },
    Over,
}

/// An address of the LiveKit server. Its index in the list determines its channel.
struct Peer {
    address: SocketAddr,
    /// Whether datagrams use the channel; otherwise each contains the address.
    bound: bool,
    /// Whether the relay refuses a channel, so that a permission must suffice.
    no_channel: bool,
    denied: bool,
    renew_at: Option<Instant>,
    used: Instant,
}

impl Peer {
    fn new(now: Instant, address: SocketAddr, no_channel: bool) -> Self {
        Self { address, bound: false, no_channel, denied: false, renew_at: None, used: now }
    }
}

impl Allocation {
    /// Starts an allocation.
    pub(super) fn new(now: Instant, reliable: bool, credentials: Credentials, ids: Ids) -> Self {
        let mut allocation = Self {
            reliable,
            credentials,
            ids,
            session: None,
            only_v6: false,
            stage: Stage::Asking,
            relayed: Vec::new(),
            requests: Vec::new(),
            peers: Vec::new(),
            out: VecDeque::new(),
            events: VecDeque::new(),
            ignored: 0,
        };
        allocation.request(now, Purpose::Allocate, 0);
        allocation
    }

    /// Allows datagrams from and to this address.
    pub(super) fn permit(&mut self, now: Instant, address: SocketAddr) {
        self.peer(now, address);
    }

    /// Returns the bytes to write so that a datagram reaches this address; `None` if it cannot.
    pub(super) fn send(&mut self, now: Instant, to: SocketAddr, datagram: &[u8]) -> Option<Vec<u8>> {
        if !matches!(self.stage, Stage::Open { .. }) {
            return None;
        }
        let at = self.peer(now, to)?;
        self.peers[at].used = now;
        match &self.peers[at] {
            Peer { denied: true, .. } => None,
            Peer { bound: true, .. } => frame::write_channel(channel(at), datagram),
            // A channel saves 32 bytes a datagram over IPv4, but packets do not wait for it: ICE's first
            // checks are among them.
            _ => Some(
                Writer::new(Class::Indication, Method::Send, self.ids.next())
                    .address(attribute::XOR_PEER_ADDRESS, to)
                    .put(attribute::DATA, datagram)
                    .finish(),
            ),
        }
    }

    /// Handles bytes from the relay; returns a datagram and its sender, if it contains one.
    pub(super) fn handle<'a>(&mut self, now: Instant, bytes: &'a [u8]) -> Option<(SocketAddr, &'a [u8])> {
        if let Some((number, datagram)) = frame::read_channel(bytes) {
            let peer = self.peers.get(usize::from(number - CHANNELS.start()));
            // The confirmation of the channel may arrive after the first datagram.
            if let Some(peer) = peer.filter(|peer| !peer.no_channel && !peer.denied) {
                return Some((peer.address, datagram));
            }
            self.ignore("a datagram on an unknown channel");
            return None;
        }
        let Some(message) = Message::read(bytes) else {
            self.ignore("an invalid message");
            return None;
        };
        match (message.class, message.method) {
            (Class::Indication, Method::Data) => {
                let from = message.address(attribute::XOR_PEER_ADDRESS);
                let datagram = message.get(attribute::DATA);
                if let (Some(from), Some(datagram)) = (from, datagram)
                    // By address without port, as permissions are (RFC 8656, section 9).
                    && self.peers.iter().any(|peer| peer.address.ip() == from.ip() && !peer.denied)
                {
                    return Some((from, datagram));
                }
                self.ignore("a datagram from an address without a permission");
            }
            (Class::Success | Class::Error, _) => self.handle_answer(now, &message),
            _ => self.ignore("a message that clients never receive"),
        }
        None
    }

    /// Handles the deadlines that have passed.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if let Stage::Open { renew_at, ends_at } = self.stage {
            if now >= ends_at {
                return self.fail(RelayError::Closed("the allocation was not renewed".into()));
            }
            if renew_at.is_some_and(|at| now >= at) {
                // The response sets the next time. Until then the same deadline would be due again and again.
                self.stage = Stage::Open { renew_at: None, ends_at };
                self.request(now, Purpose::Refresh, 0);
            }
            // Permissions end on their own, also if the allocation is refreshed.
            for at in 0..self.peers.len() {
                if self.peers[at].renew_at.is_some_and(|due| now >= due) {
                    self.renew(now, at);
                }
            }
        }
        let mut given_up = Vec::new();
        for request in &mut self.requests {
            match request.poll(now, self.reliable) {
                Retry::Wait => {}
                Retry::Again => self.out.push_back(request.bytes.clone()),
                Retry::GiveUp => given_up.push(request.id),
            }
        }
        for id in given_up {
            if let Some(at) = self.requests.iter().position(|request| request.id == id) {
                self.handle_silence(now, at);
            }
        }
    }

    /// Returns the next bytes to write, in order.
    pub(super) fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        self.out.pop_front()
    }

    /// Returns the next event.
    pub(super) fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns when `handle_timeout` is due; `None` once the allocation has ended.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let requests = self.requests.iter().map(Request::due);
        match self.stage {
            Stage::Over => None,
            Stage::Asking => requests.min(),
            Stage::Open { renew_at, ends_at } => {
                let peers = self.peers.iter().filter_map(|peer| peer.renew_at);
                requests.chain(peers).chain(renew_at).chain([ends_at]).min()
            }
        }
    }

    /// Returns the request that releases the allocation, so that the relay does not keep the address until it
    /// expires.
    pub(super) fn release(&mut self) -> Option<Vec<u8>> {
        let was_open = matches!(self.stage, Stage::Open { .. });
        self.stage = Stage::Over;
        self.requests.clear();
        was_open.then(|| {
            let id = self.ids.next();
            let message = Writer::new(Class::Request, Method::Refresh, id);
            self.sign(message.put(attribute::LIFETIME, &[0; 4]))
        })
    }

    /// Returns how many useless messages arrived.
    #[cfg(test)]
    pub(super) fn ignored(&self) -> u64 {
        self.ignored
    }

    /// Returns the index of an address, adding it if there is room.
    fn peer(&mut self, now: Instant, address: SocketAddr) -> Option<usize> {
        if let Some(at) = self.peers.iter().position(|peer| peer.address == address) {
            return Some(at);
        }
        let at = if self.peers.len() < MAX_PEERS {
            self.peers.push(Peer::new(now, address, false));
            self.peers.len() - 1
        } else {
            // The least recently used one is replaced. Its channel stays reserved for a while.
            let (at, _) = self.peers.iter().enumerate().min_by_key(|(_, peer)| peer.used)?;
            self.peers[at] = Peer::new(now, address, true);
            // Requests name a peer by its place. The response to one for the old peer would be taken as one
            // for the new.
            self.requests.retain(|it| ![Purpose::Bind(at), Purpose::Permit(at)].contains(&it.purpose));
            at
        };
        if matches!(self.stage, Stage::Open { .. }) {
            self.renew(now, at);
        }
        Some(at)
    }

    /// Requests a channel, which includes a permission, or a permission alone.
    fn renew(&mut self, now: Instant, at: usize) {
        self.peers[at].renew_at = None;
        let is_v4 = self.peers[at].address.is_ipv4();
        // A relay without an address of this family would refuse, which would be reported as an address that
        // it denies.
        if !self.relayed.iter().any(|it| it.is_ipv4() == is_v4) {
            return;
        }
        let purpose = if self.peers[at].no_channel { Purpose::Permit(at) } else { Purpose::Bind(at) };
        self.request(now, purpose, 0);
    }

    fn request(&mut self, now: Instant, purpose: Purpose, stale: u8) {
        let id = self.ids.next();
        let message = Writer::new(Class::Request, purpose.method(), id);
        let message = match purpose {
            Purpose::Allocate => {
                /// UDP's protocol number in IP.
                const UDP: [u8; 4] = [17, 0, 0, 0];
                const V6: [u8; 4] = [2, 0, 0, 0];
                let message = message.put(attribute::REQUESTED_TRANSPORT, &UDP);
                // A relay that does not support a second address ignores the attribute.
                let family = if self.only_v6 {
                    attribute::REQUESTED_ADDRESS_FAMILY
                } else {
                    attribute::ADDITIONAL_ADDRESS_FAMILY
                };
                message.put(family, &V6)
            }
            Purpose::Refresh => message,
            Purpose::Permit(at) => message.address(attribute::XOR_PEER_ADDRESS, self.peers[at].address),
            Purpose::Bind(at) => {
                let [high, low] = channel(at).to_be_bytes();
                message
                    .put(attribute::CHANNEL_NUMBER, &[high, low, 0, 0])
                    .address(attribute::XOR_PEER_ADDRESS, self.peers[at].address)
            }
        };
        let bytes = self.sign(message);
        self.out.push_back(bytes.clone());
        self.requests.push(Request::new(now, id, purpose, stale, bytes));
    }

    fn sign(&self, message: Writer) -> Vec<u8> {
        let Some(Session { realm, nonce, key }) = &self.session else { return message.finish() };
        message
            .put(attribute::USERNAME, self.credentials.username.as_bytes())
            .put(attribute::REALM, realm.as_bytes())
            .put(attribute::NONCE, nonce.as_bytes())
            .sign(key)
    }

    fn fail(&mut self, error: RelayError) {
        if self.stage != Stage::Over {
            self.stage = Stage::Over;
            self.requests.clear();
            self.events.push_back(Event::Failed(error));
        }
    }

    fn ignore(&mut self, what: &'static str) {
        self.ignored += 1;
        // Logged at powers of two: a relay could send any number of them.
        if self.ignored.is_power_of_two() {
            tracing::debug!(what, ignored = self.ignored, "a relay's message was ignored");
        }
    }
}

fn channel(at: usize) -> u16 {
    // At most `MAX_PEERS`, far fewer than there are channels.
    CHANNELS.start() + u16::try_from(at).unwrap_or_default()
}

impl fmt::Debug for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allocation").field("stage", &self.stage).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
