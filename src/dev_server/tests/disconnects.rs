//! Tests how participants leave.

use super::*;
use crate::{CloseReason, ConnectionState, livekit::AccessKey};

async fn closed(room: &mut LiveKitTransport) -> CloseReason {
    until(room, |event| match event {
        TransportEvent::Closed(reason) => Some(reason),
        _ => None,
    })
    .await
}

async fn left(room: &mut LiveKitTransport, identity: &str) {
    until(room, |event| match event {
        TransportEvent::Left(who) if who.identity() == identity => Some(()),
        _ => None,
    })
    .await;
}

#[tokio::test]
async fn close_and_drop_are_announced() {
    let server = server().await;
    let (mut one, two) = (server.join("one").await, server.join("two").await);
    let mut three = server.join("three").await;
    one.close().await;
    left(&mut three, "one").await;
    drop(two);
    left(&mut three, "two").await;
    let present = server.look(|rooms| rooms.list_participants("kitchen").len()).await;
    assert_eq!(present, 1);
}

#[tokio::test]
async fn close_reason_matches_the_cause() {
    let server = server().await;
    let mut one = server.join("one").await;
    let mut again = server.join("one").await;
    assert_eq!(closed(&mut one).await, CloseReason::DuplicateIdentity);
    server.look(|rooms| rooms.remove_participant(std::time::Instant::now(), "kitchen", "one").unwrap()).await;
    assert_eq!(closed(&mut again).await, CloseReason::Removed);
    let mut one = server.join("one").await;
    server.look(|rooms| rooms.delete_room(std::time::Instant::now(), "kitchen").unwrap()).await;
    assert_eq!(closed(&mut one).await, CloseReason::RoomDeleted);
    let mut one = server.join("one").await;
    server.close().await;
    // Another one may follow.
    until(&mut one, |event| match event {
        TransportEvent::ConnectionState(ConnectionState::Reconnecting) => Some(()),
        TransportEvent::Closed(reason) => panic!("{reason}"),
        _ => None,
    })
    .await;
}

#[tokio::test]
async fn join_with_an_invalid_token_is_refused() {
    let server = server().await;
    let token = AccessKey::new("devkey", "another secret").client("kitchen", "one").sign().unwrap();
    let refused = LiveKitTransport::join(&server.url(), &token).await.err().unwrap();
    assert!(matches!(refused, crate::livekit::ConnectError::Unauthorized { status: 401, .. }), "{refused:?}");
}

#[tokio::test]
async fn used_port_is_reported() {
    let server = server().await;
    let error = DevServer::builder().port(server.address.port()).start().await.unwrap_err();
    assert!(error.is_taken() && error.to_string().contains(&server.address.port().to_string()), "{error}");
}

#[tokio::test]
async fn idle_connections_do_not_block_a_join() {
    let server = server().await;
    let mut silent = Vec::new();
    // As many as the limit of requests and WebSockets.
    for _ in 0..256 {
        silent.push(tokio::net::TcpStream::connect(server.address).await.unwrap());
    }
    let mut room = server.join("phone").await;
    room.close().await;
    // The newest connection is still open and could send its request.
    let mut byte = [0];
    let newest = silent[255].try_read(&mut byte).unwrap_err();
    assert_eq!(newest.kind(), std::io::ErrorKind::WouldBlock);
    // The oldest connection was closed.
    let read = timeout(BOUND, tokio::io::AsyncReadExt::read(&mut silent[0], &mut byte)).await;
    assert!(matches!(read.expect("the oldest connection is still open"), Ok(0) | Err(_)));
    server.close().await;
}
