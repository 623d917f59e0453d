//! Participants that fall silent, or return: what is held for them, and for how long.

use toolbridge::{
    Config, Event, Role, ToolOptions,
    frame::{Configuration, ControlStop, Kind, Message, Meta, RegisteredTool, ToolsRegister},
    session::{SelectionPolicy, SendFailure},
    transport::Participant,
};

use crate::session_world::{Fate, MS, SECOND, World, receivers, request, tool, value};

#[test]
fn binding_ends_after_the_grace_period_when_its_identity_returns_silently() {
    let mut world = World::pair(&["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    world.ask("a", request("t")).unwrap();
    world.leave("a");
    world.run(100 * MS);
    let sid = world.sid();
    world.play(&Participant::new("a", sid).agent(true));
    world.run(SECOND);
    world.assistant("b", Config::default());
    world.run(2 * SECOND);
    assert_eq!(world.session("phone").bound().unwrap(), "a", "the grace period is not over");
    world.run(3 * SECOND);
    assert_eq!(world.session("phone").bound().unwrap(), "b");
    assert_eq!(world.ask("b", request("t")).unwrap(), value(1));
}

#[test]
fn assistant_that_returns_within_the_grace_stays_bound() {
    let mut world = World::pair(&["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    world.leave("a");
    world.run(SECOND);
    world.assistant("b", Config::default());
    world.rejoin("a");
    world.run(10 * SECOND);
    assert_eq!(world.session("phone").bound().unwrap(), "a");
    assert_eq!(world.ask("a", request("t")).unwrap(), value(1));
}

#[test]
fn goodbye_of_an_assistant_that_was_given_up_does_not_bind_it() {
    let mut world = World::new();
    world.client("phone", Config::default(), &["t"]);
    let sid = world.sid();
    world.play(&Participant::new("a", sid).agent(true));
    world.run(200 * MS);
    let meta = Meta::new().with_text("bridge.instance", "i1").with_bool("bridge.heard", true);
    let features = ["tool_use", "tool_register", "tool_ack"].map(String::from).to_vec();
    let configuration = with!(Configuration::default(), features = Some(features));
    world.send("a", &["phone"], &meta, &Message::Configuration(configuration));
    world.run(SECOND);
    assert_eq!(world.session("phone").bound().unwrap(), "a");
    world.assistant("b", Config::default());
    world.run(20 * SECOND);
    assert_eq!(world.session("phone").bound().unwrap(), "b", "the first one is silent");
    world.with("b", |session, now| session.close(now));
    world.leave("b");
    world.run(10 * SECOND);
    let registered = world.received("a", Kind::TOOLS_REGISTER).len();
    world.ends.get_mut("phone").unwrap().events.clear();
    let bye = with!(ControlStop::default(), stop_type = Some("all".to_owned()));
    world.send("a", &["phone"], &Meta::new().with_bool("bridge.bye", true), &Message::ControlStop(bye));
    world.run(SECOND);
    let events = &world.ends["phone"].events;
    assert!(!events.iter().any(|it| matches!(it, Event::Bound(_))), "{events:?}");
    assert_eq!(world.received("a", Kind::TOOLS_REGISTER).len(), registered);
}

#[test]
fn client_whose_heartbeat_resumes_offers_its_tools_again() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    let sid = world.sid();
    world.play(&Participant::new("phone", sid).role(Role::Client));
    world.run(200 * MS);
    let meta = Meta::new()
        .with_bool("bridge.heard", true)
        .with_text("bridge.instance", "00112233445566778899aabbccddeeff");
    let features = ["tool_use", "tool_register", "tool_ack"].map(String::from).to_vec();
    let configuration = with!(Configuration::default(), features = Some(features));
    world.send("phone", &["a"], &meta, &Message::Configuration(configuration));
    let offered = ["t", "u"].map(|name| with!(RegisteredTool::default(), name = name.to_owned()));
    world.send(
        "phone",
        &["a"],
        &Meta::new(),
        &Message::ToolsRegister(with!(ToolsRegister::default(), tools = offered.to_vec())),
    );
    world.send("phone", &["a"], &Meta::new(), &Message::Heartbeat);
    world.run(200 * MS);
    assert_eq!(world.session("a").tools().len(), 2);
    world.run(31 * SECOND);
    assert_eq!(world.session("a").tools().len(), 0);
    // Meanwhile the assistant offers one of them itself.
    world.with("a", |session, now| session.offer(now, vec![tool("u")])).unwrap().unwrap();
    let changes = |world: &World| {
        let of_phone = |event: &&Event| matches!(event, Event::ToolsChanged { owner } if owner == "phone");
        world.ends["a"].events.iter().filter(of_phone).count()
    };
    let before = changes(&world);
    let waiting = world.call("a", request("t").to("phone")).unwrap();
    world.send("phone", &["a"], &Meta::new(), &Message::Heartbeat);
    world.run(200 * MS);
    assert_eq!(changes(&world) - before, 1);
    assert_eq!(world.session("a").tools().iter().filter(|offer| offer.owner == "phone").count(), 1);
    assert_eq!(world.received("phone", Kind::TOOL_USE_REQUEST).len(), 1, "the waiting call is sent");
    assert!(world.settled("a", waiting).is_none());
}

#[test]
fn client_whose_heartbeat_resumes_keeps_its_position_and_the_reasons_for_refused_tools() {
    let mut world = World::new();
    let second = SelectionPolicy::by(|_, candidates| Some(candidates.get(1)?.identity.clone()));
    world.assistant("a", Config::default().choose(second));
    let features = ["tool_use", "tool_register", "tool_ack"].map(String::from).to_vec();
    let configuration = with!(Configuration::default(), features = Some(features));
    let offered = [("t", 1), ("u", 9_000)].map(|(name, length)| {
        with!(RegisteredTool::default(), name = name.to_owned(), description = "d".repeat(length))
    });
    let offered = Message::ToolsRegister(with!(ToolsRegister::default(), tools = offered.to_vec()));
    for name in ["tablet", "phone", "tv"] {
        let sid = world.sid();
        world.play(&Participant::new(name, sid).role(Role::Client));
        world.run(200 * MS);
        let meta = Meta::new().with_bool("bridge.heard", true).with_text("bridge.instance", name);
        world.send(name, &["a"], &meta, &Message::Configuration(configuration.clone()));
        world.send(name, &["a"], &Meta::new(), &offered);
    }
    world.send("phone", &["a"], &Meta::new(), &Message::Heartbeat);
    world.run(31 * SECOND);
    assert_eq!(world.session("a").tools().len(), 2);
    world.send("phone", &["a"], &Meta::new(), &Message::Heartbeat);
    world.run(200 * MS);
    assert_eq!(world.session("a").tools().len(), 3);
    world.call("a", request("t")).unwrap();
    world.run(100 * MS);
    assert_eq!(world.received("phone", Kind::TOOL_USE_REQUEST).len(), 1);
    let refused = world.ask("a", request("u").to("phone")).unwrap_err();
    assert!(refused.to_string().contains("description exceeds"), "{refused}");
}

#[test]
fn changed_tools_go_only_to_the_bound_assistant() {
    let mut world = World::new();
    let sid = world.sid();
    world.play(&Participant::new("other", sid).agent(true)); // it may become the assistant, and sends nothing
    world.client("phone", Config::default(), &["t"]);
    world.run(200 * MS);
    world.assistant("a", Config::default());
    world.run(SECOND);
    assert_eq!(world.session("phone").bound().unwrap(), "a");
    let before = world.sent("phone", Kind::TOOLS_REGISTER).len();
    world.with("phone", |session, now| session.offer(now, vec![tool("secret")])).unwrap().unwrap();
    world.run(10 * SECOND);
    let sent = world.sent("phone", Kind::TOOLS_REGISTER);
    assert_eq!(receivers(&sent[before..]), ["a".into()].into());
    assert_eq!(world.session("a").tools().len(), 1);
}

#[test]
fn agent_bound_later_gets_the_current_tools() {
    let mut world = World::new();
    world.client("phone", Config::default(), &["t"]);
    world.run(200 * MS);
    world.fate = Some(Box::new(|to, from, _| {
        if to == "phone" && *from == "b" { Fate::IsLost } else { Fate::Arrives } // b has sent nothing yet
    }));
    world.assistant("b", Config::default());
    world.run(200 * MS);
    world.assistant("a", Config::default());
    world.run(SECOND);
    assert_eq!(world.session("phone").bound().unwrap(), "a");
    world.with("phone", |session, now| session.offer(now, vec![tool("new")])).unwrap().unwrap();
    world.fate = None;
    world.run(10 * SECOND);
    world.leave("a");
    world.run(10 * SECOND);
    assert_eq!(world.session("phone").bound().unwrap(), "b");
    let offers = world.session("b").tools();
    assert_eq!(offers.iter().map(|offer| offer.tool.name().as_str()).collect::<Vec<_>>(), ["new"]);
}

#[test]
fn result_refused_by_the_transport_is_sent_again() {
    for why in [SendFailure::Other("a transient error".into()), SendFailure::Closed, SendFailure::QueueFull] {
        let mut world = World::pair(&["t"]);
        world.handle("phone", |_| None);
        let key = world.call("a", request("t").timeout(30 * SECOND)).unwrap();
        world.run(100 * MS);
        world.unsent = why.clone();
        world.ends.get_mut("phone").unwrap().here = false;
        world.finish("phone", Ok(value(1)));
        world.ends.get_mut("phone").unwrap().here = true;
        world.run(2 * SECOND);
        assert_eq!(world.settled("a", key).unwrap().as_ref().unwrap(), &value(1), "{why:?}");
    }
}

#[test]
fn stop_refused_by_the_transport_is_sent_again() {
    let mut world = World::pair(&["t"]);
    world.handle("phone", |_| None);
    let key = world.call("a", request("t").timeout(30 * SECOND)).unwrap();
    world.run(100 * MS);
    world.unsent = SendFailure::Other("a transient error".into());
    world.ends.get_mut("a").unwrap().here = false;
    world.with("a", |session, now| session.cancel(now, key));
    world.ends.get_mut("a").unwrap().here = true;
    world.run(2 * SECOND);
    assert_eq!(world.ends["phone"].aborted.len(), 1);
}

/// An assistant that prefers its client for `lookup`, and whose Configuration has not reached the client.
fn world_of_shared_tool(config: &Config) -> World {
    let mut world = World::new();
    let shared = tool("lookup").options(ToolOptions::default().prefer_client());
    world.assistant("a", config.clone());
    world.with("a", |session, now| session.offer(now, vec![shared])).unwrap().unwrap();
    world.handle("a", |_| Some(Ok(value(7))));
    world
}

#[test]
fn either_call_runs_once_at_a_client_that_treated_its_assistant_as_plain() {
    let mut world = world_of_shared_tool(&Config::default());
    world.run(5 * SECOND);
    // The first second's handshakes are lost, but a plain request arrives; the client's second Configuration is late,
    // so that the assistant knows the client before the client knows the assistant.
    let (from_phone, to_phone) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    world.fate = Some(Box::new(move |to, from, frame| match (from.as_str(), frame.kind()) {
        ("phone", Kind::CONFIGURATION | Kind::TOOLS_REGISTER) => {
            from_phone.set(from_phone.get() + 1);
            if from_phone.get() <= 2 { Fate::IsLost } else { Fate::IsOvertaken(100 * MS) }
        }
        ("a", Kind::CONFIGURATION) if to == "phone" => {
            to_phone.set(to_phone.get() + 1);
            if to_phone.get() <= 2 { Fate::IsLost } else { Fate::Arrives }
        }
        _ => Fate::Arrives,
    }));
    world.client("phone", Config::default(), &["lookup", "x"]);
    world.call("a", request("x").to("phone")).unwrap();
    world.run(1_130 * MS);
    assert_eq!(world.executed.len(), 1, "the request for x was sent in the plain form");
    let key = world.call("a", request("lookup")).unwrap();
    let id = world.session("a").call_id(key).unwrap().clone();
    world.run(10 * SECOND);
    assert!(world.settled("a", key).is_some());
    assert_eq!(world.executed.iter().filter(|(_, call)| *call == id).count(), 1, "{:?}", world.executed);
}

#[test]
fn claim_window_is_two_seconds_with_and_without_the_fast_lane() {
    for lossy in [false, true] {
        let mut world = world_of_shared_tool(&Config::default().lossy(lossy));
        world.client("phone", Config::default().lossy(lossy), &["lookup"]);
        world.run(SECOND);
        world.ends.get_mut("phone").unwrap().here = false; // it receives nothing
        let began = world.now;
        assert_eq!(world.ask("a", request("lookup")).unwrap(), value(7));
        assert_eq!(world.now - began, 2 * SECOND, "lossy: {lossy}");
    }
}

/// A process that uses the handshake uses it again after a rejoin, so its silence does not show that it is plain.
#[test]
fn client_whose_configuration_is_late_after_a_rejoin_is_not_called_as_a_plain_one() {
    let mut world = World::pair(&["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    world.fate = Some(Box::new(|_, from, _| if *from == "phone" { Fate::IsLost } else { Fate::Arrives }));
    world.rejoin("phone");
    world.run(100 * MS);
    let key = world.call("a", request("t").to("phone").timeout(20 * SECOND)).unwrap();
    world.run(3_500 * MS);
    assert!(world.sent("a", Kind::TOOL_USE_REQUEST).is_empty());
    world.fate = None;
    world.run(10 * SECOND);
    assert_eq!(*world.settled("a", key).unwrap().as_ref().unwrap(), value(1));
    assert_eq!(world.executed.len(), 1);
}

/// Each frame makes the assistant send its Configuration again. The wait for an answer is prolonged by the first one alone.
#[test]
fn participant_that_sends_all_but_its_configuration_is_called_as_a_plain_one() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    let sid = world.sid();
    world.play(&Participant::new("phone", sid).role(Role::Client));
    world.run(5 * SECOND);
    for n in 0..25 {
        world.send("phone", &["a"], &Meta::new(), &Message::Heartbeat);
        world.run(200 * MS);
        if n == 0 {
            world.call("a", request("t").to("phone").timeout(20 * SECOND)).unwrap();
        }
    }
    assert_eq!(world.received("phone", Kind::TOOL_USE_REQUEST).len(), 1);
}

#[test]
fn owner_has_three_pings_to_answer_however_short_the_grace_period_is() {
    let mut world = World::new();
    world.assistant("a", Config::default().grace(500 * MS));
    world.client("phone", Config::default(), &["t"]);
    world.run(SECOND);
    let key = world.call("a", request("t").timeout(60 * SECOND)).unwrap();
    world.run(100 * MS);
    world.ends.get_mut("phone").unwrap().here = false;
    world.run(2_500 * MS);
    assert!(world.settled("a", key).is_none());
    world.run(SECOND);
    assert!(world.settled("a", key).is_some());
}

/// The next run of the program under the same sid may send none.
#[test]
fn heartbeats_before_a_goodbye_withdraw_no_tools_of_the_next_run() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    let sid = world.sid();
    world.play(&Participant::new("phone", sid).role(Role::Client));
    world.run(200 * MS);
    let says = |world: &mut World, meta: &Meta, message: &Message| {
        world.send("phone", &["a"], meta, message);
        world.run(100 * MS);
    };
    let offered = with!(RegisteredTool::default(), name = "t".to_owned());
    let offered = Message::ToolsRegister(with!(ToolsRegister::default(), tools = vec![offered]));
    let features = ["tool_use", "tool_register", "tool_ack"].map(String::from).to_vec();
    let configuration = Message::Configuration(with!(Configuration::default(), features = Some(features)));
    for run in ["one", "two"] {
        let meta = world.shows("phone", "a", run);
        says(&mut world, &meta, &configuration);
        says(&mut world, &Meta::new(), &offered);
        if run == "one" {
            says(&mut world, &Meta::new(), &Message::Heartbeat);
            let bye = Meta::new().with_bool("bridge.bye", true);
            says(&mut world, &bye, &Message::ControlStop(ControlStop::default()));
            assert!(world.session("a").tools().is_empty());
        }
    }
    world.run(40 * SECOND);
    assert_eq!(world.session("a").tools().len(), 1);
}
