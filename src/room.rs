//! A LiveKit room, joined by a participant that carries data only: no media, no native WebRTC library.
//!
//! One task owns everything of a joined room: the signalling (`livekit-signaling`), the peer
//! connection (`str0m`), the sockets under it, and the queues to and from its [`Room`]. All queues
//! have caps: who sends too much waits, and who reads too slowly slows the sender down.

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

use crate::{
    link::{Capabilities, Lane, Packet, Participant},
    transport::{SendError, Transport, TransportEvent},
};

mod address;
mod backlog;
mod error;
mod health;
mod ice_tcp;
mod joining;
mod packet;
mod participants;
mod peer_connection;
mod sequence;
mod signal;
mod sockets;
mod task;
mod websocket;

pub use error::{ConnectError, JoinPhase};

use address::ServerUrl;
use joining::Joining;
use peer_connection::PeerConnection;
use signal::Signal;
use task::{Leave, Outgoing, Shared};
use websocket::Dial;

/// A joined room. Dropping it leaves, without waiting; [`close`](Transport::close) leaves in order.
///
/// It does not join again by itself: a lost connection ends with [`TransportEvent::Closed`]. Before
/// that a silent one is told as [`TransportEvent::Link`]: down after 5 s without a datagram, lost
/// after 15 s. Reliable packets that were on their way meanwhile arrive when it is up again.
///
/// What waits to be received has a cap (4 MiB); beyond it the network's own brakes are used, and it can
/// take seconds until a sender that was slowed down is fast again. So receive without delay.
///
/// Participants that were there at the join are in [`present`](Transport::present) and are not
/// announced again; later ones, and changes, come as [`TransportEvent::Joined`]. A packet whose
/// sender was not announced yet is delivered all the same.
pub struct Room {
    name: String,
    shared: Arc<Shared>,
    reliable: mpsc::Sender<Outgoing>,
    lossy: mpsc::Sender<Outgoing>,
    leave: mpsc::Sender<Leave>,
    events: mpsc::Receiver<TransportEvent>,
}

/// How a room is joined.
///
/// ```no_run
/// # async fn f() -> Result<(), toolbridge::room::ConnectError> {
/// use toolbridge::room::RoomOptions;
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
}

impl Default for RoomOptions {
    fn default() -> Self {
        Self { roots: Vec::new(), join_timeout: Self::JOIN_TIMEOUT, bind: None, udp: true }
    }
}

impl RoomOptions {
    /// How long a join may take by default: 15 s, for ICE over TCP behind a slow firewall.
    pub const JOIN_TIMEOUT: Duration = Duration::from_secs(15);

    /// The system's root certificates, 15 s, any address, UDP and TCP.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts these root certificates beside the system's: PEM, one or several, or one in DER.
    /// With one of them no HTTP proxy is used.
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
        // "No limit at all" would be beyond the clock's end.
        self.join_timeout = limit.min(Duration::from_secs(3600));
        self
    }

    /// Sends packets from this address of ours only. Default: whichever leads to the server.
    pub fn bind_address(mut self, address: IpAddr) -> Self {
        self.bind = Some(address);
        self
    }

    /// Uses TCP only, for networks that let UDP begin and then choke it. Default: both.
    pub fn tcp_only(mut self) -> Self {
        self.udp = false;
        self
    }

    /// Joins a room. The address is `wss://HOST` or `ws://HOST:PORT`; the token names the room.
    ///
    /// # Errors
    /// Each kind of failure has its variant of [`ConnectError`].
    ///
    /// # Cancel safety
    /// A dropped future leaves the room again.
    pub async fn join(self, url: &str, token: &str) -> Result<Room, ConnectError> {
        let url = ServerUrl::parse(url)?;
        if !has_the_form_of_a_token(token) {
            return Err(ConnectError::MalformedToken);
        }
        if url.is_exposed() {
            tracing::warn!(server = %url, "the token travels unencrypted: use wss://");
        }
        let limit = self.join_timeout;
        let start = Instant::now();
        let (peer, offer) =
            PeerConnection::new(start, self.bind, self.udp).map_err(ConnectError::transport)?;
        let (signal, response) = Signal::join(&url, token, Dial::new(self.roots), offer, limit).await?;
        tracing::debug!(server = %url, after = ?start.elapsed(), "the server took the join");

        let mut joining = Joining::new(signal, peer, token, response);
        joining.open(start, limit).await?;
        tracing::debug!(server = %url, after = ?start.elapsed(), "both channels are open");
        Ok(joining.finish())
    }
}

/// Three parts in the URL's base64: what is none should cost no connection.
fn has_the_form_of_a_token(text: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty() && part.bytes().all(|it| it.is_ascii_alphanumeric() || matches!(it, b'-' | b'_'))
    };
    text.split('.').count() == 3 && text.split('.').all(is_part)
}

impl Room {
    /// Joins a room as [`RoomOptions::new`] does it.
    ///
    /// ```no_run
    /// # async fn f() -> Result<(), toolbridge::room::ConnectError> {
    /// use toolbridge::{Transport, room::Room};
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

    /// The newest token: the server renews it every few minutes, with what the participant may do by then.
    pub fn token(&self) -> String {
        self.shared.with(|state| state.token.clone())
    }
}

impl Transport for Room {
    fn local(&self) -> Participant {
        self.shared.with(|state| state.local.clone())
    }

    fn room(&self) -> String {
        self.name.clone()
    }

    fn present(&self) -> Vec<Participant> {
        self.shared.with(|state| state.present.clone())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { lossy: true, ..Capabilities::default() }
    }

    /// Hands a packet to the room: done when it was written to its channel.
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
        self.events.recv().await
    }

    /// Leaves in order: waits up to 1 s until the server has acknowledged what was handed over,
    /// then says goodbye.
    async fn close(&mut self) {
        let (left, done) = oneshot::channel();
        if self.leave.send(Leave { left }).await.is_ok() {
            // An error means that the task has ended, and so has left.
            let _ = done.await;
        }
    }
}

/// A queue with no place left and what waits for one; and the answer.
type Queued = (Option<(mpsc::Sender<Outgoing>, Outgoing)>, oneshot::Receiver<Result<(), SendError>>);

impl Room {
    fn enqueue(&self, packet: Packet) -> Result<Queued, SendError> {
        let (closed, allowed, sid) = self
            .shared
            .with(|state| (state.closed.is_some(), state.can_publish_data, state.local.sid().clone()));
        if closed {
            return Err(self.shared.closed());
        }
        if !packet.is_addressed() {
            return Err(SendError::NoDestination);
        }
        check_size(packet.payload.len(), Capabilities::MAX_PACKET)?;
        // The server drops what we may not send without a word.
        if !allowed {
            return Err(SendError::NotAllowed);
        }
        let (queue, waiting) = match packet.lane {
            Lane::Reliable => (&self.reliable, packet.payload.len()),
            Lane::Lossy => (&self.lossy, 0),
        };
        let packet = packet::outgoing(packet, &sid);
        check_size(packet::encoded_size(&packet), packet::MAX_ENCODED)?;
        let (written, answer) = oneshot::channel();
        let waits = self.shared.backlog.queue(waiting);
        match queue.try_send(Outgoing { packet, written, waits }) {
            Ok(()) => Ok((None, answer)),
            Err(TrySendError::Full(outgoing)) => Ok((Some((queue.clone(), outgoing)), answer)),
            Err(TrySendError::Closed(_)) => Err(self.shared.closed()),
        }
    }
}

fn check_size(size: usize, limit: usize) -> Result<(), SendError> {
    if size > limit { Err(SendError::TooLarge { size, limit }) } else { Ok(()) }
}

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Room")
            .field("name", &self.name)
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
        assert!(has_the_form_of_a_token("eyJh-_0.e30.c2ln"));
    }
}
