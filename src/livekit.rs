//! Joins LiveKit rooms as a data-only participant: no media, and no native WebRTC library.
//!
//! One task owns a participant: its signaling (`livekit/signaling.rs`), its peer connection (`str0m`), the sockets below
//! them. It takes packets from one queue and puts events into another one. Both are bounded: a sender waits when the
//! queue is full, and a slow reader slows the remote sender down.
//!
//! A builder's `join` polls the task's work in the task of its `Client` or `Assistant` (`ConnectOptions::connect`).
//!
//! The task outlives individual connections. It resumes a connection where possible and rejoins the room otherwise.
//!
//! A [`Diagnosis`] finds out why a room cannot be joined, and what to do about it.

#![expect(
    clippy::disallowed_methods,
    reason = "the participant reads the clock and ends the tasks that it spawns"
)]

use std::{
    error::Error,
    fmt,
    future::Future,
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use rustls::pki_types::{CertificateDer, pem::PemObject};
use tokio::sync::oneshot;

use crate::transport::{
    Capabilities, Packet, Participant, SendError, SentObserver, Transport, TransportEvent,
    send_queue::SendQueue,
};

mod diagnosis;
mod e2ee;
mod error;
#[cfg(test)]
mod hostile;
pub(crate) mod path;
mod room;
mod signaling;
pub(crate) mod token;
mod wire;

pub use diagnosis::{Check, CheckStatus, Diagnosis};
pub use e2ee::{E2eeKey, E2eeKeys, InvalidKeyIndex};
pub use error::{ConnectError, JoinPhase};
pub use path::turn::{RelayError, RelayFailure};
pub use room::simulate::Scenario;
pub use signaling::refusal::TokenRefusal;
pub use token::access_token::{AccessKey, Bearer, Token, TokenClaims, TokenError};

use room::{
    connect::Connector,
    queues::{Leave, Queues, Shared, State, UserQueues},
    rejoin::{Policy, Rejoin},
    snapshot::Snapshot,
    task::Task,
};
use signaling::{Sent, SignalOptions, address::ServerUrl, first::First};
use token::tokens::{TokenSource, has_the_form_of_a_token};

/// Validates a server address with the rules that [`ConnectOptions::join`] uses, without connecting.
///
/// # Errors
/// [`ConnectError::Url`] if `url` is not a valid LiveKit server address.
pub fn check_url(url: &str) -> Result<(), ConnectError> {
    ServerUrl::parse(url).map(drop)
}

/// The upper bound of every configured duration. Adding `Duration::MAX` to the current time would overflow.
const LONGEST: Duration = Duration::from_secs(3600);

/// The work of a connection: signaling, sockets, and the packets of its queue.
pub(crate) type ConnectionWork = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A connection to a LiveKit room. Dropping it leaves without waiting; [`close`](Transport::close) flushes first.
///
/// # Reconnection
///
/// When the connection is lost, the room emits [`TransportEvent::ConnectionState`] with
/// [`Reconnecting`](crate::transport::ConnectionState::Reconnecting) and rejoins by itself. Attempts are spaced by
/// [`ConnectOptions::rejoin_wait`] and stop after [`ConnectOptions::rejoin_limit`]. After a rejoin it emits
/// [`Connected`](crate::transport::ConnectionState::Connected); the local participant then has a new sid, and nothing of
/// the previous connection is kept. Packets still queued, and packets sent while reconnecting, fail with
/// [`SendError::Interrupted`]. Packets already sent may or may not have arrived.
///
/// The connection counts as lost when no packet arrives, or no data is acknowledged, for this long:
///
/// | condition | signaling up | signaling down |
/// | --- | --- | --- |
/// | no packets | 2.8 s | 2.3 s |
/// | no packets, data unacknowledged | 2.5 s | 1.5 s |
/// | packets, but no acknowledgement progress | 5 s | 5 s |
/// | no acknowledgement progress after an outage of 2 s or more | 1 s | 1 s |
///
/// Only packets authenticated as the server's count. Up to 10 s during which this process was suspended do not count.
///
/// Reconnection stops, and [`TransportEvent::Closed`] gives the reason, if the participant is removed, the room is deleted,
/// another participant joins with the same identity, the token expires, or the server rejects the token for 15 s.
///
/// These events do not cause a rejoin:
/// - The signaling connection is lost. Packets keep flowing, and signaling is resumed in the background.
/// - The local network address changes while another address is available. The state changes to `Reconnecting` and back
///   to `Connected` under the same sid. Packets sent in between are queued, and no reliable packet is lost.
///
/// If the server moves the participant to another room, the events are the same as for a rejoin.
///
/// # Receiving
///
/// At most 4 MiB of events are queued. Beyond that, flow control slows the remote senders down, and they can take seconds
/// to recover. Call [`recv`](Transport::recv) without delay.
///
/// [`present`](Transport::present) lists the participants that were in the room at the join; no event announces them.
/// [`TransportEvent::Joined`] reports later participants and changes. A packet can arrive before its sender is announced.
/// [`local`](Transport::local) and [`present`](Transport::present) change as events are read, not before.
pub struct LiveKitTransport {
    snapshot: Snapshot,
    shared: Arc<Shared>,
    ends: UserQueues,
    capabilities: Capabilities,
}

/// Options for joining a room.
///
/// ```no_run
/// # async fn f() -> Result<(), toolbridge::livekit::ConnectError> {
/// use toolbridge::livekit::ConnectOptions;
///
/// let pem = std::fs::read("my-root.pem")?;
/// let room = ConnectOptions::new().root_certificates(&pem)?.join("wss://sfu.local", "token").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ConnectOptions {
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
    keys: Option<E2eeKeys>,
    has_rpc: bool,
    first: First,
    compress: Option<bool>,
    warn_unencrypted: fn(&str),
}

impl Default for ConnectOptions {
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
            keys: None,
            has_rpc: false,
            first: First::default(),
            compress: None,
            warn_unencrypted: |server| tracing::warn!(server, "the token is sent unencrypted; use wss://"),
        }
    }
}

impl ConnectOptions {
    /// The default time limit of a join: 15 s, enough for ICE over TCP behind a slow firewall.
    pub const JOIN_TIMEOUT: Duration = Duration::from_secs(15);

    /// The default wait between the first two rejoin attempts: 200 ms.
    pub const FIRST_REJOIN_WAIT: Duration = Duration::from_millis(200);

    /// The default upper bound of the wait between two rejoin attempts: 5 s.
    pub const LONGEST_REJOIN_WAIT: Duration = Duration::from_secs(5);

    /// Creates the default options: the system's root certificates, a join limit of 15 s, any local address, UDP, TCP and
    /// relays, and no limit for rejoining.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts these root certificates in addition to the system's. Accepts PEM with one or more certificates, or one
    /// certificate in DER.
    ///
    /// # Errors
    /// [`ConnectError::Tls`] if the input contains no certificate or an invalid one.
    pub fn root_certificates(mut self, pem_or_der: &[u8]) -> Result<Self, ConnectError> {
        /// The first characters of a PEM block. Text may precede it.
        const PEM: &[u8] = b"-----BEGIN ";
        let unusable = |source: Box<dyn Error + Send + Sync>| {
            let server = "the server".into();
            ConnectError::Tls { server, source }
        };
        if !pem_or_der.windows(PEM.len()).any(|text| text == PEM) {
            if pem_or_der.is_empty() {
                return Err(unusable("the root certificate is empty".into()));
            }
            self.roots.push(CertificateDer::from(pem_or_der.to_vec()));
            return Ok(self);
        }
        let before = self.roots.len();
        for certificate in CertificateDer::pem_slice_iter(pem_or_der) {
            self.roots.push(
                certificate.map_err(|error| {
                    unusable(format!("a root certificate is not valid PEM: {error}").into())
                })?,
            );
        }
        if self.roots.len() == before {
            return Err(unusable("the PEM input contains no certificate".into()));
        }
        Ok(self)
    }

    /// Sets the time limit of one join, from DNS lookup to open data channels. Default: [`ConnectOptions::JOIN_TIMEOUT`];
    /// maximum: 1 h.
    pub fn join_timeout(mut self, limit: Duration) -> Self {
        self.join_timeout = limit.min(LONGEST);
        self
    }

    /// Sends and receives packets on this local address only. Default: the addresses that have a route to the server.
    pub fn bind_address(mut self, address: IpAddr) -> Self {
        self.bind = Some(address);
        self
    }

    /// Uses TCP only, for networks that throttle UDP after it was established. Default: UDP and TCP.
    pub fn tcp_only(mut self) -> Self {
        (self.udp, self.tcp) = (false, true);
        self
    }

    /// Uses UDP only, to test whether UDP works. For regular use allow both. Signaling still uses a WebSocket. Default: UDP
    /// and TCP.
    pub fn udp_only(mut self) -> Self {
        (self.udp, self.tcp) = (true, false);
        self
    }

    /// Disables relays (TURN) unless the server requires one. This is for diagnostics: most apps should allow relays.
    pub fn direct_only(mut self) -> Self {
        self.direct_only = true;
        self
    }

    /// Calls `warn` with the server's host and port if the token is about to be sent unencrypted to another machine.
    /// Default: log a warning.
    pub fn warn_unencrypted(mut self, warn: fn(&str)) -> Self {
        self.warn_unencrypted = warn;
        self
    }

    /// Sends all packets through the relays (TURN servers) that the LiveKit server provides, for networks that block direct
    /// traffic and for apps that must not reveal their address to the media server. Signaling is not relayed. With
    /// [`tcp_only`](ConnectOptions::tcp_only) only relays over TCP and TLS are used. Default: a relay is used if there is no
    /// direct path, or if the server requires one.
    pub fn relay_only(mut self) -> Self {
        self.relay_only = true;
        self
    }

    /// Sets the wait between two rejoin attempts, measured from start to start. It begins at `first` and doubles up to
    /// `longest`. Up to half of each wait is random. The first attempt starts within half of `first` after the loss.
    /// Default: 200 ms and 5 s; maximum: 1 h each.
    pub fn rejoin_wait(mut self, first: Duration, longest: Duration) -> Self {
        let longest = longest.min(LONGEST);
        self.rejoin_wait = [first.min(longest), longest];
        self
    }

    /// Sets how long to try to rejoin after the connection was lost. After that the room closes with
    /// [`CloseReason::ConnectionLost`](crate::transport::CloseReason::ConnectionLost). Zero disables rejoining. Default: no
    /// limit.
    pub fn rejoin_limit(mut self, limit: Duration) -> Self {
        self.rejoin_limit = Some(limit);
        self
    }

    /// Sets the source of fresh tokens for rejoining. It is called when the newest token has expired or was rejected, for
    /// example after an outage longer than the token's lifetime (10 min). The token must be for the same identity and room.
    /// If the source fails, it is called again for the next attempt. Default: none; an expired token then closes the room
    /// with [`CloseReason::TokenExpired`](crate::transport::CloseReason::TokenExpired).
    ///
    /// ```
    /// use toolbridge::livekit::ConnectOptions;
    ///
    /// # async fn fetch_token() -> std::io::Result<String> { Ok(String::new()) }
    /// let options = ConnectOptions::new().token_source(|| async { fetch_token().await });
    /// ```
    pub fn token_source<F, Fut, E>(mut self, source: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<String, E>> + Send + 'static,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        self.source = Some(TokenSource::new(source));
        self
    }

    /// Encrypts all data packets end to end with this key, and ignores packets that are not encrypted with it. Default:
    /// packets are encrypted on their way to the server and from there, and the server can read them.
    ///
    /// All participants need the key. Packets of the server's API, which has no key, are ignored too.
    pub fn e2ee_key(self, key: E2eeKey) -> Self {
        self.e2ee_keys(&E2eeKeys::new(key))
    }

    /// Encrypts all data packets end to end, as [`e2ee_key`](Self::e2ee_key), with keys that may change while the participant is in
    /// the room.
    pub fn e2ee_keys(mut self, keys: &E2eeKeys) -> Self {
        self.keys = Some(keys.clone());
        self
    }

    /// Sets whether the participant announces to others that it takes part in LiveKit's RPC: they may then send it requests
    /// and results as streams of text, compressed and in their headers. Builders set it as their participant needs it.
    /// Default: false.
    pub fn announce_rpc(mut self, has_rpc: bool) -> Self {
        self.has_rpc = has_rpc;
        self
    }

    /// Knows these participants in a room of any size. At most 4,096 of a room are known: these come first, then agents and those
    /// with a role in their tokens. Further ones are found when others leave; a log entry says that there are some. Builders add
    /// those that their participant names. Default: none.
    pub fn know_first(mut self, identities: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Arc::make_mut(&mut self.first).extend(identities.into_iter().map(Into::into));
        self
    }

    /// Sets whether large frames are compressed for participants that can expand them, which needs the feature `deflate`.
    /// Default: true without an [`e2ee_key`](Self::e2ee_key), and false with one: the length of a compressed frame tells
    /// whoever can only see lengths, such as the server, how much its parts resemble each other.
    pub fn compress(mut self, compresses: bool) -> Self {
        self.compress = Some(compresses);
        self
    }

    /// Joins the room that the token names, on the server at `url` (`wss://HOST` or `ws://HOST:PORT`).
    ///
    /// Signaling uses the HTTP proxy set in the environment: `HTTPS_PROXY` for `wss`, `HTTP_PROXY` for `ws`, `ALL_PROXY` for
    /// both, in upper or lower case. Hosts in `NO_PROXY` and this machine are reached directly. Packets never use a proxy.
    ///
    /// # Errors
    /// Returns a [`ConnectError`] with one variant per cause. The first join is not retried, unless the
    /// server asks for that and the [`join_timeout`](Self::join_timeout) allows it.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the room. Joining is not resumed by a later call.
    ///
    /// # Panics
    /// Outside a Tokio runtime, or in one without time and I/O.
    pub async fn join(self, url: &str, token: &str) -> Result<LiveKitTransport, ConnectError> {
        let (room, work) = self.connect(url, token).await?;
        tokio::spawn(work);
        Ok(room)
    }

    /// Returns what a room that is joined with these options can carry.
    pub(crate) fn capabilities(&self) -> Capabilities {
        let overhead = self.keys.as_ref().map_or(0, |_| e2ee::OVERHEAD);
        let compress = self.compress.unwrap_or_else(|| self.keys.is_none());
        Capabilities { lossy: true, streams: true, compress, overhead, ..Capabilities::default() }
    }

    /// Joins a room, and returns the work that keeps the connection going. It ends after the transport was dropped; until then
    /// somebody has to poll it.
    pub(crate) async fn connect(
        self,
        url: &str,
        token: &str,
    ) -> Result<(LiveKitTransport, ConnectionWork), ConnectError> {
        let url = ServerUrl::parse(url)?;
        if !has_the_form_of_a_token(token) {
            return Err(ConnectError::MalformedToken);
        }
        if url.is_exposed().await {
            (self.warn_unencrypted)(&url.to_string());
        }
        let (policy, capabilities) = (self.policy(), self.capabilities());
        let connector = Connector {
            signal: Arc::new(SignalOptions {
                url,
                roots: self.roots,
                has_rpc: self.has_rpc,
                first: self.first,
            }),
            bind: self.bind,
            udp: self.udp,
            tcp: self.tcp,
            relay_only: self.relay_only,
            direct_only: self.direct_only,
            policy,
            keys: self.keys,
        };
        let start = Instant::now();
        // Boxed: it is needed once, and would make the futures of all callers large.
        let joined = Box::pin(connector.connect(token, self.join_timeout, &Sent::default())).await?;

        let state = State { can_publish_data: joined.can_publish_data, token: joined.token.clone() };
        let (queues, ends) = Queues::new(joined.local.sid().clone(), state);
        let shared = queues.shared.clone();
        let room = LiveKitTransport { snapshot: joined.snapshot(), shared, ends, capabilities };
        let rejoin = Rejoin::new(Instant::now(), policy, start.elapsed());
        let (name, local) = (joined.room.clone(), joined.local.clone());
        let task = Task { queues, connector, source: self.source, rejoin, room: name, local };
        Ok((room, Box::pin(task.run(joined))))
    }

    /// Creates a diagnosis, which finds out why [`join`](Self::join) with this URL and token fails. Each of its attempts takes
    /// at most [`join_timeout`](Self::join_timeout). Its joins use the token's identity, which disconnects a participant that
    /// uses the same identity.
    ///
    /// # Errors
    /// [`ConnectError::Url`] if `url` is not a valid LiveKit server address.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect: it reads the proxy settings and the root certificates only.
    pub async fn diagnose(self, url: &str, token: &str) -> Result<Diagnosis, ConnectError> {
        Diagnosis::new(self, url, Some(token), None, "").await
    }

    /// Creates a diagnosis that signs its own tokens with this API key. It joins `room` as new participants, which have no
    /// role. Use a room of its own, since its participants come and go.
    ///
    /// # Errors
    /// [`ConnectError::Url`] if `url` is not a valid LiveKit server address.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect: it reads the proxy settings and the root certificates only.
    pub async fn diagnose_with_key(
        self,
        url: &str,
        key: &AccessKey,
        room: &str,
    ) -> Result<Diagnosis, ConnectError> {
        Diagnosis::new(self, url, None, Some(key), room).await
    }
}

impl ConnectOptions {
    fn policy(&self) -> Policy {
        let [first, longest] = self.rejoin_wait;
        Policy { first, longest, limit: self.rejoin_limit, join_timeout: self.join_timeout }
    }
}

impl LiveKitTransport {
    /// Joins a room with the default options. See [`ConnectOptions::join`].
    ///
    /// ```no_run
    /// # async fn f() -> Result<(), toolbridge::livekit::ConnectError> {
    /// use toolbridge::{transport::Transport, livekit::LiveKitTransport};
    ///
    /// let room = LiveKitTransport::join("wss://example.livekit.cloud", "token").await?;
    /// println!("here: {:?}", room.present());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns a [`ConnectError`] with one variant per cause.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the room.
    ///
    /// # Panics
    /// Outside a Tokio runtime, or in one without time and I/O.
    pub async fn join(url: &str, token: &str) -> Result<Self, ConnectError> {
        ConnectOptions::new().join(url, token).await
    }

    /// Returns true if the token allows publishing data. Otherwise [`send`](Transport::send) fails with
    /// [`SendError::NotAllowed`]; the server would drop the packets silently.
    pub fn can_publish_data(&self) -> bool {
        self.shared.with(|state| state.can_publish_data)
    }

    /// Returns the payload bytes on [`Lane::Reliable`](crate::transport::Lane::Reliable) that are queued or unacknowledged.
    pub fn backlog(&self) -> usize {
        self.shared.queue.backlog()
    }

    /// Returns the queue that the connection's work sends from.
    pub(crate) fn send_queue(&self) -> SendQueue {
        self.shared.queue.clone()
    }

    /// Returns the newest token. The server refreshes it every few minutes with the participant's current permissions.
    pub fn token(&self) -> String {
        self.shared.with(|state| state.token.clone())
    }
}

impl LiveKitTransport {
    /// Simulates a failure (LiveKit's `SimulateScenario`). The resulting events are the same as for a real failure. Most
    /// scenarios are carried out by the server, which accepts the request from any participant.
    ///
    /// ```no_run
    /// # async fn f(mut room: toolbridge::livekit::LiveKitTransport) {
    /// use toolbridge::{transport::Transport, livekit::Scenario};
    ///
    /// room.simulate(Scenario::NodeFailure);
    /// println!("{:?}", room.recv().await); // ConnectionState(Reconnecting)
    /// # }
    /// ```
    pub fn simulate(&self, scenario: Scenario) {
        // The queue is full only if earlier requests are still pending. Dropping this one is harmless.
        let _ = self.ends.simulate.try_send(scenario);
    }
}

impl Transport for LiveKitTransport {
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
        self.capabilities
    }

    /// Sends a packet. The future completes when the packet was written to its data channel; for a packet sent as a byte
    /// stream, when its last part was written. At most 128 KiB are unacknowledged at any time.
    ///
    /// The packet is queued when this method is called. If the queue is full (4,096 packets or 32 MiB), it is queued when there
    /// is room, in the order of the calls. Until then the future owns it: dropping the future also drops the packet. Once a packet of
    /// up to 15,000 B is queued, it is sent even if the future is dropped.
    ///
    /// # Errors
    /// Returns a [`SendError`]. The packet was then not sent, or not completely if it is a byte stream.
    fn send(&self, packet: Packet) -> impl Future<Output = Result<(), SendError>> + Send + 'static {
        self.shared.queue.send(packet, self.snapshot.local().sid())
    }

    fn observe_sent(&mut self, observer: SentObserver) -> bool {
        self.shared.queue.observe(observer.0);
        true
    }

    async fn recv(&mut self) -> Option<TransportEvent> {
        loop {
            let event = self.ends.inbox.next().await?;
            if let Some(event) = self.snapshot.read(event) {
                return Some(event);
            }
        }
    }

    /// Leaves the room after waiting up to 1 s for the server to acknowledge the packets already sent.
    async fn close(&mut self) {
        let (left, done) = oneshot::channel();
        if self.ends.leave.send(Leave { left }).await.is_ok() {
            // An error means that the task has ended and the room was left.
            let _ = done.await;
        }
    }
}

/// A random number for backoff jitter, so that participants that were disconnected together do not rejoin together.
fn chance() -> u32 {
    // If the system has no randomness, the jitter is constant.
    getrandom::u32().unwrap_or(u32::MAX / 2)
}

impl fmt::Debug for LiveKitTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveKitTransport")
            .field("name", &self.snapshot.room())
            .field("local", self.local().peer())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_certificate_without_pem_or_der_is_rejected() {
        let certificate = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap().cert;
        let two = certificate.pem().repeat(2);
        assert_eq!(ConnectOptions::new().root_certificates(two.as_bytes()).unwrap().roots.len(), 2);
        assert_eq!(ConnectOptions::new().root_certificates(certificate.der()).unwrap().roots.len(), 1);
        for nothing in [
            "",
            "-----BEGIN CERTIFICATE-----\n",
            "-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----\n",
        ] {
            assert!(ConnectOptions::new().root_certificates(nothing.as_bytes()).is_err(), "{nothing}");
        }
    }

    #[tokio::test]
    async fn unlimited_join_timeout_is_bounded() {
        let options = ConnectOptions::new().join_timeout(Duration::MAX);
        assert!(Instant::now().checked_add(options.join_timeout).is_some());
        // The limit is added to the current time before the server is contacted.
        assert!(matches!(
            options.join("ws://127.0.0.1:1", "a.b.c").await,
            Err(ConnectError::Unreachable { .. })
        ));
    }

    #[test]
    fn unlimited_rejoin_waits_are_bounded() {
        let (now, lost) =
            (Instant::now(), || room::liveness::End::Lost(room::liveness::Loss::Signaling("gone".into())));
        for first in [Duration::ZERO, Duration::from_secs(1), Duration::MAX] {
            let policy =
                ConnectOptions::new().rejoin_wait(first, Duration::MAX).rejoin_limit(Duration::MAX).policy();
            for tries in [0, 1, 2, 40, u32::MAX] {
                assert!(policy.wait(tries, u32::MAX) <= LONGEST, "{first:?}, {tries}");
            }
            let (mut rejoin, mut resume) =
                (Rejoin::new(now, policy, LONGEST), room::resume::Resume::new(now, policy));
            rejoin.handle_ended(now, lost(), u32::MAX);
            resume.handle_lost(now, u32::MAX);
            let mut at = now;
            for _ in 0..40 {
                while let room::rejoin::Step::Wait(until) = rejoin.poll(at) {
                    at = until;
                }
                let failed = room::rejoin::Failure::NoToken("away".into());
                rejoin.handle_failed(at, &failed, u32::MAX);
                at = resume.poll_timeout().unwrap_or(at).max(at);
                if resume.poll(at).is_some() {
                    resume.handle_failed(at, u32::MAX);
                }
            }
        }
    }

    #[tokio::test]
    async fn invalid_address_opens_no_socket() {
        assert!(matches!(LiveKitTransport::join("localhost", "t").await, Err(ConnectError::Url { .. })));
    }

    #[tokio::test]
    async fn malformed_token_opens_no_connection() {
        for none in ["", "t", "a.b", "a.b.c.d", "a..c", "Bearer a.b.c", "\"a.b.c\"", "a.b.c\n"] {
            let joined = LiveKitTransport::join("ws://127.0.0.1:1", none).await;
            assert!(matches!(joined, Err(ConnectError::MalformedToken)), "{none:?}");
        }
    }

    #[test]
    fn frames_are_not_compressed_with_a_key_unless_wanted() {
        let compresses = |options: ConnectOptions| options.capabilities().compress;
        let key = || E2eeKey::new("secret");
        assert!(compresses(ConnectOptions::new()));
        assert!(!compresses(ConnectOptions::new().compress(false)));
        assert!(!compresses(ConnectOptions::new().e2ee_key(key())));
        assert!(compresses(ConnectOptions::new().e2ee_key(key()).compress(true)));
    }
}
