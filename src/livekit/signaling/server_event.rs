//! Converts the server's signaling messages to events of this crate.

use livekit_protocol::{
    ClientConfigSetting, ClientConfiguration, DisconnectReason, LeaveRequest, ParticipantInfo,
    ReconnectResponse, RoomMovedResponse, SignalTarget, leave_request, signal_response::Message,
};

use super::NotResumed;
use crate::{
    livekit::room::liveness::{End, Loss},
    transport::CloseReason,
};

/// An event of the server. It may contain a token, so it must not be logged.
pub(crate) enum ServerEvent {
    /// The SDP answer, and the number of the offer that it answers.
    Answer(String, u32),
    /// An ICE candidate of the server.
    Candidate(String),
    /// The state of some participants, possibly including the local one.
    Participants(Vec<ParticipantInfo>),
    /// A refreshed token.
    Token(String),
    /// A room update. The server sends one after it has listed all participants.
    Listed,
    /// The participant was moved to another room.
    Moved(Box<RoomMovedResponse>),
    /// The server ended the connection, or asked to reconnect.
    Leave(End),
    /// The server asked to resume, for this reason.
    AsksToResume(&'static str),
    /// The signaling connection was lost.
    Lost(String),
    /// Signaling was resumed.
    Resumed(Box<ReconnectResponse>),
    /// Signaling could not be resumed.
    NotResumed(NotResumed),
}

/// Returns true if the server requires relays.
pub(crate) fn demands_relays(configuration: Option<&ClientConfiguration>) -> bool {
    configuration.is_some_and(|it| it.force_relay() == ClientConfigSetting::Enabled)
}

pub(super) fn server_event(message: Message) -> Option<ServerEvent> {
    match message {
        Message::Answer(answer) => Some(ServerEvent::Answer(answer.sdp, answer.id)),
        Message::Trickle(trickle) if trickle.target() == SignalTarget::Publisher => {
            candidate(&trickle.candidate_init).map(ServerEvent::Candidate)
        }
        Message::Update(update) => Some(ServerEvent::Participants(update.participants)),
        Message::RefreshToken(token) => Some(ServerEvent::Token(token)),
        Message::Leave(leave) => Some(server_leave(&leave)),
        // The server lists all participants and then sends a room update.
        Message::RoomUpdate(_) => Some(ServerEvent::Listed),
        Message::RoomMoved(moved) => Some(ServerEvent::Moved(Box::new(moved))),
        _ => None,
    }
}

/// Extracts the candidate line from its JSON.
pub(super) fn candidate(init: &str) -> Option<String> {
    let init: serde_json::Value = serde_json::from_str(init).ok()?;
    let line = init.get("candidate")?.as_str()?;
    (!line.is_empty()).then(|| line.to_owned())
}

/// Converts a leave request.
pub(super) fn server_leave(leave: &LeaveRequest) -> ServerEvent {
    match end(leave) {
        End::Lost(Loss::Asked(reason)) if leave.action() == leave_request::Action::Resume => {
            ServerEvent::AsksToResume(reason)
        }
        end => ServerEvent::Leave(end),
    }
}

/// Converts a disconnect reason. Intentional reasons are final; connection failures are losses, which are followed by a
/// rejoin. `JOIN_FAILURE` (sent when the server's message bus fails) and `UNKNOWN_REASON` are losses, too, and so is the
/// shutdown of a server, which is followed by its restart, or by another one at its address.
pub(super) fn end(leave: &LeaveRequest) -> End {
    // The reason counts more than the action: a participant that was removed must not rejoin, and a loss that
    // the server reports must not end one.
    let disconnect = leave.action() == leave_request::Action::Disconnect;
    End::Closed(match leave.reason() {
        DisconnectReason::DuplicateIdentity => CloseReason::DuplicateIdentity,
        DisconnectReason::ParticipantRemoved => CloseReason::Removed,
        DisconnectReason::RoomDeleted => CloseReason::RoomDeleted,
        DisconnectReason::RoomClosed => CloseReason::RoomClosed,
        reason @ (DisconnectReason::ServerShutdown
        | DisconnectReason::StateMismatch
        | DisconnectReason::Migration
        | DisconnectReason::SignalClose
        | DisconnectReason::ConnectionTimeout
        | DisconnectReason::JoinFailure
        | DisconnectReason::UnknownReason
        | DisconnectReason::MediaFailure) => return End::Lost(Loss::Asked(reason.as_str_name())),
        reason if disconnect => CloseReason::Server(reason.as_str_name().into()),
        reason => return End::Lost(Loss::Asked(reason.as_str_name())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leave(reason: DisconnectReason, action: leave_request::Action) -> End {
        end(&LeaveRequest { reason: reason.into(), action: action.into(), ..Default::default() })
    }

    #[test]
    fn intentional_disconnect_is_final() {
        use leave_request::Action::Disconnect;
        for (reason, close_reason) in [
            (DisconnectReason::DuplicateIdentity, CloseReason::DuplicateIdentity),
            (DisconnectReason::ParticipantRemoved, CloseReason::Removed),
            (DisconnectReason::RoomDeleted, CloseReason::RoomDeleted),
            (DisconnectReason::RoomClosed, CloseReason::RoomClosed),
            (DisconnectReason::UserRejected, CloseReason::Server("USER_REJECTED".into())),
        ] {
            assert_eq!(leave(reason, Disconnect), End::Closed(close_reason));
        }
    }

    #[test]
    fn reconnect_request_and_unintentional_disconnect_are_losses() {
        use leave_request::Action::{Disconnect, Reconnect, Resume};
        for (reason, action) in [
            (DisconnectReason::UnknownReason, Reconnect),
            (DisconnectReason::UnknownReason, Resume),
            (DisconnectReason::ServerShutdown, Reconnect),
            (DisconnectReason::ServerShutdown, Disconnect),
            (DisconnectReason::StateMismatch, Disconnect),
            (DisconnectReason::ConnectionTimeout, Disconnect),
            (DisconnectReason::Migration, Disconnect),
            (DisconnectReason::JoinFailure, Disconnect),
            (DisconnectReason::UnknownReason, Disconnect),
        ] {
            assert_eq!(leave(reason, action), End::Lost(Loss::Asked(reason.as_str_name())));
        }
        assert_eq!(
            leave(DisconnectReason::DuplicateIdentity, Reconnect),
            End::Closed(CloseReason::DuplicateIdentity),
            "whatever it asks for: two would put each other out for ever"
        );
    }

    #[test]
    fn candidate_is_extracted_from_its_json() {
        let init = r#"{"candidate":"candidate:1 1 udp 1 127.0.0.1 9 typ host","sdpMid":"0","usernameFragment":null}"#;
        assert_eq!(candidate(init).as_deref(), Some("candidate:1 1 udp 1 127.0.0.1 9 typ host"));
        for nothing in [r#"{"candidate":""}"#, r#"{"candidate":7}"#, "{}", "[]", "", "{"] {
            assert_eq!(candidate(nothing), None, "{nothing}");
        }
    }
}
