//! Views: the latest state reaches every client once, on virtual time.

#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use serde_json::{Value as Json, json};
use toolbridge::{
    Config, ConnectionState, Event, Progress, Role, Value,
    frame::{Acknowledgement, Configuration, Frame, Kind, Message, Meta, ToolsRegister, ViewUpdate},
    session::SendFailure,
    tools::ReportError,
    transport::{Participant, TransportEvent},
};

use crate::{
    session_disclosure::recorded,
    session_unsent::{allow_again, refuse},
    session_world::{Fate, MS, SECOND, World, request, sent_packet},
};

fn room() -> World {
    let mut world = World::new();
    world.notes = Some(Vec::new());
    world.assistant("a", Config::default());
    world.client("phone", Config::default(), &["t"]);
    let sid = world.sid();
    world.play(&Participant::new("watch", sid).role(Role::Observer));
    world.run(SECOND);
    world
}

fn show(world: &mut World, view: &str, content: Json) -> Result<(), ReportError> {
    let text = content.as_i64().map(|n| format!("{n} %"));
    let content = Value::from(content);
    world.with("a", |session, now| session.show_view(now, view, content, text)).unwrap()
}

/// The states that a client's session reported.
fn seen(world: &World, name: &str) -> Vec<(String, Json)> {
    let view = |event: &Event| match event {
        Event::View { view, .. } => Some((view.view.clone(), view.content.to_json())),
        _ => None,
    };
    world.ends[name].events.iter().filter_map(view).collect()
}

fn state(view: &str, content: impl Into<Json>) -> (String, Json) {
    (view.to_owned(), content.into())
}

#[test]
fn view_reaches_clients_and_the_last_of_a_burst_is_sent() {
    let mut world = room();
    show(&mut world, "load", json!(1)).unwrap();
    for n in 2..=9 {
        show(&mut world, "load", json!(n)).unwrap();
    }
    world.run(SECOND);
    assert_eq!(seen(&world, "phone"), [state("load", 1), state("load", 9)]);
    assert_eq!(world.received("watch", Kind::VIEW_UPDATE).len(), 2, "observers get copies");
    assert_eq!(world.session("a").stats().named("progress_dropped"), 7);
    show(&mut world, "load", Json::Null).unwrap();
    world.run(SECOND);
    assert_eq!(seen(&world, "phone").last(), Some(&state("load", Json::Null)));
    recorded(&world);
}

#[test]
fn client_that_joins_later_gets_the_latest_state_of_each_view() {
    let mut world = room();
    show(&mut world, "load", json!(1)).unwrap();
    show(&mut world, "plan", json!({"steps": 3})).unwrap();
    show(&mut world, "gone", json!(1)).unwrap();
    world.run(SECOND);
    show(&mut world, "load", json!(2)).unwrap();
    show(&mut world, "gone", Json::Null).unwrap();
    world.client("tablet", Config::default(), &[]);
    world.run(2 * SECOND);
    let mut states = seen(&world, "tablet");
    states.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(states, [state("load", 2), state("plan", json!({"steps": 3}))]);
}

#[test]
fn views_end_when_another_assistant_takes_over() {
    let mut world = room();
    show(&mut world, "load", json!(1)).unwrap();
    world.run(SECOND);
    world.assistant("b", Config::default());
    world.run(SECOND);
    world.leave("a");
    world.run(2 * SECOND);
    assert_eq!(world.session("phone").bound().unwrap(), "b");
    assert_eq!(seen(&world, "phone"), [state("load", 1), state("load", Json::Null)]);
}

#[test]
fn state_whose_packet_was_not_sent_is_sent_again() {
    let mut world = room();
    show(&mut world, "load", json!(1)).unwrap();
    world.run(SECOND);
    for why in [SendFailure::QueueFull, SendFailure::Interrupted] {
        world.unsent = why.clone();
        world.ends.get_mut("a").unwrap().here = false;
        show(&mut world, "load", Json::Null).unwrap();
        world.ends.get_mut("a").unwrap().here = true;
        world.run(2 * SECOND);
        if why == SendFailure::Interrupted {
            assert_eq!(seen(&world, "phone").last(), Some(&state("load", 1)));
            for at in [ConnectionState::Reconnecting, ConnectionState::Connected] {
                world
                    .with("a", |session, now| session.handle_event(now, TransportEvent::ConnectionState(at)));
            }
            world.run(SECOND);
        }
        assert_eq!(seen(&world, "phone").last(), Some(&state("load", Json::Null)), "{why:?}");
        show(&mut world, "load", json!(1)).unwrap();
        world.run(SECOND);
    }
}

#[test]
fn large_view_is_a_stream() {
    let mut world = World::new();
    world.assistant("a", Config::default().streams(true));
    world.client("phone", Config::default().streams(true), &["t"]);
    world.client("plain", Config::default(), &["u"]);
    world.run(SECOND);
    let text = "x".repeat(60_000);
    show(&mut world, "page", json!({"text": text})).unwrap();
    show(&mut world, "load", json!(1)).unwrap();
    world.run(SECOND);
    assert!(seen(&world, "phone") == [state("page", json!({"text": text})), state("load", 1)]);
    assert_eq!(seen(&world, "plain"), [state("load", 1)], "it takes no streams");
    assert_eq!(world.session("a").stats().named("report_refused"), 1);
}

/// A driver that has queued it sends only the later one.
#[test]
fn large_state_that_another_one_replaces_is_sent_no_further() {
    let mut world = World::new();
    world.assistant("a", Config::default().streams(true));
    world.client("phone", Config::default().streams(true), &["t"]);
    world.run(SECOND);
    show(&mut world, "page", json!({"text": "x".repeat(60_000)})).unwrap();
    let before = world.packet;
    assert!(world.session("a").is_wanted(before));
    world.ends.get_mut("phone").unwrap().here = false; // it acknowledges nothing
    world.run(300 * MS);
    show(&mut world, "page", json!({"text": "y".repeat(60_000)})).unwrap();
    assert!(!world.session("a").is_wanted(before) && world.session("a").is_wanted(world.packet));
    world.with("a", |session, now| session.close(now));
    assert!(!world.session("a").is_wanted(before), "the driver may still have it");
}

#[test]
fn state_and_progress_that_are_for_the_model_alone_are_not_sent() {
    let mut world = room();
    let hidden = || json!({"note": "planted", "annotations": {"audience": ["assistant"]}});
    show(&mut world, "load", json!(1)).unwrap();
    world.run(SECOND);
    show(&mut world, "load", hidden()).unwrap();
    world.call("a", request("t")).unwrap();
    world.run(SECOND);
    let job = world.ends["phone"].jobs[0].key;
    let progress = Progress::started().content(Value::from(hidden()));
    world.with("phone", |session, now| session.progress(now, job, progress));
    world.run(SECOND);
    assert_eq!(seen(&world, "phone"), [state("load", 1), state("load", Json::Null)]);
    assert!(!format!("{:?}", world.ends["a"].events).contains("planted"));
}

#[test]
fn wrong_view_is_refused() {
    let mut world = room();
    assert_eq!(show(&mut world, "", json!(1)).unwrap_err(), ReportError::View { limit: 128 });
    assert_eq!(show(&mut world, &"v".repeat(129), json!(1)).unwrap_err(), ReportError::View { limit: 128 });
    assert_eq!(show(&mut world, "a\u{1b}[2J", json!(1)).unwrap_err(), ReportError::View { limit: 128 });
    let large = show(&mut world, "v", json!("x".repeat(65_536))).unwrap_err();
    assert!(matches!(large, ReportError::TooLarge { limit: 65_536, .. }));
    for n in 0..16 {
        show(&mut world, &format!("v{n}"), json!(n)).unwrap();
    }
    assert_eq!(show(&mut world, "v16", json!(1)).unwrap_err(), ReportError::TooMany { open: 16, limit: 16 });
    show(&mut world, "v3", Json::Null).unwrap();
    show(&mut world, "unknown", Json::Null).unwrap();
    world.run(SECOND);
    show(&mut world, "v16", json!(1)).unwrap();
    let shown = world.with("phone", |session, now| session.show_view(now, "v", Value::nil(), None)).unwrap();
    assert_eq!(shown.unwrap_err(), ReportError::NotAnAssistant);
}

#[test]
fn client_that_does_not_list_views_gets_none() {
    let mut world = room();
    show(&mut world, "plan", json!(1)).unwrap(); // it is shown to those that register later, too
    for (name, lists) in [("old", false), ("new", true)] {
        let sid = world.sid();
        world.play(&Participant::new(name, sid).role(Role::Client));
        world.run(SECOND);
        let features = ["tool_use", "tool_register"].into_iter().chain(lists.then_some("view_update"));
        let features = Some(features.map(str::to_owned).collect());
        let meta = Meta::new().with_bool("bridge.heard", true).with_text("bridge.instance", name);
        let configuration = Message::Configuration(with!(Configuration::default(), features = features));
        world.send(name, &["a"], &meta, &configuration);
        world.send(name, &["a"], &Meta::new(), &Message::ToolsRegister(ToolsRegister::default()));
        world.run(SECOND);
    }
    show(&mut world, "load", json!(1)).unwrap();
    world.run(SECOND);
    assert_eq!(world.received("new", Kind::VIEW_UPDATE).len(), 2);
    assert!(world.received("old", Kind::VIEW_UPDATE).is_empty());
}

#[test]
fn view_of_another_than_the_bound_assistant_has_no_effect() {
    let mut world = room();
    world.stranger("x");
    world.run(SECOND);
    let view = Message::ViewUpdate(ViewUpdate::new("load", Value::from(json!(1))));
    world.send("x", &["phone", "a"], &Meta::new(), &view);
    world.run(SECOND);
    assert!(seen(&world, "phone").is_empty());
    for name in ["phone", "a"] {
        let stats = world.session(name).stats();
        assert_eq!(stats.named("not_permitted") + stats.named("unauthorized"), 1, "{name}: {stats:?}");
    }
}

#[test]
fn client_that_returns_learns_that_a_view_has_ended() {
    let mut world = room();
    for view in ["load", "plan"] {
        show(&mut world, view, json!(1)).unwrap();
    }
    world.run(SECOND);
    world.leave("phone");
    world.run(SECOND);
    show(&mut world, "load", Json::Null).unwrap();
    for n in 0..13 {
        show(&mut world, &format!("v{n}"), json!(n)).unwrap(); // these need no place of an ended view
    }
    world.run(SECOND);
    world.ends.get_mut("phone").unwrap().events.clear();
    world.rejoin("phone");
    world.run(SECOND);
    let states = seen(&world, "phone");
    assert!(states.contains(&state("load", Json::Null)) && states.contains(&state("plan", 1)), "{states:?}");
}

#[test]
fn of_sixty_four_names_the_one_whose_view_ended_first_is_forgotten() {
    let mut world = room();
    world.fate = Some(Box::new(|to, _, frame| match (to, frame.kind()) {
        ("phone", Kind::VIEW_UPDATE) => Fate::IsLost,
        _ => Fate::Arrives,
    }));
    for n in 0..65 {
        for content in [json!(1), Json::Null] {
            show(&mut world, &format!("v{n}"), content).unwrap();
            world.run(SECOND);
        }
    }
    world.fate = None;
    world.rejoin("phone");
    world.run(SECOND);
    let ended: Vec<_> = seen(&world, "phone").into_iter().map(|(name, _)| name).collect();
    assert_eq!(ended.len(), 64);
    assert!(!ended.contains(&"v0".to_owned()) && ended.contains(&"v63".to_owned()), "{ended:?}");
}

#[test]
fn views_end_with_their_assistant() {
    for is_replaced in [true, false] {
        let mut world = room();
        show(&mut world, "load", json!(1)).unwrap();
        show(&mut world, "gone", json!(1)).unwrap();
        world.run(SECOND);
        show(&mut world, "gone", Json::Null).unwrap();
        world.run(SECOND);
        world.ends.get_mut("phone").unwrap().events.clear();
        world.leave("a");
        if is_replaced {
            world.assistant("a", Config::default());
            world.run(SECOND);
        } else {
            world.run(10 * SECOND);
        }
        assert_eq!(seen(&world, "phone"), [state("load", Json::Null)], "{is_replaced}");
    }
}

#[test]
fn state_that_is_too_large_is_malformed() {
    let mut world = World::new();
    let sid = world.sid();
    world.play(&Participant::new("a", sid).agent(true));
    world.client("phone", Config::default(), &["t"]);
    world.run(SECOND);
    let meta = Meta::new().with_bool("bridge.heard", true).with_text("bridge.instance", "one");
    world.send("a", &["phone"], &meta, &Message::Configuration(Configuration::default()));
    let largest = "x".repeat(64 * 1024 - 3); // a string of this length has a head of three bytes
    for (text, is_seen) in [(largest.clone(), true), (largest + "x", false)] {
        let view = Message::ViewUpdate(ViewUpdate::new("plan", Value::from(json!(text))));
        world.send("a", &["phone"], &Meta::new(), &view);
        world.run(SECOND);
        assert_eq!(world.count("phone", "malformed"), u64::from(!is_seen));
        assert_eq!(seen(&world, "phone").len(), 1, "the first one only");
    }
}

/// An assistant shows at most 16, so the end of one was lost.
#[test]
fn client_has_at_most_sixteen_views() {
    let mut world = World::new();
    let sid = world.sid();
    world.play(&Participant::new("a", sid).agent(true));
    world.client("phone", Config::default(), &["t"]);
    world.run(SECOND);
    let meta = Meta::new().with_bool("bridge.heard", true).with_text("bridge.instance", "one");
    world.send("a", &["phone"], &meta, &Message::Configuration(Configuration::default()));
    for n in 0..17 {
        let view = Message::ViewUpdate(ViewUpdate::new(format!("v{n}"), Value::from(json!(n))));
        world.send("a", &["phone"], &Meta::new(), &view);
    }
    let again = Message::ViewUpdate(ViewUpdate::new("v1", Value::from(json!("later"))));
    world.send("a", &["phone"], &Meta::new(), &again);
    let more = Message::ViewUpdate(ViewUpdate::new("v17", Value::from(json!(17))));
    world.send("a", &["phone"], &Meta::new(), &more);
    world.run(SECOND);
    let ended: Vec<_> = seen(&world, "phone").into_iter().filter(|(_, content)| content.is_null()).collect();
    assert_eq!(ended, [state("v0", Json::Null), state("v2", Json::Null)]);
}

#[test]
fn state_that_arrives_after_a_later_one_is_not_shown() {
    let mut world = World::new();
    let sid = world.sid();
    world.play(&Participant::new("a", sid).agent(true));
    world.client("phone", Config::default(), &["t"]);
    world.run(SECOND);
    let meta = Meta::new().with_bool("bridge.heard", true).with_text("bridge.instance", "one");
    world.send("a", &["phone"], &meta, &Message::Configuration(Configuration::default()));
    let show = |world: &mut World, stanza: i32, view: &str, content: Json| {
        let view = Message::ViewUpdate(ViewUpdate::new(view, Value::from(content)));
        world.send_bytes("a", &["phone"], &Frame::write(-stanza, "room", &Meta::new(), &view).unwrap());
    };
    // A state of another view may be older: it was lost before.
    for (stanza, view, content) in [
        (9, "x", json!(9)),
        (8, "x", json!(8)),
        (7, "y", json!(7)),
        (12, "x", Json::Null),
        (11, "x", json!(11)),
    ] {
        show(&mut world, stanza, view, content);
        world.run(SECOND);
    }
    assert_eq!(seen(&world, "phone"), [state("x", 9), state("y", 7), state("x", Json::Null)]);
}

/// Shows a view as an assistant.
fn show_as(world: &mut World, name: &str, view: &str, content: Json) {
    let content = Value::from(content);
    world.with(name, |session, now| session.show_view(now, view, content, None)).unwrap().unwrap();
}

#[test]
fn client_that_binds_an_assistant_later_gets_its_views() {
    for was_first in [true, false] {
        let mut world = World::new();
        world.assistant("a", Config::default());
        if was_first {
            world.client("phone", Config::default(), &["t"]);
            world.run(SECOND);
        }
        world.assistant("b", Config::default());
        show_as(&mut world, "b", "plan", json!(1));
        world.run(SECOND);
        if !was_first {
            world.client("phone", Config::default(), &["t"]);
            world.run(SECOND);
        }
        assert_eq!(world.session("phone").bound().unwrap(), "a");
        show_as(&mut world, "b", "load", json!(2));
        world.run(SECOND);
        world.leave("a");
        world.run(10 * SECOND);
        assert_eq!(world.session("phone").bound().unwrap(), "b");
        assert_eq!(seen(&world, "phone"), [state("plan", 1), state("load", 2)], "{was_first}");
        assert_eq!(world.count("phone", "not_permitted"), 0, "they were not sent to a client of another");
    }
}

#[test]
fn view_that_was_lost_is_sent_again_with_a_repeated_configuration() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    show(&mut world, "plan", json!(1)).unwrap();
    world.run(SECOND);
    let until = world.now + 500 * MS;
    let clock = std::rc::Rc::new(std::cell::Cell::new(true));
    let is_cut = std::rc::Rc::clone(&clock);
    world.fate = Some(Box::new(move |to, from, _| match is_cut.get() && to == "phone" && *from == "a" {
        true => Fate::IsLost,
        false => Fate::Arrives,
    }));
    world.client("phone", Config::default().assistant("a"), &["t"]);
    while world.now < until {
        world.run(10 * MS);
    }
    clock.set(false);
    world.run(20 * SECOND);
    // Twice at most: the client registers while the first one may be in transit.
    let seen = seen(&world, "phone");
    assert!((1..=2).contains(&seen.len()) && seen.iter().all(|it| *it == state("plan", 1)), "{seen:?}");
}

#[test]
fn view_that_was_not_sent_to_a_new_client_is_sent_again() {
    for why in [SendFailure::QueueFull, SendFailure::Interrupted, SendFailure::NotAllowed] {
        let mut world = room();
        show(&mut world, "plan", json!(1)).unwrap();
        world.run(SECOND);
        refuse(&mut world, "a", Kind::VIEW_UPDATE, &why, |world| {
            world.client("tablet", Config::default(), &[]);
            world.run(300 * MS);
        });
        assert_eq!(seen(&world, "tablet"), [state("plan", 1)], "{why:?}");
        assert_eq!(seen(&world, "phone"), [state("plan", 1)], "{why:?}: it has it");
    }
}

#[test]
fn view_is_sent_when_the_permission_is_granted_again() {
    let mut world = room();
    show(&mut world, "plan", json!(1)).unwrap();
    world.run(SECOND);
    world.muted.insert("a".to_owned());
    show(&mut world, "plan", json!(2)).unwrap();
    world.run(5 * SECOND);
    world.muted.remove("a");
    allow_again(&mut world, "a");
    world.run(SECOND);
    assert_eq!(seen(&world, "phone"), [state("plan", 1), state("plan", 2)]);
}

/// The client takes 16 views, and would end one that goes on for one more.
#[test]
fn end_of_a_view_that_was_not_sent_precedes_the_view_that_follows_it() {
    let mut world = room();
    for n in 0..16 {
        show(&mut world, &format!("v{n}"), json!(n)).unwrap();
        world.run(200 * MS);
    }
    world.unsent = SendFailure::QueueFull;
    world.ends.get_mut("a").unwrap().here = false;
    world.with("a", |session, now| {
        session.show_view(now, "v0", Value::nil(), None).unwrap();
        session.show_view(now, "v16", Value::from(json!(16)), None).unwrap();
    });
    world.ends.get_mut("a").unwrap().here = true;
    world.ends.get_mut("phone").unwrap().events.clear();
    world.run(10 * SECOND);
    assert_eq!(seen(&world, "phone"), [state("v0", Json::Null), state("v16", 16)]);
}

#[test]
fn client_that_has_not_seen_a_view_is_not_sent_its_end() {
    let mut world = room();
    show(&mut world, "load", json!(1)).unwrap();
    world.run(SECOND);
    world.muted.insert("a".to_owned());
    world.client("tablet", Config::default(), &[]);
    world.run(500 * MS);
    show(&mut world, "gone", json!(1)).unwrap();
    show(&mut world, "gone", Json::Null).unwrap();
    show(&mut world, "load", Json::Null).unwrap();
    world.client("late", Config::default(), &[]);
    world.muted.remove("a");
    allow_again(&mut world, "a");
    world.run(5 * SECOND);
    assert!(seen(&world, "late").is_empty(), "{:?}", seen(&world, "late"));
}

#[test]
fn view_that_is_too_large_for_the_transport_is_not_sent_again() {
    let mut world = room();
    let too_large = SendFailure::TooLarge { size: 2, limit: 1 };
    refuse(&mut world, "a", Kind::VIEW_UPDATE, &too_large, |world| {
        show(world, "load", json!(1)).unwrap();
        world.run(300 * MS);
    });
    world.run(SECOND);
    for at in [ConnectionState::Reconnecting, ConnectionState::Connected] {
        world.with("a", |session, now| session.handle_event(now, TransportEvent::ConnectionState(at)));
    }
    world.run(SECOND);
    assert!(seen(&world, "phone").is_empty());
    assert_eq!(world.count("a", "report_refused"), 1);
}

/// An earlier run of the assistant used the stanza for a request.
#[test]
fn acknowledgement_that_names_a_call_is_not_one_of_a_view() {
    for is_unsent in [true, false] {
        let mut world = room();
        show(&mut world, "load", json!(1)).unwrap();
        world.run(SECOND);
        world.fate = Some(Box::new(|to, _, frame| match (to, frame.kind()) {
            ("phone", Kind::VIEW_UPDATE) => Fate::IsLost,
            _ => Fate::Arrives,
        }));
        show(&mut world, "load", Json::Null).unwrap();
        let id = sent_packet(&world, "a", Kind::VIEW_UPDATE);
        let sent = world.sent("a", Kind::VIEW_UPDATE);
        let it = with!(
            Acknowledgement::default(),
            acknowledged_stanza_id = sent.last().unwrap().1.stanza_id(),
            acknowledged_message_id = Some("call".to_owned())
        );
        let bytes = Frame::write(900, "room", &Meta::new(), &Message::Acknowledgement(it)).unwrap();
        let phone = world.ends["phone"].who.peer().clone();
        world.send_bytes_as(&phone, &["a"], &bytes);
        world.run(SECOND);
        world.fate = None;
        if is_unsent {
            world.with("a", |session, now| session.handle_send_failed(now, id, SendFailure::QueueFull));
        } else {
            world.rejoin("phone");
        }
        world.run(3 * SECOND);
        assert_eq!(seen(&world, "phone"), [state("load", 1), state("load", Json::Null)], "{is_unsent}");
    }
}

/// The acknowledgement of the state before arrives after the end was sent, which is lost.
#[test]
fn acknowledgement_of_an_earlier_state_is_not_one_of_the_last() {
    let mut world = room();
    let mut states = 0;
    world.fate = Some(Box::new(move |to, _, frame| {
        states += u32::from(to == "phone" && frame.kind() == Kind::VIEW_UPDATE);
        match (to, frame.kind()) {
            ("a", Kind::ACKNOWLEDGEMENT) => Fate::IsOvertaken(SECOND),
            ("phone", Kind::VIEW_UPDATE) if states == 2 => Fate::IsLost,
            _ => Fate::Arrives,
        }
    }));
    show(&mut world, "load", json!(1)).unwrap();
    world.run(200 * MS);
    show(&mut world, "load", Json::Null).unwrap();
    world.run(3 * SECOND);
    world.rejoin("phone");
    world.run(3 * SECOND);
    assert_eq!(seen(&world, "phone"), [state("load", 1), state("load", Json::Null)]);
}

#[test]
fn view_whose_end_waits_keeps_its_place() {
    let mut world = room();
    show(&mut world, "load", json!(1)).unwrap();
    world.run(SECOND);
    show(&mut world, "load", json!(2)).unwrap();
    world.run(50 * MS);
    show(&mut world, "load", Json::Null).unwrap();
    show(&mut world, "plan", json!(1)).unwrap();
    world.run(SECOND);
    assert!(seen(&world, "phone").contains(&state("load", Json::Null)));
}

#[test]
fn process_that_replaces_another_one_is_not_sent_the_end_of_a_view_that_it_has_not_seen() {
    let mut world = room();
    show(&mut world, "load", json!(1)).unwrap();
    world.run(SECOND);
    world.leave("phone");
    world.run(200 * MS);
    show(&mut world, "load", Json::Null).unwrap();
    world.client("phone", Config::default(), &["t"]);
    world.run(2 * SECOND);
    assert_eq!(seen(&world, "phone"), []);
}

/// Its last state was acknowledged, and the end is held back, because the state before was sent a moment ago.
#[test]
fn client_that_returns_just_before_the_end_of_a_view_is_sent_learns_of_it() {
    let mut world = room();
    show(&mut world, "timer", json!(1)).unwrap();
    world.run(60 * MS);
    show(&mut world, "timer", json!(null)).unwrap();
    world.rejoin("phone");
    world.run(35 * MS); // it has registered, and less than 0.1 s has passed since the first state
    assert_eq!(seen(&world, "phone").len(), 1);
    world.run(SECOND);
    assert_eq!(seen(&world, "phone").last(), Some(&state("timer", json!(null))));
}
