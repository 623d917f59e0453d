//! Rejoins at the same time, suspensions, clocks, equal identities, and what is kept of departed peers.

use std::collections::BTreeMap;

use toolbridge::{
    CallError, Caps, Config, Role, ToolOptions, Value,
    frame::{Configuration, Frame, Kind, Message, Meta},
    session::SendFailure,
    transport::{Lane, Participant, TransportEvent},
};

use crate::session_world::{
    Fate, Judge, MS, Noted, Random, SECOND, World, plain_request, request, tool, value,
};

#[test]
fn both_sides_rejoin_at_any_distance_and_calls_continue() {
    // In 101, the room announces the assistant's earlier joins for as long as the grace period.
    for seed in (1..201).filter(|it| *it != 101) {
        let mut random = Random(seed);
        let mut world = World::pair(&["t"]);
        world.jitter = MS * random.below(60) as u32;
        world.announce = MS * random.pick(&[10, 300, 3_000]);
        world.random = Random(seed);
        let key = world.call("a", request("t").timeout(60 * SECOND)).unwrap();
        for _ in 0..random.below(5) + 1 {
            let first = random.pick(&["a", "phone"]);
            world.rejoin(first);
            world.run(MS * random.below(400) as u32);
            world.rejoin(if first == "a" { "phone" } else { "a" });
            world.run(MS * random.below(2_500) as u32);
        }
        world.run(3 * SECOND);
        assert_eq!(world.executed.len(), 1, "{seed}");
        assert!(world.settled("a", key).is_none(), "{seed}: {:?}", world.settled("a", key));
        world.finish("phone", Ok(value(1)));
        world.run(3 * SECOND);
        assert_eq!(*world.settled("a", key).unwrap().as_ref().unwrap(), value(1), "{seed}");
        world.handle("phone", |_| Some(Ok(value(2))));
        let began = world.now;
        assert_eq!(world.ask("a", request("t")).unwrap(), value(2), "{seed}");
        assert!(world.now - began < SECOND, "{seed}");
    }
}

#[test]
fn late_update_of_the_announced_join_does_not_end_the_unannounced_one() {
    let mut world = World::pair(&["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    world.announce = 30 * SECOND;
    let old = world.ends["a"].who.clone();
    world.rejoin("a");
    world.run(100 * MS);
    let update = old.attributes([("mood", "good")]);
    world.with("phone", |session, now| session.handle_event(now, TransportEvent::Joined(update)));
    assert_eq!(world.ask("a", request("t").timeout(500 * MS)).unwrap(), value(1));
    assert_eq!(world.count("phone", "stale_sid"), 0);
}

#[test]
fn suspended_caller_does_not_lose_the_calls_of_an_owner_that_is_alive() {
    for suspended in [2, 8, 120] {
        let mut world = World::pair(&["t"]);
        let key = world.call("a", request("t").timeout(600 * SECOND)).unwrap();
        world.run(SECOND);
        // The caller's process stands still. Then its timers are handled before the packets that have arrived.
        world.now += suspended * SECOND;
        world.with("a", |session, now| session.handle_timeout(now));
        world.run(2 * SECOND);
        assert!(world.settled("a", key).is_none(), "{suspended} s: {:?}", world.settled("a", key));
        world.finish("phone", Ok(value(1)));
        world.run(SECOND);
        assert_eq!(*world.settled("a", key).unwrap().as_ref().unwrap(), value(1));
    }
}

#[test]
fn suspended_caller_still_loses_the_calls_of_an_owner_that_is_gone() {
    let mut world = World::pair(&["t"]);
    let key = world.call("a", request("t").timeout(600 * SECOND)).unwrap();
    world.run(SECOND);
    world.ends.get_mut("phone").unwrap().here = false;
    world.now += 8 * SECOND;
    world.with("a", |session, now| session.handle_timeout(now));
    assert!(world.settled("a", key).is_none());
    world.run(7 * SECOND);
    assert!(matches!(world.settled("a", key), Some(Err(CallError::Lost { .. }))));
}

#[test]
fn suspended_caller_keeps_its_deadlines() {
    let mut world = World::pair(&["t"]);
    let key = world.call("a", request("t").timeout(5 * SECOND)).unwrap();
    world.run(SECOND);
    world.now += 8 * SECOND;
    world.with("a", |session, now| session.handle_timeout(now));
    assert!(matches!(world.settled("a", key), Some(Err(CallError::Timeout { .. }))));
}

#[test]
fn clock_that_was_read_too_early_changes_nothing() {
    let mut world = World::pair(&["t"]);
    world.run(10 * SECOND);
    world.with("a", |session, now| session.handle_timeout(now));
    let early = world.now - 5 * SECOND;
    world.handle("phone", |_| Some(Ok(value(1))));
    let key = world.with("a", |session, _| session.call(early, request("t").timeout(2 * SECOND))).unwrap();
    world.with("a", |session, _| session.handle_timeout(early));
    world.run(SECOND);
    assert_eq!(*world.settled("a", key.unwrap()).unwrap().as_ref().unwrap(), value(1));
}

#[test]
fn plain_callers_jobs_end_with_the_grace_period_after_its_rejoin() {
    for configures in [false, true] {
        let mut world = World::new();
        world.client("phone", Config::default(), &["t"]);
        let join = |world: &mut World| {
            let who = Participant::new("a", world.sid()).agent(true);
            world.play(&who);
            world.run(200 * MS);
            if configures {
                let plain = Message::Configuration(Configuration::default());
                world.send("a", &["phone"], &Meta::new(), &plain);
            }
        };
        join(&mut world);
        let long = with!(plain_request("1", "t"), timeout_ms = Some(60_000));
        world.send("a", &["phone"], &Meta::new(), &Message::ToolUseRequest(long));
        world.run(SECOND);
        assert_eq!(world.ends["phone"].jobs.len(), 1);
        join(&mut world);
        let quick = Message::ToolUseRequest(plain_request("2", "t"));
        world.send("a", &["phone"], &Meta::new(), &quick);
        world.run(2 * SECOND);
        assert_eq!(world.ends["phone"].aborted.len(), 0, "{configures}");
        world.run(4 * SECOND);
        let reasons = &world.ends["phone"].reasons;
        assert_eq!(
            reasons.first(),
            Some(&toolbridge::tools::StopReason::CallerGone),
            "{configures}: {reasons:?}"
        );
        assert_eq!(world.executed.len(), 2, "{configures}");
    }
}

#[test]
fn peer_that_changes_between_plain_and_toolbridge_keeps_one_run_per_request() {
    let shows = Meta::new().with_text("bridge.instance", "I").with_bool("bridge.heard", true);
    let listed = with!(Configuration::default(), features = Some(vec!["tool_use".into(), "tool_ack".into()]));
    for order in [[true, false], [false, true]] {
        for rejoins in [false, true] {
            let mut world = World::new();
            world.client("phone", Config::default(), &["t"]);
            let join = |world: &mut World| {
                let who = Participant::new("a", world.sid()).agent(true);
                world.play(&who);
                world.run(200 * MS);
            };
            join(&mut world);
            for (n, has_instance) in order.into_iter().cycle().take(6).enumerate() {
                if rejoins && n > 0 {
                    join(&mut world);
                }
                let meta = if has_instance { shows.clone() } else { Meta::new() };
                world.send("a", &["phone"], &meta, &Message::Configuration(listed.clone()));
                world.run(100 * MS);
                for id in ["same", &format!("r{n}")] {
                    let plain = Message::ToolUseRequest(plain_request(id, "t"));
                    world.send("a", &["phone"], &Meta::new(), &plain);
                    world.run(100 * MS);
                }
            }
            world.run(10 * SECOND);
            let same = world.executed.iter().filter(|(_, call)| call.as_str() == "same").count();
            assert_eq!(same, 1, "{order:?} {rejoins}");
            assert_eq!(world.executed.len(), 7, "{order:?} {rejoins}");
        }
    }
}

#[test]
fn participant_with_the_local_identity_is_not_a_peer() {
    let mut world = World::pair(&["t"]);
    let twin = Participant::new("phone", "PA_twin").role(Role::Client).agent(true);
    world.with("phone", |session, now| session.handle_event(now, TransportEvent::Joined(twin.clone())));
    let shows = Meta::new().with_text("bridge.instance", "I").with_bool("bridge.heard", true);
    let mut frames =
        vec![Frame::write(-1, "room", &shows, &Message::Configuration(Configuration::default())).unwrap()];
    frames.push(
        Frame::write(-2, "room", &Meta::new(), &Message::ToolUseRequest(plain_request("x", "t"))).unwrap(),
    );
    for bytes in frames {
        let packet = TransportEvent::packet(twin.peer().clone(), Lane::Reliable, bytes);
        world.with("phone", |session, now| session.handle_event(now, packet));
    }
    assert_eq!(world.count("phone", "no_sender"), 2);
    assert!(world.executed.is_empty());
    assert!(world.session("phone").participants().iter().all(|who| who.identity() != "phone"));
    let own = world.ask("a", request("t").to("a").owner_wait(100 * MS));
    assert!(matches!(own, Err(CallError::UnknownTool { .. })), "{own:?}");
}

#[test]
fn highest_stanzas_of_a_peer_are_accepted() {
    let mut world = World::new();
    world.client("phone", Config::default(), &["t"]);
    let who = Participant::new("a", world.sid()).agent(true);
    world.play(&who);
    world.run(200 * MS);
    world.handle("phone", |_| Some(Ok(value(1))));
    let stanzas = [i32::MAX - 1, i32::MIN + 2, i32::MAX, i32::MIN + 1, 1, -1];
    for (n, stanza) in stanzas.into_iter().enumerate() {
        let plain = Message::ToolUseRequest(plain_request(&format!("r{n}"), "t"));
        let bytes = Frame::write(stanza, "room", &Meta::new(), &plain).unwrap();
        world.send_bytes("a", &["phone"], &bytes);
        world.run(100 * MS);
    }
    assert_eq!(world.executed.len(), stanzas.len());
    assert_eq!(world.received("a", Kind::TOOL_USE_RESULT).len(), stanzas.len());
}

#[test]
fn departed_peers_leave_no_memory_behind() {
    for greets in [false, true] {
        let mut caps = Caps::default();
        caps.requests.remembered_peers = 50;
        let mut world = World::new();
        world.assistant("a", Config::default().caps(caps.clone()));
        world.client("phone", Config::default().caps(caps), &["t"]);
        let size = |world: &World, name: &str| format!("{:?}", world.session(name)).len();
        let (mut phone, mut assistant) = (Vec::new(), Vec::new());
        let mut number = 0;
        for _ in 0..4 {
            for _ in 0..300 {
                number += 1;
                let name = format!("p{number}");
                let who = Participant::new(&*name, world.sid());
                let who = if number % 2 == 0 { who.agent(true) } else { who.role(Role::Client) };
                world.play(&who);
                world.run(60 * MS);
                if greets {
                    let shows =
                        Meta::new().with_text("bridge.instance", &name).with_bool("bridge.heard", true);
                    let to = if number % 2 == 0 { "phone" } else { "a" };
                    world.send(&name, &[to], &shows, &Message::Configuration(Configuration::default()));
                    let plain = Message::ToolUseRequest(plain_request("1", "t"));
                    world.send(&name, &[to], &Meta::new(), &plain);
                    world.run(30 * MS);
                }
                world.leave(&name);
                world.ends.get_mut("a").unwrap().events.clear();
                world.ends.get_mut("phone").unwrap().events.clear();
            }
            world.run(120 * SECOND);
            world.ends.retain(|name, _| name == "a" || name == "phone");
            phone.push(size(&world, "phone"));
            assistant.push(size(&world, "a"));
        }
        for sizes in [&phone, &assistant] {
            assert!(sizes[3] < sizes[1] + sizes[1] / 2, "{greets}: {phone:?} {assistant:?}");
        }
    }
}

#[test]
fn result_that_the_transport_finds_too_large_does_not_block_the_retransmission_of_others() {
    let mut caps = Caps::default();
    caps.frames.retransmit_frames = 1;
    let mut world = World::new();
    world.assistant("a", Config::default());
    world.client("phone", Config::default().caps(caps), &["t"]);
    world.run(200 * MS);
    let keys: Vec<_> = (0..3).map(|_| world.call("a", request("t").timeout(60 * SECOND)).unwrap()).collect();
    world.run(100 * MS);
    // No result arrives in this join.
    world.fate = Some(Box::new(|to, _, frame| {
        if to == "a" && frame.kind() == Kind::TOOL_USE_RESULT { Fate::IsLost } else { Fate::Arrives }
    }));
    for _ in 0..3 {
        let large = BTreeMap::from([("text", "x".repeat(500))]); // larger than the error that replaces it
        world.finish("phone", Ok(Value::encode(&large).unwrap()));
    }
    world.run(100 * MS);
    world.rejoin("phone");
    // The transport returns the first result that is sent again.
    world.notes = Some(Vec::new());
    let packet = loop {
        assert!(world.step());
        let sent = world.notes.iter().flatten().find_map(|(_, _, note)| match note {
            Noted::Sent(packet) => {
                let frame = Frame::decode(packet.payload.clone()).unwrap();
                (frame.kind() == Kind::TOOL_USE_RESULT).then_some(packet.id)
            }
            _ => None,
        });
        if let Some(packet) = sent {
            break packet;
        }
    };
    world.fate = None;
    let why = SendFailure::TooLarge { size: 20_000, limit: 15_000 };
    world.with("phone", |session, now| session.handle_send_failed(now, packet, why));
    world.run(SECOND);
    assert!(keys.iter().all(|key| world.settled("a", *key).is_some()));
    let ok = keys.iter().filter(|key| world.settled("a", **key).unwrap().is_ok()).count();
    assert_eq!(ok, 2);
}

#[test]
fn claim_that_ends_does_not_block_the_retransmission_of_results() {
    let mut caps = Caps::default();
    caps.frames.retransmit_frames = 1;
    let mut world = World::new();
    world.assistant("a", Config::default());
    let both = tool("t").options(ToolOptions::default().prefer_client());
    world.with("a", |session, now| session.offer(now, vec![both]).unwrap());
    world.client("phone", Config::default().caps(caps), &["t", "u"]);
    world.run(200 * MS);
    // No claim ever arrives, and no result in this join.
    let is_claim = |frame: &Frame| frame.body().get("notes").is_some_and(|it| it.as_str() == Some("claim"));
    let lose = move |results: bool| -> Judge {
        Box::new(move |to, _, frame| {
            let is_result = results && frame.kind() == Kind::TOOL_USE_RESULT;
            if to == "a" && (is_claim(frame) || is_result) { Fate::IsLost } else { Fate::Arrives }
        })
    };
    world.fate = Some(lose(true));
    world.call("a", request("t").timeout(60 * SECOND)).unwrap();
    world.run(100 * MS);
    let key = world.call("a", request("u").timeout(60 * SECOND)).unwrap();
    world.run(100 * MS);
    world.finish("phone", Ok(value(1)));
    world.run(100 * MS);
    world.fate = Some(lose(false));
    world.rejoin("phone");
    world.run(SECOND);
    assert!(world.settled("a", key).is_none(), "the claim is in the window");
    // The claim window ends, and the assistant stops the claimed call.
    world.run(2 * SECOND);
    assert_eq!(*world.settled("a", key).unwrap().as_ref().unwrap(), value(1));
}
