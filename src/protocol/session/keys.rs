//! Defines the keys of what one session holds open.

/// Identifies a call of the local participant within one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallKey(pub(super) u64);

/// Identifies a conversation turn within one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TurnKey(pub(super) u64);

/// Identifies a [`Selection`](super::Selection) within one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelectionKey(pub(super) Option<CallKey>);
