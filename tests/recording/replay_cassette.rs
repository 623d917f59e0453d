//! The client's end of a recording: which calls a cassette answers, when, and which it does not.

use std::time::Duration;

use serde_json::{Value as Json, json};
use tokio::time::Instant;
use toolbridge::{
    Assistant, CallError, Client, ToolContext, ToolError, ToolSource as _, Value, memory,
    recording::{Entry, Happened},
    replay::{Cassette, LiveError, MismatchReason, Replay, Timing},
};

use crate::{
    cassette::{answered, asked, asked_with, beginning, offered},
    recording_said::{Tape, failed, heard, here, ok, progress, sent, stop},
};

const MS: Duration = Duration::from_millis(1);

fn with(more: impl IntoIterator<Item = Entry>) -> Vec<Entry> {
    beginning().into_iter().chain(more).collect()
}

/// An assistant in a room with this cassette.
async fn played(cassette: &Cassette) -> (Client, Assistant) {
    let room = memory::MemoryRoom::new();
    let phone = Client::builder().tools(cassette.clone()).join_over(room.client("phone")).await.unwrap();
    (phone, Assistant::builder().join_over(room.assistant("assistant")).await.unwrap())
}

async fn call(assistant: &Assistant, tool: &str, parameters: &Json) -> Result<Json, CallError> {
    assistant.call(tool, parameters).await.map(|body| body.to_json())
}

fn code(result: Result<Json, CallError>) -> (String, String) {
    match result {
        Err(CallError::Tool(error)) => (error.code().to_string(), error.message().to_owned()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn equal_calls_get_the_recorded_results_in_order_then_misses() {
    let on = json!({"on": true});
    let cassette = Cassette::new(with([
        asked(1_010, -1, "a", "lamp", &on),
        answered(1_020, 2, "a", &json!({"n": 1})),
        asked(1_030, -2, "b", "lamp", &json!({"on": false})),
        answered(1_040, 3, "b", &json!({"n": 2})),
        asked(1_050, -3, "c", "lamp", &on),
        answered(1_060, 4, "c", &json!({"n": 3})),
    ]))
    .unwrap();
    let (_phone, assistant) = played(&cassette).await;
    assert_eq!((cassette.calls(), cassette.left(), cassette.redacted()), (3, 3, 0));
    let offer = assistant.call("lamp", &on).await.map(|_| assistant.tools().remove(0)).unwrap();
    assert_eq!((offer.tool.description(), offer.tool.tool_options().idempotent), ("A lamp", true));
    assert_eq!(call(&assistant, "lamp", &on).await.unwrap(), json!({"n": 3}));
    assert_eq!(call(&assistant, "lamp", &json!({"on": false})).await.unwrap(), json!({"n": 2}));
    assert_eq!((cassette.left(), cassette.missed()), (0, 0));
    let (word, text) = code(call(&assistant, "lamp", &on).await);
    assert_eq!(word, "not_recorded");
    assert!(text.contains("has 2 such calls, all answered"), "{text}");
    let (word, text) = code(call(&assistant, "lamp", &json!({"on": 1})).await);
    assert_eq!(word, "not_recorded");
    assert!(text.contains("no call with these parameters") && text.contains("lamp"), "{text}");
    assert_eq!((cassette.answered(), cassette.missed()), (3, 2));
    let why: Vec<_> = cassette.misses().into_iter().map(|miss| (miss.tool, miss.reason)).collect();
    assert_eq!(
        why,
        [
            ("lamp".to_owned(), MismatchReason::UsedUp { calls: 2 }),
            ("lamp".to_owned(), MismatchReason::NothingAlike)
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn loose_cassette_repeats_the_last_result_and_misses_unrecorded_calls() {
    let cassette = Cassette::new(with([
        asked(1_010, -1, "a", "lamp", &json!({})),
        answered(1_020, 2, "a", &json!({"n": 1})),
        asked(1_030, -2, "b", "lamp", &json!({})),
        answered(1_040, 3, "b", &json!({"n": 2})),
    ]))
    .unwrap()
    .loose();
    let (_phone, assistant) = played(&cassette).await;
    for n in [1, 2, 2, 2] {
        assert_eq!(call(&assistant, "lamp", &json!({})).await.unwrap(), json!({"n": n}));
    }
    assert_eq!(code(call(&assistant, "lamp", &json!({"x": 1})).await).0, "not_recorded");
    assert_eq!((cassette.answered(), cassette.missed()), (4, 1));
}

#[tokio::test(start_paused = true)]
async fn key_order_and_number_width_do_not_matter() {
    let cassette = Cassette::new(with([
        asked(1_010, -1, "a", "lamp", &json!({"x": {"b": 1, "a": 2.0}, "list": [1, 2.5]})),
        answered(1_020, 2, "a", &json!({"n": 1})),
    ]))
    .unwrap();
    let (_phone, assistant) = played(&cassette).await;
    let same = json!({"list": [1.0, 2.5], "x": {"a": 2, "b": 1.0}});
    assert_eq!(call(&assistant, "lamp", &same).await.unwrap(), json!({"n": 1}));
    assert_eq!(cassette.missed(), 0);
}

#[tokio::test(start_paused = true)]
async fn recorded_result_and_progress_arrive_at_recorded_times_or_at_once() {
    let told = |ms, stanza, text: &str| {
        let body = json!({"id": "a", "status": "in_progress", "message": text});
        heard(ms, "phone", &json!({"stanzaId": stanza, "type": 1000, "body": body}).to_string())
    };
    let entries = with([
        asked(2_000, -1, "a", "lamp", &json!({})),
        heard(2_001, "phone", &progress(2, "a")),
        told(2_200, 3, "half"),
        told(2_200, 3, "half"), // on both lanes
        told(2_500, 4, "nearly"),
        answered(2_700, 5, "a", &json!({"n": 1})),
    ]);
    for (timing, times) in [(Timing::Recorded, [200, 500, 700]), (Timing::Fast, [0, 0, 0])] {
        let cassette = Cassette::new(entries.clone()).unwrap().timing(timing);
        let (_phone, assistant) = played(&cassette).await;
        assert!(call(&assistant, "lamp", &json!({"x": 1})).await.is_err()); // both have shaken hands
        let began = Instant::now();
        let mut open = assistant.call("lamp", ()).start();
        let mut seen = Vec::new();
        while let Some(step) = open.progress().await {
            if let Some(message) = step.message {
                seen.push((message, began.elapsed().as_millis()));
            }
        }
        open.await.unwrap();
        seen.push(("result".to_owned(), began.elapsed().as_millis()));
        let last = seen.len() - 1;
        assert!(seen[last].1.abs_diff(times[2]) <= 5, "{timing:?}: {seen:?}");
        if timing == Timing::Recorded {
            let expected = [("half", 200), ("nearly", 500)];
            assert_eq!(last, 2, "{seen:?}");
            for ((text, at), (wanted, due)) in seen.iter().zip(expected) {
                assert!(text == wanted && at.abs_diff(due) <= 5, "{seen:?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn failure_has_its_recorded_code_message_and_partial_result() {
    let body = json!({
        "id": "a", "success": false, "errorCode": "disk_full", "errorMessage": "no room", "result": {"done": 3},
    });
    let cassette = Cassette::new(with([
        asked(1_010, -1, "a", "lamp", &json!({})),
        heard(1_020, "phone", &json!({"stanzaId": 2, "type": 7, "body": body}).to_string()),
    ]))
    .unwrap();
    let (_phone, assistant) = played(&cassette).await;
    match assistant.call("lamp", ()).await {
        Err(CallError::Tool(error)) => {
            assert_eq!((error.code().as_str(), error.message()), ("disk_full", "no room"));
            assert_eq!(error.partial().unwrap().to_json(), json!({"done": 3}));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn call_without_a_recorded_result_has_none_or_the_recorded_error() {
    let entries = with([
        asked(1_000, -1, "late", "lamp", &json!({"n": 1})),
        asked(1_001, -2, "stopped", "lamp", &json!({"n": 2})),
        asked(1_002, -3, "lost", "lamp", &json!({"n": 3})),
        sent(1_500, "assistant", &["phone"], &stop(-4, "stopped")),
        heard(1_501, "phone", &failed(3, "stopped", "cancelled")),
        sent(6_000, "assistant", &["phone"], &stop(-5, "late")),
    ]);
    let silent = Cassette::new(entries.clone()).unwrap();
    let (_phone, assistant) = played(&silent).await;
    for n in 1..=3 {
        let began = Instant::now();
        let result = assistant.call("lamp", json!({"n": n})).timeout(3_000 * MS).await;
        assert!(matches!(result, Err(CallError::Timeout { .. })), "{result:?}");
        assert_eq!(began.elapsed().as_secs(), 3);
    }
    let cassette = Cassette::new(entries).unwrap().fast();
    let (_phone, assistant) = played(&cassette).await;
    let results = [
        assistant.call("lamp", json!({"n": 1})).await,
        assistant.call("lamp", json!({"n": 2})).await,
        assistant.call("lamp", json!({"n": 3})).await,
    ];
    assert!(
        matches!(
            results,
            [Err(CallError::Timeout { .. }), Err(CallError::Cancelled), Err(CallError::Lost { .. })]
        ),
        "{results:?}"
    );
    assert_eq!((cassette.answered(), cassette.missed(), silent.missed()), (3, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn cancel_of_a_live_call_ends_the_recorded_delay() {
    let cassette =
        Cassette::new(with([asked(1_000, -1, "a", "lamp", &json!({})), answered(5_900, 2, "a", &json!({}))]))
            .unwrap();
    let (phone, assistant) = played(&cassette).await;
    let mut open = assistant.call("lamp", ()).start();
    while phone.open_jobs() == 0 {
        tokio::time::sleep(MS).await;
    }
    open.cancel();
    assert!(matches!(open.await, Err(CallError::Cancelled)));
    let began = Instant::now();
    while phone.open_jobs() > 0 {
        tokio::time::sleep(MS).await;
    }
    assert!(began.elapsed() < 100 * MS);
}

#[tokio::test(start_paused = true)]
async fn redacted_result_is_not_replayed_and_reported() {
    let mark = json!({"bridge.redacted": true});
    let taken = json!({"redacted": "<redacted: map, 9 bytes>"});
    let body = json!({"id": "b", "success": true, "result": taken});
    let cassette = Cassette::new(with([
        asked_with(1_000, -1, "a", "lamp", &taken, &mark),
        answered(1_001, 2, "a", &json!({})),
        asked(1_002, -2, "b", "lamp", &json!({"n": 1})),
        heard(1_003, "phone", &json!({"stanzaId": 3, "type": 7, "meta": mark, "body": body}).to_string()),
    ]))
    .unwrap();
    assert_eq!((cassette.calls(), cassette.redacted()), (1, 1));
    let (_phone, assistant) = played(&cassette).await;
    let (word, text) = code(call(&assistant, "lamp", &taken).await);
    assert!(word == "not_recorded" && text.contains("but 1 call with redacted ones"), "{text}");
    let (word, text) = code(call(&assistant, "lamp", &json!({"n": 1})).await);
    assert!(word == "not_recorded" && text.contains("its result was taken out"), "{text}");
    let why: Vec<_> = cassette.misses().iter().map(|miss| miss.reason).collect();
    assert_eq!(why, [MismatchReason::PerhapsRedacted { calls: 1 }, MismatchReason::Redacted]);
}

#[tokio::test(start_paused = true)]
async fn sec_c5_recorded_schema_is_offered_and_never_compiled() {
    // A validator would reject both schemas.
    let schema = json!({"type": "object", "$ref": "https://example.com/x.json", "properties": {"n": {"pattern": "(a|aa)+(?!b)c"}}});
    let mut entries = beginning();
    entries.push(offered(1_003, &json!([
        {"name": "lamp", "description": "A later lamp", "inputSchema": schema, "annotations": {"destructive": true}},
        {"name": "bridge.echo", "description": "reserved"},
        {"name": "no name", "description": ""},
    ])));
    entries.push(asked(1_010, -1, "a", "lamp", &json!({"n": 7})));
    entries.push(answered(1_020, 2, "a", &json!({"n": 1})));
    let cassette = Cassette::new(entries).unwrap();
    let tools = cassette.list();
    assert_eq!(tools.len(), 1);
    assert_eq!((tools[0].description(), tools[0].input_schema()), ("A later lamp", Some(&schema)));
    let (_phone, assistant) = played(&cassette).await;
    assert_eq!(call(&assistant, "lamp", &json!({"n": 7})).await.unwrap(), json!({"n": 1}));
    let offer = assistant.tools().remove(0).tool;
    assert!(offer.tool_options().destructive && offer.input_schema() == Some(&schema));
}

#[tokio::test(start_paused = true)]
async fn tool_without_a_recorded_registration_is_offered_by_name() {
    let entries = [
        here(1_000, "observer"),
        heard(1_010, "assistant", &crate::recording_said::request(-1, "a", "client")),
        heard(1_020, "phone", &ok(2, "a")),
    ];
    let cassette = Cassette::new(entries).unwrap();
    let (_phone, assistant) = played(&cassette).await;
    assert_eq!(call(&assistant, "lamp", &json!({"on": true})).await.unwrap(), json!({"n": 1}));
}

#[test]
fn recording_without_a_call_to_a_client_is_refused() {
    assert!(matches!(Cassette::new(beginning()), Err(LiveError::NoCalls)));
    let own = [
        here(1_000, "assistant"),
        sent(1_010, "assistant", &[], &crate::recording_said::request(-1, "a", "server")),
        sent(1_020, "assistant", &[], &ok(-2, "a")),
    ];
    assert!(matches!(Cassette::new(own), Err(LiveError::NoCalls)));
    let error = Cassette::open("/nowhere/session.mcap").unwrap_err();
    assert!(matches!(error, LiveError::Record(_)), "{error}");
}

async fn find(context: ToolContext, arguments: Value) -> Result<Value, ToolError> {
    tokio::time::sleep(250 * MS).await;
    context.progress("looked");
    match arguments.get("name").is_some_and(|it| it.as_str() == Some("Ada")) {
        true => Ok(arguments),
        false => Err(ToolError::new("nobody", "nobody of that name")),
    }
}

/// A cassette from either end's recording answers an assistant as the real client did.
#[tokio::test(start_paused = true)]
async fn cassettes_of_both_ends_match_the_real_client() {
    struct Finder;
    impl toolbridge::ToolSource for Finder {
        fn list(&self) -> Vec<toolbridge::Tool> {
            vec![toolbridge::Tool::new("find".parse().unwrap(), "Finds somebody")]
        }
        async fn execute(
            &self,
            _: &toolbridge::ToolName,
            arguments: Value,
            context: ToolContext,
        ) -> toolbridge::Outcome {
            find(context, arguments).await
        }
    }
    async fn app(assistant: &Assistant) -> Vec<String> {
        let mut told = Vec::new();
        for name in ["Ada", "Bob", "Ada"] {
            let began = Instant::now();
            let result = assistant.call("find", json!({"name": name})).await;
            assert!(began.elapsed() >= 250 * MS);
            told.push(format!("{:?}", result.map(|body| body.to_json())));
        }
        let result = assistant.call("find", json!({"name": "Ada"})).timeout(100 * MS).await;
        assert!(matches!(result, Err(CallError::Timeout { .. })), "{result:?}");
        told
    }
    let room = memory::MemoryRoom::new();
    let (of_phone, of_assistant) = (Tape::new(), Tape::new());
    let phone = Client::builder().tools(Finder).join_over(of_phone.of(room.client("phone"))).await.unwrap();
    let assistant = of_assistant.of(room.assistant("assistant"));
    let assistant = Assistant::builder().join_over(assistant).await.unwrap();
    let real = app(&assistant).await;
    assistant.close().await;
    phone.close().await;
    for tape in [of_phone, of_assistant] {
        let cassette = Cassette::new(tape.entries()).unwrap();
        let (_phone, assistant) = played(&cassette).await;
        assert_eq!(app(&assistant).await, real);
        assert_eq!((cassette.missed(), cassette.left()), (0, 0));
        assert_eq!(cassette.list()[0].description(), "Finds somebody");
    }
}

/// A call that either end might have run belongs to the client only if the client claimed it.
#[test]
fn call_left_to_the_assistant_is_not_a_call_of_the_client() {
    let either = |ms, stanza, id: &str| {
        sent(ms, "assistant", &["phone"], &crate::recording_said::request(stanza, id, "either"))
    };
    let taken = [either(1_010, -1, "a"), heard(1_020, "phone", &ok(2, "a"))];
    let begun = [
        either(1_030, -2, "b"),
        heard(1_031, "phone", &progress(3, "b")),
        sent(1_040, "assistant", &["phone"], &stop(-3, "b")),
    ];
    let withdrawn = [either(1_050, -4, "c"), sent(3_050, "assistant", &["phone"], &stop(-5, "c"))];
    let declined = [either(4_000, -6, "d"), heard(4_010, "phone", &failed(4, "d", "busy"))];
    let calls = |entries: Vec<Entry>| Cassette::new(entries).map(|it| it.calls());
    assert_eq!(calls(with(taken.clone().into_iter().chain(begun.clone()))).unwrap(), 2);
    let all = taken.into_iter().chain(begun).chain(withdrawn.clone()).chain(declined.clone());
    assert_eq!(calls(with(all)).unwrap(), 2);
    let none = withdrawn.into_iter().chain(declined);
    assert!(matches!(calls(with(none)), Err(LiveError::NoCalls)));
}

/// Whatever a file contains, reading it for a replay neither panics nor calls a tool that was not allowed.
#[test]
fn sec_y2_corrupted_files_cause_no_panic_and_no_call() {
    let mut whole = with([
        asked(1_010, -1, "a", "lamp", &json!({"on": true})),
        heard(1_011, "phone", &progress(2, "a")),
        answered(1_020, 2, "a", &json!({"n": 1})),
        asked(1_030, -2, "b", "lamp", &json!({"list": [1, 2.5, null, {"x": "y"}]})),
        sent(1_040, "assistant", &["phone"], &stop(-3, "b")),
    ]);
    whole.extend([asked(1_050, -4, "c", "door", &json!({})), answered(1_060, 3, "c", &json!({}))]);
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below as u64).unwrap()
    };
    let mut read = 0;
    for _ in 0..3_000 {
        let mut entries = whole.clone();
        for _ in 0..=next(4) {
            let at = next(entries.len());
            if next(8) == 0 {
                entries.swap_remove(at);
                continue;
            }
            entries[at].at.0 = entries[at].at.0.rotate_left(u32::try_from(next(64) * next(2)).unwrap());
            if let Happened::Packet(packet) = &mut entries[at].what {
                let mut bytes = packet.payload.to_vec();
                let place = next(bytes.len());
                bytes[place] = u8::try_from(next(256)).unwrap();
                packet.payload = bytes.into();
            }
        }
        if let Ok(cassette) = Cassette::new(entries.clone()) {
            assert!(cassette.calls() + cassette.redacted() <= 3);
        }
        if let Ok(live) = Replay::live(entries) {
            let live = live.allow("lamp");
            assert!(live.plan().asked().all(|call| call.tool == "lamp"));
            read += 1;
        }
    }
    assert!(read > 2_000, "{read}");
}

/// A recorded proof that nothing ran is a proof in the replay too, and nothing else is.
#[tokio::test(start_paused = true)]
async fn recorded_refusal_proves_that_nothing_ran() {
    let codes = ["busy", "permission_denied", "invalid_parameters", "unknown_tool"];
    for (began, timing) in [(false, Timing::Fast), (false, Timing::Recorded), (true, Timing::Fast)] {
        let mut entries = beginning();
        for (n, code) in (1_i32..).zip(codes) {
            let (at, id) = (1_000 + 100 * n as u64, format!("c{n}"));
            entries.push(asked(at, -n, &id, "lamp", &json!({"n": n})));
            let body = json!({"id": id, "success": false, "errorCode": code, "errorMessage": "no"});
            let meta = if began { json!({"bridge.began": true}) } else { json!({}) };
            let result = json!({"stanzaId": n + 1, "type": 7, "meta": meta, "body": body});
            entries.push(heard(at + 50, "phone", &result.to_string()));
        }
        let (_phone, assistant) = played(&Cassette::new(entries).unwrap().timing(timing)).await;
        for (n, code) in (1..).zip(codes) {
            let error = assistant.call("lamp", json!({"n": n})).await.unwrap_err();
            assert_eq!(error.may_have_run(), began, "{code}: {error:?}");
            match (code, &error) {
                ("busy", CallError::Busy { .. }) | ("unknown_tool", CallError::UnknownTool { .. })
                    if !began => {}
                (_, CallError::Tool(error)) => assert_eq!(error.code().as_str(), code),
                other => panic!("{other:?}"),
            }
        }
    }
}
