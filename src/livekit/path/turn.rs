//! Reaches the server through relays: TURN servers that forward datagrams where there is no direct path, over
//! UDP, TCP and TLS.
//!
//! Each relay has a task with bounded queues, so that a stalled relay does not delay the others. To the peer
//! connection it looks like a socket on the relayed address.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use livekit_protocol::IceServer;
use rustls::pki_types::CertificateDer;
use tokio::sync::mpsc;

mod allocation;
mod connection;
mod credentials;
mod error;
mod frame;
mod relay;
mod stun;
mod stun_client;
mod url;

pub use error::{RelayError, RelayFailure};
pub(crate) use stun_client::StunClient;

use allocation::MAX_PEERS;
use credentials::Credentials;
use relay::{Command, RelayConfig, RelayReport, Reported, Reports};
use url::{IceUrl, Kind};

/// The most relays that are asked for an address in one join.
const MAX_RELAYS: usize = 4;
/// The most server URLs that are read; browsers use fewer.
const MAX_URLS: usize = 32;
/// How often a relay whose connection has ended is contacted again in one join; a new join starts from zero.
const MAX_AGAIN: u8 = 4;
/// The most datagrams that wait for a relay that does not accept them.
const COMMANDS: usize = 256;
/// The most received datagrams of all relays that wait to be read.
const REPORTS: usize = 256;

/// The relays of one peer connection. Dropping it releases their addresses.
#[derive(Debug)]
pub(crate) struct Relays {
    from: Option<IpAddr>,
    relays: Vec<Relay>,
    /// The server's addresses that the relays may reach.
    peers: Vec<SocketAddr>,
    /// The number of attempts so far.
    asked: u64,
    reports: mpsc::Receiver<Reported>,
    report: mpsc::Sender<Reported>,
}

#[derive(Debug)]
struct Relay {
    place: RelayConfig,
    state: State,
    commands: mpsc::Sender<Command>,
    /// The number of this attempt.
    attempt: u64,
    /// How often the relay was contacted again because its connection had ended.
    again: u8,
}

#[derive(Debug)]
enum State {
    /// The relay was asked for an address.
    Asked,
    /// The relay allocated these addresses, and may refuse to reach the LiveKit server. `local` is the local address
    /// of the connection to it.
    Open {
        relayed: Vec<SocketAddr>,
        local: SocketAddr,
        denied: Option<RelayError>,
    },
    Failed(RelayError),
}

/// An event of a relay.
#[derive(Debug)]
pub(crate) enum RelayEvent {
    /// The relay has allocated addresses; the second field is the local address of the connection to it.
    Opened(Vec<SocketAddr>, SocketAddr),
    /// A datagram arrived at a relayed address.
    Datagram { relayed: SocketAddr, from: SocketAddr, datagram: Vec<u8> },
    /// A relay failed, and these addresses with it, if it had any.
    Failed(Vec<SocketAddr>),
    /// An event that needs no action.
    Noted,
}

impl Relays {
    /// Creates an empty set. Relays are reached from the given local address, if any.
    pub(crate) fn new(from: Option<IpAddr>) -> Self {
        let (report, reports) = mpsc::channel(REPORTS);
        Self { from, relays: Vec::new(), peers: Vec::new(), asked: 0, reports, report }
    }

    /// Asks every relay among these servers for an address, in parallel. A working relay stays; a failed one is asked
    /// again; one beyond the limit replaces a useless one. Without `udp` only relays over TCP and TLS are used; TLS
    /// trusts the system's root certificates and those given.
    pub(crate) fn use_servers(
        &mut self,
        servers: &[IceServer],
        udp: bool,
        roots: &[CertificateDer<'static>],
    ) {
        let urls = servers.iter().flat_map(|server| server.urls.iter().map(move |url| (server, url)));
        let mut places = Vec::new();
        for (server, text) in urls.take(MAX_URLS) {
            // Only a parsed URL may be shown, because an unreadable text may contain anything.
            let Some(url) = IceUrl::parse(text) else {
                tracing::debug!("a server URL of an unsupported kind was ignored");
                continue;
            };
            let Some(credentials) = Credentials::new(&server.username, &server.credential) else {
                tracing::debug!(relay = %url, "a relay was ignored: its credentials are too long");
                continue;
            };
            match url.kind {
                Kind::Stun => {}
                Kind::TurnUdp if !udp => {}
                _ => places.push(RelayConfig { url, credentials, from: self.from, roots: roots.to_vec() }),
            }
        }
        let named: Vec<_> = places.iter().map(|place| place.url.clone()).collect();
        for place in places {
            self.ask(place, &named);
        }
    }

    fn ask(&mut self, place: RelayConfig, named: &[IceUrl]) {
        match self.relays.iter().position(|relay| relay.place.url == place.url) {
            Some(at) if self.relays[at].has_failed() => self.relays[at] = self.asked(at, place),
            // The newest credentials are used for the next attempt.
            Some(at) => self.relays[at].place = place,
            None if self.relays.len() < MAX_RELAYS => {
                let relay = self.asked(self.relays.len(), place);
                self.relays.push(relay);
            }
            None => match self.dispensable(named) {
                Some(at) => self.relays[at] = self.asked(at, place),
                None => {
                    tracing::debug!(relay = %place.url, limit = MAX_RELAYS, "a relay beyond the limit was ignored");
                }
            },
        }
    }

    /// Returns a relay that another one may replace: one without addresses that the server no longer lists, otherwise
    /// one that failed.
    fn dispensable(&self, named: &[IceUrl]) -> Option<usize> {
        let of = |is: &dyn Fn(&Relay) -> bool| self.relays.iter().position(is);
        let is_named = |relay: &Relay| named.contains(&relay.place.url);
        of(&|relay| relay.has_failed() && !is_named(relay))
            .or_else(|| of(&|relay| matches!(relay.state, State::Asked) && !is_named(relay)))
            .or_else(|| of(&Relay::has_failed))
    }

    fn asked(&mut self, number: usize, place: RelayConfig) -> Relay {
        let (commands, queue) = mpsc::channel(COMMANDS);
        for peer in &self.peers {
            // The queue has room for all of them.
            let _ = commands.try_send(Command::Permit(*peer));
        }
        self.asked += 1;
        let reports = Reports { number, attempt: self.asked, queue: self.report.clone() };
        // The task ends when its command channel closes, and then releases the allocation.
        tokio::spawn(relay::run(place.clone(), queue, reports));
        Relay { place, attempt: self.asked, again: 0, state: State::Asked, commands }
    }

    /// Asks all relays again, because the path to them has changed.
    pub(crate) fn contact_again(&mut self) {
        for at in 0..self.relays.len() {
            let place = self.relays[at].place.clone();
            self.relays[at] = self.asked(at, place);
        }
    }

    /// Returns the local addresses of the connections to relays.
    pub(crate) fn locals(&self) -> impl Iterator<Item = IpAddr> {
        self.relays.iter().filter_map(|relay| match &relay.state {
            State::Open { local, .. } => Some(local.ip()),
            _ => None,
        })
    }

    /// Returns the local address of the connection to the relay that allocated this address, if one did.
    pub(crate) fn reached_from(&self, relayed: SocketAddr) -> Option<SocketAddr> {
        self.relays.iter().find(|relay| relay.gave(relayed)).and_then(|relay| match &relay.state {
            State::Open { local, .. } => Some(*local),
            _ => None,
        })
    }

    /// Lets every relay reach this address of the LiveKit server.
    pub(crate) fn permit(&mut self, peer: SocketAddr) {
        if !self.peers.contains(&peer) {
            self.peers.drain(..(self.peers.len() + 1).saturating_sub(MAX_PEERS));
            self.peers.push(peer);
            for relay in &self.relays {
                let _ = relay.commands.try_send(Command::Permit(peer));
            }
        }
    }

    /// Sends a datagram from a relayed address. One that does not fit is dropped, as a network would drop it.
    pub(crate) fn send(&self, relayed: SocketAddr, to: SocketAddr, datagram: Vec<u8>) {
        if let Some(relay) = self.relays.iter().find(|relay| relay.gave(relayed))
            && relay.commands.try_send(Command::Send(to, datagram)).is_err()
        {
            tracing::trace!(relay = %relay.place.url, "a datagram was dropped: the relay's queue is full");
        }
    }

    /// Returns the next event of a relay.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> RelayEvent {
        let reported = match self.reports.recv().await {
            Some(reported) => reported,
            // Never reached: this struct holds a sender itself.
            None => std::future::pending().await,
        };
        self.note(reported)
    }

    /// Returns the next event if one is waiting.
    pub(crate) fn try_next(&mut self) -> Option<RelayEvent> {
        let reported = self.reports.try_recv().ok()?;
        Some(self.note(reported))
    }

    /// Returns whether any relay was asked for an address.
    pub(crate) fn is_asked(&self) -> bool {
        !self.relays.is_empty()
    }

    /// Returns whether this is a relayed address.
    pub(crate) fn gave(&self, address: SocketAddr) -> bool {
        self.relays.iter().any(|relay| relay.gave(address))
    }

    /// Returns whether a relay was asked and has not answered yet.
    pub(crate) fn is_awaited(&self) -> bool {
        self.relays.iter().any(|relay| matches!(relay.state, State::Asked))
    }

    /// Returns whether a relay may still become usable.
    pub(crate) fn is_hopeful(&self) -> bool {
        self.relays.iter().any(|relay| !relay.has_failed())
    }

    /// Returns the failures of the relays. A relay that has not answered has been waited for as long as `waited`.
    pub(crate) fn failures(&self, waited: Duration) -> Vec<RelayFailure> {
        let failures = self.relays.iter().filter_map(|relay| {
            let error = match &relay.state {
                // A relay that has said nothing is the likely culprit behind a firewall, so it is named, too.
                State::Asked => RelayError::Silent(waited),
                State::Open { denied, .. } => denied.clone()?,
                State::Failed(error) => error.clone(),
            };
            Some(RelayFailure { relay: relay.place.url.to_string(), error })
        });
        failures.collect()
    }

    fn note(&mut self, Reported { number, attempt, report }: Reported) -> RelayEvent {
        // The report of an attempt that was replaced.
        if self.relays[number].attempt != attempt {
            return RelayEvent::Noted;
        }
        match report {
            RelayReport::Opened(mut relayed, local) => {
                // A relay that claims another relay's address would be used in its place.
                relayed.retain(|it| !self.gave(*it));
                self.relays[number].state = State::Open { relayed: relayed.clone(), local, denied: None };
                RelayEvent::Opened(relayed, local)
            }
            RelayReport::Datagram(from, datagram) => match self.relays[number].towards(from) {
                Some(relayed) => RelayEvent::Datagram { relayed, from, datagram },
                None => RelayEvent::Noted,
            },
            RelayReport::Denied(peer, error) => {
                let relay = &mut self.relays[number];
                tracing::debug!(relay = %relay.place.url, %peer, %error, "a relay refuses to reach an address");
                if let State::Open { denied, .. } = &mut relay.state {
                    denied.get_or_insert(error);
                }
                RelayEvent::Noted
            }
            RelayReport::Failed(error) => {
                let gone = self.relays[number].relayed().to_vec();
                let relay = &mut self.relays[number];
                // A relay that worked may work again: a connection ends for many reasons.
                if gone.is_empty() || relay.again == MAX_AGAIN {
                    relay.state = State::Failed(error);
                } else {
                    let (place, again) = (relay.place.clone(), relay.again + 1);
                    self.relays[number] = Relay { again, ..self.asked(number, place) };
                }
                RelayEvent::Failed(gone)
            }
        }
    }
}

impl Relay {
    fn has_failed(&self) -> bool {
        matches!(self.state, State::Failed(_))
    }

    fn relayed(&self) -> &[SocketAddr] {
        match &self.state {
            State::Open { relayed, .. } => relayed,
            _ => &[],
        }
    }

    fn gave(&self, address: SocketAddr) -> bool {
        self.relayed().contains(&address)
    }

    /// Returns the relayed address that this one was sent to.
    fn towards(&self, from: SocketAddr) -> Option<SocketAddr> {
        // An allocation has at most one address of each family, and datagrams do not cross families.
        self.relayed().iter().copied().find(|it| it.is_ipv4() == from.is_ipv4())
    }
}

#[cfg(test)]
mod tests;
