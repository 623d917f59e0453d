//! A connection that is lost and comes back, in words for people.

use super::hint;
use toolbridge::{Assistant, ConnectionState, Event};

/// What has become of the connection.
pub(super) fn describe(state: ConnectionState) -> &'static str {
    match state {
        ConnectionState::Reconnecting => "the connection is lost; joining anew …",
        ConnectionState::Connected => "in the room again",
    }
}

/// Tells people of it while they wait for something else. It never ends.
pub(super) async fn print_changes(assistant: &Assistant) {
    let mut events = assistant.events();
    while let Some(event) = events.recv().await {
        if let Event::ConnectionState(state) = event {
            hint(describe(state));
        }
    }
    std::future::pending().await
}
