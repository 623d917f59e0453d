//! Tools that a client may run instead of the assistant: which side runs a call, and that both never do.

#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::{collections::BTreeMap, time::Duration};

use toolbridge::{
    BargeIn, CallError, CallId, Config, ConnectionState, Consent, Event, Identity, Role, Tool, ToolError,
    ToolOptions, Value,
    frame::{
        Acknowledgement, Configuration, ErrorMessage, Frame, Kind, Message, Meta, RegisteredTool,
        ToolProgress, ToolUseRequest, ToolUseResult, ToolsRegister,
    },
    session::{CallKey, Request, SelectionPolicy, SendFailure},
    tools::Execution,
    transport::{Participant, TransportEvent},
};

use crate::session_world::{
    Fate, MS, Random, SECOND, World, plain_request, request, sent_packet, tool, value,
};

/// The assistant's result; a client's is 1.
const HERE: i32 = 7;

fn shared(name: &str) -> Tool {
    tool(name).options(ToolOptions::default().prefer_client())
}

/// An assistant that runs `lookup` itself or lets a client run it, and a phone that offers it too.
fn home(clients: &[&str]) -> World {
    home_of(Config::default(), clients)
}

fn home_of(config: Config, clients: &[&str]) -> World {
    let mut world = World::new();
    world.assistant("a", config);
    world.with("a", |session, now| session.offer(now, vec![shared("lookup")])).unwrap().unwrap();
    world.handle("a", |_| Some(Ok(value(HERE))));
    for client in clients {
        world.client(client, Config::default(), &["lookup"]);
    }
    world.run(200 * MS);
    world
}

/// The same, with a phone that the test plays: it shook hands, listing `features`, and offers `lookup`.
fn played_home(features: &[&str], instance: Option<&str>) -> World {
    let mut world = home(&[]);
    let sid = world.sid();
    world.play(&Participant::new("phone", sid).role(Role::Client));
    world.run(200 * MS);
    let meta = Meta::new().with_bool("bridge.heard", true);
    let meta = match instance {
        Some(instance) => world.shows("phone", "a", instance),
        None => meta,
    };
    let features = features.iter().map(ToString::to_string).collect();
    let configuration = with!(Configuration::default(), features = Some(features));
    world.send("phone", &["a"], &meta, &Message::Configuration(configuration));
    let lookup = with!(RegisteredTool::default(), name = "lookup".to_owned());
    world.send(
        "phone",
        &["a"],
        &Meta::new(),
        &Message::ToolsRegister(with!(ToolsRegister::default(), tools = vec![lookup])),
    );
    world.run(200 * MS);
    assert_eq!(world.session("a").tools().len(), 2);
    world
}

const FEATURES: &[&str] = &["tool_use", "tool_register", "tool_ack", "tool_cancel", "tool_claim"];

fn requests(world: &World, name: &str) -> Vec<ToolUseRequest> {
    let read = |message| match message {
        Message::ToolUseRequest(request) => Some(request),
        _ => None,
    };
    world.received(name, Kind::TOOL_USE_REQUEST).into_iter().filter_map(read).collect()
}

/// The request to the phone, without broadcasts.
fn asked(world: &World) -> ToolUseRequest {
    let asked: Vec<_> =
        requests(world, "phone").into_iter().filter(|it| it.execution != Ok(Execution::Server)).collect();
    assert_eq!(asked.len(), 1, "{asked:?}");
    asked.into_iter().next().unwrap()
}

fn claim_of(call: &CallId) -> Message {
    Message::Acknowledgement(with!(
        Acknowledgement::default(),
        acknowledged_message_id = Some(call.to_string()),
        success = Some(true),
        notes = Some("claim".to_owned())
    ))
}

/// The reply to a claim that a played participant sent under this stanza.
fn answer_to(world: &World, name: &str, stanza: i32) -> Option<bool> {
    let of_claim = |message: Message| match message {
        Message::Acknowledgement(it) if it.acknowledged_stanza_id == Some(stanza) => it.success,
        _ => None,
    };
    world.received(name, Kind::ACKNOWLEDGEMENT).into_iter().find_map(of_claim)
}

fn result(call: &CallId, code: Option<&str>) -> Message {
    Message::ToolUseResult(with!(
        ToolUseResult::new(call.clone(), code.is_none()),
        result = code.is_none().then(|| value(1)),
        error_code = code.map(Into::into),
        error_message = code.map(|_| "no".to_owned())
    ))
}

fn is_claim(frame: &Frame) -> bool {
    matches!(frame.message(), Ok(Message::Acknowledgement(it)) if it.notes.as_deref() == Some("claim"))
}

/// Returns whether a frame is the assistant's reply to a claim.
fn is_grant(from: &Identity, frame: &Frame) -> bool {
    let names_a_call = |it: &Acknowledgement| it.acknowledged_message_id.is_some() && it.notes.is_none();
    from.as_str() == "a" && matches!(frame.message(), Ok(Message::Acknowledgement(it)) if names_a_call(&it))
}

fn outcome(world: &World, key: CallKey) -> Value {
    world.settled("a", key).unwrap().as_ref().unwrap().clone()
}

fn ran(world: &World) -> Vec<&str> {
    world.executed.iter().map(|(name, _)| name.as_str()).collect()
}

fn stops_sent(world: &World) -> usize {
    world.sent("a", Kind::CONTROL_STOP).len()
}

#[test]
fn protocol_a9_client_with_the_tool_claims_the_call_and_alone_runs_it() {
    let mut world = home(&["phone"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    assert_eq!(world.ask("a", request("lookup")).unwrap(), value(1));
    world.run(5 * SECOND);
    assert_eq!(ran(&world), ["phone"]);
    assert_eq!(stops_sent(&world), 0);
    assert!(world.session("a").is_drained() && world.session("phone").is_drained());
    // On the wire: requested as `either`, claimed with the call's id, started after the grant.
    let (_, asked) = &world.sent("a", Kind::TOOL_USE_REQUEST)[0];
    let Ok(Message::ToolUseRequest(asked)) = asked.message() else { panic!("not a request") };
    assert_eq!(asked.execution, Ok(Execution::Either));
    let claims = world.sent("phone", Kind::ACKNOWLEDGEMENT).into_iter().filter(|(_, it)| is_claim(it));
    assert_eq!(claims.count(), 1);
    let either = |event: &&Event| matches!(event, Event::Requested { execution: Execution::Either, owner, .. } if owner.as_str() == "phone");
    assert_eq!(world.ends["a"].events.iter().filter(either).count(), 1);
}

#[test]
fn protocol_a9_call_without_a_capable_client_runs_at_the_assistant_at_once() {
    let mut world = home(&[]);
    world.client("tv", Config::default(), &["other"]);
    world.run(200 * MS);
    let began = world.now;
    assert_eq!(world.ask("a", request("lookup")).unwrap(), value(HERE));
    assert_eq!(world.now, began);
    // It is broadcast to the room like any tool of the assistant.
    let broadcast = |(to, frame): &(Vec<Identity>, Frame)| {
        let server = |it: &ToolUseRequest| it.execution == Ok(Execution::Server);
        to.is_empty() && matches!(frame.message(), Ok(Message::ToolUseRequest(it)) if server(&it))
    };
    assert_eq!(world.sent("a", Kind::TOOL_USE_REQUEST).iter().filter(|it| broadcast(it)).count(), 1);
}

#[test]
fn protocol_a9_call_without_a_claim_in_the_window_is_withdrawn_and_runs_at_the_assistant() {
    let mut world = home(&["phone"]);
    world.fate = Some(Box::new(|_, _, frame| if is_claim(frame) { Fate::IsLost } else { Fate::Arrives }));
    let began = world.now;
    assert_eq!(world.ask("a", request("lookup")).unwrap(), value(HERE));
    assert_eq!(world.now.duration_since(began), 2 * SECOND);
    world.run(60 * SECOND);
    assert_eq!(ran(&world), ["a"]);
    assert_eq!(stops_sent(&world), 1);
    assert_eq!(world.count("a", "late"), 1, "the client's result `cancelled` counts as late");
    assert!(world.session("phone").is_drained());
}

#[test]
fn protocol_a9_claim_after_the_window_is_refused_and_nothing_runs() {
    let mut world = home(&["phone"]);
    // The stop is lost too: the refusal alone must prevent the run.
    world.fate = Some(Box::new(|_, _, frame| match frame.kind() {
        Kind::CONTROL_STOP => Fate::IsLost,
        _ if is_claim(frame) => Fate::IsOvertaken(3 * SECOND),
        _ => Fate::Arrives,
    }));
    assert_eq!(world.ask("a", request("lookup")).unwrap(), value(HERE));
    world.run(60 * SECOND);
    assert_eq!(ran(&world), ["a"]);
    assert!(world.session("phone").is_drained());
    // Later still, when the call is forgotten.
    let mut world = played_home(FEATURES, Some("i1"));
    world.ask("a", request("lookup")).unwrap();
    let call = asked(&world).id;
    world.run(70 * SECOND);
    let stanza = world.send("phone", &["a"], &Meta::new(), &claim_of(&call));
    world.run(SECOND);
    assert_eq!(answer_to(&world, "phone", stanza), Some(false));
}

#[test]
fn protocol_a9_claim_by_a_client_without_the_request_is_refused() {
    let mut world = home_of(Config::default().pin("lookup".parse().unwrap(), "phone"), &["phone"]);
    let sid = world.sid();
    world.play(&Participant::new("tv", sid).role(Role::Client));
    world.run(200 * MS);
    let meta = Meta::new().with_bool("bridge.heard", true).with_text("bridge.instance", "tv1");
    let features = Some(FEATURES.iter().map(ToString::to_string).collect());
    let configuration = with!(Configuration::default(), features = features);
    world.send("tv", &["a"], &meta, &Message::Configuration(configuration));
    world.run(200 * MS);
    let key = world.call("a", request("lookup")).unwrap();
    world.run(100 * MS);
    let call = world.session("a").call_id(key).unwrap().clone();
    let stanza = world.send("tv", &["a"], &Meta::new(), &claim_of(&call));
    world.run(100 * MS);
    assert_eq!(answer_to(&world, "tv", stanza), Some(false));
    assert_eq!(world.count("a", "not_permitted"), 1);
    world.finish("phone", Ok(value(1)));
    world.run(SECOND);
    assert_eq!(outcome(&world, key), value(1));
}

#[test]
fn sec_i1_strangers_claim_is_only_counted() {
    let mut world = home(&["phone"]);
    world.stranger("x");
    world.run(200 * MS);
    world.fate = Some(Box::new(|_, from, frame| match is_claim(frame) && from.as_str() == "phone" {
        true => Fate::IsLost,
        false => Fate::Arrives,
    }));
    let key = world.call("a", request("lookup")).unwrap();
    let call = world.session("a").call_id(key).unwrap().clone();
    world.send("x", &["a"], &Meta::new(), &claim_of(&call));
    world.run(SECOND);
    assert_eq!(world.count("a", "not_permitted"), 1);
    world.run(5 * SECOND);
    assert_eq!(outcome(&world, key), value(HERE));
    // Nor does it start anything.
    let grant = Message::Acknowledgement(with!(
        Acknowledgement::default(),
        acknowledged_stanza_id = Some(3),
        acknowledged_message_id = Some(call.to_string()),
        success = Some(true)
    ));
    for _ in 0..5 {
        world.send("x", &["phone"], &Meta::new(), &grant);
    }
    world.run(SECOND);
    assert_eq!(ran(&world), ["a"]);
    assert!(world.ends["x"].inbox.iter().all(|(_, frame)| frame.kind() != Kind::ACKNOWLEDGEMENT));
}

#[test]
fn duplicated_frames_are_claimed_granted_and_run_once() {
    let mut world = home(&["phone"]);
    world.fate = Some(Box::new(|_, _, _| Fate::ComesTwice));
    world.handle("phone", |_| Some(Ok(value(1))));
    assert_eq!(world.ask("a", request("lookup")).unwrap(), value(1));
    world.run(60 * SECOND);
    assert_eq!(ran(&world), ["phone"]);
    assert!(world.session("a").is_drained() && world.session("phone").is_drained());
}

#[test]
fn lost_grant_is_repeated_after_a_rejoin_and_the_call_runs_once() {
    for who in ["phone", "a"] {
        let mut world = home(&["phone"]);
        world.handle("phone", |_| Some(Ok(value(1))));
        world.fate =
            Some(Box::new(|_, from, frame| if is_grant(from, frame) { Fate::IsLost } else { Fate::Arrives }));
        let key = world.call("a", request("lookup")).unwrap();
        world.run(3 * SECOND);
        assert!(
            ran(&world).is_empty() && world.settled("a", key).is_none(),
            "the call belongs to the phone, which waits for the grant"
        );
        world.fate = None;
        world.leave(who);
        world.rejoin(who);
        world.run(SECOND);
        assert_eq!(outcome(&world, key), value(1));
        assert_eq!(ran(&world), ["phone"]);
    }
}

#[test]
fn unsent_claim_or_grant_is_sent_when_the_connection_is_restored() {
    for who in ["phone", "a"] {
        let mut world = home(&["phone"]);
        world.handle("phone", |_| Some(Ok(value(1))));
        let key = world.call("a", request("lookup")).unwrap();
        // The request has arrived, or the claim is about to: its reply is not delivered.
        world.run(if who == "phone" { 19 * MS } else { 39 * MS });
        world.with(who, |session, now| {
            session.handle_event(now, TransportEvent::ConnectionState(ConnectionState::Reconnecting))
        });
        world.fate = Some(Box::new(move |_, from, _| match from.as_str() == who {
            true => Fate::IsLost,
            false => Fate::Arrives,
        }));
        world.run(300 * MS);
        assert!(ran(&world).is_empty() && world.settled("a", key).is_none(), "{who}");
        world.fate = None;
        world.with(who, |session, now| {
            session.handle_event(now, TransportEvent::ConnectionState(ConnectionState::Connected))
        });
        world.run(300 * MS);
        assert_eq!(outcome(&world, key), value(1), "{who}");
        assert_eq!(ran(&world), ["phone"]);
    }
}

#[test]
fn unsent_request_is_withdrawn_without_a_stop() {
    let mut world = home(&["phone"]);
    world.unsent = SendFailure::Interrupted;
    world.with("a", |session, now| {
        session.handle_event(now, TransportEvent::ConnectionState(ConnectionState::Reconnecting))
    });
    world.ends.get_mut("a").unwrap().here = false;
    assert_eq!(world.ask("a", request("lookup")).unwrap(), value(HERE));
    world.ends.get_mut("a").unwrap().here = true;
    world.with("a", |session, now| {
        session.handle_event(now, TransportEvent::ConnectionState(ConnectionState::Connected))
    });
    world.run(SECOND);
    assert_eq!(ran(&world), ["a"]);
    assert_eq!(stops_sent(&world), 0);
    assert!(world.session("a").is_drained());
}

#[test]
fn unclaimed_idempotent_call_is_run_by_the_assistant() {
    for claimed in [false, true] {
        let mut world = home(&[]);
        let idempotent = || vec![tool("lookup").options(ToolOptions::default().idempotent())];
        let joins = |world: &mut World| {
            world.client("phone", Config::default(), &[]);
            world.with("phone", |session, now| session.offer(now, idempotent())).unwrap().unwrap();
            world.run(200 * MS);
        };
        joins(&mut world);
        world.fate = Some(Box::new(move |_, _, frame| match is_claim(frame) && !claimed {
            true => Fate::IsLost,
            false => Fate::Arrives,
        }));
        let key = world.call("a", request("lookup")).unwrap();
        world.run(100 * MS);
        world.leave("phone");
        joins(&mut world);
        world.run(100 * MS);
        if claimed {
            world.finish("phone", Ok(value(1)));
            world.run(100 * MS);
        }
        assert_eq!(outcome(&world, key), value(if claimed { 1 } else { HERE }));
    }
}

#[test]
fn call_that_never_starts_ends_with_its_budget_at_both_ends() {
    let mut world = home(&["phone"]);
    world.fate =
        Some(Box::new(|_, from, frame| if is_grant(from, frame) { Fate::IsLost } else { Fate::Arrives }));
    let error = world.ask("a", request("lookup").timeout(8 * SECOND)).unwrap_err();
    assert!(matches!(error, CallError::Timeout { .. }), "{error:?}");
    world.fate = None;
    world.run(SECOND);
    assert!(ran(&world).is_empty());
    assert!(world.session("phone").is_drained());
}

#[test]
fn owner_restarted_before_its_claim_leaves_the_call_to_the_assistant() {
    let mut world = home(&["phone"]);
    world.fate = Some(Box::new(|_, _, frame| if is_claim(frame) { Fate::IsLost } else { Fate::Arrives }));
    let key = world.call("a", request("lookup")).unwrap();
    world.run(100 * MS);
    world.leave("phone");
    world.client("phone", Config::default(), &["lookup"]); // another instance of its program
    world.run(500 * MS);
    assert_eq!(outcome(&world, key), value(HERE), "the assistant runs the call before the window ends");
    world.run(60 * SECOND);
    assert_eq!(ran(&world), ["a"]);
}

#[test]
fn owner_restarted_after_its_grant_has_lost_the_call() {
    // Whether it started is unknown, so no other participant may run it.
    for grant_is_lost in [false, true] {
        let mut world = home(&["phone"]);
        world.fate = Some(Box::new(move |_, from, frame| match is_grant(from, frame) && grant_is_lost {
            true => Fate::IsLost,
            false => Fate::Arrives,
        }));
        let key = world.call("a", request("lookup")).unwrap();
        world.run(100 * MS);
        world.leave("phone");
        world.client("phone", Config::default(), &["lookup"]);
        world.run(SECOND);
        assert!(matches!(world.settled("a", key), Some(Err(CallError::Lost { .. }))));
        world.run(60 * SECOND);
        let expected: &[&str] = if grant_is_lost { &[] } else { &["phone"] };
        assert_eq!(ran(&world), expected);
    }
}

#[test]
fn owner_that_says_goodbye_before_its_claim_leaves_the_call_to_the_assistant() {
    let mut world = home(&["phone"]);
    world.delay = 100 * MS;
    let key = world.call("a", request("lookup")).unwrap();
    world.with("phone", |session, now| session.close(now)); // the request is still in flight
    world.run(300 * MS);
    assert_eq!(outcome(&world, key), value(HERE));
    assert_eq!(ran(&world), ["a"]);
    // The same after it.
    let mut world = home(&["phone"]);
    let key = world.call("a", request("lookup")).unwrap();
    world.run(100 * MS);
    world.with("phone", |session, now| session.close(now));
    world.run(SECOND);
    assert!(matches!(world.settled("a", key), Some(Err(CallError::Lost { .. }))));
    assert_eq!(ran(&world), ["phone"]);
}

#[test]
fn leaving_owner_returns_calls_that_have_not_started() {
    for (after, runs) in [(10, true), (30, false), (50, false)] {
        let mut world = home(&["phone"]);
        let key = world.call("a", request("lookup")).unwrap();
        world.run(after * MS); // the request, the claim or the grant is in flight
        world.with("phone", |session, now| session.drain(now));
        world.run(SECOND);
        let settled = world.settled("a", key).unwrap();
        assert_eq!(settled.is_ok(), runs, "{settled:?}");
        assert!(runs || matches!(settled, Err(error @ CallError::Busy { .. }) if !error.may_have_run()));
        assert_eq!(ran(&world).iter().filter(|name| **name == "phone").count(), 0);
        assert!(world.session("phone").is_drained());
    }
}

#[test]
fn owner_killed_before_its_claim_leaves_the_call_to_the_assistant() {
    let mut world = home(&["phone"]);
    world.delay = 100 * MS;
    let key = world.call("a", request("lookup")).unwrap();
    world.leave("phone");
    world.run(2 * SECOND + MS);
    assert_eq!(outcome(&world, key), value(HERE));
    world.run(60 * SECOND);
    assert_eq!(ran(&world), ["a"]);
}

#[test]
fn call_cancelled_during_its_claim_runs_nowhere() {
    // The cancel at each stage: request, claim or grant in flight.
    for after in [5, 25, 45] {
        let mut world = home(&["phone"]);
        let key = world.call("a", request("lookup")).unwrap();
        world.run(after * MS);
        world.with("a", |session, now| session.cancel(now, key));
        assert!(matches!(world.settled("a", key), Some(Err(CallError::Cancelled))));
        world.run(60 * SECOND);
        // A grant in flight is followed by the stop.
        let (ran, aborted) = (ran(&world).len(), world.ends["phone"].aborted.len());
        assert_eq!((ran, aborted), if after == 45 { (1, 1) } else { (0, 0) });
        assert!(world.session("a").is_drained() && world.session("phone").is_drained());
        assert_eq!(world.session("phone").open_jobs(), 0);
    }
}

#[test]
fn stop_that_overtakes_its_request_or_grant_prevents_the_run() {
    type Late = fn(&Identity, &Frame) -> bool;
    let request: Late = |_, frame| frame.kind() == Kind::TOOL_USE_REQUEST;
    let grant: Late = is_grant;
    for late in [request, grant] {
        let mut world = home(&["phone"]);
        world.fate = Some(Box::new(move |_, from, frame| match late(from, frame) {
            true => Fate::IsOvertaken(500 * MS),
            false => Fate::Arrives,
        }));
        let key = world.call("a", super::session_world::request("lookup")).unwrap();
        world.run(100 * MS);
        world.with("a", |session, now| session.cancel(now, key));
        world.run(60 * SECOND);
        assert!(ran(&world).is_empty());
        assert!(world.session("phone").is_drained());
    }
}

#[test]
fn result_before_the_claim_leaves_the_call_to_the_assistant_unless_it_is_final() {
    // (result, whether the assistant runs it)
    let answers = [
        ("unknown_tool", true),
        ("busy", true),
        ("cancelled", true),
        ("permission_denied", false),
        ("invalid_parameters", false),
        ("odd", false),
    ];
    for (code, runs) in answers {
        let mut world = played_home(FEATURES, Some("i1"));
        let key = world.call("a", request("lookup")).unwrap();
        world.run(100 * MS);
        let call = asked(&world).id;
        world.send("phone", &["a"], &Meta::new(), &result(&call, Some(code)));
        world.run(100 * MS);
        assert_eq!(world.settled("a", key).unwrap().is_ok(), runs, "{code}");
        assert_eq!(ran(&world).len(), usize::from(runs), "{code}");
        // A claim that the result overtook is too late.
        let stanza = world.send("phone", &["a"], &Meta::new(), &claim_of(&call));
        world.run(100 * MS);
        assert_eq!(answer_to(&world, "phone", stanza), Some(false), "{code}");
        assert_eq!(stops_sent(&world), 0, "the client needs no stop");
    }
}

#[test]
fn error_304_before_the_claim_leaves_the_call_to_the_assistant_and_after_it_is_lost() {
    for claimed in [false, true] {
        let mut world = played_home(FEATURES, Some("i1"));
        let key = world.call("a", request("lookup")).unwrap();
        world.run(100 * MS);
        let call = asked(&world).id;
        if claimed {
            let stanza = world.send("phone", &["a"], &Meta::new(), &claim_of(&call));
            world.run(100 * MS);
            assert_eq!(answer_to(&world, "phone", stanza), Some(true));
        }
        let error = with!(
            ErrorMessage::default(),
            id = "e".to_owned(),
            conversation_id = "room".to_owned(),
            code = 304,
            message = "no".to_owned(),
            severity = 2,
            recoverable = true,
            originating_id = Some(call.to_string())
        );
        world.send("phone", &["a"], &Meta::new(), &Message::Error(error));
        world.run(100 * MS);
        let settled = world.settled("a", key).unwrap();
        assert_eq!(matches!(settled, Err(CallError::Lost { .. })), claimed, "{settled:?}");
        assert_eq!(settled.is_ok(), !claimed);
    }
}

#[test]
fn declined_consent_after_the_claim_is_the_outcome() {
    for allowed in [false, true] {
        let mut world = home(&[]);
        world.client("phone", Config::default().consent_available(true), &[]);
        let asks = tool("lookup").options(ToolOptions::default().consent(Consent::Always));
        world.with("phone", |session, now| session.offer(now, vec![asks])).unwrap().unwrap();
        world.handle("phone", |_| Some(Ok(value(1))));
        world.run(200 * MS);
        let key = world.call("a", request("lookup").timeout(60 * SECOND)).unwrap();
        world.run(10 * SECOND); // a person takes longer than the claim window
        assert!(world.settled("a", key).is_none() && ran(&world).is_empty());
        let question = world.question("phone").unwrap();
        world.with("phone", |session, now| session.consent(now, question.key, allowed));
        world.run(SECOND);
        match world.settled("a", key).unwrap() {
            Ok(result) => assert!(allowed && *result == value(1)),
            Err(CallError::Tool(error)) => assert!(!allowed && error.code().as_str() == "permission_denied"),
            other => panic!("{other:?}"),
        }
        assert_eq!(ran(&world).len(), usize::from(allowed));
    }
}

#[test]
fn barge_in_before_the_claim_ends_the_call_and_after_it_follows_the_tool() {
    for claimed in [false, true] {
        let mut world = home(&[]);
        let report = ToolOptions::default().barge_in(BargeIn::Report);
        let both = |options: ToolOptions| vec![tool("lookup").options(options)];
        world
            .with("a", |session, now| session.offer(now, both(report.clone().prefer_client())))
            .unwrap()
            .unwrap();
        world.client("phone", Config::default(), &[]);
        world.with("phone", |session, now| session.offer(now, both(report))).unwrap().unwrap();
        world.run(200 * MS);
        let turn = world.with("a", |session, _| session.turn()).unwrap();
        let key = world.call("a", request("lookup").turn(turn)).unwrap();
        world.run(if claimed { 100 * MS } else { 30 * MS });
        world.with("a", |session, now| session.barge_in(now, turn)).unwrap();
        let settled = world.settled("a", key).unwrap();
        assert_eq!(matches!(settled, Err(CallError::Detached)), claimed, "{settled:?}");
        world.run(SECOND);
        if claimed {
            world.finish("phone", Ok(value(1)));
        }
        world.run(60 * SECOND);
        assert_eq!(ran(&world).len(), usize::from(claimed));
        let late = world.with("a", |session, _| session.late_results()).unwrap();
        assert_eq!(late.len(), usize::from(claimed));
        assert!(world.session("a").is_drained() && world.session("phone").is_drained());
    }
}

#[test]
fn call_log_names_the_participant_that_ran_a_call() {
    let mut world = home(&["phone"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    for claim_is_lost in [false, true] {
        world.fate = Some(Box::new(move |_, _, frame| match is_claim(frame) && claim_is_lost {
            true => Fate::IsLost,
            false => Fate::Arrives,
        }));
        world.ask("a", request("lookup")).unwrap();
        let record = world.session("a").records().pop().unwrap();
        let expected = if claim_is_lost { ("a", Execution::Server) } else { ("phone", Execution::Client) };
        assert_eq!((record.owner.unwrap().as_str(), record.execution), expected);
    }
    world.run(SECOND);
    let records = world.session("phone").records();
    assert_eq!(records.len(), 1, "a call that was never granted is not in the client's log");
}

#[test]
fn request_repeated_after_its_claim_is_the_same_request() {
    let mut world = played_home(FEATURES, Some("i1"));
    world.call("a", request("lookup")).unwrap();
    world.run(100 * MS);
    let first = asked(&world);
    world.send("phone", &["a"], &Meta::new(), &claim_of(&first.id)); // it does not acknowledge the request
    world.run(100 * MS);
    world.leave("phone");
    let sid = world.sid();
    world.play(&Participant::new("phone", sid).role(Role::Client));
    world.run(200 * MS);
    let meta = world.shows("phone", "a", "i1");
    let features = Some(FEATURES.iter().map(ToString::to_string).collect());
    let configuration = with!(Configuration::default(), features = features);
    world.send("phone", &["a"], &meta, &Message::Configuration(configuration));
    world.run(200 * MS);
    let again = asked(&world);
    assert_eq!((&again.id, &again.execution), (&first.id, &Ok(Execution::Either)));
}

#[test]
fn owner_that_starts_without_a_claim_keeps_the_call() {
    let mut world = played_home(FEATURES, Some("i1"));
    let key = world.call("a", request("lookup")).unwrap();
    world.run(100 * MS);
    let call = asked(&world).id;
    let begun = ToolProgress::new(call.clone(), toolbridge::tools::ProgressStatus::InProgress);
    world.send("phone", &["a"], &Meta::new(), &Message::ToolProgress(begun.clone()));
    world.run(3 * SECOND);
    assert!(ran(&world).is_empty());
    world.send("phone", &["a"], &Meta::new(), &result(&call, None));
    world.run(100 * MS);
    assert_eq!(outcome(&world, key), value(1));
    // Nor is it run elsewhere when such an owner leaves, or replies that it has no such tool.
    for answers in [false, true] {
        let mut world = played_home(FEATURES, Some("i1"));
        let key = world.call("a", request("lookup")).unwrap();
        world.run(100 * MS);
        let call = asked(&world).id;
        let begun = with!(begun.clone(), id = call.clone());
        world.send("phone", &["a"], &Meta::new(), &Message::ToolProgress(begun));
        world.run(100 * MS);
        if answers {
            world.send("phone", &["a"], &Meta::new(), &result(&call, Some("unknown_tool")));
        } else {
            world.leave("phone");
        }
        world.run(20 * SECOND);
        assert!(world.settled("a", key).unwrap().is_err() && ran(&world).is_empty());
    }
}

#[test]
fn caller_that_left_grants_no_claims() {
    // By goodbye, by kill, by another instance: each while the grant is lost or late.
    for (how, fate) in [
        ("goodbye", Fate::IsLost),
        ("killed", Fate::IsLost),
        ("restarted", Fate::IsLost),
        ("goodbye", Fate::IsOvertaken(150 * MS)),
        ("restarted", Fate::IsOvertaken(800 * MS)),
    ] {
        let mut world = home(&["phone"]);
        world.fate =
            Some(Box::new(move |_, from, frame| if is_grant(from, frame) { fate } else { Fate::Arrives }));
        world.call("a", request("lookup").timeout(60 * SECOND)).unwrap();
        world.run(45 * MS);
        assert!(!world.session("phone").is_drained());
        match how {
            "goodbye" => _ = world.with("a", |session, now| session.close(now)),
            "killed" => world.leave("a"),
            _ => {
                world.leave("a");
                world.ends.remove("a");
                world.assistant("a", Config::default());
            }
        }
        world.run(if how == "killed" { 6 * SECOND } else { SECOND });
        assert!(world.session("phone").is_drained(), "{how}");
        assert!(ran(&world).is_empty(), "{how}");
    }
}

#[test]
fn client_without_claims_gets_execution_client_and_falls_back_on_unknown_tool_only() {
    // A plain peer, and another implementation that shakes hands but lists no claims.
    let makes: [(&[&str], Option<&str>); 2] =
        [(&["tool_use"], None), (&["tool_use", "tool_register", "tool_ack"], Some("i1"))];
    for (features, instance) in makes {
        for code in ["unknown_tool", "busy", "execution_error"] {
            let mut world = played_home(features, instance);
            let key = world.call("a", request("lookup")).unwrap();
            world.run(3 * SECOND);
            assert!(world.settled("a", key).is_none(), "the assistant waits for no claim");
            let asked = asked(&world);
            assert_eq!(asked.execution, Ok(Execution::Client));
            world.send("phone", &["a"], &Meta::new(), &result(&asked.id, Some(code)));
            world.run(100 * MS);
            assert_eq!(world.settled("a", key).unwrap().is_ok(), code == "unknown_tool", "{code}");
        }
        // The owner is silent or gone: the tool may have run.
        let mut world = played_home(features, instance);
        let error = world.ask("a", request("lookup").timeout(3 * SECOND)).unwrap_err();
        assert!(matches!(error, CallError::Timeout { .. }), "{error:?}");
        let key = world.call("a", request("lookup")).unwrap();
        world.leave("phone");
        world.run(10 * SECOND);
        assert!(matches!(world.settled("a", key), Some(Err(CallError::Lost { .. }))));
        assert!(ran(&world).is_empty());
    }
}

#[test]
fn client_treats_either_as_client_from_an_assistant_without_claims() {
    // One that shakes hands and lists none, and a plain one.
    for shakes in [true, false] {
        let mut world = World::new();
        world.client("phone", Config::default(), &["lookup"]);
        world.handle("phone", |_| Some(Ok(value(1))));
        let sid = world.sid();
        world.play(&Participant::new("a", sid).agent(true));
        world.run(200 * MS);
        if shakes {
            let meta = Meta::new().with_bool("bridge.heard", true).with_text("bridge.instance", "i1");
            let features = Some(vec!["tool_ack".to_owned()]);
            let configuration = with!(Configuration::default(), features = features);
            world.send("a", &["phone"], &meta, &Message::Configuration(configuration));
        }
        let either = with!(plain_request("1", "lookup"), execution = Ok(Execution::Either));
        world.send("a", &["phone"], &Meta::new(), &Message::ToolUseRequest(either));
        world.run(SECOND);
        assert_eq!(world.received("a", Kind::TOOL_USE_RESULT).len(), 1);
        assert_eq!(ran(&world), ["phone"]);
        assert!(world.ends["a"].inbox.iter().all(|(_, frame)| !is_claim(frame)));
    }
}

#[test]
fn grant_of_another_call_starts_nothing() {
    let mut world = home(&["phone"]);
    world.fate =
        Some(Box::new(|_, from, frame| if is_grant(from, frame) { Fate::IsLost } else { Fate::Arrives }));
    world.call("a", request("lookup")).unwrap();
    world.run(100 * MS);
    world.fate = None;
    let claims = world.sent("phone", Kind::ACKNOWLEDGEMENT);
    let (_, claim) = claims.iter().find(|(_, frame)| is_claim(frame)).unwrap();
    let Ok(Message::Acknowledgement(claimed)) = claim.message() else { panic!("{claim:?}") };
    let yes = |named: &str| {
        Message::Acknowledgement(with!(
            Acknowledgement::default(),
            acknowledged_stanza_id = claim.stanza_id(),
            acknowledged_message_id = Some(named.to_owned()),
            success = Some(true)
        ))
    };
    world.send("a", &["phone"], &Meta::new(), &yes("another"));
    world.run(100 * MS);
    assert!(ran(&world).is_empty(), "a grant to an earlier process starts nothing");
    world.send("a", &["phone"], &Meta::new(), &yes(claimed.acknowledged_message_id.as_deref().unwrap()));
    world.run(100 * MS);
    assert_eq!(ran(&world), ["phone"]);
}

#[test]
fn client_starts_only_after_a_grant_of_its_claim() {
    for success in [None, Some(false), Some(true)] {
        let mut world = World::new();
        world.client("phone", Config::default(), &["lookup"]);
        let sid = world.sid();
        world.play(&Participant::new("a", sid).agent(true));
        world.run(200 * MS);
        let meta = Meta::new().with_bool("bridge.heard", true).with_text("bridge.instance", "i1");
        let features = Some(vec!["tool_ack".to_owned(), "tool_claim".to_owned()]);
        let configuration = with!(Configuration::default(), features = features);
        world.send("a", &["phone"], &meta, &Message::Configuration(configuration));
        world.run(100 * MS);
        let either = with!(plain_request("1", "lookup"), execution = Ok(Execution::Either));
        world.send("a", &["phone"], &Meta::new(), &Message::ToolUseRequest(either));
        world.run(100 * MS);
        assert!(ran(&world).is_empty());
        let (_, claim) = world.ends["a"].inbox.iter().find(|(_, frame)| is_claim(frame)).unwrap();
        let answer =
            with!(Acknowledgement::default(), acknowledged_stanza_id = claim.stanza_id(), success = success);
        world.send("a", &["phone"], &Meta::new(), &Message::Acknowledgement(answer));
        world.run(100 * MS);
        assert_eq!(ran(&world).len(), usize::from(success == Some(true)), "{success:?}");
    }
}

#[test]
fn several_clients_without_a_policy_leave_the_call_to_the_assistant_unless_pinned() {
    let mut world = home(&["phone", "tv"]);
    assert_eq!(world.ask("a", request("lookup")).unwrap(), value(HERE));
    world.run(SECOND);
    assert_eq!(ran(&world), ["a"]);
    let mut world = home_of(Config::default().pin("lookup".parse().unwrap(), "tv"), &["phone", "tv"]);
    world.handle("tv", |_| Some(Ok(value(2))));
    assert_eq!(world.ask("a", request("lookup")).unwrap(), value(2));
    // It has left: there is nothing to wait for.
    world.with("tv", |session, now| session.close(now));
    world.run(100 * MS);
    let began = world.now;
    assert_eq!(world.ask("a", request("lookup")).unwrap(), value(HERE));
    assert_eq!(world.now, began);
}

#[test]
fn named_participant_alone_may_run_the_call() {
    let mut world = home(&["phone"]);
    world.handle("phone", |_| Some(Err(ToolError::new("busy", "not now"))));
    let error = world.ask("a", request("lookup").to("phone")).unwrap_err();
    assert!(matches!(error, CallError::Busy { .. } | CallError::Tool(_)), "{error:?}");
    assert_eq!(world.ask("a", request("lookup").to("a")).unwrap(), value(HERE));
    assert_eq!(ran(&world), ["phone", "a"]);
    let error = world.ask("a", request("lookup").to("nobody").owner_wait(SECOND)).unwrap_err();
    assert!(matches!(error, CallError::UnknownTool { .. }), "{error:?}");
}

#[test]
fn claim_window_is_at_most_half_of_the_budget() {
    let mut world = home(&["phone"]);
    world.fate = Some(Box::new(|_, _, frame| if is_claim(frame) { Fate::IsLost } else { Fate::Arrives }));
    let began = world.now;
    assert_eq!(world.ask("a", request("lookup").timeout(SECOND)).unwrap(), value(HERE));
    assert_eq!(world.now.duration_since(began), 500 * MS);
    // The assistant has only the rest of the budget.
    world.handle("a", |_| None);
    let (began, limit) = (world.now, 3 * SECOND);
    let error = world.ask("a", request("lookup").timeout(limit)).unwrap_err();
    assert!(matches!(error, CallError::Timeout { limit: it } if it == limit), "{error:?}");
    assert_eq!(world.now.duration_since(began), limit);
    assert_eq!(world.ends["a"].aborted.len(), 1);
}

#[test]
fn unsent_request_is_run_by_the_assistant() {
    let mut world = home(&["phone"]);
    let large = Value::encode(&serde_json::json!({"x": "y".repeat(20_000)})).unwrap();
    let result = world.ask("a", Request::new("lookup", large));
    assert_eq!(result.unwrap(), value(HERE), "a request too large to be sent runs locally");
    let key = world.call("a", request("lookup")).unwrap();
    let packet = world.count("a", "frames_out");
    world.with("a", |session, now| session.handle_send_failed(now, packet, SendFailure::Closed));
    assert_eq!(outcome(&world, key), value(HERE));
    assert_eq!(stops_sent(&world), 0, "the client got no request, so it gets no stop");
}

#[test]
fn client_may_register_an_assistants_tool_only_if_it_prefers_clients() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    let offer = |world: &mut World, tools| world.with("a", |session, now| session.offer(now, tools));
    offer(&mut world, vec![shared("lookup"), tool("search")]).unwrap().unwrap();
    world.client("phone", Config::default(), &["lookup", "search"]);
    world.run(200 * MS);
    let names = |world: &World| {
        let tools = world.session("a").tools();
        let theirs = tools.iter().filter(|it| it.owner.as_str() == "phone");
        theirs.map(|it| it.tool.name().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(&world), ["lookup"]);
    assert_eq!(world.count("a", "registration_refused"), 1);
    // The mark is removed: the client's tool is withdrawn.
    offer(&mut world, vec![tool("lookup")]).unwrap().unwrap();
    assert!(names(&world).is_empty());
}

#[test]
fn random_network_faults_never_run_a_call_at_both_ends() {
    let mut fallbacks = 0;
    let mut claimed = 0;
    for seed in 1..=300 {
        let mut random = Random(seed * 7919);
        let mut world = home(&["phone"]);
        let answers = |world: &mut World| {
            let mut random = Random(seed + 5);
            world.handle("phone", move |_| match random.below(4) {
                0 => None,
                1 => Some(Err(ToolError::new("busy", "after it began"))),
                _ => Some(Ok(value(1))),
            });
        };
        answers(&mut world);
        let mut net = Random(seed * 31 + 7);
        let bad = random.pick(&[3, 6, 20]);
        world.fate = Some(Box::new(move |_, _, frame| match frame.kind() {
            // The handshake is not affected, or no request would ever be sent.
            Kind::TOOL_USE_REQUEST | Kind::TOOL_USE_RESULT | Kind::ACKNOWLEDGEMENT | Kind::CONTROL_STOP
                if net.one_in(bad) =>
            {
                match net.below(4) {
                    0 => Fate::IsLost,
                    1 => Fate::ComesTwice,
                    _ => Fate::IsOvertaken(Duration::from_millis(net.below(4_000))),
                }
            }
            _ => Fate::Arrives,
        }));
        let mut open = BTreeMap::new();
        for _ in 0..12 {
            match random.below(12) {
                0 => {
                    world.leave("phone");
                    world.run(Duration::from_millis(random.below(2_000)));
                    world.rejoin("phone");
                }
                1 => {
                    world.leave("a");
                    world.run(Duration::from_millis(random.below(2_000)));
                    world.rejoin("a");
                }
                2 => {
                    if random.one_in(2) {
                        world.with("phone", |session, now| session.close(now));
                    }
                    world.run(Duration::from_millis(random.below(200)));
                    world.leave("phone");
                    world.client("phone", Config::default(), &["lookup"]);
                    answers(&mut world);
                }
                3 if !open.is_empty() => {
                    let keys: Vec<_> = open.keys().copied().collect();
                    let key = random.pick(&keys);
                    world.with("a", |session, now| session.cancel(now, key));
                }
                _ => {
                    let limit = Duration::from_millis(random.pick(&[1_000, 4_000, 20_000]));
                    let key = world.call("a", request("lookup").timeout(limit)).unwrap();
                    open.insert(key, ());
                }
            }
            world.run(Duration::from_millis(random.below(1_500)));
        }
        world.run(30 * SECOND);
        for key in open.keys() {
            let outcomes = world.ends["a"].settled.iter().filter(|(settled, _)| settled == key).count();
            assert_eq!(outcomes, 1, "seed {seed}: {key:?}");
        }
        let mut runs: BTreeMap<&CallId, Vec<&str>> = BTreeMap::new();
        for (name, call) in &world.executed {
            runs.entry(call).or_default().push(name);
        }
        for (call, by) in &runs {
            assert_eq!(by.len(), 1, "seed {seed}: {call} ran {by:?}");
        }
        fallbacks += runs.values().filter(|by| **by == ["a"]).count();
        claimed += runs.values().filter(|by| **by == ["phone"]).count();
        assert_eq!(world.session("a").open_calls(), 0);
    }
    assert!(fallbacks > 200 && claimed > 200, "{fallbacks} {claimed}");
}

/// The call waited for the author's function, so its claim window is short.
#[test]
fn claim_window_is_half_of_the_time_that_is_left() {
    let choose = SelectionPolicy::by(|_, candidates| candidates.first().map(|it| it.identity.clone()));
    let mut world = home_of(Config::default().choose(choose), &["phone", "tv"]);
    world.answers_selections = false;
    let key = world.call("a", request("lookup").timeout(4 * SECOND)).unwrap();
    world.run(3 * SECOND);
    world.fate = Some(Box::new(|to, _, _| if to == "a" { Fate::IsLost } else { Fate::Arrives }));
    let (_, selection) = world.selections.remove(0);
    world.with("a", |session, now| session.select(now, selection.key, selection.evaluate()));
    world.run(600 * MS);
    assert_eq!(world.settled("a", key).unwrap().as_ref().unwrap(), &value(HERE));
}

/// Otherwise no time would be left for the tool when no client claims the call.
#[test]
fn claim_window_leaves_time_for_the_assistants_own_tool() {
    let mut world = home(&["phone"]);
    let own = shared("lookup").options(ToolOptions::default().prefer_client().patience(SECOND));
    world.with("a", |session, now| session.offer(now, vec![own])).unwrap().unwrap();
    world.run(SECOND);
    world.fate = Some(Box::new(|to, _, _| if to == "a" { Fate::IsLost } else { Fate::Arrives }));
    let key = world.call("a", request("lookup")).unwrap();
    world.run(600 * MS);
    assert_eq!(world.settled("a", key).unwrap().as_ref().unwrap(), &value(HERE));
}

/// The transport had no room for the claim, and the request is not repeated.
#[test]
fn claim_without_room_is_sent_again() {
    let mut world = home(&["phone"]);
    world.notes = Some(Vec::new());
    world.handle("phone", |_| Some(Ok(value(1))));
    world.fate = Some(Box::new(|to, _, _| if to == "a" { Fate::IsLost } else { Fate::Arrives }));
    let key = world.call("a", request("lookup").timeout(10 * SECOND)).unwrap();
    world.run(100 * MS);
    world.fate = None;
    let claim = sent_packet(&world, "phone", Kind::ACKNOWLEDGEMENT);
    world.with("phone", |session, now| session.handle_send_failed(now, claim, SendFailure::QueueFull));
    world.run(3 * SECOND);
    assert_eq!(world.settled("a", key).unwrap().as_ref().unwrap(), &value(1));
}

/// A claim that has ended makes room for the next one that is sent again after a rejoin.
#[test]
fn ended_claim_leaves_the_retransmission_window() {
    let mut world = home(&[]);
    let mut config = Config::default();
    config.caps.frames.retransmit_frames = 1;
    world.client("phone", config, &["lookup"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    world.run(SECOND);
    // No answer to a claim arrives.
    world.fate = Some(Box::new(|to, _, frame| match (to, frame.kind()) {
        ("phone", Kind::ACKNOWLEDGEMENT) => Fate::IsLost,
        _ => Fate::Arrives,
    }));
    let calls =
        [3 * SECOND, 60 * SECOND].map(|limit| world.call("a", request("lookup").timeout(limit)).unwrap());
    world.run(500 * MS);
    world.rejoin("a");
    world.run(SECOND);
    world.fate = None;
    world.run(3 * SECOND);
    assert!(world.settled("a", calls[0]).unwrap().is_err());
    assert_eq!(world.settled("a", calls[1]).unwrap().as_ref().unwrap(), &value(1));
}

/// A home whose phone offers `lookup` as idempotent, runs a call of it and is started again, while the assistant's function
/// selects none of the other clients. Returns the call.
fn restarted_home(choose: SelectionPolicy, turn: bool) -> (World, CallKey) {
    let mut world = home_of(Config::default().choose(choose), &[]);
    let options = ToolOptions::default().idempotent().barge_in(BargeIn::Finish);
    let offer = |world: &mut World, name: &str| {
        world.client(name, Config::default(), &[]);
        let tools = vec![tool("lookup").options(options.clone())];
        world.with(name, |session, now| session.offer(now, tools)).unwrap().unwrap();
    };
    offer(&mut world, "phone");
    world.run(500 * MS);
    let first = world.with("a", |session, _| session.turn()).unwrap();
    let key = world.call("a", request("lookup").timeout(30 * SECOND).turn(first)).unwrap();
    world.run(500 * MS);
    assert_eq!(ran(&world), ["phone"]);
    if turn {
        world.with("a", |session, now| session.barge_in(now, first));
    }
    for other in ["tv", "desk"] {
        offer(&mut world, other);
    }
    world.run(500 * MS);
    world.leave("phone");
    world.client("phone", Config::default(), &[]);
    world.run(20 * SECOND);
    (world, key)
}

/// After the claim the rules for `client` calls apply: the assistant runs the tool never, whatever its function selects.
#[test]
fn claimed_call_of_a_replaced_instance_is_not_run_by_the_assistant() {
    let (world, key) = restarted_home(SelectionPolicy::by(|_, _| None), false);
    assert_eq!(ran(&world), ["phone"]);
    assert!(world.settled("a", key).unwrap().as_ref().unwrap_err().may_have_run());
}

/// A call that a barge-in has settled is not sent to another client when its owner is started again.
#[test]
fn interrupted_call_of_a_replaced_instance_does_not_start_again() {
    let (world, _) = restarted_home(SelectionPolicy::First, true);
    assert_eq!(ran(&world), ["phone"]);
}

/// A call that a barge-in has settled is not run by the assistant when its owner answers that it has no such tool.
#[test]
fn interrupted_call_that_its_owner_declines_does_not_start() {
    let mut world = played_home(&["tool_use", "tool_register", "tool_ack"], Some("i1"));
    let finish = Value::encode(&BTreeMap::from([("onBargeIn", "finish")])).unwrap();
    let lookup = with!(RegisteredTool::default(), name = "lookup".to_owned(), annotations = Some(finish));
    let offer = Message::ToolsRegister(with!(ToolsRegister::default(), tools = vec![lookup]));
    world.send("phone", &["a"], &Meta::new(), &offer);
    world.run(200 * MS);
    let turn = world.with("a", |session, _| session.turn()).unwrap();
    world.call("a", request("lookup").turn(turn)).unwrap();
    world.run(100 * MS);
    let call = asked(&world);
    world.with("a", |session, now| session.barge_in(now, turn));
    world.send("phone", &["a"], &Meta::new(), &result(&call.id, Some("unknown_tool")));
    world.run(SECOND);
    assert!(ran(&world).is_empty(), "{:?}", ran(&world));
    assert_eq!(world.session("a").open_calls(), 0);
}

/// The assistant's tool does not start once its own limit has passed at a client, and its caller learns that nothing ran.
#[test]
fn local_tool_whose_limit_passed_at_a_client_does_not_start() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    let short = ToolOptions::default().prefer_client().patience(SECOND);
    world.with("a", |session, now| session.offer(now, vec![tool("lookup").options(short)])).unwrap().unwrap();
    let sid = world.sid();
    world.play(&Participant::new("phone", sid).role(Role::Client));
    world.run(200 * MS);
    let features = FEATURES.iter().filter(|it| **it != "tool_claim").map(ToString::to_string).collect();
    let configuration = with!(Configuration::default(), features = Some(features));
    let meta = Meta::new().with_bool("bridge.heard", true).with_text("bridge.instance", "i1");
    world.send("phone", &["a"], &meta, &Message::Configuration(configuration));
    let patient = Value::encode(&BTreeMap::from([("timeoutMs", 30_000)])).unwrap();
    let lookup = with!(RegisteredTool::default(), name = "lookup".to_owned(), annotations = Some(patient));
    let offer = Message::ToolsRegister(with!(ToolsRegister::default(), tools = vec![lookup]));
    world.send("phone", &["a"], &Meta::new(), &offer);
    world.run(200 * MS);
    let key = world.call("a", request("lookup")).unwrap();
    world.run(2 * SECOND);
    let call = asked(&world);
    world.send("phone", &["a"], &Meta::new(), &result(&call.id, Some("unknown_tool")));
    world.run(SECOND);
    let error = world.settled("a", key).unwrap().as_ref().unwrap_err();
    assert!(error.code().as_str() == "timeout" && !error.may_have_run(), "{error:?}");
    assert!(ran(&world).is_empty());
}

#[test]
fn patience_of_a_clients_tool_does_not_limit_the_assistants_own_run() {
    let mut world = played_home(FEATURES, Some("i1"));
    let quick = Value::encode(&BTreeMap::from([("timeoutMs", 1)])).unwrap();
    let lookup = with!(RegisteredTool::default(), name = "lookup".to_owned(), annotations = Some(quick));
    let offer = Message::ToolsRegister(with!(ToolsRegister::default(), tools = vec![lookup]));
    world.send("phone", &["a"], &Meta::new(), &offer);
    world.run(200 * MS);
    world.handle("a", |_| None);
    let key = world.call("a", request("lookup")).unwrap();
    world.run(SECOND);
    world.finish("a", Ok(value(HERE)));
    assert_eq!(world.settled("a", key).unwrap().as_ref().unwrap(), &value(HERE));
}

/// An id of more than 128 B is malformed in every frame, and no answer repeats it.
#[test]
fn id_of_a_peer_beyond_the_limit_is_not_echoed() {
    for length in [128, 129, 10_000] {
        let mut world = played_home(FEATURES, Some("i1"));
        let id: CallId = "x".repeat(length).parse().unwrap();
        let before = world.count("a", "malformed");
        world.send("phone", &["a"], &Meta::new(), &result(&id, None));
        world.send("phone", &["a"], &Meta::new(), &claim_of(&id));
        let progress = ToolProgress::new(id.clone(), toolbridge::Progress::started().status);
        world.send("phone", &["a"], &Meta::new(), &Message::ToolProgress(progress));
        world.run(SECOND);
        let sizes = world.sent("a", Kind::ACKNOWLEDGEMENT);
        let longest = sizes.iter().map(|(_, frame)| frame.body().as_bytes().len()).max();
        assert!(longest.unwrap_or(0) < 400, "{length}: {longest:?}");
        let expected = if length == 128 { 0 } else { 3 };
        assert_eq!(world.count("a", "malformed") - before, expected, "{length}");
    }
}

/// The client has not bound the assistant any more, and says so of a call that has started there: that proves nothing.
#[test]
fn call_that_started_may_have_run_whatever_its_owner_says_of_the_binding() {
    for has_started in [true, false] {
        let mut world = played_home(&["tool_use", "tool_register", "tool_progress"], Some("i1"));
        let key = world.call("a", request("lookup").to("phone")).unwrap();
        world.run(100 * MS);
        let call = asked(&world);
        if has_started {
            let progress = ToolProgress::new(call.id.clone(), toolbridge::Progress::started().status);
            world.send("phone", &["a"], &Meta::new(), &Message::ToolProgress(progress));
        }
        let unbound = Meta::new().with_bool("bridge.unbound", true);
        world.send("phone", &["a"], &unbound, &result(&call.id, Some("permission_denied")));
        world.run(100 * MS);
        let error = world.settled("a", key).unwrap().as_ref().unwrap_err();
        assert_eq!(error.may_have_run(), has_started, "{error:?}");
        assert_eq!(matches!(error, CallError::NotBound { .. }), !has_started, "{error:?}");
    }
}

/// An owner that declined a call may repeat its answer while the assistant runs the call.
#[test]
fn repeated_answer_of_an_owner_that_declined_is_a_duplicate() {
    let mut world = played_home(FEATURES, Some("i1"));
    world.call("a", request("lookup")).unwrap();
    world.run(100 * MS);
    let call = asked(&world);
    for _ in 0..2 {
        world.send("phone", &["a"], &Meta::new(), &result(&call.id, Some("unknown_tool")));
        world.run(100 * MS);
    }
    assert_eq!((ran(&world), world.count("a", "duplicate")), (vec!["a"], 1));
    assert_eq!(world.count("a", "not_permitted"), 0);
}

/// The answer may be on its way, and the assistant may return.
#[test]
fn assistant_that_has_left_stays_bound_while_a_claim_waits_for_its_answer() {
    let mut world = home(&["phone"]);
    world.assistant("b", Config::default());
    world.run(SECOND);
    world.fate = Some(Box::new(|to, _, frame| match (to, frame.kind()) {
        ("phone", Kind::ACKNOWLEDGEMENT) => Fate::IsLost,
        _ => Fate::Arrives,
    }));
    world.call("a", request("lookup")).unwrap();
    world.run(100 * MS);
    world.leave("a");
    world.run(3 * SECOND);
    assert_eq!(world.session("phone").bound(), Some(&Identity::from("a")));
    world.run(4 * SECOND);
    assert_eq!(world.session("phone").bound(), Some(&Identity::from("b")));
}

/// The client's registration says that it takes requests, and this one is too large for it.
#[test]
fn call_that_the_assistant_runs_itself_after_all_follows_its_tool_when_interrupted() {
    let mut world = home(&[]);
    let report = ToolOptions::default().barge_in(BargeIn::Report);
    let both = |options: ToolOptions| vec![tool("lookup").options(options)];
    world
        .with("a", |session, now| session.offer(now, both(report.clone().prefer_client())))
        .unwrap()
        .unwrap();
    world.client("phone", Config::default(), &[]);
    world.with("phone", |session, now| session.offer(now, both(report))).unwrap().unwrap();
    world.run(200 * MS);
    world.handle("a", |_| None);
    let turn = world.with("a", |session, _| session.turn()).unwrap();
    let large = Value::from(serde_json::json!({"pad": "x".repeat(20_000)}));
    let key = world.call("a", Request::new("lookup", large).turn(turn)).unwrap();
    assert_eq!(ran(&world), ["a"]);
    world.with("a", |session, now| session.barge_in(now, turn)).unwrap();
    let settled = world.settled("a", key).unwrap();
    assert!(matches!(settled, Err(CallError::Detached)), "{settled:?}");
}

/// It sends no claim, and nothing of the request has left.
#[test]
fn request_that_was_never_sent_to_a_client_without_claims_is_run_by_the_assistant() {
    let mut world = played_home(&["tool_use", "tool_register", "tool_ack"], Some("i1"));
    world.notes = Some(Vec::new());
    let key = world.call("a", request("lookup")).unwrap();
    let packet = sent_packet(&world, "a", Kind::TOOL_USE_REQUEST);
    world.with("a", |session, now| session.handle_send_failed(now, packet, SendFailure::QueueFull));
    assert_eq!(ran(&world), ["a"]);
    assert_eq!(outcome(&world, key), value(HERE));
}

/// The old instance may have run it, so no claim of the other client lets the assistant run it, too.
#[test]
fn call_of_a_replaced_instance_goes_to_another_client_as_a_call_of_clients() {
    let (world, _) = restarted_home(SelectionPolicy::First, false);
    let execution = |frame: &Frame| match frame.message() {
        Ok(Message::ToolUseRequest(request)) => request.execution.ok(),
        _ => None,
    };
    let sent = world.sent("a", Kind::TOOL_USE_REQUEST);
    let asked: Vec<_> =
        sent.iter().map(|(to, frame)| (to.first().map(Identity::as_str), execution(frame))).collect();
    let expected =
        [("phone", Execution::Either), ("tv", Execution::Client)].map(|(to, it)| (Some(to), Some(it)));
    assert_eq!(asked.into_iter().filter(|(to, _)| to.is_some()).collect::<Vec<_>>(), expected);
}
