use livekit_protocol::{DisconnectReason, JoinResponse, ParticipantInfo, ReconnectResponse};

use super::*;

fn frame(message: Message) -> Vec<u8> {
    SignalResponse { message: Some(message) }.encode_to_vec()
}

fn join() -> JoinResponse {
    let participant = ParticipantInfo { sid: "PA_1".into(), identity: "phone".into(), ..Default::default() };
    JoinResponse { participant: Some(participant), ping_interval: 5, ping_timeout: 15, ..Default::default() }
}

fn token(text: &str) -> Vec<u8> {
    frame(Message::RefreshToken(format!("{text}.e30.c2ln")))
}

fn fresh() -> FrameLimits {
    FrameLimits::new(false, Arc::default())
}

fn opened() -> FrameLimits {
    let mut limits = fresh();
    assert!(matches!(limits.take(&frame(Message::Join(join()))), Taken::Frame(_)));
    limits
}

#[test]
fn no_message_is_passed_on_before_the_join_response() {
    let mut limits = fresh();
    for early in
        [token("t"), frame(Message::Answer(Default::default())), frame(Message::Update(Default::default()))]
    {
        assert_eq!(limits.take(&early), Taken::Nothing);
    }
    assert!(matches!(limits.take(&frame(Message::Join(join()))), Taken::Frame(_)));
    assert_eq!(limits.take(&token("t")), Taken::Frame(token("t")));
    assert_eq!(limits.take(&frame(Message::Join(join()))), Taken::Nothing, "one is enough");
}

#[test]
fn malformed_fresh_token_does_not_replace_the_last_one() {
    let mut limits = opened();
    for malformed in ["", "t", "a.b", "a..c", "<html>", "a.b.c\n", "Bearer a.b.c"] {
        assert_eq!(
            limits.take(&frame(Message::RefreshToken(malformed.into()))),
            Taken::Nothing,
            "{malformed:?}"
        );
    }
    assert_eq!(limits.take(&token("t")), Taken::Frame(token("t")));
}

#[test]
fn incomplete_join_response_does_not_reach_the_library() {
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
            Taken::Unfit("the server's join response is incomplete")
        );
    }
    let huge = JoinResponse { ping_interval: i32::MAX, ping_timeout: i32::MAX, ..join() };
    assert!(matches!(fresh().take(&frame(Message::Join(huge))), Taken::Frame(_)));
}

#[test]
fn join_response_must_match_the_request() {
    let resumed = frame(Message::Reconnect(ReconnectResponse::default()));
    assert!(matches!(fresh().take(&resumed), Taken::Unfit(_)));
    let mut limits = FrameLimits::new(true, Arc::default());
    assert!(matches!(limits.take(&resumed), Taken::Frame(_)));
    assert_eq!(limits.take(&resumed), Taken::Nothing);
    let mut limits = FrameLimits::new(true, Arc::default());
    assert!(matches!(limits.take(&frame(Message::Join(join()))), Taken::Unfit(_)));
}

#[test]
fn early_leave_is_a_refusal_and_a_later_one_a_message() {
    let leave = LeaveRequest { reason: DisconnectReason::RoomDeleted.into(), ..Default::default() };
    let bytes = frame(Message::Leave(leave.clone()));
    let mut limits = fresh();
    assert_eq!(limits.take(&bytes), Taken::Refusal(bytes.clone(), leave));
    assert!(limits.is_over());
    assert_eq!(opened().take(&bytes), Taken::Frame(bytes));
}

#[test]
fn undecodable_message_does_not_count() {
    let mut limits = opened();
    let broken = [&[0x82, 0x01, 0x02][..], &[0xff, 0xfe]].concat();
    assert_eq!(limits.take(&broken), Taken::Nothing, "a token that is no UTF-8");
    assert_eq!(limits.take(b"\xff\xff\xff"), Taken::Nothing);
    assert_eq!(limits.unread.bytes(), 0);
}

#[tokio::test(start_paused = true)]
async fn unread_messages_are_bounded_and_continue_when_read() {
    let mut limits = opened();
    let unread = limits.unread.clone();
    let frame = token(&"t".repeat(60_000));
    let mut waiting = 0;
    while unread.bytes() < MAX_UNREAD {
        unread.room().await;
        assert!(matches!(limits.take(&frame), Taken::Frame(_)));
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
