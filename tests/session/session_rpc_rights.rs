//! Rights of callers by RPC belong to a join, as those of callers by frames do.

use toolbridge::{
    Identity, Role,
    frame::{Configuration, ControlStop, Frame, Message, Meta, ToolUseRequest},
    tools::Execution,
};

use super::*;
use crate::session_world::Key;

fn frame_of(who: &Peer, stanza: i32, meta: &Meta, message: &Message) -> TransportEvent {
    let bytes = Frame::write(stanza, "room", meta, message).unwrap();
    TransportEvent::packet(who.clone(), Lane::Reliable, bytes)
}

/// Sends the Configuration of a process with this name, which proves that it is the same one over its joins.
fn shows(callee: &mut Callee, who: &Peer, process: &str) {
    let theirs = callee.frames.iter().find(|it| it.kind() == Kind::CONFIGURATION);
    let meta = Key::of(process).shows_to(theirs, who, true);
    let features = ["tool_use", "tool_register", "tool_ack", "tool_claim"].map(String::from).to_vec();
    let it = Message::Configuration(with!(Configuration::default(), features = Some(features)));
    callee.handle(frame_of(who, -1, &meta, &it));
}

fn says_goodbye(callee: &mut Callee, who: &Peer) {
    let bye = with!(ControlStop::default(), stop_type = Some("all".to_owned()));
    let meta = Meta::new().with_bool("bridge.bye", true);
    callee.handle(frame_of(who, -3, &meta, &Message::ControlStop(bye)));
}

fn callee(config: Config) -> Callee {
    Callee::new(config.answer_rpc().room("room"))
}

/// A callee whose tool `erase` asks a person once, and the consent for the assistant's first join.
fn consented(instance: Option<&str>) -> Callee {
    let mut callee = callee(Config::default().consent_available(true));
    let erase = Tool::new("erase".parse().unwrap(), "");
    let options = ToolOptions::default().consent(Consent::OncePerSession);
    callee.session.offer(callee.now, vec![erase.options(options)]).unwrap();
    callee.join(agent("PA_1"));
    if let Some(instance) = instance {
        shows(&mut callee, &peer("agent", "PA_1"), instance);
    }
    callee.call(&peer("agent", "PA_1"), "r1", "erase", "{}");
    let question = callee.questions.pop().expect("a question");
    callee.session.consent(callee.now, question.key, true);
    callee.drain();
    callee.settle(Ok(Value::empty()));
    callee.call(&peer("agent", "PA_1"), "again", "erase", "{}");
    assert_eq!(callee.questions.len(), 0, "once per session");
    callee.settle(Ok(Value::empty()));
    callee
}

#[test]
fn consent_is_not_inherited_by_another_join_that_calls_by_rpc() {
    for (instance, gap) in [(Some("i1"), 3600 * SECOND), (Some("i1"), SECOND), (None, SECOND)] {
        let mut callee = consented(instance);
        callee.handle(TransportEvent::Left(peer("agent", "PA_1")));
        callee.pass(gap);
        callee.join(agent("PA_2"));
        callee.call(&peer("agent", "PA_2"), "r2", "erase", "{}");
        assert_eq!((callee.questions.len(), callee.jobs.len()), (1, 0), "{instance:?} {gap:?}");
    }
}

#[test]
fn assistant_by_rpc_alone_whose_role_is_withdrawn_is_unbound_and_its_calls_end() {
    let mut callee = callee(Config::default());
    let who = Participant::new("agent", "PA_1").role(Role::Assistant);
    callee.join(who.clone());
    callee.call(&peer("agent", "PA_1"), "r1", "get_battery", "{}");
    assert_eq!((callee.jobs.len(), callee.session.bound().is_some()), (1, true));
    callee.join(who.clone().attributes::<&str, &str>([]));
    assert_eq!((callee.aborted, callee.session.bound()), (1, None));
    callee.jobs.clear();
    callee.call(&peer("agent", "PA_1"), "r2", "get_battery", "{}");
    assert!(callee.jobs.is_empty());
    callee.join(Participant::new("other", "PA_2").role(Role::Assistant));
    callee.call(&peer("other", "PA_2"), "r3", "get_battery", "{}");
    assert_eq!(callee.session.bound().map(Identity::as_str), Some("other"));
}

#[test]
fn job_of_a_departed_instance_ends_although_its_identity_calls_by_rpc() {
    for calls_again in [false, true] {
        let mut callee = callee(Config::default());
        callee.join(agent("PA_1"));
        let first = peer("agent", "PA_1");
        shows(&mut callee, &first, "i1");
        let it =
            ToolUseRequest::new("c1".parse().unwrap(), "get_battery", Value::empty(), Ok(Execution::Client));
        callee.handle(frame_of(&first, -2, &Meta::new(), &Message::ToolUseRequest(it)));
        assert_eq!(callee.jobs.len(), 1);
        callee.handle(TransportEvent::Left(first));
        callee.pass(SECOND);
        callee.join(agent("PA_2"));
        if calls_again {
            callee.call(&peer("agent", "PA_2"), "r1", "set_lamp", "{}");
            let job = callee.jobs.pop().unwrap();
            callee.session.settle(callee.now, job.key, Ok(Value::empty()));
            callee.drain();
        }
        callee.pass(10 * SECOND);
        assert_eq!(callee.aborted, 1, "{calls_again}");
    }
}

#[test]
fn result_of_a_departed_process_is_awaited_no_longer_although_its_identity_calls_by_rpc() {
    let mut callee = callee(Config::default());
    callee.join(agent("PA_1"));
    let first = peer("agent", "PA_1");
    shows(&mut callee, &first, "i1");
    let it = ToolUseRequest::new("c1".parse().unwrap(), "get_battery", Value::empty(), Ok(Execution::Client));
    callee.handle(frame_of(&first, -2, &Meta::new(), &Message::ToolUseRequest(it)));
    callee.settle(Ok(Value::empty()));
    callee.handle(TransportEvent::Left(first));
    callee.join(agent("PA_2"));
    for n in 0..3 {
        callee.call(&peer("agent", "PA_2"), &format!("r{n}"), "set_lamp", "{}");
        callee.settle(Ok(Value::empty()));
        assert_eq!(callee.session.is_drained(), n > 0, "{n}");
        callee.pass(10 * SECOND);
        assert!(callee.session.is_drained(), "{n}");
    }
}

#[test]
fn claim_of_a_departed_process_ends_although_its_identity_calls_by_rpc() {
    for says_bye in [false, true] {
        let mut config = Config::default();
        config.caps.calls.open_per_peer = 1;
        let mut callee = callee(config);
        callee.join(agent("PA_1"));
        let (first, second) = (peer("agent", "PA_1"), peer("agent", "PA_2"));
        shows(&mut callee, &first, "i1");
        let id = "c1".parse().unwrap();
        let it = ToolUseRequest::new(id, "get_battery", Value::empty(), Ok(Execution::Either));
        callee.handle(frame_of(&first, -2, &Meta::new(), &Message::ToolUseRequest(it)));
        assert_eq!(callee.jobs.len(), 0, "it waits for the answer to its claim");
        callee.handle(TransportEvent::Left(first.clone()));
        callee.join(agent("PA_2"));
        callee.call(&second, "r1", "set_lamp", "{}");
        assert_eq!((callee.jobs.len(), callee.count(Counter::Busy)), (0, 1));
        match says_bye {
            true => says_goodbye(&mut callee, &first),
            false => callee.pass(10 * SECOND),
        }
        callee.call(&second, "r2", "set_lamp", "{}");
        assert_eq!((callee.jobs.len(), callee.count(Counter::Busy)), (1, 1), "{says_bye}");
    }
}

#[test]
fn claim_of_a_process_that_returns_is_kept() {
    let mut config = Config::default();
    config.caps.calls.open_per_peer = 1;
    let mut callee = callee(config);
    callee.join(agent("PA_1"));
    shows(&mut callee, &peer("agent", "PA_1"), "i1");
    let it = ToolUseRequest::new("c1".parse().unwrap(), "get_battery", Value::empty(), Ok(Execution::Either));
    callee.handle(frame_of(&peer("agent", "PA_1"), -2, &Meta::new(), &Message::ToolUseRequest(it)));
    callee.handle(TransportEvent::Left(peer("agent", "PA_1")));
    callee.join(agent("PA_2"));
    shows(&mut callee, &peer("agent", "PA_2"), "i1");
    callee.pass(6 * SECOND);
    callee.call(&peer("agent", "PA_2"), "r1", "set_lamp", "{}");
    assert_eq!((callee.jobs.len(), callee.count(Counter::Busy)), (0, 1));
}

/// SDKs report everybody as gone while they reconnect.
#[test]
fn join_that_is_announced_again_has_a_whole_grace_period() {
    let mut callee = callee(Config::default());
    let who = peer("agent", "PA_1");
    for is_again in [false, true] {
        callee.join(agent("PA_1"));
        shows(&mut callee, &who, "i1");
        if !is_again {
            callee.call(&who, "slow", "get_battery", "{}");
        }
        callee.pass(SECOND);
        callee.handle(TransportEvent::Left(who.clone()));
        callee.pass(if is_again { 4 * SECOND } else { SECOND });
        assert_eq!(callee.aborted, 0);
    }
    callee.pass(SECOND);
    assert_eq!(callee.aborted, 1);
}

/// "If the caller does not call again within the grace period after it left, its calls are stopped."
#[test]
fn running_call_goes_on_when_its_caller_rejoins_and_calls_again() {
    let mut callee = Callee::with_agent();
    callee.call(&peer("agent", "PA_1"), "slow", "get_battery", "{}");
    callee.handle(TransportEvent::Left(peer("agent", "PA_1")));
    let first = callee.jobs.pop().unwrap();
    callee.pass(SECOND);
    callee.join(agent("PA_2"));
    callee.call(&peer("agent", "PA_2"), "r2", "set_lamp", "{}");
    callee.settle(Ok(Value::empty()));
    callee.pass(5 * SECOND);
    assert_eq!(callee.aborted, 0);
    callee.got("agent");
    callee.session.settle(callee.now, first.key, Ok(value(serde_json::json!({"value": 1}))));
    callee.drain();
    assert!(callee.got("agent").contains(&result("slow", "1")));
}

#[test]
fn request_by_rpc_after_a_goodbye_runs_nothing_and_binds_nobody() {
    for is_named in [false, true] {
        let config = if is_named { Config::default().rpc_caller("agent") } else { Config::default() };
        let mut callee = callee(config);
        callee.join(agent("PA_1"));
        let who = peer("agent", "PA_1");
        shows(&mut callee, &who, "i1");
        says_goodbye(&mut callee, &who);
        callee.call(&who, "r1", "get_battery", "{}");
        assert_eq!((callee.session.bound(), callee.jobs.len()), (None, 0), "{is_named}");
    }
}

/// "It ends the calls by RPC, too, and needs no handshake."
#[test]
fn goodbye_of_a_caller_without_a_handshake_ends_its_calls() {
    let mut callee = callee(Config::default());
    callee.join(agent("PA_1"));
    let who = peer("agent", "PA_1");
    callee.call(&who, "slow", "get_battery", "{}");
    says_goodbye(&mut callee, &who);
    assert_eq!((callee.session.bound(), callee.aborted), (None, 1));
    callee.jobs.clear();
    callee.call(&who, "again", "get_battery", "{}");
    assert_eq!((callee.session.bound(), callee.jobs.len()), (None, 0));
}

/// The author names the caller, which has no role and so performs no handshake.
#[test]
fn goodbye_of_a_named_caller_without_a_role_ends_its_calls() {
    let mut callee = callee(Config::default().rpc_caller("web"));
    callee.join(Participant::new("web", "PA_1"));
    let who = peer("web", "PA_1");
    callee.call(&who, "slow", "get_battery", "{}");
    assert_eq!(callee.jobs.len(), 1);
    says_goodbye(&mut callee, &who);
    assert_eq!(callee.aborted, 1);
}

/// A call by RPC has the grace period of its own join. Another program that joins and leaves under the identity, and calls
/// nothing so, does not prolong it; one that calls so again continues it.
#[test]
fn call_of_an_earlier_join_ends_with_the_grace_period_of_that_join() {
    for is_another in [false, true] {
        let mut callee = callee(Config::default());
        callee.join(agent("PA_1"));
        callee.call(&peer("agent", "PA_1"), "slow", "get_battery", "{}");
        callee.handle(TransportEvent::Left(peer("agent", "PA_1")));
        callee.join(agent("PA_2"));
        match is_another {
            true => shows(&mut callee, &peer("agent", "PA_2"), "i1"),
            false => callee.call(&peer("agent", "PA_2"), "again", "get_battery", "{}"),
        }
        callee.pass(SECOND);
        callee.handle(TransportEvent::Left(peer("agent", "PA_2")));
        callee.pass(3 * SECOND);
        assert_eq!(callee.aborted, 0, "{is_another}");
        callee.pass(SECOND);
        assert_eq!(callee.aborted, usize::from(is_another));
        callee.pass(SECOND);
        assert_eq!(callee.aborted, if is_another { 1 } else { 2 });
    }
}

/// The process that was there before returns. It continues its own calls, and not those of the program between.
#[test]
fn call_by_rpc_of_another_program_ends_although_the_process_before_it_is_back() {
    for is_own in [false, true] {
        let mut callee = callee(Config::default());
        callee.join(agent("PA_1"));
        shows(&mut callee, &peer("agent", "PA_1"), "i1");
        if is_own {
            callee.call(&peer("agent", "PA_1"), "slow", "get_battery", "{}");
        }
        callee.handle(TransportEvent::Left(peer("agent", "PA_1")));
        callee.join(agent("PA_2"));
        if !is_own {
            callee.call(&peer("agent", "PA_2"), "slow", "get_battery", "{}");
        }
        callee.pass(SECOND);
        callee.handle(TransportEvent::Left(peer("agent", "PA_2")));
        callee.join(agent("PA_3"));
        shows(&mut callee, &peer("agent", "PA_3"), "i1");
        callee.pass(4 * SECOND);
        assert_eq!(callee.aborted, 0, "{is_own}");
        callee.pass(2 * SECOND);
        assert_eq!(callee.aborted, usize::from(!is_own));
    }
}

/// After a rejoin the client sends nothing before the server has listed who is present.
#[test]
fn answer_that_waits_for_the_connection_reaches_no_other_program_after_the_rejoin() {
    for is_other in [false, true] {
        let mut callee = callee(Config::default());
        callee.join(agent("PA_1"));
        callee.call(&peer("agent", "PA_1"), "r1", "get_battery", "{}");
        callee.handle(TransportEvent::ConnectionState(ConnectionState::Reconnecting));
        callee.settle(Ok(Value::empty()));
        for packet in std::mem::take(&mut callee.sent) {
            callee.session.handle_send_failed(callee.now, packet.id, SendFailure::Interrupted);
        }
        let present = if is_other { Participant::new("agent", "PA_2") } else { agent("PA_1") };
        callee.session.handle_rejoined(callee.now, Participant::new("phone", "PA_9"), vec![present]);
        callee.drain();
        callee.pass(10 * SECOND);
        let is_answer =
            |packet: &&Packet| matches!(packet.form, Form::Rpc(RpcMessage::Response(_)) | Form::Text(_));
        assert_eq!(callee.sent.iter().filter(is_answer).count(), usize::from(!is_other));
    }
}

/// What ends the call withdraws the question for it: a late yes starts nothing, and the caller has one answer at most.
#[test]
fn late_consent_to_a_call_that_has_ended_starts_nothing() {
    for end in ["goodbye", "role", "stop", "withdrawn tool", "close"] {
        let mut callee = callee(Config::default().consent_available(true));
        let erase = Tool::new("erase".parse().unwrap(), "");
        let erase = erase.options(ToolOptions::default().consent(Consent::Always));
        callee.session.offer(callee.now, vec![erase]).unwrap();
        let (who, from) = (Participant::new("agent", "PA_1").role(Role::Assistant), peer("agent", "PA_1"));
        callee.join(who.clone());
        shows(&mut callee, &from, "i1");
        callee.call(&from, "r1", "erase", "{}");
        let question = callee.questions.pop().expect("a question");
        assert_eq!(callee.got("agent"), [ack("r1")]);
        match end {
            "goodbye" => says_goodbye(&mut callee, &from),
            "role" => callee.join(who.attributes::<&str, &str>([])),
            "stop" => {
                let stop = Message::ControlStop(ControlStop::default());
                callee.handle(frame_of(&from, -3, &Meta::new(), &stop));
            }
            "withdrawn tool" => {
                callee.session.offer(callee.now, vec![]).unwrap();
                callee.drain();
            }
            _ => {
                callee.session.close(callee.now);
                callee.drain();
            }
        }
        callee.session.consent(callee.now, question.key, true);
        callee.drain();
        callee.pass(SECOND);
        let answers = callee.got("agent").len();
        assert_eq!((callee.jobs.len(), answers), (0, 1), "{end}");
    }
}

/// It was acknowledged at its header, and only a response ends the call of an SDK.
#[test]
fn request_whose_caller_loses_its_role_while_its_stream_arrives_is_refused() {
    let mut callee = callee(Config::default());
    let who = Participant::new("agent", "PA_1").role(Role::Assistant).client_protocol(2);
    callee.join(who.clone());
    let mut parts = chunked("r1", "get_battery", &format!("{{}}{}", " ".repeat(40_000)));
    let rest = parts.split_off(2);
    callee.parts(&peer("agent", "PA_1"), parts);
    callee.join(who.attributes::<&str, &str>([]));
    assert_eq!(callee.got("agent"), [ack("r1")]);
    callee.parts(&peer("agent", "PA_1"), rest);
    assert_eq!((callee.got("agent"), callee.jobs.len()), (vec![error("r1", 1500)], 0));
}
