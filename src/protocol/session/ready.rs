//! Defines whether a participant is ready for calls.

use crate::tool::{NotOffered, Tool};

/// Whether a participant is ready for calls.
#[derive(Debug)]
pub enum Readiness {
    /// The participant can be called. These are its tools; the tools of a plain peer that registered none are unknown.
    Ready(Vec<Tool>),
    /// The participant has answered nothing. A call that names it reaches it as a plain peer, and it may still show itself
    /// as another, as a page does whose script is slow.
    Silent,
    /// The participant may still become ready.
    NotYet(NotOffered),
    /// The participant completed the handshake, but is bound to another assistant or to none.
    NotBound,
    /// The participant will not become ready before it rejoins.
    Never(NotOffered),
}
