//! Several who may be meant: clients that offer one tool, participants that may be a client's assistant.

#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use toolbridge::{
    CallError, Config, Event, Identity, SelectionPolicy, Session, ToolOptions, Value,
    protocol::frame::{Kind, Message, Meta, RegisteredTool, ToolsRegister},
};

use crate::session_world::{MS, SECOND, World, request, tool, value};

/// An assistant with this policy, and clients that come one after the other and answer with their names.
fn room(policy: SelectionPolicy, clients: &[&str]) -> World {
    room_of(Config::default().choose(policy), clients)
}

fn room_of(config: Config, clients: &[&str]) -> World {
    let mut world = World::new();
    world.assistant("a", config);
    world.run(200 * MS);
    for client in clients {
        comes(&mut world, client);
    }
    world
}

fn comes(world: &mut World, client: &str) {
    world.client(client, Config::default(), &["t"]);
    let name = client.to_owned();
    world.handle(client, move |_| Some(Ok(Value::encode(&serde_json::json!({"by": name})).unwrap())));
    world.run(200 * MS);
}

fn by(world: &mut World) -> Result<String, CallError> {
    world.ask("a", request("t")).map(|result| result.to_json()["by"].as_str().unwrap().to_owned())
}

fn is_ambiguous(result: &Result<String, CallError>) -> bool {
    matches!(result, Err(CallError::Ambiguous { owners, .. }) if owners.len() > 1)
}

#[test]
fn without_a_policy_several_are_an_error_and_one_is_not() {
    let mut world = room(SelectionPolicy::Nobody, &["tv"]);
    assert_eq!(by(&mut world).unwrap(), "tv");
    comes(&mut world, "lamp");
    let result = by(&mut world);
    assert!(is_ambiguous(&result), "{result:?}");
}

#[test]
fn the_first_to_register_keeps_its_place_if_it_comes_back_in_time() {
    let mut world = room(SelectionPolicy::First, &["tv", "lamp", "phone"]);
    assert_eq!(by(&mut world).unwrap(), "tv");
    world.leave("tv");
    world.run(SECOND);
    assert_eq!(by(&mut world).unwrap(), "lamp");
    world.rejoin("tv");
    world.run(SECOND);
    assert_eq!(by(&mut world).unwrap(), "tv");
    // Away for too long, it is the last.
    world.leave("tv");
    world.run(10 * SECOND);
    world.rejoin("tv");
    world.run(SECOND);
    assert_eq!(by(&mut world).unwrap(), "lamp");
    // And so is another run of the same program.
    world.leave("lamp");
    comes(&mut world, "lamp");
    assert_eq!(by(&mut world).unwrap(), "phone");
}

#[test]
fn the_last_to_register_is_no_other_for_a_changed_registration() {
    let mut world = room(SelectionPolicy::Last, &["phone", "tv", "lamp"]);
    assert_eq!(by(&mut world).unwrap(), "lamp");
    world.with("phone", |session, now| session.offer(now, vec![tool("t"), tool("u")])).unwrap().unwrap();
    world.run(200 * MS);
    assert_eq!(by(&mut world).unwrap(), "lamp");
    comes(&mut world, "alarm");
    assert_eq!(by(&mut world).unwrap(), "alarm");
}

#[test]
fn the_last_heard_from_is_asked() {
    let mut world = room(SelectionPolicy::LastHeard, &["phone", "tv", "lamp"]);
    for name in ["tv", "phone", "lamp", "tv"] {
        let to = toolbridge::Destination::Peers(vec!["a".into()]);
        let send =
            |session: &mut Session, now| session.send(now, to, Kind::new(4_000), Meta::new(), Value::empty());
        world.with(name, send).unwrap().unwrap();
        world.run(100 * MS);
        assert_eq!(by(&mut world).unwrap(), name);
    }
}

#[test]
fn a_function_chooses_by_what_was_registered_and_announced() {
    let policy = SelectionPolicy::by(|tool, candidates| {
        assert_eq!(tool, Some("t"));
        assert!(candidates.iter().all(|it| it.participant.is_some() && it.tool.is_some()));
        let names: Vec<_> = candidates.iter().map(|it| it.identity.as_str()).collect();
        assert_eq!(names, ["tv", "phone"], "in the order in which they came");
        candidates.iter().find(|it| it.identity.as_str() == "phone").map(|it| it.identity.clone())
    });
    let mut world = room(policy, &["tv", "phone"]);
    assert_eq!(by(&mut world).unwrap(), "phone");
}

#[test]
fn a_function_that_panics_or_names_somebody_else_chooses_nobody() {
    let asked = Arc::new(AtomicUsize::new(0));
    let times = Arc::clone(&asked);
    let policy = SelectionPolicy::by(move |_, candidates| match times.fetch_add(1, Ordering::SeqCst) {
        0 => std::panic::resume_unwind(Box::new("no")), // no message on the test's screen
        1 => Some(Identity::from("stranger")),
        2 => None,
        _ => Some(candidates[0].identity.clone()),
    });
    let mut world = room(policy, &["tv", "phone"]);
    for _ in 0..3 {
        let result = by(&mut world);
        assert!(is_ambiguous(&result), "{result:?}");
    }
    assert_eq!(by(&mut world).unwrap(), "tv", "the session is whole");
    assert_eq!(asked.load(Ordering::SeqCst), 4);
}

#[test]
fn a_call_that_waits_for_an_owner_chooses_when_they_come() {
    let mut world = room(SelectionPolicy::First, &[]);
    let key = world.call("a", request("t")).unwrap();
    comes(&mut world, "tv");
    comes(&mut world, "phone");
    let result = world.settled("a", key).unwrap().as_ref().unwrap();
    assert_eq!(result.to_json()["by"], "tv");
}

#[test]
fn sec_i6_a_pinned_or_named_tool_is_never_ambiguous_and_no_policy_is_asked() {
    let never = || SelectionPolicy::by(|_, _| std::panic::resume_unwind(Box::new("nobody asks")));
    let config = Config::default().choose(never()).pin("t".parse().unwrap(), "phone");
    let mut world = room_of(config, &["tv", "phone"]);
    assert_eq!(by(&mut world).unwrap(), "phone");
    let result = world.ask("a", request("t").to("tv")).unwrap();
    assert_eq!(result.to_json()["by"], "tv");
}

#[test]
fn a_policy_chooses_who_may_claim_first() {
    let mut world = room(SelectionPolicy::Last, &[]);
    let shared = tool("t").options(ToolOptions::default().prefer_client());
    world.with("a", |session, now| session.offer(now, vec![shared])).unwrap().unwrap();
    world.handle("a", |_| Some(Ok(value(7))));
    comes(&mut world, "tv");
    comes(&mut world, "phone");
    assert_eq!(by(&mut world).unwrap(), "phone");
}

#[test]
fn a_client_binds_whom_its_policy_names_when_its_assistant_left() {
    for (policy, bound) in [
        (SelectionPolicy::Nobody, None),
        (SelectionPolicy::First, Some("b")),
        (SelectionPolicy::Last, Some("d")),
        (SelectionPolicy::by(|tool, them| (tool.is_none()).then(|| them[1].identity.clone())), Some("c")),
    ] {
        let mut world = World::new();
        world.client("phone", Config::default().choose(policy), &["t"]);
        for assistant in ["a", "b", "c", "d"] {
            world.assistant(assistant, Config::default());
            world.run(200 * MS);
        }
        assert_eq!(world.session("phone").bound().unwrap(), "a", "who spoke first stays");
        world.with("a", |session, now| session.close(now));
        world.run(200 * MS);
        assert_eq!(world.session("phone").bound().map(Identity::as_str), bound);
        let told = |event: &&Event| matches!(event, Event::AmbiguousAssistant { .. });
        let told = world.ends["phone"].events.iter().filter(told).count();
        assert_eq!(told, usize::from(bound.is_none()));
        if let Some(bound) = bound {
            world.handle("phone", |_| Some(Ok(value(1))));
            assert_eq!(world.ask(bound, request("t")).unwrap(), value(1));
        }
    }
}

#[test]
fn a_registration_that_is_refused_gives_no_place() {
    let mut world = room(SelectionPolicy::Last, &["phone", "tv"]);
    world.stranger("x");
    world.run(200 * MS);
    let tools = vec![RegisteredTool { name: "t".to_owned(), ..RegisteredTool::default() }];
    world.say("x", &["a"], &Meta::new(), &Message::ToolsRegister(ToolsRegister { tools }));
    world.run(200 * MS);
    assert_eq!(by(&mut world).unwrap(), "tv");
}
