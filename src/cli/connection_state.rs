//! Prints when the connection is lost and restored.

use super::hint;
use toolbridge::{Assistant, ConnectionState, Event};

/// Describes the state of the connection.
pub(super) fn describe(state: ConnectionState) -> &'static str {
    match state {
        ConnectionState::Reconnecting => "connection lost; reconnecting …",
        ConnectionState::Connected => "reconnected",
    }
}

/// Prints changes of the connection. The future never completes.
pub(super) async fn print_changes(assistant: &Assistant) {
    let mut events = assistant.events();
    while let Some(event) = events.recv().await {
        if let Event::ConnectionState(state) = event {
            hint(describe(state));
        }
    }
    std::future::pending().await
}
