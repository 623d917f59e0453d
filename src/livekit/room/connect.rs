//! Joins a room: opens the signaling connection and the peer connection.

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use livekit_protocol::{JoinResponse, ParticipantInfo};
use tokio::time;

use super::{
    connection::Connection,
    liveness::{End, Loss},
    participants::Participants,
    rejoin::Policy,
};
use crate::{
    livekit::{
        e2ee::E2eeKeys,
        error::{ConnectError, JoinPhase},
        path::peer_connection::{Admit, Locals, PeerConnection},
        signaling::{Sent, ServerEvent, Signal, SignalOptions, demands_relays, first::First},
    },
    transport::CloseReason,
};

/// How long to wait for the server's reason after the peer connection ended.
const FAREWELL: Duration = Duration::from_millis(300);
/// The wait before a join that the server asks to repeat: 0.25 s.
const AGAIN: Duration = Duration::from_millis(250);
/// The least time for another join: 1 s.
const LEAST: Duration = Duration::from_secs(1);
/// How long ICE runs before it is restarted. ICE sends checks at growing intervals, and the network may have recovered.
const ICE_RESTART: Duration = Duration::from_secs(2);

/// The server address and options. They are the same for every connection of a participant.
pub(crate) struct Connector {
    pub(crate) signal: Arc<SignalOptions>,
    pub(crate) bind: Option<IpAddr>,
    pub(crate) udp: bool,
    pub(crate) tcp: bool,
    pub(crate) relay_only: bool,
    pub(crate) direct_only: bool,
    pub(crate) policy: Policy,
    pub(crate) keys: Option<E2eeKeys>,
}

impl Connector {
    /// Joins the room, within the limit again if the server asks for that. Dropping the future leaves it.
    pub(crate) async fn connect(
        &self,
        token: &str,
        limit: Duration,
        sent: &Sent,
    ) -> Result<Connection, ConnectError> {
        let (until, mut left) = (Instant::now() + limit, limit);
        loop {
            let failed = match Box::pin(self.join(token, left, sent)).await {
                Ok(connection) => return Ok(connection),
                Err(failed) => failed,
            };
            left = until.saturating_duration_since(Instant::now() + AGAIN);
            if !failed.is_asked || left < LEAST {
                return Err(failed.error);
            }
            tracing::debug!(error = %failed.error, "the join is repeated");
            time::sleep(AGAIN).await;
        }
    }

    async fn join(&self, token: &str, limit: Duration, sent: &Sent) -> Result<Connection, Failed> {
        let (server, start) = (&self.signal.url, Instant::now());
        // The offer travels in the join request, so one round trip brings the join response and the answer.
        let (mut peer, offer) =
            PeerConnection::new(start, self.bind, self.udp, self.tcp).map_err(ConnectError::transport)?;
        let joining = Signal::join(Arc::clone(&self.signal), token, offer, limit, sent.clone());
        let (signal, response) = joining.await?;
        tracing::debug!(%server, after = ?start.elapsed(), "the server accepted the join");
        peer.restrict(self.relay_only, self.direct_only);
        // The server demands relays of a client whose other paths have failed.
        let demanded = demands_relays(response.client_configuration.as_ref());
        peer.use_relays(&response.ice_servers, demanded, &self.signal.roots);
        let mut connecting = Connecting::new(signal, peer, token, response, Arc::clone(&self.signal.first));
        let opened = connecting.open(start, limit).await;
        opened.map_err(|error| Failed { error, is_asked: connecting.is_asked })?;
        tracing::debug!(%server, after = ?start.elapsed(), "both data channels are open");
        Ok(connecting.finish((self.policy, self.keys.clone())))
    }
}

/// A join that has failed.
struct Failed {
    error: ConnectError,
    /// Whether the server asks the participant to join again.
    is_asked: bool,
}

impl From<ConnectError> for Failed {
    fn from(error: ConnectError) -> Self {
        Self { error, is_asked: false }
    }
}

/// A join in progress. Dropping it leaves.
struct Connecting {
    is_asked: bool,
    signal: Signal,
    peer: PeerConnection,
    token: String,
    room: String,
    local: ParticipantInfo,
    participants: Participants,
}

impl Connecting {
    /// Creates it from the server's join response.
    fn new(signal: Signal, peer: PeerConnection, token: &str, response: JoinResponse, first: First) -> Self {
        let mut participants = Participants::new(first);
        participants.update_all(&response.other_participants);
        Self {
            is_asked: false,
            signal,
            peer,
            token: token.to_owned(),
            room: response.room.map(|room| room.name).unwrap_or_default(),
            local: response.participant.unwrap_or_default(),
            participants,
        }
    }

    /// Waits until both data channels are open.
    async fn open(&mut self, start: Instant, limit: Duration) -> Result<(), ConnectError> {
        let until = start + limit;
        let mut restart_at = Instant::now() + ICE_RESTART;
        while !self.peer.is_open() {
            // In each turn: a server that keeps sending would postpone a deadline that only the wait below
            // knows.
            if Instant::now() >= until {
                return Err(self.too_late(limit));
            }
            if let Some(relays) = self.peer.without_relay(start.elapsed()) {
                return Err(ConnectError::NoRelay { relays });
            }
            if !self.peer.has_path() && Instant::now() >= restart_at {
                restart_at = Instant::now() + ICE_RESTART;
                self.request_ice_restart()?;
            }
            tokio::select! {
                event = self.signal.next() => self.handle_server(event)?,
                woken = self.peer.wait(if self.peer.has_path() { until } else { until.min(restart_at) }) => self.peer.handle(woken, Admit::All).map_err(ConnectError::transport)?,
            }
            while let Some(line) = self.peer.poll_candidate() {
                self.signal.send_candidate(&line);
            }
            if let Some(why) = self.peer.lost() {
                return Err(self.farewell(why).await);
            }
        }
        Ok(())
    }

    fn request_ice_restart(&mut self) -> Result<(), ConnectError> {
        if self.peer.is_answered() {
            self.peer.restart_ice(Locals::Keep).map_err(ConnectError::transport)?;
            self.signal.offer(self.peer.described());
        }
        Ok(())
    }

    fn finish(self, how: (Policy, Option<E2eeKeys>)) -> Connection {
        let who = (self.room, &self.local, self.token);
        Connection::new(self.signal, self.peer, self.participants, who, how)
    }

    fn handle_server(&mut self, event: ServerEvent) -> Result<(), ConnectError> {
        match event {
            ServerEvent::Answer(sdp, number) => {
                self.peer.handle_answer(&sdp, number).map_err(ConnectError::transport)?;
            }
            ServerEvent::Candidate(line) => self.peer.handle_candidate(&line),
            ServerEvent::Participants(infos) => {
                for info in infos {
                    if info.sid == self.local.sid {
                        self.local = info;
                    // Another sid under the local identity is an earlier join, which the server has just
                    // removed.
                    } else if info.identity != self.local.identity {
                        self.participants.update(&info);
                    }
                }
            }
            ServerEvent::Token(token) => self.token = token,
            ServerEvent::Leave(end) => return Err(self.left(end)),
            ServerEvent::Lost(why) => return Err(lost(&Loss::Signaling(why).to_string())),
            ServerEvent::AsksToResume(reason) => return Err(self.left(End::Lost(Loss::Asked(reason)))),
            // These concern resumed connections or need no action during a join.
            ServerEvent::Listed
            | ServerEvent::Moved(_)
            | ServerEvent::Resumed(_)
            | ServerEvent::NotResumed(_) => {}
        }
        Ok(())
    }

    /// Notes whether the server asks for another join.
    fn left(&mut self, end: End) -> ConnectError {
        self.is_asked = matches!(end, End::Lost(Loss::Asked(_)));
        end.into()
    }

    /// Waits briefly for the server's reason after the peer connection ended.
    async fn farewell(&mut self, why: &str) -> ConnectError {
        // livekit-server closes the channels before it sends its leave request, and its reason decides
        // whether another join makes sense.
        let reason = async {
            loop {
                match self.signal.next().await {
                    ServerEvent::Leave(end) => return Some(end),
                    ServerEvent::Lost(_) => return None,
                    _ => {}
                }
            }
        };
        let end = time::timeout(FAREWELL, reason).await.ok().flatten();
        end.map_or_else(|| lost(why), |end| self.left(end))
    }

    fn too_late(&self, limit: Duration) -> ConnectError {
        if self.peer.has_path() {
            return ConnectError::Timeout { limit, phase: JoinPhase::Channels };
        }
        let relays = self.peer.relay_failures(limit);
        if !relays.is_empty() {
            return ConnectError::NoRelay { relays };
        }
        ConnectError::NoNetworkPath { limit, tried: self.peer.remotes().to_vec() }
    }
}

fn lost(why: &str) -> ConnectError {
    ConnectError::Closed(CloseReason::ConnectionLost(why.into()))
}
