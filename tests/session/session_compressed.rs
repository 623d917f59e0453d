//! Compressed frames: who is sent them, and which are read.

use std::io::Write as _;

use toolbridge::{
    CallError, Config, Role, Value,
    frame::{Configuration, Frame, Kind, Message, Meta, ToolUseRequest},
    session::Request,
    tools::Execution,
    transport::{Lane, Packet, Participant, STREAM_CHUNK},
};

use crate::session_world::{MS, Noted, SECOND, World, request};

const MIB: usize = 1024 * 1024;

fn config() -> Config {
    Config::default().streams(true).compress(true)
}

/// An assistant and a phone with the tool `t`, which returns its arguments, after their handshake.
fn pair_of(assistant: Config, phone: Config) -> World {
    let mut world = World::new();
    world.assistant("a", assistant);
    world.client("phone", phone, &["t"]);
    world.handle("phone", |job| Some(Ok(job.arguments.clone())));
    world.run(200 * MS);
    warm_up(&mut world);
    world
}

/// Makes a small call, so that each knows that the other has its Configuration.
fn warm_up(world: &mut World) {
    assert_eq!(world.ask("a", request("t")).unwrap(), Value::empty());
    world.notes = Some(Vec::new());
}

/// Records of about this many bytes.
fn records(bytes: usize) -> Value {
    let record =
        |n: usize| serde_json::json!({"id": n, "name": format!("lamp {n}"), "level": n * 7_919 % 1_000});
    Value::from(serde_json::json!({"data": (0..bytes / 30).map(record).collect::<Vec<_>>()}))
}

/// Binary data that cannot be compressed.
fn noise(bytes: u16) -> Value {
    let mut random = 1_u64;
    let mut byte = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 56) as u8
    };
    let data: Vec<u8> = (0..bytes).map(|_| byte()).collect();
    Value::from_bytes([b"\x81\xa4data\xc5", &bytes.to_be_bytes()[..], &data].concat()).unwrap()
}

fn is_compressed(packet: &Packet) -> bool {
    packet.payload[0] == 0xc1
}

/// Returns the compressed form of a frame, with another length.
fn compressed_as(frame: &[u8], length: usize) -> Vec<u8> {
    let head = [&[0xc1], &(length as u32).to_be_bytes()[..]].concat();
    let mut writer = flate2::write::DeflateEncoder::new(head, flate2::Compression::best());
    writer.write_all(frame).unwrap();
    writer.finish().unwrap()
}

fn compressed(frame: &[u8]) -> Vec<u8> {
    compressed_as(frame, frame.len())
}

/// A played participant completes the handshake, and lists these features.
fn greet(world: &mut World, name: &str, to: &str, features: &[&str]) {
    let meta = Meta::new().with_bool("bridge.heard", true).with_text("bridge.instance", "played");
    let features = Some(features.iter().map(ToString::to_string).collect());
    let configuration = with!(Configuration::default(), features = features);
    world.send(name, &[to], &meta, &Message::Configuration(configuration));
    world.run(200 * MS);
}

/// A request of the played assistant, which gets the stanza −9 and this id.
fn request_frame(id: &str, arguments: Value) -> Vec<u8> {
    let request = ToolUseRequest::new(id.try_into().unwrap(), "t", arguments, Ok(Execution::Client));
    Frame::write(-9, "room", &Meta::new(), &Message::ToolUseRequest(request)).unwrap().to_vec()
}

/// A phone, and an assistant that the test plays, before their handshake.
fn phone_and_played_assistant() -> World {
    let mut world = World::new();
    world.client("phone", config(), &["t"]);
    let sid = world.sid();
    world.play(&Participant::new("a", sid).agent(true));
    world.run(200 * MS);
    world
}

/// Makes a call with these arguments, and returns whether its request and its result were compressed.
fn call(world: &mut World, arguments: &Value) -> [bool; 2] {
    assert!(world.ask("a", Request::new("t", arguments.clone())).unwrap() == *arguments);
    let sent = std::mem::take(world.notes.as_mut().unwrap());
    ["a", "phone"].map(|name| {
        sent.iter().any(|(_, who, noted)| match noted {
            Noted::Sent(packet) => who == name && is_compressed(packet),
            _ => false,
        })
    })
}

#[test]
fn large_frames_are_compressed_if_they_get_shorter() {
    let mut world = pair_of(config(), config());
    for (arguments, expected) in [
        (records(400), false),
        (records(2_000), true),
        (records(10_000), true),
        (records(2 * MIB), true),
        (noise(40_000), false),
    ] {
        let bytes = arguments.as_bytes().len();
        assert_eq!(call(&mut world, &arguments), [expected; 2], "{bytes} bytes");
    }
    assert_eq!(world.count("a", "malformed") + world.count("phone", "malformed"), 0);
}

#[test]
fn participant_that_does_not_compress_reads_compressed_frames() {
    let plain = || Config::default().streams(true);
    for (assistant, phone, expected) in [
        (config(), plain(), [true, false]),
        (plain(), config(), [false, true]),
        (plain(), plain(), [false; 2]),
    ] {
        assert_eq!(call(&mut pair_of(assistant, phone), &records(10_000)), expected);
    }
}

#[test]
fn participant_that_does_not_expand_neither_gets_nor_sends_compressed_frames() {
    let plain = || config().expand(false);
    for (assistant, phone) in [(config(), plain()), (plain(), config()), (plain(), plain())] {
        assert_eq!(call(&mut pair_of(assistant, phone), &records(10_000)), [false; 2]);
    }
}

#[test]
fn compressed_frame_that_fits_is_sent_on_the_fast_lane() {
    let lossy = || config().lossy(true);
    let mut world = pair_of(lossy(), lossy());
    let arguments = records(2_000);
    assert!(world.ask("a", Request::new("t", arguments.clone())).unwrap() == arguments);
    let lanes = world.notes.iter().flatten().filter_map(|(_, _, noted)| match noted {
        Noted::Sent(packet) if is_compressed(packet) => Some(packet.lane),
        _ => None,
    });
    assert_eq!(lanes.collect::<Vec<_>>(), [Lane::Lossy; 2]);
}

#[test]
fn compressed_frame_above_a_packet_is_a_stream() {
    let mut world = pair_of(config(), config());
    let arguments = records(400_000);
    assert_eq!(call(&mut world, &arguments), [true; 2]);
    let CallError::TooLarge { size, limit } = world
        .ask("a", Request::new("t", Value::from(serde_json::json!({"text": "x".repeat(16 * MIB)}))))
        .unwrap_err()
    else {
        panic!("the limit is that of the frame before compression")
    };
    assert!(size > limit && limit == 16 * MIB);
    let mut without_streams = pair_of(Config::default().compress(true), Config::default().compress(true));
    let error = without_streams.ask("a", Request::new("t", records(STREAM_CHUNK * 2))).unwrap_err();
    assert!(matches!(error, CallError::TooLarge { limit: STREAM_CHUNK, .. }), "{error:?}");
}

#[test]
fn observers_get_plain_frames() {
    let mut world = pair_of(config(), config());
    let observer = Participant::new("o", world.sid()).role(Role::Observer);
    world.play(&observer);
    world.run(200 * MS);
    assert_eq!(call(&mut world, &records(10_000)), [true; 2]);
    world.run(SECOND);
    // Played participants cannot read anything else.
    let large = |name: &str| {
        let inbox = world.ends[name].inbox.iter();
        inbox.filter(|(_, frame)| frame.as_bytes().len() > 5_000).count()
    };
    assert_eq!(large("o"), 2, "a copy of the request and one of the result");
}

#[test]
fn sec_r5_compressed_frame_counts_only_after_a_configuration_that_lists_it() {
    for features in [None, Some(&["tool_use", "tool_ack"][..]), Some(&["tool_use", "tool_ack", "deflate"])] {
        let mut world = phone_and_played_assistant();
        if let Some(features) = features {
            greet(&mut world, "a", "phone", features);
        }
        world.send_bytes("a", &["phone"], &compressed(&request_frame("c1", records(5_000))));
        world.run(SECOND);
        let is_listed = features.is_some_and(|features| features.contains(&"deflate"));
        assert_eq!(world.ends["phone"].jobs.len(), usize::from(is_listed), "{features:?}");
        assert_eq!(world.count("phone", "malformed"), u64::from(!is_listed));
    }
}

#[test]
fn sec_r5_compressed_frame_of_the_join_before_does_not_count() {
    let mut world = phone_and_played_assistant();
    greet(&mut world, "a", "phone", &["tool_use", "tool_ack", "deflate"]);
    let sid = world.sid();
    world.play(&Participant::new("a", sid).agent(true));
    world.run(200 * MS);
    world.send_bytes("a", &["phone"], &compressed(&request_frame("c1", records(5_000))));
    world.run(SECOND);
    assert_eq!((world.ends["phone"].jobs.len(), world.count("phone", "malformed")), (0, 1));
}

#[test]
fn sec_r5_compressed_frame_that_breaks_the_rules_is_counted() {
    let frame = request_frame("c1", records(5_000));
    let whole = compressed(&frame);
    let longest = vec![0xc0; 17 * MIB];
    for (why, packet) in [
        ("it is cut", whole[..whole.len() - 1].to_vec()),
        ("it has no stream", whole[..5].to_vec()),
        ("it has no length", whole[..4].to_vec()),
        ("it is only the mark", vec![0xc1]),
        ("more follows", [&whole[..], &[0]].concat()),
        ("it is shorter than announced", compressed_as(&frame, frame.len() + 1)),
        ("it is longer than announced", compressed_as(&frame, frame.len() - 1)),
        ("it announces nothing", compressed_as(&frame, 0)),
        ("it announces more than a frame may have", compressed_as(&frame, u32::MAX as usize)),
        ("it has more than a frame may have", compressed(&longest)),
        ("it expands to too many times its size", compressed(&longest[..MIB])),
        ("it is no deflate stream", [&[0xc1, 0, 0, 0, 100][..], &[0xff; 60]].concat()),
        ("it is compressed twice", compressed(&whole)),
        ("it holds no frame", compressed(&[0xc3; 2_000])),
    ] {
        let mut world = phone_and_played_assistant();
        greet(&mut world, "a", "phone", &["tool_use", "tool_ack", "deflate", "frame_stream"]);
        world.send_bytes("a", &["phone"], &packet);
        world.run(SECOND);
        let seen = (world.ends["phone"].jobs.len(), world.count("phone", "malformed"));
        assert_eq!(seen, (0, 1), "{why}");
        // The sender is told, and is heard again.
        assert_eq!(world.received("a", Kind::ERROR).len(), 1, "{why}");
        world.send_bytes("a", &["phone"], &whole);
        world.run(SECOND);
        assert_eq!(world.ends["phone"].jobs.len(), 1, "{why}");
    }
}

#[test]
fn frame_is_compressed_only_once_the_peer_has_the_local_configuration() {
    let mut world = phone_and_played_assistant();
    world.handle("phone", |_| Some(Ok(records(10_000))));
    let meta = Meta::new().with_text("bridge.instance", "played"); // and not `bridge.heard`
    let features = Some(["tool_use", "deflate", "frame_stream"].map(str::to_owned).to_vec());
    let configuration = with!(Configuration::default(), features = features);
    world.send("a", &["phone"], &meta, &Message::Configuration(configuration));
    world.run(200 * MS);
    world.send_bytes("a", &["phone"], &request_frame("c1", records(400)));
    world.run(SECOND);
    let results = world.received("a", Kind::TOOL_USE_RESULT);
    assert_eq!(results.len(), 1, "a played participant reads plain frames only");
}

#[test]
fn peer_that_lists_it_in_one_join_and_not_in_the_next_gets_plain_frames() {
    let mut world = phone_and_played_assistant();
    world.handle("phone", |_| Some(Ok(records(10_000))));
    greet(&mut world, "a", "phone", &["tool_use", "tool_ack", "deflate"]);
    let sid = world.sid();
    world.play(&Participant::new("a", sid).agent(true));
    world.run(200 * MS);
    greet(&mut world, "a", "phone", &["tool_use", "tool_ack"]);
    world.send_bytes("a", &["phone"], &request_frame("c1", records(400)));
    world.run(SECOND);
    assert_eq!(world.received("a", Kind::TOOL_USE_RESULT).len(), 1, "it reads plain frames only");
}

#[test]
fn calls_go_on_after_a_rejoin() {
    let mut world = pair_of(config(), config());
    assert_eq!(call(&mut world, &records(10_000)), [true; 2]);
    for name in ["phone", "a"] {
        world.handle("phone", |_| None);
        let key = world.call("a", Request::new("t", records(10_000))).unwrap();
        world.run(200 * MS);
        world.rejoin(name);
        world.run(SECOND);
        world.finish("phone", Ok(records(20_000)));
        world.run(SECOND);
        assert!(world.settled("a", key).unwrap().as_ref().unwrap() == &records(20_000), "{name}");
        world.handle("phone", |job| Some(Ok(job.arguments.clone())));
        warm_up(&mut world);
        assert_eq!(call(&mut world, &records(10_000)), [true; 2], "{name}");
    }
    assert_eq!(world.count("a", "malformed") + world.count("phone", "malformed"), 0);
}
