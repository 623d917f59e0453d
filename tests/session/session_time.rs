//! Time that does not pass for everybody: suspensions, outages, and deadlines that are asked for again.

use std::time::Duration;

use toolbridge::{
    Config, ConnectionState, Role, Times, ToolOptions,
    frame::{Configuration, Kind, Message, Meta, RegisteredTool, ToolsRegister},
    session::SendFailure,
    transport::{Lane, Participant, TransportEvent},
};

use crate::{
    session_lane::{lose, pair, took},
    session_world::{MS, SECOND, World, request, tool, value},
};

/// Each input before the late timers are handled sees the same suspension.
#[test]
fn suspension_postpones_the_grace_period_once_however_many_inputs_follow() {
    for inputs in [0, 1, 10] {
        let mut world = World::pair(&["t"]);
        world.handle("phone", |_| Some(Ok(value(1))));
        world.ask("a", request("t")).unwrap(); // remembered for 90 s, which a suspension does not prolong
        world.run(SECOND);
        world.leave("a");
        world.run(100 * MS);
        world.now += 3_600 * SECOND;
        for n in 0..inputs {
            let who = Participant::new("x", format!("PA_x{n}"));
            world.with("phone", |session, now| session.handle_event(now, TransportEvent::Joined(who)));
        }
        world.with("phone", |session, now| session.handle_timeout(now));
        assert!(world.session("phone").bound().is_some(), "{inputs} inputs");
        world.run(6 * SECOND);
        assert!(world.session("phone").bound().is_none(), "{inputs} inputs");
    }
}

/// It could not arrive meanwhile.
#[test]
fn registration_may_be_on_its_way_for_a_second_after_an_outage() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    let sid = world.sid();
    world.play(&Participant::new("phone", sid).role(Role::Client));
    world.run(SECOND);
    let features = Some(["tool_use", "tool_register"].map(str::to_owned).to_vec());
    let configuration = Message::Configuration(with!(Configuration::default(), features = features));
    world.send("phone", &["a"], &world.shows("phone", "a", "phone"), &configuration);
    world.run(10 * SECOND);
    for state in [ConnectionState::Reconnecting, ConnectionState::Connected] {
        world.with("a", |it, now| it.handle_event(now, TransportEvent::ConnectionState(state)));
        world.now += SECOND;
    }
    world.now -= SECOND;
    world.call("a", request("t").owner_wait(MS)).unwrap();
    world.run(700 * MS);
    let tool = with!(RegisteredTool::default(), name = "t".to_owned());
    let offered = Message::ToolsRegister(with!(ToolsRegister::default(), tools = vec![tool]));
    world.send("phone", &["a"], &Meta::new(), &offered);
    world.run(SECOND);
    assert_eq!(world.received("phone", Kind::TOOL_USE_REQUEST).len(), 1);
}

#[test]
fn refused_results_are_sent_after_a_second_whatever_else_is_refused() {
    let mut world = World::pair(&["t"]);
    world.unsent = SendFailure::QueueFull;
    let keys: Vec<_> = (0..10).map(|_| world.call("a", request("t")).unwrap()).collect();
    world.run(100 * MS);
    for _ in 0..10 {
        world.ends.get_mut("phone").unwrap().here = false;
        world.finish("phone", Ok(value(1))); // there is no room for its packet, and then for all others
        world.ends.get_mut("phone").unwrap().here = true;
        world.run(500 * MS);
    }
    let settled = keys.iter().filter(|key| world.settled("a", **key).is_some()).count();
    assert!(settled >= 7, "{settled} results have arrived after 5 s");
}

/// How long a call takes whose first packet is lost, after a call that was interrupted for this time.
fn lost_request_after(interrupt: impl Fn(&mut World)) -> Duration {
    let mut world = pair();
    for _ in 0..20 {
        took(&mut world);
        world.run(SECOND);
    }
    world.call("a", request("t")).unwrap();
    interrupt(&mut world);
    world.run(SECOND);
    let mut first = true;
    lose(&mut world, move |name, lane, frame| {
        let is_it = name == "a" && lane == Lane::Lossy && frame.kind() == Kind::TOOL_USE_REQUEST;
        is_it && std::mem::take(&mut first)
    });
    took(&mut world)
}

#[test]
fn outage_and_suspension_are_no_round_trips() {
    let becomes = |world: &mut World, state| {
        world.with("a", |it, now| it.handle_event(now, TransportEvent::ConnectionState(state)));
    };
    assert_eq!(lost_request_after(|_| {}), 100 * MS);
    let outage = lost_request_after(|world| {
        becomes(world, ConnectionState::Reconnecting);
        world.now += 5 * SECOND;
        becomes(world, ConnectionState::Connected);
    });
    assert_eq!(outage, 100 * MS, "after an outage");
    let suspension = lost_request_after(|world| {
        world.now += 5 * SECOND;
        world.with("a", |session, now| session.handle_timeout(now));
    });
    assert_eq!(suspension, 100 * MS, "after a suspension");
}

#[test]
fn times_without_end_overflow_nothing() {
    let mut times = Times::default();
    for time in [
        &mut times.call,
        &mut times.longest_call,
        &mut times.owner_wait,
        &mut times.grace,
        &mut times.heartbeat,
        &mut times.memory,
        &mut times.hold,
        &mut times.rpc_silence,
        &mut times.announcement,
        &mut times.stream_idle,
        &mut times.stream,
        &mut times.claim,
        &mut times.denial,
    ] {
        *time = Duration::MAX;
    }
    for silence in [SECOND, Duration::MAX] {
        times.silence = silence;
        let_time_pass(Config::default().times(times.clone()));
    }
}

fn let_time_pass(config: Config) {
    let mut world = World::new();
    let config = config.consent_available(true);
    world.assistant("a", config.clone());
    world.client("phone", config.clone(), &["t"]);
    world.client("b", config.assistant("a"), &["u"]);
    world.run(SECOND);
    let asking = tool("ask").options(ToolOptions::destructive().timeout(Duration::MAX));
    world.with("phone", |session, now| session.offer(now, vec![tool("t"), asking])).unwrap().unwrap();
    world.run(SECOND);
    for name in ["t", "ask", "u", "nothing"] {
        world.call("a", request(name).timeout(3 * 3_600 * SECOND)).unwrap();
    }
    world.run(20 * SECOND);
    world.leave("b");
    for state in [ConnectionState::Reconnecting, ConnectionState::Connected] {
        world.with("a", |session, now| session.handle_event(now, TransportEvent::ConnectionState(state)));
        world.run(20 * SECOND);
    }
    world.now += 3_600 * SECOND; // the process was suspended
    world.run(20 * SECOND);
    world.rejoin("phone");
    world.run(20 * SECOND);
    assert_eq!((world.ends["phone"].jobs.len(), world.ends["phone"].questions.len()), (1, 1));
}
