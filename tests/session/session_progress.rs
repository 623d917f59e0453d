//! The order and the rate of progress and of views, on virtual time.

#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::time::Duration;

use toolbridge::{BargeIn, Config, Event, Progress, ToolOptions, Value};

use crate::session_world::{MS, SECOND, World, request, tool};

const NS: Duration = Duration::from_nanos(1);

/// Reports this many updates at this interval. Returns their numbers in the order in which the caller reads them.
fn progress_seen(lossy: bool, every: Duration, count: u32) -> Vec<u32> {
    let mut world = World::new();
    world.assistant("a", Config::default().lossy(lossy));
    world.client("phone", Config::default().lossy(lossy), &["steps"]);
    world.run(SECOND);
    world.call("a", request("steps")).unwrap();
    world.run(world.delay);
    let job = world.ends["phone"].jobs[0].key;
    for n in 1..=count {
        let progress = Progress::started().message(n.to_string());
        world.with("phone", |session, now| session.progress(now, job, progress));
        // The next update comes before the timers that are due at the same time.
        world.run(every.saturating_sub(NS));
        world.now += every.min(NS);
    }
    world.finish("phone", Ok(Value::empty()));
    world.run(SECOND);
    world.ends["a"].events.iter().filter_map(number).collect()
}

/// Returns the number that an update is.
fn number(event: &Event) -> Option<u32> {
    match event {
        Event::Progress { progress, .. } => progress.message.as_ref()?.parse().ok(),
        _ => None,
    }
}

#[test]
fn progress_arrives_in_order_at_any_interval() {
    for lossy in [false, true] {
        for every in [0, 1, 4, 5, 6, 20, 50, 95, 99, 100, 101, 105, 200, 1_000] {
            let numbers = progress_seen(lossy, every * MS, 6);
            assert!(numbers.is_sorted(), "every {every} ms: {numbers:?}");
            assert_eq!(numbers.last(), Some(&6), "every {every} ms: the last is always sent");
        }
    }
}

#[test]
fn progress_at_the_interval_of_the_limit_is_not_dropped() {
    for lossy in [false, true] {
        let numbers = progress_seen(lossy, 100 * MS, 6);
        assert_eq!(numbers, [1, 2, 3, 4, 5, 6]);
    }
}

/// Updates that a stalled network delivers at once are more than the caller reports in a second: the last one says what
/// is true now.
#[test]
fn last_update_after_a_stall_is_reported_within_a_second_and_before_the_result() {
    for wait in [SECOND, Duration::ZERO] {
        let mut world = World::pair(&["steps"]);
        world.call("a", request("steps")).unwrap();
        world.run(SECOND);
        let job = world.ends["phone"].jobs[0].key;
        world.delay = 3 * SECOND;
        for n in 1..=30 {
            let progress = Progress::started().message(n.to_string());
            world.with("phone", |session, now| session.progress(now, job, progress));
            world.delay = 20 * MS; // those behind the first wait for it
            world.run(100 * MS);
        }
        world.run(wait + world.delay);
        let numbers = |world: &World| world.ends["a"].events.iter().filter_map(number).collect::<Vec<_>>();
        assert_eq!(numbers(&world).last() == Some(&30), wait == SECOND, "it came too soon after the others");
        world.finish("phone", Ok(Value::empty()));
        world.run(2 * world.delay);
        let seen = numbers(&world);
        assert!(seen.last() == Some(&30) && seen.is_sorted() && seen.len() <= 21, "{seen:?}");
        let events = &world.ends["a"].events;
        let last = events.iter().rposition(|event| number(event).is_some());
        assert!(last < events.iter().position(|event| matches!(event, Event::Settled { .. })));
    }
}

/// A barge-in ends the call for its caller, and the tool goes on.
#[test]
fn last_update_is_reported_before_a_barge_in_ends_the_call() {
    let mut world = World::new();
    let mut config = Config::default();
    config.caps.requests.progress_per_second = 1;
    world.assistant("a", config);
    world.client("phone", Config::default(), &[]);
    let options = ToolOptions::default().barge_in(BargeIn::Finish);
    world
        .with("phone", |session, now| session.offer(now, vec![tool("steps").options(options)]))
        .unwrap()
        .unwrap();
    world.run(SECOND);
    let turn = world.with("a", |session, _| session.turn()).unwrap();
    world.call("a", request("steps").turn(turn)).unwrap();
    world.run(SECOND);
    let job = world.ends["phone"].jobs[0].key;
    for n in 1..=5 {
        let progress = Progress::started().message(n.to_string());
        world.with("phone", |session, now| session.progress(now, job, progress));
        world.run(100 * MS);
    }
    world.with("a", |session, now| session.barge_in(now, turn)).unwrap();
    let events = &world.ends["a"].events;
    assert_eq!(events.iter().filter_map(number).collect::<Vec<_>>(), [1, 2, 3, 5]);
    assert!(matches!(events.last(), Some(Event::Settled { .. })));
}

#[test]
fn view_that_is_shown_when_a_held_state_is_due_is_sent_once() {
    let mut world = World::pair(&["t"]);
    let show = |world: &mut World, n: i64| {
        let content = Value::from(serde_json::json!(n));
        world.with("a", |session, now| session.show_view(now, "load", content, None)).unwrap().unwrap();
    };
    for n in 1..=3 {
        show(&mut world, n);
    }
    world.now += 100 * MS; // the held state is due, and its timer is not handled yet
    show(&mut world, 4);
    world.run(SECOND);
    let seen: Vec<_> =
        world.ends["phone"].events.iter().filter(|event| matches!(event, Event::View { .. })).collect();
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert!(matches!(seen[1], Event::View { view, .. } if view.content.to_json() == 4));
}
