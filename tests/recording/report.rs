//! The report as text: its content policy, its escapes, its limits. The rendering is tested in `tests/e2e/report.rs`.

use std::collections::BTreeSet;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use toolbridge::{
    Identity,
    frame::Frame,
    recording::{RecordedCall, RecordedOutcome, Recording, RoomEvent, calls, report, write_report},
};

use crate::{
    folder::Folder,
    report_sample::{HOSTILE, Sample, afternoon, hostile, long, write_recording},
};

/// The text between these two markers, which appear once.
fn between<'a>(page: &'a str, start: &str, end: &str) -> &'a str {
    assert_eq!(page.matches(start).count(), 1, "{start}");
    let (_, rest) = page.split_once(start).unwrap();
    rest.split_once(end).unwrap().0
}

fn block(page: &str) -> &str {
    between(page, "id=\"data\">", "</script>")
}

fn data(page: &str) -> Value {
    serde_json::from_str(block(page)).unwrap()
}

fn dangerous(character: char) -> bool {
    let invisible = ['\u{200b}', '\u{202e}', '\u{2028}', '\u{2029}', '\u{feff}', '\u{7f}'];
    (character.is_control() && character != '\n') || invisible.contains(&character)
}

#[test]
fn content_policy_allows_only_the_hashes_of_script_and_style() {
    let page = afternoon().page("Kitchen");
    let policy = between(&page, "Content-Security-Policy\" content=\"", "\"");
    let hash = |text: &str| format!("'sha256-{}'", BASE64.encode(Sha256::digest(text)));
    let script = between(&page, "<script>", "</script>");
    let style = between(&page, "<style>", "</style>");
    assert!(policy.starts_with("default-src 'none'; "));
    assert!(policy.contains(&format!("script-src {};", hash(script))), "{policy}");
    assert!(policy.contains(&format!("style-src {};", hash(style))), "{policy}");
    for word in ["unsafe", "http", "data:", "*", "'self'"] {
        assert!(!policy.contains(word), "{word}: {policy}");
    }
    let place = page.find("Content-Security-Policy").unwrap();
    assert!(place < page.find("<style>").unwrap() && place < page.find("<script").unwrap());
}

#[test]
fn page_loads_nothing_from_elsewhere() {
    let page = report(Vec::new(), &[], "empty");
    for word in [
        "src=",
        "href=",
        "@import",
        "url(http",
        "<link",
        "<iframe",
        "<form",
        "<base",
        "sendBeacon",
        "XMLHttp",
    ] {
        assert!(!page.contains(word), "{word}");
    }
}

#[test]
fn empty_recording_makes_a_page() {
    let data = data(&report(Vec::new(), &[], "empty"));
    assert_eq!(data["head"]["all"], json!(["", 0, [0, 0, 0, 0, 0, 0, 0], [null, null, null, null]]));
    assert_eq!(data["head"]["span"], json!([0, 0]));
    assert_eq!(data["calls"], json!([]));
}

#[test]
fn sec_c3_foreign_text_is_not_markup_and_shows_its_control_characters() {
    let page = hostile().page(HOSTILE);
    let plain = report(Vec::new(), &[], "");
    let outside = page.replace(block(&page), "");
    assert_eq!(outside, plain.replace(block(&plain), ""), "foreign text outside of the data block");
    let text = block(&page);
    assert!(!text.contains(['<', '>', '&']));
    assert!(!text.contains(dangerous), "{text}");
    let data = data(&page);
    assert!(
        data["head"]["title"]
            .as_str()
            .unwrap()
            .contains("</script><img src=x onerror=alert(1)>\\u{202e}\\u{1b}[31m")
    );
    let mut strings = Vec::new();
    gather(&data, &mut strings);
    assert!(strings.len() > 20);
    assert!(!strings.iter().any(|it| it.contains(dangerous)), "{strings:?}");
    // A body keeps its value: the escapes are those of JSON.
    let body = data["frames"][0][10][0].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(body).unwrap()["toolName"], HOSTILE);
    // The only address that can be opened is the one that nobody forged.
    let result = data["frames"][2][12].to_string();
    assert_eq!(result.matches("[4,").count(), 1, "{result}");
    assert!(result.contains(r#"[4,"https://a.b/c"]"#) && result.contains("javascript:alert(1"), "{result}");
    // A packet that is not a frame is shown as its bytes, with the reason.
    let broken: Value = serde_json::from_str(data["frames"][1][10][0].as_str().unwrap()).unwrap();
    assert!(
        broken["malformed"].is_string() && broken["bytes"].as_str().unwrap().starts_with("3c2f736372697074")
    );
}

fn gather<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => found.push(text),
        Value::Array(list) => list.iter().for_each(|it| gather(it, found)),
        Value::Object(map) => map.iter().for_each(|(key, it)| {
            found.push(key);
            gather(it, found);
        }),
        _ => {}
    }
}

#[test]
fn page_contains_calls_frames_and_room_events() {
    let sample = afternoon();
    let count = sample.calls.len();
    let data = data(&sample.page("Kitchen"));
    assert_eq!(data["calls"].as_array().unwrap().len(), count);
    assert_eq!(data["head"]["all"][1], count);
    let by_ending = data["head"]["all"][2].as_array().unwrap();
    assert!(by_ending.iter().all(|it| it.as_u64().unwrap() > 0), "{by_ending:?}");
    let places: BTreeSet<u64> =
        data["frames"].as_array().unwrap().iter().map(|frame| frame[0].as_u64().unwrap()).collect();
    for call in data["calls"].as_array().unwrap() {
        for place in call[12].as_array().unwrap() {
            assert!(places.contains(&place.as_u64().unwrap()), "{call}");
        }
    }
    let events: Vec<&str> =
        data["events"].as_array().unwrap().iter().map(|event| event[1].as_str().unwrap()).collect();
    assert_eq!(
        events,
        ["here", "joined", "joined", "joined", "left", "joined", "down", "up", "left", "closed"]
    );
    assert_eq!(data["head"]["room"]["name"], "kitchen");
    let omitted = data["omitted"].as_object().unwrap();
    assert!(omitted.values().all(|count| count == 0), "{omitted:?}");
}

/// The results with parts of a page: their sections, what is spoken, whether the model runs, and the native document.
fn results(data: &Value) -> Vec<&Value> {
    let results = data["frames"].as_array().unwrap().iter().map(|frame| &frame[12]);
    results.filter(|result| !result.is_null()).collect()
}

#[test]
fn result_with_parts_is_in_the_page_as_a_person_sees_it() {
    let data = data(&afternoon().page("Kitchen"));
    let results = results(&data);
    let with_title = |title: &str| {
        let mut found = results.iter().filter(|it| it[0].as_array().unwrap().iter().any(|it| it[0] == title));
        *found.next().unwrap_or_else(|| panic!("no {title}: {results:?}"))
    };
    let note = with_title("notes/shopping.md");
    assert_eq!(note[0][0][1], "+2 −1");
    assert_eq!(note[0][0][3][0], json!([6, "@@ -2,5 +2,6 @@"]));
    assert_eq!(note[0][1], json!(["", "exit status 0", false, [[3, "1 note sorted"]], 0]));
    assert_eq!((&note[0][2][0], &note[0][2][1]), (&json!("notes/index.md"), &json!("+1 −1")));
    assert_eq!(note[0][3][3][0], json!([0, "Shopping list <", [4, "https://notes.example/shopping"], ">"]));
    let native =
        json!({"content": [{"type": "text", "text": "2 lines changed"}], "structuredContent": {"lines": 2}});
    assert_eq!(note[3], json!(["mcp", native.to_string(), native.to_string().len()]));
    assert_eq!((&note[1], &note[2]), (&Value::Null, &json!(true)));
    let form = with_title("When and for how many?");
    assert_eq!((&form[1], &form[2]), (&json!("When and for how many?"), &json!(false)));
    // What is for the model alone is not shown to a person.
    assert!(!json!(results).to_string().contains("Offer to set a timer"));
    assert!(json!(results).to_string().contains("image/png, 12.4 KB"));
}

#[test]
fn states_of_views_are_in_the_page_once() {
    let data = data(&afternoon().page("Kitchen"));
    let views = data["views"].as_array().unwrap();
    let plan = |note: &str, steps: [&str; 2]| {
        json!(["assistant", ["coder/plan", note, false, steps.map(|it| json!([0, it])), 0]])
    };
    let shown: Vec<Value> = views.iter().map(|view| json!([view[1], view[2]])).collect();
    assert_eq!(
        shown,
        [
            plan("plan, 1 of 2 done", ["✓ Find the recipe", "→ Write it down"]),
            plan("plan, 2 of 2 done", ["✓ Find the recipe", "✓ Write it down"]),
            json!(["assistant", ["oven", "view", false, [[0, "The oven has 180 °C."]], 0]]),
        ]
    );
    let mut sample = Sample::default();
    for n in 0..3_000 {
        let state =
            json!({"type": 1001, "body": {"view": format!("v{n}"), "content": vec!["x".repeat(90); 200]}});
        let payload = Frame::from_json(&state.to_string()).unwrap().to_bytes();
        sample.packet(n, "assistant", &[], payload, None);
    }
    let data = self::data(&sample.page("many"));
    let (kept, omitted) =
        (data["views"].as_array().unwrap().len(), data["omitted"]["views"].as_u64().unwrap());
    assert!((10..1_000).contains(&kept) && kept as u64 + omitted == 3_000, "{kept} {omitted}");
    assert!(data["views"].to_string().len() <= 256 << 10);
}

#[test]
fn large_result_is_cut_within_the_limits_of_a_frame() {
    let mut sample = long(1);
    let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
    for native in [deep, json!({"a": "x".repeat(300_000)}).to_string(), "{broken".repeat(30_000)] {
        let result = json!({
            "bridge.result": 1,
            "content": vec![json!({"type": "resource_link", "uri": format!("https://a.b/{}", "y".repeat(500))}); 1_000],
            "display": [{"type": "code", "text": "z\n".repeat(100_000)}],
            "native": {"system": "mcp", "json": native},
        });
        let frame = json!({"type": 7, "body": {"id": "call-0", "success": true, "result": result}});
        let payload = Frame::from_json(&frame.to_string()).unwrap().to_bytes();
        sample.packet(0, "ada-phone", &["assistant"], payload, Some(0));
    }
    let data = data(&sample.page("large"));
    let results = results(&data);
    assert_eq!(results.len(), 3);
    for result in results {
        assert!(result.to_string().len() < 48 << 10, "{}", result.to_string().len());
        assert_eq!((&result[0][0][4], &result[3][0]), (&json!(99_800), &json!("mcp")));
        assert!(result[3][1].as_str().unwrap().len() <= 16 << 10);
    }
}

#[test]
fn long_body_is_cut_and_shows_its_length() {
    let mut sample = long(1);
    let body = json!({"id": "call-0", "toolName": "t", "parameters": {"text": "y".repeat(100_000)}, "execution": "client"});
    let frame = json!({"stanzaId": -9, "conversationId": "kitchen", "type": 6, "body": body});
    let payload = Frame::from_json(&frame.to_string()).unwrap().to_bytes();
    sample.packet(0, "assistant", &["ada-phone"], payload, Some(0));
    let data = data(&sample.page("long"));
    let frame = &data["frames"][0];
    assert_eq!(frame[10][0].as_str().unwrap().len(), 16 << 10);
    assert_eq!(frame[10][1], body.to_string().len());
    assert_eq!(data["omitted"]["bodies"], 0);
}

#[test]
fn call_shows_at_most_two_hundred_frames_and_their_number() {
    let mut sample = long(1);
    for number in 0..300 {
        let frame = json!({"type": 1000, "body": {"id": "call-0", "status": "in_progress"}});
        let payload = Frame::from_json(&frame.to_string()).unwrap().to_bytes();
        sample.packet(number, "ada-phone", &["assistant"], payload, Some(0));
    }
    let data = data(&sample.page("long"));
    assert_eq!(data["calls"][0][12].as_array().unwrap().len(), 200);
    assert_eq!(data["calls"][0][13], 302);
    assert_eq!(data["frames"].as_array().unwrap().len(), 200);
}

#[test]
fn data_above_the_limit_drops_bodies_then_frames_then_calls() {
    // 2,500 calls with two bodies of 8 KB are 40 MB: the earlier bodies are included, and every frame is.
    let mut sample = long(2_500);
    let filler =
        json!({"type": 1000, "body": {"id": "x", "status": "in_progress", "message": "z".repeat(8_000)}});
    let payload = Frame::from_json(&filler.to_string()).unwrap().to_bytes();
    for call in 0..2_500 {
        sample.packet(call as u64, "ada-phone", &["assistant"], payload.clone(), Some(call));
        sample.packet(u64::MAX - call as u64, "ada-phone", &["assistant"], payload.clone(), Some(call));
    }
    let page = sample.page("full");
    assert!(page.len() < (32 << 20) + (128 << 10), "{}", page.len());
    let data = data(&page);
    assert_eq!(data["frames"].as_array().unwrap().len(), 10_000);
    assert_eq!(data["omitted"]["frames"], 0);
    let omitted = data["omitted"]["bodies"].as_u64().unwrap();
    assert!((1_500..9_000).contains(&omitted), "{omitted}");
    let without = data["frames"].as_array().unwrap().iter().filter(|frame| frame[10].is_null()).count();
    assert_eq!(without as u64, omitted);
}

#[test]
fn calls_and_names_above_the_limit_are_counted_in_the_totals() {
    let long_name = |number: usize| format!("{number}{}", "<".repeat(2_000));
    let calls: Vec<RecordedCall> = (0..20_000)
        .map(|number| {
            let mut call =
                RecordedCall::new(long_name(number).parse().unwrap(), Identity::from(long_name(number)));
            call.tool = long_name(number);
            call.outcome =
                RecordedOutcome::Failed { code: long_name(number).into(), message: Some(long_name(number)) };
            call
        })
        .collect();
    let page = report(Vec::new(), &calls, "full");
    assert!(page.len() < 33 << 20, "{}", page.len());
    let data = data(&page);
    let omitted = data["omitted"]["calls"].as_u64().unwrap();
    assert_eq!(data["calls"].as_array().unwrap().len() as u64 + omitted, 20_000);
    assert!(omitted > 0 && data["omitted"]["tools"].as_u64().unwrap() >= 19_000);
    assert_eq!(data["head"]["all"][1], 20_000);
    assert!(data["omitted"]["participants"].as_u64().unwrap() >= 1_000);
}

#[test]
fn events_above_the_limit_are_counted() {
    let mut sample = Sample::default();
    for ms in 0..6_000 {
        sample.event(ms, RoomEvent::Link { up: ms % 2 == 0 });
    }
    let data = data(&sample.page("flapping"));
    assert_eq!(data["events"].as_array().unwrap().len(), 5_000);
    assert_eq!(data["omitted"]["events"], 1_000);
}

#[test]
fn sec_p3_report_contains_no_instance() {
    let mut sample = long(1);
    let frame = json!({"type": 12, "meta": {"bridge.instance": "planted-secret"}, "body": {}});
    let payload = Frame::from_json(&frame.to_string()).unwrap().to_bytes();
    sample.packet(0, "ada-phone", &["assistant"], payload, Some(0));
    let page = sample.page("instance");
    assert!(!page.contains("planted-secret"));
}

#[test]
fn foreign_calls_and_absurd_times_are_tolerated() {
    let mut sample = long(3);
    let entries = sample.entries();
    let mut calls = sample.calls;
    calls[0].entries = vec![usize::MAX, 7, 7, 0];
    calls[1].requested = Some(toolbridge::recording::Moment(u64::MAX));
    calls[1].settled = Some(toolbridge::recording::Moment(0));
    let data = data(&report(entries, &calls, "absurd"));
    assert_eq!(data["calls"].as_array().unwrap().len(), 3);
    assert_eq!(data["head"]["all"][3][0].as_u64(), Some(20_000));
}

/// The calls of a file, and the page about them.
#[test]
fn recorded_file_becomes_a_page_of_its_calls() {
    let folder = Folder::new();
    let path = folder.file("session.mcap");
    let mut sample = afternoon();
    write_recording(&path, sample.entries());
    let folded = calls(Recording::open(&path).unwrap().entries());
    assert_eq!(folded.calls.len(), sample.calls.len());
    let notes = ["The file is damaged at byte 7.\u{202e}".to_owned()];
    let mut page = Vec::new();
    let entries = Recording::open(&path).unwrap().entries();
    write_report(entries, &folded.calls, "session.mcap", &notes, &mut page).unwrap();
    let data = data(str::from_utf8(&page).unwrap());
    assert_eq!(data["calls"].as_array().unwrap().len(), sample.calls.len());
    let succeeded = sample.calls.iter().filter(|call| call.outcome == RecordedOutcome::Ok).count();
    assert_eq!(data["head"]["all"][2][0], succeeded);
    assert_eq!(data["head"]["notes"], json!(["The file is damaged at byte 7.\\u{202e}"]));
    let frames = data["frames"].as_array().unwrap();
    let of_calls: usize = sample.calls.iter().map(|call| call.entries.len()).sum();
    assert_eq!(frames.len(), of_calls);
    assert!(frames.iter().all(|frame| frame[3].is_u64() && frame[10].is_array()));
}
