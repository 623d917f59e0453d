//! The limits and intervals of the fast lane, on virtual time (`wire.md`, 5.8).

use std::time::Duration;

use toolbridge::{
    Value,
    frame::{Acknowledgement, Frame, Kind, Message, Meta},
    session::Request,
    transport::Lane,
};

use crate::{
    session_lane::{lanes, lose, pair, sent, took},
    session_world::{MS, SECOND, World, request},
};

#[test]
fn copies_that_are_sent_whatever_waits_are_100_ms_apart() {
    let mut world = pair();
    lose(&mut world, |_, lane, _| lane == Lane::Lossy);
    world.with("a", |session, now| session.handle_backlog(now, 1_000_000));
    let keys: Vec<_> = (0..5).map(|_| world.call("a", request("t")).unwrap()).collect();
    world.run(5 * SECOND);
    let requests = sent(&world, "a", Kind::TOOL_USE_REQUEST);
    let copies: Vec<_> =
        requests.iter().filter(|(_, lane)| *lane == Lane::Reliable).map(|(at, _)| *at).collect();
    assert_eq!(copies.len(), 5);
    assert!(copies.windows(2).all(|two| two[1] - two[0] >= 100 * MS), "{copies:?}");
    assert!(keys.iter().all(|key| world.settled("a", *key).unwrap().is_ok()));
}

/// Returns after how long a request that arrived before is acknowledged again, and on which lane.
fn acknowledged_again(world: &mut World, request: &Frame) -> (Duration, Vec<Lane>) {
    let caller = world.ends["a"].who.peer().clone();
    let (before, began) = (lanes(world, "phone", Kind::ACKNOWLEDGEMENT).len(), world.now);
    world.send_lossy(&caller, "phone", request.as_bytes());
    world.run(SECOND);
    let log = &world.ends["phone"].log;
    let is_it = |frame: &Frame| frame.kind() == Kind::ACKNOWLEDGEMENT;
    let (at, ..) = log.iter().filter(|(_, _, frame)| is_it(frame)).nth(before).unwrap();
    (*at - began, lanes(world, "phone", Kind::ACKNOWLEDGEMENT)[before..].to_vec())
}

/// The acknowledgement of a frame that is not remembered waits for a result, as that of a new one does.
#[test]
fn last_256_received_frames_are_remembered() {
    let mut world = pair();
    for _ in 0..260 {
        took(&mut world);
        world.run(50 * MS);
    }
    let log = world.ends["a"].log.iter();
    let requests: Vec<_> =
        log.map(|(_, _, frame)| frame.clone()).filter(|it| it.kind() == Kind::TOOL_USE_REQUEST).collect();
    let [remembered, forgotten] = [256, 257].map(|at| requests[requests.len() - at].clone());
    assert_eq!(acknowledged_again(&mut world, &remembered), (20 * MS, vec![Lane::Lossy]));
    assert_eq!(acknowledged_again(&mut world, &forgotten), (25 * MS, vec![Lane::Lossy]));
    assert_eq!(world.executed.len(), 260, "each ran once");
}

/// The request of the assistant's last call.
fn last_request(world: &World) -> Frame {
    let log = world.ends["a"].log.iter().rev();
    log.map(|(_, _, frame)| frame).find(|frame| frame.kind() == Kind::TOOL_USE_REQUEST).unwrap().clone()
}

/// Its timer has sent it again a moment before.
#[test]
fn result_is_repeated_for_a_repeated_request_once_in_half_a_round_trip() {
    let mut world = pair();
    let mut requests = 0;
    lose(&mut world, move |name, _, _| {
        requests += u32::from(name == "a");
        name == "phone" || requests > 1
    });
    let _ = world.call("a", request("t"));
    world.run(65 * MS);
    let caller = world.ends["a"].who.peer().clone();
    let frame = last_request(&world);
    world.send_lossy(&caller, "phone", frame.as_bytes());
    world.run(30 * MS);
    let results = sent(&world, "phone", Kind::TOOL_USE_RESULT);
    let again = results.iter().filter(|(_, lane)| *lane == Lane::Lossy).map(|(at, _)| *at);
    assert_eq!(again.collect::<Vec<_>>(), [Duration::ZERO, 60 * MS]);
}

/// A late acknowledgement of an earlier run can name the stanza.
#[test]
fn acknowledgement_of_another_call_ends_no_retries() {
    let mut world = pair();
    let mut first = true;
    lose(&mut world, move |name, _, frame| {
        name == "a" && frame.kind() == Kind::TOOL_USE_REQUEST && std::mem::take(&mut first)
    });
    let key = world.call("a", request("t")).unwrap();
    let known = with!(
        Acknowledgement::default(),
        acknowledged_stanza_id = last_request(&world).stanza_id(),
        acknowledged_message_id = Some("another".to_owned())
    );
    let frame = Frame::write(900, "room", &Meta::new(), &Message::Acknowledgement(known)).unwrap();
    let owner = world.ends["phone"].who.peer().clone();
    world.send_lossy(&owner, "a", &frame);
    world.run(100 * MS);
    assert!(world.settled("a", key).is_some_and(Result::is_ok), "the retry after 60 ms arrives");
}

#[test]
fn bytes_before_a_report_of_the_backlog_do_not_count_after_it() {
    let mut world = pair();
    let text = Value::from(serde_json::json!({"text": "x".repeat(2_000)}));
    world.ask("a", Request::new("t", text)).unwrap(); // more than may wait
    world.with("a", |session, now| session.handle_backlog(now, 0));
    lose(&mut world, |_, lane, frame| lane == Lane::Lossy && frame.kind() == Kind::TOOL_USE_REQUEST);
    world.ask("a", request("t")).unwrap();
    assert_eq!(world.count("a", "fast_copies"), 1);
    assert_eq!(world.count("a", "fast_copies_held"), 0);
}
