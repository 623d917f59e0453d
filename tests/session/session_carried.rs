//! Acknowledgements of results that the next request carries, on virtual time (`wire.md`, 5.8).

use std::time::Duration;

use toolbridge::{
    Config, Value,
    frame::{Frame, Kind, Message, Meta},
    session::Request,
    transport::{Lane, Participant},
};

use crate::{
    session_lane::{fresh, lanes, lose, lossy, pair, took},
    session_world::{MS, SECOND, World, plain_request, request, value},
};

/// The `meta` of the last frame of this type.
fn last_meta(world: &World, name: &str, kind: Kind) -> serde_json::Value {
    let frame = world.ends[name].log.iter().rev().find(|(_, _, frame)| frame.kind() == kind);
    frame.map(|(_, _, frame)| frame.to_json().unwrap()["meta"].clone()).unwrap_or_default()
}

fn carried(world: &World) -> serde_json::Value {
    last_meta(world, "a", Kind::TOOL_USE_REQUEST)["bridge.acks"].clone()
}

#[test]
fn request_soon_after_a_result_carries_its_acknowledgement() {
    let mut world = pair();
    for n in 1..=5_u64 {
        took(&mut world);
        assert_eq!(carried(&world).as_array().map_or(0, Vec::len), usize::from(n > 1));
        assert_eq!(world.count("a", "carried_acks"), n - 1);
    }
    world.run(3 * MS);
    took(&mut world);
    assert_eq!(carried(&world)[0][1], 3, "held for 3 ms");
    assert!(lanes(&world, "a", Kind::ACKNOWLEDGEMENT).is_empty());
    assert_eq!(lanes(&world, "phone", Kind::TOOL_USE_RESULT), [Lane::Lossy; 6], "no result was repeated");
    world.run(SECOND);
    assert_eq!(lanes(&world, "a", Kind::ACKNOWLEDGEMENT), [Lane::Lossy], "that of the last result");
    assert_eq!(last_meta(&world, "a", Kind::ACKNOWLEDGEMENT)["bridge.held"], 5);
    assert!(world.session("phone").is_drained());
}

#[test]
fn request_to_another_owner_carries_nothing() {
    let mut world = pair();
    world.client("watch", lossy(), &["other"]);
    world.handle("watch", |_| Some(Ok(value(2))));
    world.run(200 * MS);
    for _ in 0..3 {
        world.ask("a", request("other")).unwrap();
        world.run(SECOND);
    }
    took(&mut world);
    world.ask("a", request("other")).unwrap();
    assert!(carried(&world).is_null());
    assert_eq!(world.count("a", "carried_acks"), 0);
}

#[test]
fn request_that_fits_only_without_them_carries_none() {
    let mut world = pair();
    let mut sizes = (600..1_000).rev().map(|size| "x".repeat(size));
    let largest = sizes.find(|text| {
        world.run(SECOND);
        world.ends.values_mut().for_each(|end| end.log.clear());
        world.ask("a", Request::new("t", text_of(text))).unwrap();
        lanes(&world, "a", Kind::TOOL_USE_REQUEST) == [Lane::Lossy]
    });
    let largest = largest.unwrap();
    world.run(SECOND);
    took(&mut world);
    world.ends.values_mut().for_each(|end| end.log.clear());
    world.ask("a", Request::new("t", text_of(&largest))).unwrap();
    assert_eq!(lanes(&world, "a", Kind::TOOL_USE_REQUEST), [Lane::Lossy]);
    assert!(carried(&world).is_null());
    assert_eq!(lanes(&world, "a", Kind::ACKNOWLEDGEMENT), [Lane::Lossy], "it was sent by itself");
    assert_eq!(lanes(&world, "phone", Kind::TOOL_USE_RESULT), [Lane::Lossy], "no result was repeated");
}

fn text_of(text: &str) -> Value {
    Value::encode(&std::collections::BTreeMap::from([("text", text)])).unwrap()
}

#[test]
fn request_carries_at_most_eight() {
    let mut world = pair();
    let keys: Vec<_> = (0..12).map(|_| world.call("a", request("t")).unwrap()).collect();
    world.run(41 * MS);
    assert!(keys.iter().all(|key| world.settled("a", *key).is_some_and(Result::is_ok)));
    world.call("a", request("t")).unwrap();
    assert_eq!(carried(&world).as_array().map(Vec::len), Some(8));
    world.call("a", request("t")).unwrap();
    assert_eq!(carried(&world).as_array().map(Vec::len), Some(4));
    world.run(SECOND);
    assert!(world.session("phone").is_drained());
    assert_eq!(world.count("phone", "fast_retries"), 0);
}

/// Those beyond 64 are sent at once.
#[test]
fn at_most_64_acknowledgements_are_held() {
    let many = || {
        let mut config = lossy();
        (config.caps.calls.open_per_peer, config.caps.requests.calls_per_second) = (100, 100);
        config.caps.requests.running_jobs = 100;
        config
    };
    let mut world = fresh(many(), many());
    for _ in 0..2 {
        world.ask("a", request("t")).unwrap();
        world.run(SECOND);
    }
    world.ends.values_mut().for_each(|end| end.log.clear());
    let keys: Vec<_> = (0..70).map(|_| world.call("a", request("t")).unwrap()).collect();
    world.run(41 * MS);
    assert!(keys.iter().all(|key| world.settled("a", *key).is_some_and(Result::is_ok)));
    assert_eq!(lanes(&world, "a", Kind::ACKNOWLEDGEMENT).len(), 6);
}

#[test]
fn lost_request_is_repeated_with_its_acknowledgements() {
    let mut world = pair();
    took(&mut world);
    let mut first = true;
    lose(&mut world, move |name, lane, frame| {
        name == "a"
            && lane == Lane::Lossy
            && frame.kind() == Kind::TOOL_USE_REQUEST
            && std::mem::take(&mut first)
    });
    world.ask("a", request("t")).unwrap();
    world.run(SECOND);
    assert!(world.session("phone").is_drained());
    assert_eq!(world.executed.len(), 2, "no call ran twice");
}

#[test]
fn nothing_is_held_while_packets_are_lost() {
    let mut world = pair();
    let mut count = 0;
    lose(&mut world, move |name, lane, frame| {
        name == "a" && lane == Lane::Lossy && frame.kind() == Kind::TOOL_USE_REQUEST && {
            count += 1;
            count == 1
        }
    });
    took(&mut world);
    let before = lanes(&world, "a", Kind::ACKNOWLEDGEMENT).len();
    assert_eq!(before, 1, "the request had to be sent again, so the acknowledgement is sent at once");
    for _ in 0..3 {
        took(&mut world);
    }
    assert_eq!(world.count("a", "carried_acks"), 0);
    world.run(12 * SECOND);
    took(&mut world);
    took(&mut world);
    assert_eq!(world.count("a", "carried_acks"), 1, "the loss was long ago");
}

#[test]
fn goodbye_follows_the_acknowledgements_that_are_held() {
    let mut world = pair();
    took(&mut world);
    assert!(lanes(&world, "a", Kind::ACKNOWLEDGEMENT).is_empty());
    world.with("a", |session, now| session.close(now));
    world.flush("a");
    assert_eq!(lanes(&world, "a", Kind::ACKNOWLEDGEMENT), [Lane::Lossy]);
}

/// Sends a request from `from` that acknowledges the phone's results of these stanzas, and names `address` as its instance.
fn forge(world: &mut World, from: &str, stanzas: &[i32], address: &str) {
    let mut meta = Meta::new().with_text("bridge.to", address);
    meta.set("bridge.acks", stanzas.iter().map(|stanza| (stanza, 0)).collect::<Vec<_>>()).unwrap();
    let asked = world.ends["a"].log.iter().rev().find(|(_, _, frame)| frame.kind() == Kind::TOOL_USE_REQUEST);
    let Message::ToolUseRequest(mut asked) = asked.unwrap().2.message().unwrap() else { panic!() };
    asked.id = "another-call".parse().unwrap();
    let frame = Frame::write(-90_000, "room", &meta, &Message::ToolUseRequest(asked)).unwrap();
    let peer = world.ends[from].who.peer().clone();
    world.send_lossy(&peer, "phone", &frame);
}

#[test]
fn only_the_assistant_acknowledges_and_only_to_the_instance_that_it_names() {
    for (from, is_for_this_run, counts) in [("a", true, true), ("a", false, false), ("x", true, false)] {
        assert_eq!(acknowledges(from, is_for_this_run, 0), counts, "{from}, {is_for_this_run}");
    }
}

/// A request of another implementation may carry more than toolbridge writes: twice as many are read.
#[test]
fn request_acknowledges_at_most_sixteen_results() {
    assert!(acknowledges("a", true, 15));
    assert!(!acknowledges("a", true, 16));
}

/// Returns whether a forged request acknowledges a result, after so many others.
fn acknowledges(from: &str, is_for_this_run: bool, others: i32) -> bool {
    let mut world = pair();
    world.stranger("x");
    lose(&mut world, |name, _, frame| name == "a" && frame.kind() == Kind::ACKNOWLEDGEMENT);
    took(&mut world);
    let meta = last_meta(&world, "a", Kind::TOOL_USE_REQUEST);
    let address = meta["bridge.to"].as_str().unwrap();
    let address = if is_for_this_run { address.to_owned() } else { "0".repeat(16) };
    let is_result = |frame: &Frame| frame.kind() == Kind::TOOL_USE_RESULT;
    let log = &world.ends["phone"].log;
    let stanza = log.iter().find(|(_, _, frame)| is_result(frame)).unwrap().2.stanza_id().unwrap();
    let stanzas: Vec<_> = (1_000_000..).take(others as usize).chain([stanza]).collect();
    forge(&mut world, from, &stanzas, &address);
    world.run(SECOND);
    let log = &world.ends["phone"].log;
    let copies = log.iter().filter(|(_, _, frame)| is_result(frame) && frame.stanza_id() == Some(stanza));
    copies.count() == 1
}

#[test]
fn time_for_which_an_acknowledgement_was_held_is_no_part_of_the_round_trip() {
    let mut world = fresh(lossy(), Config::default().lossy(true));
    for _ in 0..20 {
        world.ask("a", request("t")).unwrap();
        world.run(SECOND);
    }
    world.ends.values_mut().for_each(|end| end.log.clear());
    lose(&mut world, |name, lane, frame| {
        name == "phone" && lane == Lane::Lossy && frame.kind() == Kind::TOOL_USE_RESULT
    });
    let mut sent = Vec::new();
    world.call("a", request("t")).unwrap();
    // The request that is repeated would have the result repeated, too.
    world.run(21 * MS);
    world.lossy.lose = None;
    lose(&mut world, |_, lane, _| lane == Lane::Lossy);
    world.run(70 * MS);
    for (at, lane, frame) in &world.ends["phone"].log {
        if frame.kind() == Kind::TOOL_USE_RESULT && *lane == Lane::Lossy {
            sent.push(*at);
        }
    }
    assert_eq!(sent[1] - sent[0], Duration::from_millis(60), "1.5 round trips of 40 ms");
}

/// Who has not completed the handshake acknowledges nothing, also under an identity that did.
#[test]
fn participant_without_rights_acknowledges_no_result_of_the_one_before_it() {
    let mut world = World::pair(&["t"]);
    world.call("a", request("t").timeout(60 * SECOND)).unwrap();
    world.run(SECOND);
    let address = last_meta(&world, "a", Kind::TOOL_USE_REQUEST)["bridge.to"].as_str().unwrap().to_owned();
    world.ends.get_mut("a").unwrap().here = false;
    world.finish("phone", Ok(value(1)));
    world.run(100 * MS);
    world.leave("a");
    let who = Participant::new("a", world.sid());
    world.play(&who);
    world.run(100 * MS);
    let acknowledged: Vec<(i32, u64)> = (1..=8).map(|stanza| (stanza, 0)).collect();
    let mut meta = Meta::new().with_text("bridge.to", &address);
    meta.set("bridge.acks", acknowledged).unwrap();
    let request = Message::ToolUseRequest(plain_request("other", "t"));
    world.send("a", &["phone"], &meta, &request);
    world.run(100 * MS);
    assert!(!world.session("phone").is_drained(), "the result is kept for its caller");
}
