//! Waiting for one participant until its tools are known, without a call.

use std::time::Instant;

use super::Session;
use crate::{
    tool::{NotOffered, Tool},
    transport::{Identity, Role},
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
    /// Waits for this participant as a call does that names it: it is greeted, and judged by its silence. Each of these must
    /// be followed by one [`stop_expecting`](Session::stop_expecting).
    pub fn expect_client(&mut self, now: Instant, id: &Identity) {
        if self.begin(now) {
            *self.expected.entry(id.clone()).or_default() += 1;
            self.expect(now, id);
        }
    }

    /// Ends one wait for this participant.
    pub fn stop_expecting(&mut self, id: &Identity) {
        if let Some(times) = self.expected.get_mut(id) {
            *times -= 1;
            if *times == 0 {
                self.expected.remove(id);
            }
        }
    }

    /// Asks a participant that shook hands and has not registered for a sign of life. Without one it is never
    /// [`NotBound`](Readiness::NotBound).
    pub fn probe_client(&mut self, now: Instant, id: &Identity) {
        if self.begin(now) {
            for id in self.unregistered(Some(id)) {
                self.probe_one(now, &id);
            }
        }
    }

    /// How far this participant is.
    pub fn readiness(&self, id: &Identity) -> Readiness {
        let Some(remote) = self.peers.get(id).filter(|remote| remote.is_here()) else {
            return Readiness::NotYet(self.why_not("", id));
        };
        if remote.who.as_ref().is_some_and(|who| who.token_role() == Some(Role::Observer)) {
            return Readiness::Never(self.why_not("", id));
        }
        if remote.is_reachable() && (remote.pair.registered || remote.pair.plain) {
            return Readiness::Ready(remote.tools.clone());
        }
        if self.elsewhere(Some(id)).is_empty() {
            return Readiness::NotYet(self.why_not("", id));
        }
        Readiness::NotBound
    }

    /// Counts what may have changed the readiness of anybody.
    #[cfg(feature = "runtime")]
    pub(crate) fn registrations(&self) -> u64 {
        self.registrations
    }
}
