//! Uses relays and STUN servers for a peer connection.

use std::time::Duration;

use livekit_protocol::IceServer;
use rustls::pki_types::CertificateDer;
use str0m::{Candidate, net::Protocol};

use super::{Admit, Error, PeerConnection};
use crate::livekit::path::turn::{RelayEvent, RelayFailure};

impl PeerConnection {
    /// Sets which paths may be used: relays only, or no relay unless the server demands one.
    pub(crate) fn restrict(&mut self, relay_only: bool, direct_only: bool) {
        (self.relay_only, self.direct_only) = (relay_only, direct_only);
    }

    /// Uses the relays among these servers, exclusively if the server demands that, and asks the STUN servers for the local
    /// reflexive addresses. Called before the answer is handled, and again when the server sends other servers.
    pub(crate) fn use_relays(
        &mut self,
        servers: &[IceServer],
        demanded: bool,
        roots: &[CertificateDer<'static>],
    ) {
        self.relay_only |= demanded;
        if self.direct_only && !self.relay_only {
            return;
        }
        self.sockets.stun_client.use_servers(servers);
        self.sockets.relays.use_servers(servers, self.udp, roots);
    }

    /// Returns what happened to each relay, if only relays may be used and none of them can be.
    pub(crate) fn without_relay(&self, waited: Duration) -> Option<Vec<RelayFailure>> {
        let relays = &self.sockets.relays;
        (self.relay_only && !relays.is_hopeful()).then(|| relays.failures(waited))
    }

    /// Returns what happened to each relay, if only relays may be used.
    pub(crate) fn relay_failures(&self, waited: Duration) -> Vec<RelayFailure> {
        if self.relay_only { self.sockets.relays.failures(waited) } else { Vec::new() }
    }

    /// Returns whether ICE must be restarted to find a path, and resets the flag.
    pub(crate) fn wants_restart(&mut self) -> bool {
        std::mem::take(&mut self.stranded)
    }

    /// Returns whether the selected path used a relay that is gone. The server does not switch to another relay by
    /// itself: it stays with the best pair that it knew.
    pub(super) fn is_cut_off(&self) -> bool {
        self.path.chosen().is_some_and(|(local, _)| !self.sockets.have(local))
    }

    pub(super) fn handle_relay(&mut self, event: RelayEvent, admit: Admit) -> Result<(), Error> {
        if !matches!(event, RelayEvent::Datagram { .. }) {
            self.end_batch()?;
        }
        match event {
            RelayEvent::Opened(relayed, local) => {
                for address in relayed {
                    self.add_local(Candidate::relayed(address, local, Protocol::Udp));
                }
                self.stranded |= self.is_cut_off();
                self.drain()
            }
            RelayEvent::Datagram { relayed, from, datagram } => {
                self.receive(Protocol::Udp, from, relayed, &datagram, admit)
            }
            RelayEvent::Failed(gone) => {
                // Without another path it waits for the relay, which was contacted again.
                let waits = self.relay_only && self.sockets.relays.is_awaited();
                self.stranded |= !waits && self.is_cut_off();
                for address in gone {
                    if let Ok(candidate) = Candidate::relayed(address, address, Protocol::Udp) {
                        // This selects another path at once, instead of after a timeout.
                        self.rtc.direct_api().invalidate_candidate(&candidate);
                    }
                }
                if self.path.is_found() && self.relay_only && !self.sockets.relays.is_hopeful() {
                    self.lose("no relay works");
                }
                self.drain()
            }
            RelayEvent::Noted => Ok(()),
        }
    }
}
