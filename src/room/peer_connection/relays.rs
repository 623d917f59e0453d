//! What a peer connection does with relays.

use std::time::Duration;

use livekit_protocol::IceServer;
use rustls::pki_types::CertificateDer;
use str0m::{Candidate, net::Protocol};

use super::{Admit, Error, PeerConnection};
use crate::room::turn::{RelayEvent, RelayFailure};

impl PeerConnection {
    /// Uses the relays among these servers, and nothing else with `only`. To be called before the answer is taken,
    /// and again when the server names others.
    pub(in crate::room) fn use_relays(
        &mut self,
        servers: &[IceServer],
        only: bool,
        roots: &[CertificateDer<'static>],
    ) {
        self.relay_only |= only;
        self.sockets.relays.use_servers(servers, self.udp, roots);
    }

    /// Whether only relays may be used and none of them can be, and what became of each.
    pub(in crate::room) fn without_relay(&self, waited: Duration) -> Option<Vec<RelayFailure>> {
        let relays = &self.sockets.relays;
        (self.relay_only && !relays.is_hopeful()).then(|| relays.failures(waited))
    }

    /// What became of each relay, if only those may be used.
    pub(in crate::room) fn relay_failures(&self, waited: Duration) -> Vec<RelayFailure> {
        if self.relay_only { self.sockets.relays.failures(waited) } else { Vec::new() }
    }

    pub(super) fn handle_relay(&mut self, event: RelayEvent, admit: Admit) -> Result<(), Error> {
        match event {
            RelayEvent::Opened(relayed, local) => {
                for address in relayed {
                    self.add_local(Candidate::relayed(address, local, Protocol::Udp));
                }
                self.drain()
            }
            RelayEvent::Datagram { relayed, from, datagram } => {
                self.receive(Protocol::Udp, from, relayed, &datagram, admit)
            }
            RelayEvent::Failed => {
                if self.path && self.relay_only && !self.sockets.relays.is_hopeful() {
                    self.lose("no relay works any more");
                }
                Ok(())
            }
            RelayEvent::Noted => Ok(()),
        }
    }
}
