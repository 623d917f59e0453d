//! Orders the participants of a room that has more than can be known.

use std::{collections::BTreeSet, sync::Arc};

/// The identities that a participant knows before all others
/// ([`ConnectOptions::know_first`](crate::livekit::ConnectOptions::know_first)).
pub(crate) type First = Arc<BTreeSet<String>>;

/// How early a participant is known: the first ranks come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// One of the [`First`].
    Named,
    /// With a role, or an agent.
    Role,
    Other,
}
