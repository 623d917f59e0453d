//! Rights belong to a join (`wire.md`, section 4): what a role, a process or a wait gave ends with it, and a role that is given
//! back counts again.

use std::time::Duration;

use toolbridge::{
    CallError, Config, Event, Role, Value,
    frame::{
        Configuration, ControlStop, Frame, Kind, Message, Meta, RegisteredTool, ToolUseRequest,
        ToolUseResult, ToolsRegister,
    },
    session::{Request, SelectionPolicy, SendFailure, Session},
    tools::{Execution, LossCause},
    transport::{Participant, Peer, TransportEvent},
};

use crate::session_world::{Fate, Key, MS, SECOND, World, request, seed, tool, value};

fn configuration() -> Message {
    let features = ["tool_use", "tool_register", "tool_ack", "tool_cancel"].map(String::from).to_vec();
    Message::Configuration(with!(Configuration::default(), features = Some(features)))
}

fn registration(name: &str) -> Message {
    let tool = with!(RegisteredTool::default(), name = name.to_owned());
    Message::ToolsRegister(with!(ToolsRegister::default(), tools = vec![tool]))
}

fn bytes(stanza: i32, meta: &Meta, message: &Message) -> Vec<u8> {
    Frame::write(stanza, "room", meta, message).unwrap().to_vec()
}

/// Lets the room describe a present participant to another one.
fn describe(world: &mut World, name: &str, to: &str, change: impl FnOnce(Participant) -> Participant) {
    let who = change(world.ends[name].who.clone());
    world.with(to, |session, now| session.handle_event(now, TransportEvent::Joined(who)));
}

fn without_role(who: Participant) -> Participant {
    who.attributes::<&str, &str>([]).can_update_metadata(false)
}

/// A played client, which has registered its tool with the assistant `a`.
fn registered_client(config: Config) -> World {
    let mut world = World::new();
    world.assistant("a", config);
    let sid = world.sid();
    world.play(&Participant::new("phone", sid).role(Role::Client).can_update_metadata(false));
    world.run(200 * MS);
    let meta = Meta::new().with_text("bridge.instance", "i1").with_bool("bridge.heard", true);
    world.send("phone", &["a"], &meta, &configuration());
    world.send("phone", &["a"], &Meta::new(), &registration("t"));
    world.run(200 * MS);
    assert_eq!(world.session("a").tools().len(), 1);
    world
}

#[test]
fn client_that_lost_its_role_while_silent_offers_nothing_again() {
    let mut world = registered_client(Config::default().admit_only_roles());
    world.send("phone", &["a"], &Meta::new(), &Message::Heartbeat);
    world.run(31 * SECOND);
    assert_eq!(world.session("a").tools().len(), 0, "no heartbeat");
    describe(&mut world, "phone", "a", without_role);
    world.send("phone", &["a"], &Meta::new(), &Message::Heartbeat);
    world.run(200 * MS);
    assert_eq!(world.session("a").tools().len(), 0);
    assert!(world.received("phone", Kind::TOOL_USE_REQUEST).is_empty());
}

#[test]
fn client_whose_role_is_given_back_offers_its_tools_again() {
    let mut world = World::pair(&["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    for _ in 0..3 {
        world.ask("a", request("t")).unwrap();
        describe(&mut world, "phone", "a", without_role);
        assert_eq!(world.session("a").tools().len(), 0);
        world.run(SECOND);
        describe(&mut world, "phone", "a", |who| who.role(Role::Client));
        world.run(2 * SECOND);
        assert_eq!(world.session("a").tools().len(), 1);
    }
    world.ask("a", request("t")).unwrap();
}

#[test]
fn client_that_a_rule_admits_again_offers_its_tools_again() {
    let mut world = World::new();
    world.assistant("a", Config::default().admit_only_roles());
    let who = Participant::new("phone", world.sid()).can_update_metadata(false);
    let mut session =
        Session::client(world.now, who.clone(), Config::default().room("room"), seed("phone", 77));
    session.offer(world.now, vec![tool("t")]).unwrap();
    world.enter(&who, Some(session));
    world.run(SECOND);
    let tools = [true, false, true].map(|is| {
        describe(&mut world, "phone", "a", |who| who.admitted(is));
        world.run(5 * SECOND);
        world.session("a").tools().len()
    });
    assert_eq!(tools, [1, 0, 1]);
}

#[test]
fn assistant_whose_role_is_given_back_is_bound_and_called_again() {
    let mut world = World::pair(&["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    describe(&mut world, "a", "phone", |who| who.agent(false));
    world.run(SECOND);
    assert_eq!(world.session("phone").bound(), None);
    describe(&mut world, "a", "phone", |who| who.agent(true));
    world.run(2 * SECOND);
    assert_eq!(world.session("phone").bound().unwrap(), "a");
    world.ask("a", request("t")).unwrap();
}

#[test]
fn call_that_a_client_may_not_have_got_is_lost_when_the_client_loses_its_role() {
    let mut world = World::pair(&["t"]);
    let is_request = |frame: &Frame| frame.kind() == Kind::TOOL_USE_REQUEST;
    world.fate = Some(Box::new(move |_, _, it| if is_request(it) { Fate::IsLost } else { Fate::Arrives }));
    let key = world.call("a", request("t").timeout(60 * SECOND)).unwrap();
    world.run(SECOND);
    describe(&mut world, "phone", "a", without_role);
    let Some(Err(CallError::Lost { why, .. })) = world.settled("a", key) else {
        panic!("{:?}", world.settled("a", key))
    };
    assert_eq!(*why, LossCause::Dismissed);
    // With its role again, it is not sent what has ended.
    world.fate = None;
    world.rejoin("phone");
    world.run(5 * SECOND);
    assert!(world.executed.is_empty());
}

#[test]
fn assistant_that_lost_its_role_gets_no_waiting_result() {
    let mut world = World::pair(&["t"]);
    world.handle("phone", |_| None);
    let key = world.call("a", request("t").timeout(60 * SECOND)).unwrap();
    world.run(100 * MS);
    world.unsent = SendFailure::QueueFull;
    world.ends.get_mut("phone").unwrap().here = false;
    world.finish("phone", Ok(value(42)));
    world.ends.get_mut("phone").unwrap().here = true;
    describe(&mut world, "a", "phone", |who| who.agent(false));
    let before = world.sent("phone", Kind::TOOL_USE_RESULT).len();
    world.run(5 * SECOND);
    assert_eq!(world.sent("phone", Kind::TOOL_USE_RESULT).len(), before);
    // The same process, which has the role again, gets what was kept for it.
    describe(&mut world, "a", "phone", |who| who.agent(true));
    world.run(5 * SECOND);
    assert!(matches!(world.settled("a", key), Some(Ok(_))), "{:?}", world.settled("a", key));
}

#[test]
fn lost_role_leaves_no_right_to_a_later_join() {
    for loses_role in [false, true] {
        let mut world = registered_client(Config::default().admit_only_roles());
        if loses_role {
            describe(&mut world, "phone", "a", without_role);
        }
        world.leave("phone");
        world.run(60 * SECOND);
        world.stranger("phone");
        world.run(SECOND);
        assert_eq!(world.received("phone", Kind::CONFIGURATION).len(), 0, "{loses_role}");
    }
}

#[test]
fn only_guest_is_admitted_when_the_other_gets_a_role() {
    let mut world = World::new();
    for name in ["x", "y"] {
        let who = Participant::new(name, world.sid()).can_update_metadata(false);
        let mut session =
            Session::client(world.now, who.clone(), Config::default().room("room"), seed(name, 77));
        session.offer(world.now, vec![tool("t")]).unwrap();
        world.enter(&who, Some(session));
    }
    world.run(SECOND);
    world.assistant("a", Config::default());
    world.run(20 * SECOND);
    assert_eq!(world.session("a").tools().len(), 0, "both are refused");
    describe(&mut world, "y", "a", |who| who.role(Role::Observer));
    world.run(20 * SECOND);
    assert_eq!(world.session("a").tools().len(), 1);
}

/// A departed toolbridge client says nothing about the next program under its identity.
#[test]
fn silent_participant_is_called_as_plain_whatever_used_its_identity_before() {
    for toolbridge_before in [false, true] {
        let mut world = World::new();
        world.assistant("a", Config::default());
        if toolbridge_before {
            world.client("phone", Config::default(), &["t"]);
            world.run(SECOND);
            world.leave("phone");
            world.run(60 * SECOND);
        }
        let sid = world.sid();
        world.play(&Participant::new("phone", sid).role(Role::Client));
        world.run(5 * SECOND);
        let _ = world.call("a", request("t").to("phone"));
        world.run(10 * SECOND);
        assert_eq!(world.received("phone", Kind::TOOL_USE_REQUEST).len(), 1, "{toolbridge_before}");
    }
}

#[test]
fn app_is_called_by_rpc_whatever_used_its_identity_before() {
    for (toolbridge_before, gap) in [(false, SECOND), (true, 600 * SECOND), (true, SECOND)] {
        let mut world = World::new();
        world.assistant("a", Config::default().rpc_tool("web", tool("locate")));
        world.run(200 * MS);
        if toolbridge_before {
            world.client("web", Config::default(), &["other"]);
            world.run(SECOND);
            world.leave("web");
            world.run(gap);
        }
        let sid = world.sid();
        world.play(&Participant::new("web", sid).client_protocol(0));
        world.run(10 * SECOND);
        let offers = world.session("a").tools();
        assert_eq!(
            offers.iter().filter(|offer| offer.owner == "web").count(),
            1,
            "{toolbridge_before} {gap:?}"
        );
        assert_eq!(world.received("web", Kind::CONFIGURATION).len(), 0, "{toolbridge_before} {gap:?}");
    }
}

#[test]
fn repeated_configurations_make_a_client_register_once_in_900_ms() {
    let mut world = World::new();
    world.client("phone", Config::default(), &["t"]);
    let sid = world.sid();
    world.play(&Participant::new("a", sid).agent(true));
    world.run(200 * MS);
    let meta = Meta::new().with_text("bridge.instance", "one").with_bool("bridge.heard", false);
    world.send("a", &["phone"], &meta, &configuration());
    world.run(SECOND);
    let before = world.sent("phone", Kind::TOOLS_REGISTER).len();
    for _ in 0..100 {
        world.send("a", &["phone"], &meta, &configuration());
        world.run(MS);
    }
    world.run(200 * MS);
    assert!(world.sent("phone", Kind::TOOLS_REGISTER).len() - before <= 1);
}

#[test]
fn frames_that_wait_for_configurations_have_1_mib_in_all() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    let names: Vec<_> = (0..64).map(|n| format!("c{n}")).collect();
    for name in &names {
        let sid = world.sid();
        world.play(&Participant::new(name.as_str(), sid).role(Role::Client));
    }
    world.run(200 * MS);
    let large = with!(RegisteredTool::default(), name = "t".to_owned(), description = "x".repeat(250_000));
    let message = Message::ToolsRegister(with!(ToolsRegister::default(), tools = vec![large]));
    for name in names.iter().flat_map(|name| [name; 4]) {
        world.send(name, &["a"], &Meta::new(), &message);
    }
    world.run(500 * MS);
    let held = world.count("a", "held");
    assert!((1..=4).contains(&held), "{held} frames of 250 kB wait");
}

/// The client `phone` is played and rejoins: its next join shows the same process before the room announces it.
fn continued_join() -> (World, Key, Peer, Peer) {
    let mut world = World::new();
    world.assistant("a", Config::default());
    let key = Key::new(7);
    let (old, new) = (Peer::new("phone", "PA_old"), Peer::new("phone", "PA_new"));
    world.play(&Participant::new("phone", old.sid().clone()).role(Role::Client));
    world.run(SECOND);
    let shows = key.shows(&world, "a", &old, true);
    world.send_bytes_as(&old, &["a"], &bytes(1, &shows, &configuration()));
    world.send_bytes_as(&old, &["a"], &bytes(2, &Meta::new(), &registration("t")));
    world.run(SECOND);
    assert_eq!(world.session("a").tools().len(), 1);
    (world, key, old, new)
}

#[test]
fn late_configuration_of_the_replaced_join_does_not_end_the_unannounced_one() {
    let (mut world, key, old, new) = continued_join();
    let late = bytes(1, &key.shows(&world, "a", &old, true), &configuration());
    let shows = key.shows(&world, "a", &new, false);
    world.send_bytes_as(&new, &["a"], &bytes(3, &shows, &configuration()));
    world.send_bytes_as(&new, &["a"], &bytes(4, &Meta::new(), &registration("t")));
    world.run(100 * MS);
    let call = world.call("a", request("t")).unwrap();
    world.run(100 * MS);
    world.send_bytes_as(&old, &["a"], &late);
    world.run(100 * MS);
    let Some(Message::ToolUseRequest(asked)) = world.received("phone", Kind::TOOL_USE_REQUEST).pop() else {
        panic!("not called")
    };
    let result = with!(ToolUseResult::new(asked.id, true), result = Some(value(1)));
    world.send_bytes_as(&new, &["a"], &bytes(5, &Meta::new(), &Message::ToolUseResult(result)));
    world.run(SECOND);
    assert!(world.settled("a", call).is_some(), "the result of the present join was dropped");
}

/// Packets on different lanes overtake each other.
#[test]
fn result_that_overtakes_the_configuration_of_an_unannounced_join_is_handled_with_it() {
    let (mut world, key, _, new) = continued_join();
    let call = world.call("a", request("t")).unwrap();
    world.run(100 * MS);
    let Some(Message::ToolUseRequest(asked)) = world.received("phone", Kind::TOOL_USE_REQUEST).pop() else {
        panic!("not called")
    };
    let result = with!(ToolUseResult::new(asked.id, true), result = Some(value(1)));
    world.send_bytes_as(&new, &["a"], &bytes(4, &Meta::new(), &Message::ToolUseResult(result)));
    let shows = key.shows(&world, "a", &new, false);
    world.send_bytes_as(&new, &["a"], &bytes(3, &shows, &configuration()));
    world.run(100 * MS);
    assert!(world.settled("a", call).is_some_and(Result::is_ok));
}

#[test]
fn participant_is_in_the_join_that_the_server_lists_after_a_rejoin() {
    let (mut world, key, old, new) = continued_join();
    let call = world.call("a", request("t")).unwrap();
    world.run(100 * MS);
    let Some(Message::ToolUseRequest(asked)) = world.received("phone", Kind::TOOL_USE_REQUEST).pop() else {
        panic!("not called")
    };
    let shows = key.shows(&world, "a", &new, false);
    world.send_bytes_as(&new, &["a"], &bytes(3, &shows, &configuration()));
    world.run(100 * MS);
    world.rejoin("a");
    world.run(100 * MS);
    let shows = key.shows(&world, "a", &old, true);
    world.send_bytes_as(&old, &["a"], &bytes(4, &shows, &configuration()));
    let result = with!(ToolUseResult::new(asked.id, true), result = Some(value(1)));
    world.send_bytes_as(&old, &["a"], &bytes(5, &Meta::new(), &Message::ToolUseResult(result)));
    world.run(100 * MS);
    assert!(world.settled("a", call).is_some_and(Result::is_ok));
}

/// An SDK may report the new local sid only after a Configuration with the proof of the earlier join was sent in the new one.
#[test]
fn configuration_with_the_proof_of_the_earlier_join_does_not_end_the_calls_of_its_process() {
    let (mut world, key, old, new) = continued_join();
    let call = world.call("a", request("t").timeout(20 * SECOND)).unwrap();
    world.run(100 * MS);
    let Some(Message::ToolUseRequest(asked)) = world.received("phone", Kind::TOOL_USE_REQUEST).pop() else {
        panic!("not called")
    };
    world.play(&Participant::new("phone", new.sid().clone()).role(Role::Client));
    world.run(100 * MS);
    for (stanza, join) in [(3, &old), (4, &new)] {
        let shows = key.shows(&world, "a", join, true);
        world.send_bytes_as(&new, &["a"], &bytes(stanza, &shows, &configuration()));
        world.run(100 * MS);
        assert!(world.settled("a", call).is_none(), "the call ended");
    }
    assert_eq!(world.count("a", "stale_sid"), 1);
    let result = with!(ToolUseResult::new(asked.id, true), result = Some(value(1)));
    world.send_bytes_as(&new, &["a"], &bytes(5, &Meta::new(), &Message::ToolUseResult(result)));
    world.run(SECOND);
    assert!(world.settled("a", call).unwrap().is_ok());
}

/// `bridge.instance` is known to everybody who was greeted. Only its process can prove it, in its own join.
#[test]
fn sec_i3_instance_without_its_proof_continues_nothing() {
    let (mut world, key, old, new) = continued_join();
    let call = world.call("a", request("t").timeout(20 * SECOND)).unwrap();
    world.run(100 * MS);
    let stolen = Meta::new().with_text("bridge.instance", &key.public()).with_bool("bridge.heard", true);
    let of_old_join = key.shows(&world, "a", &old, true);
    let thief = Peer::new("phone", "PA_thief");
    let of_another = Key::new(8).shows(&world, "a", &thief, true).with_text("bridge.instance", &key.public());
    for (stanza, meta) in [(10, stolen), (20, of_old_join), (30, of_another)] {
        world.send_bytes_as(&thief, &["a"], &bytes(stanza, &meta, &configuration()));
        let Some(Message::ToolUseRequest(asked)) = world.received("phone", Kind::TOOL_USE_REQUEST).pop()
        else {
            panic!("not called")
        };
        let result = with!(ToolUseResult::new(asked.id, true), result = Some(value(1)));
        world.send_bytes_as(
            &thief,
            &["a"],
            &bytes(stanza + 1, &Meta::new(), &Message::ToolUseResult(result)),
        );
        world.run(SECOND);
        assert!(world.settled("a", call).is_none());
    }
    let shows = key.shows(&world, "a", &new, true);
    world.send_bytes_as(&new, &["a"], &bytes(40, &shows, &configuration()));
    world.run(SECOND);
    assert!(world.count("a", "retransmitted") > 0, "the process itself continues");
}

/// A token without a role joins as the client before the client itself, learns the assistant's instance, and joins as the
/// assistant with it.
#[test]
fn sec_i3_instance_shown_to_an_earlier_bearer_of_the_identity_runs_nothing() {
    for named in [false, true] {
        let mut world = World::new();
        world.assistant("brain", Config::default());
        let sid = world.sid();
        world.play(&Participant::new("phone", sid).can_update_metadata(false));
        world.run(200 * MS);
        let spies = Meta::new().with_text("bridge.instance", "spy").with_bool("bridge.heard", false);
        world.send("phone", &["brain"], &spies, &configuration());
        world.run(2 * SECOND);
        let stolen =
            world.sent("brain", Kind::CONFIGURATION)[0].1.meta_str("bridge.instance").unwrap().to_owned();
        world.leave("phone");
        world.run(10 * SECOND);
        let config = if named { Config::default().assistant("brain") } else { Config::default() };
        world.client("phone", config, &["erase"]);
        world.run(2 * SECOND);
        assert_eq!(world.session("phone").bound().unwrap(), "brain");
        let running = world.call("brain", Request::new("erase", Value::empty())).unwrap();
        world.run(SECOND);
        world.finish("phone", Ok(value(1)));
        world.run(SECOND);
        assert!(world.settled("brain", running).is_some());
        let ran = world.executed.len();
        world.leave("brain");
        let thief = Peer::new("brain", "PA_thief");
        let meta = Meta::new().with_text("bridge.instance", &stolen).with_bool("bridge.heard", true);
        world.send_bytes_as(&thief, &["phone"], &bytes(-100_000, &meta, &configuration()));
        let erase =
            ToolUseRequest::new("x1".parse().unwrap(), "erase", Value::empty(), Ok(Execution::Client));
        let erase = bytes(-100_001, &Meta::new(), &Message::ToolUseRequest(erase));
        world.send_bytes_as(&thief, &["phone"], &erase);
        world.run(2 * SECOND);
        let runs = world.executed.len() - ran;
        // An identity that the author names has the rights of its name, as another process.
        assert_eq!(runs, usize::from(named), "named: {named}");
    }
}

/// The policy asks who spoke last, and not for whom the local participant last began to wait.
#[test]
fn last_heard_client_is_selected_after_an_outage_and_a_suspension() {
    for disturbance in ["none", "outage", "suspension"] {
        let mut world = World::new();
        world.assistant("a", Config::default().choose(SelectionPolicy::LastHeard));
        world.run(200 * MS);
        for client in ["tv", "lamp"] {
            world.client(client, Config::default(), &["t"]);
            world.handle(client, move |_| Some(Ok(Value::from(serde_json::json!({"by": client})))));
            world.run(SECOND);
        }
        world.ask("a", request("t").to("tv")).unwrap();
        world.run(SECOND);
        match disturbance {
            "outage" => world.outage("a", 500 * MS),
            "suspension" => {
                world.now += 2 * SECOND;
                world.with("a", |session, now| session.handle_timeout(now));
            }
            _ => {}
        }
        let result = world.ask("a", request("t")).unwrap();
        assert_eq!(result.to_json()["by"], "tv", "{disturbance}");
    }
}

#[test]
fn joins_of_strangers_do_not_begin_the_grace_period_again() {
    let mut world = World::pair(&["t"]);
    world.call("a", request("t").timeout(300 * SECOND)).unwrap();
    world.run(SECOND);
    assert_eq!(world.ends["phone"].jobs.len(), 1);
    world.leave("a");
    let left = world.now;
    while world.session("phone").bound().is_some() && world.now - left < 80 * SECOND {
        world.run(2 * SECOND);
        world.stranger("a");
        world.run(2 * SECOND);
        world.leave("a");
    }
    assert!(world.now - left <= 8 * SECOND, "unbound after {:?}", world.now - left);
    assert_eq!(world.ends["phone"].aborted.len(), 1, "its job is stopped");
}

/// A result is kept as long as its caller may still take it, not until a time that was set when it seemed to be gone.
#[test]
fn result_for_an_assistant_that_is_bound_again_is_kept() {
    let mut world = World::pair(&["t"]);
    world.handle("phone", |_| None);
    world.run(SECOND);
    world.assistant("b", Config::default());
    world.run(2 * SECOND);
    world.call("a", request("t").timeout(300 * SECOND)).unwrap();
    world.run(100 * MS);
    let session = world.ends.get_mut("a").unwrap().session.take();
    let mut replaced = world.now;
    while world.session("phone").bound().is_none_or(|it| it != "b") {
        world.run(100 * MS);
        replaced = world.now;
    }
    world.ends.get_mut("a").unwrap().session = session;
    world.leave("b");
    world.run(10 * SECOND);
    let call = world.call("a", request("t").timeout(300 * SECOND)).unwrap();
    world.run(SECOND);
    let wait = (replaced + Duration::from_secs(59)).saturating_duration_since(world.now);
    world.run(wait);
    world.unsent = SendFailure::QueueFull;
    world.ends.get_mut("phone").unwrap().here = false;
    while !world.ends["phone"].jobs.is_empty() {
        world.finish("phone", Ok(value(1)));
    }
    world.run(3 * SECOND);
    world.ends.get_mut("phone").unwrap().here = true;
    world.run(100 * SECOND);
    assert!(matches!(world.settled("a", call), Some(Ok(_))), "{:?}", world.settled("a", call));
}

/// After a goodbye nothing is continued, whoever proves what.
#[test]
fn process_that_said_goodbye_is_not_continued_by_an_unannounced_join() {
    let (mut world, key, old, new) = continued_join();
    let bye = with!(ControlStop::default(), stop_type = Some("all".to_owned()));
    let meta = Meta::new().with_bool("bridge.bye", true);
    world.send_bytes_as(&old, &["a"], &bytes(3, &meta, &Message::ControlStop(bye)));
    world.run(SECOND);
    let shows = key.shows(&world, "a", &new, false);
    world.send_bytes_as(&new, &["a"], &bytes(4, &shows, &configuration()));
    world.send_bytes_as(&new, &["a"], &bytes(5, &Meta::new(), &registration("t")));
    world.run(SECOND);
    assert_eq!(world.session("a").tools().len(), 0);
    let bound = |event: &Event| matches!(event, Event::ToolsChanged { owner } if owner == "phone");
    assert_eq!(world.ends["a"].events.iter().filter(|event| bound(event)).count(), 2, "offered, withdrawn");
}

/// The author's word admits the unannounced process. What the room says of the join before gives it no right to stop calls.
#[test]
fn description_of_the_join_before_gives_an_unannounced_one_no_right() {
    let mut world = registered_client(Config::default().admit("phone"));
    world.with("a", |session, now| session.offer(now, vec![tool("own")])).unwrap().unwrap();
    let key = world.call("a", request("own").timeout(60 * SECOND)).unwrap();
    let thief = Peer::new("phone", "PA_99");
    let meta = Meta::new().with_text("bridge.instance", "i2").with_bool("bridge.heard", true);
    world.send_bytes_as(&thief, &["a"], &bytes(1, &meta, &configuration()));
    world.run(100 * MS);
    describe(&mut world, "phone", "a", |who| who.allowed_to_stop(true));
    world.send_bytes_as(
        &thief,
        &["a"],
        &bytes(2, &Meta::new(), &Message::ControlStop(ControlStop::default())),
    );
    world.run(100 * MS);
    assert!(world.settled("a", key).is_none());
}

#[test]
fn participant_that_said_goodbye_before_it_got_its_role_is_not_greeted() {
    let mut world = World::new();
    world.client("phone", Config::default(), &["t"]);
    world.stranger("b");
    world.run(200 * MS);
    let goodbye = with!(ControlStop::default(), stop_type = Some("all".to_owned()));
    let meta = Meta::new().with_bool("bridge.bye", true);
    world.send("b", &["phone"], &meta, &Message::ControlStop(goodbye));
    world.run(200 * MS);
    describe(&mut world, "b", "phone", |who| who.agent(true));
    world.run(10 * SECOND);
    assert!(world.ends["b"].inbox.is_empty());
}

/// It was written before the client had bound the assistant, with which it has registered since.
#[test]
fn late_refusal_of_a_client_that_was_not_bound_does_not_withdraw_its_tools() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    let sid = world.sid();
    world.play(&Participant::new("phone", sid).role(Role::Client));
    world.run(5 * SECOND);
    let key = world.call("a", request("t").to("phone").timeout(20 * SECOND)).unwrap();
    world.run(2 * SECOND);
    let [Message::ToolUseRequest(asked)] = &world.received("phone", Kind::TOOL_USE_REQUEST)[..] else {
        panic!("it is called as a plain one")
    };
    let refusal = with!(
        ToolUseResult::new(asked.id.clone(), false),
        error_code = Some("permission_denied".into()),
        error_message = Some("not bound".to_owned())
    );
    let heard = Meta::new().with_bool("bridge.heard", true);
    world.send("phone", &["a"], &heard, &configuration());
    world.send("phone", &["a"], &Meta::new(), &registration("t"));
    world.run(100 * MS);
    let unbound = Meta::new().with_bool("bridge.unbound", true);
    world.send("phone", &["a"], &unbound, &Message::ToolUseResult(refusal));
    world.run(100 * MS);
    assert!(world.settled("a", key).is_some());
    assert_eq!(world.session("a").tools().len(), 1);
}
