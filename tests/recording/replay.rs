//! Replays of recorded sessions: an unchanged one matches, and a changed one shows where it differs.

use std::{collections::BTreeMap, time::Duration};

use toolbridge::{
    Assistant, Client, Config, Progress, Role, Tool, ToolError, ToolOptions, Value,
    frame::{Frame, Kind, Message, Meta, ToolUseResult},
    memory,
    recording::{Direction, Entry, Happened, Recorder, RecorderOptions, Recording},
    replay::{DryReport, Replay, Skipped},
    transport::{Participant, Peer},
};

use crate::folder::Folder;
use crate::session_tape::file;
use crate::session_world::{Fate, MS, Random, SECOND, World, request, tool, value};

pub(crate) fn dry(entries: &[Entry]) -> DryReport {
    let report = Replay::dry(entries.to_vec()).unwrap();
    assert_eq!(
        report,
        Replay::dry(entries.to_vec()).unwrap(),
        "replaying the same file twice gives the same report"
    );
    report
}

/// Asserts that the recordings of both ends replay equally.
pub(crate) fn both_are_same(world: &World) -> (DryReport, DryReport) {
    let [a, phone] = ["a", "phone"].map(|name| {
        let report = dry(&file(world, name));
        assert!(report.is_same(), "{name}: {report}");
        assert!(report.compared > 0, "{name}: {report}");
        report
    });
    (a, phone)
}

pub(crate) fn noted(assistant: Config, client: Config, tools: &[&str]) -> World {
    let mut world = World::new();
    world.notes = Some(Vec::new());
    world.assistant("a", assistant);
    world.client("phone", client, tools);
    world.run(200 * MS);
    world
}

fn pair(tools: &[&str]) -> World {
    noted(Config::default(), Config::default(), tools)
}

/// Much later, so that no timer is left.
pub(crate) fn ended(mut world: World) -> World {
    world.run(90 * SECOND);
    world.with("a", |session, now| session.close(now));
    world.run(SECOND);
    world
}

#[test]
fn success_replays_equally_at_both_ends() {
    let mut world = pair(&["good"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    world.ask("a", request("good")).unwrap();
    let (a, phone) = both_are_same(&ended(world));
    assert!(a.compared >= 9 && phone.compared >= 9, "{a}{phone}");
}

#[test]
fn failure_replays_equally_at_both_ends() {
    let mut world = pair(&["bad"]);
    world.handle("phone", |_| Some(Err(ToolError::new("disk_full", "no room").with_partial(value(2)))));
    world.ask("a", request("bad")).unwrap_err();
    both_are_same(&ended(world));
}

#[test]
fn unknown_tool_replays_equally_at_both_ends() {
    let mut world = pair(&["good"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    world.with("phone", |session, now| session.offer(now, vec![tool("gone")])).unwrap().unwrap();
    world.call("a", request("good")).unwrap(); // the assistant has not received it yet
    world.run(SECOND);
    both_are_same(&ended(world));
}

#[test]
fn timeout_replays_equally_at_both_ends() {
    let mut world = pair(&["hang"]);
    world.ask("a", request("hang").timeout(2 * SECOND)).unwrap_err();
    both_are_same(&ended(world));
}

/// The caller's timeout and its owner's timeout result are almost simultaneous, and a file cannot show which was
/// first. A result long after the timeout is a difference.
#[test]
fn timeout_that_meets_the_owners_timeout_is_not_a_difference() {
    for (late, same) in [(50 * MS, true), (SECOND, false)] {
        let mut world = pair(&["slow"]);
        world.call("a", request("slow").timeout(2 * SECOND)).unwrap();
        world.run(1_980 * MS);
        world.finish("phone", Err(ToolError::new("timeout", "too slow")));
        let mut entries = file(&ended(world), "a");
        let is_answer = |entry: &Entry| match &entry.what {
            Happened::Packet(it) => {
                Frame::decode(it.payload.clone()).unwrap().kind() == Kind::TOOL_USE_RESULT
            }
            _ => false,
        };
        let answer = entries.iter().position(is_answer).unwrap();
        for entry in &mut entries[answer..] {
            entry.at.0 += late.as_nanos() as u64;
        }
        let report = dry(&entries);
        assert_eq!(report.is_same(), same, "{late:?}: {report}");
    }
}

#[test]
fn cancel_replays_equally_at_both_ends() {
    let mut world = pair(&["hang"]);
    let key = world.call("a", request("hang")).unwrap();
    world.run(3 * SECOND);
    world.with("a", |session, now| session.cancel(now, key));
    world.run(SECOND);
    both_are_same(&ended(world));
}

#[test]
fn progress_replays_equally_at_both_ends() {
    let mut world = pair(&["slow"]);
    world.call("a", request("slow")).unwrap();
    world.run(100 * MS);
    let job = world.ends["phone"].jobs[0].key;
    for step in 0..20 {
        let progress = Progress::started().content(value(step));
        world.with("phone", |session, now| session.progress(now, job, progress));
        world.run(37 * MS);
    }
    world.finish("phone", Ok(value(9)));
    both_are_same(&ended(world));
}

#[test]
fn changed_registration_replays_equally_at_both_ends() {
    let mut world = pair(&["one"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    world.ask("a", request("one")).unwrap();
    let two = Tool::new("two".parse().unwrap(), "changed").schema(serde_json::json!({"type": "object"}));
    world.with("phone", |session, now| session.offer(now, vec![tool("one"), two])).unwrap().unwrap();
    world.run(SECOND);
    world.ask("a", request("two")).unwrap();
    both_are_same(&ended(world));
}

fn shared(name: &str) -> Tool {
    tool(name).options(ToolOptions::default().prefer_client())
}

#[test]
fn either_call_replays_equally_whichever_side_ran_it() {
    let mut world = World::new();
    world.notes = Some(Vec::new());
    world.assistant("a", Config::default());
    world.with("a", |session, now| session.offer(now, vec![shared("lookup")])).unwrap().unwrap();
    world.handle("a", |_| Some(Ok(value(7))));
    world.client("phone", Config::default(), &["lookup"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    world.run(200 * MS);
    world.ask("a", request("lookup")).unwrap();
    world.run(SECOND);
    let claim =
        |frame: &Frame| matches!(frame.message(), Ok(Message::Acknowledgement(it)) if it.notes.is_some());
    world.fate = Some(Box::new(move |_, who, frame| match who.as_str() {
        "phone" if claim(frame) => Fate::IsOvertaken(3 * SECOND),
        _ => Fate::Arrives,
    }));
    world.ask("a", request("lookup")).unwrap(); // the claim comes too late: the assistant runs it
    world.run(5 * SECOND);
    world.fate = None;
    both_are_same(&ended(world));
}

#[test]
fn assistants_own_tool_replays_equally_at_both_ends() {
    let mut world = pair(&["good"]);
    let own = ["open", "failing", "quiet"].map(tool);
    let named = own[2].clone().options(ToolOptions::default().disclose(toolbridge::tools::Visibility::Name));
    let own = vec![own[0].clone(), own[1].clone(), named];
    world.with("a", |session, now| session.offer(now, own)).unwrap().unwrap();
    world.handle("a", |job| match job.tool.as_str() {
        "failing" => Some(Err(ToolError::new("broken", "it broke"))),
        _ => Some(Ok(value(3))),
    });
    world.ask("a", request("open")).unwrap();
    world.ask("a", request("failing")).unwrap_err();
    world.ask("a", request("quiet")).unwrap();
    world.run(SECOND);
    both_are_same(&ended(world));
}

#[test]
fn call_of_a_plain_peer_replays_equally() {
    let mut world = World::new();
    world.notes = Some(Vec::new());
    world.assistant("a", Config::default());
    world.stranger("old");
    world.run(5 * SECOND);
    let key = world.call("a", request("beep").to("old").timeout(20 * SECOND)).unwrap();
    world.run(3 * SECOND);
    let Some(Message::ToolUseRequest(asked)) = world.received("old", Kind::TOOL_USE_REQUEST).pop() else {
        panic!()
    };
    let result = with!(ToolUseResult::new(asked.id, true), result = Some(value(4)));
    world.send("old", &["a"], &Meta::new(), &Message::ToolUseResult(result));
    world.run(SECOND);
    assert!(world.settled("a", key).unwrap().is_ok());
    let report = dry(&file(&ended(world), "a"));
    assert!(report.is_same() && report.skipped.contains_key(&Skipped::NotReplayed), "{report}");
}

#[test]
fn returning_peer_replays_equally_at_both_ends() {
    let mut world = pair(&["good", "slow"]);
    world.call("a", request("slow")).unwrap();
    world.run(SECOND);
    world.leave("phone");
    world.run(500 * MS);
    world.finish("phone", Ok(value(5)));
    world.run(SECOND);
    world.rejoin("phone");
    world.run(10 * SECOND);
    world.handle("phone", |_| Some(Ok(value(1))));
    world.ask("a", request("good")).unwrap();
    world.run(20 * SECOND);
    world.leave("a");
    world.run(SECOND);
    world.rejoin("a");
    world.run(SECOND);
    world.ask("a", request("good")).unwrap();
    both_are_same(&ended(world));
}

#[test]
fn another_run_of_a_program_is_another_session() {
    let mut world = pair(&["good"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    world.ask("a", request("good")).unwrap();
    world.run(SECOND);
    world.leave("phone");
    world.run(20 * SECOND);
    world.client("phone", Config::default(), &["good"]);
    world.handle("phone", |_| Some(Ok(value(2))));
    world.run(SECOND);
    world.ask("a", request("good")).unwrap();
    world.run(40 * SECOND);
    world.ask("a", request("good")).unwrap();
    let report = dry(&file(&ended(world), "a"));
    assert!(report.is_same(), "{report}");
}

#[test]
fn fast_lane_replays_equally_at_both_ends() {
    let lossy = || Config::default().lossy(true);
    let mut world = noted(lossy(), lossy(), &["t", "late"]);
    world.random = Random(3);
    (world.lossy.lost, world.lossy.twice, world.lossy.passed) = (200, 100, 200);
    world.handle("phone", |job| (job.tool.as_str() == "t").then(|| Ok(value(1))));
    for _ in 0..30 {
        world.ask("a", request("t")).unwrap();
        world.run(150 * MS);
        world.call("a", request("late").timeout(SECOND)).unwrap();
        world.run(90 * MS);
        if !world.ends["phone"].jobs.is_empty() {
            world.finish("phone", Ok(value(2)));
        }
    }
    world.run(5 * SECOND);
    let (a, phone) = both_are_same(&ended(world));
    assert!(a.compared > 100 && phone.compared > 100, "{a}{phone}");
}

#[test]
fn streams_and_observer_copies_replay_equally_at_both_ends() {
    let mut world = noted(Config::default().streams(true), Config::default().streams(true), &["big"]);
    let sid = world.sid();
    world.play(&Participant::new("watch", sid).role(Role::Observer));
    world.run(SECOND);
    world.handle("phone", |_| Some(Ok(Value::from(serde_json::json!({"text": "x".repeat(40_000)})))));
    let text = Value::from(serde_json::json!({"text": "y".repeat(30_000)}));
    world.ask("a", toolbridge::session::Request::new("big", text)).unwrap();
    world.run(SECOND);
    both_are_same(&ended(world));
}

/// The reliable copy for an observer may leave before the frame itself, which waits in the queue of the fast lane.
#[test]
fn observer_copies_that_overtake_the_fast_lane_replay_equally_at_both_ends() {
    let lossy = || Config::default().lossy(true);
    let mut world = noted(lossy(), lossy(), &["t"]);
    let sid = world.sid();
    world.play(&Participant::new("watch", sid).role(Role::Observer));
    world.run(SECOND);
    for n in 0..10 {
        world.call("a", request("t")).unwrap();
        world.run(40 * MS);
        let job = world.ends["phone"].jobs[0].key;
        world.with("phone", |session, now| session.progress(now, job, Progress::started().content(value(n))));
        world.finish("phone", Ok(value(n)));
        world.run(100 * MS);
    }
    let world = ended(world);
    for name in ["a", "phone"] {
        let mut entries = file(&world, name);
        assert!(let_copies_overtake(&mut entries) >= 10, "{name}");
        let report = dry(&entries);
        assert!(report.is_same() && report.compared > 30, "{name}: {report}");
    }
}

/// Moves each copy for the observer before the frames that were sent at the same time. Returns how many were moved.
fn let_copies_overtake(entries: &mut [Entry]) -> usize {
    let is_copy = |entry: &Entry| match &entry.what {
        Happened::Packet(it) => {
            it.direction == Direction::Sent && it.to.iter().any(|to| to.as_str() == "watch")
        }
        _ => false,
    };
    let is_sent =
        |entry: &Entry| matches!(&entry.what, Happened::Packet(it) if it.direction == Direction::Sent);
    let mut moved = 0;
    for at in 1..entries.len() {
        if is_copy(&entries[at]) && is_sent(&entries[at - 1]) && entries[at - 1].at == entries[at].at {
            entries.swap(at - 1, at);
            moved += 1;
        }
    }
    moved
}

/// The recorder sees a packet before its session does: a cancel may come between the two, at either end.
#[test]
fn cancel_that_meets_a_result_is_not_a_difference() {
    for (name, apart, same) in [("a", 20 * MS, true), ("phone", 20 * MS, true), ("phone", SECOND, false)] {
        let mut world = pair(&["slow"]);
        let key = world.call("a", request("slow")).unwrap();
        world.run(SECOND);
        world.fate = Some(Box::new(move |_, _, frame| match frame.kind() {
            Kind::CONTROL_STOP => Fate::IsOvertaken(20 * MS),
            _ => Fate::Arrives,
        }));
        world.with("a", |session, now| session.cancel(now, key));
        world.finish("phone", Ok(value(1)));
        let mut entries = file(&ended(world), name);
        let of = |kind, direction| places(&entries, direction, kind)[0];
        let (first, second) = match name {
            "a" => (of(Kind::CONTROL_STOP, Direction::Sent), of(Kind::TOOL_USE_RESULT, Direction::Heard)),
            _ => (of(Kind::TOOL_USE_RESULT, Direction::Sent), of(Kind::CONTROL_STOP, Direction::Heard)),
        };
        assert!(first < second, "{name}");
        let later = entries.remove(second);
        let at = entries[first].at;
        entries.insert(first, later);
        entries[first].at = at;
        for entry in &mut entries[first + 1..] {
            entry.at.0 += apart.as_nanos() as u64;
        }
        let report = dry(&entries);
        assert_eq!(report.is_same(), same, "{name}, {apart:?}: {report}");
    }
}

#[test]
fn prompt_and_client_stop_replay_equally_at_both_ends() {
    let mut world = noted(Config::default(), Config::default().prompts(true), &["hang"]);
    world.allow_stop("phone");
    world.handle("phone", |job| (job.tool.as_str() != "hang").then(|| Ok(value(1))));
    let question = Value::from(serde_json::json!({"title": "Which?", "options": []}));
    let _ = world.call("a", toolbridge::session::Request::new("bridge.choose", question).to("phone"));
    world.run(SECOND);
    world.call("a", request("hang")).unwrap();
    world.run(SECOND);
    world.with("phone", |session, now| session.ask_to_stop(now, None)).unwrap().unwrap();
    world.run(SECOND);
    both_are_same(&ended(world));
}

/// Returns a changed frame.
fn changed(entry: &Entry, change: impl FnOnce(&mut i32, &mut String, &mut Message)) -> Entry {
    let mut entry = entry.clone();
    let Happened::Packet(packet) = &mut entry.what else { panic!("not a packet") };
    let frame = Frame::decode(packet.payload.clone()).unwrap();
    let mut stanza = frame.stanza_id().unwrap();
    let (mut room, mut message) = (frame.conversation_id().unwrap().to_owned(), frame.message().unwrap());
    change(&mut stanza, &mut room, &mut message);
    let meta: BTreeMap<String, Value> =
        frame.meta_body().decode::<BTreeMap<String, serde_json::Value>>().map_or_else(
            |_| BTreeMap::new(),
            |meta| meta.into_keys().map(|key| (key.clone(), frame.meta_get(&key).unwrap())).collect(),
        );
    let meta = meta.into_iter().fold(Meta::new(), |meta, (key, value)| meta.with_body(key, value));
    packet.payload = Frame::write(stanza, &room, &meta, &message).unwrap();
    entry
}

/// The positions of frames with this type and direction.
pub(crate) fn places(entries: &[Entry], direction: Direction, kind: Kind) -> Vec<usize> {
    let is_it = |entry: &Entry| match &entry.what {
        Happened::Packet(packet) => {
            packet.direction == direction
                && Frame::decode(packet.payload.clone()).is_ok_and(|frame| frame.kind() == kind)
        }
        _ => false,
    };
    entries.iter().enumerate().filter(|(_, entry)| is_it(entry)).map(|(at, _)| at).collect()
}

/// The differences: position, sender, type, field.
fn differences(entries: &[Entry]) -> Vec<(usize, String, &'static str, String)> {
    let found =
        |it: &toolbridge::replay::Difference| (it.entry, it.who.to_string(), it.frame, it.field.clone());
    dry(entries).differences.iter().map(found).collect()
}

/// Three successful calls, one of a tool that is gone, and the recording of `name`.
fn three_calls(name: &str) -> Vec<Entry> {
    let mut world = pair(&["good"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    for _ in 0..3 {
        world.ask("a", request("good")).unwrap();
        world.run(SECOND);
    }
    world.with("phone", |session, now| session.offer(now, vec![tool("other")])).unwrap().unwrap();
    world.ask("a", request("good")).unwrap_err();
    world.run(SECOND);
    let file = file(&ended(world), name);
    assert!(dry(&file).is_same());
    file
}

#[test]
fn changed_error_code_is_a_difference() {
    let mut file = three_calls("phone");
    let at = *places(&file, Direction::Sent, Kind::TOOL_USE_RESULT).last().unwrap();
    file[at] = changed(&file[at], |_, _, message| {
        let Message::ToolUseResult(result) = message else { panic!() };
        result.error_code = Some("busy".into());
    });
    assert_eq!(differences(&file), [(at, "phone".to_owned(), "ToolUseResult", "body.errorCode".to_owned())]);
}

#[test]
fn changed_result_body_is_a_difference() {
    let mut file = three_calls("phone");
    let at = *places(&file, Direction::Sent, Kind::TOOL_USE_RESULT).last().unwrap();
    file[at] = changed(&file[at], |_, _, message| {
        let Message::ToolUseResult(result) = message else { panic!() };
        result.result = Some(value(3));
    });
    assert_eq!(differences(&file), [(at, "phone".to_owned(), "ToolUseResult", "body.result".to_owned())]);
}

#[test]
fn wrong_echo_is_a_difference_at_both_ends() {
    for (name, direction) in [("phone", Direction::Sent), ("a", Direction::Heard)] {
        let mut world = pair(&[]);
        world.ask("a", toolbridge::session::Request::new("bridge.echo", value(5)).to("phone")).unwrap();
        let mut file = file(&ended(world), name);
        let at = places(&file, direction, Kind::TOOL_USE_RESULT)[0];
        file[at] = changed(&file[at], |_, _, message| {
            let Message::ToolUseResult(result) = message else { panic!() };
            result.result = Some(value(6));
        });
        assert_eq!(
            differences(&file),
            [(at, "phone".to_owned(), "ToolUseResult", "body.result.n".to_owned())]
        );
    }
}

#[test]
fn missing_acknowledgement_is_a_difference() {
    for (name, whose, direction) in
        [("phone", "phone", Direction::Sent), ("a", "a", Direction::Sent), ("a", "phone", Direction::Heard)]
    {
        let mut file = three_calls(name);
        let at = places(&file, direction, Kind::ACKNOWLEDGEMENT)[1];
        file.remove(at);
        let found = dry(&file).differences;
        assert_eq!(found.len(), 1, "{name}: {found:?}");
        let it = &found[0];
        assert_eq!((it.who.as_str(), it.frame, &*it.field), (whose, "Acknowledgement", "frame"));
        assert!(it.expected == "nothing" && it.entry <= at);
    }
}

#[test]
fn swapped_frames_and_changed_stanzas_are_differences() {
    let file = three_calls("phone");
    let results = places(&file, Direction::Sent, Kind::TOOL_USE_RESULT);
    let started = places(&file, Direction::Sent, Kind::TOOL_PROGRESS);
    let mut swapped = file.clone();
    let (a, b) = (started[1], results[1]);
    let (one, two) = (swapped[a].what.clone(), swapped[b].what.clone());
    (swapped[a].what, swapped[b].what) = (two, one);
    let found = differences(&swapped);
    assert!(found.contains(&(b, "phone".to_owned(), "ToolProgress", "order".to_owned())), "{found:?}");

    let mut moved = file.clone();
    moved[results[1]] = changed(&moved[results[1]], |stanza, _, _| *stanza += 1_000);
    let found = differences(&moved);
    assert!(
        found.contains(&(results[1], "phone".to_owned(), "ToolUseResult", "stanzaId".to_owned())),
        "{found:?}"
    );
}

#[test]
fn result_without_a_call_is_a_difference() {
    let mut file = three_calls("a");
    let at = places(&file, Direction::Heard, Kind::TOOL_USE_RESULT)[1];
    let foreign = changed(&file[at], |stanza, _, message| {
        *stanza += 500;
        let Message::ToolUseResult(result) = message else { panic!() };
        result.id = "never-asked".parse().unwrap();
    });
    file.insert(at + 1, foreign);
    let found = differences(&file);
    assert!(found.contains(&(at + 1, "phone".to_owned(), "ToolUseResult", "frame".to_owned())), "{found:?}");
}

#[test]
fn file_without_a_participant_is_refused_and_one_without_frames_is_equal() {
    assert_eq!(Replay::dry([]), Err(toolbridge::replay::DryError::NobodyHere));
    let mut file = three_calls("a");
    file.truncate(1);
    let report = dry(&file);
    assert!(report.is_same() && report.compared == 0);
}

#[test]
fn redacted_bodies_are_counted_and_not_compared() {
    let mut file = three_calls("phone");
    let at = *places(&file, Direction::Sent, Kind::TOOL_USE_RESULT).last().unwrap();
    let Happened::Packet(packet) = &mut file[at].what else { panic!() };
    let frame = Frame::decode(packet.payload.clone()).unwrap();
    let Message::ToolUseResult(mut result) = frame.message().unwrap() else { panic!() };
    result.error_message = Some("text of 30 bytes".to_owned());
    let meta = Meta::new().with_bool("bridge.redacted", true);
    let stanza = frame.stanza_id().unwrap();
    packet.payload = Frame::write(stanza, "room", &meta, &Message::ToolUseResult(result)).unwrap();
    let report = dry(&file);
    assert!(report.is_same() && report.skipped[&Skipped::Redacted] == 1, "{report}");
}

#[test]
fn other_packets_are_counted_and_replayed_unchanged() {
    let mut file = three_calls("a");
    let at = places(&file, Direction::Heard, Kind::TOOL_USE_RESULT)[0];
    let mut odd = file[at].clone();
    let Happened::Packet(packet) = &mut odd.what else { panic!() };
    packet.from = Some(Peer::new("x", "PA_x"));
    packet.payload = vec![0xc1, 1, 2].into();
    let mut other = odd.clone();
    let Happened::Packet(packet) = &mut other.what else { panic!() };
    packet.topic = "chat".to_owned();
    file.insert(at, odd);
    file.insert(at, other);
    let report = dry(&file);
    assert!(report.is_same(), "{report}");
    assert_eq!((report.skipped[&Skipped::Malformed], report.skipped[&Skipped::OtherTopic]), (1, 1));
}

/// A random session without violations.
fn random_session(seed: u64) -> World {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let fast = random.one_in(3);
    let config = || Config::default().lossy(fast);
    let mut world = World::new();
    world.notes = Some(Vec::new());
    world.random = Random(seed | 1);
    world.jitter = random.pick(&[Duration::ZERO, 15 * MS]);
    world.assistant("a", config());
    world.with("a", |session, now| session.offer(now, vec![tool("own")])).unwrap().unwrap();
    world.handle("a", |_| Some(Ok(value(8))));
    world.client("phone", config(), &["good", "bad", "wait"]);
    world.handle("phone", |job| match job.tool.as_str() {
        "good" => Some(Ok(value(1))),
        "bad" => Some(Err(ToolError::new("broken", "it broke"))),
        _ => None,
    });
    world.run(200 * MS);
    let mut open = Vec::new();
    for _ in 0..40 {
        match random.below(12) {
            0..=2 => drop(world.call("a", request("good"))),
            3 => drop(world.call("a", request("bad"))),
            4 => drop(world.call("a", request("own"))),
            5 | 6 => {
                let limit = random.pick(&[300 * MS, SECOND, 10 * SECOND]);
                open.extend(world.call("a", request("wait").timeout(limit)));
            }
            7 if !open.is_empty() => {
                let key = open.remove(0);
                world.with("a", |session, now| session.cancel(now, key));
            }
            8 | 9 if !world.ends["phone"].jobs.is_empty() => {
                let job = world.ends["phone"].jobs[0].key;
                let progress = Progress::started().content(value(3));
                world.with("phone", |session, now| session.progress(now, job, progress));
                world.run(random.pick(&[10 * MS, 120 * MS]));
                world.finish("phone", Ok(value(2)));
            }
            10 => {
                let names = random.pick(&[&["good", "wait"][..], &["good", "bad", "wait"]]);
                let tools = names.iter().map(|name| tool(name)).collect();
                world.with("phone", |session, now| session.offer(now, tools)).unwrap().unwrap();
            }
            11 if random.one_in(4) => {
                world.leave("phone");
                world.run(random.pick(&[SECOND, 8 * SECOND]));
                world.rejoin("phone");
            }
            _ => {}
        }
        world.run(random.pick(&[MS, 17 * MS, 40 * MS, 200 * MS, 2 * SECOND]));
    }
    world.run(20 * SECOND);
    ended(world)
}

#[test]
fn hundred_random_sessions_replay_equally_and_a_change_in_each_is_found() {
    let (mut compared, mut changes) = (0, 0);
    for seed in 1..=100 {
        let world = random_session(seed);
        for name in ["a", "phone"] {
            let mut file = file(&world, name);
            let report = Replay::dry(file.clone()).unwrap();
            assert!(report.is_same(), "seed {seed}, {name}: {report}");
            compared += report.compared;

            // A part that the session decides, in a frame that was compared.
            let mut random = Random(seed);
            let kinds = [Kind::TOOL_USE_RESULT, Kind::TOOL_USE_REQUEST, Kind::TOOLS_REGISTER_ACK];
            let sent: Vec<_> = kinds.iter().flat_map(|kind| places(&file, Direction::Sent, *kind)).collect();
            let at = random.pick(&sent);
            file[at] = match random.below(2) {
                0 => changed(&file[at], |_, room, _| room.push('x')),
                _ => changed(&file[at], |_, _, message| match message {
                    Message::ToolUseResult(it) => it.conversation_id = Some("another".to_owned()),
                    Message::ToolUseRequest(it) => it.conversation_id = Some("another".to_owned()),
                    Message::ToolsRegisterAck(it) => it.tool_count += 1,
                    _ => panic!(),
                }),
            };
            let report = Replay::dry(file).unwrap();
            assert!(!report.is_same(), "seed {seed}, {name}: the change of entry {at} is not found");
            changes += 1;
        }
    }
    assert!(compared > 5_000 && changes == 200, "{compared} frames, {changes} changes");
}

async fn get_battery() -> Result<f32, ToolError> {
    Ok(0.8)
}

async fn hang() -> Result<(), ToolError> {
    std::future::pending().await
}

async fn fail() -> Result<(), ToolError> {
    Err(ToolError::new("disk_full", "no room"))
}

#[tokio::test]
async fn live_recordings_of_both_ends_replay_equally() {
    let folder = Folder::new();
    let (phone, assistant) = (folder.file("phone.mcap"), folder.file("assistant.mcap"));
    let room = memory::MemoryRoom::named("kitchen");
    let of_phone = Recorder::create(&phone, RecorderOptions::default()).unwrap();
    let of_assistant = Recorder::create(&assistant, RecorderOptions::default()).unwrap();
    let client = Client::builder()
        .tool("get_battery", "Battery level", get_battery)
        .tool("hang", "Never ends", hang)
        .tool("fail", "Fails", fail)
        .join_over(of_phone.tap(room.client("phone")))
        .await
        .unwrap();
    let caller = Assistant::builder()
        .tool("own", "The assistant's own", get_battery)
        .join_over(of_assistant.tap(room.assistant("assistant")))
        .await
        .unwrap();
    for _ in 0..12 {
        let (one, two, three, four) = tokio::join!(
            caller.call("get_battery", ()),
            caller.call("get_battery", ()),
            caller.call("own", ()),
            caller.call("fail", ()),
        );
        assert!(one.is_ok() && two.is_ok() && three.is_ok() && four.is_err());
    }
    assert!(caller.call("hang", ()).timeout(60 * MS).await.is_err());
    let mut open = caller.call("hang", ()).start();
    assert!(caller.call("get_battery", ()).await.is_ok());
    open.cancel();
    assert!(open.await.is_err());
    assert!(caller.call("get_battery", ()).await.is_ok());
    caller.close().await;
    client.close().await;
    of_phone.finish().unwrap();
    of_assistant.finish().unwrap();
    for path in [phone, assistant] {
        let entries: Vec<_> = Recording::open(&path).unwrap().entries().collect();
        let report = dry(&entries);
        assert!(report.is_same() && report.compared > 100, "{}: {report}", path.display());
    }
}

/// 192 calls, sixteen of them at the same time, whose tools take about as long as an owner holds its acknowledgements
/// back (5 ms), or much longer.
fn in_flight(seed: u64) -> World {
    let lossy = || Config::default().lossy(true);
    let mut world = noted(lossy(), lossy(), &["work"]);
    let (mut random, mut due) = (Random(seed), BTreeMap::new());
    for burst in 0..12 {
        for _ in 0..16 {
            world.call("a", request("work")).unwrap();
        }
        // A client begins 50 calls in a second.
        for _ in 0..1_300 {
            world.run(Duration::from_micros(100 + random.below(400)));
            let now = world.now;
            for job in &world.ends["phone"].jobs {
                let takes = [random.below(11_000), 4_500 + random.below(1_000), random.below(300_000)];
                due.entry(job.key).or_insert_with(|| now + Duration::from_micros(random.pick(&takes)));
            }
            let jobs = &mut world.ends.get_mut("phone").unwrap().jobs;
            let (done, open): (Vec<_>, Vec<_>) = jobs.drain(..).partition(|job| due[&job.key] <= now);
            *jobs = open;
            for job in done {
                world.with("phone", |session, now| session.settle(now, job.key, Ok(value(1))));
            }
        }
        let settled = world.ends["a"].settled.iter().filter(|(_, result)| result.is_ok()).count();
        assert_eq!(settled, 16 * (burst + 1));
    }
    ended(world)
}

#[test]
fn session_whose_answers_take_as_long_as_their_hold_replays_equally_whatever_the_recorders_delay() {
    for seed in 1..=3 {
        let world = in_flight(seed);
        let mut random = Random(seed);
        for name in ["a", "phone"] {
            let mut entries = file(&world, name);
            // The recorder notes each entry a little later than it happened.
            for delay in [500, 3_000] {
                let mut last = 0;
                for entry in &mut entries {
                    entry.at.0 = last.max(entry.at.0 + 1_000 * random.below(delay + 1));
                    last = entry.at.0;
                }
                let report = dry(&entries);
                assert!(report.is_same(), "seed {seed}, {name}, up to {delay} µs: {report}");
                assert!(report.compared > 300, "seed {seed}, {name}: {report}");
            }
        }
    }
}
