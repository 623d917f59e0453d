//! What single inputs return, and what is malformed.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use toolbridge_face::JsonSession;

fn create(role: &str, config: &str) -> JsonSession {
    let seed = "00".repeat(32);
    let local = r#"{"identity":"it","sid":"PA_1"}"#;
    let text = format!(
        r#"{{"type":"create","at":1000,"role":"{role}","local":{local},"seed":"{seed}","config":{config}}}"#
    );
    JsonSession::create(&text).unwrap()
}

fn error(session: &mut JsonSession, input: &str) -> String {
    session.handle(input, None).unwrap_err().to_string()
}

#[test]
fn malformed_input_names_its_field() {
    let mut it = create("assistant", "{}");
    for (input, expected) in [
        ("", "input: EOF while parsing"),
        ("[1]", "input: "),
        (r#"{"at":1}"#, "type: is missing"),
        (r#"{"type":"fly","at":1}"#, "type: \"fly\" is no input"),
        (r#"{"type":"timeout"}"#, "at: is missing"),
        (r#"{"type":"timeout","at":-1}"#, "at: is not a time"),
        (r#"{"type":"timeout","at":"1"}"#, "at: is not a number"),
        (r#"{"type":"timeout","at":1,"at":1}"#, "at: is unknown here, or repeated"),
        (r#"{"type":"timeout","at":1,"bytes":""}"#, "bytes: is unknown here"),
        (r#"{"type":"stats","at":1}"#, "at: is unknown here"),
        (r#"{"type":"cancel","at":1,"key":1.5}"#, "key: is not a whole number"),
        (r#"{"type":"cancel","at":1,"key":9007199254740992}"#, "key: is not a whole number"),
        (r#"{"type":"packet","at":1,"bytes":"!"}"#, "bytes: is not base64"),
        (r#"{"type":"packet","at":1,"lane":"fast","bytes":""}"#, "lane: \"fast\" is not one of its names"),
        (r#"{"type":"packet","at":1,"from":{"sid":"x"},"bytes":""}"#, "from.identity: is missing"),
        (r#"{"type":"settle","at":1,"key":1}"#, "value: is needed, or error"),
        (
            r#"{"type":"settle","at":1,"key":1,"value":1,"error":{"code":"a","message":"b"}}"#,
            "value: is needed",
        ),
        (r#"{"type":"call","at":1,"tool":"t","meta":{"a":{"$bin":1}}}"#, "meta.a: "),
        (
            r#"{"type":"offer","at":1,"tools":[{"name":"a","description":""},{"name":"a b","description":""}]}"#,
            "tools[1].name: \"a b\" is not a tool name",
        ),
    ] {
        let found = error(&mut it, input);
        assert!(found.starts_with(expected), "{input}: {found}");
    }
    assert_eq!(it.next_output(), None);
}

#[test]
fn bytes_may_be_in_the_text_or_beside_it_and_not_both() {
    let mut it = create("client", "{}");
    let input = r#"{"type":"packet","at":2000,"from":{"identity":"a"},"topic":"toolbridge"}"#;
    assert_eq!(it.handle(input, Some(vec![1])), Ok(None));
    assert_eq!(error(&mut it, input), "bytes: is missing");
    let both = r#"{"type":"packet","at":2000,"from":{"identity":"a"},"bytes":"AQ=="}"#;
    assert_eq!(it.handle(both, None), Ok(None));
    assert!(it.handle(both, Some(vec![1])).unwrap_err().to_string().starts_with("bytes: is both"));
    let none = r#"{"type":"timeout","at":2000}"#;
    assert!(it.handle(none, Some(vec![1])).unwrap_err().to_string().starts_with("bytes: is unknown"));
    assert_eq!(
        it.handle(r#"{"type":"stats"}"#, None).unwrap().unwrap(),
        r#"{"type":"stats","stats":{"frames_in":2,"bytes_in":2,"malformed":2}}"#
    );
}

#[test]
fn null_is_a_result_and_otherwise_a_missing_field() {
    let mut it = create("assistant", "null");
    let call = r#"{"type":"call","at":2000,"tool":"lamp","owner":null,"timeout":null,"meta":null}"#;
    let reply = it.handle(call, None).unwrap().unwrap();
    assert!(reply.starts_with(r#"{"type":"called","key":1,"call":""#), "{reply}");
    assert_eq!(it.handle(r#"{"type":"settle","at":2000,"key":9,"value":null}"#, None), Ok(None));
    let refused =
        it.handle(r#"{"type":"call","at":2000,"tool":"lamp","arguments":null}"#, None).unwrap().unwrap();
    assert!(
        refused.starts_with(r#"{"type":"refused","error":{"kind":"arguments","code":"invalid_parameters","#),
        "{refused}"
    );
}

#[test]
fn tools_are_offered_all_or_those_that_can_be() {
    let mut it = create("client", "{}");
    let offer = |partial: bool| {
        format!(
            r#"{{"type":"offer","at":2000,"partial":{partial},"tools":[{{"name":"bridge.x","description":""}},{{"name":"lamp","description":"Light","schema":{{"type":"object"}},"destructive":true,"timeout":1500.25,"consent":"never"}}]}}"#
        )
    };
    let all = it.handle(&offer(false), None).unwrap().unwrap();
    assert_eq!(
        all,
        r#"{"type":"offered","left_out":[{"tool":"bridge.x","why":"\"bridge.x\" begins with `bridge.`, which is reserved for the protocol"}]}"#
    );
    assert_eq!(it.handle(r#"{"type":"tools"}"#, None).unwrap().unwrap(), r#"{"type":"tools","tools":[]}"#);
    assert!(it.handle(&offer(true), None).unwrap().unwrap().contains("bridge.x"));
    assert_eq!(
        it.handle(r#"{"type":"tools"}"#, None).unwrap().unwrap(),
        r#"{"type":"tools","tools":[{"owner":"it","tool":{"name":"lamp","description":"Light","schema":{"type":"object"},"destructive":true,"consent":"never","timeout":1500.25,"disclose":"full","prefer_client":false,"barge_in":"cancel"}}]}"#
    );
}

#[test]
fn shell_selects_if_the_configuration_asks() {
    let mut it = create("client", r#"{"choose":"ask","lossy":true}"#);
    let agent = |name| {
        format!(r#"{{"identity":"{name}","sid":"PA_{name}","kind":"agent","can_update_metadata":false}}"#)
    };
    for name in ["one", "two", "three"] {
        let who = agent(name);
        it.handle(&format!(r#"{{"type":"participant_joined","at":1100,"participant":{who}}}"#), None)
            .unwrap();
    }
    for name in ["one", "two", "three"] {
        // A Configuration, with which an assistant takes part in the protocol.
        let seed = "01".repeat(32);
        let mut other = JsonSession::create(&format!(
            r#"{{"type":"create","at":0,"role":"assistant","seed":"{seed}","local":{},"config":{{"admit":["it"]}}}}"#,
            agent(name)
        ))
        .unwrap();
        other.handle(r#"{"type":"timeout","at":1}"#, None).unwrap();
        while let Some(output) = other.next_output() {
            if output.starts_with(r#"{"type":"transmit""#) {
                let packet = format!(
                    r#"{{"type":"packet","at":1200,"from":{{"identity":"{name}","sid":"PA_{name}"}}}}"#
                );
                it.handle(&packet, other.take_bytes()).unwrap();
            }
        }
    }
    while it.next_output().is_some() {}
    // The first one was bound, before there were several.
    it.handle(r#"{"type":"participant_left","at":1300,"peer":{"identity":"one","sid":"PA_one"}}"#, None)
        .unwrap();
    it.handle(r#"{"type":"timeout","at":6300}"#, None).unwrap();
    let outputs: Vec<String> = std::iter::from_fn(|| it.next_output()).collect();
    let asked = outputs
        .iter()
        .find(|output| output.starts_with(r#"{"type":"select","key":0,"candidates":[{"identity":"#));
    assert!(asked.is_some_and(|it| it.contains("\"two\"") && it.contains("\"three\"")), "{outputs:#?}");
    it.handle(r#"{"type":"select","at":6400,"key":0,"identity":"three"}"#, None).unwrap();
    let outputs: Vec<String> = std::iter::from_fn(|| it.next_output()).collect();
    assert!(
        outputs.contains(&r#"{"type":"event","event":"bound","assistant":"three"}"#.to_owned()),
        "{outputs:#?}"
    );
}

#[test]
fn deadlines_count_from_the_zero_point() {
    let mut it = create("assistant", "{}");
    it.handle(r#"{"type":"call","at":2000.0004,"tool":"lamp","timeout":2500.25}"#, None).unwrap();
    let mut settled = None;
    for _ in 0..10 {
        let outputs: Vec<String> = std::iter::from_fn(|| it.next_output()).collect();
        if outputs.iter().any(|output| output.starts_with(r#"{"type":"settled","key":1,"error":{"#)) {
            break;
        }
        settled = it.next_deadline();
        it.handle(&format!(r#"{{"type":"timeout","at":{}}}"#, settled.unwrap()), None).unwrap();
    }
    assert_eq!(settled, Some(4_500.25));
}
