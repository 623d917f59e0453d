//! Whole calls between two sessions: how they begin, and every way in which they end.

use std::time::Duration;

use toolbridge::{
    Body, CallError, Config, ErrorCode, Event, Participant, Request, Role, ToolError, Unsent,
    session::{Caps, Times},
    wire::{Kind, Message},
};

use crate::session_world::{MS, SECOND, World, request, tool, value};

#[test]
fn a_call_crosses_and_comes_back() {
    let mut world = World::pair(&["get_battery"]);
    assert_eq!(world.session("phone").bound().unwrap(), "a");
    assert_eq!(world.session("a").tools().len(), 1);
    world.handle("phone", |job| Some(Ok(job.arguments.clone())));
    let answer = world.ask("a", Request::new("get_battery", value(7))).unwrap();
    assert_eq!(answer, value(7));
    world.run(SECOND);
    assert!(world.session("a").is_drained() && world.session("phone").is_drained());
}

#[test]
fn a_hung_tool_is_a_timeout() {
    let mut world = World::pair(&["hang"]);
    let error = world.ask("a", request("hang").timeout(2 * SECOND)).unwrap_err();
    assert!(matches!(error, CallError::Timeout { limit } if limit == 2 * SECOND), "{error:?}");
    world.run(SECOND);
    assert_eq!(world.ends["phone"].aborted.len(), 1, "the handler is told");
    assert!(world.session("phone").is_drained());
}

#[test]
fn a_cancelled_call_settles_at_once_and_its_handler_stops() {
    let mut world = World::pair(&["hang"]);
    let key = world.call("a", request("hang")).unwrap();
    world.run(100 * MS);
    assert_eq!(world.ends["phone"].jobs.len(), 1);
    world.with("a", |session, now| session.cancel(now, key));
    assert!(matches!(world.settled("a", key), Some(Err(CallError::Cancelled))));
    world.run(100 * MS);
    assert_eq!(world.ends["phone"].aborted.len(), 1);
    assert_eq!(world.count("a", "late"), 1, "the owner's answer comes, and is late");
}
