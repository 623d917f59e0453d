//! What `check` finds: each rule in a recording that breaks it, and nothing in a correct recording.

use std::time::Duration;

use serde_json::json;
use toolbridge::{
    Assistant, CallError, Client, Event, ToolContext, ToolError, ToolOptions,
    memory::MemoryRoom,
    recording::{
        Checked, Direction, Entry, Happened, Level, RecordedOutcome, RoomEvent, calls, check, entry_json,
        entry_text, info,
    },
};

use crate::recording_said::{
    Tape, acknowledged, closed, event, failed, heard, here, joined, left, ok, progress, raw, request, sent,
    stop,
};

/// Returns the broken rules, with the positions of the entries.
fn errors(entries: Vec<Entry>) -> Vec<(String, usize)> {
    of(Level::Error, check(entries))
}

fn notes(entries: Vec<Entry>) -> Vec<(String, usize)> {
    of(Level::Note, check(entries))
}

fn of(level: Level, checked: Checked) -> Vec<(String, usize)> {
    let found = checked.findings.into_iter().filter(|it| it.level == level);
    found.map(|it| (it.rule, it.entry)).collect()
}

fn rule(rule: &str, entry: usize) -> Vec<(String, usize)> {
    vec![(rule.to_owned(), entry)]
}

/// An assistant's recording of a request to a phone.
fn asked(more: Vec<Entry>) -> Vec<Entry> {
    let start = vec![
        here(0, "assistant"),
        joined(1, "phone", Some("client")),
        sent(10, "assistant", &["phone"], &request(-1, "a", "client")),
    ];
    [start, more].concat()
}

#[test]
fn malformed() {
    let broken = || raw(1, Direction::Heard, "phone", &[], vec![0x81, 0xc1]);
    let checked = check(vec![here(0, "a"), broken()]);
    assert_eq!((checked.errors, checked.findings[0].who.as_ref().unwrap().as_str()), (1, "phone"));
    assert!(checked.findings[0].text.contains("101"), "{checked:?}");
    let mut no_topic = broken();
    let Happened::Packet(packet) = &mut no_topic.what else { unreachable!() };
    packet.topic.clear();
    assert_eq!(of(Level::Note, check(vec![here(0, "a"), no_topic])), rule("malformed", 1));
}

#[test]
fn sec_i4_wrong_sender() {
    for said in [ok(1, "a"), progress(1, "a"), acknowledged(1, -1, "a", "claim")] {
        assert_eq!(errors(asked(vec![heard(11, "stranger", &said)])), rule("wrong-sender", 3), "{said}");
    }
    assert_eq!(errors(asked(vec![heard(11, "phone", &ok(1, "a"))])), []);
}

#[test]
fn request_changed() {
    let other = request(-2, "a", "client").replace("true", "false");
    assert_eq!(errors(asked(vec![sent(11, "assistant", &["phone"], &other)])), rule("request-changed", 3));
    let again = request(-1, "a", "client").replace("5000", "4000");
    assert_eq!(errors(asked(vec![sent(11, "assistant", &["phone"], &again)])), []);
}

#[test]
fn no_result() {
    assert_eq!(errors(asked(vec![closed(20)])), rule("no-result", 2));
    assert_eq!(errors(asked(vec![])), [], "an unfinished file may lack the result");
    assert_eq!(errors(asked(vec![heard(11, "phone", &ok(1, "a")), closed(20)])), []);
    assert_eq!(errors(asked(vec![left(15, "phone"), closed(20)])), [], "the owner had left");
    assert_eq!(errors(asked(vec![sent(15, "assistant", &["phone"], &stop(-2, "a")), closed(20)])), []);
    let unsent = RoomEvent::Unsent { channel: 0, sequence: 10, reason: "cut off".into() };
    assert_eq!(errors(asked(vec![event(12, unsent), closed(20)])), [], "the request was never sent");
    assert_eq!(errors(asked(vec![event(12, RoomEvent::Unrecorded { packets: 3 }), closed(20)])), []);
    let goodbye =
        r#"{"stanzaId": -2, "type": 10, "meta": {"bridge.bye": true}, "body": {"stopType": "all"}}"#;
    assert_eq!(
        errors(asked(vec![sent(12, "assistant", &["phone"], goodbye), closed(20)])),
        [],
        "the caller said goodbye"
    );
}

/// A state of a view; without content it ends.
fn view(stanza: i32, name: &str, content: &str) -> String {
    format!(r#"{{"stanzaId": {stanza}, "type": 1001, "body": {{"view": "{name}", "content": {content}}}}}"#)
}

#[test]
fn view_of_a_participant_that_is_no_assistant_and_views_beyond_the_limits() {
    let shown = |who: &str, views: &[(String, &str)]| {
        let start =
            vec![here(0, "watch"), joined(1, "brain", Some("assistant")), joined(2, "phone", Some("client"))];
        let states = (10..)
            .zip(views)
            .map(|(at, (name, content))| heard(at, who, &view(-i32::try_from(at).unwrap(), name, content)));
        [start, states.collect()].concat()
    };
    let one = |name: &str, content| [(name.to_owned(), content)];
    assert_eq!(errors(shown("brain", &one("load", "1"))), []);
    assert_eq!(errors(shown("phone", &one("load", "1"))), rule("view-sender", 3));
    assert_eq!(errors(shown("brain", &one(&"x".repeat(129), "1"))), rule("view-limit", 3));
    let large = format!("\"{}\"", "x".repeat(65_537));
    assert_eq!(errors(shown("brain", &one("page", &large))), rule("view-limit", 3));
    let mut views: Vec<_> = (0..16).map(|n| (format!("v{n}"), "1")).collect();
    views.push(("v3".to_owned(), "2"));
    assert_eq!(errors(shown("brain", &views)), []);
    views.push(("v16".to_owned(), "1"));
    assert_eq!(errors(shown("brain", &views)), rule("view-limit", 20));
    views.insert(17, ("v3".to_owned(), "null"));
    assert_eq!(errors(shown("brain", &views)), []);
}

#[test]
fn two_results() {
    let first = heard(11, "phone", &ok(1, "a"));
    let other = heard(12, "phone", &failed(2, "a", "execution_error"));
    assert_eq!(errors(asked(vec![first.clone(), other])), rule("two-results", 4));
    assert_eq!(errors(asked(vec![first.clone(), first])), []);
}

#[test]
fn result_after_stop() {
    let stopped = vec![sent(11, "assistant", &["phone"], &stop(-2, "a")), heard(12, "phone", &ok(1, "a"))];
    assert_eq!(errors(asked(stopped.clone())), [], "the stop and the result may have crossed");
    assert_eq!(notes(asked(stopped)), rule("result-after-stop", 4));
    let owner = vec![
        here(0, "phone"),
        heard(1, "assistant", &request(-1, "a", "client")),
        heard(2, "assistant", &stop(-2, "a")),
    ];
    let answered =
        |at, result: &str| [owner.clone(), vec![sent(at, "phone", &["assistant"], result)]].concat();
    assert_eq!(errors(answered(152, &ok(1, "a"))), rule("result-after-stop", 3));
    assert_eq!(errors(answered(151, &ok(1, "a"))), [], "the stop may have met the result");
    assert_eq!(notes(answered(151, &ok(1, "a"))), rule("result-after-stop", 3));
    assert_eq!(errors(answered(152, &failed(1, "a", "cancelled"))), []);
}

#[test]
fn timeout_not_honored() {
    let late = |ms| vec![heard(ms, "phone", &ok(1, "a"))];
    assert_eq!(errors(asked(late(7_011))), rule("timeout-not-honoured", 2));
    assert_eq!(errors(asked(late(7_010))), []);
    assert_eq!(
        errors(asked(vec![left(100, "phone"), joined(9_000, "phone", None)])),
        [],
        "the owner was away"
    );
    let down = vec![event(100, RoomEvent::Link { up: false }), event(9_000, RoomEvent::Link { up: true })];
    assert_eq!(errors(asked(down)), []);
}

#[test]
fn stanza_reused() {
    let hello = r#"{"stanzaId": 1, "type": 12, "meta": {"bridge.instance": "x"}, "body": {}}"#;
    let ours = vec![heard(11, "phone", hello), heard(12, "phone", &ok(1, "a"))];
    assert_eq!(errors(asked(ours)), rule("stanza-reused", 4));
    let plain = vec![heard(11, "phone", &progress(1, "a")), heard(12, "phone", &ok(1, "a"))];
    assert_eq!((errors(asked(plain.clone())), notes(asked(plain))), (vec![], rule("stanza-reused", 4)));
}

#[test]
fn stanza_order() {
    let hello = |features: &str| {
        let json = format!(r#"{{"stanzaId": -1, "type": 12, "body": {{"features": [{features}]}}}}"#);
        sent(0, "assistant", &["phone"], &json)
    };
    let asked = |more: Vec<Entry>| [vec![here(0, "assistant"), hello("")], more].concat();
    let sent_so = vec![
        sent(11, "assistant", &["phone"], &request(-9, "b", "client")),
        sent(12, "assistant", &["phone"], &request(-5, "c", "client")),
    ];
    assert_eq!(errors(asked(sent_so.clone())), rule("stanza-order", 3));
    let fast = [vec![here(0, "assistant"), hello(r#""fast_lane""#)], sent_so].concat();
    assert_eq!(errors(fast), [], "with a fast lane, frames may be sent out of order");
    let repeated = vec![
        sent(10, "assistant", &["phone"], &request(-3, "a", "client")),
        sent(11, "assistant", &["phone"], &request(-9, "b", "client")),
        sent(12, "assistant", &["phone"], &request(-3, "a", "client")),
        sent(13, "assistant", &["phone"], &stop(-2, "a")),
    ];
    assert_eq!(errors(asked(repeated)), [], "repeated requests and overtaking stops are allowed");
    let heard_so = vec![heard(11, "phone", &progress(7, "a")), heard(12, "phone", &ok(3, "a"))];
    assert_eq!((errors(asked(heard_so.clone())), notes(asked(heard_so))), (vec![], rule("stanza-order", 3)));
}

#[test]
fn dead_sid() {
    let gone = vec![left(11, "phone"), heard(12, "phone", &ok(1, "a"))];
    assert_eq!(errors(asked(gone)), rule("dead-sid", 4));
    let back = vec![left(11, "phone"), joined(12, "phone", None), heard(13, "phone", &ok(1, "a"))];
    assert_eq!(errors(asked(back)), [], "a sid that the room lists is not dead");
}

#[test]
fn unknown_type_and_dialect_are_reported_once() {
    let speech = r#"{"stanzaId": 1, "type": 3, "body": "hello"}"#;
    let old = r#"{"type": 7, "body": {"previousId": "a", "success": true, "data": {}}}"#;
    let entries =
        asked(vec![heard(11, "phone", speech), heard(12, "phone", speech), heard(13, "phone", old)]);
    let checked = check(entries);
    let found: Vec<_> = checked.findings.iter().map(|it| (it.rule.as_str(), it.text.as_str())).collect();
    assert_eq!(checked.errors, 0);
    assert_eq!(
        found,
        [
            ("unknown-type", "type 3 is not part of this protocol and is ignored"),
            ("dialect", r#"ToolUseResult is written with "data""#),
            ("dialect", r#"ToolUseResult is written with "previousId""#),
        ]
    );
}

#[test]
fn findings_are_capped_and_counted() {
    let entries = (0..10_050).map(|ms| raw(ms, Direction::Heard, "phone", &[], vec![0xc1]));
    let checked = check(entries);
    assert_eq!((checked.findings.len(), checked.left_out, checked.errors), (10_000, 50, 10_050));
}

#[tokio::test(start_paused = true)]
async fn sec_c1_mutated_frames_are_checked_and_shown_without_a_panic() {
    let [entries, ..] = session().await;
    let mut random = 1_u64;
    let mut below = |most: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % most.max(1)
    };
    for _ in 0..200 {
        let mut mutated = entries.clone();
        for entry in &mut mutated {
            if let Happened::Packet(packet) = &mut entry.what {
                let mut bytes = packet.payload.to_vec();
                for _ in 0..below(4) {
                    let at = below(bytes.len());
                    bytes[at] = below(256) as u8;
                }
                bytes.truncate(bytes.len() - below(2) * below(9));
                packet.payload = bytes.into();
            }
            entry.at.0 = entry.at.0.wrapping_add(below(3) as u64 * (u64::MAX / 2));
        }
        for (index, entry) in mutated.iter().enumerate() {
            let line = entry_text(entry, Some(entries[0].at));
            assert!(!line.contains(char::is_control), "{line:?}");
            assert_eq!(entry_json(index, entry)["entry"], index);
        }
        let checked = check(mutated.clone());
        let info = info(mutated.clone());
        assert_eq!(info.problems.values().sum::<u64>(), checked.errors);
        assert!(!info.to_string().contains(|it: char| it.is_control() && it != '\n'));
    }
}

async fn lamp() -> Result<String, ToolError> {
    Ok("on".to_owned())
}

async fn forever(context: ToolContext) -> Result<(), ToolError> {
    context.cancelled().await;
    Ok(())
}

async fn ours() -> Result<(), ToolError> {
    Err("not today".into())
}

/// Two clients, an assistant with its own tool and an observer: success, failure, timeout, cancel, server-executed,
/// claimed, unknown, and a client that leaves; as each of them received it.
async fn session() -> [Vec<Entry>; 3] {
    let room = MemoryRoom::named("kitchen");
    room.delay(Duration::from_millis(20));
    let tapes = [Tape::new(), Tape::new(), Tape::new()];
    let mut observer = tapes[2].of(room.observer("watcher"));
    let watching = tokio::spawn(async move {
        while toolbridge::transport::Transport::recv(&mut observer).await.is_some() {}
    });
    let phone = Client::builder()
        .tool("lamp", "", lamp)
        .tool("forever", "", forever)
        .tool("both", "", lamp)
        .join_over(tapes[1].of(room.client("phone")))
        .await
        .unwrap();
    let tv = Client::builder().tool("picture", "", lamp).join_over(room.client("tv")).await.unwrap();
    let assistant = Assistant::builder()
        .tool("ours", "", ours)
        .tool("both", "", ToolOptions::default().prefer_client().on(lamp))
        .join_over(tapes[0].of(room.assistant("assistant")))
        .await
        .unwrap();
    let mut events = assistant.events();
    while assistant.tools().len() < 6 {
        let _: Option<Event> = events.recv().await;
    }
    assistant.call("lamp", ()).await.unwrap();
    assistant.call("picture", ()).await.unwrap();
    assistant.call("both", ()).await.unwrap();
    assistant.call("ours", ()).await.unwrap_err();
    assistant.call("lamp", json!({"no": "such"})).to("tv").await.unwrap_err();
    let slow = assistant.call("forever", ()).timeout(Duration::from_millis(500)).await;
    assert!(matches!(slow, Err(CallError::Timeout { .. })), "{slow:?}");
    let open = assistant.call("forever", ()).start();
    tokio::time::sleep(Duration::from_millis(300)).await;
    drop(open);
    tv.close().await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assistant.close().await;
    phone.close().await;
    watching.abort();
    tapes.map(|tape| tape.entries())
}

#[tokio::test(start_paused = true)]
async fn session_between_toolbridge_peers_has_no_findings_at_either_end() {
    for (who, entries) in ["assistant", "phone", "watcher"].into_iter().zip(session().await) {
        let checked = check(entries.clone());
        assert!(checked.findings.is_empty(), "{who}: {:#?}", checked.findings);
        let calls = calls(entries.clone());
        let open = |it: &&toolbridge::recording::RecordedCall| it.outcome == RecordedOutcome::Open;
        assert!(calls.calls.iter().find(open).is_none(), "{who}: {calls:#?}");
        let info = info(entries);
        assert_eq!(info.calls, calls.calls.len() as u64, "{who}");
        assert_eq!(info.room, "kitchen");
        let lamp = info.tools.iter().find(|tool| tool.name == "lamp").unwrap();
        assert!(lamp.outcomes["ok"] >= 1 && lamp.latency.is_some(), "{who}: {lamp:?}");
    }
}
