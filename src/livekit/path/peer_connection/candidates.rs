//! Exchanges the candidates of both ends.

use std::{
    net::{IpAddr, SocketAddr},
    time::Instant,
};

use str0m::{
    Candidate, CandidateKind,
    error::IceError,
    net::{Protocol, TcpType},
};

use super::{Error, Locals, PeerConnection};
use crate::livekit::path::ice_tcp::Pair;

/// The most candidates of the server that are tried per ICE session.
pub(super) const MAX_CANDIDATES: usize = 64;
/// The most reflexive addresses that are sent to the server.
const MAX_OUTSIDE: usize = 16;

/// The candidates of both ends.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    /// The server's candidates that arrived before its answer.
    pub(super) early: Vec<String>,
    /// How many of the server's candidates were accepted since ICE started.
    taken: usize,
    /// The server's candidates that were tried, each once; after a path was found, only those of the current ICE
    /// session.
    remotes: Vec<SocketAddr>,
    /// The local reflexive addresses: candidate lines.
    outside: Vec<String>,
    /// Those of them that the server does not know, or has forgotten.
    untold: Vec<String>,
}

impl Candidates {
    /// Handles an ICE restart: the server has forgotten the local candidates. `was_found` is whether there was a path
    /// before.
    pub(super) fn begin_restart(&mut self, locals: Locals, was_found: bool) {
        self.taken = 0;
        // Candidates that have not worked yet are named if the join fails.
        if was_found {
            self.remotes.clear();
        }
        if locals == Locals::Replace {
            self.outside.clear();
        }
        self.untold.clone_from(&self.outside);
    }

    pub(super) fn take_early(&mut self) -> Vec<String> {
        std::mem::take(&mut self.early)
    }

    pub(super) fn is_full(&self) -> bool {
        // The early ones count: all of them are taken when the answer arrives.
        self.taken + self.early.len() >= MAX_CANDIDATES
    }

    fn handle_taken(&mut self, remote: SocketAddr) {
        self.taken += 1;
        if self.remotes.len() < MAX_CANDIDATES && !self.remotes.contains(&remote) {
            self.remotes.push(remote);
        }
    }

    fn handle_outside(&mut self, line: String) {
        if self.outside.len() < MAX_OUTSIDE && !self.outside.contains(&line) {
            self.outside.push(line.clone());
            self.untold.push(line);
        }
    }
}

impl PeerConnection {
    /// Returns the server's candidates that were tried, each once.
    pub(crate) fn remotes(&self) -> &[SocketAddr] {
        &self.candidates.remotes
    }

    /// Handles a candidate of the server. An unusable one is skipped.
    pub(crate) fn handle_candidate(&mut self, line: &str) {
        if self.candidates.is_full() {
            return tracing::debug!(limit = MAX_CANDIDATES, "a candidate beyond the limit was ignored");
        }
        if self.pending.is_some() {
            return self.candidates.early.push(line.to_owned());
        }
        match Candidate::from_sdp_string(line) {
            Ok(candidate) if !is_reachable(candidate.addr()) => {
                tracing::debug!(remote = %candidate.addr(), "an unreachable candidate was ignored");
            }
            Ok(candidate) => self.try_remote(candidate),
            Err(error) => tracing::debug!(%error, "an invalid candidate was ignored"),
        }
    }

    fn try_remote(&mut self, candidate: Candidate) {
        let (remote, direct) = (candidate.addr(), !self.relay_only);
        match (candidate.proto(), candidate.tcptype()) {
            (Protocol::Udp, _) if self.udp || self.sockets.relays.is_asked() => {
                // For every candidate, also where a direct path may work: a relay drops the packets of
                // addresses without a permission, and ICE checks both at once.
                self.sockets.relays.permit(remote);
                if direct && self.udp {
                    self.open_udp_towards(remote);
                }
            }
            // A relayed address has no server socket behind it that could be dialed.
            (Protocol::Tcp, Some(TcpType::Passive))
                if direct && self.tcp && candidate.kind() != CandidateKind::Relayed =>
            {
                self.sockets.dial_tcp(remote);
            }
            _ => return,
        }
        self.candidates.handle_taken(remote);
        self.rtc.add_remote_candidate(candidate);
        // str0m uses the candidate when it next gets the time, which it had requested only for the next check.
        self.wake_at = Instant::now();
    }

    fn open_udp_towards(&mut self, remote: SocketAddr) {
        match self.sockets.open_udp_towards(remote) {
            Ok(Some(local)) => self.add_local(Candidate::host(local, Protocol::Udp)),
            Ok(None) => {}
            Err(error) => tracing::debug!(%remote, %error, "no path to a candidate"),
        }
    }

    pub(super) fn add_local(&mut self, candidate: Result<Candidate, IceError>) {
        match candidate {
            Ok(candidate) => {
                self.rtc.add_local_candidate(candidate);
            }
            Err(error) => tracing::debug!(%error, "a local address is unusable"),
        }
    }

    /// Returns a local candidate to send to the server: a candidate line.
    pub(crate) fn poll_candidate(&mut self) -> Option<String> {
        self.candidates.untold.pop()
    }

    /// Handles the reflexive address of a local socket.
    pub(super) fn handle_reflexive(&mut self, mapped: SocketAddr, local: SocketAddr) -> Result<(), Error> {
        match Candidate::server_reflexive(mapped, local, Protocol::Udp) {
            Ok(candidate) if mapped != local => {
                tracing::debug!(%local, %mapped, "found a reflexive address");
                self.candidates.handle_outside(candidate.to_sdp_string());
                self.rtc.add_local_candidate(candidate);
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(%mapped, %error, "a reflexive address is unusable"),
        }
        self.drain()
    }
}

/// Creates the local candidate of a TCP connection.
pub(super) fn tcp_host(pair: Pair) -> Result<Candidate, IceError> {
    Candidate::builder().tcp().host(pair.local).tcptype(TcpType::Active).build()
}

/// Returns whether the server can be at this address. A link-local address would also need the link.
fn is_reachable(address: SocketAddr) -> bool {
    let is_odd = match address.ip() {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.to_ipv4_mapped().is_some(),
    };
    !(is_odd || address.ip().is_unspecified() || address.ip().is_multicast() || address.port() == 0)
}
