//! A LiveKit room, joined by a participant that carries data only: no media, no native WebRTC library.
//!
//! One task owns everything of a participant: the signaling (`livekit-signaling`), the peer
//! connection (`str0m`), the sockets under it, and the queues to and from its [`Room`]. All queues
//! have caps: who sends too much waits, and who reads too slowly slows the sender down.
//!
//! A join is mended where that can be, and followed by a new one where not: the task is older than any of its joins.

#![expect(clippy::disallowed_methods, reason = "the room owns its clock and ends its tasks itself")]

use std::{
    fmt,
    future::Future,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use rustls::pki_types::{CertificateDer, pem::PemObject};
use tokio::sync::{
    mpsc::{self, error::TrySendError},
    oneshot,
};

use crate::transport::{Capabilities, Lane, Packet, Participant, SendError, Transport, TransportEvent};

pub mod access_token;
mod address;
mod backlog;
mod connect;
mod connection;
mod dial;
mod error;
pub(crate) mod host;
mod host_lookup;
#[cfg(test)]
mod hostile;
mod ice_tcp;
mod liveness;
mod packet;
mod participants;
mod peer_connection;
pub mod probe;
mod proxy;
mod queues;
mod refusal;
mod rejoin;
mod resume;
mod sequence;
mod signal;
mod simulate;
mod snapshot;
mod sockets;
mod stream;
mod task;
mod tls;
mod tokens;
mod turn;
mod websocket;

pub use error::{ConnectError, JoinPhase};
pub use refusal::TokenRefusal;
pub use simulate::Scenario;
pub use turn::{RelayError, RelayFailure};

use address::ServerUrl;
use connect::Connector;
use queues::{Leave, Outgoing, Queues, Shared, State, UserQueues};
use rejoin::{Policy, Rejoin};
use snapshot::Snapshot;
use stream::Outflow;
use task::Task;
use tokens::{TokenSource, has_the_form_of_a_token};

/// Checks the address of a server as a join does, without connecting.
///
/// # Errors
/// [`ConnectError::Url`] if it is not the address of a LiveKit server.
pub fn check_url(url: &str) -> Result<(), ConnectError> {
    ServerUrl::parse(url).map(drop)
}

/// The longest that anything is waited for: "no limit at all" would be beyond the clock's end.
const LONGEST: Duration = Duration::from_secs(3600);

/// A joined room. Dropping it leaves, without waiting; [`close`](Transport::close) leaves in order.
///
/// A lost connection is told as [`TransportEvent::ConnectionState`] with `Down`, and it joins anew by itself, until that
/// works ([`RoomOptions::rejoin_wait`]), is of no use any more, or [`RoomOptions::rejoin_limit`] is over. `Up`
/// is told in the new join: with another sid, and nothing kept. Packets that had not left are told as
/// [`SendError::Interrupted`], as is all that is sent meanwhile; what had left may have arrived or not.
/// Lost is what is silent for 2.8 s, or for 2.5 s while something waits to be acknowledged (2.3 and 1.5 s while the
/// signaling is lost, too), and what acknowledges nothing for 5 s, or for 1 s behind a hole of 2 s. Time in which this process
/// itself stood still, up to 10 s, does not count. Only packets that are proven to come from the server count as heard.
/// Somebody's will (a removal,
/// a deleted room, another participant with the same identity), an expired token and a token that is refused for 15 s end it:
/// [`TransportEvent::Closed`] says why.
///
/// A lost signaling connection is no lost join: packets pass without it, and another one is opened beside them, for
/// as long as the server lives. Nor is a network address of ours that goes away while another one is there: then `Down`
/// and `Up` are told under the same sid, packets that are sent in between wait, and nothing reliable is lost. A server
/// that puts us into another room is followed: that is told as a new join is.
///
/// What waits to be received has a cap (4 MiB); beyond it the network's own brakes are used, and it can
/// take seconds until a sender that was slowed down is fast again. So receive without delay.
///
/// Participants that were there at the join are in [`present`](Transport::present) and are not
/// announced again; later ones, and changes, come as [`TransportEvent::Joined`]. A packet whose
/// sender was not announced yet is delivered all the same. Who is there, and who we are, changes as the
/// events are read that tell of it.
pub struct Room {
    snapshot: Snapshot,
    shared: Arc<Shared>,
    ends: UserQueues,
}

/// How a room is joined.
///
/// ```no_run
/// # async fn f() -> Result<(), toolbridge::transport::livekit::ConnectError> {
/// use toolbridge::transport::livekit::RoomOptions;
///
/// let pem = std::fs::read("my-root.pem")?;
/// let room = RoomOptions::new().root_certificates(&pem)?.join("wss://sfu.local", "token").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct RoomOptions {
    roots: Vec<CertificateDer<'static>>,
    join_timeout: Duration,
    bind: Option<IpAddr>,
    udp: bool,
    tcp: bool,
    relay_only: bool,
    direct_only: bool,
    rejoin_wait: [Duration; 2],
    rejoin_limit: Option<Duration>,
    source: Option<TokenSource>,
    warn_unencrypted: fn(&str),
}

impl Default for RoomOptions {
    fn default() -> Self {
        Self {
            roots: Vec::new(),
            join_timeout: Self::JOIN_TIMEOUT,
            bind: None,
            udp: true,
            tcp: true,
            relay_only: false,
            direct_only: false,
            rejoin_wait: [Self::FIRST_REJOIN_WAIT, Self::LONGEST_REJOIN_WAIT],
            rejoin_limit: None,
            source: None,
            warn_unencrypted: |server| tracing::warn!(server, "the token travels unencrypted: use wss://"),
        }
    }
}

impl RoomOptions {
    /// How long a join may take by default: 15 s, for ICE over TCP behind a slow firewall.
    pub const JOIN_TIMEOUT: Duration = Duration::from_secs(15);

    /// The first wait between two attempts to join anew, by default: 200 ms.
    pub const FIRST_REJOIN_WAIT: Duration = Duration::from_millis(200);

    /// The longest wait between two attempts to join anew, by default: 5 s.
    pub const LONGEST_REJOIN_WAIT: Duration = Duration::from_secs(5);

    /// The system's root certificates, 15 s, any address, UDP and TCP; joins anew for ever.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts these root certificates beside the system's: PEM, one or several, or one in DER.
    ///
    /// # Errors
    /// [`ConnectError::Tls`] if there is no certificate in it.
    pub fn root_certificates(mut self, pem_or_der: &[u8]) -> Result<Self, ConnectError> {
        /// How PEM begins, after what may stand before it.
        const PEM: &[u8] = b"-----BEGIN ";
        let unusable = |reason: String| ConnectError::Tls { server: "the server".into(), reason };
        if !pem_or_der.windows(PEM.len()).any(|text| text == PEM) {
            if pem_or_der.is_empty() {
                return Err(unusable("the root certificate given is empty".into()));
            }
            self.roots.push(CertificateDer::from(pem_or_der.to_vec()));
            return Ok(self);
        }
        let before = self.roots.len();
        for certificate in CertificateDer::pem_slice_iter(pem_or_der) {
            self.roots.push(
                certificate
                    .map_err(|error| unusable(format!("a root certificate given is no PEM: {error}")))?,
            );
        }
        if self.roots.len() == before {
            return Err(unusable("the PEM given holds no certificate".into()));
        }
        Ok(self)
    }

    /// How long a join may take in all. Default: [`RoomOptions::JOIN_TIMEOUT`]; an hour at most.
    pub fn join_timeout(mut self, limit: Duration) -> Self {
        self.join_timeout = limit.min(LONGEST);
        self
    }

    /// Sends packets from this address of ours only. Default: whichever leads to the server.
    pub fn bind_address(mut self, address: IpAddr) -> Self {
        self.bind = Some(address);
        self
    }

    /// Uses TCP only, for networks that let UDP begin and then choke it. Default: both.
    pub fn tcp_only(mut self) -> Self {
        (self.udp, self.tcp) = (false, true);
        self
    }

    /// Uses UDP only, to see whether it gets through at all; a room to stay in is better off with both. The
    /// signaling is a WebSocket all the same. Default: both.
    pub fn udp_only(mut self) -> Self {
        (self.udp, self.tcp) = (true, false);
        self
    }

    /// Uses no relay (TURN), unless the server demands one. For diagnostics: most apps should leave relays on.
    pub fn direct_only(mut self) -> Self {
        self.direct_only = true;
        self
    }

    /// Calls this, in place of logging a warning, if the token would travel unencrypted to another machine. Its argument is
    /// the server's host and port.
    pub fn warn_unencrypted(mut self, warn: fn(&str)) -> Self {
        self.warn_unencrypted = warn;
        self
    }

    /// Sends packets through the relays (TURN servers) that the room's server names, and nothing directly: for
    /// networks that let nothing else out, and for who must not show where he is. The signaling is not concerned.
    /// With [`tcp_only`](RoomOptions::tcp_only) only relays over TCP and TLS are used. Default: relays are used
    /// where no direct path is, unless the server demands them.
    pub fn relay_only(mut self) -> Self {
        self.relay_only = true;
        self
    }

    /// How long to wait between two attempts to join anew after a lost connection, counted from the
    /// beginning of the one to that of the next: the first wait, which doubles up to the longest. Up to half
    /// of a wait is left to chance, and the first attempt follows within half of the first wait. Default:
    /// 200 ms and 5 s; an hour each at most.
    pub fn rejoin_wait(mut self, first: Duration, longest: Duration) -> Self {
        let longest = longest.min(LONGEST);
        self.rejoin_wait = [first.min(longest), longest];
        self
    }

    /// How long to try to join anew after a lost connection; then it ends as
    /// [`CloseReason::ConnectionLost`](crate::transport::CloseReason::ConnectionLost). Zero: not at all. Default: for ever.
    pub fn rejoin_limit(mut self, limit: Duration) -> Self {
        self.rejoin_limit = Some(limit);
        self
    }

    /// Where a fresh token comes from when the server takes the newest no more, after an absence longer than
    /// its life (10 min): a join that was lost. It must be for the same identity and the same room. A source
    /// that fails is asked again with the next attempt. Default: none, and so an expired token is the end,
    /// as [`CloseReason::TokenExpired`](crate::transport::CloseReason::TokenExpired).
    ///
    /// ```
    /// use toolbridge::transport::livekit::RoomOptions;
    ///
    /// # async fn from_our_token_server() -> std::io::Result<String> { Ok(String::new()) }
    /// let options = RoomOptions::new().token_source(|| async { from_our_token_server().await });
    /// ```
    pub fn token_source<F, Fut, E>(mut self, source: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<String, E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.source = Some(TokenSource::new(source));
        self
    }

    /// Joins a room. The address is `wss://HOST` or `ws://HOST:PORT`; the token names the room.
    ///
    /// The signaling goes through the HTTP proxy that the environment names, if it does: `HTTPS_PROXY` for `wss`,
    /// `HTTP_PROXY` for `ws`, `ALL_PROXY` for both, in capitals or not; not for what `NO_PROXY` lists, and never for
    /// this machine. Packets never go through it.
    ///
    /// # Errors
    /// Each kind of failure has its variant of [`ConnectError`]. The first join is tried once.
    ///
    /// # Cancel safety
    /// A dropped future leaves the room again.
    pub async fn join(self, url: &str, token: &str) -> Result<Room, ConnectError> {
        let url = ServerUrl::parse(url)?;
        if !has_the_form_of_a_token(token) {
            return Err(ConnectError::MalformedToken);
        }
        websocket::register().map_err(|_| ConnectError::ForeignClient)?;
        if url.is_exposed().await {
            (self.warn_unencrypted)(&url.to_string());
        }
        let policy = self.policy();
        let connector = Connector {
            url,
            roots: self.roots,
            bind: self.bind,
            udp: self.udp,
            tcp: self.tcp,
            relay_only: self.relay_only,
            direct_only: self.direct_only,
            policy,
        };
        let start = Instant::now();
        let joined = connector.connect(token, self.join_timeout).await?;

        let (queues, ends) = Queues::new(State {
            sid: Some(joined.local.sid().clone()),
            can_publish_data: joined.can_publish_data,
            token: joined.token.clone(),
            closed: None,
        });
        let room = Room { snapshot: joined.snapshot(), shared: queues.shared.clone(), ends };
        let rejoin = Rejoin::new(Instant::now(), policy, start.elapsed());
        let (name, local) = (joined.room.clone(), joined.local.clone());
        let task = Task { queues, connector, source: self.source, rejoin, room: name, local };
        tokio::spawn(task.run(joined));
        Ok(room)
    }
}

impl RoomOptions {
    fn policy(&self) -> Policy {
        let [first, longest] = self.rejoin_wait;
        Policy { first, longest, limit: self.rejoin_limit, join_timeout: self.join_timeout }
    }
}

impl Room {
    /// Joins a room as [`RoomOptions::new`] does it.
    ///
    /// ```no_run
    /// # async fn f() -> Result<(), toolbridge::transport::livekit::ConnectError> {
    /// use toolbridge::{Transport, transport::livekit::Room};
    ///
    /// let room = Room::join("wss://example.livekit.cloud", "token").await?;
    /// println!("here: {:?}", room.present());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Each kind of failure has its variant of [`ConnectError`].
    ///
    /// # Cancel safety
    /// A dropped future leaves the room again.
    pub async fn join(url: &str, token: &str) -> Result<Self, ConnectError> {
        RoomOptions::new().join(url, token).await
    }

    /// Whether the server lets us send data: without that right it drops what we send, without a word.
    pub fn can_publish_data(&self) -> bool {
        self.shared.with(|state| state.can_publish_data)
    }

    /// The newest token: the server renews it every few minutes, with what the participant may do by then.
    pub fn token(&self) -> String {
        self.shared.with(|state| state.token.clone())
    }
}

impl Room {
    /// Makes something go wrong, to see how an app bears it. What comes of it is told as of anything else that goes
    /// wrong. The server needs to take part in most of it, and does so for everybody who asks.
    ///
    /// ```no_run
    /// # async fn f(mut room: toolbridge::transport::livekit::Room) {
    /// use toolbridge::{Transport, transport::livekit::Scenario};
    ///
    /// room.simulate(Scenario::NodeFailure);
    /// println!("{:?}", room.recv().await); // ConnectionState(Reconnecting)
    /// # }
    /// ```
    pub fn simulate(&self, scenario: Scenario) {
        // Only what no join has had the time to do yet finds no place, and it is a wish.
        let _ = self.ends.simulate.try_send(scenario);
    }
}

impl Transport for Room {
    fn local(&self) -> Participant {
        self.snapshot.local().clone()
    }

    fn room(&self) -> String {
        self.snapshot.room().to_owned()
    }

    fn present(&self) -> Vec<Participant> {
        self.snapshot.present()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { lossy: true, streams: true, ..Capabilities::default() }
    }

    /// Hands a packet to the room: done when it was written to its channel, the last part of a stream if it is a
    /// large one. The parts are written as the network takes them, with at most 128 KiB on their way.
    ///
    /// It takes its place in the lane's queue at the call, if the queue has one, else when first polled.
    ///
    /// # Errors
    /// [`SendError`]; whatever it is, the packet has not left this process.
    fn send(&self, packet: Packet) -> impl Future<Output = Result<(), SendError>> + Send + 'static {
        let shared = self.shared.clone();
        let queued = self.enqueue(packet);
        async move {
            let (waiting, written) = queued?;
            if let Some((queue, outgoing)) = waiting {
                queue.send(outgoing).await.map_err(|_| shared.closed())?;
            }
            written.await.unwrap_or_else(|_| Err(shared.closed()))
        }
    }

    fn backlog(&self) -> usize {
        self.shared.backlog.bytes()
    }

    async fn recv(&mut self) -> Option<TransportEvent> {
        loop {
            let told = self.ends.events.recv().await?;
            if let Some(event) = self.snapshot.read(told) {
                return Some(event);
            }
        }
    }

    /// Leaves in order: waits up to 1 s until the server has acknowledged what was handed over,
    /// then says goodbye.
    async fn close(&mut self) {
        let (left, done) = oneshot::channel();
        if self.ends.leave.send(Leave { left }).await.is_ok() {
            // An error means that the task has ended, and so has left.
            let _ = done.await;
        }
    }
}

/// A queue with no place left and what waits for one; and the answer.
type Queued = (Option<(mpsc::Sender<Outgoing>, Outgoing)>, oneshot::Receiver<Result<(), SendError>>);

impl Room {
    fn enqueue(&self, packet: Packet) -> Result<Queued, SendError> {
        let sid = self.snapshot.local().sid();
        let (closed, joined, allowed) = self
            .shared
            .with(|state| (state.closed.is_some(), state.sid.as_ref() == Some(sid), state.can_publish_data));
        if closed {
            return Err(self.shared.closed());
        }
        if !packet.is_addressed() {
            return Err(SendError::NoDestination);
        }
        let streamed = packet.lane == Lane::Reliable && packet.payload.len() > Capabilities::MAX_PACKET;
        check_size(packet.payload.len(), if streamed { usize::MAX } else { Capabilities::MAX_PACKET })?;
        // What was meant for the room as the user knows it does not leave in a later join.
        if !joined {
            return Err(SendError::Interrupted);
        }
        // The server drops what we may not send without a word.
        if !allowed {
            return Err(SendError::NotAllowed);
        }
        let (queue, waiting) = match packet.lane {
            Lane::Reliable if packet.overtakes => (&self.ends.urgent, packet.payload.len()),
            Lane::Reliable => (&self.ends.reliable, packet.payload.len()),
            Lane::Lossy => (&self.ends.lossy, 0),
        };
        let mut rest = streamed.then(|| Outflow::new(&packet, sid));
        let largest = rest.as_ref().map(Outflow::largest);
        let packet = match rest.as_mut().and_then(Outflow::next) {
            Some(header) => header,
            None => packet::outgoing(packet, sid),
        };
        check_size(packet::encoded_size(largest.as_ref().unwrap_or(&packet)), packet::MAX_ENCODED)?;
        let (written, answer) = oneshot::channel();
        let waits = self.shared.backlog.queue(waiting);
        match queue.try_send(Outgoing { packet, rest, written, waits }) {
            Ok(()) => Ok((None, answer)),
            Err(TrySendError::Full(outgoing)) => Ok((Some((queue.clone(), outgoing)), answer)),
            Err(TrySendError::Closed(_)) => Err(self.shared.closed()),
        }
    }
}

/// Any number, so that not all who were lost together come back together.
fn chance() -> u32 {
    // Without the system's chance there is still the order in which they come.
    getrandom::u32().unwrap_or(u32::MAX / 2)
}

fn check_size(size: usize, limit: usize) -> Result<(), SendError> {
    if size > limit { Err(SendError::TooLarge { size, limit }) } else { Ok(()) }
}

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Room")
            .field("name", &self.snapshot.room())
            .field("local", self.local().peer())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_certificate_is_pem_or_der_and_never_nothing() {
        let certificate = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap().cert;
        let two = certificate.pem().repeat(2);
        assert_eq!(RoomOptions::new().root_certificates(two.as_bytes()).unwrap().roots.len(), 2);
        assert_eq!(RoomOptions::new().root_certificates(certificate.der()).unwrap().roots.len(), 1);
        for nothing in [
            "",
            "-----BEGIN CERTIFICATE-----\n",
            "-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----\n",
        ] {
            assert!(RoomOptions::new().root_certificates(nothing.as_bytes()).is_err(), "{nothing}");
        }
    }

    #[tokio::test]
    async fn a_join_without_a_limit_has_one() {
        let options = RoomOptions::new().join_timeout(Duration::MAX);
        assert!(Instant::now().checked_add(options.join_timeout).is_some());
        // As for the user: the limit is reckoned with before the server is asked.
        assert!(matches!(
            options.join("ws://127.0.0.1:1", "a.b.c").await,
            Err(ConnectError::Unreachable { .. })
        ));
    }

    #[test]
    fn waits_without_an_end_have_one() {
        let (now, lost) = (Instant::now(), || liveness::End::Lost(liveness::Loss::Signaling("gone".into())));
        for first in [Duration::ZERO, Duration::from_secs(1), Duration::MAX] {
            let policy =
                RoomOptions::new().rejoin_wait(first, Duration::MAX).rejoin_limit(Duration::MAX).policy();
            for tries in [0, 1, 2, 40, u32::MAX] {
                assert!(policy.wait(tries, u32::MAX) <= LONGEST, "{first:?}, {tries}");
            }
            let (mut rejoin, mut resume) =
                (Rejoin::new(now, policy, LONGEST), resume::Resume::new(now, policy));
            rejoin.handle_ended(now, lost(), u32::MAX);
            resume.handle_lost(now, u32::MAX);
            let mut at = now;
            for _ in 0..40 {
                while let rejoin::Step::Wait(until) = rejoin.poll(at) {
                    at = until;
                }
                let failed = rejoin::Failure::NoToken("away".into());
                rejoin.handle_failed(at, &failed, u32::MAX);
                at = resume.poll_timeout().unwrap_or(at).max(at);
                if resume.poll(at).is_some() {
                    resume.handle_failed(at, u32::MAX);
                }
            }
        }
    }

    #[tokio::test]
    async fn an_address_that_is_none_costs_no_socket() {
        assert!(matches!(Room::join("localhost", "t").await, Err(ConnectError::Url { .. })));
    }

    #[tokio::test]
    async fn a_token_that_is_none_costs_no_connection() {
        for none in ["", "t", "a.b", "a.b.c.d", "a..c", "Bearer a.b.c", "\"a.b.c\"", "a.b.c\n"] {
            let joined = Room::join("ws://127.0.0.1:1", none).await;
            assert!(matches!(joined, Err(ConnectError::MalformedToken)), "{none:?}");
        }
    }
}
