//! Secrets planted in every field of every type of frame, and looked for in what `redact` and a recorder leave.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value, json};
use toolbridge::{
    frame::{Frame, Kind},
    recording::{
        Direction, Entry, Happened, Moment, Recorded, Recorder, RecorderOptions, Recording, Redact,
        RoomEvent, calls, entry_json, redact, repair, report,
    },
    transport::Peer,
};

use crate::{
    folder::Folder,
    secrets::{assert_free, has, packets},
};

const SECRET: &str = "planted-hunter2";

/// The fields that hold ids and names, which stay.
const STAYS: &[&str] = &[
    "id",
    "requestId",
    "request_id",
    "resultId",
    "result_id",
    "previousId",
    "messageId",
    "message_id",
    "conversationId",
    "conversation_id",
    "originatingId",
    "originating_id",
    "acknowledgedMessageId",
    "acknowledged_message_id",
    "targetId",
    "target_id",
    "toolName",
    "tool_name",
    "view",
    "status",
];

/// The golden frames as JSON, without their duplicates by other makers.
fn golden() -> Vec<(String, Value)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/frames");
    let paths = fs::read_dir(folder).unwrap().map(|it| it.unwrap().path());
    let mut paths: Vec<_> = paths.filter(|path| path.extension().is_some_and(|it| it == "json")).collect();
    paths.sort();
    let read = |path: PathBuf| {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        (name, serde_json::from_slice(&fs::read(&path).unwrap()).unwrap())
    };
    paths.into_iter().map(read).collect()
}

/// Puts the secret into every text but ids and names, and into fields and keys that no type lists.
fn plant(value: &mut Value, is_body: bool) {
    match value {
        Value::Object(map) => {
            for (key, value) in map.iter_mut() {
                if !(is_body && STAYS.contains(&key.as_str())) {
                    plant(value, false);
                }
            }
            map.insert("unlisted".to_owned(), json!([{"deep": SECRET}, SECRET]));
            map.insert(format!("{SECRET} as a key"), json!(1));
        }
        Value::Array(list) => list.iter_mut().for_each(|value| plant(value, false)),
        Value::String(text) => SECRET.clone_into(text),
        _ => {}
    }
}

fn planted(frame: &Value) -> Value {
    let mut frame = frame.clone();
    let fields = frame.as_object_mut().unwrap();
    fields.remove("name");
    if let Some(body) = fields.get_mut("body") {
        plant(body, true);
        // The names of tools stay, their texts do not.
        if let Some(tools) = body.get_mut("tools").and_then(Value::as_array_mut) {
            tools.iter_mut().for_each(|tool| tool["name"] = json!("some_tool"));
        }
    }
    let meta = fields.entry("meta").or_insert_with(|| Value::Object(Map::new()));
    plant(meta, false);
    for key in [
        "bridge.instance",
        "bridge.to",
        "bridge.batch.id",
        "bridge.batch.index",
        "traceparent",
        "tracestate",
        "messaging.trace_id",
        "bridge.acp.title",
        "bridge.acp.kind",
        "bridge.acp.locations",
        "bridge.rap.call_id",
        "bridge.heard",
        "bridge.redacted",
    ] {
        meta[key] = json!(SECRET);
    }
    // `extra` holds further keys of the envelope.
    let extra = json!({"unlisted": {"deep": SECRET}, (format!("{SECRET} as a key")): 1});
    fields.insert("extra".to_owned(), extra);
    frame
}

/// The payload, with and without the secret in texts that decide how the frame is read.
fn payloads(frame: &Value) -> Vec<Vec<u8>> {
    let mut payloads = Vec::new();
    let whole = planted(frame);
    payloads.extend(Frame::from_json(&whole.to_string()).map(|it| it.into_bytes().to_vec()));
    let mut readable = whole;
    // A frame that no reader understands is replaced as a whole, which says nothing about its fields.
    for field in
        ["success", "execution", "status", "code", "severity", "recoverable", "toolCount", "features"]
    {
        if let Some(value) = frame["body"].get(field) {
            readable["body"][field] = value.clone();
        }
    }
    payloads.extend(Frame::from_json(&readable.to_string()).map(|it| it.into_bytes().to_vec()));
    payloads
}

fn entry(number: u64, payload: impl Into<bytes::Bytes>) -> Entry {
    let from = Peer::new("assistant", "PA_2");
    Entry::new(Moment(number), Happened::Packet(Recorded::new(Direction::Heard, from, payload)))
}

/// Records these payloads.
fn record(path: &Path, rule: Redact, payloads: &[Vec<u8>]) {
    let recorder = Recorder::create(path, RecorderOptions::default().redact(rule)).unwrap();
    let here = RoomEvent::Here { identity: "phone".into(), sid: "PA_1".into(), room: "kitchen".to_owned() };
    recorder.record(Entry::new(Moment(1), Happened::Event(here)));
    for (at, payload) in payloads.iter().enumerate() {
        recorder.record(entry(at as u64 + 2, payload.clone()));
    }
    recorder.finish().unwrap();
}

/// Looks for the secret in the file, in what `export` writes of it, and in its report.
fn assert_clean(path: &Path, what: &str, count: usize) {
    let packets = packets(path);
    assert_eq!(packets.len(), count, "{what}");
    for packet in &packets {
        assert_free(what, &packet.payload, &[SECRET]);
    }
    let entries: Vec<_> = Recording::open(path).unwrap().entries().collect();
    for (at, entry) in entries.iter().enumerate() {
        assert_free(what, entry_json(at, entry).to_string().as_bytes(), &[SECRET]);
    }
    let page = report(entries.clone(), &calls(entries).calls, "report");
    assert_free(what, page.as_bytes(), &[SECRET]);
}

#[test]
fn sec_p3_secret_in_any_field_of_any_type_is_in_no_redacted_file() {
    let folder = Folder::new();
    let (mut all, mut kinds) = (Vec::new(), std::collections::BTreeSet::new());
    for (_, frame) in golden() {
        for payload in payloads(&frame) {
            assert!(has(&payload, SECRET));
            if let Ok(frame) = Frame::decode(payload.clone()).and_then(|it| it.message().map(|_| it)) {
                kinds.insert(frame.kind());
            }
            all.push(payload);
        }
    }
    // A type that no version defines yet.
    let later = json!({"stanzaId": 4, "conversationId": "r", "type": 999, "meta": {}, "body": {"x": SECRET}});
    all.push(Frame::from_json(&later.to_string()).unwrap().into_bytes().to_vec());
    let known = [1, 6, 7, 8, 10, 12, 70, 71, 72, 1000, 1001];
    assert!(known.into_iter().all(|code| kinds.contains(&Kind::new(code))), "{kinds:?}");
    assert!(all.len() > 100, "{}", all.len());

    let (raw, shared, live) = (folder.file("raw.mcap"), folder.file("shared.mcap"), folder.file("live.mcap"));
    record(&raw, Redact::nothing(), &all);
    assert!(packets(&raw).iter().all(|packet| has(&packet.payload, SECRET)));
    redact(&raw, &shared, Redact::everything(), false).unwrap();
    assert_clean(&shared, "a redacted file", all.len());
    record(&live, Redact::everything(), &all);
    assert_clean(&live, "a file that was redacted while it was recorded", all.len());
    // A tool that is kept changes nothing for the others.
    let kept = folder.file("kept.mcap");
    redact(&raw, &kept, Redact::everything().keep("no_such_tool"), false).unwrap();
    assert_clean(&kept, "a file of which another tool is kept", all.len());
    // Once redacted, a file stays as it is.
    let again = folder.file("again.mcap");
    redact(&shared, &again, Redact::everything(), false).unwrap();
    assert_eq!(packets(&again), packets(&shared));
}

#[test]
fn sec_p3_everything_about_a_call_of_a_hidden_tool_is_hidden() {
    let folder = Folder::new();
    let mut kinds = std::collections::BTreeMap::new();
    for (name, frame) in golden() {
        let kind = frame["type"].as_u64().unwrap_or(0);
        let field = match kind {
            1 => "originatingId",
            6 | 7 | 1000 => "id",
            8 => "acknowledgedMessageId",
            10 => "targetId",
            _ => continue,
        };
        let id = "call-1";
        let mut about = planted(&frame);
        let body = about["body"].as_object_mut().unwrap();
        for other in [
            "requestId",
            "request_id",
            "previousId",
            "originating_id",
            "acknowledged_message_id",
            "target_id",
        ] {
            body.remove(other);
        }
        body.insert(field.to_owned(), json!(id));
        if kind == 6 {
            body.remove("tool_name");
            body.insert("toolName".to_owned(), json!("read_diary"));
        }
        let Ok(about) = Frame::from_json(&about.to_string()) else { continue };
        let request = |tool: &str| {
            let body = json!({"id": id, "toolName": tool, "parameters": {}, "execution": "client"});
            let frame = json!({"stanzaId": 1, "conversationId": "r", "type": 6, "meta": {}, "body": body});
            Frame::from_json(&frame.to_string()).unwrap().into_bytes().to_vec()
        };
        let about = about.into_bytes().to_vec();
        let path = folder.file(&format!("{name}.mcap"));
        record(&path, Redact::default().tool("read_diary"), &[request("read_diary"), about.clone()]);
        assert_clean(&path, &name, 2);
        *kinds.entry(kind).or_insert(0) += 1;
        if kind != 6 {
            let path = folder.file(&format!("{name}-other.mcap"));
            record(&path, Redact::default().tool("read_diary"), &[request("get_battery"), about]);
            assert!(has(&packets(&path)[1].payload, SECRET), "{name}: another tool's data stays");
        }
    }
    let seen: Vec<_> = kinds.into_keys().collect();
    assert_eq!(seen, [1, 6, 7, 8, 10, 1000]);
}

#[test]
fn hidden_tool_in_a_call_about_it_is_hidden() {
    let folder = Folder::new();
    let call = |id: &str, tool: &str, parameters: Value| {
        let body = json!({"id": id, "toolName": tool, "parameters": parameters, "execution": "client"});
        let frame = json!({"stanzaId": 1, "conversationId": "r", "type": 6, "meta": {}, "body": body});
        Frame::from_json(&frame.to_string()).unwrap().into_bytes().to_vec()
    };
    let result = |id: &str| {
        let body = json!({"id": id, "success": true, "result": {"text": SECRET}});
        let frame = json!({"stanzaId": 1, "conversationId": "r", "type": 7, "meta": {}, "body": body});
        Frame::from_json(&frame.to_string()).unwrap().into_bytes().to_vec()
    };
    let all = [
        call("a", "watch_diary", json!({"day": SECRET})),
        result("a"),
        call("b", "bridge.event", json!({"call": "a", "tool": "watch_diary", "event": SECRET})),
        result("b"),
        call("c", "bridge.event", json!({"call": "a", "event": SECRET})),
        call(
            "d",
            "bridge.permission",
            json!({"toolCall": {"name": "watch_diary", "rawInput": {"x": SECRET}}, "options": []}),
        ),
        result("d"),
        call(
            "e",
            "bridge.permission",
            json!({"toolCall": {"title": "x"}, "others": [{"name": "lamp"}, {"name": "watch_diary", "title": SECRET}]}),
        ),
        // A call that is named by its id alone, as the first and as a further one.
        call("f", "bridge.permission", json!({"toolCall": {"toolCallId": "a", "title": SECRET}})),
        call(
            "g",
            "bridge.permission",
            json!({"toolCall": {"name": "lamp"}, "others": [{"title": "x"}, {"toolCallId": "a", "title": SECRET}]}),
        ),
        result("g"),
        // A form that the protocol does not define.
        call("h", "bridge.permission", json!({"others": {"first": {"toolCallId": "a", "title": SECRET}}})),
        // The same id for another tool, before and after.
        call("a", "get_battery", json!({})),
        result("z"),
        call("z", "watch_diary", json!({})),
        result("z"),
    ];
    let path = folder.file("events.mcap");
    record(&path, Redact::default().tool("watch_diary"), &all);
    let found: Vec<_> = packets(&path).iter().map(|packet| has(&packet.payload, SECRET)).collect();
    let expected: Vec<_> = (0..all.len()).map(|at| at == 13).collect();
    assert_eq!(found, expected);
}

#[test]
fn question_about_an_unknown_call_is_hidden_if_the_call_may_be() {
    let folder = Folder::new();
    let question = |call: Value| {
        let parameters = json!({"toolCall": {"name": "lamp"}, "others": [call]});
        let body = json!({"id": "q", "toolName": "bridge.permission", "parameters": parameters, "execution": "client"});
        let frame = json!({"stanzaId": 1, "conversationId": "r", "type": 6, "meta": {}, "body": body});
        Frame::from_json(&frame.to_string()).unwrap().into_bytes().to_vec()
    };
    let unknown = question(json!({"toolCallId": "gone", "title": SECRET}));
    let named = question(json!({"toolCallId": "gone", "name": "lamp", "title": SECRET}));
    let keeps_both = Redact::everything().keep("bridge.permission").keep("lamp");
    let path = folder.file("kept.mcap");
    record(&path, keeps_both, &[unknown.clone(), named]);
    let found: Vec<_> = packets(&path).iter().map(|packet| has(&packet.payload, SECRET)).collect();
    assert_eq!(found, [false, true], "a call that is not known is judged by its tool");

    let path = folder.file("lost.mcap");
    let rule = Redact::default().tool("read_diary");
    let recorder = Recorder::create(&path, RecorderOptions::default().redact(rule)).unwrap();
    recorder.record(entry(1, unknown.clone()));
    recorder.record(Entry::new(Moment(2), Happened::Event(RoomEvent::Unrecorded { packets: 1 })));
    recorder.record(entry(3, unknown));
    recorder.finish().unwrap();
    let found: Vec<_> = packets(&path).iter().map(|packet| has(&packet.payload, SECRET)).collect();
    assert_eq!(found, [true, false], "after a gap the call may be one of the hidden tool");
}

#[test]
fn lost_requests_make_unknown_results_hidden() {
    let folder = Folder::new();
    let (raw, shared) = (folder.file("raw.mcap"), folder.file("shared.mcap"));
    let recorder = Recorder::create(&raw, RecorderOptions::default().redact(Redact::nothing())).unwrap();
    let body = json!({"id": "a", "success": true, "result": {"text": SECRET}});
    let frame = json!({"stanzaId": 1, "conversationId": "r", "type": 7, "meta": {}, "body": body});
    recorder.record(Entry::new(Moment(1), Happened::Event(RoomEvent::Unrecorded { packets: 1 })));
    recorder.record(entry(2, Frame::from_json(&frame.to_string()).unwrap().into_bytes()));
    let message = format!("no room for {SECRET}");
    let unasked = RoomEvent::Unasked {
        call: "u".to_owned(),
        tool: "read_diary".to_owned(),
        code: "busy".to_owned(),
        message,
        took_ms: 1,
    };
    recorder.record(Entry::new(Moment(3), Happened::Event(unasked)));
    recorder.finish().unwrap();
    redact(&raw, &shared, Redact::default().tool("read_diary"), false).unwrap();
    assert_clean(&shared, "a file with a gap", 1);
    let texts: Vec<_> =
        Recording::open(&shared).unwrap().entries().map(|entry| format!("{entry:?}")).collect();
    assert!(texts.concat().contains("<redacted: string, 27 bytes>"), "{texts:?}");
    let mended = folder.file("mended.mcap");
    repair(&raw, &mended, false).unwrap();
    assert!(has(&packets(&mended)[0].payload, SECRET), "a repair changes nothing");
}
