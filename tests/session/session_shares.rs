//! Large frames above the shared limits: each sender has its share, and is told when to retry.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use toolbridge::{
    CallError, Config, Event, Role, Value,
    frame::{Configuration, ErrorMessage, Kind, Message, Meta, ToolUseRequest},
    session::{Request, SendFailure},
    tools::Execution,
    transport::{
        Packet, Participant, Peer, STREAM_CHUNK, STREAM_TOPIC, StreamHeader, StreamPart, StreamParts,
    },
};

use crate::session_world::{MS, SECOND, World, request};

const MIB: usize = 1024 * 1024;

fn text(length: usize) -> Value {
    Value::from(serde_json::json!({"text": "x".repeat(length)}))
}

/// An assistant and these clients, each of which offers a tool of its own name and returns this many bytes.
fn room_of(clients: &[&str], bytes: usize) -> World {
    let mut world = World::new();
    world.assistant("a", Config::default().streams(true));
    for name in clients {
        world.client(name, Config::default().streams(true), &[name]);
        world.handle(name, move |_| Some(Ok(text(bytes))));
    }
    world.run(SECOND);
    world
}

/// The size of each result, or its error, in the order of the calls.
fn outcomes(world: &World, keys: &[toolbridge::session::CallKey]) -> Vec<Result<usize, String>> {
    let of = |key: &toolbridge::session::CallKey| match world.settled("a", *key) {
        Some(Ok(body)) => Ok(body.as_bytes().len()),
        Some(Err(error)) => Err(error.to_string()),
        None => Err("open".to_owned()),
    };
    keys.iter().map(of).collect()
}

#[test]
fn two_results_of_nine_mib_of_one_client_both_arrive() {
    let mut world = room_of(&["phone"], 9 * MIB);
    let keys: Vec<_> = (0..2).map(|_| world.call("a", request("phone")).unwrap()).collect();
    world.run(20 * SECOND);
    assert!(outcomes(&world, &keys).iter().all(|it| it.as_ref().is_ok_and(|size| *size > 9 * MIB)));
}

#[test]
fn results_of_three_clients_above_the_shared_limit_all_arrive() {
    let clients = ["c0", "c1", "c2"];
    let mut world = room_of(&clients, 12 * MIB);
    // The first parts from all senders alternate; later ones arrive normally.
    world.lossy.lose = Some(Box::new(|_, _, frame| frame.kind() == Kind::TOOL_USE_RESULT));
    let (mut keys, mut streams) = (Vec::new(), Vec::new());
    for name in clients {
        keys.push(world.call("a", request(name)).unwrap());
        world.run(100 * MS);
        let (_, result) = world.sent(name, Kind::TOOL_USE_RESULT).pop().unwrap();
        let mut packet = Packet::new(["a".into()], result.to_bytes());
        packet.stream = Some(format!("call.{}.{}", result.stanza_id().unwrap(), world.packet).into());
        let parts: Vec<_> = StreamParts::of(&packet).collect();
        streams.push((world.ends[name].who.peer().clone(), parts));
    }
    world.lossy.lose = None;
    for at in 0..streams[0].1.len() {
        for (from, parts) in &streams {
            world.send_part(from, &["a"], &parts[at]);
        }
    }
    world.run(100 * MS);
    assert_eq!(world.count("a", "stream_refused"), 1, "36 MiB at once exceed the shared limit");
    world.run(SECOND);
    let outcomes = outcomes(&world, &keys);
    assert!(outcomes.iter().all(|it| it.as_ref().is_ok_and(|size| *size > 12 * MIB)), "{outcomes:?}");
    assert!(clients.iter().all(|name| world.session(name).is_drained()));
}

/// Opens a stream of this many bytes and does not end it. Returns the index of its next chunk.
fn open_stream(world: &mut World, from: &Peer, id: &str, bytes: usize) -> u64 {
    let header = StreamHeader::new(id, STREAM_TOPIC, None);
    world.send_part(from, &["a"], &StreamPart::Header(header));
    let chunks = bytes.div_ceil(STREAM_CHUNK) as u64;
    for index in 0..chunks {
        add_to_stream(world, from, id, index, STREAM_CHUNK);
    }
    chunks
}

fn add_to_stream(world: &mut World, from: &Peer, id: &str, index: u64, bytes: usize) {
    let chunk = StreamPart::Chunk { id: id.into(), index, bytes: vec![0; bytes].into() };
    world.send_part(from, &["a"], &chunk);
}

#[test]
fn sec_r4_client_that_holds_streams_open_leaves_half_of_the_limit() {
    let mut world = room_of(&["evil", "phone"], 15 * MIB);
    world.handle("evil", |_| None);
    world.call("a", request("evil").timeout(300 * SECOND)).unwrap();
    world.run(SECOND);
    let evil = world.ends["evil"].who.peer().clone();
    for id in ["1.1.1", "1.1.2", "1.1.3"] {
        open_stream(&mut world, &evil, id, 12 * MIB);
    }
    world.run(SECOND);
    let key = world.call("a", request("phone")).unwrap();
    world.run(SECOND);
    assert!(outcomes(&world, &[key])[0].is_ok());
    assert!(world.count("a", "stream_refused") > 0);
}

#[test]
fn stream_longer_than_60_s_ends() {
    let mut world = room_of(&["evil"], 1);
    world.handle("evil", |_| None);
    world.call("a", request("evil").timeout(300 * SECOND)).unwrap();
    world.run(SECOND);
    let evil = world.ends["evil"].who.peer().clone();
    let mut next = open_stream(&mut world, &evil, "1.1.1", 1);
    for _ in 0..6 {
        world.run(9 * SECOND);
        add_to_stream(&mut world, &evil, "1.1.1", next, 1);
        next += 1;
    }
    world.run(4 * SECOND);
    assert_eq!(world.count("a", "stream_refused"), 0);
    world.run(3 * SECOND);
    assert_eq!(world.count("a", "stream_refused"), 1);
    add_to_stream(&mut world, &evil, "1.1.1", next, 1);
    world.run(SECOND);
    assert_eq!(world.count("a", "stream_unknown"), 1, "the stream is forgotten");
}

#[test]
fn time_of_a_stream_begins_again_after_an_outage() {
    let mut world = room_of(&["evil"], 1);
    world.handle("evil", |_| None);
    world.call("a", request("evil").timeout(300 * SECOND)).unwrap();
    world.run(SECOND);
    let evil = world.ends["evil"].who.peer().clone();
    let next = open_stream(&mut world, &evil, "1.1.1", 1);
    for n in 0..10 {
        if n == 5 {
            world.outage("a", MS);
        }
        world.run(9 * SECOND);
        add_to_stream(&mut world, &evil, "1.1.1", next + n, 1);
    }
    world.run(SECOND);
    assert_eq!((world.count("a", "stream_refused"), world.count("a", "stream_unknown")), (0, 0));
}

#[test]
fn sec_r4_storm_of_streams_gets_eight_replies_a_second() {
    let mut world = room_of(&["evil"], 1);
    let evil = world.ends["evil"].who.peer().clone();
    let before = world.sent("a", Kind::ERROR).len();
    for n in 0..1_000 {
        let header = StreamHeader::new(format!("1.1.{n}"), STREAM_TOPIC, None);
        world.send_part(&evil, &["a"], &StreamPart::Header(header));
    }
    world.run(SECOND);
    assert_eq!(world.sent("a", Kind::ERROR).len() - before, 8);
    assert_eq!(world.count("a", "stream_refused"), 996);
}

/// A toolbridge client, and a played assistant that accepts streams.
fn with_played_assistant() -> World {
    let mut world = World::new();
    world.client("phone", Config::default().streams(true), &["t"]);
    world.handle("phone", |_| Some(Ok(text(40_000))));
    let sid = world.sid();
    world.play(&Participant::new("a", sid).agent(true));
    world.run(200 * MS);
    let meta = Meta::new()
        .with_text("bridge.instance", "00112233445566778899aabbccddeeff")
        .with_bool("bridge.heard", true);
    let features = ["tool_use", "tool_register", "tool_ack", "frame_stream"].map(String::from).to_vec();
    let configuration = with!(Configuration::default(), features = Some(features));
    world.send("a", &["phone"], &meta, &Message::Configuration(configuration));
    let request = ToolUseRequest::new("call".parse().unwrap(), "t", Value::empty(), Ok(Execution::Client));
    world.send("a", &["phone"], &Meta::new(), &Message::ToolUseRequest(request));
    world.run(100 * MS);
    world
}

/// The ids of the streams that were sent to a played participant.
fn streams_to(world: &World, name: &str) -> Vec<String> {
    let header = |part: &StreamPart| match part {
        StreamPart::Header(header) => Some(header.id.to_string()),
        _ => None,
    };
    world.ends[name].parts.iter().filter_map(|(_, part)| header(part)).collect()
}

/// The error that there is no room for a stream.
fn no_room(stream: &str) -> Message {
    Message::Error(with!(
        ErrorMessage::default(),
        id = "e".to_owned(),
        conversation_id = "room".to_owned(),
        code = 504,
        message = "no room".to_owned(),
        severity = 2,
        recoverable = true,
        originating_id = Some(stream.to_owned())
    ))
}

#[test]
fn sec_r4_result_for_a_caller_without_room_is_sent_eight_times() {
    let mut world = with_played_assistant();
    for turns in 1..=8 {
        let streams = streams_to(&world, "a");
        assert_eq!(streams.len(), turns, "{streams:?}");
        for _ in 0..20 {
            world.send("a", &["phone"], &Meta::new(), &no_room(streams.last().unwrap()));
        }
        world.run(9 * SECOND);
    }
    world.run(60 * SECOND);
    assert_eq!(streams_to(&world, "a").len(), 8);
    let results = world.received("a", Kind::TOOL_USE_RESULT);
    let [Message::ToolUseResult(result)] = results.as_slice() else { panic!("{results:?}") };
    assert_eq!(result.error_code.as_ref().unwrap().as_str(), "result_too_large");
}

#[test]
fn stream_refused_by_another_participant_is_not_sent_again() {
    let mut world = with_played_assistant();
    let sid = world.sid();
    world.play(&Participant::new("other", sid).agent(true));
    world.run(SECOND);
    let stream = streams_to(&world, "a").pop().unwrap();
    world.send("other", &["phone"], &Meta::new(), &no_room(&stream));
    world.run(9 * SECOND);
    assert_eq!(streams_to(&world, "a").len(), 1);
}

#[test]
fn refused_streams_wait_longer_each_time() {
    let mut world = with_played_assistant();
    let mut waits = Vec::new();
    for turns in 1..8 {
        let (stream, sent_at) = (streams_to(&world, "a").pop().unwrap(), world.now);
        world.send("a", &["phone"], &Meta::new(), &no_room(&stream));
        while streams_to(&world, "a").len() == turns {
            assert!(world.step() && world.now - sent_at < 60 * SECOND, "the stream is not sent again");
        }
        waits.push((world.now - sent_at).as_millis() / 100);
    }
    assert_eq!(waits, [2, 5, 10, 20, 40, 80, 80]); // and two network delays
}

/// An assistant, and a played client that accepts streams and has registered.
fn with_played_client() -> World {
    let mut world = World::new();
    world.assistant("a", Config::default().streams(true));
    let sid = world.sid();
    world.play(&Participant::new("phone", sid).role(Role::Client));
    world.run(200 * MS);
    let meta = Meta::new()
        .with_text("bridge.instance", "00112233445566778899aabbccddeeff")
        .with_bool("bridge.heard", true);
    let features = ["tool_use", "tool_register", "tool_ack", "frame_stream", "view_update"];
    let features = features.map(String::from).to_vec();
    let configuration = with!(Configuration::default(), features = Some(features));
    world.send("phone", &["a"], &meta, &Message::Configuration(configuration));
    let tool = with!(toolbridge::frame::RegisteredTool::default(), name = "t".to_owned());
    let offered =
        Message::ToolsRegister(with!(toolbridge::frame::ToolsRegister::default(), tools = vec![tool]));
    world.send("phone", &["a"], &Meta::new(), &offered);
    world.run(100 * MS);
    world
}

/// What is refused for the first time does not take along what has been refused often.
#[test]
fn each_refused_stream_waits_for_its_own_time() {
    let mut world = with_played_client();
    let show = |world: &mut World, view: &str| {
        let content = Value::from(serde_json::json!({"text": "x".repeat(40_000)}));
        world.with("a", |session, now| session.show_view(now, view, content, None)).unwrap().unwrap();
        world.run(100 * MS);
        streams_to(world, "phone").pop().unwrap()
    };
    let refuse = |world: &mut World, stream: &str, wait| {
        world.send("phone", &["a"], &Meta::new(), &no_room(stream));
        world.run(wait);
        streams_to(world, "phone").pop().unwrap()
    };
    let mut often = show(&mut world, "often");
    for _ in 0..4 {
        often = refuse(&mut world, &often, 3 * SECOND);
    }
    refuse(&mut world, &often, 500 * MS); // for the fifth time, so it waits for 4 s
    let first = show(&mut world, "first");
    let before = streams_to(&world, "phone").len();
    refuse(&mut world, &first, 500 * MS);
    assert_eq!(streams_to(&world, "phone").len(), before + 1, "the first refusal's");
    world.run(2 * SECOND);
    assert_eq!(streams_to(&world, "phone").len(), before + 1, "the fifth refusal's waits");
    world.run(2 * SECOND);
    assert_eq!(streams_to(&world, "phone").len(), before + 2);
}

/// Refuses each of eight streams to the played client, and waits 9 s each time.
fn refuse_eight(world: &mut World) {
    for turns in 1..=8 {
        let streams = streams_to(world, "phone");
        assert_eq!(streams.len(), turns);
        for _ in 0..2 {
            // The second says nothing new.
            world.send("phone", &["a"], &Meta::new(), &no_room(streams.last().unwrap()));
        }
        for _ in 0..9 {
            world.run(SECOND);
            world.send("phone", &["a"], &Meta::new(), &Message::Heartbeat); // it is alive
        }
    }
}

#[test]
fn view_refused_for_lack_of_room_is_sent_eight_times() {
    let mut world = with_played_client();
    let show = |world: &mut World, view| {
        world.with("a", |session, now| session.show_view(now, view, text(40_000), None)).unwrap().unwrap();
        world.run(SECOND);
    };
    show(&mut world, "page");
    refuse_eight(&mut world);
    world.run(20 * SECOND);
    assert_eq!(streams_to(&world, "phone").len(), 8);
    show(&mut world, "page");
    assert_eq!(streams_to(&world, "phone").len(), 9, "the next state begins with the first stream again");
}

#[test]
fn request_refused_for_lack_of_room_is_sent_again() {
    let mut world = with_played_client();
    let request = Request::new("t", text(40_000)).timeout(120 * SECOND);
    let key = world.call("a", request).unwrap();
    world.run(100 * MS);
    refuse_eight(&mut world);
    let streams = streams_to(&world, "phone");
    assert_eq!(streams.len(), 8, "the request is abandoned after eight streams");
    let stanzas: BTreeSet<_> = streams.iter().map(|id| id.split('.').nth(1).unwrap()).collect();
    assert_eq!(stanzas.len(), 1, "each stream carries the same request");
    // There is no room for another one, and then for what waits.
    world.call("a", Request::new("t", text(40_000))).unwrap();
    world.run(100 * MS);
    let another = streams_to(&world, "phone").pop().unwrap();
    world.send("phone", &["a"], &Meta::new(), &no_room(&another));
    world.run(SECOND);
    assert_eq!(streams_to(&world, "phone").len(), 10, "the abandoned one is not sent with it");
    world.run(60 * SECOND);
    assert!(matches!(world.settled("a", key), Some(Err(CallError::Timeout { .. } | CallError::Lost { .. }))));
    let reported = |event: &&Event| matches!(event, Event::PeerError { .. });
    assert_eq!(world.ends["a"].events.iter().filter(reported).count(), 0);
}

#[test]
fn request_that_was_sent_again_after_a_refusal_waits_no_more() {
    let mut world = with_played_client();
    world.call("a", Request::new("t", text(40_000)).timeout(120 * SECOND)).unwrap();
    world.run(100 * MS);
    let stream = streams_to(&world, "phone").pop().unwrap();
    world.send("phone", &["a"], &Meta::new(), &no_room(&stream));
    world.run(SECOND);
    assert_eq!(streams_to(&world, "phone").len(), 2);
    // There is no room for another frame to the client, and then for all that waits for it.
    let another = world.call("a", request("t")).unwrap();
    world.run(100 * MS);
    world.ends.get_mut("a").unwrap().here = false;
    world.unsent = SendFailure::QueueFull;
    world.with("a", |session, now| session.cancel(now, another));
    world.ends.get_mut("a").unwrap().here = true;
    world.run(2 * SECOND);
    assert_eq!(world.received("phone", Kind::CONTROL_STOP).len(), 1);
    assert_eq!(streams_to(&world, "phone").len(), 2);
}

#[test]
fn withdrawn_request_is_not_sent_any_further() {
    let mut world = World::new();
    let shared =
        crate::session_world::tool("lookup").options(toolbridge::ToolOptions::default().prefer_client());
    world.assistant("a", Config::default().streams(true));
    world.with("a", |session, now| session.offer(now, vec![shared])).unwrap().unwrap();
    world.handle("a", |_| Some(Ok(text(1))));
    world.client("phone", Config::default().streams(true), &["lookup"]);
    world.run(SECOND);
    let silent = Arc::new(AtomicBool::new(true));
    let is_silent = Arc::clone(&silent);
    world.lossy.lose = Some(Box::new(move |from, _, _| from == "phone" && is_silent.load(Ordering::Relaxed)));
    world.delay = 10 * SECOND; // a slow link
    let key = world.call("a", Request::new("lookup", text(MIB))).unwrap();
    let packet = world.packet;
    assert!(world.session("a").is_wanted(packet));
    world.run(3 * SECOND);
    assert!(world.settled("a", key).unwrap().is_ok(), "the unclaimed call was run by the assistant");
    assert!(!world.session("a").is_wanted(packet));
}

#[test]
fn stream_whose_announced_length_exceeds_the_share_is_refused_at_its_header() {
    let mut config = Config::default().streams(true);
    config.caps.frames.stream_bytes = 64 * 1024;
    let mut world = World::new();
    world.assistant("a", config);
    world.client("phone", Config::default().streams(true), &["t"]);
    world.run(SECOND);
    let phone = world.ends["phone"].who.peer().clone();
    for (id, refused) in [("1.1.1", 0), ("1.1.2", 1)] {
        let header = StreamHeader::new(id, STREAM_TOPIC, 20 * 1024);
        world.send_part(&phone, &["a"], &StreamPart::Header(header));
        world.run(100 * MS);
        assert_eq!(world.count("a", "stream_refused"), refused, "{id}");
    }
}
