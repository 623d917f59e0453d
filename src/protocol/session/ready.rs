//! Waiting for one participant until its tools are known, without a call.

use std::time::Instant;

use super::{
    Session,
    outgoing::{not_bound, unregistered, why_not},
};
use crate::{
    tool::{NotOffered, Tool},
    transport::Identity,
};

/// How far a participant is that somebody waits for.
#[derive(Debug)]
pub enum Readiness {
    /// It can be asked. These are its tools; those of a plain peer that registered none are not known.
    Ready(Vec<Tool>),
    /// It may still become ready.
    NotYet(NotOffered),
    /// It shook hands, and it offers its tools to another assistant, or to none of several.
    NotBound,
    /// It will not become ready in this join.
    Never(NotOffered),
}

/// Waiting for a participant.
impl Session {
    /// Waits for this participant as a call does that names it: it is greeted, and its silence is watched. Each of these must be
    /// followed by one [`stop_expecting`](Session::stop_expecting).
    pub fn expect_client(&mut self, now: Instant, id: &Identity) {
        if self.begin(now) {
            self.outgoing.begin_expecting(&mut self.core, id);
        }
    }

    /// Ends one wait for this participant.
    pub fn stop_expecting(&mut self, id: &Identity) {
        self.outgoing.stop_expecting(id);
    }

    /// Pings a participant that shook hands and has not registered. Without that it is never
    /// [`NotBound`](Readiness::NotBound).
    pub fn probe_client(&mut self, now: Instant, id: &Identity) {
        if self.begin(now) {
            for id in unregistered(&self.core, Some(id)) {
                self.core.peers.probe(&mut self.core.cx, &mut self.core.delivery, &id);
            }
        }
    }

    /// Returns how far this participant is.
    pub fn readiness(&self, id: &Identity) -> Readiness {
        let why_not = || why_not(&self.core, "", id);
        let Some(remote) = self.core.peers.get(id).filter(|remote| remote.is_here()) else {
            return Readiness::NotYet(why_not());
        };
        if remote.is_observer() {
            return Readiness::Never(why_not());
        }
        if remote.is_reachable() && (remote.is_registered() || remote.is_plain()) {
            return Readiness::Ready(remote.tools().to_vec());
        }
        if not_bound(&self.core, Some(id)).is_empty() {
            return Readiness::NotYet(why_not());
        }
        Readiness::NotBound
    }

    /// Counts what may have changed the readiness of anybody.
    #[cfg(feature = "runtime")]
    pub(crate) fn registrations(&self) -> u64 {
        self.core.peers.changes()
    }
}
