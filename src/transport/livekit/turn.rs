//! Relays: TURN servers that forward datagrams where there is no direct path, over UDP, TCP and TLS.
//!
//! Each relay has a task with bounded queues, so a stalled relay does not delay the others. To the peer connection it looks
//! like a socket on the relayed address.

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
pub(super) use stun_client::StunClient;

use allocation::MAX_PEERS;
use credentials::Credentials;
use relay::{Command, Place, RelayReport, Reported, Reports};
use url::{IceUrl, Kind};

/// How many relays are asked for an address in one join.
const MAX_RELAYS: usize = 4;
/// How many addresses of servers are looked at; browsers take a few.
const MAX_URLS: usize = 32;
/// How often a relay whose connection has ended is asked again in one join; a new join begins from nothing.
const MAX_AGAIN: u8 = 4;
/// How many datagrams wait for a relay that does not take them.
const COMMANDS: usize = 256;
/// How many datagrams of all relays wait for us.
const REPORTS: usize = 256;

/// All relays of one peer connection. Dropping it gives their addresses back.
#[derive(Debug)]
pub(super) struct Relays {
    from: Option<IpAddr>,
    relays: Vec<Relay>,
    /// Whom they are used for.
    peers: Vec<SocketAddr>,
    /// How often one was asked.
    asked: u64,
    reports: mpsc::Receiver<Reported>,
    report: mpsc::Sender<Reported>,
}

#[derive(Debug)]
struct Relay {
    place: Place,
    state: State,
    commands: mpsc::Sender<Command>,
    /// Which of all attempts it is.
    attempt: u64,
    /// How often it was asked again because its connection had ended.
    again: u8,
}

#[derive(Debug)]
enum State {
    /// Asked for an address.
    Asked,
    /// It gave these, and perhaps will not reach the room's server. `ours` is our end of the way to it.
    Open {
        relayed: Vec<SocketAddr>,
        ours: SocketAddr,
        denied: Option<RelayError>,
    },
    Failed(RelayError),
}

/// What a relay tells.
#[derive(Debug)]
pub(super) enum RelayEvent {
    /// There are addresses; ours towards the relay is the second.
    Opened(Vec<SocketAddr>, SocketAddr),
    /// A datagram came to a relayed address from somebody.
    Datagram { relayed: SocketAddr, from: SocketAddr, datagram: Vec<u8> },
    /// One is gone, and these addresses with it. Or it could not be had.
    Failed(Vec<SocketAddr>),
    /// Nothing that concerns others.
    Noted,
}

impl Relays {
    /// None yet. They are reached from this address of ours if one is given.
    pub(super) fn new(from: Option<IpAddr>) -> Self {
        let (report, reports) = mpsc::channel(REPORTS);
        Self { from, relays: Vec::new(), peers: Vec::new(), asked: 0, reports, report }
    }

    /// Asks every relay among these servers for an address, all at once. One that is there already stays; the
    /// same is asked anew if it failed, and one too many takes the place of one that is of no use. Without `udp` only those over TCP and TLS count; these are trusted by the
    /// system's roots and those given.
    pub(super) fn use_servers(
        &mut self,
        servers: &[IceServer],
        udp: bool,
        roots: &[CertificateDer<'static>],
    ) {
        let urls = servers.iter().flat_map(|server| server.urls.iter().map(move |url| (server, url)));
        let mut places = Vec::new();
        for (server, text) in urls.take(MAX_URLS) {
            // The address alone may be shown; what cannot be read may be anything.
            let Some(url) = IceUrl::parse(text) else {
                tracing::debug!("an address of a relay was skipped: it is of no kind that we use");
                continue;
            };
            let Some(credentials) = Credentials::new(&server.username, &server.credential) else {
                tracing::debug!(relay = %url, "a relay was skipped: its credentials are too long");
                continue;
            };
            match url.kind {
                Kind::Stun => {}
                Kind::TurnUdp if !udp => {}
                _ => places.push(Place { url, credentials, from: self.from, roots: roots.to_vec() }),
            }
        }
        let named: Vec<_> = places.iter().map(|place| place.url.clone()).collect();
        for place in places {
            self.ask(place, &named);
        }
    }

    fn ask(&mut self, place: Place, named: &[IceUrl]) {
        match self.relays.iter().position(|relay| relay.place.url == place.url) {
            Some(at) if self.relays[at].has_failed() => self.relays[at] = self.asked(at, place),
            // The newest credentials are for the next time.
            Some(at) => self.relays[at].place = place,
            None if self.relays.len() < MAX_RELAYS => {
                let relay = self.asked(self.relays.len(), place);
                self.relays.push(relay);
            }
            None => match self.dispensable(named) {
                Some(at) => self.relays[at] = self.asked(at, place),
                None => {
                    tracing::debug!(relay = %place.url, limit = MAX_RELAYS, "a relay too many was skipped");
                }
            },
        }
    }

    /// A relay whose place another one may take: one that gave nothing, and the server names no more. Or else one
    /// that failed.
    fn dispensable(&self, named: &[IceUrl]) -> Option<usize> {
        let of = |is: &dyn Fn(&Relay) -> bool| self.relays.iter().position(is);
        let is_named = |relay: &Relay| named.contains(&relay.place.url);
        of(&|relay| relay.has_failed() && !is_named(relay))
            .or_else(|| of(&|relay| matches!(relay.state, State::Asked) && !is_named(relay)))
            .or_else(|| of(&Relay::has_failed))
    }

    fn asked(&mut self, number: usize, place: Place) -> Relay {
        let (commands, queue) = mpsc::channel(COMMANDS);
        for peer in &self.peers {
            // There is room for all of them.
            let _ = commands.try_send(Command::Permit(*peer));
        }
        self.asked += 1;
        let reports = Reports { number, attempt: self.asked, queue: self.report.clone() };
        // It ends itself once its commands end: so the relay hears that it is not needed any more.
        tokio::spawn(relay::run(place.clone(), queue, reports));
        Relay { place, attempt: self.asked, again: 0, state: State::Asked, commands }
    }

    /// Asks all of them anew: the way to them is not what it was.
    pub(super) fn ask_anew(&mut self) {
        for at in 0..self.relays.len() {
            let place = self.relays[at].place.clone();
            self.relays[at] = self.asked(at, place);
        }
    }

    /// Our ends of the ways to relays.
    pub(super) fn locals(&self) -> impl Iterator<Item = IpAddr> {
        self.relays.iter().filter_map(|relay| match &relay.state {
            State::Open { ours, .. } => Some(ours.ip()),
            _ => None,
        })
    }

    /// Our end of the way to the relay that gave this address, if one did.
    pub(super) fn reached_from(&self, relayed: SocketAddr) -> Option<SocketAddr> {
        self.relays.iter().find(|relay| relay.gave(relayed)).and_then(|relay| match &relay.state {
            State::Open { ours, .. } => Some(*ours),
            _ => None,
        })
    }

    /// Lets every relay reach this address of the room's server.
    pub(super) fn permit(&mut self, peer: SocketAddr) {
        if !self.peers.contains(&peer) {
            self.peers.drain(..(self.peers.len() + 1).saturating_sub(MAX_PEERS));
            self.peers.push(peer);
            for relay in &self.relays {
                let _ = relay.commands.try_send(Command::Permit(peer));
            }
        }
    }

    /// Sends a datagram from a relayed address; one that does not fit is dropped, as a network would.
    pub(super) fn send(&self, relayed: SocketAddr, to: SocketAddr, datagram: Vec<u8>) {
        if let Some(relay) = self.relays.iter().find(|relay| relay.gave(relayed))
            && relay.commands.try_send(Command::Send(to, datagram)).is_err()
        {
            tracing::trace!(relay = %relay.place.url, "a datagram was dropped: the relay takes no more");
        }
    }

    /// The next thing that a relay tells.
    ///
    /// # Cancel safety
    /// A dropped future loses nothing.
    pub(super) async fn next(&mut self) -> RelayEvent {
        let reported = match self.reports.recv().await {
            Some(reported) => reported,
            // Never: we hold a sender ourselves.
            None => std::future::pending().await,
        };
        self.note(reported)
    }

    /// What a relay has told meanwhile.
    pub(super) fn try_next(&mut self) -> Option<RelayEvent> {
        let reported = self.reports.try_recv().ok()?;
        Some(self.note(reported))
    }

    /// Whether any was asked for an address.
    pub(super) fn is_asked(&self) -> bool {
        !self.relays.is_empty()
    }

    /// Whether this is the address of a relay.
    pub(super) fn gave(&self, address: SocketAddr) -> bool {
        self.relays.iter().any(|relay| relay.gave(address))
    }

    /// Whether one was asked and has not answered yet.
    pub(super) fn is_awaited(&self) -> bool {
        self.relays.iter().any(|relay| matches!(relay.state, State::Asked))
    }

    /// Whether one of them may still be of use.
    pub(super) fn is_hopeful(&self) -> bool {
        self.relays.iter().any(|relay| !relay.has_failed())
    }

    /// What is known against them. One that was asked and has said nothing was waited for that long.
    pub(super) fn failures(&self, waited: Duration) -> Vec<RelayFailure> {
        let failures = self.relays.iter().filter_map(|relay| {
            let error = match &relay.state {
                State::Asked => RelayError::Silent(waited),
                State::Open { denied, .. } => denied.clone()?,
                State::Failed(error) => error.clone(),
            };
            Some(RelayFailure { relay: relay.place.url.to_string(), error })
        });
        failures.collect()
    }

    fn note(&mut self, Reported { number, attempt, report }: Reported) -> RelayEvent {
        // What an attempt had to say that was replaced meanwhile.
        if self.relays[number].attempt != attempt {
            return RelayEvent::Noted;
        }
        match report {
            RelayReport::Opened(mut relayed, ours) => {
                // A relay that claims the address of another would be used in its place.
                relayed.retain(|it| !self.gave(*it));
                self.relays[number].state = State::Open { relayed: relayed.clone(), ours, denied: None };
                RelayEvent::Opened(relayed, ours)
            }
            RelayReport::Datagram(from, datagram) => match self.relays[number].towards(from) {
                Some(relayed) => RelayEvent::Datagram { relayed, from, datagram },
                None => RelayEvent::Noted,
            },
            RelayReport::Denied(peer, error) => {
                let relay = &mut self.relays[number];
                tracing::debug!(relay = %relay.place.url, %peer, %error, "a relay will not reach an address");
                if let State::Open { denied, .. } = &mut relay.state {
                    denied.get_or_insert(error);
                }
                RelayEvent::Noted
            }
            RelayReport::Failed(error) => {
                let gone = self.relays[number].relayed().to_vec();
                let relay = &mut self.relays[number];
                // One that was there may be there again: a connection ends for many reasons.
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

    /// The relayed address that this one was sent to.
    fn towards(&self, from: SocketAddr) -> Option<SocketAddr> {
        self.relayed().iter().copied().find(|it| it.is_ipv4() == from.is_ipv4())
    }
}

#[cfg(test)]
mod tests;
