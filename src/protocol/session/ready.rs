//! How far a participant is that somebody waits for without a call.

use crate::tool::{NotOffered, Tool};

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
