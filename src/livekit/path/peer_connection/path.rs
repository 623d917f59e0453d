//! Tracks the path to the server that ICE has selected, and when a packet last arrived on it. It does no I/O
//! and reads no clock.

use std::{net::SocketAddr, time::Instant};

/// The local and the remote address.
pub(super) type AddressPair = (SocketAddr, SocketAddr);

/// The state of the path.
#[derive(Debug)]
pub(super) struct Path {
    /// Whether there has been a path.
    is_found: bool,
    /// Whether ICE has ended its search. During a restart str0m continues to use the old path, which may be dead.
    is_settled: bool,
    chosen: Option<AddressPair>,
    heard: Instant,
}

impl Path {
    pub(super) fn new(now: Instant) -> Self {
        Self { is_found: false, is_settled: false, chosen: None, heard: now }
    }

    /// Returns whether ICE has found a path at all.
    pub(super) fn is_found(&self) -> bool {
        self.is_found
    }

    /// Returns the selected path, unless ICE is searching for another.
    pub(super) fn chosen(&self) -> Option<AddressPair> {
        self.chosen.filter(|_| self.is_settled)
    }

    /// Returns when the last packet from the server arrived.
    pub(super) fn heard(&self) -> Instant {
        self.heard
    }

    /// Handles that ICE has found a path: the server has answered on it.
    pub(super) fn handle_connected(&mut self, now: Instant) {
        // `Completed` follows `Connected` on the same path. As news it would count as a packet, and hide a
        // dead path.
        if !self.is_settled {
            (self.is_found, self.is_settled, self.heard) = (true, true, now);
        }
    }

    /// Handles that an ICE restart has begun with the server.
    pub(super) fn handle_searching(&mut self) {
        (self.is_settled, self.chosen) = (false, None);
    }

    /// Handles that str0m uses this path. Returns whether it has changed.
    pub(super) fn handle_used(&mut self, ends: AddressPair) -> bool {
        self.is_settled && self.chosen.replace(ends) != Some(ends)
    }

    /// Handles an authenticated datagram on this path. A STUN check on another path does not show that the selected
    /// one is alive; data arrives only on the selected path.
    pub(super) fn handle_received(&mut self, now: Instant, ends: AddressPair, is_data: bool) {
        if is_data || self.chosen().is_none_or(|chosen| chosen == ends) {
            self.heard = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn ends(port: u16) -> AddressPair {
        (([127, 0, 0, 1], 5000).into(), ([127, 0, 0, 1], port).into())
    }

    #[test]
    fn only_the_selected_path_and_data_count_as_received() {
        let start = Instant::now();
        let mut path = Path::new(start);
        path.handle_received(start + SECOND, ends(1), false);
        assert_eq!(path.heard(), start + SECOND, "none is chosen yet");
        path.handle_connected(start + 2 * SECOND);
        assert!(path.handle_used(ends(1)) && !path.handle_used(ends(1)));
        path.handle_received(start + 3 * SECOND, ends(2), false);
        assert_eq!(path.heard(), start + 2 * SECOND);
        path.handle_received(start + 4 * SECOND, ends(1), false);
        path.handle_received(start + 5 * SECOND, ends(2), true);
        assert_eq!(path.heard(), start + 5 * SECOND);
    }

    #[test]
    fn old_path_is_not_selected_during_a_search() {
        let start = Instant::now();
        let mut path = Path::new(start);
        path.handle_connected(start);
        path.handle_used(ends(1));
        path.handle_searching();
        assert!(!path.handle_used(ends(1)));
        assert_eq!((path.chosen(), path.is_found()), (None, true));
        path.handle_received(start + SECOND, ends(2), false);
        assert_eq!(path.heard(), start + SECOND);
        path.handle_connected(start + 2 * SECOND);
        assert_eq!(
            (path.chosen(), path.heard()),
            (None, start + 2 * SECOND),
            "it is found, and not used yet"
        );
        assert!(path.handle_used(ends(2)));
        path.handle_connected(start + 3 * SECOND);
        assert_eq!((path.chosen(), path.heard()), (Some(ends(2)), start + 2 * SECOND));
    }
}
