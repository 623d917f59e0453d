use livekit_protocol::{
    DisconnectReason, JoinResponse, ParticipantInfo, ParticipantUpdate, ReconnectResponse,
};

use std::sync::Arc;

use super::*;

fn frame(message: Message) -> Vec<u8> {
    SignalResponse { message: Some(message) }.encode_to_vec()
}

fn join() -> JoinResponse {
    let participant = ParticipantInfo { sid: "PA_1".into(), identity: "phone".into(), ..Default::default() };
    JoinResponse { participant: Some(participant), ping_interval: 5, ping_timeout: 15, ..Default::default() }
}

fn token(text: &str) -> Message {
    Message::RefreshToken(format!("{text}.e30.c2ln"))
}

fn fresh() -> FrameLimits {
    FrameLimits::new(false, First::default())
}

fn opened() -> FrameLimits {
    let mut limits = fresh();
    assert_eq!(limits.take(&frame(Message::Join(join()))), Ok(Some(Message::Join(join()))));
    limits
}

#[test]
fn no_message_is_passed_on_before_the_join_response() {
    let mut limits = fresh();
    for early in [token("t"), Message::Answer(Default::default()), Message::Update(Default::default())] {
        assert_eq!(limits.take(&frame(early)), Ok(None));
    }
    assert_eq!(limits.take(&frame(Message::Join(join()))), Ok(Some(Message::Join(join()))));
    assert_eq!(limits.take(&frame(token("t"))), Ok(Some(token("t"))));
    assert_eq!(limits.take(&frame(Message::Join(join()))), Ok(None), "one is enough");
}

#[test]
fn malformed_fresh_token_does_not_replace_the_last_one() {
    let mut limits = opened();
    for malformed in ["", "t", "a.b", "a..c", "<html>", "a.b.c\n", "Bearer a.b.c"] {
        assert_eq!(limits.take(&frame(Message::RefreshToken(malformed.into()))), Ok(None), "{malformed:?}");
    }
    assert_eq!(limits.take(&frame(token("t"))), Ok(Some(token("t"))));
}

#[test]
fn incomplete_join_response_is_refused() {
    let nobody = ParticipantInfo::default();
    for broken in [
        JoinResponse { ping_interval: 0, ..join() },
        JoinResponse { ping_interval: -1, ..join() },
        JoinResponse { ping_timeout: 0, ..join() },
        JoinResponse { ping_timeout: i32::MIN, ..join() },
        JoinResponse { participant: None, ..join() },
        JoinResponse { participant: Some(nobody), ..join() },
        JoinResponse::default(),
    ] {
        assert_eq!(
            fresh().take(&frame(Message::Join(broken))),
            Err("the server's join response is incomplete")
        );
    }
    let huge = JoinResponse { ping_interval: i32::MAX, ping_timeout: i32::MAX, ..join() };
    assert!(matches!(fresh().take(&frame(Message::Join(huge))), Ok(Some(_))));
}

#[test]
fn join_response_must_match_the_request() {
    let resumed = frame(Message::Reconnect(ReconnectResponse::default()));
    assert!(fresh().take(&resumed).is_err());
    let mut limits = FrameLimits::new(true, First::default());
    assert!(matches!(limits.take(&resumed), Ok(Some(Message::Reconnect(_)))));
    assert_eq!(limits.take(&resumed), Ok(None));
    let mut limits = FrameLimits::new(true, First::default());
    assert!(limits.take(&frame(Message::Join(join()))).is_err());
}

#[test]
fn leave_is_a_message_before_and_after_the_response() {
    let leave =
        Message::Leave(LeaveRequest { reason: DisconnectReason::RoomDeleted.into(), ..Default::default() });
    let bytes = frame(leave.clone());
    assert_eq!(fresh().take(&bytes), Ok(Some(leave.clone())));
    assert_eq!(opened().take(&bytes), Ok(Some(leave)));
}

#[test]
fn undecodable_message_is_skipped() {
    let mut limits = opened();
    let broken = [&[0x82, 0x01, 0x02][..], &[0xff, 0xfe]].concat();
    assert_eq!(limits.take(&broken), Ok(None), "a token that is no UTF-8");
    assert_eq!(limits.take(b"\xff\xff\xff"), Ok(None));
    assert_eq!(limits.skipped, 2);
}

#[test]
fn participants_weigh_what_they_take_once_decoded() {
    let crowd = ParticipantUpdate { participants: vec![ParticipantInfo::default(); 1000] };
    let message = Message::Update(crowd);
    let frame = SignalResponse { message: Some(message.clone()) }.encoded_len();
    let weight = weight(frame, &message);
    assert!(frame < 5_000 && weight > 1000 * size_of::<ParticipantInfo>(), "{frame} {weight}");
}

#[tokio::test(start_paused = true)]
async fn unread_messages_are_bounded_and_continue_when_read() {
    let unread = Arc::new(Unread::default());
    let mut waiting = 0;
    while unread.bytes() < MAX_UNREAD {
        unread.room().await;
        unread.add(60_000);
        waiting += 1;
    }
    assert!(waiting <= MAX_UNREAD / 60_000 + 1, "{waiting}");
    let room = tokio::spawn({
        let unread = unread.clone();
        async move { unread.room().await }
    });
    tokio::task::yield_now().await;
    assert!(!room.is_finished());
    unread.handle_read();
    room.await.unwrap();
    for _ in 0..2 * waiting {
        unread.handle_read();
    }
    assert_eq!(unread.bytes(), 0, "reading more than came is harmless");
}
