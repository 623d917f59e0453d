//! Frames larger than a packet: who may send them, how they are reassembled, and when they are abandoned.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use toolbridge::{
    CallError, Config, ErrorCode, Event, Role, Tool, Value,
    frame::{
        Configuration, ControlStop, ErrorMessage, Frame, Kind, Message, Meta, RegisteredTool, ToolUseResult,
        ToolsRegister,
    },
    session::{Counter, Destination, Output, Request, SendFailure, Session},
    tools::RegisterError,
    transport::{
        Lane, Packet, Participant, Peer, STREAM_CHUNK, STREAM_SHA256, STREAM_TOPIC, StreamHeader, StreamPart,
        StreamParts, TransportEvent,
    },
};

use crate::session_world::{MS, Noted, SECOND, World, request, value};

const MIB: usize = 1024 * 1024;

/// An assistant and a phone over a transport that has streams, after their handshake.
fn pair(tools: &[&str]) -> World {
    pair_with(tools, |_| {})
}

fn pair_with(tools: &[&str], change: impl Fn(&mut Config)) -> World {
    let mut world = World::new();
    let config = || {
        let mut config = Config::default().streams(true);
        change(&mut config);
        config
    };
    world.assistant("a", config());
    world.client("phone", config(), tools);
    world.run(200 * MS);
    world
}

/// A map whose only value is a text of this length.
fn text(length: usize) -> Value {
    Value::from(serde_json::json!({"text": "x".repeat(length)}))
}

/// A result of this many bytes for the last request, as its owner would write it.
fn result_of(world: &World, size: usize) -> Bytes {
    let (_, frame) = world.sent("a", Kind::TOOL_USE_REQUEST).pop().unwrap();
    let Message::ToolUseRequest(request) = frame.message().unwrap() else { panic!() };
    let result = with!(ToolUseResult::new(request.id, true), result = Some(text(size)));
    Frame::write(77, "room", &Meta::default(), &Message::ToolUseResult(result)).unwrap()
}

fn parts(id: &str, payload: &Bytes) -> Vec<StreamPart> {
    let mut packet = Packet::new(["a".into()], payload.clone());
    packet.stream = Some(id.into());
    StreamParts::of(&packet).collect()
}

fn header(id: &str, length: u64) -> StreamPart {
    StreamPart::Header(StreamHeader::new(id, STREAM_TOPIC, length))
}

fn chunk(id: &str, index: u64, bytes: &[u8]) -> StreamPart {
    StreamPart::Chunk { id: id.into(), index, bytes: Bytes::copy_from_slice(bytes) }
}

fn trailer(id: &str) -> StreamPart {
    StreamPart::Trailer { id: id.into(), reason: String::new() }
}

/// Delivers parts to the assistant.
fn send_parts(world: &mut World, from: &Peer, parts: &[StreamPart]) {
    for part in parts {
        world.send_part(from, &["a"], part);
    }
    world.run(50 * MS);
}

fn peer(world: &World, name: &str) -> Peer {
    world.ends[name].who.peer().clone()
}

#[test]
fn protocol_a23_result_and_request_above_15_kib_arrive_whole() {
    let mut world = pair(&["t"]);
    world.handle("phone", |job| Some(Ok(job.arguments.clone())));
    for size in [STREAM_CHUNK, MIB, 15 * MIB] {
        let answer = world.ask("a", Request::new("t", text(size))).unwrap();
        assert!(answer == text(size), "{size}: {} bytes arrived", answer.as_bytes().len());
    }
    assert_eq!(world.count("a", "stream_broken") + world.count("phone", "stream_broken"), 0);
}

#[test]
fn protocol_a23_frame_above_the_maximum_fails_with_size_and_limit() {
    let mut world = pair(&["t"]);
    let limit = 16 * MIB;
    // A frame with a text of n bytes: its overhead is the same for all large frames.
    world.handle("phone", |job| Some(Ok(job.arguments.clone())));
    let CallError::TooLarge { size, .. } = world.ask("a", Request::new("t", text(limit))).unwrap_err() else {
        panic!("a frame above the maximum was sent")
    };
    let fits = limit - (size - limit);
    let error = world.ask("a", Request::new("t", text(fits + 1))).unwrap_err();
    assert!(matches!(error, CallError::TooLarge { size, limit: most } if (size, most) == (limit + 1, limit)));
    assert!(world.ends["phone"].jobs.is_empty(), "a request that is too large fails before it is sent");
    assert!(world.ask("a", Request::new("t", text(fits))).is_ok(), "exactly the maximum passes");

    world.handle("phone", move |_| Some(Ok(text(limit))));
    let error = world.ask("a", request("t")).unwrap_err();
    let CallError::Tool(error) = error else { panic!("{error:?}") };
    assert_eq!(error.code(), ErrorCode::RESULT_TOO_LARGE);
    assert!(error.message().contains(&limit.to_string()), "{}", error.message());
}

#[test]
fn large_frames_go_only_to_peers_with_streams() {
    let mut world = World::new();
    world.assistant("a", Config::default().streams(true));
    world.client("phone", Config::default(), &["t"]); // its transport has no streams
    world.run(200 * MS);
    let error = world.ask("a", Request::new("t", text(STREAM_CHUNK))).unwrap_err();
    assert!(matches!(error, CallError::TooLarge { limit: 15_000, .. }), "{error:?}");

    let mut world = World::new();
    world.assistant("a", Config::default());
    world.client("phone", Config::default().streams(true), &["t"]);
    world.run(200 * MS);
    world.handle("phone", |_| Some(Ok(text(STREAM_CHUNK))));
    let CallError::Tool(error) = world.ask("a", request("t")).unwrap_err() else { panic!() };
    assert_eq!(error.code(), ErrorCode::RESULT_TOO_LARGE);
    assert!(error.message().contains("15000"), "{}", error.message());
}

#[test]
fn stream_feature_is_listed_only_with_a_transport_with_streams() {
    for (has, lists) in [(true, true), (false, false)] {
        let mut world = World::new();
        world.assistant("a", Config::default().streams(has));
        world.client("phone", Config::default(), &[]);
        world.run(200 * MS);
        let (_, frame) = world.sent("a", Kind::CONFIGURATION).remove(0);
        let Message::Configuration(it) = frame.message().unwrap() else { panic!() };
        assert_eq!(it.features.unwrap().iter().any(|it| it == "frame_stream"), lists);
    }
}

#[test]
fn observer_gets_its_copy_as_a_stream() {
    let mut world = pair(&["t"]);
    let observer = Participant::new("o", world.sid()).role(Role::Observer);
    world.play(&observer);
    world.run(200 * MS);
    world.handle("phone", |job| Some(Ok(job.arguments.clone())));
    world.ask("a", Request::new("t", text(MIB))).unwrap();
    world.run(SECOND);
    for sender in ["a", "phone"] {
        let bytes: usize = world.ends["o"]
            .parts
            .iter()
            .filter(|(from, _)| from == sender)
            .map(|(_, part)| part.size())
            .sum();
        assert!(bytes > MIB, "of {sender}: {bytes}");
    }
}

#[test]
fn large_registration_is_streamed_and_a_too_large_one_is_an_error() {
    let tools = |count: usize| -> Vec<Tool> {
        (0..count).map(|n| Tool::new(format!("t{n}").parse().unwrap(), "d".repeat(1024))).collect()
    };
    let mut world = pair(&[]);
    world.with("phone", |session, now| session.offer(now, tools(100))).unwrap().unwrap();
    world.run(SECOND);
    assert_eq!(world.session("a").tools().len(), 100);

    let config = |config: &mut Config| config.caps.tools.description_bytes = 4096;
    let mut world = pair_with(&[], config);
    let large = (0..100).map(|n| Tool::new(format!("t{n}").parse().unwrap(), "d".repeat(4096))).collect();
    let error = world.with("phone", |session, now| session.offer(now, large)).unwrap().unwrap_err();
    assert!(matches!(error, RegisterError::RegistrationTooLarge { limit: 262_144, .. }), "{error}");

    // An assistant without streams gets no such registration, and this is reported.
    let mut world = World::new();
    world.assistant("a", Config::default());
    world.client("phone", Config::default().streams(true), &[]);
    world.run(200 * MS);
    world.with("phone", |session, now| session.offer(now, tools(100))).unwrap().unwrap();
    let reported = world.ends["phone"].events.iter().any(
        |event| matches!(event, Event::Registered { tools: 0, refused: Some(why), .. } if why.contains("15000")),
    );
    assert!(reported, "{:?}", world.ends["phone"].events);
}

/// It may send a result of 16 MiB.
#[test]
fn large_registration_of_an_owner_with_an_open_call_is_malformed() {
    for size in [200, 300] {
        let mut world = pair(&["t"]);
        world.call("a", request("t")).unwrap();
        world.run(100 * MS);
        let tools = (0..size)
            .map(|n| RegisteredTool::from(&Tool::new(format!("t{n}").parse().unwrap(), "d".repeat(1024))));
        let offered = Message::ToolsRegister(with!(ToolsRegister::default(), tools = tools.collect()));
        let payload = Frame::write(77, "room", &Meta::default(), &offered).unwrap();
        let phone = peer(&world, "phone");
        send_parts(&mut world, &phone, &parts("s", &payload));
        assert_eq!(world.count("a", "malformed"), u64::from(size == 300));
        assert_eq!(world.session("a").tools().len() > 1, size == 200);
    }
}

#[test]
fn sec_i8_stream_is_continued_only_by_its_sender() {
    let mut world = pair(&["t"]);
    world.stranger("b");
    let mallory = Participant::new("mallory", world.sid()).role(Role::Client);
    world.play(&mallory);
    world.run(200 * MS);
    let key = world.call("a", request("t")).unwrap();
    world.run(50 * MS);
    let result = result_of(&world, 3 * STREAM_CHUNK);
    let phone = peer(&world, "phone");
    // A stranger, an admitted client, and the phone's identity under another sid: as the stream with the same id
    // starts, between its chunks and before its end.
    let others = [peer(&world, "b"), peer(&world, "mallory"), Peer::new("phone", "PA_other")];
    let forged = [header("s", 10), chunk("s", 0, b"evil"), chunk("s", 1, b"evil"), trailer("s")];
    for part in parts("s", &result) {
        send_parts(&mut world, &phone, &[part]);
        for other in &others {
            for part in &forged {
                send_parts(&mut world, other, std::slice::from_ref(part));
            }
        }
    }
    let answer = world.settled("a", key).unwrap().as_ref().unwrap();
    assert_eq!(answer.to_json()["text"].as_str().unwrap().len(), 3 * STREAM_CHUNK);
    assert!(world.count("a", "stream_refused") > 0 && world.count("a", "stream_unknown") > 0);
}

/// Replaces the second chunk of the next streams of this sender, as many as these. SDKs that join chunks by the id of the
/// stream let other participants do that.
fn change_streams(world: &mut World, of: &'static str, mut streams: usize) {
    world.change_part = Some(Box::new(move |from, part| {
        if let StreamPart::Chunk { index: 1, bytes, .. } = part
            && from == of
            && streams > 0
        {
            streams -= 1;
            *bytes = vec![b'y'; bytes.len()].into();
        }
    }));
}

#[test]
fn sec_i8_changed_stream_is_not_read_and_its_frame_is_sent_again() {
    for (of, at) in [("a", "phone"), ("phone", "a")] {
        let mut world = pair(&["t"]);
        world.handle("phone", |job| Some(Ok(job.arguments.clone())));
        change_streams(&mut world, of, 2);
        let began = world.now;
        let answer = world.ask("a", Request::new("t", text(4 * STREAM_CHUNK))).unwrap();
        assert!(answer == text(4 * STREAM_CHUNK));
        let took = world.now - began;
        assert!(took >= 750 * MS && took < SECOND, "after 250 and 500 ms: {took:?}");
        assert_eq!(world.count(at, "stream_changed"), 2);
        assert_eq!(world.executed.len(), 1);
        for kind in ["malformed", "stream_broken", "stream_refused"] {
            assert_eq!(world.count(at, kind), 0, "{kind}");
        }
        let is_it = |event: &Event| matches!(event, Event::Violation { by: Some(by), what: Counter::StreamChanged, .. } if by == of);
        assert!(world.ends[at].events.iter().any(is_it));
    }
}

#[test]
fn sec_i8_frame_whose_streams_are_always_changed_ends_its_call() {
    let mut world = pair(&["t"]);
    world.handle("phone", |_| Some(Ok(text(4 * STREAM_CHUNK))));
    change_streams(&mut world, "phone", usize::MAX);
    let CallError::Tool(error) = world.ask("a", request("t").timeout(60 * SECOND)).unwrap_err() else {
        panic!()
    };
    assert_eq!(error.code(), ErrorCode::RESULT_TOO_LARGE);
    assert_eq!(world.count("a", "stream_changed"), 8);

    let mut world = pair(&["t"]);
    change_streams(&mut world, "a", usize::MAX);
    let long = Request::new("t", text(4 * STREAM_CHUNK)).timeout(60 * SECOND);
    let error = world.ask("a", long).unwrap_err();
    assert!(matches!(error, CallError::Timeout { .. }), "{error:?}");
    assert!(world.executed.is_empty());
    assert_eq!(world.count("phone", "stream_changed"), 8);
}

#[test]
fn stream_is_read_by_the_hash_in_its_header_or_without_one() {
    // Whether the result settles the call, and how often its stream is counted and refused.
    let of = |change: &dyn Fn(&mut BTreeMap<String, String>)| {
        let mut world = pair(&["t"]);
        let phone = peer(&world, "phone");
        let key = world.call("a", request("t")).unwrap();
        world.run(50 * MS);
        let mut stream = parts("s.1.1", &result_of(&world, 2 * STREAM_CHUNK));
        let StreamPart::Header(header) = &mut stream[0] else { panic!() };
        assert_eq!(header.attributes[STREAM_SHA256].len(), 64);
        change(&mut header.attributes);
        send_parts(&mut world, &phone, &stream);
        let errors = world.sent("a", Kind::ERROR).into_iter().map(|(_, frame)| frame.message().unwrap());
        let is_refusal = |it: &Message| matches!(it, Message::Error(it) if it.code == 504 && it.originating_id.as_deref() == Some("s.1.1"));
        (
            world.settled("a", key).is_some(),
            world.count("a", "stream_changed"),
            errors.filter(is_refusal).count(),
        )
    };
    assert_eq!(of(&|_| {}), (true, 0, 0));
    assert_eq!(of(&BTreeMap::clear), (true, 0, 0));
    for wrong in ["0".repeat(64), "g".repeat(64), "0".to_owned(), String::new()] {
        let change = |attributes: &mut BTreeMap<_, _>| {
            attributes.insert(STREAM_SHA256.to_owned(), wrong.clone());
        };
        assert_eq!(of(&change), (false, 1, 1), "{wrong}");
    }
}

#[test]
fn sec_r3_hundred_thousand_headers_open_no_stream() {
    let mut world = pair(&["t"]);
    world.stranger("b");
    world.run(200 * MS);
    let (stranger, phone) = (peer(&world, "b"), peer(&world, "phone"));
    for (from, taken) in [(&stranger, 0), (&phone, 4)] {
        let before = world.count("a", "stream_refused");
        for n in 0..100_000 {
            let part = header(&format!("s{n}"), 1);
            world.with("a", |session, now| {
                session.handle_event(now, TransportEvent::Stream { from: from.clone(), part })
            });
        }
        assert_eq!(world.count("a", "stream_refused") - before, 100_000 - taken);
    }
    // The phone's open stream times out when nothing follows.
    world.run(11 * SECOND);
    assert_eq!(world.count("a", "stream_broken"), 4);
    let violations = world.ends["a"].events.iter().filter(|it| matches!(it, Event::Violation { .. })).count();
    assert!(violations < 10, "the refusal was sent {violations} times");
    world.handle("phone", |_| Some(Ok(value(1))));
    assert!(world.ask("a", request("t")).is_ok());
}

#[test]
fn sec_r3_announced_length_neither_allocates_memory_nor_raises_the_limit() {
    let mut world = pair(&["t"]);
    let phone = peer(&world, "phone");
    // A sender that owes no result may send 256 KiB.
    send_parts(&mut world, &phone, &[header("long", 262_145), chunk("long", 0, b"x")]);
    assert_eq!((world.count("a", "stream_refused"), world.count("a", "stream_unknown")), (1, 1));
    world.call("a", request("t")).unwrap();
    send_parts(&mut world, &phone, &[header("longer", 17 * MIB as u64)]);
    assert_eq!(world.count("a", "stream_refused"), 2);
    // More than announced, less than announced, a gap, a repeated header.
    send_parts(&mut world, &phone, &[header("more", 3), chunk("more", 0, b"four")]);
    send_parts(&mut world, &phone, &[header("less", 3), chunk("less", 0, b"x"), trailer("less")]);
    send_parts(&mut world, &phone, &[header("gap", 3), chunk("gap", 1, b"x")]);
    send_parts(&mut world, &phone, &[header("twice", 3), header("twice", 3)]);
    assert_eq!(world.count("a", "stream_broken"), 4);
    // Without a length the sender's limit applies.
    let open = StreamPart::Header(StreamHeader::new("open", STREAM_TOPIC, None));
    send_parts(&mut world, &phone, &[open, chunk("open", 0, &[0xc1]), trailer("open")]);
    assert_eq!(world.count("a", "malformed"), 1);
}

#[test]
fn sec_r3_all_streams_share_a_limit() {
    let mut world = pair_with(&["t"], |config| config.caps.frames.stream_bytes = 200_000); // half for one sender
    let phone = peer(&world, "phone");
    world.call("a", request("t")).unwrap();
    world.run(50 * MS);
    let block = vec![0; 40_000];
    send_parts(&mut world, &phone, &[header("1", 80_000), chunk("1", 0, &block), chunk("1", 1, &block)]);
    send_parts(&mut world, &phone, &[header("2", 80_000), chunk("2", 0, &block)]);
    assert_eq!(world.count("a", "stream_refused"), 1);
    // The room freed by one stream is available to the next.
    let abandoned = StreamPart::Trailer { id: "1".into(), reason: "abandoned".into() };
    send_parts(
        &mut world,
        &phone,
        &[abandoned, header("3", 80_000), chunk("3", 0, &block), chunk("3", 1, &block)],
    );
    assert_eq!((world.count("a", "stream_refused"), world.count("a", "stream_abandoned")), (1, 1));
}

#[test]
fn stream_that_has_ended_leaves_the_share_of_its_sender() {
    let mut world = pair_with(&["t"], |config| config.caps.frames.stream_bytes = 200_000); // half for one sender
    let phone = peer(&world, "phone");
    world.call("a", request("t")).unwrap();
    world.run(50 * MS);
    send_parts(&mut world, &phone, &[header("open", 10_000)]);
    for id in ["1", "2", "3"] {
        let abandoned = StreamPart::Trailer { id: id.into(), reason: "abandoned".into() };
        send_parts(&mut world, &phone, &[header(id, 80_000), chunk(id, 0, b"x"), abandoned]);
    }
    assert_eq!((world.count("a", "stream_refused"), world.count("a", "stream_abandoned")), (0, 3));
}

#[test]
fn stream_on_another_topic_is_ignored() {
    let mut world = pair(&["t"]);
    let phone = peer(&world, "phone");
    let file = StreamPart::Header(StreamHeader::new("f", "files", 5_000_000_u64));
    send_parts(&mut world, &phone, &[file, chunk("f", 0, b"x"), trailer("f")]);
    assert_eq!(world.count("a", "stream_refused") + world.count("a", "stream_broken"), 0);
    assert_eq!(world.count("a", "stream_unknown"), 2);
    assert!(!world.ends["a"].events.iter().any(|it| matches!(it, Event::Violation { .. })));
}

#[test]
fn stream_ends_with_its_senders_join() {
    let mut world = pair(&["t"]);
    world.call("a", request("t")).unwrap();
    world.run(50 * MS);
    let result = result_of(&world, 3 * STREAM_CHUNK);
    let (phone, stream) = (peer(&world, "phone"), parts("s", &result));
    let (begin, end) = stream.split_at(2);
    send_parts(&mut world, &phone, begin);
    world.leave("phone");
    world.run(100 * MS);
    send_parts(&mut world, &phone, end);
    assert_eq!(world.count("a", "stream_unknown"), end.len() as u64);
}

#[test]
fn slow_sender_of_a_large_frame_is_alive() {
    let mut world = pair(&["t"]);
    let key = world.call("a", request("t").timeout(300 * SECOND)).unwrap();
    world.run(50 * MS);
    let result = result_of(&world, 20 * STREAM_CHUNK);
    let phone = peer(&world, "phone");
    // Nothing else arrives from it: its pongs wait behind the stream, as with a peer without priorities.
    world.ends.get_mut("phone").unwrap().here = false;
    for part in parts("s", &result) {
        send_parts(&mut world, &phone, &[part]);
        world.run(2_500 * MS);
    }
    assert!(matches!(world.settled("a", key), Some(Ok(_))), "{:?}", world.settled("a", key));
}

/// All outputs of a session that is driven alone.
fn outputs(session: &mut Session) -> Vec<Output> {
    std::iter::from_fn(|| session.poll_output()).collect()
}

#[test]
fn stop_overtakes_and_its_request_is_abandoned() {
    let mut world = pair(&["t"]);
    let now = world.now;
    let session = world.ends.get_mut("a").unwrap().session.as_mut().unwrap();
    let key = session.call(now, Request::new("t", text(MIB))).unwrap();
    let request = outputs(session)
        .into_iter()
        .find_map(|it| match it {
            Output::Transmit(packet) => Some(packet),
            _ => None,
        })
        .unwrap();
    assert!(session.is_wanted(request.id) && !request.overtakes);
    let id = session.call_id(key).unwrap().to_string();
    assert!(request.stream_id().starts_with(&id), "{}", request.stream_id());
    session.cancel(now, key);
    assert!(!session.is_wanted(request.id));
    let stop = outputs(session)
        .into_iter()
        .find_map(|it| match it {
            Output::Transmit(packet) => Some(packet),
            _ => None,
        })
        .unwrap();
    assert_eq!(Frame::decode(stop.payload.clone()).unwrap().kind(), Kind::CONTROL_STOP);
    assert!(stop.overtakes && session.is_wanted(stop.id));
    session.close(now);
    let goodbye = outputs(session).into_iter().find_map(|it| match it {
        Output::Transmit(packet) => Some(packet),
        _ => None,
    });
    assert!(!goodbye.unwrap().overtakes, "a goodbye does not overtake earlier frames");
}

/// It would forget a stop that arrives before its request, and run the tool.
#[test]
fn stop_overtakes_nothing_to_a_client_that_remembers_no_stops() {
    for lists in [true, false] {
        let mut world = World::new();
        world.assistant("a", Config::default().streams(true));
        let sid = world.sid();
        world.play(&Participant::new("phone", sid).role(Role::Client));
        world.run(200 * MS);
        let features = ["tool_use", "tool_register"].into_iter().chain(lists.then_some("tool_cancel"));
        let features = Some(features.map(str::to_owned).collect());
        let meta = Meta::new().with_bool("bridge.heard", true).with_text("bridge.instance", "one");
        let configuration = Message::Configuration(with!(Configuration::default(), features = features));
        world.send("phone", &["a"], &meta, &configuration);
        let tool = with!(RegisteredTool::default(), name = "t".to_owned());
        let offered = Message::ToolsRegister(with!(ToolsRegister::default(), tools = vec![tool]));
        world.send("phone", &["a"], &Meta::new(), &offered);
        world.run(100 * MS);
        let key = world.call("a", request("t")).unwrap();
        world.run(50 * MS);
        world.notes = Some(Vec::new());
        world.with("a", |session, now| session.cancel(now, key));
        let sent = world.notes.iter().flatten().filter_map(|(_, _, noted)| match noted {
            Noted::Sent(packet) => Some(packet),
            _ => None,
        });
        let kind = |packet: &Packet| Frame::decode(packet.payload.clone()).unwrap().kind();
        let stops = sent.filter(|packet| kind(packet) == Kind::CONTROL_STOP);
        assert_eq!(stops.map(|packet| packet.overtakes).collect::<Vec<_>>(), [lists]);
    }
}

#[test]
fn result_of_a_stopped_call_is_withdrawn() {
    let mut world = pair(&["t"]);
    world.call("a", request("t")).unwrap();
    world.run(50 * MS);
    let job = world.ends.get_mut("phone").unwrap().jobs.remove(0);
    let now = world.now;
    let assistant = peer(&world, "a");
    let session = world.ends.get_mut("phone").unwrap().session.as_mut().unwrap();
    session.settle(now, job.key, Ok(text(MIB)));
    let answer = outputs(session)
        .into_iter()
        .find_map(|it| match it {
            Output::Transmit(packet) if packet.payload.len() > MIB => Some(packet),
            _ => None,
        })
        .unwrap();
    let stop =
        Message::ControlStop(with!(ControlStop::default(), target_id = Some(job.call.as_str().to_owned())));
    let stop = Frame::write(-900, "room", &Meta::default(), &stop).unwrap();
    session.handle_event(now, TransportEvent::packet(assistant.clone(), Lane::Reliable, stop));
    assert!(!session.is_wanted(answer.id));
    assert!(session.is_drained(), "the abandoned frame does not delay the drain");
}

#[test]
fn large_frame_to_a_peer_that_left_is_abandoned() {
    let mut world = pair(&["t"]);
    let phone = peer(&world, "phone");
    let now = world.now;
    let session = world.ends.get_mut("a").unwrap().session.as_mut().unwrap();
    session.call(now, Request::new("t", text(MIB))).unwrap();
    let sent: Vec<_> = outputs(session)
        .into_iter()
        .filter_map(|it| match it {
            Output::Transmit(packet) => Some(packet.id),
            _ => None,
        })
        .collect();
    session.handle_event(now, TransportEvent::Left(phone.clone()));
    assert!(sent.iter().all(|id| !session.is_wanted(*id)));
}

#[test]
fn sec_r4_results_for_a_stalled_caller_are_limited_and_others_are_not_blocked() {
    let mut world = pair_with(&["t"], |config| config.caps.requests.table_bytes = MIB);
    world.handle("phone", |_| Some(Ok(text(MIB))));
    // The assistant stalls: it is present, and acknowledges nothing.
    let keys: Vec<_> = (0..10).map(|_| world.call("a", request("t")).unwrap()).collect();
    world.run(SECOND);
    let outcomes: Vec<_> = keys.iter().map(|key| world.settled("a", *key).unwrap()).collect();
    // One result may always be kept; one without room next to it becomes an error, and none is lost silently.
    let whole = outcomes.iter().filter(|it| it.is_ok()).count();
    let refused = outcomes.iter().filter(|it| {
        matches!(it, Err(CallError::Tool(error)) if error.code() == ErrorCode::RESULT_TOO_LARGE)
            || matches!(it, Err(CallError::Busy { .. }))
    });
    assert_eq!((whole >= 1, whole + refused.count()), (true, keys.len()), "{outcomes:?}");
    // Once it has acknowledged, everything works as before.
    assert!(world.ask("a", request("t")).is_ok());
}

#[test]
fn sec_r4_result_refused_by_a_full_queue_is_sent_when_there_is_room() {
    let mut world = pair(&["t"]);
    let key = world.call("a", request("t")).unwrap();
    world.run(50 * MS);
    let job = world.ends.get_mut("phone").unwrap().jobs.remove(0);
    let now = world.now;
    let session = world.ends.get_mut("phone").unwrap().session.as_mut().unwrap();
    session.settle(now, job.key, Ok(text(MIB)));
    for output in outputs(session) {
        if let Output::Transmit(packet) = output
            && packet.payload.len() > MIB
        {
            session.handle_send_failed(now, packet.id, SendFailure::QueueFull);
        }
    }
    world.run(Duration::from_millis(900));
    assert!(world.settled("a", key).is_none());
    world.run(SECOND);
    assert!(matches!(world.settled("a", key), Some(Ok(_))));
    assert_eq!(world.session("phone").stats().count(Counter::SendFailed), 1);
}

#[test]
fn sec_r4_arguments_of_open_calls_are_limited_and_one_call_always_passes() {
    let mut world = pair_with(&["t"], |config| config.caps.calls.open_bytes = MIB);
    let first = world.call("a", Request::new("t", text(2 * MIB))).unwrap();
    let second = world.call("a", Request::new("t", text(10)));
    assert!(matches!(second, Err(CallError::TooManyOpen { open: 1 })), "{second:?}");
    world.run(100 * MS);
    world.finish("phone", Ok(value(1)));
    world.run(100 * MS);
    assert!(world.settled("a", first).is_some());
    assert!(world.call("a", Request::new("t", text(10))).is_ok());
}

#[test]
fn repeated_large_result_is_acknowledged_again() {
    let mut world = pair(&["t"]);
    world.handle("phone", |_| Some(Ok(text(MIB))));
    world.ask("a", request("t")).unwrap();
    world.run(SECOND);
    let (_, again) = world.sent("phone", Kind::TOOL_USE_RESULT).pop().unwrap();
    let acknowledged = world.sent("a", Kind::ACKNOWLEDGEMENT).len();
    let (phone, stream) = (peer(&world, "phone"), parts("again", &again.to_bytes()));
    send_parts(&mut world, &phone, &stream);
    assert_eq!(world.count("a", "duplicate"), 1);
    assert_eq!(world.sent("a", Kind::ACKNOWLEDGEMENT).len(), acknowledged + 1);
}

/// The others still read it.
#[test]
fn stream_to_several_is_not_withdrawn_when_one_of_them_refuses_it() {
    for to in [vec!["phone".into()], vec!["phone".into(), "tv".into()]] {
        let mut world = pair(&["t"]);
        world.client("tv", Config::default().streams(true), &["t"]);
        world.run(200 * MS);
        let (now, is_one) = (world.now, to.len() == 1);
        let session = world.ends.get_mut("a").unwrap().session.as_mut().unwrap();
        session.send(now, Destination::Peers(to), Kind::new(2_000), Meta::new(), text(MIB)).unwrap();
        let packet = outputs(session).into_iter().find_map(|it| match it {
            Output::Transmit(packet) => Some(packet),
            _ => None,
        });
        let packet = packet.unwrap();
        let stream = packet.stream.as_deref().map(str::to_owned);
        let refusal = with!(
            ErrorMessage::default(),
            id = "e".to_owned(),
            conversation_id = "room".to_owned(),
            code = 504,
            message = "no space".to_owned(),
            severity = 1,
            originating_id = stream
        );
        world.send("phone", &["a"], &Meta::new(), &Message::Error(refusal));
        world.run(100 * MS);
        assert_eq!(world.session("a").is_wanted(packet.id), !is_one, "{:?}", world.session("a").stats());
    }
}

/// A faster network could have carried the stream, so its sender may try again.
#[test]
fn stream_that_takes_too_long_is_refused_and_is_not_malformed() {
    let mut world = pair(&["t"]);
    world.call("a", request("t").timeout(300 * SECOND)).unwrap();
    world.run(50 * MS);
    let result = result_of(&world, 20 * STREAM_CHUNK);
    let phone = peer(&world, "phone");
    for part in parts("s", &result).iter().take(15) {
        send_parts(&mut world, &phone, std::slice::from_ref(part));
        world.run(5 * SECOND);
    }
    let counted = ["stream_refused", "stream_broken", "malformed"].map(|name| world.count("a", name));
    assert_eq!(counted, [1, 0, 0]);
    let is_it = |frame: &Frame| matches!(frame.message(), Ok(Message::Error(it)) if it.code == 504);
    assert_eq!(world.sent("a", Kind::ERROR).iter().filter(|(_, it)| is_it(it)).count(), 1);
}
