//! Assistants that leave, are killed or fall silent, and how soon their client serves the next one.

use toolbridge::{
    CallError, Config, Event,
    frame::{Configuration, Kind, Message, Meta},
    session::{Counter, SelectionPolicy},
    transport::{Participant, TransportEvent},
};

use crate::session_world::{Fate, MS, SECOND, World, receivers, request, value};

fn bound(world: &World) -> Option<&str> {
    world.session("phone").bound().map(|id| id.as_str())
}

/// A room in which the phone is bound to the assistant `a`, and the assistant `b` waits.
fn two_assistants() -> World {
    let mut world = World::pair(&["t"]);
    world.assistant("b", Config::default());
    world.run(2 * SECOND);
    assert_eq!(bound(&world), Some("a"));
    world
}

#[test]
fn assistant_that_leaves_before_the_handshake_is_complete_says_goodbye() {
    let mut world = World::new();
    world.client("phone", Config::default(), &["t"]);
    world.run(SECOND);
    world.assistant("a", Config::default());
    // The phone has received the assistant's Configuration, and its own is in transit.
    while bound(&world).is_none() {
        assert!(world.step());
    }
    assert!(world.ends["a"].inbox.is_empty());
    world.with("a", |session, now| session.close(now));
    world.leave("a");
    world.run(45 * MS);
    assert_eq!(bound(&world), None);
}

/// Its program is still in the room: nothing but the goodbye says that the other one is the only candidate.
#[test]
fn goodbye_of_one_of_two_candidates_binds_the_other() {
    let mut world = two_assistants();
    world.handle("phone", |_| Some(Ok(value(1))));
    world.assistant("c", Config::default());
    world.run(SECOND);
    world.with("a", |session, now| session.close(now));
    world.leave("a");
    world.run(SECOND);
    assert_eq!(bound(&world), None, "b or c");
    world.with("c", |session, now| session.close(now));
    world.run(SECOND);
    assert_eq!(bound(&world), Some("b"));
    assert_eq!(world.ask("b", request("t")).unwrap(), value(1));
}

#[test]
fn departed_assistant_without_open_calls_makes_room_for_the_next() {
    let mut world = two_assistants();
    world.leave("a");
    world.run(500 * MS);
    assert_eq!(bound(&world), Some("a"), "a rejoin is announced as a leave and a join");
    world.run(200 * MS);
    assert_eq!(bound(&world), Some("b"));
    world.handle("phone", |_| Some(Ok(value(1))));
    assert_eq!(world.ask("b", request("t")).unwrap(), value(1));
}

#[test]
fn departed_assistant_with_an_open_call_is_kept_for_the_grace_period() {
    let mut world = two_assistants();
    world.call("a", request("t")).unwrap();
    world.run(SECOND);
    world.leave("a");
    world.run(4_900 * MS);
    assert_eq!(bound(&world), Some("a"));
    assert!(world.ends["phone"].aborted.is_empty());
    world.run(500 * MS);
    assert_eq!(bound(&world), Some("b"));
    assert_eq!(world.ends["phone"].aborted.len(), 1);
}

/// The client checks a present assistant each 500 ms.
#[test]
fn absent_assistant_is_replaced_500_ms_after_it_left_whoever_joins_meanwhile() {
    for phase in 0..5 {
        let mut world = two_assistants();
        world.run(phase * 100 * MS);
        world.leave("a");
        for guest in 0..5 {
            world.stranger(&format!("guest{guest}"));
            world.run(100 * MS);
        }
        world.run(40 * MS); // the leave was announced after 50 ms
        assert_eq!(bound(&world), Some("a"), "{phase}");
        world.run(20 * MS);
        assert_eq!(bound(&world), Some("b"), "{phase}");
    }
}

#[test]
fn assistant_that_rejoins_stays_bound_while_another_one_waits() {
    let mut world = two_assistants();
    for announce in [10 * MS, SECOND] {
        world.announce = announce;
        world.rejoin("a");
        world.run(10 * SECOND);
        assert_eq!(bound(&world), Some("a"));
    }
}

#[test]
fn killed_assistant_is_replaced_by_one_that_waits_before_the_room_reports_it() {
    let mut world = World::pair(&["t"]);
    world.call("a", request("t")).unwrap();
    world.run(SECOND);
    world.ends.get_mut("a").unwrap().here = false; // the room still lists it
    world.run(60 * SECOND);
    assert_eq!(bound(&world), Some("a"), "nobody else waits");
    world.assistant("b", Config::default());
    world.run(3_900 * MS);
    assert_eq!(bound(&world), Some("a"), "it has not been asked before");
    world.run(600 * MS);
    assert_eq!(bound(&world), Some("b"));
    let mut world = two_assistants();
    world.ends.get_mut("a").unwrap().here = false;
    world.run(4 * SECOND);
    assert_eq!(bound(&world), Some("a"));
    world.run(3 * SECOND);
    assert_eq!(bound(&world), Some("b"));
}

/// "A client binds the only eligible participant that has sent a frame": also one that it had given up.
#[test]
fn assistant_that_was_given_up_is_bound_again_when_it_is_heard_and_alone() {
    let mut world = two_assistants();
    world.handle("phone", |_| Some(Ok(value(1))));
    world.ends.get_mut("a").unwrap().here = false; // its connection is interrupted, and resumes under the same sid
    world.run(8 * SECOND);
    assert_eq!(bound(&world), Some("b"));
    world.ends.get_mut("a").unwrap().here = true;
    world.run(2 * SECOND);
    assert_eq!(bound(&world), Some("b"));
    world.with("b", |session, now| session.close(now));
    world.leave("b");
    assert!(world.ask("a", request("t").timeout(8 * SECOND)).is_ok() || bound(&world) == Some("a"));
    world.run(SECOND);
    assert_eq!(bound(&world), Some("a"));
    assert_eq!(world.ask("a", request("t")).unwrap(), value(1));
}

#[test]
fn assistant_that_answers_pings_stays_bound_however_long_another_one_waits() {
    let mut world = two_assistants();
    world.run(300 * SECOND);
    assert_eq!(bound(&world), Some("a"));
    let pings = world.session("phone").stats().count(Counter::Pings);
    assert!((100..400).contains(&pings), "{pings}");
}

/// Another one that joins does not make its earlier silence a sign.
#[test]
fn idle_assistant_stays_bound_when_another_one_joins() {
    let mut world = World::pair(&["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    for (n, idle) in [4_u32, 6, 60, 600].into_iter().enumerate() {
        world.ask("a", request("t")).unwrap();
        world.run(idle * SECOND);
        let other = format!("b{n}");
        world.assistant(&other, Config::default());
        for _ in 0..40 {
            world.run(250 * MS);
            assert_eq!(bound(&world), Some("a"), "idle for {idle} s");
        }
        world.with(&other, |session, now| session.close(now));
        world.leave(&other);
    }
}

#[test]
fn plain_assistant_is_not_replaced_because_it_is_silent() {
    let mut world = World::new();
    world.client("phone", Config::default(), &["t"]);
    let who = Participant::new("a", world.sid()).agent(true);
    world.play(&who);
    world.run(SECOND);
    world.send("a", &["phone"], &Meta::new(), &Message::Configuration(Configuration::default()));
    world.run(SECOND);
    world.assistant("b", Config::default());
    world.run(60 * SECOND);
    assert_eq!(bound(&world), Some("a"), "it acknowledges nothing, so its silence shows nothing");
}

/// It may not be heard while several others wait, and an assistant that it has refused has forgotten its tools.
#[test]
fn client_registers_again_with_an_assistant_that_it_had_given_up() {
    let mut world = two_assistants();
    world.assistant("c", Config::default());
    world.run(2 * SECOND);
    world.ends.get_mut("a").unwrap().here = false; // its connection is interrupted, and resumes under the same sid
    world.run(10 * SECOND);
    assert_eq!(bound(&world), None, "two others wait");
    world.ends.get_mut("a").unwrap().here = true;
    world.handle("phone", |_| Some(Ok(value(1))));
    assert!(world.ask("a", request("t").owner_wait(SECOND)).is_err());
    for name in ["b", "c"] {
        world.with(name, |session, now| session.close(now));
        world.leave(name);
    }
    world.run(SECOND);
    assert_eq!(bound(&world), Some("a"));
    assert_eq!(world.ask("a", request("t").owner_wait(SECOND)).unwrap(), value(1));
}

#[test]
fn participant_that_leaves_under_an_unannounced_sid_does_not_return_to_the_sid_that_it_left() {
    let mut world = World::pair(&["t"]);
    let key = world.call("a", request("t").timeout(60 * SECOND)).unwrap();
    world.run(SECOND);
    world.announce = 30 * SECOND;
    let left = world.ends["phone"].who.peer().clone();
    world.rejoin("phone");
    world.run(SECOND);
    world.with("a", |session, now| session.handle_event(now, TransportEvent::Left(left)));
    world.ends.get_mut("phone").unwrap().here = false;
    world.run(15 * SECOND);
    assert!(matches!(world.settled("a", key), Some(Err(CallError::Lost { .. }))));
    let of_phone = |event: &&Event| matches!(event, Event::Joined(who) if who.identity() == "phone");
    assert_eq!(world.ends["a"].events.iter().filter(of_phone).count(), 1);
    assert!(world.session("a").tools().is_empty());
}

#[test]
fn assistant_that_said_goodbye_is_sent_no_withdrawal_of_the_tools() {
    let mut world = two_assistants();
    let before = world.sent("phone", Kind::TOOLS_REGISTER).len();
    world.with("a", |session, now| session.close(now));
    world.run(2 * SECOND);
    assert_eq!(bound(&world), Some("b"));
    let sent = world.sent("phone", Kind::TOOLS_REGISTER);
    assert_eq!(receivers(&sent[before..]), ["b".into()].into());
}

/// SDKs report everybody as gone while they reconnect.
#[test]
fn assistant_that_said_goodbye_is_not_greeted_when_its_join_is_announced_again() {
    let mut world = World::pair(&["t"]);
    world.with("a", |session, now| session.close(now));
    world.leave("a");
    world.run(SECOND);
    let before = world.sent("phone", Kind::CONFIGURATION).len();
    world.ends.get_mut("a").unwrap().here = true;
    world.announce("a");
    world.run(10 * SECOND);
    assert_eq!(world.sent("phone", Kind::CONFIGURATION).len(), before);
}

/// It has nothing to send, so only a ping shows that it is there again.
#[test]
fn assistant_that_was_given_up_is_bound_again_when_the_next_one_leaves() {
    let mut world = two_assistants();
    world.fate = Some(Box::new(|_, from, _| if *from == "a" { Fate::IsLost } else { Fate::Arrives }));
    world.run(20 * SECOND);
    assert_eq!(bound(&world), Some("b"));
    world.fate = None;
    world.run(20 * SECOND);
    world.with("b", |session, now| session.close(now));
    world.run(SECOND);
    assert_eq!(bound(&world), Some("a"));
}

/// Its join was never announced, and so its departure is not.
#[test]
fn the_only_candidate_left_is_bound_when_the_other_vanishes_unannounced() {
    let mut world = two_assistants();
    world.assistant("c", Config::default());
    world.run(SECOND);
    world.with("a", |session, now| session.close(now));
    world.run(SECOND);
    assert_eq!(bound(&world), None, "two are left");
    world.announce = 60 * SECOND;
    let left = world.ends["c"].who.peer().clone();
    world.rejoin("c");
    world.run(SECOND);
    world.with("phone", |session, now| session.handle_event(now, TransportEvent::Left(left)));
    world.ends.get_mut("c").unwrap().here = false;
    world.run(SECOND);
    assert_eq!(bound(&world), None, "it was heard a moment ago");
    world.run(6 * SECOND);
    assert_eq!(bound(&world), Some("b"));
}

/// The one that came first is selected when the bound one leaves, whatever their names are.
#[test]
fn candidates_that_wait_keep_the_order_in_which_they_came() {
    let mut world = World::new();
    world.client("phone", Config::default().choose(SelectionPolicy::First), &["t"]);
    for name in ["a", "c", "b"] {
        world.assistant(name, Config::default());
        world.run(SECOND);
    }
    world.with("a", |session, now| session.close(now));
    world.leave("a");
    world.run(SECOND);
    assert_eq!(bound(&world), Some("c"));
}
