//! Prints when the connection is lost and restored, and what to do about packets that cannot be read.

use crate::cli::{
    room::{record_option::RecordOption, unreadable},
    terminal::failure::hint,
};
use toolbridge::{Assistant, ConnectionState, Event};

/// Describes the state of the connection.
pub(in crate::cli) fn describe(state: ConnectionState) -> &'static str {
    match state {
        ConnectionState::Reconnecting => "connection lost; reconnecting …",
        ConnectionState::Connected => "reconnected",
    }
}

/// Prints changes of the connection, advice about packets that cannot be read, and that the recording stopped. The future never completes.
pub(in crate::cli) async fn print_changes(assistant: &Assistant, record: Option<&RecordOption>) {
    let mut events = assistant.events();
    while let Some(event) = events.recv().await {
        match event {
            Event::ConnectionState(state) => hint(describe(state)),
            Event::Violation { by, what, .. } => {
                if let Some(why) = what.unreadable() {
                    hint(&unreadable::describe(by.as_ref(), why));
                }
            }
            Event::RecordingStopped { reason } => record.into_iter().for_each(|it| it.stopped(&reason)),
            _ => {}
        }
    }
    std::future::pending().await
}
