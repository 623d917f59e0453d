//! Packets that were not sent (`wire.md`, section 5.2): each kind is sent again when it can be.

use toolbridge::{
    Config, ConnectionState, Event, Role,
    frame::{Acknowledgement, Frame, Kind, Message, Meta},
    session::{Destination, SendFailure, Session},
    transport::{Lane, Participant, TransportEvent},
};

use crate::{
    session_lane::{lanes, lose, pair, took},
    session_world::{MS, SECOND, World, request, sent_packet, tool, value},
};

/// Lets the transport refuse the packets with frames of this type that a participant sends meanwhile.
pub(crate) fn refuse(
    world: &mut World,
    name: &'static str,
    kind: Kind,
    why: &SendFailure,
    act: impl FnOnce(&mut World),
) {
    world.notes = Some(Vec::new());
    lose(world, move |from, _, frame: &Frame| from == name && frame.kind() == kind);
    act(world);
    world.lossy.lose = None;
    let id = sent_packet(world, name, kind);
    if *why == SendFailure::Interrupted {
        connection(world, name, ConnectionState::Reconnecting);
    }
    world.with(name, |session, now| session.handle_send_failed(now, id, why.clone()));
    world.run(500 * MS);
    match why {
        SendFailure::Interrupted => connection(world, name, ConnectionState::Connected),
        SendFailure::NotAllowed => allow_again(world, name),
        _ => {}
    }
    world.run(SECOND);
}

fn connection(world: &mut World, name: &str, state: ConnectionState) {
    world.with(name, |it, now| it.handle_event(now, TransportEvent::ConnectionState(state)));
}

/// Lets the room withdraw the permission and grant it again.
pub(crate) fn allow_again(world: &mut World, name: &str) {
    let who = world.ends[name].who.clone();
    for may in [false, true] {
        let who = who.clone().can_publish_data(may);
        world.with(name, |it, now| it.handle_event(now, TransportEvent::Joined(who)));
    }
}

const REFUSALS: [SendFailure; 3] =
    [SendFailure::QueueFull, SendFailure::Interrupted, SendFailure::NotAllowed];

#[test]
fn acknowledgement_that_was_not_sent_is_sent_again() {
    for why in REFUSALS {
        let mut world = World::pair(&["t"]);
        let key = world.call("a", request("t")).unwrap();
        world.run(SECOND);
        refuse(&mut world, "a", Kind::ACKNOWLEDGEMENT, &why, |world| {
            world.finish("phone", Ok(value(1)));
            world.run(50 * MS);
        });
        assert!(world.settled("a", key).is_some_and(Result::is_ok));
        assert!(world.session("phone").is_drained(), "{why:?}: the result is kept");
    }
}

/// The assistant takes the client for a plain one until then, and acknowledges nothing.
#[test]
fn what_has_overtaken_a_configuration_that_was_not_sent_is_sent_again() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    let key = world.call("a", request("t").to("phone")).unwrap();
    refuse(&mut world, "phone", Kind::CONFIGURATION, &SendFailure::Interrupted, |world| {
        world.client("phone", Config::default(), &["t"]);
        world.handle("phone", |_| Some(Ok(value(1))));
        world.run(2_100 * MS);
        assert!(world.settled("a", key).is_some_and(Result::is_ok));
        assert!(!world.session("phone").is_drained());
    });
    assert!(world.session("phone").is_drained());
}

#[test]
fn result_that_was_not_allowed_is_sent_when_it_is() {
    let mut world = World::pair(&["t"]);
    let key = world.call("a", request("t")).unwrap();
    world.run(SECOND);
    refuse(&mut world, "phone", Kind::TOOL_USE_RESULT, &SendFailure::NotAllowed, |world| {
        world.finish("phone", Ok(value(1)));
    });
    assert!(world.settled("a", key).is_some_and(Result::is_ok));
}

/// Its packets on the lossy lane may have arrived, and nothing else would send it again.
#[test]
fn frame_whose_reliable_copy_was_not_allowed_is_sent_when_it_is() {
    let mut world = pair();
    world.notes = Some(Vec::new());
    lose(&mut world, |name, _, frame| name == "a" && frame.kind() == Kind::TOOL_USE_REQUEST);
    let key = world.call("a", request("t")).unwrap();
    world.run(2 * SECOND);
    assert!(lanes(&world, "a", Kind::TOOL_USE_REQUEST).contains(&Lane::Reliable));
    world.lossy.lose = None;
    let id = sent_packet(&world, "a", Kind::TOOL_USE_REQUEST);
    world.with("a", |session, now| session.handle_send_failed(now, id, SendFailure::NotAllowed));
    allow_again(&mut world, "a");
    world.run(SECOND);
    assert!(world.settled("a", key).is_some_and(Result::is_ok));
}

#[test]
fn configuration_and_answer_to_a_registration_that_were_not_sent_are_sent_again() {
    for why in REFUSALS {
        for kind in [Kind::CONFIGURATION, Kind::TOOLS_REGISTER_ACK] {
            let mut world = World::new();
            world.assistant("a", Config::default());
            world.run(SECOND);
            refuse(&mut world, "a", kind, &why, |world| {
                world.client("phone", Config::default(), &["t"]);
                world.run(150 * MS);
            });
            let registrations = world.sent("phone", Kind::TOOLS_REGISTER).len();
            world.run(20 * SECOND);
            let more = world.sent("phone", Kind::TOOLS_REGISTER).len() - registrations;
            assert_eq!((world.session("a").tools().len(), more), (1, 0), "{why:?}, {kind:?}");
            world.handle("phone", |_| Some(Ok(value(1))));
            assert!(world.ask("a", request("t")).is_ok());
        }
    }
}

#[test]
fn copies_for_observers_that_were_not_sent_are_sent_again() {
    for why in REFUSALS {
        let mut world = World::pair(&["t"]);
        let sid = world.sid();
        world.play(&Participant::new("watch", sid).role(Role::Observer));
        world.run(SECOND);
        world.call("a", request("t")).unwrap();
        world.run(SECOND);
        refuse(&mut world, "phone", Kind::TOOL_USE_RESULT, &why, |world| {
            world.finish("phone", Ok(value(1))); // its copy is sent after it
        });
        assert_eq!(world.received("watch", Kind::TOOL_USE_RESULT).len(), 1, "{why:?}");
    }
}

#[test]
fn frame_for_the_room_that_was_not_sent_is_sent_again_in_the_same_join_only() {
    for rejoins in [false, true] {
        let mut world = World::pair(&["t"]);
        world.muted.insert("a".to_owned());
        let frame =
            |it: &mut Session, now| it.send(now, Destination::Room, Kind::new(34), Meta::new(), value(1));
        world.with("a", frame).unwrap().unwrap();
        world.run(SECOND);
        world.muted.remove("a");
        if rejoins {
            world.rejoin("a");
        }
        allow_again(&mut world, "a");
        world.run(SECOND);
        let frames = world.ends["phone"].events.iter().filter(|it| matches!(it, Event::Frame { .. })).count();
        assert_eq!(frames, usize::from(!rejoins), "rejoins: {rejoins}");
    }
}

/// The owner sends its result again, which is acknowledged again.
#[test]
fn result_is_acknowledged_again_if_the_request_that_did_so_is_not_sent() {
    for is_refused in [true, false] {
        let mut world = pair();
        took(&mut world);
        world.notes = Some(Vec::new());
        lose(&mut world, |name, _, frame| name == "a" && frame.kind() == Kind::TOOL_USE_REQUEST);
        let key = world.call("a", request("t")).unwrap();
        assert_eq!(world.count("a", "carried_acks"), 1, "the request carries the acknowledgement");
        let id = world.packet;
        world.with("a", |session, now| match is_refused {
            true => session.handle_send_failed(now, id, SendFailure::Closed),
            false => session.cancel(now, key),
        });
        world.lossy.lose = None;
        world.run(SECOND);
        assert!(world.session("phone").is_drained(), "refused: {is_refused}");
    }
}

/// What was for an observer in the join before is not sent again.
#[test]
fn observer_is_shown_the_tools_of_a_client_that_has_rejoined() {
    let mut world = World::new();
    let sid = world.sid();
    world.play(&Participant::new("watch", sid).role(Role::Observer));
    world.client("phone", Config::default(), &["t"]);
    world.run(SECOND);
    world.with("phone", |session, now| {
        session.handle_event(now, TransportEvent::ConnectionState(ConnectionState::Reconnecting));
    });
    world.ends.get_mut("phone").unwrap().here = false;
    world.unsent = SendFailure::Interrupted;
    world.with("phone", |session, now| session.offer(now, vec![tool("new")])).unwrap().unwrap();
    world.ends.get_mut("watch").unwrap().inbox.clear();
    world.rejoin("phone");
    world.run(SECOND);
    let shown = world.received("watch", Kind::TOOLS_REGISTER);
    let [Message::ToolsRegister(it)] = &shown[..] else { panic!("{shown:?}") };
    assert_eq!(it.tools[0].name, "new");
}

#[test]
fn late_answer_to_a_registration_does_not_follow_a_later_one() {
    let mut world = World::pair(&["t"]);
    world.notes = Some(Vec::new());
    let offer = |world: &mut World, name| {
        world.with("phone", |session, now| session.offer(now, vec![tool(name)])).unwrap().unwrap();
        world.run(30 * MS);
    };
    let before = world.sent("a", Kind::TOOLS_REGISTER_ACK).len();
    lose(&mut world, |from, _, frame| from == "a" && frame.kind() == Kind::TOOLS_REGISTER_ACK);
    offer(&mut world, "u");
    world.lossy.lose = None;
    let id = sent_packet(&world, "a", Kind::TOOLS_REGISTER_ACK);
    world.with("a", |session, now| session.handle_send_failed(now, id, SendFailure::QueueFull));
    offer(&mut world, "v");
    world.run(5 * SECOND);
    assert_eq!(world.sent("a", Kind::TOOLS_REGISTER_ACK).len() - before, 2);
}

/// Its packet waits for the permission, which nothing shows to be back before the first acknowledgement.
#[test]
fn registration_that_was_not_allowed_does_not_follow_one_of_a_minute_ago() {
    let mut world = World::pair(&["t"]);
    world.notes = Some(Vec::new());
    lose(&mut world, |from, _, frame| from == "phone" && frame.kind() == Kind::TOOLS_REGISTER);
    world.with("phone", |session, now| session.offer(now, vec![tool("u")])).unwrap().unwrap();
    world.lossy.lose = None;
    let id = sent_packet(&world, "phone", Kind::TOOLS_REGISTER);
    world.with("phone", |session, now| session.handle_send_failed(now, id, SendFailure::NotAllowed));
    world.run(5 * SECOND);
    world.with("phone", |session, now| session.offer(now, vec![tool("v")])).unwrap().unwrap();
    world.run(60 * SECOND);
    let before = world.sent("phone", Kind::TOOLS_REGISTER).len();
    assert!(world.ask("a", request("v")).is_err(), "the client may not send");
    world.run(5 * SECOND);
    assert_eq!(world.sent("phone", Kind::TOOLS_REGISTER).len(), before);
    let offers = world.session("a").tools();
    assert_eq!(offers.iter().map(|offer| offer.tool.name().as_str()).collect::<Vec<_>>(), ["v"]);
}

#[test]
fn acknowledgement_of_no_frame_of_this_run_does_not_show_that_packets_pass() {
    let mut world = World::pair(&["t"]);
    world.notes = Some(Vec::new());
    world.handle("phone", |_| Some(Ok(value(1))));
    assert!(world.ask("a", request("t")).is_ok());
    let id = sent_packet(&world, "phone", Kind::TOOL_USE_RESULT);
    world.with("phone", |session, now| session.handle_send_failed(now, id, SendFailure::NotAllowed));
    for stanza in [1_000, -1_000] {
        for named in [None, Some("of-another-run".to_owned())] {
            let it = with!(
                Acknowledgement::default(),
                acknowledged_stanza_id = Some(stanza),
                acknowledged_message_id = named,
                success = Some(true)
            );
            world.send("a", &["phone"], &Meta::new(), &Message::Acknowledgement(it));
        }
    }
    world.run(100 * MS);
    assert!(world.ask("a", request("t")).is_err(), "the client may not send");
    allow_again(&mut world, "phone");
    world.run(SECOND);
    assert!(world.ask("a", request("t")).is_ok());
}

/// The packets before it may have arrived, so the frame is the same one when it is sent again.
#[test]
fn result_whose_reliable_copy_found_no_room_keeps_its_stanza() {
    let mut world = pair();
    world.notes = Some(Vec::new());
    world.ends.get_mut("phone").unwrap().handler = None;
    let key = world.call("a", request("t")).unwrap();
    world.run(SECOND);
    lose(&mut world, |name, _, frame| name == "phone" && frame.kind() == Kind::TOOL_USE_RESULT);
    let before = world.sent("phone", Kind::TOOL_USE_RESULT).len();
    world.finish("phone", Ok(value(1)));
    while !lanes(&world, "phone", Kind::TOOL_USE_RESULT).contains(&Lane::Reliable) {
        assert!(world.step());
    }
    let id = sent_packet(&world, "phone", Kind::TOOL_USE_RESULT);
    world.with("phone", |session, now| session.handle_send_failed(now, id, SendFailure::QueueFull));
    world.lossy.lose = None;
    world.run(5 * SECOND);
    assert!(world.settled("a", key).is_some_and(Result::is_ok));
    let sent = world.sent("phone", Kind::TOOL_USE_RESULT);
    assert!(sent.len() - before > 2 && sent[before..].windows(2).all(|two| two[0].1 == two[1].1));
}
