//! Holds the state of one participant.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Instant,
};

use livekit_protocol::{
    ClientInfo, DisconnectReason, ParticipantInfo, SignalTarget,
    participant_info::{Kind, State},
};
use livekit_token::Claims;

use super::{ConnectionId, Key, PeerId, rights::Issued};
use crate::dev_server::{grant, packet::Sender};

/// The maximum size of reliable packets held for a participant until its channels are open, in bytes: livekit-server's
/// limit for a room. Beyond it, the oldest are dropped.
const MAX_HELD: usize = 100_000;

/// A participant.
#[derive(Debug)]
pub(super) struct Participant {
    pub(super) key: Key,
    pub(super) sid: String,
    pub(super) claims: Claims,
    /// The rights of the tokens that it may show.
    pub(super) issued: Issued,
    pub(super) state: State,
    /// The version of the announced state.
    pub(super) version: u32,
    joined_at_ms: i64,
    client: ClientInfo,
    /// The signaling connection, if there is one.
    pub(super) connection: Option<ConnectionId>,
    /// The peer connection on which it receives packets. While it joins, the state follows this one.
    pub(super) receives_on: SignalTarget,
    /// The peer connections whose path is lost.
    pub(super) lost: BTreeSet<SignalTarget>,
    /// Whether both data channels on which it receives are open.
    pub(super) open: bool,
    held: VecDeque<Vec<u8>>,
    held_bytes: usize,
    /// The sequence of the last reliable packet.
    pub(super) last_sequence: u32,
    /// When the participant is removed unless it connects or resumes.
    pub(super) due: Option<(Instant, DisconnectReason)>,
    /// When to send a refreshed token.
    pub(super) refresh_at: Instant,
    /// Whether to send only TCP candidates.
    pub(super) prefers_tcp: bool,
    /// Until when a resume is followed by closing the signaling connection (simulated).
    pub(super) cut_after_resume: Option<Instant>,
    /// Until when a resume is refused without a message (simulated).
    pub(super) refuse_resume: Option<Instant>,
}

/// Returns whether a participant neither keeps a room open nor counts for its limit, as with agents and recorders.
pub(super) fn is_dependent(claims: &Claims) -> bool {
    matches!(grant::kind(claims), Kind::Agent | Kind::Egress)
}

/// Returns the peer connection on which a participant receives packets: livekit-server offers one for that to clients that use two,
/// since their protocol 3 and unless they may not subscribe.
pub(super) fn receives_on(
    single_peer_connection: bool,
    claims: &Claims,
    client: &ClientInfo,
) -> SignalTarget {
    let may_subscribe = claims.video.can_subscribe.unwrap_or(true);
    match single_peer_connection || client.protocol < 3 || !may_subscribe {
        true => SignalTarget::Publisher,
        false => SignalTarget::Subscriber,
    }
}

impl Participant {
    /// Creates a joining participant. `unix_ms` is the time in milliseconds since 1970.
    pub(super) fn new(
        ((key, receives_on), connection): (PeerId, ConnectionId),
        sid: String,
        (claims, issued): (Claims, Issued),
        client: ClientInfo,
        (due, refresh_at): ((Instant, DisconnectReason), Instant),
        unix_ms: i64,
    ) -> Self {
        Self {
            key,
            sid,
            claims,
            issued,
            state: State::Joining,
            version: 0,
            joined_at_ms: unix_ms,
            client,
            connection: Some(connection),
            receives_on,
            lost: BTreeSet::new(),
            open: false,
            held: VecDeque::new(),
            held_bytes: 0,
            last_sequence: 0,
            due: Some(due),
            refresh_at,
            prefers_tcp: false,
            cut_after_resume: None,
            refuse_resume: None,
        }
    }

    pub(super) fn identity(&self) -> &str {
        &self.claims.sub
    }

    pub(super) fn is_hidden(&self) -> bool {
        self.claims.video.hidden
    }

    pub(super) fn is_dependent(&self) -> bool {
        is_dependent(&self.claims)
    }

    pub(super) fn sender(&self) -> Sender<'_> {
        Sender {
            identity: self.identity(),
            sid: &self.sid,
            hidden: self.is_hidden(),
            agent: grant::kind(&self.claims) == Kind::Agent,
        }
    }

    /// Advances the state, which never goes back. Returns whether it changed.
    pub(super) fn advance(&mut self, state: State) -> bool {
        let forward = state as i32 > self.state as i32;
        if forward {
            self.state = state;
            self.version += 1;
        }
        forward
    }

    /// Returns the state to announce.
    pub(super) fn info(&self, reason: DisconnectReason) -> ParticipantInfo {
        ParticipantInfo {
            sid: self.sid.clone(),
            identity: self.claims.sub.clone(),
            name: self.claims.name.clone(),
            state: self.state.into(),
            metadata: self.claims.metadata.clone(),
            attributes: self.claims.attributes.clone(),
            joined_at: self.joined_at_ms / 1000,
            joined_at_ms: self.joined_at_ms,
            version: self.version,
            permission: Some(grant::permission(&self.claims.video)),
            kind: grant::kind(&self.claims).into(),
            disconnect_reason: reason.into(),
            client_protocol: self.client.client_protocol,
            capabilities: self.client.capabilities.clone(),
            ..Default::default()
        }
    }

    /// Holds a reliable packet until the channels are open.
    pub(super) fn hold(&mut self, packet: Vec<u8>) {
        self.held_bytes += packet.len();
        self.held.push_back(packet);
        while self.held_bytes > MAX_HELD
            && let Some(oldest) = self.held.pop_front()
        {
            self.held_bytes -= oldest.len();
        }
    }

    /// Takes the held packets.
    pub(super) fn take_held(&mut self) -> VecDeque<Vec<u8>> {
        self.held_bytes = 0;
        std::mem::take(&mut self.held)
    }
}
