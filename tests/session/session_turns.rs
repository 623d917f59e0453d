//! Turns and barge-in, the call log, and a client's own stop, on virtual time.

use toolbridge::{
    BargeIn, CallError, Config, ErrorCode, Event, Role, Tool, ToolOptions, Value,
    frame::{Configuration, ControlStop, Frame, Kind, Message, Meta},
    session::{CallKey, CallState, Request, SendFailure, TurnKey},
    tools::StopReason,
    transport::Participant,
};

use crate::session_world::{MS, SECOND, World, request, tool, value};

fn ruled(name: &str, rule: BargeIn) -> Tool {
    tool(name).options(ToolOptions::default().barge_in(rule))
}

/// A phone with a tool for each rule, named after it.
fn pair() -> World {
    let mut world = World::new();
    world.assistant("a", Config::default());
    world.client("phone", Config::default(), &[]);
    offer(&mut world, "phone");
    world.run(200 * MS);
    world
}

fn offer(world: &mut World, name: &str) {
    let tools = [BargeIn::Cancel, BargeIn::Finish, BargeIn::Report].map(|rule| ruled(rule.as_str(), rule));
    world.with(name, |session, now| session.offer(now, tools.to_vec())).unwrap().unwrap();
}

fn turn(world: &mut World) -> TurnKey {
    world.with("a", |session, _| session.turn()).unwrap()
}

fn barge_in(world: &mut World, turn: TurnKey) {
    world.with("a", |session, now| session.barge_in(now, turn)).unwrap();
}

fn call(world: &mut World, turn: TurnKey, tool: &str) -> CallKey {
    world.call("a", request(tool).turn(turn)).unwrap()
}

fn stops(world: &World, name: &str) -> usize {
    world.sent(name, Kind::CONTROL_STOP).len()
}

#[test]
fn barge_in_rule_is_sent_with_the_registration() {
    let world = pair();
    let offers = world.session("a").tools();
    let rules: Vec<_> = offers.iter().map(|offer| offer.tool.tool_options().barge_in.as_str()).collect();
    assert_eq!(rules, ["cancel", "finish", "report"]);
    let (_, frame) = world.sent("phone", Kind::TOOLS_REGISTER).pop().unwrap();
    let tools = frame.body().to_json()["tools"].clone();
    assert_eq!(tools[0].get("annotations"), None, "the default is not written");
    assert_eq!(tools[2]["annotations"]["onBargeIn"], "report");
}

#[test]
fn protocol_a21_barge_in_settles_each_call_at_once_and_late_results_are_dropped() {
    let mut world = pair();
    let turn = turn(&mut world);
    let keys = ["cancel", "finish"].map(|tool| call(&mut world, turn, tool));
    let other = world.call("a", request("cancel")).unwrap();
    world.run(100 * MS);
    assert_eq!(world.ends["phone"].jobs.len(), 3);
    barge_in(&mut world, turn);
    assert!(matches!(world.settled("a", keys[0]), Some(Err(CallError::Cancelled))));
    let Some(Err(finishes)) = world.settled("a", keys[1]) else { panic!("it is open") };
    let text = "the turn was interrupted; the tool goes on, and its result is not awaited";
    assert_eq!((finishes.to_string().as_str(), finishes.code()), (text, ErrorCode::CANCELLED));
    assert!(world.settled("a", other).is_none(), "a call outside the turn continues");
    world.run(100 * MS);
    assert_eq!(stops(&world, "a"), 1, "one stop is sent, for the tool with `cancel`");
    assert_eq!(world.ends["phone"].aborted.len(), 1);
    let late = world.count("a", "late");
    world.finish("phone", Ok(value(1))); // the stopped one: its outcome is discarded
    world.finish("phone", Ok(value(2)));
    world.run(100 * MS);
    assert_eq!(world.count("a", "late") - late, 1, "the late result is only counted");
    assert!(world.with("a", |session, _| session.late_results()).unwrap().is_empty());
    assert_eq!(world.ends["a"].settled.len(), 2);
    let outcomes = world.ends["a"].events.iter().filter(|it| matches!(it, Event::Settled { .. })).count();
    assert_eq!(outcomes, 2, "each call has one outcome");
    // A second barge-in, and a cancel of a settled call, change nothing.
    barge_in(&mut world, turn);
    world.with("a", |session, now| session.cancel(now, keys[1]));
    world.run(SECOND);
    assert_eq!(stops(&world, "a"), 1);
}

#[test]
fn reported_call_is_detached_and_its_result_belongs_to_the_next_turn() {
    let mut world = pair();
    let first = turn(&mut world);
    let key = call(&mut world, first, "report");
    world.run(100 * MS);
    barge_in(&mut world, first);
    assert!(matches!(world.settled("a", key), Some(Err(CallError::Detached))));
    // Dropping the handle of a settled call does not stop the work.
    world.with("a", |session, now| session.cancel(now, key));
    world.run(SECOND);
    assert_eq!(stops(&world, "a"), 0);
    world.finish("phone", Ok(value(7)));
    world.run(100 * MS);
    let reported =
        |it: &Event| matches!(it, Event::LateResult { tool, outcome: Ok(()), .. } if tool == "report");
    assert_eq!(world.ends["a"].events.iter().filter(|it| reported(it)).count(), 1);
    let late = world.with("a", |session, _| session.late_results()).unwrap();
    assert_eq!((&*late[0].tool, late[0].owner.as_ref().unwrap().as_str()), ("report", "phone"));
    assert_eq!(late[0].result.as_ref().as_ref().unwrap(), &value(7));
    assert!(
        world.with("a", |session, _| session.late_results()).unwrap().is_empty(),
        "each late result is returned once"
    );
    let record = world.session("a").record(&late[0].id).unwrap();
    assert_eq!(record.outcome, Some(Err(ErrorCode::from("detached"))));
    assert!(record.late.is_some() && record.turn == Some(first));
    assert_eq!(world.session("a").open_calls(), 0);
}

#[test]
fn call_left_running_by_a_barge_in_ends_with_its_budget_or_its_owner() {
    let mut world = pair();
    let first = turn(&mut world);
    world.call("a", request("report").turn(first).timeout(3 * SECOND)).unwrap();
    world.run(100 * MS);
    barge_in(&mut world, first);
    world.run(4 * SECOND);
    let late = world.with("a", |session, _| session.late_results()).unwrap();
    assert!(matches!(&*late[0].result, Err(CallError::Timeout { .. } | CallError::Tool(_))), "{late:?}");
    let second = turn(&mut world);
    call(&mut world, second, "report");
    world.run(100 * MS);
    barge_in(&mut world, second);
    world.leave("phone");
    world.run(10 * SECOND);
    let late = world.with("a", |session, _| session.late_results()).unwrap();
    assert!(matches!(&*late[0].result, Err(CallError::Lost { .. })), "{late:?}");
}

#[test]
fn local_tool_follows_its_barge_in_rule() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    offer(&mut world, "a");
    let first = turn(&mut world);
    let keys = ["cancel", "finish", "report"].map(|tool| call(&mut world, first, tool));
    barge_in(&mut world, first);
    assert_eq!(world.ends["a"].aborted.len(), 1);
    assert!(matches!(world.settled("a", keys[2]), Some(Err(CallError::Detached))));
    world.ends.get_mut("a").unwrap().jobs.remove(0);
    world.finish("a", Ok(value(1)));
    world.finish("a", Ok(value(2)));
    let late = world.with("a", |session, _| session.late_results()).unwrap();
    assert_eq!(late.len(), 1);
    assert_eq!(late[0].result.as_ref().as_ref().unwrap(), &value(2));
}

#[test]
fn call_without_an_owner_is_cancelled_by_a_barge_in() {
    let mut world = pair();
    let first = turn(&mut world);
    let key = call(&mut world, first, "nobody_offers_this");
    barge_in(&mut world, first);
    assert!(matches!(world.settled("a", key), Some(Err(CallError::Cancelled))));
    assert_eq!(stops(&world, "a"), 0);
}

#[test]
fn ended_turn_accepts_no_calls() {
    let mut world = pair();
    let (first, second) = (turn(&mut world), turn(&mut world));
    barge_in(&mut world, first);
    let error = world.call("a", request("cancel").turn(first)).unwrap_err();
    assert!(matches!(error, CallError::TurnOver) && !error.may_have_run());
    call(&mut world, second, "cancel");
}

#[test]
fn turn_may_make_the_same_call_five_times() {
    let mut world = pair();
    world.handle("phone", |_| Some(Ok(value(1))));
    let first = turn(&mut world);
    let same = |n: i32| Request::new("cancel", value(n)).turn(first);
    for _ in 0..5 {
        world.call("a", same(1)).unwrap();
    }
    let error = world.call("a", same(1)).unwrap_err();
    assert!(matches!(error, CallError::TooManyEqual { limit: 5, .. }) && !error.may_have_run(), "{error}");
    assert!(error.to_string().contains("5 times"));
    world.call("a", same(2)).unwrap();
    world.call("a", same(1).to("phone")).unwrap();
    let second = turn(&mut world);
    world.call("a", Request::new("cancel", value(1)).turn(second)).unwrap();
    world.run(SECOND);
    assert_eq!(world.ends["a"].settled.len(), 8);
}

#[test]
fn turns_and_late_results_are_bounded() {
    let mut world = World::new();
    let mut config = Config::default();
    config.caps.calls.late_results = 3;
    config.caps.calls.late_bytes = 100;
    world.assistant("a", config);
    offer(&mut world, "a");
    world.handle("a", |_| None);
    let first = turn(&mut world);
    for n in 0..5 {
        world.call("a", Request::new("report", value(n)).turn(first)).unwrap();
    }
    barge_in(&mut world, first);
    for n in 0..5 {
        world.finish("a", Ok(value(n)));
    }
    let late = world.with("a", |session, _| session.late_results()).unwrap();
    let kept: Vec<_> = late.iter().map(|it| it.result.as_ref().as_ref().unwrap().clone()).collect();
    assert_eq!(kept, [value(2), value(3), value(4)], "the oldest records are dropped");
    assert_eq!(world.count("a", "late_dropped"), 2);

    let next = turn(&mut world);
    world.call("a", request("report").turn(next)).unwrap();
    barge_in(&mut world, next);
    world.finish("a", Ok(Value::encode(&"x".repeat(90)).unwrap()));
    let late = world.with("a", |session, _| session.late_results()).unwrap();
    assert_eq!(late.len(), 1, "those that were taken leave room");

    let second = turn(&mut world);
    world.call("a", request("report").turn(second)).unwrap();
    barge_in(&mut world, second);
    world.finish("a", Ok(Value::encode(&"x".repeat(101)).unwrap()));
    let late = world.with("a", |session, _| session.late_results()).unwrap();
    let Err(CallError::Tool(error)) = &*late[0].result else { panic!("{late:?}") };
    assert_eq!(error.message(), "the late result has 103 bytes; the limit is 100");

    let oldest = turn(&mut world);
    for _ in 0..256 {
        turn(&mut world);
    }
    let error = world.call("a", request("report").turn(oldest)).unwrap_err();
    assert!(matches!(error, CallError::TurnOver));
}

#[test]
fn stop_without_a_target_stops_cancel_tools_on_both_sides() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    world.client("phone", Config::default(), &[]);
    offer(&mut world, "phone");
    let tv = world.sid();
    world.play(&Participant::new("tv", tv).role(Role::Client).allowed_to_stop(true));
    world.run(200 * MS);
    let keys = ["cancel", "finish", "report"].map(|tool| world.call("a", request(tool)).unwrap());
    world.run(100 * MS);
    world.send("tv", &["a"], &Meta::new(), &Message::Configuration(Default::default()));
    world.send("tv", &["a"], &Meta::new(), &Message::ControlStop(ControlStop::default()));
    world.run(100 * MS);
    assert!(matches!(world.settled("a", keys[0]), Some(Err(CallError::Cancelled))));
    assert!(world.settled("a", keys[1]).is_none() && world.settled("a", keys[2]).is_none());

    // A plain assistant says it to a client.
    let mut world = World::new();
    let sid = world.sid();
    world.play(&Participant::new("a", sid).agent(true));
    world.client("phone", Config::default(), &[]);
    offer(&mut world, "phone");
    world.run(100 * MS);
    for (n, tool) in ["cancel", "finish", "report"].into_iter().enumerate() {
        let request = toolbridge::frame::ToolUseRequest::new(
            format!("call-{n}").parse().unwrap(),
            tool,
            Value::empty(),
            Ok(toolbridge::tools::Execution::Client),
        );
        world.send("a", &["phone"], &Meta::new(), &Message::ToolUseRequest(request));
    }
    world.run(100 * MS);
    assert_eq!(world.ends["phone"].jobs.len(), 3);
    world.send("a", &["phone"], &Meta::new(), &Message::ControlStop(ControlStop::default()));
    world.run(100 * MS);
    assert_eq!(world.ends["phone"].aborted, [world.ends["phone"].jobs[0].key]);
}

#[test]
fn call_log_follows_each_call_to_its_one_outcome() {
    let mut world = pair();
    let first = turn(&mut world);
    let key = world.call("a", Request::new("cancel", value(300)).turn(first)).unwrap();
    let id = world.session("a").call_id(key).unwrap().clone();
    let of = |world: &World, name: &str| world.session(name).record(&id).cloned();
    assert_eq!(of(&world, "a").unwrap().state(), CallState::Requested);
    world.begins = false;
    world.run(100 * MS);
    assert_eq!(of(&world, "a").unwrap().state(), CallState::Delivered);
    assert_eq!(of(&world, "phone").unwrap().state(), CallState::Delivered);
    let job = world.ends["phone"].jobs[0].key;
    world.with("phone", |session, now| session.progress(now, job, toolbridge::Progress::started()));
    world.run(100 * MS);
    assert_eq!(of(&world, "a").unwrap().state(), CallState::Started);
    world.finish("phone", Ok(value(5)));
    world.run(100 * MS);
    for (name, turn) in [("a", Some(first)), ("phone", None)] {
        let record = of(&world, name).unwrap();
        assert_eq!((record.state(), &record.outcome), (CallState::Settled, &Some(Ok(()))));
        assert_eq!((record.caller.as_str(), record.owner.unwrap().as_str()), ("a", "phone"));
        assert_eq!((record.request_bytes, record.result_bytes), (6, Some(4)));
        assert_eq!((record.turn, record.late), (turn, None));
        let times = [Some(record.requested), record.delivered, record.started, record.settled];
        assert!(times.is_sorted() && times.iter().all(Option::is_some));
    }
}

#[test]
fn call_log_is_bounded_and_closes_with_the_session() {
    let mut world = World::new();
    let mut config = Config::default();
    config.caps.calls.call_log = 4;
    world.assistant("a", config);
    offer(&mut world, "a");
    world.handle("a", |job| (job.tool.as_str() == "cancel").then(|| Ok(value(1))));
    for _ in 0..10 {
        world.call("a", request("cancel")).unwrap();
    }
    world.call("a", request("finish")).unwrap();
    let waiting = world.call("a", request("nobody_offers_this")).unwrap();
    let records = world.session("a").records();
    assert_eq!(records.len(), 6);
    assert!(records[..4].iter().all(|it| it.outcome == Some(Ok(()))));
    assert!(records[4..].iter().all(|it| it.outcome.is_none()));
    assert!(records[5].owner.is_none() || records[4].owner.is_none());
    world.with("a", |session, now| session.cancel(now, waiting));
    world.with("a", |session, now| session.close(now));
    let records = world.session("a").records();
    assert!(records.iter().all(|it| it.state() == CallState::Settled), "{records:?}");
}

#[test]
fn client_repeats_its_stop_until_the_assistant_acknowledges_it() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    offer(&mut world, "a");
    world.client("tv", Config::default(), &[]);
    world.allow_stop("tv");
    assert!(matches!(
        world.with("tv", |session, now| session.ask_to_stop(now, None)).unwrap(),
        Err(toolbridge::session::StopError::NoAssistant)
    ));
    world.run(SECOND);
    let keys = ["cancel", "cancel", "report"].map(|tool| world.call("a", request(tool)).unwrap());
    let id = world.session("a").call_id(keys[1]).unwrap().clone();
    world.run(100 * MS);
    world.with("tv", |session, now| session.ask_to_stop(now, Some(&id))).unwrap().unwrap();
    world.run(100 * MS);
    assert!(matches!(world.settled("a", keys[1]), Some(Err(CallError::Cancelled))));
    assert!(world.settled("a", keys[0]).is_none());

    // A lost stop is sent again when both have shaken hands again, and then no more.
    world.ends.get_mut("a").unwrap().here = false;
    world.with("tv", |session, now| session.ask_to_stop(now, None)).unwrap().unwrap();
    world.run(100 * MS);
    world.ends.get_mut("a").unwrap().here = true;
    assert!(world.settled("a", keys[0]).is_none());
    world.rejoin("tv");
    world.run(SECOND);
    assert!(matches!(world.settled("a", keys[0]), Some(Err(CallError::Cancelled))));
    assert!(world.settled("a", keys[2]).is_none(), "a tool without `cancel` continues");
    world.rejoin("tv");
    world.run(SECOND);
    assert_eq!(stops(&world, "tv"), 3, "the first stop, the lost one, and its repetition");
    assert_eq!(world.count("a", "not_permitted"), 0);
}

#[test]
fn stopped_tool_gets_the_reason() {
    let mut world = pair();
    let short = tool("short").options(ToolOptions::default().timeout(SECOND));
    world.with("a", |session, now| session.offer(now, vec![tool("own")])).unwrap().unwrap();
    world.with("phone", |session, now| session.offer(now, vec![tool("cancel"), short])).unwrap().unwrap();
    world.run(200 * MS);
    let mut late = Vec::new();
    for tool in ["cancel", "own"] {
        let key = world.call("a", request(tool)).unwrap();
        world.run(100 * MS);
        world.with("a", |session, now| session.cancel(now, key));
        let turn = turn(&mut world);
        call(&mut world, turn, tool);
        world.run(100 * MS);
        barge_in(&mut world, turn);
        late.push(world.call("a", request(tool).timeout(SECOND)).unwrap());
        world.run(2 * SECOND);
    }
    late.push(world.call("a", request("short")).unwrap());
    world.run(2 * SECOND);
    for key in late {
        let result = world.settled("a", key).unwrap();
        assert!(matches!(result, Err(CallError::Timeout { .. })), "{result:?}");
    }
    let three = [StopReason::Caller, StopReason::BargeIn, StopReason::Deadline];
    assert_eq!(world.ends["a"].reasons, three);
    assert_eq!(world.ends["phone"].reasons, [&three[..], &[StopReason::Deadline]].concat());
}

#[test]
fn departure_is_the_reason_of_a_stop() {
    for (name, reason) in [("a", StopReason::CallerGone), ("phone", StopReason::Leaving)] {
        let mut world = pair();
        world.call("a", request("cancel")).unwrap();
        world.run(100 * MS);
        world.with(name, |session, now| session.close(now));
        world.run(SECOND);
        assert_eq!(world.ends["phone"].reasons, [reason]);
    }
}

#[test]
fn owner_that_returns_after_its_call_was_lost_reads_so() {
    let mut world = pair();
    let key = world.call("a", request("cancel").timeout(60 * SECOND)).unwrap();
    world.run(100 * MS);
    world.leave("phone");
    world.run(20 * SECOND);
    assert!(matches!(world.settled("a", key), Some(Err(CallError::Lost { .. }))));
    world.rejoin("phone");
    world.run(SECOND);
    assert_eq!(world.ends["phone"].reasons, [StopReason::Lost]);
}

#[test]
fn stop_without_a_known_reason_is_the_callers() {
    for (written, reason) in [
        (None, StopReason::Caller),
        (Some("words for people"), StopReason::Caller),
        (Some("barge_in"), StopReason::BargeIn),
    ] {
        let mut world = pair();
        let key = world.call("a", request("cancel")).unwrap();
        world.run(100 * MS);
        let call = world.session("a").call_id(key).unwrap().to_string();
        let reason_text = written.map(ToOwned::to_owned);
        let stop = with!(ControlStop::default(), target_id = Some(call), reason = reason_text);
        world.send("a", &["phone"], &Meta::new(), &Message::ControlStop(stop));
        world.run(100 * MS);
        assert_eq!(world.ends["phone"].reasons, [reason], "{written:?}");
    }
}

/// A failure says that nothing ran only if that is so, also one that takes the place of a late result.
#[test]
fn late_result_that_is_too_large_may_have_run() {
    for owner in ["a", "phone"] {
        let mut world = World::new();
        world.assistant("a", Config::default().streams(true));
        world.client("phone", Config::default().streams(true), &[]);
        offer(&mut world, owner);
        world.run(200 * MS);
        let first = turn(&mut world);
        call(&mut world, first, "report");
        world.run(100 * MS);
        barge_in(&mut world, first);
        world.finish(owner, Ok(Value::encode(&"x".repeat(300_000)).unwrap()));
        world.run(SECOND);
        let late = world.with("a", |session, _| session.late_results()).unwrap();
        let Err(error) = &*late[0].result else { panic!("{late:?}") };
        assert!(error.code() == ErrorCode::RESULT_TOO_LARGE && error.may_have_run(), "{owner}: {error}");
    }
}

/// After an interruption nothing starts: a question for the assistant's own tool is withdrawn, whatever its rule.
#[test]
fn barge_in_withdraws_the_question_for_a_tool_that_has_not_started() {
    for rule in [BargeIn::Cancel, BargeIn::Finish, BargeIn::Report] {
        let mut world = World::new();
        world.assistant("a", Config::default().consent_available(true));
        let options = ToolOptions::default().barge_in(rule).consent(toolbridge::Consent::Always);
        world
            .with("a", |session, now| session.offer(now, vec![tool("erase").options(options)]))
            .unwrap()
            .unwrap();
        world.run(200 * MS);
        let first = turn(&mut world);
        let key = call(&mut world, first, "erase");
        let question = world.question("a").expect("a question");
        barge_in(&mut world, first);
        assert!(matches!(world.settled("a", key), Some(Err(CallError::Cancelled))), "{rule:?}");
        world.with("a", |session, now| session.consent(now, question.key, true));
        assert!(world.executed.is_empty(), "{rule:?}");
    }
}

/// The same for a request that has not left: it is not sent after the interruption.
#[test]
fn barge_in_cancels_a_call_whose_request_was_not_sent() {
    let mut world = pair();
    let first = turn(&mut world);
    world.unsent = SendFailure::Interrupted;
    world.ends.get_mut("a").unwrap().here = false; // its packets return as not sent
    let key = call(&mut world, first, "finish");
    barge_in(&mut world, first);
    assert!(matches!(world.settled("a", key), Some(Err(CallError::Cancelled))));
    world.ends.get_mut("a").unwrap().here = true;
    world.run(5 * SECOND);
    assert!(world.executed.is_empty());
}

/// A stop of all calls ends those whose callers wait, and not one that a barge-in left running, even if its tool, which
/// says so, was withdrawn since.
#[test]
fn stop_of_all_calls_leaves_what_a_barge_in_left_running() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    offer(&mut world, "a");
    let sid = world.sid();
    world.play(&Participant::new("phone", sid).role(Role::Client));
    world.run(200 * MS);
    let first = turn(&mut world);
    call(&mut world, first, "finish");
    barge_in(&mut world, first);
    world.with("a", |session, now| session.offer(now, vec![])).unwrap().unwrap();
    world.allow_stop("phone");
    world.run(200 * MS);
    world.send("phone", &["a"], &Meta::new(), &Message::Configuration(Configuration::default()));
    world.send("phone", &["a"], &Meta::new(), &Message::ControlStop(ControlStop::default()));
    world.run(SECOND);
    assert_eq!((world.ends["a"].aborted.len(), world.session("a").open_calls()), (0, 1));
}

/// A client repeats after a rejoin what was not acknowledged, in the order in which it was sent.
#[test]
fn repeated_stops_of_all_calls_end_nothing_that_began_since() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    offer(&mut world, "a");
    let joins = |world: &mut World| {
        let sid = world.sid();
        world.play(&Participant::new("tv", sid).role(Role::Client).allowed_to_stop(true));
        world.run(200 * MS);
        let shown = world.shows("tv", "a", "tv");
        world.send("tv", &["a"], &shown, &Message::Configuration(Configuration::default()));
        world.run(200 * MS);
    };
    let stops = |world: &mut World, stanza| {
        let stop = Message::ControlStop(ControlStop::default());
        let bytes = Frame::write(stanza, "room", &Meta::new(), &stop).unwrap();
        world.send_bytes("tv", &["a"], &bytes);
        world.run(100 * MS);
    };
    joins(&mut world);
    let before = world.call("a", request("cancel")).unwrap();
    for stanza in [50, 90] {
        stops(&mut world, stanza);
    }
    assert!(world.settled("a", before).is_some());
    let since = world.call("a", request("cancel")).unwrap();
    world.leave("tv");
    joins(&mut world);
    for stanza in [50, 90] {
        stops(&mut world, stanza);
    }
    assert!(world.settled("a", since).is_none(), "{:?}", world.settled("a", since));
    stops(&mut world, 91);
    assert!(world.settled("a", since).is_some());
}
