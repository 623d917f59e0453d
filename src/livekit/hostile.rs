//! Tests the signaling against a malicious server: each message causes a typed error or is skipped; nothing
//! hangs, grows without bound or panics.

use std::{future::Future, sync::Arc, time::Duration};

use futures_util::{SinkExt, StreamExt};
use livekit_protocol::{
    DisconnectReason, JoinResponse, LeaveRequest, ParticipantInfo, ParticipantUpdate, Pong,
    ReconnectResponse, Room as RoomInfo, SessionDescription, SignalResponse, TrickleRequest, leave_request,
    signal_response::Message,
};
use prost::Message as _;
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_tungstenite::{
    WebSocketStream, accept_async,
    tungstenite::{
        Message as Frame,
        protocol::{
            CloseFrame,
            frame::{
                Frame as RawFrame,
                coding::{Data, OpCode},
            },
        },
    },
};

use crate::{
    livekit::{
        ConnectOptions,
        error::ConnectError,
        signaling::{NotResumed, Sent, ServerEvent, Signal, address::ServerUrl},
    },
    transport::CloseReason,
};

mod sdp;

/// The time after which a test fails because it hangs.
const BOUND: Duration = Duration::from_secs(20);

type Socket = WebSocketStream<TcpStream>;

/// Starts a server that runs this function for each connection, one after the other, and returns its URL.
async fn server<F: Future<Output = ()> + Send>(
    serve: impl Fn(usize, Socket) -> F + Send + Sync + 'static,
) -> ServerUrl {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = ServerUrl::parse(&format!("ws://{}", listener.local_addr().unwrap())).unwrap();
    tokio::spawn(async move {
        for number in 0.. {
            let Ok((stream, _)) = listener.accept().await else { return };
            if let Ok(socket) = accept_async(stream).await {
                serve(number, socket).await;
            }
        }
    });
    url
}

/// Starts a server that sends these frames and then reads until the other end closes.
async fn saying(frames: Vec<Frame>) -> ServerUrl {
    server(move |_, socket| say(socket, frames.clone())).await
}

async fn say(mut socket: Socket, frames: Vec<Frame>) {
    for frame in frames {
        // The other end may have closed already.
        if socket.send(frame).await.is_err() {
            return;
        }
    }
    while socket.next().await.is_some_and(|frame| frame.is_ok()) {}
}

fn frame(message: Message) -> Frame {
    Frame::Binary(SignalResponse { message: Some(message) }.encode_to_vec().into())
}

/// Returns a token that contains this text. Malformed ones are skipped.
fn jwt(text: &str) -> String {
    format!("{}.e30.c2ln", text.replace(' ', "-"))
}

fn token(text: impl AsRef<str>) -> Frame {
    frame(Message::RefreshToken(jwt(text.as_ref())))
}

fn participant(identity: &str, sid: &str) -> ParticipantInfo {
    ParticipantInfo { sid: sid.into(), identity: identity.into(), ..Default::default() }
}

fn response() -> JoinResponse {
    JoinResponse {
        room: Some(RoomInfo { name: "kitchen".into(), ..Default::default() }),
        participant: Some(participant("phone", "PA_1")),
        ping_interval: 5,
        ping_timeout: 15,
        ..Default::default()
    }
}

fn joined() -> Frame {
    frame(Message::Join(response()))
}

fn leave(reason: DisconnectReason) -> Frame {
    let action = leave_request::Action::Disconnect.into();
    frame(Message::Leave(LeaveRequest { reason: reason.into(), action, ..Default::default() }))
}

async fn join(url: &ServerUrl) -> Result<(Signal, JoinResponse), ConnectError> {
    let joining = Signal::join(Arc::new(url.into()), "token", String::new(), BOUND, Sent::default());
    timeout(BOUND, joining).await.expect("the join hangs")
}

async fn next(signal: &mut Signal) -> ServerEvent {
    timeout(BOUND, signal.next()).await.expect("the signaling hangs")
}

/// Asserts that the next event is this token.
async fn tells(signal: &mut Signal, expected: &str) {
    match next(signal).await {
        ServerEvent::Token(token) => assert_eq!(token, jwt(expected)),
        other => panic!("{} in the place of {expected}", name(&other)),
    }
}

fn name(event: &ServerEvent) -> String {
    match event {
        ServerEvent::Token(token) => format!("token {:.20}", token),
        ServerEvent::Lost(why) => format!("lost: {why}"),
        ServerEvent::NotResumed(why) => format!("not resumed: {why:?}"),
        _ => "another event".into(),
    }
}

#[tokio::test]
async fn invalid_join_response_is_a_typed_error_at_once() {
    let incomplete = |change: fn(&mut JoinResponse)| {
        let mut response = response();
        change(&mut response);
        frame(Message::Join(response))
    };
    for broken in [
        incomplete(|it| it.ping_interval = 0),
        incomplete(|it| it.ping_interval = -1),
        incomplete(|it| it.ping_timeout = 0),
        incomplete(|it| it.participant = None),
        incomplete(|it| it.participant = Some(participant("phone", ""))),
        incomplete(|it| it.participant = Some(participant("", "PA_1"))),
        frame(Message::Reconnect(ReconnectResponse::default())),
    ] {
        let refused = join(&saying(vec![broken]).await).await.err().unwrap();
        assert!(matches!(refused, ConnectError::Transport(_)), "{refused:?}");
    }
}

#[tokio::test]
async fn leave_in_place_of_a_join_response_gives_the_reason() {
    for (reason, text) in [
        (DisconnectReason::RoomDeleted, "deleted"),
        (DisconnectReason::ParticipantRemoved, "removed"),
        (DisconnectReason::DuplicateIdentity, "same identity"),
        (DisconnectReason::JoinFailure, "JOIN_FAILURE"),
        (DisconnectReason::StateMismatch, "STATE_MISMATCH"),
    ] {
        let refused = join(&saying(vec![leave(reason), joined()]).await).await.err().unwrap();
        assert!(refused.to_string().contains(text), "{refused}");
    }
}

/// The second join is refused for another reason, which is final.
#[tokio::test]
async fn join_that_the_server_asks_to_repeat_is_repeated() {
    let url = server(|number, socket| {
        let reason = match number {
            0 => DisconnectReason::ConnectionTimeout,
            _ => DisconnectReason::ParticipantRemoved,
        };
        say(socket, vec![joined(), leave(reason)])
    })
    .await;
    let joining = ConnectOptions::new().join_timeout(BOUND).join(url.as_str(), "a.b.c").await;
    let refused = joining.err().unwrap();
    assert!(refused.to_string().contains("removed"), "{refused}");
}

#[tokio::test]
async fn server_that_hangs_up_before_its_response_is_unreachable() {
    let garbage = vec![Frame::Binary(vec![0xff; 99].into()), Frame::Text("{}".into()), Frame::Close(None)];
    for frames in [garbage, vec![Frame::Close(None)]] {
        let refused = join(&saying(frames).await).await.err().unwrap();
        assert!(matches!(refused, ConnectError::Unreachable { .. }), "{refused:?}");
    }
}

#[tokio::test]
async fn early_and_repeated_responses_are_ignored() {
    let url = saying(vec![
        frame(Message::Answer(SessionDescription::default())),
        frame(Message::Update(ParticipantUpdate::default())),
        token("too early"),
        Frame::Binary(vec![0x0a, 0xff].into()),
        joined(),
        joined(),
        frame(Message::Reconnect(ReconnectResponse::default())),
        token("in time"),
    ]);
    let (mut signal, response) = join(&url.await).await.unwrap();
    assert_eq!(response.room.unwrap().name, "kitchen");
    tells(&mut signal, "in time").await;
}

#[tokio::test]
async fn endless_ping_intervals_are_bounded() {
    let patient = JoinResponse { ping_interval: i32::MAX, ping_timeout: i32::MAX, ..response() };
    let (mut signal, _) = join(&saying(vec![frame(Message::Join(patient)), token("t")]).await).await.unwrap();
    tells(&mut signal, "t").await;
}

#[tokio::test]
async fn pong_with_an_early_timestamp_is_tolerated() {
    let pong = |at| frame(Message::PongResp(Pong { last_ping_timestamp: at, timestamp: at }));
    let url = saying(vec![joined(), pong(i64::MIN), pong(-1), pong(i64::MAX), token("t")]);
    let (mut signal, _) = join(&url.await).await.unwrap();
    tells(&mut signal, "t").await;
}

#[tokio::test]
async fn room_of_100_000_is_joined_with_the_limit_of_participants() {
    let crowd = (0..100_000).map(|n| participant(&format!("p{n}"), &format!("PA_{n}"))).collect();
    let crowd = JoinResponse { other_participants: crowd, ..response() };
    let (_, response) = join(&saying(vec![frame(Message::Join(crowd))]).await).await.unwrap();
    assert_eq!(response.other_participants.len(), 8_192);
}

#[tokio::test]
async fn fragmented_and_other_frames_are_handled() {
    let Frame::Binary(bytes) = token("in pieces") else { panic!() };
    let (first, rest) = bytes.split_at(5);
    let piece =
        |bytes: &[u8], code, last| Frame::Frame(RawFrame::message(bytes.to_vec(), OpCode::Data(code), last));
    let url = saying(vec![
        joined(),
        Frame::Text("text".into()),
        Frame::Ping("ping".into()),
        Frame::Pong("pong".into()),
        piece(first, Data::Binary, false),
        Frame::Ping("in between".into()),
        piece(rest, Data::Continue, true),
        Frame::Binary(Vec::new().into()),
        token("whole"),
    ]);
    let (mut signal, _) = join(&url.await).await.unwrap();
    tells(&mut signal, "in pieces").await;
    tells(&mut signal, "whole").await;
}

#[tokio::test]
async fn every_close_is_a_lost_connection() {
    for code in [None, Some(1000), Some(1001), Some(1002), Some(1009), Some(1011), Some(4000)] {
        let close = code.map(|code: u16| CloseFrame { code: code.into(), reason: "x".into() });
        let (mut signal, _) = join(&saying(vec![joined(), Frame::Close(close)]).await).await.unwrap();
        let event = next(&mut signal).await;
        assert!(matches!(event, ServerEvent::Lost(_)), "{code:?}: {}", name(&event));
    }
}

#[tokio::test]
async fn invalid_websocket_bytes_are_a_lost_connection() {
    // A frame of 2^62 bytes, one of 17 MiB, a masked one, one of an unknown kind, a continuation without a start.
    for bytes in [
        &[0x82, 127, 0x40, 0, 0, 0, 0, 0, 0, 0][..],
        &[0x82, 127, 0, 0, 0, 0, 0x01, 0x10, 0, 0],
        &[0x82, 0x81, 1, 2, 3, 4, 5],
        &[0x8f, 0x00],
        &[0x80, 0x01, 0x00],
    ] {
        let url = server(move |_, mut socket: Socket| async move {
            socket.send(joined()).await.unwrap();
            let _ = socket.get_mut().write_all(bytes).await;
            while socket.next().await.is_some_and(|frame| frame.is_ok()) {}
        });
        let (mut signal, _) = join(&url.await).await.unwrap();
        let event = next(&mut signal).await;
        assert!(matches!(event, ServerEvent::Lost(_)), "{bytes:x?}: {}", name(&event));
    }
}

#[tokio::test]
async fn unread_stream_stays_in_the_network() {
    /// 64 MiB, more than all the buffers of a connection hold.
    const FRAMES: usize = 1200;
    /// The most that may have been accepted: the limit, and one further frame.
    const TAKEN: usize = (1 << 20) + 64 * 1024;
    let text = |number: usize| format!("{number:06}{}", "x".repeat(55_000));
    let url = server(move |_, mut socket: Socket| async move {
        socket.send(joined()).await.unwrap();
        for number in 0..FRAMES {
            if socket.send(token(text(number))).await.is_err() {
                return;
            }
        }
        while socket.next().await.is_some_and(|frame| frame.is_ok()) {}
    });
    let (mut signal, _) = join(&url.await).await.unwrap();
    // It fills up to the limit by itself, and no further.
    let unread = signal.unread();
    let filled = async {
        while unread.bytes() < 1 << 20 {
            tokio::task::yield_now().await;
        }
    };
    timeout(BOUND, filled).await.expect("nothing comes");
    for number in 0..FRAMES {
        assert!(unread.bytes() <= TAKEN, "{} bytes wait", unread.bytes());
        tells(&mut signal, &text(number)).await;
    }
}

#[tokio::test]
async fn thousands_of_updates_are_reported_one_by_one() {
    const UPDATES: usize = 5_000;
    let url = server(|_, mut socket: Socket| async move {
        socket.send(joined()).await.unwrap();
        for number in 0..UPDATES {
            let participants = match number % 3 {
                0 => Vec::new(),
                1 => vec![participant("", ""), participant("a", "")],
                _ => vec![participant("a", &format!("PA_{number}"))],
            };
            socket.send(frame(Message::Update(ParticipantUpdate { participants }))).await.unwrap();
        }
        say(socket, vec![token("the last")]).await;
    });
    let (mut signal, _) = join(&url.await).await.unwrap();
    for number in 0..UPDATES {
        let event = next(&mut signal).await;
        assert!(matches!(event, ServerEvent::Participants(_)), "{number}: {}", name(&event));
    }
    tells(&mut signal, "the last").await;
}

/// Returns the error of a whole join, including the peer connection.
async fn enter(frames: Vec<Frame>, limit: Duration) -> ConnectError {
    let url = saying(frames).await;
    let joining = ConnectOptions::new().join_timeout(limit).join(url.as_str(), "a.b.c");
    timeout(BOUND, joining).await.expect("the join hangs").err().unwrap()
}

#[tokio::test]
async fn invalid_sdp_is_a_typed_error() {
    let answer = |sdp: &str| {
        frame(Message::Answer(SessionDescription { sdp: sdp.into(), id: 1, ..Default::default() }))
    };
    let lines = "v=0\r\no=- 1 2 IN IP4 0.0.0.0\r\ns=-\r\nt=0 0\r\n";
    for sdp in ["", "nonsense", "v=0", lines, &format!("{lines}m=audio 9 UDP/TLS/RTP/SAVPF 0\r\n")] {
        let error = enter(vec![joined(), answer(sdp)], BOUND).await;
        assert!(matches!(error, ConnectError::Transport(_)), "{sdp:?}: {error:?}");
    }
}

#[tokio::test]
async fn ten_thousand_candidates_are_limited() {
    let candidate = |number: usize| {
        let line = match number % 4 {
            0 => "nonsense".to_owned(),
            1 => "candidate:1 1 udp 1 name.local 9 typ host".to_owned(),
            2 => format!("candidate:1 1 tcp 1 127.0.0.1 {} typ host tcptype passive", 1 + number % 999),
            _ => format!("candidate:1 1 udp 1 127.0.0.{} {number} typ host", 1 + number % 250),
        };
        let init = serde_json::json!({"candidate": line}).to_string();
        frame(Message::Trickle(TrickleRequest { candidate_init: init, ..Default::default() }))
    };
    let frames = std::iter::once(joined()).chain((0..10_000).map(candidate)).collect();
    let error = enter(frames, Duration::from_secs(2)).await;
    assert!(matches!(error, ConnectError::NoNetworkPath { .. }), "{error:?}");
}

/// Returns the result of an attempt to resume against these responses.
async fn resume(frames: Vec<Frame>) -> (Signal, ServerEvent) {
    let url = server(move |number, socket| {
        let frames = if number == 0 { vec![joined()] } else { frames.clone() };
        say(socket, frames)
    });
    let (mut signal, _) = join(&url.await).await.unwrap();
    signal.resume(BOUND);
    let event = next(&mut signal).await;
    (signal, event)
}

#[tokio::test]
async fn invalid_response_to_a_resume_is_retried() {
    for frames in [
        vec![joined()],
        vec![Frame::Close(None)],
        vec![Frame::Binary(vec![0xff; 99].into()), token("t"), Frame::Close(None)],
    ] {
        let (_signal, event) = resume(frames).await;
        assert!(matches!(event, ServerEvent::NotResumed(NotResumed::Again(_))), "{}", name(&event));
    }
}

#[tokio::test]
async fn leave_in_place_of_a_resume_is_final() {
    let (_signal, event) = resume(vec![leave(DisconnectReason::RoomDeleted), joined()]).await;
    let ServerEvent::NotResumed(NotResumed::Over(end)) = event else { panic!("{}", name(&event)) };
    assert_eq!(end, super::room::liveness::End::Closed(CloseReason::RoomDeleted));
}

#[tokio::test]
async fn messages_around_a_resume_are_ignored_or_reported() {
    let resumed =
        || frame(Message::Reconnect(ReconnectResponse { last_message_seq: 7, ..Default::default() }));
    let frames = vec![
        token("early"),
        Frame::Binary(vec![0xff].into()),
        resumed(),
        resumed(),
        joined(),
        token("later"),
    ];
    let (mut signal, event) = resume(frames).await;
    let ServerEvent::Resumed(answer) = event else { panic!("{}", name(&event)) };
    assert_eq!(answer.last_message_seq, 7);
    tells(&mut signal, "later").await;
}
