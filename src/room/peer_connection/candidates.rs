//! The addresses of both ends, as each learns those of the other.

use std::{
    net::{IpAddr, SocketAddr},
    time::Instant,
};

use str0m::{
    Candidate, CandidateKind,
    error::IceError,
    net::{Protocol, TcpType},
};

use super::{Error, PeerConnection};
use crate::room::ice_tcp::Pair;

/// How many addresses of the server are tried.
pub(super) const MAX_CANDIDATES: usize = 64;
/// How many addresses of ours wait to be told while the signalling is away.
const MAX_UNTOLD: usize = 16;

impl PeerConnection {
    /// Takes an address of the server's. One that cannot be used is skipped.
    pub(in crate::room) fn handle_candidate(&mut self, line: &str) {
        if self.remotes.len() + self.early.len() >= MAX_CANDIDATES {
            return tracing::debug!(limit = MAX_CANDIDATES, "a candidate too many was skipped");
        }
        if self.pending.is_some() {
            return self.early.push(line.to_owned());
        }
        match Candidate::from_sdp_string(line) {
            Ok(candidate) if !is_reachable(candidate.addr()) => {
                tracing::debug!(remote = %candidate.addr(), "a candidate was skipped: nothing can be there");
            }
            Ok(candidate) => self.try_remote(candidate),
            Err(error) => tracing::debug!(%error, "a candidate was skipped"),
        }
    }

    fn try_remote(&mut self, candidate: Candidate) {
        let (remote, direct) = (candidate.addr(), !self.relay_only);
        match (candidate.proto(), candidate.tcptype()) {
            (Protocol::Udp, _) if self.udp || self.sockets.relays.is_asked() => {
                self.sockets.relays.permit(remote);
                if direct && self.udp {
                    self.open_udp_towards(remote);
                }
            }
            // A relayed address has no socket of the server's behind it that could be dialled.
            (Protocol::Tcp, Some(TcpType::Passive))
                if direct && self.tcp && candidate.kind() != CandidateKind::Relayed =>
            {
                self.sockets.dial_tcp(remote);
            }
            _ => return,
        }
        self.remotes.push(remote);
        self.rtc.add_remote_candidate(candidate);
        // The stack begins with it when it is next told the time, and wanted to be told that up to 3 s later.
        self.wake_at = Instant::now();
    }

    fn open_udp_towards(&mut self, remote: SocketAddr) {
        match self.sockets.open_udp_towards(remote) {
            Ok(Some(local)) => self.add_local(Candidate::host(local, Protocol::Udp)),
            Ok(None) => {}
            Err(error) => tracing::debug!(%remote, %error, "no way to a candidate"),
        }
    }

    pub(super) fn add_local(&mut self, candidate: Result<Candidate, IceError>) {
        match candidate {
            Ok(candidate) => {
                self.rtc.add_local_candidate(candidate);
            }
            Err(error) => tracing::debug!(%error, "an address of ours is unusable"),
        }
    }

    /// An address of ours that the server should be told: a candidate line.
    pub(in crate::room) fn poll_candidate(&mut self) -> Option<String> {
        self.untold.pop()
    }

    /// A socket of ours is seen from outside at another address.
    pub(super) fn handle_reflexive(&mut self, mapped: SocketAddr, local: SocketAddr) -> Result<(), Error> {
        match Candidate::server_reflexive(mapped, local, Protocol::Udp) {
            Ok(candidate) if mapped != local => {
                tracing::debug!(%local, %mapped, "an address of ours from outside");
                if self.untold.len() < MAX_UNTOLD {
                    self.untold.push(candidate.to_sdp_string());
                }
                self.rtc.add_local_candidate(candidate);
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(%mapped, %error, "an address of ours from outside is unusable"),
        }
        self.drain()
    }
}

/// Our end of a connection over TCP.
pub(super) fn tcp_host(pair: Pair) -> Result<Candidate, IceError> {
    Candidate::builder().tcp().host(pair.local).tcptype(TcpType::Active).build()
}

/// Whether something of the server's can be at this address. One that counts on a single link needs to know which.
fn is_reachable(address: SocketAddr) -> bool {
    let is_odd = match address.ip() {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.to_ipv4_mapped().is_some(),
    };
    !(is_odd || address.ip().is_unspecified() || address.ip().is_multicast() || address.port() == 0)
}
