//! Calls that another system makes and an assistant reports, on virtual time.

#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use serde_json::json;
use toolbridge::{
    CallId, Config, Event, Progress, Role, ToolError, Value,
    frame::{ControlStop, Kind, Message, Meta},
    session::{CallState, JobKey, Request},
    tools::ReportError,
    transport::Participant,
};

use crate::{
    session_disclosure::recorded,
    session_world::{MS, SECOND, World, value},
};

/// An assistant, a client, and an observer.
fn room() -> World {
    let mut world = World::new();
    world.notes = Some(Vec::new());
    world.assistant("a", Config::default());
    world.client("phone", Config::default(), &["t"]);
    let sid = world.sid();
    world.play(&Participant::new("watch", sid).role(Role::Observer));
    world.run(SECOND);
    world
}

fn report(world: &mut World, tool: &str) -> Result<(JobKey, CallId), ReportError> {
    let request = Request::new(tool, Value::from(json!({"path": "/srv/notes.md"})));
    world.with("a", |session, now| session.report(now, request)).unwrap()
}

fn settle(world: &mut World, job: JobKey, outcome: toolbridge::Outcome) {
    world.with("a", |session, now| session.settle(now, job, outcome));
}

#[test]
fn reported_call_is_seen_by_all_and_run_by_nobody() {
    let mut world = room();
    let (job, id) = report(&mut world, "edit_file").unwrap();
    for text in ["one", "two"] {
        world.run(SECOND);
        world.with("a", |session, now| session.progress(now, job, Progress::from(text)));
    }
    world.run(SECOND);
    settle(&mut world, job, Ok(value(3)));
    world.run(SECOND);

    let [Message::ToolUseRequest(request)] = &world.received("watch", Kind::TOOL_USE_REQUEST)[..] else {
        panic!("one request")
    };
    assert_eq!((request.tool_name.as_str(), request.timeout_ms), ("edit_file", Some(600_000)));
    assert_eq!(world.received("watch", Kind::TOOL_PROGRESS).len(), 2);
    assert_eq!(world.received("watch", Kind::TOOL_USE_RESULT).len(), 1);
    let (_, frame) = world.sent("a", Kind::TOOL_USE_REQUEST).pop().unwrap();
    assert!(frame.meta_bool("bridge.reported"));

    assert!(world.ends["a"].jobs.is_empty() && world.ends["phone"].jobs.is_empty(), "nothing runs");
    let record = world.session("a").record(&id).unwrap().clone();
    assert_eq!((record.state(), record.outcome), (CallState::Settled, Some(Ok(()))));
    let settled = |it: &&Event| matches!(it, Event::Settled { call, outcome: Ok(()), .. } if *call == id);
    for name in ["a", "phone"] {
        assert_eq!(world.ends[name].events.iter().filter(settled).count(), 1, "{name}");
    }
    assert!(world.session("a").tools().iter().all(|offer| offer.tool.name().as_str() == "t"), "not offered");
    recorded(&world);
}

#[test]
fn reported_failure_has_its_code_and_a_second_outcome_has_no_effect() {
    let mut world = room();
    let (job, id) = report(&mut world, "edit_file").unwrap();
    settle(&mut world, job, Err(ToolError::new("disk_full", "no space").with_partial(value(1))));
    settle(&mut world, job, Ok(value(2)));
    world.run(SECOND);
    let [Message::ToolUseResult(result)] = &world.received("watch", Kind::TOOL_USE_RESULT)[..] else {
        panic!("one result")
    };
    assert_eq!((result.id.clone(), result.success), (id, false));
    assert_eq!(result.error_code.as_ref().map(|it| it.as_str()), Some("disk_full"));
    recorded(&world);
}

#[test]
fn reported_call_without_an_end_times_out() {
    let mut world = room();
    let (_, id) = report(&mut world, "edit_file").unwrap();
    world.run(601 * SECOND);
    let record = world.session("a").record(&id).unwrap();
    assert_eq!(record.outcome, Some(Err(toolbridge::ErrorCode::TIMEOUT)));
    assert_eq!((world.session("a").open_calls(), world.session("a").open_jobs()), (0, 0));
}

#[test]
fn stop_of_everything_ends_reported_calls() {
    let mut world = World::new();
    world.notes = Some(Vec::new());
    world.assistant("a", Config::default());
    let tv = world.sid();
    world.play(&Participant::new("tv", tv).role(Role::Client).allowed_to_stop(true));
    world.run(SECOND);
    let (job, id) = report(&mut world, "edit_file").unwrap();
    world.run(MS);
    world.send(
        "tv",
        &["a"],
        &Meta::new(),
        &Message::Configuration(toolbridge::frame::Configuration::default()),
    );
    world.send("tv", &["a"], &Meta::new(), &Message::ControlStop(ControlStop::default()));
    world.run(SECOND);
    settle(&mut world, job, Ok(value(1)));
    let record = world.session("a").record(&id).unwrap();
    assert_eq!(record.outcome, Some(Err(toolbridge::ErrorCode::CANCELLED)));
}

#[cfg(feature = "runtime")]
#[test]
fn event_is_kept_for_the_model_with_the_call_that_it_names() {
    let mut world = room();
    let about = json!({"call": "c1", "tool": "watch_build"});
    let request = Request::new(toolbridge::ToolName::EVENT, Value::from(about.clone()));
    let (job, _) = world.with("a", |session, now| session.report(now, request)).unwrap().unwrap();
    settle(&mut world, job, Ok(Value::from(json!({"text": "the build failed"}))));
    let late = world.with("a", |session, _| session.late_results()).unwrap();
    assert_eq!(late.len(), 1);
    assert_eq!((&*late[0].tool, late[0].event.as_ref().unwrap().to_json()), ("bridge.event", about));
    let said = toolbridge::chat::note(&late[0])["content"].as_str().unwrap().to_owned();
    assert!(said.contains("watch_build") && said.contains("the build failed"), "{said}");

    let (job, _) = report(&mut world, "edit_file").unwrap();
    settle(&mut world, job, Ok(value(1)));
    let late = world.with("a", |session, _| session.late_results()).unwrap();
    assert!(late.is_empty(), "only events are for the model");
    recorded(&world);
}

#[test]
fn wrong_report_is_refused_and_sends_nothing() {
    let mut world = room();
    let before = world.sent("a", Kind::TOOL_USE_REQUEST).len();
    assert!(matches!(report(&mut world, "edit file"), Err(ReportError::Name(_))));
    assert!(matches!(report(&mut world, "bridge.permission"), Err(ReportError::Reserved { .. })));
    let list = Request::new("t", Value::encode(&[1]).unwrap());
    let refused = world.with("a", |session, now| session.report(now, list)).unwrap();
    assert!(matches!(refused, Err(ReportError::Arguments(_))));
    let long = Request::new("t", Value::from(json!({"text": "x".repeat(256 * 1024)})));
    let refused = world.with("a", |session, now| session.report(now, long)).unwrap();
    assert!(matches!(refused, Err(ReportError::TooLarge { limit: 262_144, .. })));
    let at_client = Request::new("t", Value::empty());
    let refused = world.with("phone", |session, now| session.report(now, at_client)).unwrap();
    assert_eq!(refused.unwrap_err(), ReportError::NotAnAssistant);
    world.run(SECOND);
    assert_eq!(world.sent("a", Kind::TOOL_USE_REQUEST).len(), before);
    assert_eq!(world.session("a").stats().named("report_refused"), 1);
}

#[test]
fn reports_are_limited_in_number_and_rate() {
    let mut world = room();
    for n in 0..50 {
        assert!(report(&mut world, "t2").is_ok(), "{n}");
    }
    assert_eq!(report(&mut world, "t2").unwrap_err(), ReportError::TooOften { limit: 50 });
    world.run(SECOND);
    for _ in 0..14 {
        report(&mut world, "t2").unwrap();
    }
    assert_eq!(report(&mut world, "t2").unwrap_err(), ReportError::TooMany { open: 64, limit: 64 });
    assert_eq!(world.session("a").stats().named("report_refused"), 2);
    let key = world.call("a", Request::new("t", Value::empty())).unwrap();
    world.run(SECOND);
    assert!(!world.ends["phone"].jobs.is_empty(), "calls go on: {key:?}");
}

#[test]
fn nobody_can_call_the_reserved_event() {
    let mut world = room();
    let refused =
        world.with("a", |session, now| session.call(now, Request::new("bridge.event", Value::empty())));
    assert!(matches!(refused.unwrap(), Err(toolbridge::CallError::UnknownTool { .. })));
}
