//! Tests that toolbridge participants survive faults that cannot be provoked with livekit-server.

use livekit_protocol::{DisconnectReason, leave_request::Action, simulate_scenario::Scenario};

use super::*;
use crate::{CloseReason, ConnectionState, livekit::ConnectError, transport::Sid};

/// Starts a server with two participants.
async fn pair() -> (DevServer, LiveKitTransport, LiveKitTransport) {
    let server = server().await;
    let (one, two) = (server.join("one").await, server.join("two").await);
    (server, one, two)
}

/// Waits until a participant has rejoined under another sid.
async fn rejoined(room: &mut LiveKitTransport, before: &Sid) {
    let mut down = false;
    until(room, |event| match event {
        TransportEvent::ConnectionState(ConnectionState::Reconnecting) => {
            down = true;
            None
        }
        TransportEvent::ConnectionState(ConnectionState::Connected) => Some(()),
        TransportEvent::Closed(reason) => panic!("the connection was closed: {reason}"),
        _ => None,
    })
    .await;
    assert!(down && room.local().sid() != before);
}

/// Waits until a participant's signaling connection is restored.
async fn signaling_restored(server: &DevServer, identity: &'static str) {
    let back = async { while !server.look(move |rooms| rooms.is_signaling(identity)).await {} };
    timeout(BOUND, back).await.expect("signaling was not restored");
}

/// Asserts that packets pass in both directions, without a connection event and under the same sid.
async fn untouched(one: &mut LiveKitTransport, two: &mut LiveKitTransport, before: &Sid) {
    one.send(to("two", "ping")).await.unwrap();
    assert_eq!(packet(two).await.payload, "ping");
    two.send(to("one", "pong")).await.unwrap();
    let heard = until(one, |event| match event {
        TransportEvent::Packet(packet) => Some(packet),
        TransportEvent::ConnectionState(_) | TransportEvent::Closed(_) => panic!("{event:?}"),
        _ => None,
    });
    assert_eq!(heard.await.payload, "pong");
    assert_eq!(one.local().sid(), before);
}

#[tokio::test]
async fn deliberate_leave_request_closes_the_connection() {
    let server = server().await;
    for (reason, told) in [
        (DisconnectReason::DuplicateIdentity, CloseReason::DuplicateIdentity),
        (DisconnectReason::ParticipantRemoved, CloseReason::Removed),
        (DisconnectReason::RoomDeleted, CloseReason::RoomDeleted),
        (DisconnectReason::RoomClosed, CloseReason::RoomClosed),
        (DisconnectReason::UserRejected, CloseReason::Server("USER_REJECTED".into())),
    ] {
        let mut one = server.join("one").await;
        server.look(move |rooms| rooms.inject_leave("one", Action::Disconnect, reason)).await;
        let closed = until(&mut one, |event| match event {
            TransportEvent::Closed(reason) => Some(reason),
            TransportEvent::ConnectionState(_) => panic!("{event:?}"),
            _ => None,
        });
        assert_eq!(closed.await, told);
    }
}

#[tokio::test]
async fn leave_request_for_a_reconnect_is_followed_by_a_rejoin() {
    let server = server().await;
    let mut two = server.join("two").await;
    let mut one = server.join("one").await;
    for (action, reason) in [
        (Action::Reconnect, DisconnectReason::UnknownReason),
        (Action::Reconnect, DisconnectReason::ServerShutdown),
        (Action::Disconnect, DisconnectReason::ServerShutdown),
        (Action::Reconnect, DisconnectReason::StateMismatch),
        (Action::Disconnect, DisconnectReason::StateMismatch),
        (Action::Disconnect, DisconnectReason::Migration),
        (Action::Disconnect, DisconnectReason::ConnectionTimeout),
        (Action::Disconnect, DisconnectReason::JoinFailure),
        (Action::Disconnect, DisconnectReason::UnknownReason),
    ] {
        let before = one.local().sid().clone();
        server.look(move |rooms| rooms.inject_leave("one", action, reason)).await;
        rejoined(&mut one, &before).await;
        two.send(to("one", "again")).await.unwrap();
        assert_eq!(packet(&mut one).await.payload, "again", "{action:?} {reason:?}");
        one.send(to("two", "here")).await.unwrap();
        assert_eq!(packet(&mut two).await.from.as_ref(), Some(one.local().peer()));
    }
}

#[tokio::test]
async fn lost_signaling_is_resumed_silently() {
    let (server, mut one, mut two) = pair().await;
    let before = one.local().sid().clone();
    for fault in [
        |rooms: &mut Rooms| rooms.sever("one"),
        |rooms: &mut Rooms| {
            rooms.inject_leave("one", Action::Resume, DisconnectReason::ConnectionTimeout);
        },
        // The first resume is interrupted after its response, or before it.
        |rooms: &mut Rooms| {
            rooms.simulate_for("one", Scenario::DisconnectSignalOnResume(true));
            rooms.sever("one");
        },
        |rooms: &mut Rooms| {
            rooms.simulate_for("one", Scenario::DisconnectSignalOnResumeNoMessages(true));
            rooms.sever("one");
        },
    ] {
        server.look(fault).await;
        untouched(&mut one, &mut two, &before).await;
        signaling_restored(&server, "one").await;
        untouched(&mut one, &mut two, &before).await;
    }
}

#[tokio::test]
async fn move_to_another_room_is_reported_as_a_rejoin() {
    let (server, mut one, two) = pair().await;
    let other = server.key().client("cellar", "three").sign().unwrap();
    let mut three = ConnectOptions::new().join(&server.url(), &other).await.unwrap();
    let (before, token) = (one.local().sid().clone(), one.token());
    server.look(|rooms| rooms.move_to("one", "cellar", "PA_moved")).await;
    rejoined(&mut one, &before).await;
    assert_eq!((one.room().as_str(), one.local().sid().as_str()), ("cellar", "PA_moved"));
    assert_eq!(one.present().iter().map(|who| who.peer()).collect::<Vec<_>>(), [three.local().peer()]);
    one.send(to("three", "from above")).await.unwrap();
    assert_eq!(packet(&mut three).await.from.as_ref(), Some(one.local().peer()));
    assert!(
        matches!(two.present()[..], [ref it] if it.identity() == "one"),
        "the departure is not announced"
    );

    // A rejoin uses the new room.
    let renewed = async {
        while one.token() == token {
            tokio::task::yield_now().await
        }
    };
    timeout(BOUND, renewed).await.expect("no refreshed token");
    // After a move, lost signaling causes a rejoin: a resume would use the sid of the old room.
    let before = one.local().sid().clone();
    server.look(|rooms| rooms.sever("one")).await;
    rejoined(&mut one, &before).await;
    assert_eq!(one.room(), "cellar");
    let before = one.local().sid().clone();
    server.look(|rooms| rooms.inject_leave("one", Action::Reconnect, DisconnectReason::StateMismatch)).await;
    rejoined(&mut one, &before).await;
    assert_eq!(one.room(), "cellar");
    three.send(to("one", "still there?")).await.unwrap();
    assert_eq!(packet(&mut one).await.payload, "still there?");
}

#[tokio::test]
async fn refused_resume_is_followed_by_a_rejoin() {
    let (server, mut one, mut two) = pair().await;
    let before = one.local().sid().clone();
    server
        .look(|rooms| {
            rooms.faults.refuse_resume = true;
            rooms.sever("one");
        })
        .await;
    rejoined(&mut one, &before).await;
    let now = one.local().sid().clone();
    untouched(&mut one, &mut two, &now).await;
}

#[tokio::test]
async fn packets_forgotten_by_the_server_are_retransmitted_without_duplicates() {
    let (server, one, mut two) = pair().await;
    for n in 0..10_u8 {
        one.send(to("two", vec![n])).await.unwrap();
    }
    server
        .look(|rooms| {
            rooms.faults.forget_sequences = true;
            rooms.sever("one");
        })
        .await;
    signaling_restored(&server, "one").await;
    for n in 10..20_u8 {
        one.send(to("two", vec![n])).await.unwrap();
    }
    for n in 0..20_u8 {
        assert_eq!(packet(&mut two).await.payload[..], [n]);
    }
}

#[tokio::test]
async fn packets_lost_in_the_server_are_retransmitted_after_a_resume() {
    let (server, mut one, mut two) = pair().await;
    let before = one.local().sid().clone();
    server.look(|rooms| rooms.faults.drop_reliable = 3).await;
    for n in 0..3_u8 {
        one.send(to("two", vec![n])).await.unwrap();
    }
    let lost =
        async { while server.look(|rooms| rooms.faults.drop_reliable).await > 0 || one.backlog() > 0 {} };
    timeout(BOUND, lost).await.expect("the packets were not acknowledged");
    server.look(|rooms| rooms.sever("one")).await;
    for n in 0..3_u8 {
        assert_eq!(packet(&mut two).await.payload[..], [n]);
    }
    untouched(&mut one, &mut two, &before).await;
}

#[tokio::test]
async fn repeated_sequence_is_dropped() {
    let (server, one, mut two) = pair().await;
    server.look(|rooms| rooms.faults.reset_sequences = true).await;
    one.send(to("two", "first")).await.unwrap();
    one.send(to("two", "second")).await.unwrap();
    assert_eq!(packet(&mut two).await.payload, "first");
    server.look(|rooms| rooms.faults.reset_sequences = false).await;
    one.send(to("two", "third")).await.unwrap();
    assert_eq!(
        packet(&mut two).await.payload,
        "third",
        "the second packet repeated the sequence of the first"
    );
}

#[tokio::test]
async fn missing_sdp_answer_fails_the_join_by_timeout() {
    let server = server().await;
    server.look(|rooms| rooms.faults.max_answers = Some(0)).await;
    let token = server.key().client("kitchen", "one").sign().unwrap();
    let options = ConnectOptions::new().join_timeout(Duration::from_millis(500));
    let error = options.join(&server.url(), &token).await.err().unwrap();
    assert!(matches!(error, ConnectError::NoNetworkPath { .. }), "{error:?}");
    let gone = async { while server.look(|rooms| rooms.list_participants("kitchen").len()).await > 0 {} };
    timeout(BOUND, gone).await.expect("the participant is still listed");
}

#[tokio::test]
async fn missing_answer_to_an_ice_restart_is_followed_by_a_rejoin() {
    let (server, mut one, mut two) = pair().await;
    let before = one.local().sid().clone();
    server
        .look(|rooms| {
            rooms.faults.max_answers = Some(1);
            // A request to resume makes the client restart ICE with an offer.
            rooms.inject_leave("one", Action::Resume, DisconnectReason::ConnectionTimeout);
        })
        .await;
    rejoined(&mut one, &before).await;
    let now = one.local().sid().clone();
    untouched(&mut one, &mut two, &now).await;
}

#[tokio::test]
async fn unanswered_pings_restore_signaling_while_packets_flow() {
    let server = server().await;
    server.look(|rooms| rooms.faults.ping = Some([1, 2])).await;
    let (mut one, mut two) = (server.join("one").await, server.join("two").await);
    let before = one.local().sid().clone();
    server.look(|rooms| rooms.faults.ignore_requests = true).await;
    let lost = async { while server.look(|rooms| rooms.is_signaling("one")).await {} };
    timeout(BOUND, lost).await.expect("the client did not close its signaling connection");
    untouched(&mut one, &mut two, &before).await;
    server.look(|rooms| rooms.faults.ignore_requests = false).await;
    signaling_restored(&server, "one").await;
    untouched(&mut one, &mut two, &before).await;
}

#[tokio::test]
async fn frozen_server_is_rejoined_when_it_continues() {
    let (server, mut one, mut two) = pair().await;
    let before = one.local().sid().clone();
    server.look(|rooms| rooms.faults.frozen = true).await;
    for room in [&mut one, &mut two] {
        until(room, |event| {
            matches!(event, TransportEvent::ConnectionState(ConnectionState::Reconnecting)).then_some(())
        })
        .await;
    }
    server.look(|rooms| rooms.faults.frozen = false).await;
    for room in [&mut one, &mut two] {
        until(room, |event| {
            matches!(event, TransportEvent::ConnectionState(ConnectionState::Connected)).then_some(())
        })
        .await;
    }
    assert_ne!(*one.local().sid(), before);
    let now = one.local().sid().clone();
    untouched(&mut one, &mut two, &now).await;
}

#[tokio::test]
async fn nonpositive_ping_interval_fails_the_join() {
    let server = server().await;
    for ping in [[0, 15], [5, 0], [-1, -1]] {
        server.look(move |rooms| rooms.faults.ping = Some(ping)).await;
        let token = server.key().client("kitchen", "one").sign().unwrap();
        let error = LiveKitTransport::join(&server.url(), &token).await.err().unwrap();
        assert!(matches!(error, ConnectError::Transport(_)), "{ping:?}: {error:?}");
    }
}
