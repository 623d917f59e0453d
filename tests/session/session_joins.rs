//! Rights belong to a join: another participant under the identity of one that has left gets none of them.

use std::time::Duration;

use toolbridge::{
    CallError, Config, Event, Role,
    frame::{
        Configuration, ControlStop, Frame, Kind, Message, Meta, RegisteredTool, ToolUseResult, ToolsRegister,
    },
    session::{SelectionPolicy, Session, Unaccepted},
    tools::{Execution, NotAdmitted, NotAssistant, NotOffered},
    transport::{Participant, ROLE_ATTRIBUTE, TransportEvent},
};

use crate::session_world::{MS, SECOND, World, plain_request, request, seed, value};

/// Longer than the room takes to announce a participant, and than a frame waits for it.
const LATE: Duration = Duration::from_secs(30);

/// The ways in which an assistant leaves.
#[derive(Clone, Copy, Debug)]
enum End {
    Goodbye,
    Killed,
    /// It is still in the room when the next one takes over its identity.
    Replaced,
}

/// A room with an assistant `a` and a client `phone`, whose roles are those of their tokens.
fn room(tools: &[&str]) -> World {
    let mut world = World::new();
    let who = with_role(&mut world, "a", Role::Assistant);
    let session = Session::assistant(world.now, who.clone(), Config::default().room("room"), seed("a", 1));
    world.enter(&who, Some(session));
    world.client("phone", Config::default(), tools);
    world.run(SECOND);
    world
}

fn with_role(world: &mut World, name: &str, role: Role) -> Participant {
    Participant::new(name, world.sid()).role(role)
}

fn without_role(world: &mut World, name: &str) -> Participant {
    Participant::new(name, world.sid()).can_update_metadata(false)
}

/// The `meta` of a Configuration of the process with this instance.
fn shows(instance: &str) -> Meta {
    Meta::new().with_text("bridge.instance", instance).with_bool("bridge.heard", true)
}

fn configuration() -> Message {
    let listed = ["tool_use", "tool_register", "tool_ack"].map(String::from).to_vec();
    Message::Configuration(with!(Configuration::default(), features = Some(listed)))
}

fn registration(name: &str) -> Message {
    let tool = with!(RegisteredTool::default(), name = name.to_owned());
    Message::ToolsRegister(with!(ToolsRegister::default(), tools = vec![tool]))
}

/// Lets the played participant greet and call, again and again.
fn attack(world: &mut World, name: &str, to: &str, time: Duration) {
    let until = world.now + time;
    let mut number = 0;
    while world.now < until {
        number += 1;
        world.send(name, &[to], &shows("another"), &configuration());
        let plain = plain_request(&format!("{name}{number}"), "erase");
        world.send(name, &[to], &Meta::new(), &Message::ToolUseRequest(plain));
        world.send(name, &[to], &Meta::new(), &registration("erase"));
        world.run(250 * MS);
    }
}

fn jobs(world: &World) -> usize {
    world.executed.iter().filter(|(name, _)| name == "phone").count()
}

fn unaccepted(world: &World) -> Vec<Unaccepted> {
    let of = |event: &Event| match event {
        Event::Unaccepted { why } => Some(why.clone()),
        _ => None,
    };
    world.ends["phone"].events.iter().filter_map(of).collect()
}

#[test]
fn unannounced_join_under_a_departed_assistants_identity_runs_nothing() {
    for end in [End::Goodbye, End::Killed, End::Replaced] {
        for gap in [0, 500, 1_000, 2_500, 3_000, 6_000, 12_000] {
            for role in [None, Some("admin"), Some("client")] {
                let mut world = room(&["erase"]);
                world.handle("phone", |_| Some(Ok(value(1))));
                world.ask("a", request("erase")).unwrap();
                match end {
                    End::Goodbye => {
                        world.with("a", |session, now| session.close(now));
                        world.leave("a");
                    }
                    End::Killed => world.leave("a"),
                    End::Replaced => {}
                }
                world.run(gap * MS);
                world.announce = LATE;
                let who = without_role(&mut world, "a");
                let who = who.attributes(role.map(|role| (ROLE_ATTRIBUTE, role)));
                world.play(&who.can_update_metadata(false));
                attack(&mut world, "a", "phone", 10 * SECOND);
                assert_eq!(jobs(&world), 1, "{end:?} {gap} {role:?}");
                assert!(world.received("a", Kind::TOOLS_REGISTER).is_empty(), "{end:?} {gap} {role:?}");
                // The announcement changes nothing.
                world.run(LATE);
                attack(&mut world, "a", "phone", 10 * SECOND);
                assert_eq!(jobs(&world), 1, "{end:?} {gap} {role:?}");
                assert_eq!(world.session("phone").bound(), None, "{end:?} {gap} {role:?}");
            }
        }
    }
}

#[test]
fn caller_under_a_departed_assistants_identity_reads_that_its_own_token_lacks_the_role() {
    let mut world = room(&["erase"]);
    world.leave("a");
    world.run(SECOND);
    world.announce = 3 * SECOND;
    let who = without_role(&mut world, "a");
    let session = Session::assistant(world.now, who.clone(), Config::default().room("room"), seed("a", 2));
    world.enter(&who, Some(session));
    let error = world.ask("a", request("erase").owner_wait(8 * SECOND)).unwrap_err();
    assert!(error.to_string().contains("its token has no role"), "{error}");
    assert_eq!(jobs(&world), 0);
}

#[test]
fn announced_join_without_a_role_is_not_the_assistant_that_is_bound_under_its_identity() {
    let mut world = room(&["erase"]);
    let who = without_role(&mut world, "a");
    world.play(&who);
    world.run(100 * MS);
    assert!(world.session("phone").bound().is_some(), "the binding lasts until the grace period ends");
    attack(&mut world, "a", "phone", 4 * SECOND);
    assert_eq!(jobs(&world), 0);
    let [Unaccepted::NotAssistant { from, why: NotAssistant::NoRole }] = &unaccepted(&world)[..] else {
        panic!("{:?}", unaccepted(&world))
    };
    assert_eq!(from, "a");
    world.run(5 * SECOND);
    assert_eq!(world.session("phone").bound(), None);
}

#[test]
fn same_process_continues_under_an_unannounced_sid() {
    let mut world = World::pair(&["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    world.announce = LATE;
    for _ in 0..3 {
        for name in ["a", "phone"] {
            world.rejoin(name);
            world.run(100 * MS);
            assert_eq!(world.ask("a", request("t").timeout(SECOND)).unwrap(), value(1));
            world.run(SECOND);
        }
    }
}

#[test]
fn another_process_with_a_role_is_served_once_it_is_announced() {
    let mut world = room(&["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    world.leave("a");
    world.announce = 3 * SECOND;
    let who = with_role(&mut world, "a", Role::Assistant);
    let session = Session::assistant(world.now, who.clone(), Config::default().room("room"), seed("a", 2));
    world.enter(&who, Some(session));
    let began = world.now;
    assert_eq!(world.ask("a", request("t").owner_wait(10 * SECOND)).unwrap(), value(1));
    let took = world.now - began;
    assert!((3 * SECOND..4 * SECOND).contains(&took), "{took:?}");
}

#[test]
fn description_of_one_join_gives_no_right_to_the_process_of_another() {
    let mut world = World::new();
    world.client("phone", Config::default(), &["erase"]);
    let configure = |world: &mut World| {
        let it = world.shows("a", "phone", "I");
        world.send("a", &["phone"], &it, &configuration());
    };
    let who = with_role(&mut world, "a", Role::Assistant);
    world.play(&who);
    world.run(SECOND);
    configure(&mut world);
    world.run(SECOND);
    assert!(world.session("phone").bound().is_some());
    // The process loses its role: its next token has none.
    world.leave("a");
    let who = without_role(&mut world, "a");
    world.play(&who);
    world.run(SECOND);
    configure(&mut world);
    world.run(100 * MS);
    // Somebody else has the role and says nothing. Then the first process returns.
    world.leave("a");
    let who = with_role(&mut world, "a", Role::Assistant);
    world.play(&who);
    world.run(SECOND);
    world.leave("a");
    world.run(SECOND);
    world.announce = LATE;
    let who = without_role(&mut world, "a");
    world.play(&who);
    configure(&mut world);
    world.run(100 * MS);
    world.send("a", &["phone"], &Meta::new(), &Message::ToolUseRequest(plain_request("1", "erase")));
    world.run(10 * SECOND);
    assert_eq!(jobs(&world), 0);
    assert_eq!(world.session("phone").bound(), None);
}

#[test]
fn unannounced_join_does_not_change_its_instance() {
    let mut world = World::new();
    world.client("phone", Config::default(), &["t"]);
    let who = with_role(&mut world, "a", Role::Assistant);
    world.play(&who);
    world.run(SECOND);
    let shows_process = |world: &World, name: &str| world.shows("a", "phone", name);
    let it = shows_process(&world, "I");
    world.send("a", &["phone"], &it, &configuration());
    world.run(SECOND);
    world.announce = LATE;
    let who = without_role(&mut world, "a");
    world.play(&who);
    let it = shows_process(&world, "I");
    world.send("a", &["phone"], &it, &configuration());
    let long = with!(plain_request("1", "t"), timeout_ms = Some(60_000));
    world.send("a", &["phone"], &Meta::new(), &Message::ToolUseRequest(long));
    world.run(100 * MS);
    assert_eq!(world.ends["phone"].jobs.len(), 1, "it continues the announced join");
    let it = shows_process(&world, "J");
    world.send("a", &["phone"], &it, &configuration());
    world.run(SECOND);
    assert!(world.ends["phone"].aborted.is_empty(), "the other instance has to be announced first");
    // The announcement says that the process has no role any more.
    world.run(LATE);
    assert_eq!(world.ends["phone"].aborted.len(), 1);
    assert_eq!(world.session("phone").bound(), None);
}

#[test]
fn named_assistants_unannounced_join_keeps_nothing_that_was_announced_of_another() {
    // The client accepts it by name. The role of an observer that its earlier token had is not its own.
    let mut world = World::new();
    world.client("phone", Config::default().assistant("a"), &["t"]);
    let who = with_role(&mut world, "a", Role::Observer);
    world.play(&who);
    world.run(SECOND);
    world.leave("a");
    world.announce = LATE;
    let who = without_role(&mut world, "a");
    world.play(&who);
    world.send("a", &["phone"], &shows("another"), &configuration());
    world.run(SECOND);
    world.send("a", &["phone"], &Meta::new(), &Message::ToolUseRequest(plain_request("1", "t")));
    world.run(100 * MS);
    assert_eq!(world.ends["phone"].jobs.len(), 1, "its author's word does not depend on the announcement");
    world.finish("phone", Ok(value(1)));
    world.run(100 * MS);
    assert_eq!(world.received("a", Kind::TOOL_USE_RESULT).len(), 1, "it gets no observer's copy");
}

#[test]
fn unannounced_join_under_a_departed_clients_identity_offers_and_answers_nothing() {
    for end in [End::Killed, End::Replaced] {
        for gap in [0, 1_000, 6_000] {
            let mut world = room(&["t"]);
            let key = world.call("a", request("t").timeout(60 * SECOND)).unwrap();
            world.run(100 * MS);
            let id = world.session("a").call_id(key).unwrap().clone();
            if let End::Killed = end {
                world.leave("phone");
            }
            world.run(gap * MS);
            world.announce = LATE;
            let who = without_role(&mut world, "phone");
            world.play(&who);
            let forged = with!(ToolUseResult::new(id, true), result = Some(value(666)));
            world.send("phone", &["a"], &Meta::new(), &Message::ToolUseResult(forged));
            attack(&mut world, "phone", "a", 6 * SECOND);
            assert!(world.session("a").tools().iter().all(|offer| offer.tool.name().as_str() != "erase"));
            assert!(world.received("phone", Kind::TOOL_USE_REQUEST).is_empty(), "{end:?} {gap}");
            assert!(!matches!(world.settled("a", key), Some(Ok(_))), "{end:?} {gap}");
        }
    }
}

#[test]
fn result_of_a_later_join_without_rights_is_foreign() {
    let mut world = room(&["t"]);
    let key = world.call("a", request("t").timeout(60 * SECOND)).unwrap();
    world.run(100 * MS);
    let id = world.session("a").call_id(key).unwrap().clone();
    for role in [None, Some(Role::Observer)] {
        let who = without_role(&mut world, "phone");
        world.play(&match role {
            Some(role) => who.role(role),
            None => who,
        });
        world.run(100 * MS);
        let before = world.count("a", "not_permitted");
        let forged = with!(ToolUseResult::new(id.clone(), true), result = Some(value(666)));
        world.send("phone", &["a"], &Meta::new(), &Message::ToolUseResult(forged));
        world.run(100 * MS);
        assert!(world.settled("a", key).is_none());
        assert_eq!(world.count("a", "not_permitted"), before + 1);
    }
}

#[test]
fn late_result_of_a_later_join_without_rights_is_foreign() {
    let mut world = room(&["t"]);
    let key = world.call("a", request("t").timeout(60 * SECOND)).unwrap();
    world.run(100 * MS);
    let id = world.session("a").call_id(key).unwrap().clone();
    world.with("a", |session, now| session.cancel(now, key));
    world.run(100 * MS);
    let who = without_role(&mut world, "phone");
    world.play(&who);
    world.run(100 * MS);
    let (late, foreign) = (world.count("a", "late"), world.count("a", "not_permitted"));
    let forged = with!(ToolUseResult::new(id, true), result = Some(value(666)));
    world.send("phone", &["a"], &Meta::new(), &Message::ToolUseResult(forged));
    world.run(100 * MS);
    assert_eq!((world.count("a", "late"), world.count("a", "not_permitted")), (late, foreign + 1));
}

/// The server describes a participant anew, in the same join.
fn describe(world: &mut World, name: &str, to: &str, change: impl FnOnce(Participant) -> Participant) {
    let who = change(world.ends[name].who.clone());
    world.with(to, |session, now| session.handle_event(now, TransportEvent::Joined(who)));
}

#[test]
fn assistant_whose_role_is_withdrawn_is_unbound_and_its_calls_end() {
    for change in [
        (|who: Participant| who.attributes([(ROLE_ATTRIBUTE, "observer")])) as fn(Participant) -> Participant,
        |who| who.attributes::<&str, &str>([]),
        |who| who.can_update_metadata(true),
    ] {
        let mut world = room(&["t"]);
        world.call("a", request("t")).unwrap();
        world.run(100 * MS);
        assert_eq!(world.ends["phone"].jobs.len(), 1);
        describe(&mut world, "a", "phone", change);
        assert_eq!(world.session("phone").bound(), None);
        assert_eq!(world.ends["phone"].aborted.len(), 1);
        let key = world.call("a", request("t").timeout(2 * SECOND)).unwrap();
        world.run(3 * SECOND);
        assert!(matches!(world.settled("a", key), Some(Err(_))));
        assert_eq!(jobs(&world), 1, "nothing more ran");
        // With its role it is the assistant again.
        describe(&mut world, "a", "phone", |who| who.role(Role::Assistant));
        world.handle("phone", |_| Some(Ok(value(1))));
        assert_eq!(world.ask("a", request("t")).unwrap(), value(1));
        assert!(world.session("phone").bound().is_some());
    }
}

#[test]
fn client_whose_role_is_withdrawn_offers_no_tools() {
    let mut world = room(&["t"]);
    assert_eq!(world.session("a").tools().len(), 1);
    describe(&mut world, "phone", "a", |who| who.attributes::<&str, &str>([]).can_update_metadata(false));
    assert!(world.session("a").tools().is_empty());
    let key = world.call("a", request("t").timeout(2 * SECOND));
    world.run(3 * SECOND);
    assert!(key.is_err() || matches!(world.settled("a", key.unwrap()), Some(Err(_))));
    assert_eq!(jobs(&world), 0);
}

#[test]
fn function_selects_the_join_that_it_was_shown() {
    let mut world = World::new();
    let choose = SelectionPolicy::by(|_, candidates| Some(candidates[0].identity.clone()));
    world.client("phone", Config::default().choose(choose), &["t"]);
    world.answers_selections = false;
    for name in ["first", "a", "b"] {
        let who = with_role(&mut world, name, Role::Assistant);
        world.play(&who);
        world.run(SECOND);
        world.send(name, &["phone"], &shows(name), &configuration());
        world.run(100 * MS);
    }
    world.leave("first");
    world.run(SECOND);
    let (_, first) = world.selections.remove(0);
    // Another participant joins under the selected identity before the function answers.
    let who = with_role(&mut world, "a", Role::Assistant);
    world.play(&who);
    world.run(SECOND);
    world.send("a", &["phone"], &shows("other"), &configuration());
    world.run(SECOND);
    world.with("phone", |session, now| session.select(now, first.key, Some("a".into())));
    assert_eq!(world.session("phone").bound(), None, "the function has not seen this join");
    let (_, second) = world.selections.pop().unwrap();
    world.with("phone", |session, now| session.select(now, second.key, Some("a".into())));
    assert!(world.session("phone").bound().is_some());
}

#[test]
fn call_is_sent_to_the_join_that_the_function_was_shown() {
    let mut world = World::new();
    let who = with_role(&mut world, "a", Role::Assistant);
    let choose = SelectionPolicy::by(|_, candidates| Some(candidates[0].identity.clone()));
    let config = Config::default().room("room").choose(choose);
    let session = Session::assistant(world.now, who.clone(), config, seed("a", 1));
    world.enter(&who, Some(session));
    world.answers_selections = false;
    for name in ["phone", "tablet"] {
        world.client(name, Config::default(), &["t"]);
        world.handle(name, |_| Some(Ok(value(1))));
    }
    world.run(SECOND);
    let key = world.call("a", request("t")).unwrap();
    let (_, first) = world.selections.remove(0);
    world.client("phone", Config::default(), &["t"]);
    world.handle("phone", |_| Some(Ok(value(2))));
    world.run(SECOND);
    world.with("a", |session, now| session.select(now, first.key, Some("phone".into())));
    world.run(SECOND);
    assert!(world.executed.is_empty(), "the function has not seen this join");
    let (_, second) = world.selections.pop().unwrap();
    world.with("a", |session, now| session.select(now, second.key, Some("phone".into())));
    world.run(SECOND);
    assert_eq!(*world.settled("a", key).unwrap().as_ref().unwrap(), value(2));
}

#[test]
fn observed_call_is_ended_only_by_the_assistant_that_showed_it() {
    let mut world = observer_of(1);
    world.leave("a");
    world.run(10 * SECOND);
    let who = with_role(&mut world, "b", Role::Assistant);
    world.play(&who);
    world.run(SECOND);
    world.send("b", &["phone"], &shows("b"), &configuration());
    world.run(SECOND);
    assert_eq!(world.session("phone").bound().unwrap(), "b");
    let result = Message::ToolUseResult(ToolUseResult::new("0".parse().unwrap(), true));
    world.send("b", &["phone"], &Meta::new(), &result);
    world.run(SECOND);
    assert_eq!(ended(&world), [("0".to_owned(), "a".to_owned(), "lost".to_owned())]);
}

/// The calls whose end a client reported: id, owner and code.
fn ended(world: &World) -> Vec<(String, String, String)> {
    let of = |event: &Event| match event {
        Event::Settled { call, owner, outcome, .. } => Some((
            call.to_string(),
            owner.as_ref()?.to_string(),
            outcome.as_ref().err().map_or_else(String::new, |code| code.as_str().to_owned()),
        )),
        _ => None,
    };
    world.ends["phone"].events.iter().filter_map(of).collect()
}

/// A phone whose assistant, which the test plays, has shown it the start of these calls that it runs itself.
fn observer_of(calls: usize) -> World {
    let mut world = World::new();
    world.client("phone", Config::default(), &["t"]);
    let who = with_role(&mut world, "a", Role::Assistant);
    world.play(&who);
    world.run(SECOND);
    world.send("a", &["phone"], &shows("a"), &configuration());
    for call in 0..calls {
        let shown = with!(plain_request(&call.to_string(), "search"), execution = Ok(Execution::Server));
        world.send("a", &["phone"], &Meta::new(), &Message::ToolUseRequest(shown));
    }
    world.run(SECOND);
    world
}

#[test]
fn observed_call_of_an_assistant_that_says_goodbye_is_lost() {
    let mut world = observer_of(1);
    let goodbye = with!(ControlStop::default(), stop_type = Some("all".to_owned()));
    world.send("a", &["phone"], &Meta::new().with_bool("bridge.bye", true), &Message::ControlStop(goodbye));
    world.run(SECOND);
    assert_eq!(ended(&world), [("0".to_owned(), "a".to_owned(), "lost".to_owned())]);
}

#[test]
fn observed_call_whose_result_does_not_arrive_is_lost_after_its_time_limit() {
    let mut world = observer_of(1);
    world.run(8 * SECOND);
    assert_eq!(ended(&world), [], "its limit is 5 s, and its packets may take the grace period of 5 s");
    world.run(2 * SECOND);
    assert_eq!(ended(&world), [("0".to_owned(), "a".to_owned(), "lost".to_owned())]);
    let result = Message::ToolUseResult(ToolUseResult::new("0".parse().unwrap(), true));
    world.send("a", &["phone"], &Meta::new(), &result);
    world.run(SECOND);
    assert_eq!((ended(&world).len(), world.count("phone", "late")), (1, 1));
}

#[test]
fn oldest_of_too_many_observed_calls_is_lost() {
    let mut world = observer_of(65);
    assert_eq!(ended(&world), [("0".to_owned(), "a".to_owned(), "lost".to_owned())]);
    let result = Message::ToolUseResult(ToolUseResult::new("1".parse().unwrap(), true));
    world.send("a", &["phone"], &Meta::new(), &result);
    world.run(SECOND);
    assert_eq!(ended(&world)[1..], [("1".to_owned(), "a".to_owned(), String::new())]);
}

#[test]
fn assistant_with_an_unknown_role_is_refused_with_the_value() {
    for (attributes, own, why) in [
        (vec![(ROLE_ATTRIBUTE, "admin")], false, NotAssistant::UnknownRole { value: "admin".into() }),
        (vec![(ROLE_ATTRIBUTE, "Assistant")], false, NotAssistant::UnknownRole { value: "Assistant".into() }),
        (vec![(ROLE_ATTRIBUTE, "client")], false, NotAssistant::OtherRole { role: Role::Client }),
        (vec![(ROLE_ATTRIBUTE, "assistant")], true, NotAssistant::ChangeableRole),
        (vec![], false, NotAssistant::NoRole),
        (vec![], true, NotAssistant::NoRole),
    ] {
        for greets in [true, false] {
            let mut world = World::new();
            world.client("phone", Config::default(), &["t"]);
            let who = Participant::new("a", world.sid()).attributes(attributes.clone());
            world.play(&who.can_update_metadata(own));
            world.run(SECOND);
            for n in 0..3 {
                if greets {
                    world.send("a", &["phone"], &shows("a"), &configuration());
                } else {
                    let plain = Message::ToolUseRequest(plain_request(&format!("{n}"), "t"));
                    world.send("a", &["phone"], &Meta::new(), &plain);
                }
                world.run(100 * MS);
            }
            let refused = Unaccepted::NotAssistant { from: "a".into(), why: why.clone() };
            assert_eq!(unaccepted(&world), [refused], "reported once");
            let text = unaccepted(&world)[0].to_string();
            assert!(
                text.contains("toolbridge.role=assistant")
                    && text.contains("name a as the client's assistant"),
                "{text}"
            );
            assert_eq!(jobs(&world), 0);
        }
    }
}

/// A role wins over the kind `AGENT` (`wire.md`, section 4.2), also one that the agent could have set itself.
#[test]
fn agent_with_another_role_is_refused_and_does_not_make_the_assistant_ambiguous() {
    let other = |role| NotAssistant::OtherRole { role };
    let unknown = |value: &str| NotAssistant::UnknownRole { value: value.into() };
    for (role, why) in [
        ("observer", other(Role::Observer)),
        ("client", other(Role::Client)),
        ("admin", unknown("admin")),
        ("Assistant", unknown("Assistant")),
    ] {
        for may_change in [false, true] {
            let mut world = World::new();
            world.client("phone", Config::default(), &["t"]);
            let who = Participant::new("x", world.sid()).agent(true).attributes([(ROLE_ATTRIBUTE, role)]);
            world.play(&who.can_update_metadata(may_change));
            world.run(SECOND);
            let plain = |id: &str| Message::ToolUseRequest(plain_request(id, "t"));
            world.send("x", &["phone"], &Meta::new(), &plain("1"));
            world.send("x", &["phone"], &shows("x"), &configuration());
            world.run(SECOND);
            let refused = Unaccepted::NotAssistant { from: "x".into(), why: why.clone() };
            assert_eq!((unaccepted(&world), jobs(&world)), (vec![refused], 0), "{role} {may_change}");
            world.assistant("a", Config::default());
            world.run(5 * SECOND);
            let events = &world.ends["phone"].events;
            let is_bound = |it: &Event| matches!(it, Event::Bound(Some(to)) if to == "a");
            assert!(events.iter().any(is_bound), "{role} {may_change} {events:?}");
            assert!(!events.iter().any(|it| matches!(it, Event::AmbiguousAssistant { .. })), "{events:?}");
            world.send("x", &["phone"], &Meta::new(), &plain("2"));
            world.run(SECOND);
            assert_eq!(jobs(&world), 0, "{role} {may_change}");
        }
    }
}

#[test]
fn client_with_an_unknown_role_is_not_one_without_a_role() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    let who = Participant::new("x", world.sid()).attributes([(ROLE_ATTRIBUTE, "Client")]);
    world.play(&who.can_update_metadata(false));
    world.run(SECOND);
    world.send("x", &["a"], &shows("x"), &configuration());
    world.send("x", &["a"], &Meta::new(), &registration("t"));
    world.run(SECOND);
    let refused = world.ends["a"].events.iter().find_map(|event| match event {
        Event::NotAdmitted { client, why } => Some((client.clone(), why.clone())),
        _ => None,
    });
    let why = NotAdmitted::UnknownRole { value: "Client".into() };
    assert_eq!(refused, Some(("x".into(), why.clone())));
    let error = world.ask("a", request("t").owner_wait(100 * MS)).unwrap_err();
    let CallError::UnknownTool { why: reason, .. } = &error else { panic!("{error:?}") };
    assert!(matches!(&**reason, NotOffered::NotAdmitted { why: reason, .. } if *reason == why), "{error:?}");
    assert!(error.to_string().contains("\"Client\""), "{error}");
    // It does not count as a second participant without a role.
    let who = without_role(&mut world, "phone");
    world.play(&who);
    world.run(SECOND);
    world.send("phone", &["a"], &shows("phone"), &configuration());
    world.send("phone", &["a"], &Meta::new(), &registration("t"));
    world.run(SECOND);
    assert_eq!(world.session("a").tools().len(), 1);
}

#[test]
fn caller_without_a_role_reads_that_its_own_token_lacks_it() {
    for role in [None, Some("admin")] {
        for named in [true, false] {
            let mut world = World::new();
            world.client("phone", Config::default(), &["t"]);
            let who = without_role(&mut world, "me");
            let who = who.attributes(role.map(|role| (ROLE_ATTRIBUTE, role))).can_update_metadata(false);
            let config = Config::default().room("room");
            let session = Session::assistant(world.now, who.clone(), config, seed("me", 1));
            world.enter(&who, Some(session));
            world.run(SECOND);
            let wanted = if named { request("t").to("phone") } else { request("t") };
            let error = world.ask("me", wanted).unwrap_err();
            let text = error.to_string();
            let said = role.map_or_else(
                || "its token has no role".to_owned(),
                |role| format!("has the role \"{role}\""),
            );
            assert!(text.contains(&said) && !text.contains("wait longer"), "{text}");
            assert!(
                text.contains("toolbridge.role=assistant")
                    && text.contains("name me as the client's assistant"),
                "{text}"
            );
            if named {
                continue; // it is called as a plain peer, and answers so
            }
            let CallError::UnknownTool { why: reason, .. } = &error else { panic!("{named} {error:?}") };
            let NotOffered::NotAccepted { by, caller, why } = &**reason else { panic!("{named} {error:?}") };
            assert_eq!((by.as_slice(), caller), (&["phone".into()][..], &"me".into()));
            let expected = match role {
                None => NotAssistant::NoRole,
                Some(value) => NotAssistant::UnknownRole { value: value.into() },
            };
            assert_eq!(*why, expected);
        }
    }
}

/// Packets of one join may arrive in another order. A Configuration from a join before the last one of the process is late.
#[test]
fn late_configuration_does_not_let_an_earlier_one_move_its_sender() {
    for (stanza, moves) in [(7, false), (11, true)] {
        let mut world = World::new();
        world.client("phone", Config::default(), &["t"]);
        let who = with_role(&mut world, "a", Role::Assistant);
        world.play(&who);
        world.run(SECOND);
        let configure = |world: &mut World, stanza: i32| {
            let it = world.shows("a", "phone", "I");
            let bytes = Frame::write(stanza, "room", &it, &configuration()).unwrap();
            world.send_bytes("a", &["phone"], &bytes);
            world.run(100 * MS);
        };
        configure(&mut world, 9);
        configure(&mut world, 5);
        let present = world.ends["a"].who.peer().clone();
        world.announce = LATE;
        let who = without_role(&mut world, "a");
        world.play(&who);
        configure(&mut world, stanza);
        let plain = Message::ToolUseRequest(plain_request("1", "t"));
        let bytes = Frame::write(20, "room", &Meta::new(), &plain).unwrap();
        world.send_bytes_as(&present, &["phone"], &bytes);
        world.run(100 * MS);
        assert_eq!(jobs(&world), usize::from(!moves), "{stanza}");
    }
}

#[test]
fn process_that_returns_after_the_grace_period_continues_its_new_join() {
    let mut world = World::pair(&["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    for name in ["a", "phone"] {
        world.announce = 50 * MS;
        world.leave(name);
        world.run(10 * SECOND);
        world.rejoin(name);
        world.run(SECOND);
        world.announce = LATE;
        world.rejoin(name);
        world.run(100 * MS);
        assert_eq!(world.ask("a", request("t").timeout(SECOND)).unwrap(), value(1), "{name}");
    }
}

/// "Calls that such a client has acknowledged go on", also when it rejoins.
#[test]
fn client_without_its_role_answers_its_running_call_from_an_unannounced_join() {
    let mut world = room(&["t"]);
    let key = world.call("a", request("t").timeout(60 * SECOND)).unwrap();
    world.run(SECOND);
    describe(&mut world, "phone", "a", |who| who.attributes::<&str, &str>([]).can_update_metadata(false));
    world.run(SECOND);
    world.announce = LATE;
    world.rejoin("phone");
    world.run(SECOND);
    world.finish("phone", Ok(value(1)));
    world.run(SECOND);
    assert_eq!(*world.settled("a", key).unwrap().as_ref().unwrap(), value(1));
}

/// The author names the client, so it moves to an unannounced sid. Its right to stop calls was that of another process.
#[test]
fn another_process_under_an_unannounced_sid_has_not_the_rights_of_the_one_before() {
    for (process, is_stopped) in [("I", true), ("J", false)] {
        let mut world = World::new();
        world.assistant("a", Config::default().admit("phone"));
        world.client("tablet", Config::default(), &["t"]);
        let who = with_role(&mut world, "phone", Role::Client);
        world.play(&who.allowed_to_stop(true));
        world.run(SECOND);
        let configure = |world: &mut World, process: &str| {
            let it = world.shows("phone", "a", process);
            world.send("phone", &["a"], &it, &configuration());
            world.run(100 * MS);
        };
        configure(&mut world, "I");
        let key = world.call("a", request("t").timeout(60 * SECOND)).unwrap();
        let id = world.session("a").call_id(key).unwrap().to_string();
        world.announce = LATE;
        let who = without_role(&mut world, "phone");
        world.play(&who);
        configure(&mut world, "I");
        configure(&mut world, process);
        let stop = with!(ControlStop::default(), target_id = Some(id));
        world.send("phone", &["a"], &Meta::new(), &Message::ControlStop(stop));
        world.run(SECOND);
        assert_eq!(world.settled("a", key).is_some(), is_stopped, "{process}");
    }
}
