//! The assistant's end of a recording: which calls live clients get again, when, and how the results differ.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use serde_json::{Value as Json, json};
use tokio::time::{Instant, sleep};
use toolbridge::{
    Assistant, Client, Outcome, Tool, ToolContext, ToolError, ToolName, ToolOptions, ToolSource, Value,
    memory,
    recording::Entry,
    replay::{Live, LiveError, LiveReport, NotAsked, Replay, Speed, Step, Unasked},
};

use crate::{
    cassette::{answered, asked, asked_with, beginning, offered},
    recording_said::{failed, heard, here, joined, sent, stop},
};

const MS: Duration = Duration::from_millis(1);

/// A tool, its arguments, and when it started and ended.
type Noted = (String, Json, Instant, Option<Instant>);

/// A phone that answers as its function says, and records its calls: tool, arguments, start and end.
#[derive(Clone)]
struct Phone {
    answer: fn(&str, &Json) -> (Duration, Outcome),
    names: &'static [&'static str],
    options: ToolOptions,
    noted: Arc<Mutex<Vec<Noted>>>,
    ids: Arc<Mutex<Vec<String>>>,
}

impl Phone {
    fn new(answer: fn(&str, &Json) -> (Duration, Outcome)) -> Self {
        let (noted, ids) = (Arc::default(), Arc::default());
        Self { answer, names: &["lamp", "other"], options: ToolOptions::default(), noted, ids }
    }

    fn asked(&self) -> Vec<(String, Json)> {
        self.noted.lock().unwrap().iter().map(|(tool, value, ..)| (tool.clone(), value.clone())).collect()
    }

    /// When each call started and ended, in milliseconds since the first.
    fn times(&self) -> Vec<(u64, u64)> {
        let noted = self.noted.lock().unwrap();
        let ms = |at: Instant| u64::try_from((at - noted[0].2).as_millis()).unwrap();
        noted.iter().map(|(.., began, ended)| (ms(*began), ended.map_or(u64::MAX, ms))).collect()
    }
}

impl ToolSource for Phone {
    fn list(&self) -> Vec<Tool> {
        let tool = |name: &&str| Tool::new(name.parse().unwrap(), "").options(self.options.clone());
        self.names.iter().map(tool).collect()
    }

    async fn execute(&self, tool: &ToolName, arguments: Value, context: ToolContext) -> Outcome {
        let json = arguments.to_json();
        let (takes, outcome) = (self.answer)(tool.as_str(), &json);
        let place = {
            let mut noted = self.noted.lock().unwrap();
            noted.push((tool.to_string(), json, Instant::now(), None));
            noted.len() - 1
        };
        self.ids.lock().unwrap().push(context.call_id().to_string());
        sleep(takes).await;
        self.noted.lock().unwrap()[place].3 = Some(Instant::now());
        outcome
    }

    fn uses_cancel_grace(&self, _: &ToolName) -> bool {
        false
    }
}

fn at_once(_: &str, value: &Json) -> (Duration, Outcome) {
    (Duration::ZERO, Ok(Value::from(json!({"n": value["n"]}))))
}

/// Calls of the lamp with these start and end times.
fn calls(spans: &[(u64, u64)]) -> Vec<Entry> {
    let mut entries = beginning();
    for (n, (from, to)) in (1..).zip(spans) {
        let id = format!("old-{n}");
        entries.push(asked(*from, -n, &id, "lamp", &json!({"n": n})));
        entries.push(answered(*to, n + 1, &id, &json!({"n": n})));
    }
    entries.sort_by_key(|entry| entry.at);
    entries
}

/// Replays the calls to this phone.
async fn again(phone: &Phone, live: &Live) -> LiveReport {
    let room = memory::MemoryRoom::new();
    let _client = Client::builder().tools(phone.clone()).join_over(room.client("phone")).await.unwrap();
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
    live.ask(&assistant, |_| {}).await
}

fn live(entries: Vec<Entry>) -> Live {
    Replay::live(entries).unwrap().allow("lamp")
}

fn differences(report: &LiveReport) -> Vec<(usize, &str, &str, &str)> {
    let each = report.differences.iter();
    each.map(|it| (it.entry, it.field.as_str(), it.expected.as_str(), it.got.as_str())).collect()
}

#[tokio::test(start_paused = true)]
async fn equal_results_show_no_difference_and_calls_get_new_ids() {
    let phone = Phone::new(at_once);
    let report = again(&phone, &live(calls(&[(1_010, 1_020), (1_030, 1_040), (1_050, 1_060)]))).await;
    assert!(report.is_same(), "{report}");
    assert_eq!((report.asked, report.compared, report.open, report.redacted), (3, 3, 0, 0));
    let asked: Vec<_> = phone.asked().into_iter().map(|(_, value)| value["n"].clone()).collect();
    assert_eq!(asked, [1, 2, 3]);
    assert!(phone.ids.lock().unwrap().iter().all(|id| !id.starts_with("old")), "new ids");
    assert_eq!(report.to_string(), "3 calls asked, 3 outcomes compared, 0 differences\n");
}

#[tokio::test(start_paused = true)]
async fn difference_names_tool_call_field_and_both_values() {
    fn changed(_: &str, value: &Json) -> (Duration, Outcome) {
        let outcome = match value["n"].as_i64().unwrap() {
            1 => Ok(Value::from(json!({"level": {"value": 7.0, "unit": "%"}, "list": [1, 2.5]}))),
            2 => Err(ToolError::new("too_dark", "the lamp is broken")),
            3 => Err(ToolError::new("other_code", "no")),
            4 => Err(ToolError::new("same_code", "in other words")),
            _ => Ok(Value::empty()),
        };
        (Duration::ZERO, outcome)
    }
    let mut entries = beginning();
    for n in 1..=5 {
        entries.push(asked(1_000 + 10 * n, -(n as i32), &format!("old-{n}"), "lamp", &json!({"n": n})));
        entries.push(match n {
            1 => answered(1_011, 2, "old-1", &json!({"list": [1.0, 3], "level": {"value": 7, "unit": "°"}})),
            2 => answered(1_021, 3, "old-2", &json!({})),
            3 => heard(1_031, "phone", &failed(4, "old-3", "some_code")),
            4 => heard(1_041, "phone", &failed(5, "old-4", "same_code")),
            _ => heard(1_051, "phone", &failed(6, "old-5", "some_code")),
        });
    }
    let report = again(&Phone::new(changed), &live(entries)).await;
    assert!(!report.is_same());
    assert_eq!(
        differences(&report),
        [
            (3, "result.level.unit", "°", "%"),
            (3, "result.list[1]", "3", "2.5"),
            (5, "outcome", "ok", "too_dark: the lamp is broken"),
            (7, "outcome", "some_code: no", "other_code: no"),
            (11, "outcome", "some_code: no", "ok"),
        ]
    );
    let reported = report.to_string();
    assert!(
        reported
            .contains(r#"5: "lamp" "old-2" "outcome": expected "ok", got "too_dark: the lamp is broken""#),
        "{reported}"
    );
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["differences"][0]["call"], "old-1");
    assert_eq!((&json["asked"], &json["compared"]), (&json!(5), &json!(5)));
}

/// Pauses shrink with the speed; the order of ends and the overlaps stay.
#[tokio::test(start_paused = true)]
async fn calls_keep_the_recorded_pace_or_a_faster_one_and_overlap_as_recorded() {
    fn slow(_: &str, value: &Json) -> (Duration, Outcome) {
        (400 * MS, Ok(Value::from(json!({"n": value["n"]}))))
    }
    // The second started while the first was open; the third when both had ended.
    let recorded = calls(&[(2_000, 2_300), (2_100, 2_400), (4_000, 4_100)]);
    for (speed, starts) in
        [(Speed::Recorded, [0, 100, 2_000]), (Speed::Tenfold, [0, 10, 410]), (Speed::Max, [0, 0, 400])]
    {
        let phone = Phone::new(slow);
        let report = again(&phone, &live(recorded.clone()).speed(speed)).await;
        assert!(report.is_same(), "{report}");
        let times = phone.times();
        for ((began, _), due) in times.iter().zip(starts) {
            assert!(began.abs_diff(due) <= 5, "{speed:?}: {times:?}");
        }
        assert!(times[1].0 < times[0].1 && times[2].0 >= times[1].1, "{speed:?}: {times:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn progress_reports_the_remaining_time() {
    fn ten(_: &str, value: &Json) -> (Duration, Outcome) {
        (100 * MS, Ok(Value::from(json!({"n": value["n"]}))))
    }
    let room = memory::MemoryRoom::new();
    let _phone = Client::builder().tools(Phone::new(ten)).join_over(room.client("phone")).await.unwrap();
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
    let live = live(calls(&[(2_000, 2_100), (3_000, 3_100), (4_000, 4_100)]));
    let mut steps = Vec::<Step>::new();
    let report = live.ask(&assistant, |step| steps.push(*step)).await;
    assert!(report.is_same(), "{report}");
    let reported: Vec<_> = steps.iter().map(|it| (it.done, it.total, it.left.as_millis())).collect();
    // At the start, then whenever a call starts or ends.
    let expected = [(0, 2_100), (0, 2_100), (1, 2_000), (1, 1_100), (2, 1_000), (2, 100), (3, 0)];
    assert_eq!(reported.len(), expected.len(), "{reported:?}");
    for ((done, total, left), (wanted, due)) in reported.iter().zip(expected) {
        assert!((*done, *total) == (wanted, 3) && left.abs_diff(due) <= 10, "{reported:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn call_has_its_recorded_timeout_and_is_stopped_at_the_recorded_time() {
    fn hang(_: &str, _: &Json) -> (Duration, Outcome) {
        (Duration::from_secs(3_600), Ok(Value::empty()))
    }
    let mut entries = beginning();
    entries.extend([
        asked(2_000, -1, "late", "lamp", &json!({"n": 1})),
        sent(7_000, "assistant", &["phone"], &stop(-2, "late")),
        asked(8_000, -3, "stopped", "lamp", &json!({"n": 2})),
        sent(8_300, "assistant", &["phone"], &stop(-4, "stopped")),
        heard(8_301, "phone", &failed(2, "stopped", "cancelled")),
        asked(9_000, -5, "owner", "lamp", &json!({"n": 3})),
        heard(14_000, "phone", &failed(3, "owner", "timeout")),
        asked(15_000, -6, "lost", "lamp", &json!({"n": 4})),
    ]);
    let (phone, began) = (Phone::new(hang), Instant::now());
    let report = again(&phone, &live(entries).speed(Speed::Max)).await;
    assert!(report.is_same(), "{report}");
    assert_eq!((report.asked, report.compared, report.open), (4, 3, 1));
    let starts: Vec<_> = phone.times().iter().map(|(began, _)| *began).collect();
    for (at, due) in starts.iter().zip([0, 5_000, 5_300, 10_300]) {
        assert!(at.abs_diff(due) <= 20, "{starts:?}");
    }
    assert!(began.elapsed().as_secs() == 15, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn redacted_values_are_not_sent_or_not_compared() {
    let mark = json!({"bridge.redacted": true});
    let taken = json!({"redacted": "<redacted: map, 9 bytes>"});
    let body = |id: &str| json!({"id": id, "success": true, "result": taken});
    let result = |ms, stanza, id: &str| {
        heard(
            ms,
            "phone",
            &json!({"stanzaId": stanza, "type": 7, "meta": mark, "body": body(id)}).to_string(),
        )
    };
    let mut entries = beginning();
    entries.extend([
        asked_with(2_000, -1, "a", "lamp", &taken, &mark),
        answered(2_001, 2, "a", &json!({})),
        asked(2_002, -2, "b", "lamp", &json!({"n": 1})),
        result(2_003, 3, "b"),
        asked(2_004, -3, "c", "lamp", &json!({"n": 0})),
        result(2_005, 4, "c"),
    ]);
    fn half(_: &str, value: &Json) -> (Duration, Outcome) {
        let fails = || Err(ToolError::new("too_dark", "it is"));
        (Duration::ZERO, if value["n"] == 0 { fails() } else { Ok(Value::empty()) })
    }
    let report = again(&Phone::new(half), &live(entries)).await;
    assert_eq!((report.asked, report.compared, report.redacted), (2, 2, 2));
    assert_eq!(differences(&report), [(7, "outcome", "ok", "too_dark: it is")]);
    let why: Vec<_> = report.not_asked.iter().map(|it| (it.tool.as_str(), it.reason, it.calls)).collect();
    assert_eq!(why, [("lamp", NotAsked::Redacted, 1)]);
}

#[tokio::test(start_paused = true)]
async fn sec_y2_only_allowed_tools_are_called_and_none_by_default() {
    let mut entries = calls(&[(2_000, 2_001)]);
    entries.push(asked(2_010, -9, "o", "other", &json!({"n": 5})));
    entries.push(answered(2_011, 9, "o", &json!({"n": 5})));
    let phone = Phone::new(at_once);
    let report = again(&phone, &Replay::live(entries.clone()).unwrap()).await;
    assert_eq!((report.asked, phone.asked()), (0, vec![]));
    assert_eq!(report.not_asked.iter().map(|it| it.calls).sum::<usize>(), 2);
    let live = live(entries);
    let plan = live.plan();
    assert_eq!((plan.calls.len(), plan.asked().count()), (2, 1));
    let report = again(&phone, &live).await;
    assert_eq!(phone.asked(), [("lamp".to_owned(), json!({"n": 1}))]);
    let names = |it: &Unasked| (it.tool.clone(), it.reason);
    assert_eq!(
        report.not_asked.iter().map(names).collect::<Vec<_>>(),
        [("other".to_owned(), NotAsked::NotAllowed)]
    );
    assert!(report.is_same() && report.to_string().contains(r#"not asked: "other", 1 call (not allowed)"#));
}

/// A destructive tool needs an option here, and its owner's consent there.
#[tokio::test(start_paused = true)]
async fn sec_y2_destructive_tools_need_their_own_option_and_their_owners_consent() {
    let recorded = calls(&[(2_000, 2_001)]);
    let mut said_in_file = recorded.clone();
    said_in_file.insert(
        3,
        offered(1_003, &json!([{"name": "lamp", "description": "", "annotations": {"destructive": true}}])),
    );
    // The file marks it as destructive, or only the live owner does.
    for (entries, options) in
        [(said_in_file.clone(), ToolOptions::default()), (recorded.clone(), ToolOptions::destructive())]
    {
        let mut phone = Phone::new(at_once);
        phone.options = options;
        let asked = Arc::new(AtomicUsize::new(0));
        let room = memory::MemoryRoom::new();
        let counted = Arc::clone(&asked);
        let client = Client::builder().tools(phone.clone()).consent(move |_| {
            counted.fetch_add(1, Relaxed);
            async { false }
        });
        let _client = client.join_over(room.client("phone")).await.unwrap();
        let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
        let report = live(entries.clone()).ask(&assistant, |_| {}).await;
        assert_eq!((report.asked, asked.load(Relaxed)), (0, 0), "{report}");
        assert_eq!(report.not_asked[0].reason, NotAsked::Destructive);
        let report = live(entries).destructive().ask(&assistant, |_| {}).await;
        assert_eq!(report.asked, 1);
        if phone.options.destructive {
            // The person declines, so nothing ran.
            assert_eq!((asked.load(Relaxed), phone.asked()), (1, vec![]));
            assert!(report.differences[0].got.starts_with("permission_denied"), "{report}");
        } else {
            assert!(report.is_same(), "{report}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn recorded_client_is_called_again_unless_another_is_named() {
    let (phone, tv) = (Phone::new(at_once), Phone::new(at_once));
    let room = memory::MemoryRoom::new();
    let _phone = Client::builder().tools(phone.clone()).join_over(room.client("phone")).await.unwrap();
    let _tv = Client::builder().tools(tv.clone()).join_over(room.client("tv")).await.unwrap();
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
    let recorded = calls(&[(2_000, 2_001)]);
    assert!(live(recorded.clone()).ask(&assistant, |_| {}).await.is_same());
    assert_eq!((phone.asked().len(), tv.asked().len()), (1, 0));
    assert!(live(recorded.clone()).to("tv").ask(&assistant, |_| {}).await.is_same());
    assert_eq!((phone.asked().len(), tv.asked().len()), (1, 1));
    // Several other clients are ambiguous: this is reported, and nothing runs.
    let room = memory::MemoryRoom::new();
    let _one = Client::builder().tools(phone.clone()).join_over(room.client("one")).await.unwrap();
    let _two = Client::builder().tools(tv.clone()).join_over(room.client("two")).await.unwrap();
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
    let report = live(recorded).ask(&assistant, |_| {}).await;
    assert!(report.differences[0].got.starts_with("ambiguous"), "{report}");
    assert_eq!((phone.asked().len(), tv.asked().len()), (1, 1));
}

/// A client accepts 50 calls a second: no replay speed makes it refuse.
#[tokio::test(start_paused = true)]
async fn fastest_replay_stays_below_the_call_limits() {
    let spans: Vec<_> = (0..300).map(|n| (2_000 + 100 * n, 2_050 + 100 * n)).collect();
    let (phone, began) = (Phone::new(at_once), Instant::now());
    let report = again(&phone, &live(calls(&spans)).speed(Speed::Max)).await;
    assert!(report.is_same() && report.asked == 300, "{report}");
    assert!((6..=9).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn missing_client_is_waited_for_and_reported_as_a_difference() {
    let room = memory::MemoryRoom::new();
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
    let began = Instant::now();
    let report = live(calls(&[(2_000, 2_001)])).ask(&assistant, |_| {}).await;
    assert!(report.differences[0].got.starts_with("unknown_tool"), "{report}");
    assert!(began.elapsed() <= Duration::from_secs(11), "{:?}", began.elapsed());
    // A client that joins meanwhile is called.
    let phone = Phone::new(at_once);
    let recorded = live(calls(&[(2_000, 2_001)]));
    let joins = async {
        sleep(3_000 * MS).await;
        Client::builder().tools(phone.clone()).join_over(room.client("phone")).await.unwrap()
    };
    let (report, _client) = tokio::join!(recorded.ask(&assistant, |_| {}), joins);
    assert!(report.is_same(), "{report}");
}

#[tokio::test(start_paused = true)]
async fn leaving_the_room_gives_a_reason_and_no_differences() {
    fn slow(_: &str, value: &Json) -> (Duration, Outcome) {
        (1_000 * MS, Ok(Value::from(json!({"n": value["n"]}))))
    }
    let room = memory::MemoryRoom::new();
    let phone = Phone::new(slow);
    let _client = Client::builder().tools(phone.clone()).join_over(room.client("phone")).await.unwrap();
    let assistant =
        Assistant::builder().drain(Duration::ZERO).join_over(room.assistant("assistant")).await.unwrap();
    let recorded = live(calls(&[(2_000, 2_500), (3_000, 3_500), (4_000, 4_500)]));
    let leaves = async {
        sleep(1_500 * MS).await;
        assistant.close().await
    };
    let (report, reason) = tokio::join!(recorded.ask(&assistant, |_| {}), leaves);
    assert_eq!(report.broken_off, Some(reason));
    assert!(!report.is_same() && report.differences.is_empty(), "{report}");
    assert_eq!((report.asked, report.compared), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn dropped_replay_stops_open_calls_and_sends_no_more() {
    fn hang(_: &str, _: &Json) -> (Duration, Outcome) {
        (Duration::from_secs(3_600), Ok(Value::empty()))
    }
    let room = memory::MemoryRoom::new();
    let phone = Phone::new(hang);
    let client = Client::builder().tools(phone.clone()).join_over(room.client("phone")).await.unwrap();
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
    let recorded = live(calls(&[(2_000, 2_001), (2_002, 2_003)]));
    let stopped = tokio::time::timeout(500 * MS, recorded.ask(&assistant, |_| {})).await;
    assert!(stopped.is_err());
    sleep(500 * MS).await;
    assert_eq!((client.open_jobs(), assistant.open_calls(), phone.asked().len()), (0, 0, 1));
}

/// A phone's recording leads to the same calls as its assistant's.
#[tokio::test(start_paused = true)]
async fn recordings_of_both_ends_send_the_same_calls() {
    let room = memory::MemoryRoom::new();
    let (of_phone, of_assistant) = (crate::recording_said::Tape::new(), crate::recording_said::Tape::new());
    let phone = Phone::new(at_once);
    let client = Client::builder().tools(phone.clone());
    let client = client.join_over(of_phone.of(room.client("phone"))).await.unwrap();
    let assistant = Assistant::builder();
    let assistant = assistant.join_over(of_assistant.of(room.assistant("assistant"))).await.unwrap();
    for n in 1..=3 {
        assistant.call("lamp", json!({"n": n})).await.unwrap();
    }
    assistant.call("bridge.echo", json!({"n": 4})).await.unwrap();
    assistant.close().await;
    client.close().await;
    for tape in [of_phone, of_assistant] {
        let live = live(tape.entries());
        let (asks, all) = (live.plan().asked().count(), live.plan().calls.len());
        assert_eq!((asks, all), (3, 4));
        let phone = Phone::new(at_once);
        let report = again(&phone, &live).await;
        assert!(report.is_same() && phone.asked().len() == 3, "{report}");
    }
}

#[test]
fn recording_without_a_call_to_a_client_sends_nothing() {
    assert!(matches!(Replay::live(beginning()), Err(LiveError::NoCalls)));
    let entries = [here(1_000, "assistant"), joined(1_001, "phone", Some("client"))];
    assert!(matches!(Replay::live(entries), Err(LiveError::NoCalls)));
}
