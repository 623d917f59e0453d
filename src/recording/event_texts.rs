//! Decides which texts of events stay, and which are replaced.

use super::{HIDDEN, RoomEvent, allow_list::CODES, placeholder};
use crate::transport::Role;

/// The reasons that toolbridge itself gives, without digits, up to the text of a server or a transport that may follow.
const REASONS: &[&str] = &[
    "closed",
    "the connection ended",
    "another participant joined with the same identity; use a unique identity for each participant",
    "removed from the room by an administrator",
    "the room was deleted",
    "the room closed",
    "the server is shutting down",
    "connection lost",
    "the server ended the session",
    "the connection was lost and the token has expired; join again with a new token, or set a token source \
     (`ConnectOptions::token_source`)",
    "the connection was lost and rejoining failed",
    "the packet has no destination; name one, or use `Packet::broadcast`",
    "the packet has  bytes; the limit is ",
    "the token does not allow publishing data; grant `canPublishData`",
    "not connected",
    "the connection was lost before the packet was sent; send it again when the state is `Connected`",
    "cancelled before it was sent completely",
];

/// Returns the event with each text in it changed by `edit`. Names and ids are no texts.
pub(super) fn edited(mut event: RoomEvent, mut edit: impl FnMut(&str) -> Option<String>) -> RoomEvent {
    let mut change = |text: &mut String| {
        if let Some(new) = edit(text) {
            *text = new;
        }
    };
    match &mut event {
        RoomEvent::Joined { role: Some(text), .. }
        | RoomEvent::Unsent { reason: text, .. }
        | RoomEvent::Closed { reason: text }
        | RoomEvent::Ended { code: text, .. } => change(text),
        RoomEvent::Unasked { code, message, .. } => {
            change(code);
            change(message);
        }
        RoomEvent::Here { .. }
        | RoomEvent::Joined { role: None, .. }
        | RoomEvent::AnswersRpc { .. }
        | RoomEvent::Left { .. }
        | RoomEvent::Link { .. }
        | RoomEvent::Unrecorded { .. }
        | RoomEvent::LeftOut { .. }
        | RoomEvent::Other => {}
    }
    event
}

/// Returns the event with its ids, names, states and numbers. A text that is none of toolbridge's own words is replaced.
pub(super) fn reduced(event: RoomEvent) -> RoomEvent {
    edited(event, |text| {
        let stays = CODES.contains(&text)
            || Role::from_text(text).is_some()
            || text == HIDDEN
            || placeholder::read(text.as_bytes()).is_some();
        if stays { None } else { reduced_reason(text) }
    })
}

/// Returns a reason without the text of a server or a transport in it, or `None` if it has none.
fn reduced_reason(text: &str) -> Option<String> {
    let is_known = |text: &str| {
        let words: String = text.chars().filter(|letter| !letter.is_ascii_digit()).collect();
        REASONS.contains(&words.as_str())
    };
    if is_known(text) {
        return None;
    }
    match text.split_once(": ") {
        Some((head, rest)) if is_known(head) => {
            let is_reduced = placeholder::read(rest.as_bytes()).is_some() || is_known(rest);
            (!is_reduced).then(|| format!("{head}: {}", placeholder::of_part(rest.len())))
        }
        _ => Some(placeholder::of("a string", text.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::{CloseReason, SendError};

    fn reason(text: &str) -> String {
        let RoomEvent::Closed { reason } = reduced(RoomEvent::Closed { reason: text.to_owned() }) else {
            panic!()
        };
        reason
    }

    #[test]
    fn reasons_keep_own_words_and_lose_the_texts_of_others() {
        let closed = [
            CloseReason::Closed,
            CloseReason::DuplicateIdentity,
            CloseReason::Removed,
            CloseReason::RoomDeleted,
            CloseReason::RoomClosed,
            CloseReason::ServerShutdown,
            CloseReason::TokenExpired,
        ];
        let unsent = [
            SendError::NoDestination,
            SendError::TooLarge { size: 12, limit: 3 },
            SendError::NotAllowed,
            SendError::Closed(CloseReason::Removed),
            SendError::Interrupted,
        ];
        let texts = closed.iter().map(ToString::to_string).chain(unsent.iter().map(ToString::to_string));
        for text in texts {
            assert_eq!(reason(&text), text);
        }
        for (other, shown) in [
            (CloseReason::ConnectionLost("hunter2".into()), "connection lost: <redacted: 7 bytes>"),
            (CloseReason::Server("hunter2".into()), "the server ended the session: <redacted: 7 bytes>"),
            (
                CloseReason::Refused("hunter2".into()),
                "the connection was lost and rejoining failed: <redacted: 7 bytes>",
            ),
        ] {
            assert_eq!(reason(&other.to_string()), shown);
            assert_eq!(reason(shown), shown, "redacting twice changes nothing");
        }
        assert_eq!(reason("hunter2"), "<redacted: string, 7 bytes>");
        let nested = reason("not connected: connection lost: hunter2");
        assert_eq!(nested, "not connected: <redacted: 24 bytes>");
    }
}
