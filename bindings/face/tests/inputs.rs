//! What single inputs return, and what is malformed.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use toolbridge::transport::{Lane, Peer, TransportEvent};
use toolbridge_face::{Input, JsonSession};

fn create(role: &str, config: &str) -> JsonSession {
    let seed = "00".repeat(32);
    let local = r#"{"identity":"it","sid":"PA_1"}"#;
    let text = format!(
        r#"{{"type":"create","atMs":1000,"role":"{role}","local":{local},"seed":"{seed}","config":{config}}}"#
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
        (r#"{"atMs":1}"#, "type: is missing"),
        (r#"{"type":"fly","atMs":1}"#, "type: \"fly\" is no input"),
        (r#"{"type":"timeout"}"#, "atMs: is missing"),
        (r#"{"type":"timeout","atMs":-1}"#, "atMs: is not a time"),
        (r#"{"type":"timeout","atMs":"1"}"#, "atMs: is not a number"),
        (r#"{"type":"timeout","atMs":1,"atMs":1}"#, "atMs: is unknown here, or repeated"),
        (r#"{"type":"timeout","atMs":1,"bytes":""}"#, "bytes: is unknown here"),
        (r#"{"type":"stats","atMs":1}"#, "atMs: is unknown here"),
        (r#"{"type":"cancel","atMs":1,"id":1.5}"#, "id: is neither a text"),
        (r#"{"type":"backlog","atMs":1,"size":9007199254740992}"#, "size: is not a whole number"),
        (r#"{"type":"packet","atMs":1,"bytes":"!"}"#, "bytes: is not base64"),
        (r#"{"type":"packet","atMs":1,"lane":"fast","bytes":""}"#, "lane: \"fast\" is not one of its names"),
        (r#"{"type":"packet","atMs":1,"from":{"sid":"x"},"bytes":""}"#, "from.identity: is missing"),
        (r#"{"type":"cancel","atMs":1,"id":""}"#, "id: is neither a text"),
        (r#"{"type":"call","atMs":1,"tool":"t"}"#, "id: is missing"),
        (r#"{"type":"call","atMs":1,"id":1,"tool":"t","meta":[]}"#, "meta: is not an object"),
        (r#"{"type":"listen","atMs":1,"events":["left","gone"]}"#, "events[1]: \"gone\" is no event"),
        (r#"{"type":"call","atMs":1,"id":1,"tool":404}"#, "tool: is not a text"),
        ("\\ud800é", "input: expected value"),
        (r#"{"type":"call","atMs":1,"tool":"\ud8é0"}"#, "input: invalid escape"),
        (r#"{"type":"participant_left","atMs":1,"peer":"{}"}"#, "peer: is not an object"),
        (r#"{"type":"rejoined","atMs":1,"local":{"identity":"a"},"present":{}}"#, "present: is not a list"),
        (
            r#"{"type":"stream_chunk","atMs":"no","from":1,"id":2,"index":3,"bytes":4}"#,
            "atMs: is not a number",
        ),
        (r#"{"type":"stream_chunk","atMs":1,"from":1,"id":2,"index":3,"bytes":4}"#, "from: is not an object"),
        (r#"{"type":1,"atMs":"no"}"#, "type: is not a text"),
        (r#"{"type":"fly","atMs":"no"}"#, "atMs: is not a number"),
        (r#"{"type":"timeout","atMs":1}}"#, "input: trailing characters"),
        (r#"{"type":"timeout","atMs":1,"x":[}"#, "input: "),
        (
            r#"{"type":"offer","atMs":1,"tools":[{"name":"a","description":""},{"name":"a b","description":""}]}"#,
            "tools[1].name: \"a b\" is not a tool name",
        ),
    ] {
        let found = error(&mut it, input);
        assert!(found.starts_with(expected), "{input}: {found}");
    }
    assert_eq!(it.next_output(), None);
}

#[test]
fn model_gets_tools_that_fit_and_the_tool_its_own_keys() {
    let mut it = create("assistant", "{}");
    let offered = it.handle(
        r#"{"type":"offer","atMs":1000,"tools":[{"name":"no_arguments","description":"a"},
            {"name":"3d_print","description":"b","inputSchema":{"type":"object","properties":{"$filter":{"type":"string"}}}},
            {"name":"find","description":"c","inputSchema":{"properties":{"id":{"type":"integer"}},"anyOf":[{"required":["id"]}]}},
            {"name":"odd","description":"d","inputSchema":{"type":"array"}}]}"#,
        None,
    );
    assert_eq!(offered.unwrap().unwrap(), r#"{"type":"offered","leftOut":[]}"#);
    let listed = it.handle(r#"{"type":"model_tools"}"#, None).unwrap().unwrap();
    for part in [
        r#"{"name":"_3d_print","description":"b","inputSchema":{"type":"object","properties":{"_filter":{"#,
        r#"{"name":"find","description":"c\n\nThe arguments must also match this JSON Schema: "#,
        r#"{"name":"no_arguments","description":"a","inputSchema":{"type":"object","properties":{}},"tool":"no_arguments","owners":["it"]}"#,
        r#""leftOut":[{"tool":"odd","why":"odd is not shown to models: its schema accepts no object"#,
    ] {
        assert!(listed.contains(part), "{part}: {listed}");
    }
    let call =
        r#"{"type":"call","atMs":1000,"id":1,"tool":"_3d_print","model":true,"arguments":{"_filter":"x"}}"#;
    assert_eq!(it.handle(call, None), Ok(None));
    let outputs: Vec<String> = std::iter::from_fn(|| it.next_output()).collect();
    let runs = outputs.iter().find(|text| text.contains(r#""type":"execute""#)).unwrap();
    assert!(runs.contains(r#""tool":"3d_print","arguments":{"$filter":"x"}"#), "{runs}");
}

#[test]
fn bytes_may_be_in_the_text_or_beside_it_and_not_both() {
    let mut it = create("client", "{}");
    let input = r#"{"type":"packet","atMs":2000,"from":{"identity":"a"},"topic":"toolbridge"}"#;
    assert_eq!(it.handle(input, Some(vec![1])), Ok(None));
    assert_eq!(error(&mut it, input), "bytes: is missing");
    let both = r#"{"type":"packet","atMs":2000,"from":{"identity":"a"},"bytes":"AQ=="}"#;
    assert_eq!(it.handle(both, None), Ok(None));
    assert!(it.handle(both, Some(vec![1])).unwrap_err().to_string().starts_with("bytes: is both"));
    let none = r#"{"type":"timeout","atMs":2000}"#;
    assert!(it.handle(none, Some(vec![1])).unwrap_err().to_string().starts_with("bytes: is unknown"));
    assert_eq!(
        it.handle(r#"{"type":"stats"}"#, None).unwrap().unwrap(),
        r#"{"type":"stats","stats":{"frames_in":2,"bytes_in":2,"malformed":2}}"#
    );
}

#[test]
fn white_space_escapes_and_brackets_in_texts_are_read() {
    let mut it = create("assistant", "{}");
    let input = "\r\n{ \"atMs\"\t: 1 , \"type\" : \"participant_joined\", \"participant\" : { \"identity\" :\"a]}\\\"\\u00e9,\\\\\",\n \"sid\":\"PA_1\" , \
         \"attributes\" : { \"\\u0061\" : \"{[\" } } } ";
    assert_eq!(it.handle(input, None), Ok(None));
    let found = it.handle(r#"{"type":"participants"}"#, None).unwrap().unwrap();
    let found = &fields_of(&found)["participants"][0];
    assert_eq!(found["identity"], "a]}\"é,\\");
    assert_eq!(found["attributes"]["a"], "{[");
}

#[test]
fn event_of_a_transport_is_an_input_whose_time_the_driver_adds() {
    let event = TransportEvent::packet(Peer::new("phone", "PA_2"), Lane::Lossy, vec![1, 2]);
    let (text, bytes) = Input::from_event(&event).unwrap().into_parts();
    assert_eq!(
        text,
        r#"{"type":"packet","from":{"identity":"phone","sid":"PA_2"},"lane":"lossy","topic":""}"#
    );
    let timed = format!(r#"{},"atMs":2000}}"#, text.strip_suffix('}').unwrap());
    assert_eq!(create("assistant", "{}").handle(&timed, bytes), Ok(None));
}

#[test]
fn null_is_a_result_and_otherwise_a_missing_field() {
    let mut it = create("assistant", "null");
    let call = r#"{"type":"call","atMs":2000,"id":1,"tool":"lamp","to":null,"timeoutMs":null,"meta":null}"#;
    assert_eq!(it.handle(call, None), Ok(None));
    assert_eq!(error(&mut it, call), "id: is that of an open call");
    assert_eq!(it.handle(r#"{"type":"settle","atMs":2000,"key":9,"value":null}"#, None), Ok(None));
    let call = r#"{"type":"call","atMs":2000,"id":"none","tool":"lamp","arguments":null}"#;
    assert_eq!(it.handle(call, None), Ok(None));
    assert_eq!(error(&mut it, call), "id: is that of an open call");
    let call = r#"{"type":"call","atMs":2000,"id":"a","tool":"lamp","arguments":[1]}"#;
    assert_eq!(it.handle(call, None), Ok(None));
    let refused = it.next_output().unwrap();
    assert!(
        refused.starts_with(
            r#"{"type":"result","id":"a","error":{"kind":"arguments","code":"invalid_parameters","#
        ),
        "{refused}"
    );
}

#[test]
fn detached_call_frees_its_id() {
    let mut it = create("assistant", "{}");
    let call = r#"{"type":"call","atMs":2000,"id":1,"tool":"lamp","ownerWaitMs":500}"#;
    assert_eq!(it.handle(call, None), Ok(None));
    assert_eq!(error(&mut it, call), "id: is that of an open call");
    assert_eq!(it.handle(r#"{"type":"detach","atMs":2000,"id":1}"#, None), Ok(None));
    assert_eq!(it.handle(call, None), Ok(None));
    it.handle(r#"{"type":"timeout","atMs":2500}"#, None).unwrap();
    let results =
        std::iter::from_fn(|| it.next_output()).filter(|it| it.starts_with(r#"{"type":"result""#)).count();
    assert_eq!(results, 1);
    assert_eq!(it.handle(call, None), Ok(None));
}

#[test]
fn tools_are_offered_all_or_those_that_can_be() {
    let mut it = create("client", "{}");
    let offer = |partial: bool| {
        format!(
            r#"{{"type":"offer","atMs":2000,"partial":{partial},"tools":[{{"name":"bridge.x","description":""}},{{"name":"lamp","description":"Light","inputSchema":{{"type":"object"}},"destructive":true,"timeoutMs":1500.25,"consent":"never"}}]}}"#
        )
    };
    let all = it.handle(&offer(false), None).unwrap().unwrap();
    assert_eq!(
        all,
        r#"{"type":"offered","leftOut":[{"tool":"bridge.x","why":"\"bridge.x\" begins with `bridge.`, which is reserved for the protocol"}]}"#
    );
    assert_eq!(it.handle(r#"{"type":"tools"}"#, None).unwrap().unwrap(), r#"{"type":"tools","tools":[]}"#);
    assert!(it.handle(&offer(true), None).unwrap().unwrap().contains("bridge.x"));
    assert_eq!(
        it.handle(r#"{"type":"tools"}"#, None).unwrap().unwrap(),
        r#"{"type":"tools","tools":[{"owner":"it","execution":"client","tool":{"name":"lamp","description":"Light","inputSchema":{"type":"object"},"destructive":true,"consent":"never","timeoutMs":1500.25,"disclose":"full","preferClient":false,"bargeIn":"cancel"}}]}"#
    );
}

#[test]
fn shell_selects_if_the_configuration_asks() {
    let mut it = create("client", r#"{"choose":"ask","lossy":true}"#);
    let agent = |name| {
        format!(r#"{{"identity":"{name}","sid":"PA_{name}","kind":"agent","canUpdateMetadata":false}}"#)
    };
    for name in ["one", "two", "three"] {
        let who = agent(name);
        it.handle(&format!(r#"{{"type":"participant_joined","atMs":1100,"participant":{who}}}"#), None)
            .unwrap();
    }
    for name in ["one", "two", "three"] {
        // A Configuration, with which an assistant takes part in the protocol.
        let seed = "01".repeat(32);
        let mut other = JsonSession::create(&format!(
            r#"{{"type":"create","atMs":0,"role":"assistant","seed":"{seed}","local":{},"config":{{"admit":["it"]}}}}"#,
            agent(name)
        ))
        .unwrap();
        other.handle(r#"{"type":"timeout","atMs":1}"#, None).unwrap();
        while let Some(output) = other.next_output() {
            if output.starts_with(r#"{"type":"transmit""#) {
                let packet = format!(
                    r#"{{"type":"packet","atMs":1200,"from":{{"identity":"{name}","sid":"PA_{name}"}}}}"#
                );
                it.handle(&packet, other.take_bytes()).unwrap();
            }
        }
    }
    while it.next_output().is_some() {}
    // The first one was bound, before there were several.
    it.handle(r#"{"type":"participant_left","atMs":1300,"peer":{"identity":"one","sid":"PA_one"}}"#, None)
        .unwrap();
    it.handle(r#"{"type":"timeout","atMs":6300}"#, None).unwrap();
    let outputs: Vec<String> = std::iter::from_fn(|| it.next_output()).collect();
    let asked = outputs
        .iter()
        .find(|output| output.starts_with(r#"{"type":"select","key":0,"candidates":[{"identity":"#));
    assert!(asked.is_some_and(|it| it.contains("\"two\"") && it.contains("\"three\"")), "{outputs:#?}");
    it.handle(r#"{"type":"select","atMs":6400,"key":0,"identity":"three"}"#, None).unwrap();
    let outputs: Vec<String> = std::iter::from_fn(|| it.next_output()).collect();
    assert!(
        outputs.contains(&r#"{"type":"event","event":"bound","assistant":"three"}"#.to_owned()),
        "{outputs:#?}"
    );
}

#[test]
fn deadlines_count_from_the_zero_point() {
    let mut it = create("assistant", "{}");
    it.handle(r#"{"type":"call","atMs":2000.0004,"id":1,"tool":"lamp","timeoutMs":2500.25}"#, None).unwrap();
    let mut settled = None;
    for _ in 0..10 {
        let outputs: Vec<String> = std::iter::from_fn(|| it.next_output()).collect();
        if outputs.iter().any(|output| output.starts_with(r#"{"type":"result","id":1,"error":{"#)) {
            break;
        }
        settled = it.next_deadline();
        it.handle(&format!(r#"{{"type":"timeout","atMs":{}}}"#, settled.unwrap()), None).unwrap();
    }
    assert_eq!(settled, Some(4_500.25));
}

/// The limit of a frame, which no value may exceed either.
const MAX: usize = 16 * 1024 * 1024;

/// A text as JSON whose value has this many bytes in MessagePack: five and the text's.
fn text_of(bytes: usize) -> String {
    format!("\"{}\"", "a".repeat(bytes - 5))
}

/// What an output says, without the texts for people.
fn fields_of(output: &str) -> serde_json::Value {
    serde_json::from_str(output).unwrap()
}

#[test]
fn arguments_and_meta_above_the_limit_refuse_the_call_with_both_numbers() {
    let mut it = create("assistant", "{}");
    // A map of one entry with the key `t`: three bytes and the text.
    for (fields, size) in [
        (format!(r#""arguments":{{"t":{}}}"#, text_of(MAX - 2)), MAX + 1),
        (format!(r#""meta":{{"m":{}}}"#, text_of(MAX + 9)), MAX + 9),
    ] {
        let call = format!(r#"{{"type":"call","atMs":2000,"id":1,"tool":"lamp",{fields}}}"#);
        assert_eq!(it.handle(&call, None), Ok(None));
        assert_eq!(
            it.next_output().unwrap(),
            format!(
                r#"{{"type":"result","id":1,"error":{{"kind":"too_large","code":"too_large","message":"the request has {size} bytes; the limit is {MAX}","forModel":"the arguments have {size} bytes; the limit is {MAX}. Send less. Nothing ran.","mayHaveRun":false,"size":{size},"max":{MAX}}}}}"#
            )
        );
    }
    assert_eq!(it.next_output(), None);
    let state = fields_of(&it.handle(r#"{"type":"state"}"#, None).unwrap().unwrap());
    assert_eq!(state["openCalls"], 0);
    let largest = format!(
        r#"{{"type":"call","atMs":2000,"id":1,"tool":"lamp","arguments":{{"t":{}}}}}"#,
        text_of(MAX - 3)
    );
    assert_eq!(it.handle(&largest, None), Ok(None));
    assert_eq!(it.next_output(), None);
}

#[test]
fn arguments_that_no_frame_can_hold_refuse_the_call() {
    let mut it = create("assistant", "{}");
    let deep = format!("{}{}", "[".repeat(65), "]".repeat(65));
    for (value, text) in [
        (deep, "nesting depth 65 at byte"),
        (format!("{}{}", "[".repeat(300), "]".repeat(300)), "nesting depth 301 exceeds"),
        (r#"{"$bin":1}"#.to_owned(), "$bin"),
    ] {
        let call =
            format!(r#"{{"type":"call","atMs":2000,"id":1,"tool":"lamp","arguments":{{"a":{value}}}}}"#);
        assert_eq!(it.handle(&call, None), Ok(None));
        let reply = fields_of(&it.next_output().unwrap());
        let error = &reply["error"];
        assert_eq!((&reply["type"], &error["kind"]), (&"result".into(), &"arguments".into()), "{reply}");
        assert!(error["message"].as_str().unwrap().contains(text), "{reply}");
    }
    assert_eq!(it.next_output(), None);
}

/// A client and its assistant, whose packets and streams are passed on at once.
struct Pair {
    client: JsonSession,
    assistant: JsonSession,
    at: f64,
}

impl Pair {
    fn new() -> Self {
        let end = |role: &str, identity: &str, seed: &str| {
            let local = format!(
                r#"{{"identity":"{identity}","sid":"PA_{identity}","attributes":{{"toolbridge.role":"{role}"}},"canUpdateMetadata":false}}"#
            );
            let seed = seed.repeat(32);
            let config = r#"{"streams":true}"#;
            let input = format!(
                r#"{{"type":"create","atMs":0,"role":"{role}","local":{local},"seed":"{seed}","config":{config}}}"#
            );
            (JsonSession::create(&input).unwrap(), local)
        };
        let (client, phone) = end("client", "phone", "01");
        let (assistant, model) = end("assistant", "model", "02");
        let mut it = Self { client, assistant, at: 0.0 };
        let tools = r#"[{"name":"lamp","description":"Light"}]"#;
        it.client.handle(&format!(r#"{{"type":"offer","atMs":0,"tools":{tools}}}"#), None).unwrap();
        for (local, session) in [(&phone, &mut it.client), (&model, &mut it.assistant)] {
            session
                .handle(&format!(r#"{{"type":"participant_joined","atMs":0,"participant":{local}}}"#), None)
                .unwrap();
        }
        for (remote, session) in [(&model, &mut it.client), (&phone, &mut it.assistant)] {
            session
                .handle(&format!(r#"{{"type":"participant_joined","atMs":0,"participant":{remote}}}"#), None)
                .unwrap();
        }
        it.run();
        it
    }

    /// Passes packets and time on until both ends are silent. Returns what they say besides, by name and event.
    fn run(&mut self) -> (Vec<serde_json::Value>, Vec<serde_json::Value>) {
        let (mut of_client, mut of_assistant) = (Vec::new(), Vec::new());
        for _ in 0..40 {
            self.at += 5.0;
            of_client.extend(pass_on("phone", &mut self.client, &mut self.assistant, self.at));
            of_assistant.extend(pass_on("model", &mut self.assistant, &mut self.client, self.at));
        }
        (of_client, of_assistant)
    }

    /// Calls the tool, and returns the key of the job at the client.
    fn call(&mut self) -> u64 {
        let at = self.at;
        let call = format!(r#"{{"type":"call","atMs":{at},"id":"it","tool":"lamp"}}"#);
        assert_eq!(self.assistant.handle(&call, None), Ok(None));
        let (of_client, _) = self.run();
        let job = of_client.iter().find(|output| output["type"] == "execute").unwrap();
        job["key"].as_u64().unwrap()
    }

    /// Settles a job with these fields, and returns what both ends say then.
    fn settle(&mut self, key: u64, outcome: &str) -> (Vec<serde_json::Value>, Vec<serde_json::Value>) {
        let at = self.at;
        let settle = format!(r#"{{"type":"settle","atMs":{at},"key":{key},{outcome}}}"#);
        assert_eq!(self.client.handle(&settle, None), Ok(None));
        self.run()
    }
}

/// Passes the packets of one end to the other. Returns its other outputs.
fn pass_on(name: &str, from: &mut JsonSession, to: &mut JsonSession, at: f64) -> Vec<serde_json::Value> {
    let mut others = Vec::new();
    from.handle(&format!(r#"{{"type":"timeout","atMs":{at}}}"#), None).unwrap();
    while let Some(output) = from.next_output() {
        let bytes = from.take_bytes();
        let output = fields_of(&output);
        if output["type"] != "transmit" {
            others.push(output);
            continue;
        }
        from.sent(at, output["packet"].as_u64().unwrap()).unwrap();
        let sender = format!(r#"{{"identity":"{name}","sid":"PA_{name}"}}"#);
        let Some(stream) = output.get("stream") else {
            let (lane, topic) = (&output["lane"], &output["topic"]);
            let input =
                format!(r#"{{"type":"packet","atMs":{at},"from":{sender},"lane":{lane},"topic":{topic}}}"#);
            to.handle(&input, bytes).unwrap();
            continue;
        };
        let part = |name: &str, fields: &str| {
            format!(r#"{{"type":"stream_{name}","atMs":{at},"from":{sender},"id":{}{fields}}}"#, stream["id"])
        };
        let (topic, length, attributes) = (&stream["topic"], &stream["length"], &stream["attributes"]);
        let header = format!(r#","topic":{topic},"length":{length},"attributes":{attributes}"#);
        let wanted = Ok(Some(r#"{"type":"stream","wanted":true}"#.to_owned()));
        assert_eq!(to.handle(&part("header", &header), None), wanted);
        assert_eq!(to.handle(&part("chunk", r#","index":0"#), bytes), wanted);
        assert_eq!(to.handle(&part("trailer", ""), None), Ok(None));
    }
    others
}

#[test]
fn result_that_no_frame_can_hold_is_the_one_outcome_of_its_call() {
    let mut it = Pair::new();
    let deep = format!("{}{}", "[".repeat(65), "]".repeat(65));
    let large = text_of(MAX + 1);
    for (outcome, code, message) in [
        (
            format!(r#""value":{large}"#),
            "result_too_large",
            format!("has {} bytes; the limit is {MAX}", MAX + 1),
        ),
        (
            format!(r#""error":{{"code":"too_dark","message":"no","partial":{large}}}"#),
            "result_too_large",
            format!("has {} bytes; the limit is {MAX}", MAX + 1),
        ),
        (format!(r#""value":{deep}"#), "execution_error", "the tool failed".to_owned()),
    ] {
        let key = it.call();
        let (of_client, of_assistant) = it.settle(key, &outcome);
        let settled: Vec<_> = of_assistant.iter().filter(|output| output["type"] == "result").collect();
        assert_eq!(settled.len(), 1, "{of_assistant:#?}");
        let error = &settled[0]["error"];
        assert_eq!((&error["kind"], &error["code"]), (&"tool".into(), &code.into()));
        assert!(error["message"].as_str().unwrap().contains(&message), "{error}");
        // The cause of what is no size stays in the process of the tool.
        let failed = of_client.iter().find(|output| output["event"] == "tool_failed");
        assert_eq!(failed.is_some(), code == "execution_error", "{of_client:#?}");
        // A second outcome has no effect.
        let (_, of_assistant) = it.settle(key, r#""value":{}"#);
        assert!(of_assistant.iter().all(|output| output["type"] != "result"), "{of_assistant:#?}");
    }
    // The largest value that the limit of values allows is above that of a frame: the core says so itself.
    let key = it.call();
    let (_, of_assistant) = it.settle(key, &format!(r#""value":{{"t":{}}}"#, text_of(MAX - 3)));
    let settled = of_assistant.iter().find(|output| output["type"] == "result").unwrap();
    assert_eq!(settled["error"]["code"], "result_too_large");
}

/// A settle that had no effect would leave the caller waiting until its time limit.
#[test]
fn outcome_that_cannot_be_read_ends_its_job() {
    let mut it = Pair::new();
    for (outcome, why) in [
        (r#""error":{"code":404,"message":"no such album"}"#, "error.code: is not a text"),
        (r#""error":{"code":"a"}"#, "error.message: is missing"),
        (r#""error":"no""#, "error: is not an object"),
        (r#""value":1,"error":{"code":"a","message":"b"}"#, "value: is needed, or error"),
        (r#""value":{"$bin":"!"}"#, ""),
        (r#""error":null"#, "value: is needed, or error"),
    ] {
        let key = it.call();
        let (of_client, of_assistant) = it.settle(key, outcome);
        let settled = of_assistant.iter().find(|output| output["type"] == "result").unwrap();
        assert_eq!(settled["error"]["message"], "the tool failed", "{outcome}");
        let failed = of_client.iter().find(|output| output["event"] == "tool_failed").unwrap();
        assert!(failed["cause"].as_str().unwrap().starts_with(why), "{outcome}: {failed}");
    }
}

#[test]
fn half_of_a_surrogate_pair_is_a_replacement_character() {
    let mut it = Pair::new();
    for (sent, read) in [
        (r"a \ud83d b", "a \u{fffd} b"),
        (r"\udE00", "\u{fffd}"),
        (r"\ud83d\ude00", "\u{1f600}"),
        (r"\uD83D\ud83d\uDE00\ude00", "\u{fffd}\u{1f600}\u{fffd}"),
        (r"\\ud83d \\\ud83d", "\\ud83d \\\u{fffd}"),
        (r"\u00e9\ud83d\n", "é\u{fffd}\n"),
    ] {
        let key = it.call();
        let outcome =
            format!(r#""error":{{"code":"half","message":"{sent}","partial":{{"{sent}":["{sent}"]}}}}"#);
        let (_, of_assistant) = it.settle(key, &outcome);
        let settled = of_assistant.iter().find(|output| output["type"] == "result").unwrap();
        assert_eq!(settled["error"]["message"], read, "{sent}");
        assert_eq!(settled["error"]["partial"], serde_json::json!({ read: [read] }), "{sent}");
    }
}

#[test]
fn malformed_tool_is_left_out_of_a_partial_offer() {
    let mut it = create("client", "{}");
    let tools = r#"[{"name":"a","description":""},{"name":"b","description":"","timeoutMs":-1},{"name":"c d","description":""}]"#;
    let offer = |partial| format!(r#"{{"type":"offer","atMs":2000,"tools":{tools},"partial":{partial}}}"#);
    assert!(error(&mut it, &offer("false")).starts_with("tools[1].timeoutMs: is not a time"));
    let reply = fields_of(&it.handle(&offer("true"), None).unwrap().unwrap());
    let left_out: Vec<_> =
        reply["leftOut"].as_array().unwrap().iter().map(|it| (&it["tool"], &it["why"])).collect();
    let [(_, first), (name, second)] = left_out[..] else { panic!("{reply}") };
    assert!(first.as_str().unwrap().starts_with("tools[1].timeoutMs: is not a time"), "{first}");
    assert!(name == "c d" && second.as_str().unwrap().starts_with("tools[2].name: "), "{second}");
}

#[test]
fn progress_keeps_its_message_and_loses_content_above_the_limit() {
    let mut it = Pair::new();
    let key = it.call();
    let progress = format!(
        r#"{{"type":"progress","atMs":{},"key":{key},"message":"half","content":{}}}"#,
        it.at,
        text_of(MAX + 1)
    );
    assert_eq!(it.client.handle(&progress, None), Ok(None));
    let (_, of_assistant) = it.run();
    let told = of_assistant.iter().find(|output| output["type"] == "progress" && output["message"] == "half");
    assert!(told.is_some_and(|output| output.get("content").is_none()), "{of_assistant:#?}");
}

#[test]
fn view_above_the_limit_is_not_shown() {
    let mut it = create("assistant", "{}");
    let show = |bytes| {
        let content = text_of(bytes);
        format!(r#"{{"type":"show_view","atMs":2000,"view":"v","content":{content}}}"#)
    };
    for (bytes, limit) in [(MAX + 1, MAX), (MAX, 64 * 1024)] {
        let failed = fields_of(&it.handle(&show(bytes), None).unwrap().unwrap());
        assert_eq!(failed["type"], "failed");
        let message = failed["message"].as_str().unwrap();
        assert!(message.ends_with(&format!("bytes exceed the limit of {limit}")), "{message}");
    }
    assert_eq!(it.handle(&show(1_000), None).unwrap().unwrap(), r#"{"type":"done"}"#);
}

#[test]
fn events_that_nobody_listens_to_are_no_outputs() {
    let events = |it: &mut JsonSession| {
        let outputs = std::iter::from_fn(|| it.next_output());
        outputs.filter(|text| text.starts_with(r#"{"type":"event""#)).collect::<Vec<_>>()
    };
    let joined = r#"{"type":"participant_joined","atMs":1000,"participant":{"identity":"a","sid":"PA_a"}}"#;
    let left = r#"{"type":"participant_left","atMs":1000,"peer":{"identity":"a","sid":"PA_a"}}"#;
    let mut it = create("assistant", "{}");
    it.handle(joined, None).unwrap();
    assert!(events(&mut it)[0].starts_with(r#"{"type":"event","event":"joined""#));
    it.handle(r#"{"type":"listen","atMs":1000,"events":["left"]}"#, None).unwrap();
    it.handle(left, None).unwrap();
    it.handle(joined, None).unwrap();
    assert_eq!(events(&mut it), [r#"{"type":"event","event":"left","peer":{"identity":"a","sid":"PA_a"}}"#]);
}
