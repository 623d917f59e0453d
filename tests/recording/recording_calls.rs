//! The calls of a recording: which frames belong together, and what settles a call.

use std::time::Duration;

use toolbridge::{
    recording::{Calls, Entry, Moment, RecordedCall, RecordedOutcome, RoomEvent, calls},
    tools::Execution,
};

use crate::recording_said::{
    MS, acknowledged, event, failed, heard, here, joined, ok, progress, request, sent, stop,
};

fn only(entries: Vec<Entry>) -> RecordedCall {
    let Calls { mut calls, dropped, .. } = calls(entries);
    assert_eq!((calls.len(), dropped), (1, 0), "{calls:#?}");
    calls.remove(0)
}

fn code(call: &RecordedCall) -> &str {
    match &call.outcome {
        RecordedOutcome::Failed { code, .. } => code.as_str(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn call_is_built_from_the_callers_request_and_result() {
    let call = only(vec![
        here(0, "assistant"),
        joined(1, "phone", Some("client")),
        sent(10, "assistant", &["phone"], &request(-1, "a", "client")),
        heard(12, "phone", &acknowledged(2, -1, "a", "")),
        heard(13, "phone", &progress(3, "a")),
        heard(15, "phone", &ok(4, "a")),
        sent(16, "assistant", &["phone"], &acknowledged(-2, 4, "a", "")),
        heard(20, "phone", &ok(4, "a")),
    ]);
    assert_eq!((call.id.as_str(), call.tool.as_str()), ("a", "lamp"));
    assert_eq!(call.execution, Some(Execution::Client));
    assert_eq!(
        (call.caller.as_ref().unwrap().as_str(), call.owner.as_ref().unwrap().as_str()),
        ("assistant", "phone")
    );
    assert_eq!(call.limit, Some(Duration::from_secs(5)));
    assert_eq!((call.parameters, call.result), (Some(5), Some(4)));
    let times = [call.requested, call.delivered, call.started, call.stopped, call.settled];
    assert_eq!(times, [Some(10), Some(12), Some(13), None, Some(15)].map(|it| it.map(|ms| Moment(ms * MS))));
    assert_eq!(call.outcome, RecordedOutcome::Ok);
    assert_eq!(call.entries, [2, 3, 4, 5, 6, 7]);
}

#[test]
fn calls_are_in_order_of_appearance_and_one_id_of_two_callers_is_two_calls() {
    let Calls { calls, .. } = calls(vec![
        here(0, "phone"),
        heard(1, "one", &request(-1, "a", "client")),
        heard(2, "two", &request(-1, "a", "client")),
        sent(3, "phone", &["two"], &ok(1, "a")),
        heard(4, "one", &request(-2, "b", "client")),
    ]);
    let found: Vec<_> = calls
        .iter()
        .map(|it| (it.caller.as_ref().unwrap().as_str(), it.id.as_str(), it.outcome.clone()))
        .collect();
    let open = RecordedOutcome::Open;
    assert_eq!(found, [("one", "a", open.clone()), ("two", "a", RecordedOutcome::Ok), ("one", "b", open)]);
}

#[test]
fn sec_i4_strangers_result_settles_no_call() {
    let asked = vec![
        here(0, "assistant"),
        sent(1, "assistant", &["phone"], &request(-1, "a", "client")),
        heard(2, "stranger", &progress(1, "a")),
        heard(3, "stranger", &ok(2, "a")),
        heard(4, "", &ok(2, "a")),
    ];
    let call = only(asked.clone());
    assert_eq!((call.outcome, call.started, call.settled), (RecordedOutcome::Open, None, None));
    assert_eq!(call.owner.unwrap(), "phone");
    let answered = [asked, vec![heard(5, "phone", &failed(1, "a", "busy"))]].concat();
    assert_eq!(code(&only(answered)), "busy");
}

#[test]
fn sec_i4_observer_accepts_the_result_of_a_client_that_offers_the_tool() {
    let register = r#"{"type": 70, "body": {"tools": [{"name": "lamp", "description": ""}]}}"#;
    let call = only(vec![
        here(0, "watcher"),
        heard(1, "phone", register),
        heard(2, "assistant", &request(-1, "a", "client")),
        heard(3, "stranger", &failed(2, "a", "busy")),
        heard(4, "phone", &ok(1, "a")),
    ]);
    assert_eq!((call.owner.unwrap().as_str(), call.outcome), ("phone", RecordedOutcome::Ok));
    assert_eq!(call.settled, Some(Moment(4 * MS)));
}

#[test]
fn copy_for_an_observer_adds_no_owner() {
    let call = only(vec![
        here(0, "assistant"),
        joined(0, "watcher", Some("observer")),
        sent(1, "assistant", &["watcher"], &request(-1, "a", "client")),
        sent(1, "assistant", &["phone"], &request(-1, "a", "client")),
        heard(2, "watcher", &ok(1, "a")),
    ]);
    assert_eq!((call.owner.unwrap().as_str(), call.outcome), ("phone", RecordedOutcome::Open));
}

#[test]
fn plain_peer_needs_neither_acknowledgement_nor_registration() {
    let result = r#"{"type": 7, "body": {"requestId": "a", "id": "res-1", "success": true, "data": 7}}"#;
    let ack = r#"{"stanzaId": 1, "type": 8, "body": {"acknowledgedStanzaId": -1, "success": true}}"#;
    let call = only(vec![
        here(0, "assistant"),
        sent(1, "assistant", &["old"], &request(-1, "a", "client")),
        heard(2, "old", ack),
        heard(3, "old", result),
    ]);
    assert_eq!((call.delivered, call.outcome), (Some(Moment(2 * MS)), RecordedOutcome::Ok));
    assert_eq!(call.entries, [1, 2, 3]);
}

#[test]
fn broadcast_call_is_settled_by_its_assistant_only() {
    let call = only(vec![
        here(0, "phone"),
        heard(1, "assistant", &request(-1, "a", "server")),
        heard(2, "stranger", &ok(1, "a")),
        heard(3, "assistant", &failed(-2, "a", "timeout")),
    ]);
    assert_eq!((call.owner.as_ref().unwrap().as_str(), code(&call)), ("assistant", "timeout"));
    assert_eq!(call.execution, Some(Execution::Server));
}

#[test]
fn call_withdrawn_from_a_client_is_settled_by_its_new_owner() {
    let call = only(vec![
        here(0, "assistant"),
        sent(1, "assistant", &["phone"], &request(-1, "a", "either")),
        sent(2, "assistant", &["phone"], &stop(-2, "a")),
        sent(3, "assistant", &[], &request(-3, "a", "server")),
        heard(4, "phone", &failed(1, "a", "cancelled")),
        sent(5, "assistant", &[], &ok(-4, "a")),
    ]);
    assert_eq!((call.owner.unwrap().as_str(), call.outcome), ("assistant", RecordedOutcome::Ok));
    assert_eq!((call.execution, call.settled), (Some(Execution::Either), Some(Moment(5 * MS))));
    assert_eq!(call.stopped, Some(Moment(2 * MS)));
}

#[test]
fn declined_call_is_settled_by_its_new_owner() {
    let declined = vec![
        here(0, "assistant"),
        sent(1, "assistant", &["phone"], &request(-1, "a", "either")),
        heard(2, "phone", &failed(1, "a", "busy")),
    ];
    assert_eq!(code(&only(declined.clone())), "busy");
    let run =
        vec![sent(3, "assistant", &[], &request(-2, "a", "server")), sent(9, "assistant", &[], &ok(-3, "a"))];
    let call = only([declined, run].concat());
    assert_eq!((call.outcome, call.settled), (RecordedOutcome::Ok, Some(Moment(9 * MS))));
}

#[test]
fn claim_makes_its_sender_the_owner() {
    let call = only(vec![
        here(0, "watcher"),
        heard(1, "assistant", &request(-1, "a", "either")),
        heard(2, "phone", &acknowledged(1, -1, "a", "claim")),
        heard(3, "tv", &ok(1, "a")),
        heard(4, "phone", &ok(2, "a")),
    ]);
    assert_eq!((call.owner.unwrap().as_str(), call.settled), ("phone", Some(Moment(4 * MS))));
}

#[test]
fn stop_ends_a_call_until_a_result_arrives() {
    let stopped = vec![
        here(0, "assistant"),
        sent(1, "assistant", &["phone"], &request(-1, "a", "client")),
        heard(2, "stranger", &stop(1, "a")),
        sent(3, "assistant", &["phone"], &stop(-2, "a")),
    ];
    let call = only(stopped.clone());
    assert_eq!((call.outcome, call.stopped), (RecordedOutcome::Stopped, Some(Moment(3 * MS))));
    assert_eq!(
        code(&only([stopped, vec![heard(4, "phone", &failed(1, "a", "cancelled"))]].concat())),
        "cancelled"
    );
}

fn stop_for(stanza: i32, id: &str, reason: &str) -> String {
    format!(r#"{{"stanzaId": {stanza}, "type": 10, "body": {{"targetId": "{id}", "reason": "{reason}"}}}}"#)
}

/// The recordings of one call by its caller, its owner and an observer: the caller sends a stop before or after the
/// owner has sent its answer, and each gets the other's frame later.
fn three_views(stop: &str, answer: &str) -> [Vec<Entry>; 3] {
    let asked = request(-1, "a", "client");
    let caller = vec![
        here(0, "assistant"),
        sent(1, "assistant", &["phone"], &asked),
        sent(3, "assistant", &["phone"], stop),
        heard(5, "phone", answer),
    ];
    let owner = vec![
        here(0, "phone"),
        heard(2, "assistant", &asked),
        sent(4, "phone", &["assistant"], answer),
        heard(5, "assistant", stop),
    ];
    let observer = vec![
        here(0, "eye"),
        joined(0, "eye", Some("observer")),
        heard(2, "assistant", &asked),
        heard(5, "phone", answer),
        heard(6, "assistant", stop),
    ];
    [caller, owner, observer]
}

#[test]
fn stop_ends_a_call_with_its_reason_whatever_the_owner_answers() {
    for (reason, ended) in
        [("deadline", "timeout"), ("caller", "cancelled"), ("barge_in", "cancelled"), ("lost", "lost")]
    {
        for answer in [ok(1, "a"), failed(1, "a", "cancelled"), failed(1, "a", "broken")] {
            for (who, entries) in
                ["caller", "owner", "observer"].iter().zip(three_views(&stop_for(-2, "a", reason), &answer))
            {
                let call = only(entries);
                assert_eq!(code(&call), ended, "{who}, stopped by {reason}, {answer}");
                assert_eq!(call.result, None, "{who}");
            }
        }
    }
}

#[test]
fn answer_that_precedes_a_stop_in_the_callers_file_is_the_outcome() {
    let call = only(vec![
        here(0, "assistant"),
        sent(1, "assistant", &["phone"], &request(-1, "a", "client")),
        heard(2, "phone", &ok(1, "a")),
        sent(3, "assistant", &["phone"], &stop_for(-2, "a", "caller")), // to an earlier instance
    ]);
    assert_eq!(call.outcome, RecordedOutcome::Ok);
}

#[test]
fn stop_without_a_reason_at_the_limit_is_a_timeout() {
    let asked = request(-1, "a", "client"); // with a limit of 5 s
    for (at, outcome) in [(2_000, "stopped"), (4_950, "timeout"), (5_002, "timeout")] {
        let call = only(vec![
            here(0, "assistant"),
            sent(1, "assistant", &["phone"], &asked),
            sent(at, "assistant", &["phone"], &stop(-2, "a")),
        ]);
        assert_eq!(call.outcome.as_str(), outcome, "{at} ms");
    }
}

#[test]
fn callers_own_record_of_an_end_is_the_outcome() {
    let ended = |at, code: &str| event(at, RoomEvent::Ended { call: "a".to_owned(), code: code.to_owned() });
    let asked = vec![here(0, "assistant"), sent(1, "assistant", &["phone"], &request(-1, "a", "client"))];
    for code_read in ["lost", "detached", "timeout"] {
        let call = only([asked.clone(), vec![ended(3, code_read), heard(9, "phone", &ok(1, "a"))]].concat());
        assert_eq!((code(&call), call.settled), (code_read, Some(Moment(3 * MS))));
        assert_eq!(call.entries.len(), 3);
    }
    // The owner's answer says the same, and more.
    let answered =
        only([asked, vec![heard(2, "phone", &failed(1, "a", "timeout")), ended(3, "timeout")]].concat());
    assert_eq!(answered.settled, Some(Moment(2 * MS)));
    assert!(matches!(answered.outcome, RecordedOutcome::Failed { message: Some(_), .. }));
    // Nobody else's call is meant.
    let stray = [here(0, "assistant"), ended(1, "timeout")];
    assert!(calls(stray.to_vec()).calls.is_empty());
}

#[test]
fn error_replaces_a_result() {
    let error = r#"{"type": 1, "body": {"id": "e", "conversationId": "r", "code": 304, "message": "refused",
        "severity": 1, "recoverable": true, "originatingId": "a"}}"#;
    let call = only(vec![
        here(0, "assistant"),
        sent(1, "assistant", &["phone"], &request(-1, "a", "client")),
        heard(2, "phone", error),
    ]);
    assert_eq!(code(&call), "error 304");
}

#[test]
fn reissued_call_belongs_to_its_last_owner() {
    let call = only(vec![
        here(0, "assistant"),
        sent(1, "assistant", &["phone"], &request(-1, "a", "client")),
        sent(2, "assistant", &["tv"], &request(-2, "a", "client")),
        heard(3, "phone", &failed(1, "a", "busy")),
        heard(4, "tv", &ok(1, "a")),
    ]);
    assert_eq!((call.owner.unwrap().as_str(), call.outcome), ("tv", RecordedOutcome::Ok));
}

#[test]
fn result_without_its_request_is_a_call_without_a_tool() {
    let call = only(vec![here(0, "assistant"), heard(1, "phone", &ok(1, "a"))]);
    assert_eq!((call.tool.as_str(), call.execution, call.requested), ("", None, None));
    assert_eq!((call.caller.as_ref().unwrap().as_str(), call.outcome), ("assistant", RecordedOutcome::Ok));
}

#[test]
fn other_packets_and_room_events_are_ignored() {
    let other = RoomEvent::Other;
    let mut foreign = heard(2, "phone", &ok(1, "a"));
    let toolbridge::recording::Happened::Packet(packet) = &mut foreign.what else { unreachable!() };
    packet.topic = "chat".into();
    let broken = crate::recording_said::raw(3, toolbridge::recording::Direction::Heard, "x", &[], vec![0xc1]);
    assert!(calls(vec![here(0, "a"), event(1, other), foreign, broken]).calls.is_empty());
}
