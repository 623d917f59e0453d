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

use super::{Error, Locals, PeerConnection};
use crate::transport::livekit::ice_tcp::Pair;

/// How many addresses of the server are tried in one beginning of ICE.
pub(super) const MAX_CANDIDATES: usize = 64;
/// How many addresses of ours from outside are told.
const MAX_OUTSIDE: usize = 16;

/// What both ends have told of their addresses.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    /// The server's that came before its answer.
    pub(super) early: Vec<String>,
    /// How many of the server's were taken since ICE began.
    taken: usize,
    /// The server's that were tried, each once; those of the present beginning once a way was found.
    remotes: Vec<SocketAddr>,
    /// Ours from outside: candidate lines.
    outside: Vec<String>,
    /// Those of them that the server does not know, or has forgotten.
    untold: Vec<String>,
}

impl Candidates {
    /// ICE begins anew, and the server has forgotten what it knew. Whether there was a way before.
    pub(super) fn begin_anew(&mut self, locals: Locals, was_found: bool) {
        self.taken = 0;
        // Those that led nowhere yet are named if the join fails.
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
    /// The server's addresses that were tried, each once.
    pub(in crate::transport::livekit) fn remotes(&self) -> &[SocketAddr] {
        &self.candidates.remotes
    }

    /// Takes an address of the server's. One that cannot be used is skipped.
    pub(in crate::transport::livekit) fn handle_candidate(&mut self, line: &str) {
        if self.candidates.is_full() {
            return tracing::debug!(limit = MAX_CANDIDATES, "a candidate too many was skipped");
        }
        if self.pending.is_some() {
            return self.candidates.early.push(line.to_owned());
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
        self.candidates.handle_taken(remote);
        self.rtc.add_remote_candidate(candidate);
        // The stack begins with it when it is next told the time, and wanted to be told that at the next check.
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
    pub(in crate::transport::livekit) fn poll_candidate(&mut self) -> Option<String> {
        self.candidates.untold.pop()
    }

    /// A socket of ours is seen from outside at another address.
    pub(super) fn handle_reflexive(&mut self, mapped: SocketAddr, local: SocketAddr) -> Result<(), Error> {
        match Candidate::server_reflexive(mapped, local, Protocol::Udp) {
            Ok(candidate) if mapped != local => {
                tracing::debug!(%local, %mapped, "an address of ours from outside");
                self.candidates.handle_outside(candidate.to_sdp_string());
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
