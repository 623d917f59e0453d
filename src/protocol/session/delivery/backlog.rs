//! Follows how many bytes wait on the reliable lane, which the lanes to all peers share.

use crate::{sorted::SortedSet, transport::Identity};

/// The backlog on `_reliable` up to which a reliable copy is sent, in bytes. Both channels share one congestion window,
/// so every copy delays the packets behind it.
const RELIABLE_WAIT: usize = 600;

#[derive(Debug, Default)]
pub(super) struct Backlog {
    /// The bytes waiting on `_reliable` in the driver's last report; `None` before the first report.
    reported: Option<usize>,
    /// The bytes that were added since the report.
    added: usize,
    /// The peers whose copies may be held back.
    holding: SortedSet<Identity>,
}

impl Backlog {
    /// Adds the bytes of a packet that is sent on `_reliable`.
    pub(super) fn add(&mut self, bytes: usize) {
        self.added = self.added.saturating_add(bytes);
    }

    /// Returns whether a copy may be sent on `_reliable` after this many bytes of other copies.
    pub(super) fn has_room_after(&self, bytes: usize) -> bool {
        let waits = |reported: usize| reported.saturating_add(self.added).saturating_add(bytes);
        self.reported.is_none_or(|reported| waits(reported) <= RELIABLE_WAIT)
    }

    /// Notes that a copy to this peer is held back.
    pub(super) fn hold(&mut self, id: &Identity) {
        self.holding.insert(id.clone());
    }

    /// Handles the driver's report. Returns the peers whose copies may be sent now.
    pub(super) fn report(&mut self, bytes: usize) -> SortedSet<Identity> {
        (self.reported, self.added) = (Some(bytes), 0);
        if self.has_room_after(0) { std::mem::take(&mut self.holding) } else { SortedSet::new() }
    }
}
