//! Handles the relay's responses to requests.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use super::{
    Allocation, Class, Event, Key, MIN_RENEWAL, Message, Purpose, RENEW_PEER, RelayError, Request, Session,
    Stage, attribute,
};

/// How long before its end an allocation is refreshed, if it lasts twice as long.
const RENEW_BEFORE: Duration = Duration::from_secs(60);
/// The longest lifetime that is accepted.
const MAX_LIFETIME: Duration = Duration::from_secs(3600);
/// How often one request is repeated because its nonce was stale.
pub(super) const MAX_STALE: u8 = 3;
/// The longest nonce and realm, in bytes ([RFC 8489](https://www.rfc-editor.org/rfc/rfc8489), 14.9).
const MAX_TEXT: usize = 763;

impl Allocation {
    /// Handles a response, if it answers an open request and is authentic.
    pub(super) fn handle_answer(&mut self, now: Instant, message: &Message<'_>) {
        let is_asked = |it: &Request| it.id == message.transaction() && it.purpose.method() == message.method;
        let Some(at) = self.requests.iter().position(is_asked) else {
            return self.ignore("a response without a request");
        };
        let is_signed = match &self.session {
            Some(session) if message.has_integrity() => message.is_signed_with(&session.key),
            // Many servers do not sign their errors; only an attacker who sees the requests can forge one.
            Some(_) => message.class == Class::Error,
            None => true,
        };
        if !is_signed {
            return self.ignore("an unsigned response");
        }
        let request = self.requests.swap_remove(at);
        match (message.class, message.error()) {
            (Class::Success, _) => self.handle_success(now, request.purpose, message),
            (_, Some((code, words))) => self.handle_error(now, &request, message, code, words),
            (_, None) => self.refuse(now, request.purpose, 0, "an error without a code".into()),
        }
    }

    fn handle_success(&mut self, now: Instant, purpose: Purpose, message: &Message<'_>) {
        let seconds = message.number(attribute::LIFETIME).unwrap_or(0);
        let lifetime = Duration::from_secs(seconds.into()).min(MAX_LIFETIME);
        match purpose {
            Purpose::Allocate => {
                let mut relayed: Vec<SocketAddr> = Vec::new();
                for address in message.addresses(attribute::XOR_RELAYED_ADDRESS) {
                    let is_usable = address.port() != 0 && !address.ip().is_unspecified();
                    if is_usable && !relayed.iter().any(|it| it.is_ipv4() == address.is_ipv4()) {
                        relayed.push(address);
                    }
                }
                if relayed.is_empty() || lifetime.is_zero() {
                    return self.fail(RelayError::Malformed("no address in the response"));
                }
                self.keep(now, lifetime);
                self.relayed.clone_from(&relayed);
                self.events.push_back(Event::Opened(relayed));
                for at in 0..self.peers.len() {
                    self.renew(now, at);
                }
            }
            Purpose::Refresh if lifetime.is_zero() => {
                self.fail(RelayError::Closed("the allocation was revoked".into()));
            }
            Purpose::Refresh => self.keep(now, lifetime),
            Purpose::Permit(at) | Purpose::Bind(at) => {
                let peer = &mut self.peers[at];
                (peer.denied, peer.renew_at) = (false, Some(now + RENEW_PEER));
                peer.bound = purpose == Purpose::Bind(at);
            }
        }
    }

    fn keep(&mut self, now: Instant, lifetime: Duration) {
        // A minute is enough for several attempts. A short allocation is renewed at half its time.
        let wait = lifetime.saturating_sub(RENEW_BEFORE).max(lifetime / 2).max(MIN_RENEWAL);
        self.stage = Stage::Open { renew_at: Some(now + wait), ends_at: now + lifetime.max(MIN_RENEWAL * 2) };
    }

    fn handle_error(
        &mut self,
        now: Instant,
        request: &Request,
        message: &Message<'_>,
        code: u16,
        words: String,
    ) {
        // The first request is sent without credentials, because only the refusal tells realm and nonce. A
        // second 401 means that they are wrong.
        let asks_who = code == 401 && self.session.is_none() && request.purpose == Purpose::Allocate;
        let is_stale = code == 438 && request.stale < MAX_STALE;
        if asks_who || is_stale {
            let nonce = message.text(attribute::NONCE, MAX_TEXT);
            let known = self.session.as_ref().map(|session| session.realm.as_str());
            let realm = message.text(attribute::REALM, MAX_TEXT).or(known);
            let (Some(nonce), Some(realm)) = (nonce, realm) else {
                return self.refuse(now, request.purpose, code, "without a nonce or a realm".into());
            };
            let key = Key::new(&self.credentials.username, realm, &self.credentials.password);
            self.session = Some(Session { realm: realm.to_owned(), nonce: nonce.to_owned(), key });
            return self.request(now, request.purpose, request.stale + u8::from(is_stale));
        }
        if code == 440 && request.purpose == Purpose::Allocate && !self.only_v6 {
            // The relay has no IPv4 address.
            self.only_v6 = true;
            return self.request(now, request.purpose, request.stale);
        }
        self.refuse(now, request.purpose, code, words);
    }

    /// Handles the failure of a request.
    fn refuse(&mut self, now: Instant, purpose: Purpose, code: u16, words: String) {
        /// The allocation does not exist, or belongs to another client.
        const MISMATCH: u16 = 437;
        /// Forbidden by the relay's configuration.
        const FORBIDDEN: u16 = 403;
        /// The peer's address is of the other address family.
        const FAMILY: u16 = 443;
        match purpose {
            Purpose::Allocate => self.fail(RelayError::refused(code, words)),
            Purpose::Refresh if code == MISMATCH => self.fail(RelayError::refused(code, words)),
            // Other refusals may pass, and the allocation lives until `ends_at`.
            Purpose::Refresh => self.retry_refresh(now),
            // Some relays have no channels left, or none for this peer. Then a permission still lets
            // datagrams through, one by one.
            Purpose::Bind(at) if ![FORBIDDEN, FAMILY, MISMATCH].contains(&code) => {
                (self.peers[at].no_channel, self.peers[at].bound) = (true, false);
                self.renew(now, at);
            }
            Purpose::Bind(at) | Purpose::Permit(at) => {
                let peer = &mut self.peers[at];
                (peer.denied, peer.bound) = (true, false);
                let denied = Event::Denied(peer.address, RelayError::refused(code, words));
                self.events.push_back(denied);
            }
        }
    }

    /// Handles a request without a response in time.
    pub(super) fn handle_silence(&mut self, now: Instant, at: usize) {
        let request = self.requests.swap_remove(at);
        match request.purpose {
            Purpose::Allocate => self.fail(RelayError::Silent(Request::LIMIT)),
            Purpose::Refresh => self.retry_refresh(now),
            // The network may recover, so the permission or channel is requested again.
            Purpose::Permit(at) | Purpose::Bind(at) => self.peers[at].renew_at = Some(now),
        }
    }

    fn retry_refresh(&mut self, now: Instant) {
        if let Stage::Open { ends_at, .. } = self.stage {
            self.stage = Stage::Open { renew_at: Some(now + MIN_RENEWAL), ends_at };
        }
    }
}
