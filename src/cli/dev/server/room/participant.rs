//! One participant, as the server knows it.

use std::{collections::VecDeque, time::Instant};

use livekit_protocol::{
    ClientInfo, DisconnectReason, ParticipantInfo,
    participant_info::{Kind, State},
};
use livekit_token::Claims;

use super::{ConnectionId, Key};
use crate::cli::dev::server::{grant, packet::Sender};

/// How many bytes of reliable packets are kept for somebody whose channels are not open yet: LiveKit's own limit for
/// a room. The oldest go first.
const MAX_HELD: usize = 100_000;

/// A participant.
#[derive(Debug)]
pub(super) struct Participant {
    pub(super) key: Key,
    pub(super) sid: String,
    pub(super) claims: Claims,
    pub(super) state: State,
    /// Counts what the others are told of it.
    pub(super) version: u32,
    joined_at_ms: i64,
    client: ClientInfo,
    /// Its signalling, while there is one.
    pub(super) connection: Option<ConnectionId>,
    /// Whether both of its channels are open.
    pub(super) open: bool,
    held: VecDeque<Vec<u8>>,
    held_bytes: usize,
    /// The number of its last reliable packet.
    pub(super) last_sequence: u32,
    /// When it must have connected, or be back.
    pub(super) due: Option<(Instant, DisconnectReason)>,
    /// When it is given a newer token.
    pub(super) refresh_at: Instant,
    /// It is told of our address over TCP only.
    pub(super) prefers_tcp: bool,
    /// Until when its signalling is cut right after a resume.
    pub(super) cut_after_resume: Option<Instant>,
    /// Until when a resume is refused without a word.
    pub(super) refuse_resume: Option<Instant>,
}

impl Participant {
    /// Somebody who joins. `unix_ms` is the time in milliseconds since 1970.
    pub(super) fn new(
        (key, connection): (Key, ConnectionId),
        sid: String,
        claims: Claims,
        client: ClientInfo,
        (due, refresh_at): ((Instant, DisconnectReason), Instant),
        unix_ms: i64,
    ) -> Self {
        Self {
            key,
            sid,
            claims,
            state: State::Joining,
            version: 0,
            joined_at_ms: unix_ms,
            client,
            connection: Some(connection),
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

    /// Whether it keeps no room open, as agents and recorders do not.
    pub(super) fn is_dependent(&self) -> bool {
        matches!(grant::kind(&self.claims), Kind::Agent | Kind::Egress)
    }

    pub(super) fn sender(&self) -> Sender<'_> {
        Sender {
            identity: self.identity(),
            sid: &self.sid,
            hidden: self.is_hidden(),
            agent: grant::kind(&self.claims) == Kind::Agent,
        }
    }

    /// Its state goes forward only. Whether it did.
    pub(super) fn advance(&mut self, state: State) -> bool {
        let forward = state as i32 > self.state as i32;
        if forward {
            self.state = state;
            self.version += 1;
        }
        forward
    }

    /// What the others are told.
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

    /// Keeps a reliable packet until the channels are open.
    pub(super) fn hold(&mut self, packet: Vec<u8>) {
        self.held_bytes += packet.len();
        self.held.push_back(packet);
        while self.held_bytes > MAX_HELD
            && let Some(oldest) = self.held.pop_front()
        {
            self.held_bytes -= oldest.len();
        }
    }

    /// What was kept for it.
    pub(super) fn take_held(&mut self) -> VecDeque<Vec<u8>> {
        self.held_bytes = 0;
        std::mem::take(&mut self.held)
    }
}
