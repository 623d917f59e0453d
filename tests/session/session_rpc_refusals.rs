//! A client remembers no request by RPC that it has refused, and goes on with the calls of a caller that rejoins.

use super::*;

/// A refused request has run nothing, so the same one may run once the reason is gone.
#[test]
fn refused_request_is_not_remembered() {
    let form = r#"{"text": "Card?", "schema": {}}"#;
    let mut config = Config::default().answer_rpc().prompts(true);
    config.caps.requests.open_prompts = 1;
    let mut callee = Callee::new(config);
    callee.join(agent("PA_1"));
    let who = peer("agent", "PA_1");
    callee.call(&who, "first", "bridge.form", form);
    callee.call(&who, "second", "bridge.form", form);
    assert_eq!((callee.jobs.len(), callee.refusal().2), (1, "busy".to_owned()));
    callee.settle(Ok(Value::empty()));
    callee.call(&who, "second", "bridge.form", form);
    assert_eq!(callee.jobs.len(), 1, "the person is asked now");
    callee.settle(Ok(Value::empty()));

    let local = |may| Participant::new("phone", "PA_0").can_publish_data(may);
    callee.join(local(false));
    callee.call(&who, "third", "get_battery", "{}");
    assert_eq!((callee.jobs.len(), callee.refusal().2), (0, "permission_denied".to_owned()));
    callee.join(local(true));
    callee.call(&who, "third", "get_battery", "{}");
    assert_eq!(callee.jobs.len(), 1);
}

#[test]
fn pings_do_not_count_as_calls() {
    let mut config = Config::default().answer_rpc();
    config.caps.requests.calls_per_second = 1;
    let mut callee = Callee::new(config);
    callee.join(agent("PA_1"));
    callee.join(Participant::new("stranger", "PA_2"));
    for (name, sid, answered) in [("agent", "PA_1", 3), ("stranger", "PA_2", 1)] {
        for n in 0..3 {
            callee.call(&peer(name, sid), &format!("p{n}"), "toolbridge.ping", "");
        }
        assert_eq!(callee.got(name).len(), 2 * answered, "{name}");
    }
    callee.call(&peer("agent", "PA_1"), "r1", "get_battery", "{}");
    assert_eq!((callee.got("agent"), callee.jobs.len()), (vec![ack("r1")], 1));
}

/// `busy` and `unknown_tool` say that nothing ran.
#[test]
fn repeated_request_is_not_refused_while_it_runs() {
    let mut config = Config::default().answer_rpc();
    config.caps.requests.calls_per_second = 1;
    config.caps.calls.open_per_peer = 1;
    let mut callee = Callee::new(config);
    callee.join(agent("PA_1"));
    let who = peer("agent", "PA_1");
    let repeat = |callee: &mut Callee, what: &str| {
        callee.call(&who, "r1", "get_battery", "{}");
        assert_eq!((callee.got("agent"), callee.jobs.len()), (vec![ack("r1")], 1), "{what}");
    };
    repeat(&mut callee, "it starts");
    repeat(&mut callee, "the rate");
    callee.call(&who, "r1", "get_battery", "no JSON");
    assert_eq!(callee.got("agent"), [ack("r1")]);
    callee.pass(2 * SECOND);
    repeat(&mut callee, "the open calls");
    callee.session.offer(callee.now, vec![]).unwrap();
    repeat(&mut callee, "the tool is gone");
    callee.session.drain(callee.now);
    repeat(&mut callee, "the client leaves");
    callee.settle(Ok(value(serde_json::json!({"value": 1}))));
    assert_eq!(callee.got("agent"), [result("r1", "1")]);
    callee.call(&who, "r1", "get_battery", "{}");
    assert_eq!(callee.got("agent"), [ack("r1"), result("r1", "1")]);
}

/// Others could otherwise fill the queue of packets that wait to be sent.
#[test]
fn refusal_that_was_not_sent_is_sent_again_only_to_a_caller_with_rights() {
    let mut callee = Callee::with_agent();
    callee.join(Participant::new("stranger", "PA_2"));
    for (name, sid) in [("agent", "PA_1"), ("stranger", "PA_2")] {
        callee.call(&peer(name, sid), "r1", "dance", "{}");
        for packet in std::mem::take(&mut callee.sent) {
            callee.session.handle_send_failed(callee.now, packet.id, SendFailure::QueueFull);
        }
        callee.drain();
        callee.pass(5 * SECOND);
        let again = if name == "agent" { vec![ack("r1"), error("r1", 1400)] } else { vec![] };
        assert_eq!(callee.got(name), again);
    }
}

/// The process that its Configuration shows is that of a later join. An SDK keeps its requests over that.
#[test]
fn call_goes_on_when_its_caller_rejoins_and_shows_a_process() {
    for calls_again in [true, false] {
        let mut callee = Callee::with_agent();
        callee.call(&peer("agent", "PA_1"), "slow", "get_battery", "{}");
        let slow = callee.jobs.pop().unwrap();
        callee.handle(TransportEvent::Left(peer("agent", "PA_1")));
        callee.pass(SECOND);
        callee.join(agent("PA_2"));
        let shown = Meta::new().with_text("bridge.instance", "i1").with_bool("bridge.heard", true);
        let bytes =
            Frame::write(-1, "room", &shown, &Message::Configuration(Configuration::default())).unwrap();
        callee.handle(TransportEvent::packet(peer("agent", "PA_2"), Lane::Reliable, bytes));
        assert_eq!(callee.aborted, 0, "it may call by RPC again");
        if calls_again {
            callee.call(&peer("agent", "PA_2"), "r2", "set_lamp", "{}");
            callee.settle(Ok(Value::empty()));
        }
        callee.pass(5 * SECOND);
        assert_eq!(callee.aborted, usize::from(!calls_again));
        callee.session.settle(callee.now, slow.key, Ok(value(serde_json::json!({"value": 1}))));
        callee.drain();
        assert_eq!(callee.got("agent").contains(&result("slow", "1")), calls_again);
    }
}

#[test]
fn request_whose_stream_finds_no_room_is_busy() {
    let mut config = Config::default().answer_rpc();
    config.caps.frames.streams_per_peer = 1;
    let mut callee = Callee::new(config);
    callee.join(agent("PA_1"));
    let who = peer("agent", "PA_1");
    callee.parts(&who, [StreamPart::Header(header("r1", "get_battery", 10))]);
    callee.got("agent");
    callee.parts(&who, [StreamPart::Header(header("r2", "get_battery", 10))]);
    assert_eq!(callee.refusal().2, "busy");
}

/// LiveKit's SDKs wait 7 s for an acknowledgement. Whoever has to wait longer for the refusal gets neither: an acknowledgement
/// alone would make its caller wait for the whole timeout of the call.
#[test]
fn refusals_wait_for_at_most_six_seconds_and_are_of_one_join() {
    let stranger = peer("stranger", "PA_2");
    for leaves in [false, true] {
        let mut callee = Callee::with_agent();
        callee.join(Participant::new("stranger", "PA_2"));
        for n in 0..1_000 {
            callee.call(&stranger, &format!("r{n}"), "get_battery", "{}");
        }
        if leaves {
            callee.handle(TransportEvent::Left(stranger.clone()));
        }
        callee.pass(6 * SECOND);
        let refused = if leaves { 50 } else { 50 + 6 * 50 };
        let all = (0..refused).flat_map(|n| [ack(&format!("r{n}")), error(&format!("r{n}"), 1500)]);
        assert_eq!(callee.got("stranger"), all.collect::<Vec<_>>());
        callee.pass(60 * SECOND);
        assert!(callee.got("stranger").is_empty());
    }
}

/// The stranger calls in each tenth of a second, and the seconds of its refusals follow one another without a gap.
#[test]
fn refusals_keep_their_rate_whenever_their_caller_calls() {
    let mut callee = Callee::with_agent();
    callee.join(Participant::new("stranger", "PA_2"));
    let (mut asked, mut refused) = (0, 0);
    for _ in 0..50 {
        for _ in 0..7 {
            callee.call(&peer("stranger", "PA_2"), &format!("r{asked}"), "get_battery", "{}");
            asked += 1;
        }
        callee.pass(100 * MS);
        refused += callee.got("stranger").len() / 2;
    }
    assert_eq!((asked, refused), (350, 300));
    callee.pass(SECOND);
    assert_eq!(callee.got("stranger").len() / 2, 50);
}

/// A callee, and the participant `panel`, which may call it without being its assistant.
fn with_panel() -> (Callee, Peer) {
    let mut callee = Callee::new(Config::default().rpc_caller("panel"));
    callee.join(agent("PA_1"));
    callee.join(Participant::new("panel", "PA_2"));
    callee.call(&peer("agent", "PA_1"), "first", "get_battery", "{}");
    callee.settle(Ok(Value::empty()));
    callee.got("agent");
    (callee, peer("panel", "PA_2"))
}

/// Calls a tool with a payload of this length. Returns whether it ran.
fn runs(callee: &mut Callee, who: &Peer, id: &str, length: usize) -> bool {
    callee.parts(who, chunked(id, "get_battery", &format!("{{{}}}", " ".repeat(length - 2))));
    let runs = !callee.jobs.is_empty();
    if runs {
        callee.settle(Ok(Value::empty()));
    }
    runs
}

const MIB: usize = 1 << 20;

#[test]
fn sec_r6_caller_beyond_its_share_is_refused_before_its_payload_is_read() {
    let (mut callee, panel) = with_panel();
    assert!(runs(&mut callee, &panel, "r1", 16 * MIB), "one request of any size");
    callee.got("panel");
    let unknown = callee.count(Counter::StreamUnknown);
    assert!(!runs(&mut callee, &panel, "r2", MIB));
    assert_eq!((callee.count(Counter::Busy), callee.count(Counter::StreamUnknown) - unknown), (1, 71));
    assert_eq!(callee.refusal().2, "busy");
    assert_eq!(callee.refusal().3, "the limit is 8388608 bytes a second by RPC; nothing ran");
    assert_eq!(callee.got("panel"), [ack("r2"), error("r2", 1500)]);
    // Calls of one packet, and the assistant, have no such limit.
    for n in 0..3 {
        assert!(runs(&mut callee, &panel, &format!("small{n}"), 15_360));
        assert!(runs(&mut callee, &peer("agent", "PA_1"), &format!("a{n}"), 8 * MIB));
    }
    callee.pass(125 * MS);
    assert!(runs(&mut callee, &panel, "r3", MIB), "that many bytes last for an eighth of a second");
    assert!(!runs(&mut callee, &panel, "r4", MIB));
    callee.pass(1_900 * MS);
    assert!(!runs(&mut callee, &panel, "r5", 16 * MIB));
    callee.pass(100 * MS);
    assert!(runs(&mut callee, &panel, "r6", 16 * MIB));
}

#[test]
fn sec_r6_stream_without_a_length_counts_as_the_largest() {
    for is_known in [false, true] {
        let (mut callee, panel) = with_panel();
        let mut parts = chunked("r1", "get_battery", "{}");
        if let StreamPart::Header(header) = &mut parts[0]
            && !is_known
        {
            header.length = None;
        }
        callee.parts(&panel, parts);
        callee.settle(Ok(Value::empty()));
        assert_eq!(runs(&mut callee, &panel, "r2", 20_000), is_known);
    }
}

/// `busy` would say that its caller may try again.
#[test]
fn request_that_is_too_long_is_refused_as_such_whatever_the_share_is() {
    let (mut callee, panel) = with_panel();
    for _ in 0..2 {
        for length in [16 * MIB as u64 + 1, u64::MAX] {
            let mut header = header("long", "get_battery", 0);
            header.length = Some(length);
            callee.parts(&panel, [StreamPart::Header(header)]);
            assert_eq!(callee.refusal().2, "invalid_parameters");
        }
        callee.got("panel");
        runs(&mut callee, &panel, "r1", 16 * MIB);
    }
}

/// Its payload would be expanded and compared as often as its caller likes.
#[test]
fn sec_r6_repeated_request_beyond_the_share_is_not_read_and_may_have_run() {
    let (mut callee, panel) = with_panel();
    assert!(runs(&mut callee, &panel, "r1", 16 * MIB));
    callee.got("panel");
    assert!(!runs(&mut callee, &panel, "r1", 16 * MIB));
    let (code, _, ours, text) = callee.refusal();
    assert_eq!((code, &*ours), (1500, "execution_error"));
    assert_eq!(text, "the limit is 8388608 bytes a second by RPC");
    callee.pass(2 * SECOND);
    callee.got("panel");
    assert!(!runs(&mut callee, &panel, "r1", 16 * MIB));
    assert_eq!(callee.got("panel"), [ack("r1"), result("r1", "{}")]);
}
