//! Combinations of two features: what one of them proves must not be undone by the other.

#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use toolbridge::{
    CallError, Config, ConnectionState, Consent, Progress, Tool, ToolError, ToolOptions, Value,
    frame::{Configuration, Frame, Kind, Message, Meta, ToolUseResult},
    session::{CallKey, Request, SendFailure},
    tools::Visibility,
    transport::{Lane, Participant, TransportEvent},
};

use crate::session_world::{Fate, MS, SECOND, World, plain_request, request, tool, value};

fn may_repeat() -> Tool {
    tool("look").options(ToolOptions::default().idempotent())
}

fn offer(world: &mut World, name: &str, tools: Vec<Tool>) {
    world.with(name, |session, now| session.offer(now, tools)).unwrap().unwrap();
}

/// An assistant whose idempotent call started on a phone, which was then restarted with `tools`.
fn restarted(config: Config, tools: Vec<Tool>, call: Request) -> (World, CallKey) {
    let mut world = World::new();
    world.begins = false; // the start message may be lost
    world.assistant("a", Config::default());
    world.client("phone", Config::default(), &[]);
    offer(&mut world, "phone", vec![may_repeat()]);
    world.run(200 * MS);
    let key = world.call("a", call).unwrap();
    world.run(100 * MS);
    assert_eq!(world.executed.len(), 1);
    world.leave("phone");
    world.client("phone", config, &[]);
    offer(&mut world, "phone", tools);
    world.run(10 * SECOND);
    (world, key)
}

#[test]
fn call_of_an_earlier_instance_stays_may_have_run() {
    let mut full = Config::default();
    full.caps.calls.open_per_peer = 0;
    let call = || request("look").timeout(20 * SECOND);
    for (config, tools, call) in [
        (Config::default(), vec![], call().to("phone")),
        (Config::default(), vec![], call()),
        (full, vec![may_repeat()], call()),
    ] {
        let (world, key) = restarted(config, tools, call);
        let Some(Err(error)) = world.settled("a", key) else { panic!("the call has no error") };
        assert!(error.may_have_run(), "{error:?}");
        assert!(matches!(error, CallError::Lost { .. }), "{error:?}");
    }
    let (mut world, key) = restarted(Config::default(), vec![may_repeat()], call());
    world.finish("phone", Err(ToolError::new("permission_denied", "no")));
    world.run(SECOND);
    let Some(Err(error)) = world.settled("a", key) else { panic!("the call has no error") };
    assert!(matches!(error, CallError::Tool(_)) && error.may_have_run(), "{error:?}");
}

fn fast_pair() -> World {
    let mut world = World::new();
    world.assistant("a", Config::default().lossy(true));
    world.client("phone", Config::default().lossy(true), &["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    world.run(200 * MS);
    for _ in 0..2 {
        world.ask("a", request("t")).unwrap();
        world.run(SECOND);
    }
    world.handle("phone", |_| None);
    world.executed.clear();
    world
}

#[test]
fn unsent_copy_proves_nothing_of_an_acknowledged_request() {
    for why in [SendFailure::QueueFull, SendFailure::Closed, SendFailure::Interrupted] {
        let mut world = fast_pair();
        let key = world.call("a", request("t").timeout(5 * SECOND)).unwrap();
        let packet = world.packet;
        world.run(100 * MS);
        assert_eq!(world.executed.len(), 1);
        world.with("a", |session, now| session.handle_send_failed(now, packet, why.clone()));
        world.run(10 * SECOND);
        let Some(Err(error)) = world.settled("a", key) else { panic!("the call has no error") };
        assert!(error.may_have_run(), "{why:?}: {error:?}");
    }
}

#[test]
fn unsent_copy_proves_nothing_after_the_owners_sid_changed() {
    for why in [SendFailure::QueueFull, SendFailure::Closed, SendFailure::Interrupted] {
        let mut world = fast_pair();
        world.lossy.lose = Some(Box::new(|_, lane, frame| {
            frame.kind() == Kind::ACKNOWLEDGEMENT
                || (lane == Lane::Reliable && frame.kind() == Kind::TOOL_USE_REQUEST)
        }));
        let key = world.call("a", request("t").timeout(20 * SECOND)).unwrap();
        let packet = world.packet;
        world.run(90 * MS);
        assert_eq!(world.executed.len(), 1);
        world.leave("phone");
        world.run(100 * MS);
        world.with("a", |session, now| session.handle_send_failed(now, packet, why.clone()));
        world.run(10 * SECOND);
        let Some(Err(error)) = world.settled("a", key) else { panic!("the call has no error") };
        assert!(error.may_have_run(), "{why:?}: {error:?}");
    }
}

#[test]
fn assistants_own_tool_has_its_own_timeout_after_consent() {
    let mut world = World::new();
    world.assistant("a", Config::default().consent_available(true));
    let options = ToolOptions::default().consent(Consent::Always).timeout(2 * SECOND);
    offer(&mut world, "a", vec![tool("t").options(options)]);
    let key = world.call("a", request("t").timeout(30 * SECOND)).unwrap();
    world.run(10 * SECOND);
    let question = world.question("a").unwrap();
    world.with("a", |session, now| session.consent(now, question.key, true));
    world.run(SECOND);
    assert!(world.settled("a", key).is_none());
    world.run(2 * SECOND);
    assert!(
        matches!(world.settled("a", key), Some(Err(CallError::Timeout { limit })) if *limit == 2 * SECOND)
    );
    assert_eq!(world.ends["a"].aborted.len(), 1);
}

#[test]
fn tools_own_limit_begins_with_its_start_alone_and_does_not_lengthen_the_call() {
    for (own, limit, end) in [(2 * SECOND, 30 * SECOND, 4 * SECOND), (20 * SECOND, 3 * SECOND, 3 * SECOND)] {
        let mut world = World::new();
        world.begins = false; // as if it waited for a place
        world.assistant("a", Config::default());
        world.client("phone", Config::default(), &[]);
        offer(&mut world, "phone", vec![tool("t").options(ToolOptions::default().timeout(own))]);
        world.run(200 * MS);
        let key = world.call("a", request("t").timeout(limit)).unwrap();
        let begun = world.now;
        let report_at = |world: &mut World, time| {
            world.run(begun + time - world.now);
            let job = world.ends["phone"].jobs[0].key;
            world.with("phone", |session, now| session.progress(now, job, Progress::started()));
        };
        report_at(&mut world, 2 * SECOND);
        // The stop of the caller, whose limit ends at the same time, must not be what ends the job.
        world.fate = Some(Box::new(|_, from, _| if *from == "a" { Fate::IsLost } else { Fate::Arrives }));
        report_at(&mut world, 2_700 * MS);
        world.run(begun + end - 100 * MS - world.now);
        assert_eq!(world.ends["phone"].aborted.len(), 0, "{own:?}");
        world.run(200 * MS);
        assert_eq!(world.ends["phone"].aborted.len(), 1, "{own:?}");
        assert!(matches!(world.settled("a", key), Some(Err(CallError::Timeout { .. }))));
    }
}

/// The tool's limit is longer than what is left of the call's.
#[test]
fn tools_own_timeout_after_consent_does_not_lengthen_the_call() {
    let mut world = World::new();
    world.assistant("a", Config::default().consent_available(true));
    let options = ToolOptions::default().consent(Consent::Always).timeout(20 * SECOND);
    offer(&mut world, "a", vec![tool("t").options(options)]);
    let key = world.call("a", request("t").timeout(5 * SECOND)).unwrap();
    world.run(SECOND);
    let question = world.question("a").unwrap();
    world.with("a", |session, now| session.consent(now, question.key, true));
    assert_eq!(world.ends["a"].jobs[0].limit, 5 * SECOND);
    world.run(5 * SECOND);
    let settled = world.settled("a", key);
    assert!(
        matches!(settled, Some(Err(CallError::Timeout { limit })) if *limit == 5 * SECOND),
        "{settled:?}"
    );
}

#[test]
fn tool_withdrawn_during_its_claim_does_not_run() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    offer(&mut world, "a", vec![tool("wipe").options(ToolOptions::default().prefer_client())]);
    world.client("phone", Config::default().consent_available(true), &[]);
    offer(&mut world, "phone", vec![tool("wipe").options(ToolOptions::destructive())]);
    world.run(200 * MS);
    let key = world.call("a", request("wipe").timeout(5 * SECOND)).unwrap();
    world.run(30 * MS); // claimed, not granted
    offer(&mut world, "phone", vec![]);
    world.run(SECOND);
    assert!(world.executed.is_empty(), "{:?}", world.executed);
    assert!(
        matches!(world.settled("a", key), Some(Err(CallError::UnknownTool { .. }))),
        "{:?}",
        world.settled("a", key)
    );
}

/// A plain program under the identity of a toolbridge assistant that left: it shows no instance.
fn plain_takeover(world: &mut World) {
    world.leave("a");
    world.run(100 * MS);
    let sid = world.sid();
    world.ends.remove("a");
    world.play(&Participant::new("a", sid).agent(true));
    world.run(200 * MS);
}

#[test]
fn plain_sender_after_an_instance_has_no_floor() {
    let mut world = World::pair(&["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    for _ in 0..3 {
        world.ask("a", request("t")).unwrap();
    }
    world.run(200 * SECOND); // forgotten: the floor is raised
    plain_takeover(&mut world);
    world.send("a", &["phone"], &Meta::new(), &Message::ToolUseRequest(plain_request("p1", "t")));
    world.run(SECOND);
    assert_eq!(world.executed.len(), 4);
}

/// The second instance appears twice, and the first asks for nothing between: what it asked for before is still not repeated.
#[test]
fn instance_that_returns_twice_repeats_no_forgotten_request() {
    let mut world = World::new();
    world.client("phone", Config::default(), &["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    let joins = |world: &mut World, instance: &str| {
        world.leave_if_here("a");
        let sid = world.sid();
        world.play(&Participant::new("a", sid).agent(true));
        world.run(SECOND);
        let features = Some(["tool_use", "tool_ack"].map(String::from).to_vec());
        let configuration = Message::Configuration(with!(Configuration::default(), features = features));
        let shows = world.shows("a", "phone", instance);
        world.send("a", &["phone"], &shows, &configuration);
        world.run(SECOND);
    };
    let asks = |world: &mut World, id: &str| {
        let meta = world.addressed_to("phone");
        let stanza = world.send("a", &["phone"], &meta, &Message::ToolUseRequest(plain_request(id, "t")));
        world.run(SECOND);
        stanza
    };
    joins(&mut world, "one");
    let first = asks(&mut world, "p1");
    assert_eq!(world.executed.len(), 1);
    for instance in ["two", "one", "two"] {
        joins(&mut world, instance);
    }
    world.run(200 * SECOND); // forgotten
    joins(&mut world, "one");
    let last = std::mem::replace(&mut world.ends.get_mut("a").unwrap().stanza, first + 1);
    asks(&mut world, "p1");
    assert_eq!(world.executed.len(), 1);
    world.ends.get_mut("a").unwrap().stanza = last;
    asks(&mut world, "p2");
    assert_eq!(world.executed.len(), 2);
}

#[test]
fn plain_sender_after_an_instance_inherits_nothing() {
    let mut world = World::pair(&["t", "hang"]);
    world.call("a", request("hang").timeout(60 * SECOND)).unwrap();
    world.call("a", request("t").timeout(60 * SECOND)).unwrap();
    world.run(100 * MS);
    plain_takeover(&mut world);
    let job = world.ends.get_mut("phone").unwrap().jobs.pop().unwrap();
    world.with("phone", |session, now| session.settle(now, job.key, Ok(value(1))));
    world.send("a", &["phone"], &Meta::new(), &Message::ToolUseRequest(plain_request("p1", "t")));
    world.run(100 * MS);
    let job = world.ends.get_mut("phone").unwrap().jobs.pop().unwrap();
    assert_eq!(job.call.as_str(), "p1");
    world.with("phone", |session, now| session.settle(now, job.key, Ok(value(2))));
    world.run(6 * SECOND);
    assert_eq!(world.ends["phone"].aborted.len(), 1, "the caller's grace period has ended");
    let results = world.received("a", Kind::TOOL_USE_RESULT).into_iter();
    let results = results.filter(|it| !matches!(it, Message::ToolUseResult(it) if it.id.as_str() == "p1"));
    assert_eq!(results.count(), 0, "results for another instance are not sent");
    assert!(world.session("phone").is_drained());
}

fn body_of(bytes: usize) -> Value {
    Value::encode(&std::collections::BTreeMap::from([("text", "x".repeat(bytes))])).unwrap()
}

#[test]
fn retransmission_continues_when_frames_in_flight_end_without_an_acknowledgement() {
    for cancels in [false, true] {
        let mut world = World::new();
        world.assistant("a", Config::default().streams(true));
        let mut config = Config::default().streams(true);
        config.caps.requests.calls_per_second = if cancels { 50 } else { 2 };
        world.client("phone", config, &["t"]);
        world.handle("phone", |_| Some(Ok(value(1))));
        world.run(200 * MS);
        if !cancels {
            world.run(2 * SECOND);
        }
        world.ends.get_mut("phone").unwrap().here = false; // disconnected, and no one notices
        let call = |world: &mut World| {
            world.call("a", Request::new("t", body_of(2_100_000)).timeout(20 * SECOND)).unwrap()
        };
        let keys: Vec<_> = (0..5).map(|_| call(&mut world)).collect();
        world.run(100 * MS);
        if cancels {
            world.lossy.lose =
                Some(Box::new(|name, _, frame| name == "a" && frame.kind() == Kind::TOOL_USE_REQUEST));
        }
        world.rejoin("phone");
        world.run(500 * MS);
        if cancels {
            world.lossy.lose = None;
            for key in &keys[..2] {
                world.with("a", |session, now| session.cancel(now, *key));
            }
        }
        world.run(3 * SECOND);
        for key in keys {
            assert!(world.settled("a", key).is_some(), "cancels: {cancels}");
        }
    }
}

#[test]
fn long_names_and_codes_are_not_kept() {
    let mut world = World::pair(&["t"]);
    let long = "n".repeat(100_000);
    let observed = with!(plain_request("o1", &long), execution = Ok(toolbridge::tools::Execution::Server));
    let bytes = |message: &Message| Frame::write(-9_000, "room", &Meta::new(), message).unwrap();
    world.send_bytes("a", &["phone"], &bytes(&Message::ToolUseRequest(observed)));
    world.send_bytes("a", &["phone"], &bytes(&Message::ToolUseRequest(plain_request("p1", &long))));
    let key = world.call("a", request("t")).unwrap();
    world.run(100 * MS);
    let job = world.ends.get_mut("phone").unwrap().jobs.pop().unwrap();
    let failure = with!(
        ToolUseResult::new(job.call.clone(), false),
        error_code = Some(long.as_str().into()),
        error_message = Some("failed".into())
    );
    world.send_bytes("phone", &["a"], &bytes(&Message::ToolUseResult(failure)));
    world.run(100 * MS);
    assert!(world.settled("a", key).is_some());
    for name in ["a", "phone"] {
        for record in world.session(name).records() {
            assert!(record.tool.len() <= 64, "{name}: a tool's name of {} B", record.tool.len());
            let code = record.outcome.and_then(Result::err).map_or(0, |code| code.as_str().len());
            assert!(code <= 128, "{name}: a code of {code} B");
        }
    }
}

#[test]
fn handshake_continues_after_a_long_outage() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    world.run(SECOND);
    world.fate = Some(Box::new(|_, _, _| Fate::IsLost));
    world.with("a", |session, now| {
        session.handle_event(now, TransportEvent::ConnectionState(ConnectionState::Reconnecting))
    });
    world.client("phone", Config::default(), &["t"]);
    world.with("phone", |session, now| {
        session.handle_event(now, TransportEvent::ConnectionState(ConnectionState::Reconnecting))
    });
    world.run(60 * SECOND);
    world.fate = None;
    for name in ["a", "phone"] {
        world.with(name, |session, now| {
            session.handle_event(now, TransportEvent::ConnectionState(ConnectionState::Connected))
        });
    }
    world.run(10 * SECOND);
    assert_eq!(world.session("a").tools().len(), 1);
}

#[test]
fn closed_session_has_no_further_outputs() {
    for role in ["a", "phone"] {
        let mut world = World::pair(&["t"]);
        world.with(role, |session, now| session.close(now));
        let now = world.now;
        let session = world.ends.get_mut(role).unwrap().session.as_mut().unwrap();
        session.offer(now, vec![tool("u")]).unwrap();
        let _ = session.call(now, request("t"));
        let _ = session.ask_to_stop(now, None);
        let turn = session.turn();
        session.barge_in(now, turn);
        session.drain(now);
        session.handle_timeout(now + 100 * SECOND);
        session.close(now);
        let after: Vec<_> = std::iter::from_fn(|| session.poll_output()).collect();
        assert!(after.is_empty(), "{after:?}");
        assert_eq!(session.poll_timeout(), None);
        assert!(session.is_drained());
    }
}

#[test]
fn stop_that_found_a_full_queue_is_sent_later() {
    let mut world = World::pair(&["hang"]);
    let key = world.call("a", request("hang").timeout(60 * SECOND)).unwrap();
    world.run(100 * MS);
    world.ends.get_mut("a").unwrap().here = false;
    world.unsent = SendFailure::QueueFull;
    world.with("a", |session, now| session.cancel(now, key));
    world.ends.get_mut("a").unwrap().here = true;
    world.run(3 * SECOND);
    assert_eq!(world.ends["phone"].aborted.len(), 1);
}

#[test]
fn sec_i7_consent_to_a_definition_changed_meanwhile_does_not_count() {
    for consent in [Consent::Always, Consent::OncePerSession] {
        let mut world = World::new();
        world.assistant("a", Config::default());
        world.client("phone", Config::default().consent_available(true), &[]);
        let wipe = |what: &str| {
            Tool::new("wipe".parse().unwrap(), what).options(ToolOptions::destructive().consent(consent))
        };
        offer(&mut world, "phone", vec![wipe("the sandbox")]);
        world.run(200 * MS);
        world.call("a", request("wipe").timeout(60 * SECOND)).unwrap();
        world.run(100 * MS);
        let answer = |world: &mut World, what: &str| {
            let question = world.question("phone").unwrap();
            assert_eq!(question.tool.description(), what);
            question.key
        };
        let key = answer(&mut world, "the sandbox");
        offer(&mut world, "phone", vec![wipe("the disk")]);
        world.with("phone", |session, now| session.consent(now, key, true));
        assert!(world.executed.is_empty(), "{consent:?}: the consent was for another definition");
        let key = answer(&mut world, "the disk");
        world.with("phone", |session, now| session.consent(now, key, true));
        assert_eq!(world.executed.len(), 1);
    }
}

#[test]
fn local_tool_withdrawn_while_it_runs_keeps_its_visibility() {
    for level in [Visibility::Nothing, Visibility::Name] {
        let mut world = World::new();
        world.stranger("x");
        world.assistant("a", Config::default());
        offer(&mut world, "a", vec![tool("secret").options(ToolOptions::default().disclose(level))]);
        world.call("a", request("secret")).unwrap();
        world.run(100 * MS);
        offer(&mut world, "a", vec![]);
        world.finish("a", Ok(value(42)));
        world.run(100 * MS);
        let reported = world.received("x", Kind::TOOL_USE_RESULT);
        assert_eq!(reported.len(), usize::from(level == Visibility::Name));
        for it in reported {
            assert!(matches!(it, Message::ToolUseResult(it) if it.result.is_none()), "{level:?}");
        }
    }
}

#[test]
fn local_tool_withdrawn_while_a_client_may_claim_does_not_run() {
    let mut world = World::new();
    world.assistant("a", Config::default().consent_available(true));
    let wipe = tool("wipe").options(ToolOptions::destructive().prefer_client());
    offer(&mut world, "a", vec![wipe]);
    world.client("phone", Config::default(), &["wipe"]);
    world.run(200 * MS);
    world.fate = Some(Box::new(|to, _, _| if to == "a" { Fate::IsLost } else { Fate::Arrives }));
    let key = world.call("a", request("wipe")).unwrap();
    world.run(100 * MS);
    offer(&mut world, "a", vec![]);
    world.run(4 * SECOND);
    assert!(world.executed.is_empty(), "{:?}", world.executed);
    assert!(matches!(world.settled("a", key), Some(Err(CallError::UnknownTool { .. }))));
}

#[test]
fn instance_replaced_by_a_plain_sender_runs_nothing_twice_when_it_returns() {
    let mut world = World::new();
    world.client("phone", Config::default(), &["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    let joins = |world: &mut World, instance: Option<&str>| {
        world.leave_if_here("a");
        world.run(100 * MS);
        let sid = world.sid();
        world.play(&Participant::new("a", sid).agent(true));
        world.run(100 * MS);
        if let Some(instance) = instance {
            let meta = world.shows("a", "phone", instance);
            world.send("a", &["phone"], &meta, &Message::Configuration(Configuration::default()));
            world.run(100 * MS);
        }
    };
    let request = |id: &str, stanza: i32| {
        Frame::write(stanza, "room", &Meta::new(), &Message::ToolUseRequest(plain_request(id, "t"))).unwrap()
    };
    joins(&mut world, Some("one"));
    world.send_bytes("a", &["phone"], &request("first", -9));
    world.run(200 * SECOND); // it is forgotten
    joins(&mut world, None);
    world.send_bytes("a", &["phone"], &request("plain", -1));
    world.run(SECOND);
    assert_eq!(world.executed.len(), 2);
    joins(&mut world, Some("one"));
    world.send_bytes("a", &["phone"], &request("first", -9));
    world.run(SECOND);
    assert_eq!(world.executed.len(), 2, "the first request ran before and does not run again");
    world.send_bytes("a", &["phone"], &request("second", -10));
    world.run(SECOND);
    assert_eq!(world.executed.len(), 3);
}

#[test]
fn owner_holds_no_more_arguments_of_a_caller_than_the_caller_may_have_open() {
    let mut world = World::new();
    let mut config = Config::default();
    config.caps.calls.open_bytes = 1_000;
    world.client("phone", config, &["t"]);
    let sid = world.sid();
    world.play(&Participant::new("a", sid).agent(true));
    world.run(200 * MS);
    let ask = |world: &mut World, id: &str, bytes: usize| {
        let request = with!(plain_request(id, "t"), parameters = body_of(bytes));
        world.send("a", &["phone"], &Meta::new(), &Message::ToolUseRequest(request));
        world.run(100 * MS);
        world.executed.iter().any(|(_, call)| call.as_str() == id)
    };
    assert!(ask(&mut world, "first", 5_000), "one request of any size is accepted");
    assert!(!ask(&mut world, "second", 10));
    assert_eq!(world.count("phone", "busy"), 1);
    world.finish("phone", Ok(value(1)));
    assert!(ask(&mut world, "third", 10) && ask(&mut world, "fourth", 10));
}

#[test]
fn error_whose_text_is_cut_keeps_its_partial_result() {
    let mut world = World::pair(&["t"]);
    let long = || ToolError::new("own", "x".repeat(5_000)).with_partial(value(1));
    world.handle("phone", move |_| Some(Err(long())));
    let error = world.ask("a", request("t")).unwrap_err();
    let CallError::Tool(error) = &error else { panic!("{error:?}") };
    assert_eq!((error.message().len(), error.partial()), (4_096, Some(&value(1))));
}

/// One call stays open, so the caller always has one.
#[test]
fn arguments_of_ended_calls_make_room_while_another_one_runs() {
    let mut config = Config::default();
    config.caps.calls.open_bytes = 1_000;
    let mut world = World::new();
    world.assistant("a", Config::default());
    world.client("phone", config, &["t", "slow"]);
    world.handle("phone", |job| (job.tool.as_str() == "t").then(|| Ok(value(1))));
    world.run(200 * MS);
    world.call("a", request("slow").timeout(60 * SECOND)).unwrap();
    for _ in 0..5 {
        let text = Value::from(serde_json::json!({"text": "x".repeat(500)}));
        assert_eq!(world.ask("a", Request::new("t", text)).unwrap(), value(1));
    }
}

#[test]
fn own_tool_that_started_may_have_run_whatever_code_it_reports() {
    for code in ["unknown_tool", "busy"] {
        let mut world = World::new();
        world.assistant("a", Config::default());
        offer(&mut world, "a", vec![tool("t")]);
        let key = world.call("a", request("t")).unwrap();
        let job = world.ends["a"].jobs[0].key;
        world.with("a", |session, now| session.progress(now, job, Progress::started()));
        world.finish("a", Err(ToolError::new(code, "no")));
        assert!(world.settled("a", key).unwrap().as_ref().unwrap_err().may_have_run(), "{code}");
    }
}
