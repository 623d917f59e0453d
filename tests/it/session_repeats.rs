//! Frames that arrive again, late, out of order or after a gap: the call's id identifies them, not their stanza.

use toolbridge::{
    CallError, Config,
    frame::{Frame, Kind, Meta},
};

use crate::session_world::{MS, SECOND, World, request, value};

/// The same frame under another stanza.
fn under(stanza: i32, frame: &Frame) -> Vec<u8> {
    let meta =
        ["bridge.to", "traceparent"].into_iter().fold(Meta::new(), |meta, key| match frame.meta_str(key) {
            Some(text) => meta.with_text(key, text),
            None => meta,
        });
    let mut bytes = Vec::new();
    Frame::relay(&mut bytes, stanza, "room", &meta, frame.kind(), frame.body_bytes()).unwrap();
    bytes
}

/// What the two ends have run and reported.
fn activity(world: &World) -> [usize; 5] {
    let [a, phone] = [&world.ends["a"], &world.ends["phone"]];
    [
        world.executed.len(),
        phone.aborted.len(),
        a.settled.len(),
        world.session("a").open_calls(),
        world.session("phone").open_jobs(),
    ]
}

#[test]
fn protocol_a17_repeated_frames_have_no_effect_whatever_their_stanza() {
    let mut world = World::pair(&["quick", "stopped", "open"]);
    world.handle("phone", |job| (job.tool.as_str() == "quick").then(|| Ok(value(1))));
    world.call("a", request("quick")).unwrap();
    let stopped = world.call("a", request("stopped")).unwrap();
    let open = world.call("a", request("open").timeout(500 * SECOND)).unwrap();
    world.run(200 * MS);
    world.with("a", |session, now| session.cancel(now, stopped));
    world.run(200 * MS);
    let before = activity(&world);
    assert_eq!(before, [3, 1, 2, 1, 1]);

    let kinds = [Kind::TOOL_USE_REQUEST, Kind::TOOL_USE_RESULT, Kind::CONTROL_STOP, Kind::ACKNOWLEDGEMENT];
    let mut repeated = 0;
    for (from, to, sign) in [("a", "phone", -1), ("phone", "a", 1)] {
        let peer = world.ends[from].who.peer().clone();
        for kind in kinds {
            for (_, frame) in world.sent(from, kind) {
                // Unchanged, as the first, after a gap, and as the highest possible.
                let its = frame.stanza_id().unwrap();
                for stanza in [its, sign, its + sign * 1_000, sign * i32::MAX] {
                    world.send_bytes_as(&peer, &[to], &under(stanza, &frame));
                    world.run(30 * MS);
                    repeated += 1;
                }
            }
        }
    }
    assert!(repeated >= 4 * 10, "{repeated}");
    world.run(SECOND);
    assert_eq!(activity(&world), before);
    assert!(world.settled("a", open).is_none());
    for end in ["a", "phone"] {
        assert_eq!(world.count(end, "malformed") + world.count(end, "not_permitted"), 0);
    }
    assert!(world.count("phone", "duplicate") >= 12, "each request arrived four times");

    // The following stanzas are all lower than one that arrived: they are accepted normally.
    assert_eq!(world.ask("a", request("quick")).unwrap(), value(1));
    world.ends.get_mut("phone").unwrap().jobs.retain(|job| job.tool.as_str() == "open");
    world.finish("phone", Ok(value(2)));
    world.run(SECOND);
    assert_eq!(world.settled("a", open).unwrap().as_ref().unwrap(), &value(2));
}

#[test]
fn protocol_a17_gap_between_stanzas_is_accepted() {
    let mut world = World::pair(&["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    // Frames for other participants use stanzas too.
    world.stranger("x");
    world.run(SECOND);
    world.ask("a", request("t")).unwrap();
    for _ in 0..50 {
        let to = toolbridge::session::Destination::Peers(vec!["x".into()]);
        let body = toolbridge::Value::empty();
        world
            .with("a", |session, now| session.send(now, to.clone(), Kind::new(2), Meta::new(), body.clone()))
            .unwrap()
            .unwrap();
    }
    assert_eq!(world.ask("a", request("t")).unwrap(), value(1));
    let stanzas: Vec<_> =
        world.sent("a", Kind::TOOL_USE_REQUEST).iter().map(|(_, frame)| frame.stanza_id().unwrap()).collect();
    assert!(stanzas[0] - stanzas[1] > 50, "{stanzas:?}");
    assert_eq!(world.count("phone", "out_of_order"), 0);
}

/// Each of 64 cancelled calls has its request lost on the lossy lane, so that its stop arrives first.
fn after_64_quick_cancels() -> World {
    let mut world = World::new();
    world.assistant("a", Config::default().lossy(true));
    world.client("phone", Config::default().lossy(true), &["t"]);
    world.run(SECOND);
    world.handle("phone", |_| None);
    world.lossy.lose = Some(Box::new(|_, _, frame| frame.kind() == Kind::TOOL_USE_REQUEST));
    for _ in 0..64 {
        let key = world.call("a", request("t")).unwrap();
        world.with("a", |session, now| session.cancel(now, key));
        world.run(100 * MS);
    }
    world.lossy.lose = None;
    world.run(5 * SECOND);
    world
}

#[test]
fn call_cancelled_after_64_quick_cancels_never_starts() {
    let mut world = after_64_quick_cancels();
    world.delay = 60 * MS;
    let key = world.call("a", request("t")).unwrap();
    world.delay = 10 * MS; // its stop overtakes it
    world.with("a", |session, now| session.cancel(now, key));
    world.run(20 * SECOND);
    assert!(matches!(world.settled("a", key), Some(Err(CallError::Cancelled))));
    assert_eq!((world.executed.len(), world.session("phone").open_jobs()), (0, 0));
}

#[test]
fn call_after_64_quick_cancels_runs() {
    let mut world = after_64_quick_cancels();
    world.handle("phone", |_| Some(Ok(value(1))));
    assert_eq!(world.ask("a", request("t")).unwrap(), value(1));
}

#[test]
fn first_of_65_quick_cancels_never_starts_however_late_its_request() {
    let mut world = World::new();
    world.assistant("a", Config::default().lossy(true));
    world.client("phone", Config::default().lossy(true), &["t"]);
    world.run(SECOND);
    world.handle("phone", |_| None);
    world.lossy.lose = Some(Box::new(|_, _, frame| frame.kind() == Kind::TOOL_USE_REQUEST));
    for _ in 0..65 {
        let key = world.call("a", request("t")).unwrap();
        world.with("a", |session, now| session.cancel(now, key));
        world.run(100 * MS);
    }
    let requests = world.sent("a", Kind::TOOL_USE_REQUEST);
    for (_, frame) in [&requests[0], &requests[64]] {
        world.send_bytes("a", &["phone"], &frame.to_bytes());
        world.run(SECOND);
    }
    assert_eq!(world.executed.len(), 0);
}
