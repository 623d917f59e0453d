//! What a real server cannot be made to show: our own participants must take it, and come back where they can.

use livekit_protocol::{DisconnectReason, leave_request::Action, simulate_scenario::Scenario};

use super::*;
use toolbridge::{
    ConnectError,
    transport::{CloseReason, ConnectionState, Sid},
};

/// A server, and two who are joined.
async fn pair() -> (DevServer, Room, Room) {
    let server = server().await;
    let (one, two) = (server.join("one").await, server.join("two").await);
    (server, one, two)
}

/// Waits until somebody is in the room under another sid.
async fn rejoined(room: &mut Room, before: &Sid) {
    let mut down = false;
    until(room, |event| match event {
        TransportEvent::ConnectionState(ConnectionState::Reconnecting) => {
            down = true;
            None
        }
        TransportEvent::ConnectionState(ConnectionState::Connected) => Some(()),
        TransportEvent::Closed(reason) => panic!("it was closed: {reason}"),
        _ => None,
    })
    .await;
    assert!(down && room.local().sid() != before);
}

/// Waits until somebody's signalling is back.
async fn signalling(server: &DevServer, identity: &'static str) {
    let back = async { while !server.look(move |rooms| rooms.is_signalling(identity)).await {} };
    timeout(BOUND, back).await.expect("it did not come back");
}

/// Packets pass both ways, and nothing else was told.
async fn untouched(one: &mut Room, two: &mut Room, before: &Sid) {
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
async fn a_goodbye_that_is_somebodys_will_is_the_end() {
    let server = server().await;
    for (reason, told) in [
        (DisconnectReason::DuplicateIdentity, CloseReason::DuplicateIdentity),
        (DisconnectReason::ParticipantRemoved, CloseReason::Removed),
        (DisconnectReason::RoomDeleted, CloseReason::RoomDeleted),
        (DisconnectReason::RoomClosed, CloseReason::RoomClosed),
        (DisconnectReason::ServerShutdown, CloseReason::ServerShutdown),
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
async fn a_goodbye_that_asks_for_a_new_join_gets_one() {
    let server = server().await;
    let mut two = server.join("two").await;
    let mut one = server.join("one").await;
    for (action, reason) in [
        (Action::Reconnect, DisconnectReason::UnknownReason),
        (Action::Reconnect, DisconnectReason::ServerShutdown),
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
        assert_eq!(packet(&mut two).await.from, *one.local().peer());
    }
}

#[tokio::test]
async fn a_signalling_that_is_lost_is_taken_up_and_nobody_is_told() {
    let (server, mut one, mut two) = pair().await;
    let before = one.local().sid().clone();
    for fault in [
        |rooms: &mut Rooms| rooms.sever("one"),
        |rooms: &mut Rooms| {
            rooms.inject_leave("one", Action::Resume, DisconnectReason::ConnectionTimeout);
        },
        // The first resume is cut off after the answer, or without one.
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
        signalling(&server, "one").await;
        untouched(&mut one, &mut two, &before).await;
    }
}

#[tokio::test]
async fn a_move_to_another_room_is_told_as_a_new_join() {
    let (server, mut one, two) = pair().await;
    let other = server.access().client("cellar", "three").sign().unwrap();
    let mut three = RoomOptions::new().join(&server.url(), &other).await.unwrap();
    let (before, token) = (one.local().sid().clone(), one.token());
    server.look(|rooms| rooms.move_to("one", "cellar", "PA_moved")).await;
    rejoined(&mut one, &before).await;
    assert_eq!((one.room().as_str(), one.local().sid().as_str()), ("cellar", "PA_moved"));
    assert_eq!(one.present().iter().map(|who| who.peer()).collect::<Vec<_>>(), [three.local().peer()]);
    one.send(to("three", "from above")).await.unwrap();
    assert_eq!(packet(&mut three).await.from, *one.local().peer());
    assert!(matches!(two.present()[..], [ref it] if it.identity() == "one"), "it was not told of that");

    // A lost join is made anew in the room where it is now.
    let renewed = async {
        while one.token() == token {
            tokio::task::yield_now().await
        }
    };
    timeout(BOUND, renewed).await.expect("no token for it");
    // Nor is a lost signalling taken up: it would ask for who we were in the old room.
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
async fn a_refused_resume_is_followed_by_a_new_join() {
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
async fn a_server_that_forgot_what_it_has_is_sent_it_again_and_nobody_hears_it_twice() {
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
    signalling(&server, "one").await;
    for n in 10..20_u8 {
        one.send(to("two", vec![n])).await.unwrap();
    }
    for n in 0..20_u8 {
        assert_eq!(packet(&mut two).await.payload[..], [n]);
    }
}

#[tokio::test]
async fn what_a_server_lost_that_the_connection_had_delivered_is_said_again_after_a_resume() {
    let (server, mut one, mut two) = pair().await;
    let before = one.local().sid().clone();
    server.look(|rooms| rooms.faults.drop_reliable = 3).await;
    for n in 0..3_u8 {
        one.send(to("two", vec![n])).await.unwrap();
    }
    let lost =
        async { while server.look(|rooms| rooms.faults.drop_reliable).await > 0 || one.backlog() > 0 {} };
    timeout(BOUND, lost).await.expect("they were not delivered");
    server.look(|rooms| rooms.sever("one")).await;
    for n in 0..3_u8 {
        assert_eq!(packet(&mut two).await.payload[..], [n]);
    }
    untouched(&mut one, &mut two, &before).await;
}

#[tokio::test]
async fn a_number_that_was_heard_is_not_heard_again() {
    let (server, one, mut two) = pair().await;
    server.look(|rooms| rooms.faults.reset_sequences = true).await;
    one.send(to("two", "first")).await.unwrap();
    one.send(to("two", "second")).await.unwrap();
    assert_eq!(packet(&mut two).await.payload, "first");
    server.look(|rooms| rooms.faults.reset_sequences = false).await;
    one.send(to("two", "third")).await.unwrap();
    assert_eq!(packet(&mut two).await.payload, "third", "the second had the first one's number");
}

#[tokio::test]
async fn an_answer_that_never_comes_is_a_join_that_takes_too_long() {
    let server = server().await;
    server.look(|rooms| rooms.faults.max_answers = Some(0)).await;
    let token = server.access().client("kitchen", "one").sign().unwrap();
    let options = RoomOptions::new().join_timeout(Duration::from_millis(500));
    let error = options.join(&server.url(), &token).await.err().unwrap();
    assert!(matches!(error, ConnectError::NoNetworkPath { .. }), "{error:?}");
    let gone = async { while server.look(|rooms| rooms.list_participants("kitchen").len()).await > 0 {} };
    timeout(BOUND, gone).await.expect("it is still there");
}

#[tokio::test]
async fn a_second_answer_that_never_comes_is_a_silence_and_a_new_join() {
    let (server, mut one, mut two) = pair().await;
    let before = one.local().sid().clone();
    server
        .look(|rooms| {
            rooms.faults.max_answers = Some(1);
            // Whoever is asked to resume begins ICE anew, with an offer.
            rooms.inject_leave("one", Action::Resume, DisconnectReason::ConnectionTimeout);
        })
        .await;
    rejoined(&mut one, &before).await;
    let now = one.local().sid().clone();
    untouched(&mut one, &mut two, &now).await;
}

#[tokio::test]
async fn a_server_that_hears_no_requests_is_asked_again_and_packets_go_on() {
    let server = server().await;
    server.look(|rooms| rooms.faults.ping = Some([1, 2])).await;
    let (mut one, mut two) = (server.join("one").await, server.join("two").await);
    let before = one.local().sid().clone();
    server.look(|rooms| rooms.faults.ignore_requests = true).await;
    let lost = async { while server.look(|rooms| rooms.is_signalling("one")).await {} };
    timeout(BOUND, lost).await.expect("it did not notice");
    untouched(&mut one, &mut two, &before).await;
    server.look(|rooms| rooms.faults.ignore_requests = false).await;
    signalling(&server, "one").await;
    untouched(&mut one, &mut two, &before).await;
}

#[tokio::test]
async fn a_server_that_is_frozen_is_lost_and_joined_anew_once_it_moves() {
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
async fn a_ping_interval_of_zero_is_refused() {
    let server = server().await;
    for ping in [[0, 15], [5, 0], [-1, -1]] {
        server.look(move |rooms| rooms.faults.ping = Some(ping)).await;
        let token = server.access().client("kitchen", "one").sign().unwrap();
        let error = Room::join(&server.url(), &token).await.err().unwrap();
        assert!(matches!(error, ConnectError::Transport(_)), "{ping:?}: {error:?}");
    }
}
