//! The way to the server that ICE has chosen, and when the server was last heard on it. Without I/O or a clock.

use std::{net::SocketAddr, time::Instant};

/// Our end and theirs.
pub(super) type UserQueues = (SocketAddr, SocketAddr);

/// What is known of the way.
#[derive(Debug)]
pub(super) struct Path {
    /// There has been one.
    is_found: bool,
    /// ICE has ended its search. While it searches anew the stack goes on with the old way, which may be dead.
    is_settled: bool,
    chosen: Option<UserQueues>,
    heard: Instant,
}

impl Path {
    pub(super) fn new(now: Instant) -> Self {
        Self { is_found: false, is_settled: false, chosen: None, heard: now }
    }

    /// Whether packets got through at all.
    pub(super) fn is_found(&self) -> bool {
        self.is_found
    }

    /// The way that was chosen, unless another is being looked for.
    pub(super) fn chosen(&self) -> Option<UserQueues> {
        self.chosen.filter(|_| self.is_settled)
    }

    /// When the server was last heard.
    pub(super) fn heard(&self) -> Instant {
        self.heard
    }

    /// ICE has found a way: the server has answered on it.
    pub(super) fn handle_connected(&mut self, now: Instant) {
        if !self.is_settled {
            (self.is_found, self.is_settled, self.heard) = (true, true, now);
        }
    }

    /// ICE searches anew, from now on with the server.
    pub(super) fn handle_searching(&mut self) {
        (self.is_settled, self.chosen) = (false, None);
    }

    /// The stack uses this way. Whether that is news.
    pub(super) fn handle_used(&mut self, ends: UserQueues) -> bool {
        self.is_settled && self.chosen.replace(ends) != Some(ends)
    }

    /// An authenticated datagram came this way. Another way that can be checked is no sign that this one lives; data come by the
    /// chosen one alone.
    pub(super) fn handle_received(&mut self, now: Instant, ends: UserQueues, is_data: bool) {
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

    fn ends(port: u16) -> UserQueues {
        (([127, 0, 0, 1], 5000).into(), ([127, 0, 0, 1], port).into())
    }

    #[test]
    fn only_the_chosen_way_and_data_are_heard() {
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
    fn the_old_way_is_not_chosen_again_while_another_is_looked_for() {
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
