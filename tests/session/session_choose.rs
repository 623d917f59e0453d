//! Selection among several: clients that offer one tool, participants that may be a client's assistant.

#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use toolbridge::{
    CallError, Config, Event, Identity, ToolOptions, Value,
    frame::{Kind, Message, Meta, RegisteredTool, ToolsRegister},
    session::{SelectionPolicy, Session},
};

use crate::session_world::{MS, SECOND, World, request, tool, value};

/// An assistant with this policy, and clients that join one after the other and reply with their names.
fn room(policy: SelectionPolicy, clients: &[&str]) -> World {
    room_of(Config::default().choose(policy), clients)
}

fn room_of(config: Config, clients: &[&str]) -> World {
    let mut world = World::new();
    world.assistant("a", config);
    world.run(200 * MS);
    for client in clients {
        joins(&mut world, client);
    }
    world
}

fn joins(world: &mut World, client: &str) {
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
fn several_clients_without_a_policy_are_an_error() {
    let mut world = room(SelectionPolicy::Nobody, &["tv"]);
    assert_eq!(by(&mut world).unwrap(), "tv");
    joins(&mut world, "lamp");
    let result = by(&mut world);
    assert!(is_ambiguous(&result), "{result:?}");
}

#[test]
fn first_registered_client_keeps_its_position_if_it_returns_in_time() {
    let mut world = room(SelectionPolicy::First, &["tv", "lamp", "phone"]);
    assert_eq!(by(&mut world).unwrap(), "tv");
    world.leave("tv");
    world.run(SECOND);
    assert_eq!(by(&mut world).unwrap(), "lamp");
    world.rejoin("tv");
    world.run(SECOND);
    assert_eq!(by(&mut world).unwrap(), "tv");
    // After a long absence, it is the last.
    world.leave("tv");
    world.run(10 * SECOND);
    world.rejoin("tv");
    world.run(SECOND);
    assert_eq!(by(&mut world).unwrap(), "lamp");
    // So is another instance of the same program.
    world.leave("lamp");
    joins(&mut world, "lamp");
    assert_eq!(by(&mut world).unwrap(), "phone");
}

#[test]
fn changed_registration_does_not_make_a_client_the_last() {
    let mut world = room(SelectionPolicy::Last, &["phone", "tv", "lamp"]);
    assert_eq!(by(&mut world).unwrap(), "lamp");
    world.with("phone", |session, now| session.offer(now, vec![tool("t"), tool("u")])).unwrap().unwrap();
    world.run(200 * MS);
    assert_eq!(by(&mut world).unwrap(), "lamp");
    joins(&mut world, "alarm");
    assert_eq!(by(&mut world).unwrap(), "alarm");
}

#[test]
fn last_active_client_is_selected() {
    let mut world = room(SelectionPolicy::LastHeard, &["phone", "tv", "lamp"]);
    for name in ["tv", "phone", "lamp", "tv"] {
        let to = toolbridge::session::Destination::Peers(vec!["a".into()]);
        let send =
            |session: &mut Session, now| session.send(now, to, Kind::new(4_000), Meta::new(), Value::empty());
        world.with(name, send).unwrap().unwrap();
        world.run(100 * MS);
        assert_eq!(by(&mut world).unwrap(), name);
    }
}

#[test]
fn selection_function_gets_registrations_and_participants() {
    let policy = SelectionPolicy::by(|tool, candidates| {
        assert_eq!(tool, Some("t"));
        assert!(candidates.iter().all(|it| it.participant.is_some() && it.tool.is_some()));
        let names: Vec<_> = candidates.iter().map(|it| it.identity.as_str()).collect();
        assert_eq!(names, ["tv", "phone"], "clients are listed in the order of their registrations");
        candidates.iter().find(|it| it.identity.as_str() == "phone").map(|it| it.identity.clone())
    });
    let mut world = room(policy, &["tv", "phone"]);
    assert_eq!(by(&mut world).unwrap(), "phone");
}

#[test]
fn selection_function_that_panics_or_names_another_selects_none() {
    let asked = Arc::new(AtomicUsize::new(0));
    let times = Arc::clone(&asked);
    let policy = SelectionPolicy::by(move |_, candidates| match times.fetch_add(1, Ordering::SeqCst) {
        0 => std::panic::resume_unwind(Box::new("no")), // no panic message in the test's output
        1 => Some(Identity::from("stranger")),
        2 => None,
        _ => Some(candidates[0].identity.clone()),
    });
    let mut world = room(policy, &["tv", "phone"]);
    for _ in 0..3 {
        let result = by(&mut world);
        assert!(is_ambiguous(&result), "{result:?}");
    }
    assert_eq!(by(&mut world).unwrap(), "tv", "the session still works");
    assert_eq!(asked.load(Ordering::SeqCst), 4);
}

/// A room whose assistant selects with a function, and the selections that it was not answered.
fn unanswered(clients: &[&str]) -> World {
    let mut world = room(SelectionPolicy::by(|_, them| them.last().map(|it| it.identity.clone())), clients);
    world.answers_selections = false;
    world
}

#[test]
fn selection_function_that_names_another_participant_selects_none() {
    let mut world = room(SelectionPolicy::by(|_, _| Some("stranger".into())), &["tv", "phone"]);
    world.answers_selections = false;
    world.call("a", request("t")).unwrap();
    let (_, selection) = world.selections.remove(0);
    assert_eq!(selection.evaluate(), None);
}

#[test]
fn answer_of_the_selection_function_sends_the_call() {
    let mut world = unanswered(&["tv", "phone"]);
    let key = world.call("a", request("t")).unwrap();
    world.run(SECOND);
    assert!(world.settled("a", key).is_none() && world.selections.len() == 1, "{:?}", world.selections);
    let (_, selection) = world.selections.remove(0);
    assert_eq!(selection.tool.as_deref(), Some("t"));
    world.with("a", |session, now| session.select(now, selection.key, Some("tv".into())));
    world.with("a", |session, now| session.select(now, selection.key, Some("phone".into())));
    world.run(SECOND);
    assert_eq!(world.settled("a", key).unwrap().as_ref().unwrap().to_json()["by"], "tv", "one answer counts");
}

#[test]
fn selected_client_that_has_left_is_not_called() {
    let mut world = unanswered(&["tv", "phone", "lamp"]);
    let key = world.call("a", request("t")).unwrap();
    let (_, selection) = world.selections.remove(0);
    world.leave("tv");
    world.run(10 * SECOND);
    // Two others remain: the function is asked again.
    world.with("a", |session, now| session.select(now, selection.key, Some("tv".into())));
    let (_, selection) = world.selections.remove(0);
    let names: Vec<_> = selection.candidates.iter().map(|it| it.identity.as_str()).collect();
    assert_eq!(names, ["phone", "lamp"]);
    // One remains: it is called, whatever the answer.
    world.leave("lamp");
    world.run(10 * SECOND);
    world.with("a", |session, now| session.select(now, selection.key, Some("lamp".into())));
    world.run(SECOND);
    assert_eq!(world.settled("a", key).unwrap().as_ref().unwrap().to_json()["by"], "phone");
}

#[test]
fn call_without_a_remaining_owner_waits_again() {
    let mut world = unanswered(&["tv", "phone"]);
    let key = world.call("a", request("t").timeout(60 * SECOND)).unwrap();
    let (_, selection) = world.selections.remove(0);
    world.leave("tv");
    world.leave("phone");
    world.run(10 * SECOND);
    world.with("a", |session, now| session.select(now, selection.key, None));
    world.run(SECOND);
    let error = world.settled("a", key).unwrap().as_ref().unwrap_err();
    assert!(matches!(error, CallError::UnknownTool { .. }), "{error}");
}

#[test]
fn ended_call_ignores_its_selection() {
    let mut world = unanswered(&["tv", "phone"]);
    let key = world.call("a", request("t")).unwrap();
    let (_, selection) = world.selections.remove(0);
    world.with("a", |session, now| session.cancel(now, key));
    world.with("a", |session, now| session.select(now, selection.key, Some("tv".into())));
    world.run(SECOND);
    assert!(matches!(world.settled("a", key), Some(Err(CallError::Cancelled))));
    assert_eq!(world.session("a").stats().named("calls"), 1);
    assert!(world.ends["tv"].events.iter().all(|it| !matches!(it, Event::Requested { .. })), "tv was called");
}

#[test]
fn local_tool_runs_if_the_function_selects_no_client() {
    let mut world = unanswered(&["tv", "phone"]);
    let shared = tool("t").options(ToolOptions::default().prefer_client());
    world.with("a", |session, now| session.offer(now, vec![shared])).unwrap().unwrap();
    world.handle("a", |_| Some(Ok(value(7))));
    for named in [Some("phone"), None] {
        let key = world.call("a", request("t")).unwrap();
        let (_, selection) = world.selections.remove(0);
        world.with("a", |session, now| session.select(now, selection.key, named.map(Into::into)));
        world.run(SECOND);
        let result = world.settled("a", key).unwrap().as_ref().unwrap().clone();
        assert_eq!(result == value(7), named.is_none(), "{result:?}");
    }
}

#[test]
fn assistant_is_selected_again_if_candidates_changed() {
    let mut world = World::new();
    world.client("phone", Config::default().choose(SelectionPolicy::by(|_, _| None)), &["t"]);
    for assistant in ["a", "b", "c", "d"] {
        world.assistant(assistant, Config::default());
        world.run(200 * MS);
    }
    world.answers_selections = false;
    world.with("a", |session, now| session.close(now));
    world.run(200 * MS);
    let (_, selection) = world.selections.remove(0);
    world.with("b", |session, now| session.close(now));
    world.run(200 * MS);
    world.with("phone", |session, now| session.select(now, selection.key, Some("b".into())));
    assert_eq!(world.session("phone").bound(), None);
    let (_, selection) = world.selections.remove(0);
    assert_eq!(selection.candidates.len(), 2);
    world.with("phone", |session, now| session.select(now, selection.key, Some("d".into())));
    assert_eq!(world.session("phone").bound().unwrap(), "d");
    world.with("phone", |session, now| session.select(now, selection.key, Some("c".into())));
    assert_eq!(world.session("phone").bound().unwrap(), "d", "the selection has ended");
}

#[test]
fn waiting_call_selects_when_owners_register() {
    let mut world = room(SelectionPolicy::First, &[]);
    let key = world.call("a", request("t")).unwrap();
    joins(&mut world, "tv");
    joins(&mut world, "phone");
    let result = world.settled("a", key).unwrap().as_ref().unwrap();
    assert_eq!(result.to_json()["by"], "tv");
}

#[test]
fn sec_i6_pinned_or_named_tool_is_never_ambiguous_and_calls_no_policy() {
    let never = || SelectionPolicy::by(|_, _| std::panic::resume_unwind(Box::new("nobody asks")));
    let config = Config::default().choose(never()).pin("t".parse().unwrap(), "phone");
    let mut world = room_of(config, &["tv", "phone"]);
    assert_eq!(by(&mut world).unwrap(), "phone");
    let result = world.ask("a", request("t").to("tv")).unwrap();
    assert_eq!(result.to_json()["by"], "tv");
}

#[test]
fn policy_selects_the_client_that_may_claim() {
    let mut world = room(SelectionPolicy::Last, &[]);
    let shared = tool("t").options(ToolOptions::default().prefer_client());
    world.with("a", |session, now| session.offer(now, vec![shared])).unwrap().unwrap();
    world.handle("a", |_| Some(Ok(value(7))));
    joins(&mut world, "tv");
    joins(&mut world, "phone");
    assert_eq!(by(&mut world).unwrap(), "phone");
}

#[test]
fn client_binds_the_assistant_of_its_policy_when_the_bound_one_left() {
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
        assert_eq!(world.session("phone").bound().unwrap(), "a", "the first assistant stays bound");
        world.with("a", |session, now| session.close(now));
        world.run(200 * MS);
        assert_eq!(world.session("phone").bound().map(Identity::as_str), bound);
        let reported = |event: &&Event| matches!(event, Event::AmbiguousAssistant { .. });
        let reported = world.ends["phone"].events.iter().filter(reported).count();
        assert_eq!(reported, usize::from(bound.is_none()));
        if let Some(bound) = bound {
            world.handle("phone", |_| Some(Ok(value(1))));
            assert_eq!(world.ask(bound, request("t")).unwrap(), value(1));
        }
    }
}

#[test]
fn refused_registration_gives_no_position() {
    let mut world = room(SelectionPolicy::Last, &["phone", "tv"]);
    world.stranger("x");
    world.run(200 * MS);
    let tools = vec![with!(RegisteredTool::default(), name = "t".to_owned())];
    world.send(
        "x",
        &["a"],
        &Meta::new(),
        &Message::ToolsRegister(with!(ToolsRegister::default(), tools = tools)),
    );
    world.run(200 * MS);
    assert_eq!(by(&mut world).unwrap(), "tv");
}

/// The tools of an app that is called by RPC are offered when the room announces it.
#[test]
fn participant_that_is_called_by_rpc_has_a_position_too() {
    let config = Config::default().choose(SelectionPolicy::First).rpc_tool("app", tool("t"));
    let mut world = room_of(config, &["phone"]);
    world.stranger("app");
    world.run(SECOND);
    assert_eq!(world.session("a").tools().len(), 2);
    assert_eq!(by(&mut world).unwrap(), "phone");
}
