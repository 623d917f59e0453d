//! Defines whether a participant is ready for calls.

use crate::tool::{NotOffered, Tool};

/// Whether a participant is ready for calls.
#[derive(Debug)]
pub enum Readiness {
    /// The participant can be called. These are its tools; the tools of a plain peer that registered none are unknown.
    Ready(Vec<Tool>),
    /// The participant may still become ready.
    NotYet(NotOffered),
    /// The participant completed the handshake, but is bound to another assistant or to none.
    NotBound,
    /// The participant will not become ready before it rejoins.
    Never(NotOffered),
}
