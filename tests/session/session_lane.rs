//! The fast lane on virtual time (`wire.md`, 5.8): the network loses, repeats and reorders lossy packets.

use std::time::{Duration, Instant};

use toolbridge::{
    Config, ConnectionState, ErrorCode, Event, Outcome, Progress, Role, ToolError, ToolOptions, Value,
    frame::{Frame, Kind, Message, Meta, ToolProgress},
    session::{Request, SendFailure},
    tools::ProgressStatus,
    transport::{Lane, Participant, TransportEvent},
};

use crate::session_world::{Fate, Lossy, MS, Random, SECOND, World, request, tool, value};

/// An assistant and a phone whose transports have a lossy lane, after their handshake and two calls: the first shows
/// the assistant that its Configuration arrived, the second measures the round trip.
pub(crate) fn pair() -> World {
    pair_of(lossy())
}

fn pair_of(assistant: Config) -> World {
    let mut world = fresh(assistant, lossy());
    for _ in 0..2 {
        world.ask("a", request("t")).unwrap();
        world.run(SECOND);
    }
    world.executed.clear();
    world.ends.values_mut().for_each(|end| end.log.clear());
    world
}

pub(crate) fn fresh(assistant: Config, client: Config) -> World {
    let mut world = World::new();
    world.assistant("a", assistant);
    world.client("phone", client, &["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    world.run(200 * MS);
    world
}

pub(crate) fn lossy() -> Config {
    Config::default().lossy(true)
}

/// When, after the first, and on which lane frames of this type were sent.
pub(crate) fn sent(world: &World, name: &str, kind: Kind) -> Vec<(Duration, Lane)> {
    let of_kind: Vec<_> = world.ends[name].log.iter().filter(|(_, _, frame)| frame.kind() == kind).collect();
    let first = of_kind.first().map(|(at, _, _)| *at);
    of_kind.iter().map(|(at, lane, _)| (*at - first.unwrap_or(*at), *lane)).collect()
}

pub(crate) fn lanes(world: &World, name: &str, kind: Kind) -> Vec<Lane> {
    sent(world, name, kind).into_iter().map(|(_, lane)| lane).collect()
}

/// Loses packets for which the rule returns true.
pub(crate) fn lose(world: &mut World, rule: impl FnMut(&str, Lane, &Frame) -> bool + 'static) {
    world.lossy.lose = Some(Box::new(rule));
}

fn is_request(_: &str, lane: Lane, frame: &Frame) -> bool {
    lane == Lane::Lossy && frame.kind() == Kind::TOOL_USE_REQUEST
}

fn is_result(_: &str, lane: Lane, frame: &Frame) -> bool {
    lane == Lane::Lossy && frame.kind() == Kind::TOOL_USE_RESULT
}

pub(crate) fn took(world: &mut World) -> Duration {
    let began = world.now;
    world.ask("a", request("t")).unwrap();
    world.now - began
}

/// Its start is held for 5 ms, and the result follows within that time. `busy` alone would prove that nothing ran.
#[test]
fn tool_that_fails_at_once_is_known_to_have_started() {
    let mut world = World::new();
    world.assistant("a", lossy());
    world.client("phone", lossy(), &["t"]);
    world.run(SECOND);
    let key = world.call("a", request("t")).unwrap();
    world.run(world.delay);
    let job = world.ends["phone"].jobs[0].key;
    let error = ToolError::new(ErrorCode::BUSY, "the lamp is in use");
    world.with("phone", |session, now| session.settle(now, job, Err(error)));
    world.run(SECOND);
    assert!(lanes(&world, "phone", Kind::TOOL_PROGRESS).is_empty());
    let Some(Err(error)) = world.settled("a", key) else { panic!("the call has no error") };
    assert!(error.may_have_run(), "{error:?}");
}

#[test]
fn call_on_the_fast_lane_is_three_lossy_packets() {
    let mut world = pair();
    assert_eq!(took(&mut world), 40 * MS);
    world.run(SECOND);
    assert_eq!(sent(&world, "a", Kind::TOOL_USE_REQUEST), [(Duration::ZERO, Lane::Lossy)]);
    assert_eq!(sent(&world, "phone", Kind::TOOL_USE_RESULT), [(Duration::ZERO, Lane::Lossy)]);
    assert_eq!(lanes(&world, "a", Kind::ACKNOWLEDGEMENT), [Lane::Lossy]);
    assert!(lanes(&world, "phone", Kind::ACKNOWLEDGEMENT).is_empty(), "the result acknowledges the request");
    assert!(
        lanes(&world, "phone", Kind::TOOL_PROGRESS).is_empty(),
        "the result states that the tool started"
    );
}

#[test]
fn late_result_is_preceded_by_its_acknowledgement() {
    let mut world = pair();
    world.ends.get_mut("phone").unwrap().handler = None;
    let key = world.call("a", request("t")).unwrap();
    world.run(SECOND);
    assert_eq!(lanes(&world, "phone", Kind::ACKNOWLEDGEMENT), [Lane::Lossy]);
    assert_eq!(lanes(&world, "phone", Kind::TOOL_PROGRESS), [Lane::Reliable]);
    assert_eq!(lanes(&world, "a", Kind::TOOL_USE_REQUEST), [Lane::Lossy]);
    world.finish("phone", Ok(value(2)));
    world.run(100 * MS);
    assert!(world.settled("a", key).unwrap().is_ok());
}

/// The progress messages that the assistant reports to its caller.
fn progress_heard(world: &World) -> Vec<String> {
    let heard = |event: &Event| match event {
        Event::Progress { progress, .. } => progress.message.clone(),
        _ => None,
    };
    world.ends["a"].events.iter().filter_map(heard).collect()
}

#[test]
fn progress_just_before_a_result_is_reported_before_it() {
    let mut world = pair();
    world.ends.get_mut("phone").unwrap().handler = None;
    let key = world.call("a", request("t")).unwrap();
    world.run(100 * MS);
    let job = world.ends["phone"].jobs.last().unwrap().key;
    // Reliable frames arrive long after the result.
    world.fate = Some(Box::new(|_, _, _| Fate::IsOvertaken(50 * MS)));
    world.with("phone", |session, now| session.progress(now, job, "3 of 3".into()));
    world.finish("phone", Ok(value(2)));
    world.run(30 * MS);
    assert!(world.settled("a", key).is_some_and(Result::is_ok), "the result has arrived");
    assert_eq!(progress_heard(&world), ["3 of 3"]);
    world.run(SECOND);
    assert_eq!(progress_heard(&world), ["3 of 3"], "the reliable copy is not reported again");
}

#[test]
fn progress_lost_on_the_fast_lane_arrives_reliably_once() {
    let mut world = pair();
    world.ends.get_mut("phone").unwrap().handler = None;
    world.call("a", request("t")).unwrap();
    world.run(100 * MS);
    let job = world.ends["phone"].jobs.last().unwrap().key;
    lose(&mut world, |from, lane, _| from == "phone" && lane == Lane::Lossy);
    world.with("phone", |session, now| session.progress(now, job, "1 of 3".into()));
    world.run(200 * MS);
    assert_eq!(progress_heard(&world), ["1 of 3"]);
    // The copies of the next one arrive in the other order.
    world.lossy.lose = None;
    world.with("phone", |session, now| session.progress(now, job, "2 of 3".into()));
    world.run(200 * MS);
    assert_eq!(progress_heard(&world), ["1 of 3", "2 of 3"]);
}

#[test]
fn calls_without_the_feature_or_a_lossy_lane_are_reliable() {
    let mut without = lossy();
    without.fast_lane = false;
    for (assistant, client) in [
        (Config::default(), lossy()),
        (lossy(), Config::default()),
        (lossy(), without.clone()),
        (without, lossy()),
    ] {
        let mut world = fresh(assistant, client);
        for _ in 0..3 {
            world.ask("a", request("t")).unwrap();
        }
        world.run(SECOND);
        for name in ["a", "phone"] {
            assert!(world.ends[name].log.iter().all(|(_, lane, _)| *lane == Lane::Reliable), "{name}");
        }
    }
}

#[test]
fn frames_before_the_handshake_are_reliable() {
    let is_silent = |world: &World| {
        let mut all = world.ends.values().flat_map(|end| &end.log);
        all.all(|(_, lane, _)| *lane == Lane::Reliable)
    };
    assert!(is_silent(&fresh(lossy(), lossy())));
    let mut world = pair();
    world.rejoin("phone");
    world.run(SECOND);
    assert!(is_silent(&world));
    for _ in 0..2 {
        world.ends.values_mut().for_each(|end| end.log.clear());
        world.ask("a", request("t")).unwrap();
        world.run(SECOND);
    }
    assert_eq!(
        lanes(&world, "a", Kind::TOOL_USE_REQUEST),
        [Lane::Lossy],
        "the new pair of sids uses the fast lane"
    );
}

#[test]
fn frame_above_one_datagram_is_reliable() {
    let mut world = pair();
    for (size, lane) in [(600, Lane::Lossy), (1_000, Lane::Reliable)] {
        world.ends.values_mut().for_each(|end| end.log.clear());
        let arguments =
            Value::encode(&std::collections::BTreeMap::from([("text", "x".repeat(size))])).unwrap();
        world.ask("a", Request::new("t", arguments)).unwrap();
        assert_eq!(lanes(&world, "a", Kind::TOOL_USE_REQUEST), [lane], "{size}");
        for (_, _, frame) in world.ends["a"].log.iter().filter(|(_, lane, _)| *lane == Lane::Lossy) {
            assert!(frame.as_bytes().len() < 1_062);
        }
    }
}

#[test]
fn frame_leaves_room_for_what_the_transport_adds() {
    let largest = |config: Config| {
        let mut world = pair_of(config);
        (600..1_000).rfind(|size| {
            world.ends.values_mut().for_each(|end| end.log.clear());
            let text = std::collections::BTreeMap::from([("text", "x".repeat(*size))]);
            world.ask("a", Request::new("t", Value::encode(&text).unwrap())).unwrap();
            let lane = lanes(&world, "a", Kind::TOOL_USE_REQUEST);
            world.run(2 * SECOND);
            lane == [Lane::Lossy]
        })
    };
    let (plain, encrypted) = (largest(lossy()), largest(lossy().overhead(44)));
    assert_eq!(plain.map(|size| size - 44), encrypted);
}

#[test]
fn unacknowledged_frame_is_retried_four_times_from_one_and_a_half_round_trips_on() {
    let mut world = pair();
    lose(&mut world, |name, _, _| name == "a");
    let _ = world.call("a", request("t"));
    world.run(3 * SECOND);
    let sent = sent(&world, "a", Kind::TOOL_USE_REQUEST);
    let lossy: Vec<_> = sent.iter().filter(|(_, lane)| *lane == Lane::Lossy).map(|(at, _)| *at).collect();
    assert_eq!(lossy, [0, 60, 180, 420, 900].map(|ms| ms * MS));
    let reliable: Vec<_> =
        sent.iter().filter(|(_, lane)| *lane == Lane::Reliable).map(|(at, _)| *at).collect();
    assert_eq!(reliable, [80 * MS], "one reliable copy is sent after two round trips");
    assert_eq!((world.count("a", "fast_retries"), world.count("a", "fast_copies")), (4, 1));
}

#[test]
fn first_wait_without_a_sample_is_100_ms() {
    let mut world = fresh(lossy(), lossy());
    world.ask("a", request("t")).unwrap();
    world.run(SECOND);
    world.ends.values_mut().for_each(|end| end.log.clear());
    lose(&mut world, |name, lane, _| name == "a" && lane == Lane::Lossy);
    let _ = world.call("a", request("t"));
    world.run(3 * SECOND);
    let lossy = sent(&world, "a", Kind::TOOL_USE_REQUEST);
    let first: Vec<_> =
        lossy.iter().filter(|(_, lane)| *lane == Lane::Lossy).take(2).map(|(at, _)| *at).collect();
    assert_eq!(first, [Duration::ZERO, 100 * MS]);
}

#[test]
fn first_wait_is_at_least_20_ms() {
    let mut world = World::new();
    world.delay = MS;
    world.assistant("a", lossy());
    world.client("phone", lossy(), &["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    world.run(200 * MS);
    for _ in 0..3 {
        world.ask("a", request("t")).unwrap();
    }
    world.ends.values_mut().for_each(|end| end.log.clear());
    lose(&mut world, is_request);
    let _ = world.call("a", request("t"));
    world.run(30 * MS);
    assert_eq!(sent(&world, "a", Kind::TOOL_USE_REQUEST)[1], (20 * MS, Lane::Lossy));
}

#[test]
fn acknowledgement_is_not_retried() {
    let mut world = pair();
    lose(&mut world, |name, _, frame| name == "a" && frame.kind() == Kind::ACKNOWLEDGEMENT);
    world.ask("a", request("t")).unwrap();
    world.run(59 * MS);
    assert_eq!(lanes(&world, "a", Kind::ACKNOWLEDGEMENT), [Lane::Lossy]);
    world.run(3 * SECOND);
    let results = lanes(&world, "phone", Kind::TOOL_USE_RESULT);
    assert_eq!(results.len(), 6, "the owner retries its result: {results:?}");
}

#[test]
fn reliable_copy_is_dropped_once_acknowledged() {
    let mut world = pair();
    let mut lost = false;
    lose(&mut world, move |name, lane, frame| {
        is_request(name, lane, frame) && !std::mem::replace(&mut lost, true)
    });
    assert_eq!(took(&mut world), 100 * MS, "one retry after 60 ms, and the round trip");
    world.run(2 * SECOND);
    // The copy is due after 80 ms, 20 ms before the retry's reply arrives.
    assert_eq!(
        sent(&world, "a", Kind::TOOL_USE_REQUEST),
        [(Duration::ZERO, Lane::Lossy), (60 * MS, Lane::Lossy), (80 * MS, Lane::Reliable)]
    );
    assert_eq!(world.executed.len(), 1);
}

#[test]
fn reliable_copy_is_held_while_more_than_600_bytes_wait() {
    let mut world = pair();
    world.with("a", |session, now| session.handle_backlog(now, 601));
    let mut lost = 2;
    lose(&mut world, move |name, lane, frame| {
        let loses = is_request(name, lane, frame) && lost > 0;
        lost -= i32::from(loses);
        loses
    });
    assert_eq!(took(&mut world), 220 * MS, "two retries, without a copy");
    assert_eq!((world.count("a", "fast_copies"), world.count("a", "fast_copies_held")), (0, 1));
    world.with("a", |session, now| session.handle_backlog(now, 0));
    world.run(2 * SECOND);
    assert_eq!(world.count("a", "fast_copies"), 0, "the copy of an acknowledged frame is dropped");

    lose(&mut world, is_request);
    world.with("a", |session, now| session.handle_backlog(now, 5_000));
    let _ = world.call("a", request("t"));
    world.run(90 * MS);
    assert_eq!(world.count("a", "fast_copies"), 0);
    world.with("a", |session, now| session.handle_backlog(now, 600));
    assert_eq!(world.count("a", "fast_copies"), 1, "the copy is sent once fewer bytes wait");
}

#[test]
fn reliable_copies_due_together_wait_for_one_another() {
    let mut world = pair();
    lose(&mut world, is_request);
    world.with("a", |session, now| session.handle_backlog(now, 0));
    for _ in 0..20 {
        let _ = world.call("a", request("t"));
    }
    world.run(85 * MS);
    let copies = world.count("a", "fast_copies");
    assert!((1..=5).contains(&copies), "{copies} copies were sent at once");
    // As a driver does: accepted packets have been sent.
    for _ in 0..40 {
        world.with("a", |session, now| session.handle_backlog(now, 0));
        world.run(5 * MS);
    }
    assert_eq!(world.count("a", "fast_copies"), 20);
}

#[test]
fn frame_behind_endless_bulk_arrives_after_its_last_retry() {
    let mut world = pair();
    lose(&mut world, |_, lane, _| lane == Lane::Lossy);
    world.with("a", |session, now| session.handle_backlog(now, 1_000_000));
    let key = world.call("a", request("t")).unwrap();
    world.run(1_500 * MS);
    assert_eq!(world.count("a", "fast_copies"), 0);
    world.run(2 * SECOND);
    assert_eq!(world.count("a", "fast_copies"), 1);
    assert!(world.settled("a", key).unwrap().is_ok());
}

/// Each call sets the timer of the lane again.
#[test]
fn frame_behind_endless_bulk_arrives_while_calls_go_on() {
    for (loses, kind) in [("a", Kind::TOOL_USE_REQUEST), ("phone", Kind::TOOL_USE_RESULT)] {
        let mut world = pair();
        world.delay = MS;
        let mut first = None;
        lose(&mut world, move |name, lane, frame| {
            let may_be = name == loses && lane == Lane::Lossy && frame.kind() == kind;
            may_be && *first.get_or_insert_with(|| frame.stanza_id()) == frame.stanza_id()
        });
        world.with(loses, |session, now| session.handle_backlog(now, 1_000_000));
        let key = world.call("a", request("t")).unwrap();
        for _ in 0..400 {
            world.call("a", request("bridge.echo").to("phone")).unwrap();
            world.run(10 * MS);
        }
        assert_eq!(world.count(loses, "fast_copies"), 1, "{loses}");
        assert!(world.settled("a", key).is_some_and(Result::is_ok), "{loses}");
    }
}

#[test]
fn samples_come_only_from_lossy_acknowledgements_of_frames_sent_once() {
    let mut world = pair();
    // Every other request is lost once: the time of its result is no measure of the round trip.
    for _ in 0..10 {
        lose_a_request(&mut world);
        assert_eq!(took(&mut world), 100 * MS);
        assert_eq!(took(&mut world), 40 * MS);
        world.run(161 * SECOND); // until frames are no longer sent twice
    }
}

/// A path that becomes so long that each frame is sent again has no frame that was sent once, and is measured all the same.
#[test]
fn round_trip_that_becomes_longer_at_once_is_found() {
    let mut world = pair();
    world.delay = 60 * MS;
    for _ in 0..12 {
        assert_eq!(took(&mut world), 120 * MS);
        world.run(SECOND);
    }
    let [retries, doubles] = ["fast_retries", "fast_doubles"].map(|it| world.count("a", it));
    assert_eq!(took(&mut world), 120 * MS);
    assert_eq!(["fast_retries", "fast_doubles"].map(|it| world.count("a", it)), [retries, doubles]);
    assert!(retries < 10, "{retries}");
    assert_eq!(doubles, 0, "none was lost");
}

/// Loses the first packet of the next request.
fn lose_a_request(world: &mut World) {
    let mut first = true;
    lose(world, move |name, lane, frame| is_request(name, lane, frame) && std::mem::take(&mut first));
}

#[test]
fn frames_are_sent_twice_for_ten_seconds_after_a_loss() {
    let mut world = pair();
    for _ in 0..20 {
        assert_eq!(took(&mut world), 40 * MS);
        world.run(200 * MS);
    }
    assert_eq!((world.count("a", "fast_doubles"), world.count("phone", "fast_doubles")), (0, 0));
    lose_a_request(&mut world);
    assert_eq!(took(&mut world), 100 * MS);
    assert_eq!(took(&mut world), 40 * MS, "so round trips are no longer than before");
    assert_eq!(world.count("a", "fast_doubles"), 0);
    for _ in 0..4 {
        lose_a_request(&mut world);
        let packets = lanes(&world, "a", Kind::TOOL_USE_REQUEST).len();
        assert_eq!(took(&mut world), 45 * MS, "the second packet follows the first after 5 ms");
        assert_eq!(lanes(&world, "a", Kind::TOOL_USE_REQUEST).len(), packets + 2);
        world.run(2 * SECOND);
    }
    assert_eq!(world.count("a", "fast_doubles"), 4);
    assert_eq!(world.executed.len(), 26, "no call ran twice");
    world.run(3 * SECOND);
    assert_eq!(took(&mut world), 40 * MS);
    assert_eq!(world.count("a", "fast_doubles"), 4);
}

#[test]
fn result_of_a_lossy_link_is_sent_twice_too() {
    let mut world = pair();
    let mut first = true;
    let is_result = |name: &str, lane: Lane, frame: &Frame| {
        name == "phone" && lane == Lane::Lossy && frame.kind() == Kind::TOOL_USE_RESULT
    };
    lose(&mut world, move |name, lane, frame| is_result(name, lane, frame) && std::mem::take(&mut first));
    took(&mut world);
    world.run(SECOND);
    took(&mut world);
    world.run(SECOND);
    assert_eq!((world.count("a", "fast_doubles"), world.count("phone", "fast_doubles")), (0, 0));
    took(&mut world);
    assert_eq!((world.count("a", "fast_doubles"), world.count("phone", "fast_doubles")), (1, 1));
}

#[test]
fn result_that_was_sent_again_for_a_repeated_request_waits_anew() {
    let mut world = pair();
    world.ends.get_mut("phone").unwrap().handler = None;
    let mut first = true;
    lose(&mut world, move |name, lane, frame| {
        name == "phone"
            && lane == Lane::Lossy
            && frame.kind() == Kind::TOOL_USE_RESULT
            && std::mem::take(&mut first)
    });
    let key = world.call("a", request("t")).unwrap();
    world.run(23 * MS); // the request arrives after 20 ms, and its acknowledgement waits for 5 ms
    world.finish("phone", Ok(value(1)));
    world.run(SECOND);
    assert!(world.settled("a", key).is_some_and(Result::is_ok));
    let mut sent = sent(&world, "phone", Kind::TOOL_USE_RESULT);
    sent.retain(|(_, lane)| *lane == Lane::Lossy);
    let times: Vec<_> = sent.into_iter().map(|(at, _)| at).collect();
    assert_eq!(times, [Duration::ZERO, 57 * MS], "not again after 60 ms");
}

/// Doubles hide single losses. That they go on is seen only between the times at which frames are sent twice.
#[test]
fn losses_that_go_on_are_doubled_for_longer_each_time() {
    let mut world = pair();
    let mut count = 0;
    lose(&mut world, move |name, lane, frame| {
        count += u32::from(is_request(name, lane, frame));
        is_request(name, lane, frame) && count % 10 == 0
    });
    let mut late = Vec::new();
    for call in 0..700 {
        if took(&mut world) > 60 * MS {
            late.push(call);
        }
        world.run(100 * MS);
    }
    let between: Vec<_> = late.windows(2).map(|calls| calls[1] - calls[0]).collect();
    assert!(late.len() <= 4 && between.is_sorted(), "these calls waited for a retry: {late:?}");
}

/// A frame that comes once among others that come twice has lost a packet, which shows that losses go on.
#[test]
fn losses_in_both_directions_keep_frames_doubled() {
    let mut world = pair();
    let mut count = [0, 3];
    lose(&mut world, move |name, lane, frame| {
        let count = &mut count[usize::from(name == "a")];
        let is_one = is_request(name, lane, frame) || is_result(name, lane, frame);
        *count += u32::from(is_one);
        is_one && *count % 13 == 0
    });
    let mut late = Vec::new();
    for call in 0..700 {
        if took(&mut world) > 60 * MS {
            late.push(call);
        }
        world.run(100 * MS);
    }
    assert!(late.iter().all(|call| *call < 20), "these calls waited for a retry: {late:?}");
}

/// How many frames are sent twice in the ten seconds after a loss, and in the minute after that.
fn doubles_after_a_loss(half_trip: Duration, passed: u64) -> [u64; 2] {
    let mut world = World::new();
    world.delay = half_trip;
    world.assistant("a", lossy());
    world.client("phone", lossy(), &["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    world.run(SECOND);
    let calls = |world: &mut World, time: Duration| {
        let doubles = |world: &World| world.count("a", "fast_doubles") + world.count("phone", "fast_doubles");
        let (before, until) = (doubles(world), world.now + time);
        while world.now < until {
            took(world);
            world.run(100 * MS);
        }
        doubles(world) - before
    };
    calls(&mut world, 10 * SECOND);
    world.lossy.passed = passed;
    calls(&mut world, 10 * SECOND);
    lose_a_request(&mut world);
    [calls(&mut world, 11 * SECOND), calls(&mut world, 60 * SECOND)]
}

#[test]
fn one_loss_on_a_link_of_varying_delay_is_doubled_for_ten_seconds() {
    for half_trip in [2, 3, 6, 7, 20] {
        for passed in [50, 300] {
            let [soon, later] = doubles_after_a_loss(half_trip * MS, passed);
            assert!(soon > 0, "half a round trip of {half_trip} ms, {passed} permille late");
            assert_eq!(later, 0, "half a round trip of {half_trip} ms, {passed} permille late");
        }
    }
}

#[test]
fn full_link_is_not_filled_further() {
    let mut world = pair();
    lose_a_request(&mut world);
    took(&mut world);
    took(&mut world);
    world.with("a", |session, now| session.handle_backlog(now, 5_000));
    took(&mut world);
    assert_eq!(world.count("a", "fast_doubles"), 0, "a queue has grown");
    world.with("a", |session, now| session.handle_backlog(now, 0));
    took(&mut world);
    assert_eq!(world.count("a", "fast_doubles"), 0, "one frame alone that came once looks like a loss");
    took(&mut world);
    assert_eq!(world.count("a", "fast_doubles"), 1);
    world.run(SECOND);
    let doubled = world.count("a", "fast_doubles");
    let keys: Vec<_> = (0..40).map(|_| world.call("a", request("t")).unwrap()).collect();
    world.run(SECOND);
    assert!(keys.iter().all(|key| world.settled("a", *key).unwrap().is_ok()));
    assert_eq!(world.count("a", "fast_doubles"), doubled + 16, "many are in flight");
    world.delay = 60 * MS;
    for _ in 0..15 {
        world.with("a", |session, now| session.handle_backlog(now, 0));
        took(&mut world);
        world.run(100 * MS);
    }
    world.with("a", |session, now| session.handle_backlog(now, 0));
    let before = world.count("a", "fast_doubles");
    took(&mut world);
    assert_eq!(world.count("a", "fast_doubles"), before, "round trips have become longer");
}

#[test]
fn sample_is_found_on_a_network_slower_than_the_first_wait() {
    let mut world = World::new();
    world.delay = 150 * MS;
    world.assistant("a", lossy());
    world.client("phone", lossy(), &["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    world.run(2 * SECOND);
    for _ in 0..4 {
        world.ask("a", request("t")).unwrap();
        world.run(SECOND);
    }
    let before = world.count("a", "fast_retries");
    for _ in 0..5 {
        world.ask("a", request("t")).unwrap();
        world.run(SECOND);
    }
    assert_eq!(world.count("a", "fast_retries"), before, "the round trip of 300 ms has been measured");
}

#[test]
fn lossy_duplicate_after_half_a_round_trip_is_answered_again_on_lossy() {
    let mut world = pair();
    let peer = world.ends["a"].who.peer().clone();
    world.ask("a", request("t")).unwrap();
    world.run(SECOND);
    let (_, _, frame) = world.ends["a"]
        .log
        .iter()
        .find(|(_, _, frame)| frame.kind() == Kind::TOOL_USE_REQUEST)
        .unwrap()
        .clone();
    let before = lanes(&world, "phone", Kind::ACKNOWLEDGEMENT).len();
    world.send_lossy(&peer, "phone", frame.as_bytes());
    world.run(21 * MS);
    assert_eq!(lanes(&world, "phone", Kind::ACKNOWLEDGEMENT)[before..], [Lane::Lossy]);
    world.send_lossy(&peer, "phone", frame.as_bytes());
    world.run(20 * MS - MS);
    world.send_lossy(&peer, "phone", frame.as_bytes());
    world.run(25 * MS);
    let sooner = lanes(&world, "phone", Kind::ACKNOWLEDGEMENT).len();
    assert_eq!(sooner, before + 2, "only the duplicate after more than half a round trip is answered");
    assert_eq!(world.executed.len(), 1, "the tool ran once");
}

#[test]
fn duplicate_of_a_request_whose_result_is_in_flight_repeats_the_result() {
    let mut world = pair();
    let peer = world.ends["a"].who.peer().clone();
    lose(&mut world, |name, _, _| name == "phone");
    let key = world.call("a", request("t")).unwrap();
    world.run(45 * MS);
    let (_, _, frame) = world.ends["a"]
        .log
        .iter()
        .find(|(_, _, frame)| frame.kind() == Kind::TOOL_USE_REQUEST)
        .unwrap()
        .clone();
    world.lossy.lose = None;
    world.send_lossy(&peer, "phone", frame.as_bytes());
    world.run(41 * MS);
    assert!(world.settled("a", key).unwrap().is_ok());
    assert!(lanes(&world, "phone", Kind::ACKNOWLEDGEMENT).is_empty());
}

#[test]
fn reliable_frame_is_acknowledged_on_both_channels_duplicates_too() {
    let mut world = pair();
    lose(&mut world, is_request);
    world.ask("a", request("t")).unwrap();
    let acknowledged = lanes(&world, "phone", Kind::ACKNOWLEDGEMENT);
    assert_eq!(acknowledged, [Lane::Lossy, Lane::Reliable]);
    let peer = world.ends["a"].who.peer().clone();
    let (_, _, frame) = world.ends["a"]
        .log
        .iter()
        .find(|(_, _, frame)| frame.kind() == Kind::TOOL_USE_REQUEST)
        .unwrap()
        .clone();
    world.send_bytes_as(&peer, &["phone"], frame.as_bytes());
    world.run(SECOND);
    let results = lanes(&world, "phone", Kind::TOOL_USE_RESULT);
    assert_eq!(results, [Lane::Lossy], "a reliable duplicate does not repeat the result");
    assert_eq!(lanes(&world, "phone", Kind::ACKNOWLEDGEMENT), [acknowledged.clone(), acknowledged].concat());
}

#[test]
fn stop_uses_the_fast_lane_and_ends_its_requests_retries() {
    let mut world = pair();
    lose(&mut world, |name, _, _| name == "a");
    let key = world.call("a", request("t")).unwrap();
    world.run(10 * MS);
    world.with("a", |session, now| session.cancel(now, key));
    world.run(3 * SECOND);
    assert_eq!(sent(&world, "a", Kind::TOOL_USE_REQUEST), [(Duration::ZERO, Lane::Lossy)]);
    let stops = lanes(&world, "a", Kind::CONTROL_STOP);
    assert_eq!(stops.iter().filter(|lane| **lane == Lane::Lossy).count(), 5);
    assert_eq!(stops.iter().filter(|lane| **lane == Lane::Reliable).count(), 1);
}

#[test]
fn failure_with_a_nothing_ran_code_states_that_its_tool_started() {
    let mut world = pair();
    world.handle("phone", |_| -> Option<Outcome> { Some(Err(ToolError::new("busy", "the tool says so"))) });
    let error = world.ask("a", request("t")).unwrap_err();
    assert!(error.may_have_run(), "{error:?}");
    assert!(lanes(&world, "phone", Kind::TOOL_PROGRESS).is_empty());
    assert_eq!(lanes(&world, "phone", Kind::TOOL_USE_RESULT), [Lane::Lossy]);
    let (.., answer) =
        world.ends["phone"].log.iter().find(|(.., it)| it.kind() == Kind::TOOL_USE_RESULT).unwrap();
    assert!(answer.meta_bool("bridge.began"));
}

#[test]
fn pings_use_both_channels() {
    let mut world = pair();
    world.ends.get_mut("phone").unwrap().handler = None;
    world.call("a", request("t")).unwrap();
    world.run(1_600 * MS);
    let of = |name: &str, word: &str| {
        let mut lanes = Vec::new();
        for (_, lane, frame) in &world.ends[name].log {
            if let Ok(Message::Acknowledgement(it)) = frame.message()
                && it.notes.as_deref() == Some(word)
            {
                lanes.push(*lane);
            }
        }
        lanes
    };
    assert_eq!(of("a", "ping"), [Lane::Reliable, Lane::Lossy]);
    assert_eq!(of("phone", "pong"), [Lane::Reliable, Lane::Lossy]);
}

#[test]
fn goodbye_is_reliable_and_sends_results_in_flight_along() {
    let mut world = pair();
    lose(&mut world, |_, lane, _| lane == Lane::Lossy);
    let key = world.call("a", request("t")).unwrap();
    world.run(81 * MS); // the request's copy
    world.run(25 * MS);
    assert_eq!(lanes(&world, "phone", Kind::TOOL_USE_RESULT), [Lane::Lossy]);
    world.with("phone", |session, now| session.close(now));
    world.run(100 * MS);
    assert_eq!(lanes(&world, "phone", Kind::CONTROL_STOP), [Lane::Reliable]);
    assert!(world.settled("a", key).unwrap().is_ok(), "the result arrived before the goodbye");
}

#[test]
fn frames_are_not_retried_while_disconnected_or_to_another_pair_of_sids() {
    let mut world = pair();
    lose(&mut world, |name, _, _| name == "a");
    let _ = world.call("a", request("t"));
    world.with("a", |session, now| {
        session.handle_event(now, TransportEvent::ConnectionState(ConnectionState::Reconnecting))
    });
    world.run(3 * SECOND);
    assert_eq!(lanes(&world, "a", Kind::TOOL_USE_REQUEST), [Lane::Lossy]);
    world.with("a", |session, now| {
        session.handle_event(now, TransportEvent::ConnectionState(ConnectionState::Connected))
    });
    world.run(65 * MS);
    assert_eq!(lanes(&world, "a", Kind::TOOL_USE_REQUEST), [Lane::Lossy, Lane::Lossy, Lane::Reliable]);

    let before = world.ends["a"].log.len();
    world.leave("phone");
    world.run(3 * SECOND);
    let after = &world.ends["a"].log[before..];
    let requests = after.iter().filter(|(_, _, frame)| frame.kind() == Kind::TOOL_USE_REQUEST);
    assert_eq!(requests.count(), 0, "the room announced the leave before the next retry was due");
}

#[test]
fn request_unsent_on_both_channels_is_never_delivered() {
    let mut world = pair();
    lose(&mut world, |name, _, _| name == "a");
    let key = world.call("a", request("t")).unwrap();
    let first = world.packet;
    world.with("a", |session, now| {
        session.handle_send_failed(now, first, SendFailure::Other("no lossy lane".into()))
    });
    assert!(world.settled("a", key).is_none());
    world.run(MS);
    assert_eq!(
        lanes(&world, "a", Kind::TOOL_USE_REQUEST),
        [Lane::Lossy, Lane::Reliable],
        "the copy is sent at once"
    );
    world.with("a", |session, now| session.handle_send_failed(now, first, SendFailure::QueueFull));
    let error = world.settled("a", key).unwrap().as_ref().unwrap_err();
    assert!(!error.may_have_run(), "{error:?}");

    let key = world.call("a", request("t")).unwrap();
    let second = world.packet;
    world.run(70 * MS);
    world.with("a", |session, now| session.handle_send_failed(now, second, SendFailure::Closed));
    assert!(world.settled("a", key).is_none(), "one of its two packets may have arrived");
}

#[test]
fn unsent_reliable_copy_is_sent_when_the_connection_is_restored() {
    let mut world = pair();
    lose(&mut world, |name, _, frame| name == "phone" && frame.kind() == Kind::TOOL_USE_RESULT);
    world.call("a", request("t")).unwrap();
    while lanes(&world, "phone", Kind::TOOL_USE_RESULT).is_empty() {
        assert!(world.step());
    }
    let packet = world.packet; // all packets of one frame have one id
    world.run(SECOND);
    let answers = lanes(&world, "phone", Kind::TOOL_USE_RESULT);
    assert_eq!(answers.iter().filter(|lane| **lane == Lane::Reliable).count(), 1);
    world.with("phone", |session, now| {
        session.handle_event(now, TransportEvent::ConnectionState(ConnectionState::Reconnecting))
    });
    world.with("phone", |session, now| session.handle_send_failed(now, packet, SendFailure::Interrupted));
    world.lossy.lose = None;
    world.run(SECOND);
    world.with("phone", |session, now| {
        session.handle_event(now, TransportEvent::ConnectionState(ConnectionState::Connected))
    });
    world.run(SECOND);
    assert_eq!(lanes(&world, "phone", Kind::TOOL_USE_RESULT).len(), answers.len() + 1);
    assert!(world.session("a").is_drained() && world.session("phone").is_drained());
}

#[test]
fn flood_of_calls_keeps_frames_in_flight_within_the_limit() {
    let mut world = pair();
    lose(&mut world, |name, _, _| name == "a");
    for _ in 0..40 {
        let keys: Vec<_> = (0..64).filter_map(|_| world.call("a", request("t")).ok()).collect();
        world.run(MS);
        for key in keys {
            world.with("a", |session, now| session.cancel(now, key));
        }
    }
    let before = world.count("a", "fast_frames");
    world.run(5 * SECOND);
    assert!(before <= 64 * 41 + 256, "{before}");
}

#[test]
fn one_lost_packet_costs_at_most_one_wait_and_two_cost_the_reliable_copy() {
    for seed in 1..=60 {
        let mut world = pair();
        world.random = Random(seed);
        let mut random = Random(seed * 77 + 1);
        for _ in 0..30 {
            // Which of the next packets of either end is lost.
            let (at, mut count) = (random.below(4), 0);
            lose(&mut world, move |_, lane, _| {
                count += 1;
                lane == Lane::Lossy && count - 1 == at
            });
            let took = took(&mut world);
            assert!(took <= 40 * MS + 60 * MS, "seed {seed}: {took:?}");
            world.run(SECOND);
            // Without this, so many frames in a row were late that round trips counted as longer.
            world.lossy.lose = None;
            world.ask("a", request("t")).unwrap();
            world.run(161 * SECOND);
        }
        assert_eq!(world.executed.len(), 60);
    }
}

#[test]
fn random_network_faults_leave_each_call_one_run_and_its_result() {
    let (mut worst, mut retries) = (Duration::ZERO, 0);
    for seed in 1..=60 {
        let mut world = pair();
        world.random = Random(seed);
        world.lossy = Lossy { lost: 100, twice: 50, passed: 300, lose: None };
        let mut began: Vec<(_, Instant)> = Vec::new();
        for _ in 0..40 {
            began.push((world.call("a", request("t")).unwrap(), world.now));
            world.run(20 * MS);
        }
        world.run(3 * SECOND);
        for (key, _) in &began {
            assert!(world.settled("a", *key).unwrap().is_ok(), "seed {seed}");
        }
        assert_eq!(world.executed.len(), 40, "seed {seed}: once each");
        retries += world.count("a", "fast_retries");
        let took = world.ends["a"].events.iter().filter_map(|event| match event {
            Event::Settled { took, .. } => Some(*took),
            _ => None,
        });
        worst = worst.max(took.max().unwrap());
    }
    assert!(retries > 100, "{retries}");
    // Request and result may both need a reliable copy, which a loss of 10 % does not affect here.
    assert!(worst <= 2 * (80 * MS + 40 * MS) + 40 * MS, "{worst:?}");
}

/// A silent peer that got a plain request and then hears from its caller: its result must not overtake its
/// Configuration, or its caller is done before it knows the peer, and leaves without a goodbye.
#[test]
fn plain_request_does_not_open_the_fast_lane() {
    let mut world = World::new();
    world.client("phone", lossy(), &["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    world.announce = 3 * SECOND;
    world.assistant("a", lossy().admit("phone"));
    world.fate = Some(Box::new(|to, _, _| match to {
        "a" => Fate::IsOvertaken(50 * MS), // reliable frames are slow and in order
        _ => Fate::Arrives,
    }));
    assert_eq!(world.ask("a", request("t").to("phone")).unwrap(), value(1));
    world.with("a", |session, now| session.close(now));
    world.leave("a");
    world.run(100 * MS);
    assert_eq!(world.session("phone").bound(), None, "the goodbye arrived");
}

/// A refusal of the request to an earlier instance says nothing about the request to the present one.
#[test]
fn request_to_a_second_instance_is_repeated_after_a_refusal_of_the_first() {
    let mut world = fresh(lossy(), lossy());
    let idempotent = || vec![tool("t").options(ToolOptions::default().idempotent())];
    world.with("phone", |session, now| session.offer(now, idempotent())).unwrap().unwrap();
    world.ends.get_mut("phone").unwrap().handler = None;
    world.run(SECOND);
    let key = world.call("a", request("t")).unwrap();
    world.run(200 * MS);
    world.leave("phone");
    world.client("phone", lossy(), &[]);
    world.handle("phone", |_| Some(Ok(value(2))));
    world.run(300 * MS);
    for _ in 0..2 {
        world.ask("a", request("bridge.echo").to("phone")).unwrap(); // opens the fast lane
    }
    lose(&mut world, |name, _, frame| name == "a" && frame.kind() == Kind::TOOL_USE_REQUEST);
    world.with("phone", |session, now| session.offer(now, idempotent())).unwrap().unwrap();
    world.run(45 * MS);
    assert!(world.settled("a", key).is_none());
    let refusal = Message::Error(world.other_instance(key));
    world.send("phone", &["a"], &Meta::new(), &refusal);
    world.run(25 * MS);
    lose(&mut world, |_, _, _| false);
    world.run(SECOND);
    assert_eq!(world.settled("a", key).unwrap().as_ref().unwrap(), &value(2));
}

/// Its Configuration was lost, so the caller does not know that it uses the fast lane.
#[test]
fn progress_of_an_owner_called_as_a_plain_peer_is_reported_once() {
    for lossy_first in [true, false] {
        let mut world = World::new();
        world.assistant("a", lossy());
        let sid = world.sid();
        world.play(&Participant::new("phone", sid).role(Role::Client));
        world.run(SECOND);
        let key = world.call("a", request("t").to("phone").timeout(60 * SECOND)).unwrap();
        world.run(10 * SECOND);
        let id = world.session("a").call_id(key).unwrap().clone();
        let update =
            with!(ToolProgress::new(id, ProgressStatus::InProgress), message = Some("half".to_owned()));
        let bytes = Frame::write(9, "room", &Meta::new(), &Message::ToolProgress(update)).unwrap();
        let peer = world.ends["phone"].who.peer().clone();
        for is_lossy in [lossy_first, !lossy_first] {
            match is_lossy {
                true => world.send_lossy(&peer, "a", &bytes),
                false => world.send_bytes_as(&peer, &["a"], &bytes),
            }
            world.run(100 * MS);
        }
        assert_eq!(progress_heard(&world), ["half"], "{lossy_first}");
    }
}

/// The result is on the fast lane, and could overtake it.
#[test]
fn progress_with_content_alone_is_sent_on_both_lanes() {
    let mut world = pair();
    world.ends.get_mut("phone").unwrap().handler = None;
    world.call("a", request("t")).unwrap();
    world.run(SECOND);
    let before = lanes(&world, "phone", Kind::TOOL_PROGRESS).len();
    let job = world.ends["phone"].jobs[0].key;
    let progress = with!(Progress::started(), content = Some(value(1)));
    world.with("phone", |session, now| session.progress(now, job, progress));
    world.run(SECOND);
    assert_eq!(lanes(&world, "phone", Kind::TOOL_PROGRESS)[before..], [Lane::Lossy, Lane::Reliable]);
}

#[test]
fn claim_on_the_lossy_lane_is_answered_on_that_lane() {
    let mut world = pair();
    let shared = tool("t").options(ToolOptions::default().prefer_client());
    world.with("a", |session, now| session.offer(now, vec![shared])).unwrap().unwrap();
    world.ask("a", request("t")).unwrap();
    world.run(SECOND);
    let names_a_call = |frame: &Frame| match frame.message() {
        Ok(Message::Acknowledgement(it)) => it.acknowledged_message_id.is_some() && it.success.is_some(),
        _ => false,
    };
    let answers: Vec<_> =
        world.ends["a"].log.iter().filter(|(_, _, frame)| names_a_call(frame)).map(|it| it.1).collect();
    assert_eq!(answers, [Lane::Lossy; 2], "of the claim and of the result");
}
