//! What the server tells, in our outgoing.

use livekit_protocol::{
    ClientConfigSetting, ClientConfiguration, DisconnectReason, LeaveRequest, ParticipantInfo,
    ReconnectResponse, RoomMovedResponse, SignalTarget, leave_request, signal_response::Message,
};

use super::NotResumed;
use crate::transport::{
    CloseReason,
    livekit::liveness::{End, Loss},
};

/// What the server tells. Not to be shown: a token may be in it.
pub(in crate::transport::livekit) enum ServerEvent {
    /// Its half of the peer connection, and the number of the offer that it answers.
    Answer(String, u32),
    /// An address of its: a candidate line.
    Candidate(String),
    /// What it knows of some participants, ourselves among them.
    Participants(Vec<ParticipantInfo>),
    /// A newer token.
    Token(String),
    /// It tells of the room, as it does after it has listed all participants.
    Listed,
    /// We are in another room now.
    Moved(Box<RoomMovedResponse>),
    /// It ends the join, or asks for another.
    Leave(End),
    /// It asks for another connection for the same join, for this reason.
    AsksToResume(&'static str),
    /// The connection is gone.
    Lost(String),
    /// Another connection is there for the same join.
    Resumed(Box<ReconnectResponse>),
    /// It is not.
    NotResumed(NotResumed),
}

/// Whether the server lets nobody send to it directly.
pub(in crate::transport::livekit) fn demands_relays(configuration: Option<&ClientConfiguration>) -> bool {
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
        // The server lists everybody and then tells of the room itself.
        Message::RoomUpdate(_) => Some(ServerEvent::Listed),
        Message::RoomMoved(moved) => Some(ServerEvent::Moved(Box::new(moved))),
        _ => None,
    }
}

/// The candidate line in the JSON that carries it.
pub(super) fn candidate(init: &str) -> Option<String> {
    let init: serde_json::Value = serde_json::from_str(init).ok()?;
    let line = init.get("candidate")?.as_str()?;
    (!line.is_empty()).then(|| line.to_owned())
}

/// What the server wants when it ends a connection.
pub(super) fn server_leave(leave: &LeaveRequest) -> ServerEvent {
    match end(leave) {
        End::Lost(Loss::Asked(reason)) if leave.action() == leave_request::Action::Resume => {
            ServerEvent::AsksToResume(reason)
        }
        end => ServerEvent::Leave(end),
    }
}

/// Somebody's will is final; what only says that the connection failed is a loss. So is what names nobody's will: the
/// server says `JOIN_FAILURE` when its own message bus fails, and `UNKNOWN_REASON` for whatever else.
pub(super) fn end(leave: &LeaveRequest) -> End {
    let disconnect = leave.action() == leave_request::Action::Disconnect;
    End::Closed(match leave.reason() {
        DisconnectReason::DuplicateIdentity => CloseReason::DuplicateIdentity,
        DisconnectReason::ParticipantRemoved => CloseReason::Removed,
        DisconnectReason::RoomDeleted => CloseReason::RoomDeleted,
        DisconnectReason::RoomClosed => CloseReason::RoomClosed,
        DisconnectReason::ServerShutdown if disconnect => CloseReason::ServerShutdown,
        reason @ (DisconnectReason::StateMismatch
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
    fn somebodys_will_is_final_and_told_in_our_words() {
        use leave_request::Action::Disconnect;
        for (reason, told) in [
            (DisconnectReason::DuplicateIdentity, CloseReason::DuplicateIdentity),
            (DisconnectReason::ParticipantRemoved, CloseReason::Removed),
            (DisconnectReason::RoomDeleted, CloseReason::RoomDeleted),
            (DisconnectReason::RoomClosed, CloseReason::RoomClosed),
            (DisconnectReason::ServerShutdown, CloseReason::ServerShutdown),
            (DisconnectReason::UserRejected, CloseReason::Server("USER_REJECTED".into())),
        ] {
            assert_eq!(leave(reason, Disconnect), End::Closed(told));
        }
    }

    #[test]
    fn a_server_that_asks_for_a_new_join_or_ends_one_for_nobodys_sake_gets_one() {
        use leave_request::Action::{Disconnect, Reconnect, Resume};
        for (reason, action) in [
            (DisconnectReason::UnknownReason, Reconnect),
            (DisconnectReason::UnknownReason, Resume),
            (DisconnectReason::ServerShutdown, Reconnect),
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
    fn a_candidate_is_taken_out_of_its_json() {
        let init = r#"{"candidate":"candidate:1 1 udp 1 127.0.0.1 9 typ host","sdpMid":"0","usernameFragment":null}"#;
        assert_eq!(candidate(init).as_deref(), Some("candidate:1 1 udp 1 127.0.0.1 9 typ host"));
        for nothing in [r#"{"candidate":""}"#, r#"{"candidate":7}"#, "{}", "[]", "", "{"] {
            assert_eq!(candidate(nothing), None, "{nothing}");
        }
    }
}
