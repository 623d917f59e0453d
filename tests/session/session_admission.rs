//! Tokens without a role: which participants are admitted or refused, and what callers, assistants and clients learn.

#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::time::Duration;

use toolbridge::{
    CallError, Config, ErrorCode, Event, Identity, Role, ToolError,
    frame::{Configuration, ControlStop, Kind, Message, Meta, RegisteredTool, ToolsRegister},
    session::{SelectionPolicy, Session, Unaccepted},
    tools::{NotAdmitted, NotOffered},
    transport::{Participant, ParticipantKind, ROLE_ATTRIBUTE},
};

use crate::session_world::{Fate, MS, SECOND, World, request, seed, tool, value};

/// A toolbridge client with an ordinary token.
fn ordinary_client(world: &mut World, name: &str, config: Config, tools: &[&str]) {
    let who = ordinary(world, name);
    client_as(world, &who, config, tools);
}

fn client_as(world: &mut World, who: &Participant, config: Config, tools: &[&str]) {
    let name = who.identity().as_str();
    let mut session = Session::client(world.now, who.clone(), config.room("room"), seed(name, 77));
    session.offer(world.now, tools.iter().map(|name| tool(name)).collect()).unwrap();
    world.enter(who, Some(session));
    world.handle(name, |_| Some(Ok(value(1))));
}

/// A participant with an ordinary token: of kind STANDARD, without attributes, which it cannot change.
fn ordinary(world: &mut World, name: &str) -> Participant {
    Participant::new(name, world.sid()).can_update_metadata(false)
}

fn not_admitted(world: &World) -> Vec<(Identity, NotAdmitted)> {
    let of = |event: &Event| match event {
        Event::NotAdmitted { client, why } => Some((client.clone(), why.clone())),
        _ => None,
    };
    world.ends["a"].events.iter().filter_map(of).collect()
}

fn unaccepted(world: &World, name: &str) -> Vec<Unaccepted> {
    let of = |event: &Event| match event {
        Event::Unaccepted { why } => Some(why.clone()),
        _ => None,
    };
    world.ends[name].events.iter().filter_map(of).collect()
}

/// The tools that the assistant has accepted from others, by owner.
fn owners(world: &World) -> Vec<String> {
    world.session("a").tools().iter().map(|offer| offer.owner.to_string()).collect()
}

fn why(result: Result<toolbridge::Value, CallError>) -> NotOffered {
    match result.unwrap_err() {
        CallError::UnknownTool { why, .. } => *why,
        other => panic!("{other:?}"),
    }
}

fn registration(names: &[&str]) -> Message {
    let tools = names.iter().map(|name| with!(RegisteredTool::default(), name = (*name).to_owned()));
    Message::ToolsRegister(with!(ToolsRegister::default(), tools = tools.collect()))
}

#[test]
fn only_ordinary_participant_is_admitted() {
    for assistant_first in [true, false] {
        let mut world = World::new();
        if assistant_first {
            world.assistant("a", Config::default());
        }
        ordinary_client(&mut world, "phone", Config::default(), &["t"]);
        if !assistant_first {
            world.assistant("a", Config::default());
        }
        assert_eq!(world.ask("a", request("t")).unwrap(), value(1));
        assert_eq!(owners(&world), ["phone"]);
        assert!(not_admitted(&world).is_empty() && unaccepted(&world, "phone").is_empty());
    }
}

#[test]
fn only_ordinary_participant_is_refused_when_only_roles_are_admitted() {
    let mut world = World::new();
    world.assistant("a", Config::default().admit_only_roles());
    ordinary_client(&mut world, "phone", Config::default(), &["set_lamp"]);
    let error = world.ask("a", request("set_lamp")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "phone is in the room and offers set_lamp, but its token has no role: add the attribute \
         toolbridge.role=client, or name phone as one of the assistant's clients"
    );
    assert!(!error.may_have_run() && owners(&world).is_empty());
    assert_eq!(not_admitted(&world), [("phone".into(), NotAdmitted::NoRole { admitted: None })]);
}

#[test]
fn ordinary_participant_is_refused_when_the_author_names_clients() {
    for config in [Config::default().admit("tv"), Config::default().admit_only_roles()] {
        let mut world = World::new();
        world.assistant("a", config);
        ordinary_client(&mut world, "phone", Config::default(), &["t"]);
        world.run(6 * SECOND);
        assert!(owners(&world).is_empty());
        assert_eq!(not_admitted(&world).len(), 1);
        let Some(Unaccepted::Refused { by, reason }) = unaccepted(&world, "phone").pop() else { panic!() };
        assert!(by == "a" && reason.contains("toolbridge.role=client"), "{reason}");
    }
}

#[test]
fn second_ordinary_participant_is_refused_and_an_event_names_both() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    ordinary_client(&mut world, "phone", Config::default(), &["t"]);
    world.run(SECOND);
    ordinary_client(&mut world, "tablet", Config::default(), &["t", "u"]);
    world.run(SECOND);
    assert_eq!(owners(&world), ["phone"], "the first participant stays admitted");
    let first = NotAdmitted::NoRole { admitted: Some("phone".into()) };
    assert_eq!(not_admitted(&world), [("tablet".into(), first.clone())]);
    assert_eq!(world.ask("a", request("t")).unwrap(), value(1));
    let refused = NotOffered::NotAdmitted { client: "tablet".into(), offers: true, why: first };
    assert_eq!(why(world.ask("a", request("u"))), refused);
    assert!(
        matches!(unaccepted(&world, "tablet").as_slice(), [Unaccepted::Refused { by, .. }] if *by == "a")
    );
}

#[test]
fn second_ordinary_participant_is_admitted_when_the_first_does_not_return() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    ordinary_client(&mut world, "phone", Config::default(), &["t"]);
    world.run(SECOND);
    ordinary_client(&mut world, "tablet", Config::default(), &["u"]);
    world.run(SECOND);
    world.leave("phone");
    world.run(4 * SECOND);
    assert_eq!(owners(&world), ["phone"], "the first participant may still return");
    world.run(4 * SECOND);
    assert_eq!(owners(&world), ["tablet"]);
    assert_eq!(world.ask("a", request("u")).unwrap(), value(1));
}

#[test]
fn next_ordinary_participant_is_admitted_when_the_first_has_got_a_role() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    ordinary_client(&mut world, "phone", Config::default(), &["t"]);
    world.run(SECOND);
    let end = world.ends.get_mut("phone").unwrap();
    end.who = end.who.clone().role(Role::Observer);
    world.announce("phone");
    world.run(SECOND);
    ordinary_client(&mut world, "tablet", Config::default(), &["u"]);
    world.run(SECOND);
    assert_eq!(owners(&world), ["tablet"]);
}

#[test]
fn admitted_participant_keeps_its_place_under_another_sid() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    ordinary_client(&mut world, "phone", Config::default(), &["t"]);
    world.run(SECOND);
    ordinary_client(&mut world, "tablet", Config::default(), &["u"]);
    world.leave("phone");
    world.run(SECOND);
    world.rejoin("phone");
    world.run(8 * SECOND);
    assert_eq!(owners(&world), ["phone"]);
    assert_eq!(world.ask("a", request("t")).unwrap(), value(1));
}

/// It is announced under another sid, and its Configuration arrives only after the grace period of its earlier join.
#[test]
fn admitted_participant_that_returns_in_time_keeps_its_place_however_late_it_speaks() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    let joins = |world: &mut World| {
        let who = ordinary(world, "phone");
        world.play(&who);
    };
    let speaks = |world: &mut World| {
        world.send("phone", &["a"], &Meta::new(), &Message::Configuration(Configuration::default()));
        world.send("phone", &["a"], &Meta::new(), &registration(&["t"]));
        world.run(SECOND);
    };
    joins(&mut world);
    speaks(&mut world);
    assert_eq!(owners(&world), ["phone"]);
    ordinary_client(&mut world, "tablet", Config::default(), &["u"]);
    world.run(SECOND);
    world.leave("phone");
    world.run(3 * SECOND);
    joins(&mut world);
    world.run(4 * SECOND);
    speaks(&mut world);
    assert_eq!(owners(&world), ["phone"]);
}

#[test]
fn two_early_ordinary_participants_are_both_refused_until_one_leaves() {
    let mut world = World::new();
    ordinary_client(&mut world, "phone", Config::default(), &["t"]);
    ordinary_client(&mut world, "tablet", Config::default(), &["u"]);
    world.assistant("a", Config::default());
    world.run(3 * SECOND);
    assert!(owners(&world).is_empty());
    assert_eq!(not_admitted(&world).len(), 2);
    world.leave("tablet");
    world.run(3 * SECOND);
    assert_eq!(owners(&world), ["phone"]);
}

#[test]
fn participant_that_a_call_named_registers_again_when_it_is_admitted() {
    let mut world = World::new();
    ordinary_client(&mut world, "phone", Config::default(), &["t"]);
    ordinary_client(&mut world, "tablet", Config::default(), &["u"]);
    world.assistant("a", Config::default());
    let refused = why(world.ask("a", request("t").to("phone")));
    assert!(matches!(refused, NotOffered::NotAdmitted { offers: true, .. }), "{refused:?}");
    world.leave("tablet");
    world.run(3 * SECOND);
    assert_eq!(owners(&world), ["phone"]);
}

#[test]
fn role_client_ends_the_admission_of_an_ordinary_participant() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    ordinary_client(&mut world, "x", Config::default(), &["t", "hang"]);
    world.handle("x", |job| (job.tool.as_str() == "t").then(|| Ok(value(666))));
    world.run(SECOND);
    let key = world.call("a", request("hang")).unwrap();
    world.run(SECOND);
    world.client("phone", Config::default(), &["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    world.run(SECOND);
    assert_eq!(owners(&world), ["phone"]);
    assert!(matches!(unaccepted(&world, "x").as_slice(), [Unaccepted::Refused { by, .. }] if *by == "a"));
    assert_eq!(world.ask("a", request("t")).unwrap(), value(1));
    // Its running call ends as it would have.
    assert!(world.settled("a", key).is_none());
    world.finish("x", Ok(value(2)));
    world.run(SECOND);
    assert_eq!(*world.settled("a", key).unwrap().as_ref().unwrap(), value(2));
    // It is not admitted again when the participant with a role leaves: tokens of this room have roles.
    world.leave("phone");
    world.run(20 * SECOND);
    world.send("x", &["a"], &Meta::new(), &registration(&["t"]));
    world.run(SECOND);
    assert!(owners(&world).is_empty());
}

#[test]
fn participant_of_another_kind_or_with_changeable_attributes_is_not_admitted() {
    let mut played = Vec::new();
    let n = |name: &str| Participant::new(name, format!("PA_{name}")).can_update_metadata(false);
    played.push((n("egress").kind(ParticipantKind::Other), NotAdmitted::OtherKind));
    played.push((n("agent").agent(true), NotAdmitted::OtherKind));
    played.push((n("own").can_update_metadata(true), NotAdmitted::ChangeableRole));
    let claims = n("claims").attributes([(ROLE_ATTRIBUTE, "client")]).can_update_metadata(true);
    played.push((claims, NotAdmitted::ChangeableRole));
    played.push((n("observer").role(Role::Observer), NotAdmitted::OtherRole { role: Role::Observer }));
    for (who, reason) in played {
        let mut world = World::new();
        world.assistant("a", Config::default());
        world.play(&who);
        world.run(SECOND);
        let name = who.identity().as_str();
        world.send(name, &["a"], &Meta::new(), &Message::Configuration(Configuration::default()));
        world.send(name, &["a"], &Meta::new(), &registration(&["t"]));
        world.run(SECOND);
        assert!(owners(&world).is_empty(), "{name}");
        assert_eq!(not_admitted(&world), [(who.identity().clone(), reason)]);
    }
}

#[test]
fn other_kinds_do_not_count_as_a_second_participant() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    for (name, who) in [
        ("egress", Participant::new("egress", "PA_e").kind(ParticipantKind::Other)),
        ("eye", Participant::new("eye", "PA_o").role(Role::Observer)),
        ("agent", Participant::new("agent", "PA_g").agent(true)),
    ] {
        assert_eq!(who.identity().as_str(), name);
        world.play(&who.can_update_metadata(false));
    }
    ordinary_client(&mut world, "phone", Config::default().assistant("a"), &["t"]);
    world.run(SECOND);
    assert_eq!(world.ask("a", request("t")).unwrap(), value(1));
}

#[test]
fn silent_ordinary_participant_is_sent_nothing_and_is_not_admitted() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    let who = ordinary(&mut world, "person");
    world.play(&who);
    world.run(10 * SECOND);
    assert!(world.ends["person"].inbox.is_empty());
}

#[test]
fn ordinary_participant_is_an_assistant_only_if_the_client_names_it() {
    for named in [false, true] {
        let mut world = World::new();
        let who = ordinary(&mut world, "a");
        let session =
            Session::assistant(world.now, who.clone(), Config::default().room("room"), seed("a", 5));
        world.enter(&who, Some(session));
        let config = if named { Config::default().assistant("a") } else { Config::default() };
        ordinary_client(&mut world, "phone", config, &["t"]);
        world.run(10 * SECOND);
        assert_eq!(world.session("phone").bound().is_some(), named);
        let reported = unaccepted(&world, "phone");
        match named {
            true => assert!(reported.is_empty(), "{reported:?}"),
            false => {
                assert_eq!(reported, [Unaccepted::NoAssistant { here: vec!["a".into()] }]);
                assert!(reported[0].to_string().contains("assistant, such as a"), "{}", reported[0]);
            }
        }
    }
}

#[test]
fn missing_assistant_is_reported_once_for_the_same_participants() {
    let mut world = World::new();
    for (name, here) in [("person", vec!["person"]), ("other", vec!["other", "person"])] {
        let who = ordinary(&mut world, name);
        world.play(&who);
        if name == "person" {
            world.client("phone", Config::default(), &["t"]);
        }
        for _ in 0..2 {
            world.run(10 * SECOND);
            let last = unaccepted(&world, "phone").pop();
            let here = here.iter().map(|name| (*name).into()).collect();
            assert_eq!(last, Some(Unaccepted::NoAssistant { here }));
            assert_eq!(unaccepted(&world, "phone").len(), if name == "person" { 1 } else { 2 });
            world.announce(name); // again, as after a change of its metadata
        }
    }
}

/// The candidates leave while the client asks the author's function again, so it never sees one of them alone. When the last
/// one has left, the client reports that there is no assistant, and names who is here.
#[test]
fn missing_assistant_is_reported_after_an_ambiguity_too() {
    let mut world = World::new();
    let config = Config::default().choose(SelectionPolicy::by(|_, _| None));
    world.client("phone", config, &["t"]);
    for name in ["a", "b", "c", "d"] {
        world.assistant(name, Config::default());
        world.run(SECOND);
    }
    let leaves = |world: &mut World, name: &str| {
        world.with(name, |session, now| session.close(now));
        world.leave(name);
        world.run(SECOND);
    };
    leaves(&mut world, "a");
    let ambiguous = |it: &Event| matches!(it, Event::AmbiguousAssistant { .. });
    assert!(world.ends["phone"].events.iter().any(ambiguous));
    world.answers_selections = false;
    for name in ["b", "c", "d"] {
        leaves(&mut world, name);
    }
    for selection in std::mem::take(&mut world.selections) {
        world.with("phone", |session, now| session.select(now, selection.1.key, None));
    }
    let who = ordinary(&mut world, "person");
    world.play(&who);
    world.run(10 * SECOND);
    assert_eq!(unaccepted(&world, "phone"), [Unaccepted::NoAssistant { here: vec!["person".into()] }]);
}

/// A ping before its registration was due would prove nothing, and take the place of the one that does.
#[test]
fn client_of_another_assistant_that_joins_late_is_named() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    world.assistant("b", Config::default());
    world.run(SECOND);
    let key = world.call("a", request("t")).unwrap();
    world.run(4_400 * MS);
    world.client("phone", Config::default().assistant("b"), &["t"]);
    world.run(5 * SECOND);
    let error = world.settled("a", key).unwrap().as_ref().unwrap_err();
    assert!(matches!(error, CallError::NotBound { clients, .. } if *clients == ["phone"]), "{error:?}");
}

#[test]
fn client_between_handshake_and_registration_is_not_bound_to_another_assistant() {
    for gap in [1, 5, 50, 500, 990] {
        let mut world = World::new();
        world.assistant("a", Config::default().admit("phone"));
        world.run(SECOND);
        let key = world.call("a", request("t").to("phone")).unwrap();
        // Its Configuration arrives just before the owner wait ends, its registration after that.
        world.run(4_979 * MS);
        world.fate = Some(Box::new(move |_to, from, frame| {
            let late = from.as_str() == "phone" && frame.kind() == Kind::TOOLS_REGISTER;
            if late { Fate::IsOvertaken(Duration::from_millis(gap)) } else { Fate::Arrives }
        }));
        world.client("phone", Config::default().assistant("a"), &["t"]);
        world.handle("phone", |_| Some(Ok(value(1))));
        world.run(3 * SECOND);
        assert_eq!(world.settled("a", key).unwrap().as_ref().unwrap(), &value(1), "{gap} ms");
    }
}

#[test]
fn late_registration_is_waited_for_within_the_budget_only() {
    let mut world = World::new();
    world.assistant("a", Config::default().admit("phone"));
    world.run(SECOND);
    let key = world.call("a", request("t").to("phone").timeout(5_300 * MS)).unwrap();
    world.run(4_979 * MS);
    world.fate = Some(Box::new(|_to, from, frame| {
        let lost = from.as_str() == "phone" && frame.kind() == Kind::TOOLS_REGISTER;
        if lost { Fate::IsLost } else { Fate::Arrives }
    }));
    world.client("phone", Config::default().assistant("a"), &["t"]);
    world.run(322 * MS);
    let settled = world.settled("a", key).unwrap().as_ref().unwrap_err();
    assert!(
        matches!(settled, CallError::UnknownTool { why, .. } if matches!(**why, NotOffered::NotReady { .. })),
        "{settled:?}"
    );
}

#[test]
fn dead_client_that_did_not_register_is_not_bound_to_another_assistant() {
    let mut world = World::new();
    world.assistant("a", Config::default().admit("phone"));
    world.run(SECOND);
    world.fate = Some(Box::new(|_to, from, frame| {
        let lost = from.as_str() == "phone" && frame.kind() == Kind::TOOLS_REGISTER;
        if lost { Fate::IsLost } else { Fate::Arrives }
    }));
    world.client("phone", Config::default().assistant("a"), &["t"]);
    world.run(100 * MS);
    world.ends.get_mut("phone").unwrap().here = false; // killed; the room reports it only later
    let before = world.count("a", "pings");
    let key = world.call("a", request("t").to("phone")).unwrap();
    world.run(6 * SECOND);
    let settled = world.settled("a", key).unwrap().as_ref().unwrap_err();
    let unready =
        |why: &NotOffered| matches!(why, NotOffered::NotReady { owners, .. } if *owners == ["phone"]);
    assert!(matches!(settled, CallError::UnknownTool { why, .. } if unready(why)), "{settled:?}");
    assert_eq!(world.count("a", "pings") - before, 1);
}

#[test]
fn error_states_why_no_client_was_asked() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    world.run(SECOND);
    let text = |world: &mut World, call| world.ask("a", call).unwrap_err().to_string();
    assert_eq!(text(&mut world, request("t")), "room room is empty: there is no participant to run \"t\"");
    assert_eq!(
        text(&mut world, request("t").to("phone")),
        "room room is empty: there is no participant to run \"t\""
    );
    world.client("desk", Config::default(), &["count_words"]);
    world.run(SECOND);
    assert_eq!(text(&mut world, request("t").to("phnoe")), "phnoe is not in the room; participants: desk");
    assert_eq!(
        text(&mut world, request("cuont_words")),
        "no participant in the room offers a tool named \"cuont_words\"; did you mean count_words?"
    );
    assert_eq!(
        text(&mut world, request("count_word").to("desk")),
        "desk offers no tool named \"count_word\"; did you mean count_words?"
    );
    assert_eq!(
        text(&mut world, request("unlock")),
        "no participant in the room offers a tool named \"unlock\""
    );
    let eye = Participant::new("eye", "PA_eye").role(Role::Observer);
    world.play(&eye);
    world.run(SECOND);
    assert!(
        text(&mut world, request("t").to("eye"))
            .starts_with("eye is in the room, but its token has the role observer")
    );
}

#[test]
fn error_states_that_a_client_has_not_registered_yet() {
    let mut world = World::new();
    world.announce = 3 * SECOND;
    world.client("phone", Config::default(), &["slow"]);
    let plain = ordinary(&mut world, "plain");
    world.play(&plain);
    world.assistant("a", Config::default()); // its list has both; they are told 3 s later
    for (call, owner) in [(request("slow"), "phone"), (request("slow").to("plain"), "plain")] {
        let result = world.ask("a", call.timeout(SECOND));
        let error = result.as_ref().unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with(&format!("{owner} is in the room, but has not registered tools yet")),
            "{error}"
        );
        let expected = NotOffered::NotReady { owners: vec![owner.into()], unannounced: true };
        assert!(!error.may_have_run());
        assert_eq!(why(result), expected);
    }
}

#[test]
fn timeout_names_the_limit_that_ended_the_call() {
    let mut world = World::pair(&["t"]);
    let says = |text: &'static str| {
        move |_: &toolbridge::session::Job| Some(Err(ToolError::new(ErrorCode::TIMEOUT, text)))
    };
    let cases = [
        ("the tool took longer than its limit of 3000 ms", 3 * SECOND),
        ("not allowed to start within 1500 ms; nothing ran", 1_500 * MS),
        ("it took too long", 20 * SECOND),
        ("it took 99999 ms", 20 * SECOND),
        ("after 0 ms", 20 * SECOND),
    ];
    for (text, limit) in cases {
        world.handle("phone", says(text));
        let error = world.ask("a", request("t").timeout(20 * SECOND)).unwrap_err();
        assert!(matches!(error, CallError::Timeout { limit: named } if named == limit), "{text}: {error:?}");
    }
}

#[test]
fn every_call_of_an_assistant_without_a_role_is_refused() {
    let mut world = World::new();
    let who = ordinary(&mut world, "a");
    let session = Session::assistant(world.now, who.clone(), Config::default().room("room"), seed("a", 78));
    world.enter(&who, Some(session));
    world.client("phone", Config::default(), &["t"]);
    world.run(SECOND);
    for _ in 0..3 {
        let error = world.ask("a", request("t").to("phone").timeout(3 * SECOND)).unwrap_err();
        let CallError::Tool(refused) = &error else { panic!("{error}") };
        assert_eq!((refused.code(), error.may_have_run()), (ErrorCode::PERMISSION_DENIED, false), "{error}");
    }
    assert!(world.ends["phone"].jobs.is_empty());
}

#[test]
fn participant_that_said_goodbye_is_not_admitted_as_the_only_one() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    for name in ["x", "y"] {
        let who = ordinary(&mut world, name);
        world.play(&who);
    }
    world.run(SECOND);
    let shown = Meta::new().with_text("bridge.instance", "x").with_bool("bridge.heard", true);
    world.send("x", &["a"], &shown, &Message::Configuration(Configuration::default()));
    world.run(SECOND);
    world.call("a", request("t").to("x")).unwrap(); // the assistant reads the frames of those that it calls
    let bye = with!(ControlStop::default(), stop_type = Some("all".to_owned()));
    world.send("x", &["a"], &Meta::new().with_bool("bridge.bye", true), &Message::ControlStop(bye));
    world.run(SECOND);
    world.leave("y");
    world.run(SECOND);
    ordinary_client(&mut world, "z", Config::default(), &["t"]);
    world.run(SECOND);
    assert_eq!(not_admitted(&world).last(), Some(&("z".into(), NotAdmitted::NoRole { admitted: None })));
    world.leave("x");
    world.run(3 * SECOND);
    assert_eq!(owners(&world), ["z"], "the grace period is that of an admitted participant");
}

/// "After it, the receiver accepts only a Configuration of another instance under the same sid."
#[test]
fn process_after_a_goodbye_is_admitted_as_the_only_one() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    for name in ["x", "y"] {
        let who = ordinary(&mut world, name);
        world.play(&who);
    }
    world.run(SECOND);
    let shows = |world: &mut World, instance: &str| {
        let shown = Meta::new().with_text("bridge.instance", instance).with_bool("bridge.heard", true);
        let features = ["tool_use", "tool_register", "tool_ack"].map(String::from).to_vec();
        let it = with!(Configuration::default(), features = Some(features));
        world.send("x", &["a"], &shown, &Message::Configuration(it));
        world.send("x", &["a"], &Meta::new(), &registration(&["t"]));
        world.run(SECOND);
    };
    shows(&mut world, "one");
    world.call("a", request("t").to("x")).unwrap();
    let bye = with!(ControlStop::default(), stop_type = Some("all".to_owned()));
    world.send("x", &["a"], &Meta::new().with_bool("bridge.bye", true), &Message::ControlStop(bye));
    world.leave("y");
    world.run(SECOND);
    assert!(owners(&world).is_empty());
    shows(&mut world, "two");
    assert_eq!(owners(&world), ["x"]);
}

/// It is called as a plain peer, which no role keeps from that. It answers no prompts.
#[test]
fn prompt_to_a_plain_participant_without_a_role_names_no_role() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    for name in ["x", "y"] {
        let who = ordinary(&mut world, name);
        world.play(&who);
    }
    world.run(5 * SECOND);
    let configuration = Message::Configuration(Configuration::default());
    world.send("x", &["a"], &Meta::new(), &configuration);
    world.run(SECOND);
    let why = why(world.ask("a", request("bridge.choose").to("x")));
    assert!(matches!(why, NotOffered::NoSuchTool { .. }), "{why:?}");
}
