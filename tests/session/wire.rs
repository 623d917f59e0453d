//! Frames through the public API: written frames read back, and every dialect reads alike.

use serde_json::json;
use toolbridge::{
    CallId, DecodeError, EncodeError, ErrorCode, Value,
    frame::{
        Acknowledgement, Configuration, ControlStop, ErrorMessage, Frame, Kind, Message, Meta,
        RegisteredTool, ToolProgress, ToolUseRequest, ToolUseResult, ToolsRegister, ToolsRegisterAck,
    },
    tools::{Execution, ProgressStatus},
};

fn request() -> ToolUseRequest {
    with!(
        ToolUseRequest::new(
            "V1StGXR8_Z5jdHi6B-myT".parse().unwrap(),
            "find_contact",
            json!({"name": "Ada", "limit": 3}).into(),
            Ok(Execution::Client)
        ),
        timeout_ms = Some(5000),
        conversation_id = Some("room".into()),
        message_id = Some("msg_1".into())
    )
}

fn result() -> ToolUseResult {
    with!(
        ToolUseResult::new("V1StGXR8_Z5jdHi6B-myT".parse().unwrap(), true),
        result = Some(json!({"number": "+39 06"}).into()),
        conversation_id = Some("room".into())
    )
}

/// One message of each type, with all fields.
fn messages() -> Vec<Message> {
    vec![
        Message::Error(with!(
            ErrorMessage::default(),
            id = "e1".into(),
            conversation_id = "room".into(),
            code = 301,
            message = "no such execution".into(),
            severity = 2,
            recoverable = true,
            originating_id = Some("call".into())
        )),
        Message::ToolUseRequest(request()),
        Message::ToolUseResult(result()),
        Message::Acknowledgement(with!(
            Acknowledgement::default(),
            conversation_id = Some("room".into()),
            acknowledged_stanza_id = Some(-4),
            success = Some(true),
            acknowledged_message_id = Some("call".into()),
            last_seen_stanza_id = Some(9),
            notes = Some("claim".into())
        )),
        Message::ControlStop(with!(
            ControlStop::default(),
            conversation_id = Some("room".into()),
            target_id = Some("call".into()),
            reason = Some("barge-in".into()),
            stop_type = Some("all".into())
        )),
        Message::Configuration(with!(
            Configuration::default(),
            conversation_id = Some("room".into()),
            last_sequence_seen = Some(7),
            client_version = Some("1.0".into()),
            preferred_language = Some("it".into()),
            device = Some("phone".into()),
            features = Some(vec!["tool_use".into(), "tool_ack".into()])
        )),
        Message::ToolsRegister(with!(
            ToolsRegister::default(),
            tools = vec![
                with!(
                    RegisteredTool::default(),
                    name = "find_contact".into(),
                    description = "Phone number of a contact".into(),
                    input_schema = Some(json!({"type": "object"}).into()),
                    annotations = Some(json!({"destructive": false}).into())
                ),
                with!(RegisteredTool::default(), name = "get_battery".into()),
            ]
        )),
        Message::ToolsRegisterAck(with!(
            ToolsRegisterAck::default(),
            success = false,
            tool_count = 0,
            error = Some("a clash".into())
        )),
        Message::Heartbeat,
        Message::ToolProgress(with!(
            ToolProgress::new("call".parse().unwrap(), ProgressStatus::InProgress),
            content = Some(json!([1, 2.5, null]).into()),
            message = Some("2 of 3".into())
        )),
        Message::Other(2, json!({"text": "hello"}).into()),
    ]
}

fn read(json: impl Into<serde_json::Value>) -> Result<Message, DecodeError> {
    Frame::from_json(&json.into().to_string())?.message()
}

fn read_result(body: impl Into<serde_json::Value>) -> Result<ToolUseResult, DecodeError> {
    match read(json!({"stanzaId": 1, "type": 7, "body": body.into()}))? {
        Message::ToolUseResult(result) => Ok(result),
        other => panic!("{other:?}"),
    }
}

fn read_request(body: impl Into<serde_json::Value>) -> Result<ToolUseRequest, DecodeError> {
    match read(json!({"stanzaId": -1, "type": 6, "body": body.into()}))? {
        Message::ToolUseRequest(request) => Ok(request),
        other => panic!("{other:?}"),
    }
}

#[test]
fn written_frame_reads_back() {
    let meta = Meta::new().with_text("bridge.to", "00ff").with_bool("bridge.heard", true);
    for message in messages() {
        let bytes = Frame::write(-3, "room", &meta, &message).unwrap();
        let frame = Frame::decode(bytes.clone()).unwrap();
        assert_eq!(frame.kind(), message.kind());
        assert_eq!(frame.stanza_id(), Some(-3));
        assert_eq!(frame.conversation_id(), Some("room"));
        assert_eq!(frame.meta_str("bridge.to"), Some("00ff"));
        assert!(frame.meta_bool("bridge.heard") && !frame.meta_bool("bridge.to"));
        assert_eq!(frame.message().unwrap(), message);

        let again = Frame::from_json(&frame.to_json().unwrap().to_string()).unwrap();
        assert_eq!(again.to_json().unwrap(), frame.to_json().unwrap());
        assert_eq!(again.message().unwrap(), message);

        let mut relayed = vec![1, 2, 3];
        Frame::relay(&mut relayed, -3, "room", &meta, frame.kind(), frame.body_bytes()).unwrap();
        assert_eq!(relayed, bytes);
    }
}

#[test]
fn live_writer_adds_fields_for_older_peers() {
    let bare = with!(request(), conversation_id = None, message_id = None, timeout_ms = None);
    let frame =
        Frame::decode(Frame::write(-1, "room", &Meta::new(), &Message::ToolUseRequest(bare)).unwrap())
            .unwrap();
    let json = frame.to_json().unwrap();
    assert_eq!(json["body"]["conversationId"], "room");
    assert_eq!(json["body"]["messageId"], json["body"]["id"]);
    assert!(json["body"].get("timeoutMs").is_none());

    let bare = with!(result(), result = Some(Value::encode(&41.5).unwrap()), conversation_id = None);
    let frame =
        Frame::decode(Frame::write(1, "room", &Meta::new(), &Message::ToolUseResult(bare)).unwrap()).unwrap();
    let json = frame.to_json().unwrap();
    assert_eq!(json["body"]["requestId"], json["body"]["id"]);
    assert_eq!(json["body"]["result"], json!({"value": 41.5}));
    assert_eq!(frame.body().get("result").unwrap().decode::<f64>().unwrap(), 41.5);

    let bare = with!(result(), success = false, result = None);
    let frame =
        Frame::decode(Frame::write(1, "", &Meta::new(), &Message::ToolUseResult(bare)).unwrap()).unwrap();
    let json = frame.to_json().unwrap();
    assert_eq!(json["body"]["errorCode"], "execution_error");
    assert!(!json["body"]["errorMessage"].as_str().unwrap().is_empty());
}

#[test]
fn frames_that_break_the_contract_are_not_written() {
    let write = |stanza, message| Frame::write(stanza, "room", &Meta::new(), &message);
    let list = with!(request(), parameters = json!([1]).into());
    let error = write(-1, Message::ToolUseRequest(list)).unwrap_err();
    assert_eq!(error, EncodeError::NotAMap { field: "parameters" });
    let odd = with!(request(), execution = Err("both".into()));
    assert!(matches!(
        write(-1, Message::ToolUseRequest(odd)),
        Err(EncodeError::Field { field: "execution", .. })
    ));
    assert!(matches!(write(0, Message::Heartbeat), Err(EncodeError::Field { field: "stanzaId", .. })));
    assert!(matches!(write(i32::MIN, Message::Heartbeat), Err(EncodeError::Field { field: "stanzaId", .. })));
    assert!(write(0, Message::Acknowledgement(Acknowledgement::default())).is_ok());
    let meta = Meta::new().with_text("type", "7");
    assert!(Frame::write(1, "room", &meta, &Message::Heartbeat).is_err());
    let large = Value::from(json!("x".repeat(16 * 1024 * 1024)));
    assert!(matches!(
        write(1, Message::Other(2, large)),
        Err(EncodeError::TooLarge { limit: 16_777_216, .. })
    ));

    // Absent arguments are the empty map.
    let none = with!(request(), parameters = Value::nil());
    let frame = Frame::decode(write(-1, Message::ToolUseRequest(none)).unwrap()).unwrap();
    assert_eq!(frame.body().get("parameters").unwrap(), Value::empty());
}

#[test]
fn protocol_a2_result_without_success_is_malformed() {
    assert_eq!(read_result(json!({"id": "a"})).unwrap_err(), DecodeError::Missing { field: "success" });
    assert_eq!(
        read_result(json!({"id": "a", "success": null})),
        Err(DecodeError::Missing { field: "success" })
    );
    for odd in [json!("true"), json!(1), json!({})] {
        let error = read_result(json!({"id": "a", "success": odd})).unwrap_err();
        assert!(matches!(error, DecodeError::Field { field: "success", .. }), "{error}");
    }
    assert!(read_result(json!({"id": "a", "success": true})).unwrap().success);
    assert!(!read_result(json!({"id": "a", "success": false})).unwrap().success);
    assert_eq!(DecodeError::CODE, 101);
}

#[test]
fn protocol_a3_result_keeps_its_values_exactly() {
    let written = json!({
        "map": {"list": [1, 1.0, -0.0, 18_446_744_073_709_551_615_u64, i64::MIN, null, true, "日本"]},
        "bin": {"$bin": "AP8="},
        "ext": {"$ext": [5, "AQI="]},
        "float": {"$float": "NaN"},
        "odd": {"$map": [[1, "one"], [{"$bin": ""}, 2]]},
    });
    let body = Value::from_json(&written.to_string()).unwrap();
    let message = Message::ToolUseResult(with!(result(), result = Some(body.clone())));
    let frame = Frame::decode(Frame::write(1, "room", &Meta::new(), &message).unwrap()).unwrap();
    let Message::ToolUseResult(read) = frame.message().unwrap() else { panic!() };
    assert_eq!(read.result.as_ref().unwrap().as_bytes(), body.as_bytes());
    assert_eq!(read.result.unwrap().to_json(), written);
    let json = frame.to_json().unwrap().to_string();
    assert!(
        json.contains("[1,1.0,-0.0,18446744073709551615,-9223372036854775808,null,true,\"日本\"]"),
        "{json}"
    );
}

#[test]
fn protocol_a4_failure_decodes_with_any_result_or_none() {
    let failed = |result: Option<serde_json::Value>| {
        let mut body =
            json!({"id": "a", "success": false, "errorCode": "too_dark", "errorMessage": "no light"});
        if let Some(result) = result {
            body["result"] = result;
        }
        let read = read_result(body).unwrap();
        assert_eq!(read.error_code, Some(ErrorCode::from("too_dark")));
        assert_eq!(read.error_message.as_deref(), Some("no light"));
        read.result
    };
    assert_eq!(failed(None), None);
    assert_eq!(failed(Some(json!(null))), None);
    assert_eq!(failed(Some(json!({"$ext": [0, "AA=="]}))), None);
    assert_eq!(failed(Some(json!({"half": 1}))).unwrap().to_json(), json!({"half": 1}));
}

#[test]
fn protocol_a16_unknown_types_and_keys_are_kept() {
    let frame = Frame::from_json(r#"{"stanzaId": 4, "type": 4711, "body": [1, {"$bin": "AA=="}]}"#).unwrap();
    assert_eq!(frame.message().unwrap(), Message::Other(4711, frame.body()));
    assert_eq!(frame.to_json().unwrap()["name"], "Unknown");
    assert_eq!(frame.to_json().unwrap()["body"], json!([1, {"$bin": "AA=="}]));

    let json = json!({
        "stanzaId": null, "conversationId": "", "type": 7, "name": "ToolUseResult", "meta": {"timestamp": 5},
        "body": {"id": "a", "success": true, "durationMs": 12, "spare_key": null},
        "extra": {"hop": [1]},
    });
    let frame = Frame::from_json(&json.to_string()).unwrap();
    assert_eq!(frame.to_json().unwrap(), json);
    assert_eq!(frame.conversation_id(), Some(""));
    assert_eq!(frame.stanza_id(), None);
    assert!(frame.message().is_ok());
}

#[test]
fn protocol_a22_aliases_are_read_alike() {
    let correlated = [
        json!({"id": "r", "success": true}),
        json!({"requestId": "r", "id": "own", "success": true}),
        json!({"request_id": "r", "id": "own", "success": true}),
        json!({"previousId": "r", "success": true}),
        json!({"previousId": "r", "id": "", "success": true}),
        json!({"requestId": "", "request_id": "r", "success": true}),
        json!({"requestId": "r", "request_id": "r", "id": "r", "success": true}),
        json!({"requestId": null, "id": "r", "previousId": "older", "success": true}),
    ];
    for body in correlated {
        let json = json!({"stanzaId": 1, "type": 7, "body": body}).to_string();
        assert_eq!(read_result(body.clone()).unwrap().id, CallId::try_from("r").unwrap(), "{body}");
        assert_eq!(Frame::from_json(&json).unwrap().peek_id(), Some("r"), "{body}");
    }
    let own = json!({"stanzaId": 1, "type": 7, "body": {"requestId": "r", "id": "own", "success": true, "data": 5}});
    let shown = Frame::from_json(&own.to_string()).unwrap().to_json().unwrap();
    assert_eq!(
        shown["body"],
        json!({"id": "r", "success": true, "result": 5, "requestId": "r", "resultId": "own"})
    );
    assert_eq!(Frame::from_json(&shown.to_string()).unwrap().to_json().unwrap(), shown);
    assert_eq!(read_result(json!({"success": true})).unwrap_err(), DecodeError::Missing { field: "id" });

    let asked = [
        json!({"id": "a", "toolName": "t", "parameters": {"x": 1}, "execution": "client", "timeoutMs": 7}),
        json!({"id": "a", "tool_name": "t", "arguments": {"x": 1}, "execution": "client", "timeout_ms": 7.0}),
        json!({"id": "a", "toolName": "t", "tool_name": "t", "parameters": {"x": 1}, "arguments": {"x": 1},
            "execution": "client", "timeoutMs": 7, "timeout_ms": 7.0}),
        json!({"id": "a", "toolName": "t", "parameters": null, "arguments": {"x": 1}, "execution": "client",
            "timeoutMs": 7, "messageId": {"$ext": [0, "AA=="]}}),
    ];
    let first = read_request(asked[0].clone()).unwrap();
    for body in &asked {
        assert_eq!(&read_request(body.clone()).unwrap(), &first, "{body}");
    }
    assert_eq!(read_request(json!({"id": "a", "toolName": "t"})).unwrap().parameters, Value::empty());
    assert_eq!(read_request(json!({"id": "a", "toolName": "t"})).unwrap().execution, Err(String::new()));
    let odd =
        read_request(json!({"id": "a", "toolName": "t", "execution": "both", "parameters": [1]})).unwrap();
    assert_eq!(odd.execution, Err("both".into()));
    assert_eq!(odd.parameters.to_json(), json!([1]));

    let failed = [
        json!({"id": "a", "success": false, "errorCode": "TIMEOUT", "errorMessage": "late"}),
        json!({"id": "a", "success": false, "error_code": "timeout", "error_message": "late"}),
        json!({"id": "a", "success": false, "errorCode": "timeout", "error": "late"}),
        json!({"id": "a", "success": false, "error": {"code": "TIMEOUT", "message": "late"}}),
        json!({"id": "a", "success": false, "errorCode": "timeout", "errorMessage": "late", "error": "late"}),
    ];
    for body in failed {
        let read = read_result(body.clone()).unwrap();
        assert_eq!(read.error_code, Some(ErrorCode::TIMEOUT), "{body}");
        assert_eq!(read.error_message.as_deref(), Some("late"), "{body}");
    }
    let read = read_result(json!({"id": "a", "success": false, "error": {"why": 1}})).unwrap();
    assert_eq!((read.error_code, read.error_message.as_deref()), (None, Some(r#"{"why":1}"#)));
    let custom = read_result(json!({"id": "a", "success": false, "errorCode": "TOO_DARK"})).unwrap();
    assert_eq!(custom.error_code, Some(ErrorCode::from("TOO_DARK")));
    for unlike in
        [json!({"errorMessage": "a", "error": "b"}), json!({"errorCode": "a", "error": {"code": "b"}})]
    {
        let mut body = json!({"id": "a", "success": false});
        body.as_object_mut().unwrap().extend(unlike.as_object().unwrap().clone());
        assert!(matches!(read_result(body), Err(DecodeError::Unlike { .. })));
    }
}

#[test]
fn special_name_of_canonical_json_may_be_a_key_anywhere() {
    let word = json!({"$map": [["$bin", 1]]});
    for place in ["meta", "body", "extra"] {
        let mut json = json!({"stanzaId": 1, "conversationId": null, "type": 72, "name": "Heartbeat", "meta": {}, "body": {}});
        json[place] = word.clone();
        assert_eq!(Frame::from_json(&json.to_string()).unwrap().to_json().unwrap(), json);
    }
    for odd in [json!([]), json!(5), json!({"$bin": ""}), json!({"$map": [[1, 2]]})] {
        assert!(Frame::from_json(&json!({"type": 72, "extra": odd}).to_string()).is_err());
    }
}

#[test]
fn sec_c2_ambiguous_encodings_are_refused() {
    let both = json!({"id": "a", "toolName": "t", "execution": "client", "parameters": {"x": 1}, "arguments": {"x": 2}});
    assert!(matches!(read_request(both), Err(DecodeError::Unlike { field: "parameters", .. })));
    let both = json!({"requestId": "a", "request_id": "b", "success": true});
    assert!(matches!(read_result(both), Err(DecodeError::Unlike { field: "requestId", .. })));
    let both = json!({"stanzaId": 1, "type": 72, "extra": {"stanza_id": 2}});
    assert!(matches!(
        Frame::from_json(&both.to_string()),
        Err(DecodeError::Unlike { field: "stanzaId", .. })
    ));

    let stanza = |value: serde_json::Value| {
        let json = json!({"stanzaId": value, "type": 72, "body": {}});
        Frame::from_json(&json.to_string()).map(|frame| frame.stanza_id())
    };
    assert!(matches!(stanza(json!(i32::MIN)), Err(DecodeError::Field { field: "stanzaId", .. })));
    assert_eq!(stanza(json!(0)).unwrap(), Some(0));
    assert_eq!(stanza(json!(-0.0)).unwrap(), Some(0));
    assert_eq!(stanza(json!(-7.0)).unwrap(), Some(-7));
    assert_eq!(stanza(json!(null)).unwrap(), None);
    for odd in [json!({"$float": "NaN"}), json!(1e300), json!(0.5), json!(i64::MAX), json!("1"), json!(true)]
    {
        assert!(matches!(stanza(odd), Err(DecodeError::Field { field: "stanzaId", .. })));
    }
}

#[test]
fn id_can_be_read_from_a_malformed_body() {
    let json = json!({"stanzaId": -1, "type": 6, "body": {"id": "call", "toolName": 5}}).to_string();
    let frame = Frame::from_json(&json).unwrap();
    assert!(matches!(frame.message(), Err(DecodeError::Field { field: "toolName", .. })));
    assert_eq!(frame.peek_id(), Some("call"));
    assert_eq!(Frame::from_json(r#"{"type": 6, "body": 5}"#).unwrap().peek_id(), None);
    assert_eq!(Frame::from_json(r#"{"type": 12, "body": {"id": "x"}}"#).unwrap().peek_id(), None);
}

/// `peek_id` reads the names that `message` reads, in every spelling.
#[test]
fn malformed_result_names_its_call_in_every_spelling() {
    for name in ["requestId", "request_id", "id", "previousId", "previous_id"] {
        let result = |success| {
            let json = json!({"type": 7, "body": {name: "a", "success": success}}).to_string();
            Frame::from_json(&json).unwrap()
        };
        let Message::ToolUseResult(read) = result(json!(true)).message().unwrap() else { panic!() };
        assert_eq!(read.id.as_str(), "a");
        let malformed = result(json!(1));
        assert!(malformed.message().is_err());
        assert_eq!(malformed.peek_id(), Some("a"), "{name}");
    }
}

/// Go writes the keys of a map in another order each time, and C++ libraries differ in the width of floats.
#[test]
fn equal_spellings_may_differ_in_the_order_of_keys_and_the_width_of_numbers() {
    let request = |parameters: &[u8], arguments: &[u8]| {
        let head = &b"\x82\xa4type\x06\xa4body\x85\xa2id\xa1a\xa8toolName\xa1t\xa9execution\xa6client"[..];
        let bytes = [head, b"\xaaparameters", parameters, b"\xa9arguments", arguments].concat();
        Frame::decode(bytes).unwrap().message()
    };
    for (parameters, arguments) in [
        (&b"\x82\xa1a\x01\xa1b\x81\xa1c\x02"[..], &b"\x82\xa1b\x81\xa1c\x02\xa1a\xcc\x01"[..]),
        (b"\x81\xa1a\xca\x3f\xc0\x00\x00", b"\x81\xa1a\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00"),
    ] {
        assert!(request(parameters, arguments).is_ok());
    }
    let unlike = request(b"\x82\xa1a\x01\xa1b\x02", b"\x82\xa1a\x02\xa1b\x01");
    assert!(matches!(unlike, Err(DecodeError::Unlike { field: "parameters", .. })));
}

#[test]
fn bodies_may_be_missing_only_where_they_are_empty() {
    assert_eq!(read(json!({"type": 72})).unwrap(), Message::Heartbeat);
    assert_eq!(read(json!({"type": 72, "body": {"x": 1}})).unwrap(), Message::Heartbeat);
    assert_eq!(read(json!({"type": 7})).unwrap_err(), DecodeError::Missing { field: "body" });
    assert_eq!(read(json!({"type": 99})).unwrap(), Message::Other(99, Value::nil()));
    assert!(matches!(read(json!({"type": 72, "body": [1]})), Err(DecodeError::Field { field: "body", .. })));
    assert!(matches!(read(json!({"type": 65536})), Err(DecodeError::Field { field: "type", .. })));
    assert_eq!(read(json!({"body": {}})).unwrap_err(), DecodeError::Missing { field: "type" });
    assert_eq!(Kind::new(4711).name(), "Unknown");
}
