//! Prints when the connection is lost and restored.

use crate::cli::{room::record_option::RecordOption, terminal::failure::hint};
use toolbridge::{Assistant, ConnectionState, Event};

/// Describes the state of the connection.
pub(in crate::cli) fn describe(state: ConnectionState) -> &'static str {
    match state {
        ConnectionState::Reconnecting => "connection lost; reconnecting …",
        ConnectionState::Connected => "reconnected",
    }
}

/// Prints changes of the connection, and that the recording stopped. The future never completes.
pub(in crate::cli) async fn print_changes(assistant: &Assistant, record: Option<&RecordOption>) {
    let mut events = assistant.events();
    while let Some(event) = events.recv().await {
        match event {
            Event::ConnectionState(state) => hint(describe(state)),
            Event::RecordingStopped { reason } => record.into_iter().for_each(|it| it.stopped(&reason)),
            _ => {}
        }
    }
    std::future::pending().await
}
